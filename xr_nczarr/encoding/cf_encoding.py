"""Encode values according to the CF conventions, and check that decoding reproduces them.

The check decodes the encoded values and compares them with the original values. How much rounding
it accepts depends on who chose the encoding:

- For a new variable, the caller chooses the dtype and the packing, so any rounding that they cause
  is accepted.
- Values that are added to a stored variable may be rounded to its packing step, and floats to its
  float type. Apart from such rounding, they must be reproduced exactly.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from xarray import Variable, conventions
from xarray.backends.common import ensure_dtype_not_object
from xarray.coding.strings import CharacterArrayCoder, EncodedStringCoder, is_unicode_dtype
from xarray.coding.times import CFDatetimeCoder, CFTimedeltaCoder
from xarray.core.utils import dict_equiv

from xr_nczarr.backend.decoding import PACKING_KEYS
from xr_nczarr.backend.times import NUMPY_CALENDARS
from xr_nczarr.encoding.blockwise import blockwise, largest
from xr_nczarr.encoding.number_encoding import (
    SHOWN_KEYS,
    Rounding,
    check_fill,
    encode_numbers,
    fill_value_of,
    is_packed,
    misfit,
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
    without_missing,
)
from xr_nczarr.encoding.time_units import (
    as_dates,
    in_encoded_unit,
    is_time,
    refuse_calendar_units,
    refuse_unknown_calendar,
)
from xr_nczarr.encoding.xarray_encoder import (
    as_conflicts,
    cf_encoded,
    is_all_nat,
    refuse_missing_dates,
)
from xr_nczarr.errors import ConflictError
from xr_nczarr.netcdf import Variable as NetcdfVariable
from xr_nczarr.netcdf.fixed_width import measured_width

# The encoding keys that determine the stored values, as opposed to the chunks and codecs.
_VALUE_KEYS = (*SHOWN_KEYS, "missing_value", "dtype", "_Unsigned", "_Encoding", "char_dim_name")
_UNITS = ("hours", "minutes", "seconds", "milliseconds", "microseconds")
_INTEGER_TIMES = "Pass a _FillValue or the dtype float64 in the encoding"
_OTHER_FILL = "Pass another _FillValue or dtype in the encoding, or call drop_encoding()"
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
    """Encode the numbers in a variable, or check that the encoding can represent its times.

    Strings, and numbers that are certain to fit their encoding, are returned unchanged. The caller
    passes the result to xarray, which encodes all values that are not encoded yet. NumPy arrays are
    checked immediately, and dask arrays block by block when they are computed.

    Raises
    ------
    ConflictError
        If decoding would not reproduce the values, because a number is out of range, or because NaN
        or NaT would be stored as an integer without a `_FillValue`.
    """
    encoding = {key: variable.encoding[key] for key in _VALUE_KEYS if key in variable.encoding}
    if variable.dtype.kind in "mM":
        data = variable.data
        times = in_encoded_unit(data, name, encoding.get("units"))
        variable = variable if times is data else variable.copy(data=times)
    if variable.dtype.kind in "mMO":
        return _with_checked_times(variable, encoding, name)
    variable = _with_real_numbers(variable, encoding, name)
    dtype = np.dtype(encoding.get("dtype", packing_dtype(variable.dtype, encoding)))
    fill = fill_value_of(encoding)
    if dtype.kind == "b" and fill is not None:
        raise ConflictError(
            f"dtype bool cannot represent the missing value {fill!r}",
            remedy="Leave out _FillValue, choose a dtype such as int8, or call drop_encoding()",
            variable=name,
        )
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

    Any other variable is returned unchanged. xarray would drop the imaginary parts.

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
        The stored variable, decoded by xarray.
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
        strings that are too long. Without packing, numbers must also be representable in the stored
        dtype.
    """
    assert target.node is not None
    name = target.name
    check_items(variable, name)
    _check_kind(variable, stored, name)
    # xarray does not join characters along a dimension that another variable uses as well.
    dtype, joined = target.node.dtype, stored.ndim < len(target.node.shape)
    # The data of an index variable cannot be replaced, so a base variable is needed. It is copied,
    # so that loaded values are not cached in `variable`.
    new = variable.to_base_variable().copy(deep=False)
    if not new.size:  # an empty array has no values of the wrong type
        new.data = np.empty(new.shape, stored.dtype)
    if dtype.hasobject and target.kind == "other" and new.dtype == object:
        return new.data  # bytes of any length
    encoding = {key: value for key, value in stored.encoding.items() if key in _VALUE_KEYS}
    if is_time(new):
        encode = _in_time_dtype if dtype.kind in "mM" else _encode_times
        return encode(new.data, dtype, encoding, name)
    new = ensure_dtype_not_object(typed_text(new, name), name=name)
    if new.dtype.kind in "iufb" and dtype.kind in "iuf":
        packing = [key for key in PACKING_KEYS if key in new.encoding]
        finer = any(encoding.get(key) != new.encoding[key] for key in packing)
        rounding: Rounding = "none" if finer else "packing"
        encoding = with_float_scale(encoding)
        return encode_numbers(new.data, dtype, encoding, rounding, target.path)
    new.attrs, new.encoding = {}, encoding
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
    return _as_type(encoded.data, dtype)


