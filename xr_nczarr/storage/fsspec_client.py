"""The client that accesses objects through an fsspec filesystem."""

from __future__ import annotations

import copy
import os
import urllib.parse
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any, Self, TypeVar

from xr_nczarr.errors import AccessDeniedError, NczarrError, StorageError, UnsupportedError
from xr_nczarr.locks import ProcessLock
from xr_nczarr.storage.fsspec_filesystem import (
    CONNECTIONS,
    filesystem_at,
    is_http,
    is_web_filesystem,
    synchronous,
)
from xr_nczarr.storage.keys import Listing, check_key
from xr_nczarr.storage.process_local import UnreachableConnection
from xr_nczarr.storage.ranges import ByteRange, Bytes, Versioned
from xr_nczarr.storage.remote_client import (
    DEFAULT_RULES,
    IN_FLIGHT,
    UNCONDITIONAL_STATUS,
    Connection,
    Expected,
    ListedObject,
    RemoteClient,
    Response,
    Rules,
    map_ahead,
)
from xr_nczarr.storage.retries import (
    TRANSIENT,
    TRY_LATER,
    is_missing_bucket,
    is_transient,
    page_in,
    status_of,
    storage_error,
)
from xr_nczarr.storage.url import mask
from xr_nczarr.storage.wrappers import cache_error

_Result = TypeVar("_Result")

_HELPERS = 2
_BATCH_REQUESTS = IN_FLIGHT // _HELPERS  # requests per helper thread
_SMALL_BATCH = CONNECTIONS // _HELPERS  # requests for small objects per helper thread
_MAX_BATCH = 128
_BYTES_AHEAD = 64 << 20  # bytes in each batch, once the size of the objects is known
_FIRST_BATCH = 8  # requests in each batch, as long as the size of the objects is unknown
_EXISTING_STATUS = (409, 412)  # statuses of a conditional write to an existing object
_VERSION_KEYS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "created", "updated")


