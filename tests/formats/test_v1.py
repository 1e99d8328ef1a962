"""Zarr v1 documents are parsed into nodes, and nodes are rendered as documents."""

import json
from dataclasses import replace

import numpy as np
import pytest

from xr_nczarr.errors import MetadataError, UnsupportedError
from xr_nczarr.formats import FORMATS
from xr_nczarr.formats.documents import Document
from xr_nczarr.formats.v2 import parse_array
from xr_nczarr.model import (
    ArrayNode,
    Attributes,
    BrokenNode,
    ChunkKeys,
    CodecSpec,
    GroupNode,
    Limits,
)

v1 = FORMATS["1"]
v2 = FORMATS["2"]

# The examples of the specification.
BLOSC = {
    "chunks": [1000, 1000],
    "compression": "blosc",
    "compression_opts": {"clevel": 5, "cname": "lz4", "shuffle": 1},
    "dtype": "<f8",
    "fill_value": None,
    "order": "C",
    "shape": [10000, 10000],
    "zarr_format": 1,
}
ZLIB = {
    "chunks": [10, 10],
    "compression": "zlib",
    "compression_opts": 1,
    "dtype": "<i4",
    "fill_value": 42,
    "order": "C",
    "shape": [20, 20],
    "zarr_format": 1,
}
ATTRIBUTES = {"foo": 42, "bar": "apples", "baz": [1, 2, 3, 4]}


def documents(meta, attrs=None, prefix=""):
    held = {f"{prefix}meta": meta, f"{prefix}attrs": {} if attrs is None else attrs}
    return {key: Document(key, json.dumps(value).encode()) for key, value in held.items()}


def test_example_from_v1_spec_is_parsed():
    assert v1.recognizes(documents(BLOSC))
    assert v1.parse_node("/", documents(ZLIB, ATTRIBUTES)) == ArrayNode(
        path="/",
        shape=(20, 20),
        dtype=np.dtype("<i4"),
        chunk_shape=(10, 10),
        type_name="<i4",
        fill_value=np.int32(42),
        codecs=(CodecSpec("zlib", {"level": 1}, "compressor"),),
        chunk_keys=ChunkKeys("", ".", "0"),
        attributes=Attributes(ATTRIBUTES),
    )


@pytest.mark.parametrize(
    ("compression", "options", "configuration"),
    [
        ("blosc", {"cname": "zstd", "clevel": 3, "shuffle": 2}, None),
        ("blosc", None, {}),
        ("zlib", 9, {"level": 9}),
        ("zlib", None, {}),
        ("bz2", 1, {"level": 1}),
        ("lzma", {"format": 1, "check": -1, "preset": None, "filters": None}, None),
        ("other", {"a": 1}, None),
    ],
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_compression_settings_round_trip_as_numcodecs_codecs(
    compression, options, configuration, order
):
    meta = BLOSC | {"compression": compression, "compression_opts": options, "order": order}
    node = v1.parse_node("/", documents(meta))
    expected = CodecSpec(compression, configuration or options or {}, "compressor")
    assert node.codecs[-1] == expected
    assert len(node.codecs) == 1 + (order == "F")
    rendered = {key: json.loads(data) for key, data in v1.render_node(node).items()}
    assert rendered == {"meta": meta, "attrs": {}}


@pytest.mark.parametrize("compression", [None, "none"])
def test_array_without_compression_has_no_codecs(compression):
    meta = BLOSC | {"compression": compression, "compression_opts": None}
    node = v1.parse_node("/", documents(meta))
    assert node.codecs == ()
    assert json.loads(v1.render_node(node)["meta"])["compression"] is None


def test_unknown_members_round_trip():
    held = documents(ZLIB | {"extra": {"a": 1}}, ATTRIBUTES)
    node = v1.parse_node("/", held)
    assert node.members == {"extra": {"a": 1}}
    again = v1.render_node(node)
    assert {key: json.loads(data) for key, data in again.items()} == {
        key: document.value for key, document in held.items()
    }


def test_arrays_in_nested_directories_are_parsed():
    node = v1.parse_node("/a/b", documents(ZLIB, prefix="a/b/"))
    assert node.chunk_keys.key((1, 2)) == "a/b/1.2"
    assert set(v1.render_node(node)) == {"a/b/meta", "a/b/attrs"}
    assert v1.parse_node("/", {}) == GroupNode(path="/", explicit=False)
    directory = v1.parse_node("/a", {})
    assert directory == GroupNode(path="/a", explicit=False)
    assert v1.render_node(directory) == {}
    assert v1.listing_prefix("/a") == "a/"
    assert v1.child_names(["x"], ["b"]) == ["b"]
    assert v1.consolidated_key is None


@pytest.mark.parametrize("meta", [{}, [], {"zarr_format": 2}, BLOSC | {"zarr_format": "1"}])
def test_metadata_without_zarr_format_1_is_not_recognized_as_v1(meta):
    assert not v1.recognizes(documents(meta))
    assert not v1.recognizes({})
    assert isinstance(v1.parse_node("/", documents(meta)), BrokenNode)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("shape", [1]),
        ("chunks", [0, 0]),
        ("compression", 5),
        ("compression_opts", "fast"),
        ("order", "A"),
        ("dtype", 1),
    ],
)
def test_error_for_damaged_member_includes_its_name(place, value):
    node = v1.parse_node("/v", documents(BLOSC | {place: value}, ATTRIBUTES, "v/"))
    assert isinstance(node, BrokenNode)
    assert isinstance(node.error, MetadataError)
    assert node.error.key == "v/meta"
    assert node.error.place == (place if place != "shape" else "chunks")
    assert dict(node.attributes) == ATTRIBUTES


def test_chunk_byte_limit_applies_to_v1_arrays():
    node = v1.parse_node("/", documents(BLOSC), limits=Limits(max_chunk_bytes=1000))
    assert "max_chunk_bytes" in str(node.error)


@pytest.mark.parametrize(
    ("changes", "feature"),
    [
        ({"filters": [{"id": "shuffle", "elementsize": 4}]}, "the filters shuffle"),
        ({"dimension_separator": "/"}, "chunk keys such as 0/0"),
        ({"compressor": [{"id": "zlib"}, {"id": "zlib"}]}, "several compressors"),
    ],
)
def test_rendering_unrepresentable_node_raises_unsupported_error(changes, feature):
    members = {name: BLOSC[name] for name in ("shape", "chunks", "dtype", "order")}
    node = parse_array("/", members | changes, shape=(10000, 10000))
    with pytest.raises(UnsupportedError, match=f"Zarr v1 does not support {feature}"):
        v1.render_node(node)


@pytest.mark.parametrize("version", ["1", "2"])
def test_error_for_unsupported_transpose_includes_requested_zarr_version(version):
    members = {name: BLOSC[name] for name in ("shape", "chunks", "dtype")}
    node = parse_array("/", members, shape=(10000, 10000))
    identity = CodecSpec("transpose", {"order": [0, 1]}, "order")
    with pytest.raises(UnsupportedError, match=f"Zarr v{version} does not support a transpos"):
        FORMATS[version].render_node(replace(node, codecs=(identity,)))


def test_group_attributes_are_rejected_in_v1():
    with pytest.raises(UnsupportedError, match="group"):
        v1.render_node(GroupNode(path="/", attributes=Attributes({"a": 1})))
    with pytest.raises(MetadataError):
        v1.render_node(v1.parse_node("/", documents({})))
