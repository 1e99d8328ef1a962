"""Every exception of the package: a small tree whose leaves are also built-in exceptions.

An error is raised where it is detected and gains context as it propagates: the codec adds its step,
the chunk engine the key and the chunk index, the store its name. The message is formatted only when
the error is printed.
"""

from __future__ import annotations

import reprlib
from collections.abc import Collection
from typing import Any, Self

_MAX_NAME_LENGTH = 200
_MAX_NAMES = 20


def quote(name: object) -> str:
    """Return an untrusted name on one line: control characters escaped, at most 200 characters."""
    text = str(name)
    shown = "".join(
        character if character.isprintable() else ascii(character)[1:-1]
        for character in text[: _MAX_NAME_LENGTH + 1]
    )
    return shown if len(shown) <= _MAX_NAME_LENGTH else shown[: _MAX_NAME_LENGTH - 1] + "…"


def reason_of(error: BaseException) -> str:
    """Return an error's class and text on one line; some errors have no text of their own."""
    text, kind = quote(error).strip(), type(error).__name__
    return f"{kind}: {text}" if text else kind


class NczarrError(Exception):
    """The base class of all errors of this package.

    Parameters
    ----------
    problem
        A description of the error, usually the value found and the value expected.
    remedy
        An instruction to the reader of the message, or an empty string.
    store
        Name of the store, without secrets.
    key
        Key in the store.
    place
        Location in the document: a field, an attribute or a codec.
    variable
        Path of the variable in the hierarchy.
    chunk
        Index of the chunk.
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

    def located(self, **fields: Any) -> Self:
        """Fill the fields that are still None, and return the error itself."""
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


class Place:
    """A context manager that fills missing fields of an `NczarrError` raised in its block."""

    __slots__ = ("_fields",)

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, NczarrError):
            error.located(**self._fields)


class NotFoundError(NczarrError, FileNotFoundError):
    """The requested store, group, variable or dimension does not exist."""


class ExistsError(NczarrError, FileExistsError):
    """The target already exists, and the mode does not allow changing it."""


class MetadataError(NczarrError, ValueError):
    """Metadata are damaged, or contradict the specification or another document."""


class UnsupportedError(NczarrError, NotImplementedError):
    """A valid dtype, codec, extension or version that this package does not support."""


class ChunkError(NczarrError, ValueError):
    """A chunk's bytes do not decode to what the metadata declare."""


class MissingChunkError(NczarrError, KeyError):
    """A chunk is not in the store, and ``missing_chunks="raise"`` is set."""


class ReferenceSetError(NczarrError, ValueError):
    """A reference set, or one of its entries, violates the specification."""


class RefusedError(NczarrError, ValueError):
    """A dangerous operation was not enabled by the caller; the message names the option."""


class LimitError(NczarrError, ValueError):
    """A size or count exceeds a limit; the message names the limit and its option."""


class ConflictError(NczarrError, ValueError):
    """The request does not fit the contents of the store; nothing was written."""


class StorageError(NczarrError, OSError):
    """The store failed: it returned neither the requested bytes nor *not found*."""


class AccessDeniedError(StorageError, PermissionError):
    """The store denied access (401, 403, EACCES), which differs from *not found*."""


class StorageTimeoutError(StorageError, TimeoutError):
    """The store did not respond in time, and all retries failed."""


class StorageConnectionError(StorageError, ConnectionError):
    """The connection failed or the server was unavailable, and all retries failed."""


def unexpected(value: object, expected: str, place: str | None) -> MetadataError:
    """Return the error for a `value` at `place` that differs from what is `expected`."""
    return MetadataError(f"found {quote(reprlib.repr(value))}, expected {expected}", place=place)


def unknown(what: str, name: str, names: Collection[str]) -> NotFoundError:
    """Return the error for a name that does not exist: it names the nearest ones, or all.

    Examples
    --------
    >>> print(unknown("dimension", "tme", ["time", "lat"]))
    no dimension 'tme'. Did you mean time? The dimensions are lat, time
    """
    from difflib import get_close_matches

    close = get_close_matches(name, names, 3)
    hint = f"Did you mean {' or '.join(map(quote, close))}? " if close else ""
    listed = [*map(quote, sorted(names)[:_MAX_NAMES]), *(["…"] if len(names) > _MAX_NAMES else [])]
    known = f"The {what}s are {', '.join(listed)}" if names else f"There are no {what}s"
    return NotFoundError(f"no {what} {quote(name)!r}", remedy=hint + known)
