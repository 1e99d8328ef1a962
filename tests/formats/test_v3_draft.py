"""Documents of the v3 draft of May 2022, from its specification and from programs of 2022."""

import base64
import contextlib
import itertools
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.test_v3 import damaged
from tests.recorded import recorded_form, recorded_store
from xr_nczarr.codecs import compile_codec
from xr_nczarr.errors import LimitError, MetadataError, UnsupportedError
from xr_nczarr.formats import FORMATS
from xr_nczarr.formats.documents import Document
from xr_nczarr.formats.v3_draft import V3Draft, parse_data_type, render_data_type
from xr_nczarr.model import ArrayNode, Attributes, BrokenNode, CodecSpec, GroupNode, Limits

v3 = FORMATS["3"]
v3_draft = FORMATS["3-draft"]

URI = "https://purl.org/zarr/spec/core/3.0"
RELEASED_URI = "https://purl.org/zarr/spec/protocol/core/3.0"
JSON_ENCODING = {"type": "json", "metadata_key_suffix": ".json"}
ENTRY = {"zarr_format": URI, "metadata_encoding": JSON_ENCODING, "extensions": []}
RELEASED_ENTRY = {
    "zarr_format": RELEASED_URI,
    "metadata_encoding": RELEASED_URI,
    "metadata_key_suffix": ".json",
    "extensions": [],
}
IGNORABLE = {
    "extension": "http://example.org/zarr/extension/foo",
    "must_understand": False,
    "configuration": {"foo": "bar"},
}
GZIP = {"type": "https://purl.org/zarr/spec/codecs/gzip/1.0", "configuration": {"level": 1}}
BIG = {"type": "https://purl.org/zarr/spec/codecs/endian/1.0", "configuration": {"endian": "big"}}
# The examples of the specification.
ARRAY = {
    "shape": [10000, 1000],
    "data_type": "<f8",
    "chunk_grid": {"type": "regular", "chunk_shape": [1000, 100], "separator": "/"},
    "chunk_memory_layout": "C",
    "codecs": [GZIP],
    "fill_value": "NaN",
    "extensions": [],
    "attributes": {"foo": 42, "bar": "apples", "baz": [1, 2, 3, 4]},
}
DATETIME = "https://purl.org/zarr/spec/extensions/data-types/datetime/1.0"
DATES = {
    **ARRAY,
    "data_type": {"extension": DATETIME, "type": "<M8[ns]", "fallback": "<i8"},
    "fill_value": None,
    "attributes": {},
}
GROUP = {"attributes": {"spam": "ham", "eggs": 42}}  # without its trailing comma
UNKNOWN_TYPE = {"extension": "https://example.org/decimal", "type": "d9", "fallback": ["q4", "i1"]}


def documents(**members):
    return {
        key: Document(key, json.dumps(value).encode()) for key, value in members.pop("of").items()
    }


def parse(members, path="/a", layout=V3Draft(), **options):  # noqa: B008
    key = layout.node_keys(path)[-2]
    return layout.parse_node(path, documents(of={key: members}), **options)


def rendered(node):
    (data,) = v3_draft.render_node(node).values()
    return json.loads(data)


def layout_of(entry, *others, **options):
    of = {"zarr.json": entry} | {key: {"attributes": {}} for key in others}
    return v3_draft.resolved(documents(of=of), **options)


def failure(**members):
    node = parse({**ARRAY, **members})
    assert isinstance(node, BrokenNode), node
    assert node.error.key == "meta/a.array.json"
    return node.error


# The examples of the specification --------------------------------------------------------------


def test_first_example_array_round_trips():
    node = parse(ARRAY)
    assert (node.shape, node.chunk_shape, node.dtype) == ((10000, 1000), (1000, 100), "<f8")
    assert np.isnan(node.fill_value)
    assert node.codecs == (CodecSpec("gzip", {"level": 1}),)
    assert dict(node.attributes) == ARRAY["attributes"]
    assert rendered(node) == ARRAY


