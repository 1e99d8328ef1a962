"""Stores in front of others: objects cached on a local disk, fetched in one wave, or of before."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from xr_nczarr.errors import StorageError, UnsupportedError
from xr_nczarr.locks import ProcessLock
from xr_nczarr.storage.keys import check_key, sizes_of
from xr_nczarr.storage.local import LocalStore
from xr_nczarr.storage.protocol import (
    ByteRange,
    Bytes,
    SizedStore,
    Store,
    fetch_present,
    probing,
)
from xr_nczarr.storage.ranges import cut_ranges
from xr_nczarr.storage.retries import page_in

_AT_ONCE = 256


class CachingStore:
    """A store whose objects are fetched whole and once: what ``simplecache::`` means.

    fsspec's own writes an object under its final name while it arrives, so a second reader, or the
    next one after a broken connection, would take the part for the whole.

    What `source` does not have is asked for again each time. `url` tells its objects from those of
    other stores in `folder`, the cache shared by all who name it; None for one of this process.
    """

    def __init__(self, source: SizedStore, url: str, folder: str | None = None) -> None:
        self.source = source
        self.name, self.remote = source.name, source.remote
        self.list_names, self.lock = source.list_names, source.lock
        self.url = url
        self.folder = folder
        if folder is None:
            folder = tempfile.mkdtemp()
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._cache = LocalStore(folder, "none")

    def __reduce__(self) -> tuple[Any, ...]:
        return CachingStore, (self.source, self.url, self.folder)

    def probing(self) -> CachingStore:
        """Return the store as one looks for documents in it; see `protocol.probing`."""
        source: Any = probing(self.source)
        return CachingStore(source, self.url, self._cache.root)

    def fetch(self, keys: Sequence[str]) -> Iterator[Bytes | None]:
        """Yield each object in the order of `keys`, None for one that is not there."""
        for first in range(0, len(keys), _AT_ONCE):
            batch = keys[first : first + _AT_ONCE]
            pages = self._fill(batch)
            cached = self._cache.fetch([self._cached(key) for key in batch])
            for key, data in zip(batch, cached, strict=True):
                yield pages.get(key, data)

    def fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        """Yield each byte range in order, cut from objects that are cached whole."""
        self._fill([one.key for one in ranges])
        for key, start, length in ranges:
            try:
                yield from self._cache.fetch_ranges([ByteRange(self._cached(key), start, length)])
            except StorageError as error:
                error.store, error.key = self.name, key
                raise

    def size(self, key: str) -> int | None:
        """Give the size of an object in bytes, None when it is not there."""
        known = self._cache.size(self._cached(key))
        return self.source.size(key) if known is None else known

    def sizes_of(self, keys: Sequence[str]) -> Iterator[int | None]:
        """Yield the size of each object in the order of `keys`, None for an absent one."""
        return sizes_of(self.source, keys)

    def put(self, *_: Any) -> NoReturn:
        """Refuse: see `not_written`."""
        raise not_written(self.name)

    delete = put

    def _fill(self, keys: Iterable[str]) -> dict[str, Bytes]:
        """Cache the objects that are there and not yet cached; return web pages in their place."""
        missing = [
            key for key in dict.fromkeys(keys) if self._cache.size(self._cached(key)) is None
        ]
        pages: dict[str, Bytes] = {}
        for key, data in fetch_present(self.source, missing):
            if page_in(data):
                pages[key] = data
            else:
                self._cache.put([(self._cached(key), data)])
        return pages

    def _cached(self, key: str) -> str:
        """Give the name in the cache: a digest, since the key can be too long for a file."""
        check_key(key, self.name)
        return hashlib.sha256(f"{self.url}/{key}".encode()).hexdigest()


def not_written(store: str) -> UnsupportedError:
    """Give the error of writing to where a cache hides what others have written since."""
    remedy = "Write to the URL behind the cache, and read through a new cache then"
    return UnsupportedError("a store is not written through a cache", remedy=remedy, store=store)


class PrefetchingStore:
    """A store that fetches all of `keys` when the first of them is asked for, and keeps them.

    Pickles as the store itself: what was fetched stays here.
    """

    def __init__(self, source: Store, keys: Sequence[str]) -> None:
        self.source = source
        self.name, self.remote = source.name, source.remote
        self.list_names, self.lock = source.list_names, source.lock
        self.put, self.delete = source.put, source.delete
        self._keys = frozenset(keys)
        self._fetched: dict[str, Bytes | None] | None = None
        self._lock = ProcessLock()

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self.source,)

    def __dask_tokenize__(self) -> Any:
        return self.source

    def fetch(self, keys: Sequence[str]) -> Iterator[Bytes | None]:
        """Yield each object in the order of `keys`, None for one that is not there."""
        if not self._keys.issuperset(keys):
            return self.source.fetch(keys)
        with self._lock:
            if self._fetched is None:
                wave = sorted(self._keys)
                self._fetched = dict(zip(wave, self.source.fetch(wave), strict=True))
        return iter([self._fetched[key] for key in keys])

    def fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        """Yield each byte range in order, of the objects that are fetched as a whole anyway."""
        if not self._keys.issuperset(one.key for one in ranges):
            return self.source.fetch_ranges(ranges)
        return cut_ranges(ranges, self.fetch([one.key for one in ranges]), self.name)


class EarlierStore:
    """A store some of whose objects are read as they were `before`; None for one not there."""

    def __init__(self, source: Store, before: Mapping[str, Bytes | None]) -> None:
        self.source = source
        self.before = before
        self.name, self.remote = source.name, source.remote
        self.list_names, self.lock = source.list_names, source.lock
        self.put, self.delete = source.put, source.delete

    def __reduce__(self) -> tuple[Any, ...]:
        return EarlierStore, (self.source, self.before)

    def fetch(self, keys: Sequence[str]) -> Iterator[Bytes | None]:
        """Yield each object in the order of `keys`, None for one that is not there."""
        current = self.source.fetch([key for key in keys if key not in self.before])
        for key in keys:
            yield self.before[key] if key in self.before else next(current)

    def fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        """Yield each byte range in order, None where the object is not there."""
        current = self.source.fetch_ranges([one for one in ranges if one.key not in self.before])
        for one in ranges:
            if one.key in self.before:
                yield from cut_ranges([one], [self.before[one.key]], self.name)
            else:
                yield next(current)


def _itself(store: Store) -> Store:
    return store
