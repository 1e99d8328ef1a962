"""Classify storage failures, retry transient ones and translate exceptions to StorageError."""

from __future__ import annotations

import errno
import random
import re
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
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

CHECK_CREDENTIALS = (
    "Check the credentials. If the server also denies access to objects that do not exist, pass "
    'storage_options={"missing_status": (403, 404)}'
)
"""The remedy for HTTP statuses 401 and 403."""
CHECK_LISTING = (
    "Check whether the credentials allow listing objects. On S3, this requires the permission "
    "s3:ListBucket"
)
CHECK_PERMISSIONS = "Check the permissions of the file and of the folders that contain it"
TRY_LATER = "Try again later; all retries failed"
CHECK_HOST = "Check the host name"
CHECK_CERTIFICATE = (
    "The server's certificate is not trusted. If you trust the server, set the environment "
    "variable SSL_CERT_FILE (for S3: AWS_CA_BUNDLE) to a file with its certificate"
)
CHECK_SCHEME = "The server does not support https. Pass a URL or an endpoint with http://"

TRANSIENT = StorageConnectionError, StorageTimeoutError
"""The errors after which requests are retried."""
TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504})
# Names of exception classes that client libraries raise for failed or lost connections.
_BROKEN = {
    "ClientConnectionError",
    "ClientPayloadError",
    "HTTPClientError",
    "IncompleteReadError",
}
# Names of the exception classes of botocore and the Azure SDK for missing credentials.
_MISSING_CREDENTIALS = {"NoCredentialsError", "ClientAuthenticationError"}
# Remedies for errors of the operating system.
_LOCAL_REMEDIES = {
    errno.EACCES: CHECK_PERMISSIONS,
    errno.EPERM: CHECK_PERMISSIONS,
    errno.EROFS: "The file system is mounted read-only. Write to another one",
}


