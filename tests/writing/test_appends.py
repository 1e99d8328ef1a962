"""Appends extend all variables by new steps, or are rejected without a change."""

import json
import os
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr

import xr_nczarr
from tests.reading import open_store, read
from tests.stores import Group, Var, write_vintage
from tests.writes import assert_rejected, series
from xr_nczarr import UnsupportedError, to_nczarr


# Regression D52
def test_error_for_coordinate_mismatch_includes_first_difference(path):
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
def test_repeated_append_is_rejected_unless_duplicates_are_allowed(path, start):
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


def test_error_for_out_of_order_append_suggests_fix(path):
    to_nczarr(series(2, 4), path)
    message = r"data ends at .*T06:00.*before the first stored value .*T12:00.*xarray\.concat"
    assert_rejected(path, message, series(0, 2), append_dim="time")
    to_nczarr(series(0, 2), path, append_dim="time", allow_duplicates=True)
    assert read(path).n.values.tolist() == [2, 3, 0, 1]


class Recorded(dict):
    """A dict that records which keys are fetched, stored and removed."""

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
def test_repeated_or_earlier_times_are_rejected_in_long_series(path, start):
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
def test_appended_dask_blocks_are_aligned_with_stored_chunks(path, zarr_format):
    encoding = {"a": {"chunks": (4, 4)}, "n": {"chunks": (4,)}}
    to_nczarr(series(0, 5), path, encoding=encoding, zarr_format=zarr_format)
    to_nczarr(series(5, 13).chunk(time=4), path, append_dim="time")
    xr.testing.assert_identical(read(path), series(0, 13))


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
        document = json.loads(Path(f"{path}/{key}").read_bytes()) | {name: value}
        open_store(path).put([(key, json.dumps(document).encode())])
    os.unlink(f"{path}/.zmetadata")
    to_nczarr(series(2, 4), path, append_dim="time")
    for key, (name, value) in edits.items():
        assert json.loads(Path(f"{path}/{key}").read_bytes())[name] == value
    xr.testing.assert_identical(read(path), series(0, 4).assign_attrs(user="kept"))


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


@pytest.mark.parametrize("release", ["4.8.0", "4.8.1"])
def test_stores_from_oldest_netcdf_c_releases_can_be_appended_to(tmp_path, release):
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


@pytest.fixture
def netcdf_file(tmp_path):
    """Write a netCDF file with times, bounds, characters and strings.

    NumPy does not support the calendar of the times.
    """
    file_path = tmp_path / "source.nc"
    with netCDF4.Dataset(file_path, "w") as file:
        for name, size in {"time": None, "bounds": 2, "length": 5}.items():
            file.createDimension(name, size)
        time = file.createVariable("time", "f8", ("time",))
        time.setncatts(
            {"units": "days since 2000-01-01", "calendar": "noleap", "bounds": "time_bounds"}
        )
        time[:] = [58, 59, 60]
        file.createVariable("time_bounds", "f8", ("time", "bounds"))[:] = [[57, 58]] * 3
        characters = file.createVariable("characters", "S1", ("time", "length"))
        characters._Encoding = "utf-8"
        characters[:] = np.array(["a", "bcdef", "ü"], "U5")
        file.createVariable("text", str, ("time",))[:] = np.array(["a", "long text", ""], object)
    return file_path


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf", "nczarr"])
@pytest.mark.parametrize(
    "layout", [{}, {"zarr_format": 3}, {"dialect": "zarr"}, {"dialect": "zarr", "zarr_format": 3}]
)
def test_store_written_from_empty_selection_can_be_appended_to(path, netcdf_file, engine, layout):
    if engine == "nczarr":
        store = netcdf_file.with_suffix(".nczarr")
        xr_nczarr.copy(netcdf_file, store)
        netcdf_file = store
    with xr.open_dataset(netcdf_file, engine=engine) as source:
        source = source.load()
    to_nczarr(source.isel(time=[]), path, **layout)
    empty = xr.open_dataset(path, engine="nczarr")
    assert empty.time.encoding["calendar"] == "noleap"
    assert empty.characters.dtype == empty.text.dtype == object
    to_nczarr(source, path, append_dim="time")
    xr.testing.assert_equal(xr.open_dataset(path, engine="nczarr").load(), source)


@pytest.mark.parametrize("region", [{"x": slice(1, 3)}, {"x": "auto"}], ids=str)
def test_append_with_region_is_rejected(path, region):
    values = np.arange(8.0).reshape(2, 4)
    stored = xr.Dataset({"v": (("time", "x"), values)}, {"time": [0, 1], "x": [10, 20, 30, 40]})
    new = xr.Dataset({"v": (("time", "x"), np.ones((2, 2)))}, {"time": [2, 3], "x": [20, 30]})
    to_nczarr(stored, path, encoding={"v": {"chunks": (2, 2)}})
    for column in (0, 1):  # a killed append leaves such chunks
        Path(path, "v", f"1.{column}").write_bytes(np.full((2, 2), 777.0).tobytes())
    options = {"append_dim": "time", "region": region}
    assert_rejected(path, "cannot be combined with region.* reindex", new, **options)
    to_nczarr(new.reindex(x=stored.x), path, append_dim="time")
    rows = [[np.nan, 1.0, 1.0, np.nan]] * 2
    np.testing.assert_array_equal(read(path).v, np.concatenate([values, rows]))


@pytest.mark.parametrize("layout", [{}, {"zarr_format": 3}, {"dialect": "nczarr-4.8.1"}], ids=str)
def test_append_to_group_opened_as_store_is_rejected_if_parent_group_defines_dimension(
    path, layout
):
    tree = {
        "/": xr.Dataset(coords={"t": np.arange(3)}),
        "/g": xr.Dataset({"v": ("t", np.zeros(3)), "w": ("x", np.zeros(2))}),
    }
    to_nczarr(xr.DataTree.from_dict(tree), path, **layout)
    folder = os.path.join(path, "g")
    part = tree["/g"].isel(t=[0])
    assert_rejected(folder, "t is defined outside of this folder", part, append_dim="t")
    to_nczarr(part.drop_vars("v"), folder, append_dim="x")
    assert read(path, group="g", consolidated=False).sizes == {"t": 3, "x": 4}
