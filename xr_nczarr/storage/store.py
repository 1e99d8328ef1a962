"""The abstract base class of stores: four basic methods, and defaults for all others."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeVar

from xr_nczarr.errors import AccessDeniedError, NczarrError, UnsupportedError
from xr_nczarr.model import ChunkKeys
from xr_nczarr.storage.keys import KeyLocks, Listing
from xr_nczarr.storage.ranges import ByteRange, Bytes, Read, Versioned, cut_ranges

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_locks = KeyLocks()


class Address(NamedTuple):
    """The place where other programs can read an object: a file, or a byte range of a file.

    `offset` and `length` are in bytes. They are None if the object is the whole file at `url`.
    """

    url: str
    offset: int | None = None
    length: int | None = None


class Store(ABC):
    """A mapping from keys to objects, which are byte strings.

    Stores are cheap to create, small when pickled, and usable after a fork.

    A subclass implements `fetch` and `list_names`, and also `put` and `delete` if it is writable.
    All other methods have default implementations, which are based on these four methods and which
    a subclass may override.

    Attributes
    ----------
    name
        A URL or path without secrets, for messages.
    remote
        Whether each request costs a network round trip, so that concurrent requests are faster.
    reads_in_place
        Whether `fetch_into` and `fetch_ranges_into` read into the buffer without another copy.
    zero_fill_is_missing
        Whether a fill value of 0 marks missing values. It does not in reference sets, whose
        writers use 0 if the original file declares no fill value.
    shared
        Whether other processes may write individual objects concurrently.
    locks_processes
        Whether `lock` also excludes other processes. The lock is released when this process ends.
    replaceable
        Whether `in_one_step` can replace the whole content of the store atomically.
    max_puts
        Number of objects to encode and put concurrently, each in its own thread.
    single_file
        Whether the store is a single file, which any change replaces.
    transactional
        Whether changes are invisible until the caller commits them. Metadata are then written
        before chunks, because icechunk rejects chunks of unknown arrays.
    returns_pages
        Whether web pages that a server sends in place of objects are returned; see `probing`.
    consolidated
        Whether all metadata already come from one document, so that consolidated metadata are not
        needed.
    """

    __slots__ = ()

    name: str
    remote: bool = False
    returns_pages: bool = False
    reads_in_place: ClassVar[bool] = False
    zero_fill_is_missing: ClassVar[bool] = True
    shared: ClassVar[bool] = True
    locks_processes: ClassVar[bool] = False
    replaceable: ClassVar[bool] = False
    single_file: ClassVar[bool] = False
    max_puts: int = 1
    transactional: bool = False
    consolidated: bool = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def identity(self) -> str:
        """An identifier of the objects, equal for all stores that access the same objects."""
        return self.name

    @property
    def max_threads(self) -> int | None:
        """Number of threads that read chunks concurrently. None means one thread per processor."""
        return None

    @abstractmethod
    def fetch(self, keys: Sequence[str]) -> Iterator[Bytes | None]:
        """Yield the bytes of the object at each key, or None for a missing object.

        Raises
        ------
        StorageError
            If the response is neither the whole object nor *not found*.
        """

    @abstractmethod
    def list_names(self, prefix: str) -> Listing:
        """Return the sorted names of the objects and prefixes directly below `prefix`.

        `prefix` is empty or ends in ``/``.

        Raises
        ------
        UnsupportedError
            If the store cannot be listed (plain HTTP).
        """

    def put(self, items: Iterable[tuple[str, Bytes]]) -> None:
        """Write each object atomically, replacing any existing object."""
        raise self._read_only()

    def delete(self, prefix: str) -> None:
        """Remove one object, or all objects below a prefix.

        `prefix` is the key of an object, or it ends in ``/``. An empty prefix stands for all
        objects.
        """
        raise self._read_only()

    def remove(self, keys: Iterable[str]) -> None:
        """Remove objects in any order, with bulk requests if the store supports them."""
        for key in keys:
            self.delete(key)

    def check_writable(self) -> None:
        """Raise UnsupportedError if the store does not support writing."""
        if type(self).put is Store.put:
            raise self._read_only()

    def fetch_present(self, keys: Sequence[str]) -> Iterator[tuple[str, Bytes]]:
        """Yield the key and the bytes of each existing object, in the order of `keys`."""
        for key, data in zip(keys, self.fetch(keys), strict=True):
            if data is not None:
                yield key, data

    def probe(self, keys: Sequence[str]) -> Iterator[Bytes | AccessDeniedError | None]:
        """Yield each object like `fetch`, but yield an AccessDeniedError instead of raising it.

        A store that cannot determine to which object access was denied raises the error instead.
        """
        return self.fetch(keys)

    def at_once(
        self, work: Callable[[_Item], _Result], items: Sequence[_Item]
    ) -> Iterator[_Result]:
        """Yield ``work(item)`` for each item in order, concurrently if that saves round trips.

        `work` is a function that makes requests to this store.
        """
        return map(work, items)

    def fetch_chunks(
        self, keys: ChunkKeys, chunks: Sequence[tuple[int, ...]]
    ) -> Iterator[Bytes | None]:
        """Yield the encoded bytes of each chunk of an array, or None for a missing chunk.

        Each of the `chunks` is a tuple with the index of the chunk along every dimension.
        """
        return self.fetch([keys.key(chunk) for chunk in chunks])

    def fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        """Yield the bytes of each range, or None for a range of a missing object.

        Raises
        ------
        StorageError
            If a range does not lie within its object.
        """
        return cut_ranges(ranges, self.fetch([item.key for item in ranges]), self.name)

    def fetch_versions(self, ranges: Sequence[ByteRange]) -> Iterator[Versioned | None]:
        """Yield the bytes of each range with its object's version, or None for a missing object.

        The version is a string that changes whenever the object changes, or None if it is unknown.
        """
        for data in self.fetch_ranges(ranges):
            yield None if data is None else Versioned(data)

    def fetch_end(self, key: str, max_bytes: int) -> Bytes | None:
        """Return up to `max_bytes` from the end of an object, or None for a missing object."""
        size = self.size(key)
        if size is None:
            return None
        length = min(size, max_bytes)
        return next(self.fetch_ranges([ByteRange(key, size - length, length)]))

    def fetch_into(self, key: str, buffer: Any) -> int | None:
        """Read an object into `buffer`, a contiguous array; return the object's size in bytes.

        Return None if the object does not exist. The content of `buffer` is valid only if the
        buffer has exactly the returned size.
        """
        (data,) = self.fetch([key])
        if data is None:
            return None
        if len(data) == buffer.nbytes:
            memoryview(buffer).cast("B")[:] = data
        return len(data)

    def fetch_ranges_into(
        self, key: str, spans: Sequence[tuple[int, int]], buffers: Sequence[Any]
    ) -> bool:
        """Read ranges of an object into `buffers`, one buffer for each range.

        Each of the `spans` is a pair of first byte and length, and the corresponding buffer has
        that length. Return False if the object does not exist, otherwise True.

        Raises
        ------
        StorageError
            If a range does not lie within the object.
        """
        ranges = [ByteRange(key, start, length) for start, length in spans]
        for data, buffer in zip(self.fetch_ranges(ranges), buffers, strict=True):
            if data is None:
                return False
            buffer[:] = data
        return True

    def reading(self, key: str) -> AbstractContextManager[Read]:
        """Return a context manager that yields a function for reading ranges of an object.

        The function takes the first byte and the length, and returns None if the object does not
        exist. If possible, all calls read the same version of the object, even after another
        writer replaces it.
        """
        return nullcontext(
            lambda start, length: next(self.fetch_ranges([ByteRange(key, start, length)]))
        )

    def list_keys(self, prefix: str = "") -> Iterator[str]:
        """Yield the key of every object below `prefix`."""
        objects, prefixes = self.list_names(prefix)
        yield from (prefix + name for name in objects)
        for name in prefixes:
            yield from self.list_keys(f"{prefix}{name}/")

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None if the object does not exist."""
        (data,) = self.fetch([key])
        return None if data is None else len(data)

    def sizes_of(self, keys: Sequence[str]) -> Iterator[int | None]:
        """Yield the size in bytes of the object at each key, or None for a missing object."""
        return self.at_once(self.size, keys)

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int | None]]:
        """Yield the key and the size in bytes of every object below `prefix`.

        The size is None if it cannot be determined without another request.

        Raises
        ------
        UnsupportedError
            If the store cannot be listed (plain HTTP), or is a reference set that declares too
            many objects.
        """
        for key in self.list_keys(prefix):
            yield key, None if self.remote else self.size(key)

    def known_sizes(self, keys: Sequence[str]) -> list[int | None] | None:
        """Return the sizes of objects in bytes, if they are known without a request.

        In the list, 0 stands for a missing object, and None for an object of unknown size. If no
        size is known, None is returned instead of a list.
        """
        return None if self.remote else [size or 0 for size in self.sizes_of(keys)]

    def count_requests(self, ranges: Sequence[ByteRange]) -> int:
        """Return the number of requests needed to fetch byte ranges.

        A range of negative length stands for a whole object.
        """
        return len(ranges)

    def addresses(self, keys: Sequence[str]) -> dict[str, Address]:
        """Return the addresses at which other programs can read objects, by key.

        Objects without such an address are left out. By default, no object has one.

        Raises
        ------
        UnsupportedError
            If an object is stored only in compressed form.
        """
        return {}

    def bounded(self, max_bytes: int) -> Store:
        """Return the same store, but with a limit on the size of objects.

        Reading an object of more than `max_bytes` raises LimitError. The default implementation
        sets no limit.
        """
        return self

    def probing(self) -> Store:
        """Return a variant of this store for finding metadata.

        If a web server sends a web page in place of an object, this variant returns the page
        instead of raising an error. The caller can then decide whether the object exists. The
        variant also lists folders by their index pages, which may omit objects whose names begin
        with a dot.
        """
        return self

    def of_small_objects(self) -> Store:
        """Return a variant of this store for small objects, which requests more objects at once."""
        return self

    def narrowed(self, keys: ChunkKeys) -> Store:
        """Return a store that pickles only the data needed to read the chunks of one array."""
        return self

    def is_same(self, other: Store) -> bool:
        """Return whether both stores access the same objects."""
        return self.remote == other.remote and self.identity == other.identity

    def is_within(self, other: Store) -> bool:
        """Return whether this store is inside a folder of `other`."""
        return False

    def fingerprint(self) -> str | None:
        """Return a string that changes whenever any object in the store changes.

        Returns None if the string cannot be determined without reading the objects.
        """
        return None

    def check_new_keys(self, new: Iterable[str], existing: Iterable[str]) -> None:
        """Check that the store can contain the `new` keys in addition to the `existing` keys.

        Raises
        ------
        RefusedError
            For a name that the operating system does not allow. The error names the key.
        ConflictError
            For names that differ only in case or in the encoding of accents, if the file system
            does not distinguish them.
        """

    def copy_from(self, source: Store, keys: Iterable[tuple[str, str]]) -> int:
        """Copy objects from another store, and return the number of objects copied.

        Each of the `keys` is a pair: the key in `source`, and the key in this store. Objects that
        do not exist in `source` are skipped. Each object is written atomically.
        """
        pairs = list(keys)
        fetched = source.fetch([source_key for source_key, _ in pairs])
        items = [
            (key, data) for (_, key), data in zip(pairs, fetched, strict=True) if data is not None
        ]
        self.put(items)
        return len(items)

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless it exists, and return whether the stored object equals `data`."""
        (stored,) = self.fetch([key])
        if stored is None:
            self.put([(key, data)])
        return stored is None or bytes(stored) == data

    def lock(self, key: str) -> AbstractContextManager[None]:
        """Return a context manager that excludes other writers of an object.

        Hold the lock while the object is read, merged and written. An empty key stands for the
        writer lock of the whole store. By default, locks exclude only other threads of this
        process.
        """
        return _locks(f"{self.identity}\0{key}")

    def flush(self) -> None:
        """Flush everything written so far to the disk."""

    @contextmanager
    def in_one_step(self, *, empty: bool, exclusive: bool = False) -> Iterator[Store]:
        """Yield a staging store, whose content replaces this store's content if the block succeeds.

        The staging store initially contains the objects of this store, or no objects if `empty`.

        Raises
        ------
        ExistsError
            If `exclusive` is true and another writer has created the store.
        """
        staging = self.staging(empty=empty)
        try:
            yield staging
            self.commit(staging, exclusive=exclusive)
        except NczarrError as error:
            # The staging store no longer exists when the message is read.
            if error.store == staging.name:
                error.store = self.name
            raise
        finally:
            staging.discard()

    def staging(self, *, empty: bool) -> Any:
        """Return a new staging store, with which `commit` can replace the content of this store.

        It initially contains the objects of this store, or no objects if `empty`.
        """
        self._not_replaceable()

    def commit(self, staging: Any, *, exclusive: bool = False) -> None:
        """Replace the content of this store atomically with the content of `staging`."""
        self._not_replaceable()

    def _read_only(self) -> UnsupportedError:
        return UnsupportedError("this store is read-only", store=self.name)

    def _not_replaceable(self) -> NoReturn:
        raise UnsupportedError("the store cannot be replaced atomically", store=self.name)
