"""Define netCDF's types, their default fill values, and their names in each NCZarr layout.

The functions for fixed-width strings encode and decode UTF-8 that is padded with NUL bytes. Strings
are never truncated. Bytes that are not UTF-8, such as Latin-1 text from an older program, are
decoded to lone surrogates, as Python does for file names. Encoding restores the original bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_nczarr.errors import ConflictError, quote
from xr_nczarr.netcdf.annotations import Vintage

TEXT = "char"
STRING = "string"
JSON = "json"

NUMBERS = {
    "int8": -127,
    "uint8": 255,
    "int16": -32767,
    "uint16": 65535,
    "int32": -2147483647,
    "uint32": 4294967295,
    "int64": -9223372036854775806,
    "uint64": 18446744073709551614,
    "float32": 9.969209968386869e36,
    "float64": 9.969209968386869e36,
}
"""Mapping from the names of netCDF's atomic numeric types to their default fill values."""

SCALARS: dict[str, Any] = {name: np.dtype(name).type for name in (*NUMBERS, "float16")}
DTYPE_NAMES = {np.dtype(order + np.dtype(name).str[1:]): name for name in NUMBERS for order in "<>"}
"""Mapping from the numeric dtypes, in both byte orders, to their netCDF names.

A lookup is faster than `dtype.name`, which takes microseconds.
"""

ROUNDED_FILL = 9.96921e36
"""netCDF's default fill value for doubles, rounded as netCDF-C prints it in metadata."""

EXACT_FILL = np.float64(NUMBERS["float64"])
"""netCDF's default fill value for doubles, exactly as netCDF-C stores it in chunks."""

_NC_TYPES = (
    *("int8", TEXT, "int16", "int32", "float32", "float64"),
    *("uint8", "uint16", "uint32", "int64", "uint64", STRING),
)
ATTRIBUTE_TYPES: dict[str, str] = {
    # netCDF-C 4.8.0 writes the number of the type (nc_type) as a string.
    **{str(number): name for number, name in enumerate(_NC_TYPES, 1)},
    # netCDF-C 4.8.1 and 4.9.0 write characters as UCS-4. Later releases use a big-endian S1.
    **dict.fromkeys(("<U1", ">U1", ">S1", "<S1", TEXT), TEXT),
    # In Zarr version 3, types are written as names.
    STRING: STRING,
    JSON: JSON,
    "|J0": JSON,
    "bool": "uint8",
    **{name: name for name in NUMBERS},
    **{order + np.dtype(name).str[1:]: name for name in NUMBERS for order in "<>|"},
    "|b1": "uint8",
}
"""Mapping from the notation of an attribute type in any NCZarr layout to the netCDF type.

Notations of fixed-width strings, such as ``"|S128"``, are not included; see `attribute_type`.
"""


def attribute_type(notation: object) -> str | None:
    """Parse a type notation of any NCZarr layout, and return the netCDF type.

    Return None if the notation is unknown.
    """
    if not isinstance(notation, str):
        return None
    name = ATTRIBUTE_TYPES.get(notation)
    if name is None and notation[:1] in ("|", "<", ">") and notation[1:2] == "S":
        return STRING
    return name


def render_type(name: str, vintage: Vintage) -> str:
    """Render the netCDF type `name` of an attribute in the notation of an NCZarr layout."""
    if vintage.appendix_e:
        return name
    if name in NUMBERS:
        return "<" + np.dtype(name).str[1:]
    if name == TEXT:
        return vintage.text_type
    return "|S128" if name == STRING else "|J0"


def default_fill(dtype: np.dtype[Any]) -> Any:
    """Return netCDF's default fill value for a dtype.

    If netCDF has no equivalent of the dtype, return NaN for a floating-point or complex dtype, and
    the result of `zero` for any other dtype.
    """
    name = DTYPE_NAMES.get(dtype)
    if name is not None:
        return SCALARS[name](NUMBERS[name])
    return dtype.type(np.nan) if dtype.kind in "fc" else zero(dtype)


def zero(dtype: np.dtype[Any]) -> Any:
    """Return 0 in a given dtype, or its equivalent: False, NaT or an empty string."""
    if dtype.kind in "mM":
        return np.array("NaT", dtype)[()]
    return "" if dtype.kind == "O" else np.zeros((), dtype)[()]


def measured_width(values: NDArray[Any]) -> int:
    """Return the length in UTF-8 bytes of the longest string, but at least 1."""
    return max(map(len, encoded_items(values.ravel().tolist())), default=1) or 1


def encode_strings(values: NDArray[Any], width: int) -> NDArray[np.bytes_]:
    """Encode strings as an array of dtype ``S<width>``, where `width` is a number of bytes.

    The elements of `values` are str or bytes. Bytes are stored unchanged.

    Raises
    ------
    ConflictError
        If a value is longer than `width` bytes, or cannot be encoded; see `encoded_items`.
    """
    encoded = encoded_items(values.ravel().tolist())
    longest = max(map(len, encoded), default=0)
    if longest > width:
        raise ConflictError(
            f"the longest string is {longest} bytes long in UTF-8, which exceeds the width of "
            f"{width}",
            remedy=f"Write the variable with _nczarr_maxstrlen={longest} or more",
        )
    return np.array(encoded, f"S{width}").reshape(values.shape)


def decode_strings(values: NDArray[np.bytes_]) -> NDArray[Any]:
    """Decode an array of fixed-width strings into an object array of str."""
    decoded = np.empty(values.size, object)
    decoded[:] = [value.decode("utf-8", "surrogateescape") for value in values.ravel().tolist()]
    return decoded.reshape(values.shape)


def encoded_items(items: list[Any]) -> list[bytes]:
    """Encode strings as UTF-8, leaving items that are already bytes unchanged.

    Raises
    ------
    ConflictError
        If an item is neither str nor bytes, or if a str is not valid Unicode or contains a NUL
        character. NUL marks the end of a netCDF string.
    """
    try:  # encoding all strings together takes a fifth of the time
        encoded = "\0".join(items).encode("utf-8", "surrogateescape").split(b"\0")
    except (TypeError, UnicodeEncodeError):
        encoded = []
    return encoded if len(encoded) == len(items) else [_encoded_item(item) for item in items]


def _encoded_item(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise ConflictError(
            f"an array of strings contains a value of type {quote(type(value).__name__)}; "
            "expected str or bytes"
        )
    if "\0" in value:
        raise ConflictError(
            "a string contains a NUL character, which marks the end of a netCDF string",
            remedy="Remove the NUL character, or write plain Zarr with dialect='zarr'",
        )
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ConflictError(
            f"the string {quote(repr(value))} is not valid Unicode ({error.reason})"
        ) from error
