"""Parse targets: paths, fsspec URLs, NCZarr URLs, and store objects from other packages."""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from xr_nczarr.errors import ConflictError, MetadataError, UnsupportedError, quote
from xr_nczarr.storage.url import local_path, mask, normalize

Medium = Literal["file", "zip", "s3"]
UrlFormat = Literal["nczarr", "zarr"]

# The words that ``mode=`` may contain, each with the attribute of `Location` that it sets.
_MODES: Mapping[str, tuple[str, Any]] = {
    "nczarr": ("format", "nczarr"),
    "zarr": ("format", "zarr"),
    "file": ("medium", "file"),
    "zip": ("medium", "zip"),
    "s3": ("medium", "s3"),
    "xarray": ("xarray", True),
    "noxarray": ("xarray", False),
    "v1": ("zarr_format", "1"),
    "v2": ("zarr_format", "2"),
    "v3": ("zarr_format", "3"),
    "consolidated": ("consolidated", True),
}
_PROFILE = ("awsprofile", "aws.profile")

# The beginning of a URL that names a reference set: ``reference::`` or ``reference://group::``.
_REFERENCE_LINK = re.compile("(?=reference:(?://|:))reference(?:://(?P<group>.*?))?(?:::|(?=#)|$)")

V3_PACKAGES = frozenset(("icechunk", "virtualizarr"))
"""The packages whose stores accept only the keys of Zarr v3 and raise errors for all others."""

