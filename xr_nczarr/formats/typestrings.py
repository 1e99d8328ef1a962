"""Data types and fill values of Zarr v1 and v2 ⇄ NumPy's: typestrings, and lists of fields.

Fill values are read in every spelling: the specification's, zarr-python's zero for types that
have none, netcdf-c's plain characters and its one-element lists.
"""

from __future__ import annotations

import base64
import json
import math
import re
import sys
from typing import Any

import numpy as np

from xr_nczarr.errors import LimitError, MetadataError, UnsupportedError, quote
from xr_nczarr.formats.documents import (
    MAX_ITEM_BYTES,
    read_lengths,
    read_list,
    read_text,
    unexpected,
)
from xr_nczarr.model import Json

DType = np.dtype[Any]

_TYPESTRING = re.compile(
    r"[<>|](?:b1|[iu][1248]|f[248]|c8|c16|O8?|(?P<text>[SUV])(?P<size>[1-9][0-9]{0,9})"
    r"|[mM]8(?:\[(?:[1-9][0-9]{0,8})?(?:Y|M|W|D|h|m|s|ms|us|μs|ns|ps|fs|as)\]|\[generic\])?)"
)
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
_CHARACTERS = frozenset((">S1", "<S1", ">U1", "<U1"))
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf}


def parse_data_type(value: Json, place: str = "dtype") -> tuple[DType, str]:
    """Give the dtype that a typestring or a list of fields means, and its spelling as text.

    A number marked as without byte order (``"|i4"``) is taken for little endian.

    Raises
    ------
    UnsupportedError
        For types that v2 does not have, ``"|J0"`` among them: it marks JSON, never an array.
    LimitError
        For items above 16 MiB.
    """
    if isinstance(value, str):
        return _parse_typestring(value, place), value
    fields = [
        _parse_field(field, f"{place}[{number}]")
        for number, field in enumerate(read_list(value, place))
    ]
    check_size(sum(dtype.itemsize * math.prod(shape) for _, dtype, shape in fields), value, place)
    try:
        return np.dtype(fields), json.dumps(value, ensure_ascii=False)
    except ValueError as error:
        raise MetadataError(f"found fields that NumPy refuses: {error}", place=place) from error


def _parse_typestring(text: str, place: str) -> DType:
    match = _TYPESTRING.fullmatch(text)
    if match is None:
        raise UnsupportedError(
            f"found the data type {quote(text)}, expected a typestring like <f4", place=place
        )
    if match["text"]:
        check_size(int(match["size"]) * (4 if match["text"] == "U" else 1), text, place)
    return np.dtype("<" + text[1:] if text[0] == "|" else text)


def _parse_field(value: Json, place: str) -> tuple[str, DType, tuple[int, ...]]:
    if not isinstance(value, list) or len(value) not in (2, 3):
        raise unexpected(value, "name, type and perhaps shape of a field", place)
    dtype, _ = parse_data_type(value[1], place)
    if dtype.hasobject:
        raise UnsupportedError("found a field of variable length", place=place)
    shape = value[2] if len(value) == 3 else []
    return (
        read_text(value[0], place),
        dtype,
        read_lengths(shape if isinstance(shape, list) else [shape], place, least=1),
    )


def check_size(size: int, value: Json, place: str) -> None:
    """Raise what is wrong with items of `size` bytes, if anything: none at all, or too many."""
    if not size:
        raise unexpected(value, "a type of at least one byte", place)
    if size > MAX_ITEM_BYTES:
        raise LimitError(
            f"found items of {size:,} bytes, expected at most {MAX_ITEM_BYTES:,}", place=place
        )


def render_data_type(dtype: DType, type_name: str = "") -> Json:
    """Give the typestring or the fields of a dtype: as `type_name` spells them, if it does.

    Raises
    ------
    UnsupportedError
        For dtypes that v2 cannot express: padded structures, extended precision.
    """
    if type_name[:1] == "[" or _TYPESTRING.fullmatch(type_name):
        spelled = json.loads(type_name) if type_name[0] == "[" else type_name
        if parse_data_type(spelled)[0] == dtype:
            return spelled
    described = _describe(dtype)
    if parse_data_type(described)[0] != dtype:
        raise UnsupportedError(f"found {dtype}, expected a type without padding")
    return described


def _describe(dtype: DType) -> Json:
    if dtype.names is None:
        return dtype.str
    described: list[Json] = []
    for name in dtype.names:
        item, shape = dtype[name].subdtype or (dtype[name], ())
        described.append([name, _describe(item), *([list(shape)] if shape else [])])
    return described


