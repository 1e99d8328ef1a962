"""Make concurrent requests to an fsspec filesystem, retrying transient failures."""

from __future__ import annotations

import copy
import os
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import Any, TypeVar

from xr_nczarr.errors import (
    AccessDeniedError,
    NczarrError,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from xr_nczarr.locks import ProcessLock
from xr_nczarr.storage.keys import check_key
from xr_nczarr.storage.location import plain_filesystem
from xr_nczarr.storage.ranges import ByteRange, Versioned
from xr_nczarr.storage.remote_client import (
    DEFAULT_RULES,
    IN_FLIGHT,
    Expected,
    RemoteClient,
    Response,
    Rules,
    map_ahead,
)
from xr_nczarr.storage.retries import (
    TRANSIENT,
    TRY_LATER,
    is_missing_bucket,
    status_of,
    storage_error,
)
from xr_nczarr.storage.url import canonical, is_web, mask

_Result = TypeVar("_Result")

_HELPERS = 2
_BATCH_REQUESTS = IN_FLIGHT // _HELPERS  # requests per helper thread
_SMALL_BATCH = 64  # requests for metadata per helper thread
CONNECTIONS = _HELPERS * _SMALL_BATCH
_MAX_BATCH = 128
_BYTES_AHEAD = 64 << 20  # bytes in each batch, once the size of the objects is known
_FIRST_BATCH = 8  # requests in each batch, as long as the size of the objects is unknown

_EXTRAS = {"s3": "s3", "gs": "gcs", "az": "azure", "adl": "azure", "http": "http", "https": "http"}
"""Mapping from each protocol to the extra of this package that installs its filesystem."""


class FsspecReader(RemoteClient):
    """The part of `FsspecClient` that reads files and retries transient failures.

    Files are read with fsspec's public batch methods.

    Parameters
    ----------
    filesystem
        An fsspec filesystem. A forked process uses a copy, because the original would fail there.
    root
        Path in the filesystem, without the protocol.
    rules
        See `Rules`.
    name
        A URL without secrets, for error messages. If None, it is derived from the filesystem.
    """

    def __init__(
        self, filesystem: Any, root: str, rules: Rules = DEFAULT_RULES, *, name: str | None = None
    ) -> None:
        self.web = is_web_filesystem(filesystem)
        # Only fsspec's caching filesystems have this method.
        self._is_cache = hasattr(filesystem, "_check_file")
        # A cache does not know the size of a cached file.
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
        # Caches and synchronous filesystems may not be thread-safe.
        self.sequential = not filesystem.async_impl or hasattr(filesystem, "fs")
        self._lock = ProcessLock() if self.sequential else nullcontext()

    @property
    def filesystem(self) -> Any:
        """The filesystem to use in this process."""
        if self._process != os.getpid():
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
        """Yield the requested bytes for each request, or None for a missing file.

        While the caller processes a response, helper threads prefetch the next batches.
        """
        usual_count = _batch_size(expected)
        is_one_batch = len(requests) <= usual_count
        largest = 0

        def batches() -> Iterator[Sequence[ByteRange]]:
            first = 0
            count = usual_count if is_one_batch or expected.probing else _FIRST_BATCH
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
        """Call `action` with the filesystem and `path`, retrying transient failures.

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
        """Return the size of a file in bytes, or None if the file does not exist.

        Return -1 if the server does not report the size.
        """
        while hasattr(filesystem, "_check_file"):
            filesystem = filesystem.fs  # a cache lists the folder, which is impossible over HTTP
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
        """Return the response to a request, given the bytes or the exception from `_cat`."""
        if not isinstance(result, Exception):
            return Versioned(self._requested_part(result, request))
        if self._is_empty(result, request):
            return Versioned(b"")
        if self._is_missing(result):
            return None
        failure = self._failure(result, request.key)
        if failure is not result:
            failure.place = request.description
        if isinstance(failure, AccessDeniedError):
            return failure
        raise failure

    def _cat(self, requests: Sequence[ByteRange], expected: Expected) -> list[bytes | Exception]:
        """Return the response to each request, or the exception that the request raised.

        Only ``cat_ranges`` is used, because fsspec's ``cat`` treats ``*`` and ``?`` in names as
        wildcards.
        """
        if not requests:
            return []
        max_bytes = None if self.web else expected.max_bytes
        whole = (None, None) if max_bytes is None else (0, max_bytes + 1)
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
                return list(self.filesystem.cat_ranges(paths, starts, ends, **options))
        except Exception as error:
            for path in paths:
                self._forget(path)
            if len(requests) == 1:
                return [error]
        # In fsspec's caching filesystems, one missing object causes the whole batch to fail.
        return [self._cat([request], expected)[0] for request in requests]

    def _forget(self, path: str) -> None:
        """Remove a file from fsspec's ``simplecache``.

        fsspec creates each cached file under its final name before the download is complete. If the
        incomplete file of a failed download stayed in the cache, the next read would return it.
        """
        cached_path = getattr(self.filesystem, "_check_file", lambda _: None)(path)
        if isinstance(cached_path, str):
            with suppress(FileNotFoundError):
                os.unlink(cached_path)

    def _requested_part(self, response: bytes, request: ByteRange) -> bytes:
        """Return the requested bytes, cut from the whole file if the server sent all of it."""
        key, start, length = request
        if not request.is_whole and length < len(response) == self.size(key):
            return response[start:][:length]
        return response

    def _is_empty(self, error: Exception, request: ByteRange) -> bool:
        """Return whether a request for a whole object failed only because the object is empty.

        A whole object is requested as a range up to the size limit. If the object is empty, S3
        responds to any such request with status 416.
        """
        if not request.is_whole or status_of(error) != 416:
            return False
        return self.size(request.key) == 0

    def _is_missing(self, error: BaseException) -> bool:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return not is_missing_bucket(error)
        # zipfile raises KeyError for a missing entry. Before 2026, fsspec did not translate this
        # error in chained URLs.
        if isinstance(error, KeyError):
            return "There is no item named" in str(error)
        status = 403 if isinstance(error, PermissionError) else status_of(error)
        return status in self.rules.missing_status

    def _failure(self, error: Exception, key: str) -> NczarrError:
        """Convert an exception from the filesystem to an NczarrError.

        The exception is not chained if its message can contain secrets. An aiohttp error is never
        chained, because it contains the headers of the request and cannot be pickled.
        """
        if isinstance(error, NczarrError):
            return error.add_context(store=self.name, key=key or None)
        failure: NczarrError = storage_error(error, store=self.name, key=key or None)
        if isinstance(error, NotImplementedError):
            problem = "the filesystem does not support this operation"
            failure = UnsupportedError(problem, store=self.name, key=key or None)
        failure.problem = mask(failure.problem) if "://" in failure.problem else failure.problem
        failure.__cause__ = None if self._secret or hasattr(error, "request_info") else error
        return failure


def _batch_size(expected: Expected) -> int:
    """Return the number of requests that each helper thread makes concurrently."""
    return _SMALL_BATCH if expected.probing else _BATCH_REQUESTS


def is_http(filesystem: Any) -> bool:
    """Return whether an fsspec filesystem is for HTTP URLs and does not wrap another filesystem."""
    protocols = filesystem.protocol
    return "http" in ((protocols,) if isinstance(protocols, str) else protocols)


def is_web_filesystem(filesystem: Any) -> bool:
    """Return whether an fsspec filesystem is for HTTP URLs, or wraps such a filesystem.

    Such a filesystem lists the links on a web page as if they were files.
    """
    below = getattr(filesystem, "fs", None)
    return is_http(filesystem) or (below is not None and is_web_filesystem(below))


def filesystem_at(url: str, storage_options: Mapping[str, Any], rules: Rules) -> tuple[Any, str]:
    """Return the filesystem for an fsspec URL and the path in that filesystem.

    The URL may be chained. Requests are made only if the chain contains an archive.
    """
    # Synchronous calls cannot use the caller's event loop.
    options = {
        k: v for k, v in storage_options.items() if k not in ("asynchronous", "loop", "client")
    }
    protocol = canonical(url.partition("://")[0])
    try:
        if is_web(url):
            from xr_nczarr.storage.http import web_options

            chained, _, last = url.rpartition("::")
            scheme = last.partition("://")[0]
            link_options = options.get(scheme, {}) if chained else options
            checked = web_options(link_options, rules)
            options = {**options, scheme: checked} if chained else checked
        if protocol == "s3":
            from xr_nczarr.storage.s3 import S3, s3_options

            filesystem = S3(**s3_options(options, rules.retry, CONNECTIONS))
            root = filesystem._strip_protocol(url)
        elif protocol == "az":
            from xr_nczarr.storage.azure import Azure, azure_options

            filesystem = Azure(**azure_options(url, options, rules.retry))
            root = filesystem._strip_protocol(url)
        else:
            from fsspec.core import url_to_fs

            filesystem, root = url_to_fs(url, **options)
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        raise UnsupportedError(
            f"the package for this URL is not installed ({error})",
            remedy=f"Install xr-nczarr[{extra}]" if extra else "Install the package",
            store=mask(url),
        ) from error
    except ValueError as error:
        raise UnsupportedError(str(error), store=mask(url)) from error
    # An archive in the chain is opened immediately. If it is damaged, the error may be of any type.
    except FileNotFoundError as error:
        raise NotFoundError("the archive does not exist", store=mask(url)) from error
    except Exception as error:
        raise storage_error(error, store=mask(url), key=None) from error
    filesystem, root = plain_filesystem(filesystem, root)
    return synchronous(filesystem), root


def synchronous(filesystem: Any) -> Any:
    """Return `filesystem`, or a synchronous copy of it if it runs in the caller's event loop.

    The copy has the same options, except those for asynchronous use.
    """
    if not (filesystem.async_impl and filesystem.asynchronous):
        return filesystem
    options = {k: v for k, v in filesystem.storage_options.items() if k != "loop"}
    options["asynchronous"] = False
    return type(filesystem)(*filesystem.storage_args, **options)
