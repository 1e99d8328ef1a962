"""Parse and render metadata of the Zarr v3 draft of 25 May 2022, which exists in two variants.

In the variant that the text of the draft describes, metadata keys begin with ``meta/`` and chunk
keys with ``data/``. The other variant is an earlier version of the draft, which zarr-python 2.12 to
2.18 and GDAL 3.4 to 3.7 implement. In this earlier version, keys begin with ``meta/root/`` and
``data/root/``, an array has at most one ``compressor``, and data types are typestrings. zarr-python
also stores filters in the attributes.

The entry point ``zarr.json`` and the keys of the root documents show which variant a store uses.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from xr_nczarr.errors import ErrorContext, UnsupportedError, unexpected
from xr_nczarr.formats import numcodecs_notation, typestrings
from xr_nczarr.formats.documents import (
    Document,
    read_chunk_shape,
    read_lengths,
    read_list,
    read_object,
    read_text,
    required,
    without,
)
from xr_nczarr.formats.fill_values import parse_fill_value, render_fill_value
from xr_nczarr.formats.format import Format, NodeKind, Parsing
from xr_nczarr.formats.v3 import V3
from xr_nczarr.formats.v3_codecs import (
    NUMERIC_CODECS,
    byte_order,
    check_byte_order,
    encoded_type,
    move_byte_order,
    parse_spec,
    with_bytes,
)
from xr_nczarr.formats.v3_data_types import (
    NUMERIC_TYPES,
    DType,
    check_members,
    find_core_type,
    unsupported,
)
from xr_nczarr.model import ArrayNode, Attributes, ChunkKeys, CodecSpec, GroupNode, Json

_ENTRY = "zarr.json"
_URI = "https://purl.org/zarr/spec/core/3.0"
_VERSION = re.compile(r"https?://purl\.org/zarr/spec/(protocol/)?core/3\.0")
_ENTRY_MEMBERS = ("zarr_format", "metadata_encoding", "metadata_key_suffix", "extensions")
_GROUP_MEMBERS = ("attributes", "extensions")
_ARRAY_MEMBERS = frozenset(
    ("attributes", "extensions", "shape", "data_type", "fill_value", "codecs", "chunk_grid")
) | {"chunk_memory_layout", "storage_transformers", "compressor", "dimension_separator"}

_TYPESTRING = re.compile(r"[<>](?:[iuf][248]|c8|c16)|\|?(?:b1|[iu]1)")
# URIs of the extensions that zarr-python 2.12 to 2.18 and an example in the specification use.
# Their ``type`` is in NumPy's notation.
_EXTENSION = re.compile(
    r"(?:https://purl\.org/zarr/spec/|https://zarr-specs\.readthedocs\.io/|TODO: ).*"
    r"(?:datetime|complex|object|bytestring|unicode|structured)"
)
_NUMPY_TYPES = "https://numpy.org/doc/stable/reference/arrays.interface.html"

_LAYOUT = "chunk_memory_layout"
_CODEC_URI = "https://purl.org/zarr/spec/codecs/{}/1.0"
_KNOWN_CODEC_URI = re.compile(r"https?://purl\.org/zarr/spec/codecs?/([a-z0-9_-]+)/1\.[0-9]+")


@dataclass(frozen=True)
class V3Draft(Format):
    """One of the two variants of the Zarr v3 draft.

    Attributes
    ----------
    released
        Whether the store uses the variant that zarr-python 2 and GDAL write. Otherwise, it uses the
        variant that the text of the draft describes.
    suffix
        The suffix of metadata keys, such as ``".json"``.
    data_type_fallback
        Whether an unknown extension type is read as its fallback type.
    """

    version = "3-draft"
    is_rare = True
    implies_groups = True

    released: bool = False
    suffix: str = ".json"
    data_type_fallback: bool = False

    def root_keys(self) -> tuple[str, ...]:
        """Return the keys that identify a store of either variant of the draft.

        The variant is determined later, by `resolved`.
        """
        released = replace(self, released=True)
        return tuple(dict.fromkeys((*self.node_keys("/"), *released.node_keys("/"))))

    def node_keys(self, path: str) -> tuple[str, ...]:
        entry = (_ENTRY,) if path == "/" else ()
        return (*entry, self.document_key(path, "array"), self.document_key(path, "group"))

    def document_key(self, path: str, kind: NodeKind) -> str:
        if self.released:
            return f"meta/root{'' if path == '/' else path}.{kind}{self.suffix}"
        return f"meta{path}{'' if path == '/' else '.'}{kind}{self.suffix}"

    def chunk_keys(self, path: str, *, encoding: str = "", separator: str = "") -> ChunkKeys:
        root = "data/root" if self.released else "data"
        prefix = f"{root}{path.rstrip('/')}/c"
        # zarr-python and GDAL add an index to the key of a scalar's only chunk.
        return ChunkKeys(prefix, separator or "/", f"{prefix}0" if self.released else prefix)

    def listing_prefix(self, path: str) -> str:
        return f"meta{'/root' if self.released else ''}{path.rstrip('/')}/"

    def child_names(self, objects: list[str], prefixes: list[str]) -> list[str]:
        document = re.compile(rf"(.+)\.(?:array|group){re.escape(self.suffix)}", re.DOTALL)
        names = (match[1] for match in map(document.fullmatch, objects) if match)
        return list(dict.fromkeys((*names, *prefixes)))

    def node_path(self, folder: str) -> str | None:
        if folder.partition("/")[0] == "meta":
            return None
        return "/" + re.sub("^data(/root)?(/|$)", "", folder)

    def recognizes(self, documents: Mapping[str, Document], path: str = "/") -> bool:
        """Return whether ``zarr.json`` follows the draft rather than the final v3 spec."""
        return _ENTRY in documents and not V3().recognizes(documents)

    def resolved(
        self, documents: Mapping[str, Document], *, data_type_fallback: bool = False
    ) -> V3Draft:
        """Return the variant of the draft that a store uses, based on its root documents.

        Raises
        ------
        MetadataError
            If the entry point ``zarr.json`` violates the draft.
        UnsupportedError
            If the entry point declares an unknown version, encoding or extension.
        """
        with ErrorContext(key=_ENTRY):
            members = read_object(documents[_ENTRY].value, None)
            version = read_text(required(members, "zarr_format"), "zarr_format")
            match = _VERSION.fullmatch(version)
            if match is None:
                raise unsupported("version", version, "zarr_format")
            check_members(members, _ENTRY_MEMBERS, None)
            _check_extensions(members)
            encoding = required(members, "metadata_encoding")
            suffix = _parse_suffix(encoding, members)
        # The entry point and the keys of the draft changed some weeks apart, so check the keys too.
        current, early = (
            documents.keys() & V3Draft(old, suffix).node_keys("/")[1:] for old in (False, True)
        )
        released = match[1] is not None or isinstance(encoding, str) or bool(early and not current)
        return V3Draft(released, suffix, data_type_fallback)

    def _parse(self, parsing: Parsing) -> ArrayNode | GroupNode:
        path, fields = parsing.path, parsing.fields
        members = read_object(parsing.document.value, None)
        if "attributes" in members:
            fields["attributes"] = parsing.document.attributes("attributes")
        names = _GROUP_MEMBERS if parsing.kind == "group" else _ARRAY_MEMBERS
        check_members(members, names, None)
        extensions = _check_extensions(members)
        fields["members"] = {"extensions": extensions} if extensions else {}
        if parsing.kind == "group":
            return GroupNode(path=path, **fields)
        fields["shape"] = read_lengths(required(members, "shape"), "shape")
        return self._parse_array(path, members, fields)

    def _parse_array(
        self, path: str, members: dict[str, Json], fields: dict[str, Any]
    ) -> ArrayNode:
        shape: tuple[int, ...] = fields["shape"]
        for item in read_list(members.get("storage_transformers", []), "storage_transformers"):
            raise unsupported("storage transformer", item, "storage_transformers")
        data_type = required(members, "data_type")
        dtype = parse_data_type(data_type, fallback=self.data_type_fallback)
        grid = read_object(required(members, "chunk_grid"), "chunk_grid")
        if "extension" in grid or grid.get("type") != "regular":
            raise unsupported("chunk grid", grid.get("extension", grid.get("type")), "chunk_grid")
        separator = read_text(grid.get("separator", "/"), "chunk_grid.separator", ("/", "."))
        filters = _parse_filters(members)
        if filters:
            attributes = fields["attributes"]
            fields["attributes"] = Attributes(without(attributes, ("filters",)), attributes.source)
        specs = _parse_codecs(members, filters, len(shape), dtype.itemsize)
        dtype, codecs = move_byte_order(dtype, specs)
        chunks = required(grid, "chunk_shape", "chunk_grid")
        fill = required(members, "fill_value")
        if dtype.kind in "OSU" and type(fill) in (int, float) and fill == 0:
            fill = ""  # zarr-python writes 0 as the default fill value of every type
        text = all(spec.name != "vlen-bytes" for spec in codecs)
        raw = dtype if self.released else None  # zarr-python uses the array's byte order
        return ArrayNode(
            path=path,
            dtype=dtype,
            chunk_shape=read_chunk_shape(chunks, "chunk_grid.chunk_shape", shape),
            type_name=data_type,
            fill_value=parse_fill_value(fill, dtype, text=text, bytes_dtype=raw),
            codecs=codecs,
            chunk_keys=self.chunk_keys(path, separator=separator),
            **fields,
        )

    def check_writable(self) -> None:
        if self.released:
            raise UnsupportedError(
                "stores that zarr-python 2 or GDAL wrote in the format of the Zarr v3 draft are "
                "read-only",
                remedy="Write the data to a new store",
            )

    def _render(self, node: ArrayNode | GroupNode) -> dict[str, Json]:
        check_members(node.members, ("extensions",), None)
        documents: dict[str, Json] = {}
        members = {"attributes": dict(node.attributes), **node.members}
        if isinstance(node, ArrayNode):
            members = {**self._render_array(node), "extensions": [], **members}
            documents[self.document_key(node.path, "array")] = members
        elif node.explicit:
            documents[self.document_key(node.path, "group")] = members
        if node.path == "/":  # the entry point is written last
            encoding = {"type": "json", "metadata_key_suffix": self.suffix}
            documents[_ENTRY] = {
                "zarr_format": _URI,
                "metadata_encoding": encoding,
                "extensions": [],
            }
        return documents

    def _render_array(self, node: ArrayNode) -> Json:
        data_type = render_data_type(node.dtype, node.type_name)
        declared = parse_data_type(data_type, fallback=True)
        fill = render_fill_value(node.fill_value, node.dtype)
        if data_type == f"r{node.dtype.itemsize * 8}":
            fill = f"0x{base64.b64decode(fill).hex()}"
        return {
            "shape": list(node.shape),
            "data_type": data_type,
            "chunk_grid": {
                "type": "regular",
                "chunk_shape": [*node.chunk_shape],
                "separator": node.chunk_keys.separator,
            },
            **_render_codecs(node, declared),
            "fill_value": "+Infinity" if fill == "Infinity" else fill,
        }


def _parse_suffix(encoding: Json, members: Mapping[str, Json]) -> str:
    place = "metadata_encoding"
    if isinstance(encoding, dict):
        check_members(encoding, ("type", "metadata_key_suffix"), place)
        name, members = required(encoding, "type", place), encoding
    else:
        name = "json" if _VERSION.fullmatch(read_text(encoding, place)) else encoding
    if name != "json":
        raise unsupported("metadata encoding", name, place)
    suffix = read_text(members.get("metadata_key_suffix", ".json"), "metadata_key_suffix")
    if "/" in suffix:
        raise unexpected(suffix, "a suffix without '/'", "metadata_key_suffix")
    return suffix


def _check_extensions(members: Mapping[str, Json]) -> list[Json]:
    """Return the extensions of a document, or raise UnsupportedError if one cannot be ignored."""
    extensions = read_list(members.get("extensions", []), "extensions")
    for extension in extensions:
        if read_object(extension, "extensions").get("must_understand") is not False:
            raise unsupported("extension", extension.get("extension"), "extensions")
    return extensions


def parse_data_type(value: Json, *, fallback: bool) -> DType:
    """Parse a ``data_type`` of the Zarr v3 draft: a name, a typestring, or an extension.

    If `fallback` is True, an unknown extension is parsed as the fallback type that it declares.

    Raises
    ------
    UnsupportedError
        If the type is unknown and has no usable fallback.
    """
    place = "data_type"
    if isinstance(value, str):
        dtype = _find_type(value, place)
        if dtype is None:
            raise unsupported("data type", value, place)
        return dtype
    members = read_object(value, place)
    check_members(members, ("extension", "type", "fallback"), place)
    extension = read_text(required(members, "extension", place), f"{place}.extension")
    if extension != _NUMPY_TYPES and not _EXTENSION.match(extension):
        return _parse_fallback(extension, members.get("fallback"), fallback)
    described = required(members, "type", place)
    match described:
        case [["", raw]]:  # NumPy's notation for raw bytes
            described = raw
    return typestrings.parse_data_type(described, f"{place}.type")


def _find_type(name: str, place: str) -> DType | None:
    return np.dtype(name) if _TYPESTRING.fullmatch(name) else find_core_type(name, place)


def _parse_fallback(extension: str, value: Json, fallback: bool) -> DType:
    place = "data_type.fallback"
    error = unsupported("data type", extension, "data_type")
    for name in value if isinstance(value, list) else [value]:
        dtype = None if name is None else _find_type(read_text(name, place), place)
        if dtype is not None and fallback:
            return dtype
        if dtype is not None:
            error.remedy = (
                f"To read the data as {name}, open the store with on_unsupported='fallback'"
            )
            break
    raise error


def render_data_type(dtype: DType, stored: Json = None) -> Json:
    """Render a dtype as a ``data_type`` of the Zarr v3 draft.

    `stored` is the data type in the array's original metadata. If this type still describes
    `dtype`, return it unchanged.

    Otherwise, numeric types are rendered by name, without a byte order. Raw bytes are rendered by a
    name such as ``r16``. All other types are rendered as an extension with a typestring. For types
    with fixed-size items, the extension declares raw bytes as its fallback type.
    """
    if typestrings.describes(stored, dtype, partial(parse_data_type, fallback=True)):
        return stored
    if dtype.newbyteorder("<") in NUMERIC_TYPES.values():
        return dtype.name
    if dtype.kind not in "mMOSUV" or not typestrings.is_numpy_dtype(dtype):
        raise typestrings.unsupported_dtype(dtype, "the draft of Zarr v3")
    raw = f"r{dtype.itemsize * 8}"
    if dtype.kind == "V" and dtype.names is None:
        return raw
    members = {"extension": _NUMPY_TYPES, "type": typestrings.render_data_type(dtype)}
    return members if dtype.kind == "O" else members | {"fallback": raw}


def _parse_filters(members: Mapping[str, Json]) -> list[Json]:
    """Return the filters that zarr-python stores in an array's attributes, or an empty list."""
    filters = members.get("attributes", {}).get("filters")
    if "codecs" in members or not isinstance(filters, list):
        return []
    named = [isinstance(item, dict) and isinstance(item.get("id"), str) for item in filters]
    return filters if all(named) else []


