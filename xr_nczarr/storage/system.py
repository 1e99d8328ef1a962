"""Wrap system calls for files, with replacements for calls that some operating systems lack.

Other modules do not check which operating system they run on. However, some of them depend on the
system's path separator, ``os.sep``. The replacements are listed in docs/reference/versions.md.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import import_module
from typing import Any, Literal, TypeVar

from xr_nczarr.errors import ConflictError, quote
from xr_nczarr.storage.keys import KeyLocks

_T = TypeVar("_T")

Sync = Literal["commit", "all", "none"]

_WINDOWS = sys.platform == "win32"

MOVES_OPEN_DIRECTORIES = not _WINDOWS
"""Whether a directory can be renamed while a file in it is open."""


_fcntl: Any = None
_msvcrt: Any = None
with suppress(ImportError):
    _fcntl = import_module("fcntl")
with suppress(ImportError):
    _msvcrt = import_module("msvcrt")
_FULL_SYNC: int | None = getattr(_fcntl, "F_FULLFSYNC", None)

# O_NONBLOCK: opening a FIFO must not wait for a writer.
# O_BINARY: without this flag, Windows translates newlines.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
_OFFSET = ctypes.c_int64
_AT_FDCWD, _EXCHANGE, _SYNC_FILE_RANGE_WRITE = -100, 2, 2
_MAX_READ_BYTES = 1 << 20  # per call
_MIN_EARLY_BYTES = 256 << 10  # minimum file size for `start_sync` to have an effect
# Seconds to wait before each retry on Windows, where a file that another program has open cannot be
# replaced. Readers, virus scanners and indexers keep a file open only briefly.
_WAITS = tuple(0.01 * 2**n for n in range(8)) if _WINDOWS else ()
_LOCK_WAIT = 0.01
# Errors of `flock` on file systems that cannot lock files (ENOLCK) or directories (EBADF in NFS).
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.EBADF)

_DEVICES = frozenset(
    {"CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"}
    | {f"{port}{number}" for port in ("COM", "LPT") for number in "0123456789¹²³"}
)
_SYSTEM_FOLDERS = ("/dev/", "/proc/", "/sys/")
_SHARED_MEMORY = "/dev/shm/"  # noqa: S108  (a folder of regular files)
_REFUSED_CHARACTERS = frozenset('<>:"\\|?*') | {chr(code) for code in range(32)}


_library: Any = None
with suppress(OSError, TypeError):  # raised on Windows
    _library = ctypes.CDLL(None, use_errno=True)
# C functions for which Python has no wrapper. The first three exist on Linux, the last on macOS.
_renameat2 = getattr(_library, "renameat2", None)
_syncfs = getattr(_library, "syncfs", None)
_sync_file_range = getattr(_library, "sync_file_range", None)
_renamex_np = getattr(_library, "renamex_np", None)


# ---- Reading


def open_to_read(path: str) -> int:
    """Open an existing file for reading, and return its descriptor.

    Opening a FIFO does not wait for a writer.
    """
    try:
        return os.open(path, _READ)
    except PermissionError:
        # Windows denies access while another process replaces the file, but also to directories.
        if not _WINDOWS or os.path.isdir(path):
            raise
        return _retry_while_open(os.open, path, _READ)


def _read_from(descriptor: int, length: int, start: int) -> bytes:
    """Return up to `length` bytes of a file, starting at offset `start`."""
    os.lseek(descriptor, start, os.SEEK_SET)
    return os.read(descriptor, length)


def _read_into_from(descriptor: int, buffers: Sequence[Any], start: int) -> int:
    """Read a file into buffers from offset `start`, and return the number of bytes read."""
    os.lseek(descriptor, start, os.SEEK_SET)
    done = 0
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        for buffer in buffers:
            count = file.readinto(buffer) or 0
            done += count
            if count < memoryview(buffer).nbytes:
                break
    return done


# The replacements move the file position, unlike the functions that they replace.
pread: Callable[[int, int, int], bytes] = getattr(os, "pread", _read_from)
preadv: Callable[[int, Sequence[Any], int], int] = getattr(os, "preadv", _read_into_from)


# ---- Writing and copying


def write(descriptor: int, view: memoryview) -> int:
    """Write all bytes of `view` to an open file, and return the number of bytes written."""
    done = 0
    while done < len(view):
        done += os.write(descriptor, view[done:])
    return done


def copy(source: int, target: int, size: int) -> int:
    """Copy up to `size` bytes between two open files, and return the number of bytes copied.

    `source` and `target` are file descriptors. Copying starts at the current position of each file.
    """
    done = 0
    with suppress(AttributeError, OSError):  # the calls below raise any error that persists
        while count := os.copy_file_range(source, target, size - done):
            done += count
    while data := os.read(source, min(size - done, _MAX_READ_BYTES)):
        done += write(target, memoryview(data))
    return done


# ---- Replacing


def open_to_create(path: str) -> int:
    """Create a file that must not exist yet, and return a descriptor for writing to it."""
    return os.open(path, _CREATE, 0o666)


def replace(source: str, target: str) -> None:
    """Rename a file, replacing any existing file at the new path."""
    _retry_while_open(os.replace, source, target)


def rename(source: str, target: str) -> None:
    """Rename a file or directory to a path that must not exist yet."""
    _retry_while_open(os.rename, source, target)


def rename_onto_empty(source: str, target: str) -> None:
    """Rename a directory to a path that does not exist, or that is an empty directory.

    Raises
    ------
    OSError
        With EEXIST, ENOTEMPTY or ENOTDIR if `target` is anything else.
    """
    if _WINDOWS:  # Windows never replaces a directory by renaming
        with suppress(FileNotFoundError):
            os.rmdir(target)
    rename(source, target)


def unlink(path: str) -> None:
    """Remove a file or a symbolic link."""
    _retry_while_open(os.unlink, path)


def remove_tree(path: str) -> None:
    """Remove a directory and everything in it."""
    _retry_while_open(shutil.rmtree, path)


def exchange(name: str, other: str) -> bool:
    """Swap two files or directories atomically, if the system supports that.

    Return whether they were swapped. If they were not, nothing has changed.
    """
    paths = os.fsencode(name), os.fsencode(other)
    if _renameat2 is not None:
        return bool(_renameat2(_AT_FDCWD, paths[0], _AT_FDCWD, paths[1], _EXCHANGE) == 0)
    return _renamex_np is not None and bool(_renamex_np(*paths, _EXCHANGE) == 0)


def _retry_while_open(operation: Callable[..., _T], *arguments: Any) -> _T:
    """Return ``operation(*arguments)``, retrying on Windows if another program has a file open."""
    for wait in _WAITS:
        with suppress(PermissionError):
            return operation(*arguments)
        time.sleep(wait)
    try:
        return operation(*arguments)
    except PermissionError as error:
        if _WINDOWS:
            error.strerror = f"{error.strerror}; another program may have a file open"
        raise


# ---- Flushing to disk


def syncs_each(sync: Sync) -> bool:
    """Return whether each file must be flushed to disk as soon as it is written.

    This is the case if `sync` is ``"all"``. On systems that cannot flush a whole file system with
    one call, it is also the case if `sync` is ``"commit"``.
    """
    return sync == "all" or (sync == "commit" and _syncfs is None)


def start_sync(descriptor: int, size: int) -> None:
    """Start writing a large file to disk, so that `sync_filesystem` takes less time later.

    This function does not wait, and does not report failures. `sync_filesystem` will report them.
    `size` is the size of the file in bytes.
    """
    if _sync_file_range is not None and size >= _MIN_EARLY_BYTES:
        _sync_file_range(descriptor, _OFFSET(0), _OFFSET(0), _SYNC_FILE_RANGE_WRITE)


def sync_filesystem(path: str) -> None:
    """Flush the file system containing the directory `path` to disk.

    On systems without ``syncfs``, each file has already been flushed (see `syncs_each`). This
    function then does nothing, except on macOS, where it flushes the drive's own cache.
    """
    if _syncfs is None and _FULL_SYNC is None:
        return
    with _opened(path) as descriptor:
        if _syncfs is None:
            _empty_drive_cache(descriptor)
        elif _syncfs(descriptor) != 0:
            errno = ctypes.get_errno()
            raise OSError(errno, os.strerror(errno))


def sync_file(path: str) -> None:
    """Flush a file to disk."""
    # Windows cannot sync a file that is open only for reading.
    with _opened(path, os.O_RDWR) as descriptor:
        os.fsync(descriptor)
        if _FULL_SYNC is not None:
            _empty_drive_cache(descriptor)


def sync_directory(path: str) -> None:
    """Flush the entries of a directory to disk, except on Windows, which journals them."""
    if not _WINDOWS:
        with _opened(path) as descriptor:
            os.fsync(descriptor)


def _empty_drive_cache(descriptor: int) -> None:
    """Flush the drive's own cache on macOS, because ``fsync`` does not flush it there."""
    try:
        _fcntl.fcntl(descriptor, _FULL_SYNC)
    except OSError as error:
        # Network file systems that do not support this call raise one of these errors.
        if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
            raise


