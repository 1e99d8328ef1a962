"""For JSON documents, and for Zarr v1 and v2, rendering is the inverse of parsing."""

import contextlib
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from xr_nczarr.errors import MetadataError
from xr_nczarr.formats import FORMATS
from xr_nczarr.formats.documents import Document, render_json
from xr_nczarr.formats.fill_values import parse_v2_fill_value, render_v2_fill_value
from xr_nczarr.formats.typestrings import parse_data_type, render_data_type
from xr_nczarr.model import ArrayNode, BrokenNode, GroupNode, key_prefix

v1 = FORMATS["1"]
v2 = FORMATS["2"]

TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=4)

# Documents ---------------------------------------------------------------------------------------


@given(OBJECTS)
def test_rendered_json_preserves_values_and_attribute_literals(value):
    document = Document("k", render_json({"inner": value, "other": 1}))
    assert document.value == {"inner": value, "other": 1}
    attributes = document.attributes("inner")
    assert {name: json.loads(attributes.literal(name)) for name in attributes} == value


LAX_WORDS = st.one_of(
    st.integers().map(lambda n: (f"{'-' if n < 0 else '+'}00{abs(n)}", n)),
    st.integers(0, 2**64 - 1).map(lambda n: (hex(n), n)),
    st.integers(0, 10**15).map(lambda n: (f"{n}.", float(n))),
    st.sampled_from([("TRUE", True), ("nul", None), ("inf", math.inf), ('"\\\'"', "'")]),
).filter(lambda pair: pair[0] != "nul")
STRICT_WORDS = JSON.map(lambda value: (json.dumps(value, ensure_ascii=False), value))


@given(st.dictionaries(TEXT, LAX_WORDS | STRICT_WORDS), st.sampled_from(["", " ", "\n\t"]))
def test_nonstandard_json_literals_are_parsed_and_kept(words, blank):
    members = f",{blank}".join(
        f"{json.dumps(name)}{blank}:{blank}{spelling}{blank}"
        for name, (spelling, _) in words.items()
    )
    document = Document("k", f"{blank}{{{blank}{members}}}{blank}".encode())
    assert document.value == {name: value for name, (_, value) in words.items()}
    for name, (spelling, _) in words.items():
        assert document.literal(name) == spelling


@given(st.binary() | st.text('{}[]",:\\u0123456789abcdefx+-.eENaInity \n').map(str.encode))
def test_parsing_arbitrary_bytes_as_json_succeeds_or_raises_metadata_error(data):
    with contextlib.suppress(MetadataError):
        render_json(Document("k", data).value)


# Types and fill values ---------------------------------------------------------------------------

SIMPLE = st.one_of(
    npst.boolean_dtypes(),
    npst.integer_dtypes(endianness="?"),
    npst.unsigned_integer_dtypes(endianness="?"),
    npst.floating_dtypes(endianness="?", sizes=(16, 32, 64)),
    npst.complex_number_dtypes(endianness="?", sizes=(64, 128)),
    npst.datetime64_dtypes(endianness="?"),
    npst.timedelta64_dtypes(endianness="?"),
    npst.byte_string_dtypes(min_len=1, max_len=9),
    npst.unicode_string_dtypes(endianness="?", min_len=1, max_len=9),
    st.integers(1, 9).map(lambda size: np.dtype(f"V{size}")),
)
# Not all four-byte values are characters. NumPy crashes when it hashes a structured scalar that
# contains others.
FIELDS = st.tuples(
    SIMPLE.filter(lambda dtype: dtype.kind != "U"),
    st.lists(st.integers(1, 3), max_size=2).map(tuple),
)
TYPES = SIMPLE | st.lists(FIELDS, min_size=1, max_size=3).map(
    lambda fields: np.dtype([(f"field {n}", *field) for n, field in enumerate(fields)])
)


