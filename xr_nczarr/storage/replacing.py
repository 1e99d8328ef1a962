"""Files and directories that are replaced in one step, locked, and forced to the disk."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Literal

from xr_nczarr.errors import ExistsError, NczarrError, UnsupportedError

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_OFFSET = ctypes.c_int64
_AT_FDCWD, _RENAME_EXCHANGE, _SYNC_FILE_RANGE_WRITE = -100, 2, 2
_WRITTEN_EARLY = 256 << 10
"""From which size on it pays to let the disk begin before the flush; smaller files go together."""

Sync = Literal["commit", "all", "none"]


def hidden_path(path: str, ending: str, *, unique: bool = True) -> str:
    """Give a name beside `path` that no store lists, and that is short enough for any disk."""
    folder, _, name = path.rpartition("/")
    token = f".{secrets.token_hex(4)}" if unique else ""
    return f"{folder}/.{name[:48]}{token}.{ending}"


def is_hidden(name: str) -> bool:
    """Tell the files that writing leaves beside the objects for a while from the objects."""
    return name.startswith(".") and name.endswith((".tmp", ".lock", ".staging"))


def write_file(path: str, data: bytes | bytearray | memoryview, *, sync: Sync) -> None:
    """Write a file so that nobody ever sees half of it; folders are made as needed.

    With ``"all"`` it is on the disk before it gets its name, and its name as well. With
    ``"commit"`` the disk begins to write a large one, so that the flush finds less to do.
    """
    temporary = hidden_path(path, "tmp")
    try:
        descriptor = os.open(temporary, _CREATE, 0o666)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor = os.open(temporary, _CREATE, 0o666)
    try:
        try:
            view = memoryview(data).cast("B")
            done = 0
            while done < len(view):
                done += os.write(descriptor, view[done:])
            if sync == "all":
                os.fsync(descriptor)
            elif sync == "commit" and len(view) >= _WRITTEN_EARLY:
                begin = _c_function("sync_file_range")
                if begin is not None:  # it waits for nothing; the flush meets its failure again
                    begin(descriptor, _OFFSET(0), _OFFSET(0), _SYNC_FILE_RANGE_WRITE)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    if sync == "all":
        sync_directory(os.path.dirname(path))


def replace_directory(new: str, old: str, *, exclusive: bool = False) -> None:
    """Put the directory `new` in place of whatever `old` is, and remove that last.

    With `exclusive` there may be nothing but an empty directory, or it is an `OSError`.

    Where the system can exchange two names there is no moment without `old`; elsewhere there
    is a short one, and a process that is killed in it leaves the old one under a hidden name.
    """
    if exclusive or not os.path.lexists(old):
        os.rename(new, old)
        return
    if os.path.isdir(old):
        shutil.copymode(old, new)
    away = new
    if not _exchange(new, old):
        away = hidden_path(old, "staging")
        os.rename(old, away)
        try:
            os.rename(new, old)
        except OSError:
            os.rename(away, old)
            raise
    remove(away)


@contextmanager
def in_one_step(store: Any, *, empty: bool, exclusive: bool = False) -> Iterator[Any]:
    """Give what takes the place of a directory or zip file in one step, if the block ends well.

    It begins `empty`, or with what is there; see `commit` of these stores for `exclusive`.
    """
    staging = store.staging(empty=empty)
    try:
        yield staging
        store.commit(staging, exclusive=exclusive)
    except NczarrError as error:
        if error.store == staging.name:  # which nobody finds again
            error.store = store.name
        raise
    finally:
        staging.discard()


def made_meanwhile(name: str) -> ExistsError:
    """Give the error for a store that another writer has made while this one was written."""
    return ExistsError(
        "another writer has made it meanwhile",
        remedy="See what it has written; mode='w' replaces it",
        store=name,
    )


def link_or_copy(source: str, copy: str) -> None:
    """Give a file a second name, or copy it where the file system has no hard links.

    What writing leaves beside the objects for a while is left out.
    """
    if is_hidden(os.path.basename(source)):
        return
    try:
        os.link(source, copy)
    except OSError:
        shutil.copy2(source, copy)


def remove(path: str) -> None:
    """Remove a file, a link or a whole directory."""
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def sync_filesystem(path: str) -> None:
    """Force all that was written to the file system of the directory `path` to the disk."""
    syncfs = _c_function("syncfs")
    if syncfs is None:
        # Windows has no such call; macOS has only the one for all file systems.
        getattr(os, "sync", lambda: None)()
        return
    with _opened(path) as descriptor:
        if syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def sync_directory(path: str) -> None:
    """Force the names in a directory to the disk (Windows has no such call)."""
    if os.name == "posix":
        with _opened(path) as descriptor:
            os.fsync(descriptor)


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold a lock that excludes other processes and threads, as a file that is gone afterwards."""
    try:
        import fcntl
    except ImportError:
        raise UnsupportedError(
            "this system has no file locks, which writing a chunk in part needs",
            remedy="Write whole chunks, or pass safe_chunks=False and write from one process.",
        ) from None
    while True:
        with _opened(path, os.O_RDWR | os.O_CREAT) as descriptor:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Its last holder may have removed the file while we waited for it.
            if _same_file(descriptor, path):
                try:
                    yield
                finally:
                    # Not where it went with its directory, which was replaced whole.
                    with suppress(OSError):  # what is left of it can be locked again
                        if _same_file(descriptor, path):
                            os.unlink(path)
                return


@contextmanager
def _opened(path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    descriptor = os.open(path, flags, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _same_file(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _exchange(one: str, other: str) -> bool:
    """Swap two names in one step; False where the system or the file system cannot."""
    rename = _c_function("renameat2")
    if rename is None:
        return False
    paths = os.fsencode(one), os.fsencode(other)
    return bool(rename(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _RENAME_EXCHANGE) == 0)


@cache
def _c_function(name: str) -> Any:
    """Give a function of the C library that Python has no name for, None where there is none."""
    return getattr(ctypes.CDLL(None, use_errno=True), name, None) if os.name == "posix" else None
