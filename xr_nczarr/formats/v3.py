"""Parse and render Zarr v3 metadata: one ``zarr.json`` for each node, including its attributes.

This module follows version 3.1 of the core specification, and the behavior of zarr-python 3,
tensorstore, zarrs and the development branch of netCDF-C.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from xr_nczarr.errors import unexpected
from xr_nczarr.formats import v2
from xr_nczarr.formats.documents import (
    Document,
    cache_key_of,
    read_chunk_shape,
    read_integer,
    read_lengths,
    read_list,
    read_members,
    read_object,
    read_text,
    render_json,
    required,
    split_consolidated,
    without,
)
from xr_nczarr.formats.fill_values import parse_fill_value, render_fill_value
from xr_nczarr.formats.format import Format, Parsing
from xr_nczarr.formats.v3_codecs import complete_chain, parse_chain, render_chain
from xr_nczarr.formats.v3_data_types import (
    is_text_type,
    parse_data_type,
    read_definition,
    render_data_type,
    unsupported,
)
from xr_nczarr.model import ArrayNode, ChunkKeys, CodecSpec, GroupNode, Json, key_prefix

Runs = tuple[tuple[tuple[int, int], ...], ...]

_DOCUMENT = "zarr.json"  # the root document can contain all others
_CONSOLIDATED = "consolidated_metadata"
_GROUP_MEMBERS = frozenset(("zarr_format", "node_type", "attributes", _CONSOLIDATED))
_ARRAY_MEMBERS = frozenset(
    ("zarr_format", "node_type", "attributes", "shape", "data_type", "fill_value", "codecs")
) | {"chunk_grid", "chunk_key_encoding", "dimension_names", "storage_transformers"}


class V3(Format):
    """The Zarr v3 format, as defined by the final specification."""

    version = "3"
    consolidated_key = _DOCUMENT
    has_shards = True
    has_dimension_names = True
    chunk_key_encodings = ("default", "v2")

    def node_keys(self, path: str) -> tuple[str, ...]:
        return (key_prefix(path) + _DOCUMENT,)

    def chunk_keys(self, path: str, *, encoding: str = "", separator: str = "") -> ChunkKeys:
        return _chunk_keys(path, encoding or "default", separator or "/")

    def recognizes(self, documents: Mapping[str, Document], path: str = "/") -> bool:
        """Return whether the node at `path` has a ``zarr.json`` that does not follow the v3 draft.

        A document that follows neither the draft nor the final specification is also recognized.
        """
        (key,) = self.node_keys(path)
        if key not in documents:
            return False
        members = documents[key].value
        return not isinstance(members, dict) or (
            not isinstance(members.get("zarr_format"), str) and "metadata_encoding" not in members
        )

    def _parse(self, parsing: Parsing) -> ArrayNode | GroupNode:
        path, fields = parsing.path, parsing.fields
        members = read_members(parsing.document, zarr_format=3)
        if "attributes" in members:
            fields["attributes"] = parsing.document.attributes("attributes")
        kind = read_text(required(members, "node_type"), "node_type", ("array", "group"))
        if kind == "group":
            return GroupNode(path=path, members=_extra_members(members, _GROUP_MEMBERS), **fields)
        cache_key = cache_key_of({**members, "attributes": None})
        array = parsing.parsed.get(cache_key)
        if array is None:
            shape = fields["shape"] = read_lengths(required(members, "shape"), "shape")
            names = members.get("dimension_names")
            fields["dimension_names"] = _parse_dimension_names(names, len(shape))
            array = parsing.parsed[cache_key] = _parse_array(members, shape)
        return array.at_path(path, **fields)

    def _render(self, node: ArrayNode | GroupNode) -> dict[str, Json]:
        if isinstance(node, ArrayNode):
            members = _render_array(node) | _extra_members(node.members, _ARRAY_MEMBERS)
        else:
            members = {"node_type": "group"} | _extra_members(node.members, _GROUP_MEMBERS)
        (key,) = self.node_keys(node.path)
        return {key: {"zarr_format": 3, **members, "attributes": dict(node.attributes)}}

    def _expand_consolidated(self, document: Document) -> dict[str, Document] | None:
        members = document.value
        consolidated = members.get(_CONSOLIDATED) if isinstance(members, dict) else None
        if consolidated is None or read_object(consolidated, _CONSOLIDATED).get("kind") != "inline":
            return None
        holder = document.member(_CONSOLIDATED)
        others = split_consolidated(holder, _CONSOLIDATED, groups=_DOCUMENT, suffix=f"/{_DOCUMENT}")
        return {_DOCUMENT: document, **others}

    def render_consolidated(self, documents: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return a dict that contains only the root document, with all other documents embedded.

        The dict is empty if the root is an array.
        """
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

    def complete(
        self, specs: Sequence[CodecSpec], kind_of: Callable[[str], str | None]
    ) -> tuple[CodecSpec, ...]:
        kinds = {spec.name: kind for spec in specs if (kind := kind_of(spec.name)) is not None}
        return complete_chain(specs, kinds) if kinds else tuple(specs)


def _chunk_keys(path: str, encoding: str, separator: str) -> ChunkKeys:
    if encoding == "v2":
        return v2.chunk_keys(path, separator=separator)
    prefix = f"{key_prefix(path)}c"
    return ChunkKeys(prefix + separator, separator, prefix)


def _extra_members(members: Mapping[str, Json], known: frozenset[str]) -> dict[str, Json]:
    """Return the members of extensions, which are all members that are not in `known`.

    Raise UnsupportedError if an extension does not declare ``"must_understand": false``.
    """
    extra = without(members, known)
    for name, value in extra.items():
        if not isinstance(value, dict) or value.get("must_understand") is not False:
            raise unsupported("member", name, name)
    return extra


