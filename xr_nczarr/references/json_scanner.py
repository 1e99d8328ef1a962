"""Parse the regular members of a JSON reference document, and store them in tables.

A regular member looks like ``"array/1.2": ["url", 3, 4],``. It may contain whitespace, such as
indentation, if neighboring members contain the same whitespace.

The text is processed in blocks. Vectorized arithmetic on the bytes of a block parses all of its
members at once, without creating a Python object for each member. Every byte is checked. It must be
the expected punctuation, a digit, or part of a URL or a key prefix. URLs and prefixes are decoded
as JSON.
"""

from __future__ import annotations

import json
import re

import numpy as np
from numpy.typing import NDArray

from xr_nczarr.references.tables import MIN_ROWS, KeyPattern, TableBuilder, split_chunk_key

_MIN_DOCUMENT_BYTES = 1 << 16
_MIN_BLOCK, _MAX_BLOCK = 1 << 14, 1 << 19
_MIN_ROWS_PER_ARRAY = 6  # minimum average number of rows per array in a block
_MAX_DIMENSIONS = 32
_MAX_COMPARED_BYTES = 1 << 10
_MARKER = "\0stretch "
# Keys that contain a comma or colon do not match. In a JSON document, there is always a comma or
# colon between two strings, so a match cannot begin with the quotation mark that ends a string.
# The groups are the text between the key and the URL, between the URL and the offset, between the
# numbers, and after the length. Each space stands for any JSON whitespace.
_PATTERN = rb'"(?:[^"\\,:]|\\/)*[0-9](" : \[ ")(?:[^"\\]|\\/)+(" , )[0-9]+( , )[0-9]+( \] , )(?=")'
_MEMBER = re.compile(_PATTERN.replace(b" ", rb"[ \t\n\r]{0,64}+"))
_ESCAPE = re.compile(rb"\\[^/]")
_QUOTE, _ZERO, _SLASH = b'"0/'

Numbers = NDArray[np.int64]
Words = NDArray[np.uint64]
Mask = NDArray[np.bool_]

