"""The keys of a reference set as a store: resolved, fetched from where they lie, put in order."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn

from xr_nczarr.errors import NczarrError, Place, StorageError, UnsupportedError
from xr_nczarr.locks import cached_property
from xr_nczarr.model import ChunkKeys
from xr_nczarr.references import InlineBytes, ReferenceSet, Target
from xr_nczarr.storage.keys import check_key, check_prefix
from xr_nczarr.storage.local import LocalStore
from xr_nczarr.storage.protocol import ByteRange, Bytes, Listing, SizedStore, bounded
from xr_nczarr.storage.ranges import check_range, first_byte, too_large
from xr_nczarr.storage.reference_document import ReferenceDocument
from xr_nczarr.storage.targets import Targets, key_in
from xr_nczarr.storage.url import mask

_MOST_LISTED = 1_000_000
_AT_ONCE = 4096
_LOOKED_AT = 16
_MANY = 8
_TRAVELLING_BYTES = 64 << 10
"""A set that pickles to more is read again from its document where it arrives."""


class _Piece(NamedTuple):
    """Bytes of a target: `length` of them from `start`, the whole object where it is None."""

    key: str
    url: str
    store: SizedStore
    path: str
    start: int
    length: int | None


class ReferenceStore:
    """A reference set, read only.

    Pickles as the rules of how to reach its targets and the set, or in place of a large one the
    document that each process reads once; hand on what `narrowed` gives.

    Parameters
    ----------
    references
        What each key refers to; None for what `document` says below `prefix`.
    targets
        How to reach it.
    name
        For messages; the URL of the document without secrets.
    document
        The document that the set was read from, where there is one.
    """

    def __init__(
        self,
        references: ReferenceSet | None,
        targets: Targets,
        name: str,
        document: ReferenceDocument | None = None,
        prefix: str = "",
    ) -> None:
        self._references = references
        self.targets = targets
        self.name = name
        self.document = document
        self.prefix = prefix
        self.most_bytes = targets.max_object_bytes
        self._stores: dict[str, SizedStore] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        rules = (self.targets, self.name)
        if self._small:
            return ReferenceStore, (self.references, *rules)
        return ReferenceStore, (None, *rules, self.document, self.prefix)

    def __repr__(self) -> str:
        return f"ReferenceStore({self.name!r})"

    @cached_property
    def references(self) -> ReferenceSet:
        """What each key refers to."""
        if self._references is not None:
            return self._references
        assert self.document is not None
        with Place(store=self.name):
            whole = self.document.references()
        return whole.subset(self.prefix) if self.prefix else whole

    @cached_property
    def _small(self) -> bool:
        """Whether the set itself travels: it is small, or has no document."""
        return self.document is None or (
            self._references is not None
            and len(pickle.dumps(self._references)) <= _TRAVELLING_BYTES
        )

    @cached_property
    def remote(self) -> bool:
        """Whether targets of the set, as far as a few tell, are not on this machine."""
        return not all(map(self.targets.is_local, self.references.urls(_LOOKED_AT)))

    def narrowed(self, keys: ChunkKeys) -> ReferenceStore:
        """Give a store that knows the chunks of one array and pickles as no more than these."""
        prefix = keys.scalar[: keys.scalar.rfind("/") + 1]
        return self._with(self.references.subset(prefix), prefix)

    def bounded(self, most: int) -> ReferenceStore:
        """Give the store that reads no object of more than `most` bytes."""
        store = self._with(self.references, self.prefix)
        store.most_bytes = min(most, self.most_bytes)
        return store

    def _with(self, references: ReferenceSet, prefix: str) -> ReferenceStore:
        store = ReferenceStore(references, self.targets, self.name, self.document, prefix)
        store._stores = self._stores
        return store

    def fetch(self, keys: Sequence[str]) -> Iterator[Bytes | None]:
        """Yield each object in the order of `keys`, None for one that the set does not declare.

        Raises
        ------
        StorageError
            Also when a target is not there: it was declared to be.
        RefusedError
            When the set may not name a target.
        """
        return self._fetch([ByteRange(key, 0, -1) for key in keys])

    def fetch_chunks(
        self, keys: ChunkKeys, chunks: Sequence[tuple[int, ...]]
    ) -> Iterator[Bytes | None] | None:
        """Yield many chunks of an array, which are looked up all at once.

        None unless the set lists each of them, and they are parts of files of one local store.
        """
        if len(chunks) < _MANY or self.remote:
            return None
        column = self.references.column_of(keys, len(chunks[0]))
        rows = None if column is None else column.rows(chunks)
        if column is None or rows is None:
            return None
        lengths = column.lengths[rows]
        if lengths.min() < 1 or lengths.max() > self.most_bytes:
            return None
        numbers = column.url_numbers[rows].tolist()
        try:
            places = {number: self._place(column.urls[number]) for number in set(numbers)}
        except NczarrError:
            return None  # which `fetch` tells of, with the key
        store, *others = {id(store): store for _, store, _ in places.values()}.values()
        if others or store.remote:
            return None
        paths = [places[number][2] for number in numbers]
        ranges = map(ByteRange, paths, column.offsets[rows].tolist(), lengths.tolist())
        return self._or_by_key(store.fetch_ranges(list(ranges)), keys, chunks)

    def _or_by_key(
        self, found: Iterator[Bytes | None], keys: ChunkKeys, chunks: Sequence[tuple[int, ...]]
    ) -> Iterator[Bytes | None]:
        """Yield chunks as they are found; the rest after a failure by key, to tell which failed."""
        count = 0
        with suppress(NczarrError):
            for data in found:
                if data is None:
                    break
                yield data
                count += 1
        if count < len(chunks):
            yield from self.fetch([keys.key(chunk) for chunk in chunks[count:]])

    def fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        """Yield each byte range in order, None where the set does not declare the object."""
        for one in ranges:
            check_range(one, self.name)
        return self._fetch(ranges)

    def size(self, key: str) -> int | None:
        """Give the size of an object in bytes, None when the set does not declare it."""
        found = self._locate(ByteRange(key, 0, -1), {})
        if isinstance(found, _Piece) and found.length is None:
            size = found.store.size(found.path)
            return self._not_there(found) if size is None else size
        if isinstance(found, _Piece):
            return found.length
        return None if found is None else len(found)

    def list_names(self, prefix: str) -> Listing:
        """Give one level below `prefix`, sorted; chunks that are not listed one by one are not."""
        check_prefix(prefix, self.name)
        return Listing(*self.references.names(prefix))

    def sizes(self, prefix: str) -> Iterator[tuple[str, int | None]]:
        """Yield key and size in bytes of every object that the set declares below `prefix`."""
        if self.references.count > _MOST_LISTED:
            raise UnsupportedError(
                f"the set declares {self.references.count:,} objects, too many to go through",
                store=self.name,
            )
        for key, found in self.references.items():
            if key.startswith(prefix):
                yield key, found.length if isinstance(found, Target) else len(found.data)

    def put(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse to write, to remove, or to prepare for it."""
        raise UnsupportedError("a reference set is read only", store=self.name)

    delete = lock = put

    def _fetch(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        for first in range(0, len(ranges), _AT_ONCE):
            urls: dict[str, tuple[str, SizedStore, str]] = {}
            located = [self._locate(one, urls) for one in ranges[first : first + _AT_ONCE]]
            pieces: dict[tuple[int, bool], list[_Piece]] = {}
            for one in located:
                if isinstance(one, _Piece):
                    pieces.setdefault((id(one.store), one.length is None), []).append(one)
            answers = {which: self._request(asked) for which, asked in pieces.items()}
            for one in located:
                if isinstance(one, _Piece):
                    yield next(answers[id(one.store), one.length is None])
                else:
                    yield one

    def _locate(
        self, asked: ByteRange, urls: dict[str, tuple[str, SizedStore, str]]
    ) -> Bytes | _Piece | None:
        """Give the bytes of a key that lie in the set, or where they lie; None when undeclared.

        `urls` gathers what the URLs of the set mean: the absolute one, its store and its key there.
        """
        key, start, length = asked
        check_key(key, self.name)
        try:
            found = self.references.resolve(key)
            if isinstance(found, Target) and found.url not in urls:
                urls[found.url] = self._place(found.url)
        except NczarrError as error:
            error.located(store=self.name, key=key)
            raise
        if found is None:
            return None
        whole = length < 0
        if isinstance(found, Target) and found.length is None:
            return _Piece(key, *urls[found.url], start, None if whole else length)
        size = found.length or 0 if isinstance(found, Target) else len(found.data)
        first, count = (0, size) if whole else (first_byte(asked, size, self.name), length)
        if count > self.most_bytes:
            raise too_large(f"refers to {count:,} bytes", self.most_bytes, self.name, key)
        if isinstance(found, InlineBytes):
            return found.data[first : first + count]
        return _Piece(key, *urls[found.url], (found.offset or 0) + first, count) if count else b""

    def _place(self, named: str) -> tuple[str, SizedStore, str]:
        """Give what a URL of the set means: the absolute one, its store and its key there."""
        url = self.targets.url(named)
        place = self.targets.place_of(url)
        if place not in self._stores:
            self._stores[place] = self.targets.open(url)
        store = self._stores[place]
        return url, store, key_in(store, url)

    def _request(self, pieces: Sequence[_Piece]) -> Iterator[Bytes]:
        """Yield the bytes of pieces of one place, all whole or none."""
        store = pieces[0].store
        if pieces[0].length is None:
            source = bounded(store, self.most_bytes).fetch([piece.path for piece in pieces])
        else:
            source = store.fetch_ranges(
                [ByteRange(piece.path, piece.start, piece.length or 0) for piece in pieces]
            )
        for piece in pieces:
            try:
                data = next(source)
            except NczarrError as error:
                guilty = [one for one in pieces if one.path == error.key] or [piece]
                if len(guilty) > 1 and type(error) is StorageError and error.place is None:
                    # It is about several of them that travelled together: alone it shows which.
                    for one in guilty:
                        next(self._request([one]))
                error.store, error.key, url = self.name, guilty[0].key, guilty[0].url
                error.place = ", ".join(filter(None, (mask(url), error.place)))
                if "?" in url or "@" in url:
                    raise error from None
                raise
            yield self._not_there(piece) if data is None else data

    def _not_there(self, piece: _Piece) -> NoReturn:
        status = "" if isinstance(piece.store, LocalStore) else " (404)"
        asked = "" if piece.length is None else f", {piece.length} bytes from {piece.start}"
        raise StorageError(
            f"the set refers to an object that is not there{status}",
            remedy="It was moved or removed after the set was made: make the set again.",
            store=self.name,
            key=piece.key,
            place=mask(piece.url) + asked,
        )
