"""Define the codecs for byte order, axis order and variable-length items."""

from __future__ import annotations

import importlib
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_nczarr.codecs.pipeline import (
    DAMAGED,
    RAISE_LIMIT,
    UINT8,
    Buffer,
    Step,
    StepRequest,
    bytes_of,
    wrap,
)
from xr_nczarr.errors import ChunkError, LimitError, MetadataError, UnsupportedError, quote
from xr_nczarr.model import Json

# Memory that parsed Python objects take: bytes per character of JSON, bytes per value of JSON, and
# the factor by which msgpack data grows. In the worst case, msgpack data consists of empty lists.
_CHARACTER_BYTES, _VALUE_BYTES, _PACKED_GROWTH = 4, 256, 72


def build_bytes(request: StepRequest) -> Step | None:
    """Build the `Step` that swaps bytes, or return None if no swap is needed.

    Usually, the array's dtype has the stored byte order, so no bytes have to be swapped. There are
    two exceptions:

    - If an earlier codec converts the data type, the array's dtype does not determine the stored
      byte order.
    - If the dtype is defined by a package other than NumPy, the array always has native byte order.
      In a byte-swapped array with this dtype, NumPy would store assigned scalars in the wrong byte
      order (observed with ml_dtypes 0.6).
    """
    endian, flow = request.settings(endian=None)["endian"], request.flow
    if endian is None or flow.dtype == flow.dtype.newbyteorder("<" if endian == "little" else ">"):
        return None
    unit = np.dtype(f"u{flow.dtype.itemsize}") if flow.dtype.isbuiltin == 2 else flow.dtype

    def swap(data: Buffer) -> Buffer:
        return bytes_of(np.frombuffer(data, unit).byteswap())

    return Step(swap, swap, flow)


def build_transpose(request: StepRequest) -> Step | None:
    """Build the `Step` that stores the axes in a different order.

    The order ``"F"`` reverses all axes. Return None if the transposition does not change the bytes.
    """
    flow, order = request.flow, request.settings(order=None)["order"]
    shape = flow.shape or ()
    axes = list(range(len(shape)))
    if order in ("C", "F"):
        order = axes if order == "C" else axes[::-1]
    is_list = isinstance(order, list | tuple) and flow.shape is not None
    if not is_list or sorted(map(repr, order)) != sorted(map(repr, axes)):
        raise request.invalid("order", order, f"a permutation of {axes}")
    if list(order) == axes or flow.count < 2:
        return None
    objects = flow.dtype.hasobject
    inverse = np.argsort(order)
    encoded = replace(flow, shape=tuple(shape[axis] for axis in order))

    def decode(data: Any, target: NDArray[Any] | None = None) -> Any:
        moved = encoded.elements(data).transpose(inverse)
        if target is None:
            moved = np.ascontiguousarray(moved)
            return moved if objects else bytes_of(moved)
        target.view(flow.dtype).reshape(shape)[...] = moved
        return target

    def encode(data: Any) -> Any:
        moved = np.ascontiguousarray(flow.elements(data).transpose(order))
        return moved if objects else bytes_of(moved)

    return Step(decode, encode, encoded, fills=not objects)


def build_vlen(request: StepRequest) -> Step:
    """Build the `Step` for variable-length strings, byte strings or arrays.

    In the encoded data, each item is preceded by its length, which is a 32-bit number.
    """
    flow, max_bytes = request.flow, request.limits.max_item_bytes
    if not flow.dtype.hasobject:
        raise MetadataError(
            f"the input of codec {request.spec.name} has fixed-size items; expected "
            f"variable-length items ({flow.chunk})"
        )
    codec = request.construct()
    dtype = getattr(codec, "dtype", UINT8)
    if dtype.hasobject or not dtype.itemsize:
        raise request.invalid("dtype", dtype, "a fixed-size dtype")

    def decode(data: Buffer) -> NDArray[Any]:
        flow.check_count(int.from_bytes(data[:4], "little"))
        items: NDArray[Any] = codec.decode(data)
        if len(data) > max_bytes and max(map(len, items)) * dtype.itemsize > max_bytes:
            problem = f"an item is larger than the limit of {max_bytes:,} bytes ({flow.chunk})"
            remedy = "If you trust the store, pass limits=Limits(max_item_bytes=…)"
            raise LimitError(problem, remedy=remedy)
        return items

    def encode(data: Any) -> Any:
        return codec.encode(np.require(data, requirements="W"))  # required by numcodecs

    return Step(decode, encode, flow.stream(None, flow.bound))


