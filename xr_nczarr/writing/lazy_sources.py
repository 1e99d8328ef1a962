"""Find the arrays from which the lazy variables of a write are read.

A write must not change an array from which it still reads. A variable that is already in the store
and has not been changed need not be written.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

from xarray import DataArray, Dataset, Variable
from xarray.core.indexing import ExplicitlyIndexed

from xr_nczarr.backend.lazy import LazyArray, unwrapped
from xr_nczarr.backend.stored_group import StoredGroup
from xr_nczarr.chunks.selection import select_all
from xr_nczarr.dataset import OpenedStore
from xr_nczarr.encoding.stored_variables import decode_stored, has_same_decoding
from xr_nczarr.errors import RefusedError
from xr_nczarr.storage import Store
from xr_nczarr.writing.write_request import WriteRequest

_LOAD = "Load the variable first with .load(), or write to another store"
_LOAD_OR_LEAVE_OUT = (
    "If the variable is unchanged, leave it out of the dataset. Otherwise, load it first with "
    ".load(), or write to another store"
)


def lazy_arrays(data: Any) -> Iterator[LazyArray]:
    """Yield each `LazyArray` inside an xarray object, an array wrapper or a dask graph.

    An array may be yielded more than once.
    """
    items = [data]
    while items:
        item = items.pop()
        parts = _parts(item)
        if parts is not None:
            items += parts
        elif isinstance(array := unwrapped(item)[0], LazyArray):
            yield array


def _parts(item: Any) -> Any:
    """Return the items of a container, xarray object or dask object, or None for other objects."""
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
    """Return the tasks of a dask layer, or the task template and literals of a blockwise layer."""
    if hasattr(layer, "mapping"):
        return list(layer.mapping.values())
    literals = [value for value, index in getattr(layer, "indices", ()) if index is None]
    return [getattr(layer, "task", None), literals]


def chunked_values(data: Any) -> Any:
    """Return the lazily indexed array from which a dask array was created, or None.

    The result is None if another engine opened the array, or if the dask graph does more than
    divide the array into chunks.
    """
    layers, original = data.dask.layers, f"original-{data.name}"
    if not layers.keys() <= {data.name, original}:
        return None
    if original in layers:
        items = list(layers[original].mapping.values())
    else:  # the values are a literal in the layer
        items = [item for item, index in getattr(layers[data.name], "indices", ()) if index is None]
    for item in items:
        values = getattr(item, "value", item)
        values = values if isinstance(values, ExplicitlyIndexed) else getattr(values, "array", None)
        if isinstance(unwrapped(values)[0], LazyArray):
            return values
    return None


def complete_array(data: Any) -> LazyArray | None:
    """Return the lazy array from which `data` was created, or None if the values were changed.

    Selecting or reordering values is a change. Decoding them, or dividing them into dask blocks, is
    not.
    """
    if hasattr(data, "dask"):
        # Require the layer that from_array adds for an array. Without it, the array could be one of
        # several literals in the graph.
        data = chunked_values(data) if f"original-{data.name}" in data.dask.layers else None
    array, selection = unwrapped(data)
    if not isinstance(array, LazyArray) or selection is None:
        return None
    sliced = all(isinstance(selector, range) for selector in selection.selectors)
    return array if sliced and selection == select_all(array.shape) else None


def _sources_in(dataset: Dataset, store: Store) -> dict[str, set[str]]:
    """Return the paths of the arrays in `store` that each lazy variable reads, by variable name.

    Variables that do not read from `store` are omitted.
    """
    sources: dict[str, set[str]] = {}
    for name, variable in dataset.variables.items():
        for lazy in dict.fromkeys(lazy_arrays(variable._data)):
            if store.is_same(lazy.stored.store):
                sources.setdefault(str(name), set()).add(lazy.stored.node.path)
    return sources


def check_sources_outside(store: Store, datasets: Iterable[Dataset]) -> None:
    """Raise RefusedError if a lazy variable is read from `store`, which will be replaced."""
    for dataset in datasets:
        for name, paths in _sources_in(dataset, store).items():
            raise _reading_error(store, name, min(paths), _LOAD)


def _reading_error(store: Store, name: str, path: str, remedy: str) -> RefusedError:
    """Return the error for a lazy variable whose source array would be overwritten."""
    return RefusedError(
        f"the variable reads its values from {path}, which this write would overwrite",
        remedy=remedy,
        store=store.name,
        variable=name,
    )


def find_unchanged(
    request: WriteRequest, opened: OpenedStore, kept: Collection[str]
) -> set[tuple[str, str]]:
    """Return the group path and name of each variable that has not changed since it was opened.

    Such a variable need not be written, because its values are already in the target array.
    The result is empty for appends, region writes and remote stores.
    """
    unchanged: set[tuple[str, str]] = set()
    # Remote stores are skipped, because the same URL can name different stores at different
    # endpoints.
    options, remote = request.options, opened.store.remote
    if options.append_dim is not None or options.region is not None or remote:
        return unchanged
    for group_request in request.groups:
        if group_request.path not in kept:
            continue
        group = opened.group(group_request.path)
        own = [
            name
            for name, target in group.variables.items()
            if name in group_request.dataset.variables
            and (array := complete_array(group_request.dataset.variables[name]._data)) is not None
            and array.stored.node.path == target.path
            and array.stored.store.is_same(opened.store)
        ]
        if not own:
            continue
        source = StoredGroup(opened, group, None)
        stored = decode_stored(source, group_request.dataset[own])
        for name in own:
            new, old = group_request.dataset.variables[name], stored[name]
            same = (new.dims, new.shape) == (old.dims, old.shape)
            if same and has_same_decoding(new, old):
                unchanged.add((group_request.path, name))
    return unchanged


def check_sources_unchanged(
    request: WriteRequest,
    opened: OpenedStore,
    kept: Collection[str],
    replaced: Collection[str],
    unchanged: Collection[tuple[str, str]],
) -> None:
    """Raise RefusedError if a lazy variable is read from an array that the write changes.

    A variable that is appended must not be read from its own target array. It can be read from the
    target arrays of other variables, because an append does not change stored values.
    """
    dim, changed = request.options.append_dim, replaced
    written = {
        (group_request.path, name): target.path
        for group_request in request.groups
        if group_request.path in kept
        for name, target in opened.group(group_request.path).variables.items()
        if name in group_request.dataset.variables
        and (dim is None or dim in group_request.dataset.variables[name].dims)
        and (group_request.path, name) not in unchanged
    }
    if dim is None:
        changed = {*changed, *written.values()}
    for group_request in request.groups:
        for name, sources in _sources_in(group_request.dataset, opened.store).items():
            for path in sources & {*changed, written.get((group_request.path, name), "")}:
                raise _reading_error(opened.store, name, path, _LOAD_OR_LEAVE_OUT)
