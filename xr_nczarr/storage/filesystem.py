"""Any fsspec filesystem as a store."""

from __future__ import annotations

import os
import urllib.parse
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import Any, TypeVar

from xr_nczarr.errors import AccessDeniedError, StorageError, UnsupportedError
from xr_nczarr.storage.caching import cache_error
from xr_nczarr.storage.fingerprint import digest
from xr_nczarr.storage.keys import Listing, check_key, check_prefix, check_target
from xr_nczarr.storage.ranges import ByteRange, Bytes, check_range, merge_ranges, windows
from xr_nczarr.storage.retries import (
    foreign_errors,
    is_missing_bucket,
    is_transient,
    page_error,
    page_in,
    status_of,
)
from xr_nczarr.storage.store import Address, Store
from xr_nczarr.storage.transport import IN_FLIGHT, Request, Transport, filesystem_at
from xr_nczarr.storage.trust import Trust
from xr_nczarr.storage.url import mask

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_CHANGE_MARKS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "created", "updated")


class FilesystemStore(Store):
    """The objects below a root in a fsspec filesystem.

    Parameters
    ----------
    root
        Path in the filesystem, as fsspec strips it.
    name
        For messages; a URL without secrets.
    filesystem, rules
        See `Transport`.
    """

    remote = True

    def __init__(
        self, filesystem: Any, root: str, *, name: str | None = None, **rules: Any
    ) -> None:
        self.web = _is_web(filesystem)
        base, mark, query = root.partition("?") if self.web else (root, "", "")
        self.root = base.rstrip("/")
        self.query = mark + query
        self.name = name or mask(filesystem.unstrip_protocol(root))
        self._rules = rules
        self._shows_folders = False
        self.answers_with_pages = bool(rules.get("pages_are_answers"))
        secret = bool(self.query) or "@" in self.root
        self._transport = Transport(filesystem, self.name, web=self.web, secret=secret, **rules)

    @classmethod
    def connect(
        cls,
        url: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        trust: Trust | None = None,
        **rules: Any,
    ) -> FilesystemStore:
        """Return the store at a URL of fsspec, chained or not; see `filesystem_at`."""
        filesystem, root = filesystem_at(url, storage_options or {}, trust, **rules)
        return cls(filesystem, root, name=mask(url), **rules)

    @classmethod
    def within(
        cls, filesystem: Any, url: str, *, trust: Trust | None = None, **rules: Any
    ) -> FilesystemStore:
        """Return the store at a URL of a filesystem that the caller made.

        A filesystem of plain HTTP is made again with the same options, so that its answers are
        checked.
        """
        if _is_http(filesystem):
            return cls.connect(url, filesystem.storage_options, trust=trust, **rules)
        return cls(filesystem, filesystem._strip_protocol(url), **rules)

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild = partial(type(self), name=self.name, **self._rules)
        filesystem = self._transport.filesystem
        process = os.getpid() if filesystem.protocol == "memory" else None
        return _rebuilt, (filesystem, self.root + self.query, rebuild, process)

    def __repr__(self) -> str:
        return f"FilesystemStore({self.name!r})"

    def bounded(self, max_bytes: int) -> FilesystemStore:
        """Return the store that reads no object of more than `max_bytes`."""
        return self._with(most_bytes=min(max_bytes, self._transport.most_bytes or max_bytes))

    def probing(self) -> FilesystemStore:
        """Return the store as one looks for documents in it; see `Store.probing`."""
        return self._with(pages_are_answers=self.web, objects_are_small=True)

    def of_small_objects(self) -> FilesystemStore:
        """Return a store that fetches more objects at once, for those that fit in memory."""
        return self._with(objects_are_small=True)

    def _with(self, **rules: Any) -> FilesystemStore:
        filesystem = self._transport.filesystem
        rules = {**self._rules, **rules}
        store = type(self)(filesystem, self.root + self.query, name=self.name, **rules)
        store._transport.take_turns_with(self._transport)
        return store

    def fetch(self, keys: Sequence[str]) -> Iterator[Bytes | None]:
        """Yield each object in the order of `keys`, None for an absent one."""
        return self._transport.answers([Request(key, self._path(key)) for key in keys])

    def probe(self, keys: Sequence[str]) -> Iterator[Bytes | AccessDeniedError | None]:
        """Yield each object like `fetch`, and the error in place of one that is refused (403)."""
        return self._transport.probes([Request(key, self._path(key)) for key in keys])

    def at_once(
        self, work: Callable[[_Item], _Result], items: Sequence[_Item]
    ) -> Iterator[_Result]:
        """Yield ``work(item)`` for each item in order, several at once where the filesystem can."""
        return self._transport.at_once(work, items)

    def fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        """Yield each byte range in order, None where the object does not exist."""
        for item in ranges:
            check_range(item, self.name)
        plans = [(len(window), merge_ranges(window)) for window in windows(ranges)]
        wanted_ranges = [item.range for _, merged in plans for item in merged]
        # A suffix is requested as such: its first byte is unknown.
        answers = self._transport.answers(
            [
                Request(key, self._path(key), start, start + length or None)
                for key, start, length in wanted_ranges
            ]
        )
        for count, merged in plans:
            results: list[bytes | None] = [None] * count
            for wanted, parts in merged:
                answer = next(answers)
                if answer is not None:
                    data = self._exactly(wanted, answer)
                    for position, offset, length in parts:
                        results[position] = data[offset : offset + length]
            yield from results

    def fetch_end(self, key: str, max_bytes: int) -> Bytes | None:
        """Return the last `max_bytes` of an object, all of a shorter one; None if it is absent."""
        (answer,) = self._transport.answers([Request(key, self._path(key), -max_bytes)])
        if answer is not None and (page := page_in(answer)):
            raise page_error("expected an object", page, store=self.name, key=key)
        return None if answer is None else answer[-max_bytes:]

    def put(self, items: Iterable[tuple[str, Bytes]]) -> None:
        """Write objects, each in one request, replacing older ones.

        Several are under way at once. Write the last object of a commit by a call of its own.
        """
        self.check_writable()
        source = iter(items)

        def put(item: tuple[str, Bytes]) -> None:
            self._transport.do(partial(_write, bytes(item[1])), self._path(item[0]), item[0])

        while batch := list(islice(source, IN_FLIGHT)):
            self._transport.each(put, batch)

    def create(self, key: str, data: bytes) -> bool:
        """Write an object unless it exists; return whether `data` is stored now.

        With conditional requests, as S3 has them, one of two concurrent writers wins. Other
        filesystems look the object up first.
        """
        self.check_writable()
        try:
            self._transport.do(partial(_write, data, mode="create"), self._path(key), key)
        except StorageError:
            # It exists, perhaps by an earlier try whose answer was lost; or the filesystem has no
            # conditional requests.
            return super().create(key, data)
        return True

    def fingerprint(self) -> str | None:
        """Return a text that changes whenever an object does, from the listing; None for HTTP."""
        if self.web:
            return None
        states = []
        for name, info in sorted(self._transport.do(_files_below, self.root, "").items()):
            marks = [str(info[key]) for key in _CHANGE_MARKS if info.get(key)]
            if not marks:
                return None
            states.append((name, info.get("size"), marks[0]))
        return digest([self.name, *states])

    def list_names(self, prefix: str) -> Listing:
        """Return one level below `prefix`, sorted; empty where nothing exists."""
        check_prefix(prefix, self.name)
        if self.web and not self._transport.pages_are_answers:
            raise self._unlisted("plain HTTP cannot list objects", prefix)
        if self.web:
            return self._index(prefix)
        path = f"{self.root}/{prefix}".rstrip("/")
        objects: list[str] = []
        prefixes: list[str] = []
        for entry in self._transport.do(_listed, path, prefix):
            name = entry["name"].strip("/")
            if name != path.strip("/"):
                names = prefixes if entry["type"] == "directory" else objects
                names.append(name.rpartition("/")[2])
        return Listing(sorted(objects), sorted(prefixes))

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int | None]]:
        """Yield key and size in bytes of every object below `prefix`."""
        check_prefix(prefix, self.name)
        if self.web:
            raise self._unlisted("plain HTTP cannot list objects", prefix)
        root, folder = self.root.strip("/"), f"{self.root}/{prefix}".rstrip("/")
        for path, entry in self._transport.do(_files_below, folder, prefix).items():
            if path.endswith("/"):  # an empty object that a console of S3 puts for a folder
                continue
            size = entry.get("size")
            yield path.strip("/").removeprefix(f"{root}/"), None if size is None else int(size)

    def _index(self, prefix: str) -> Listing:
        """Return the names on the index page of a folder on the web."""
        from xr_nczarr.storage.http import names_in_index

        url = f"{self.root}/{urllib.parse.quote(prefix)}".rstrip("/") + "/"
        # Below a cache it would be the page that was shown once.
        kept = not _is_http(self._transport.filesystem)
        names = None if kept else names_in_index(self._page(url, prefix), url)
        if names is not None and not self._shows_folders:
            # One that answers the same for a folder that cannot be there shows no folder.
            self._shows_folders = not self._page(f"{url}nothing-{uuid.uuid4().hex}/", prefix)
        if names is None or not self._shows_folders:
            raise self._unlisted(
                "plain HTTP cannot list objects, and this server shows no index pages", prefix
            )
        objects = [name for name in names if not name.endswith("/")]
        return Listing(objects, [name[:-1] for name in names if name.endswith("/")])

    def _page(self, url: str, prefix: str) -> bytes:
        """Return the page at a URL; empty if the server has no page or refuses it."""
        return self._transport.do(_page, url + self.query, prefix)

    def _unlisted(self, problem: str, prefix: str) -> UnsupportedError:
        return UnsupportedError(
            problem,
            remedy="Give consolidated metadata, or another URL of the same data.",
            store=self.name,
            key=prefix or None,
        )

    def delete(self, prefix: str) -> None:
        """Remove the object `prefix`, or all objects below it if it ends in ``/`` or is empty."""
        self.check_writable()
        if check_target(prefix, self.name):
            paths = [self._path(prefix)]
        else:
            root = f"{self.root}/{prefix}".rstrip("/")
            paths = list(self._transport.do(_files_below, root, prefix))
        # Not `rm`, which takes names with * and ? for patterns.
        self._transport.each(lambda path: self._transport.do(_remove, path, prefix), paths)

    def size(self, key: str) -> int | None:
        """Return the size of an object in bytes, None if it does not exist."""
        return self._transport.size(self._path(key), key)

    def sizes_of(self, keys: Sequence[str]) -> Iterator[int | None]:
        """Yield the size of each object in the order of `keys`, None for an absent one."""
        return self._transport.sizes([(self._path(key), key) for key in keys])

    def addresses(self, keys: Sequence[str]) -> dict[str, Address]:
        """Return the URLs of objects, as fsspec understands them."""
        url = self._transport.filesystem.unstrip_protocol
        return {key: Address(str(url(self._path(key)))) for key in keys}

    def _path(self, key: str) -> str:
        check_key(key, self.name)
        if self.web:
            return f"{self.root}/{urllib.parse.quote(key)}{self.query}"
        return f"{self.root}/{key}" if self.root else key

    def _exactly(self, wanted: ByteRange, answer: bytes) -> bytes:
        """Return the wanted bytes, cut from the whole object where the server sent that."""
        problem = f"expected {wanted.length} bytes from {wanted.start}, got {len(answer)}"
        if page := page_in(answer):
            raise page_error(problem, page, store=self.name, key=wanted.key)
        if len(answer) == wanted.length:
            return answer
        if wanted.length < len(answer) == self.size(wanted.key):
            start = wanted.start + len(answer) if wanted.start < 0 else wanted.start
            if start >= 0 and start + wanted.length <= len(answer):
                return answer[start : start + wanted.length]
        raise StorageError(
            problem,
            remedy="The object was cut or changed, or the server does not know byte ranges.",
            store=self.name,
            key=wanted.key,
        )

    def check_writable(self) -> None:
        """Raise UnsupportedError for plain HTTP, and for what fsspec caches."""
        if self.web:
            raise UnsupportedError("plain HTTP is read only", store=self.name)
        if hasattr(self._transport.filesystem, "_check_file"):  # of fsspec's caches
            raise cache_error(self.name)


