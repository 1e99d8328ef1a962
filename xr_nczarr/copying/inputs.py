"""Open the source of an exact copy.

The source is a store, a netCDF file, or any other file that xarray can open.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from importlib.util import find_spec
from typing import Any

import xarray as xr
from xarray.core.indexing import ExplicitlyIndexed

from xr_nczarr.backend.building import build_dataset
from xr_nczarr.backend.entrypoint import LABELS
from xr_nczarr.backend.lazy import LazyArray, SelectedArray
from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.codecs import check_codec
from xr_nczarr.copying.dataset_input import netcdf_tree, open_datasets
from xr_nczarr.copying.netcdf_c import Handle
from xr_nczarr.copying.netcdf_input import NetcdfFile
from xr_nczarr.copying.source import Source, Subset
from xr_nczarr.dataset import OpenedStore, open_netcdf
from xr_nczarr.model import group_path
from xr_nczarr.netcdf import Group, Variable
from xr_nczarr.netcdf.attributes import undecoded, with_inferred_types
from xr_nczarr.options import OpenOptions
from xr_nczarr.storage import LocalStore, file_fingerprint
from xr_nczarr.tools.lookup import positions_of

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
            positions = positions_of(select or {}, partial(_labeled_dataset, opened, group))
            root = group_path(f"{opened.target_group}/{root}")
            whole = _source_in_store(opened, netcdf_types=netcdf_types)
        else:
            path, filesystem = os.fspath(source), options.storage_options
            keywords: dict[str, Any] = {"storage_options": filesystem} if filesystem else {}
            named: dict[str, Any] = {"group": group} if group else {}
            labeled = partial(
                xr.open_dataset, path, engine=engine, decode_timedelta=False, **keywords, **named
            )
            positions = positions_of(select or {}, labeled)
            whole = _source_in_file(stack, path, engine, keywords)
        yield Subset(group=root, variables=variables, positions=positions).of(whole)


def _labeled_dataset(opened: OpenedStore, group: str | None) -> xr.Dataset:
    return build_dataset(opened, opened.group(group), LABELS)


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
    return Source(
        root=opened.root,
        values_of=values_of,
        store=opened.store,
        state=opened.store.fingerprint,
    )


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
    if not os.access(source, os.R_OK):  # the file is then opened as a store, which raises an error
        return False
    with open(source, "rb") as file:
        return file.read(4) in _SIGNATURES
