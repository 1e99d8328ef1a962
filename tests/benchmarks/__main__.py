"""Measure all rows, or those whose names hold a word: ``python -m tests.benchmarks [WORD ...]``."""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import tempfile
import warnings
from importlib.metadata import version
from pathlib import Path

from tests.benchmarks import computing, reading, references, remote, sharded, writing
from tests.benchmarks.harness import run, table

FAMILIES = {
    "large": reading.large_chunks,
    "netcdf": reading.netcdf_default,
    "packed": reading.packed,
    "small": reading.small_chunks,
    "partial": reading.partial,
    "open": reading.opening,
    "sharded": sharded.sharded,
    "remote": remote.remote,
    "references": references.references,
    "writing": writing.writing,
    "dask": computing.computing,
    "import": computing.importing,
}
PEERS = (
    "xarray",
    "numpy",
    "zarr",
    "zarrs",
    "tensorstore",
    "netCDF4",
    "numcodecs",
    "dask",
    "fsspec",
    "kerchunk",
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(FAMILIES)}")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--data", type=Path, help="where the stores are made and kept")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    directory = options.data or Path(tempfile.mkdtemp(prefix="nczarr-benchmarks-"))
    directory.mkdir(parents=True, exist_ok=True)
    results = []
    for name in options.families or FAMILIES:
        for row in FAMILIES[name](directory):
            results.append(run(row, options.rounds))
            print(table(results[-1:]).splitlines()[-1], flush=True)
    print()
    print(table(results))
    if options.json:
        machine = {"python": platform.python_version(), "machine": platform.machine()}
        versions = {peer: version(peer) for peer in PEERS}
        record = {"machine": machine, "versions": versions}
        record["results"] = [dataclasses.asdict(result) for result in results]
        options.json.write_text(json.dumps(record, indent=2))


if __name__ == "__main__":  # the servers are spawned, and import this module
    main()
