"""Encode times with xarray, and check that decoding reproduces them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from xarray import Variable, conventions
from xarray.coding.times import CFDatetimeCoder, CFTimedeltaCoder

from xr_nczarr.backend.times import NUMPY_CALENDARS
from xr_nczarr.encoding.blockwise import blockwise
from xr_nczarr.encoding.number_encoding import (
    Rounding,
    as_type,
    fill_value_of,
    is_packed,
    misfit,
)
from xr_nczarr.encoding.time_units import (
    as_dates,
    equal,
    in_encoded_unit,
    is_time,
    refuse_calendar_units,
    refuse_unknown_calendar,
)
from xr_nczarr.encoding.xarray_encoder import as_conflicts, cf_encoded
from xr_nczarr.errors import ConflictError

_FINER_UNITS = ("hours", "minutes", "seconds", "milliseconds", "microseconds")
_NAT_ENCODING = "a _FillValue or the dtype float64 in the encoding"
_OTHER_ENCODING = "another _FillValue or dtype in the encoding"
_FLOAT_ENCODING = "the dtype float64 in the encoding"
_REMEDY = "Pass {}, or call drop_encoding() to discard the encoding inherited from the source"


def with_checked_times(variable: Variable, encoding: Mapping[str, Any], name: str) -> Variable:
    """Check that an encoding can represent the times of a variable, and return the variable.

    Values that are not times are returned unchanged. NumPy times are converted to a unit in which
    xarray can encode them. If NumPy does not support the calendar of the encoding, NumPy dates are
    converted to cftime dates. If the encoding is empty, the times need no check, because xarray
    chooses an encoding that fits them.

    Dask arrays are checked block by block when they are computed, so the caller must use the
    returned variable. A dask array of NumPy times is not only checked, but also encoded, if the
    encoding specifies both the units and a numeric dtype.

    Raises
    ------
    ConflictError
        If decoding would not reproduce a time, or if xarray does not support the units or calendar.
    UnsupportedError
        If xarray cannot encode the dtype of the times; see `in_encoded_unit`.
    """
    if variable.dtype != object:
        times = in_encoded_unit(variable.data, name, encoding.get("units"))
        variable = variable.copy(data=times)
    refuse_calendar_units(encoding, name)
    refuse_unknown_calendar(variable, encoding, name)
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
    return variable.copy(data=data) if lazy else variable


def _encoded_by_block(
    variable: Variable, times: Any, encoding: Mapping[str, Any], name: str
) -> Variable:
    """Encode a dask array of times, using the units and the dtype that an encoding specifies.

    `times` contains the values of `variable`, which may have been converted to cftime dates.
    """
    empty = np.empty((0,) * variable.ndim, variable.dtype)
    encoded = cf_encoded(Variable(variable.dims, empty, variable.attrs, variable.encoding), name)
    # xarray could encode the blocks too, but its errors do not name the variable, and it fails if
    # all times in a block are missing.
    data = encode_times(times, encoded.dtype, encoding, "requested", name)
    return Variable(variable.dims, data, encoded.attrs, encoded.encoding)


@blockwise
def encode_times(
    times: Any, dtype: np.dtype[Any], encoding: Mapping[str, Any], rounding: Rounding, name: str
) -> Any:
    """Encode times as numbers of the stored dtype, in the units and calendar of an encoding.

    If `rounding` is ``"requested"``, times that are stored as floats may be rounded.

    Raises
    ------
    ConflictError
        If the units are months or years, or if encoding and decoding would change a time. If finer
        units would preserve the times, the error message suggests an encoding with these units.
    """
    refuse_calendar_units(encoding, name)
    units, is_new = encoding.get("units"), rounding == "requested"
    encoded, same = _encode_and_compare(times, encoding, name, units, accept_rounding=is_new)
    if not same.all():
        rounded = is_new and dtype.kind == "f"  # so only missing values can differ
        time = times[~same][0] if rounded else _first_misfit(times, encoding, name, units)
        if time != time:  # NaT
            change = _NAT_ENCODING
        elif not rounded and (finer := _finer_encoding(times, encoding, name)):
            change = f"encoding={{{name!r}: {finer}}}"
        elif fill_value_of(encoding) is not None:
            change = _OTHER_ENCODING
        else:
            change = _FLOAT_ENCODING
        remedy = _REMEDY.format(change) if is_new else f"Write a new store with {change}"
        raise misfit(f"the time {time}", encoding, dtype, remedy, name)
    return as_type(np.asarray(encoded.data), dtype)


@blockwise
def _checked_times(times: Any, dtype: np.dtype[Any], encoding: Mapping[str, Any], name: str) -> Any:
    """Return times unchanged, or raise ConflictError if decoding would not reproduce them.

    Times that are stored as floats may be rounded.
    """
    encoded, same = _encode_and_compare(times, encoding, name, accept_rounding=True)
    if not same.all():
        change = _NAT_ENCODING if fill_value_of(encoding) is None else _OTHER_ENCODING
        time = times[~same][0]
        raise misfit(f"the time {time}", encoding, encoded.dtype, _REMEDY.format(change), name)
    return times.astype(dtype, copy=False)


def _encode_and_compare(
    times: Any,
    encoding: Mapping[str, Any],
    name: str,
    units: str | None = None,
    *,
    accept_rounding: bool = False,
) -> tuple[Variable, Any]:
    """Return encoded times, and a mask that is True for times that decoding reproduces.

    The times are decoded in `units` or, by default, in the units in which xarray encoded them. With
    `accept_rounding`, times that are stored as floats may be rounded, but must not become missing.
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
        # To encode all times as integers, xarray may have chosen finer units than requested.
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
            # Numbers that xarray encoded in finer units can be too large to decode in `units`.
            return encoded, np.zeros(times.shape, bool)
        if accept_rounding and encoded.dtype.kind == "f":
            return encoded, (decoded.isnull() == variable.isnull()).to_numpy()
        return encoded, equal(decoded.to_numpy(), times)


def _first_misfit(times: Any, encoding: Mapping[str, Any], name: str, units: str | None) -> Any:
    """Return the first element of `times` that cannot be encoded in `units`.

    `times` must contain such an element.
    """
    # xarray encodes all times in the same units, so a single misfit prevents all times from being
    # decoded correctly. The first misfit can therefore be found only by bisection.
    times = times.ravel()
    while times.size > 1:
        half = times[: times.size // 2]
        fits = _encode_and_compare(half, encoding, name, units)[1].all()
        times = times[half.size :] if fits else half
    return times[0]


def _finer_encoding(times: Any, encoding: Mapping[str, Any], name: str) -> dict[str, str] | None:
    """Return an encoding in the coarsest units in which all times are whole numbers.

    Return None if even microseconds are too coarse.
    """
    _, since, reference = str(encoding.get("units")).partition(" since ")

    def is_exact(units: str, dtype: str) -> bool:
        finer = {**encoding, "units": units, "dtype": dtype}
        with suppress(ConflictError):
            return bool(_encode_and_compare(times, finer, name, units)[1].all())
        return False

    for unit in _FINER_UNITS:
        units = f"{unit}{since}{reference}"
        if is_exact(units, "int64"):
            return {"units": units, "dtype": "float64" if is_exact(units, "float64") else "int64"}
    return None
