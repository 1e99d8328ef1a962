"""Build the ``encoding`` of opened datasets and variables, with the same keys as other engines."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from xr_nczarr.model import ArrayNode, CodecSpec
from xr_nczarr.netcdf import Group, Variable
from xr_nczarr.netcdf.annotations import DEFAULT_WIDTH, WIDTH, is_annotated
from xr_nczarr.options import OpenOptions

OPENING_KEY = "nczarr"

_COMPRESSORS = ("zlib", "gzip", "bz2", "zstd", "blosc")
_USUAL_LEVEL = 4
"""The ``complevel`` to report if netCDF does not support the actual level, such as zlib's -1."""
_FLAGS = {"gzip": "zlib", "bz2": "bzip2"} | {
    name: name for name in ("zlib", "zstd", "blosc", "shuffle", "fletcher32")
}
"""Mapping from names of codecs to the encoding flags of the netCDF engines."""
_NO_FLAGS = dict.fromkeys(_FLAGS.values(), False)
_PORTABLE = ("zlib", "gzip", "shuffle", "fletcher32")
"""Codecs that every build of netCDF-C and HDF5 supports."""
_LISTED_CHUNKS = 10_000


@dataclass(frozen=True, slots=True, repr=False)
class Opening:
    """The target and the options with which a dataset was opened, kept in the dataset's encoding.

    Attributes
    ----------
    target
        The target that the caller passed. If it is neither a path nor a URL, pickling replaces it
        with None.
    """

    target: Any
    options: OpenOptions

    def __reduce__(self) -> tuple[Any, ...]:
        is_location = isinstance(self.target, str | os.PathLike)
        return Opening, (self.target if is_location else None, self.options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __repr__(self) -> str:
        return "<how it was opened>"  # the options can hold secrets


def stored_encoding(
    node: ArrayNode, dimensions: Sequence[str], codecs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the encoding of an opened variable, with the keys that netCDF engines use.

    `codecs` is the result of `codec_encoding`.
    """
    encoding = {
        **codecs,
        "codecs": [*map(dict, codecs["codecs"])],
        # NCZarr stores the scalars of netCDF with one dimension.
        "original_shape": node.shape if dimensions else (),
    }
    if node.chunk_runs:
        # Tuples are xarray's notation for chunks of different lengths. ``chunks`` is not set, so a
        # copy chooses its own chunk grid.
        sizes = zip(dimensions, node.chunk_runs, node.shape, strict=True)
        encoding["preferred_chunks"] = {dim: chunk_lengths(runs, size) for dim, runs, size in sizes}
    else:
        # netCDF scalars have no chunks.
        encoding["chunks"] = node.chunk_shape if dimensions else ()
        encoding["preferred_chunks"] = dict(zip(dimensions, node.object_shape, strict=False))
        encoding["shards"] = node.object_shape if node.shards else None
    if dimensions and not node.chunk_runs:
        encoding["contiguous"] = False
        encoding["chunksizes"] = node.chunk_shape
    if node.dtype.kind in "iuf":
        # Set the dtype here, because xarray loses the byte order when it decodes the variable.
        encoding["dtype"] = node.dtype
    if node.dtype.byteorder == ">":
        # Do not set the key `endian`: xarray's netcdf4 engine would fail to write native numbers.
        encoding["codecs"].append({"id": "bytes", "endian": "big"})
    return encoding


def codec_encoding(specs: Sequence[CodecSpec], *, plain: bool) -> dict[str, Any]:
    """Return the encoding keys that describe codecs.

    The key ``codecs`` lists numcodecs configurations in encoding order, so that this package can
    write a copy with the same codecs. The netCDF engines ignore ``codecs``. Instead, they apply
    netCDF-style keys such as ``zlib`` and ``shuffle``, and fail on keys that they do not support.
    The netCDF-style keys of some codecs are therefore left out:

    - Blosc gets no key, because the netCDF engines would also need the name of Blosc's internal
      compressor.
    - If `plain` is True, a codec gets a key only if every build of netCDF-C and HDF5 supports the
      codec. For example, zstd gets no key. Pass True if the array is plain Zarr.
    """
    codecs: list[dict[str, Any]] = []
    encoding = {**_NO_FLAGS, "complevel": 0, "codecs": codecs}
    for spec in specs:
        name, configuration = spec.name, spec.configuration
        if name not in ("bytes", "transpose"):  # stored_encoding adds the byte order
            codecs.append({"id": name, **configuration})
        if plain and name in _FLAGS and name not in _PORTABLE:
            encoding.pop(_FLAGS[name], None)
            continue
        if name in _FLAGS:
            encoding[_FLAGS[name]] = True
        if name in _COMPRESSORS:
            # An invalid level raises an error when values are read.
            level = configuration.get("level", configuration.get("clevel"))
            is_usable = type(level) is int and 0 <= level < 1000
            encoding["complevel"] = level if is_usable else _USUAL_LEVEL
        if name == "blosc":
            encoding.pop("blosc", None)
    return encoding


def chunk_lengths(runs: Sequence[tuple[int, int]], size: int) -> tuple[int, ...] | int:
    """Return the lengths of all chunks along a dimension of length `size`.

    `runs` is run-length-encoded: it contains (chunk length, repeat count) pairs. If there are more
    than 10,000 chunks, only the largest length is returned, as an int.
    """
    if sum(number for _, number in runs) > _LISTED_CHUNKS:
        return max(length for length, _ in runs)
    lengths = []
    for length in (length for length, number in runs for _ in range(number)):
        if size > 0:
            lengths.append(min(length, size))
        size -= length
    return tuple(lengths) or (0,)


def xarray_attributes(holder: Group | Variable) -> dict[str, Any]:
    """Return the attributes of a group or variable in the form that xarray expects.

    In NCZarr stores, a list that contains a single string is replaced with that string. In plain
    Zarr, such a list is kept. Attributes that declare the width of fixed-width strings are left
    out, because they describe how strings are stored.
    """
    typed = holder.node is not None and is_annotated(holder.node)
    return {
        name: value[0] if typed and value.__class__ is list and len(value) == 1 else value
        for name, value in holder.attributes.items()
        if name not in (WIDTH, DEFAULT_WIDTH)
    }
