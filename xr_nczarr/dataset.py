"""Open a store from any supported target, and read its hierarchy and netCDF groups.

This is the only module that resolves targets to stores. It imports neither xarray nor dask, so
most subcommands of ``nczarr`` start without importing them.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.errors import NczarrError, NotFoundError, UnsupportedError, quote
from xr_nczarr.formats.format import Hierarchy
from xr_nczarr.hierarchy import HierarchyOptions, RecordSetError, open_hierarchy
from xr_nczarr.model import group_path
from xr_nczarr.netcdf import Dimension, Group, Variable, interpret
from xr_nczarr.netcdf.annotations import BY_DIALECT, SIDECARS, is_annotated, listed_children
from xr_nczarr.options import OpenOptions
from xr_nczarr.references.recognition import names_reference_set
from xr_nczarr.storage import Access, Bytes, Location, MemoizingStore, RolledBackStore, Store
from xr_nczarr.storage.location import parse_target
from xr_nczarr.storage.open_store import open_store
from xr_nczarr.storage.url import mask

_log = logging.getLogger(__name__)
# Print nothing unless the calling program configures logging.
logging.getLogger("xr_nczarr").addHandler(logging.NullHandler())

_MAX_NAMED_GROUPS = 20


@dataclass(frozen=True, slots=True)
class ResolvedTarget:
    """The location and the store to which a target resolves."""

    location: Location
    store: Store

    def check_writable(self) -> None:
        """Raise UnsupportedError if the target cannot be written to."""
        if self.location.read_only:
            raise UnsupportedError(
                "this store is read-only",
                remedy="Open the store for writing",
                store=self.store.name,
            )
        if self.location.group:
            raise UnsupportedError(
                f"the target must be a store, not the group {quote(self.location.group)!r}",
                remedy="Pass the store as the target, and the path of the group as group=",
                store=self.store.name,
            )
        self.store.check_writable()


def resolve(
    target: object, access: Access | None = None, *, must_exist: bool = True
) -> ResolvedTarget:
    """Resolve a target to its location and its store.

    No remote requests are made, except to read a reference set. However, fsspec may make requests
    when it creates a filesystem, for example for an archive in a chained URL.

    Parameters
    ----------
    target
        A path, an fsspec or NCZarr URL, a mapping of keys to bytes, an fsspec mapper or open file,
        a reference set, a zarr-python store or group, an icechunk or obstore store, or a `Store`.
        Alternatively, the result of `parse_target` for any of these.
    must_exist
        Whether the store or reference set must already exist. Pass False to create a store.

    Raises
    ------
    NotFoundError
        If `must_exist` is true, and the reference set or local store does not exist. Other stores
        are not checked.
    UnsupportedError
        If `must_exist` is false, but the target is a reference set, which is always read-only.
    """
    location, access = parse_target(target), access or Access()
    store: Store | None = None
    if location.is_reference_set and not must_exist:
        raise UnsupportedError(
            "reference sets are read-only",
            remedy="Write to a store instead, for example to a copy made with xr_nczarr.copy",
            store=mask(location.url) or None,
        )
    if must_exist and names_reference_set(location, access.options):
        from xr_nczarr.references.opening import open_references

        store = open_references(location, access)
    store = store or open_store(location, access, must_exist=must_exist)
    return ResolvedTarget(location, store)


@dataclass(frozen=True, slots=True)
class OpenedStore:
    """An open store, with its hierarchy and its netCDF groups.

    Attributes
    ----------
    root
        The root of the tree of netCDF groups.
    target
        The target as the caller passed it.
    target_group
        Path of the group that the target itself names, for example in a URL. Empty if the target
        names no group.
    """

    store: Store
    hierarchy: Hierarchy
    root: Group
    options: OpenOptions
    target: Any
    target_group: str = ""

    def group(self, path: str | None) -> Group:
        """Return the group at `path`.

        If the target names a group, `path` is relative to that group. If `path` is None, return the
        group that the target names, or the root if the target names no group.

        Raises
        ------
        NotFoundError
            If there is no group at `path`. The message lists the existing groups.
        NczarrError
            If the group or one of its ancestors is unreadable.
        """
        group = self.root
        path = f"{self.target_group}/{path or ''}".strip("/") if self.target_group else path
        for name in filter(None, (path or "").split("/")):
            if name not in group.groups:
                raise NotFoundError(
                    f"unknown group {quote(path)!r}",
                    remedy=self._present_groups(),
                    store=self.store.name,
                )
            group = group.groups[name]
            self.check_readable(group)
        return group

    def check_readable(self, group: Group) -> None:
        """Raise the error recorded for a group, if the group is unreadable."""
        if group.error is not None and group.is_unreadable:
            raise group.error.add_context(store=self.store.name)

    def _present_groups(self) -> str:
        options = replace(self.options, group=None, storage_options=None)
        try:
            walked = open_netcdf(self.store, options).root.walk()
            present = (group.path.strip("/") for group in walked if not group.is_unreadable)
            paths = list(islice(present, _MAX_NAMED_GROUPS + 2))
        except NczarrError:
            return "Call xr_nczarr.info (nczarr info) to list the groups"
        names = [repr(quote(path)) for path in paths if path]
        more = ", …" if len(names) > _MAX_NAMED_GROUPS else ""
        listed = ", ".join(names[:_MAX_NAMED_GROUPS]) + more
        return f"The groups are {listed}" if names else "There are no groups"

    def array(self, variable: Variable) -> ChunkedArray:
        """Return the chunked array from which the stored values of a variable can be read."""
        return ChunkedArray(variable.readable_node, self.store, self.options.reading)

    def visible_dimensions(self, path: str) -> dict[str, Dimension]:
        """Return the dimensions that variables of the group at `path` can use, by short name.

        A group inherits the dimensions of its ancestors. A dimension hides an inherited dimension
        of the same name.
        """
        group = self.root
        visible = dict(group.dimensions)
        for name in filter(None, path.split("/")):
            group = group.groups[name]
            visible |= group.dimensions
        return visible


def open_netcdf(
    target: Any,
    options: OpenOptions,
    *,
    subgroups: bool = True,
    dropped: Collection[Hashable] = (),
    with_sidecars: bool = False,
    documents: dict[str, Bytes | None] | None = None,
) -> OpenedStore:
    """Open a target, such as a path, URL or mapping, as a tree of netCDF groups.

    Parameters
    ----------
    target
        See `resolve`.
    subgroups
        Whether to read the subgroups of the requested group.
    dropped
        Names of variables that will not be used; see `interpret`.
    with_sidecars
        Whether to read the sidecars (the NCZarr objects next to the Zarr metadata) as well. Writing
        to the store requires them.
    documents
        A cache that maps keys to the bytes of metadata documents, or to None for a document that
        does not exist. Fetched documents are added to the cache, and cached documents are not
        fetched again.
    """
    resolved = resolve(target, options.access)
    location = resolved.location
    version = options.zarr_format or location.zarr_format
    consolidated = location.consolidated if options.consolidated is None else options.consolidated
    group = group_path(f"{location.group}/{options.group or ''}")
    search = HierarchyOptions(
        zarr_format=None if version is None else str(version),
        consolidated=consolidated,
        group=group,
        subgroups=subgroups,
        listed_children=listed_children,
        sidecars=SIDECARS,
        with_sidecars=with_sidecars,
        consolidated_first=documents is None,
        data_type_fallback=options.on_unsupported == "fallback",
        limits=options.bounds,
    )
    store, hierarchy = _read_hierarchy(resolved, search, options.access, documents)
    masks, zero_masks = options.use_zarr_fill_value_as_mask, store.zero_fill_is_missing
    if hierarchy.previous_objects:
        store = RolledBackStore(store, hierarchy.previous_objects)
    root = interpret(
        hierarchy,
        use_zarr_fill_value_as_mask=masks,
        zero_masks=zero_masks,
        group=group,
        subgroups=subgroups,
        dropped=dropped,
    )
    if options.assume_endian is None:
        _warn_of_big_endian(root, store)
    else:
        _set_byte_order(root, options.assume_endian)
    if masks is None and not (zero_masks or hierarchy.zarr.requires_fill_value):
        _log_unmasked_zeros(root, store)
    for defect in (defect for item in root.walk() for defect in item.defects):
        _log.warning("%s: %s", store.name, defect)
    return OpenedStore(store, hierarchy, root, options, target, location.group)


def _read_hierarchy(
    resolved: ResolvedTarget,
    options: HierarchyOptions,
    access: Access,
    documents: dict[str, Bytes | None] | None,
) -> tuple[Store, Hierarchy]:
    """Read the hierarchy of a store, and return the store and the hierarchy.

    If the store contains a reference set in parquet files, open the set, and return its store and
    hierarchy instead.
    """
    location, store = resolved.location, resolved.store
    source = store if documents is None else MemoizingStore(store, documents)
    try:
        return store, open_hierarchy(source, options)
    except RecordSetError as error:
        if not (location.url or isinstance(location.target, Mapping)):
            raise  # a store object has no URL against which relative URLs could be resolved
        from xr_nczarr.references.opening import open_record_set

        references = open_record_set(location, store, error.document, access)
        return references, open_hierarchy(references, options)


def _set_byte_order(root: Group, endian: Literal["little", "big"]) -> None:
    for variable in root.all_variables():
        if variable.node is not None:
            dtype = variable.node.dtype.newbyteorder(endian)
            variable.node = replace(variable.node, dtype=dtype)


def _warn_of_big_endian(root: Group, store: Store) -> None:
    """Warn about big-endian variables that netCDF-C may have stored as little-endian by mistake."""
    names = [
        variable.path
        for group in root.walk()
        if group.dialect in BY_DIALECT and not BY_DIALECT[group.dialect].is_current
        for variable in group.variables.values()
        if variable.node is not None
        and variable.kind == "number"
        and variable.node.dtype.byteorder == ">"
    ]
    if names:
        warnings.warn(
            f"{store.name}: variables declared as big-endian ({', '.join(names)}) may contain "
            "little-endian numbers, which netCDF-C up to 4.9.2 stored by mistake. If their values "
            "are wrong, pass assume_endian='little' to open or copy the store",
            stacklevel=2,
        )


def _log_unmasked_zeros(root: Group, store: Store) -> None:
    """Log a warning that names the arrays whose zeros are not masked."""
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
            "%s: the fill_value 0 of %s is not treated as missing data, because it may be the "
            "HDF5 default. Pass use_zarr_fill_value_as_mask=True if zeros are missing values, "
            "or False if they are not",
            store.name,
            ", ".join(names),
        )


def open_all_groups(
    target: Any, options: OpenOptions, *, documents: dict[str, Bytes | None] | None = None
) -> tuple[OpenedStore, Group]:
    """Open all groups of a store, and return the opened store and the group at ``options.group``.

    For `documents`, see `open_netcdf`.
    """
    opened = open_netcdf(target, replace(options, group=None), documents=documents)
    return opened, opened.group(options.group)
