"""Times are stored exactly in the stored or the requested units, or they are rejected."""

import ast
import re

import cftime
import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr

import xr_nczarr
from tests.reading import read
from tests.stores import read_objects
from tests.writes import assert_rejected, series
from xr_nczarr import ConflictError, NczarrError, to_nczarr


# Regression D51
def test_times_not_representable_in_stored_units_are_rejected(path):
    first = xr.Dataset(coords={"time": np.array(["2000-01-01T00:35"], "M8[ns]")})
    to_nczarr(first, path, unlimited_dims="time")
    assert read(path).time.encoding["units"] == "days since 2000-01-01 00:35:00"
    later = np.datetime64("2000-01-01T00:35", "ns") + np.arange(1, 3) * np.timedelta64(6, "h")
    assert_rejected(path, "does not fit", xr.Dataset(coords={"time": later}), append_dim="time")


@pytest.mark.parametrize(
    ("fits", "other"),
    [
        ([], "2000-01-01T00:00:11"),  # in seconds, the number is too large to be decoded as days
        (["2022-07-20", "2022-07-21"], "2022-07-22T00:00:11"),
        (["2022-07-20"], "2100-01-01T00:00:11"),
    ],
    ids=["long ago", "third", "far in the future"],
)
def test_error_for_unrepresentable_time_includes_time_and_suggests_units(path, fits, other):
    first = xr.Dataset(coords={"time": np.array(["2022-07-19"], "M8[ns]")})
    encoding = {"time": {"units": "days since 2022-07-19", "dtype": "i8"}}
    to_nczarr(first, path, unlimited_dims="time", encoding=encoding)
    later = xr.Dataset(coords={"time": np.array([*fits, other], "M8[ns]")})
    problem = rf"the time {other}\.0+ does not fit.*'units': 'seconds since 2022-07-19'"
    assert_rejected(path, problem, later, append_dim="time")


# Regression D51
@pytest.mark.parametrize("kind", ["datetime64", "cftime"])
@pytest.mark.parametrize(
    ("step", "units"),
    [(np.timedelta64(1, "h"), "hours"), (np.timedelta64(90, "s"), "seconds")],
    ids=["hourly", "every 90 s"],
)
def test_encoding_suggested_in_error_can_represent_rejected_times(path, kind, step, units):
    def hour(number):
        time = np.array([np.datetime64("2000-01-01", "ns") + number * step])
        if kind == "cftime":
            time = xr.Dataset(coords={"time": time}).convert_calendar("noleap").time.values
        return xr.Dataset({"v": ("time", [1.0 * number])}, {"time": time})

    to_nczarr(hour(0), path)
    assert "days" in xr.open_dataset(path, engine="nczarr", decode_times=False).time.units
    with pytest.raises(ConflictError, match="does not fit") as caught:
        to_nczarr(hour(1), path, append_dim="time")
    remedy = re.search(r"encoding=(\{.*\}\})", caught.value.remedy)
    encoding = ast.literal_eval(remedy[1])
    assert encoding["time"]["dtype"] == "float64"
    assert encoding["time"]["units"].startswith(f"{units} since 2000-01-01")
    to_nczarr(hour(0), path, mode="w", encoding=encoding)
    for number in range(1, 30):
        to_nczarr(hour(number), path, append_dim="time")
    expected = xr.concat([hour(number) for number in range(30)], "time")
    xr.testing.assert_equal(read(path), expected)


# Regression D51
def test_times_not_exactly_representable_as_floats_are_rejected(path):
    encoding = {"time": {"units": "days since 2000-01-01", "dtype": "f4"}}
    to_nczarr(series(0, 2), path, encoding=encoding)
    odd = series(2, 3).assign_coords(time=np.array(["2000-02-01T00:00:01"], "M8[ns]"))
    assert_rejected(path, "does not fit", odd, append_dim="time")


# Regression D51
def test_appended_times_are_stored_in_existing_units(path):
    encoding = {"time": {"units": "minutes since 1999-12-31", "dtype": "i8"}}
    to_nczarr(series(0, 2), path, encoding=encoding)
    to_nczarr(series(2, 4), path, append_dim="time")
    xr.testing.assert_identical(read(path), series(0, 4))
    assert read(path, decode_times=False).time.values.tolist() == [1440, 1800, 2160, 2520]


