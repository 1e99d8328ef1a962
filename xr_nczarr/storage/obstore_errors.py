"""Translate obstore's errors, whose HTTP status and cause appear only in the message."""

from __future__ import annotations

import re
from collections.abc import Collection
from html import unescape

from xr_nczarr.errors import (
    AccessDeniedError,
    StorageConnectionError,
    StorageError,
    StorageTimeoutError,
)
from xr_nczarr.storage.retries import (
    CHECK_CERTIFICATE,
    CHECK_CREDENTIALS,
    CHECK_HOST,
    CHECK_SCHEME,
    error_class,
    missing_bucket_error,
    storage_error,
)
from xr_nczarr.storage.url import mask

_STATUS = re.compile(r"status code: (\d{3})|status: (\d{3})|HTTP status (\d{3})|\((\d{3}) ")
_REASON = re.compile(r"status code: \d{3} ([A-Za-z ]+)")
# The explanation in the body of a response, which S3, Google Cloud and Azure send.
_MESSAGE = re.compile(r"<Message>([^<\n]{1,200})")
# The details of the request, including its duration. They are removed from messages.
_REQUEST = re.compile(r"Error performing \w+ \S+ in .*? - ")
_PREFIX = re.compile(r"^(?:Generic \w+ error: )?(?:HTTP error: )?")
# The reason why there was no response, as stated by obstore and by the operating system.
_KIND = re.compile(r"HttpError \{\s+kind: (Connect|Request|Timeout|Interrupted)")
_CAUSE = re.compile(r"""(?:message|error): "([^"\\]+)",?\s""")
_LOCAL = "Generic LocalFileSystem error"  # followed by a path, which may resemble a status
_INVALID_PATH = "Could not parse path"
_MISSING_BUCKET = re.compile("<Code>(?:NoSuchBucket|ContainerNotFound)</Code>")
_EXPIRED = "<Code>ExpiredToken</Code>"  # sent with status 400
# Remedies for requests without a response, by words in the error message.
_REMEDIES = {
    "dns error": CHECK_HOST,
    "InvalidCertificate": CHECK_CERTIFICATE,
    "InvalidMessage": CHECK_SCHEME,
}


def is_missing(error: Exception, statuses: Collection[int]) -> bool:
    """Return whether an obstore error means that an object does not exist.

    `statuses` contains the HTTP statuses that mean *not found*. The result is False if the whole
    bucket does not exist.
    """
    from obstore.exceptions import PermissionDeniedError

    text = str(error)
    if _MISSING_BUCKET.search(text):
        return False
    status = _status(text)
    if isinstance(error, FileNotFoundError):
        return (status or 404) in statuses  # obstore also raises FileNotFoundError for 405
    if isinstance(error, PermissionDeniedError):
        return 403 in statuses
    return status in statuses


def failure_of(error: Exception, *, store: str, key: str | None) -> StorageError:
    """Convert an obstore error to a StorageError, masking secrets in URLs.

    If the request may succeed later, the result is a StorageConnectionError or a
    StorageTimeoutError.
    """
    from obstore.exceptions import PermissionDeniedError, UnauthenticatedError

    text, status = str(error), _status(str(error))
    if _MISSING_BUCKET.search(text):
        return missing_bucket_error(store, key)
    if text.startswith(_INVALID_PATH):
        return _unsupported_key_error(store, key)
    if isinstance(error, OSError) and status is None:
        return storage_error(error, store=store, key=key)
    kind, remedy = error_class(status), ""
    problem = _PREFIX.sub("", mask(_REQUEST.sub("", text.partition("\n")[0])))
    if status is not None:
        reason = _MESSAGE.search(text) or _REASON.search(problem)
        stated = unescape(mask(reason[1])).strip().rstrip(".") if reason else problem
        problem = f"the server responded with status {status} ({stated})"
    elif no_response := _KIND.search(text):
        if no_response[1] == "Timeout":
            kind, problem = StorageTimeoutError, "the server did not respond in time"
        else:
            cause = _CAUSE.search(text)
            kind, problem = StorageConnectionError, cause[1] if cause else problem
            remedy = next((_REMEDIES[words] for words in _REMEDIES if words in text), "")
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or _EXPIRED in text:
        kind = AccessDeniedError
    if kind is AccessDeniedError:
        remedy = CHECK_CREDENTIALS
    return kind(problem, remedy=remedy, store=store, key=key)


def _unsupported_key_error(store: str, key: str | None) -> StorageError:
    return StorageError(
        "obstore does not support keys with empty segments or control characters",
        remedy='Pass the URL of the store and storage_options={"client": "fsspec"}',
        store=store,
        key=key,
    )


def _status(text: str) -> int | None:
    """Return the HTTP status in an obstore error's message, or None if it contains no status."""
    line = text.partition("\n")[0]
    match = None if line.startswith(_LOCAL) else _STATUS.search(line)
    return None if match is None else int(next(filter(None, match.groups())))
