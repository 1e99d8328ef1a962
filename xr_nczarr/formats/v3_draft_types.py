"""Parse and render data types of the Zarr v3 draft: names, typestrings and extensions.

As in `v3_data_types`, the parser returns the dtype and the original notation of the data type.
"""

from __future__ import annotations

import json
import re

import numpy as np

from xr_nczarr.formats import typestrings
from xr_nczarr.formats.documents import read_object, read_text, required
from xr_nczarr.formats.v3_data_types import (
    NUMERIC_TYPES,
    DType,
    check_members,
    find_core_type,
    unsupported,
    unsupported_dtype,
)
from xr_nczarr.model import Json

_TYPESTRING = re.compile(r"[<>](?:[iuf][248]|c8|c16)|\|?(?:b1|[iu]1)")
# Type names in extension URIs, with NumPy's kinds for each. The names are from an example in the
# specification, and from zarr-python 2.12 to 2.18.
_EXTENSION_KINDS = {
    "datetime": "mM",
    "complex": "c",
    "object": "O",
    "bytestring": "S",
    "unicode": "U",
    "structured": "V",
}
_EXTENSION = re.compile(
    r"(?:https://purl\.org/zarr/spec/|https://zarr-specs\.readthedocs\.io/|TODO: ).*"
    rf"({'|'.join(_EXTENSION_KINDS)})"
)
_NUMPY_TYPES = "https://numpy.org/doc/stable/reference/arrays.interface.html"


def parse_data_type(value: Json, *, fallback: bool) -> tuple[DType, str]:
    """Parse a ``data_type`` of the draft, and return the dtype and its original notation.

    The notation is a name, a typestring, or the JSON text of an extension. If `fallback` is True,
    an unknown extension is parsed as the fallback type that it declares.

    Raises
    ------
    UnsupportedError
        If the type is unknown.
    """
    place = "data_type"
    if isinstance(value, str):
        dtype = _find_type(value, place)
        if dtype is None:
            raise unsupported("data type", value, place)
        return dtype, value
    members = read_object(value, place)
    check_members(members, ("extension", "type", "fallback"), place)
    extension = read_text(required(members, "extension", place), f"{place}.extension")
    known = _EXTENSION.match(extension)
    if known is None and extension != _NUMPY_TYPES:
        dtype = _parse_fallback(extension, members.get("fallback"), fallback)
    else:
        described, place = required(members, "type", place), f"{place}.type"
        match described:
            case [["", raw]]:  # NumPy's notation for raw bytes
                described = raw
        dtype, _ = typestrings.parse_data_type(described, place)
        if known is not None and dtype.kind not in _EXTENSION_KINDS[known[1]]:
            raise unsupported("data type", described, place)
    return dtype, json.dumps(value, ensure_ascii=False)


def _find_type(name: str, place: str) -> DType | None:
    return np.dtype(name) if _TYPESTRING.fullmatch(name) else find_core_type(name, place)


def _parse_fallback(extension: str, value: Json, fallback: bool) -> DType:
    place = "data_type.fallback"
    error = unsupported("data type", extension, "data_type")
    for name in value if isinstance(value, list) else [value]:
        dtype = None if name is None else _find_type(read_text(name, place), place)
        if dtype is not None and fallback:
            return dtype
        if dtype is not None:
            error.remedy = f"Open the store with on_unsupported='fallback' to read it as {name}"
            break
    raise error


def render_data_type(dtype: DType, notation: str) -> Json:
    """Render a dtype as a ``data_type`` of the draft.

    `notation` is the original notation of the type, as `parse_data_type` returned it. It is reused
    if it still describes `dtype`. Otherwise, a numeric type becomes its name without byte order,
    raw bytes become a name such as ``r16``, and any other type becomes an extension with a
    typestring. An extension whose items have a fixed size declares raw bytes as its fallback.
    """
    value = json.loads(notation) if notation.startswith("{") else notation
    extended = isinstance(value, dict) and "extension" in value
    known = extended or _find_type(notation, "data_type") is not None
    if known and parse_data_type(value, fallback=True)[0] == dtype:
        return value
    if dtype.newbyteorder("<") in NUMERIC_TYPES.values():
        return dtype.name
    if not typestrings.is_numpy_dtype(dtype):
        raise unsupported_dtype(dtype, "the draft of Zarr v3")
    if dtype.kind not in "mMOSUV":
        raise unsupported("data type", dtype, "data_type")
    raw = f"r{dtype.itemsize * 8}"
    if dtype.kind == "V" and dtype.names is None:
        return raw
    members = {"extension": _NUMPY_TYPES, "type": typestrings.render_data_type(dtype)}
    return members if dtype.kind == "O" else members | {"fallback": raw}
