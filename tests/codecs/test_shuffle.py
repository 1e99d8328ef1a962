"""HDF5's shuffle filter, as written by netcdf-c, HDF5 and numcodecs."""

import json
import zlib

import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr

from tests.codecs.test_chains import assert_decodes, make_codec
from tests.stores import array_document, put
from xr_nczarr.codecs import compile_codec
from xr_nczarr.errors import MetadataError
from xr_nczarr.formats import FORMATS
from xr_nczarr.formats.documents import Document
from xr_nczarr.references import write


def shuffle(data, size):
    """Return the bytes shuffled by HDF5's rule, in a simple and slow implementation."""
    whole = len(data) // size * size
    return b"".join(data[i:whole:size] for i in range(size)) + data[whole:]


def parsed_codec(dtype, count, *filters):
    """Compile the codecs of a one-dimensional array in Zarr v2."""
    document = array_document((count,), dtype, filters=filters)
    documents = {".zarray": Document(".zarray", json.dumps(document).encode())}
    return compile_codec(FORMATS["2"].parse_node("/", documents))


# Regressions D1, D2
@pytest.mark.parametrize(("dtype", "size"), [("<f4", 4), (">f8", 8), ("<u2", 2), ("<U3", 12)])
@pytest.mark.parametrize("stored", [0, "0"])
def test_shuffle_uses_item_size_if_element_size_is_zero(dtype, size, stored):
    array = np.array([0, 1, 2, 3], dtype)
    zlib_codec = {"id": "zlib", "level": "4"}
    codec = parsed_codec(dtype, 4, {"id": "shuffle", "elementsize": stored}, zlib_codec)
    assert_decodes(codec, zlib.compress(shuffle(array.tobytes(), size)), array)
    assert zlib.decompress(codec.encode(array)) == shuffle(array.tobytes(), size)


@pytest.mark.parametrize("dtype", ["<f4", "<f8"])
def test_shuffle_uses_numcodecs_element_size_by_default(dtype):
    array = np.array([0, 1, 2, 3], dtype)
    codec = parsed_codec(dtype, 4, {"id": "shuffle"})
    assert_decodes(codec, shuffle(array.tobytes(), 4), array)


@pytest.mark.parametrize("stored", [-4, "-4", 1.5, [4]])
def test_invalid_element_size_is_rejected(stored):
    with pytest.raises(MetadataError, match="elementsize"):
        parsed_codec("<f4", 4, {"id": "shuffle", "elementsize": stored})


@pytest.mark.parametrize("engine", ["zarr", "nczarr", "kerchunk"])
def test_plain_zarr_v2_shuffle_uses_numcodecs_default(tmp_path, engine):
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


@pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")
@pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning")
@pytest.mark.parametrize("dtype", ["<i4", "<f8", "S5"])
def test_zarr_v3_shuffle_uses_item_size_by_default(tmp_path, dtype):
    values = np.arange(8).astype(dtype)
    codecs = [{"name": "numcodecs.shuffle", "configuration": {}}]
    zarr.create_array(tmp_path, shape=(8,), dtype=dtype, compressors=codecs)[:] = values
    path = tmp_path / "zarr.json"
    members = json.loads(path.read_text())
    members["codecs"][-1]["configuration"] = {}
    path.write_text(json.dumps(members))
    np.testing.assert_array_equal(zarr.open_array(tmp_path)[:], values)
    document = Document("zarr.json", path.read_bytes())
    codec = compile_codec(FORMATS["3"].parse_node("/", {"zarr.json": document}))
    data = (tmp_path / "c/0").read_bytes()
    assert data == shuffle(values.tobytes(), values.itemsize)
    assert_decodes(codec, data, values)


# Regression D3
@pytest.mark.parametrize("width", [1, 5, 7, 8, 9, 128])
@pytest.mark.parametrize("count", [1, 3, 40])
def test_strings_are_shuffled_as_eight_byte_elements(width, count):
    array = np.array([str(i) * 3 for i in range(count)], f"|S{width}")
    codec = parsed_codec(f"|S{width}", count, {"id": "shuffle", "elementsize": 0})
    data = shuffle(array.tobytes(), 8)
    assert_decodes(codec, data, array)
    assert bytes(codec.encode(array)) == data


@pytest.mark.parametrize("type_name", [">S1", "<S1"])
def test_characters_are_not_shuffled(type_name):
    codec = parsed_codec(type_name, 20, {"id": "shuffle", "elementsize": 0})
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


def test_shuffle_can_decode_unaligned_input_into_unaligned_buffer():
    array = np.arange(40_000, dtype="<f4")
    codec = make_codec("<f4", (40_000,), ("shuffle", {"elementsize": 4}))
    data = b"x" + shuffle(array.tobytes(), 4)
    out = np.frombuffer(bytearray(160_001), "<f4", 40_000, offset=1)
    np.testing.assert_array_equal(codec.decode(memoryview(data)[1:], out), array)
