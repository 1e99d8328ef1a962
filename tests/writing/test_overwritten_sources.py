"""Writes are rejected if they would change an array before they have read it."""

import re

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr

from tests.reading import read
from tests.stores import read_objects
from tests.writes import series
from xr_nczarr import RefusedError, to_nczarr


# Regression D70
@pytest.mark.parametrize("chunks", [None, {}, {"time": 4}])
@pytest.mark.parametrize("mode", ["w", "a", "r+"])
def test_overwriting_source_of_lazy_dataset_is_rejected(path, mode, chunks):
    to_nczarr(series(0, 4), path)
    before = read_objects(path)
    with xr.open_dataset(path, engine="nczarr", chunks=chunks) as dataset:
        reversed_ = dataset[["a"]].isel(x=slice(None, None, -1)).drop_vars(["time", "x"])
        changed = reversed_ if chunks is None else reversed_ * 2
        with pytest.raises(RefusedError, match="from /a, which this write would overwrite"):
            to_nczarr(changed, path, mode=mode)
    assert read_objects(path) == before


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
def test_overwriting_variable_that_is_source_of_another_is_rejected(path, names, options):
    stored = xr.Dataset({name: ("x", np.arange(4) * sign) for name, sign in (("a", 1), ("b", -1))})
    group = {"group": options.get("group")}
    to_nczarr(stored, path, **group)
    before = read_objects(path)
    with xr.open_dataset(path, engine="nczarr", chunks={}, **group) as dataset:
        values = {name: ("x", np.zeros(4, int)) for name in names}
        values |= {name: dataset[source] for name, source in names.items() if source in dataset}
        with pytest.raises(RefusedError, match="which this write would overwrite"):
            to_nczarr(xr.Dataset(values), path, **options)
    assert read_objects(path) == before


def test_swapping_lazy_variables_between_groups_is_rejected(path):
    groups = {
        f"/{name}": xr.Dataset({"v": ("x", np.arange(4) * len(name))}) for name in ("a", "bb")
    }
    to_nczarr(xr.DataTree.from_dict(groups), path)
    with xr.open_datatree(path, engine="nczarr", chunks={}) as tree:
        swapped = xr.DataTree.from_dict({"/a": tree["bb"].ds, "/bb": tree["a"].ds})
        with pytest.raises(RefusedError, match="which this write would overwrite"):
            to_nczarr(swapped, path, mode="a")


def test_appended_values_can_be_computed_from_stored_variables(path):
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
    """Return a dataset with coordinates of several types and encodings."""
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
def test_new_variables_can_be_added_with_coordinates_read_from_same_store(path, chunks, mode):
    to_nczarr(mapped(), path)
    before = read_objects(path)
    with xr.open_dataset(path, engine="nczarr", chunks=chunks) as dataset:
        added = dataset.assign(b=dataset.a + 1, c=dataset.lat * 2)
        to_nczarr(added[["b", "c"]], path, mode=mode)
    xr.testing.assert_identical(read(path), mapped().assign(b=mapped().a + 1, c=mapped().lat * 2))
    chunk = re.compile(r"(a|lat|packed|name|day|level)/[0-9.]+")
    assert all(read_objects(path)[key] == before[key] for key in filter(chunk.fullmatch, before))


@pytest.mark.parametrize("mode", ["a", "r+"])
@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
def test_writing_opened_dataset_back_leaves_store_unchanged(path, chunks, mode):
    to_nczarr(mapped(), path)
    before = read_objects(path)
    with xr.open_dataset(path, engine="nczarr", chunks=chunks) as dataset:
        to_nczarr(dataset, path, mode=mode)
    assert read_objects(path) == before


@pytest.mark.parametrize("chunks", [None, {}], ids=["lazy", "dask"])
def test_overwriting_source_in_memory_filesystem_is_rejected(chunks):
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
    before = read_objects(path)
    with xr.open_dataset(path, engine="nczarr", chunks=chunks) as dataset:
        lat = changed(dataset.lat.variable)
        added = xr.Dataset({"b": ("z", [1, 2])}, {"lat": lat})
        with pytest.raises(RefusedError, match="reads its values from /lat"):
            to_nczarr(added, path, mode="a")
    assert read_objects(path) == before


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


def test_error_for_unchanged_variable_of_remote_store_suggests_leaving_out_variable():
    url = "memory://unchanged/store.nczarr"
    to_nczarr(xr.Dataset({"a": ("x", np.arange(4.0))}), url, mode="w")
    with xr.open_dataset(url, engine="nczarr", chunks={}) as dataset:
        extended = dataset.assign(b=dataset.a * 2)
        with pytest.raises(RefusedError, match="unchanged, leave it out of the dataset"):
            to_nczarr(extended, url, mode="a")
        to_nczarr(extended[["b"]], url, mode="a")
    assert read(url).b.values.tolist() == [0, 2, 4, 6]
