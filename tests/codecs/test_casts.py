"""Zarr v3's codecs scale_offset and cast_value, as specified and as written by zarr-python 3.4."""

import base64
import json
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given
from hypothesis import strategies as st

import xr_nczarr
from tests.formats.test_v3 import EXAMPLE, LITTLE, parse, rendered, sharded
from tests.stores import array_document
from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.codecs import compile_codec
from xr_nczarr.codecs.casts import Cast
from xr_nczarr.errors import ChunkError, ConflictError, MetadataError, UnsupportedError
from xr_nczarr.formats import FORMATS
from xr_nczarr.formats.documents import Document
from xr_nczarr.model import BrokenNode, CodecSpec
from xr_nczarr.storage import LocalStore

v3 = FORMATS["3"]

RECORDED = json.loads((Path(__file__).parents[1] / "fixtures/v3/casts.json").read_bytes())
BYTES = {"name": "bytes"}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}


def scale_offset(**configuration):
    return {"name": "scale_offset", "configuration": configuration}


def cast_value(data_type, **configuration):
    return {"name": "cast_value", "configuration": {"data_type": data_type, **configuration}}


def array_of(dtype, *codecs, shape=(4,), **members):
    grid = {"name": "regular", "configuration": {"chunk_shape": list(shape)}}
    document = {"shape": list(shape), "data_type": dtype, "chunk_grid": grid, "fill_value": 0}
    document |= {"dimension_names": None, "codecs": list(codecs), **members}
    return parse({**EXAMPLE, **document})


def stored(node, values):
    """Return the bytes of an encoded chunk as hexadecimal digits."""
    return bytes(compile_codec(node).encode(np.array(values, node.dtype))).hex()


def put(folder, name):
    objects = {key: base64.b64decode(data) for key, data in RECORDED[name]["objects"].items()}
    for key, data in objects.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return objects


def opened(folder):
    document = Document("zarr.json", (folder / "zarr.json").read_bytes())
    return ChunkedArray(v3.parse_node("/", {"zarr.json": document}), LocalStore(str(folder)))


def as_recorded(values):
    return base64.b64encode(values.astype(values.dtype.newbyteorder("<")).tobytes()).decode()


# Stores from other programs -----------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDED)
def test_casts_encoded_by_zarr_python_are_decoded(tmp_path, name):
    objects = put(tmp_path, name)
    array = opened(tmp_path)
    everything = (slice(None),) * len(array.node.shape)
    assert as_recorded(array.read(everything)) == RECORDED[name]["read"]
    assert rendered(array.node)["codecs"] == json.loads(objects["zarr.json"])["codecs"]


# zarr-python writes inner chunks in another order, so "sharded" is not compared.
@pytest.mark.parametrize("name", [name for name in RECORDED if name != "sharded"])
def test_casts_produce_same_bytes_as_zarr_python(tmp_path, name):
    objects = put(tmp_path, name)
    array = opened(tmp_path)
    dtype = array.node.dtype.newbyteorder("<")
    written = np.frombuffer(base64.b64decode(RECORDED[name]["written"]), dtype)
    chunks = objects.keys() - {"zarr.json"}
    for key in chunks:
        (tmp_path / key).unlink()
    array.write((slice(None),) * len(array.node.shape), written.reshape(array.node.shape))
    assert {key: (tmp_path / key).read_bytes() for key in chunks} == {
        key: objects[key] for key in chunks
    }


LATER = not hasattr(zarr.codecs, "CastValue")


