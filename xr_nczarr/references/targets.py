"""Resolve the targets of a reference set and open the stores that contain them.

The targets of a set are the objects to which it refers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from xr_nczarr.errors import RefusedError, quote
from xr_nczarr.model import DEFAULT_LIMITS
from xr_nczarr.references.entries import absolute_url
from xr_nczarr.references.policy import ReferenceTrust, origin_of
from xr_nczarr.storage.clients import connection
from xr_nczarr.storage.fsspec_client import FsspecClient
from xr_nczarr.storage.keys import is_plain_key
from xr_nczarr.storage.local import LocalStore
from xr_nczarr.storage.location import absolute_path
from xr_nczarr.storage.remote import RemoteStore
from xr_nczarr.storage.remote_client import Rules
from xr_nczarr.storage.retries import Retry
from xr_nczarr.storage.store import Store
from xr_nczarr.storage.trust import is_below
from xr_nczarr.storage.url import canonical, is_rooted, local_path, normalize

_MAX_FILE_BYTES = 1 << 62
_BUCKETS = ("s3", "gs")


class _WholePaths(FsspecClient):
    """A client whose keys are complete paths in a filesystem, or complete chained URLs.

    One client can therefore read all targets that share a protocol and options.
    """

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
        (prefix, options) pairs, sorted from the longest prefix to the shortest. The first pair
        whose prefix matches a URL contains the options for that URL, either as a mapping of storage
        options or as an fsspec filesystem. An empty prefix matches all remote targets.
    retry
        When and how often failed requests are retried.
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
