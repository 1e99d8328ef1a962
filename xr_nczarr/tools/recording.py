"""Predict the requests of a read by running it on a store that only records the requests."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.chunks.selection import ReadRequest
from xr_nczarr.codecs import ChunkCodec
from xr_nczarr.errors import AccessDeniedError, UnsupportedError
from xr_nczarr.locks import cached_property
from xr_nczarr.storage import ByteRange, Bytes, Listing, Read, Store

SizesOf = Callable[[Sequence[str]], Sequence[int | None]]


class RecordedRead(NamedTuple):
    """The predicted cost of a read. `VariableReading` describes the fields."""

    touched: tuple[frozenset[int], ...]
    chunks: int
    requests: int
    at_most: bool
    fetched_bytes: int | None
    absent: int | None


class ObjectSizes:
    """The sizes of the objects in a store, determined without reading the objects.

    If looking up a size would take a request, the objects below `folder` are listed once instead.
    """

    def __init__(self, store: Store, folder: str) -> None:
        self.store = store
        self.folder = folder

    @cached_property
    def _listed(self) -> dict[str, int | None] | None:
        with suppress(AccessDeniedError, UnsupportedError):
            return dict(self.store.sizes(self.folder))
        return None

    def of(self, keys: Sequence[str], *, one_by_one: bool) -> Sequence[int | None]:
        """Return the size in bytes of the object at each key.

        The size is 0 for a missing object, and None if it is unknown.

        Parameters
        ----------
        one_by_one
            Whether objects may be looked up one by one. If True, local stores, and remote stores
            that cannot be listed, are queried with one request per object, and other stores are
            listed. If False, all stores are listed, and the sizes in a remote store that cannot be
            listed are unknown.
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


def record_read(array: ChunkedArray, request: ReadRequest, sizes_of: SizesOf) -> RecordedRead:
    """Predict the cost of reading a selection, without reading any object.

    The selection is read from simulated objects instead of the stored objects, into a result that
    takes no memory.

    Parameters
    ----------
    sizes_of
        Function that returns the sizes of objects; see `ObjectSizes.of`.

    Raises
    ------
    NczarrError
        If the array cannot be read, or its reference set refers to a target that is not allowed.
    """
    # The index of a shard cannot be simulated. Without an index, all chunks appear to be absent.
    store = _RecordingStore(array.store, sizes_of, holds_objects=not array.node.shards)
    node = replace(array.node, fill_value=0)
    options = replace(array.options, missing_chunks="fill", threads=1)
    parts = count()

    def count_part(*_: NDArray[Any]) -> None:
        next(parts)

    _UndecodedArray(node, store, options).read(
        request.selection,
        pointwise=request.pointwise,
        dtype="V0",
        convert=count_part,
    )
    chunks = next(parts)
    requests, fetched = store.requests, store.fetched_bytes
    regular = not array.node.chunk_runs
    plan = array.plan(request.selection, pointwise=request.pointwise) if regular else None
    touched = () if plan is None else plan.touched
    if not array.node.shards:
        absent = None if fetched is None else chunks - store.present
        return RecordedRead(touched, chunks, requests, False, fetched, absent)
    if not store.shard_keys:
        return RecordedRead(touched, chunks, requests, False, fetched, None)
    # Only the index of a shard states which chunks the shard contains and how long they are.
    key_of = array.layout.key_of
    located = (
        chunks if plan is None else sum(key_of(part.chunk) in store.shard_keys for part in plan)
    )
    return RecordedRead(touched, chunks, requests + located, True, None, None)


class _RecordingStore(Store):
    """A store that stands in for another one, and records requests instead of making them.

    Parameters
    ----------
    other
        The other store.
    sizes_of
        Function that returns the sizes of objects in the other store; see `ObjectSizes.of`.
    holds_objects
        Whether to simulate the objects. If False, every object appears to be missing.

    Attributes
    ----------
    requests
        Number of requests that reading from the other store would take.
    fetched_bytes
        Total number of bytes requested, or None if a size is unknown.
    present
        Number of requested objects that exist in the other store.
    shard_keys
        Keys of the shards from which byte ranges were requested.
    """

    def __init__(self, other: Store, sizes_of: SizesOf, *, holds_objects: bool) -> None:
        # The name differs, so that no shard index of the other store is found in the cache.
        self.name, self.remote = f"{other.name} (recorded)", other.remote
        self.requests = self.present = 0
        self.fetched_bytes: int | None = 0
        self.shard_keys: set[str] = set()
        self._sizes_of = sizes_of
        self._count_requests = other.count_requests
        self._holds_objects = holds_objects

    def fetch(self, keys: Sequence[str]) -> Iterator[Bytes | None]:
        """Yield empty bytes for each simulated object, and None for each missing object."""
        return self.fetch_ranges([ByteRange(key) for key in keys])

    def fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        """Yield zeros for each range of a simulated object, and None for any other range."""
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
        """Return None, because the simulated objects have no sizes."""

    def list_names(self, prefix: str) -> Listing:
        raise UnsupportedError(
            "objects cannot be listed while explain is recording reads from the store",
            store=self.name,
            key=prefix,
        )


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
