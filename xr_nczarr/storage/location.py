"""Parse targets: paths, fsspec URLs, NCZarr URLs, and store objects from other packages."""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from xr_nczarr.errors import (
    ConflictError,
    MetadataError,
    quote,
)
from xr_nczarr.storage.fsspec_client import FsspecClient
from xr_nczarr.storage.local import LocalStore
from xr_nczarr.storage.obstore_client import ObstoreClient
from xr_nczarr.storage.remote import RemoteStore
from xr_nczarr.storage.remote_client import Rules
from xr_nczarr.storage.retries import Retry
from xr_nczarr.storage.store import Store
from xr_nczarr.storage.trust import symlink_error
from xr_nczarr.storage.url import (
    absolute_path,
    is_filesystem,
    is_local_filesystem,
    local_path,
    mask,
    normalize,
    plain_filesystem,
    wraps_local_filesystem,
)

Medium = Literal["file", "zip", "s3"]
UrlFormat = Literal["nczarr", "zarr"]

# The words that ``mode=`` may contain: at most one from each line.
_CHOICES = {
    "format": ("nczarr", "zarr"),
    "medium": ("file", "zip", "s3"),
    "xarray": ("xarray", "noxarray"),
    "zarr_format": ("v1", "v2", "v3"),
    "consolidated": ("consolidated",),
}
_WORDS = [word for words in _CHOICES.values() for word in words]
_PROFILE = ("awsprofile", "aws.profile")

