"""Benchmarks of dask graphs, of means computed by dask, and of starting a new process."""

from __future__ import annotations

import os
import pickle
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import dask.array as da
import numpy as np
import xarray as xr
from distributed import Client, LocalCluster

import xr_nczarr
from tests.benchmarks import data
from tests.benchmarks.harness import OURS, Row

_FRESH_PROCESSES = 20

ENGINES = {OURS: "nczarr", "engine zarr": "zarr"}


def computing(directory: Path) -> Iterator[Row]:
    """Yield benchmarks of a dask graph of 100,000 chunks, and of means on threads and processes."""
    empty = data.zarr_store(
        directory, "many_chunks", np.empty((100_000, 8), "f4"), (1, 8), None, fill=False
    )

    def graph(engine: str) -> Callable[[], tuple[int, ...]]:
        def build() -> tuple[int, ...]:
            with xr.open_dataset(empty, engine=engine, chunks={}) as dataset:
                assert len(dict(dataset.field.data.__dask_graph__())) >= 100_000
                return dataset.field.data.numblocks

        return build

    graphs = {name: graph(engine) for name, engine in ENGINES.items()}
    yield Row("dask graph of 100,000 chunks", graphs, {"engine zarr": 1})
    yield Row(
        "pickled size per task",
        {name: partial(_shipped, empty, engine) for name, engine in ENGINES.items()}
        | {"limit: 2 kB": lambda: 2000},
        {"limit: 2 kB": 1},
        unit="B",
    )

    stores = {
        "64 chunks of 4 MB, raw": data.large(directory, "raw"),
        "1,000 chunks of 64 kB, blosc": data.small(directory, "blosc", 1000, 16_384),
    }
    for name, path in stores.items():
        yield Row(
            f"mean of {name}, dask with threads",
            _means(path, "threads"),
            {"engine zarr": 1.8},
            tolerance=1e-4,
        )
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        for name, path in stores.items():
            yield Row(
                f"mean of {name}, dask with two processes",
                _means(path, client),
                {"engine zarr": 1.8},
                tolerance=1e-4,
            )


def threads(directory: Path) -> Iterator[Row]:
    """Yield benchmarks in which 100 threads or one thread do the same work on one dataset."""
    stores = {
        "4,000 chunks of 16 kB, blosc": data.small(directory, "blosc", 4000, 4096),
        "64 chunks of 4 MB, raw": data.large(directory, "raw"),
    }
    for name, path in stores.items():
        implementations = {OURS: _each_row(path, 100), "one thread": _each_row(path, 1)}
        yield Row(f"100 threads, {name}", implementations, {"one thread": 1 / 1.2})


def _shipped(path: Path, engine: str) -> int:
    """Return the length in bytes of the longest pickled task of a dask graph.

    Each pickled task includes the objects to which it refers, but no other tasks.
    """
    with xr.open_dataset(path, engine=engine, chunks={"t": 10_000}) as dataset:
        return max(map(len, map(pickle.dumps, dict(dataset.field.data.__dask_graph__()).values())))


def _each_row(path: Path, count: int) -> Callable[[], list[float]]:
    def read() -> list[float]:
        with xr.open_dataset(path, engine="nczarr", cache=False) as dataset:
            rows = np.array_split(np.arange(len(dataset.field)), 64)
            with ThreadPoolExecutor(count) as pool:
                return list(pool.map(lambda part: float(dataset.field[part].sum()), rows))

    return read


def _means(path: Path, scheduler: object) -> dict[str, Callable[[], np.ndarray]]:
    """Return a function for each engine that computes a mean of the values that the engine reads.

    The function of the baseline computes a mean without reading anything.
    """

    def opened(engine: str) -> xr.DataArray:
        with xr.open_dataset(path, engine=engine, chunks={}) as dataset:
            return dataset.field

    def compute(make: Callable[[], xr.DataArray]) -> Callable[[], np.ndarray]:
        return lambda: make().mean().data.compute(scheduler=scheduler)

    like = opened("nczarr").data
    return {name: compute(partial(opened, engine)) for name, engine in ENGINES.items()} | {
        "baseline: dask": compute(
            lambda: xr.DataArray(da.ones(like.shape, dtype="f4", chunks=like.chunks))
        )
    }


# Pass the class, because xarray imports all installed engines to find one by name.
_FIRST_OPEN = """
import importlib, sys, time, xarray
started = time.perf_counter()
engine = getattr(importlib.import_module(sys.argv[2]), sys.argv[3])
xarray.open_dataset(sys.argv[1], engine=engine)
print((time.perf_counter() - started) * 1000)
"""
_ENTRY_POINTS = {
    OURS: ("xr_nczarr.backend.entrypoint", "NczarrBackendEntrypoint"),
    "engine zarr": ("xarray.backends.zarr", "ZarrBackendEntrypoint"),
}


def starting(directory: Path) -> Iterator[Row]:
    """Yield benchmarks of commands and of the first open, which each run in a new process."""
    store = directory / "tiny"
    if not store.exists():
        xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", np.arange(4.0))}), store)
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # otherwise, each import compiles the module

    def run(*arguments: object) -> Callable[[], int]:
        command = [sys.executable, *map(str, arguments)]
        start = partial(subprocess.run, command, env=environment, check=True, capture_output=True)
        return lambda: start().returncode

    formatting = "import argparse; argparse.ArgumentParser().format_help()"
    yield Row(
        "nczarr --help",
        {
            OURS: run("-m", "xr_nczarr", "--help"),
            "bare Python": run("-c", "pass"),
            "baseline: argparse": run("-c", formatting),
        },
        {"bare Python": 1 / 1.5},
    )
    for command in ("info", "dump", "verify", "explain"):
        yield Row(
            f"nczarr {command} of a tiny store",
            {
                OURS: run("-m", "xr_nczarr", command, store),
                "import numpy": run("-c", "import numpy"),
            },
            {"import numpy": 1 / 3},
        )

    def open_first(module: str, name: str) -> float:
        command = [sys.executable, "-c", _FIRST_OPEN, str(store), module, name]
        times = [
            float(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
            for _ in range(_FRESH_PROCESSES)
        ]
        return statistics.median(times)

    yield Row(
        "first open after importing xarray",
        {name: partial(open_first, *entry) for name, entry in _ENTRY_POINTS.items()},
        {"engine zarr": 1.5},
        unit="ms",
    )
