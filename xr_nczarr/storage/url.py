"""What a user may name as a store: paths, fsspec URLs, and NCZarr URLs with their fragment."""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from xr_nczarr.errors import MetadataError, quote

Medium = Literal["file", "zip", "s3"]
Format = Literal["nczarr", "zarr"]

# The words of ``mode=``: one of each line.
_CHOICES = {
    "format": ("nczarr", "zarr"),
    "medium": ("file", "zip", "s3"),
    "xarray": ("xarray", "noxarray"),
    "zarr_format": ("v1", "v2", "v3"),
    "consolidated": ("consolidated",),
}
_WORDS = [word for words in _CHOICES.values() for word in words]
_PROFILE = ("awsprofile", "aws.profile")

# Of a single letter is a drive of Windows.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_FILE = re.compile(r"^(?:file|local):(?!:)(?://(?:localhost(?=/))?)?", re.IGNORECASE)

# Host names of Amazon S3, with the bucket in the path or in front.
_AMAZON = re.compile(
    r"(?:(?P<bucket>.+)\.)?s3(?:[.-](?P<region>[a-z0-9-]+))?\.amazonaws\.com(?::\d+)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Location:
    """Where a store is, and what its URL says about it.

    Attributes
    ----------
    url
        An absolute path, or a URL that fsspec understands, without fragment; empty for a target
        that has neither.
    medium, format, zarr_format
        As the fragment says; None where it says nothing. `zarr_format` is ``"1"``, ``"2"`` or
        ``"3"``.
    consolidated
        True when the fragment asks for consolidated metadata.
    xarray
        Whether the fragment asks for ``_ARRAY_DIMENSIONS``.
    storage_options
        For fsspec, from the fragment and the host name.
    """

    url: str
    medium: Medium | None = None
    format: Format | None = None
    zarr_format: str | None = None
    consolidated: bool | None = None
    xarray: bool | None = None
    storage_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str | None:
        """The absolute path of a local target, None of every other one."""
        return self.url if os.path.isabs(self.url) else None


def parse_url(target: object) -> Location:
    """Give the location that a path, a URL or an NCZarr URL names.

    The fragment is the one of netcdf-c: ``#mode=nczarr,zip&awsprofile=name``. A `#` in the name
    of a local file that exists begins no fragment. A leading ``~`` is the home directory.

    Raises
    ------
    MetadataError
        When it is empty, or the fragment has words that are unknown or contradict each other.

    Examples
    --------
    >>> parse_url("https://s3.eu-west-1.amazonaws.com/bucket/x.zarr#mode=nczarr,s3").url
    's3://bucket/x.zarr'
    """
    if not isinstance(target, str | os.PathLike):
        return Location("")
    url = os.path.expanduser(os.fsdecode(target))  # as all that xarray opens and writes
    if os.path.lexists(url):
        return Location(absolute_path(url))
    url, options = _split_fragment(url)
    if not url:
        raise MetadataError("the path or URL is empty", remedy="The current folder is '.'.")
    chosen: dict[str, Any] = _choices(options.get("mode", ""), url)
    storage_options: dict[str, Any] = {}
    if _is_local(url):
        url = _local_path(url)
    elif chosen.get("medium") == "s3" or url.startswith("s3://"):
        url, storage_options = _s3_url(url)
    for name in _PROFILE:
        if name in options:
            storage_options.setdefault("profile", options[name])
    return Location(
        url,
        chosen.get("medium"),
        chosen.get("format", "zarr" if "xarray" in chosen else None),
        chosen["zarr_format"].removeprefix("v") if "zarr_format" in chosen else None,
        True if "consolidated" in chosen else None,
        chosen["xarray"] == "xarray" if "xarray" in chosen else None,
        storage_options,
    )


def absolute_path(path: str) -> str:
    """Return an absolute path with ``/`` between its names, as all local paths are kept."""
    return os.path.abspath(path).replace(os.sep, "/")


def local_path(url: str) -> str | None:
    """Return the path that a path or a ``file:`` URL names, with ``/``; None for other URLs.

    Examples
    --------
    >>> local_path("file:///data/a.nc"), local_path("/data/a.nc"), local_path("s3://data/a.nc")
    ('/data/a.nc', '/data/a.nc', None)
    """
    path = _FILE.sub("", url)
    if path == url and _SCHEME.match(url):
        return None
    # The path of file:///C:/data has a slash too many.
    drive = os.path.splitdrive(path[1:])[0] if path != url else ""
    return (path[1:] if drive else path).replace(os.sep, "/")


def is_rooted(path: str) -> bool:
    """Return whether a path does not begin in the current folder or in that of a document."""
    return path[:1] in ("/", os.sep) or os.path.splitdrive(path)[0] != ""


def mask(url: str) -> str:
    """Hide the parts of a URL that can be secrets: user, password and query."""
    return re.sub(r"\?.*", "?***", re.sub(r"//[^/@]*@", "//***@", url))


def split_name(url: str) -> tuple[str, str]:
    """Split a URL without query from its last name, as a key; on the web it is percent-encoded."""
    folder, _, name = url.rpartition("/")
    web = url.rpartition("::")[2].startswith(("http://", "https://"))
    return folder, urllib.parse.unquote(name) if web else name


def _split_fragment(url: str) -> tuple[str, dict[str, str]]:
    """Split a URL from its fragment's pairs; a bare word is a mode."""
    base, mark, fragment = url.rpartition("#")
    if not mark:
        return url, {}
    pairs = [pair.partition("=") for pair in fragment.split("&") if pair]
    if _is_local(base) and not any(sign or name in _WORDS for name, sign, _ in pairs):
        return url, {}
    options: dict[str, str] = {}
    for name, sign, value in pairs:
        if sign and name not in ("mode", *_PROFILE):
            raise MetadataError(
                f"the fragment of the URL has the unknown key {quote(repr(name))}",
                remedy=f"Known keys are: mode, {', '.join(_PROFILE)}.",
                store=mask(base),
            )
        if sign and name != "mode":
            options[name] = value
        else:
            options["mode"] = f"{options.get('mode', '')},{value if sign else name}"
    return base, options


def _choices(mode: str, url: str) -> dict[str, str]:
    """Give what the words of ``mode=`` choose."""
    chosen: dict[str, str] = {}
    for word in filter(None, (part.strip().lower() for part in mode.split(","))):
        choice = next((name for name, words in _CHOICES.items() if word in words), None)
        if choice is None:
            raise MetadataError(
                f"the fragment of the URL has the unknown mode {quote(repr(word))}",
                remedy=f"Known modes are: {', '.join(_WORDS)}.",
                store=mask(url),
            )
        if chosen.setdefault(choice, word) != word:
            raise MetadataError(
                f"the fragment of the URL says both {chosen[choice]} and {word}",
                remedy=f"Say one of {', '.join(_CHOICES[choice])}.",
                store=mask(url),
            )
    return chosen


def _is_local(url: str) -> bool:
    scheme = re.match(r"(\w[\w+.-]*)(::|://|:/)", url)
    # One letter is a drive of Windows.
    return (
        scheme is None
        or len(scheme[1]) == 1
        or (scheme[1].lower() in ("file", "local") and scheme[2] != "::")
    )


def _local_path(url: str) -> str:
    """Give the absolute path of a path or ``file:`` URL, percent-encoded or not."""
    if not _FILE.match(url):
        return absolute_path(url)
    path = str(local_path(url))
    if "%" in path and not os.path.lexists(path):
        path = urllib.parse.unquote(path)
    return absolute_path(path)


def _s3_url(url: str) -> tuple[str, dict[str, Any]]:
    """Give ``s3://bucket/key`` and the options that lead to the host of `url`."""
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    amazon = _AMAZON.fullmatch(host)
    if scheme not in ("http", "https", "s3") or (scheme == "s3" and not amazon):
        return url, {}
    if not amazon:
        return f"s3://{path}", {"endpoint_url": f"{scheme}://{host}"}
    region = amazon["region"]
    options = {"client_kwargs": {"region_name": region}} if region else {}
    return f"s3://{amazon['bucket']}/{path}" if amazon["bucket"] else f"s3://{path}", options
