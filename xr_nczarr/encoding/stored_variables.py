"""Decode the variables of an existing store, and encode values that are added to them.

The encoding of a stored variable is fixed. If the variable is packed, numbers that are added to it
may be rounded to the nearest number that its packing can represent. However, this rounding is not
accepted if the encoding of the new numbers specifies a different packing. Floats may also be
rounded to the precision of the stored float type, and to the digits that the attributes of a
quantized variable record. Apart from such rounding, decoding must reproduce the values exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from xarray import Dataset, Variable, conventions
from xarray.backends.common import ensure_dtype_not_object
from xarray.coding.strings import CharacterArrayCoder, EncodedStringCoder, is_unicode_dtype
from xarray.coding.times import CFTimedeltaCoder
from xarray.core.utils import dict_equiv

from xr_nczarr.backend.decoding import PACKING_KEYS, normalize_packing
from xr_nczarr.backend.stored_group import StoredGroup
from xr_nczarr.backend.times import for_empty_times
from xr_nczarr.encoding.blockwise import largest
from xr_nczarr.encoding.number_encoding import (
    VALUE_KEYS,
    Rounding,
    as_type,
    encode_numbers,
    missing_values,
    with_float_scale,
)
from xr_nczarr.encoding.quantize import quantized_as_recorded
from xr_nczarr.encoding.strings import (
    TEXT,
    check_items,
    in_width,
    padded,
    typed_text,
    valid_text,
    without_missing,
)
from xr_nczarr.encoding.time_encoding import encode_times
from xr_nczarr.encoding.time_units import in_time_dtype, is_time
from xr_nczarr.encoding.xarray_encoder import cf_encoded
from xr_nczarr.errors import ConflictError
from xr_nczarr.netcdf import Variable as NetcdfVariable
from xr_nczarr.netcdf.types import default_fill, measured_width

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


def decode_stored(source: StoredGroup, dataset: Dataset) -> dict[str, Variable]:
    """Decode the variables of a stored group that `dataset` also contains.

    Characters are joined into strings, unless the variable in `dataset` still has the dimension
    along which they would be joined.

    Raises
    ------
    NczarrError
        If one of these variables is unreadable.
    """
    stored = source.variables
    for name in map(str, dataset.variables):
        if name in stored and (error := source.group.variables[name].error) is not None:
            raise error
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
    existing: NetcdfVariable,
    *,
    widening: bool = False,
) -> Any:
    """Encode new values with the encoding of the stored variable to which they will be added.

    NumPy arrays are checked immediately, and dask arrays block by block while they are written.

    Parameters
    ----------
    stored
        The stored variable, as returned by `decode_stored`.
    existing
        The stored variable in the netCDF data model.
    widening
        Whether strings may be longer than the stored width. If True, the returned array is wider if
        necessary. To determine its width, dask arrays of strings are computed immediately.

    Raises
    ------
    ConflictError
        If decoding would not reproduce the values. Examples are times that are not multiples of the
        stored units, numbers that are out of range, missing values without a `_FillValue`, and
        strings that are too long. If the stored variable is not packed, an integer dtype
        also rejects fractional values, and a float dtype also rejects integers that it cannot
        represent exactly.
    """
    assert existing.node is not None
    name = existing.name
    check_items(variable, name)
    _check_kind(variable, stored, name)
    dtype = existing.node.dtype
    # The data of an index variable cannot be replaced, so a base variable is needed. It is copied,
    # so that loaded values are not cached in `variable`.
    new = variable.to_base_variable().copy(deep=False)
    if not new.size:  # an empty array has no values of the wrong type
        new.data = np.empty(new.shape, stored.dtype)
    if dtype.hasobject and existing.kind == "other" and new.dtype == object:
        return new.data  # bytes of any length
    encoding = {key: value for key, value in stored.encoding.items() if key in VALUE_KEYS}
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
        data = encode_numbers(new.data, dtype, encoding, rounding, existing.path)
        missing = missing_values(existing.attributes) or [default_fill(dtype)]
        return quantized_as_recorded(data, existing.attributes, missing, name)
    if new.dtype.kind == dtype.kind == "c":
        new.data = as_type(new.data, dtype)
    new.attrs, new.encoding = {}, encoding
    return _encode_text_as_stored(new, stored, existing, widening=widening)


def _encode_text_as_stored(
    new: Variable, stored: Variable, existing: NetcdfVariable, *, widening: bool
) -> Any:
    """Encode values for `encode_as_stored`, which itself encodes times and real numbers."""
    assert existing.node is not None
    name = existing.name
    # xarray does not join characters along a dimension that variables of other types use as well.
    dtype, joined = existing.node.dtype, stored.ndim < len(existing.node.shape)
    if new.dtype.kind not in "OSUT" and stored.dtype.kind in "OSUT":  # objects other than strings
        if not new.isnull().all():
            _check_kind(new, stored, name)
        new = new.copy(data=without_missing(new.data, TEXT))
    if is_unicode_dtype(new.dtype) and existing.kind == "string" and dtype.kind == "S":
        width = max(dtype.itemsize, largest(measured_width, new.data) if widening else 0)
        return padded(new.data, np.dtype(f"S{width}"))
    if joined or dtype.kind in "SU":
        fixed = np.dtype(f"S{existing.node.shape[-1]}") if joined else dtype
        new.data = in_width(new.data, fixed, name)
    encoded = cf_encoded(new, name)
    encoded = EncodedStringCoder(allows_unicode=True).encode(encoded, name=name)
    if joined:
        encoded = CharacterArrayCoder().encode(encoded, name=name)
    if dtype.hasobject:
        return valid_text(encoded.data, dtype, existing.path)
    return as_type(encoded.data, dtype)


def has_same_decoding(variable: Variable, stored: Variable) -> bool:
    """Return whether two variables opened from the same array are decoded in the same way."""
    first, second = (
        {key: item.encoding[key] for key in VALUE_KEYS if key in item.encoding}
        for item in (variable, stored)
    )
    return variable.dtype == stored.dtype and dict_equiv(first, second)


def _check_kind(new: Variable, stored: Variable, name: str) -> None:
    """Raise ConflictError if new and stored values are incompatible, such as text and numbers."""
    units = stored.encoding.get("units")
    new_kind, stored_kind = (
        "M" if variable.dtype == object and dated else variable.dtype.kind
        for variable, dated in ((new, is_time(new)), (stored, units is not None))
    )
    # Numbers are accepted for a stored variable of times, because they are assumed to be undecoded.
    raw = new_kind in "iufb" and stored_kind in "mM" and new.attrs.get("units", units) == units
    if new.size and not raw and stored_kind not in _COMPATIBLE_KINDS.get(new_kind, "OSUV"):
        raise ConflictError(
            f"Mismatched dtypes for variable {name}: the new values have dtype {new.dtype}, but "
            f"the stored values have dtype {stored.dtype}",
            remedy="Convert the values first, or write the variable to a new store",
        )
