"""Compute fingerprints: strings that change whenever a file or a set of objects changes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable


def file_fingerprint(path: str) -> str:
    """Return a fingerprint of a file, computed from its path, size and modification time."""
    status = os.stat(path)
    return digest([os.path.realpath(path), status.st_size, status.st_mtime_ns])


def digest(parts: Iterable[object]) -> str:
    """Return a hexadecimal SHA-256 hash, computed from the ``repr()`` of each item of `parts`."""
    result = hashlib.sha256()
    for part in parts:
        result.update(repr(part).encode() + b"\n")
    return result.hexdigest()


def files_below(folder: str) -> Iterable[tuple[str, int, int]]:
    """Yield the path, size and modification time of each file in a folder and its subfolders."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from files_below(entry.path)
            else:
                status = entry.stat()
                yield entry.path, status.st_size, status.st_mtime_ns
