"""Chunks written by netcdf-c are decoded to the values that netcdf-c reads."""

import netCDF4
import numpy as np
import pytest

from xr_nczarr.codecs import compile_codec
from xr_nczarr.errors import ChunkError
from xr_nczarr.formats import FORMATS
from xr_nczarr.formats.documents import Document

SETTINGS = {
    "zlib": {"zlib": True, "complevel": 4, "shuffle": False},
    "shuffle+zlib": {"zlib": True, "shuffle": True},
    "shuffle+zlib+fletcher32": {"zlib": True, "shuffle": True, "fletcher32": True},
    "fletcher32": {"fletcher32": True},
    "zstd": {"compression": "zstd", "complevel": 3},
    "bz2": {"compression": "bzip2", "complevel": 9},
    "blosc": {"compression": "blosc_lz4", "blosc_shuffle": 1},
}
LENGTH, CHUNK = 10_000, 3333


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    directory = tmp_path_factory.mktemp("netcdf") / "d.file"
    values = {}
    with netCDF4.Dataset(f"file://{directory}#mode=nczarr,file", "w") as dataset:
        dataset.createDimension("x", LENGTH)
        for codec, settings in SETTINGS.items():
            for dtype in ("i1", "i2", "i4", "f4", "f8", "S1", str):
                if codec == "blosc" and dtype in ("S1", str):
                    continue
                name = f"{codec}.{dtype if dtype is not str else 'str'}"
                variable = dataset.createVariable(
                    name, dtype, ("x",), chunksizes=(CHUNK,), **settings
                )
                numbers = np.random.default_rng(1).integers(0, 5, LENGTH)
                if dtype is str:
                    values[name] = np.array([f"a{i}" * i for i in numbers], dtype="|S128")
                    variable[:] = values[name].astype(object).astype(str).astype(object)
                elif dtype == "S1":
                    values[name] = (numbers + 97).astype("u1").view("|S1")
                    variable[:] = values[name]
                else:
                    values[name] = numbers.astype(dtype)
                    variable[:] = values[name]
    return directory, values


def read_node(directory, name):
    document = Document(".zarray", (directory / name / ".zarray").read_bytes())
    return FORMATS["2"].parse_node("/", {".zarray": document})


NAMES = [
    f"{codec}.{dtype}"
    for codec in SETTINGS
    for dtype in ("i1", "i2", "i4", "f4", "f8", "S1", "str")
    if codec != "blosc" or dtype not in ("S1", "str")
]


# Regressions D1, D3, D4
@pytest.mark.parametrize("name", NAMES)
def test_chunks_from_netcdf_c_decode_to_original_values(store, name):
    directory, values = store
    node = read_node(directory, name)
    codec = compile_codec(node)
    for i in range(-(-LENGTH // CHUNK)):
        expected = values[name][i * CHUNK : (i + 1) * CHUNK]
        data = (directory / name / str(i)).read_bytes()
        np.testing.assert_array_equal(codec.decode(data)[: len(expected)], expected)
        np.testing.assert_array_equal(
            codec.decode(bytes(codec.encode(codec.decode(data)))), codec.decode(data)
        )


# Regressions D3, D4
@pytest.mark.parametrize("width", [1, 5, 7, 13])
def test_shuffled_strings_of_odd_width_from_netcdf_c_are_decoded(tmp_path, width):
    texts = np.array(["abcdefghijklm"[: 1 + i % width] for i in range(33)], dtype=object)
    with netCDF4.Dataset(f"file://{tmp_path}/d.file#mode=nczarr,file", "w") as dataset:
        dataset.createDimension("x", len(texts))
        variable = dataset.createVariable("v", str, ("x",), chunksizes=(11,), zlib=True)
        variable.setncattr("_nczarr_maxstrlen", np.int32(width))
        variable[:] = texts
    node = read_node(tmp_path / "d.file", "v")
    assert node.dtype == f"|S{width}"
    assert node.codecs[0].name == "shuffle"
    codec = compile_codec(node)
    chunks = [codec.decode((tmp_path / "d.file" / "v" / str(i)).read_bytes()) for i in range(3)]
    np.testing.assert_array_equal(np.concatenate(chunks), texts.astype(f"|S{width}"))


# Regression D32
@pytest.mark.parametrize("name", ["fletcher32.f4", "shuffle+zlib+fletcher32.f4"])
def test_error_for_wrong_fletcher32_checksum_includes_codec_name(store, name):
    directory, _ = store
    codec = compile_codec(read_node(directory, name))
    data = bytearray((directory / name / "0").read_bytes())
    data[len(data) // 2] ^= 16
    with pytest.raises(ChunkError, match="fletcher32") as caught:
        codec.decode(bytes(data))
    assert caught.value.place == "codec fletcher32 (compressor)"
