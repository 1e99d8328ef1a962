"""What a failure means: which pass by themselves, how long to wait for that, whose error it is."""

from __future__ import annotations

import errno
import random
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from xr_nczarr.errors import (
    AccessDeniedError,
    NczarrError,
    StorageConnectionError,
    StorageError,
    StorageTimeoutError,
    quote,
)
from xr_nczarr.storage.ranges import Bytes

DENIED = (
    "This is not taken for a missing object. Check the credentials; where the store answers so for "
    "objects that are not there, add missing_status=(403, 404) to storage_options."
)
"""What to do about an answer 401 or 403."""

TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
# Error classes outside OSError, of transports that need not be installed.
_FOREIGN = (
    ("aiohttp", "ClientError"),
    ("botocore.exceptions", "BotoCoreError"),
    ("botocore.exceptions", "ClientError"),
    ("gcsfs.retry", "HttpError"),
    ("azure.core.exceptions", "AzureError"),
)
# Names of their classes for connections that failed or broke.
_BROKEN = {
    "ClientConnectionError",
    "ClientPayloadError",
    "HTTPClientError",
    "IncompleteReadError",
}


_PAGE = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*(?:<!--.*?-->\s*|<\?xml.*?\?>\s*)*"
    rb"<(?:!doctype\s+html|html|head|body|title|meta|script)\b",
    re.IGNORECASE | re.DOTALL,
)
_PAGE_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Retry:
    """How often, and for how long, a failed request is tried again: the storage option ``retry``.

    Attributes
    ----------
    attempts
        Tries of one request, the first included.
    total_seconds
        No try begins that would end later than this after the first began, if it takes as long
        as the one before. All five of the default fit, of a server that stays silent as well.
    first_wait, max_wait
        Seconds; the wait doubles from try to try, and is cut by up to half at random.
    timeout_seconds
        How long a server may stay silent in one try.

    Examples
    --------
    >>> import xr_nczarr
    >>> retry = xr_nczarr.Retry(attempts=2, timeout_seconds=60)
    >>> options = {"storage_options": {"anon": True, "retry": retry}}
    >>> xr.open_dataset("s3://bucket/store", engine="nczarr", **options)  # doctest: +SKIP
    """

    attempts: int = 5
    total_seconds: float = 60.0
    first_wait: float = 0.2
    max_wait: float = 10.0
    timeout_seconds: float = 10.0

    def __post_init__(self) -> None:
        if not isinstance(self.attempts, int) or self.attempts < 1:
            raise ValueError(
                f"attempts of retry is an integer above 0, the first included; "
                f"found {self.attempts!r}"
            )
        for name in ("total_seconds", "first_wait", "max_wait", "timeout_seconds"):
            if not isinstance(getattr(self, name), int | float):
                raise ValueError(f"{name} of retry is a number; found {getattr(self, name)!r}")

    def tries(self) -> Iterator[int]:
        """Count the tries, waiting before each but the first."""
        end = time.monotonic() + self.total_seconds
        for attempt in range(self.attempts):
            begin = time.monotonic()
            yield attempt
            wait = min(self.max_wait, self.first_wait * 2**attempt)
            wait *= 1 - random.random() / 2  # noqa: S311
            if attempt + 1 == self.attempts or 2 * time.monotonic() - begin + wait > end:
                return
            time.sleep(wait)


def foreign_errors() -> tuple[type[Exception], ...]:
    """Return the classes that filesystems raise: OSError, and those of loaded transports."""
    classes = (getattr(sys.modules.get(module), name, None) for module, name in _FOREIGN)
    return (OSError, ValueError, RuntimeError, *(cause for cause in classes if cause is not None))


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that `error` or one of its causes holds."""
    for cause in _causes(error):
        if _is_broken(cause):
            # Below it lie errors of a parser, with codes of its own making.
            return None
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        else:
            # The first of them alone: aiohttp warns when its `code` is looked at.
            names = ("status", "status_code", "code")
            status = next((getattr(cause, name) for name in names if hasattr(cause, name)), None)
        if isinstance(status, int) and 100 <= status < 600:
            return status
    return None


def is_transient(error: BaseException) -> bool:
    """Return whether the same request may succeed a moment later."""
    status = status_of(error)
    if status is not None and status >= 400:
        return status in TRANSIENT_STATUS
    return any(
        isinstance(cause, TimeoutError | ConnectionError) or _is_broken(cause)
        for cause in _causes(error)
    )


def is_unknown_host(error: BaseException) -> bool:
    """Return whether the name of the host has no address."""
    from socket import gaierror

    return any(isinstance(cause, gaierror) for cause in _causes(error))


def is_missing_bucket(error: BaseException) -> bool:
    """Return whether the bucket is missing, not the object."""
    responses = [getattr(cause, "response", None) for cause in _causes(error)]
    return any(
        isinstance(response, dict) and response.get("Error", {}).get("Code") == "NoSuchBucket"
        for response in responses
    )


def storage_error(error: BaseException, *, store: str, key: str | None) -> StorageError:
    """Return the StorageError for an error of a filesystem."""
    status = status_of(error)
    kind: type[StorageError] = StorageError
    remedy = ""
    read_only = isinstance(error, OSError) and error.errno == errno.EROFS
    if status in (401, 403) or isinstance(error, PermissionError) or read_only:
        kind = AccessDeniedError
        if status is not None:
            remedy = DENIED
    elif isinstance(error, TimeoutError) or status in (408, 504):
        kind = StorageTimeoutError
    elif is_transient(error):
        kind = StorageConnectionError
    elif type(error).__name__ == "NoCredentialsError":
        remedy = (
            'Give them in storage_options, the environment or a profile; {"anon": True} in '
            "storage_options asks without any, as public buckets allow."
        )
    elif is_missing_bucket(error):
        return missing_bucket_error(store, key)
    text = getattr(error, "message", None) or getattr(error, "strerror", None) or str(error)
    reason = " ".join(str(text).split())[:200] or type(error).__name__
    problem = reason if status is None else f"the server answered {status} ({reason})"
    return kind(problem, remedy=remedy, store=store, key=key)


def missing_bucket_error(store: str, key: str | None) -> StorageError:
    """Return the error for a bucket that does not exist."""
    return StorageError("the bucket does not exist", remedy="Check its name.", store=store, key=key)


def page_in(data: Bytes) -> str:
    """Return how a web page begins that came in place of an object; empty for any other data."""
    beginning = bytes(data[:_PAGE_BYTES])
    if not _PAGE.match(beginning):
        return ""
    return beginning.strip().decode("utf-8", "replace").splitlines()[0][:40]


def page_error(
    problem: str, page: str, *, store: str | None = None, key: str | None = None
) -> StorageError:
    """Return the error for a web page that begins with `page`."""
    return StorageError(
        f"{problem}; the answer is a web page that begins with {quote(page)}",
        remedy="Either the object is not there and the server does not say so, or it asks to sign "
        "in: open the URL in a browser.",
        store=store,
        key=key,
    )


@contextmanager
def failing_as_ours(store: str, key: str | None = None) -> Iterator[None]:
    """Raise errors of the operating system as ours."""
    try:
        yield
    except NczarrError:
        raise
    except OSError as error:
        raise storage_error(error, store=store, key=key) from error


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    for _ in range(8):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__


def _is_broken(error: BaseException) -> bool:
    return any(kind.__name__ in _BROKEN for kind in type(error).__mro__)
