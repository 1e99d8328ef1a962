"""Define compressors whose decoders never return more bytes than the metadata declares.

The decoders of the standard library are called with a limit on their output. Zstandard, LZ4 and
Blosc frames declare the size of their data, which is checked before memory is allocated. The
declared length of a Blosc frame is checked too, because Blosc's decoder would otherwise read beyond
the end of the buffer. Bytes after the end of a stream are ignored: when netCDF-C overwrites a chunk
with a shorter one, it leaves the end of the longer chunk in place.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from threading import local
from typing import Any

import numcodecs
import numpy as np
from numcodecs import blosc, lz4, zstd
from numpy.typing import NDArray

from xr_nczarr.codecs.pipeline import UINT8, Buffer, Flow, Step, StepRequest, bytes_of
from xr_nczarr.errors import ChunkError, LimitError, MetadataError, quote

try:
    import deflate
except ImportError:  # an optional dependency, which is two to three times as fast as zlib
    deflate = None

_GZIP = b"\x1f\x8b"
_ZSTD_FRAME = 0xFD2FB528
_ZSTD_SKIPPABLE = range(0x184D2A50, 0x184D2A60)
_ZSTD_BLOCK = 1 << 17
# Maximum size in bytes of a chunk for which an extra copy is faster than creating a decompression
# context.
_ZSTD_SMALL = 32 << 10
# Chunks of up to this size in bytes are decoded several at a time, so that the GIL is handed over
# less often. Decoding a larger chunk takes much longer than handing over the GIL.
_ZSTD_BATCHED = 128 << 10
# Mapping from each zlib level to the libdeflate level that compresses to the same size. Levels with
# the same number in both libraries are omitted.
_LEVELS = {4: 3}
_LZMA_MEMORY = 96 << 20
_WINDOW = 128 << 10
# Maximum size in bytes of a piece of decoded data. Such a piece stays in the CPU cache until it is
# copied, and free() keeps its memory in the process instead of returning it to the system.
_PIECE = 256 << 10
# Maximum number of members in a gzip, bz2 or xz file. A bgzip file of 2 GiB has a third of this
# number.
_MAX_MEMBERS = 100_000

_contexts = local()


def build_compressor(request: StepRequest) -> Step:
    """Build the `Step` for a compressor from numcodecs.

    Raises
    ------
    MetadataError
        If a parameter is unknown or invalid, or its type differs from the type of its default.
    LimitError
        If an LZMA filter requires too much memory.
    """
    name = request.spec.name
    defaults = request.construct(settings={"id": name}).get_config()
    codec = request.construct(settings=request.settings(**defaults))
    return COMPRESSORS[name](request.flow, codec)


def _stream(
    flow: Flow,
    codec: Any,
    make_decompressor: Callable[[], Any],
    magic: bytes | None,  # start of every stream; if None, only the first stream is decoded
    max_piece: int = sys.maxsize,  # per call, for decompressors that have an `unconsumed_tail`
) -> Step:
    """Build the `Step` for a standard-library compressor, limiting the size of the decoded data."""

    def pieces(data: Buffer) -> Iterator[bytes]:
        data, more = memoryview(data), True
        total = at = members = 0
        while more:
            stream = make_decompressor()
            while not stream.eof and at < len(data):
                # Pass one window at a time, because the decompressor copies all input after the end
                # of a member.
                window = data[at : at + _WINDOW]
                piece = stream.decompress(window, min(flow.bound + 1 - total, max_piece))
                total += len(piece)
                at += len(window) - len(getattr(stream, "unconsumed_tail", b""))
                if total > flow.bound:
                    flow.check_size(total, truncated=True)
                yield piece
            if not stream.eof:
                raise ChunkError(
                    f"the compressed stream is truncated: no end-of-stream marker after {total:,} "
                    f"decoded bytes ({flow.chunk})"
                )
            at -= len(stream.unused_data)
            members += 1
            follows = magic is not None and bytes(data[at : at + len(magic)]) == magic
            more = follows and total != flow.size
            if members > _MAX_MEMBERS:
                raise ChunkError(
                    "the chunk consists of too many compressed streams; expected at most "
                    f"{_MAX_MEMBERS:,}"
                )
        flow.check_size(total)

    def decode(data: Buffer, target: NDArray[Any] | None = None) -> Buffer:
        if flow.size is None:
            return b"".join(pieces(data))
        target = np.empty(flow.size, UINT8) if target is None else target
        at = 0
        for piece in pieces(data):
            target[at : at + len(piece)] = np.frombuffer(piece, UINT8)
            at += len(piece)
        return target

    fills = flow.size is not None
    return Step(decode, codec.encode, flow.compressed(), fills=fills)


def _deflate(flow: Flow, codec: Any) -> Step:
    name, size = codec.codec_id, flow.size
    wbits, magic = (31, _GZIP) if name == "gzip" else (15, None)
    slow = _stream(flow, codec, partial(zlib.decompressobj, wbits), magic, _PIECE)
    if deflate is None:
        return slow
    decompress = getattr(deflate, f"{name}_decompress")
    level = _LEVELS.get(codec.level, codec.level)
    encode = partial(getattr(deflate, f"{name}_compress"), compresslevel=level)

    def decode(data: Buffer) -> Buffer:
        try:
            result = decompress(data, size)
        except deflate.DeflateError:
            return slow.decode(data)  # raises an error that names the cause
        return result if len(result) == size else slow.decode(data)

    if not size or size >> 32:  # libdeflate needs the size as a 32-bit number
        return replace(slow, encode=encode)
    return replace(slow, encode=encode, decode=decode, fills=False)


def _lzma(flow: Flow, codec: Any) -> Step:
    if codec.format not in (lzma.FORMAT_XZ, lzma.FORMAT_ALONE, lzma.FORMAT_RAW):
        raise MetadataError(f'codec parameter "format" is {codec.format}; expected 1, 2 or 3')
    memory = _LZMA_MEMORY + 2 * flow.bound
    for lzma_filter in codec.filters or ():
        size = lzma_filter.get("dict_size", 0) if isinstance(lzma_filter, dict) else None
        if type(size) is not int:
            raise MetadataError(
                f'codec parameter "filters" contains {quote(lzma_filter)}; expected an object in '
                'which "dict_size", if present, is an integer'
            )
        if size > memory:
            raise LimitError(
                f'"dict_size" of the LZMA filter is {size:,}; expected at most {memory:,}'
            )
    raw = codec.format == lzma.FORMAT_RAW
    options = {"filters": codec.filters} if raw else {"memlimit": memory}
    make_decompressor = partial(lzma.LZMADecompressor, codec.format, **options)
    return _stream(flow, codec, make_decompressor, b"\xfd7zXZ")


def _framed(
    flow: Flow,
    encode: Callable[[Buffer], Buffer],
    measure: Callable[[Buffer], tuple[int | None, Buffer]],
    decompress: Callable[..., Any],
) -> Step:
    """Build the `Step` for a compressor whose frames declare the size of the decoded data.

    `measure` returns this size, and the frame without trailing bytes. If the size is unknown,
    `measure` returns None for it, and `decompress` is called without a limit. In this case,
    `measure` must itself check that the decoded data cannot be too large.
    """

    def decode(data: Buffer, target: NDArray[Any] | None = None) -> Buffer:
        size, frame = measure(data)
        if size is None:
            return decompress(frame)
        if size != flow.size:  # check before memory is allocated
            flow.check_size(size)
        if target is None:
            target = np.empty(size, UINT8)
        if size:
            decompress(frame, target)
        return target

    return Step(decode, encode, flow.compressed(), fills=True)


def _lz4(flow: Flow, codec: Any) -> Step:
    """Build the `Step` for numcodecs' LZ4 format: a four-byte size followed by one LZ4 block."""
    return _framed(flow, codec.encode, lambda data: (_number(data, 0, 4), data), lz4.decompress)