@pytest.mark.parametrize("new", [{}, {"units": "days since 2000-01-01"}], ids=["none", "days"])
@pytest.mark.parametrize("stored", [None, "hours since 1990-01-01", "days since 2000-01-01"])
@pytest.mark.parametrize("attributes", [{}, {"bounds": "tb"}], ids=["undeclared", "declared"])
def test_bounds_added_to_stored_time_coordinate_keep_their_values(path, new, stored, attributes):
    t = series(0, 3, "24h").time.drop_vars("time").rename(time="t")
    coordinate = xr.Dataset(coords={"t": t.assign_attrs(attributes)})
    coordinate.t.encoding = {"units": stored} if stored else {}
    to_nczarr(coordinate, path)
    bounds = xr.concat([t, t + np.timedelta64(24, "h")], "n").T
    added = xr.Dataset({"tb": bounds}, {"t": t.assign_attrs(bounds="tb")})
    added.t.encoding = new
    to_nczarr(added, path, mode="a")
    np.testing.assert_array_equal(read(path).tb, bounds)


@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
def test_time_variable_that_names_itself_as_bounds_keeps_units(dialect):
    store = {}
    times = np.array(["2000-01-01", "2000-01-02"], "M8[ns]")
    units = {"units": "days since 2000-01-01"}
    source = xr.Dataset({"t": ("x", times, {"bounds": "t", "long_name": "time"}, units)})
    to_nczarr(source, store, dialect=dialect)
    xr.testing.assert_identical(read(store), source)


def test_region_can_contain_bounds_without_time_coordinate(path):
    t = series(0, 3, "24h").time.drop_vars("time").rename(time="t")
    bounds = xr.concat([t, t + np.timedelta64(24, "h")], "n").T
    stored = xr.Dataset({"tb": bounds}, {"t": t.assign_attrs(bounds="tb")})
    stored.t.encoding = {"units": "hours since 1990-01-01"}
    to_nczarr(stored, path)
    later = (stored.tb + np.timedelta64(7, "h")).variable
    to_nczarr(xr.Dataset({"tb": later[1:2]}), path, region={"t": slice(1, 2)})
    expected = np.concatenate([stored.tb[:1], later[1:2], stored.tb[2:]])
    np.testing.assert_array_equal(read(path).tb, expected)


# Regression D67
@pytest.mark.parametrize("kind", ["M8[ns]", "m8[ns]"])
def test_times_are_encoded_lazily(path, kind):
    computed = []

    def block(values):
        computed.append(values.shape)
        return values.astype(kind)

    values = da.arange(4, chunks=2, dtype="i8").map_blocks(block, dtype=kind)
    computed.clear()
    encoding = {
        "v": {
            "units": "nanoseconds since 1970-01-01" if kind[0] == "M" else "nanoseconds",
            "dtype": "i8",
        }
    }
    delayed = to_nczarr(xr.Dataset({"v": ("x", values)}), path, compute=False, encoding=encoding)
    assert not computed
    delayed.compute(scheduler="sync")
    assert read(path, decode_timedelta=True).v.values.astype("i8").tolist() == [0, 1, 2, 3]


def test_encoding_times_in_units_of_months_is_rejected(path):
    months = {"units": "months since 2000-01-01", "calendar": "360_day"}
    dataset = xr.decode_cf(xr.Dataset(coords={"t": ("t", [0, 1], months)}))
    with pytest.raises(
        ConflictError, match=r"times cannot be encoded in units of months .variable t"
    ):
        to_nczarr(dataset, path)
    days = {"t": {"units": "days since 2000-01-01"}}
    to_nczarr(dataset, path, encoding=days)
    xr.testing.assert_equal(xr.open_dataset(path, engine="nczarr"), dataset)


def _numpy_times(path, name, values):
    """Write times to plain Zarr as NumPy times, without CF encoding."""
    group = zarr.open_group(path, mode="w", zarr_format=3)
    array = group.create_array(name, shape=(2,), dtype=values.dtype, dimension_names=["t"])
    array[:] = values


