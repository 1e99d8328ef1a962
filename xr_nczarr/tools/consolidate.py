"""`consolidate` writes all metadata of a store into one document."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from xr_nczarr.dataset import OpenedStore, resolve
from xr_nczarr.errors import NotFoundError, UnsupportedError
from xr_nczarr.formats import FORMATS
from xr_nczarr.hierarchy import refresh_consolidated
from xr_nczarr.storage import Access
from xr_nczarr.tools.results import Result
from xr_nczarr.tools.text import count_text
from xr_nczarr.writing.options import WriteOptions
from xr_nczarr.writing.transaction import Transaction, WritePlan


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ConsolidateResult(Result):
    """The result of `consolidate`: the document at `key` holds the metadata of `nodes` nodes."""

    store: str
    key: str
    nodes: int

    def __repr__(self) -> str:
        return f"{self.store}: {self.key} holds the metadata of {count_text(self.nodes, 'node')}"


def consolidate(
    target: Any, *, storage_options: Mapping[str, Any] | None = None
) -> ConsolidateResult:
    """Write the document that holds all metadata of a store: ``.zmetadata``, in v3 the root's.

    Raises
    ------
    UnsupportedError
        For versions without such a document, and for the layout of netCDF-C 4.8.0, whose
        annotations are in other objects.
    """
    with change_store(target, storage_options, "consolidate") as (transaction, opened):
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
                f"Zarr {zarr_format} has no consolidated metadata for it", store=store.name
            )
        transaction.execute(WritePlan(zarr_format, documents=documents), WriteOptions())
    return ConsolidateResult(store=store.name, key=key, nodes=len(nodes))


@contextmanager
def change_store(
    target: Any,
    storage_options: Mapping[str, Any] | None,
    owner: str,
    *,
    dry_run: bool = False,
) -> Iterator[tuple[Transaction, OpenedStore]]:
    """Open the single documents of a store, as its only writer unless it is a `dry_run`.

    An interrupted change is rolled back first.
    """
    resolved = resolve(target, Access(storage_options=storage_options))
    store = resolved.store
    try:
        resolved.check_writable()
    except UnsupportedError as error:
        error.remedy = error.remedy or "Do it where the store lies, or copy it first"
        raise
    with Transaction.locked(store, lambda: owner, locking=not dry_run) as transaction:
        if not dry_run:
            transaction.roll_back()
        opened = transaction.open("a")
        if opened is None:
            raise NotFoundError("there is no store to change", store=store.name)
        yield transaction, opened
