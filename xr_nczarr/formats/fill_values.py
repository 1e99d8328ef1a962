"""Parse and render the fill values of every Zarr version.

The parsers accept the following notations:

- Zarr v3: numbers, ``"NaN"``, ``"0x…"``, lists of bytes, and pairs for complex numbers
- the Zarr v3 draft: ``"0b…"`` and ``"+Infinity"``
- zarr-python: Base64, objects for structured dtypes, and 0 as the default for any type
- netCDF-C: plain text for characters, and lists of a single item
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from typing import Any

import numpy as np

from xr_nczarr.errors import quote, unexpected
from xr_nczarr.formats.documents import (
    read_integer,
    read_list,
    read_text,
    render_float,
    required,
)
from xr_nczarr.formats.v3_data_types import DType, check_members, is_float
from xr_nczarr.model import Json, is_unicode

BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
"""Pattern for complete Base64 text, including its padding."""

_BITS = re.compile(r"0x[0-9a-fA-F]+|0b[01]+")
CHARACTERS = (">S1", "<S1", ">U1", "<U1")
"""Names of the char type in metadata from netCDF-C. By contrast, ``|S1`` is a one-byte string."""

_PLACE = "fill_value"
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf}


def parse_v2_fill_value(
    value: Json, dtype: DType, *, type_name: Json = None, binary: bool = False
) -> Any:
    """Parse a Zarr v1 or v2 fill value into a scalar. Return None if the fill value is null.

    `type_name` is the data type in the document, which distinguishes netCDF characters from byte
    strings. If `binary` is True, variable-length items are bytes. Otherwise, they are strings.
    """
    kind, character = dtype.kind, type_name in CHARACTERS
    # netCDF-C 4.8.0 writes a single-item list.
    if isinstance(value, list) and len(value) == 1 and kind != "c":
        (value,) = value
    if kind in "OSUV" and not character and type(value) is int and value == 0:
        value = ""  # zarr-python writes 0 as the default fill value of every type
    elif kind in "SU" and isinstance(value, (bool, int, float)):
        value = json.dumps(value)  # netCDF-C omits the quotes around strings that look like numbers
    elif kind == "b" and isinstance(value, (int, float)) and value in (0, 1):
        value = bool(value)
    elif kind == "c" and not isinstance(value, list | None):
        value = [value, 0]
    if isinstance(value, str) and (kind == "S" or (kind == "O" and binary)):
        value = value if not character and BASE64.fullmatch(value) else value.encode()
    return parse_fill_value(value, dtype, text=not binary, bytes_dtype=dtype)


def parse_fill_value(
    value: Json | bytes, dtype: DType, *, text: bool = True, bytes_dtype: DType | None = None
) -> Any:
    """Parse a fill value into a scalar of `dtype`. Return None if the fill value is null.

    Variable-length items are strings if `text` is True, and bytes otherwise.

    Some notations, such as Base64, encode the bytes of the fill value. `bytes_dtype` is the dtype
    of these bytes. By default, it is `dtype` in little-endian byte order, as Zarr v3 prescribes.
    """
    if value is None:
        return None
    if dtype.kind == "U" or (dtype.kind == "O" and text):
        string = read_text(value, _PLACE)
        if dtype.kind == "U" and len(string) > dtype.itemsize // 4:
            raise unexpected(value, f"a string of at most {dtype.itemsize // 4} characters", _PLACE)
        return np.str_(string) if dtype.kind == "U" else string
    if dtype.kind == "O":
        return _parse_bytes(value)
    if dtype.names is not None and isinstance(value, dict):
        return _parse_fields(value, dtype)
    if dtype.kind in "SV" and not is_float(dtype):
        return _parse_fixed(value, dtype, bytes_dtype or dtype.newbyteorder("<"))
    if dtype.kind != "c":
        return _parse_number(value, dtype)
    if len(read_list(value, _PLACE)) != 2:
        raise unexpected(value, "a list of a real and an imaginary part", _PLACE)
    half = np.dtype(f"<f{dtype.itemsize // 2}")
    pair = np.array([_parse_number(part, half) for part in value], half)
    return pair.view(dtype.newbyteorder("<"))[0]


def _parse_fields(value: dict[str, Json], dtype: DType) -> Any:
    names = dtype.names or ()
    check_members(value, names, _PLACE)
    filled = np.zeros((), dtype)
    for name in names:
        part = parse_fill_value(required(value, name, _PLACE), dtype[name])
        if part is None:
            raise unexpected(value, f"a value for the field {quote(name)}", _PLACE)
        filled[name] = part
    return filled[()]


def _parse_fixed(value: Json | bytes, dtype: DType, bytes_dtype: DType) -> Any:
    stored = _parse_bits(value, dtype.itemsize) or _parse_bytes(value)
    # netCDF-C writes "" for every raw type.
    short = len(stored) < dtype.itemsize and dtype.kind == "V" and stored
    if short or len(stored) > dtype.itemsize:
        raise unexpected(value, f"{dtype.itemsize} bytes", _PLACE)
    filled = np.frombuffer(stored.ljust(dtype.itemsize, b"\0"), bytes_dtype)
    if not is_unicode(filled):
        raise unexpected(value, "valid Unicode text", _PLACE)
    return filled.astype(dtype)[0]


def _parse_bytes(value: Json | bytes) -> bytes:
    try:
        if isinstance(value, bytes | str):
            return value if isinstance(value, bytes) else base64.b64decode(value, validate=True)
        return bytes(read_integer(byte, _PLACE) for byte in read_list(value, _PLACE))
    except ValueError as error:
        raise unexpected(value, "Base64 or a list of bytes", _PLACE) from error


def _parse_bits(value: Json, size: int) -> bytes | None:
    """Parse ``"0x…"`` or ``"0b…"`` into `size` bytes, with the most significant byte first.

    Return None if the value has a different form, or a different number of digits.
    """
    if not isinstance(value, str) or not _BITS.fullmatch(value):
        return None
    digits = size * (2 if value[1] == "x" else 8)
    return int(value, 0).to_bytes(size, "big") if len(value) == 2 + digits else None


def _parse_number(value: Json, dtype: DType) -> Any:
    if dtype.kind == "b":
        if not isinstance(value, bool):
            raise unexpected(value, "true or false", _PLACE)
        return np.bool_(value)
    bits = _parse_bits(value, dtype.itemsize)
    if bits is not None:
        return np.frombuffer(bits, dtype.newbyteorder(">"))[0]
    if isinstance(value, str) and _BITS.fullmatch(value):
        raise unexpected(value, f"as many digits as {dtype.name} requires", _PLACE)
    if is_float(dtype):
        return _parse_float(value, dtype)
    if dtype.itemsize == 1 and isinstance(value, str) and len(value) < 2 and value.isascii():
        # netCDF-C stores characters as uint8, but writes their fill value as a string.
        value = ord(value or "\0")
    stored = np.dtype("i8") if dtype.kind in "mM" else dtype.newbyteorder("=")
    low, high = np.iinfo(stored).min, np.iinfo(stored).max
    if dtype.kind in "mM" and value == "NaT":
        value = low
    whole = type(value) is int or (isinstance(value, float) and value.is_integer())
    if not whole or not low <= value <= high:
        raise unexpected(value, f"an integer from {low} to {high}", _PLACE)
    return np.array(int(value), stored).view(dtype.newbyteorder("="))[()]


def _parse_float(value: Json, dtype: DType) -> Any:
    number = _SPECIAL.get(value) if isinstance(value, str) else value
    if type(number) not in (int, float):
        raise unexpected(value, 'a number, "NaN", "Infinity" or "-Infinity"', _PLACE)
    try:
        # `pack` fails for numbers that round to infinity. bfloat16 has the same range as float32.
        struct.pack(f"<{dtype.char if dtype.kind == 'f' else 'f'}", number)
    except (OverflowError, struct.error) as error:
        raise unexpected(value, f"a number within the range of {dtype.name}", _PLACE) from error
    return dtype.type(number)


def render_v2_fill_value(value: Any, dtype: DType, *, type_name: Json = None) -> Json:
    """Render a scalar as a Zarr v1 or v2 ``fill_value``. None becomes null.

    `type_name` is the data type in the document. Byte strings are written as Base64. ASCII
    characters are written as text if `type_name` is netCDF's char type.
    """
    if type_name in CHARACTERS and isinstance(value, bytes) and value.isascii():
        return value.decode()
    return value if value is None or isinstance(value, str) else _rendered(value, dtype)


def render_fill_value(value: Any, dtype: DType, data_type: Json = None) -> Json:
    """Render a scalar as a Zarr v3 ``fill_value``.

    v3 requires a fill value, so None becomes zero, as in zarr-python. `data_type` is the rendered
    data type of the array. A raw type of the core specification, such as ``r16``, requires a list
    of integers, and ``struct`` requires an object. For all other structured and raw types, the
    bytes of the fill value are encoded as a single Base64 string, as in zarr-python.
    """
    if dtype.kind == "O":
        return _rendered(value or b"", dtype)
    scalar = np.zeros((), dtype) if value is None else np.asarray(value, dtype)
    scalar = scalar.astype(dtype.newbyteorder("<"))
    if isinstance(data_type, dict) and data_type["name"] == "struct" and dtype.names is not None:
        return {
            name: render_fill_value(scalar[name], dtype[name], data_type) for name in dtype.names
        }
    if isinstance(data_type, str) and dtype.type is np.void:
        return list(scalar.tobytes())
    return _rendered(scalar, scalar.dtype, exact=True)


def _rendered(value: Any, dtype: DType, *, exact: bool = False) -> Json:
    """Render a scalar as JSON.

    If `exact` is True, a NaN whose bits differ from ``np.nan`` becomes ``"0x…"`` instead of
    ``"NaN"``.
    """
    if dtype.kind == "O":
        return base64.b64encode(value).decode() if isinstance(value, bytes) else value
    scalar = np.asarray(value, dtype)
    if dtype.kind == "c":
        return [_render_float(part, exact) for part in (scalar.real, scalar.imag)]
    if is_float(dtype):
        return _render_float(scalar, exact)
    if dtype.kind in "mM":
        return int(scalar.astype(dtype.newbyteorder("=")).view("i8"))
    if dtype.kind not in "SV":
        return scalar.item()
    raw: bytes = scalar.item() if dtype.kind == "S" else scalar.tobytes()
    return base64.b64encode(raw).decode()


def _render_float(scalar: np.ndarray[Any, Any], exact: bool) -> Json:
    usual = np.array(np.nan, scalar.dtype).tobytes()
    if exact and np.isnan(scalar) and scalar.tobytes() != usual:
        return f"0x{scalar.tobytes()[::-1].hex()}"
    return render_float(float(scalar))
