"""Split an array into consecutive parts that are small enough to read one at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

_BYTES = 32 << 20


def slabs(
    shape: Sequence[int],
    chunk_shape: Sequence[int],
    itemsize: int,
    *,
    whole_rows: bool = False,
    limit: int = _BYTES,
) -> Iterator[tuple[slice, ...]]:
    """Yield selections of at most `limit` bytes that together cover an array, in C order.

    If possible, each selection consists of whole chunks, so that every chunk is decoded only once.
    If `whole_rows` is True, the last dimension is never split, so selections may exceed `limit`.
    """
    if not shape:
        yield ()
        return
    size, chunk = shape[0], max(1, chunk_shape[0])
    row_bytes = math.prod(shape[1:]) * itemsize
    step = size if row_bytes == 0 else min(size, limit // row_bytes)
    if len(shape) == 1 and whole_rows:
        step = size
    if step > chunk:
        step -= step % chunk if step < size else 0
    if step > 0:
        for start in range(0, size, step):
            inner = (slice(0, length) for length in shape[1:])
            yield (slice(start, min(size, start + step)), *inner)
        return
    for index in range(size):
        tails = slabs(shape[1:], chunk_shape[1:], itemsize, whole_rows=whole_rows, limit=limit)
        for tail in tails:
            yield (slice(index, index + 1), *tail)
