"""Open the variables of netCDF groups as lazy xarray variables, without decoding them."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
from xarray import Variable
from xarray.coding.strings import create_vlen_dtype

from xr_nczarr.backend.decoding import unpacked_fill
from xr_nczarr.backend.lazy import LazyArray, SelectedArray, UnreadableArray, decode_text
from xr_nczarr.backend.opened_encoding import (
    OPENING_KEY,
    Opening,
    codec_encoding,
    stored_encoding,
    xarray_attributes,
)
from xr_nczarr.backend.times import convert_multiples
from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.codecs import check_codec
from xr_nczarr.dataset import OpenedStore
from xr_nczarr.errors import LimitError, NczarrError
from xr_nczarr.model import child_path
from xr_nczarr.netcdf import Group
from xr_nczarr.netcdf import Variable as NetcdfVariable
from xr_nczarr.netcdf.annotations import is_annotated
from xr_nczarr.storage import PrefetchGroup, PrefetchingStore, Store

NONE_NAME = "__values__"
"""The name under which xarray stores a DataArray without a name."""

# A coordinate in a remote store is prefetched if it has at most this many chunks, each of which
# decodes to at most this many bytes.
_MAX_PREFETCHED_CHUNKS = 4
_MAX_PREFETCHED_BYTES = 1 << 20

_INDEX_CHUNK_BYTES = 16 << 10
"""Minimum number of bytes that each chunk of a coordinate counts toward `max_index_bytes`.

