"""Codec chains compared with numcodecs, which wrote most existing Zarr chunks."""

import math
import zlib
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numcodecs
import numpy as np
import pytest

from xr_nczarr.codecs import check_codec, compile_codec, compressors, transforms
from xr_nczarr.errors import (
    ChunkError,
    LimitError,
    MetadataError,
    NczarrError,
    RefusedError,
    UnsupportedError,
)
from xr_nczarr.model import ArrayNode, ChunkKeys, CodecSpec, Limits


def make_node(dtype, shape, *codecs, place="filters", **members):
    """Return an array node with one chunk.

    `codecs` are pairs of name and configuration, in the order in which they encode.
    """
    return ArrayNode(
        path="/v",
        shape=shape,
        dtype=np.dtype(dtype),
        chunk_shape=shape,
        codecs=tuple(CodecSpec(name, configuration, place) for name, configuration in codecs),
        chunk_keys=ChunkKeys("v/", ".", "0"),
        **members,
    )


def make_codec(dtype, shape, *codecs, **options):
    return compile_codec(make_node(dtype, shape, *codecs), **options)


def encode_by_numcodecs(array, *codecs):
    for name, configuration in codecs:
        array = numcodecs.get_codec({"id": name, **configuration}).encode(array)
    return bytes(memoryview(array).cast("B")) if not isinstance(array, bytes) else array


def decode_by_numcodecs(data, *codecs):
    for name, configuration in reversed(codecs):
        data = numcodecs.get_codec({"id": name, **configuration}).decode(data)
    return data


def assert_decodes(codec, data, expected):
    """Check that bytes, a memoryview and a bytearray are decoded to the expected values.

    The bytearray is decoded into an existing array.
    """
    out = np.empty(expected.shape, expected.dtype)
    for result in (codec.decode(data), codec.decode(memoryview(data)), codec.decode(data, out)):
        assert result.dtype == expected.dtype
        np.testing.assert_array_equal(result, expected)
    assert codec.decode(bytearray(data), out) is out


