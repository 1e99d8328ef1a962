"""Open the source of an exact copy.

The source is a store, a netCDF file, or any other file that xarray can open.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
import xarray as xr
from xarray.coding.strings import is_unicode_dtype
from xarray.core.indexing import ExplicitlyIndexed, as_indexable

from xr_nczarr.backend.building import build_dataset
from xr_nczarr.backend.entrypoint import AS_STORED, LABELS
from xr_nczarr.backend.lazy import LazyArray, SelectedArray
from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.codecs import check_codec
from xr_nczarr.copying.netcdf_c import Handle
from xr_nczarr.copying.netcdf_input import NetcdfFile
from xr_nczarr.copying.source import Source, Subset
from xr_nczarr.dataset import OpenedStore, open_netcdf
from xr_nczarr.encoding.array_nodes import chunk_shape, requested_shapes, shard_specs
from xr_nczarr.encoding.encoding_keys import codec_specs, requested_codecs
from xr_nczarr.encoding.names import user_attributes
from xr_nczarr.encoding.quantize import digit_attribute
from xr_nczarr.encoding.variables import fill_scalar
from xr_nczarr.errors import NczarrError, UnsupportedError, unknown
from xr_nczarr.model import ArrayNode, ChunkKeys, CodecSpec, child_path, group_path
from xr_nczarr.netcdf import Group, Layout, Variable
from xr_nczarr.netcdf.attributes import undecoded, with_inferred_types
from xr_nczarr.netcdf.layouts import DEFAULT_FORMAT
from xr_nczarr.netcdf.types import DTYPE_NAMES, default_fill
from xr_nczarr.options import OpenOptions
from xr_nczarr.storage import LocalStore, file_fingerprint
from xr_nczarr.tools.lookup import positions_of
from xr_nczarr.writing.builder import Tree
from xr_nczarr.writing.write_request import unlimited_dimensions

_log = logging.getLogger(__name__)
_SIGNATURES = (b"CDF\x01", b"CDF\x02", b"CDF\x05", b"\x89HDF")


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
        The part to copy; see `Subset` and `positions_of`.
    netcdf_types
        Whether to convert attributes to the types that netCDF-C returns for them. If False, JSON
        attributes stay JSON.

    Raises
    ------
    NotFoundError
        If the engine or the requested part of the source does not exist.
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
            labeled = partial(
                xr.open_dataset, path, engine=engine, decode_timedelta=False, **keywords
            )
            positions = positions_of(select or {}, labeled)
        yield Subset(group=root, variables=variables, positions=positions).of(whole)


def _source_in_store(opened: OpenedStore, *, netcdf_types: bool) -> Source:
    def values_of(variable: Variable) -> ExplicitlyIndexed:
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
    return Source(root=opened.root, values_of=values_of, store=store, state=store.fingerprint)


def _source_in_file(
    stack: ExitStack, path: str, engine: str | None, options: Mapping[str, Any]
) -> Source:
    """Open a file, and register it with `stack`, which will close it.

    If `engine` is None and netCDF4 is installed, the file is read with netCDF-C. Otherwise, it is
    opened with an xarray engine.
    """
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
        values_of=lambda variable: values[variable.path],
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
    """Open all groups of a file with an xarray engine.

    If `engine` is None, xarray chooses the engine.
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
    """Convert datasets to a netCDF tree.

    `datasets` maps the path of each group to its dataset, which must have been opened without
    decoding. Return two values: the root group of the tree, and a mapping from the path of each
    variable to its values. If a variable in the tree cannot be copied, `Variable.error` contains
    the reason.
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
    """Set the attributes, the type and the array node of `item` to match an xarray variable.

    `item` is the corresponding variable of the netCDF tree.
    """
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
