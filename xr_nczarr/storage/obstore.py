"""A store of obstore as a store: synchronous requests from plain threads, no event loop."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from obstore import exceptions

from xr_nczarr.errors import (
    AccessDeniedError,
    NczarrError,
    StorageConnectionError,
    StorageError,
    StorageTimeoutError,
    UnsupportedError,
)
from xr_nczarr.locks import ProcessLock
from xr_nczarr.storage.fingerprint import digest
from xr_nczarr.storage.keys import KeyLocks, Listing, check_key, check_prefix, check_target
from xr_nczarr.storage.memory import NOT_SHARED
from xr_nczarr.storage.ranges import (
    ByteRange,
    Bytes,
    Versioned,
    check_range,
    merge_ranges,
    too_large,
    windows,
)
from xr_nczarr.storage.retries import page_error, page_in, storage_error
from xr_nczarr.storage.store import Store
from xr_nczarr.storage.url import mask

IN_FLIGHT = 64
_BYTES_AHEAD = 256 << 20
_STATUS = re.compile(r"status code: (\d{3})|status: (\d{3})|HTTP status (\d{3})|\((\d{3}) ")
_MISSING_BUCKET = "NoSuchBucket"
_FORKED_REMEDY = 'Start processes by "spawn" or "forkserver", or use threads.'

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_locks = KeyLocks()
# Stores in memory that were pickled: where they arrive in this process again, they are the same.
_sent: WeakValueDictionary[int, ObstoreStore] = WeakValueDictionary()


class _Threads:
    """The threads that wait for answers, shared by all stores of this process."""

    def __init__(self) -> None:
        self._lock = ProcessLock()
        self._process = os.getpid()
        self._executor: ThreadPoolExecutor | None = None

    def executor(self) -> ThreadPoolExecutor:
        """Return the executor of this process.

        Raises
        ------
        StorageError
            In a process that was forked from one with requests: obstore would wait forever.
        """
        with self._lock:
            if self._process != os.getpid():
                if self._executor is not None:
                    problem = "obstore cannot be used in a process that was forked after its use"
                    raise StorageError(problem, remedy=_FORKED_REMEDY)
                self._process = os.getpid()
            if self._executor is None:
                self._executor = ThreadPoolExecutor(IN_FLIGHT, "obstore")
            return self._executor


_threads = _Threads()


class ObstoreStore(Store):
    """The objects below a path in a store of obstore.

    Parameters
    ----------
    store
        An instance of a class of ``obstore.store``. It retries by itself.
    path
        Folder in it; empty for the whole store.
    name
        For messages; a URL without secrets.
    missing_status
        HTTP answers that mean *not found*.
    max_object_bytes
        Larger objects are errors; None for no limit.
    pages_are_answers
        Whether a web page in place of a whole object is an answer; otherwise it is an error.
    """

    def __init__(
        self,
        store: Any,
        path: str = "",
        *,
        name: str | None = None,
        missing_status: tuple[int, ...] = (404,),
        max_object_bytes: int | None = None,
        pages_are_answers: bool = False,
    ) -> None:
        self.store = store
        self.path = path.strip("/")
        kind = type(store).__name__
        self.web = kind == "HTTPStore"
        self.remote = kind not in ("MemoryStore", "LocalStore")
        self.name = name or "/".join(filter(None, (mask(_name(store)), self.path)))
        self._in_memory = kind == "MemoryStore"
        self._rules = {
            "name": self.name,
            "missing_status": missing_status,
            "max_object_bytes": max_object_bytes,
            "pages_are_answers": pages_are_answers,
        }
        self.missing_status = missing_status
        self.max_object_bytes = max_object_bytes
        self.pages_are_answers = pages_are_answers

    @property
    def shared(self) -> bool:  # type: ignore[override]
        """Whether other processes may write to it at the same time, object by object."""
        return not self._in_memory

    def __reduce__(self) -> tuple[Any, ...]:
        if self._in_memory:  # which obstore does not pickle
            _sent[id(self)] = self
            return _arrived, (id(self), os.getpid(), self.name)
        return _rebuilt, (self.store, self.path, self._rules)

    def __dask_tokenize__(self) -> Any:
        return ("obstore", self.name, id(self.store) if self._in_memory else repr(self.store))

    def __repr__(self) -> str:
        return f"ObstoreStore({self.name!r})"

    def bounded(self, max_bytes: int) -> ObstoreStore:
        """Return the store that reads no object of more than `max_bytes`."""
        limit = min(max_bytes, self.max_object_bytes or max_bytes)
        return _rebuilt(self.store, self.path, {**self._rules, "max_object_bytes": limit})

    def probing(self) -> ObstoreStore:
        """Return the store for the search for metadata; see `Store.probing`."""
        if not self.web:
            return self
        return _rebuilt(self.store, self.path, {**self._rules, "pages_are_answers": True})

    def fetch(self, keys: Sequence[str]) -> Iterator[Bytes | None]:
        """Yield each object in the order of `keys`, None for an absent one."""
        for key in keys:
            check_key(key, self.name)
        return self._in_order(self._get, keys, lambda answer: len(answer or b""))

    def fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        """Yield each byte range in order, None where the object does not exist."""
        for answer in self.fetch_versions(ranges):
            yield None if answer is None else answer.data

    def fetch_versions(self, ranges: Sequence[ByteRange]) -> Iterator[Versioned | None]:
        """Yield each byte range with the entity tag of its object, None for an absent object."""
        for item in ranges:
            check_key(item.key, self.name)
            check_range(item, self.name)
        plans = [(len(window), merge_ranges(window)) for window in windows(ranges)]
        requests = [item.range for _, merged in plans for item in merged]
        answers = self._in_order(
            self._get_range, requests, lambda item: len(item.data) if item else 0
        )
        for count, merged in plans:
            results: list[Versioned | None] = [None] * count
            for _, parts in merged:
                answer = next(answers)
                if answer is not None:
                    for position, offset, length in parts:
                        data = memoryview(answer.data)[offset : offset + length]
                        results[position] = Versioned(data, answer.version)
            yield from results

    def fetch_end(self, key: str, max_bytes: int) -> Bytes | None:
        """Return the last `max_bytes` of an object, all of a shorter one; None if it is absent."""
        check_key(key, self.name)
        options = {"range": {"suffix": max_bytes}}
        try:
            result = self._do(key, lambda path: self.store.get(path, options=options))
            return result and self._do(key, lambda _: memoryview(result.bytes()))
        except UnsupportedError:  # Azure has no such requests
            return super().fetch_end(key, max_bytes)

    def put(self, items: Iterable[tuple[str, Bytes]]) -> None:
        """Write objects, each in one request, replacing older ones; several at once."""
        self.check_writable()

        def put(item: tuple[str, Bytes]) -> None:
            self._do(item[0], self._put, item[1])

        source = iter(items)
        while batch := list(islice(source, IN_FLIGHT)):
            for key, _ in batch:
                check_key(key, self.name)
            for _ in self._in_order(put, batch):
                pass

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless it exists, by a conditional request where the store has them.

        Return whether `data` is stored now.
        """
        self.check_writable()
        check_key(key, self.name)
        try:
            self.store.put(self._path(key), data, mode="create")
        except (exceptions.AlreadyExistsError, exceptions.NotSupportedError, NotImplementedError):
            # It exists, perhaps by an earlier try whose answer was lost; or there are no
            # conditional requests.
            return super().create(key, data)
        except Exception as error:
            raise self._failure(error, key) from error
        return True

    def list_names(self, prefix: str) -> Listing:
        """Return one level below `prefix`, sorted; empty where nothing exists."""
        check_prefix(prefix, self.name)
        self._check_listing(prefix)
        folder = self._path(prefix).rstrip("/")
        result = self._do(prefix, lambda _: self.store.list_with_delimiter(folder or None))
        listed = result or {"objects": [], "common_prefixes": []}
        objects = (item["path"].strip("/") for item in listed["objects"])
        return Listing(
            sorted(path.rpartition("/")[2] for path in objects if path != folder),
            sorted(path.rstrip("/").rpartition("/")[2] for path in listed["common_prefixes"]),
        )

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int | None]]:
        """Yield key and size in bytes of every object below `prefix`."""
        check_prefix(prefix, self.name)
        self._check_listing(prefix)
        for item in self._listed(prefix):
            yield item["path"].removeprefix(f"{self.path}/" if self.path else ""), item["size"]

    def list_keys(self, prefix: str = "") -> Iterator[str]:
        """Yield the key of every object below `prefix`."""
        return (key for key, _ in self.sizes(prefix))

    def delete(self, prefix: str) -> None:
        """Remove the object `prefix`, or all objects below it if it ends in ``/`` or is empty."""
        self.check_writable()
        if check_target(prefix, self.name):
            keys = [prefix]
        else:
            keys = [key for key, _ in self.sizes(prefix)]
        if keys:
            paths = [self._path(key) for key in keys]
            self._do(prefix, lambda _: self.store.delete(paths))

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, None if it does not exist."""
        check_key(key, self.name)
        meta = self._do(key, self.store.head)
        return None if meta is None else int(meta["size"])

    def sizes_of(self, keys: Sequence[str]) -> Iterator[int | None]:
        """Yield the size of each object in bytes in the order of `keys`, None for absent ones."""
        return self._in_order(self.size, keys)

    def lock(self, key: str) -> AbstractContextManager[None]:
        """Keep other writers of the object out, in this process."""
        return _locks(f"{self.name}\0{id(self.store) if self._in_memory else ''}\0{key}")

    def is_same(self, other: Store) -> bool:
        """Return whether both stores hold the same objects."""
        if not isinstance(other, ObstoreStore):
            return Store.is_same(self, other)
        same = self.store is other.store
        return (same or (not self._in_memory and self.store == other.store)) and (
            self.path == other.path
        )

    def fingerprint(self) -> str | None:
        """Return a text that changes whenever an object does, from the listing; None for HTTP."""
        if self.web:
            return None
        states = sorted(
            (item["path"], item["size"], item["e_tag"] or str(item["last_modified"]))
            for item in self._listed("")
        )
        return digest([self.name, *states])

    def check_writable(self) -> None:
        """Raise UnsupportedError for plain HTTP."""
        if self.web:
            raise UnsupportedError("plain HTTP is read only", store=self.name)

    def _check_listing(self, prefix: str) -> None:
        if self.web:
            raise UnsupportedError(
                "plain HTTP cannot list objects",
                remedy="Give consolidated metadata, or another URL of the same data.",
                store=self.name,
                key=prefix or None,
            )

    def _listed(self, prefix: str) -> Iterator[Any]:
        folder = self._path(prefix).rstrip("/")

        def listed(_: str) -> list[Any]:
            return [item for batch in self.store.list(folder or None) for item in batch]

        for item in self._do(prefix, listed) or []:
            # An empty object that a console of S3 puts for a folder.
            if not item["path"].endswith("/") and item["path"] != folder:
                yield item

    def _path(self, key: str) -> str:
        return f"{self.path}/{key}" if self.path else key

    def _put(self, path: str, data: Bytes) -> None:
        # One request: an upload in parts would not be atomic where it is cut off.
        self.store.put(path, bytes(data), use_multipart=False)

    def _get(self, key: str) -> Bytes | None:
        result = self._do(key, self.store.get)
        if result is None:
            return None
        limit, size = self.max_object_bytes, result.meta["size"]
        if limit is not None and size > limit:
            raise too_large(f"the object has {size:,} bytes", limit, self.name, key)
        data = self._do(key, lambda _: memoryview(result.bytes()))
        if data is None or len(data) != size:
            raise StorageError(
                f"expected {size} bytes, got {len(data or b'')}", store=self.name, key=key
            )
        page = "" if self.pages_are_answers else page_in(data)
        if page:
            raise page_error("expected an object", page, store=self.name, key=key)
        return data

    def _get_range(self, item: ByteRange) -> Versioned | None:
        try:
            return self._get_bytes(item)
        except StorageError as error:
            end = item.start + item.length or "the end"
            error.located(place=f"bytes {item.start} to {end}")
            raise

    def _get_bytes(self, item: ByteRange) -> Versioned | None:
        key, start, length = item
        version = None
        if start < 0 or length:
            span: Any = {"suffix": -start} if start < 0 else (start, start + length)
            result = self._do(key, lambda path: self.store.get(path, options={"range": span}))
            data = result and self._do(key, lambda _: memoryview(result.bytes()))
            expected = -start if start < 0 else length
            tag = result and result.meta["e_tag"]
            version = None if not tag or tag.startswith("W/") else tag
        else:  # obstore knows no empty ranges
            size = self.size(key)
            data, expected = None if size is None else memoryview(b""), 0
            if size is not None and start > size:
                expected = start - size
        if data is None:
            return None
        if len(data) != expected:
            raise StorageError(
                f"expected {item.length} bytes from {item.start}, got {len(data)}",
                remedy="The object was cut or changed, or the server does not know byte ranges.",
                store=self.name,
                key=key,
            )
        return Versioned(data[:length], version)

    def _do(self, key: str, action: Callable[..., _Result], *arguments: Any) -> _Result | None:
        """Do something with the path of an object; None if it does not exist."""
        try:
            return action(self._path(key), *arguments)
        except NczarrError:
            raise
        except Exception as error:
            if self._is_missing(error):
                return None
            raise self._failure(error, key) from (None if "?" in str(error) else error)

    def _is_missing(self, error: Exception) -> bool:
        if isinstance(error, FileNotFoundError):
            return _MISSING_BUCKET not in str(error)
        if isinstance(error, exceptions.PermissionDeniedError):
            return 403 in self.missing_status
        return _status(error) in self.missing_status

    def _failure(self, error: Exception, key: str) -> NczarrError:
        """Return a NczarrError for an error of obstore, without addresses that can hold secrets."""
        text = mask(str(error).partition("\n")[0])
        if isinstance(error, OSError):
            return storage_error(error, store=self.name, key=key or None)
        status, kind, remedy = _status(error), StorageError, ""
        if isinstance(
            error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError
        ) or status in (401, 403):
            kind = AccessDeniedError
            remedy = (
                "This is not taken for a missing object. Check the credentials; where the store "
                "answers so for objects that are not there, add missing_status=(403, 404) to "
                "storage_options."
            )
        elif "timed out" in text or "timeout" in text or status in (408, 504):
            kind, remedy = StorageTimeoutError, "The retries are used up: try again later."
        elif "error sending request" in text or (status or 0) >= 500:
            kind, remedy = StorageConnectionError, "The retries are used up: try again later."
        problem = text if status is None else f"the server answered {status} ({text})"
        return kind(problem, remedy=remedy, store=self.name, key=key or None)

    def _in_order(
        self,
        work: Callable[[_Item], _Result],
        items: Sequence[_Item],
        size: Callable[[_Result], int] = lambda _: 0,
    ) -> Iterator[_Result]:
        """Yield the result of `work` for each item in order, while threads work on the next.

        `size` returns the bytes of a result: larger ones are not requested as far ahead.
        """
        if len(items) == 1 or not self.remote:
            if self.remote:
                _threads.executor()
            yield from map(work, items)
            return
        executor = _threads.executor()
        source = iter(items)
        pending: deque[Future[_Result]] = deque()
        ahead = IN_FLIGHT
        try:
            pending.extend(executor.submit(work, item) for item in islice(source, ahead))
            while pending:
                result = pending.popleft().result()
                ahead = max(2, min(IN_FLIGHT, _BYTES_AHEAD // max(1, size(result))))
                missing = max(0, ahead - len(pending))
                pending.extend(executor.submit(work, item) for item in islice(source, missing))
                yield result
        finally:
            for future in pending:
                future.cancel()


def _rebuilt(store: Any, path: str, rules: dict[str, Any]) -> ObstoreStore:
    return ObstoreStore(store, path, **rules)


def _arrived(token: int, process: int, name: str) -> ObstoreStore:
    """Return the store in memory that was sent within this process."""
    store = _sent.get(token) if process == os.getpid() else None
    if store is None:
        problem = "the memory of one process is not visible to another"
        raise StorageError(problem, remedy=NOT_SHARED, store=name)
    return store


def _name(store: Any) -> str:
    """Return the URL of a store of obstore as far as it says so, else its kind."""
    if hasattr(store, "url"):
        return str(store.url).rstrip("/")
    config = getattr(store, "config", {})
    schemes = {"S3Store": "s3", "GCSStore": "gs", "AzureStore": "az"}
    scheme = schemes.get(type(store).__name__)
    if scheme is None:
        return type(store).__name__
    bucket = config.get("bucket") or config.get("container_name") or ""
    return f"{scheme}://" + "/".join(filter(None, (bucket, store.prefix)))


def _status(error: Exception) -> int | None:
    """Return the HTTP status that the text of an error of obstore holds."""
    match = _STATUS.search(str(error).partition("\n")[0])
    return None if match is None else int(next(filter(None, match.groups())))