class FsspecClient(RemoteClient):
    """A client for all files under a folder in an fsspec filesystem.

    Parameters
    ----------
    root
        Path in `filesystem`, without the protocol.
    name
        A URL for error messages, with secrets masked. If None, it is derived from `filesystem`.
    """

    _shows_folders = False

    def __init__(
        self, filesystem: Any, root: str, rules: Rules = DEFAULT_RULES, *, name: str | None = None
    ) -> None:
        self.web = is_web_filesystem(filesystem)
        # Only fsspec's caching filesystems have this method.
        self._is_cache = hasattr(filesystem, "_check_file")
        # A cache does not support suffixes, because it does not know the size of a cached file.
        self.supports_suffixes = "abfs" not in filesystem.protocol and not self._is_cache
        base, mark, query = root.partition("?") if self.web else (root, "", "")
        self.root = base.rstrip("/")
        self.query = mark + query
        self.name = name or mask(filesystem.unstrip_protocol(root))
        self.rules = rules
        # Whether error messages can contain secrets from the URL.
        self._secret = bool(self.query) or "@" in self.root
        self._filesystem = filesystem
        # Asynchronous filesystems record the process that created them.
        self._process = getattr(filesystem, "_pid", os.getpid())
        # Caches and synchronous filesystems might not be thread-safe.
        self.sequential = not filesystem.async_impl or hasattr(filesystem, "fs")
        self._lock = ProcessLock() if self.sequential else nullcontext()

    @classmethod
    def connect(
        cls, url: str, storage_options: Mapping[str, Any], rules: Rules = DEFAULT_RULES
    ) -> Self:
        """Return a client for an fsspec URL, which may be chained; see `filesystem_at`."""
        filesystem, root = filesystem_at(url, storage_options, rules)
        return cls(filesystem, root, rules, name=mask(url))

    @classmethod
    def within(cls, filesystem: Any, url: str, rules: Rules = DEFAULT_RULES) -> Self:
        """Return a client for a URL in a filesystem that the caller created.

        An HTTP filesystem is replaced by one that has the same options and also checks responses.
        An asynchronous filesystem is replaced by its synchronous equivalent; see `synchronous`.
        """
        if is_http(filesystem):
            return cls.connect(url, filesystem.storage_options, rules)
        if rules.trust is not None:
            rules.trust.check_filesystem(filesystem, url)
        return cls(synchronous(filesystem), filesystem._strip_protocol(url), rules)

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild = partial(type(self), rules=self.rules, name=self.name)
        process = os.getpid() if self.filesystem.protocol == "memory" else None
        return _unpickled, (self.filesystem, self.root + self.query, rebuild, process)

    @property
    def filesystem(self) -> Any:
        """The filesystem to use in this process."""
        if self._process != os.getpid():  # a forked process cannot use the original
            self._filesystem = copy.deepcopy(self._filesystem)
            self._process = os.getpid()
        return self._filesystem

    def path(self, key: str) -> str:
        """Return the filesystem path of the file at `key`."""
        check_key(key, self.name)
        if self.web:
            return f"{self.root}/{urllib.parse.quote(key)}{self.query}"
        return f"{self.root}/{key}" if self.root else key

    def fetch(self, requests: Sequence[ByteRange], expected: Expected) -> Iterator[Response]:
        """Yield the response to each request; see `RemoteClient.fetch`.

        Unless `sequential` is true, helper threads make the next requests while the caller
        processes a response.
        """
        usual_count = _batch_size(expected)
        is_one_batch = len(requests) <= usual_count
        largest = 0

        def batches() -> Iterator[Sequence[ByteRange]]:
            first = 0
            count = usual_count if is_one_batch or expected.small else _FIRST_BATCH
            while first < len(requests):
                yield requests[first : first + count]
                first += count
                if largest:
                    count = max(1, min(2 * count, _MAX_BATCH, _BYTES_AHEAD // largest))

        def request(batch: Sequence[ByteRange]) -> list[Response]:
            nonlocal largest
            responses = self._request(batch, expected)
            sizes = [len(item.data) for item in responses if isinstance(item, Versioned)]
            largest = max(largest, 1, *sizes)
            return responses

        if self.sequential or is_one_batch:
            for responses in map(request, batches()):
                yield from responses
            return
        with ThreadPoolExecutor(_HELPERS, "fetch") as helpers:
            for responses in map_ahead(helpers, request, batches(), _HELPERS):
                yield from responses

    def _do(self, action: Callable[[Any, str], _Result], path: str, key: str) -> _Result:
        """Return ``action(filesystem, path)``, retrying transient failures.

        `key` is used in error messages.
        """

        def attempt() -> _Result:
            with self._lock:
                return action(self.filesystem, path)

        return self._retried(attempt, key)

    def size(self, key: str) -> int | None:
        """Return the size of a file in bytes, or None if the file does not exist.

        Return -1 if the server does not report the size.
        """
        return self._do(self._size, self.path(key), key)

    def _size(self, filesystem: Any, path: str) -> int | None:
        """Return the size of a file as `size` does, but without retries."""
        while hasattr(filesystem, "_check_file"):
            filesystem = filesystem.fs  # a cache would list the folder, which HTTP cannot do
        filesystem.invalidate_cache()  # a cached listing may be outdated
        try:
            info = filesystem.info(path)
        except Exception as error:
            # fsspec's HTTP filesystem raises FileNotFoundError for every failure.
            is_unspecific = self.web and isinstance(error, FileNotFoundError)
            failure = error.__cause__ if is_unspecific and error.__cause__ else error
            if self._is_missing(failure):
                return None
            raise failure from failure.__cause__
        if info["type"] == "directory":
            return None
        return -1 if info["size"] is None else int(info["size"])

    def _request(self, requests: Sequence[ByteRange], expected: Expected) -> list[Response]:
        """Return the response to each request, retrying transient failures."""
        responses: list[Response] = [None] * len(requests)
        pending = list(range(len(requests)))
        for _ in self.rules.retry.tries():
            failures: dict[int, StorageError] = {}
            batch = self._cat([requests[index] for index in pending], expected)
            for index, result in zip(pending, batch, strict=True):
                try:
                    responses[index] = self._response(result, requests[index])
                except TRANSIENT as error:
                    failures[index] = error
                    self._log_retry(error, requests[index].key)
            if not failures:
                return responses
            pending = list(failures)
        failure = failures[pending[0]]
        failure.remedy = failure.remedy or TRY_LATER
        raise failure

    def _response(self, result: bytes | Exception, request: ByteRange) -> Response:
        """Convert a result of `_cat` to a response, or raise an error.

        Missing objects and denied access are responses, not errors.
        """
        key, start, length = request
        if not isinstance(result, Exception):
            if not request.is_whole and length < len(result) == self.size(key):
                result = result[start:][:length]  # the server sent the whole file
            if self._is_cache and page_in(result):  # the page was cached instead of the object
                self._forget(self.path(key))
            return Versioned(result)
        # A whole file is requested as a range up to the size limit. If the file is empty, S3
        # responds to any such request with status 416.
        if request.is_whole and status_of(result) == 416 and self.size(key) == 0:
            return Versioned(b"")
        if self._is_missing(result):
            return None
        failure = self._failure(result, key)
        if failure is not result:
            failure.place = request.description
        if isinstance(failure, AccessDeniedError):
            return failure
        raise failure

    def _cat(self, requests: Sequence[ByteRange], expected: Expected) -> list[bytes | Exception]:
        """Return the bytes for each request, or the exception that the request raised."""
        if not requests:
            return []
        whole = (None, None) if self.web else (0, expected.max_bytes + 1)
        bounds = [
            whole if item.is_whole else (item.start, item.start + item.length or None)
            for item in requests
        ]
        starts, ends = map(list, zip(*bounds, strict=True))
        options: dict[str, Any] = {"on_error": "return"}
        if not self.sequential:
            options["batch_size"] = _batch_size(expected)
        if self.web and not self.sequential:
            # `http.SessionFactory` takes the limit from this option.
            options["trace_request_ctx"] = expected.max_bytes
        paths = [self.path(request.key) for request in requests]
        try:
            with self._lock:
                # Not `cat`, which treats * and ? in names as wildcards.
                return list(self.filesystem.cat_ranges(paths, starts, ends, **options))
        except Exception as error:
            # fsspec creates a cached file under its final name, so it may be incomplete.
            for path in paths:
                self._forget(path)
            if len(requests) == 1:
                return [error]
        # In fsspec's caching filesystems, one missing object causes the whole batch to fail.
        return [self._cat([request], expected)[0] for request in requests]

    def _forget(self, path: str) -> None:
        """Remove a file from fsspec's ``simplecache``, so that it is downloaded again."""
        cached_path = getattr(self.filesystem, "_check_file", lambda _: None)(path)
        if isinstance(cached_path, str):
            with suppress(FileNotFoundError):
                os.unlink(cached_path)

    def _is_missing(self, error: BaseException) -> bool:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return not is_missing_bucket(error)
        if isinstance(error, KeyError):  # from zipfile; fsspec has translated it only since 2026
            return "There is no item named" in str(error)
        status = 403 if isinstance(error, PermissionError) else status_of(error)
        return status in self.rules.missing_status

    def _failure(self, error: Exception, key: str) -> NczarrError:
        if isinstance(error, NczarrError):
            return error.add_context(store=self.name, key=key or None)
        failure: NczarrError = storage_error(error, store=self.name, key=key or None)
        if isinstance(error, NotImplementedError):
            problem = "the filesystem does not support this operation"
            failure = UnsupportedError(problem, store=self.name, key=key or None)
        failure.problem = mask(failure.problem) if "://" in failure.problem else failure.problem
        # The message of `error` can contain secrets. An aiohttp error also contains the headers of
        # the request, and cannot be pickled.
        failure.__cause__ = None if self._secret or hasattr(error, "request_info") else error
        return failure

    def put(self, key: str, data: Bytes) -> None:
        """Write a file in one request, replacing any existing file."""
        self._do(partial(_write, bytes(data)), self.path(key), key)

    def create(self, key: str, data: Bytes) -> bool | None:
        """Write a file unless it exists, and return whether this call created it.

        Return None, without writing, if the filesystem does not support conditional writes.
        """
        return self._do(partial(_create, bytes(data)), self.path(key), key)

    def children(self, prefix: str) -> Listing:
        """Return the sorted names of the files and folders directly under `prefix`.

        Over plain HTTP, the names are read from the index page of the folder.
        """
        if self.web:
            return self._list_by_index_page(prefix)
        path = f"{self.root}/{prefix}".rstrip("/")
        objects: list[str] = []
        prefixes: list[str] = []
        for entry in self._do(_listed, path, prefix):
            name = entry["name"].strip("/")
            if name != path.strip("/"):
                names = prefixes if entry["type"] == "directory" else objects
                names.append(name.rpartition("/")[2])
        return Listing(sorted(objects), sorted(prefixes))

    def below(self, prefix: str) -> Iterator[ListedObject]:
        """Yield every file under `prefix`."""
        root, folder = self.root.strip("/"), f"{self.root}/{prefix}".rstrip("/")
        for path, info in self._do(_files_below, folder, prefix).items():
            if path.endswith("/"):  # an empty object that S3 consoles create for a folder
                continue
            key, size = path.strip("/").removeprefix(f"{root}/"), info.get("size")
            versions = [str(info[name]) for name in _VERSION_KEYS if info.get(name)]
            yield ListedObject(
                key, None if size is None else int(size), versions[0] if versions else None
            )

    def remove(self, keys: Sequence[str]) -> None:
        """Remove the files at `keys`, ignoring keys without a file."""
        paths = [self.path(key) for key in keys]
        if len(paths) > 1 and hasattr(self.filesystem, "remove_files"):
            self._do(lambda filesystem, _: filesystem.remove_files(paths), "", "")
            return

        def remove(key: str) -> None:
            # Not `rm`, which treats names with * and ? as patterns.
            self._do(_remove, self.path(key), key)

        for _ in self.map_concurrently(remove, keys):
            pass

    def address(self, key: str) -> str:
        """Return the fsspec URL of a file."""
        return str(self.filesystem.unstrip_protocol(self.path(key)))

    def check_writable(self) -> None:
        """Raise UnsupportedError if the filesystem uses plain HTTP or is one of fsspec's caches."""
        super().check_writable()
        if self._is_cache:
            raise cache_error(self.name)

    def _list_by_index_page(self, prefix: str) -> Listing:
        from xr_nczarr.storage.checked_http import names_in_index

        url = f"{self.root}/{urllib.parse.quote(prefix)}".rstrip("/") + "/"
        # Pages are not read through a cache, because a cache could return an outdated page.
        is_cached = not is_http(self.filesystem)
        names = None if is_cached else names_in_index(self._page(url, prefix), url)
        if names is not None and not self._shows_folders:
            # If the server returns a page even for a random name, a page does not prove that a
            # folder exists.
            self._shows_folders = not self._page(f"{url}nothing-{uuid.uuid4().hex}/", prefix)
        if names is None or not self._shows_folders:
            raise self.listing_error(
                prefix, "plain HTTP cannot list objects, and this server provides no index pages"
            )
        objects = [name for name in names if not name.endswith("/")]
        return Listing(objects, [name[:-1] for name in names if name.endswith("/")])

    def _page(self, url: str, prefix: str) -> bytes:
        """Return the page at a URL, or empty bytes if the response has a permanent 4xx status."""
        return self._do(_page, url + self.query, prefix)


def _batch_size(expected: Expected) -> int:
    """Return the number of requests that each helper thread makes concurrently."""
    return _SMALL_BATCH if expected.small else _BATCH_REQUESTS


def _unpickled(
    filesystem: Any, root: str, rebuild: Callable[..., FsspecClient], process: int | None
) -> Connection:
    """Unpickle a client, or return an `UnreachableConnection` if its files are in another process.

    `process` is the id of the only process whose memory contains the client's files, or None if the
    files are not in memory.
    """
    client = rebuild(filesystem, root)
    return client if process in (None, os.getpid()) else UnreachableConnection(client.name)


def _listed(filesystem: Any, path: str) -> list[dict[str, Any]]:
    filesystem.invalidate_cache()
    try:
        return list(filesystem.ls(path, detail=True))
    except (FileNotFoundError, NotADirectoryError) as error:
        if status_of(error) is not None:  # the server reports that the bucket is missing
            raise
        return []


def _files_below(filesystem: Any, path: str) -> dict[str, dict[str, Any]]:
    filesystem.invalidate_cache()
    # If there is also an object at `path`, the listing contains that object.
    files = filesystem.find(path, detail=True)
    if not isinstance(files, dict):  # in this case, adlfs does not list the files under `path`
        siblings = _files_below(filesystem, path.rpartition("/")[0])
        folder = f"{path.strip('/')}/"
        return {name: entry for name, entry in siblings.items() if name.startswith(folder)}
    return {name: entry for name, entry in files.items() if name.strip("/") != path.strip("/")}


def _page(filesystem: Any, url: str) -> bytes:
    from xr_nczarr.storage.checked_http import MAX_INDEX_BYTES

    try:
        return bytes(filesystem.cat_file(url, trace_request_ctx=MAX_INDEX_BYTES))
    except Exception as error:
        status = 404 if isinstance(error, FileNotFoundError) else status_of(error)
        if status is None or is_transient(error) or not 400 <= status < 500:
            raise
        return b""


def _write(data: bytes, filesystem: Any, path: str, **options: Any) -> None:
    if not filesystem.async_impl:
        # Not for object stores: they have no folders, and s3fs would create a bucket.
        filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
    try:
        filesystem.pipe_file(path, data, **options)
    except OSError:
        if filesystem.async_impl or not filesystem.isdir(path) or _files_below(filesystem, path):
            raise
        # The files in this folder have been removed, but the folder and its subfolders remain.
        for folder in sorted(filesystem.find(path, withdirs=True), key=len, reverse=True):
            filesystem.rmdir(folder)
        filesystem.pipe_file(path, data, **options)


def _create(data: bytes, filesystem: Any, path: str) -> bool | None:
    try:
        _write(data, filesystem, path, mode="create")
    except (TypeError, ValueError, NotImplementedError):  # `mode` is not supported
        return None
    except Exception as error:
        if isinstance(error, FileExistsError) or status_of(error) in _EXISTING_STATUS:
            return False
        if status_of(error) in UNCONDITIONAL_STATUS:
            return None
        raise
    return True


def _remove(filesystem: Any, path: str) -> None:
    with suppress(FileNotFoundError):
        filesystem.rm_file(path)
