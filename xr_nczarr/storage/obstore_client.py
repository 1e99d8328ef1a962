"""The client that accesses objects through obstore.

It makes blocking requests in threads, without an event loop.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from html import unescape
from typing import Any, TypeVar

from xr_nczarr.errors import (
    AccessDeniedError,
    NczarrError,
    StorageConnectionError,
    StorageError,
    StorageTimeoutError,
)
from xr_nczarr.storage.keys import Listing, check_key
from xr_nczarr.storage.process_local import (
    ForkState,
    UnreachableConnection,
    reduce_process_local,
)
from xr_nczarr.storage.ranges import ByteRange, Bytes, Versioned, too_large
from xr_nczarr.storage.remote_client import (
    DEFAULT_RULES,
    IN_FLIGHT,
    UNCONDITIONAL_STATUS,
    Expected,
    ListedObject,
    RemoteClient,
    Response,
    Rules,
    map_ahead,
)
from xr_nczarr.storage.retries import (
    CHECK_CERTIFICATE,
    CHECK_CREDENTIALS,
    CHECK_HOST,
    CHECK_SCHEME,
    error_class,
    missing_bucket_error,
    storage_error,
)
from xr_nczarr.storage.url import mask

_SMALL_IN_FLIGHT = 2 * IN_FLIGHT
_MIN_IN_FLIGHT = 8
_BYTES_AHEAD = 256 << 20
_ABSENT = (404,)  # statuses of an attempt to remove a missing object

_STATUS = re.compile(r"status code: (\d{3})|status: (\d{3})|HTTP status (\d{3})|\((\d{3}) ")
_REASON = re.compile(r"status code: \d{3} ([A-Za-z ]+)")
# The explanation in the body of a response, which S3, Google Cloud and Azure send.
_MESSAGE = re.compile(r"<Message>([^<\n]{1,200})")
# The details of the request, including its duration. They are removed from messages.
_REQUEST = re.compile(r"Error performing \w+ \S+ in .*? - ")
_PREFIX = re.compile(r"^(?:Generic \w+ error: )?(?:HTTP error: )?")
# The reason why there was no response, as stated by obstore and by the operating system.
_KIND = re.compile(r"HttpError \{\s+kind: (Connect|Request|Timeout|Interrupted)")
_CAUSE = re.compile(r"""(?:message|error): "([^"\\]+)",?\s""")
_LOCAL = "Generic LocalFileSystem error"  # followed by a path, which may resemble a status
_INVALID_PATH = "Could not parse path"
_MISSING_BUCKET = re.compile("<Code>(?:NoSuchBucket|ContainerNotFound)</Code>")
_EXPIRED = "<Code>ExpiredToken</Code>"  # sent with status 400
# Remedies for requests without a response, by words in the error message.
_REMEDIES = {
    "dns error": CHECK_HOST,
    "InvalidCertificate": CHECK_CERTIFICATE,
    "InvalidMessage": CHECK_SCHEME,
}

_Result = TypeVar("_Result")


process = ForkState("obstore")


@lru_cache(None)
def _threads() -> ThreadPoolExecutor:
    """Return the thread pool for blocking requests, shared by all stores in this process."""
    return ThreadPoolExecutor(_SMALL_IN_FLIGHT, "obstore")


