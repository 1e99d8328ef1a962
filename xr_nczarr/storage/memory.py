"""The store class for a mapping from keys to bytes, such as a dict."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from xr_nczarr.errors import StorageError, UnsupportedError, quote
from xr_nczarr.storage.fingerprint import digest
from xr_nczarr.storage.keys import (
    Listing,
    check_key,
    check_key_or_prefix,
    check_prefix,
    children_of,
)
from xr_nczarr.storage.process_local import NOT_SHARED, reduce_process_local
from xr_nczarr.storage.ranges import ByteRange, Bytes, Read, cut_ranges
from xr_nczarr.storage.store import Store


@dataclass(frozen=True, slots=True, weakref_slot=True)
class MemoryStore(Store):
    """A store backed by any mapping from keys to bytes.

    The store is read-only if the mapping is immutable. If the mapping is a dict, unpickling the
    store in another process creates a read-only copy.
    """

    mapping: Mapping[str, Any]
    name: str = "mapping"
    copied: bool = field(default=False, compare=False, repr=False)
    token: str = field(default_factory=lambda: uuid.uuid4().hex, compare=False, repr=False)

    shared: ClassVar[bool] = False

    def __reduce__(self) -> tuple[Any, ...]:
        # Changes to a copy of a dict would be lost.
        copied = isinstance(self.mapping, dict)
        return reduce_process_local(self, self.token, MemoryStore, self.mapping, self.name, copied)

    def fetch(self, keys: Sequence[str]) -> Iterator[Bytes | None]:
        """Yield the bytes of the object at each key, or None for a missing object."""
        return map(self._object, keys)

    @contextmanager
    def reading(self, key: str) -> Iterator[Read]:
        """Yield a function that reads ranges of one version of an object; see `Store.reading`."""
        data = self._object(key)
        yield lambda *span: next(cut_ranges([ByteRange(key, *span)], [data], self.name))

    def put(self, items: Iterable[tuple[str, Bytes]]) -> None:
        """Write a copy of each object, replacing any existing object."""
        mapping = self._mutable_mapping()
        for key, data in items:
            check_key(key, self.name)
            mapping[key] = bytes(data)

    def list_names(self, prefix: str) -> Listing:
        """Return the sorted names of the objects and prefixes directly under `prefix`."""
        check_prefix(prefix, self.name)
        return children_of(sorted(self._keys(prefix)), prefix)

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield the key and the size in bytes of every object under `prefix`."""
        for key in self._keys(prefix):
            yield key, len(self._object(key) or b"")

    def delete(self, prefix: str) -> None:
        """Remove one object, or all objects under a prefix; see `Store.delete`."""
        mapping = self._mutable_mapping()
        if check_key_or_prefix(prefix, self.name):
            mapping.pop(prefix, None)
            return
        for key in [*self._keys(prefix)]:
            del mapping[key]

    def check_writable(self) -> None:
        """Raise an error if the store is read-only.

        Raises
        ------
        UnsupportedError
            If the mapping is immutable.
        StorageError
            If the mapping is a dict that was copied from another process by pickling.
        """
        self._mutable_mapping()

    @property
    def identity(self) -> str:
        """An identifier shared by all stores with the same name and the same mapping."""
        return f"{self.name} {id(self.mapping)}"

    def fingerprint(self) -> str:
        """Return a string that changes whenever any object in the store changes."""
        return digest((key, bytes(self.mapping[key])) for key in sorted(self.mapping))

    def _keys(self, prefix: str) -> Iterator[str]:
        for key in self.mapping:
            if not isinstance(key, str):
                problem = f"the mapping contains the key {quote(repr(key))}; expected only strings"
                remedy = "Pass a mapping from strings to bytes"
                raise StorageError(problem, remedy=remedy, store=self.name)
            if key.startswith(prefix):
                yield key

    def _object(self, key: str) -> Bytes | None:
        check_key(key, self.name)
        try:
            data = self.mapping[key]
        except KeyError:
            return None
        if isinstance(data, bytes | bytearray):
            return data
        try:
            return memoryview(data).cast("B")
        except TypeError as error:
            problem = f"the mapping contains a value of type {type(data).__name__}; expected bytes"
            raise StorageError(problem, store=self.name, key=key) from error

    def _mutable_mapping(self) -> MutableMapping[str, Any]:
        if not isinstance(self.mapping, MutableMapping):
            remedy = "Pass a mutable mapping, such as a dict"
            raise UnsupportedError("the mapping is read-only", remedy=remedy, store=self.name)
        if self.copied:
            problem = (
                "the worker process has only a copy of the dictionary; changes to the copy would "
                "be lost"
            )
            raise StorageError(problem, remedy=NOT_SHARED, store=self.name)
        return self.mapping
