"""Zarr v2 documents are parsed into nodes, and nodes are rendered as documents."""

import json
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.core.dtype import VariableLengthBytes

from xr_nczarr.errors import LimitError, MetadataError, UnsupportedError
from xr_nczarr.formats import FORMATS
from xr_nczarr.formats.documents import Document
from xr_nczarr.formats.fill_values import parse_v2_fill_value, render_v2_fill_value
from xr_nczarr.formats.typestrings import parse_data_type
from xr_nczarr.model import (
    DEFAULT_LIMITS,
    ArrayNode,
    Attributes,
    BrokenNode,
    ChunkKeys,
    CodecSpec,
    GroupNode,
    Limits,
    ShardSpec,
)

v2 = FORMATS["2"]

PLAIN = {
    "zarr_format": 2,
    "shape": [4, 6],
    "dtype": "<f4",
    "chunks": [2, 3],
    "fill_value": "NaN",
    "order": "C",
    "compressor": None,
    "filters": None,
}


def documents(**by_name):
    return {key: Document(key, json.dumps(value).encode()) for key, value in by_name.items()}


def parse(members=None, *, attributes=None, limits=DEFAULT_LIMITS, **changes):
    held = {"v/.zarray": PLAIN | changes if members is None else members}
    if attributes is not None:
        held["v/.zattrs"] = attributes
    return v2.parse_node("/v", documents(**held), limits=limits)


def parsed(**changes):
    node = parse(**changes)
    assert isinstance(node, ArrayNode), node.error
    return node


def broken(**changes):
    node = parse(**changes)
    assert isinstance(node, BrokenNode), node
    assert node.error.key == "v/.zarray"
    return node


@pytest.mark.parametrize(("name", "number"), [("noshuffle", 0), ("shuffle", 1), ("bitshuffle", 2)])
def test_blosc_shuffle_names_map_to_numcodecs_constants(name, number):
    """VirtualiZarr writes these names, which are defined in Zarr v3, in v2 metadata."""
    document = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": name, "typesize": 4}
    (spec,) = parsed(filters=[document]).codecs
    assert spec.configuration == {"cname": "lz4", "clevel": 5, "shuffle": number}


# Regression D2
@pytest.mark.parametrize("level", [4, -1, 0])
@pytest.mark.parametrize("name", ["zlib", "gzip", "bz2", "zstd"])
def test_compression_levels_stored_as_strings_by_netcdf_c_become_integers(name, level):
    document = {"id": name, "level": str(level)}
    node = parsed(compressor=document)
    assert node.codecs == (CodecSpec(name, {"level": level}, "compressor"),)
    assert json.loads(v2.render_node(node)["v/.zarray"])["compressor"] == document


def test_blosc_parameters_stored_as_strings_by_netcdf_c_become_integers():
    document = {"id": "blosc", "cname": "lz4", "clevel": "5", "blocksize": "0", "shuffle": "1"}
    configuration = {"cname": "lz4", "clevel": 5, "blocksize": 0, "shuffle": 1}
    assert parsed(compressor=document).codecs[0].configuration == configuration


def test_numeric_string_parameter_of_custom_codec_is_not_converted():
    document = {"id": "custom", "name": "4"}
    assert parsed(filters=[document]).codecs[0].configuration == {"name": "4"}


def test_unknown_blosc_shuffle_name_is_rejected():
    error = broken(filters=[{"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": "foo"}]).error
    assert "invalid value 'foo'; expected \"noshuffle\" or" in str(error)


def test_every_member_of_array_document_is_parsed():
    blosc = {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}
    delta = {"id": "delta", "dtype": "<f4"}
    node = parsed(
        order="F",
        filters=[delta],
        compressor=blosc,
        dimension_separator="/",
        fill_value=-1,
        _nczarr_array={"dimrefs": ["/x"]},
        attributes={"units": "m"},
    )
    assert node == ArrayNode(
        path="/v",
        shape=(4, 6),
        dtype=np.dtype("<f4"),
        chunk_shape=(2, 3),
        type_name="<f4",
        fill_value=np.float32(-1),
        codecs=(
            CodecSpec("transpose", {"order": [1, 0]}, "order"),
            CodecSpec("delta", {"dtype": "<f4"}, "filters"),
            CodecSpec("blosc", {"cname": "lz4", "clevel": 5, "shuffle": 1}, "compressor"),
        ),
        chunk_keys=ChunkKeys("v/", "/", "v/0"),
        attributes=Attributes({"units": "m"}),
        members={"_nczarr_array": {"dimrefs": ["/x"]}},
    )
    assert [spec.document for spec in node.codecs] == [None, delta, blosc]


