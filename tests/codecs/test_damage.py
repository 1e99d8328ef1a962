"""Damaged and hostile chunks raise NczarrErrors that name the codec, without large allocations."""

import bz2
import ctypes
import gzip
import lzma
import mmap
import random
import subprocess
import sys
import zlib

import numcodecs
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from tests.codecs.test_chains import COMPRESSORS, make_codec, zstd_without_size
from tests.reading import peak_memory
from xr_nczarr.errors import ChunkError, LimitError

ARRAYS = [
    np.arange(3000, dtype="<i4"),
    np.random.default_rng(0).integers(0, 9, 3000).astype("<i4"),
    np.random.default_rng(0).integers(-(2**31), 2**31 - 1, 3000).astype("<i4"),
]
CHAINS = [
    *([item] for item in COMPRESSORS),
    [("shuffle", {"elementsize": 4}), ("zlib", {"level": 4}), ("fletcher32", {})],
    [("blosc", {"cname": "zstd", "blocksize": 512}), ("crc32c", {})],
    [("zlib", {}), ("zstd", {}), ("lz4", {})],
    [("base64", {}), ("adler32", {}), ("jenkins_lookup3", {})],
]
WORDS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1)


def mutate(data, chance):
    mutant = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        at = chance.randrange(min(len(mutant), chance.choice((20, 64, len(mutant) or 1))) or 1)
        kind = chance.randrange(6)
        if kind < 2 and at < len(mutant):
            mutant[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            word = chance.choice((*WORDS, len(mutant), len(mutant) + 1, chance.randrange(2**32)))
            mutant[at : at + 4] = word.to_bytes(4, "little")
        elif kind == 3:
            del mutant[chance.randrange(len(mutant) + 1) :]
        elif kind == 4:
            mutant[at:at] = chance.randbytes(chance.randrange(1, 9))
        else:
            del mutant[at : at + chance.randrange(1, 9)]
    return bytes(mutant)


def decodes(codec, data, out=None):
    """Return whether `data` can be decoded. Errors other than an NczarrError fail the test."""
    try:
        codec.decode(data, out)
    except (ChunkError, LimitError) as error:
        place, text = error.place, str(error)
    else:
        return True
    assert place.startswith("codec ")
    assert "\n" not in text
    return False


@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: "+".join(name for name, _ in chain))
def test_decoding_mutated_chunk_succeeds_or_raises_nczarr_error(chain):
    chance = random.Random(1)
    outcomes = []
    for array in ARRAYS:
        codec = make_codec("<i4", array.shape, *chain)
        data = bytes(codec.encode(array))
        outcomes += [decodes(codec, mutate(data, chance)) for _ in range(150)]
    assert False in outcomes


@pytest.mark.parametrize(
    ("name", "items"),
    [
        ("vlen-utf8", ["", "a", "né", "x" * 90]),
        ("vlen-bytes", [b"", b"a", b"\xff", b"x" * 90]),
        ("vlen-array", [np.arange(n, dtype="<i2") for n in (0, 3, 1, 9)]),
        ("json2", ["a", 1, None, [1, 2]]),
        ("msgpack2", ["a", 1, None, [1, 2]]),
    ],
)
def test_decoding_mutated_variable_length_items_succeeds_or_raises_nczarr_error(name, items):
    chance = random.Random(1)
    array = np.empty(4, dtype=object)
    array[:] = items
    settings = {"dtype": "<i2"} if name == "vlen-array" else {}
    for more in ([], [("zstd", {})], [("fletcher32", {})]):
        codec = make_codec(object, (4,), (name, settings), *more)
        data = bytes(codec.encode(array))
        outcomes = [decodes(codec, mutate(data, chance)) for _ in range(200)]
        assert False in outcomes


