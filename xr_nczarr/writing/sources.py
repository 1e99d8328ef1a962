"""Where lazily opened values come from, and in which blocks they are read while they are written.

A write must not destroy what it still has to read, and not hold more of it than it writes.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
from dask.array.core import normalize_chunks
from xarray import Dataset, Variable
from xarray.coding.strings import is_unicode_dtype
from xarray.core.indexing import ExplicitlyIndexed
from xarray.core.utils import NDArrayMixin

from xr_nczarr.backend.lazy import LazyArray
from xr_nczarr.errors import RefusedError
from xr_nczarr.storage import LocalStore, MemoryStore, Store, is_same_place

_TASKS_LOOKED_INTO = 3
_LOADED_WHOLE_BYTES = 1 << 20
_BLOCK_BYTES = 4 << 20
_NOMINAL_BYTES = 64  # of an object
_OPENED = "nczarr-opened-"


def in_blocks(
    dataset: Dataset,
    encoding: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    whole_below: int = _LOADED_WHOLE_BYTES,
) -> Dataset:
    """Give a dataset whose lazily opened variables are read block by block, by dask.

    Left as they are: what is of no more than `whole_below` bytes, objects that are no text, and
    times of which `encoding`, or else the variable's own, says either units or type. A text or
    object without dimensions that dask has yet to compute is loaded: dask's block of it is no
    array, but the bare item, of bytes without the NULs at their end.
    """
    blocks = {
        name: _chunked(variable, str(name)).data
        for name, variable in dataset.variables.items()
        if not variable._in_memory
        and not hasattr(variable._data, "dask")
        and variable.size * _itemsize(variable) > whole_below
        and (
            variable.dtype.kind in "biufcS"
            or is_unicode_dtype(variable.dtype)
            or _times_are_settled(variable, (encoding or {}).get(str(name), variable.encoding))
        )
    }
    blocks |= {
        name: np.array(variable.to_numpy(), variable.dtype)
        for name, variable in dataset.variables.items()
        if not variable.dims and variable.dtype.kind in "OSUT" and hasattr(variable._data, "dask")
    }
    if blocks:
        dataset = dataset.copy()
        for name, data in blocks.items():  # assign() would make indexes of them
            dataset.variables[name].data = data
    return dataset


def _times_are_settled(variable: Variable, encoding: Mapping[str, Any]) -> bool:
    """Tell whether times can be encoded block by block: both units and type are given, or neither.

    Then xarray takes those that hold every time of that resolution.
    """
    given = {"units", "dtype"} & encoding.keys()
    return len(given) == 2 or (not given and variable.dtype.kind in "mM")


def _chunked(variable: Variable, name: str) -> Variable:
    """Give a variable in blocks of whole chunks of its file, of objects one a block."""
    preferred = variable.encoding.get("preferred_chunks") or {}
    # By axis: a dimension can occur twice.
    sizes = zip(variable.dims, variable.shape, strict=True)
    chunks: Any = tuple([preferred.get(dim, size) for dim, size in sizes])
    if not (variable.dtype.hasobject and preferred):
        chunks = normalize_chunks(
            "auto",
            variable.shape,
            limit=_BLOCK_BYTES,
            dtype=f"V{_itemsize(variable)}",
            previous_chunks=chunks,
        )
    return variable.chunk(chunks, name=f"{_OPENED}{name}-{secrets.token_hex(8)}")


def _itemsize(variable: Variable) -> int:
    return _NOMINAL_BYTES if variable.dtype.hasobject else variable.dtype.itemsize


def opened_lazily(data: Any) -> bool:
    """Tell dask arrays of `in_blocks` from those that the caller made."""
    return any(str(name).startswith(_OPENED) for name in data.dask.layers)


def refuse_reading(
    values: Mapping[Any, Any], store: Store, paths: Collection[str] | None = None
) -> None:
    """Refuse values that are lazily read from what is to be overwritten.

    `values` are arrays of any kind, or variables that hold them, by the name to tell; `paths` those
    of the arrays that are overwritten, None for all of the store.
    """
    for name, data in values.items():
        for lazy in lazy_arrays(getattr(data, "_data", data)):
            array = lazy.stored
            if same_store(array.store, store) and (paths is None or array.node.path in paths):
                raise RefusedError(
                    f"reads its values from {array.node.path} of the store that is to be "
                    "overwritten",
                    remedy="Load it first with .load(), or write to another store",
                    store=store.name,
                    variable=str(name),
                )


def same_store(one: Store, other: Store) -> bool:
    """Return whether two stores hold the same objects."""
    if isinstance(one, LocalStore) and isinstance(other, LocalStore):
        return is_same_place(one.root, other.root)
    if isinstance(one, MemoryStore) and isinstance(other, MemoryStore):
        return one.mapping is other.mapping
    return one.remote == other.remote and one.name == other.name


def lazy_arrays(data: Any) -> Iterator[LazyArray]:
    """Give our arrays that xarray's wrappers hold, or that a dask graph begins with."""
    graph = getattr(data, "dask", None)
    if graph is None:
        yield from lazy_array_in(data)
        return
    for layer in graph.layers.values():
        # Arrays are in layers of their own, or literals of one that makes its tasks when needed.
        literals = [item for item, index in getattr(layer, "indices", ()) if index is None]
        # A layer's tasks are alike: the first few show where it reads from.
        tasks = itertools.islice(getattr(layer, "mapping", {}).values(), _TASKS_LOOKED_INTO)
        yield from _in_task([*literals, *tasks])


def lazy_array_in(data: Any) -> Iterator[LazyArray]:
    """Give our array that xarray's wrappers hold, if it is one."""
    while isinstance(data, ExplicitlyIndexed | NDArrayMixin) and not isinstance(data, LazyArray):
        data = getattr(data, "array", None)
    if isinstance(data, LazyArray):
        yield data


def _in_task(task: Any) -> Iterator[LazyArray]:
    if isinstance(task, tuple | list):
        for item in task:
            yield from _in_task(item)
    elif isinstance(arguments := getattr(task, "args", None), tuple):
        yield from _in_task(arguments)
    else:
        yield from lazy_array_in(getattr(task, "value", task))


def blockwise(function: Callable[..., Any], data: Any, dtype: np.dtype[Any], *rest: Any) -> Any:
    """Apply a function to an array at once, or to each block of dask's when it is computed."""
    if not hasattr(data, "dask"):
        return function(np.asarray(data), *rest)
    empty = np.empty((0,) * data.ndim, dtype)
    return data.map_blocks(function, *rest, dtype=dtype, meta=empty)


def block_variable(block: Any, encoding: Mapping[str, Any]) -> Variable:
    """Give a block as a variable of that encoding, for xarray's coders."""
    return Variable([f"d{axis}" for axis in range(block.ndim)], block, {}, dict(encoding))


def largest(function: Callable[[Any], int], data: Any) -> int:
    """Give the largest of what a function tells of an array, dask's block by block."""
    if not hasattr(data, "dask"):
        return function(np.asarray(data))
    chunks = tuple((1,) * count for count in data.numblocks)
    found = data.map_blocks(_told, function, dtype=int, chunks=chunks, meta=np.empty(0, int))
    return int(found.max().compute())


def _told(block: Any, function: Callable[[Any], int]) -> Any:
    return np.full((1,) * block.ndim, function(block))
