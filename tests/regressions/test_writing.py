"""Writing bugs of other programs (D51 to D70 in regressions.md) and of xr_nczarr itself."""

import ast
import json
import os
import re
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import dask
import dask.array as da
import netCDF4
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from numcodecs import JSON, Delta, MsgPack, Zlib

import xr_nczarr
from tests.reading import open_store
from xr_nczarr import ConflictError, ExistsError, RefusedError, UnsupportedError, to_nczarr
from xr_nczarr.storage import MemoryStore


def series(start, stop, step="6h", **variables):
    """Return a dataset along time in which `a` and `n` count from `start`."""
    hours = np.arange(start, stop) * np.timedelta64(int(step[:-1]), step[-1])
    return xr.Dataset(
        {
            "a": (("time", "x"), np.arange(start * 4, stop * 4.0).reshape(-1, 4)),
            "n": ("time", np.arange(start, stop, dtype="i4")),
            **variables,
        },
        coords={"time": np.datetime64("2000-01-01", "ns") + hours, "x": [10, 20, 30, 40]},
        attrs={"title": "series"},
    )


def run_in_processes(count, function, arguments):
    """Call a function with each tuple of arguments, in separate processes."""
    context = get_context("spawn")
    with ProcessPoolExecutor(count, mp_context=context) as pool:
        for future in [pool.submit(function, *item) for item in arguments]:
            future.result()


def read(target, **options):
    with xr.open_dataset(target, engine="nczarr", **options) as dataset:
        return dataset.load()


def files(path):
    return {
        os.path.relpath(os.path.join(folder, name), path): open_bytes(os.path.join(folder, name))
        for folder, _, names in os.walk(path)
        for name in names
    }


def open_bytes(path):
    with open(path, "rb") as file:
        return file.read()


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "store")


def assert_rejected(path, match, dataset, **options):
    """Check that a write is rejected and does not change the store."""
    before = files(path)
    with pytest.raises(ConflictError, match=match):
        to_nczarr(dataset, path, **options)
    assert files(path) == before


# Regression D51
def test_times_not_representable_in_stored_units_are_rejected(path):
    first = xr.Dataset(coords={"time": np.array(["2000-01-01T00:35"], "M8[ns]")})
    to_nczarr(first, path, unlimited_dims="time")
    assert read(path).time.encoding["units"] == "days since 2000-01-01 00:35:00"
    later = np.datetime64("2000-01-01T00:35", "ns") + np.arange(1, 3) * np.timedelta64(6, "h")
    assert_rejected(path, "does not fit", xr.Dataset(coords={"time": later}), append_dim="time")


# Regression D51
@pytest.mark.parametrize("kind", ["datetime64", "cftime"])
@pytest.mark.parametrize(
    ("step", "units"),
    [(np.timedelta64(1, "h"), "hours"), (np.timedelta64(90, "s"), "seconds")],
    ids=["hourly", "every 90 s"],
)
def test_suggested_encoding_can_represent_rejected_times(path, kind, step, units):
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


# Regression D52
def test_coordinate_mismatch_error_includes_first_difference(path):
    to_nczarr(series(0, 2), path)
    other = series(2, 4).assign_coords(x=[10, 21, 30, 40])
    assert_rejected(path, "21 instead of 20 at", other, append_dim="time")


# Regression D53
def test_appends_that_omit_stored_variable_are_rejected(path):
    to_nczarr(series(0, 2), path)
    assert_rejected(path, "/n .*not in the dataset", series(2, 4).drop_vars("n"), append_dim="time")


# Regression D53
def test_appends_that_add_variable_are_rejected(path):
    to_nczarr(series(0, 2).drop_vars("n"), path)
    assert_rejected(path, "new variables .*'n'", series(2, 4), append_dim="time")


# Regression D53
def test_appends_that_omit_subgroup_variables_are_rejected(path):
    tree = xr.DataTree.from_dict({"/": series(0, 2), "/g": xr.Dataset({"b": ("time", [1, 2])})})
    to_nczarr(tree, path)
    assert_rejected(path, "/g/b .*not in the dataset", series(2, 4), append_dim="time")


# Regression D54
@pytest.mark.parametrize("start", [1, 0])
def test_repeated_append_is_rejected_without_allow_duplicates(path, start):
    to_nczarr(series(0, 2), path)
    assert_rejected(path, "already", series(start, start + 2), append_dim="time")
    to_nczarr(series(start, start + 2), path, append_dim="time", allow_duplicates=True)
    assert read(path).n.values.tolist() == [0, 1, start, start + 1]


# Regression D54
def test_overlapping_append_is_rejected(path):
    to_nczarr(series(0, 4), path)
    between = series(1, 2)
    between["time"] = between.time + np.timedelta64(1, "h")
    assert_rejected(path, "data starts at .* before the last stored", between, append_dim="time")


def test_out_of_order_append_error_suggests_fix(path):
    to_nczarr(series(2, 4), path)
    message = r"data ends at .*T06:00.*before the first stored value .*T12:00.*xarray\.concat"
    assert_rejected(path, message, series(0, 2), append_dim="time")
    to_nczarr(series(0, 2), path, append_dim="time", allow_duplicates=True)
    assert read(path).n.values.tolist() == [2, 3, 0, 1]


class Recorded(dict):
    """A memory store that records the objects that are fetched, stored and removed."""

    def __init__(self):
        super().__init__()
        self.requests = []

    def __getitem__(self, key):
        self.requests.append(("fetch", key))
        return super().__getitem__(key)

    def __setitem__(self, key, data):
        self.requests.append(("put", key))
        super().__setitem__(key, data)

    def pop(self, key, *default):
        self.requests.append(("remove", key))
        return super().pop(key, *default)


@pytest.mark.parametrize("chunk", [1, 3], ids=["one step per object", "three steps per object"])
@pytest.mark.parametrize(
    "options", [{}, {"zarr_format": 3}, {"dialect": "zarr"}, {"consolidated": False}], ids=str
)
def test_append_cost_is_independent_of_store_length(options, chunk):
    encoding = {"a": {"chunks": (chunk, 4)}, "n": {"chunks": chunk}, "time": {"chunks": chunk}}
    encoding["time"] |= {"units": "hours since 2000-01-01", "dtype": "f8"}
    counts = []
    for length in (10 * chunk, 1000 * chunk):
        store = Recorded()
        to_nczarr(series(0, length), store, encoding=encoding, **options)
        for number in range(length, length + 2 * chunk):
            store.requests.clear()
            to_nczarr(series(number, number + 1), store, append_dim="time")
            counts.append(len(store.requests))
        assert read(store).n.values.tolist() == [*range(length + 2 * chunk)]
    half = len(counts) // 2
    assert counts[:half] == counts[half:]


@pytest.mark.parametrize("start", [0, 500, 990, 999])
def test_appending_repeated_or_earlier_times_to_long_store_is_rejected(path, start):
    to_nczarr(series(0, 1000), path, encoding={"time": {"chunks": 1}})
    again = series(start, start + 1)
    assert_rejected(
        path, "already" if start > 990 else "new data starts at", again, append_dim="time"
    )
    before = again.assign_coords(time=again.time - np.timedelta64(1, "h"))
    message = "new data starts at" if start else "new data ends at"
    assert_rejected(path, message, before, append_dim="time")
    to_nczarr(again, path, append_dim="time", allow_duplicates=True)


def test_duplicates_in_last_chunks_of_unsorted_coordinate_are_rejected(path):
    names = [f"{number * 7 % 100:02}" for number in range(100)]
    stations = xr.Dataset({"v": ("name", np.arange(100))}, {"name": names})
    to_nczarr(stations, path, encoding={"name": {"chunks": 10}})
    assert_rejected(path, "already", stations.isel(name=[20]), append_dim="name")
    to_nczarr(stations.isel(name=[19]), path, append_dim="name")


# Regression D55
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_dask_blocks_are_aligned_with_stored_chunks(path, zarr_format):
    encoding = {"a": {"chunks": (4, 4)}, "n": {"chunks": (4,)}}
    to_nczarr(series(0, 5), path, encoding=encoding, zarr_format=zarr_format)
    to_nczarr(series(5, 13).chunk(time=4), path, append_dim="time")
    xr.testing.assert_identical(read(path), series(0, 13))


def write_element(path, index):
    to_nczarr(
        series(index, index + 1)[["n"]].drop_vars(["x"], errors="ignore"),
        path,
        region={"time": slice(index, index + 1)},
    )


