"""What tells, without reading it, that a store was changed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable

from xr_nczarr.storage.filesystem import FilesystemStore
from xr_nczarr.storage.local import LocalStore
from xr_nczarr.storage.memory import MemoryStore
from xr_nczarr.storage.protocol import Store
from xr_nczarr.storage.retries import failing_as_ours
from xr_nczarr.storage.zip import ZipStore


def fingerprint(store: Store) -> str | None:
    """Give a text that is another one when any object of a store was changed.

    Made of sizes and times of files, or of what an object store tells in its listing. None where
    nothing of the kind is to be had: plain HTTP, reference sets.
    """
    if isinstance(store, ZipStore) and isinstance(store.folder, LocalStore):
        return file_fingerprint(f"{store.folder.root}/{store.key}")
    if isinstance(store, LocalStore):
        with failing_as_ours(store.name):
            return _digest([store.name, *sorted(_files(store.root))])
    if isinstance(store, MemoryStore):
        return _digest((key, bytes(store.mapping[key])) for key in sorted(store.mapping))
    if isinstance(store, FilesystemStore) and not store.web:
        states = list(store.states())
        return _digest([store.name, *states]) if all(mark for _, _, mark in states) else None
    return None


def file_fingerprint(path: str) -> str:
    """Give a text that is another one when a file was changed."""
    status = os.stat(path)
    return _digest([os.path.realpath(path), status.st_size, status.st_mtime_ns])


def _files(folder: str) -> Iterable[tuple[str, int, int]]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                yield from _files(entry.path)
            else:
                status = entry.stat()
                yield entry.path, status.st_size, status.st_mtime_ns


def _digest(parts: Iterable[object]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(repr(part).encode() + b"\n")
    return digest.hexdigest()
