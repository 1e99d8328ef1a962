"""Convert between registered HDF5 filters and numcodecs codecs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from xr_nczarr.model import ArrayNode, CodecSpec, Json

DEFLATE, SHUFFLE, FLETCHER32 = 1, 2, 3
_SZIP, _BZIP2, _ZSTD, BLOSC = 4, 307, 32015, 32001
_NAMES = {DEFLATE: "zlib", SHUFFLE: "shuffle", FLETCHER32: "fletcher32", _SZIP: "szip"}
_LEVELED = {DEFLATE: "zlib", _BZIP2: "bz2", _ZSTD: "zstd"}
_NUMBERS = {"gzip": DEFLATE, "blosc": BLOSC} | {
    name: number for number, name in (_NAMES | _LEVELED).items()
}
_COMPRESSORS = ["blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd"]
_USUAL_LEVEL = 4


def codec_of(number: int, settings: Sequence[int]) -> CodecSpec:
    """Return the numcodecs codec that is equivalent to an HDF5 filter.

    If numcodecs has no such codec, the result is an unknown codec that is named after the filter.
    Decoding then raises an error that contains this name.
    """
    if number in _LEVELED and len(settings) == 1:
        return CodecSpec(_LEVELED[number], {"level": settings[0]})
    if number == BLOSC and len(settings) == 7 and settings[6] < len(_COMPRESSORS):
        level, shuffle, compressor = settings[4:]
        configuration = {"cname": _COMPRESSORS[compressor], "clevel": level, "shuffle": shuffle}
        return CodecSpec("blosc", {**configuration, "blocksize": 0})
    return CodecSpec(_NAMES.get(number, f"HDF5 filter {number}"))


def filter_of(spec: CodecSpec, node: ArrayNode) -> tuple[int, ...] | None:
    """Return the number and the settings of the HDF5 filter that is equivalent to a codec.

    Return None if there is no such filter.
    """
    number, configuration = _NUMBERS.get(spec.name), spec.configuration
    if number is None:
        return None
    if number == BLOSC:
        compressor = configuration.get("cname")
        if compressor not in _COMPRESSORS:
            return None
        itemsize, level = node.dtype.itemsize, _integer(configuration.get("clevel"))
        shuffle = _integer(configuration.get("shuffle"), 1)
        size = math.prod(node.chunk_shape) * itemsize
        return (number, 0, 0, itemsize, size, level, shuffle, _COMPRESSORS.index(compressor))
    return (number, _integer(configuration.get("level"))) if number in _LEVELED else (number,)


def _integer(value: Json, default: int = _USUAL_LEVEL) -> int:
    """Return a codec parameter, or `default` if it is not an integer."""
    return value if type(value) is int else default
