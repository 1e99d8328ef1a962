"""What lies where a store is to be written: a store, something else, or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from xr_nczarr.dataset import OpenedStore, open_netcdf
from xr_nczarr.errors import ConflictError, ExistsError, NczarrError, NotFoundError, RefusedError
from xr_nczarr.formats import FORMATS
from xr_nczarr.model import ArrayNode, Node
from xr_nczarr.netcdf.annotations import is_universal
from xr_nczarr.options import OpenOptions
from xr_nczarr.storage import WRITER_LOCK, Listing, Store, is_desktop_file

UNFINISHED = ".nczarr_unfinished"
"""Object that marks what is written in place from nothing: where no dataset is, leave to remove."""


def open_existing(store: Store, mode: str) -> OpenedStore | None:
    """Open what is there; None for nothing, and for what was never finished."""
    try:
        opened = open_netcdf(store, OpenOptions())
    except NotFoundError:
        return None
    consolidated, universal = opened.hierarchy.consolidated, is_universal(opened.root.node)
    if mode == "r+" or not (consolidated or universal):
        return opened
    # Another program may have left the consolidated document behind: the single ones count.
    single = open_netcdf(store, OpenOptions(consolidated=False), with_sidecars=universal)
    return replace(single, hierarchy=replace(single.hierarchy, consolidated=consolidated))


def exists(opened: OpenedStore, path: str) -> bool:
    """Tell whether there is a group; one that is a variable is an error."""
    group = opened.root
    for name in filter(None, path.split("/")):
        if name in group.variables:
            where = group.variables[name].path
            raise ConflictError(
                f"{where} is a variable, no group",
                remedy="Choose another name",
                store=opened.store.name,
            )
        if name not in group.groups:
            return False
        group = group.groups[name]
    return True


def _holds_no_store(store: Store) -> bool:
    """Tell whether something is there that nobody wrote as a store."""
    names = _names(store)
    known = {UNFINISHED, *(key for zarr in FORMATS.values() for key in zarr.root_keys())}
    objects = {*names.objects} - {WRITER_LOCK}
    return bool(objects or names.prefixes) and not known & objects


def is_nothing(store: Store) -> bool:
    """Return whether there is no object at all, but what a file manager leaves."""
    return _names(store) == ([], [])


def _names(store: Store) -> Listing:
    try:
        objects, prefixes = store.list_names("")
    except NotFoundError:  # a zip file that is to be made
        return Listing([], [])
    return Listing([name for name in objects if not is_desktop_file(name)], prefixes)


def check_names(
    store: Store, zarr_format: str, added: Mapping[str, Node], kept: Iterable[str] = ()
) -> None:
    """Refuse nodes whose names a file system does not know, or takes for those of others.

    `kept` are the paths of nodes that are there and stay; see `Store.check_new_keys`.
    """
    zarr = FORMATS[zarr_format]
    keys = {
        key: path for path in added for key in (*zarr.node_keys(path), zarr.chunk_keys(path).scalar)
    }
    there = (key for path in kept for key in zarr.node_keys(path))
    try:
        store.check_new_keys(keys, there)
    except NczarrError as error:
        path = keys.get(error.key or "")
        if path is not None and isinstance(added[path], ArrayNode):
            error.located(variable=path)
        raise


def check_empty(store: Store) -> None:
    """Refuse to write into what nobody wrote as a store."""
    if _holds_no_store(store):
        raise ExistsError(
            "something is there that is no Zarr store",
            remedy="Choose another target, or remove it first",
            store=store.name,
        )


def check_removable(store: Store, overwrite: str | None) -> None:
    """Refuse to remove what nobody wrote as a store, unless it is asked for."""
    if overwrite != "force" and _holds_no_store(store):
        raise RefusedError(
            "what is there is no Zarr store, and mode='w' would remove it",
            remedy="Choose another target, or pass overwrite='force'",
            store=store.name,
        )
