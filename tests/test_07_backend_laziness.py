"""What is read when: nothing at open, then each touched chunk once; from anywhere."""

import asyncio
import pickle
import shutil
import threading
from pathlib import Path

import dask
import netCDF4
import numpy as np
import pytest
import xarray as xr
from dask.base import tokenize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.processes import in_a_child, in_a_new_interpreter
from xr_nczarr.backend.lazy import LazyArray

SHAPE, CHUNKS = (6, 7, 8), (2, 3, 4)
VALUES = np.arange(np.prod(SHAPE), dtype="i4").reshape(SHAPE)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    path = tmp_path_factory.mktemp("lazy") / "store"
    with netCDF4.Dataset(f"file://{path}#mode=nczarr,file", "w") as file:
        for name, size in zip("tyx", SHAPE, strict=True):
            file.createDimension(name, size)
        file.createVariable("v", "i4", tuple("tyx"), zlib=True, chunksizes=CHUNKS)[:] = VALUES
        file.createVariable("raw", "i4", tuple("tyx"), chunksizes=CHUNKS)[:] = VALUES
    return path


def opened(path, **options):
    return xr.open_dataset(path, engine="nczarr", **options)


def index(size):
    bounds = st.none() | st.integers(-size, size)
    return st.one_of(
        st.integers(-size, size - 1),
        st.builds(slice, bounds, bounds, st.sampled_from([None, 1, 2, 3, -1, -2])),
        st.lists(st.integers(-size, size - 1), max_size=4).map(lambda found: np.array(found, int)),
    )


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    indices=st.tuples(*map(index, SHAPE)),
    name=st.sampled_from(["v", "raw"]),
    second=st.none() | index(3),
)
def test_any_indexing_gives_what_numpy_gives(stored, indices, name, second):
    lazy = opened(stored)[name].isel(dict(zip("tyx", indices, strict=True)))
    eager = xr.DataArray(VALUES, dims=tuple("tyx")).isel(dict(zip("tyx", indices, strict=True)))
    if second is not None and lazy.ndim and lazy.shape[0] >= 3:
        lazy, eager = lazy[second], eager[second]
    np.testing.assert_array_equal(lazy.values, eager.values)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), name=st.sampled_from(["v", "raw"]))
def test_pointwise_indexing_gives_what_numpy_gives(stored, data, name):
    count = data.draw(st.integers(1, 6))
    dims = data.draw(st.lists(st.sampled_from("tyx"), min_size=1, unique=True))
    points = {}
    for dim in dims:
        size = SHAPE["tyx".index(dim)]
        chosen = data.draw(st.lists(st.integers(0, size - 1), min_size=count, max_size=count))
        points[dim] = xr.DataArray(chosen, dims="points")
    lazy = opened(stored)[name].isel(points)
    eager = xr.DataArray(VALUES, dims=tuple("tyx")).isel(points)
    xr.testing.assert_equal(lazy.drop_vars(lazy.coords), eager)


def test_none_of_the_dates_of_any_calendar_can_be_selected(tmp_path):
    """xarray's own arrays fail: they look for the first date to decode."""
    url = f"file://{tmp_path}/s#mode=nczarr,file"
    with netCDF4.Dataset(url, "w") as file:
        file.createDimension("t", 3)
        dates = file.createVariable("t", "i4", ("t",))
        dates.setncatts({"units": "days since 2000-01-01", "calendar": "360_day"})
        dates[:] = [1, 2, 3]
    found = xr.open_dataset(url, engine="nczarr", create_default_indexes=False).t
    for chosen in (slice(0), np.zeros(3, bool), []):
        selected = found.isel(t=chosen)
        assert (selected.values.shape, selected.dtype) == ((0,), object)
    assert asyncio.run(found.isel(t=[]).load_async()).size == 0


def test_opening_reads_metadata_alone(http_server, stored, tmp_path):
    shutil.copytree(stored, Path(http_server.root, "s"))
    opened(f"{http_server.url}/s")
    asked = {request.path.rpartition("/")[2] for request in http_server.requests}
    assert all(name.startswith((".z", ".ncz", "zarr.json", "meta", "attrs")) for name in asked), (
        asked
    )


@pytest.mark.parametrize(
    ("selection", "chunks"),
    [
        ({"t": 0, "y": 0, "x": 0}, {"0.0.0"}),
        ({"t": slice(1, 3), "y": 3, "x": slice(4, 8)}, {"0.1.1", "1.1.1"}),
        ({"t": [0, 5], "y": [0], "x": [1, 2, 3]}, {"0.0.0", "2.0.0"}),
        (
            {
                "t": xr.DataArray([0, 1, 5, 0], dims="p"),
                "y": xr.DataArray([0, 1, 6, 2], dims="p"),
                "x": 0,
            },
            {"0.0.0", "2.2.0"},
        ),
    ],
)
def test_each_touched_chunk_is_fetched_once_and_no_other(selection, chunks, http_server, stored):
    shutil.copytree(stored, Path(http_server.root, "s"))
    variable = opened(f"{http_server.url}/s")["v"]
    http_server.clear()
    found = variable.isel(selection).values
    expected = xr.DataArray(VALUES, dims=tuple("tyx")).isel(selection).values
    np.testing.assert_array_equal(found, expected)
    asked = [request.path.rpartition("/")[2] for request in http_server.requests]
    assert sorted(asked) == sorted(chunks)


