"""Find the groups and arrays of a store in as few round trips as its metadata allows."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from xr_nczarr.errors import (
    AccessDeniedError,
    ErrorContext,
    LimitError,
    MetadataError,
    NczarrError,
    NotFoundError,
    RefusedError,
    UnsupportedError,
    quote,
)
from xr_nczarr.formats import FORMATS, Format
from xr_nczarr.formats.documents import Document
from xr_nczarr.formats.format import Hierarchy, NodeKind
from xr_nczarr.hierarchy.fetching import DocumentSource, can_assume_missing, denied_error
from xr_nczarr.hierarchy.journal import JOURNAL, UNFINISHED, has_chunks, parse_journal
from xr_nczarr.model import (
    DEFAULT_LIMITS,
    ArrayNode,
    BrokenNode,
    Consolidated,
    GroupNode,
    Limits,
    Node,
    child_path,
    is_within,
    key_prefix,
    node_name,
    parent_path,
    paths_above,
)
from xr_nczarr.storage import Listing, RolledBackStore, Store, fold_name, name_collisions

Kinds = Mapping[str, NodeKind | None]
"""Mapping of the names or paths of nodes to their kinds, or to None if a kind is unknown."""

_MAX_PROBED = 100  # maximum number of directories to search for an array


@dataclass(frozen=True, slots=True, kw_only=True)
class HierarchyOptions:
    """Options for reading the metadata of a store.

    Attributes
    ----------
    zarr_format
        A key of `FORMATS`, or None to detect the version.
    consolidated
        True reads only the consolidated metadata, and False only the metadata of each node. None
        reads the consolidated metadata if it exists, and otherwise the metadata of each node.
        ``"check"`` reads both, and raises an error if they differ.
    group
        Absolute path of the group to read. The metadata of its ancestors is read too.
    subgroups
        Whether to read the subgroups of `group` as well.
    listed_children
        Function that takes a group, and returns the names and kinds of the children that its
        metadata lists. The function returns None if there is no such list. NCZarr metadata, for
        example, lists children.
    sidecars
        Names of additional documents that a convention stores next to a node's documents.
    with_sidecars
        Whether to read the sidecars of every node. If False, they are read only where they are
        needed to find the children of a group.
    consolidated_first
        Whether consolidated metadata may be fetched before all other documents. This saves requests
        if most stores in a remote folder have consolidated metadata.
    data_type_fallback
        Whether to read an unknown extension type of the v3 draft as its fallback type.
    limits
        Limits on the size of the metadata.
    """

    zarr_format: str | None = None
    consolidated: Consolidated = None
    group: str = "/"
    subgroups: bool = True
    listed_children: Callable[[GroupNode], Kinds | None] = lambda _: None
    sidecars: Sequence[str] = ()
    with_sidecars: bool = False
    consolidated_first: bool = False
    data_type_fallback: bool = False
    limits: Limits = DEFAULT_LIMITS


def open_hierarchy(store: Store, options: HierarchyOptions) -> Hierarchy:
    """Read the metadata of all groups and arrays in a store.

    One batch of concurrent requests determines the Zarr version and reads the root. With
    consolidated metadata, no further requests are needed. Otherwise, each level of groups takes one
    more batch. If a group's metadata does not list the group's children, the store is listed first.

    Raises
    ------
    NotFoundError
        If the store has no metadata, or if consolidated metadata is required but missing.
    MetadataError
        If the root is damaged, or if ``options.consolidated`` is ``"check"`` and the consolidated
        metadata is stale.
    RecordSetError
        If the store is the folder of a parquet reference set.
    """
    with ErrorContext(store=store.name):
        search = _Search(store, options)
        hierarchy = search.run()
        search.mark_overwritten()
        return hierarchy


@dataclass
class _Search:
    """The state of one `open_hierarchy` call."""

    store: Store
    options: HierarchyOptions
    nodes: dict[str, Node] = field(default_factory=dict)
    replaced: Mapping[str, bytes | None] = field(default_factory=dict)
    parsed: dict[Hashable, ArrayNode] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.source = DocumentSource(self.store, self.options.limits)
        self.with_sidecars = self.options.with_sidecars

    def run(self) -> Hierarchy:
        version = self.options.zarr_format
        candidates = list(FORMATS.values()) if version is None else [FORMATS[version]]
        consolidated = None if self.store.consolidated else self.options.consolidated
        if consolidated in (None, True) and not self.store.supports_consolidated:
            consolidated = False
        if consolidated is True:
            return self._consolidated_only(candidates)
        documents, zarr = self._recognize(candidates, consolidated=consolidated is not False)
        journal = documents.pop(JOURNAL, None)
        self.zarr = zarr.resolved(documents, data_type_fallback=self.options.data_type_fallback)
        # A variant of the format may store the root's documents under other keys.
        if self.zarr != zarr or self.with_sidecars:
            documents |= self.source.fetch(
                key for key in self._node_keys("/") if key not in documents
            )
        if journal is not None and (
            has_chunks(journal)
            or consolidated is False
            or self.zarr.expand_consolidated(documents) is None
        ):
            interrupted = parse_journal(journal)
            stored = self.source.probed.fetch(interrupted.keys)
            before = interrupted.contents_to_restore(stored) or {}
            self.source = replace(self.source, store=RolledBackStore(self.store, before))
            self.replaced = before if interrupted.chunks else {}
            documents = self.source.fetch(documents)
        if consolidated is not False:
            members = self.zarr.expand_consolidated(documents)
            if members is not None:
                if consolidated == "check":
                    self._check(members)
                return self._from_documents(members)
            if consolidated == "check":
                raise self._not_consolidated([zarr])
        self._walk(documents)
        if not zarr.has_groups and not any(isinstance(n, ArrayNode) for n in self.nodes.values()):
            raise self._nothing_found(candidates)
        return Hierarchy(nodes=self.nodes, zarr=self.zarr, previous_objects=self.replaced)

    def _recognize(
        self, candidates: Sequence[Format], *, consolidated: bool
    ) -> tuple[dict[str, Document], Format]:
        documents: dict[str, Document] = {}
        usual = [zarr for zarr in candidates if not zarr.is_rare]
        # Rare versions are tried one by one, because "meta" is a document in v1, but a directory in
        # the v3 draft.
        for batch in (usual, *([zarr] for zarr in candidates if zarr.is_rare)):
            keys = [key for zarr in batch for key in zarr.root_keys() if key not in documents]
            denied: dict[str, AccessDeniedError] = {}
            if batch is usual:
                keys.append(JOURNAL)
            if batch is usual and consolidated:
                documents = self.source.fetch_root(
                    candidates, keys, denied, consolidated_first=self.options.consolidated_first
                )
            else:
                documents |= self.source.fetch(keys, denied)
            if denied and not can_assume_missing(documents, candidates, consolidated):
                raise denied_error(denied, keys)
            for zarr in batch:
                if zarr.recognizes(documents):
                    return documents, zarr
        for zarr in candidates:
            if not zarr.has_groups and (len(candidates) == 1 or self._has_arrays(zarr)):
                return documents, zarr
        raise self._nothing_found(candidates)

    def _has_arrays(self, zarr: Format) -> bool:
        try:
            listing = self.source.probed.list_names("")
        except UnsupportedError:
            return False
        paths = [f"/{name}" for name in zarr.child_names(*listing)[:_MAX_PROBED]]
        documents = self.source.fetch(zarr.document_key(path, "array") for path in paths)
        return any(zarr.recognizes(documents, path) for path in paths)

    def _consolidated_only(self, candidates: Sequence[Format]) -> Hierarchy:
        denied: dict[str, AccessDeniedError] = {}
        keys = filter(None, (zarr.consolidated_key for zarr in candidates))
        documents = self.source.fetch(keys, denied)
        for zarr in candidates:
            self.zarr = zarr
            members = zarr.expand_consolidated(documents)
            if members is not None:
                return self._from_documents(members)
        for error in denied.values():
            raise error
        raise self._not_consolidated(candidates)

    def _from_documents(self, documents: dict[str, Document]) -> Hierarchy:
        by_path: dict[str, dict[str, Document]] = {"/": {}}
        for key, document in documents.items():
            path = "/" + key.rpartition("/")[0]
            if path in by_path or self._wanted(path):
                by_path.setdefault(path, {})[key] = document
        for path in list(by_path):
            if path.count("/") > self.options.limits.max_depth:
                raise self._too_deep(path)
            while (path := parent_path(path)) not in by_path:
                by_path[path] = {}
        self._check_count(len(by_path))
        for path in sorted(by_path, key=lambda path: path.count("/")):  # "/" stays first
            node = self._parse_node(path, by_path[path])
            self.nodes[path] = node or GroupNode(path=path, explicit=False)
        return Hierarchy(
            nodes=self.nodes,
            zarr=self.zarr,
            consolidated=True,
            previous_objects=self.replaced,
        )

    def _check(self, members: dict[str, Document]) -> None:
        single = self.source.fetch(members)
        consolidated_key = self.zarr.consolidated_key
        for key, document in members.items():
            stored = single.get(key)
            if stored is None or stored.value != document.value:
                state = "is missing from the store" if stored is None else "has changed"
                raise MetadataError(
                    f"the consolidated metadata is stale: {quote(key)} {state}",
                    remedy="Open the store with consolidated=False, or consolidate it again",
                    key=consolidated_key,
                    place=key,
                )

    def _walk(self, documents: dict[str, Document]) -> None:
        root = self._parse_node("/", documents)
        if isinstance(root, BrokenNode):
            raise root.error
        self.nodes["/"] = root or GroupNode(path="/", explicit=False)
        groups = [node for node in self.nodes.values() if isinstance(node, GroupNode)]
        # If groups can exist without documents, only a listing shows whether a group exists.
        if groups and self.options.group != "/" and not self.zarr.implies_groups:
            groups = self._descend(groups[0])
        # If groups never have documents, a store can be recognized only by its arrays.
        descend = self.options.subgroups or not self.zarr.has_groups
        while groups:
            kinds = {path: kind for path, kind in self._children(groups) if self._wanted(path)}
            self._check_count(len(self.nodes) + len(kinds))
            nodes = self._parse(kinds)
            self.nodes |= nodes
            groups = [
                node
                for node in nodes.values()
                if isinstance(node, GroupNode)
                and (descend or is_within(self.options.group, node.path))
            ]

    def _descend(self, root: GroupNode) -> list[GroupNode]:
        """Read the groups on the path to the requested group, without listing the store.

        Return a list that contains only the requested group, or an empty list if it does not exist.
        """
        paths = paths_above(self.options.group)[:-1]
        if len(paths) > self.options.limits.max_depth:
            raise self._too_deep(paths[0])
        nodes = self._parse(dict.fromkeys(paths))
        if self.options.group not in nodes:
            return []
        parent = root
        for path in reversed(paths):
            # Ancestors need no metadata document. If one lists its children, it must list the next
            # group on the path.
            listed = self.options.listed_children(parent)
            node = nodes.get(path) or GroupNode(path=path, explicit=False)
            if listed is not None and listed.get(node_name(path), "array") == "array":
                return []
            self.nodes[path] = node
            if not isinstance(node, GroupNode):
                return []
            parent = node
        return [parent]

    def _parse(self, kinds: Kinds) -> dict[str, Node]:
        """Fetch and parse the nodes at the paths in `kinds`, omitting paths without a node."""
        local = not self.store.remote
        first: NodeKind | None = "array" if local else None
        # Stores reject keys with a backslash, because it is a path separator on some systems.
        broken = {path: _backslash_node(path) for path in kinds if "\\" in path}
        kinds = {path: kind for path, kind in kinds.items() if path not in broken}
        keys = {path: self._node_keys(path, kind or first) for path, kind in kinds.items()}
        documents = self.source.fetch(key for names in keys.values() for key in names)
        if local:
            # A second batch is cheap here: fetch group documents only for paths without an array.
            groups = {
                path: self.zarr.document_key(path, "group")
                for path, kind in kinds.items()
                if kind is None and self.zarr.document_key(path, "array") not in documents
            }
            documents |= self.source.fetch(groups.values())
            for path, key in groups.items():
                keys[path].append(key)
        nodes: dict[str, Node | None] = {**broken}
        nodes |= {
            path: self._parse_node(path, {key: documents[key] for key in names if key in documents})
            for path, names in keys.items()
        }
        return {path: node for path, node in nodes.items() if node is not None}

    def _parse_node(self, path: str, documents: Mapping[str, Document]) -> Node | None:
        return self.zarr.parse_node(path, documents, limits=self.options.limits, parsed=self.parsed)

    def _children(self, groups: Sequence[GroupNode]) -> Iterator[tuple[str, NodeKind | None]]:
        """Yield the path and the kind (None if unknown) of each child of the groups.

        Raise AccessDeniedError or UnsupportedError if a necessary listing fails.
        """
        unlisted = [group for group in groups if self.options.listed_children(group) is None]
        listings = list(self.source.probed.map_concurrently(self._listing, unlisted))
        by_path = {group.path: answer for group, answer in zip(unlisted, listings, strict=True)}
        # Sidecars may list the children too.
        if not self.with_sidecars and any(map(self._may_have_sidecars, unlisted, listings)):
            groups = self._with_sidecars(groups)
        for group in groups:
            kinds = self.options.listed_children(group)
            if kinds is None:
                listing = by_path[group.path]
                if isinstance(listing, NczarrError):
                    raise listing.add_context(key=group.path) from listing.__cause__
                kinds = dict.fromkeys(self.zarr.child_names(*listing))
            for name, kind in kinds.items():
                # Keys in a reference set can contain empty names, but "" would refer to the group
                # itself.
                if name in ("", ".", ".."):
                    continue
                if group.path.count("/") >= self.options.limits.max_depth:
                    raise self._too_deep(group.path)
                yield child_path(group.path, name), kind

    def _listing(self, group: GroupNode) -> Listing | NczarrError:
        try:
            return self.source.probed.list_names(self.zarr.listing_prefix(group.path))
        except (AccessDeniedError, UnsupportedError) as error:
            return error

    def _may_have_sidecars(self, group: GroupNode, listing: Listing | NczarrError) -> bool:
        """Return whether a group may have sidecars, given the listing of its folder."""
        if not self.zarr.has_sidecars or isinstance(listing, NczarrError):
            return self.zarr.has_sidecars
        if any(name in listing.objects for name in self.options.sidecars):
            return True
        # A listing (such as an HTML index page) that omits the group's own document may also omit
        # the group's sidecars.
        listed_keys = {key_prefix(group.path) + name for name in listing.objects}
        return group.explicit and listed_keys.isdisjoint(self.zarr.node_keys(group.path))

    def _with_sidecars(self, groups: Sequence[GroupNode]) -> list[GroupNode]:
        """Read the sidecars of all groups found so far, and return `groups` with their sidecars."""
        self.with_sidecars = True
        found = [path for path, node in self.nodes.items() if isinstance(node, GroupNode)]
        self.nodes |= self._parse(dict.fromkeys(found, "group"))
        nodes = [self.nodes[group.path] for group in groups]
        return [node for node in nodes if isinstance(node, GroupNode)]

    def _node_keys(self, path: str, kind: NodeKind | None = None) -> list[str]:
        """Return all keys at which a node can have documents, given its kind if known."""
        keys = list(self.zarr.node_keys(path))
        if kind is not None:
            other_key = self.zarr.document_key(path, "group" if kind == "array" else "array")
            if other_key != self.zarr.document_key(path, kind):
                keys.remove(other_key)
        if self.with_sidecars:
            keys += [key_prefix(path) + name for name in self.options.sidecars]
        return keys

    def _wanted(self, path: str) -> bool:
        """Return whether `path` is the requested group, or an ancestor or descendant of it."""
        return is_within(path, self.options.group) or is_within(self.options.group, path)

    def mark_overwritten(self) -> None:
        """Replace arrays with broken nodes if one array has overwritten the files of another."""
        if self.store.remote or len({*map(fold_name, self.nodes)}) == len(self.nodes):
            return
        # Some file systems do not distinguish names such as "a" and "A". The metadata can then
        # contain both names, although the file system contains only one of them.
        for _, folder, name, other in name_collisions(path[1:] for path in self.nodes):
            group = f"/{folder}"
            listing = self.store.list_names(self.zarr.listing_prefix(group))
            if {name, other}.issubset(self.zarr.child_names(*listing)):
                continue
            paths = tuple(f"{child_path(group, alias)}/" for alias in (name, other))
            error = MetadataError(
                f"this file system does not distinguish {quote(repr(name))} from "
                f"{quote(repr(other))}, so one has overwritten the other",
                remedy="Copy the store again to a case-sensitive file system, an object store or "
                "a zip file",
            )
            for path, node in self.nodes.items():
                if isinstance(node, ArrayNode) and f"{path}/".startswith(paths):
                    self.nodes[path] = BrokenNode(
                        path=path,
                        error=error,
                        shape=node.shape,
                        attributes=node.attributes,
                        dimension_names=node.dimension_names,
                    )

    def _check_count(self, count: int) -> None:
        if count > self.options.limits.max_nodes:
            raise LimitError(
                f"the store has more than {self.options.limits.max_nodes:,} nodes (max_nodes)",
                remedy="If you trust the store, pass limits=Limits(max_nodes=…)",
            )

    def _too_deep(self, path: str) -> LimitError:
        return LimitError(
            f"groups are nested more than {self.options.limits.max_depth} levels deep (max_depth)",
            remedy="If you trust the store, pass limits=Limits(max_depth=…)",
            place=path,
        )

    def _nothing_found(self, candidates: Sequence[Format]) -> NotFoundError:
        if self.source.page_for_missing:  # raise an error that shows the page
            next(self.store.fetch(candidates[0].root_keys()[:1]))
        (mark,) = self.store.fetch([UNFINISHED])
        if mark is not None:
            return NotFoundError(
                "the store is incomplete because a write was interrupted",
                remedy="Rerun the same write or copy to complete the store, or remove the store",
            )
        keys = ", ".join(dict.fromkeys(zarr.root_keys()[0] for zarr in candidates))
        is_empty = not self.store.remote and not any(self.store.list_names(""))
        return NotFoundError(
            f"no Zarr metadata found ({'the store is empty' if is_empty else 'tried ' + keys})",
            remedy="Check the path. To open a group, pass the path of the store, and the path of "
            "the group as group=",
        )

    def _not_consolidated(self, candidates: Sequence[Format]) -> NotFoundError:
        keys = ", ".join(filter(None, (zarr.consolidated_key for zarr in candidates)))
        return NotFoundError(
            f"no consolidated metadata found (tried {keys})",
            remedy="Consolidate the store, or open it with consolidated=None or consolidated=False",
        )


def _backslash_node(path: str) -> BrokenNode:
    """Return a broken node for a path that contains a backslash."""
    error = RefusedError(
        f"the path {quote(repr(path))} contains a backslash",
        remedy="Rename the variable or group with the program that wrote it",
    )
    return BrokenNode(path=path, error=error)
