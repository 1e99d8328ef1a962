"""Recognize reference sets by their names and storage options.

This module is imported whenever any kind of store is opened. It therefore does not import any other
module of the package `references`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from xr_nczarr.errors import UnsupportedError
from xr_nczarr.storage.location import Location, parse_url
from xr_nczarr.storage.url import is_filesystem, mask, split_query

PREFIX = "reference::"
_LINK = re.compile("reference:(?://|:)")

_JSON_SUFFIXES = (".json", ".json.gz", ".json.zst", ".json.zstd")
_PARQUET_SUFFIXES = (".parq", ".parquet")
# Options that only reference sets use. The options fo, target_protocol and target_options are not
# listed here, because chained URLs also use them.
_OWN = ("remote_protocol", "remote_options", "template_overrides", "templates", "allow")


def parse_target(target: object) -> Location:
    """Parse a path, a URL or an object that may name a reference set.

    A target such as ``reference://group::document`` names a reference set explicitly. For such a
    target, `Location.url` consists of ``reference::`` and the URL of the document, `Location.group`
    is the group named in the URL, and `Location.target` is the document. Other targets are parsed
    by `parse_url`.
    """
    if is_filesystem(getattr(target, "fs", None)):
        _check_saved(target)
    url = os.fsdecode(target) if isinstance(target, str | os.PathLike) else ""
    link, _, document = url.partition("::")
    if _LINK.match(url) and document and not document.startswith("#"):
        location = parse_url(document)
        location = replace(location, url=PREFIX + location.url, group=_group(link))
    else:
        location = parse_url(target)
        if _LINK.match(location.url):  # also fsspec's ReferenceFileSystem
            groups = filter(None, (_group(location.url), location.group))
            location = replace(location, url=PREFIX, group="/".join(groups))
    links = [link.partition("://")[0] for link in location.url.split("::")]
    if location.path is None and "reference" in links[1:-1]:
        raise UnsupportedError(
            "reference:// must come first in a chained URL",
            remedy="Move it to the beginning of the URL, or leave it out",
            store=mask(location.url),
        )
    return location


def _check_saved(mapper: Any) -> None:
    # fsspec's LazyReferenceMapper keeps new references in memory until flush() is called.
    if getattr(mapper, "_items", {}).keys() - {".zmetadata"}:
        raise UnsupportedError(
            "the reference mapper has unsaved changes",
            remedy="Call flush() on the mapper first",
            store=mask(mapper.fs.unstrip_protocol(mapper.root)),
        )


def _group(link: str) -> str:
    """Return the group named in the first link of a chained URL.

    For ``reference://a::set.json``, `link` is ``reference://a``, and the result is ``a``.
    """
    return link.removeprefix("reference").lstrip(":").strip("/")


def is_explicit(location: Location) -> bool:
    """Return whether a target names a reference set explicitly; see `parse_target`."""
    return location.url.startswith(PREFIX)


def names_reference_set(location: Location, options: Mapping[str, Any]) -> bool:
    """Return whether a target appears to be a reference set, without opening it.

    For a dictionary, the decision is based only on its values. For a path or URL, it is based only
    on the prefix, the suffix, the storage options, and whether the target is known to be a folder.
    """
    if not location.url:
        values = location.target.values() if isinstance(location.target, dict) else ()
        return any(isinstance(value, str | list | tuple | Mapping) for value in values)
    if is_explicit(location) or has_reference_options(options):
        return True
    if location.folder or (location.path is not None and os.path.isdir(location.path)):
        return False
    return is_json(location.url) or is_parquet(location.url)


def has_reference_options(options: Mapping[str, Any]) -> bool:
    """Return whether `options` contains any option that only reference sets use."""
    return any(name in _OWN or "://" in name for name in options)


def is_json(url: str) -> bool:
    """Return whether a path or URL has the suffix of a JSON file, possibly compressed."""
    return split_query(url)[0].endswith(_JSON_SUFFIXES)


def is_parquet(url: str) -> bool:
    """Return whether a path or URL ends in ``.parq`` or ``.parquet``."""
    return split_query(url)[0].rstrip("/").endswith(_PARQUET_SUFFIXES)
