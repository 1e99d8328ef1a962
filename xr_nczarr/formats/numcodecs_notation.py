"""Parse codecs in numcodecs notation, and convert other notations to it."""

from __future__ import annotations

import re

from xr_nczarr.formats.documents import read_object, read_text, required, without
from xr_nczarr.model import CodecSpec, Json

# netCDF-C up to 4.9.3 wrote the parameters of these codecs as strings.
_NETCDF_CODECS = frozenset(("zlib", "gzip", "bz2", "zstd", "blosc", "shuffle", "szip"))
_INTEGER = re.compile("-?[0-9]{1,19}")
SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
"""The Zarr v3 names for the values 0, 1 and 2 of Blosc's ``shuffle`` parameter."""
POINTER_BYTES = 8
"""The element size that netCDF-C uses to shuffle strings, which are pointers in memory."""


def parse_codecs(value: Json, place: str, itemsize: int) -> tuple[CodecSpec, ...]:
    """Parse a codec or a list of codecs in numcodecs notation. None means no codecs.

    If a shuffle codec does not specify its element size, the size is 4 bytes, as in numcodecs. If
    the element size is 0, which netCDF-C can write, it is replaced with `itemsize` (in bytes).
    """
    listed = [] if value is None else value if isinstance(value, list) else [value]
    specs = []
    for document in listed:
        name = read_text(required(read_object(document, place), "id"), place)
        configuration = converted(name, without(document, ("id",)), place)
        if name == "shuffle":
            configuration["elementsize"] = configuration.get("elementsize", 4) or itemsize
        specs.append(CodecSpec(name, configuration, place, document))
    return tuple(specs)


def converted(name: str, configuration: dict[str, Json], place: str) -> dict[str, Json]:
    """Convert a codec's configuration to numcodecs notation.

    The following notations are converted:

    - Integers that netCDF-C writes as strings.
    - GDAL's notation for ``lzma``.
    - Zarr v3's notation for ``blosc``, which VirtualiZarr writes even in v2 metadata.

    Any other configuration is returned unchanged.
    """
    if name in _NETCDF_CODECS:
        configuration = {key: _as_integer(value) for key, value in configuration.items()}
    if name == "lzma" and "delta" in configuration:
        delta = {"id": 3, "dist": configuration["delta"]}
        lzma = {"id": 0x21, "preset": configuration.get("preset", 6)}
        return {"format": 1, "check": -1, "preset": None, "filters": [delta, lzma]}
    if name == "blosc":
        # Decoding reads the item size from the chunk, and encoding takes it from the dtype.
        configuration = without(configuration, ("typesize",))
        if isinstance(configuration.get("shuffle"), str):
            shuffle = read_text(configuration["shuffle"], place, SHUFFLES)
            configuration["shuffle"] = SHUFFLES.index(shuffle)
    return configuration


def _as_integer(value: Json) -> Json:
    return int(value) if isinstance(value, str) and _INTEGER.fullmatch(value) else value
