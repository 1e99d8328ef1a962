"""The abstract base class of stores: four basic methods, and defaults for most other methods."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, NamedTuple, TypeVar

from xr_nczarr.errors import AccessDeniedError, NczarrError, StorageError, UnsupportedError
from xr_nczarr.model import ChunkKeys
from xr_nczarr.storage.keys import KeyLocks, Listing
from xr_nczarr.storage.ranges import ByteRange, Bytes, Read, Versioned, cut_ranges

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_locks = KeyLocks()


def granted(response: _Result | AccessDeniedError) -> _Result:
    """Return a response from `Store.probe` unless access was denied.

    If `response` is an AccessDeniedError, it is raised.
    """
    if isinstance(response, AccessDeniedError):
        raise response
    return response


class Address(NamedTuple):
    """The address at which other programs can read an object.

    An object is either the whole file at `url`, or a byte range of that file. For a byte range,
    `offset` and `length` are in bytes. For a whole file, both are None.
    """

    url: str
    offset: int | None = None
    length: int | None = None


class Store(ABC):
    """A mapping from keys to objects, which are byte strings.

    Stores are cheap to create, small when pickled, and usable after a fork.

    A subclass implements `fetch` and `list_names`, and also `put` and `delete` if the store is
    writable. All other methods have default implementations, except `fetch_into` and
    `fetch_ranges_into` (see `reads_in_place`) and `commit` (see `replaceable`).

    Attributes
    ----------
    name
        A URL or path for error messages. It contains no secrets.
    remote
        Whether each request costs a network round trip. If so, concurrent requests are faster.
    reads_in_place
        Whether the store can read directly into a buffer, without an intermediate copy. If so, it
        defines `fetch_into` and `fetch_ranges_into`.
    zero_fill_is_missing
        Whether a fill value of 0 marks missing values. This is False for reference sets, because
        the tools that create them write 0 if the original file declares no fill value.
    shared
        Whether other processes can write single objects while this process uses the store.
    locks_processes
        Whether `lock` also excludes other processes. Such a lock is released when the process that
        holds it ends.
    replaceable
        Whether `atomic_replacement` can replace the whole content of the store atomically.
    max_puts
        Maximum number of objects to encode and write concurrently, each in its own thread.
    has_folders
        Whether a key can name a folder, as in a local directory. Fetching such a key raises an
        error.
    single_file
        Whether the store is a single file. If so, any change replaces the whole file.
    transactional
        Whether changes are invisible until the caller commits them, as in Icechunk.
    returns_pages
        Whether `fetch` returns a web page that a server sends in place of an object, instead of
        raising an error; see `probing`.
    consolidated
        Whether a single document already contains all metadata, as in a parquet reference set.
    supports_consolidated
        Whether the store supports consolidated metadata. If not, ``consolidated=True`` has the
        same effect as False.
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
    has_folders: ClassVar[bool] = False
    single_file: ClassVar[bool] = False
    max_puts: int = 1
    transactional: bool = False
    consolidated: bool = False
    supports_consolidated: bool = True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def identity(self) -> str:
        """An identifier shared by all stores that access the same objects."""
        return self.name

    @property
    def max_threads(self) -> int | None:
        """Maximum number of threads that read chunks concurrently, or None for one per CPU."""
        return None

    @abstractmethod
    def fetch(self, keys: Sequence[str]) -> Iterator[Bytes | None]:
        """Yield the bytes of the object at each key, or None for a missing object.

        Raises
        ------
        StorageError
            If a response is anything other than the whole object or *not found*.
        """

    @abstractmethod
    def list_names(self, prefix: str) -> Listing:
        """Return the sorted names of the objects and prefixes directly under `prefix`.

        `prefix` is empty or ends in ``/``. The listing is empty if no object exists under it.

        Raises
        ------
        UnsupportedError
            If the store cannot be listed, for example over plain HTTP.
        """

    def put(self, items: Iterable[tuple[str, Bytes]]) -> None:
        """Write each object atomically, replacing any existing object."""
        raise self._read_only()

    def delete(self, prefix: str) -> None:
        """Remove one object, or all objects under a prefix.

        If `prefix` ends in ``/``, all objects under it are removed. If it is empty, all objects in
        the store are removed. Otherwise, `prefix` is the key of the one object to remove.
        """
        raise self._read_only()

    def remove(self, keys: Iterable[str]) -> None:
        """Remove the objects at `keys`, in no particular order."""
        for key in keys:
            self.delete(key)

    def check_writable(self) -> None:
        """Raise UnsupportedError if the store does not support writing."""
        if type(self).put is Store.put:
            raise self._read_only()

    def fetch_present(self, keys: Sequence[str]) -> Iterator[tuple[str, Bytes]]:
        """Yield the key and the bytes of each object that exists, in the order of `keys`."""
        for key, data in zip(keys, self.fetch(keys), strict=True):
            if data is not None:
                yield key, data

    def probe(self, keys: Sequence[str]) -> Iterator[Bytes | AccessDeniedError | None]:
        """Yield objects as `fetch` does, but yield an AccessDeniedError instead of raising it.

        If a store cannot determine which of the objects caused the error, it raises the error.
        """
        return self.fetch(keys)

    def map_concurrently(
        self, work: Callable[[_Item], _Result], items: Sequence[_Item]
    ) -> Iterator[_Result]:
        """Yield ``work(item)`` for each item, in order.

        A remote store may run the calls concurrently. The default implementation makes one call at
        a time.
        """
        return map(work, items)

    def fetch_chunks(
        self, keys: ChunkKeys, chunks: Sequence[tuple[int, ...]]
    ) -> Iterator[Bytes | None]:
        """Yield the encoded bytes of each chunk of an array, or None for a missing chunk.

        Each item of `chunks` contains the index of a chunk along each dimension.
        """
        return self.fetch([keys.key(chunk) for chunk in chunks])

    def fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        """Yield the bytes of each range, or None for a range of a missing object.

        Raises
        ------
        StorageError
            If a range is out of bounds.
        """
        return cut_ranges(ranges, self.fetch([item.key for item in ranges]), self.name)

    def fetch_versions(self, ranges: Sequence[ByteRange]) -> Iterator[Versioned | None]:
        """Yield the bytes and the object's version for each range, or None for a missing object.

        The version is a string that changes whenever the object changes, or None if the store does
        not know the version.
        """
        for data in self.fetch_ranges(ranges):
            yield None if data is None else Versioned(data)

    def fetch_end(self, key: str, max_bytes: int) -> Bytes | None:
        """Return the last `max_bytes` bytes of an object, or all of its bytes if it is shorter.

        Return None if the object does not exist.
        """
        size = self.size(key)
        if size is None:
            return None
        length = min(size, max_bytes)
        return next(self.fetch_ranges([ByteRange(key, size - length, length)]))

    def fetch_into(self, key: str, buffer: Any) -> int | None:
        """Read an object into `buffer`, a contiguous array, and return the object's size in bytes.

        Return None if the object does not exist. The content of `buffer` is valid only if the
        returned size equals the size of the buffer. Stores without `reads_in_place` do not define
        this method.
        """
        raise NotImplementedError

    def fetch_ranges_into(
        self, key: str, spans: Sequence[tuple[int, int]], buffers: Sequence[Any]
    ) -> int | None:
        """Read ranges of an object into `buffers`, and return the object's size in bytes.

        Return None if the object does not exist. `spans` contains an (offset, length) pair for each
        range. `buffers` contains a buffer of exactly `length` bytes for each range. Stores without
        `reads_in_place` do not define this method.

        Raises
        ------
        StorageError
            If a range is out of bounds.
        """
        raise NotImplementedError

    @contextmanager
    def reading(self, key: str) -> Iterator[Read]:
        """Yield a function that takes an offset and a length, and reads that range of an object.

        The function returns None if the object does not exist. If the store can tell versions of
        the object apart, all calls read the same version, even if another writer replaces the
        object between two calls.

        Raises
        ------
        StorageError
            If the object was replaced between two calls and its old version is no longer available.
        """
        versions: set[str] = set()

        def read(start: int, length: int) -> Bytes | None:
            response = next(self.fetch_versions([ByteRange(key, start, length)]))
            if response is None:
                return None
            versions.update([response.version] if response.version else [])
            if len(versions) > 1:
                raise StorageError(
                    "the object was replaced while it was being read",
                    remedy="Read it again while no other program is writing to the store",
                    store=self.name,
                    key=key,
                )
            return response.data

        yield read

    def list_keys(self, prefix: str = "") -> Iterator[str]:
        """Yield the key of every object under `prefix`."""
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
        return self.map_concurrently(self.size, keys)

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int | None]]:
        """Yield the key and the size in bytes of every object under `prefix`.

        The size is None if it cannot be determined without another request.

        Raises
        ------
        UnsupportedError
            If the store cannot be listed, for example over plain HTTP, or if it is a reference
            set that declares too many objects.
        """
        for key in self.list_keys(prefix):
            yield key, None if self.remote else self.size(key)

    def known_sizes(self, keys: Sequence[str]) -> list[int | None] | None:
        """Return the size in bytes of the object at each key, without making any requests.

        In the list, 0 stands for a missing object, and None for an object of unknown size. Return
        None instead of a list if no sizes are known.
        """
        return None if self.remote else [size or 0 for size in self.sizes_of(keys)]

    def count_requests(self, ranges: Sequence[ByteRange]) -> int:
        """Return the number of requests needed to fetch `ranges`."""
        return len(ranges)

    def addresses(self, keys: Sequence[str]) -> dict[str, Address]:
        """Map each key to the address at which other programs can read its object.

        Keys whose objects have no such address are omitted. The default implementation returns an
        empty dict.

        Raises
        ------
        UnsupportedError
            If an object is stored only in compressed form.
        """
        return {}

    def bounded(self, max_bytes: int) -> Store:
        """Return a variant of this store that limits the size of objects.

        Reading an object larger than `max_bytes` bytes raises LimitError. The default
        implementation sets no limit.
        """
        return self

    def probing(self) -> Store:
        """Return a variant of this store for finding metadata.

        If a web server sends a web page in place of an object, this variant returns the page
        instead of raising an error. The caller can then decide whether the object exists. The
        variant also lists the folders of a web server, based on their index pages. An index page
        can omit objects whose names begin with a dot.
        """
        return self

    def narrowed(self, keys: ChunkKeys) -> Store:
        """Return a variant of this store for reading the chunks of one array.

        `keys` defines the keys of these chunks. When pickled, the variant contains only the data
        needed to read the chunks.
        """
        return self

    def is_same(self, other: Store) -> bool:
        """Return whether both stores access the same objects."""
        return self.identity == other.identity

    def is_within(self, other: Store) -> bool:
        """Return whether this store is inside `other`, at any depth.

        The default implementation returns False.
        """
        return False

    def fingerprint(self) -> str | None:
        """Return a string that changes whenever any object in the store changes.

        Return None if such changes cannot be detected without reading the objects.
        """
        return None

    def check_new_keys(self, new: Iterable[str], existing: Iterable[str]) -> None:
        """Check that the store can contain the `new` keys in addition to the `existing` keys.

        The default implementation accepts all keys.

        Raises
        ------
        RefusedError
            If a component of a key is not a valid file name on this operating system. The error
            names the key.
        ConflictError
            If two names differ only in case or Unicode normalization, and the file system treats
            them as equal.
        """

    def copy_from(self, source: Store, keys: Sequence[tuple[str, str]]) -> list[bool]:
        """Copy objects from another store, and return whether each object exists in `source`.

        Each item of `keys` is a (key in `source`, key in this store) pair. Each object is written
        atomically.
        """
        fetched = [*source.fetch([source_key for source_key, _ in keys])]
        pairs = zip(keys, fetched, strict=True)
        self.put([(key, data) for (_, key), data in pairs if data is not None])
        return [data is not None for data in fetched]

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless it exists; return whether the stored object now equals `data`."""
        (stored,) = self.fetch([key])
        if stored is None:
            self.put([(key, data)])
        return stored is None or bytes(stored) == data

    def lock(self, key: str) -> AbstractContextManager[None]:
        """Return a context manager that holds the writer lock of an object.

        To change a part of an object, acquire the lock before reading the object, and release it
        after writing the changed object. If `key` is empty, the lock excludes all other writers of
        the store. In the default implementation, locks exclude only other threads of this process.
        """
        return _locks(f"{self.identity}\0{key}")

    def flush(self) -> None:
        """Flush all previously written data to disk. The default implementation does nothing."""

    @contextmanager
    def atomic_replacement(self, *, empty: bool, exclusive: bool = False) -> Iterator[Store]:
        """Yield a staging store, and then atomically replace the content of this store with it.

        The replacement takes place at the end of the ``with`` block, unless the block raises an
        error. The staging store initially contains the objects of this store, or no objects if
        `empty` is true.

        Raises
        ------
        ExistsError
            If `exclusive` is true and another writer has created the store.
        """
        with nullcontext() if empty else self.replacement_lock(exclusive=True):
            staging = self.staging(empty=empty)
            try:
                yield staging
                self.commit(staging, exclusive=exclusive)
            except NczarrError as error:
                # By the time the user reads the message, the staging store no longer exists.
                if error.store == staging.name:
                    error.store = self.name
                raise
            finally:
                staging.discard()

    def replacement_lock(self, *, exclusive: bool) -> AbstractContextManager[None]:
        """Return a context manager for the lock that protects the store from being replaced.

        Writers that change objects in place share this lock. `atomic_replacement` holds it
        exclusively, because changes to objects that are already copied to the staging store would
        be lost. If the staging store starts empty, `atomic_replacement` does not use the lock. The
        default implementation does nothing.
        """
        return nullcontext()

    def staging(self, *, empty: bool) -> Any:
        """Return a new staging store, for use with `commit`.

        The staging store initially contains the objects of this store, or no objects if `empty` is
        true.

        Raises
        ------
        UnsupportedError
            If the store cannot be replaced atomically; see `replaceable`.
        """
        problem, remedy = "the store cannot be replaced atomically", "Write to a local directory"
        raise UnsupportedError(problem, remedy=remedy, store=self.name)

    def commit(self, staging: Any, *, exclusive: bool = False) -> None:
        """Replace the content of this store atomically with the content of `staging`.

        For `exclusive`, see `atomic_replacement`. Stores without `replaceable` do not define this
        method.
        """
        raise NotImplementedError

    def _read_only(self) -> UnsupportedError:
        remedy = "Write to a different path or URL"
        return UnsupportedError("this store is read-only", remedy=remedy, store=self.name)