def build_text(request: StepRequest) -> Step:
    """Build the `Step` for numcodecs' JSON and msgpack codecs.

    These codecs store a single list, which contains the items followed by the dtype and the shape.
    """
    flow, limits = request.flow, request.limits
    parse: Callable[[Buffer], Json]
    codec, growth = request.construct(), _PACKED_GROWTH
    if request.spec.name == "json2":
        encoding = str(request.spec.configuration.get("encoding", "utf-8")).lower()
        if encoding not in ("utf-8", "utf8", "ascii"):
            raise UnsupportedError(
                f'codec parameter "encoding" is {quote(encoding)}; expected "utf-8"'
            )
        parse, growth = partial(_parse_json, max_bytes=limits.max_chunk_bytes), _CHARACTER_BYTES
    else:
        parse = partial(importlib.import_module("msgpack").unpackb, raw=codec.raw)

    encoded = flow.of_unknown_size(limits, growth)

    def decode(data: Buffer) -> Any:
        encoded.check_size(len(data))
        rows = _flatten(parse(data))
        flow.check_count(len(rows))
        elements = np.fromiter(rows, flow.dtype, flow.count)
        return elements if flow.dtype.hasobject else bytes_of(elements)

    def encode(data: Any) -> Buffer:
        return codec.encode(flow.elements(data).reshape(-1))

    return Step(decode, encode, encoded)


def _parse_json(data: Buffer, max_bytes: int) -> Json:
    text = str(data, "utf-8")
    commas = text.count(",")
    if commas > 1 << 16 and commas * _VALUE_BYTES > max_bytes:
        raise LimitError(
            f"the JSON data contains {commas:,} commas, so parsing it may need more than "
            f"{max_bytes:,} bytes of memory",
            remedy=RAISE_LIMIT,
        )
    return json.loads(text, strict=False)


def _flatten(items: Json) -> list[Json]:
    if not isinstance(items, list) or len(items) < 2 or not isinstance(items[-1], list):
        raise ChunkError(
            "the decoded data is not a list that ends with a dtype and a shape", remedy=DAMAGED
        )
    *values, _, shape = items
    rows = [values]
    for length in shape or [1]:
        for row in rows:
            if type(length) is not int or not isinstance(row, list) or len(row) != length:
                raise ChunkError(
                    f"the nested lists in the data do not have the declared shape {quote(shape)}",
                    remedy=DAMAGED,
                )
        rows = [item for row in rows for item in row]
    return rows


def build_pickle(request: StepRequest) -> Step:
    """Build the `Step` for pickled objects.

    Call this function only if the user has allowed the ``pickle`` codec.
    """
    settings = request.settings(protocol=pickle.HIGHEST_PROTOCOL)
    codec = SimpleNamespace(decode=pickle.loads, encode=partial(pickle.dumps, **settings))
    return wrap(codec, request.flow, request.flow.of_unknown_size(request.limits))


def build_categorize(request: StepRequest) -> Step:
    """Build the `Step` that stores each string as its position in a list of labels.

    The first label has position 1. A string that is not in the list is stored as 0, and decoded
    as an empty string.
    """
    flow, codec = request.flow, request.construct()
    if codec.astype.kind not in "iu" or codec.dtype != flow.dtype or flow.shape is None:
        raise MetadataError(
            f'codec parameter "dtype" is {quote(codec.dtype)}, and "astype" is '
            f'{quote(codec.astype)}; "dtype" must be the dtype of the input, and "astype" must be '
            f"an integer dtype ({flow.chunk})"
        )
    step = wrap(codec, flow, flow.retyped(codec.astype, flow.shape))
    return replace(step, tolerance=lambda _: 0)
