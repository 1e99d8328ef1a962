"""Simulate Windows in a process on Linux: see `become_windows`.

The simulation follows the rules for files that Microsoft and Python document. It uses the paths of
`ntpath`. Some names are invalid or equivalent to other names, open files cannot be removed, and
calls that only POSIX has are absent.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import fcntl
import io
import ntpath
import os
import shutil
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

# These modules are imported before any function that they need is removed.
import dask.array
import dask.diagnostics  # noqa: F401
import distributed  # noqa: F401
import fsspec.implementations.local  # noqa: F401
import numcodecs  # noqa: F401
import pytest  # noqa: F401
import xarray  # noqa: F401

import tests.stores  # noqa: F401
from tests.processes import in_a_new_interpreter

POSIX_ONLY = (
    *(
        "O_DIRECTORY",
        "O_NONBLOCK",
        "O_CLOEXEC",
        "chown",
        "chroot",
        "fork",
        "forkpty",
        "getuid",
        "geteuid",
    ),
    *("mkfifo", "mknod", "posix_fadvise", "posix_fallocate", "pread", "preadv", "pwrite"),
    *("pwritev", "readv", "register_at_fork", "sched_getaffinity", "statvfs", "sync", "uname"),
    *("wait4", "writev"),
)
_REFUSED = frozenset('<>:"|?*') | {chr(code) for code in range(32)}
_DEVICES = {"CON", "PRN", "AUX", "NUL"} | {f"{p}{n}" for p in ("COM", "LPT") for n in range(1, 10)}
_open, _stat, _lstat, _listdir = os.open, os.stat, os.lstat, os.listdir
_readlink, _lseek = os.readlink, os.lseek


def on_windows(drive: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a module-level function in a process that simulates Windows, and return its result."""
    name = function.__module__, function.__qualname__
    return in_a_new_interpreter(_call_on_windows, str(drive), name, arguments)


def _call_on_windows(drive: str, name: tuple[str, str], arguments: tuple[Any, ...]) -> Any:
    become_windows(drive)
    return getattr(import_module(name[0]), name[1])(*arguments)


def take_away(*names: str) -> None:
    """Remove modules, members of `os` and functions of the C library that some systems lack.

    The package must be imported only after this call. Other modules that need the removed items are
    imported above.
    """
    assert not any(name.partition(".")[0] == "xr_nczarr" for name in sys.modules)
    _load_library = ctypes.CDLL

    class Library:
        def __init__(self, *arguments: Any, **options: Any) -> None:
            self._library = _load_library(*arguments, **options)

        def __getattr__(self, name: str) -> Any:
            if name in names:
                raise AttributeError(name)
            return getattr(self._library, name)

    ctypes.CDLL = Library  # type: ignore[assignment,misc]
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    shutil._rmtree_impl = shutil._rmtree_unsafe  # type: ignore[attr-defined]  # since Python 3.14
    for name in names:
        if hasattr(os, name):
            delattr(os, name)
        elif name in sys.stdlib_module_names:
            sys.modules[name] = None  # type: ignore[assignment]


def become_windows(drive: str) -> None:
    r"""Simulate Windows in this process until it ends, with the folder `drive` as ``C:\``.

    POSIX calls are removed. Paths that begin with ``/`` remain Linux paths, because the interpreter
    and other libraries need them. A test that accesses a network share (``\\server\share``) fails.
    """
    disk = _Disk(drive)
    os.makedirs(f"{drive}/work", exist_ok=True)
    first, second, rename = disk.path, disk.paths, disk.rename
    os.open, builtins.open, io.open = disk.open, disk.open_file, disk.open_file  # type: ignore
    for name in ("stat", "lstat", "listdir", "mkdir", "rmdir", "chmod", "utime", "access"):
        setattr(os, name, first(getattr(os, name)))
    os.scandir, os.readlink = first(os.scandir), first(os.readlink)
    os.rename, os.replace = rename(os.rename, over=False), rename(os.rename, over=True)
    os.unlink = os.remove = disk.unlink(os.unlink)
    os.link, os.fsync = second(os.link), disk.fsync(os.fsync)
    os.getcwd = lambda: r"C:\work"
    take_away("fcntl", *POSIX_ONLY)
    sys.modules["msvcrt"] = _msvcrt()
    shutil._copyxattr = lambda *_, **__: None  # type: ignore[attr-defined]
    ntpath.abspath = ntpath.realpath = _absolute  # type: ignore[assignment]
    os.path, os.sep, os.altsep = ntpath, "\\", "/"
    sys.modules["os.path"] = ntpath
    ctypes.CDLL = _no_library  # type: ignore[assignment,misc]
    sys.platform = "win32"


def _no_library(name: Any, *_: Any, **__: Any) -> Any:
    if name is None:
        raise TypeError("LoadLibrary() argument 1 must be str, not None")
    raise OSError("no such library")