COMPRESSORS = [
    ("zlib", {"level": 4}),
    ("gzip", {"level": 5}),
    ("bz2", {"level": 9}),
    ("lzma", {}),
    ("lzma", {"format": 2}),
    ("lzma", {"format": 3, "filters": [{"id": 33, "preset": 6}]}),
    ("zstd", {"level": 3}),
    ("zstd", {"level": 1, "checksum": True}),
    ("lz4", {"acceleration": 1}),
    ("blosc", {"cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0}),
    ("blosc", {"cname": "zstd", "clevel": 1, "shuffle": 2, "blocksize": 0}),
    ("blosc", {"cname": "blosclz", "clevel": 9, "shuffle": -1, "blocksize": 512}),
]
CHAINS = [
    *([item] for item in COMPRESSORS),
    *([item] for item in [("crc32", {}), ("adler32", {}), ("crc32c", {}), ("fletcher32", {})]),
    [("crc32", {"location": "end"})],
    [("crc32c", {"location": "start"})],
    [("jenkins_lookup3", {"initval": 7})],
    [("base64", {})],
    [("shuffle", {"elementsize": 4}), ("zlib", {}), ("fletcher32", {})],
    [("delta", {"dtype": "<i4"}), ("blosc", {"cname": "lz4"})],
    [("delta", {"dtype": "<i4", "astype": "<i8"}), ("base64", {}), ("bz2", {})],
    [("astype", {"encode_dtype": "<i2", "decode_dtype": "<i4"}), ("zlib", {})],
    [("fixedscaleoffset", {"offset": 2, "scale": 1, "dtype": "<i4", "astype": "<u1"})],
    [("zlib", {}), ("zstd", {}), ("blosc", {}), ("lz4", {}), ("gzip", {}), ("bz2", {})],
]


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: "+".join(name for name, _ in chain))
def test_codec_chains_decode_output_of_numcodecs_and_vice_versa(chain):
    array = np.arange(60, dtype="<i4").reshape(3, 20) + 5
    codec = make_codec("<i4", (3, 20), *chain)
    assert_decodes(codec, encode_by_numcodecs(array, *chain), array)
    result = decode_by_numcodecs(bytes(codec.encode(array)), *chain)
    np.testing.assert_array_equal(np.frombuffer(result, "<i4").reshape(3, 20), array)


@pytest.mark.parametrize(
    ("dtype", "chain"),
    [
        ("<f8", [("quantize", {"digits": 2, "dtype": "<f8", "astype": "<f4"})]),
        ("<f4", [("bitround", {"keepbits": 5}), ("zlib", {})]),
        (">f4", [("bitround", {"keepbits": 5})]),
        ("<f8", [("fixedscaleoffset", {"offset": 1, "scale": 10, "dtype": "<f8"})]),
    ],
)
def test_lossy_filters_do_not_change_already_rounded_values(dtype, chain):
    array = np.linspace(0, 3, 24).astype(dtype).reshape(4, 6)
    codec = make_codec(dtype, (4, 6), *chain)
    decoded = codec.decode(bytes(codec.encode(array)))
    assert decoded.dtype == dtype
    np.testing.assert_allclose(decoded, array, rtol=0.05, atol=0.1)
    assert (decoded != array).any()
    kept = codec.decode(bytes(codec.encode(decoded)))
    np.testing.assert_allclose(kept, decoded, rtol=1e-6)


@pytest.mark.parametrize("count", [1, 7, 8, 9, 64])
def test_packbits_stores_eight_booleans_per_byte(count):
    array = np.arange(count) % 3 == 0
    codec = make_codec("?", (count,), ("packbits", {}))
    assert codec.encode(array) == numcodecs.PackBits().encode(array).tobytes()
    assert_decodes(codec, bytes(codec.encode(array)), array)


OBJECTS = {
    "vlen-utf8": ("", ["", "a", "né", "\U0001f40b" * 3, "x" * 300, "\0"]),
    "vlen-bytes": ("", [b"", b"a", b"\xff\0", b"x" * 300, b"b", b"c"]),
    "json2": ("", ["a", 1, None, {"b": [2.5]}, [1, 2], "né"]),
    "msgpack2": ("", ["a", 1, None, {"b": [2.5]}, [1, 2], "né"]),
}


@pytest.mark.parametrize("name", OBJECTS)
@pytest.mark.parametrize("shape", [(6,), (2, 3), (1, 3, 2)])
def test_variable_length_items_encoded_by_numcodecs_are_decoded(name, shape):
    array = np.empty(6, dtype=object)
    array[:] = OBJECTS[name][1]
    array = array.reshape(shape)
    codec = make_codec(object, shape, (name, {}), ("zstd", {}))
    flat = numcodecs.get_codec({"id": name})
    for written in (array, array.reshape(-1)):
        data = numcodecs.Zstd().encode(bytes(flat.encode(written)))
        out = np.empty(shape, dtype=object)
        assert codec.decode(data).tolist() == array.tolist()
        assert codec.decode(data, out).tolist() == out.tolist() == array.tolist()
    assert codec.decode(bytes(codec.encode(array))).tolist() == array.tolist()


def test_vlen_array_codec_reads_and_writes_same_bytes_as_numcodecs():
    array = np.empty(3, dtype=object)
    array[:] = [np.arange(n, dtype="<i2") for n in (0, 3, 1)]
    codec = make_codec(object, (3,), ("vlen-array", {"dtype": "<i2"}))
    data = numcodecs.VLenArray("<i2").encode(array)
    assert [item.tolist() for item in codec.decode(data)] == [[], [0, 1, 2], [0]]
    assert codec.encode(array) == data


@pytest.mark.parametrize("dtype", ["|O", "<U6"])
def test_categories_without_label_are_decoded_to_empty_strings(dtype):
    array = np.array(["male", "female", "other", "male"], dtype)
    settings = {"labels": ["female", "male"], "dtype": dtype, "astype": "|u1"}
    codec = make_codec(dtype, (4,), ("categorize", settings))
    assert bytes(codec.encode(array)) == bytes([2, 1, 0, 2])
    assert codec.decode(bytes([2, 1, 0, 9])).tolist() == ["male", "female", "", ""]


def test_numbers_encoded_as_json_by_numcodecs_are_decoded():
    codec = make_codec("<f8", (2, 2), ("json2", {}))
    array = np.array([[1.5, np.nan], [np.inf, -0.0]])
    assert_decodes(codec, numcodecs.JSON().encode(array), array)


# Regression D26
@pytest.mark.parametrize("order", [[1, 0, 2], [2, 1, 0], [1, 2, 0], "F"])
@pytest.mark.parametrize(
    "dtype", ["<f4", ">i2", "|S3", "<M8[s]", "<U2", [("a", "<i2"), ("b", "f8")]]
)
def test_transposed_chunks_decode_to_original_axis_order(order, dtype):
    array = np.arange(24).astype("<i8" if isinstance(dtype, list) else dtype)
    array = array.astype(dtype).reshape(2, 3, 4)
    axes = [2, 1, 0] if order == "F" else order
    codec = make_codec(dtype, (2, 3, 4), ("transpose", {"order": order}), ("bytes", {}))
    data = array.transpose(axes).tobytes()
    assert_decodes(codec, data, array)
    assert bytes(codec.encode(array)) == data


def test_successive_transposes_are_applied_in_order():
    array = np.arange(24, dtype="<i4").reshape(2, 3, 4)
    orders = [("transpose", {"order": [1, 2, 0]}), ("transpose", {"order": [1, 0, 2]})]
    delta = ("delta", {"dtype": "<i4"})
    codec = make_codec("<i4", (2, 3, 4), delta, *orders, ("zlib", {}))
    data = bytes(codec.encode(array))
    assert_decodes(codec, data, array)
    deltas = numcodecs.Delta("<i4").encode(array).reshape(2, 3, 4)
    assert zlib.decompress(data) == deltas.transpose(1, 2, 0).transpose(1, 0, 2).tobytes()


def test_scalar_with_scale_and_empty_transpose_codecs_is_decoded():
    scale = {"dtype": "<f8", "astype": "<i2", "scale": 10, "offset": 0}
    filters = ("fixedscaleoffset", scale), ("transpose", {"order": []})
    codec = make_codec("<f8", (), *filters, ("bytes", {}))
    assert_decodes(codec, np.int16(15).tobytes(), np.array(1.5))


def test_uncompressed_chunk_is_decoded_to_view_of_its_buffer():
    codec = make_codec("<i4", (2, 2), ("bytes", {"endian": "little"}))
    data = np.arange(4, dtype="<i4")
    assert codec.raw
    assert np.shares_memory(codec.decode(memoryview(data).cast("B")), data)
    assert np.shares_memory(np.frombuffer(codec.encode(data.reshape(2, 2)), "<i4"), data)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
@pytest.mark.parametrize("dtype", ["|S0", "<U0", "|b1", "<c16", "<m8[D]", ">U3", "|V5"])
def test_uncompressed_chunks_of_every_dtype_round_trip(dtype, shape):
    array = np.zeros(shape, dtype)
    codec = make_codec(dtype, shape)
    decoded = codec.decode(bytes(codec.encode(array)))
    assert (decoded.shape, decoded.dtype) == (shape, np.dtype(dtype))
    if decoded.dtype.itemsize:
        np.testing.assert_array_equal(decoded, array)


def test_v3_crc32c_codec_appends_little_endian_checksum():
    codec = make_codec("|u1", (9,), ("bytes", {}), ("crc32c", {}))
    data = b"123456789" + (0xE3069283).to_bytes(4, "little")
    assert codec.decode(data).tobytes() == b"123456789"
    assert bytes(codec.encode(np.frombuffer(b"123456789", "u1"))) == data


def test_crc32c_codec_works_without_crc32c_library(monkeypatch):
    registry = {k: v for k, v in numcodecs.registry.codec_registry.items() if k != "crc32c"}
    with_library = make_codec("|u1", (64,), ("crc32c", {}))
    monkeypatch.setattr(transforms.numcodecs.registry, "codec_registry", registry)
    codec = make_codec("|u1", (64,), ("crc32c", {}))
    array = np.arange(64, dtype="u1")
    data = bytes(codec.encode(array))
    assert data == bytes(with_library.encode(array))
    assert_decodes(codec, data, array)
    with pytest.raises(ChunkError, match="checksum"):
        codec.decode(data[:-1] + b"\0")


# Regression D66
def test_incompressible_data_round_trips_through_every_compressor():
    array = np.random.default_rng(0).integers(0, 256, 100, dtype="u1")
    for name, configuration in COMPRESSORS:
        codec = make_codec("|u1", (100,), (name, configuration))
        assert_decodes(codec, bytes(codec.encode(array)), array)


@pytest.mark.parametrize("dtype", ["<M8[s]", "<m8[ns]"])
def test_pcodec_stores_times_as_integers(dtype):
    pytest.importorskip("pcodec")
    codec = make_codec(dtype, (3,), ("pcodec", {}))
    array = np.array([0, 1, 99], "i8").view(dtype)
    data = numcodecs.get_codec({"id": "pcodec"}).encode(array)
    assert bytes(codec.encode(array)) == bytes(data)
    assert_decodes(codec, data, array)


def test_pcodec_decodes_bitround_output_encoded_as_floats_or_integers():
    pytest.importorskip("pcodec")
    array = np.array([1.5, 2, 100], "<f4")
    pcodec = numcodecs.get_codec({"id": "pcodec"})
    rounding = make_codec("<f4", (3,), ("bitround", {"keepbits": 5}), ("pcodec", {}))
    as_integers = bytes(pcodec.encode(numcodecs.BitRound(5).encode(array)))
    for data in (as_integers, bytes(pcodec.encode(array))):
        assert_decodes(rounding, data, array)
    with pytest.raises(ChunkError, match="number type"):
        make_codec("<f4", (3,), ("pcodec", {})).decode(as_integers)


def test_pcodec_rejects_chunk_of_wrong_size():
    pytest.importorskip("pcodec")
    array = np.arange(60, dtype="<f4").reshape(3, 20)
    codec = make_codec("<f4", (3, 20), ("pcodec", {"level": 8}))
    assert_decodes(codec, bytes(codec.encode(array)), array)
    for count in (59, 61, 10_000_000):
        data = bytes(numcodecs.get_codec({"id": "pcodec"}).encode(np.zeros(count, "<f4")))
        with pytest.raises(ChunkError, match="expected"):
            codec.decode(data)


def test_codec_whose_library_is_missing_raises_unsupported_error(monkeypatch):
    monkeypatch.setattr(numcodecs.registry, "codec_registry", {})
    for name in ("msgpack2", "pcodec"):
        with pytest.raises(UnsupportedError, match=name):
            make_codec(object, (2,), (name, {}))


@pytest.mark.parametrize("dtype", ["|u1", "<i2", "<f8", "<c16", "<M8[s]", "|S300"])
def test_blosc_encodes_to_same_bytes_as_numcodecs(dtype):
    array = np.arange(500).astype(dtype)
    for shuffle in (-1, 0, 1, 2):
        blosc = numcodecs.Blosc("zstd", 3, shuffle)
        codec = make_codec(dtype, (500,), ("blosc", blosc.get_config()))
        assert codec.encode(array) == blosc.encode(array)


def test_gzip_chunks_with_multiple_members_are_decoded():
    array = np.arange(10, dtype="<i4")
    data = b"".join(numcodecs.GZip().encode(part) for part in (array[:3], array[3:]))
    assert_decodes(make_codec("<i4", (10,), ("gzip", {})), data, array)


def test_zstd_chunks_with_multiple_or_skippable_frames_are_decoded():
    array = np.arange(10, dtype="<i4")
    skipped = (0x184D2A53).to_bytes(4, "little") + (3).to_bytes(4, "little") + b"abc"
    data = skipped.join(numcodecs.Zstd().encode(part) for part in (array[:3], array[3:]))
    assert_decodes(make_codec("<i4", (10,), ("zstd", {})), data, array)


def test_zstandard_and_numcodecs_decode_zstd_identically(monkeypatch):
    """The chunks have checksums, several frames, trailing bytes or damaged frames."""
    pytest.importorskip("zstandard")
    array = np.arange(1000, dtype="<i4")
    frame = numcodecs.Zstd(3).encode(array)
    parts = [numcodecs.Zstd(3).encode(part) for part in np.split(array, 4)]
    checked = numcodecs.Zstd(3, checksum=True).encode(array)
    whole = [frame, checked, b"".join(parts), frame + b"stale", zstd_without_size(array.tobytes())]
    codec = make_codec("<i4", (1000,), ("zstd", {}))
    with ThreadPoolExecutor(4) as threads:
        for values in threads.map(codec.decode, whole * 20):
            np.testing.assert_array_equal(values, array)
    broken = [checked[:-1] + b"x", frame[:-9], frame[:20] + b"damage" + frame[26:]]

    def messages():
        codec = make_codec("<i4", (1000,), ("zstd", {}))
        for data in broken:
            with pytest.raises(ChunkError) as caught:
                codec.decode(data)
            yield str(caught.value)

    expected = [*messages()]
    monkeypatch.setattr(compressors, "_zstandard", lambda: None)
    assert [*messages()] == expected


def zstd_without_size(data):
    """Return a zstd frame that consists of one raw block and does not declare its size."""
    header = (0xFD2FB528).to_bytes(4, "little") + bytes([0, 0x58])
    return header + (len(data) << 3 | 1).to_bytes(3, "little") + data


@pytest.mark.parametrize("filters", [(), (("shuffle", {"elementsize": 4}),)], ids=["", "shuffle"])
def test_zstd_chunks_decoded_together_equal_chunks_decoded_separately(filters):
    pytest.importorskip("zstandard")
    arrays = [np.arange(first, first + 1000, dtype="<i4") for first in range(3)]
    specs = (*filters, ("zstd", {"level": 3, "checksum": True}))
    codec = make_codec("<i4", (1000,), *specs)
    assert codec.decodes_many
    stored = [encode_by_numcodecs(array, *specs) for array in arrays]
    rest, chunks = codec.decode_many([stored[0], None, memoryview(stored[1]), stored[2] + b"stale"])
    assert rest is not codec
    assert chunks.pop(1) is None
    for data, array in zip(chunks, arrays, strict=True):
        np.testing.assert_array_equal(rest.decode(data), array)
        np.testing.assert_array_equal(rest.decode(data, np.empty_like(array)), array)


def test_zstd_chunks_are_decoded_separately_unless_each_is_one_intact_frame_of_chunk_size():
    """A single chunk and large chunks are also decoded separately."""
    pytest.importorskip("zstandard")
    array = np.arange(1000, dtype="<i4")
    codec = make_codec("<i4", (1000,), ("zstd", {}))
    good, longer = (numcodecs.Zstd(3).encode(values) for values in (array, np.tile(array, 9)))
    two_frames = b"".join(numcodecs.Zstd(3).encode(part) for part in np.split(array, 2))
    checked = numcodecs.Zstd(3, checksum=True).encode(array)
    unusual = [b"", b"x", two_frames, longer, zstd_without_size(array.tobytes())]
    unusual += [good[:-9], checked[:-1], checked[:-1] + b"x"]
    for chunks in ([good], [None, good], *([good, data] for data in unusual)):
        assert codec.decode_many(chunks) == (codec, chunks)
    assert not make_codec("<i4", (1 << 20,), ("zstd", {})).decodes_many
    assert not make_codec("<i4", (1000,), ("zlib", {})).decodes_many


def test_zstd_frame_without_declared_size_must_decode_to_chunk_size():
    array = np.arange(10, dtype="<i4")
    codec = make_codec("<i4", (10,), ("zstd", {}))
    assert_decodes(codec, zstd_without_size(array.tobytes()), array)
    for count in (9, 11):
        with pytest.raises(ChunkError, match="zstd"):
            codec.decode(zstd_without_size(bytes(4 * count)))
    text = make_codec(object, (1,), ("vlen-utf8", {}), ("zstd", {}))
    data = numcodecs.VLenUTF8().encode(np.array(["abc"], dtype=object))
    assert text.decode(zstd_without_size(bytes(data))).tolist() == ["abc"]
    frames = [zstd_without_size(part) for part in (bytes(data[:6]), bytes(data[6:]))]
    assert text.decode(b"".join(frames)).tolist() == ["abc"]


@pytest.mark.parametrize("spec", COMPRESSORS, ids=lambda spec: spec[0])
def test_trailing_bytes_after_compressed_stream_are_ignored(spec):
    if spec[0] == "lz4" or spec[1].get("format") == 3:
        pytest.skip("the end of these streams is the end of the data")
    array = np.arange(1000, dtype="<i4")
    data = encode_by_numcodecs(array, spec)
    codec = make_codec("<i4", (1000,), spec)
    for tail in (b"\0", b"stale bytes of a longer chunk", data[: len(data) // 2]):
        np.testing.assert_array_equal(codec.decode(data + tail), array)


def test_zlib_decodes_same_values_without_libdeflate(monkeypatch):

    monkeypatch.setattr(compressors, "deflate", None)
    array = np.arange(1000, dtype="<i4")
    for name in ("zlib", "gzip"):
        codec = make_codec("<i4", (1000,), (name, {"level": 4}))
        data = bytes(codec.encode(array))
        assert_decodes(codec, data, array)
        for damaged in (data[:-1], data[:50], data[:-6] + bytes(6)):
            with pytest.raises(ChunkError, match=name):
                codec.decode(damaged)


@pytest.mark.parametrize("filters", [(), (("shuffle", {"elementsize": 4}),)], ids=str)
@pytest.mark.parametrize("spec", COMPRESSORS[:5], ids=str)
def test_compressed_streams_are_decoded_in_bounded_pieces(spec, filters, monkeypatch):
    monkeypatch.setattr("xr_nczarr.codecs.compressors.deflate", None)
    random = np.random.default_rng(0)
    array = np.zeros(700_000, "<i4")  # a few input bytes decode to megabytes of zeros
    array[200_000:300_000] = random.integers(0, 1 << 30, 100_000)
    array[-5:] = 1, 2, 3, 4, 5
    codec = make_codec("<i4", array.shape, *filters, spec)
    data = bytes(codec.encode(array))
    assert_decodes(codec, data, array)
    longer = make_codec("<i4", (array.size + 1,), *filters, spec)
    shorter = make_codec("<i4", (array.size - 1,), *filters, spec)
    for wrong, result in ((longer, data), (shorter, data), (codec, data[: len(data) // 2])):
        with pytest.raises(ChunkError, match=spec[0]):
            wrong.decode(result)
        with pytest.raises(ChunkError, match=spec[0]):
            wrong.decode(result, np.empty(wrong.flow.shape, "<i4"))


# Regression D33
@pytest.mark.parametrize(
    ("name", "configuration", "kind", "words"),
    [
        ("szip", {"mask": 32, "pixels-per-block": 8}, UnsupportedError, "'szip'.*codecs="),
        ("no\nsuch", {}, UnsupportedError, "codecs="),
        ("pickle", {}, RefusedError, "numcodecs.Pickle"),
        (
            "zlib",
            {"level": "4"},
            MetadataError,
            "\"level\" is '4'; expected a value of type int",
        ),
        ("zlib", {"level": 1.0}, MetadataError, "type int"),
        ("zlib", {"level": True}, MetadataError, "type int"),
        ("zlib", {"levle": 1}, MetadataError, "unknown parameters: levle"),
        ("blosc", {"shuffle": 7}, MetadataError, "shuffle"),
        ("blosc", {"shuffle": [1]}, MetadataError, "shuffle"),
        ("blosc", {"cname": 1}, MetadataError, "cname"),
        ("shuffle", {"elementsize": -4}, MetadataError, "elementsize"),
        ("shuffle", {}, MetadataError, "elementsize"),
        ("delta", {}, MetadataError, "dtype"),
        ("delta", {"dtype": "|O"}, MetadataError, "object"),
        ("delta", {"dtype": "nonsense"}, MetadataError, "nonsense"),
        ("delta", {"dtype": {"names": ["a"]}}, MetadataError, "configuration"),
        ("delta", {"dtype": "<f8"}, MetadataError, "multiple of 8 bytes, the item size"),
        ("delta", {"dtype": "<f4", "more": 1}, MetadataError, "more"),
        ("astype", {"encode_dtype": "|S0", "decode_dtype": "<f4"}, MetadataError, "fixed-size"),
        (
            "astype",
            {"encode_dtype": "|S2000000000", "decode_dtype": "|u1"},
            MetadataError,
            "would produce",
        ),
        ("fixedscaleoffset", {"offset": 0, "scale": 0, "dtype": "<f4"}, MetadataError, "scale"),
        ("fixedscaleoffset", {"offset": "x", "scale": 1, "dtype": "<f4"}, MetadataError, "number"),
        ("bitround", {"keepbits": -1}, MetadataError, "keepbits"),
        ("packbits", {}, MetadataError, "input .* expected bool"),
        ("crc32", {"location": "middle"}, MetadataError, "location"),
        ("lzma", {"format": 9}, MetadataError, "format"),
        ("lzma", {"format": 3, "filters": [{"id": 33, "dict_size": 1 << 31}]}, LimitError, "dict"),
        ("lzma", {"format": 3, "filters": [3]}, MetadataError, "filter"),
        ("transpose", {}, MetadataError, "order"),
        ("transpose", {"order": [0, 0]}, MetadataError, "order"),
        ("transpose", {"order": [True, 0]}, MetadataError, "order"),
        ("transpose", {"order": {}}, MetadataError, "order"),
        ("vlen-utf8", {}, MetadataError, "variable-length items"),
        ("categorize", {"labels": ["a"], "dtype": "<U1"}, MetadataError, "dtype"),
        ("json2", {"encoding": "zip"}, UnsupportedError, "encoding"),
    ],
)
def test_error_for_invalid_codec_includes_codec_and_reason(name, configuration, kind, words):
    with pytest.raises(kind, match=words) as caught:
        make_codec("<f4", (3, 3), (name, configuration))
    assert type(caught.value) is kind
    assert caught.value.place == f"codec {name} (filters)"
    assert "\n" not in str(caught.value)


def test_object_arrays_require_object_codec():
    for chain in ([], [("zlib", {})], [("bytes", {})], [("shuffle", {}), ("vlen-utf8", {})]):
        with pytest.raises(MetadataError, match="variable-length items"):
            make_codec(object, (2,), *chain)
    for dtype in ("|O", "|S0"):
        with pytest.raises(MetadataError, match="dtype"):
            make_codec(object, (2,), ("vlen-array", {"dtype": dtype}))
    with pytest.raises(UnsupportedError, match="variable-length fields"):
        make_codec([("a", "O")], (2,), ("vlen-utf8", {}))


def test_codec_check_rejects_unknown_codecs_even_inside_shards():
    from xr_nczarr.model import ShardSpec

    check_codec(make_node("<f4", (2,), ("zlib", {"level": "nonsense"})))
    with pytest.raises(UnsupportedError) as caught:
        check_codec(make_node("<f4", (2,), ("szip", {})))
    assert (caught.value.place, caught.value.variable) == ("codec szip (filters)", "/v")
    with pytest.raises(UnsupportedError):
        check_codec(make_node("<f4", (2,), shards=(ShardSpec((4,), (CodecSpec("szip"),)),)))
    with pytest.raises(RefusedError):
        check_codec(make_node(object, (2,), ("pickle", {})))
    check_codec(make_node(object, (2,), ("pickle", {})), custom={"pickle": numcodecs.Pickle})


def test_pickled_objects_are_decoded_if_codec_class_is_passed():
    codec = make_codec(object, (2,), ("pickle", {}), custom={"pickle": numcodecs.Pickle})
    array = np.array(["a", 1], dtype=object)
    assert codec.decode(numcodecs.Pickle().encode(array)).tolist() == ["a", 1]
    with pytest.raises(ChunkError, match="3 items; expected 2"):
        codec.decode(numcodecs.Pickle().encode(np.array([1, 2, 3], dtype=object)))


class Inverted(numcodecs.abc.Codec):
    codec_id = "inverted"

    def __init__(self, mask=255):
        self.mask = mask

    def encode(self, buf):
        return np.frombuffer(buf, "u1") ^ self.mask

    def decode(self, buf, out=None):
        return np.frombuffer(buf, "u1") ^ self.mask


def test_custom_codecs_can_be_passed_or_registered(monkeypatch):
    array = np.arange(4, dtype="<i4")
    data = bytes(255 ^ byte for byte in array.tobytes())
    chain = ("inverted", {"mask": 255})
    assert_decodes(make_codec("<i4", (4,), chain, custom={"inverted": Inverted}), data, array)
    monkeypatch.setitem(numcodecs.registry.codec_registry, "inverted", Inverted)
    codec = make_codec("<i4", (4,), chain)
    assert_decodes(codec, data, array)
    assert bytes(codec.encode(array)) == data
    with pytest.raises(ChunkError, match="decoded data is 15 bytes long; expected 16"):
        codec.decode(data[1:])
    with pytest.raises(MetadataError, match="configuration"):
        make_codec("<i4", (4,), ("inverted", {"key": 1}))


class Failing(numcodecs.abc.Codec):
    codec_id = "failing"

    def __init__(self, error):
        self.error = error

    def encode(self, buf):
        raise self.error

    def decode(self, buf, out=None):
        raise self.error


class LibraryError(Exception):
    pass


class PanicException(BaseException):
    """The exception raised by codecs written in Rust."""


@pytest.mark.parametrize("error", [LibraryError("why"), PanicException("why")], ids=repr)
def test_every_codec_error_includes_codec_name_and_chunk_shape(error):
    codec = make_codec("<i4", (4,), ("failing", {"error": error}), custom={"failing": Failing})
    words = rf"codec failing \(filters\): the data cannot be .*\(4,\).*{type(error).__name__}: why"
    with pytest.raises(ChunkError, match=words):
        codec.decode(bytes(16))
    with pytest.raises(ChunkError, match=words):
        codec.encode(np.zeros(4, "<i4"))


@pytest.mark.parametrize("error", [MemoryError, ImportError, KeyboardInterrupt])
def test_codecs_propagate_errors_unrelated_to_data(error):
    codec = make_codec("<i4", (4,), ("failing", {"error": error()}), custom={"failing": Failing})
    with pytest.raises(error):
        codec.decode(bytes(16))


def test_codecs_registered_by_installed_packages_are_loaded(monkeypatch):
    def fail():
        raise ImportError("no such module")

    entries = {
        "inverted": SimpleNamespace(load=lambda: Inverted, group="numcodecs.codecs"),
        "broken": SimpleNamespace(load=fail, group="numcodecs.codecs", name="broken"),
    }
    monkeypatch.setattr(numcodecs.registry, "entries", entries)
    codec = make_codec("<i4", (4,), ("inverted", {"mask": 1}))
    assert codec.decode(bytes(16)).tobytes() == b"\1" * 16
    with pytest.raises(UnsupportedError, match="no such module"):
        make_codec("<i4", (4,), ("broken", {}))


def test_filter_whose_byte_order_differs_from_array_is_rejected_in_v3():
    codecs = (CodecSpec("delta", {"dtype": "<i4"}, "codecs"),)
    node = make_node(">i4", (4,))
    with pytest.raises(UnsupportedError, match="byte order"):
        compile_codec(
            ArrayNode(**{n: getattr(node, n) for n in node.__slots__} | {"codecs": codecs})
        )


def test_chunk_above_size_limit_is_rejected_before_allocation():
    with pytest.raises(LimitError, match="max_chunk_bytes"):
        make_codec("<f8", (1 << 20, 1 << 20))
    assert math.prod(
        make_codec("<f8", (4,), limits=Limits(max_chunk_bytes=32)).decode(bytes(32)).shape
    )
    with pytest.raises(LimitError, match="max_chunk_bytes"):
        make_codec("<f8", (5,), limits=Limits(max_chunk_bytes=32))


def test_variable_length_item_above_size_limit_is_rejected():
    codec = make_codec(object, (2,), ("vlen-utf8", {}), limits=Limits(max_item_bytes=10))
    good, bad = (np.array(["a", "b" * n], dtype=object) for n in (9, 11))
    assert codec.decode(numcodecs.VLenUTF8().encode(good)).tolist() == good.tolist()
    with pytest.raises(LimitError, match="max_item_bytes"):
        codec.decode(numcodecs.VLenUTF8().encode(bad))


@pytest.mark.parametrize("array", [np.array(["a", 1], dtype=object), np.zeros((3,), dtype=object)])
def test_unencodable_values_raise_nczarr_error(array):
    codec = make_codec(object, (2,), ("vlen-utf8", {}))
    with pytest.raises(NczarrError):
        codec.encode(array)
