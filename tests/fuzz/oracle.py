"""Check that hostile input yields a result or an NczarrError with a location, within bounds."""

from __future__ import annotations

import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from xr_nczarr.errors import NczarrError

MAX_CHUNK_BYTES = 16 << 20
"""The limit `max_chunk_bytes` of all targets. Valid chunks never declare more bytes."""
MAX_GROWTH = (64 << 20) + 2 * MAX_CHUNK_BYTES
MAX_SECONDS = 5.0

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


class Broken(AssertionError):
    """An error for a target that neither accepts nor properly rejects its input."""


class _Hang(BaseException):
    pass


def judge(target: Callable[[bytes], None], data: bytes) -> bool:
    """Return True if a target accepts its input, and False if it raises an NczarrError.

    Raises
    ------
    Broken
        If the target raises another exception or an error without a location, or if it exceeds
        the limits on time or memory.
    """
    with warnings.catch_warnings(), _bounded_time(), _bounded_memory():
        warnings.simplefilter("ignore")
        try:
            target(data)
        except NczarrError as error:
            text = str(error)
            if not (error.key or error.place or error.store or error.variable):
                raise Broken(f"an error without a place: {text}") from error
            if "\n" in text or not text.isprintable():
                raise Broken(f"a message with several lines: {text!r}") from error
            return False
        except Broken:
            raise
        except Exception as error:
            raise Broken(f"{type(error).__name__}: {error}") from error
        return True


@contextmanager
def _bounded_time() -> Iterator[None]:
    """Interrupt the block after `MAX_SECONDS`, and end the process if it cannot be interrupted.

    Processor time is measured, so that other programs do not affect the result.
    """

    def interrupt(_signal: int, frame: FrameType | None) -> None:
        raise _Hang(f"in {frame.f_code.co_filename}:{frame.f_lineno}" if frame else "")

    signal.alarm(600)
    before = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    begin = time.process_time()
    try:
        yield
        if time.process_time() - begin > MAX_SECONDS:
            raise Broken(f"took longer than {MAX_SECONDS} s")
    except _Hang as hang:
        raise Broken(f"took longer than {MAX_SECONDS} s {hang}") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        signal.alarm(0)


@contextmanager
def _bounded_memory() -> Iterator[None]:
    before = _peak(reset=True)
    yield
    growth = _peak() - before
    if growth > MAX_GROWTH:
        raise Broken(f"memory grew by {growth >> 20} MiB")


def _peak(*, reset: bool = False) -> int:
    """Return the peak resident memory in bytes.

    On Linux, `reset` first clears the earlier peak.
    """
    if not _RESET.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
            1 if sys.platform == "darwin" else 1024
        )
    if reset:
        _RESET.write_text("5")
    status = _STATUS.read_text()
    return int(status[status.index("VmHWM:") + 6 :].split(None, 1)[0]) * 1024