class ObstoreClient(RemoteClient):
    """A client for the objects under a path in an obstore store.

    Parameters
    ----------
    store
        An instance of a class in ``obstore.store``.
    path
        Folder in `store`; empty for the whole store.
    name
        A URL for error messages, with secrets masked. If None, it is derived from `store`.
    substitute
        Function that returns an fsspec client for the same objects, or None. For web servers, the
        fsspec client lists folders, and repeats requests whose response obstore rejects.
    """

    pooled = True

    def __init__(
        self,
        store: Any,
        path: str = "",
        rules: Rules = DEFAULT_RULES,
        *,
        name: str | None = None,
        substitute: Callable[[], RemoteClient] | None = None,
    ) -> None:
        self.store = store
        self.folder = path.strip("/")
        self.rules = rules
        kind = type(store).__name__
        self.web = kind == "HTTPStore"
        self.remote = self.pooled = kind not in ("MemoryStore", "LocalStore")
        self.shared = kind != "MemoryStore"
        self.supports_suffixes = kind != "AzureStore"
        self.token = uuid.uuid4().hex
        self.name = name or "/".join(filter(None, (mask(_url_of(store)), self.folder)))
        self._substitute = substitute
        self._replacement: RemoteClient | None = None  # once obstore has rejected a response

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.shared:  # obstore cannot pickle a MemoryStore
            return reduce_process_local(self, self.token, UnreachableConnection, self.name)
        return partial(ObstoreClient, name=self.name), (self.store, self.folder, self.rules)

    def client(self) -> ObstoreClient:
        """Return this client.

        Raises
        ------
        StorageError
            If the store is remote, and this process was forked after obstore was imported. obstore
            would hang in such a process.
        """
        if self.remote:
            process.check("obstore", self.name)
        return self

    @property
    def identity(self) -> str:
        """An identifier shared by all clients that access the same objects."""
        return super().identity if self.shared else f"{self.name} {id(self.store)}"

    def fetch(self, requests: Sequence[ByteRange], expected: Expected) -> Iterator[Response]:
        """Yield the response to each request; see `Response`.

        For a remote store, threads make the next requests while the caller processes a response. If
        the objects are large, fewer requests are made in advance, to limit the use of memory.
        """
        if self._replacement is not None:
            return self._replacement.fetch(requests, expected)
        fetch_one = partial(self._fetch_one, expected=expected)
        if len(requests) == 1 or not self.remote:
            return map(fetch_one, requests)
        max_ahead = first = _SMALL_IN_FLIGHT if expected.small else IN_FLIGHT
        if not expected.small:
            first = max(_MIN_IN_FLIGHT, min(max_ahead, _BYTES_AHEAD // expected.max_bytes))

        def ahead(response: Response) -> int:
            size = len(response.data) if isinstance(response, Versioned) else 0
            return max(2, min(max_ahead, _BYTES_AHEAD // max(1, size)))

        return map_ahead(_threads(), fetch_one, requests, first, ahead)

    def put(self, key: str, data: Bytes) -> None:
        """Write an object in one request, replacing any existing object."""
        path = self._path(key)
        # A MemoryStore keeps the buffer, which the caller may change. Other stores only read it.
        buffer = memoryview(data).cast("B") if self.shared else bytes(data)
        # An interrupted multipart upload would leave hidden parts in the bucket.
        self._do(lambda: self.store.put(path, buffer, use_multipart=False), key)

    def create(self, key: str, data: Bytes) -> bool | None:
        """Write an object unless it exists, and return whether this call created it.

        Return None, without writing, if the store does not support conditional requests.
        """
        from obstore.exceptions import AlreadyExistsError, NotSupportedError

        path = self._path(key)

        def create() -> bool | None:
            try:
                self.store.put(path, bytes(data), mode="create")
            except AlreadyExistsError:
                return False
            except (NotSupportedError, NotImplementedError):
                return None
            return True

        return self._do(create, key, missing=UNCONDITIONAL_STATUS)

    def children(self, prefix: str) -> Listing:
        """Return the sorted names of the objects and prefixes directly under `prefix`.

        Raises
        ------
        UnsupportedError
            If the store is a web server, and there is no fsspec client.
        """
        if self.web:
            if self._substitute is None:
                raise self.listing_error(prefix)
            return self._substitute().children(prefix)
        folder = self._folder_path(prefix)
        listed: Any = self._do(lambda: self.store.list_with_delimiter(folder or None), prefix)
        objects = (item["path"].strip("/") for item in listed["objects"])
        return Listing(
            sorted(path.rpartition("/")[2] for path in objects if path != folder),
            sorted(path.rstrip("/").rpartition("/")[2] for path in listed["common_prefixes"]),
        )

    def below(self, prefix: str) -> Iterator[ListedObject]:
        """Yield every object under `prefix`."""
        folder = self._folder_path(prefix)

        def listed() -> list[Any]:
            return [item for batch in self.store.list(folder or None) for item in batch]

        for item in self._do(listed, prefix) or ():
            path, version = item["path"], item["e_tag"] or str(item["last_modified"])
            key = path.removeprefix(f"{self.folder}/" if self.folder else "")
            # S3 consoles create an empty object for a folder. Its key ends in a slash, which
            # obstore omits.
            if path != folder and (item["size"] or self.size(key) is not None):
                yield ListedObject(key, item["size"], version)

    def remove(self, keys: Sequence[str]) -> None:
        """Remove the objects at `keys`, ignoring keys without an object."""
        paths = [self._path(key) for key in keys]
        removed = len(paths) > 1 and self._do(
            lambda: not self.store.delete(paths), "", missing=_ABSENT
        )
        if not removed:  # some kinds of stores stop at the first object that does not exist
            for key, path in zip(keys, paths, strict=True):
                self._do(partial(self.store.delete, path), key, missing=_ABSENT)

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None if the object does not exist."""
        head = partial(self.store.head, self._path(key))
        try:
            meta = self._do(head, key, missing=self.rules.missing_status)
        except StorageError as error:
            return self._substitute_for(error).size(key)
        return None if meta is None else int(meta["size"])

    def address(self, key: str) -> str | None:
        """Return the URL of an object, or None if the URL of the store is unknown."""
        return f"{self.name}/{key}" if "://" in self.name else None

    def _path(self, key: str) -> str:
        check_key(key, self.name)
        return f"{self.folder}/{key}" if self.folder else key

    def _folder_path(self, prefix: str) -> str:
        return f"{self.folder}/{prefix}".strip("/")

    def _fetch_one(self, request: ByteRange, expected: Expected) -> Response:
        try:
            return self._get(request, expected)
        except StorageError as error:
            error.add_context(place=request.description)
            if isinstance(error, AccessDeniedError):
                return error
            substitute = self._substitute_for(error)
        response = next(substitute.fetch([request], expected))
        self._replacement = substitute
        return response

    def _substitute_for(self, error: StorageError) -> RemoteClient:
        """Return the fsspec client for repeating a request, or raise `error` if it cannot help."""
        # Subclasses are for errors that fsspec would raise too, such as denied access.
        if self._substitute is None or type(error) is not StorageError:
            raise error
        return self._substitute()

    def _get(self, request: ByteRange, expected: Expected) -> Versioned | None:
        """Return the requested bytes and the object's version, or None for a missing object.

        The version is None if the whole object is requested, or if it has no strong ETag.
        """
        key, start, length = request
        whole, limit = request.is_whole, expected.max_bytes
        options = None
        if not whole:
            span = {"suffix": length} if start < 0 else (start, start + length)
            options = {"range": span}

        path = self._path(key)

        def get() -> tuple[Any, int, memoryview]:
            result = self.store.get(path, options=options)
            if self.web and "Content-Encoding" in result.attributes:
                raise StorageError(
                    "the server compresses the object, but obstore does not decompress it",
                    remedy="Pass the URL of the store instead of an obstore object",
                    store=self.name,
                    key=key,
                )
            first, last = result.range
            if whole and last > limit:
                raise too_large(f"the object is {last:,} bytes long", limit, self.name, key)
            return result, last - first, memoryview(result.bytes())

        response = self._do(get, key, missing=self.rules.missing_status)
        if response is None:
            return None
        result, size, data = response
        if len(data) != size:
            problem = f"the server returned {len(data)} bytes; expected {size}"
            raise StorageError(problem, remedy="Read the object again", store=self.name, key=key)
        # Only the versions of ranges are compared. A weak ETag can stay the same if bytes change.
        tag = None if whole else result.meta["e_tag"]
        return Versioned(data, None if not tag or tag.startswith("W/") else tag)

    def _do(
        self, action: Callable[[], _Result], key: str, *, missing: Collection[int] = ()
    ) -> _Result | None:
        """Return the result of `action`, or None if it fails with an HTTP status in `missing`.

        Transient failures are retried. `key` is used in error messages.
        """

        def attempt() -> _Result | None:
            try:
                return action()
            except Exception as error:
                if not isinstance(error, NczarrError) and _is_missing(error, missing):
                    return None
                raise

        return self._retried(attempt, key)

    def _failure(self, error: Exception, key: str) -> NczarrError:
        if isinstance(error, NczarrError):
            return error
        failure = _failure_of(error, store=self.name, key=key or None)
        failure.__cause__ = None if "?" in str(error) else error
        return failure


def _url_of(store: Any) -> str:
    """Return the URL of an obstore store, or the name of its class if the URL is unknown."""
    if hasattr(store, "url"):
        return str(store.url).rstrip("/")
    config = getattr(store, "config", {})
    schemes = {"S3Store": "s3", "GCSStore": "gs", "AzureStore": "az"}
    scheme = schemes.get(type(store).__name__)
    if scheme is None:
        return type(store).__name__
    bucket = config.get("bucket") or config.get("container_name") or ""
    return f"{scheme}://" + "/".join(filter(None, (bucket, store.prefix)))


# ---- Errors, whose HTTP status and cause appear only in the message


def _is_missing(error: Exception, missing_status: Collection[int]) -> bool:
    """Return whether an obstore error reports a missing object, as opposed to a missing bucket."""
    from obstore.exceptions import PermissionDeniedError

    text = str(error)
    if _MISSING_BUCKET.search(text):
        return False
    status = _status(text)
    if isinstance(error, FileNotFoundError):
        return (status or 404) in missing_status  # obstore also raises FileNotFoundError for 405
    if isinstance(error, PermissionDeniedError):
        return 403 in missing_status
    return status in missing_status


def _failure_of(error: Exception, *, store: str, key: str | None) -> StorageError:
    """Convert an obstore error to a StorageError, masking secrets in URLs.

    If the request may succeed later, the result is a StorageConnectionError or a
    StorageTimeoutError.
    """
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    text, status = str(error), _status(str(error))
    if _MISSING_BUCKET.search(text):
        return missing_bucket_error(store, key)
    if text.startswith(_INVALID_PATH):
        problem = "obstore does not support keys with empty segments or control characters"
        remedy = 'Pass the URL of the store and storage_options={"client": "fsspec"}'
        return StorageError(problem, remedy=remedy, store=store, key=key)
    if isinstance(error, OSError) and status is None:
        return storage_error(error, store=store, key=key)
    kind, remedy = error_class(status), ""
    problem = _PREFIX.sub("", mask(_REQUEST.sub("", text.partition("\n")[0])))
    if status is not None:
        reason = _MESSAGE.search(text) or _REASON.search(problem)
        stated = unescape(mask(reason[1])).strip().rstrip(".") if reason else problem
        problem = f"the server responded with status {status} ({stated})"
    elif no_response := _KIND.search(text):
        if no_response[1] == "Timeout":
            kind, problem = StorageTimeoutError, "the server did not respond in time"
        else:
            cause = _CAUSE.search(text)
            kind, problem = StorageConnectionError, cause[1] if cause else problem
            remedy = next((_REMEDIES[words] for words in _REMEDIES if words in text), "")
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or _EXPIRED in text:
        kind = AccessDeniedError
    if kind is AccessDeniedError:
        remedy = CHECK_CREDENTIALS
    return kind(problem, remedy=remedy, store=store, key=key)


def _status(text: str) -> int | None:
    """Return the HTTP status that the message of an obstore error contains, if any."""
    line = text.partition("\n")[0]
    match = None if line.startswith(_LOCAL) else _STATUS.search(line)
    return None if match is None else int(next(filter(None, match.groups())))
