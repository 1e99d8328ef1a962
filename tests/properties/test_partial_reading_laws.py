"""Selections read from byte ranges or blocks of a chunk equal NumPy's selections."""

import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numcodecs import Blosc, blosc

from tests.nodes import chunked_array
from xr_nczarr.errors import ChunkError, StorageError
from xr_nczarr.model import CodecSpec

BLOSC = CodecSpec("blosc", {"cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0})
SMALL_BLOCKS = Blosc("lz4", 5, 1, 16 << 10)


def selectors(size):
    bounds = st.integers(0, size - 1)
    steps = st.sampled_from([1, 2, 3, 7, -1, -5])
    slices = st.builds(slice, st.none() | bounds, st.none() | bounds, st.none() | steps)
    lists = st.lists(bounds, min_size=1, max_size=6).map(lambda indices: np.array(indices, np.intp))
    return bounds | slices | lists


def taken(values, selection):
    for axis in reversed(range(values.ndim)):
        item = selection[axis]
        values = values[(slice(None),) * axis + (item,)]
    return values


RANDOM = np.random.default_rng(0)
RAW = RANDOM.integers(0, 1 << 40, (3, 37, 700))
PACKED = (280 + np.cumsum(RANDOM.standard_normal((70, 2050)), axis=1)).round(1).astype("f4")


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.sampled_from([(1, 37, 700), (2, 20, 700), (3, 37, 300)]))
def test_selections_of_uncompressed_chunks_match_numpy(data, chunks):
    array = chunked_array(RAW, chunks)
    selection = tuple(data.draw(selectors(size)) for size in RAW.shape)
    np.testing.assert_array_equal(array.read(selection), taken(RAW, selection))
    points = tuple(
        np.array(data.draw(st.lists(st.integers(0, n - 1), min_size=4, max_size=4)))
        for n in RAW.shape
    )
    np.testing.assert_array_equal(array.read(points, pointwise=True), RAW[points])


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.sampled_from([0, 16 << 10, 100_000]), st.sampled_from([0, 1, 2]))
def test_selections_of_blosc_chunks_match_numpy(data, block, shuffle):
    encode = Blosc("lz4", 5, shuffle, block).encode
    array = chunked_array(PACKED, (66, 2050), (BLOSC,), encode=encode)
    selection = tuple(data.draw(selectors(size)) for size in PACKED.shape)
    np.testing.assert_array_equal(array.read(selection), taken(PACKED, selection))


def test_reading_few_values_decodes_few_blosc_blocks(monkeypatch):
    array = chunked_array(PACKED, (70, 2050), (BLOSC,), encode=SMALL_BLOCKS.encode)
    sizes, original = [], blosc.decompress

    def decompress(frame, target):
        sizes.append(target.nbytes)
        return original(frame, target)

    monkeypatch.setattr("xr_nczarr.codecs.blosc_blocks.blosc.decompress", decompress)
    np.testing.assert_array_equal(array.read((3, 5)), PACKED[3, 5])
    np.testing.assert_array_equal(array.read((69, slice(2040, 2050))), PACKED[69, 2040:])
    assert sum(sizes) < 1 << 18


def test_reading_damaged_blosc_blocks_raises_error():
    objects = {}
    array = chunked_array(PACKED, (70, 2050), (BLOSC,), encode=SMALL_BLOCKS.encode, target=objects)
    whole = objects["v/0.0"]
    first, second = struct.unpack_from("<ii", whole, 16)
    for start in (0, -5, second, 1 << 30):
        objects["v/0.0"] = whole[:16] + struct.pack("<i", start) + whole[20:]
        with pytest.raises((ChunkError, StorageError)) as caught:
            array.read((3, 5))
        assert caught.value.key == "v/0.0"
    for length in (1 << 31, (1 << 32) - 1):
        objects["v/0.0"] = whole[:12] + struct.pack("<I", length) + whole[16:]
        with pytest.raises((ChunkError, StorageError)):
            array.read((69, 2049))
    objects["v/0.0"] = whole[:first] + b"\xff" * 100 + whole[first + 100 :]
    with pytest.raises(ChunkError, match="cannot be decoded"):
        array.read((0, 5))
    for size in (0, 10, 40, first + 10):
        objects["v/0.0"] = whole[:size]
        with pytest.raises((ChunkError, StorageError)):
            array.read((3, 5))
    del objects["v/0.0"]
    assert array.read((3, 5)) == 0


ORDERS = st.permutations(range(6))


@settings(max_examples=200, deadline=None)
@given(ORDERS, ORDERS | st.none(), st.sampled_from([1, 2, 3, 6]), st.sampled_from(["f4", "M8[s]"]))
@pytest.mark.parametrize("codecs", [(), (BLOSC,)], ids=["raw", "blosc"])
def test_integer_array_selections_match_numpy(codecs, order, columns, chunk, dtype):
    """Adjacent elements of a chunk may be far apart in the result."""
    values = np.arange(36).reshape(6, 6).astype(dtype)
    encode = Blosc().encode if codecs else np.ndarray.tobytes
    chunks = (chunk, 6 if columns is None else chunk)
    array = chunked_array(values, chunks, codecs, encode=encode)
    others = slice(None) if columns is None else np.array(columns)
    result = array.read((np.array(order), others))
    np.testing.assert_array_equal(result, values[list(order)][:, others])