# Picoseconds were rounded to nanoseconds, and copying any of these units raised a KeyError.
@pytest.mark.parametrize("way", ["copy", "eager", "dask"])
@pytest.mark.parametrize(
    ("dtype", "problem"),
    [
        *[(dtype, None) for dtype in ("M8[Y]", "M8[M]", "M8[W]", "m8[W]", "M8[10s]")],
        ("M8[ps]", "the time 1970-01-01T00:00:00.0+1 does not fit"),
        ("m8[as]", "the time 1 attoseconds does not fit"),
        ("m8[M]", r"timedelta64\[M\] cannot be encoded"),
        ("m8", "timedelta64 cannot be encoded"),
    ],
)
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
def test_times_in_unusual_units_are_converted_exactly_or_rejected(
    path, tmp_path, way, dtype, problem
):
    def write():
        if way == "copy":
            xr_nczarr.copy(tmp_path / "source", path)
        else:
            chunks = {} if way == "dask" else None
            to_nczarr(xr.open_dataset(tmp_path / "source", engine="nczarr", chunks=chunks), path)

    values = np.array([1, 2]).view(dtype)
    _numpy_times(tmp_path / "source", "v", values)
    if problem is not None:
        with pytest.raises(NczarrError, match=problem):
            write()
        return
    write()
    np.testing.assert_array_equal(read(path, decode_timedelta=True).v.values, values)


# Timedeltas were stored in a wrong unit, and datetimes were rejected.
@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("kind", ["M", "m"])
def test_times_appended_to_numpy_time_array_keep_values(path, kind, in_blocks):
    def append(values):
        dataset = xr.Dataset({"v": ("t", values)})
        to_nczarr(dataset.chunk() if in_blocks else dataset, path, append_dim="t")

    stored = np.array([0, 3600], f"{kind}8[s]")
    new = np.array([7200 * 10**9, 0], f"{kind}8[ns]")
    _numpy_times(path, "v", stored)
    append(new)
    expected = np.concatenate([stored, new])
    np.testing.assert_array_equal(read(path).v.values, expected)
    with pytest.raises(ConflictError, match="does not fit the encoding"):
        append(new + np.timedelta64(1, "ns"))
    np.testing.assert_array_equal(read(path).v.values, expected)


# The coordinate check compared numbers in different units.
@pytest.mark.parametrize("kind", ["M", "m"])
def test_times_appended_to_numpy_time_coordinate_must_increase(path, kind):
    _numpy_times(path, "t", np.array([3600, 7200], f"{kind}8[s]"))
    for hour in (1, 0, -5):
        new = xr.Dataset(coords={"t": np.array([hour * 3600], f"{kind}8[s]")})
        assert_rejected(path, "coordinate t", new, append_dim="t")
    new = xr.Dataset(coords={"t": np.array([10800 * 10**9], f"{kind}8[ns]")})
    to_nczarr(new, path, append_dim="t")
    assert read(path).t.values.astype("i8").tolist() == [3600, 7200, 10800]


# The number of units was stored as if it were the number of nanoseconds, as in to_zarr.
@pytest.mark.parametrize("dtype", ["datetime64[ns]", "timedelta64[ns]"])
def test_times_not_representable_in_requested_time_dtype_are_rejected(path, dtype):
    values = np.array([0, 86400], dtype.replace("ns", "s"))
    encoding = {"v": {"dtype": dtype}}
    with pytest.raises(ConflictError, match="does not fit the encoding"):
        to_nczarr(xr.Dataset({"v": ("x", values)}), path, dialect="zarr", encoding=encoding)
    assert read_objects(path) == {}


# xarray encoded NaT as the first time.
@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize(
    "encoding",
    [{}, {"units": "days since 2000-01-01", "dtype": "f8"}],
    ids=["default units", "requested units"],
)
def test_missing_times_in_nonstandard_calendars_are_rejected(encoding, in_blocks):
    dataset, store = xr.Dataset({"v": ("x", np.array(["2000-01-01", "NaT"], "M8[s]"))}), {}
    encoding = {"v": {"calendar": "noleap", **encoding}}
    with pytest.raises(ConflictError, match="the time NaT does not fit"):
        to_nczarr(dataset.chunk() if in_blocks else dataset, store, encoding=encoding)
    to_nczarr(dataset[{"x": [0]}], store, mode="w", encoding=encoding)
    assert read(store).v.dt.calendar == "noleap"


