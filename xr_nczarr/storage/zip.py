"""Zip files: one file that holds a whole store."""

from __future__ import annotations

import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from xr_nczarr.errors import LimitError, NotFoundError, StorageError, UnsupportedError
from xr_nczarr.storage.keys import KeyLocks, check_key, check_prefix, one_level
from xr_nczarr.storage.local import LocalStore
from xr_nczarr.storage.protocol import ByteRange, Bytes, Listing, SizedStore
from xr_nczarr.storage.ranges import first_byte
from xr_nczarr.storage.replacing import hidden_path, is_hidden, sync_filesystem
from xr_nczarr.storage.retries import failing_as_ours

_HEADER = 30  # bytes of a local header before its name
_LONGEST_EXTRA = 2 * 0xFFFF
_TAIL = 64 << 10  # bytes at the end of the file, where its directory mostly fits
_JUNK = "__MACOSX/"


class _Entry(NamedTuple):
    """Where an object lies in the file: from its local header, up to `span` bytes."""

    offset: int
    span: int
    info: zipfile.ZipInfo

    @property
    def deflated(self) -> bool:
        """Whether its bytes in the file are not its content."""
        return self.info.compress_type == zipfile.ZIP_DEFLATED


class ZipStore:
    """The entries of a zip file, read in place.

    Both flavours are read: keys at the root (zarr-python), and all below one leading folder
    (netcdf-c). Of entries with the same name the last counts.

    Parameters
    ----------
    folder
        The store that holds the file.
    key
        Its name there.
    max_object_bytes
        Larger objects are refused before anything is allocated.
    """

    def __init__(self, folder: SizedStore, key: str, max_object_bytes: int = 4 << 30) -> None:
        self.folder = folder
        self.key = key
        self.max_object_bytes = max_object_bytes
        self._index: dict[str, _Entry] | None = None
        self._locks = KeyLocks()

    @classmethod
    def local(
        cls,
        path: str,
        *,
        max_object_bytes: int = 4 << 30,
        sync: Literal["commit", "all", "none"] = "commit",
    ) -> ZipStore:
        """Give the store in the zip file at an absolute path."""
        folder, name = os.path.split(path)
        # The file itself may be larger than any object in it.
        return cls(LocalStore(folder, sync, max_object_bytes=1 << 62), name, max_object_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return ZipStore, (self.folder, self.key, self.max_object_bytes)

    def __repr__(self) -> str:
        return f"ZipStore({self.name!r})"

    @property
    def name(self) -> str:
        """The path or URL of the file."""
        return f"{self.folder.name}/{self.key}"

    @property
    def remote(self) -> bool:
        """Whether the file lies behind a network."""
        return self.folder.remote

    def fetch(self, keys: Sequence[str]) -> Iterator[Bytes | None]:
        """Yield each object in the order of `keys`, None for one that is not there."""
        entries = [self._entry(key) for key in keys]
        spans = self._read([(entry.offset, entry.span) for entry in entries if entry])
        for key, entry in zip(keys, entries, strict=True):
            yield None if entry is None else self._decode(key, entry, next(spans))

    def fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        """Yield each byte range in order; stored entries are read in part, others whole."""
        places = self.uncompressed_ranges(one.key for one in ranges)
        stored = self._read(
            [
                (places[one.key][0] + first_byte(one, places[one.key][1], self.name), one.length)
                for one in ranges
                if one.key in places
            ]
        )
        for one in ranges:
            if one.key in places:
                yield next(stored)
                continue
            (data,) = self.fetch([one.key])
            if data is not None:
                first = first_byte(one, len(data), self.name)
                data = data[first : first + one.length]
            yield data

    def size(self, key: str) -> int | None:
        """Give the size of an object in bytes, None when it is not there."""
        entry = self._entry(key)
        return None if entry is None else entry.info.file_size

    def uncompressed_ranges(self, keys: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Give (offset, length) in the file of the bytes of those objects that are not deflated.

        Local headers tell, which are asked for together.
        """
        entries = {key: self._entry(key) for key in keys}
        stored = {key: one for key, one in entries.items() if one and not one.deflated}
        headers = self._read([(entry.offset, _HEADER) for entry in stored.values()])
        return {
            key: (entry.offset + self._data_start(key, entry, header), entry.info.file_size)
            for (key, entry), header in zip(stored.items(), headers, strict=True)
        }

    def list_names(self, prefix: str) -> Listing:
        """Give one level below `prefix`, sorted."""
        check_prefix(prefix, self.name)
        return one_level(self._entries(), prefix)

    def sizes(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield key and size in bytes of every object below `prefix`."""
        for key, entry in self._entries().items():
            if key.startswith(prefix):
                yield key, entry.info.file_size

    def put(self, items: Iterable[tuple[str, Bytes]]) -> None:
        """Write objects: the file is written anew and replaced. Many are better staged."""
        with self._rewriting() as staging:
            staging.put(items)

    def delete(self, prefix: str) -> None:
        """Remove objects: the file is written anew and replaced."""
        with self._rewriting() as staging:
            staging.delete(prefix)

    def staging(self, *, empty: bool = False) -> LocalStore:
        """Give a directory beside the file with its objects, for `commit` to pack."""
        target = self._target()
        staging = LocalStore(target, self._local_folder().sync).staging()
        if not empty and os.path.lexists(target):
            keys = list(self._entries())
            try:
                staging.put(
                    (k, d) for k, d in zip(keys, self.fetch(keys), strict=True) if d is not None
                )
            except BaseException:
                staging.discard()
                raise
        return staging

    def commit(self, staging: LocalStore) -> None:
        """Pack `staging` and put it in place of this file in one step, then remove it.

        Entries are stored, each name once, below a folder named as the file, directories first:
        netcdf-c reads no other layout, and zarr-python reads it with that folder as the path.
        """
        target = self._target()
        temporary = hidden_path(target, "tmp")
        try:
            with failing_as_ours(self.name):
                with zipfile.ZipFile(temporary, "x", strict_timestamps=False) as file:
                    _pack(file, staging.root, f"{self.key.removesuffix('.zip')}/")
                if staging.sync != "none":
                    sync_filesystem(os.path.dirname(target))
                os.replace(temporary, target)
        finally:
            if os.path.lexists(temporary):
                os.unlink(temporary)
        self._index = None
        staging.discard()

    def lock(self, key: str) -> AbstractContextManager[None]:
        """Keep other threads that take this lock from reading, merging and writing `key`."""
        return self._locks.hold(key)

    @contextmanager
    def _rewriting(self) -> Iterator[LocalStore]:
        staging = self.staging()
        try:
            yield staging
            self.commit(staging)
        finally:
            staging.discard()

    def _target(self) -> str:
        return os.path.realpath(f"{self._local_folder().root}/{self.key}")

    def _local_folder(self) -> LocalStore:
        if not isinstance(self.folder, LocalStore):
            raise UnsupportedError(
                "only zip files on a local disk can be written",
                remedy="Write it to a local path and copy it.",
                store=self.name,
            )
        return self.folder

    def _read(self, places: Sequence[tuple[int, int]]) -> Iterator[Bytes]:
        """Yield the bytes of the file at each (offset, length)."""
        for data in self.folder.fetch_ranges([ByteRange(self.key, *place) for place in places]):
            if data is None:
                raise NotFoundError("the zip file is no longer there", store=self.name)
            yield data

    def _entries(self) -> dict[str, _Entry]:
        """Give the entries by key, without the one folder around them all; they are read once."""
        if self._index is None:
            size = self.folder.size(self.key)
            if size is None:
                raise NotFoundError("there is no such zip file", store=self.name)
            source: Any = _RangeFile(self, size)
            try:
                with zipfile.ZipFile(source) as file:
                    found, end = file.infolist(), file.start_dir
            except (zipfile.BadZipFile, NotImplementedError, struct.error) as error:
                raise self._damaged(f"found no readable zip file ({error})") from error
            entries = self._checked(found, end)
            folders = {name.partition("/")[0] if "/" in name else "" for name in entries}
            prefix = f"{folders.pop()}/" if len(folders) == 1 and "" not in folders else ""
            self._index = {name.removeprefix(prefix): entry for name, entry in entries.items()}
        return self._index

    def _checked(self, found: list[zipfile.ZipInfo], end: int) -> dict[str, _Entry]:
        """Give the entries by name; names that lead elsewhere and overlaps are refused."""
        infos = [info for info in found if not info.orig_filename.startswith(_JUNK)]
        starts = sorted(info.header_offset for info in infos)
        room = {start: after - start for start, after in pairwise([*starts, end])}
        entries: dict[str, _Entry] = {}
        for info in infos:
            name, start = info.orig_filename, info.header_offset
            check_key(name.removesuffix("/"), self.name)
            needed = _HEADER + len(name) + info.compress_size
            if room[start] < needed or len(room) < len(infos):
                raise self._damaged("entries of the file overlap: it is hostile", name)
            if not info.is_dir():
                span = min(room[start], needed + 3 * len(name) + _LONGEST_EXTRA)
                entries[name] = _Entry(start, span, info)
        return entries

    def _entry(self, key: str) -> _Entry | None:
        """Give an entry that can be decoded within the limits, None if there is none."""
        check_key(key, self.name)
        entry = self._entries().get(key)
        if entry is None:
            return None
        info = entry.info
        if info.flag_bits & 1 or not (entry.deflated or info.compress_type == zipfile.ZIP_STORED):
            raise UnsupportedError(
                "the entry is encrypted, or neither stored nor deflated",
                remedy="Pack the store again, without compression: its chunks have their own.",
                store=self.name,
                key=key,
            )
        if not entry.deflated and info.file_size != info.compress_size:
            raise self._damaged("the entry is stored, and its two sizes differ", key)
        if max(info.file_size, info.compress_size) > self.max_object_bytes:
            raise LimitError(
                f"the entry has {info.file_size} bytes ({info.compress_size} stored), "
                f"the limit is {self.max_object_bytes}",
                remedy="If that is right, raise max_chunk_bytes or max_consolidated_bytes.",
                store=self.name,
                key=key,
            )
        return entry

    def _decode(self, key: str, entry: _Entry, data: Bytes) -> Bytes:
        """Give the object in the bytes of its local header and what follows."""
        size, start = entry.info.file_size, self._data_start(key, entry, data)
        content: Bytes = memoryview(data)[start : start + entry.info.compress_size]
        if entry.deflated:
            decoder = zlib.decompressobj(-zlib.MAX_WBITS)
            try:
                content = decoder.decompress(content, size + 1)
            except zlib.error as error:
                raise self._damaged(f"the entry does not inflate ({error})", key) from error
        if len(content) != size or zlib.crc32(content) != entry.info.CRC:
            problem = f"the entry's {len(content)} bytes (expected {size}) have a wrong checksum"
            raise self._damaged(problem, key)
        return content

    def _data_start(self, key: str, entry: _Entry, data: Bytes) -> int:
        """Give the bytes from an entry's local header to its data."""
        mark, flags, crc, name_length, extra_length = struct.unpack_from("<4s2xH6xI8xHH", data)
        # With this flag the checksum follows the data.
        if mark != b"PK\x03\x04" or (not flags & 8 and crc != entry.info.CRC):
            raise self._damaged("the entry is not where the directory of the file says", key)
        return int(_HEADER + name_length + extra_length)

    def _damaged(self, problem: str, key: str | None = None) -> StorageError:
        remedy = "The file was cut, changed or damaged: copy or write it again."
        return StorageError(problem, remedy=remedy, store=self.name, key=key)


class _RangeFile:
    """The file as `zipfile` reads it; its end comes in one request."""

    def __init__(self, store: ZipStore, size: int) -> None:
        self._store = store
        self._size = size
        self._position = 0
        self._tail = self._range(max(0, size - _TAIL), size)

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> None:
        self._position = offset + (self._size if whence == os.SEEK_END else 0)
        if self._position < 0:
            raise OSError("seek before the beginning")

    def read(self, count: int = -1) -> bytes:
        start = min(self._position, self._size)
        self._position = end = self._size if count < 0 else min(start + count, self._size)
        before = self._size - len(self._tail)
        return (
            self._tail[start - before : end - before]
            if start >= before
            else self._range(start, end)
        )

    def _range(self, start: int, end: int) -> bytes:
        return bytes(next(self._store._read([(start, end - start)])))


def _pack(file: zipfile.ZipFile, root: str, prefix: str) -> None:
    """Write everything below `root`: first the directories, then the files."""
    folders, files = [prefix], []
    for parent, below, names in os.walk(root):
        inside = os.path.relpath(parent, root).replace(os.sep, "/")
        base = prefix if inside == "." else f"{prefix}{inside}/"
        folders += [f"{base}{name}/" for name in sorted(below)]
        files += [(f"{base}{name}", f"{parent}/{name}") for name in sorted(names)]
    for name in folders:
        file.writestr(zipfile.ZipInfo(name), b"")
    for name, path in files:
        if not is_hidden(name.rpartition("/")[2]):
            with open(path, "rb") as source, file.open(zipfile.ZipInfo(name), "w") as target:
                shutil.copyfileobj(source, target, 1 << 20)
