"""Compute which byte ranges or elements of a chunk must be read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from xr_nczarr.model import ArrayNode

# Maximum gap between two selected rows that are read together. Reading a gap of this size takes as
# long as another system call.
_GAP_BYTES = 16 << 10


class Window(NamedTuple):
    """Byte ranges of an uncompressed chunk that together contain all selected elements.

    Attributes
    ----------
    spans
        Start and length of each range in bytes.
    shape
        Shape of the concatenated ranges, in elements. It has as many dimensions as the chunk.
    source
        NumPy index of the selected elements in the concatenated ranges.
    """

    spans: list[tuple[int, int]]
    shape: tuple[int, ...]
    source: tuple[Any, ...]


def byte_window(
    node: ArrayNode, axes: tuple[int, ...] | None, source: tuple[Any, ...], *, remote: bool
) -> Window | None:
    """Return the byte ranges of an uncompressed chunk that contain the selected elements.

    Return None if the whole chunk must be read. Chunks of fixed-width strings are always read as a
    whole.

    Parameters
    ----------
    node
        Metadata of the array.
    axes
        Order of the chunk's dimensions in `source`, or None if the order is unchanged.
    source
        NumPy index into the chunk, with a slice or an array for each dimension.
    remote
        Whether each request costs a round trip. If so, a single byte range that covers all selected
        elements is returned.
    """
    # A writer may have increased the width of strings after the metadata was read. Byte ranges
    # would then be wrong. Only the size of the whole chunk reveals that the width has changed.
    if node.dtype.kind == "S" and node.dtype.itemsize > 1:
        return None
    rank = len(node.chunk_shape)
    order = tuple(range(rank)) if axes is None else axes
    items: list[Any] = [None] * rank
    extents: list[tuple[int, int]] = [(0, 0)] * rank
    for axis, item in zip(order, source, strict=True):
        items[axis], extents[axis] = item, _extent(item)
    # Find the first dimension along which more than one index is selected. Each index along this
    # dimension is a row, and each selected row is read with all of its elements.
    rows = next((axis for axis, (low, high) in enumerate(extents) if high > low), rank - 1)
    strides = [math.prod(node.chunk_shape[axis + 1 :]) for axis in range(rank)]
    itemsize = node.dtype.itemsize
    max_gap = node.chunk_shape[rows] if remote else 1 + _GAP_BYTES // (strides[rows] * itemsize)
    runs, moved = _runs(items[rows], extents[rows], max_gap)
    count = sum(length for _, length in runs)
    shape = (1,) * rows + (count,) + node.chunk_shape[rows + 1 :]
    if math.prod(shape) == math.prod(node.chunk_shape):
        return None
    first = sum(extents[axis][0] * strides[axis] for axis in range(rows))
    step = strides[rows] * itemsize
    spans = [(first * itemsize + start * step, length * step) for start, length in runs]
    for axis in range(rows):
        items[axis] = _shift(items[axis], extents[axis][0])
    items[rows] = moved
    return Window(spans, shape, tuple([items[axis] for axis in order]))


def part_within(
    shape: Sequence[int], chunk_shape: Sequence[int], index: Sequence[int]
) -> tuple[slice, ...]:
    """Return the part of a chunk that lies within an array of the given shape.

    `index` is the index of the chunk in the grid.
    """
    sizes = zip(shape, chunk_shape, index, strict=True)
    return tuple([slice(max(0, size - number * length)) for size, length, number in sizes])


def _runs(item: Any, extent: tuple[int, int], max_gap: int) -> tuple[list[tuple[int, int]], Any]:
    """Return the runs of rows to read, and a NumPy index of the selected rows in these runs.

    Each run is a (start, length) pair. Selected rows that are at most `max_gap` apart are in the
    same run.
    """
    low, high = extent
    if isinstance(item, slice):
        if item.step <= max_gap or high == low:
            return [(low, high + 1 - low)], _shift(item, low)
        rows_apart = range(low, high + 1, item.step)
        return [(row, 1) for row in rows_apart], slice(0, len(rows_apart), 1)
    rows = np.unique(item)
    begins = np.array([0, *(1 + np.flatnonzero(rows[1:] - rows[:-1] > max_gap)).tolist()])
    ends = np.array([*begins[1:].tolist(), len(rows)])
    starts, stops = rows[begins], rows[ends - 1] + 1
    lengths = stops - starts
    removed = np.repeat(starts - (lengths.cumsum() - lengths), ends - begins)
    moved = (rows - removed)[np.searchsorted(rows, item)]
    return list(zip(starts.tolist(), lengths.tolist(), strict=True)), moved


def _extent(item: Any) -> tuple[int, int]:
    if isinstance(item, slice):
        return item.start, item.start + (item.stop - 1 - item.start) // item.step * item.step
    return int(item.min()), int(item.max())


def _shift(item: Any, origin: int) -> Any:
    if isinstance(item, slice):
        return slice(item.start - origin, item.stop - origin, item.step)
    return item - origin
