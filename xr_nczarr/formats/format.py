"""Define `Format`, the common interface to the documents and keys of every Zarr version.

The groups and arrays of a store, parsed by its `Format`, form a `Hierarchy`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple

from xr_nczarr.errors import ErrorContext, NczarrError, UnsupportedError, quote
from xr_nczarr.formats.documents import Document, render_json
from xr_nczarr.model import (
    DEFAULT_LIMITS,
    ArrayNode,
    BrokenNode,
    ChunkKeys,
    CodecSpec,
    GroupNode,
    Json,
    Limits,
    Node,
    check_chunk_size,
    key_prefix,
)

NodeKind = Literal["array", "group"]


@dataclass(slots=True)
class Parsing:
    """The inputs and intermediate results of parsing one node (a group or an array).

    Attributes
    ----------
    document
        The document that defines the node as an array or a group.
    documents
        All documents of the node, by key.
    parsed
        Cache of parsed arrays; see `Format.parse_node`.
    fields
        Fields of the node that have been parsed so far. The BrokenNode gets them if parsing fails.
    """

    path: str
    kind: NodeKind
    document: Document
    documents: Mapping[str, Document]
    parsed: dict[Hashable, ArrayNode]
    fields: dict[str, Any] = field(default_factory=dict)


class Change(NamedTuple):
    """A new value for one member of a node's metadata.

    `holder` is the field of `node` that contains the member: ``"attributes"``, ``"members"`` or
    ``"sidecars"``. `member` lists the nested names that lead to the member, starting from this
    field.
    """

    node: Node
    holder: str
    member: tuple[str, ...]
    value: Json


class Format(ABC):
    """The documents, keys and features of a Zarr version.

    Attributes
    ----------
    version
        Name of the version: ``"1"``, ``"2"``, ``"3-draft"`` or ``"3"``.
    consolidated_key
        Key of the consolidated metadata, or None if the version has no such metadata.
    consolidated_by_default
        Whether new stores get consolidated metadata by default.
    is_rare
        Whether the version is rare. Stores are checked for rare versions last.
    has_groups
        Whether groups have documents of their own.
    implies_groups
        Whether a directory without documents is a group.
    has_filters
        Whether an array can have codecs other than a single compressor.
    has_shards
        Whether the version supports shards and rectilinear chunk grids.
    has_sidecars
        Whether a node can have additional hidden documents (sidecars), as in netCDF-C 4.8.0.
    has_dimension_names
        Whether an array's document can name the array's dimensions.
    mixes_byte_orders
        Whether the fields of a structured type can differ in byte order.
    requires_fill_value
        Whether every array must have a fill value, even if no values are missing.
    separates_attributes
        Whether a node's attributes are stored in a separate document.
    separates_compressor
        Whether an array's document has separate members for compressor, filters and memory order.
    chunk_key_encodings
        Names of the encodings that `chunk_keys` accepts.
    deflate
        Name of the DEFLATE codec that readers of this version support: ``"zlib"`` or ``"gzip"``.
    """

    version: ClassVar[str]
    consolidated_key: ClassVar[str | None] = None
    consolidated_by_default: ClassVar[bool] = False
    is_rare: ClassVar[bool] = False
    has_groups: ClassVar[bool] = True
    implies_groups: ClassVar[bool] = False
    has_filters: ClassVar[bool] = True
    has_shards: ClassVar[bool] = False
    has_sidecars: ClassVar[bool] = False
    has_dimension_names: ClassVar[bool] = False
    mixes_byte_orders: ClassVar[bool] = False
    requires_fill_value: ClassVar[bool] = True
    separates_attributes: ClassVar[bool] = False
    separates_compressor: ClassVar[bool] = False
    chunk_key_encodings: ClassVar[tuple[str, ...]] = ()
    deflate: ClassVar[str] = "gzip"

    @abstractmethod
    def node_keys(self, path: str) -> tuple[str, ...]:
        """Return the keys of all documents that the node at `path` can have."""

    def root_keys(self) -> tuple[str, ...]:
        """Return the keys that identify a store of this version.

        They are listed in reverse write order: the document with the first key is written last.
        """
        consolidated = () if self.consolidated_key is None else (self.consolidated_key,)
        return tuple(dict.fromkeys((*consolidated, *self.node_keys("/"))))

    def document_key(self, path: str, kind: NodeKind) -> str:
        """Return the key of a node's main document, which defines it as an array or a group."""
        return self.node_keys(path)[0]

    def attributes_key(self, path: str) -> str | None:
        """Return the key of a node's attributes, or None if they are part of the main document."""
        return self.node_keys(path)[-1] if self.separates_attributes else None

    def locate(self, change: Change) -> tuple[str, tuple[str, ...]]:
        """Return the location of the changed member in the stored documents.

        The location is the key of the document that contains the member, and the sequence of nested
        names that leads to the member.
        """
        node, member = change.node, change.member
        if change.holder == "sidecars":
            return key_prefix(node.path) + member[0], member[1:]
        document = self.document_key(node.path, "group" if isinstance(node, GroupNode) else "array")
        if change.holder == "members":
            return document, member
        key = self.attributes_key(node.path)
        return (document, ("attributes", *member)) if key is None else (key, member)

    @abstractmethod
    def chunk_keys(self, path: str, *, encoding: str = "", separator: str = "") -> ChunkKeys:
        """Return the mapping from chunk indices to keys for the array at `path`.

        `encoding` is one of `chunk_key_encodings`. An empty `encoding` or `separator` selects this
        version's default.
        """

    def listing_prefix(self, path: str) -> str:
        """Return the key prefix under which the children of the group at `path` are listed."""
        return key_prefix(path)

    def child_names(self, objects: list[str], prefixes: list[str]) -> list[str]:
        """Return the listed names that could be the names of a group's children.

        `objects` and `prefixes` are the names of the objects and folders that were listed under
        `listing_prefix`.
        """
        return prefixes

    def node_path(self, folder: str) -> str | None:
        """Return the path of the node to which the keys in `folder` belong.

        Return None if the keys in this folder can belong to several nodes.
        """
        return f"/{folder}"

    @abstractmethod
    def recognizes(self, documents: Mapping[str, Document], path: str = "/") -> bool:
        """Return whether the documents of a node belong to this version."""

    def resolved(
        self,
        documents: Mapping[str, Document],
        *,
        data_type_fallback: bool = False,
    ) -> Format:
        """Return the variant of this format that a store uses, based on its root documents.

        Only the draft of Zarr v3 has several variants. If `data_type_fallback` is True, the
        returned variant of the draft reads an unknown data type as the fallback type that the array
        declares.
        """
        return self

    def parse_node(
        self,
        path: str,
        documents: Mapping[str, Document],
        *,
        limits: Limits = DEFAULT_LIMITS,
        parsed: dict[Hashable, ArrayNode] | None = None,
    ) -> Node | None:
        """Parse the node at `path`, or return None if `documents` contains no such node.

        If the version has implied groups, return a group instead of None. If a document is invalid,
        return a BrokenNode instead of raising an error. `parsed` is a cache of arrays, keyed by the
        content of their documents. It saves time if many arrays have equal documents. Newly parsed
        arrays are added to this cache.
        """
        kind: NodeKind = "array"
        document = documents.get(self.document_key(path, kind))
        if document is None:
            kind = "group"
            document = documents.get(self.document_key(path, kind))
        if document is None:
            return GroupNode(path=path, explicit=False) if self.implies_groups else None
        parsing = Parsing(path, kind, document, documents, {} if parsed is None else parsed)
        try:
            node = self._parse(parsing)
            if isinstance(node, ArrayNode):
                parsing.fields["shape"] = node.shape
                decoded_shards = (shard.shape for shard in node.shards if shard.codecs)
                for shape in (node.chunk_shape, *decoded_shards):
                    check_chunk_size(shape, node.dtype, limits)
            return node
        except NczarrError as error:
            error.add_context(key=document.key)
            return BrokenNode(path=path, error=error, **parsing.fields)

    @abstractmethod
    def _parse(self, parsing: Parsing) -> ArrayNode | GroupNode:
        """Parse the array or group that `parsing` describes.

        Record each field in `parsing.fields` as soon as it is parsed, in case a later field is
        invalid.
        """

    def render_node(self, node: Node) -> dict[str, bytes]:
        """Render the documents of a node as a dict mapping keys to bytes, in write order.

        Raises
        ------
        UnsupportedError
            If this version cannot represent the node, or is read-only.
        NczarrError
            If the node is a BrokenNode. The error raised is the node's `error`.
        """
        if isinstance(node, BrokenNode):
            raise node.error
        self.check_writable()
        if isinstance(node, ArrayNode):
            self._check_features(node)
        return {key: render_json(value) for key, value in self._render(node).items()}

    def _check_features(self, node: ArrayNode) -> None:
        """Raise UnsupportedError if this Zarr version does not support a feature of an array."""
        keys, separator = node.chunk_keys, node.chunk_keys.separator
        storable = [
            self.chunk_keys(node.path, encoding=encoding, separator=separator)
            for encoding in self.chunk_key_encodings or ("",)
        ]
        features = {
            "shards": bool(node.shards) and not self.has_shards,
            "a rectilinear grid": bool(node.chunk_runs) and not self.has_shards,
            f"chunk keys such as {quote(keys.key((0, 0)))}": keys not in storable
            or separator not in (".", "/"),
        }
        for feature, is_unsupported in features.items():
            if is_unsupported:
                raise UnsupportedError(
                    f"Zarr v{self.version} does not support {feature}", variable=node.path
                )

    def check_writable(self) -> None:
        """Raise UnsupportedError if stores of this version, or of this variant, are read-only."""

    @abstractmethod
    def _render(self, node: ArrayNode | GroupNode) -> dict[str, Json]:
        """Return a dict mapping a node's keys to the JSON of its documents, in write order."""

    def expand_consolidated(self, documents: Mapping[str, Document]) -> dict[str, Document] | None:
        """Split consolidated metadata into a dict mapping keys to documents.

        `documents` maps keys to the documents of the root node. Return None if they do not include
        consolidated metadata.

        Raises
        ------
        MetadataError
            If the consolidated metadata is invalid.
        """
        document = documents.get(self.consolidated_key or "")
        if document is None:
            return None
        with ErrorContext(key=document.key):
            return self._expand_consolidated(document)

    def _expand_consolidated(self, document: Document) -> dict[str, Document] | None:
        """Return the documents in consolidated metadata by key, or None if there are none."""
        return None

    def render_consolidated(self, documents: Mapping[str, bytes]) -> dict[str, bytes]:
        """Render the consolidated metadata of a store.

        `documents` contains the rendered documents of all nodes, by key. The result contains the
        rendered consolidated metadata, by key. It is empty if this version has no consolidated
        metadata.
        """
        return {}

    def complete(
        self, specs: Sequence[CodecSpec], kind_of: Callable[[str], str | None]
    ) -> tuple[CodecSpec, ...]:
        """Return a codec chain extended with the codecs that this Zarr version requires.

        `kind_of` returns ``"array-array"``, ``"array-bytes"`` or ``"bytes-bytes"`` for the name of
        a codec from another package, and None for any other name.
        """
        return tuple(specs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """All groups and arrays in a store. Parents come before their children.

    Attributes
    ----------
    nodes
        Mapping from paths to nodes. The path of the root is ``"/"``.
    zarr
        The Zarr version of the store, including the variant if the version has several.
    consolidated
        Whether the nodes were read from consolidated metadata.
    previous_objects
        Objects that an unfinished write has changed, by key. The values are the bytes before the
        write, or None for an object that did not exist. Readers use them instead of the stored
        bytes. The mapping is empty if no chunks were changed.
    documents
        Metadata documents by key. None stands for a missing document. The mapping is empty unless
        the store was opened for writing.
    """

    nodes: Mapping[str, Node]
    zarr: Format
    consolidated: bool = False
    previous_objects: Mapping[str, bytes | None] = field(default_factory=dict)
    documents: Mapping[str, bytes | bytearray | memoryview | None] = field(
        default_factory=dict, repr=False
    )
