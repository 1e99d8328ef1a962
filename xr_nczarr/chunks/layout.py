"""Where encoded chunks lie when each is a stored object; `sharding` has the other way."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from xr_nczarr.chunks.grid import ChunkPart
from xr_nczarr.chunks.sharding import Shards
from xr_nczarr.model import ArrayNode, ChunkKeys
from xr_nczarr.storage.protocol import ByteRange, Bytes, Store

Index = tuple[int, ...]


class ChunkObjects:
    """One stored object a chunk; `key_of` gives its key, `spellings` all that it may have."""

    def __init__(self, node: ArrayNode) -> None:
        self.key_of = node.chunk_keys.key
        self.spellings = [self.key_of]
        # Those of boxes count from elsewhere.
        self._keys = node.chunk_keys if type(node.chunk_keys) is ChunkKeys else None
        other = node.chunk_keys.alternative if len(node.shape) > 1 else ""
        self._otherwise = replace(node.chunk_keys, separator=other).key if other else None
        if self._otherwise is not None:
            self.spellings.append(self._otherwise)

    def batches(self, parts: Iterable[ChunkPart], size: int) -> Iterator[list[ChunkPart]]:
        """Cut parts into lists of `size`; no two share a stored object."""
        remaining = iter(parts)
        while batch := list(itertools.islice(remaining, size)):
            yield batch

    def fetch(self, store: Store, chunks: Sequence[Index]) -> Iterator[Bytes | None]:
        """Yield the encoded bytes of chunks in order, None for missing ones."""
        by_index = getattr(store, "fetch_chunks", None)
        if by_index is not None and self._keys is not None:
            found: Iterator[Bytes | None] | None = by_index(self._keys, chunks)
            if found is not None:
                return found
        return self._either(lambda key_of: store.fetch([key_of(chunk) for chunk in chunks]))

    def fetch_ranges(
        self, store: Store, wanted: Sequence[tuple[Index, Sequence[tuple[int, int]]]]
    ) -> Iterator[Bytes | None]:
        """Yield bytes of chunks, each given by its index and the first byte and number of each."""
        return self._either(
            lambda key_of: store.fetch_ranges(
                [
                    ByteRange(key, start, length)
                    for key, spans in ((key_of(chunk), spans) for chunk, spans in wanted)
                    for start, length in spans
                ]
            )
        )

    def _either(
        self, request: Callable[[Callable[[Index], str]], Iterator[Bytes | None]]
    ) -> Iterator[Bytes | None]:
        """Give what the declared keys lead to, or if that is nothing, what the others do."""
        fetched = request(self.key_of)
        return fetched if self._otherwise is None else _first_of(fetched, request, self._otherwise)


def _first_of(
    fetched: Iterator[Bytes | None],
    request: Callable[[Callable[[Index], str]], Iterator[Bytes | None]],
    otherwise: Callable[[Index], str],
) -> Iterator[Bytes | None]:
    for absent, data in enumerate(fetched):
        if data is not None:
            yield from itertools.repeat(None, absent)
            yield data
            yield from fetched
            return
    yield from request(otherwise)


Layout = ChunkObjects | Shards
"""How an array's chunks lie in stored objects."""
