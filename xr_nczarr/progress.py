"""Show progress bars of long operations with tqdm, in terminals and notebooks."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Self, TypeVar

from xr_nczarr.locks import ProcessLock

_T = TypeVar("_T")


def byte_text(count: int | None) -> str:
    """Format a number of bytes with a unit, such as ``1.5 MB``. None becomes ``?``."""
    if count is None:
        return "?"
    size, units = float(count), ["B", "kB", "MB", "GB", "TB", "PB"]
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        del units[0]
    return f"{size:.3g} {units[0]}" if size < 1000 else f"{size:.0f} {units[0]}"


class Progress:
    """A progress bar that any thread and any `distributed` worker can advance.

    Parameters
    ----------
    shown
        Whether to display the bar. If False, all methods do nothing.
    total
        The count at which the operation is complete, or None if unknown.
    unit
        Unit of the count, such as ``"B"`` for bytes.
    """

    def __init__(self, shown: bool, total: int | None = None, unit: str = "B") -> None:
        self._lock = ProcessLock()
        self._topic = ""
        self._client: Any = None
        self._bar = _bar(total, unit) if shown else None

    def __enter__(self) -> Self:
        if self._bar is not None and "distributed" in sys.modules:
            from distributed import get_client

            with suppress(ValueError):  # raised if no client is running
                self._client = get_client()
                self._topic = f"nczarr-progress-{id(self)}"
                self._client.subscribe_topic(self._topic, self._count_event)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._client is not None:
            self._client.unsubscribe_topic(self._topic)
        if self._bar is not None:
            with self._lock:
                if kind is None and self._bar.total is not None:
                    self._bar.update(self._bar.total - self._bar.n)  # some events may be late
                self._bar.close()
                self._bar = None

    def __reduce__(self) -> tuple[Any, ...]:
        return _RemoteProgress, (self._topic,)

    def advance(self, count: int) -> None:
        """Move the bar forward by `count` units."""
        with self._lock:
            if self._bar is not None:
                self._bar.update(count)

    def count(self, items: Iterable[_T]) -> Iterator[_T]:
        """Yield each item, and advance the bar by one after the caller has processed the item."""
        for item in items:
            yield item
            self.advance(1)

    def _count_event(self, event: tuple[float, int]) -> None:
        self.advance(event[1])


class _RemoteProgress:
    """The unpickled form of a `Progress`.

    A `distributed` worker sends each count to the bar in the client process. Anywhere else, counts
    are ignored.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic

    def advance(self, count: int) -> None:
        if self.topic:
            from distributed import get_worker

            with suppress(ValueError):  # raised outside of a `distributed` worker
                get_worker().log_event(self.topic, count)


def _bar(total: int | None, unit: str) -> Any:
    """Create a tqdm progress bar, or warn and return None if tqdm is not installed."""
    if find_spec("tqdm") is None:
        warnings.warn(
            "no progress bar is shown, because tqdm is not installed "
            "(pip install xr-nczarr[progress])",
            stacklevel=2,
        )
        return None
    from tqdm import TqdmWarning
    from tqdm.auto import tqdm

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TqdmWarning)  # issued in notebooks without ipywidgets
        return tqdm(total=total, unit=unit, unit_scale=unit == "B", dynamic_ncols=True)
