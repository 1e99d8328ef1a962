"""What a user names as a reference set → the store of its keys."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fsspec import AbstractFileSystem
from fsspec.implementations.dirfs import DirFileSystem

from xr_nczarr.errors import ConflictError, NotFoundError, Place, UnsupportedError, quote
from xr_nczarr.model import DEFAULT_LIMITS, Limits
from xr_nczarr.references import (
    is_record_document,
    parse_parquet_references,
    parse_references,
)
from xr_nczarr.storage.filesystem import FilesystemStore
from xr_nczarr.storage.local import LocalStore
from xr_nczarr.storage.reference import ReferenceStore
from xr_nczarr.storage.reference_document import ReferenceDocument
from xr_nczarr.storage.retries import Retry
from xr_nczarr.storage.store import Store
from xr_nczarr.storage.targets import Targets
from xr_nczarr.storage.trust import Trust, is_below, origin_of
from xr_nczarr.storage.url import (
    Location,
    absolute_path,
    is_protocol,
    local_path,
    mask,
    merge_options,
    parse_url,
    plain_filesystem,
    split_name,
    split_query,
)

_SUFFIXES = (".json", ".json.gz", ".json.zst", ".json.zstd")
_PARQUET_SUFFIXES = (".parq", ".parquet")
RECORDS = ".zmetadata"
"""Name of the document that a folder of parquet files has, and Zarr's consolidated metadata too."""
_CACHES = re.compile("^(?:(?:simplecache|filecache|blockcache|cached)(?:://)?::)+")
_BUCKETS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
"""Protocols whose URLs name no host: their credentials sign, and are shown to nobody."""
_ALIASES = (("http", "https"), ("s3", "s3a"), ("gs", "gcs"), ("az", "abfs", "abfss"))
# How fsspec reads reference sets, which is not how they are read here.
_IGNORED = frozenset(
    {
        *("asynchronous", "loop", "protocol", "skip_instance_cache", "use_listings_cache"),
        *("cache_size", "lazy", "max_block", "max_gap", "simple_templates", "batch_size"),
        *("listings_expiry_time", "max_paths"),
    }
)
# Options that only a reference set has; `fo`, target_protocol and target_options chains have too.
_OWN = ("remote_protocol", "remote_options", "template_overrides", "templates", "allow")
_CACHING = ("simplecache", "filecache", "blockcache", "cached")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceOptions:
    """What ``storage_options`` say about a reference set, mostly as fsspec spells it.

    Attributes
    ----------
    fo
        The set, where the target is ``reference://``.
    target_protocol, target_options
        Of the document, and of what lies where it does.
    remote_protocol, remote_options
        Of what the set refers to; the options of all its protocols where none is given.
    template_overrides, templates
        See `parse_references`.
    allow
        Prefixes of URLs, or paths, that a remote set may name besides the place where it is; any
        set, of protocols that do more than carry bytes.
    by_place
        Storage options, or a filesystem of fsspec, by prefix of URLs (``"s3://bucket/"``) or by
        protocol (``"s3"``). ``fs`` may hold those by protocol, or be one filesystem.
    own
        All other options: they are for the place where the document is.
    filesystem
        What the document is reached with in place of options: that of a mapper or an opened file.
    limits, retry
        See `parse_references` and `FilesystemStore`.
    trusted
        Whether the set may name more than its own folder and what is allowed.
    """

    fo: Any = None
    target_protocol: str | None = None
    target_options: Mapping[str, Any] | None = None
    remote_protocol: str | None = None
    remote_options: Mapping[str, Any] | None = None
    template_overrides: Mapping[str, str] | None = None
    templates: Any = "safe"
    allow: tuple[str, ...] = ()
    by_place: Mapping[str, Any]
    own: Mapping[str, Any]
    filesystem: Any = None
    limits: Limits = DEFAULT_LIMITS
    retry: Retry | None = None
    trusted: bool = True

    @classmethod
    def sorted(cls, storage_options: Mapping[str, Any], **others: Any) -> ReferenceOptions:
        """Return the options of the set, separated from those of places."""
        given = {**storage_options, **storage_options.get("reference", {})}
        given.pop("reference", None)
        known = {*cls.__slots__} - {"limits", "retry", "trusted", "filesystem", "own", "by_place"}
        options = {name: given.pop(name) for name in list(given) if name in known}
        if (older := given.pop("ref_storage_args", None)) is not None:
            options["target_options"] = older
        if given.pop("mode", "r") not in ("r", "rb"):
            raise UnsupportedError("a reference set is read only", remedy="Leave out mode.")
        by_place, protocol = _filesystems(given.pop("fs", None))
        if protocol is not None:
            options["remote_protocol"], options["remote_options"] = protocol, None
        for name in list(given):
            if "://" in name or is_protocol(name):
                by_place[name] = given.pop(name)
            elif name in _IGNORED:
                del given[name]
        if options.get("remote_protocol") in _CACHING:
            raise UnsupportedError(
                f"remote_protocol={options['remote_protocol']!r} says how to cache, and not where "
                "the targets are",
                remedy="Open the targets without a cache, with their options under their own "
                'protocol: storage_options={"s3": {…}}.',
            )
        if not others.get("trusted", True) and options.get("templates", "safe") != "safe":
            raise ValueError(f"templates={options['templates']!r} contradicts trust='none'")
        allow = options.pop("allow", ())
        options["allow"] = (allow,) if isinstance(allow, str) else tuple(allow)
        return cls(**options, by_place=by_place, own=given, **others)

    def targets(self, document: str | None) -> Targets:
        """Return the rules for what a set at `document`, or in memory (None), refers to."""
        # What keeps the document on a disk keeps nothing of what lies beside it.
        place = f"{absolute_path('.')}/" if document is None else _CACHES.sub("", document)
        options = _by_prefix(
            {self.remote_protocol or "": self.remote_options or {}, **self.by_place}
        )
        allow = self.allow
        origin = None if local_path(place) is not None else origin_of(place)
        if origin is not None:
            # To give options for a place is to name it; not for any host, though.
            buckets = {f"{protocol}://" for protocol in _BUCKETS}
            named_places = (p for p in options if p in buckets or p.partition("://")[2])
            allow = (*allow, *named_places)
            if not any(is_below(origin, prefix) for prefix in options if prefix):
                options[origin] = self.given if self.filesystem is None else self.filesystem
        elif self.own:
            raise UnsupportedError(
                f"the storage option {quote(next(iter(self.own)))} belongs to no place",
                remedy="Options for what a local set refers to go into remote_options, or under "
                "the prefix of its URLs.",
            )
        by_length = sorted(options.items(), key=lambda item: -len(item[0]))
        # A path is one of a bucket; what is local or on the web is relative to the document.
        protocol = self.remote_protocol
        if protocol in ("file", "local", "http", "https"):
            protocol = None
        trust = Trust(origin, allow)
        return Targets(
            place,
            trust if self.trusted else trust.narrowed(document),
            protocol,
            tuple(by_length),
            self.retry,
            max(self.limits.max_chunk_bytes, self.limits.max_consolidated_bytes),
        )

    @property
    def parsing(self) -> dict[str, Any]:
        """How the text of the set is meant."""
        return {
            "template_overrides": self.template_overrides,
            "templates": self.templates,
            "limits": self.limits,
        }

    @property
    def given(self) -> dict[str, Any]:
        """The storage options for the place of the document alone."""
        return {**self.own, **(self.target_options or {})}

    def at(self, location: Location) -> ReferenceOptions:
        """Return the options for a set there, with those that its URL or target brings along."""
        own = merge_options(location.storage_options, self.own)
        return replace(self, own=own, filesystem=location.filesystem)

    def document_options(self, folder: str) -> dict[str, Any]:
        """Give the storage options that the document is fetched with.

        Those of a chain are named by its protocols; where none are given, those of the longest
        prefix hold.
        """
        if "::" in folder:
            return {**self.by_place, **self.given}
        prefixes = [] if self.given else _by_prefix(self.by_place).items()
        below = [one for one in prefixes if is_below(f"{folder}/", one[0])]
        return dict(max(below, key=lambda one: len(one[0]))[1]) if below else self.given