@st.composite
def scalars(draw):
    """Draw a dtype, and either a scalar of it or None. A text dtype always gets a scalar."""
    dtype = draw(TYPES)
    raw = draw(st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize))
    if dtype.kind == "U":
        return dtype, np.str_(draw(TEXT)[: dtype.itemsize // 4].rstrip("\0"))
    if dtype.kind == "b":
        raw = bytes([raw[0] & 1])
    return dtype, draw(st.none() | st.just(np.frombuffer(raw, dtype)[0]))


def spelled(value, dtype):
    """Return the text of a fill value. All NaN values have the same text."""
    return repr(None if value is None else np.asarray(value, dtype).tolist())


@given(scalars())
def test_data_types_and_fill_values_round_trip(pair):
    dtype, value = pair
    described = json.loads(render_json(render_data_type(dtype)))
    assert parse_data_type(described) == dtype
    assert render_data_type(dtype, described) == described
    stored = json.loads(render_json(render_v2_fill_value(value, dtype)))
    assert spelled(parse_v2_fill_value(stored, dtype), dtype) == spelled(value, dtype)


# Nodes -------------------------------------------------------------------------------------------

CODECS = st.fixed_dictionaries(
    {"id": st.sampled_from(["shuffle", "zlib", "blosc", "x"])}, optional={"level": JSON}
)
NAMES = TEXT.filter(
    lambda name: (
        name
        not in {
            *PLAIN_MEMBERS,
            "zarr_format",
            "dimension_separator",
            "compression",
            "compression_opts",
        }
    )
)
PLAIN_MEMBERS = ("shape", "dtype", "chunks", "fill_value", "order", "compressor", "filters")
PATHS = st.sampled_from(["/", "/v", "/group/v"])


@st.composite
def array_documents(draw):
    """Draw the path of an array, and two documents for it that follow the specification."""
    path = draw(PATHS)
    dtype, fill = draw(scalars())
    shape = draw(st.lists(st.integers(0, 2**20), max_size=3))
    members = draw(st.dictionaries(NAMES, JSON, max_size=2)) | {
        "zarr_format": 2,
        "shape": shape,
        "dtype": render_data_type(dtype),
        "chunks": draw(st.tuples(*[st.integers(1, 100)] * len(shape)).map(list)),
        "fill_value": render_v2_fill_value(fill, dtype),
        "order": draw(st.sampled_from("CF")),
        "compressor": draw(st.none() | CODECS),
        "filters": draw(st.none() | st.lists(CODECS, min_size=1, max_size=2)),
    }
    if draw(st.booleans()):
        members["dimension_separator"] = draw(st.sampled_from("./"))
    prefix = key_prefix(path)
    return path, {f"{prefix}.zarray": members, f"{prefix}.zattrs": draw(OBJECTS)}


def parsed(module, path, values):
    held = {key: Document(key, render_json(value)) for key, value in values.items()}
    return module.parse_node(path, held)


def rendered(module, node):
    return {key: json.loads(data) for key, data in module.render_node(node).items()}


@given(array_documents())
@settings(deadline=None)
def test_rendering_parsed_arrays_restores_original_documents(pair):
    path, held = pair
    node = parsed(v2, path, held)
    assert isinstance(node, ArrayNode), node.error
    again = rendered(v2, node)
    assert spelled_documents(again) == spelled_documents(held)
    assert repr(parsed(v2, path, again)) == repr(node)


def spelled_documents(documents):
    return {key: json.dumps(value, sort_keys=True) for key, value in documents.items()}


@given(PATHS, OBJECTS, st.dictionaries(NAMES, JSON))
def test_parsed_groups_are_rendered_to_original_documents(path, attributes, members):
    prefix = key_prefix(path)
    held = {f"{prefix}.zgroup": {"zarr_format": 2} | members, f"{prefix}.zattrs": attributes}
    node = parsed(v2, path, held)
    assert isinstance(node, GroupNode)
    assert rendered(v2, node) == held


@given(array_documents(), st.sampled_from([None, "zlib", "blosc"]), st.integers(0, 9))
@settings(deadline=None)
def test_parsed_v1_arrays_are_rendered_to_original_documents(pair, name, level):
    path, held = pair
    members, attributes = held.values()
    for member in ("compressor", "filters", "dimension_separator"):
        members.pop(member, None)
    options = {None: None, "zlib": level, "blosc": {"clevel": level}}[name]
    members |= {"zarr_format": 1, "compression": name, "compression_opts": options}
    if members["dtype"][1:2] == "f" and isinstance(members["fill_value"], str):
        members["fill_value"] = float(members["fill_value"])  # v1 stores NaN and infinity unquoted
    prefix = key_prefix(path)
    held = {f"{prefix}meta": members, f"{prefix}attrs": attributes}
    node = parsed(v1, path, held)
    assert isinstance(node, ArrayNode), node.error
    assert spelled_documents(rendered(v1, node)) == spelled_documents(held)


MEMBERS = (*PLAIN_MEMBERS, "zarr_format", "dimension_separator")


@pytest.mark.parametrize("module", [v1, v2])
@given(pair=array_documents(), name=st.sampled_from(MEMBERS), value=JSON)
@settings(deadline=None)
def test_arbitrary_array_member_is_parsed_or_rejected_with_error_that_names_key(
    module, pair, name, value
):
    path, held = pair
    members, attributes = held.values()
    changed = dict(
        zip(
            module.node_keys(path)[:: 1 if module is v1 else 2],
            ({"zarr_format": int(module.version)} | members | {name: value}, attributes),
            strict=True,
        )
    )
    node = parsed(module, path, changed)
    if isinstance(node, BrokenNode):
        assert node.error.key in changed
    else:
        assert isinstance(node, ArrayNode)
        module.recognizes({})


@given(st.dictionaries(st.sampled_from([".zgroup", "a/.zattrs", "b/c/.zarray"]), OBJECTS))
def test_consolidated_documents_round_trip_in_order(held):
    data = {key: render_json(value) for key, value in held.items()}
    (key,) = v2.render_consolidated(data)
    expanded = v2.expand_consolidated({key: Document(key, v2.render_consolidated(data)[key])})
    assert {name: document.value for name, document in expanded.items()} == held
    assert list(expanded) == list(held)
