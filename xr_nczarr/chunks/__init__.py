"""Selections ⇄ chunks: one engine for every format and store, reading and writing."""

from xr_nczarr.chunks.array import ChunkedArray, ReadOptions
from xr_nczarr.chunks.reading import Convert

__all__ = ["ChunkedArray", "Convert", "ReadOptions"]
