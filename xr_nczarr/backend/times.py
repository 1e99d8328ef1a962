"""Decode all times of a variable to the same dtype, and keep missing dates missing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from xarray import Variable
from xarray.coding.times import CFDatetimeCoder

from xr_nczarr.errors import MetadataError, UnsupportedError

Array = npt.NDArray[Any]

NUMPY_CALENDARS = ("standard", "gregorian", "proleptic_gregorian")


def for_empty_times(
    variables: Mapping[Any, Variable], decoding: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return decoding options that let xarray decode empty time variables.

    If NumPy does not support the calendar, xarray searches for the earliest time, and fails if the
    array is empty. The option ``use_cftime=True`` prevents this search.
    """
    if decoding.get("decode_times", True) is not True or decoding.get("use_cftime") is not None:
        return decoding
    names: set[Any] = set()
    for name, variable in variables.items():
        is_time = " since " in str(variable.attrs.get("units"))
        calendar = str(variable.attrs.get("calendar", "standard")).lower()
        if is_time and not variable.size and calendar not in NUMPY_CALENDARS:
            names |= {name, str(variable.attrs.get("bounds", name))}
    if not names:
        return decoding
    coder = CFDatetimeCoder(use_cftime=True)
    return {**decoding, "decode_times": dict.fromkeys(names & variables.keys(), coder)}


def convert_multiples(stored: Array, times: Array) -> None:
    """Convert times from a multiple of a unit, such as ``datetime64[10s]``, to the unit itself.

    The converted values of `stored` are written into `times`.

    Raises
    ------
    UnsupportedError
        If a time does not fit in the dtype of `times`.
    """
    times[...] = stored
    overflown = times.astype(stored.dtype).astype("i8") != stored.astype("i8")
    if overflown.any():
        number = stored[overflown].astype("i8")[0]
        raise UnsupportedError(
            f"the stored time {number} of dtype {stored.dtype.name} does not fit in dtype "
            f"{times.dtype.name}",
            remedy="Read the variable with zarr-python",
        )


def decode_dates(decode: Callable[..., Array], numbers: Array, dtype: np.dtype[Any]) -> Array:
    """Decode dates, and represent missing dates as NaT or, for cftime dates, as NaN.

    cftime itself would decode NaN to the reference date.

    Parameters
    ----------
    decode
        xarray's function for decoding dates, with its options already bound.
    numbers
        Stored numbers, in which NaN marks a missing date.
    dtype
        The dtype that xarray declared for the variable. For a NumPy time dtype, the result contains
        NumPy times if they can represent all dates. Otherwise, the result contains cftime dates.
    """
    if dtype.kind == "M":
        times = decode(numbers)
        if not times.dtype.hasobject:
            return times
    dates = np.full(numbers.shape, np.nan, object)
    is_present = ~np.isnan(numbers)
    if is_present.any():
        dates[is_present] = decode(numbers[is_present], use_cftime=True)
    return dates


def as_declared(
    values: Any, declared: np.dtype[Any], numbers: Any, decode: Callable[[Any], Any]
) -> Any:
    """Convert times to the dtype that xarray declared for the variable.

    If `declared` is not a time dtype, the values are returned unchanged. Times stored as floats are
    rounded to the declared unit if the change is within the precision of the floats. For example,
    10 minutes may be stored as 9.999999999 minutes.

    Parameters
    ----------
    numbers, decode
        The stored numbers, and the function that decoded them to `values`.

    Raises
    ------
    MetadataError
        If the declared dtype cannot represent all times.
    """
    if declared.kind not in "mM" or values.dtype == declared:
        return values
    # dask would convert blocks of different dtypes to a common dtype, which could change the times.
    argument = "use_cftime=True"
    if values.dtype.kind == declared.kind:
        unit = np.datetime_data(values.dtype)[0]
        half = np.ones((), f"m8[{np.datetime_data(declared)[0]}]").astype(f"m8[{unit}]") // 2
        converted = (values + half).astype(declared)
        if np.array_equal(converted, values, equal_nan=True):
            return converted
        if _is_within_precision(converted, np.asarray(numbers), decode):
            return converted
        argument = f"time_unit={unit!r}"
    is_date = declared.kind == "M"
    coder, option = ("Datetime", "decode_times") if is_date else ("Timedelta", "decode_timedelta")
    raise MetadataError(
        f"{declared}, the type that xarray chose for the variable, cannot represent all values",
        remedy=f"Pass {option}=xarray.coders.CF{coder}Coder({argument}) to choose another type",
    )


def _is_within_precision(times: Array, numbers: Array, decode: Callable[[Any], Any]) -> bool:
    """Return whether `times` equal the decoded `numbers`, within the precision of floats.

    If `numbers` are not floats, return False.
    """
    if numbers.dtype.kind != "f":
        return False
    # Each time must lie between the decoded values of the next smaller and the next larger float.
    numbers = np.where(np.isnat(times), np.nan, numbers)
    least, greatest = (decode(np.nextafter(numbers, limit)) for limit in (-np.inf, np.inf))
    tolerance = np.timedelta64(1, "ns")  # because xarray rounds down
    is_close = (least - tolerance <= times) & (times <= greatest + tolerance)
    return bool(np.all(is_close | np.isnat(times)))
