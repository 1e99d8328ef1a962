"""Encode values according to the CF conventions, and check that decoding reproduces them.

Encoded numbers and times are decoded and compared with the original values. How much rounding is
accepted depends on whether the variable is new:

- The encoding of a new variable is the caller's choice. Numbers may therefore be rounded as much as
  the requested dtype and packing require. Times may be rounded only if they are stored as floats.
- The encoding of a stored variable is fixed. If the variable is packed, numbers that are added to
  it may be rounded to the nearest number that its packing can represent. However, this rounding is
  not accepted if the encoding of the new numbers specifies a different packing. Floats may also be
  rounded to the precision of the stored float type. Apart from such rounding, decoding must
  reproduce the values exactly.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from xarray import Dataset, Variable, conventions
from xarray.backends.common import ensure_dtype_not_object
from xarray.coding.strings import CharacterArrayCoder, EncodedStringCoder, is_unicode_dtype
from xarray.coding.times import CFTimedeltaCoder
from xarray.core.utils import dict_equiv

from xr_nczarr.backend.decoding import PACKING_KEYS, normalize_packing
from xr_nczarr.backend.times import for_empty_times
from xr_nczarr.encoding.blockwise import largest
from xr_nczarr.encoding.number_encoding import (
    SHOWN_KEYS,
    Rounding,
    as_type,
    check_fill,
    encode_numbers,
    fill_value_of,
    is_packed,
    packing_dtype,
    real_numbers,
    with_float_scale,
)
from xr_nczarr.encoding.strings import (
    TEXT,
    check_items,
    in_width,
    padded,
    typed_text,
    valid_text,
    without_missing,
)
from xr_nczarr.encoding.time_encoding import encode_times, with_checked_times
from xr_nczarr.encoding.time_units import in_time_dtype, is_time
from xr_nczarr.encoding.xarray_encoder import cf_encoded
from xr_nczarr.errors import ConflictError
from xr_nczarr.netcdf import Variable as NetcdfVariable
from xr_nczarr.netcdf.fixed_width import measured_width

# The encoding keys that determine the stored values, as opposed to the chunks and codecs.
_VALUE_KEYS = (*SHOWN_KEYS, "missing_value", "dtype", "_Unsigned", "_Encoding", "char_dim_name")
# For each dtype kind of new values, the dtype kinds of stored variables to which they can be added.
_COMPATIBLE_KINDS = {
    "b": "biufc",
    "i": "iufc",
    "u": "iufc",
    "f": "iufc",
    "c": "c",
    "M": "M",
    "m": "m",
}


def with_checked_values(variable: Variable, name: str) -> Variable:
    """Prepare a variable for xarray's encoders by encoding its numbers or checking its times.

    Strings, and numbers that are certain to fit their encoding, are returned unchanged, so xarray
    encodes them later. xarray also encodes most times; see `with_checked_times` for the exceptions.
    NumPy arrays are checked immediately, and dask arrays block by block when they are computed.

    Raises
    ------
    ConflictError
        If decoding would not reproduce the values. For example, a number is out of range, NaN or
        NaT would be stored as an integer without a `_FillValue`, or the dtype bool is combined with
        a missing value.
    UnsupportedError
        If xarray cannot encode the dtype of the times.
    """
    encoding = {key: variable.encoding[key] for key in _VALUE_KEYS if key in variable.encoding}
    if variable.dtype.kind in "mMO":
        return with_checked_times(variable, encoding, name)
    variable = _with_real_numbers(variable, encoding, name)
    dtype = np.dtype(encoding.get("dtype", packing_dtype(variable.dtype, encoding)))
    fill = fill_value_of(encoding)
    if dtype.kind == "b" and fill is not None:
        raise ConflictError(
            f"dtype bool cannot represent the missing value {fill!r}",
            remedy="Leave out _FillValue, choose a dtype such as int8, or call drop_encoding()",
            variable=name,
        )
    if variable.dtype.kind == dtype.kind == "c":
        return variable.copy(data=as_type(variable.data, dtype))
    if variable.dtype.kind not in "biuf" or dtype.kind not in "biuf":
        return variable
    check_fill(encoding, dtype, name)
    changes = is_packed(encoding) or ("_Unsigned" in encoding and dtype.kind in "iu")
    if not changes and np.can_cast(variable.dtype, dtype):
        return variable
    encoded = variable.to_base_variable()
    if dtype.kind != "b":  # get the attributes from xarray, which sets them for empty arrays too
        empty = np.empty((0,) * variable.ndim, packing_dtype(variable.dtype, encoding))
        encoded = conventions.encode_cf_variable(
            Variable(variable.dims, empty, variable.attrs, variable.encoding), name=name
        )
        dtype = encoded.dtype
    data = encode_numbers(variable.data, dtype, encoding, "requested", name)
    return Variable(variable.dims, data, encoded.attrs, encoded.encoding)


def _with_real_numbers(variable: Variable, encoding: Mapping[str, Any], name: str) -> Variable:
    """Convert complex numbers to real numbers if they will be packed or stored as real numbers.

    Without this conversion, xarray would silently drop the imaginary parts. Any other variable is
    returned unchanged.

    Raises
    ------
    ConflictError
        If an imaginary part is not 0.
    """
    stored = np.dtype(encoding.get("dtype", variable.dtype))
    if variable.dtype.kind != "c" or (stored.kind not in "biuf" and not is_packed(encoding)):
        return variable
    real = np.empty(0, variable.dtype).real.dtype
    return variable.copy(data=real_numbers(variable.data, real, encoding, stored, name))


def decode_stored(stored: Mapping[Hashable, Variable], dataset: Dataset) -> dict[str, Variable]:
    """Return a dict of the stored variables that `dataset` also contains, decoded by xarray.

    xarray normally joins an array of characters into strings along its last dimension. If the
    variable in `dataset` has the same dimensions as the stored array of characters, it consists of
    characters too. In that case, the stored characters are not joined.
    """
    present = {str(name): stored[name] for name in dataset.variables if name in stored}
    for variable in present.values():
        normalize_packing(variable.attrs)
        if not isinstance(variable.attrs.get("bounds", ""), str):
            del variable.attrs["bounds"]  # names no variable, and xarray would look it up
    # Bounds without units are decoded with the units of their coordinate, even if the dataset does
    # not contain the coordinate.
    others = {
        name: variable
        for name, variable in stored.items()
        if name not in present and str(variable.attrs.get("bounds")) in present
    }
    joined = {
        name: set(variable.dims) != set(dataset.variables[name].dims)
        for name, variable in present.items()
    }
    options = {
        "concat_characters": joined,
        "decode_coords": False,
        "drop_variables": list(others),
        "decode_timedelta": CFTimedeltaCoder(),
    }
    decoded, _, _ = conventions.decode_cf_variables(
        present | others, {}, **for_empty_times(present | others, options)
    )
    return {str(name): variable for name, variable in decoded.items()}


def encode_as_stored(
    variable: Variable,
    stored: Variable,
    target: NetcdfVariable,
    *,
    widening: bool = False,
) -> Any:
    """Encode new values with the encoding of the stored variable to which they will be added.

    NumPy arrays are checked immediately, and dask arrays block by block while they are written.

    Parameters
    ----------
    stored
        The stored variable, as returned by `decode_stored`.
    target
        The stored variable in the netCDF data model.
    widening
        Whether strings may be longer than the stored width. If True, the returned array is wider if
        necessary. To determine its width, dask arrays of strings are computed immediately.

    Raises
    ------
    ConflictError
        If decoding would not reproduce the values. Examples are times that are not multiples of the
        stored units, numbers that are out of range, missing values without a `_FillValue`, and
        strings that are too long. If the stored variable is not packed, other examples are
        fractions in integer variables, and integers that a float dtype cannot represent exactly.
    """
    assert target.node is not None
    name = target.name
    check_items(variable, name)
    _check_kind(variable, stored, name)
    dtype = target.node.dtype
    # The data of an index variable cannot be replaced, so a base variable is needed. It is copied,
    # so that loaded values are not cached in `variable`.
    new = variable.to_base_variable().copy(deep=False)
    if not new.size:  # an empty array has no values of the wrong type
        new.data = np.empty(new.shape, stored.dtype)
    if dtype.hasobject and target.kind == "other" and new.dtype == object:
        return new.data  # bytes of any length
    encoding = {key: value for key, value in stored.encoding.items() if key in _VALUE_KEYS}
    if is_time(new):
        if dtype.kind in "mM":
            return in_time_dtype(new.data, dtype, encoding, name)
        return encode_times(new.data, dtype, encoding, "none", name)
    if isinstance(fill := encoding.get("_FillValue"), str) and new.dtype == object:
        new.data = without_missing(new.data, TEXT, fill)
    new = ensure_dtype_not_object(typed_text(new, name), name=name)
    if new.dtype.kind in "iufb" and dtype.kind in "iuf":
        packing = [key for key in PACKING_KEYS if key in new.encoding]
        finer = any(encoding.get(key) != new.encoding[key] for key in packing)
        rounding: Rounding = "none" if finer else "packing"
        encoding = with_float_scale(encoding)
        return encode_numbers(new.data, dtype, encoding, rounding, target.path)
    if new.dtype.kind == dtype.kind == "c":
        new.data = as_type(new.data, dtype)
    new.attrs, new.encoding = {}, encoding
    return _encode_text_as_stored(new, stored, target, widening=widening)


def _encode_text_as_stored(
    new: Variable, stored: Variable, target: NetcdfVariable, *, widening: bool
) -> Any:
    """Encode new values that are neither times nor real numbers; see `encode_as_stored`.

    Examples are strings, bytes, booleans and complex numbers.
    """
    assert target.node is not None
    name = target.name
    # xarray does not join characters along a dimension that variables of other types use as well.
    dtype, joined = target.node.dtype, stored.ndim < len(target.node.shape)
    if new.dtype.kind not in "OSUT" and stored.dtype.kind in "OSUT":  # objects other than strings
        if not new.isnull().all():
            _check_kind(new, stored, name)
        new = new.copy(data=without_missing(new.data, TEXT))
    if is_unicode_dtype(new.dtype) and target.kind == "string" and dtype.kind == "S":
        width = max(dtype.itemsize, largest(measured_width, new.data) if widening else 0)
        return padded(new.data, np.dtype(f"S{width}"))
    if joined or dtype.kind in "SU":
        fixed = np.dtype(f"S{target.node.shape[-1]}") if joined else dtype
        new.data = in_width(new.data, fixed, name)
    encoded = cf_encoded(new, name)
    encoded = EncodedStringCoder(allows_unicode=True).encode(encoded, name=name)
    if joined:
        encoded = CharacterArrayCoder().encode(encoded, name=name)
    if dtype.hasobject:
        return valid_text(encoded.data, dtype, target.path)
    return as_type(encoded.data, dtype)


def has_same_decoding(variable: Variable, stored: Variable) -> bool:
    """Return whether two variables opened from the same array are decoded in the same way."""
    first, second = (
        {key: item.encoding[key] for key in _VALUE_KEYS if key in item.encoding}
        for item in (variable, stored)
    )
    return variable.dtype == stored.dtype and dict_equiv(first, second)


def _check_kind(new: Variable, stored: Variable, name: str) -> None:
    """Raise ConflictError if the new values and the stored values are of different kinds.

    Numbers, times and strings are different kinds. However, numbers are accepted for a stored
    variable of times, because they are assumed to be undecoded times.
    """
    units = stored.encoding.get("units")
    new_kind, stored_kind = (
        "M" if variable.dtype == object and dated else variable.dtype.kind
        for variable, dated in ((new, is_time(new)), (stored, units is not None))
    )
    raw = new_kind in "iufb" and stored_kind in "mM" and new.attrs.get("units", units) == units
    if new.size and not raw and stored_kind not in _COMPATIBLE_KINDS.get(new_kind, "OSUV"):
        raise ConflictError(
            f"Mismatched dtypes for variable {name}: the new values have dtype {new.dtype}, but "
            f"the stored values have dtype {stored.dtype}",
            remedy="Convert the values first, or write the variable to a new store",
        )