def parse_fill_value(
    value: Json,
    dtype: DType,
    *,
    type_name: str = "",
    binary: bool = False,
    place: str = "fill_value",
) -> Any:
    """Give the scalar of `dtype` that a fill value means; None for null.

    Parameters
    ----------
    type_name
        The dtype's spelling: it marks netcdf-c's characters, whose fill values are plain.
    binary
        Whether items of variable length are bytes rather than text.
    """
    if isinstance(value, list) and len(value) == 1 and dtype.kind != "c":  # netcdf-c 4.8.0
        (value,) = value
    if value is None:
        return None
    if dtype.kind in "OSUV":
        return _parse_item(value, dtype, type_name in _CHARACTERS, binary, place)
    if dtype.kind == "c":
        parts = value if isinstance(value, list) else [value, 0]
        if len(parts) != 2:
            raise unexpected(value, "a real and an imaginary part", place)
        half = np.dtype(f"<f{dtype.itemsize // 2}")
        pair = [parse_float(part, half, place) for part in parts]
        return np.array(pair, half).view(dtype.newbyteorder("<"))[0]
    if dtype.kind == "f":
        return parse_float(value, dtype, place)
    if dtype.kind == "b":
        if not isinstance(value, (bool, int, float)) or value not in (0, 1):
            raise unexpected(value, "true or false", place)
        return np.bool_(value)
    return parse_integer(value, dtype, place)


def parse_integer(value: Json, dtype: DType, place: str) -> Any:
    """Give the scalar of an integer or a time that a number, or ``"NaT"``, means."""
    if dtype.kind in "mM" and value == "NaT":
        value = np.iinfo("i8").min
    stored = np.dtype("i8") if dtype.kind in "mM" else dtype.newbyteorder("=")
    least, most = np.iinfo(stored).min, np.iinfo(stored).max
    whole = type(value) is int or (isinstance(value, float) and value.is_integer())
    if not whole or not least <= value <= most:
        raise unexpected(value, f"an integer from {least} to {most}", place)
    return np.array(int(value), stored).view(dtype.newbyteorder("="))[()]


def parse_float(value: Json, dtype: DType, place: str) -> Any:
    """Give the scalar of a float that a number, or the name of a special one, means."""
    number = _SPECIAL.get(value) if isinstance(value, str) else value
    if type(number) not in (int, float):
        raise unexpected(value, 'a number, "NaN", "Infinity" or "-Infinity"', place)
    try:
        with np.errstate(over="raise"):
            return dtype.type(number)
    except (OverflowError, FloatingPointError) as error:
        raise unexpected(value, f"a number within the range of {dtype.name}", place) from error


def _parse_item(value: Json, dtype: DType, character: bool, binary: bool, place: str) -> Any:
    """Give the fill value of text or bytes, of fixed or variable length."""
    if type(value) is int and value == 0 and not character:
        value = ""  # zarr-python's zero of any type
    elif dtype.kind in "SU" and isinstance(value, (bool, int, float)):
        value = json.dumps(value)  # netcdf-c writes text that reads as a number without quotes
    text = read_text(value, place)
    if dtype.kind == "O" and not binary:
        return text
    if dtype.kind == "U":
        if len(text) > dtype.itemsize // 4:
            raise unexpected(value, f"at most {dtype.itemsize // 4} characters", place)
        return np.str_(text)
    encoded = not character and _BASE64.fullmatch(text)
    raw = base64.b64decode(text) if encoded else text.encode()
    if dtype.kind == "O":
        return raw
    if dtype.kind == "S" and len(raw) > dtype.itemsize:
        raise unexpected(value, f"at most {dtype.itemsize} bytes", place)
    if dtype.kind == "V" and text and (not encoded or len(raw) != dtype.itemsize):
        raise unexpected(value, f"{dtype.itemsize} bytes in Base64", place)
    filled = np.frombuffer(raw.ljust(dtype.itemsize, b"\0"), dtype)
    if not _is_unicode(filled):
        raise unexpected(value, "text that is Unicode", place)
    return filled[0]


def _is_unicode(values: np.ndarray[Any, Any]) -> bool:
    """Tell whether all text is: NumPy crashes on hashing structures where some is not."""
    if values.dtype.names is not None:
        return all(_is_unicode(values[name]) for name in values.dtype.names)
    if values.dtype.kind != "U":
        return True
    points = np.ascontiguousarray(values).view(f"{values.dtype.str[0]}u4")
    return not (points > sys.maxunicode).any()


def render_fill_value(value: Any, dtype: DType, *, type_name: str = "") -> Json:
    """Give the ``fill_value`` of a scalar of `dtype`, null for None."""
    if value is None or isinstance(value, str):
        return None if value is None else str(value)
    if dtype.kind == "O":
        return base64.b64encode(value).decode() if isinstance(value, bytes) else value
    scalar = np.asarray(value, dtype)
    if dtype.kind == "c":
        return [_render_float(scalar.real), _render_float(scalar.imag)]
    if dtype.kind == "f":
        return _render_float(scalar)
    if dtype.kind in "mM":
        return int(scalar.astype(dtype.newbyteorder("=")).view("i8"))
    if dtype.kind not in "SV":
        return scalar.item()
    raw: bytes = scalar.item() if dtype.kind == "S" else scalar.tobytes()
    if type_name in _CHARACTERS and raw.isascii():
        return raw.decode()
    return base64.b64encode(raw).decode()


def _render_float(scalar: np.ndarray[Any, Any]) -> Json:
    if np.isfinite(scalar):
        return float(scalar)
    return "NaN" if np.isnan(scalar) else "Infinity" if scalar > 0 else "-Infinity"
