"""Define the keys that `encoding=` accepts, and derive codecs from them.

Most of these keys are also accepted by xarray's netcdf4 engine or by its zarr engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np

from xr_nczarr.errors import ConflictError, UnsupportedError, quote, unknown
from xr_nczarr.formats import Format
from xr_nczarr.formats.documents import without
from xr_nczarr.formats.numcodecs_notation import converted
from xr_nczarr.model import CodecSpec
from xr_nczarr.netcdf import Layout

CODEC_KEYS = ("compressor", "compressors", "filters", "codecs")
_BY_FLAG = {"zlib": "zlib", "zstd": "zstd", "bzip2": "bz2", "blosc": "blosc_lz", "szip": "szip"}
FLAGS = (*_BY_FLAG, "shuffle", "fletcher32")
_COMPRESSIONS = {"zlib": "zlib", "gzip": "zlib", "zstd": "zstd", "bzip2": "bz2", "szip": "szip"}
_LEVELS = {  # the key of the level, and its range in zlib, bzip2, Blosc and zstd
    "zlib": ("level", 0, 9),
    "gzip": ("level", 0, 9),
    "bz2": ("level", 1, 9),
    "blosc": ("clevel", 0, 9),
    "zstd": ("level", 0, 22),
}
# The dtype and the other metadata of the array imply these codecs. Objects from arrays with the
# codecs json2 and msgpack2 are stored as variable-length strings or bytes.
_IMPLIED = frozenset({"bytes", "vlen-utf8", "vlen-bytes", "json2", "msgpack2", "endian"})

_CF_KEYS = """
    _FillValue missing_value dtype scale_factor add_offset units calendar _Unsigned coordinates
    grid_mapping char_dim_name _Encoding
"""
_NETCDF_KEYS = """
    complevel compression contiguous chunksizes endian blosc_shuffle szip_coding
    szip_pixels_per_block least_significant_digit significant_digits quantize_mode
    _nczarr_maxstrlen