def _blosc(flow: Flow, codec: Any) -> Step:
    if codec.shuffle not in (-1, 0, 1, 2):
        raise MetadataError(f'codec parameter "shuffle" is {codec.shuffle}; expected 0, 1 or 2')
    element = np.dtype((np.void, flow.dtype.itemsize))  # Blosc uses only the item size

    def encode(data: Buffer) -> Buffer:
        return codec.encode(np.frombuffer(data, element))

    return _framed(flow, encode, _blosc_extent, blosc.decompress)


def _blosc_extent(data: Buffer) -> tuple[int, Buffer]:
    if len(data) < 16:
        raise ChunkError(
            f"the stored chunk is {len(data)} bytes long; expected at least 16, the size of a "
            "Blosc header"
        )
    size, length = struct.unpack_from("<4xI4xI", data)
    if not 16 <= length <= len(data):
        raise ChunkError(
            f"the Blosc header declares {length:,} bytes, but the chunk is {len(data):,} bytes long"
        )
    return size, data


def _pcodec(flow: Flow, codec: Any) -> Step:
    if flow.shape is None:
        raise MetadataError(
            f"codec {codec.codec_id} requires an array as input, but an earlier codec produces "
            f"bytes ({flow.chunk})"
        )

    # numcodecs stores times as integers.
    number = np.dtype("i8") if flow.dtype.kind in "mM" else flow.dtype

    def decompress(data: Buffer, target: NDArray[Any]) -> None:
        decompress_into = numcodecs.pcodec.standalone.simple_decompress_into
        try:
            progress = decompress_into(bytes(data), target.view(number))
        except RuntimeError:
            if not flow.rounded:
                raise
            progress = decompress_into(bytes(data), target.view(f"i{flow.dtype.itemsize}"))
        flow.check_count(progress.n_processed)
        if not progress.finished:
            flow.check_size(flow.bound + 1, truncated=True)

    def encode(data: Buffer) -> Buffer:
        return codec.encode(flow.elements(data))

    return _framed(flow, encode, lambda data: (flow.bound, data), decompress)


