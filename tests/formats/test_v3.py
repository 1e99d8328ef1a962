"""Zarr v3 documents from many programs are parsed into nodes, and nodes are rendered."""

import json
from dataclasses import replace

import numpy as np
import pytest
import tensorstore
import zarr
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    ZstdCodec,
)

from tests.stores import read_objects
from xr_nczarr.errors import LimitError, MetadataError, UnsupportedError
from xr_nczarr.formats import FORMATS
from xr_nczarr.formats.documents import Document
from xr_nczarr.formats.fill_values import parse_fill_value, render_fill_value
from xr_nczarr.formats.v3_data_types import parse_data_type, render_data_type
from xr_nczarr.model import (
    ArrayNode,
    Attributes,
    BrokenNode,
    CodecSpec,
    GroupNode,
    Limits,
    ShardSpec,
)

v3 = FORMATS["3"]

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
INDEX = [LITTLE, {"name": "crc32c"}]
EXAMPLE = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [10000, 1000],
    "dimension_names": ["rows", "columns"],
    "data_type": "float64",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1000, 100]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "codecs": [LITTLE, {"name": "gzip", "configuration": {"level": 1}}],
    "fill_value": "NaN",
    "attributes": {"foo": 42, "bar": "apples", "baz": [1, 2, 3, 4]},
}


def sharded(chunk_shape, codecs, **configuration):
    configuration = {"chunk_shape": chunk_shape, "codecs": codecs, "index_codecs": INDEX} | (
        configuration or {"index_location": "end"}
    )
    return {"name": "sharding_indexed", "configuration": configuration}


def parse(members, path="/a", **options):
    key = v3.node_keys(path)[0]
    return v3.parse_node(path, {key: Document(key, json.dumps(members).encode())}, **options)


def rendered(node):
    (data,) = v3.render_node(node).values()
    return json.loads(data)


def failure(**members):
    node = parse({**EXAMPLE, **members})
    assert isinstance(node, BrokenNode), node
    assert node.error.key == "a/zarr.json"
    return node.error


def test_example_from_v3_spec_round_trips():
    node = parse(EXAMPLE)
    assert (node.shape, node.chunk_shape, node.dtype) == ((10000, 1000), (1000, 100), "<f8")
    assert node.type_name == "float64"
    assert np.isnan(node.fill_value)
    assert node.codecs == (CodecSpec("bytes"), CodecSpec("gzip", {"level": 1}))
    assert node.dimension_names == ("rows", "columns")
    assert dict(node.attributes) == EXAMPLE["attributes"]
    assert node.chunk_keys.key((1, 2)) == "a/c/1/2"
    assert rendered(node) == EXAMPLE


@pytest.mark.parametrize(
    ("encoding", "keys"),
    [
        ({"name": "default"}, ("a/c/1/2", "a/c", "c/1/2", "c")),
        ("default", ("a/c/1/2", "a/c", "c/1/2", "c")),
        (
            {"name": "default", "configuration": {"separator": "."}},
            ("a/c.1.2", "a/c", "c.1.2", "c"),
        ),
        ({"name": "v2"}, ("a/1.2", "a/0", "1.2", "0")),
        ({"name": "v2", "configuration": {"separator": "/"}}, ("a/1/2", "a/0", "1/2", "0")),
    ],
)
def test_chunk_keys_follow_chunk_key_encoding(encoding, keys):
    nodes = [parse({**EXAMPLE, "chunk_key_encoding": encoding}, path) for path in ("/a", "/")]
    result = [node.chunk_keys.key(index) for node in nodes for index in ((1, 2), ())]
    assert tuple(result) == keys
    assert parse(rendered(nodes[0])).chunk_keys == nodes[0].chunk_keys


# Real writers ------------------------------------------------------------------------------

