"""The targets, modes, order and parallelism of `to_nczarr`."""

import json
import os
import pickle
import tracemalloc
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr
from distributed import Client, LocalCluster
from obstore.store import MemoryStore as Objects
from tqdm import tqdm

import xr_nczarr
from tests.processes import in_a_child, in_a_new_interpreter, run_in_processes
from tests.reading import open_store, read
from tests.writes import series
from xr_nczarr import (
    ConflictError,
    ExistsError,
    NotFoundError,
    RefusedError,
    StorageError,
    UnsupportedError,
    to_nczarr,
)
from xr_nczarr.storage import LocalStore, MemoryStore
from xr_nczarr.writing import lazy_sources
from xr_nczarr.writing.chunk_writes import aligned_blocks


def example(start=0, stop=8):
    n = np.arange(start, stop)
    return xr.Dataset(
        {"a": (("t", "x"), n[:, None] * 10.0 + np.arange(3)), "n": ("t", n)}, {"t": n}
    )


TARGETS = {
    "path": lambda path: path,
    "file URL": lambda path: f"file://{path}",
    "NCZarr URL": lambda path: f"file://{path}#mode=nczarr,file",
    "zip": lambda path: f"{path}.zip",
    "zip URL": lambda path: f"file://{path}#mode=nczarr,zip",
    "memory URL": lambda path: f"memory://{path}",
    "mapping": lambda path: {},
    "store": lambda path: MemoryStore({}),
}


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_kind_supports_write_append_and_replace(path, target):
    target = TARGETS[target](path)
    encoding = {"a": {"chunks": (1, 3)}, "n": {"chunks": 1}, "t": {"chunks": 1}}
    to_nczarr(example(), target, unlimited_dims="t", encoding=encoding)
    xr.testing.assert_identical(read(target), example())
    with pytest.raises(ExistsError):
        to_nczarr(example(), target)
    to_nczarr(example(8, 10), target, append_dim="t")
    xr.testing.assert_identical(read(target), example(0, 10))
    to_nczarr(-example(3, 5).drop_vars("t"), target, region={"t": slice(3, 5)})
    assert read(target).n.values.tolist() == [0, 1, 2, -3, -4, 5, 6, 7, 8, 9]
    to_nczarr(example(0, 2), target, mode="w")
    xr.testing.assert_identical(read(target, consolidated="check"), example(0, 2))


def test_s3_store_supports_write_append_and_replace(s3_server):
    target = f"s3://{s3_server.bucket}/store"
    options = {"storage_options": s3_server.storage_options}
    to_nczarr(example(), target, unlimited_dims="t", **options)
    to_nczarr(example(8, 10), target, append_dim="t", **options)
    xr.testing.assert_identical(read(target, **options), example(0, 10))
    to_nczarr(example(0, 2), target, mode="w", **options)
    xr.testing.assert_identical(read(target, **options), example(0, 2))


def test_appended_zip_file_has_unique_names_in_single_folder(path):
    to_nczarr(example(), f"{path}.zip")
    to_nczarr(example(8, 10), f"{path}.zip", append_dim="t")
    names = zipfile.ZipFile(f"{path}.zip").namelist()
    assert len(names) == len(set(names))
    assert {name.split("/")[0] for name in names} == {"store"}


@pytest.mark.parametrize("word", ["zarr", "xarray", "noxarray"])
def test_url_fragment_can_request_plain_zarr(path, word):
    to_nczarr(example(), f"file://{path}#mode={word},file")
    with open(f"{path}/a/.zattrs") as file:
        names = set(json.load(file))
    assert not any(name.startswith("_nczarr") for name in names)
    assert ("_ARRAY_DIMENSIONS" in names) == (word != "noxarray")


def test_function_and_accessor_write_dataarrays_and_datatrees(path):
    dataset = example()
    dataset.n.drop_vars("t").rename(None).nczarr.to_nczarr(f"{path}/1")
    assert xr.open_dataarray(f"{path}/1", engine="nczarr").identical(
        dataset.n.drop_vars("t").rename(None)
    )
    dataset.t.nczarr.to_nczarr(f"{path}/2")
    assert xr.open_dataarray(f"{path}/2", engine="nczarr").name == "t"
    tree = xr.DataTree.from_dict({"/": dataset, "/b/c": dataset.isel(t=0)})
    tree.nczarr.to_nczarr(f"{path}/3", encoding={"/b/c": {"a": {"dtype": "f4"}}})
    assert xr.open_datatree(f"{path}/3", engine="nczarr").load().equals(tree)
    assert read(f"{path}/3", group="b/c").a.encoding["dtype"] == "f4"


