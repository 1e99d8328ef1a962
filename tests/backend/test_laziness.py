"""Opening reads only metadata, and a selection reads each of its chunks once."""

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

import xr_nczarr
from tests.processes import in_a_child, in_a_new_interpreter
from tests.servers import HttpServer
from tests.stores import file_url
from xr_nczarr.backend.lazy import LazyArray, SelectedArray
from xr_nczarr.dataset import resolve
from xr_nczarr.storage import Access, PrefetchGroup, PrefetchingStore

SHAPE, CHUNKS = (6, 7, 8), (2, 3, 4)
HAS_ASYNC = hasattr(xr.Dataset, "load_async")
with_async = pytest.mark.skipif(not HAS_ASYNC, reason="xarray is older than 2025.8")
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


def unwrapped(data):
    """Return the lazy array that the engine passed to xarray."""
    while not isinstance(data, SelectedArray):
        data = data.array
    return data


def opened(path, **options):
    return xr.open_dataset(path, engine="nczarr", **options)


KINDS = [
    "undecoded",
    "packed",
    "time",
    "boolean",
    "text",
    "characters",
    "decoded characters",
]


@pytest.fixture(scope="module")
def variables_of_every_kind(tmp_path_factory):
    """Return a store with variables for every kind of decoding, and their values."""
    path, shape = tmp_path_factory.mktemp("kinds") / "store", (4, 5, 3)
    numbers = np.arange(np.prod(shape)).reshape(shape)
    words = np.array(["", "ä", "Bergen", "x"], object)[numbers % 4]
    values = [
        numbers.astype("i2"),
        np.where(numbers % 7, numbers / 4, np.nan),
        np.datetime64("2000-01-01", "ns") + numbers.astype("m8[D]"),
        numbers % 3 == 0,
        words,
        np.array([b"", b"ab", b"xyz", b"q"])[numbers % 4],
        words.astype("U"),
    ]
    held = dict(zip(KINDS, values, strict=True))
    dims = ("a", "b", "c")
    dataset = xr.Dataset({name: (dims, values) for name, values in held.items()})
    packing = {"dtype": "i2", "scale_factor": 0.25, "_FillValue": np.int16(-9)}
    encoding = {name: {"chunks": (3, 2, 2)} for name in held}
    encoding["packed"] |= packing
    encoding["time"] |= {"units": "days since 1999-01-01"}
    encoding["decoded characters"] |= {"dtype": "S1", "_Encoding": "utf-8"}
    xr_nczarr.to_nczarr(dataset, path, encoding=encoding)
    assert opened(path)["decoded characters"].encoding["char_dim_name"]
    return path, dataset


@st.composite
def selections(draw, sizes):
    """Draw a method of `xarray.Variable` that selects or transposes, and its arguments.

    The variable has dimensions of these sizes. About one index in a hundred is outside its
    dimension.
    """
    how = draw(st.sampled_from(["orthogonal", "pointwise", "transpose"]))
    if how == "transpose":
        return "transpose", draw(st.permutations(list(sizes)))
    dims = draw(st.lists(st.sampled_from(sorted(sizes)), unique=True)) if sizes else []
    if how == "orthogonal":
        return "isel", [{dim: draw(index(sizes[dim], outside=True)) for dim in dims}]
    new = draw(st.sampled_from([("p",), ("p", "q"), ("q", "p"), (dims[0] if dims else "p",)]))
    shape = [draw(st.integers(0, 3)) for _ in new]
    key = {}
    for dim in dims:
        kept = [draw(st.booleans()) for _ in new] if len(new) > 1 else [True]
        named = [name for name, used in zip(new, kept, strict=True) if used]
        extents = [size for size, used in zip(shape, kept, strict=True) if used]
        positions = draw(indices(sizes[dim], int(np.prod(extents))))
        key[dim] = xr.Variable(named, positions.reshape(extents))
    for dim in sizes.keys() - key.keys():
        if draw(st.booleans()):
            key[dim] = draw(index(sizes[dim], outside=True))
    kept = sizes.keys() - {dim for dim, item in key.items() if isinstance(item, xr.Variable)}
    if kept.intersection(new):  # xarray rejects such a selection
        return "isel", [{}]
    return "isel", [key]


def positions_within(size, outside):
    beyond = st.sampled_from([-size - 1, size]) if outside else st.nothing()
    inside = st.integers(-size, size - 1) if size else st.nothing()
    return st.one_of(inside, inside, inside, inside, beyond)


