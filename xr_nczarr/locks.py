"""Locks and turns of one process: a fork begins with all free, for their holders are not there."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from threading import Condition, RLock, Semaphore
from typing import Any, ClassVar, TypeVar
from weakref import WeakSet

_A = TypeVar("_A")
_T = TypeVar("_T")
_LONGEST_WAIT = 1.0


class ProcessLock:
    """Keeps threads of this process apart; a thread may take it again."""

    _all: ClassVar[WeakSet[ProcessLock]] = WeakSet()

    def __init__(self) -> None:
        self._lock = RLock()
        self._all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Underway:
    """What threads of this process are doing, until it is ended; a copy elsewhere is of others."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._count = 0
        self._ended = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Underway, ()

    def __enter__(self) -> None:
        with self._changed:
            if self._ended:
                raise RuntimeError("what this belongs to has ended")
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def end(self) -> None:
        """Let nothing begin any more, and wait for what has."""
        with self._changed:
            self._ended = True
            self._changed.wait_for(lambda: not self._count)


class cached_property(functools.cached_property[_T]):  # noqa: N801 (as in functools)
    """That of functools, which before Python 3.12 locks, in every class, all who compute one."""

    def __init__(self, func: Callable[[Any], _T]) -> None:
        super().__init__(func)
        self.lock = ProcessLock()


class Turns:
    """Lets some threads of this process go on while others wait for their turn.

    Nobody waits for longer than `_LONGEST_WAIT`: who goes on may itself wait for one that is here.
    """

    _all: ClassVar[WeakSet[Turns]] = WeakSet()

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = Semaphore(count)
        self._all.add(self)

    def over(self, work: Callable[[_A], None]) -> Callable[[_A], None]:
        """Give the function that does `work` when it is its turn."""

        def run(argument: _A) -> None:
            free = self._free
            mine = free.acquire(timeout=_LONGEST_WAIT)
            try:
                work(argument)
            finally:
                if mine:
                    free.release()

        return run


def _after_fork() -> None:
    for one in list(ProcessLock._all):
        one._lock = RLock()
    for turns in list(Turns._all):
        turns._free = Semaphore(turns.count)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
