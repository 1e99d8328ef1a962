"""Draw results: a line for each row, a point for each other contestant."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from tests.benchmarks.harness import Result

MARKERS = "oDs^vPXd<>ph"


def draw(results: list[Result], path: Path) -> None:
    """Draw the ratios on a logarithmic axis; to the right of 1, peers are slower."""
    rows = [result for result in results if result.ratio and result.unit == "s"]
    figure = Figure(figsize=(9, 1.2 + 0.24 * len(rows)), layout="constrained")
    axes = figure.subplots()
    names = list(dict.fromkeys(name for row in rows for name in row.ratio))
    for number, name in enumerate(names):
        places = [(row.ratio[name], -at) for at, row in enumerate(rows) if name in row.ratio]
        marker = MARKERS[number % len(MARKERS)]
        axes.plot(*zip(*places, strict=True), marker, ms=5, color=f"C{number % 10}", label=name)
        goals = [
            (row.goals[name], -at)
            for at, row in enumerate(rows)
            if name in {*row.goals} & {*row.ratio}
        ]
        for goal, at in goals:
            axes.plot(goal, at, "|", color=f"C{number % 10}", ms=9)
    axes.axvline(1, color="0.5", lw=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(0, -len(rows), -1), [row.row for row in rows], fontsize=7)
    axes.set_xlabel("time of the other / ours (bar: the goal)", fontsize=8)
    axes.grid(axis="y", lw=0.3)
    figure.legend(loc="outside upper center", ncols=4, fontsize=7)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
