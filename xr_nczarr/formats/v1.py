"""Zarr v1: an array is ``meta`` beside ``attrs``; there are no groups, but directories of arrays.

Matches the specification and what zarr-python 1 wrote.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from xr_nczarr.errors import NczarrError, UnsupportedError
from xr_nczarr.formats import v2
from xr_nczarr.formats.documents import (
    Document,
    read_integer,
    read_lengths,
    read_members,
    read_object,
    read_text,
    render_json,
    required,
    without,
)
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

ZARR_FORMAT = "1"
CONSOLIDATED_KEY = None

_ARRAY, _ATTRIBUTES = "meta", "attrs"
_MEMBERS = ("shape", "chunks", "dtype", "fill_value", "order")
_OTHER_MEMBERS = ("zarr_format", "compression", "compression_opts")
# How zarr-python 1 spells the codecs that take one number.
_LEVELS = ("zlib", "bz2")


def root_keys() -> tuple[str, ...]:
    """Give the keys to fetch at the root."""
    return node_keys("/")


def node_keys(path: str) -> tuple[str, ...]:
    """Give the keys of the documents that make up the node at `path`."""
    prefix = key_prefix(path)
    return (prefix + _ARRAY, prefix + _ATTRIBUTES)


listing_prefix = v2.listing_prefix
child_names = v2.child_names


def chunk_keys(path: str) -> ChunkKeys:
    """Give the chunk keys of the array at `path`."""
    return v2.chunk_keys(path, separator=".")


def recognise(documents: Mapping[str, Document], path: str = "/") -> bool:
    """Tell whether there is an array of this version at `path`; a directory of them has nothing."""
    key = node_keys(path)[0]
    if key not in documents:
        return False
    members = documents[key].value
    return isinstance(members, dict) and members.get("zarr_format") == 1


def parse_node(
    path: str,
    documents: Mapping[str, Document],
    *,
    limits: Limits = DEFAULT_LIMITS,
    parsed: dict[Hashable, ArrayNode] | None = None,  # noqa: ARG001
) -> Node | None:
    """Give the array at `path`; without ``meta``, the directory that was listed.

    What is wrong with it comes back as BrokenNode.
    """
    key, attributes_key = node_keys(path)
    if key not in documents:
        return None if path == "/" else GroupNode(path=path, explicit=False)
    known: dict[str, Any] = {}
    try:
        members = read_members(documents[key], zarr_format=1)
        known["shape"] = read_lengths(required(members, "shape"), "shape")
        if attributes_key in documents:
            known["attributes"] = documents[attributes_key].attributes()
        known["members"] = without(members, (*_MEMBERS, *_OTHER_MEMBERS))
        metadata = {name: members[name] for name in _MEMBERS if name in members}
        metadata["compressor"] = _parse_compression(members)
        return v2.parse_array(path, metadata, limits=limits, **known)
    except NczarrError as error:
        return BrokenNode(path=path, error=error.located(key=key), **known)


def _parse_compression(members: Mapping[str, Json]) -> Json:
    """Give the compression as v2 spells it: numcodecs' id and configuration."""
    name = members.get("compression")
    if name is None or name == "none":
        return None
    options, place = members.get("compression_opts"), "compression_opts"
    if options is None:
        options = {}
    elif name in _LEVELS:
        options = {"level": read_integer(options, place)}
    return {"id": read_text(name, "compression"), **read_object(options, place)}


def render_node(node: Node) -> dict[str, bytes]:
    """Give the two documents of an array by their keys; none for a group without attributes.

    It is an UnsupportedError to have what v1 cannot express: attributes of groups, filters.
    """
    if isinstance(node, BrokenNode):
        raise node.error
    if isinstance(node, GroupNode):
        if node.attributes or node.members or node.sidecars:
            raise UnsupportedError(
                "found attributes of a group, which Zarr v1 does not have", variable=node.path
            )
        return {}
    key, attributes_key = node_keys(node.path)
    return {key: render_json(_render_array(node)), attributes_key: render_json({**node.attributes})}


def _render_array(node: ArrayNode) -> dict[str, Json]:
    members = v2.render_array(node)
    compressors = [spec for spec in node.codecs if spec.place == "compressor"]
    names = [spec.name for spec in node.codecs if spec.place == "filters"]
    if names or len(compressors) > 1 or "dimension_separator" in members:
        found = f"the filters {', '.join(names)}" if names else "nested chunk keys"
        raise UnsupportedError(
            f"found {found}, which Zarr v1 does not have",
            remedy="Write with one compressor alone (shuffle=False), or as zarr_format=2",
            variable=node.path,
        )
    name, options = _render_compression(compressors[0]) if compressors else (None, None)
    if node.dtype.kind == "f" and isinstance(members["fill_value"], str):
        # zarr-python 1 knew no spelling but that of Python's JSON: bare NaN and Infinity.
        members["fill_value"] = float(members["fill_value"])
    rendered = {"zarr_format": 1, **{name: members[name] for name in _MEMBERS}}
    return rendered | {"compression": name, "compression_opts": options} | dict(node.members)


def _render_compression(spec: CodecSpec) -> tuple[str, Json]:
    if spec.name in _LEVELS:
        return spec.name, spec.configuration.get("level")
    return spec.name, dict(spec.configuration) or None
