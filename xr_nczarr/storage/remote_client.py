"""The interface through which remote stores use a client library, such as fsspec or obstore."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeVar

from xr_nczarr.errors import AccessDeniedError, NczarrError, UnsupportedError
from xr_nczarr.storage.keys import Listing
from xr_nczarr.storage.ranges import ByteRange, Bytes, Versioned
from xr_nczarr.storage.retries import TRANSIENT, TRY_LATER, Retry
from xr_nczarr.storage.system import file_identity
from xr_nczarr.storage.trust import Trust
from xr_nczarr.storage.url import has_scheme, local_path, normalize, unwrapped_url

Response = Versioned | AccessDeniedError | None
"""The requested bytes, or None for a missing object, or the error if the server denies access."""

IN_FLIGHT = 64  # concurrent requests
_SMALL_BYTES = 2 << 20
UNCONDITIONAL_STATUS = (405, 501)  # statuses from servers without conditional writes

_log = logging.getLogger(__name__)

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class ListedObject(NamedTuple):
    """An object in a listing.

    `size` is in bytes. `version` is a string that changes whenever the object changes, such as an
    ETag. `size` or `version` is None if the server's listing does not contain it.
    """

    key: str
    size: int | None
    version: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of a connection for interpreting responses and for retrying requests.

    Attributes
    ----------
    retry
        How to retry transient failures.
    missing_status
        HTTP statuses that mean *not found*. For example, some servers respond with 403 if an object
        does not exist.
    max_object_bytes
        Maximum size of an object in bytes. Reading a larger object raises LimitError.
    trust
        Restrictions on redirects and on filesystems; see `Trust`. None means no restrictions.
    """

    retry: Retry = Retry()  # noqa: RUF009 (frozen)
    missing_status: tuple[int, ...] = (404,)
    max_object_bytes: int = 4 << 30
    trust: Trust | None = None


DEFAULT_RULES = Rules()


class Expected(NamedTuple):
    """What the reader expects of the requested objects.

    Attributes
    ----------
    max_bytes
        Maximum size of an object in bytes. Reading a larger object raises LimitError.
    probing
        Whether the reader searches for metadata; see `Store.probing`.
    """

    max_bytes: int
    probing: bool = False

    @property
    def small(self) -> bool:
        """Whether the objects are small, so that more requests can run concurrently."""
        return self.probing or self.max_bytes <= _SMALL_BYTES


class Connection(ABC):
    """Access to the objects at one location on a remote system, such as a folder in a bucket.

    Attributes
    ----------
    name
        A URL for error messages. It contains no secrets.
    web
        Whether plain HTTP is used, which supports neither listing nor writing.
    remote
        Whether each request costs a network round trip.
    shared
        Whether other processes see the same objects.
    token
        A unique string that serves as the dask token if `shared` is False.
    transactional, supports_consolidated
        See `Store`.
    rules
        See `Rules`.
    """

    name: str
    web: bool = False
    remote: bool = True
    shared: bool = True
    token: str = ""
    transactional: bool = False
    supports_consolidated: bool = True
    rules: Rules = DEFAULT_RULES

    @abstractmethod
    def client(self) -> RemoteClient:
        """Return the client that makes the requests in this process."""

    @property
    def identity(self) -> str:
        """An identifier shared by all connections to the same objects.

        For local files that are read through fsspec, the identifier equals `LocalStore.identity`.
        """
        url = unwrapped_url(self.name)
        path = local_path(url) if has_scheme(url) else None
        return normalize(url) if path is None else file_identity(path)


def map_ahead(
    executor: ThreadPoolExecutor,
    work: Callable[[_Item], _Result],
    items: Iterable[_Item],
    count: int,
    count_after: Callable[[_Result], int] | None = None,
) -> Iterator[_Result]:
    """Yield ``work(item)`` for each item, in order, with up to `count` calls in progress.

    While the caller processes a result, the threads of `executor` compute the next results. After
    each result, ``count_after(result)`` replaces `count`, unless `count_after` is None.
    """
    source = iter(items)
    pending = deque(executor.submit(work, item) for item in islice(source, count))
    try:
        while pending:
            result = pending.popleft().result()
            count = count_after(result) if count_after else count
            missing = max(0, count - len(pending))
            pending.extend(executor.submit(work, item) for item in islice(source, missing))
            yield result
    finally:
        for future in pending:
            future.cancel()


