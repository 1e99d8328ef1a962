"""Parse and render the codecs of Zarr v3 arrays, including byte order and nested shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from xr_nczarr.errors import UnsupportedError, quote, unexpected
from xr_nczarr.formats.documents import (
    read_lengths,
    read_list,
    read_text,
    render_float,
    required,
    without,
)
from xr_nczarr.formats.numcodecs_notation import SHUFFLES, converted
from xr_nczarr.formats.typestrings import is_numpy_dtype
from xr_nczarr.formats.v3_data_types import (
    DType,
    check_members,
    parse_data_type,
    read_definition,
    unsupported,
)
from xr_nczarr.model import ArrayNode, CodecSpec, Json, ShardSpec

_SHARDING = "sharding_indexed"
_NUMCODECS = "numcodecs."
NUMERIC_CODECS = {
    "scale_offset": ("offset", "scale"),
    "cast_value": ("data_type", "rounding", "out_of_range", "scalar_map"),
}
"""Names of all parameters of each codec that has parameters of the array's data type."""

_DECODED_DTYPES = {
    **dict.fromkeys(("delta", "fixedscaleoffset", "quantize"), "dtype"),
    "astype": "decode_dtype",
}
"""Mapping from codecs to the name of the parameter that sets the dtype of decoded numbers."""