def indices(size, count):
    within = positions_within(size, outside=True)
    return st.lists(within, min_size=count, max_size=count).map(
        lambda chosen: np.array(chosen, int)
    )


def index(size, *, outside=False):
    bounds = st.none() | st.integers(-size - 1, size + 1)
    within = positions_within(size, outside)
    listed = st.lists(within, max_size=4).map(lambda chosen: np.array(chosen, int))
    slices = st.builds(slice, bounds, bounds, st.sampled_from([None, 1, 2, 3, -1, -2]))
    return st.one_of(within, slices, listed)


@pytest.mark.filterwarnings("ignore:Out of bound index:DeprecationWarning")  # from NumPy 2.2
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data(), name=st.sampled_from(KINDS))
def test_lazy_selections_return_same_values_as_eager_ones(variables_of_every_kind, data, name):
    path, held = variables_of_every_kind
    lazy = opened(path, cache=False, decode_cf=name != "undecoded")[name].variable
    eager = held[name].variable
    for _ in range(data.draw(st.integers(1, 5))):
        method, arguments = data.draw(selections(eager.sizes))
        try:
            eager = getattr(eager, method)(*arguments)
        except IndexError:
            with pytest.raises(IndexError, match="out of bounds"):
                getattr(lazy, method)(*arguments)
            return
        try:
            lazy = getattr(lazy, method)(*arguments)
        except IndexError:  # NumPy does not check the indices of empty selections
            assert eager.size == 0
            return
        assert isinstance(unwrapped(lazy._data), SelectedArray)
        assert (lazy.dims, lazy.shape) == (eager.dims, eager.shape)
    if HAS_ASYNC and data.draw(st.booleans()):
        asyncio.run(lazy.load_async())
    read = lazy.to_numpy()
    assert (read.dtype.kind, read.shape) == (lazy.dtype.kind, eager.shape)
    np.testing.assert_array_equal(read, eager.to_numpy())


@pytest.mark.parametrize(
    "outside",
    [[0, -8], -8, 7, xr.Variable(("p", "q"), [[0, -8]])],
    ids=["list", "below", "above", "vectorized"],
)
def test_out_of_bounds_index_raises_index_error(tmp_path, outside):
    xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", np.arange(7.0))}), tmp_path / "store")
    with pytest.raises(IndexError, match="out of bounds for a dimension of size 7"):
        opened(tmp_path / "store").v.isel(x=outside)


def test_transposed_variable_is_read_chunk_by_chunk(stored):
    variable = opened(stored)["v"].transpose("x", "t", "y")
    request = unwrapped(variable.variable._data).selection.request()
    assert not request.pointwise
    np.testing.assert_array_equal(variable[2:, ::-1].values, VALUES.transpose(2, 0, 1)[2:, ::-1])


def test_empty_selection_of_dates_in_nonstandard_calendar_can_be_loaded(tmp_path):
    """xarray's own lazy arrays raise an error here, because they decode the first date."""
    url = f"file://{tmp_path}/s#mode=nczarr,file"
    with netCDF4.Dataset(url, "w") as file:
        file.createDimension("t", 3)
        dates = file.createVariable("t", "i4", ("t",))
        dates.setncatts({"units": "days since 2000-01-01", "calendar": "360_day"})
        dates[:] = [1, 2, 3]
    dataset = xr.open_dataset(url, engine="nczarr", create_default_indexes=False).t
    for chosen in (slice(0), np.zeros(3, bool), []):
        selected = dataset.isel(t=chosen)
        assert (selected.values.shape, selected.dtype) == ((0,), object)
    if HAS_ASYNC:
        assert asyncio.run(dataset.isel(t=[]).load_async()).size == 0


def test_lazy_array_repr_shows_shape_and_dtype_without_reading(stored):
    variable = xr.open_dataset(stored, engine="nczarr")["v"].variable
    assert repr(variable[1:, 0]._data).count("SelectedArray(shape=(5, 8), dtype=int32)") == 1


