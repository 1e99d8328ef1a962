"""Rows: 1, 10 and 100 times as many variables, groups, chunks and references."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

import xr_nczarr
from tests.benchmarks.harness import OURS, Row

CHUNK = 10
MAX_PEER_NODES = 10_000  # beyond, a single round of engine zarr takes minutes


def write(folder: Path, arrays: dict[str, int]) -> str:
    """Write consolidated metadata of arrays of so many chunks, and no chunks."""
    folder.mkdir(parents=True, exist_ok=True)
    root = {"zarr_format": 2}
    documents: dict[str, Any] = {".zgroup": root}
    for path, chunks in arrays.items():
        group = path.rpartition("/")[0]
        documents |= {f"{group}/.zgroup": root} if group else {}
        documents[f"{path}/.zattrs"] = {"_ARRAY_DIMENSIONS": ["t"], "long_name": path}
        documents[f"{path}/.zarray"] = {
            "zarr_format": 2,
            "shape": [CHUNK * chunks],
            "chunks": [CHUNK],
            "dtype": "<f4",
            "fill_value": 0,
            "order": "C",
            "compressor": None,
            "filters": None,
        }
    metadata = {"zarr_consolidated_format": 1, "metadata": documents}
    (folder / ".zmetadata").write_text(json.dumps(metadata))
    (folder / ".zgroup").write_text(json.dumps(root))
    return str(folder)


def write_records(folder: Path, references: int, record_size: int) -> str:
    """Write a parquet reference set of one array, whose chunks are all the same bytes."""
    path = Path(write(folder, {"v": references}))
    documents = json.loads((path / ".zmetadata").read_text())["metadata"]
    (path / ".zgroup").unlink()
    (path / ".zmetadata").write_text(
        json.dumps({"metadata": documents, "record_size": record_size})
    )
    (path / "v").mkdir(exist_ok=True)
    np.arange(CHUNK, dtype="f4").tofile(folder / "data.bin")
    columns = {"path": [str(folder / "data.bin")] * record_size, "offset": 0, "size": 4 * CHUNK}
    record = pd.DataFrame({**columns, "raw": None}).to_parquet()
    for number in range(references // record_size):
        (path / f"v/refs.{number}.parq").write_bytes(record)
    return str(path)


def scale(directory: Path) -> Iterator[Row]:
    """Opening, one selection and `info`, at three sizes each."""
    folder = directory / "scale"

    def opened(path: str, engine: str = "nczarr") -> xr.Dataset:
        return xr.open_dataset(path, engine=engine, chunks=None)

    for size in (500, 5_000, 50_000):
        path = write(folder / f"variables-{size}", {f"v{number}": 1 for number in range(size)})
        peers = {"engine zarr": lambda path=path: len(opened(path, "zarr"))}
        yield Row(
            f"open {size:,} variables",
            {OURS: lambda path=path: len(opened(path))} | (peers if size <= MAX_PEER_NODES else {}),
        )
        yield Row(f"info of {size:,} variables", {OURS: lambda path=path: _info(path)})
    for size in (100, 1_000, 10_000):
        path = write(folder / f"groups-{size}", {f"g{number}/v": 1 for number in range(size)})
        peers = {"engine zarr": lambda path=path: len(xr.open_groups(path, engine="zarr"))}
        yield Row(
            f"open {size:,} groups",
            {OURS: lambda path=path: len(xr.open_groups(path, engine="nczarr"))}
            | (peers if size < MAX_PEER_NODES else {}),
        )
    for size in (10**6, 10**7, 10**8):
        path = write(folder / f"chunks-{size}", {"v": size})
        yield Row(
            f"open an array of {size:,} chunks and read 300",
            {
                name: lambda path=path, engine=engine: opened(path, engine)["v"][5:3005].values
                for name, engine in ((OURS, "nczarr"), ("engine zarr", "zarr"))
            },
        )
    for size in (10**5, 10**6, 10**7):
        path = write_records(folder / f"references-{size}", size, 10**5)
        yield Row(
            f"open a parquet set of {size:,} references and read 300",
            {OURS: lambda path=path: opened(path)["v"][5:3005].values},
        )


def _info(path: str) -> int:
    return len(str(xr_nczarr.info(path)))
