"""The storage options for a reference set and for the objects to which the set refers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from xr_nczarr.errors import UnsupportedError, quote
from xr_nczarr.references.targets import ReferenceTrust, Targets, origin_of
from xr_nczarr.storage.location import Location, absolute_path, plain_filesystem
from xr_nczarr.storage.open_store import DEFAULT_ACCESS, Access, is_protocol, merge_options
from xr_nczarr.storage.trust import is_below
from xr_nczarr.storage.url import CACHES, local_path, protocol_names

_LEADING_CACHES = re.compile(f"^(?:(?:{'|'.join(CACHES)})(?:://)?::)+")
_BUCKETS = ("s3", "gs", "az")
"""Protocols whose URLs contain a bucket, but no host to which credentials could be sent."""
# Options that are ignored, because they apply only to fsspec's own ReferenceFileSystem.
_IGNORED = frozenset(
    {
        *("asynchronous", "loop", "protocol", "skip_instance_cache", "use_listings_cache"),
        *("cache_size", "lazy", "max_block", "max_gap", "simple_templates", "batch_size"),
        *("listings_expiry_time", "max_paths"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceOptions:
    """The ``storage_options`` for a reference set. Most of them have the same meaning as in fsspec.

    Attributes
    ----------
    fo
        The reference set, as a path, a URL or a dictionary. This option is required for
        ``reference://``, and is not allowed otherwise.
    target_protocol, target_options
        Protocol and options for the document, and for targets with the same scheme and host (or
        bucket) as the document.
    remote_protocol, remote_options
        Protocol and options for the targets, which are the objects to which the set refers. If
        `remote_protocol` is not given, `remote_options` apply to all protocols.
    template_overrides, templates
        See `parse_references`.
    allow
        URL prefixes or paths to which a remote set may refer, in addition to its own host or
        bucket. In any set, protocols that do more than transfer bytes, such as protocols that run
        code, must be listed here.
    by_location
        Mapping of URL prefixes (``"s3://bucket/"``) and protocols (``"s3"``) to storage options or
        fsspec filesystems. It includes the filesystems in fsspec's ``fs`` option.
    others
        All other options. They apply to the document, and to targets with the same scheme and host
        (or bucket) as the document.
    filesystem
        The document's filesystem, if the set is opened from an fsspec mapper or an open file.
    access
        Options for reading the document and its targets.
    """

    fo: Any = None
    target_protocol: str | None = None
    target_options: Mapping[str, Any] | None = None
    remote_protocol: str | None = None
    remote_options: Mapping[str, Any] | None = None
    template_overrides: Mapping[str, str] | None = None
    templates: Any = "safe"
    allow: tuple[str, ...] = ()
    by_location: Mapping[str, Any]
    others: Mapping[str, Any]
    filesystem: Any = None
    access: Access = DEFAULT_ACCESS

    @classmethod
    def of(cls, access: Access, **implied: Any) -> ReferenceOptions:
        """Parse the storage options for a reference set and for the objects to which it refers.

        `implied` contains additional storage options that come from the opened object, such as an
        fsspec ``ReferenceFileSystem``, rather than from the caller.
        """
        remaining = {**access.options, **implied}
        remaining |= remaining.pop("reference", {})
        names = {*cls.__slots__} - {"access", "filesystem", "others", "by_location"}
        options = {name: remaining.pop(name) for name in list(remaining) if name in names}
        if (older := remaining.pop("ref_storage_args", None)) is not None:
            options["target_options"] = older
        if remaining.pop("mode", "r") not in ("r", "rb"):
            raise UnsupportedError(
                "reference sets are read-only", remedy='Leave out the storage option "mode"'
            )
        by_location, protocol = _filesystems(remaining.pop("fs", None))
        if protocol is not None:
            options["remote_protocol"], options["remote_options"] = protocol, None
        for name in list(remaining):
            if "://" in name or is_protocol(name):
                by_location[name] = remaining.pop(name)
            elif name in _IGNORED:
                del remaining[name]
        if options.get("remote_protocol") in CACHES:
            raise UnsupportedError(
                'the storage option "remote_protocol" must be the protocol of the referenced '
                f"files, not of a cache such as {options['remote_protocol']!r}",
                remedy="Leave out the cache, and pass options for the files under the name of "
                'their protocol, such as storage_options={"s3": {…}}',
            )
        if not access.trusted and options.get("templates", "safe") != "safe":
            raise ValueError(
                f"templates={options['templates']!r} is not allowed with trust='none'; leave out "
                "one of the two options"
            )
        allow = options.pop("allow", ())
        options["allow"] = (allow,) if isinstance(allow, str) else tuple(allow)
        return cls(**options, by_location=by_location, others=remaining, access=access)

    def targets(self, document: str | None) -> Targets:
        """Return the settings for resolving and opening the targets of a reference set.

        `document` is the path or URL of the set, or None if the set is in memory.
        """
        # A cache for the document does not apply to the document's targets.
        place = f"{absolute_path('.')}/" if document is None else _LEADING_CACHES.sub("", document)
        options = _by_prefix(
            {self.remote_protocol or "": self.remote_options or {}, **self.by_location}
        )
        allow = self.allow
        origin = None if local_path(place) is not None else origin_of(place)
        if origin is not None:
            # If the caller passes options for a URL prefix, or for a protocol with buckets, the set
            # may refer to URLs with that prefix or protocol. Options for any other protocol allow
            # nothing; otherwise, the set could refer to all hosts.
            buckets = _by_prefix({protocol: {} for protocol in _BUCKETS})
            places = (p for p in options if p in buckets or p.partition("://")[2])
            allow = (*allow, *places)
            if not any(is_below(origin, prefix) for prefix in options if prefix):
                filesystem = self.filesystem
                options[origin] = self.same_origin_options if filesystem is None else filesystem
        elif self.others:
            name = quote(next(iter(self.others)))
            raise UnsupportedError(
                f'the storage option "{name}" has no effect on this target',
                remedy="If this is a local reference set, pass options for the referenced files "
                'as the storage option "remote_options". To pass options for only some of these '
                "files, use a URL prefix as the key, as in storage_options="
                '{"s3://bucket": {…}}',
            )
        by_length = sorted(options.items(), key=lambda item: -len(item[0]))
        # A URL without a protocol may begin with a bucket of the remote protocol. If the remote
        # protocol is one of the following, such a URL is relative to the document instead.
        protocol = self.remote_protocol
        if protocol in ("file", "local", "http", "https"):
            protocol = None
        trust = ReferenceTrust(origin, allow)
        return Targets(
            place,
            trust if self.access.trusted else trust.for_untrusted(document),
            protocol,
            tuple(by_length),
            self.access.rules.retry,
            self.access.max_object_bytes,
        )

    @property
    def parsing(self) -> dict[str, Any]:
        """The keyword arguments for `parse_references`."""
        return {
            "template_overrides": self.template_overrides,
            "templates": self.templates,
            "limits": self.access.limits,
        }

    @property
    def same_origin_options(self) -> dict[str, Any]:
        """The storage options for the document, and for targets on its host or in its bucket."""
        return {**self.others, **(self.target_options or {})}

    def at(self, location: Location) -> ReferenceOptions:
        """Return a copy of these options for the set at `location`.

        The copy also contains the filesystem and storage options of `location`.
        """
        merged = merge_options(location.storage_options, self.others)
        return replace(self, others=merged, filesystem=location.filesystem)

    def document_options(self, folder: str) -> dict[str, Any]:
        """Return the storage options for fetching the reference document from `folder`.

        The options are chosen as follows:

        - If `folder` is a chained URL, return the caller's options for the document. Also include
          the options for each protocol and URL prefix, keyed by the protocol or prefix.
        - Otherwise, if the caller passed options for the document, return only these options.
        - Otherwise, return the options for the longest URL prefix that matches `folder`. If there
          is no matching prefix, return an empty dict.
        """
        if "::" in folder:
            return {**self.by_location, **self.same_origin_options}
        prefixes = [] if self.same_origin_options else _by_prefix(self.by_location).items()
        below = [
            (prefix, options)
            for prefix, options in prefixes
            if is_below(f"{folder}/", prefix) and isinstance(options, Mapping)
        ]
        if not below:
            return self.same_origin_options
        return dict(max(below, key=lambda item: len(item[0]))[1])


def _filesystems(fs: Any) -> tuple[dict[str, Any], str | None]:
    """Parse fsspec's `fs` option into filesystems (or their options) and a default protocol.

    The result maps protocols to filesystems. The default protocol applies to URLs without a
    protocol, and is None if `fs` does not determine it.
    """
    if fs is None:
        return {}, None
    from fsspec import AbstractFileSystem
    from fsspec.implementations.dirfs import DirFileSystem

    by_protocol: dict[Any, Any] = dict(fs) if isinstance(fs, Mapping) else {None: fs}
    for name, value in by_protocol.items():
        if isinstance(value, AbstractFileSystem) and not isinstance(value, DirFileSystem):
            by_protocol[name], _ = plain_filesystem(value, "")
        elif name is None or not isinstance(value, Mapping):
            raise UnsupportedError(
                f'the storage option "fs" has the unsupported type {type(value).__name__}',
                remedy="Pass an fsspec filesystem, or a dict that maps each protocol to a "
                "filesystem or to its options. Instead of a DirFileSystem, pass the storage "
                'option "remote_protocol", or use full URLs in the reference set',
            )
    default = by_protocol.pop(None, None)
    protocols = getattr(default, "protocol", ())
    names = (protocols,) if isinstance(protocols, str) else tuple(protocols)
    return {**dict.fromkeys(names, default), **by_protocol}, names[0] if names else None


def _by_prefix(options: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return a copy of `options` in which each protocol is replaced with its URL prefixes."""
    prefixes: dict[str, Mapping[str, Any]] = {}
    for name, value in options.items():
        is_prefix = not name or "://" in name
        # For example, "s3" becomes "s3://" and "s3a://".
        names = [name] if is_prefix else [f"{protocol}://" for protocol in protocol_names(name)]
        prefixes |= dict.fromkeys(names, value)
    return prefixes