def test_second_example_in_draft_specification_has_datetime_dtype():
    node = parse(DATES)
    assert node.dtype == "<M8[ns]"
    assert node.fill_value is None
    assert rendered(node) == {**DATES, "fill_value": 0}


def test_example_group_round_trips():
    of = documents(of={"meta/g.group.json": GROUP})
    node = v3_draft.parse_node("/g", of)
    assert node == GroupNode(path="/g", attributes=Attributes(GROUP["attributes"]))
    assert rendered(node) == GROUP


@pytest.mark.parametrize("extensions", [[], [IGNORABLE]])
def test_entry_point_documents_are_recognized(extensions):
    entry = {**ENTRY, "extensions": extensions}
    of = documents(of={"zarr.json": entry})
    assert v3_draft.recognizes(of)
    assert not v3.recognizes(of)
    assert v3_draft.resolved(of) == V3Draft()


def test_metadata_and_chunk_keys_match_v3_draft_examples():
    assert v3_draft.node_keys("/foo/bar")[-1] == "meta/foo/bar.group.json"
    assert v3_draft.node_keys("/foo/baz")[0] == "meta/foo/baz.array.json"
    assert v3_draft.node_keys("/") == ("zarr.json", "meta/array.json", "meta/group.json")
    assert v3_draft.chunk_keys("/foo/baz").key((1, 0)) == "data/foo/baz/c1/0"
    assert (
        v3_draft.chunk_keys("/foo/baz", separator=".").key((1, 23, 45)) == "data/foo/baz/c1.23.45"
    )
    assert v3_draft.chunk_keys("/").key((0, 0)) == "data/c0/0"
    assert v3_draft.chunk_keys("/a").key(()) == "data/a/c"


def test_explicit_and_implicit_children_are_listed():
    assert v3_draft.listing_prefix("/foo") == "meta/foo/"
    assert v3_draft.child_names(["bar.group.json", "note.txt"], ["baz"]) == [
        "bar",
        "baz",
    ]
    objects = ["array.json", "group.json", "x.array.json"]
    assert v3_draft.child_names(objects, ["x"]) == ["x"]
    assert v3_draft.parse_node("/foo", {}) == GroupNode(path="/foo", explicit=False)


# The entry point ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entry", "others", "expected"),
    [
        (RELEASED_ENTRY, (), V3Draft(released=True)),
        ({**RELEASED_ENTRY, "zarr_format": URI}, (), V3Draft(released=True)),
        ({**RELEASED_ENTRY, "metadata_encoding": JSON_ENCODING}, (), V3Draft(released=True)),
        ({**RELEASED_ENTRY, "metadata_key_suffix": ""}, (), V3Draft(released=True, suffix="")),
        (ENTRY, ("meta/root.group.json",), V3Draft(released=True)),
        (ENTRY, ("meta/root.array.json", "meta/group.json"), V3Draft()),
        (
            {**ENTRY, "metadata_encoding": {"type": "json", "metadata_key_suffix": ".txt"}},
            (),
            V3Draft(suffix=".txt"),
        ),
    ],
)
def test_entry_point_determines_variant(entry, others, expected):
    assert layout_of(entry, *others) == expected


def test_metadata_keys_end_with_suffix_from_entry_point_document():
    layout = V3Draft(suffix=".txt")
    assert layout.node_keys("/a") == ("meta/a.array.txt", "meta/a.group.txt")
    assert layout.child_names(["a.array.txt", "b.group.txt", "c.array.json"], []) == [
        "a",
        "b",
    ]
    (entry,) = layout.render_node(GroupNode(path="/", explicit=False)).values()
    assert layout_of(json.loads(entry)) == layout


