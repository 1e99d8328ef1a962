"""Build array nodes for encoded variables, with chunks, shards and codecs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from xr_nczarr.codecs import check_codec, check_fill, registered_kind
from xr_nczarr.encoding.encoding_keys import (
    check_codecs,
    codec_specs,
    requested_chunk_keys,
    requested_codecs,
)
from xr_nczarr.encoding.variables import EncodedVariable
from xr_nczarr.errors import ConflictError, NczarrError, Place
from xr_nczarr.model import ArrayNode, CodecSpec, ShardSpec
from xr_nczarr.netcdf import Layout
from xr_nczarr.netcdf.types import zero

_POINTER_BYTES = 8
_TARGET_BYTES = 4 << 20  # per chunk
# Minimum lengths of one-dimensional chunks. With shorter chunks, a coordinate that grows by one
# value per append would have one object per value.
_MIN_GROWING_BYTES = 4096
_MIN_GROWING_SIZE = 512
_CHUNK_KEYS = frozenset(("chunks", "chunksizes", "shards", "contiguous"))


def make_node(
    encoded: EncodedVariable,
    path: str,
    layout: Layout,
    growing: Sequence[bool],
    *,
    lengthened: bool,
) -> tuple[ArrayNode, str, str]:
    """Build the array node in which to store an encoded variable.

    The chunks and codecs can be requested by the caller, or inherited from the store from which the
    variable was opened.

    Parameters
    ----------
    growing
        For each dimension, whether the array may become longer along that dimension.
    lengthened
        Whether chunks of a one-dimensional array may be longer than the array; see `chunk_shape`.

    Returns
    -------
    The node, a sentence on how the inherited chunk shape was adapted, and the reason why inherited
    codecs were dropped. If nothing was adapted, the sentence is empty. If no codecs were dropped,
    the reason is empty.

    Raises
    ------
    NczarrError
        If the caller requested codecs that are unavailable or unsuitable.
    """
    encoding, explicit = encoded.encoding, encoded.explicit
    zarr = layout.zarr
    shape = tuple(encoded.data.shape)
    dtype = encoded.data.dtype
    dtype = np.dtype(object) if dtype.kind == "O" else dtype  # without xarray's metadata
    blocks = getattr(encoded.data, "chunks", None)
    if encoded.kind == "char":
        encoding = _with_character_length(encoding, shape)
    items = "vlen-utf8" if encoded.kind == "string" else "vlen-bytes"
    place = "filters" if zarr.separates_compressor else "codecs"
    leading = (CodecSpec(items, {}, place),) if dtype.hasobject else ()
    itemsize = dtype.itemsize
    if encoded.kind == "string" and not dtype.hasobject:
        itemsize = _POINTER_BYTES
    fitted = dropped = ""
    with Place(variable=path):
        if not explicit:
            encoding, fitted = _fit_inherited_chunks(encoding, encoded.dimensions, shape, growing)
        chunk = chunk_shape(encoding, shape, dtype, blocks=blocks, lengthened=lengthened)
        if layout.limits_chunks:
            chunk = tuple(map(min, chunk, [max(1, length) for length in shape]))
        # If the Zarr version has no shards, those inherited from the opened store are ignored.
        requested = encoding.get("shards") if explicit or zarr.has_shards else None
        required = explicit or encoding.get("chunks") == chunk
        shards = _shard_specs(requested, chunk, shape, required=required)
        uncompressed = ArrayNode(
            path=path,
            shape=shape,
            dtype=dtype,
            chunk_shape=chunk,
            fill_value=encoded.fill_value,
            codecs=leading,
            chunk_keys=zarr.chunk_keys(path, **requested_chunk_keys(encoding, zarr)),
            shards=shards,
        )
        try:
            codecs = requested_codecs(encoding, zarr, shuffles=not dtype.hasobject)
            check_codecs(codecs, dtype, len(shape), layout)
            specs = (*leading, *codec_specs(codecs, itemsize, zarr))
            node = replace(uncompressed, codecs=zarr.complete(specs, registered_kind))
            check_codec(node)
            if encoding.get("fill_value") is None:
                node = _with_encodable_fill(node)
            check_fill(node)
            zarr.render_node(node)
        except NczarrError as error:
            if explicit:
                raise
            node, dropped = uncompressed, error.problem
            zarr.render_node(node)  # fails again if the codecs were not the cause
    return node, fitted, dropped


def _with_character_length(
    encoding: Mapping[str, Any], shape: tuple[int, ...]
) -> Mapping[str, Any]:
    """Add the character dimension to the chunks and shards in the encoding of a string variable.

    The strings are stored as arrays of characters, with the characters of each string along an
    additional dimension. The shapes in the encoding lack this dimension, and are extended so that
    a chunk always contains whole strings.
    """
    for key in ("chunks", "chunksizes", "shards"):
        sizes = encoding.get(key)
        if isinstance(sizes, list | tuple) and len(sizes) == len(shape) - 1:
            encoding = {**encoding, key: (*sizes, shape[-1])}
    return encoding


def _with_encodable_fill(node: ArrayNode) -> ArrayNode:
    """Replace the fill value with zero if the codecs cannot encode it."""
    try:
        check_fill(node)
    except ConflictError:
        return replace(node, fill_value=zero(node.dtype))
    return node


def _fit_inherited_chunks(
    encoding: Mapping[str, Any],
    dimensions: Sequence[str],
    shape: Sequence[int],
    growing: Sequence[bool],
) -> tuple[dict[str, Any], str]:
    """Adapt inherited chunk and shard shapes to an array.

    `encoding` contains these shapes, and was set when the variable was opened. Like `to_zarr`, this
    function keeps the shapes where possible:

    - If the data was transposed, the chunk lengths are reordered accordingly. The key
      ``preferred_chunks`` contains the dimensions in their original order.
    - A chunk that is longer than its dimension is shortened, unless the array may grow along that
      dimension or still has its original shape.
    - If the rank has changed, or the original order of the axes is unknown, the shapes are dropped.

    Return the adapted encoding, and a sentence that describes the changes. If nothing changed, the
    sentence is empty.
    """
    fitted = {key: value for key, value in encoding.items() if key not in _CHUNK_KEYS}
    unchanged = tuple(encoding.get("original_shape") or ()) == tuple(shape)
    if encoding.get("contiguous") and unchanged:
        fitted["contiguous"] = True
    sizes, shards = _requested_lengths(encoding), encoding.get("shards")
    if sizes is None:
        return fitted | ({} if shards is None else {"shards": shards}), ""
    if isinstance(sizes, int | np.integer):
        sizes = (sizes,) * len(shape)
    inherited = f"chunks {tuple(sizes)} inherited from the source"
    if len(sizes) != len(shape) or any(isinstance(size, Sequence) for size in sizes):
        return fitted, f"{inherited} do not have {len(shape)} dimensions"
    _check_integers(sizes)
    axes = _original_axes(encoding, dimensions, shape)
    if axes is None:
        return fitted, f"{inherited} are for a different order of axes"
    shortened = {
        axis: max(1, length)
        for axis, (source, length) in enumerate(zip(axes, shape, strict=True))
        if sizes[source] > length and not growing[axis] and not unchanged
    }
    fitted["chunks"] = _reordered(sizes, axes, shortened)
    if shards is not None:
        fitted["shards"] = _reordered_shards(shards, axes, shortened)
    same = fitted["chunks"] == tuple(sizes)
    return fitted, "" if same else f"{inherited} were adjusted"


def _reordered(
    lengths: Sequence[int], axes: Sequence[int], shortened: Mapping[int, int]
) -> tuple[int, ...]:
    """Return the chunk lengths along the new axes.

    `axes` contains the old axis for each new axis. `shortened` maps new axes to chunk lengths that
    replace the old ones.
    """
    return tuple(shortened.get(axis, lengths[source]) for axis, source in enumerate(axes))


def _reordered_shards(shards: Any, axes: Sequence[int], shortened: Mapping[int, int]) -> Any:
    """Return the value of the ``shards`` key with its lengths reordered for the new axes.

    A value without one length per axis, such as ``"auto"``, is returned unchanged.
    """
    settings = shards if isinstance(shards, Mapping) else {"shape": shards}
    shape = settings.get("shape")
    if not isinstance(shape, list | tuple) or len(shape) != len(axes):
        return shards
    return {**settings, "shape": _reordered(shape, axes, shortened)}


def _requested_lengths(encoding: Mapping[str, Any]) -> Any:
    """Return the chunk lengths under ``chunks`` or ``chunksizes``, or None if neither key is set.

    When a variable is opened, both keys are set to the same lengths. If they differ because the
    user has changed one of them, ``chunks`` takes precedence over ``chunksizes``, as in `to_zarr`.
    """
    chunks, chunksizes = encoding.get("chunks"), encoding.get("chunksizes")
    if chunks is None or isinstance(chunks, str):
        return chunksizes
    preferred = tuple((encoding.get("preferred_chunks") or {}).values())
    return chunks if chunksizes is None or chunks != preferred else chunksizes


def _original_axes(
    encoding: Mapping[str, Any], dimensions: Sequence[str], shape: Sequence[int]
) -> Sequence[int] | None:
    """Return the axis that each dimension had in the source, or None if this is unknown.

    Renamed dimensions are assumed to have kept their order.
    """
    rank = len(shape)
    names = [str(name) for name in encoding.get("preferred_chunks") or ()]
    if len(names) == rank == len(set(dimensions)):
        renamed = iter([axis for axis, name in enumerate(names) if name not in dimensions])
        return [names.index(dim) if dim in names else next(renamed) for dim in dimensions]
    original = tuple(encoding.get("original_shape") or shape)
    permuted = original != tuple(shape) and sorted(original) == sorted(shape)
    return None if permuted else range(rank)


def chunk_shape(
    encoding: Mapping[str, Any],
    shape: Sequence[int],
    dtype: np.dtype[Any],
    *,
    blocks: Sequence[Sequence[int]] | None,
    lengthened: bool,
) -> tuple[int, ...]:
    """Choose the shape of the stored chunks.

    The shape is determined by the first of these rules that applies:

    1. If the encoding specifies a shape, that shape is used. A length of -1 stands for the length
       of the dimension. The key ``contiguous`` stands for one chunk with the shape of the array.
    2. If `blocks` is given (the chunks of a dask array), the length of a stored chunk along each
       dimension is that of the longest block.
    3. Otherwise, the array is halved repeatedly, along its longest dimension, until a chunk has at
       most 4 MiB.

    If `lengthened` is True (only for one-dimensional arrays), rule 3 makes chunks of at least 512
    elements and, as in netCDF-C, at least 4 KiB.

    Raises
    ------
    ConflictError
        If the requested shape differs in rank from the array, or has a length below -1.
    TypeError
        If a requested length is not an integer.
    """
    sizes = _requested_lengths(encoding)
    if isinstance(sizes, int | np.integer):
        sizes = (sizes,) * len(shape)
    if sizes is not None:
        _check_integers(sizes)
        if len(sizes) != len(shape) or min(sizes, default=0) < -1:
            raise ConflictError(f"chunks {sizes!r} do not fit an array of shape {tuple(shape)}")
        pairs = zip(sizes, shape, strict=True)
        return tuple(max(1, length if size == -1 else int(size)) for size, length in pairs)
    if encoding.get("contiguous"):
        return tuple(max(1, size) for size in shape)
    if blocks:
        return tuple(max(1, *sizes) for sizes in blocks)
    chunk = [max(1, size) for size in shape]
    if lengthened:
        chunk[0] = max(chunk[0], _MIN_GROWING_SIZE, _MIN_GROWING_BYTES // dtype.itemsize)
    while math.prod(chunk) * dtype.itemsize > _TARGET_BYTES and max(chunk) > 1:
        longest = chunk.index(max(chunk))
        chunk[longest] = -(-chunk[longest] // 2)
    return tuple(chunk)


def _check_integers(sizes: Sequence[Any]) -> None:
    if any(isinstance(size, bool) or not isinstance(size, int | np.integer) for size in sizes):
        raise TypeError(f"chunk sizes must be integers, not {sizes!r}")


def _shard_specs(
    requested: Any, chunk: tuple[int, ...], array: Sequence[int], *, required: bool
) -> tuple[ShardSpec, ...]:
    """Return the shards requested under zarr-python's encoding key ``shards``, if any.

    As in zarr-python, ``"auto"`` makes shards two chunks long along each dimension that has more
    than eight chunks.

    Raises
    ------
    ConflictError
        If the shards are `required`, but their shape is not a multiple of the chunk shape, or the
        location of their index is invalid. Unsuitable shards that are not required are ignored.
    """
    if requested is None:
        return ()
    if isinstance(requested, str) and requested == "auto":
        sizes = zip(array, chunk, strict=True)
        requested = tuple([part * (2 if whole // part > 8 else 1) for whole, part in sizes])
    settings = requested if isinstance(requested, Mapping) else {"shape": requested}
    shape: Any = settings.get("shape")
    location = settings.get("index_location", "end")
    if isinstance(shape, int | np.integer):
        shape = (shape,) * len(chunk)
    is_multiple = (
        isinstance(shape, list | tuple)
        and len(shape) == len(chunk)
        and all(isinstance(whole, int | np.integer) and whole > 0 for whole in shape)
        and not any(whole % part for whole, part in zip(shape, chunk, strict=True))
    )
    if is_multiple and location in ("start", "end"):
        index_codecs = (CodecSpec("bytes", {"endian": "little"}), CodecSpec("crc32c"))
        return (ShardSpec(tuple(map(int, shape)), index_codecs, location == "start"),)
    if required and is_multiple:
        raise ConflictError(f"index_location is {location!r}; expected 'start' or 'end'")
    if required:
        raise ConflictError(
            f"shard shape {shape!r} is not a multiple of chunk shape {chunk}",
            remedy="Pass a multiple of each chunk length",
        )
    return ()
