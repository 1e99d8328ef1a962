"""Build array nodes for encoded variables, with chunks, shards and codecs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from xr_nczarr.codecs import check_codec, check_fill, registered_kind
from xr_nczarr.errors import ConflictError, NczarrError, Place, UnsupportedError
from xr_nczarr.model import ArrayNode, CodecSpec, ShardSpec
from xr_nczarr.netcdf.types import zero
from xr_nczarr.writing.encoding_keys import codec_specs, requested_chunk_keys, requested_codecs
from xr_nczarr.writing.options import Layout
from xr_nczarr.writing.variables import EncodedVariable

_POINTER_BYTES = 8
_TARGET_BYTES = 4 << 20  # per chunk
# Otherwise, a coordinate that grows by one value per append would have one object per value.
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
    """Return the array node of an encoded variable, and notes on changes to its encoding.

    The first note describes how chunks were adapted, the second why codecs were dropped. A note is
    empty if nothing had to change.

    Parameters
    ----------
    growing
        For each dimension, whether the array may become longer along that dimension.
    lengthened
        Whether one-dimensional chunks may be longer than the array; see `chunk_shape`.

    Raises
    ------
    NczarrError
        If codecs that the caller requested for this write are not available.
    """
    encoding, explicit = encoded.encoding, encoded.explicit
    zarr = layout.zarr
    shape = tuple(encoded.data.shape)
    blocks = getattr(encoded.data, "chunks", None)
    if encoded.kind == "char":
        encoding = _with_characters(encoding, shape)
    with Place(variable=path):
        fitted = ""
        if not explicit:
            encoding, fitted = _fit_opened(encoding, encoded.dimensions, shape, growing)
        chunk = chunk_shape(encoding, shape, encoded.dtype, blocks=blocks, lengthened=lengthened)
        if layout.chunks_within:
            chunk = tuple(map(min, chunk, [max(1, length) for length in shape]))
        # A version without shards ignores shards inherited from the opened store.
        requested = encoding.get("shards") if explicit or zarr.has_shards else None
        required = explicit or encoding.get("chunks") == chunk
        shards = _shard_specs(requested, chunk, shape, required=required)
        chunk_keys = zarr.chunk_keys(path, **requested_chunk_keys(encoding, zarr))
    items = "vlen-utf8" if encoded.kind == "string" else "vlen-bytes"
    place = "filters" if zarr.separates_compressor else "codecs"
    leading = (CodecSpec(items, {}, place),) if encoded.dtype.hasobject else ()
    itemsize = encoded.dtype.itemsize
    if encoded.kind == "string" and not encoded.dtype.hasobject:
        itemsize = _POINTER_BYTES

    def node(codecs: Sequence[Mapping[str, Any]]) -> ArrayNode:
        specs = (*leading, *codec_specs(codecs, itemsize, zarr))
        specs = zarr.complete(specs, registered_kind)
        return ArrayNode(
            path=path,
            shape=shape,
            dtype=encoded.dtype,
            chunk_shape=chunk,
            fill_value=encoded.fill_value,
            codecs=specs,
            chunk_keys=chunk_keys,
            shards=shards,
        )

    dropped = ""
    try:
        codecs = requested_codecs(encoding, zarr)
        _check_codecs(codecs, encoded)
        made = node(codecs)
        check_codec(made)
        made = _with_held_fill(made, encoding.get("fill_value") is not None)
        zarr.render_node(made)
    except NczarrError as error:
        if explicit:
            raise error.located(variable=path) from error.__cause__
        made, dropped = node(()), error.problem
        zarr.render_node(made)  # the codecs were not the cause
    return made, fitted, dropped


def _with_characters(encoding: Mapping[str, Any], shape: tuple[int, ...]) -> Mapping[str, Any]:
    """Return an encoding for an array of characters, with a chunk length for their extra dimension.

    Encodings of strings have no length for that dimension. Each string's characters stay in one
    chunk.
    """
    for key in ("chunks", "chunksizes"):
        sizes = encoding.get(key)
        if isinstance(sizes, list | tuple) and len(sizes) == len(shape) - 1:
            encoding = {**encoding, key: (*sizes, shape[-1])}
    return encoding


def _with_held_fill(node: ArrayNode, required: bool) -> ArrayNode:
    """Return an array node with a fill value that its codecs can store.

    A fill value that cannot be stored is replaced by zero, unless it is `required`.
    """
    try:
        check_fill(node)
    except ConflictError:
        if required:
            raise
        node = replace(node, fill_value=zero(node.dtype))
        check_fill(node)
    return node


def _check_codecs(codecs: Sequence[Mapping[str, Any]], encoded: EncodedVariable) -> None:
    """Raise UnsupportedError if a codec is configured for a different dtype or different axes."""
    for codec in codecs:
        dtype = codec.get("dtype")
        if isinstance(dtype, str) and np.dtype(dtype) != encoded.dtype:
            raise UnsupportedError(
                f"codec {codec['id']} is configured for dtype {dtype}, but the array has dtype "
                f"{encoded.dtype}"
            )
        axes = list(range(encoded.data.ndim))
        if codec["id"] == "transpose" and sorted(codec["order"]) != axes:
            raise UnsupportedError(
                f"codec transpose is configured for axes {codec['order']}, but the array has axes "
                f"{axes}"
            )


def _fit_opened(
    encoding: Mapping[str, Any],
    dimensions: Sequence[str],
    shape: Sequence[int],
    growing: Sequence[bool],
) -> tuple[dict[str, Any], str]:
    """Adapt the chunks and shards of an inherited encoding to an array.

    Returns the adapted encoding, and a note on chunks that were changed or dropped (empty if there
    are no changes).

    Chunks that the encoding inherited from the opened store are kept, as in `to_zarr`. For
    transposed data, the chunk lengths are reordered if ``preferred_chunks`` names the dimensions. A
    chunk longer than its dimension is shortened, unless the dimension is `growing` or the array
    still has its original shape. Chunks are dropped if their rank differs or the order of their
    axes is unknown.
    """
    fitted = {key: value for key, value in encoding.items() if key not in _CHUNK_KEYS}
    unchanged = tuple(encoding.get("original_shape") or ()) == tuple(shape)
    if encoding.get("contiguous") and unchanged:
        fitted["contiguous"] = True
    sizes, shards = _opened_sizes(encoding), encoding.get("shards")
    if sizes is None:
        return fitted | ({} if shards is None else {"shards": shards}), ""
    if isinstance(sizes, int | np.integer):
        sizes = (sizes,) * len(shape)
    if len(sizes) != len(shape) or any(isinstance(size, Sequence) for size in sizes):
        return (
            fitted,
            f"{_text(sizes)} inherited from the source do not have {len(shape)} dimensions",
        )
    _check_integers(sizes)
    axes = _opened_axes(encoding, dimensions, shape)
    if axes is None:
        return fitted, f"{_text(sizes)} inherited from the source are for another order of axes"
    cut = {
        axis: max(1, length)
        for axis, (source, length) in enumerate(zip(axes, shape, strict=True))
        if sizes[source] > length and not growing[axis] and not unchanged
    }
    fitted["chunks"] = _rearranged(sizes, axes, cut)
    if shards is not None:
        fitted["shards"] = _rearranged_shards(shards, axes, cut)
    same = fitted["chunks"] == tuple(sizes)
    return fitted, "" if same else f"{_text(sizes)} inherited from the source were adjusted"


def _rearranged(
    lengths: Sequence[int], axes: Sequence[int], cut: Mapping[int, int]
) -> tuple[int, ...]:
    """Reorder chunk lengths to the new axes.

    `axes` holds the old axis for each new axis. `cut` maps new axes to shortened lengths.
    """
    return tuple(cut.get(axis, lengths[source]) for axis, source in enumerate(axes))


def _rearranged_shards(shards: Any, axes: Sequence[int], cut: Mapping[int, int]) -> Any:
    """Reorder shard lengths to the new axes.

    Shards are returned unchanged unless they have exactly one length for each axis.
    """
    words = shards if isinstance(shards, Mapping) else {"shape": shards}
    shape = words.get("shape")
    if not isinstance(shape, list | tuple) or len(shape) != len(axes):
        return shards
    return {**words, "shape": _rearranged(shape, axes, cut)}


def _opened_sizes(encoding: Mapping[str, Any]) -> Any:
    """Return the chunk lengths in ``chunks`` or ``chunksizes``: whichever changed since opening.

    Opening sets both keys. If ``chunks`` was changed, it takes precedence, as in `to_zarr`. The
    result is None if the encoding has neither key.
    """
    chunks, chunksizes = encoding.get("chunks"), encoding.get("chunksizes")
    if chunks is None or isinstance(chunks, str):
        return chunksizes
    preferred = tuple((encoding.get("preferred_chunks") or {}).values())
    return chunks if chunksizes is None or chunks != preferred else chunksizes


def _opened_axes(
    encoding: Mapping[str, Any], dimensions: Sequence[str], shape: Sequence[int]
) -> Sequence[int] | None:
    """Return the original axis of each dimension, or None if the original order is unknown.

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


