"""Encoded variables → the arrays that hold them: chunks, shards, codecs and fill values."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from xr_nczarr.codecs import check_codec, check_fill, registered_kind
from xr_nczarr.errors import ConflictError, NczarrError, Place, UnsupportedError
from xr_nczarr.model import ArrayNode, CodecSpec
from xr_nczarr.netcdf.types import zero
from xr_nczarr.writing.chunk_shapes import chunk_shape, fit_opened, shard_specs
from xr_nczarr.writing.encoding_keys import (
    codec_specs,
    requested_chunk_keys,
    requested_codecs,
)
from xr_nczarr.writing.variables import EncodedVariable, Layout

_log = logging.getLogger(__name__)

_POINTER_BYTES = 8


def make_node(
    encoded: EncodedVariable,
    path: str,
    layout: Layout,
    growing: Sequence[bool],
    *,
    lengthened: bool,
) -> tuple[ArrayNode, str | None]:
    """Return the array of an encoded variable, and a note on leftover codecs that do not fit it.

    Parameters
    ----------
    growing
        Whether the array may become longer along each dimension.
    lengthened
        Whether chunks of one dimension are made longer than the array; see `chunk_shape`.

    Raises
    ------
    NczarrError
        For codecs that were requested for this write, and that there are not.
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
            encoding, fitted = fit_opened(encoding, encoded.dimensions, shape, growing)
        chunk = chunk_shape(encoding, shape, encoded.dtype, blocks=blocks, lengthened=lengthened)
        chunk_keys = zarr.chunk_keys(path, **requested_chunk_keys(encoding, zarr))
    if layout.chunks_within:
        chunk = tuple(map(min, chunk, [max(1, length) for length in shape]))
    # In a version without shards, those that opening left are no request.
    shards = encoding.get("shards") if explicit or zarr.has_shards else None
    required = explicit or encoding.get("chunks") == chunk
    note = None
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
            shards=shard_specs(shards, chunk, shape, required=required),
        )

    try:
        made = node(_fitting(requested_codecs(encoding, zarr), encoded))
        check_codec(made)
        made = _with_held_fill(made, encoding.get("fill_value") is not None)
        zarr.render_node(made)
    except NczarrError as error:
        if explicit:
            raise error.located(variable=path) from error.__cause__
        made, note = node(()), f"{path} ({error.problem})"
        zarr.render_node(made)  # the codecs were not the reason
    within = f" in shards {made.shards[0].shape}" if made.shards else ""
    level = logging.INFO if fitted else logging.DEBUG
    _log.log(level, "%s: %schunks %s%s", path, fitted and f"{fitted}: ", made.chunk_shape, within)
    return made, note


def _with_characters(encoding: Mapping[str, Any], shape: tuple[int, ...]) -> Mapping[str, Any]:
    """Return the encoding of characters, from one with the chunks of text.

    All characters of a text lie in one chunk.
    """
    for key in ("chunks", "chunksizes"):
        sizes = encoding.get(key)
        if isinstance(sizes, list | tuple) and len(sizes) == len(shape) - 1:
            encoding = {**encoding, key: (*sizes, shape[-1])}
    return encoding


def _with_held_fill(node: ArrayNode, required: bool) -> ArrayNode:
    """Return an array whose codecs hold its fill value: zero, unless another was asked for."""
    try:
        check_fill(node)
    except ConflictError:
        if required:
            raise
        node = replace(node, fill_value=zero(node.dtype))
        check_fill(node)
    return node


def _fitting(
    codecs: Sequence[Mapping[str, Any]], encoded: EncodedVariable
) -> Sequence[Mapping[str, Any]]:
    """Return the codecs; raise UnsupportedError for one of another type or of other axes."""
    for codec in codecs:
        dtype = codec.get("dtype")
        if isinstance(dtype, str) and np.dtype(dtype) != encoded.dtype:
            raise UnsupportedError(
                f"{codec['id']} is for {dtype}, but the array is {encoded.dtype}"
            )
        axes = list(range(encoded.data.ndim))
        if codec["id"] == "transpose" and sorted(codec["order"]) != axes:
            raise UnsupportedError(f"transpose is for axes {codec['order']}, the array has {axes}")
    return codecs
