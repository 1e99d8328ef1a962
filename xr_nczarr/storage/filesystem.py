"""Any fsspec filesystem as a store, reached through fsspec's public batch calls alone."""

from __future__ import annotations

import copy
import os
import urllib.parse
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import fsspec

from xr_nczarr.errors import (
    LimitError,
    NczarrError,
    NotFoundError,
    StorageError,
    UnsupportedError,
    quote,
)
from xr_nczarr.locks import ProcessLock
from xr_nczarr.storage.keys import KeyLocks, check_key, check_prefix, check_target
from xr_nczarr.storage.protocol import ByteRange, Bytes, Listing
from xr_nczarr.storage.ranges import merge_ranges, windows
from xr_nczarr.storage.retries import (
    Retry,
    foreign_errors,
    is_missing_bucket,
    is_transient,
    status_of,
    storage_error,
)
from xr_nczarr.storage.trust import Trust
from xr_nczarr.storage.url import mask

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

_HELPERS = 2
_AT_ONCE = 32  # of each helper: 64 requests are in flight
_LONGEST_BATCH = 128
_BYTES_AHEAD = 64 << 20  # of each batch, as far as the sizes are known
_FIRST_BATCH = 8  # while they are not


class _Request(NamedTuple):
    """Bytes from `start` up to `end` of an object; a negative start counts from its end."""

    key: str
    start: int | None = None
    end: int | None = None


