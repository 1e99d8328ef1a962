"""Find the function that builds each codec, and compile the codec chain of an array."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numcodecs import Pickle
from numcodecs import registry as numcodecs_registry

from xr_nczarr.codecs import casts, codec_plugins, compressors, transforms
from xr_nczarr.codecs.pipeline import UINT8, ChunkCodec, Flow, Step, StepRequest, wrap
from xr_nczarr.errors import (
    ChunkError,
    ConflictError,
    ErrorContext,
    LimitError,
    MetadataError,
    RefusedError,
    UnsupportedError,
    quote,
    suggestion,
)
from xr_nczarr.model import DEFAULT_LIMITS, ArrayNode, CodecSpec, Limits, check_chunk_size

Builder = Callable[[StepRequest], Step | None]

_ITEM_CODECS: Mapping[str, Builder] = {
    "transpose": transforms.build_transpose,
    "vlen-utf8": transforms.build_vlen,
    "vlen-bytes": transforms.build_vlen,
    "vlen-array": transforms.build_vlen,
    "json2": transforms.build_text,
    "msgpack2": transforms.build_text,
    "categorize": transforms.build_categorize,
}
_BYTE_CODECS: Mapping[str, Builder] = {
    "bytes": transforms.build_bytes,
    "endian": transforms.build_bytes,
    "shuffle": transforms.build_shuffle,
    "bitround": transforms.build_bitround,
    "packbits": transforms.build_sized,
    "base64": transforms.build_sized,
    "scale_offset": casts.build_scale_offset,
    "cast_value": casts.build_cast_value,
    **dict.fromkeys(transforms.TYPED, transforms.build_typed),
    **dict.fromkeys(transforms.CHECKSUMS, transforms.build_sized),
    **dict.fromkeys(compressors.COMPRESSORS, compressors.build_compressor),
}
_BUILDERS = {**_ITEM_CODECS, **_BYTE_CODECS}
_VERSION_3_ONLY = ("scale_offset", "cast_value")
_BUILT_IN = ("bytes", "endian", "transpose", "crc32c", *_VERSION_3_ONLY)
"""Codecs that numcodecs does not provide, or provides only if an extra library is installed."""
_DOCUMENT_CODECS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
"""Mapping from the first bytes of a compressed document to the codec that decompresses it."""


def compile_codec(
    node: ArrayNode,
    *,
    limits: Limits = DEFAULT_LIMITS,
    custom: Mapping[str, type] | None = None,
    plugins: bool = True,
) -> ChunkCodec:
    """Compile the codec chain that encodes and decodes the chunks of an array.

    Parameters
    ----------
    node
        Metadata of the array.
    limits
        `max_chunk_bytes` limits the size of a chunk, and `max_item_bytes` limits the size of a
        variable-length item.
    custom
        Mapping from codec ids to codec classes with the numcodecs interface. These classes take
        precedence over all other codecs. If the mapping contains no class for ``pickle``, pickled
        objects are refused.
    plugins
        Whether to use Zarr v3 codecs that other packages register with zarr-python.

    Raises
    ------
    UnsupportedError
        If a codec is unknown or cannot be imported, or if the dtype or a codec parameter is not
        supported.
    RefusedError
        If the array uses the ``pickle`` codec, and `custom` contains no class for it.
    MetadataError
        If a codec's configuration is invalid, or a codec cannot encode its input.
    LimitError
        If a chunk is larger than `limits.max_chunk_bytes`, or an LZMA filter requires too much
        memory.
    """
    flow = flow_of(node.dtype, node.chunk_shape, limits)
    codec = compile_chain(node.codecs, flow, limits, custom or {}, plugins)
    if codec.encoded.dtype.hasobject:
        raise MetadataError(
            "none of the array's codecs can encode its variable-length items",
            remedy="Add one of these codecs: vlen-utf8, vlen-bytes, vlen-array, json2, msgpack2",
            place="codecs",
        )
    return codec


def check_codec(
    node: ArrayNode,
    *,
    custom: Mapping[str, type] | None = None,
    plugins: bool = True,
) -> None:
    """Check that all codecs of an array and of its shards are known and allowed.

    In contrast to `compile_codec`, this function does not check configurations and sizes.

    Raises
    ------
    UnsupportedError
        If a codec is unknown or unavailable.
    RefusedError
        If the array uses the ``pickle`` codec, and `custom` contains no class for it.
    """
    shard_specs = [spec for shard in node.shards for spec in (*shard.codecs, *shard.index_codecs)]
    with ErrorContext(variable=node.path):
        for spec in (*node.codecs, *shard_specs):
            with ErrorContext(place=_place(spec)):
                _find_builder(spec, custom or {}, plugins)


def check_fill(node: ArrayNode) -> None:
    """Check that Zarr v3's ``cast_value`` and ``scale_offset`` can store an array's fill value.

    The specification requires that ``cast_value`` preserves the fill value exactly, because partial
    chunks contain fill values.

    Raises
    ------
    ConflictError
        If a codec cannot store the fill value.
    """
    if node.fill_value is None:
        return
    flow = flow_of(node.dtype, (1,), DEFAULT_LIMITS)
    fill = np.array([node.fill_value], node.dtype)
    for spec in node.codecs:
        if spec.name not in _VERSION_3_ONLY:
            continue
        codec = compile_chain([spec], flow, DEFAULT_LIMITS, {})
        try:
            stored = codec.encode(fill)
            decoded = codec.decode(stored)
        except ChunkError as error:
            raise _changes_fill(fill, spec, error.problem) from error
        if (
            spec.name == "cast_value"
            and decoded.tobytes() != fill.tobytes()
            and not np.all(decoded != decoded)
        ):
            raise _changes_fill(fill, spec, f"the value would decode to {decoded[0]}")
        flow = codec.encoded
        fill = np.frombuffer(stored, flow.dtype)


def _changes_fill(fill: Any, spec: CodecSpec, reason: str) -> ConflictError:
    return ConflictError(
        f"codec {spec.name} cannot store the fill value {fill[0]}: {reason}",
        remedy="Pass a different fill_value in the encoding, or map the value with the codec "
        'parameter "scalar_map"',
    )


def flow_of(dtype: np.dtype[Any], shape: tuple[int, ...], limits: Limits) -> Flow:
    """Return a `Flow` for the decoded elements of a chunk with the given dtype and shape.

    Raises
    ------
    LimitError
        If the chunk is larger than `limits.max_chunk_bytes`.
    UnsupportedError
        If `dtype` is a structured dtype with variable-length fields.
    """
    if dtype.hasobject and dtype.kind != "O":
        raise UnsupportedError(
            f"dtype {quote(dtype)} has variable-length fields, which are not supported"
        )
    check_chunk_size(shape, dtype, limits)
    max_bytes, size = limits.max_chunk_bytes, math.prod(shape) * dtype.itemsize
    chunk = f"chunk of shape {shape} and dtype {quote(dtype)}"
    if dtype.hasobject:
        return Flow(chunk, dtype, shape, None, max_bytes, limited=True)
    return Flow(chunk, dtype, shape, size, size)


def compile_chain(
    specs: Sequence[CodecSpec],
    flow: Flow,
    limits: Limits,
    custom: Mapping[str, type],
    plugins: bool = False,
) -> ChunkCodec:
    """Compile codecs into a chain that encodes and decodes elements.

    `specs` contains the codecs in encoding order, and `flow` describes the elements. See
    `compile_codec` for the other parameters.
    """
    check = transforms.build_unicode_check(StepRequest(CodecSpec("dtype"), flow, limits))
    steps = [] if check is None else [check]
    encoded, max_bytes = flow, 2 * limits.max_chunk_bytes + (1 << 16)
    for spec in specs:
        with ErrorContext(place=_place(spec)):
            builder = _find_builder(spec, custom, plugins)
            if encoded.dtype.hasobject and builder is _BYTE_CODECS.get(spec.name):
                raise MetadataError(
                    f"codec {spec.name} cannot encode variable-length items",
                    remedy="Add a codec that encodes them, such as vlen-utf8, before this codec",
                )
            step = builder(StepRequest(spec, encoded, limits))
            if step is None:
                continue
            steps.append(replace(step, place=_place(spec)))
            if (step.encoded.size or 0) > max_bytes:
                raise MetadataError(
                    f"codec {spec.name} would produce {step.encoded.size:,} bytes; expected at "
                    f"most {max_bytes:,} ({flow.chunk})"
                )
            encoded = replace(step.encoded, bound=min(step.encoded.bound, max_bytes))
    return ChunkCodec(flow, steps)


def decompressed(data: bytes, max_bytes: int) -> bytes:
    """Decompress a gzip file or Zstandard frames. Return any other data unchanged.

    Raises
    ------
    LimitError
        If the decompressed data is longer than `max_bytes` bytes.
    ChunkError
        If the gzip file or Zstandard frame is damaged.
    """
    name = next((name for start, name in _DOCUMENT_CODECS.items() if data.startswith(start)), None)
    if name is None:
        return data
    flow = Flow("document", UINT8, None, None, max_bytes, limited=True)
    codec = compile_chain([CodecSpec(name, place="document")], flow, DEFAULT_LIMITS, {})
    try:
        return bytes(codec.decode_buffer(data))
    except LimitError as error:
        error.remedy = "If you trust the store, pass limits=Limits(max_consolidated_bytes=…)"
        raise
    except ChunkError as error:
        error.remedy = "The document is damaged or truncated; recreate it"
        raise


def compressed(data: bytes, name: str) -> bytes:
    """Compress a document with the codec `name` (``gzip`` or ``zstd``).

    This is the inverse of `decompressed`.
    """
    return bytes(numcodecs_registry.get_codec({"id": name}).encode(data))


def _place(spec: CodecSpec) -> str:
    return f"codec {spec.name} ({spec.place})"


def _find_builder(spec: CodecSpec, custom: Mapping[str, type], plugins: bool) -> Builder:
    """Return the function that builds the `Step` of a codec."""
    # Codecs of the caller take precedence over all others. Next come codecs of this package, codecs
    # registered with numcodecs, plugins for zarr-python, and plugins for numcodecs.
    name = spec.name
    if name == "pickle" and custom.get(name) is Pickle:
        # numcodecs decodes pickles only if that is enabled for the whole process.
        return transforms.build_pickle
    if name in custom:
        return partial(_build_foreign, codec_class=custom[name])
    if name == "pickle":
        raise RefusedError(
            "the chunks are pickled objects, which can execute arbitrary code when they are read",
            remedy="If you trust the store, open it in Python with "
            'codecs={"pickle": numcodecs.Pickle}',
        )
    if name in _VERSION_3_ONLY and spec.is_buffer_filter:
        raise UnsupportedError(
            f"codec {name} exists only in Zarr v3",
            remedy="Write with zarr_format=3, or pass different codecs (codecs=[] for none)",
        )
    builder = _BUILDERS.get(name)
    codec_class = numcodecs_registry.codec_registry.get(name)
    if builder is not None and (name in _BUILT_IN or codec_class is not None):
        return builder
    if codec_class is None and plugins:
        entry_point = codec_plugins.find_entry_point(spec)
        if entry_point is not None:
            return partial(codec_plugins.build_registered, entry_point=entry_point)
    return partial(_build_foreign, codec_class=codec_class or _load_class(spec))


def registered_kind(name: str) -> str | None:
    """Return the kind of a codec that is available only as a plugin for zarr-python.

    The kind states the input and output of the codec: ``"array-array"``, ``"array-bytes"`` or
    ``"bytes-bytes"``. Return None for all other codecs.
    """
    if name in _BUILT_IN or name in numcodecs_registry.codec_registry:
        return None
    return codec_plugins.kind_of(name)


def check_known(name: str) -> None:
    """Raise UnsupportedError if no installed package provides a codec with this name."""
    spec = CodecSpec(name, document={"name": name})
    try:
        _find_builder(spec, {}, plugins=True)
    except UnsupportedError as error:
        error.remedy = error.remedy.partition(", or open the store")[0]
        error.add_context(place=_place(spec))
        raise


def _load_class(spec: CodecSpec) -> Any:
    quoted = quote(repr(spec.name))
    if spec.name not in numcodecs_registry.entries:
        known = {*_BUILT_IN, *numcodecs_registry.codec_registry}
        hint = suggestion(spec.name, known | numcodecs_registry.entries.keys())
        remedy = (
            f"{hint}Install the package that registers it with numcodecs, or open the store in "
            f"Python with codecs={{{quoted}: CodecClass}}"
        )
        raise UnsupportedError(f"unknown codec {quoted}", remedy=remedy)
    return codec_plugins.load_class(numcodecs_registry.entries[spec.name])


def _build_foreign(request: StepRequest, codec_class: Any) -> Step:
    """Build the `Step` for a codec class that has the numcodecs interface."""
    encoded = request.flow.of_unknown_size(request.limits)
    return wrap(request.construct(codec_class), request.flow, encoded)
