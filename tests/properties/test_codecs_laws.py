"""Decoding is the inverse of encoding for every dtype, shape and chain of codecs."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tests.codecs.test_chains import COMPRESSORS, make_codec
from xr_nczarr.codecs import ShardIndex
from xr_nczarr.errors import ChunkError, LimitError
from xr_nczarr.model import CodecSpec, ShardSpec

DTYPES = st.one_of(
    hnp.scalar_dtypes(),
    hnp.byte_string_dtypes(min_len=1, max_len=9),
    hnp.unicode_string_dtypes(min_len=1, max_len=5),
    hnp.array_dtypes(hnp.scalar_dtypes(), max_size=3, allow_subarrays=False),
)
SHUFFLE = st.integers(1, 20).map(lambda size: ("shuffle", {"elementsize": size}))
CHECKSUMS = st.sampled_from(
    [(name, {}) for name in ("crc32", "adler32", "crc32c", "fletcher32", "jenkins_lookup3")]
    + [("crc32c", {"location": "start"}), ("base64", {})]
)
BYTE_CHAINS = st.lists(st.one_of(SHUFFLE, CHECKSUMS, st.sampled_from(COMPRESSORS)), max_size=4)


@st.composite
def chunks(draw):
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, max_side=6))
    array = draw(hnp.arrays(draw(DTYPES), shape))
    chain = draw(BYTE_CHAINS)
    if draw(st.booleans()):
        chain = [("transpose", {"order": draw(st.permutations(range(len(shape))))}), *chain]
    return array, chain


def same_bytes(result, expected):
    return result.shape == expected.shape and result.tobytes() == expected.tobytes()


@settings(deadline=None, max_examples=200)
@given(chunks())
def test_decoding_inverts_encoding(case):
    array, chain = case
    codec = make_codec(array.dtype, array.shape, *chain)
    data = bytes(codec.encode(array))
    assert same_bytes(codec.decode(data), array)
    out = np.empty_like(array, order="C")
    assert codec.decode(memoryview(data), out) is out
    assert same_bytes(out, array)


TEXTS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), max_size=20)


@settings(deadline=None, max_examples=100)
@given(TEXTS, st.sampled_from(["vlen-utf8", "json2", "msgpack2"]), st.sampled_from(COMPRESSORS))
def test_decoding_inverts_encoding_of_strings(texts, name, compressor):
    array = np.empty(len(texts) + 1, dtype=object)
    array[:] = [*texts, ""]
    codec = make_codec(object, array.shape, (name, {}), compressor)
    assert codec.decode(bytes(codec.encode(array))).tolist() == array.tolist()


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=200), BYTE_CHAINS, st.sampled_from(["<i4", "O"]))
def test_decoding_arbitrary_bytes_succeeds_or_raises_nczarr_error(data, chain, dtype):
    first = [("vlen-utf8", {})] if dtype == "O" else []
    codec = make_codec(dtype, (5,), *first, *chain)
    try:
        assert codec.decode(data).shape == (5,)
    except (ChunkError, LimitError):
        return


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.dictionaries(st.tuples(st.integers(0, 2), st.integers(0, 2)), st.binary(max_size=9)),
    st.booleans(),
)
def test_assembled_shards_contain_their_inner_chunks(grid, parts, at_start):
    parts = {key: part for key, part in parts.items() if key[0] < grid[0] and key[1] < grid[1]}
    spec = ShardSpec(
        (grid[0] * 2, grid[1] * 3), (CodecSpec("bytes"), CodecSpec("crc32c")), at_start
    )
    index = ShardIndex(spec, (2, 3))
    shard = index.assemble(parts)
    stored = shard[: index.length] if at_start else shard[index.start :]
    entries = index.parse(stored, len(shard))
    for key in np.ndindex(grid):
        place = index.locate(entries, key)
        assert (None if place is None else shard[place[0] : sum(place)]) == parts.get(key)
