"""What a user names as a reference set → the store of its keys."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from fsspec.registry import known_implementations

from xr_nczarr.errors import NotFoundError, Place, UnsupportedError, quote
from xr_nczarr.model import DEFAULT_LIMITS, Limits
from xr_nczarr.references import parse_parquet_references, parse_references
from xr_nczarr.storage.filesystem import FilesystemStore
from xr_nczarr.storage.local import LocalStore
from xr_nczarr.storage.protocol import SizedStore
from xr_nczarr.storage.reference import ReferenceStore
from xr_nczarr.storage.reference_document import ReferenceDocument
from xr_nczarr.storage.retries import Retry
from xr_nczarr.storage.targets import Targets
from xr_nczarr.storage.trust import Trust, is_below, origin_of
from xr_nczarr.storage.url import absolute_path, local_path, mask, parse_url, split_name

_SUFFIXES = (".json", ".json.gz", ".json.zst", ".json.zstd")
_PARQUET_SUFFIXES = (".parq", ".parquet")
_SNIFFED_BYTES = 4096
_CACHES = re.compile("^(?:(?:simplecache|filecache|blockcache|cached)(?:://)?::)+")
_BUCKETS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
"""Protocols whose URLs name no host: their credentials sign, and are shown to nobody."""
_ALIASES = (("http", "https"), ("s3", "s3a"), ("gs", "gcs"), ("az", "abfs", "abfss"))
# How fsspec reads reference sets, which is not how they are read here.
_IGNORED = frozenset(
    {
        *("asynchronous", "loop", "protocol", "skip_instance_cache", "use_listings_cache"),
        *("cache_size", "lazy", "max_block", "max_gap", "simple_templates"),
    }
)


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
        Storage options by prefix of URLs (``"s3://bucket/"``) or by protocol (``"s3"``).
    own
        All other options: they are for the place where the document is.
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
    by_place: Mapping[str, Mapping[str, Any]]
    own: Mapping[str, Any]
    limits: Limits = DEFAULT_LIMITS
    retry: Retry | None = None
    trusted: bool = True

    @classmethod
    def sorted(cls, storage_options: Mapping[str, Any], **others: Any) -> ReferenceOptions:
        """Tell the options of the set from those of places."""
        given = {**storage_options, **storage_options.get("reference", {})}
        given.pop("reference", None)
        by_place = dict(given.pop("fs", None) or {})
        known = {*cls.__slots__} - {"limits", "retry", "trusted"}
        options = {name: given.pop(name) for name in list(given) if name in known}
        for name in list(given):
            if "://" in name or name in known_implementations:
                by_place[name] = given.pop(name)
            elif name in _IGNORED:
                del given[name]
        allow = options.pop("allow", ())
        options["allow"] = (allow,) if isinstance(allow, str) else tuple(allow)
        return cls(**options, by_place=by_place, own=given, **others)

    def targets(self, document: str | None) -> Targets:
        """Give the rules for what a set refers to: that at `document`, or one in memory (None)."""
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
                options[origin] = self.given
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
    """Give the store of the reference set that `target` names, None when it names none.

    That is a document as a dictionary; ``reference://`` with the option `fo`; a path or URL of
    JSON, compressed or not, also behind ``reference::``; and a directory of parquet files as
    kerchunk writes it. Of what is remote, the URL's last name decides.
    """
    if not isinstance(target, dict | str | os.PathLike):
        return None
    named = isinstance(target, str) and target.startswith(("reference://", "reference::"))
    if not named and not _is_named_set(target):
        return None
    options = ReferenceOptions.sorted(
        storage_options or {}, limits=limits, retry=retry, trusted=trusted
    )
    if not trusted and options.templates != "safe":
        raise ValueError(f"templates={options.templates!r} contradicts trust='none'")
    if named:
        target = str(target).partition("::")[2] or options.fo
        if target is None:
            raise UnsupportedError("found no option fo, which says where the reference set is")
    if isinstance(target, Mapping):
        with Place(store="references"):
            references = parse_references(target, **options.parsing)
        return ReferenceStore(references, options.targets(None), "references")
    url = os.fsdecode(target)
    if "://" not in url and options.target_protocol not in (None, "file"):
        url = f"{options.target_protocol}://{url}"
    url = parse_url(url).url.rstrip("/")
    with Place(store=mask(url)):
        return _open_document(url, options)


def _open_document(url: str, options: ReferenceOptions) -> ReferenceStore:
    path = url.partition("?")[0]
    folder, name = split_name(path)
    if os.path.isdir(url) or is_parquet(url):
        fetch = partial(_fetch, _folder(url, options))
        data = fetch(".zmetadata")
        if data is None:
            raise NotFoundError("there is no reference set")
        references = parse_parquet_references(data, fetch)
        return ReferenceStore(references, options.targets(url), mask(url))
    fetch = partial(_fetch, _folder(folder + url[len(path) :], options))
    document, references = ReferenceDocument(fetch=fetch, name=name, **options.parsing).open()
    return ReferenceStore(references, options.targets(url), mask(url), document)


def _folder(url: str, options: ReferenceOptions) -> SizedStore:
    path, most = local_path(url), options.limits.max_consolidated_bytes
    if path is not None:
        return LocalStore(path, max_object_bytes=most)
    return FilesystemStore.connect(
        url,
        options.document_options(url.partition("?")[0]),
        retry=options.retry,
        most_bytes=most,
        trust=None if options.trusted else Trust.below(url),
    )


def _fetch(folder: SizedStore, name: str) -> bytes | None:
    (data,) = folder.fetch([name])
    return None if data is None else bytes(data)


def _is_named_set(target: Any) -> bool:
    """Tell whether a dictionary, path or URL is a set: what is in it, or its name."""
    if isinstance(target, dict):
        return any(isinstance(value, str | list | tuple | Mapping) for value in target.values())
    url = parse_url(target)
    if url.path is None:
        return is_parquet(url.url) or url.url.partition("?")[0].endswith(_SUFFIXES)
    if os.path.isdir(url.path):
        return is_record_directory(url.path)
    return url.path.endswith(_SUFFIXES)


def is_parquet(url: str) -> bool:
    """Tell whether a path or URL is named like a directory of parquet files."""
    return url.partition("?")[0].rstrip("/").endswith(_PARQUET_SUFFIXES)


def is_record_directory(folder: str) -> bool:
    """Tell a directory of kerchunk's parquet files from a Zarr store, without reading all of it."""
    path = f"{folder}/.zmetadata"
    if not os.path.isfile(path):
        return False
    with open(path, "rb") as file:
        beginning = file.read(_SNIFFED_BYTES)
        file.seek(max(0, os.path.getsize(path) - _SNIFFED_BYTES))
        return b'"record_size"' in beginning + file.read(_SNIFFED_BYTES)


def _by_prefix(named: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Give options by prefix of URLs in place of by prefix or protocol."""
    return {prefix: named[name] for name in named for prefix in _prefixes(name)}


def _prefixes(place: str) -> list[str]:
    """Give the prefixes of URLs that a prefix or protocol stands for."""
    if not place or "://" in place:
        return [place]
    return [f"{one}://" for one in next((names for names in _ALIASES if place in names), [place])]
