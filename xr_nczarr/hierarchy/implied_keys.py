"""Find documents and chunks without listing the store, by deriving their keys from the metadata.

Only one case requires a listing: if the separator in the chunk keys of an array cannot be
determined otherwise, the array's folder is listed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import compress, islice

from xr_nczarr.errors import UnsupportedError
from xr_nczarr.formats.format import Hierarchy
from xr_nczarr.model import ArrayNode, combinations, key_prefix
from xr_nczarr.storage import Store

MAX_LOOKUPS = 100_000_000
"""Maximum number of chunks to look up one by one. For some stores, so many lookups take hours."""

_BATCH_KEYS = 1024


def document_keys(hierarchy: Hierarchy, sidecars: Iterable[str]) -> list[str]:
    """Return every key at which a hierarchy can have a metadata document.

    `sidecars` contains the names of additional documents that each node can have.
    """
    zarr, nodes = hierarchy.zarr, hierarchy.nodes
    keys = [*zarr.root_keys(), *(key for path in nodes for key in zarr.node_keys(path))]
    keys += [key_prefix(path) + name for path in nodes for name in sidecars]
    return list(dict.fromkeys(keys))


def with_stored_separator(node: ArrayNode, store: Store) -> ArrayNode:
    """Return an array node with the separator that the keys of the stored chunks use.

    If the metadata declares no separator, and all stored chunks use the alternative separator, the
    returned node has the alternative separator. Otherwise, the node is returned unchanged, for
    example if no chunks are stored.

    The array's folder is listed only if the metadata declares no separator, and neither the first
    nor the last chunk uses the default separator.
    """
    if len(node.key_notations) == 1:
        return node
    keys = node.chunk_keys
    extents = zip(node.shape, node.object_shape, strict=True)
    last = tuple([max(size - 1, 0) // length for size, length in extents])
    sizes = store.sizes_of([keys.key((0,) * len(last)), keys.key(last)])
    if any(size is not None for size in sizes):
        return node
    # If there are chunks with both separators, keep the default. Readers try the default first, so
    # old chunks could otherwise hide new ones.
    objects, folders = store.list_names(keys.prefix)
    if any(map(str.isdecimal, folders)) and not any(name[:1].isdecimal() for name in objects):
        keys = replace(keys, separator=keys.alternative, alternative="")
    return replace(node, chunk_keys=keys)


def existing_chunks(store: Store, node: ArrayNode) -> Iterator[tuple[str, int | None]]:
    """Yield the key and the size in bytes of each existing chunk or shard of an array.

    This takes one request per possible key.

    Raises
    ------
    UnsupportedError
        If the array can have more than `MAX_LOOKUPS` chunks or shards.
    """
    total = math.prod(node.object_counts)
    if total > MAX_LOOKUPS:
        raise UnsupportedError(
            f"{total:,} chunks are too many to look up one by one (at most {MAX_LOOKUPS:,})",
            remedy="Use a store that can be listed",
            store=store.name,
            variable=node.path,
        )
    indices = combinations([range(count) for count in node.object_counts])
    while batch := [*islice(indices, _BATCH_KEYS)]:
        for keys in node.key_notations:
            names = [keys.key(index) for index in batch]
            sizes = [*store.sizes_of(names)]
            exists = [size is not None for size in sizes]
            yield from zip(compress(names, exists), compress(sizes, exists), strict=True)
            batch = [index for index, stored in zip(batch, exists, strict=True) if not stored]
