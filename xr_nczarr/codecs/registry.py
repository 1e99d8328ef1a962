"""Which codec a name stands for, which are refused, and the chains that metadata name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numcodecs import registry as numcodecs_registry

from xr_nczarr.codecs import bounded, casts, filters, serializers, zarr_python
from xr_nczarr.codecs.pipeline import RAISE_LIMIT, ChunkCodec, Flow, Request, Step, wrap
from xr_nczarr.errors import (
    ChunkError,
    ConflictError,
    LimitError,
    MetadataError,
    Place,
    RefusedError,
    UnsupportedError,
    quote,
    reason_of,
)
from xr_nczarr.model import DEFAULT_LIMITS, ArrayNode, CodecSpec, Limits

Builder = Callable[[Request], Step | None]

_OF_ITEMS: Mapping[str, Builder] = {
    "transpose": serializers.build_transpose,
    "vlen-utf8": serializers.build_vlen,
    "vlen-bytes": serializers.build_vlen,
    "vlen-array": serializers.build_vlen,
    "json2": serializers.build_text,
    "msgpack2": serializers.build_text,
    "categorize": serializers.build_categorize,
    "pickle": serializers.build_pickle,
}
_OF_BYTES: Mapping[str, Builder] = {
    "bytes": serializers.build_bytes,
    "endian": serializers.build_bytes,
    "shuffle": filters.build_shuffle,
    "bitround": filters.build_bitround,
    "packbits": filters.build_sized,
    "base64": filters.build_sized,
    **dict.fromkeys(filters.TYPED, filters.build_typed),
    **dict.fromkeys(filters.CHECKSUMS, filters.build_sized),
    **dict.fromkeys(bounded.COMPRESSORS, bounded.build_compressor),
}
_OF_VERSION_3: Mapping[str, Builder] = {
    "scale_offset": casts.build_scale_offset,
    "cast_value": casts.build_cast_value,
}
_OURS = ("bytes", "endian", "transpose", "crc32c")
"""Codecs that numcodecs does not know, or not without a further library."""
_CHAR_TYPES = (">S1", "<S1", "<U1", ">U1")
"""How netcdf-c spells the type char; ``|S1`` is a string of length one."""
_POINTER = 8
"""Size in bytes of a string's pointer, which netcdf-c shuffles."""


def compile_codec(
    node: ArrayNode,
    *,
    limits: Limits = DEFAULT_LIMITS,
    custom: Mapping[str, type] | None = None,
    allow_pickle: bool = False,
    plugins: bool = True,
) -> ChunkCodec:
    """Compile the codec of an array's chunks.

    Classes of numcodecs' interface in `custom`, by their id, come before all others.
    `allow_pickle` unpickles objects, which lets whoever wrote them run any code. With `plugins`,
    codecs of Zarr v3 may be those that other packages register with zarr-python.

    Raises
    ------
    UnsupportedError, RefusedError
        For an unknown codec or dtype, and for pickled objects.
    MetadataError, LimitError
        For a configuration that is not the codec's, or does not fit the elements, and for a chunk
        of more than `limits.max_chunk_bytes`.
    """
    flow = flow_of(node.dtype, node.chunk_shape, limits, node.type_name)
    codec = compile_chain(node.codecs, flow, limits, custom or {}, allow_pickle, plugins)
    if codec.encoded.dtype.hasobject:
        raise MetadataError(
            "found items of variable length without a codec that stores them",
            remedy="One of vlen-utf8, vlen-bytes, vlen-array, json2, msgpack2 has to be named.",
            place="codecs",
        )
    return codec


def check_codec(
    node: ArrayNode,
    *,
    custom: Mapping[str, type] | None = None,
    allow_pickle: bool = False,
    plugins: bool = True,
) -> None:
    """Raise what `compile_codec` would raise because of a codec's name, shards included."""
    around = [spec for shard in node.shards for spec in (*shard.codecs, *shard.index_codecs)]
    with Place(variable=node.path):
        for spec in (*node.codecs, *around):
            _find_builder(spec, custom or {}, allow_pickle, plugins)


def check_fill(node: ArrayNode) -> None:
    """Raise ConflictError unless an array's fill value comes back of each ``cast_value``.

    The specification demands it: partial chunks hold fill values.
    """
    flow = flow_of(node.dtype, (1,), DEFAULT_LIMITS)
    fill = None if node.fill_value is None else np.array([node.fill_value], node.dtype)
    for spec in node.codecs:
        if fill is None or spec.name not in _OF_VERSION_3:
            continue
        codec = compile_chain([spec], flow, DEFAULT_LIMITS, {})
        try:
            stored = codec.encode(fill)
            back = codec.decode(stored)
        except ChunkError as error:
            raise _unheld(fill, spec, error.problem) from error
        if (
            spec.name == "cast_value"
            and back.tobytes() != fill.tobytes()
            and not np.all(back != back)
        ):
            raise _unheld(fill, spec, f"it would come back as {back[0]}")
        flow = replace(codec.encoded, chunk=flow.chunk)
        fill = np.frombuffer(stored, flow.dtype)


