"""Benchmarks of reference sets, compared with engine kerchunk (fsspec with zarr-python)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import obstore
import xarray as xr
from virtualizarr.parsers import KerchunkJSONParser
from virtualizarr.registry import ObjectStoreRegistry

from tests.benchmarks import baselines
from tests.benchmarks.harness import OURS, Row, within
from xr_nczarr.references.parse import parse_references
from xr_nczarr.references.reference_set import ReferenceSet

_RESIDENT = """
import re
import xarray, dask.array, fsspec, {imported}
def peak():
    return int(re.search("VmHWM: *([0-9]+)", open("/proc/self/status").read().replace("\t", ""))[1])
before = peak()
dataset = xarray.open_dataset({path!r}, engine={engine!r})
print((peak() - before) / 1e3)
"""


def _metadata(shape: list[int], chunks: list[int]) -> dict[str, str]:
    array = {
        "zarr_format": 2,
        "shape": shape,
        "chunks": chunks,
        "dtype": "<f4",
        "fill_value": None,
        "order": "C",
        "compressor": None,
        "filters": None,
    }
    dimensions = [f"d{axis}" for axis in range(len(shape))]
    return {
        ".zgroup": '{"zarr_format": 2}',
        "t/.zarray": json.dumps(array),
        "t/.zattrs": json.dumps({"_ARRAY_DIMENSIONS": dimensions}),
    }


def _written(path: Path, document: Callable[[], dict[str, Any]], **options: Any) -> Path:
    if not path.exists():
        path.write_text(json.dumps(document(), **options))
    return path


def _listed(rows: int = 1000, columns: int = 1000) -> dict[str, Any]:
    lengths = np.random.default_rng(0).integers(50, 5000, (rows, columns))
    offsets = lengths.cumsum(axis=1) - lengths
    chunks = {
        f"t/{i}.{j}.0": [
            f"s3://bucket/path/file_{i:04d}.nc",
            offsets.item(i, j),
            lengths.item(i, j),
        ]
        for i in range(rows)
        for j in range(columns)
    }
    return {"version": 1, "refs": _metadata([rows, columns, 16], [1, 1, 16]) | chunks}


def _tiny(target: Path) -> dict[str, Any]:
    chunks = {f"t/{i}": [str(target), 40 * i, 40] for i in range(2000)}
    return {"version": 1, "refs": _metadata([20_000], [10]) | chunks}


def _generated(rows: int, columns: int) -> dict[str, Any]:
    generator = {
        "key": "t/{{i}}.{{j}}",
        "url": "s3://bucket/{{'%04d' % (i // 100)}}.nc",
        "offset": "{{(i % 100) * 4000 + 4 * j}}",
        "length": "4",
        "dimensions": {"i": {"stop": rows}, "j": {"stop": columns}},
    }
    return {"version": 1, "refs": _metadata([rows, columns], [1, 1]), "gen": [generator]}


def _opened(path: Path, engine: str, **options: Any) -> int:
    with xr.open_dataset(str(path), engine=engine, **options) as dataset:
        return len(dataset.variables)


def _read(path: Path, engine: str) -> np.ndarray:
    with xr.open_dataset(str(path), engine=engine) as dataset:
        return dataset.t.values


def _by_virtualizarr(path: Path) -> int:
    registry = ObjectStoreRegistry({"file://": obstore.store.LocalStore()})
    store = KerchunkJSONParser()(f"file://{path}", registry)
    with xr.open_dataset(store, engine="zarr", consolidated=False) as dataset:
        return len(dataset.variables)


def _resident(path: Path, engine: str, imported: str) -> float:
    """Open a reference set in another process.

    Return by how many MB the peak memory of the process exceeds its memory after the imports.
    """
    code = _RESIDENT.format(imported=imported, path=str(path), engine=engine)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return float(done.stdout)


def _looked_up(references: ReferenceSet, key: str) -> None:
    for number in range(1000):
        assert references.resolve(key.format(number)) is not None


def references(directory: Path) -> Iterator[Row]:
    """Yield benchmarks of a million listed references, 2,000 tiny references, and generators."""
    million = _written(directory / "million.json", _listed)
    yield Row(
        "open 1,000,000 references",
        {
            OURS: lambda: _opened(million, "nczarr"),
            "engine kerchunk": lambda: _opened(million, "kerchunk"),
        },
        {"engine kerchunk": 15},
    )
    # VirtualiZarr takes more than a minute for a million references.
    thousands = _written(directory / "thousands.json", lambda: _listed(100, 100))
    yield Row(
        "open 10,000 references",
        {
            OURS: lambda: _opened(thousands, "nczarr"),
            "engine kerchunk": lambda: _opened(thousands, "kerchunk"),
            "VirtualiZarr": lambda: _by_virtualizarr(thousands),
        },
    )
    yield Row(
        "peak memory while opening 1,000,000 references, excluding imports",
        {
            OURS: lambda: _resident(million, "nczarr", "xr_nczarr.backend.stored_group"),
            "engine kerchunk": lambda: _resident(million, "kerchunk", "zarr, kerchunk"),
            "limit: 100 MB": lambda: 100,
        },
        {"limit: 100 MB": 1},
        unit="MB",
    )
    # No program writes spaces before commas.
    same = _written(directory / "same.json", lambda: _listed(300, 300))
    irregular = _written(
        directory / "irregular.json", lambda: _listed(300, 300), separators=(" , ", " : ")
    )
    yield Row(
        "open 90,000 references with non-standard whitespace",
        {
            OURS: lambda: _opened(irregular, "nczarr"),
            "standard whitespace": lambda: _opened(same, "nczarr"),
            "engine kerchunk": lambda: _opened(irregular, "kerchunk"),
        },
        {"standard whitespace": 1 / 5},
    )
    target = directory / "tiny.bin"
    target.write_bytes(np.arange(20_000, dtype="<f4").tobytes())
    tiny = _written(directory / "tiny.json", lambda: _tiny(target))
    yield Row(
        "open and read 2,000 references of 40 B in one local file",
        {
            OURS: lambda: _read(tiny, "nczarr"),
            "engine kerchunk": lambda: _read(tiny, "kerchunk"),
            "baseline": lambda: baselines.listed_pieces(tiny, target),
        },
        {"engine kerchunk": 100},
    )
    few = _written(directory / "few.json", lambda: _generated(10, 10))
    expanding = {"storage_options": {"simple_templates": False}}
    yield Row(
        "open a gen entry with 100 keys",
        {
            OURS: lambda: _opened(few, "nczarr"),
            "engine kerchunk": lambda: _opened(few, "kerchunk", **expanding),
        },
        {"engine kerchunk": 100},
    )
    many = _written(directory / "many.json", lambda: _generated(1_000_000, 1000))
    yield Row(
        "open a gen entry with 1,000,000,000 keys",
        {OURS: lambda: _opened(many, "nczarr"), "limit: 20 ms": within(0.02)},
        {"limit: 20 ms": 1},
    )
    keys = (
        (many, "t/{0}.{0}", "a gen entry with 1,000,000,000 keys"),
        (million, "t/{0}.{0}.0", "1,000,000 references"),
    )
    for path, key, name in keys:
        listed = parse_references(path.read_bytes())
        yield Row(
            f"look up 1,000 keys in {name}",
            {OURS: partial(_looked_up, listed, key), "limit: 10 µs per key": within(0.01)},
            {"limit: 10 µs per key": 1},
        )
