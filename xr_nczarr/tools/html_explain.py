"""What a notebook shows of a reading: the chunks it touches, drawn."""

from __future__ import annotations

from xr_nczarr.tools.explain import Explanation, Reading, cells
from xr_nczarr.tools.html import details, faint, grid_svg, page, table, text


def explanation_html(explanation: Explanation) -> str:
    """Give an explanation as HTML: a row for each variable, whose touched chunks are drawn."""
    head = ["variable", "selected", "chunks", "requests", "fetched", "decoded"]
    rows = [_row(reading) for reading in explanation.readings]
    rows.append([f"<b>{text(cell)}</b>" for cell in explanation.totals()])
    parts = [table(head, rows)]
    for name, reason in explanation.left_out.items():
        parts.append(f"<div>{faint(f'{text(name)}: {text(reason)}')}</div>")
    return page("What reading takes", *parts)


def _row(reading: Reading) -> list[str]:
    name, *rest = map(text, cells(reading))
    drawn = grid_svg(reading.shape, reading.chunk_shape, reading.dimensions, reading.touched)
    return [details(name, drawn, opened=True) if drawn else name, *rest]
