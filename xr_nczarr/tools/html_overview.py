"""What a notebook shows of a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xr_nczarr.netcdf import Group, Variable
from xr_nczarr.tools.html import bar, details, faint, grid_svg, page, table, text
from xr_nczarr.tools.text import byte_text, dimension_text, extent_text, notes, size_text

Describe = Callable[[Variable], dict[str, Any]]

_MOST_VARIABLES = 300
_LONGEST_VALUE = 1000


def overview_html(title: str, root: Group, describe: Describe, counted: bool, reason: str) -> str:
    """Give an overview as HTML: groups that fold, sizes as bars, the layout of chunks drawn.

    `describe` is `Overview.describe`; the chunks that are there were `counted`, or there is a
    reason why not.
    """
    sizes = [
        describe(variable).get("raw_bytes") or 0
        for group in root.walk()
        for variable in group.variables.values()
    ]
    parts = [_group(root, describe, counted, max([1, *sizes]))]
    if reason:
        parts.append(f"<div>{faint('chunks are not counted: ' + text(reason))}</div>")
    return page(title, *parts)


def _group(group: Group, describe: Describe, counted: bool, largest: int) -> str:
    dimensions = ", ".join(text(dimension_text(item)) for item in group.dimensions.values())
    parts = [_attributes(group.attributes)]
    variables = list(group.variables.values())
    if variables:
        shown = variables[:_MOST_VARIABLES]
        head = ["variable", "type", "shape", "chunks", "codecs", "size"]
        head += ["stored"] if counted else []
        parts.append(table(head, [_row(item, describe(item), largest) for item in shown]))
    if len(variables) > _MOST_VARIABLES:
        parts.append(faint(f"and {len(variables) - _MOST_VARIABLES:,} more variables"))
    parts += [f"<div>{faint('note: ' + text(note))}</div>" for note in notes(group)]
    parts += [_group(child, describe, counted, largest) for child in group.groups.values()]
    summary = f"{text(group.path)} {faint(dimensions)}"
    return details(summary, "".join(parts), kind="nz-group", opened=True)


def _row(variable: Variable, found: dict[str, Any], largest: int) -> list[str]:
    name = f"{text(found['name'])} {faint('(' + ', '.join(map(text, found['dimensions'])) + ')')}"
    if "error" in found:
        return [name, f'<span class="nz-problem">unreadable: {text(found["error"])}</span>']
    drawn = grid_svg(variable.shape, found["chunk_shape"], found["dimensions"])
    shards = f" in {extent_text(found['shard_shape'])}" if found["shard_shape"] else ""
    raw = found["raw_bytes"] or 0
    cells = [
        details(name, _attributes(variable.attributes) + drawn),
        text(found["type"]),
        extent_text(found["shape"]),
        extent_text(found["chunk_shape"]) + shards,
        text(" ".join(found["codecs"])),
    ]
    if "objects" not in found:
        return [*cells, bar(raw / largest) + byte_text(found["raw_bytes"])]
    stored = (found["stored_bytes"] or 0) / raw if raw else 0.0
    present = f"{found['objects_present']:,} of {found['objects']:,}"
    return [*cells, bar(raw / largest, stored) + size_text(found), present]


def _attributes(attributes: dict[str, Any]) -> str:
    if not attributes:
        return ""
    pairs = (f"<dt>{text(name)}</dt><dd>{_value(value)}</dd>" for name, value in attributes.items())
    return f"<dl>{''.join(pairs)}</dl>"


def _value(value: Any) -> str:
    shown = str(value.tolist() if hasattr(value, "tolist") else value)
    parts = (shown[first : first + 200] for first in range(0, min(len(shown), _LONGEST_VALUE), 200))
    return "".join(map(text, parts)) + ("…" if len(shown) > _LONGEST_VALUE else "")