def _zstd(flow: Flow, codec: Any) -> Step:
    def measure(data: Buffer) -> tuple[int | None, Buffer]:
        declared, bound, end = _zstd_extent(data, flow.size)
        if declared is None and flow.size is None:
            flow.check_size(bound)
        return (flow.size if declared is None else declared), memoryview(data)[:end]

    step = _framed(flow, codec.encode, measure, _decompress_zstd)
    return replace(step, decode_many=_zstd_batch_decoder(flow.size))


@lru_cache(1)
def _zstandard() -> Any:
    """Return the optional ``zstandard`` package, or None if it is not installed."""
    try:
        import zstandard
    except ImportError:
        return None
    return zstandard


def _decompress_zstd(data: Buffer, target: NDArray[Any] | None = None) -> Any:
    """Decode Zstandard frames, optionally into an existing array."""
    # Decode small frames with the zstandard package, because it can reuse a decompression context.
    # numcodecs creates a new context for each call.
    zstandard = _zstandard()
    if zstandard is not None and target is not None and target.nbytes <= _ZSTD_SMALL:
        if not hasattr(_contexts, "zstd"):
            _contexts.zstd = zstandard.ZstdDecompressor()
        # If this fails, the numcodecs call below decodes several frames, or raises an error that
        # names the cause.
        with suppress(zstandard.ZstdError):
            content = _contexts.zstd.decompress(data, target.nbytes, allow_extra_data=False)
            if len(content) == target.nbytes:
                bytes_of(target)[:] = np.frombuffer(content, UINT8)
                return target
    return zstd.decompress(data, target)


def _zstd_batch_decoder(size: int | None) -> Callable[[Sequence[Buffer]], Any] | None:
    """Return a function that decodes several chunks of `size` bytes in one call.

    Return None if chunks of this size must be decoded one by one.
    """
    zstandard = _zstandard()
    if zstandard is None or not size or size > _ZSTD_BATCHED:
        return None
    if "multi_decompress_to_buffer" not in zstandard.backend_features:
        return None
    declared, length = zstandard.frame_content_size, size.to_bytes(8, sys.byteorder)

    def decode_many(chunks: Sequence[Buffer]) -> Any:
        with suppress(zstandard.ZstdError):
            if all(declared(data) == size for data in chunks):
                decoder = zstandard.ZstdDecompressor()
                return decoder.multi_decompress_to_buffer(list(chunks), length * len(chunks))
        return None  # the chunks must be decoded one by one

    return decode_many


def _zstd_extent(data: Buffer, expected: int | None) -> tuple[int | None, int, int]:
    """Return the declared size, maximum size and end offset of consecutive Zstandard frames.

    The sizes are the total sizes of the decoded frames in bytes. The declared size is None if any
    frame does not declare its size. The end offset is the position in bytes after the last frame.
    """
    # The format is described in RFC 8878, section 3.1. Data after `expected` bytes is ignored.
    declared: int | None = 0
    bound = at = 0
    while at < len(data) and (not at or expected is None or declared != expected):
        magic = _number(data, at, 4)
        if magic in _ZSTD_SKIPPABLE:
            at += 8 + _number(data, at + 4, 4)
            continue
        if magic != _ZSTD_FRAME or at + 4 == len(data):
            break
        descriptor = int(data[at + 4])
        single, wide = descriptor >> 5 & 1, descriptor >> 6
        field = 1 << wide if wide else single
        at += 6 - single + (0, 1, 2, 4)[descriptor & 3]
        size = _number(data, at, field) + (256 if field == 2 else 0)
        declared = declared + size if field and declared is not None else None
        at += field
        last = 0
        while not last and at < len(data):
            header = _number(data, at, 3)
            last, kind, size = header & 1, header >> 1 & 3, header >> 3
            at += 3 + (1 if kind == 1 else size)
            bound += size if kind < 2 else _ZSTD_BLOCK
        at += 4 * (descriptor >> 2 & 1) if last else len(data)
    if not 0 < at <= len(data):
        raise ChunkError("the Zstandard frame is missing or truncated")
    return declared, bound, at


def _number(data: Buffer, start: int, size: int) -> int:
    return int.from_bytes(data[start : start + size], "little")


COMPRESSORS: Mapping[str, Callable[[Flow, Any], Step]] = {
    "zlib": _deflate,
    "gzip": _deflate,
    "bz2": partial(_stream, make_decompressor=bz2.BZ2Decompressor, magic=b"BZh"),
    "lzma": _lzma,
    "zstd": _zstd,
    "lz4": _lz4,
    "blosc": _blosc,
    "pcodec": _pcodec,
}


def crc32(array: NDArray[Any]) -> int:
    """Return the CRC-32 checksum of the bytes of a C-contiguous array.

    The checksum is computed by libdeflate if it is installed, and otherwise by zlib, which takes
    four times as long.
    """
    library: Any = zlib if deflate is None else deflate
    return int(library.crc32(bytes_of(array)))
