"""Any object store or web server as a store, whichever library reaches it."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from xr_nczarr.errors import AccessDeniedError, StorageError, UnsupportedError
from xr_nczarr.storage.fingerprint import digest
from xr_nczarr.storage.keys import Listing, check_prefix, check_target
from xr_nczarr.storage.ranges import ByteRange, Bytes, Versioned, check_range, merge_ranges, windows
from xr_nczarr.storage.retries import Retry
from xr_nczarr.storage.store import Address, Store

IN_FLIGHT = 64  # requests

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Request(NamedTuple):
    """An object, or `length` bytes of it from `start`; a negative start counts from the end."""

    key: str
    start: int | None = None
    length: int = 0

    @property
    def place(self) -> str | None:
        """The byte range in messages; None for a whole object."""
        if self.start is None:
            return None
        return f"bytes {self.start} to {self.start + self.length or 'the end'}"


def cut_error(request: Request, size: int, store: str) -> StorageError:
    """Return the error for an answer of `size` bytes in place of a range."""
    return StorageError(
        f"expected {request.length} bytes from {request.start}, got {size}",
        remedy="The object was cut or changed, or the server does not know byte ranges.",
        store=store,
        key=request.key,
    )


class ListedObject(NamedTuple):
    """An object in a listing; `mark` is a text that changes whenever the object does."""

    key: str
    size: int | None
    mark: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What answers mean and how often they are requested.

    Attributes
    ----------
    retry
        How transient failures are tried again.
    missing_status
        HTTP answers that mean *not found*. Some stores answer 403 for absent objects.
    max_object_bytes
        Larger objects are errors, and no more than that is read; None for no limit.
    pages_are_answers
        Whether a web page in place of a whole object is an answer; otherwise it is an error.
    objects_are_small
        Whether many objects fit in memory, so that more requests are made at once.
    """

    retry: Retry = Retry()  # noqa: RUF009 (frozen)
    missing_status: tuple[int, ...] = (404,)
    max_object_bytes: int | None = None
    pages_are_answers: bool = False
    objects_are_small: bool = False


class Connection(ABC):
    """A place, and how its answers are taken.

    Attributes
    ----------
    name
        A URL without secrets, for messages.
    web
        Whether this is plain HTTP, which has no listings and cannot be written.
    remote
        Whether a request costs a round trip.
    shared
        Whether other processes see the same objects.
    token
        A text of its own, where other processes do not see the objects.
    transactional
        See `Store`.
    """

    name: str
    web: bool = False
    remote: bool = True
    shared: bool = True
    token: str = ""
    transactional: bool = False
    rules: Rules

    @abstractmethod
    def client(self) -> RemoteClient:
        """Return the client of this process."""

    @abstractmethod
    def with_rules(self, rules: Rules) -> Connection:
        """Return a connection to the same place with other rules."""

    @property
    def identity(self) -> str:
        """A text that two clients share if they reach the same objects."""
        return self.name


