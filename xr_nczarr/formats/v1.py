"""Parse and render Zarr v1 metadata: the documents ``meta`` and ``attrs`` of each array.

Groups are directories without documents. This module follows the specification and the
behavior of zarr-python 1.
"""

from __future__ import annotations

from collections.abc import Mapping

from xr_nczarr.errors import UnsupportedError
from xr_nczarr.formats import v2
from xr_nczarr.formats.documents import (
    Document,
    read_integer,
    read_lengths,
    read_members,
    read_object,
    read_text,
    required,
    without,
)
from xr_nczarr.formats.format import Format, Parsing
from xr_nczarr.model import ArrayNode, ChunkKeys, CodecSpec, GroupNode, Json, key_prefix

_ARRAY, _ATTRIBUTES = "meta", "attrs"
_MEMBERS = ("shape", "chunks", "dtype", "fill_value", "order")
_OTHER_MEMBERS = ("zarr_format", "compression", "compression_opts")
# Codecs for which zarr-python 1 stores only the compression level, as a number.
_LEVELS = ("zlib", "bz2")


class V1(Format):
    """The metadata documents and the object keys of Zarr v1."""

    version = "1"
    is_rare = True
    has_groups = False
    implies_groups = True
    has_filters = False
    mixes_byte_orders = True
    requires_fill_value = False
    separates_attributes = True
    separates_compressor = True
    deflate = "zlib"

    def node_keys(self, path: str) -> tuple[str, ...]:
        prefix = key_prefix(path)
        return (prefix + _ARRAY, prefix + _ATTRIBUTES)

    def chunk_keys(self, path: str, *, encoding: str = "", separator: str = "") -> ChunkKeys:
        return v2.chunk_keys(path, separator=".")

    def recognizes(self, documents: Mapping[str, Document], path: str = "/") -> bool:
        document = documents.get(self.node_keys(path)[0])
        members = None if document is None else document.value
        return isinstance(members, dict) and members.get("zarr_format") == 1

    def _parse(self, parsing: Parsing) -> ArrayNode:
        fields = parsing.fields
        members = read_members(parsing.document, zarr_format=1)
        fields["shape"] = read_lengths(required(members, "shape"), "shape")
        attributes = parsing.documents.get(key_prefix(parsing.path) + _ATTRIBUTES)
        if attributes is not None:
            fields["attributes"] = attributes.attributes()
        fields["members"] = without(members, (*_MEMBERS, *_OTHER_MEMBERS))
        metadata = {name: members[name] for name in _MEMBERS if name in members}
        metadata["compressor"] = _parse_compression(members)
        return v2.parse_array(parsing.path, metadata, **fields)

    def _render(self, node: ArrayNode | GroupNode) -> dict[str, Json]:
        """Return the two documents of an array, or an empty dict for a group."""
        if isinstance(node, GroupNode):
            if node.attributes or node.members or node.sidecars:
                raise UnsupportedError(
                    "Zarr v1 does not support group attributes", variable=node.path
                )
            return {}
        key, attributes_key = self.node_keys(node.path)
        return {key: _render_array(node), attributes_key: {**node.attributes}}


def _parse_compression(members: Mapping[str, Json]) -> Json:
    """Return the numcodecs configuration of the compressor, or None if chunks are uncompressed."""
    name = members.get("compression")
    if name is None or name == "none":
        return None
    options, place = members.get("compression_opts"), "compression_opts"
    if options is None:
        options = {}
    elif name in _LEVELS:
        options = {"level": read_integer(options, place)}
    return {"id": read_text(name, "compression"), **read_object(options, place)}


def _render_array(node: ArrayNode) -> dict[str, Json]:
    members = v2.render_array(node, V1.version)
    compressors = [spec for spec in node.codecs if spec.place == "compressor"]
    names = [spec.name for spec in node.codecs if spec.place == "filters"]
    if names or len(compressors) > 1:
        unsupported = f"the filters {', '.join(names)}" if names else "several compressors"
        raise UnsupportedError(
            f"Zarr v1 does not support {unsupported}",
            remedy="Use a single compressor without filters such as shuffle, or pass zarr_format=2",
            variable=node.path,
        )
    name, options = _render_compression(compressors[0]) if compressors else (None, None)
    if node.dtype.kind == "f" and isinstance(members["fill_value"], str):
        # zarr-python 1 writes and reads NaN and Infinity without quotes, as Python's `json` does.
        members["fill_value"] = float(members["fill_value"])
    rendered = {"zarr_format": 1, **{name: members[name] for name in _MEMBERS}}
    return rendered | {"compression": name, "compression_opts": options} | dict(node.members)


def _render_compression(spec: CodecSpec) -> tuple[str, Json]:
    if spec.name in _LEVELS:
        return spec.name, spec.configuration.get("level")
    return spec.name, dict(spec.configuration) or None
