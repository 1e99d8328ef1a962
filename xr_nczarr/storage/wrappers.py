"""Stores that wrap another store to cache or prefetch objects, or to hide an interrupted write."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import weakref
from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

from xr_nczarr.errors import AccessDeniedError, NczarrError, StorageError, UnsupportedError
from xr_nczarr.locks import ProcessLock
from xr_nczarr.model import ChunkKeys
from xr_nczarr.storage.keys import Listing, check_key
from xr_nczarr.storage.local import LocalStore
from xr_nczarr.storage.ranges import ByteRange, Bytes, cut_ranges
from xr_nczarr.storage.retries import page_in
from xr_nczarr.storage.store import Address, Store, granted

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class _WrapperStore(Store):
    """Base class of read-only stores that wrap another store.

    `arguments` contains all arguments of the subclass's constructor after `source`. Subclasses
    implement `probe`.
    """

    def __init__(self, source: Store, *arguments: Any) -> None:
        self.source = source
        self._arguments = arguments  # for pickling and copying
        self.name, self.remote = source.name, source.remote
        self.returns_pages, self.consolidated = source.returns_pages, source.consolidated
        self.supports_consolidated = source.supports_consolidated

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source, *self._arguments)

    @property
    def identity(self) -> str:
        return self.source.identity

    @property
    def max_threads(self) -> int | None:
        return self.source.max_threads

    def _wrap(self, source: Store) -> Self:
        """Return a copy of this store that wraps `source` instead."""
        return type(self)(source, *self._arguments)

    def probing(self) -> Self:
        return self._wrap(self.source.probing())

    def bounded(self, max_bytes: int) -> Self:
        return self._wrap(self.source.bounded(max_bytes))

    @abstractmethod
    def probe(self, keys: Sequence[str]) -> Iterator[Bytes | AccessDeniedError | None]: ...

    def fetch(self, keys: Sequence[str]) -> Iterator[Bytes | None]:
        for response in self.probe(keys):
            yield granted(response)

    def list_names(self, prefix: str) -> Listing:
        return self.source.list_names(prefix)

    def map_concurrently(
        self, work: Callable[[_Item], _Result], items: Sequence[_Item]
    ) -> Iterator[_Result]:
        return self.source.map_concurrently(work, items)

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int | None]]:
        return self.source.sizes(prefix)

    def size(self, key: str) -> int | None:
        return self.source.size(key)

    def known_sizes(self, keys: Sequence[str]) -> list[int | None] | None:
        return self.source.known_sizes(keys)


class CachingStore(_WrapperStore):
    """A store that caches whole objects in local files, as fsspec's ``simplecache::`` does.

    Missing objects are not cached, so they are requested again each time.

    Parameters
    ----------
    source
        The store to read from.
    url
        The URL of `source`. It distinguishes the objects of different stores in the same cache.
    folder
        Cache directory, which several stores can share. If None, a temporary directory is created.
        It is removed when it is no longer used.
    """

    def __init__(self, source: Store, url: str, folder: str | None = None) -> None:
        self.url = url
        self.folder = folder
        path = tempfile.mkdtemp() if folder is None else folder
        # fsspec's own cache creates a file under its final name before the download is complete, so
        # that another reader could read a truncated object. A LocalStore writes atomically.
        self._cache = LocalStore(path, "none")
        if folder is None:
            weakref.finalize(self._cache, shutil.rmtree, path, ignore_errors=True)
        super().__init__(source, url, path)

    def __reduce__(self) -> tuple[Any, ...]:
        return CachingStore, (self.source, self.url, self.folder)

    def _wrap(self, source: Store) -> Self:
        variant = super()._wrap(source)
        variant.folder, variant._cache = self.folder, self._cache
        return variant

    def probe(self, keys: Sequence[str]) -> Iterator[Bytes | AccessDeniedError | None]:
        """Yield objects as `fetch` does, but yield an AccessDeniedError instead of raising it."""
        missing = {key: None for key in keys if not self._is_cached(key)}
        responses = self.source.probe([*missing])
        for key in keys:
            if key in missing:
                del missing[key]
                response = next(responses)
                if not isinstance(response, AccessDeniedError | None) and not page_in(response):
                    self._cache.put([(self._file_of(key), response)])
                yield response
                continue
            (data,) = self._cache.fetch([self._file_of(key)])
            if data is None:  # another process has removed it from the cache
                yield from self.source.probe([key])
            else:
                yield data

    def fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        """Yield the bytes of each range, or None for a range of a missing object.

        Each object is first downloaded to the cache in full.
        """
        keys = [key for key in {item.key: None for item in ranges} if not self._is_cached(key)]
        absent = {key for key, data in zip(keys, self.fetch(keys), strict=True) if data is None}
        for item in ranges:
            try:
                part = item._replace(key=self._file_of(item.key))
                (data,) = self._cache.fetch_ranges([part])
            except StorageError as error:
                error.store, error.key = self.name, item.key
                raise
            if data is None and item.key not in absent:  # it was removed from the cache
                yield from self.source.fetch_ranges([item])
            else:
                yield data

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None if the object does not exist."""
        cached = self._cache.size(self._file_of(key))
        return self.source.size(key) if cached is None else cached

    def addresses(self, keys: Sequence[str]) -> dict[str, Address]:
        """Map each key to the address of the original object, not of the cached file."""
        return self.source.addresses(keys)

    def _read_only(self) -> UnsupportedError:
        return cache_error(self.name)

    def _is_cached(self, key: str) -> bool:
        return self._cache.size(self._file_of(key)) is not None

    def _file_of(self, key: str) -> str:
        """Return the name of the cached file for a key."""
        check_key(key, self.name)
        # A hash, because a key can be too long for a file name.
        return hashlib.sha256(f"{self.url}/{key}".encode()).hexdigest()


