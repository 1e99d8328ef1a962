"""Find the groups and arrays of a store, and render or change their metadata documents."""

from xr_nczarr.hierarchy.changes import (
    children_first,
    edit_documents,
    is_consolidated,
    refresh_consolidated,
    render_documents,
)
from xr_nczarr.hierarchy.fetching import RecordSetError, is_record_document
from xr_nczarr.hierarchy.implied_keys import (
    MAX_LOOKUPS,
    document_keys,
    existing_chunks,
    with_stored_separator,
)
from xr_nczarr.hierarchy.journal import JOURNAL, UNFINISHED, Journal, Regions, open_journal
from xr_nczarr.hierarchy.search import HierarchyOptions, open_hierarchy

__all__ = [
    "JOURNAL",
    "MAX_LOOKUPS",
    "UNFINISHED",
    "HierarchyOptions",
    "Journal",
    "RecordSetError",
    "Regions",
    "children_first",
    "document_keys",
    "edit_documents",
    "existing_chunks",
    "is_consolidated",
    "is_record_document",
    "open_hierarchy",
    "open_journal",
    "refresh_consolidated",
    "render_documents",
    "with_stored_separator",
]
