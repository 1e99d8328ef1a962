"""The vocabulary that all rooms share: a hierarchy of nodes, whatever wrote it.

Every Zarr version is parsed into these few records; behind the parser it is no more than the name
in `Hierarchy.zarr_format`. The records hold plain values: they pickle and compare by value, and
nobody changes one (an array's is not frozen, since that takes three times as long to make).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from xr_nczarr.errors import NczarrError

Json = Any
"""A value of a JSON document: None, bool, int, float, str, list or dict of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds on what an untrusted store can make us allocate.

    Sizes are in bytes, counts in entries. Each is an option of every function that opens.
    `max_references` is for generators of a reference set that have to be written out, at some 15 µs
    each; there is no limit on references that are listed, nor on those kept as a formula.
    In a document each value counts as 256 bytes. `max_index_bytes` is for one coordinate of a
    dimension, which xarray reads when it opens; each of its chunks counts as 16 KiB at least.
    """

    max_chunk_bytes: int = 2 << 30
    max_item_bytes: int = 1 << 30
    max_metadata_bytes: int = 64 << 20
    max_consolidated_bytes: int = 4 << 30
    max_nodes: int = 100_000
    max_depth: int = 64
    max_references: int = 1_000_000
    max_index_bytes: int = 4 << 30


DEFAULT_LIMITS = Limits()
STRICT_LIMITS = Limits(
    max_chunk_bytes=64 << 20,
    max_item_bytes=1 << 20,
    max_metadata_bytes=1 << 20,
    max_consolidated_bytes=2 << 20,
    max_nodes=10_000,
    max_depth=16,
    max_references=10_000,
    max_index_bytes=16 << 20,
)
"""For who opens what strangers send: see ``trust="none"``."""


class Literals(Protocol):
    """The source text of a document's members, found again only when somebody asks."""

    def literal(self, name: str) -> str:
        """Give the text of member `name`'s value as it is spelled in the document."""


