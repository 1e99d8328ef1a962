"""Decode dates so that all parts of a variable have one type, and missing dates stay missing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from xr_nczarr.errors import MetadataError

Array = npt.NDArray[Any]


def decode_dates(decode: Callable[..., Array], numbers: Array, dtype: np.dtype[Any]) -> Array:
    """Decode dates, and represent missing dates as NaT or, for cftime dates, as NaN.

    cftime itself would return the reference date for NaN.

    Parameters
    ----------
    decode
        xarray's function for decoding dates, with all its options.
    dtype
        The dtype of the variable. If it is object, all dates become cftime dates, whereas xarray
        itself would return NumPy times whenever NumPy could represent all of `numbers`.
    """
    if dtype.kind == "M":
        times = decode(numbers)
        if not times.dtype.hasobject:
            return times
    dates = np.full(numbers.shape, np.nan, object)
    is_present = ~np.isnan(numbers)
    if is_present.any():
        decoded = decode(numbers[is_present])
        if not decoded.dtype.hasobject:
            decoded = partial(decode, use_cftime=True)(numbers[is_present])
        dates[is_present] = decoded
    return dates


def as_declared(
    values: Any, declared: np.dtype[Any], numbers: Any, decode: Callable[[Any], Any]
) -> Any:
    """Convert times to the dtype that the variable declares. Return other values unchanged.

    dask assumes that each block has the declared dtype. Otherwise, it would convert some blocks to
    the dtype of others, and thereby change times.

    Parameters
    ----------
    numbers, decode
        The stored numbers, and the function that decoded them to `values`. Times stored as floats
        are rounded to the declared unit if this changes them by no more than the precision of the
        floats. For example, 10 minutes may be stored as 9.999999999 minutes.

    Raises
    ------
    MetadataError
        If the declared dtype cannot represent all times.
    """
    if declared.kind not in "mM" or values.dtype == declared:
        return values
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
    """Return whether times differ from decoded floats by no more than the floats' precision."""
    if numbers.dtype.kind != "f":
        return False
    numbers = np.where(np.isnat(times), np.nan, numbers)
    least, greatest = (decode(np.nextafter(numbers, limit)) for limit in (-np.inf, np.inf))
    tolerance = np.timedelta64(1, "ns")  # because xarray rounds down
    is_close = (least - tolerance <= times) & (times <= greatest + tolerance)
    return bool(np.all(is_close | np.isnat(times)))
