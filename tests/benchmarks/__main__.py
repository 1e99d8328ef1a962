"""Measure all benchmarks, or those whose family or name matches one of the words.

``python -m tests.benchmarks [WORD ...] [--json FILE] [--plot FILE] [--page FILE]``
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.benchmarks.families import FAMILIES, measured
from tests.benchmarks.harness import Result, table
from tests.benchmarks.page import replaced
from tests.benchmarks.plot import draw

PEERS = ("xarray", "numpy", "zarr", "zarrs", "tensorstore", "netCDF4", "numcodecs", "dask")
PEERS += ("fsspec", "s3fs", "obstore", "icechunk", "kerchunk", "virtualizarr", "deflate")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD", help=f"of {', '.join(FAMILIES)}, …")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--data", type=Path, help="folder in which the stores are created and kept")
    parser.add_argument(
        "--json",
        type=Path,
        help="JSON file in which to replace the results of the measured benchmarks",
    )
    parser.add_argument("--plot", type=Path, help="file for a plot (SVG, PNG or PDF)")
    parser.add_argument("--page", type=Path, help="page whose results are replaced")
    options = parser.parse_args()
    if options.data is None:
        with tempfile.TemporaryDirectory(prefix="nczarr-benchmarks-") as directory:
            return measure(options, Path(directory))
    options.data.mkdir(parents=True, exist_ok=True)
    return measure(options, options.data)


def measure(options: argparse.Namespace, directory: Path) -> int:
    """Measure the benchmarks, print their results, and save all results after each family.

    The JSON file keeps the earlier results of benchmarks that are not measured again.
    """
    measured_rows: list[Result] = []
    failures: list[str] = []
    results: dict[str, Result] = {}
    if options.json and options.json.exists():
        saved = json.loads(options.json.read_text())["results"]
        results = {item["row"]: Result(**item) for item in saved}
    named = [family for family in FAMILIES if family in options.words]
    words = [word for word in options.words if word not in FAMILIES]
    for family in named if named and not words else FAMILIES:
        parts = words if options.words and family not in named else [""]
        # Each family runs in a new process, so that earlier measurements do not affect its memory.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            result, failed = process.submit(
                measured, family, parts, directory, options.rounds
            ).result()
        measured_rows += result
        failures += failed
        results |= {item.row: item for item in result}
        if options.json:
            record = {"machine": machine(), "results": [*map(dataclasses.asdict, results.values())]}
            options.json.write_text(json.dumps(record | {"failures": failures}, indent=1) + "\n")
    print("", table(measured_rows), *failures, sep="\n")
    if options.plot:
        draw([*results.values()], options.plot)
    if options.page:
        page = options.page.read_text(encoding="utf-8")
        reported = replaced(page, [*results.values()], failures, machine())
        options.page.write_text(reported, encoding="utf-8")
    return 1 if failures else 0


def machine() -> dict[str, Any]:
    """Return the hardware and the versions on which the results depend."""
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": models[0] if models else platform.processor(),
        "processors": os.cpu_count(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {peer: version(peer) for peer in PEERS},
    }


if __name__ == "__main__":  # the servers are spawned, and import this module
    sys.exit(main())
