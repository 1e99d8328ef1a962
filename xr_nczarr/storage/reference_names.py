"""Recognize reference sets by their names and storage options.

This module is separate from the package `references`, so that opening any other store does not
import that package.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from xr_nczarr.storage.location import Location
from xr_nczarr.storage.url import split_query

_JSON_SUFFIXES = (".json", ".json.gz", ".json.zst", ".json.zstd")
_PARQUET_SUFFIXES = (".parq", ".parquet")
# Options that only reference sets use. The options fo, target_protocol and target_options are not
# among them, because chained URLs use them too.
_OWN = ("remote_protocol", "remote_options", "template_overrides", "templates", "allow")


def names_reference_set(location: Location, options: Mapping[str, Any]) -> bool:
    """Return whether a target appears to be a reference set, without opening it.

    Only the values of a dictionary, or the prefix, suffix and storage options of a path or URL, are
    examined.
    """
    if not location.url:
        values = location.target.values() if isinstance(location.target, dict) else ()
        return any(isinstance(value, str | list | tuple | Mapping) for value in values)
    if location.url.startswith("reference::") or has_reference_options(options):
        return True
    if location.folder or (location.path is not None and os.path.isdir(location.path)):
        return False
    return is_json(location.url) or is_parquet(location.url)


def has_reference_options(options: Mapping[str, Any]) -> bool:
    """Return whether any of the storage options is used only by reference sets."""
    return any(name in _OWN or "://" in name for name in options)


def is_json(url: str) -> bool:
    """Return whether a path or URL ends in ``.json``, or in the suffix of compressed JSON."""
    return split_query(url)[0].endswith(_JSON_SUFFIXES)


def is_parquet(url: str) -> bool:
    """Return whether a path or URL ends in ``.parq`` or ``.parquet``."""
    return split_query(url)[0].rstrip("/").endswith(_PARQUET_SUFFIXES)