def cache_error(store: str) -> UnsupportedError:
    """Return the error for an attempt to write to a store through a cache."""
    remedy = "Write to the underlying URL, then read through a new cache"
    return UnsupportedError("a store cannot be written through a cache", remedy=remedy, store=store)


class _OverlayStore(_WrapperStore):
    """A store that provides some objects itself and reads the rest from `source`."""

    @abstractmethod
    def _provided(self, keys: Sequence[str]) -> Mapping[str, Bytes | None]:
        """Return a mapping from keys to the objects that do not come from `source`.

        A value of None means that the object does not exist.
        """

    def probe(self, keys: Sequence[str]) -> Iterator[Bytes | AccessDeniedError | None]:
        provided = self._provided(keys)
        others = self.source.probe([key for key in keys if key not in provided])
        for key in keys:
            yield provided[key] if key in provided else next(others)

    def fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        provided = self._provided([item.key for item in ranges])
        others = self.source.fetch_ranges([item for item in ranges if item.key not in provided])
        for item in ranges:
            if item.key in provided:
                yield from cut_ranges([item], [provided[item.key]], self.name)
            else:
                yield next(others)


class PrefetchingStore(_OverlayStore):
    """A store that prefetches the objects of `group` and reads all other objects from `source`.

    The prefetched objects are not pickled: unpickling returns only `source`.
    """

    def __init__(self, source: Store, group: PrefetchGroup) -> None:
        super().__init__(source, group)
        self.group = group

    def __reduce__(self) -> tuple[Any, ...]:
        return _same_store, (self.source,)

    def narrowed(self, keys: ChunkKeys) -> PrefetchingStore:
        """Return a variant of this store for the chunks of one array; see `Store.narrowed`."""
        return self._wrap(self.source.narrowed(keys))

    def _provided(self, keys: Sequence[str]) -> Mapping[str, Bytes | None]:
        return self.group.fetch(keys)


class PrefetchGroup:
    """A group of objects that are all fetched as soon as one of them is needed.

    The objects are then kept in memory. If a request fails, or an object is larger than `max_bytes`
    bytes, no objects are kept.
    """

    def __init__(self, store: Store, keys: Iterable[str], max_bytes: int) -> None:
        self._store = store.bounded(max_bytes)
        self._keys = frozenset(keys)
        self._fetched: dict[str, Bytes | None] | None = None
        self._lock = ProcessLock()

    def fetch(self, keys: Sequence[str]) -> Mapping[str, Bytes | None]:
        """Return all prefetched objects, as a mapping from keys to bytes.

        The value is None for a missing object. The mapping is empty if one of `keys` does not
        belong to this prefetch group, or if the objects could not be fetched.
        """
        if not self._keys.issuperset(keys):
            return {}
        with self._lock:
            if self._fetched is None:
                group = sorted(self._keys)
                try:
                    self._fetched = dict(zip(group, self._store.fetch(group), strict=True))
                except NczarrError:
                    # Objects are then read one by one, so one failure does not affect the others.
                    self._fetched = {}
            return self._fetched


class MemoizingStore(_WrapperStore):
    """A store that fetches each object only once and keeps it in memory.

    The dictionary `objects` maps the keys requested so far to their objects, or to None for missing
    objects. Web pages and AccessDeniedErrors are not kept.
    """

    def __init__(self, source: Store, objects: dict[str, Bytes | None]) -> None:
        super().__init__(source, objects)
        self.objects = objects

    def probe(self, keys: Sequence[str]) -> Iterator[Bytes | AccessDeniedError | None]:
        """Yield objects as `fetch` does, but yield an AccessDeniedError instead of raising it."""
        missing = [key for key in dict.fromkeys(keys) if key not in self.objects]
        responses = dict(zip(missing, self.source.probe(missing), strict=True)) if missing else {}
        for key, response in responses.items():
            # Some servers send a web page instead of status 404 for a missing object.
            if not (isinstance(response, AccessDeniedError) or (response and page_in(response))):
                self.objects[key] = response
        yield from (responses[key] if key in responses else self.objects[key] for key in keys)


class RolledBackStore(_OverlayStore):
    """A store that shows the objects in `before` as they were before an interrupted write.

    `before` maps keys to objects, or to None for objects that did not exist before the write.
    """

    def __init__(self, source: Store, before: Mapping[str, Bytes | None]) -> None:
        super().__init__(source, before)
        self.before = before

    def list_names(self, prefix: str) -> Listing:
        """Return the names directly under `prefix`, as they were before the interrupted write.

        A folder is omitted if the write created all objects in it.
        """
        objects, prefixes = self.source.list_names(prefix)
        added = {key for key, data in self.before.items() if data is None}
        below = [
            key.removeprefix(prefix).partition("/")
            for key, data in self.before.items()
            if data is not None and key.startswith(prefix)
        ]
        kept = {name for name in objects if f"{prefix}{name}" not in added}
        folders = {name for name in prefixes if not self._is_added(f"{prefix}{name}/", added)}
        return Listing(
            sorted(kept | {name for name, slash, _ in below if not slash}),
            sorted(folders | {name for name, slash, _ in below if slash}),
        )

    def _is_added(self, prefix: str, added: Collection[str]) -> bool:
        return any(key.startswith(prefix) for key in added) and not any(self.list_names(prefix))

    def _provided(self, keys: Sequence[str]) -> Mapping[str, Bytes | None]:  # noqa: ARG002
        return self.before


def _same_store(store: Store) -> Store:
    return store
