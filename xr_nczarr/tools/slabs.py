"""Split an array into consecutive parts that are small enough to read one at a time."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence

from xr_nczarr.model import combinations

_BYTES = 32 << 20


def slabs(
    shape: Sequence[int],
    chunk_shape: Sequence[int],
    itemsize: int,
    *,
    whole_rows: bool = False,
    limit: int = _BYTES,
) -> Iterator[tuple[slice, ...]]:
    """Split an array into selections of at most `limit` bytes, and yield them in C order.

    If possible, each selection consists of whole chunks, so that every chunk is decoded only once.
    If `whole_rows` is True, the last dimension is never split, so selections may exceed `limit`.
    """
    lengths = list(shape)
    for axis, (size, chunk) in enumerate(zip(shape, chunk_shape, strict=False)):
        row_bytes = math.prod(shape[axis + 1 :]) * itemsize
        if size * row_bytes <= limit or (whole_rows and axis == len(shape) - 1):
            break
        step = limit // row_bytes
        if step > chunk:
            step -= step % max(1, chunk)
        lengths[axis] = step or 1
        if step:
            break
    starts = [range(0, size or 1, length or 1) for size, length in zip(shape, lengths, strict=True)]
    for corner in combinations(starts):
        ends = map(operator.add, corner, lengths)
        yield tuple(map(slice, corner, map(min, ends, shape)))
