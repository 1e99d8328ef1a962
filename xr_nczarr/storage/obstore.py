"""The obstore client of a store: blocking requests from threads, without an event loop."""

from __future__ import annotations

import re
import sys
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import islice
from typing import Any, NoReturn, TypeVar

from xr_nczarr.errors import (
    AccessDeniedError,
    NczarrError,
    Place,
    StorageConnectionError,
    StorageError,
    StorageTimeoutError,
)
from xr_nczarr.locks import cached_property, call_after_fork
from xr_nczarr.storage.keys import Listing, check_key
from xr_nczarr.storage.memory import NOT_SHARED, within_process
from xr_nczarr.storage.ranges import Bytes, Versioned, too_large
from xr_nczarr.storage.remote import (
    IN_FLIGHT,
    ListedObject,
    RemoteClient,
    Request,
    Rules,
    cut_error,
)
from xr_nczarr.storage.retries import (
    CHECK_CREDENTIALS,
    TRANSIENT_STATUS,
    TRY_LATER,
    missing_bucket_error,
    page_error,
    page_in,
    storage_error,
)
from xr_nczarr.storage.url import mask

_SMALL_IN_FLIGHT = 2 * IN_FLIGHT
_MIN_IN_FLIGHT = 8
_BYTES_AHEAD = 256 << 20
_STATUS = re.compile(r"status code: (\d{3})|status: (\d{3})|HTTP status (\d{3})|\((\d{3}) ")
_REASON = re.compile(r"status code: \d{3} ([A-Za-z ]+)")
# The duration of the request, which messages leave out.
_REQUEST = re.compile(r"Error performing \w+ \S+ in .*? - ")
_MISSING_BUCKET = "NoSuchBucket"
_ABSENT = (404,)  # of what is listed or removed

_Result = TypeVar("_Result")


class _Process:
    """Whether this process was forked after obstore was imported.

    The threads of obstore do not survive a fork, and it does not start them again.
    """

    forked = False

    def after_fork(self) -> None:
        self.forked = self.forked or "obstore" in sys.modules


process = _Process()
call_after_fork(process.after_fork)


@lru_cache(None)
def _threads() -> ThreadPoolExecutor:
    """Return the threads that wait for answers, shared by all stores of this process."""
    return ThreadPoolExecutor(_SMALL_IN_FLIGHT, "obstore")


