"""Runs contestants in rotating rounds and gives ratios: machines drift, ratios less so."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

OURS = "xr_nczarr"


@dataclass(frozen=True)
class Row:
    """One line of the table: a piece of work that all contestants do.

    `goals` maps a contestant to the ratio (its time over ours) that is aimed at. `values` gives
    what is compared of a contestant's result, to within `tolerance`, and `discard` puts the result
    away; neither counts. Results of ``limit`` are no values.
    """

    name: str
    contestants: Mapping[str, Callable[[], Any]]
    goals: Mapping[str, float] = field(default_factory=dict)
    values: Callable[[Any], Any] = lambda result: result
    discard: Callable[[Any], object] = lambda result: None
    tolerance: float = 0


@dataclass(frozen=True)
class Result:
    """Medians in seconds, and medians of the per-round ratios of each contestant to ours."""

    row: str
    wall: dict[str, float]
    processor: dict[str, float]
    ratio: dict[str, float]
    processor_ratio: dict[str, float]
    goals: dict[str, float]


def run(row: Row, rounds: int = 7) -> Result:
    """Measure one row.

    Raises
    ------
    AssertionError
        If the contestants' values differ in the warm-up.
    """
    names = list(row.contestants)
    reference = None
    for name in names:
        result = row.contestants[name]()
        if not name.startswith("limit"):
            values = np.asarray(row.values(result))
            reference = values if reference is None else reference
            if row.tolerance:
                np.testing.assert_allclose(values, reference, row.tolerance, err_msg=name)
            else:
                np.testing.assert_array_equal(values, reference, err_msg=name)
            del values
        row.discard(result)
        del result
    wall: dict[str, list[float]] = {name: [] for name in names}
    processor: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            gc.collect()
            gc.disable()
            started, used = time.perf_counter(), time.process_time()
            result = row.contestants[name]()
            wall[name].append(time.perf_counter() - started)
            processor[name].append(time.process_time() - used)
            gc.enable()
            row.discard(result)
            del result
    gc.collect()
    return Result(
        row.name,
        {name: statistics.median(times) for name, times in wall.items()},
        {name: statistics.median(times) for name, times in processor.items()},
        _ratios(wall),
        _ratios(processor),
        dict(row.goals),
    )


def _ratios(times: Mapping[str, list[float]]) -> dict[str, float]:
    return {
        name: statistics.median(
            theirs / ours for theirs, ours in zip(times[name], times[OURS], strict=True)
        )
        for name in times
        if name != OURS
    }


def table(results: list[Result]) -> str:
    """Give the results as a Markdown table of ratios; above 1 the other is slower."""
    lines = [
        "| work | ours | ratios (wall; processor) |",
        "| --- | --- | --- |",
    ]
    for result in results:
        cells = []
        for name, ratio in result.ratio.items():
            goal = result.goals.get(name)
            aimed = f", goal {goal:g}" if goal is not None else ""
            cells.append(f"{name} {ratio:.2f} ({result.processor_ratio[name]:.2f}{aimed})")
        lines.append(f"| {result.row} | {_seconds(result.wall[OURS])} | {' · '.join(cells)} |")
    return "\n".join(lines)


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.3g} ms"
