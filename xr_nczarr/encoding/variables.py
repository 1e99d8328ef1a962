"""Encode xarray variables for storage: CF encoding, strings, fill values and attributes."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from xarray import Variable
from xarray.coding.strings import (
    check_vlen_dtype,
    create_vlen_dtype,
    is_bytes_dtype,
    is_unicode_dtype,
)

from xr_nczarr.encoding.encoding_keys import requested_endian, requests_bytes
from xr_nczarr.encoding.names import check_dimension, stored_name, user_attributes
from xr_nczarr.encoding.number_encoding import (
    VALUE_KEYS,
    fill_value_of,
    marks_nothing,
    missing_values,
    with_encoded_numbers,
    with_float_scale,
)
from xr_nczarr.encoding.quantize import QUANTIZING_KEYS, quantized
from xr_nczarr.encoding.strings import check_items, encode_text, in_width, string_data, valid_text
from xr_nczarr.encoding.time_encoding import with_checked_times
from xr_nczarr.encoding.xarray_encoder import as_conflicts, encoded_alone, group_encoded
from xr_nczarr.errors import ConflictError, ErrorContext, UnsupportedError
from xr_nczarr.netcdf import Layout
from xr_nczarr.netcdf.annotations import WIDTH
from xr_nczarr.netcdf.data_model import Kind
from xr_nczarr.netcdf.types import default_fill, zero

_NETCDF_KINDS = "iufSU"
_TEXT_KEYS = {"_Encoding", "char_dim_name", WIDTH}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodedVariable:
    """A variable whose values already have the type in which they will be stored.

    Attributes
    ----------
    data
        A NumPy or dask array in the stored dtype.
    fill_value
        The value of elements in missing chunks, or None if they have no defined value.
    encoding
        The encoding keys for chunks and codecs.
    explicit
        Whether the caller passed `encoding` for this write. Otherwise, it is the variable's own
        encoding, and keys that do not suit the variable are ignored.
    """

    dimensions: tuple[str, ...]
    data: Any
    kind: Kind
    attributes: dict[str, Any]
    fill_value: Any
    encoding: Mapping[str, Any]
    explicit: bool


def encode_variables(
    variables: Mapping[Hashable, Variable],
    encoding: Mapping[Any, Mapping[str, Any]],
    layout: Layout,
) -> dict[str, EncodedVariable]:
    """Encode variables that will be written to a new group or added to an existing group.

    Dask arrays stay lazy, with two exceptions. Arrays of strings, including arrays of objects
    that are all strings, may be computed to find the type and the lengths of the strings. Arrays of
    other objects are loaded, because their items determine the dtype.

    Parameters
    ----------
    variables
        The variables, as returned by `xarray.conventions.encode_dataset_coordinates`.
    encoding
        Mapping from variable names to encodings. If a variable is in the mapping, its own encoding
        is ignored.

    Raises
    ------
    ConflictError
        If values do not fit their encoding, or a name cannot be stored.
    TypeError
        If a name is not a string, or the value of an attribute is an xarray object.
    UnsupportedError
        If the layout cannot store values of a variable's type.
    """
    prepared = {}
    for key, original in variables.items():
        stored_name(key)
        for dimension in original.dims:
            check_dimension(dimension, layout)
        variable = original.copy(deep=False)
        with ErrorContext(variable=str(key)):
            variable.attrs = user_attributes(original.attrs, original.dims)
        variable.encoding = encoding.get(key, original.encoding)
        with ErrorContext(variable=str(key)), as_conflicts():
            prepared[key] = _prepared(variable, str(key), key in encoding)
    encoded = {}
    for key, variable in group_encoded(prepared).items():
        name = stored_name(key)
        with ErrorContext(variable=name), as_conflicts():
            encoded[name] = _encode_variable(variable, name, layout, key in encoding)
    return encoded


def encode_alone(variable: Variable, name: str, layout: Layout, explicit: bool) -> EncodedVariable:
    """Encode a variable independently of its dataset.

    A bounds variable keeps all its attributes. `encode_variables`, in contrast, leaves out the
    attributes that a bounds variable shares with its coordinate variable.
    """
    encoded = encoded_alone(_prepared(variable, name, explicit), name)
    return _encode_variable(encoded, name, layout, explicit)


def _prepared(variable: Variable, name: str, explicit: bool) -> Variable:
    """Check the values of a variable, and return a variable that xarray can encode without loss."""
    check_items(variable, name)
    variable = _typed_if_empty(variable.copy(deep=False))
    encoding = with_float_scale(variable.encoding)
    if (dtype := _text_dtype(encoding.get("dtype"))) is not None:
        # An inherited dtype has the width of the strings in the source. xarray would truncate
        # longer strings to this width.
        del encoding["dtype"]
        if explicit:
            fill = encoding.get("_FillValue")
            data = in_width(variable.data, dtype, name, "" if fill is None else fill)
            variable = variable.copy(data=data)
    metadata = getattr(encoding.get("dtype"), "metadata", None)
    if metadata and "enum" in metadata:  # store the integers of a netCDF enum type
        encoding["dtype"] = np.dtype(encoding["dtype"].str)
    if variable.dtype == bool and not explicit:  # missing values have become true or false
        for key in ("_FillValue", "missing_value"):
            encoding.pop(key, None)
    filled = "_FillValue" in variable.attrs or "missing_value" in encoding
    if "source" in encoding and not filled:
        # The source has no _FillValue, so the copy gets none. xarray would add NaN for floats.
        encoding.setdefault("_FillValue", None)
    if variable.dtype != bool and encoding.get("dtype") == "bool" and not explicit:
        del encoding["dtype"]  # in this inherited dtype, NaN would become true
    if not explicit and marks_nothing(encoding):
        variable.attrs["missing_value"] = encoding.pop("missing_value")
    variable.encoding = encoding
    if np.asarray(variable.attrs.get("_FillValue")).dtype.kind in "mM":
        # A fill value of datetime dtype masks no values, but would do so if encoded as a number.
        del variable.attrs["_FillValue"]
    values = {key: encoding[key] for key in VALUE_KEYS if key in encoding}
    encode = with_checked_times if variable.dtype.kind in "mMO" else with_encoded_numbers
    variable = encode(variable, values, name)
    _move_key(variable, explicit)
    return variable


def _typed_if_empty(variable: Variable) -> Variable:
    """Convert an empty array of objects to the type that its encoding requests, if any."""
    if variable.dtype != object or variable.dtype.metadata or variable.size:
        return variable
    # xarray infers the type of objects from the items, so it would store the array as floats.
    encoding = dict(variable.encoding)
    moved: tuple[str, ...] = ()
    dtype: Any = object
    if " since " in str(encoding.get("units")):
        dtype, moved = encoding.get("dtype", "i8"), ("units", "calendar")
    elif (width := _character_count(encoding, variable.ndim)) is not None:
        dtype, moved = f"S{width}", ("_Encoding",)
    elif (text := _text_dtype(encoding.get("dtype"))) is not None:
        dtype = text
    elif (item_type := _item_type(encoding)) is not None:
        dtype = create_vlen_dtype(item_type)
    attributes = {key: encoding.pop(key) for key in moved if key in encoding}
    data = np.empty(variable.shape, dtype)
    return Variable(variable.dims, data, variable.attrs | attributes, encoding)


def _character_count(encoding: Mapping[str, Any], rank: int) -> int | None:
    """Return how many characters xarray joined into each string, or None if it did not join any."""
    stored: Sequence[int] = encoding.get("original_shape") or ()
    is_joined = "char_dim_name" in encoding and len(stored) == rank + 1
    return max(1, int(stored[-1])) if is_joined else None


def _item_type(encoding: Mapping[str, Any]) -> type | None:
    """Return the type of variable-length items that an encoding requests: str, bytes or None."""
    dtype = encoding.get("dtype")
    kind = None if dtype is None else np.dtype(dtype).kind
    if kind in ("S", "T", "U") or not _TEXT_KEYS.isdisjoint(encoding):
        return str
    if requests_bytes(encoding):
        return bytes
    return str if kind == "O" else None


def _move_key(variable: Variable, explicit: bool) -> None:
    """Move ``_Unsigned`` or ``_FillValue`` to the attributes if xarray would lose or change it."""
    encoding, attributes = variable.encoding, variable.attrs
    filled = attributes.get("_FillValue", fill_value_of(encoding)) is not None
    key = "" if filled else "_Unsigned"  # xarray drops this key if there is no fill value
    if not explicit and _joined(variable):
        key = "_FillValue"  # a single character, which xarray would convert to a string
    if encoding.get(key) is not None:
        attributes[key] = encoding.pop(key)


def _text_dtype(dtype: Any) -> np.dtype[Any] | None:
    """Return `dtype` if it is a fixed-width string dtype other than ``S1``, and None otherwise."""
    if dtype is None or dtype is str or dtype == "S1":  # S1 requests an array of characters
        return None
    text = np.dtype(dtype)
    return text if text.kind in "SU" and text.itemsize else None


def _encode_variable(
    variable: Variable, name: str, layout: Layout, explicit: bool
) -> EncodedVariable:
    """Convert a CF-encoded variable to a type that the layout supports."""
    joined = not explicit and _joined(variable)
    if layout.is_plain_zarr:
        variable = _with_booleans(variable)
    is_vlen_bytes = (
        layout.is_plain_zarr and variable.dtype == object and requests_bytes(variable.encoding)
    )
    if not is_vlen_bytes:
        variable = encode_text(variable, name, characters=not layout.is_plain_zarr, joined=joined)
    encoding, attributes = dict(variable.encoding), dict(variable.attrs)
    data = variable.data
    if is_unicode_dtype(variable.dtype):
        kind: Kind = "string"
        width = encoding.pop(WIDTH, attributes.pop(WIDTH, None))
        data = string_data(data, width, layout, attributes.get("_FillValue"))
        data = valid_text(data, data.dtype, name) if data.dtype.kind == "O" else data
        dtype = data.dtype
    else:
        dtype = create_vlen_dtype(bytes) if is_vlen_bytes else variable.dtype
        endian = requested_endian(encoding)
        if endian == "big" and dtype.type.__module__ != "numpy":
            raise UnsupportedError(
                f"dtype {dtype.name} can only be written as little-endian",
                remedy="Pass endian='little' in the encoding",
            )
        dtype = dtype if endian == "native" else dtype.newbyteorder(endian)
        data = data if data.dtype == dtype else data.astype(dtype)
        kind = "other" if layout.is_plain_zarr else "char" if dtype.kind == "S" else "number"
    if not layout.is_plain_zarr and (
        dtype.kind not in _NETCDF_KINDS + "O" or dtype.type is np.float16
    ):
        raise UnsupportedError(
            f"netCDF has no type for {variable.dtype}",
            remedy="Convert the variable with astype, or write plain Zarr with dialect='zarr'",
        )
    if any(encoding.get(key) is not None for key in QUANTIZING_KEYS):
        missing = missing_values(attributes) or [default_fill(dtype)]
        data, described = quantized(data, encoding, missing, name)
        attributes |= described
    if attributes.get("_FillValue") is not None:
        attributes["_FillValue"] = fill_scalar(attributes["_FillValue"], dtype)
    else:
        attributes.pop("_FillValue", None)
    fill_value = _fill_value(encoding, attributes, dtype, layout, explicit)
    return EncodedVariable(
        dimensions=tuple(map(str, variable.dims)),
        data=data,
        kind=kind,
        attributes=attributes,
        fill_value=fill_value,
        encoding=encoding,
        explicit=explicit,
    )


def _fill_value(
    encoding: Mapping[str, Any],
    attributes: Mapping[str, Any],
    dtype: np.dtype[Any],
    layout: Layout,
    explicit: bool,
) -> Any:
    """Return the fill value of the array to be created, or None if it is undefined."""
    # In plain Zarr, the array's fill value may differ from `_FillValue` if the Zarr version
    # requires a fill value, as in xarray.
    independent = layout.is_plain_zarr and layout.zarr.requires_fill_value
    inspected = explicit or independent
    requested = _requested_fill(encoding, dtype, explicit) if inspected else None
    declared = attributes.get("_FillValue")
    if requested is not None and (independent or declared is None):
        return requested
    if declared is not None:
        return declared
    # In NCZarr, the caller can request an undefined fill value by passing fill_value=None.
    undefined = layout.is_plain_zarr or (explicit and encoding.get("fill_value", 0) is None)
    if undefined and not layout.zarr.requires_fill_value:
        return None
    if check_vlen_dtype(dtype) is bytes:
        return b""
    return zero(dtype) if layout.is_plain_zarr else default_fill(dtype)  # 0 as in zarr-python


def _with_booleans(variable: Variable) -> Variable:
    """Convert booleans that xarray has encoded as integers back to booleans."""
    if variable.attrs.get("dtype") != "bool" or variable.dtype != np.dtype("i1"):
        return variable
    variable = variable.copy(data=variable.data.astype(bool))  # astype loses the encoding
    del variable.attrs["dtype"]
    if variable.encoding.get("fill_value") not in (None, 0, 1):  # not a boolean
        del variable.encoding["fill_value"]
    return variable


def _joined(variable: Variable) -> bool:
    """Return whether xarray created strings by joining characters when it opened the variable."""
    encoding = variable.encoding
    return {"_Encoding", "char_dim_name"} <= encoding.keys() and encoding.get("dtype") == "S1"


def _requested_fill(encoding: Mapping[str, Any], dtype: np.dtype[Any], explicit: bool) -> Any:
    """Return the fill value that an encoding requests, converted to `dtype`, or None.

    Raise ConflictError if the value does not fit, and the caller passed it for this write.
    """
    requested = encoding.get("fill_value")
    if requested is None:
        return None
    kind = np.asarray(requested).dtype.kind
    if kind in "mM" and dtype.kind in "iuf":
        return None  # a fill value for times, which are now encoded as numbers
    if dtype.kind in "iu":
        fits = kind in "biuf" and np.iinfo(dtype).min <= requested <= np.iinfo(dtype).max
    else:
        fits = (kind in "OSTU") == (dtype.kind in "OSU")
    if fits or dtype.kind == "V":
        return fill_scalar(requested, dtype)
    if explicit:
        raise ConflictError(
            f"fill_value {requested!r} does not fit in dtype {dtype}",
            remedy="Correct the encoding: pass another fill_value, or leave it out",
        )
    return None


def fill_scalar(value: Any, dtype: np.dtype[Any]) -> Any:
    """Convert a fill value to a scalar of `dtype`.

    If `value` is an array, its first element is used. For an object dtype, the result is a string,
    or bytes if xarray has marked the dtype as containing bytes.

    Raises
    ------
    ConflictError
        If `dtype` is a fixed-width bytes dtype, such as ``S4``, and the value does not fit.
    """
    value = np.asarray(value).reshape(-1)[0]
    if is_bytes_dtype(dtype):
        is_text = isinstance(value, str)
        text = value.encode("utf-8", "surrogateescape") if is_text else bytes(value)
        if dtype.kind == "O":
            return text
        if len(text) > dtype.itemsize:
            raise ConflictError(
                f"fill value {text!r} does not fit in dtype {dtype}, which would truncate it",
                remedy="Pass a shorter fill value or a wider dtype, or call drop_encoding() to "
                "discard the encoding inherited from the source",
            )
        return np.bytes_(text)
    if dtype.kind == "O":
        is_text = isinstance(value, str)
        return str(value) if is_text else value.decode("utf-8", "surrogateescape")
    return dtype.newbyteorder("=").type(value)