def test_opening_store_reads_only_metadata(http_server, stored, tmp_path):
    shutil.copytree(stored, Path(http_server.root, "s"))
    opened(f"{http_server.url}/s")
    requested = {request.path.rpartition("/")[2] for request in http_server.requests}
    assert all(
        name.startswith((".z", ".ncz", "zarr.json", "meta", "attrs")) for name in requested
    ), requested


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
def test_selection_fetches_only_needed_chunks(selection, chunks, http_server, stored):
    shutil.copytree(stored, Path(http_server.root, "s"))
    variable = opened(f"{http_server.url}/s")["v"]
    http_server.clear()
    result = variable.isel(selection).values
    expected = xr.DataArray(VALUES, dims=tuple("tyx")).isel(selection).values
    np.testing.assert_array_equal(result, expected)
    requested = [request.path.rpartition("/")[2] for request in http_server.requests]
    assert sorted(requested) == sorted(chunks)


def test_reading_row_of_uncompressed_chunk_fetches_only_that_row(http_server, stored):
    shutil.copytree(stored, Path(http_server.root, "s"))
    variable = opened(f"{http_server.url}/s")["raw"]
    http_server.clear()
    np.testing.assert_array_equal(variable[0, 1, :4].values, VALUES[0, 1, :4])
    (request,) = http_server.requests
    assert request.range == "bytes=16-31"


def test_opening_store_sends_few_requests_and_no_list_requests(s3_server, stored, tmp_path):
    options = {"storage_options": s3_server.storage_options}
    url = s3_server.upload(stored, "single")
    s3_server.clear()
    opened(url, **options)
    gets = [request for request in s3_server.requests if "list-type" not in request.path]
    assert not [request for request in s3_server.requests if "list-type" in request.path]
    # One round trip for the root of every version and the journal, one for both variables.
    assert len(gets) == 10, [request.path for request in gets]
    consolidated = tmp_path / "consolidated"
    xr.Dataset({"a": ("x", [1, 2])}).to_zarr(consolidated, zarr_format=2, consolidated=True)
    url = s3_server.upload(consolidated, "consolidated")
    s3_server.clear()
    opened(url, consolidated=True, **options)
    paths = sorted(request.path.rpartition("/")[2] for request in s3_server.requests)
    assert paths == [".zmetadata", "zarr.json"]  # in one round trip


def test_opening_dataset_fetches_each_coordinate_once_and_concurrently(http_server, tmp_path):
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


@with_async
@pytest.mark.parametrize("options", [{}, {"decode_cf": False}, {"chunks": {}}], ids=str)
def test_load_async_returns_same_dataset_as_load(variables_of_every_kind, options):
    path, _ = variables_of_every_kind

    async def load():
        return await opened(path, **options).load_async()

    xr.testing.assert_identical(asyncio.run(load()), opened(path, **options).load())


def one_variable_of_each_kind():
    days = np.array(["2000-01-01", "2000-01-03"], "M8[ns]")
    packed = {"dtype": "i2", "scale_factor": 0.5, "add_offset": 1.0, "_FillValue": -1}
    return {
        "numbers": xr.Variable("x", [1.0, 2.0]),
        "masked": xr.Variable("x", np.array([1, np.nan], "f4"), encoding={"_FillValue": -9.0}),
        "packed": xr.Variable("x", [1.5, np.nan], encoding=packed),
        "booleans": xr.Variable("x", [True, False]),
        "dates": xr.Variable("x", days, encoding={"units": "hours since 2000-01-01"}),
        "durations": xr.Variable("x", days - days[0]),
        "strings": xr.Variable("x", np.array(["one", "three"], object)),
        "characters": xr.Variable("x", np.array([b"ab", b"c"])),
    }


@with_async
@pytest.mark.parametrize("client", ["fsspec", "obstore"])
def test_variables_of_every_kind_load_concurrently_in_one_event_loop(http_server, client):
    dataset = xr.Dataset(one_variable_of_each_kind())
    xr_nczarr.to_nczarr(dataset, f"{http_server.root}/s")
    lazy = opened(f"{http_server.url}/s", storage_options={"client": client})
    http_server.clear()
    http_server.fault("together", path="*/0*", times=len(lazy))
    xr.testing.assert_identical(asyncio.run(lazy.load_async()), dataset)
    assert http_server.most_in_flight == len(lazy)