# Regression D56
def test_concurrent_region_writes_to_one_chunk_lose_no_values(path):
    empty = series(0, 12)[["n"]]
    empty["n"] = xr.zeros_like(empty.n)
    to_nczarr(empty, path, encoding={"n": {"chunks": (12,)}})
    run_in_processes(3, write_element, [(path, index) for index in range(12)])
    assert read(path).n.values.tolist() == list(range(12))


class Remote(MemoryStore):
    """A store without locks between processes."""

    remote = True


# Regression D56
def test_partial_chunk_writes_are_rejected_if_store_has_no_locks():
    store = Remote({})
    to_nczarr(series(0, 8), store, encoding={"n": {"chunks": (4,)}, "a": {"chunks": (4, 4)}})
    part = -series(0, 8)[["n"]].isel(time=slice(1, 4)).drop_vars("time")
    with pytest.raises(ConflictError, match="multiples of 4"):
        to_nczarr(part, store, region={"time": slice(1, 4)})
    to_nczarr(part, store, region={"time": slice(1, 4)}, safe_chunks=False)
    assert read(store).n.values.tolist() == [0, -1, -2, -3, 4, 5, 6, 7]


PACKED = {"p": {"dtype": "i2", "scale_factor": 0.1, "_FillValue": -1}}


def packed(*values):
    return xr.Dataset({"p": ("time", np.array(values, "f8"))})


# Regression D57
def test_appended_values_are_packed_with_stored_encoding(path):
    to_nczarr(packed(1.0, 2.5), path, encoding=PACKED)
    finer = packed(3.3, np.nan)
    finer.p.encoding = {"dtype": "i4", "scale_factor": 0.1}
    to_nczarr(finer, path, append_dim="time")
    np.testing.assert_allclose(read(path).p, [1.0, 2.5, 3.3, np.nan])


# Regression D57
@pytest.mark.filterwarnings("ignore:saving variable p with floating point data")
@pytest.mark.parametrize("dask", [False, True])
@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        (PACKED, 1e6),
        ({"p": {"dtype": "i2", "scale_factor": 0.1, "_FillValue": None}}, np.nan),
        ({"p": {"dtype": "i2", "_FillValue": -1}}, 1.5),
        ({"p": {"dtype": "i2", "_FillValue": -1}}, -1.0),
        ({"p": {"dtype": "f4"}}, 1e300),
        (PACKED, np.inf),
        ({"p": {"dtype": "i2", "_FillValue": -1}}, -np.inf),
        ({"p": {"dtype": "i1", "_Unsigned": "true", "_FillValue": -1}}, 256.0),
        ({"p": {"dtype": "i1", "_Unsigned": "true", "_FillValue": -1}}, -2.0),
    ],
)
def test_values_not_representable_in_stored_encoding_are_rejected(path, encoding, value, dask):
    to_nczarr(packed(1.0, 2.0), path, encoding=encoding)
    before = read(path)
    wrong = packed(3.0, value)
    with pytest.raises(ConflictError, match=r"does not fit|do not fit"):
        to_nczarr(wrong.chunk() if dask else wrong, path, append_dim="time")
    xr.testing.assert_identical(read(path), before)


# Regression D57
def test_negative_integer_is_rejected_for_unsigned_variable(path):
    to_nczarr(xr.Dataset({"p": ("time", np.array([1], "u2"))}), path)
    assert_rejected(
        path, "does not fit", xr.Dataset({"p": ("time", [-(2**63)])}), append_dim="time"
    )


# Regression D57
def test_unsigned_key_in_encoding_stores_unsigned_values_as_signed_integers(path):
    encoding = {"p": {"dtype": "i1", "_Unsigned": "true", "_FillValue": -1, "scale_factor": 0.5}}
    to_nczarr(packed(1.0, 100.0), path, encoding=encoding)
    to_nczarr(packed(127.0, np.nan, 64.0, 0.0), path, append_dim="time")
    opened = read(path).p
    np.testing.assert_array_equal(opened, [1.0, 100.0, 127.0, np.nan, 64.0, 0.0])
    assert opened.encoding["dtype"] == "i1"


# Regression D57
def test_nan_can_be_appended_but_number_equal_to_missing_value_attribute_is_rejected(path):
    to_nczarr(packed(1.0, 2.0), path, encoding={"p": {"missing_value": 99.0}})
    assert np.isnan(read(path).p.encoding["_FillValue"])
    to_nczarr(packed(3.0, np.nan), path, append_dim="time")
    np.testing.assert_array_equal(read(path).p, [1.0, 2.0, 3.0, np.nan])
    assert_rejected(path, "does not fit", packed(99.0), append_dim="time")


# Regression D57
@pytest.mark.filterwarnings("ignore:variable 'p' has multiple fill values")
def test_missing_value_outside_stored_dtype_range_is_ignored(path):
    attributes = {"_FillValue": np.int16(-1), "missing_value": 1e20}
    to_nczarr(xr.Dataset({"p": ("time", np.array([1], "i2"), attributes)}), path)
    to_nczarr(packed(3.0, np.nan), path, append_dim="time")
    np.testing.assert_array_equal(read(path).p, [1.0, 3.0, np.nan])


# Regression D57
def test_values_too_precise_for_stored_scale_factor_are_rejected(path):
    to_nczarr(packed(1.0, 2.0), path, encoding=PACKED)
    finer = packed(3.33)
    finer.p.encoding = {"dtype": "i4", "scale_factor": 0.01}
    assert_rejected(path, "does not fit", finer, append_dim="time")


TEXTS = ["ab", "c", "", "é€€", "x", "y" * 300]


# Regression D58
@pytest.mark.filterwarnings("ignore:variable s has data in the form of a dask array")
@pytest.mark.parametrize("dask", [False, True])
@pytest.mark.parametrize("target", ["{}/store", "{}/store.zip", "memory:/{}"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dialect": "universal"},
        {"dialect": "nczarr-4.8.1"},
        {"encoding": {"s": {"chunks": 2, "zlib": True, "fletcher32": True, "_FillValue": "-"}}},
        {"zarr_format": 3, "encoding": {"s": {"_nczarr_maxstrlen": 2}}},
        {"zarr_format": "3-draft", "encoding": {"s": {"_nczarr_maxstrlen": 2}}},
    ],
    ids=str,
)
def test_longer_strings_can_be_appended(tmp_path, options, target, dask):
    path = target.format(tmp_path)
    for number, text in enumerate(TEXTS):
        first = xr.Dataset({"s": ("t", np.array([text], object)), "n": ("t", [number])})
        first = first.chunk(t=1) if dask else first
        to_nczarr(first, path, **({"append_dim": "t"} if number else options))
    opened = read(path, consolidated=False)
    assert opened.s.values.tolist() == TEXTS
    assert opened.n.values.tolist() == [*range(len(TEXTS))]
    assert xr_nczarr.verify(path).whole


# Regression D58
@pytest.mark.parametrize("dialect", ["nczarr", "universal", "nczarr-4.9.1", "nczarr-4.8.1"])
def test_netcdf_c_reads_widened_strings(path, dialect):
    url = f"file://{path}#mode=nczarr,file"
    if dialect == "nczarr":
        with netCDF4.Dataset(url, "w") as file:
            file.createDimension("t", None)
            variable = file.createVariable("s", str, ("t",), chunksizes=(2,))
            variable[:] = np.array(TEXTS[:3], object)
    else:
        first = xr.Dataset({"s": ("t", np.array(TEXTS[:3], object))})
        to_nczarr(first, path, dialect=dialect, unlimited_dims="t")
    for text in TEXTS[3:]:
        to_nczarr(xr.Dataset({"s": ("t", np.array([text], object))}), path, append_dim="t")
    assert read(path).s.values.tolist() == TEXTS
    with netCDF4.Dataset(url) as file:
        assert file["s"][:].tolist() == TEXTS


# Regression D58
def test_longer_strings_can_overwrite_variable_but_not_region(path):
    to_nczarr(xr.Dataset({"s": ("t", np.array(["ab", "c"], object))}), path)
    longer = xr.Dataset({"s": ("t", np.array(["é€€", "d"], object))})
    assert_rejected(path, "8 bytes", longer, region={"t": slice(0, 2)})
    assert_rejected(path, "8 bytes", longer, mode="r+")
    to_nczarr(longer, path, mode="a")
    assert read(path).s.values.tolist() == ["é€€", "d"]