# Regression D34
@pytest.mark.parametrize("chain", CHAINS, ids=lambda chain: "+".join(name for name, _ in chain))
def test_decoding_truncated_chunk_raises_chunk_error(chain):
    codec = make_codec("<i4", (3000,), *chain)
    data = bytes(codec.encode(ARRAYS[0]))
    for length in {0, 1, 3, 15, 16, len(data) // 2, len(data) - 5, len(data) - 1}:
        assert not decodes(codec, data[:length])


@pytest.mark.parametrize("spec", COMPRESSORS, ids=lambda spec: spec[0])
@pytest.mark.parametrize("count", [2999, 3001, 1, 9000])
def test_error_for_wrong_chunk_size_includes_actual_and_expected_size(spec, count):
    name, _ = spec
    data = bytes(make_codec("<i4", (count,), spec).encode(np.arange(count, dtype="<i4")))
    codec = make_codec("<i4", (3000,), spec)
    with pytest.raises(ChunkError) as caught:
        codec.decode(data)
    assert caught.value.place == f"codec {name} (filters)"
    if count < 3000 or name in ("zstd", "lz4", "blosc"):
        sizes = f"is {4 * count:,} bytes long; expected 12,000"
    else:
        sizes = "is longer than the expected 12,000 bytes"
    problem = f"decoded data {sizes} (chunk of shape (3000,) and dtype int32)"
    assert problem in str(caught.value)


@pytest.mark.parametrize("size", [0, 1, 11, 13])
def test_uncompressed_chunk_of_wrong_size_raises_chunk_error(size):
    codec = make_codec("<i4", (3,))
    with pytest.raises(ChunkError, match=f"stored data is {size} bytes long; expected 12"):
        codec.decode(bytes(size))


def blosc_header(nbytes, blocksize, cbytes, flags=0x21, typesize=4):
    words = b"".join(word.to_bytes(4, "little") for word in (nbytes, blocksize, cbytes))
    return bytes([2, 1, flags, typesize]) + words


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            blosc_header(12_000, 12_000, 2_147_000_000),
            "declares 2,147,000,000 bytes, but the chunk is 16 bytes long",
        ),
        (blosc_header(12_000, 12_000, 17), "but the chunk is 16 bytes long"),
        (blosc_header(12_000, 12_000, 0), "declares 0 bytes"),
        (
            blosc_header(2_147_000_000, 512, 16),
            "decoded data is 2,147,000,000 bytes long; expected 12,000",
        ),
        (blosc_header(0, 0, 16), "decoded data is 0 bytes long"),
        (blosc_header(12_000, 1 << 31, 16), "cannot be decoded"),
        (b"\x02\x01", "the stored chunk is 2 bytes long"),
        (b"", "the stored chunk is 0 bytes long"),
    ],
    ids=[
        "length of gigabytes",
        "length of one byte more",
        "length of zero",
        "size of gigabytes",
        "size of zero",
        "block larger than the data",
        "two bytes",
        "no bytes",
    ],
)
def test_invalid_blosc_headers_are_rejected(data, words):
    with pytest.raises(ChunkError, match=words):
        make_codec("<i4", (3000,), ("blosc", {})).decode(data)


def decode_before_a_guard_page(seed):
    """Decode mutated Blosc chunks from buffers and into buffers that a guard page follows.

    An access beyond the end of a buffer would end the process.
    """
    chance = random.Random(seed)
    settings = [(n, s, b) for n in ("lz4", "zstd", "blosclz") for s in (0, 1, 2) for b in (0, 256)]
    for name, shuffle, blocksize in settings:
        spec = ("blosc", {"cname": name, "shuffle": shuffle, "blocksize": blocksize})
        for array in ARRAYS:
            codec = make_codec("<i4", array.shape, spec)
            good = bytes(codec.encode(array))
            memory = [guarded_memory(1 << 17) for _ in range(2)]
            for _ in range(60):
                data = mutate(good, chance)
                source = memory[0][len(memory[0]) - len(data) :]
                source[:] = data
                out = np.frombuffer(memory[1][len(memory[1]) - array.nbytes :], "<i4")
                decodes(codec, source, out)


def guarded_memory(length):
    pages = mmap.mmap(-1, length + mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    protected = ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + length), mmap.PAGESIZE, 0)
    assert protected == 0
    return memoryview(pages)[:length]


@pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect")
def test_decoding_mutated_blosc_chunks_never_accesses_memory_out_of_bounds():
    script = f"from {__name__} import *; decode_before_a_guard_page(1)"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 0, result.stderr


MIB = 1 << 20
RLE_BLOCK = (1 << 17 << 3 | 2).to_bytes(3, "little") + b"\0"
BOMBS = {
    "zlib": zlib.compress,
    "gzip": gzip.compress,
    "bz2": bz2.compress,
    "lzma": lzma.compress,
    "zstd": numcodecs.Zstd(3).encode,
    "lz4": numcodecs.LZ4().encode,
    "blosc": numcodecs.Blosc().encode,
    "zstd frame without a size": lambda _: zstd_without_size(b"")[:6] + RLE_BLOCK * 600 + b"\1\0\0",
}


