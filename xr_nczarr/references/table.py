"""Explicit references: a dictionary for the few, columns for the chunks of large arrays.

A column holds interned URLs, offsets and lengths by chunk index, some 15 bytes a reference. A JSON
document that lists them regularly is scanned into columns without making an object for each.
"""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from xr_nczarr.errors import ReferenceSetError, quote
from xr_nczarr.references.entries import (
    LARGEST_NUMBER,
    Reference,
    Target,
    decode_inline,
    is_metadata,
)

FEWEST_ROWS = 64
"""References of one array that are worth a column."""

_INDEX = r"(?:0|[1-9][0-9]{0,17})"
_DOTTED = re.compile(rf"(.*/|)({_INDEX}(?:\.{_INDEX})*)", re.DOTALL)
_NESTED = re.compile(rf"(|.*?/)({_INDEX}(?:/{_INDEX})+)", re.DOTALL)

Entry = str | Target
"""Inline text as it is written in the set, or a target."""


class Family(NamedTuple):
    """What the chunk keys of one array have in common."""

    prefix: str
    separator: str
    rank: int


def split_chunk_key(key: str) -> tuple[Family, str] | None:
    """Split a key like ``"t/0.0"`` or ``"t/c/0/0"`` into its family and its index as text."""
    found, separator = _NESTED.fullmatch(key), "/"
    if found is None:
        found, separator = _DOTTED.fullmatch(key), "."
        if found is None:
            return None
    prefix, index = found.groups()
    return Family(prefix, separator, index.count(separator) + 1), index


def flat_index(index: Sequence[int], shape: Sequence[int]) -> int | None:
    """Give the place of an index in C order, None outside the shape."""
    number = 0
    for position, extent in zip(index, shape, strict=True):
        if position >= extent:
            return None
        number = number * extent + position
    return number


@dataclass(frozen=True, slots=True)
class Column:
    """The references of one array.

    Attributes
    ----------
    shape
        Extent of the chunk indices.
    codes
        Flat index of each row, ascending; None when the rows are the whole grid in order.
    urls
        The distinct URLs that `url_numbers` count in.
    offsets, lengths
        In bytes by row; -1 for a whole object.
    """

    family: Family
    shape: tuple[int, ...]
    codes: NDArray[np.int64] | None
    urls: tuple[str, ...]
    url_numbers: NDArray[Any]
    offsets: NDArray[Any]
    lengths: NDArray[Any]

    def __len__(self) -> int:
        return len(self.url_numbers)

    def find(self, index: Sequence[int]) -> Target | None:
        """Give the reference of a chunk index."""
        row = code = flat_index(index, self.shape)
        if code is not None and self.codes is not None:
            row = int(self.codes.searchsorted(code))
            if row == len(self.codes) or self.codes[row] != code:
                return None
        return None if row is None else self.row(row)

    def row(self, row: int) -> Target:
        """Give the reference in a row."""
        url = self.urls[self.url_numbers[row]]
        offset = self.offsets.item(row)
        return Target(url) if offset < 0 else Target(url, offset, self.lengths.item(row))

    def each_key(self) -> Iterator[str]:
        """Yield the keys in the order of the rows."""
        codes = np.arange(len(self)) if self.codes is None else self.codes
        prefix, separator, _ = self.family
        for start in range(0, len(codes), 1 << 16):
            indices = np.unravel_index(codes[start : start + (1 << 16)], self.shape)
            for index in zip(*[axis.tolist() for axis in indices], strict=True):
                yield prefix + separator.join(map(str, index))


