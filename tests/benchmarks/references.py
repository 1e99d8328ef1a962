"""Rows: reference sets, against engine kerchunk (fsspec with zarr-python)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tests.benchmarks.harness import OURS, Row
from xr_nczarr.references import ReferenceSet, parse_references


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


def _written(path: Path, document: Callable[[], dict[str, Any]]) -> Path:
    if not path.exists():
        path.write_text(json.dumps(document()))
    return path


def _million() -> dict[str, Any]:
    lengths = np.random.default_rng(0).integers(50, 5000, (1000, 1000))
    offsets = lengths.cumsum(axis=1) - lengths
    chunks = {
        f"t/{i}.{j}.0": [
            f"s3://bucket/path/file_{i:04d}.nc",
            offsets.item(i, j),
            lengths.item(i, j),
        ]
        for i in range(1000)
        for j in range(1000)
    }
    return {"version": 1, "refs": _metadata([1000, 1000, 16], [1, 1, 16]) | chunks}


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


def _looked_up(references: ReferenceSet, key: str) -> None:
    for number in range(1000):
        assert references.resolve(key.format(number)) is not None


def references(directory: Path) -> Iterator[Row]:
    """A million listed, 2,000 tiny ones that are read, and generators."""
    million = _written(directory / "million.json", _million)
    yield Row(
        "open 1,000,000 references",
        {
            OURS: lambda: _opened(million, "nczarr"),
            "engine kerchunk": lambda: _opened(million, "kerchunk"),
        },
        # The harness turns garbage collection off, which is half of what the other one spends.
        {"engine kerchunk": 4},
    )
    target = directory / "tiny.bin"
    target.write_bytes(np.arange(20_000, dtype="<f4").tobytes())
    tiny = _written(directory / "tiny.json", lambda: _tiny(target))
    yield Row(
        "open and read 2,000 references of 40 B, one local file",
        {
            OURS: lambda: _read(tiny, "nczarr"),
            "engine kerchunk": lambda: _read(tiny, "kerchunk"),
        },
        {"engine kerchunk": 10},
    )
    few = _written(directory / "few.json", lambda: _generated(100, 10))
    expanding = {"storage_options": {"simple_templates": False}}
    yield Row(
        "open a gen of 1,000 keys",
        {
            OURS: lambda: _opened(few, "nczarr"),
            "engine kerchunk": lambda: _opened(few, "kerchunk", **expanding),
        },
        {"engine kerchunk": 100},
    )
    many = _written(directory / "many.json", lambda: _generated(1_000_000, 1000))
    yield Row("open a gen of 1,000,000,000 keys", {OURS: lambda: _opened(many, "nczarr")})
    keys = (
        (many, "t/{0}.{0}", "a gen of 1,000,000,000"),
        (million, "t/{0}.{0}.0", "1,000,000 references"),
    )
    for path, key, name in keys:
        known = parse_references(path.read_bytes())
        yield Row(f"look up 1,000 keys of {name}", {OURS: partial(_looked_up, known, key)})
