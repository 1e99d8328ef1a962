"""The documents of a hierarchy that is written, or of one that changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from xr_nczarr.errors import Place, UnsupportedError
from xr_nczarr.formats import FORMATS, Format
from xr_nczarr.formats.documents import Document
from xr_nczarr.formats.editing import Change, edited, locate
from xr_nczarr.model import Hierarchy, Json
from xr_nczarr.storage import Store


def rendered(hierarchy: Hierarchy, *, consolidated: bool) -> dict[str, bytes]:
    """Render the documents of a hierarchy by their keys, children first, the root's last.

    In this order an interrupted write is not taken for a dataset.
    """
    zarr = FORMATS[hierarchy.zarr_format]
    documents: dict[str, bytes] = {}
    for path in sorted(hierarchy.nodes, key=_children_first):
        with Place(key=path):
            documents.update(zarr.render_node(hierarchy.nodes[path]))
    if consolidated:
        documents |= zarr.render_consolidated(documents)
    return documents


def _children_first(path: str) -> tuple[bool, int]:
    return path == "/", -path.count("/")


def writable_format(store: Store, zarr_format: str) -> Format:
    """Return the format that renders new nodes of a store.

    Raises
    ------
    UnsupportedError
        For a store in a variant of the format that is only read.
    """
    zarr = FORMATS[zarr_format]
    if zarr.has_variants:
        stored = store.fetch_present(zarr.root_keys())
        documents = {key: Document(key, data) for key, data in stored}
        if zarr.resolved(documents) != zarr:
            raise UnsupportedError(
                f"the store spells its keys in a variant of Zarr {zarr_format} that is only read",
                remedy="Write its contents to a new store",
                store=store.name,
            )
    return zarr


def edit_documents(store: Store, zarr_format: str, changes: Iterable[Change]) -> dict[str, bytes]:
    """Return the stored documents with members changed, by key, in the order of `changes`.

    All other members stay as they are spelled. Nothing is put.
    """
    zarr = FORMATS[zarr_format]
    by_key: dict[str, dict[tuple[str, ...], Json]] = {}
    for change in changes:
        key, member = locate(change, zarr)
        by_key.setdefault(key, {})[member] = change.value
    return {
        key: edited(Document(key, b"{}" if data is None else data), by_key[key])
        for key, data in zip(by_key, store.fetch(list(by_key)), strict=True)
    }


def refresh_consolidated(
    store: Store, zarr_format: str, paths: Iterable[str], changed: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Return the consolidated document of the nodes at `paths`, with the `changed` documents in it.

    Empty for a version without consolidated metadata.
    """
    zarr = FORMATS[zarr_format]
    if zarr.consolidated_key is None:
        return {}
    paths = sorted(paths, key=_children_first)
    keys = list(dict.fromkeys(key for path in paths for key in zarr.node_keys(path)))
    stored = {key: bytes(data) for key, data in store.fetch_present(keys)}
    return zarr.render_consolidated({**stored, **changed})