def test_groups_whose_names_differ_only_by_dot_can_coexist(path):
    tree = xr.DataTree.from_dict({"/a": xr.Dataset({"v": 1}), "/a.": xr.Dataset({"v": 2})})
    to_nczarr(tree, path, group="/b./")
    assert xr.open_datatree(path, engine="nczarr", group="/b.").load().identical(tree)


def test_writing_non_xarray_object_raises_type_error(path):
    with pytest.raises(TypeError, match="DataTree"):
        to_nczarr(np.ones(3), path)


@pytest.mark.parametrize("zarr_format", [2, 3, "3-draft"])
def test_every_zarr_version_supports_write_append_and_read(path, zarr_format):
    to_nczarr(example(), path, zarr_format=zarr_format, unlimited_dims="t")
    to_nczarr(example(8, 9), path, append_dim="t")
    result = read(path)
    assert result.encoding["zarr_format"] == str(zarr_format)
    xr.testing.assert_identical(result, example(0, 9))


def test_v1_stores_contain_one_array(path):
    dataset = example()[["n"]].drop_vars("t")
    to_nczarr(dataset, path, zarr_format=1)
    result = read(path)
    assert result.encoding["zarr_format"] == "1"
    (variable,) = result.data_vars.values()
    np.testing.assert_array_equal(variable, dataset.n)
    with pytest.raises(xr_nczarr.UnsupportedError, match="one array"):
        to_nczarr(example(), path, zarr_format=1, mode="w")


# Modes --------------------------------------------------------------------------------------


def test_mode_w_does_not_remove_non_store_target(path):
    os.makedirs(path)
    with open(f"{path}/precious", "w") as file:
        file.write("text")
    with pytest.raises(RefusedError, match="would remove"):
        to_nczarr(example(), path, mode="w")
    with pytest.raises(ExistsError):
        to_nczarr(example(), path)
    assert os.listdir(path) == ["precious"]


def test_mode_w_replaces_damaged_store(path):
    to_nczarr(example(), path)
    with open(f"{path}/.zmetadata", "w") as file:
        file.write("{")
    to_nczarr(example(0, 2), path, mode="w")
    xr.testing.assert_identical(read(path), example(0, 2))


def test_mode_w_on_group_keeps_other_groups(path):
    root = xr.Dataset({"k": 1})
    tree = xr.DataTree.from_dict({"/": root, "/a1/b": example(), "/a1/c": example(0, 2)})
    to_nczarr(tree, path)
    with pytest.raises(ExistsError):
        to_nczarr(example(0, 3), path, group="a1/b")
    to_nczarr(example(0, 3), path, group="a1/b", mode="w")
    xr.testing.assert_identical(read(path, group="a1/b", consolidated="check"), example(0, 3))
    xr.testing.assert_identical(read(path, group="a1/c"), example(0, 2))
    xr.testing.assert_identical(read(path), root)


def test_mode_r_plus_requires_store_and_changes_no_metadata(path):
    with pytest.raises(NotFoundError):
        to_nczarr(example(), path, mode="r+")
    to_nczarr(example(), path)
    before = {name: os.stat(f"{path}/{name}").st_mtime_ns for name in (".zattrs", ".zmetadata")}
    to_nczarr(-example().assign_attrs(new=1).drop_vars("t"), path, mode="r+")
    assert before == {name: os.stat(f"{path}/{name}").st_mtime_ns for name in before}
    xr.testing.assert_identical(read(path).drop_vars("t"), -example().drop_vars("t"))


def test_mode_a_minus_leaves_variables_without_append_dimension_unchanged(path):
    to_nczarr(example().assign(k=1), path)
    to_nczarr(example(8, 9).assign(k=2), path, append_dim="t", mode="a-")
    xr.testing.assert_identical(read(path), example(0, 9).assign(k=1))


@pytest.mark.parametrize("options", [{"append_dim": "t"}, {"region": "auto"}])
def test_mode_w_with_append_dim_or_region_is_rejected(path, options):
    with pytest.raises(ValueError, match="cannot set"):
        to_nczarr(example(), path, mode="w", **options)


