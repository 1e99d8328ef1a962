"""Draw results: a line for each benchmark, with a point for each implementation.

``python -m tests.benchmarks.plot docs/performance.json docs/images/speed.svg`` draws only the
benchmarks in `OVERVIEW`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from matplotlib.figure import Figure

from tests.benchmarks.harness import Result
from tests.benchmarks.names import shown

MARKERS = "oDs^vPXd<>ph"
OVERVIEW = {
    "open 500 variables, consolidated": "open 500 variables",
    "265 MB through xarray, blosc": "read 265 MB through xarray, Blosc",
    "265 MB, 4 MB chunks, raw": "read 265 MB, uncompressed",
    "4,000 chunks of 16 kB, blosc": "read 4,000 chunks of 16 kB, Blosc",
    "1,000 chunks of 16 kB over HTTP, 20 ms": "read 1,000 chunks over HTTP, 20 ms",
    "write 265 MB, blosc": "write 265 MB, Blosc",
}
"""Benchmarks in the figure for users, and their labels."""
PEERS = {
    "xarray and zarr-python": ("engine zarr", "to_zarr"),
    "zarr-python": ("zarr-python", "zarr-python, obstore"),
    "zarrs": ("zarrs",),
    "tensorstore": ("tensorstore",),
}
"""Libraries in the figure for users, and the names of their implementations."""


def draw(results: list[Result], path: Path) -> None:
    """Draw the ratios on a logarithmic axis. A point to the right of 1 means a slower library."""
    rows = [result for result in results if result.ratio and result.unit == "s"]
    figure = Figure(figsize=(9, 1.2 + 0.24 * len(rows)), layout="constrained")
    axes = figure.subplots()
    names = list(dict.fromkeys(name for row in rows for name in row.ratio))
    for number, name in enumerate(names):
        places = [(row.ratio[name], -at) for at, row in enumerate(rows) if name in row.ratio]
        marker, color = MARKERS[number % len(MARKERS)], f"C{number % 10}"
        axes.plot(*zip(*places, strict=True), marker, ms=5, color=color, label=shown(name))
        goals = [
            (row.goals[name], -at)
            for at, row in enumerate(rows)
            if name in {*row.goals} & {*row.ratio}
        ]
        for goal, at in goals:
            axes.plot(goal, at, "|", color=color, ms=9)
    axes.axvline(1, color="0.5", lw=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(0, -len(rows), -1), [row.row for row in rows], fontsize=7)
    axes.set_xlabel("time of the other library / time of xr_nczarr (bar: goal)", fontsize=8)
    axes.grid(axis="y", lw=0.3)
    figure.legend(loc="outside upper center", ncols=4, fontsize=7)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def draw_overview(results: list[Result], path: Path) -> None:
    """Draw six benchmarks of four other libraries, with a bar from 1 to each ratio."""
    rows = {result.row: result.ratio for result in results}
    figure = Figure(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    for number, (peer, names) in enumerate(PEERS.items()):
        places, ratios = [], []
        for at, row in enumerate(OVERVIEW):
            ratio = next((rows[row][name] for name in names if name in rows[row]), None)
            if ratio is not None:
                places.append(0.3 - at - 0.2 * number)
                ratios.append(ratio)
        lengths = [ratio - 1 for ratio in ratios]
        bars = axes.barh(places, lengths, 0.18, left=1, color=f"C{number}", label=peer)
        axes.bar_label(bars, [f"{ratio:.1f}×" for ratio in ratios], padding=3, fontsize=8)
    axes.axvline(1, color="0.3", lw=1)
    axes.set_xscale("log")
    axes.set_xticks(ticks := [0.5, 1, 2, 5, 10, 20], [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.margins(x=0.1)
    axes.set_yticks(range(0, -len(OVERVIEW), -1), list(OVERVIEW.values()), fontsize=9)
    axes.set_xlabel("time of the other library / time of engine nczarr", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside upper center", ncols=4, fontsize=9)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    record = json.loads(Path(sys.argv[1]).read_text())
    draw_overview([Result(**result) for result in record["results"]], Path(sys.argv[2]))
