"""Locate and decode the entries of an untrusted zip file."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from xr_nczarr.errors import StorageError, reason_of
from xr_nczarr.storage.keys import check_key
from xr_nczarr.storage.ranges import Bytes

Read = Callable[[Sequence[tuple[int, int]]], Iterator[Bytes]]
"""Function that yields the bytes of a file at each (offset, length) pair."""

HEADER = 30
"""Size in bytes of a local header, excluding the name that follows it."""

_MAX_EXTRA_BYTES = 2 * 0xFFFF
END_BYTES = 64 << 10
"""Number of bytes at the end of a file that usually contain the zip directory."""

_JUNK = "__MACOSX/"
_EMPTY_GROUP_BYTES = 64  # maximum size of the metadata of a group without attributes


class Entry(NamedTuple):
    """An entry of a zip file.

    `offset` is the position of the entry's local header in the file. The header and the data
    together have at most `span` bytes.
    """

    offset: int
    span: int
    info: zipfile.ZipInfo

    @property
    def deflated(self) -> bool:
        """Whether the entry is compressed."""
        return self.info.compress_type == zipfile.ZIP_DEFLATED


class FileEnd:
    """The last bytes of a zip file, and the size of the file, which is computed from these bytes.

    Parameters
    ----------
    data
        The last `END_BYTES` bytes of the file, or the whole file if it is shorter. In a longer
        file, no other data may precede the first entry; otherwise, the size is wrong.
    """

    def __init__(self, data: Bytes) -> None:
        self.data = data
        self.size = len(data) if len(data) < END_BYTES else _implied_size(bytes(data))

    def cut(self, offset: int, length: int) -> Bytes | None:
        """Return `length` bytes of the file from `offset` on, or None if `data` lacks them."""
        first = offset - self.size + len(self.data)
        inside = 0 <= first <= len(self.data) - length
        return memoryview(self.data)[first : first + length] if inside else None


def _implied_size(end: bytes) -> int:
    """Return the size of a zip file in bytes, computed from its last bytes.

    The result is 0 if these bytes are not the end of a zip file. Source: PKWARE's APPNOTE 6.3.10,
    sections 4.3.14 to 4.3.16.
    """
    record = end.rfind(b"PK\5\6")
    length, start = struct.unpack_from("<12x2L", end[record:].ljust(22), 0)
    large = record - 76
    if record >= 76 and end.startswith(b"PK\6\6", large):
        record, (length, start) = large, struct.unpack_from("<40x2Q", end, large)
    return start + length + len(end) - record if record >= 0 else 0


def read_index(read: Read, size: int, store: str) -> dict[str, Entry]:
    """Map each key to its entry in a zip file. Keys are relative to the folder of the store.

    `size` is the size of the zip file in bytes. `store` is the name of the store, which ends with
    the name of the file.

    Raises
    ------
    StorageError
        If the file is damaged, or entries overlap.
    RefusedError
        If a name leads outside the store.
    """
    source: Any = _RangeFile(read, size)
    try:
        with zipfile.ZipFile(source) as file:
            infos, end = file.infolist(), file.start_dir
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, struct.error) as error:
        raise damaged(f"the zip file cannot be read ({reason_of(error)})", store) from error
    infos = [info for info in infos if not info.orig_filename.startswith(_JUNK)]
    starts = sorted(info.header_offset for info in infos)
    room = {start: after - start for start, after in pairwise([*starts, end])}
    entries: dict[str, Entry] = {}
    for info in infos:
        name, start = info.orig_filename, info.header_offset
        check_key(name.removesuffix("/"), store)
        needed = HEADER + len(name) + info.compress_size
        if room[start] < needed or len(room) < len(infos):
            raise damaged("zip entries overlap", store, name)
        if not info.is_dir():
            span = min(room[start], needed + 3 * len(name) + _MAX_EXTRA_BYTES)
            entries[name] = Entry(start, span, info)
    first = infos[0].orig_filename if infos else ""
    folder = _folder(entries, first, store.rpartition("/")[2].removesuffix(".zip"))
    inside = {name: entry for name, entry in entries.items() if name.startswith(folder)}
    return {name.removeprefix(folder): entry for name, entry in inside.items()}


def _folder(entries: Mapping[str, Entry], first: str, archive: str) -> str:
    """Return the folder of the store with a trailing slash, or an empty string for the root.

    Normally, the folder of the store contains all entries. netCDF-C, however, always uses the
    folder of the first entry. This function follows netCDF-C under two conditions: the folder is
    named after the archive, and the only entry outside it is the metadata of an empty group.

    `first` is the name of the first entry. `archive` is the name of the zip file, without ``.zip``.
    """
    tops = {name.partition("/")[0] if "/" in name else "" for name in entries}
    if len(tops) == 1 and "" not in tops:
        return f"{tops.pop()}/"
    folder = f"{archive}/"
    outside = [name for name in entries if not name.startswith(folder)]
    if outside != [".zgroup"] or not first.startswith(folder) or f"{folder}.zgroup" not in entries:
        return ""
    return folder if entries[".zgroup"].info.file_size <= _EMPTY_GROUP_BYTES else ""


def decode(data: Bytes, entry: Entry, key: str, store: str) -> Bytes:
    """Decompress and check the content of an entry.

    `data` contains the bytes of the entry, starting with its local header.

    Raises
    ------
    StorageError
        If the content does not match the size or the checksum in the zip directory.
    """
    size, start = entry.info.file_size, data_start(data, entry, key, store)
    content: Bytes = memoryview(data)[start : start + entry.info.compress_size]
    if entry.deflated:
        decoder = zlib.decompressobj(-zlib.MAX_WBITS)
        try:
            content = decoder.decompress(content, size + 1)
        except zlib.error as error:
            raise damaged(f"the zip entry cannot be decompressed ({error})", store, key) from error
    if len(content) != size or zlib.crc32(content) != entry.info.CRC:
        problem = (
            f"the zip entry does not match its checksum or its size ({len(content)} bytes; "
            f"expected {size})"
        )
        raise damaged(problem, store, key)
    return content


def data_start(data: Bytes, entry: Entry, key: str, store: str) -> int:
    """Return the number of bytes from the start of an entry's local header to its data.

    `data` contains at least the first `HEADER` bytes of the local header.

    Raises
    ------
    StorageError
        If `data` does not begin with the local header of the entry.
    """
    mark, flags, crc, name_length, extra_length = struct.unpack_from("<4s2xH6xI8xHH", data)
    # If this flag is set, the checksum follows the data, and is not in the header.
    if mark != b"PK\x03\x04" or (not flags & 8 and crc != entry.info.CRC):
        raise damaged(
            "the zip entry is not at the offset that the zip directory declares", store, key
        )
    return int(HEADER + name_length + extra_length)


def damaged(problem: str, store: str, key: str | None = None) -> StorageError:
    """Return the error for a damaged zip file. The message begins with `problem`."""
    remedy = (
        "Copy or write the zip file again. It is damaged, or other data precedes its first entry"
    )
    return StorageError(problem, remedy=remedy, store=store, key=key)


class _RangeFile:
    """A minimal file object for `zipfile` that reads only the ranges that are needed."""

    def __init__(self, read: Read, size: int) -> None:
        self._read = read
        self._size = size
        self._position = 0

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> None:
        self._position = offset + (self._size if whence == os.SEEK_END else 0)
        if self._position < 0:
            raise OSError("cannot seek before the start of the file")

    def read(self, count: int = -1) -> bytes:
        start = min(self._position, self._size)
        self._position = end = self._size if count < 0 else min(start + count, self._size)
        return bytes(next(self._read([(start, end - start)])))
