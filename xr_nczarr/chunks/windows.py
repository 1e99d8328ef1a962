"""The bytes of an uncompressed chunk that a selection needs: pure arithmetic."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from xr_nczarr.model import ArrayNode


class Window(NamedTuple):
    """A run of bytes of a chunk, which is a box of its elements.

    Attributes
    ----------
    start, length
        In bytes from the beginning of the chunk.
    shape
        Of the box in elements, in the chunk's dimensions.
    source
        The part's source, relative to the box.
    """

    start: int
    length: int
    shape: tuple[int, ...]
    source: tuple[Any, ...]


def byte_window(
    node: ArrayNode, axes: tuple[int, ...] | None, source: tuple[Any, ...]
) -> Window | None:
    """Give the smallest run of whole rows that holds `source`, or None if it is the whole chunk.

    Parameters
    ----------
    axes
        Order of the chunk's dimensions in `source`; None for their own.
    """
    rank = len(node.chunk_shape)
    order = tuple(range(rank)) if axes is None else axes
    extents: list[tuple[int, int]] = [(0, 0)] * rank
    for axis, item in zip(order, source, strict=True):
        extents[axis] = _extent(item)
    # Dimensions before the first one that is selected by more than one index are fixed; the
    # rows of that one are a run, and what lies within a row is taken along.
    rows = next((axis for axis, (low, high) in enumerate(extents) if high > low), rank - 1)
    shape = (1,) * rows + (extents[rows][1] - extents[rows][0] + 1,) + node.chunk_shape[rows + 1 :]
    if math.prod(shape) == math.prod(node.chunk_shape):
        return None
    strides = [math.prod(node.chunk_shape[axis + 1 :]) for axis in range(rank)]
    first = sum(extents[axis][0] * strides[axis] for axis in range(rows + 1))
    shifted = tuple(
        _shift(item, extents[axis][0]) if axis <= rows else item
        for axis, item in zip(order, source, strict=True)
    )
    itemsize = node.dtype.itemsize
    return Window(first * itemsize, math.prod(shape) * itemsize, shape, shifted)


def _extent(item: Any) -> tuple[int, int]:
    """Give the lowest and the highest index that a source selects (its slices step upwards)."""
    if isinstance(item, slice):
        return item.start, item.start + (item.stop - 1 - item.start) // item.step * item.step
    return int(np.min(item)), int(np.max(item))


def _shift(item: Any, origin: int) -> Any:
    if isinstance(item, slice):
        return slice(item.start - origin, item.stop - origin, item.step)
    return item - origin
