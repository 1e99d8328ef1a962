"""The reference set of a store, also of one that cannot be listed."""

from __future__ import annotations

from functools import wraps
from typing import Any

from xr_nczarr.storage import reference_writing
from xr_nczarr.tools.census import every_key


@wraps(reference_writing.write)
def write(source: Any, target: Any, **options: Any) -> Any:
    """Write the reference set of a store; where it cannot be listed, metadata name its chunks."""
    return reference_writing.write(source, target, keys=every_key, **options)