def _parse_array(members: dict[str, Json], shape: tuple[int, ...]) -> ArrayNode:
    """Parse the metadata of an array, except its path and attributes."""
    extra = _extra_members(members, _ARRAY_MEMBERS)
    for item in read_list(members.get("storage_transformers", []), "storage_transformers"):
        name, _ = read_definition(item, "storage_transformers")
        raise unsupported("storage transformer", name, "storage_transformers")
    data_type = required(members, "data_type")
    cells, runs = _parse_grid(required(members, "chunk_grid"), shape)
    codecs = required(members, "codecs")
    dtype, chain = parse_chain(codecs, parse_data_type(data_type), cells)
    if runs and chain.shards:
        inner = chain.shards[1].shape if chain.shards[1:] else chain.chunk_shape
        for cell, lengths in zip(inner, runs, strict=True):
            if any(length % cell for length, _ in lengths):
                raise unexpected(
                    _render_runs(lengths), f"lengths that are multiples of {cell}", "chunk_grid"
                )
    return ArrayNode(
        path="/",  # the caller sets the path, because many arrays can share this node
        shape=shape,
        dtype=dtype,
        chunk_shape=chain.chunk_shape,
        type_name=data_type,
        fill_value=parse_fill_value(
            required(members, "fill_value"), dtype, text=is_text_type(data_type)
        ),
        codecs=chain.codecs,
        chunk_keys=_parse_chunk_keys(required(members, "chunk_key_encoding")),
        shards=chain.shards,
        chunk_runs=runs,
        dimension_names=_parse_dimension_names(members.get("dimension_names"), len(shape)),
        members=extra,
    )


def _parse_grid(value: Json, shape: tuple[int, ...]) -> tuple[tuple[int, ...], Runs]:
    """Return the shape of the largest chunk (or shard) in a grid, and the runs of the grid.

    The runs are (length, count) pairs for each dimension. They are empty for a regular grid.
    """
    name, configuration = read_definition(value, "chunk_grid")
    place = "chunk_grid.configuration"
    if name == "rectilinear":
        read_text(configuration.get("kind", "inline"), f"{place}.kind", ("inline",))
        listed = read_list(required(configuration, "chunk_shapes", place), place)
        if len(listed) != len(shape):
            raise unexpected(listed, f"{len(shape)} lists, one for each dimension", place)
        runs = tuple([_parse_runs(*pair, place) for pair in zip(listed, shape, strict=True)])
        return tuple([max(length for length, _ in lengths) for lengths in runs]), runs
    if name != "regular":
        raise unsupported("chunk grid", name, "chunk_grid")
    return read_chunk_shape(required(configuration, "chunk_shape", place), place, shape), ()


def _parse_runs(value: Json, size: int, place: str) -> tuple[tuple[int, int], ...]:
    """Parse the chunk lengths along a dimension of length `size` into (length, count) pairs."""
    if not isinstance(value, list):
        length = read_integer(value, place, least=1)
        return ((length, max(1, -(-size // length))),)
    pairs = [item if isinstance(item, list) else [item, 1] for item in value]
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise unexpected(value, "a nonempty list of lengths or [length, count] pairs", place)
    runs = [(read_integer(n, place, least=1), read_integer(m, place, least=1)) for n, m in pairs]
    if sum(length * number for length, number in runs) < size:
        raise unexpected(value, f"chunks that cover all {size} elements", place)
    return tuple(runs)


def _render_runs(runs: tuple[tuple[int, int], ...]) -> Json:
    return [[length, number] if number > 1 else length for length, number in runs]


def _parse_chunk_keys(value: Json) -> ChunkKeys:
    name, configuration = read_definition(value, "chunk_key_encoding")
    if name not in V3.chunk_key_encodings:
        raise unsupported("chunk key encoding", name, "chunk_key_encoding")
    separator = configuration.get("separator", "/" if name == "default" else ".")
    read_text(separator, "chunk_key_encoding.configuration", ("/", "."))
    return _chunk_keys("/", name, separator)


def _parse_dimension_names(value: Json, rank: int) -> tuple[str | None, ...] | None:
    if value is None:
        return None
    names = read_list(value, "dimension_names")
    if len(names) != rank or any(name is not None and not isinstance(name, str) for name in names):
        raise unexpected(names, f"{rank} names or nulls", "dimension_names")
    return tuple(names)


def _render_array(node: ArrayNode) -> dict[str, Json]:
    text = any(spec.name == "vlen-utf8" for spec in node.codecs)
    data_type = render_data_type(node.dtype, node.type_name, text=text)
    members = {
        "node_type": "array",
        "shape": list(node.shape),
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [*node.object_shape]}},
        "chunk_key_encoding": _render_chunk_keys(node.path, node.chunk_keys),
        "fill_value": render_fill_value(node.fill_value, node.dtype, data_type),
        "codecs": render_chain(node),
    }
    if node.chunk_runs:
        grid = {"kind": "inline", "chunk_shapes": [_render_runs(runs) for runs in node.chunk_runs]}
        members["chunk_grid"] = {"name": "rectilinear", "configuration": grid}
    if node.dimension_names is not None:
        members["dimension_names"] = list(node.dimension_names)
    return members


def _render_chunk_keys(path: str, keys: ChunkKeys) -> Json:
    is_default = keys == _chunk_keys(path, "default", keys.separator)
    configuration = {"separator": keys.separator}
    return {"name": "default" if is_default else "v2", "configuration": configuration}
