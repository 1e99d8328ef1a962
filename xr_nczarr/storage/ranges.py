"""Check, split and merge byte ranges."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from xr_nczarr.errors import LimitError, StorageError

Bytes = bytes | bytearray | memoryview
Read = Callable[[int, int], Bytes | None]


class ByteRange(NamedTuple):
    """A range of `length` bytes in the object at `key`, or the whole object.

    `start` is the offset of the first byte. A negative start counts from the end of the object. A
    negative length stands for the whole object.
    """

    key: str
    start: int = 0
    length: int = -1

    @property
    def is_whole(self) -> bool:
        """Whether the range covers the whole object."""
        return self.length < 0

    @property
    def description(self) -> str | None:
        """The byte range in words, for use in error messages, or None for a whole object."""
        if self.is_whole:
            return None
        if self.start < 0:
            return f"the last {-self.start} bytes"
        return f"{self.length} bytes at offset {self.start}"


class Versioned(NamedTuple):
    """Some or all of the bytes of an object, together with the version of the object.

    `version` is a string that changes whenever the object changes. None means that the version is
    unknown.
    """

    data: Bytes
    version: str | None = None


class MergedRange(NamedTuple):
    """A byte range that covers one or more of the ranges passed to `merge_ranges`.

    `parts` contains an (index, offset, length) tuple for each covered range. The index is the
    position of the covered range in the list passed to `merge_ranges`. The offset counts from the
    start of the merged range.
    """

    range: ByteRange
    parts: list[tuple[int, int, int]]


def check_range(item: ByteRange, store: str) -> None:
    """Raise StorageError if a range is invalid for objects of any size.

    A range is invalid if its length is negative. A range with a negative start is also invalid if
    it extends beyond the end of the object. For example, a start of -4 with a length of 8 is
    invalid.
    """
    if item.length < 0 or item.start < 0 < item.start + item.length:
        raise StorageError(
            f"the byte range (offset {item.start}, length {item.length}) is invalid",
            remedy="The object's shard index or zip directory is damaged; rewrite the object",
            store=store,
            key=item.key,
        )


def too_large(
    problem: str, max_bytes: int, store: str | None = None, key: str | None = None
) -> LimitError:
    """Return the error for an object larger than `max_bytes` bytes.

    The message begins with `problem`, which states the size of the object.
    """
    remedy = (
        "If you trust the object, pass limits=Limits(max_chunk_bytes=…) for a chunk, or "
        "max_metadata_bytes or max_consolidated_bytes for a metadata document"
    )
    problem = f"{problem}, which exceeds the limit of {max_bytes:,} bytes"
    error = LimitError(problem, remedy=remedy, store=store, key=key)
    error.max_bytes = max_bytes
    return error


def truncation_error(expected: int, actual: int, store: str, key: str) -> StorageError:
    """Return the error for a file that became shorter while it was being read."""
    return StorageError(
        f"the file system returned {actual} bytes; expected {expected}",
        remedy="The file was truncated while it was being read; read it again",
        store=store,
        key=key,
    )


def first_byte(item: ByteRange, size: int, store: str) -> int:
    """Return the offset at which a range starts in an object of `size` bytes.

    Raises
    ------
    StorageError
        If the range is out of bounds.
    """
    first = item.start + size if item.start < 0 else item.start
    if first < 0 or item.length < 0 or first + item.length > size:
        raise StorageError(
            f"the byte range at offset {item.start} with length {item.length} is out of bounds for "
            f"an object of {size} bytes",
            remedy="The object may have changed since the range was recorded. Rewrite the object, "
            "or recreate the reference set that refers to it",
            store=store,
            key=item.key,
        )
    return first


def to_end(item: ByteRange) -> ByteRange:
    """Extend a range that has a negative start so that it stops at the end of its object.

    HTTP cannot express a range that counts from the end and stops before the end. Ranges without a
    negative start are returned unchanged.
    """
    return item._replace(length=-item.start) if item.start < 0 else item


def resolve_suffix(item: ByteRange, size: int | None) -> ByteRange:
    """Convert a range with a negative start to a range that counts from the start of the object.

    `size` is the size of the object in bytes, or None if the object is missing. If the object is
    empty or missing, the result is the range of the whole object.
    """
    if not size:
        return ByteRange(item.key)
    first = max(0, size + item.start)
    return ByteRange(item.key, first, size - first)


def cut_ranges(
    ranges: Sequence[ByteRange], objects: Iterable[Bytes | None], store: str
) -> Iterator[Bytes | None]:
    """Yield the bytes of each range, or None for a range of a missing object.

    `objects` contains the whole object for each range, or None if the object is missing.

    Raises
    ------
    StorageError
        If a range is out of bounds.
    """
    for item, data in zip(ranges, objects, strict=True):
        first = 0 if data is None else first_byte(item, len(data), store)
        yield None if data is None else memoryview(data)[first : first + item.length]


def merge_ranges(
    ranges: Sequence[ByteRange], *, max_gap: int = 64 << 10, max_length: int = 16 << 20
) -> list[MergedRange]:
    """Merge ranges of the same object that overlap or are at most `max_gap` bytes apart.

    Parameters
    ----------
    max_gap
        Maximum number of unneeded bytes between two ranges to merge.
    max_length
        Maximum number of bytes in a merged range.

    Returns
    -------
    Merged ranges, ordered by key and start. Ranges with a negative start are not merged.
    """
    # Fetching `max_gap` extra bytes is cheaper than making another request. Without `max_length`,
    # too few requests would run concurrently.
    merged: list[MergedRange] = []
    for position in sorted(range(len(ranges)), key=lambda index: ranges[index][:2]):
        key, start, length = ranges[position]
        if merged and start >= 0:
            last, parts = merged[-1]
            end = max(last.start + last.length, start + length)
            is_near = start <= last.start + last.length + max_gap
            if last.key == key and last.start >= 0 and is_near and end - last.start <= max_length:
                parts.append((position, start - last.start, length))
                merged[-1] = MergedRange(ByteRange(key, last.start, end - last.start), parts)
                continue
        merged.append(MergedRange(ranges[position], [(position, 0, length)]))
    return merged


def split_into_batches(
    ranges: Sequence[ByteRange], *, max_count: int = 1024, max_bytes: int = 64 << 20
) -> Iterator[Sequence[ByteRange]]:
    """Split `ranges` into consecutive batches that are small enough to be kept in memory.

    Each batch contains at most `max_count` ranges with a total of at most `max_bytes` bytes, but
    always at least one range. Whole objects do not count toward `max_bytes`, because their size is
    unknown.
    """
    first, size = 0, 0
    for position, item in enumerate(ranges):
        length = max(0, item.length)
        if position > first and (position - first >= max_count or size + length > max_bytes):
            yield ranges[first:position]
            first, size = position, 0
        size += length
    if first < len(ranges):
        yield ranges[first:]
