"""Decode and encode chunks, without decoding more data than the metadata declares."""

from xr_nczarr.codecs.blosc_blocks import read_blosc_spans
from xr_nczarr.codecs.compressors import crc32
from xr_nczarr.codecs.pipeline import ChunkCodec, bytes_of
from xr_nczarr.codecs.registry import (
    check_codec,
    check_fill,
    check_known,
    compile_codec,
    compressed,
    decompressed,
    registered_kind,
)
from xr_nczarr.codecs.shard_index import ShardIndex

__all__ = [
    "ChunkCodec",
    "ShardIndex",
    "bytes_of",
    "check_codec",
    "check_fill",
    "check_known",
    "compile_codec",
    "compressed",
    "crc32",
    "decompressed",
    "read_blosc_spans",
    "registered_kind",
]
