"""A bounded cache that is shared by all threads of a process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, Generic, TypeVar

from xr_nczarr.locks import ProcessLock
from xr_nczarr.storage.keys import KeyLocks

_Key = TypeVar("_Key", bound=Any)
_Value = TypeVar("_Value")


class SharedCache(Generic[_Key, _Value]):
    """A thread-safe cache that evicts the least recently used values.

    Parameters
    ----------
    max_weight
        Maximum total weight of the cached values. The most recently added value is always kept,
        even if it alone exceeds this weight.
    weigh
        Function that returns the weight of a value, or 0 if the value must not be cached.
    """

    def __init__(self, max_weight: int, weigh: Callable[[_Value], int] = lambda _: 1) -> None:
        self._max_weight = max_weight
        self._weigh = weigh
        self._weight = 0
        self._values: dict[_Key, _Value] = {}
        self._lock = ProcessLock()
        self._loading = KeyLocks()

    def load(
        self,
        keys: Iterable[_Key],
        load: Callable[[list[_Key]], Iterable[_Value]],
        *,
        refresh: bool = False,
    ) -> dict[_Key, _Value]:
        """Return a dict mapping `keys` to their values, loading the values that are not cached.

        `load` takes a list of keys and returns their values in the same order. If `refresh` is
        true, all values are loaded, even if they are cached.
        """
        requested = sorted(set(keys))
        values = {} if refresh else self._cached(requested)
        if len(values) == len(requested):
            return values
        with ExitStack() as loading:
            for key in requested:  # in the same order in every thread, to avoid deadlocks
                loading.enter_context(self._loading(key))
            # In the meantime, another thread may have loaded the values.
            values = {} if refresh else self._cached(requested)
            missing = [key for key in requested if key not in values]
            for key, value in zip(missing, load(missing), strict=True):
                values[key] = value
                self._add(key, value)
        return values

    def _cached(self, keys: list[_Key]) -> dict[_Key, _Value]:
        with self._lock:
            values = {key: self._values.pop(key) for key in keys if key in self._values}
            self._values |= values  # move them to the end: they are now the most recently used
        return values

    def _add(self, key: _Key, value: _Value) -> None:
        with self._lock:
            self._remove(key)
            weight = self._weigh(value)
            if weight:
                self._values[key] = value
                self._weight += weight
                while self._weight > self._max_weight and len(self._values) > 1:
                    self._remove(next(iter(self._values)))

    def _remove(self, key: _Key) -> None:
        if key in self._values:
            self._weight -= self._weigh(self._values.pop(key))
