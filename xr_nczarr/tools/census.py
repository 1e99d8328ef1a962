"""Which of the chunks a store has, and in how many bytes, without reading any.

The store is listed for that. Where that is impossible, as over plain HTTP, it is asked for each
chunk that the metadata imply.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from xr_nczarr.dataset import OpenedStore
from xr_nczarr.errors import AccessDeniedError, UnsupportedError
from xr_nczarr.hierarchy import existing_chunks
from xr_nczarr.model import ArrayNode
from xr_nczarr.tools.slabs import counts

MAX_ASKED = 10_000
"""Chunks that are asked for one by one where somebody waits for the answer: some seconds'."""


@dataclass(slots=True)
class Stored:
    """The stored objects of a variable: chunks, or shards that hold them.

    Attributes
    ----------
    node
        The array that they belong to.
    extent
        Number of objects along each dimension.
    present
        Number of those that are there, of `total`.
    stored_bytes
        Their size; None when the store does not tell.
    numbers
        Where in the grid, in C order, those lie that are there; empty unless they are asked for.
    """

    node: ArrayNode
    extent: tuple[int, ...]
    present: int = 0
    stored_bytes: int | None = 0
    numbers: array[int] = field(default_factory=lambda: array("q"), repr=False)

    @property
    def total(self) -> int:
        """Number of objects in the grid."""
        return math.prod(self.extent)

    def key(self, number: int) -> str:
        """Return the key of the object at a place of the grid, in C order."""
        index = np.unravel_index(number, self.extent) if self.extent else ()
        return self.node.chunk_keys.key(tuple(map(int, index)))


_Arrays = dict[str, list[Stored]]
"""By the folder of their objects."""


def take_census(
    opened: OpenedStore, others: list[str] | None = None, *, most_asked: int | None = MAX_ASKED
) -> tuple[dict[str, Stored], str]:
    """Return what is stored of each variable, by path; or nothing, and why that is unknown.

    Parameters
    ----------
    others
        Gets the keys that are no chunk's. With it, the numbers of the chunks are kept.
    most_asked
        How many chunks a store that cannot be listed is asked for at most; None for any number.
    """
    try:
        return _counted(opened, opened.store.sizes(), others), ""
    except (AccessDeniedError, UnsupportedError) as error:
        reason = str(error)
    total = sum(stored.total for stored in _expected(opened).values())
    if most_asked is not None and total > most_asked:
        many = f"{total:,} chunks are more than the {most_asked:,} that are asked for one by one"
        return {}, f"{reason} Its {many}"
    try:
        return _counted(opened, _requested_sizes(opened), others), ""
    except UnsupportedError:
        return {}, reason
    except AccessDeniedError as error:
        return {}, str(error)


def _counted(
    opened: OpenedStore, objects: Iterable[tuple[str, int | None]], others: list[str] | None
) -> dict[str, Stored]:
    by_path = _expected(opened)
    arrays: _Arrays = {}
    for stored in by_path.values():
        keys = stored.node.chunk_keys
        folder = (keys.prefix if stored.extent else keys.scalar).rpartition("/")[0]
        arrays.setdefault(folder, []).append(stored)
    unknown: list[str] = []
    for key, size in objects:
        owner, number = _owner(key, arrays)
        if owner is None:
            unknown.append(key)
            continue
        if others is not None:
            owner.numbers.append(number)
        owner.present += 1
        if size is None or owner.stored_bytes is None:
            owner.stored_bytes = None
        else:
            owner.stored_bytes += size
    if others is not None:
        others += unknown
    return by_path


def _expected(opened: OpenedStore) -> dict[str, Stored]:
    """Return the objects that the metadata imply, by path of the variable; none is counted."""
    by_path = {}
    for variable in opened.root.all_variables():
        if variable.node is not None and variable.error is None:
            shape = variable.shape or variable.node.shape
            extent = counts(shape, variable.node.object_shape)
            by_path[variable.path] = Stored(variable.node, extent)
    return by_path


def _requested_sizes(opened: OpenedStore) -> Iterator[tuple[str, int | None]]:
    """Yield key and size of all objects that exist of those that the metadata imply."""
    for stored in _expected(opened).values():
        yield from existing_chunks(opened.store, stored.node.chunk_keys, stored.extent)


def _owner(key: str, arrays: _Arrays) -> tuple[Stored | None, int]:
    """Return the array one of whose objects lies at `key`, and where in its grid."""
    folder = key
    while folder:
        folder = folder.rpartition("/")[0]
        for stored in arrays.get(folder, ()):
            keys, extent = stored.node.chunk_keys, stored.extent
            if key == keys.scalar and not extent:
                return stored, 0
            if extent and key.startswith(keys.prefix):
                index = key[len(keys.prefix) :]
                separator = keys.separator if keys.separator in index else keys.alternative
                names = index.split(separator or keys.separator)
                if len(names) == len(extent) and _inside(names, extent):
                    number = 0
                    for name, count in zip(names, extent, strict=True):
                        number = number * count + int(name)
                    return stored, number
    return None, 0


def _inside(names: Iterable[str], extent: tuple[int, ...]) -> bool:
    return all(
        name.isdecimal()
        and len(name) <= len(str(count))  # Python makes no number of thousands of digits
        and str(int(name)) == name
        and int(name) < count
        for name, count in zip(names, extent, strict=True)
    )
