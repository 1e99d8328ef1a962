"""Recognize reference sets by their names and storage options.

This module is not part of the package `references`, so that opening any other kind of store does
not import that package.
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
# listed here, because chained URLs also use them.
_OWN = ("remote_protocol", "remote_options", "template_overrides", "templates", "allow")


def names_reference_set(location: Location, options: Mapping[str, Any]) -> bool:
    """Return whether a target appears to be a reference set, without opening it.

    For a dictionary, the decision is based only on its values. For a path or URL, it is based only
    on the prefix, the suffix, the storage options, and whether the target is known to be a folder.
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
    """Return whether `options` contains any option that only reference sets use."""
    return any(name in _OWN or "://" in name for name in options)


def is_json(url: str) -> bool:
    """Return whether a path or URL has the suffix of a JSON file, which may be compressed."""
    return split_query(url)[0].endswith(_JSON_SUFFIXES)


def is_parquet(url: str) -> bool:
    """Return whether a path or URL ends in ``.parq`` or ``.parquet``."""
    return split_query(url)[0].rstrip("/").endswith(_PARQUET_SUFFIXES)
