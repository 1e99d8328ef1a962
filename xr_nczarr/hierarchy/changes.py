"""Render documents for a new hierarchy, or change documents of an existing one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from xr_nczarr.errors import ErrorContext
from xr_nczarr.formats.documents import Document, edited
from xr_nczarr.formats.format import Change, Hierarchy
from xr_nczarr.model import BrokenNode, Json


def render_documents(hierarchy: Hierarchy, *, consolidated: bool) -> dict[str, bytes]:
    """Render the documents of a hierarchy as a dict mapping keys to bytes, in write order.

    The documents of a node come before the documents of its parent, and the documents of the root
    come last. An interrupted write therefore does not look like a complete dataset. If
    `consolidated` is True, the dict includes consolidated metadata.
    """
    zarr = hierarchy.zarr
    documents: dict[str, bytes] = {}
    for path in sorted(hierarchy.nodes, key=children_first):
        with ErrorContext(key=path):
            documents.update(zarr.render_node(hierarchy.nodes[path]))
    if consolidated:
        documents |= zarr.render_consolidated(group_siblings(documents))
    return documents


def children_first(path: str) -> tuple[bool, int]:
    """Return a sort key that places children before their parents, and the root last."""
    return path == "/", -path.count("/")


def is_consolidated(hierarchy: Hierarchy) -> bool:
    """Return whether an opened hierarchy has consolidated metadata."""
    key = hierarchy.zarr.consolidated_key or ""
    data = hierarchy.documents.get(key)
    documents = {} if data is None else {key: Document(key, data, consolidated=True)}
    return hierarchy.zarr.expand_consolidated(documents) is not None


def edit_documents(hierarchy: Hierarchy, changes: Iterable[Change]) -> dict[str, bytes]:
    """Render stored documents with `changes` applied, without writing them to the store.

    Return a dict mapping the key of each changed document to its new bytes, in the order of
    `changes`. Unchanged members of a document keep their exact text.
    """
    zarr = hierarchy.zarr
    by_key: dict[str, dict[tuple[str, ...], Json]] = {}
    for change in changes:
        key, member = zarr.locate(change)
        by_key.setdefault(key, {})[member] = change.value
    stored = ((key, hierarchy.documents[key]) for key in by_key)
    return {
        key: edited(Document(key, b"{}" if data is None else data), by_key[key])
        for key, data in stored
    }


def refresh_consolidated(
    hierarchy: Hierarchy, paths: Iterable[str], changed: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Render consolidated metadata for the nodes at `paths` in a hierarchy.

    `changed` maps keys to documents that take precedence over the stored documents. Return a dict
    mapping the key of the consolidated metadata to its bytes, or an empty dict if the Zarr version
    has no consolidated metadata.

    Raises
    ------
    RefusedError
        If the path of a node contains a backslash. The document of such a node cannot be read.
    """
    zarr = hierarchy.zarr
    if zarr.consolidated_key is None:
        return {}
    documents: dict[str, bytes] = {}
    for path in sorted(paths, key=children_first):
        node = hierarchy.nodes.get(path)
        if isinstance(node, BrokenNode) and "\\" in path:
            raise node.error
        for key in zarr.node_keys(path):
            data = hierarchy.documents.get(key)
            if data is not None:
                documents[key] = bytes(data)
    return zarr.render_consolidated(group_siblings({**documents, **changed}))


def group_siblings(documents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Reorder documents so that the children of each group are adjacent.

    zarr-python 3 needs this order in consolidated metadata. If other documents separate the
    children of a group, zarr-python keeps only the children after the last such document. It then
    cannot open the group. Within each group, the order of the children does not change.
    """
    ranks: dict[str, int] = {}
    for key in documents:
        ranks.setdefault(_parent(key), len(ranks))
    return {key: documents[key] for key in sorted(documents, key=lambda key: ranks[_parent(key)])}


def _parent(key: str) -> str:
    """Return the parent path of the node whose document has the given key."""
    node = key.rpartition("/")[0]
    return node.rpartition("/")[0]
