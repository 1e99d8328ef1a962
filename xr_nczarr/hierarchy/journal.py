"""Define the write journal, which records the previous content of documents that a write changes.

The journal is one object at the root of a store. It is written before the first document changes,
and removed after the last document has changed. While the journal exists, readers use the previous
content until all documents have changed. If the write is interrupted, the next writer restores the
previous content. Programs that do not know the journal ignore it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from xr_nczarr.errors import ErrorContext, MetadataError
from xr_nczarr.formats.documents import Document
from xr_nczarr.storage import Store

JOURNAL = ".nczarr_journal"
UNFINISHED = ".nczarr_unfinished"
"""Key of an object that marks a new store as incomplete while it is written in place."""
_CHUNKS = b'{"chunks": true'
Regions = dict[str, list[list[int]]]
_Data = bytes | bytearray | memoryview | None


@dataclass(frozen=True, slots=True)
class Journal:
    """The previous content of the documents (and sometimes chunks) that one write changes.

    Attributes
    ----------
    documents
        One (key, previous content, digest of the new content) tuple for each object, in write
        order. The previous content is a str that represents the bytes in Latin-1, or None for a new
        object. The digest is empty for an object that the write removes.
    appended
        Mapping from array paths to the region that the write appends to the array. A region is a
        list that contains one [start, stop] pair for each dimension. The stop is exclusive.
    chunks
        Whether `documents` includes chunks. If so, readers must use the journal even if the store
        has consolidated metadata.
    """

    documents: list[tuple[str, str | None, str]]
    appended: Regions
    chunks: bool = False

    @classmethod
    def of(
        cls,
        documents: Mapping[str, bytes | None],
        stored: Iterable[_Data],
        appended: Regions,
        *,
        chunks: bool = False,
    ) -> Journal:
        """Create the journal of a write that changes documents or chunks.

        `documents` maps the key of each changed object to its new content, or to None if the write
        removes the object. `stored` contains the current content of these objects in the same
        order, with None for an object that does not exist yet. See `Journal` for the other
        parameters.
        """
        changes = zip(documents.items(), stored, strict=True)
        entries = [(key, _text(current), _digest(new)) for (key, new), current in changes]
        return cls(entries, appended, chunks)

    @property
    def keys(self) -> list[str]:
        """The keys of the objects that change, in write order."""
        return [key for key, _, _ in self.documents]

    def contents_to_restore(self, stored: Iterable[_Data]) -> dict[str, bytes | None] | None:
        """Return the previous content by key, or None if the interrupted write is complete.

        `stored` contains the current content of the objects in the order of `keys`. In the dict,
        None stands for an object that did not exist. The dict is empty if another program has
        changed any of the objects since the interrupted write, because restoring the previous
        content could overwrite that change.
        """
        is_restorable = True
        is_complete = True
        for current, (_, before, after) in zip(stored, self.documents, strict=True):
            is_written = _digest(current) == after
            is_complete &= is_written
            is_restorable &= is_written or _text(current) == before
        if is_complete:
            return None
        if not is_restorable:
            return {}
        return {
            key: None if before is None else before.encode("latin-1")
            for key, before, _ in self.documents
        }

    def render(self) -> bytes:
        """Render the journal as JSON."""
        chunks = {"chunks": True} if self.chunks else {}
        members = {**chunks, "documents": self.documents, "appended": self.appended}
        return json.dumps(members).encode()


def open_journal(store: Store) -> Journal | None:
    """Return the journal left behind by an interrupted write, or None if there is no journal.

    Raises
    ------
    MetadataError
        If the journal is damaged.
    """
    (data,) = store.fetch([JOURNAL])
    with ErrorContext(store=store.name):
        return None if data is None else parse_journal(Document(JOURNAL, data, consolidated=True))


def has_chunks(document: Document) -> bool:
    """Return whether a journal includes chunks, without parsing the journal.

    Readers of consolidated metadata need the journal only if it includes chunks. A damaged journal
    that includes no chunks must not make them fail.
    """
    content = document.content
    return isinstance(content, bytes) and content.startswith(_CHUNKS)


def parse_journal(document: Document) -> Journal:
    """Parse the journal of an interrupted write.

    Raises
    ------
    MetadataError
        If the journal is damaged.
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
            remedy="If the store has consolidated metadata, open it with consolidated=True, and "
            f"check the data before you remove the object {JOURNAL}. Otherwise, remove the object, "
            "and then check the lengths of all arrays",
            key=JOURNAL,
        ) from error
    return Journal(entries, appended, has_chunks(document))


def _text(data: _Data) -> str | None:
    return None if data is None else bytes(data).decode("latin-1")


def _digest(data: _Data) -> str:
    return "" if data is None else hashlib.sha256(data).hexdigest()
