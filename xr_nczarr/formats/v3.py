"""Zarr v3: each node is one ``zarr.json``, attributes included.

Matches the core specification 3.1, and what zarr-python 3, tensorstore, zarrs and netcdf-c's
development branch write.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from xr_nczarr.errors import NczarrError, UnsupportedError, quote, unexpected
from xr_nczarr.formats import v2
from xr_nczarr.formats.data_types import named, parse_data_type, render_data_type, unknown
from xr_nczarr.formats.documents import (
    Document,
    content_of,
    read_chunk_shape,
    read_integer,
    read_lengths,
    read_list,
    read_members,
    read_object,
    read_text,
    render_json,
    required,
    without,
)
from xr_nczarr.formats.fill_values import parse_fill_value, render_fill_value
from xr_nczarr.formats.v3_codecs import complete as complete
from xr_nczarr.formats.v3_codecs import parse_chain, render_chain
from xr_nczarr.model import (
    DEFAULT_LIMITS,
    ArrayNode,
    BrokenNode,
    ChunkKeys,
    GroupNode,
    Json,
    Limits,
    Node,
    key_prefix,
)

ZARR_FORMAT = "3"

Runs = tuple[tuple[tuple[int, int], ...], ...]

_DOCUMENT = CONSOLIDATED_KEY = "zarr.json"  # the root's own may hold all others
_CONSOLIDATED = "consolidated_metadata"
_GROUP_MEMBERS = frozenset(("zarr_format", "node_type", "attributes", _CONSOLIDATED))
_ARRAY_MEMBERS = frozenset(
    ("zarr_format", "node_type", "attributes", "shape", "data_type", "fill_value", "codecs")
) | {"chunk_grid", "chunk_key_encoding", "dimension_names", "storage_transformers"}


def root_keys() -> tuple[str, ...]:
    """Give the keys to fetch at the root."""
    return (_DOCUMENT,)


def node_keys(path: str) -> tuple[str, ...]:
    """Give the keys of the documents that make up the node at `path`."""
    return (key_prefix(path) + _DOCUMENT,)


listing_prefix = v2.listing_prefix
child_names = v2.child_names


def recognise(documents: Mapping[str, Document]) -> bool:
    """Tell whether the documents of the root are of this version, and not of its draft."""
    document = documents.get(_DOCUMENT)
    if document is None:
        return False
    members = document.value
    return not isinstance(members, dict) or (
        not isinstance(members.get("zarr_format"), str) and "metadata_encoding" not in members
    )


def chunk_keys(path: str, *, encoding: str = "default", separator: str = "/") -> ChunkKeys:
    """Give the chunk keys of the array at `path`; the other encoding is ``"v2"``."""
    if encoding == "v2":
        return v2.chunk_keys(path, separator=separator)
    prefix = f"{key_prefix(path)}c"
    return ChunkKeys(prefix + separator, separator, prefix)


def parse_node(
    path: str,
    documents: Mapping[str, Document],
    *,
    limits: Limits = DEFAULT_LIMITS,
    parsed: dict[Hashable, ArrayNode] | None = None,
) -> Node | None:
    """Give the node at `path`, None when it has no document; what is wrong as BrokenNode."""
    (key,) = node_keys(path)
    if key not in documents:
        return None
    document = documents[key]
    known: dict[str, Any] = {}
    try:
        members = read_members(document, zarr_format=3)
        if "attributes" in members:
            known["attributes"] = document.attributes("attributes")
        kind = read_text(required(members, "node_type"), "node_type", ("array", "group"))
        if kind == "group":
            return GroupNode(path=path, members=_extra_members(members, _GROUP_MEMBERS), **known)
        parsed = {} if parsed is None else parsed
        content = content_of({**members, "attributes": None})
        array = parsed.get(content)
        if array is None:
            shape = known["shape"] = read_lengths(required(members, "shape"), "shape")
            array = parsed[content] = _parse_array(members, shape, limits)
            del known["shape"]
        return array.placed(path, **known)
    except NczarrError as error:
        return BrokenNode(path=path, error=error.located(key=key), **known)


def _extra_members(members: Mapping[str, Json], known: frozenset[str]) -> dict[str, Json]:
    """Give the members of extensions, all of which must say that they may be ignored."""
    extra = without(members, known)
    for name, value in extra.items():
        if not isinstance(value, dict) or value.get("must_understand") is not False:
            raise unknown("member", name, name)
    return extra


def _parse_array(members: dict[str, Json], shape: tuple[int, ...], limits: Limits) -> ArrayNode:
    """Give the array without attributes, as if it were the root."""
    extra = _extra_members(members, _ARRAY_MEMBERS)
    for item in read_list(members.get("storage_transformers", []), "storage_transformers"):
        name, _ = named(item, "storage_transformers")
        raise unknown("storage transformer", name, "storage_transformers")
    rank = len(shape)
    dtype, type_name = parse_data_type(required(members, "data_type"))
    cells, runs = _parse_grid(required(members, "chunk_grid"), shape)
    chain = parse_chain(required(members, "codecs"), dtype, cells)
    if runs and chain.shards:
        inner = chain.shards[1].shape if chain.shards[1:] else chain.chunk_shape
        for cell, each in zip(inner, runs, strict=True):
            if any(length % cell for length, _ in each):
                raise unexpected(_render_runs(each), f"multiples of {cell}", "chunk_grid")
    place = "codecs" if chain.shards else "chunk_grid"
    for chunks in (chain.chunk_shape, *(shard.shape for shard in chain.shards if shard.codecs)):
        read_chunk_shape(list(chunks), place, dtype=dtype, rank=rank, limits=limits)
    return ArrayNode(
        path="/",
        shape=shape,
        dtype=chain.dtype,
        chunk_shape=chain.chunk_shape,
        type_name=type_name,
        fill_value=parse_fill_value(
            required(members, "fill_value"), chain.dtype, text=type_name == "string"
        ),
        codecs=chain.codecs,
        chunk_keys=_parse_chunk_keys(required(members, "chunk_key_encoding")),
        shards=chain.shards,
        chunk_runs=runs,
        dimension_names=_parse_dimension_names(members.get("dimension_names"), rank),
        members=extra,
    )


def _parse_grid(value: Json, shape: tuple[int, ...]) -> tuple[tuple[int, ...], Runs]:
    """Give the shape of the (largest) cells, and the runs of a grid that is not regular."""
    name, configuration = named(value, "chunk_grid")
    place = "chunk_grid.configuration"
    if name == "rectilinear":
        read_text(configuration.get("kind", "inline"), f"{place}.kind", ("inline",))
        listed = read_list(required(configuration, "chunk_shapes", place), place)
        if len(listed) != len(shape):
            raise unexpected(listed, f"{len(shape)} lists, one for each dimension", place)
        runs = tuple([_parse_runs(*pair, place) for pair in zip(listed, shape, strict=True)])
        return tuple([max(length for length, _ in each) for each in runs]), runs
    if name != "regular":
        raise unknown("chunk grid", name, "chunk_grid")
    cells = read_lengths(required(configuration, "chunk_shape", place), place)
    if len(cells) != len(shape):
        raise unexpected(list(cells), f"{len(shape)} lengths, one for each dimension", place)
    if any(length and not cell for length, cell in zip(shape, cells, strict=True)):
        raise unexpected(list(cells), "lengths of at least 1", place)
    return tuple(cell or 1 for cell in cells), ()


def _parse_runs(value: Json, size: int, place: str) -> tuple[tuple[int, int], ...]:
    """Give the runs along a dimension: one length for all chunks, or lengths and repetitions."""
    if not isinstance(value, list):
        length = read_integer(value, place, least=1)
        return ((length, max(1, -(-size // length))),)
    pairs = [item if isinstance(item, list) else [item, 1] for item in value]
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise unexpected(value, "lengths, or lengths with their number", place)
    runs = [(read_integer(n, place, least=1), read_integer(m, place, least=1)) for n, m in pairs]
    if sum(length * number for length, number in runs) < size:
        raise unexpected(value, f"chunks for all {size} elements", place)
    return tuple(runs)


def _render_runs(runs: tuple[tuple[int, int], ...]) -> Json:
    return [[length, number] if number > 1 else length for length, number in runs]


def _parse_chunk_keys(value: Json) -> ChunkKeys:
    name, configuration = named(value, "chunk_key_encoding")
    if name not in ("default", "v2"):
        raise unknown("chunk key encoding", name, "chunk_key_encoding")
    separator = configuration.get("separator", "/" if name == "default" else ".")
    read_text(separator, "chunk_key_encoding.configuration", ("/", "."))
    return chunk_keys("/", encoding=name, separator=separator)


def _parse_dimension_names(value: Json, rank: int) -> tuple[str | None, ...] | None:
    if value is None:
        return None
    names = read_list(value, "dimension_names")
    if len(names) != rank or any(name is not None and not isinstance(name, str) for name in names):
        raise unexpected(names, f"{rank} names or nulls", "dimension_names")
    return tuple(names)


def render_node(node: Node) -> dict[str, bytes]:
    """Give the one document of a node, by its key, if v3 can express it."""
    if isinstance(node, BrokenNode):
        raise node.error
    if isinstance(node, ArrayNode):
        members = _render_array(node) | _extra_members(node.members, _ARRAY_MEMBERS)
    else:
        members = {"node_type": "group"} | _extra_members(node.members, _GROUP_MEMBERS)
    members = {"zarr_format": 3, **members, "attributes": dict(node.attributes)}
    return dict.fromkeys(node_keys(node.path), render_json(members))


def _render_array(node: ArrayNode) -> dict[str, Json]:
    text = any(spec.name == "vlen-utf8" for spec in node.codecs)
    data_type = render_data_type(node.dtype, node.type_name, text=text)
    listed = isinstance(data_type, str) and node.dtype.type is np.void
    named = isinstance(data_type, dict) and data_type["name"] == "struct"
    members = {
        "node_type": "array",
        "shape": list(node.shape),
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [*node.object_shape]}},
        "chunk_key_encoding": _render_chunk_keys(node.path, node.chunk_keys),
        "fill_value": render_fill_value(node.fill_value, node.dtype, listed=listed, named=named),
        "codecs": render_chain(node),
    }
    if node.chunk_runs:
        grid = {"kind": "inline", "chunk_shapes": [_render_runs(runs) for runs in node.chunk_runs]}
        members["chunk_grid"] = {"name": "rectilinear", "configuration": grid}
    if node.dimension_names is not None:
        members["dimension_names"] = list(node.dimension_names)
    return members


def _render_chunk_keys(path: str, keys: ChunkKeys) -> Json:
    for encoding in ("default", "v2"):
        if keys == chunk_keys(path, encoding=encoding, separator=keys.separator):
            return {"name": encoding, "configuration": {"separator": keys.separator}}
    raise UnsupportedError(
        f"v3 has no encoding for chunk keys like {quote(keys.key((0, 0)))}", variable=path
    )


def expand_consolidated(document: Document) -> dict[str, Document] | None:
    """Give key → document of all nodes from the root's, None when it holds only its own."""
    members = document.value
    consolidated = members.get(_CONSOLIDATED) if isinstance(members, dict) else None
    if consolidated is None or read_object(consolidated, _CONSOLIDATED).get("kind") != "inline":
        return None
    nodes = read_object(consolidated.get("metadata"), f"{_CONSOLIDATED}.metadata")
    inline = document.member(_CONSOLIDATED).member("metadata")
    documents = {_DOCUMENT: document}
    for name, node in nodes.items():
        v2.check_key(name, _CONSOLIDATED, _DOCUMENT)
        key = f"{name}/{_DOCUMENT}"
        documents[key] = inline.member(name, key=key)
        if isinstance(node, dict) and _CONSOLIDATED in node:
            # zarr-python says so of each group again; the group's own document does not.
            documents[key].value = without(node, (_CONSOLIDATED,))
    return documents


def render_consolidated(documents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Give the root's document with those of all other nodes in it; nothing for a root array."""
    root = Document(_DOCUMENT, documents[_DOCUMENT]).value
    if root["node_type"] != "group":
        return {}
    metadata = {
        key.removesuffix(f"/{_DOCUMENT}"): Document(key, documents[key]).value
        for key in documents
        if key != _DOCUMENT
    }
    consolidated = {"kind": "inline", "must_understand": False, "metadata": metadata}
    return {_DOCUMENT: render_json(root | {_CONSOLIDATED: consolidated})}