_ELEMENTWISE = NUMERIC_CODECS.keys() | {"fixedscaleoffset", "quantize", "bitround", "astype"}
_ARRAY_TO_ARRAY = _ELEMENTWISE | {"transpose", "delta", "packbits"}
# Codecs that can change the data type, each with the parameter that names the new type.
_RETYPING = {
    "cast_value": "data_type",
    "astype": "encode_dtype",
    "delta": "astype",
    "fixedscaleoffset": "astype",
    "quantize": "astype",
}
_ARRAY_TO_BYTES = frozenset((_SHARDING, "bytes", "vlen-utf8", "vlen-bytes", "pcodec", "zfpy"))
# Codecs in the v3 registry, with default values for the parameters that v3 requires.
_REGISTERED: dict[str, dict[str, Json]] = {
    "blosc": {"cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    "gzip": {"level": 1},
    "zstd": {"level": 0, "checksum": False},
    **{name: {} for name in ("bytes", "transpose", "crc32c", "vlen-utf8", "vlen-bytes")},
    **{name: {} for name in NUMERIC_CODECS},
}
# The kinds of the known codecs. Their alphabetical order is also their order in a valid chain.
_KINDS = {
    **dict.fromkeys(_REGISTERED, "bytes-bytes"),
    **dict.fromkeys(_ARRAY_TO_ARRAY, "array-array"),
    **dict.fromkeys(_ARRAY_TO_BYTES, "array-bytes"),
}
_INDEX_TYPE = np.dtype("<u8")
_LITTLE: Json = {"name": "bytes", "configuration": {"endian": "little"}}


class Chain(NamedTuple):
    """The parsed ``codecs`` of an array, in fields with the same names as in `ArrayNode`."""

    chunk_shape: tuple[int, ...]
    codecs: tuple[CodecSpec, ...]
    shards: tuple[ShardSpec, ...]


def parse_chain(value: Json, dtype: DType, shape: tuple[int, ...]) -> tuple[DType, Chain]:
    """Parse the ``codecs`` of an array, and return the array's dtype and `Chain`.

    The returned dtype has the stored byte order. `shape` is the shape of one stored object (a chunk
    or a shard).
    """
    chain = _parse_level(value, shape, tuple(range(len(shape))), dtype.itemsize, "codecs")
    dtype, codecs = move_byte_order(dtype, chain.codecs)
    return dtype, chain._replace(codecs=codecs)


def _parse_level(
    value: Json, shape: tuple[int, ...], order: tuple[int, ...], itemsize: int, place: str
) -> Chain:
    """Parse a list of codecs, including the codecs of nested shards.

    `shape` is the shape of a chunk or shard, in the axis order of the array. `order` lists the
    array's axes in the order in which the codecs receive them.
    """
    specs = _parse_specs(value, place, len(shape), itemsize)
    names = [spec.name for spec in specs]
    kinds = [_KINDS.get(name) for name in names]
    # If none of the codecs is known to be the serializer (the array-to-bytes codec), an unknown
    # codec may be the serializer.
    at = kinds.index("array-bytes") if "array-bytes" in kinds else len(kinds)
    after = kinds[at + 1 :]
    lacking = at == len(kinds) and None not in kinds
    if lacking or "array-bytes" in after or "array-array" in after:
        raise unexpected(
            names,
            "array-to-array codecs, one array-to-bytes codec, and then bytes-to-bytes codecs",
            place,
        )
    if _SHARDING not in names:
        return Chain(shape, specs, ())
    for spec in specs[:at]:
        # This package applies these codecs to each inner chunk instead of to the whole shard. They
        # must therefore reorder elements, or convert each element independently.
        if spec.name == "transpose":
            order = tuple([order[axis] for axis in spec.configuration["order"]])
        elif spec.name not in _ELEMENTWISE:
            problem = (
                f"codec {quote(spec.name)} is not supported before sharding_indexed, because it "
                "cannot decode individual inner chunks"
            )
            raise UnsupportedError(problem, place=place)
    place, configuration = f"{place}[{at}].configuration", specs[at].configuration
    members = ("chunk_shape", "codecs", "index_codecs", "index_location")
    check_members(configuration, members, place)
    location = read_text(configuration.get("index_location", "end"), place, ("start", "end"))
    index = configuration.get("index_codecs", [_LITTLE, "crc32c"])
    rank = len(shape) + 1  # the index has an axis for the offset and length
    index_codecs = _parse_specs(index, f"{place}.index_codecs", rank, _INDEX_TYPE.itemsize)
    outer = [shape[axis] for axis in order]
    lengths = read_lengths(required(configuration, "chunk_shape", place), place, least=1)
    if len(lengths) != len(outer) or any(
        whole % part for whole, part in zip(outer, lengths, strict=True)
    ):
        raise unexpected(list(lengths), f"a shape that divides {outer}", place)
    shard = ShardSpec(
        shape,
        index_codecs,
        location == "start",
        specs[at + 1 :],
        leading=at,
        order=() if order == tuple(range(len(order))) else order,
    )
    inner = tuple([lengths[order.index(axis)] for axis in range(len(order))])
    inner_codecs = required(configuration, "codecs", place)
    chain = _parse_level(inner_codecs, inner, order, itemsize, f"{place}.codecs")
    return chain._replace(codecs=(*specs[:at], *chain.codecs), shards=(shard, *chain.shards))


def _parse_specs(value: Json, place: str, rank: int, itemsize: int) -> tuple[CodecSpec, ...]:
    items = enumerate(read_list(value, place))
    return tuple([_parse_named(item, f"{place}[{i}]", rank, itemsize) for i, item in items])


def encoded_type(spec: CodecSpec, dtype: DType) -> DType:
    """Return the dtype of a codec's output, given the `dtype` of its input."""
    if spec.name not in _RETYPING:
        return dtype
    made = spec.configuration.get(_RETYPING[spec.name], spec.configuration.get("dtype"))
    try:
        return np.dtype(made) if isinstance(made, str) else dtype
    except TypeError:  # compiling the codec will raise a more precise error
        return dtype


def _parse_named(item: Json, place: str, rank: int, itemsize: int) -> CodecSpec:
    name, configuration = read_definition(item, place)
    if name == "packbits":
        # The codec in the v3 registry differs from the numcodecs codec of the same name.
        raise unsupported("codec", name, place)
    if name.startswith(_NUMCODECS):
        name = name.removeprefix(_NUMCODECS)
        configuration = without(configuration, ("id",))
    elif name in NUMERIC_CODECS:
        check_members(configuration, NUMERIC_CODECS[name], place)
    if name == "cast_value":
        data_type = required(configuration, "data_type", place)
        stored = parse_data_type(data_type, f"{place}.data_type")
        if stored.kind not in "iuf":
            raise unsupported("cast_value data type", data_type, place)
        configuration = {**configuration, "data_type": stored.name}
    return parse_spec(name, configuration, place, rank, itemsize, item)


def parse_spec(
    name: str, configuration: dict[str, Json], place: str, rank: int, itemsize: int, document: Json
) -> CodecSpec:
    """Convert a v3 codec to a `CodecSpec`, which uses numcodecs notation.

    `rank` is the number of dimensions of the array, and `document` is the codec's JSON. `itemsize`
    is the size in bytes of the array's items. It is the default element size of the shuffle codec,
    as in zarr-python. The ``bytes`` codec keeps its ``endian`` parameter; see `move_byte_order`.
    """
    if name == "endian":  # the name of ``bytes`` in the draft, and in v3 until the end of 2023
        name = "bytes"
    if name == "bytes":
        check_members(configuration, ("endian",), place)
        if "endian" in configuration:
            read_text(configuration["endian"], place, ("little", "big"))
    if name == "transpose":
        check_members(configuration, ("order",), place)
        order = _parse_order(required(configuration, "order", place), rank, place)
        configuration = {"order": order}
    configuration = converted(name, configuration, place)
    if name == "shuffle":
        configuration["elementsize"] = configuration.get("elementsize") or itemsize
    return CodecSpec(name, configuration, "codecs", document)


def _parse_order(value: Json, rank: int, place: str) -> list[int]:
    """Parse the ``order`` of a ``transpose`` codec for an array with `rank` dimensions."""
    if value in ("C", "F"):  # written by early writers
        return list(range(rank))[:: 1 if value == "C" else -1]
    order = list(read_lengths(value, place))
    if sorted(order) != list(range(rank)):
        raise unexpected(value, f"each axis from 0 to {rank - 1} exactly once", place)
    return order


def move_byte_order(
    dtype: DType, specs: Sequence[CodecSpec]
) -> tuple[DType, tuple[CodecSpec, ...]]:
    """Move the byte order from the ``bytes`` codec to the dtype of the array.

    Return the dtype with the stored byte order, and the codecs, in which ``bytes`` no longer has an
    ``endian`` parameter. In the following cases, return both arguments unchanged:

    - There is no ``bytes`` codec.
    - The dtype is not built into NumPy (``bfloat16``, for example).
    - A codec before the ``bytes`` codec converts the data type, or is unknown.

    In the last two cases, the ``bytes`` codec swaps the bytes itself if necessary.

    Raises
    ------
    MetadataError
        If there are several ``bytes`` codecs, or if a required ``endian`` is missing.
    """
    names = [spec.name for spec in specs]
    if names.count("bytes") > 1:
        documents = [spec.document for spec in specs if spec.name == "bytes"]
        raise unexpected(documents, 'a single "bytes" codec', "codecs")
    at = names.index("bytes") if "bytes" in names else None
    if at is None or not _ARRAY_TO_ARRAY.issuperset(names[:at]):
        return dtype, tuple(specs)  # an unknown codec may change the data type
    stored = dtype
    for spec in specs[:at]:
        stored = encoded_type(spec, stored)
    endian = specs[at].configuration.get("endian")
    # zarr-python omits `endian` for structured dtypes, and stores the bytes as they are in memory.
    if endian is None and stored.names is None and byte_order(stored) is not None:
        raise unexpected(
            specs[at].document,
            f'a configuration with "endian" for data type {stored.name}',
            "codecs",
        )
    if not is_numpy_dtype(dtype) or not _RETYPING.keys().isdisjoint(names[:at]):
        return dtype, tuple(specs)
    without_order = replace(specs[at], configuration={})
    dtype = dtype.newbyteorder(">" if endian == "big" else "<")
    return dtype, (*specs[:at], without_order, *specs[at + 1 :])


def byte_order(dtype: DType) -> str | None:
    """Return ``"little"`` or ``"big"``, or None if `dtype` has no byte order (such as ``uint8``).

    Raises
    ------
    UnsupportedError
        If `dtype` is structured and its fields have different byte orders.
    """
    little, big = dtype == dtype.newbyteorder("<"), dtype == dtype.newbyteorder(">")
    if not little and not big:
        raise UnsupportedError(
            f"dtype {quote(dtype)} has fields with different byte orders, which is not supported",
            place="data_type",
        )
    return None if little and big else "little" if little else "big"


def render_chain(node: ArrayNode) -> list[Json]:
    """Render the ``codecs`` of an array, converting codecs from other Zarr versions to v3."""
    specs = with_bytes(node.codecs)
    names = [spec.name for spec in specs]
    if node.dtype.kind == "O" and "bytes" in names:
        raise UnsupportedError(
            "none of the array's codecs can encode variable-length items in Zarr v3"
        )
    _check_order([spec for spec in specs if not _is_foreign(spec)], {})
    rendered = _render_specs(specs, node.dtype)
    inner = node.chunk_shape
    end = sum(shard.leading for shard in node.shards)
    rendered, before = rendered[end:], rendered[:end]
    for shard in reversed(node.shards):
        start = len(before) - shard.leading
        configuration = {
            "chunk_shape": [inner[axis] for axis in shard.order or range(len(inner))],
            "codecs": rendered,
            "index_codecs": _render_specs(shard.index_codecs, _INDEX_TYPE),
            "index_location": "start" if shard.index_at_start else "end",
        }
        sharding = {"name": _SHARDING, "configuration": configuration}
        around = _render_specs(shard.codecs, node.dtype)
        rendered, before = [*before[start:], sharding, *around], before[:start]
        inner = shard.shape
    return rendered


def _is_from_v3(spec: CodecSpec) -> bool:
    """Return whether a codec was parsed from a v3 document."""
    document = spec.document
    named = isinstance(document, str) or (isinstance(document, dict) and "name" in document)
    return spec.place == "codecs" and named


def _is_foreign(spec: CodecSpec) -> bool:
    """Return whether a codec was parsed from a v3 document and is unknown to this package."""
    if spec.name in _KINDS or not _is_from_v3(spec):
        return False
    return not read_definition(spec.document, spec.place)[0].startswith(_NUMCODECS)


def complete_chain(specs: Sequence[CodecSpec], kinds: Mapping[str, str]) -> tuple[CodecSpec, ...]:
    """Insert the ``bytes`` codec into a codec chain if v3 requires it.

    `kinds` maps the name of each codec from another package to ``"array-array"``,
    ``"array-bytes"`` or ``"bytes-bytes"``. In the returned chain, the `document` attribute of every
    codec from another package contains the codec's v3 JSON.

    Raises
    ------
    UnsupportedError
        If v3 does not allow the order of the codecs.
    """
    every_kind = _check_order(specs, kinds)
    chain = []
    for spec in specs:
        document = {"name": spec.name, "configuration": dict(spec.configuration)}
        chain.append(replace(spec, document=document) if spec.name in kinds else spec)
    if "array-bytes" not in every_kind:
        # An array-to-array codec from another package may change the data type to an unknown one,
        # so the byte order has to be explicit.
        retyped = any(kind == "array-array" for kind in kinds.values())
        configuration = {"endian": "little"} if retyped else {}
        chain.insert(every_kind.count("array-array"), CodecSpec("bytes", configuration))
    return tuple(chain)


def _check_order(specs: Sequence[CodecSpec], kinds: Mapping[str, str]) -> list[str]:
    """Return the kind of each codec, or raise UnsupportedError if v3 does not allow their order."""
    names = [spec.name for spec in specs]
    every_kind = [kinds.get(name) or _KINDS.get(name, "bytes-bytes") for name in names]
    if every_kind != sorted(every_kind) or every_kind.count("array-bytes") > 1:
        raise UnsupportedError(
            f"Zarr v3 does not allow this order of codecs: {quote(', '.join(names))}"
        )
    return every_kind


def with_bytes(specs: Sequence[CodecSpec]) -> list[CodecSpec]:
    """Insert the ``bytes`` codec between the array-to-array codecs and the bytes-to-bytes codecs.

    A chain that already has an array-to-bytes codec, or an unknown codec, is returned unchanged.
    """
    if any(spec.name in _ARRAY_TO_BYTES or _is_foreign(spec) for spec in specs):
        return list(specs)
    filters = list(takewhile(lambda spec: spec.name in _ARRAY_TO_ARRAY, specs))
    return [*filters, CodecSpec("bytes"), *specs[len(filters) :]]


def check_byte_order(spec: CodecSpec, dtype: DType, version: str) -> None:
    """Raise UnsupportedError if a codec is configured for big-endian numbers of type `dtype`.

    In Zarr v3 and its draft, codecs before the array-to-bytes codec always process numbers in
    native byte order. `version` is the Zarr version to name in the message.
    """
    configured = spec.configuration.get(_DECODED_DTYPES.get(spec.name, ""))
    if dtype.byteorder == ">" and configured == dtype.str:
        raise UnsupportedError(
            f"{version} does not support the codec {spec.name} for big-endian numbers"
        )


def _render_specs(specs: Sequence[CodecSpec], dtype: DType) -> list[Json]:
    rendered, own_dtype = [], dtype
    for spec in specs:
        if not _is_from_v3(spec):
            check_byte_order(spec, own_dtype, "Zarr v3")
        rendered.append(_render_spec(spec, dtype))
        dtype = encoded_type(spec, dtype)
    return rendered


def _render_spec(spec: CodecSpec, dtype: DType) -> Json:
    name, configuration, document = spec.name, dict(spec.configuration), spec.document
    stored = _is_from_v3(spec)
    if name == "bytes":
        endian = configuration.get("endian", byte_order(dtype))
        configuration = {} if endian is None else {"endian": endian}
        if stored and endian is not None:
            implied = "little" if dtype.names else None
            stored = read_definition(document, "codecs")[1].get("endian", implied) == endian
    if stored:
        return document
    if name == "cast_value":
        configuration["data_type"] = np.dtype(configuration["data_type"]).name
    if name in NUMERIC_CODECS:
        configuration = _render_numbers(configuration)
    if name == "crc32c" and configuration.pop("location", "end") == "start":
        # The registered codec always stores the checksum at the end, and has no parameters.
        return {"name": _NUMCODECS + name, "configuration": {"location": "start"}}
    configuration = _REGISTERED.get(name, {}) | configuration
    if name == "blosc":
        kind = configuration["shuffle"]
        if kind not in (0, 1, 2):  # AUTOSHUFFLE: numcodecs chooses by the item size
            kind = 2 if dtype.itemsize == 1 else 1
        configuration |= {"typesize": min(dtype.itemsize, 255), "shuffle": SHUFFLES[kind]}
    if name not in _REGISTERED and "." not in name:
        # zarr-python requires a configuration for numcodecs codecs, even if it is empty.
        return {"name": _NUMCODECS + name, "configuration": configuration}
    return {"name": name, "configuration": configuration} if configuration else {"name": name}


def _render_numbers(value: Any) -> Json:
    """Convert all NumPy scalars and special floats in a codec's configuration to JSON values."""
    if isinstance(value, Mapping):
        return {name: _render_numbers(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_render_numbers(item) for item in value]
    number = value.item() if isinstance(value, np.generic) else value
    return render_float(number) if isinstance(number, float) else number
