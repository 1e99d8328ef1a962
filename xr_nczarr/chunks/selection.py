"""Composed selections: any sequence of selections and transpositions of an array as one read.

xarray composes selections as well, but it wraps indices below ``-size``, and treats each element of
a transposed array as a separate point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from xr_nczarr.chunks.grid import Positions, all_in_range, in_range

Item = int | slice | Positions
"""The selector of one axis, as in xarray's indexers."""


class ReadRequest(NamedTuple):
    """The read that a selection needs, and the arrangement of the values that it returns.

    Attributes
    ----------
    selection, pointwise
        The arguments of `ChunkedArray.read`.
    axes
        For each axis of the values, its axis in the selection. Axes of length 1 that single indices
        of a pointwise selection leave are omitted.
    """

    selection: list[Any]
    pointwise: bool
    axes: list[int]


class Selection(NamedTuple):
    """Elements of an array in some order.

    Attributes
    ----------
    shape
        Shape of the result.
    selectors
        For each dimension of the array, an index, a range, or an array of positions.
    axes
        For each dimension, the axes of the result along which its selector varies: none for an
        index, one for a range (which no other dimension shares), and one per dimension of an array.
    """

    shape: tuple[int, ...]
    selectors: tuple[int | range | Positions, ...]
    axes: tuple[tuple[int, ...], ...]

    def orthogonal(self, key: Sequence[Item]) -> Selection:
        """Return the selection of `key`, whose items each select along their own axis.

        Raises
        ------
        IndexError
            If an index is outside the axis.
        """
        shape: list[int] = []
        items: list[Item] = []
        kept: list[int | None] = []
        for item, size in zip(key, self.shape, strict=True):
            if isinstance(item, int) or (isinstance(item, np.ndarray) and not item.ndim):
                items.append(in_range(int(item), size))
                kept.append(None)
                continue
            kept.append(len(shape))
            if isinstance(item, slice):
                items.append(item)
                shape.append(len(range(size)[item]))
            else:
                items.append(all_in_range(np.asarray(item), size))
                shape.append(len(item))
        selectors, axes = [], []
        for selector, spanned in zip(self.selectors, self.axes, strict=True):
            selectors.append(_orthogonally(selector, [items[axis] for axis in spanned]))
            axes.append(tuple([at for axis in spanned if (at := kept[axis]) is not None]))
        return Selection(tuple(shape), tuple(selectors), tuple(axes))

    def pointwise(self, key: Sequence[slice | Positions]) -> Selection:
        """Return the selection of `key`, whose arrays select points together.

        The axes of the points come first, followed by those of slices, as in xarray's ``vindex``.

        Raises
        ------
        IndexError
            If an index is outside its axis.
        """
        points = {
            axis: all_in_range(np.asarray(item), self.shape[axis])
            for axis, item in enumerate(key)
            if not isinstance(item, slice)
        }
        if not points:
            return self.orthogonal(key)
        shape = list(np.broadcast_shapes(*[item.shape for item in points.values()]))
        leading = tuple(range(len(shape)))
        slices: dict[int, slice] = {}
        moved: dict[int, int] = {}
        for axis, item in enumerate(key):
            if isinstance(item, slice):
                slices[axis], moved[axis] = item, len(shape)
                shape.append(len(range(self.shape[axis])[item]))
        selectors, axes = [], []
        for selector, spanned in zip(self.selectors, self.axes, strict=True):
            others = [axis for axis in spanned if axis in slices]
            cuts, result = [slices[axis] for axis in others], [moved[axis] for axis in others]
            if len(others) < len(spanned):
                index: tuple[Any, ...] = (..., *cuts)
                selector = _at_points(selector, spanned, points)[index]
                selector, result = _squeezed(selector, [*leading, *result])
            else:
                selector = _orthogonally(selector, cuts)
            selectors.append(selector)
            axes.append(tuple(result))
        return Selection(tuple(shape), tuple(selectors), tuple(axes))

    def transposed(self, order: Sequence[int]) -> Selection:
        """Return the same elements with permuted axes."""
        place = {axis: number for number, axis in enumerate(order)}
        axes = tuple([tuple([place[axis] for axis in spanned]) for spanned in self.axes])
        return Selection(tuple([self.shape[axis] for axis in order]), self.selectors, axes)

    def request(self) -> ReadRequest:
        """Return the read that this selection needs."""
        spans = [axis for spanned in self.axes for axis in spanned]
        if max(map(len, self.axes), default=0) < 2 and len(set(spans)) == len(spans):
            return ReadRequest(list(map(_without_range, self.selectors)), False, spans)
        selectors = list(zip(self.selectors, self.axes, strict=True))
        arrays = [spanned for selector, spanned in selectors if isinstance(selector, np.ndarray)]
        joint = sorted({axis for spanned in arrays for axis in spanned})
        selection: list[Any] = []
        axes = list(joint)
        for selector, spanned in selectors:
            if isinstance(selector, np.ndarray):
                order = np.argsort(spanned)
                extents = [self.shape[axis] if axis in spanned else 1 for axis in joint]
                selection.append(selector.transpose(order).reshape(extents))
            elif isinstance(selector, range):
                selection.append(_without_range(selector))
                axes += spanned
            else:
                selection.append(slice(selector, selector + 1, 1))
        return ReadRequest(selection, True, axes)

    def arranged(self, values: npt.NDArray[Any], request: ReadRequest) -> npt.NDArray[Any]:
        """Return the values read for `request`, arranged along the axes of the selection."""
        axes = request.axes
        if request.pointwise:
            values = values.reshape([self.shape[axis] for axis in axes])
        if axes != sorted(axes):
            values = values.transpose(np.argsort(axes))
        if len(axes) < len(self.shape):  # values are constant along the other axes
            extents = [size if axis in axes else 1 for axis, size in enumerate(self.shape)]
            values = values.reshape(extents)
            if values.shape != self.shape:
                values = np.broadcast_to(values, self.shape).copy()
        return values


