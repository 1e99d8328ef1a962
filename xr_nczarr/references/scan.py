"""Regular stretches of a reference document, read into columns without an object for each entry.

A stretch is a row of members ``"array/1.2": ["url", 3, 4],``. Between its quotation marks lie, in
turn, a key, the opening of a list, a URL and two numbers, so that splitting at the marks and a few
searches over the joined pieces both prove the form and give the numbers.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from xr_nczarr.references.entries import LARGEST_NUMBER
from xr_nczarr.references.table import FEWEST_ROWS, Family, TableBuilder, split_chunk_key

_SMALLEST_DOCUMENT = 1 << 16
_BLOCKS = (1 << 16, 1 << 18, 1 << 20)
_MOST_STRETCHES = 10_000
_MARK = "\0stretch "
_DIGITS = b"0123456789"
# A key holds no comma and no colon here. Between two strings of a JSON document there is always
# one of them, so the first quotation mark of a match opens a string, and is none that closes one.
_MEMBER = re.compile(rb'"(?:[^"\\,:]|\\/)*[0-9]": ?\["(?:[^"\\]|\\/)+", ?[0-9]+, ?[0-9]+\], ?(?=")')
_NUMBERS = re.compile(rb", ?[0-9]+, ?[0-9]+\], ?")
_ESCAPE = re.compile(rb"\\[^/]")


def scan_document(document: bytes, builder: TableBuilder) -> tuple[bytes, int] | None:
    """Move the regular stretches of a document into `builder`.

    Returns
    -------
    The document with a mark in place of each stretch, and the number of marks; None for a document
    that is not regular enough (`builder` may have rows then, and is of no more use).
    """
    pieces: list[bytes] = []
    marks = copied = position = 0
    while len(document) >= _SMALLEST_DOCUMENT and (found := _MEMBER.search(document, position)):
        start = found.start()
        scanned = _scan_stretch(document, start, builder)
        if scanned is None or marks > _MOST_STRETCHES:
            return None
        end, position = scanned[0], max(scanned[1], found.end())
        if end > start:
            mark = json.dumps(f"{_MARK}{marks}").encode() + b":0,"
            pieces += [document[copied:start], mark]
            copied = end
            marks += 1
    return b"".join([*pieces, document[copied:]]), marks


def take_marks(members: dict[str, object]) -> int:
    """Remove the marks of `scan_document` from the object that they stand in, and count them."""
    marks = [name for name in members if name.startswith(_MARK)]
    for name in marks:
        del members[name]
    return len(marks)


def _scan_stretch(document: bytes, start: int, builder: TableBuilder) -> tuple[int, int] | None:
    """Move one stretch into `builder`, a block at a time.

    Returns
    -------
    Where what was moved ends (`start` when it is too little to bother) and where the stretch ends;
    None when it is not regular enough.
    """
    position = start
    for size in itertools.chain(_BLOCKS, itertools.repeat(_BLOCKS[-1])):
        block = document[position : position + size]
        escape = _ESCAPE.search(block)
        text = block[: escape.start()] if escape else block
        pieces = text.split(b'"')
        rows = _regular_rows(pieces)
        left = pieces[4 * rows + 1 :]
        end = position + len(text) - sum(map(len, left)) - len(left)
        if rows < FEWEST_ROWS:
            return position, end
        keys, urls, numbers = (pieces[first : 4 * rows + 1 : 4] for first in (1, 3, 4))
        if not _add_rows(keys, urls, b"".join(numbers), builder):
            return None
        position = end
        if len(pieces) >= 4 * rows + 6:
            break
    return position, position


def _regular_rows(pieces: Sequence[bytes]) -> int:
    """Give how many members at the beginning have the regular form around keys and URLs."""
    rows = (len(pieces) - 2) // 4
    openings, numbers = pieces[2 : 4 * rows : 4], pieces[4 : 4 * rows + 1 : 4]
    for opening in (b": [", b":["):
        if openings and openings[0] == opening and openings.count(opening) != rows:
            rows = next(row for row, piece in enumerate(openings) if piece != opening)
    text = b"".join(numbers[:rows]).replace(b", ", b",")
    if text.translate(None, _DIGITS) != b",,]," * rows:
        checks = (row for row in range(rows) if not _NUMBERS.fullmatch(numbers[row]))
        rows = next(checks, rows)
    return rows if openings and openings[0] in (b": [", b":[") else 0


def _add_rows(
    keys: Sequence[bytes], urls: Sequence[bytes], numbers: bytes, builder: TableBuilder
) -> bool:
    """Add rows of one or more arrays; False when their keys or numbers are not regular."""
    text = numbers.replace(b", ", b",").replace(b"],", b"")
    ranges = _parse_numbers(text, 2 * len(keys))
    if ranges is None:
        return False
    offsets, lengths = ranges.reshape(-1, 2).T
    url_numbers = builder.url_numbers(urls)
    indices = _parse_indices(keys)
    if indices is not None:
        builder.add(*indices, url_numbers, offsets, lengths)
        return True
    groups: dict[bytes, list[int]] = defaultdict(list)
    for row, key in enumerate(keys):
        groups[key[: key.rfind(b"/") + 1]].append(row)
    if 8 * len(groups) > len(keys):
        return False
    for rows in groups.values():
        indices = _parse_indices([keys[row] for row in rows])
        if indices is None:
            return False
        builder.add(*indices, url_numbers[rows], offsets[rows], lengths[rows])
    return True


def _parse_indices(keys: Sequence[bytes]) -> tuple[Family, NDArray[np.int64]] | None:
    """Give the family and the chunk indices of keys; None unless they are all of one family."""
    text = b'"' + b'"'.join(keys)
    if b"\\" in text:
        text = text.replace(b"\\/", b"/")
    try:
        first = split_chunk_key(text[1:].partition(b'"')[0].decode())
    except UnicodeDecodeError:
        return None
    if first is None:
        return None
    family, _ = first
    beginning, separator = b'"' + family.prefix.encode(), family.separator.encode()
    if text.count(beginning) != len(keys):
        return None
    text = text.replace(beginning, b",")
    if text.translate(None, _DIGITS) != (b"," + separator * (family.rank - 1)) * len(keys):
        return None
    numbers = _parse_numbers(text.replace(separator, b","), family.rank * len(keys))
    return None if numbers is None else (family, numbers.reshape(-1, family.rank))


def _parse_numbers(text: bytes, count: int) -> NDArray[np.int64] | None:
    """Give the numbers of ``,1,2,3``; None unless they are `count`, each spelled as JSON does."""
    if text.translate(None, _DIGITS) != b"," * count or b",," in text or text.endswith(b","):
        return None
    numbers = np.fromstring(text[1:], dtype=np.int64, sep=",")
    zeros = np.count_nonzero(numbers == 0)
    if b",00" in text or text.count(b",0") != zeros or int(numbers.max()) >= LARGEST_NUMBER:
        return None
    return numbers