def has_same_decoding(variable: Variable, stored: Variable) -> bool:
    """Return whether two variables opened from the same array are decoded in the same way."""
    first, second = (
        {key: item.encoding[key] for key in _VALUE_KEYS if key in item.encoding}
        for item in (variable, stored)
    )
    return variable.dtype == stored.dtype and dict_equiv(first, second)


def _check_kind(new: Variable, stored: Variable, name: str) -> None:
    """Raise ConflictError if the new values and the stored values are of different kinds.

    Numbers, times and strings are different kinds. Numbers may nevertheless be appended to stored
    times or overwrite them, because such numbers are assumed to be undecoded times.
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


def _with_checked_times(variable: Variable, encoding: Mapping[str, Any], name: str) -> Variable:
    """Check that an encoding can represent all times of a variable.

    In calendars that NumPy does not support, NumPy times become cftime dates. xarray's default
    encoding needs no check. Dask arrays are checked block by block when they are computed, so the
    caller must use the returned variable.
    """
    refuse_calendar_units(encoding, name)
    refuse_unknown_calendar(variable, encoding, name)
    refuse_missing_dates(variable, name)
    data, lazy = variable.data, hasattr(variable.data, "dask")
    calendar = str(encoding.get("calendar") or "standard").lower()
    dtype = np.dtype(encoding.get("dtype", "f8"))
    specified = {"units", "dtype"} <= encoding.keys() and dtype.kind in "iuf"
    if variable.dtype.kind == "M" and calendar not in NUMPY_CALENDARS and variable.size:
        data = as_dates(data, np.dtype(object), {**encoding, "calendar": calendar}, name)
    if lazy and variable.dtype.kind in "mM" and specified:
        return _encoded_by_block(variable, data, encoding, name)
    variable = variable if data is variable.data else variable.copy(data=data)
    widest = dtype.kind == "i" and dtype.itemsize == 8  # the lowest int64 stands for NaT
    if lazy:
        checked = variable.dtype != object and dtype.kind in "iumM"
    else:
        checked = is_time(variable) and any(value is not None for value in encoding.values())
    if checked and (is_packed(encoding) or fill_value_of(encoding) is not None or not widest):
        data = _checked_times(data, variable.dtype, encoding, name)
    if lazy:
        return variable.copy(data=data)
    return cf_encoded(variable, name) if is_all_nat(variable) else variable


def _encoded_by_block(
    variable: Variable, times: Any, encoding: Mapping[str, Any], name: str
) -> Variable:
    """Encode a dask array of times with the units and the dtype in an encoding.

    xarray could also encode the blocks, but its errors do not name the variable, and it fails if
    all times in a block are missing.

    Parameters
    ----------
    variable
        A variable of NumPy times, which provides the attributes.
    times
        The times of the variable, which may be cftime dates.
    """
    empty = np.empty((0,) * variable.ndim, variable.dtype)
    encoded = cf_encoded(Variable(variable.dims, empty, variable.attrs, variable.encoding), name)
    data = _encode_new_times(times, encoded.dtype, encoding, name)
    return Variable(variable.dims, data, encoded.attrs, encoded.encoding)


@blockwise
def _encode_new_times(
    times: Any, dtype: np.dtype[Any], encoding: Mapping[str, Any], name: str
) -> Any:
    """Encode times in the units of the encoding.

    Raise ConflictError if integers in these units cannot represent the times.
    """
    units = encoding["units"]
    encoded, same = _encode_and_compare(times, encoding, name, units, accept_rounding=True)
    if not same.all():
        masked = dtype.kind == "f"
        time = times[~same][0] if masked else _first_misfit(times, encoding, name, units)
        if time != time:  # NaT
            remedy = _INTEGER_TIMES
        elif not masked and (finer := _finer_encoding(times, encoding, name)):
            remedy = f"Pass encoding={{{name!r}: {finer}}}"
        elif fill_value_of(encoding) is not None:
            remedy = _OTHER_FILL
        else:
            remedy = "Pass the dtype float64 in the encoding"
        raise misfit(f"the time {time}", encoding, dtype, remedy, name)
    return _as_type(np.asarray(encoded.data), dtype)


@blockwise
def _checked_times(times: Any, dtype: np.dtype[Any], encoding: Mapping[str, Any], name: str) -> Any:
    """Return times unchanged, or raise ConflictError if decoding would not reproduce them.

    Rounding to a float dtype is accepted.
    """
    encoded, same = _encode_and_compare(times, encoding, name, accept_rounding=True)
    if not same.all():
        remedy = _INTEGER_TIMES if fill_value_of(encoding) is None else _OTHER_FILL
        raise misfit(f"the time {times[~same][0]}", encoding, encoded.dtype, remedy, name)
    return times.astype(dtype, copy=False)


@blockwise
def _encode_times(times: Any, dtype: np.dtype[Any], encoding: dict[str, Any], name: str) -> Any:
    """Encode times in the units of the stored variable.

    Raises
    ------
    ConflictError
        If decoding would not reproduce the times. If finer units would reproduce them, the error
        message suggests an encoding with such units.
    """
    refuse_calendar_units(encoding, name)
    encoded, same = _encode_and_compare(times, encoding, name, encoding.get("units"))
    if not same.all():
        finer = _finer_encoding(times, encoding, name)
        remedy = "Write a new store with finer units"
        remedy += f": encoding={{{name!r}: {finer}}}" if finer else ""
        time = _first_misfit(times, encoding, name, encoding.get("units"))
        raise misfit(f"the time {time}", encoding, dtype, remedy)
    return _as_type(np.asarray(encoded.data), dtype)


@blockwise
def _in_time_dtype(times: Any, dtype: np.dtype[Any], encoding: dict[str, Any], name: str) -> Any:
    """Convert times to the dtype of an array that stores NumPy times without CF encoding.

    Raise ConflictError if this would change a time.
    """
    converted = times.astype(dtype)
    same = equal(converted.astype(times.dtype), times)
    if not same.all():
        raise misfit(f"the time {times[~same][0]}", encoding, dtype, "Write a new store", name)
    return converted


def _encode_and_compare(
    times: Any,
    encoding: Mapping[str, Any],
    name: str,
    units: str | None = None,
    *,
    accept_rounding: bool = False,
) -> tuple[Variable, Any]:
    """Return encoded times, and a mask of the times that decoding reproduces.

    If the times are not whole multiples of the requested units, xarray encodes them in finer units.
    Decoding uses `units` or, by default, the units that xarray chose. With `accept_rounding`, times
    that are stored as floats need not be equal, but must not become missing.
    """
    if times.dtype.kind in "mM":
        times = in_encoded_unit(times, name, encoding.get("units"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the caller raises an error if the times are not equal
        variable = Variable(range(times.ndim), times, {}, dict(encoding))
        encoded = cf_encoded(variable, name)
        if (
            encoded.dtype.kind in "iu"
            and not {"_FillValue", "missing_value"} & encoded.attrs.keys()
        ):
            missing = variable.isnull().to_numpy()
            if missing.any() and (is_packed(encoding) or encoded.dtype.newbyteorder("=") != "i8"):
                return encoded, ~missing
        stored = encoded.copy(deep=False)
        numbers = conventions.decode_cf_variable(
            name, stored, decode_times=False, decode_timedelta=False
        )
        masked = (numbers.isnull() & ~variable.isnull()).to_numpy()
        if masked.any() or not times.size:  # xarray may decode NaN to a date, or fail
            return encoded, ~masked
        stored.attrs["units"] = units or encoded.attrs["units"]
        coder = CFDatetimeCoder(use_cftime=(times.dtype == object) or None)
        try:
            with as_conflicts():
                decoded = conventions.decode_cf_variable(
                    name, stored, decode_times=coder, decode_timedelta=CFTimedeltaCoder()
                ).load()
        except ConflictError:
            if stored.attrs["units"] == encoded.attrs["units"]:
                raise
            # Numbers in finer units than `units` can be too large to be decoded in `units`.
            return encoded, np.zeros(times.shape, bool)
        if accept_rounding and encoded.dtype.kind == "f":
            return encoded, (decoded.isnull() == variable.isnull()).to_numpy()
        return encoded, equal(decoded.to_numpy(), times)


def _first_misfit(times: Any, encoding: Mapping[str, Any], name: str, units: str | None) -> Any:
    """Return the first element of `times` that cannot be encoded in `units`.

    `times` must contain such an element. xarray encodes all times in the same units, so a single
    time that does not fit prevents all of them from being decoded correctly. Comparing all times at
    once therefore does not reveal which one it is. Instead, the first one is found by bisection.
    """
    times = times.ravel()
    while times.size > 1:
        half = times[: times.size // 2]
        fits = _encode_and_compare(half, encoding, name, units)[1].all()
        times = times[half.size :] if fits else half
    return times[0]


def _finer_encoding(times: Any, encoding: Mapping[str, Any], name: str) -> dict[str, str] | None:
    """Return an encoding in the coarsest units in which all times are whole numbers.

    The dtype of the encoding is float64 if the times round-trip exactly through it, and int64
    otherwise. Return None if even microseconds are too coarse.
    """
    _, since, reference = str(encoding.get("units")).partition(" since ")

    def is_exact(units: str, dtype: str) -> bool:
        finer = {**encoding, "units": units, "dtype": dtype}
        with suppress(ConflictError):
            return bool(_encode_and_compare(times, finer, name, units)[1].all())
        return False

    for unit in _UNITS:
        units = f"{unit}{since}{reference}"
        if is_exact(units, "int64"):
            return {"units": units, "dtype": "float64" if is_exact(units, "float64") else "int64"}
    return None


def equal(new: Any, stored: Any) -> Any:
    """Return a mask of equal elements, treating missing times as equal."""
    if new.dtype.kind in "mM" and stored.dtype.kind in "mM":
        return (new == stored) | (np.isnat(new) & np.isnat(stored))
    try:
        return np.asarray(new == stored, dtype=bool)
    except TypeError as error:  # raised by cftime for dates in different calendars
        raise ConflictError(str(error), remedy="Convert the dates with convert_calendar") from error


@blockwise
def _as_type(values: Any, dtype: np.dtype[Any]) -> Any:
    if values.dtype == dtype or dtype.hasobject:
        return values
    castable = dtype.kind in ("b", values.dtype.kind)
    if not castable and not np.can_cast(values.dtype, dtype, "same_kind"):
        raise ConflictError(
            f"the new values have dtype {values.dtype}, but the stored values have dtype {dtype}"
        )
    return values.astype(dtype)
