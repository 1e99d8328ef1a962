"""Parse and render Zarr v3 data types.

In v3, codecs determine the byte order, so data types are parsed as little-endian.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import numpy as np

from xr_nczarr.errors import UnsupportedError, quote, unexpected
from xr_nczarr.formats import typestrings
from xr_nczarr.formats.documents import read_integer, read_list, read_object, read_text, required
from xr_nczarr.model import Json

DType = np.dtype[Any]

NUMERIC_TYPES: dict[str, DType] = {
    np.dtype(code).name: np.dtype(code)
    for code in (
        *("?", "i1", "u1", "<c8", "<c16"),
        *(f"<{kind}{size}" for kind in "iuf" for size in (2, 4, 8)),
    )
}
_EXTENDED = ("bfloat16",)  # registered types that ml_dtypes adds to NumPy
_RAW = re.compile(r"r([1-9][0-9]{0,9})")
_TEXT = "string"
_VARIABLE = (_TEXT, "bytes", "variable_length_bytes")
# NumPy kinds of the types that have a configuration.
_FIXED = {"null_terminated_bytes": "S", "fixed_length_utf32": "U", "raw_bytes": "V"}
_TIMES = {"numpy.datetime64": "M", "numpy.timedelta64": "m"}
_UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "μs", "ns", "ps", "fs", "as", "generic")
# The first name is used for writing. The second name is the registered one, which zarr-python up to
# 3.1 does not support.
_STRUCTURED = ("structured", "struct")


def read_definition(value: Json, place: str) -> tuple[str, dict[str, Json]]:
    """Parse the v3 definition of an extension, such as a codec, into a name and a configuration.

    `value` is an object with ``name`` and ``configuration`` members, or only the name if the
    configuration is empty. `place` is its location in the document.
    """
    if isinstance(value, str):
        return value, {}
    members = read_object(value, place)
    check_members(members, ("name", "configuration", "must_understand"), place)
    configuration = read_object(members.get("configuration", {}), f"{place}.configuration")
    return read_text(required(members, "name", place), f"{place}.name"), configuration


def check_members(members: Collection[str], known: Collection[str], place: str | None) -> None:
    """Raise UnsupportedError if a JSON object has members that are not in `known`.

    `place` is the object's location in its document, or None if the object is the whole document.
    """
    extra = sorted(set(members) - set(known))
    if extra:
        raise unsupported("member", extra[0], place)


def unsupported(kind: str, name: object, place: str | None) -> UnsupportedError:
    """Build the error for an unsupported feature, such as a codec or a data type.

    `kind` is the kind of feature, and `name` is its name in the document. The error is not a
    MetadataError, because the document may be valid: the feature can belong to an extension.
    """
    return UnsupportedError(f"{kind} {quote(name)!r} is not supported", place=place)


def parse_data_type(value: Json, place: str = "data_type") -> DType:
    """Parse a v3 ``data_type`` into a dtype.

    The data types of the specification, its extension registry and zarr-python are supported.
    """
    name, configuration = read_definition(value, place)
    inner = f"{place}.configuration"
    dtype = np.dtype(object) if name in _VARIABLE else _find_named_type(name, place)
    if dtype is not None:
        check_members(configuration, (), inner)
    elif name in _FIXED:
        check_members(configuration, ("length_bytes",), inner)
        size = read_integer(required(configuration, "length_bytes", inner), inner, least=1)
        typestrings.check_size(size, size, inner)
        width = 4 if _FIXED[name] == "U" else 1
        if size % width:
            raise unexpected(size, "a multiple of 4 bytes", inner)
        dtype = np.dtype(f"<{_FIXED[name]}{size // width}")
    elif name in _TIMES:
        check_members(configuration, ("unit", "scale_factor"), inner)
        unit = read_text(required(configuration, "unit", inner), inner, _UNITS)
        factor = read_integer(configuration.get("scale_factor", 1), inner, least=1)
        if factor >= 2**31:
            raise unexpected(factor, "an integer below 2**31", inner)
        dtype = np.dtype(f"<{_TIMES[name]}8" + (f"[{factor}{unit}]" if unit != "generic" else ""))
    elif name in _STRUCTURED:
        check_members(configuration, ("fields",), inner)
        listed = read_list(required(configuration, "fields", inner), inner)
        fields = [_parse_field(field, inner) for field in listed]
        dtype = typestrings.parse_data_type(fields, inner)
    else:
        raise unsupported("data type", name, place)
    return dtype


def _find_named_type(name: str, place: str) -> DType | None:
    if name not in _EXTENDED:
        return find_core_type(name, place)
    try:
        import ml_dtypes
    except ImportError as error:
        raise UnsupportedError(
            f"data type {name!r} requires the ml_dtypes package",
            remedy="Install ml_dtypes",
            place=place,
        ) from error
    dtype: DType = np.dtype(getattr(ml_dtypes, name)).newbyteorder("<")
    return dtype


def is_float(dtype: DType) -> bool:
    """Return whether a dtype is a floating-point type, including ``bfloat16``."""
    return dtype.kind == "f" or dtype.name in _EXTENDED


def find_core_type(name: str, place: str) -> DType | None:
    """Return the dtype of the numeric or raw-bytes type `name`, or None for any other name.

    The name of a raw-bytes type contains its size in bits. For example, ``r16`` is two bytes long.
    """
    raw = _RAW.fullmatch(name)
    if raw is None:
        return NUMERIC_TYPES.get(name)
    size, remainder = divmod(int(raw[1]), 8)
    if remainder:
        raise unexpected(name, "a size that is a multiple of 8 bits", place)
    typestrings.check_size(size, name, place)
    return np.dtype(f"V{size}")


def _parse_field(field: Json, place: str) -> Json:
    """Convert a field of a structured data type to a field in Zarr v2 notation."""
    if isinstance(field, dict):  # the registered ``struct``; zarr-python's ``structured`` has pairs
        check_members(field, ("name", "data_type"), place)
        field = [required(field, "name", place), required(field, "data_type", place)]
    if len(read_list(field, place)) != 2 or not field[0]:
        raise unexpected(field, "a field with a name and a data type", place)
    return [field[0], typestrings.render_data_type(parse_data_type(field[1], place))]


def render_data_type(dtype: DType, stored: Json = None, *, text: bool = True) -> Json:
    """Render a dtype as a v3 ``data_type``, ignoring its byte order.

    `stored` is the data type in the array's original metadata. If this type still describes
    `dtype`, return it unchanged. Variable-length items are rendered as a string type if `text` is
    True, and as a bytes type otherwise.
    """
    little = dtype.newbyteorder("<")
    is_described = typestrings.describes(stored, little, parse_data_type)
    if is_described and (dtype.kind != "O" or text == is_text_type(stored)):
        return stored
    if dtype.kind == "O":
        return _TEXT if text else _VARIABLE[1]
    if little in NUMERIC_TYPES.values() or dtype.name in _EXTENDED:
        return dtype.name
    configuration: dict[str, Json] = {"length_bytes": dtype.itemsize}
    if dtype.names is not None:
        fields = [[name, render_data_type(dtype[name])] for name in dtype.names]
        return {"name": _STRUCTURED[0], "configuration": {"fields": fields}}
    if dtype.kind in "Mm":
        unit, factor = np.datetime_data(dtype)
        configuration = {"unit": unit, "scale_factor": factor}
    is_sized = dtype.itemsize > 0 and dtype.subdtype is None and typestrings.is_numpy_dtype(dtype)
    for name, kind in (_TIMES | _FIXED).items():
        if dtype.kind == kind and is_sized:
            return {"name": name, "configuration": configuration}
    raise typestrings.unsupported_dtype(dtype, "Zarr v3")


def is_text_type(data_type: Json) -> bool:
    """Return whether a valid v3 ``data_type`` is the type of variable-length strings."""
    return read_definition(data_type, "data_type")[0] == _TEXT
