"""What a user names → the store that is there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from xr_nczarr.errors import (
    AccessDeniedError,
    ConflictError,
    NczarrError,
    NotFoundError,
    UnsupportedError,
)
from xr_nczarr.model import DEFAULT_LIMITS, Limits
from xr_nczarr.storage.caching import CachingStore
from xr_nczarr.storage.filesystem import FilesystemStore
from xr_nczarr.storage.local import LocalStore
from xr_nczarr.storage.memory import MemoryStore
from xr_nczarr.storage.reference_opening import open_references
from xr_nczarr.storage.retries import Retry
from xr_nczarr.storage.store import Store
from xr_nczarr.storage.system import Sync
from xr_nczarr.storage.trust import Trust
from xr_nczarr.storage.url import (
    Location,
    check_chain,
    check_unused,
    is_protocol,
    mask,
    merge_options,
    parse_url,
    split_name,
    split_query,
)
from xr_nczarr.storage.zip import ZipStore

_NCZARR_MARKS = (b"_nczarr_", b"_NCZARR_", b"nczarr_version")
_ROOT_KEYS = (".zattrs", ".zgroup", ".nczarr", "zarr.json", ".zmetadata")
_SNIFFED_BYTES = 64 << 10
# Of fsspec's simplecache, which say how long it keeps objects: here as long as there is its folder.
_CACHE_OPTIONS = ("cache_check", "check_files", "expiry_time", "same_names", "target_protocol")


def open_store(
    target: Any,
    *,
    storage_options: Mapping[str, Any] | None = None,
    must_exist: bool = True,
    limits: Limits = DEFAULT_LIMITS,
    retry: Retry | None = None,
    missing_status: tuple[int, ...] = (404,),
    sync: Sync = "commit",
    follow_symlinks: bool = True,
    trusted: bool = True,
) -> Store:
    """Return the store that `target` names. Nothing remote is requested yet.

    Parameters
    ----------
    target
        A path, a URL of fsspec, an NCZarr URL, a mapping of keys to bytes, a mapper or an opened
        file of fsspec, a reference set (see `open_references`), or a store.
    storage_options
        For fsspec; they go before what the URL itself says. Of a reference set: `ReferenceOptions`.
    must_exist
        Whether a store or reference set has to be there; otherwise a store is to be made.
    retry, missing_status
        See `FilesystemStore`.
    sync, follow_symlinks
        See `LocalStore`.
    trusted
        Whether local links may be followed, servers send on to others, and a reference set name
        more than its own folder.

    Raises
    ------
    NotFoundError
        When a local store has to be there, and nothing is.
    ConflictError
        When the fragment of the URL says otherwise than what is there.
    UnsupportedError
        When what is there, or what `target` is, is no kind of store; for options that have no use.
    """
    location = parse_url(target)
    if must_exist:
        references = open_references(
            target, storage_options, limits=limits, retry=retry, trusted=trusted
        )
        if references is not None:
            return references
    largest = max(limits.max_chunk_bytes, limits.max_consolidated_bytes)
    rules: Any = {"retry": retry, "missing_status": missing_status, "most_bytes": largest}
    if not location.url:
        check_unused(storage_options or {}, location)
        return _open_object(target)
    if location.url.startswith("reference::"):
        raise UnsupportedError("a reference set is read only", store=mask(location.url))
    if location.path is not None:
        path = location.path
        local = LocalStore(path, sync, must_exist, follow_symlinks and trusted, largest)
        # fsspec would write over files in place: half of one would be left of a killed write.
        return local if location.folder else _open_local(location, local)

    def connect(url: str, options: Mapping[str, Any]) -> FilesystemStore:
        trust = None if trusted else Trust.below(url)
        if location.filesystem is not None:
            return FilesystemStore.within(location.filesystem, url, trust=trust, **rules)
        return FilesystemStore.connect(url, options, trust=trust, **rules)

    given = storage_options or {}
    if location.filesystem is None:
        options = merge_options(location.storage_options, given)
        return _open_remote(_checked_url(location, given), options, connect, largest)
    check_unused(given, location)
    if location.folder:
        return connect(location.url, {})
    return _open_remote(location.url, {}, connect, largest)


def has_nczarr_metadata(target: Any) -> bool:
    """Tell whether `target` is NCZarr on strong evidence; nothing remote is touched.

    That is a URL whose fragment says so, or a local store whose root bears NCZarr metadata. What
    is damaged is no evidence.
    """
    if not isinstance(target, str | os.PathLike):
        return False
    try:
        location = parse_url(target)
        if location.format is not None or location.path is None:
            return location.format is not None
        if os.path.isdir(location.path):
            found = [_beginning(f"{location.path}/{key}") for key in _ROOT_KEYS]
        elif _is_zip(location.path):
            objects = ZipStore.local(location.path).fetch(_ROOT_KEYS)
            found = [bytes(data or b"")[:_SNIFFED_BYTES] for data in objects]
        else:
            return False
    except NczarrError:
        return False
    return any(mark in text for text in found for mark in _NCZARR_MARKS)


def _open_local(location: Location, local: LocalStore) -> Store:
    """Give the store at a local path: what is there decides, the fragment may not contradict."""
    path = local.root
    if os.path.isdir(path):
        found = "file"
    elif not os.path.lexists(path):
        if local.must_exist:
            raise NotFoundError("it does not exist", store=path)
        found = "zip" if (location.medium or path[-4:]) in ("zip", ".zip") else "file"
    elif _is_zip(path):
        found = "zip"
    elif not os.access(path, os.R_OK):
        raise AccessDeniedError("Permission denied", store=path)
    else:
        raise UnsupportedError(
            f"found a file that begins with {_beginning(path)[:8]!r}, expected a directory or zip",
            remedy="Files are for xarray's other engines; nczarr copy makes a store of one",
            store=path,
        )
    if location.medium not in (None, found):
        names = {"file": "a directory", "zip": "a zip file", "s3": "an S3 bucket"}
        raise ConflictError(
            f"the URL says {location.medium} ({names[location.medium]}), found {names[found]}",
            remedy=f"Say mode={found}, or leave it out.",
            store=path,
        )
    if found == "zip":
        return ZipStore.local(path, max_object_bytes=local.max_object_bytes, sync=local.sync)
    return local


def _open_object(target: Any) -> Store:
    """Return the store that a mapping is, or a store itself."""
    if isinstance(target, Mapping):
        return MemoryStore(target)
    if isinstance(target, Store):
        return target
    raise UnsupportedError(
        f"a {type(target).__name__} does not name a store",
        remedy="Give a path, a URL with storage_options, a mapping, a mapper of fsspec, or a file "
        "that fsspec opened",
    )


def _checked_url(location: Location, options: Mapping[str, Any]) -> str:
    """Return the URL of a remote place, all of whose parts have a use, as have the options."""
    url = location.url
    check_chain(url)
    location.check_medium("s3", "zip")
    links = [link.partition("://")[0] for link in url.split("::")]
    unused = [name for name in options if is_protocol(name) and name not in links]
    check_unused({name: options[name] for name in unused}, location)
    return f"zip::{url}" if location.medium == "zip" and "zip" not in links[:-1] else url


def _open_remote(
    url: str,
    options: dict[str, Any],
    connect: Callable[[str, Mapping[str, Any]], FilesystemStore],
    largest: int,
) -> Store:
    """Return the store at a URL of fsspec; zip files and simple caches in the chain are ours."""
    link, chained, rest = url.partition("::")
    link = link.removesuffix("://")
    if chained and link == "zip":
        return _open_zip(rest, _behind(rest, options) or options, connect, largest)
    if chained and link == "simplecache":
        source = _open_remote(rest, _behind(rest, options), connect, largest)
        own = {**_unnamed(options), **options.get(link, {})}
        folder = own.pop("cache_storage", None)
        check_unused({name: own[name] for name in own if name not in _CACHE_OPTIONS})
        return CachingStore(source, rest, None if folder is None else os.path.abspath(folder))
    path, _ = split_query(url)
    if path.endswith(".zip") and not chained:
        return _open_zip(url, options, connect, largest)
    if not chained:
        scheme = url.partition("://")[0]
        options = {**_unnamed(options), **options.get(scheme, {})}
    return connect(url, options)


def _open_zip(
    url: str,
    options: dict[str, Any],
    connect: Callable[[str, Mapping[str, Any]], FilesystemStore],
    largest: int,
) -> ZipStore:
    path, query = split_query(url)
    folder, name = split_name(path)
    holder = _open_remote(folder + query, options, connect, largest)
    return ZipStore(holder, name, max_object_bytes=largest)


def _behind(rest: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are for what a link of a chain leads to."""
    scheme = rest.partition("::" if "::" in rest else "://")[0].partition("://")[0]
    named = {name: options[name] for name in options if is_protocol(name)}
    return {**options.get("target_options", {}), **named.pop(scheme, {}), **named}


def _unnamed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are for the first link: those under no protocol's name."""
    return {name: options[name] for name in options if not is_protocol(name)}


def _is_zip(path: str) -> bool:
    return _beginning(path)[:4] in (b"PK\x03\x04", b"PK\x05\x06")


def _beginning(path: str) -> bytes:
    """Give the first bytes of a plain file, none of anything else."""
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        return b""
    size = min(os.path.getsize(path), _SNIFFED_BYTES)
    with open(path, "rb") as file:
        return file.read(size)
