"""Build the netCDF tree of a copy, changing only what the caller or the target layout requires."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xarray as xr

from xr_nczarr.backend.opened_encoding import chunk_lengths
from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.copying.source import Source
from xr_nczarr.encoding.blockwise import largest
from xr_nczarr.encoding.names import check_dimension, stored_name
from xr_nczarr.encoding.strings import string_data, unpadded
from xr_nczarr.encoding.time_units import in_encoded_unit
from xr_nczarr.encoding.variables import EncodedVariable, encode_alone, fill_scalar
from xr_nczarr.encoding.xarray_encoder import as_conflicts
from xr_nczarr.errors import ConflictError, ErrorContext, UnsupportedError, quote, unknown
from xr_nczarr.model import is_within
from xr_nczarr.netcdf import Dimension, Group, Layout, Variable
from xr_nczarr.netcdf.annotations import DEFAULT_WIDTH, WIDTH
from xr_nczarr.netcdf.attributes import is_fill_value, unlisted_strings
from xr_nczarr.netcdf.types import default_fill, measured_width
from xr_nczarr.writing.builder import Tree
from xr_nczarr.writing.lazy_sources import complete_array
from xr_nczarr.writing.source_blocks import in_chunks

_OBJECT = np.dtype(object)
_MASKED = {True: "biufcSUO", False: "biufc"}
"""The kinds of dtypes whose fill value can mask values, in plain Zarr (True) or NCZarr (False)."""
_SKIP = "Pass skip_unsupported=True to leave out whatever the target does not support"
_CORRECT_ATTRIBUTES = "Correct or remove the attributes of the variable in the source"
_MAX_NAMED = 5


@dataclass(slots=True, kw_only=True)
class CopiedTree(Tree):
    """The netCDF tree that a copy writes.

    Attributes
    ----------
    chunks
        Mapping from dimension names to chunk lengths in elements. Dimensions that are not in the
        mapping keep the chunk lengths of the source.
    codecs
        Numcodecs configurations in encoding order. If None, the codecs of the source are kept.
    skip_unsupported
        Whether to leave out everything that the target cannot express, instead of raising an error.
    skipped
        Descriptions of everything that was left out.
    arrays
        The source arrays that are copied completely, keyed by their paths in the copy.
    """

    chunks: Mapping[str, int] = field(default_factory=dict)
    codecs: Sequence[Mapping[str, Any]] | None = None
    skip_unsupported: bool = False
    skipped: list[str] = field(default_factory=list)
    arrays: dict[str, ChunkedArray] = field(default_factory=dict)

    def add_source(self, source: Source) -> None:
        """Add the groups and variables that a source includes.

        No values are read, except for strings whose maximum length is needed.

        Raises
        ------
        NotFoundError
            If a dimension in `chunks` or a part of the selection does not exist in the source.
        ConflictError
            If a chunk length is less than 1, or if the root would have two dimensions of the same
            name.
        UnsupportedError
            If the target cannot express a part of the source, and `skip_unsupported` is False.
        """
        groups, dimensions, variables = source.included()
        self._check_chunks({dimension.name for dimension in dimensions.values()})
        is_whole = source.variables is None
        unsupported = [
            description
            for path, description in source.unsupported
            if path in variables or path in groups or (is_whole and is_within(path, source.group))
        ]
        self.leave_out(unsupported)
        reported = {path for path, _ in source.unsupported}
        for path, group in groups.items():
            self.group(source.copied_path(path)).attributes.update(group.attributes)
        for dimension in dimensions.values():
            self._add_dimension(source, dimension)
        for path, group in groups.items():
            copied = self.group(source.copied_path(path))
            for variable in group.variables.values():
                is_reported = variable.error is not None and variable.path in reported
                if variable.path in variables and not is_reported:
                    self._add(source, copied, variable)
            self.check_single_array(copied.path, len(copied.variables), group.attributes)
            if self.layout.is_plain_zarr and group.dialect != "zarr":
                holders: list[Group | Variable] = [copied, *copied.variables.values()]
                for holder in holders:
                    holder.attributes = unlisted_strings(holder.attributes)
        if not self.layout.supports_unlimited:
            copies = map(source.copied_dimension, dimensions.values())
            unlimited = [item.path for item in copies if item.unlimited]
            self.leave_out([f"that {quote(path)} is unlimited" for path in unlimited])

    def check_names(self) -> None:
        """Raise ConflictError if the target does not allow the name of a variable or dimension."""
        for group in self.root.walk():
            for name in group.variables:
                stored_name(name)
            for name in group.dimensions:
                check_dimension(name, self.layout)

    def leave_out(self, descriptions: Sequence[str]) -> None:
        """Record descriptions of the parts of the source that the target cannot express.

        Raises
        ------
        UnsupportedError
            If `descriptions` is not empty and `skip_unsupported` is False.
        """
        self.skipped += descriptions
        if descriptions and not self.skip_unsupported:
            unnamed = len(descriptions) - _MAX_NAMED
            named = [*descriptions[:_MAX_NAMED], *([f"{unnamed} more"] if unnamed > 0 else [])]
            problem = f"the dialect {self.layout.dialect} cannot express {'; '.join(named)}"
            raise UnsupportedError(problem, remedy=_SKIP)

    def _check_chunks(self, dimensions: Collection[str]) -> None:
        """Raise an error if `chunks` contains an unknown dimension or an invalid length."""
        for dim, length in self.chunks.items():
            if dim not in dimensions:
                raise unknown("dimension", dim, dimensions)
            if length < 1:
                raise ConflictError(
                    f"the chunk length of dimension {quote(dim)} must be at least 1, not {length}",
                    remedy="Pass a positive length, or leave out the dimension",
                )

    def _add_dimension(self, source: Source, dimension: Dimension) -> None:
        # If the copy leaves out the group of a dimension, the dimension is added to the root.
        copied = source.copied_dimension(dimension)
        group = self.group(copied.group)
        if copied.name in group.dimensions:
            raise ConflictError(
                f"the group {quote(source.group)} cannot become the root group, because it would "
                f"have two dimensions named {quote(copied.name)}",
                remedy="Select variables that use only one of these dimensions, or leave out the "
                "group argument",
            )
        group.dimensions[copied.name] = copied

    def _add(self, source: Source, group: Group, variable: Variable) -> None:
        """Add a variable of the source to a group of the copy, if the target supports it."""
        try:
            with ErrorContext(variable=variable.node.path if variable.node else variable.path):
                if variable.error is not None:
                    raise variable.error.add_context(store=source.store.name)
                node = variable.array_node
                values = source.values_of(variable)
                data = in_chunks(values, _stored_chunks(variable), variable.name)
                with as_conflicts(_CORRECT_ATTRIBUTES):
                    encoded = self._encoded(variable, data.astype(node.dtype, copy=False))
                # All dimensions count as growing, so that chunks longer than a dimension are kept.
                names = [dimension.name for dimension in variable.dimensions]
                dimensions = tuple(map(source.copied_dimension, variable.dimensions))
                path = self.add_variable(group, variable.name, encoded, dimensions, (), names)
        except UnsupportedError as error:
            if not self.skip_unsupported:
                error.remedy = ". ".join(filter(None, (error.remedy.rstrip("."), _SKIP)))
                raise
            self.skipped.append(f"the variable {quote(variable.path)}: {error.problem}")
            return
        array = complete_array(values)
        if array is not None:
            self.arrays[path] = array.stored

    def _encoded(self, variable: Variable, data: Any) -> EncodedVariable:
        """Encode a variable, using only types that the target supports.

        Raises
        ------
        UnsupportedError
            If no such type can represent the values.
        """
        layout, dtype, attributes = self.layout, data.dtype, dict(variable.attributes)
        encoding, explicit = self._encoding(variable)
        kind = "char" if dtype == "S1" and variable.kind == "other" else variable.kind
        # Values encoded as JSON or msgpack are usually text.
        unknown = dtype.hasobject and not variable.array_node.is_binary
        if kind == "other" and (unknown or not layout.is_plain_zarr):
            # As in `to_netcdf`, encode booleans, times and byte strings, for which netCDF has no
            # types. The dimensions get new names, because xarray does not support repeated names.
            data = in_encoded_unit(data, variable.path) if dtype.kind in "mM" else data
            names = [f"dimension {axis}" for axis in range(data.ndim)]
            stored = xr.Variable(names, data, attributes, encoding)
            return encode_alone(stored, variable.name, layout, explicit)
        fill = _fill_value(variable, layout)
        if variable.kind == "string":
            data = self._strings(variable, data)
            fill = None if fill is None else fill_scalar(fill, data.dtype)
            if is_fill_value(attributes.get("_FillValue"), data.dtype):
                attributes["_FillValue"] = fill_scalar(attributes["_FillValue"], data.dtype)
        elif dtype.names is not None and not layout.zarr.mixes_byte_orders:
            data = data.astype(dtype.newbyteorder("="))
        if layout.is_plain_zarr and not data.dtype.hasobject:
            kind = "other"
        return EncodedVariable(
            dimensions=tuple([dimension.name for dimension in variable.dimensions]),
            data=data,
            kind=kind,
            attributes=attributes,
            fill_value=fill,
            encoding=encoding,
            explicit=explicit,
        )

    def _encoding(self, variable: Variable) -> tuple[dict[str, Any], bool]:
        """Return the encoding of a copied variable, and whether the caller requested this encoding.

        The encoding contains only chunks, shards and codecs.
        """
        node, names = variable.array_node, [dimension.name for dimension in variable.dimensions]
        chunks = node.chunk_shape if names else ()
        codecs: list[Mapping[str, Any]] = [
            {"id": spec.name, **spec.configuration}
            for spec in node.codecs
            if spec.name not in ("bytes", "transpose")
        ]
        encoding: dict[str, Any] = {"chunks": chunks, "codecs": codecs}
        if self.layout.zarr.has_shards and len(node.shards) == 1 and not node.chunk_runs:
            # In all other cases, the copy is not sharded: each chunk becomes a separate object.
            location = "start" if node.shards[0].index_at_start else "end"
            encoding["shards"] = {"shape": node.object_shape, "index_location": location}
        if self.codecs is not None:
            encoding["codecs"] = [*self.codecs] if names else []  # netCDF's scalars have no chunks
        if self.chunks.keys() & set(names):
            lengths = zip(names, chunks, strict=True)
            encoding["chunks"] = tuple([self.chunks.get(name, size) for name, size in lengths])
            encoding.pop("shards", None)
        return encoding, self.codecs is not None or encoding["chunks"] != chunks

    def _strings(self, variable: Variable, data: Any) -> Any:
        layout, is_fixed = self.layout, data.dtype.kind == "S"
        if layout.zarr.has_filters and is_fixed is not layout.is_plain_zarr:
            return data
        if layout.is_plain_zarr:
            return string_data(unpadded(data, _OBJECT) if is_fixed else data, None, layout, None)
        name = WIDTH if WIDTH in variable.attributes else DEFAULT_WIDTH
        width: Any = variable.attributes.get(WIDTH, self.root.attributes.get(DEFAULT_WIDTH))
        if getattr(width, "dtype", _OBJECT).kind not in "iu" or np.ndim(width) or width < 1:
            width = None  # an invalid width, which netCDF-C does not accept either
        if width is not None and (longest := largest(measured_width, data)) > width:
            raise ConflictError(
                f'the longest string takes {longest} bytes in UTF-8, but the attribute "{name}" '
                f"allows at most {width}",
                remedy="Correct or remove the attribute in the source",
            )
        fill = variable.attributes.get("_FillValue")
        return string_data(data, width, layout, fill if is_fill_value(fill, data.dtype) else None)


def _stored_chunks(variable: Variable) -> list[Any]:
    """Return a variable's chunks (or shards) in the form that dask's ``chunks`` argument takes."""
    node = variable.array_node
    if node.chunk_runs:
        runs = zip(node.chunk_runs, node.shape, strict=True)
        return [chunk_lengths(lengths, size) for lengths, size in runs]
    return [*node.object_shape] if variable.dimensions else []


def _fill_value(variable: Variable, layout: Layout) -> Any:
    """Return the fill value of the copied array, or None if the array must not have one."""
    fill, dtype = variable.array_node.fill_value, variable.array_node.dtype
    if layout.zarr.requires_fill_value:
        return variable.fill_value
    # Values that are not masked in the source must not be masked in the copy.
    if "_FillValue" in variable.attributes or dtype.kind not in _MASKED[layout.is_plain_zarr]:
        return fill
    if not fill:  # without a fill value, missing chunks are read as zeros or empty strings
        return None
    if fill != fill:  # NaN masks only NaN
        return fill
    # In plain Zarr, readers use any fill value as `_FillValue`. In NCZarr, netCDF's default fill
    # value never masks data.
    return None if layout.is_plain_zarr else default_fill(dtype)
