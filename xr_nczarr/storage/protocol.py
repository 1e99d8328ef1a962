"""What every store offers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

Bytes = bytes | bytearray | memoryview
Read = Callable[[int, int], Bytes | None]


class ByteRange(NamedTuple):
    """`length` bytes of the object at `key` from `start`; a negative start counts from the end."""

    key: str
    start: int
    length: int


class Listing(NamedTuple):
    """One level of a store: names of objects and names of prefixes directly below a prefix."""

    objects: list[str]
    prefixes: list[str]


class Store(Protocol):
    """A mapping of keys to bytes. Stores are cheap to make, pickle small, and survive a fork."""

    @property
    def name(self) -> str:
        """For messages: a URL or path without secrets."""

    @property
    def remote(self) -> bool:
        """Whether a request costs a round trip, so that concurrency pays."""

    def fetch(self, keys: Sequence[str]) -> Iterator[Bytes | None]:
        """Yield each object in the order of `keys`, None for one that is not there.

        Every answer that is neither the whole object nor *not found* is a StorageError.
        """

    def fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        """Yield each byte range in order, None where the object is not there.

        It is a StorageError when the object ends before the range does.
        """

    def put(self, items: Iterable[tuple[str, Bytes]]) -> None:
        """Write objects, each whole or not at all, replacing what was there."""

    def list_names(self, prefix: str) -> Listing:
        """Give one level below `prefix` (empty, or ending in ``/``).

        It is an UnsupportedError where nothing can be listed (plain HTTP).
        """

    def delete(self, prefix: str) -> None:
        """Remove the object `prefix`, or all objects below it when it ends in ``/`` or is empty."""

    def lock(self, key: str) -> AbstractContextManager[None]:
        """Keep other writers of the object out while it is read, merged and put.

        Between processes where the store can (local files), else within this process.
        """


def fetch_present(store: Store, keys: Sequence[str]) -> Iterator[tuple[str, Bytes]]:
    """Yield key and bytes of those objects that are there, in the order of `keys`."""
    for key, data in zip(keys, store.fetch(keys), strict=True):
        if data is not None:
            yield key, data


def check_new_keys(store: Store, new: Iterable[str], there: Iterable[str]) -> None:
    """Refuse to add keys that a store cannot hold beside those that are there; most hold any."""
    own: Any = getattr(store, "check_new_keys", None)
    if own is not None:
        own(new, there)


def bounded(store: Store, most: int) -> Store:
    """Give a store that reads no object of more than `most` bytes; the same where it cannot."""
    own: Any = getattr(store, "bounded", None)
    return store if own is None else own(most)


def probing(store: Store) -> Store:
    """Return the store as one looks for documents in it.

    On the web it gives web pages in place of objects, which are errors otherwise: the caller tells
    from them whether something is there. It lists folders by their index pages, which may hide
    objects whose names begin with a dot.
    """
    own: Any = getattr(store, "probing", None)
    return store if own is None else own()


def reading(store: Store, key: str) -> AbstractContextManager[Read]:
    """Give what reads bytes of an object, by the first one and their number; None without it.

    Where the store can, they are all of the same object, even if it is replaced meanwhile.
    """
    own: Any = getattr(store, "reading", None)
    return nullcontext(_each_alone(store, key)) if own is None else own(key)


def _each_alone(store: Store, key: str) -> Read:
    return lambda start, length: next(store.fetch_ranges([ByteRange(key, start, length)]))


class SizedStore(Store, Protocol):
    """A store that can hold files with a structure of their own."""

    def size(self, key: str) -> int | None:
        """Give the size of an object in bytes, None when it is not there."""
