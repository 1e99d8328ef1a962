"""Formats × storage: find the nodes of a store, in as few round trips as its metadata allow."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from xr_nczarr.errors import (
    AccessDeniedError,
    LimitError,
    MetadataError,
    NotFoundError,
    Place,
    UnsupportedError,
    quote,
)
from xr_nczarr.formats import FORMATS, Format
from xr_nczarr.formats.documents import Document
from xr_nczarr.hierarchy.journal import JOURNAL, has_chunks, parse_journal
from xr_nczarr.model import (
    DEFAULT_LIMITS,
    ArrayNode,
    BrokenNode,
    GroupNode,
    Hierarchy,
    Limits,
    Node,
    child_path,
    group_path,
    key_prefix,
    parent_path,
)
from xr_nczarr.storage import (
    Bytes,
    Store,
    names_alike,
    page_error,
    page_in,
    plain_name,
)

Consolidated = Literal["check"] | bool | None
Children = tuple[list[str], list[str]]

_PROBED = 100  # directories, when nothing else was found
_RECORDS = ".zmetadata"  # also the key of what a reference set in parquet consists of


def open_hierarchy(
    store: Store,
    *,
    zarr_format: str | None = None,
    consolidated: Consolidated = None,
    group: str | None = None,
    subgroups: bool = True,
    listed_children: Callable[[GroupNode], Children | None] = lambda _: None,
    sidecars: Sequence[str] = (),
    with_sidecars: bool = False,
    data_type_fallback: bool = False,
    limits: Limits = DEFAULT_LIMITS,
) -> Hierarchy:
    """Give all nodes of a store.

    One wave of concurrent requests finds the version and the root. A consolidated document ends
    the search there. Otherwise each level of groups takes one more wave, and a listing before it
    where no metadata name the children.

    Parameters
    ----------
    zarr_format
        A key of `FORMATS`; None to recognize the version.
    consolidated
        Whether to read the consolidated document alone, single documents alone, or (None)
        whatever is there. ``"check"`` reads both and compares.
    group
        Path of the group to read, with its ancestors' own documents; None for the root.
    subgroups
        Whether to look into the groups below it as well.
    listed_children
        Of a convention on top of Zarr: gives the names of the arrays and groups that a group's
        metadata name, None if they don't.
    sidecars
        Names of documents that the convention keeps beside a node's own.
    with_sidecars
        Whether they are read in any case, not only where nothing else names the children.
    data_type_fallback
        Whether an unknown extension type of the v3 draft is read as the type it falls back to.

    Raises
    ------
    NotFoundError
        When the store bears no metadata, or has no consolidated document when it must.
    MetadataError
        When the root is damaged, or the consolidated document is stale with ``"check"``.
    RecordSetError
        When the store is the folder of a reference set in parquet.
    """
    with Place(store=store.name):
        asked = group_path(group)
        search = _Search(
            store,
            asked,
            subgroups,
            listed_children,
            sidecars,
            data_type_fallback,
            limits,
            with_sidecars=with_sidecars,
        )
        hierarchy = search.run(zarr_format, consolidated)
        search.break_replaced()
        return hierarchy


class RecordSetError(UnsupportedError):
    """The store is the folder of a reference set in parquet, and no Zarr store.

    Attributes
    ----------
    document
        Its ``.zmetadata``.
    """

    def __init__(self, document: bytes, **fields: Any) -> None:
        super().__init__(
            "the folder is a reference set in parquet, which is read only",
            remedy="Open it with xarray.open_dataset, or write to another folder",
            **fields,
        )
        self.document = document


def is_record_document(data: Bytes) -> bool:
    """Return whether a ``.zmetadata`` belongs to a reference set in parquet, not to Zarr."""
    if b'"record_size"' not in bytes(data):
        return False
    try:
        members = Document(".zmetadata", data, consolidated=True).value
    except MetadataError:
        return False
    return isinstance(members, dict) and "record_size" in members


@dataclass
class _Search:
    """One opening of one store."""

    store: Store
    group: str
    subgroups: bool
    listed_children: Callable[[GroupNode], Children | None]
    sidecars: Sequence[str]
    data_type_fallback: bool
    limits: Limits
    with_sidecars: bool = False
    nodes: dict[str, Node] = field(default_factory=dict)
    before: Mapping[str, bytes | None] = field(default_factory=dict)
    replaced: Mapping[str, bytes | None] = field(default_factory=dict)
    parsed: dict[Hashable, ArrayNode] = field(default_factory=dict)
    page_for_nothing: bytes | None = None

    def __post_init__(self) -> None:
        self.probed = self.store.probing()

    def run(self, zarr_format: str | None, consolidated: Consolidated) -> Hierarchy:
        candidates = list(FORMATS.values()) if zarr_format is None else [FORMATS[zarr_format]]
        if consolidated is True:
            return self._consolidated_only(candidates)
        documents, zarr = self._recognize(candidates)
        journal = documents.pop(JOURNAL, None)
        self.zarr = zarr.resolved(documents, data_type_fallback=self.data_type_fallback)
        if self.zarr != zarr:  # the root's documents may have other keys
            missing = [key for key in self.zarr.node_keys("/") if key not in documents]
            documents |= self._fetch(missing)
        if self.with_sidecars:
            documents |= self._fetch(key for key in self._node_keys("/") if key not in documents)
        if journal is not None and (
            has_chunks(journal) or consolidated is False or self._expanded(documents) is None
        ):
            interrupted = parse_journal(journal)
            self.before = interrupted.before(self.probed.fetch(interrupted.keys)) or {}
            self.replaced = self.before if interrupted.chunks else {}
            documents = self._fetch(documents)
        if consolidated is not False:
            members = self._expanded(documents)
            if members is not None:
                if consolidated == "check":
                    self._check(members)
                return self._from_documents(members)
            if consolidated == "check":
                raise self._not_consolidated([zarr])
        self._walk(documents)
        if not zarr.has_groups and not any(isinstance(n, ArrayNode) for n in self.nodes.values()):
            raise self._nothing_found(candidates)
        return Hierarchy(nodes=self.nodes, zarr_format=zarr.version, before=self.replaced)

    def _recognize(self, candidates: Sequence[Format]) -> tuple[dict[str, Document], Format]:
        """Fetch the root's documents, those of rare versions only when no other is there."""
        documents: dict[str, Document] = {}
        usual = [zarr for zarr in candidates if not zarr.is_rare]
        # One by one: what is a document of v1's is a directory of the draft's.
        for wave in (usual, *([zarr] for zarr in candidates if zarr.is_rare)):
            keys = [key for zarr in wave for key in zarr.root_keys() if key not in documents]
            if wave is usual:
                keys.append(JOURNAL)
            documents |= self._fetch(keys)
            for zarr in wave:
                if zarr.recognizes(documents):
                    return documents, zarr
        for zarr in candidates:
            if not zarr.has_groups and (len(candidates) == 1 or self._has_arrays(zarr)):
                return documents, zarr
        raise self._nothing_found(candidates)

    def _has_arrays(self, zarr: Format) -> bool:
        """Return whether one of the first directories below the root, if they list, is an array."""
        try:
            listing = self.probed.list_names("")
        except UnsupportedError:
            return False
        paths = [f"/{name}" for name in zarr.child_names(*listing)[:_PROBED]]
        documents = self._fetch(zarr.document_key(path, "array") for path in paths)
        return any(zarr.recognizes(documents, path) for path in paths)

    def _consolidated_only(self, candidates: Sequence[Format]) -> Hierarchy:
        for zarr in sorted(candidates, key=lambda zarr: not zarr.consolidated_by_default):
            if zarr.consolidated_key is None:
                continue
            self.zarr = zarr
            members = self._expanded(self._fetch([zarr.consolidated_key]))
            if members is not None:
                return self._from_documents(members)
        raise self._not_consolidated(candidates)

    def _expanded(self, documents: dict[str, Document]) -> dict[str, Document] | None:
        document = documents.get(self.zarr.consolidated_key or "")
        if document is None:
            return None
        with Place(key=document.key):
            return self.zarr.expand_consolidated(document)

    def _from_documents(self, documents: dict[str, Document]) -> Hierarchy:
        by_path: dict[str, dict[str, Document]] = {"/": {}}
        for key, document in documents.items():
            path = "/" + key.rpartition("/")[0]
            if path in by_path:
                by_path[path][key] = document
            elif self._wanted(path):
                by_path[path] = {key: document}
        for path in list(by_path):
            if path.count("/") > self.limits.max_depth:
                raise self._too_deep(path)
            while (path := parent_path(path)) not in by_path:
                by_path[path] = {}
        self._bound(len(by_path))
        for path in sorted(by_path, key=lambda path: path.count("/") if path != "/" else 0):
            self._add(self._parse_node(path, by_path[path]) or GroupNode(path=path, explicit=False))
        return Hierarchy(
            nodes=self.nodes,
            zarr_format=self.zarr.version,
            consolidated=True,
            before=self.replaced,
        )

    def _check(self, members: dict[str, Document]) -> None:
        single = self._fetch(members)
        consolidated_key = self.zarr.consolidated_key
        for key, document in members.items():
            found = single.get(key)
            if found is None or found.value != document.value:
                state = "is missing" if found is None else "differs"
                raise MetadataError(
                    f"the single document {state}: the consolidated metadata are stale",
                    remedy="Open with consolidated=False, and consolidate the store again",
                    key=consolidated_key,
                    place=key,
                )

    def _walk(self, documents: dict[str, Document]) -> None:
        root = self._parse_node("/", documents)
        if isinstance(root, BrokenNode):
            raise root.error
        self._add(root or GroupNode(path="/", explicit=False))
        groups = [node for node in self.nodes.values() if isinstance(node, GroupNode)]
        # Without documents of groups, only the arrays show what the store is.
        descend = self.subgroups or not self.zarr.has_groups
        while groups:
            paths = [
                path for group in groups for path in self._child_paths(group) if self._wanted(path)
            ]
            self._bound(len(self.nodes) + len(paths))
            found = self._parse(paths)
            for node in found:
                self._add(node)
            groups = [
                node
                for node in found
                if isinstance(node, GroupNode) and (descend or self._leads(node.path))
            ]

    def _parse(self, paths: Sequence[str]) -> list[Node]:
        """Fetch and parse the nodes at all paths in one wave; what is not there is left out."""
        keys = {path: self._node_keys(path) for path in paths}
        documents: dict[str, Document] = {}
        wanted = [key for names in keys.values() for key in names]
        if not self.store.remote:
            # Another wave costs nothing here: fetch a group's document only where no array's is.
            kinds = {
                self.zarr.document_key(path, "array"): self.zarr.document_key(path, "group")
                for path in paths
            }
            groups = {group for array, group in kinds.items() if group != array}
            documents = self._fetch(key for key in wanted if key not in groups)
            wanted = [group for array, group in kinds.items() if array not in documents]
            wanted = [key for key in wanted if key in groups]
        documents |= self._fetch(wanted)
        nodes = (
            self._parse_node(path, {key: documents[key] for key in names if key in documents})
            for path, names in keys.items()
        )
        return [node for node in nodes if node is not None]

    def _parse_node(self, path: str, documents: Mapping[str, Document]) -> Node | None:
        return self.zarr.parse_node(path, documents, limits=self.limits, parsed=self.parsed)

    def _child_paths(self, group: GroupNode) -> list[str]:
        listed = self.listed_children(group) or self._list_children(group)
        # Keys of a reference set can have empty names; "" would lead to the group itself again.
        names = [name for name in (*listed[0], *listed[1]) if name not in ("", ".", "..")]
        if group.path.count("/") >= self.limits.max_depth and names:
            raise self._too_deep(group.path)
        return list(dict.fromkeys(child_path(group.path, name) for name in names))

    def _list_children(self, group: GroupNode) -> Children:
        """List a group whose metadata name no children, with the sidecars that may do so."""
        try:
            listing = self.probed.list_names(self.zarr.listing_prefix(group.path))
        except (AccessDeniedError, UnsupportedError) as error:
            listed = self._children_in_sidecars(group)
            if listed is None:
                raise error.located(key=group.path) from error.__cause__
            return listed
        shown = {key_prefix(group.path) + name for name in listing.objects}
        # An index page that does not even show the group's own document hides sidecars too.
        own = self.zarr.node_keys(group.path)
        hiding = self.zarr.has_sidecars and group.explicit and shown.isdisjoint(own)
        if hiding or any(name in listing.objects for name in self.sidecars):
            listed = self._children_in_sidecars(group)
            if listed is not None:
                return listed
        return self.zarr.child_names(*listing), []

    def _children_in_sidecars(self, group: GroupNode) -> Children | None:
        self.with_sidecars = True
        (node,) = self._parse([group.path]) or [group]
        if not isinstance(node, GroupNode):
            return None
        self.nodes[group.path] = node
        return self.listed_children(node)

    def _node_keys(self, path: str) -> list[str]:
        keys = list(self.zarr.node_keys(path))
        if self.with_sidecars:
            keys += [key_prefix(path) + name for name in self.sidecars]
        return keys

    def _fetch(self, keys: Iterable[str]) -> dict[str, Document]:
        names = list(dict.fromkeys(keys))
        consolidated_keys = {zarr.consolidated_key for zarr in FORMATS.values()}
        waves = [(self.probed, names)]
        if not self.store.remote:  # where two waves cost no more, none reads what is too large
            single = self.store.bounded(self.limits.max_metadata_bytes)
            waves = [(self.store, [key for key in names if key in consolidated_keys])]
            waves.append((single, [key for key in names if key not in consolidated_keys]))
        found = {
            key: data
            for store, asked in waves
            for key, stored in zip(asked, store.fetch(asked), strict=True)
            if (data := self.before.get(key, stored)) is not None
        }
        if self.probed is not self.store:
            found = self._without_pages(found, asked=names)
        records = found.get(_RECORDS)
        if records is not None and is_record_document(records):
            raise RecordSetError(bytes(records))
        return {
            key: Document(key, data, limits=self.limits, consolidated=key in consolidated_keys)
            for key, data in found.items()
        }

    def _without_pages(self, found: dict[str, Bytes], asked: Sequence[str]) -> dict[str, Bytes]:
        """Return what was found but for the page by which a server answers for what is not there.

        That is the page it shows for the journal, of which there is hardly ever one. Any other page
        in place of a document, as one to sign in on, is an error: what is behind it may be needed.
        """
        pages = {key: page for key, data in found.items() if (page := page_in(data))}
        if pages and self.page_for_nothing is None and JOURNAL not in asked:
            self._fetch([JOURNAL])
        if JOURNAL in asked:
            self.page_for_nothing = bytes(found[JOURNAL]) if JOURNAL in pages else b""
        for key, page in pages.items():
            if found[key] != self.page_for_nothing:
                raise page_error("expected a document", page, key=key)
        return {key: data for key, data in found.items() if key not in pages}

    def _wanted(self, path: str) -> bool:
        """Tell the group asked for, what is in it, and the groups that it is in."""
        if self.group == "/":
            return True
        return f"{path}/".startswith(f"{self.group}/") or self._leads(path)

    def _leads(self, path: str) -> bool:
        """Tell the group asked for, and those that it is in."""
        return f"{self.group}/".startswith(f"{path}/")

    def _add(self, node: Node) -> None:
        if self._wanted(node.path) or node.path == "/":
            self.nodes[node.path] = node

    def break_replaced(self) -> None:
        """Break arrays whose names the file system took for one when they were put there.

        Metadata name both, but the files of one have replaced those of the other.
        """
        if self.store.remote or len({*map(plain_name, self.nodes)}) == len(self.nodes):
            return
        for _, folder, name, other in names_alike(path[1:] for path in self.nodes):
            group = f"/{folder}"
            listing = self.store.list_names(self.zarr.listing_prefix(group))
            if {name, other}.issubset(self.zarr.child_names(*listing)):
                continue
            paths = tuple(f"{child_path(group, each)}/" for each in (name, other))
            error = MetadataError(
                f"{quote(repr(name))} and {quote(repr(other))} are one name on this file system, "
                "and one has replaced the other",
                remedy="Copy the store again, to a file system that tells upper from lower case, "
                "to an object store or as a zip file",
            )
            for path, node in self.nodes.items():
                if isinstance(node, ArrayNode) and f"{path}/".startswith(paths):
                    self.nodes[path] = BrokenNode(
                        path=path, error=error, shape=node.shape, attributes=node.attributes
                    )

    def _bound(self, count: int) -> None:
        """Refuse more nodes than the limit."""
        if count > self.limits.max_nodes:
            raise LimitError(
                f"found more than {self.limits.max_nodes:,} nodes (max_nodes)",
                remedy="If you trust the store, open it with a larger max_nodes",
            )

    def _too_deep(self, path: str) -> LimitError:
        return LimitError(
            f"groups are nested more than {self.limits.max_depth} deep (max_depth)",
            remedy="If you trust the store, open it with a larger max_depth",
            place=path,
        )

    def _nothing_found(self, candidates: Sequence[Format]) -> NotFoundError:
        if self.probed is not self.store:  # where a page is in its place, this says so
            next(self.store.fetch(candidates[0].root_keys()[:1]))
        looked = ", ".join(dict.fromkeys(key for zarr in candidates for key in zarr.root_keys()))
        return NotFoundError(
            f"found no Zarr metadata (looked for {looked})",
            remedy="Check the path; a store within a store needs group=, an unfinished write "
            "has to be finished or removed",
        )

    def _not_consolidated(self, candidates: Sequence[Format]) -> NotFoundError:
        keys = ", ".join(filter(None, (zarr.consolidated_key for zarr in candidates)))
        return NotFoundError(
            f"found no consolidated metadata ({keys})",
            remedy="Open with consolidated=None or False, or consolidate the store",
        )
