"""Predict the requests that a read will send, by running the read against a simulated store."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from posixpath import commonpath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.chunks.grid import count_touched
from xr_nczarr.chunks.selection import Selection
from xr_nczarr.codecs import ChunkCodec
from xr_nczarr.errors import AccessDeniedError, UnsupportedError
from xr_nczarr.locks import cached_property
from xr_nczarr.model import grid_shape
from xr_nczarr.storage import ByteRange, Bytes, Listing, Read, Store
from xr_nczarr.tools.stored_chunks import MAX_REQUESTS

_SizesOf = Callable[[Sequence[str]], Sequence[int | None]]
_MAX_CHUNKS = 10_000_000
"""Maximum number of chunks of a variable to simulate. Each takes a few microseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariableReading:
    """The predicted cost of reading a selection from one variable.

    Attributes
    ----------
    shape, chunk_shape
        Shapes of the array and of its chunks, in elements.
    shard_shape
        Shape of the shards, in elements. None if each stored object is one chunk.
    selected
        Shape of the selection.
    touched
        For each dimension, the indices of the chunks to read. Empty for a rectilinear chunk grid,
        or if there are no chunks to read.
    chunks, all_chunks
        Number of chunks to read, including missing chunks, and number of chunks in the array.
    requests
        Number of requests to the store. If `at_most` is True, this is an upper bound.
    fetched_bytes
        Number of stored bytes to fetch, or None if the store does not report sizes.
    absent
        Number of missing chunks among the chunks to read, or None if unknown.
    decoded_bytes
        Total size of the chunks to read after decoding. Chunks known to be missing do not count.
    result_bytes
        Total size of the selected values after decoding.
    """

    name: str
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    shard_shape: tuple[int, ...] | None
    selected: tuple[int, ...]
    touched: tuple[frozenset[int], ...]
    chunks: int
    all_chunks: int
    requests: int
    at_most: bool
    fetched_bytes: int | None
    absent: int | None
    decoded_bytes: int
    result_bytes: int


class ObjectSizes:
    """The sizes of the stored objects (chunks or shards) of one or more arrays in a store.

    The objects are not read. They are listed at most once.
    """

    def __init__(self, arrays: Sequence[ChunkedArray]) -> None:
        self.store = arrays[0].store
        # The key of a scalar can be outside the folder of its chunks: "t/c", not "t/c/…".
        folder = commonpath([item.node.chunk_keys.scalar.rpartition("/")[0] for item in arrays])
        self.prefix = f"{folder}/" if folder else ""

    @cached_property
    def _listed(self) -> dict[str, int | None] | None:
        with suppress(AccessDeniedError, UnsupportedError):
            return dict(self.store.sizes(self.prefix))
        return None

    def of(self, keys: Sequence[str], *, one_by_one: bool) -> Sequence[int | None]:
        """Return the size in bytes of the object at each key.

        The size is 0 for a missing object, and None if it is unknown.

        Parameters
        ----------
        one_by_one
            Whether the sizes may be requested one by one. If True, the first available source is
            used: sizes that the store knows without a request, a listing of the store, or a request
            for each object. If False, the sources are a listing of the store, or the sizes that the
            store knows.
        """
        if one_by_one or self._listed is None:
            sizes = self.store.known_sizes(keys)
            if sizes is not None:
                return sizes
        if self._listed is not None:
            return [self._listed.get(key, 0) for key in keys]
        if one_by_one:
            with suppress(AccessDeniedError, UnsupportedError):
                return [size or 0 for size in self.store.sizes_of(keys)]
        return [None] * len(keys)


