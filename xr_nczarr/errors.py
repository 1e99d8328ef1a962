"""Define the exceptions of this package, all of which derive from `NczarrError`.

Each of them also derives from a built-in exception. An error is raised where a problem is found,
and gains context as it propagates. For example, the codec pipeline adds the codec's location in the
metadata, the `chunks` package adds the key and the chunk index, and the store adds its name. The
message is formatted only when the error is printed.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection
from typing import Any, Self

_MAX_NAME_LENGTH = 200
_MAX_REASON_LENGTH = 500
_MAX_NAMES = 20


def quote(name: object, max_length: int = _MAX_NAME_LENGTH) -> str:
    """Return an untrusted name as a single line that is safe to print in error messages.

    Unprintable characters are escaped, and the result is truncated to `max_length` characters.
    """
    text = str(name)
    escaped = "".join(
        character if character.isprintable() else ascii(character)[1:-1]
        for character in text[: max_length + 1]
    )
    return escaped if len(escaped) <= max_length else escaped[: max_length - 1] + "…"


def reason_of(error: BaseException) -> str:
    """Return an error's class name and its message, if it has one, as a single line."""
    text, kind = quote(error, _MAX_REASON_LENGTH).strip(), type(error).__name__
    return f"{kind}: {text}" if text else kind


class NczarrError(Exception):
    """The base class of all errors that this package defines.

    Parameters
    ----------
    problem
        A description of what is wrong, usually with the actual and the expected value.
    remedy
        An instruction that tells the user how to proceed, or an empty string.
    store
        Name of the store. Secrets in a URL are masked.
    key
        Key of the affected object in the store.
    place
        Location within the metadata document, such as a member, an attribute or a codec.
    variable
        Path of the affected variable in the hierarchy.
    chunk
        Index of the affected chunk in the chunk grid.
    """

    def __init__(
        self,
        problem: str,
        *,
        remedy: str = "",
        store: str | None = None,
        key: str | None = None,
        place: str | None = None,
        variable: str | None = None,
        chunk: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy
        self.store = store
        self.key = key
        self.place = place
        self.variable = variable
        self.chunk = chunk

    def add_context(self, **fields: Any) -> Self:
        """Set each given field, such as `key`, unless it already has a value. Return the error."""
        for name, value in fields.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        return self

    def __str__(self) -> str:
        where = [quote(part) for part in (self.store, self.key) if part]
        if where and self.place is not None:
            where[-1] += f", {quote(self.place)}"
        elif self.place is not None:
            where.append(quote(self.place))
        subject = []
        if self.variable is not None:
            subject.append(f"variable {quote(self.variable)}")
        if self.chunk is not None:
            subject.append(f"chunk {self.chunk}")
        message = ": ".join([*where, self.problem])
        if subject:
            message += f" ({', '.join(subject)})"
        return f"{message}. {self.remedy}" if self.remedy else message


class ErrorContext:
    """A context manager that adds fields to any `NczarrError` raised in its ``with`` block.

    The fields are attributes of the error, such as `key`. Fields that already have a value keep it.
    """

    __slots__ = ("_fields",)

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, NczarrError):
            error.add_context(**self._fields)


class NotFoundError(NczarrError, FileNotFoundError):
    """The requested store, group, variable or dimension does not exist."""


class ExistsError(NczarrError, FileExistsError):
    """The target already exists, and the mode does not allow changing it."""


class MetadataError(NczarrError, ValueError):
    """The metadata is damaged, or contradicts the specification or other metadata."""


class UnsupportedError(NczarrError, NotImplementedError):
    """A valid dtype, codec, extension, version or operation is not supported by this package."""


class ChunkError(NczarrError, ValueError):
    """A chunk cannot be encoded, or cannot be decoded to the array that the metadata describes."""


class MissingChunkError(NczarrError, KeyError):
    """A chunk is missing and is not read as the fill value.

    Either the array has no fill value, or ``missing_chunks="raise"`` was passed.
    """


class ReferenceSetError(NczarrError, ValueError):
    """A reference set, or one of its entries, violates the specification."""


class RefusedError(NczarrError, ValueError):
    """An operation was refused because it is unsafe.

    If an option would allow the operation, the message names this option.
    """


class LimitError(NczarrError, ValueError):
    """A size or count exceeds a limit. If an option sets this limit, the message names the option.

    Attributes
    ----------
    max_bytes
        The maximum size of a stored object in bytes, if the object exceeds this limit. Otherwise,
        None.
    """

    max_bytes: int | None = None


class ConflictError(NczarrError, ValueError):
    """The request conflicts with the contents of the store, or a value does not fit its encoding.

    Nothing was written, unless the values of a dask array caused the error. Such values are checked
    while they are written.
    """


class StorageError(NczarrError, OSError):
    """The store failed to read, write, list or remove objects.

    A missing object is not a failure.
    """


class AccessDeniedError(StorageError, PermissionError):
    """The store denied access to an object, which may or may not exist.

    A server responded with HTTP status 401 or 403, or the operating system denied permission.
    """


class StorageTimeoutError(StorageError, TimeoutError):
    """The store did not respond in time, and all retries failed."""


class StorageConnectionError(StorageError, ConnectionError):
    """The connection failed or the server was unavailable, and all retries failed."""


def unexpected(value: object, expected: str, place: str | None) -> MetadataError:
    """Build the error for a metadata value that the specification does not allow.

    `expected` describes the allowed values. `place` is the location of the invalid value in the
    metadata document.
    """
    return MetadataError(
        f"invalid value {quote(reprlib.repr(value))}; expected {expected}", place=place
    )


def unknown(kind: str, name: str, names: Collection[str]) -> NotFoundError:
    """Build the error for a name that does not exist.

    `kind` says what the name should refer to, for example ``"dimension"``. The message lists the
    existing `names`, and suggests close matches.

    Examples
    --------
    >>> print(unknown("dimension", "tme", ["time", "lat"]))
    unknown dimension 'tme'. Did you mean time? The dimensions are lat, time
    """
    listed = [*map(quote, sorted(names)[:_MAX_NAMES]), *(["…"] if len(names) > _MAX_NAMES else [])]
    known = f"The {kind}s are {', '.join(listed)}" if names else f"There are no {kind}s"
    return NotFoundError(f"unknown {kind} {quote(name)!r}", remedy=suggestion(name, names) + known)


def suggestion(name: str, names: Collection[str]) -> str:
    """Return a "Did you mean …?" hint that lists similar names, or "" if there are none."""
    from difflib import get_close_matches

    close = get_close_matches(name, names, 3)
    return f"Did you mean {' or '.join(map(quote, close))}? " if close else ""