def test_unknown_group_members_and_metadata_objects_round_trip():
    held = {
        ".zgroup": {"zarr_format": 2, "_NCZARR_GROUP": {"dims": {}}},
        ".zattrs": {"a": 1},
        ".nczgroup": {"dims": {"x": 1}},
        ".zmetadata": {},
        "meta": {},
    }
    node = v2.parse_node("/", documents(**held))
    assert node == GroupNode(
        path="/",
        attributes=Attributes({"a": 1}),
        members={"_NCZARR_GROUP": {"dims": {}}},
        sidecars={".nczgroup": {"dims": {"x": 1}}},
    )
    rendered = {key: json.loads(data) for key, data in v2.render_node(node).items()}
    assert rendered == {key: held[key] for key in (".zgroup", ".zattrs", ".nczgroup")}


def test_attributes_document_alone_is_not_recognized_as_v2_node():
    assert v2.parse_node("/v", {}) is None
    assert v2.parse_node("/v", documents(**{"v/.zattrs": {}})) is None
    assert not v2.recognizes(documents(**{".zattrs": {}, "zarr.json": {}}))
    assert all(
        v2.recognizes(documents(**{key: {}})) for key in (".zgroup", ".zarray", ".zmetadata")
    )


def test_node_keys_start_with_node_path():
    assert v2.root_keys() == (".zmetadata", ".zarray", ".zgroup", ".zattrs")
    assert v2.node_keys("/g/v") == ("g/v/.zarray", "g/v/.zgroup", "g/v/.zattrs")
    assert v2.listing_prefix("/") == ""
    assert v2.listing_prefix("/g") == "g/"
    assert v2.child_names([".zgroup"], ["a", "b"]) == ["a", "b"]


# Stores of zarr-python --------------------------------------------------------------------------

WRITTEN = [
    ("f2", 1.5),
    ("f4", 0.1),
    ("f8", 9.969209968386869e36),
    ("f4", np.nan),
    (">f8", -np.inf),
    (">i2", -5),
    ("i8", -(2**63)),
    ("u8", 2**64 - 1),
    ("i4", None),
    ("?", True),
    ("c8", 1 + 2j),
    (">c16", complex(np.nan, np.inf)),
    ("S5", b"ab"),
    ("S1", b"X"),
    ("S3", None),
    ("U3", "é"),
    (">U2", "ab"),
    ("V4", b"abcd"),
    ("M8[ns]", np.datetime64("NaT", "ns")),
    ("M8[D]", np.datetime64("2000-01-01")),
    (">M8[10s]", np.datetime64(3, "10s")),
    ("m8[s]", np.timedelta64(5, "s")),
    ([("a", "<i2"), ("b", ">f8")], (1, 2.5)),
    ([("a", "<i2"), ("b", [("c", "u1"), ("d", "S3")])], (1, (2, b"x"))),
]


@pytest.mark.parametrize(("dtype", "fill"), WRITTEN, ids=str)
@pytest.mark.parametrize(("order", "separator", "shape"), [("C", ".", (4,)), ("F", "/", (4, 3))])
def test_zarr_python_array_metadata_round_trips(tmp_path, dtype, fill, order, separator, shape):
    written = zarr.create_array(
        tmp_path / "v",
        shape=shape,
        chunks=(3,) * len(shape),
        dtype=np.dtype(dtype),
        fill_value=fill if fill is None else np.array(fill, dtype)[()],
        order=order,
        zarr_format=2,
        attributes={"a": [1, "é"]},
        chunk_key_encoding={"name": "v2", "separator": separator},
    )
    held = {
        f"v/{name}": Document(f"v/{name}", (tmp_path / "v" / name).read_bytes())
        for name in (".zarray", ".zattrs")
    }
    node = v2.parse_node("/v", held)
    assert isinstance(node, ArrayNode), node.error
    assert (node.shape, node.chunk_shape, node.dtype) == (shape, written.chunks, written.dtype)
    assert dict(node.attributes) == {"a": [1, "é"]}
    assert node.chunk_keys.key((0,) * len(shape)) == "v/" + separator.join("0" * len(shape))
    assert [spec.place for spec in node.codecs] == ["order"] * (order == "F") + ["compressor"]
    if fill is None:
        assert node.fill_value is None
    else:
        expected, result = (
            np.asarray(value, node.dtype).tobytes()
            for value in (written.fill_value, node.fill_value)
        )
        assert result == expected
        assert isinstance(node.fill_value, np.generic)
    assert_rendered_equal(held, node)


