"""Write the measurements into the page of the documentation."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from tests.benchmarks.harness import OURS, Result
from tests.benchmarks.names import shown
from tests.benchmarks.requests import UNITS

_SECTION = re.compile(r"^## Measured\n.*?(?=^## )", re.MULTILINE | re.DOTALL)
_REQUESTS_SECTION = re.compile(r"^## Requests\n.*?(?=^## )", re.MULTILINE | re.DOTALL)
_REQUESTS = """## Requests

This table shows how many requests each piece of work sends to an S3 server, and in how many
batches: *8 / 2* means 8 requests in 2 batches. All requests of a batch run at the same time, and
each batch starts when the previous batch is complete. These counts are the same on every machine. A
dash means that the library cannot do this work, or was not measured.

"""
_INTRODUCTION = """## Measured

These results were measured on a machine with {processors} processors ({processor}) under {system}.
Each value is the median of several rounds.

- The second column is the time of xr_nczarr, unless a row has another unit.
- The third column contains ratios: the time of another contestant divided by the time of
  xr_nczarr. If a ratio is above 1, the other contestant is slower.
- *Bare work* is the same reading and decoding, in as little Python as possible. *At most …* is a
  fixed time or size.
- Most ratios have a goal. {missed} of {aimed} are below their goal. They are printed in **bold**,
  and the last column shows the goal. For {unreachable} of them, marked †, the bare work is below
  the goal too.

In the names of the rows, *raw* means uncompressed, *20 ms* is the latency of the server, and
*single documents* means a store without consolidated metadata. *Strided* reads every 4th step and
every 16th row and column. *Orthogonal* reads 3 steps, 4 rows and 4 columns by their positions.

{{download}}`performance.json <performance.json>` contains all goals and times.

![Ratios of all rows; to the right of 1, the others are slower](images/performance.svg)

"""
_TABLES = {
    "Start": "import |nczarr |first open",
    "Remote stores": "HTTP|S3|nginx",
    "Reference sets": "references|gen ",
    "Dask and threads": "dask|mean of|threads|task",
    "Writing": "^(write|copy|append|regions|to_nczarr|memory to stream) ",
    "Opening many variables": "open ",
    "Shards": "shards",
    "Selections": "point series|row of|box of|strided|orthogonal",
    "Reading large chunks": "265 MB|packed",
    "Reading small chunks": "chunks of",
    "Other work": "",
}
"""Headings of the tables, and patterns for the names of their rows; the first match counts."""


def replaced(
    page: str,
    results: Sequence[Result],
    failures: Sequence[str],
    machine: Mapping[str, Any],
) -> str:
    """Return the page with the results in place of its sections "Measured" and "Requests"."""
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
        unreachable=sum(result.unreachable(name) for result, name in pairs),
    )
    tables: dict[str, list[Result]] = {}
    for result in results:
        heading = next(head for head, words in _TABLES.items() if re.search(words, result.row))
        tables.setdefault(heading, []).append(result)
    for heading, rows in tables.items():
        text += f"### {heading}\n\n{_measured(rows)}\n\n"
        text += "| Work | xr_nczarr | Others | Missed goals |\n| --- | --- | --- | --- |\n"
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
    return f"Measured on {dates} with {number} rounds."


def _versions(versions: Mapping[str, str]) -> str:
    text = ", ".join(f"{name} {version}" for name, version in versions.items())
    return textwrap.fill(f"Versions: {text}.", 100) + "\n\n"


def _with_section(page: str, section: re.Pattern[str], text: str) -> str:
    page, count = section.subn(lambda _: text, page)
    if count != 1:
        raise ValueError(f"the page has no section {text.splitlines()[0]} with another behind it")
    return page


def _requests(results: Sequence[Result], versions: Mapping[str, str]) -> str:
    """Return the section with a line for each piece of work, and a column for each contestant."""
    cells: dict[str, dict[str, list[str]]] = {}
    for result in results:
        for name, value in result.wall.items():
            cells.setdefault(result.row, {}).setdefault(name, []).append(f"{value:.0f}")
        for name in result.failed:
            cells.setdefault(result.row, {})[name] = ["fails"]
    names = list(dict.fromkeys(name for row in cells.values() for name in row))
    lines = [["Work", *names], ["---"] * (1 + len(names))]
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
            goal = result.goals[name]
            number = f"{goal:.0f}" if goal >= 10 else f"{goal:.2g}"
            missed.append(f"{shown(name)} {number}{'†' if result.unreachable(name) else ''}")
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
