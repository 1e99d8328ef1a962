"""Open the store at a location: a directory, a zip file, a URL, a mapping or a store object."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from inspect import signature
from itertools import pairwise
from typing import Any, get_args

from xr_nczarr.errors import (
    AccessDeniedError,
    ConflictError,
    NotFoundError,
    UnsupportedError,
    quote,
    unknown,
)
from xr_nczarr.model import DEFAULT_LIMITS, Limits
from xr_nczarr.storage.clients import connection
from xr_nczarr.storage.fsspec_client import FsspecClient
from xr_nczarr.storage.local import LocalStore
from xr_nczarr.storage.location import (
    Location,
    Medium,
    StoreObject,
    absolute_path,
    defining_packages,
)
from xr_nczarr.storage.memory import MemoryStore
from xr_nczarr.storage.obstore_client import ObstoreClient
from xr_nczarr.storage.remote import RemoteStore
from xr_nczarr.storage.remote_client import Expected, RemoteClient, Rules
from xr_nczarr.storage.retries import CHECK_PERMISSIONS, Retry
from xr_nczarr.storage.store import Store
from xr_nczarr.storage.system import Sync
from xr_nczarr.storage.trust import ConfinedTrust
from xr_nczarr.storage.url import CACHES, local_path, mask, split_name, split_query
from xr_nczarr.storage.wrappers import CachingStore
from xr_nczarr.storage.zip import ZipStore

# Storage options of this package, besides `client`.
_OWN_OPTIONS = ("retry", "missing_status", "sync")
# Options of fsspec's simplecache that are accepted, but have no effect. For example, cached objects
# never expire; they are kept as long as their folder exists.
_CACHE_OPTIONS = ("cache_check", "check_files", "expiry_time", "same_names", "target_protocol")

_CONVERT = (
    "Open the file with another xarray engine, or convert it with xr_nczarr.copy (nczarr copy)"
)
_OTHER_ENGINE = (
    "If another xarray engine can read the file, open it with that engine, or convert it using the "
    '"engine" option of xr_nczarr.copy (nczarr copy)'
)
_RENAME = (
    "If the file is part of a Zarr store, pass the folder of the store. If it is a reference set, "
    "give it a name that ends in .json"
)
# The first bytes of files that are not stores, each with the kind of file and a remedy.
_FILE_KINDS = {
    b"\x89HDF": ("a netCDF-4 or HDF5 file", _CONVERT),
    b"CDF": ("a netCDF-3 file", _CONVERT),
    b"GRIB": ("a GRIB file", _OTHER_ENGINE),
    b"{": ("a JSON document", _RENAME),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """The options for opening and accessing stores.

    Attributes
    ----------
    storage_options
        Options for fsspec, which override the options in the URL. The following options are not
        passed to fsspec: `retry` and `missing_status` (see `Rules`), `sync` (see `LocalStore`) and
        `client` (``"fsspec"`` or ``"obstore"``).
    limits
        Limits on the size of objects. Reading a larger object raises LimitError before any memory
        is allocated.
    trusted
        Whether the content of the store is trusted. If not, symbolic links must not point outside
        the directory of the store, and servers must not redirect to URLs outside the store.
    """

    storage_options: Mapping[str, Any] | None = None
    limits: Limits = DEFAULT_LIMITS
    trusted: bool = True

    def __post_init__(self) -> None:
        _ = self.rules, self.sync

    @property
    def options(self) -> dict[str, Any]:
        """The storage options for the client: all except `retry`, `missing_status` and `sync`."""
        options = self.storage_options or {}
        return {name: options[name] for name in options if name not in _OWN_OPTIONS}

    @property
    def rules(self) -> Rules:
        """The rules for requests: retries, size limits, and what counts as a missing object."""
        options = self.storage_options or {}
        retry = options.get("retry") or {}
        if not isinstance(retry, Retry | Mapping):
            raise ValueError(f'"retry" must be a Retry object or a mapping, not {retry!r}')
        if isinstance(retry, Mapping):
            names = [item.name for item in fields(Retry)]
            for name in retry:
                if name not in names:
                    raise ValueError(str(unknown("retry option", name, names)))
            retry = Retry(**retry)
        statuses = options.get("missing_status", (404,))
        if not isinstance(statuses, list | tuple) or not all(isinstance(s, int) for s in statuses):
            raise ValueError(
                f'"missing_status" must be a sequence such as (403, 404), not {statuses!r}'
            )
        return Rules(
            retry=retry, missing_status=tuple(statuses), max_object_bytes=self.max_object_bytes
        )

    @property
    def sync(self) -> Sync:
        """When to flush written files to the local disk; see `LocalStore`."""
        sync = (self.storage_options or {}).get("sync", "commit")
        if sync not in get_args(Sync):
            choices = ", ".join(map(repr, get_args(Sync)))
            raise ValueError(f'"sync" must be one of {choices}, not {sync!r}')
        return sync  # type: ignore[no-any-return]

    @property
    def max_object_bytes(self) -> int:
        """Maximum size of an object in bytes."""
        return max(self.limits.max_chunk_bytes, self.limits.max_consolidated_bytes)


DEFAULT_ACCESS = Access()


def open_store(
    location: Location, access: Access = DEFAULT_ACCESS, *, must_exist: bool = True
) -> Store:
    """Open the store at a location.

    No remote requests are made, except by fsspec when it creates the filesystem, for example to
    open an archive in a chained URL.

    Parameters
    ----------
    must_exist
        Whether a local store must exist. If False, writing to the store may create it.

    Raises
    ------
    NotFoundError
        If `must_exist` is true, and a local store does not exist.
    AccessDeniedError
        If a local file cannot be read.
    ConflictError
        If the fragment of the URL contradicts the rest of the URL or the kind of a local store.
    UnsupportedError
        If the target is not a store, or if a storage option or a part of the URL would have no
        effect.
    RefusedError
        If the location is untrusted, and fsspec would follow its symbolic links.
    """
    if location.path is not None:
        local = _local_store(location.path, access, must_exist=must_exist)
        return local if location.folder else _open_local(location, local)
    if location.filesystem is not None:
        _check_unused(access.options, location)
        open_at = open_url if location.folder else _open_chain
        return open_at(location.url, {}, access, filesystem=location.filesystem)
    if location.url:
        options = merge_options(location.storage_options, access.options)
        return _open_chain(_checked_url(location, access.options), options, access)
    _check_unused(access.options, location)
    return _open_object(location.target, access)


def open_url(
    url: str, options: Mapping[str, Any], access: Access = DEFAULT_ACCESS, *, filesystem: Any = None
) -> LocalStore | RemoteStore:
    """Open the folder at a path or an fsspec URL.

    No remote requests are made, except by fsspec when it creates the filesystem, for example to
    open an archive in a chained URL.

    Parameters
    ----------
    options
        Options for the client. They are used instead of ``access.options``.
    filesystem
        The filesystem to use. If None, the URL and `options` determine the client.
    """
    trust = None if access.trusted else ConfinedTrust.below(url)
    rules = replace(access.rules, trust=trust)
    if filesystem is not None:
        return RemoteStore(FsspecClient.within(filesystem, url, rules))
    path = local_path(url)
    if path is not None:
        _check_unused(options)
        return _local_store(absolute_path(path), access)
    return RemoteStore(connection(url, options, rules))


def _local_store(path: str, access: Access, *, must_exist: bool = False) -> LocalStore:
    # fsspec is not used for local files, because it follows all symbolic links. It also overwrites
    # files in place, so a process that is killed while writing leaves a truncated file.
    return LocalStore(path, access.sync, must_exist, access.trusted, access.max_object_bytes)


def _open_local(location: Location, local: LocalStore) -> Store:
    """Return the store at a local path, which is a directory or a zip file.

    `local` is the store to return for a directory, and supplies the options for a zip file.
    """
    path = local.root
    if os.path.isdir(path):
        medium: Medium = "file"
    elif not os.path.lexists(path):
        if local.must_exist:
            raise NotFoundError("the path does not exist", store=path)
        medium = "zip" if (location.medium or path[-4:]) in ("zip", ".zip") else "file"
    elif _is_zip(path):
        medium = "zip"
    elif not os.access(path, os.R_OK):
        problem = "the path cannot be read: permission denied"
        raise AccessDeniedError(problem, remedy=CHECK_PERMISSIONS, store=path)
    else:
        raise _not_a_store(path, must_exist=local.must_exist)
    if location.medium not in (None, medium):
        names = {"file": "a directory", "zip": "a zip file", "s3": "an S3 bucket"}
        raise ConflictError(
            f"the path is {names[medium]}, but mode={location.medium} in the URL "
            f"requests {names[location.medium]}",
            remedy=f"Specify mode={medium} instead, or leave out the mode",
            store=path,
        )
    if medium == "zip":
        return _local_zip(path, local.sync, local.max_object_bytes)
    return local


def _local_zip(path: str, sync: Sync, max_object_bytes: int) -> ZipStore:
    folder, name = os.path.split(path)
    # The limit applies to the objects in the zip file. The file itself may be larger.
    archive = LocalStore(folder, sync, max_object_bytes=1 << 62)
    return ZipStore(archive, name, max_object_bytes)


def _not_a_store(path: str, *, must_exist: bool) -> UnsupportedError:
    """Return the error for a file that is not a store."""
    beginning = _beginning(path)
    unknown_kind = "a file of unknown format" if beginning else "an empty file"
    kinds = (kind for magic, kind in _FILE_KINDS.items() if beginning.startswith(magic))
    kind, remedy = next(kinds, (unknown_kind, _OTHER_ENGINE))
    # If the store need not exist, the path is the target of a write.
    return UnsupportedError(
        f"the path is {kind}; expected a directory, a zip file or a reference set",
        remedy=remedy if must_exist else "Choose another target, or remove the file",
        store=path,
    )


def _open_object(target: Any, access: Access) -> Store:
    if isinstance(target, StoreObject):
        return RemoteStore(_client_of(target, access), Expected(access.max_object_bytes))
    # An xarray Dataset is a mapping too, but of names to arrays.
    if isinstance(target, Mapping) and "xarray" not in defining_packages(target):
        return MemoryStore(target)
    if isinstance(target, Store):
        return target
    raise UnsupportedError(
        f"an object of type {type(target).__name__} cannot be opened as a store",
        remedy="Pass a path, a URL, a mapping, an fsspec mapper, an open fsspec file, or a "
        "zarr-python, obstore or Icechunk store (for example, session.store)",
    )


def _client_of(target: StoreObject, access: Access) -> RemoteClient:
    store, path, unwrapped = target
    if "obstore" in defining_packages(store):
        rules = access.rules
        if "retry" not in (access.storage_options or {}):  # the store itself retries requests
            rules = replace(rules, retry=Retry(attempts=1))
        return ObstoreClient(store, path, rules)
    from xr_nczarr.storage.zarr_python_client import ZarrPythonClient

    same = None if unwrapped is None else open_store(unwrapped, must_exist=False)
    return ZarrPythonClient(store, path, same)


def _checked_url(location: Location, options: Mapping[str, Any]) -> str:
    """Return the URL of a remote store, adding ``zip::`` if the fragment requests a zip file."""
    url = location.url
    _check_chain(url)
    location.check_medium("s3", "zip")
    links = [link.partition("://")[0] for link in url.split("::")]
    unused = {name: options[name] for name in options if is_protocol(name) and name not in links}
    _check_unused(unused, location)
    return f"zip::{url}" if location.medium == "zip" and "zip" not in links[:-1] else url


def _check_chain(url: str) -> None:
    """Raise UnsupportedError if fsspec cannot open a chained URL or would ignore part of it."""
    from fsspec import get_filesystem_class
    from fsspec.implementations.cached import CachingFileSystem

    for link, next_link in pairwise(url.split("::")):
        protocol, _, path = link.partition("://")
        next_protocol, _, next_path = next_link.partition("://")
        if protocol == next_protocol == "zip" and not (path or next_path):
            problem = "the chained URL does not contain the path of the inner zip file"
            remedy = "Add the path to the second part of the URL, as in zip://…::zip://inner.zip::…"
        elif protocol in CACHES and protocol != "simplecache" and next_protocol in CACHES:
            # Most combinations of caches fail.
            problem = f"{protocol} cannot precede another cache in a chained URL"
            remedy = "Leave out one of the caches"
        elif not is_protocol(protocol):
            continue
        elif path and issubclass(get_filesystem_class(protocol), CachingFileSystem):
            # fsspec would ignore the path.
            problem = f"{protocol} does not accept a path in a chained URL"
            remedy = "Leave out the path"
        elif not _is_wrapper(get_filesystem_class(protocol)):
            # fsspec would ignore the rest of the URL.
            problem = f"{protocol} cannot precede another URL in a chained URL"
            remedy = "Leave out this part of the URL"
        else:
            continue
        raise UnsupportedError(problem, remedy=remedy, store=mask(url))


def _is_wrapper(kind: type) -> bool:
    """Return whether an fsspec filesystem class can wrap another filesystem in a chained URL."""
    names = {"fo", "target_protocol"}
    inits = (vars(base).get("__init__") for base in kind.__mro__ if base is not object)
    return any(names & signature(init).parameters.keys() for init in inits if init is not None)


def _check_unused(
    options: Mapping[str, Any], location: Location | None = None, remedy: str = ""
) -> None:
    """Raise UnsupportedError for storage options that would have no effect.

    Options that were used to create the filesystem of `location` are accepted.
    """
    same = {} if location is None else getattr(location.filesystem, "storage_options", {})
    for name, value in options.items():
        if name not in ("asynchronous", "loop") and (name not in same or same[name] != value):
            raise UnsupportedError(
                f'the storage option "{quote(name)}" has no effect on this target',
                remedy=remedy
                or "Leave out the option, or check its name. Storage options apply only to URLs",
                store=None if location is None else mask(location.url) or None,
            )


def _open_chain(
    url: str, options: Mapping[str, Any], access: Access, *, filesystem: Any = None
) -> Store:
    """Return the store at an fsspec URL, which may be chained; for `filesystem`, see `open_url`."""
    link, chained, rest = url.partition("::")
    link = link.removesuffix("://")
    if chained and link == "simplecache":
        source = _open_chain(rest, _options_after(rest, options), access)
        cache_options = _options_of(link, options)
        folder = cache_options.pop("cache_storage", None)
        for name in _CACHE_OPTIONS:
            cache_options.pop(name, None)
        scheme, mark, _ = rest.rpartition("::")[2].partition("://")
        nested = f'Pass the options for {scheme}:// as storage_options={{"{scheme}": {{…}}}}'
        _check_unused(cache_options, remedy=nested if mark else "")
        return CachingStore(source, rest, None if folder is None else os.path.abspath(folder))
    is_zip = chained and link == "zip"
    if is_zip:
        url, options = rest, _options_after(rest, options) or options
    path, query = split_query(url)
    folder, name = split_name(path)
    is_in_archive = chained and "://" in link  # the first URL names a folder
    if is_zip or (name.endswith(".zip") and not is_in_archive):
        local = local_path(url)
        if local is not None:
            _check_unused(_options_of("file", options))
            return _local_zip(absolute_path(local), access.sync, access.max_object_bytes)
        archive = _open_chain(folder + query, options, access, filesystem=filesystem)
        return ZipStore(archive, name, max_object_bytes=access.max_object_bytes)
    options = options if chained else _options_of(url.partition("://")[0], options)
    return open_url(url, options, access, filesystem=filesystem)


def merge_options(options: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Merge storage options. Options in `overrides` take precedence.

    If both mappings contain ``client_kwargs``, these dicts are merged in the same way.
    """
    merged = {**options, **overrides}
    if "client_kwargs" in options and "client_kwargs" in overrides:
        merged["client_kwargs"] = {**options["client_kwargs"], **overrides["client_kwargs"]}
    return merged


def is_protocol(name: str) -> bool:
    """Return whether `name` is a protocol that fsspec knows."""
    from fsspec.registry import known_implementations, registry

    return name in known_implementations or name in registry


def _options_after(rest: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the storage options for the part of a chained URL after the first ``::``."""
    scheme = rest.partition("::")[0].partition("://")[0]
    named = {name: options[name] for name in options if is_protocol(name)}
    # The options for the next URL are nested under its protocol or under `target_options`.
    return {**options.get("target_options", {}), **named.pop(scheme, {}), **named}


def _options_of(protocol: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the storage options for the first URL of a chain, without those for other URLs."""
    own = {name: options[name] for name in options if not is_protocol(name)}
    return {**own, **options.get(protocol, {})}


def _is_zip(path: str) -> bool:
    return _beginning(path) in (b"PK\x03\x04", b"PK\x05\x06")


def _beginning(path: str) -> bytes:
    """Return the first 4 bytes of a file, or ``b""`` if it is not a readable regular file."""
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        return b""
    with open(path, "rb") as file:
        return file.read(4)
