"""Locate and decode the entries of an untrusted zip file."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from xr_nczarr.errors import NotFoundError, StorageError, reason_of
from xr_nczarr.storage.keys import check_key
from xr_nczarr.storage.ranges import ByteRange, Bytes
from xr_nczarr.storage.store import Store

HEADER = 30
"""Size in bytes of a local header, excluding the name that follows it."""

_MAX_EXTRA_BYTES = 2 * 0xFFFF
_END_BYTES = 64 << 10  # bytes at the end of a file that usually contain the central directory
_JUNK = "__MACOSX/"
_EMPTY_GROUP_BYTES = 64  # maximum size of the metadata of a group without attributes


class ZipEntry(NamedTuple):
    """An entry of a zip file.

    `offset` is the position of the entry's local header in the file. The header and the data are
    together at most `span` bytes long.
    """

    offset: int
    span: int
    info: zipfile.ZipInfo

    @property
    def deflated(self) -> bool:
        """Whether the entry is compressed with DEFLATE, the only supported compression method."""
        return self.info.compress_type == zipfile.ZIP_DEFLATED


class ZipContents:
    """The content of a zip file, from which only the needed byte ranges are fetched.

    Parameters
    ----------
    folder
        The store that contains the zip file.
    key
        Key of the zip file in `folder`.
    store
        Name of the store, for error messages. It ends with the name of the zip file.

    Attributes
    ----------
    entries
        Mapping of keys to entries. The keys are relative to the root of the Zarr store, which can
        be a folder inside the zip file.
    keys
        The sorted keys of `entries`.

    Raises
    ------
    NotFoundError
        If the file does not exist.
    StorageError
        If the file is damaged, or entries overlap.
    RefusedError
        If the name of an entry leads outside the store.
    """

    def __init__(self, folder: Store, key: str, store: str) -> None:
        end = folder.fetch_end(key, _END_BYTES)
        if end is None:
            raise NotFoundError("the zip file does not exist", store=store)
        self._folder, self._key, self._store = folder, key, store
        self._end = memoryview(end)
        # If `end` is not the whole file, the size of the file is computed from `end`. The result is
        # wrong if other data precedes the first entry.
        self._size = len(end) if len(end) < _END_BYTES else _implied_size(bytes(end))
        self._position = 0
        self.entries = _read_entries(self, store)
        self.keys = sorted(self.entries)

    def fetch(self, spans: Sequence[tuple[int, int]]) -> Iterator[Bytes]:
        """Yield the bytes of the zip file in each (offset, length) span."""
        kept = [self._kept(*span) for span in spans]
        missing = [span for span, data in zip(spans, kept, strict=True) if data is None]
        fetched = self._folder.fetch_ranges([ByteRange(self._key, *span) for span in missing])
        for data in kept:
            data = next(fetched) if data is None else data
            if data is None:
                raise NotFoundError("the zip file no longer exists", store=self._store)
            yield data

    def _kept(self, offset: int, length: int) -> Bytes | None:
        first = offset - self._size + len(self._end)
        inside = 0 <= first <= len(self._end) - length
        return self._end[first : first + length] if inside else None

    # `zipfile` reads the central directory with the following methods.

    def tell(self) -> int:
        """Return the current position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> None:
        """Move the current position to `offset` bytes from the start of the file.

        If `whence` is ``os.SEEK_END``, `offset` counts from the end of the file instead.
        """
        self._position = offset + (self._size if whence == os.SEEK_END else 0)
        if self._position < 0:
            raise OSError("cannot seek before the start of the file")

    def read(self, count: int = -1) -> bytes:
        """Return up to `count` bytes from the current position, or all remaining bytes."""
        start = min(self._position, self._size)
        self._position = end = self._size if count < 0 else min(start + count, self._size)
        return bytes(next(self.fetch([(start, end - start)])))


