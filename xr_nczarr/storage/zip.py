"""The store class for zip files."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from xr_nczarr.errors import UnsupportedError
from xr_nczarr.storage import system
from xr_nczarr.storage.atomic_files import concurrent_creation_error, hidden_path
from xr_nczarr.storage.fingerprint import file_fingerprint
from xr_nczarr.storage.keys import Listing, check_key, check_prefix, children_of
from xr_nczarr.storage.local import LocalStore
from xr_nczarr.storage.ranges import ByteRange, Bytes, cut_ranges, first_byte, too_large
from xr_nczarr.storage.retries import translated_os_errors
from xr_nczarr.storage.store import Address, Store
from xr_nczarr.storage.zip_index import HEADER, ZipContents, ZipEntry, damaged, data_start, decode


class ZipStore(Store):
    """A store whose objects are the entries of a zip file.

    The zip file is not unpacked for reading. Two layouts are supported: zarr-python writes the keys
    at the root of the zip file, and netCDF-C writes them under a single folder. If several entries
    have the same name, the last one is used.

    Parameters
    ----------
    folder
        The store that contains the zip file.
    key
        Key of the zip file in `folder`.
    max_object_bytes
        Maximum size of an object in bytes. Reading a larger object raises LimitError before any
        memory is allocated.
    """

    shared = False
    locks_processes = True
    replaceable = True
    single_file = True

    def __init__(self, folder: Store, key: str, max_object_bytes: int = 4 << 30) -> None:
        self.folder = folder
        self.key = key
        self.max_object_bytes = max_object_bytes
        self._opened: ZipContents | None = None
        self.name = f"{folder.name}/{key}"
        self.remote = folder.remote

    def __reduce__(self) -> tuple[Any, ...]:
        return ZipStore, (self.folder, self.key, self.max_object_bytes)

    @property
    def _contents(self) -> ZipContents:
        """The contents of the zip file, whose central directory is read only once."""
        if self._opened is None:
            self._opened = ZipContents(self.folder, self.key, self.name)
        return self._opened

    def bounded(self, max_bytes: int) -> ZipStore:
        """Return a variant of this store that limits the size of objects; see `Store.bounded`."""
        store = ZipStore(self.folder, self.key, min(max_bytes, self.max_object_bytes))
        store._opened = self._contents
        return store

    def fetch(self, keys: Sequence[str]) -> Iterator[Bytes | None]:
        """Yield the bytes of the object at each key, or None for a missing object."""
        entries = [self._entry(key) for key in keys]
        spans = self._contents.fetch([(entry.offset, entry.span) for entry in entries if entry])
        for key, entry in zip(keys, entries, strict=True):
            yield None if entry is None else decode(next(spans), entry, key, self.name)

    def fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        """Yield the bytes of each range, or None for a range of a missing object.

        Only the requested bytes are read from an uncompressed entry. A compressed entry is read as
        a whole.
        """
        places = self._uncompressed_ranges(item.key for item in ranges)
        spans = []
        for item in ranges:
            if item.key in places:
                offset, size = places[item.key]
                spans.append((offset + first_byte(item, size, self.name), item.length))
        stored = self._contents.fetch(spans)
        for item in ranges:
            if item.key in places:
                yield next(stored)
            else:
                yield from cut_ranges([item], self.fetch([item.key]), self.name)

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None if the object does not exist."""
        entry = self._entry(key)
        return None if entry is None else entry.info.file_size

    def addresses(self, keys: Sequence[str]) -> dict[str, Address]:
        """Map each key to the address of its object, which is a byte range of the zip file.

        Missing objects are omitted. If the zip file itself has no address, because it is in memory,
        the result is empty.

        Raises
        ------
        UnsupportedError
            If an entry is compressed.
        """
        places = self._uncompressed_ranges(keys)
        for key in keys:
            if key not in places and self._entry(key) is not None:
                raise UnsupportedError(
                    "the zip entry is compressed, so its bytes cannot be referenced",
                    remedy="Recreate the zip file without compression, or pass a larger "
                    "inline_below",
                    store=self.name,
                    key=key,
                )
        files = self.folder.addresses([self.key]).values()
        return {key: Address(file.url, *place) for file in files for key, place in places.items()}

    def _uncompressed_ranges(self, keys: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Map the key of each uncompressed object to its (offset, length) pair in the zip file.

        Keys of compressed objects and missing objects are omitted.
        """
        entries = {key: self._entry(key) for key in keys}
        stored = {key: entry for key, entry in entries.items() if entry and not entry.deflated}
        headers = self._contents.fetch([(entry.offset, HEADER) for entry in stored.values()])
        return {
            key: (entry.offset + data_start(header, entry, key, self.name), entry.info.file_size)
            for (key, entry), header in zip(stored.items(), headers, strict=True)
        }

    def list_names(self, prefix: str) -> Listing:
        """Return the sorted names of the objects and prefixes directly under `prefix`."""
        check_prefix(prefix, self.name)
        return children_of(self._contents.keys, prefix)

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield the key and the size in bytes of every object under `prefix`."""
        for key, entry in self._contents.entries.items():
            if key.startswith(prefix):
                yield key, entry.info.file_size

    def put(self, items: Iterable[tuple[str, Bytes]]) -> None:
        """Write objects by replacing the whole zip file.

        To write objects in several calls, use `atomic_replacement`, which replaces the file once.
        """
        with self.atomic_replacement(empty=False) as staging:
            staging.put(items)

    def delete(self, prefix: str) -> None:
        """Remove one object, or all objects under a prefix, by replacing the whole zip file."""
        with self.atomic_replacement(empty=False) as staging:
            staging.delete(prefix)

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Hold the writer lock of an object. If `key` is empty, lock the whole zip file."""
        folder, name = os.path.split(self._target())
        file = nullcontext() if key else LocalStore(folder).lock(name)
        with super().lock(key), file:
            self._opened = None  # another writer may have replaced the file
            yield

    def staging(self, *, empty: bool) -> LocalStore:
        """Return a new staging directory beside the zip file, for use with `commit`.

        The directory initially contains the objects of the zip file, or no objects if `empty` is
        true.
        """
        target = self._target()
        # Only the packed file is flushed to disk.
        staging = LocalStore(target, "none").staging(empty=True)
        if not empty and os.path.lexists(target):
            try:
                staging.check_new_keys(self._contents.entries, ())
                staging.put(self.fetch_present(list(self._contents.entries)))
            except BaseException:
                staging.discard()
                raise
        return staging

    def commit(self, staging: LocalStore, *, exclusive: bool = False) -> None:
        """Pack `staging` into a zip file that atomically replaces this one, then remove `staging`.

        Entries are stored uncompressed under a single folder named after the zip file. Directories
        come before files. This is the only layout that netCDF-C can read. zarr-python can read it
        if the folder is passed as the path.
        """
        folder, target = self._local_folder(), self._target()
        temporary = hidden_path(target, "tmp")
        try:
            with translated_os_errors(self.name):
                with zipfile.ZipFile(temporary, "x", strict_timestamps=False) as file:
                    _pack(file, staging, f"{self.key.removesuffix('.zip')}/")
                if folder.sync != "none":
                    system.sync_file(temporary)
                if exclusive and os.path.lexists(target):
                    raise concurrent_creation_error(self.name)
                system.replace(temporary, target)
                if folder.sync != "none":
                    system.sync_directory(os.path.dirname(target))
        finally:
            if os.path.lexists(temporary):
                os.unlink(temporary)
        self._opened = None
        staging.discard()

    def check_writable(self) -> None:
        """Raise UnsupportedError unless the zip file is local."""
        self._local_folder()

    def check_new_keys(self, new: Iterable[str], existing: Iterable[str]) -> None:
        """Check that the keys are valid file names, because the staging store is a local directory.

        See `Store.check_new_keys`.
        """
        LocalStore(os.path.dirname(self._target())).check_new_keys(new, existing)

    def fingerprint(self) -> str | None:
        """Return a string that changes whenever the zip file changes, or None for a remote file."""
        if not isinstance(self.folder, LocalStore):
            return None
        return file_fingerprint(f"{self.folder.root}/{self.key}")

    def _target(self) -> str:
        return os.path.realpath(f"{self._local_folder().root}/{self.key}")

    def _local_folder(self) -> LocalStore:
        if not isinstance(self.folder, LocalStore):
            raise UnsupportedError(
                "zip files can be written only to a local disk",
                remedy="Write to a local path, then copy the file",
                store=self.name,
            )
        return self.folder

    def _entry(self, key: str) -> ZipEntry | None:
        """Return the entry at `key`, or None if it does not exist.

        Raises
        ------
        UnsupportedError
            If the entry is encrypted, or uses an unsupported compression method.
        StorageError
            If the entry is damaged.
        LimitError
            If the entry is larger than `max_object_bytes`.
        """
        check_key(key, self.name)
        entry = self._contents.entries.get(key)
        if entry is None:
            return None
        info = entry.info
        if info.flag_bits & 1 or not (entry.deflated or info.compress_type == zipfile.ZIP_STORED):
            raise UnsupportedError(
                "the zip entry is encrypted or uses an unsupported compression method",
                remedy="Recreate the zip file without encryption or compression",
                store=self.name,
                key=key,
            )
        if not entry.deflated and info.file_size != info.compress_size:
            problem = "the central directory declares two different sizes for an uncompressed entry"
            raise damaged(problem, self.name, key)
        if max(info.file_size, info.compress_size) > self.max_object_bytes:
            stored = f"{info.compress_size:,} in the zip file"
            problem = f"the zip entry is {info.file_size:,} bytes long ({stored})"
            raise too_large(problem, self.max_object_bytes, self.name, key)
        return entry


def _pack(file: zipfile.ZipFile, store: LocalStore, prefix: str) -> None:
    """Write the folders and then the objects of `store` to a folder of a zip file."""
    keys = list(store.list_keys())
    folders = {""}
    for key in keys:
        while key := key.rpartition("/")[0]:
            folders.add(f"{key}/")
    for folder in sorted(folders):
        file.writestr(zipfile.ZipInfo(prefix + folder), b"")
    for key in keys:
        info = zipfile.ZipInfo(prefix + key)
        with open(f"{store.root}/{key}", "rb") as source, file.open(info, "w") as target:
            shutil.copyfileobj(source, target, 1 << 20)
