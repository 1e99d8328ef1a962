"""The function `consolidate`, which writes all metadata of a store into one document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from xr_nczarr.dataset import OpenedStore, resolve
from xr_nczarr.errors import NotFoundError, UnsupportedError
from xr_nczarr.formats import FORMATS
from xr_nczarr.hierarchy import refresh_consolidated
from xr_nczarr.progress import Progress
from xr_nczarr.storage import Access, Bytes
from xr_nczarr.tools.results import Result
from xr_nczarr.tools.text import count_text
from xr_nczarr.writing.options import WriteOptions
from xr_nczarr.writing.transaction import Transaction, WritePlan


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConsolidateResult(Result):
    """The result of `consolidate`: the document at `key` has the metadata of `nodes` nodes."""

    store: str
    key: str
    nodes: int

    def __repr__(self) -> str:
        return f"{self.store}: {self.key} holds the metadata of {count_text(self.nodes, 'node')}"


def consolidate(
    target: Any, *, storage_options: Mapping[str, Any] | None = None, progress: bool = False
) -> ConsolidateResult:
    """Write the consolidated metadata of a store: ``.zmetadata``, in v3 the root document.

    Parameters
    ----------
    progress
        Whether to show how many documents are read.

    Raises
    ------
    UnsupportedError
        For versions without consolidated metadata, and for the layout of netCDF-C 4.8.0, whose
        annotations are in other objects.
    """
    change = change_store(target, storage_options, "consolidate", progress=progress)
    with change as (transaction, opened):
        store = transaction.store
        nodes, zarr_format = opened.hierarchy.nodes, opened.hierarchy.zarr_format
        key = FORMATS[zarr_format].consolidated_key
        if opened.root.dialect == "nczarr-4.8.0":
            raise UnsupportedError(
                "consolidated metadata cannot hold the annotations of netCDF-C 4.8.0",
                remedy="Upgrade the store first",
                store=store.name,
            )
        documents = refresh_consolidated(opened.hierarchy, nodes, {})
        if not documents or key is None:
            raise UnsupportedError(
                f"Zarr {zarr_format} has no consolidated metadata", store=store.name
            )
        transaction.execute(WritePlan(zarr_format, documents=documents), WriteOptions())
    return ConsolidateResult(store=store.name, key=key, nodes=len(nodes))


class _CountedDocuments(dict[str, Bytes | None]):
    """Documents by key, each of which counts as progress when it is kept."""

    def __init__(self, documents: Mapping[str, Bytes | None], progress: Progress) -> None:
        super().__init__(documents)
        self._progress = progress

    def __setitem__(self, key: str, document: Bytes | None) -> None:
        super().__setitem__(key, document)
        self._progress.advance(document is not None)


@contextmanager
def change_store(
    target: Any,
    storage_options: Mapping[str, Any] | None,
    owner: str,
    *,
    dry_run: bool = False,
    progress: bool = False,
) -> Iterator[tuple[Transaction, OpenedStore]]:
    """Open the single documents of a store, under the writer lock unless it is a `dry_run`.

    An interrupted change is rolled back first.
    """
    resolved = resolve(target, Access(storage_options=storage_options))
    store = resolved.store
    try:
        resolved.check_writable()
    except UnsupportedError as error:
        error.remedy = (
            error.remedy or "Run this where the store is on a disk, or copy the store first"
        )
        raise
    with Transaction.locked(store, lambda: owner, locking=not dry_run) as transaction:
        if not dry_run:
            transaction.roll_back()
        with Progress(progress, None, " documents") as shown:
            transaction.documents = _CountedDocuments(transaction.documents, shown)
            opened = transaction.open("a")
        if opened is None:
            raise NotFoundError("there is no store to change", store=store.name)
        yield transaction, opened
