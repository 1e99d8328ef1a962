"""The interface of a Zarr version: documents, keys and abilities, as the class `Format`."""

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
    """A node that is being parsed.

    Attributes
    ----------
    key
        Key of the document that makes the node an array or a group.
    documents
        All documents of the node by their keys.
    parsed
        See `Format.parse_node`.
    fields
        The fields of the node that are parsed so far. A BrokenNode keeps them.
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
        """The document that makes the node an array or a group."""
        return self.documents[self.key]


class Format(ABC):
    """The documents, keys and abilities of one Zarr version.

    Attributes
    ----------
    version
        The version as `Hierarchy.zarr_format` holds it.
    consolidated_key
        Key of the document that may hold all others; None for a version without one.
    consolidated_by_default
        Whether a new store gets consolidated metadata unless the caller says otherwise.
    is_rare
        Whether its documents are fetched only if those of other versions are absent.
    has_variants
        Whether stores differ in the spelling of keys, which `resolved` detects.
    has_groups
        Whether groups have documents.
    implies_groups
        Whether a directory without documents is a group.
    has_filters
        Whether codecs other than one compressor can be expressed.
    has_shards
        Whether a stored object can hold several chunks.
    has_sidecars
        Whether a node can have hidden documents besides its own.
    has_dimension_names
        Whether the document of an array can name its dimensions.
    mixes_byte_orders
        Whether the fields of a structure can differ in their byte order.
    requires_fill_value
        Whether every array must have a fill value, which therefore does not indicate missing
        values.
    separates_attributes
        Whether the attributes of a node are a separate document.
    separates_compressor
        Whether the compressor, the filters and the order are separate members.
    chunk_key_encodings
        Names of the encodings that `chunk_keys` accepts.
    deflate
        Name that its readers use for the DEFLATE codec.
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
        """Return the keys of all documents that the node at `path` can have."""

    def root_keys(self) -> tuple[str, ...]:
        """Return the keys to fetch at the root, in reverse order of writing."""
        consolidated = () if self.consolidated_key is None else (self.consolidated_key,)
        return tuple(dict.fromkeys((*consolidated, *self.node_keys("/"))))

    def document_key(self, path: str, kind: NodeKind) -> str:
        """Return the key of the document that makes a node an array or a group."""
        return self.node_keys(path)[0]

    def attributes_key(self, path: str) -> str | None:
        """Return the key of the attributes; None where the node's own document holds them."""
        return self.node_keys(path)[-1] if self.separates_attributes else None

    @abstractmethod
    def chunk_keys(self, path: str, *, encoding: str = "", separator: str = "") -> ChunkKeys:
        """Return the chunk keys of the array at `path`.

        `encoding` is one of `chunk_key_encodings`. Both are the version's default if empty.
        """

    def listing_prefix(self, path: str) -> str:
        """Return the prefix to list to find the children of the group at `path`."""
        return key_prefix(path)

    def child_names(self, objects: list[str], prefixes: list[str]) -> list[str]:
        """Return the names that may be children of a group, from the listing of its prefix."""
        return prefixes

    def node_path(self, folder: str) -> str | None:
        """Return the path of the node that owns a folder of keys; None for shared folders."""
        return f"/{folder}"

    @abstractmethod
    def recognizes(self, documents: Mapping[str, Document], path: str = "/") -> bool:
        """Return whether the node at `path` has documents of this version."""

    def resolved(
        self,
        documents: Mapping[str, Document],
        *,
        data_type_fallback: bool = False,
    ) -> Format:
        """Return the variant of the format that these root documents use.

        `data_type_fallback` says whether unknown data types are read as their fallback types, if
        the version has any.
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
        """Parse the node at `path`; None if there is no node, a BrokenNode if it is invalid.

        `parsed` caches arrays by the content of their document, because many arrays have equal
        documents. It is extended in place.
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
        """Parse an existing node."""

    def render_node(self, node: Node) -> dict[str, bytes]:
        """Render the documents of a node by their keys, in the order of writing.

        Raises
        ------
        UnsupportedError
            For a node that the version cannot express.
        NczarrError
            The error of a BrokenNode.
        """
        if isinstance(node, BrokenNode):
            raise node.error
        return {key: render_json(value) for key, value in self._render(node).items()}

    @abstractmethod
    def _render(self, node: ArrayNode | GroupNode) -> dict[str, Json]:
        """Return the JSON of a node's documents by their keys, in the order of writing."""

    def expand_consolidated(self, document: Document) -> dict[str, Document] | None:
        """Return the documents in a consolidated one by key; None if it contains no others."""
        return None

    def render_consolidated(self, documents: Mapping[str, bytes]) -> dict[str, bytes]:
        """Render the consolidated document by its key; an empty dict if the version has none."""
        return {}

    def complete(
        self, specs: Sequence[CodecSpec], kind_of: Callable[[str], str | None]
    ) -> tuple[CodecSpec, ...]:
        """Return codecs, with the ones that the version requires added.

        `kind_of` returns ``array-array``, ``array-bytes`` or ``bytes-bytes`` for the name of a
        codec from another package, None for other names.
        """
        return tuple(specs)
