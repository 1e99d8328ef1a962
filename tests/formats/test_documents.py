"""JSON documents: valid and invalid input, and the original text of members."""

import json
import math

import numpy as np
import pytest

from xr_nczarr.errors import LimitError, MetadataError
from xr_nczarr.formats.documents import (
    Document,
    read_chunk_shape,
    read_integer,
    read_lengths,
    read_list,
    read_object,
    read_text,
    render_json,
    required,
)
from xr_nczarr.model import Limits, check_chunk_size

# netcdf-c 4.10.1 writes text attributes that are valid JSON without quotes.
BARE = {
    "001": 1,
    "1.10": 1.1,
    "-5": -5,
    "-007": -7,
    "+5": 5,
    "+00": 0,
    "0x10": 16,
    "1.": 1.0,
    ".5": 0.5,
    "1e": 1.0,
    "1E+": 1.0,
    "TRUE": True,
    "False": False,
    "NULL": None,
    "inf": math.inf,
    "-inf": -math.inf,
    "infinity": math.inf,
    "Infinity": math.inf,
    "[0.,0.,1.]": [0.0, 0.0, 1.0],
    '{"a": 01}': {"a": 1},
    '"it\\\'s"': "it's",
    '"a\x01b\nc"': "a\x01b\nc",
    r'"\\\"\/\b\u00e9"': '\\"/\bé',
}


# Regression D14
@pytest.mark.parametrize(("literal", "value"), BARE.items())
def test_unquoted_text_from_netcdf_c_is_parsed_and_preserved(literal, value):
    text = f'{{"before": [00, "x,]}}"], "name" : {literal} , "after": 1}}'
    attributes = Document("v/.zattrs", text.encode()).attributes()
    assert attributes["name"] == value
    assert type(attributes["name"]) is type(value)
    assert attributes["before"] == [0, "x,]}"]
    assert attributes.literal("name") == literal
    assert attributes.literal("before") == '[00, "x,]}"]'
    assert attributes.literal("after") == "1"


# Regression D15
def test_unquoted_nan_and_infinity_are_parsed():
    values = Document("k", b'{"a": [NaN, -Infinity, nan]}').value["a"]
    assert np.isnan(values[0])
    assert values[1] == -math.inf
    assert np.isnan(values[2])


# Regression D16
def test_json_notation_in_consolidated_attributes_is_preserved():
    text = b'{"metadata": {"a/.zattrs": {"x": 007}, "b/.zattrs": {"t" : { "a":1 ,"b": [0.,1.]}}}}'
    held = Document(".zmetadata", text, consolidated=True).member("metadata")
    attributes = held.member("b/.zattrs", key="b/.zattrs").attributes()
    assert attributes["t"] == {"a": 1, "b": [0.0, 1.0]}
    assert attributes.literal("t") == '{ "a":1 ,"b": [0.,1.]}'
    assert held.member("a/.zattrs").attributes().literal("x") == "007"


# Regression D17
def test_rendered_json_escapes_only_characters_that_must_be_escaped():
    value = {"é": 'Ω"\\\x7f\n', "f": [0.1, 1e300, float("nan")]}
    assert render_json(value) == '{"é": "Ω\\"\\\\\x7f\\n", "f": [0.1, 1e+300, NaN]}'.encode()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "the document is empty"),
        (b" \n", "the document is empty"),
        (b"\0", "not valid JSON"),
        (b'{"a": 1', "not valid JSON"),
        (b'{"a": 1}x', "not valid JSON"),
        (b'{"a": 1}1}', r"char 8\)\. If netCDF-C has changed the store, truncate the file"),
        (b'{"a": 1.}1}', r"char 9\)\. If netCDF-C has changed the store, truncate the file"),
        (b'{"a": bare}', "not valid JSON"),
        (b'{"a": 1.2.3}', "not valid JSON"),
        (b'{"a": 01, "b" 2}', r"Expecting ':' delimiter: line 1 column 15"),
        (b"{1: 2}", "not valid JSON"),
        (b'{"a": "\\u12"}', "not valid JSON"),
        (b'["unterminated', "not valid JSON"),
        (b"\xff\xfe", "not valid UTF-8"),
        (b'{"a": "\xc3"}', "not valid UTF-8"),
        (b'{"a": "\\ud800"}', "not valid Unicode"),
        (b'{"a": 1, "b": {"c": 1, "c": 1}}', "more than one member named 'c'"),
        (b'{"a": 01, "a": 2}', "more than one member named 'a'"),
        (b'{"a": ' + b"1" * 5000 + b"}", "too many digits"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "more than 64 levels deep"),
        (b"[" * 65 + b"1." + b"]" * 65, "more than 64 levels deep"),
        (b"[" * 1_000_000, "more than 64 levels deep"),
        (b"[" + b"1. " * 500_001 + b"1]", "more than 500,000"),
    ],
)
def test_error_for_invalid_json_includes_key(data, problem):
    with pytest.raises(MetadataError, match=problem) as raised:
        _ = Document("v/.zattrs", data).value
    assert raised.value.key == "v/.zattrs"


