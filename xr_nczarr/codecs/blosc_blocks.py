"""Decode parts of a Blosc frame, by copying the required blocks into a smaller frame.

Source: c-blosc's ``README_CHUNK_FORMAT``. The header of 16 bytes is followed by a table of block
starts. The blocks are stored in any order, and only the last block of the data can be shorter.
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
    """The sizes in the header of a Blosc frame, and the positions that follow from them.

    Attributes
    ----------
    size, block, length
        Sizes in bytes of the decoded data, of one decoded block, and of the frame.
    """

    header: bytes
    size: int
    block: int
    length: int

    @property
    def table(self) -> tuple[int, int]:
        """The byte range (start and length) of the table that contains the start of each block."""
        return HEADER_BYTES, 4 * -(-self.size // self.block)

    def blocks_of(self, spans: Sequence[tuple[int, int]]) -> list[int]:
        """Return the sorted numbers of the blocks that contain byte ranges of the decoded data.

        `spans` contains the start and the length of each range.
        """
        numbers: set[int] = set()
        for start, length in spans:
            numbers.update(range(start // self.block, (start + length - 1) // self.block + 1))
        last = (self.size - 1) // self.block
        # A short last block would be decoded with another block size if it were alone in a frame.
        return sorted(numbers | {last - 1} if numbers == {last} else numbers)

    def block_ranges(self, table: Buffer, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """Return the byte range (start, length) in the frame of each of the requested blocks.

        Raises
        ------
        ChunkError
            If blocks share a start, or lie outside the frame.
        """
        # Starts are unsigned, like the length: up to 4 GiB.
        starts = np.frombuffer(table, "<i4").astype(np.int64)
        ranges = []
        for start in starts[numbers].tolist():
            # A block ends at the next higher start, since threads write blocks in any order.
            end = int(starts.min(where=starts > start, initial=self.length))
            shared = np.count_nonzero(starts == start) > 1
            if shared or start < sum(self.table) or end <= start:
                raise ChunkError("Blosc blocks overlap or lie outside the frame", remedy=DAMAGED)
            ranges.append((start, end - start))
        return ranges

    def decode(self, numbers: Sequence[int], blocks: Sequence[Buffer]) -> NDArray[np.uint8]:
        """Decode some blocks of the frame, and return their concatenated data.

        `blocks` contains the stored bytes of the blocks in `numbers`.
        """
        lengths = [HEADER_BYTES + 4 * len(blocks), *map(len, blocks)]
        *starts, total = accumulate(lengths)
        size = sum(min(self.block, self.size - number * self.block) for number in numbers)
        sizes = struct.pack(f"<III{len(starts)}i", size, self.block, total, *starts)
        decoded = np.empty(size, UINT8)
        try:
            blosc.decompress(b"".join([self.header[:4], sizes, *blocks]), decoded)
        except RuntimeError as error:
            raise ChunkError(f"Blosc blocks cannot be decoded: {error}", remedy=DAMAGED) from error
        return decoded


def parse_blosc(header: Buffer, size: int) -> BloscFrame | None:
    """Parse the header of a Blosc frame, or return None if it cannot be decoded block by block.

    The frame must contain `size` bytes of data, which are compressed and split into blocks.
    """
    version, flags, stored_size, block, length = struct.unpack("<BxBxIII", header)
    if version != _VERSION or flags & _NOT_COMPRESSED or stored_size != size:
        return None
    if not _MIN_BLOCK <= block < size:
        return None
    return BloscFrame(bytes(header), size, block, length)