# NumPy times were written unchecked, and read as undecoded numbers. A mask on floats was unchecked.
@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("dtype", ["i8", "f8"])
@pytest.mark.parametrize("as_cftime", [False, True])
def test_time_equal_to_fill_value_in_nonstandard_calendar_is_rejected(as_cftime, dtype, in_blocks):
    dataset = xr.Dataset(coords={"t": np.array(["2000-02-28", "2000-03-01"], "M8[s]")})
    if as_cftime:
        dataset = dataset.convert_calendar("noleap", dim="t")
    dataset = dataset.reset_index("t").reset_coords()
    units = {"units": "days since 2000-02-28", "dtype": dtype} if in_blocks else {"dtype": dtype}
    encoding = {"t": {"calendar": "noleap", "_FillValue": 1, **units}}
    lazy = in_blocks and not as_cftime
    with pytest.raises(ConflictError, match=r"the time 2000-03-01.* does not fit the encoding"):
        to_nczarr(dataset.chunk() if lazy else dataset, {}, encoding=encoding)


# These times were rejected because NumPy times cannot be compared with the decoded dates.
@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("times", [["2000-02-28", "2000-03-01"], []], ids=["times", "empty"])
def test_numpy_times_are_stored_as_integers_in_nonstandard_calendar(times, in_blocks):
    dataset, store = xr.Dataset({"t": ("x", np.array(times, "M8[s]"))}), {}
    units = {"units": "days since 2000-02-28", "dtype": "i4", "calendar": "noleap"}
    to_nczarr(dataset.chunk() if in_blocks else dataset, store, encoding={"t": units})
    decoded = read(store).t
    assert [time.isoformat() for time in decoded.values] == [f"{time}T00:00:00" for time in times]
    assert (decoded.encoding["dtype"], decoded.encoding["calendar"]) == (np.dtype("i4"), "noleap")


def test_error_for_date_not_in_calendar_includes_date_and_calendar():
    dataset = xr.Dataset({"t": ("x", np.array(["2000-02-28", "2000-02-29"], "M8[s]"))})
    with pytest.raises(ConflictError, match=r"2000-02-29T00.* calendar noleap.*variable t"):
        to_nczarr(dataset, {}, encoding={"t": {"calendar": "noleap"}})


def test_missing_times_can_be_written_with_null_calendar():
    dataset, store = xr.Dataset({"v": ("x", np.array(["2000-01-01", "NaT"], "M8[ns]"))}), {}
    to_nczarr(dataset, store, encoding={"v": {"calendar": None}})
    xr.testing.assert_identical(read(store), dataset)


MISSING = np.array(["NaT", "NaT"], "M8[ns]")
DATES = np.array(["2000-01-01", "2000-01-03"], "M8[ns]")


@pytest.mark.parametrize("lazy", [False, True], ids=["numpy", "dask"])
@pytest.mark.parametrize("calendar", ["standard", "gregorian", "proleptic_gregorian"])
@pytest.mark.parametrize("dtype", ["i8", "i4", "f8"])
def test_missing_times_can_be_written_in_standard_calendars(dtype, calendar, lazy):
    def times(values):
        dataset = xr.Dataset({"v": ("t", values)})
        return dataset.chunk(t=2) if lazy else dataset

    encoding = {"units": "days since 2000-01-01", "calendar": calendar, "dtype": dtype}
    encoding |= {} if dtype == "i8" else {"_FillValue": -1}
    created, appended = {}, {}
    to_nczarr(times(MISSING), created, encoding={"v": encoding})
    to_nczarr(times(np.concatenate([DATES, MISSING])), appended, encoding={"v": encoding})
    to_nczarr(times(MISSING), appended, append_dim="t")
    np.testing.assert_array_equal(read(created).v, MISSING)
    opened = read(appended).v
    np.testing.assert_array_equal(opened, np.concatenate([DATES, MISSING, MISSING]))
    assert opened.encoding["calendar"] == calendar
    assert opened.encoding["dtype"] == dtype


@pytest.mark.parametrize("dtype", ["i8", "i4"])
def test_dask_times_that_need_finer_units_are_rejected(dtype):
    times = xr.Dataset({"v": ("t", DATES[:1] + np.timedelta64(90, "s"))}).chunk()
    encoding = {"units": "hours since 2000-01-01", "dtype": dtype}
    problem = r"time 2000-01-01T00:01:30.* does not fit .*\(variable v\)\. Pass encoding=(.*?\}\})"
    with pytest.raises(ConflictError, match=problem) as raised:
        to_nczarr(times, {}, encoding={"v": encoding})
    suggested = re.search(problem, str(raised.value))[1]
    to_nczarr(times, store := {}, encoding=ast.literal_eval(suggested))
    np.testing.assert_array_equal(read(store).v, times.v)


