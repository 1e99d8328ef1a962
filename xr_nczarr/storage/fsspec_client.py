"""The client that accesses objects through an fsspec filesystem."""

from __future__ import annotations

import os
import urllib.parse
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Self

from xr_nczarr.storage.caching import cache_error
from xr_nczarr.storage.fsspec_reader import FsspecReader, filesystem_at, is_http, synchronous
from xr_nczarr.storage.keys import Listing
from xr_nczarr.storage.process_local import UnreachableConnection
from xr_nczarr.storage.ranges import Bytes
from xr_nczarr.storage.remote_client import (
    DEFAULT_RULES,
    UNCONDITIONAL_STATUS,
    Connection,
    ListedObject,
    Rules,
)
from xr_nczarr.storage.retries import is_transient, status_of
from xr_nczarr.storage.url import mask

_EXISTING_STATUS = (409, 412)  # statuses of a conditional write to an existing object
_VERSION_KEYS = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "created", "updated")


class FsspecClient(FsspecReader):
    """A client for all files under a folder in an fsspec filesystem."""

    _shows_folders = False

    @classmethod
    def connect(
        cls,
        url: str,
        storage_options: Mapping[str, Any],
        rules: Rules = DEFAULT_RULES,
    ) -> Self:
        """Return a client for an fsspec URL, which may be chained; see `filesystem_at`."""
        filesystem, root = filesystem_at(url, storage_options, rules)
        if rules.trust is not None:
            rules.trust.check_filesystem(filesystem, url)
        return cls(filesystem, root, rules, name=mask(url))

    @classmethod
    def within(cls, filesystem: Any, url: str, rules: Rules = DEFAULT_RULES) -> Self:
        """Return a client for a URL in a filesystem that the caller created.

        An HTTP filesystem is replaced by one that has the same options, but checks responses. An
        asynchronous filesystem is replaced by a synchronous one with the same options.
        """
        if is_http(filesystem):
            return cls.connect(url, filesystem.storage_options, rules)
        if rules.trust is not None:
            rules.trust.check_filesystem(filesystem, url)
        return cls(synchronous(filesystem), filesystem._strip_protocol(url), rules)

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild = partial(type(self), rules=self.rules, name=self.name)
        process = os.getpid() if self.filesystem.protocol == "memory" else None
        return _unpickled, (self.filesystem, self.root + self.query, rebuild, process)

    def put(self, key: str, data: Bytes) -> None:
        """Write a file in one request, replacing any existing file."""
        self._do(partial(_write, bytes(data)), self.path(key), key)

    def create(self, key: str, data: Bytes) -> bool | None:
        """Write a file unless it exists, and return whether this call created it.

        Return None, without writing, if the filesystem does not support conditional writes.
        """
        return self._do(partial(_create, bytes(data)), self.path(key), key)

    def children(self, prefix: str) -> Listing:
        """Return the sorted names of the files and folders directly under `prefix`.

        Over plain HTTP, the names are read from the index page of the folder.
        """
        if self.web:
            return self._list_by_index_page(prefix)
        path = f"{self.root}/{prefix}".rstrip("/")
        objects: list[str] = []
        prefixes: list[str] = []
        for entry in self._do(_listed, path, prefix):
            name = entry["name"].strip("/")
            if name != path.strip("/"):
                names = prefixes if entry["type"] == "directory" else objects
                names.append(name.rpartition("/")[2])
        return Listing(sorted(objects), sorted(prefixes))

    def below(self, prefix: str) -> Iterator[ListedObject]:
        """Yield every file under `prefix`."""
        root, folder = self.root.strip("/"), f"{self.root}/{prefix}".rstrip("/")
        for path, info in self._do(_files_below, folder, prefix).items():
            if path.endswith("/"):  # an empty object that S3 consoles create for a folder
                continue
            key, size = path.strip("/").removeprefix(f"{root}/"), info.get("size")
            versions = [str(info[name]) for name in _VERSION_KEYS if info.get(name)]
            yield ListedObject(
                key, None if size is None else int(size), versions[0] if versions else None
            )

    def remove(self, keys: Sequence[str]) -> None:
        """Remove the files at `keys`, ignoring those that do not exist.

        On S3, one request removes up to 1,000 files.
        """
        paths = [self.path(key) for key in keys]
        if len(paths) > 1 and hasattr(self.filesystem, "remove_files"):
            self._do(lambda filesystem, _: filesystem.remove_files(paths), "", "")
            return

        def remove(key: str) -> None:
            # Not `rm`, which treats names with * and ? as patterns.
            self._do(_remove, self.path(key), key)

        for _ in self.map_concurrently(remove, keys):
            pass

    def address(self, key: str) -> str:
        """Return the fsspec URL of a file."""
        return str(self.filesystem.unstrip_protocol(self.path(key)))

    def check_writable(self) -> None:
        """Raise UnsupportedError for plain HTTP and for fsspec's caching filesystems."""
        super().check_writable()
        if self._is_cache:
            raise cache_error(self.name)

    def _list_by_index_page(self, prefix: str) -> Listing:
        from xr_nczarr.storage.http import names_in_index

        url = f"{self.root}/{urllib.parse.quote(prefix)}".rstrip("/") + "/"
        # Pages are not read through a cache, because a cache could return an outdated page.
        is_cached = not is_http(self.filesystem)
        names = None if is_cached else names_in_index(self._page(url, prefix), url)
        if names is not None and not self._shows_folders:
            # If the server returns a page even for a random name, a page does not prove that a
            # folder exists.
            self._shows_folders = not self._page(f"{url}nothing-{uuid.uuid4().hex}/", prefix)
        if names is None or not self._shows_folders:
            raise self.listing_error(
                prefix, "plain HTTP cannot list objects, and this server provides no index pages"
            )
        objects = [name for name in names if not name.endswith("/")]
        return Listing(objects, [name[:-1] for name in names if name.endswith("/")])

    def _page(self, url: str, prefix: str) -> bytes:
        """Return the page at a URL, or empty bytes if the server responds with a 4xx status."""
        return self._do(_page, url + self.query, prefix)


