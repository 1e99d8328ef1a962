"""Check, compare, list and lock the keys of a store."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from unicodedata import normalize
from weakref import WeakValueDictionary

from xr_nczarr.errors import RefusedError, quote
from xr_nczarr.locks import ProcessLock

_AFTER_SLASH = chr(ord("/") + 1)
_DESKTOP_FILES = frozenset(
    (".ds_store", ".localized", "icon\r", "thumbs.db", "ehthumbs.db", "desktop.ini", ".directory")
)


WRITER_LOCK = ".nczarr-writer.lock"
"""Name of the writer lock in a store: an object, or a locked file."""


class Listing(NamedTuple):
    """One level of a store: the names of objects and of prefixes directly below a prefix."""

    objects: list[str]
    prefixes: list[str]


def check_key(key: str, store: str) -> None:
    """Raise RefusedError for a key that leaves `store`, or that stores interpret differently."""
    if not is_plain_key(key):
        raise RefusedError(
            f"the key {quote(repr(key))} is not a plain relative path",
            remedy="Join names by '/'; no name may be empty, '.' or '..', or have '\\\\' or NUL",
            store=store,
        )


def is_plain_key(key: str) -> bool:
    """Return whether all stores understand a key as the same relative path."""
    path = f"/{key}/"
    return not ("//" in path or "/../" in path or "/./" in path or "\\" in path or "\0" in path)


class Alike(NamedTuple):
    """Two names in `folder` that some file systems do not distinguish; `name` is part of `key`."""

    key: str
    folder: str
    name: str
    other: str


def names_alike(new: Iterable[str], existing: Iterable[str] = ()) -> Iterator[Alike]:
    """Yield pairs of names that differ only in case, or in the encoding of accents.

    `new` and `existing` are keys. Each pair contains a name from a new key.
    """
    names: dict[tuple[str, str], str] = {}
    for key in existing:
        for folder, name in _names(key):
            names[folder, plain_name(name)] = name
    seen: set[tuple[str, str]] = set()
    for key in new:
        for folder, name in _names(key):
            if (folder, name) in seen:
                continue
            seen.add((folder, name))
            other = names.setdefault((folder, plain_name(name)), name)
            if other != name:
                yield Alike(key, folder, name, other)


def _names(key: str) -> Iterator[tuple[str, str]]:
    """Yield (folder, name) of each name in a key, the last one first."""
    while key:
        folder, _, name = key.rpartition("/")
        yield folder, name
        key = folder


def plain_name(name: str) -> str:
    """Return a form that is equal for all names that some file system does not distinguish."""
    return normalize("NFC", normalize("NFC", name).casefold())


def check_prefix(prefix: str, store: str) -> None:
    """Raise RefusedError for a prefix that is neither empty nor a plain key before a ``/``."""
    if prefix:
        check_key(prefix[:-1] if prefix.endswith("/") else "", store)


def check_target(target: str, store: str) -> bool:
    """Return whether `target` is a key, not a prefix; raise RefusedError if it is neither."""
    is_key = target != "" and not target.endswith("/")
    (check_key if is_key else check_prefix)(target, store)
    return is_key


def is_desktop_file(name: str) -> bool:
    """Return whether a name is one of the files that Finder, Explorer and Dolphin create."""
    return name.startswith("._") or name.casefold() in _DESKTOP_FILES


def one_level(keys: Sequence[str], prefix: str) -> Listing:
    """Return the sorted level directly below `prefix` of the sorted `keys`.

    Deeper keys are skipped, so that a tree of many groups is listed group by group.
    """
    objects: list[str] = []
    prefixes: list[str] = []
    at = bisect_left(keys, prefix)
    while at < len(keys) and keys[at].startswith(prefix):
        name, slash, _ = keys[at][len(prefix) :].partition("/")
        (prefixes if slash else objects).append(name)
        at = bisect_left(keys, f"{prefix}{name}{_AFTER_SLASH}", at) if slash else at + 1
    return Listing(objects, sorted(prefixes))


class KeyLocks:
    """Locks by key within this process; a copy in another process has its own."""

    def __init__(self) -> None:
        self._asking = ProcessLock()
        # Locks that no thread holds or waits for are dropped.
        self._locks: WeakValueDictionary[Hashable, ProcessLock] = WeakValueDictionary()

    @contextmanager
    def __call__(self, key: Hashable) -> Iterator[None]:
        """Hold the lock of `key`."""
        with self._asking:
            lock = self._locks.setdefault(key, ProcessLock())
        with lock:
            yield
