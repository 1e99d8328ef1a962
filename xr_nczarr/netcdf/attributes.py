"""Convert attributes between JSON and typed netCDF values.

NCZarr records the type of each attribute, and the attribute's JSON is converted to a value of this
type. If a program without NCZarr support has edited the attribute, its JSON can contradict the
recorded type. The type is then inferred from the JSON. Conversions of numbers are exact in both
directions. In nodes without NCZarr metadata, attributes keep their JSON values.
"""

from __future__ import annotations

import base64
import json
import math
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xr_nczarr.errors import UnsupportedError, quote
from xr_nczarr.formats.documents import render_float
from xr_nczarr.formats.fill_values import BASE64
from xr_nczarr.model import Attributes, Json, Node
from xr_nczarr.netcdf.annotations import find_types, is_annotated, is_bookkeeping
from xr_nczarr.netcdf.data_model import Kind
from xr_nczarr.netcdf.types import DTYPE_NAMES, JSON, NUMBERS, SCALARS, STRING, TEXT, attribute_type

_NOT_FINITE = {
    **dict.fromkeys(("NaN", "nan", "-nan"), math.nan),
    **dict.fromkeys(("Infinity", "+Infinity", "inf", "infinity", "Infinityf"), math.inf),
    **dict.fromkeys(("-Infinity", "-inf", "-infinity", "-Infinityf"), -math.inf),
}
_EXPECTED = "a string, a number, or a sequence of strings or numbers"
NO_STRINGS = np.array([], "U1")
"""The value of a string attribute without items. An empty list would be stored as float64."""
_RANGES = {
    **{name: (np.iinfo(name).min, np.iinfo(name).max) for name in NUMBERS if "int" in name},
    # Larger values round to infinity.
    "float16": (-math.nextafter(65520, 0), math.nextafter(65520, 0)),
    "float32": (-math.nextafter(2**128 - 2**103, 0), math.nextafter(2**128 - 2**103, 0)),
    "float64": (-sys.float_info.max, sys.float_info.max),
}


def attributes_of(node: Node) -> dict[str, Any]:
    """Return the attributes of a node that belong to the user.

    They have netCDF types if the node has NCZarr metadata, and are JSON values otherwise.
    Attributes that belong to the storage format are left out.
    """
    if is_annotated(node):
        return decode_attributes(node.attributes, find_types(node))
    return {name: value for name, value in node.attributes.items() if not is_bookkeeping(name)}


def decode_attributes(attributes: Attributes, types: Mapping[str, Json]) -> dict[str, Any]:
    """Convert the user's attributes to values of their recorded types.

    `types` maps attribute names to types in the notation of any NCZarr layout. An attribute without
    a recorded type gets the type that netCDF-C infers from its JSON. Attributes that belong to the
    storage format are left out.
    """
    decoded = {}
    for name, value in attributes.items():
        if is_bookkeeping(name):
            continue
        recorded = attribute_type(types[name]) if name in types else None
        if value.__class__ is str and (recorded is None or recorded == TEXT):
            decoded[name] = value
        else:
            typed = _decode(value, recorded)
            decoded[name] = attributes.literal(name) if typed is None else typed
    return decoded


def _decode(value: Json, recorded: str | None) -> Any:
    """Convert the JSON value of an attribute to its recorded or inferred netCDF type.

    Return None if the attribute should be read as its JSON text.
    """
    if recorded in (JSON, TEXT):
        return None
    items = value if isinstance(value, list) else [value]
    if recorded == STRING:
        return [
            item if isinstance(item, str) else json.dumps(item, ensure_ascii=False)
            for item in items
        ]
    decoded = None if recorded is None else _typed_numbers(items, recorded)
    if decoded is None:
        decoded = _inferred(items)
    return decoded[0] if decoded is not None and len(decoded) == 1 else decoded


def _typed_numbers(items: list[Json], name: str) -> Any:
    numbers = [typed_number(item, name) for item in items]
    if None in numbers:
        return None
    return numbers if len(numbers) == 1 else np.array(numbers, name)


