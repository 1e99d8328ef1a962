"""Decode parts of a Blosc frame by copying the required blocks into a smaller frame.

The format is described in c-blosc's ``README_CHUNK_FORMAT``. A 16-byte header is followed by a
table of the offsets at which the blocks start, and then by the blocks in any order. Only the last
block of the data can be shorter than the others.
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
_MIN_BLOCK = 1 << 10  # with very small blocks, the table of offsets would outweigh the blocks


class BloscFrame(NamedTuple):
    """The header of a Blosc frame, and the sizes that it declares.

    Attributes
    ----------
    header
        The bytes of the header.
    size, block, length
        Sizes in bytes of the decoded data, of one decoded block, and of the frame, respectively.
    """

    header: bytes
    size: int
    block: int
    length: int

    @property
    def table(self) -> tuple[int, int]:
        """The byte range (start, length) of the frame's table of block offsets."""
        return HEADER_BYTES, 4 * -(-self.size // self.block)

    def blocks_of(self, spans: Sequence[tuple[int, int]]) -> list[int]:
        """Return the sorted indices of the blocks that contain the given ranges of decoded data.

        `spans` contains the (start, length) pairs of the ranges, in bytes. If only the last block
        is needed, the block before it is included, because a frame cannot consist of only a short
        block.
        """
        numbers: set[int] = set()
        for start, length in spans:
            numbers.update(range(start // self.block, (start + length - 1) // self.block + 1))
        last = (self.size - 1) // self.block
        # A short last block cannot be alone in a frame, because it would then be decoded with
        # another block size.
        return sorted(numbers | {last - 1} if numbers == {last} else numbers)

    def block_ranges(self, table: Buffer, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """Return the byte range (start, length) of each requested block in the frame.

        `table` contains the raw table of block offsets. `numbers` contains the indices of the
        requested blocks.

        Raises
        ------
        ChunkError
            If two blocks have the same offset, or if a block lies outside the frame.
        """
        # Offsets are signed. A negative offset is rejected below, because it is outside the frame.
        starts = np.frombuffer(table, "<i4").astype(np.int64)
        ranges = []
        for start in starts[numbers].tolist():
            # A block ends at the next higher offset, which may be that of any other block, because
            # threads write blocks in any order.
            end = int(starts.min(where=starts > start, initial=self.length))
            shared = np.count_nonzero(starts == start) > 1
            if shared or start < sum(self.table) or end <= start:
                raise ChunkError("Blosc blocks overlap or lie outside the frame", remedy=DAMAGED)
            ranges.append((start, end - start))
        return ranges

    def decode(self, numbers: Sequence[int], blocks: Sequence[Buffer]) -> NDArray[np.uint8]:
        """Decode some blocks of the frame, and return their concatenated data.

        `numbers` contains the indices of the blocks. `blocks` contains their stored bytes.
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
    """Parse the header of a Blosc frame that should decode to `size` bytes.

    Return None if the frame cannot be decoded block by block, because its data has a different
    size, is not compressed, or is not split into blocks of at least 1 KiB.
    """
    version, flags, stored_size, block, length = struct.unpack("<BxBxIII", header)
    if version != _VERSION or flags & _NOT_COMPRESSED or stored_size != size:
        return None
    if not _MIN_BLOCK <= block < size:
        return None
    return BloscFrame(bytes(header), size, block, length)
