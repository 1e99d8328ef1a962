"""Parse and render Zarr v1 and v2 data types, which are typestrings or lists of fields."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from xr_nczarr.errors import (
    LimitError,
    MetadataError,
    NczarrError,
    UnsupportedError,
    quote,
    unexpected,
)
from xr_nczarr.formats.documents import MAX_ITEM_BYTES, read_lengths, read_list, read_text
from xr_nczarr.model import Json

DType = np.dtype[Any]

_TYPESTRING = re.compile(
    r"[<>|](?:b1|[iu][1248]|f[248]|c8|c16|O8?|(?P<text>[SUV])(?P<size>[1-9][0-9]{0,9})"
    r"|[mM]8(?:\[(?:[1-9][0-9]{0,8})?(?:Y|M|W|D|h|m|s|ms|us|μs|ns|ps|fs|as)\]|\[generic\])?)"
)


def parse_data_type(value: Json, place: str = "dtype") -> DType:
    """Parse a typestring or a list of fields.

    A type without a declared byte order, such as ``"|i4"``, is parsed as little-endian.

    Raises
    ------
    UnsupportedError
        If the type is not supported. An example is ``"|J0"``, which netCDF-C uses for JSON
        attributes, although Zarr v2 does not define it.
    MetadataError
        If `value` is neither a string nor a valid list of fields.
    LimitError
        If an item is larger than 16 MiB.
    """
    if isinstance(value, str):
        return _parse_typestring(value, place)
    fields = [
        _parse_field(field, f"{place}[{number}]")
        for number, field in enumerate(read_list(value, place))
    ]
    check_size(sum(dtype.itemsize * math.prod(shape) for _, dtype, shape in fields), value, place)
    try:
        return np.dtype(fields)
    except ValueError as error:
        raise MetadataError(
            f"NumPy rejects the fields of the data type: {error}", place=place
        ) from error


def _parse_typestring(text: str, place: str) -> DType:
    match = _TYPESTRING.fullmatch(text)
    if match is None:
        raise UnsupportedError(
            f"data type {quote(text)!r} is not supported; expected a typestring such as '<f4'",
            place=place,
        )
    if match["text"]:
        check_size(int(match["size"]) * (4 if match["text"] == "U" else 1), text, place)
    return np.dtype("<" + text[1:] if text[0] == "|" else text)


def _parse_field(value: Json, place: str) -> tuple[str, DType, tuple[int, ...]]:
    if not isinstance(value, list) or len(value) not in (2, 3):
        raise unexpected(value, "a field with a name, a type and optionally a shape", place)
    dtype = parse_data_type(value[1], place)
    if dtype.hasobject:
        raise UnsupportedError("variable-length fields are not supported", place=place)
    shape = value[2] if len(value) == 3 else []
    return (
        read_text(value[0], place),
        dtype,
        read_lengths(shape if isinstance(shape, list) else [shape], place, least=1),
    )


def check_size(size: int, value: Json, place: str) -> None:
    """Check that the item size of a data type is nonzero and within the limit.

    `size` is in bytes. `value` and `place` are used only in error messages.

    Raises
    ------
    MetadataError
        If `size` is zero.
    LimitError
        If `size` is larger than `MAX_ITEM_BYTES`.
    """
    if not size:
        raise unexpected(value, "a type of at least one byte", place)
    if size > MAX_ITEM_BYTES:
        raise LimitError(
            f"the item size of the data type is {size:,} bytes; expected at most "
            f"{MAX_ITEM_BYTES:,}",
            place=place,
        )


def render_data_type(dtype: DType, stored: Json = None) -> Json:
    """Render a dtype as a typestring or a list of fields.

    `stored` is the data type in the array's original metadata. If this type still describes
    `dtype`, return it unchanged.

    Raises
    ------
    UnsupportedError
        If `dtype` is a structured dtype with padding, an extended-precision float, or a dtype not
        defined by NumPy.
    """
    if describes(stored, dtype, parse_data_type):
        return stored
    if not is_numpy_dtype(dtype):
        raise unsupported_dtype(dtype, "Zarr v1 and v2", "dtype")
    described = _describe(dtype)
    if parse_data_type(described) != dtype:
        raise UnsupportedError(
            f"data type {dtype} has padding between its fields, which is not supported"
        )
    return described


def describes(stored: Json, dtype: DType, parse: Callable[[Json], DType]) -> bool:
    """Return whether parsing the data type `stored` with the function `parse` yields `dtype`.

    Return False if `stored` cannot be parsed, for example because it is None.
    """
    try:
        return parse(stored) == dtype
    except NczarrError:
        return False


def unsupported_dtype(dtype: DType, version: str, place: str = "data_type") -> UnsupportedError:
    """Build the error for a dtype that a Zarr version does not support, such as one from ml_dtypes.

    `place` is the member that contains the data type.
    """
    return UnsupportedError(
        f"no data type of {version} can represent dtype {quote(dtype)}",
        remedy="Convert the variable with astype",
        place=place,
    )


def is_numpy_dtype(dtype: DType) -> bool:
    """Return whether a dtype is defined by NumPy itself, not by a package such as ml_dtypes."""
    return dtype.type.__module__ == "numpy"


def _describe(dtype: DType) -> Json:
    if dtype.names is None:
        return dtype.str
    described: list[Json] = []
    for name in dtype.names:
        item, shape = dtype[name].subdtype or (dtype[name], ())
        described.append([name, _describe(item), *([list(shape)] if shape else [])])
    return described
