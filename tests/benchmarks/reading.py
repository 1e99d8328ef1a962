"""Benchmarks of reading local stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import dask.array as da
import numpy as np
import tensorstore
import xarray as xr
import zarr

from tests.benchmarks import baselines, data
from tests.benchmarks.harness import OURS, Row
from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.dataset import open_netcdf
from xr_nczarr.options import OpenOptions


def ours(path: Path | str, storage_options: Mapping[str, Any] | None = None) -> ChunkedArray:
    """Return the array ``field`` as opened by xr_nczarr without xarray."""
    opened = open_netcdf(path, OpenOptions(storage_options=storage_options))
    return ChunkedArray(opened.root.variables["field"].readable_node, opened.store)


def everything(array: ChunkedArray) -> np.ndarray:
    return array.read((slice(None),) * len(array.node.shape))


def by_zarr(path: Path) -> zarr.Array:
    return zarr.open_array(path / "field", mode="r", zarr_format=2)


def by_zarrs(path: Path) -> zarr.Array:
    """Open an array with zarr-python and the codec pipeline of zarrs."""
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        return by_zarr(path)


def by_tensorstore(path: Path) -> tensorstore.TensorStore:
    spec = {"driver": "zarr", "kvstore": {"driver": "file", "path": f"{path}/field/"}}
    return tensorstore.open(spec, read=True).result()


def _baseline(path: Path, name: str, fill: np.floating | None = None) -> Callable[[], None]:
    """Return a function that reads, decodes and masks chunks of the large field on two threads."""
    chunk_bytes = 4 * data.CHUNKS[1] * data.CHUNKS[2]
    return baselines.reading(
        baselines.chunk_files(path), baselines.DECODERS[name], chunk_bytes, fill=fill
    )


def by_netcdf(path: Path, mode: str = "nczarr") -> Callable[[], np.ndarray]:
    import netCDF4

    def read() -> np.ndarray:
        with netCDF4.Dataset(f"file://{path}#mode={mode},file") as file:
            variable = file["field"]
            variable.set_auto_maskandscale(False)
            return variable[...]

    return read


def large_chunks(directory: Path) -> Iterator[Row]:
    """Yield benchmarks of reading a 265 MB float32 field in chunks of 4 MB.

    There is at least one benchmark for each codec.
    """
    for name in data.COMPRESSORS:
        path = data.large(directory, name)
        array, zarr_array, zarrs_array = ours(path), by_zarr(path), by_zarrs(path)
        store = by_tensorstore(path)
        implementations = {
            OURS: lambda array=array: everything(array),
            "zarr-python": lambda zarr_array=zarr_array: zarr_array[...],
            "zarrs": lambda zarrs_array=zarrs_array: zarrs_array[...],
            "tensorstore": lambda store=store: store.read().result(),
            "baseline": _baseline(path, name),
        }
        if name != "blosc":
            implementations["netcdf-c"] = by_netcdf(path, "zarr")
        goals = {"zarr-python": 1, "zarrs": 1, "tensorstore": 1, "netcdf-c": 1, "baseline": 0.8}
        if name == "zlib":
            goals |= {"zarr-python": 2, "tensorstore": 1.3}
        yield Row(f"265 MB, 4 MB chunks, {name}", implementations, goals)
        if name == "zlib":
            yield Row(
                "265 MB, 4 MB chunks, zlib, without the fast extra",
                implementations | {OURS: _without_deflate(path)},
                {"zarr-python": 1, "netcdf-c": 1.8},
            )
        if name in ("raw", "blosc"):
            yield from _through_xarray(
                path, f"265 MB through xarray, {name}", _baseline(path, name)
            )
    path = data.masked(directory)
    baseline = _baseline(path, "raw", fill=np.float32(data.FILL))
    yield from _through_xarray(path, "265 MB masked by xarray, raw", baseline)


def _without_deflate(path: Path | str) -> Callable[[], np.ndarray]:
    array = ours(path)
    with mock.patch("xr_nczarr.codecs.compressors.deflate", None):
        assert array.codec
    return lambda: everything(array)


def load(path: Path, engine: str, **options) -> np.ndarray:
    with xr.open_dataset(path, engine=engine, **options) as dataset:
        return dataset["field"].load().values


def by_pipeline(read: Callable[[], np.ndarray]) -> Callable[[], np.ndarray]:
    """Return a function that calls `read` with the codec pipeline of zarrs."""

    def run() -> np.ndarray:
        with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
            return read()

    return run


def _through_xarray(path: Path, name: str, baseline: Callable[[], None]) -> Iterator[Row]:
    cases = (
        ("", 4, {}, {"baseline": baseline}),
        (", chunks={}", 1.8, {"chunks": {}}, {"baseline: dask": _load_from_memory}),
    )
    for label, goal, options, baselines_of_case in cases:
        peer = partial(load, path, "zarr", **options)
        yield Row(
            f"{name}{label}",
            {
                OURS: partial(load, path, "nczarr", **options),
                "engine zarr": peer,
                "engine zarr, zarrs": by_pipeline(peer),
                "undecoded": partial(load, path, "nczarr", decode_cf=False, **options),
                **baselines_of_case,
            },
            {"engine zarr": goal, "engine zarr, zarrs": 1, "undecoded": 1 / 1.2},
        )


def _load_from_memory() -> np.ndarray:
    """Load a dask array of the size of the large field, whose blocks are already in memory."""
    block = np.ones(data.CHUNKS, "f4")
    blocks = da.map_blocks(lambda _: block, da.empty(data.SHAPE, chunks=data.CHUNKS), dtype="f4")
    return xr.DataArray(blocks).load().values


def netcdf_default(directory: Path) -> Iterator[Row]:
    """Yield benchmarks of the codecs that netcdf-c uses by default, which are zlib and shuffle."""
    path = directory / "shuffled.nczarr"
    if not path.exists():
        data.netcdf_store(directory, "shuffled", data.field(), data.CHUNKS, zlib=True, complevel=4)
    array = ours(path)
    yield Row(
        "265 MB, zlib + shuffle written by netcdf-c",
        {OURS: lambda: everything(array), "netcdf-c": by_netcdf(path)},
        {"netcdf-c": 3},
    )
    yield Row(
        "265 MB, zlib + shuffle written by netcdf-c, without the fast extra",
        {OURS: _without_deflate(path), "netcdf-c": by_netcdf(path)},
        {"netcdf-c": 1.8},
    )
    yield Row(
        "265 MB, zlib + shuffle written by netcdf-c, through xarray",
        {
            OURS: partial(load, path, "nczarr"),
            "engine netcdf4": lambda: load(f"file://{path}#mode=nczarr,file", "netcdf4"),
        },
        {"engine netcdf4": 3},
    )


def packed(directory: Path) -> Iterator[Row]:
    """Yield a benchmark of decoding packed int16 values with scale, offset and fill value."""
    attributes = {"scale_factor": 0.01, "add_offset": 280.0, "_FillValue": -32767}
    made = (directory / "packed.zarr").exists()
    values = np.empty(0) if made else ((data.field() - 280) * 100).astype("i2")
    path = data.zarr_store(directory, "packed", values, data.CHUNKS, None, attributes=attributes)
    yield Row(
        "packed int16, decoded",
        {
            OURS: partial(load, path, "nczarr"),
            "engine zarr": partial(load, path, "zarr"),
            "undecoded": partial(load, path, "nczarr", decode_cf=False),
        },
        {"engine zarr": 3.5},
    )


def small_chunks(directory: Path) -> Iterator[Row]:
    """Yield benchmarks of reading many chunks of 4, 16 and 64 kB."""
    cases = (
        ("raw", 16_000, 1024),
        ("raw", 100_000, 1024),
        ("blosc", 4_000, 4096),
        ("zstd", 4_000, 4096),
        ("blosc", 1_000, 16_384),
        ("zstd", 1_000, 16_384),
    )
    for name, count, elements in cases:
        path = data.small(directory, name, count, elements)
        array, zarr_array, zarrs_array = ours(path), by_zarr(path), by_zarrs(path)
        store = by_tensorstore(path)
        implementations = {
            OURS: lambda array=array: everything(array),
            "zarrs": lambda zarrs_array=zarrs_array: zarrs_array[...],
            "tensorstore": lambda store=store: store.read().result(),
            "baseline": baselines.reading(
                baselines.chunk_files(path),
                baselines.DECODERS[name],
                4 * elements,
                threads=2 if name == "zstd" or elements > 4096 else 1,
            ),
        }
        goals: dict[str, float] = {"zarrs": 1, "tensorstore": 1}
        if name == "raw":
            goals = {"zarrs": 2, "tensorstore": 1.5}
        if count < 100_000:  # zarr-python would take half a minute
            implementations["zarr-python"] = lambda zarr_array=zarr_array: zarr_array[...]
            goals["zarr-python"] = 15
        if name == "raw":
            implementations["netcdf-c"] = by_netcdf(path, "zarr")
            goals["netcdf-c"] = 2
        yield Row(f"{count:,} chunks of {elements * 4 // 1024} kB, {name}", implementations, goals)


def selections(directory: Path) -> Iterator[Row]:
    """Yield benchmarks of selections, for example of a point or a row of each chunk."""
    rows = np.array([3, 77, 500, 1000])
    # The selections by name, each with the goal for blosc chunks.
    cases = {
        "point series": ((slice(None), slice(500, 501), slice(500, 501)), 4),
        "one row of every chunk": ((slice(None), slice(500, 501), slice(None)), 4),
        "one box of every chunk": ((slice(None), slice(500, 532), slice(500, 532)), 4),
        "strided": ((slice(None, None, 4), slice(None, None, 16), slice(None, None, 16)), 1 / 1.1),
        "orthogonal": ((np.array([5, 17, 40]), rows, rows + 7), 1 / 1.1),
    }
    for name in ("raw", "blosc"):
        path = data.large(directory, name)
        array, zarr_array, zarrs_array = ours(path), by_zarr(path), by_zarrs(path)
        store = by_tensorstore(path)
        baseline = (
            _baseline_rows(path, rows) if name == "raw" else _baseline_blocks(directory, path)
        )
        for label, (selection, goal) in cases.items():
            yield Row(
                f"{label}, {name}",
                {
                    OURS: lambda array=array, s=selection: array.read(s),
                    "zarr-python": lambda a=zarr_array, s=selection: a.oindex[s],
                    "zarrs": lambda a=zarrs_array, s=selection: a.oindex[s],
                    "tensorstore": lambda a=store, s=selection: a.oindex[s].read().result(),
                    "baseline": baseline[label],
                },
                dict.fromkeys(
                    ("zarr-python", "zarrs", "tensorstore"), 10 if name == "raw" else goal
                ),
            )


def _baseline_rows(path: Path, rows: np.ndarray) -> dict[str, Callable[[], None]]:
    """Return a baseline for each selection from uncompressed chunks.

    A baseline reads the rows that the selection needs from each file.
    """
    files, (_, _, row) = baselines.chunk_files(path), data.CHUNKS
    series = sorted(files, key=lambda file: int(file.name.split(".")[0]))
    return {
        "point series": baselines.rows_of_files(series, [500], 4 * row, 4),
        "one row of every chunk": baselines.rows_of_files(series, [500], 4 * row, 4 * row),
        "one box of every chunk": baselines.rows_of_files(series, [500], 4 * row, 32 * 4 * row),
        "strided": baselines.rows_of_files(series[::4], range(0, 1024, 16), 4 * row, 4 * row),
        "orthogonal": baselines.rows_of_files(series[:3], rows.tolist(), 4 * row, 4 * row),
    }


def _baseline_blocks(directory: Path, path: Path) -> dict[str, Callable[[], None]]:
    """Return a baseline for each selection from compressed chunks.

    A baseline decodes only the blocks that the selection needs.
    """
    count, height, width = data.SHAPE[0], data.CHUNKS[1] // 8, data.CHUNKS[2]
    made = (directory / "eighths.zarr").exists()
    values = np.empty(0) if made else data.field()[:, 3 * height : 4 * height]
    blocks = data.zarr_store(
        directory, "eighths", values, (1, height, width), data.COMPRESSORS["blosc"]
    )
    decode, files = baselines.DECODERS["blosc"], baselines.chunk_files(path)
    frames = baselines.chunk_files(blocks)
    first, second = (
        baselines.reading(frames * count, decode, 4 * height * width) for count in (1, 2)
    )
    whole = 8 * 4 * height * width
    return {
        "point series": first,
        "one row of every chunk": first,
        "one box of every chunk": second,  # the box spans two blocks
        "strided": baselines.reading(files[: count // 4], decode, whole),
        "orthogonal": baselines.reading(files[:3], decode, whole),
    }


def opening(directory: Path) -> Iterator[Row]:
    """Yield benchmarks of opening 500 variables."""
    paths = data.many_variables(directory)

    def row(name: str, kind: str, peer: str, url: object, goal: float, **options) -> Row:
        documents = baselines.documents(paths[kind])

        def baseline() -> xr.Dataset:
            documents()
            lazy = xr.decode_cf(xr.Dataset(variables(Lazy(values))))
            return lazy.chunk({}) if "chunks" in options else lazy

        implementations = {
            OURS: lambda: xr.open_dataset(paths[kind], engine="nczarr", **options),
            f"engine {peer}": lambda: xr.open_dataset(url, engine=peer, **options),
            "xarray alone": lambda: xr.decode_cf(xr.Dataset(variables(values))),
            "baseline": baseline,
        }
        goals = {f"engine {peer}": goal, "xarray alone": 1 / 1.3}
        if "chunks" in options:
            del implementations["xarray alone"], goals["xarray alone"]
        return Row(f"open 500 variables{name}", implementations, goals, described, xr.Dataset.close)

    def variables(data: object) -> dict[str, xr.Variable]:
        """Return undecoded xarray variables that are built from `data` without a store."""
        return {
            f"v{number:03}": xr.Variable(
                ("x",),
                data,
                {"units": "m", "long_name": f"variable {number}", "level": 3.5, "_FillValue": nan},
                fastpath=True,
            )
            for number in range(500)
        }

    values, nan = np.arange(10, dtype="f4"), np.float32(np.nan)
    netcdf = f"file://{paths['nczarr']}#mode=nczarr,file"
    yield row(", consolidated", "consolidated", "zarr", paths["consolidated"], 2.5)
    yield row(", not consolidated", "single", "zarr", paths["single"], 8, consolidated=False)
    yield row(", NCZarr", "nczarr", "netcdf4", netcdf, 1.4)
    yield row(", chunks={}", "consolidated", "zarr", paths["consolidated"], 1.6, chunks={})


class Lazy(xr.backends.BackendArray):
    """A minimal lazy array, which represents the lazy arrays that every engine creates."""

    def __init__(self, values: np.ndarray) -> None:
        self.shape, self.dtype = values.shape, values.dtype


def described(dataset: xr.Dataset) -> list[str]:
    """Return names, dimensions, dtypes and values of all variables."""
    return [
        f"{name} {variable.dims} {variable.dtype} {variable.values.tolist()}"
        for name, variable in sorted(dataset.variables.items())
    ]