def _absolute(path: Any, **_: Any) -> str:
    path = os.fspath(path)
    drive, rest = ntpath.splitdrive(path)
    if not drive:
        path = ntpath.join(r"C:\work", rest)
    elif not drive.startswith(("\\", "/")) and rest[:1] not in ("\\", "/"):
        path = f"{drive}\\work\\{rest}"
    return ntpath.normpath(path)


class _Disk:
    """A Linux folder with the file names and the sharing rules of Windows."""

    def __init__(self, folder: str) -> None:
        self.folder = os.path.realpath(folder).rstrip("/")
        # Processes take turns, so no operation occurs between a check and the following action.
        self.turns = _open(f"{self.folder}.turns", os.O_RDWR | os.O_CREAT)
        self.processes = f"{self.folder}.processes"
        os.makedirs(f"{self.processes}/{os.getpid()}")

    def path(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(path: Any = ".", *arguments: Any, **options: Any) -> Any:
            return operation(self.real(path), *arguments, **options)

        return run

    def paths(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(source: Any, target: Any, **options: Any) -> Any:
            return operation(self.real(source), self.real(target), **options)

        return run

    def rename(self, operation: Callable[..., Any], *, over: bool) -> Callable[..., Any]:
        def run(source: Any, target: Any) -> None:
            source, target = self.real(source), self.real(target)
            with self.turn():
                if os.path.lexists(target) and not over:
                    raise _error(errno.EEXIST, target)
                if os.path.isdir(target):
                    raise _error(errno.EACCES, target)
                self.check_closed(source)
                self.check_closed(target)
                operation(source, target)

        return run

    def unlink(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(path: Any) -> None:
            path = self.real(path)
            with self.turn():
                if os.path.isdir(path):
                    raise _error(errno.EACCES, path)
                self.check_closed(path)
                operation(path)

        return run

    def fsync(self, operation: Callable[..., Any]) -> Callable[..., Any]:
        def run(descriptor: int) -> None:
            if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            operation(descriptor)

        return run

    def open(self, path: Any, flags: int, mode: int = 0o777, **_: Any) -> int:
        path = self.real(path)
        if os.path.isdir(path):
            raise _error(errno.EACCES, path)
        with self.turn():
            return _open(path, flags, mode)

    def open_file(self, file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if isinstance(file, int) or (isinstance(file, str) and file.startswith("/")):
            return _io_open(file, mode, *arguments, **options)
        return _io_open(self.real(file), mode, *arguments, **options)

    @contextmanager
    def turn(self) -> Iterator[None]:
        fcntl.flock(self.turns, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self.turns, fcntl.LOCK_UN)

    def check_closed(self, path: str) -> None:
        """Raise Windows' error if a file is open, or if a folder contains an open file."""
        for process in _listdir(self.processes):
            try:
                numbers = _listdir(f"/proc/{process}/fd")
            except FileNotFoundError:  # the process has ended
                continue
            for number in numbers:
                try:
                    opened = _readlink(f"/proc/{process}/fd/{number}")
                except FileNotFoundError:
                    continue
                if f"{opened}/".startswith(f"{path}/") and _is_file(opened):
                    raise _error(errno.EACCES, path)

    def real(self, path: Any) -> Any:
        """Return the Linux path of a Windows path."""
        if isinstance(path, int):
            return path
        text = os.fsdecode(path)
        if text.startswith("/") and not text.startswith("//"):
            return text.replace("\\", "/")  # os.walk joins names and paths from os.scandir
        drive, rest = ntpath.splitdrive(_absolute(text))
        assert drive.upper() == "C:", f"{text} was touched"
        real = self.folder
        for name in filter(None, rest.split("\\")):
            name = name.rstrip(". ")
            assert name.partition(".")[0].upper() not in _DEVICES, f"{text}: a device was touched"
            if not name or _REFUSED.intersection(name):
                raise _error(errno.EINVAL, text)
            real = f"{real}/{_spelled(real, name)}"
        return real


def _spelled(folder: str, name: str) -> str:
    try:
        _lstat(f"{folder}/{name}")
    except FileNotFoundError:
        there = _listdir(folder) if os.path.isdir(folder) else []
        return next((other for other in there if other.upper() == name.upper()), name)
    except NotADirectoryError:
        pass
    return name


def _is_file(path: str) -> bool:
    try:
        return _stat(path).st_mode & 0o170000 == 0o100000
    except OSError:
        return False


def _error(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def _msvcrt() -> types.ModuleType:
    """Return a module with file locks, as on Windows.

    A lock belongs to a handle, and ends when the process ends.
    """
    module: Any = types.ModuleType("msvcrt")
    module.LK_UNLCK, module.LK_LOCK, module.LK_NBLCK = 0, 1, 2

    def locking(descriptor: int, mode: int, _bytes: int) -> None:
        if mode == module.LK_UNLCK:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            return
        assert mode == module.LK_NBLCK
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _error(errno.EACCES, "") from None

    module.locking = locking
    return module


_io_open = io.open
