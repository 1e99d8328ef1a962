"""Count the chunks that exist in a store and add up their sizes, without reading them.

The store is listed if possible. Listing is impossible over plain HTTP, for example, or if a name
contains a backslash. In these cases, each chunk of each array is looked up, unless there are
too many chunks.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from xr_nczarr.dataset import OpenedStore
from xr_nczarr.errors import AccessDeniedError, RefusedError, UnsupportedError
from xr_nczarr.hierarchy import existing_chunks
from xr_nczarr.locks import cached_property
from xr_nczarr.model import ArrayNode, ChunkKeys
from xr_nczarr.progress import Progress
from xr_nczarr.storage import Store

MAX_REQUESTS = 10_000
"""Maximum number of chunks to look up if a store cannot be listed.

Looking up that many chunks takes a few seconds.
"""


@dataclass
class StoredChunks:
    """The stored objects (chunks or shards) of one variable.

    Attributes
    ----------
    node
        Metadata of the array; see `Variable.readable_node`.
    stored_bytes
        Total size of the existing objects, or None if the store does not report sizes.
    numbers
        Flat indices of the existing objects in the grid (C order), in ascending order.
    """

    node: ArrayNode
    stored_bytes: int | None = 0
    numbers: array[int] = field(default_factory=lambda: array("q"), repr=False)

    @cached_property
    def extent(self) -> tuple[int, ...]:
        """The number of objects along each dimension of the grid."""
        return self.node.object_counts

    @property
    def present(self) -> int:
        """The number of objects that exist, out of `total`."""
        return len(self.numbers)

    @property
    def total(self) -> int:
        """The number of objects in the grid, whether or not they exist."""
        return math.prod(self.extent)

    def index(self, number: int) -> tuple[int, ...]:
        """Return the grid index of an object, given its index in the flattened grid (C order)."""
        return tuple(map(int, np.unravel_index(number, self.extent))) if self.extent else ()

    def key(self, number: int) -> str:
        """Return the key of an object, given its index in the flattened grid (C order)."""
        return self.node.chunk_keys.key(self.index(number))

    def number(self, key: str) -> int | None:
        """Return the index of an object in the flattened grid, given its key.

        Return None if `key` is not the key of a chunk or shard.
        """
        if self.extent and not key[-1:].isdecimal():
            return None  # usually the key of a metadata document
        for keys in self._notations:
            names = key.removeprefix(keys.prefix).split(keys.separator) if self.extent else []
            with suppress(ValueError):  # raised for text, and for numbers with thousands of digits
                index = tuple(map(int, names))
                if len(index) == len(self.extent) and keys.key(index) == key:
                    number = 0
                    for position, count in zip(index, self.extent, strict=True):
                        if not 0 <= position < count:
                            return None
                        number = number * count + position
                    return number
        return None

    @cached_property
    def _notations(self) -> list[ChunkKeys]:
        return self.node.key_notations


class StoreContents(NamedTuple):
    """The objects in a store.

    Attributes
    ----------
    chunks
        The stored objects of each variable, keyed by path. Empty if they could not be counted.
    others
        The keys of all objects that are not chunks or shards. Empty if the store cannot be listed.
    reason
        The reason why the stored objects could not be counted, or an empty string.
    """

    chunks: dict[str, StoredChunks]
    others: list[str]
    reason: str = ""


def count_stored_chunks(
    opened: OpenedStore,
    *,
    max_requests: int = MAX_REQUESTS,
    progress: Progress | None = None,
) -> StoreContents:
    """Count the stored objects of each variable.

    Parameters
    ----------
    max_requests
        Maximum number of chunks to look up if the store cannot be listed.
    """
    progress = progress or Progress(False)
    try:
        return _counted(opened, progress.count(opened.store.sizes()), _folders(opened.store))
    except (AccessDeniedError, RefusedError, UnsupportedError) as error:
        reason = str(error)
    expected = _expected(opened).values()
    total = sum(stored.total for stored in expected)
    if total > max_requests:
        many = f"{total:,} chunks are too many to look up one by one (at most {max_requests:,})"
        return StoreContents({}, [], f"{reason}. {many}")
    looked_up = (item for stored in expected for item in existing_chunks(opened.store, stored.node))
    try:
        return _counted(opened, progress.count(looked_up))
    except UnsupportedError:
        return StoreContents({}, [], reason)
    except AccessDeniedError as error:
        return StoreContents({}, [], str(error))


def _folders(store: Store, prefix: str = "") -> Iterator[str]:
    """Yield the paths of all folders below `prefix`, if the store has folders."""
    for name in store.list_names(prefix).prefixes if store.has_folders else ():
        yield f"{prefix}{name}"
        yield from _folders(store, f"{prefix}{name}/")


def _counted(
    opened: OpenedStore,
    objects: Iterable[tuple[str, int | None]],
    folders: Iterable[str] = (),
) -> StoreContents:
    """Return the contents of the store, with each chunk (or shard) assigned to its variable."""
    by_path = _expected(opened)
    by_folder: dict[str, list[StoredChunks]] = {}
    for stored in by_path.values():
        keys = stored.node.chunk_keys
        folder = (keys.prefix if stored.node.shape else keys.scalar).rpartition("/")[0]
        by_folder.setdefault(folder, []).append(stored)

    def assign(key: str, size: int | None) -> bool:
        folder = key
        while folder:
            folder = folder.rpartition("/")[0]
            for stored in by_folder.get(folder, ()):
                number = stored.number(key)
                if number is not None:
                    stored.numbers.append(number)
                    sizes = stored.stored_bytes, size
                    stored.stored_bytes = None if None in sizes else sum(filter(None, sizes))
                    return True
        return False

    others = [key for key, size in objects if not assign(key, size)]
    # A folder at the key of a chunk does not count as a missing chunk, because reading it raises an
    # error. Missing chunks are read as the fill value.
    for path in folders:
        assign(path, None)
    for stored in by_path.values():
        # A chunk can be stored under two keys, or be declared twice in a reference set.
        stored.numbers = array("q", sorted(set(stored.numbers)))
    return StoreContents(by_path, others)


def _expected(opened: OpenedStore) -> dict[str, StoredChunks]:
    """Return an empty `StoredChunks` for each readable variable, keyed by path."""
    return {
        variable.path: StoredChunks(variable.readable_node)
        for variable in opened.root.all_variables()
        if variable.error is None
    }
