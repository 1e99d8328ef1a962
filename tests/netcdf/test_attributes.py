"""Attributes, strings and types are decoded from JSON and bytes, and encoded again."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.nodes import group
from xr_nczarr.errors import ConflictError, UnsupportedError
from xr_nczarr.model import Attributes
from xr_nczarr.netcdf.attributes import attributes_of, decode_attributes, encode_attribute
from xr_nczarr.netcdf.types import NUMBERS, decode_strings, encode_strings, measured_width


def decode(value, spelling=None, literal="<literal>"):
    attributes = Attributes({"a": value}, {"a": literal}.__getitem__)
    return decode_attributes(attributes, {} if spelling is None else {"a": spelling})["a"]


def assert_same(result, expected):
    np.testing.assert_equal(result, expected)
    assert type(result) is type(expected)
    assert getattr(result, "dtype", None) == getattr(expected, "dtype", None)


TYPED = [
    (5, "<i1", np.int8(5)),
    ([5], "1", np.int8(5)),
    ([1, 2], ">i2", np.array([1, 2], "i2")),
    (18446744073709551615, "<u8", np.uint64(18446744073709551615)),
    (-9223372036854775808, "int64", np.int64(-9223372036854775808)),
    (3, "<f4", np.float32(3)),
    (3.0, "<i4", np.int32(3)),
    (0.012345678901234, "<f8", np.float64(0.012345678901234)),
    ("NaN", "<f4", np.float32("nan")),
    (math.nan, "<f8", np.float64("nan")),
    (["-Infinity", 1.5], "<f8", np.array([-math.inf, 1.5])),
    ([], "<i2", np.array([], "i2")),
    (True, "|u1", np.uint8(1)),
    (3.4028235e38, "<f4", np.finfo("f4").max),
    ("x", "|S128", ["x"]),
    (["a", "bc"], "|S128", ["a", "bc"]),
    (["a"], "|S3", ["a"]),
    ([], "string", []),
    ([1, "b"], "|S9", ["1", "b"]),
]


@pytest.mark.parametrize(("value", "spelling", "expected"), TYPED)
def test_attributes_are_decoded_to_recorded_types(value, spelling, expected):
    assert_same(decode(value, spelling), expected)


INFERRED = [
    (5, np.int32(5)),
    (2**31, np.int64(2**31)),
    (2**63, np.uint64(2**63)),
    ([1, 2**40], np.array([1, 2**40])),
    (1.0, np.float64(1)),
    ([1, 0.5], np.array([1, 0.5])),
    (math.inf, np.float64("inf")),
    (True, np.uint8(1)),
    ([True, False], np.array([1, 0], "u1")),
    ("001", "001"),
    (["a", "bc"], ["a", "bc"]),
    ("", ""),
    ([], np.array([])),
]


@pytest.mark.parametrize(("value", "expected"), INFERRED)
def test_untyped_attributes_are_decoded_to_type_inferred_from_json(value, expected):
    assert_same(decode(value), expected)


@pytest.mark.parametrize(("value", "expected"), INFERRED)
def test_unknown_attribute_type_is_ignored(value, expected):
    assert_same(decode(value, "<c16"), expected)


@pytest.mark.parametrize("value", [None, {"a": 1}, [[1]], [1, "a"], [None], 2**64, -(2**63) - 1])
def test_json_that_netcdf_cannot_represent_is_read_as_text(value):
    assert decode(value) == "<literal>"


# Regressions D14, D16
@pytest.mark.parametrize("spelling", [">S1", "<U1", "2", "char"])
@pytest.mark.parametrize("value", [1, 1.1, True, None, {"a": 1}, [0.0, 1.0], math.nan])
def test_text_attributes_stored_without_quotes_are_read_as_text(value, spelling):
    assert decode(value, spelling, "001") == "001"


@pytest.mark.parametrize("spelling", [">S1", "<U1", "2", "char"])
def test_plain_text_attributes_are_decoded_unchanged(spelling):
    assert decode("é{1}", spelling) == "é{1}"


@pytest.mark.parametrize("spelling", ["|J0", "json"])
@pytest.mark.parametrize("value", [5, {"a": [1]}, "text"])
def test_attributes_with_json_type_are_read_as_json_text(value, spelling):
    assert decode(value, spelling, '{"a": [1]}') == '{"a": [1]}'


@pytest.mark.parametrize(
    ("value", "spelling", "expected"),
    [
        (300, "|i1", np.int32(300)),
        (1.5, "<i4", np.float64(1.5)),
        ("text", "<f8", "text"),
        (3.4028236e38, "<f4", np.float64(3.4028236e38)),
        ([1, "a"], "<i4", "<literal>"),
        (math.nan, "<i4", np.float64("nan")),
        (10**400, "<f8", "<literal>"),
    ],
)
def test_json_value_takes_precedence_over_contradictory_type(value, spelling, expected):
    assert_same(decode(value, spelling), expected)


def test_internal_attributes_are_hidden_except_quantization_and_maxstrlen():
    hidden = ["_NCProperties", "_ARRAY_DIMENSIONS", "_Codecs", "_nczarr_attr", "_NCZARR_ATTR"]
    hidden += ["_nczarr_array", "_nczarr_attrs"]
    shown = ["_nczarr_maxstrlen", "_nczarr_default_maxstrlen"]
    shown += ["_QuantizeBitRoundNumberOfSignificantBits", "_FillValue", "_a", "nczarr_", ""]
    attributes = Attributes(dict.fromkeys([*hidden, *shown], "x"))
    assert list(decode_attributes(attributes, {})) == shown
    for names in (hidden, hidden[:3]):  # with and without NCZarr metadata
        named = dict.fromkeys([*names, *shown], "x")
        assert list(attributes_of(group(attributes=named))) == shown


# Encoding

numbers = st.sampled_from(sorted(NUMBERS)).flatmap(
    lambda name: hnp.arrays(name, hnp.array_shapes(max_dims=1, min_side=0, max_side=4))
)
texts = st.text(st.characters(exclude_categories=["Cs"]))
values = st.one_of(
    texts,
    st.lists(texts, min_size=2, max_size=3),
    numbers.map(lambda array: array[0] if array.size == 1 else array),
    st.sampled_from(["001", "1.10", "-5", "TRUE", "nan", "+5", "0x10", "1.", "[1]", '{"a": 1}']),
)


# Regression D64
@given(values)
def test_typed_attributes_round_trip(value):
    encoded, kind = encode_attribute(value)
    assert_same(decode(encoded, kind), value)


# Regression D14
@given(values)
def test_untyped_attributes_round_trip_as_text_or_numbers(value):
    decoded = decode(encode_attribute(value, typed=False)[0])
    np.testing.assert_equal(decoded, value)
    assert isinstance(decoded, str) == isinstance(value, str)


# Regression D64
@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.1), (0.1, "float32")),
        (0.012345678901234, (0.012345678901234, "float64")),
        (np.float64(5e-324), (5e-324, "float64")),
        (1e300, (1e300, "float64")),
        (-math.inf, ("-Infinity", "float64")),
        (np.float32("nan"), ("NaN", "float32")),
        (7, (7, "int64")),
        (2**64 - 1, (2**64 - 1, "uint64")),
        (np.array([7], "i2"), (7, "int16")),
        (np.array([], "f4"), ([], "float32")),
        ((1, 2), ([1, 2], "int64")),
        (True, (1, "uint8")),
        (np.float16(0.1), (0.099975586, "float32")),
        ("5", ("5", "char")),
        (np.str_("5"), ("5", "char")),
        (b"5", ("5", "char")),
        (["a", "b"], (["a", "b"], "string")),
        (np.array(["a", "b"]), (["a", "b"], "string")),
        ({"a": 1}, ({"a": 1}, "json")),
        ([1, {"a": 1}], ([1, {"a": 1}], "json")),
        (None, (None, "json")),
    ],
)
def test_attributes_are_encoded_as_shortest_json_that_round_trips(value, expected):
    result = encode_attribute(value)
    assert result == expected
    assert type(result[0]) is type(expected[0])


def test_encoding_untyped_attributes_preserves_booleans_and_non_finite_numbers():
    assert encode_attribute([True, False], typed=False)[0] == [True, False]
    assert encode_attribute(-math.inf, typed=False)[0] == -math.inf


def test_large_integers_are_encoded_without_conversion_to_float():
    assert encode_attribute([1, 2**63 + 1]) == ([1, 2**63 + 1], "uint64")
    assert encode_attribute([np.int64(1), np.uint64(2**63 + 1)]) == ([1, 2**63 + 1], "uint64")
    assert encode_attribute([-1, np.uint64(2**53 + 1)]) == ([-1, 2**53 + 1], "int64")


@pytest.mark.parametrize(
    "value",
    [1j, np.datetime64("2000"), np.ones((2, 2)), object(), 2**64, b"\xe9", [-1, 2**63 + 1]],
)
def test_values_without_netcdf_type_are_rejected(value):
    with pytest.raises(UnsupportedError):
        encode_attribute(value)


@pytest.mark.parametrize("number", [10**30, 2**64, -(2**63) - 1])
@pytest.mark.parametrize("wrap", [lambda n: n, lambda n: [1, n], lambda n: np.array([n, 0.5], "O")])
def test_error_for_integer_exceeding_64_bits_includes_integer(number, wrap):
    with pytest.raises(UnsupportedError, match=f"can represent .*{number}].*dialect='zarr'"):
        encode_attribute(wrap(number))
    assert encode_attribute(wrap(number), typed=False)[1] == "json"
    with pytest.raises(UnsupportedError, match="cannot be stored as JSON"):
        encode_attribute(wrap(10**5000))


# Strings


# Regression D65
@given(
    hnp.arrays(
        object, hnp.array_shapes(min_side=0), elements=texts.map(lambda s: s.replace("\0", ""))
    )
)
def test_strings_round_trip_with_width_of_longest_value(strings):
    width = measured_width(strings)
    assert decode_strings(encode_strings(strings, width)).tolist() == strings.tolist()


# Regression D65
def test_string_longer_than_declared_width_is_rejected():
    with pytest.raises(ConflictError, match="3 bytes long in UTF-8, which exceeds the width of 2"):
        encode_strings(np.array(["aé"], object), 2)
    assert encode_strings(np.array(["aé"], object), 3).tolist() == ["aé".encode()]


def test_non_utf8_bytes_round_trip():
    latin = np.array([b"caf\xe9"])
    assert encode_strings(decode_strings(latin), 4).tolist() == latin.tolist()


# Regression D67
@pytest.mark.parametrize("value", [None, math.nan, 5, "a\0b", "\ud800"])
@pytest.mark.parametrize("beside", [[], ["text"], [b"bytes"]])
def test_invalid_text_cannot_be_encoded_as_strings(value, beside):
    with pytest.raises(ConflictError):
        encode_strings(np.array([*beside, value], object), 5)
