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
NO_PEERS = ("limit", "at most", "undecoded", "encoding alone", "xarray alone")
"""How names begin of what has no values to compare: bare work, what may be taken, other values."""

SHORTEST = 0.02
"""Seconds that a measurement takes at least: what is shorter is repeated, as timeit does.

A single run of a millisecond tells what the one before it left in the processor's caches.
"""


@dataclass(frozen=True)
class Row:
    """One line of the table: a piece of work that all contestants do.

    `goals` maps a contestant to the ratio (its time over ours) that is aimed at. `values` gives
    what is compared of a contestant's result, to within `tolerance`, and `discard` puts the result
    away; neither counts. ``limit`` is the same work with nothing around it. In another `unit`
    than seconds the results themselves are what is measured, once.
    """

    name: str
    contestants: Mapping[str, Callable[[], Any]]
    goals: Mapping[str, float] = field(default_factory=dict)
    values: Callable[[Any], Any] = lambda result: result
    discard: Callable[[Any], object] = lambda result: None
    tolerance: float = 0
    unit: str = "s"


@dataclass(frozen=True)
class Result:
    """Medians in seconds, and medians of the per-round ratios of each contestant to ours.

    `failed` says why others are not among them. In another `unit` there is no processor time.
    """

    row: str
    wall: dict[str, float]
    processor: dict[str, float]
    ratio: dict[str, float]
    processor_ratio: dict[str, float]
    goals: dict[str, float]
    failed: dict[str, str]
    unit: str = "s"

    def missed(self, name: str) -> bool:
        """Tell whether a goal is missed; what rounds to it is not."""
        goal = self.goals.get(name)
        return goal is not None and round(self.ratio[name], 2) < round(goal, 2)

    def unreachable(self, name: str) -> bool:
        """Tell whether the limit itself misses the goal against another."""
        limits = [ratio for other, ratio in self.ratio.items() if other.startswith("limit")]
        if not limits or name.startswith(("limit", "at most")) or not self.missed(name):
            return False
        return self.ratio[name] / min(1, max(limits)) < self.goals[name]


def within(seconds: float) -> Callable[[], None]:
    """Give a contestant that takes what we may take: a goal that is a time, as a ratio."""
    return lambda: time.sleep(seconds)


def run(row: Row, rounds: int = 7) -> Result:
    """Measure one row. Peers that fail are left out.

    Raises
    ------
    AssertionError
        If the contestants' values differ in the warm-up.
    """
    contestants, failed = dict(row.contestants), {}
    reference = None
    for name, contestant in row.contestants.items():
        try:
            result = contestant()
        except Exception as error:
            if name == OURS:
                raise
            failed[name] = f"{type(error).__name__}: {error}"[:200]
            del contestants[name]
            continue
        if row.unit != "s":
            contestants[name] = result
        elif not name.startswith(NO_PEERS):
            values = np.asarray(row.values(result))
            reference = values if reference is None else reference
            if row.tolerance:
                np.testing.assert_allclose(values, reference, row.tolerance, err_msg=name)
            else:
                np.testing.assert_array_equal(values, reference, err_msg=name)
            del values
        row.discard(result)
        del result
    if row.unit != "s":
        ratio = _ratios({name: [found] for name, found in contestants.items()})
        return Result(row.name, contestants, {}, ratio, {}, dict(row.goals), failed, row.unit)
    names = list(contestants)
    wall: dict[str, list[float]] = {name: [] for name in names}
    processor: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            taken, used = _timed(contestants[name], row.discard)
            wall[name].append(taken)
            processor[name].append(used)
    gc.collect()
    return Result(
        row.name,
        {name: statistics.median(times) for name, times in wall.items()},
        {name: statistics.median(times) for name, times in processor.items()},
        _ratios(wall),
        _ratios(processor),
        dict(row.goals),
        failed,
    )


def _timed(contestant: Callable[[], Any], discard: Callable[[Any], object]) -> tuple[float, float]:
    """Give wall and processor time: of one run, or the means of as many as take `SHORTEST`."""
    gc.collect()
    wall = processor = 0.0
    runs = 0
    while wall < SHORTEST:
        started, used = time.perf_counter(), time.process_time()
        result = contestant()
        wall += time.perf_counter() - started
        processor += time.process_time() - used
        discard(result)
        del result
        runs += 1
    return wall / runs, processor / runs


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
            aimed = [] if goal is None else [f"goal {goal:.3g}"]
            aimed += ["beyond the limit"] if result.unreachable(name) else []
            processor = result.processor_ratio.get(name)
            notes = ([] if processor is None else [f"{processor:.2f}"]) + aimed
            cells.append(f"{name} {ratio:.2f}" + (f" ({', '.join(notes)})" if notes else ""))
        cells += [f"{name} fails: {reason}" for name, reason in result.failed.items()]
        shown = _shown(result.wall[OURS], result.unit)
        lines.append(f"| {result.row} | {shown} | {' · '.join(cells)} |")
    return "\n".join(lines)


def _shown(value: float, unit: str) -> str:
    if unit != "s":
        return f"{value:,.4g} {unit}"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.3g} ms"