# Regression D58
def test_invalid_append_with_longer_strings_is_rejected_before_any_change(path):
    dataset = xr.Dataset({"s": ("t", np.array(["ab"], object)), "n": ("t", [1])})
    to_nczarr(dataset, path)
    longer = xr.Dataset({"s": ("t", np.array(["abcdef"], object)), "n": ("t", [1.5])})
    assert_rejected(path, "does not fit", longer, append_dim="t")
    assert_rejected(path, "not in the dataset", longer.drop_vars("n"), append_dim="t")


# Regression D58
def test_appending_longer_character_arrays_is_rejected(path):
    to_nczarr(xr.Dataset({"s": ("t", [b"abc", b"d"])}), path)
    assert_rejected(path, "4 bytes", xr.Dataset({"s": ("t", [b"wxyz"])}), append_dim="t")
    to_nczarr(xr.Dataset({"s": ("t", [b"w"])}), path, append_dim="t")
    assert read(path).s.values.tolist() == [b"abc", b"d", b"w"]


def append_one(path, index):
    to_nczarr(series(index, index + 1), path, append_dim="time", allow_duplicates=True)


# Regression D59
def test_concurrent_appends_by_two_processes_are_serialized(path):
    encoding = {"time": {"units": "hours since 2000-01-01"}}
    to_nczarr(series(0, 1), path, unlimited_dims="time", encoding=encoding)
    run_in_processes(2, append_one, [(path, index) for index in range(1, 7)])
    stored = read(path, consolidated="check")
    assert sorted(stored.n.values.tolist()) == list(range(7))
    xr.testing.assert_identical(stored.sortby("time"), series(0, 7))


def append_texts(path, numbers):
    for number in numbers:
        text = xr.Dataset({"s": ("t", np.array(["x" * number], object)), "n": ("t", [number])})
        to_nczarr(text, path, append_dim="t")


# Regression D59
def test_concurrent_appends_of_longer_strings_are_serialized(path):
    append_texts(path, [1])
    run_in_processes(2, append_texts, [(path, range(2, 40, 2)), (path, range(3, 40, 2))])
    stored = read(path, consolidated="check")
    assert sorted(stored.n.values.tolist()) == [*range(1, 40)]
    assert [len(text) for text in stored.s.values] == stored.n.values.tolist()


# Regression D60
@pytest.mark.parametrize("dialect", ["nczarr", "universal", "nczarr-4.9.1", "nczarr-4.8.1"])
def test_appends_preserve_unknown_metadata(path, dialect):
    to_nczarr(series(0, 2), path, dialect=dialect)
    edits = {
        ".zattrs": ("user", "kept"),
        ".zgroup": ("_other", {"kept": 1}),
        "n/.zarray": ("_x", 1),
    }
    for key, (name, value) in edits.items():
        document = json.loads(open_bytes(f"{path}/{key}")) | {name: value}
        open_store(path).put([(key, json.dumps(document).encode())])
    os.unlink(f"{path}/.zmetadata")
    to_nczarr(series(2, 4), path, append_dim="time")
    for key, (name, value) in edits.items():
        assert json.loads(open_bytes(f"{path}/{key}"))[name] == value
    xr.testing.assert_identical(read(path), series(0, 4).assign_attrs(user="kept"))


# Regression D61
def test_mode_a_removes_nothing(path):
    to_nczarr(series(0, 2), path)
    before = files(path)
    url = f"file://{path}#mode=nczarr,file"
    to_nczarr(xr.Dataset({"b": ("y", [1, 2])}), url, mode="a")
    after = files(path)
    changed = {".zattrs", ".zmetadata"}
    assert all(after[key] == data for key, data in before.items() if key not in changed)
    assert read(path).title == "series"
    assert read(url).b.values.tolist() == [1, 2]


@pytest.mark.parametrize("new", [{}, {"units": "days since 2000-01-01"}], ids=["none", "days"])
@pytest.mark.parametrize("stored", [None, "hours since 1990-01-01", "days since 2000-01-01"])
@pytest.mark.parametrize("attributes", [{}, {"bounds": "tb"}], ids=["undeclared", "declared"])
def test_times_in_bounds_added_to_stored_coordinate_are_preserved(path, new, stored, attributes):
    t = series(0, 3, "24h").time.drop_vars("time").rename(time="t")
    coordinate = xr.Dataset(coords={"t": t.assign_attrs(attributes)})
    coordinate.t.encoding = {"units": stored} if stored else {}
    to_nczarr(coordinate, path)
    bounds = xr.concat([t, t + np.timedelta64(24, "h")], "n").T
    added = xr.Dataset({"tb": bounds}, {"t": t.assign_attrs(bounds="tb")})
    added.t.encoding = new
    to_nczarr(added, path, mode="a")
    np.testing.assert_array_equal(read(path).tb, bounds)


def test_bounds_can_be_written_to_region_without_coordinate(path):
    t = series(0, 3, "24h").time.drop_vars("time").rename(time="t")
    bounds = xr.concat([t, t + np.timedelta64(24, "h")], "n").T
    stored = xr.Dataset({"tb": bounds}, {"t": t.assign_attrs(bounds="tb")})
    stored.t.encoding = {"units": "hours since 1990-01-01"}
    to_nczarr(stored, path)
    later = (stored.tb + np.timedelta64(7, "h")).variable
    to_nczarr(xr.Dataset({"tb": later[1:2]}), path, region={"t": slice(1, 2)})
    expected = np.concatenate([stored.tb[:1], later[1:2], stored.tb[2:]])
    np.testing.assert_array_equal(read(path).tb, expected)


def test_inherited_encoding_of_stored_coordinate_is_ignored(path):
    stored = xr.Dataset({"a": ("x", [1.0, 2.0])}, {"c": ("x", [1.5, 2.5])})
    to_nczarr(stored, path)
    changed = stored.rename(a="b").assign_coords(c=("x", [np.nan, 2.5]))
    changed.c.encoding = {"dtype": "i2"}
    to_nczarr(changed, path, mode="a")
    xr.testing.assert_identical(read(path), changed.assign(a=stored.a.variable))


