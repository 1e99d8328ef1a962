"""Define how the chunks of an array are stored: as separate objects, or in shards.

A shard is an object with several chunks, and with an index of the byte range of each chunk.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from operator import floordiv, mod
from typing import TypeVar

from xr_nczarr.chunks.grid import ChunkPart
from xr_nczarr.codecs import ShardIndex
from xr_nczarr.errors import ErrorContext, StorageError, UnsupportedError
from xr_nczarr.model import ArrayNode, ChunkKeys, Limits, grid_shape
from xr_nczarr.storage import ByteRange, Bytes, Read, SharedCache, Store, Versioned

Index = tuple[int, ...]

_MAX_KEPT_BYTES = 32 << 20
_MAX_TRIES = 4
_MAX_OPEN_FILES = 8  # per calling thread; there may be a hundred such threads
_BLOCK_ITEMS = 64

_Span = tuple[Index, int, int]
_Item = TypeVar("_Item")
_IndexName = tuple[str, str, int, int]
"""Name of a store, followed by the key, start and length in bytes of a shard index in the store."""

_indices = SharedCache[_IndexName, Versioned | None](
    _MAX_KEPT_BYTES, lambda index: len(index.data) if index and index.version else 0
)


class ChunkObjects:
    """A layout in which each chunk is a separate stored object.

    If the metadata does not declare the separator of chunk keys, both separators are tried, for
    example ``0.1`` and then ``0/1``. See `ArrayNode.key_notations`.
    """

    def __init__(self, node: ArrayNode) -> None:
        self.key_of = node.chunk_keys.key
        self.keys = node.key_notations

    def batches(self, parts: Iterable[ChunkPart], size: int) -> Iterator[list[ChunkPart]]:
        """Yield the parts in lists of up to `size` parts."""
        remaining = iter(parts)
        while batch := list(itertools.islice(remaining, size)):
            yield batch

    def fetch(self, store: Store, chunks: Sequence[Index]) -> Iterator[Bytes | None]:
        """Yield the encoded bytes of each chunk, in order, with None for missing chunks."""
        return self._request_with_alternative(chunks, store.fetch_chunks)

    def fetch_ranges(
        self,
        store: Store,
        wanted: Sequence[tuple[Index, Sequence[tuple[int, int]]]],
        check_size: Callable[[int], None],
    ) -> Iterator[Bytes | None]:
        """Yield byte ranges of encoded chunks, in order, with None for ranges of missing chunks.

        `wanted` contains the index of each chunk, and the (start, length) pairs of the ranges to
        read from this chunk. Some stores know the size of a chunk without a request. `check_size`
        is then called with this size in bytes, and can raise an error.
        """

        def request(keys: ChunkKeys, items: Sequence[_Span]) -> Iterator[Bytes | None]:
            ranges = [ByteRange(keys.key(chunk), start, length) for chunk, start, length in items]
            sizes: dict[str, int | None] | None = None
            for item, data in zip(ranges, store.fetch_ranges(ranges), strict=True):
                if sizes is None:  # not earlier: fetching also loads sizes from a reference set
                    names = list(dict.fromkeys(item.key for item in ranges))
                    sizes = dict(zip(names, store.known_sizes(names) or (), strict=False))
                if data is not None and (size := sizes.get(item.key)):
                    with ErrorContext(key=item.key):
                        check_size(size)
                yield data

        spans = [(chunk, start, length) for chunk, spans in wanted for start, length in spans]
        return self._request_with_alternative(spans, request)

    def chunks_stored_with(self, chunk: Index) -> list[Index]:
        """Return a list that contains only `chunk`, because each object contains one chunk."""
        return [chunk]

    def assemble(self, chunks: Mapping[Index, Bytes]) -> Bytes:
        """Return the bytes of a stored object, which are the bytes of its only chunk."""
        (data,) = chunks.values()
        return data

    def delete(self, store: Store, chunk: Index) -> None:
        """Delete a chunk, trying every key under which it might be stored."""
        for keys in self.keys:
            store.delete(keys.key(chunk))

    def _request_with_alternative(
        self,
        items: Sequence[_Item],
        request: Callable[[ChunkKeys, Sequence[_Item]], Iterator[Bytes | None]],
    ) -> Iterator[Bytes | None]:
        """Yield the data of each item, in order, trying alternative keys for missing items."""
        # A single array can have keys with both separators. For example, a program that knows only
        # the separator ``.`` does not find the key ``0/1``, and creates ``0.1`` for the same chunk.
        fetched = request(self.keys[0], items)
        if len(self.keys) == 1:
            yield from fetched
            return
        pairs = zip(items, fetched, strict=True)
        while block := list(itertools.islice(pairs, _BLOCK_ITEMS)):
            missing = [item for item, data in block if data is None]
            others = request(self.keys[1], missing) if missing else iter(())
            for _, data in block:
                yield next(others) if data is None else data


class Shards:
    """A layout in which each stored object is a shard that contains several chunks.

    Parameters
    ----------
    node
        Metadata of an array with at least one level of sharding.
    limits, custom
        See `compile_codec`.
    """

    def __init__(
        self, node: ArrayNode, *, limits: Limits, custom: Mapping[str, type] | None
    ) -> None:
        shapes = [*(level.shape for level in node.shards), node.chunk_shape]
        self.levels = [
            ShardIndex(level, inner_shape, limits=limits, custom=custom)
            for level, inner_shape in zip(node.shards, shapes[1:], strict=True)
        ]
        if any(level.wrapped for level in self.levels[1:]):
            raise UnsupportedError(
                "a codec that compresses whole shards is not supported within another shard",
                place="codecs",
            )
        self.node = node
        # For each level, the number of innermost chunks along each dimension of a shard. The last
        # item is for the chunks themselves, and contains only ones.
        self._spans = [
            tuple(part // chunk for part, chunk in zip(shape, node.chunk_shape, strict=True))
            for shape in shapes
        ]
        self._whole_from = 1 if self.levels[0].wrapped else math.prod(self._spans[0]) / 2

    def shard_of(self, chunk: Index) -> Index:
        """Return the grid index of the shard that contains a chunk."""
        return tuple(map(floordiv, chunk, self._spans[0]))

    def key_of(self, chunk: Index) -> str:
        """Return the key of the shard that contains a chunk."""
        return self.node.chunk_keys.key(self.shard_of(chunk))

    def batches(self, parts: Iterable[ChunkPart], size: int) -> Iterator[list[ChunkPart]]:
        """Yield the parts in lists of about `size` parts.

        All parts of a shard are in the same list.
        """
        by_shard: dict[Index, list[ChunkPart]] = {}
        for part in parts:
            by_shard.setdefault(self.shard_of(part.chunk), []).append(part)
        batch: list[ChunkPart] = []
        for members in by_shard.values():
            if batch and len(batch) + len(members) > size:
                yield batch
                batch = []
            batch += members
        if batch:
            yield batch

    def fetch(self, store: Store, chunks: Sequence[Index]) -> Iterator[Bytes | None]:
        """Yield the encoded bytes of each chunk, in order, with None for missing chunks.

        A shard is fetched as a whole if at least half of its chunks are requested, or if additional
        codecs encode the whole shard. For all other shards, the index is fetched first, and then
        the requested chunks. A remote store receives one batch of requests for all shard indices at
        each nesting level, and one batch for the chunks. In a local store, each shard is opened
        once.

        Raises
        ------
        StorageError
            If a remote shard is repeatedly replaced while it is being read.
        """
        if store.remote:
            yield from self._fetch_current(store, chunks)
            return
        by_shard = [list(members) for _, members in itertools.groupby(chunks, self.shard_of)]
        for first in range(0, len(by_shard), _MAX_OPEN_FILES):
            group = itertools.chain.from_iterable(by_shard[first : first + _MAX_OPEN_FILES])
            source = _ShardReader(store)
            with source.opened:
                yield from self._fetch(source, list(group))

    def _fetch_current(
        self, store: Store, chunks: Sequence[Index], tries: int = _MAX_TRIES
    ) -> Iterator[Bytes | None]:
        """Yield the encoded chunks, retrying up to `tries` times if a shard is replaced."""
        done = 0
        try:
            for data in self._fetch(_VersionedReader(store, refresh=tries < _MAX_TRIES), chunks):
                yield data
                done += 1
        except _ReplacedError as error:  # fetch the remaining chunks from the new shard
            if not tries:
                raise error.cause from None
            yield from self._fetch_current(store, chunks[done:], tries - 1)

    def _fetch(self, source: _ShardReader, chunks: Sequence[Index]) -> Iterator[Bytes | None]:
        shards = [self.shard_of(chunk) for chunk in chunks]
        holders = {shard: ByteRange(self.node.chunk_keys.key(shard), 0, 0) for shard in set(shards)}
        ranges: Sequence[ByteRange | None] = [holders[shard] for shard in shards]
        counts = Counter(holders[shard].key for shard in shards)
        source.whole = self._fetch_dense(source.store, counts)
        for depth in range(len(self.levels)):
            ranges = self._locate(depth, chunks, ranges, source)
        fetched = source.read(span for span in ranges if span is not None)
        for span in ranges:
            yield None if span is None else next(fetched)

    def _fetch_dense(self, store: Store, counts: Mapping[str, int]) -> dict[str, Bytes | None]:
        """Fetch the shards that should be read as a whole, and return their bytes by key.

        `counts` contains the number of requested chunks of each shard. A missing shard has the
        value None.
        """
        outermost = self.levels[0]
        dense = [key for key, count in counts.items() if count >= self._whole_from]
        fetched = dict(zip(dense, store.fetch(dense), strict=True))
        if outermost.wrapped:
            for key, data in fetched.items():
                if data is not None:
                    with ErrorContext(key=key):
                        fetched[key] = outermost.unwrap(data)
        return fetched

    def _locate(
        self,
        depth: int,
        chunks: Sequence[Index],
        shard_ranges: Sequence[ByteRange | None],
        source: _ShardReader,
    ) -> list[ByteRange | None]:
        """Return the byte range of each chunk, or of its nested shard at the next nesting level.

        Only the shards at the innermost nesting level contain chunks. All others contain nested
        shards. `shard_ranges` contains the range of each chunk's shard at nesting level `depth`.
        For a missing shard or chunk, the range is None.
        """
        level = self.levels[depth]
        holders = list(dict.fromkeys(span for span in shard_ranges if span is not None))
        ranges = []
        for holder in holders:
            # The length of an outermost shard is unknown and counts as 0. A negative start then
            # counts from the end of the stored object.
            origin = holder.start + (holder.length if level.start < 0 else 0)
            ranges.append(ByteRange(holder.key, origin + level.start, level.length))
        entries = {}
        for holder, data in zip(holders, source.read(ranges, of_indices=True), strict=True):
            if data is not None:
                whole = source.whole.get(holder.key)
                size = holder.length if depth else None if whole is None else len(whole)
                with ErrorContext(key=holder.key):
                    entries[holder] = level.parse(data, size)
        located: list[ByteRange | None] = []
        for chunk, shard in zip(chunks, shard_ranges, strict=True):
            table = None if shard is None else entries.get(shard)
            span = None if table is None else level.locate(table, self._within(depth, chunk))
            if shard is not None and span is None:
                source.check_missing(shard.key)
            if shard is None or span is None:
                located.append(None)
            else:
                located.append(ByteRange(shard.key, shard.start + span[0], span[1]))
        return located

    def _within(self, depth: int, chunk: Index) -> Index:
        """Return the position of a chunk in the index of its shard at nesting level `depth`."""
        outer, inner = self._spans[depth], self._spans[depth + 1]
        return tuple(map(floordiv, map(mod, chunk, outer), inner))

    def assemble(self, chunks: Mapping[Index, Bytes]) -> Bytes:
        """Build a shard from its encoded chunks.

        `chunks` maps grid indices of chunks to their encoded bytes. All other chunks are missing
        from the new shard.
        """
        return self.levels[0].wrap(self._assemble(0, chunks))

    def _assemble(self, depth: int, chunks: Mapping[Index, Bytes]) -> Bytes:
        if depth == len(self.levels):
            (data,) = chunks.values()
            return data
        groups: dict[Index, dict[Index, Bytes]] = {}
        for chunk, data in chunks.items():
            groups.setdefault(self._within(depth, chunk), {})[chunk] = data
        parts = {within: self._assemble(depth + 1, members) for within, members in groups.items()}
        return self.levels[depth].assemble(parts)

    def chunks_stored_with(self, chunk: Index) -> list[Index]:
        """Return the grid indices of all chunks in the same shard as `chunk`, including `chunk`.

        Chunks that lie outside the array are omitted.
        """
        node = self.node
        grid = grid_shape(node.shape, node.chunk_shape)
        sizes = zip(self.shard_of(chunk), self._spans[0], grid, strict=True)
        ranges = [range(at * count, min((at + 1) * count, end)) for at, count, end in sizes]
        return list(itertools.product(*ranges))

    def delete(self, store: Store, chunk: Index) -> None:
        """Delete the shard that contains `chunk`."""
        store.delete(self.key_of(chunk))


ChunkLayout = ChunkObjects | Shards
"""How the chunks of an array are stored: as separate objects, or in shards."""


class _ShardReader:
    """A reader that returns byte ranges of shards.

    Attributes
    ----------
    whole
        Shards that are completely in memory, by key. None stands for a missing shard.
    opened
        A context manager that, on exit, closes all objects that this reader has opened.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.whole: dict[str, Bytes | None] = {}
        self.opened = ExitStack()
        # Each object is opened only once, so that all its ranges belong to the same version.
        self._reads: dict[str, Read] = {}

    def read(
        self, ranges: Iterable[ByteRange], *, of_indices: bool = False
    ) -> Iterator[Bytes | None]:
        """Yield the bytes of each range, or None for a range of a missing shard."""
        wanted = list(ranges)
        fetch = self._fetch_indices if of_indices else self._fetch_ranges
        fetched = fetch([span for span in wanted if span.key not in self.whole])
        for span in wanted:
            if span.key not in self.whole:
                yield next(fetched)
                continue
            data = self.whole[span.key]
            if data is None:
                yield None
            else:
                start = span.start + len(data) if span.start < 0 else span.start
                yield memoryview(data)[start : start + span.length]

    def check_missing(self, key: str) -> None:
        """Raise _ReplacedError if a chunk is missing according to an index that may be outdated.

        `key` is the key of the shard that has this index. An index that is not from a cache is
        never outdated.
        """

    def _fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        for key, start, length in ranges:
            if key not in self._reads:
                self._reads[key] = self.opened.enter_context(self.store.reading(key))
            yield self._reads[key](start, length)

    def _fetch_indices(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        return self._fetch_ranges(ranges)


class _VersionedReader(_ShardReader):
    """A reader of shards in a remote store, which caches shard indices.

    It raises _ReplacedError if an object is replaced between two reads. If `refresh` is True,
    cached shard indices are ignored.
    """

    def __init__(self, store: Store, *, refresh: bool) -> None:
        super().__init__(store)
        self._refresh = refresh
        self._versions: dict[str, str | None] = {}
        self._kept: set[str] = set()

    def _fetch_indices(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        names = [(self.store.name, *item) for item in ranges]
        self._kept.update(item.key for item in ranges)
        indices = _indices.load(names, self._fetch_new, refresh=self._refresh)
        for name, item in zip(names, ranges, strict=True):
            yield self._checked(item, indices[name])

    def _fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        try:
            for item, response in zip(ranges, self.store.fetch_versions(ranges), strict=True):
                yield self._checked(item, response)
        except StorageError as error:
            if self._kept:  # the range may be from the index of an older version
                raise _ReplacedError(error) from error
            raise

    def check_missing(self, key: str) -> None:
        """Raise _ReplacedError if a chunk is missing according to a shard index from the cache.

        `key` is the key of the shard. A newer version of the shard may contain the chunk.
        """
        if key in self._kept:
            raise self._replaced(key)

    def _fetch_new(self, names: list[_IndexName]) -> Iterator[Versioned | None]:
        self._kept.difference_update(name[1] for name in names)
        return self.store.fetch_versions([ByteRange(*name[1:]) for name in names])

    def _checked(self, item: ByteRange, response: Versioned | None) -> Bytes | None:
        """Return the bytes of a response, or None if the object does not exist.

        Raises
        ------
        _ReplacedError
            If the version of the object differs from its version in an earlier response.
        """
        if response is None:
            return None
        if response.version != self._versions.setdefault(item.key, response.version):
            raise self._replaced(item.key)
        return response.data

    def _replaced(self, key: str) -> _ReplacedError:
        problem = "the shard was repeatedly replaced while it was being read"
        remedy = "Read the chunk again while no other program is writing to the store"
        return _ReplacedError(StorageError(problem, remedy=remedy, store=self.store.name, key=key))


class _ReplacedError(Exception):
    """An internal signal that a shard was replaced after its index was read.

    `cause` is the error to raise if all retries fail.
    """

    def __init__(self, cause: StorageError) -> None:
        super().__init__()
        self.cause = cause
