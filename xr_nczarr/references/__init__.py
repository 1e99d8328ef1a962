"""Parse, open and write reference sets, which map the keys of a store to bytes in other files."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xr_nczarr.references.parse import expand
    from xr_nczarr.references.referencing import WrittenReferences, write

__all__ = ["WrittenReferences", "expand", "write"]

# The modules are imported lazily, because recognizing a reference set does not need them.
_LAZY = {
    "references.parse": ("expand",),
    "references.referencing": ("WrittenReferences", "write"),
}


def __getattr__(name: str) -> Any:
    for module, names in _LAZY.items():
        if name in names:
            return getattr(import_module(f"xr_nczarr.{module}"), name)
    raise AttributeError(f"module 'xr_nczarr.references' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