@pytest.mark.parametrize("mode", ["a", "a-", "w", "w-", "r+"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_replacing_variable_with_group_or_vice_versa_is_rejected(path, zarr_format, mode):
    tree = {"/": series(0, 2), "/g": xr.Dataset({"v": ("y", [1, 2])})}
    to_nczarr(xr.DataTree.from_dict(tree), path, zarr_format=zarr_format)
    before = files(path)
    new = xr.Dataset({"g": ("y", [3, 4])})
    for group in ("a", "g/v", "g/v/deeper"):
        with pytest.raises(ConflictError, match=r"/(a|g/v) is a variable"):
            to_nczarr(new, path, mode=mode, group=group)
    below = xr.DataTree.from_dict({"/": xr.Dataset(), "/v": new})
    with pytest.raises(ConflictError, match="/g/v is a variable"):
        to_nczarr(below, path, mode="a", group="g")
    if mode.startswith("a"):
        with pytest.raises(ConflictError, match="/g is a group"):
            to_nczarr(new, path, mode=mode)
    assert files(path) == before


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_consolidated_metadata_of_replaced_group_is_removed(path, zarr_format):
    variable = xr.Dataset({"v": ("y", [1, 2])})
    group = xr.DataTree.from_dict({"/": xr.Dataset(), "/v": variable})
    to_nczarr(series(0, 2), path, zarr_format=zarr_format, consolidated=True)
    for new, place in ((variable, "g"), (group, "g/v"), (variable, "g")):
        to_nczarr(new, path, mode="w", group="g")
        xr.testing.assert_identical(read(path, group=place, consolidated="check"), variable)


@pytest.mark.parametrize(("zarr_format", "document"), [(2, ".zgroup"), (3, "zarr.json")])
def test_mode_a_does_not_overwrite_group_with_unreadable_metadata(path, zarr_format, document):
    tree = {"/": series(0, 2), "/g": xr.Dataset({"v": ("y", [1, 2])}, attrs={"title": "g"})}
    tree = xr.DataTree.from_dict(tree)
    to_nczarr(tree, path, zarr_format=zarr_format, consolidated=False)
    with open(f"{path}/g/{document}", "w") as file:
        file.write('{"zarr_format": ')
    before = files(f"{path}/g")
    new = xr.Dataset({"b": ("y", [3, 4])})
    to_nczarr(new, path, mode="a")
    to_nczarr(new, path, mode="a", group="h")
    assert files(f"{path}/g") == before
    assert read(path).b.values.tolist() == read(path, group="h").b.values.tolist() == [3, 4]
    for group in ("g", "g/inner"):
        with pytest.raises(xr_nczarr.MetadataError, match=f"g/{document}"):
            to_nczarr(new, path, mode="a", group=group)
    assert files(f"{path}/g") == before
    to_nczarr(new, path, mode="w", group="g")
    xr.testing.assert_identical(read(path, group="g"), new)


# Regression D63
@pytest.mark.filterwarnings("ignore:Consolidated metadata is")
def test_append_to_shrunk_array_does_not_restore_old_values(path):
    encoding = {"n": {"chunks": (4,), "_FillValue": -9}}
    to_nczarr(series(0, 6)[["n"]].drop_vars("time"), path, encoding=encoding, dialect="zarr")
    zarr.open_group(path, use_consolidated=False)["n"].resize((1,))
    zarr.consolidate_metadata(path)
    to_nczarr(series(1, 2)[["n"]].drop_vars("time"), path, append_dim="time")
    array = zarr.open_group(path, use_consolidated=False)["n"]
    array.resize((6,))
    assert array[:].tolist() == [0, 1, -9, -9, -9, -9]


NUMBERS = {
    "scale_factor": np.float64(0.012345678901234),
    "pi": np.float64(np.pi),
    "round": np.float64(123456789.0),
    "large": np.float64(1e300),
    "denormal": np.float64(5e-324),
    "nan": np.float64(np.nan),
    "infinities": np.array([np.inf, -np.inf]),
    "float32": np.float32(0.1),
    "int64": np.array([np.iinfo("i8").min, np.iinfo("i8").max]),
    "uint64": np.uint64(np.iinfo("u8").max),
    "int8": np.int8(-128),
}


# Regression D64
def test_numeric_attributes_are_read_exactly_by_xr_nczarr_and_netcdf_c(path):
    import netCDF4

    to_nczarr(xr.Dataset(attrs=NUMBERS), path)
    ours = read(path).attrs
    with netCDF4.Dataset(f"file://{path}#mode=nczarr,file") as dataset:
        theirs = {name: dataset.getncattr(name) for name in dataset.ncattrs()}
    for name, value in NUMBERS.items():
        for result in (ours[name], theirs[name]):
            assert np.asarray(result).dtype == value.dtype, name
            np.testing.assert_array_equal(result, value, name)


# Regression D65
@pytest.mark.parametrize("text", ["x" * 300, "é" * 64 + "x", "x" * 127 + "é", "日本語" * 50])
def test_strings_are_never_truncated(path, text):
    to_nczarr(xr.Dataset({"s": ("t", np.array([text, "a"], object))}), path)
    assert read(path).s.values.tolist() == [text, "a"]


# Regression D65
@pytest.mark.parametrize("width", [127, 5])
def test_requested_string_width_below_actual_width_is_rejected(path, width):
    dataset = xr.Dataset({"s": ("t", np.array(["x" * 127 + "é"], object))})
    with pytest.raises(ConflictError, match="129 bytes"):
        to_nczarr(dataset, path, encoding={"s": {"_nczarr_maxstrlen": width}})
    assert not os.path.exists(path)


# Regression D66
def test_incompressible_chunks_are_stored(path):
    noise = np.frombuffer(np.random.default_rng(0).bytes(64), "u1")
    encoding = {"v": {"compression": "blosc_lz4", "chunksizes": (3,)}}
    to_nczarr(xr.Dataset({"v": ("x", noise)}), path, encoding=encoding)
    np.testing.assert_array_equal(read(path).v, noise)
    np.testing.assert_array_equal(zarr.open_group(path)["v"][:], noise)


# Regression D67
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array(["a", None, "c"], object), ["a", "", "c"]),
        (np.array(["a", np.nan, "c"], object), ["a", "", "c"]),
        (np.array([True, False, True]), [True, False, True]),
    ],
)
def test_values_without_netcdf_type_are_encoded(path, values, expected):
    to_nczarr(xr.Dataset({"v": ("x", values)}), path)
    result = ["" if item is np.nan else item for item in read(path).v.values.tolist()]
    assert result == expected


# Regression D67
@pytest.mark.parametrize(
    "values", [np.ones(3, "f2"), np.ones(3, "c16"), np.ones(3, [("a", "i4")])], ids=str
)
def test_types_missing_from_netcdf_are_rejected_before_first_write(path, values):
    with pytest.raises(UnsupportedError, match="netCDF has no type for"):
        to_nczarr(xr.Dataset({"ok": ("x", [1, 2, 3]), "v": ("x", values)}), path)
    assert not os.path.exists(path)


@pytest.mark.parametrize(
    "values", [pd.array(["a"], dtype="string"), pd.array([1], dtype="Int64"), pd.Categorical(["u"])]
)
@pytest.mark.parametrize("options", [{}, {"append_dim": "x"}, {"region": {"x": slice(0, 1)}}])
def test_pandas_extension_types_are_rejected(path, values, options):
    dataset = xr.Dataset({"v": ("x", values)})
    if isinstance(dataset.v.dtype, np.dtype):
        pytest.skip("this release of xarray converts the values to Python objects")
    to_nczarr(xr.Dataset({"v": ("x", [1])}), path)
    with pytest.raises(UnsupportedError, match=r"pandas dtype.*variable /v.*astype"):
        to_nczarr(dataset, path, **options)


# Regression D67
@pytest.mark.parametrize("kind", ["M8[ns]", "m8[ns]"])
def test_times_are_encoded_lazily(path, kind):
    import dask.array

    computed = []

    def block(values):
        computed.append(values.shape)
        return values.astype(kind)

    values = dask.array.arange(4, chunks=2, dtype="i8").map_blocks(block, dtype=kind)
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


# Regression D68
def test_dataset_from_netcdf_is_written_with_its_encoding(path, tmp_path):
    encoding = {"a": {"zlib": True, "complevel": 3, "chunksizes": (2, 4), "fletcher32": True}}
    series(0, 4).to_netcdf(tmp_path / "a.nc", encoding=encoding, engine="netcdf4")
    with xr.open_dataset(tmp_path / "a.nc", engine="netcdf4") as dataset:
        to_nczarr(dataset, path)
    xr.testing.assert_identical(read(path), series(0, 4))
    document = json.loads(open_bytes(f"{path}/a/.zarray"))
    assert document["chunks"] == [2, 4]
    assert [codec["id"] for codec in document["filters"]] == ["shuffle", "zlib"]
    assert document["compressor"] == {"id": "fletcher32"}


# Regression D68
@pytest.mark.parametrize("source", [2, 3])
@pytest.mark.parametrize("target", [2, 3])
def test_dataset_from_zarr_is_written_with_its_codecs(path, tmp_path, source, target):
    series(0, 4).to_zarr(tmp_path / "z", zarr_format=source, consolidated=False)
    with xr.open_dataset(tmp_path / "z", engine="zarr", consolidated=False) as dataset:
        to_nczarr(dataset, path, zarr_format=target)
    xr.testing.assert_identical(read(path), series(0, 4))
    names = [codec["id"] for codec in read(path).a.encoding["codecs"]]
    assert names == (["zstd"] if source == 3 else names)
    assert names


# Regression D68
def test_unknown_inherited_codecs_are_dropped_with_one_warning(path):
    dataset = series(0, 2)
    for name in ("a", "n"):
        dataset[name].encoding["compressors"] = ({"name": "unheard_of", "configuration": {}},)
    with pytest.warns(UserWarning, match="/a .*; /n ") as record:
        to_nczarr(dataset, path)
    assert len(record) == 1
    xr.testing.assert_identical(read(path), series(0, 2))


# Regression D68
def test_unknown_requested_codecs_are_rejected(path):
    with pytest.raises(UnsupportedError, match="unheard_of"):
        to_nczarr(series(0, 2), path, encoding={"a": {"compressor": {"id": "unheard_of"}}})
    assert not os.path.exists(path)


# Regression D69
def test_overwriting_store_removes_all_old_objects(path):
    to_nczarr(series(0, 9), path, encoding={"a": {"chunks": (1, 1)}, "n": {"chunks": (2,)}})
    to_nczarr(series(0, 2)[["n"]], path, mode="w")
    other = path + "-fresh"
    to_nczarr(series(0, 2)[["n"]], other)
    assert files(path) == files(other)


