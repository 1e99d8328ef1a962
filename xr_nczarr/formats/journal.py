"""The journal of a write: how the documents were that change together, until all of them are there.

It is one object at the root of a store, put before the first document changes and removed behind
the last. While it is there, readers see the documents as they were, unless all have changed; the
next writer puts them back. Other programs do not look at it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from xr_nczarr.errors import MetadataError
from xr_nczarr.formats.documents import Document

JOURNAL = ".nczarr_journal"
_CHUNKS = b'{"chunks": true'
Regions = dict[str, list[list[int]]]
_Data = bytes | bytearray | memoryview | None


@dataclass(frozen=True, slots=True)
class Journal:
    """Documents that change together.

    Attributes
    ----------
    documents
        Key, text before (None for a new one) and digest afterwards of each, in the order of change.
    appended
        By path of the array, the first and last element along each dimension of what an append
        has put before.
    chunks
        Whether chunks are among the documents. Then consolidated metadata alone do not tell which
        state is read.
    """

    documents: list[tuple[str, str | None, str]]
    appended: Regions
    chunks: bool = False

    @classmethod
    def of(
        cls,
        documents: Mapping[str, bytes],
        found: Iterable[_Data],
        appended: Regions,
        *,
        chunks: bool = False,
    ) -> Journal:
        """Return the journal of a change to `documents`, of which `found` is stored now."""
        changes = zip(documents.items(), found, strict=True)
        entries = [(key, _text(now), _digest(data)) for (key, data), now in changes]
        return cls(entries, appended, chunks)

    @property
    def keys(self) -> list[str]:
        """The keys of the documents."""
        return [key for key, _, _ in self.documents]

    def before(self, found: Iterable[_Data]) -> dict[str, bytes | None] | None:
        """Give the documents as they were, by key, if the change was begun and not finished.

        `found` is stored under `keys` now. None when all are as they should become. Empty when
        another program has changed one since: what it left is what counts.
        """
        known = True
        done = True
        for now, (_, before, after) in zip(found, self.documents, strict=True):
            changed = _digest(now) == after
            done &= changed
            known &= changed or _text(now) == before
        if done:
            return None
        if not known:
            return {}
        return {
            key: None if before is None else before.encode("latin-1")
            for key, before, _ in self.documents
        }

    def render(self) -> bytes:
        """Give the object to store."""
        chunks = {"chunks": True} if self.chunks else {}
        members = {**chunks, "documents": self.documents, "appended": self.appended}
        return json.dumps(members).encode()


def has_chunks(document: Document) -> bool:
    """Return whether a journal says that chunks change too, without parsing it.

    Beside consolidated metadata others are not needed, and may be damaged.
    """
    content = document.content
    return isinstance(content, bytes) and content.startswith(_CHUNKS)


def parse_journal(document: Document) -> Journal:
    """Read a journal; a damaged one is a MetadataError."""
    try:
        value: Any = document.value
        entries = [(str(key), before, str(after)) for key, before, after in value["documents"]]
        appended = {
            str(path): [[int(start), int(stop)] for start, stop in bounds]
            for path, bounds in value["appended"].items()
        }
        for _, before, _ in entries:
            if before is not None:
                before.encode("latin-1")
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise MetadataError(
            "the journal of an interrupted write is damaged",
            remedy="Remove it if the store opens as it should with consolidated=True. Without such "
            "metadata, remove it and see that all arrays have the lengths they should",
            key=JOURNAL,
        ) from error
    return Journal(entries, appended, has_chunks(document))


def _text(data: _Data) -> str | None:
    return None if data is None else bytes(data).decode("latin-1")


def _digest(data: _Data) -> str:
    return "" if data is None else hashlib.sha256(data).hexdigest()
