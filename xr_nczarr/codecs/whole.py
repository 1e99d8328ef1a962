"""Compressed documents: decoded whole, and never beyond a limit."""

from __future__ import annotations

import zlib

from numcodecs import zstd

from xr_nczarr.codecs.bounded import _zstd_extent
from xr_nczarr.errors import ChunkError, LimitError

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


def decompressed(data: bytes, most: int) -> bytes:
    """Give a document that is a gzip file or a Zstandard frame; any other as it is.

    Raises
    ------
    LimitError
        When it has more than `most` bytes.
    ChunkError
        When it is damaged.
    """
    if data.startswith(_ZSTD):
        told, bound, end = _zstd_extent(data, -1)
        _check(bound if told is None else told, most)
        return bytes(zstd.decompress(memoryview(data)[:end]))
    pieces = [b""] if data.startswith(_GZIP) else [data]
    while data.startswith(_GZIP):
        stream = zlib.decompressobj(31)
        try:
            pieces.append(stream.decompress(data, most + 1))
        except zlib.error as error:
            raise ChunkError(f"the gzip file does not decode ({error})") from error
        _check(sum(map(len, pieces)), most)
        if not stream.eof:
            raise ChunkError("the gzip file ends early")
        data = stream.unused_data
    return b"".join(pieces)


def _check(size: int, most: int) -> None:
    if size > most:
        raise LimitError(
            f"the document has {size:,} bytes or more when it is decompressed, more than {most:,}",
            remedy="Raise max_consolidated_bytes",
        )