def assert_rendered_equal(held, node):
    """Check that rendering `node` yields the documents `held`."""
    rendered = {key: json.loads(data) for key, data in v2.render_node(node).items()}
    for key, document in held.items():
        assert rendered[key] == document.value


@pytest.mark.parametrize(("dtype", "fill"), [(str, "x"), (VariableLengthBytes(), b"ab")])
def test_variable_length_strings_and_bytes_from_zarr_python_are_parsed(tmp_path, dtype, fill):
    zarr.create_array(tmp_path / "v", shape=(3,), dtype=dtype, fill_value=fill, zarr_format=2)
    key = "v/.zarray"
    node = v2.parse_node("/v", {key: Document(key, Path(tmp_path, key).read_bytes())})
    assert node.dtype == object
    assert node.fill_value == fill
    assert_rendered_equal({key: Document(key, Path(tmp_path, key).read_bytes())}, node)


# Spellings of types and fill values -------------------------------------------------------------


# Regression D18
@pytest.mark.parametrize(
    ("spelling", "dtype"),
    [
        ("|i4", "<i4"),
        ("|f8", "<f8"),
        ("<S5", "S5"),
        (">S1", "S1"),
        ("|b1", "?"),
        ("<b1", "?"),
        ("<i1", "i1"),
        (">f8", ">f8"),
        ("<U1", "<U1"),
        ("<M8", "M8"),
        ("<M8[generic]", "M8"),
        ("<m8[us]", "m8[us]"),
        ("|O", "O"),
        ([["a", "<i4"], ["b", "|u1", [2, 3]]], [("a", "<i4"), ("b", "u1", (2, 3))]),
        ([["a", "<i4", 2], ["b", [["c", ">f8"]]]], [("a", "<i4", 2), ("b", [("c", ">f8")])]),
    ],
    ids=str,
)
def test_every_data_type_notation_is_parsed(spelling, dtype):
    node = parsed(dtype=spelling, fill_value=None)
    assert node.dtype == np.dtype(dtype)
    assert json.loads(v2.render_node(node)["v/.zarray"])["dtype"] == spelling


# Regression D18
@pytest.mark.parametrize(
    ("dtype", "stored", "fill"),
    [
        ("<f4", "NaN", np.nan),
        ("<f4", "Infinity", np.inf),
        (">f8", "-Infinity", -np.inf),
        ("<f8", 9.96921e36, 9.96921e36),
        ("<f4", 9.96921e36, np.float32(9.96921e36)),
        ("<f8", float("nan"), np.nan),
        ("<f8", [-999], -999),
        ("<i4", [-999], -999),
        ("<i4", -999.0, -999),
        ("<u8", 18446744073709551614, 18446744073709551614),
        ("<i8", -9223372036854775806, -9223372036854775806),
        ("|b1", 0, False),
        ("|b1", True, True),
        ("<c8", 0, 0),
        ("<c16", [1, "-Infinity"], complex(1, -np.inf)),
        ("<M8[s]", "NaT", np.datetime64("NaT", "ns")),
        ("<M8[s]", 0, np.datetime64(0, "s")),
        (">S1", "X", b"X"),
        (">S1", 5, b"5"),
        (">S1", 0, b"0"),
        (">S1", "", b""),
        (">S1", ["X"], b"X"),
        ("|S1", "X", b"X"),
        ("|S1", 5, b"5"),
        ("|S1", "WA==", b"X"),
        ("|S128", "", b""),
        ("|S128", "not Base64", b"not Base64"),
        ("|S5", "YWI=", b"ab"),
        ("|S5", "YWJjAGU=", b"abc\0e"),
        ("|S5", 0, b""),
        ("|S5", "é", "é".encode()),
        ("<U1", "X", "X"),
        ("<U1", 5, "5"),
        ("<U3", 0, ""),
        ("|V2", 0, b"\0\0"),
        ("|V2", "", b"\0\0"),
        ("|V2", "YWI=", b"ab"),
        ([["a", "<i2"], ["b", "|S2"]], "AQBhYg==", (1, b"ab")),
        ([["a", "<i2"]], 0, (0,)),
        ("|O", "text", "text"),
        ("|O", 0, ""),
    ],
    ids=str,
)
def test_every_fill_value_notation_is_parsed(dtype, stored, fill):
    node = parsed(dtype=dtype, fill_value=stored)
    if node.dtype == object:
        assert node.fill_value == fill
    else:
        expected = np.array(fill, node.dtype)
        assert np.asarray(node.fill_value, node.dtype).tobytes() == expected.tobytes()
        assert node.fill_value.dtype.kind == node.dtype.kind
    again = v2.parse_node("/v", {k: Document(k, d) for k, d in v2.render_node(node).items()})
    assert repr(again.fill_value) == repr(node.fill_value)