@pytest.mark.parametrize(
    ("changes", "error", "named"),
    [
        ({"zarr_format": "https://purl.org/zarr/spec/core/4.0"}, UnsupportedError, "core/4.0"),
        ({"zarr_format": "https://purl.org/zarr/spec/core/3.7"}, UnsupportedError, "core/3.7"),
        ({"zarr_format": "https://example.org/3.0"}, UnsupportedError, "example.org"),
        ({"zarr_format": 3}, MetadataError, "string"),
        ({"color": "red"}, UnsupportedError, "color"),
        ({"metadata_encoding": {**JSON_ENCODING, "type": "cbor"}}, UnsupportedError, "cbor"),
        ({"metadata_encoding": {**JSON_ENCODING, "extension": "x"}}, UnsupportedError, "extension"),
        ({"metadata_encoding": "text/yaml"}, UnsupportedError, "yaml"),
        ({"metadata_encoding": 5}, MetadataError, "string"),
        (
            {"metadata_encoding": {"type": "json", "metadata_key_suffix": "/x"}},
            MetadataError,
            "suffix",
        ),
        ({"extensions": [{**IGNORABLE, "must_understand": True}]}, UnsupportedError, "foo"),
        ({"extensions": [{"extension": "http://x"}]}, UnsupportedError, "http://x"),
        ({"extensions": {}}, MetadataError, "list"),
    ],
)
def test_error_for_unsupported_entry_point_includes_its_key(changes, error, named):
    with pytest.raises(error, match=named) as caught:
        layout_of({**ENTRY, **changes})
    assert caught.value.key == "zarr.json"


@pytest.mark.parametrize("name", ["zarr_format", "metadata_encoding"])
def test_error_for_incomplete_entry_point_metadata_includes_missing_member(name):
    with pytest.raises(MetadataError) as caught:
        layout_of({key: value for key, value in ENTRY.items() if key != name})
    assert caught.value.place == name


# Arrays ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data_type", "dtype"),
    [
        *[(name, name) for name in ("bool", "int8", "uint32", "float16", "complex64")],
        *[(typestr, typestr) for typestr in ("<f8", ">i2", "u1", "|i1", "<c16")],
        ("r24", "V3"),
        ({"extension": DATETIME, "type": ">m8[10us]", "fallback": ">i8"}, ">m8[10us]"),
        ({"extension": "TODO: unicode array protocol URL", "type": "<U3"}, "<U3"),
        ({"extension": "TODO: object array protocol URL", "type": "|O", "fallback": None}, "O"),
        (
            {
                "extension": "TODO: structured array protocol URL",
                "type": [["a", "<i4"], ["b", [["c", "|S3"]]]],
            },
            [("a", "<i4"), ("b", [("c", "S3")])],
        ),
        ({"extension": "TODO: structured array protocol URL", "type": [["", "|V3"]]}, "V3"),
    ],
    ids=str,
)
def test_data_types_and_known_extensions_round_trip(data_type, dtype):
    parsed = parse_data_type(data_type, fallback=False)
    assert parsed == np.dtype(dtype)
    assert render_data_type(parsed, data_type) == data_type
    again = parse_data_type(render_data_type(parsed), fallback=False)
    assert again == parsed.newbyteorder("<") if parsed.kind in "iufc" else parsed