ZARR_TYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64"),
    *("complex64", "complex128", "M8[ns]", "M8[10D]", "m8[h]", "U3", "S5", "V4", "string", "bytes"),
    [("a", "<i4"), ("b", "<f8")],
    [("a", "<i4"), ("n", [("x", "S3"), ("y", "<U2")])],
]
ZARR_FILLS = [
    ("float32", np.nan),
    ("float64", np.inf),
    ("float16", -np.inf),
    ("float32", 0.1),
    ("complex64", complex(np.nan, -np.inf)),
    ("S5", b"abc"),
    ("U3", "é"),
    ("V4", np.void(b"\1\2\3\4")),
    ([("a", "<i4"), ("b", "<f8")], (1, 2.5)),
    ("M8[ns]", np.datetime64("NaT", "ns")),
    ("M8[s]", np.datetime64("2000-01-01")),
    ("uint64", 2**63),
    ("string", "x y"),
    ("bytes", b"q"),
    ("bool", True),
]
ZARR_OPTIONS = {
    "default": {},
    "gzip": {"compressors": GzipCodec(level=3)},
    "blosc": {"compressors": BloscCodec(typesize=4, cname="zstd", shuffle="bitshuffle", clevel=1)},
    "checksums": {"compressors": [ZstdCodec(level=3, checksum=True), Crc32cCodec()]},
    "transpose": {"filters": [TransposeCodec(order=(1, 0))]},
    "names": {"dimension_names": ["x", None]},
    "repeated names": {"dimension_names": ["x", "x"]},
    "shards": {"shards": (4, 8)},
    "index at start": {"shards": {"shape": (4, 8), "index_location": "start"}},
    "big": {"serializer": BytesCodec(endian="big")},
    "v2 keys": {"chunk_key_encoding": {"name": "v2", "separator": "."}},
    "dots": {"chunk_key_encoding": {"name": "default", "separator": "."}},
    "numcodecs": {
        "filters": [{"name": "numcodecs.delta", "configuration": {"dtype": "<i4"}}],
        "compressors": [
            {"name": "numcodecs.shuffle", "configuration": {"elementsize": 4}},
            {"name": "numcodecs.zlib", "configuration": {"level": 1}},
        ],
    },
    "nested shards": {
        "chunks": (8, 8),
        "serializer": ShardingCodec(
            chunk_shape=(4, 8), codecs=[ShardingCodec(chunk_shape=(2, 2), codecs=[BytesCodec()])]
        ),
        "compressors": None,
    },
    "compressed shards": {
        "chunks": (4, 8),
        "serializer": ShardingCodec(chunk_shape=(2, 2), codecs=[BytesCodec()]),
        "compressors": GzipCodec(),
    },
}


def written_by_zarr(**options):
    store = zarr.storage.MemoryStore()
    array = zarr.create_array(store, **options)
    return array, json.loads(store._store_dict["zarr.json"].to_bytes())


def assert_same_value(result, expected):
    np.testing.assert_array_equal(np.asarray(result), np.asarray(expected))


@pytest.mark.parametrize(
    ("dtype", "fill"), [(dtype, None) for dtype in ZARR_TYPES] + ZARR_FILLS, ids=str
)
def test_data_types_and_fill_values_from_zarr_python_round_trip(dtype, fill):
    dtype = dtype if isinstance(dtype, str) else np.dtype(dtype)
    array, members = written_by_zarr(shape=(4,), chunks=(2,), dtype=dtype, fill_value=fill)
    node = parse(members)
    if node.dtype.kind != "O":
        assert node.dtype == array.dtype
    assert_same_value(node.fill_value, array.fill_value)
    assert {**rendered(node), "storage_transformers": []} == members
    renamed = parse(rendered(replace(node, type_name=None)))  # with this package's own type name
    assert (renamed.dtype, renamed.codecs) == (node.dtype, node.codecs)
    assert_same_value(renamed.fill_value, node.fill_value)


@pytest.mark.parametrize("options", ZARR_OPTIONS.values(), ids=ZARR_OPTIONS)
def test_array_layouts_from_zarr_python_round_trip(options):
    options = {"shape": (8, 8), "chunks": (2, 2), "dtype": "int32", **options}
    array, members = written_by_zarr(**options)
    node = parse(members, "/")
    assert node.object_shape == (array.shards or array.metadata.chunk_grid.chunk_shape)
    assert node.chunk_keys.key((0, 1)) == array.metadata.encode_chunk_key((0, 1))
    assert node.dimension_names == array.metadata.dimension_names
    assert {**rendered(node), "storage_transformers": []} == members
    bare = replace(
        node,
        codecs=tuple(replace(spec, document=None) for spec in node.codecs),
        shards=tuple(
            replace(
                shard,
                codecs=tuple(replace(spec, document=None) for spec in shard.codecs),
                index_codecs=tuple(replace(spec, document=None) for spec in shard.index_codecs),
            )
            for shard in node.shards
        ),
    )
    assert {**rendered(bare), "storage_transformers": []} == members