def _implied_size(end: bytes) -> int:
    """Compute the size of a zip file in bytes from its last bytes, `end`.

    Return 0 if `end` contains no end of central directory record.
    """
    # PKWARE's APPNOTE 6.3.10, sections 4.3.14 to 4.3.16
    record = end.rfind(b"PK\5\6")
    length, start = struct.unpack_from("<12x2L", end[record:].ljust(22), 0)
    large = record - 76
    if record >= 76 and end.startswith(b"PK\6\6", large):
        record, (length, start) = large, struct.unpack_from("<40x2Q", end, large)
    return start + length + len(end) - record if record >= 0 else 0


def _read_entries(source: Any, store: str) -> dict[str, ZipEntry]:
    """Return a mapping from keys to entries, read from a file object for the zip file."""
    try:
        with zipfile.ZipFile(source) as file:
            infos, end = file.infolist(), file.start_dir
    except (zipfile.BadZipFile, NotImplementedError, UnicodeDecodeError, struct.error) as error:
        raise damaged(f"the zip file cannot be read ({reason_of(error)})", store) from error
    infos = [info for info in infos if not info.orig_filename.startswith(_JUNK)]
    starts = sorted(info.header_offset for info in infos)
    available = {start: after - start for start, after in pairwise([*starts, end])}
    entries: dict[str, ZipEntry] = {}
    for info in infos:
        name, start = info.orig_filename, info.header_offset
        check_key(name.removesuffix("/"), store)
        needed = HEADER + len(name) + info.compress_size
        if available[start] < needed or len(available) < len(infos):
            raise damaged("zip entries overlap", store, name)
        if not info.is_dir():
            span = min(available[start], needed + 3 * len(name) + _MAX_EXTRA_BYTES)
            entries[name] = ZipEntry(start, span, info)
    first = infos[0].orig_filename if infos else ""
    folder = _folder(entries, first, store.rpartition("/")[2].removesuffix(".zip"))
    inside = {name: entry for name, entry in entries.items() if name.startswith(folder)}
    return {name.removeprefix(folder): entry for name, entry in inside.items()}


def _folder(entries: Mapping[str, ZipEntry], first_entry: str, file_stem: str) -> str:
    """Return the folder that contains the Zarr store, with a trailing slash, or "" for the root."""
    tops = {name.partition("/")[0] if "/" in name else "" for name in entries}
    if len(tops) == 1 and "" not in tops:
        return f"{tops.pop()}/"
    # Otherwise, the folder named after the zip file contains the store if the folder contains the
    # first entry and a `.zgroup`, and the only entry outside is the `.zgroup` of a group without
    # attributes. netCDF-C reads the same folder, because it uses the folder of the first entry.
    folder = f"{file_stem}/"
    outside = [name for name in entries if not name.startswith(folder)]
    if (
        outside != [".zgroup"]
        or not first_entry.startswith(folder)
        or f"{folder}.zgroup" not in entries
    ):
        return ""
    return folder if entries[".zgroup"].info.file_size <= _EMPTY_GROUP_BYTES else ""


def decode(data: Bytes, entry: ZipEntry, key: str, store: str) -> Bytes:
    """Return the content of an entry, after decompressing and checking it.

    `data` contains the bytes of the entry, starting with its local header.

    Raises
    ------
    StorageError
        If the content does not match the size or the checksum in the central directory.
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


def data_start(data: Bytes, entry: ZipEntry, key: str, store: str) -> int:
    """Return the number of bytes from the start of an entry's local header to its data.

    `data` contains at least the first `HEADER` bytes of the local header.

    Raises
    ------
    StorageError
        If `data` does not begin with the local header of the entry.
    """
    mark, flags, crc, name_length, extra_length = struct.unpack_from("<4s2xH6xI8xHH", data)
    # If flag 8 is set, the checksum follows the data instead of being in the header.
    if mark != b"PK\x03\x04" or (not flags & 8 and crc != entry.info.CRC):
        raise damaged("the central directory declares a wrong offset for the zip entry", store, key)
    return int(HEADER + name_length + extra_length)


def damaged(problem: str, store: str, key: str | None = None) -> StorageError:
    """Return the error for a damaged zip file. The message begins with `problem`."""
    text = f"{problem}; the zip file is damaged, or other data precedes its first entry"
    return StorageError(text, remedy="Copy the file again, or recreate it", store=store, key=key)
