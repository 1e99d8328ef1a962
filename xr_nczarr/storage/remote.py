"""The store class for object stores and web servers."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any, TypeVar

from xr_nczarr.errors import AccessDeniedError, StorageError, UnsupportedError
from xr_nczarr.storage.fingerprint import digest
from xr_nczarr.storage.keys import Listing, check_key_or_prefix, check_prefix
from xr_nczarr.storage.ranges import (
    ByteRange,
    Bytes,
    Versioned,
    check_range,
    first_byte,
    merge_ranges,
    resolve_suffix,
    split_into_batches,
    to_end,
    too_large,
)
from xr_nczarr.storage.remote_client import (
    IN_FLIGHT,
    Connection,
    Expected,
    ListedObject,
    RemoteClient,
)
from xr_nczarr.storage.retries import explained_listing_errors, page_error, page_in
from xr_nczarr.storage.store import Address, Store, granted

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class RemoteStore(Store):
    """A store that accesses its objects through a `Connection`.

    By default, the size of objects is limited to ``connection.rules.max_object_bytes``.
    """

    def __init__(self, connection: Connection, expected: Expected | None = None) -> None:
        self.connection = connection
        self.expected = expected or Expected(connection.rules.max_object_bytes)
        self.name, self.remote = connection.name, connection.remote
        self.transactional = connection.transactional
        self.supports_consolidated = connection.supports_consolidated
        self.returns_pages = connection.web and self.expected.probing

    @property
    def _client(self) -> RemoteClient:
        return self.connection.client()

    @property
    def identity(self) -> str:
        """An identifier shared by all stores that access the same objects."""
        return self.connection.identity

    @property
    def shared(self) -> bool:  # type: ignore[override]
        """Whether other processes can write individual objects while this one uses the store."""
        return self.connection.shared

    @property
    def max_threads(self) -> int | None:
        """Maximum number of threads that read chunks concurrently, or None for one per CPU."""
        return IN_FLIGHT if self._client.pooled else None

    @property
    def max_puts(self) -> int:  # type: ignore[override]
        """Maximum number of objects to encode and write concurrently, each in its own thread."""
        return IN_FLIGHT if self.remote and not self._client.sequential else 1

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteStore, (self.connection, self.expected)

    def __dask_tokenize__(self) -> Any:
        return pickle.dumps(self.connection) if self.shared else self.connection.token

    def bounded(self, max_bytes: int) -> RemoteStore:
        """Return a variant of this store that limits the size of objects; see `Store.bounded`."""
        limit = min(max_bytes, self.expected.max_bytes)
        return RemoteStore(self.connection, self.expected._replace(max_bytes=limit))

    def probing(self) -> RemoteStore:
        """Return a variant of this store for finding metadata; see `Store.probing`."""
        return RemoteStore(self.connection, self.expected._replace(probing=True))

    def fetch(self, keys: Sequence[str]) -> Iterator[Bytes | None]:
        """Yield the bytes of the object at each key, or None for a missing object."""
        for response in self.probe(keys):
            yield granted(response)

    def probe(self, keys: Sequence[str]) -> Iterator[Bytes | AccessDeniedError | None]:
        """Yield objects as `fetch` does, but yield an AccessDeniedError instead of raising it.

        Raises
        ------
        LimitError
            If an object is larger than the size limit of this store; see `bounded`.
        StorageError
            If the server sent a web page in place of an object, unless `returns_pages` is true.
        """
        max_bytes = self.expected.max_bytes
        responses = self._client.fetch([ByteRange(key) for key in keys], self.expected)
        for key, response in zip(keys, responses, strict=True):
            if not isinstance(response, Versioned):
                yield response
                continue
            data = response.data
            if len(data) > max_bytes:
                problem = f"the object is at least {len(data):,} bytes long"
                raise too_large(problem, max_bytes, self.name, key)
            if not self.returns_pages and (page := page_in(data)):
                raise page_error("an object", page, store=self.name, key=key)
            yield data

    def map_concurrently(
        self, work: Callable[[_Item], _Result], items: Sequence[_Item]
    ) -> Iterator[_Result]:
        """Yield ``work(item)`` for each item, in order.

        The calls run concurrently if the client allows it.
        """
        return self._client.map_concurrently(work, items)

    def fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        """Yield the bytes of each range, or None for a range of a missing object.

        Ranges that are close together are fetched in one request.
        """
        for response in self.fetch_versions(ranges):
            yield _data(response)

    def fetch_versions(self, ranges: Sequence[ByteRange]) -> Iterator[Versioned | None]:
        """Yield the bytes and the object's version for each range, or None for a missing object."""
        for item in ranges:
            check_range(item, self.name)
        plans = [(len(batch), merge_ranges(batch)) for batch in split_into_batches(ranges)]
        merged_ranges = [item.range for _, merged in plans for item in merged]
        responses = self._fetch_exactly([to_end(item) for item in merged_ranges if item.length])
        for count, merged in plans:
            results: list[Versioned | None] = [None] * count
            for item, parts in merged:
                response = next(responses) if item.length else self._empty_range(item)
                if response is not None:
                    for position, offset, length in parts:
                        data = response.data[offset : offset + length]
                        results[position] = Versioned(data, response.version)
            yield from results

    def _fetch_exactly(self, requests: Sequence[ByteRange]) -> Iterator[Versioned | None]:
        responses = self._client.fetch(self._supported(requests), self.expected)
        for request, response in zip(requests, map(granted, responses), strict=True):
            if response is not None and len(response.data) != request.length:
                raise StorageError(
                    f"the server returned {len(response.data)} bytes; expected {request.length} "
                    f"at offset {request.start}",
                    remedy="If the object was changed while it was being read, read it again. "
                    "Otherwise, copy it to a server that supports range requests",
                    store=self.name,
                    key=request.key,
                )
            yield response

    def _supported(self, requests: Sequence[ByteRange]) -> Sequence[ByteRange]:
        """Replace the ranges that count from the end if the client does not support them."""
        if self._client.supports_suffixes:
            return requests
        sizes = self.sizes_of([item.key for item in requests if item.start < 0])
        return [resolve_suffix(item, next(sizes)) if item.start < 0 else item for item in requests]

    def _empty_range(self, item: ByteRange) -> Versioned | None:
        """Return empty bytes for a range of length zero, or None if the object does not exist.

        Raises
        ------
        StorageError
            If the range is out of bounds.
        """
        size = self.size(item.key)  # because HTTP cannot express an empty range
        if size is not None:
            first_byte(item, size, self.name)
        return None if size is None else Versioned(b"")

    def fetch_end(self, key: str, max_bytes: int) -> Bytes | None:
        """Return the last `max_bytes` bytes of an object, or all of its bytes if it is shorter.

        Return None if the object does not exist.
        """
        requests = self._supported([ByteRange(key, -max_bytes, max_bytes)])
        return _data(granted(next(self._client.fetch(requests, self.expected))))

    def put(self, items: Iterable[tuple[str, Bytes]]) -> None:
        """Write each object in one request, replacing any existing object.

        Objects are written concurrently, in no particular order. If an object must be written after
        all others, write it in a separate call.
        """
        self.check_writable()
        client, source = self._client, iter(items)
        while batch := list(islice(source, IN_FLIGHT)):
            client.put_all(batch)

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless it exists; return whether the stored object now equals `data`.

        If the store supports conditional requests, as S3 does, exactly one of two concurrent
        writers creates the object. Otherwise, both may write it.
        """
        self.check_writable()
        created = self._client.create(key, data)
        if created is None:
            return super().create(key, data)
        if not created:  # an earlier attempt may have created it, but the response was lost
            (stored,) = self.fetch([key])
            return stored is not None and bytes(stored) == data
        return True

    def fingerprint(self) -> str | None:
        """Return a string that changes whenever any object in the store changes.

        Return None if the objects cannot be listed, or if the listing lacks the version of an
        object; see `ListedObject`.
        """
        with suppress(AccessDeniedError, UnsupportedError):
            entries = sorted(self._below(""))
            if all(entry.version is not None for entry in entries):
                return digest([self.name, *map(tuple, entries)])
        return None

    def list_names(self, prefix: str) -> Listing:
        """Return the sorted names of the objects and prefixes directly under `prefix`.

        The listing is empty if no object exists under `prefix`.
        """
        check_prefix(prefix, self.name)
        if self.connection.web and not self.returns_pages:
            raise self._client.listing_error(prefix)
        with explained_listing_errors():
            return self._client.children(prefix)

    def _below(self, prefix: str) -> Iterator[ListedObject]:
        if self.connection.web:
            raise self._client.listing_error(prefix)
        with explained_listing_errors():
            yield from self._client.below(prefix)

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int | None]]:
        """Yield the key and the size in bytes of every object under `prefix`."""
        check_prefix(prefix, self.name)
        for entry in self._below(prefix):
            yield entry.key, entry.size

    def list_keys(self, prefix: str = "") -> Iterator[str]:
        """Yield the key of every object under `prefix`."""
        return (key for key, _ in self.sizes(prefix))

    def delete(self, prefix: str) -> None:
        """Remove one object, or all objects under a prefix; see `Store.delete`."""
        self.check_writable()
        if check_key_or_prefix(prefix, self.name):
            self._client.remove([prefix])
        else:
            self.remove(entry.key for entry in self._below(prefix))

    def remove(self, keys: Iterable[str]) -> None:
        """Remove the objects at `keys`, in no particular order."""
        self.check_writable()
        self._client.remove(list(keys))

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None if the object does not exist."""
        return next(self.sizes_of([key]))

    def sizes_of(self, keys: Sequence[str]) -> Iterator[int | None]:
        """Yield the size in bytes of the object at each key, or None for a missing object."""
        for key, size in zip(keys, self._client.sizes(keys), strict=True):
            if size is not None and size < 0:
                (data,) = self.fetch([key])
                size = None if data is None else len(data)
            yield size

    def addresses(self, keys: Sequence[str]) -> dict[str, Address]:
        """Map each key to the URL of its object. Keys of objects without a URL are omitted."""
        urls = {key: self._client.address(key) for key in keys}
        return {key: Address(url) for key, url in urls.items() if url is not None}

    def check_writable(self) -> None:
        """Raise an error if objects cannot be written.

        Raises
        ------
        UnsupportedError
            If the client is read-only, for example because it uses plain HTTP or a cache.
        StorageError
            If the store exists only in another process.
        """
        self._client.check_writable()


def _data(response: Versioned | None) -> Bytes | None:
    return None if response is None else response.data