# Regression D69
def test_overwriting_mapping_removes_all_old_objects():
    store, fresh = {}, {}
    to_nczarr(series(0, 9), store, encoding={"a": {"chunks": (1, 1)}})
    to_nczarr(series(0, 2), store, mode="w")
    to_nczarr(series(0, 2), fresh)
    assert store == fresh


# Regression D70
@pytest.mark.parametrize("chunks", [None, {}, {"time": 4}])
@pytest.mark.parametrize("mode", ["w", "a", "r+"])
def test_overwriting_source_of_lazy_dataset_is_rejected(path, mode, chunks):
    to_nczarr(series(0, 4), path)
    before = files(path)
    with xr.open_dataset(path, engine="nczarr", chunks=chunks) as dataset:
        reversed_ = dataset[["a"]].isel(x=slice(None, None, -1)).drop_vars(["time", "x"])
        changed = reversed_ if chunks is None else reversed_ * 2
        with pytest.raises(RefusedError, match="/a in the store"):
            to_nczarr(changed, path, mode=mode)
    assert files(path) == before


@pytest.mark.parametrize(
    ("names", "options"),
    [
        pytest.param({"a": "b", "b": "a"}, {"mode": "a"}, id="swapped"),
        pytest.param({"a": "b", "b": "a"}, {"mode": "r+"}, id="swapped-values"),
        pytest.param({"a": "b", "b": "a"}, {"region": {"x": slice(0, 4)}}, id="region"),
        pytest.param({"c": "a", "a": "c"}, {"mode": "a"}, id="new-variable"),
        pytest.param({"c": "a"}, {"mode": "w", "group": "g"}, id="replaced-group"),
    ],
)
def test_overwriting_variable_is_rejected_if_another_written_variable_reads_its_old_values(
    path, names, options
):
    stored = xr.Dataset({name: ("x", np.arange(4) * sign) for name, sign in (("a", 1), ("b", -1))})
    group = {"group": options.get("group")}
    to_nczarr(stored, path, **group)
    before = files(path)
    with xr.open_dataset(path, engine="nczarr", chunks={}, **group) as dataset:
        values = {name: ("x", np.zeros(4, int)) for name in names}
        values |= {name: dataset[source] for name, source in names.items() if source in dataset}
        with pytest.raises(RefusedError, match="in the store"):
            to_nczarr(xr.Dataset(values), path, **options)
    assert files(path) == before


def test_swapping_lazy_variables_between_groups_is_rejected(path):
    groups = {
        f"/{name}": xr.Dataset({"v": ("x", np.arange(4) * len(name))}) for name in ("a", "bb")
    }
    to_nczarr(xr.DataTree.from_dict(groups), path)
    with xr.open_datatree(path, engine="nczarr", chunks={}) as tree:
        swapped = xr.DataTree.from_dict({"/a": tree["bb"].ds, "/bb": tree["a"].ds})
        with pytest.raises(RefusedError, match="in the store"):
            to_nczarr(swapped, path, mode="a")


def test_appended_values_can_be_computed_from_other_variables(path):
    stored = xr.Dataset({name: ("x", np.arange(4.0)) for name in ("a", "b")})
    stored["area"] = ("y", np.ones(3))
    to_nczarr(stored, path, unlimited_dims=["x"])
    with xr.open_dataset(path, engine="nczarr", chunks={}) as dataset:
        added = xr.Dataset({"a": ("x", np.ones(4)), "b": dataset.a + 1, "area": dataset.area})
        to_nczarr(added, path, append_dim="x")
    np.testing.assert_array_equal(read(path).b, [0, 1, 2, 3, 1, 2, 3, 4])


# Regression D70
def test_new_variables_can_be_computed_from_stored_variables(path):
    to_nczarr(series(0, 4), path)
    with xr.open_dataset(path, engine="nczarr", chunks={}) as dataset:
        to_nczarr(xr.Dataset({"twice": dataset.a * 2}).drop_vars(["time", "x"]), path, mode="a")
    np.testing.assert_array_equal(read(path).twice, series(0, 4).a * 2)


def mapped():
    """Return a dataset with lazily opened coordinates of several encodings."""
    coordinates = {
        "lat": (("y", "x"), np.arange(8.0).reshape(2, 4)),
        "packed": ("y", [0.5, np.nan], {}, {"dtype": "i2", "scale_factor": 0.5, "_FillValue": -1}),
        "name": ("y", np.array(["one", "three"])),
        "day": ("y", np.array(["2000-01-01", "2000-01-03"], "M8[ns]")),
        "level": 2.0,
    }
    return xr.Dataset({"a": (("y", "x"), np.ones((2, 4)))}, coordinates)


@pytest.mark.parametrize("mode", ["a", "a-"])
@pytest.mark.parametrize("chunks", [None, {}, {"x": -1}], ids=str)
def test_new_variables_can_be_added_together_with_coordinates_of_opened_dataset(path, chunks, mode):
    to_nczarr(mapped(), path)
    before = files(path)
    with xr.open_dataset(path, engine="nczarr", chunks=chunks) as dataset:
        added = dataset.assign(b=dataset.a + 1, c=dataset.lat * 2)
        to_nczarr(added[["b", "c"]], path, mode=mode)
    xr.testing.assert_identical(read(path), mapped().assign(b=mapped().a + 1, c=mapped().lat * 2))
    chunk = re.compile(r"(a|lat|packed|name|day|level)/[0-9.]+")
    assert all(files(path)[key] == before[key] for key in filter(chunk.fullmatch, before))


@pytest.mark.parametrize("mode", ["a", "r+"])
@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
def test_writing_opened_dataset_back_leaves_store_unchanged(path, chunks, mode):
    to_nczarr(mapped(), path)
    before = files(path)
    with xr.open_dataset(path, engine="nczarr", chunks=chunks) as dataset:
        to_nczarr(dataset, path, mode=mode)
    assert files(path) == before


@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
def test_writing_lazy_variable_back_to_memory_store_at_same_url_is_rejected(chunks):
    # Another endpoint can have another store at the same URL.
    url = "memory://same-url/store.nczarr"
    to_nczarr(mapped(), url, mode="w")
    dataset = xr.open_dataset(url, engine="nczarr", chunks=chunks)
    with pytest.raises(RefusedError, match=r"reads its values from .*\.load\(\)"):
        to_nczarr(dataset, url, mode="a")


@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(lambda lat: lat[::-1], id="reversed"),
        pytest.param(lambda lat: lat.transpose("x", "y"), id="transposed"),
        pytest.param(lambda lat: lat[[1, 0]], id="positions"),
        pytest.param(lambda lat: lat.chunk(y=1) * 2, id="computed"),
    ],
)
def test_overwriting_coordinate_with_values_computed_from_it_is_rejected(path, chunks, changed):
    to_nczarr(mapped(), path)
    before = files(path)
    with xr.open_dataset(path, engine="nczarr", chunks=chunks) as dataset:
        lat = changed(dataset.lat.variable)
        added = xr.Dataset({"b": ("z", [1, 2])}, {"lat": lat})
        with pytest.raises(RefusedError, match="reads its values from /lat"):
            to_nczarr(added, path, mode="a")
    assert files(path) == before


def write_text(path, start):
    texts = da.from_array(np.array(["one", "two", "three", "four"], object), chunks=2)
    region = {"x": slice(start, start + 4)}
    to_nczarr(xr.Dataset({"s": ("x", texts)}), path, region=region)


@pytest.mark.filterwarnings("ignore:variable s has data in the form of a dask array")
def test_threads_that_write_text_do_not_turn_warnings_of_others_into_errors(path):
    text = np.full(400, "later")
    stored = xr.Dataset({"s": ("x", text, {}, {"dtype": str, "chunks": (4,)})})
    to_nczarr(stored, path, dialect="zarr")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write_text, [path] * 100, range(0, 400, 4)))
    assert read(path).s.values.tolist() == ["one", "two", "three", "four"] * 100


def test_shards_of_characters_need_not_contain_dimension_of_characters(path):
    stored = xr.Dataset({"s": ("x", np.array([b"one", b"three", b"two"]))})
    encoding = {"s": {"chunks": (1,), "shards": (2,)}}
    to_nczarr(stored, path, encoding=encoding, zarr_format=3, dialect="nczarr")
    assert read(path).s.values.tolist() == stored.s.values.tolist()
    assert read(path).s.encoding["shards"] == (2, 5)


ONES = da.ones(24, chunks=1)


