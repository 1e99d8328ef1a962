"""Open the source of an exact copy.

The source is a store, a netCDF file, or any other file that xarray can open.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import xarray as xr
from xarray.core.indexing import BasicIndexer, ExplicitlyIndexed, LazilyIndexedArray, as_indexable

from xr_nczarr.backend.building import build_dataset
from xr_nczarr.backend.entrypoint import LABELS
from xr_nczarr.backend.lazy import LazyArray, SelectedArray
from xr_nczarr.backend.opened_encoding import chunk_lengths
from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.codecs import check_codec
from xr_nczarr.copying.dataset_input import netcdf_tree, open_datasets
from xr_nczarr.copying.netcdf_c import Handle
from xr_nczarr.copying.netcdf_input import NetcdfFile
from xr_nczarr.copying.relayout import relayout
from xr_nczarr.copying.subset import Subset
from xr_nczarr.dataset import OpenedStore, open_netcdf
from xr_nczarr.encoding.names import check_dimension, stored_name
from xr_nczarr.encoding.xarray_encoder import as_conflicts
from xr_nczarr.errors import ConflictError, ErrorContext, UnsupportedError, quote, unknown
from xr_nczarr.model import Node, child_path, group_path, is_within, parent_path
from xr_nczarr.netcdf import Group, Layout, Variable
from xr_nczarr.netcdf.annotations import DEFAULT_WIDTH
from xr_nczarr.netcdf.attributes import undecoded, unlisted_strings, with_inferred_types
from xr_nczarr.options import OpenOptions
from xr_nczarr.storage import LocalStore, Store, file_fingerprint
from xr_nczarr.tools.lookup import positions_of
from xr_nczarr.writing.builder import Tree
from xr_nczarr.writing.lazy_sources import in_chunks, unwrapped

_SIGNATURES = (b"CDF\x01", b"CDF\x02", b"CDF\x05", b"\x89HDF")
_SKIP = "Pass skip_unsupported=True to leave out whatever the target does not support"
_CORRECT_ATTRIBUTES = "Correct or remove the attributes of the variable in the source"
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """The differences between a copy and its source that the caller allows or requests.

    Attributes
    ----------
    chunks
        Mapping from dimension names to chunk lengths in elements. Other dimensions keep the chunk
        lengths of the source.
    codecs
        Numcodecs configurations in encoding order. If None, the codecs of the source
        are kept.
    skip_unsupported
        Whether to leave out everything that the target cannot express, instead of raising an error.
    """

    chunks: Mapping[str, int] = field(default_factory=dict)
    codecs: Sequence[Mapping[str, Any]] | None = None
    skip_unsupported: bool = False


@dataclass(kw_only=True)
class Input:
    """The source of a copy. Its values are copied as stored, without decoding.

    Attributes
    ----------
    root
        The whole source as a netCDF tree.
    values_of
        Function that returns the stored values of a variable of the source.
    complete
        Whether the source stores all values. If so, no value depends on an array's fill value.
    subset
        The part of the source to copy.
    changes
        The differences between the copy and the source.
    store
        The store that contains the source. For a file, a store at the path of the file.
    state
        Function that returns a string that changes whenever the source does, or None if changes
        cannot be detected.
    unsupported
        Everything in the source that no target can express; see `NetcdfFile`.
    skipped
        Descriptions of everything that `build_tree` left out of the tree.
    arrays
        The source arrays whose chunks may be copied unchanged, keyed by path in the tree that
        `build_tree` returned.
    groups, sources
        The result of `Subset.apply`.

    Raises
    ------
    NotFoundError
        If a dimension of ``changes.chunks`` does not exist.
    ConflictError
        If a chunk length is less than 1.
    """

    root: Group
    subset: Subset
    changes: Changes
    store: Store
    state: Callable[[], str | None]
    values_of: Callable[[Variable], ExplicitlyIndexed]
    complete: bool
    unsupported: Sequence[tuple[str, str]] = ()
    skipped: list[str] = field(init=False)
    arrays: dict[str, ChunkedArray] = field(init=False)
    groups: dict[str, Group] = field(init=False)
    sources: dict[str, Variable] = field(init=False)

    def __post_init__(self) -> None:
        self.groups, self.sources = self.subset.apply(self.root)
        names = {name for group in self.groups.values() for name in group.dimensions}
        names |= {item.name for source in self.sources.values() for item in source.dimensions}
        for dim, length in self.changes.chunks.items():
            if dim not in names:
                raise unknown("dimension", dim, names)
            if length < 1:
                raise ConflictError(
                    f"the chunk length of dimension {quote(dim)} must be at least 1, not {length}"
                )

    def build_tree(self, layout: Layout) -> Tree:
        """Build the netCDF tree that describes the copy, and set `skipped` and `arrays`.

        Raises
        ------
        UnsupportedError
            If the layout cannot express a part of the source, and ``changes.skip_unsupported`` is
            false.
        """
        self.skipped, self.arrays = [], {}
        self.leave_out(self._unsupported_in_subset(), layout)
        reported = {path for path, _ in self.unsupported}
        tree = Tree(layout)
        for group in self.groups.values():
            variables = {
                name: variable
                for name, variable in group.variables.items()
                if self.sources[variable.path].error is None
                or self.sources[variable.path].path not in reported
            }
            tree.check_single_array(group.path, len(variables), group.attributes)
            copied = tree.group(group.path)
            copied.dimensions.update(group.dimensions)
            copied.attributes.update(group.attributes)
            for name, variable in variables.items():
                path = child_path(group.path, name)
                try:
                    with ErrorContext(variable=path):
                        self._add(tree, copied, variable)
                except UnsupportedError as error:
                    if not self.changes.skip_unsupported:
                        error.remedy = ". ".join(filter(None, (error.remedy.rstrip("."), _SKIP)))
                        raise
                    self.skipped.append(f"the variable {quote(path)}: {error.problem}")
            if layout.is_plain_zarr and group.dialect != "zarr":
                holders: list[Group | Variable] = [copied, *copied.variables.values()]
                for holder in holders:
                    holder.attributes = unlisted_strings(holder.attributes)
        if not layout.supports_unlimited:
            dimensions = [dim for group in tree.root.walk() for dim in group.dimensions.values()]
            unlimited = [item.path for item in dimensions if item.unlimited]
            self.leave_out([f"that {quote(path)} is unlimited" for path in unlimited], layout)
        return tree

    def check_names(self, layout: Layout) -> None:
        """Raise ConflictError if a layout does not allow the name of a variable or dimension."""
        for group in self.groups.values():
            for name in group.variables:
                stored_name(name)
            for name in group.dimensions:
                check_dimension(name, layout)

    def _unsupported_in_subset(self) -> list[str]:
        chosen = {source.path for source in self.sources.values()}
        chosen |= {group_path(f"{self.subset.group}/{path}") for path in self.groups}
        every = self.subset.variables is None
        return [
            description
            for path, description in self.unsupported
            if path in chosen or (every and is_within(path, self.subset.group))
        ]

    def leave_out(self, descriptions: Sequence[str], layout: Layout) -> None:
        """Record descriptions of the parts of the source that the target cannot express.

        Raises
        ------
        UnsupportedError
            If this call or an earlier one recorded a description, and
            ``changes.skip_unsupported`` is false.
        """
        self.skipped += descriptions
        if self.skipped and not self.changes.skip_unsupported:
            unnamed = len(self.skipped) - _MAX_NAMED
            named = [*self.skipped[:_MAX_NAMED], *([f"{unnamed} more"] if unnamed > 0 else [])]
            problem = f"the dialect {layout.dialect} cannot express {'; '.join(named)}"
            raise UnsupportedError(problem, remedy=_SKIP)

    def _add(self, tree: Tree, group: Group, variable: Variable) -> None:
        """Copy a variable, including its values, from the subset to a group of the target tree."""
        source = self.sources[variable.path]
        if source.error is not None:
            raise source.error.add_context(store=self.store.name)
        values, selected = self.values_of(source), self.subset.indexer(source)
        if selected is not None:
            values = values[BasicIndexer(selected)]  # type: ignore[index]
        assert source.node is not None
        data = in_chunks(values, _stored_chunks(source), variable.name)
        encoding, explicit = _encoding(variable, tree.layout, self.changes)
        with ErrorContext(variable=source.path), as_conflicts(_CORRECT_ATTRIBUTES):
            encoded = relayout(
                variable,
                data.astype(source.node.dtype, copy=False),
                tree.layout,
                encoding,
                complete=self.complete,
                explicit=explicit,
                default_width=self.root.attributes.get(DEFAULT_WIDTH),
            )
        names = [dimension.name for dimension in variable.dimensions]
        # All dimensions count as growing, so that chunks longer than a dimension are kept.
        path = tree.add_variable(group, variable.name, encoded, variable.dimensions, (), names)
        lazy, _ = unwrapped(values)
        if selected is None and isinstance(lazy, LazyArray):
            self.arrays[path] = lazy.stored


@contextmanager
def open_input(
    source: Any,
    engine: str | None,
    options: OpenOptions,
    changes: Changes,
    *,
    group: str | None,
    variables: Collection[str] | None,
    select: Mapping[str, Any] | None,
    netcdf_types: bool,
) -> Iterator[Input]:
    """Open the source of a copy, without reading or decoding any values.

    The source is closed when the context exits.

    Parameters
    ----------
    options
        Options for opening the source. Engines other than ``"nczarr"`` use only
        ``options.storage_options``.
    group, variables, select
        The part to copy; see `Subset` and `positions_of`.
    netcdf_types
        Whether to convert attributes to the types that netCDF-C returns for them. If False, JSON
        attributes stay JSON.

    Raises
    ------
    NotFoundError
        If the engine, or a dimension in `changes`, does not exist.
    ConflictError
        If a chunk length in `changes` is less than 1.
    UnsupportedError
        If no engine for netCDF files is installed.
    """
    if isinstance(source, str | os.PathLike):
        source = os.path.expanduser(source)
    if engine is None and not is_netcdf_file(source):
        engine = "nczarr"
    if engine == "nczarr":
        opened = open_netcdf(source, options)
        labels = partial(_labeled_dataset, opened, group)
        subset = _subset(group, variables, select, labels)
        attributes_of = with_inferred_types if netcdf_types else undecoded
        yield _of_store(opened, subset, changes, attributes_of)
        return
    path = os.fspath(source)
    storage_options = options.storage_options
    keywords: dict[str, Any] = {"storage_options": storage_options} if storage_options else {}
    others: dict[str, Any] = {"group": group} if group else {}
    labels = partial(
        xr.open_dataset, path, engine=engine, decode_timedelta=False, **keywords, **others
    )
    subset = _subset(group, variables, select, labels)
    if engine is None and find_spec("netCDF4") is not None:
        with closing(Handle(path)) as handle:
            yield _of_file(handle, subset, changes)
    else:
        datasets = open_datasets(path, engine, **keywords)
        with ExitStack() as stack:
            for dataset in datasets.values():
                stack.enter_context(dataset)
            yield _of_datasets(path, datasets, subset, changes)


def _subset(
    group: str | None,
    variables: Collection[str] | None,
    select: Mapping[str, Any] | None,
    open_labels: Callable[[], xr.Dataset],
) -> Subset:
    positions = positions_of(select or {}, open_labels)
    return Subset(group=group_path(group), variables=variables, positions=positions)


def _labeled_dataset(opened: OpenedStore, group: str | None) -> xr.Dataset:
    return build_dataset(opened, opened.group(group), LABELS)


def _of_store(
    opened: OpenedStore,
    subset: Subset,
    changes: Changes,
    attributes_of: Callable[[Mapping[str, Any], Node | None], dict[str, Any]],
) -> Input:
    def values_of(variable: Variable) -> ExplicitlyIndexed:
        node = variable.readable_node
        check_codec(node)
        store = opened.store.narrowed(node.chunk_keys)  # so that little is pickled for dask workers
        stored = ChunkedArray(node, store, opened.options.reading)
        return SelectedArray(LazyArray(stored, node.dtype, variable.shape))

    nodes = opened.hierarchy.nodes
    for group in opened.root.walk():
        if group.error is not None:
            raise group.error.add_context(store=opened.store.name)
        holders: list[Group | Variable] = [group, *group.variables.values()]
        for holder in holders:
            holder.attributes = attributes_of(holder.attributes, nodes.get(holder.path))
    if opened.target_group:
        subset = replace(subset, group=group_path(f"{opened.target_group}/{subset.group}"))
    return Input(
        state=lambda: opened.store.fingerprint(),
        root=opened.root,
        subset=subset,
        changes=changes,
        store=opened.store,
        values_of=values_of,
        complete=False,
    )


def _of_file(handle: Handle, subset: Subset, changes: Changes) -> Input:
    file = NetcdfFile(handle)
    return Input(
        state=lambda: file_fingerprint(handle.path),
        unsupported=file.unsupported,
        root=file.root,
        subset=subset,
        changes=changes,
        store=LocalStore(handle.path),
        values_of=lambda variable: LazilyIndexedArray(file.values[variable.path]),
        complete=True,
    )


def _of_datasets(
    path: str, datasets: Mapping[str, xr.Dataset], subset: Subset, changes: Changes
) -> Input:
    def values_of(variable: Variable) -> ExplicitlyIndexed:
        dataset = datasets[parent_path(variable.path)]
        values: ExplicitlyIndexed = as_indexable(dataset.variables[variable.name]._data)
        return values

    return Input(
        state=lambda: file_fingerprint(path) if os.path.isfile(path) else None,
        root=netcdf_tree(datasets),
        subset=subset,
        changes=changes,
        store=LocalStore(path),
        values_of=values_of,
        complete=True,
    )


def is_netcdf_file(source: Any) -> bool:
    """Return whether `source` is the path to a local file with a netCDF or HDF5 signature."""
    if not isinstance(source, str | os.PathLike) or not os.path.isfile(source):
        return False
    if not os.access(source, os.R_OK):  # opening it as a store raises the error
        return False
    with open(source, "rb") as file:
        return file.read(4) in _SIGNATURES


def _stored_chunks(variable: Variable) -> list[Any]:
    """Return the chunk length along each dimension, or all chunk lengths where they vary."""
    node = variable.node
    assert node is not None
    if node.chunk_runs:
        runs = zip(node.chunk_runs, node.shape, strict=True)
        return [chunk_lengths(lengths, size) for lengths, size in runs]
    return [*node.object_shape] if variable.dimensions else []


def _encoding(variable: Variable, layout: Layout, changes: Changes) -> tuple[dict[str, Any], bool]:
    node, names = variable.node, [dimension.name for dimension in variable.dimensions]
    assert node is not None
    chunks = node.chunk_shape if names else ()
    codecs: list[Mapping[str, Any]] = [
        {"id": spec.name, **spec.configuration}
        for spec in node.codecs
        if spec.name not in ("bytes", "transpose")
    ]
    encoding: dict[str, Any] = {"chunks": chunks, "codecs": codecs}
    if layout.zarr.has_shards and len(node.shards) == 1 and not node.chunk_runs:
        # In all other cases, the copy is not sharded: each chunk becomes a separate object.
        location = "start" if node.shards[0].index_at_start else "end"
        encoding["shards"] = {"shape": node.object_shape, "index_location": location}
    if changes.codecs is not None:
        encoding["codecs"] = [*changes.codecs] if names else []  # netCDF's scalars have no chunks
    if changes.chunks.keys() & set(names):
        lengths = zip(names, chunks, strict=True)
        encoding["chunks"] = tuple([changes.chunks.get(name, size) for name, size in lengths])
        encoding.pop("shards", None)
    return encoding, changes.codecs is not None or encoding["chunks"] != chunks
