"""Thread locks and limits of one process. A forked child starts with all of them free.

The threads that held them exist only in the parent.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from threading import Condition, RLock, Semaphore
from typing import Any, ClassVar, TypeVar
from weakref import WeakSet

_A = TypeVar("_A")
_T = TypeVar("_T")
_MAX_WAIT_SECONDS = 1.0


class ProcessLock:
    """A reentrant lock between the threads of this process."""

    _all: ClassVar[WeakSet[ProcessLock]] = WeakSet()

    def __init__(self) -> None:
        self._lock = RLock()
        self._all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class Underway:
    """A count of the work in progress in this process, which `end` waits for.

    It is not shared when pickled: a copy starts without any work.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._count = 0
        self._ended = False

    def __reduce__(self) -> tuple[Any, ...]:
        return Underway, ()

    def __enter__(self) -> None:
        with self._changed:
            if self._ended:
                raise RuntimeError("cannot start work: the write it belongs to has ended")
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def end(self) -> None:
        """Reject new work, and wait until the work in progress is done."""
        with self._changed:
            self._ended = True
            self._changed.wait_for(lambda: not self._count)


class cached_property(functools.cached_property[_T]):  # noqa: N801 (as in functools)
    """`functools.cached_property` that a forked child can compute.

    Before Python 3.12, the property holds a lock while it is computed, and a fork may inherit that
    lock in its locked state. Here it is a `ProcessLock`.
    """

    def __init__(self, func: Callable[[Any], _T]) -> None:
        super().__init__(func)
        self.lock = ProcessLock()


class ThreadLimiter:
    """A limit on the number of threads of this process that run a piece of work at once.

    A thread waits for at most `_MAX_WAIT_SECONDS` and then runs as well, because a running thread
    may itself be waiting for it.
    """

    _all: ClassVar[WeakSet[ThreadLimiter]] = WeakSet()

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = Semaphore(count)
        self._all.add(self)

    def limit(self, work: Callable[[_A], None]) -> Callable[[_A], None]:
        """Return a function that runs `work` as soon as the limit allows."""

        def run(argument: _A) -> None:
            free = self._free
            acquired = free.acquire(timeout=_MAX_WAIT_SECONDS)
            try:
                work(argument)
            finally:
                if acquired:
                    free.release()

        return run


def _after_fork() -> None:
    for lock in list(ProcessLock._all):
        lock._lock = RLock()
    for limiter in list(ThreadLimiter._all):
        limiter._free = Semaphore(limiter.count)


def call_after_fork(function: Callable[[], None]) -> None:
    """Call a function in each process that is forked from this one."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


call_after_fork(_after_fork)
