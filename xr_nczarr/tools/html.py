"""Build HTML representations that adopt the colors of the notebook."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape
from itertools import product

from xr_nczarr.errors import quote
from xr_nczarr.model import grid_shape

_MAX_CELLS = 48  # along each side of a drawn grid; if there are more chunks, they share cells
_MAX_SIDE, _MIN_SIDE = 220, 14

STYLE = """<style>
.nz { --nz-faint: color-mix(in srgb, currentColor 62%, transparent);
  --nz-line: color-mix(in srgb, currentColor 25%, transparent);
  --nz-row: color-mix(in srgb, currentColor 5%, transparent); --nz-accent: #2f7ed8;
  font-size: 13px; line-height: 1.5; max-width: 1000px; overflow-x: auto; }
.nz-title { font-weight: bold; padding-bottom: 4px; border-bottom: 1px solid var(--nz-line); }
.nz-faint { color: var(--nz-faint); font-weight: normal; }
.nz-problem { color: var(--jp-error-color1, color-mix(in srgb, #e03c28 75%, currentColor)); }
.nz summary { cursor: pointer; }
.nz details.nz-group { padding-left: 12px; }
.nz details.nz-group > summary { margin-left: -12px; padding: 3px 0; font-weight: bold; }
.nz table { border-collapse: collapse; margin: 2px 0 6px; width: 100%; }
.nz th, .nz td { text-align: left; padding: 2px 10px 2px 2px; vertical-align: top;
  background: none; border: none; white-space: nowrap; color: inherit; }
.nz th { color: var(--nz-faint); font-weight: normal; border-bottom: 1px solid var(--nz-line); }
.nz tbody tr:nth-child(odd) { background: var(--nz-row); }
.nz pre { margin: 4px 0; color: inherit; background: none; white-space: pre-wrap; }
.nz dl { display: grid; grid-template-columns: max-content 1fr; gap: 0 12px; margin: 4px 0 4px 14px;
  white-space: normal; }
.nz dt { color: var(--nz-faint); } .nz dd { margin: 0; overflow-wrap: anywhere; }
.nz-bar { display: inline-block; width: 90px; height: 8px; margin-right: 8px;
  border: 1px solid var(--nz-line); vertical-align: middle; }
.nz-bar > span { display: block; height: 100%; background: var(--nz-line); }
.nz-bar > span > span { display: block; height: 100%; background: var(--nz-accent); }
.nz svg { margin: 4px 0 4px 14px; display: block; overflow: visible; }
.nz svg rect { fill: var(--nz-row); stroke: var(--nz-line); }
.nz svg rect.nz-touched { fill: var(--nz-accent); fill-opacity: .7; }
.nz svg text { fill: var(--nz-faint); font-size: 11px; }
</style>"""


def page(title: str, *parts: str) -> str:
    """Return the HTML representation of a result: its title, followed by `parts`.

    `title` is escaped by this function, but `parts` must already be HTML.
    """
    return f'<div class="nz">{STYLE}<div class="nz-title">{text(title)}</div>{"".join(parts)}</div>'


def text(value: object, max_length: int = 200) -> str:
    """Convert a value to HTML-escaped text, truncated to `max_length` characters."""
    return escape(quote(value, max_length))


def preformatted(lines: Iterable[str]) -> str:
    """Return lines of text as preformatted HTML, or an empty string if there are no lines."""
    escaped = escape("\n".join(lines))
    return f"<pre>{escaped}</pre>" if escaped else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table with the column titles `head`. Titles and cells must already be HTML."""
    titles = "".join(f"<th>{title}</th>" for title in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>"


def details(summary: str, content: str, *, kind: str = "", opened: bool = False) -> str:
    """Return an HTML element that users can expand to show `content` below `summary`.

    `summary` and `content` must already be HTML. `kind` is the CSS class of the element. `opened`
    states whether the element is initially expanded.
    """
    state = " open" if opened else ""
    return f'<details class="{kind}"{state}><summary>{summary}</summary>{content}</details>'


def faint(content: str) -> str:
    """Wrap HTML in an element with a less prominent text color."""
    return f'<span class="nz-faint">{content}</span>'


def bar(share: float, inner: float) -> str:
    """Return an HTML bar, filled to the fraction `share` of its length.

    The fraction `inner` of the filled part is highlighted. Both fractions are clipped to the range
    from 0 to 1.
    """
    widths = [f"{100 * min(1.0, max(0.0, part)):.1f}%" for part in (share, inner)]
    return (
        f'<span class="nz-bar"><span style="width:{widths[0]}">'
        f'<span style="width:{widths[1]}"></span></span></span>'
    )


def grid_svg(
    shape: Sequence[int],
    chunk_shape: Sequence[int],
    names: Sequence[str],
    touched: Sequence[Collection[int]] = (),
) -> str:
    """Return an SVG drawing of an array's chunks along one or two of its dimensions.

    If the array has more than two dimensions, two of them are drawn. Preference is given first to
    dimensions with chunks that are not in `touched`, and then to dimensions with more chunks.
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

    def importance(axis: int) -> tuple[bool, int, int]:
        return len(touched[axis]) < totals[axis], totals[axis], axis

    axes = sorted(sorted(range(len(shape)), key=importance)[-2:])
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
    captions = [f"{count:,}" for count in totals]
    notes = []
    if len(names) == len(totals):
        pairs = zip(names, captions, strict=True)
        captions = [f"{text(name)}: {count}" for name, count in pairs]
        if len(totals) > 2:
            notes.append(f"drawn along {' and '.join(text(names[axis]) for axis in axes)}")
    if any(totals[axis] > _MAX_CELLS for axis in axes):
        notes.append("each cell represents several chunks")
    caption = "; ".join([f"{' × '.join(captions)} chunks", *notes])
    size = f'width="{sides[1] + 2:.0f}" height="{sides[0] + 20:.0f}"'
    return f'<svg {size}>{"".join(drawn)}<text x="0" y="{sides[0] + 15:.0f}">{caption}</text></svg>'
