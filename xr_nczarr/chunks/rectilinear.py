"""Read arrays with a rectilinear chunk grid, in which chunk lengths vary along a dimension.

The grid is split into boxes. A box is a rectangular region of the grid in which all chunks have the
same shape. It can therefore be read like an array with a regular grid.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from xr_nczarr.chunks.grid import Array, Positions, normalize_indices, slice_or_self
from xr_nczarr.model import ArrayNode, ChunkKeys


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftedKeys(ChunkKeys):
    """The chunk keys of a rectangular region of an array's chunk grid.

    `first` is the grid index of the region's first stored object.
    """

    first: tuple[int, ...]

    def key(self, index: tuple[int, ...]) -> str:
        """Return the key of the stored object at `index`, a grid index relative to `first`."""
        shifted = [str(start + number) for start, number in zip(self.first, index, strict=True)]
        return self.prefix + self.separator.join(shifted)


class _Run(NamedTuple):
    """A run of consecutive stored objects that have the same length along a dimension.

    `first` is the grid index of the first object, and `length` is the length of each object. The
    run contains the elements from `start` up to, but not including, `stop`.
    """

    first: int
    length: int
    start: int
    stop: int


_SelectorPart = tuple[dict[int, tuple[_Run, Positions]], Positions]
"""A part of a selector: the positions that lie in the same run of stored objects along each axis.

The first item maps each indexed axis to the run and to the positions, counted from its start. The
second item contains the corresponding positions along the selector's axis of the result.
"""


def read_boxes(
    node: ArrayNode,
    selection: Sequence[Any],
    read: Callable[[ArrayNode, list[Any]], Array],
    *,
    pointwise: bool,
    dtype: npt.DTypeLike,
) -> Array:
    """Read a selection of an array with a rectilinear chunk grid.

    Parameters
    ----------
    node
        Metadata of the array.
    selection, pointwise
        See `ChunkedArray.read`.
    read
        Function that reads a selection of a region in which all chunks have the same shape. Its
        first argument describes the region as an array with a regular chunk grid. Its second
        argument is the selection within the region.
    dtype
        Dtype of the result.
    """
    sharded = bool(node.shards)
    pairs = zip(node.chunk_runs, node.shape, strict=True)
    runs = [list(_runs(lengths, size, sharded=sharded)) for lengths, size in pairs]
    positions = [
        np.arange(*item.indices(size))
        if isinstance(item, slice)
        else normalize_indices(np.asarray(item), size)
        for item, size in zip(selection, node.shape, strict=True)
    ]
    axes = range(len(selection))
    points = tuple([axis for axis in axes if pointwise and isinstance(selection[axis], np.ndarray)])
    together = np.broadcast_arrays(*[positions[axis] for axis in points])
    for axis, array in zip(points, together, strict=True):
        positions[axis] = array
    # All index arrays of a pointwise selection together form one selector.
    groups = [points] * pointwise + [(axis,) for axis in axes if axis not in points]
    shape = tuple([length for group in groups for length in positions[group[0]].shape])
    out = np.empty([positions[group[0]].size for group in groups], dtype)
    parts = [_selector_parts(group, positions, runs) for group in groups]
    for combination in itertools.product(*parts):
        located = dict(itertools.chain(*[part.items() for part, _ in combination]))
        box = [located[axis][0] for axis in axes]
        sources = [located[axis][1] for axis in axes]
        where = [
            source if axis in points else slice_or_self(source)
            for axis, source in enumerate(sources)
        ]
        targets = [target for _, target in combination]
        out[np.ix_(*targets)] = read(_box(node, box), where)
    return out.reshape(shape)


def _runs(lengths: Sequence[tuple[int, int]], size: int, *, sharded: bool) -> Iterator[_Run]:
    """Yield runs of stored objects (chunks or shards) that have the same length along a dimension.

    `lengths` contains (object length, repeat count) pairs, and `size` is the size of the dimension.
    """
    first = start = 0
    for length, number in lengths:
        stop = min(start + length * number, size)
        yield _Run(first, length, start, stop)
        first, start = first + number, stop
    # The remaining elements form a final run, whose objects are missing from the store. Without
    # shards, this run is a single chunk. Shards have the length of the longest shard, because they
    # must contain a whole number of inner chunks.
    if start < size:
        longest = max(length for length, _ in lengths)
        yield _Run(first, longest if sharded else size - start, start, size)


def _selector_parts(
    group: Sequence[int], positions: Sequence[Positions], runs: Sequence[Sequence[_Run]]
) -> list[_SelectorPart]:
    flat = [positions[axis].reshape(-1) for axis in group]
    stops = [[run.stop for run in runs[axis]] for axis in group]
    numbers = np.array(
        [np.searchsorted(stop, indices, "right") for stop, indices in zip(stops, flat, strict=True)]
    )
    parts = []
    for combination in np.unique(numbers, axis=1).T:
        target = np.flatnonzero((combination == numbers.T).all(axis=1))
        if len(group) == 1:  # sort the positions, so that each part of a slice is a slice too
            target = target[np.argsort(flat[0][target], kind="stable")]
        located = {}
        for axis, indices, number in zip(group, flat, combination, strict=True):
            run = runs[axis][number]
            located[axis] = run, indices[target] - run.start
        parts.append((located, target))
    return parts


def _box(node: ArrayNode, runs: Sequence[_Run]) -> ArrayNode:
    keys, lengths = node.chunk_keys, tuple([run.length for run in runs])
    first = tuple([run.first for run in runs])
    box = replace(
        node,
        shape=tuple([run.stop - run.start for run in runs]),
        chunk_keys=ShiftedKeys(keys.prefix, keys.separator, keys.scalar, first=first),
        chunk_runs=(),
        stored_shape=tuple(
            [size - run.start for size, run in zip(node.stored_shape, runs, strict=False)]
        ),
    )
    if node.shards:
        return replace(box, shards=(replace(node.shards[0], shape=lengths), *node.shards[1:]))
    return replace(box, chunk_shape=lengths)