_ZEROS, _SIXES, _UPPER, _LOWER, _HIGHEST, _ONES = (
    np.uint64(byte * 0x0101010101010101) for byte in (0x30, 0x06, 0xF0, 0x0F, 0x80, 0x01)
)
_ONE, _BYTE = np.uint64(1), np.uint64(0xFF)
# These constants combine digits into pairs, pairs into groups of four, and two such groups into one
# number. The digits in the lower half of a word are always more significant.
_PAIRS = tuple(
    (np.uint64(bits), np.uint64(mask), np.uint64(10 ** (bits // 8)))
    for bits, mask in ((8, 0x00FF00FF00FF00FF), (16, 0x0000FFFF0000FFFF), (32, 0xFFFFFFFF))
)


def scan_document(document: bytes) -> tuple[bytes, int, TableBuilder]:
    """Move chunk references from a JSON document into a `TableBuilder`.

    Only long sequences of regular members (see the module docstring) with the same separator and
    spacing are moved. All other members stay in the document.

    Returns
    -------
    bytes
        The rest of the document, with a marker in place of each sequence of members that was moved.
    int
        The number of markers. It is 0 if no members were moved, for example because the document is
        short or contains few regular members.
    TableBuilder
        A builder with the references that were moved.
    """
    builder = TableBuilder()
    pieces: list[bytes | memoryview] = []
    view = memoryview(document)
    markers = copied = position = moved = read = 0
    while len(document) >= _MIN_DOCUMENT_BYTES and (match := _MEMBER.search(document, position)):
        start = end = match.start()
        size, unfinished = _MIN_BLOCK, True
        while unfinished:
            block = _Block(view[end : end + size])
            rows, length, unfinished = block.move(builder)
            position = max(end + length, match.end())
            end += length if rows else 0
            read += size
            size = min(2 * size, _MAX_BLOCK)
        moved += end - start
        if read > 4 * moved + 2 * _MAX_BLOCK:
            return document, 0, TableBuilder()
        if end > start:
            marker = json.dumps(f"{_MARKER}{markers}").encode() + b":0,"
            pieces += [view[copied:start], marker]
            copied = end
            markers += 1
    return b"".join([*pieces, view[copied:]]), markers, builder


def remove_markers(members: dict[str, object]) -> int:
    """Remove the markers that `scan_document` inserted, and return their number."""
    markers = [name for name in members if name.startswith(_MARKER)]
    for name in markers:
        del members[name]
    return len(markers)


class _Block:
    """A part of a JSON document. The part starts with the opening quotation mark of a key."""

    def __init__(self, text: bytes | memoryview) -> None:
        # Pad the text, because some reads extend beyond its end.
        self.text = b"".join((text, bytes(2 * _MAX_COMPARED_BYTES)))
        escape = _ESCAPE.search(self.text) if b"\\" in self.text else None
        self.bytes = np.frombuffer(self.text, np.uint8)
        self.words: Words = np.ndarray(len(self.text) - 7, "<u8", self.text, strides=(1,))
        self.quotes = np.flatnonzero(self.bytes[: escape.start() if escape else None] == _QUOTE)

    def move(self, builder: TableBuilder) -> tuple[int, int, bool]:
        """Move the regular members at the start of the block to `builder`.

        Regular members are defined in the module docstring. If there are fewer than `MIN_ROWS`, or
        fewer than `_MIN_ROWS_PER_ARRAY` for each array on average, no members are moved.

        Return three values: the number of moved members, the position in the block at which the
        regular members end, and whether the next block may begin with further regular members.
        """
        count = (len(self.quotes) - 1) // 4
        member = _MEMBER.match(self.text)
        if count < MIN_ROWS or member is None:
            return 0, 0, False
        # The positions of the four quotation marks in each member, and of the first quotation mark
        # in the next member.
        quotes = self.quotes[: 4 * count].reshape(-1, 4).T
        keys, colons, urls, commas = np.ascontiguousarray(quotes)
        following = self.quotes[4 : 4 * count + 1 : 4]
        bracket, first_comma, second_comma, closing = member.groups()
        offsets, ends, regular = self._parse_numbers(commas + len(first_comma))
        regular &= self._occurs(colons, bracket) & self._occurs(commas, first_comma)
        regular &= (urls - colons == len(bracket) - 1) & self._occurs(ends, second_comma)
        lengths, ends, are_numbers = self._parse_numbers(ends + len(second_comma))
        regular &= are_numbers & self._occurs(ends, closing)
        regular &= following - ends == len(closing)
        separator, starts = self._find_indices(keys, colons)
        indices, ranks, are_indices = self._parse_indices(starts, colons, separator)
        regular &= are_indices
        patterns, pattern_numbers = self._group_keys(keys + 1, starts, ranks, separator)
        regular &= np.array([pattern is not None for pattern in patterns])[pattern_numbers]

        rows = count if regular.all() else int(regular.argmin())
        length = int(following[rows - 1]) if rows else 0
        if rows < max(MIN_ROWS, _MIN_ROWS_PER_ARRAY * len(patterns)):
            return 0, length, False
        heads = self._changed_rows(urls[:rows] + 1, commas[:rows])
        texts = self._texts(urls[heads] + 1, commas[heads])
        url_numbers = np.repeat(builder.url_numbers(texts), np.diff(heads, append=rows))
        for number, pattern in enumerate(patterns):
            chosen = np.flatnonzero(pattern_numbers[:rows] == number)
            if pattern is not None and len(chosen):
                ranges = url_numbers[chosen], offsets[chosen], lengths[chosen]
                builder.add(pattern, indices[chosen, : pattern.rank], *ranges)
        return rows, length, rows == count

    def _find_indices(self, opening: Numbers, closing: Numbers) -> tuple[str, Numbers]:
        """Return the separator of the chunk indices, and the position of the index in each key.

        `opening` and `closing` are the positions of the quotation marks around each key.
        """
        first = self.text[opening[0] + 1 : closing[0]].decode("latin-1")
        pattern, _ = split_chunk_key(first) or (KeyPattern("", ".", 0), first)
        if pattern.separator == "/":  # keys with another prefix do not match in `_key_pattern`
            return "/", np.minimum(opening + 1 + len(pattern.prefix), closing)
        slashes = np.flatnonzero(self.bytes == _SLASH)
        preceding = np.append(slashes, -1)[slashes.searchsorted(closing) - 1]
        return ".", np.maximum(opening, preceding) + 1

    def _parse_indices(
        self, starts: Numbers, stops: Numbers, separator: str
    ) -> tuple[Numbers, Numbers, Mask]:
        """Parse the chunk indices between the positions `starts` and `stops`.

        Return the indices (padded to equal lengths), the rank of each index, and a mask of valid
        indices.
        """
        columns: list[Numbers] = []
        ranks = np.zeros(len(starts), np.int64)
        regular, unfinished = np.ones((2, len(starts)), np.bool_)
        while unfinished.any() and len(columns) < _MAX_DIMENSIONS:
            numbers, ends, are_numbers = self._parse_numbers(starts)
            columns.append(numbers)
            ranks += unfinished
            regular &= are_numbers | ~unfinished
            unfinished &= regular & (ends < stops)
            regular &= (self.bytes[ends] == ord(separator)) | ~unfinished
            unfinished &= regular
            starts = np.where(unfinished, ends + 1, starts)
        return np.stack(columns, axis=1), ranks, regular & ~unfinished

    def _group_keys(
        self, starts: Numbers, stops: Numbers, ranks: Numbers, separator: str
    ) -> tuple[list[KeyPattern | None], Numbers]:
        """Return the distinct key patterns, and the position of each key's pattern among them.

        `starts` and `stops` delimit the prefix of each key. A pattern is None if its keys are not
        chunk keys.
        """
        heads = self._changed_rows(starts, stops, ranks)
        prefixes = zip(self._texts(starts[heads], stops[heads]), ranks[heads].tolist(), strict=True)
        numbers: dict[tuple[bytes, int], int] = {}
        pattern_numbers = [numbers.setdefault(prefix, len(numbers)) for prefix in prefixes]
        patterns = [_key_pattern(prefix, separator, rank) for prefix, rank in numbers]
        return patterns, np.repeat(pattern_numbers, np.diff(heads, append=len(starts)))

    def _texts(self, starts: Numbers, stops: Numbers) -> list[bytes]:
        spans = zip(starts.tolist(), stops.tolist(), strict=True)
        return [self.text[start:stop] for start, stop in spans]

    def _changed_rows(self, starts: Numbers, stops: Numbers, *columns: Numbers) -> Numbers:
        """Return the index of each row whose text or `columns` differ from the previous row.

        `starts` and `stops` delimit the text of each row. The result always includes index 0, and
        may include unchanged rows.
        """
        lengths = stops - starts
        differs = np.zeros(len(starts), np.bool_)
        differs[0] = True
        for column in (lengths, *columns):
            differs[1:] |= column[1:] != column[:-1]
        longest = int(lengths[~differs].max(initial=0))
        if longest > _MAX_COMPARED_BYTES:  # too long to compare, so treat all rows as changed
            return np.arange(len(starts))
        for position in range(0, longest, 8):
            words = self.words[starts + position] << _unused_bits(lengths - position)
            differs[1:] |= words[1:] != words[:-1]
        return np.flatnonzero(differs)

    def _occurs(self, starts: Numbers, expected: bytes) -> Mask:
        """Return a mask that is True for each position in `starts` at which `expected` occurs."""
        matches = np.ones(len(starts), np.bool_)
        for position in range(0, len(expected), 8):
            part = expected[position : position + 8]
            mask, word = (1 << 8 * len(part)) - 1, int.from_bytes(part, "little")
            matches &= (self.words[starts + position] & np.uint64(mask)) == np.uint64(word)
        return matches

    def _parse_numbers(self, starts: Numbers) -> tuple[Numbers, Numbers, Mask]:
        """Parse the non-negative JSON integers of at most 15 digits at the positions `starts`.

        Return the numbers, the positions at which they end, and a mask of valid numbers.
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
    """Return the number at the start of each eight-byte word, and how many digits it has."""
    # The upper half of a digit (0x30 to 0x39) is 3, even after adding 6. If adding 6 to a greater
    # byte produces a carry, the carry does not affect the bytes before it.
    non_digits = ((words ^ _ZEROS) | ((words + _SIXES) ^ _ZEROS)) & _UPPER
    before = ((non_digits & (~non_digits + _ONE)) - _ONE) & _HIGHEST
    digits = (((before >> np.uint64(7)) * _ONES) >> np.uint64(56)).view(np.int64)
    words = (words << _unused_bits(digits)) & _LOWER
    for bits, mask, weight in _PAIRS:
        words = (words & mask) * weight + ((words >> bits) & mask)
    return words.view(np.int64), digits


def _unused_bits(lengths: Numbers) -> Words:
    """Return the number of bits that follow the first `lengths` bytes of each eight-byte word."""
    # The first byte of a little-endian word is in the lowest bits. A left shift by the returned
    # number of bits therefore drops all other bytes. A shift of 64 or more bits drops all bytes.
    return np.maximum(64 - 8 * lengths, 0).view(np.uint64)


def _key_pattern(prefix: bytes, separator: str, rank: int) -> KeyPattern | None:
    """Return the pattern of the chunk keys with the given prefix, separator and rank.

    `prefix` is the beginning of a JSON string, without the quotation mark and with escapes that are
    not yet decoded. Return None if it cannot be decoded, or if `split_chunk_key` returns another
    pattern for such keys.
    """
    try:
        text = json.loads(b'"%b"' % prefix)
    except ValueError:
        return None
    pattern = KeyPattern(text, separator, rank)
    split = split_chunk_key(text + separator.join("0" * rank))
    return pattern if split is not None and split[0] == pattern else None
