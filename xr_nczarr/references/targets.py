"""Resolve the targets of a reference set, decide which of them are allowed, and open their stores.

The targets of a set are the objects to which it refers. The locations to which a set may refer
depend on where the set itself is.
"""

from __future__ import annotations

import os
import posixpath
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from xr_nczarr.errors import RefusedError, quote
from xr_nczarr.model import DEFAULT_LIMITS
from xr_nczarr.storage import system
from xr_nczarr.storage.clients import connection
from xr_nczarr.storage.fsspec_client import FsspecClient
from xr_nczarr.storage.keys import is_plain_key
from xr_nczarr.storage.local import LocalStore
from xr_nczarr.storage.location import absolute_path
from xr_nczarr.storage.remote import RemoteStore
from xr_nczarr.storage.remote_client import Rules
from xr_nczarr.storage.retries import Retry
from xr_nczarr.storage.store import Store
from xr_nczarr.storage.trust import (
    Trust,
    has_dot_dot,
    host_of,
    is_below,
    is_private,
    redirect_error,
)
from xr_nczarr.storage.url import (
    CACHES,
    canonical,
    has_scheme,
    is_rooted,
    local_path,
    mask,
    normalize,
)

_MAX_FILE_BYTES = 1 << 62
_BUCKETS = ("s3", "gs")
# NUL and surrogates, except the surrogates that represent undecodable bytes in Python.
_INVALID_CHARACTERS = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")
_PROTOCOL = re.compile(r"([^/]+)://|[a-z]+$")
# Protocols that only transfer bytes. Other fsspec protocols run code (dask) or expand templates
# (reference).
_TRANSFER_PROTOCOLS = frozenset(
    {
        *("file", "local", "memory", "data", "http", "https", "ftp", "sftp", "ssh", "smb"),
        *("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "tos", "hf"),
        *("hdfs", "webhdfs", "github", "zip", "tar", *CACHES),
    }
)


@dataclass(frozen=True, slots=True)
class ReferenceTrust(Trust):
    """The locations to which a reference set may refer.

    Attributes
    ----------
    origin
        URL prefix of the locations to which the set may refer:

        - for a trusted remote set, its scheme and host (or bucket), such as ``s3://bucket``
        - for an untrusted remote set, its folder
        - for an untrusted set that is local or in memory, a placeholder that matches no URL
        - for a trusted set that is local or in memory, None. The set may then refer to any
          location except devices, but only through protocols that do nothing but transfer bytes.
    allow
        URL prefixes and absolute paths to which the set may also refer. If the set is local and
        untrusted, they include its folder.
    untrusted
        Whether the set is untrusted. Such a set may refer only to its own folder and to `allow`.
    """

    origin: str | None = None
    allow: tuple[str, ...] = ()
    untrusted: bool = False

    def for_untrusted(self, document: str | None) -> ReferenceTrust:
        """Return the rules for an untrusted reference set.

        The set may refer only to locations in its own folder, and to the locations in `allow`.
        `document` is the absolute path or the URL of the set. None means that the set is in memory
        and has no folder.
        """
        if document is None:
            return ReferenceTrust("nowhere:", self.allow, untrusted=True)
        path = local_path(document)
        if path is not None:
            return ReferenceTrust("nowhere:", (os.path.dirname(path), *self.allow), untrusted=True)
        folder = document.rpartition("::")[2].partition("?")[0].rpartition("/")[0]
        return ReferenceTrust(folder, self.allow, untrusted=True)

    def check(self, url: str) -> None:
        """Check that the reference set may refer to `url`, which is a URL or an absolute path.

        Raises
        ------
        RefusedError
            If the set must not refer to `url`. If an option can allow `url`, the message names this
            option.
        """
        if _INVALID_CHARACTERS.search(url):
            raise RefusedError(
                f"the reference set refers to {quote(url)}, which is not a valid path or URL"
            )
        paths = [local_path(link) for link in url.split("::")]
        may_resolve = all(path is None or self._may_resolve(path) for path in paths)
        for path in filter(None, paths if may_resolve else ()):
            real = os.path.realpath(path)
            # fsspec opens the files of a chained URL without checking them. Reading from a pipe or
            # a device might never end.
            is_unsafe = len(paths) > 1 and os.path.lexists(real)
            is_unsafe = is_unsafe and not (os.path.isfile(real) or os.path.isdir(real))
            if is_unsafe or system.is_device(real):
                raise RefusedError(
                    f"the reference set refers to {quote(path)}, which is not a regular file"
                )
        protocols = filter(None, map(_PROTOCOL.match, url.split("::")))
        names = [(match[1] or match[0]).lower() for match in protocols]
        if self.origin is None and _TRANSFER_PROTOCOLS.issuperset(names):
            return
        if may_resolve and self._is_allowed(url):
            return
        location = quote(mask(url))
        raise RefusedError(
            f"the reference set refers to {location}, "
            + (
                "whose protocol is not allowed"
                if self.origin is None
                else "which is outside the allowed locations"
            ),
            remedy=self.remedy(location),
        )

    def remedy(self, location: str) -> str:
        """Return the part of an error message that tells the caller how to allow a location."""
        # `allow` permits a chained URL only if it lists that exact URL.
        folder = "" if "::" in location else location[: location.rfind("/") + 1]
        allowed = f'storage_options={{"allow": [{folder or location!r}]}}'
        return f"If you trust the reference set, allow that location: {allowed}"

    def check_redirect(self, url: str, target: str) -> None:
        """Raise RefusedError if a redirect from `url` to `target` must not be followed.

        A redirect is followed only in these cases:

        - The reference set is trusted, and both URLs are on the same server. They may differ in
          their protocols (``http`` and ``https``).
        - The reference set is trusted and is local or in memory, and `target` is on a public host.
        - The reference set is remote or untrusted, and is itself allowed to refer to `target`.
        """
        web = target.startswith(("http://", "https://"))
        if web and not self.untrusted and _server(url) == _server(target):
            return
        if self.origin is not None and not self.untrusted:
            self.check(target)
            return
        if self.untrusted:
            is_allowed, reason = web and self._is_allowed(target), "outside the opened location"
        else:
            is_allowed, reason = web and not is_private(host_of(target)), "not a public host"
        if not is_allowed:
            raise redirect_error(url, target, reason)

    def may_be_private(self, host: str, *, redirected: bool) -> bool:
        """Return whether a host name is allowed to resolve to a private address.

        `redirected` is whether another host redirected to `host`. A trusted reference set that is
        local or in memory may refer to any private host, but redirects to private hosts are not
        followed. For any other reference set, only its own host and the hosts in `allow` can be
        private.
        """
        if self.origin is None:
            return not redirected
        return host in map(host_of, (self.origin, *self.allow))

    def _may_resolve(self, path: str) -> bool:
        """Return whether symbolic links in a path may be resolved before the path is checked."""
        # On Windows, resolving a path on a network share logs in to the server of the share. A set
        # that is remote or untrusted may therefore use only shares that the caller allows.
        share = os.path.splitdrive(path)[0]
        if self.origin is None or not share.startswith("//"):
            return True
        allowed = (os.path.splitdrive(path)[0] for path in map(local_path, self.allow) if path)
        return os.path.normcase(share) in map(os.path.normcase, allowed)

    def _is_allowed(self, url: str) -> bool:
        if "::" in url:
            return url in self.allow
        path = local_path(url)
        if path is not None:
            return any(
                system.is_inside(path, folder) for folder in map(local_path, self.allow) if folder
            )
        leads_up = has_dot_dot(url)
        if self.origin and is_below(url, self.origin) and not (leads_up and self.untrusted):
            return True
        return not leads_up and any(
            is_below(url, prefix) and (host_of(prefix) != "" or not is_private(host_of(url)))
            for prefix in self.allow
            if local_path(prefix) is None
        )


def origin_of(url: str) -> str:
    """Return the scheme and host (or bucket) of a URL, such as ``s3://bucket``.

    For a chained URL, return the origin of the last URL in the chain. All ``memory://`` URLs have
    the same origin.
    """
    last = url.rpartition("::")[2]
    return "memory://" if last.startswith("memory://") else "/".join(last.split("/")[:3])


def _server(url: str) -> str:
    """Return the lowercased host and port of a URL, without any user name or password."""
    return urllib.parse.urlsplit(url).netloc.rpartition("@")[2].lower()


class _WholePaths(FsspecClient):
    """A client whose keys are complete paths in a filesystem, or complete chained URLs."""

    def path(self, key: str) -> str:
        return self.root + self.query if "::" in key else key


@dataclass(frozen=True)
class Targets:
    """Settings for resolving and opening the targets of a reference set.

    Attributes
    ----------
    document
        Absolute path or URL of the reference document. Relative URLs are resolved against it.
    trust
        The locations to which the set may refer.
    protocol
        Protocol for URLs without one. If None, these URLs are relative to the document.
    options
        (URL prefix, storage options) pairs, longest prefix first. The first pair that matches a URL
        applies to it. An empty prefix matches all remote targets. The options can also be an fsspec
        filesystem.
    retry
        Rules for retrying failed requests.
    max_object_bytes
        Maximum size of an object in bytes. Reading a larger object raises LimitError before any
        memory is allocated.
    """

    document: str
    trust: ReferenceTrust = field(default_factory=ReferenceTrust)
    protocol: str | None = None
    options: tuple[tuple[str, Any], ...] = ()
    retry: Retry = Retry()  # noqa: RUF009 (frozen)
    max_object_bytes: int = DEFAULT_LIMITS.max_consolidated_bytes

    def url(self, text: str) -> str:
        """Resolve the URL in a reference, and return an absolute path or URL.

        Raises
        ------
        RefusedError
            If the set is not allowed to refer to this URL.
        """
        remote = local_path(self.document) is None
        scheme, mark, rest = text.partition("://")
        if mark:
            text = scheme.lower() + mark + rest
            document = normalize(self.document)
            if "::" not in text + document and origin_of(normalize(text)) == origin_of(document):
                # The protocols of the URL and the document may be aliases. Use the document's
                # protocol, so that the options and rules for that protocol apply.
                text = self.document.partition("://")[0] + mark + rest
        elif self.protocol is not None and "::" not in text:
            in_bucket = canonical(self.protocol) in _BUCKETS
            text = f"{self.protocol}://{text.lstrip('/') if in_bucket else text}"
        elif is_rooted(text) and remote:
            self.trust.check(text)  # a local path, although the set is remote
            return text
        url = absolute_url(text, self.document)
        if remote and not mark and text.count("../") > self.document.partition("://")[2].count("/"):
            raise RefusedError(
                f"the reference set refers to {quote(text)}, whose '..' segments lead above the "
                "root of the server"
            )
        self.trust.check(url)
        return url

    def is_local(self, text: str) -> bool:
        """Return whether the URL in a reference names a local file."""
        if "://" not in text and self.protocol is not None:
            text = f"{self.protocol}://{text}"
        return is_rooted(text) or local_path(absolute_url(text, self.document)) is not None

    def options_for(self, url: str) -> tuple[str, Any]:
        """Return the longest prefix of `url` that has options, along with those options.

        If there is no such prefix, return an empty string and an empty mapping.
        """
        return next((item for item in self.options if is_below(url, item[0])), ("", {}))

    def locate(self, url: str) -> tuple[str, str]:
        """Return an identifier of the store that contains an object, and the object's key.

        URLs with equal identifiers share a store. There is one store for each local drive, for each
        chained URL, and for each combination of bucket and options. Other URLs share a store if
        they have the same protocol and options.
        """
        path = local_path(url)
        if path is not None:
            drive, path = os.path.splitdrive(absolute_path(path))
            return drive, path.lstrip("/")
        if "::" in url:
            return url, url
        prefix, options = self.options_for(url)
        bucket, key = _split_bucket(url) if isinstance(options, Mapping) else ("", "")
        if bucket:
            return f"{bucket} {prefix}", key
        from fsspec.core import strip_protocol

        return f"{url.partition(':')[0]} {prefix}", str(strip_protocol(url))

    def open(self, url: str) -> Store:
        """Open the store that contains the object at `url`, without making a request."""
        if local_path(url) is not None:
            return LocalStore(self.locate(url)[0], max_object_bytes=_MAX_FILE_BYTES)
        rules = Rules(retry=self.retry, max_object_bytes=self.max_object_bytes, trust=self.trust)
        _, options = self.options_for(url)
        if not isinstance(options, Mapping):
            return RemoteStore(_WholePaths.within(options, url, rules))
        bucket, _ = _split_bucket(url)
        if bucket:
            return RemoteStore(connection(bucket, options, rules))
        return RemoteStore(_WholePaths.connect(url, options, rules))


def _split_bucket(url: str) -> tuple[str, str]:
    """Split a URL into the URL of its bucket and the key of the object in that bucket.

    Return two empty strings if the URL is not in a bucket, or if `is_plain_key` rejects the key.
    """
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    in_bucket = canonical(scheme) in _BUCKETS and is_plain_key(key)
    return (f"{scheme}://{bucket}", key) if in_bucket else ("", "")


def absolute_url(url: str, document_url: str) -> str:
    """Resolve `url` relative to the document at `document_url`.

    A chained URL, or a URL with a scheme, is returned unchanged. Any other URL is relative to the
    document's folder. Its ``..`` segments never lead above the root of the document's host or
    bucket.

    Examples
    --------
    >>> absolute_url("data/a.nc", "s3://bucket/sets/refs.json")
    's3://bucket/sets/data/a.nc'
    >>> absolute_url("../a.nc", "/home/me/sets/refs.json")
    '/home/me/a.nc'
    """
    if has_scheme(url) or "::" in url:
        return url
    first, chain, rest = document_url.partition("::")
    if chain and "://" not in first:
        return first + chain + absolute_url(url, rest)
    scheme, mark, location = first.rpartition("://")
    if not mark:  # a local path, which on Windows may begin with a drive
        path = os.path.normpath(os.path.join(os.path.dirname(location), url))
        return path.replace(os.sep, "/") + chain + rest
    if scheme in {"http", "https"}:
        location = re.split(r"[?#]", location, maxsplit=1)[0]
    host, slash, path = location.partition("/")
    joined = "/" + posixpath.join(posixpath.dirname(slash + path), url).lstrip("/")
    return f"{scheme}{mark}{host}{posixpath.normpath(joined)}{chain}{rest}"