@pytest.mark.parametrize(
    "members",
    [
        {"shape": [4], "data_type": "float32", "fill_value": "0x7fc00001"},
        {"shape": [4], "data_type": "complex64", "fill_value": ["NaN", 1.0]},
        {"shape": [], "data_type": "int8"},
        {"shape": [0], "data_type": "bool", "dimension_names": ["x"]},
        {
            "shape": [4, 6],
            "data_type": "uint16",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 6]}},
            "codecs": [
                {"name": "transpose", "configuration": {"order": [1, 0]}},
                sharded([3, 2], [{"name": "gzip", "configuration": {"level": 6}}]),
            ],
        },
        {
            "shape": [4],
            "data_type": "uint16",
            "codecs": [{"name": "bytes"}, {"name": "crc32c"}, {"name": "blosc"}],
        },
    ],
)
def test_array_metadata_from_tensorstore_round_trips(members, tmp_path):
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/a/", "metadata": members}
    written = tensorstore.open(spec, create=True).result()
    node = parse(json.loads((tmp_path / "a/zarr.json").read_bytes()))
    assert node.shape == written.shape
    assert node.dtype == written.dtype.numpy_dtype
    assert node.object_shape == (written.chunk_layout.write_chunk.shape or ())
    again = {**spec, "kvstore": f"file://{tmp_path}/b/", "metadata": rendered(node)}
    reopened = tensorstore.open(again, create=True).result()
    assert reopened.spec().to_json()["metadata"] == written.spec().to_json()["metadata"]
    assert_same_value(reopened.fill_value, node.fill_value)


def test_transpose_before_sharding_also_transposes_inner_chunks():
    transposed = {"name": "transpose", "configuration": {"order": [1, 0]}}
    grid = {"name": "regular", "configuration": {"chunk_shape": [4, 6]}}
    shape = {"shape": [4, 6], "chunk_grid": grid}
    node = parse({**EXAMPLE, **shape, "codecs": [transposed, sharded([3, 2], [LITTLE])]})
    index_codecs = CodecSpec("bytes", {"endian": "little"}), CodecSpec("crc32c")
    assert node.shards == (ShardSpec((4, 6), index_codecs, leading=1, order=(1, 0)),)
    assert node.chunk_shape == (2, 3)
    assert node.codecs == (CodecSpec("transpose", {"order": [1, 0]}), CodecSpec("bytes"))
    error = failure(**shape, codecs=[sharded([3, 2], [LITTLE])])
    assert "divides [4, 6]" in str(error)


# Types and fill values ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data_type", "dtype"),
    [
        ("r24", "V3"),
        ({"name": "int8"}, "i1"),
        ({"name": "int8", "configuration": {}}, "i1"),
        ("variable_length_bytes", object),
        ({"name": "numpy.datetime64", "configuration": {"unit": "generic"}}, "<M8"),
        (
            {
                "name": "struct",
                "configuration": {"fields": [{"name": "x", "data_type": "float32"}]},
            },
            [("x", "<f4")],
        ),
    ],
)
def test_alternative_data_type_names_round_trip(data_type, dtype):
    parsed = parse_data_type(data_type)
    assert parsed == np.dtype(dtype)
    text = data_type == "string"
    assert render_data_type(parsed.newbyteorder(">"), data_type, text=text) == data_type


@pytest.mark.parametrize(
    ("data_type", "error"),
    [
        ("float8_e4m3", UnsupportedError),
        ("<f8", UnsupportedError),
        ("r7", MetadataError),
        ("r99999999992", UnsupportedError),
        ("r8000000000", LimitError),
        (5, MetadataError),
        ({"configuration": {}}, MetadataError),
        ({"name": "int8", "configuration": {"x": 1}}, UnsupportedError),
        ({"name": "fixed_length_utf32", "configuration": {"length_bytes": 6}}, MetadataError),
        ({"name": "fixed_length_utf32", "configuration": {"length_bytes": 0}}, MetadataError),
        ({"name": "raw_bytes", "configuration": {"length_bytes": 1 << 40}}, LimitError),
        ({"name": "numpy.datetime64", "configuration": {"unit": "eon"}}, MetadataError),
        (
            {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1 << 31}},
            MetadataError,
        ),
        ({"name": "struct", "configuration": {"fields": []}}, MetadataError),
        ({"name": "struct", "configuration": {"fields": [["a", "string"]]}}, UnsupportedError),
        (
            {"name": "struct", "configuration": {"fields": [["a", "int8"], ["a", "int8"]]}},
            MetadataError,
        ),
        (
            {
                "name": "struct",
                "configuration": {"fields": [["a", "r80000000"], ["b", "r80000000"]]},
            },
            LimitError,
        ),
    ],
    ids=str,
)
def test_error_for_invalid_data_type_includes_path(data_type, error):
    result = failure(data_type=data_type)
    assert type(result) is error
    assert result.place.startswith("data_type")