@pytest.mark.parametrize(
    ("data_type", "error"),
    [
        ("i2", UnsupportedError),
        ("<f3", UnsupportedError),
        ("float128", UnsupportedError),
        ("string", UnsupportedError),
        ("|S3", UnsupportedError),
        ("<M8[ns]", UnsupportedError),
        ("i4,i4", UnsupportedError),
        ("O", UnsupportedError),
        ("r9", MetadataError),
        ("r8000000000", LimitError),
        (None, MetadataError),
        ({"type": "<M8[ns]"}, MetadataError),
        ({"extension": DATETIME, "type": "<M8[eon]"}, UnsupportedError),
        ({"extension": "TODO: bytestring array protocol URL", "type": "|S0"}, UnsupportedError),
        ({"extension": "TODO: bytestring array protocol URL", "type": "|S99999999"}, LimitError),
        ({"extension": "TODO: structured array", "type": [["a", "|O"]]}, UnsupportedError),
        ({"extension": "TODO: structured array", "type": [["a"]]}, MetadataError),
        ({"extension": "TODO: structured array", "type": [5]}, MetadataError),
        ({"extension": "https://example.org/x", "type": 1, "fallback": None}, UnsupportedError),
        ({"extension": DATETIME, "type": "<i8", "configuration": {}}, UnsupportedError),
    ],
    ids=str,
)
def test_types_not_defined_in_v3_draft_are_rejected(data_type, error):
    result = failure(data_type=data_type)
    assert type(result) is error
    assert result.place.startswith("data_type")


def test_fallback_data_type_is_used_only_on_request():
    members = {**ARRAY, "data_type": UNKNOWN_TYPE, "fill_value": 0}
    error = parse(members).error
    assert isinstance(error, UnsupportedError)
    assert "example.org/decimal" in error.problem
    assert "on_unsupported='fallback'" in error.remedy
    node = parse(members, layout=layout_of(ENTRY, data_type_fallback=True))
    assert node.dtype == "i1"
    assert rendered(node)["data_type"] == UNKNOWN_TYPE


@pytest.mark.parametrize(
    ("data_type", "codecs", "dtype"),
    [
        ("float64", [BIG, GZIP], ">f8"),
        ("float64", [GZIP], "<f8"),
        (">f8", [GZIP], ">f8"),
        ("<f8", [BIG], ">f8"),
    ],
)
def test_byte_order_comes_from_codec_or_typestr(data_type, codecs, dtype):
    members = {**ARRAY, "data_type": data_type, "codecs": codecs}
    node = parse(members)
    assert node.dtype == dtype
    again = parse(rendered(node))
    assert (again.dtype, again.codecs) == (node.dtype, node.codecs)


def test_big_endian_data_type_is_rendered_as_endian_codec():
    node = replace(parse(ARRAY), dtype=np.dtype(">f8"), type_name=None)
    members = rendered(node)
    assert (members["data_type"], members["codecs"]) == ("float64", [BIG, GZIP])


def test_fortran_order_becomes_leading_transpose_codec():
    members = {**ARRAY, "chunk_memory_layout": "F"}
    node = parse(members)
    assert node.codecs[0] == CodecSpec("transpose", {"order": [1, 0]}, "chunk_memory_layout")
    assert rendered(node) == members


@pytest.mark.parametrize(
    ("data_type", "value", "expected"),
    [
        ("float32", "+Infinity", np.inf),
        ("float32", "0x3f800000", 1),
        ("float16", "0b0011110000000000", 1),
        ("int16", "0xfffe", -2),
        ("bool", True, True),
        ("r24", "0x010203", np.void(b"\1\2\3")),
    ],
)
def test_fill_values_are_parsed_and_rendered_as_v3_draft_specifies(data_type, value, expected):
    node = parse({**ARRAY, "data_type": data_type, "fill_value": value})
    assert node.fill_value == np.array(expected, node.dtype)
    assert parse(rendered(node)).fill_value == node.fill_value
    if data_type in ("float32", "r24") and value != "0x3f800000":
        assert rendered(node)["fill_value"] == value


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"color": "red"}, "color"),
        ({"extensions": [{**IGNORABLE, "must_understand": True}]}, "extension/foo"),
        ({"storage_transformers": [{"extension": "http://x", "type": "index"}]}, "http://x"),
        ({"chunk_grid": {"extension": "http://x/grid", "type": "ragged"}}, "http://x/grid"),
        ({"chunk_grid": {"type": "ragged"}}, "ragged"),
        ({"chunk_memory_layout": {"extension": "http://x/z", "type": "z"}}, "http://x/z"),
        ({"codecs": [{"type": "https://example.org/codec"}]}, "example.org/codec"),
        ({"codecs": [{**GZIP, "level": 1}]}, "level"),
    ],
)
def test_error_for_unknown_member_or_extension_includes_its_name(changes, named):
    error = failure(**changes)
    assert isinstance(error, UnsupportedError)
    assert named in str(error)


