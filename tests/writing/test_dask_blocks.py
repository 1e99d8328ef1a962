"""Blocks of dask arrays and of lazily opened variables are checked, and written once."""

import os
import warnings

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.reading import peak_memory, read
from tests.writes import example
from xr_nczarr import ConflictError, to_nczarr
from xr_nczarr.storage import LocalStore
from xr_nczarr.writing import source_blocks
from xr_nczarr.writing.chunk_writes import aligned_blocks

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
def test_dask_blocks_are_converted_to_declared_dtype(zarr_format, declared, computed):
    # If the declared dtype was wrong, the bits of the integer 2 were once read as 9.88e-324.
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
def test_dask_blocks_with_values_outside_declared_dtype_are_rejected(value, declared):
    blocks = da.from_array(np.array([value]), chunks=1)
    wrong = blocks.map_blocks(np.copy, dtype=declared, meta=np.empty(0, declared))
    with pytest.raises(ConflictError, match=f"the declared dtype {declared} cannot represent"):
        xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", wrong)}), {}, dialect="zarr")


@pytest.mark.parametrize("made", [np.sum, lambda block: block[:1], lambda block: block[:, None]])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_dask_blocks_of_undeclared_shape_are_rejected(path, made, zarr_format):
    # Blocks without dimensions were once all written to the first element.
    blocks = da.from_array(np.arange(4.0), chunks=2)
    wrong = xr.Dataset({"v": ("x", blocks.map_blocks(made, dtype="f8", chunks=blocks.chunks))})
    with pytest.raises(ConflictError, match=r"dask block has shape .*its metadata says \(2,\)"):
        xr_nczarr.to_nczarr(wrong, path, zarr_format=zarr_format)
    xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", blocks)}), path, zarr_format=zarr_format)
    with pytest.raises(ConflictError, match=r"its metadata says \(2,\)"):
        xr_nczarr.to_nczarr(wrong, path, append_dim="x")
    assert read(path).v.values.tolist() == [0, 1, 2, 3]


def test_dask_blocks_with_overlong_byte_strings_are_rejected():
    blocks = da.from_array(np.array([b"abc"]), chunks=1)
    shorter = blocks.map_blocks(np.copy, dtype="S2", meta=np.empty(0, "S2"))
    with pytest.raises(ConflictError, match=r"has dtype \|S3, but the declared dtype \|S2"):
        xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", shorter)}), {}, dialect="zarr")


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
    """The variable has 96 MiB. Two threads hold only a few blocks of 4 MiB each."""
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
        peak = peak_memory(lambda: to_nczarr(lazy, path, **options.get(how, {})))
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
    """There are 40 blocks. All strings together take 11 MB, and all times 5 MB.

    dask 2024.12 needs 1 MB more for the graph than dask 2026.8 does.
    """
    monkeypatch.setattr(source_blocks, "_BLOCK_BYTES", 1 << 16)
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
        results = []
        options |= {"compute": how != "compute"}
        peak = peak_memory(lambda: results.append(to_nczarr(dataset, path, **options)))
    assert peak < (5e6 if convert is texts else 4.2e6)
    (result,) = results
    assert (result is None) == (how != "compute")
    if result is not None:
        result.compute()
    opened = read(path).v[-count:]
    expected = convert(np.arange(count))
    if convert is texts:
        missing = [item is None for item in expected]
        expected[missing] = opened[missing] = ""
    assert (opened.values == expected).all()
