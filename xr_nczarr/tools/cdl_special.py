"""The special attributes of ``ncdump -s``: how a variable's values are stored."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from xr_nczarr.model import ArrayNode, CodecSpec
from xr_nczarr.netcdf import Group, Variable
from xr_nczarr.netcdf.annotations import PROVENANCE, WIDTH

_FLAGS = {"fletcher32": "_Fletcher32", "shuffle": "_Shuffle"}
_DEFLATE = ("zlib", "gzip")
_HDF5_FILTERS = {"bz2": 307, "zstd": 32015, "blosc": 32001}
_BLOSC_COMPRESSORS = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")


def special_group_attributes(root: Group) -> dict[str, Any]:
    """Return the special attributes of a dataset."""
    stored = {} if root.node is None else root.node.attributes.values_by_name
    provenance = stored.get(PROVENANCE)
    return ({PROVENANCE: provenance} if isinstance(provenance, str) else {}) | {
        "_Format": "netCDF-4"
    }


def special_attributes(variable: Variable) -> dict[str, Any]:
    """Return the special attributes of a variable, and the width of its strings."""
    node = variable.node
    assert node is not None
    special: dict[str, Any] = {"_Storage": "chunked" if variable.dimensions else "contiguous"}
    if variable.kind == "string" and node.dtype.kind == "S" and WIDTH not in variable.attributes:
        special = {WIDTH: _integers([node.dtype.itemsize]), **special}
    if variable.dimensions:
        special["_ChunkSizes"] = _integers(node.chunk_shape)
    for name, attribute in _FLAGS.items():
        if any(spec.name == name for spec in node.codecs):
            special[attribute] = "true"
    for spec in node.codecs:
        if spec.name in _DEFLATE:
            special["_DeflateLevel"] = _integers([int(spec.configuration.get("level", 1))])
    filters = "|".join(_filters(node))
    if filters:
        special["_Filter"] = filters
    if variable.kind == "number" and node.dtype.itemsize > 1:
        special["_Endianness"] = "big" if node.dtype.byteorder == ">" else "little"
    if node.fill_value is None:
        special["_NoFill"] = "true"
    return special


def _integers(values: Sequence[int]) -> Any:
    """Return integers in the type that ncdump shows them in, unless they are too large for it."""
    return np.array(values, "i4" if max(values) <= np.iinfo("i4").max else "i8")


def _filters(node: ArrayNode) -> Iterator[str]:
    """Yield the codecs that HDF5 has a registered filter for, as numbers."""
    for spec in node.codecs:
        if spec.name in _HDF5_FILTERS:
            settings = (_HDF5_FILTERS[spec.name], *_settings(spec, node))
            yield ",".join(map(str, settings))


def _settings(spec: CodecSpec, node: ArrayNode) -> tuple[int, ...]:
    configuration = spec.configuration
    if spec.name != "blosc":
        return (int(configuration.get("level", 1)),)
    compressor = _BLOSC_COMPRESSORS.index(configuration.get("cname", "lz4"))
    level, shuffle = int(configuration.get("clevel", 5)), int(configuration.get("shuffle", 1))
    chunk_bytes = int(np.prod(node.chunk_shape)) * node.dtype.itemsize
    return (0, 0, node.dtype.itemsize, chunk_bytes, level, shuffle, compressor)
