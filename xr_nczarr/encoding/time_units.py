"""Convert NumPy times to units that xarray can encode."""

from __future__ import annotations

from typing import Any

import numpy as np

from xr_nczarr.encoding.blockwise import blockwise
from xr_nczarr.encoding.number_encoding import misfit
from xr_nczarr.errors import UnsupportedError

_ENCODED_UNITS = ("D", "h", "m", "s", "ms", "us", "ns")
_FINE_UNITS = ("ps", "fs", "as")


def has_encoded_unit(dtype: np.dtype[Any]) -> bool:
    """Return whether xarray can encode times with the unit of a dtype."""
    unit, multiple = np.datetime_data(dtype)
    return unit in _ENCODED_UNITS and multiple == 1


def in_encoded_unit(times: Any, name: str) -> Any:
    """Convert NumPy times to a unit that xarray can encode, unless they already have such a unit.

    xarray would round times that are finer than nanoseconds.

    Raises
    ------
    ConflictError
        If a time is not a whole number of nanoseconds, or is out of range in the new unit.
    UnsupportedError
        If the times are differences in months or years, whose lengths vary, or have no unit.
    """
    if has_encoded_unit(times.dtype):
        return times
    unit, _ = np.datetime_data(times.dtype)
    if unit == "generic" or (unit in "YM" and times.dtype.kind == "m"):
        raise UnsupportedError(
            f"times of dtype {times.dtype.name} cannot be encoded",
            remedy="Convert the variable with astype, for example to integers",
            variable=name,
        )
    if unit not in _ENCODED_UNITS:
        unit = "ns" if unit in _FINE_UNITS else "s"
    return _in_unit(times, np.dtype(f"{times.dtype.kind}8[{unit}]"), name)


@blockwise
def _in_unit(times: Any, dtype: np.dtype[Any], name: str) -> Any:
    converted = times.astype(dtype)
    same = converted.astype(times.dtype).astype("i8") == times.astype("i8")
    if not same.all():
        remedy = "Convert the variable with astype, for example to integers"
        raise misfit(f"the time {times[~same][0]}", {}, dtype, remedy, name)
    return converted
