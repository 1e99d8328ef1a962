"""Split, normalize and compare paths and URLs."""

from __future__ import annotations

import os
import re
import urllib.parse

CACHES = ("simplecache", "filecache", "blockcache", "cached")
"""The protocols of fsspec's caches."""
_NAMES = (("s3", "s3a"), ("gs", "gcs"), ("az", "abfs", "abfss"), ("http", "https"))
# A scheme has at least two letters, because a single letter is a Windows drive. A slash or a second
# colon must follow the first colon, except in "data:", because a file name may contain a colon.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9_+.-]+:[:/]|data:")
_FILE = re.compile(r"^(?:file|local):(?!:)(?://(?:localhost(?=/))?)?", re.IGNORECASE)


def local_path(url: str) -> str | None:
    """Return the local path for a path or a ``file:`` URL, or None for any other URL.

    The result has ``/`` as the separator.

    Examples
    --------
    >>> local_path("file:///data/a.nc"), local_path("/data/a.nc"), local_path("s3://data/a.nc")
    ('/data/a.nc', '/data/a.nc', None)
    """
    path = _FILE.sub("", url)
    if path == url and _SCHEME.match(url):
        return None
    # The path of file:///C:/data has one slash too many.
    drive = os.path.splitdrive(path[1:])[0] if path != url else ""
    return (path[1:] if drive else path).replace(os.sep, "/")


def has_scheme(url: str) -> bool:
    """Return whether a path or URL begins with a scheme, such as ``s3://``.

    Examples
    --------
    >>> has_scheme("s3://data/a.nc"), has_scheme("2026-01-01T00:00.nc")
    (True, False)
    """
    return _FILE.match(url) is not None or _SCHEME.match(url) is not None


def is_rooted(path: str) -> bool:
    """Return whether a path starts with a path separator or with a Windows drive."""
    return path[:1] in ("/", os.sep) or os.path.splitdrive(path)[0] != ""


def protocol_names(protocol: str) -> tuple[str, ...]:
    """Return `protocol` and all protocols that are interchangeable with it.

    For all protocols in the result, fsspec uses the same filesystem with the same options.

    Examples
    --------
    >>> protocol_names("abfs"), protocol_names("ftp")
    (('az', 'abfs', 'abfss'), ('ftp',))
    """
    return next((names for names in _NAMES if protocol in names), (protocol,))


def canonical(protocol: str) -> str:
    """Return the canonical name of a protocol, given any of its aliases.

    Examples
    --------
    >>> canonical("s3a"), canonical("https")
    ('s3', 'https')
    """
    # URLs that differ only in http and https may refer to different objects.
    return protocol if protocol == "https" else protocol_names(protocol)[0]


def mask(url: str) -> str:
    """Replace the user, password and query of a URL with ``***``, because they may be secret."""
    return re.sub(r"\?.*", "?***", re.sub(r"//[^/@]*@", "//***@", url))


def normalize(url: str) -> str:
    """Normalize the protocol of a URL and strip the slashes at both ends of its path.

    URLs that normalize to the same string refer to the same object.

    Examples
    --------
    >>> normalize("s3a://bucket/store/")
    's3://bucket/store'
    """
    protocol, separator, path = url.partition("://")
    return f"{canonical(protocol)}://{path.strip('/')}" if separator else url


def unwrapped_url(url: str) -> str:
    """Remove the ``dir`` protocol and all caching protocols from a chained URL.

    The resulting URL refers to the same objects.

    Examples
    --------
    >>> unwrapped_url("filecache::s3://bucket/store")
    's3://bucket/store'
    """
    return "::".join(link for link in url.split("::") if link not in ("dir", *CACHES))


def split_name(url: str) -> tuple[str, str]:
    """Split a URL into its folder and its last component.

    The URL must not have a query. In a chained URL, the first path is split. The last component of
    an http or https URL is percent-decoded.

    Examples
    --------
    >>> split_name("s3://bucket/sets/refs.json")
    ('s3://bucket/sets', 'refs.json')
    >>> split_name("memory://refs.json")
    ('memory://', 'refs.json')
    >>> split_name("zip://inner.zip::file:///outer.zip")
    ('zip://::file:///outer.zip', 'inner.zip')
    """
    links = url.split("::")
    position = next((number for number, link in enumerate(links) if "://" in link), -1)
    folder, _, name = links[position].rpartition("/")
    if folder.endswith(":/"):
        folder += "/"
    if is_web(links[position]):
        name = urllib.parse.unquote(name)
    links[position] = folder
    return "::".join(links), name


def is_web(url: str) -> bool:
    """Return whether a URL, or the last URL of a chain, is an http or https URL."""
    return url.rpartition("::")[2].startswith(("http://", "https://"))


def split_query(url: str) -> tuple[str, str]:
    """Split a URL into its base and its query, which begins with ``?``.

    The query is empty if the URL has none. Only http and https URLs can have a query.
    """
    path, mark, query = url.partition("?") if is_web(url) else (url, "", "")
    return path, mark + query