@pytest.mark.filterwarnings("ignore:Codec '.*' not configured in config")
@pytest.mark.skipif(LATER, reason="zarr-python supports these codecs since 3.2, for Python 3.12")
def test_zarr_python_reads_casts_written_by_xr_nczarr(tmp_path):
    values = np.round(np.arange(24.0) / 10 - 1, 1).reshape(4, 6)
    filters = [
        zarr.codecs.ScaleOffset(offset=-1, scale=10),
        zarr.codecs.CastValue(data_type="uint8"),
    ]
    encoding = {"v": {"filters": filters, "chunks": (3, 4), "fill_value": 0}}
    dataset = xr.Dataset({"v": (("y", "x"), values)})
    xr_nczarr.to_nczarr(dataset, tmp_path / "s", dialect="zarr", zarr_format=3, encoding=encoding)
    read = xr.open_zarr(tmp_path / "s", zarr_format=3, consolidated=False).v.values
    np.testing.assert_array_equal(read, xr.open_dataset(tmp_path / "s", engine="nczarr").v)
    np.testing.assert_allclose(read, values, atol=1e-12)


# The rules of cast_value -----------------------------------------------------------------------

HALVES = [0.5, 1.5, 2.5, -0.5, -1.5, 0.75]
ROUNDED = {
    "nearest-even": [0, 2, 2, 0, -2, 1],
    "towards-zero": [0, 1, 2, 0, -1, 0],
    "towards-positive": [1, 2, 3, 0, -1, 1],
    "towards-negative": [0, 1, 2, -1, -2, 0],
    "nearest-away": [1, 2, 3, -1, -2, 1],
}
LARGE = [2**64 - 1, 2**53 + 1]
ROUNDED_LARGE = {
    "nearest-even": [2.0**64, 2.0**53],
    "towards-zero": [2.0**64 - 2048, 2.0**53],
    "towards-positive": [2.0**64, 2.0**53 + 2],
    "towards-negative": [2.0**64 - 2048, 2.0**53],
    "nearest-away": [2.0**64, 2.0**53 + 2],
}


@pytest.mark.parametrize("rounding", ROUNDED)
def test_casts_use_configured_rounding_mode(rounding):
    node = array_of("float32", cast_value("int8", rounding=rounding), BYTES, shape=(6,))
    assert stored(node, HALVES) == np.array(ROUNDED[rounding], "i1").tobytes().hex()
    node = array_of("uint64", cast_value("float64", rounding=rounding), LITTLE, shape=(2,))
    assert stored(node, LARGE) == np.array(ROUNDED_LARGE[rounding]).tobytes().hex()


def test_nearest_away_mode_rounds_numbers_just_below_half_to_zero():
    node = array_of("float64", cast_value("int8", rounding="nearest-away"), BYTES, shape=(2,))
    assert stored(node, [np.nextafter(0.5, 0), -np.nextafter(0.5, 0)]) == "0000"


@pytest.mark.parametrize(
    ("value", "data_type", "clamped", "wrapped"),
    [
        (128.0, "int8", 127, -128),
        (32768, "int16", 32767, -32768),
        (32769, "int16", 32767, -32767),
        (-32769, "int16", -32768, 32767),
        (256.0, "uint8", 255, 0),
        (-1.0, "uint8", 0, 255),
        (2.0**64, "uint64", 2**64 - 1, 0),
        (-(2.0**63) - 4096, "int64", -(2**63), 2**63 - 4096),
        (2.0**127, "uint8", 255, 0),
    ],
    ids=[
        "just above int8",
        "just above int16",
        "above int16",
        "below int16",
        "just above uint8",
        "just below uint8",
        "above uint64",
        "below int64",
        "far above uint8",
    ],
)
def test_out_of_range_parameter_applies_to_integers(value, data_type, clamped, wrapped):
    dtype = "float64" if isinstance(value, float) else "int32"
    for out_of_range, expected in (("clamp", clamped), ("wrap", wrapped)):
        codec = cast_value(data_type, out_of_range=out_of_range)
        node = array_of(dtype, codec, LITTLE, shape=(1,))
        assert stored(node, [value]) == np.array([expected], data_type).tobytes().hex()
    node = array_of(dtype, cast_value(data_type), LITTLE, shape=(1,))
    with pytest.raises(
        ChunkError, match=f"value .* does not fit in dtype {data_type}.*.*out_of_range"
    ):
        stored(node, [value])


