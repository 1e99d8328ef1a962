"""The store class for local directories, implemented with string paths and `os` calls.

pathlib and fsspec are not used, because their overhead exceeds the time that it takes to read a
small chunk.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar, TypeVar

from xr_nczarr.errors import ConflictError, NotFoundError, RefusedError, StorageError, quote
from xr_nczarr.storage import system
from xr_nczarr.storage.atomic_files import (
    check_not_hidden,
    concurrent_creation_error,
    copy_tree,
    discard_tree,
    existing_folder,
    file_manager_files,
    hidden_path,
    is_hidden,
    link_or_copy,
    remove,
    replace_directory,
    write_file,
)
from xr_nczarr.storage.fingerprint import digest, files_below
from xr_nczarr.storage.keys import (
    WRITER_LOCK,
    Listing,
    check_key,
    check_key_or_prefix,
    check_prefix,
    name_collisions,
)
from xr_nczarr.storage.ranges import ByteRange, Bytes, first_byte, too_large, truncation_error
from xr_nczarr.storage.retries import held_lock, storage_error, translated_os_errors
from xr_nczarr.storage.store import Address, Store
from xr_nczarr.storage.system import Sync, syncs_each

_T = TypeVar("_T")

_MAX_READ_BYTES = 1 << 30  # one call on Linux reads at most 2 GiB minus one page


@dataclass(frozen=True, slots=True, weakref_slot=True)
class LocalStore(Store):
    """A store in a local directory, with one file for each object.

    Parameters
    ----------
    root
        Absolute path of the directory.
    sync
        When to flush written data to disk: when `flush` is called (``"commit"``), after each object
        (``"all"``), or whenever the operating system decides (``"none"``).
    must_exist
        Whether to raise an error if the directory is missing. Otherwise, a missing directory is
        treated as an empty store.
    follow_symlinks
        Whether symbolic links may point outside `root`.
    max_object_bytes
        Maximum size of an object in bytes. Reading a larger object raises LimitError before any
        memory is allocated.
    """

    root: str
    sync: Sync = "commit"
    must_exist: bool = False
    follow_symlinks: bool = True
    max_object_bytes: int = 4 << 30

    reads_in_place: ClassVar[bool] = True
    locks_processes: ClassVar[bool] = True
    replaceable: ClassVar[bool] = True
    has_folders: ClassVar[bool] = True

    @property
    def name(self) -> str:  # type: ignore[override]
        """The path of the directory."""
        return self.root

    def bounded(self, max_bytes: int) -> LocalStore:
        """Return a variant of this store that limits the size of objects; see `Store.bounded`."""
        return replace(self, max_object_bytes=min(max_bytes, self.max_object_bytes))

    def fetch(self, keys: Sequence[str]) -> Iterator[bytes | None]:
        """Yield the bytes of the object at each key, or None for a missing object."""
        for key in keys:
            descriptor = self._if_present(system.open_to_read, key)
            if descriptor is None:
                yield None
                continue
            try:
                data = self._read(descriptor, key, 0, self._measure(descriptor, key))
            finally:
                os.close(descriptor)
            yield data

    def fetch_into(self, key: str, buffer: Any) -> int | None:
        """Read an object into `buffer`, and return the object's size; see `Store.fetch_into`."""
        descriptor = self._if_present(system.open_to_read, key)
        if descriptor is None:
            return None
        try:
            # Attempting to read one more byte shows whether the object is longer than `buffer`.
            try:
                size = system.preadv(descriptor, (buffer, bytearray(1)), 0)
            except OSError:
                size = -1  # if the error persists, `_read` raises it
            if size == buffer.nbytes:
                return size
            size = self._measure(descriptor, key)
            if size == buffer.nbytes:  # the system did not read everything in one call
                memoryview(buffer).cast("B")[:] = self._read(descriptor, key, 0, size)
            return size
        finally:
            os.close(descriptor)

    def fetch_ranges_into(
        self, key: str, spans: Sequence[tuple[int, int]], buffers: Sequence[Any]
    ) -> int | None:
        """Read ranges of an object, and return its size; see `Store.fetch_ranges_into`."""
        descriptor = self._if_present(system.open_to_read, key)
        if descriptor is None:
            return None
        try:
            size = self._measure(descriptor, key)
            for (start, length), buffer in zip(spans, buffers, strict=True):
                if not 0 <= start <= start + length <= size:
                    start = first_byte(ByteRange(key, start, length), size, self.name)
                try:
                    count = system.preadv(descriptor, (buffer,), start)
                except OSError:
                    count = -1  # if the error persists, `_read` raises it
                if count != length:
                    buffer[:] = self._read(descriptor, key, start, length)
        finally:
            os.close(descriptor)
        return size

    @contextmanager
    def reading(self, key: str) -> Iterator[Callable[[int, int], bytes | None]]:
        """Yield a function that reads ranges of an object, given an offset and a length.

        The function returns None if the object does not exist. All calls read the same file, even
        if the object is replaced between two calls.
        """
        descriptor = self._if_present(system.open_to_read, key)
        if descriptor is None:
            yield lambda *_: None
            return
        try:
            size = self._measure(descriptor, key)

            def read(start: int, length: int) -> bytes:
                first = first_byte(ByteRange(key, start, length), size, self.name)
                return self._read(descriptor, key, first, length)

            yield read
        finally:
            os.close(descriptor)

    def fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[bytes | None]:
        """Yield the bytes of each range, or None for a range of a missing object."""
        for key, group in groupby(ranges, itemgetter(0)):
            descriptor = self._if_present(system.open_to_read, key)
            if descriptor is None:
                yield from (None for _ in group)
                continue
            try:
                size = self._measure(descriptor, key)
                for item in group:
                    _, start, length = item
                    if not 0 <= start <= start + length <= size:
                        start = first_byte(item, size, self.name)
                    yield self._read(descriptor, key, start, length)
            finally:
                os.close(descriptor)

    def put(self, items: Iterable[tuple[str, Bytes]]) -> None:
        """Write each object atomically, replacing any existing object."""
        for key, data in items:
            view = memoryview(data).cast("B")
            self._write(key, len(view), partial(system.write, view=view))

    def copy_from(self, source: Store, keys: Sequence[tuple[str, str]]) -> list[bool]:
        """Copy objects from another store, and return whether each object exists in `source`.

        Each item of `keys` is a (key in `source`, key in this store) pair.

        Raises
        ------
        StorageError
            If an object was truncated while being copied.
        """
        if not isinstance(source, LocalStore):
            return Store.copy_from(self, source, keys)
        copied = []
        for source_key, key in keys:
            descriptor = source._if_present(system.open_to_read, source_key)
            copied.append(descriptor is not None)
            if descriptor is None:
                continue
            try:
                size = source._measure(descriptor, source_key)
                self._write(key, size, partial(source._copy, descriptor, source_key, size))
            finally:
                os.close(descriptor)
        return copied

    def _write(self, key: str, size: int, fill: Callable[[int], object]) -> None:
        path = self._path(key)
        with translated_os_errors(self.name, key):
            self._check_root()  # a store that was removed must not be created again
            write_file(path, size, fill, sync=self.sync)

    def _copy(self, descriptor: int, key: str, size: int, target: int) -> None:
        done = system.copy(descriptor, target, size)
        if done < size:
            raise truncation_error(size, done, self.name, key)

    def list_names(self, prefix: str) -> Listing:
        """Return the sorted names of the objects and prefixes directly under `prefix`."""
        check_prefix(prefix, self.name)
        path = self._path(prefix[:-1]) if prefix else self.root
        objects: list[str] = []
        prefixes: list[str] = []
        with translated_os_errors(self.name, prefix):
            try:
                with os.scandir(path) as entries:
                    for entry in entries:
                        if not is_hidden(entry.name):
                            # Unlike `isdir`, `is_dir` raises an error for a loop of links.
                            is_link = entry.is_symlink()
                            is_folder = os.path.isdir(entry.path) if is_link else entry.is_dir()
                            (prefixes if is_folder else objects).append(entry.name)
            except (FileNotFoundError, NotADirectoryError):
                self._check_root()
        return Listing(sorted(objects), sorted(prefixes))

    def delete(self, prefix: str) -> None:
        """Remove one object, or all objects under a prefix; see `Store.delete`."""
        is_object = check_key_or_prefix(prefix, self.name)
        path = self._path(prefix.removesuffix("/")) if prefix else self.root
        missing = suppress(FileNotFoundError, NotADirectoryError)
        with translated_os_errors(self.name, prefix), missing:
            if is_object:
                system.unlink(path)
            elif prefix and os.path.isdir(path):
                remove(path)
            else:
                for name in os.listdir(path):
                    remove(f"{path}/{name}")
            if syncs_each(self.sync):
                system.sync_directory(os.path.dirname(path) if prefix else path)

    def flush(self) -> None:
        """Flush all previously written data to disk, unless `sync` is ``"none"``."""
        if self.sync != "none" and os.path.isdir(self.root):
            with translated_os_errors(self.name):
                system.sync_filesystem(self.root)

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None if the object does not exist."""
        status = self._if_present(os.stat, key)  # this also works for unreadable files
        return None if status is None else self._checked_size(status, key)

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int | None]]:
        """Yield the key and the size in bytes of every file under `prefix`.

        The size is None for anything that cannot be read, such as a device or a broken link.
        """
        for key in self.list_keys(prefix):
            size = None
            with suppress(OSError):  # reading the object raises the error
                status = os.stat(f"{self.root}/{key}")
                size = status.st_size if stat.S_ISREG(status.st_mode) else None
            yield key, size

    def lock(self, key: str) -> AbstractContextManager[None]:
        """Return a context manager that holds the writer lock of an object.

        The lock excludes other threads and processes. If `key` is empty, lock the whole store.
        """
        path = hidden_path(self._path(key), "lock", unique=False) if key else self._writer_lock()
        return held_lock(system.locked(path), self.name, key)

    def replacement_lock(self, *, exclusive: bool) -> AbstractContextManager[None]:
        """Return a context manager that locks the directory; see `Store.replacement_lock`."""
        return held_lock(system.directory_lock(self.root, exclusive=exclusive), self.name)

    def staging(self, *, empty: bool) -> LocalStore:
        """Return a new staging store, for use with `commit`.

        The staging store is a hidden directory beside the directory of this store. If `empty` is
        true, it initially contains only ``.DS_Store`` and similar files from the root of this
        store. Otherwise, it contains hard links to the objects of this store, or copies if hard
        links are impossible.
        """
        root = hidden_path(os.path.realpath(self.root), "staging")
        sync = syncs_each(self.sync)
        try:
            with translated_os_errors(self.name):
                if empty or not os.path.isdir(self.root):
                    os.makedirs(root)
                    for name in file_manager_files(self.root):
                        link_or_copy(f"{self.root}/{name}", f"{root}/{name}", sync=sync)
                else:
                    # Hard links are safe, because objects are never changed in place.
                    copy_tree(os.path.realpath(self.root), root, sync=sync)
        except BaseException:
            discard_tree(root)
            raise
        return replace(self, root=root, must_exist=True)

    def commit(self, staging: LocalStore, *, exclusive: bool = False) -> None:
        """Replace this store atomically with `staging`, and remove the old directory.

        If the process is killed, at least one of the two stores is still complete. On a system that
        cannot swap two directories atomically, both stores may be left under hidden names; see
        `replace_directory`.

        Raises
        ------
        ExistsError
            If `exclusive` is true and the store already exists.
        """
        target = os.path.realpath(self.root)
        staging.flush()
        with translated_os_errors(self.name):
            try:
                replace_directory(staging.root, target, exclusive=exclusive)
            except OSError as error:
                if exclusive and error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise concurrent_creation_error(self.name) from error
                raise
            if self.sync != "none":
                system.sync_directory(os.path.dirname(target))

    def discard(self) -> None:
        """Remove the directory of this staging store, unless `commit` has already moved it."""
        discard_tree(self.root)

    def addresses(self, keys: Sequence[str]) -> dict[str, Address]:
        """Map each key to the path of the file that contains its object."""
        return {key: Address(f"{self.root}/{key}") for key in keys}

    @property
    def identity(self) -> str:
        """An identifier of the directory. All paths to the directory have the same identifier."""
        return system.file_identity(self.root)

    def is_within(self, other: Store) -> bool:
        """Return whether `other` is a local directory that contains this store, at any depth."""
        parent = os.path.dirname(self.root)
        return isinstance(other, LocalStore) and system.is_inside(parent, other.root)

    def fingerprint(self) -> str:
        """Return a string that changes whenever any file in the directory changes."""
        with translated_os_errors(self.name):
            return digest([self.name, *sorted(files_below(self.root))])

    def check_new_keys(self, new: Iterable[str], existing: Iterable[str]) -> None:
        """Check that the file system can store the `new` keys in addition to the `existing` keys.

        Raises
        ------
        RefusedError
            If a key is not a plain relative path, contains a name that this operating system does
            not allow, or contains a name reserved for temporary files. Also raised if a symbolic
            link on the path points outside the store and `follow_symlinks` is false. The error
            names the key.
        ConflictError
            If two names differ only in case or Unicode normalization, and the file system treats
            them as equal.
        """
        new = list(new)
        for key in new:
            self._path(key)
            check_not_hidden(key, self.name)
        folder = existing_folder(self.root)
        for key, _, name, other in name_collisions(new, existing):
            with translated_os_errors(self.name):
                same = system.are_same_name(folder, name, other)
            if same:
                raise ConflictError(
                    f"this file system does not distinguish {quote(repr(name))} from "
                    f"{quote(repr(other))}, so one would overwrite the other",
                    remedy="Rename one of them, or write to a case-sensitive file "
                    "system or to an object store",
                    store=self.name,
                    key=key,
                )

    def _path(self, key: str) -> str:
        """Return the path of an object.

        Raises
        ------
        RefusedError
            If `key` is not a plain relative path of valid file names. Also raised if a symbolic
            link on the path points outside the store and `follow_symlinks` is false.
        """
        check_key(key, self.name)
        reason = system.invalid_name_reason(key)
        if reason is not None:
            raise RefusedError(
                f"the name is not a valid file name: {reason}",
                remedy="Rename the variable or group, or write to an object store",
                store=self.name,
                key=key,
            )
        path = f"{self.root}/{key}"
        if not self.follow_symlinks and not system.is_inside(path, self.root):
            raise RefusedError(
                "a symbolic link points outside the store",
                remedy="If you trust the store, open it without trust='none'",
                store=self.name,
                key=key,
            )
        return path

    def _writer_lock(self) -> str:
        """Return the path of the writer lock."""
        # On Windows, the lock file is beside the store, because a directory cannot be renamed while
        # a file in it is open. On other systems, the lock file is inside the store and moves with
        # it, because the parent directory might not be writable.
        if system.MOVES_OPEN_DIRECTORIES:
            return f"{self.root}/{WRITER_LOCK}"
        return hidden_path(os.path.realpath(self.root), "lock", unique=False)

    def _if_present(self, operation: Callable[[str], _T], key: str) -> _T | None:
        """Return ``operation(path)`` for an object's path, or None if the object does not exist."""
        path = self._path(key)
        try:
            return operation(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            link = system.broken_link(path, self.root)
            if link is not None:
                problem = f"the target of the symbolic link {quote(link)} does not exist"
                remedy = "Restore or mount the target, or remove the link"
                raise StorageError(problem, remedy=remedy, store=self.name, key=key) from error
            self._check_root()
            return None
        except OSError as error:
            raise storage_error(error, store=self.name, key=key) from error

    def _measure(self, descriptor: int, key: str) -> int:
        return self._checked_size(os.fstat(descriptor), key)

    def _checked_size(self, status: os.stat_result, key: str) -> int:
        if stat.S_ISREG(status.st_mode) and status.st_size <= self.max_object_bytes:
            return status.st_size
        if not stat.S_ISREG(status.st_mode):
            problem = "the path is a directory or a device; expected a regular file"
            remedy = "Restore the file, or remove the directory or device"
            raise StorageError(problem, remedy=remedy, store=self.name, key=key)
        problem = f"the file is {status.st_size:,} bytes long"
        raise too_large(problem, self.max_object_bytes, self.name, key)

    def _read(self, descriptor: int, key: str, start: int, length: int) -> bytes:
        """Read exactly `length` bytes from offset `start`."""
        parts: list[bytes] = []
        missing = length
        try:
            while missing or not parts:
                start_at = start + length - missing
                data = system.pread(descriptor, min(missing, _MAX_READ_BYTES), start_at)
                if len(data) == length:
                    return data
                parts.append(data)
                missing -= len(data)
                if not data:
                    break
        except OSError as error:
            raise storage_error(error, store=self.name, key=key) from error
        if missing:
            raise truncation_error(length, length - missing, self.name, key)
        return b"".join(parts)

    def _check_root(self) -> None:
        if self.must_exist and not os.path.isdir(self.root):
            raise NotFoundError("the directory no longer exists", store=self.name)
