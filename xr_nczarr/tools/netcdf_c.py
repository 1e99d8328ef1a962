"""netCDF files as netcdf-c itself describes them: the source of an exact copy.

The library that netCDF4-python brings along is asked directly. netCDF4-python does not tell
characters from strings in attributes, gives a variable the nearest of several dimensions of one
name (and cuts its values at that one's end), and leaves out variables whose type it does not know.
"""

from __future__ import annotations

import ctypes
import glob
import math
import os
import re
import sys
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt
from xarray.backends import BackendArray
from xarray.backends.locks import HDF5_LOCK, NETCDFC_LOCK, combine_locks
from xarray.core import indexing

from xr_nczarr.errors import Place, StorageError, UnsupportedError
from xr_nczarr.model import ArrayNode, ChunkKeys, CodecSpec, child_path
from xr_nczarr.netcdf import Dimension, Group, Variable
from xr_nczarr.netcdf.annotations import is_bookkeeping
from xr_nczarr.netcdf.data_model import Kind
from xr_nczarr.tools.hdf5_filters import codec_of
from xr_nczarr.writing.chunk_shapes import chunk_shape

Array = npt.NDArray[Any]

_DTYPES = dict(enumerate(["i1", "S1", "i2", "i4", "f4", "f8", "u1", "u2", "u4", "i8", "u8"], 1))
"""Number of an nc_type → NumPy's name of it."""
_CHAR, _STRING = 2, 12
_CLASSES = {13: "vlen", 14: "opaque", 15: "enum", 16: "compound"}
_GLOBAL, _CHUNKED, _BIG_ENDIAN, _NETCDF_4 = -1, 0, 2, (3, 4)
_MAX_NAME, _MAX_DIMENSIONS = 256, 1024
_LOCK = combine_locks([HDF5_LOCK, NETCDFC_LOCK])
"""The lock of xarray's own engines: no two threads may enter netcdf-c or HDF5."""


@dataclass(slots=True)
class NetcdfFile:
    """A file as NCZarr can hold it.

    Attributes
    ----------
    root
        Groups, dimensions, variables and attributes in the order of the file.
    values
        By path of the variable.
    unsupported
        A sentence for each type, variable and attribute that NCZarr has no type for.
    """

    handle: Handle
    root: Group = field(default_factory=Group)
    values: dict[str, Values] = field(default_factory=dict)
    unsupported: list[str] = field(default_factory=list)


def open_file(path: str) -> NetcdfFile:
    """Return what a netCDF file holds; values are read when they are indexed.

    Raises
    ------
    StorageError
        If netcdf-c cannot read the file.
    UnsupportedError
        If netCDF4-python does not give access to its netcdf-c.
    """
    handle = Handle(path)
    file = NetcdfFile(handle)
    with ExitStack() as on_error:
        on_error.callback(handle.close)
        with _LOCK:
            file.root = _Reader(handle, file, {}).group("/", handle.group("/"))
        on_error.pop_all()
    return file


@cache
def _library() -> ctypes.CDLL:
    # The extension module shows the symbols of what it is linked with.
    extension = str(import_module("netCDF4._netCDF4").__file__)
    wheel = os.path.join(os.path.dirname(extension), os.pardir, "netCDF4.libs", "*netcdf*.dll")
    conda = os.path.join(sys.prefix, "Library", "bin", "netcdf.dll")
    for path in (extension, *glob.glob(wheel), *glob.glob(conda)):
        with suppress(OSError):
            library = ctypes.CDLL(path)
            if hasattr(library, "nc_inq_att"):
                library.nc_strerror.restype = ctypes.c_char_p
                return library
    raise UnsupportedError(
        "netCDF4-python does not give access to its netcdf-c library",
        remedy="Copy through another engine: engine='h5netcdf' (--engine h5netcdf)",
    )


