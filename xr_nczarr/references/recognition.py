"""Recognize reference sets by their names and storage options.

This module is imported whenever any kind of store is opened. To keep opening fast, it does not
import any other module of the package `references`.
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

    The following targets appear to be reference sets:

    - a dictionary that contains strings, lists, tuples or mappings as values. In a dictionary that
      represents a store, all values are bytes.
    - a URL that begins with ``reference://`` or ``reference::``
    - an fsspec ``ReferenceFileSystem``
    - a path or URL that is passed with storage options that only reference sets use
    - a path or URL that ends in ``.json``, ``.json.gz``, ``.json.zst``, ``.json.zstd``, ``.parq``
      or ``.parquet``. Known folders are excluded, such as existing local folders and the roots of
      fsspec mappers.
    """
    if location.is_reference_set:
        return True
    if not location.url:
        values = location.target.values() if isinstance(location.target, dict) else ()
        return any(isinstance(value, str | list | tuple | Mapping) for value in values)
    if has_reference_options(options):
        return True
    if location.folder or (location.path is not None and os.path.isdir(location.path)):
        return False
    path, _ = split_query(location.url)
    return path.endswith(_JSON_SUFFIXES) or is_parquet(path)


def has_reference_options(options: Mapping[str, Any]) -> bool:
    """Return whether `options` contains any option that only reference sets use."""
    return any(name in _OWN or "://" in name for name in options)


def is_parquet(url: str) -> bool:
    """Return whether a path or URL ends in ``.parq`` or ``.parquet``."""
    return split_query(url)[0].rstrip("/").endswith(_PARQUET_SUFFIXES)