@dataclass(frozen=True, slots=True, repr=False)
class Attributes(Mapping[str, Json]):
    """The user attributes of a node as JSON values, with their literals at hand."""

    values_by_name: Mapping[str, Json] = field(default_factory=dict)
    source: Literals | None = field(default=None, compare=False)

    def __getitem__(self, name: str) -> Json:
        return self.values_by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_name)

    def __len__(self) -> int:
        return len(self.values_by_name)

    def __repr__(self) -> str:
        return f"Attributes({dict(self.values_by_name)!r})"

    def literal(self, name: str) -> str:
        """Give the source text of one attribute; of a value without source, its compact JSON."""
        if self.source is None:
            return json.dumps(self.values_by_name[name], ensure_ascii=False)
        return self.source.literal(name)


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """One step from array to bytes, by its registry name and configuration.

    Attributes
    ----------
    name
        The name under which `codecs.registry` knows it: numcodecs' id where there is one.
    configuration
        Its parameters in that registry's spelling.
    place
        The member of the document that named it: ``"order"``, ``"filters"``, ``"compressor"``
        or ``"codecs"``. Messages show it, and it is rendered back there.
    document
        Its JSON exactly as stored, to be rendered unchanged; None for a codec of our own making.
    """

    name: str
    configuration: Mapping[str, Json] = field(default_factory=dict)
    place: str = "codecs"
    document: Json = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ChunkKeys:
    """Chunk index → key: ``prefix + separator.join(index)``, or `scalar` without dimensions.

    `alternative` is a separator to try where no chunk is found, for metadata that do not declare
    theirs: zarr-python before 2.8 wrote nested chunks without saying so. Empty for none.
    """

    prefix: str
    separator: str
    scalar: str
    alternative: str = field(default="", compare=False)

    def key(self, index: tuple[int, ...]) -> str:
        """Give the key of the stored object (chunk or shard) at a grid index."""
        return self.prefix + self.separator.join(map(str, index)) if index else self.scalar


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """One level of sharding: how inner chunks lie within a stored object.

    Attributes
    ----------
    shape
        Shape of the shard in elements, a multiple of the shape of what it holds.
    index_codecs
        Codecs of the shard index (uint64 offsets and lengths), in the order of encoding.
    index_at_start
        Whether the index leads the shard instead of ending it.
    codecs
        Codecs around this level, in the order of encoding: those that the document lists after the
        sharding codec. Mostly empty; otherwise the whole shard has to be decoded.
    leading
        How many of the array's codecs, behind those of the levels around this one, the document
        lists before the sharding codec. They are done to each inner chunk.
    order
        The array's dimension along each dimension of the shard index, which a transposition before
        the sharding codec permutes; empty for their own order.
    """

    shape: tuple[int, ...]
    index_codecs: tuple[CodecSpec, ...]
    index_at_start: bool = False
    codecs: tuple[CodecSpec, ...] = ()
    leading: int = 0
    order: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class ArrayNode:
    """An array of the hierarchy.

    Attributes
    ----------
    path
        Absolute path: ``"/"`` for an array that is the whole store, else ``"/group/name"``.
    shape, chunk_shape
        In elements. `chunk_shape` is the unit of decoding: the innermost chunk of a sharded array.
    dtype
        As the decoded bytes lie, byte order included; ``object`` for items of variable length.
    type_name
        The type as the document spells it (``"<f4"``, ``">S1"``, ``"float32"``): it can say more
        than `dtype`. Empty for an array of our own making.
    fill_value
        A numpy scalar of `dtype` (str or bytes for variable-length items); None when undefined.
    codecs
        From array to bytes, in the order of encoding. An array whose bytes lie in Fortran order
        begins with ``transpose``.
    chunk_keys
        Where the stored objects lie: chunks, or the outermost shards.
    shards
        Outermost first; empty without sharding.
    chunk_runs
        Of a rectilinear grid: along each dimension the (length, number) of stored objects of one
        length that follow each other. `chunk_shape`, or without inner chunks that of the shards,
        is the largest then. Empty for a regular grid.
    dimension_names
        As the Zarr document itself names them (v3), else None.
    attributes
        User attributes, annotations of any convention included.
    members
        Members of the node's own document that Zarr does not define.
    sidecars
        Further documents beside the node's own, by their name.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_shape: tuple[int, ...]
    type_name: str = ""
    fill_value: Any = None
    codecs: tuple[CodecSpec, ...] = ()
    chunk_keys: ChunkKeys
    shards: tuple[ShardSpec, ...] = ()
    chunk_runs: tuple[tuple[tuple[int, int], ...], ...] = ()
    dimension_names: tuple[str | None, ...] | None = None
    attributes: Attributes = field(default_factory=Attributes)
    members: Mapping[str, Json] = field(default_factory=dict)
    sidecars: Mapping[str, Json] = field(default_factory=dict)

    @property
    def object_shape(self) -> tuple[int, ...]:
        """Shape in elements of one stored object: the outermost shard, or the chunk."""
        return self.shards[0].shape if self.shards else self.chunk_shape

    def placed(self, path: str, **own: Any) -> ArrayNode:
        """Give an array at the root as one at `path`, with its `own` attributes and sidecars."""
        prefix, keys = key_prefix(path), self.chunk_keys
        return ArrayNode(  # `replace` takes twice as long, and an opening calls this for each array
            path=path,
            shape=self.shape,
            dtype=self.dtype,
            chunk_shape=self.chunk_shape,
            type_name=self.type_name,
            fill_value=self.fill_value,
            codecs=self.codecs,
            chunk_keys=ChunkKeys(
                prefix + keys.prefix, keys.separator, prefix + keys.scalar, keys.alternative
            ),
            shards=self.shards,
            chunk_runs=self.chunk_runs,
            dimension_names=self.dimension_names,
            members=self.members,
            **own,
        )

    def without_annotations(self) -> ArrayNode:
        """Give the node with only what reading and writing its chunks needs."""
        return replace(self, attributes=Attributes(), members={}, sidecars={})

    def __reduce__(self) -> tuple[Any, ...]:
        # Without the fields' names, which each task of dask would carry along.
        return _array_node, tuple([getattr(self, name) for name in self.__slots__])


def _array_node(*values: Any) -> ArrayNode:
    return ArrayNode(**dict(zip(ArrayNode.__slots__, values, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNode:
    """A group of the hierarchy; not `explicit` when only its children tell that it is there."""

    path: str
    attributes: Attributes = field(default_factory=Attributes)
    members: Mapping[str, Json] = field(default_factory=dict)
    sidecars: Mapping[str, Json] = field(default_factory=dict)
    explicit: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenNode:
    """A node that is there and cannot be used, with the precise reason.

    `shape` is None when not even that is known.
    """

    path: str
    error: NczarrError
    shape: tuple[int, ...] | None = None
    attributes: Attributes = field(default_factory=Attributes)
    members: Mapping[str, Json] = field(default_factory=dict)
    sidecars: Mapping[str, Json] = field(default_factory=dict)


Node = ArrayNode | GroupNode | BrokenNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """All nodes of a store, parents before their children.

    Attributes
    ----------
    nodes
        By path, the root under ``"/"``.
    zarr_format
        ``"1"``, ``"2"``, ``"3-draft"`` or ``"3"``.
    consolidated
        Whether the nodes were read from a consolidated document.
    before
        If a write that has not finished replaces chunks, objects by key as they were before it;
        None for one that was not there.
    """

    nodes: Mapping[str, Node]
    zarr_format: str
    consolidated: bool = False
    before: Mapping[str, bytes | None] = field(default_factory=dict)


def key_prefix(path: str) -> str:
    """Give what the keys of the documents of the node at `path` begin with, but in the v3 draft."""
    return "" if path == "/" else f"{path[1:]}/"


def node_name(path: str) -> str:
    """Give the last segment of a path; the root's is empty."""
    return path.rpartition("/")[2]


def parent_path(path: str) -> str:
    """Give the path of the group that holds `path`."""
    return path.rpartition("/")[0] or "/"


def group_path(path: str | None) -> str:
    """Give the path of a group as a hierarchy has it, of one that a caller spells; None for root.

    What is no text is a ValueError.
    """
    if not isinstance(path, str | None):
        raise ValueError(f"group must be a string or None; found {path!r}")
    return "/" + "/".join(filter(None, (path or "").split("/")))


def child_path(path: str, name: str) -> str:
    """Give the path of the node `name` in the group at `path`."""
    return f"{path.rstrip('/')}/{name}"
