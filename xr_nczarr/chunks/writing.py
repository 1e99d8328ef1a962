"""Encode and write chunks, merging new values into chunks that are only partially overwritten."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from xr_nczarr.chunks.chunk_layout import ChunkLayout, Index
from xr_nczarr.chunks.grid import Array, ChunkPart
from xr_nczarr.chunks.partial_reads import part_within
from xr_nczarr.codecs import ChunkCodec
from xr_nczarr.errors import ErrorContext
from xr_nczarr.model import ArrayNode
from xr_nczarr.storage import Bytes, Store

Submit = Callable[[Callable[[list[ChunkPart]], None], list[ChunkPart], int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartWriter:
    """A writer that encodes and stores the parts of a plan.

    Several threads can use one writer at the same time.

    Attributes
    ----------
    source
        The values to write. The `target` of each part is an index into this array.
    write_empty_chunks
        Whether to store chunks that contain only fill values. If False, such chunks are deleted.
    """

    node: ArrayNode
    store: Store
    codec: ChunkCodec
    layout: ChunkLayout
    source: Array
    write_empty_chunks: bool

    def write(self, batch: list[ChunkPart]) -> None:
        """Encode and write a batch of parts.

        All parts of the plan that lie in the same stored object must be in the same batch.
        """
        objects: dict[str, dict[Index, ChunkPart]] = {}
        for part in batch:
            objects.setdefault(self.layout.key_of(part.chunk), {})[part.chunk] = part
        partial: list[tuple[str, dict[Index, ChunkPart], list[Index]]] = []

        def overwritten() -> Iterator[tuple[str, Bytes]]:
            for key, parts in objects.items():
                chunks = self.layout.chunks_stored_with(next(iter(parts)))
                if len(parts) == len(chunks) and all(part.complete for part in parts.values()):
                    yield from self._encoded(key, parts, {})
                else:
                    partial.append((key, parts, chunks))

        self.store.put(overwritten())
        for key, parts, chunks in partial:
            with self.store.lock(key):
                fetched = self.layout.fetch(self.store, chunks)
                self.store.put(self._encoded(key, parts, dict(zip(chunks, fetched, strict=True))))

    def _encoded(
        self, key: str, parts: dict[Index, ChunkPart], stored: dict[Index, Bytes | None]
    ) -> Iterator[tuple[str, Bytes]]:
        """Yield the key and new bytes of a stored object, or delete the object if it has no chunks.

        Chunks without a part in `parts` are taken from `stored`.
        """
        merged = stored | {
            index: self._merged(part, stored.get(index)) for index, part in parts.items()
        }
        chunks = {index: data for index, data in merged.items() if data is not None}
        if chunks:
            yield key, self.layout.assemble(chunks)
        else:
            self.layout.delete(self.store, next(iter(parts)))

    def _merged(self, part: ChunkPart, stored: Bytes | None) -> Bytes | None:
        """Merge new values into a stored chunk, and return the encoded chunk.

        Return None if the merged chunk need not be stored, because it contains only fill values.
        """
        values = self.source[(*part.target, ...)]  # with the ellipsis, the result is never a scalar
        with ErrorContext(
            store=self.store.name,
            key=self.layout.key_of(part.chunk),
            variable=self.node.path,
            chunk=part.chunk,
        ):
            in_order = all(isinstance(item, slice) for item in part.source)
            if part.complete and in_order and values.shape == self.node.chunk_shape:
                chunk = values
            else:
                chunk = self._filled()
                if stored is not None and not part.complete:
                    # Elements beyond the edge contain old values if the array used to be larger.
                    within = part_within(self.node.shape, self.node.chunk_shape, part.chunk)
                    chunk[within] = self.codec.decode(stored)[within]
                chunk[part.source] = values
            if self._is_empty(chunk):
                return None
            data = self.codec.encode(chunk)
            if self.codec.lossy:
                self.codec.check_round_trip(data, part.source, values)
            return data

    def _filled(self) -> Array:
        fill = self.node.fill_value
        if fill is None and self.node.dtype.hasobject:
            fill = b"" if self.node.is_binary else ""
        elif fill is None:
            fill = np.zeros((), self.node.dtype)[()]
        return np.full(self.node.chunk_shape, fill, self.node.dtype)

    def _is_empty(self, chunk: Array) -> bool:
        """Return whether a chunk need not be stored, because it contains only fill values."""
        if self.write_empty_chunks or self.node.fill_value is None:
            return False
        fill = np.array(self.node.fill_value, self.node.dtype)
        if chunk.dtype.hasobject:
            return bool((chunk == fill).all())
        # Compare bit by bit. For example, -0.0 is not the fill value 0.0.
        first = np.array(chunk[(0,) * chunk.ndim], chunk.dtype)  # keeps trailing NULs of text
        if first.tobytes() != fill.tobytes():
            return False
        bits = np.ascontiguousarray(chunk).reshape(-1).view("u1")
        return bool((bits.reshape(-1, fill.nbytes) == np.frombuffer(fill.tobytes(), "u1")).all())