def test_error_for_unknown_group_member_includes_its_name():
    of = documents(of={"meta/g.group.json": {**GROUP, "color": "red"}})
    node = v3_draft.parse_node("/g", of)
    assert "color" in str(node.error)
    assert dict(node.attributes) == GROUP["attributes"]


def test_optional_extensions_round_trip():
    members = {**ARRAY, "extensions": [IGNORABLE]}
    assert rendered(parse(members)) == members


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"shape": [2**63]}, "shape"),
        ({"chunk_grid": []}, "chunk_grid"),
        ({"chunk_grid": {"type": "regular"}}, "chunk_grid.chunk_shape"),
        ({"chunk_grid": {"type": "regular", "chunk_shape": [1]}}, "chunk_grid.chunk_shape"),
        (
            {"chunk_grid": {**ARRAY["chunk_grid"], "separator": "-"}},
            "chunk_grid.separator",
        ),
        ({"chunk_memory_layout": "K"}, "chunk_memory_layout"),
        ({"codecs": GZIP}, "codecs"),
        ({"codecs": ["gzip"]}, "codecs[0]"),
        ({"codecs": [{}]}, "codecs[0].type"),
        ({"codecs": [BIG, BIG]}, "codecs"),
        ({"attributes": []}, "attributes"),
        ({"fill_value": "Nan"}, "fill_value"),
    ],
)
def test_error_for_damaged_member_includes_its_path(changes, place):
    error = failure(**changes)
    assert isinstance(error, MetadataError)
    assert error.place == place


@pytest.mark.parametrize("name", sorted(set(ARRAY) - {"codecs", "extensions", "attributes"}))
def test_error_for_missing_member_includes_its_name(name):
    node = parse({key: value for key, value in ARRAY.items() if key != name})
    assert isinstance(node.error, MetadataError)
    assert node.error.place == name


def test_chunks_above_size_limit_are_rejected():
    assert isinstance(parse(ARRAY, limits=Limits(max_chunk_bytes=1000)).error, LimitError)


def test_array_shadows_group_at_same_path():
    of = documents(of={"meta/a.group.json": GROUP, "meta/a.array.json": ARRAY})
    assert isinstance(v3_draft.parse_node("/a", of), ArrayNode)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"chunk_keys": v3.chunk_keys("/a")}, "chunk keys such as a/c/0/0"),
        ({"members": {"hint": {}}}, "hint"),
        ({"dtype": np.dtype("f16"), "type_name": None, "fill_value": None}, "float128"),
    ],
)
def test_rendering_unrepresentable_node_raises_unsupported_error(changes, named):
    with pytest.raises(UnsupportedError, match=named):
        v3_draft.render_node(replace(parse(ARRAY), **changes))


# Laws --------------------------------------------------------------------------------------

dtypes = st.sampled_from(
    [np.dtype(code) for code in ("?", "i1", "<i2", ">i8", ">f4", "<c8", "S3", "<U2", ">U2", "V5")]
    + [np.dtype("<M8[7s]"), np.dtype([("a", ">i4"), ("b", "S3")])]
)
compressors = st.sampled_from(
    [
        CodecSpec("gzip", {"level": 3}),
        CodecSpec("blosc", {"cname": "zstd", "clevel": 9, "shuffle": 2, "blocksize": 0}),
        CodecSpec("zlib", {"level": 9}),
        CodecSpec("crc32c"),
    ]
)