def added(block, other):
    return block + other[: len(block)].values


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(
            lambda values, _: dask.optimize(da.concatenate([ONES[4:], values[3::-1]]))[0],
            id="optimized",
        ),
        pytest.param(lambda _, lazy: ONES.map_blocks(added, other=lazy), id="keyword"),
        pytest.param(lambda _, lazy: da.from_array(lazy, chunks=2)[::-1], id="data array"),
        pytest.param(
            lambda _, lazy: da.from_delayed(dask.delayed(np.flip)(lazy), (24,), "f8"), id="delayed"
        ),
    ],
)
def test_overwriting_source_of_dask_graph_is_rejected(path, changed):
    stored = xr.Dataset({"a": ("x", np.arange(24.0))})
    to_nczarr(stored, path, encoding={"a": {"chunks": (2,)}})
    values = xr.open_dataset(path, engine="nczarr", chunks={}).a.data
    lazy = xr.open_dataset(path, engine="nczarr", cache=False).a
    with pytest.raises(RefusedError, match="reads its values from /a"):
        to_nczarr(xr.Dataset({"a": ("x", changed(values, lazy))}), path, mode="a")
    xr.testing.assert_equal(read(path), stored)


def test_overwriting_source_of_lazily_decoded_values_is_rejected(path):
    to_nczarr(mapped(), path)
    with xr.open_dataset(path, engine="nczarr", decode_cf=False) as dataset:
        dataset.day.attrs["units"] = "hours since 1990-01-01"
        with pytest.raises(RefusedError, match="reads its values from /day"):
            to_nczarr(xr.decode_cf(dataset[["day"]]), path, mode="a")


def test_to_nczarr_is_exported_by_package():
    assert xr_nczarr.to_nczarr is to_nczarr


@pytest.mark.parametrize("name", ["", "..", "a/b", "a\0"])
def test_invalid_name_error_suggests_renaming(name):
    with pytest.raises(ConflictError, match="Choose another name"):
        to_nczarr(xr.Dataset({name: 1}), {})


# Regression D57
def test_error_for_rejected_block_explains_how_to_finish_write(path):
    to_nczarr(packed(1.0, 2.0, 3.0, 4.0), path, encoding={"p": {**PACKED["p"], "chunks": (1,)}})
    wrong = packed(5.0, 6.0, 1e6, 8.0).chunk(time=1)
    with pytest.raises(ConflictError, match="fix the problem and run the write again") as caught:
        to_nczarr(wrong, path, mode="r+")
    assert caught.value.variable == "/p"
    with pytest.raises(ConflictError, match="does not fit") as caught:
        to_nczarr(-wrong, path, mode="r+", atomic=True)
    assert "The store is either unchanged" in str(caught.value)
    assert not (read(path).p < 0).any()
    to_nczarr(packed(5.0, 6.0, 7.0, 8.0).chunk(time=1), path, mode="r+")
    np.testing.assert_allclose(read(path).p, [5.0, 6.0, 7.0, 8.0])


# Regression D68
@pytest.mark.parametrize("engine", ["nczarr", "kerchunk"])
def test_kerchunk_dataset_is_written_with_its_codecs(path, tmp_path, engine):
    from kerchunk.hdf import SingleHdf5ToZarr

    source = str(tmp_path / "a.nc")
    encoding = {"a": {"zlib": True, "shuffle": True, "chunksizes": (2, 4)}}
    series(0, 4).to_netcdf(source, encoding=encoding, engine="h5netcdf")
    with open(tmp_path / "references.json", "w") as file:
        json.dump(SingleHdf5ToZarr(source, inline_threshold=0).translate(), file)
    with xr.open_dataset(str(tmp_path / "references.json"), engine=engine) as dataset:
        to_nczarr(dataset, path)
    xr.testing.assert_equal(read(path), series(0, 4))
    opened = read(path).a.encoding
    assert [codec["id"] for codec in opened["codecs"]] == ["shuffle", "zlib"]
    assert opened["chunksizes"] == (2, 4)


@pytest.mark.parametrize("release", ["4.8.0", "4.8.1"])
def test_stores_from_oldest_netcdf_c_releases_can_be_appended_to(tmp_path, release):
    from tests.stores import Group, Var, write_vintage

    def field(start, stop):
        return {"f": ("time", np.arange(start, stop)), "time": ("time", np.arange(start, stop))}

    variables = {name: Var(("/time",), *rest) for name, (_, *rest) in field(0, 3).items()}
    path = str(write_vintage(tmp_path / "old", Group({"time": 3}, variables), release))
    before = read(path)
    to_nczarr(xr.Dataset(field(3, 5)), path, append_dim="time")
    after = xr.Dataset(field(0, 5), attrs=before.attrs)
    xr.testing.assert_identical(read(path), after)
    if release == "4.8.0":
        with pytest.raises(UnsupportedError, match=r"cannot add .*4\.8\.0.*\.upgrade"):
            to_nczarr(xr.Dataset({"k": 1}), path, mode="a")
        xr.testing.assert_identical(read(path), after)


def test_url_fragment_can_request_consolidated_metadata(path):
    to_nczarr(series(0, 2), f"file://{path}#mode=nczarr,file&consolidated", zarr_format=3)
    xr.testing.assert_identical(read(path, consolidated=True), series(0, 2))


@pytest.mark.parametrize(
    ("values", "dialects"), [([b"ab\0", b"c"], ["nczarr", "zarr"]), (["ab\0", "c"], ["nczarr"])]
)
def test_strings_with_trailing_nul_are_rejected(values, dialects):
    dataset = xr.Dataset({"v": ("x", np.array(values, object))})
    for dialect in dialects:
        store = {}
        with pytest.raises(ConflictError, match="NUL"):
            to_nczarr(dataset, store, dialect=dialect)
        assert store == {}


@pytest.mark.parametrize(("zarr_format", "dialect"), [(2, "zarr"), (3, "zarr"), (2, "nczarr")])
@pytest.mark.parametrize("chunks", [None, {}])
def test_scalars_in_non_native_byte_order_can_be_rewritten_and_copied(zarr_format, dialect, chunks):
    first, second, third = {}, {}, {}
    dataset = xr.Dataset({"v": np.int16(5), "w": 0.5})
    encoding = {name: {"endian": "big"} for name in dataset}
    to_nczarr(dataset, first, zarr_format=zarr_format, dialect=dialect, encoding=encoding)
    opened = read(first, chunks=chunks)
    to_nczarr(opened, second, zarr_format=zarr_format, dialect=dialect)
    xr_nczarr.copy(first, third, dialect="zarr")
    xr.testing.assert_identical(read(second), dataset)
    xr.testing.assert_identical(read(third), dataset)


