"""Rewrite fixed-width string arrays with a larger width, so that longer strings can be appended.

The stored values do not change.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.dataset import OpenedStore
from xr_nczarr.errors import ConflictError, ErrorContext
from xr_nczarr.formats import Format
from xr_nczarr.formats.format import Change
from xr_nczarr.hierarchy import edit_documents, refresh_consolidated
from xr_nczarr.model import ArrayNode
from xr_nczarr.netcdf.annotations import WIDTH
from xr_nczarr.storage import Store
from xr_nczarr.writing.write_plan import WritePlan

_BATCH_OBJECTS = 256
_MAX_JOURNAL_BYTES = 48 << 20


def with_width(node: ArrayNode, width: int) -> ArrayNode:
    """Return a copy of a fixed-width string node with a width of at least `width` bytes.

    The width is at least doubled, so that the array is seldom rewritten, even if each append
    contains longer strings.
    """
    width = max(width, 2 * node.dtype.itemsize)
    dtype, fill = np.dtype(f"{node.dtype.kind}{width}"), node.fill_value
    if isinstance(fill, np.void):  # Zarr version 3 stores fixed-width strings as raw bytes
        fill = np.void(fill.tobytes().ljust(width, b"\0"))
    return replace(node, dtype=dtype, fill_value=fill, type_name=None)


def plan_widening(
    opened: OpenedStore,
    arrays: Sequence[tuple[ArrayNode, ArrayNode]],
    consolidated: bool | None,
) -> WritePlan:
    """Return a plan for rewriting fixed-width string arrays with a larger width.

    Unless the store is replaced atomically, the journal contains all old chunks of these arrays.

    Parameters
    ----------
    arrays
        For each array, the stored node and the wider node.

    Raises
    ------
    ConflictError
        If the store cannot be replaced atomically, and the journal would become too large.
    """
    hierarchy, store = opened.hierarchy, opened.store
    plan = WritePlan(hierarchy.zarr)
    for node, wider in arrays:
        with ErrorContext(variable=node.path):
            plan.chunks.update(_widened_chunks(node, wider, store))
    # An estimate of what readers count toward their limit on metadata; see `Document`.
    size = sum(6 * len(data) + 256 * data.count(b",") for data in plan.chunks.values())
    if not store.replaceable and size > _MAX_JOURNAL_BYTES:
        raise ConflictError(
            "the new strings are longer than the stored width of "
            f"{', '.join(node.path for node, _ in arrays)}, but the stored arrays are too "
            "large to be rewritten safely with a larger width",
            remedy="Write the variable to a new store with a larger _nczarr_maxstrlen",
            store=store.name,
        )
    changes = [change for pair in arrays for change in _width_changes(hierarchy.zarr, *pair)]
    plan.documents |= edit_documents(hierarchy, changes)
    if consolidated or hierarchy.consolidated:
        plan.documents |= refresh_consolidated(hierarchy, hierarchy.nodes, plan.documents)
    return plan


def _width_changes(zarr: Format, node: ArrayNode, wider: ArrayNode) -> Iterator[Change]:
    """Yield the changes that update the stored metadata of `node` to the metadata of `wider`."""
    old, new = (zarr.render_node(array.without_annotations()) for array in (node, wider))
    for key in new:
        before, after = json.loads(old[key]), json.loads(new[key])
        for name in after:
            if before[name] != after[name]:
                yield Change(node, "members", (name,), after[name])
    if WIDTH in node.attributes:
        width = wider.dtype.itemsize
        yield Change(node, "attributes", (WIDTH,), width)


def _widened_chunks(node: ArrayNode, wider: ArrayNode, store: Store) -> Iterator[tuple[str, bytes]]:
    old, new = ChunkedArray(node, store), ChunkedArray(wider, store)
    sizes = zip(node.shape, node.chunk_shape, strict=True)
    indices = itertools.product(*(range(-(-size // length)) for size, length in sizes))
    while batch := list(itertools.islice(indices, _BATCH_OBJECTS)):
        for index, data in zip(batch, old.layout.fetch(store, batch), strict=True):
            if data is not None:
                texts = old.codec.decode(data).view(f"S{node.dtype.itemsize}")
                chunk = texts.astype(f"S{wider.dtype.itemsize}").view(wider.dtype)
                yield wider.chunk_keys.key(index), bytes(new.codec.encode(chunk))
