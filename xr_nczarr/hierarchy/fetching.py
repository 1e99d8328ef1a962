"""The documents of a store, fetched in waves. Some are absent, refused, or come as web pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from xr_nczarr.errors import AccessDeniedError, MetadataError, UnsupportedError
from xr_nczarr.formats import FORMATS, Format
from xr_nczarr.formats.documents import Document
from xr_nczarr.hierarchy.journal import JOURNAL
from xr_nczarr.model import Limits
from xr_nczarr.storage import Bytes, Store, page_error, page_in

_RECORDS = ".zmetadata"  # also the key of what a reference set in parquet consists of


class RecordSetError(UnsupportedError):
    """The store is the folder of a reference set in parquet, and no Zarr store.

    Attributes
    ----------
    document
        Its ``.zmetadata``.
    """

    def __init__(self, document: bytes, **fields: Any) -> None:
        super().__init__(
            "the folder is a reference set in parquet, which is read only",
            remedy="Open it with xarray.open_dataset, or write to another folder",
            **fields,
        )
        self.document = document


def is_record_document(data: Bytes) -> bool:
    """Return whether a ``.zmetadata`` belongs to a reference set in parquet, not to Zarr."""
    if b'"record_size"' not in bytes(data):
        return False
    try:
        members = Document(".zmetadata", data, consolidated=True).value
    except MetadataError:
        return False
    return isinstance(members, dict) and "record_size" in members


@dataclass
class DocumentSource:
    """The documents of one store.

    Attributes
    ----------
    probed
        What they are fetched from; see `Store.probing`.
    before
        What an interrupted writer would have to restore, by key; read in place of what is stored.
    """

    store: Store
    limits: Limits
    before: Mapping[str, bytes | None] = field(default_factory=dict)
    page_for_nothing: bytes | None = None

    def __post_init__(self) -> None:
        self.probed = self.store.probing()

    def fetch(
        self, keys: Iterable[str], refusals: dict[str, AccessDeniedError] | None = None
    ) -> dict[str, Document]:
        """Fetch the documents that exist; `refusals` takes those to which access is denied."""
        names = list(dict.fromkeys(keys))
        consolidated_keys = {zarr.consolidated_key for zarr in FORMATS.values()}
        waves = [(self.probed, names)]
        if not self.store.remote:  # where two waves cost no more, none reads what is too large
            single = self.store.bounded(self.limits.max_metadata_bytes)
            waves = [(self.store, [key for key in names if key in consolidated_keys])]
            waves.append((single, [key for key in names if key not in consolidated_keys]))
        present: dict[str, Bytes] = {}
        for store, requested in waves:
            answers = store.fetch(requested) if refusals is None else store.probe(requested)
            for key, answer in zip(requested, answers, strict=True):
                data = self.before.get(key, answer)
                if isinstance(data, AccessDeniedError):
                    assert refusals is not None
                    refusals[key] = data
                elif data is not None:
                    present[key] = data
        if self.probed.answers_with_pages:
            present = self._without_pages(present, requested=names)
        records = present.get(_RECORDS)
        if records is not None and is_record_document(records):
            raise RecordSetError(bytes(records))
        return {
            key: Document(key, data, limits=self.limits, consolidated=key in consolidated_keys)
            for key, data in present.items()
        }

    def _without_pages(
        self, present: dict[str, Bytes], requested: Sequence[str]
    ) -> dict[str, Bytes]:
        """Return `present` without the page by which a server answers for what is not there.

        That is the page it shows for the journal, of which there is hardly ever one. Any other page
        in place of a document, as one to sign in on, is an error: what is behind it may be needed.
        """
        pages = {key: page for key, data in present.items() if (page := page_in(data))}
        if pages and self.page_for_nothing is None and JOURNAL not in requested:
            self.fetch([JOURNAL])
        if JOURNAL in requested:
            self.page_for_nothing = bytes(present[JOURNAL]) if JOURNAL in pages else b""
        for key, page in pages.items():
            if present[key] != self.page_for_nothing:
                raise page_error("expected a document", page, key=key)
        return {key: data for key, data in present.items() if key not in pages}


def are_absent(
    documents: Mapping[str, Document], candidates: Sequence[Format], consolidated: bool
) -> bool:
    """Return whether root documents that the store refuses can be taken as absent.

    A public bucket without the right to list answers 403 for what is not there. Nothing else
    is needed beside a consolidated document, or where the only candidate is recognized.
    """
    if len(candidates) == 1 and candidates[0].recognizes(documents):
        return True
    possible = [(zarr, documents.get(zarr.consolidated_key or "")) for zarr in candidates]
    return consolidated and any(
        document is not None and zarr.expand_consolidated(document) is not None
        for zarr, document in possible
    )


def refused(refusals: Mapping[str, AccessDeniedError], keys: Sequence[str]) -> AccessDeniedError:
    """Return the error for refused root documents; where all are, it says what to name."""
    error = next(iter(refusals.values()))
    if len(refusals) < len(keys):
        return error
    return AccessDeniedError(
        f"{error.problem}, for each document of a root that was looked for",
        remedy="Check the path and the credentials. If the store answers so for objects that "
        "are not there, name what it holds: pass consolidated=True or zarr_format=, or "
        "missing_status=(403, 404) in storage_options",
        key=error.key,
    )