def test_out_of_range_parameter_applies_to_floats():
    node = array_of("float64", cast_value("float16", out_of_range="clamp"), LITTLE)
    expected = np.array([np.inf, -np.inf, 65504, -0.0], "f2")
    assert stored(node, [65520, -1e300, 65519, -0.0]) == expected.tobytes().hex()
    node = array_of("float64", cast_value("float16"), LITTLE, shape=(1,))
    with pytest.raises(ChunkError, match=r"value 65520.* does not fit in dtype float16"):
        stored(node, [65520])
    for special in (np.inf, -np.inf, np.nan):
        assert stored(node, [special]) == np.array([special], "f2").tobytes().hex()


@pytest.mark.parametrize("out_of_range", [None, "clamp", "wrap"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf], ids=["nan", "inf", "-inf"])
def test_casting_nan_or_infinity_to_integers_requires_scalar_map(value, out_of_range):
    rules = {} if out_of_range is None else {"out_of_range": out_of_range}
    node = array_of("float32", cast_value("int16", **rules), LITTLE, shape=(1,))
    with pytest.raises(ChunkError, match=r"does not fit in dtype int16.*scalar_map"):
        stored(node, [value])


def test_first_matching_scalar_map_entry_wins():
    maps = {
        "encode": [["NaN", 0], ["+Infinity", 1], [1.5, 7], [1.5, 8], ["0x40000000", 9]],
        "decode": [[0, "NaN"], [0, 5]],
    }
    node = array_of("float32", cast_value("uint8", scalar_map=maps), BYTES, shape=(5,))
    data = stored(node, [np.nan, np.inf, 1.5, 2, 3])
    assert data == "0001070903"
    decoded = compile_codec(node).decode(bytes.fromhex(data))
    np.testing.assert_array_equal(decoded, [np.nan, 1, 7, 9, 3])


def test_decoding_applies_same_rules_as_encoding():
    node = array_of("int8", cast_value("float32"), LITTLE, shape=(1,))
    codec = compile_codec(node)
    assert codec.decode(np.array([2.5], "<f4").tobytes()).tolist() == [2]
    for value in (np.nan, 128.0):
        with pytest.raises(ChunkError, match=r"codec cast_value .*does not fit in dtype int8"):
            codec.decode(np.array([value], "<f4").tobytes())


