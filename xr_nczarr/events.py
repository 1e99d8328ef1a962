"""What happened while a store was read: chunks that were filled, requests that were tried again."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import Any, Self

_MOST_KNOWN = 1000
_PROCESS = secrets.token_hex(8)

Counts = tuple[str, Counter[str], Counter[str]]


class Events:
    """Counts of one opened store in this process; its copies in other processes count there.

    Attributes
    ----------
    filled
        Chunks that the store does not have and that were read as fill values, by variable.
    failed
        Requests that failed for the moment and were made again, by what was wrong.
    mark
        Names the opened store, in all processes.
    sent
        Whether a copy was made for another process.
    """

    def __init__(self, mark: str | None = None) -> None:
        self.filled: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.mark = mark or secrets.token_hex(8)
        self.sent = False
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        if _nameless.get():
            return Events, ()
        self.sent = True
        _known.setdefault(self.mark, self)
        return events_of, (self.mark,)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def fill(self, variable: str) -> None:
        """Count a chunk that was filled."""
        with self._lock:
            self.filled[variable] += 1

    def fail(self, reason: str) -> None:
        """Count a request that failed for the moment."""
        with self._lock:
            self.failed[reason] += 1

    def counted(self) -> Counts:
        """Give a name of this process, and copies of `filled` and `failed`."""
        with self._lock:
            return f"{_PROCESS}-{os.getpid()}", Counter(self.filled), Counter(self.failed)


_known: dict[str, Events] = {}
_nameless: ContextVar[bool] = ContextVar("nameless", default=False)


@contextmanager
def nameless() -> Iterator[None]:
    """Pickle events without their mark: dask makes tokens of pickles, and they are of values."""
    before = _nameless.set(True)
    try:
        yield
    finally:
        _nameless.reset(before)


def events_of(mark: str) -> Events:
    """Give what this process counts of a store that any process opened."""
    while len(_known) > _MOST_KNOWN:
        _known.pop(next(iter(_known)), None)
    return _known.setdefault(mark, Events(mark))


def counted_here(mark: str) -> Counts:
    """Give what this process counted of a store that any process opened."""
    return events_of(mark).counted()
