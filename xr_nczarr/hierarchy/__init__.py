"""Formats × storage: the nodes of a store, found, and changed by their documents."""

from xr_nczarr.formats import FORMATS
from xr_nczarr.formats.documents import Document
from xr_nczarr.formats.editing import Change
from xr_nczarr.formats.journal import JOURNAL, Journal, Regions
from xr_nczarr.hierarchy.changes import (
    edit_documents,
    open_journal,
    refresh_consolidated,
    rendered,
    writable_format,
)
from xr_nczarr.hierarchy.search import Consolidated, RecordSetError, open_hierarchy

__all__ = [
    "FORMATS",
    "JOURNAL",
    "Change",
    "Consolidated",
    "Document",
    "Journal",
    "RecordSetError",
    "Regions",
    "edit_documents",
    "open_hierarchy",
    "open_journal",
    "refresh_consolidated",
    "rendered",
    "writable_format",
]