# Parallel -----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", ["sync", "threads", "processes"])
def test_dask_arrays_can_be_written_with_every_scheduler(path, scheduler):
    delayed = to_nczarr(example().chunk(t=3), path, compute=False)
    assert np.isnan(read(path).a.values).all()
    delayed.compute(scheduler=scheduler)
    xr.testing.assert_identical(read(path), example())


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    ("declared", "computed"),
    [("i8", "f8"), ("f8", "i8"), ("i4", "f4"), ("f4", "f8"), ("f8", "f4"), ("u1", "?")],
)
def test_dask_blocks_whose_dtype_differs_from_declared_dtype_are_converted(
    zarr_format, declared, computed
):
    # With wrong output_dtypes, for example, the bits of 2 were once read as 9.88e-324.
    values = np.arange(6).astype(computed)
    blocks = da.from_array(values, chunks=4).map_blocks(
        np.copy, dtype=declared, meta=np.empty(0, declared)
    )
    for dataset in (xr.Dataset({"v": ("x", blocks)}), xr.Dataset({"v": ((), blocks[2])})):
        store = {}
        xr_nczarr.to_nczarr(dataset, store, zarr_format=zarr_format)
        result = xr.open_dataset(store, engine="nczarr").v
        assert result.dtype == declared
        expected = values.astype(declared) if result.dims else values.astype(declared)[2]
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("value", "declared"),
    [
        (300, "uint8"),
        (-1, "uint8"),
        (1.5, "int8"),
        (np.nan, "int64"),
        (1e300, "float32"),
        (1 + 2j, "float64"),
        (np.datetime64("2000-01-01", "s"), "int64"),
    ],
)
def test_dask_blocks_with_values_outside_declared_dtype_range_are_rejected(value, declared):
    blocks = da.from_array(np.array([value]), chunks=1)
    wrong = blocks.map_blocks(np.copy, dtype=declared, meta=np.empty(0, declared))
    with pytest.raises(ConflictError, match=f"the declared dtype {declared} cannot represent"):
        xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", wrong)}), {}, dialect="zarr")


@pytest.mark.parametrize("made", [np.sum, lambda block: block[:1], lambda block: block[:, None]])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_dask_blocks_whose_shape_differs_from_declared_shape_are_rejected(path, made, zarr_format):
    # Blocks without dimensions were once all written to the first element.
    blocks = da.from_array(np.arange(4.0), chunks=2)
    wrong = xr.Dataset({"v": ("x", blocks.map_blocks(made, dtype="f8", chunks=blocks.chunks))})
    with pytest.raises(ConflictError, match=r"dask block has shape .*its metadata says \(2,\)"):
        xr_nczarr.to_nczarr(wrong, path, zarr_format=zarr_format)
    xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", blocks)}), path, zarr_format=zarr_format)
    with pytest.raises(ConflictError, match=r"its metadata says \(2,\)"):
        xr_nczarr.to_nczarr(wrong, path, append_dim="x")
    assert read(path).v.values.tolist() == [0, 1, 2, 3]


def test_dask_blocks_with_bytes_longer_than_declared_are_rejected():
    blocks = da.from_array(np.array([b"abc"]), chunks=1)
    shorter = blocks.map_blocks(np.copy, dtype="S2", meta=np.empty(0, "S2"))
    with pytest.raises(ConflictError, match=r"has dtype \|S3, but the declared dtype \|S2"):
        xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", shorter)}), {}, dialect="zarr")


def test_dask_workers_can_write_and_append(path, workers):
    delayed = to_nczarr(example().chunk(t=3), path, compute=False)
    workers.compute(delayed).result()
    xr.testing.assert_identical(read(path), example())
    more = to_nczarr(example(8, 12).chunk(t=3), path, append_dim="t", compute=False)
    workers.compute(more).result()
    xr.testing.assert_identical(read(path), example(0, 12))


MEMORY = ["memory", "dictionary", "obstore"]


def write_region(path, start, stop):
    part = example(start, stop).drop_vars("t")
    to_nczarr(part, path, region={"t": slice(start, stop)})


