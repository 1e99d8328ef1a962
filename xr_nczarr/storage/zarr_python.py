"""Any store of zarr-python as a store: also those of icechunk and VirtualiZarr."""

from __future__ import annotations

import asyncio
import os
import re
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import Any
from weakref import WeakValueDictionary

from xr_nczarr.errors import NczarrError, StorageError, UnsupportedError
from xr_nczarr.storage.keys import KeyLocks, Listing, check_key, check_prefix, check_target
from xr_nczarr.storage.memory import NOT_SHARED
from xr_nczarr.storage.ranges import ByteRange, Bytes, check_range, too_large, windows
from xr_nczarr.storage.retries import storage_error
from xr_nczarr.storage.store import Store
from xr_nczarr.storage.url import mask

_IN_FLIGHT = 64
# Stores that hold Zarr v3 alone raise errors for all other keys.
_V3_PACKAGES = frozenset(("icechunk", "virtualizarr"))
_V3_KEY = re.compile(r"(?:.*/)?(?:zarr\.json|c(?:[/.]\d+)*)")
_MESSAGE_LENGTH = 200

_locks = KeyLocks()
# Stores of this process that were pickled: where they arrive in it again, they are the same.
_sent: WeakValueDictionary[str, ZarrPythonStore] = WeakValueDictionary()


