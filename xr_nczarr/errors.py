"""Every exception of the package: a small tree, each leaf also the built-in a caller expects.

An error is raised where it is noticed, with what is known there, and gains its place as it
climbs: the codec knows its step, the engine the key and the chunk, the store its name. Nothing
is formatted before somebody prints it.
"""

from __future__ import annotations

import reprlib
from typing import Any, Self

_LONGEST_NAME = 200


def quote(name: object) -> str:
    """Show an untrusted name on one line: control characters escaped, at most 200 characters."""
    text = str(name)
    shown = "".join(
        character if character.isprintable() else ascii(character)[1:-1]
        for character in text[: _LONGEST_NAME + 1]
    )
    return shown if len(shown) <= _LONGEST_NAME else shown[: _LONGEST_NAME - 1] + "…"


def reason_of(error: BaseException) -> str:
    """Return an error's class and text on one line; some errors have no text of their own."""
    text, kind = quote(error).strip(), type(error).__name__
    return f"{kind}: {text}" if text else kind


class NczarrError(Exception):
    """The root of all errors of this package.

    Parameters
    ----------
    problem
        What was found and what was expected.
    remedy
        What the reader of the message can do, or an empty string.
    store
        Name of the store, without secrets.
    key
        Key in the store.
    place
        Where in the document: a field, an attribute, a codec step.
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
        """Fill the fields that are still unknown, and return the error itself."""
        for name, value in fields.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
        return self

    def __str__(self) -> str:
        where = [quote(part) for part in (self.store, self.key) if part is not None]
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
    """A block of code in which errors of ours learn the fields that they do not know yet."""

    __slots__ = ("_fields",)

    def __init__(self, **fields: Any) -> None:
        self._fields = fields

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, NczarrError):
            error.located(**self._fields)


class NotFoundError(NczarrError, FileNotFoundError):
    """There is no store, node or dataset where one was asked for."""


class ExistsError(NczarrError, FileExistsError):
    """Something is already there, and the mode says not to touch it."""


class MetadataError(NczarrError, ValueError):
    """A metadata document is damaged, or contradicts the specification or another document."""


class UnsupportedError(NczarrError, NotImplementedError):
    """A valid dtype, codec, extension or version that this package does not know."""


class ChunkError(NczarrError, ValueError):
    """A chunk's bytes do not decode to what the metadata declare."""


class MissingChunkError(NczarrError, KeyError):
    """A chunk is not in the store, and ``missing_chunks="raise"`` was asked for."""


class ReferenceSetError(NczarrError, ValueError):
    """A reference set, or one of its entries, is not what the specification allows."""


class RefusedError(NczarrError, ValueError):
    """Something dangerous that the caller did not opt in to; the message names the option."""


class LimitError(NczarrError, ValueError):
    """Something larger than a limit; the message names the limit and its option."""


class ConflictError(NczarrError, ValueError):
    """What was asked does not fit what is in the store: nothing was written."""


class StorageError(NczarrError, OSError):
    """The store answered neither with the bytes nor with *not found*."""


class AccessDeniedError(StorageError, PermissionError):
    """The store refused (401, 403, EACCES): not the same as *not found*."""


class StorageTimeoutError(StorageError, TimeoutError):
    """The store did not answer in time, and the retries are used up."""


class StorageConnectionError(StorageError, ConnectionError):
    """The connection failed, or the server had no answer for now, and the retries are used up."""


def unexpected(value: object, expected: str, place: str | None) -> MetadataError:
    """Give the error that says what was found at `place` and what was expected."""
    return MetadataError(f"found {quote(reprlib.repr(value))}, expected {expected}", place=place)
