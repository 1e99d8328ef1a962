"""Validate keys, find names that collide, list keys by prefix, and lock individual keys."""

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
_FILE_MANAGER_FILES = frozenset(
    (".ds_store", ".localized", "icon\r", "thumbs.db", "ehthumbs.db", "desktop.ini", ".directory")
)


WRITER_LOCK = ".nczarr-writer.lock"
"""The name of the object or lock file that serves as the writer lock of a store."""


class Listing(NamedTuple):
    """The names of the objects and prefixes directly under a prefix in a store.

    The names are relative to the prefix. The names in `prefixes` do not end in ``/``.
    """

    objects: list[str]
    prefixes: list[str]


def check_key(key: str, store: str) -> None:
    """Raise RefusedError unless `key` is a plain relative path; see `is_plain_key`.

    Such a path cannot escape the store.
    """
    if not is_plain_key(key):
        raise RefusedError(
            f"the key {quote(repr(key))} is not a plain relative path",
            remedy="Join names with '/'. A name must not be empty, '.' or '..', and must not "
            "contain '\\\\' or NUL",
            store=store,
        )


def is_plain_key(key: str) -> bool:
    """Return whether all stores interpret `key` as the same relative path.

    This is the case if `key` contains no empty, ``.`` or ``..`` component, no backslash and no NUL.
    """
    path = f"/{key}/"
    return not ("//" in path or "/../" in path or "/./" in path or "\\" in path or "\0" in path)


class NameCollision(NamedTuple):
    """Two different names in the same folder that some file systems treat as the same name.

    `name` and `other` are the two names. `key` is a new key that contains `name`.
    """

    key: str
    folder: str
    name: str
    other: str


def name_collisions(new: Iterable[str], existing: Iterable[str] = ()) -> Iterator[NameCollision]:
    """Yield pairs of names in the same folder that differ only in case or Unicode normalization.

    `new` and `existing` are keys. At least one name in each pair is a component of a new key.
    """
    names: dict[tuple[str, str], str] = {}
    for key in existing:
        for folder, name in _names(key):
            names[folder, fold_name(name)] = name
    seen: set[tuple[str, str]] = set()
    for key in new:
        for folder, name in _names(key):
            if (folder, name) in seen:
                continue
            seen.add((folder, name))
            other = names.setdefault((folder, fold_name(name)), name)
            if other != name:
                yield NameCollision(key, folder, name, other)


def _names(key: str) -> Iterator[tuple[str, str]]:
    """Yield the folder and the name of each component of a key, from the last to the first."""
    while key:
        folder, _, name = key.rpartition("/")
        yield folder, name
        key = folder


def fold_name(name: str) -> str:
    """Normalize the case and the Unicode form of a name.

    If the results for two names are equal, some file systems treat the names as the same name.
    """
    return normalize("NFC", normalize("NFC", name).casefold())


def check_prefix(prefix: str, store: str) -> None:
    """Raise RefusedError unless `prefix` is empty, or a plain key followed by ``/``."""
    if prefix:
        check_key(prefix[:-1] if prefix.endswith("/") else "", store)


def check_key_or_prefix(key_or_prefix: str, store: str) -> bool:
    """Check a key or prefix, and return whether it is a key.

    A prefix is empty or ends in ``/``.

    Raises
    ------
    RefusedError
        If `key_or_prefix` is neither a plain key nor a prefix.
    """
    is_key = key_or_prefix != "" and not key_or_prefix.endswith("/")
    (check_key if is_key else check_prefix)(key_or_prefix, store)
    return is_key


def is_file_manager_file(name: str) -> bool:
    """Return whether file managers (Finder, Explorer, Dolphin) create files with this name."""
    return name.startswith("._") or name.casefold() in _FILE_MANAGER_FILES


def children_of(keys: Sequence[str], prefix: str) -> Listing:
    """Return the sorted names directly under `prefix`, given the sorted keys of a store."""
    objects: list[str] = []
    prefixes: list[str] = []
    position = bisect_left(keys, prefix)
    while position < len(keys) and keys[position].startswith(prefix):
        name, slash, _ = keys[position][len(prefix) :].partition("/")
        (prefixes if slash else objects).append(name)
        # The keys under a prefix are skipped, so that listing a group in a large store is fast.
        position = (
            bisect_left(keys, f"{prefix}{name}{_AFTER_SLASH}", position) if slash else position + 1
        )
    return Listing(objects, sorted(prefixes))


class KeyLocks:
    """A set of locks, one per key, that guard only against other threads in the same process."""

    def __init__(self) -> None:
        self._guard = ProcessLock()
        # Because the references are weak, a lock that no thread holds or waits for is removed.
        self._locks: WeakValueDictionary[Hashable, ProcessLock] = WeakValueDictionary()

    @contextmanager
    def __call__(self, key: Hashable) -> Iterator[None]:
        """Hold the lock for `key` during the ``with`` block."""
        with self._guard:
            lock = self._locks.setdefault(key, ProcessLock())
        with lock:
            yield