# The groups are atomic because backtracking would take exponential time: each comment could also
# end where any later comment ends.
_PAGE = re.compile(
    rb"(?:\xef\xbb\xbf)?\s*+(?:(?><!--.*?-->|<\?xml.*?\?>)\s*+)*+"
    rb"<(?:!doctype\s+html|html|head|body|title|meta|script)\b",
    re.IGNORECASE | re.DOTALL,
)
_PAGE_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Retry:
    """Rules for retrying failed requests, passed as the ``retry`` storage option.

    Attributes
    ----------
    attempts
        Maximum number of attempts for a request, including the first.
    total_seconds
        Time limit in seconds for all attempts together. A request is retried only if enough time is
        left for the wait and for another attempt of the same duration. With the default values,
        there is time for five attempts even if the server never responds.
    first_wait, max_wait
        First and longest wait between two attempts, in seconds. The wait doubles after each
        attempt. Each wait is then shortened by a random fraction of up to one half.
    timeout_seconds
        Maximum time in seconds without any response data. After this time, the attempt fails.

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
                f'"attempts" in "retry" must be a positive integer, not {self.attempts!r}'
            )
        for name in ("total_seconds", "first_wait", "max_wait", "timeout_seconds"):
            seconds = getattr(self, name)
            if not isinstance(seconds, int | float):
                raise ValueError(f'"{name}" in "retry" must be a number, not {seconds!r}')

    def tries(self) -> Iterator[int]:
        """Yield the number of each attempt, starting from 0, and wait between attempts.

        The iterator ends when no further attempt is allowed.
        """
        end = time.monotonic() + self.total_seconds
        for attempt in range(self.attempts):
            begin = time.monotonic()
            yield attempt
            wait = min(self.max_wait, self.first_wait * 2**attempt)
            wait *= 1 - random.random() / 2  # noqa: S311
            if attempt + 1 == self.attempts or 2 * time.monotonic() - begin + wait > end:
                return
            time.sleep(wait)


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status of `error`, or of its nearest cause that has a status.

    Return None if there is no status, for example after a lost connection.
    """
    for cause in _causes(error):
        if _is_broken(cause):
            # A parser error may have caused the lost connection. Its code is not an HTTP status.
            return None
        response = getattr(cause, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
        else:
            # Stop at the first attribute that exists, because aiohttp warns if `code` is accessed.
            names = ("status", "status_code", "code")
            status = next((getattr(cause, name) for name in names if hasattr(cause, name)), None)
        if isinstance(status, int) and 100 <= status < 600:
            return status
    return None


def is_transient(error: BaseException) -> bool:
    """Return whether a request that failed with `error` may succeed when retried."""
    status = status_of(error)
    if status is not None and status >= 400:
        return status in TRANSIENT_STATUS
    return any(
        isinstance(cause, TimeoutError | ConnectionError) or _is_broken(cause)
        for cause in _causes(error)
    )


def is_missing_bucket(error: BaseException) -> bool:
    """Return whether a request failed because the whole bucket does not exist."""
    codes = [getattr(cause, "error_code", None) for cause in _causes(error)]
    return _botocore_error(error).get("Code") == "NoSuchBucket" or "ContainerNotFound" in codes


def storage_error(error: BaseException, *, store: str, key: str | None) -> StorageError:
    """Return the StorageError that matches an exception raised by a filesystem.

    Raises
    ------
    MemoryError
        If `error` is a MemoryError, which is not a storage failure.
    """
    if isinstance(error, MemoryError):
        raise error
    if is_missing_bucket(error):
        return missing_bucket_error(store, key)
    status, name = status_of(error), type(error).__name__
    kind = _class_of(error, status)
    remedy = ""
    if kind is AccessDeniedError:
        number = getattr(error, "errno", None) or 0
        remedy = _LOCAL_REMEDIES.get(number, "") if status is None else CHECK_CREDENTIALS
    elif kind in TRANSIENT:
        remedy = _connection_remedy(error)
    elif isinstance(error, TypeError) and "keyword argument" in str(error):
        # The filesystem passed an unknown option on as a keyword argument.
        remedy = "Check the storage options, and use only names that the fsspec filesystem accepts"
    elif name in _MISSING_CREDENTIALS:
        remedy = (
            "Pass credentials in storage_options, the environment or a profile. For a public "
            'bucket, pass storage_options={"anon": True}'
        )
    # The full text of a botocore error also mentions botocore's own retries, which are unrelated to
    # `Retry`.
    text = _botocore_error(error).get("Message") or getattr(error, "message", None)
    text = text or getattr(error, "strerror", None) or str(error)
    reason = " ".join(str(text).split())[:200].rstrip(".") or name
    problem = reason if status is None else f"the server responded with status {status} ({reason})"
    return kind(problem, remedy=remedy, store=store, key=key)


def _class_of(error: BaseException, status: int | None) -> type[StorageError]:
    # s3fs also raises PermissionError for status 405, and for 400 if the credentials have expired.
    refused = isinstance(error, PermissionError) and status in (None, 400)
    if refused or (isinstance(error, OSError) and error.errno == errno.EROFS):
        return AccessDeniedError
    kind = error_class(status)
    if kind is AccessDeniedError:
        return kind
    if isinstance(error, TimeoutError) or "Timeout" in type(error).__name__:
        return StorageTimeoutError
    return StorageConnectionError if kind is StorageError and is_transient(error) else kind


def error_class(status: int | None) -> type[StorageError]:
    """Return the class of the error for a failed request, given its HTTP status.

    `status` is None if there was no response.
    """
    if status in (401, 403):
        return AccessDeniedError
    if status in (408, 504):
        return StorageTimeoutError
    return StorageConnectionError if status in TRANSIENT_STATUS else StorageError


def _connection_remedy(error: BaseException) -> str:
    """Return the remedy for a failed connection, or an empty string if its cause is unknown."""
    from socket import gaierror
    from ssl import SSLCertVerificationError

    for cause in _causes(error):
        if isinstance(cause, gaierror):
            return CHECK_HOST
        if isinstance(cause, SSLCertVerificationError):
            return CHECK_CERTIFICATE
        if getattr(cause, "reason", None) == "WRONG_VERSION_NUMBER":  # an attribute of SSLError
            return CHECK_SCHEME
    return ""


def _botocore_error(error: BaseException) -> dict[str, str]:
    """Return the ``Error`` member of the response that caused `error`, or an empty dict."""
    responses = (getattr(cause, "response", None) for cause in _causes(error))
    errors = (item.get("Error") for item in responses if isinstance(item, dict))
    return dict(next(filter(None, errors), {}))


def missing_bucket_error(store: str, key: str | None) -> StorageError:
    """Return the error for a bucket that does not exist."""
    return StorageError(
        "the bucket does not exist", remedy="Check the bucket name", store=store, key=key
    )


def page_in(data: Bytes) -> str:
    """Return the beginning of `data` if it is a web page, otherwise an empty string.

    The result is short enough for a message. Some servers send a web page in place of an object
    that does not exist.
    """
    beginning = bytes(data[:_PAGE_BYTES])
    if not _PAGE.match(beginning):
        return ""
    return beginning.strip().decode("utf-8", "replace").splitlines()[0][:40]


def page_error(
    expected: str, page: str, *, store: str | None = None, key: str | None = None
) -> StorageError:
    """Return the error for a web page that a server sent in place of an object.

    `expected` describes the requested object or byte range. `page` is the result of `page_in`.
    """
    return StorageError(
        f"the server sent a web page instead of {expected}; the page begins with {quote(page)}",
        remedy="Open the URL in a browser: either the object does not exist, or the server "
        "requires a login",
        store=store,
        key=key,
    )


@contextmanager
def explained_listing_errors() -> Iterator[None]:
    """Add an explanation to an AccessDeniedError that is raised in the ``with`` block.

    The error then begins with "objects cannot be listed", and its `remedy` is `CHECK_LISTING`.
    """
    try:
        yield
    except AccessDeniedError as error:
        error.problem = f"objects cannot be listed: {error.problem}"
        error.remedy = CHECK_LISTING
        raise


@contextmanager
def translated_os_errors(store: str, key: str | None = None) -> Iterator[None]:
    """Translate an OSError raised in the ``with`` block to a StorageError.

    An NczarrError is raised unchanged, even if it is also an OSError.
    """
    try:
        yield
    except NczarrError:
        raise
    except OSError as error:
        raise storage_error(error, store=store, key=key) from error


@contextmanager
def held_lock(
    lock: AbstractContextManager[None], store: str, key: str | None = None
) -> Iterator[None]:
    """Hold `lock`. If acquiring it raises an OSError, raise a StorageError instead."""
    with ExitStack() as held:
        with translated_os_errors(store, key):
            held.enter_context(lock)
        yield


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    for _ in range(8):
        if cause is None:
            return
        yield cause
        cause = cause.__cause__ or cause.__context__


def _is_broken(error: BaseException) -> bool:
    return any(kind.__name__ in _BROKEN for kind in type(error).__mro__)