def test_documents_with_maximum_nesting_depth_or_surrogate_pairs_are_parsed():
    assert Document("k", b"[" * 64 + b"]" * 64).value
    assert Document("k", b'"\\ud83d\\ude00"').value == "😀"


def test_byte_order_mark_is_skipped():
    assert Document("k", b'\xef\xbb\xbf{"a": 1}').attributes().literal("a") == "1"


def test_metadata_document_above_size_limit_is_rejected_before_parsing():
    limits = Limits(max_metadata_bytes=10)
    with pytest.raises(LimitError, match="max_metadata_bytes"):
        Document("k", b" " * 11, limits=limits)
    assert Document("k", b"[]" + b" " * 9, limits=limits, consolidated=True).value == []


def test_attributes_that_are_not_a_json_object_are_rejected():
    document = Document("zarr.json", b'{"attributes": [1]}')
    with pytest.raises(MetadataError, match=r"zarr\.json, attributes: invalid value \[1\]"):
        document.attributes("attributes")
    assert Document("zarr.json", b'{"attributes": {"a": 1.0}}').attributes("attributes")["a"] == 1


@pytest.mark.parametrize("value", [True, 1.0, "1", None, -1, 2**63, 10**400, [1], {}])
def test_non_integers_and_out_of_range_integers_are_rejected(value):
    with pytest.raises(MetadataError) as raised:
        read_integer(value, "shape")
    assert raised.value.place == "shape"
    with pytest.raises(MetadataError):
        read_lengths([3, value], "shape")


def test_shapes_with_excessive_rank_or_element_count_are_rejected():
    assert read_lengths([], "shape") == ()
    assert read_lengths([0, 2**62], "shape") == (0, 2**62)
    for shape in ([2**32, 2**31], [0, 2**62, 2], [1] * 65):
        with pytest.raises(MetadataError):
            read_lengths(shape, "shape")
    with pytest.raises(MetadataError, match="from 1"):
        read_lengths([0], "chunks", least=1)


def test_chunk_lengths_can_be_zero_only_for_empty_dimensions():
    assert read_chunk_shape([100, 0], "chunks", (3, 0)) == (100, 1)
    with pytest.raises(MetadataError, match="at least 1"):
        read_chunk_shape([0], "chunks", (3,))
    with pytest.raises(MetadataError, match="1 lengths"):
        read_chunk_shape([1, 1], "chunks", (3,))


def test_chunks_above_byte_limit_are_rejected():
    limits = Limits(max_chunk_bytes=800)
    check_chunk_size((100,), np.dtype("f8"), limits)
    with pytest.raises(LimitError, match="max_chunk_bytes"):
        check_chunk_size((101,), np.dtype("f8"), limits)


def test_error_for_member_of_wrong_type_includes_its_path():
    for read, value in ((read_object, []), (read_list, {}), (read_text, 1)):
        with pytest.raises(MetadataError) as raised:
            read(value, "there")
        assert raised.value.place == "there"
    with pytest.raises(MetadataError, match='expected "C" or "F"'):
        read_text("A", "order", ("C", "F"))
    with pytest.raises(MetadataError, match='there: the required member "there" is missing'):
        required({}, "there")


def test_error_messages_truncate_long_values():
    with pytest.raises(MetadataError) as raised:
        read_object(["x" * 1000] * 1000, "there")
    assert len(str(raised.value)) < 300


def test_json_text_is_available_only_for_top_level_members():
    text = json.dumps({"a": {"b": "}"}, "b": 1, "{": {"b": 2}})
    document = Document("k", text.encode())
    assert document.literal("b") == "1"
    assert document.member("{").literal("b") == "2"
    with pytest.raises(KeyError):
        document.literal("c")
