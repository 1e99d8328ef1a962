"""All benchmarks by family. Each family is measured in a separate process."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

from tests.benchmarks import (
    computing,
    operation,
    reading,
    references,
    remote,
    requests,
    scale,
    sharded,
    writing,
)
from tests.benchmarks.harness import Result, Row, run, table

FAMILIES = {
    "large": reading.large_chunks,
    "netcdf": reading.netcdf_default,
    "packed": reading.packed,
    "small": reading.small_chunks,
    "partial": reading.selections,
    "open": reading.opening,
    "sharded": sharded.sharded,
    "remote": remote.remote,
    "requests": requests.requests,
    "references": references.references,
    "writing": writing.writing,
    "dask": computing.computing,
    "threads": computing.threads,
    "operation": operation.operation,
    "scale": scale.scale,
    "start": computing.starting,
}


def measured(
    family: str, parts: list[str], directory: Path, rounds: int
) -> tuple[list[Result], list[str]]:
    """Measure the benchmarks of a family whose names contain one of the parts.

    Return their results, and a message for each failure.
    """
    warnings.simplefilter("ignore")
    results: list[Result] = []
    failures: list[str] = []
    for row in made(family, directory, failures):
        if not any(part in row.name for part in parts):
            continue
        try:
            results.append(run(row, rounds))
        except Exception as error:
            failures.append(f"{row.name}: {type(error).__name__}: {error}")
            print(failures[-1], flush=True)
            continue
        print(table(results[-1:]).splitlines()[-1], flush=True)
    return results, failures


def made(family: str, directory: Path, failures: list[str]) -> Iterator[Row]:
    """Yield the benchmarks of a family, and add the error to `failures` if one occurs."""
    try:
        yield from FAMILIES[family](directory)
    except Exception as error:
        failures.append(f"{family}: {type(error).__name__}: {error}")
        print(failures[-1], flush=True)