@st.composite
def array_nodes(draw):
    path = draw(st.sampled_from(["/", "/a", "/g/a.b"]))
    chunk_shape = tuple(draw(st.lists(st.integers(1, 5), max_size=3)))
    dtype = draw(dtypes)
    axes = list(range(len(chunk_shape)))[::-1]
    order = [CodecSpec("transpose", {"order": axes}, "chunk_memory_layout")]
    return ArrayNode(
        path=path,
        shape=tuple(draw(st.integers(0, 9)) for _ in chunk_shape),
        dtype=dtype,
        chunk_shape=chunk_shape,
        fill_value=np.zeros(1, dtype)[0],
        codecs=(
            *draw(st.sampled_from([[], order])),
            CodecSpec("bytes"),
            *draw(st.lists(compressors, max_size=2)),
        ),
        chunk_keys=v3_draft.chunk_keys(path, separator=draw(st.sampled_from("/."))),
        attributes=Attributes(draw(st.dictionaries(st.text(max_size=5), st.integers()))),
        members=draw(st.sampled_from([{}, {"extensions": [IGNORABLE]}])),
    )


def parse_rendered(node):
    stored = v3_draft.render_node(node)
    of = {key: Document(key, data) for key, data in stored.items()}
    if node.path == "/":
        assert list(stored)[-1] == "zarr.json"
        assert v3_draft.resolved(of) == V3Draft()
    return v3_draft.parse_node(node.path, of)


@given(array_nodes())
def test_array_nodes_round_trip_through_documents(node):
    again = parse_rendered(node)
    assert replace(again, type_name=None) == node
    assert v3_draft.render_node(again) == v3_draft.render_node(node)


RELEASED = {
    **{name: value for name, value in ARRAY.items() if name != "codecs"},
    "compressor": {
        "codec": "https://purl.org/zarr/spec/codec/lzma/1.0",
        "configuration": {"delta": 1},
    },
    "attributes": {"filters": [{"id": "delta", "dtype": "<f8"}]},
}


@given(st.data())
def test_parsing_any_json_document_returns_node_without_raising(data):
    members = damaged(data.draw, data.draw(st.sampled_from([ARRAY, DATES, RELEASED, GROUP])))
    for layout in (V3Draft(), V3Draft(released=True), V3Draft(data_type_fallback=True)):
        node = parse(members, layout=layout)
        assert isinstance(node, (ArrayNode, GroupNode, BrokenNode))


@given(st.data())
def test_parsing_arbitrary_entry_point_succeeds_or_raises_nczarr_error(data):
    with contextlib.suppress(MetadataError, UnsupportedError):
        layout_of(damaged(data.draw, data.draw(st.sampled_from([ENTRY, RELEASED_ENTRY]))))


@pytest.mark.parametrize("path", ["/", "/g"])
@pytest.mark.parametrize("explicit", [True, False])
def test_group_nodes_round_trip_through_documents(path, explicit):
    attributes = Attributes({"x": 1.5} if explicit else {})
    node = GroupNode(path=path, attributes=attributes, explicit=explicit)
    assert parse_rendered(node) == node


# Programs of 2022 ------------------------------------------------------------------


