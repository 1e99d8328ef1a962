"""Parse and render Zarr v2 metadata: ``.zarray``, ``.zgroup``, ``.zattrs`` and ``.zmetadata``.

This module follows the specification and the behavior of zarr-python 2 and 3 and of netCDF-C 4.8.0
and later.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xr_nczarr.errors import MetadataError, UnsupportedError, quote, unexpected
from xr_nczarr.formats.documents import (
    Document,
    read_chunk_shape,
    read_lengths,
    read_members,
    read_object,
    read_text,
    render_json,
    required,
    split_consolidated,
    without,
)
from xr_nczarr.formats.fill_values import CHARACTERS, parse_v2_fill_value, render_v2_fill_value
from xr_nczarr.formats.format import Format, NodeKind, Parsing
from xr_nczarr.formats.numcodecs_notation import POINTER_BYTES, parse_codecs
from xr_nczarr.formats.typestrings import parse_data_type, render_data_type
from xr_nczarr.model import ArrayNode, ChunkKeys, CodecSpec, GroupNode, Json, key_prefix

_ARRAY, _GROUP, _ATTRIBUTES, _CONSOLIDATED = ".zarray", ".zgroup", ".zattrs", ".zmetadata"
_DOCUMENTS = frozenset((_ARRAY, _GROUP, _ATTRIBUTES, _CONSOLIDATED))
_READ_EACH_NODE = "Open the store with consolidated=False to read the metadata of each node"
_MEMBERS = frozenset(
    ("zarr_format", "shape", "dtype", "chunks", "fill_value", "order", "compressor", "filters")
) | {"dimension_separator"}


class V2(Format):
    """The metadata documents and the object keys of Zarr v2."""

    version = "2"
    consolidated_key = _CONSOLIDATED
    consolidated_by_default = True
    has_sidecars = True
    mixes_byte_orders = True
    requires_fill_value = False
    separates_attributes = True
    separates_compressor = True
    chunk_key_encodings = ("v2",)
    deflate = "zlib"

    def node_keys(self, path: str) -> tuple[str, ...]:
        prefix = key_prefix(path)
        return (prefix + _ARRAY, prefix + _GROUP, prefix + _ATTRIBUTES)

    def document_key(self, path: str, kind: NodeKind) -> str:
        return key_prefix(path) + (_ARRAY if kind == "array" else _GROUP)

    def chunk_keys(self, path: str, *, encoding: str = "", separator: str = "") -> ChunkKeys:
        return chunk_keys(path, separator=separator or ".")

    def recognizes(self, documents: Mapping[str, Document], path: str = "/") -> bool:
        return not documents.keys().isdisjoint((_CONSOLIDATED, *self.node_keys(path)[:2]))

    def _parse(self, parsing: Parsing) -> ArrayNode | GroupNode:
        path, documents, fields = parsing.path, parsing.documents, parsing.fields
        cache_key = parsing.document.content
        array = parsing.parsed.get(cache_key) if parsing.kind == "array" else None
        members = {} if array is not None else read_members(parsing.document, zarr_format=2)
        if array is not None:
            fields["shape"] = array.shape
        elif parsing.kind == "array":
            fields["shape"] = read_lengths(required(members, "shape"), "shape")
        attributes = documents.get(key_prefix(path) + _ATTRIBUTES)
        if attributes is not None:
            fields["attributes"] = attributes.attributes()
        names = {key.removeprefix(key_prefix(path)): key for key in documents}
        # Zarr v2 does not define these hidden documents, such as the ones of netCDF-C 4.8.0.
        fields["sidecars"] = {
            name: documents[key].value
            for name, key in names.items()
            if name not in _DOCUMENTS and name.startswith(".") and "/" not in name
        }
        if parsing.kind == "group":
            return GroupNode(path=path, members=without(members, ("zarr_format",)), **fields)
        if array is None:
            shape, extra = fields["shape"], without(members, _MEMBERS)
            array = parse_array("/", members, shape=shape, members=extra)
            parsing.parsed[cache_key] = array
        return array.at_path(path, **fields)

    def _render(self, node: ArrayNode | GroupNode) -> dict[str, Json]:
        array_key, group_key, attributes_key = self.node_keys(node.path)
        key, members = group_key, {"zarr_format": 2}
        if isinstance(node, ArrayNode):
            key, members = array_key, members | render_array(node)
        sidecars = {key_prefix(node.path) + name: node.sidecars[name] for name in node.sidecars}
        members |= node.members
        return {key: members, attributes_key: dict(node.attributes), **sidecars}

    def _expand_consolidated(self, document: Document) -> dict[str, Document]:
        try:
            members = read_object(document.value, None)
        except MetadataError as error:
            error.remedy = error.remedy or _READ_EACH_NODE
            raise
        version = members.get("zarr_consolidated_format")
        if version is None:  # every known writer includes this member
            raise MetadataError(
                'the required member "zarr_consolidated_format" is missing, so the document is not '
                "consolidated metadata",
                remedy=_READ_EACH_NODE,
                place="zarr_consolidated_format",
            )
        if type(version) is not int or version != 1:
            raise unexpected(version, "1", "zarr_consolidated_format")
        # Some writers store each document as a JSON string.
        return split_consolidated(document, groups=_GROUP, with_texts=True)

    def render_consolidated(self, documents: Mapping[str, bytes]) -> dict[str, bytes]:
        """Return a dict that contains only ``.zmetadata``, rendered from `documents`.

        Documents that Zarr v2 does not define are left out.
        """
        held = (
            b"%b: %b" % (render_json(key), _checked(key, data))
            for key, data in documents.items()
            if key.rpartition("/")[2] in (_ARRAY, _GROUP, _ATTRIBUTES)
        )
        metadata = b", ".join(held)
        return {_CONSOLIDATED: b'{"metadata": {%b}, "zarr_consolidated_format": 1}' % metadata}


def chunk_keys(path: str, *, separator: str = "") -> ChunkKeys:
    """Return the mapping from chunk indices to keys for the array at `path`.

    `separator` is empty if the metadata does not declare a separator. Chunks are then looked up
    with ``.`` first and with ``/`` second, because such arrays can use either.
    """
    prefix = key_prefix(path)
    return ChunkKeys(prefix, separator or ".", f"{prefix}0", "" if separator else "/")


def parse_array(
    path: str,
    metadata: Mapping[str, Json],
    *,
    shape: tuple[int, ...],
    **fields: Any,
) -> ArrayNode:
    """Parse an array from the members of ``.zarray``.

    Members that netCDF-C 4.8.0 omits are optional, because the array can be read without them.
    `fields` contains the values of additional `ArrayNode` fields.
    """
    type_name = required(metadata, "dtype")
    dtype = parse_data_type(type_name)
    is_string = dtype.kind in "SO" and type_name not in CHARACTERS
    itemsize = POINTER_BYTES if is_string else dtype.itemsize
    filters = parse_codecs(metadata.get("filters"), "filters", itemsize)
    codecs = (*filters, *parse_codecs(metadata.get("compressor"), "compressor", itemsize))
    if read_text(metadata.get("order", "C"), "order", ("C", "F")) == "F":
        transpose = CodecSpec("transpose", {"order": [*reversed(range(len(shape)))]}, "order")
        codecs = (transpose, *codecs)
    separator = ""
    if "dimension_separator" in metadata:
        separator = read_text(metadata["dimension_separator"], "dimension_separator", (".", "/"))
    return ArrayNode(
        path=path,
        shape=shape,
        dtype=dtype,
        chunk_shape=read_chunk_shape(required(metadata, "chunks"), "chunks", shape),
        type_name=type_name,
        fill_value=parse_v2_fill_value(
            metadata.get("fill_value"),
            dtype,
            type_name=type_name,
            binary=any(spec.name == "vlen-bytes" for spec in filters),
        ),
        codecs=codecs,
        chunk_keys=chunk_keys(path, separator=separator),
        **fields,
    )


def render_array(node: ArrayNode, version: str = V2.version) -> dict[str, Json]:
    """Render the members of ``.zarray``, except ``zarr_format`` and unknown members.

    `version` is the Zarr version to name in error messages.

    Raises
    ------
    UnsupportedError
        If Zarr v2 cannot represent the array. In this case, Zarr v1 cannot represent it either.
    """
    codecs = node.codecs
    transposed = bool(codecs) and codecs[0].place == "order"
    if transposed and codecs[0].configuration["order"] != [*reversed(range(len(node.shape)))]:
        raise _inexpressible("a transposition other than the reversal of all axes", node, version)
    members = {
        "shape": list(node.shape),
        "dtype": render_data_type(node.dtype, node.type_name),
        "chunks": list(node.chunk_shape),
        "fill_value": render_v2_fill_value(node.fill_value, node.dtype, type_name=node.type_name),
        "order": "F" if transposed else "C",
    }
    by_place: dict[str, list[Json]] = {"filters": [], "compressor": []}
    for spec in codecs[transposed:]:
        if spec.place not in by_place or (spec.place == "filters" and by_place["compressor"]):
            raise _inexpressible(
                f'the codec {spec.name} in its current position in "{spec.place}"', node, version
            )
        by_place[spec.place].append(
            {"id": spec.name, **spec.configuration} if spec.document is None else spec.document
        )
    compressors = by_place["compressor"]
    members["compressor"] = compressors if len(compressors) > 1 else next(iter(compressors), None)
    members["filters"] = by_place["filters"] or None
    if not node.chunk_keys.alternative:
        members["dimension_separator"] = node.chunk_keys.separator
    return members


def _inexpressible(feature: str, node: ArrayNode, version: str) -> UnsupportedError:
    problem = f"Zarr v{version} does not support {quote(feature)}"
    return UnsupportedError(problem, variable=node.path)


def _checked(key: str, data: bytes) -> bytes:
    read_object(Document(key, data).value, None)
    return data.removeprefix(b"\xef\xbb\xbf").strip()