def _rebuilt(filesystem: Any, root: str, rebuild: Any, process: int | None) -> FilesystemStore:
    """Return an unpickled store; objects in the memory of a `process` are seen there alone."""
    store: FilesystemStore = rebuild(filesystem, root)
    store._transport.elsewhere = process not in (None, os.getpid())
    return store


def _is_http(filesystem: Any) -> bool:
    protocols = filesystem.protocol
    return "http" in ((protocols,) if isinstance(protocols, str) else protocols)


def _is_web(filesystem: Any) -> bool:
    """Return whether it is plain HTTP, also below a cache: fsspec lists links of pages there."""
    below = getattr(filesystem, "fs", None)
    return _is_http(filesystem) or (below is not None and _is_web(below))


def _listed(filesystem: Any, path: str) -> list[dict[str, Any]]:
    filesystem.invalidate_cache()
    try:
        return list(filesystem.ls(path, detail=True))
    except (FileNotFoundError, NotADirectoryError) as error:
        if is_missing_bucket(error):
            raise
        return []


def _files_below(filesystem: Any, path: str) -> dict[str, dict[str, Any]]:
    filesystem.invalidate_cache()
    files = filesystem.find(path, detail=True)  # where `path` is no folder, the object itself
    return {name: entry for name, entry in files.items() if name.strip("/") != path.strip("/")}


def _page(filesystem: Any, url: str) -> bytes:
    from xr_nczarr.storage.http import MAX_INDEX_BYTES

    try:
        return bytes(filesystem.cat_file(url, trace_request_ctx=MAX_INDEX_BYTES))
    except foreign_errors() as error:
        status = 404 if isinstance(error, FileNotFoundError) else status_of(error)
        if status is None or is_transient(error) or not 400 <= status < 500:
            raise
        return b""


def _write(data: bytes, filesystem: Any, path: str, **options: Any) -> None:
    if not filesystem.async_impl:
        # Object stores have no folders, and s3fs would make a bucket.
        filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
    filesystem.pipe_file(path, data, **options)


def _remove(filesystem: Any, path: str) -> None:
    with suppress(FileNotFoundError):
        filesystem.rm_file(path)