@pytest.mark.parametrize(
    ("dtype", "value", "expected"),
    [
        ("<f4", "0x3f800000", np.float32(1)),
        (">f4", "0x3f800000", np.float32(1)),
        ("<f8", "+Infinity", np.inf),
        ("<f2", "0b0011110000000000", np.float16(1)),
        ("<i4", -5.0, np.int32(-5)),
        ("<i2", "0xfffe", np.int16(-2)),
        ("u1", "", np.uint8(0)),
        ("u1", "X", np.uint8(88)),
        ("<c8", ["0x3f800000", "-Infinity"], np.complex64(complex(1, -np.inf))),
        ("V3", [1, 2, 3], np.void(b"\1\2\3")),
        ("V3", "AQID", np.void(b"\1\2\3")),
        ("V3", "0x010203", np.void(b"\1\2\3")),
        ("V3", "", np.void(b"\0\0\0")),
        ("S5", "YWJj", b"abc"),
        ("<M8[s]", "NaT", np.datetime64("NaT", "ns")),
        ([("a", ">i4")], "AQAAAA==", np.array((1,), [("a", ">i4")])),
        ([("a", "<i4"), ("b", "<f8")], {"a": 1, "b": "Infinity"}, (1, np.inf)),
        ("<f8", None, None),
    ],
    ids=str,
)
def test_every_fill_value_notation_is_parsed(dtype, value, expected):
    dtype = np.dtype(dtype)
    fill = parse_fill_value(value, dtype)
    if expected is None:
        assert fill is None
    else:
        assert fill.dtype.kind == dtype.kind
        assert_same_value(fill, np.array(expected, dtype))


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("<f4", 1e300),
        ("<f4", 10**400),
        ("<f4", "1.5"),
        ("<f4", "0x3f8"),
        ("<f4", True),
        ("u1", 256),
        ("u1", -1),
        ("u1", 1.5),
        ("u1", "XY"),
        ("u1", True),
        ("?", 1),
        ("?", "0x01"),
        ("<c8", 1.0),
        ("<c8", [1.0]),
        ("V3", [1, 2]),
        ("V3", [1, 2, 256]),
        ("V3", "nonsense!"),
        ("S2", "YWJj"),
        ("<U2", "abc"),
        ("<U2", 5),
        ("O", 5),
        ("<M8[s]", 2**63),
        ("<M8[s]", "2000"),
        ([("a", "<i4")], {}),
        ([("a", "<i4")], {"a": None}),
        ([("a", "<i4")], [1]),
        ([("a", "<U1")], "AQEBAQ=="),
    ],
    ids=str,
)
def test_fill_values_of_wrong_type_or_range_are_rejected(dtype, value):
    with pytest.raises(MetadataError) as caught:
        parse_fill_value(value, np.dtype(dtype))
    assert caught.value.place.startswith("fill_value")


def test_undefined_fill_value_is_rendered_as_zero():
    node = parse({**EXAMPLE, "fill_value": None})
    assert node.fill_value is None
    assert rendered(node)["fill_value"] == 0.0


@given(st.integers(0, 2**32 - 1))
def test_float_fill_values_round_trip_bit_for_bit(bits):
    dtype = np.dtype("<f4")
    value = np.array([bits], "<u4").view(dtype)[0]
    again = parse_fill_value(json.loads(json.dumps(render_fill_value(value, dtype))), dtype)
    assert again.tobytes() == value.tobytes()


