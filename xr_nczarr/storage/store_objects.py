"""Store objects of zarr-python and obstore → their locations.

These packages are imported already if one of their objects is here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fsspec import FSMap

from xr_nczarr.storage.store import Store
from xr_nczarr.storage.url import Location, absolute_path, parse_url


def location_of(target: Any) -> Location:
    """Return the location of a store, of a path in it or of a group.

    Where this package has a store of its own for the same place, that one serves: it keeps what is
    written durable, checks what it reads, and retries.
    """
    if any(kind.__module__.startswith("obstore") for kind in type(target).__mro__):
        return _of_obstore(target, "", read_only=False)
    import zarr
    from zarr.abc.store import Store as ZarrStore
    from zarr.storage import StorePath

    if isinstance(target, zarr.Group):
        return replace(_of_zarr(target.store, ""), group=target.path.strip("/"))
    if isinstance(target, StorePath):
        return _of_zarr(target.store, target.path)
    if isinstance(target, ZarrStore):
        return _of_zarr(target, "")
    return Location("")


def _of_zarr(store: Any, path: str) -> Location:
    """Return the location of a folder in a store of zarr-python."""
    from zarr.storage import FsspecStore, LocalStore, ObjectStore, ZipStore

    from xr_nczarr.storage.zarr_python import ZarrPythonStore

    read_only = bool(store.read_only)
    if type(store) is LocalStore:
        location = Location(absolute_path(str(store.root / path)), folder=True)
        return replace(location, read_only=read_only)
    if type(store) is ZipStore and read_only and not path:
        return Location(absolute_path(str(store.path)), read_only=True)
    if type(store) is FsspecStore:
        root = "/".join(filter(None, (store.path.rstrip("/"), path)))
        return replace(parse_url(FSMap(root, store.fs)), read_only=read_only, target=None)
    if type(store) is ObjectStore:
        return _of_obstore(store.store, path, read_only=read_only)
    adapter = ZarrPythonStore(store, path)
    # icechunk holds version 3 alone.
    version = "3" if adapter.v3_only else None
    return Location("", zarr_format=version, read_only=read_only, target=adapter)


def _of_obstore(store: Any, path: str, *, read_only: bool) -> Location:
    """Return the location of a folder in a store of obstore."""
    from xr_nczarr.storage.obstore import ObstoreStore

    if type(store).__name__ == "LocalStore" and store.prefix is not None:
        location = Location(absolute_path(f"{store.prefix}/{path}"), folder=True)
        return replace(location, read_only=read_only)
    adapter: Store = ObstoreStore(store, path)
    return Location("", read_only=read_only, target=adapter)