# Regression D20
def test_null_or_missing_fill_value_is_treated_as_undefined():
    assert parsed(fill_value=None).fill_value is None
    assert parsed(fill_value=[None]).fill_value is None
    members = {name: PLAIN[name] for name in ("zarr_format", "shape", "dtype", "chunks")}
    node = parse(members)
    assert (node.fill_value, node.codecs, node.chunk_keys.separator) == (None, (), ".")


def test_fill_values_of_netcdf_c_characters_are_rendered_as_strings():
    assert render_v2_fill_value(np.bytes_(b"X"), np.dtype("S1"), type_name=">S1") == "X"
    assert render_v2_fill_value(np.bytes_(b"X"), np.dtype("S1"), type_name="|S1") == "WA=="
    assert render_v2_fill_value(np.bytes_(b"\xff"), np.dtype("S1"), type_name=">S1") == "/w=="


@pytest.mark.parametrize("stored", ["1", "x", [1, 2], {}, 1.5, True, 2**31, "NaN", float("nan")])
def test_fill_value_of_wrong_type_is_rejected(stored):
    error = broken(dtype="<i4", fill_value=stored).error
    assert isinstance(error, MetadataError)
    assert error.place == "fill_value"


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        ("<f4", 1e39),
        ("<f8", 10**400),
        ("<f4", "nought"),
        ("<f4", True),
        ("|b1", 2),
        ("<c8", [1]),
        ("<c8", [1, 2, 3]),
        ("|S1", "too long"),
        ("<U1", "ab"),
        ("|V2", "YWJj"),
        ("|V2", "??"),
        ("<M8[s]", 2**63),
        ("<M8[s]", "2000-01-01"),
        ("|O", 5),
        ([["a", "<i2"]], "YQ=="),
        ([["a", "<U1"]], "AQEBAQ=="),
    ],
    ids=str,
)
def test_fill_value_outside_dtype_range_is_rejected(dtype, stored):
    assert broken(dtype=dtype, fill_value=stored).error.place == "fill_value"


# Regression D23
@pytest.mark.parametrize(
    ("dtype", "kind"),
    [
        ("|J0", UnsupportedError),
        ("<f16", UnsupportedError),
        ("<i3", UnsupportedError),
        ("|S0", UnsupportedError),
        ("f4", UnsupportedError),
        ("<M8[0s]", UnsupportedError),
        ("<M8[fortnight]", UnsupportedError),
        ("int32", UnsupportedError),
        ([["a", "|O"]], UnsupportedError),
        ("|S16777217", LimitError),
        ("<U4194305", LimitError),
        ([["a", "|S9000000"], ["b", "|S9000000"]], LimitError),
        ([["a", "<f8", [2097153]]], LimitError),
        ([], MetadataError),
        (5, MetadataError),
        (None, MetadataError),
        ([["a"]], MetadataError),
        ([[1, "<i4"]], MetadataError),
        ([["a", "<i4"], ["a", "<i4"]], MetadataError),
        ([["a", "<i4", [0]]], MetadataError),
        (["<i4"], MetadataError),
    ],
    ids=str,
)
def test_unsupported_data_type_breaks_only_its_array(dtype, kind):
    node = broken(dtype=dtype, fill_value=None, attributes={"a": 1})
    assert type(node.error) is kind
    assert node.error.place.startswith("dtype")
    assert node.shape == (4, 6)
    assert dict(node.attributes) == {"a": 1}


