"""All dates of a variable have the same type, and missing dates stay missing.

xarray infers this type from the first and the last date. The dates between them may need another
type. The same rules apply to time differences.
"""

from typing import Any

import cftime
import numpy as np
import pytest
import xarray as xr
from xarray.coders import CFDatetimeCoder, CFTimedeltaCoder

from tests.reading import WAYS, load
from xr_nczarr import ConflictError, MetadataError, to_nczarr

FAR = 700_000.0  # days from 2000 to the year 3916, which datetime64[ns] cannot represent

# xarray warns about dates that NumPy cannot represent.
pytestmark = pytest.mark.filterwarnings("ignore::xarray.SerializationWarning")


def stored(numbers: list[float], **attributes: str) -> dict[str, Any]:
    """Return a store in which each chunk of the variable ``t`` contains one number."""
    store: dict[str, Any] = {}
    variable = xr.Variable("x", numbers, {"units": "days since 2000-01-01", **attributes})
    variable.encoding["chunks"] = (1,)
    xr.Dataset({"t": variable}).to_zarr(store, zarr_format=2, consolidated=False)
    return store


def opened(store: dict[str, Any], way: str, **options: Any) -> xr.Dataset:
    chunks = None if way == "eager" else {}
    return xr.open_dataset(store, engine="nczarr", chunks=chunks, **options)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("numbers", [[np.nan, 1.0, 1.0], [1.0, np.nan, 1.0]], ids=str)
def test_missing_dates_in_nonstandard_calendar_are_read_as_nan(numbers, way):
    dates = load(opened(stored(numbers, calendar="noleap"), way), way).t
    assert dates.isnull().values.tolist() == np.isnan(numbers).tolist()
    assert dates.values[2] == cftime.DatetimeNoLeap(2000, 1, 2)


def test_missing_dates_in_coordinate_are_also_missing_in_index():
    store: dict[str, Any] = {}
    attributes = {"units": "days since 2000-01-01", "calendar": "360_day"}
    numbers = xr.Variable("x", [0.0, np.nan, 2.0], attributes)
    xr.Dataset(coords={"x": numbers}).to_zarr(store, zarr_format=2, consolidated=False)
    index = xr.open_dataset(store, engine="nczarr").indexes["x"]
    assert index.isna().tolist() == [False, True, False]


@pytest.mark.parametrize("way", WAYS)
def test_missing_dates_among_far_future_dates_are_read_as_nan(way):
    dates = load(opened(stored([FAR, np.nan, 1.0, FAR]), way), way).t.values
    assert [type(date) for date in dates[[0, 2, 3]]] == [cftime.DatetimeGregorian] * 3
    assert np.isnan(dates[1])
    assert dates[2] == cftime.DatetimeGregorian(2000, 1, 2)


@pytest.mark.parametrize("way", WAYS)
def test_reading_date_outside_range_of_inferred_dtype_raises_error(way):
    store = stored([0.0, FAR, 1.0])
    dataset = opened(store, way)
    assert dataset.t.dtype == "M8[ns]"
    with pytest.raises(
        MetadataError, match=r"^memory:.*: datetime64\[ns\].* /t\).*use_cftime=True"
    ):
        load(dataset, way)
    assert dataset.t[0].values == np.datetime64("2000-01-01")
    coder = CFDatetimeCoder(use_cftime=True)
    dates = load(opened(store, way, decode_times=coder), way).t.values
    assert [date.year for date in dates] == [2000, 3916, 2000]


def test_coordinate_with_far_future_date_is_indexed_by_cftime_dates():
    store: dict[str, Any] = {}
    numbers = xr.Variable("x", [0.0, FAR, 1.0], {"units": "days since 2000-01-01"})
    xr.Dataset(coords={"x": numbers}).to_zarr(store, zarr_format=2, consolidated=False)
    index = xr.open_dataset(store, engine="nczarr").indexes["x"]
    assert [date.year for date in index] == [2000, 3916, 2000]


@pytest.mark.parametrize("way", WAYS)
def test_reading_date_finer_than_dtype_resolution_raises_error(way):
    store = stored([0.0, 0.5, 1.0], units="seconds since 2000-01-01")
    dataset = opened(store, way, decode_times=CFDatetimeCoder(time_unit="s"))
    with pytest.raises(MetadataError, match=r"^memory:.*: datetime64\[s\].*time_unit='ms'"):
        load(dataset, way)
    dates = load(opened(store, way, decode_times=CFDatetimeCoder(time_unit="ms")), way).t.values
    assert dates[1] == np.datetime64("2000-01-01T00:00:00.500")


@pytest.mark.parametrize("way", WAYS)
def test_time_differences_are_decoded_to_declared_resolution(way):
    store = stored([0.0, 1 / 3, 1.0], units="minutes", dtype="timedelta64[s]")
    differences = load(opened(store, way), way).t
    assert differences.dtype == "m8[s]"
    assert differences.values.astype(int).tolist() == [0, 20, 60]


@pytest.mark.parametrize("kind", ["M", "m"])
@pytest.mark.parametrize("way", WAYS)
def test_times_stored_as_inexact_floats_are_rounded_to_declared_resolution(way, kind):
    seconds = np.arange(50)  # 11 / 86400 days are decoded to 10.999999999 s
    date = " since 2000-01-01" if kind == "M" else ""
    numbers = [*(seconds / 86400), np.nan, 1.0]
    store = stored(numbers, units=f"days{date}", **({} if date else {"dtype": "timedelta64[s]"}))
    dataset = opened(store, way, decode_times=CFDatetimeCoder(time_unit="s"))
    values = load(dataset, way).t.values
    assert values.dtype == f"{kind}8[s]"
    assert np.isnat(values[50])
    np.testing.assert_array_equal((values[:50] - values[0]).astype(int), seconds)


@pytest.mark.parametrize("way", WAYS)
def test_reading_time_difference_finer_than_declared_resolution_raises_error(way):
    store = stored([0.0, 0.01, 1.0], units="minutes", dtype="timedelta64[s]")
    with pytest.raises(MetadataError, match=r"timedelta64\[s\].*CFTimedeltaCoder\(time_unit='ms'"):
        load(opened(store, way), way)
    coder = CFTimedeltaCoder(time_unit="ms")
    differences = load(opened(store, way, decode_timedelta=coder), way).t
    assert differences.values.astype(int).tolist() == [0, 600, 60_000]


@pytest.mark.parametrize("missing", [np.nan, None], ids=str)
@pytest.mark.parametrize("position", [0, 1])
def test_writing_missing_cftime_dates_is_rejected(missing, position):
    dates = np.array([cftime.DatetimeNoLeap(2000, 1, 1)] * 3, object)
    dates[position] = missing
    with pytest.raises(ConflictError, match=r"\(variable t\).*decode_times=\{'t': False\}"):
        to_nczarr(xr.Dataset({"t": ("x", dates)}), {})
