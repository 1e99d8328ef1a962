"""Scan regular members of a reference document into columns, without a Python object for each.

A regular member looks like ``"array/1.2": ["url", 3, 4],``. Vectorized arithmetic on the bytes of a
text block splits all members in the block at once. Every byte is checked: it must be the expected
punctuation, a digit, or part of a URL or an array's prefix. URLs and prefixes are decoded as JSON.
"""

from __future__ import annotations

import json
import re

import numpy as np
from numpy.typing import NDArray

from xr_nczarr.references.columns import MIN_ROWS, Family, TableBuilder, split_chunk_key

_MIN_DOCUMENT_BYTES = 1 << 16
_MIN_BLOCK, _MAX_BLOCK = 1 << 14, 1 << 19
_MIN_FAMILY_ROWS = 6  # average in a block
_MAX_DIMENSIONS = 32
_MAX_COMPARED_BYTES = 1 << 10
_MARK = "\0stretch "
# Keys with a comma or colon do not match. Two strings of a JSON document are always separated by
# one of these characters, so the first quotation mark of a match opens a string.
_MEMBER = re.compile(rb'"(?:[^"\\,:]|\\/)*[0-9]": ?\["(?:[^"\\]|\\/)+", ?[0-9]+, ?[0-9]+\], ?(?=")')
_ESCAPE = re.compile(rb"\\[^/]")
_SPELLED = re.compile(rb'": ?\["')
_SPACES, _STRUCTURE = b" \t\n\r", b",:[]{}"
_QUOTE, _ZERO, _BACKSLASH = b'"0\\'

Numbers = NDArray[np.int64]
Words = NDArray[np.uint64]
Tests = NDArray[np.bool_]