@pytest.mark.parametrize("target", ["memory://elsewhere", {}, Objects()], ids=MEMORY)
def test_worker_processes_cannot_write_to_client_memory(target, workers):
    delayed = to_nczarr(example().chunk(t=2), target, compute=False)
    with pytest.raises(StorageError, match="scheduler"):
        workers.compute(delayed).result()
    delayed.compute(scheduler="threads")
    assert read(target).identical(example())
    # A single task, because distributed workers that request data from each other may deadlock.
    lazy = xr.open_dataset(target, engine="nczarr", cache=False)
    result = workers.submit(xr.Dataset.load, lazy, pure=False)
    if isinstance(target, dict):  # the dictionary is sent with the array that reads it
        assert result.result().identical(example())
    else:
        with pytest.raises(StorageError, match="scheduler"):
            result.result()


@pytest.fixture
def threaded_client():
    """Return a client whose workers are threads of this process."""
    options = {"n_workers": 2, "threads_per_worker": 2, "processes": False}
    with (
        LocalCluster(dashboard_address=":0", **options) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.parametrize("target", ["memory://inside", {}, Objects()], ids=MEMORY)
def test_worker_threads_can_write_to_client_memory(target, threaded_client):
    dataset = example(0, 8).chunk(t=2)
    delayed = to_nczarr(dataset, target, compute=False)
    threaded_client.compute(delayed).result()
    assert read(target).identical(example(0, 8))
    with threaded_client.as_current():
        to_nczarr(example(8, 12).chunk(t=2), target, append_dim="t")
        result = read(target, chunks={}).compute()
    assert result.identical(example(0, 12))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_dictionary_store_can_be_written_only_in_process_that_created_it(method):
    assert in_a_new_interpreter(send_here_and_to_a_child, method) == ["a"]


def send_here_and_to_a_child(method):
    store = open_store({})
    sent = pickle.dumps(store)
    put_into(sent, "a")
    in_a_child(method, put_into, sent, "b")
    return list(store.mapping)


def put_into(sent, key):
    with suppress(StorageError):
        pickle.loads(sent).put([(key, b"1")])


def test_several_processes_can_write_disjoint_regions_of_template(path):
    template = xr.zeros_like(example(0, 12).chunk(t=4))
    to_nczarr(template.assign_coords(t=example(0, 12).t), path, compute=False)
    run_in_processes(3, write_region, [(path, start, start + 3) for start in range(0, 12, 3)])
    xr.testing.assert_identical(read(path), example(0, 12))


def test_each_chunk_is_written_once(path, monkeypatch):
    keys = []
    put = LocalStore.put

    def recorded(store, items):
        items = list(items)
        keys.extend(key for key, _ in items)
        put(store, items)

    monkeypatch.setattr(LocalStore, "put", recorded)
    encoding = {"a": {"chunks": (4, 2)}, "n": {"chunks": (5,)}}
    to_nczarr(example().chunk(t=3, x=1), path, encoding=encoding)
    assert len(keys) == len(set(keys))
    documents = [key for key in keys if key.rpartition("/")[2].startswith(".z")]
    assert keys[-len(documents) :] == documents, "documents come behind all chunks"
    assert documents[-3:] == [".zattrs", ".zgroup", ".zmetadata"]


@pytest.mark.parametrize("offset", [0, 1, 5])
@pytest.mark.parametrize("cell", [1, 3, 4, 20])
@pytest.mark.parametrize("sizes", [(4, 4), (5, 3), (1, 1, 1, 1), (8,), (2, 3, 2, 1)])
def test_aligned_blocks_cover_region_and_end_at_chunk_boundaries(sizes, offset, cell):
    blocks = aligned_blocks(sizes, offset, cell)
    assert sum(blocks) == sum(sizes)
    assert 0 not in blocks
    bounds = np.cumsum([offset, *blocks])[1:-1]
    assert not (bounds % cell).any()


def test_dask_blocks_of_unknown_size_are_rejected(path):
    values = dask.array.arange(8, chunks=3)
    dataset = xr.Dataset({"a": ("t", values[values > 2])})
    with pytest.raises((ConflictError, ValueError)):
        to_nczarr(dataset, path)
    assert not os.path.exists(path)


@pytest.mark.parametrize(
    ("how", "engine"), [("create", "netcdf4"), ("append", "nczarr"), ("region", "nczarr")]
)
def test_lazily_opened_variables_are_written_block_by_block(path, how, engine):
    """The variable has 96 MiB; two threads hold a few blocks of 4 MiB each."""
    source = xr.Dataset({"a": (("t", "x"), np.random.default_rng(0).random((384, 1 << 15)))})
    encoding = {"a": {"chunksizes": (3, 1 << 14)}}
    if engine == "nczarr":
        to_nczarr(source, f"{path}-source", encoding=encoding)
    else:
        source.to_netcdf(f"{path}-source", engine=engine, encoding=encoding)
    if how != "create":
        to_nczarr(source * 0, path, encoding=encoding)
    options = {"append": {"append_dim": "t"}, "region": {"region": {"t": slice(0, 384)}}}
    with (
        dask.config.set(scheduler="threads", num_workers=2),
        xr.open_dataset(f"{path}-source", engine=engine) as lazy,
    ):
        tracemalloc.start()
        try:
            to_nczarr(lazy, path, **options.get(how, {}))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < source.nbytes / 2
    result = read(path).isel(t=slice(-384, None))
    xr.testing.assert_equal(result, source)
    assert result.a.encoding["chunksizes"] == (3, 1 << 14)


CHUNKS = {
    "large": (16, 256, 256),
    "fields": (1, 256, 256),
    "small": (3, 40, 50),
    "all": (40, 256, 256),
}
MADE_LAZILY = {
    "all": lambda ds: ds,
    "later": lambda ds: ds.isel(t=slice(5, None)),
    "every second": lambda ds: ds.isel(x=slice(1, None, 2)),
    "reversed": lambda ds: ds.isel(t=slice(None, None, -1)),
    "some": lambda ds: ds.isel(y=[1, 2, 60, 70, 255]),
    "renamed": lambda ds: ds.rename(t="time"),
    "transposed": lambda ds: ds.transpose("x", "y", "t"),
}


@pytest.mark.parametrize("layout", ["chunks", "shards"])
@pytest.mark.parametrize("chunk", CHUNKS)
@pytest.mark.parametrize("make", MADE_LAZILY)
def test_writing_lazy_variable_decodes_each_source_chunk_once(chunk, make, layout, decoded):
    values = np.random.default_rng(0).integers(0, 9, (40, 256, 256)).astype("f4")
    encoding, store = {"chunks": CHUNKS[chunk], "zlib": True, "complevel": 1}, {}
    if layout == "shards":
        encoding["shards"] = tuple(2 * length for length in CHUNKS[chunk])
    version = 3 if layout == "shards" else 2
    dataset = xr.Dataset({"v": (("t", "y", "x"), values)})
    to_nczarr(dataset, store, encoding={"v": encoding}, zarr_format=version)
    target, made = {}, MADE_LAZILY[make](xr.open_dataset(store, engine="nczarr"))
    to_nczarr(made, target, zarr_format=version)
    touched = xr_nczarr.explain(made).readings[0].chunks
    assert decoded.count(CHUNKS[chunk]) == touched
    xr.testing.assert_equal(read(target), MADE_LAZILY[make](dataset))


def texts(block):
    """Return strings of 100 characters, some of which are missing."""
    result = np.array([f"{number:0100d}" for number in block.ravel()], object)
    result[::250] = None
    return result.reshape(block.shape)


def times(block):
    return np.datetime64("2000-01-01", "ns") + block * np.timedelta64(1, "h")


@pytest.mark.parametrize(
    ("how", "lazy"), [("create", "opened"), ("append", "dask"), ("compute", "dask")]
)
@pytest.mark.parametrize("convert", [texts, times])
def test_strings_and_times_are_written_block_by_block(path, how, convert, lazy, monkeypatch):
    """There are 40 blocks. Loaded as a whole, the strings take 11 MB and the times 5 MB.

    The graph of dask 2024.12 takes 1 MB more than that of 2026.8.
    """
    monkeypatch.setattr(lazy_sources, "_BLOCK_BYTES", 1 << 16)
    count, block = (20_000, 500) if convert is texts else (160_000, 4_000)
    dtype = object if convert is texts else "M8[ns]"
    numbers = dask.array.arange(count, chunks=block)
    values = numbers.map_blocks(convert, dtype=dtype, meta=np.empty(0, dtype))
    dataset = xr.Dataset({"v": ("t", values)})
    encoding = {} if convert is texts else {"units": "hours since 2000-01-01", "dtype": "i8"}
    options = {"encoding": {"v": {**encoding, "chunks": (block,)}}}
    with dask.config.set(scheduler="threads", num_workers=2), warnings.catch_warnings():
        warnings.simplefilter("error")
        if lazy == "dask":  # xarray also warns about this
            warnings.filterwarnings("ignore", "variable v has data in the form of a dask array")
        if lazy == "opened":
            with warnings.catch_warnings(action="ignore"):
                to_nczarr(dataset, f"{path}-source", **options)
            dataset, options = xr.open_dataset(f"{path}-source", engine="nczarr"), {}
        if how == "append":
            to_nczarr(dataset.isel(t=slice(0, 10)), path, **options)
            options = {"append_dim": "t"}
        tracemalloc.start()
        try:
            result = to_nczarr(dataset, path, compute=how != "compute", **options)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < (5e6 if convert is texts else 4.2e6)
    assert (result is None) == (how != "compute")
    if result is not None:
        result.compute()
    opened = read(path).v[-count:]
    expected = convert(np.arange(count))
    if convert is texts:
        missing = [item is None for item in expected]
        expected[missing] = opened[missing] = ""
    assert (opened.values == expected).all()


@pytest.mark.parametrize("chunks", [None, {"t": 2}], ids=["numpy", "dask"])
def test_progress_shows_total_bytes_of_all_variables(path, capsys, chunks):
    dataset = example() if chunks is None else example().chunk(chunks)
    to_nczarr(dataset, path, progress=True)
    shown = capsys.readouterr().err.rpartition("\r")[2]
    assert "100%" in shown
    size = tqdm.format_sizeof(dataset.nbytes)
    assert f" {size}/{size} [" in shown


def test_single_progress_bar_completes_with_distributed_client(path, workers, capfd):
    with workers.as_current():
        to_nczarr(example().chunk(t=2), path, progress=True)
    shown, others = capfd.readouterr()[::-1]
    assert "100%" in shown.rpartition("\r")[2]
    assert others == ""
    assert read(path).equals(example())


@pytest.mark.parametrize("sync", ["commit", "all", "none"])
@pytest.mark.parametrize("atomic", [False, True])
def test_sync_and_atomic_options_do_not_affect_written_store(path, sync, atomic):
    options = {"storage_options": {"sync": sync}}
    to_nczarr(example(), path, **options)
    to_nczarr(example(8, 9), path, append_dim="t", atomic=atomic, **options)
    xr.testing.assert_identical(read(path), example(0, 9))
    assert os.listdir(os.path.dirname(path)) == ["store"]


def test_failed_creation_leaves_no_files(path):
    def fail(block):
        raise RuntimeError("no values")

    values = dask.array.ones(4, chunks=2).map_blocks(fail, dtype="f8", meta=np.ones(0))
    with pytest.raises(RuntimeError, match="no values"):
        to_nczarr(xr.Dataset({"a": ("t", values)}), path)
    assert os.listdir(os.path.dirname(path)) == []


def test_failed_creation_in_mapping_leaves_no_store_and_can_be_repeated():
    class Failing(dict):
        def __setitem__(self, key, value):
            if key.endswith("n/.zarray"):
                raise OSError("full")
            super().__setitem__(key, value)

    store = Failing()
    with pytest.raises(OSError, match="full"):
        to_nczarr(example(), store)
    with pytest.raises(NotFoundError):
        read(store)
    whole = dict(store)
    to_nczarr(example(), whole)
    xr.testing.assert_identical(read(whole), example())


def test_every_function_expands_tilde_to_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    to_nczarr(example(), "~/a.nczarr")
    example().to_netcdf("~/a.nc")
    xr_nczarr.copy("~/a.nc", "~/b.nczarr")
    xr_nczarr.references.write("~/a.nczarr", "~/a.json")
    for name in ("a.nczarr", "b.nczarr", "a.json"):
        with xr.open_dataset(f"~/{name}", engine="nczarr") as result:
            xr.testing.assert_equal(result, example())
    assert not (tmp_path / "~").exists()


def test_local_path_with_s3_mode_is_rejected(tmp_path):
    with pytest.raises(ConflictError, match="mode=s3 in the URL means an S3 bucket"):
        to_nczarr(xr.Dataset(), f"{tmp_path}/a#mode=nczarr,s3")


@pytest.mark.parametrize("chain", ["zip://::", "simplecache://::zip://::", "zip://::simplecache::"])
def test_chained_url_can_end_with_file_url(tmp_path, chain):
    to_nczarr(xr.Dataset({"t": ("x", [1, 2])}), tmp_path / "a.zip")
    cache = {"simplecache": {"cache_storage": str(tmp_path / "cache")}}
    options = cache if "simplecache" in chain else None
    result = xr.open_dataset(
        f"{chain}file://{tmp_path}/a.zip", engine="nczarr", storage_options=options
    )
    xr.testing.assert_identical(result.load(), xr.Dataset({"t": ("x", [1, 2])}))


@pytest.mark.parametrize("cache", ["simplecache", "filecache"])
def test_writing_through_cache_is_rejected(path, tmp_path, cache):
    options = {cache: {"cache_storage": str(tmp_path / "cache")}}
    to_nczarr(example(0, 2), path, consolidated=False)
    through = f"{cache}::file://{path}"
    assert len(read(through, storage_options=options).t) == 2
    to_nczarr(example(2, 4), path, append_dim="t")
    with pytest.raises(UnsupportedError, match="through a cache"):
        to_nczarr(example(4, 6), through, append_dim="t", storage_options=options)
    assert read(path).identical(example(0, 4))


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("v2", {"zarr_format": 3}),
        ("nczarr", {"dialect": "zarr"}),
        ("zarr", {"dialect": "nczarr-4.8.1"}),
    ],
)
def test_url_fragment_that_contradicts_argument_is_rejected(path, mode, options):
    with pytest.raises(ConflictError, match="the URL fragment contains"):
        to_nczarr(example(), f"file://{path}#mode={mode},file", **options)


