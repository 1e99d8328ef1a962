"""Open the source of a copy or comparison, and define the part of it to include.

The source is a store, a netCDF file, or any other file that xarray can open.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import xarray as xr
from xarray.coding.strings import is_unicode_dtype
from xarray.core.indexing import BasicIndexer, ExplicitlyIndexed, as_indexable

from xr_nczarr.backend.building import build_dataset
from xr_nczarr.backend.entrypoint import AS_STORED, LABELS
from xr_nczarr.backend.lazy import LazyArray, SelectedArray
from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.codecs import check_codec
from xr_nczarr.copying.netcdf_c import Handle
from xr_nczarr.copying.netcdf_input import NetcdfFile
from xr_nczarr.dataset import OpenedStore, open_netcdf
from xr_nczarr.encoding.array_nodes import chunk_shape, requested_shapes, shard_specs
from xr_nczarr.encoding.encoding_keys import codec_specs, requested_codecs
from xr_nczarr.encoding.names import user_attributes
from xr_nczarr.encoding.quantize import digit_attribute
from xr_nczarr.encoding.variables import fill_scalar
from xr_nczarr.errors import (
    ConflictError,
    NczarrError,
    NotFoundError,
    UnsupportedError,
    quote,
    unknown,
)
from xr_nczarr.model import (
    ArrayNode,
    ChunkKeys,
    CodecSpec,
    child_path,
    group_path,
    is_within,
    parent_path,
    paths_above,
)
from xr_nczarr.netcdf import Dimension, Group, Layout, Variable
from xr_nczarr.netcdf.attributes import undecoded, with_inferred_types
from xr_nczarr.netcdf.layouts import DEFAULT_FORMAT
from xr_nczarr.netcdf.types import DTYPE_NAMES, default_fill
from xr_nczarr.options import OpenOptions
from xr_nczarr.storage import LocalStore, Store, file_fingerprint
from xr_nczarr.tools.lookup import check_position, chosen_paths, is_label, positions_of
from xr_nczarr.writing.builder import Tree
from xr_nczarr.writing.write_request import unlimited_dimensions

_log = logging.getLogger(__name__)
_SIGNATURES = (b"CDF\x01", b"CDF\x02", b"CDF\x05", b"\x89HDF")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The source of a copy, and the part of it to copy.

    Attributes
    ----------
    root
        The whole source as a netCDF tree.
    stored_values
        Function that returns all values of a variable in `root`, without decoding them.
    store
        The store that contains the source. If the source is a file, this is a `LocalStore` at the
        path of the file.
    state
        Function that returns a fingerprint of the source, or None if changes cannot be detected.
    unsupported
        Items in the source that no target can express, as (path, description) tuples.
    group
        Absolute path of the group that becomes the root of the copy.
    variables
        Names or paths of the variables to copy, or None for all variables. Their coordinates are
        copied too; see `chosen_paths`.
    positions
        Mapping from names or paths of dimensions to slices or integers. An integer selects one
        element, but keeps the dimension.
    labeled
        The names in `positions` that were selected by label. The labels are those of `group`.
    """

    root: Group
    stored_values: Callable[[Variable], ExplicitlyIndexed]
    store: Store
    state: Callable[[], str | None]
    unsupported: Sequence[tuple[str, str]] = ()
    group: str = "/"
    variables: Collection[str] | None = None
    positions: Mapping[str, int | slice] = field(default_factory=dict)
    labeled: Collection[str] = ()

    def included(self) -> tuple[dict[str, Group], dict[str, Dimension], dict[str, Variable]]:
        """Return the groups, dimensions and variables to copy, keyed by their paths in the source.

        If `variables` is not None, unused dimensions and empty groups are left out. Dimensions from
        outside `group` come last.

        Raises
        ------
        NotFoundError
            If a group, variable or dimension is unknown.
        ConflictError
            If the labels of a dimension would also apply to a dimension of the same name in another
            group.
        """
        groups = {group.path: group for group in self.root.walk()}
        if self.group not in groups:
            raise unknown("group", self.group, groups.keys() - {"/"})
        defined = [item for group in groups.values() for item in group.dimensions.values()]
        names = {item.name for item in defined}
        for name in self.positions:
            if name not in names | {item.path for item in defined}:
                raise unknown("dimension", name, names)
        groups = {group.path: group for group in groups[self.group].walk()}
        variables = {item.path: item for item in self.root.all_variables()}
        wanted = self._wanted(variables)
        variables = {path: item for path, item in variables.items() if path in wanted}
        used = {item.path: item for variable in variables.values() for item in variable.dimensions}
        dimensions = {
            item.path: item
            for item in defined
            if item.group in groups and (self.variables is None or item.path in used)
        }
        if self.variables is not None:
            holders = {self.group, *map(parent_path, variables | dimensions)}
            kept = {path for holder in holders for path in paths_above(holder)}
            groups = {path: group for path, group in groups.items() if path in kept}
        self._check_labels({item.path for item in defined}, dimensions | used)
        return groups, dimensions | used, variables

    def _check_labels(self, defined: Collection[str], copied: Mapping[str, Dimension]) -> None:
        """Raise ConflictError if a label would also apply to a dimension of another group.

        Such a dimension has the same name as the dimension to which the label belongs.
        """
        for name in self.labeled:
            visible = [child_path(group, name) for group in paths_above(self.group)]
            own = next((path for path in visible if path in defined), None)
            for path, dimension in copied.items():
                if dimension.name == name and path != own and path not in self.positions:
                    raise ConflictError(
                        f"the labels of dimension {quote(own)} do not apply to {quote(path)}",
                        remedy="Pass positions, or select from one group at a time",
                    )

    def check(self) -> None:
        """Raise NotFoundError if a part of the selection does not exist in the source."""
        _, dimensions, _ = self.included()
        for dimension in dimensions.values():
            self._slice(dimension)

    def _wanted(self, variables: Mapping[str, Variable]) -> set[str]:
        """Return the paths of the variables to copy."""
        below = {path for path in variables if is_within(path, self.group)}
        wanted = chosen_paths(self.variables, below, "variable")
        if self.variables is not None:
            wanted |= {name for path in wanted for name in _coordinates(variables[path], below)}
            used = {dim.path for path in wanted for dim in variables[path].dimensions}
            wanted |= used & below  # a coordinate variable has the same path as its dimension
        return wanted

    def values_of(self, variable: Variable) -> ExplicitlyIndexed:
        """Return the selected values of a variable, without decoding them."""
        values = self.stored_values(variable)
        slices = tuple(map(self._slice, variable.dimensions))
        if all(item == slice(None) for item in slices):
            return values
        selected: ExplicitlyIndexed = values[BasicIndexer(slices)]  # type: ignore[index]
        return selected

    def copied_path(self, path: str) -> str:
        """Convert a path in the source to a path in the copy.

        If the path is outside the group to copy, return ``"/"``.
        """
        return "/" + path[len(self.group) :].lstrip("/") if is_within(path, self.group) else "/"

    def copied_dimension(self, dimension: Dimension) -> Dimension:
        """Return the dimension of the copy that corresponds to a dimension of the source.

        Raises
        ------
        NotFoundError
            If a selected position is out of bounds.
        """
        size = len(range(dimension.size)[self._slice(dimension)])
        path = child_path(self.copied_path(dimension.group), dimension.name)
        return replace(dimension, path=path, size=size)

    def _slice(self, dimension: Dimension) -> slice:
        position = self.positions.get(dimension.name, slice(None))
        position = self.positions.get(dimension.path, position)
        if not isinstance(position, slice):
            check_position(position, dimension.name, dimension.size, NotFoundError)
            start = position % dimension.size
            position = slice(start, start + 1)
        every = range(dimension.size)
        return slice(None) if every[position] == every else position