# Host names of Amazon S3. The bucket is either in the path or at the start of the host name.
_AMAZON = re.compile(
    r"(?:(?P<bucket>.+)\.)?s3(?:[.-](?P<region>[a-z0-9-]+))?\.amazonaws\.com(?::443|:80)?",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Location:
    """The location of a store and the options contained in its URL.

    Attributes
    ----------
    url
        An absolute path, or an fsspec URL without its fragment. Empty if the target is neither a
        path nor a URL.
    medium, format, zarr_format
        The storage medium, the format and the Zarr version (``"1"``, ``"2"`` or ``"3"``) from
        ``mode=`` in the URL fragment. Each is None if the fragment does not specify it.
    consolidated
        True if the fragment requests consolidated metadata, otherwise None.
    xarray
        True for the mode ``xarray`` in the URL fragment, which requests ``_ARRAY_DIMENSIONS``.
        False for the mode ``noxarray``, otherwise None.
    is_reference_set
        Whether the target names a reference set explicitly, as ``reference://`` URLs do. `url` is
        then the URL of the reference document, if it is known.
    group
        Path of the group, if the target is a ``zarr.Group`` or a URL that begins with
        ``reference://group``. Empty for the root group and for any other target.
    storage_options
        fsspec storage options implied by the fragment and the host name of the URL.
    filesystem
        The filesystem of an fsspec mapper or open file. None if the URL determines the filesystem.
    folder
        Whether the location is known to be a folder, such as the root of an fsspec mapper.
    read_only
        Whether the target is a store object that was opened read-only.
    target
        The path, URL or object that the caller passed, with two exceptions. For a URL such as
        ``reference::x.json``, `target` is only ``x.json``. For a store that must be accessed
        through obstore or zarr-python, `target` is a `StoreObject`.
    """

    url: str = ""
    medium: Medium | None = None
    format: UrlFormat | None = None
    zarr_format: str | None = None
    consolidated: bool | None = None
    xarray: bool | None = None
    is_reference_set: bool = False
    group: str = ""
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    filesystem: Any = None
    folder: bool = False
    read_only: bool = False
    target: Any = field(default=None, compare=False, repr=False)

    @property
    def path(self) -> str | None:
        """The absolute path of a local target, or None for any other target."""
        return self.url if os.path.isabs(self.url) else None

    def check_medium(self, *media: Medium) -> None:
        """Check that the fragment names one of `media`, or no medium at all.

        Raises
        ------
        ConflictError
            If the fragment names any other medium, or names ``s3`` for a URL without a bucket.
        """
        if self.medium not in (None, *media) or (self.medium == "s3" and not self.in_bucket):
            raise ConflictError(
                f"mode={self.medium} in the URL fragment contradicts the rest of the URL",
                remedy=f"Leave out mode={self.medium}",
                store=mask(self.url) or None,
            )

    @property
    def in_bucket(self) -> bool:
        """Whether the URL, or the last URL of a chain, names an S3 bucket."""
        return normalize(self.url.rpartition("::")[2]).startswith("s3://")


class StoreObject(NamedTuple):
    """A folder in a store that must be accessed through obstore or zarr-python.

    `unwrapped` is a location that gives access to the same objects without zarr-python, such as the
    directory behind a zarr-python `LoggingStore`. None means that there is no such location.
    """

    store: Any
    path: str
    unwrapped: Location | None = None


def parse_target(target: object) -> Location:
    """Parse a path, a URL, an NCZarr URL, or a store object into a location.

    The URL fragment uses netCDF-C syntax: ``#mode=nczarr,zip&awsprofile=name``. In the path
    of an existing local file or directory, a ``#`` does not start a fragment. A leading ``~``
    stands for the home directory. A `Location` is returned unchanged.

    Raises
    ------
    MetadataError
        If the URL is empty, or if settings in its fragment are unknown, conflict with each other,
        or do not apply to the rest of the URL.
    UnsupportedError
        If ``reference://`` is not the first part of a chained URL, or if the target is a reference
        mapper with unsaved changes.

    Examples
    --------
    >>> parse_target("https://s3.eu-west-1.amazonaws.com/bucket/x.zarr#mode=nczarr,s3").url
    's3://bucket/x.zarr'
    """
    if isinstance(target, Location):
        return target
    packages = defining_packages(target)
    if "zarr" in packages or _holds_buffers(target):
        location = _locate_zarr_object(target)
    elif "obstore" in packages:
        location = _locate_obstore_store(target, "")
    elif "fsspec" in defining_packages(getattr(target, "fs", None)):
        location = _locate_fsspec_object(target)
    elif isinstance(target, str | os.PathLike):
        location = _parse_text(os.fsdecode(target))
    else:
        location = Location()
    return replace(location, target=target) if location.target is None else location


def defining_packages(instance: object) -> set[str]:
    """Return the names of the packages that define the class of an object and its base classes."""
    return {kind.__module__.partition(".")[0] for kind in type(instance).__mro__}


def absolute_path(path: str) -> str:
    """Return the absolute form of a path, with ``/`` as the separator.

    All local paths in this package have this form.
    """
    return os.path.abspath(path).replace(os.sep, "/")


# ---- Objects from other packages


def _holds_buffers(target: object) -> bool:
    """Return whether `target` is a dict that zarr-python has filled with ``Buffer`` objects."""
    # Such a dict must be accessed through zarr-python, which could not read plain bytes from it.
    value = next(iter(target.values()), None) if isinstance(target, dict) else None
    return "zarr" in defining_packages(value)


def _locate_zarr_object(target: Any) -> Location:
    """Return the location of a zarr-python store, StorePath or group, or of a dict of buffers.

    For any other object, such as a ``zarr.Array``, return an empty location.
    """
    import zarr  # imported only if the caller passed one of its objects
    from zarr.abc.store import Store
    from zarr.storage import MemoryStore, StorePath

    if isinstance(target, zarr.Group):
        location = _locate_zarr_store(target.store, "")
        groups = filter(None, (location.group, target.path.strip("/")))
        return replace(location, group="/".join(groups))
    if isinstance(target, StorePath):
        return _locate_zarr_store(target.store, target.path)
    if isinstance(target, dict):
        return _locate_zarr_store(MemoryStore(target), "")
    return _locate_zarr_store(target, "") if isinstance(target, Store) else Location()


def _locate_zarr_store(store: Any, path: str) -> Location:
    """Return the location of a folder in a zarr-python store."""
    from fsspec import FSMap
    from zarr.storage import FsspecStore, LocalStore, ObjectStore, ZipStore

    # Where possible, the data is accessed without zarr-python, because the stores of this package
    # make writes durable, check responses and retry requests.
    inner = innermost(store)
    location = None
    if isinstance(inner, LocalStore):
        location = Location(absolute_path(str(inner.root / path)), folder=True)
    elif isinstance(inner, FsspecStore):
        root = "/".join(filter(None, (inner.path.rstrip("/"), path)))
        location = _locate_fsspec_object(FSMap(root, inner.fs))
    elif isinstance(inner, ObjectStore):
        location = _locate_obstore_store(inner.store, path)
    elif type(store) is ZipStore and store.read_only and not path:
        location = Location(absolute_path(str(store.path)))
    # Wrappers and subclasses may change what a store returns.
    if location is None or type(store) not in (LocalStore, FsspecStore, ObjectStore, ZipStore):
        version = "3" if defining_packages(inner) & V3_PACKAGES else None
        location = Location(zarr_format=version, target=StoreObject(store, path, location))
    return replace(location, read_only=bool(store.read_only))


def innermost(store: Any) -> Any:
    """Return the store within zarr-python's wrappers, such as `LoggingStore`."""
    from zarr.storage import WrapperStore

    while isinstance(store, WrapperStore):
        store = store._store
    return store


def _locate_obstore_store(store: Any, path: str) -> Location:
    is_local = type(store).__name__ == "LocalStore"
    if is_local and (store.prefix is not None or os.sep == "/"):  # Windows has no root folder
        return Location(absolute_path(os.path.join(store.prefix or "/", path)), folder=True)
    return Location(target=StoreObject(store, path))


def _locate_fsspec_object(target: Any) -> Location:
    """Return the location of an fsspec mapper, an fsspec OpenFile, or a universal_pathlib path."""
    folder = isinstance(target, Mapping)
    path = getattr(target, "root" if folder else "path", None)
    if not isinstance(path, str):
        return Location()
    # fsspec's LazyReferenceMapper keeps new references in memory until flush() is called.
    if getattr(target, "_items", {}).keys() - {".zmetadata"}:
        raise UnsupportedError(
            "the reference mapper has unsaved changes",
            remedy="Call flush() on the mapper first",
            store=mask(target.fs.unstrip_protocol(path)),
        )
    filesystem, path = plain_filesystem(target.fs, target.fs._strip_protocol(path))
    if is_local_filesystem(filesystem):
        return Location(absolute_path(path), folder=folder)
    url = filesystem.unstrip_protocol(path)
    if not url.startswith("reference://"):
        return Location(url, filesystem=filesystem, folder=folder)
    group = url.removeprefix("reference://").strip("/")
    return Location(is_reference_set=True, group=group, filesystem=filesystem, folder=folder)


def plain_filesystem(filesystem: Any, path: str) -> tuple[Any, str]:
    """Return the filesystem inside fsspec's wrappers and the path in that filesystem.

    The wrappers are `DirFileSystem` and `AsyncFileSystemWrapper`.
    """
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
    from fsspec.implementations.dirfs import DirFileSystem

    while True:
        if isinstance(filesystem, DirFileSystem):
            path = "/".join(filter(None, (filesystem.path, path)))
            filesystem = filesystem.fs
        elif isinstance(filesystem, AsyncFileSystemWrapper):
            filesystem = filesystem.sync_fs
        else:
            return filesystem, path


def is_local_filesystem(filesystem: Any) -> bool:
    """Return whether an fsspec filesystem reads local files."""
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(filesystem, LocalFileSystem)


# ---- Paths and URLs


def _parse_text(text: str) -> Location:
    reference = _REFERENCE_LINK.match(text)
    if reference is not None:
        document = text[reference.end() :]
        group = (reference["group"] or "").strip("/")
        location = _parse_url(document)
        return replace(location, is_reference_set=True, group=group, target=document)
    location = _parse_url(text)
    if not location.url:
        raise MetadataError("the path or URL is empty", remedy="Pass '.' for the current folder")
    return location


def _parse_url(text: str) -> Location:
    """Parse a path or a URL that does not begin with ``reference:``."""
    url = os.path.expanduser(text)  # xarray expands paths in the same way
    if os.path.lexists(url):
        return Location(absolute_path(url))
    url, words, options = _split_fragment(url)
    settings = _parse_modes(words, url)
    if "xarray" in settings:
        settings.setdefault("format", "zarr")
    place = _locate_url(url, settings.get("medium")) if url else Location()
    storage_options = {**_profile_options(options, place), **place.storage_options}
    return replace(place, **settings, storage_options=storage_options)


def _locate_url(url: str, medium: Medium | None) -> Location:
    path = _local_path(url)
    if path is not None:
        return Location(path)
    link, _, rest = url.partition("::")
    path = _local_path(rest) if link in ("zip", "zip://") else None
    if path is not None:
        return Location(path, medium="zip")
    if "reference" in [part.partition("://")[0] for part in url.split("::")[:-1]]:
        raise UnsupportedError(
            "reference:// must come first in a chained URL",
            remedy="Move it to the beginning of the URL, or leave it out",
            store=mask(url),
        )
    if medium != "s3" and not url.startswith("s3://"):
        return Location(url)
    url, storage_options = _s3_url(url)
    return Location(url, storage_options=storage_options)


def _profile_options(options: Mapping[str, str], place: Location) -> dict[str, str]:
    name = next((name for name in _PROFILE if name in options), None)
    if name is not None and (not place.in_bucket or "::" in place.url):
        raise MetadataError(
            f"the URL fragment contains the key {name!r}, which applies only to S3 URLs "
            "that are not chained",
            remedy="Remove this key from the fragment. To select an AWS profile for a chained URL, "
            "use a storage option instead",
            store=mask(place.url),
        )
    return {} if name is None else {"profile": options[name]}


def _split_fragment(url: str) -> tuple[str, list[str], dict[str, str]]:
    """Split a URL into the part before the fragment, the modes, and the other settings.

    A word without a key is a mode: ``#zip`` means ``#mode=zip``.

    Raises
    ------
    MetadataError
        If the fragment contains an unknown key.
    """
    base, mark, fragment = url.rpartition("#")
    pairs = [pair.partition("=") for pair in fragment.split("&") if pair]
    # The name of a local file can contain "#".
    is_fragment = _local_path(base) is None or any(
        sign or name in _MODES for name, sign, _ in pairs
    )
    if not mark or not is_fragment:
        return url, [], {}
    words: list[str] = []
    options: dict[str, str] = {}
    for name, sign, value in pairs:
        if not sign or name == "mode":
            words += (value if sign else name).lower().split(",")
        elif name in _PROFILE:
            options[name] = value
        else:
            raise MetadataError(
                f"unknown key {quote(repr(name))} in the URL fragment",
                remedy=f"Use one of these keys: mode, {', '.join(_PROFILE)}",
                store=mask(base),
            )
    return base, [word.strip() for word in words if word.strip()], options


def _parse_modes(words: Sequence[str], url: str) -> dict[str, Any]:
    """Parse the words of ``mode=`` into attributes of `Location`.

    Raises
    ------
    MetadataError
        If a word is unknown, or contradicts another word.
    """
    settings: dict[str, Any] = {}
    for word in words:
        if word not in _MODES:
            raise MetadataError(
                f"unknown mode {quote(repr(word))} in the URL fragment",
                remedy=f"Use one of these modes: {', '.join(_MODES)}",
                store=mask(url),
            )
        name, value = _MODES[word]
        if settings.setdefault(name, value) != value:
            choices = [choice for choice in _MODES if _MODES[choice][0] == name]
            other = next(choice for choice in choices if _MODES[choice][1] == settings[name])
            raise MetadataError(
                f"the URL fragment contains the contradictory modes {other} and {word}",
                remedy=f"Use only one of these modes: {', '.join(choices)}",
                store=mask(url),
            )
    return settings


def _local_path(url: str) -> str | None:
    """Return the absolute path for a path or a ``file:`` URL, or None for any other URL."""
    # There are no stores in data URLs, but a new store may be named "data:x".
    path = url if url.startswith("data:") else local_path(url)
    if path is None:
        return None
    is_url = url.lower().startswith(("file:", "local:"))
    if is_url and "%" in path and not os.path.lexists(path):
        path = urllib.parse.unquote(path)
    return absolute_path(path)


def _s3_url(url: str) -> tuple[str, dict[str, Any]]:
    """Translate an S3 URL to ``s3://bucket/key`` and storage options for its host.

    Any http(s) URL is assumed to be an S3 URL.
    """
    scheme, _, rest = url.partition("://")
    host, _, path = rest.partition("/")
    amazon = _AMAZON.fullmatch(host)
    if scheme not in ("http", "https", "s3") or (scheme == "s3" and not amazon):
        return url, {}  # already in this form, or not an S3 URL
    if not amazon:
        return f"s3://{path}", {"endpoint_url": f"{scheme}://{host}"}
    region = amazon["region"]
    options = {"client_kwargs": {"region_name": region}} if region else {}
    return f"s3://{amazon['bucket']}/{path}" if amazon["bucket"] else f"s3://{path}", options
