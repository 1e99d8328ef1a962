"""A reference set → where the bytes of each key are. Nothing here reads or fetches anything.

`write`, which does, lies in `tools` and is only called from here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from xr_nczarr.references.entries import InlineBytes, Reference, Target, absolute_url, is_metadata
from xr_nczarr.references.parquet import is_record_document, render_parquet_references
from xr_nczarr.references.reference_set import ReferenceSet
from xr_nczarr.references.render import portable, render_references, tabulated
from xr_nczarr.references.spec import expand, parse_parquet_references, parse_references

__all__ = [
    "InlineBytes",
    "Reference",
    "ReferenceSet",
    "Target",
    "absolute_url",
    "expand",
    "is_metadata",
    "is_record_document",
    "parse_parquet_references",
    "parse_references",
    "portable",
    "render_parquet_references",
    "render_references",
    "tabulated",
    "write",
]

if TYPE_CHECKING:
    write: Any


def __getattr__(name: str) -> Any:
    if name != "write":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("xr_nczarr.tools.referencing").write
