"""Consolidate all metadata of a store into a single document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from xr_nczarr.dataset import OpenedStore, resolve
from xr_nczarr.errors import NotFoundError, UnsupportedError
from xr_nczarr.hierarchy import refresh_consolidated
from xr_nczarr.progress import Progress
from xr_nczarr.storage import Access, Bytes
from xr_nczarr.tools.results import Result, count_text
from xr_nczarr.writing.transaction import Transaction
from xr_nczarr.writing.write_options import WriteOptions
from xr_nczarr.writing.write_plan import WritePlan


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConsolidateResult(Result):
    """The result of `consolidate`.

    Attributes
    ----------
    key
        Key of the document that contains the consolidated metadata.
    nodes
        Number of groups and arrays in the consolidated metadata.
    """

    store: str
    key: str
    nodes: int

    def __repr__(self) -> str:
        return f"{self.store}: {self.key} contains the metadata of {count_text(self.nodes, 'node')}"


def consolidate(
    target: Any, *, storage_options: Mapping[str, Any] | None = None, progress: bool = False
) -> ConsolidateResult:
    """Write the metadata of all groups and arrays in a store to a single document.

    In Zarr v2, this document has the key ``.zmetadata``. In Zarr v3, the consolidated metadata is
    part of the root group's document.

    Parameters
    ----------
    progress
        Whether to show how many metadata documents have been read.

    Raises
    ------
    UnsupportedError
        If the store is not writable, or if the Zarr version does not support consolidated metadata.
        The layout of netCDF-C 4.8.0 is not supported either, because it keeps NCZarr metadata in
        separate objects.
    NotFoundError
        If the store does not exist.
    """
    change = change_store(target, storage_options, "consolidate", progress=progress)
    with change as (transaction, opened):
        store = transaction.store
        nodes, zarr = opened.hierarchy.nodes, opened.hierarchy.zarr
        if opened.root.dialect == "nczarr-4.8.0":
            raise UnsupportedError(
                "consolidated metadata cannot contain the NCZarr metadata of netCDF-C 4.8.0",
                remedy="Upgrade the store first with xr_nczarr.upgrade (nczarr upgrade)",
                store=store.name,
            )
        if zarr.consolidated_key is None:
            raise UnsupportedError(
                f"Zarr version {zarr.version} does not support consolidated metadata",
                store=store.name,
            )
        documents = refresh_consolidated(opened.hierarchy, nodes, {})
        transaction.execute(WritePlan(zarr, documents=documents), WriteOptions())
    return ConsolidateResult(store=store.name, key=zarr.consolidated_key, nodes=len(nodes))


class _CountedDocuments(dict[str, Bytes | None]):
    """A dict of metadata documents that advances a progress bar when a document is added."""

    def __init__(self, documents: Mapping[str, Bytes | None], progress: Progress) -> None:
        super().__init__(documents)
        self._progress = progress

    def __setitem__(self, key: str, document: Bytes | None) -> None:
        super().__setitem__(key, document)
        self._progress.advance(document is not None)  # None stands for a missing document


@contextmanager
def change_store(
    target: Any,
    storage_options: Mapping[str, Any] | None,
    owner: str,
    *,
    dry_run: bool = False,
    progress: bool = False,
) -> Iterator[tuple[Transaction, OpenedStore]]:
    """Open a store to change its metadata, and yield a transaction and the opened store.

    The metadata is read from the individual documents, not from consolidated metadata. Any
    interrupted change is rolled back first, and the writer lock is held until the context exits. If
    `dry_run` is True, nothing is rolled back or locked.

    Parameters
    ----------
    owner
        String that identifies the change in the writer lock of an object store.

    Raises
    ------
    UnsupportedError
        If the store is not writable.
    NotFoundError
        If the store does not exist.
    """
    resolved = resolve(target, Access(storage_options=storage_options))
    store = resolved.store
    try:
        resolved.check_writable()
    except UnsupportedError as error:
        error.remedy = (
            error.remedy
            or "Run this on a machine that has the store on a local disk, or copy the store first"
        )
        raise
    locked = Transaction.locked(store, lambda: owner)
    with nullcontext(Transaction(store)) if dry_run else locked as transaction:
        if not dry_run:
            transaction.roll_back()
        with Progress(progress, None, " documents") as bar:
            target = transaction.target
            target.documents = _CountedDocuments(target.documents, bar)
            opened = target.open("a")
        if opened is None:
            raise NotFoundError("the store does not exist", store=store.name)
        yield transaction, opened