def typed_number(item: Json, name: str) -> Any:
    """Convert a JSON value to a NumPy scalar of the type `name`.

    `name` is the name of a numeric netCDF type, or ``"float16"``. Return None if this type cannot
    represent the value.
    """
    low, high = _RANGES[name]
    if item.__class__ is str:
        item = _NOT_FINITE.get(item)
    if item.__class__ is float and type(low) is int and item.is_integer():
        item = int(item)
    if item.__class__ is not int and (item.__class__ is not float or type(low) is int):
        return SCALARS[name](item) if item.__class__ is bool else None
    if low <= item <= high or (item.__class__ is float and not math.isfinite(item)):
        return SCALARS[name](item)
    return None


def _inferred(items: list[Json]) -> Any:
    """Convert the JSON values of an untyped attribute to the netCDF type that netCDF-C infers.

    Return None for values that netCDF-C reads as JSON text.
    """
    kinds = set(map(type, items))
    if kinds == {bool}:
        return np.array(items, "uint8")
    if kinds and kinds <= {int, bool}:
        for name in ("int32", "int64", "uint64"):
            low, high = _RANGES[name]
            if low <= min(items) and max(items) <= high:
                return np.array(items, name)
        return None
    if kinds <= {int, float, bool}:
        return _typed_numbers(items, "float64")
    return items if kinds == {str} else None


def with_inferred_types(decoded: Mapping[str, Any], node: Node | None) -> dict[str, Any]:
    """Convert JSON values in decoded attributes to the netCDF types that netCDF-C infers.

    If the node has NCZarr metadata, all attributes already have netCDF types and are returned
    unchanged. A `_FillValue` that already has the variable's dtype is also returned unchanged.
    `node` is None if the group or variable is not stored, or if its metadata is unusable.
    """
    if node is not None and is_annotated(node):
        return dict(decoded)
    json_values = {
        name: value
        for name, value in decoded.items()
        if not isinstance(value, np.ndarray | np.generic | bytes)
    }
    source = None if node is None else node.attributes.source
    return {**decoded, **decode_attributes(Attributes(json_values, source), {})}


def undecoded(decoded: Mapping[str, Any], node: Node | None) -> dict[str, Any]:
    """Convert decoded attributes to the values that a copy of the node should store.

    JSON objects and lists that were decoded to strings, and JSON booleans that were decoded to
    numbers, are restored to the original JSON. Integers from plain Zarr are converted to the types
    that netCDF-C infers. An empty list of strings becomes `NO_STRINGS`. `node` is the stored node,
    or None for a group or variable that is not stored.
    """
    if node is None:
        return dict(decoded)
    if not is_annotated(node):
        return {name: _infer_integers(value) for name, value in decoded.items()}
    types, stored = find_types(node), node.attributes
    return {
        name: _undecoded(value, stored.get(name), types.get(name))
        for name, value in decoded.items()
    }


def _undecoded(value: Any, stored: Json | None, recorded: Any) -> Any:
    if value.__class__ is list and not value:
        return NO_STRINGS
    items = stored if isinstance(stored, list) else [stored]
    is_truth = bool(items) and all(isinstance(item, bool) for item in items)
    is_json = isinstance(value, str) and isinstance(stored, dict | list)
    is_converted = (is_truth or is_json) and attribute_type(recorded) in (None, JSON)
    return stored if is_converted else value


