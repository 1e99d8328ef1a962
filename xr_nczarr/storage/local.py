"""Plain files: the fast path, on strings and `os` calls alone.

Both pathlib and fsspec cost more than the read of a small chunk.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar

from xr_nczarr.errors import NotFoundError, RefusedError, StorageError, quote
from xr_nczarr.storage.keys import check_key, check_prefix, check_target
from xr_nczarr.storage.protocol import ByteRange, Bytes, Listing
from xr_nczarr.storage.ranges import first_byte, too_large
from xr_nczarr.storage.replacing import (
    Sync,
    hidden_path,
    is_hidden,
    link_or_copy,
    locked,
    made_meanwhile,
    remove,
    replace_directory,
    sync_directory,
    sync_filesystem,
    write_file,
)
from xr_nczarr.storage.retries import failing_as_ours, storage_error

# O_NONBLOCK: opening a FIFO must not wait for its writer. O_BINARY: Windows.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_LONGEST_READ = 1 << 30  # Linux reads at most 2 GiB less a page at once


@dataclass(frozen=True, slots=True)
class LocalStore:
    """A directory of plain files.

    Parameters
    ----------
    root
        Absolute path of the directory.
    sync
        When written bytes are forced to the disk: at every `flush` (``"commit"``), with every
        object (``"all"``), or when the operating system likes (``"none"``).
    must_exist
        Whether a missing root is an error rather than a store without objects.
    follow_symlinks
        Whether links may lead out of `root`.
    max_object_bytes
        Objects above it are refused before anything is allocated.
    """

    root: str
    sync: Sync = "commit"
    must_exist: bool = False
    follow_symlinks: bool = True
    max_object_bytes: int = 4 << 30

    remote: ClassVar[bool] = False

    @property
    def name(self) -> str:
        """The path of the directory."""
        return self.root

    def bounded(self, most: int) -> LocalStore:
        """Give the store that reads no object of more than `most` bytes."""
        return replace(self, max_object_bytes=min(most, self.max_object_bytes))

    def fetch(self, keys: Sequence[str]) -> Iterator[bytes | None]:
        """Yield each object in the order of `keys`, None for one that is not there."""
        for key in keys:
            descriptor = self._open(key)
            if descriptor is None:
                yield None
                continue
            try:
                data = self._read(descriptor, key, 0, self._measure(descriptor, key))
            finally:
                os.close(descriptor)
            yield data

    def fetch_into(self, key: str, buffer: Any) -> int | None:
        """Read the object into `buffer`, an array or memoryview, and give its size in bytes.

        None when it is not there. Only of an object of its size does `buffer` hold all.
        """
        descriptor = self._open(key)
        if descriptor is None:
            return None
        try:
            # One byte more is asked for: what comes says itself whether the size is right.
            try:
                size: int = _read_into(descriptor, (buffer, bytearray(1)))
            except OSError:
                size = -1  # what is wrong shows below
            if size == buffer.nbytes:
                return size
            size = self._measure(descriptor, key)
            if size == buffer.nbytes:  # beyond what the system reads at once
                memoryview(buffer).cast("B")[:] = self._read(descriptor, key, 0, size)
            return size
        finally:
            os.close(descriptor)

    def fetch_ranges_into(
        self, key: str, spans: Sequence[tuple[int, int]], buffers: Sequence[Any]
    ) -> bool:
        """Read ranges of the object, by first byte and number, each into its buffer of bytes.

        False when it is not there; a StorageError when it ends before one of them does.
        """
        descriptor = self._open(key)
        if descriptor is None:
            return False
        try:
            size = self._measure(descriptor, key)
            for (start, length), buffer in zip(spans, buffers, strict=True):
                if not 0 <= start <= start + length <= size:
                    start = first_byte(ByteRange(key, start, length), size, self.name)
                try:
                    found = _pread_into(descriptor, (buffer,), start)
                except OSError:
                    found = -1  # what is wrong shows below
                if found != length:
                    buffer[:] = self._read(descriptor, key, start, length)
        finally:
            os.close(descriptor)
        return True

    @contextmanager
    def reading(self, key: str) -> Iterator[Callable[[int, int], bytes | None]]:
        """Give what reads bytes of an object, all of the file that is there now."""
        descriptor = self._open(key)
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
        """Yield each byte range in order, None where the object is not there."""
        for key, group in groupby(ranges, itemgetter(0)):
            descriptor = self._open(key)
            if descriptor is None:
                yield from (None for _ in group)
                continue
            try:
                size = self._measure(descriptor, key)
                for one in group:
                    _, start, length = one
                    if not 0 <= start <= start + length <= size:
                        start = first_byte(one, size, self.name)
                    try:
                        data = _pread(descriptor, length, start)
                    except OSError:
                        data = b""  # what is wrong shows below
                    if len(data) != length:
                        data = self._read(descriptor, key, start, length)
                    yield data
            finally:
                os.close(descriptor)

    def put(self, items: Iterable[tuple[str, Bytes]]) -> None:
        """Write objects, each whole or not at all, replacing what was there."""
        for key, data in items:
            check_key(key, self.name)
            with failing_as_ours(self.name, key):
                self._check_root()  # what was removed meanwhile is not begun anew
                write_file(f"{self.root}/{key}", data, sync=self.sync)

    def list_names(self, prefix: str) -> Listing:
        """Give one level below `prefix`, sorted; empty when there is nothing."""
        check_prefix(prefix, self.name)
        objects: list[str] = []
        prefixes: list[str] = []
        with failing_as_ours(self.name, prefix):
            try:
                with os.scandir(f"{self.root}/{prefix}") as entries:
                    for entry in entries:
                        if not is_hidden(entry.name):
                            (prefixes if entry.is_dir() else objects).append(entry.name)
            except (FileNotFoundError, NotADirectoryError):
                self._check_root()
        return Listing(sorted(objects), sorted(prefixes))

    def delete(self, prefix: str) -> None:
        """Remove the object `prefix`, or all objects below it when it ends in ``/`` or is empty."""
        path = f"{self.root}/{prefix}".rstrip("/")
        missing = suppress(FileNotFoundError, NotADirectoryError)
        with failing_as_ours(self.name, prefix), missing:
            if check_target(prefix, self.name):
                os.unlink(path)
            elif prefix and os.path.isdir(path):
                remove(path)
            else:
                for name in os.listdir(path):
                    remove(f"{path}/{name}")

    def flush(self) -> None:
        """Force everything written so far to the disk, unless `sync` is ``"none"``."""
        if self.sync != "none" and os.path.isdir(self.root):
            with failing_as_ours(self.name):
                sync_filesystem(self.root)

    def size(self, key: str) -> int | None:
        """Give the size of an object in bytes, None when it is not there."""
        descriptor = self._open(key)
        if descriptor is None:
            return None
        try:
            return self._measure(descriptor, key)
        finally:
            os.close(descriptor)

    @contextmanager
    def lock(self, key: str) -> Iterator[None]:
        """Keep all who take this lock from reading, merging and writing `key` meanwhile."""
        check_key(key, self.name)
        path = f"{self.root}/{key}"
        with ExitStack() as held:
            with failing_as_ours(self.name, key):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                held.enter_context(locked(hidden_path(path, "lock", unique=False)))
            yield

    def staging(self, *, empty: bool = True) -> LocalStore:
        """Give a store beside this one, for `commit` to put in its place.

        If not `empty` it begins with hard links to the objects of this one, which are never
        changed in place.
        """
        root = hidden_path(os.path.realpath(self.root), "staging")
        with failing_as_ours(self.name):
            if empty or not os.path.isdir(self.root):
                os.makedirs(root)
            else:
                shutil.copytree(os.path.realpath(self.root), root, copy_function=link_or_copy)
        return replace(self, root=root, must_exist=True)

    def commit(self, staging: LocalStore, *, exclusive: bool = False) -> None:
        """Put a finished `staging` in place of this store in one step, and remove the old one.

        Until then the old store is untouched; a process that is killed leaves the old or the new.
        With `exclusive` it is an `ExistsError` if there is one.
        """
        target = os.path.realpath(self.root)
        staging.flush()
        with failing_as_ours(self.name):
            try:
                replace_directory(staging.root, target, exclusive=exclusive)
            except OSError as error:
                if exclusive and error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise made_meanwhile(self.name) from error
                raise
            if self.sync != "none":
                sync_directory(os.path.dirname(target))

    def discard(self) -> None:
        """Remove the whole directory: a staging store that will not be committed."""
        shutil.rmtree(self.root, ignore_errors=True)

    def _open(self, key: str) -> int | None:
        """Open an object; give its descriptor, None when it is not there."""
        check_key(key, self.name)
        path = f"{self.root}/{key}"
        if not self.follow_symlinks:
            self._check_inside(path, key)
        try:
            return os.open(path, _READ)
        except (FileNotFoundError, NotADirectoryError):
            self._check_absent(path, key)
            return None
        except OSError as error:
            raise storage_error(error, store=self.name, key=key) from error

    def _measure(self, descriptor: int, key: str) -> int:
        """Give the size of an opened object, if it is a plain file and none too large."""
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_size <= self.max_object_bytes:
            return status.st_size
        if not stat.S_ISREG(status.st_mode):
            problem = "found a directory or a device where a plain file was expected"
            raise StorageError(problem, store=self.name, key=key)
        found = f"the file has {status.st_size:,} bytes"
        raise too_large(found, self.max_object_bytes, self.name, key)

    def _read(self, descriptor: int, key: str, start: int, length: int) -> bytes:
        """Read exactly `length` bytes, in as many reads as it takes."""
        parts: list[bytes] = []
        missing = length
        try:
            while missing or not parts:
                data = _pread(descriptor, min(missing, _LONGEST_READ), start + length - missing)
                if len(data) == length:
                    return data
                parts.append(data)
                missing -= len(data)
                if not data:
                    break
        except OSError as error:
            raise storage_error(error, store=self.name, key=key) from error
        if missing:
            raise StorageError(
                f"expected {length} bytes, got {length - missing}",
                remedy="The file was cut while it was read: read it again.",
                store=self.name,
                key=key,
            )
        return b"".join(parts)

    def _check_root(self) -> None:
        if self.must_exist and not os.path.isdir(self.root):
            raise NotFoundError("the directory is no longer there", store=self.name)

    def _check_absent(self, path: str, key: str) -> None:
        """Refuse to take for absent what a link stands for: it may only be elsewhere now."""
        while len(path) > len(self.root):
            if os.path.islink(path) and not os.path.exists(path):
                raise StorageError(
                    f"the symbolic link {quote(path)} leads to nothing",
                    remedy="Fetch or mount what it stands for, or remove it.",
                    store=self.name,
                    key=key,
                )
            path = path.rpartition("/")[0]
            if len(path) > len(self.root) and os.path.exists(path):
                return
        self._check_root()

    def _check_inside(self, path: str, key: str) -> None:
        root = os.path.realpath(self.root)
        if not os.path.realpath(path).startswith(root + os.sep):
            raise RefusedError(
                "a symbolic link leads out of the store",
                remedy="If you trust the store, open it with follow_symlinks=True.",
                store=self.name,
                key=key,
            )


def _read_some(descriptor: int, buffers: Sequence[Any]) -> int:
    """Read once into the first buffer, for systems without ``readv``; give the bytes read."""
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        count = file.readinto(buffers[0]) or 0
        return count + len(file.read(1) if count == buffers[0].nbytes else b"")


def _read_from(descriptor: int, length: int, start: int) -> bytes:
    """Read once from `start`, for systems without ``pread``."""
    os.lseek(descriptor, start, os.SEEK_SET)
    return os.read(descriptor, length)


def _read_into_from(descriptor: int, buffers: Sequence[Any], start: int) -> int:
    """Read once from `start` into the first buffer, for systems without ``preadv``."""
    data = _read_from(descriptor, buffers[0].nbytes, start)
    buffers[0][: len(data)] = data
    return len(data)


_read_into = getattr(os, "readv", _read_some)
_pread = getattr(os, "pread", _read_from)
_pread_into = getattr(os, "preadv", _read_into_from)
