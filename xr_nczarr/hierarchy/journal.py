"""The journal of a write, which records the earlier state of documents that change together.

It is one object at the root of a store, written before the first document changes and removed after
the last. While it exists, readers use the earlier documents, unless all have changed. The next
writer restores them. Other programs ignore the journal.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from xr_nczarr.errors import MetadataError, Place
from xr_nczarr.formats.documents import Document
from xr_nczarr.storage import Store

JOURNAL = ".nczarr_journal"
UNFINISHED = ".nczarr_unfinished"
"""Key of the marker of a new store that is written in place and not yet complete."""
_CHUNKS = b'{"chunks": true'
Regions = dict[str, list[list[int]]]
_Data = bytes | bytearray | memoryview | None


@dataclass(frozen=True, slots=True)
class Journal:
    """Documents that change together.

    Attributes
    ----------
    documents
        Key, earlier text (None for a new document) and new digest of each, in the order of change.
    appended
        By path of the array, the first and last element along each dimension that an append has
        written.
    chunks
        Whether chunks change as well. In that case, consolidated metadata do not show the state of
        the store.
    """

    documents: list[tuple[str, str | None, str]]
    appended: Regions
    chunks: bool = False

    @classmethod
    def of(
        cls,
        documents: Mapping[str, bytes],
        stored: Iterable[_Data],
        appended: Regions,
        *,
        chunks: bool = False,
    ) -> Journal:
        """Return the journal of a change to `documents`, whose current content is `stored`."""
        changes = zip(documents.items(), stored, strict=True)
        entries = [(key, _text(now), _digest(data)) for (key, data), now in changes]
        return cls(entries, appended, chunks)

    @property
    def keys(self) -> list[str]:
        """The keys of the documents."""
        return [key for key, _, _ in self.documents]

    def before(self, stored: Iterable[_Data]) -> dict[str, bytes | None] | None:
        """Return the earlier documents by key, or None if the change is complete.

        `stored` is the current content of `keys`. The result is empty if another program has
        changed one of the documents since: its change takes precedence.
        """
        ours = True
        done = True
        for now, (_, before, after) in zip(stored, self.documents, strict=True):
            changed = _digest(now) == after
            done &= changed
            ours &= changed or _text(now) == before
        if done:
            return None
        if not ours:
            return {}
        return {
            key: None if before is None else before.encode("latin-1")
            for key, before, _ in self.documents
        }

    def render(self) -> bytes:
        """Return the object to store."""
        chunks = {"chunks": True} if self.chunks else {}
        members = {**chunks, "documents": self.documents, "appended": self.appended}
        return json.dumps(members).encode()


def open_journal(store: Store) -> Journal | None:
    """Return the journal of an interrupted write, None if there is none."""
    (data,) = store.fetch([JOURNAL])
    with Place(store=store.name):
        return None if data is None else parse_journal(Document(JOURNAL, data))


def has_chunks(document: Document) -> bool:
    """Return whether a journal records changes of chunks, without parsing it.

    With consolidated metadata, other journals are not needed and may be damaged.
    """
    content = document.content
    return isinstance(content, bytes) and content.startswith(_CHUNKS)


def parse_journal(document: Document) -> Journal:
    """Parse a journal.

    Raises
    ------
    MetadataError
        If it is damaged.
    """
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
            remedy="Remove it if the store opens correctly with consolidated=True. Without "
            "consolidated metadata, remove it and check the lengths of all arrays",
            key=JOURNAL,
        ) from error
    return Journal(entries, appended, has_chunks(document))


def _text(data: _Data) -> str | None:
    return None if data is None else bytes(data).decode("latin-1")


def _digest(data: _Data) -> str:
    return "" if data is None else hashlib.sha256(data).hexdigest()
