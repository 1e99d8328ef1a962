"""Copy the chunks of arrays to another store.

If the same bytes represent the same values in the source and the target, the bytes are copied.
Otherwise, the chunks are decoded and re-encoded.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.model import ArrayNode
from xr_nczarr.netcdf.types import zero
from xr_nczarr.progress import Progress
from xr_nczarr.storage import Store
from xr_nczarr.writing.chunk_writes import ArrayWrite, write_chunks

_BATCH_BYTES = 16 << 20
_BATCH_OBJECTS = 256
_MAX_REARRANGED_BYTES = 1 << 30


def copy_chunks(
    writes: Sequence[ArrayWrite],
    arrays: Mapping[str, ChunkedArray],
    store: Store,
    resumed: bool,
    progress: bool,
) -> tuple[list[str], int]:
    """Copy the chunks of arrays, except for chunks that an interrupted copy has already written.

    Return the paths of the arrays whose chunks (or shards) are copied without re-encoding, and the
    number of such chunks that this call copied.
    """
    as_bytes: list[tuple[ChunkedArray, ArrayWrite]] = []
    small: list[ArrayWrite] = []
    large: list[ArrayWrite] = []
    existing = {key for key, _ in store.sizes()} if resumed else set()
    for write in writes:
        node, array = write.node, arrays.get(write.node.path)
        recoded = any(level.codecs for level in node.shards)
        recoded |= write.stores_fill_chunks and bool(node.shards or node.chunk_runs)
        if array is not None and not recoded and _storage_key(array.node) == _storage_key(node):
            as_bytes.append((array, write))
        elif _is_large(write):
            large.append(write)
        else:
            small += _missing_blocks(write.aligned(), existing)
    objects = 0
    writing = [*(write for _, write in as_bytes), *small, *large]
    with Progress(progress, sum(write.data.nbytes for write in writing)) as bar:
        for array, write in as_bytes:
            total = math.prod(write.node.object_counts)
            for checked, copied in _copy_objects(array, write, store, existing):
                bar.advance(write.data.nbytes * checked // total)
                objects += copied
        write_chunks(small, store, bar)
        for write in large:
            # Write one part at a time, because dask keeps all values of one call in memory.
            for part in rearranged(write):
                write_chunks([*_missing_blocks(part, existing)], store, bar)
    return [write.node.path for _, write in as_bytes], objects


def _storage_key(node: ArrayNode) -> tuple[Any, ...]:
    """Return a key that two arrays share only if they encode equal values as the same bytes."""
    # Version 3 stores characters and strings as raw bytes.
    raw = node.dtype.names is None and (node.dtype.kind in "SV" or node.dtype.str == "|u1")
    native = (None, sys.byteorder)
    fill = node.fill_value
    if node.dtype.hasobject:
        fill = str(fill or "")
    else:  # without a fill value, missing chunks are zeros
        fill = np.asarray(zero(node.dtype) if fill is None else fill, node.dtype).tobytes()
    return (
        (node.shape, node.stored_shape, node.chunk_shape, node.chunk_runs),
        ("raw" if raw else str(node.dtype), node.dtype.itemsize, fill),
        [
            (spec.name, dict(spec.configuration))
            for spec in node.codecs
            if spec.name != "bytes" or spec.configuration.get("endian") not in native
        ],
        [
            (
                (level.shape, level.index_at_start, bool(level.codecs)),
                [(spec.name, spec.configuration.get("endian")) for spec in level.index_codecs],
            )
            for level in node.shards
        ],
    )


def _copy_objects(
    array: ChunkedArray, write: ArrayWrite, store: Store, existing: Collection[str]
) -> Iterator[tuple[int, int]]:
    """Copy the chunks (or shards) of an array in batches, and skip the keys in `existing`.

    For each batch, yield its number of chunks, and the number of chunks copied from the source.
    """
    node = write.node
    size = math.prod(node.object_shape) * node.dtype.itemsize
    count = max(1, min(_BATCH_OBJECTS, _BATCH_BYTES // max(1, size)))
    indices = np.ndindex(*node.object_counts)
    target = ChunkedArray(node, store)
    while batch := list(itertools.islice(indices, count)):
        wanted = [index for index in batch if node.chunk_keys.key(index) not in existing]
        missing = wanted
        for keys in array.node.key_notations:
            pairs = [(keys.key(index), node.chunk_keys.key(index)) for index in missing]
            copied = store.copy_from(array.store, pairs)
            missing = [index for index, done in zip(missing, copied, strict=True) if not done]
        for index in missing if write.stores_fill_chunks else ():  # such arrays have no shards
            lengths = zip(index, node.chunk_shape, strict=True)
            region = [slice(number * length, (number + 1) * length) for number, length in lengths]
            fill = np.asarray(node.fill_value, node.dtype)
            target.write(region, fill, write_empty_chunks=True)
        yield len(batch), len(wanted) - len(missing)


def rearranged(write: ArrayWrite) -> Iterator[ArrayWrite]:
    """Rechunk a write so that no two dask blocks share a stored chunk (or shard).

    A write that needs no rechunking is yielded unchanged. Any other write of more than 1 GiB is
    yielded in parts, because dask would otherwise keep too many blocks in memory.
    """
    parts = _parts(write, _MAX_REARRANGED_BYTES) if _is_large(write) else [write]
    yield from (part.aligned() for part in parts)


def _is_large(write: ArrayWrite) -> bool:
    return write.data.nbytes > _MAX_REARRANGED_BYTES and write.aligned_chunks() is not None


def _parts(write: ArrayWrite, max_bytes: int) -> Iterator[ArrayWrite]:
    """Split a write into parts of whole chunks (or shards).

    A part is larger than `max_bytes` only if it is a single chunk.
    """
    data, cells = write.data, write.node.object_shape
    part = [min(pair) for pair in zip(cells, data.shape, strict=True)]
    while part != [*data.shape]:
        # Double the length along the axis where parts are shortest relative to the source blocks,
        # because every part that contains a piece of a block reads the whole block.
        growing = [axis for axis, size in enumerate(data.shape) if part[axis] < size]
        axis = max(growing, key=lambda dim: data.chunks[dim][0] / part[dim])
        grown = [*part]
        grown[axis] = min(2 * part[axis], data.shape[axis])
        if math.prod(grown) * data.dtype.itemsize > max_bytes:
            break
        part = grown
    starts = [range(0, size, length) for size, length in zip(data.shape, part, strict=True)]
    for corner in itertools.product(*starts):
        bounds = zip(corner, part, data.shape, strict=True)
        region = tuple([slice(at, min(at + length, size)) for at, length, size in bounds])
        yield replace(write, region=region, data=data[region])


def _missing_blocks(write: ArrayWrite, existing: Collection[str]) -> Iterator[ArrayWrite]:
    data, node = write.data, write.node
    if not existing or not hasattr(data, "dask") or data.ndim != len(node.shape):
        yield write
        return
    ends = [
        [*itertools.accumulate(sizes, initial=piece.start)]
        for sizes, piece in zip(data.chunks, write.region, strict=True)
    ]
    for block in np.ndindex(*data.numblocks):
        region = tuple(slice(ends[axis][at], ends[axis][at + 1]) for axis, at in enumerate(block))
        cells = [
            range(piece.start // cell, -(-piece.stop // cell))
            for piece, cell in zip(region, node.object_shape, strict=True)
        ]
        if not all(node.chunk_keys.key(index) in existing for index in itertools.product(*cells)):
            # dask cannot select the only block of a scalar.
            yield ArrayWrite(node, region, data.blocks[block] if block else data)
