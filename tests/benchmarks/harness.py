"""Time implementations alternately, and compute ratios, which vary less than times do."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

OURS = "xr_nczarr"
NO_PEERS = ("baseline", "limit", "undecoded", "encoding alone", "xarray alone")
"""First words of the names of implementations whose values are not compared."""

SHORTEST = 0.02
"""Minimum duration of a measurement in seconds. Shorter work is repeated, as by timeit.

The time of a short run depends on what the previous run left in the processor's caches.
"""


@dataclass(frozen=True)
class Row:
    """A benchmark, which is one row of the table, and the implementations that it compares.

    The ratio of an implementation is its time divided by the time of xr_nczarr. `goals` maps the
    names of implementations to the ratios that xr_nczarr should reach. `values` extracts the values
    to compare, within `tolerance`, from the result of an implementation, and `discard` removes the
    result. Neither function is timed. If `unit` is not seconds, each implementation runs once, and
    its result is the measurement.

    An implementation whose name starts with ``baseline`` does the same work with as little Python
    as possible. One whose name starts with ``limit`` is an upper bound, such as a fixed time.
    """

    name: str
    implementations: Mapping[str, Callable[[], Any]]
    goals: Mapping[str, float] = field(default_factory=dict)
    values: Callable[[Any], Any] = lambda result: result
    discard: Callable[[Any], object] = lambda result: None
    tolerance: float = 0
    unit: str = "s"


@dataclass(frozen=True)
class Result:
    """Median times in seconds, and each implementation's median ratio over all rounds.

    `failed` maps each implementation that failed to the reason. If the unit is not seconds, there
    are no processor times. `day` is the date of the measurement in ISO format.
    """

    row: str
    wall: dict[str, float]
    processor: dict[str, float]
    ratio: dict[str, float]
    processor_ratio: dict[str, float]
    goals: dict[str, float]
    failed: dict[str, str]
    day: str
    rounds: int
    unit: str = "s"

    def missed(self, name: str) -> bool:
        """Return whether the ratio of an implementation is below its goal, after rounding both."""
        goal = self.goals.get(name)
        return goal is not None and round(self.ratio[name], 2) < round(goal, 2)

    def limit(self, name: str) -> float | None:
        """Return the ratio that xr_nczarr would have if it were as fast as the baseline.

        Return None if there is no baseline, if the goal is met, or if this ratio would meet it.
        """
        baselines = [ratio for other, ratio in self.ratio.items() if other.startswith("baseline")]
        if not baselines or name.startswith(("baseline", "limit")) or not self.missed(name):
            return None
        reached = self.ratio[name] / min(1, max(baselines))
        return reached if reached < self.goals[name] else None


def within(seconds: float) -> Callable[[], None]:
    """Return an implementation that sleeps for this time.

    Its ratio shows whether the time of xr_nczarr is within this limit.
    """
    return lambda: time.sleep(seconds)


def run(row: Row, rounds: int = 7) -> Result:
    """Measure one benchmark, and leave out implementations that fail.

    Raises
    ------
    AssertionError
        If the implementations return different values in the warm-up.
    """
    day = time.strftime("%Y-%m-%d")
    implementations, failed = dict(row.implementations), {}
    reference = None
    for name, implementation in row.implementations.items():
        try:
            result = implementation()
        except Exception as error:
            if name == OURS:
                raise
            failed[name] = f"{type(error).__name__}: {error}"[:200]
            del implementations[name]
            continue
        if row.unit != "s":
            implementations[name] = result
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
        ratio = _ratios({name: [value] for name, value in implementations.items()})
        return Result(
            row.name, implementations, {}, ratio, {}, dict(row.goals), failed, day, 1, row.unit
        )
    names = list(implementations)
    wall: dict[str, list[float]] = {name: [] for name in names}
    processor: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            taken, used = _timed(implementations[name], row.discard)
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
        day,
        rounds,
    )


def _timed(
    implementation: Callable[[], Any], discard: Callable[[Any], object]
) -> tuple[float, float]:
    """Return the wall time and processor time of one run, in seconds.

    An implementation that takes less than `SHORTEST` is run repeatedly, and the means are returned.
    """
    gc.collect()
    wall = processor = 0.0
    runs = 0
    while wall < SHORTEST:
        started, used = time.perf_counter(), time.process_time()
        result = implementation()
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
    """Return a Markdown table of ratios. Implementations with ratios above 1 are slower."""
    lines = [
        "| benchmark | xr_nczarr | ratios (wall; processor) |",
        "| --- | --- | --- |",
    ]
    for result in results:
        cells = []
        for name, ratio in result.ratio.items():
            goal = result.goals.get(name)
            aimed = [] if goal is None else [f"goal {goal:.3g}"]
            limit = result.limit(name)
            aimed += [] if limit is None else [f"limit {limit:.2f}"]
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