# Bounds and damage ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("zarr_format", 3),
        ("zarr_format", True),
        ("shape", None),
        ("shape", [-1, 6]),
        ("shape", [4.0, 6]),
        ("shape", [2**62, 2]),
        ("chunks", [0, 3]),
        ("chunks", [2]),
        ("chunks", [2, 3, 1]),
        ("chunks", "2"),
        ("order", "A"),
        ("order", None),
        ("dimension_separator", "-"),
        ("dimension_separator", None),
        ("filters", "shuffle"),
        ("filters", [None]),
        ("compressor", {"id": 5}),
    ],
)
def test_error_for_damaged_member_includes_its_name(place, value):
    error = broken(**{place: value}).error
    assert isinstance(error, MetadataError)
    assert error.place == place


def test_codec_without_id_is_rejected():
    assert "id" in str(broken(compressor={"level": 1}).error)


@pytest.mark.parametrize("name", ["zarr_format", "shape", "chunks", "dtype"])
def test_error_for_missing_required_member_includes_its_name(name):
    node = parse({key: value for key, value in PLAIN.items() if key != name})
    assert isinstance(node, BrokenNode)
    assert node.error.place == name


def test_chunks_above_size_limit_are_rejected():
    limits = Limits(max_chunk_bytes=23)
    node = parse(limits=limits)
    assert isinstance(node.error, LimitError)
    assert "max_chunk_bytes" in str(node.error)
    assert isinstance(parse(limits=Limits(max_chunk_bytes=24)), ArrayNode)


# Regressions D30, D31
def test_empty_arrays_and_chunks_larger_than_array_are_valid():
    assert parsed(shape=[0], chunks=[512]).chunk_shape == (512,)
    assert parsed(shape=[0, 3], chunks=[0, 3]).chunk_shape == (1, 3)
    assert parsed(shape=[3], chunks=[512]).shape == (3,)


def test_zero_dimensional_array_has_one_chunk():
    node = parsed(shape=[], chunks=[], order="F")
    assert (node.shape, node.chunk_shape) == ((), ())
    assert node.chunk_keys.key(()) == "v/0"


def test_root_array_keys_have_no_prefix():
    node = v2.parse_node("/", documents(**{".zarray": PLAIN}))
    assert node.chunk_keys.key((1, 2)) == "1.2"
    assert set(v2.render_node(node)) == {".zarray", ".zattrs"}


def test_error_for_damaged_attributes_includes_key():
    held = documents(**{"v/.zarray": PLAIN}) | {"v/.zattrs": Document("v/.zattrs", b"{")}
    node = v2.parse_node("/v", held)
    assert isinstance(node, BrokenNode)
    assert (node.error.key, node.shape) == ("v/.zattrs", (4, 6))


def test_rendering_broken_node_raises_metadata_error():
    with pytest.raises(MetadataError):
        v2.render_node(broken(order="A"))


@pytest.mark.parametrize(
    "changes",
    [
        {"chunk_keys": ChunkKeys("v/c/", "/", "v/c")},
        {"chunk_keys": ChunkKeys("v/", "-", "v/0")},
        {"shards": (ShardSpec((4, 6), ()),)},
        {"codecs": (CodecSpec("bytes"),)},
        {"codecs": (CodecSpec("zlib", {}, "compressor"), CodecSpec("shuffle", {}, "filters"))},
        {"dtype": np.dtype({"names": ["a"], "formats": ["i2"], "itemsize": 4}), "fill_value": None},
    ],
)
def test_rendering_unrepresentable_node_raises_unsupported_error(changes):
    members = {name: getattr(parsed(), name) for name in ArrayNode.__slots__}
    with pytest.raises(UnsupportedError):
        v2.render_node(ArrayNode(**(members | changes)))


def test_rendered_array_matches_netcdf_c_except_for_separator():
    node = ArrayNode(
        path="/v",
        shape=(3,),
        dtype=np.dtype(">i2"),
        chunk_shape=(3,),
        fill_value=np.int16(-32767),
        codecs=(
            CodecSpec("shuffle", {"elementsize": 2}, "filters"),
            CodecSpec("zlib", {"level": 4}, "compressor"),
        ),
        chunk_keys=v2.chunk_keys("/v", separator="."),
    )
    assert v2.render_node(node)["v/.zarray"] == (
        b'{"zarr_format": 2, "shape": [3], "dtype": ">i2", "chunks": [3], "fill_value": -32767, '
        b'"order": "C", "compressor": {"id": "zlib", "level": 4}, '
        b'"filters": [{"id": "shuffle", "elementsize": 2}], "dimension_separator": "."}'
    )


