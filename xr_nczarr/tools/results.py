"""Define the base class for the results that tools return, and format results as text and HTML.

The HTML adopts the colors of the notebook.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict
from functools import cache
from html import escape
from itertools import product
from typing import TYPE_CHECKING, Any

from xr_nczarr.errors import quote
from xr_nczarr.model import grid_shape
from xr_nczarr.netcdf import Dimension

if TYPE_CHECKING:
    from jinja2 import Environment

_MAX_CELLS = 48  # along each side of a drawn grid; if there are more chunks, they share cells
_MAX_SIDE, _MIN_SIDE = 220, 14
_MIN_FIRST_COLUMN = 16  # characters


class Result:
    """Base class for the results of tools. Its subclasses are dataclasses.

    A result can be printed as text, rendered as HTML in notebooks, and converted to JSON values.
    """

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a JSON-serializable dictionary, which has a published schema."""
        return {"schema_version": 1, **self._members()}

    def _members(self) -> dict[str, Any]:
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


def render_html(template: str, **values: Any) -> str:
    """Render a file in ``templates/``. Values are escaped unless the template marks them safe."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    from jinja2 import Environment, PackageLoader  # not needed by the command

    loader = PackageLoader("xr_nczarr.tools")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True)
    environment.filters["quote"] = quote
    environment.globals["grid_svg"] = grid_svg
    return environment


def grid_svg(
    shape: Sequence[int],
    chunk_shape: Sequence[int],
    names: Sequence[str],
    touched: Sequence[Collection[int]] = (),
) -> str:
    """Return an SVG drawing of an array's chunks along one or two of its dimensions.

    If the array has more than two dimensions, two of them are drawn. Dimensions that `touched`
    covers only in part are preferred, then dimensions with more chunks.
    Return an empty string for a scalar or an array without elements.

    Parameters
    ----------
    names
        Names of the dimensions, for the caption. If the dimensions have no names, the caption
        contains only numbers.
    touched
        For each dimension, the indices of the chunks that a read touches. These chunks are
        highlighted. If `touched` is empty, no chunk is highlighted.
    """
    if not shape or 0 in shape:
        return ""
    totals = grid_shape(shape, chunk_shape)
    touched = touched or [()] * len(shape)
    importance = [(len(part) < total, total) for part, total in zip(touched, totals, strict=True)]
    axes = sorted(sorted(range(len(shape)), key=importance.__getitem__)[-2:])
    longest = max(shape[axis] for axis in axes)
    sides = [max(_MIN_SIDE, _MAX_SIDE * shape[axis] / longest) for axis in axes]
    cells = [min(totals[axis], _MAX_CELLS) for axis in axes]
    filled = [
        {number * count // totals[axis] for number in touched[axis]}
        for axis, count in zip(axes, cells, strict=True)
    ]
    if len(axes) == 1:
        sides, cells, filled = [_MIN_SIDE * 1.5, *sides], [1, *cells], [{0}, *filled]
    height, width = sides[0] / cells[0], sides[1] / cells[1]
    drawn = []
    for row, column in product(*map(range, cells)):
        kind = ' class="nz-touched"' if row in filled[0] and column in filled[1] else ""
        place = f'x="{column * width + 0.5:.1f}" y="{row * height + 0.5:.1f}"'
        drawn.append(f'<rect {place} width="{width:.1f}" height="{height:.1f}"{kind}/>')
    counts = [f"{count:,}" for count in totals]
    named = [escape(quote(name)) for name in names] if len(names) == len(totals) else []
    if named:
        counts = [f"{name}: {count}" for name, count in zip(named, counts, strict=True)]
    caption = f"{' × '.join(counts)} chunks"
    if named and len(totals) > 2:
        caption += f"; drawn along {' and '.join(named[axis] for axis in axes)}"
    if any(totals[axis] > _MAX_CELLS for axis in axes):
        caption += "; each cell represents several chunks"
    size = f'width="{sides[1] + 2:.0f}" height="{sides[0] + 20:.0f}"'
    return f'<svg {size}>{"".join(drawn)}<text x="0" y="{sides[0] + 15:.0f}">{caption}</text></svg>'
