"""Parse, open and write reference sets, which map the keys of a store to bytes in other files."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xr_nczarr.references.parse import expand
    from xr_nczarr.references.writer import WrittenReferences, write

__all__ = ["WrittenReferences", "expand", "write"]


def __getattr__(name: str) -> Any:
    # Import the modules only now, because recognizing a reference set does not need them.
    if name not in __all__:
        raise AttributeError(f"module 'xr_nczarr.references' has no attribute {name!r}")
    module = "parse" if name == "expand" else "writer"
    return getattr(import_module(f"xr_nczarr.references.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