def _coordinates(variable: Variable, paths: set[str]) -> Iterator[str]:
    """Yield the members of `paths` to which the ``coordinates`` attribute of a variable refers."""
    names = variable.attributes.get("coordinates")
    for name in names.split() if isinstance(names, str) else ():
        # As CF specifies, search the group of the variable, then the ancestors of the group.
        group = variable.path
        while group != "/":
            group = parent_path(group)
            path = name if name.startswith("/") else child_path(group, name)
            if path in paths:
                yield path
                break


@contextmanager
def open_source(
    source: Any,
    engine: str | None,
    options: OpenOptions,
    *,
    group: str | None,
    variables: Collection[str] | None,
    select: Mapping[str, Any] | None,
    netcdf_types: bool,
) -> Iterator[Source]:
    """Open the source of a copy, and close it when the context exits.

    If `select` contains labels, the values of coordinates are read. No other values are read.

    Parameters
    ----------
    options
        Options for opening the source. Engines other than ``"nczarr"`` use only
        ``options.storage_options``.
    group, variables, select
        The part to copy; see `Source` and `positions_of`.
    netcdf_types
        Whether to convert attributes to the types that netCDF-C returns for them. If False, JSON
        attributes stay JSON.

    Raises
    ------
    NotFoundError
        If the engine or a part of the selection does not exist.
    UnsupportedError
        If no engine for netCDF files is installed.
    """
    if isinstance(source, str | os.PathLike):
        source = os.path.expanduser(source)
    if engine is None and not is_netcdf_file(source):
        engine = "nczarr"
    root = group_path(group)
    with ExitStack() as stack:
        if engine == "nczarr":
            opened = open_netcdf(source, options)
            positions = positions_of(
                select or {}, lambda: build_dataset(opened, opened.group(group), LABELS)
            )
            root = group_path(f"{opened.target_group}/{root}")
            whole = _source_in_store(opened, netcdf_types=netcdf_types)
        else:
            path, filesystem = os.fspath(source), options.storage_options
            keywords: dict[str, Any] = {"storage_options": filesystem} if filesystem else {}
            whole = _source_in_file(stack, path, engine, keywords)
            keywords |= {"group": group} if group else {}
            open_labels = partial(
                xr.open_dataset, path, engine=engine, decode_timedelta=False, **keywords
            )
            positions = positions_of(select or {}, open_labels)
        labeled = [name for name, item in (select or {}).items() if is_label(item)]
        selected = replace(
            whole, group=root, variables=variables, positions=positions, labeled=labeled
        )
        selected.check()
        yield selected


