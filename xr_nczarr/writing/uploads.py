"""Store the chunks of a write in background threads, with a limit on the bytes in memory."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ClassVar, TypeVar
from weakref import WeakValueDictionary

from xr_nczarr.locks import ProcessLock, Underway

_Argument = TypeVar("_Argument")

_MAX_BYTES = 64 << 20  # a larger limit did not speed up storing chunks of 4 MB
_MIN_JOB_BYTES = 256 << 10  # so that at most 256 small objects wait


class Uploads(Underway):
    """A thread pool that encodes and stores the chunks of one write in the background.

    The pool belongs to one process. An unpickled copy has no pool, so dask workers store chunks in
    their own threads. All tasks of a write in one worker process share a copy.

    Parameters
    ----------
    threads
        Number of objects to encode and store concurrently. With 1, there is no pool, and the
        threads that compute the values also store them.
    token
        The identifier of the write, which its copies in other processes share. By default, a new
        identifier is created.
    """

    _copies: ClassVar[WeakValueDictionary[str, Uploads]] = WeakValueDictionary()
    _ended_copies: ClassVar[list[Uploads]] = []
    _copying: ClassVar[ProcessLock] = ProcessLock()

    def __init__(self, threads: int = 1, token: str = "") -> None:
        super().__init__()
        self._token = token or uuid.uuid4().hex
        self._pool = ThreadPoolExecutor(threads, "upload") if threads > 1 else None
        self._bytes = 0
        self._error: BaseException | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Uploads._copy, (self._token,)

    @classmethod
    def _copy(cls, token: str) -> Uploads:
        with cls._copying:
            return cls._copies.setdefault(token, Uploads(token=token))

    @classmethod
    def _end_copy(cls, token: str) -> None:
        copy = cls._copy(token)
        cls._ended_copies.append(copy)  # for tasks that are unpickled later
        copy.end()

    @property
    def pooled(self) -> bool:
        """Whether there is a thread pool, which `submit` requires."""
        return self._pool is not None

    def submit(self, work: Callable[[_Argument], None], argument: _Argument, size: int) -> None:
        """Run ``work(argument)``, a job that takes `size` bytes of memory, in the background.

        First wait until the running jobs leave enough memory, or until no job is running. If an
        earlier job has failed, raise its error.
        """
        assert self._pool is not None
        size = max(size, _MIN_JOB_BYTES)
        with self._changed:
            self._changed.wait_for(
                lambda: self._error or not self._bytes or self._bytes + size <= _MAX_BYTES
            )
            self._raise_error()
            self._count += 1
            self._bytes += size
        self._pool.submit(self._run, work, argument, size)

    def _run(self, work: Callable[[_Argument], None], argument: _Argument, size: int) -> None:
        try:
            if not (self._error or self._ended):
                work(argument)
        except BaseException as error:
            self._error = self._error or error
        finally:
            with self._changed:
                self._count -= 1
                self._bytes -= size
                self._changed.notify_all()

    def finish(self) -> None:
        """Wait until all jobs are done, and raise the first error, if any."""
        with self._changed:
            self._changed.wait_for(lambda: not self._count)
        self._raise_error()
        self.end()

    def end(self) -> None:
        """Refuse new jobs, cancel jobs that have not started, and wait for running jobs."""
        super().end()
        if self._pool is not None:
            self._pool.shutdown()

    def end_everywhere(self) -> None:
        """Call `end` in this process and in the workers of the active dask cluster, if any."""
        self.end()
        if "distributed" in sys.modules:
            from distributed import get_client

            with suppress(Exception):  # the error of the write is more important
                client = get_client()
                if client.status == "running":
                    client.run(Uploads._end_copy, self._token, on_error="ignore")

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error
