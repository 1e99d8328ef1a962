"""Inner chunks of shards: located through the shards' indices, fetched like any other bytes."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from operator import floordiv, mod

from xr_nczarr.chunks.grid import ChunkPart
from xr_nczarr.codecs import ShardIndex
from xr_nczarr.errors import Place, UnsupportedError
from xr_nczarr.model import ArrayNode
from xr_nczarr.storage import ByteRange, Bytes, Read, Store

Index = tuple[int, ...]

_MOST_OPENED = 8  # files by each thread of the caller, of which there can be a hundred


class Shards:
    """The shards of an array.

    Parameters
    ----------
    node
        The array, with at least one level of sharding.
    levels
        Their indices, outermost first.
    """

    def __init__(self, node: ArrayNode, levels: Sequence[ShardIndex]) -> None:
        if any(level.wrapped for level in levels[1:]):
            raise UnsupportedError("found codecs around a shard within a shard", place="codecs")
        self.node = node
        self.levels = levels
        self.chunks_per_shard = tuple(
            whole // part for whole, part in zip(node.object_shape, node.chunk_shape, strict=True)
        )
        shapes = [*(level.shape for level in node.shards), node.chunk_shape]
        # Chunks that the parts of each level span along each dimension.
        self._spans = [
            tuple(part // chunk for part, chunk in zip(shape, node.chunk_shape, strict=True))
            for shape in shapes
        ]

    def shard_of(self, chunk: Index) -> Index:
        """Give the index of the stored object that holds a chunk."""
        return tuple(map(floordiv, chunk, self.chunks_per_shard))

    def key_of(self, chunk: Index) -> str:
        """Give the key of the stored object that holds a chunk."""
        return self.node.chunk_keys.key(self.shard_of(chunk))

    def batches(self, parts: Iterable[ChunkPart], size: int) -> Iterator[list[ChunkPart]]:
        """Cut parts into lists of about `size` that never divide a shard."""
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
        """Yield the encoded bytes of inner chunks in order, None for missing ones.

        A shard of which half or more is wanted is fetched whole; of the others the index and the
        inner chunks wanted, in one wave of requests each, or from one opened file.
        """
        if store.remote:
            yield from self._fetch(store, chunks)
            return
        by_shard = [list(members) for _, members in itertools.groupby(chunks, self.shard_of)]
        for first in range(0, len(by_shard), _MOST_OPENED):
            some = itertools.chain.from_iterable(by_shard[first : first + _MOST_OPENED])
            with ExitStack() as stack:
                yield from self._fetch(_Opened(store, stack), list(some))

    def _fetch(self, store: _Fetching, chunks: Sequence[Index]) -> Iterator[Bytes | None]:
        shards = [self.shard_of(chunk) for chunk in chunks]
        holders = {one: ByteRange(self.node.chunk_keys.key(one), 0, 0) for one in set(shards)}
        places: Sequence[ByteRange | None] = [holders[one] for one in shards]
        counts = Counter(holders[one].key for one in shards)
        source = _Source(store, self._fetch_dense(store, counts))
        for number in range(len(self.levels)):
            places = self._locate(number, chunks, places, source)
        found = source.read(place for place in places if place is not None)
        for wanted in places:
            yield None if wanted is None else next(found)

    def _fetch_dense(self, store: _Fetching, counts: Mapping[str, int]) -> dict[str, Bytes | None]:
        """Fetch whole the shards of which at least half is wanted, or that have to be unwrapped."""
        outermost = self.levels[0]
        enough = 1 if outermost.wrapped else math.prod(self.chunks_per_shard) / 2
        dense = [key for key, count in counts.items() if count >= enough]
        fetched = dict(zip(dense, store.fetch(dense), strict=True))
        if outermost.wrapped:
            for key, data in fetched.items():
                if data is not None:
                    with Place(key=key):
                        fetched[key] = outermost.unwrap(data)
        return fetched

    def _locate(
        self,
        number: int,
        chunks: Sequence[Index],
        places: Sequence[ByteRange | None],
        source: _Source,
    ) -> list[ByteRange | None]:
        """Give where each chunk's part of level `number` lies, through that level's indices."""
        level = self.levels[number]
        holders = list(dict.fromkeys(place for place in places if place is not None))
        ranges = [self._index_range(level, number, holder) for holder in holders]
        entries = {}
        for holder, data in zip(holders, source.read(ranges), strict=True):
            if data is not None:
                size = source.size(holder.key) if number == 0 else holder.length
                with Place(key=holder.key):
                    entries[holder] = level.parse(data, size)
        located: list[ByteRange | None] = []
        for chunk, place in zip(chunks, places, strict=True):
            table = None if place is None else entries.get(place)
            found = None if table is None else level.locate(table, self._within(number, chunk))
            if place is None or found is None:
                located.append(None)
            else:
                located.append(ByteRange(place.key, place.start + found[0], found[1]))
        return located

    @staticmethod
    def _index_range(level: ShardIndex, number: int, holder: ByteRange) -> ByteRange:
        if number == 0 or level.start >= 0:
            return ByteRange(holder.key, holder.start + level.start, level.length)
        return ByteRange(holder.key, holder.start + holder.length + level.start, level.length)

    def _within(self, number: int, chunk: Index) -> Index:
        """Give the index, in a shard of level `number`, of the part that holds a chunk."""
        outer, inner = self._spans[number], self._spans[number + 1]
        return tuple(map(floordiv, map(mod, chunk, outer), inner))

    def assemble(self, chunks: Mapping[Index, Bytes]) -> Bytes:
        """Give the stored object of a shard from its encoded inner chunks.

        Parameters
        ----------
        chunks
            By their index in the array; all of one shard. The others are missing.
        """
        return self.levels[0].wrap(self._assemble(0, chunks))

    def _assemble(self, number: int, chunks: Mapping[Index, Bytes]) -> Bytes:
        parts: dict[Index, Bytes] = {}
        if number + 1 == len(self.levels):
            parts = {self._within(number, chunk): data for chunk, data in chunks.items()}
        else:
            groups: dict[Index, dict[Index, Bytes]] = {}
            for chunk, data in chunks.items():
                groups.setdefault(self._within(number, chunk), {})[chunk] = data
            for within, members in groups.items():
                parts[within] = self._assemble(number + 1, members)
        return self.levels[number].assemble(parts)

    def chunks_in(self, shard: Index) -> list[Index]:
        """Give the indices of all chunks of a shard that the array reaches into."""
        node = self.node
        ranges = []
        for position, count, size, chunk in zip(
            shard, self.chunks_per_shard, node.shape, node.chunk_shape, strict=True
        ):
            last = min((position + 1) * count, -(-size // chunk))
            ranges.append(range(position * count, last))
        return list(itertools.product(*ranges))


class _Opened:
    """A store whose objects are opened once: ranges are of the same one, even if it is replaced."""

    def __init__(self, store: Store, stack: ExitStack) -> None:
        self.store = store
        self.fetch = store.fetch
        self._stack = stack
        self._reads: dict[str, Read] = {}

    def fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        for key, start, length in ranges:
            if key not in self._reads:
                self._reads[key] = self._stack.enter_context(self.store.reading(key))
            yield self._reads[key](start, length)


_Fetching = Store | _Opened


class _Source:
    """Byte ranges, from objects in memory or else from the store."""

    def __init__(self, store: _Fetching, objects: Mapping[str, Bytes | None]) -> None:
        self.store = store
        self.objects = objects

    def size(self, key: str) -> int | None:
        data = self.objects.get(key)
        return None if data is None else len(data)

    def read(self, ranges: Iterable[ByteRange]) -> Iterator[Bytes | None]:
        wanted = list(ranges)
        remote = self.store.fetch_ranges([span for span in wanted if span.key not in self.objects])
        for span in wanted:
            if span.key not in self.objects:
                yield next(remote)
                continue
            data = self.objects[span.key]
            if data is None:
                yield None
            else:
                start = span.start + len(data) if span.start < 0 else span.start
                yield memoryview(data)[start : start + span.length]