_ZEROS, _SIXES, _UPPER, _LOWER, _HIGHEST, _ONES = (
    np.uint64(byte * 0x0101010101010101) for byte in (0x30, 0x06, 0xF0, 0x0F, 0x80, 0x01)
)
_ONE, _BYTE = np.uint64(1), np.uint64(0xFF)
# Combine digits, pairs, then groups of four: the lower half of the word is more significant.
_PAIRS = tuple(
    (np.uint64(bits), np.uint64(mask), np.uint64(10 ** (bits // 8)))
    for bits, mask in ((8, 0x00FF00FF00FF00FF), (16, 0x0000FFFF0000FFFF), (32, 0xFFFFFFFF))
)


def scan_document(document: bytes, builder: TableBuilder) -> tuple[bytes, int] | None:
    """Move runs of regular members from a JSON document into `builder`.

    Return the document with a marker in place of each run, and the number of markers. Return None
    if too little of the document is regular; `builder` must then not be used, because it may
    already contain some references.
    """
    if len(document) >= _MIN_DOCUMENT_BYTES and not _SPELLED.search(document):
        document = _without_spaces(document)
    pieces: list[bytes | memoryview] = []
    view = memoryview(document)
    marks = copied = position = moved = read = 0
    while len(document) >= _MIN_DOCUMENT_BYTES and (match := _MEMBER.search(document, position)):
        start = end = match.start()
        size, going_on = _MIN_BLOCK, True
        while going_on:
            block = _Block(view[end : end + size])
            rows, length, going_on = block.move(builder)
            position = max(end + length, match.end())
            end += length if rows else 0
            read += size
            size = min(2 * size, _MAX_BLOCK)
        moved += end - start
        if read > 4 * moved + 2 * _MAX_BLOCK:
            return None
        if end > start:
            mark = json.dumps(f"{_MARK}{marks}").encode() + b":0,"
            pieces += [view[copied:start], mark]
            copied = end
            marks += 1
    return b"".join([*pieces, view[copied:]]), marks


def take_marks(members: dict[str, object]) -> int:
    """Remove the markers that `scan_document` put into `members`, and return their number."""
    marks = [name for name in members if name.startswith(_MARK)]
    for name in marks:
        del members[name]
    return len(marks)


def _without_spaces(document: bytes) -> bytes:
    """Remove the whitespace between the tokens of a JSON document.

    A document in which only whitespace separates two values is invalid, and is returned unchanged.
    """
    document = document.strip(_SPACES)
    text = np.frombuffer(document, np.uint8)
    quotes, slashes = np.flatnonzero(text == _QUOTE), np.flatnonzero(text == _BACKSLASH)
    if b"\0" in document or not len(quotes):  # never occurs in UTF-8
        return document
    if len(slashes):
        # A quotation mark after an odd number of backslashes does not end a string.
        runs = slashes[np.diff(slashes, prepend=-2) > 1]
        escaped = text[quotes - 1] == _BACKSLASH
        marks = quotes[escaped]
        escaped[escaped] = (marks - runs[np.searchsorted(runs, marks) - 1]) % 2 == 1
        quotes = quotes[~escaped]
    inside = np.zeros(len(text), np.uint8)
    inside[quotes] = 1
    np.cumsum(inside, dtype=np.uint8, out=inside)
    spaces = _among(_SPACES)[text] & ~(inside & 1).view(np.bool_)
    before = np.flatnonzero(spaces[1:] & ~spaces[:-1])
    after = np.flatnonzero(spaces[:-1] & ~spaces[1:]) + 1
    structure = _among(_STRUCTURE)
    if not (structure[text[before]] | structure[text[after]]).all():
        return document
    return text[~spaces].tobytes()


def _among(characters: bytes) -> Tests:
    """Return a mask of the 256 byte values that is true for `characters`."""
    return np.isin(np.arange(256), list(characters))


class _Block:
    """A part of the document that begins with a member, as text and as NumPy arrays."""

    def __init__(self, text: bytes | memoryview) -> None:
        # Padding, because reads may pass the end by a few bytes.
        self.text = b"".join((text, bytes(2 * _MAX_COMPARED_BYTES)))
        escape = _ESCAPE.search(self.text) if b"\\" in self.text else None
        self.bytes = np.frombuffer(self.text, np.uint8)
        self.words: Words = np.ndarray(len(self.text) - 7, "<u8", self.text, strides=(1,))
        self.quotes = np.flatnonzero(self.bytes[: escape.start() if escape else None] == _QUOTE)

    def move(self, builder: TableBuilder) -> tuple[int, int, bool]:
        """Move the regular members at the beginning into `builder`, unless there are too few.

        Return the number of members moved, the position where the regular members end, and whether
        more regular members may follow the block.
        """
        count = (len(self.quotes) - 1) // 4
        if count < MIN_ROWS:
            return 0, 0, False
        # The four quotation marks of each row, and the first of the next one.
        quotes = self.quotes[: 4 * count].reshape(-1, 4).T
        keys, colons, urls, commas = np.ascontiguousarray(quotes)
        following = self.quotes[4 : 4 * count + 1 : 4]
        bracket = b'": ["' if self.text.startswith(b'": ', colons[0]) else b'":["'
        comma = b", " if self.text.startswith(b'", ', commas[0]) else b","
        offsets, ends, regular = self._parse_numbers(commas + 1 + len(comma))
        regular &= self._occurs(colons, bracket) & self._occurs(commas, b'"' + comma)
        regular &= (urls - colons == len(bracket) - 1) & self._occurs(ends, comma)
        lengths, ends, are_numbers = self._parse_numbers(ends + len(comma))
        regular &= are_numbers & self._occurs(ends, b"]" + comma)
        regular &= following - ends == 1 + len(comma)
        separator, starts = self._find_indices(keys, colons)
        indices, ranks, are_indices = self._parse_indices(starts, colons, separator)
        regular &= are_indices
        families, which = self._group_keys(keys + 1, starts, ranks, separator)
        regular &= np.array([family is not None for family in families])[which]

        rows = count if regular.all() else int(regular.argmin())
        length = int(following[rows - 1]) if rows else 0
        if rows < max(MIN_ROWS, _MIN_FAMILY_ROWS * len(families)):
            return 0, length, False
        heads = self._changed_rows(urls[:rows] + 1, commas[:rows])
        texts = self._texts(urls[heads] + 1, commas[heads])
        url_numbers = np.repeat(builder.url_numbers(texts), np.diff(heads, append=rows))
        for number, family in enumerate(families):
            chosen = np.flatnonzero(which[:rows] == number)
            if family is not None and len(chosen):
                ranges = url_numbers[chosen], offsets[chosen], lengths[chosen]
                builder.add(family, indices[chosen, : family.rank], *ranges)
        return rows, length, rows == count

    def _find_indices(self, keys: Numbers, colons: Numbers) -> tuple[str, Numbers]:
        """Return the separator of chunk indices, and the position of the index in each key."""
        first = self.text[keys[0] + 1 : colons[0]].decode("latin-1")
        family, index = split_chunk_key(first) or (Family("", ".", 0), first)
        starts = np.minimum(keys + 1 + len(first) - len(index), colons)
        rows = self._changed_rows(keys + 1, starts)[1:2]
        if len(rows):
            # In keys of other arrays, the index begins after the last slash.
            spans = zip((keys[rows[0] :] + 1).tolist(), colons[rows[0] :].tolist(), strict=True)
            starts[rows[0] :] = [
                max(start, self.text.rfind(b"/", start, stop) + 1) for start, stop in spans
            ]
        return family.separator, starts

    def _parse_indices(
        self, starts: Numbers, stops: Numbers, separator: str
    ) -> tuple[Numbers, Numbers, Tests]:
        """Parse the chunk index at each position.

        Return the indices, padded to the same number of dimensions, the number of dimensions of
        each index, and a mask of the valid indices.
        """
        columns: list[Numbers] = []
        ranks = np.zeros(len(starts), np.int64)
        regular, going_on = np.ones((2, len(starts)), np.bool_)
        while going_on.any() and len(columns) < _MAX_DIMENSIONS:
            numbers, ends, are_numbers = self._parse_numbers(starts)
            columns.append(numbers)
            ranks += going_on
            regular &= are_numbers | ~going_on
            going_on &= regular & (ends < stops)
            regular &= (self.bytes[ends] == ord(separator)) | ~going_on
            going_on &= regular
            starts = np.where(going_on, ends + 1, starts)
        return np.stack(columns, axis=1), ranks, regular & ~going_on

    def _group_keys(
        self, starts: Numbers, stops: Numbers, ranks: Numbers, separator: str
    ) -> tuple[list[Family | None], Numbers]:
        """Group the keys by the array to which they belong.

        Return the family of each array's chunk keys, and for each key the position of its family in
        this list. The family is None for keys that are not chunk keys.
        """
        heads = self._changed_rows(starts, stops, ranks)
        prefixes = zip(self._texts(starts[heads], stops[heads]), ranks[heads].tolist(), strict=True)
        numbers: dict[tuple[bytes, int], int] = {}
        which = [numbers.setdefault(prefix, len(numbers)) for prefix in prefixes]
        families = [_family(prefix, separator, rank) for prefix, rank in numbers]
        return families, np.repeat(which, np.diff(heads, append=len(starts)))

    def _texts(self, starts: Numbers, stops: Numbers) -> list[bytes]:
        spans = zip(starts.tolist(), stops.tolist(), strict=True)
        return [self.text[start:stop] for start, stop in spans]

    def _changed_rows(self, starts: Numbers, stops: Numbers, *others: Numbers) -> Numbers:
        """Return the positions of the members that differ from the preceding member.

        Members are compared by their text between start and stop, and by their values in `others`.
        If a text is too long to be compared, the positions of all members are returned.
        """
        lengths = stops - starts
        differs = np.zeros(len(starts), np.bool_)
        differs[0] = True
        for other in (lengths, *others):
            differs[1:] |= other[1:] != other[:-1]
        longest = int(lengths[~differs].max(initial=0))
        if longest > _MAX_COMPARED_BYTES:
            return np.arange(len(starts))
        for place in range(0, longest, 8):
            words = self.words[starts + place] << _unused_bits(lengths - place)
            differs[1:] |= words[1:] != words[:-1]
        return np.flatnonzero(differs)

    def _occurs(self, starts: Numbers, expected: bytes) -> Tests:
        """Return a mask of the `starts` at which `expected` (at most eight bytes) occurs."""
        mask, word = (1 << 8 * len(expected)) - 1, int.from_bytes(expected, "little")
        matches: Tests = (self.words[starts] & np.uint64(mask)) == np.uint64(word)
        return matches

    def _parse_numbers(self, starts: Numbers) -> tuple[Numbers, Numbers, Tests]:
        """Parse the number at each position.

        Return the numbers, the positions at which they end, and a mask of the valid numbers. A
        valid number is a JSON integer of at most 15 digits.
        """
        words = self.words[starts]
        values, digits = _parse_digits(words)
        zero = (words & _BYTE) == _ZERO
        regular = (digits >= 1) & ~(zero & (digits > 1))
        if digits.max() == 8:
            long = np.flatnonzero(digits == 8)
            next_values, next_digits = _parse_digits(self.words[starts[long] + 8])
            values[long] = values[long] * 10**next_digits + next_values
            digits[long] += next_digits
            regular &= digits < 16
        return values, starts + digits, regular


def _parse_digits(words: Words) -> tuple[Numbers, Numbers]:
    """Parse the digits at the start of each eight-byte word.

    Return the numbers and how many digits each of them has.
    """
    # A digit is 0x30 to 0x39: its upper half is 3, even after adding 6. The carry of greater bytes
    # does not affect the bytes before them.
    non_digits = ((words ^ _ZEROS) | ((words + _SIXES) ^ _ZEROS)) & _UPPER
    before = ((non_digits & (~non_digits + _ONE)) - _ONE) & _HIGHEST
    digits = (((before >> np.uint64(7)) * _ONES) >> np.uint64(56)).view(np.int64)
    words = (words << _unused_bits(digits)) & _LOWER
    for bits, mask, weight in _PAIRS:
        words = (words & mask) * weight + ((words >> bits) & mask)
    return words.view(np.int64), digits


def _unused_bits(lengths: Numbers) -> Words:
    """Return the left shift that discards all but the first `lengths` bytes of each word.

    Words are little-endian, so the first byte is in the lowest bits. The shift is 64 or more if no
    byte is kept.
    """
    return np.maximum(64 - 8 * lengths, 0).view(np.uint64)


def _family(prefix: bytes, separator: str, rank: int) -> Family | None:
    """Return the family of chunk keys with a JSON-escaped prefix.

    Return None if the prefix is not valid JSON, or if a key with this prefix would be split into
    another family.
    """
    try:
        text = json.loads(b'"%b"' % prefix)
    except ValueError:
        return None
    family = Family(text, separator, rank)
    split = split_chunk_key(text + separator.join("0" * rank))
    return family if split is not None and split[0] == family else None