Small chunks count too, because reading a chunk takes a request.
"""

_UNKNOWN = np.dtype("V8")


class StoredGroup:
    """The variables of a netCDF group as lazy xarray variables, before decoding.

    Parameters
    ----------
    drop_variables
        Names of variables to leave out.
    undecodable
        Errors of the variables that xarray cannot decode, keyed by variable name.
    coordinate_store
        Store with prefetched coordinates; see `prefetch_coordinates`. If None, only the
        coordinates of this group are prefetched.

    Attributes
    ----------
    variables
        Lazy variables, keyed by name. They include the variables in `placeholders`.
    placeholders
        Names of variables that are dropped, unreadable or undecodable. They have no values, but
        attributes of other variables can refer to them.
    as_stored
        Variables that are opened without decoding, keyed by name. Their names are also in
        `placeholders`.
    unreadable
        Names of variables whose values cannot be read.
    problems
        Errors of the variables that cannot be read or decoded, keyed by name.
    arrays
        Lazy arrays of the variables that can be read, keyed by name.
    """

    def __init__(
        self,
        opened: OpenedStore,
        group: Group,
        drop_variables: Collection[Hashable] | None,
        undecodable: Mapping[Hashable, NczarrError] = MappingProxyType({}),
        *,
        coordinate_store: Store | None = None,
    ) -> None:
        if coordinate_store is None:
            coordinate_store = prefetch_coordinates(opened, [group])
        self.coordinate_store = coordinate_store
        self.reopened = partial(
            StoredGroup, opened, group, drop_variables, coordinate_store=coordinate_store
        )
        self.opened = opened
        self.group = group
        self.reading = opened.options.reading

        required = opened.hierarchy.zarr.requires_fill_value
        self.independent_fill = required and group.dialect == "zarr"
        self.arrays: dict[Hashable, LazyArray] = {}
        self.as_stored: dict[Hashable, Variable] = {}
        self.unreadable: set[Hashable] = set()
        self.problems = dict(undecodable)
        self._codecs: dict[tuple[int, int], dict[str, Any]] = {}
        dropped = drop_variables or ()
        self.variables: dict[Hashable, Variable] = {}
        self.placeholders: set[Hashable] = set()
        self._lengths: dict[str, int] = {}
        unlimited = {name for name, dimension in group.dimensions.items() if dimension.unlimited}
        visible = opened.visible_dimensions(group.path)
        if opened.options.on_unsupported == "raise":
            opened.check_readable(group)
        dims = {name: item.dimension_names(visible) for name, item in group.variables.items()}
        for stored_name, item in group.variables.items():
            for dim, dimension in zip(dims[stored_name], item.dimensions, strict=True):
                self._lengths[dim] = dimension.size
                unlimited |= {dim} if dimension.unlimited else set()
        self._unlimited = unlimited
        for stored_name, item in group.variables.items():
            name = None if stored_name == NONE_NAME else stored_name
            open_variable = self._open_dropped if stored_name in dropped else self._open_variable
            open_variable(name, item, dims[stored_name])

    @property
    def encoding(self) -> dict[str, Any]:
        """The encoding of the dataset, which includes its unlimited dimensions and Zarr version."""
        return {
            "unlimited_dims": self._unlimited,
            "dialect": self.group.dialect,
            "zarr_format": self.opened.hierarchy.zarr.version,
            "source": self.opened.store.name,
            OPENING_KEY: Opening(self.opened.target, self.opened.options),
        }

    def path_of(self, name: Hashable) -> str:
        """Return the absolute path of a variable in the group."""
        return child_path(self.group.path, str(name))

    def _open_dropped(
        self, name: str | None, variable: NetcdfVariable, dims: tuple[str, ...]
    ) -> None:
        error = NczarrError("the variable was excluded by drop_variables")
        self.variables[name] = self._unreadable(name, variable, dims, error)
        if name in self.problems:
            self.variables[name].attrs = {}
        self.placeholders.add(name)

    def _open_variable(
        self, name: str | None, variable: NetcdfVariable, dims: tuple[str, ...]
    ) -> None:
        error = variable.error or self._codec_error(variable) or self._index_error(variable)
        if error is None:
            self._open_readable(name, variable, dims)
            if name not in self.problems:
                return
            stored = self.variables.pop(name)
        else:
            self.problems[name] = error
            self.unreadable.add(name)
            stored = self._unreadable(name, variable, dims, error)
        error = self.problems[name].add_context(
            store=self.opened.store.name, variable=variable.path
        )
        if self.opened.options.on_unsupported == "raise":
            raise error
        if self.opened.options.on_unsupported == "skip":
            return
        self.as_stored[name] = stored
        # Add a placeholder. It has no attributes, because they could make decoding fail.
        self.variables[name] = Variable(stored.dims, stored._data)
        self.placeholders.add(name)

    def _unreadable(
        self,
        name: str | None,
        variable: NetcdfVariable,
        dims: tuple[str, ...],
        error: NczarrError,
    ) -> Variable:
        dtype = _UNKNOWN if variable.node is None else variable.node.dtype
        if dtype.hasobject:  # xarray would read an item of an object array to choose chunks
            dtype = _UNKNOWN
        shape = variable.shape
        if not dims and name in self._lengths:
            # The variable's dimensions are unknown. If it were a scalar with the name of a
            # dimension, a Dataset could not contain it together with variables along that
            # dimension.
            dims, shape = (name,), (self._lengths[name],)
        values = SelectedArray(UnreadableArray(error, dtype, shape))
        return Variable(dims, values, xarray_attributes(variable))

    def _open_readable(
        self, name: str | None, variable: NetcdfVariable, dims: tuple[str, ...]
    ) -> None:
        node = variable.readable_node
        store = self.coordinate_store if _coordinate_keys(variable) else self.opened.store
        store = store.narrowed(node.chunk_keys)
        is_text = variable.kind == "string" and node.dtype.kind == "S"
        has_multiples = node.dtype.kind in "mM" and np.datetime_data(node.dtype)[1] != 1
        lazy = LazyArray(
            ChunkedArray(node, store, self.reading),
            xarray_dtype(variable),
            variable.shape,
            decode_text if is_text else convert_multiples if has_multiples else None,
        )
        self.arrays[name] = lazy
        attributes = xarray_attributes(variable)
        fill_value = attributes.get("_FillValue")
        if is_text and isinstance(fill_value, bytes):
            attributes["_FillValue"] = fill_value.decode("utf-8", "surrogateescape")
        elif node.attributes.get("_FillValue") is not None:
            fill_value = unpacked_fill(node, fill_value)
            attributes["_FillValue"] = self._declared_fill(variable, fill_value)
        codecs = self._codecs[id(node.codecs), id(node.shards)]
        encoding = stored_encoding(node, dims, codecs)
        encoding["source"] = self.opened.store.name
        if self.independent_fill and node.fill_value is not None:
            encoding["fill_value"] = node.fill_value  # plain v3: independent of `_FillValue`
        values = SelectedArray(lazy)
        self.variables[name] = Variable(dims, values, attributes, encoding, fastpath=True)

    def _declared_fill(self, variable: NetcdfVariable, fill_value: Any) -> Any:
        """Convert the ``_FillValue`` attribute to the type that xarray's zarr engine returns."""
        node = variable.node
        assert node is not None
        # In plain Zarr v1 and v2, numbers stay NumPy numbers if the array has a fill value.
        has_fill = node.fill_value is not None and not self.independent_fill
        if has_fill or not isinstance(fill_value, np.generic) or is_annotated(node):
            return fill_value
        if variable.attributes.get("_Unsigned") == "false" and fill_value.dtype.kind == "u":
            largest = np.iinfo(f"i{fill_value.itemsize}").max
            # xarray would fail on a Python integer that does not fit the signed dtype.
            if int(fill_value) > largest:
                return fill_value
        return fill_value.item()

    def _codec_error(self, variable: NetcdfVariable) -> NczarrError | None:
        """Return an error if a codec of the variable is unavailable, and None otherwise."""
        options, node = self.opened.options, variable.node
        assert node is not None
        shared = id(node.codecs), id(node.shards)  # arrays with equal metadata share these objects
        if shared not in self._codecs:
            try:
                check_codec(node, custom=options.codecs, plugins=options.trust is None)
            except NczarrError as error:
                return error
            plain = self.group.dialect == "zarr"
            # Cache the encoding keys that describe the codecs.
            self._codecs[shared] = codec_encoding(node.codecs, plain=plain)
        return None

    def _index_error(self, variable: NetcdfVariable) -> NczarrError | None:
        node, limit = variable.node, self.reading.limits.max_index_bytes
        assert node is not None
        if not variable.is_coordinate:
            return None
        length = variable.shape[0]
        chunks = -(-length // node.chunk_shape[0])
        if node.dtype.itemsize * length <= limit and _INDEX_CHUNK_BYTES * chunks <= limit:
            return None
        return LimitError(
            f"the dimension coordinate has {length:,} values in {chunks:,} chunks; its index may "
            f"need more than {limit:,} bytes (max_index_bytes)",
            remedy="Exclude the coordinate with drop_variables, or pass "
            "limits=Limits(max_index_bytes=…)",
        )


def prefetch_coordinates(opened: OpenedStore, groups: Iterable[Group]) -> Store:
    """Wrap a remote store so that small dimension coordinates of `groups` are fetched together.

    When any of these coordinates is first read, the chunks of all of them are fetched concurrently.
    A local store is returned unchanged.
    """
    if not opened.store.remote:
        return opened.store
    variables = (item for group in groups for item in group.variables.values())
    keys = [key for variable in variables for key in _coordinate_keys(variable)]
    return PrefetchingStore(
        opened.store, PrefetchGroup(opened.store, keys, 2 * _MAX_PREFETCHED_BYTES)
    )


def _coordinate_keys(variable: NetcdfVariable) -> list[str]:
    """Return the chunk keys of a small dimension coordinate, or [] for other variables."""
    node = variable.node
    if node is None or node.chunk_runs or not variable.is_coordinate:
        return []
    count = -(-variable.shape[0] // node.object_shape[0])
    size = node.object_shape[0] * node.dtype.itemsize
    small = count <= _MAX_PREFETCHED_CHUNKS and size <= _MAX_PREFETCHED_BYTES
    return [node.chunk_keys.key((index,)) for index in range(count)] if small else []


def xarray_dtype(variable: NetcdfVariable) -> np.dtype[Any]:
    """Return the dtype that a variable has in xarray before decoding."""
    assert variable.node is not None
    stored = variable.node.dtype
    if stored.kind in "mM":
        unit, _ = np.datetime_data(stored)  # pandas does not support multiples of a unit
        return np.dtype(f"{stored.kind}8[{unit}]")
    if stored.kind in "UViu":
        # Use native byte order. xarray byte-swaps only numbers, and does so too late to interpret
        # the big-endian fill value of an `_Unsigned` variable correctly.
        return stored.newbyteorder("=")
    return create_vlen_dtype(str) if variable.kind == "string" else stored
