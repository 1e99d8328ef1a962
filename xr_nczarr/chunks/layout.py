"""Define the layout of arrays without shards, in which each chunk is a separate stored object.

The `sharding` module defines the layout with shards.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from xr_nczarr.chunks.grid import ChunkPart
from xr_nczarr.chunks.sharding import Shards
from xr_nczarr.model import ArrayNode, ChunkKeys
from xr_nczarr.storage import ByteRange, Bytes, Store

Index = tuple[int, ...]


class ChunkObjects:
    """A layout in which each chunk is a separate stored object.

    `keys[0]` uses the separator that the metadata declares or implies. If the separator of a
    multi-dimensional array is only implied, `keys[1]` uses the alternative separator, which some
    writers use without declaring it.
    """

    def __init__(self, node: ArrayNode) -> None:
        self.key_of = node.chunk_keys.key
        self.keys = [node.chunk_keys]
        if len(node.shape) > 1 and node.chunk_keys.alternative:
            self.keys.append(replace(node.chunk_keys, separator=node.chunk_keys.alternative))

    def batches(self, parts: Iterable[ChunkPart], size: int) -> Iterator[list[ChunkPart]]:
        """Yield the parts in lists of `size` parts. Each part is in a different stored object."""
        remaining = iter(parts)
        while batch := list(itertools.islice(remaining, size)):
            yield batch

    def fetch(self, store: Store, chunks: Sequence[Index]) -> Iterator[Bytes | None]:
        """Yield the encoded bytes of each chunk, in order, with None for missing chunks."""
        return self._declared_or_alternative(lambda keys: store.fetch_chunks(keys, chunks))

    def fetch_ranges(
        self, store: Store, wanted: Sequence[tuple[Index, Sequence[tuple[int, int]]]]
    ) -> Iterator[Bytes | None]:
        """Yield byte ranges of encoded chunks, in order, with None for ranges of missing chunks.

        Each item of `wanted` contains a chunk index, and the (start, length) pairs of the ranges in
        that chunk.
        """
        return self._declared_or_alternative(
            lambda keys: store.fetch_ranges(
                [
                    ByteRange(key, start, length)
                    for key, spans in ((keys.key(chunk), spans) for chunk, spans in wanted)
                    for start, length in spans
                ]
            )
        )

    def _declared_or_alternative(
        self, request: Callable[[ChunkKeys], Iterator[Bytes | None]]
    ) -> Iterator[Bytes | None]:
        fetched = request(self.keys[0])
        return fetched if len(self.keys) == 1 else _first_of(fetched, request, *self.keys)


def _first_of(
    fetched: Iterator[Bytes | None],
    request: Callable[[ChunkKeys], Iterator[Bytes | None]],
    _: ChunkKeys,
    alternative: ChunkKeys,
) -> Iterator[Bytes | None]:
    for absent, data in enumerate(fetched):
        if data is not None:
            yield from itertools.repeat(None, absent)
            yield data
            yield from fetched
            return
    yield from request(alternative)


Layout = ChunkObjects | Shards
"""How the chunks of an array are stored: as separate objects, or in shards."""