class ObstoreClient(RemoteClient):
    """The objects below a path in an obstore store.

    Parameters
    ----------
    store
        An instance of a class of ``obstore.store``, which retries requests itself.
    path
        Folder in it; empty for the whole store.
    rules
        See `Rules`.
    name
        For messages; a URL without secrets.
    substitute
        Function that returns the fsspec client of the same place. It handles answers of web servers
        that obstore rejects, and lists their folders.
    """

    pooled = True

    def __init__(
        self,
        store: Any,
        path: str = "",
        rules: Rules | None = None,
        *,
        name: str | None = None,
        substitute: Callable[[Rules], RemoteClient] | None = None,
    ) -> None:
        self.store = store
        self.folder = path.strip("/")
        self.rules = rules or Rules()
        kind = type(store).__name__
        self.web = kind == "HTTPStore"
        self.remote = self.pooled = kind not in ("MemoryStore", "LocalStore")
        self.shared = kind != "MemoryStore"
        self.token = uuid.uuid4().hex
        self.name = name or "/".join(filter(None, (mask(_url_of(store)), self.folder)))
        self._substitute = substitute

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.shared:  # obstore does not pickle these
            return within_process(self, self.token, _not_here, self.name)
        return partial(ObstoreClient, name=self.name), (self.store, self.folder, self.rules)

    def client(self) -> ObstoreClient:
        """Return this client.

        Raises
        ------
        StorageError
            In a forked process, where obstore would hang.
        """
        if process.forked and self.remote:
            raise StorageError(
                "obstore does not work in a process that was forked after importing it",
                remedy='Start processes with "spawn" or "forkserver", or use threads',
                store=self.name,
            )
        return self

    def with_rules(self, rules: Rules) -> ObstoreClient:
        """Return a client of the same objects with other rules."""
        return ObstoreClient(
            self.store, self.folder, rules, name=self.name, substitute=self._substitute
        )

    @property
    def identity(self) -> str:
        """A text that is equal for clients of the same objects."""
        return self.name if self.shared else f"{self.name} {id(self.store)}"

    def answers(self, requests: Sequence[Request]) -> Iterator[Versioned | None]:
        """Yield the answers in order, while threads wait for the next ones.

        Fewer large objects than small ones are requested ahead.
        """
        for request in requests:
            check_key(request.key, self.name)
        if len(requests) == 1 or not self.remote:
            return map(self._answer, requests)
        return self._answers(requests)

    def _answers(self, requests: Sequence[Request]) -> Iterator[Versioned | None]:
        small = self.rules.objects_are_small
        ahead = most = _SMALL_IN_FLIGHT if small else IN_FLIGHT
        if not small and self.rules.max_object_bytes is not None:
            ahead = max(_MIN_IN_FLIGHT, min(most, _BYTES_AHEAD // self.rules.max_object_bytes))
        executor, source = _threads(), iter(requests)
        pending: deque[Future[Versioned | None]] = deque()
        try:
            pending.extend(executor.submit(self._answer, item) for item in islice(source, ahead))
            while pending:
                answer = pending.popleft().result()
                ahead = max(2, min(most, _BYTES_AHEAD // max(1, len(answer.data) if answer else 0)))
                missing = max(0, ahead - len(pending))
                pending.extend(
                    executor.submit(self._answer, item) for item in islice(source, missing)
                )
                yield answer
        finally:
            for future in pending:
                future.cancel()

    def end(self, key: str, max_bytes: int) -> Bytes | None:
        """Return the last `max_bytes` of an object, or all of a shorter one; None if absent."""
        check_key(key, self.name)
        try:
            answer = self._end(key, max_bytes)
        except StorageError as error:
            if self._is_final(error):
                raise
            return self._by_fsspec.end(key, max_bytes)
        return answer and answer.data

    def _end(self, key: str, max_bytes: int) -> Versioned | None:
        if type(self.store).__name__ != "AzureStore":
            return self._part(key, {"suffix": max_bytes})
        size = self.size(key)  # Azure does not support suffix requests
        length = min(size or 0, max_bytes)
        return None if size is None else self._range(Request(key, size - length, length))

    def put(self, key: str, data: Bytes) -> None:
        """Write an object in one request: an interrupted multipart upload is not atomic."""
        check_key(key, self.name)
        self._do(
            key, lambda path: self.store.put(path, bytes(data), use_multipart=False), missing=()
        )

    def create(self, key: str, data: Bytes) -> bool | None:
        """Write an object unless it exists; return whether it did, None if the store cannot."""
        from obstore.exceptions import AlreadyExistsError, NotSupportedError

        check_key(key, self.name)
        try:
            self.store.put(self._path(key), bytes(data), mode="create")
        except AlreadyExistsError:
            return False
        except (NotSupportedError, NotImplementedError):
            return None
        except Exception as error:
            raise self._failure(error, key) from error
        return True

    def children(self, prefix: str) -> Listing:
        """Return one level below `prefix`, sorted; for HTTP, by fsspec."""
        if self.web:
            if self._substitute is None:
                raise self.unlisted(prefix)
            return self._by_fsspec.children(prefix)
        folder = self._path(prefix).rstrip("/")
        result = self._do(
            prefix, lambda _: self.store.list_with_delimiter(folder or None), missing=_ABSENT
        )
        listed = result or {"objects": [], "common_prefixes": []}
        objects = (item["path"].strip("/") for item in listed["objects"])
        return Listing(
            sorted(path.rpartition("/")[2] for path in objects if path != folder),
            sorted(path.rstrip("/").rpartition("/")[2] for path in listed["common_prefixes"]),
        )

    def below(self, prefix: str) -> Iterator[ListedObject]:
        """Yield every object below `prefix`."""
        folder = self._path(prefix).rstrip("/")

        def listed(_: str) -> list[Any]:
            return [item for batch in self.store.list(folder or None) for item in batch]

        for item in self._do(prefix, listed, missing=_ABSENT) or []:
            path, mark = item["path"], item["e_tag"] or str(item["last_modified"])
            # An empty object that S3 consoles create for a folder.
            if not path.endswith("/") and path != folder:
                key = path.removeprefix(f"{self.folder}/" if self.folder else "")
                yield ListedObject(key, item["size"], mark)

    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects, if they exist."""
        paths = [self._path(key) for key in keys]
        if paths:
            key = keys[0] if len(keys) == 1 else ""
            self._do(key, lambda _: self.store.delete(paths), missing=_ABSENT)

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None if it does not exist."""
        check_key(key, self.name)
        try:
            meta = self._do(key, self.store.head)
        except StorageError as error:
            if self._is_final(error):
                raise
            return self._by_fsspec.size(key)
        return None if meta is None else int(meta["size"])

    def address(self, key: str) -> str | None:
        """Return the URL of an object, if the store has one."""
        return f"{self.name}/{key}" if "://" in self.name else None

    @cached_property
    def _by_fsspec(self) -> RemoteClient:
        assert self._substitute is not None
        return self._substitute(self.rules)

    def _path(self, key: str) -> str:
        return f"{self.folder}/{key}" if self.folder else key

    def _answer(self, request: Request) -> Versioned | None:
        try:
            return self._whole(request.key) if request.start is None else self._range(request)
        except StorageError as error:
            if self._is_final(error):
                raise
            return next(self._by_fsspec.answers([request]))

    def _is_final(self, error: StorageError) -> bool:
        """Return whether fsspec would fail as well; it accepts more answers of web servers."""
        return not self.web or self._substitute is None or type(error) is not StorageError

    def _whole(self, key: str) -> Versioned | None:
        result = self._do(key, self.store.get)
        if result is None:
            return None
        limit, size = self.rules.max_object_bytes, result.meta["size"]
        if limit is not None and size > limit:
            raise too_large(f"the object has {size:,} bytes", limit, self.name, key)
        data = self._do(key, lambda _: memoryview(result.bytes()))
        if data is None or len(data) != size:
            raise StorageError(
                f"expected {size} bytes, got {len(data or b'')}", store=self.name, key=key
            )
        page = "" if self.rules.pages_are_answers else page_in(data)
        if page:
            raise page_error("expected an object", page, store=self.name, key=key)
        return Versioned(data)

    def _range(self, request: Request) -> Versioned | None:
        key, start, length = request
        assert start is not None
        if start >= 0 and not length:  # obstore does not support empty ranges
            size = self.size(key)
            if size is not None and start > size:
                raise cut_error(request, 0, self.name)
            return None if size is None else Versioned(b"")
        with Place(place=request.place):
            suffix = start < 0
            answer = self._end(key, -start) if suffix else self._part(key, (start, start + length))
        if answer is not None and len(answer.data) != (-start if suffix else length):
            raise cut_error(request, len(answer.data), self.name)
        return answer and Versioned(answer.data[:length], answer.version)

    def _part(self, key: str, span: Any) -> Versioned | None:
        """Return the bytes in an obstore range, with the entity tag."""
        result = self._do(key, lambda path: self.store.get(path, options={"range": span}))
        data = result and self._do(key, lambda _: memoryview(result.bytes()))
        if result is None or data is None:
            return None
        first, last = result.range
        if len(data) != last - first:
            raise StorageError(f"expected {last - first} bytes, got {len(data)}", key=key)
        tag = result.meta["e_tag"]
        return Versioned(data, None if not tag or tag.startswith("W/") else tag)

    def _do(
        self,
        key: str,
        action: Callable[[str], _Result],
        *,
        missing: Collection[int] | None = None,
    ) -> _Result | None:
        """Call `action` with the path of an object; return None if the object does not exist.

        `missing` are the HTTP statuses that mean *not found*; None for those of the rules, which
        apply only to reading.
        """
        try:
            return action(self._path(key))
        except NczarrError:
            raise
        except Exception as error:
            if _is_missing(error, self.rules.missing_status if missing is None else missing):
                return None
            raise self._failure(error, key) from (None if "?" in str(error) else error)

    def _failure(self, error: Exception, key: str) -> NczarrError:
        """Return the NczarrError for an obstore error, without URLs that contain secrets."""
        from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

        text = mask(_REQUEST.sub("", str(error).partition("\n")[0]))
        if _MISSING_BUCKET in str(error):
            return missing_bucket_error(self.name, key or None)
        status, kind, remedy = _status(error), StorageError, ""
        if isinstance(error, OSError) and status is None:
            return storage_error(error, store=self.name, key=key or None)
        refused = isinstance(error, PermissionDeniedError | UnauthenticatedError)
        if refused or status in (401, 403):
            kind, remedy = AccessDeniedError, CHECK_CREDENTIALS
        elif "timed out" in text or "timeout" in text or status in (408, 504):
            kind, remedy = StorageTimeoutError, TRY_LATER
        elif "error sending request" in text or status in TRANSIENT_STATUS:
            kind, remedy = StorageConnectionError, TRY_LATER
        reason = _REASON.search(text)
        if status is not None:
            text = f"the server answered {status} ({reason[1].strip() if reason else text})"
        return kind(text, remedy=remedy, store=self.name, key=key or None)


def _not_here(name: str) -> NoReturn:
    problem = "the memory of one process is not visible to another"
    raise StorageError(problem, remedy=NOT_SHARED, store=name)


def _url_of(store: Any) -> str:
    """Return the URL of an obstore store, or its class name if it does not reveal one."""
    if hasattr(store, "url"):
        return str(store.url).rstrip("/")
    config = getattr(store, "config", {})
    schemes = {"S3Store": "s3", "GCSStore": "gs", "AzureStore": "az"}
    scheme = schemes.get(type(store).__name__)
    if scheme is None:
        return type(store).__name__
    bucket = config.get("bucket") or config.get("container_name") or ""
    return f"{scheme}://" + "/".join(filter(None, (bucket, store.prefix)))


def _is_missing(error: Exception, statuses: Collection[int]) -> bool:
    """Return whether an error of obstore has one of these HTTP statuses, and not for a bucket."""
    from obstore.exceptions import PermissionDeniedError

    if _MISSING_BUCKET in str(error):
        return False
    status = _status(error)
    if isinstance(error, FileNotFoundError):
        return (status or 404) in statuses  # obstore raises it for 405, too
    if isinstance(error, PermissionDeniedError):
        return 403 in statuses
    return status in statuses


def _status(error: Exception) -> int | None:
    """Return the HTTP status in the text of an obstore error."""
    match = _STATUS.search(str(error).partition("\n")[0])
    return None if match is None else int(next(filter(None, match.groups())))
