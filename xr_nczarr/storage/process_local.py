"""Pickle stores that exist only in one process, and detect forks that make a store unusable."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn
from weakref import WeakValueDictionary

from xr_nczarr.errors import StorageError
from xr_nczarr.locks import call_after_fork
from xr_nczarr.storage.remote_client import Connection

NOT_SHARED = (
    "Write to a location that all workers share, such as a directory or S3, or compute in this "
    'process: dask.config.set(scheduler="threads")'
)


class ForkState:
    """A record of whether this process was forked from a process that had used a library.

    The library starts threads. A fork does not copy them, so the library would hang in the new
    process.

    Attributes
    ----------
    package
        Name of a package whose import counts as using the library, or None.
    used
        Whether this process has used the library. The caller of the library sets this attribute.
    forked
        Whether this process was forked from a process that had used the library.
    """

    def __init__(self, package: str | None = None) -> None:
        self.package = package
        self.used = self.forked = False
        call_after_fork(self._after_fork)

    def check(self, library: str, store: str) -> None:
        """Raise StorageError if `library` cannot be used in this process."""
        if self.forked:
            verb = "imported" if self.package else "used"
            raise StorageError(
                f"{library} cannot be used in this process, which was forked after {library} was "
                f"{verb}",
                remedy='Use threads, or start processes with the method "spawn" or "forkserver"',
                store=store,
            )

    def _after_fork(self) -> None:
        self.forked = self.forked or self.used or self.package in sys.modules


_pickled_objects: WeakValueDictionary[str, Any] = WeakValueDictionary()


def reduce_process_local(
    obj: Any, token: str, fallback: Callable[..., Any], *arguments: Any
) -> tuple[Any, ...]:
    """Return the result of ``__reduce__`` for an object that exists only in this process.

    Unpickling in this process returns `obj` itself. Unpickling in another process, or after `obj`
    has been garbage-collected, returns the result of ``fallback(*arguments)``. `token` identifies
    `obj`.
    """
    _pickled_objects[token] = obj
    return _restore, (token, os.getpid(), fallback, arguments)


def _restore(
    token: str, process: int, fallback: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    obj = _pickled_objects.get(token) if process == os.getpid() else None
    return fallback(*arguments) if obj is None else obj


# Unpickling creates such a connection instead of raising an error, because an error would stop a
# dask worker and make the computation hang.
@dataclass(frozen=True)
class UnreachableConnection(Connection):
    """A connection that raises StorageError on use, because its store is in another process."""

    name: str
    kind: str = "an in-memory store"
    remedy: str = NOT_SHARED

    remote = shared = False

    def client(self) -> NoReturn:
        """Raise StorageError, because the store is in another process."""
        problem = f"{self.kind} cannot be accessed from other processes"
        raise StorageError(problem, remedy=self.remedy, store=self.name)