def open_references(
    target: Any,
    storage_options: Mapping[str, Any] | None,
    *,
    limits: Limits,
    retry: Retry | None = None,
    trusted: bool = True,
) -> ReferenceStore | None:
    """Return the store of the reference set that `target` names, None when it names none.

    That is a document as a dictionary; ``reference://`` with the option `fo`; a path or URL of
    JSON, compressed or not, also behind ``reference::``; a filesystem of fsspec for references; and
    any target with options that only reference sets have. A folder of parquet files shows what it
    is when it is opened: see `open_record_set`.
    """
    location, given = parse_url(target), dict(storage_options or {})
    url = location.url.removeprefix("reference::")
    named = url != location.url
    if not named and not _is_named_set(target, location, given):
        return None
    if named and location.filesystem is not None:  # fsspec has read the document already
        given |= {"fo": location.filesystem.references, "fs": location.filesystem.fss}
    options = ReferenceOptions.sorted(given, limits=limits, retry=retry, trusted=trusted)
    if named and not url:
        if options.fo is None:
            raise UnsupportedError("found no option fo, which says where the reference set is")
        target = options.fo
    elif options.fo is not None:
        raise ConflictError(
            "both the target and the option fo name a reference set",
            remedy="Leave out one of them; fo goes with reference://",
            store=mask(url),
        )
    elif named:
        target = os.fsdecode(target).partition("::")[2]
    if isinstance(target, str) and "://" not in target:
        protocol = options.target_protocol
        target = target if protocol in (None, "file", "local") else f"{protocol}://{target}"
    medium, location = location.medium, parse_url(target)
    location = replace(location, medium=location.medium or medium)
    location.check_medium("s3")
    if location.url:
        with Place(store=mask(location.url)):
            return _open_at(location, options.at(location))
    if not isinstance(target, Mapping):
        raise UnsupportedError(
            f"the option fo holds a {type(target).__name__}",
            remedy="Give the path or URL of a reference set, or a document as a dictionary.",
        )
    with Place(store="references"):
        references = parse_references(target, **options.parsing)
    return ReferenceStore(references, options.targets(None), "references")