class Recorded:
    """A recorded store, with a minimal reader that does not use the package."""

    def __init__(self, name):
        self.keys, self.values = recorded_store(name)
        root = self.documents(v3_draft.root_keys())
        assert v3_draft.recognizes(root)
        self.layout = v3_draft.resolved(root)
        self.nodes = {}
        self.walk("/")

    def documents(self, keys):
        return {key: Document(key, self.keys[key]) for key in keys if key in self.keys}

    def walk(self, path):
        node = self.layout.parse_node(path, self.documents(self.layout.node_keys(path)))
        self.nodes[path] = node
        if isinstance(node, GroupNode):
            prefix = self.layout.listing_prefix(path)
            names = [key.removeprefix(prefix) for key in self.keys if key.startswith(prefix)]
            objects = [name for name in names if "/" not in name]
            prefixes = sorted({name.partition("/")[0] for name in names if "/" in name})
            for name in self.layout.child_names(objects, prefixes):
                self.walk(f"{path.rstrip('/')}/{name}")

    def read(self, path):
        node = self.nodes[path]
        codec = compile_codec(node)
        fill = 0 if node.fill_value is None else node.fill_value
        result = np.full(node.shape, fill, node.dtype)
        counts = [
            math.ceil(whole / part)
            for whole, part in zip(node.shape, node.chunk_shape, strict=True)
        ]
        for index in itertools.product(*map(range, counts)):
            if node.chunk_keys.key(index) in self.keys:
                chunk = codec.decode(self.keys[node.chunk_keys.key(index)])
                where = tuple(
                    slice(i * part, (i + 1) * part)
                    for i, part in zip(index, node.chunk_shape, strict=True)
                )
                region = result[(*where, ...)]
                region[...] = chunk[tuple(slice(length) for length in region.shape)]
        return result


@pytest.fixture(scope="module")
def zarr_python():
    return Recorded("zarr_python_2_18.json")


@pytest.fixture(scope="module")
def gdal():
    return Recorded("gdal_3_6.json")


def test_values_of_every_type_written_by_zarr_python_are_read(zarr_python):
    assert zarr_python.layout == V3Draft(released=True)
    assert not [node for node in zarr_python.nodes.values() if isinstance(node, BrokenNode)]
    arrays = {path for path, node in zarr_python.nodes.items() if isinstance(node, ArrayNode)}
    assert arrays == {f"/{name}" for name in zarr_python.values}
    for name, values in zarr_python.values.items():
        np.testing.assert_equal(recorded_form(zarr_python.read(f"/{name}")), values, err_msg=name)


def test_zarr_python_groups_can_be_explicit_or_implicit(zarr_python):
    assert dict(zarr_python.nodes["/"].attributes) == {"title": "recorded"}
    assert zarr_python.nodes["/sub"] == GroupNode(path="/sub", explicit=False)
    assert dict(zarr_python.nodes["/sub/deep/x"].attributes) == {"units": "m"}


def test_zarr_python_filters_attribute_is_parsed_as_codecs(zarr_python):
    node = zarr_python.nodes["/filters"]
    assert [spec.name for spec in node.codecs] == ["delta", "shuffle"]
    assert not node.attributes


def test_user_attribute_named_filters_is_not_parsed_as_codecs():
    members = {**ARRAY, "attributes": {"filters": [{"id": "delta"}]}}
    assert dict(parse(members).attributes) == members["attributes"]
    del members["codecs"]
    members["attributes"] = {"filters": ["red", "blue"]}
    node = parse(members, layout=V3Draft(released=True))
    assert dict(node.attributes) == members["attributes"]


def test_structured_fill_value_has_byte_order_of_array():
    fields = [["a", ">i4"], ["b", "<f8"]]
    fill = np.array((1, 2.5), [tuple(field) for field in fields])
    members = {
        **ARRAY,
        "data_type": {"extension": "TODO: structured array protocol URL", "type": fields},
        "fill_value": base64.b64encode(fill.tobytes()).decode(),
    }
    assert parse(members, layout=V3Draft(released=True)).fill_value == fill


def test_gdal_values_of_every_type_are_read(gdal):
    arrays = [path for path, node in gdal.nodes.items() if isinstance(node, ArrayNode)]
    assert len(arrays) == 18
    for path in arrays:
        np.testing.assert_equal(gdal.read(path).reshape(-1).tolist(), gdal.values, err_msg=path)
    assert dict(gdal.nodes["/sub/deep"].attributes) == {"units": "m"}
    assert gdal.nodes["/sub/deep"].fill_value == -9999.5


def test_rendering_gdal_variant_raises_unsupported_error(gdal):
    with pytest.raises(UnsupportedError, match="are read-only"):
        gdal.layout.render_node(gdal.nodes["/"])