NUMBERS = [f"{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)] + ["f2", "f4", "f8"]
FINITE = st.floats(allow_nan=False, allow_infinity=False, width=64) | st.floats(-300, 300)


def model(value, target, rounding):
    """Return an exact number rounded to the precision of a type, as a fraction.

    The range of the type is not taken into account.
    """
    if target.kind in "iu":
        low, step = Fraction(value.__floor__()), Fraction(1)
    else:
        info = np.finfo(target)
        exponent = int(info.minexp)
        while abs(value) >= Fraction(2) ** (exponent + 1):
            exponent += 1
        step = Fraction(2) ** (exponent - int(info.nmant))
        low = (value / step).__floor__() * step
    high = low if low == value else low + step
    nearest_is_low = value - low < high - value
    if value - low == high - value:
        even = (low / step) % 2 == 0
        nearest_is_low = even if rounding == "nearest-even" else value < 0
    return {
        "towards-positive": high,
        "towards-negative": low,
        "towards-zero": low if value > 0 else high,
    }.get(rounding, low if nearest_is_low else high)


@given(st.data(), st.sampled_from(NUMBERS), st.sampled_from(NUMBERS), st.sampled_from([*ROUNDED]))
def test_casts_agree_with_exact_arithmetic(data, source, target, rounding):
    source, target = np.dtype(source), np.dtype(target)
    if source.kind == "f":
        with np.errstate(over="ignore"):
            value = source.type(data.draw(FINITE))
    else:
        info = np.iinfo(source)
        value = source.type(data.draw(st.integers(int(info.min), int(info.max))))
    if not np.isfinite(value):
        return
    expected = model(Fraction(value.item()), target, rounding)
    limits = np.iinfo(target) if target.kind in "iu" else np.finfo(target)
    out = np.empty(1, target)
    cast = Cast(source, target, rounding, None)
    if Fraction(limits.min.__int__()) <= expected <= Fraction(limits.max.__int__()):
        cast(np.array([value]), out)
        assert Fraction(out[0].item()) == expected
    else:
        with pytest.raises(ChunkError):
            cast(np.array([value]), out)


# scale_offset ----------------------------------------------------------------------------------


def test_scale_offset_codec_computes_in_array_dtype():
    values = np.array([5.1, -3, np.inf, 1e38], "f4")
    node = array_of("float32", scale_offset(offset=5, scale=0.1), LITTLE)
    expected = (values - np.float32(5)) * np.float32(0.1)
    assert stored(node, values) == expected.tobytes().hex()
    decoded = compile_codec(node).decode(expected.tobytes())
    np.testing.assert_array_equal(decoded, expected / np.float32(0.1) + np.float32(5))


@pytest.mark.parametrize(
    ("data_type", "codec", "value", "words"),
    [
        ("uint8", {"offset": 5}, 4, "as -1, which dtype uint8 cannot represent"),
        ("int8", {"scale": 3}, 43, "as 129, which dtype int8 cannot represent"),
        ("uint64", {"scale": 2}, 2**63, "as 18,446,744,073,709,551,616"),
        ("int64", {"offset": 1}, -(2**63), "which dtype int64 cannot represent"),
    ],
    ids=["below", "above", "uint64", "int64"],
)
def test_scaled_integers_outside_dtype_range_are_rejected(data_type, codec, value, words):
    node = array_of(data_type, scale_offset(**codec), LITTLE, shape=(2,))
    fine = codec.get("offset", 0) + 1
    with pytest.raises(ChunkError, match=words):
        stored(node, [fine, value])
    assert stored(node, [fine, fine])


def test_decoding_rejects_integers_that_are_not_multiples_of_scale():
    codec = compile_codec(array_of("int16", scale_offset(scale=4), LITTLE, shape=(2,)))
    assert codec.decode(np.array([8, -12], "<i2").tobytes()).tolist() == [2, -3]
    with pytest.raises(ChunkError, match="stored value 7 is not a multiple of the scale 4"):
        codec.decode(np.array([8, 7], "<i2").tobytes())
    codec = compile_codec(array_of("int8", scale_offset(offset=100), BYTES, shape=(1,)))
    with pytest.raises(ChunkError, match="as 200, which dtype int8 cannot represent"):
        codec.decode(b"\x64")


def test_floats_not_preserved_by_scaling_are_rejected(tmp_path):
    dataset = xr.Dataset({"v": ("x", np.array([1e30, 1], "f4"))})
    encoding = {"v": {"codecs": [{"id": "scale_offset", "scale": 1e20}], "fill_value": 0}}
    with pytest.raises(ChunkError, match="the filters would change"):
        xr_nczarr.to_nczarr(dataset, tmp_path / "s", zarr_format=3, encoding=encoding)


# The data type after a cast ---------------------------------------------------------------------


def test_cast_to_one_byte_type_needs_no_byte_order():
    node = array_of("float32", cast_value("uint8"), BYTES)
    assert (node.dtype, stored(node, [1, 2, 3, 255])) == (np.dtype("<f4"), "010203ff")
    error = array_of("uint8", cast_value("int16"), BYTES).error
    assert 'expected a configuration with "endian" for data type int16' in str(error)


def test_byte_order_applies_to_cast_dtype():
    node = array_of("uint8", cast_value("int32"), scale_offset(offset=-1), BIG, shape=(1,))
    assert (node.dtype, stored(node, [1])) == (np.dtype("u1"), "00000002")
    assert rendered(node)["codecs"] == [cast_value("int32"), scale_offset(offset=-1), BIG]


@pytest.mark.parametrize("endian", [LITTLE, BIG], ids=["little", "big"])
def test_byte_order_applies_to_output_of_numcodecs_filters(endian):
    """zarr-python writes the filter's type in the byte order of the codec ``bytes``."""
    settings = {"scale": 10, "offset": 0, "dtype": "<f4", "astype": "<i2"}
    filters = {"name": "numcodecs.fixedscaleoffset", "configuration": settings}
    node = array_of("float32", filters, endian, shape=(2,))
    order = ">" if endian is BIG else "<"
    assert stored(node, [0.5, -1]) == np.array([5, -10], f"{order}i2").tobytes().hex()
    assert rendered(node)["codecs"] == [filters, endian]
    filters = {**filters, "configuration": {**settings, "astype": "|u1"}}
    assert stored(array_of("float32", filters, BYTES, shape=(2,)), [0.5, 1]) == "050a"


def test_compressors_use_item_size_of_cast_dtype():
    node = array_of("float64", shape=(4,), codecs=[LITTLE])
    codecs = [
        CodecSpec("cast_value", {"data_type": "int16"}),
        CodecSpec("bytes"),
        CodecSpec("blosc", {"cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}),
    ]
    node.codecs = tuple(codecs)
    cast, order, blosc = rendered(node)["codecs"]
    assert (cast, order) == (cast_value("int16"), LITTLE)
    assert blosc["configuration"]["typesize"] == 2


@pytest.mark.parametrize("inside", [False, True], ids=["before the shards", "within the shards"])
def test_sharded_values_are_cast_per_inner_chunk(tmp_path, inside):
    codecs = [scale_offset(scale=10), cast_value("int16")]
    parts = sharded([2, 2], [*codecs, BIG] if inside else [BIG])
    node = array_of("float64", *([] if inside else codecs), parts, shape=(4, 4))
    array = ChunkedArray(node, LocalStore(str(tmp_path)))
    values = np.arange(16.0).reshape(4, 4) / 10
    array.write((slice(1, 4), slice(None)), values[1:])
    assert not array.layout.levels[0].wrapped
    (data,) = array.store.fetch([node.chunk_keys.key((0, 0))])
    assert np.frombuffer(bytes(data[:8]), ">i2").tolist() == [0, 0, 4, 5]
    values[0] = 0
    np.testing.assert_allclose(array.read((slice(None), slice(None))), values)
    again = parse(rendered(node))
    assert (again.codecs, again.shards) == (node.codecs, node.shards)


def test_delta_filter_before_sharding_is_rejected():
    delta = {"name": "numcodecs.delta", "configuration": {"dtype": "<f4"}}
    error = array_of("float32", delta, sharded([2, 3], [LITTLE]), shape=(4, 6)).error
    assert isinstance(error, UnsupportedError)
    assert "codec delta is not supported before sharding_indexed" in str(error)


# Documents ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("codecs", "words"),
    [
        ([{"name": "cast_value"}, LITTLE], "codecs.0..data_type"),
        ([cast_value("complex64"), LITTLE], "cast_value data type 'complex64' is not supported"),
        ([cast_value("text"), LITTLE], "data type 'text'"),
        ([cast_value("int8", rounding="up"), BYTES], '"rounding" is .up.'),
        ([cast_value("int8", out_of_range="error"), BYTES], '"out_of_range" is .error.'),
        (
            [cast_value("float32", out_of_range="wrap"), LITTLE],
            "for an integer data type",
        ),
        ([cast_value("int8", more=1), BYTES], "more"),
        ([cast_value("int8", scalar_map={"both": []}), BYTES], 'whose members "encode"'),
        ([cast_value("int8", scalar_map=[]), BYTES], '"scalar_map" is'),
        ([cast_value("int8", scalar_map={"encode": [[1]]}), BYTES], "lists of pairs"),
        ([cast_value("int8", scalar_map={"encode": False}), BYTES], "lists of pairs"),
        ([cast_value("int8", scalar_map={"encode": [["x", 1]]}), BYTES], "'x'"),
        ([cast_value("int8", scalar_map={"decode": [[300, 1]]}), BYTES], "300"),
        ([scale_offset(scale=0), LITTLE], '"scale" is 0'),
        ([scale_offset(scale="0x3f800000", more=1), LITTLE], "more"),
        ([scale_offset(scale="0x3f80"), LITTLE], "expected a number"),
        ([scale_offset(scale="0x3f8000003f800000"), LITTLE], "expected a number"),
        ([scale_offset(scale="10"), LITTLE], "expected a number"),
        ([scale_offset(scale=10**400), LITTLE], "float32 can represent"),
        ([scale_offset(offset=None), LITTLE], "expected a number"),
        ([scale_offset(offset=[1]), LITTLE], "expected a number"),
        ([scale_offset(scale=1e300), LITTLE], "float32 can represent"),
        ([cast_value("uint8"), scale_offset(offset=-1), BYTES], "-1"),
        ([cast_value("uint8"), scale_offset(offset=10**400), BYTES], "uint8 can represent"),
        ([cast_value("uint8"), scale_offset(offset="NaN"), BYTES], "uint8 can represent"),
        ([cast_value("uint8"), scale_offset(offset=0.5), BYTES], "uint8 can represent"),
        ([LITTLE, scale_offset()], "array-to-bytes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_configurations_that_violate_spec_are_rejected(codecs, words):
    node = array_of("float32", *codecs)
    if isinstance(node, BrokenNode):
        assert isinstance(node.error, MetadataError | UnsupportedError)
        assert re.search(words, str(node.error))
        return
    with pytest.raises((MetadataError, UnsupportedError), match=words):
        compile_codec(node)


TIME = {"name": "numpy.datetime64", "configuration": {"unit": "s", "scale_factor": 1}}


@pytest.mark.parametrize(
    ("data_type", "fill"),
    [("bool", False), ("complex64", [0, 0]), ("r16", [0, 0]), (TIME, 0)],
    ids=["bool", "complex64", "r16", "datetime64"],
)
def test_casts_of_non_numeric_types_are_rejected(data_type, fill):
    for codec in (scale_offset(scale=2), cast_value("int64")):
        node = array_of(data_type, codec, LITTLE, fill_value=fill)
        with pytest.raises(UnsupportedError, match="integers or floats"):
            compile_codec(node)


@pytest.mark.parametrize("stored", ["bool", "r16", "bfloat16", TIME], ids=str)
def test_variables_cast_to_non_numeric_types_are_unreadable(tmp_path, stored):
    store = tmp_path / "s"
    zarr.create_group(store).create_array("v", shape=(4,), dtype="f8", chunks=(4,))
    path = store / "v" / "zarr.json"
    document = json.loads(path.read_text())
    cast = {"name": "cast_value", "configuration": {"data_type": stored}}
    path.write_text(json.dumps({**document, "codecs": [cast, LITTLE]}))
    options = {"engine": "nczarr", "consolidated": False}
    assert not xr.open_dataset(store, on_unsupported="skip", **options).variables
    with pytest.raises(UnsupportedError, match="cast_value"):
        xr.open_dataset(store, on_unsupported="raise", **options)


def test_decoding_chunk_of_wrong_size_raises_chunk_error():
    codec = compile_codec(array_of("float64", cast_value("int16"), LITTLE))
    for size in (0, 7, 9, 32):
        with pytest.raises(ChunkError, match=f"stored data is {size} bytes long; expected 8"):
            codec.decode(bytes(size))


# Writing -----------------------------------------------------------------------------------------


def write(folder, values, codecs, **encoding):
    dataset = xr.Dataset({"v": ("x", np.asarray(values))})
    encoding = {"v": {"codecs": codecs, **encoding}}
    options = {"dialect": "zarr", "zarr_format": 3, "encoding": encoding}
    xr_nczarr.to_nczarr(dataset, folder / "s", mode="w", **options)
    return json.loads((folder / "s/v/zarr.json").read_bytes())


PACKED = [{"id": "scale_offset", "scale": 10}, {"id": "cast_value", "data_type": "int16"}]


def test_rewriting_variable_keeps_packing_codecs_in_v3(tmp_path):
    members = write(tmp_path, [0.5, -2.5, 100], PACKED)
    expected = [scale_offset(scale=10), cast_value("int16"), LITTLE]
    assert (members["codecs"], members["fill_value"]) == (expected, 0)
    opened = xr.open_dataset(tmp_path / "s", engine="nczarr")
    assert opened.v.values.tolist() == [0.5, -2.5, 100]
    xr_nczarr.to_nczarr(opened.load(), tmp_path / "again", dialect="zarr", zarr_format=3)
    again = json.loads((tmp_path / "again/v/zarr.json").read_bytes())
    assert again["codecs"] == members["codecs"]
    with pytest.warns(UserWarning, match="codecs inherited .* exists only in Zarr v3"):
        xr_nczarr.to_nczarr(opened, tmp_path / "other")
    assert xr.open_dataset(tmp_path / "other", engine="nczarr").v.values.tolist() == [
        0.5,
        -2.5,
        100,
    ]


def test_casts_are_rejected_in_v2(tmp_path):
    dataset = xr.Dataset({"v": ("x", [1.0, 2.0])})
    with pytest.raises(
        UnsupportedError, match=r"scale_offset exists only in Zarr v3.*zarr_format=3"
    ):
        xr_nczarr.to_nczarr(dataset, tmp_path / "s", encoding={"v": {"codecs": PACKED}})
    array = array_document([1], "<f8", fill_value=0, filters=[{"id": "cast_value"}])
    objects = {".zgroup": b'{"zarr_format": 2}', "v/.zarray": json.dumps(array).encode()}
    read = xr.open_dataset(objects, engine="nczarr")
    with pytest.raises(UnsupportedError, match="cast_value exists only in Zarr v3"):
        read.v.load()


@pytest.mark.parametrize("fill", [-1.0, 0.26, np.nan, 1e9], ids=str)
def test_fill_value_not_preserved_by_cast_is_rejected(tmp_path, fill):
    with pytest.raises(
        ConflictError, match=r"cannot store the fill value.*fill_value in the encoding"
    ):
        write(
            tmp_path,
            [0.5],
            [PACKED[0], {"id": "cast_value", "data_type": "uint8"}],
            fill_value=fill,
        )
    assert not (tmp_path / "s").exists()


def test_fill_value_in_scalar_map_is_preserved(tmp_path):
    maps = {"encode": [[np.nan, -1]], "decode": [[-1, np.nan]]}
    codecs = [PACKED[0], {**PACKED[1], "scalar_map": maps}]
    members = write(tmp_path, [0.5, np.nan, np.nan], codecs, fill_value=np.nan, chunks=2)
    assert members["fill_value"] == "NaN"
    assert members["codecs"][1]["configuration"]["scalar_map"] == {
        "encode": [["NaN", -1]],
        "decode": [[-1, "NaN"]],
    }
    read = xr.open_dataset(tmp_path / "s", engine="nczarr").v.values
    np.testing.assert_array_equal(read, [0.5, np.nan, np.nan])


def test_error_for_out_of_range_value_includes_variable_and_chunk(tmp_path):
    with pytest.raises(
        ChunkError, match=r"value 40000.* does not fit in dtype int16.*variable /v, chunk \(0,\)"
    ):
        write(tmp_path, [0.5, 4000.0], PACKED)
    assert not (tmp_path / "s").exists()
