"""netCDF groups → variables of xarray that stay in their store until they are asked for."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np
from xarray import Variable
from xarray.coding.strings import create_vlen_dtype

from xr_nczarr.backend.decoding import unpacked_fill
from xr_nczarr.backend.encoding import codec_encoding, stored_encoding, xarray_attributes
from xr_nczarr.backend.lazy import (
    LazyArray,
    SelectedArray,
    UnreadableArray,
    decode_text,
)
from xr_nczarr.backend.options import OPENING_KEY, Endian, Opening, OpenOptions
from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.codecs import check_codec
from xr_nczarr.dataset import resolve
from xr_nczarr.errors import LimitError, NczarrError, NotFoundError, Place, quote
from xr_nczarr.formats import FORMATS
from xr_nczarr.model import ArrayNode, Hierarchy, child_path, group_path
from xr_nczarr.netcdf import Dimension, Group, interpret
from xr_nczarr.netcdf import Variable as NetcdfVariable
from xr_nczarr.netcdf.annotations import is_annotated
from xr_nczarr.storage import (
    EarlierStore,
    PrefetchingStore,
    Store,
)

_log = logging.getLogger(__name__)

NONE_NAME = "__values__"
"""What xarray stores a variable as whose name is None."""

# What is worth fetching at once with the other coordinates of a group, from a remote store.
_PREFETCHED_CHUNKS = 4
_PREFETCHED_ELEMENTS = 1 << 17

_INDEX_CHUNK_BYTES = 16 << 10
"""What a chunk of a coordinate counts at least: to look for it takes as long as to read so much."""

_UNSURE_OF_ENDIANNESS = ("nczarr-4.8.0", "nczarr-4.8.1", "nczarr-4.9.1")

_UNKNOWN = np.dtype("V8")
_MAX_NAMED_GROUPS = 20


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """A store and the netCDF groups that were asked for, with what opening it found out.

    Attributes
    ----------
    target_group
        Path of the group that the target itself names; empty for the root.
    """

    store: Store
    hierarchy: Hierarchy
    root: Group
    options: OpenOptions
    target: Any
    target_group: str = ""

    def group(self, path: str | None) -> Group:
        """Return the group at `path`, which begins in the group that the target names.

        Raises
        ------
        NotFoundError
            When the store has no such group; the message names those that are there.
        """
        group = self.root
        path = f"{self.target_group}/{path or ''}".strip("/") if self.target_group else path
        for name in filter(None, (path or "").split("/")):
            if name not in group.groups:
                raise NotFoundError(
                    f"there is no group {quote(path)!r}",
                    remedy=self._present_groups(),
                    store=self.store.name,
                )
            group = group.groups[name]
        return group

    def _present_groups(self) -> str:
        """Return a sentence that names the groups of the whole store."""
        options = replace(self.options, group=None, storage_options=None)
        try:
            walked = open_netcdf(self.store, options).root.walk()
            paths = [group.path.strip("/") for group in islice(walked, _MAX_NAMED_GROUPS + 2)]
        except NczarrError:
            return "See what is there with xr_nczarr.open_hierarchy"
        names = [repr(quote(path)) for path in paths if path]
        more = ", …" if len(names) > _MAX_NAMED_GROUPS else ""
        listed = ", ".join(names[:_MAX_NAMED_GROUPS]) + more
        return f"Its groups are {listed}" if names else "It has no groups"

    def visible_dimensions(self, path: str) -> dict[str, Dimension]:
        """Give the dimensions that a group sees by short name: its own hide those above it."""
        group = self.root
        visible = dict(group.dimensions)
        for name in filter(None, path.split("/")):
            group = group.groups[name]
            visible |= group.dimensions
        return visible


def open_netcdf(
    target: Any, options: OpenOptions, *, subgroups: bool = True, with_sidecars: bool = False
) -> OpenedStore:
    """Open what a path, URL or mapping points to, as a tree of netCDF groups.

    Without `subgroups`, what is in the groups below the one asked for is not looked at. The objects
    of `universal` beside the documents are read `with_sidecars`, to be changed.
    """
    resolved = resolve(target, options.access)
    location = resolved.location
    version = options.zarr_format or location.zarr_format
    consolidated = location.consolidated if options.consolidated is None else options.consolidated
    group = f"{location.group}/{options.group or ''}"
    resolved, hierarchy = resolved.open_hierarchy(
        consolidated=consolidated,
        zarr_format=None if version is None else str(version),
        group=group,
        subgroups=subgroups,
        with_sidecars=with_sidecars,
        data_type_fallback=options.data_type_fallback,
    )
    store = resolved.store
    masks = options.use_zarr_fill_value_as_mask
    zero_masks = store.zero_fill_is_missing
    if hierarchy.before:
        store = EarlierStore(store, hierarchy.before)
    with Place(store=store.name):
        root = interpret(
            hierarchy,
            use_zarr_fill_value_as_mask=masks,
            zero_masks=zero_masks,
            group=group_path(group),
            subgroups=subgroups,
        )
    if options.assume_endian is None:
        _warn_of_big_endian(root, store)
    required = FORMATS[hierarchy.zarr_format].requires_fill_value
    if not (zero_masks or required) and masks is None:
        _log_unmasked_zeros(root, store)
    for note in (note for item in root.walk() for note in item.reports):
        _log.warning("%s: %s", store.name, note)
    return OpenedStore(store, hierarchy, root, options, target, location.group)


def _warn_of_big_endian(root: Group, store: Store) -> None:
    """Warn once of numbers that netCDF-C up to 4.9.2 may have stored in the other byte order."""
    names = [
        variable.path
        for group in root.walk()
        if group.dialect in _UNSURE_OF_ENDIANNESS
        for variable in group.variables.values()
        if variable.node is not None
        and variable.kind == "number"
        and variable.node.dtype.byteorder == ">"
    ]
    if names:
        warnings.warn(
            f"{store.name}: {', '.join(names)} are declared as big-endian, under which netCDF-C "
            "up to 4.9.2 stored little-endian numbers. Pass assume_endian='little' if their "
            "values are wrong",
            stacklevel=2,
        )


def _log_unmasked_zeros(root: Group, store: Store) -> None:
    """Log the numbers of a reference set whose fill value of zero does not mask."""
    names = [
        variable.path
        for variable in root.all_variables()
        if (node := variable.node) is not None
        and node.dtype.kind in "biufc"
        and node.fill_value == 0
        and "_FillValue" not in variable.attributes
        and not is_annotated(node)
    ]
    if names:
        _log.warning(
            "%s: the fill_value 0 of %s does not mask, since it may be HDF5's default. "
            "Pass use_zarr_fill_value_as_mask=True if zeros are missing values, else False",
            store.name,
            ", ".join(names),
        )


def open_whole(target: Any, options: Mapping[str, Any]) -> tuple[OpenedStore, Group]:
    """Open all of a store, and give it with the group that the options of opening ask for."""
    asked = OpenOptions(**options)
    opened = open_netcdf(target, replace(asked, group=None))
    return opened, opened.group(asked.group)


class GroupSource:
    """The variables of one netCDF group as they are stored, before decoding.

    Parameters
    ----------
    drop_variables
        Names that the caller does not want.
    undecodable
        Reasons of variables that are known to upset xarray's decoding.

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
    ) -> None:
        self.reopened = partial(GroupSource, opened, group, drop_variables, undecodable)
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
        self.store = opened.store
        if opened.store.remote and opened.store.fetches_ahead:
            keys = [key for item in group.variables.values() for key in _coordinate_keys(item)]
            self.store = PrefetchingStore(opened.store, keys)
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
        """The dataset's encoding: unlimited dimensions, and what the store was found to speak."""
        seen = [*self.group.dimensions.values()]
        for variable in self.group.variables.values():
            seen += variable.dimensions
        return {
            "unlimited_dims": {self._dimension_name(item) for item in seen if item.unlimited},
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
            # Nobody knows its own: a scalar called as a dimension would block all along that.
            dimensions, shape = [name], (self._lengths[name],)
        values = SelectedArray(UnreadableArray(error, dtype, shape))
        return Variable(dimensions, values, xarray_attributes(variable))

    def _open_readable(
        self, name: str | None, variable: NetcdfVariable, dimensions: list[str]
    ) -> None:
        node = readable_node(variable, self.opened.options.assume_endian)
        store = self.store if _coordinate_keys(variable) else self.opened.store
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
        """Give the reason for which there is no codec; a value, to be raised on access."""
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
        """Give the reason for which a dimension's coordinate is too large to be read at once."""
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
        found = (item for each in self.group.variables.values() for item in each.dimensions)
        return {self._dimension_name(item): item.size for item in found}

    def _dimension_name(self, dimension: Dimension) -> str:
        """Give the short name, or the full one where a nearer dimension hides it."""
        nearest = self.visible.get(dimension.name)
        return dimension.name if nearest in (None, dimension) else dimension.path


def _coordinate_keys(variable: NetcdfVariable) -> list[str]:
    """Give the chunks' keys of a small coordinate, which xarray will read to make an index."""
    node = variable.node
    if node is None or node.chunk_runs or not variable.is_coordinate:
        return []
    count = -(-variable.shape[0] // node.object_shape[0])
    small = count <= _PREFETCHED_CHUNKS and node.object_shape[0] <= _PREFETCHED_ELEMENTS
    return [node.chunk_keys.key((index,)) for index in range(count)] if small else []


def readable_node(variable: NetcdfVariable, assume_endian: Endian) -> ArrayNode:
    """Give the array as it is read: of the dimensions' sizes, with a fill value.

    Where it is shorter than a dimension, chunks are missing and read as fill.
    """
    node = variable.node
    assert node is not None
    shape, fill_value = variable.shape or node.shape, variable.fill_value
    if shape == node.shape and fill_value is node.fill_value and not assume_endian:
        return node
    dtype = node.dtype.newbyteorder(assume_endian) if assume_endian else node.dtype
    return replace(node, shape=shape, fill_value=fill_value, dtype=dtype)


def xarray_dtype(variable: NetcdfVariable) -> np.dtype[Any]:
    """Give the dtype that a variable's values come out as."""
    assert variable.node is not None
    stored = variable.node.dtype
    if stored.kind in "UViu":
        # Natively: xarray changes the byte order of numbers only, and only after it has taken the
        # bytes of a big-endian fill value for those of an unsigned one.
        return stored.newbyteorder("=")
    if stored.kind in "mM" and (unit := np.datetime_data(stored))[1] != 1:
        return np.dtype(f"{stored.kind}8[{unit[0]}]")  # pandas has no multiples of a unit
    return create_vlen_dtype(str) if variable.kind == "string" else stored
