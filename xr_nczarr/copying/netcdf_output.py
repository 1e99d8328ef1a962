"""Write exact copies of netCDF groups to netCDF-4 files, through netCDF-C."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any
from unicodedata import normalize

import numpy as np

from xr_nczarr.copying import netcdf_c
from xr_nczarr.copying.transfer import rearranged
from xr_nczarr.errors import ErrorContext, UnsupportedError, quote
from xr_nczarr.locks import InFlight
from xr_nczarr.model import Attributes
from xr_nczarr.netcdf import Group, Layout, Variable
from xr_nczarr.netcdf.attributes import decode_attributes, encode_attribute
from xr_nczarr.netcdf.types import decode_strings, encoded_items
from xr_nczarr.progress import Progress
from xr_nczarr.tools.hdf5_filters import BLOSC, DEFLATE, FLETCHER32, SHUFFLE, filter_of
from xr_nczarr.tools.readers import is_netcdf_name
from xr_nczarr.tools.results import count_text
from xr_nczarr.writing.builder import Tree
from xr_nczarr.writing.chunk_writes import ArrayWrite, store_values

_IMPLIED = ("bytes", "transpose", "vlen-utf8")
_TYPES = {np.dtype(name): number for number, name in netcdf_c.DTYPES.items()}
# Attributes in which netCDF-C stores dimensions and properties of the file.
_RESERVED = (
    "CLASS",
    "NAME",
    "DIMENSION_LIST",
    "REFERENCE_LIST",
    "_Netcdf4Coordinates",
    "_Netcdf4Dimid",
    "_nc3_strict",
    "_Format",
    "_IsNetcdf4",
    "_SuperblockVersion",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLayout(Layout):
    """The layout of netCDF-4 files.

    This layout supports the same types as NCZarr, except that strings have variable length.
    """

    dialect: str = "netCDF-4"

    @property
    def has_vlen_strings(self) -> bool:
        """Whether strings have variable length if no fixed width is requested. Always True."""
        return True


def inexpressible_sizes(root: Group) -> list[str]:
    """Return a description of each dimension whose size a netCDF-4 file cannot represent.

    In a netCDF-4 file, the size of an unlimited dimension is determined by the values written along
    it. If no values are written, the size is lost. A fixed dimension cannot have size 0, because 0
    means unlimited.
    """
    written: set[str] = set()
    for variable in root.all_variables():
        if 0 not in variable.shape:
            written |= {dimension.path for dimension in variable.dimensions}
    dimensions = [item for group in root.walk() for item in group.dimensions.values()]
    return [
        f"that {quote(item.path)} is {'unlimited' if item.unlimited else 'fixed'} "
        f"with {count_text(item.size, 'element')}"
        for item in dimensions
        if (item.unlimited and item.size and item.path not in written)
        or not (item.unlimited or item.size)
    ]


def remove_rejected_attributes(root: Group) -> list[str]:
    """Remove attributes whose names netCDF-C rejects, and return their descriptions."""
    descriptions = []
    for group in root.walk():
        holders: list[Group | Variable] = [group, *group.variables.values()]
        for holder in holders:
            for name in [*holder.attributes]:
                if name in _RESERVED or not is_netcdf_name(normalize("NFC", name)):
                    del holder.attributes[name]
                    where = f"the attribute {quote(name)} of {quote(holder.path)}"
                    descriptions.append(f"{where} (netCDF-C rejects this attribute name)")
    return descriptions


def write_file(tree: Tree, path: str, *, progress: bool) -> None:
    """Write a tree and the values of its variables to a new file, and flush the file to disk.

    Raises
    ------
    StorageError
        If netCDF-C cannot write the file.
    """
    handle = netcdf_c.Handle(path, create=True)
    with ExitStack() as on_error:
        on_error.callback(handle.close)
        writer = _FileWriter(handle, tree)
        # After an error, dask's threads continue to write. They must end before the file is closed,
        # because netCDF-C reuses the identifiers of closed files.
        on_error.callback(writer.in_flight.end)
        with netcdf_c.LOCK:
            writer.define(tree.root, handle.group("/"))
        tree.report_changes()
        total = sum(encoded.data.nbytes for encoded in tree.written.values())
        with Progress(progress, total) as bar:
            for variable in tree.root.all_variables():
                data = tree.written[variable.path].data
                whole = tuple([slice(0, size) for size in data.shape])
                for part in rearranged(ArrayWrite(variable.array_node, whole, data)):
                    with ErrorContext(variable=variable.path):
                        store_values([part], [writer.variables[variable.path]], scheduler="threads")
                    bar.advance(part.data.nbytes)
        on_error.pop_all()
    handle.close()
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


@dataclass(slots=True)
class _FileWriter:
    """A writer that defines the groups, dimensions, variables and attributes of a new file."""

    handle: netcdf_c.Handle
    tree: Tree
    # The dimensions (as identifiers of netCDF-C) and variables defined so far, keyed by path.
    dimensions: dict[str, int] = field(default_factory=dict)
    variables: dict[str, StoredVariable] = field(default_factory=dict)
    in_flight: InFlight = field(default_factory=InFlight)

    def define(self, group: Group, ncid: int) -> None:
        new = self.handle.integer
        for dimension in group.dimensions.values():
            length = ctypes.c_size_t(0 if dimension.unlimited else dimension.size)
            with ErrorContext(place=f"dimension {dimension.path}"):
                number = new("nc_def_dim", ncid, os.fsencode(dimension.name), length)
            self.dimensions[dimension.path] = number
        self._put_attributes(ncid, netcdf_c.GLOBAL, group.attributes)
        for variable in group.variables.values():
            with ErrorContext(variable=variable.path):
                self._define_variable(variable, ncid)
        for name, child in group.groups.items():
            self.define(child, new("nc_def_grp", ncid, os.fsencode(name)))

    def _define_variable(self, variable: Variable, ncid: int) -> None:
        node, rank = variable.array_node, len(variable.dimensions)
        dimids = [self.dimensions[dimension.path] for dimension in variable.dimensions]
        xtype = netcdf_c.STRING
        if variable.kind != "string":
            xtype = _TYPES[node.dtype.newbyteorder("=")]
        name, shape = os.fsencode(variable.name), (ctypes.c_int * rank)(*dimids)
        varid = self.handle.integer("nc_def_var", ncid, name, xtype, rank, shape)
        place = (ncid, varid)
        if rank:
            # netCDF does not allow a chunk to be longer than a fixed dimension.
            lengths = [
                size if dimension.unlimited else min(size, max(1, dimension.size))
                for size, dimension in zip(node.chunk_shape, variable.dimensions, strict=True)
            ]
            sizes = (ctypes.c_size_t * rank)(*lengths)
            self.handle.call("nc_def_var_chunking", *place, netcdf_c.CHUNKED, sizes)
            self._define_filters(variable, place)
        if xtype not in (netcdf_c.CHAR, netcdf_c.STRING) and node.dtype.itemsize > 1:
            order = netcdf_c.BIG_ENDIAN if node.dtype.byteorder == ">" else netcdf_c.LITTLE_ENDIAN
            self.handle.call("nc_def_var_endian", *place, order)
        if node.fill_value is None and xtype != netcdf_c.STRING:
            self.handle.call("nc_def_var_fill", *place, 1, None)
        attributes = dict(variable.attributes)
        fill = attributes.get("_FillValue")
        if isinstance(fill, bytes | str):
            text = netcdf_c.text_of(fill) if isinstance(fill, bytes) else fill
            attributes["_FillValue"] = [text] if xtype == netcdf_c.STRING else text or "\0"
        self._put_attributes(ncid, varid, attributes)
        self.variables[variable.path] = StoredVariable(self.handle, *place, xtype, self.in_flight)

    def _define_filters(self, variable: Variable, place: tuple[int, int]) -> None:
        call, node = self.handle.call, variable.array_node
        filters = {}
        for spec in node.codecs:
            settings = filter_of(spec, node)
            if settings is not None and self._can_use(settings[0]):
                filters[settings[0]] = settings[1:]
            elif spec.name not in _IMPLIED:
                problem = f"netCDF does not support the filter {quote(spec.name)}"
                if self.tree.written[variable.path].explicit:
                    remedy = "Use the zlib filter, with or without shuffle"
                    raise UnsupportedError(problem, remedy=remedy)
                self.tree.dropped.append(f"{variable.path} ({problem})")
        if DEFLATE in filters or SHUFFLE in filters:
            (level,) = filters.get(DEFLATE, (0,))
            call("nc_def_var_deflate", *place, int(SHUFFLE in filters), int(level > 0), level)
        if FLETCHER32 in filters:
            call("nc_def_var_fletcher32", *place, 1)
        for number in filters.keys() - {DEFLATE, SHUFFLE, FLETCHER32}:
            settings = filters[number]
            count, array = ctypes.c_size_t(len(settings)), (ctypes.c_uint * len(settings))
            call("nc_def_var_filter", *place, ctypes.c_uint(number), count, array(*settings))

    def _can_use(self, number: int) -> bool:
        if number in (SHUFFLE, FLETCHER32):
            return True
        # The Blosc filter is not used, because it fails for chunks that cannot be compressed.
        function, identifier = "nc_inq_filter_avail", ctypes.c_uint(number)
        return number != BLOSC and self.handle.status(function, self.handle.ncid, identifier) == 0

    def _put_attributes(self, ncid: int, varid: int, attributes: Mapping[str, Any]) -> None:
        for name, value in attributes.items():
            with ErrorContext(place=f"attribute {name}"):
                value = netcdf_value(value)
                if isinstance(value, list):
                    xtype, count, data = netcdf_c.STRING, len(value), _strings(value)
                else:
                    if isinstance(value, str):
                        value = np.frombuffer(value.encode("utf-8", "surrogateescape"), "S1")
                    values = np.atleast_1d(value)
                    values = values.astype(values.dtype.newbyteorder("="))
                    data = ctypes.c_void_p(values.ctypes.data)
                    xtype, count = _TYPES[values.dtype], values.size
                place = (ncid, varid, os.fsencode(name), xtype)
                self.handle.call("nc_put_att", *place, ctypes.c_size_t(count), data)


@dataclass(frozen=True, slots=True)
class StoredVariable:
    """A variable in a file that is open for writing.

    Values that are assigned to a region of the variable are written to the file.
    """

    handle: netcdf_c.Handle
    ncid: int
    varid: int
    xtype: int
    in_flight: InFlight

    def __dask_tokenize__(self) -> tuple[str, int, int]:
        return self.handle.path, self.ncid, self.varid

    def __setitem__(self, region: tuple[slice, ...], values: Any) -> None:
        values = np.asarray(values)
        starts = (ctypes.c_size_t * values.ndim)(*[piece.start for piece in region])
        lengths = (ctypes.c_size_t * values.ndim)(*values.shape)
        data: Any
        if self.xtype == netcdf_c.STRING:
            texts = decode_strings(values) if values.dtype.kind == "S" else values
            data = _strings(texts.ravel().tolist())
        else:
            values = np.ascontiguousarray(values.astype(values.dtype.newbyteorder("="), copy=False))
            data = ctypes.c_void_p(values.ctypes.data)
        with self.in_flight, netcdf_c.LOCK:
            self.handle.call("nc_put_vara", self.ncid, self.varid, starts, lengths, data)


def netcdf_value(value: Any) -> Any:
    """Convert the value of an attribute to a type that netCDF supports.

    JSON values become text or numbers.
    """
    if isinstance(value, str | np.number) or (
        isinstance(value, list) and value == [*map(str, value)]
    ):
        return value
    json_value, kind = encode_attribute(value)
    return decode_attributes(Attributes({"value": json_value}), {"value": kind})["value"]


def _strings(texts: list[str]) -> Any:
    encoded = encoded_items(texts)
    return (ctypes.c_char_p * len(encoded))(*encoded)