class Handle:
    """An open file; one that is unpickled is opened again, once in a process."""

    def __init__(self, path: str) -> None:
        self.path = path
        ncid = ctypes.c_int()
        with _LOCK:
            self.call("nc_open", os.fsencode(path), 0, ctypes.byref(ncid))
        self.ncid: int | None = ncid.value

    def __reduce__(self) -> tuple[Any, ...]:
        status = os.stat(self.path)
        return _reopened, (self.path, status.st_mtime_ns, status.st_size)

    def close(self) -> None:
        """Close the file, once."""
        ncid, self.ncid = self.ncid, None
        if ncid is not None:
            with _LOCK:
                _library().nc_close(ncid)

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function of netcdf-c; StorageError with its message if it fails."""
        library = _library()
        status = getattr(library, function)(*arguments)
        if status:
            reason = library.nc_strerror(status).decode()
            raise StorageError(
                f"netcdf-c cannot read it: {reason}",
                remedy="If another engine of xarray reads it, copy through that: "
                "engine='h5netcdf' (--engine h5netcdf)",
                store=self.path,
            )

    def integer(self, function: str, *arguments: Any) -> int:
        """Return the one integer that a function of netcdf-c gives."""
        result = ctypes.c_int()
        self.call(function, *arguments, ctypes.byref(result))
        return result.value

    def ids(self, function: str, group: int, *rest: Any) -> list[int]:
        """Return the identifiers that a function of netcdf-c lists."""
        count = ctypes.c_int()
        self.call(function, group, ctypes.byref(count), None, *rest)
        listed = (ctypes.c_int * count.value)()
        self.call(function, group, ctypes.byref(count), listed, *rest)
        return list(listed)

    def name(self, function: str, *arguments: Any) -> str:
        """Return the name that a function of netcdf-c gives."""
        name = ctypes.create_string_buffer(_MAX_NAME + 1)
        self.call(function, *arguments, name)
        return _text(name.value)

    def group(self, path: str) -> int:
        """Return the identifier of the group at an absolute path."""
        assert self.ncid is not None
        if path == "/":
            return self.ncid
        return self.integer("nc_inq_grp_full_ncid", self.ncid, os.fsencode(path))

    def strings(self, count: int, function: str, *arguments: Any) -> list[str]:
        """Return the strings that a function of netcdf-c allocates."""
        listed = (ctypes.c_char_p * count)()
        self.call(function, *arguments, listed)
        texts = [_text(text or b"") for text in listed]
        self.call("nc_free_string", ctypes.c_size_t(count), listed)
        return texts


@cache
def _reopened(path: str, *_: int) -> Handle:
    """Return the handle that this process has of a file in a state, to the end of the process.

    Closing it when nothing refers to it any more would need the lock at any time.
    """
    return Handle(path)


@dataclass(eq=False, repr=False)
class Values(BackendArray):
    """The values of a variable, read by selection."""

    handle: Handle
    group: str
    name: str
    varid: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Array:
        support = indexing.IndexingSupport.BASIC
        values = indexing.explicit_indexing_adapter(key, self.shape, support, self._read)
        return np.asarray(values, self.dtype)

    def _read(self, key: tuple[int | slice, ...]) -> Array:
        """Read the box that a selection lies in, and return the selection."""
        starts, lengths, within = [], [], []
        for item, size in zip(key, self.shape, strict=True):
            positions = range(size)[item] if isinstance(item, slice) else range(item, item + 1)
            first, last = (positions[0], positions[-1]) if positions else (0, -1)
            starts.append(min(first, last) if positions else 0)
            lengths.append(abs(last - first) + 1 if positions else 0)
            within.append(slice(None, None, positions.step) if isinstance(item, slice) else 0)
        values = np.empty(lengths, self.dtype)
        if values.size:
            with _LOCK, Place(variable=child_path(self.group, self.name)):
                values = self._box(starts, lengths)
        selected: Array = values[tuple(within)]
        return selected

    def _box(self, starts: list[int], lengths: list[int]) -> Array:
        sizes = ctypes.c_size_t * len(lengths)
        place = (self.handle.group(self.group), self.varid, sizes(*starts), sizes(*lengths))
        if self.dtype.hasobject:
            texts = self.handle.strings(math.prod(lengths), "nc_get_vara", *place)
            return np.array(texts, object).reshape(lengths)
        native = np.empty(lengths, self.dtype.newbyteorder("="))
        self.handle.call("nc_get_vara", *place, ctypes.c_void_p(native.ctypes.data))
        return native.astype(self.dtype, copy=False)


@dataclass(slots=True)
class _Reader:
    """The work of `open_file`; `dimensions` are all so far, by their identifiers."""

    handle: Handle
    file: NetcdfFile
    dimensions: dict[int, Dimension]

    def group(self, path: str, ncid: int) -> Group:
        """Return a group with all that is in it."""
        group = Group(path=path, dialect="netcdf")
        unlimited = self.handle.ids("nc_inq_unlimdims", ncid)
        for dimid in self.handle.ids("nc_inq_dimids", ncid, 0):
            length = ctypes.c_size_t()
            name = self.handle.name("nc_inq_dimname", ncid, dimid)
            self.handle.call("nc_inq_dimlen", ncid, dimid, ctypes.byref(length))
            dimension = Dimension(name, child_path(path, name), length.value, dimid in unlimited)
            self.dimensions[dimid] = group.dimensions[name] = dimension
        for xtype in self.handle.ids("nc_inq_typeids", ncid):
            self.file.unsupported.append(f"the type {self._user_type(ncid, xtype)} in {path}")
        natts = self.handle.integer("nc_inq_natts", ncid)
        group.attributes = self._attributes(ncid, _GLOBAL, natts, path, None)
        for varid in self.handle.ids("nc_inq_varids", ncid):
            self._add_variable(group, ncid, varid)
        for grpid in self.handle.ids("nc_inq_grps", ncid):
            name = self.handle.name("nc_inq_grpname", grpid)
            group.groups[name] = self.group(child_path(path, name), grpid)
        return group

    def _user_type(self, ncid: int, xtype: int) -> str:
        name, kind = ctypes.create_string_buffer(_MAX_NAME + 1), ctypes.c_int()
        arguments = (None, None, None, ctypes.byref(kind))
        self.handle.call("nc_inq_user_type", ncid, xtype, name, *arguments)
        return f"{_text(name.value)} ({_CLASSES.get(kind.value, kind.value)})"

    def _add_variable(self, group: Group, ncid: int, varid: int) -> None:
        handle = self.handle
        name = handle.name("nc_inq_varname", ncid, varid)
        path = child_path(group.path, name)
        ndims, natts = ctypes.c_int(), ctypes.c_int()
        xtype, dimids = ctypes.c_int(), (ctypes.c_int * _MAX_DIMENSIONS)()
        outputs = map(ctypes.byref, (xtype, ndims))
        handle.call("nc_inq_var", ncid, varid, None, *outputs, dimids, ctypes.byref(natts))
        if xtype.value > _STRING:
            spelled = self._user_type(ncid, xtype.value)
            self.file.unsupported.append(f"the variable {path} of type {spelled}")
            return
        dimensions = tuple([self.dimensions[dimid] for dimid in dimids[: ndims.value]])
        shape = tuple([dimension.size for dimension in dimensions])
        dtype = np.dtype(_DTYPES.get(xtype.value, object))
        if self._is_big_endian(ncid, varid) and dtype.kind in "iuf":
            dtype = dtype.newbyteorder(">")
        group.variables[name] = Variable(
            path=path,
            dimensions=dimensions,
            node=ArrayNode(
                path=path,
                shape=shape,
                dtype=dtype,
                chunk_shape=self._chunks(ncid, varid, dimensions, dtype),
                fill_value=self._fill_value(ncid, varid, dtype),
                codecs=self._codecs(ncid, varid),
                chunk_keys=ChunkKeys("", "", ""),
            ),
            attributes=self._attributes(ncid, varid, natts.value, path, dtype),
            kind=_KINDS.get(xtype.value, "number"),
        )
        self.file.values[path] = Values(handle, group.path, name, varid, dtype, shape)

    def _is_big_endian(self, ncid: int, varid: int) -> bool:
        if self.handle.integer("nc_inq_format", ncid) not in _NETCDF_4:
            return False  # the classic format has one byte order, which nobody chose
        return self.handle.integer("nc_inq_var_endian", ncid, varid) == _BIG_ENDIAN

    def _chunks(
        self, ncid: int, varid: int, dimensions: tuple[Dimension, ...], dtype: np.dtype[Any]
    ) -> tuple[int, ...]:
        """Return the shape of the chunks; of what has none, the one that writing chooses."""
        storage, sizes = ctypes.c_int(), (ctypes.c_size_t * max(1, len(dimensions)))()
        self.handle.call("nc_inq_var_chunking", ncid, varid, ctypes.byref(storage), sizes)
        if storage.value == _CHUNKED:
            return tuple(sizes[: len(dimensions)])
        shape = [dimension.size for dimension in dimensions]
        lengthened = len(dimensions) == 1 and dimensions[0].unlimited
        return chunk_shape({}, shape, dtype, blocks=None, lengthened=lengthened)

    def _fill_value(self, ncid: int, varid: int, dtype: np.dtype[Any]) -> Any:
        """Return what values that were never written read as; None if that is not defined."""
        if dtype.hasobject:
            return ""
        undefined, fill = ctypes.c_int(), np.zeros(1, dtype.newbyteorder("="))
        pointer = ctypes.c_void_p(fill.ctypes.data)
        self.handle.call("nc_inq_var_fill", ncid, varid, ctypes.byref(undefined), pointer)
        return None if undefined.value else fill[0]

    def _codecs(self, ncid: int, varid: int) -> tuple[CodecSpec, ...]:
        count = ctypes.c_size_t()
        self.handle.call("nc_inq_var_filter_ids", ncid, varid, ctypes.byref(count), None)
        filters = (ctypes.c_uint * count.value)()
        self.handle.call("nc_inq_var_filter_ids", ncid, varid, ctypes.byref(count), filters)
        return tuple([self._codec(ncid, varid, number) for number in filters])

    def _codec(self, ncid: int, varid: int, number: int) -> CodecSpec:
        count, identifier = ctypes.c_size_t(), ctypes.c_uint(number)
        place = (ncid, varid, identifier, ctypes.byref(count))
        self.handle.call("nc_inq_var_filter_info", *place, None)
        settings = (ctypes.c_uint * count.value)()
        self.handle.call("nc_inq_var_filter_info", *place, settings)
        return codec_of(number, list(settings))

    def _attributes(
        self, ncid: int, varid: int, count: int, path: str, dtype: np.dtype[Any] | None
    ) -> dict[str, Any]:
        attributes = {}
        for number in range(count):
            name = self.handle.name("nc_inq_attname", ncid, varid, number)
            where = f"the attribute {name} of {path}"
            xtype, length = ctypes.c_int(), ctypes.c_size_t()
            place = (ncid, varid, os.fsencode(name))
            self.handle.call("nc_inq_att", *place, ctypes.byref(xtype), ctypes.byref(length))
            if xtype.value > _STRING:
                spelled = self._user_type(ncid, xtype.value)
                self.file.unsupported.append(f"{where} of type {spelled}")
            elif is_bookkeeping(name):
                self.file.unsupported.append(f"{where}, whose name NCZarr uses itself")
            else:
                value = self._attribute(place, xtype.value, length.value)
                if _UNFIT.search("".join(value) if isinstance(value, str | list) else ""):
                    self.file.unsupported.append(f"{where}, {_UNFIT_REASON}")
                    continue
                if name == "_FillValue" and dtype is not None:
                    value = _fill_scalar(value, dtype)
                attributes[name] = value
        return attributes

    def _attribute(self, place: tuple[int, int, bytes], xtype: int, length: int) -> Any:
        if xtype == _STRING:
            return self.handle.strings(length, "nc_get_att", *place)
        values = np.empty(length, _DTYPES[xtype])
        self.handle.call("nc_get_att", *place, ctypes.c_void_p(values.ctypes.data))
        if xtype == _CHAR:  # what C programs end their texts with is no part of them
            return _text(values.tobytes().rstrip(b"\0"))
        return values[0] if length == 1 else values


# Bytes that are not UTF-8 (decoded to lone surrogates), and what JSON spells as \\u.
_UNFIT = re.compile(r"[\x00-\x07\x0b\x0e-\x1f\ud800-\udfff]")
_UNFIT_REASON = "which has bytes that netcdf-c does not read in JSON"
_KINDS: dict[int, Kind] = {_CHAR: "char", _STRING: "string"}


def _fill_scalar(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a `_FillValue` as a scalar of the variable's type."""
    if isinstance(value, list):
        return value[0] if value else ""
    return np.bytes_(value.encode("utf-8", "surrogateescape")) if dtype.kind == "S" else value


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
