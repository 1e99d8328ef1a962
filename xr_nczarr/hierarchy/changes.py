"""The documents of a hierarchy that is written, or of one that changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import ModuleType

from xr_nczarr.errors import Place, UnsupportedError
from xr_nczarr.formats import FORMATS, v3_draft
from xr_nczarr.formats.documents import Document
from xr_nczarr.formats.editing import Change, edited, locate
from xr_nczarr.model import Hierarchy, Json
from xr_nczarr.storage import Store


def rendered(hierarchy: Hierarchy, *, consolidated: bool) -> dict[str, bytes]:
    """Give the documents of a hierarchy by their keys, children first, the root's last.

    In this order an interrupted write is not taken for a dataset.
    """
    module = FORMATS[hierarchy.zarr_format]
    documents: dict[str, bytes] = {}
    for path in sorted(hierarchy.nodes, key=_children_first):
        with Place(key=path):
            documents.update(module.render_node(hierarchy.nodes[path]))
    if consolidated and module.CONSOLIDATED_KEY is not None:
        documents |= module.render_consolidated(documents)
    return documents


def _children_first(path: str) -> tuple[bool, int]:
    return path == "/", -path.count("/")


def writable_format(store: Store, zarr_format: str) -> ModuleType:
    """Give the module that renders new nodes of a store.

    Raises
    ------
    UnsupportedError
        For a store of the v3 draft whose keys are not those of its document.
    """
    module = FORMATS[zarr_format]
    if module is v3_draft:
        found = store.fetch_present(module.root_keys())
        documents = {key: Document(key, data) for key, data in found}
        if v3_draft.layout(documents) != v3_draft.Layout():
            raise UnsupportedError(
                "its keys are not those of the document of the draft: it is only read",
                remedy="Write its contents to a new store",
                store=store.name,
            )
    return module


def edit_documents(store: Store, zarr_format: str, changes: Iterable[Change]) -> dict[str, bytes]:
    """Give the stored documents with members changed, by key, in the order of `changes`.

    All else in them stays as it is spelled; nothing is put.
    """
    module = FORMATS[zarr_format]
    by_key: dict[str, dict[tuple[str, ...], Json]] = {}
    for change in changes:
        key, member = locate(change, module.node_keys(change.path))
        by_key.setdefault(key, {})[member] = change.value
    return {
        key: edited(Document(key, b"{}" if data is None else data), by_key[key])
        for key, data in zip(by_key, store.fetch(list(by_key)), strict=True)
    }


def refresh_consolidated(
    store: Store, zarr_format: str, paths: Iterable[str], changed: Mapping[str, bytes]
) -> dict[str, bytes]:
    """Give the consolidated document of the nodes at `paths`, as stored but for what is `changed`.

    Empty for a version that has none.
    """
    module = FORMATS[zarr_format]
    if module.CONSOLIDATED_KEY is None:
        return {}
    paths = sorted(paths, key=_children_first)
    keys = list(dict.fromkeys(key for path in paths for key in module.node_keys(path)))
    stored = {key: bytes(data) for key, data in store.fetch_present(keys)}
    consolidated: dict[str, bytes] = module.render_consolidated({**stored, **changed})
    return consolidated
