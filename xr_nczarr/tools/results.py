"""Define the base class for the results that tools return, and format results as text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from xr_nczarr.errors import quote
from xr_nczarr.netcdf import Dimension
from xr_nczarr.tools.html import render_html

_MIN_FIRST_COLUMN = 16  # characters


class Result:
    """Base class for the results of tools. Its subclasses are dataclasses.

    A result can be printed as text, rendered as HTML in notebooks, and converted to JSON values.
    """

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a JSON-serializable dictionary."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]

    def _repr_html_(self) -> str:
        title, *lines = repr(self).splitlines() or [""]
        return render_html("page.html", title=title, lines=lines)


def count_text(count: int, noun: str) -> str:
    """Format a count with its noun, such as ``1 chunk`` or ``2 chunks``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def shape_text(shape: Sequence[int] | None) -> str:
    """Format a shape, such as ``4×5``. None becomes an empty string."""
    return "×".join(map(str, shape or ()))


def columns(rows: Sequence[Sequence[str]], width: int | None = None) -> Iterator[str]:
    """Yield the lines of a table with aligned columns. Empty columns are left out.

    A row with a single cell is not aligned. If the table is wider than `width`, the first column is
    narrowed. A first cell that no longer fits gets its own line, above the rest of its row.
    """
    whole = [row for row in rows if len(row) > 1]
    widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
    used = [column for column, size in enumerate(widths) if size]
    if whole and width is not None:
        remaining = width - sum(widths[column] + 2 for column in used if column)
        widths[0] = min(widths[0], max(remaining, _MIN_FIRST_COLUMN))
    for first, *others in rows:
        if not others or len(first) > widths[0]:
            yield first
            first = ""
        if others:
            cells = [first, *others]
            yield "  ".join(cells[column].ljust(widths[column]) for column in used).rstrip()


def dimension_text(dimension: Dimension) -> str:
    """Format the name and the size of a dimension, and mark it if it is unlimited."""
    unlimited = " unlimited" if dimension.unlimited else ""
    return f"{quote(dimension.name)} {dimension.size}{unlimited}"


def wrapped(line: str) -> list[str]:
    """Indent a line, and wrap it at 80 characters. Continuation lines are indented further.

    Words that are longer than a line are not split.
    """
    return textwrap.wrap(
        line,
        80,
        initial_indent="  ",
        subsequent_indent="      ",
        break_long_words=False,
        break_on_hyphens=False,
    )
