"""Format times as dates, as ``ncdump -t`` does."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from xr_nczarr.netcdf import Group, Variable

_DEFAULT_CALENDAR = "standard"


@dataclass(frozen=True, slots=True)
class TimeUnits:
    """The units and the calendar of a time variable. The units include the reference date."""

    units: str
    calendar: str

    def texts(self, values: npt.NDArray[Any], numbers: Sequence[str]) -> list[str]:
        """Format times as dates in quotation marks.

        `numbers` contains the same values formatted as numbers. Missing and non-finite values stay
        numbers, and so do all values if xarray cannot decode them.
        """
        from xarray import SerializationWarning
        from xarray.coding.times import decode_cf_datetime

        texts = list(numbers)
        present = [place for place, text in enumerate(numbers) if text != "_"]
        present = [place for place in present if np.isfinite(values[place])]
        try:
            with warnings.catch_warnings():
                # xarray warns about dates that need cftime.
                warnings.simplefilter("ignore", SerializationWarning)
                dates = decode_cf_datetime(values[present], self.units, self.calendar)
        except (ValueError, OverflowError, ImportError):
            return texts
        for place, text in zip(present, _iso_texts(dates), strict=True):
            date, _, clock = text.partition("T")
            clock = clock.removesuffix(".000000")
            while clock.endswith(":00"):
                clock = clock[:-3]
            texts[place] = f'"{date}"' if clock == "00" else f'"{date} {clock}"'
        return texts


def time_units(group: Group) -> dict[str, TimeUnits]:
    """Return the units of all time variables in a group, keyed by name.

    The bounds of a time variable are included. Bounds without units of their own get the units of
    the time variable.
    """
    times = {}
    for variable in group.variables.values():
        units = _text(variable, "units")
        if " since " in units and variable.kind == "number":
            calendar = _text(variable, "calendar") or _DEFAULT_CALENDAR
            times[variable.name] = TimeUnits(units, calendar)
    for name in [*times]:
        bounds = group.variables.get(_text(group.variables[name], "bounds"))
        if bounds is not None and not _text(bounds, "units") and bounds.kind == "number":
            times[bounds.name] = times[name]
    return times


def _text(variable: Variable, name: str) -> str:
    value = variable.attributes.get(name)
    return value if isinstance(value, str) else ""


def _iso_texts(dates: npt.NDArray[Any]) -> list[str]:
    if dates.dtype.kind == "M":
        # Dates are rounded, because a fraction of an hour or day is rarely a whole number of
        # nanoseconds.
        rounded: Any = dates.astype("M8[ns]") + np.timedelta64(500, "ns")
        return [str(date) for date in rounded.astype("M8[us]")]
    return [date.isoformat(timespec="microseconds") for date in dates]
