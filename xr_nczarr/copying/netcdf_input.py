"""Read netCDF files through netCDF-C, so that they can be copied exactly."""

from __future__ import annotations

import ctypes
import math
import os
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from xarray.backends import BackendArray
from xarray.core import indexing

from xr_nczarr.copying import netcdf_c
from xr_nczarr.encoding.array_nodes import chunk_shape
from xr_nczarr.errors import ErrorContext, UnsupportedError
from xr_nczarr.model import ArrayNode, ChunkKeys, CodecSpec, child_path, parent_path
from xr_nczarr.netcdf import Dimension, Group, Variable
from xr_nczarr.netcdf.annotations import is_bookkeeping
from xr_nczarr.netcdf.attributes import NO_STRINGS
from xr_nczarr.netcdf.data_model import Kind
from xr_nczarr.netcdf.types import default_fill
from xr_nczarr.tools.hdf5_filters import codec_of

Array = npt.NDArray[Any]

_CLASSES = {13: "vlen", 14: "opaque", 15: "enum", 16: "compound"}
_NETCDF_4 = (3, 4)


@dataclass(slots=True)
class NetcdfFile:
    """An open netCDF file, whose contents are described in terms of NCZarr's data model.

    Only metadata is read at first. Values are read when they are indexed.

    Attributes
    ----------
    handle
        The open file.
    root
        The root group, with its contents in the same order as in the file. Attributes that NCZarr
        cannot express are left out. Variables that NCZarr cannot express have an `error` and no
        values.
    values
        The lazily indexed values of each variable, keyed by path.
    unsupported
        Types, variables and attributes that NCZarr cannot express, as (path, description) tuples.
        An attribute has the path of its group or variable.

    Raises
    ------
    StorageError
        If netCDF-C cannot read the metadata.
    """

    handle: netcdf_c.Handle
    root: Group = field(init=False)
    values: dict[str, indexing.ExplicitlyIndexed] = field(default_factory=dict)
    unsupported: list[tuple[str, str]] = field(default_factory=list)
    # Maps netCDF-C's identifiers to the dimensions that have been read so far.
    _dimensions: dict[int, Dimension] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with netcdf_c.LOCK:
            self.root = self._group("/", self.handle.group("/"))

    def _group(self, path: str, ncid: int) -> Group:
        group = Group(path=path, dialect="netcdf")
        unlimited = self.handle.ids("nc_inq_unlimdims", ncid)
        for dimid in self.handle.ids("nc_inq_dimids", ncid, rest=(0,)):
            name = self.handle.name("nc_inq_dimname", ncid, dimid)
            size = self.handle.integer("nc_inq_dimlen", ncid, dimid, kind=ctypes.c_size_t)
            dimension = Dimension(name, child_path(path, name), size, dimid in unlimited)
            self._dimensions[dimid] = group.dimensions[name] = dimension
        for xtype in self.handle.ids("nc_inq_typeids", ncid):
            name = self._user_type(ncid, xtype)
            self.unsupported.append((child_path(path, name), f"the type {name} in {path}"))
        group.attributes = self._attributes(ncid, netcdf_c.GLOBAL, path, None)
        for varid in self.handle.ids("nc_inq_varids", ncid):
            self._add_variable(group, ncid, varid)
        for grpid in self.handle.ids("nc_inq_grps", ncid):
            name = self.handle.name("nc_inq_grpname", grpid)
            group.groups[name] = self._group(child_path(path, name), grpid)
        return group

    def _user_type(self, ncid: int, xtype: int) -> str:
        """Return the name of a user-defined type, followed by its class in parentheses."""
        name, kind = ctypes.create_string_buffer(netcdf_c.MAX_NAME + 1), ctypes.c_int()
        arguments = (None, None, None, ctypes.byref(kind))
        self.handle.call("nc_inq_user_type", ncid, xtype, name, *arguments)
        return f"{netcdf_c.text_of(name.value)} ({_CLASSES.get(kind.value, kind.value)})"

    def _add_variable(self, group: Group, ncid: int, varid: int) -> None:
        handle = self.handle
        name = handle.name("nc_inq_varname", ncid, varid)
        path = child_path(group.path, name)
        xtype = handle.integer("nc_inq_vartype", ncid, varid)
        if xtype > netcdf_c.STRING:
            description = f"the variable {path} of type {self._user_type(ncid, xtype)}"
            self.unsupported.append((path, description))
            error = UnsupportedError(f"NCZarr cannot express {description}")
            group.variables[name] = Variable(path=path, error=error)
            return
        dimids = (ctypes.c_int * handle.integer("nc_inq_varndims", ncid, varid))()
        handle.call("nc_inq_vardimid", ncid, varid, dimids)
        dimensions = tuple([self._dimensions[dimid] for dimid in dimids])
        dtype = np.dtype(netcdf_c.DTYPES.get(xtype, object))
        if self._is_big_endian(ncid, varid) and dtype.kind in "iuf":
            dtype = dtype.newbyteorder(">")
        variable = Variable(
            path=path,
            dimensions=dimensions,
            attributes=self._attributes(ncid, varid, path, dtype),
            kind=_KINDS.get(xtype, "number"),
        )
        variable.node = ArrayNode(
            path=path,
            shape=variable.shape,
            dtype=dtype,
            chunk_shape=self._chunks(ncid, varid, variable, dtype),
            fill_value=self._fill_value(ncid, varid, dtype),
            codecs=self._codecs(ncid, varid),
            chunk_keys=ChunkKeys("", "", ""),
        )
        group.variables[name] = variable
        self.values[path] = indexing.LazilyIndexedArray(NetcdfValues(handle, variable, varid))

    def _is_big_endian(self, ncid: int, varid: int) -> bool:
        if self.handle.integer("nc_inq_format", ncid) not in _NETCDF_4:
            return False  # the classic format has a fixed byte order
        return self.handle.integer("nc_inq_var_endian", ncid, varid) == netcdf_c.BIG_ENDIAN

    def _chunks(
        self, ncid: int, varid: int, variable: Variable, dtype: np.dtype[Any]
    ) -> tuple[int, ...]:
        """Return the chunk shape of a variable, or a default shape for a contiguous variable."""
        shape = variable.shape
        storage, sizes = ctypes.c_int(), (ctypes.c_size_t * len(shape))()
        self.handle.call("nc_inq_var_chunking", ncid, varid, ctypes.byref(storage), sizes)
        if storage.value == netcdf_c.CHUNKED:
            return tuple(sizes)
        allow_longer = len(shape) == 1 and variable.dimensions[0].unlimited
        return chunk_shape(None, shape, dtype, blocks=None, allow_longer=allow_longer)

    def _fill_value(self, ncid: int, varid: int, dtype: np.dtype[Any]) -> Any:
        """Return the value of elements that were never written, or None if it is undefined."""
        if dtype.hasobject:
            return ""
        undefined, fill = ctypes.c_int(), np.zeros(1, dtype.newbyteorder("="))
        pointer = ctypes.c_void_p(fill.ctypes.data)
        self.handle.call("nc_inq_var_fill", ncid, varid, ctypes.byref(undefined), pointer)
        return None if undefined.value else fill[0]

    def _codecs(self, ncid: int, varid: int) -> tuple[CodecSpec, ...]:
        types = (ctypes.c_size_t, ctypes.c_uint)
        specs = []
        for number in self.handle.ids("nc_inq_var_filter_ids", ncid, varid, types=types):
            place = (ncid, varid, ctypes.c_uint(number))
            settings = self.handle.ids("nc_inq_var_filter_info", *place, types=types)
            specs.append(codec_of(number, settings))
        return tuple(specs)

    def _attributes(
        self, ncid: int, varid: int, path: str, dtype: np.dtype[Any] | None
    ) -> dict[str, Any]:
        attributes = {}
        for number in range(self.handle.integer("nc_inq_varnatts", ncid, varid)):
            name = self.handle.name("nc_inq_attname", ncid, varid, number)
            place = (ncid, varid, os.fsencode(name))
            xtype, value, reason = self.handle.integer("nc_inq_atttype", *place), None, ""
            if xtype > netcdf_c.STRING:
                reason = f"of type {self._user_type(ncid, xtype)}"
            elif is_bookkeeping(name):
                reason = "(NCZarr reserves this attribute name)"
            else:
                value = self._attribute(place, xtype)
                if _UNFIT.search("".join(value) if isinstance(value, str | list) else ""):
                    reason = "(the value contains characters that netCDF-C cannot read from JSON)"
            if reason:
                self.unsupported.append((path, f"the attribute {name} of {path} {reason}"))
            elif name == "_FillValue" and dtype is not None:
                attributes[name] = _fill_scalar(value, dtype)
            else:
                attributes[name] = value
        return attributes

    def _attribute(self, place: tuple[int, int, bytes], xtype: int) -> Any:
        length = self.handle.integer("nc_inq_attlen", *place, kind=ctypes.c_size_t)
        if xtype == netcdf_c.STRING:
            return self.handle.strings(length, "nc_get_att", *place) or NO_STRINGS
        values = np.empty(length, netcdf_c.DTYPES[xtype])
        self.handle.call("nc_get_att", *place, ctypes.c_void_p(values.ctypes.data))
        if xtype == netcdf_c.CHAR:  # C programs may terminate text with NULs
            return netcdf_c.text_of(values.tobytes().rstrip(b"\0"))
        return values[0] if length == 1 else values