def _source_in_store(opened: OpenedStore, *, netcdf_types: bool) -> Source:
    def stored_values(variable: Variable) -> ExplicitlyIndexed:
        node = variable.readable_node
        check_codec(node)
        store = opened.store.narrowed(node.chunk_keys)  # so that little is pickled for dask workers
        stored = ChunkedArray(node, store, opened.options.reading)
        return SelectedArray(LazyArray(stored, node.dtype, variable.shape))

    convert = with_inferred_types if netcdf_types else undecoded
    for group in opened.root.walk():
        if group.error is not None:
            raise group.error.add_context(store=opened.store.name)
        holders: list[Group | Variable] = [group, *group.variables.values()]
        for holder in holders:
            node = opened.hierarchy.nodes.get(holder.path)
            holder.attributes = convert(holder.attributes, node)
    store = opened.store
    return Source(
        root=opened.root, stored_values=stored_values, store=store, state=store.fingerprint
    )


def _source_in_file(
    stack: ExitStack, path: str, engine: str | None, options: Mapping[str, Any]
) -> Source:
    """Open a file that stays open until `stack` is closed."""
    unsupported: list[tuple[str, str]] = []
    values: Mapping[str, ExplicitlyIndexed]
    if engine is None and find_spec("netCDF4") is not None:
        file = NetcdfFile(stack.enter_context(closing(Handle(path))))
        root, values, unsupported = file.root, file.values, file.unsupported
    else:
        datasets = open_datasets(path, engine, **options)
        for dataset in datasets.values():
            stack.enter_context(dataset)
        root, values = netcdf_tree(datasets)
    return Source(
        root=root,
        stored_values=lambda variable: values[variable.path],
        store=LocalStore(path),
        state=lambda: file_fingerprint(path) if os.path.isfile(path) else None,
        unsupported=unsupported,
    )


def is_netcdf_file(source: Any) -> bool:
    """Return whether `source` is the path to a local file with a netCDF or HDF5 signature."""
    if not isinstance(source, str | os.PathLike) or not os.path.isfile(source):
        return False
    with suppress(PermissionError), open(source, "rb") as file:
        return file.read(4) in _SIGNATURES
    return False  # the file is then opened as a store, which raises an error


