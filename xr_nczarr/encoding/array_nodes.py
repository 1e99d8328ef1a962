"""Build array nodes for encoded variables, and choose their chunks, shards and codecs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from xr_nczarr.codecs import check_fill, check_known, compile_codec, registered_kind
from xr_nczarr.encoding.encoding_keys import (
    check_codecs,
    codec_specs,
    requested_chunk_keys,
    requested_codecs,
)
from xr_nczarr.encoding.variables import EncodedVariable
from xr_nczarr.errors import ConflictError, ErrorContext, NczarrError
from xr_nczarr.formats.numcodecs_notation import POINTER_BYTES
from xr_nczarr.model import ArrayNode, CodecSpec, ShardSpec
from xr_nczarr.netcdf import Layout
from xr_nczarr.netcdf.types import zero

_TARGET_BYTES = 4 << 20  # per chunk
# Minimum lengths of one-dimensional chunks. With shorter chunks, a coordinate that grows by one
# value per append would be stored as one object per value.
_MIN_GROWING_BYTES = 4096
_MIN_GROWING_SIZE = 512


def make_node(
    encoded: EncodedVariable,
    path: str,
    layout: Layout,
    growing: Sequence[bool],
    *,
    allow_longer: bool,
) -> tuple[ArrayNode, str, str]:
    """Build the array node in which to store an encoded variable.

    The chunks and codecs are either requested by the caller, or inherited from the store from which
    the variable was opened.

    Parameters
    ----------
    path
        Path of the variable in the hierarchy.
    growing
        For each dimension, whether the array may become longer along that dimension.
    allow_longer
        Whether chunks of a one-dimensional array may be longer than the array; see `chunk_shape`.

    Returns
    -------
    The node and two messages: how the inherited chunk shape was changed, and why the inherited
    codecs were dropped. A message is empty if it has nothing to report.

    Raises
    ------
    NczarrError
        If the Zarr version cannot store the array, if a requested codec is unavailable, or if the
        requested chunks, shards or codecs do not suit the array.
    TypeError
        If a chunk length is not an integer, or ``chunk_key_encoding`` has the wrong type.
    """
    encoding, explicit = encoded.encoding, encoded.explicit
    zarr = layout.zarr
    shape = tuple(encoded.data.shape)
    dtype = encoded.data.dtype
    dtype = np.dtype(object) if dtype.kind == "O" else dtype  # drops xarray's metadata
    blocks = getattr(encoded.data, "chunks", None)
    items = "vlen-utf8" if encoded.kind == "string" else "vlen-bytes"
    place = "filters" if zarr.separates_compressor else "codecs"
    leading = (CodecSpec(items, {}, place),) if dtype.hasobject else ()
    itemsize = dtype.itemsize
    if encoded.kind == "string" and not dtype.hasobject:
        itemsize = POINTER_BYTES
    adapted = dropped = ""
    with ErrorContext(variable=path):
        chunks, shards = requested_shapes(encoding, shape, characters=encoded.kind == "char")
        contiguous = bool(encoding.get("contiguous"))
        if not explicit:
            chunks, shards, adapted = _adapted_shapes(
                chunks, shards, encoding, encoded.dimensions, shape, growing
            )
            contiguous = contiguous and _has_original_shape(encoding, shape)
        if chunks is None and contiguous:
            chunks = shape
        chunk = chunk_shape(chunks, shape, dtype, blocks=blocks, allow_longer=allow_longer)
        if layout.limits_chunks:
            chunk = tuple(map(min, chunk, [max(1, length) for length in shape]))
        # If the Zarr version has no shards, inherited shards are ignored.
        shards = shards if explicit or zarr.has_shards else None
        required = explicit or chunks == chunk
        uncompressed = ArrayNode(
            path=path,
            shape=shape,
            dtype=dtype,
            chunk_shape=chunk,
            fill_value=encoded.fill_value,
            codecs=leading,
            chunk_keys=zarr.chunk_keys(path, **requested_chunk_keys(encoding, zarr)),
            shards=shard_specs(shards, chunk, shape, required=required),
        )
        try:
            shuffles = encoded.kind != "string" and not dtype.hasobject
            codecs = requested_codecs(encoding, zarr, shuffles=shuffles)
            for codec in codecs:
                check_known(codec["id"])
            check_codecs(codecs, dtype, len(shape), layout)
            specs = (*leading, *codec_specs(codecs, itemsize, zarr))
            node = replace(uncompressed, codecs=zarr.complete(specs, registered_kind))
            compile_codec(node)  # raises an error if a parameter of a codec is invalid
            if encoding.get("fill_value") is None:
                node = _with_encodable_fill(node)
            check_fill(node)
            zarr.render_node(node)
        except NczarrError as error:
            if explicit:
                raise
            node, dropped = uncompressed, error.problem
            zarr.render_node(node)  # fails again if the codecs were not the cause
    return node, adapted, dropped


def _with_encodable_fill(node: ArrayNode) -> ArrayNode:
    """Replace the fill value with 0 (or an empty string) if the codecs cannot encode it."""
    try:
        check_fill(node)
    except ConflictError:
        return replace(node, fill_value=zero(node.dtype))
    return node


def requested_shapes(
    encoding: Mapping[str, Any], shape: Sequence[int], *, characters: bool
) -> tuple[tuple[Any, ...] | None, dict[str, Any] | None]:
    """Return the chunk lengths and the shards that an encoding requests.

    Chunk lengths are requested with the key ``chunks`` or ``chunksizes``. ``chunks`` takes
    precedence, as in `to_zarr`. However, opening a variable sets both keys to the same lengths. If
    the user has since changed only ``chunksizes``, it takes precedence. The value ``chunks="auto"``
    has the same meaning as no value. If neither key is set, the lengths are None.

    Shards are requested with the key ``shards``. They are returned as a dict with the member
    ``shape`` and any other settings, such as ``index_location``. If the key is not set, they are
    None.

    If a shape is specified as a single integer, all dimensions get this length.

    Parameters
    ----------
    characters
        Whether the array stores strings as characters along its last dimension. A requested shape
        that lacks this dimension is extended so that each chunk contains whole strings.
    """

    def lengths(requested: Any) -> Any:
        if isinstance(requested, int | np.integer):
            return (requested,) * len(shape)
        if not isinstance(requested, list | tuple):
            return requested
        lacks_last = characters and len(requested) == len(shape) - 1
        return (*requested, shape[-1]) if lacks_last else tuple(requested)

    chunks, chunksizes, shards = map(encoding.get, ("chunks", "chunksizes", "shards"))
    preferred = tuple((encoding.get("preferred_chunks") or {}).values())
    unset = chunks is None or isinstance(chunks, str)
    if unset or (chunksizes is not None and chunks == preferred):
        chunks = chunksizes
    if shards is not None:
        settings = shards if isinstance(shards, Mapping) else {"shape": shards}
        shards = {**settings, "shape": lengths(settings.get("shape"))}
    return lengths(chunks), shards


def _adapted_shapes(
    chunks: tuple[Any, ...] | None,
    shards: dict[str, Any] | None,
    encoding: Mapping[str, Any],
    dimensions: Sequence[str],
    shape: tuple[int, ...],
    growing: Sequence[bool],
) -> tuple[tuple[Any, ...] | None, dict[str, Any] | None, str]:
    """Adapt inherited chunk lengths and shards to an array, and describe the changes.

    The lengths are None if they cannot be adapted. The description is empty if nothing changed.
    """
    if chunks is None:
        return None, shards, ""
    # As in `to_zarr`, inherited shapes are kept where possible.
    inherited = f"chunks {tuple(chunks)} inherited from the source"
    if any(isinstance(size, Sequence) for size in chunks):
        return None, None, f"{inherited} have varying lengths"
    if len(chunks) != len(shape):
        return None, None, f"{inherited} do not have {len(shape)} dimensions"
    _check_integers(chunks)
    axes = _original_axes(encoding, dimensions, shape)  # the data may have been transposed
    if axes is None:
        return None, None, f"{inherited} are for a different order of axes"
    resized = not _has_original_shape(encoding, shape)
    shortened = {
        axis: max(1, length)
        for axis, (source, length) in enumerate(zip(axes, shape, strict=True))
        if resized and chunks[source] > length and not growing[axis]
    }

    def reordered(lengths: Sequence[int]) -> tuple[int, ...]:
        return tuple(shortened.get(axis, lengths[source]) for axis, source in enumerate(axes))

    adapted = reordered(chunks)
    lengths = shards and shards["shape"]
    if shards and isinstance(lengths, tuple) and len(lengths) == len(axes):
        shards = {**shards, "shape": reordered(lengths)}
    return adapted, shards, "" if adapted == tuple(chunks) else f"{inherited} were adjusted"


def _has_original_shape(encoding: Mapping[str, Any], shape: tuple[int, ...]) -> bool:
    """Return whether an array has the shape that it had when the variable was opened."""
    return tuple(encoding.get("original_shape") or ()) == shape


def _original_axes(
    encoding: Mapping[str, Any], dimensions: Sequence[str], shape: Sequence[int]
) -> Sequence[int] | None:
    """Return the axis that each dimension had when the variable was opened, or None if unknown."""
    rank = len(shape)
    names = [str(name) for name in encoding.get("preferred_chunks") or ()]
    if len(names) == rank == len(set(dimensions)):
        # Renamed dimensions are assumed to have kept their order.
        renamed = iter([axis for axis, name in enumerate(names) if name not in dimensions])
        return [names.index(dim) if dim in names else next(renamed) for dim in dimensions]
    original = tuple(encoding.get("original_shape") or shape)
    permuted = original != tuple(shape) and sorted(original) == sorted(shape)
    return None if permuted else range(rank)


def chunk_shape(
    requested: Sequence[Any] | None,
    shape: Sequence[int],
    dtype: np.dtype[Any],
    *,
    blocks: Sequence[Sequence[int]] | None,
    allow_longer: bool,
) -> tuple[int, ...]:
    """Choose the shape of the stored chunks.

    The shape is determined by the first of these rules that applies:

    1. If a shape is `requested`, that shape is used. A length of -1 stands for the length of the
       dimension.
    2. If `blocks` (the chunks of a dask array) is given, stored chunks are as long as the longest
       block along each dimension.
    3. Otherwise, the array is halved repeatedly, along its longest dimension, until a chunk is at
       most 4 MiB.

    If `allow_longer` is True, the array must be one-dimensional. Rule 3 then starts with a chunk of
    at least 512 elements and at least 4 KiB, even if the array is shorter. netCDF-C uses the
    same 4 KiB minimum.

    Raises
    ------
    ConflictError
        If the requested shape and the array differ in rank, if a length is less than -1, or if a
        length is 0 along a dimension that is not empty.
    TypeError
        If a requested length is not an integer.
    """
    if requested is not None:
        _check_integers(requested)
        pairs = list(zip(requested, shape, strict=False))
        if len(requested) != len(shape) or any(
            size < -1 or (size == 0 and length > 0) for size, length in pairs
        ):
            raise ConflictError(
                f"chunks {requested!r} do not fit an array of shape {tuple(shape)}",
                remedy="Pass a positive length for each dimension, or -1 for the whole dimension",
            )
        return tuple(max(1, length if size == -1 else int(size)) for size, length in pairs)
    if blocks:
        return tuple(max(1, *sizes) for sizes in blocks)
    chunk = [max(1, size) for size in shape]
    if allow_longer:
        chunk[0] = max(chunk[0], _MIN_GROWING_SIZE, _MIN_GROWING_BYTES // dtype.itemsize)
    while math.prod(chunk) * dtype.itemsize > _TARGET_BYTES and max(chunk) > 1:
        longest = chunk.index(max(chunk))
        chunk[longest] = -(-chunk[longest] // 2)
    return tuple(chunk)


def _check_integers(sizes: Sequence[Any]) -> None:
    if any(isinstance(size, bool) or not isinstance(size, int | np.integer) for size in sizes):
        raise TypeError(f"chunk sizes must be integers, not {sizes!r}")


def shard_specs(
    requested: Mapping[str, Any] | None,
    chunk: tuple[int, ...],
    array: Sequence[int],
    *,
    required: bool,
) -> tuple[ShardSpec, ...]:
    """Return the requested shards as a tuple of at most one `ShardSpec`.

    The tuple is empty if no shards are requested, or if invalid shards are ignored.

    Parameters
    ----------
    requested
        The shards as returned by `requested_shapes`, or None. As in zarr-python, the shard shape
        may be ``"auto"``. With this shape, shards are two chunks long along each dimension that has
        more than eight full chunks, and one chunk long along all other dimensions.
    chunk, array
        The shapes of a chunk and of the whole array.
    required
        Whether invalid shards cause an error. If False, they are ignored.

    Raises
    ------
    ConflictError
        If `required` is True and the shards are invalid: their shape is not a multiple of the chunk
        shape, or their ``index_location`` is neither ``"start"`` nor ``"end"``.
    """
    if requested is None:
        return ()
    shape, location = requested["shape"], requested.get("index_location", "end")
    if isinstance(shape, str) and shape == "auto":
        sizes = zip(array, chunk, strict=True)
        shape = tuple([part * (2 if whole // part > 8 else 1) for whole, part in sizes])
    is_multiple = (
        isinstance(shape, tuple)
        and len(shape) == len(chunk)
        and all(isinstance(whole, int | np.integer) and whole > 0 for whole in shape)
        and not any(whole % part for whole, part in zip(shape, chunk, strict=True))
    )
    if is_multiple and location in ("start", "end"):
        index_codecs = (CodecSpec("bytes", {"endian": "little"}), CodecSpec("crc32c"))
        return (ShardSpec(tuple(map(int, shape)), index_codecs, location == "start"),)
    if required and is_multiple:
        raise ConflictError(f"index_location must be 'start' or 'end', not {location!r}")
    if required:
        raise ConflictError(
            f"shard shape {shape!r} is not a multiple of chunk shape {chunk}",
            remedy="Pass a shard shape in which each length is a multiple of the chunk length",
        )
    return ()