def _parse_codecs(
    members: Mapping[str, Json], filters: Json, rank: int, itemsize: int
) -> list[CodecSpec]:
    """Parse the memory layout, filters, codecs and compressor of an array into one codec chain."""
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
    match = _KNOWN_CODEC_URI.fullmatch(uri)
    if match is None:
        raise unsupported("codec", uri, place)
    configuration = read_object(item.get("configuration", {}), f"{place}.configuration")
    return parse_spec(match[1], configuration, place, rank, itemsize, item)


def _render_codecs(node: ArrayNode, declared: DType) -> dict[str, Json]:
    """Render the members ``chunk_memory_layout`` and ``codecs`` of an array's metadata.

    `declared` is the dtype that the rendered ``data_type`` describes.
    """
    specs = list(node.codecs)
    reversal = _reversal(len(node.shape))
    fortran = bool(specs) and specs[0].name == "transpose" and specs[0].configuration == reversal
    specs = specs[fortran:]
    if declared != node.dtype:  # the byte order differs, so an ``endian`` codec must store it
        dtype = node.dtype
        for spec in specs:
            check_byte_order(spec, dtype, "the draft of Zarr v3")
            dtype = encoded_type(spec, dtype)
        specs = with_bytes(specs)
    endian = byte_order(node.dtype) or "little"
    rendered = [_render_codec(spec, endian) for spec in specs]
    return {_LAYOUT: "F" if fortran else "C", "codecs": rendered}


def _render_codec(spec: CodecSpec, endian: str) -> Json:
    if spec.name == "bytes":
        return {"type": _CODEC_URI.format("endian"), "configuration": {"endian": endian}}
    if spec.name in NUMERIC_CODECS:
        raise unsupported("codec", spec.name, "codecs")
    if spec.place == "codecs" and isinstance(spec.document, dict) and "type" in spec.document:
        return spec.document
    return {"type": _CODEC_URI.format(spec.name), "configuration": dict(spec.configuration)}
