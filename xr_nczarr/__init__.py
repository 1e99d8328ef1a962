"""The xarray engine for NCZarr, Zarr of every version, and reference sets."""

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
    from xr_nczarr.model import Limits
    from xr_nczarr.storage import Retry
    from xr_nczarr.tools.cdl import dump
    from xr_nczarr.tools.consolidate import consolidate
    from xr_nczarr.tools.copying import copy
    from xr_nczarr.tools.diff import diff
    from xr_nczarr.tools.explain import explain
    from xr_nczarr.tools.info import Overview, info, open_hierarchy
    from xr_nczarr.tools.upgrade import upgrade
    from xr_nczarr.tools.verify import verify
    from xr_nczarr.writing.to_nczarr import to_nczarr

__version__ = "0.1.0"

__all__ = [
    "AccessDeniedError",
    "ChunkError",
    "ConflictError",
    "ExistsError",
    "LimitError",
    "Limits",
    "MetadataError",
    "MissingChunkError",
    "NczarrError",
    "NotFoundError",
    "Overview",
    "ReferenceSetError",
    "RefusedError",
    "Retry",
    "StorageConnectionError",
    "StorageError",
    "StorageTimeoutError",
    "UnsupportedError",
    "consolidate",
    "copy",
    "diff",
    "dump",
    "explain",
    "info",
    "open_hierarchy",
    "references",
    "to_nczarr",
    "upgrade",
    "verify",
]

# What reads and writes is imported when it is first used.
_LAZY = {
    "Limits": "model",
    "Overview": "tools.info",
    "Retry": "storage",
    "consolidate": "tools.consolidate",
    "copy": "tools.copying",
    "diff": "tools.diff",
    "dump": "tools.cdl",
    "explain": "tools.explain",
    "info": "tools.info",
    "open_hierarchy": "tools.info",
    "to_nczarr": "writing.to_nczarr",
    "upgrade": "tools.upgrade",
    "verify": "tools.verify",
}


def __getattr__(name: str) -> Any:
    if name == "references":
        return import_module("xr_nczarr.references")
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"xr_nczarr.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# Registers ``ds.nczarr``, now or when xarray is imported.
import xr_nczarr.accessor  # noqa: E402, F401
