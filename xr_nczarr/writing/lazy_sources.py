"""Find the stored arrays from which lazily opened variables are read.

A write must know them, because it must not overwrite an array that it is still reading.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from xarray import Dataset, Variable
from xarray.backends import BackendArray
from xarray.core.indexing import BasicIndexer, ExplicitlyIndexed, OuterIndexer
from xarray.core.utils import NDArrayMixin

from xr_nczarr.backend.lazy import LazyArray, SelectedArray
from xr_nczarr.chunks.selection import Selection, whole
from xr_nczarr.errors import RefusedError
from xr_nczarr.storage import Store

_MAX_INSPECTED_TASKS = 3


def sources_in(dataset: Dataset, store: Store) -> dict[str, set[str]]:
    """Map the name of each lazy variable to the paths of its source arrays in `store`.

    Variables that are not read from `store` are left out.
    """
    sources: dict[str, set[str]] = {}
    for name, variable in dataset.variables.items():
        for lazy in lazy_arrays(variable._data):
            if store.is_same(lazy.stored.store):
                sources.setdefault(str(name), set()).add(lazy.stored.node.path)
    return sources


def lazy_arrays(data: Any) -> Iterator[LazyArray]:
    """Yield the lazy arrays of this engine in a dask graph or inside xarray's wrappers."""
    if not hasattr(data, "dask"):
        yield from _in_task(data)
        return
    for layer in data.dask.layers.values():
        # A graph contains an array in a separate layer, or as a literal in a layer that creates its
        # tasks on demand.
        literals = [item for item, index in getattr(layer, "indices", ()) if index is None]
        # All tasks of a layer are alike, so the first few refer to all arrays that the layer reads.
        tasks = itertools.islice(getattr(layer, "mapping", {}).values(), _MAX_INSPECTED_TASKS)
        yield from _in_task([*literals, *tasks])


def chunked_values(data: Any) -> Any:
    """Return the lazily indexed array from which a dask array was created, or None.

    The result is None if the dask graph does more than divide the array into chunks, or if another
    engine opened the array.
    """
    layers, original = data.dask.layers, f"original-{data.name}"
    if not layers.keys() <= {data.name, original}:
        return None
    if original in layers:
        items = list(layers[original].mapping.values())
    else:  # the values are a literal of the layer
        items = [item for item, index in getattr(layers[data.name], "indices", ()) if index is None]
    for item in items:
        values = getattr(item, "value", item)
        values = values if isinstance(values, ExplicitlyIndexed) else getattr(values, "array", None)
        if isinstance(unwrapped(values)[0], LazyArray):
            return values
    return None


def whole_array(variable: Variable) -> LazyArray | None:
    """Return the lazy array that a variable wraps in its entirety, or None.

    The result is None unless the variable contains all values of the array in their original order.
    The values may be decoded, and may be divided into dask blocks.
    """
    data: Any = variable._data
    if hasattr(data, "dask"):
        # Unless from_array added a layer for the array, the array could be one of several literals.
        data = chunked_values(data) if f"original-{data.name}" in data.dask.layers else None
    array, selection = unwrapped(data)
    if not isinstance(array, LazyArray) or selection is None:
        return None
    sliced = all(isinstance(selector, range) for selector in selection.selectors)
    return array if sliced and selection == whole(array.shape) else None


def unwrapped(data: Any) -> tuple[Any, Selection | None]:
    """Return the array inside xarray's wrappers, and the selection that they apply to it.

    The selection is None if the wrappers do not index the array, or if they index it pointwise.
    """
    selecting: Any = None
    while isinstance(data, ExplicitlyIndexed | NDArrayMixin) and not isinstance(data, BackendArray):
        # The outermost selection is the complete one, because xarray merges successive selections.
        if selecting is None and (isinstance(data, SelectedArray) or hasattr(data, "key")):
            selecting = data
        data = getattr(data, "source" if isinstance(data, SelectedArray) else "array", None)
    if isinstance(selecting, SelectedArray):
        return data, selecting.selection
    if isinstance(getattr(selecting, "key", None), BasicIndexer | OuterIndexer):
        return data, whole(selecting.array.shape).orthogonal(selecting.key.tuple)
    return data, None


def _in_task(task: Any) -> Iterator[LazyArray]:
    if isinstance(task, tuple | list):
        for item in task:
            yield from _in_task(item)
    elif isinstance(arguments := getattr(task, "args", None), tuple):
        yield from _in_task(arguments)
    else:
        array, _ = unwrapped(getattr(task, "value", task))
        if isinstance(array, LazyArray):
            yield array


def reading_error(store: Store, name: str, path: str) -> RefusedError:
    """Return the error for a lazy variable whose source array would be overwritten."""
    return RefusedError(
        f"the variable reads its values from {path} in the store that would be overwritten",
        remedy="Load the variable first with .load(), or write to another store",
        store=store.name,
        variable=name,
    )
