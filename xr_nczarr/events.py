"""What happened while a store was read: chunks that were filled, requests that were tried again."""

from __future__ import annotations

from collections import Counter
from typing import Any, Self

from xr_nczarr.locks import ProcessLock


class Events:
    """Counts of one opened store in this process; a copy in another process begins at nothing.

    Attributes
    ----------
    filled
        Chunks that the store does not have and that were read as fill values, by variable.
    failed
        Requests that failed for the moment and were made again, by what was wrong.
    """

    def __init__(self) -> None:
        self.filled: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self._lock = ProcessLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return Events, ()

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