@dataclass(frozen=True)
class Table:
    """Explicit references.

    Attributes
    ----------
    entries
        By key, in the order of the document.
    columns
        The references of large arrays.
    """

    entries: Mapping[str, Entry]
    columns: Mapping[Family, Column] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Number of keys."""
        return len(self.entries) + sum(map(len, self.columns.values()))

    def find(self, key: str) -> Reference | None:
        """Give what `key` refers to, None when it is not in the table."""
        entry = self.entries.get(key)
        if entry is not None:
            return decode_inline(entry, key) if isinstance(entry, str) else entry
        return self.find_chunk(key)

    def find_chunk(self, key: str) -> Target | None:
        """Give what `key` refers to, None when it is not in a column."""
        split = split_chunk_key(key) if self.columns else None
        column = self.columns.get(split[0]) if split else None
        if split is None or column is None:
            return None
        return column.find([int(part) for part in split[1].split(split[0].separator)])

    def items(self) -> Iterator[tuple[str, Reference]]:
        """Yield every key with its reference."""
        for key, entry in self.entries.items():
            yield key, decode_inline(entry, key) if isinstance(entry, str) else entry
        for column in self.columns.values():
            for row, key in enumerate(column.each_key()):
                yield key, column.row(row)

    def names(self, prefix: str) -> tuple[list[str], list[str]]:
        """Give the names of objects and of prefixes directly below `prefix`, without columns."""
        found: dict[bool, set[str]] = {False: set(), True: set()}
        keys = self._sorted_keys
        position = bisect_left(keys, prefix)
        while position < len(keys) and keys[position].startswith(prefix):
            name, slash, _ = keys[position][len(prefix) :].partition("/")
            found[bool(slash)].add(name)
            # "0" follows "/": the search skips everything below the name.
            position = bisect_left(keys, f"{prefix}{name}0") if slash else position + 1
        return sorted(found[False]), sorted(found[True])

    def urls(self, most: int) -> set[str]:
        """Give URLs that are referred to, at most `most` of each column and of all others."""
        entries = (entry.url for entry in self.entries.values() if isinstance(entry, Target))
        columns = (column.urls[:most] for column in self.columns.values())
        return {*islice(entries, most), *chain.from_iterable(columns)}

    def subset(self, prefix: str) -> Table:
        """Give the table of the chunks whose keys begin with `prefix`."""
        keys = self._sorted_keys
        end = bisect_left(keys, prefix[:-1] + "0") if prefix else len(keys)
        below = keys[bisect_left(keys, prefix) : end]
        # An array that is named like a number may lie in the column of what it is in.
        columns = {
            family: column
            for family, column in self.columns.items()
            if family.prefix.startswith(prefix) or prefix.startswith(family.prefix)
        }
        return Table({key: self.entries[key] for key in below if not is_metadata(key)}, columns)

    @cached_property
    def _sorted_keys(self) -> list[str]:
        return sorted(self.entries)

    def __reduce__(self) -> tuple[Any, ...]:
        return Table, (self.entries, self.columns)


class TableBuilder:
    """Gathers rows, in any order, and makes the columns."""

    def __init__(self) -> None:
        self._numbers: dict[bytes | str, int] = {}
        self._blocks: dict[Family, list[tuple[NDArray[Any], ...]]] = {}

    @property
    def families(self) -> Collection[Family]:
        """The arrays that have rows."""
        return self._blocks.keys()

    def url_numbers(self, urls: Sequence[bytes | str]) -> NDArray[np.int32]:
        """Give a number for each URL; bytes are as they stand within a JSON string."""
        numbers = self._numbers
        for url in set(urls):
            numbers.setdefault(url, len(numbers))
        return np.fromiter(map(numbers.__getitem__, urls), dtype=np.int32, count=len(urls))

    def add(
        self,
        family: Family,
        indices: NDArray[np.int64],
        url_numbers: NDArray[np.int32],
        offsets: NDArray[np.int64],
        lengths: NDArray[np.int64],
    ) -> None:
        """Add rows: a chunk index, a URL's number, offset and length each (-1: whole object)."""
        block = (_smallest(indices), url_numbers, _smallest(offsets), _smallest(lengths))
        self._blocks.setdefault(family, []).append(block)

    def columns(self, render_url: Callable[[str], str]) -> dict[Family, Column]:
        """Give the columns of all rows.

        Parameters
        ----------
        render_url
            From a URL in the document to the URL that is meant; called once for each.

        Raises
        ------
        ReferenceSetError
            When a chunk is declared twice, or an index is too large.
        """
        urls = [
            url if isinstance(url, str) else render_url(_decode_url(url)) for url in self._numbers
        ]
        return {family: _column(family, blocks, urls) for family, blocks in self._blocks.items()}


def _decode_url(text: bytes) -> str:
    try:
        url = str(json.loads(b'"%b"' % text))
    except ValueError as error:
        raise ReferenceSetError(f"the URL {quote(text)} is not JSON ({error})") from error
    if not url:
        raise ReferenceSetError("found '' as the URL, expected text that is not empty")
    return url


def _column(family: Family, blocks: list[tuple[NDArray[Any], ...]], urls: Sequence[str]) -> Column:
    last = np.max([indices.max(axis=0) for indices, *_ in blocks], axis=0)
    shape = tuple(int(extent) + 1 for extent in last)
    if math.prod(shape) > LARGEST_NUMBER:
        raise ReferenceSetError(f"the chunk indices reach {shape}", key=family.prefix)
    # Block by block: the indices of all rows would take more than everything else.
    codes: NDArray[np.int64] | None = np.concatenate(
        [np.ravel_multi_index(tuple(indices.T), shape) for indices, *_ in blocks]
    )
    url_numbers, offsets, lengths = (
        np.concatenate([block[part] for block in blocks]) for part in (1, 2, 3)
    )
    blocks.clear()
    if codes is not None and not (np.diff(codes) > 0).all():
        order = np.argsort(codes, kind="stable")
        codes, url_numbers = codes[order], url_numbers[order]
        offsets, lengths = offsets[order], lengths[order]
        repeated = np.flatnonzero(np.diff(codes) == 0)
        if len(repeated):
            index = np.unravel_index(int(codes[repeated[0]]), shape)
            text = family.separator.join(map(str, index))
            raise ReferenceSetError("the key is declared twice", key=family.prefix + text)
    used = np.flatnonzero(np.bincount(url_numbers))
    renumbered = np.zeros(int(used[-1]) + 1, dtype=np.min_scalar_type(len(used)))
    renumbered[used] = np.arange(len(used))
    return Column(
        family=family,
        shape=shape,
        codes=None if len(url_numbers) == math.prod(shape) else codes,
        urls=tuple(urls[number] for number in used.tolist()),
        url_numbers=renumbered[url_numbers],
        offsets=offsets,
        lengths=lengths,
    )


def _smallest(numbers: NDArray[np.int64]) -> NDArray[Any]:
    """Give the numbers in 32 bits where they fit."""
    return numbers if numbers.max(initial=0) >= 1 << 31 else numbers.astype(np.int32)
