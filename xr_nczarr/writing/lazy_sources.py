"""Find the stored arrays from which lazily opened variables are read.

A write must know them, because it must not overwrite an array that it is still reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from xarray import DataArray, Dataset, Variable
from xarray.backends import BackendArray
from xarray.core.indexing import BasicIndexer, ExplicitlyIndexed, OuterIndexer
from xarray.core.utils import NDArrayMixin

from xr_nczarr.backend.lazy import LazyArray, SelectedArray
from xr_nczarr.chunks.selection import Selection, whole
from xr_nczarr.errors import RefusedError
from xr_nczarr.storage import Store


def sources_in(dataset: Dataset, store: Store) -> dict[str, set[str]]:
    """Map the name of each lazy variable to the paths of its source arrays in `store`.

    Variables that are not read from `store` are left out.
    """
    sources: dict[str, set[str]] = {}
    for name, variable in dataset.variables.items():
        for lazy in dict.fromkeys(lazy_arrays(variable._data)):
            if store.is_same(lazy.stored.store):
                sources.setdefault(str(name), set()).add(lazy.stored.node.path)
    return sources


def lazy_arrays(data: Any) -> Iterator[LazyArray]:
    """Yield the lazy arrays of this engine inside xarray's objects and wrappers or a dask graph.

    An array can be yielded several times.
    """
    items = [data]
    while items:
        item = items.pop()
        parts = _parts(item)
        if parts is not None:
            items += parts
        elif isinstance(array := unwrapped(item)[0], LazyArray):
            yield array


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


def _parts(item: Any) -> Any:
    """Return the parts of a container, an xarray object, a dask object or a task, or None."""
    if isinstance(item, tuple | list):
        return item
    if isinstance(item, dict):  # also the tasks that `dask.optimize` combines into one
        return item.values()
    if isinstance(item, Dataset):
        return item.variables.values()
    if isinstance(item, DataArray | Variable):
        return [item._data if isinstance(item, Variable) else item.variable._data]
    if hasattr(item, "dask"):
        return [_tasks(layer) for layer in item.dask.layers.values()]
    if isinstance(arguments := getattr(item, "args", None), tuple):
        return [arguments, getattr(item, "kwargs", None)]
    return [item.value] if hasattr(item, "value") else None  # a literal in a dask graph


def _tasks(layer: Any) -> Any:
    """Return the tasks of a layer, or its template for tasks and the literals in them."""
    if hasattr(layer, "mapping"):
        return list(layer.mapping.values())
    literals = [value for value, index in getattr(layer, "indices", ()) if index is None]
    return [getattr(layer, "task", None), literals]


def reading_error(store: Store, name: str, path: str) -> RefusedError:
    """Return the error for a lazy variable whose source array would be overwritten."""
    return RefusedError(
        f"the variable reads its values from {path} in the store that would be overwritten",
        remedy="Load the variable first with .load(), or write to another store",
        store=store.name,
        variable=name,
    )