def test_v3_data_type_names_are_converted_to_v2():
    node = parsed(dtype="<f4")
    members = {name: getattr(node, name) for name in ArrayNode.__slots__}
    rendered = v2.render_node(ArrayNode(**(members | {"type_name": "float32"})))
    assert json.loads(rendered["v/.zarray"])["dtype"] == "<f4"
    structure = np.dtype([("a", "<i2", (2,)), ("b", [("c", "u1")])])
    rendered = v2.render_node(
        ArrayNode(**(members | {"dtype": structure, "fill_value": None, "type_name": None}))
    )
    described = json.loads(rendered["v/.zarray"])["dtype"]
    assert described == [["a", "<i2", [2]], ["b", [["c", "|u1"]]]]
    assert parse_data_type(described) == structure


def test_base64_fill_values_of_variable_length_bytes_are_decoded():
    assert parse_v2_fill_value("YWI=", np.dtype("O"), binary=True) == b"ab"
    assert parse_v2_fill_value("plain!", np.dtype("O"), binary=True) == b"plain!"


# Consolidated metadata --------------------------------------------------------------------------


MARK = {"zarr_consolidated_format": 1}


def test_splitting_consolidated_metadata_preserves_member_order_and_json_text():
    text = (
        b'{"zarr_consolidated_format": 1, "metadata": {"b/.zattrs": {"a": 001}, '
        b'".zgroup": {"zarr_format": 2}, "b/.other": {}, "c/.zgroup": "{\\"zarr_format\\": 2}"}}'
    )
    result = v2.expand_consolidated({".zmetadata": Document(".zmetadata", text)})
    assert list(result) == ["b/.zattrs", ".zgroup", "b/.other", "c/.zgroup"]
    assert all(document.key == key for key, document in result.items())
    assert result["b/.zattrs"].attributes().literal("a") == "001"
    assert result["c/.zgroup"].value == {"zarr_format": 2}


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ([], None),
        ({"metadata": {}}, "zarr_consolidated_format"),
        ({"metadata": {}, "zarr_consolidated_format": 2}, "zarr_consolidated_format"),
        (MARK, "metadata"),
        (MARK | {"metadata": []}, "metadata"),
        (MARK | {"metadata": {"../.zgroup": {}}}, "metadata"),
        (MARK | {"metadata": {"/.zgroup": {}}}, "metadata"),
        (MARK | {"metadata": {"a//.zgroup": {}}}, "metadata"),
    ],
    ids=str,
)
def test_damaged_consolidated_metadata_is_rejected(value, place):
    with pytest.raises(MetadataError) as raised:
        v2.expand_consolidated(documents(**{".zmetadata": value}))
    assert (raised.value.key, raised.value.place) == (".zmetadata", place)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[]", b'{"metadata": {}}'])
def test_error_for_damaged_consolidated_metadata_suggests_ignoring_it(data):
    with pytest.raises(MetadataError, match=r"^\.zmetadata.*consolidated=False"):
        FORMATS["2"].expand_consolidated({".zmetadata": Document(".zmetadata", data)})


def test_consolidated_metadata_preserves_json_text():
    held = {".zgroup": b'{"zarr_format": 2}', ".zattrs": b'\xef\xbb\xbf{"a": 001}\n'}
    rendered = v2.render_consolidated(held | {".zmetadata": b"old"})
    assert rendered == {
        ".zmetadata": b'{"metadata": {".zgroup": {"zarr_format": 2}, ".zattrs": {"a": 001}}, '
        b'"zarr_consolidated_format": 1}'
    }
    again = v2.expand_consolidated({".zmetadata": Document(".zmetadata", *rendered.values())})
    assert again[".zattrs"].literal("a") == "001"
    with pytest.raises(MetadataError, match=r"\.zattrs"):
        v2.render_consolidated({".zattrs": b"{"})


def test_zarr_python_reads_serialized_consolidated_metadata(tmp_path):
    group = zarr.create_group(tmp_path, zarr_format=2, attributes={"a": 1})
    group.create_array("v", shape=(2,), dtype="i4")
    held = {str(file.relative_to(tmp_path)): file.read_bytes() for file in tmp_path.rglob(".z*")}
    (tmp_path / ".zmetadata").write_bytes(v2.render_consolidated(held)[".zmetadata"])
    opened = zarr.open_consolidated(tmp_path, zarr_format=2)
    assert dict(opened.attrs) == {"a": 1}
    assert list(opened.array_keys()) == ["v"]
