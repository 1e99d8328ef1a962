"""Benchmarks of three sizes, in which each store is ten times as large as the previous one.

The number of variables, groups, chunks or references grows. This command prints the table of
docs/scale.md:

``python -m tests.benchmarks.scale FOLDER``
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

import xr_nczarr
from tests.benchmarks.harness import OURS, Row
from tests.stores import write_consolidated

CHUNK = 10
MAX_PEER_NODES = 10_000  # above this, a single round of engine zarr takes many seconds


def write_records(folder: Path, references: int, record_size: int) -> str:
    """Write a parquet reference set of one array whose chunks all refer to the same bytes."""
    path = Path(write_consolidated(folder, {"v": CHUNK * references}))
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


def stores(folder: Path) -> Iterator[tuple[str, tuple[str, ...], dict[int, str], int]]:
    """Write stores of each kind in three sizes.

    For each kind, yield its name, the kinds of work, the paths by size, and the largest size that
    engine zarr opens.
    """
    yield (
        "variables",
        ("open", "info"),
        {
            size: write_consolidated(
                folder / f"variables-{size}", {f"v{number}": CHUNK for number in range(size)}
            )
            for size in (500, 5_000, 50_000)
        },
        MAX_PEER_NODES,
    )
    yield (
        "groups",
        ("open all groups of",),
        {
            size: write_consolidated(
                folder / f"groups-{size}", {f"g{number}/v": CHUNK for number in range(size)}
            )
            for size in (100, 1_000, 10_000)
        },
        1_000,
    )
    yield (
        "chunks",
        ("read 300 chunks of", "explain 300 chunks of"),
        {
            size: write_consolidated(folder / f"chunks-{size}", {"v": CHUNK * size})
            for size in (10**6, 10**7, 10**8)
        },
        10**8,
    )
    yield (
        "references in parquet",
        ("read 300 chunks of", "verify 1,000 chunks of"),
        {
            size: write_records(folder / f"references-{size}", size, 10**5)
            for size in (10**5, 10**6, 10**7)
        },
        0,
    )


WORKS = {
    "open": "len(xr.open_dataset(path, engine=engine, chunks=None))",
    "info": "len(str(xr_nczarr.info(path)))",
    "open all groups of": "len(xr.open_groups(path, engine=engine))",
    "read 300 chunks of": (
        'xr.open_dataset(path, engine=engine, chunks=None)["v"][5:3005].values.size'
    ),
    "explain 300 chunks of": 'len(str(xr_nczarr.explain(path, {"t": slice(5, 3005)})))',
    "verify 1,000 chunks of": "len(str(xr_nczarr.verify(path, sample=1000)))",
}


def scale(directory: Path) -> Iterator[Row]:
    """Yield benchmarks of opening, of one selection and of the commands, for three sizes each."""
    for kind, works, paths, max_peer in stores(directory / "scale"):
        for work, (size, path) in itertools.product(works, paths.items()):
            implementations = {
                name: partial(_done, WORKS[work], path, engine)
                for name, engine in ((OURS, "nczarr"), ("engine zarr", "zarr"))
            }
            if "engine" not in WORKS[work] or size > max_peer:
                del implementations["engine zarr"]
            yield Row(f"{work} {size:,} {kind}", implementations)


def _done(work: str, path: str, engine: str) -> Any:
    return eval(work, {"xr": xr, "xr_nczarr": xr_nczarr, "path": path, "engine": engine})


MEASURED = """
import re, sys, time
import xarray as xr
import xr_nczarr

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])

work, tiny, path, engine = sys.argv[1:]
code = compile(work, "work", "eval")
eval(code, {**globals(), "path": tiny})  # which imports what is needed
before, started = peak(), time.process_time()
eval(code)
print(time.process_time() - started, (peak() - before) / 1e3)
"""


def curves(directory: Path) -> Iterator[str]:
    """Yield a line of the table for each kind of work and engine.

    For each size, the line contains the processor time in seconds and the peak memory in MB.
    """
    for kind, works, paths, max_peer in stores(directory):
        for work, engine in itertools.product(works, ("nczarr", "zarr")):
            if engine == "zarr" and ("engine" not in WORKS[work] or not max_peer):
                continue
            tiny, measured = paths[min(paths)], []
            for size, path in paths.items():
                if engine == "zarr" and size > max_peer:
                    measured.append("–")
                    continue
                command = [sys.executable, "-c", MEASURED, WORKS[work], tiny, path, engine]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                seconds, megabytes = map(float, output.split())
                measured.append(f"{seconds:.2g} s, {megabytes:.0f} MB")
            sizes = " / ".join(f"{size:,}" for size in paths)
            name = f"{work} {sizes} {kind}"
            yield f"| {name} | {engine} | {' | '.join(measured)} |"


if __name__ == "__main__":
    for line in curves(Path(sys.argv[1])):
        print(line, flush=True)