class RemoteClient(Connection):
    """The interface for accessing objects through a client library.

    There is one implementation for each library: fsspec, obstore and zarr-python.

    Attributes
    ----------
    pooled
        Whether many threads can make requests at the same time.
    sequential
        Whether requests must be made one at a time.
    supports_suffixes
        Whether a range can count from the end of an object. Azure does not support such ranges.
    """

    pooled: bool = False
    sequential: bool = False
    supports_suffixes: bool = True

    def client(self) -> RemoteClient:
        """Return this client, or raise an error if it cannot be used in this process."""
        return self

    @abstractmethod
    def fetch(self, requests: Sequence[ByteRange], expected: Expected) -> Iterator[Response]:
        """Yield the response to each request; see `Response`.

        A range with a negative start always extends to the end of the object. If a range extends
        beyond the end of the object, the response is shorter than requested.
        """

    def map_concurrently(
        self, work: Callable[[_Item], _Result], items: Sequence[_Item]
    ) -> Iterator[_Result]:
        """Yield ``work(item)`` for each item, in order.

        The calls run concurrently if the client allows it.
        """
        if self.sequential or len(items) < 2:
            yield from map(work, items)
            return
        with ThreadPoolExecutor(min(IN_FLIGHT, len(items)), "map-concurrently") as helpers:
            yield from helpers.map(work, items)

    def _retried(self, action: Callable[[], _Result], key: str) -> _Result:
        """Return the result of `action`, retrying transient failures as `Rules.retry` allows.

        If no attempt succeeds, the exception is converted with `_failure` and raised. `key` is used
        in error messages.
        """
        for _ in self.rules.retry.tries():
            try:
                return action()
            except Exception as error:
                failure = self._failure(error, key)
            if not isinstance(failure, TRANSIENT):
                raise failure
            self._log_retry(failure, key)
        failure.remedy = failure.remedy or TRY_LATER
        raise failure

    @abstractmethod
    def _failure(self, error: Exception, key: str) -> NczarrError:
        """Return the NczarrError for an exception that the library raised when accessing `key`."""

    def _log_retry(self, failure: NczarrError, key: str) -> None:
        _log.info("%s: %s: transient failure (%s)", self.name, key, failure.problem)

    @abstractmethod
    def put(self, key: str, data: Bytes) -> None:
        """Write an object in one request, replacing any existing object."""

    def put_all(self, items: Sequence[tuple[str, Bytes]]) -> None:
        """Write objects, replacing any existing objects.

        The objects are written concurrently if the client allows it.
        """
        for _ in self.map_concurrently(lambda item: self.put(*item), items):
            pass

    @abstractmethod
    def create(self, key: str, data: Bytes) -> bool | None:
        """Write an object unless it exists, and return whether this call created it.

        Return None, without writing, if the store does not support conditional requests.
        """

    @abstractmethod
    def children(self, prefix: str) -> Listing:
        """Return the sorted names of the objects and prefixes directly under `prefix`.

        The listing is empty if no object exists under `prefix`.
        """

    @abstractmethod
    def below(self, prefix: str) -> Iterator[ListedObject]:
        """Yield every object under `prefix`."""

    @abstractmethod
    def remove(self, keys: Sequence[str]) -> None:
        """Remove the objects at `keys`, ignoring objects that do not exist."""

    @abstractmethod
    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None if the object does not exist.

        Return -1 if the server does not report the size.
        """

    def sizes(self, keys: Sequence[str]) -> Iterable[int | None]:
        """Return the size of the object at each key; see `size`."""
        return self.map_concurrently(self.size, keys)

    @abstractmethod
    def address(self, key: str) -> str | None:
        """Return the URL at which other programs can read an object, or None if it has no URL."""

    def check_writable(self) -> None:
        """Raise UnsupportedError if this client cannot write, for example over plain HTTP."""
        if self.web:
            remedy = "Write to a different path or URL"
            raise UnsupportedError("plain HTTP is read-only", remedy=remedy, store=self.name)

    def listing_error(
        self, prefix: str, problem: str = "plain HTTP cannot list objects"
    ) -> Exception:
        """Return the error for an attempt to list `prefix` on a server that cannot list objects.

        `problem` says why the server cannot list objects.
        """
        return UnsupportedError(
            problem,
            remedy="Consolidate the metadata of the store, or pass a different URL for the same "
            "data",
            store=self.name,
            key=prefix or None,
        )