def open_record_set(
    target: Any,
    store: Store,
    document: bytes,
    storage_options: Mapping[str, Any] | None,
    *,
    limits: Limits = DEFAULT_LIMITS,
    retry: Retry | None = None,
    trusted: bool = True,
) -> ReferenceStore:
    """Return the reference set that `store` holds, whose ``.zmetadata`` is a record document.

    Parameters
    ----------
    target
        What `store` was opened from: relative URLs of the set start beside it.
    """
    location = parse_url(target)
    options = ReferenceOptions.sorted(
        storage_options or {}, limits=limits, retry=retry, trusted=trusted
    )
    return _record_set(store, location.url or None, document, options.at(location))


def _record_set(
    store: Store, url: str | None, document: bytes, options: ReferenceOptions
) -> ReferenceStore:
    with Place(store=store.name):
        references = parse_parquet_references(document, partial(_fetch, store))
        return ReferenceStore(references, options.targets(url), store.name)


def _open_at(location: Location, options: ReferenceOptions) -> ReferenceStore:
    """Return the set at a path or URL: a document, or a folder of parquet files."""
    url = location.url.rstrip("/")
    if not location.folder and not os.path.isdir(url):
        path, query = split_query(url)
        folder, name = split_name(path)
        fetch = partial(_fetch, _folder(folder + query, options))
        with suppress(NotFoundError):
            document = ReferenceDocument(fetch=fetch, name=name, **options.parsing)
            document, references = document.open()
            return ReferenceStore(references, options.targets(url), mask(url), document)
    store = _folder(url, options)
    records = _fetch(store, RECORDS)
    if records is None or not is_record_document(records):
        remedy = "Leave out storage options of reference sets, as remote_options, for another store"
        named = split_query(url)[0].endswith(_SUFFIXES)
        raise NotFoundError("there is no reference set", remedy="" if named else remedy)
    return _record_set(store, url, records, options)


def _folder(url: str, options: ReferenceOptions) -> Store:
    path, most = local_path(url), options.limits.max_consolidated_bytes
    if path is not None:
        return LocalStore(path, max_object_bytes=most)
    trust = None if options.trusted else Trust.below(url)
    rules: Any = {"retry": options.retry, "most_bytes": most, "trust": trust}
    if options.filesystem is not None:
        return FilesystemStore.within(options.filesystem, url, **rules)
    return FilesystemStore.connect(url, options.document_options(split_query(url)[0]), **rules)


def _fetch(folder: Store, name: str) -> bytes | None:
    (data,) = folder.fetch([name])
    return None if data is None else bytes(data)


def _is_named_set(target: Any, location: Location, options: Mapping[str, Any]) -> bool:
    """Return whether a target is a set by what is in it, its name, or its options."""
    if not location.url:
        values = target.values() if isinstance(target, dict) else ()
        return any(isinstance(value, str | list | tuple | Mapping) for value in values)
    if any(name in _OWN or "://" in name for name in options):
        return True
    if location.folder or (location.path is not None and os.path.isdir(location.path)):
        return False
    return split_query(location.url)[0].endswith(_SUFFIXES)


def is_parquet(url: str) -> bool:
    """Return whether a path or URL is named like a directory of parquet files."""
    return split_query(url)[0].rstrip("/").endswith(_PARQUET_SUFFIXES)


def is_record_directory(folder: str) -> bool:
    """Return whether a directory holds kerchunk's parquet files, and no Zarr store."""
    path = f"{folder}/{RECORDS}"
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        return is_record_document(file.read())


def _filesystems(given: Any) -> tuple[dict[str, Any], str | None]:
    """Return fsspec's `fs` by protocol, and the protocol of URLs that name none.

    It is one filesystem, or a mapping of protocols to filesystems or their options.
    """
    if given is None:
        return {}, None
    by_protocol: dict[Any, Any] = dict(given) if isinstance(given, Mapping) else {None: given}
    for name, value in by_protocol.items():
        if isinstance(value, AbstractFileSystem) and not isinstance(value, DirFileSystem):
            by_protocol[name], _ = plain_filesystem(value, "")
        elif name is None or not isinstance(value, Mapping):
            raise UnsupportedError(
                f"the storage option fs holds a {type(value).__name__}",
                remedy="Give a filesystem of fsspec, or a mapping of protocols to filesystems or "
                "their options; below a folder, give remote_protocol or full URLs.",
            )
    default = by_protocol.pop(None, None)
    protocols = getattr(default, "protocol", ())
    names = (protocols,) if isinstance(protocols, str) else tuple(protocols)
    return {**dict.fromkeys(names, default), **by_protocol}, names[0] if names else None


def _by_prefix(named: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Give options by prefix of URLs in place of by prefix or protocol."""
    return {prefix: named[name] for name in named for prefix in _prefixes(name)}


def _prefixes(place: str) -> list[str]:
    """Give the prefixes of URLs that a prefix or protocol stands for."""
    if not place or "://" in place:
        return [place]
    return [f"{one}://" for one in next((names for names in _ALIASES if place in names), [place])]