@contextmanager
def _opened(path: str, flags: int = os.O_RDONLY) -> Iterator[int]:
    descriptor = _retry_while_open(os.open, path, flags, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


# ---- Locks

_process_locks = KeyLocks()
_replacing: set[tuple[int, str]] = set()
"""The threads that hold the exclusive lock of a directory, each with the directory's identity."""


@contextmanager
def locked(path: str) -> Iterator[None]:
    """Hold an exclusive lock across processes and threads, using a lock file at `path`.

    The lock file is created if necessary and removed afterwards. The operating system releases the
    lock when the process ends. On systems with neither ``flock`` nor ``msvcrt.locking``, the lock
    excludes only other threads of this process.
    """
    if _fcntl is None and _msvcrt is None:  # all known systems of this kind run only one process
        with _process_locks(path):
            yield
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    held = False
    try:
        while not held:
            with _opened(path, os.O_RDWR | os.O_CREAT) as descriptor:
                _lock(descriptor)
                # The previous holder may have removed the lock file or moved its directory.
                held = _is_at(descriptor, path)
                if held:
                    try:
                        yield
                    finally:
                        _unlock(descriptor, path)
    finally:
        if _fcntl is None:
            with suppress(OSError):  # other processes may have the file open
                os.unlink(path)


@contextmanager
def directory_lock(path: str, *, exclusive: bool) -> Iterator[None]:
    """Hold a lock on a directory, either exclusively or shared with other holders.

    If the directory is replaced while this function waits, the new directory is locked. A missing
    directory is not locked. On Windows, and on file systems that cannot lock directories, the
    function does nothing.

    Raises
    ------
    ConflictError
        If this thread already holds the exclusive lock. It would wait for itself forever.
    """
    thread = threading.get_ident()
    if (thread, file_identity(path)) in _replacing:
        raise ConflictError(
            "the values to write are computed by a function that itself writes to the same store, "
            "which is not possible while the store is being replaced",
            remedy="Compute the values first with .load(), or leave out atomic=True",
            store=path,
        )
    with ExitStack() as held:
        with suppress(FileNotFoundError):
            while _fcntl is not None:
                descriptor = held.enter_context(_opened(path))
                try:
                    _fcntl.flock(descriptor, _fcntl.LOCK_EX if exclusive else _fcntl.LOCK_SH)
                except OSError as error:
                    if error.errno not in _NO_LOCKS:
                        raise
                else:  # closing is not enough if a forked process has the directory open too
                    held.callback(_fcntl.flock, descriptor, _fcntl.LOCK_UN)
                if _is_at(descriptor, path):
                    break
                held.close()
        if exclusive:
            holder = (thread, file_identity(path))  # of the directory that is now locked
            _replacing.add(holder)
            held.callback(_replacing.discard, holder)
        yield


def _lock(descriptor: int) -> None:
    if _fcntl is not None:
        _fcntl.flock(descriptor, _fcntl.LOCK_EX)
        return
    while True:
        try:
            _msvcrt.locking(descriptor, _msvcrt.LK_NBLCK, 1)
        except PermissionError:  # LK_LOCK would try once a second and give up after ten tries
            time.sleep(_LOCK_WAIT)
        else:
            return


def _unlock(descriptor: int, path: str) -> None:
    """Release the lock on Windows; elsewhere, remove the lock file at `path`."""
    with suppress(OSError):  # a lock file that cannot be removed is used again
        if _fcntl is None:  # Windows cannot remove an open file, so `locked` removes it later
            os.lseek(descriptor, 0, os.SEEK_SET)
            _msvcrt.locking(descriptor, _msvcrt.LK_UNLCK, 1)
        # The lock is released when the caller closes `descriptor`. A lock file that was moved with
        # its directory is kept.
        elif _is_at(descriptor, path):
            os.unlink(path)


def _is_at(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


# ---- Names and paths


def invalid_name_reason(key: str) -> str | None:
    """Return the reason why a component of `key` is not a valid file name on Windows.

    Return None if all components are valid. On other systems, the result is always None. Source:
    https://learn.microsoft.com/windows/win32/fileio/naming-a-file
    """
    if not _WINDOWS:
        return None
    for name in key.split("/"):
        quoted = quote(repr(name))
        wrong = sorted(_REFUSED_CHARACTERS.intersection(name))
        if wrong:
            return f"Windows does not allow {wrong[0]!r} in {quoted}"
        if name.endswith((".", " ")):
            return f"Windows removes {name[-1]!r} from the end of {quoted}"
        if name.partition(".")[0].rstrip(" ").upper() in _DEVICES:
            return f"Windows treats {quoted} as a device"
    return None


def is_device(path: str) -> bool:
    """Return whether an absolute path may refer to a device instead of a regular file.

    On Windows, this is the case if the path begins like a device path (such as ``//./pipe``) or
    contains an invalid file name (such as ``NUL``). On other systems, it is the case if the path is
    under /dev, /proc or /sys, but not under /dev/shm. Resolve symbolic links in the path before
    calling this function.
    """
    if not _WINDOWS:
        folder = f"{path}/"
        return folder.startswith(_SYSTEM_FOLDERS) and not folder.startswith(_SHARED_MEMORY)
    drive, names = os.path.splitdrive(path.replace(os.sep, "/"))
    return drive.startswith(("//./", "//?/")) or invalid_name_reason(names) is not None


def are_same_name(folder: str, name: str, other: str) -> bool:
    """Return whether the file system of `folder` treats two names as the same name.

    To find out, this function temporarily creates a file in `folder`.
    """
    first = next((i for i, (a, b) in enumerate(zip(name, other, strict=False)) if a != b), 0)
    token = secrets.token_hex(4)
    path, alias = (f"{folder}/.{token}{name[first : first + 32]}.tmp" for name in (name, other))
    os.close(open_to_create(path))
    try:
        return os.path.lexists(alias)
    finally:
        unlink(path)


def is_inside(path: str, folder: str) -> bool:
    """Return whether `path` is `folder` or inside it, after resolving symbolic links."""
    real, parent = (os.path.normcase(os.path.realpath(item)) for item in (path, folder))
    return f"{real}{os.sep}".startswith(parent.rstrip(os.sep) + os.sep)


def broken_link(path: str, folder: str) -> str | None:
    """Return the path of the broken symbolic link that explains why `path` does not exist.

    The link is `path` itself, or one of its parents inside `folder`. Return None if there is no
    broken link.
    """
    while len(path) > len(folder):
        if os.path.islink(path) and not os.path.exists(path):
            return path
        path = path.rpartition("/")[0]
        if len(path) > len(folder) and os.path.exists(path):
            break
    return None


def file_identity(path: str) -> str:
    """Return a string that is the same for all paths to the same file or directory.

    If nothing exists at `path`, the string is the path with all symbolic links resolved.
    """
    try:
        status = os.stat(path)
    except OSError:  # it does not exist
        return os.path.normcase(os.path.realpath(path))
    return f"{status.st_dev}:{status.st_ino}"


def boot_id() -> str:
    """Return an identifier of the machine's current boot, or an empty string if it is unknown.

    As long as the identifier stays the same, written data is intact even if it was not flushed to
    disk.
    """
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read()
    except FileNotFoundError:
        return ""