def test_an_uncompressed_chunk_gives_only_the_bytes_of_a_row(http_server, stored):
    shutil.copytree(stored, Path(http_server.root, "s"))
    variable = opened(f"{http_server.url}/s")["raw"]
    http_server.clear()
    np.testing.assert_array_equal(variable[0, 1, :4].values, VALUES[0, 1, :4])
    (request,) = http_server.requests
    assert request.range == "bytes=16-31"


def test_the_number_of_requests_to_open_is_known(s3_server, stored, tmp_path):
    options = {"storage_options": s3_server.storage_options}
    url = s3_server.upload(stored, "single")
    s3_server.clear()
    opened(url, **options)
    gets = [request for request in s3_server.requests if "list-type" not in request.path]
    assert not [request for request in s3_server.requests if "list-type" in request.path]
    # One wave for the root of every version and the journal, one for both variables.
    assert len(gets) == 12, [request.path for request in gets]
    consolidated = tmp_path / "consolidated"
    xr.Dataset({"a": ("x", [1, 2])}).to_zarr(consolidated, zarr_format=2, consolidated=True)
    url = s3_server.upload(consolidated, "consolidated")
    s3_server.clear()
    opened(url, consolidated=True, **options)
    assert len(s3_server.requests) == 1


def test_all_coordinates_are_fetched_in_one_wave_and_once(http_server, tmp_path):
    with netCDF4.Dataset(f"file://{tmp_path}/s#mode=nczarr,file", "w") as file:
        for name in ("time", "y", "x"):
            file.createDimension(name, 4)
            file.createVariable(name, "f8", (name,))[:] = np.arange(4)
        file["time"].units = "days since 2000-01-01"
        file.createVariable("v", "i4", ("time", "y", "x"))[:] = 1
    shutil.copytree(tmp_path / "s", Path(http_server.root, "s"))
    http_server.fault("latency", path="*/0", seconds=0.05, times=None)
    dataset = opened(f"{http_server.url}/s")
    chunks = [request.path for request in http_server.requests if request.path.endswith("/0")]
    assert sorted(chunks) == ["/s/time/0", "/s/x/0", "/s/y/0"]
    assert http_server.most_in_flight >= 3
    assert dataset.time.dtype.kind == "M"
    assert opened(f"{http_server.url}/s").chunk().x.values.tolist() == [0, 1, 2, 3]


def test_load_async_works(stored):
    async def load():
        return await opened(stored).load_async()

    np.testing.assert_array_equal(asyncio.run(load())["v"].values, VALUES)


def test_reading_works_inside_a_running_event_loop(http_server, stored):
    shutil.copytree(stored, Path(http_server.root, "s"))

    async def read():
        return opened(f"{http_server.url}/s")["v"].values

    np.testing.assert_array_equal(asyncio.run(read()), VALUES)


def test_many_threads_read_one_dataset(stored):
    dataset, failures = opened(stored), []

    def read():
        try:
            np.testing.assert_array_equal(dataset["v"].copy()[1:5].values, VALUES[1:5])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def _sum(dataset):
    return int(dataset["v"].sum())


def _sum_here_and_in_a_child(method, path, options):
    dataset = opened(path, **options)
    dataset["v"][0, 0, 0].load()
    return in_a_child(method, _sum, dataset)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("where", ["local", "s3"])
def test_reading_works_after(method, where, stored, s3_server):
    options = {"storage_options": s3_server.storage_options} if where == "s3" else {}
    path = s3_server.upload(stored, "s") if where == "s3" else stored
    found = in_a_new_interpreter(_sum_here_and_in_a_child, method, path, options)
    assert found == VALUES.sum()


@pytest.mark.parametrize("where", ["local", "s3"])
def test_workers_read_in_processes_of_their_own(where, stored, s3_server, workers):
    options = {"storage_options": s3_server.storage_options} if where == "s3" else {}
    url = s3_server.upload(stored, "s") if where == "s3" else stored
    total = opened(url, chunks={}, **options)["v"].sum().data
    assert workers.compute(total, sync=True) == VALUES.sum()


def test_arrays_pickle_small_and_tokenize_the_same_twice(stored, s3_server):
    def lazy(target, **options):
        found = opened(target, **options).variables["v"]._data
        while not isinstance(found, LazyArray):
            found = found.array
        return found

    options = {"storage_options": s3_server.storage_options}
    for target, extra in ((stored, {}), (s3_server.upload(stored, "s"), options)):
        array = lazy(target, **extra)
        copy = pickle.loads(pickle.dumps(array))
        assert len(pickle.dumps(array)) < 2000
        assert tokenize(array) == tokenize(lazy(target, **extra)) == tokenize(copy)


def test_a_graph_holds_no_values(stored):
    graph = opened(stored, chunks={})["v"].data.__dask_graph__()
    assert len(pickle.dumps(dict(graph))) < 30_000


def test_threaded_dask_gives_the_same(stored):
    with dask.config.set(scheduler="threads"):
        found = opened(stored, chunks={"t": 2})["v"]
        np.testing.assert_array_equal((found + 1).values, VALUES + 1)


def test_threads_are_counted_where_the_system_tells_no_affinity(stored, monkeypatch):
    import os

    monkeypatch.delattr(os, "sched_getaffinity")
    array = opened(stored)["v"]
    monkeypatch.setattr("xr_nczarr.chunks.array._THREADED_FROM_BYTES", 1)
    np.testing.assert_array_equal(array.values, VALUES)
