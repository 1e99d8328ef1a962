"""Read and write NCZarr, all versions of Zarr, and reference sets with xarray."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from xr_nczarr.errors import (
    AccessDeniedError,
    ChunkError,
    ConflictError,
    ExistsError,
    LimitError,
    MetadataError,
    MissingChunkError,
    NczarrError,
    NotFoundError,
    ReferenceSetError,
    RefusedError,
    StorageConnectionError,
    StorageError,
    StorageTimeoutError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from xr_nczarr import references
    from xr_nczarr.copying.diff import Comparison, Difference, diff
    from xr_nczarr.copying.exact_copy import CopyResult, copy
    from xr_nczarr.model import Limits
    from xr_nczarr.storage import Retry
    from xr_nczarr.tools.cdl import Cdl, dump
    from xr_nczarr.tools.consolidate import ConsolidateResult, consolidate
    from xr_nczarr.tools.explain import Explanation, explain
    from xr_nczarr.tools.info import StoreInfo, info
    from xr_nczarr.tools.recording_store import VariableReading
    from xr_nczarr.tools.upgrade import UpgradeResult, upgrade
    from xr_nczarr.tools.verification import Finding, Verification
    from xr_nczarr.tools.verify import verify
    from xr_nczarr.writing.to_nczarr import to_nczarr

__version__ = "0.1.0"

__all__ = [
    "AccessDeniedError",
    "Cdl",
    "ChunkError",
    "Comparison",
    "ConflictError",
    "ConsolidateResult",
    "CopyResult",
    "Difference",
    "ExistsError",
    "Explanation",
    "Finding",
    "LimitError",
    "Limits",
    "MetadataError",
    "MissingChunkError",
    "NczarrError",
    "NotFoundError",
    "ReferenceSetError",
    "RefusedError",
    "Retry",
    "StorageConnectionError",
    "StorageError",
    "StorageTimeoutError",
    "StoreInfo",
    "UnsupportedError",
    "UpgradeResult",
    "VariableReading",
    "Verification",
    "consolidate",
    "copy",
    "diff",
    "dump",
    "explain",
    "info",
    "references",
    "to_nczarr",
    "upgrade",
    "verify",
]

# The modules that read and write are imported lazily, on first use.
_LAZY = {
    "copying.diff": ("Comparison", "Difference", "diff"),
    "copying.exact_copy": ("CopyResult", "copy"),
    "model": ("Limits",),
    "storage": ("Retry",),
    "tools.cdl": ("Cdl", "dump"),
    "tools.consolidate": ("ConsolidateResult", "consolidate"),
    "tools.explain": ("Explanation", "explain"),
    "tools.info": ("StoreInfo", "info"),
    "tools.recording_store": ("VariableReading",),
    "tools.upgrade": ("UpgradeResult", "upgrade"),
    "tools.verification": ("Finding", "Verification"),
    "tools.verify": ("verify",),
    "writing.to_nczarr": ("to_nczarr",),
}


def __getattr__(name: str) -> Any:
    if name == "references":
        return import_module("xr_nczarr.references")
    for module, names in _LAZY.items():
        if name in names:
            return getattr(import_module(f"xr_nczarr.{module}"), name)
    raise AttributeError(f"module 'xr_nczarr' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# Importing this module registers the accessor ``ds.nczarr``, now or when xarray is imported.
import xr_nczarr.accessor  # noqa: E402, F401