class ZarrPythonStore(Store):
    """The objects below a path in a store of zarr-python.

    Its methods are asynchronous. They run in zarr-python's own event loop, several at once.

    Parameters
    ----------
    store
        An instance of ``zarr.abc.store.Store``.
    path
        Folder in it; empty for the whole store.
    max_object_bytes
        Larger objects are errors; None for no limit.

    Notes
    -----
    In stores that hold Zarr v3 alone (icechunk), the objects that mark an unfinished write stay in
    this process: there the user's commit is the transaction.
    """

    def __init__(self, store: Any, path: str = "", max_object_bytes: int | None = None) -> None:
        packages = {kind.__module__.partition(".")[0] for kind in type(store).__mro__}
        self.store = store
        self.path = path.strip("/")
        self.max_object_bytes = max_object_bytes
        self.v3_only = bool(packages & _V3_PACKAGES)
        in_memory = type(store).__name__ in ("MemoryStore", "ManagedMemoryStore", "GpuMemoryStore")
        self.remote = not in_memory and type(store).__name__ != "ZipStore"
        self.max_puts = _IN_FLIGHT if self.remote else 1
        # Sessions of icechunk and stores in memory are seen by this process alone.
        self._private = in_memory or ("icechunk" in packages and not store.read_only)
        self.transactional = "icechunk" in packages
        self._copied = False
        self._marks: dict[str, bytes] = {}
        self._token = uuid.uuid4().hex
        self.name = "/".join(filter(None, (_name(store), self.path)))

    @property
    def shared(self) -> bool:  # type: ignore[override]
        """Whether other processes may write to it at the same time, object by object."""
        return not self._private

    def __reduce__(self) -> tuple[Any, ...]:
        if not self._private:
            return ZarrPythonStore, (self.store, self.path, self.max_object_bytes)
        _sent[self._token] = self
        limit = self.max_object_bytes
        return _arrived, (self._token, os.getpid(), self.store, self.path, limit)

    def __dask_tokenize__(self) -> Any:
        if self._private:
            return self._token
        return type(self.store).__module__, self.name, self.store

    def __repr__(self) -> str:
        return f"ZarrPythonStore({self.name!r})"

    def bounded(self, max_bytes: int) -> ZarrPythonStore:
        """Return the store that reads no object of more than `max_bytes`."""
        limit = min(max_bytes, self.max_object_bytes or max_bytes)
        store = ZarrPythonStore(self.store, self.path, limit)
        store._marks, store._token, store._copied = self._marks, self._token, self._copied
        return store

    def fetch(self, keys: Sequence[str]) -> Iterator[Bytes | None]:
        """Yield each object in the order of `keys`, None for an absent one."""
        for key in keys:
            check_key(key, self.name)
        for first in range(0, len(keys), _IN_FLIGHT):
            batch = keys[first : first + _IN_FLIGHT]
            yield from self._run([partial(self._get, key) for key in batch], batch)

    def fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        """Yield each byte range in order, None where the object does not exist."""
        for item in ranges:
            check_key(item.key, self.name)
            check_range(item, self.name)
        for window in windows(ranges, max_count=_IN_FLIGHT):
            work = [partial(self._get_range, item) for item in window]
            yield from self._run(work, [item.key for item in window])

    def put(self, items: Iterable[tuple[str, Bytes]]) -> None:
        """Write objects, replacing older ones; several are under way at once."""
        self.check_writable()
        source = iter(items)
        while batch := list(islice(source, _IN_FLIGHT)):
            for key, data in batch:
                check_key(key, self.name)
                if not self._holds(key):
                    self._set_mark(key, bytes(data))
            held = [(key, data) for key, data in batch if self._holds(key)]
            work = [partial(self._set, key, data) for key, data in held]
            self._run(work, [key for key, _ in held])

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless it exists; return whether `data` is stored now."""
        self.check_writable()
        check_key(key, self.name)
        if self._holds(key):
            buffer = _buffer().from_bytes(data)
            self._run([lambda: self.store.set_if_not_exists(self._path(key), buffer)], [key])
        else:
            self._marks.setdefault(key, data)
        (stored,) = self.fetch([key])
        return stored is not None and bytes(stored) == data

    def list_names(self, prefix: str) -> Listing:
        """Return one level below `prefix`, sorted."""
        check_prefix(prefix, self.name)
        if not self.store.supports_listing:
            raise UnsupportedError(
                f"a {type(self.store).__name__} cannot list objects",
                remedy="Pass a store with consolidated metadata.",
                store=self.name,
            )
        (listing,) = self._run([lambda: self._list(prefix)], [prefix])
        objects, prefixes = listing
        marks = [key for key in self._marks if f"{key.rpartition('/')[0]}/".lstrip("/") == prefix]
        names = (key.rpartition("/")[2] for key in marks)
        return Listing(sorted({*objects, *names}), sorted(prefixes))

    def delete(self, prefix: str) -> None:
        """Remove the object `prefix`, or all objects below it if it ends in ``/`` or is empty."""
        self.check_writable()
        if check_target(prefix, self.name):
            if not self._holds(prefix):
                self._marks.pop(prefix, None)
                return
            self._run([lambda: self._delete(prefix)], [prefix])
            return
        for key in [key for key in self._marks if key.startswith(prefix)]:
            del self._marks[key]
        keys = [key for key in self.list_keys(prefix) if self._holds(key)]
        self._run([partial(self._delete, key) for key in keys], keys)

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, None if it does not exist."""
        (size,) = self.sizes_of([key])
        return size

    def sizes_of(self, keys: Sequence[str]) -> Iterator[int | None]:
        """Yield the size of each object in bytes in the order of `keys`, None for absent ones."""
        for key in keys:
            check_key(key, self.name)
        for first in range(0, len(keys), _IN_FLIGHT):
            batch = keys[first : first + _IN_FLIGHT]
            yield from self._run([partial(self._size, key) for key in batch], batch)

    def lock(self, key: str) -> AbstractContextManager[None]:
        """Keep other writers of the object out, in this process."""
        return _locks(f"{id(self.store)}\0{self.path}\0{key}")

    def is_same(self, other: Store) -> bool:
        """Return whether both stores hold the same objects."""
        if not isinstance(other, ZarrPythonStore):
            return False
        same = self.store is other.store or bool(self.store == other.store)
        return same and self.path == other.path

    def check_writable(self) -> None:
        """Raise an error if the store is read only, or a copy that a worker got.

        Raises
        ------
        UnsupportedError, StorageError
        """
        kind = type(self.store).__name__
        if self.store.read_only or not self.store.supports_writes:
            raise UnsupportedError(
                "this store is read only", remedy="Open it for writing.", store=self.name
            )
        if not self.store.supports_deletes:
            raise UnsupportedError(
                f"a {kind} cannot replace or remove objects",
                remedy="Pass its path instead.",
                store=self.name,
            )
        if self._copied:
            problem = "a worker holds a copy of the store; changes to it would be lost"
            raise StorageError(problem, remedy=NOT_SHARED, store=self.name)

    def _holds(self, key: str) -> bool:
        """Return whether the store can hold an object of that name."""
        return not self.v3_only or _V3_KEY.fullmatch(key) is not None

    def _set_mark(self, key: str, data: bytes) -> None:
        """Keep an object that marks an unfinished write, where the store holds Zarr v3 alone."""
        if not key.rpartition("/")[2].startswith(".nczarr"):
            raise UnsupportedError(
                f"a {type(self.store).__name__} holds Zarr v3 alone",
                remedy="Pass zarr_format=3.",
                store=self.name,
                key=key,
            )
        self._marks[key] = data

    def _path(self, key: str) -> str:
        return f"{self.path}/{key}" if self.path else key

    def _run(self, work: Sequence[Callable[[], Awaitable[Any]]], keys: Sequence[str]) -> list[Any]:
        """Return the results of coroutines that run at once in zarr-python's event loop."""
        from zarr.core.sync import sync

        async def gather() -> list[Any]:
            await self.store._ensure_open()
            return await asyncio.gather(*(item() for item in work), return_exceptions=True)

        if not work:
            return []
        results: list[Any] = sync(gather())
        for key, result in zip(keys, results, strict=True):
            if isinstance(result, NczarrError):
                raise result.located(store=self.name, key=key or None)
            if isinstance(result, Exception):
                raise self._failure(result, key) from result
            if isinstance(result, BaseException):
                raise result
        return results

    def _failure(self, error: Exception, key: str) -> NczarrError:
        ours = storage_error(error, store=self.name, key=key or None)
        if not isinstance(error, OSError):
            ours.problem = f"{type(self.store).__name__}: {ours.problem}"[:_MESSAGE_LENGTH]
        return ours

    async def _get(self, key: str) -> Bytes | None:
        if not self._holds(key):
            return self._marks.get(key)
        answer = await self.store.get(self._path(key), _prototype())
        if answer is None:
            return None
        if self.max_object_bytes is not None and len(answer) > self.max_object_bytes:
            raise too_large(f"the object has {len(answer):,} bytes", self.max_object_bytes)
        return _bytes(answer)

    async def _get_range(self, item: ByteRange) -> Bytes | None:
        from zarr.abc.store import RangeByteRequest, SuffixByteRequest

        key, start, length = item
        if length == 0 or not self._holds(key):  # zarr-python knows no empty ranges
            data = await self._get(key)
            if data is None:
                return None
            if not -len(data) <= start <= len(data) - length:
                raise self._short(item, len(data))
            first = start + len(data) if start < 0 else start
            return memoryview(data)[first : first + length]
        request = (
            SuffixByteRequest(-start) if start < 0 else RangeByteRequest(start, start + length)
        )
        answer = await self.store.get(self._path(key), _prototype(), request)
        if answer is None:
            return None
        expected = -start if start < 0 else length
        if len(answer) != expected:
            raise self._short(item, len(answer))
        return memoryview(_bytes(answer))[:length]

    def _short(self, item: ByteRange, length: int) -> StorageError:
        return StorageError(
            f"expected {item.length} bytes from {item.start}, got {length}",
            remedy="It was cut or changed after its index was written.",
            store=self.name,
            key=item.key,
        )

    async def _set(self, key: str, data: Bytes) -> None:
        await self.store.set(self._path(key), _buffer().from_bytes(bytes(data)))

    async def _delete(self, key: str) -> None:
        if await self.store.exists(self._path(key)):
            await self.store.delete(self._path(key))

    async def _size(self, key: str) -> int | None:
        if not self._holds(key):
            return len(self._marks[key]) if key in self._marks else None
        try:
            return int(await self.store.getsize(self._path(key)))
        except (FileNotFoundError, KeyError):
            return None
        except NotImplementedError:
            data = await self._get(key)
            return None if data is None else len(data)

    async def _list(self, prefix: str) -> Listing:
        folder = self._path(prefix).rstrip("/")
        names = [name.strip("/") async for name in self.store.list_dir(folder)]
        names = [name for name in dict.fromkeys(names) if name]
        paths = [f"{folder}/{name}".lstrip("/") for name in names]
        are_objects = await asyncio.gather(*(self._is_object(path) for path in paths))
        objects = [name for name, is_object in zip(names, are_objects, strict=True) if is_object]
        prefixes = [name for name in names if name not in objects]
        return Listing(objects, prefixes)

    async def _is_object(self, path: str) -> bool:
        if not self._holds(path):
            return False
        try:
            return bool(await self.store.exists(path))
        except NotImplementedError:
            return path.rpartition("/")[2] == "zarr.json"


def _arrived(
    token: str, process: int, store: Any, path: str, max_object_bytes: int | None
) -> ZarrPythonStore:
    """Return the store that was sent, or a copy where another process sent it."""
    sent = _sent.get(token) if process == os.getpid() else None
    if sent is not None:
        return sent
    arrived = ZarrPythonStore(store, path, max_object_bytes)
    arrived._copied = True
    return arrived


def _name(store: Any) -> str:
    """Return a name of a store for messages, without secrets."""
    session = getattr(store, "session", None)
    if session is not None:
        return f"icechunk://{session.branch or session.snapshot_id}"
    text = str(store)
    return mask(text) if "://" in text and len(text) < _MESSAGE_LENGTH else type(store).__name__


def _prototype() -> Any:
    from zarr.core.buffer import cpu

    return cpu.buffer_prototype


def _buffer() -> Any:
    return _prototype().buffer


def _bytes(answer: Any) -> Bytes:
    return memoryview(answer.as_numpy_array()).cast("B") if len(answer) else b""
