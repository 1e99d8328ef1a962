"""Look up the names and labels that select part of a dataset."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, suppress
from datetime import date
from typing import Any

import numpy as np

from xr_nczarr.errors import NczarrError, NotFoundError, quote, unknown


def chosen_paths(requested: Collection[str] | None, paths: set[str], what: str) -> set[str]:
    """Return the members of `paths` that match any of the requested names.

    A name that starts with a slash is an absolute path. Any other name, such as ``t``, matches
    every path that ends with ``/t``. If `requested` is None, all paths match. `what` names the kind
    of item in error messages, such as ``variable``.

    Raises
    ------
    NotFoundError
        If a name does not match any path.
    """
    if requested is None:
        return set(paths)
    chosen: set[str] = set()
    for name in requested:
        matching = {
            path
            for path in paths
            if path == (name or "/") or (name[:1] != "/" and path.endswith(f"/{name}"))
        }
        if not matching:
            raise unknown(what, name, {path.rpartition("/")[2] for path in paths} - {""})
        chosen |= matching
    return chosen


def positions_of(
    select: Mapping[str, Any], open_labels: Callable[[], AbstractContextManager[Any]]
) -> dict[str, Any]:
    """Convert the labels in a selection to positions.

    Labels are strings, floats, dates, and slices of these. A slice of labels includes both ends.
    All other items are positions, and are returned unchanged.

    Parameters
    ----------
    select
        Mapping from dimension names to labels or positions.
    open_labels
        Function that opens the Dataset whose coordinates contain the labels. It is called only if
        there are labels.

    Raises
    ------
    NotFoundError
        If a label is unknown, or its dimension has no coordinate variable.
    """
    if not any(map(is_label, select.values())):
        return dict(select)
    with open_labels() as dataset:
        return {
            name: _position(dataset, name, item) if is_label(item) else item
            for name, item in select.items()
        }


def check_position(position: Any, dimension: str, size: int, error: type[NczarrError]) -> None:
    """Raise `error` if `position` is an integer outside a dimension of length `size`."""
    if isinstance(position, int | np.integer) and not -size <= position < size:
        raise error(
            f"position {position} is out of bounds for dimension {quote(dimension)} of length "
            f"{size}",
            remedy=f"Pass positions from 0 to {size - 1}"
            if size
            else "Leave out the dimension; its length is 0",
        )


def is_label(item: Any) -> bool:
    """Return whether an item of a selection is a label or a slice of labels."""
    parts = (item.start, item.stop) if isinstance(item, slice) else (item,)
    return any(isinstance(part, str | float | date | np.datetime64) for part in parts)


def _position(dataset: Any, name: str, label: Any) -> int | slice:
    if name not in dataset.dims:
        raise unknown("dimension", name, [*map(str, dataset.dims)])
    if name not in dataset.variables:
        raise NotFoundError(
            f"dimension {quote(name)} has no labels, because it has no coordinate variable",
            remedy=f"Pass positions instead, such as {quote(name)}=0:10",
        )
    index = dataset[name].to_index()
    convert: Callable[[Any], Any] = _number if index.dtype.kind in "iuf" else _date_to_text
    try:
        if isinstance(label, slice):
            ends = [label.start, label.stop]
            ends = [None if end is None else convert(end) for end in ends]
            if index.is_monotonic_decreasing and None not in ends and ends[0] < ends[1]:
                ends.reverse()
            position = index.slice_indexer(*ends)
            is_found = len(range(len(index))[position]) > 0
        else:
            position = index.get_loc(convert(label))
            is_found = not isinstance(position, np.ndarray)
        if not is_found:
            raise KeyError(label)
    except (KeyError, ValueError, TypeError) as error:
        parts = [label.start, label.stop] if isinstance(label, slice) else [label]
        wanted = "/".join("" if part is None else str(part) for part in parts)
        remedy = "Leave out the dimension; its length is 0"
        if len(index):
            remedy = f"Pass labels from {quote(index[0])} to {quote(index[-1])}"
        problem = f"dimension {quote(name)} has no label {quote(wanted)}"
        raise NotFoundError(problem, remedy=remedy) from error
    return position if isinstance(position, slice) else int(position)


def _date_to_text(label: Any) -> Any:
    """Format a date that has no time of day as text. Return any other label unchanged."""
    # Given a date as text, pandas selects all times of that day.
    return str(label) if type(label) is date else label


def _number(label: Any) -> int | float:
    """Convert a label to a number."""
    with suppress(ValueError):  # floats cannot represent all large integers
        if isinstance(label, str):
            return int(label)
    return float(label)
