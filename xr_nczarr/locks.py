"""Define thread locks and concurrency limits that remain usable after a fork.

In a forked child process, all locks are released and all limits are reset, because the threads
that had acquired them exist only in the parent process.
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
    """A reentrant lock for the threads of one process.

    In a forked child process, the lock is free at first, even if the parent process holds it.
    """

    _all: ClassVar[WeakSet[ProcessLock]] = WeakSet()

    def __init__(self) -> None:
        self._lock = RLock()
        self._all.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class InFlight:
    """A counter of the tasks in progress in this process. `end` waits for these tasks to finish.

    Use the counter as a context manager around each task. An unpickled counter starts at zero.
    """

    def __init__(self) -> None:
        self._changed = Condition()
        self._count = 0
        self._ended = False

    def __reduce__(self) -> tuple[Any, ...]:
        return InFlight, ()

    def __enter__(self) -> None:
        with self._changed:
            if self._ended:
                raise RuntimeError("the write to which this task belongs has already ended")
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def end(self) -> None:
        """Reject new tasks, and wait until the tasks in progress are done."""
        with self._changed:
            self._ended = True
            self._changed.wait_for(lambda: not self._count)


class cached_property(functools.cached_property[_T]):  # noqa: N801 (as in functools)
    """A `functools.cached_property` that cannot deadlock in a forked child.

    Before Python 3.12, `functools.cached_property` holds a lock while the value is computed. If the
    process is forked at that moment, the child inherits a lock that is never released. This class
    therefore uses a `ProcessLock`, which is released in the child.
    """

    def __init__(self, func: Callable[[Any], _T]) -> None:
        super().__init__(func)
        self.lock = ProcessLock()


class ThreadLimiter:
    """A limit on how many threads of this process run the wrapped functions at the same time.

    A thread that has waited for one second runs anyway, so that threads cannot block each other
    forever.
    """

    _all: ClassVar[WeakSet[ThreadLimiter]] = WeakSet()

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = Semaphore(count)
        self._all.add(self)

    def limit(self, work: Callable[[_A], None]) -> Callable[[_A], None]:
        """Wrap `work` in a function that waits for a free slot before running it."""

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
    """Register a function to call in every child process that is forked from this process."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


call_after_fork(_after_fork)