@pytest.mark.filterwarnings("ignore:Duplicate dimension names:UserWarning")
@pytest.mark.parametrize("size", [3, 400])
def test_arrays_with_repeated_dimension_can_be_written_and_copied(size):
    first, second, third = {}, {}, {}
    values = np.arange(size * size, dtype="f8").reshape(size, size)
    encoding = {"v": {"chunks": (size // 3, size // 2)}}
    to_nczarr(xr.Dataset({"v": (("x", "x"), values)}), first, encoding=encoding)
    to_nczarr(read(first), second)
    xr_nczarr.copy(first, third, chunks={"x": 100})
    for store in (second, third):
        assert read(store).v.dims == ("x", "x")
        np.testing.assert_array_equal(read(store).v.values, values)


@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
def test_group_does_not_inherit_root_dimension_that_its_parent_redefines(path, dialect):
    for group, size in (("/", 2), ("a", 3), ("a/b", 2)):
        to_nczarr(xr.Dataset({"v": ("x", [0] * size)}), path, group=group, dialect=dialect)
    opened = xr.open_groups(path, engine="nczarr")
    assert opened["/a/b"].sizes == read(path, group="a/b").sizes == {"x": 2}


def test_month_units_are_rejected_for_times(path):
    months = {"units": "months since 2000-01-01", "calendar": "360_day"}
    dataset = xr.decode_cf(xr.Dataset(coords={"t": ("t", [0, 1], months)}))
    with pytest.raises(ConflictError, match=r"times cannot be written in months .variable t"):
        xr_nczarr.to_nczarr(dataset, path)
    days = {"t": {"units": "days since 2000-01-01"}}
    xr_nczarr.to_nczarr(dataset, path, encoding=days)
    xr.testing.assert_equal(xr.open_dataset(path, engine="nczarr"), dataset)


def _undeclared_nested(path, values, **encoding):
    """Write a v2 store with nested chunks of 2 x 4, as zarr-python before 2.8 wrote them."""
    keys = {"name": "v2", "separator": "/"}
    encoding |= {"chunks": (2, 4), "chunk_key_encoding": keys}
    dataset = xr.Dataset({"v": (("t", "x"), values)})
    dataset.to_zarr(path, zarr_format=2, encoding={"v": encoding}, consolidated=False)
    document = json.loads((path / "v/.zarray").read_text())
    assert document.pop("dimension_separator") == "/"
    (path / "v/.zarray").write_text(json.dumps(document))


# A chunk written with the separator "." hid all old chunks.
@pytest.mark.parametrize("first", [0, 8], ids=["complete", "without first and last chunk"])
@pytest.mark.parametrize("change", ["append", "region"])
def test_writing_to_array_with_undeclared_nested_keys_keeps_stored_values(tmp_path, first, change):
    values = np.where(np.arange(40) < first, np.nan, np.arange(40.0)).reshape(10, 4)
    values[8:] = np.nan if first else values[8:]
    _undeclared_nested(tmp_path / "s", values)
    new = xr.Dataset({"v": (("t", "x"), np.full((1, 4), 7.0))})
    if change == "append":
        to_nczarr(new, tmp_path / "s", append_dim="t")
        expected = np.concatenate([values, np.full((1, 4), 7.0)])
    else:
        to_nczarr(new, tmp_path / "s", region={"t": slice(4, 5)})
        expected = values.copy()
        expected[4] = 7
    np.testing.assert_array_equal(read(tmp_path / "s").v.values, expected)


# Whether a chunk was found depended on the other chunks that were read with it; a copy lost chunks.
@pytest.mark.parametrize("encoding", [{}, {"compressors": None}], ids=["compressed", "raw"])
def test_chunks_with_both_separators_are_read_written_and_copied(tmp_path, encoding):
    path = tmp_path / "s"
    values = np.arange(40.0).reshape(10, 4)
    _undeclared_nested(path, values, **encoding)
    (path / "v/4/0").rename(path / "v/4.0")
    (path / "v/2/0").rename(path / "v/2.0")
    (path / "v/1/0").unlink()
    values[2:4] = np.nan

    def check(expected):
        for store in (path, tmp_path / "copy"):
            opened = read(store).v
            np.testing.assert_array_equal(opened.values, expected)
            for step in range(1, 10):
                np.testing.assert_array_equal(opened[::step, 1:3].values, expected[::step, 1:3])

    xr_nczarr.copy(path, tmp_path / "copy")
    check(values)
    # The key of the chunk with row 0 has a slash, and that of the chunk with row 4 has a dot.
    for row in (0, 4):
        for value in (7.0, np.nan):
            for count in (1, 2):  # a part of a chunk, then the whole chunk
                new = xr.Dataset({"v": (("t", "x"), np.full((count, 4), value))})
                to_nczarr(new, path, region={"t": slice(row, row + count)})
                to_nczarr(new, tmp_path / "copy", region={"t": slice(row, row + count)})
                values[row : row + count] = value
                check(values)


# Names were ignored, and objects under `codecs` raised a TypeError.
@pytest.mark.parametrize("key", ["compressors", "compressor", "codecs"])
@pytest.mark.parametrize(
    "codec",
    [Zlib(1), {"id": "zlib", "level": 1}, "zlib", [Zlib(1)]],
    ids=["object", "mapping", "name", "list"],
)
def test_codecs_can_be_requested_as_objects_mappings_or_names(key, codec):
    store = {}
    to_nczarr(xr.Dataset({"v": ("x", [1.5, 2.5])}), store, encoding={"v": {key: codec}})
    assert json.loads(store["v/.zarray"])["compressor"]["id"] == "zlib"
    assert read(store).v.values.tolist() == [1.5, 2.5]


# Copying raised a ChunkError.
@pytest.mark.parametrize("target", [{"dialect": "zarr"}, {"zarr_format": 3}, {}], ids=str)
@pytest.mark.parametrize("codec", [JSON(), MsgPack()], ids=["json", "msgpack"])
def test_text_in_json_and_msgpack_chunks_is_copied(target, codec):
    array = {"zarr_format": 2, "shape": [3], "chunks": [2], "dtype": "|O", "fill_value": ""}
    array |= {"order": "C", "filters": [codec.get_config()], "compressor": None}
    texts = np.array(["a", "bb", "ccc", ""], object)
    store = {
        ".zgroup": b'{"zarr_format": 2}',
        "v/.zarray": json.dumps(array).encode(),
        "v/.zattrs": b'{"_ARRAY_DIMENSIONS": ["x"]}',
        "v/0": bytes(codec.encode(texts[:2])),
        "v/1": bytes(codec.encode(texts[2:])),
    }
    copied = {}
    xr_nczarr.copy(store, copied, **target)
    assert read(copied).v.values.tolist() == ["a", "bb", "ccc"]


@pytest.mark.parametrize("dialect", ["nczarr", "universal"])
def test_netcdf_c_reads_big_endian_chunks_that_contain_only_fill_values(path, dialect):
    values = np.array([np.nan, np.nan, 1, 2], ">f4")
    encoding = {"t": {"dtype": ">f4", "chunksizes": (2,), "_FillValue": np.float32(5)}}
    to_nczarr(xr.Dataset({"t": ("x", values)}), path, encoding=encoding, dialect=dialect)
    with netCDF4.Dataset(f"file://{path}#mode=nczarr,file") as stored:
        stored.set_auto_mask(False)
        assert stored["t"].endian() == "big"
        assert stored["t"][:].tolist() == [5, 5, 1, 2]


# A copy of big-endian numbers decoded and encoded every chunk.
@pytest.mark.parametrize("dtype", [">f4", ">i2"])
def test_big_endian_chunks_are_copied_unchanged_and_missing_ones_are_added(tmp_path, dtype):
    source, target = tmp_path / "source", tmp_path / "target"
    values = np.arange(35).reshape(5, 7).astype(dtype)
    encoding = {"t": {"dtype": dtype, "chunksizes": (2, 3), "zlib": True, "_FillValue": 9}}
    to_nczarr(xr.Dataset({"t": (("y", "x"), values)}), source, encoding=encoding)
    for chunk in ("0.1", "2.2"):
        (source / "t" / chunk).unlink()
    values[:2, 3:6] = values[4:, 6:] = 9
    copied = xr_nczarr.copy(source, target)
    assert (copied.unchanged, copied.objects) == (["/t"], 7)
    with netCDF4.Dataset(f"file://{target}#mode=nczarr,file") as stored:
        stored.set_auto_mask(False)
        np.testing.assert_array_equal(stored["t"][:], values)


# Zarr v3 was given one character per byte for items of type bytes, and the write failed.
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", [object, "S3"])
def test_bytes_are_stored_as_text_if_encoding_requests_str(zarr_format, dtype):
    def write(items):
        dataset, store = xr.Dataset({"v": ("x", np.array(items, dtype))}), {}
        to_nczarr(dataset, store, zarr_format=zarr_format, encoding={"v": {"dtype": str}})
        return read(store).v.values.tolist()

    assert write([b"", b"abc", "é".encode()]) == ["", "abc", "é"]
    with pytest.raises(ConflictError, match="the bytes are not valid UTF-8"):
        write([b"a", b"\xff"])


# zarr-python could not read the shuffled chunks.
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    "encoding", [{"zlib": True}, {"compression": "zstd", "shuffle": True}], ids=["zlib", "zstd"]
)
def test_compressed_text_of_variable_length_is_not_shuffled(tmp_path, zarr_format, encoding):
    dataset = xr.Dataset({"v": ("x", np.array(["a", "bcd"], object))})
    options = {"zarr_format": zarr_format, "dialect": "zarr", "encoding": {"v": encoding}}
    to_nczarr(dataset, tmp_path / "s", **options)
    with xr.open_dataset(tmp_path / "s", engine="zarr", consolidated=False) as opened:
        assert opened.v.values.tolist() == ["a", "bcd"]


def _numpy_times(path, name, values):
    """Write times to plain Zarr as NumPy times, without CF encoding."""
    group = zarr.open_group(path, mode="w", zarr_format=3)
    array = group.create_array(name, shape=(2,), dtype=values.dtype, dimension_names=["t"])
    array[:] = values


# Timedeltas were stored in a wrong unit, and datetimes were rejected.
@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("kind", ["M", "m"])
def test_times_appended_to_numpy_times_keep_their_values(path, kind, in_blocks):
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
def test_times_appended_to_numpy_coordinate_are_compared(path, kind):
    _numpy_times(path, "t", np.array([3600, 7200], f"{kind}8[s]"))
    for hour in (1, 0, -5):
        new = xr.Dataset(coords={"t": np.array([hour * 3600], f"{kind}8[s]")})
        assert_rejected(path, "coordinate t", new, append_dim="t")
    new = xr.Dataset(coords={"t": np.array([10800 * 10**9], f"{kind}8[ns]")})
    to_nczarr(new, path, append_dim="t")
    assert read(path).t.values.astype("i8").tolist() == [3600, 7200, 10800]


# The number of units was stored as if it were the number of nanoseconds, as in to_zarr.
@pytest.mark.parametrize("dtype", ["datetime64[ns]", "timedelta64[ns]"])
def test_times_that_do_not_fit_requested_time_dtype_are_rejected(path, dtype):
    values = np.array([0, 86400], dtype.replace("ns", "s"))
    encoding = {"v": {"dtype": dtype}}
    with pytest.raises(ConflictError, match="does not fit the encoding"):
        to_nczarr(xr.Dataset({"v": ("x", values)}), path, dialect="zarr", encoding=encoding)
    assert files(path) == {}


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


def test_missing_times_are_written_if_the_encoding_has_no_calendar():
    dataset, store = xr.Dataset({"v": ("x", np.array(["2000-01-01", "NaT"], "M8[ns]"))}), {}
    to_nczarr(dataset, store, encoding={"v": {"calendar": None}})
    xr.testing.assert_identical(read(store), dataset)


# The empty folders of removed chunks remained, so chunks with the same names could not be written.
def test_array_with_fewer_dimensions_replaces_array_where_empty_folders_remain():
    for dims in (("x", "y", "z"), ("x",), (), ("x", "y")):
        dataset = xr.Dataset({"v": (dims, np.ones((2,) * len(dims)))})
        to_nczarr(dataset, "memory://empty-folders", mode="w", zarr_format=3)
        assert read("memory://empty-folders").identical(dataset)


# The texts were written as if each of them were one of the stored characters.
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_text_is_added_to_arrays_of_characters_in_plain_zarr(path, zarr_format):
    def texts(*items):
        return xr.Dataset({"v": ("x", np.array(items))})

    options = {"zarr_format": zarr_format, "encoding": {"v": {"dtype": "S1"}}}
    texts(b"ab", b"c").to_zarr(path, consolidated=False, **options)
    to_nczarr(texts(b"d", b"ef"), path, append_dim="x")
    to_nczarr(texts(b"g"), path, region={"x": slice(1, 2)})
    assert_rejected(path, "'hij' does not fit", texts(b"hij"), append_dim="x")
    for engine in ("zarr", "nczarr"):
        with xr.open_dataset(path, engine=engine, consolidated=False) as opened:
            assert opened.v.values.tolist() == [b"ab", b"g", b"d", b"ef"]


# Listings of local stores omitted the variable or group, as if it were a temporary file.
@pytest.mark.parametrize("name", [".v.tmp", ".v.lock", ".v.staging"])
@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
def test_names_of_temporary_files_are_rejected_in_local_stores(path, name, dialect):
    dataset = xr.Dataset({name: ("x", [1.0])})
    with pytest.raises(RefusedError, match=r"reserved for temporary files.*Rename the variable"):
        to_nczarr(dataset, path, dialect=dialect)
    to_nczarr(xr.Dataset(), path, dialect=dialect)
    with pytest.raises(RefusedError, match="reserved for temporary files"):
        to_nczarr(dataset.rename({name: "v"}), path, mode="a", group=name)
    store = {}
    to_nczarr(dataset, store, dialect=dialect)
    assert read(store).identical(dataset)


# The group was not found, and a new group with its name replaced it.
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_group_below_folder_without_document_is_read_and_not_replaced(tmp_path, zarr_format):
    dataset = xr.Dataset({"v": ("x", [1.5, 2.5])})
    options = {"zarr_format": zarr_format, "consolidated": False}
    dataset.to_zarr(tmp_path, group="a/b", **options)
    (tmp_path / ("a/.zgroup" if zarr_format == 2 else "a/zarr.json")).unlink()
    (tmp_path / "a/.zattrs").unlink(missing_ok=True)
    for mode in ("w-", "w", "a"):
        with pytest.raises(ExistsError, match="a group above it has no metadata document"):
            to_nczarr(dataset + 1, tmp_path, group="a/b", mode=mode)
    with pytest.raises(ExistsError, match="the group '/a/b' exists"):
        to_nczarr(dataset, tmp_path, group="a/b/c", mode="a")
    for store in (str(tmp_path), f"file://{tmp_path}"):
        opened = xr.open_dataset(store, group="a/b", engine="nczarr")
        xr.testing.assert_identical(opened.load(), dataset)


# The values beyond the end of the array were written, but read as fill values.
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_values_beyond_array_shorter_than_its_dimension_are_rejected_or_extend_it(zarr_format):
    old, new, store = np.arange(6.0), np.arange(10.0, 16.0), {}
    dataset = xr.Dataset({"v": ("t", old)})
    to_nczarr(dataset, store, zarr_format=zarr_format, unlimited_dims=["t"], consolidated=False)
    key = {2: "v/.zarray", 3: "v/zarr.json"}[zarr_format]
    store[key] = json.dumps({**json.loads(store[key]), "shape": [4]}).encode()
    region = {"t": slice(2, 4)}
    to_nczarr(xr.Dataset({"v": ("t", new[region["t"]])}), store, region=region)
    values = [0, 1, 12, 13, np.nan, np.nan]
    np.testing.assert_array_equal(read(store).v, values)
    before = dict(store)
    for piece in (slice(3, 5), slice(4, 6), slice(0, 6)):
        with pytest.raises(ConflictError, match="beyond the end of the array"):
            to_nczarr(xr.Dataset({"v": ("t", new[piece])}), store, region={"t": piece})
    with pytest.raises(ConflictError, match="beyond the end of the array"):
        to_nczarr(xr.Dataset({"v": ("t", new)}), store, mode="r+")
    assert store == before
    to_nczarr(xr.Dataset({"v": ("t", new)}), store, mode="a")
    np.testing.assert_array_equal(read(store).v, new)
    assert json.loads(store[key])["shape"] == [6]


# An append made old values beyond the end of the array part of it.
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("is_clean", [True, False], ids=["fill values", "old values"])
def test_append_to_array_shorter_than_its_dimension_keeps_fill_values(zarr_format, is_clean):
    values = np.arange(12.0).reshape(6, 2)
    if is_clean:
        values[3:] = np.nan
    dataset, store = xr.Dataset({"v": (("t", "x"), values)}), {}
    options = {"zarr_format": zarr_format, "unlimited_dims": "t", "consolidated": False}
    to_nczarr(dataset, store, encoding={"v": {"chunks": (2, 2)}}, **options)
    key = {2: "v/.zarray", 3: "v/zarr.json"}[zarr_format]
    store[key] = json.dumps({**json.loads(store[key]), "shape": [3, 2]}).encode()
    before, new = store.copy(), dataset.isel(t=slice(2))
    if not is_clean:
        with pytest.raises(ConflictError, match=r"beyond the end of the array.*\(3, 2\)"):
            to_nczarr(new, store, append_dim="t")
        assert store == before
        return
    to_nczarr(new, store, append_dim="t")
    np.testing.assert_array_equal(read(store).v, np.concatenate([values, new.v]))


# The copy was complete, but could not be read.
def test_filters_of_big_endian_numbers_are_not_written_to_v3():
    source, target, values = {}, {}, np.array([1, 2, 4, 8], ">f8")
    options = {"dialect": "zarr", "encoding": {"v": {"dtype": ">f8", "filters": [Delta(">f8")]}}}
    to_nczarr(xr.Dataset({"v": ("x", values)}), source, zarr_format=2, **options)
    with pytest.raises(UnsupportedError, match="codec delta for big-endian numbers"):
        to_nczarr(xr.Dataset({"v": ("x", values)}), {}, zarr_format=3, **options)
    with pytest.warns(UserWarning, match="codecs inherited from the source were dropped"):
        xr_nczarr.copy(source, target, zarr_format=3, dialect="zarr")
    assert read(target).v.values.tolist() == values.tolist()