@with_async
@pytest.mark.parametrize("client", ["fsspec", "obstore"])
def test_datasets_in_one_event_loop_send_requests_concurrently(http_server, client):
    datasets = {name: xr.Dataset({"v": v}) for name, v in one_variable_of_each_kind().items()}
    for name, dataset in datasets.items():
        xr_nczarr.to_nczarr(dataset, f"{http_server.root}/{name}")
    options = {"client": client}
    lazy = [opened(f"{http_server.url}/{name}", storage_options=options) for name in datasets]
    http_server.clear()
    http_server.fault("together", path="*/v/0*", times=len(lazy))

    async def load():
        return await asyncio.gather(*[dataset.load_async() for dataset in lazy])

    for read, dataset in zip(asyncio.run(load()), datasets.values(), strict=True):
        xr.testing.assert_equal(read, dataset)
    assert http_server.most_in_flight == len(lazy)


def test_reading_works_inside_running_event_loop(http_server, stored):
    shutil.copytree(stored, Path(http_server.root, "s"))

    async def read():
        return opened(f"{http_server.url}/s")["v"].values

    np.testing.assert_array_equal(asyncio.run(read()), VALUES)


def test_many_threads_can_read_one_dataset_concurrently(stored):
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
def test_reading_works_in_forked_or_spawned_process(method, where, stored, s3_server):
    options = {"storage_options": s3_server.storage_options} if where == "s3" else {}
    path = s3_server.upload(stored, "s") if where == "s3" else stored
    result = in_a_new_interpreter(_sum_here_and_in_a_child, method, path, options)
    assert result == VALUES.sum()


@pytest.mark.parametrize("where", ["local", "s3"])
def test_dask_workers_can_read_local_and_s3_stores(where, stored, s3_server, workers):
    options = {"storage_options": s3_server.storage_options} if where == "s3" else {}
    url = s3_server.upload(stored, "s") if where == "s3" else stored
    total = opened(url, chunks={}, **options)["v"].sum().data
    assert workers.compute(total, sync=True) == VALUES.sum()


def test_lazy_arrays_have_small_pickles_and_stable_dask_tokens(stored, s3_server):
    def lazy(target, **options):
        array = unwrapped(opened(target, **options).variables["v"]._data).source
        assert isinstance(array, LazyArray)
        return array

    options = {"storage_options": s3_server.storage_options}
    for target, extra in ((stored, {}), (s3_server.upload(stored, "s"), options)):
        array = lazy(target, **extra)
        copy = pickle.loads(pickle.dumps(array))
        assert len(pickle.dumps(array)) < 2000
        assert tokenize(array) == tokenize(lazy(target, **extra)) == tokenize(copy)


def test_dask_tokens_of_coordinates_depend_on_s3_endpoint():
    tokens = set()
    for server in ("http://one.example", "http://two.example"):
        options = {"anon": True, "endpoint_url": server}
        store = resolve("s3://bucket/x", Access(storage_options=options)).store
        tokens.add(tokenize(PrefetchingStore(store, PrefetchGroup(store, [], 1))))
    assert len(tokens) == 2


def test_dask_graph_contains_no_array_values(stored):
    graph = opened(stored, chunks={})["v"].data.__dask_graph__()
    assert len(pickle.dumps(dict(graph))) < 30_000


def test_computing_with_threaded_dask_scheduler_returns_correct_values(stored):
    with dask.config.set(scheduler="threads"):
        dataset = opened(stored, chunks={"t": 2})["v"]
        np.testing.assert_array_equal((dataset + 1).values, VALUES + 1)


def test_reading_works_on_platforms_without_sched_getaffinity(stored, monkeypatch):
    import os

    monkeypatch.delattr(os, "sched_getaffinity")
    array = opened(stored)["v"]
    monkeypatch.setattr("xr_nczarr.chunks.array._THREADED_FROM_BYTES", 1)
    np.testing.assert_array_equal(array.values, VALUES)


@pytest.mark.parametrize(("group", "others"), [(None, "/a/"), ("a", "/b/"), ("a/b", "/c/")])
def test_opening_group_does_not_request_child_group_metadata(
    group: str | None, others: str, http_server: HttpServer
) -> None:
    with netCDF4.Dataset(file_url(Path(http_server.root, "s")), "w") as dataset:
        for holder in (dataset, dataset.createGroup("a"), dataset.createGroup("a/b/c").parent):
            holder.createDimension("x", 2)
            holder.createVariable("v", "i4", ("x",))[:] = 5
    opened = xr.open_dataset(f"{http_server.url}/s", engine="nczarr", group=group)
    assert list(opened) == ["v"]
    below = [request.path.partition(others)[2] for request in http_server.requests_for("/s/*")]
    assert not [path for path in below if "/" in path]
