"""What may come of hostile bytes: a result, or an error of ours that names its place, in bounds."""

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

LARGEST_CHUNK = 16 << 20
"""What targets pass as `max_chunk_bytes`: more than that is never declared."""
MOST_GROWTH = (64 << 20) + 2 * LARGEST_CHUNK
MOST_SECONDS = 5.0

_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


class Broken(AssertionError):
    """A mutant for which the promise does not hold."""


class _Hang(BaseException):
    pass


def judge(target: Callable[[bytes], None], data: bytes) -> bool:
    """Tell whether a target accepts its input; what is neither result nor refusal is `Broken`."""
    with warnings.catch_warnings(), _bounded_time(), _bounded_memory():
        warnings.simplefilter("ignore")
        try:
            target(data)
        except NczarrError as error:
            text = str(error)
            if not (error.key or error.place or error.store or error.variable):
                raise Broken(f"an error without a place: {text}") from error
            if "\n" in text or not text.isprintable():
                raise Broken(f"a message of several lines: {text!r}") from error
            return False
        except Broken:
            raise
        except Exception as error:
            raise Broken(f"{type(error).__name__}: {error}") from error
        return True


@contextmanager
def _bounded_time() -> Iterator[None]:
    """Interrupt what computes for longer than `MOST_SECONDS`, and end what cannot be interrupted.

    Measured by the processor's time: other programs must not make a mutant look slow.
    """

    def interrupt(_signal: int, frame: FrameType | None) -> None:
        raise _Hang(f"in {frame.f_code.co_filename}:{frame.f_lineno}" if frame else "")

    signal.alarm(600)
    before = signal.signal(signal.SIGPROF, interrupt)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    begin = time.process_time()
    try:
        yield
        if time.process_time() - begin > MOST_SECONDS:
            raise Broken(f"took longer than {MOST_SECONDS} s")
    except _Hang as hang:
        raise Broken(f"took longer than {MOST_SECONDS} s {hang}") from None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
        signal.alarm(0)


@contextmanager
def _bounded_memory() -> Iterator[None]:
    before = _peak(reset=True)
    yield
    growth = _peak() - before
    if growth > MOST_GROWTH:
        raise Broken(f"memory grew by {growth >> 20} MiB")


def _peak(*, reset: bool = False) -> int:
    """Give the most memory resident so far, in bytes; Linux can forget what was before now."""
    if not _RESET.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
            1 if sys.platform == "darwin" else 1024
        )
    if reset:
        _RESET.write_text("5")
    status = _STATUS.read_text()
    return int(status[status.index("VmHWM:") + 6 :].split(None, 1)[0]) * 1024
