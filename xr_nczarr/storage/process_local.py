"""Pickle stores that exist only in one process."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn
from weakref import WeakValueDictionary

from xr_nczarr.errors import StorageError
from xr_nczarr.storage.remote import Connection

NOT_SHARED = (
    "Write to a location that all workers share, such as a directory or S3, or compute in this "
    'process: dask.config.set(scheduler="threads")'
)

_pickled_items: WeakValueDictionary[str, Any] = WeakValueDictionary()


def within_process(
    item: Any, token: str, elsewhere: Callable[..., Any], *arguments: Any
) -> tuple[Any, ...]:
    """Return the value of ``__reduce__`` for `item`, an object that exists only in this process.

    Unpickling in this process returns `item` itself, which is identified by `token`. Unpickling in
    any other process returns the result of ``elsewhere(*arguments)``.
    """
    _pickled_items[token] = item
    return _restore, (token, os.getpid(), elsewhere, arguments)


def _restore(
    token: str, process: int, elsewhere: Callable[..., Any], arguments: tuple[Any, ...]
) -> Any:
    item = _pickled_items.get(token) if process == os.getpid() else None
    return elsewhere(*arguments) if item is None else item


@dataclass(frozen=True)
class UnreachableConnection(Connection):
    """A connection that raises StorageError on use, because its store is in another process.

    Unpickling creates such a connection instead of raising an error, because an error would stop a
    dask worker and make the computation hang.
    """

    name: str
    kind: str = "an in-memory store"
    remedy: str = NOT_SHARED

    remote = shared = False

    def client(self) -> NoReturn:
        """Raise StorageError."""
        problem = f"{self.kind} cannot be accessed from other processes"
        raise StorageError(problem, remedy=self.remedy, store=self.name)
