"""Tables of references: each table contains the references to the chunks of one large array.

For each reference, a table stores the offset, the length, and a number that identifies the URL.
These values are in NumPy arrays, which take about 15 bytes per reference. If a JSON document has a
regular layout, its references are moved into tables without creating a Python object for each
reference.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xr_nczarr.errors import ReferenceSetError, quote
from xr_nczarr.references.entries import MAX_NUMBER, invalid
from xr_nczarr.storage.store import Address

MIN_ROWS = 64
"""Minimum number of references to the chunks of an array for which a table is built."""

_BLOCK_ROWS = 1 << 16
_INDEX = r"(?:0|[1-9][0-9]{0,17})"
# Up to 64 numbers, because a NumPy array has at most 64 dimensions.
DOTTED = re.compile(rf"(.*/|)({_INDEX}(?:\.{_INDEX}){{0,63}})", re.DOTALL)
# The quantifiers are possessive, because trying to begin the index at each slash would take
# quadratic time.
_NESTED = re.compile(rf"((?:(?:{_INDEX}/)*+[^/]*+/)*+)({_INDEX}(?:/{_INDEX}){{1,63}})")


class KeyPattern(NamedTuple):
    """The pattern of an array's chunk keys: a prefix, followed by a chunk index.

    `separator` separates the numbers in the chunk index, and `rank` is the count of these numbers.
    For example, the key ``t/0.0`` has the pattern ``("t/", ".", 2)``.
    """

    prefix: str
    separator: str
    rank: int


def split_chunk_key(key: str) -> tuple[KeyPattern, str] | None:
    """Split a chunk key into its `KeyPattern` and the text of its chunk index.

    For example, ``"t/0.0"`` is split into ``KeyPattern("t/", ".", 2)`` and ``"0.0"``. In
    ``"t/c/0/0"``, the prefix is ``"t/c/"`` and the separator is a slash. Return None if `key` is
    not a chunk key.
    """
    slash = key.rfind("/")  # in a nested index, a digit precedes the last slash
    match, separator = _NESTED.fullmatch(key) if key[slash - 1 : slash].isdigit() else None, "/"
    if match is None:
        match, separator = DOTTED.fullmatch(key), "."
        if match is None:
            return None
    prefix, index = match.groups()
    return KeyPattern(prefix, separator, index.count(separator) + 1), index


def flat_index(index: Sequence[int], shape: Sequence[int]) -> int | None:
    """Convert a chunk index to a flat index in C order, for a chunk grid of shape `shape`.

    Return None if the chunk is outside the grid.
    """
    flat = 0
    for position, extent in zip(index, shape, strict=True):
        if position >= extent:
            return None
        flat = flat * extent + position
    return flat


@dataclass(frozen=True, slots=True)
class ReferenceTable:
    """A table of the references to the chunks of one array, with one reference per row.

    Attributes
    ----------
    pattern
        The pattern of the array's chunk keys.
    shape
        Shape of the chunk grid: for each dimension, the largest chunk index plus 1.
    flat_indices
        For each row, the flat index of its chunk in the grid; see `flat_index`. The indices are in
        ascending order. None if every chunk of the grid has a row.
    urls
        The distinct URLs.
    url_numbers
        For each row, the position of its URL in `urls`.
    offsets, lengths
        For each row, the offset and length in bytes. Both are -1 for a reference to a whole object.
    """

    pattern: KeyPattern
    shape: tuple[int, ...]
    flat_indices: NDArray[Any] | None
    urls: tuple[str, ...]
    url_numbers: NDArray[Any]
    offsets: NDArray[Any]
    lengths: NDArray[Any]

    @property
    def key_count(self) -> int:
        """Number of keys with a reference."""
        return len(self.url_numbers)

    def find(self, _key: str, index: Sequence[int]) -> Address | None:
        """Return the reference to the chunk at `index`, or None if the table has no such chunk."""
        row = flat = flat_index(index, self.shape)
        if flat is not None and self.flat_indices is not None:
            row = int(self.flat_indices.searchsorted(self.flat_indices.dtype.type(flat)))
            if row == len(self.flat_indices) or self.flat_indices[row] != flat:
                return None
        return None if row is None else self.reference(row)

    def row_numbers(self, indices: Sequence[Sequence[int]]) -> NDArray[Any] | None:
        """Return the row number of each chunk in `indices`, or None if any of them has no row."""
        positions = np.array(indices, np.int64).T
        if (positions >= np.array(self.shape)[:, None]).any():
            return None
        flat_indices: NDArray[Any] = np.ravel_multi_index(tuple(positions), self.shape)
        if self.flat_indices is None:
            return flat_indices
        flat_indices = flat_indices.astype(self.flat_indices.dtype)
        rows = np.minimum(self.flat_indices.searchsorted(flat_indices), len(self.flat_indices) - 1)
        return rows if (self.flat_indices[rows] == flat_indices).all() else None

    def reference(self, row: int) -> Address:
        """Return the reference in row number `row`, counting from 0."""
        url = self.urls[self.url_numbers[row]]
        offset = self.offsets.item(row)
        return Address(url) if offset < 0 else Address(url, offset, self.lengths.item(row))

    def items(self) -> Iterator[tuple[str, Address]]:
        """Yield the chunk key and the reference of each row."""
        count = self.key_count
        flat_indices = np.arange(count) if self.flat_indices is None else self.flat_indices
        prefix, separator, _ = self.pattern
        for start in range(0, count, _BLOCK_ROWS):
            indices = np.unravel_index(flat_indices[start : start + _BLOCK_ROWS], self.shape)
            index_tuples = zip(*[axis.tolist() for axis in indices], strict=True)
            for row, index in enumerate(index_tuples, start):
                yield prefix + separator.join(map(str, index)), self.reference(row)


class TableBuilder:
    """A builder that collects references in any order and then builds a table for each array."""

    def __init__(self) -> None:
        self._numbers: dict[bytes | str, int] = {}
        self._blocks: dict[KeyPattern, list[tuple[NDArray[Any], ...]]] = {}

    @property
    def patterns(self) -> Collection[KeyPattern]:
        """The patterns of all chunk keys for which references were added."""
        return self._blocks.keys()

    def url_numbers(self, urls: Sequence[bytes | str]) -> NDArray[np.int32]:
        """Assign a number to each URL, and return the numbers to pass to `add`.

        Equal URLs get equal numbers. A URL is either a string, or the bytes of a JSON string whose
        escapes have not been decoded yet.
        """
        numbers = self._numbers
        for url in set(urls):
            numbers.setdefault(url, len(numbers))
        return np.fromiter(map(numbers.__getitem__, urls), dtype=np.int32, count=len(urls))

    def add(
        self,
        pattern: KeyPattern,
        indices: NDArray[np.int64],
        url_numbers: NDArray[np.int32],
        offsets: NDArray[np.int64],
        lengths: NDArray[np.int64],
    ) -> None:
        """Add references to some chunks of one array.

        Parameters
        ----------
        pattern
            The pattern of the array's chunk keys.
        indices
            Chunk indices, in an array of shape (references, dimensions).
        url_numbers
            For each reference, the number that the `url_numbers` method returned for its URL.
        offsets, lengths
            For each reference, the offset and length in bytes. Both are -1 for a reference to a
            whole object.
        """
        parts = indices, url_numbers, offsets, lengths
        # Use the smallest integer type that can represent all values. No value is below -1.
        block = tuple(part.astype(np.min_scalar_type(min(-1, ~part.max()))) for part in parts)
        self._blocks.setdefault(pattern, []).append(block)

    def tables(self, render_url: Callable[[str], str]) -> dict[KeyPattern, ReferenceTable]:
        """Build a table for each array from the references that were added.

        Parameters
        ----------
        render_url
            Function that renders the templates in a URL. It is called once for each distinct URL
            that was added as bytes. URLs that were added as strings have already been rendered.

        Raises
        ------
        ReferenceSetError
            If a chunk is declared twice, if an index is too large, if a URL is empty, or if the
            bytes of a URL are not a valid JSON string.
        """
        texts = [url for url in self._numbers if isinstance(url, bytes)]
        decoded = dict(zip(texts, map(render_url, _decode_urls(texts)), strict=True))
        urls = [url if isinstance(url, str) else decoded[url] for url in self._numbers]
        return {pattern: _table(pattern, blocks, urls) for pattern, blocks in self._blocks.items()}


def _decode_urls(texts: Sequence[bytes]) -> list[str]:
    try:
        urls: list[str] = json.loads(b'["%b"]' % b'","'.join(texts)) if texts else []
    except ValueError as error:
        raise ReferenceSetError(f"a URL is not a valid JSON string ({quote(error)})") from error
    if "" in urls:
        raise invalid("the URL", "", "a non-empty string")
    return urls


def _table(
    pattern: KeyPattern, blocks: list[tuple[NDArray[Any], ...]], urls: Sequence[str]
) -> ReferenceTable:
    # Release the blocks as soon as possible, because they take more memory than the table.
    indices, url_numbers, *ranges = (list(parts) for parts in zip(*blocks, strict=True))
    blocks.clear()
    last = np.max([block.max(axis=0) for block in indices], axis=0)
    shape = tuple(int(extent) + 1 for extent in last)
    size, rows = math.prod(shape), sum(map(len, indices))
    if size > MAX_NUMBER:
        problem = f"the chunk keys span a grid of shape {shape}, which is too large"
        raise ReferenceSetError(problem, key=pattern.prefix)
    flat_indices = np.empty(rows, np.min_scalar_type(-size))
    filled = 0
    for block in indices:
        flat_indices[filled : filled + len(block)] = np.ravel_multi_index(tuple(block.T), shape)
        filled += len(block)
    indices.clear()
    order: Any = slice(None)
    if not (flat_indices[1:] > flat_indices[:-1]).all():
        order = np.argsort(flat_indices, kind="stable")
        flat_indices = flat_indices[order]
        repeated = np.flatnonzero(flat_indices[1:] == flat_indices[:-1])
        if len(repeated):
            index = np.unravel_index(int(flat_indices[repeated[0]]), shape)
            text = pattern.separator.join(map(str, index))
            raise ReferenceSetError("the key is declared twice", key=pattern.prefix + text)
    # Keep only the URLs to which this array refers, and number them from 0.
    first = min(int(block.min()) for block in url_numbers)
    used = np.zeros(1 + max(int(block.max()) for block in url_numbers) - first, np.bool_)
    for block in url_numbers:
        used[block - first] = True
    renumbered = (used.cumsum() - 1).astype(np.min_scalar_type(len(used)))
    url_numbers = [renumbered[block - first] for block in url_numbers]
    return ReferenceTable(
        pattern,
        shape,
        None if rows == size else flat_indices,
        tuple(urls[first + number] for number in np.flatnonzero(used).tolist()),
        *(np.concatenate(parts)[order] for parts in (url_numbers, *ranges)),
    )