def test_appending_cftime_dates_to_times_in_nanoseconds_is_rejected(path):
    to_nczarr(xr.Dataset({"v": ("t", DATES)}).chunk(), path)
    later = xr.Dataset({"v": ("t", xr.date_range("2000-02-01", periods=1, use_cftime=True))})
    assert_rejected(
        path, "encoding or decoding the values failed .*nanoseconds", later, append_dim="t"
    )


@pytest.mark.parametrize("lazy", [False, True], ids=["NumPy", "dask"])
@pytest.mark.parametrize(
    ("times", "units"),
    [
        (np.array(["2000-01-01T01", "NaT"], "M8[s]"), "nanoseconds since 1970-01-01"),
        (np.array(["2000-01-01T01", "NaT"], "M8[s]"), "Millisecond since 2000-01-01"),
        (np.array(["2000-01-01T01", "NaT"], "M8[us]"), "nanoseconds since 1970-01-01"),
        (np.array([3600, "NaT"], "m8[s]"), "microseconds"),
    ],
    ids=["seconds", "milliseconds", "microseconds", "timedeltas"],
)
def test_times_can_be_stored_in_units_finer_than_their_resolution(path, times, units, lazy):
    def dataset(values):
        variable = xr.Variable("x", values)
        return xr.Dataset({"t": variable.chunk(x=1) if lazy else variable})

    encoding = {"t": {"units": units, "dtype": "i8"}}
    to_nczarr(dataset(times), path, encoding=encoding)
    to_nczarr(dataset(times[:1] + 1), path, append_dim="x")
    expected = dataset(np.array([*times, times[0] + 1])).load()
    xr.testing.assert_equal(read(path), expected)


def test_times_out_of_range_in_requested_units_are_rejected(path):
    times = xr.Dataset({"t": ("x", np.array(["9999-01-01"], "M8[s]"))})
    encoding = {"t": {"units": "nanoseconds since 1970-01-01"}}
    problem = r"the time 9999-.* does not fit .*nanoseconds.* Write a new store with coarser units"
    assert_rejected(path, problem, times, encoding=encoding)


@pytest.mark.parametrize("lazy", [False, True], ids=["NumPy", "dask"])
@pytest.mark.parametrize("dtype", ["i8", "f8"])
@pytest.mark.parametrize(
    "times",
    [np.array(["2000-01-01", "2000-01-02"], "M8[ns]"), np.array([0, 86400], "m8[s]")],
    ids=["dates", "timedeltas"],
)
def test_times_that_would_be_stored_as_fill_value_are_rejected(path, times, dtype, lazy):
    units = "days since 2000-01-01" if times.dtype.kind == "M" else "days"
    encoding = {"t": {"units": units, "dtype": dtype, "_FillValue": 0}}
    problem = "does not fit the encoding .*_FillValue 0.* Pass another _FillValue"
    dataset = xr.Dataset({"t": ("x", times)})
    assert_rejected(path, problem, dataset.chunk() if lazy else dataset, encoding=encoding)


def test_dask_timedeltas_that_do_not_fit_requested_units_are_rejected(path):
    times = xr.Dataset({"t": ("x", da.from_array(np.array([60, 90, "NaT"], "m8[m]"), chunks=1))})
    encoding = {"t": {"units": "hours", "dtype": "i8"}}
    problem = "the time 90 minutes does not fit the encoding .*'units': 'minutes'"
    assert_rejected(path, problem, times, encoding=encoding)


def test_dates_in_calendars_unsupported_by_xarray_are_rejected(path):
    dates = xr.Dataset({"t": ("x", np.array(["2000-01-01"], "M8[ns]"))})
    encoding = {"t": {"calendar": "tai"}}
    assert_rejected(path, "cannot decode times in the calendar 'tai'", dates, encoding=encoding)
    dates = xr.Dataset({"t": ("x", [cftime.datetime(2000, 1, 1, calendar="tai")])})
    assert_rejected(path, "cannot decode times in the calendar 'tai'", dates)
