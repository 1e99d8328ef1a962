"""Single blocks of a Blosc frame: a smaller frame is made of those that are wanted.

Source: c-blosc's ``README_CHUNK_FORMAT``. A header of 16 bytes is followed by the start of each
block; blocks lie in any order, and only the last one of the data can be shorter.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numcodecs import blosc
from numpy.typing import NDArray

from xr_nczarr.codecs.pipeline import DAMAGED, UINT8, Buffer
from xr_nczarr.errors import ChunkError

HEADER_BYTES = 16
_VERSION = 2
_NOT_COMPRESSED = 2
_MIN_BLOCK = 1 << 10  # the starts of smaller blocks would be larger than the blocks


class BloscFrame(NamedTuple):
    """The header of a frame: sizes of the data, of a block, and of the frame in bytes."""

    header: bytes
    size: int
    block: int
    length: int

    @property
    def table(self) -> tuple[int, int]:
        """Where the starts of the blocks lie: first byte and number of bytes."""
        return HEADER_BYTES, 4 * -(-self.size // self.block)

    def holding(self, spans: Sequence[tuple[int, int]]) -> list[int]:
        """Return the numbers of the blocks that hold spans of the data (start and length)."""
        numbers: set[int] = set()
        for start, length in spans:
            numbers.update(range(start // self.block, (start + length - 1) // self.block + 1))
        last = (self.size - 1) // self.block
        # A frame of a short block alone would not be cut as this one is.
        return sorted(numbers | {last - 1} if numbers == {last} else numbers)

    def places(self, table: Buffer, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """Return first byte and length of blocks in the frame."""
        starts = np.frombuffer(table, "<i4").astype(np.int64)  # as the length, up to 4 GiB
        places = []
        for start in starts[numbers].tolist():
            # The next block is wherever the next start is: threads write them in any order.
            end = int(starts.min(where=starts > start, initial=self.length))
            shared = np.count_nonzero(starts == start) > 1
            if shared or start < sum(self.table) or end <= start:
                raise ChunkError("found blocks in one place, or outside the frame", remedy=DAMAGED)
            places.append((start, end - start))
        return places

    def decode(self, numbers: Sequence[int], blocks: Sequence[Buffer]) -> NDArray[np.uint8]:
        """Decode blocks, and return their data in one piece."""
        lengths = [HEADER_BYTES + 4 * len(blocks), *map(len, blocks)]
        *starts, total = accumulate(lengths)
        size = sum(min(self.block, self.size - number * self.block) for number in numbers)
        sizes = struct.pack(f"<III{len(starts)}i", size, self.block, total, *starts)
        decoded = np.empty(size, UINT8)
        try:
            blosc.decompress(b"".join([self.header[:4], sizes, *blocks]), decoded)
        except RuntimeError as failure:
            raise ChunkError(f"blocks cannot be decoded: {failure}", remedy=DAMAGED) from failure
        return decoded


def parse_blosc(header: Buffer, size: int) -> BloscFrame | None:
    """Parse a header; None for a frame of another size, or without blocks of its own."""
    version, flags, stored_size, block, length = struct.unpack("<BxBxIII", header)
    if version != _VERSION or flags & _NOT_COMPRESSED or stored_size != size:
        return None
    if not _MIN_BLOCK <= block < size:
        return None
    return BloscFrame(bytes(header), size, block, length)
