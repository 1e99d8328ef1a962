"""Open files with an xarray engine, and describe their contents as a netCDF tree."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from xarray.coding.strings import is_unicode_dtype
from xarray.core.indexing import ExplicitlyIndexed, as_indexable

from xr_nczarr.backend.entrypoint import AS_STORED
from xr_nczarr.encoding.array_nodes import chunk_shape, requested_shapes, shard_specs
from xr_nczarr.encoding.encoding_keys import codec_specs, requested_codecs
from xr_nczarr.encoding.names import user_attributes
from xr_nczarr.encoding.quantize import digit_attribute
from xr_nczarr.encoding.variables import fill_scalar
from xr_nczarr.errors import NczarrError, UnsupportedError, unknown
from xr_nczarr.model import ArrayNode, ChunkKeys, CodecSpec, child_path
from xr_nczarr.netcdf import Group, Layout, Variable
from xr_nczarr.netcdf.layouts import DEFAULT_FORMAT
from xr_nczarr.netcdf.types import DTYPE_NAMES, default_fill
from xr_nczarr.writing.builder import Tree
from xr_nczarr.writing.write_request import unlimited_dimensions

_log = logging.getLogger(__name__)


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
    options: dict[str, Any] = {
        "blocks": None,
        "allow_longer": len(shape) == 1 and item.dimensions[0].unlimited,
    }
    chunk, shards = chunk_shape(None, shape, dtype, **options), None
    codecs: tuple[CodecSpec, ...] = ()
    try:
        requested = requested_codecs(encoding, DEFAULT_FORMAT, shuffles=True)
        codecs = codec_specs(requested, dtype.itemsize, DEFAULT_FORMAT)
        chunks, shards = requested_shapes(encoding, shape, characters=False)
        chunk = chunk_shape(chunks, shape, dtype, **options)
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
