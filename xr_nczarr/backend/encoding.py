"""What xarray's ``encoding`` says of a stored variable, in netCDF's terms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from xr_nczarr.model import ArrayNode

_COMPRESSORS = ("zlib", "gzip", "bz2", "zstd", "blosc")
_LEVELS = ("level", "clevel")
_LISTED_CHUNKS = 10_000


def stored_encoding(node: ArrayNode, dimensions: Sequence[str], source: str) -> dict[str, Any]:
    """Give the encoding that the netCDF world understands, and the codecs as they are.

    ``codecs`` holds numcodecs configurations in the order of encoding, so that a copy can be
    written the same way; other writers ignore it.
    """
    names = [codec.name for codec in node.codecs]
    encoding: dict[str, Any] = {
        "zlib": "zlib" in names or "gzip" in names,
        "zstd": "zstd" in names,
        "bzip2": "bz2" in names,
        "blosc": "blosc" in names,
        "shuffle": "shuffle" in names,
        "fletcher32": "fletcher32" in names,
        "complevel": 0,
        "codecs": [
            {"id": codec.name, **codec.configuration}
            for codec in node.codecs
            if codec.name not in ("bytes", "transpose")
        ],
        "source": source,
        "original_shape": node.shape,
    }
    for codec in node.codecs:
        if codec.name in _COMPRESSORS:
            levels = [codec.configuration[key] for key in _LEVELS if key in codec.configuration]
            # netcdf-c writes text. A level that is none is an error of its variable, on access.
            if levels and re.fullmatch("-?[0-9]{1,3}", str(levels[0])):
                encoding["complevel"] = int(levels[0])
    if node.chunk_runs:
        # xarray's form of a grid whose chunks are not all alike; a copy gets one of its own.
        sizes = zip(dimensions, node.chunk_runs, node.shape, strict=True)
        encoding["preferred_chunks"] = {dim: run_lengths(each, size) for dim, each, size in sizes}
    elif dimensions:
        encoding["contiguous"] = False
        encoding["chunksizes"] = encoding["chunks"] = node.chunk_shape
        encoding["preferred_chunks"] = dict(zip(dimensions, node.object_shape, strict=True))
    if node.shards and not node.chunk_runs:
        encoding["shards"] = node.object_shape
    if node.dtype.kind in "iuf":
        # Said here, since xarray forgets the byte order when it decodes.
        encoding["dtype"] = node.dtype
    if node.dtype.byteorder == ">":
        encoding["endian"] = "big"
    return encoding


def run_lengths(runs: Sequence[tuple[int, int]], size: int) -> tuple[int, ...] | int:
    """Give the lengths of all chunks along a dimension; of too many, the largest alone."""
    if sum(number for _, number in runs) > _LISTED_CHUNKS:
        return max(length for length, _ in runs)
    lengths = []
    for length in (length for length, number in runs for _ in range(number)):
        if size > 0:
            lengths.append(min(length, size))
        size -= length
    return tuple(lengths) or (0,)
