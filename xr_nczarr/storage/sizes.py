"""What a store holds, with sizes: one pass over all its objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from xr_nczarr.storage.protocol import Store


def stored_sizes(store: Store, prefix: str = "") -> Iterator[tuple[str, int | None]]:
    """Yield key and size in bytes of every object below `prefix`.

    The size is None where only a request for the object would tell.

    Raises
    ------
    UnsupportedError
        Where nothing can be listed (plain HTTP), or too much.
    """
    own: Any = getattr(store, "sizes", None)
    if own is not None:
        yield from own(prefix)
        return
    size: Any = getattr(store, "size", lambda _: None)
    objects, prefixes = store.list_names(prefix)
    for name in objects:
        yield prefix + name, size(prefix + name)
    for name in prefixes:
        yield from stored_sizes(store, f"{prefix}{name}/")
