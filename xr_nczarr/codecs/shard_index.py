"""Parse and build shard indices, which contain the offset and length of each inner chunk.

This module performs no I/O. The ``sharding_indexed`` codec (version 1.0) of Zarr v3 defines the
format.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from operator import mod

import numpy as np
from numpy.typing import NDArray

from xr_nczarr.codecs.pipeline import DAMAGED, RAISE_LIMIT, UINT8, Bytes, Flow
from xr_nczarr.codecs.registry import compile_chain, flow_of
from xr_nczarr.errors import ChunkError, ErrorContext, LimitError, MetadataError, UnsupportedError
from xr_nczarr.model import DEFAULT_LIMITS, Limits, ShardSpec, grid_shape

_MISSING = np.uint64(0xFFFF_FFFF_FFFF_FFFF)


class ShardIndex:
    """The format of the index in each shard of an array.

    Nested shards have one `ShardIndex` for each level of nesting.

    Attributes
    ----------
    grid
        Number of inner chunks along each dimension.
    start, length
        Byte range of the index in the shard. A negative start counts from the end of the shard.
    wrapped
        Whether further codecs encode each shard as a whole. The whole shard must then be decoded
        before its inner chunks.
    """

    def __init__(
        self,
        spec: ShardSpec,
        inner_shape: tuple[int, ...],
        *,
        limits: Limits = DEFAULT_LIMITS,
        custom: Mapping[str, type] | None = None,
    ) -> None:
        self.grid = grid_shape(spec.shape, inner_shape)
        if any(map(mod, spec.shape, inner_shape)):
            raise MetadataError(
                f"inner chunks of shape {inner_shape} do not evenly divide a shard of shape "
                f"{spec.shape}"
            )
        order = spec.order or tuple(range(len(self.grid)))
        self._order = (*order, len(order))
        self._inverse_order = np.argsort(self._order)
        stored = (*[self.grid[axis] for axis in order], 2)
        with ErrorContext(place="index_codecs"):
            if (size := 8 * math.prod(stored)) > limits.max_chunk_bytes:
                raise LimitError(
                    f"the index of a shard of shape {spec.shape} is {size:,} bytes long; "
                    f"expected at most {limits.max_chunk_bytes:,}",
                    remedy=RAISE_LIMIT,
                )
            entries = flow_of(np.dtype("<u8"), stored, limits)
            self._codec = compile_chain(spec.index_codecs, entries, limits, custom or {})
            length = self._codec.encoded.size
            if length is None:
                raise UnsupportedError("shard indices of variable size are not supported")
        self.length: int = length
        self.start = 0 if spec.index_at_start else -length
        self._floor = length if spec.index_at_start else 0
        shard = Flow(
            f"shard of shape {spec.shape}", UINT8, None, None, limits.max_chunk_bytes, limited=True
        )
        self._outer_codec = compile_chain(spec.codecs, shard, limits, custom or {})
        self.wrapped = bool(spec.codecs)

    def parse(self, data: Bytes, object_size: int | None = None) -> NDArray[np.uint64]:
        """Parse the stored index of a shard.

        Parameters
        ----------
        data
            The stored bytes of the index.
        object_size
            Size of the shard in bytes, or None if it is unknown.

        Returns
        -------
        ndarray
            Offsets and lengths in bytes, in an array of shape ``(*grid, 2)``.

        Raises
        ------
        ChunkError
            If the index is damaged, or if inner chunks overlap or lie outside the shard.
        """
        entries = self._codec.decode(data).astype(np.uint64, copy=False)
        offsets, lengths = entries.reshape(-1, 2).T
        ends = offsets + lengths
        end = (1 << 63) - 1 if object_size is None else object_size - self.length + self._floor
        floor, top = np.uint64(self._floor), np.uint64(max(end, 0))
        outside = (offsets < floor) | (ends > top) | (ends < offsets)
        if outside.any():
            misplaced = np.flatnonzero(outside & ((offsets != _MISSING) | (lengths != _MISSING)))
            if misplaced.size:
                raise self._misplaced(entries, misplaced[0], "extends outside the shard")
        # Missing inner chunks are sorted last, because they have the highest offset. They do not
        # appear to overlap each other, because their end overflows to less than their offset.
        used = offsets.argsort(kind="stable")
        used = used[lengths[used] > 0]
        overlapping = used[1:][offsets[used[1:]] < ends[used[:-1]]]
        if overlapping.size:
            raise self._misplaced(entries, overlapping[0], "overlaps another inner chunk")
        return entries.transpose(self._inverse_order)

    def locate(
        self, entries: NDArray[np.uint64], inner_index: tuple[int, ...]
    ) -> tuple[int, int] | None:
        """Return the offset and length in bytes of an inner chunk, or None if the chunk is missing.

        `entries` is the parsed shard index, as `parse` returns it.
        """
        offset, length = entries[inner_index].tolist()
        return None if offset == length == _MISSING else (offset, length)

    def assemble(self, parts: Mapping[tuple[int, ...], Bytes]) -> bytes:
        """Build a shard from its encoded inner chunks.

        `parts` maps the grid indices of inner chunks to their encoded bytes. The index marks all
        other inner chunks as missing.
        """
        entries = np.full((*self.grid, 2), _MISSING)
        offset = self._floor
        bodies = []
        for inner_index, part in sorted(parts.items()):
            entries[inner_index] = offset, len(part)
            offset += len(part)
            bodies.append(part)
        index = self._codec.encode(entries.transpose(self._order))
        return b"".join([index, *bodies] if self._floor else [*bodies, index])

    def unwrap(self, data: Bytes) -> Bytes:
        """Decode a stored shard with the codecs that encode shards as a whole.

        If the array has no such codecs, return a view of `data`.
        """
        return memoryview(self._outer_codec.decode_buffer(data)).cast("B")

    def wrap(self, shard: Bytes) -> Bytes:
        """Encode a shard with the codecs that encode shards as a whole.

        If the array has no such codecs, return a view of `shard`.
        """
        return memoryview(self._outer_codec.encode_buffer(shard)).cast("B")

    def _misplaced(self, entries: NDArray[np.uint64], at: np.intp, where: str) -> ChunkError:
        stored = np.unravel_index(at, entries.shape[:-1])
        offset, length = entries[stored].tolist()
        inner_index = tuple([int(stored[axis]) for axis in self._inverse_order[:-1]])
        problem = f"inner chunk {inner_index} at offset {offset:,} with length {length:,} {where}"
        return ChunkError(problem, place="shard index", remedy=DAMAGED)
