"""The index of a shard and the locations of its inner chunks."""

import numpy as np
import pytest

from xr_nczarr.codecs import ShardIndex
from xr_nczarr.errors import ChunkError, LimitError, MetadataError, UnsupportedError
from xr_nczarr.model import CodecSpec, Limits, ShardSpec

INDEX = (CodecSpec("bytes", {"endian": "little"}), CodecSpec("crc32c"))
MISSING = 2**64 - 1


def make_index(shape=(4, 6), inner=(2, 2), index_codecs=INDEX, at_start=False, codecs=(), **more):
    return ShardIndex(ShardSpec(shape, index_codecs, at_start, codecs), inner, **more)


def encode_entries(index, entries):
    return bytes(index._codec.encode(np.array(entries, np.uint64).reshape(*index.grid, 2)))


@pytest.mark.parametrize("at_start", [False, True])
@pytest.mark.parametrize(
    "index_codecs",
    [INDEX, INDEX[:1], (CodecSpec("bytes", {"endian": "big"}),)],
    ids=["with a checksum", "without a checksum", "big endian"],
)
def test_shard_index_locates_each_inner_chunk(at_start, index_codecs):
    index = make_index(index_codecs=index_codecs, at_start=at_start)
    parts = {(0, 0): b"first", (0, 2): b"", (1, 1): b"third one"}
    shard = index.assemble(parts)
    assert index.grid == (2, 3)
    assert index.length == 96 + 4 * (len(index_codecs) - 1)
    assert index.start == (0 if at_start else -index.length)
    stored = shard[: index.length] if at_start else shard[index.start :]
    for size in (len(shard), None):
        entries = index.parse(stored, size)
        for inner_index in np.ndindex(2, 3):
            place = index.locate(entries, inner_index)
            result = None if place is None else shard[place[0] : sum(place)]
            assert result == parts.get(inner_index)


def test_shard_index_encoding_follows_spec():
    shard = make_index((2,), (1,), INDEX[:1]).assemble({(1,): b"abc"})
    assert shard == b"abc" + b"\xff" * 16 + bytes([0] * 8 + [3] + [0] * 7)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([(0, 10), (9, 5)], r"inner chunk \(1,\) at offset 9 with length 5 overlaps another"),
        ([(5, 10), (0, 6)], r"inner chunk \(0,\) at offset 5"),
        ([(0, 10), (0, 10)], "overlaps another"),
        ([(0, 10), (95, 6)], "outside the shard"),
        ([(0, 10), (101, 0)], "outside the shard"),
        ([(0, 101), (MISSING, MISSING)], "outside the shard"),
        ([(2**63, 2**63), (0, 1)], "outside the shard"),
        ([(MISSING, 1), (0, 1)], "outside the shard"),
        ([(0, MISSING), (0, 1)], "outside the shard"),
    ],
    ids=[
        "overlap at the end",
        "overlap at the start",
        "the same range",
        "end after the shard",
        "empty after the shard",
        "longer than the shard",
        "overflow",
        "missing offset only",
        "missing length only",
    ],
)
def test_overlapping_or_out_of_bounds_shard_index_entries_are_rejected(entries, words):
    index = make_index((2,), (1,))
    with pytest.raises(ChunkError, match=words) as caught:
        index.parse(encode_entries(index, entries), 100 + index.length)
    assert caught.value.place == "shard index"


def test_shard_index_entries_touching_shard_boundaries_are_accepted():
    index = make_index((3,), (1,))
    entries = [(90, 10), (0, 90), (90, 0)]
    result = index.parse(encode_entries(index, entries), 100 + index.length)
    assert result.tolist() == [list(entry) for entry in entries]


def test_inner_chunks_that_overlap_leading_index_are_rejected():
    index = make_index((2,), (1,), at_start=True)
    entries = encode_entries(index, [(index.length - 1, 5), (50, 5)])
    with pytest.raises(ChunkError, match="outside the shard"):
        index.parse(entries)
    entries = encode_entries(index, [(index.length, 5), (index.length + 5, 5)])
    assert index.locate(index.parse(entries, index.length + 10), (1,)) == (index.length + 5, 5)


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-1], lambda data: b"\1" + data[1:], lambda data: b""],
    ids=["truncated", "changed", "empty"],
)
def test_parsing_damaged_shard_index_raises_chunk_error(damage):
    index = make_index()
    stored = index.assemble({(0, 0): b"abc"})[index.start :]
    with pytest.raises(ChunkError, match=r"crc32c \(codecs\)"):
        index.parse(damage(stored))


def test_invalid_inner_chunk_shapes_and_index_codecs_are_rejected():
    with pytest.raises(UnsupportedError, match="variable size"):
        make_index(index_codecs=(*INDEX, CodecSpec("gzip")))
    with pytest.raises(MetadataError, match="inner chunks"):
        make_index((4, 5), (2, 2))
    with pytest.raises(LimitError):
        make_index((1 << 20, 1 << 20), (1, 1))


def test_codecs_after_sharding_apply_to_whole_shard():
    index = make_index(codecs=(CodecSpec("zlib", {"level": 1}), CodecSpec("crc32c")))
    assert index.wrapped
    shard = index.assemble({(0, 0): b"abc" * 50})
    stored = bytes(index.wrap(shard))
    assert stored != shard
    assert bytes(index.unwrap(stored)) == shard
    with pytest.raises(ChunkError, match="crc32c"):
        index.unwrap(stored[:-1])
    small = make_index(codecs=(CodecSpec("zlib"),), limits=Limits(max_chunk_bytes=100))
    with pytest.raises(LimitError, match="max_chunk_bytes"):
        small.unwrap(bytes(index.wrap(shard))[:-4])


def test_array_codecs_after_sharding_are_rejected():
    for name, settings in (("transpose", {"order": [1, 0]}), ("delta", {"dtype": "<f4"})):
        with pytest.raises((MetadataError, UnsupportedError), match=name):
            make_index(codecs=(CodecSpec(name, settings),))


def test_shards_can_be_nested():
    outer, inner = make_index((8,), (4,)), make_index((4,), (2,))
    shard = outer.assemble({(1,): inner.assemble({(0,): b"deep"})})
    offset, length = outer.locate(outer.parse(shard[outer.start :], len(shard)), (1,))
    within = shard[offset : offset + length]
    start, length = inner.locate(inner.parse(within[inner.start :], len(within)), (0,))
    assert within[start : start + length] == b"deep"