@lru_cache(1024)
def whole(shape: tuple[int, ...]) -> Selection:
    """Return the selection of all elements of an array."""
    return Selection(shape, tuple(map(range, shape)), tuple([(a,) for a in range(len(shape))]))


def _orthogonally(selector: Any, items: Sequence[Item]) -> Any:
    """Return a selector indexed by items, each along its own axis."""
    if isinstance(selector, range):
        (item,) = items
        if isinstance(item, int | slice):
            return selector[item]
        return selector.start + selector.step * item
    for axis in reversed(range(len(items))):
        selector = selector[(slice(None),) * axis + (items[axis],)]
    return int(selector) if np.ndim(selector) == 0 else selector


def _at_points(selector: Any, spanned: Sequence[int], points: Mapping[int, Positions]) -> Positions:
    """Return a selector's positions at points, which index some or all of its axes.

    The axes of the points come first, followed by the selector's other axes.
    """
    chosen = [points[axis] for axis in spanned if axis in points]
    if isinstance(selector, range):
        return selector.start + selector.step * chosen[0]
    order = sorted(range(len(spanned)), key=lambda at: spanned[at] not in points)
    positions: Positions = selector.transpose(order)[tuple(chosen)]
    return positions


def _squeezed(selector: Positions, axes: Sequence[int]) -> tuple[Any, list[int]]:
    """Return a selector and its axes without those along which it does not vary."""
    varying = [at for at, extent in enumerate(selector.shape) if extent != 1]
    squeezed = selector.squeeze() if varying else selector.item()
    return squeezed, [axes[at] for at in varying]


def _without_range(selector: Any) -> Any:
    """Return a range of positions as a slice, or any other selector unchanged."""
    if not isinstance(selector, range):
        return selector
    if not selector:
        return slice(0, 0, 1)
    return slice(selector.start, selector.stop if selector.stop >= 0 else None, selector.step)
