"""Zarr v2: ``.zarray`` or ``.zgroup`` beside ``.zattrs``, all of them again in ``.zmetadata``.

Matches the specification, and what zarr-python 2 and 3 and netcdf-c since 4.8.0 write.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from xr_nczarr.errors import MetadataError, NczarrError, UnsupportedError, quote, unexpected
from xr_nczarr.formats.documents import (
    Document,
    read_chunk_shape,
    read_lengths,
    read_members,
    read_object,
    read_text,
    render_json,
    required,
    without,
)
from xr_nczarr.formats.fill_values import parse_v2_fill_value, render_v2_fill_value
from xr_nczarr.formats.typestrings import parse_data_type, render_data_type
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

ZARR_FORMAT = "2"
CONSOLIDATED_KEY = ".zmetadata"
"""Key of the document that may hold all others."""

_ARRAY, _GROUP, _ATTRIBUTES = ".zarray", ".zgroup", ".zattrs"
_DOCUMENTS = frozenset((_ARRAY, _GROUP, _ATTRIBUTES, CONSOLIDATED_KEY))
_NO_NAMES = frozenset(("", ".", ".."))
_MEMBERS = frozenset(
    ("zarr_format", "shape", "dtype", "chunks", "fill_value", "order", "compressor", "filters")
) | {"dimension_separator"}


def root_keys() -> tuple[str, ...]:
    """Give the keys to fetch at the root."""
    return (CONSOLIDATED_KEY, *node_keys("/"))


def node_keys(path: str) -> tuple[str, ...]:
    """Give the keys of the documents that make up the node at `path`."""
    prefix = key_prefix(path)
    return (prefix + _ARRAY, prefix + _GROUP, prefix + _ATTRIBUTES)


listing_prefix = key_prefix


def child_names(objects: list[str], prefixes: list[str]) -> list[str]:  # noqa: ARG001
    """Give the names that may be children of a group, from the listing below its prefix."""
    return prefixes


def recognise(documents: Mapping[str, Document]) -> bool:
    """Tell whether the documents of the root are of this version."""
    return any(key in documents for key in (CONSOLIDATED_KEY, _GROUP, _ARRAY))


def chunk_keys(path: str, *, separator: str | None = None) -> ChunkKeys:
    """Give the chunk keys of the array at `path`; None for a separator that is not declared."""
    prefix = key_prefix(path)
    alternative = "/" if separator is None else ""
    return ChunkKeys(prefix, separator or ".", f"{prefix}0", alternative)


def parse_node(
    path: str,
    documents: Mapping[str, Document],
    *,
    limits: Limits = DEFAULT_LIMITS,
    parsed: dict[Hashable, ArrayNode] | None = None,
) -> Node | None:
    """Give the node at `path`, None when it has neither ``.zarray`` nor ``.zgroup``.

    What is wrong with it comes back as BrokenNode. Hidden documents beside its own, such as those
    of netcdf-c 4.8.0, become its sidecars. `parsed` are the arrays of this opening by the content
    of their document, which most of them share; all that is parsed is added.
    """
    array_key, group_key, attributes_key = node_keys(path)
    key = array_key if array_key in documents else group_key
    if key not in documents:
        return None
    known: dict[str, Any] = {}
    parsed = {} if parsed is None else parsed
    try:
        content = documents[key].content
        array = parsed.get(content) if key == array_key else None
        members = {} if array is not None else read_members(documents[key], zarr_format=2)
        if array is not None:
            known["shape"] = array.shape
        elif key == array_key:
            known["shape"] = read_lengths(required(members, "shape"), "shape")
        if attributes_key in documents:
            known["attributes"] = documents[attributes_key].attributes()
        known["sidecars"] = _parse_sidecars(key_prefix(path), documents)
        if key == group_key:
            return GroupNode(path=path, members=without(members, ("zarr_format",)), **known)
        if array is None:
            extra = without(members, _MEMBERS)
            array = parse_array("/", members, shape=known["shape"], limits=limits, members=extra)
            parsed[content] = array
        del known["shape"]
        return array.placed(path, **known)
    except NczarrError as error:
        return BrokenNode(path=path, error=error.located(key=key), **known)


def _parse_sidecars(prefix: str, documents: Mapping[str, Document]) -> dict[str, Json]:
    names = [key.removeprefix(prefix) for key in documents]
    return {
        name: documents[prefix + name].value
        for name in names
        if name not in _DOCUMENTS and name.startswith(".") and "/" not in name
    }


def parse_array(
    path: str, metadata: Mapping[str, Json], *, shape: tuple[int, ...], limits: Limits, **known: Any
) -> ArrayNode:
    """Give the array that the members of ``.zarray`` describe.

    Members without which an array can be read, which netcdf-c 4.8.0 leaves out, may be absent.
    """
    rank = len(shape)
    dtype, type_name = parse_data_type(required(metadata, "dtype"))
    chunks = read_lengths(required(metadata, "chunks"), "chunks")
    if len(chunks) == rank:  # chunks of length zero are those of a dimension of length zero
        chunks = tuple(n or int(not length) for n, length in zip(chunks, shape, strict=True))
    filters = _parse_codecs(metadata.get("filters"), "filters")
    codecs = (*filters, *_parse_codecs(metadata.get("compressor"), "compressor"))
    if read_text(metadata.get("order", "C"), "order", ("C", "F")) == "F":
        transpose = CodecSpec("transpose", {"order": [*reversed(range(rank))]}, "order")
        codecs = (transpose, *codecs)
    separator = None
    if "dimension_separator" in metadata:
        separator = read_text(metadata["dimension_separator"], "dimension_separator", (".", "/"))
    return ArrayNode(
        path=path,
        shape=shape,
        dtype=dtype,
        chunk_shape=read_chunk_shape(list(chunks), "chunks", dtype=dtype, rank=rank, limits=limits),
        type_name=type_name,
        fill_value=parse_v2_fill_value(
            metadata.get("fill_value"),
            dtype,
            type_name=type_name,
            binary=any(spec.name == "vlen-bytes" for spec in filters),
        ),
        codecs=codecs,
        chunk_keys=chunk_keys(path, separator=separator),
        **known,
    )


def _parse_codecs(value: Json, place: str) -> tuple[CodecSpec, ...]:
    listed = [] if value is None else value if isinstance(value, list) else [value]
    specs = []
    for document in listed:
        name = read_text(required(read_object(document, place), "id"), place)
        configuration = without(document, ("id",))
        specs.append(CodecSpec(name, respelled(name, configuration), place, document))
    return tuple(specs)


def respelled(name: str, configuration: dict[str, Json]) -> dict[str, Json]:
    """Give the configuration of a codec as numcodecs spells it, also where GDAL does not."""
    if name != "lzma" or "delta" not in configuration:
        return configuration
    delta = {"id": 3, "dist": configuration["delta"]}
    lzma = {"id": 0x21, "preset": configuration.get("preset", 6)}
    return {"format": 1, "check": -1, "preset": None, "filters": [delta, lzma]}


def render_node(node: Node) -> dict[str, bytes]:
    """Give the documents of a node by their keys, if v2 can express its types, codecs and keys."""
    if isinstance(node, BrokenNode):
        raise node.error
    array_key, group_key, attributes_key = node_keys(node.path)
    key, members = group_key, {"zarr_format": 2}
    if isinstance(node, ArrayNode):
        key, members = array_key, members | render_array(node)
    documents = {key: members | dict(node.members), attributes_key: dict(node.attributes)}
    for name, value in node.sidecars.items():
        documents[key_prefix(node.path) + name] = value
    return {key: render_json(value) for key, value in documents.items()}


def render_array(node: ArrayNode) -> dict[str, Json]:
    """Give the members of ``.zarray``, without `zarr_format` and without those of extensions."""
    separator = node.chunk_keys.separator
    if separator not in (".", "/") or node.chunk_keys != chunk_keys(node.path, separator=separator):
        raise _inexpressible(f"chunk keys like {node.chunk_keys.key((0, 0))}", node)
    if node.shards or node.chunk_runs:
        raise _inexpressible("shards" if node.shards else "a rectilinear grid", node)
    codecs = node.codecs
    transposed = bool(codecs) and codecs[0].place == "order"
    if transposed and codecs[0].configuration["order"] != [*reversed(range(len(node.shape)))]:
        raise _inexpressible("a transposition that is no reversal of all axes", node)
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
            raise _inexpressible(f"the codec {spec.name} under {spec.place}", node)
        by_place[spec.place].append(
            {"id": spec.name, **spec.configuration} if spec.document is None else spec.document
        )
    compressors = by_place["compressor"]
    members["compressor"] = compressors if len(compressors) > 1 else next(iter(compressors), None)
    members["filters"] = by_place["filters"] or None
    return members if separator == "." else members | {"dimension_separator": separator}


def _inexpressible(found: str, node: ArrayNode) -> UnsupportedError:
    return UnsupportedError(
        f"found {quote(found)}, which Zarr v2 cannot express", variable=node.path
    )


def expand_consolidated(document: Document) -> dict[str, Document]:
    """Return all documents that a consolidated document holds by their keys, in its order.

    Raises
    ------
    MetadataError
        Also for a document that does not say that it is one: all writers say so.
    """
    members = read_object(document.value, None)
    version = members.get("zarr_consolidated_format")
    if version is None:
        raise MetadataError(
            "found nothing: the document does not say that it is consolidated metadata",
            remedy="Open with consolidated=False to read the single documents",
            place="zarr_consolidated_format",
        )
    if type(version) is not int or version != 1:
        raise unexpected(version, "1", "zarr_consolidated_format")
    held = read_object(required(members, "metadata"), "metadata")
    inner = document.member("metadata")
    return {key: _member(inner, key, value) for key, value in held.items()}


def _member(inner: Document, key: str, value: Json) -> Document:
    check_key(key, "metadata", inner.key)
    # Some writers store the text of each document.
    found = Document(key, value) if isinstance(value, str) else inner.member(key, key=key)
    if key.endswith(_GROUP) and isinstance(value, dict) and "consolidated_metadata" in value:
        # zarr-python 3 says so of each group within; the group's own document does not.
        found.value = without(value, ("consolidated_metadata",))
    return found


def check_key(key: str, place: str, document: str) -> None:
    """Refuse a key that a consolidated document names and that could lead elsewhere."""
    if not _NO_NAMES.isdisjoint(key.split("/")):
        problem = f"found the key {quote(key)}, expected names joined by '/'"
        raise MetadataError(problem, place=place, key=document)


def render_consolidated(documents: Mapping[str, bytes]) -> dict[str, bytes]:
    """Give the document that holds all others, each as it is spelled."""
    held = (
        b"%b: %b" % (render_json(key), _checked(key, data))
        for key, data in documents.items()
        if key.rpartition("/")[2] in (_ARRAY, _GROUP, _ATTRIBUTES)
    )
    metadata = b", ".join(held)
    return {CONSOLIDATED_KEY: b'{"metadata": {%b}, "zarr_consolidated_format": 1}' % metadata}


def _checked(key: str, data: bytes) -> bytes:
    read_object(Document(key, data).value, None)
    return data.removeprefix(b"\xef\xbb\xbf").strip()
