"""Which of the chunks a store has, and in how many bytes: by listing it, without reading any."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field

from xr_nczarr.backend.reader import OpenedStore
from xr_nczarr.errors import AccessDeniedError, UnsupportedError
from xr_nczarr.model import ArrayNode
from xr_nczarr.storage import stored_sizes
from xr_nczarr.tools.slabs import counts


@dataclass(slots=True)
class Stored:
    """The stored objects of a variable: chunks, or shards that hold them.

    Attributes
    ----------
    present
        Number of those that are there, of `total`.
    stored_bytes
        Their size; None when the store does not tell.
    numbers
        Where in the grid, in C order, those lie that are there; empty unless they are asked for.
    """

    total: int
    present: int = 0
    stored_bytes: int | None = 0
    numbers: array[int] = field(default_factory=lambda: array("q"), repr=False)


_Arrays = dict[str, list[tuple[ArrayNode, tuple[int, ...], Stored]]]
"""By the folder of their objects: arrays, the number of objects along each dimension, and these."""


def take_census(
    opened: OpenedStore, others: list[str] | None = None
) -> tuple[dict[str, Stored], str]:
    """Give what is stored of each variable, by path; or nothing, and why it cannot be listed.

    With `others`, to which keys that are no chunk's are appended, the chunks are told one by one.
    """
    arrays: _Arrays = {}
    found: dict[str, Stored] = {}
    for variable in opened.root.all_variables():
        if variable.node is not None and variable.error is None:
            shape = variable.shape or variable.node.shape
            extent = counts(shape, variable.node.object_shape)
            stored = found[variable.path] = Stored(math.prod(extent))
            keys = variable.node.chunk_keys
            folder = (keys.prefix if extent else keys.scalar).rpartition("/")[0]
            arrays.setdefault(folder, []).append((variable.node, extent, stored))
    try:
        for key, size in stored_sizes(opened.store):
            stored_of, number = _owner(key, arrays)
            if stored_of is None:
                if others is not None:
                    others.append(key)
            else:
                if others is not None:
                    stored_of.numbers.append(number)
                stored_of.present += 1
                if size is None or stored_of.stored_bytes is None:
                    stored_of.stored_bytes = None
                else:
                    stored_of.stored_bytes += size
    except (AccessDeniedError, UnsupportedError) as error:
        return {}, str(error)
    return found, ""


def _owner(key: str, arrays: _Arrays) -> tuple[Stored | None, int]:
    """Give the array one of whose objects lies at `key`, and where in its grid."""
    folder = key
    while folder:
        folder = folder.rpartition("/")[0]
        for node, extent, stored in arrays.get(folder, ()):
            keys = node.chunk_keys
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
