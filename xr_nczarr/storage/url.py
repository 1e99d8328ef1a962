"""Names of stores: paths, fsspec URLs, and NCZarr URLs with their fragment."""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import Any, Literal

from xr_nczarr.errors import ConflictError, MetadataError, UnsupportedError, quote

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
_REFERENCE = re.compile("reference:(?://|:)")

# Host names of Amazon S3, with the bucket in the path or in front.
_AMAZON = re.compile(
    r"(?:(?P<bucket>.+)\.)?s3(?:[.-](?P<region>[a-z0-9-]+))?\.amazonaws\.com(?::443|:80)?",
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
    group
        Path of the group that the target names: a ``zarr.Group``, or a URL within a reference set
        (``reference://group``); empty for the root.
    storage_options
        For fsspec, from the fragment and the host name.
    filesystem
        That of fsspec which the target brings along: a mapper, an opened file. None where the URL
        says how it is reached.
    folder
        Whether it is a folder whatever its name: a mapper is.
    read_only
        Whether the target is an object that was opened for reading alone.
    target
        The path, URL or object that the user named; of a chain after ``reference::``, the rest.
    """

    url: str
    medium: Medium | None = None
    format: Format | None = None
    zarr_format: str | None = None
    consolidated: bool | None = None
    xarray: bool | None = None
    group: str = ""
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    filesystem: Any = None
    folder: bool = False
    read_only: bool = False
    target: Any = field(default=None, compare=False, repr=False)

    @property
    def path(self) -> str | None:
        """The absolute path of a local target, None of every other one."""
        return self.url if os.path.isabs(self.url) else None

    def check_medium(self, *media: Medium) -> None:
        """Raise ConflictError when the fragment names another medium than what the rest can be."""
        if self.medium not in (None, *media) or (self.medium == "s3" and not self.in_bucket):
            raise ConflictError(
                f"mode={self.medium} in the fragment of the URL contradicts the rest of it",
                remedy=f"Leave out {self.medium}.",
                store=mask(self.url) or None,
            )

    @property
    def in_bucket(self) -> bool:
        """Whether it is in a bucket of S3, or behind a chain that ends there."""
        return self.url.rpartition("::")[2].startswith(("s3://", "s3a://"))


def parse_url(target: object) -> Location:
    """Return the location that a path, a URL or an NCZarr URL names.

    The fragment is the one of netcdf-c: ``#mode=nczarr,zip&awsprofile=name``. A `#` in the name
    of a local file that exists begins no fragment. A leading ``~`` is the home directory.

    Raises
    ------
    MetadataError
        When it is empty, or the fragment has words that are unknown, contradict each other, or
        do not apply to the rest of the URL.

    Examples
    --------
    >>> parse_url("https://s3.eu-west-1.amazonaws.com/bucket/x.zarr#mode=nczarr,s3").url
    's3://bucket/x.zarr'
    """
    location = _location(target)
    return replace(location, target=target) if location.target is None else location


def _location(target: object) -> Location:
    packages = {kind.__module__.partition(".")[0] for kind in type(target).__mro__}
    if packages & {"zarr", "obstore"}:
        from xr_nczarr.storage.store_objects import location_of

        return location_of(target)
    if is_filesystem(getattr(target, "fs", None)):
        return _brought(target)
    if not isinstance(target, str | os.PathLike):
        return Location("")
    url = os.path.expanduser(os.fsdecode(target))  # as all that xarray opens and writes
    link, _, document = url.partition("::")
    if _REFERENCE.match(url) and document and not document.startswith("#"):
        location = parse_url(document)
        return replace(location, url=f"reference::{location.url}", group=_group(link))
    if os.path.lexists(url):
        return Location(absolute_path(url))
    url, options = _split_fragment(url)
    if not url:
        raise MetadataError("the path or URL is empty", remedy="The current folder is '.'.")
    chosen: dict[str, Any] = _choices(options.get("mode", ""), url)
    place = _place(url, chosen.get("medium"))
    return replace(
        place,
        medium=chosen.get("medium"),
        format=chosen.get("format", "zarr" if "xarray" in chosen else None),
        zarr_format=chosen["zarr_format"].removeprefix("v") if "zarr_format" in chosen else None,
        consolidated=True if "consolidated" in chosen else None,
        xarray=chosen["xarray"] == "xarray" if "xarray" in chosen else None,
        storage_options={**_profile(options, place), **place.storage_options},
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
    """Return whether a path is absolute, or begins at a root or drive."""
    return path[:1] in ("/", os.sep) or os.path.splitdrive(path)[0] != ""


def _place(url: str, medium: Medium | None) -> Location:
    """Return the location of a URL without its fragment."""
    if _REFERENCE.match(url):
        return Location("reference::", group=_group(url))
    if _is_local(url):
        return Location(_local_path(url))
    if medium != "s3" and not url.startswith("s3://"):
        return Location(url)
    url, storage_options = _s3_url(url)
    return Location(url, storage_options=storage_options)


def _profile(options: Mapping[str, str], place: Location) -> dict[str, str]:
    """Return the storage option for the profile that a fragment names."""
    names = [name for name in _PROFILE if name in options]
    if names and (not place.in_bucket or "::" in place.url):
        raise MetadataError(
            f"the fragment of the URL has {names[0]}, which is only for URLs of S3",
            remedy="Leave it out; behind a chained URL a profile is one of the storage options.",
            store=mask(place.url),
        )
    return {"profile": options[names[0]]} if names else {}


def _group(link: str) -> str:
    """Return the path within a reference set that the first link of a chain names."""
    return link.removeprefix("reference").lstrip(":").strip("/")


def _brought(target: Any) -> Location:
    """Return the place that an object stands for which has a filesystem of fsspec and a path.

    That is a mapper, an opened file, or a path of universal_pathlib.
    """
    filesystem, folder = target.fs, isinstance(target, Mapping)
    path = getattr(target, "root" if folder else "path", None)
    if not isinstance(path, str):
        return Location("")
    # fsspec's LazyReferenceMapper keeps new references until flush().
    if getattr(target, "_items", {}).keys() - {".zmetadata"}:
        raise UnsupportedError(
            "the references hold changes that are not written",
            remedy="Call flush() first.",
            store=mask(filesystem.unstrip_protocol(path)),
        )
    filesystem, path = plain_filesystem(filesystem, filesystem._strip_protocol(path))
    if filesystem.protocol == "reference":
        return Location("reference::", group=path.strip("/"), filesystem=filesystem)
    from fsspec.implementations.local import LocalFileSystem

    if isinstance(filesystem, LocalFileSystem):
        return Location(absolute_path(path), folder=folder)
    return Location(filesystem.unstrip_protocol(path), filesystem=filesystem, folder=folder)


def is_filesystem(value: object) -> bool:
    """Return whether a value is a filesystem of fsspec, which local stores never import."""
    if value is None:
        return False
    from fsspec import AbstractFileSystem

    return isinstance(value, AbstractFileSystem)


def plain_filesystem(filesystem: Any, path: str) -> tuple[Any, str]:
    """Return the filesystem below fsspec's wrappers, ready for plain calls, and the path in it.

    Wrappers are ``dir``, which shows a folder, and the one that makes any filesystem asynchronous.
    That of references stays as it is.
    """
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
    from fsspec.implementations.dirfs import DirFileSystem

    while True:
        if isinstance(filesystem, DirFileSystem):
            path = "/".join(filter(None, (filesystem.path, path)))
            filesystem = filesystem.fs
        elif isinstance(filesystem, AsyncFileSystemWrapper):
            filesystem = filesystem.sync_fs
        elif (
            filesystem.async_impl and filesystem.asynchronous and filesystem.protocol != "reference"
        ):
            # One that is made for another's event loop cannot be asked from here.
            options = {k: v for k, v in filesystem.storage_options.items() if k != "loop"}
            options["asynchronous"] = False
            filesystem = type(filesystem)(*filesystem.storage_args, **options)
        else:
            return filesystem, path


def check_chain(url: str) -> None:
    """Raise an error for a chained URL with a link that fsspec would pass over.

    Raises
    ------
    UnsupportedError
        When a link takes nothing behind it, a cache has a path, or references come second.
    """
    from fsspec import get_filesystem_class
    from fsspec.implementations.cached import CachingFileSystem

    *links, _ = url.split("::")
    for position, link in enumerate(links):
        protocol, _, path = link.partition("://")
        problem = ""
        if protocol == "reference":
            problem = "reference comes first in a chained URL, or not at all"
        elif protocol == "zip" and not path and links[position + 1 :][:1] in (["zip"], ["zip://"]):
            problem = "a zip file within a zip file needs its name: zip://name::zip"
        elif is_protocol(protocol):
            kind = get_filesystem_class(protocol)
            if issubclass(kind, CachingFileSystem) and path:
                problem = f"{protocol} takes no path in a chained URL"
            elif not _is_wrapper(kind):
                problem = f"{protocol} takes nothing behind it in a chained URL"
        if problem:
            raise UnsupportedError(
                problem, remedy="Leave out that part of the URL.", store=mask(url)
            )


def _is_wrapper(kind: type) -> bool:
    """Return whether a filesystem of fsspec shows files of another one."""
    names = {"fo", "target_protocol"}
    own = (vars(base).get("__init__") for base in kind.__mro__ if base is not object)
    return any(names & signature(init).parameters.keys() for init in own if init is not None)


def check_unused(options: Mapping[str, Any], location: Location | None = None) -> None:
    """Raise UnsupportedError for storage options that change nothing.

    Those that the filesystem of the target was made with may be repeated.
    """
    same = {} if location is None else getattr(location.filesystem, "storage_options", {})
    for name, value in options.items():
        if name not in ("asynchronous", "loop") and (name not in same or same[name] != value):
            raise UnsupportedError(
                f"the storage option {quote(name)} has no use for this target",
                remedy="Leave it out: storage options are for a URL, and are named as fsspec does.",
                store=None if location is None else mask(location.url) or None,
            )


def merge_options(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Merge storage options; those of the caller go first, also within ``client_kwargs``."""
    merged = {**ours, **theirs}
    if "client_kwargs" in ours and "client_kwargs" in theirs:
        merged["client_kwargs"] = {**ours["client_kwargs"], **theirs["client_kwargs"]}
    return merged


def is_protocol(name: str) -> bool:
    """Return whether fsspec knows a protocol of that name."""
    from fsspec.registry import known_implementations, registry

    return name in known_implementations or name in registry


def mask(url: str) -> str:
    """Hide the parts of a URL that can be secrets: user, password and query."""
    return re.sub(r"\?.*", "?***", re.sub(r"//[^/@]*@", "//***@", url))


def split_name(url: str) -> tuple[str, str]:
    """Split a URL without query from its last name, as a key; on the web it is percent-encoded.

    Examples
    --------
    >>> split_name("s3://bucket/sets/refs.json")
    ('s3://bucket/sets', 'refs.json')
    >>> split_name("memory://refs.json")
    ('memory://', 'refs.json')
    """
    folder, _, name = url.rpartition("/")
    if folder.endswith(":/"):
        folder += "/"
    return folder, urllib.parse.unquote(name) if is_web(url) else name


def is_web(url: str) -> bool:
    """Return whether a URL, or the last one of a chain, is one of HTTP."""
    return url.rpartition("::")[2].startswith(("http://", "https://"))


def split_query(url: str) -> tuple[str, str]:
    """Split a URL of HTTP from its query, which keeps its ``?``; other URLs have none."""
    path, mark, query = url.partition("?") if is_web(url) else (url, "", "")
    return path, mark + query


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
    """Return the choices of ``mode=``."""
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
    """Return the absolute path of a path or ``file:`` URL, percent-encoded or not."""
    if not _FILE.match(url):
        return absolute_path(url)
    path = str(local_path(url))
    if "%" in path and not os.path.lexists(path):
        path = urllib.parse.unquote(path)
    return absolute_path(path)


def _s3_url(url: str) -> tuple[str, dict[str, Any]]:
    """Return ``s3://bucket/key`` and the options that lead to the host of `url`."""
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