def open_datasets(path: str, engine: str | None, **options: Any) -> dict[str, xr.Dataset]:
    """Open a file with an xarray engine, and return a dataset for each group, keyed by path.

    If `engine` is None, xarray chooses the engine. Engines without support for groups open only the
    root group.
    """
    engines = xr.backends.list_engines()
    if engine is None:
        try:
            engine = str(xr.backends.plugins.guess_engine(path))
        except ValueError as error:
            raise UnsupportedError(
                "the source is a netCDF file, but the netCDF4 package is not installed",
                remedy="Install netCDF4 or xr-nczarr[netcdf]",
                store=path,
            ) from error
    if engine not in engines:
        raise unknown("engine", engine, engines)
    # An engine that supports groups overrides open_groups_as_dict, and needs all options in
    # AS_STORED. The attribute `supports_groups` cannot be used, because xarray 2025.7 lacks it.
    unsupported = xr.backends.BackendEntrypoint.open_groups_as_dict
    if type(engines[engine]).open_groups_as_dict is not unsupported:
        return dict(xr.open_groups(path, engine=engine, **AS_STORED, **options))
    return {"/": xr.open_dataset(path, engine=engine, decode_cf=False, **options)}


def netcdf_tree(
    datasets: Mapping[str, xr.Dataset],
) -> tuple[Group, dict[str, ExplicitlyIndexed]]:
    """Convert the datasets of all groups to a netCDF tree.

    The datasets are keyed by path, and must have been opened without decoding. Return the root
    group of the tree, and the values of all variables, keyed by path. If a variable cannot be
    copied, `Variable.error` contains the reason.
    """
    tree, values = Tree(Layout()), {}
    for path, dataset in datasets.items():
        group = tree.group(path)
        group.attributes = user_attributes(dataset.attrs)
        unlimited = unlimited_dimensions(dataset, None, required=False)
        visible = {
            dim: tree.dimension(group, str(dim), size, str(dim) in unlimited)
            for dim, size in dataset.sizes.items()
        }
        for key, variable in dataset.variables.items():
            dimensions = tuple([visible[dim] for dim in variable.dims])
            item = Variable(path=child_path(path, str(key)), dimensions=dimensions)
            try:
                _describe(variable, item)
            except NczarrError as error:
                item.error = error
            group.variables[item.name] = item
            values[item.path] = as_indexable(variable._data)
    return tree.root, values


def _describe(variable: xr.Variable, item: Variable) -> None:
    """Copy the metadata of an xarray variable to the netCDF variable `item`."""
    encoding, shape = variable.encoding, variable.shape
    is_string = is_unicode_dtype(variable.dtype)
    dtype = np.dtype(object) if is_string or variable.dtype.kind == "O" else variable.dtype
    item.kind = "string" if is_string else "number" if dtype in DTYPE_NAMES else "other"
    item.attributes = user_attributes(variable.attrs | digit_attribute(encoding), variable.dims)
    if "_FillValue" in item.attributes:
        item.attributes["_FillValue"] = fill_scalar(item.attributes["_FillValue"], dtype)
    fill_value = item.attributes.get("_FillValue", default_fill(dtype))
    if encoding.get("fill_value") is not None:  # in Zarr v3, this is independent of `_FillValue`
        fill_value = fill_scalar(encoding["fill_value"], dtype)
    is_long = len(shape) == 1 and item.dimensions[0].unlimited
    choose_chunk = partial(chunk_shape, shape=shape, dtype=dtype, blocks=None, allow_longer=is_long)
    chunk, shards = choose_chunk(None), None
    codecs: tuple[CodecSpec, ...] = ()
    try:
        requested = requested_codecs(encoding, DEFAULT_FORMAT, shuffles=True)
        codecs = codec_specs(requested, dtype.itemsize, DEFAULT_FORMAT)
        chunks, shards = requested_shapes(encoding, shape, characters=False)
        chunk = choose_chunk(chunks)
    except (NczarrError, TypeError, ValueError) as error:
        _log.warning("%s: ignoring invalid chunks or codecs in the encoding: %s", item.path, error)
    item.node = ArrayNode(
        path=item.path,
        shape=shape,
        dtype=dtype,
        chunk_shape=chunk,
        fill_value=fill_value,
        codecs=codecs,
        chunk_keys=ChunkKeys("", "", ""),
        shards=shard_specs(shards, chunk, shape, required=False),
    )