UNKNOWN = {"name": "example.codec", "configuration": {"level": [1, {"a": None}]}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
TURNED = {"name": "transpose", "configuration": {"order": [1, 0]}}
STRANGE_CHAINS = {
    "of arrays": [UNKNOWN, LITTLE],
    "of arrays, in the other byte order": [UNKNOWN, BIG],
    "of arrays behind another": [TURNED, UNKNOWN, BIG, {"name": "crc32c"}],
    "from arrays to bytes": [UNKNOWN],
    "from arrays to bytes, compressed": [UNKNOWN, {"name": "crc32c"}],
    "of bytes": [BIG, UNKNOWN],
    "with a short name": [LITTLE, "short"],
}


@pytest.mark.parametrize("within", [False, True])
@pytest.mark.parametrize("kind", STRANGE_CHAINS)
def test_unknown_codecs_are_written_unchanged(kind, within):
    codecs = STRANGE_CHAINS[kind]
    if within:
        codecs = [sharded(list(EXAMPLE["chunk_grid"]["configuration"]["chunk_shape"]), codecs)]
    node = parse({**EXAMPLE, "codecs": codecs})
    assert rendered(node)["codecs"] == codecs


# Rejected and accepted members -------------------------------------------------------------

ASIDE = {"name": "example", "must_understand": False}


def test_unknown_optional_members_round_trip():
    node = parse({**EXAMPLE, "hint": ASIDE})
    assert node.members == {"hint": ASIDE}
    assert rendered(node) == {**EXAMPLE, "hint": ASIDE}
    group = parse({"zarr_format": 3, "node_type": "group", "hint": ASIDE})
    assert group == GroupNode(path="/a", members={"hint": ASIDE})


@pytest.mark.parametrize(
    ("members", "named"),
    [
        ({"hint": {"name": "example"}}, "hint"),
        ({"hint": {"must_understand": True}}, "hint"),
        ({"hint": 5}, "hint"),
        ({"storage_transformers": [{"name": "spooling"}]}, "spooling"),
        ({"chunk_grid": {"name": "hexagons"}}, "hexagons"),
        ({"chunk_key_encoding": {"name": "suffix"}}, "suffix"),
        ({"codecs": [LITTLE, {"name": "packbits"}]}, "packbits"),
        ({"codecs": [{**LITTLE, "version": 2}]}, "version"),
    ],
)
def test_error_for_unsupported_extension_includes_its_name(members, named):
    error = failure(**members)
    assert isinstance(error, UnsupportedError)
    assert named in str(error)


@pytest.mark.parametrize(
    ("members", "place"),
    [
        ({"zarr_format": 4}, "zarr_format"),
        ({"zarr_format": True}, "zarr_format"),
        ({"node_type": "table"}, "node_type"),
        ({"shape": [-1, 5]}, "shape"),
        ({"shape": [2**62, 2**62]}, "shape"),
        ({"shape": "10"}, "shape"),
        ({"attributes": []}, "attributes"),
        ({"chunk_grid": {"name": "regular"}}, "chunk_grid.configuration.chunk_shape"),
        ({"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [5]}}}, "chunk_grid"),
        (
            {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 5]}}},
            "chunk_grid",
        ),
        (
            {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "x"}}},
            "chunk_key_encoding",
        ),
        ({"codecs": {}}, "codecs"),
        ({"codecs": [{"name": "bytes"}]}, "codecs"),
        ({"codecs": [LITTLE, LITTLE]}, "codecs"),
        ({"codecs": []}, "codecs"),
        ({"codecs": [{"name": "gzip", "configuration": {"level": 1}}]}, "codecs"),
        ({"codecs": [LITTLE, {"name": "transpose", "configuration": {"order": "F"}}]}, "codecs"),
        ({"codecs": [{"name": "bytes", "configuration": {"endian": "middle"}}]}, "codecs[0]"),
        ({"codecs": [{"name": "transpose", "configuration": {"order": [0, 0]}}]}, "codecs[0]"),
        ({"codecs": [sharded([1000, 100], [sharded([300, 7], [LITTLE])])]}, "codecs[0]"),
        ({"codecs": [sharded([1000], [LITTLE])]}, "codecs[0]"),
        ({"codecs": [LITTLE, sharded([1000, 100], [LITTLE])]}, "codecs"),
        ({"dimension_names": ["x"]}, "dimension_names"),
        ({"dimension_names": ["x", 5]}, "dimension_names"),
        ({"storage_transformers": {}}, "storage_transformers"),
    ],
)
def test_error_for_damaged_member_includes_its_path(members, place):
    error = failure(**members)
    assert isinstance(error, MetadataError)
    assert error.place.startswith(place)


@pytest.mark.parametrize(
    "codec",
    [
        {"name": "bytes", "configuration": {"endian": "little", "packed": 4}},
        {"name": "transpose", "configuration": {"order": [1, 0], "packed": 4}},
    ],
)
def test_unknown_codec_members_are_rejected(codec):
    error = failure(codecs=[codec, LITTLE][: 1 + (codec["name"] == "transpose")])
    assert isinstance(error, UnsupportedError)
    assert (error.place, "packed" in str(error)) == ("codecs[0]", True)


@pytest.mark.parametrize("name", sorted(set(EXAMPLE) - {"attributes", "dimension_names"}))
def test_error_for_missing_member_includes_its_name(name):
    members = {key: value for key, value in EXAMPLE.items() if key != name}
    node = parse(members)
    assert isinstance(node.error, MetadataError)
    assert node.error.place == name


def test_broken_array_keeps_shape_and_attributes():
    node = parse({**EXAMPLE, "data_type": "float8_e4m3"})
    assert node.shape == (10000, 1000)
    assert dict(node.attributes) == EXAMPLE["attributes"]


def test_chunk_byte_limit_applies_to_inner_chunks_of_shards():
    limits = Limits(max_chunk_bytes=100_000)
    assert isinstance(parse(EXAMPLE, limits=limits).error, LimitError)
    codecs = [sharded([100, 10], [LITTLE])]
    assert isinstance(parse({**EXAMPLE, "codecs": codecs}, limits=limits), ArrayNode)
    codecs.append({"name": "gzip"})
    assert isinstance(parse({**EXAMPLE, "codecs": codecs}, limits=limits).error, LimitError)