def unlisted_strings(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes with each list of a single string replaced by the string itself.

    In netCDF, such a list represents an attribute of type string. Plain Zarr does not record
    types, and its readers expect a string. For example, they do not recognize ``units`` if its
    value is a list.
    """
    return {
        name: value[0]
        if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str)
        else value
        for name, value in attributes.items()
    }


def decode_fill_value(
    attributes: Attributes, dtype: np.dtype[Any], *, is_text: bool, in_base64: bool
) -> Any:
    """Convert the ``_FillValue`` attribute to a scalar of the variable's dtype.

    Return None if the value does not fit the dtype. In any Zarr version, floats and the two parts
    of complex numbers can be Base64 strings, as xarray writes them.

    Parameters
    ----------
    is_text
        Whether the variable contains netCDF characters or strings.
    in_base64
        Whether byte strings are encoded in Base64, as xarray writes them in Zarr v3. Single bytes
        can then also be integers, such as 65 for ``b"A"``. netCDF text is never decoded from
        Base64.
    """
    value = attributes["_FillValue"]
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None and not is_text:  # netCDF-C writes the text "null" without quotes
        return None
    # NumPy's float16 is not a netCDF type.
    name = "float16" if dtype.str[1:] == "f2" else DTYPE_NAMES.get(dtype)
    if name is not None:
        # VirtualiZarr writes Base64, xarray's notation for Zarr v3, to v2 metadata as well.
        return typed_number(_float_from_base64(value) if dtype.kind == "f" else value, name)
    if dtype.kind == "S":
        if in_base64 and type(value) is int:
            return np.bytes_(bytes([value]).rstrip(b"\0")) if 0 <= value < 256 else None
        text = value if isinstance(value, str) else attributes.literal("_FillValue")
        if in_base64 and not is_text:
            return np.bytes_(base64.b64decode(text)) if BASE64.fullmatch(text) else None
        return np.bytes_(text.encode("utf-8", "surrogatepass"))
    if dtype.kind in "UO" and isinstance(value, str):
        return value
    if dtype.kind == "b" and value in (0, 1):
        return np.bool_(value)
    if dtype.kind == "c" and isinstance(value, list) and len(value) == 2:
        pair = _typed_numbers([_float_from_base64(part) for part in value], "float64")
        return None if pair is None else dtype.type(complex(*pair))
    return None


def is_fill_value(value: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether `value` is a decoded ``_FillValue`` of a variable of type `dtype`.

    A decoded value is a NumPy scalar, bytes or, if `dtype` is a string type, a str. JSON that does
    not fit the dtype remains undecoded.
    """
    if isinstance(value, str):
        return dtype.kind in "SUO"
    if isinstance(value, bytes):
        return True
    if not isinstance(value, np.generic):
        return False
    if dtype.kind in "biufc":
        return bool(value.dtype == dtype.newbyteorder("="))
    return dtype.kind not in "SUO"


def encode_fill_value(
    value: Any, dtype: np.dtype[Any], kind: Kind, *, typed: bool, in_base64: bool
) -> tuple[Json, str] | None:
    """Convert a ``_FillValue`` to JSON, and return the JSON and the name of the netCDF type.

    This is the inverse of `decode_fill_value`. A value that does not fit the dtype is encoded like
    any other attribute, so that copying a store preserves it. Return None if no attribute can
    represent fill values of the dtype.

    Parameters
    ----------
    dtype, kind
        Dtype and kind of the variable.
    typed
        See `encode_attribute`.
    in_base64
        Whether to encode floats, complex numbers and byte strings in Base64, as xarray does in Zarr
        v3. netCDF strings remain text, and netCDF characters stored as ``uint8`` become integers.
    """
    if kind == "string" and isinstance(value, str | bytes):
        return _text(value), STRING
    if dtype.kind in "VmM" or (dtype.kind == "c" and not in_base64):
        return None
    if not is_fill_value(value, dtype):
        return encode_attribute(value, typed=typed)
    if in_base64 and dtype.kind == "f":
        return _float_to_base64(value), DTYPE_NAMES.get(dtype, JSON)
    if dtype.kind == "c":
        return [_float_to_base64(value.real), _float_to_base64(value.imag)], JSON
    if in_base64 and isinstance(value, bytes):
        return (value[0] if value else 0, TEXT) if dtype.kind == "u" else (_base64(value), JSON)
    return encode_attribute(value, typed=typed)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _float_to_base64(number: Any) -> str:
    return _base64(struct.pack("<d", float(number)))


def _float_from_base64(value: Json) -> Json:
    """Decode a float64 from the Base64 that xarray writes, leaving other JSON unchanged."""
    if not isinstance(value, str) or len(value) != 12 or not BASE64.fullmatch(value):
        return value
    data = base64.b64decode(value)
    return struct.unpack("<d", data)[0] if len(data) == 8 else value


def encode_attribute(
    value: Any, *, typed: bool = True, json_as_text: bool = False
) -> tuple[Json, str]:
    """Convert an attribute value to JSON, and return the JSON and the name of the netCDF type.

    Parameters
    ----------
    value
        A string, number or boolean, an array or sequence of these, or any other JSON value.
    typed
        If True, the JSON has the form used by NCZarr, which records the type separately. In this
        form, NaN and infinities become strings, booleans become numbers, and a single-item sequence
        becomes its item. If False, the JSON has the form written by xarray's `to_zarr`, and the
        returned type is always ``"json"``.
    json_as_text
        Whether values that only JSON can represent, such as dicts, become text. Ignored if `typed`
        is False.

    Raises
    ------
    UnsupportedError
        If neither netCDF nor JSON can represent the value.
    """
    if not typed:
        return _json(_as_json(value)), JSON
    if isinstance(value, str | bytes):
        return _text(value), TEXT
    if value is NO_STRINGS:
        return [], STRING
    if isinstance(value, np.ndarray) and value.dtype.kind in "USO":
        value = value.ravel().tolist()
    items = list(value) if isinstance(value, list | tuple) else None
    if items and all(isinstance(item, str | bytes) for item in items):
        # NumPy removes trailing NULs, so strings are not converted to an array.
        texts = [_text(item) for item in items]
        return (texts[0] if len(texts) == 1 else texts), STRING
    numbers = bool | int | float | np.generic
    is_mixed = items is not None and not all(isinstance(item, numbers) for item in items)
    if value is None or isinstance(value, dict) or is_mixed:
        encoded = _json(value if items is None else items)
        return (json.dumps(encoded, ensure_ascii=False), TEXT) if json_as_text else (encoded, JSON)
    if np.ma.is_masked(value):
        raise UnsupportedError(f"the attribute value must be {_EXPECTED}, not a masked value")
    return _encode_numbers(_exact_array(value, [value] if items is None else items))


def _as_json(value: Any) -> Any:
    """Convert NumPy objects to Python objects, and bytes to str, even within lists and dicts."""
    if isinstance(value, str | bytes):
        return _text(value)
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind not in "mM":
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_json(item) for key, item in value.items()}
    return value