"""
_ZARR_KEYS = "chunks shards fill_value serializer write_empty_chunks chunk_key_encoding"
_SET_BY_OPENING = "source original_shape preferred_chunks"
ENCODING_KEYS = frozenset(
    [*FLAGS, *CODEC_KEYS, *f"{_CF_KEYS} {_NETCDF_KEYS} {_ZARR_KEYS} {_SET_BY_OPENING}".split()]
)
"""All keys that the caller may pass. Other keys in an inherited encoding are ignored."""


def check_encoding(name: str, encoding: Mapping[str, Any]) -> None:
    """Check that the encoding of a variable is a mapping with known keys.

    Raises
    ------
    ValueError
        If the encoding is not a mapping.
    ConflictError
        If the encoding contains unknown keys.
    """
    if not isinstance(encoding, Mapping):  # xarray's wording, which its tests match
        raise ValueError(f"encoding must be castable to a dictionary, not {encoding!r}")
    unexpected = [key for key in encoding if key not in ENCODING_KEYS]
    if unexpected:
        raise ConflictError(
            f"unexpected encoding parameters {unexpected!r}",
            remedy=unknown("encoding key", str(unexpected[0]), ENCODING_KEYS).remedy,
            variable=name,
        )


def requested_codecs(
    encoding: Mapping[str, Any], zarr: Format, *, shuffles: bool
) -> list[dict[str, Any]]:
    """Return the codecs that an encoding requests, as numcodecs configurations.

    The codecs are listed in the order in which they are applied when encoding. If several keys
    request codecs, the key that comes first in the following list takes precedence:

    1. the keys of xarray's zarr engine, such as ``compressors``;
    2. netCDF's flags, such as ``zlib``, if they contradict ``codecs`` because the user has changed
       them since the variable was opened;
    3. ``codecs``, which is set when a variable is opened;
    4. netCDF's flags, if ``codecs`` is not set.

    If no codec is requested, chunks are stored uncompressed, as in `to_netcdf`. Every build of
    netCDF-C can then read them without plugins.

    If netCDF's flags request a compression method other than Blosc, the shuffle filter is added by
    default. It is not added if ``shuffle`` is False. In a Zarr version that has no filters, it is
    added only if ``shuffle`` is True.

    Pass ``shuffles=False`` for strings and variable-length items, because other programs reject
    shuffled chunks whose size is not a multiple of the element size. The shuffle filter is then
    added only if a key of xarray's zarr engine requests it.
    """
    if any(key in encoding for key in ("compressor", "compressors", "filters")):
        listed = _configurations(encoding, "filters", "serializer", "compressors", "compressor")
        return [codec for codec in listed if codec["id"] not in _IMPLIED]
    codecs = _configurations(encoding, "codecs")
    requested = encoding.get("codecs") is not None
    if not requested or not _flags_agree(encoding, [codec["id"] for codec in codecs]):
        codecs = _from_flags(encoding if zarr.has_filters else {"shuffle": False, **encoding})
        codecs = [*_configurations(encoding, "serializer"), *codecs]
    if not shuffles:
        codecs = [codec for codec in codecs if codec["id"] != "shuffle"]
    filtered = any(codec["id"] in ("shuffle", "fletcher32") for codec in codecs)
    renamed = dict.fromkeys(("gzip", "zlib"), zarr.deflate)
    if filtered and zarr.deflate == "gzip":  # readers that support these filters support zlib too
        renamed = {}
    return [
        {**codec, "id": renamed.get(codec["id"], codec["id"])}
        for codec in codecs
        if codec["id"] not in _IMPLIED
    ]


def requested_endian(encoding: Mapping[str, Any]) -> Any:
    """Return the byte order that an encoding requests: ``"little"``, ``"big"`` or ``"native"``.

    The key ``endian`` takes precedence over a ``bytes`` codec. If the encoding has neither the key
    nor the codec, the result is ``"native"``, and the data keeps its byte order.
    """
    # The encoding of an opened big-endian variable contains a ``bytes`` codec.
    codecs = _configurations(encoding, "serializer", "codecs")
    endian = next((codec.get("endian") for codec in codecs if codec["id"] == "bytes"), None)
    return encoding.get("endian") or endian or "native"


def requested_chunk_keys(encoding: Mapping[str, Any], zarr: Format) -> dict[str, str]:
    """Convert the ``chunk_key_encoding`` key to keyword arguments for `Format.chunk_keys`.

    If the key is not set, return an empty dict.

    Raises
    ------
    TypeError
        If the value is neither a mapping nor a zarr-python object with a ``to_dict`` method.
    ConflictError
        If the Zarr version does not support the chunk key encoding.
    """
    requested = encoding.get("chunk_key_encoding")
    if requested is None:
        return {}
    settings = requested.to_dict() if hasattr(requested, "to_dict") else requested
    if not isinstance(settings, Mapping):
        raise TypeError(
            "chunk_key_encoding must be a mapping or a zarr-python ChunkKeyEncoding, "
            f"not {settings!r}"
        )
    name, configuration = settings.get("name"), {**settings, **settings.get("configuration", {})}
    separator = configuration.get("separator", "/" if name == "default" else ".")
    names = zarr.chunk_key_encodings
    if name not in names or separator not in (".", "/"):
        raise ConflictError(
            f"Zarr version {zarr.version} does not support chunk_key_encoding={dict(settings)!r}",
            remedy=f"Choose {' or '.join(names)}, with the separator '.' or '/'"
            if names
            else "Leave out chunk_key_encoding",
        )
    return {"encoding": name, "separator": separator}


def requests_bytes(encoding: Mapping[str, Any]) -> bool:
    """Return whether an encoding requests variable-length storage of byte strings."""
    codecs = _configurations(encoding, "filters", "serializer", "codecs")
    return any(codec["id"] == "vlen-bytes" for codec in codecs)


def _flags_agree(encoding: Mapping[str, Any], names: Sequence[str]) -> bool:
    stored = {"zlib": "zlib" in names or "gzip" in names, "bzip2": "bz2" in names}
    return all(
        bool(encoding[flag]) == stored.get(flag, flag in names)
        for flag in FLAGS
        if flag in encoding
    )


def _configurations(encoding: Mapping[str, Any], *keys: str) -> list[dict[str, Any]]:
    """Return the codecs that an encoding specifies under `keys`, as numcodecs configurations.

    Raise UnsupportedError if a codec is specified in an unknown form.
    """
    codecs: list[dict[str, Any]] = []
    for value in map(encoding.get, keys):
        # "auto" requests no particular codec.
        if value is not None and not (isinstance(value, str) and value == "auto"):
            codecs += codec_configurations(value)
    return codecs


def codec_configurations(codecs: Any) -> list[dict[str, Any]]:
    """Convert a codec, or a list of codecs, to numcodecs configurations.

    Each codec is a codec object, a name, or a configuration. A configuration is in the notation of
    numcodecs or Zarr v3.

    Raises
    ------
    UnsupportedError
        If a codec is specified in any other form.
    """
    return [*map(_configuration, codecs if isinstance(codecs, list | tuple) else [codecs])]


def _configuration(codec: Any) -> dict[str, Any]:
    if hasattr(codec, "get_config"):
        codec = codec.get_config()
    elif hasattr(codec, "to_dict"):
        codec = codec.to_dict()
    if isinstance(codec, str):
        codec = {"name": codec}
    if isinstance(codec, Mapping) and isinstance(codec.get("id"), str):
        return {**converted(codec["id"], without(codec, ("id",)), "codecs"), "id": codec["id"]}
    if not isinstance(codec, Mapping) or not isinstance(codec.get("name"), str):
        raise UnsupportedError(
            'a codec must be a codec object, a name, or a mapping with the key "id" or "name", not '
            f"{quote(repr(codec))}"
        )
    name = codec["name"].removeprefix("numcodecs.")
    if name == "sharding_indexed":
        remedy = (
            'In the encoding, set "shards" to the shard shape, and "chunks" to the shape of the '
            "inner chunks"
        )
        raise UnsupportedError(
            "ShardingCodec is not supported in a variable's encoding", remedy=remedy
        )
    configuration = {  # zarr-python accepts members of its enumerations
        key: value.value if isinstance(value, Enum) else value
        for key, value in (codec.get("configuration") or {}).items()
    }
    if name == "transpose":
        configuration["order"] = list(configuration["order"])
    return {**converted(name, configuration, "codecs"), "id": name}


def _from_flags(encoding: Mapping[str, Any]) -> list[dict[str, Any]]:
    flagged = next((name for flag, name in _BY_FLAG.items() if encoding.get(flag)), "")
    compression = str(encoding.get("compression") or flagged)
    level = encoding.get("complevel")
    level = 4 if level is None else int(level)
    codecs: list[dict[str, Any]] = []
    if compression.startswith("blosc_"):
        cname = {"blosc_lz": "blosclz"}.get(compression, compression.removeprefix("blosc_"))
        shuffle = int(encoding.get("blosc_shuffle", 1))
        settings = {"cname": cname, "clevel": level, "shuffle": shuffle, "blocksize": 0}
        codecs.append({"id": "blosc", **settings})
    else:
        if encoding.get("shuffle", compression != ""):
            codecs.append({"id": "shuffle"})
        name = _COMPRESSIONS.get(compression, compression)
        if name and (level or name != "zlib"):
            codecs.append({"id": name, "level": level})
    if encoding.get("fletcher32"):
        codecs.append({"id": "fletcher32"})
    return codecs


def check_codecs(
    codecs: Sequence[Mapping[str, Any]], stored: np.dtype[Any], rank: int, layout: Layout
) -> None:
    """Check that requested codecs suit an array and its layout.

    `stored` and `rank` are the dtype and the number of dimensions of the array.

    Raises
    ------
    ConflictError
        If a compression level is outside the range that netCDF-C can read. In plain Zarr, negative
        levels are also allowed, because they have special meanings in zlib and zstd.
    UnsupportedError
        If a codec is configured for a dtype other than `stored`, or if the order of the transpose
        codec is not a permutation of the array's axes.
    """
    for codec in codecs:
        key, lowest, highest = _LEVELS.get(codec["id"], ("", 0, 0))
        level = codec.get(key)
        if isinstance(level, int) and not (
            (level < 0 and layout.is_plain_zarr) or lowest <= level <= highest
        ):
            raise ConflictError(
                f"the level of codec {codec['id']} must be from {lowest} to {highest}, not {level}"
            )
        dtype = codec.get("dtype")
        if isinstance(dtype, str) and np.dtype(dtype) != stored:
            raise UnsupportedError(
                f"codec {codec['id']} is configured for dtype {dtype}, but the array has dtype "
                f"{stored}"
            )
        axes = list(range(rank))
        if codec["id"] == "transpose" and sorted(codec["order"]) != axes:
            raise UnsupportedError(
                f"the order {codec['order']} of the transpose codec is not a permutation of the "
                f"axes {axes}"
            )


def codec_specs(
    codecs: Sequence[Mapping[str, Any]], itemsize: int, zarr: Format
) -> tuple[CodecSpec, ...]:
    """Convert numcodecs configurations to codec specifications for a Zarr version.

    If the version distinguishes between a compressor and filters, the last codec becomes the
    compressor, unless it is shuffle or transpose. `itemsize`, in bytes, becomes the element size of
    the shuffle codec.
    """
    specs = []
    for number, codec in enumerate(codecs, 1):
        name = codec["id"]
        configuration = {key: value for key, value in codec.items() if key != "id"}
        if name == "shuffle":
            configuration["elementsize"] = itemsize  # netCDF-C relies on it
        place = "compressor" if number == len(codecs) and name != "shuffle" else "filters"
        if not zarr.separates_compressor:
            place = "codecs"
        elif name == "transpose":
            place = "order"
        specs.append(CodecSpec(name, configuration, place))
    return tuple(specs)
