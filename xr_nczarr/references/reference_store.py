"""A store that looks up keys in a reference set and fetches the bytes to which the set refers.

The objects that contain these bytes are called the targets of the set.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, NoReturn

from xr_nczarr.errors import ErrorContext, NczarrError, StorageError, UnsupportedError
from xr_nczarr.locks import cached_property
from xr_nczarr.model import ChunkKeys
from xr_nczarr.references.document import ReferenceDocument
from xr_nczarr.references.entries import Reference
from xr_nczarr.references.reference_set import ReferenceSet
from xr_nczarr.references.targets import Targets
from xr_nczarr.storage.keys import Listing, check_key, check_prefix
from xr_nczarr.storage.ranges import (
    ByteRange,
    Bytes,
    check_range,
    first_byte,
    merge_ranges,
    split_into_batches,
    too_large,
)
from xr_nczarr.storage.store import Address, Store
from xr_nczarr.storage.url import local_path, mask

_MAX_LISTED = 1_000_000
_BATCH_RANGES = 4096
_SAMPLED_URLS = 16
_MIN_CHUNKS = 8
"""Minimum number of chunks worth looking up together."""
_MAX_PICKLED_BYTES = 64 << 10
"""Maximum size in bytes of a pickled reference set.

If a set is larger, it is not pickled, and the receiving process reads the document instead.
"""


class _TargetRange(NamedTuple):
    """The byte range of a target that contains the bytes requested from the object at `key`.

    The target is the file or remote object to which the reference for `key` points. A negative
    `start` counts from the end of the target. If `length` is None, the range is the whole target.
    """

    key: str
    url: str
    store: Store
    path: str
    start: int
    length: int | None


class ReferenceStore(Store):
    """A read-only store of the objects that a reference set declares.

    A small set is pickled with the store. If the set is large, only the location of its document is
    pickled, and each process that unpickles the store reads the document once. Use `narrowed` to
    reduce the set to one array before the store is sent to workers.

    Parameters
    ----------
    references
        The reference set. If None, the set is read from `document`.
    targets
        The settings for resolving and opening the targets of the set.
    name
        The URL of the document, for error messages. Secrets are masked.
    document
        The document from which the set was read, if any.
    """

    zero_fill_is_missing = False
    shared = False

    def __init__(
        self,
        references: ReferenceSet | None,
        targets: Targets,
        name: str,
        document: ReferenceDocument | None = None,
    ) -> None:
        self._references = references
        self.targets = targets
        self.name = name
        self.document = document
        self.max_bytes = targets.max_object_bytes
        self._stores: dict[str, Store] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        if self._pickles_set:
            return ReferenceStore, (self.references, self.targets, self.name)
        return ReferenceStore, (None, self.targets, self.name, self.document)

    @property
    def identity(self) -> str:
        """An identifier shared by all stores with the same reference set."""
        return f"{self.name} {id(self.references)}"

    @cached_property
    def references(self) -> ReferenceSet:
        """The reference set of this store, which is read from the document if necessary."""
        if self._references is not None:
            return self._references
        assert self.document is not None
        with ErrorContext(store=self.name):
            return self.document.references()

    @cached_property
    def _pickles_set(self) -> bool:
        """Whether to pickle the reference set itself, rather than the location of its document."""
        return self.document is None or (
            self._references is not None
            and len(pickle.dumps(self._references)) <= _MAX_PICKLED_BYTES
        )

    @cached_property
    def remote(self) -> bool:
        """Whether the document or any target in a sample of the references is remote."""
        if local_path(self.targets.document) is None:
            return True  # reading the URLs of targets from parquet files would require requests
        return not all(map(self.targets.is_local, self.references.urls(_SAMPLED_URLS)))

    def narrowed(self, keys: ChunkKeys) -> ReferenceStore:
        """Return a store for the chunks of one array.

        The reference set of the new store contains all references to these chunks, and omits most
        other references. It is therefore often small enough to be pickled.
        """
        prefix = keys.scalar[: keys.scalar.rfind("/") + 1]
        return self._with(self.references.subset(prefix))

    def bounded(self, max_bytes: int) -> ReferenceStore:
        """Return a copy of this store that limits the size of each object; see `Store.bounded`."""
        store = self._with(self.references)
        store.max_bytes = min(max_bytes, self.max_bytes)
        return store

    def _with(self, references: ReferenceSet) -> ReferenceStore:
        store = ReferenceStore(references, self.targets, self.name, self.document)
        store._stores = self._stores
        return store

    def fetch(self, keys: Sequence[str]) -> Iterator[Bytes | None]:
        """Yield the bytes of each object, or None for a key that the set does not declare.

        Raises
        ------
        StorageError
            If a target does not exist or cannot be read.
        RefusedError
            If the reference set is not allowed to refer to a target.
        """
        return self._fetch([ByteRange(key) for key in keys])

    def fetch_chunks(
        self, keys: ChunkKeys, chunks: Sequence[tuple[int, ...]]
    ) -> Iterator[Bytes | None]:
        """Yield the encoded bytes of each chunk, or None for a chunk that the set does not declare.

        Reading many chunks is fastest if all of their references are in one `ReferenceTable`, and
        point to byte ranges of files in one local store.
        """
        fetched = self._fetch_together(keys, chunks) if type(keys) is ChunkKeys else None
        return super().fetch_chunks(keys, chunks) if fetched is None else fetched

    def _fetch_together(
        self, keys: ChunkKeys, chunks: Sequence[tuple[int, ...]]
    ) -> Iterator[Bytes | None] | None:
        """Look up chunks together, and return an iterator over their encoded bytes.

        Return None if the chunks must be looked up one by one.
        """
        if len(chunks) < _MIN_CHUNKS or self.remote:
            return None
        table = self.references.table_of(keys, len(chunks[0]))
        rows = None if table is None else table.row_numbers(chunks)
        if table is None or rows is None:
            return None
        lengths = table.lengths[rows]
        if lengths.min() < 1 or lengths.max() > self.max_bytes:
            return None
        numbers = table.url_numbers[rows].tolist()
        try:
            places = {number: self._resolve_target(table.urls[number]) for number in set(numbers)}
        except NczarrError:
            return None  # `fetch` raises the error, with the key of the chunk
        store, *other_stores = {id(store): store for _, store, _ in places.values()}.values()
        if other_stores or store.remote:
            return None
        paths = [places[number][2] for number in numbers]
        ranges = map(ByteRange, paths, table.offsets[rows].tolist(), lengths.tolist())
        return self._with_fallback(store.fetch_ranges(list(ranges)), keys, chunks)

    def _with_fallback(
        self, parts: Iterator[Bytes | None], keys: ChunkKeys, chunks: Sequence[tuple[int, ...]]
    ) -> Iterator[Bytes | None]:
        """Yield the encoded bytes of `chunks` from `parts`, or from `fetch` after `parts` fails."""
        count = 0
        with suppress(NczarrError):
            for data in parts:
                if data is None:
                    break
                yield data
                count += 1
        if count < len(chunks):  # if `fetch` fails too, its error contains the key of the chunk
            yield from self.fetch([keys.key(chunk) for chunk in chunks[count:]])

    def fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        """Yield the bytes of each range, or None if the reference set lacks the key."""
        for item in ranges:
            check_range(item, self.name)
        return self._fetch(ranges)

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, or None if the set does not declare the object."""
        located = self._locate(ByteRange(key), self._resolve_target)
        if isinstance(located, _TargetRange) and located.length is None:
            size = located.store.size(located.path)
            return self._raise_missing(located) if size is None else size
        if isinstance(located, _TargetRange):
            return located.length
        return None if located is None else len(located)

    def known_sizes(self, keys: Sequence[str]) -> list[int | None]:
        """Return the size in bytes that the reference set declares for each key.

        The size is 0 for a key that is not declared. It is None if the reference declares no
        length, because it refers to a whole object.
        """
        sizes: list[int | None] = []
        self.references.load(keys)
        for key in keys:
            reference = self.references.resolve(key)
            sizes.append(0 if reference is None else _declared_size(reference))
        return sizes

    def count_requests(self, ranges: Sequence[ByteRange]) -> int:
        """Return the number of requests needed to fetch `ranges` if nearby ranges are merged."""
        self.references.load([item.key for item in ranges])
        resolve = cache(self._resolve_target)
        located = [self._locate(item, resolve) for item in ranges]
        pieces = [item for item in located if isinstance(item, _TargetRange)]
        parts = [
            ByteRange(piece.url, piece.start, piece.length)
            for piece in pieces
            if piece.length is not None
        ]
        merged = sum(len(merge_ranges(batch)) for batch in split_into_batches(parts))
        return merged + len(pieces) - len(parts)

    def list_names(self, prefix: str) -> Listing:
        """Return the sorted names directly under `prefix`; see `ReferenceSet.names`."""
        check_prefix(prefix, self.name)
        return self.references.names(prefix)

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int | None]]:
        """Yield the key and the size in bytes of every object under `prefix`.

        The size is None if the reference declares no length, because it refers to a whole object.

        Raises
        ------
        UnsupportedError
            If the reference set declares too many objects to list.
        """
        if self.references.key_count > _MAX_LISTED:
            raise UnsupportedError(
                f"the reference set declares too many objects to list: "
                f"{self.references.key_count:,}",
                store=self.name,
            )
        for key, reference in self.references.items():
            if key.startswith(prefix):
                yield key, _declared_size(reference)

    def _read_only(self) -> UnsupportedError:
        return UnsupportedError("reference sets are read-only", store=self.name)

    def _fetch(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        for first in range(0, len(ranges), _BATCH_RANGES):
            batch = ranges[first : first + _BATCH_RANGES]
            self.references.load([item.key for item in batch])
            resolve = cache(self._resolve_target)
            located = [self._locate(item, resolve) for item in batch]
            pieces: dict[tuple[int, bool], list[_TargetRange]] = {}
            for item in located:
                if isinstance(item, _TargetRange):
                    pieces.setdefault((id(item.store), item.length is None), []).append(item)
            responses = {kind: self._request(group) for kind, group in pieces.items()}
            for item in located:
                if isinstance(item, _TargetRange):
                    yield next(responses[id(item.store), item.length is None])
                else:
                    yield item

    def _locate(
        self, wanted: ByteRange, resolve: Callable[[str], tuple[str, Store, str]]
    ) -> Bytes | _TargetRange | None:
        """Return the wanted bytes if they are inline, and otherwise their byte range in a target.

        Return None if the set does not declare the object.
        """
        key, start, length = wanted
        check_key(key, self.name)
        with ErrorContext(store=self.name, key=key):
            reference = self.references.resolve(key)
            if reference is None:
                self.references.check_missing(key)
                return None
            if isinstance(reference, bytes):
                first, count = self._part(wanted, len(reference))
                return reference[first : first + count]
            target = resolve(reference.url)
            if reference.length is None:
                return _TargetRange(key, *target, start, None if wanted.is_whole else length)
            first, count = self._part(wanted, reference.length)
            offset = (reference.offset or 0) + first
            return _TargetRange(key, *target, offset, count) if count else b""

    def _part(self, wanted: ByteRange, size: int) -> tuple[int, int]:
        """Return the offset and the length in bytes of the wanted part of an object.

        `size` is the size of the whole object in bytes. Raise LimitError if the part is too long.
        """
        if wanted.is_whole:
            first, count = 0, size
        else:
            first, count = first_byte(wanted, size, self.name), wanted.length
        if count > self.max_bytes:
            problem = f"the reference set refers to a range of {count:,} bytes"
            raise too_large(problem, self.max_bytes, self.name, wanted.key)
        return first, count

    def _resolve_target(self, text: str) -> tuple[str, Store, str]:
        """Return a target's absolute URL, the store that contains it, and its key in that store."""
        url = self.targets.url(text)
        place, key = self.targets.locate(url)
        if place not in self._stores:
            self._stores[place] = self.targets.open(url)
        return url, self._stores[place], key

    def _request(self, pieces: Sequence[_TargetRange]) -> Iterator[Bytes]:
        """Yield the bytes of each of the `pieces`, in order.

        All pieces must be in one store. Whole objects and byte ranges must not be mixed.
        """
        store = pieces[0].store
        if pieces[0].length is None:
            source = store.bounded(self.max_bytes).fetch([piece.path for piece in pieces])
        else:
            source = store.fetch_ranges(
                [ByteRange(piece.path, piece.start, piece.length or 0) for piece in pieces]
            )
        for piece in pieces:
            try:
                data = next(source)
            except NczarrError as error:
                failed = [item for item in pieces if item.path == error.key] or [piece]
                if len(failed) > 1 and type(error) is StorageError and error.place is None:
                    # Request the merged pieces one by one, to find out which of them fails.
                    for item in failed:
                        next(self._request([item]))
                error.store, error.key, url = self.name, failed[0].key, failed[0].url
                error.place = ", ".join(filter(None, (mask(url), error.place)))
                if "?" in url or "@" in url:
                    raise error from None
                raise
            yield self._raise_missing(piece) if data is None else data

    def _raise_missing(self, piece: _TargetRange) -> NoReturn:
        status = " (404)" if piece.store.remote else ""
        part = "" if piece.length is None else f", {piece.length} bytes at offset {piece.start}"
        raise StorageError(
            f"the reference set refers to an object that does not exist{status}",
            remedy="If the object was moved or removed, recreate the reference set",
            store=self.name,
            key=piece.key,
            place=mask(piece.url) + part,
        )


def _declared_size(reference: Reference) -> int | None:
    """Return the size in bytes that a reference declares, or None if it declares no length."""
    return reference.length if isinstance(reference, Address) else len(reference)
