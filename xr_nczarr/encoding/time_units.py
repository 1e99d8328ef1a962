"""Convert times to a form that xarray can encode, and reject times that it cannot encode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

import numpy as np
from xarray import Variable
from xarray.coding.cftime_offsets import get_date_type
from xarray.coding.times import convert_times
from xarray.core.types import CFCalendar

from xr_nczarr.encoding.blockwise import blockwise
from xr_nczarr.encoding.number_encoding import misfit
from xr_nczarr.errors import ConflictError, UnsupportedError

_ENCODED_UNITS = ("D", "h", "m", "s", "ms", "us", "ns")
_AS_INTEGERS = "Convert the variable with astype, for example to integers"
_FINE_UNITS = ("ps", "fs", "as")
_CALENDAR_UNITS = ("month", "months", "year", "years", "common_year", "common_years")
_SECOND_FRACTIONS = {"millisecond": "ms", "microsecond": "us", "nanosecond": "ns"}


def in_encoded_unit(times: Any, name: str, units: Any = None) -> Any:
    """Convert NumPy times to a unit in which xarray can encode them.

    Without this conversion, xarray would round times whose unit is finer than nanoseconds, and
    encode times as NaT if their unit is coarser than `units`. Times that need no conversion are
    returned unchanged.

    Parameters
    ----------
    units
        The ``units`` of the encoding, such as ``"seconds since 2000-01-01"``, or None.

    Raises
    ------
    ConflictError
        If a time is not a whole number of nanoseconds, or is out of range in the new unit.
    UnsupportedError
        If the times have no unit, or are timedeltas in months or years, whose lengths vary.
    """
    unit, multiple = np.datetime_data(times.dtype)
    if unit == "generic" or (unit in "YM" and times.dtype.kind == "m"):
        raise UnsupportedError(
            f"times of dtype {times.dtype.name} cannot be encoded",
            remedy=_AS_INTEGERS,
            variable=name,
        )
    new_unit = unit
    if unit not in _ENCODED_UNITS:
        new_unit = "ns" if unit in _FINE_UNITS else "s"
    word = str(units).partition(" since ")[0].strip().lower().removesuffix("s")
    new_unit = max(new_unit, _SECOND_FRACTIONS.get(word, "D"), key=_ENCODED_UNITS.index)
    if (unit, multiple) == (new_unit, 1):
        return times
    dtype = np.dtype(f"{times.dtype.kind}8[{new_unit}]")
    remedy = _AS_INTEGERS if units is None else "Write a new store with coarser units"
    return in_time_dtype(times, dtype, {"units": units}, name, remedy)


@blockwise
def in_time_dtype(
    times: Any,
    dtype: np.dtype[Any],
    encoding: Mapping[str, Any],
    name: str,
    remedy: str = "Write the variable to a new store",
) -> Any:
    """Convert times to a NumPy time dtype, such as ``datetime64[ns]``.

    `encoding` and `remedy` are used only in the error message.

    Raises
    ------
    ConflictError
        If the conversion would change a time.
    """
    converted = times.astype(dtype)
    same = equal(converted.astype(times.dtype), times)
    if not same.all():
        raise misfit(f"the time {times[~same][0]}", encoding, dtype, remedy, name)
    return converted


@blockwise
def as_dates(times: Any, dtype: np.dtype[Any], encoding: Mapping[str, Any], name: str) -> Any:
    """Convert NumPy times to cftime dates in the calendar of an encoding.

    Raises
    ------
    ConflictError
        If a time is NaT, does not exist in the calendar, or is not a whole number of microseconds.
    """
    exact = in_time_dtype(times, np.dtype("M8[us]"), {}, name, _AS_INTEGERS).ravel()
    dates = np.full(exact.shape, np.nan, dtype)
    is_present = ~np.isnat(exact)
    date_type = get_date_type(encoding["calendar"])
    dates[is_present] = convert_times(exact[is_present], date_type, raise_on_invalid=False)
    absent = np.array([date != date for date in dates], bool)
    # xarray would encode NaT as an ordinary time, and its error for a date that does not exist does
    # not name the variable.
    if absent.any():
        time = times.ravel()[absent][0]
        remedy = "Drop or convert the times that do not fit, or leave out the calendar"
        raise misfit(f"the time {time}", {"calendar": encoding["calendar"]}, dtype, remedy, name)
    return dates.reshape(times.shape)


def refuse_calendar_units(encoding: Mapping[str, Any], name: str) -> None:
    """Raise ConflictError if the time units are months or years.

    xarray can decode times in these units (with cftime), but cannot encode them.
    """
    unit = str(encoding.get("units", "")).partition(" since ")[0].strip()
    if unit.lower() in _CALENDAR_UNITS:
        raise ConflictError(
            f"times cannot be encoded in units of {unit}",
            remedy='Pass different units in the encoding, such as "days since 2000-01-01"',
            variable=name,
        )


def is_time(variable: Variable) -> bool:
    """Return whether a variable contains times: NumPy or cftime datetimes, or timedeltas.

    The result is False for an empty object array, because its elements have no known type.
    """
    if variable.dtype != object or not variable.size:
        return variable.dtype.kind in "mM"
    return hasattr(variable[(0,) * variable.ndim].to_numpy().item(), "calendar")


def refuse_unknown_calendar(variable: Variable, encoding: Mapping[str, Any], name: str) -> None:
    """Raise ConflictError if xarray cannot decode times in the calendar of a variable.

    The calendar is taken from the encoding or, if it specifies none, from the first cftime date.
    Timedeltas and dask arrays are not checked.
    """
    calendar, lazy = encoding.get("calendar"), hasattr(variable.data, "dask")
    if variable.dtype.kind == "m" or lazy or not is_time(variable):
        return
    if calendar is None and variable.dtype == object:
        calendar = variable[(0,) * variable.ndim].to_numpy().item().calendar
    known = get_args(CFCalendar)
    if calendar is not None and str(calendar).lower() not in known:
        raise ConflictError(
            f"xarray cannot decode times in the calendar {calendar!r}",
            remedy=f"Choose one of these calendars in the encoding: {', '.join(known)}",
            variable=name,
        )


def equal(new: Any, stored: Any) -> Any:
    """Return a mask that is True where two arrays of times are equal.

    NaT is treated as equal to NaT.

    Raises
    ------
    ConflictError
        If cftime dates cannot be compared, because they are in different calendars.
    """
    if new.dtype.kind in "mM" and stored.dtype.kind in "mM":
        return (new == stored) | (np.isnat(new) & np.isnat(stored))
    try:
        return np.asarray(new == stored, dtype=bool)
    except TypeError as error:  # raised by cftime for dates in different calendars
        raise ConflictError(str(error), remedy="Convert the dates with convert_calendar") from error