class RemoteClient(Connection):
    """The requests of a library to a place.

    Attributes
    ----------
    pooled
        Whether a request keeps nothing but its thread waiting, so that many threads make requests.
    alone
        Whether requests are made one after another.
    """

    pooled: bool = False
    alone: bool = False

    def client(self) -> RemoteClient:
        """Return this client, if it works in this process."""
        return self

    @abstractmethod
    def with_rules(self, rules: Rules) -> RemoteClient:
        """Return a client of the same place with other rules."""

    @abstractmethod
    def answers(self, requests: Sequence[Request]) -> Iterator[Versioned | None]:
        """Yield what is requested in order, with exactly the bytes of a range; None if absent."""

    def end(self, key: str, max_bytes: int) -> Bytes | None:
        """Return the last `max_bytes` of an object, all of a shorter one; None if it is absent."""
        size = self.size(key)
        length = min(size or 0, max_bytes)
        requests = [] if size is None else [Request(key, size - length, length)]
        return _data(next(self.answers(requests), None))

    def probes(self, requests: Sequence[Request]) -> Iterator[Bytes | AccessDeniedError | None]:
        """Yield the answers in order, and the error in place of one that is refused (403)."""
        return self.at_once(self._probe, requests)

    def _probe(self, request: Request) -> Bytes | AccessDeniedError | None:
        try:
            return _data(next(self.answers([request])))
        except AccessDeniedError as error:
            return error

    def at_once(
        self, work: Callable[[_Item], _Result], items: Sequence[_Item]
    ) -> Iterator[_Result]:
        """Yield ``work(item)`` for each item in order, several at once unless `alone`."""
        if self.alone or len(items) < 2:
            yield from map(work, items)
            return
        with ThreadPoolExecutor(min(IN_FLIGHT, len(items)), "at-once") as helpers:
            yield from helpers.map(work, items)

    @abstractmethod
    def put(self, key: str, data: Bytes) -> None:
        """Write an object in one request."""

    @abstractmethod
    def create(self, key: str, data: Bytes) -> bool | None:
        """Write an object unless it exists, by a conditional request; return whether it did.

        None if the store knows no conditional requests.
        """

    @abstractmethod
    def children(self, prefix: str) -> Listing:
        """Return one level below `prefix`, sorted; empty where nothing exists."""

    @abstractmethod
    def below(self, prefix: str) -> Iterator[ListedObject]:
        """Yield every object below `prefix`."""

    @abstractmethod
    def remove(self, keys: Sequence[str]) -> None:
        """Remove objects, as far as they exist."""

    @abstractmethod
    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, None if it does not exist."""

    @abstractmethod
    def address(self, key: str) -> str | None:
        """Return the URL of an object for other programs, None if it has none."""

    def check_writable(self) -> None:
        """Raise UnsupportedError if objects can never be written."""
        if self.web:
            raise UnsupportedError("plain HTTP is read only", store=self.name)

    def unlisted(self, prefix: str, problem: str = "plain HTTP cannot list objects") -> Exception:
        """Return the error of listing a place that cannot be listed."""
        return UnsupportedError(
            problem,
            remedy="Give consolidated metadata, or another URL of the same data.",
            store=self.name,
            key=prefix or None,
        )


class RemoteStore(Store):
    """The objects that the client of `connection` reaches."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.name = connection.name
        self.remote = connection.remote
        self.transactional = connection.transactional
        self.answers_with_pages = connection.rules.pages_are_answers

    @property
    def _client(self) -> RemoteClient:
        return self.connection.client()

    @property
    def identity(self) -> str:
        """A text that two stores share if they hold the same objects."""
        return self.connection.identity

    @property
    def shared(self) -> bool:  # type: ignore[override]
        """Whether other processes may write to it at the same time, object by object."""
        return self.connection.shared

    @property
    def max_threads(self) -> int | None:
        """How many threads that read one chunk each save time; None for one each processor."""
        return IN_FLIGHT if self._client.pooled else None

    @property
    def max_puts(self) -> int:  # type: ignore[override]
        """How many objects are best encoded and put at once."""
        return IN_FLIGHT if self.remote and not self._client.alone else 1

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteStore, (self.connection,)

    def __dask_tokenize__(self) -> Any:
        return pickle.dumps(self.connection) if self.shared else self.connection.token

    def bounded(self, max_bytes: int) -> RemoteStore:
        """Return the store that reads no object of more than `max_bytes`."""
        limit = min(max_bytes, self.connection.rules.max_object_bytes or max_bytes)
        return self._with(max_object_bytes=limit)

    def probing(self) -> RemoteStore:
        """Return the store for the search for metadata; see `Store.probing`."""
        return self._with(pages_are_answers=self.connection.web, objects_are_small=True)

    def of_small_objects(self) -> RemoteStore:
        """Return a store that fetches more objects at once, for those that fit in memory."""
        return self._with(objects_are_small=True)

    def _with(self, **changes: Any) -> RemoteStore:
        return RemoteStore(self.connection.with_rules(replace(self.connection.rules, **changes)))

    def fetch(self, keys: Sequence[str]) -> Iterator[Bytes | None]:
        """Yield each object in the order of `keys`, None for an absent one."""
        for answer in self._client.answers([Request(key) for key in keys]):
            yield _data(answer)

    def probe(self, keys: Sequence[str]) -> Iterator[Bytes | AccessDeniedError | None]:
        """Yield each object like `fetch`, and the error in place of one that is refused (403)."""
        return self._client.probes([Request(key) for key in keys])

    def at_once(
        self, work: Callable[[_Item], _Result], items: Sequence[_Item]
    ) -> Iterator[_Result]:
        """Yield ``work(item)`` for each item in order, several at once where the client can."""
        return self._client.at_once(work, items)

    def fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        """Yield each byte range in order, None where the object does not exist."""
        for answer in self.fetch_versions(ranges):
            yield _data(answer)

    def fetch_versions(self, ranges: Sequence[ByteRange]) -> Iterator[Versioned | None]:
        """Yield each byte range with the version of its object, None for an absent object."""
        for item in ranges:
            check_range(item, self.name)
        plans = [(len(window), merge_ranges(window)) for window in windows(ranges)]
        # A suffix is requested as such: its first byte is unknown.
        answers = self._client.answers(
            [Request(*item.range) for _, merged in plans for item in merged]
        )
        for count, merged in plans:
            results: list[Versioned | None] = [None] * count
            for _, parts in merged:
                answer = next(answers)
                if answer is not None:
                    for position, offset, length in parts:
                        data = answer.data[offset : offset + length]
                        results[position] = Versioned(data, answer.version)
            yield from results

    def fetch_end(self, key: str, max_bytes: int) -> Bytes | None:
        """Return the last `max_bytes` of an object, all of a shorter one; None if it is absent."""
        return self._client.end(key, max_bytes)

    def put(self, items: Iterable[tuple[str, Bytes]]) -> None:
        """Write objects, each in one request, replacing older ones.

        Several are under way at once. Write the last object of a commit by a call of its own.
        """
        self.check_writable()
        client, source = self._client, iter(items)
        while batch := list(islice(source, IN_FLIGHT)):
            for _ in client.at_once(lambda item: client.put(*item), batch):
                pass

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless it exists; return whether `data` is stored now.

        Where the store has conditional requests, as S3 does, one of two concurrent writers wins.
        Elsewhere the object is looked up first.
        """
        self.check_writable()
        created = self._client.create(key, data)
        if created is None:
            return super().create(key, data)
        if not created:  # if it is not by an earlier try whose answer was lost
            (stored,) = self.fetch([key])
            return stored is not None and bytes(stored) == data
        return True

    def fingerprint(self) -> str | None:
        """Return a text that changes whenever an object does, from the listing; None for HTTP."""
        if self.connection.web:
            return None
        entries = sorted(self._client.below(""))
        if any(entry.mark is None for entry in entries):
            return None
        return digest([self.name, *map(tuple, entries)])

    def list_names(self, prefix: str) -> Listing:
        """Return one level below `prefix`, sorted; empty where nothing exists."""
        check_prefix(prefix, self.name)
        return self._client.children(prefix)

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int | None]]:
        """Yield key and size in bytes of every object below `prefix`."""
        check_prefix(prefix, self.name)
        if self.connection.web:
            raise self._client.unlisted(prefix)
        for entry in self._client.below(prefix):
            yield entry.key, entry.size

    def list_keys(self, prefix: str = "") -> Iterator[str]:
        """Yield the key of every object below `prefix`."""
        if self.connection.web:  # by its index pages
            return super().list_keys(prefix)
        return (key for key, _ in self.sizes(prefix))

    def delete(self, prefix: str) -> None:
        """Remove the object `prefix`, or all objects below it if it ends in ``/`` or is empty."""
        self.check_writable()
        if check_target(prefix, self.name):
            self._client.remove([prefix])
        else:
            self.remove(entry.key for entry in self._client.below(prefix))

    def remove(self, keys: Iterable[str]) -> None:
        """Remove objects in any order, in few requests where the client can."""
        self.check_writable()
        self._client.remove(list(keys))

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, None if it does not exist."""
        return self._client.size(key)

    def addresses(self, keys: Sequence[str]) -> dict[str, Address]:
        """Return the URLs of objects."""
        urls = {key: self._client.address(key) for key in keys}
        return {key: Address(url) for key, url in urls.items() if url is not None}

    def check_writable(self) -> None:
        """Raise UnsupportedError for plain HTTP, and for what fsspec caches."""
        self._client.check_writable()


def _data(answer: Versioned | None) -> Bytes | None:
    return None if answer is None else answer.data
