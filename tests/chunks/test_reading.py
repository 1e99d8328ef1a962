"""The cost of reading: each chunk is decoded once, and little memory is used besides the result."""

from typing import ClassVar

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import Blosc, Zlib, Zstd

from tests.nodes import chunked_array
from tests.reading import peak_memory
from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.codecs import ShardIndex, blosc_blocks
from xr_nczarr.dataset import open_netcdf
from xr_nczarr.errors import ChunkError
from xr_nczarr.model import CodecSpec
from xr_nczarr.options import OpenOptions

VALUES = np.arange(12 * 20).reshape(12, 20)


class Counting:
    """A codec that leaves chunks unchanged and records which chunks it decoded."""

    codec_id = "counting"
    decoded: ClassVar[list[bytes]] = []

    @classmethod
    def from_config(cls, _config):
        return cls()

    def decode(self, data, out=None):
        self.decoded.append(bytes(data[:8]))
        return bytes(data)


POSITIONS = {
    size: st.lists(st.integers(-size, size - 1), min_size=1, max_size=30).map(np.array)
    for size in VALUES.shape
}
COUNTED = chunked_array(VALUES, (4, 5), (CodecSpec("counting", {}),), codecs={"counting": Counting})


@settings(max_examples=60, deadline=None)
@given(POSITIONS[12], POSITIONS[20], st.booleans())
def test_each_chunk_of_selection_is_decoded_once(rows, columns, pointwise):
    if pointwise:
        count = min(len(rows), len(columns))
        rows, columns = rows[:count], columns[:count]
    Counting.decoded.clear()
    result = COUNTED.read((rows, columns), pointwise=pointwise)
    expected = VALUES[rows, columns] if pointwise else VALUES[np.ix_(rows, columns)]
    np.testing.assert_array_equal(result, expected)
    assert len(Counting.decoded) == len(set(Counting.decoded))


@pytest.mark.parametrize("codec", [(), (CodecSpec("zstd", {"level": 1}),)], ids=["raw", "zstd"])
@pytest.mark.parametrize("count", [300, 1200])
def test_reading_many_small_chunks_uses_little_extra_memory(tmp_path, codec, count):
    values = np.zeros((count, 1024), "f4")
    encode = Zstd(1).encode if codec else np.ndarray.tobytes
    stored = chunked_array(values, (1, 1024), codec, encode=encode, target=tmp_path)
    peak = peak_memory(lambda: stored.read((slice(None), slice(None))))
    assert peak < values.nbytes + (2 << 20) + 500 * count


@pytest.mark.parametrize("threads", [1, 2])
def test_damaged_small_zstd_chunk_is_not_treated_as_missing(tmp_path, threads):
    values = np.arange(100 * 8192, dtype="f4").reshape(200, 4096)
    codecs = (CodecSpec("zstd", {"level": 1}),)
    options = {"encode": Zstd(1).encode, "target": tmp_path, "threads": threads}
    stored = chunked_array(values, (2, 4096), codecs, **options)
    everything = slice(None), slice(None)
    np.testing.assert_array_equal(stored.read(everything), values)
    some = slice(None, None, 3), np.array([7, 2000, 7])
    np.testing.assert_array_equal(stored.read(some), values[some])
    for number in (0, 50, 99):
        stored.store.delete(f"v/{number}.0")
        values[2 * number : 2 * number + 2] = 0
    np.testing.assert_array_equal(stored.read(everything), values)
    stored.store.put([("v/70.0", b"damage")])
    with pytest.raises(ChunkError, match=r"v/70\.0"):
        stored.read(everything)


@pytest.mark.parametrize(
    ("codec", "buffers"),
    [(Zstd(1), 0), (Blosc("lz4"), 0), (Zlib(1), 1)],
    ids=["zstd", "blosc", "zlib"],
)
def test_decoding_whole_chunks_allocates_no_unused_buffer(tmp_path, codec, buffers):
    """Freeing more than two chunk buffers together makes malloc return memory to the system."""
    values = np.zeros((4, 1 << 20), "f4")
    options = {"encode": codec.encode, "target": tmp_path, "threads": 1}
    stored = chunked_array(values, (1, 1 << 20), (CodecSpec(codec.codec_id, {}),), **options)
    peak = peak_memory(lambda: stored.read((slice(None), slice(None))))
    assert peak < values.nbytes + buffers * stored.chunk_bytes + (1 << 20)


@pytest.mark.parametrize("dtype", ["<f4", ">i2", "M8[ns]", "S3", "?"])
def test_large_result_arrays_are_aligned_to_cache_lines(tmp_path, dtype):
    values = np.arange(400_000).reshape(4, 100_000).astype(dtype)
    stored = chunked_array(values, (2, 50_000), target=tmp_path)
    for selection in ((slice(None), slice(None)), (1, slice(None)), (slice(None), slice(5, 9))):
        result = stored.read(selection)
        np.testing.assert_array_equal(result, values[selection])
        assert result.nbytes < 1 << 17 or result.ctypes.data % 64 == 0


def test_blosc_header_and_blocks_come_from_same_file_version(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    old, new = (random.integers(0, 9, (1, 1 << 20)).astype("f4").cumsum(axis=1) for _ in range(2))
    options = {"encode": Blosc("lz4").encode, "target": tmp_path}
    stored = chunked_array(old, old.shape, (CodecSpec("blosc", {}),), **options)
    blocks_of = blosc_blocks._blocks_of

    def replacing(*arguments, **options):
        stored.store.put([("v/0.0", bytes(Blosc("lz4", shuffle=0).encode(new)))])
        return blocks_of(*arguments, **options)

    monkeypatch.setattr(blosc_blocks, "_blocks_of", replacing)
    assert stored.read((0, slice(1 << 19, (1 << 19) + 5))).tolist() == (
        old[0, 1 << 19 : (1 << 19) + 5].tolist()
    )


def test_inner_chunk_and_index_come_from_same_shard_version(tmp_path, monkeypatch):
    """Missing inner chunks take no space, so the offsets of other chunks depend on them."""

    def write(values):
        group = zarr.open_group(tmp_path, mode="a", zarr_format=3)
        chunks = {"shape": (8,), "chunks": (1,), "shards": (8,), "compressors": None}
        target = group.create_array("a", overwrite=True, dtype="f4", fill_value=0, **chunks)
        target[:] = np.array(values, "f4")
        return (tmp_path / "a" / "c" / "0").read_bytes()

    later, _ = write(range(1, 9)), write([0, 0, 0, 4, 5, 0, 0, 0])
    opened = open_netcdf(tmp_path, OpenOptions())
    stored = ChunkedArray(opened.root.variables["a"].node, opened.store)
    parse = ShardIndex.parse

    def replacing(index, *arguments):
        opened.store.put([("a/c/0", later)])
        return parse(index, *arguments)

    monkeypatch.setattr(ShardIndex, "parse", replacing)
    assert stored.read((3,)).tolist() == 4
    monkeypatch.undo()
    assert stored.read((slice(None),)).tolist() == [*range(1, 9)]
