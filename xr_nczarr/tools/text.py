"""Numbers, shapes and tables as people read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def byte_text(count: int | None) -> str:
    """Give a number of bytes in units that people read; ``?`` when it is not known."""
    if count is None:
        return "?"
    size, units = float(count), ["B", "kB", "MB", "GB", "TB", "PB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        del units[0]
    return f"{size:.3g} {units[0]}" if size < 1000 else f"{size:.0f} {units[0]}"


def extent_text(shape: Sequence[int] | None) -> str:
    """Give a shape as it is spoken."""
    return "×".join(map(str, shape or ()))


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Give rows with their columns below one another; empty columns are left out.

    A row of one cell goes as it is.
    """
    whole = [row for row in rows if len(row) > 1]
    widths = [max(map(len, column)) for column in zip(*whole, strict=True)]
    used = [column for column, width in enumerate(widths) if width]
    for row in rows:
        if len(row) == 1:
            yield row[0]
        else:
            yield "  ".join(row[column].ljust(widths[column]) for column in used).rstrip()
