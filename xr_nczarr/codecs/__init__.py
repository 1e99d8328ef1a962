"""Chunk bytes ⇄ arrays: no I/O, and nothing larger than what the metadata declare."""

from xr_nczarr.codecs.blocks import HEADER_BYTES, parse_blosc
from xr_nczarr.codecs.bounded import decompressed
from xr_nczarr.codecs.pipeline import ChunkCodec, bytes_of
from xr_nczarr.codecs.registry import check_codec, check_fill, compile_codec, registered_kind
from xr_nczarr.codecs.shards import ShardIndex

__all__ = [
    "HEADER_BYTES",
    "ChunkCodec",
    "ShardIndex",
    "bytes_of",
    "check_codec",
    "check_fill",
    "compile_codec",
    "decompressed",
    "parse_blosc",
    "registered_kind",
]
