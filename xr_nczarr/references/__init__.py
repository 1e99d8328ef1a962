"""Parse, open and write reference sets, which map the keys of a store to bytes in other files."""

from xr_nczarr.references.entries import Reference
from xr_nczarr.references.opening import open_record_set, open_references
from xr_nczarr.references.parquet import parse_parquet_references
from xr_nczarr.references.parse import expand, parse_references
from xr_nczarr.references.reference_set import ReferenceSet
from xr_nczarr.references.reference_store import ReferenceStore
from xr_nczarr.references.referencing import WrittenReferences, write
from xr_nczarr.references.render import collect_references, portable, render_references

__all__ = [
    "Reference",
    "ReferenceSet",
    "ReferenceStore",
    "WrittenReferences",
    "collect_references",
    "expand",
    "open_record_set",
    "open_references",
    "parse_parquet_references",
    "parse_references",
    "portable",
    "render_references",
    "write",
]