LITTER = (".DS_Store", "._v", "Thumbs.db", "desktop.ini", "DESKTOP.INI", ".directory", "Icon\r")


def littered(where, path):
    """Return a folder with only files of file managers, and a function that lists it."""
    if where == "mapping":
        store = dict.fromkeys(LITTER, b"litter")
        return store, lambda: [name for name in LITTER if store.get(name) == b"litter"]
    os.makedirs(path)
    for name in LITTER:
        with open(f"{path}/{name}", "wb") as file:
            file.write(b"litter")
    listed = lambda: [name for name in LITTER if Path(path, name).read_bytes() == b"litter"]  # noqa: E731
    return path, listed


@pytest.mark.parametrize("where", ["directory", "mapping"])
@pytest.mark.parametrize("mode", ["w-", "w", "a", "append", "copy"])
def test_files_created_by_file_managers_are_ignored_and_kept(path, where, mode):
    target, left = littered(where, path)
    if mode == "copy":
        source = {}
        to_nczarr(example(), source)
        xr_nczarr.copy(source, target)
    elif mode == "append":
        to_nczarr(example(), target, append_dim="t")
    else:
        to_nczarr(example(), target, mode=mode)
    assert left() == [*LITTER]
    xr.testing.assert_equal(read(target), example())
    with pytest.raises(ExistsError):
        to_nczarr(example(), target)
    to_nczarr(example(8, 9), target, mode="w")
    to_nczarr(example(9, 12), target, append_dim="t", atomic=True)
    assert left() == [*LITTER]
    xr.testing.assert_equal(read(target), example(8, 12))


def test_directory_with_user_files_is_not_treated_as_empty(path):
    target, left = littered("directory", path)
    with open(f"{path}/notes.txt", "wb") as file:
        file.write(b"mine")
    with pytest.raises(ExistsError, match="not belong to a Zarr store"):
        to_nczarr(example(), target)
    with pytest.raises(RefusedError, match="not a Zarr store"):
        to_nczarr(example(), target, mode="w")
    assert left() == [*LITTER]
    assert Path(path, "notes.txt").read_bytes() == b"mine"


def test_folder_named_like_file_manager_file_is_not_ignored(path):
    os.makedirs(f"{path}/.DS_Store")
    with pytest.raises(ExistsError, match="not belong to a Zarr store"):
        to_nczarr(example(), path)


def test_url_fragment_can_request_consolidated_metadata(path):
    to_nczarr(series(0, 2), f"file://{path}#mode=nczarr,file&consolidated", zarr_format=3)
    xr.testing.assert_identical(read(path, consolidated=True), series(0, 2))
