"""Define the interface of all Zarr versions, which other packages use for documents and keys."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from xr_nczarr.errors import NczarrError
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
    key_prefix,
)

NodeKind = Literal["array", "group"]


@dataclass(slots=True)
class Parsing:
    """The input and the intermediate results of parsing one group or array.

    Attributes
    ----------
    key
        Key of the document that defines the node as an array or a group.
    documents
        All documents of the node by their keys.
    parsed
        Cache of parsed arrays; see `Format.parse_node`.
    fields
        Fields of the node that have been parsed so far. If parsing fails, the BrokenNode keeps
        them.
    """

    path: str
    kind: NodeKind
    key: str
    documents: Mapping[str, Document]
    limits: Limits
    parsed: dict[Hashable, ArrayNode]
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def document(self) -> Document:
        """The document that defines the node as an array or a group."""
        return self.documents[self.key]


class Format(ABC):
    """A Zarr version: its documents, its keys and its features.

    Attributes
    ----------
    version
        Name of the version, as in `Hierarchy.zarr_format`.
    consolidated_key
        Key of the consolidated metadata, or None if the version has no such metadata.
    consolidated_by_default
        Whether a new store has consolidated metadata unless the caller declines them.
    is_rare
        Whether a store is checked for this version only after all others were ruled out.
    has_variants
        Whether the version has variants with different keys, between which `resolved` chooses.
    has_groups
        Whether groups have documents.
    implies_groups
        Whether a directory without documents is a group.
    has_filters
        Whether an array can have codecs other than one compressor.
    has_shards
        Whether a stored object can contain several chunks.
    has_sidecars
        Whether a node can have additional hidden documents, such as those of netcdf-c 4.8.0.
    has_dimension_names
        Whether the document of an array can name the array's dimensions.
    mixes_byte_orders
        Whether the fields of a structured type can differ in byte order.
    requires_fill_value
        Whether every array must have a fill value, which therefore does not indicate missing
        values.
    separates_attributes
        Whether a node's attributes are stored in a separate document.
    separates_compressor
        Whether the compressor, the filters and the memory order are separate members.
    chunk_key_encodings
        Names of the encodings that `chunk_keys` accepts.
    deflate
        Name of the DEFLATE codec that readers of this version support.
    """

    version: ClassVar[str]
    consolidated_key: ClassVar[str | None] = None
    consolidated_by_default: ClassVar[bool] = False
    is_rare: ClassVar[bool] = False
    has_variants: ClassVar[bool] = False
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
        """Return the keys of all documents that a node can have."""

    def root_keys(self) -> tuple[str, ...]:
        """Return the keys by which a store is recognized, in the reverse order of writing."""
        consolidated = () if self.consolidated_key is None else (self.consolidated_key,)
        return tuple(dict.fromkeys((*consolidated, *self.node_keys("/"))))

    def document_key(self, path: str, kind: NodeKind) -> str:
        """Return the key of a node's main document, which defines it as an array or a group."""
        return self.node_keys(path)[0]

    def attributes_key(self, path: str) -> str | None:
        """Return the key of a node's attributes, or None if they are part of the main document."""
        return self.node_keys(path)[-1] if self.separates_attributes else None

    @abstractmethod
    def chunk_keys(self, path: str, *, encoding: str = "", separator: str = "") -> ChunkKeys:
        """Return the keys of an array's chunks.

        `encoding` is one of `chunk_key_encodings`. An empty `encoding` or `separator` selects the
        default of the version.
        """

    def listing_prefix(self, path: str) -> str:
        """Return the prefix to list in order to find the children of a group."""
        return key_prefix(path)

    def child_names(self, objects: list[str], prefixes: list[str]) -> list[str]:
        """Return possible names of a group's children, given a listing of `listing_prefix`.

        `objects` and `prefixes` are the names of the listed objects and common prefixes.
        """
        return prefixes

    def node_path(self, folder: str) -> str | None:
        """Return the path of the node with keys in `folder`, or None if nodes share the folder."""
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
        """Return the variant of this format to which the root documents of a store belong.

        With `data_type_fallback`, the variant reads unknown data types as their fallback types, if
        the version defines fallback types.
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
        """Parse the node at `path`, or return None if there is no node.

        If a document is invalid, the result is a BrokenNode. `parsed` caches arrays by the content
        of their document, because many arrays have equal documents. It is extended in place.
        """
        kind: NodeKind = "array"
        key = self.document_key(path, kind)
        if key not in documents:
            kind = "group"
            key = self.document_key(path, kind)
        if key not in documents:
            return GroupNode(path=path, explicit=False) if self.implies_groups else None
        parsing = Parsing(path, kind, key, documents, limits, {} if parsed is None else parsed)
        try:
            return self._parse(parsing)
        except NczarrError as error:
            return BrokenNode(path=path, error=error.located(key=key), **parsing.fields)

    @abstractmethod
    def _parse(self, parsing: Parsing) -> ArrayNode | GroupNode:
        """Parse the array or group.

        Fields are recorded in `parsing.fields` one by one, so that they are not lost if a later
        field is invalid.
        """

    def render_node(self, node: Node) -> dict[str, bytes]:
        """Render the documents of a node by key, in the order of writing.

        Raises
        ------
        UnsupportedError
            If the version cannot express the node.
        NczarrError
            If the node is a BrokenNode, whose error is raised.
        """
        if isinstance(node, BrokenNode):
            raise node.error
        return {key: render_json(value) for key, value in self._render(node).items()}

    @abstractmethod
    def _render(self, node: ArrayNode | GroupNode) -> dict[str, Json]:
        """Return the JSON values of a node's documents by key, in the order of writing."""

    def expand_consolidated(self, document: Document) -> dict[str, Document] | None:
        """Return the documents in consolidated metadata by key.

        Returns None if `document` does not contain consolidated metadata.
        """
        return None

    def render_consolidated(self, documents: Mapping[str, bytes]) -> dict[str, bytes]:
        """Render the consolidated metadata of the given documents.

        Returns a dict with one key, or an empty dict if the version has no consolidated metadata.
        """
        return {}

    def complete(
        self, specs: Sequence[CodecSpec], kind_of: Callable[[str], str | None]
    ) -> tuple[CodecSpec, ...]:
        """Add the codecs that the version requires to a codec chain.

        `kind_of` maps the names of codecs from other packages to ``array-array``, ``array-bytes``
        or ``bytes-bytes``, and all other names to None.
        """
        return tuple(specs)
