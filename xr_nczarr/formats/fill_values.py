"""Fill values of Zarr v3 and of its draft of May 2022 ⇄ scalars.

Besides v3's spellings (numbers, ``"NaN"``, ``"0x…"``, lists of bytes, pairs of a complex number)
those of the draft (``"0b…"``, ``"+Infinity"``) and of zarr-python (Base64) are understood.
"""

from __future__ import annotations

import base64
import re
from typing import Any

import numpy as np

from xr_nczarr.errors import quote
from xr_nczarr.formats import typestrings
from xr_nczarr.formats.data_types import DType, check_members
from xr_nczarr.formats.documents import read_integer, read_list, read_text, required, unexpected
from xr_nczarr.model import Json

_BITS = re.compile(r"0x[0-9a-fA-F]+|0b[01]+")


def parse_fill_value(
    value: Json, dtype: DType, *, text: bool = True, place: str = "fill_value"
) -> Any:
    """Give the scalar of `dtype` that a fill value means; None for null.

    Parameters
    ----------
    text
        Whether items of variable length are text.
    """
    if value is None:
        return None
    if dtype.kind == "U" or (dtype.kind == "O" and text):
        return typestrings.parse_fill_value(read_text(value, place), dtype, place=place)
    if dtype.kind == "O":
        return _parse_bytes(value, place)
    if dtype.names is not None and isinstance(value, dict):
        check_members(value, dtype.names, place)
        filled = np.zeros((), dtype)
        for name in dtype.names:
            part = parse_fill_value(required(value, name, place), dtype[name], place=place)
            if part is None:
                raise unexpected(value, f"a value for {quote(name)}", place)
            filled[name] = part
        return filled[()]
    little = dtype.newbyteorder("<")
    if dtype.kind in "SV":
        raw = _parse_fixed(value, dtype, place)
        # A structure of big-endian fields still has its fill value in little endian.
        return np.frombuffer(raw.ljust(dtype.itemsize, b"\0"), little).astype(dtype)[0]
    if dtype.kind != "c":
        return _parse_number(value, little, place)
    if len(read_list(value, place)) != 2:
        raise unexpected(value, "a real and an imaginary part", place)
    half = np.dtype(f"<f{dtype.itemsize // 2}")
    return np.array([_parse_number(part, half, place) for part in value], half).view(little)[0]


def _parse_bytes(value: Json, place: str) -> bytes:
    try:
        if isinstance(value, str):
            return base64.b64decode(value, validate=True)
        return bytes(read_integer(byte, place) for byte in read_list(value, place))
    except ValueError as error:
        raise unexpected(value, "Base64 or a list of bytes", place) from error


def _parse_fixed(value: Json, dtype: DType, place: str) -> bytes:
    raw = _parse_bits(value, dtype.itemsize)
    if raw is None:
        raw = _parse_bytes(value, place)
    # netcdf-c writes "" for every raw type.
    short = len(raw) < dtype.itemsize and dtype.kind == "V" and raw
    if short or len(raw) > dtype.itemsize:
        raise unexpected(value, f"{dtype.itemsize} bytes", place)
    return raw


def _parse_bits(value: Json, size: int) -> bytes | None:
    """Give the bytes of ``0x…`` or ``0b…`` as they are spelled; None for all but `size` bytes."""
    if not isinstance(value, str) or not _BITS.fullmatch(value):
        return None
    digits = size * (2 if value[1] == "x" else 8)
    return int(value, 0).to_bytes(size, "big") if len(value) == 2 + digits else None


def _parse_number(value: Json, dtype: DType, place: str) -> Any:
    if dtype.kind == "b":
        if not isinstance(value, bool):
            raise unexpected(value, "true or false", place)
        return np.bool_(value)
    bits = _parse_bits(value, dtype.itemsize)
    if bits is not None:
        return np.frombuffer(bits, dtype.newbyteorder(">"))[0]
    if isinstance(value, str) and _BITS.fullmatch(value):
        raise unexpected(value, f"as many digits as {dtype.name} has", place)
    if dtype.kind == "f":
        return typestrings.parse_float(value, dtype, place)
    if dtype.itemsize == 1 and isinstance(value, str) and len(value) < 2 and value.isascii():
        # netcdf-c stores characters as uint8 and spells their fill value as text.
        value = ord(value or "\0")
    return typestrings.parse_integer(value, dtype, place)


def render_fill_value(value: Any, dtype: DType, *, listed: bool = False) -> Json:
    """Give the ``fill_value`` of a scalar of `dtype`.

    None, which v3 does not permit, becomes the zero of the type: the default of zarr-python.

    Parameters
    ----------
    listed
        Whether raw bytes are listed (the core specification) instead of Base64 (zarr-python).
    """
    if dtype.kind == "O":
        return typestrings.render_fill_value(value or b"", dtype)
    scalar = np.zeros((), dtype) if value is None else np.asarray(value, dtype)
    scalar = scalar.astype(dtype.newbyteorder("<"))
    if dtype.kind == "c":
        return [_render_float(scalar.real), _render_float(scalar.imag)]
    if dtype.kind == "f":
        return _render_float(scalar)
    if listed:
        return list(scalar.tobytes())
    return typestrings.render_fill_value(scalar[()], scalar.dtype)


def _render_float(scalar: np.ndarray[Any, Any]) -> Json:
    """Give a float; of a NaN that is not the usual one, the bits."""
    bits, usual = (item.tobytes()[::-1].hex() for item in (scalar, np.array(np.nan, scalar.dtype)))
    if np.isnan(scalar) and bits != usual:
        return f"0x{bits}"
    return typestrings.render_fill_value(scalar, scalar.dtype)
