"""Chunk bytes ⇄ arrays: no I/O, and nothing larger than what the metadata declare."""

from xr_nczarr.codecs.pipeline import ChunkCodec
from xr_nczarr.codecs.registry import check_codec, compile_codec
from xr_nczarr.codecs.shards import ShardIndex

__all__ = ["ChunkCodec", "ShardIndex", "check_codec", "compile_codec"]
