"""HDF5's shuffle filter as written by netcdf-c, HDF5 and numcodecs."""

import zlib

import numcodecs
import numpy as np
import pytest
import xarray as xr

from tests.codecs.test_chains import assert_decodes, make_codec, make_node
from tests.stores import array_document, put
from xr_nczarr.codecs import compile_codec
from xr_nczarr.references import write


def shuffle(data, size):
    """Shuffle by HDF5's rule, byte by byte."""
    whole = len(data) // size * size
    return b"".join(data[i:whole:size] for i in range(size)) + data[whole:]


# Regressions D1, D2
@pytest.mark.parametrize(
    "stored", [{"elementsize": 0}, {"elementsize": "0"}, {}, {"elementsize": 4}]
)
def test_shuffle_uses_dtype_item_size_if_element_size_is_zero_or_missing(stored):
    array = np.array([0, 1, 2, 3], "<f4")
    data = zlib.compress(shuffle(array.tobytes(), 4))
    codec = make_codec("<f4", (4,), ("shuffle", stored), ("zlib", {"level": "4"}))
    assert_decodes(codec, data, array)
    assert zlib.decompress(codec.encode(array)) == shuffle(array.tobytes(), 4)


@pytest.mark.parametrize("engine", ["zarr", "nczarr", "kerchunk"])
def test_shuffle_without_element_size_has_default_of_numcodecs_in_plain_zarr_v2(tmp_path, engine):
    values = np.arange(8.0)
    filters = [{"id": "shuffle"}]
    documents = {
        ".zgroup": {"zarr_format": 2},
        "v/.zarray": array_document((8,), "<f8", filters=filters),
        "v/.zattrs": {"_ARRAY_DIMENSIONS": ["x"]},
        "v/0": bytes(numcodecs.get_codec(filters[0]).encode(values)),
    }
    target = put(tmp_path / "store", documents)
    if engine == "kerchunk":
        target = str(tmp_path / "set.json")
        write(tmp_path / "store", target)
    options = {"consolidated": False} if engine == "zarr" else {}
    read = xr.open_dataset(target, engine=engine, **options)
    np.testing.assert_array_equal(read["v"], values)


# Regression D3
@pytest.mark.parametrize("width", [1, 5, 7, 8, 9, 128])
@pytest.mark.parametrize("count", [1, 3, 40])
def test_strings_are_shuffled_as_eight_byte_elements(width, count):
    array = np.array([str(i) * 3 for i in range(count)], f"|S{width}")
    codec = make_codec(f"|S{width}", (count,), ("shuffle", {"elementsize": 0}))
    data = shuffle(array.tobytes(), 8)
    assert_decodes(codec, data, array)
    assert bytes(codec.encode(array)) == data


@pytest.mark.parametrize("type_name", [">S1", "<S1", "<U1"])
def test_characters_are_not_shuffled(type_name):
    node = make_node("|S1", (20,), ("shuffle", {"elementsize": 0}), type_name=type_name)
    codec = compile_codec(node)
    array = np.array(list("abcdefghijklmnopqrst"), "|S1")
    assert codec.raw
    assert_decodes(codec, array.tobytes(), array)


# Regression D4
@pytest.mark.parametrize("size", [2, 3, 4, 8, 16, 100])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 1000, 1 << 16, (1 << 16) + 5, 300_001])
def test_incomplete_trailing_elements_are_not_shuffled(size, length):
    array = np.random.default_rng(length).integers(0, 256, length, "u1")
    codec = make_codec("|u1", (length,), ("shuffle", {"elementsize": size}))
    data = shuffle(array.tobytes(), size)
    assert_decodes(codec, data, array)
    assert bytes(codec.encode(array)) == data


@pytest.mark.parametrize("size", [2, 4, 8])
def test_chunks_shuffled_by_numcodecs_are_decoded(size):
    array = np.random.default_rng(0).integers(0, 100, 20_000).astype(f"<i{size}")
    codec = make_codec(array.dtype, (20_000,), ("shuffle", {"elementsize": size}))
    assert_decodes(codec, numcodecs.Shuffle(size).encode(array).tobytes(), array)


def test_shuffle_decodes_from_and_into_unaligned_memory():
    array = np.arange(40_000, dtype="<f4")
    codec = make_codec("<f4", (40_000,), ("shuffle", {}))
    data = b"x" + shuffle(array.tobytes(), 4)
    out = np.frombuffer(bytearray(160_001), "<f4", 40_000, offset=1)
    np.testing.assert_array_equal(codec.decode(memoryview(data)[1:], out), array)
