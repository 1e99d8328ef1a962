"""Benchmarks of writing the 265 MB field to a local directory with the defaults of a program."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import tensorstore
import xarray as xr
import zarr
from numcodecs import Shuffle, Zlib

from tests.benchmarks import baselines, data
from tests.benchmarks.harness import OURS, Row
from tests.benchmarks.reading import by_zarr
from xr_nczarr import to_nczarr

Write = Callable[[Path], object]


def writing(directory: Path) -> Iterator[Row]:
    """Yield benchmarks of writing with each codec, and with the default codecs of netcdf-c."""
    values = data.field()
    dataset = xr.Dataset({"field": (("t", "y", "x"), values)})
    for name in ("raw", "blosc", "zstd"):
        compressor = data.COMPRESSORS[name]
        encode = compressor and compressor.encode
        encoding = {"field": {"chunks": data.CHUNKS, "compressors": compressor}}
        yield _row(
            directory / "written",
            f"write 265 MB, {name}",
            {
                OURS: lambda path, encoding=encoding: to_nczarr(
                    dataset, path, encoding=encoding, dialect="zarr"
                ),
                "xr_nczarr, sync='none'": lambda path, encoding=encoding: to_nczarr(
                    dataset,
                    path,
                    encoding=encoding,
                    dialect="zarr",
                    storage_options={"sync": "none"},
                ),
                "to_zarr": lambda path, encoding=encoding: dataset.to_zarr(
                    path, encoding=encoding, zarr_format=2
                ),
                "zarr-python": lambda path, c=compressor: _by_zarr(path, values, compressors=c),
                "zarrs": lambda path, c=compressor: _by_zarrs(path, values, compressors=c),
                "tensorstore": lambda path, c=compressor: _by_tensorstore(path, values, c),
                "encoding alone": lambda path, encode=encode: baselines.encoded(values, encode),
                "baseline": lambda path, encode=encode: baselines.encoded(values, encode, path),
            },
            {
                "to_zarr": 3 if name == "raw" else 1.4,
                "zarr-python": 1,
                "zarrs": 1,
                "tensorstore": 1,
                "encoding alone": 1 / 1.35,
            },
            lambda path: by_zarr(path)[...],
        )
    packing = {"zlib": True, "shuffle": True, "complevel": 4, "chunksizes": data.CHUNKS}
    chain = {"filters": [Shuffle(4)], "compressors": Zlib(4)}
    folder, writers = (
        directory / "written",
        {
            OURS: lambda path: to_nczarr(dataset, path, encoding={"field": packing}),
            "netcdf-c": lambda path: _by_netcdf(path, values),
            "zarr-python": lambda path: _by_zarr(path, values, **chain),
            "zarrs": lambda path: _by_zarrs(path, values, **chain),
            "baseline": lambda path: baselines.encoded(values, baselines.shuffled_deflated, path),
        },
    )
    name = "write 265 MB, zlib + shuffle"
    yield _row(
        folder,
        name,
        writers,
        dict.fromkeys(("netcdf-c", "zarr-python", "zarrs"), 2),
        lambda path: xr.open_dataset(path, engine="nczarr", mask_and_scale=False).field.values,
    )
    yield Row(
        f"{name}: size on disk",
        {
            key: partial(_written_bytes, write, folder / "size")
            for key, write in writers.items()
            if key != "baseline"
        },
        {"netcdf-c": 1, "zarr-python": 1, "zarrs": 1},
        unit="B",
    )


def _written_bytes(write: Write, path: Path) -> int:
    try:
        write(path)
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    finally:
        shutil.rmtree(path, True)


def _row(
    folder: Path,
    name: str,
    writers: dict[str, Write],
    goals: dict[str, float],
    read: Callable[[Path], np.ndarray],
) -> Row:
    """Return a benchmark in which each implementation writes a new store in every run.

    The values of the stores are compared once, and each store is removed after its run.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    numbers = itertools.count()

    def implementation(write: Write) -> Callable[[], Path]:
        def run() -> Path:
            path = folder / f"{next(numbers)}.zarr"
            write(path)
            return path

        return run

    implementations = {name: implementation(write) for name, write in writers.items()}
    return Row(name, implementations, goals, read, lambda path: shutil.rmtree(path, True))


def _by_zarr(path: Path, values: np.ndarray, **codecs: Any) -> None:
    group = zarr.create_group(path, zarr_format=2)
    group.create_array("field", data=values, chunks=data.CHUNKS, fill_value=np.nan, **codecs)


def _by_zarrs(path: Path, values: np.ndarray, **codecs: Any) -> None:
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        _by_zarr(path, values, **codecs)


def _by_tensorstore(path: Path, values: np.ndarray, compressor: Any) -> None:
    metadata = {
        "shape": list(values.shape),
        "chunks": list(data.CHUNKS),
        "dtype": "<f4",
        "compressor": compressor and compressor.get_config(),
        "fill_value": "NaN",
    }
    if compressor and compressor.codec_id == "zstd":
        metadata["compressor"] = {"id": "zstd", "level": compressor.level}
    spec = {
        "driver": "zarr",
        "kvstore": {"driver": "file", "path": f"{path}/field/"},
        "metadata": metadata,
    }
    tensorstore.open(spec, create=True).result().write(values).result()


def _by_netcdf(path: Path, values: np.ndarray) -> None:
    with netCDF4.Dataset(f"file://{path}#mode=nczarr,file", "w") as file:
        for dimension, size in zip("tyx", values.shape, strict=True):
            file.createDimension(dimension, size)
        variable = file.createVariable(
            "field", "f4", tuple("tyx"), zlib=True, complevel=4, chunksizes=data.CHUNKS
        )
        variable[...] = values
