"""Write the measurements into the page of the documentation."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from tests.benchmarks.harness import OURS, Result
from tests.benchmarks.requests import UNITS

_SECTION = re.compile(r"^## Measured\n.*?(?=^## )", re.MULTILINE | re.DOTALL)
_REQUESTS_SECTION = re.compile(r"^## Requests\n.*?(?=^## )", re.MULTILINE | re.DOTALL)
_REQUESTS = """## Requests

Requests and round trips of each piece of work at an S3 server, as
`python -m tests.benchmarks requests` counts them. *8 / 2* are 8 requests in 2 waves, each of which
begins when the one before is answered. They are the same on every machine.
Versions: {versions}.

"""
_INTRODUCTION = """## Measured

On {day}: {processor}, {processors} processors, {system}, Python {python},
{versions};
medians of {rounds} rounds. Ratios of wall time, theirs to ours: above 1 the other is slower; in
brackets the ratio of processor time of the one process. *Limit* is the same work with nothing
around it: bare reads and decoding, the bytes alone. **Bold** misses the goal that we set
ourselves: {missed} of {aimed} comparisons do. Of {unreachable} of them, marked †, the limit
itself misses it. {{download}}`All numbers <performance.json>`.

![Ratios of all rows, right of 1 the others are slower](images/performance.svg)

"""


def replaced(
    page: str,
    results: Sequence[Result],
    failures: Sequence[str],
    machine: Mapping[str, Any],
    rounds: int,
) -> str:
    """Return the page with the results in place of its sections "Measured" and "Requests"."""
    counted = [result for result in results if result.unit in UNITS]
    if counted:
        page = _with_section(page, _REQUESTS_SECTION, _requests(counted, machine["versions"]))
    results = [result for result in results if result.unit not in UNITS]
    if not results:
        return page
    pairs = [(result, name) for result in results for name in result.goals if name in result.ratio]
    day = date.fromisoformat(machine["date"])
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    text = _INTRODUCTION.format(
        **{key: machine[key] for key in ("processor", "processors", "system", "python")},
        day=f"{day.day} {day:%B %Y}",
        versions="\n".join(textwrap.wrap(versions, 95)),
        rounds=rounds,
        missed=sum(result.missed(name) for result, name in pairs),
        aimed=len(pairs),
        unreachable=sum(result.unreachable(name) for result, name in pairs),
    )
    text += "| Work | Ours | Others | Goal |\n| --- | --- | --- | --- |\n"
    text += "".join(f"{_line(result)}\n" for result in results) + "\n"
    text += "".join(f"Not measured: {' '.join(item.split())[:200]}\n\n" for item in failures)
    return _with_section(page, _SECTION, text)


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
    shown = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines = [["Work", *names], ["---"] * (1 + len(names))]
    for row, counts_by_name in cells.items():
        line = (" / ".join(counts_by_name.get(name, ["–"])) for name in names)
        lines.append([row, *line])
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return _REQUESTS.format(versions=shown) + table + "\n"


def _line(result: Result) -> str:
    cells = []
    goals: dict[str, list[str]] = {}
    for name, ratio in result.ratio.items():
        text = f"**{_number(ratio)}**" if result.missed(name) else _number(ratio)
        text += "†" if result.unreachable(name) else ""
        processor = result.processor_ratio.get(name, 0)
        # Servers and child processes do not count as processor time, nor does waiting.
        cells.append(f"{name} {text}" + (f" ({_number(processor)})" if processor >= 0.05 else ""))
        if name in result.goals:
            goals.setdefault(f"{result.goals[name]:.2g}", []).append(name)
    cells += [f"{name}: fails" for name in result.failed]
    aimed = "; ".join(f"{goal} {', '.join(names)}" for goal, names in goals.items())
    aimed = next(iter(goals)) if len(goals) == 1 else aimed or "–"
    ours = _shown(result.wall[OURS], result.unit)
    return f"| {result.row} | {ours} | {', '.join(cells) or '–'} | {aimed} |"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2f}" if value < 1.95 else f"{value:.1f}"


def _shown(value: float, unit: str) -> str:
    if unit != "s":
        return f"{value:,.0f} {unit}" if value >= 10 else f"{value:.2g} {unit}"
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.3g} ms"
