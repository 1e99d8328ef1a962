"""Define the layout of arrays without shards: each chunk is a separate stored object.

The `sharding` module defines the layout with shards.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from xr_nczarr.chunks.grid import ChunkPart
from xr_nczarr.chunks.sharding import Shards
from xr_nczarr.errors import ErrorContext
from xr_nczarr.model import ArrayNode, ChunkKeys
from xr_nczarr.storage import ByteRange, Bytes, Store

Index = tuple[int, ...]
_Span = tuple[Index, int, int]
_Item = TypeVar("_Item")

_BLOCK_ITEMS = 64


class ChunkObjects:
    """A layout in which each chunk is a separate stored object.

    If the metadata does not declare the separator of chunk keys, every missing chunk is also looked
    up under a key with the alternative separator, such as ``0/1`` instead of ``0.1``. See
    `ArrayNode.key_notations`.

    A single array can have keys with both separators. For example, a program that knows only the
    separator ``.`` does not find the existing key ``0/1``, and creates ``0.1`` for the same chunk.
    """

    def __init__(self, node: ArrayNode) -> None:
        self.key_of = node.chunk_keys.key
        self.keys = node.key_notations

    def batches(self, parts: Iterable[ChunkPart], size: int) -> Iterator[list[ChunkPart]]:
        """Yield the parts in lists of up to `size` parts.

        The parts can be divided in any way, because every chunk is a separate object.
        """
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

        Each item of `wanted` is a pair: the index of a chunk, and a list of the ranges to read from
        this chunk. Each range is a (start, length) pair. If the store knows the size of a chunk
        without making a request, `check_size` is called with the size in bytes. `check_size` can
        raise an error if the size is wrong.
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
        fetched = request(self.keys[0], items)
        if len(self.keys) == 1:
            return fetched
        return _with_fallback(
            zip(items, fetched, strict=True), lambda missing: request(self.keys[1], missing)
        )


def _with_fallback(
    fetched: Iterator[tuple[_Item, Bytes | None]],
    request: Callable[[Sequence[_Item]], Iterator[Bytes | None]],
) -> Iterator[Bytes | None]:
    """Yield fetched data in order, replacing missing data with the results of `request`.

    `fetched` yields (item, data) pairs, with None in place of missing data. `request` is called
    with the items whose data is missing, and yields the data of those items in order.
    """
    while block := list(itertools.islice(fetched, _BLOCK_ITEMS)):
        missing = [item for item, data in block if data is None]
        others = request(missing) if missing else iter(())
        for _, data in block:
            yield next(others) if data is None else data


ChunkLayout = ChunkObjects | Shards
"""How the chunks of an array are stored: as separate objects, or in shards."""