def test_arrays_with_equal_documents_keep_their_shapes_if_chunks_are_too_large():
    parsed = {}
    for path in ("/a", "/b"):
        node = parse(EXAMPLE, path, limits=Limits(max_chunk_bytes=1), parsed=parsed)
        assert isinstance(node.error, LimitError)
        assert node.shape == (10000, 1000)


@pytest.mark.parametrize(
    ("codecs", "dtype", "named"),
    [
        ([CodecSpec("shuffle"), CodecSpec("delta", {"dtype": "<f8"})], "<f8", "shuffle, delta"),
        ([CodecSpec("json2")], "O", "variable-length items"),
        ([], [("a", "<i4"), ("b", ">i4")], "fields with different byte orders"),
        ([], "f16", "no data type"),
    ],
)
def test_rendering_unrepresentable_node_raises_unsupported_error(codecs, dtype, named):
    node = replace(
        parse(EXAMPLE), dtype=np.dtype(dtype), type_name=None, fill_value=None, codecs=tuple(codecs)
    )
    with pytest.raises(UnsupportedError, match=named):
        v3.render_node(node)


@pytest.mark.parametrize(("name", "number"), [("noshuffle", 0), ("shuffle", 1), ("bitshuffle", 2)])
def test_blosc_shuffle_names_map_to_numcodecs_constants(name, number):
    blosc = {"cname": "lz4", "clevel": 5, "shuffle": name, "blocksize": 0, "typesize": 8}
    node = parse({**EXAMPLE, "codecs": [LITTLE, {"name": "blosc", "configuration": blosc}]})
    del blosc["typesize"]
    assert node.codecs[1].configuration == {**blosc, "shuffle": number}


def test_unknown_blosc_shuffle_name_is_rejected():
    blosc = {"cname": "lz4", "clevel": 5, "shuffle": "foo", "blocksize": 0, "typesize": 8}
    node = parse({**EXAMPLE, "codecs": [LITTLE, {"name": "blosc", "configuration": blosc}]})
    assert "invalid value 'foo'; expected \"noshuffle\" or" in str(node.error)


@pytest.mark.parametrize(
    ("dtype", "spelling"),
    [("<f8", "<f8"), ("<f8", "int8"), ("<f8", ""), ("<f8", {"extension": 1})],
)
def test_data_type_name_that_contradicts_dtype_is_not_written(dtype, spelling):
    assert render_data_type(np.dtype(dtype), spelling) == "float64"


def test_v2_codecs_are_rendered_with_names_known_to_zarr_python():
    node = replace(
        parse(EXAMPLE),
        dtype=np.dtype(">i4"),
        type_name=">i4",
        fill_value=np.int32(7),
        codecs=(
            CodecSpec("transpose", {"order": [1, 0]}, "order", "F"),
            CodecSpec("shuffle", {"elementsize": 4}, "filters", {"id": "shuffle"}),
            CodecSpec("zlib", {"level": 4}, "compressor", {"id": "zlib", "level": 4}),
        ),
    )
    members = rendered(node)
    assert members["data_type"] == "int32"
    assert members["codecs"] == [
        {"name": "transpose", "configuration": {"order": [1, 0]}},
        {"name": "bytes", "configuration": {"endian": "big"}},
        {"name": "numcodecs.shuffle", "configuration": {"elementsize": 4}},
        {"name": "numcodecs.zlib", "configuration": {"level": 4}},
    ]
    store = zarr.storage.MemoryStore()
    data = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(
        json.dumps(members).encode()
    )
    store._store_dict["zarr.json"] = data
    assert zarr.open_array(store).fill_value == 7


# Laws --------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
attributes = st.dictionaries(st.text(max_size=8), json_values, max_size=3).map(Attributes)
dtypes = st.sampled_from(
    [np.dtype(code) for code in ("?", "i1", "<i2", ">i8", "<u4", ">f4", "<f8", "<c8", "S3")]
    + [np.dtype(code) for code in ("<U2", ">U2", "V5", "<M8[7s]", ">m8")]
    + [np.dtype([("a", ">i4"), ("b", "S3")])]
)
compressors = st.sampled_from(
    [
        CodecSpec("gzip", {"level": 3}),
        CodecSpec("zstd", {"level": -1, "checksum": True}),
        CodecSpec("blosc", {"cname": "zstd", "clevel": 9, "shuffle": 2, "blocksize": 0}),
        CodecSpec("crc32c"),
        CodecSpec("bz2", {"level": 9}),
        CodecSpec("fletcher32"),
        CodecSpec("acme.squeeze", {"hard": True}),
    ]
)


