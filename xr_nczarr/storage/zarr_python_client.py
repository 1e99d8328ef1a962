"""The client that accesses zarr-python stores, including icechunk and VirtualiZarr stores."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Any
from weakref import WeakSet

from xr_nczarr.errors import NczarrError, StorageError, UnsupportedError
from xr_nczarr.locks import ProcessLock
from xr_nczarr.storage.keys import Listing, check_key
from xr_nczarr.storage.location import V3_PACKAGES, defining_packages, innermost
from xr_nczarr.storage.process_local import (
    NOT_SHARED,
    ForkState,
    UnreachableConnection,
    reduce_process_local,
)
from xr_nczarr.storage.ranges import ByteRange, Bytes, Versioned, split_into_batches
from xr_nczarr.storage.remote_client import IN_FLIGHT, Expected, ListedObject, RemoteClient
from xr_nczarr.storage.retries import storage_error
from xr_nczarr.storage.store import Store
from xr_nczarr.storage.url import mask

_IN_MEMORY = ("MemoryStore", "ManagedMemoryStore")
_V3_KEY = re.compile(r"(?:.*/)?(?:zarr\.json|c(?:[/.]\d+)*)")
_MESSAGE_LENGTH = 200
_SESSION = "a writable Icechunk session"
_SESSION_REMEDY = (
    'Compute in this process: dask.config.set(scheduler="threads"). To read committed data, pass '
    "the store of a read-only session instead"
)
_clients: WeakSet[ZarrPythonClient] = WeakSet()
_clients_lock = ProcessLock()


_store_threads = ForkState()


class ZarrPythonClient(RemoteClient):
    """A client for the objects under a path in a zarr-python store.

    Parameters
    ----------
    store
        An instance of ``zarr.abc.store.Store``.
    path
        Folder in `store`; empty for the whole store.
    unwrapped
        A store that accesses the same objects without zarr-python, or None. Only its `identity` is
        used.
    copied
        Whether `store` is a copy of a store in another process. The client is then read-only,
        because changes to the copy would be lost.
    """

    def __init__(
        self,
        store: Any,
        path: str = "",
        unwrapped: Store | None = None,
        *,
        copied: bool = False,
    ) -> None:
        self._innermost = innermost(store)
        self._unwrapped = unwrapped
        names = {kind.__name__ for kind in type(self._innermost).__mro__}
        packages = defining_packages(self._innermost)
        self.store = store
        self.folder = path.strip("/")
        self.v3_only = bool(packages & V3_PACKAGES)
        # Icechunk, VirtualiZarr and obstore start their own threads.
        self._has_threads = self.v3_only or "ObjectStore" in names
        _store_threads.used = _store_threads.used or self._has_threads
        in_memory = not names.isdisjoint(_IN_MEMORY)
        self.remote = not in_memory and "ZipStore" not in names
        self.sequential = not self.remote
        # Stores in memory and writable icechunk sessions exist only in this process.
        self.shared = not (in_memory or ("icechunk" in packages and not store.read_only))
        self.token = uuid.uuid4().hex
        self.transactional = "icechunk" in packages
        # False for icechunk and VirtualiZarr. xarray's zarr engine also ignores consolidated=True
        # for their stores.
        self.supports_consolidated = bool(
            getattr(store, "supports_consolidated_metadata", True)  # added after zarr-python 3.0
        )
        self.name = "/".join(filter(None, (_name(self._innermost), self.folder)))
        # For a store in memory, the URL contains the id of its dictionary.
        url = str(self._innermost)
        self._data_id = url if "://" in url else self._shared_token()
        self._copied = copied

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = self.store, self.folder, self._unwrapped
        if self.shared:
            return ZarrPythonClient, arguments
        if self.transactional and type(self._innermost.session).__name__ != "ForkSession":
            # icechunk does not pickle writable sessions.
            unreachable = partial(UnreachableConnection, kind=_SESSION, remedy=_SESSION_REMEDY)
            return reduce_process_local(self, self.token, unreachable, self.name)
        copy = partial(ZarrPythonClient, copied=True)
        return reduce_process_local(self, self.token, copy, *arguments)

    def client(self) -> ZarrPythonClient:
        """Return this client.

        Raises
        ------
        StorageError
            If this client's store starts threads, and the parent process had already used a store
            that starts threads when it forked this process. The store would hang in this process.
        """
        if self._has_threads:
            _store_threads.check(type(self._innermost).__name__, self.name)
        return self

    @property
    def identity(self) -> str:
        """An identifier shared by all stores that access the same objects."""
        if self._unwrapped is not None:
            return self._unwrapped.identity
        return f"{self._data_id} {self.folder}"

    def _shared_token(self) -> str:
        """Return a token that is shared by all clients in this process whose stores are equal."""
        # An icechunk session returns a new but equal store each time its `store` is accessed.
        with _clients_lock:
            tokens = [item._data_id for item in _clients if item._innermost == self._innermost]
            self._data_id = tokens[0] if tokens else self.token
            _clients.add(self)
        return self._data_id

    def fetch(
        self,
        requests: Sequence[ByteRange],
        expected: Expected,  # noqa: ARG002 (for other clients)
    ) -> Iterator[Versioned | None]:
        """Yield the requested bytes for each request, or None for a missing object.

        If a range extends beyond the end of the object, the response is shorter than requested.
        Unlike other clients, this client raises an AccessDeniedError instead of yielding it.
        """
        for request in requests:
            check_key(request.key, self.name)
        for batch in split_into_batches(requests, max_count=IN_FLIGHT):
            for data in self._run(self._fetch_one, batch):
                yield None if data is None else Versioned(data)

    def put(self, key: str, data: Bytes) -> None:
        """Write an object, replacing any existing object."""
        self.put_all([(key, data)])

    def put_all(self, items: Sequence[tuple[str, Bytes]]) -> None:
        """Write objects concurrently in the event loop, replacing any existing objects.

        Raises
        ------
        UnsupportedError
            If the store supports only Zarr v3, and a key is not valid in Zarr v3.
        """
        for key, _ in items:
            self._check_accepted(key)
        self._run(self._put, items)

    def create(self, key: str, data: Bytes) -> bool:
        """Write an object unless it already exists, and always return False.

        zarr-python does not report whether this call created the object. The caller must compare
        the stored object with `data`.
        """
        self._check_accepted(key)
        action = self.store.set_if_not_exists
        self._run(lambda _: action(self._path(key), _buffer(data)), [key])
        return False

    def children(self, prefix: str) -> Listing:
        """Return the sorted names of the objects and prefixes directly under `prefix`."""
        if not self.store.supports_listing:
            raise UnsupportedError(
                f"stores of type {type(self.store).__name__} cannot list objects",
                remedy="Pass a store with consolidated metadata",
                store=self.name,
            )
        (listing,) = self._run(self._list, [prefix])
        return listing  # type: ignore[no-any-return]

    def below(self, prefix: str) -> Iterator[ListedObject]:
        """Yield every object under `prefix`."""
        objects, prefixes = self.children(prefix)
        keys = [f"{prefix}{name}" for name in objects]
        sizes = [None] * len(keys) if self.remote else self.sizes(keys)
        for key, size in zip(keys, sizes, strict=True):
            yield ListedObject(key, size, None)
        for name in prefixes:
            yield from self.below(f"{prefix}{name}/")

    def remove(self, keys: Sequence[str]) -> None:
        """Remove the objects at `keys`, ignoring keys without an object."""
        self._run(self._delete, [key for key in keys if self._accepts(key)])

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None if the object does not exist."""
        (size,) = self.sizes([key])
        return size

    def sizes(self, keys: Sequence[str]) -> list[int | None]:
        """Return the size in bytes of the object at each key, or None for a missing object."""
        for key in keys:
            check_key(key, self.name)
        return self._run(self._size, keys)

    def address(self, key: str) -> None:
        """Return None, because other programs cannot read objects through a Python store object."""

    def check_writable(self) -> None:
        """Raise an error if objects cannot be written.

        Raises
        ------
        UnsupportedError
            If the store is read-only, or cannot replace objects.
        StorageError
            If this process is a worker that has only a copy of the store.
        """
        kind = type(self.store).__name__
        if self.store.read_only or not self.store.supports_writes:
            raise UnsupportedError(
                "this store is read-only", remedy="Open the store for writing", store=self.name
            )
        if not self.store.supports_deletes:
            raise UnsupportedError(
                f"stores of type {kind} cannot replace or remove objects",
                remedy="Pass the path of the store instead",
                store=self.name,
            )
        if self._copied:
            problem = (
                "the worker process has only a copy of the store; changes to the copy would be lost"
            )
            raise StorageError(problem, remedy=NOT_SHARED, store=self.name)

    def _accepts(self, key: str) -> bool:
        """Return whether the store accepts a key."""
        return not self.v3_only or _V3_KEY.fullmatch(key) is not None

    def _check_accepted(self, key: str) -> None:
        """Raise UnsupportedError if the store does not accept a key."""
        check_key(key, self.name)
        if not self._accepts(key):
            raise UnsupportedError(
                f"zarr-python stores of type {type(self.store).__name__} support only Zarr v3, but "
                "the object to write belongs to another Zarr version",
                remedy="Pass zarr_format=3",
                store=self.name,
                key=key,
            )

    def _path(self, key: str) -> str:
        return f"{self.folder}/{key}" if self.folder else key

    def _run(self, action: Callable[[Any], Awaitable[Any]], items: Sequence[Any]) -> list[Any]:
        """Return the result of ``await action(item)`` for each item, in order.

        The calls run concurrently. If several calls fail, the error for the first failed item is
        raised.
        """
        from zarr.core.sync import sync

        async def gather() -> list[Any]:
            await self.store._ensure_open()
            return await asyncio.gather(*map(action, items), return_exceptions=True)

        results: list[Any] = sync(gather()) if items else []
        for item, result in zip(items, results, strict=True):
            key = item if isinstance(item, str) else item[0]
            if isinstance(result, NczarrError):
                raise result.add_context(store=self.name, key=key or None)
            if isinstance(result, Exception):
                raise self._failure(result, key) from result
            if isinstance(result, BaseException):
                raise result
        return results

    def _failure(self, error: Exception, key: str) -> NczarrError:
        if isinstance(error, NotImplementedError):
            problem = f"{type(self.store).__name__} does not support this operation ({error})"
            return UnsupportedError(problem, store=self.name, key=key or None)
        failure = storage_error(error, store=self.name, key=key or None)
        if not isinstance(error, OSError):
            failure.problem = f"{type(self.store).__name__}: {failure.problem}"[:_MESSAGE_LENGTH]
        return failure

    async def _fetch_one(self, request: ByteRange) -> Bytes | None:
        from zarr.abc.store import RangeByteRequest, SuffixByteRequest

        key, start, length = request
        if not self._accepts(key):  # the object counts as missing
            return None
        if not request.is_whole:
            last = start + length
            part = SuffixByteRequest(length) if start < 0 else RangeByteRequest(start, last)
            response = await self.store.get(self._path(key), _prototype(), part)
            if response is None:
                return None
            # If a suffix is longer than the object, some stores return only a part of the object.
            if start >= 0 or len(response) == length:
                return _bytes(response)
        data = await self._whole(key)
        return data if data is None or request.is_whole else data[start:][:length]

    async def _whole(self, key: str) -> Bytes | None:
        response = await self.store.get(self._path(key), _prototype())
        return None if response is None else _bytes(response)

    async def _put(self, item: tuple[str, Bytes]) -> None:
        key, data = item
        await self.store.set(self._path(key), _buffer(data))

    async def _delete(self, key: str) -> None:
        if await self.store.exists(self._path(key)):
            await self.store.delete(self._path(key))

    async def _size(self, key: str) -> int | None:
        if not self._accepts(key):
            return None
        try:
            return int(await self.store.getsize(self._path(key)))
        except (FileNotFoundError, KeyError):
            return None
        except NotImplementedError:
            data = await self._whole(key)
            return None if data is None else len(data)

    async def _list(self, prefix: str) -> Listing:
        folder = self._path(prefix).rstrip("/")
        names = sorted({name.strip("/") async for name in self.store.list_dir(folder)} - {""})
        paths = [f"{folder}/{name}".lstrip("/") for name in names]
        in_node = self.v3_only and "zarr.json" in names
        are_objects = await asyncio.gather(*(self._is_object(path, in_node) for path in paths))
        listing = Listing([], [])
        for name, is_object in zip(names, are_objects, strict=True):
            (listing.objects if is_object else listing.prefixes).append(name)
        return listing

    async def _is_object(self, path: str, in_node: bool) -> bool:
        """Return whether `path` refers to an object, rather than to a folder, group or array.

        `in_node` is true if the path is directly within a group or array of a Zarr v3 store.
        """
        if not self._accepts(path):
            return False
        is_metadata = path.rpartition("/")[2] == "zarr.json"
        try:
            # If a group or array is named like a chunk ("c"), icechunk's `exists` raises an error.
            if in_node and not is_metadata and await self.store.exists(f"{path}/zarr.json"):
                return False
            return bool(await self.store.exists(path))
        except NotImplementedError:
            return is_metadata


def _name(store: Any) -> str:
    """Return the name of a store for messages, with secrets masked."""
    session = getattr(store, "session", None)
    if session is not None:
        return f"icechunk://{session.branch or session.snapshot_id}"
    text = str(store)
    return mask(text) if "://" in text and len(text) < _MESSAGE_LENGTH else type(store).__name__


def _prototype() -> Any:
    from zarr.core.buffer import cpu

    return cpu.buffer_prototype


def _buffer(data: Bytes) -> Any:
    return _prototype().buffer.from_bytes(bytes(data))


def _bytes(response: Any) -> Bytes:
    return memoryview(response.as_numpy_array()).cast("B") if len(response) else b""
