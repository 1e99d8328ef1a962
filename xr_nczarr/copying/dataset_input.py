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
from xr_nczarr.errors import ConflictError, NczarrError, UnsupportedError, unknown
from xr_nczarr.model import ArrayNode, ChunkKeys, CodecSpec, child_path
from xr_nczarr.netcdf import Dimension, Group, Variable
from xr_nczarr.netcdf.data_model import inherited_dimension
from xr_nczarr.netcdf.layouts import DEFAULT_FORMAT
from xr_nczarr.netcdf.types import DTYPE_NAMES, default_fill
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
    """Return the root of the netCDF tree that the datasets represent, and the values by path.

    `datasets` maps the paths of groups to their datasets, which were opened without decoding. If a
    variable cannot be copied, its `error` says why.
    """
    root = Group()
    values: dict[str, ExplicitlyIndexed] = {}
    for path, dataset in datasets.items():
        group = root
        for name in filter(None, path.split("/")):
            group = group.groups.setdefault(name, Group(path=child_path(group.path, name)))
        group.attributes = user_attributes(dataset.attrs)
        unlimited = unlimited_dimensions(dataset, None, required=False)
        visible = {}
        for dim, size in dataset.sizes.items():
            name = str(dim)
            # A dataset also contains the dimensions of its parent groups.
            dimension = inherited_dimension(name, size, path, root)
            if dimension is None:
                dimension = Dimension(name, child_path(path, name), size, name in unlimited)
                group.dimensions[name] = dimension
            visible[name] = dimension
        for key, variable in dataset.variables.items():
            dimensions = tuple([visible[str(dim)] for dim in variable.dims])
            item = Variable(path=child_path(path, str(key)), dimensions=dimensions)
            try:
                _describe(variable, item)
            except NczarrError as error:
                item.error = error
            group.variables[item.name] = item
            values[item.path] = as_indexable(variable._data)
    return root, values


def _describe(variable: xr.Variable, item: Variable) -> None:
    """Set the attributes, the type and the array node of `item` from an xarray variable."""
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
    allow_longer = len(shape) == 1 and item.dimensions[0].unlimited
    try:
        chunks, shards = requested_shapes(encoding, shape, characters=False)
        chunk = chunk_shape(chunks, shape, dtype, blocks=None, allow_longer=allow_longer)
    except (ConflictError, TypeError) as error:
        _log.warning("%s: the chunks in the encoding are ignored: %s", item.path, error)
        shards = None
        chunk = chunk_shape(None, shape, dtype, blocks=None, allow_longer=allow_longer)
    codecs: tuple[CodecSpec, ...] = ()
    try:
        requested = requested_codecs(encoding, DEFAULT_FORMAT, shuffles=True)
        codecs = codec_specs(requested, dtype.itemsize, DEFAULT_FORMAT)
    except (NczarrError, TypeError, ValueError) as error:
        _log.warning("%s: the codecs in the encoding are ignored: %s", item.path, error)
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