@st.composite
def array_nodes(draw):
    path = draw(st.sampled_from(["/", "/a", "/g h/π"]))
    chunk_shape = tuple(draw(st.lists(st.integers(1, 5), max_size=3)))
    dtype = draw(dtypes)
    order = list(draw(st.permutations(range(len(chunk_shape)))))
    filters = [CodecSpec("transpose", {"order": order})] if draw(st.booleans()) else []
    codecs = (*filters, CodecSpec("bytes"), *draw(st.lists(compressors, max_size=2)))
    shards, shape = [], chunk_shape
    index_codecs = (CodecSpec("bytes", {"endian": "little"}), CodecSpec("crc32c"))
    for _ in range(draw(st.integers(0, 2))):
        shape = tuple(length * draw(st.integers(1, 3)) for length in shape)
        around = tuple(draw(st.lists(compressors, max_size=1)))
        shards.insert(0, ShardSpec(shape, index_codecs, draw(st.booleans()), around))
    leading, own = [], list(range(len(shape)))
    order = own
    for number, shard in enumerate(shards):
        moved = draw(st.lists(st.permutations(own), max_size=2))
        leading += [CodecSpec("transpose", {"order": list(axes)}) for axes in moved]
        for axes in moved:
            order = [order[axis] for axis in axes]
        named = () if order == own else tuple(order)
        shards[number] = replace(shard, leading=len(moved), order=named)
    codecs = (*leading, *codecs)
    names = st.lists(st.none() | st.text(max_size=3), min_size=len(shape), max_size=len(shape))
    fill = np.frombuffer(draw(st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize)), dtype)
    if dtype.kind in "?cfUb" or dtype.names:
        fill = np.zeros(1, dtype)
    return ArrayNode(
        path=path,
        shape=tuple(draw(st.integers(0, 9)) for _ in shape),
        dtype=dtype,
        chunk_shape=chunk_shape,
        fill_value=fill[0],
        codecs=codecs,
        chunk_keys=v3.chunk_keys(
            path,
            encoding=draw(st.sampled_from(["default", "v2"])),
            separator=draw(st.sampled_from("/.")),
        ),
        shards=tuple(shards),
        dimension_names=draw(st.none() | names.map(tuple)),
        attributes=draw(attributes),
        members=draw(st.sampled_from([{}, {"hint": ASIDE}])),
    )


def parse_rendered(node):
    documents = {key: Document(key, data) for key, data in v3.render_node(node).items()}
    return v3.parse_node(node.path, documents)


@given(array_nodes())
def test_array_nodes_round_trip_through_documents(node):
    again = parse_rendered(node)
    assert replace(again, type_name=None, fill_value=None, chunk_keys=node.chunk_keys) == replace(
        node, type_name=None, fill_value=None
    )
    assert_same_value(again.fill_value, node.fill_value)
    index = tuple(range(len(node.shape)))
    assert again.chunk_keys.key(index) == node.chunk_keys.key(index)
    assert v3.render_node(again) == v3.render_node(node)


def damaged(draw, value):
    """Return a copy of `value` in which one value is replaced at random."""
    if not isinstance(value, (dict, list)) or not value or draw(st.integers(0, 3)) == 0:
        return draw(hostile_values)
    copy = dict(value) if isinstance(value, dict) else list(value)
    place = draw(st.sampled_from(sorted(copy) if isinstance(copy, dict) else range(len(copy))))
    copy[place] = damaged(draw, copy[place])
    return copy


hostile_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.sampled_from(["name", "configuration", "r8", "struct", "bytes", "NaN", "0x0", 10**400]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["name", "configuration", "fields", "type"]), inner)
    ),
    max_leaves=6,
)
STRUCTURE = {"name": "struct", "configuration": {"fields": [["a", "int8"], ["b", "complex64"]]}}
DATES = {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}}
HOSTS = [
    EXAMPLE,
    {**EXAMPLE, "data_type": STRUCTURE, "fill_value": {"a": 1, "b": [1, "NaN"]}},
    {**EXAMPLE, "data_type": DATES, "fill_value": 5},
    {**EXAMPLE, "codecs": [sharded([100, 10], [LITTLE, {"name": "blosc", "configuration": {}}])]},
    {"zarr_format": 3, "node_type": "group", "attributes": {}},
]


@given(st.data())
def test_parsing_any_json_document_returns_node_without_raising(data):
    members = damaged(data.draw, data.draw(st.sampled_from(HOSTS)))
    node = parse(members)
    assert isinstance(node, (ArrayNode, GroupNode, BrokenNode))