def record_read(
    name: str,
    dimensions: tuple[str, ...],
    array: ChunkedArray,
    selection: Selection,
    sizes: ObjectSizes,
) -> VariableReading:
    """Predict the cost of reading a selection of a variable, without reading any object.

    Parameters
    ----------
    dimensions
        Names of the variable's dimensions. Empty for a scalar, even if its stored array has a
        dimension.

    Raises
    ------
    UnsupportedError
        If the selection has too many chunks.
    NczarrError
        If the array cannot be read, or its reference set refers to a location that is not allowed.
    """
    node, (selectors, pointwise, _) = array.node, selection.request()
    selectors = selectors or [0] * len(node.shape)  # a scalar's stored array can have a dimension
    if pointwise:
        number = array.plan(selectors, pointwise=True).count
    else:
        number = count_touched(node.shape, node.chunk_shape, selectors)
    if number > _MAX_CHUNKS:
        raise UnsupportedError(
            f"{number:,} chunks are too many to simulate (at most {_MAX_CHUNKS:,})",
            remedy="Select fewer elements",
        )
    sizes_of = partial(sizes.of, one_by_one=number <= MAX_REQUESTS)
    # The index of a shard cannot be simulated. Without an index, all chunks appear to be absent.
    store = _RecordingStore(array.store, sizes_of, holds_objects=not node.shards)
    options = replace(array.options, missing_chunks="fill", threads=1)
    parts = count()

    def count_part(*_: NDArray[Any]) -> None:
        next(parts)

    simulated = _UndecodedArray(
        replace(node, fill_value=np.zeros((), node.dtype)[()]), store, options
    )
    simulated.read(selectors, pointwise=pointwise, dtype="V0", convert=count_part)
    chunks = next(parts)
    plan = None if node.chunk_runs else array.plan(selectors, pointwise=pointwise)
    requests, fetched, absent = store.requests, store.fetched_bytes, None
    if store.shard_keys:
        # Only the index of a shard states which chunks the shard contains and how long they are.
        key_of, keys = array.layout.key_of, store.shard_keys
        requests += chunks if plan is None else sum(key_of(part.chunk) in keys for part in plan)
        fetched = None
    elif not node.shards and fetched is not None:
        absent = chunks - store.present
    totals = grid_shape(node.shape, node.chunk_shape) if node.shards else node.object_counts
    return VariableReading(
        name=name,
        dimensions=dimensions,
        shape=node.shape if dimensions else (),
        chunk_shape=node.chunk_shape if dimensions else (),
        shard_shape=node.object_shape if dimensions and node.shards else None,
        selected=selection.shape,
        touched=() if plan is None else plan.touched,
        chunks=chunks,
        all_chunks=math.prod(totals),
        requests=requests,
        at_most=bool(store.shard_keys),
        fetched_bytes=fetched,
        absent=absent,
        decoded_bytes=(chunks - (absent or 0)) * array.chunk_bytes,
        result_bytes=math.prod(selection.shape) * node.dtype.itemsize,
    )


class _RecordingStore(Store):
    """A simulated store that counts the requests to another store instead of sending them.

    If `holds_objects` is False, every object appears to be missing.
    """

    def __init__(
        self,
        other: Store,
        sizes_of: Callable[[Sequence[str]], Sequence[int | None]],
        *,
        holds_objects: bool,
    ) -> None:
        # The name differs, because the cached shard indices of `other` must not be used.
        self.name, self.remote = f"{other.name} (recorded)", other.remote
        self.requests = 0
        self.present = 0  # the number of requested objects that exist in `other`
        self.fetched_bytes: int | None = 0  # None if the size of a requested object is unknown
        self.shard_keys: set[str] = set()  # keys of the shards from which ranges were requested
        self._sizes_of = sizes_of
        self._count_requests = other.count_requests
        self._holds_objects = holds_objects

    def fetch(self, keys: Sequence[str]) -> Iterator[Bytes | None]:
        return self.fetch_ranges([ByteRange(key) for key in keys])

    def fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        """Yield zeros in place of the bytes of each range, or None if the object is missing.

        If `holds_objects` is False, every object counts as missing.
        """
        self.requests += self._count_requests(ranges)
        before = None
        for item, size in zip(ranges, self._sizes_of([item.key for item in ranges]), strict=True):
            if not self._holds_objects and not item.is_whole:
                self.shard_keys.add(item.key)
            if size == 0:
                yield None
                continue
            self.present += item.key != before  # the ranges of one object are adjacent
            before = item.key
            length = size if item.is_whole else item.length
            if length is None or self.fetched_bytes is None:
                self.fetched_bytes = None
            else:
                self.fetched_bytes += length
            yield bytes(max(0, item.length)) if self._holds_objects else None

    @contextmanager
    def reading(self, key: str) -> Iterator[Read]:
        with super().reading(key) as read:
            yield (lambda *_: None) if self._holds_objects else read

    def known_sizes(self, keys: Sequence[str]) -> None:
        """Return None, because no sizes are known."""

    def list_names(self, prefix: str) -> Listing:
        raise NotImplementedError  # not needed, because reading chunks does not list objects


class _UndecodedArray(ChunkedArray):
    """An array whose chunks are replaced with zeros instead of being decoded."""

    @cached_property
    def codec(self) -> ChunkCodec:
        return _UndecodedChunks(super().codec)


class _UndecodedChunks(ChunkCodec):
    __slots__ = ("_zeros",)

    def __init__(self, codec: ChunkCodec) -> None:
        super().__init__(codec.flow, codec._steps)
        self.fills = False  # decoding needs no buffer
        self._zeros = np.broadcast_to(np.zeros((), self.flow.dtype), self.flow.shape or ())

    def decode(self, *_: Bytes | NDArray[Any] | None) -> NDArray[Any]:
        return self._zeros
