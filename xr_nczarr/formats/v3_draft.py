"""Zarr v3 as the draft of 25 May 2022 has it, and as programs released then wrote it.

The entry point ``zarr.json`` tells which of two layouts a store has. The document keeps metadata
under ``meta/`` and chunks under ``data/``. zarr-python 2.12 to 2.18 and GDAL 3.4 to 3.7 follow an
earlier text: ``meta/root/``, ``data/root/``, one ``compressor``, typestrs, and, of zarr-python,
filters among the attributes.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from xr_nczarr.errors import NczarrError, Place, UnsupportedError, quote, unexpected
from xr_nczarr.formats import v3
from xr_nczarr.formats.data_types import check_members, parse_draft_type, render_draft_type, unknown
from xr_nczarr.formats.documents import (
    Document,
    read_chunk_shape,
    read_lengths,
    read_list,
    read_object,
    read_text,
    render_json,
    required,
    without,
)
from xr_nczarr.formats.fill_values import parse_fill_value, render_fill_value
from xr_nczarr.formats.v3_codecs import (
    draft_filters,
    ordered,
    parse_draft_codecs,
    render_draft_codecs,
)
from xr_nczarr.model import (
    DEFAULT_LIMITS,
    ArrayNode,
    Attributes,
    BrokenNode,
    ChunkKeys,
    GroupNode,
    Json,
    Limits,
    Node,
)

ZARR_FORMAT = "3-draft"
CONSOLIDATED_KEY = None

_ENTRY = "zarr.json"
_URI = "https://purl.org/zarr/spec/core/3.0"
_VERSION = re.compile(r"https?://purl\.org/zarr/spec/(protocol/)?core/3\.([0-9]+)")
_ENTRY_MEMBERS = ("zarr_format", "metadata_encoding", "metadata_key_suffix", "extensions")
_GROUP_MEMBERS = ("attributes", "extensions")
_ARRAY_MEMBERS = frozenset(
    ("attributes", "extensions", "shape", "data_type", "fill_value", "codecs", "chunk_grid")
) | {"chunk_memory_layout", "storage_transformers", "compressor", "dimension_separator"}


def root_keys() -> tuple[str, ...]:
    """Give the keys to fetch at the root, whichever layout the store has."""
    return tuple(dict.fromkeys((*Layout().node_keys("/"), *Layout(released=True).node_keys("/"))))


def recognise(documents: Mapping[str, Document]) -> bool:
    """Tell whether the documents of the root are of the draft, and not of v3."""
    return _ENTRY in documents and not v3.recognise(documents)


def layout(documents: Mapping[str, Document], *, data_type_fallback: bool = False) -> Layout:
    """Give the layout of a store from the documents of its root.

    An entry point that contradicts the draft is a MetadataError, a version, an encoding or an
    extension that is not known here an UnsupportedError with its name.
    """
    with Place(key=_ENTRY):
        members = read_object(documents[_ENTRY].value, None)
        version = read_text(required(members, "zarr_format"), "zarr_format")
        match = _VERSION.fullmatch(version)
        if match is None:
            raise unknown("version", version, "zarr_format")
        later = match[2] != "0"
        if not later:
            check_members(members, _ENTRY_MEMBERS, None)
        _check_extensions(members)
        encoding = required(members, "metadata_encoding")
        suffix = _parse_suffix(encoding, members)
    # Between the end of "root" in keys and the last change of the entry point lie some weeks.
    own, early = (
        documents.keys() & Layout(old, suffix).node_keys("/")[1:] for old in (False, True)
    )
    released = match[1] is not None or isinstance(encoding, str) or bool(early and not own)
    return Layout(released, suffix, later, data_type_fallback)


def _parse_suffix(encoding: Json, members: Mapping[str, Json]) -> str:
    place = "metadata_encoding"
    if isinstance(encoding, dict):
        check_members(encoding, ("type", "metadata_key_suffix"), place)
        name, members = required(encoding, "type", place), encoding
    else:
        name = "json" if _VERSION.fullmatch(read_text(encoding, place)) else encoding
    if name != "json":
        raise unknown("metadata encoding", name, place)
    suffix = read_text(members.get("metadata_key_suffix", ".json"), "metadata_key_suffix")
    if "/" in suffix:
        raise unexpected(suffix, "a suffix without '/'", "metadata_key_suffix")
    return suffix


def _check_extensions(members: Mapping[str, Json]) -> list[Json]:
    """Give the extensions of a document if none of them has to be understood."""
    extensions = read_list(members.get("extensions", []), "extensions")
    for extension in extensions:
        if read_object(extension, "extensions").get("must_understand") is not False:
            raise unknown("extension", extension.get("extension"), "extensions")
    return extensions


@dataclass(frozen=True, slots=True)
class Layout:
    """How a store spells its keys and documents; offers what the modules of other versions do.

    Attributes
    ----------
    released
        Whether keys and documents are those of the programs, not of the document.
    suffix
        What the keys of metadata end in.
    later
        Whether the entry point names a later minor version, whose new members may be ignored.
    data_type_fallback
        Whether the fallback of an unknown extension type is used.
    """

    released: bool = False
    suffix: str = ".json"
    later: bool = False
    data_type_fallback: bool = False

    ZARR_FORMAT: ClassVar[str] = ZARR_FORMAT
    CONSOLIDATED_KEY: ClassVar[None] = CONSOLIDATED_KEY

    def node_keys(self, path: str) -> tuple[str, ...]:
        """Give the keys of the documents that make up the node at `path`."""
        entry = (_ENTRY,) if path == "/" else ()
        return (*entry, self._key(path, "array"), self._key(path, "group"))

    def _key(self, path: str, kind: str) -> str:
        if self.released:
            return f"meta/root{'' if path == '/' else path}.{kind}{self.suffix}"
        return f"meta{path}{'' if path == '/' else '.'}{kind}{self.suffix}"

    def chunk_keys(self, path: str, *, separator: str = "/") -> ChunkKeys:
        """Give the chunk keys of the array at `path`."""
        root = "data/root" if self.released else "data"
        prefix = f"{root}{path.rstrip('/')}/c"
        # Both programs give the one chunk of an array without dimensions an index.
        return ChunkKeys(prefix, separator, f"{prefix}0" if self.released else prefix)

    def listing_prefix(self, path: str) -> str:
        """Give the prefix to list to find the children of the group at `path`."""
        return f"meta{'/root' if self.released else ''}{path.rstrip('/')}/"

    def child_names(self, objects: list[str], prefixes: list[str]) -> list[str]:
        """Give the names that may be children of a group, from the listing below its prefix."""
        document = re.compile(rf"(.+)\.(?:array|group){re.escape(self.suffix)}", re.DOTALL)
        found = (match[1] for match in map(document.fullmatch, objects) if match)
        return list(dict.fromkeys((*found, *prefixes)))

    def parse_node(
        self,
        path: str,
        documents: Mapping[str, Document],
        *,
        limits: Limits = DEFAULT_LIMITS,
        parsed: dict[Hashable, ArrayNode] | None = None,  # noqa: ARG002
    ) -> Node:
        """Give the node at `path`, an implicit group without a document."""
        array_key, group_key = self.node_keys(path)[-2:]
        key = array_key if array_key in documents else group_key
        if key not in documents:
            return GroupNode(path=path, explicit=False)
        document = documents[key]
        known: dict[str, Any] = {}
        try:
            members = read_object(document.value, None)
            if "attributes" in members:
                known["attributes"] = document.attributes("attributes")
            if not self.later:
                names = _GROUP_MEMBERS if key == group_key else _ARRAY_MEMBERS
                check_members(members, names, None)
            extensions = _check_extensions(members)
            known["members"] = {"extensions": extensions} if extensions else {}
            if key == group_key:
                return GroupNode(path=path, **known)
            known["shape"] = read_lengths(required(members, "shape"), "shape")
            return self._parse_array(path, members, limits, known)
        except NczarrError as error:
            return BrokenNode(path=path, error=error.located(key=key), **known)

    def _parse_array(
        self, path: str, members: dict[str, Json], limits: Limits, known: dict[str, Any]
    ) -> ArrayNode:
        rank = len(known["shape"])
        for item in read_list(members.get("storage_transformers", []), "storage_transformers"):
            raise unknown("storage transformer", item, "storage_transformers")
        data_type = required(members, "data_type")
        dtype, type_name = parse_draft_type(data_type, fallback=self.data_type_fallback)
        grid = read_object(required(members, "chunk_grid"), "chunk_grid")
        if "extension" in grid or grid.get("type") != "regular":
            raise unknown("chunk grid", grid.get("extension", grid.get("type")), "chunk_grid")
        separator = read_text(grid.get("separator", "/"), "chunk_grid.separator", ("/", "."))
        filters = draft_filters(members)
        if filters:
            found = known["attributes"]
            known["attributes"] = Attributes(without(found, ("filters",)), found.source)
        dtype, codecs = ordered(dtype, parse_draft_codecs(members, filters, rank))
        chunks, place = required(grid, "chunk_shape", "chunk_grid"), "chunk_grid.chunk_shape"
        fill = required(members, "fill_value")
        if dtype.kind in "OSU" and type(fill) in (int, float) and fill == 0:
            fill = ""  # zarr-python's default for all types
        text = all(spec.name != "vlen-bytes" for spec in codecs)
        return ArrayNode(
            path=path,
            dtype=dtype,
            chunk_shape=read_chunk_shape(chunks, place, dtype=dtype, rank=rank, limits=limits),
            type_name=type_name,
            fill_value=parse_fill_value(fill, dtype, text=text),
            codecs=codecs,
            chunk_keys=self.chunk_keys(path, separator=separator),
            **known,
        )

    def render_node(self, node: Node) -> dict[str, bytes]:
        """Give the documents of a node by their keys, the entry point with the root's, last.

        They are those of the draft: the layout of the released programs is only read.
        """
        if isinstance(node, BrokenNode):
            raise node.error
        if self.released:
            raise UnsupportedError("stores of zarr-python before 3 and of GDAL are only read")
        check_members(node.members, ("extensions",), None)
        documents: dict[str, Json] = {}
        members = {"attributes": dict(node.attributes), **node.members}
        if isinstance(node, ArrayNode):
            members = {**self._render_array(node), "extensions": [], **members}
            documents[self._key(node.path, "array")] = members
        elif node.explicit:
            documents[self._key(node.path, "group")] = members
        if node.path == "/":
            encoding = {"type": "json", "metadata_key_suffix": self.suffix}
            entry = {"zarr_format": _URI, "metadata_encoding": encoding, "extensions": []}
            documents[_ENTRY] = entry
        return {key: render_json(members) for key, members in documents.items()}

    def _render_array(self, node: ArrayNode) -> Json:
        separator = node.chunk_keys.separator
        expressible = not node.shards and not node.chunk_runs
        if not expressible or node.chunk_keys != self.chunk_keys(node.path, separator=separator):
            what = "shards" if node.shards else f"chunk keys like {node.chunk_keys.key((0, 0))}"
            raise UnsupportedError(f"the draft has no {quote(what)}", variable=node.path)
        data_type = render_draft_type(node.dtype, node.type_name)
        spelled, _ = parse_draft_type(data_type, fallback=True)
        fill = render_fill_value(node.fill_value, node.dtype)
        if data_type == f"r{node.dtype.itemsize * 8}":
            fill = f"0x{base64.b64decode(fill).hex()}"
        return {
            "shape": list(node.shape),
            "data_type": data_type,
            "chunk_grid": {
                "type": "regular",
                "chunk_shape": [*node.chunk_shape],
                "separator": separator,
            },
            **render_draft_codecs(node, spelled),
            "fill_value": "+Infinity" if fill == "Infinity" else fill,
        }


_OWN = Layout()
node_keys = _OWN.node_keys
chunk_keys = _OWN.chunk_keys
listing_prefix = _OWN.listing_prefix
child_names = _OWN.child_names
parse_node = _OWN.parse_node
render_node = _OWN.render_node