@given(attributes)
def test_group_nodes_round_trip_through_documents(values):
    node = GroupNode(path="/g", attributes=values, members={"hint": ASIDE})
    assert parse_rendered(node) == node


# The store ---------------------------------------------------------------------------------


def test_json_number_notation_in_attributes_is_preserved():
    key = "zarr.json"
    data = b'{"zarr_format": 3, "node_type": "group", "attributes": {"x": 1.10}}'
    node = v3.parse_node("/", {key: Document(key, data)})
    assert node.attributes.literal("x") == "1.10"


def test_every_listed_prefix_is_treated_as_child():
    assert v3.listing_prefix("/") == ""
    assert v3.listing_prefix("/g/h") == "g/h/"
    assert v3.child_names(["zarr.json", "note"], ["a", "b"]) == ["a", "b"]
    assert v3.node_keys("/g/h") == ("g/h/zarr.json",)
    assert v3.parse_node("/g", {}) is None


@pytest.mark.parametrize(
    ("members", "recognized"),
    [
        ({"zarr_format": 3}, True),
        ({"zarr_format": "https://purl.org/zarr/spec/core/3.0"}, False),
        ({"metadata_encoding": "x"}, False),
    ],
)
def test_v3_draft_metadata_is_not_recognized_as_v3(members, recognized):
    assert (
        v3.recognizes({"zarr.json": Document("zarr.json", json.dumps(members).encode())})
        is recognized
    )
    assert v3.recognizes({}) is False


def written_group(tmp_path):
    root = zarr.create_group(tmp_path, attributes={"a": 1})
    root.create_group("s").create_array("x", shape=(2,), dtype="f4", attributes={"u": "m"})
    return root


def test_zarr_python_consolidated_metadata_expands_to_separate_documents(tmp_path):
    written_group(tmp_path)
    root = Document("zarr.json", (tmp_path / "zarr.json").read_bytes())
    assert v3.expand_consolidated({"zarr.json": root}) is None
    single = {
        str(file.relative_to(tmp_path)): v3.parse_node(
            "/" + str(file.parent.relative_to(tmp_path)).strip("."),
            {str(file.relative_to(tmp_path)): Document("", file.read_bytes())},
        )
        for file in tmp_path.rglob("zarr.json")
    }
    zarr.consolidate_metadata(tmp_path)
    root = Document("zarr.json", (tmp_path / "zarr.json").read_bytes())
    expanded = v3.expand_consolidated({"zarr.json": root})
    assert set(expanded) == {"zarr.json", "s/zarr.json", "s/x/zarr.json"}
    for key, document in expanded.items():
        path = "/" + key.removesuffix("zarr.json").strip("/")
        assert v3.parse_node(path, {key: document}) == single[key]
    for key in ("s/zarr.json", "s/x/zarr.json"):
        assert expanded[key].value == json.loads((tmp_path / key).read_bytes())


def test_zarr_python_opens_consolidated_metadata_written_by_xr_nczarr(tmp_path):
    written_group(tmp_path)
    objects = read_objects(tmp_path)
    documents = {key: data for key, data in objects.items() if key.endswith("zarr.json")}
    (root,) = v3.render_consolidated(documents).values()
    (tmp_path / "zarr.json").write_bytes(root)
    (tmp_path / "s/zarr.json").unlink()
    (tmp_path / "s/x/zarr.json").unlink()
    group = zarr.open_consolidated(tmp_path)
    assert group["s/x"].attrs["u"] == "m"
    assert dict(group.attrs) == {"a": 1}


def test_root_array_has_no_consolidated_metadata():
    node = parse(EXAMPLE, "/")
    assert v3.render_consolidated(v3.render_node(node)) == {}


@pytest.mark.parametrize("path", ["", "../x", "a//b", "a/."])
def test_invalid_paths_in_consolidated_metadata_are_rejected(path):
    inline = {"kind": "inline", "must_understand": False, "metadata": {path: {}}}
    document = Document("zarr.json", json.dumps({"consolidated_metadata": inline}).encode())
    with pytest.raises(MetadataError, match="not a plain relative path"):
        v3.expand_consolidated({"zarr.json": document})


def test_json_strings_in_consolidated_metadata_are_rejected():
    inline = {"kind": "inline", "must_understand": False, "metadata": {"a": json.dumps(EXAMPLE)}}
    document = Document("zarr.json", json.dumps({"consolidated_metadata": inline}).encode())
    expanded = v3.expand_consolidated({"zarr.json": document})
    assert isinstance(v3.parse_node("/a", expanded), BrokenNode)