@pytest.mark.parametrize("name", BOMBS)
def test_decompression_bombs_are_rejected_before_allocation(name):
    spec = (name.split()[0], {})
    bomb = BOMBS[name](bytes(64 * MIB))
    nested = zlib.compress(bomb)

    def refuse():
        assert not decodes(make_codec("|u1", (MIB,), spec), bomb)
        assert not decodes(make_codec("|u1", (MIB,), spec, ("zlib", {})), nested)
        assert not decodes(make_codec("|u1", (MIB,), ("zlib", {}), spec), bomb)

    assert peak_memory(refuse) < 16 * MIB


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("vlen-utf8", b"\xff\xff\xff\xff"),
        ("vlen-bytes", b"\x02\0\0\0\xff\xff\xff\xff"),
        ("vlen-utf8", b"\x02\0\0\0\x01\0\0\0\xff\0\0\0\0"),
        ("json2", b'["a","b","|O",[2000000000]]'),
        ("json2", b'["a","b","|O",[-1,-2]]'),
        ("json2", b'["a","b","|O",[2.0]]'),
        ("json2", b'["a","b","c","|O",[2]]'),
        ("json2", b'[["a"],"b","|O",[2,1]]'),
        ("json2", b'{"a":1}'),
        ("json2", b"[" * 100_000),
        ("json2", b'["a'),
        ("json2", b'"\xff"'),
        ("msgpack2", b"\xdd\xff\xff\xff\xff"),
        ("msgpack2", b"\x91" * 100_000),
        ("msgpack2", b""),
    ],
    ids=[
        "vlen-utf8 count",
        "vlen-bytes length",
        "vlen-utf8 invalid text",
        "json2 huge shape",
        "json2 negative shape",
        "json2 float shape",
        "json2 too many items",
        "json2 ragged rows",
        "json2 object",
        "json2 deep nesting",
        "json2 truncated",
        "json2 invalid text",
        "msgpack2 count",
        "msgpack2 deep nesting",
        "msgpack2 empty",
    ],
)
def test_invalid_item_lengths_are_rejected(name, data):
    assert not decodes(make_codec(object, (2,), (name, {})), data)


# Regression D32
@pytest.mark.parametrize("name", ["crc32", "adler32", "crc32c", "fletcher32", "jenkins_lookup3"])
def test_wrong_checksum_raises_chunk_error(name):
    codec = make_codec("<i4", (3000,), (name, {}))
    good = bytes(codec.encode(ARRAYS[0]))
    for at in (0, 3, 4, 6000, len(good) - 5, len(good) - 1):
        data = bytearray(good)
        data[at] ^= 4
        with pytest.raises(ChunkError, match=f"codec {name} "):
            codec.decode(bytes(data))


def test_invalid_packbits_padding_count_raises_chunk_error():
    codec = make_codec("?", (12,), ("packbits", {}))
    assert codec.decode(b"\x04\xff\xf0").tolist() == [True] * 12
    for spare in (0, 3, 5, 8, 200):
        with pytest.raises(ChunkError, match="expected 12"):
            codec.decode(bytes([spare, 255, 240]))


def test_decoding_numbers_outside_dtype_range_does_not_warn():
    scale = {"offset": 1, "scale": 1e-300, "dtype": "<i4", "astype": "<f8"}
    codec = make_codec("<i4", (2,), ("fixedscaleoffset", scale))
    assert codec.decode(np.array([np.nan, 1e300]).tobytes()).shape == (2,)


def test_decompressed_string_size_is_limited():
    from xr_nczarr.model import Limits

    limits = Limits(max_chunk_bytes=4 * MIB)
    for name in ("vlen-utf8", "json2", "msgpack2"):
        codec = make_codec(object, (2,), (name, {}), ("zlib", {}), limits=limits)
        with pytest.raises(LimitError, match="max_chunk_bytes"):
            codec.decode(zlib.compress(bytes(16 * MIB)))


@pytest.mark.parametrize("dtype", ["S16", [("a", "<i4"), ("s", "S16")], "V20"], ids=str)
def test_error_for_strings_in_fixed_size_dtype_suggests_vlen_encode(
    dtype,
):
    """With ``vlen_encode="null"``, kerchunk refers to strings elsewhere in the HDF5 file."""
    import kerchunk.codecs  # noqa: F401 (registers fill_hdf_strings)

    stored = "S16" if dtype == "S16" else "[('a', 'int32'), ('s', 'S16')]"
    codec = make_codec(dtype, (2,), ("fill_hdf_strings", {"dtype": stored, "id_map": None}))
    with pytest.raises(ChunkError, match="decoded data consists of Python objects") as caught:
        codec.decode(bytes(2 * codec.flow.dtype.itemsize))
    assert "damaged" not in str(caught.value)
    assert "vlen_encode" in caught.value.remedy


@pytest.mark.parametrize("chain", [[], [("zlib", {})]], ids=["uncompressed", "zlib"])
@pytest.mark.parametrize("dtype", ["<U2", ">U2", [("number", "<i4"), ("text", "<U2", (1,))]])
def test_text_with_invalid_characters_is_rejected(dtype, chain):
    codec = make_codec(dtype, (3,), *chain)
    text = np.zeros(3, dtype)
    assert_array_equal(codec.decode(codec.encode(text)), text)
    text.view("u1")[-8:] = 255
    with pytest.raises(ChunkError, match="dtype: the decoded text is not valid Unicode"):
        codec.decode(codec.encode(text))
