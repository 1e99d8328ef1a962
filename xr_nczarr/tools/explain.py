"""Predict the cost of reading a selection (chunks, requests and bytes), without reading it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.chunks.selection import Selection, select_all
from xr_nczarr.dataset import OpenedStore, open_all_groups
from xr_nczarr.errors import ConflictError, NczarrError, UnsupportedError, quote, unknown
from xr_nczarr.model import Consolidated, Limits
from xr_nczarr.netcdf import Group
from xr_nczarr.options import OpenOptions
from xr_nczarr.progress import byte_text
from xr_nczarr.tools.lookup import check_position, chosen_paths, positions_of
from xr_nczarr.tools.recording_store import ObjectSizes, VariableReading, record_read
from xr_nczarr.tools.results import Result, columns, render_html, shape_text

if TYPE_CHECKING:
    from xarray import Dataset

Indexers = Mapping[Any, Any]
"""Mapping from dimensions to positions or labels."""

_Source = tuple[Sequence[Any], Any]
"""A netCDF or xarray variable, preceded by the names of its dimensions."""
_Sources = Mapping[str, _Source]
_Selected = tuple[ChunkedArray, Selection]

_HEAD = ["variable", "selected", "chunks", "of shape", "requests", "fetched", "decoded"]


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Result):
    """The result of `explain`: the predicted cost of reading a selection.

    Attributes
    ----------
    readings
        The cost of reading each variable.
    left_out
        Reasons why the cost of a variable is unknown, keyed by the path of the variable.
    """

    readings: tuple[VariableReading, ...]
    left_out: Mapping[str, str]

    def __repr__(self) -> str:
        lines = list(columns([_HEAD, *(_cells(item) for item in self.readings), self.totals()], 80))
        return "\n".join([*lines, *(f"{quote(n)}: {why}" for n, why in self.left_out.items())])

    def _repr_html_(self) -> str:
        values = {"head": _HEAD, "cells": _cells, "explanation": self}
        return render_html("explain.html", title="Cost of reading", **values)

    def _members(self) -> dict[str, Any]:
        readings = [
            {**asdict(item), "touched": [sorted(numbers) for numbers in item.touched]}
            for item in self.readings
        ]
        return {"readings": readings, "left_out": dict(self.left_out)}

    def totals(self) -> list[str]:
        """Return the cells of the last table row, which shows the totals over all variables."""
        sizes = [item.fetched_bytes for item in self.readings]
        fetched = None if None in sizes else sum(item or 0 for item in sizes)
        at_most = "≤" if any(item.at_most for item in self.readings) else ""
        return [
            "all",
            "",
            f"{sum(item.chunks for item in self.readings):,}",
            "",
            f"{at_most}{sum(item.requests for item in self.readings):,}",
            byte_text(fetched),
            byte_text(sum(item.decoded_bytes for item in self.readings)),
        ]


def explain(
    target: Any,
    selection: Indexers | None = None,
    *,
    variables: Collection[str] | None = None,
    group: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    consolidated: Consolidated = None,
    zarr_format: int | str | None = None,
    codecs: Mapping[str, type] | None = None,
    trust: Literal["none"] | None = None,
    limits: Limits | Mapping[str, int] | None = None,
) -> Explanation:
    """Predict how many requests and bytes it takes to read a selection, without reading it.

    Only metadata is read. If `selection` contains labels, coordinates are read, too.
    The store is listed to determine the sizes of the chunks. If it cannot be listed, sizes are
    requested one by one, but only for variables from which the selection reads at most 10,000
    chunks.

    Parameters
    ----------
    target
        A Dataset, DataArray or DataTree that was opened with ``engine="nczarr"``, even if it has
        been indexed since. Alternatively, anything that `xarray.open_dataset` opens with this
        engine.
    selection
        Mapping from dimension names to positions, as for `xarray.Dataset.isel`. If `target` is not
        an xarray object, labels are also accepted: floats, strings, dates, or slices of these. A
        slice of labels includes both ends. If None, everything is selected.
    variables
        Names or paths of variables. If None, all variables are selected.
    group, storage_options, consolidated, zarr_format, codecs, trust, limits
        See `xr_nczarr.options.OpenOptions`. Ignored if `target` is an xarray object.

    Raises
    ------
    NotFoundError
        If a dimension, variable or label is unknown.
    ConflictError
        If a position is out of bounds.

    Examples
    --------
    >>> import xarray as xr, xr_nczarr
    >>> store, dataset = {}, xr.Dataset({"t": ("x", range(8))})
    >>> xr_nczarr.to_nczarr(dataset, store, encoding={"t": {"chunks": 2}})
    >>> xr_nczarr.explain(store, {"x": slice(1, 6)})
    variable  selected  chunks  of shape  requests  fetched  decoded
    t(x)      5         3 of 4  2         3         48 B     48 B
    all                 3                 3         48 B     48 B
    """
    indexers = selection or {}
    datasets = _datasets(target)
    if datasets is None:
        opened, top = open_all_groups(target, OpenOptions.of(locals()))
        indexers = positions_of(indexers, partial(_labeled_dataset, opened, top))
        if all(isinstance(item, int | slice) for item in indexers.values()):
            sources = _stored_sources(opened, top)
            return _explanation(sources, partial(_select_stored, opened), indexers, variables)
        datasets = _opened_datasets(opened, top)  # xarray interprets other indexers, such as arrays
    return _explanation(_xarray_sources(datasets), _select_lazy, indexers, variables)


def _explanation(
    sources: _Sources,
    select: Callable[[_Source, Indexers], _Selected],
    indexers: Indexers,
    requested: Collection[str] | None,
) -> Explanation:
    """Predict the cost of reading a selection from each requested variable."""
    dimensions = {name for names, _ in sources.values() for name in names}
    for name in indexers:
        if name not in dimensions:
            raise unknown("dimension", name, dimensions)
    chosen = chosen_paths(requested, {f"/{path}" for path in sources}, "variable")
    sources = {path: source for path, source in sources.items() if f"/{path}" in chosen}
    for names, variable in sources.values():
        for name, size in zip(names, variable.shape, strict=False):
            check_position(indexers.get(name), str(name), size, ConflictError)
    selected: dict[str, _Selected] = {}
    readings: list[VariableReading] = []
    left_out: dict[str, str] = {}
    for path, source in sources.items():
        with _leaving_out(path, left_out):
            selected[path] = select(source, indexers)
    by_store: dict[str, list[ChunkedArray]] = {}
    for array, _ in selected.values():
        by_store.setdefault(array.store.identity, []).append(array)
    sizes = {identity: ObjectSizes(arrays) for identity, arrays in by_store.items()}
    for path, (array, part) in selected.items():
        with _leaving_out(path, left_out):
            names = tuple(map(str, sources[path][0]))
            readings.append(record_read(path, names, array, part, sizes[array.store.identity]))
    return Explanation(tuple(readings), left_out)


@contextmanager
def _leaving_out(path: str, left_out: dict[str, str]) -> Iterator[None]:
    """Suppress an NczarrError, and store its message in ``left_out[path]``."""
    try:
        yield
    except IndexError as error:  # a selected position is out of bounds
        raise ConflictError(str(error), variable=path) from error
    except NczarrError as error:
        left_out[path] = " ".join(str(error).split())


def _stored_sources(opened: OpenedStore, top: Group) -> _Sources:
    """Return the variables in a group and its subgroups, keyed by path relative to the group."""
    sources = {}
    for group in top.walk():
        visible = opened.visible_dimensions(group.path)
        for variable in group.variables.values():
            path = variable.path.removeprefix(top.path).lstrip("/")
            sources[path] = variable.dimension_names(visible), variable
    return sources


def _select_stored(opened: OpenedStore, source: _Source, indexers: Indexers) -> _Selected:
    names, variable = source
    if variable.error is not None:
        raise variable.error
    items = [indexers.get(name, slice(None)) for name in names]
    return opened.array(variable), select_all(variable.shape).orthogonal(items)


def _datasets(target: Any) -> dict[str, Dataset] | None:
    """Return the datasets in an xarray object, keyed by path, or None for any other target."""
    xarray = sys.modules.get("xarray")
    if xarray is None:
        return None
    if isinstance(target, xarray.DataArray):
        name = target.name if target.name is not None else "values"
        return {"/": xarray.Dataset({name: target.variable})}
    if isinstance(target, xarray.Dataset):
        return {"/": target}
    if isinstance(target, xarray.DataTree):
        return {node.path: node.to_dataset(inherit=False) for node in target.subtree}
    return None


def _labeled_dataset(opened: OpenedStore, group: Group) -> Dataset:
    from xr_nczarr.backend.building import build_dataset
    from xr_nczarr.backend.entrypoint import LABELS

    return build_dataset(opened, group, LABELS)


def _opened_datasets(opened: OpenedStore, group: Group) -> dict[str, Dataset]:
    from xr_nczarr.backend.building import build_groups
    from xr_nczarr.backend.entrypoint import AS_STORED

    # Variables stay undecoded, because decoding times would read their first and last values.
    return build_groups(opened, group, AS_STORED)


def _xarray_sources(datasets: Mapping[str, Dataset]) -> _Sources:
    return {
        f"{path}/{name}".lstrip("/"): (variable.dims, variable)
        for path, dataset in datasets.items()
        for name, variable in dataset.variables.items()
    }


def _select_lazy(source: _Source, indexers: Indexers) -> _Selected:
    from xr_nczarr.backend.lazy import LazyArray, UnreadableArray, unwrapped
    from xr_nczarr.writing.lazy_sources import chunked_values

    _, variable = source
    data = variable._data
    if hasattr(data, "dask"):
        values = chunked_values(data)
        if values is None:
            raise UnsupportedError(
                "the dask graph does not show which chunks are read",
                remedy="Open the dataset with chunks=None",
            )
        variable = type(variable)(variable.dims, values)
    # A Variable treats a DataArray as a plain array, and ignores the DataArray's dimensions.
    chosen = {
        name: getattr(item, "variable", item)
        for name, item in indexers.items()
        if name in variable.dims
    }
    lazy, selection = unwrapped(variable.isel(chosen)._data)
    if isinstance(lazy, UnreadableArray):
        raise lazy.error
    if not isinstance(lazy, LazyArray):
        raise UnsupportedError(
            "the cost is unknown, because the values are in memory or are read by another engine"
        )
    assert selection is not None
    return lazy.stored, selection


def _cells(reading: VariableReading) -> list[str]:
    missing = f" ({reading.absent:,} missing)" if reading.absent else ""
    within = f" in {shape_text(reading.shard_shape)}" if reading.shard_shape else ""
    return [
        f"{quote(reading.name)}({', '.join(map(quote, reading.dimensions))})",
        shape_text(reading.selected),
        f"{reading.chunks:,} of {reading.all_chunks:,}{missing}",
        shape_text(reading.chunk_shape) + within,
        f"{'≤' if reading.at_most else ''}{reading.requests:,}",
        byte_text(reading.fetched_bytes),
        byte_text(reading.decoded_bytes),
    ]
