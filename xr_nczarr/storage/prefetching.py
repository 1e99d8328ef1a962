"""Small objects that are wanted one after another, fetched in one wave."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from xr_nczarr.locks import ProcessLock
from xr_nczarr.storage.protocol import ByteRange, Bytes, Listing, Store


class PrefetchingStore:
    """A store that fetches all of `keys` when the first of them is asked for, and keeps them.

    Pickles as the store itself: what was fetched stays here.
    """

    def __init__(self, store: Store, keys: Sequence[str]) -> None:
        self._store = store
        self._keys = frozenset(keys)
        self._fetched: dict[str, Bytes | None] | None = None
        self._lock = ProcessLock()

    @property
    def name(self) -> str:
        """The store's name."""
        return self._store.name

    @property
    def remote(self) -> bool:
        """Whether the store is remote."""
        return self._store.remote

    def fetch(self, keys: Sequence[str]) -> Iterator[Bytes | None]:
        """Yield each object in the order of `keys`, None for one that is not there."""
        if not self._keys.issuperset(keys):
            return self._store.fetch(keys)
        with self._lock:
            if self._fetched is None:
                wave = sorted(self._keys)
                self._fetched = dict(zip(wave, self._store.fetch(wave), strict=True))
        return iter([self._fetched[key] for key in keys])

    def fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        """Yield each byte range in order, of the objects that are fetched as a whole anyway."""
        if not self._keys.issuperset(span.key for span in ranges):
            return self._store.fetch_ranges(ranges)
        whole = self.fetch([span.key for span in ranges])
        pieces: list[Bytes | None] = []
        for span, data in zip(ranges, whole, strict=True):
            if data is not None and not 0 <= span.start <= len(data) - span.length:
                return self._store.fetch_ranges(ranges)  # which says what is wrong
            end = span.start + span.length
            pieces.append(None if data is None else memoryview(data)[span.start : end])
        return iter(pieces)

    def put(self, items: Iterable[tuple[str, Bytes]]) -> None:
        """Write objects."""
        self._store.put(items)

    def list_names(self, prefix: str) -> Listing:
        """Give one level below `prefix`."""
        return self._store.list_names(prefix)

    def delete(self, prefix: str) -> None:
        """Remove what is at or below `prefix`."""
        self._store.delete(prefix)

    def lock(self, key: str) -> AbstractContextManager[None]:
        """Keep other writers of the object out."""
        return self._store.lock(key)

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self._store,)

    def __dask_tokenize__(self) -> Any:
        return self._store


def _itself(store: Store) -> Store:
    return store