@dataclass(eq=False, repr=False)
class NetcdfValues(BackendArray):
    """The values of a variable in a netCDF file, which are read only when they are indexed.

    Attributes
    ----------
    unlimited
        The axes of the unlimited dimensions, in ascending order.
    """

    handle: netcdf_c.Handle
    variable: Variable
    varid: int

    def __post_init__(self) -> None:
        dimensions = enumerate(self.variable.dimensions)
        self.unlimited = [axis for axis, dimension in dimensions if dimension.unlimited]
        self.dtype, self.shape = self.variable.array_node.dtype, self.variable.shape

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Array:
        support = indexing.IndexingSupport.BASIC
        values = indexing.explicit_indexing_adapter(key, self.shape, support, self._read)
        return np.asarray(values, self.dtype)

    def _read(self, key: tuple[int | slice, ...]) -> Array:
        """Return the selected elements. The steps of slices in `key` must be positive."""
        starts, lengths, within = [], [], []
        for item, size in zip(key, self.shape, strict=True):
            positions = range(size)[item] if isinstance(item, slice) else range(item, item + 1)
            starts.append(positions.start)
            lengths.append(positions[-1] - positions[0] + 1 if positions else 0)
            within.append(slice(None, None, positions.step) if isinstance(item, slice) else 0)
        values = np.empty(lengths, self.dtype)
        if values.size:
            with netcdf_c.LOCK, ErrorContext(variable=self.variable.path):
                values = self._hyperslab(starts, lengths)
        selected: Array = values[tuple(within)]
        return selected

    def _hyperslab(self, starts: list[int], lengths: list[int]) -> Array:
        """Read a hyperslab, which can extend beyond the end of the variable."""
        # Along an unlimited dimension, a variable can be shorter than the dimension. netCDF-C then
        # misplaces the values of a hyperslab that extends beyond the end of the variable, with two
        # exceptions: hyperslabs of length 1 along all unlimited dimensions, and hyperslabs of
        # length 1 along all dimensions before the last unlimited one. All others are split.
        outer = range(max(self.unlimited, default=0))
        last = [start + length - 1 for start, length in zip(starts, lengths, strict=True)]
        if not outer or self._is_stored(last, [1] * len(last)):
            return self._part(starts, lengths)
        end, thin = starts.copy(), lengths.copy()
        for axis in self.unlimited:
            end[axis], thin[axis] = last[axis], 1
        if self._is_stored(end, thin):
            return self._part(starts, lengths)
        choices = (outer, self.unlimited)
        axes = min(choices, key=lambda axes: math.prod([lengths[axis] for axis in axes]))
        values = np.empty(lengths, self.dtype)
        for index in np.ndindex(*[lengths[axis] for axis in axes]):
            corner, sizes, within = starts.copy(), lengths.copy(), [slice(None)] * len(lengths)
            for axis, number in zip(axes, index, strict=True):
                corner[axis], sizes[axis] = starts[axis] + number, 1
                within[axis] = slice(number, number + 1)
            values[tuple(within)] = self._part(corner, sizes)
        return values

    def _is_stored(self, starts: list[int], lengths: list[int]) -> bool:
        """Return whether a hyperslab contains a value other than the fill value. False for strings.

        The hyperslab must have length 1 along all unlimited dimensions.
        """
        # A hyperslab without such a value might lie beyond the end of the variable.
        if self.dtype.hasobject:
            return False
        fill = self.variable.array_node.fill_value
        values = self._part(starts, lengths)
        is_fill = values == np.asarray(default_fill(self.dtype) if fill is None else fill)
        return bool(((values == values) & ~is_fill).any())

    def _part(self, starts: list[int], lengths: list[int]) -> Array:
        sizes = ctypes.c_size_t * len(lengths)
        group = self.handle.group(parent_path(self.variable.path))
        place = (group, self.varid, sizes(*starts), sizes(*lengths))
        if self.dtype.hasobject:
            texts = self.handle.strings(math.prod(lengths), "nc_get_vara", *place)
            return np.array(texts, object).reshape(lengths)
        # In the fill mode NoFill, netCDF-C does not set elements that were never written.
        native = np.zeros(lengths, self.dtype.newbyteorder("="))
        self.handle.call("nc_get_vara", *place, ctypes.c_void_p(native.ctypes.data))
        return native.astype(self.dtype, copy=False)


# Lone surrogates (from bytes that are not UTF-8), and characters that JSON escapes as \u.
_UNFIT = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\ud800-\udfff]")
_KINDS: dict[int, Kind] = {netcdf_c.CHAR: "char", netcdf_c.STRING: "string"}


def _fill_scalar(value: Any, dtype: np.dtype[Any]) -> Any:
    """Convert text in a ``_FillValue`` attribute to a scalar. Return other values unchanged."""
    if value is NO_STRINGS:
        return ""
    if isinstance(value, list):
        return value[0]
    is_character = dtype.kind == "S" and isinstance(value, str)
    return np.bytes_(value.encode("utf-8", "surrogateescape")) if is_character else value