class FilesystemStore:
    """The objects below a root in a fsspec filesystem.

    Parameters
    ----------
    filesystem
        An instance of fsspec. It is made anew in a forked process, where fsspec's own would fail.
    root
        Path in the filesystem, as fsspec strips it.
    name
        For messages; a URL without secrets.
    retry
        How failures that may pass are tried again.
    missing_status
        HTTP answers that mean *not there*. 403 belongs here where a store hides absence so.
    most_bytes
        Of an object that is asked for whole; None for any number. No more than that is read.
    """

    remote = True

    def __init__(
        self,
        filesystem: Any,
        root: str,
        *,
        name: str | None = None,
        retry: Retry | None = None,
        missing_status: tuple[int, ...] = (404,),
        most_bytes: int | None = None,
    ) -> None:
        self.web = _is_web(filesystem)
        base, mark, query = root.partition("?") if self.web else (root, "", "")
        self.root = base.rstrip("/")
        self.query = mark + query
        self.name = name or mask(filesystem.unstrip_protocol(root))
        self.retry = retry or Retry()
        self.missing_status = missing_status
        self.most_bytes = most_bytes
        self._filesystem = filesystem
        self._process = os.getpid()
        self._locks = KeyLocks()
        # Caches and filesystems without concurrency of their own need not be safe in threads.
        self._alone = not filesystem.async_impl or hasattr(filesystem, "fs")
        self._turn = ProcessLock() if self._alone else nullcontext()

    @classmethod
    def connect(
        cls,
        url: str,
        storage_options: Mapping[str, Any] | None = None,
        *,
        trust: Trust | None = None,
        **rules: Any,
    ) -> FilesystemStore:
        """Give the store at a URL of fsspec, chained or not; nothing is requested yet.

        Parameters
        ----------
        trust
            Whom a web server may send on to.
        rules
            `retry`, `missing_status` and `most_bytes`, as of the class.

        Raises
        ------
        UnsupportedError
            When there is no filesystem for the URL, or it is not installed.
        NotFoundError
            When an archive that the URL goes through is not there.
        """
        retry = rules.get("retry") or Retry()
        options = dict(storage_options or {})
        try:
            if url.startswith(("http://", "https://")):
                from xr_nczarr.storage.http import web_options

                options = web_options(options, retry, trust, rules.get("most_bytes"))
            elif url.startswith(("s3://", "s3a://")):
                options = _s3_options(options, retry)
            filesystem, root = fsspec.core.url_to_fs(url, **options)
        except ImportError as error:
            raise UnsupportedError(
                f"a package for this kind of URL is missing ({error})",
                remedy="Install it; xr-nczarr[http] and xr-nczarr[s3] bring the common ones.",
                store=mask(url),
            ) from error
        except ValueError as error:
            raise UnsupportedError(str(error), store=mask(url)) from error
        except FileNotFoundError as error:  # an archive in the chain is opened at once
            raise NotFoundError("there is nothing", store=mask(url)) from error
        except OSError as error:
            raise storage_error(error, store=mask(url), key=None) from error
        return cls(filesystem, root, name=mask(url), **rules)

    def __reduce__(self) -> tuple[Any, ...]:
        rules = {name: getattr(self, name) for name in ("retry", "missing_status", "most_bytes")}
        rebuild = partial(type(self), name=self.name, **rules)
        return rebuild, (self._filesystem, self.root + self.query)

    def __repr__(self) -> str:
        return f"FilesystemStore({self.name!r})"

    def fetch(self, keys: Sequence[str]) -> Iterator[Bytes | None]:
        """Yield each object in the order of `keys`, None for one that is not there."""
        return self._answers([_Request(key) for key in keys])

    def fetch_ranges(self, ranges: Sequence[ByteRange]) -> Iterator[Bytes | None]:
        """Yield each byte range in order, None where the object is not there."""
        for key, start, length in ranges:
            if length < 0 or start < 0 < start + length:
                problem = f"{length} bytes from {start} are no range"
                remedy = "Its index is damaged."
                raise StorageError(problem, remedy=remedy, store=self.name, key=key)
        plans = [(len(window), merge_ranges(window)) for window in windows(ranges)]
        asked_for = [one.range for _, merged in plans for one in merged]
        # A suffix is asked for as such: where it begins is not known.
        answers = self._answers(
            [_Request(key, start, start + length or None) for key, start, length in asked_for]
        )
        for count, merged in plans:
            results: list[bytes | None] = [None] * count
            for asked, parts in merged:
                answer = next(answers)
                if answer is not None:
                    data = self._exactly(asked, answer)
                    for position, offset, length in parts:
                        results[position] = data[offset : offset + length]
            yield from results

    def put(self, items: Iterable[tuple[str, Bytes]]) -> None:
        """Write objects, each in one request, replacing what was there.

        Several are under way at once: what must come last belongs into a call of its own.
        """
        self._check_writable()
        source = iter(items)

        def put(item: tuple[str, Bytes]) -> None:
            self._patiently(partial(_write, bytes(item[1])), self._path(item[0]), item[0])

        while batch := list(islice(source, _HELPERS * _AT_ONCE)):
            self._each(put, batch)

    def create(self, key: str, data: bytes) -> bool:
        """Put an object where there is none, and tell whether it is what is there now.

        Of two who do so at once one wins where the filesystem knows conditional requests, as that
        of S3 does; elsewhere it is looked up first.
        """
        self._check_writable()
        try:
            self._patiently(partial(_write, data, mode="create"), self._path(key), key)
        except StorageError:  # there is one, perhaps ours: the answer to an earlier try was lost
            (found,) = self.fetch([key])
            if found is None:  # or conditional requests are not known
                self.put([(key, data)])
            return found is None or bytes(found) == data
        return True

    def states(self) -> Iterator[tuple[str, Any, str]]:
        """Yield each object's name, size and what changes with it; the last is empty if unknown."""
        self._filesystem.invalidate_cache()
        for name, info in sorted(self._filesystem.find(self.root, detail=True).items()):
            marks = ("ETag", "etag", "md5Hash", "mtime", "LastModified", "created", "updated")
            known = next((info[mark] for mark in marks if info.get(mark)), "")
            yield name, info.get("size"), str(known)

    def list_names(self, prefix: str) -> Listing:
        """Give one level below `prefix`, sorted; empty when there is nothing."""
        path = self._listable(prefix)
        objects: list[str] = []
        prefixes: list[str] = []
        for entry in self._patiently(_listed, path, prefix):
            name = entry["name"].strip("/")
            if name != path.strip("/"):
                names = prefixes if entry["type"] == "directory" else objects
                names.append(name.rpartition("/")[2])
        return Listing(sorted(objects), sorted(prefixes))

    def sizes(self, prefix: str) -> Iterator[tuple[str, int | None]]:
        """Yield key and size in bytes of every object below `prefix`."""
        root = self.root.strip("/")
        for path, entry in self._patiently(_details, self._listable(prefix), prefix).items():
            size = entry.get("size")
            yield path.strip("/").removeprefix(f"{root}/"), None if size is None else int(size)

    def _listable(self, prefix: str) -> str:
        check_prefix(prefix, self.name)
        if self.web:
            raise UnsupportedError(
                "plain HTTP cannot list what is there",
                remedy="Give consolidated metadata, or another URL of the same data.",
                store=self.name,
                key=prefix or None,
            )
        return f"{self.root}/{prefix}".rstrip("/")

    def delete(self, prefix: str) -> None:
        """Remove the object `prefix`, or all objects below it when it ends in ``/`` or is empty."""
        self._check_writable()
        if check_target(prefix, self.name):
            paths = [self._path(prefix)]
        else:
            root = f"{self.root}/{prefix}".rstrip("/")
            paths = list(self._patiently(_details, root, prefix))
        # Not `rm`, which takes names with * and ? for patterns.
        self._each(lambda path: self._patiently(_remove, path, prefix), paths)

    def lock(self, key: str) -> AbstractContextManager[None]:
        """Keep other threads that take this lock from reading, merging and writing `key`."""
        return self._locks.hold(key)

    def size(self, key: str) -> int | None:
        """Give the size of an object in bytes, None when it is not there."""
        return self._patiently(_size, self._path(key), key)

    def url_of(self, key: str) -> str:
        """Give the URL of an object, as fsspec understands it."""
        return str(self._filesystem.unstrip_protocol(self._path(key)))

    def _path(self, key: str) -> str:
        check_key(key, self.name)
        if self.web:
            return f"{self.root}/{urllib.parse.quote(key)}{self.query}"
        return f"{self.root}/{key}" if self.root else key

    def _live(self) -> Any:
        """Give the filesystem, made anew in a forked process: fsspec's instances die there."""
        if self._process != os.getpid():
            self._filesystem = copy.deepcopy(self._filesystem)
            self._process = os.getpid()
        return self._filesystem

    def _answers(self, requests: Sequence[_Request]) -> Iterator[bytes | None]:
        """Yield the answers in order, while helpers wait for those of the next batches."""
        largest = 0

        def batches() -> Iterator[Sequence[_Request]]:
            first, count = 0, _AT_ONCE if len(requests) <= _AT_ONCE else _FIRST_BATCH
            while first < len(requests):
                yield requests[first : first + count]
                first += count
                if largest:
                    count = max(1, min(2 * count, _LONGEST_BATCH, _BYTES_AHEAD // largest))

        source = batches()
        if self._alone or len(requests) <= _AT_ONCE:
            for batch in source:
                yield from self._request(batch)
            return
        helpers = ThreadPoolExecutor(_HELPERS, "fetch")
        try:
            pending = deque(helpers.submit(self._request, one) for one in islice(source, _HELPERS))
            while pending:
                answers = pending.popleft().result()
                largest = max(largest, 1, *(len(answer or b"") for answer in answers))
                pending.extend(helpers.submit(self._request, one) for one in islice(source, 1))
                yield from answers
        finally:
            helpers.shutdown(wait=True, cancel_futures=True)

    def _request(self, requests: Sequence[_Request]) -> list[bytes | None]:
        """Give all answers, None for what is not there; what fails is tried again if it may."""
        answers: list[bytes | None] = [None] * len(requests)
        pending = list(range(len(requests)))
        for _ in self.retry.tries():
            failed: dict[int, Exception] = {}
            found = self._cat([requests[index] for index in pending])
            for index, answer in zip(pending, found, strict=True):
                if not isinstance(answer, Exception):
                    answers[index] = self._checked(answer, requests[index])
                elif self._is_empty(answer, requests[index]):
                    answers[index] = b""
                elif not self._is_missing(answer):
                    failed[index] = answer
            if not failed:
                return answers
            pending = list(failed)
            lasting = [index for index in failed if not is_transient(failed[index])]
            if lasting:
                pending = lasting
                break
            for error in failed.values():
                self.retry.note(error)
        raise self._failure(failed[pending[0]], requests[pending[0]])

    def _cat(self, requests: Sequence[_Request]) -> list[bytes | Exception]:
        """Give an answer or an error for each; no name is taken for a pattern."""
        paths = [self._path(one.key) for one in requests]
        most = None if self.web else self.most_bytes  # `http` sees how long an answer is
        whole = (None, None) if most is None else (0, most + 1)
        bounds = [whole if one.start is None else (one.start, one.end) for one in requests]
        options = {"on_error": "return", **({} if self._alone else {"batch_size": _AT_ONCE})}
        try:
            with self._turn:
                return list(
                    self._live().cat_ranges(paths, *map(list, zip(*bounds, strict=True)), **options)
                )
        except foreign_errors() as error:
            if len(requests) == 1:
                return [error]
        # The caching filesystems fail as a whole when one object is not there.
        return [self._cat([request])[0] for request in requests]

    def _checked(self, answer: bytes, request: _Request) -> bytes:
        """Give an answer, unless it is of a whole object that is longer than may be."""
        most = self.most_bytes
        if request.start is not None or most is None or len(answer) <= most:
            return answer
        remedy = "If that is right, raise max_chunk_bytes or max_consolidated_bytes."
        problem = f"the object has more than {most:,} bytes"
        raise LimitError(problem, remedy=remedy, store=self.name, key=request.key)

    def _is_empty(self, error: Exception, request: _Request) -> bool:
        """Tell whether an object has no bytes to give some of: S3 says so by an error."""
        return request.start is None and status_of(error) == 416 and self.size(request.key) == 0

    def _exactly(self, asked: ByteRange, answer: bytes) -> bytes:
        """Give the bytes asked for, cut from the whole object where the server sent that."""
        if len(answer) == asked.length:
            return answer
        page = answer[:80].lstrip().lower().startswith((b"<!doctype html", b"<html"))
        if not page and asked.length < len(answer) == self.size(asked.key):
            start = asked.start + len(answer) if asked.start < 0 else asked.start
            if start >= 0 and start + asked.length <= len(answer):
                return answer[start : start + asked.length]
        beginning = quote(answer[:40].decode("utf-8", "replace"))
        hint = f"; the answer is a web page that begins with {beginning}" if page else ""
        raise StorageError(
            f"expected {asked.length} bytes from {asked.start}, got {len(answer)}{hint}",
            remedy="The object was cut or changed, or the server does not know byte ranges.",
            store=self.name,
            key=asked.key,
        )

    def _is_missing(self, error: Exception) -> bool:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            return not is_missing_bucket(error)
        if isinstance(error, KeyError):  # of zipfile: fsspec's chained zips hand it on, until 2026
            return "There is no item named" in str(error)
        status = 403 if isinstance(error, PermissionError) else status_of(error)
        return status in self.missing_status

    def _each(self, work: Callable[[_Item], None], items: Sequence[_Item]) -> None:
        """Do something for each item, several at once where the filesystem can."""
        with ThreadPoolExecutor(1 if self._alone else _HELPERS * _AT_ONCE, "each") as helpers:
            for _ in helpers.map(work, items):
                pass

    def _patiently(self, action: Callable[[Any, str], _Result], path: str, key: str) -> _Result:
        """Do something with a path of the filesystem, again as long as its failure may pass."""
        for _ in self.retry.tries():
            try:
                return action(self._live(), path)
            except NotImplementedError as error:
                problem = "the filesystem cannot do that"
                raise UnsupportedError(problem, store=self.name, key=key) from error
            except foreign_errors() as error:
                failure = error
                if not is_transient(error):
                    break
                self.retry.note(error)
        raise self._failure(failure, _Request(key))

    def _failure(self, error: Exception, request: _Request) -> NczarrError:
        """Give `error` as ours; without its text where that can hold secrets of the URL."""
        key, start, end = request
        if isinstance(error, NczarrError):
            return error.located(store=self.name, key=key or None)
        ours = storage_error(error, store=self.name, key=key or None)
        if is_transient(error):
            ours.remedy = "The retries are used up: try again later."
        if start is not None:
            ours.place = f"bytes {start} to {'the end' if end is None else end}"
        ours.problem = mask(ours.problem) if "://" in ours.problem else ours.problem
        ours.__cause__ = None if self.query or "@" in self.root else error
        return ours

    def _check_writable(self) -> None:
        if self.web:
            raise UnsupportedError("plain HTTP is read only", store=self.name)


def _is_web(filesystem: Any) -> bool:
    """Tell plain HTTP, also below a cache: what fsspec lists there are links of a page."""
    protocols = filesystem.protocol
    below = getattr(filesystem, "fs", None)
    return "http" in ((protocols,) if isinstance(protocols, str) else protocols) or (
        below is not None and _is_web(below)
    )


def _s3_options(options: Mapping[str, Any], retry: Retry) -> dict[str, Any]:
    """Give options of s3fs for many small objects, and our own retries."""
    config = {
        "max_pool_connections": _HELPERS * _AT_ONCE,
        "connect_timeout": retry.timeout_seconds,
        "read_timeout": retry.timeout_seconds,
        # One quick try more than ours: S3 answers 503 as part of its normal work.
        "retries": {"total_max_attempts": 2},
    }
    return {
        # s3fs asks for the size of each object before it fetches it, unless told otherwise.
        "max_concurrency": 1,
        **options,
        "config_kwargs": {**config, **options.get("config_kwargs", {})},
    }


def _listed(filesystem: Any, path: str) -> list[dict[str, Any]]:
    filesystem.invalidate_cache()
    try:
        return list(filesystem.ls(path, detail=True))
    except (FileNotFoundError, NotADirectoryError) as error:
        if is_missing_bucket(error):
            raise
        return []


def _details(filesystem: Any, path: str) -> dict[str, dict[str, Any]]:
    filesystem.invalidate_cache()
    return dict(filesystem.find(path, detail=True))


def _size(filesystem: Any, path: str) -> int | None:
    try:
        return int(filesystem.info(path)["size"] or 0)
    except FileNotFoundError:
        return None


def _write(data: bytes, filesystem: Any, path: str, **options: Any) -> None:
    if not filesystem.async_impl:
        # Object stores have no folders, and s3fs would make a bucket.
        filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
    filesystem.pipe_file(path, data, **options)


def _remove(filesystem: Any, path: str) -> None:
    with suppress(FileNotFoundError):
        filesystem.rm_file(path)
