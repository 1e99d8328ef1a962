"""The stores that lazily opened values come from, which a write must not destroy."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
from xarray import Variable
from xarray.backends import BackendArray
from xarray.core.indexing import BasicIndexer, ExplicitlyIndexed, OuterIndexer
from xarray.core.utils import NDArrayMixin

from xr_nczarr.backend.lazy import LazyArray, SelectedArray
from xr_nczarr.chunks.selection import Selection, whole
from xr_nczarr.errors import RefusedError
from xr_nczarr.storage import Store

_TASKS_LOOKED_INTO = 3


def refuse_reading(
    values: Mapping[Any, Any], store: Store, paths: Collection[str] | None = None
) -> None:
    """Raise RefusedError for values that are lazily read from arrays that a write replaces.

    Parameters
    ----------
    values
        Arrays of any kind, or variables that hold them, by name.
    paths
        Paths of the arrays that are replaced; None for all of the store.
    """
    for name, data in values.items():
        for lazy in lazy_arrays(getattr(data, "_data", data)):
            array = lazy.stored
            if array.store.is_same(store) and (paths is None or array.node.path in paths):
                raise RefusedError(
                    f"reads its values from {array.node.path} of the store that is to be "
                    "overwritten",
                    remedy="Load it first with .load(), or write to another store",
                    store=store.name,
                    variable=str(name),
                )


def lazy_arrays(data: Any) -> Iterator[LazyArray]:
    """Yield this engine's arrays that xarray's wrappers hold, or that a dask graph begins with."""
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
    """Yield this engine's array that xarray's wrappers hold, if it is one."""
    array, _ = unwrapped(data)
    if isinstance(array, LazyArray):
        yield array


def unwrapped(data: Any) -> tuple[Any, Selection | None]:
    """Return the array that xarray's wrappers hold, and what they select from it.

    The selection is None where nothing is selected, or single points are.
    """
    selected: Any = None
    while isinstance(data, ExplicitlyIndexed | NDArrayMixin) and not isinstance(data, BackendArray):
        # The outermost selection is the whole of it: those that follow one another are merged.
        if selected is None and (isinstance(data, SelectedArray) or hasattr(data, "key")):
            selected = data
        data = getattr(data, "source" if isinstance(data, SelectedArray) else "array", None)
    if isinstance(selected, SelectedArray):
        return data, selected.selection
    key = getattr(selected, "key", None)
    if isinstance(key, BasicIndexer | OuterIndexer):
        return data, whole(selected.array.shape).orthogonal(key.tuple)
    return data, None


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
    """Return a block as a variable with an encoding, for xarray's coders."""
    return Variable([f"d{axis}" for axis in range(block.ndim)], block, {}, dict(encoding))


def largest(function: Callable[[Any], int], data: Any) -> int:
    """Return the largest result of a function for an array, for dask's block by block."""
    if not hasattr(data, "dask"):
        return function(np.asarray(data))
    chunks = tuple((1,) * count for count in data.numblocks)
    results = data.map_blocks(_result, function, dtype=int, chunks=chunks, meta=np.empty(0, int))
    return int(results.max().compute())


def _result(block: Any, function: Callable[[Any], int]) -> Any:
    return np.full((1,) * block.ndim, function(block))