# fsspec's protocols for archives. Symbolic links within an archive cannot point outside it.
_ARCHIVES = ("zip", "tar", "libarchive")

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
        The storage medium, the format and the Zarr version requested by ``mode=`` in the URL
        fragment. `zarr_format` is ``"1"``, ``"2"`` or ``"3"``. Each attribute is None if the
        fragment does not specify it.
    consolidated
        True if the fragment requests consolidated metadata, otherwise None.
    xarray
        True if the fragment requests ``_ARRAY_DIMENSIONS`` (``xarray``), or False if it rejects
        them (``noxarray``). None means that the fragment contains neither word.
    group
        Path of the group, if the target is a ``zarr.Group``. Empty for the root group and for any
        other target.
    storage_options
        fsspec storage options implied by the fragment and the host name of the URL.
    filesystem
        The filesystem of an fsspec mapper or open file. None if the URL determines the filesystem.
    folder
        Whether the location is known to be a folder, such as the root of an fsspec mapper.
    read_only
        Whether the target is a store object that was opened read-only.
    target
        The path, URL or object that the caller passed.
    """

    url: str
    medium: Medium | None = None
    format: UrlFormat | None = None
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

    def check_confined(self) -> None:
        """Check that fsspec will not follow symbolic links out of a local folder.

        Raises
        ------
        RefusedError
            If fsspec, which follows all symbolic links, would read a local folder. For example,
            it does so for ``simplecache::`` and ``dir::`` URLs.
        """
        *links, last = self.url.split("::")
        is_read_by_fsspec = bool(links) and links[-1].partition("://")[0] not in _ARCHIVES
        is_local = is_read_by_fsspec and local_path(last) is not None
        if is_local or wraps_local_filesystem(self.filesystem):
            raise symlink_error(self.url)

    @property
    def in_bucket(self) -> bool:
        """Whether the URL, or the last URL of a chain, names an S3 bucket."""
        return normalize(self.url.rpartition("::")[2]).startswith("s3://")


def parse_url(target: object) -> Location:
    """Parse a path, a URL, an NCZarr URL, or a store object into a location.

    The URL fragment uses netCDF-C syntax: ``#mode=nczarr,zip&awsprofile=name``. In the path
    of an existing local file or directory, a ``#`` does not start a fragment. A leading ``~``
    stands for the home directory.

    Raises
    ------
    MetadataError
        If the URL is empty, or if settings in its fragment are unknown, conflict with each other,
        or do not apply to the rest of the URL.

    Examples
    --------
    >>> parse_url("https://s3.eu-west-1.amazonaws.com/bucket/x.zarr#mode=nczarr,s3").url
    's3://bucket/x.zarr'
    """
    location = _location(target)
    return replace(location, target=target) if location.target is None else location


def _location(target: object) -> Location:
    packages = defining_packages(target)
    if "obstore" in packages:
        return _locate_obstore_store(target, "")
    if "zarr" in packages:
        return _locate_zarr_object(target)
    if isinstance(target, dict) and "zarr" in defining_packages(next(iter(target.values()), None)):
        return _locate_zarr_dict(target)
    if is_filesystem(getattr(target, "fs", None)):
        return _locate_filesystem(target)
    if not isinstance(target, str | os.PathLike):
        return Location("")
    url = os.path.expanduser(os.fsdecode(target))  # xarray expands paths in the same way
    if os.path.lexists(url):
        return Location(absolute_path(url))
    url, options = _split_fragment(url)
    if not url:
        raise MetadataError("the path or URL is empty", remedy="Pass '.' for the current folder")
    chosen: dict[str, Any] = _parse_mode(options.get("mode", ""), url)
    place = _locate_url(url, chosen.get("medium"))
    return replace(
        place,
        medium=chosen.get("medium", place.medium),
        format=chosen.get("format", "zarr" if "xarray" in chosen else None),
        zarr_format=chosen["zarr_format"].removeprefix("v") if "zarr_format" in chosen else None,
        consolidated=True if "consolidated" in chosen else None,
        xarray=chosen["xarray"] == "xarray" if "xarray" in chosen else None,
        storage_options={**_profile_options(options, place), **place.storage_options},
    )


def defining_packages(instance: object) -> set[str]:
    """Return the names of the packages that define the class of an object and its base classes."""
    return {kind.__module__.partition(".")[0] for kind in type(instance).__mro__}


def _locate_url(url: str, medium: Medium | None) -> Location:
    if _is_local(url):
        return Location(_local_path(url))
    link, _, rest = url.partition("::")
    if link in ("zip", "zip://") and _is_local(rest):
        return Location(_local_path(rest), medium="zip")
    if medium != "s3" and not url.startswith("s3://"):
        return Location(url)
    url, storage_options = _s3_url(url)
    return Location(url, storage_options=storage_options)


def _profile_options(options: Mapping[str, str], place: Location) -> dict[str, str]:
    name = next((name for name in _PROFILE if name in options), None)
    if name is not None and (not place.in_bucket or "::" in place.url):
        raise MetadataError(
            f"the URL fragment contains the key {name!r}, which applies only to S3 URLs",
            remedy="Remove this key from the fragment. For a chained URL, pass the name of the "
            "profile as a storage option instead",
            store=mask(place.url),
        )
    return {} if name is None else {"profile": options[name]}


def _locate_filesystem(target: Any) -> Location:
    """Return the location of an fsspec mapper, an fsspec OpenFile, or a universal_pathlib path."""
    filesystem, folder = target.fs, isinstance(target, Mapping)
    path = getattr(target, "root" if folder else "path", None)
    if not isinstance(path, str):
        return Location("")
    filesystem, path = plain_filesystem(filesystem, filesystem._strip_protocol(path))
    if is_local_filesystem(filesystem):
        return Location(absolute_path(path), folder=folder)
    return Location(filesystem.unstrip_protocol(path), filesystem=filesystem, folder=folder)


def _locate_zarr_object(target: Any) -> Location:
    """Return the location of a zarr-python store, path or group.

    Where possible, this package accesses the data with its own store classes instead of through
    zarr-python, because these classes make writes durable, check responses and retry requests.
    """
    import zarr  # imported only if the caller passed one of its objects
    from zarr.abc.store import Store as ZarrStore
    from zarr.storage import StorePath

    if isinstance(target, zarr.Group):
        return replace(_locate_zarr_store(target.store, ""), group=target.path.strip("/"))
    if isinstance(target, StorePath):
        return _locate_zarr_store(target.store, target.path)
    if isinstance(target, ZarrStore):
        return _locate_zarr_store(target, "")
    return Location("")


def _locate_zarr_store(store: Any, path: str) -> Location:
    from zarr.storage import FsspecStore, ObjectStore, ZipStore
    from zarr.storage import LocalStore as ZarrLocalStore

    from xr_nczarr.storage.zarr_python_client import ZarrPythonClient, innermost

    if type(store) is ZipStore and store.read_only and not path:
        location = Location(absolute_path(str(store.path)))
    elif type(store) in (ZarrLocalStore, FsspecStore, ObjectStore):
        location = _locate_underlying_objects(store, path)
    else:  # subclasses and wrappers may change what a store returns
        unwrapped = _store_at(_locate_underlying_objects(innermost(store), path))
        client = ZarrPythonClient(store, path, unwrapped)
        # icechunk supports only Zarr v3.
        version = "3" if client.v3_only else None
        location = Location("", zarr_format=version, target=RemoteStore(client))
    return replace(location, read_only=bool(store.read_only))


def _locate_underlying_objects(store: Any, path: str) -> Location:
    """Return where to access the objects of a zarr-python store without zarr-python.

    The location is empty if only zarr-python can access them, as for a store in memory.
    """
    from fsspec import FSMap
    from zarr.storage import FsspecStore, ObjectStore
    from zarr.storage import LocalStore as ZarrLocalStore

    if isinstance(store, ZarrLocalStore):
        return Location(absolute_path(str(store.root / path)), folder=True)
    if isinstance(store, FsspecStore):
        root = "/".join(filter(None, (store.path.rstrip("/"), path)))
        return _locate_filesystem(FSMap(root, store.fs))
    if isinstance(store, ObjectStore):
        return _locate_obstore_store(store.store, path)
    return Location("")


def _store_at(location: Location) -> Store | None:
    """Return the store at a location, or None for an empty location."""
    if location.path is not None:
        return LocalStore(location.path)
    if location.filesystem is not None:
        return RemoteStore(FsspecClient.within(location.filesystem, location.url))
    store: Store | None = location.target
    return store


def _locate_zarr_dict(objects: dict[str, Any]) -> Location:
    """Return the location of a dict that zarr-python filled with its own ``Buffer`` objects.

    Writes go through zarr-python so that every value remains a ``Buffer``: zarr-python cannot read
    plain bytes from a dict.
    """
    from zarr.storage import MemoryStore

    return _locate_zarr_store(MemoryStore(objects), "")


def _locate_obstore_store(store: Any, path: str) -> Location:
    is_local = type(store).__name__ == "LocalStore"
    if is_local and (store.prefix is not None or os.sep == "/"):  # Windows has no root folder
        return Location(absolute_path(os.path.join(store.prefix or "/", path)), folder=True)
    rules = Rules(retry=Retry(attempts=1))  # the caller's store already retries requests
    return Location("", target=RemoteStore(ObstoreClient(store, path, rules)))


def _split_fragment(url: str) -> tuple[str, dict[str, str]]:
    """Split a URL into the part before the fragment and a dict of the fragment's keys and values.

    A word without a key is added to the value of ``mode``. For example, ``#zip`` means
    ``#mode=zip``.
    """
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
                f"unknown key {quote(repr(name))} in the URL fragment",
                remedy=f"Use one of these keys: mode, {', '.join(_PROFILE)}",
                store=mask(base),
            )
        if sign and name != "mode":
            options[name] = value
        else:
            options["mode"] = f"{options.get('mode', '')},{value if sign else name}"
    return base, options


def _parse_mode(mode: str, url: str) -> dict[str, str]:
    """Parse the value of ``mode=`` into a dict of settings.

    For example, ``nczarr,zip`` becomes ``{"format": "nczarr", "medium": "zip"}``.
    """
    chosen: dict[str, str] = {}
    for word in filter(None, (part.strip().lower() for part in mode.split(","))):
        choice = next((name for name, words in _CHOICES.items() if word in words), None)
        if choice is None:
            raise MetadataError(
                f"unknown mode {quote(repr(word))} in the URL fragment",
                remedy=f"Use one of these modes: {', '.join(_WORDS)}",
                store=mask(url),
            )
        other = chosen.setdefault(choice, word)
        if other != word:
            raise MetadataError(
                f"the URL fragment contains the contradictory modes {other} and {word}",
                remedy=f"Use only one of these modes: {', '.join(_CHOICES[choice])}",
                store=mask(url),
            )
    return chosen


def _is_local(url: str) -> bool:
    # There are no stores in data URLs, but a new store may be named "data:x".
    return url.startswith("data:") or local_path(url) is not None


def _local_path(url: str) -> str:
    """Return the absolute path for a path or a ``file:`` URL.

    Percent-encoded characters in a URL are decoded, unless a file with the encoded name exists.
    """
    if not url.lower().startswith(("file:", "local:")):
        return absolute_path(url)
    path = str(local_path(url))
    if "%" in path and not os.path.lexists(path):
        path = urllib.parse.unquote(path)
    return absolute_path(path)


def _s3_url(url: str) -> tuple[str, dict[str, Any]]:
    """Translate an S3 URL to ``s3://bucket/key``, and move its host to the storage options.

    Only http(s) URLs, and ``s3://`` URLs with an Amazon host name, are translated. All other URLs
    are returned unchanged.
    """
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
