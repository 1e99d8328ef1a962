"""Inspect the target of a write, and open the store that it contains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from xr_nczarr.dataset import OpenedStore, open_netcdf
from xr_nczarr.errors import (
    AccessDeniedError,
    ConflictError,
    ExistsError,
    NotFoundError,
    RefusedError,
    UnsupportedError,
)
from xr_nczarr.formats import FORMATS
from xr_nczarr.hierarchy import UNFINISHED, is_consolidated
from xr_nczarr.netcdf.annotations import is_universal
from xr_nczarr.options import OpenOptions
from xr_nczarr.storage import WRITER_LOCK, Bytes, Listing, Store, is_file_manager_file

if TYPE_CHECKING:
    from xr_nczarr.writing.write_request import WriteRequest


@dataclass
class WriteTarget:
    """A store that a write creates or changes, with the content that was read before the write.

    The root is listed only once, and each document is read only once.

    Attributes
    ----------
    documents
        Metadata documents that have been read, by key. None stands for a missing document.
    """

    store: Store
    documents: dict[str, Bytes | None] = field(default_factory=dict)

    @cached_property
    def names(self) -> Listing | None:
        """The names at the store's root before the write, or None if it cannot be listed."""
        try:
            return _names(self.store)
        except (AccessDeniedError, UnsupportedError):
            return None

    @property
    def is_empty(self) -> bool:
        """Whether the target is known to be empty, apart from a writer lock.

        If the store cannot be listed, the value is False.
        """
        return self.names is not None and not _contents(self.names)

    @property
    def listing_shows_store(self) -> bool:
        """Whether the listing of the root is enough to recognize a complete store.

        If not, `open` may still recognize one, such as a store in the format of the Zarr v3 draft.
        """
        usual = [zarr for zarr in FORMATS.values() if not zarr.is_rare]
        arrays = {zarr.document_key("/", "array") for zarr in usual}
        groups = {zarr.document_key("/", "group") for zarr in usual}
        objects = set(self.names.objects if self.names else ())
        return UNFINISHED not in objects and not objects.isdisjoint(arrays | groups)

    def may_hold(self, key: str) -> bool:
        """Return whether `key` is listed at the root, or True if the store cannot be listed."""
        return self.names is None or key in self.names.objects

    def read(self, keys: Sequence[str]) -> list[Bytes | None]:
        """Return the metadata document at each key, or None for a missing document."""
        unread = [key for key in keys if key not in self.documents]
        self.documents.update(zip(unread, self.store.fetch(unread), strict=True))
        return [self.documents[key] for key in keys]

    def open_for(self, request: WriteRequest) -> OpenedStore | None:
        """Open the store that a write changes, or return None if the write creates the store.

        Raises
        ------
        ExistsError
            If the store exists, the mode is ``"w-"``, and the write is to the root group. Also
            raised if the target is not empty but contains no part of a Zarr store.
        NotFoundError
            If the mode is ``"r+"`` and there is no store.
        ConflictError
            If `append_dim` is not a dimension of the new data, or if another write is in progress
            or was interrupted while replacing chunks.
        """
        options, store = request.options, self.store
        if request.replaces_store:
            return None
        if options.mode == "w-" and request.path == "/" and self.listing_shows_store:
            raise exists_error(store, request.path)
        opened = self.open(options.mode)
        if opened is None:
            if options.mode == "r+":
                raise NotFoundError(
                    "the store does not exist",
                    remedy="Create it first with mode='a'",
                    store=store.name,
                )
            self.check_not_foreign()
            dim, groups = options.append_dim, request.groups
            if dim is not None and not any(dim in group.dataset.dims for group in groups):
                raise ConflictError(
                    f"append_dim={dim!r} does not match any dimension of the new data",
                    remedy="Pass one of the dimensions of the data, or leave out append_dim",
                )
            return None
        if options.mode == "r+" and opened.hierarchy.previous_objects:
            raise ConflictError(
                "another write is in progress, or was interrupted while replacing chunks of the "
                "store",
                remedy="Wait until that write is complete. If it was interrupted, either rerun it "
                "unchanged, or append to the store. The append rolls back the interrupted write "
                "before it changes the store",
                store=store.name,
            )
        return opened

    def open(self, mode: str) -> OpenedStore | None:
        """Open the target, or return None if it does not contain a complete store.

        In mode ``"r+"``, consolidated metadata is sufficient. In all other modes, the individual
        documents are read, because another program may have changed them without updating the
        consolidated metadata.
        """
        if mode != "r+" and self.is_empty:
            return None
        documents = self.documents
        options = OpenOptions(consolidated=None if mode == "r+" else False)
        try:
            opened = open_netcdf(self.store, options, documents=documents)
            if mode != "r+" and is_universal(opened.root.node):
                opened = open_netcdf(self.store, options, documents=documents, with_sidecars=True)
        except NotFoundError:
            return None
        hierarchy = replace(opened.hierarchy, documents=dict(documents))
        consolidated = hierarchy.consolidated or is_consolidated(hierarchy)
        return replace(opened, hierarchy=replace(hierarchy, consolidated=consolidated))

    def check_not_foreign(self) -> None:
        """Raise ExistsError if the target is not empty but contains no part of a Zarr store."""
        if _is_foreign(_names(self.store) if self.names is None else self.names):
            raise ExistsError(
                "the target contains objects that do not belong to a Zarr store",
                remedy="Choose another target, or remove the existing one first",
                store=self.store.name,
            )


def is_empty(store: Store) -> bool:
    """Return whether a target is empty, ignoring ``.DS_Store`` and similar files."""
    return _names(store) == ([], [])


def check_removable(store: Store) -> None:
    """Raise RefusedError if the target is not empty but contains no part of a Zarr store."""
    if _is_foreign(_names(store)):
        raise RefusedError(
            "the target is not a Zarr store, and mode='w' would remove it",
            remedy="Choose another target, or pass overwrite=True",
            store=store.name,
        )


def check_no_documents(opened: OpenedStore, paths: Sequence[str]) -> None:
    """Raise ExistsError if the store already contains a group at any of `paths`.

    `paths` are paths that the hierarchy in `opened` does not contain. The hierarchy omits a group
    if one of its ancestors has no metadata document. The store itself is therefore searched.
    """
    zarr = opened.hierarchy.zarr
    sizes = opened.store.sizes_of([zarr.document_key(path, "group") for path in paths])
    for path, size in zip(paths, sizes, strict=True):
        if size is not None:
            raise ExistsError(
                f"the group {path!r} exists, but one of its ancestors has no metadata document",
                remedy=f"Add {path!r} to the end of the store's path instead of passing group=",
                store=opened.store.name,
            )


def _is_foreign(names: Listing) -> bool:
    roots = {UNFINISHED, *(key for zarr in FORMATS.values() for key in zarr.root_keys())}
    contents = _contents(names)
    return bool(contents) and not roots & contents


def _contents(names: Listing) -> set[str]:
    return {*names.objects, *(f"{name}/" for name in names.prefixes)} - {WRITER_LOCK}


def _names(store: Store) -> Listing:
    try:
        objects, prefixes = store.list_names("")
    except NotFoundError:  # a zip file that does not exist yet
        return Listing([], [])
    return Listing([name for name in objects if not is_file_manager_file(name)], prefixes)


def exists_error(store: Store, path: str) -> ExistsError:
    """Return the error to raise in mode ``"w-"`` when the group at `path` already exists."""
    return ExistsError(
        "the group already exists",
        remedy="Pass mode='w' to replace the group, mode='a' to change it, or "
        "append_dim to extend it",
        store=store.name,
        key=path,
    )
