"""Benchmarks of operations on a store: appends, copies, region writes and streams."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numcodecs import Blosc

import xr_nczarr
from tests.benchmarks import data
from tests.benchmarks.harness import OURS, Row

CHUNKS = (24, 45, 90)
STREAMED_BYTES = 1 << 28
WRITERS = 8
FAST = {"codecs": [{"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}]}

_STREAM = """
import re, sys
import dask.array as da
import xarray as xr
import xr_nczarr

def peak():
    return int(re.search("VmHWM: *([0-9]+)", open("/proc/self/status").read().expandtabs())[1])

path, writer, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
values = da.random.default_rng(0).random((count, 512, 1024), chunks=(1, 512, 1024), dtype="f4")
dataset = xr.Dataset({"field": (("t", "y", "x"), values)})
before = peak()
if writer == "ours":
    xr_nczarr.to_nczarr(dataset, path)
else:
    dataset.to_zarr(path, zarr_format=2, consolidated=True)
print((peak() - before) / 1e3)
"""


def operation(directory: Path) -> Iterator[Row]:
    """Yield benchmarks of appends, copies, many variables, region writes and streams."""
    folder = directory / "operation"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    yield from _appends(folder)
    yield from _copies(folder)
    yield from _many_variables(folder)
    yield _regions(folder)
    for times in (1, 10):
        yield Row(
            f"peak memory while streaming {times * STREAMED_BYTES >> 20} MiB, excluding imports",
            {
                OURS: partial(_streamed, folder, "ours", times),
                "to_zarr": partial(_streamed, folder, "to_zarr", times),
            },
            {"to_zarr": 1},
            unit="MB",
        )


def _steps(begin: int, count: int) -> xr.Dataset:
    """Return hourly steps of a field in which all values of a step equal its number."""
    hours = np.arange(begin, begin + count)
    values = np.broadcast_to(hours[:, None, None].astype("f4"), (count, 45, 90))
    return xr.Dataset({"t2m": (("time", "y", "x"), values)}, {"time": hours})


def _appends(folder: Path) -> Iterator[Row]:
    """Yield benchmarks of appending one step to stores of 10, 1,000 and 10,000 steps."""
    encoding = {"t2m": {"chunks": CHUNKS}, "time": {"chunks": (512,)}}
    for length in (10, 1000, 10_000):
        stores = {OURS: folder / f"ours_{length}", "to_zarr": folder / f"theirs_{length}"}
        xr_nczarr.to_nczarr(
            _steps(0, length), stores[OURS], encoding=encoding, unlimited_dims=["time"]
        )
        _steps(0, length).to_zarr(stores["to_zarr"], encoding=encoding, zarr_format=2)

        def append(name: str, hours: Iterator[int], path: Path) -> float:
            step = _steps(next(hours), 1)
            if name == OURS:
                xr_nczarr.to_nczarr(step, path, append_dim="time")
            else:
                step.to_zarr(path, append_dim="time")
            return 1.0

        yield Row(
            f"append one time step to {length:,}",
            {
                name: partial(append, name, itertools.count(length), path)
                for name, path in stores.items()
            },
            {"to_zarr": 1},
        )


def _fresh(folder: Path, write: Callable[[Path], object]) -> Callable[[], Path]:
    """Return an implementation that writes a new store on each call and returns its path."""
    numbers = itertools.count()
    name = f"{id(write):x}"

    def run() -> Path:
        path = folder / f"{name}_{next(numbers)}"
        write(path)
        return path

    return run


def _copies(folder: Path) -> Iterator[Row]:
    """Yield benchmarks of copying 1,000 chunks: unchanged, with different codecs, and rechunked."""
    values = data.field()
    chunks = (values.shape[0] // 10 or 1, *(max(1, size // 10) for size in values.shape[1:]))
    source = folder / "source"
    dataset = xr.Dataset({"field": (("t", "y", "x"), values)})
    encoding = {"field": {"chunks": chunks, "compressors": data.COMPRESSORS["blosc"]}}
    xr_nczarr.to_nczarr(dataset, source, encoding=encoding)
    turned = {"t": 1, "y": values.shape[1], "x": values.shape[2]}

    def by_xarray(path: Path, **field: Any) -> None:
        with xr.open_dataset(source, engine="nczarr", chunks={}) as opened:
            opened = opened.drop_encoding()
            if "chunks" in field:
                opened = opened.chunk(dict(zip("tyx", field["chunks"], strict=True)))
            opened.to_zarr(path, zarr_format=2, encoding={"field": field})

    rows: dict[str, tuple[dict[str, Callable[[Path], object]], dict[str, float]]] = {
        "copy encoded chunks": (
            {
                OURS: lambda path: xr_nczarr.copy(source, path),
                "limit: plain file copy": lambda path: shutil.copytree(source, path),
            },
            {"limit: plain file copy": 0.4},
        ),
        "copy with different codecs": (
            {
                OURS: lambda path: xr_nczarr.copy(source, path, **FAST),
                "open + to_zarr": lambda path: by_xarray(
                    path, chunks=chunks, compressors=Blosc("lz4", 5, 1)
                ),
            },
            {"open + to_zarr": 1.25},
        ),
        "copy with rechunking": (
            {
                OURS: lambda path: xr_nczarr.copy(source, path, chunks=turned),
                "open + to_zarr": lambda path: by_xarray(
                    path, chunks=tuple(turned.values()), compressors=data.COMPRESSORS["blosc"]
                ),
            },
            {"open + to_zarr": 1.25},
        ),
        "write an opened dataset": (
            {
                OURS: lambda path: xr_nczarr.to_nczarr(
                    xr.open_dataset(source, engine="nczarr"), path
                ),
                "limit: same with chunks={}": lambda path: xr_nczarr.to_nczarr(
                    xr.open_dataset(source, engine="nczarr", chunks={}), path
                ),
            },
            {"limit: same with chunks={}": 1 / 1.15},
        ),
    }
    for name, (writers, goals) in rows.items():
        yield Row(
            f"{name}, 265 MB",
            {implementation: _fresh(folder, write) for implementation, write in writers.items()},
            goals,
            lambda path: xr.open_dataset(path, engine="nczarr").field.values,
            lambda path: shutil.rmtree(path, True),
        )


def _many_variables(folder: Path) -> Iterator[Row]:
    for count in (1000, 5000):
        path = folder / f"variables_{count}"
        many = xr.Dataset({f"v{number}": ("x", np.zeros(1)) for number in range(count)})
        many.to_zarr(path, zarr_format=2, consolidated=True)

        def count_opened(engine: str, path: Path = path) -> int:
            with xr.open_dataset(path, engine=engine) as opened:
                return len(opened)

        yield Row(
            f"open {count:,} variables",
            {OURS: partial(count_opened, "nczarr"), "engine zarr": partial(count_opened, "zarr")},
            {"engine zarr": 2},
        )


def _write_region(writer: str, path: Path, number: int) -> None:
    part = _steps(number * 96, 96).drop_vars("time")
    region = {"time": slice(number * 96, (number + 1) * 96)}
    if writer == OURS:
        xr_nczarr.to_nczarr(part, path, region=region)
    else:
        part.to_zarr(path, region=region)


def _regions(folder: Path) -> Row:
    """Return a benchmark of eight processes that fill a store concurrently."""
    encoding = {"t2m": {"chunks": CHUNKS}}
    template = _steps(0, 96 * WRITERS).drop_vars("time").chunk()
    pool = ProcessPoolExecutor(WRITERS, get_context("spawn"))

    def write(writer: str, path: Path) -> None:
        if writer == OURS:
            xr_nczarr.to_nczarr(template, path, encoding=encoding, compute=False)
        else:
            template.to_zarr(path, encoding=encoding, compute=False, zarr_format=2)
        list(pool.map(partial(_write_region, writer, path), range(WRITERS)))

    return Row(
        f"write regions from {WRITERS} processes",
        {name: _fresh(folder, partial(write, name)) for name in (OURS, "to_zarr")},
        {"to_zarr": 1},
        lambda path: xr.open_dataset(path, engine="nczarr").t2m.values,
        lambda path: shutil.rmtree(path, True),
    )


def _streamed(folder: Path, writer: str, times: int) -> float:
    """Stream random fields to disk in another process.

    Return by how many MB the peak memory of the process exceeds its memory after the imports.
    """
    path = folder / f"stream_{writer}"
    count = times * STREAMED_BYTES // (512 * 1024 * 4)
    command = [sys.executable, "-c", textwrap.dedent(_STREAM), str(path), writer, str(count)]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    try:
        done = subprocess.run(command, capture_output=True, check=True, text=True, env=environment)
        return float(done.stdout)
    finally:
        shutil.rmtree(path, True)
