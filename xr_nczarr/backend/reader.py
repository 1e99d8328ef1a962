"""netCDF groups → variables of xarray that stay in their store until their values are needed."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np
from xarray import Variable
from xarray.coding.strings import create_vlen_dtype

from xr_nczarr.backend.decoding import unpacked_fill
from xr_nczarr.backend.encoding import (
    OPENING_KEY,
    Opening,
    codec_encoding,
    stored_encoding,
    xarray_attributes,
)
from xr_nczarr.backend.lazy import (
    LazyArray,
    SelectedArray,
    UnreadableArray,
    decode_text,
)
from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.codecs import check_codec
from xr_nczarr.dataset import OpenedStore, dimension_name, readable_node
from xr_nczarr.errors import LimitError, NczarrError
from xr_nczarr.formats import FORMATS
from xr_nczarr.model import child_path
from xr_nczarr.netcdf import Dimension, Group
from xr_nczarr.netcdf import Variable as NetcdfVariable
from xr_nczarr.netcdf.annotations import is_annotated
from xr_nczarr.storage import PrefetchingStore, Store

NONE_NAME = "__values__"
"""What xarray stores a variable as whose name is None."""

# What is worth fetching at once with the other coordinates of a group, from a remote store.
_PREFETCHED_CHUNKS = 4
_PREFETCHED_ELEMENTS = 1 << 17

_INDEX_CHUNK_BYTES = 16 << 10
"""What each chunk of a coordinate counts at least: a request takes as long as so many bytes."""

_UNKNOWN = np.dtype("V8")


class GroupSource:
    """The variables of one netCDF group as they are stored, before decoding.

    Parameters
    ----------
    drop_variables
        Names that the caller does not want.
    undecodable
        Reasons of variables that are known to upset xarray's decoding.
    coordinates
        The store that small coordinates are read from, for all groups that are opened together;
        see `fetching_coordinates`.

    Attributes
    ----------
    variables
        By name, their values still in the store. Stand-ins for those in `inert`.
    inert
        Names of those that are not to be decoded, only to be there for what the others say of them.
    as_stored
        Variables that remain as they are stored, and are among `inert`.
    unreadable
        Names of those that raise their reason when asked for values, among `as_stored`.
    problems
        Why a variable remains as it is stored.
    arrays
        The arrays of those that can be read.
    """

    def __init__(
        self,
        opened: OpenedStore,
        group: Group,
        drop_variables: str | Iterable[str] | None,
        undecodable: Mapping[Hashable, NczarrError] = MappingProxyType({}),
        *,
        coordinates: Store | None = None,
    ) -> None:
        if coordinates is None:
            coordinates = fetching_coordinates(opened, [group])
        self.coordinates = coordinates
        self.reopened = partial(
            GroupSource, opened, group, drop_variables, undecodable, coordinates=coordinates
        )
        self.opened = opened
        self.group = group
        self.reading = opened.options.reading
        self.visible = opened.visible_dimensions(group.path)
        required = FORMATS[opened.hierarchy.zarr_format].requires_fill_value
        self.independent_fill = required and group.dialect == "zarr"
        self.arrays: dict[Hashable, LazyArray] = {}
        self.as_stored: dict[Hashable, Variable] = {}
        self.unreadable: set[Hashable] = set()
        self.problems = dict(undecodable)
        self._codecs: dict[tuple[int, int], dict[str, Any]] = {}
        names = [drop_variables] if isinstance(drop_variables, str) else drop_variables or ()
        self.variables: dict[Hashable, Variable] = {}
        self.inert: set[Hashable] = set()
        for stored_name, variable in group.variables.items():
            name = None if stored_name == NONE_NAME else stored_name
            if stored_name in names:
                self._open_dropped(name, variable)
            else:
                self._open_variable(name, variable)

    @property
    def encoding(self) -> dict[str, Any]:
        """The dataset's encoding: unlimited dimensions, Zarr version, dialect and source."""
        dimensions = [*self.group.dimensions.values()]
        for variable in self.group.variables.values():
            dimensions += variable.dimensions
        return {
            "unlimited_dims": {self._dimension_name(item) for item in dimensions if item.unlimited},
            "dialect": self.group.dialect,
            "zarr_format": self.opened.hierarchy.zarr_format,
            "source": self.opened.store.name,
            OPENING_KEY: Opening(self.opened.target, self.opened.options),
        }

    def path_of(self, name: Hashable) -> str:
        """Return the path of a variable of the group."""
        return child_path(self.group.path, str(name))

    def _open_dropped(self, name: str | None, variable: NetcdfVariable) -> None:
        dimensions = [self._dimension_name(item) for item in variable.dimensions]
        dtype = _UNKNOWN if variable.node is None else variable.node.dtype
        attributes = {} if name in self.problems else xarray_attributes(variable)
        self._stand_in(name, dimensions, dtype, variable.shape, attributes)

    def _stand_in(
        self,
        name: str | None,
        dimensions: Sequence[Hashable],
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        attributes: dict[str, Any],
    ) -> None:
        unread = UnreadableArray(NczarrError("values of a stand-in are not read"), dtype, shape)
        self.variables[name] = Variable(dimensions, SelectedArray(unread), attributes)
        self.inert.add(name)

    def _open_variable(self, name: str | None, variable: NetcdfVariable) -> None:
        dimensions = [self._dimension_name(item) for item in variable.dimensions]
        error = variable.error or self._codec_error(variable) or self._index_error(variable)
        if error is None:
            self._open_readable(name, variable, dimensions)
            if name not in self.problems:
                return
            stored = self.variables.pop(name)
        else:
            self.problems[name] = error
            self.unreadable.add(name)
            stored = self._unreadable(name, variable, dimensions, error)
        error = self.problems[name].located(store=self.opened.store.name, variable=variable.path)
        if self.opened.options.on_unsupported == "raise":
            raise error
        if self.opened.options.on_unsupported == "skip":
            return
        self.as_stored[name] = stored
        # Decoding asks neither for its values nor for what it says.
        self._stand_in(name, stored.dims, stored.dtype, stored.shape, {})

    def _unreadable(
        self, name: str | None, variable: NetcdfVariable, dimensions: list[str], error: NczarrError
    ) -> Variable:
        dtype = _UNKNOWN if variable.node is None else variable.node.dtype
        if dtype.hasobject:  # of such xarray reads an item when it is asked for chunks
            dtype = _UNKNOWN
        shape = variable.shape
        if not dimensions and name in self._lengths:
            # Its own are unknown: a scalar with a dimension's name would block all along that.
            dimensions, shape = [name], (self._lengths[name],)
        values = SelectedArray(UnreadableArray(error, dtype, shape))
        return Variable(dimensions, values, xarray_attributes(variable))

    def _open_readable(
        self, name: str | None, variable: NetcdfVariable, dimensions: list[str]
    ) -> None:
        node = readable_node(variable, self.opened.options.assume_endian)
        store = self.coordinates if _coordinate_keys(variable) else self.opened.store
        store = store.narrowed(node.chunk_keys)
        is_text = variable.kind == "string" and node.dtype.kind == "S"
        lazy = LazyArray(
            ChunkedArray(node, store, self.reading),
            xarray_dtype(variable),
            variable.shape,
            decode_text if is_text else None,
        )
        self.arrays[name] = lazy
        attributes = xarray_attributes(variable)
        fill_value = attributes.get("_FillValue")
        if is_text and isinstance(fill_value, bytes):
            attributes["_FillValue"] = fill_value.decode("utf-8", "surrogateescape")
        elif "_FillValue" in node.attributes.values_by_name:
            fill_value = unpacked_fill(node, fill_value)
            attributes["_FillValue"] = self._declared_fill(variable, fill_value)
        codecs = self._codecs[id(node.codecs), id(node.shards)]
        encoding = stored_encoding(node, dimensions, self.opened.store.name, codecs)
        if self.independent_fill and node.fill_value is not None:
            encoding["fill_value"] = node.fill_value  # not the same as `_FillValue` there
        values = SelectedArray(lazy)
        self.variables[name] = Variable(dimensions, values, attributes, encoding, fastpath=True)

    def _declared_fill(self, variable: NetcdfVariable, fill_value: Any) -> Any:
        """Return the attribute `_FillValue` with the type that it has with engine zarr.

        In plain Zarr it is a Python value, in version 2 only of an array without a fill value.
        """
        node = variable.node
        assert node is not None
        own = node.fill_value is not None and not self.independent_fill
        if own or not isinstance(fill_value, np.generic) or is_annotated(node):
            return fill_value
        if variable.attributes.get("_Unsigned") == "false" and fill_value.dtype.kind == "u":
            largest = np.iinfo(f"i{fill_value.itemsize}").max
            if int(fill_value) > largest:  # xarray fails at such an integer of Python's
                return fill_value
        return fill_value.item()

    def _codec_error(self, variable: NetcdfVariable) -> NczarrError | None:
        """Return why the codecs cannot decode, to be raised on access; None if they can."""
        options, node = self.opened.options, variable.node
        assert node is not None
        shared = id(node.codecs), id(node.shards)  # by all arrays whose documents say the same
        if shared not in self._codecs:
            try:
                check_codec(
                    node,
                    custom=options.codecs,
                    allow_pickle=options.allow_pickle,
                    plugins=options.trust is None,
                )
            except NczarrError as error:
                return error
            plain = self.group.dialect == "zarr"
            self._codecs[shared] = codec_encoding(node.codecs, plain=plain)
        return None

    def _index_error(self, variable: NetcdfVariable) -> NczarrError | None:
        """Return why a coordinate is too large to be read at once; None if it is not."""
        node, limit = variable.node, self.reading.limits.max_index_bytes
        if node is None or not variable.is_coordinate:
            return None
        length = variable.shape[0]
        chunks = -(-length // node.chunk_shape[0])
        if node.dtype.itemsize * length <= limit and _INDEX_CHUNK_BYTES * chunks <= limit:
            return None
        return LimitError(
            f"the coordinate of a dimension has {length:,} values in {chunks:,} chunks, more than "
            f"{limit:,} bytes, each chunk counted as {_INDEX_CHUNK_BYTES:,} at least "
            "(max_index_bytes)",
            remedy="Leave it out with drop_variables, or open with a larger max_index_bytes",
        )

    @cached_property
    def _lengths(self) -> dict[str, int]:
        """The sizes of all dimensions that variables of this group lie along."""
        return {
            self._dimension_name(dimension): dimension.size
            for variable in self.group.variables.values()
            for dimension in variable.dimensions
        }

    def _dimension_name(self, dimension: Dimension) -> str:
        return dimension_name(dimension, self.visible)


def fetching_coordinates(opened: OpenedStore, groups: Iterable[Group]) -> Store:
    """Return the store, which fetches the small coordinates of all `groups` in one wave."""
    if not (opened.store.remote and opened.store.fetches_ahead):
        return opened.store
    variables = (item for group in groups for item in group.variables.values())
    keys = [key for variable in variables for key in _coordinate_keys(variable)]
    return PrefetchingStore(opened.store, keys)


def _coordinate_keys(variable: NetcdfVariable) -> list[str]:
    """Return the chunk keys of a small coordinate, which xarray will read to make an index."""
    node = variable.node
    if node is None or node.chunk_runs or not variable.is_coordinate:
        return []
    count = -(-variable.shape[0] // node.object_shape[0])
    small = count <= _PREFETCHED_CHUNKS and node.object_shape[0] <= _PREFETCHED_ELEMENTS
    return [node.chunk_keys.key((index,)) for index in range(count)] if small else []


def xarray_dtype(variable: NetcdfVariable) -> np.dtype[Any]:
    """Return the dtype of a variable's values in xarray."""
    assert variable.node is not None
    stored = variable.node.dtype
    if stored.kind in "UViu":
        # Natively: xarray changes the byte order of numbers only, and only after it has taken the
        # bytes of a big-endian fill value for those of an unsigned one.
        return stored.newbyteorder("=")
    if stored.kind in "mM" and (unit := np.datetime_data(stored))[1] != 1:
        return np.dtype(f"{stored.kind}8[{unit[0]}]")  # pandas has no multiples of a unit
    return create_vlen_dtype(str) if variable.kind == "string" else stored
