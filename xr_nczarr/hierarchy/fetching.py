"""Fetch metadata documents, and recognize missing documents, denied access and HTML pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xr_nczarr.errors import AccessDeniedError, MetadataError, UnsupportedError
from xr_nczarr.formats import FORMATS, Format
from xr_nczarr.formats.documents import Document
from xr_nczarr.hierarchy.journal import JOURNAL
from xr_nczarr.model import Limits
from xr_nczarr.storage import Bytes, Store, page_error, page_in

_RECORDS = ".zmetadata"  # used by Zarr v2 and by parquet reference sets
_MIN_STORES = 2
_MAX_FOLDERS = 1000


class RecordSetError(UnsupportedError):
    """The error raised if the folder of a store contains a parquet reference set.

    Attributes
    ----------
    document
        Content of the reference set's ``.zmetadata`` document.
    """

    def __init__(self, problem: str, *, document: bytes = b"", **fields: Any) -> None:
        super().__init__(problem, **fields)
        self.document = document


def is_record_document(data: Bytes) -> bool:
    """Return whether a ``.zmetadata`` document describes a parquet reference set.

    In a Zarr v2 store, by contrast, the ``.zmetadata`` document contains consolidated metadata.
    """
    if b'"record_size"' not in bytes(data):
        return False
    try:
        members = Document(".zmetadata", data, consolidated=True).value
    except MetadataError:
        return False
    return isinstance(members, dict) and "record_size" in members


similar_stores: dict[str, int] = {}
"""For each remote folder, how many of the last opened stores had consolidated metadata.