def _unheld(fill: Any, spec: CodecSpec, why: str) -> ConflictError:
    return ConflictError(
        f"the codec {spec.name} cannot store the fill value {fill[0]}: {why}",
        remedy="Pass another fill_value in encoding, or map it by the codec's scalar_map",
    )


def flow_of(
    dtype: np.dtype[Any], shape: tuple[int, ...], limits: Limits, type_name: str = ""
) -> Flow:
    """Return the flow of a chunk's elements, within the limits."""
    if dtype.hasobject and dtype.kind != "O":
        raise UnsupportedError(f"found {quote(dtype)}, a structure with items of variable length")
    most, size = limits.max_chunk_bytes, math.prod(shape) * dtype.itemsize
    chunk = f"chunk {shape} of {quote(dtype)}"
    if size > most:
        problem = f"found a {chunk}, {size:,} bytes, at most {most:,} are allowed"
        raise LimitError(problem, remedy=RAISE_LIMIT)
    if dtype.hasobject:
        return Flow(chunk, dtype, shape, None, most, limited=True, shuffled=_POINTER)
    text = dtype.kind == "S" and type_name not in _CHAR_TYPES
    shuffled = _POINTER if text else dtype.itemsize
    return Flow(chunk, dtype, shape, size, size, shuffled=shuffled)


def compile_chain(
    specs: Sequence[CodecSpec],
    flow: Flow,
    limits: Limits,
    custom: Mapping[str, type],
    allow_pickle: bool = False,
    plugins: bool = False,
) -> ChunkCodec:
    """Compile `specs`, in the order of encoding, into a codec for the elements of `flow`."""
    steps: list[Step] = []
    encoded, most = flow, 2 * limits.max_chunk_bytes + (1 << 16)
    for spec in specs:
        with Place(place=_place(spec)):
            builder = _find_builder(spec, custom, allow_pickle, plugins)
            if encoded.dtype.hasobject and builder is _OF_BYTES.get(spec.name):
                raise MetadataError(
                    f"found codec {spec.name} for items of variable length",
                    remedy="A codec that stores them, as vlen-utf8, has to come first.",
                )
            step = builder(Request(spec, encoded, limits))
            if step is None:
                continue
            steps.append(replace(step, place=_place(spec)))
            if (step.encoded.size or 0) > most:
                raise MetadataError(f"makes {step.encoded.size:,} bytes of a {flow.chunk}")
            encoded = replace(step.encoded, bound=min(step.encoded.bound, most))
    return ChunkCodec(flow, steps)


def _place(spec: CodecSpec) -> str:
    return f"codec {spec.name} ({spec.place})"


def _find_builder(
    spec: CodecSpec, custom: Mapping[str, type], allow_pickle: bool, plugins: bool
) -> Builder:
    """Return the builder of a codec: the caller's, ours, numcodecs', or another package's."""
    name = spec.name
    if name in custom:
        return partial(_build_foreign, codec_class=custom[name])
    if name == "pickle" and not allow_pickle:
        raise RefusedError(
            "found pickled objects, which can run any code when they are read",
            remedy="If you trust who wrote them, open with allow_pickle=True.",
            place=_place(spec),
        )
    if name in _OF_VERSION_3:
        if spec.place != "codecs":
            raise UnsupportedError(
                f"codec {name} belongs to Zarr v3 alone",
                remedy="Write with zarr_format=3, or with other codecs (codecs=[] for none)",
                place=_place(spec),
            )
        return _OF_VERSION_3[name]
    builder = _OF_ITEMS.get(name) or _OF_BYTES.get(name)
    codec_class = numcodecs_registry.codec_registry.get(name)
    if builder is not None and (name in _OURS or codec_class is not None):
        return builder
    if codec_class is None and plugins:
        entry_point = zarr_python.find_entry_point(spec)
        if entry_point is not None:
            return partial(zarr_python.build_registered, entry_point=entry_point)
    return partial(_build_foreign, codec_class=codec_class or _load_class(spec))


def registered_kind(name: str) -> str | None:
    """Return the kind of a codec that only a package for zarr-python has.

    That is "array-array", "array-bytes" or "bytes-bytes"; None for all other codecs.
    """
    if name in _OF_VERSION_3 or name in _OURS or name in numcodecs_registry.codec_registry:
        return None
    return zarr_python.kind_of(name)


def _load_class(spec: CodecSpec) -> Any:
    """Return the class of a codec that another package registers with numcodecs."""
    shown = quote(repr(spec.name))
    if spec.name not in numcodecs_registry.entries:
        problem = f"found codec {shown}, which is not known"
        remedy = f"Open with codecs={{{shown}: …}}, a codec class as numcodecs has."
        raise UnsupportedError(problem, remedy=remedy, place=_place(spec))
    try:
        return numcodecs_registry.entries[spec.name].load()
    except (ImportError, AttributeError) as failure:
        problem = f"found codec {shown}, whose package does not load: {reason_of(failure)}"
        raise UnsupportedError(problem, place=_place(spec)) from failure


def _build_foreign(request: Request, codec_class: Any) -> Step:
    """Return the step for a class whose encoded size is unknown."""
    encoded = request.flow.unbounded(request.limits)
    return wrap(request.construct(codec_class), request.flow, encoded)