def substitute_type(value: Any) -> str:
    """Return the netCDF type used in place of an attribute type that netCDF does not support.

    For example, the substitute for boolean is ``"ubyte"``. `value` is the value of the attribute.
    Return an empty string if netCDF supports the type of `value`.
    """
    _, kind = encode_attribute(value)
    if kind == JSON:
        return "text"
    items = value if isinstance(value, list | tuple) else [value]
    if np.asarray(items).dtype == bool:
        return "ubyte"
    return "" if items else "double"


def _infer_integers(value: Json) -> Json:
    """Convert JSON integers to the type that netCDF-C infers, leaving other values unchanged."""
    items = value if isinstance(value, list) else [value]
    inferred = _inferred(items) if {*map(type, items)} == {int} else None
    if inferred is None:
        return value
    return inferred if isinstance(value, list) else inferred[0]


def _exact_array(value: Any, items: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Convert an attribute value to an array without rounding integers.

    Raises
    ------
    UnsupportedError
        If no integer dtype can represent all integers.
    """
    integers = [int(item) for item in items if isinstance(item, int | np.integer)]
    low, high = min(integers, default=0), max(integers, default=0)
    only_integers = bool(integers) and len(integers) == len(items)
    if low < -1 << 63 or high >= 1 << 64 or (only_integers and low < 0 and high >= 1 << 63):
        raise UnsupportedError(
            f"no integer dtype can represent the attribute value {quote(_json(integers))}",
            remedy="Convert the numbers to floats or to text, or write plain Zarr with "
            "dialect='zarr'",
        )
    array = np.asarray(value)
    # NumPy converts a sequence of integers to floats if only some of them are 2⁶³ or more.
    if array.dtype.kind == "f" and only_integers:
        return np.array(integers, "uint64" if low >= 0 else "int64")
    return array


def _json(value: Json) -> Json:
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise UnsupportedError(f"the attribute value cannot be stored as JSON ({error})") from error
    return value


def _text(value: str | bytes) -> str:
    if isinstance(value, str):
        return str.__str__(value)  # str() of an enum member returns its name
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UnsupportedError(f"the attribute value is not valid UTF-8 ({error})") from error


def _encode_numbers(array: np.ndarray[Any, Any]) -> tuple[Json, str]:
    if array.dtype.kind == "b":
        array = array.astype("uint8")
    elif array.dtype == np.float16:
        array = array.astype("float32")
    if array.dtype.name not in NUMBERS or array.ndim > 1:
        raise UnsupportedError(
            f"the attribute value must be {_EXPECTED}, not a {array.ndim}-dimensional array of "
            f"dtype {array.dtype}"
        )
    numbers = [_json_number(number) for number in array.ravel()]
    return (numbers[0] if len(numbers) == 1 else numbers), array.dtype.name


def _json_number(number: Any) -> int | float | str:
    if number.dtype.kind != "f":
        return int(number)
    # A float32 can have a shorter decimal representation than the equal float64.
    return render_float(float(np.format_float_scientific(number)))
