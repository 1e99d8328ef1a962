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
    """The names of the objects and of the prefixes directly below a prefix in a store."""

    objects: list[str]
    prefixes: list[str]


def check_key(key: str, store: str) -> None:
    """Raise RefusedError unless `key` is a plain relative path, which cannot lead out of the store.

    `store` is the name of the store for the message.
    """
    if not is_plain_key(key):
        raise RefusedError(
            f"the key {quote(repr(key))} is not a plain relative path",
            remedy="Join names with '/'. A name must not be empty, '.' or '..', and must not "
            "contain '\\\\' or NUL",
            store=store,
        )


def is_plain_key(key: str) -> bool:
    """Return whether all stores interpret a key as the same relative path."""
    path = f"/{key}/"
    return not ("//" in path or "/../" in path or "/./" in path or "\\" in path or "\0" in path)


class Alike(NamedTuple):
    """Two different names in one folder that some file systems treat as the same name.

    `name` is a component of `key`, and `other` is the name with which it would collide.
    """

    key: str
    folder: str
    name: str
    other: str


def names_alike(new: Iterable[str], existing: Iterable[str] = ()) -> Iterator[Alike]:
    """Yield pairs of names that differ only in case, or in the encoding of accents.

    `new` and `existing` are keys. At least one name of each pair belongs to a new key.
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
    """Yield (folder, name) for each component of a key, from the last to the first.

    For ``a/b``, the results are ``("a", "b")`` and ``("", "a")``.
    """
    while key:
        folder, _, name = key.rpartition("/")
        yield folder, name
        key = folder


def plain_name(name: str) -> str:
    """Return a name without differences in case or in the encoding of accents.

    Some file systems treat two names as one if this function returns the same result for both.
    """
    return normalize("NFC", normalize("NFC", name).casefold())


def check_prefix(prefix: str, store: str) -> None:
    """Raise RefusedError for a prefix that is neither empty nor a plain key followed by ``/``."""
    if prefix:
        check_key(prefix[:-1] if prefix.endswith("/") else "", store)


def check_target(target: str, store: str) -> bool:
    """Return True for a key, and False for a prefix, which is empty or ends in ``/``.

    Raises
    ------
    RefusedError
        If `target` is neither a plain key nor a prefix.
    """
    is_key = target != "" and not target.endswith("/")
    (check_key if is_key else check_prefix)(target, store)
    return is_key


def is_desktop_file(name: str) -> bool:
    """Return whether a file manager (Finder, Explorer or Dolphin) creates files with this name."""
    return name.startswith("._") or name.casefold() in _DESKTOP_FILES


def one_level(keys: Sequence[str], prefix: str) -> Listing:
    """Return the sorted names directly below `prefix` from the sorted `keys`.

    Keys below deeper prefixes are skipped by binary search, so that listing one group of a large
    store is fast.
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
    """One lock per key, which excludes only the other threads of the same process."""

    def __init__(self) -> None:
        self._asking = ProcessLock()
        # Locks that no thread holds or waits for are dropped.
        self._locks: WeakValueDictionary[Hashable, ProcessLock] = WeakValueDictionary()

    @contextmanager
    def __call__(self, key: Hashable) -> Iterator[None]:
        """Hold the lock for `key` during the ``with`` block."""
        with self._asking:
            lock = self._locks.setdefault(key, ProcessLock())
        with lock:
            yield
