"""Define dataclasses for the groups and arrays of a store, independently of the Zarr version.

All Zarr versions are parsed into the same dataclasses. Instances contain plain values, can be
pickled, are compared by value, and are never modified. `ArrayNode` is nevertheless not frozen,
because creating an instance of a frozen dataclass takes three times as long.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from typing import Any, Literal

import numpy as np

from xr_nczarr.errors import LimitError, NczarrError, quote, unknown

Json = Any
"""A JSON value: None, a bool, int, float or str, or a list or dict of JSON values."""
Consolidated = Literal["check"] | bool | None


class _Default(int):
    """A limit that has its default value, because the caller did not pass it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits on the memory that reading a store can allocate.

    Each limit is a maximum. With ``trust="none"``, all defaults are much smaller.

    Attributes
    ----------
    max_chunk_bytes
        Size of a chunk in bytes, whether stored or decoded.
    max_item_bytes
        Size of one variable-length item in bytes.
    max_metadata_bytes, max_consolidated_bytes
        Size in bytes of a metadata document, and of a consolidated metadata document. Each JSON
        value in the document counts as another 256 bytes.
    max_nodes
        Number of groups and arrays.
    max_depth
        Number of nested levels of groups, and of values within a metadata document.
    max_references
        Number of references that the generators of a reference set produce. Generators that are
        evaluated lazily do not count.
    max_index_bytes
        Size in bytes of a coordinate that xarray reads on opening. Each chunk of the coordinate
        counts as at least 16 KiB.

    Examples
    --------
    >>> import xarray as xr, xr_nczarr
    >>> store, limits = {}, xr_nczarr.Limits(max_nodes=1)
    >>> xr_nczarr.to_nczarr(xr.Dataset({"t": 1}), store)
    >>> xr.open_dataset(store, engine="nczarr", limits=limits)
    Traceback (most recent call last):
    ...
    xr_nczarr.errors.LimitError: mapping: the store has more than 1 nodes (max_nodes). ...
    """

    max_chunk_bytes: int = _Default(2 << 30)
    max_item_bytes: int = _Default(1 << 30)
    max_metadata_bytes: int = _Default(64 << 20)
    max_consolidated_bytes: int = _Default(4 << 30)
    max_nodes: int = _Default(100_000)
    max_depth: int = _Default(64)
    max_references: int = _Default(1_000_000)
    max_index_bytes: int = _Default(4 << 30)

    @classmethod
    def of(cls, limits: Limits | Mapping[str, int] | None) -> Limits:
        """Convert the value of the `limits` option to a `Limits` object.

        A mapping overrides individual defaults, and None uses all defaults.

        Raises
        ------
        ValueError
            If `limits` is not a `Limits` object, a mapping or None. Also raised if a mapping
            contains an unknown limit or a value that is not a number.
        """
        if not isinstance(limits, Limits | Mapping | None):
            raise ValueError(f"limits must be a Limits object, a mapping or None, not {limits!r}")
        if isinstance(limits, Limits):
            return limits
        names = [limit.name for limit in fields(cls)]
        for name in limits or ():
            if name not in names:
                raise ValueError(str(unknown("limit", name, names)))
        return cls(**(limits or {}))

    def __post_init__(self) -> None:
        for name, limit in self._by_name().items():
            if not isinstance(limit, Real):
                raise ValueError(f"limit {name} must be a number, not {limit!r}")

    def _by_name(self) -> dict[str, Any]:
        return {limit.name: getattr(self, limit.name) for limit in fields(self)}

    def strict(self) -> Limits:
        """Return the limits for an untrusted store.

        A limit that was set by the caller is not changed.
        """
        limits = self._by_name().items()
        passed = {name: limit for name, limit in limits if not isinstance(limit, _Default)}
        return replace(STRICT_LIMITS, **passed)


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
"""The limits for untrusted stores, which ``trust="none"`` applies."""


def check_chunk_size(shape: tuple[int, ...], dtype: np.dtype[Any], limits: Limits) -> None:
    """Raise LimitError if a chunk of this shape and dtype exceeds ``limits.max_chunk_bytes``."""
    size, max_bytes = math.prod(shape) * dtype.itemsize, limits.max_chunk_bytes
    if size > max_bytes:
        raise LimitError(
            f"a chunk of shape {shape} and dtype {quote(dtype)} takes up {size:,} bytes, which "
            f"exceeds the limit of {max_bytes:,} bytes",
            remedy="If you trust the store, pass limits=Limits(max_chunk_bytes=…)",
        )


class Attributes(dict[str, Json]):
    """The user attributes of a node as JSON values, with access to their original JSON text.

    `source` is a function that returns the stored text of an attribute, given its name. For the
    attributes of a new node, `source` is None.
    """

    __slots__ = ("source",)

    def __init__(
        self, values: Mapping[str, Json] | None = None, source: Callable[[str], str] | None = None
    ) -> None:
        super().__init__(values or {})
        self.source = source

    def literal(self, name: str) -> str:
        """Return the stored JSON text of an attribute, or render the value of a new attribute."""
        if self.source is None:
            return json.dumps(self[name], ensure_ascii=False)
        return self.source(name)


@dataclass(frozen=True, slots=True)
class CodecSpec:
    """A codec applied to an array, with its name and configuration.

    Attributes
    ----------
    name
        Name of the codec in `codecs.registry`. This is the codec's id in numcodecs, if it has one.
    configuration
        Parameters of the codec, named as in `codecs.registry`.
    place
        Member of the metadata document that lists the codec: ``"order"``, ``"filters"``,
        ``"compressor"`` or ``"codecs"``, for example.
    document
        The JSON of the codec exactly as stored. None for a codec that this package created.
    """

    name: str
    configuration: Mapping[str, Json] = field(default_factory=dict)
    place: str = "codecs"
    document: Json = field(default=None, compare=False)

    @property
    def is_buffer_filter(self) -> bool:
        """Whether the metadata lists the codec as one of the ``filters`` or as the ``compressor``.

        Such a codec has the interface of numcodecs: it maps one buffer to another, regardless of
        the array's dtype and shape.
        """
        return self.place in ("filters", "compressor")


@dataclass(frozen=True, slots=True)
class ChunkKeys:
    """The mapping from chunk indices to keys.

    The key is ``prefix + separator.join(index)``, or `scalar` for an array without dimensions.

    `alternative` is a second separator to try if the metadata does not declare the separator.
    Otherwise, it is empty. For example, zarr-python before 2.8 did not record that an array uses
    ``/``.
    """

    prefix: str
    separator: str
    scalar: str
    alternative: str = field(default="", compare=False)

    def key(self, index: tuple[int, ...]) -> str:
        """Return the key of a stored object (chunk or shard), given its index in the chunk grid."""
        return self.prefix + self.separator.join(map(str, index)) if index else self.scalar


@dataclass(frozen=True, slots=True)
class ShardSpec:
    """The layout of shards at one level of nesting, as declared by the sharding codec.

    Attributes
    ----------
    shape
        Shape of the shard in elements.
    index_codecs
        Codecs of the shard index (uint64 offsets and lengths), in encoding order.
    index_at_start
        Whether the index is at the start of the shard instead of its end.
    codecs
        Codecs applied to the whole shard, in encoding order. The metadata lists them after the
        sharding codec.
    leading
        Number of codecs that the metadata lists before the sharding codec. They are applied to each
        inner chunk, and are part of `ArrayNode.codecs`.
    order
        For each dimension of the shard index, the corresponding dimension of the array. Empty if
        the dimensions have the same order.
    """

    shape: tuple[int, ...]
    index_codecs: tuple[CodecSpec, ...]
    index_at_start: bool = False
    codecs: tuple[CodecSpec, ...] = ()
    leading: int = 0
    order: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class ArrayNode:
    """An array in the hierarchy of a store.

    Attributes
    ----------
    path
        Absolute path: ``"/"`` if the array is the whole store, otherwise ``"/group/name"``.
    shape, chunk_shape
        Shapes in elements. A chunk is the unit of decoding: in a sharded array, `chunk_shape` is
        the shape of the innermost chunks.
    dtype
        The dtype of the decoded bytes, including byte order; ``object`` for variable-length items.
    type_name
        The JSON of the data type in the metadata, such as ``"<f4"``, ``">S1"`` or ``"float32"``.
        None for an array that this package created.
    fill_value
        A NumPy scalar of `dtype`, or str or bytes for variable-length items. None if the fill value
        is undefined.
    codecs
        The codecs that convert an array to bytes, in encoding order. For an array in Fortran order,
        the first codec is ``transpose``.
    chunk_keys
        The mapping from chunk indices to the keys of stored objects.
    shards
        The levels of sharding, outermost first; an empty tuple without sharding.
    chunk_runs
        For a rectilinear grid, one tuple of (length, count) pairs per dimension. For example,
        ``((10, 3), (4, 1))`` stands for three stored objects of length 10, followed by one of
        length 4. Empty for a regular grid.
    stored_shape
        The shape in the metadata, if the dimensions of the netCDF variable are longer. Otherwise an
        empty tuple. Elements outside the stored shape are read as the fill value.
    dimension_names
        The ``dimension_names`` member of v3 metadata, or None for arrays without this member.
    attributes
        User attributes, including the annotations of any convention.
    members
        Members of the node's metadata document that Zarr does not define.
    sidecars
        Additional metadata documents of the node, as a mapping from names to JSON values.
    """

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_shape: tuple[int, ...]
    type_name: Json = None
    fill_value: Any = None
    codecs: tuple[CodecSpec, ...] = ()
    chunk_keys: ChunkKeys
    shards: tuple[ShardSpec, ...] = ()
    chunk_runs: tuple[tuple[tuple[int, int], ...], ...] = ()
    stored_shape: tuple[int, ...] = ()
    dimension_names: tuple[str | None, ...] | None = None
    attributes: Attributes = field(default_factory=Attributes)
    members: Mapping[str, Json] = field(default_factory=dict)
    sidecars: Mapping[str, Json] = field(default_factory=dict)

    @property
    def object_shape(self) -> tuple[int, ...]:
        """The shape of a stored object (a chunk or an outermost shard), in elements.

        In a rectilinear grid, this is the shape of the largest object.
        """
        return self.shards[0].shape if self.shards else self.chunk_shape

    @property
    def object_counts(self) -> tuple[int, ...]:
        """Number of chunks (or outermost shards) along each dimension, including missing ones."""
        if self.chunk_runs:
            return tuple([sum(number for _, number in runs) for runs in self.chunk_runs])
        return grid_shape(self.shape, self.object_shape)

    @property
    def key_notations(self) -> list[ChunkKeys]:
        """The chunk key mappings to try, in order, when looking up stored objects.

        If a multi-dimensional array has an alternative separator, the second mapping uses it.
        """
        keys = self.chunk_keys
        if not keys.alternative or len(self.shape) < 2:
            return [keys]
        return [keys, replace(keys, separator=keys.alternative)]

    @property
    def is_binary(self) -> bool:
        """Whether the elements are variable-length bytes.

        All other elements of dtype ``object`` are variable-length text.
        """
        return any(spec.name == "vlen-bytes" for spec in self.codecs)

    def at_path(self, path: str, **changes: Any) -> ArrayNode:
        """Return a copy of this array at another path. The path of this array must be ``"/"``.

        The chunk keys of the copy are the keys of this array with a prefix for `path`. `changes`
        sets other fields of the copy, such as `attributes`.
        """
        prefix, keys = key_prefix(path), self.chunk_keys
        keys = ChunkKeys(
            prefix + keys.prefix, keys.separator, prefix + keys.scalar, keys.alternative
        )
        return replace(self, path=path, chunk_keys=keys, **changes)

    def without_annotations(self) -> ArrayNode:
        """Return a copy without `attributes`, `members` and `sidecars`.

        These fields are not needed for reading and writing chunks.
        """
        return replace(self, attributes=Attributes(), members={}, sidecars={})

    def __reduce__(self) -> tuple[Any, ...]:
        # Leave out field names, because every dask task would contain them.
        return _array_node, tuple([getattr(self, name) for name in self.__slots__])


def grid_shape(shape: Sequence[int], chunk_shape: Sequence[int]) -> tuple[int, ...]:
    """Return the number of chunks along each dimension of an array.

    A partial chunk at the end of a dimension counts as one.
    """
    return tuple([-(-size // length) for size, length in zip(shape, chunk_shape, strict=True)])


def combinations(domains: Sequence[Iterable[Any]]) -> Iterator[tuple[Any, ...]]:
    """Yield the Cartesian product of `domains`. The last domain varies fastest.

    Unlike `itertools.product`, this function does not convert the domains to tuples, because a
    domain may be a range that is too long to be stored.
    """
    if not domains:
        yield ()
        return
    for value in domains[0]:
        for rest in combinations(domains[1:]):
            yield (value, *rest)


def _array_node(*values: Any) -> ArrayNode:
    return ArrayNode(**dict(zip(ArrayNode.__slots__, values, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupNode:
    """A group in the hierarchy of a store.

    `explicit` is False if the group has no metadata document of its own.
    """

    path: str
    attributes: Attributes = field(default_factory=Attributes)
    members: Mapping[str, Json] = field(default_factory=dict)
    sidecars: Mapping[str, Json] = field(default_factory=dict)
    explicit: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenNode:
    """A group or array that exists but cannot be used. `error` explains why.

    `shape` is None if the shape is unknown. `dimension_names` is the same as in `ArrayNode`.
    """

    path: str
    error: NczarrError
    shape: tuple[int, ...] | None = None
    dimension_names: tuple[str | None, ...] | None = None
    attributes: Attributes = field(default_factory=Attributes)
    members: Mapping[str, Json] = field(default_factory=dict)
    sidecars: Mapping[str, Json] = field(default_factory=dict)


Node = ArrayNode | GroupNode | BrokenNode


def key_prefix(path: str) -> str:
    """Return the prefix with which the keys of a node begin, for example ``group/array/``.

    The prefix of the root is empty. The v3 draft uses other prefixes.
    """
    return "" if path == "/" else f"{path[1:]}/"


def node_name(path: str) -> str:
    """Return the last segment of a path, or an empty string for the root."""
    return path.rpartition("/")[2]


def parent_path(path: str) -> str:
    """Return the path of the group that contains the node at `path`."""
    return path.rpartition("/")[0] or "/"


def paths_above(path: str) -> list[str]:
    """Return a path and the paths of all its ancestors, nearest first."""
    paths = [path]
    while paths[-1] != "/":
        paths.append(parent_path(paths[-1]))
    return paths


def is_within(path: str, group: str) -> bool:
    """Return whether the node at `path` is the group at `group` or one of its descendants."""
    return f"{path}/".startswith(f"{group.rstrip('/')}/")


def group_path(path: str | None) -> str:
    """Convert a group path passed by the caller to an absolute path. None means the root.

    Raises
    ------
    ValueError
        If `path` is neither a string nor None.
    """
    if not isinstance(path, str | None):
        raise ValueError(f"group must be a string or None, not {path!r}")
    return "/" + "/".join(filter(None, (path or "").split("/")))


def child_path(path: str, name: str) -> str:
    """Return the path of the node `name` in the group at `path`."""
    return f"{path.rstrip('/')}/{name}"


def is_unicode(values: np.ndarray[Any, Any]) -> bool:
    """Return whether all strings in an array are valid Unicode.

    In a structured array, all fields are checked.
    """
    if values.dtype.names is not None:
        return all(is_unicode(values[name]) for name in values.dtype.names)
    if values.dtype.kind != "U":
        return True
    # NumPy raises SystemError when it converts an invalid string to str, and crashes when it hashes
    # one.
    points = np.ascontiguousarray(values).view(f"{values.dtype.str[0]}u4")
    return not (points > sys.maxunicode).any()
