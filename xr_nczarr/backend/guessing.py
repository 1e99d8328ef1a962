"""Decide whether a target is meant for this engine when the caller does not name an engine.

xarray asks every installed engine whether it can open a target. To answer quickly, this module
imports only `storage` and `errors`.
"""

from __future__ import annotations

import os

from xr_nczarr.errors import NczarrError
from xr_nczarr.storage import ByteRange, Store, parse_target
from xr_nczarr.storage.open_store import open_store
from xr_nczarr.storage.url import split_query

_ROOT_KEYS = (".zattrs", ".zgroup", ".nczarr", "zarr.json", ".zmetadata")
_MARKS = (b"_nczarr_", b"_NCZARR_", b"nczarr_version")
_SNIFFED_BYTES = 64 << 10


def looks_like_nczarr(target: object) -> bool:
    """Return whether `target` appears to be an NCZarr store, without making remote requests.

    The result is True only for three kinds of targets: URLs whose fragment requests a format
    (``nczarr`` or ``zarr``), remote URLs that end in ``.nczarr``, and undamaged local stores with
    NCZarr metadata at the root.
    """
    if not isinstance(target, str | os.PathLike):
        return False
    try:
        location = parse_target(target)
        if location.format is not None:
            return True
        if location.path is None:
            return split_query(location.url)[0].rstrip("/").endswith(".nczarr")
        store = open_store(location)
        return any(_is_marked(store, key) for key in _ROOT_KEYS)
    except NczarrError:
        return False


def _is_marked(store: Store, key: str) -> bool:
    size = min(store.size(key) or 0, _SNIFFED_BYTES)
    data = next(store.fetch_ranges([ByteRange(key, 0, size)])) if size else None
    return data is not None and any(mark in bytes(data) for mark in _MARKS)
