"""Split selections into parts, one for each chunk that the selection touches.

This module performs no I/O.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from xr_nczarr.errors import UnsupportedError

Array = npt.NDArray[Any]
Positions = npt.NDArray[np.intp]
_MAX_CACHED_INDICES = 1024
_MAX_CHUNKS = 100_000_000  # along one dimension

Selector = int | slice | Positions
"""The selector for one dimension: an index, a slice, or an array of indices."""


class ChunkPart(NamedTuple):
    """The part of a selection that lies within one chunk.

    Attributes
    ----------
    chunk
        Index of the chunk in the grid.
    source
        NumPy index of the selected elements in the chunk.
    target
        NumPy index of the same elements in the result.
    complete
        Whether the part contains all elements of the chunk that lie inside the array. Such a chunk
        can be overwritten without being read first. Always False for a pointwise selection.
    """

    chunk: tuple[int, ...]
    source: tuple[Any, ...]
    target: tuple[Any, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """A selection split into parts, one for each chunk that it touches.

    Iterating over the plan yields the parts.

    Attributes
    ----------
    shape
        Shape of the array to which the parts are copied. The `target` of each part is an index into
        this array.
    result_shape
        Shape of the values that the caller reads or writes. It has no dimensions for the integers
        in a selection. In a pointwise selection, `shape` has one dimension for all points, while
        `result_shape` has the dimensions of the broadcast index arrays.
    count
        Number of chunks that the selection touches.
    axes
        New order of the axes of each chunk, as in `numpy.transpose`. Chunks are transposed before
        they are indexed. None means that chunks are not transposed.
    slices_only
        Whether the sources and targets of all parts consist only of slices.
    """

    shape: tuple[int, ...]
    result_shape: tuple[int, ...]
    count: int
    axes: tuple[int, ...] | None
    slices_only: bool
    _pieces: Sequence[_Pieces]

    @property
    def touched(self) -> tuple[frozenset[int], ...]:
        """The grid indices of the touched chunks along each dimension of the array.

        This is an empty tuple if the selection touches no chunks.
        """
        if not self.count:
            return ()
        numbers: list[Iterable[int]] = [dimension.chunks for dimension in self._pieces]
        if self.axes is None:
            return tuple(map(frozenset, numbers))
        numbers[:1] = zip(*self._pieces[0].chunks, strict=True)
        return tuple([frozenset(numbers[axis]) for axis in np.argsort(self.axes)])

    def __iter__(self) -> Iterator[ChunkPart]:
        if self.axes is None:
            return _cross(self._pieces, slices_only=self.slices_only)
        return _cross_points(self._pieces, np.argsort(self.axes).tolist())


class _Pieces(NamedTuple):
    """The parts of a selection along one dimension.

    Each field contains one item per touched chunk. In a pointwise selection, the items of `chunks`
    and `sources` are tuples with one value per indexed dimension.
    """

    # The fields are in the same order as those of `ChunkPart`.
    chunks: Sequence[Any]
    sources: Sequence[Any]
    targets: Sequence[slice | Positions]
    complete: Sequence[bool]


_NOTHING = _Pieces((), (), (), ())


def plan_selection(
    shape: Sequence[int], chunk_shape: Sequence[int], selection: Sequence[Selector]
) -> Plan:
    """Split an orthogonal selection into parts, one for each chunk that it touches.

    An orthogonal selection indexes each dimension independently.

    Parameters
    ----------
    shape, chunk_shape
        Shapes of the array and of its chunks, in elements.
    selection
        For each dimension, an integer, a slice with any step, or a one-dimensional array of
        integers.

    Raises
    ------
    IndexError
        If an index is outside the array, or if an array of integers is not one-dimensional.
    UnsupportedError
        If a slice touches more than `_MAX_CHUNKS` chunks along its dimension.
    """
    pieces: list[_Pieces] = []
    result: list[int] = []
    slices_only = True
    lengths = tuple(map(_selected_length, shape, selection))
    is_empty = 0 in lengths
    for size, chunk, selector, length in zip(shape, chunk_shape, selection, lengths, strict=True):
        if isinstance(selector, slice):
            # An empty selection touches no chunks, even if another dimension has many of them.
            pieces.append(_NOTHING if is_empty else _split_slice(size, chunk, selector))
            result.append(length)
        elif isinstance(selector, np.ndarray):
            pieces.append(_split_positions(size, chunk, selector))
            items = (*pieces[-1].sources, *pieces[-1].targets)
            slices_only = slices_only and np.ndarray not in map(type, items)
            result.append(length)
        else:
            index = normalize_index(int(selector), size)
            pieces.append(_split_slice(size, chunk, slice(index, index + 1)))
    count = math.prod(len(dimension.chunks) for dimension in pieces)
    return Plan(lengths, tuple(result), count, None, slices_only, pieces)


def _selected_length(size: int, selector: Selector) -> int:
    """Return the number of positions that a selector selects along a dimension."""
    if isinstance(selector, slice):
        return len(range(*selector.indices(size)))
    return len(selector) if isinstance(selector, np.ndarray) else 1


def count_touched(
    shape: Sequence[int], chunk_shape: Sequence[int], selection: Iterable[Selector]
) -> int:
    """Return the number of chunks that an orthogonal selection touches.

    The arguments are the same as for `plan_selection`. Counting is faster than planning, because
    the selection is not split into parts.
    """
    count = 1
    for size, chunk, selector in zip(shape, chunk_shape, selection, strict=True):
        if isinstance(selector, slice):
            count *= _count_slice(range(size)[selector], chunk)
        elif isinstance(selector, np.ndarray):
            count *= len(np.unique(normalize_indices(selector, size) // chunk))
    return count


def _count_slice(selected: range, chunk: int) -> int:
    """Return the number of chunks of length `chunk` that contain any of the selected positions."""
    # If the step is longer than a chunk, every selected element is in a different chunk. A shorter
    # step skips no chunk.
    ends = [position // chunk for position in (*selected[:1], *selected[-1:])]
    return min(len(selected), 1 + max(ends, default=0) - min(ends, default=0))


def plan_points(
    shape: Sequence[int], chunk_shape: Sequence[int], selection: Sequence[slice | Positions]
) -> Plan:
    """Split a pointwise selection into parts, one for each chunk that it touches.

    In the result, the axes of the points come first, followed by the axes of the slices. NumPy uses
    the same order if index arrays are not adjacent.

    Parameters
    ----------
    shape, chunk_shape
        Shapes of the array and of its chunks, in elements.
    selection
        For each dimension, an array of integers or a slice. There must be at least one array. The
        arrays are broadcast against each other, and each tuple of corresponding elements selects
        one point. Each slice applies to its own dimension.

    Returns
    -------
    Plan
        The plan's `shape` is the number of points followed by the lengths of the slices. Its
        `result_shape` is the broadcast shape of the arrays followed by the lengths of the slices.

    Raises
    ------
    IndexError
        If an index is outside the array.
    UnsupportedError
        If a slice touches more than `_MAX_CHUNKS` chunks along its dimension.
    """
    indexed = [axis for axis, item in enumerate(selection) if isinstance(item, np.ndarray)]
    sliced = [axis for axis, item in enumerate(selection) if isinstance(item, slice)]
    arrays = np.broadcast_arrays(*(np.asarray(selection[axis]) for axis in indexed))
    points_shape = arrays[0].shape
    positions = [
        normalize_indices(array.ravel(), shape[axis])
        for axis, array in zip(indexed, arrays, strict=True)
    ]
    points = _split_points(positions, [chunk_shape[axis] for axis in indexed])
    orthogonal = plan_selection(
        [shape[axis] for axis in sliced],
        [chunk_shape[axis] for axis in sliced],
        [selection[axis] for axis in sliced],
    )
    return Plan(
        (positions[0].size, *orthogonal.shape),
        (*points_shape, *orthogonal.shape),
        len(points.chunks) * orthogonal.count,
        (*indexed, *sliced),
        False,
        [points, *orthogonal._pieces],
    )


def normalize_index(index: int, size: int) -> int:
    """Convert a possibly negative index to the equivalent non-negative index.

    Raises
    ------
    IndexError
        If the index is out of bounds.
    """
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of bounds for a dimension of size {size}")
    return index % size


def normalize_indices(positions: Positions, size: int) -> Positions:
    """Convert negative indices to non-negative ones, after checking that all are in bounds.

    Raises
    ------
    IndexError
        If any index is out of bounds.
    """
    extremes = [int(positions.min()), int(positions.max())] if positions.size else []
    for extreme in extremes:
        normalize_index(extreme, size)
    if min(extremes, default=0) >= 0:
        return positions
    return np.where(positions < 0, positions + size, positions)


def _split_slice(size: int, chunk: int, selector: slice) -> _Pieces:
    start, stop, step = selector.indices(size)
    length = len(range(start, stop, step))
    if length == 0:
        return _NOTHING
    if (count := _count_slice(range(start, stop, step), chunk)) > _MAX_CHUNKS:
        raise UnsupportedError(
            f"the selection touches {count:,} chunks along one dimension; expected at most "
            f"{_MAX_CHUNKS:,}",
            remedy="Select part of the dimension",
        )
    if step < 0:
        # Select the same elements with a positive step, and reverse only the targets.
        lowest = start + (length - 1) * step
        pieces = _split_slice(size, chunk, slice(lowest, start + 1, -step))
        return pieces._replace(targets=[_reversed(target, length) for target in pieces.targets])
    if step == 1:
        return _split_run(size, chunk, start, stop)
    last = start + (length - 1) * step
    # If the step is longer than a chunk, some chunks may be skipped.
    chunks = (
        [position // chunk for position in range(start, stop, step)]
        if step > chunk
        else range(start // chunk, last // chunk + 1)
    )
    bounds = [max(0, (number * chunk - start + step - 1) // step) for number in chunks]
    targets = list(map(slice, bounds, [*bounds[1:], length]))
    sources, complete = [], []
    for number, target in zip(chunks, targets, strict=True):
        offset = start - number * chunk
        low, high = offset + target.start * step, offset + target.stop * step
        sources.append(slice(low, high - step + 1, step))
        complete.append(target.stop - target.start == min(chunk, size - number * chunk))
    return _Pieces(chunks, _deduplicated(sources), targets, complete)


def _split_run(size: int, chunk: int, start: int, stop: int) -> _Pieces:
    """Split the positions from `start` to `stop` (exclusive) into parts, one for each chunk."""
    chunks = range(start // chunk, -(-stop // chunk))
    bounds = [0, *range(chunks[0] * chunk + chunk - start, stop - start, chunk), stop - start]
    sources, complete = [slice(0, chunk, 1)] * len(chunks), [True] * len(chunks)
    for at in (0, -1)[: len(chunks)]:  # only these chunks can be selected partially
        origin = chunks[at] * chunk
        low, high = max(start, origin), min(stop, origin + chunk)
        sources[at] = slice(low - origin, high - origin, 1)
        complete[at] = low == origin and high == min(origin + chunk, size)
    return _Pieces(chunks, sources, list(map(slice, bounds, bounds[1:])), complete)


def _reversed(target: slice | Positions, length: int) -> slice:
    assert isinstance(target, slice)
    first, last = length - 1 - target.start, length - target.stop
    return slice(first, last - 1 if last else None, -1)


def _split_positions(size: int, chunk: int, positions: Positions) -> _Pieces:
    if positions.ndim != 1:
        raise IndexError(
            f"an orthogonal indexer must be one-dimensional, not {positions.ndim}-dimensional"
        )
    if positions.size == 0:
        return _NOTHING
    positions = normalize_indices(positions, size)
    regular = _as_slice(positions)
    if regular is not None:
        return _split_slice(size, chunk, regular)
    numbers = positions // chunk
    if (numbers == numbers[0]).all():  # common if only a few rows are selected
        number, target = int(numbers[0]), slice(0, len(positions), 1)
        inner = positions - number * chunk
        return _Pieces([number], [inner], [target], [_covers(inner, chunk, size, number)])
    order = np.argsort(numbers, kind="stable")
    numbers = numbers[order]
    starts = [0, *(1 + np.flatnonzero(numbers[1:] != numbers[:-1])).tolist()]
    runs = list(map(slice, starts, [*starts[1:], len(order)]))  # one for each chunk
    chunks, inner = numbers[starts].tolist(), positions[order] - numbers * chunk
    sources, targets = ([slice_or_self(array[run]) for run in runs] for array in (inner, order))
    sources = _deduplicated(sources)
    complete = [
        _covers(source, chunk, size, number) for number, source in zip(chunks, sources, strict=True)
    ]
    return _Pieces(chunks, sources, targets, complete)


def _deduplicated(sources: Sequence[slice | Positions]) -> list[slice | Positions]:
    """Replace equal slices with one shared slice, so that caches can use `id` as a key."""
    unique: dict[tuple[int, ...], slice] = {}
    return [
        unique.setdefault((source.start, source.stop, source.step), source)
        if isinstance(source, slice)
        else source
        for source in sources
    ]


def _covers(source: slice | Positions, chunk: int, size: int, number: int) -> bool:
    inside = min(chunk, size - number * chunk)
    if isinstance(source, slice):
        return (source.start, source.stop, source.step) == (0, inside, 1)
    return len(source) >= inside and len(np.unique(source)) == inside


def _as_slice(positions: Positions) -> slice | None:
    if positions.size == 1:
        return slice(int(positions[0]), int(positions[0]) + 1, 1)
    first, last = int(positions[0]), int(positions[-1])
    step = int(positions[1]) - first
    if step <= 0 or first + step * (positions.size - 1) != last:  # rules out most arrays
        return None
    if not bool((positions[1:] - positions[:-1] == step).all()):
        return None
    return slice(first, last + 1, step)


def slice_or_self(positions: Positions) -> slice | Positions:
    """Return a slice with a positive step that is equivalent to `positions`.

    If there is no such slice, return `positions` itself.
    """
    regular = _as_slice(positions)
    return positions if regular is None else regular


def _split_points(positions: list[Positions], chunk_shape: list[int]) -> _Pieces:
    if positions[0].size == 0:
        return _NOTHING
    numbers = np.stack(
        [array // chunk for array, chunk in zip(positions, chunk_shape, strict=True)]
    )
    order = np.lexsort(numbers[::-1])
    ordered = numbers[:, order]
    changes = np.flatnonzero((np.diff(ordered, axis=1) != 0).any(axis=0)) + 1
    targets = np.split(order, changes)
    chunks = [tuple(numbers[:, where[0]].tolist()) for where in targets]
    sources = [
        tuple(
            array[where] - number * size
            for array, number, size in zip(positions, chunk, chunk_shape, strict=True)
        )
        for where, chunk in zip(targets, chunks, strict=True)
    ]
    return _Pieces(chunks, sources, targets, [False] * len(chunks))


def _product_by_field(pieces: Sequence[_Pieces]) -> list[Iterator[Any]]:
    """Combine the pieces of all dimensions into one iterator for each field of `ChunkPart`.

    Each iterator yields one tuple per part. The tuple contains one item per dimension.
    """
    # A loop in Python would be slower.
    return [itertools.product(*[dimension[field] for dimension in pieces]) for field in range(4)]


def _cross(pieces: Sequence[_Pieces], *, slices_only: bool) -> Iterator[ChunkPart]:
    chunks, sources, targets, complete = _product_by_field(pieces)
    if not slices_only:
        sources, targets = _indices(sources), map(orthogonal_index, targets)
    return map(ChunkPart, chunks, sources, targets, map(all, complete))


def _indices(sources: Iterable[tuple[slice | Positions, ...]]) -> Iterator[tuple[Any, ...]]:
    """Yield a NumPy index for each item of `sources`."""
    cached: dict[tuple[int, ...], tuple[Any, ...]] = {}
    for selectors in sources:
        ids = tuple(map(id, selectors))  # chunks with identical sources share one index object
        index = cached.get(ids) or orthogonal_index(selectors)
        if len(cached) < _MAX_CACHED_INDICES:
            cached[ids] = index
        yield index


def orthogonal_index(selectors: tuple[slice | Positions, ...]) -> tuple[Any, ...]:
    """Return a NumPy index that applies each selector to its own dimension."""
    if sum(isinstance(item, np.ndarray) for item in selectors) < 2:
        return selectors
    return np.ix_(
        *(
            item
            if isinstance(item, np.ndarray)
            else np.arange(item.start, -1 if item.stop is None else item.stop, item.step or 1)
            for item in selectors
        )
    )


def _cross_points(pieces: Sequence[_Pieces], order: Sequence[int]) -> Iterator[ChunkPart]:
    for chunk, source, target, _ in zip(*_product_by_field(pieces), strict=True):
        transposed = (*chunk[0], *chunk[1:])
        index = tuple([transposed[axis] for axis in order])
        yield ChunkPart(index, (*source[0], *source[1:]), target, False)
