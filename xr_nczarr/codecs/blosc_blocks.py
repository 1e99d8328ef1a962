"""Decode parts of a Blosc frame by copying the required blocks into a smaller frame.

The format is described in c-blosc's ``README_CHUNK_FORMAT``. A 16-byte header is followed by a
table of the offsets at which the blocks start, and then by the blocks in any order. Only the last
block of the data can be shorter than the others.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import accumulate, starmap

import numpy as np
from numcodecs import blosc

from xr_nczarr.codecs.pipeline import DAMAGED, UINT8, Buffer, Bytes
from xr_nczarr.errors import ChunkError

_HEADER_BYTES = 16
_VERSION = 2
_NOT_COMPRESSED = 2
_MIN_BLOCK = 1 << 10  # with very small blocks, the table of offsets would outweigh the blocks


def read_blosc_spans(
    read: Callable[[int, int], Bytes | None], size: int, spans: Sequence[tuple[int, int]]
) -> list[Bytes] | None:
    """Return the bytes in each span of decoded Blosc data, and decode only the blocks needed.

    Return None if the frame does not exist, or if the whole frame has to be decoded. Also return
    None if decoding the whole frame is faster.

    Parameters
    ----------
    read
        Function that takes a start and a length in bytes, and returns this part of the frame. It
        returns None if the frame does not exist.
    size
        Size of the decoded data in bytes.
    spans
        Start and length of each range in bytes.

    Raises
    ------
    ChunkError
        If two blocks have the same offset, if a block lies outside the frame, or if a block cannot
        be decoded.
    """
    header = read(0, _HEADER_BYTES)
    if header is None:
        return None
    version, flags, stored_size, block, length = struct.unpack("<BxBxIII", header)
    if version != _VERSION or flags & _NOT_COMPRESSED or stored_size != size:
        return None
    if not _MIN_BLOCK <= block < size:
        return None
    numbers = _blocks_of(spans, block, last=(size - 1) // block)
    if 2 * len(numbers) * block > size:
        return None
    start = _HEADER_BYTES + 4 * -(-size // block)
    table = read(_HEADER_BYTES, start - _HEADER_BYTES)
    ranges = [] if table is None else _block_ranges(table, numbers, start, length)
    blocks = [data for data in starmap(read, ranges) if data is not None]
    if len(blocks) < len(numbers):  # the frame was removed while it was being read
        return None
    lengths = [_HEADER_BYTES + 4 * len(blocks), *map(len, blocks)]
    *starts, total = accumulate(lengths)
    decoded = np.empty(sum(min(block, size - number * block) for number in numbers), UINT8)
    sizes = struct.pack(f"<III{len(starts)}i", len(decoded), block, total, *starts)
    try:
        blosc.decompress(b"".join([header[:4], sizes, *blocks]), decoded)
    except RuntimeError as error:
        raise ChunkError(f"Blosc blocks cannot be decoded: {error}", remedy=DAMAGED) from error
    firsts = [numbers.index(at // block) * block + at % block for at, _ in spans]
    return [decoded[first : first + n].data for first, (_, n) in zip(firsts, spans, strict=True)]


def _blocks_of(spans: Sequence[tuple[int, int]], block: int, last: int) -> list[int]:
    """Return the sorted indices of the blocks that must be decoded to read `spans`."""
    numbers: set[int] = set()
    for start, length in spans:
        numbers.update(range(start // block, (start + length - 1) // block + 1))
    # The last block can be short. If it were the only block in a frame, it would be decoded with
    # the wrong block size. Therefore include the block before it.
    return sorted(numbers | {last - 1} if numbers == {last} else numbers)


def _block_ranges(
    table: Buffer, numbers: Sequence[int], first: int, frame_size: int
) -> list[tuple[int, int]]:
    """Return the start and length in bytes of each requested block in the frame."""
    # Offsets are signed. A negative offset is rejected below, because it is outside the frame.
    starts = np.frombuffer(table, "<i4").astype(np.int64)
    ranges = []
    for start in starts[numbers].tolist():
        # A block ends where the next block in the frame begins. This can be any other block,
        # because threads write blocks in any order.
        end = int(starts.min(where=starts > start, initial=frame_size))
        shared = np.count_nonzero(starts == start) > 1
        if shared or start < first or end <= start:
            raise ChunkError("Blosc blocks overlap or lie outside the frame", remedy=DAMAGED)
        ranges.append((start, end - start))
    return ranges
