"""Write the results into the documentation page."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from tests.benchmarks.harness import OURS, Result
from tests.benchmarks.names import shown
from tests.benchmarks.requests import UNITS

_SECTION = re.compile(r"^## Results\n.*?(?=^## )", re.MULTILINE | re.DOTALL)
_REQUESTS_SECTION = re.compile(r"^## Requests\n.*?(?=^## )", re.MULTILINE | re.DOTALL)
_REQUESTS = """## Requests

This table shows how many requests each operation sends to an S3 server, and in how many batches:
*8 / 2* means 8 requests in 2 batches. The requests of a batch are sent concurrently, and each batch
starts when the previous one is complete. These counts are the same on every machine. A dash means
that the operation was not measured with this library.

"""
_INTRODUCTION = """## Results

These results were measured under {system} on a machine with {processors} processors ({processor}).
Each value is the median of several rounds.

- The second column is the time that xr_nczarr takes, unless another unit is shown.
- The third column lists ratios: the time of another library, or of xr_nczarr in another
  configuration, divided by the time in the second column. If a ratio is above 1, the other one is
  slower.
- *Baseline* is not a library. It does the same work, such as reading and decoding, with as little
  Python as possible. *Alone* marks a part of the work, such as the download. *Limit (…)* is an
  upper bound on the time or size. It is exceeded if the ratio is below 1.
- Most ratios have a goal. {missed} of the {aimed} goals are missed. The missed ratios are printed
  in **bold**, with their goals in the last column. For {unreachable} of them, the baseline misses
  the goal as well. The better of the ratios of xr_nczarr and of the baseline is then listed
  after *at best*.

In the names of the benchmarks, *raw* means uncompressed, *20 ms* is the latency of the server, and
*not consolidated* means a store without consolidated metadata. The 265 MB are 64 time steps of 1024
rows and 1012 columns of float32 numbers, and each chunk contains one time step. *Point series*
reads one number of each chunk. *Strided* reads every 4th time step and every 16th row and column.
*Orthogonal* selects 3 time steps, 4 rows and 4 columns by position.

{{download}}`performance.json <performance.json>` contains all goals, including those that are met.

![Ratios of all benchmarks; to the right of 1, the other library is slower](images/performance.svg)

"""
_TABLES = {
    "Startup": "^nczarr |first open",
    "Remote stores": "HTTP|S3|nginx",
    "Reference sets": "references|gen entry",
    "Dask and threads": "dask|threads|task",
    "Writing": "^(write|copy|append|peak memory while streaming) ",
    "Opening many variables": "open ",
    "Shards": "shards",
    "Selections": "point series|one row|one box|strided|orthogonal",
    "Reading large chunks": "265 MB|packed",
    "Reading small chunks": "chunks of",
    "Other": "",
}
"""Headings of the tables, and patterns for the names of their rows; the first match counts."""


def replaced(
    page: str,
    results: Sequence[Result],
    failures: Sequence[str],
    machine: Mapping[str, Any],
) -> str:
    """Return the page with the results in place of its sections "Results" and "Requests"."""
    counted = [result for result in results if result.unit in UNITS]
    if counted:
        page = _with_section(page, _REQUESTS_SECTION, _requests(counted, machine["versions"]))
    results = [result for result in results if result.unit not in UNITS]
    if not results:
        return page
    pairs = [(result, name) for result in results for name in result.goals if name in result.ratio]
    text = _INTRODUCTION.format(
        **{key: machine[key] for key in ("processor", "processors", "system")},
        missed=sum(result.missed(name) for result, name in pairs),
        aimed=len(pairs),
        unreachable=sum(result.limit(name) is not None for result, name in pairs),
    )
    tables: dict[str, list[Result]] = {}
    for result in results:
        heading = next(head for head, words in _TABLES.items() if re.search(words, result.row))
        tables.setdefault(heading, []).append(result)
    for heading, rows in tables.items():
        text += f"### {heading}\n\n{_measured(rows)}\n\n"
        text += (
            "| Benchmark | xr_nczarr | Others (ratio) | Missed goals |\n| --- | --- | --- | --- |\n"
        )
        text += "".join(f"{_line(row)}\n" for row in rows) + "\n"
    text += "".join(f"Not measured: {' '.join(item.split())[:200]}\n\n" for item in failures)
    text += _versions({"Python": machine["python"], **machine["versions"]})
    return _with_section(page, _SECTION, text)


def _measured(results: Sequence[Result]) -> str:
    """Return a sentence with the dates and the numbers of rounds of the results."""
    days = sorted({date.fromisoformat(result.day) for result in results})
    dates = " and ".join(f"{day.day} {day:%B %Y}" for day in days)
    rounds = sorted({result.rounds for result in results if result.unit == "s"}) or [1]
    number = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    return f"Measured on {dates} in {number} rounds."


def _versions(versions: Mapping[str, str]) -> str:
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    return textwrap.fill(f"Versions: {text}.", 100) + "\n\n"


def _with_section(page: str, section: re.Pattern[str], text: str) -> str:
    page, count = section.subn(lambda _: text, page)
    if count != 1:
        raise ValueError(
            f"the page has no section {text.splitlines()[0]} that another section follows"
        )
    return page


def _requests(results: Sequence[Result], versions: Mapping[str, str]) -> str:
    """Return the section with a line for each operation and a column for each implementation."""
    cells: dict[str, dict[str, list[str]]] = {}
    for result in results:
        for name, value in result.wall.items():
            cells.setdefault(result.row, {}).setdefault(name, []).append(f"{value:.0f}")
        for name in result.failed:
            cells.setdefault(result.row, {})[name] = ["fails"]
    names = list(dict.fromkeys(name for row in cells.values() for name in row))
    lines = [["Operation", *names], ["---"] * (1 + len(names))]
    for row, counts_by_name in cells.items():
        line = (" / ".join(counts_by_name.get(name, ["–"])) for name in names)
        lines.append([row, *line])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return _REQUESTS + table + "\n" + _versions(versions)


def _line(result: Result) -> str:
    cells, missed = [], []
    for name, ratio in result.ratio.items():
        if result.missed(name):
            cells.append(f"{shown(name)} **{_number(ratio)}**")
            goal, limit = result.goals[name], result.limit(name)
            number = f"{goal:.0f}" if goal >= 10 else f"{goal:.2g}"
            reachable = "" if limit is None else f" (at best {_number(limit)})"
            missed.append(f"{shown(name)} {number}{reachable}")
        else:
            cells.append(f"{shown(name)} {_number(ratio)}")
    cells += [f"{name}: fails" for name in result.failed]
    ours = _shown(result.wall[OURS], result.unit)
    return f"| {result.row} | {ours} | {', '.join(cells) or '–'} | {', '.join(missed)} |"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}" if value < 1.95 else f"{value:.1f}"


def _shown(value: float, unit: str) -> str:
    if unit != "s":
        return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.2g} {unit}"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.3g} ms"
