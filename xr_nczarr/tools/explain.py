"""What reading a selection takes: chunks, requests and bytes, before anything is read."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from xarray import DataArray, Dataset, DataTree, Variable

from xr_nczarr.backend.building import open_groups
from xr_nczarr.backend.lazy import LazyArray, SelectedArray, UnreadableArray
from xr_nczarr.backend.options import AS_STORED, OpenOptions
from xr_nczarr.backend.reader import open_netcdf
from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.chunks.grid import ChunkPart, Plan, count_touched, plan_points, plan_selection
from xr_nczarr.chunks.sharding import Shards
from xr_nczarr.chunks.windows import byte_window
from xr_nczarr.errors import AccessDeniedError, ConflictError, UnsupportedError, quote
from xr_nczarr.tools.census import MAX_ASKED
from xr_nczarr.tools.html import details, faint, grid_svg, page, table, text
from xr_nczarr.tools.slabs import counts
from xr_nczarr.tools.text import byte_text, columns, extent_text
from xr_nczarr.writing.sources import lazy_arrays, unwrapped

Selection = Mapping[Any, Any]
_MOST_CHUNKS = 1_000_000
"""Each is looked up by itself: more take minutes, and memory without bound."""

_HEAD = ["variable", "selected", "chunks", "of shape", "requests", "fetched", "decoded"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What reading one variable takes.

    Attributes
    ----------
    shape, chunk_shape
        Of its array, in elements.
    shard_shape
        Of the objects that hold several chunks, in elements; None where each chunk is one.
    selected
        Shape of what is selected.
    touched
        Numbers of the chunks along each dimension.
    chunks, all_chunks
        Chunks touched, and those that there are.
    requests
        To the store; `at_most` tells that it may be fewer.
    fetched_bytes
        As they are stored; None when the store does not tell.
    absent
        Chunks that the store does not have; None when that is not known either.
    decoded_bytes
        Of the chunks, of which `result_bytes` are kept.
    """

    name: str
    dimensions: tuple[str, ...]
    shape: tuple[int, ...]
    chunk_shape: tuple[int, ...]
    shard_shape: tuple[int, ...] | None
    selected: tuple[int, ...]
    touched: tuple[frozenset[int], ...]
    chunks: int
    all_chunks: int
    requests: int
    at_most: bool
    fetched_bytes: int | None
    absent: int | None
    decoded_bytes: int
    result_bytes: int


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """What reading a selection takes by variable, and why others are `left_out`."""

    readings: tuple[Reading, ...]
    left_out: Mapping[str, str]

    def __repr__(self) -> str:
        lines = list(columns([_HEAD, *(_cells(item) for item in self.readings), self.totals()]))
        return "\n".join([*lines, *(f"{quote(n)}: {why}" for n, why in self.left_out.items())])

    def _repr_html_(self) -> str:
        rows = [_html_row(reading) for reading in self.readings]
        rows.append([f"<b>{text(cell)}</b>" for cell in self.totals()])
        left_out = (f"{text(name)}: {text(why)}" for name, why in self.left_out.items())
        parts = (f"<div>{faint(line)}</div>" for line in left_out)
        return page("What reading takes", table(_HEAD, rows), *parts)

    def as_dict(self) -> dict[str, Any]:
        """Give it as values of JSON."""
        readings = [
            {**asdict(item), "touched": [sorted(numbers) for numbers in item.touched]}
            for item in self.readings
        ]
        return {"readings": readings, "left_out": dict(self.left_out)}

    def totals(self) -> list[str]:
        """Give the last row of a table."""
        known = [item.fetched_bytes for item in self.readings]
        fetched = None if None in known else sum(item or 0 for item in known)
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
    selection: Selection | None = None,
    *,
    variables: Collection[str] | None = None,
    **options: Any,
) -> Explanation:
    """Return what reading a selection takes, without reading any chunk.

    Only metadata are read, and the store is listed. One that cannot be listed is asked for each of
    at most 10,000 chunks.

    Parameters
    ----------
    target
        A Dataset, DataArray or DataTree that was opened with ``engine="nczarr"``, and perhaps
        selected from; or what `xarray.open_dataset` takes to open one.
    selection
        Positions by dimension, as `xarray.Dataset.isel` takes them.
    variables
        Names or paths; all if None.
    **options
        See `OpenOptions`, where `target` is to be opened.

    Raises
    ------
    ConflictError
        For a dimension or variable that is not there, and a position outside of it.

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
    if isinstance(target, DataArray):
        name = target.name if target.name is not None else "values"
        target = Dataset({name: target.variable})
    if isinstance(target, Dataset):
        datasets = {"/": target}
    elif isinstance(target, DataTree):
        datasets = {node.path: node.to_dataset(inherit=False) for node in target.subtree}
    else:
        opened = open_netcdf(target, OpenOptions(**options))
        # Without decoding, which looks at the first and last of the times.
        datasets = open_groups(opened, opened.group(opened.options.group), AS_STORED)
    arrays = {
        f"{path}/{name}".lstrip("/"): variable
        for path, dataset in datasets.items()
        for name, variable in dataset.variables.items()
    }
    asked = None if variables is None else {name.lstrip("/") for name in variables}
    names = {name for path in arrays for name in (path, path.rpartition("/")[2])}
    _check(
        "dimension", set(selection or ()), {dim for each in datasets.values() for dim in each.dims}
    )
    _check("variable", asked or set(), names)
    readings, left_out = [], {}
    for path, variable in arrays.items():
        if asked is None or not asked.isdisjoint((path, path.rpartition("/")[2])):
            found = _reading(path, variable, selection or {})
            if isinstance(found, str):
                left_out[path] = found
            else:
                readings.append(found)
    return Explanation(tuple(readings), left_out)


def _html_row(reading: Reading) -> list[str]:
    name, *rest = map(text, _cells(reading))
    drawn = grid_svg(reading.shape, reading.chunk_shape, reading.dimensions, reading.touched)
    return [details(name, drawn, opened=True) if drawn else name, *rest]


def _cells(reading: Reading) -> list[str]:
    """Give a reading as a row of a table."""
    absent = f" ({reading.absent:,} absent)" if reading.absent else ""
    within = f" in {extent_text(reading.shard_shape)}" if reading.shard_shape else ""
    return [
        f"{quote(reading.name)}({', '.join(map(quote, reading.dimensions))})",
        extent_text(reading.selected),
        f"{reading.chunks:,} of {reading.all_chunks:,}{absent}",
        extent_text(reading.chunk_shape) + within,
        f"{'≤' if reading.at_most else ''}{reading.requests:,}",
        byte_text(reading.fetched_bytes),
        byte_text(reading.decoded_bytes),
    ]


def _check(what: str, asked: Set[Any], there: Set[Any]) -> None:
    if missing := asked - there:
        raise ConflictError(f"there is no {what} {', '.join(sorted(map(quote, missing)))}")


def _reading(name: str, variable: Variable, selection: Selection) -> Reading | str:
    """Give what reading a variable takes, or why that cannot be told."""
    data: Any = variable._data
    if hasattr(data, "dask"):
        source = next(lazy_arrays(data), None)
        if source is None or source.shape != variable.shape:
            return "its dask graph does not show what is read: open it with chunks=None"
        variable = Variable(variable.dims, SelectedArray(source))
    chosen = {dim: item for dim, item in selection.items() if dim in variable.dims}
    try:
        selected = variable.isel(chosen)
        lazy, chosen_elements = unwrapped(selected._data)
        if isinstance(lazy, UnreadableArray):
            return f"unreadable: {' '.join(str(lazy.error).split())}"
        if not isinstance(lazy, LazyArray):
            return "in memory"
        assert chosen_elements is not None
        node, request = lazy.stored.node, chosen_elements.request()
        if request.pointwise:
            plan = plan_points(node.shape, node.chunk_shape, request.selection)
        else:
            places = request.selection if lazy.shape else [0] * len(node.shape)
            # A plan of them all is what would take the memory.
            count = count_touched(node.shape, node.chunk_shape, places)
            if count > _MOST_CHUNKS:
                return _too_many(count)
            plan = plan_selection(node.shape, node.chunk_shape, places)
    except IndexError as error:
        raise ConflictError(str(error), variable=name) from error
    if plan.count > _MOST_CHUNKS:
        return _too_many(plan.count)
    dims = tuple(map(str, variable.dims))
    return _planned(name, dims, chosen_elements.shape, lazy.stored, plan)


def _too_many(count: int) -> str:
    return f"its {count:,} chunks are more than are looked up one by one: select fewer"


def _planned(
    name: str, dims: tuple[str, ...], selected: tuple[int, ...], array: ChunkedArray, plan: Plan
) -> Reading:
    node = array.node
    parts = list(plan)
    chunks = [part.chunk for part in parts]
    requests, at_most, sizes = _requests(array, parts, plan)
    known = None if None in sizes else sum(size or 0 for size in sizes)
    return Reading(
        name=name,
        dimensions=dims,
        shape=node.shape if dims else (),
        chunk_shape=node.chunk_shape if dims else (),
        shard_shape=node.object_shape if dims and node.shards else None,
        selected=selected,
        touched=tuple(frozenset(numbers) for numbers in zip(*chunks, strict=True)),
        chunks=len(chunks),
        all_chunks=math.prod(counts(node.shape, node.chunk_shape)),
        requests=requests,
        at_most=at_most,
        fetched_bytes=known,
        absent=None if None in sizes else sum(size == 0 for size in sizes),
        decoded_bytes=len(chunks) * array.chunk_bytes,
        result_bytes=math.prod(selected) * node.dtype.itemsize,
    )


def _requests(
    array: ChunkedArray, parts: Sequence[ChunkPart], plan: Plan
) -> tuple[int, bool, list[int | None]]:
    """Give the number of requests, whether it may be fewer, and the bytes of each object asked."""
    layout, node = array.layout, array.node
    keys = [layout.key_of(part.chunk) for part in parts]
    if isinstance(layout, Shards):
        asked = Counter(keys)
        enough = 1 if layout.levels[0].wrapped else math.prod(layout.chunks_per_shard) / 2
        sparse = [count for count in asked.values() if count < enough]
        sizes = _sizes(array, list(asked))
        if sparse:  # Only their indices would tell how long the chunks are.
            sizes = [None]
        return len(asked) + sum(sparse), bool(sparse), sizes
    sizes = _sizes(array, keys)
    if array.codec.raw:
        spans = [
            None
            if part.whole
            else byte_window(node, plan.axes, part.source, remote=array.store.remote)
            for part in parts
        ]
        if all(span is not None for span in spans):
            sizes = [
                sum(length for _, length in span.spans) if span is not None and size else size
                for span, size in zip(spans, sizes, strict=True)
            ]
    return array.store.count_requests(keys), False, sizes


def _sizes(array: ChunkedArray, keys: Sequence[str]) -> list[int | None]:
    """Return the sizes of objects: 0 for absent ones, None for unknown ones."""
    store = array.store
    known = store.known_sizes(keys)
    if known is not None:
        return known
    with suppress(AccessDeniedError, UnsupportedError):
        listed = dict(store.sizes(_folder(array)))
        return [listed.get(key, 0) for key in keys]
    with suppress(AccessDeniedError, UnsupportedError):
        if len(keys) <= MAX_ASKED:
            return [size or 0 for size in store.sizes_of(keys)]
    return [None] * len(keys)


def _folder(array: ChunkedArray) -> str:
    keys = array.node.chunk_keys
    folder, slash, _ = (keys.prefix if array.node.shape else keys.scalar).rpartition("/")
    return folder + slash