def _unpickled(
    filesystem: Any, root: str, rebuild: Callable[..., FsspecClient], process: int | None
) -> Connection:
    """Return the client rebuilt by ``rebuild(filesystem, root)``, or an `UnreachableConnection`.

    `process` is the id of the process that pickled the client, or None if the filesystem is not
    ``memory://``. The files of a ``memory://`` filesystem exist only in that process, so any other
    process gets an `UnreachableConnection`.
    """
    client = rebuild(filesystem, root)
    return client if process in (None, os.getpid()) else UnreachableConnection(client.name)


def _listed(filesystem: Any, path: str) -> list[dict[str, Any]]:
    filesystem.invalidate_cache()
    try:
        return list(filesystem.ls(path, detail=True))
    except (FileNotFoundError, NotADirectoryError) as error:
        if status_of(error) is not None:  # the server reports that the bucket is missing
            raise
        return []


def _files_below(filesystem: Any, path: str) -> dict[str, dict[str, Any]]:
    filesystem.invalidate_cache()
    # If there is also an object at `path`, the listing contains that object.
    files = filesystem.find(path, detail=True)
    if not isinstance(files, dict):  # in this case, adlfs does not list the files under `path`
        siblings = _files_below(filesystem, path.rpartition("/")[0])
        folder = f"{path.strip('/')}/"
        return {name: entry for name, entry in siblings.items() if name.startswith(folder)}
    return {name: entry for name, entry in files.items() if name.strip("/") != path.strip("/")}


def _page(filesystem: Any, url: str) -> bytes:
    from xr_nczarr.storage.http import MAX_INDEX_BYTES

    try:
        return bytes(filesystem.cat_file(url, trace_request_ctx=MAX_INDEX_BYTES))
    except Exception as error:
        status = 404 if isinstance(error, FileNotFoundError) else status_of(error)
        if status is None or is_transient(error) or not 400 <= status < 500:
            raise
        return b""


def _write(data: bytes, filesystem: Any, path: str, **options: Any) -> None:
    if not filesystem.async_impl:
        # Not for object stores: they have no folders, and s3fs would create a bucket.
        filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
    try:
        filesystem.pipe_file(path, data, **options)
    except OSError:
        if filesystem.async_impl or not filesystem.isdir(path) or _files_below(filesystem, path):
            raise
        # The files in this folder have been removed, but the folder and its subfolders remain.
        for folder in sorted(filesystem.find(path, withdirs=True), key=len, reverse=True):
            filesystem.rmdir(folder)
        filesystem.pipe_file(path, data, **options)


def _create(data: bytes, filesystem: Any, path: str) -> bool | None:
    try:
        _write(data, filesystem, path, mode="create")
    except (TypeError, ValueError, NotImplementedError):  # `mode` is not supported
        return None
    except Exception as error:
        status = status_of(error)
        if isinstance(error, FileExistsError) or status in _EXISTING_STATUS:
            return False
        if status in UNCONDITIONAL_STATUS:
            return None
        raise
    return True


def _remove(filesystem: Any, path: str) -> None:
    with suppress(FileNotFoundError):
        filesystem.rm_file(path)