Usually, either all stores in a folder have consolidated metadata, or none of them do. Opening a
store with consolidated metadata adds 1 to the count of its folder, and opening any other store
removes the count. If the count is high enough, the next store in the folder is expected to have
consolidated metadata. If it has none, opening this store takes one more batch of requests.
"""


@dataclass
class DocumentSource:
    """The metadata documents of a store, fetched on request.

    Attributes
    ----------
    probed
        A variant of `store` for finding metadata; see `Store.probing`.
    page_for_missing
        HTML page that the server sends for missing objects, or ``b""`` if it sends no such page.
        None if this is not yet known.
    """

    store: Store
    limits: Limits
    page_for_missing: bytes | None = None

    def __post_init__(self) -> None:
        limit = max(self.limits.max_metadata_bytes, self.limits.max_consolidated_bytes)
        self.probed = self.store.probing().bounded(limit)

    def fetch(
        self, keys: Iterable[str], denied: dict[str, AccessDeniedError] | None = None
    ) -> dict[str, Document]:
        """Fetch documents, and return a dict mapping keys to the documents that exist.

        Parameters
        ----------
        denied
            Dict to which an AccessDeniedError is added for each inaccessible key. If None, the
            first AccessDeniedError is raised instead.

        Raises
        ------
        RecordSetError
            If the store is the folder of a parquet reference set.
        """
        names = list(dict.fromkeys(keys))
        # The journal may contain consolidated metadata, so the larger limit applies to it too.
        consolidated_keys = {JOURNAL, *(zarr.consolidated_key for zarr in FORMATS.values())}
        batches = [(self.probed, names)]
        # In a local store, a second batch costs nothing. It allows a smaller limit for the
        # documents of single nodes than for consolidated documents.
        if not self.store.remote:
            single = self.store.bounded(self.limits.max_metadata_bytes)
            batches = [(self.store, [key for key in names if key in consolidated_keys])]
            batches.append((single, [key for key in names if key not in consolidated_keys]))
        present: dict[str, Bytes] = {}
        for store, requested in batches:
            responses = store.fetch(requested) if denied is None else store.probe(requested)
            for key, response in zip(requested, responses, strict=True):
                if isinstance(response, AccessDeniedError):
                    assert denied is not None
                    denied[key] = response
                elif response is not None:
                    present[key] = response
        if self.probed.returns_pages:
            present = self._without_pages(present, requested=names)
        records = present.get(_RECORDS)
        if records is not None and is_record_document(records):
            raise RecordSetError(
                "the folder is a parquet reference set, which is read-only",
                remedy="Open it with xarray.open_dataset, or write to another folder",
                document=bytes(records),
            )
        return {
            key: Document(key, data, limits=self.limits, consolidated=key in consolidated_keys)
            for key, data in present.items()
        }

    def fetch_root(
        self,
        candidates: Sequence[Format],
        keys: Sequence[str],
        denied: dict[str, AccessDeniedError],
        *,
        consolidated_first: bool,
    ) -> dict[str, Document]:
        """Fetch the root documents that exist, including consolidated metadata.

        Parameters
        ----------
        candidates
            The formats of the Zarr versions to look for.
        keys
            The keys to fetch: the key of the journal, and the keys of the root documents of all
            `candidates` for which `Format.is_rare` is False.
        denied
            See `fetch`.
        consolidated_first
            Whether to fetch consolidated metadata and the journal first, and the other documents
            only if they are needed. This option has no effect unless the last two stores that were
            opened in the same remote folder had consolidated metadata; see `similar_stores`.

            The other documents are needed in three cases:

            - The store has no consolidated metadata.
            - The store has a journal.
            - Access to a document is denied, and `can_assume_missing` returns False.
        """
        first, others = list(keys), list[str]()
        folder = self.store.identity.rpartition("/")[0] if self.store.remote else ""
        if consolidated_first and similar_stores.get(folder, 0) >= _MIN_STORES:
            consolidated_keys = [zarr.consolidated_key for zarr in candidates]
            first = [key for key in keys if key == JOURNAL or key in consolidated_keys]
            others = [key for key in keys if key not in first]
        documents = self.fetch(first, denied)
        usual = (zarr for zarr in candidates if not zarr.is_rare)
        recognized = next((zarr for zarr in usual if zarr.recognizes(documents)), None)
        # In v3, `consolidated_key` is the key of the root's only document, even if that document
        # contains no consolidated metadata.
        complete = recognized is not None and recognized.consolidated_key in documents
        count = similar_stores.pop(folder, 0)
        if complete and self.store.remote:
            if len(similar_stores) >= _MAX_FOLDERS:
                oldest, *_ = list(similar_stores)  # a copy, which other threads cannot change
                similar_stores.pop(oldest, None)
            similar_stores[folder] = count + 1
        if JOURNAL in documents or (denied and not can_assume_missing(documents, candidates, True)):
            complete = False
        if others and not complete:
            documents |= self.fetch(others, denied)
        return documents

    def _without_pages(
        self, present: dict[str, Bytes], requested: Sequence[str]
    ) -> dict[str, Bytes]:
        """Return `present` without the HTML pages that the server sent for missing objects.

        Any other HTML page, such as a login form, raises an error, because it may have been sent in
        place of a document.
        """
        pages = {key: page for key, data in present.items() if (page := page_in(data))}
        # The journal is almost certainly missing. Request it to see the page for missing objects.
        if pages and self.page_for_missing is None and JOURNAL not in requested:
            self.fetch([JOURNAL])
        if JOURNAL in requested:
            self.page_for_missing = bytes(present[JOURNAL]) if JOURNAL in pages else b""
        for key, page in pages.items():
            if present[key] != self.page_for_missing:
                raise page_error("a document", page, key=key)
        return {key: data for key, data in present.items() if key not in pages}


def can_assume_missing(
    documents: Mapping[str, Document], candidates: Sequence[Format], consolidated: bool
) -> bool:
    """Return whether inaccessible root documents can be treated as missing.

    An inaccessible document may simply be missing: a public bucket that does not allow listing
    returns 403 for missing objects. `documents` maps keys to the accessible root documents. All
    other root documents can be treated as missing in two cases:

    - There is only one candidate format, and `documents` shows that the store has this format.
    - `consolidated` is True, and consolidated metadata is accessible.
    """
    if len(candidates) == 1 and candidates[0].recognizes(documents):
        return True
    return consolidated and any(
        zarr.expand_consolidated(documents) is not None for zarr in candidates
    )


def denied_error(denied: Mapping[str, AccessDeniedError], keys: Sequence[str]) -> AccessDeniedError:
    """Build the error to raise after access to root documents was denied.

    `denied` maps inaccessible keys to errors. If all of the requested `keys` are inaccessible, the
    error suggests options that the caller can try.
    """
    error = next(iter(denied.values()))
    if len(denied) < len(keys):
        return error
    return AccessDeniedError(
        f"{error.problem} for every metadata document in the root group",
        remedy="Check the path and the credentials. If the server responds with 403 for objects "
        "that do not exist, pass consolidated=True, zarr_format=…, or "
        'storage_options={"missing_status": (403, 404)}',
        key=error.key,
    )
