"""Parse and render the codecs and the chunk memory layout of arrays in the Zarr v3 draft."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from xr_nczarr.formats import numcodecs_notation
from xr_nczarr.formats.documents import read_list, read_object, read_text, required
from xr_nczarr.formats.v3_codecs import NUMERIC_CODECS, byte_order, parse_spec, with_bytes
from xr_nczarr.formats.v3_data_types import DType, check_members, unsupported
from xr_nczarr.model import ArrayNode, CodecSpec, Json

_LAYOUT = "chunk_memory_layout"
_URI = "https://purl.org/zarr/spec/codecs/{}/1.0"
_KNOWN_URI = re.compile(r"https?://purl\.org/zarr/spec/codecs?/([a-z0-9_-]+)/1\.[0-9]+")


def parse_filters(members: Mapping[str, Json]) -> list[Json]:
    """Return the filters that zarr-python stores in an array's attributes, or an empty list.

    `members` is the JSON object that describes the array.
    """
    filters = members.get("attributes", {}).get("filters")
    if "codecs" in members or not isinstance(filters, list):
        return []
    named = [isinstance(item, dict) and isinstance(item.get("id"), str) for item in filters]
    return filters if all(named) else []


def parse_codecs(
    members: Mapping[str, Json], filters: Json, rank: int, itemsize: int
) -> list[CodecSpec]:
    """Build the codecs of an array from its memory layout, filters, codecs and compressor.

    `members` is the JSON object that describes the array, `filters` is the result of
    `parse_filters`, `rank` is the number of dimensions, and `itemsize` is the size of an item in
    bytes.
    """
    specs: list[CodecSpec] = []
    order = required(members, _LAYOUT)
    if isinstance(order, dict):
        raise unsupported("chunk memory layout", order.get("extension"), _LAYOUT)
    if read_text(order, _LAYOUT, ("C", "F")) == "F":
        specs.append(CodecSpec("transpose", _reversal(rank), _LAYOUT, order))
    specs += numcodecs_notation.parse_codecs(filters, "filters", itemsize)
    for i, item in enumerate(read_list(members.get("codecs", []), "codecs")):
        specs.append(_parse_codec(item, f"codecs[{i}]", rank, itemsize))
    if members.get("compressor") is not None:
        spec = _parse_codec(members["compressor"], "compressor", rank, itemsize)
        specs.append(replace(spec, place="compressor"))
    return specs


def _reversal(rank: int) -> dict[str, Json]:
    return {"order": [*reversed(range(rank))]}


def _parse_codec(item: Json, place: str, rank: int, itemsize: int) -> CodecSpec:
    check_members(read_object(item, place), ("type", "codec", "configuration"), place)
    uri = read_text(required(item, "codec" if "codec" in item else "type", place), place)
    match = _KNOWN_URI.fullmatch(uri)
    if match is None:
        raise unsupported("codec", uri, place)
    configuration = read_object(item.get("configuration", {}), f"{place}.configuration")
    return parse_spec(match[1], configuration, place, rank, itemsize, item)


def render_codecs(node: ArrayNode, declared: DType) -> dict[str, Json]:
    """Render the ``chunk_memory_layout`` and ``codecs`` members of an array.

    `declared` is the dtype that the rendered ``data_type`` describes. If its byte order differs
    from that of the node's dtype, an ``endian`` codec is added.
    """
    specs = list(node.codecs)
    reversal = _reversal(len(node.shape))
    fortran = bool(specs) and specs[0].name == "transpose" and specs[0].configuration == reversal
    specs = specs[fortran:]
    if declared != node.dtype:
        specs = with_bytes(specs)
    endian = byte_order(node.dtype) or "little"
    rendered = [_render_codec(spec, endian) for spec in specs]
    return {_LAYOUT: "F" if fortran else "C", "codecs": rendered}


def _render_codec(spec: CodecSpec, endian: str) -> Json:
    if spec.name == "bytes":
        return {"type": _URI.format("endian"), "configuration": {"endian": endian}}
    if spec.name in NUMERIC_CODECS:
        raise unsupported("codec", spec.name, "codecs")
    if spec.place == "codecs" and isinstance(spec.document, dict) and "type" in spec.document:
        return spec.document
    return {"type": _URI.format(spec.name), "configuration": dict(spec.configuration)}
