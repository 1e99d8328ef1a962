"""Combine any sequence of selections and transpositions of an array into a single read.

xarray can also combine selections. This module does not use xarray's code for this purpose, for two
reasons. First, xarray lets indices below ``-size`` wrap around instead of rejecting them. Second,
it treats each element of a transposed array as a separate point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from xr_nczarr.chunks.grid import Array, Positions, Selector, normalize_index, normalize_indices


class ReadRequest(NamedTuple):
    """The arguments for reading a selection.

    Attributes
    ----------
    selection, pointwise
        Arguments of `ChunkedArray.read`.
    axes
        For each axis of the values that are read, the number of the corresponding axis of the
        `Selection`. Axes of length 1 that a pointwise read adds for integers have no entry.
    """

    selection: list[Any]
    pointwise: bool
    axes: list[int]


class Selection(NamedTuple):
    """The combined result of all selections and transpositions that were applied to an array.

    Attributes
    ----------
    shape
        Shape of the result.
    selectors
        For each dimension of the array, the selected positions: an integer, a range or an index
        array.
    axes
        For each dimension of the array, the axes of the result that its selector produces. An
        integer produces no axis, a range one axis, and an index array one axis for each of its own
        dimensions.
    """

    shape: tuple[int, ...]
    selectors: tuple[int | range | Positions, ...]
    axes: tuple[tuple[int, ...], ...]

    def orthogonal(self, key: Sequence[Selector]) -> Selection:
        """Return the selection that results from applying each item of `key` to its own axis.

        Raises
        ------
        IndexError
            If an index is out of bounds.
        """
        shape: list[int] = []
        items: list[Selector] = []
        kept: list[int | None] = []
        for item, size in zip(key, self.shape, strict=True):
            if isinstance(item, int) or (isinstance(item, np.ndarray) and not item.ndim):
                items.append(normalize_index(int(item), size))
                kept.append(None)
                continue
            kept.append(len(shape))
            if isinstance(item, slice):
                items.append(item)
                shape.append(len(range(size)[item]))
            else:
                items.append(normalize_indices(np.asarray(item), size))
                shape.append(len(item))
        selectors, axes = [], []
        for selector, spanned in zip(self.selectors, self.axes, strict=True):
            selectors.append(_orthogonally(selector, [items[axis] for axis in spanned]))
            axes.append(tuple([at for axis in spanned if (at := kept[axis]) is not None]))
        return Selection(tuple(shape), tuple(selectors), tuple(axes))

    def pointwise(self, key: Sequence[slice | Positions]) -> Selection:
        """Return the selection that results from indexing this selection pointwise.

        Pointwise indexing is also called vectorized indexing. The arrays in `key` are broadcast
        against each other, and each tuple of corresponding elements selects one point. In the
        result, the axes of the points come first, followed by the axes of the slices, as in
        xarray's ``vindex``.

        Raises
        ------
        IndexError
            If an index is out of bounds.
        """
        points = {
            axis: normalize_indices(np.asarray(item), self.shape[axis])
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
            sliced = [axis for axis in spanned if axis in slices]
            cuts, result = [slices[axis] for axis in sliced], [moved[axis] for axis in sliced]
            if len(sliced) < len(spanned):
                index: tuple[Any, ...] = (..., *cuts)
                selector = _at_points(selector, spanned, points)[index]
                selector, result = _squeezed(selector, [*leading, *result])
            else:
                selector = _orthogonally(selector, cuts)
            selectors.append(selector)
            axes.append(tuple(result))
        return Selection(tuple(shape), tuple(selectors), tuple(axes))

    def transposed(self, order: Sequence[int]) -> Selection:
        """Return the selection with its axes in a different order.

        `order` lists the current axes in the new order, as in `numpy.transpose`.
        """
        place = {axis: number for number, axis in enumerate(order)}
        axes = tuple([tuple([place[axis] for axis in spanned]) for spanned in self.axes])
        return Selection(tuple([self.shape[axis] for axis in order]), self.selectors, axes)

    def request(self) -> ReadRequest:
        """Return the arguments for reading the selected values from the array."""
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

    def arranged(self, values: Array, request: ReadRequest) -> Array:
        """Rearrange values into the shape of the selection.

        `values` is the result of a read with the arguments in `request`.
        """
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
def select_all(shape: tuple[int, ...]) -> Selection:
    """Return a selection of all elements of an array of the given shape."""
    return Selection(shape, tuple(map(range, shape)), tuple([(a,) for a in range(len(shape))]))


def _orthogonally(selector: Any, items: Sequence[Selector]) -> Any:
    if isinstance(selector, range):
        (item,) = items
        if isinstance(item, int | slice):
            return selector[item]
        return selector.start + selector.step * item
    for axis in reversed(range(len(items))):
        selector = selector[(slice(None),) * axis + (items[axis],)]
    return int(selector) if np.ndim(selector) == 0 else selector


def _at_points(selector: Any, spanned: Sequence[int], points: Mapping[int, Positions]) -> Positions:
    """Apply index arrays to a selector pointwise, and return the selected positions.

    `spanned` contains the axes that the selector produces, and `points` contains the index arrays,
    keyed by axis. In the result, the axes of the points come first, followed by the axes that have
    no index array.
    """
    chosen = [points[axis] for axis in spanned if axis in points]
    if isinstance(selector, range):
        return selector.start + selector.step * chosen[0]
    order = sorted(range(len(spanned)), key=lambda at: spanned[at] not in points)
    positions: Positions = selector.transpose(order)[tuple(chosen)]
    return positions


def _squeezed(selector: Positions, axes: Sequence[int]) -> tuple[Any, list[int]]:
    varying = [at for at, extent in enumerate(selector.shape) if extent != 1]
    squeezed = selector.squeeze() if varying else selector.item()
    return squeezed, [axes[at] for at in varying]


def _without_range(selector: Any) -> Any:
    if not isinstance(selector, range):
        return selector
    if not selector:
        return slice(0, 0, 1)
    return slice(selector.start, selector.stop if selector.stop >= 0 else None, selector.step)
