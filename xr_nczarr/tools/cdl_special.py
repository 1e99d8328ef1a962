"""Build the special attributes with which ``ncdump -s`` describes how values are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xr_nczarr.netcdf import Group, Variable
from xr_nczarr.netcdf.annotations import PROVENANCE, WIDTH
from xr_nczarr.tools.hdf5_filters import DEFLATE, FLETCHER32, SHUFFLE, filter_of

_OWN = {FLETCHER32: "_Fletcher32", SHUFFLE: "_Shuffle", DEFLATE: "_DeflateLevel"}
"""Mapping from HDF5 filters to the special attributes that describe them, in ncdump's order."""


def special_group_attributes(root: Group) -> dict[str, Any]:
    """Return the special attributes of the whole dataset, which ncdump shows in the root group."""
    stored = {} if root.node is None else root.node.attributes
    provenance = stored.get(PROVENANCE)
    special = {PROVENANCE: provenance} if isinstance(provenance, str) else {}
    return special | {"_Format": "netCDF-4"}


def special_attributes(variable: Variable) -> dict[str, Any]:
    """Return the special attributes that describe how the values of a variable are stored.

    If NCZarr stores a variable's strings with a fixed width, the attributes include that width,
    unless the variable already has an ordinary attribute for it.
    """
    node = variable.node
    assert node is not None
    special: dict[str, Any] = {}
    if variable.kind == "string" and node.dtype.kind == "S" and WIDTH not in variable.attributes:
        special[WIDTH] = _integers([node.dtype.itemsize])
    special["_Storage"] = "chunked" if variable.dimensions else "contiguous"
    if variable.dimensions:
        special["_ChunkSizes"] = _integers(node.chunk_shape)
    filters = [entry for spec in node.codecs if (entry := filter_of(spec, node)) is not None]
    settings = {number: parameters for number, *parameters in filters}
    for number, name in _OWN.items():
        if number in settings:
            special[name] = _integers(settings[number]) if settings[number] else "true"
    unnamed = [",".join(map(str, entry)) for entry in filters if entry[0] not in _OWN]
    if unnamed:
        special["_Filter"] = "|".join(unnamed)
    if variable.kind == "number" and node.dtype.itemsize > 1:
        special["_Endianness"] = "big" if node.dtype.byteorder == ">" else "little"
    if node.fill_value is None and variable.kind != "string":  # netCDF-C always fills strings
        special["_NoFill"] = "true"
    return special


def _integers(values: Sequence[int]) -> Any:
    """Convert integers to int32, as ncdump does, or to int64 if a value does not fit."""
    return np.array(values, "i4" if max(values) <= np.iinfo("i4").max else "i8")