def _text(sizes: Sequence[Any]) -> str:
    return f"chunks {tuple(sizes)}"


def chunk_shape(
    encoding: Mapping[str, Any],
    shape: Sequence[int],
    dtype: np.dtype[Any],
    *,
    blocks: Sequence[Sequence[int]] | None,
    lengthened: bool,
) -> tuple[int, ...]:
    """Return the shape of the chunks to store.

    The shape comes from the chunks in `encoding` (-1 for a whole dimension) or, without these, from
    the largest of the dask `blocks` along each dimension. Otherwise, the array is halved along its
    longest dimension until a chunk has at most 4 MiB. If `lengthened`, one-dimensional chunks have
    at least 512 elements, and at least 4 KiB as in netcdf-c.

    Raises
    ------
    ConflictError
        If the chunks have another rank, or a length is below -1.
    TypeError
        If a length is not an integer.
    """
    sizes = encoding.get("chunks")
    if sizes is None or isinstance(sizes, str):
        sizes = encoding.get("chunksizes")
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
    """Return the shards requested by the value of zarr-python's encoding key ``shards``.

    ``"auto"`` means two chunks along each dimension of more than eight chunks, as in zarr-python.

    Raises
    ------
    ConflictError
        If chunks do not divide the shape of the shards, and shards are `required`. Otherwise, such
        a shape is ignored.
    """
    if requested is None:
        return ()
    if isinstance(requested, str) and requested == "auto":
        sizes = zip(array, chunk, strict=True)
        requested = tuple([part * (2 if whole // part > 8 else 1) for whole, part in sizes])
    words = requested if isinstance(requested, Mapping) else {"shape": requested}
    shape, location = words.get("shape"), words.get("index_location", "end")
    if isinstance(shape, int | np.integer):
        shape = (shape,) * len(chunk)
    if (
        location in ("start", "end")
        and isinstance(shape, list | tuple)
        and len(shape) == len(chunk)
        and all(isinstance(whole, int | np.integer) and whole > 0 for whole in shape)
        and not any(whole % part for whole, part in zip(shape, chunk, strict=True))
    ):
        index_codecs = (CodecSpec("bytes", {"endian": "little"}), CodecSpec("crc32c"))
        return (ShardSpec(tuple(map(int, shape)), index_codecs, location == "start"),)
    if required:
        raise ConflictError(
            f"shards {requested!r} do not fit chunks {chunk}",
            remedy="Pass a multiple of each chunk length, with index_location 'start' or 'end'",
        )
    return ()
