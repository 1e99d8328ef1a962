"""Define the codecs that transform chunks without compressing them.

These are the codecs for byte order, axis order and variable-length items, filters, and checksums.
"""

from __future__ import annotations

import importlib
import json
import pickle
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

import numcodecs
import numpy as np
from numcodecs.checksum32 import Checksum32
from numpy.typing import NDArray

from xr_nczarr.codecs.pipeline import RAISE_LIMIT, UINT8, Buffer, Step, StepRequest, bytes_of, wrap
from xr_nczarr.errors import ChunkError, LimitError, MetadataError, UnsupportedError, quote
from xr_nczarr.model import Json, is_unicode

TYPED = ("delta", "fixedscaleoffset", "quantize", "astype")
_SEPARATE_CHECKSUMS = ("crc32", "crc32c", "adler32")
CHECKSUMS = (*_SEPARATE_CHECKSUMS, "fletcher32", "jenkins_lookup3")
# Memory that parsed Python objects take: bytes per character of JSON, bytes per value of JSON, and
# the factor by which msgpack data grows. In the worst case, msgpack data consists of empty lists.
_CHARACTER_BYTES, _VALUE_BYTES, _PACKED_GROWTH = 4, 256, 72


def build_unicode_check(request: StepRequest) -> Step | None:
    """Build the `Step` that raises ChunkError if decoded strings are not valid Unicode.

    The step does not change the data. Return None if the elements contain no fixed-width strings.
    """
    flow = request.flow
    if not _contains_text(flow.dtype):
        return None

    def check(data: Any) -> Any:
        if not is_unicode(flow.elements(data)):
            raise ChunkError("the decoded text is not valid Unicode")
        return data

    return Step(check, lambda data: data, flow, place="dtype")


def _contains_text(dtype: np.dtype[Any]) -> bool:
    if dtype.names is not None:
        return any(_contains_text(dtype[name].base) for name in dtype.names)
    return dtype.kind == "U" and dtype.itemsize > 0


def build_bytes(request: StepRequest) -> Step | None:
    """Build the `Step` that swaps bytes, or return None if no swap is needed."""
    endian, flow = request.settings(endian=None)["endian"], request.flow
    if endian is None or flow.dtype == flow.dtype.newbyteorder("<" if endian == "little" else ">"):
        return None
    # The array's dtype usually has the stored byte order. The byte order can differ if an earlier
    # codec has converted the data type, or if the dtype is from a package other than NumPy. Arrays
    # of such a dtype always have native byte order: in a byte-swapped array, NumPy would store
    # scalars in the wrong byte order (observed with ml_dtypes 0.6).
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
        raise ChunkError("the decoded data is not a list that ends with a dtype and a shape")
    *values, _, shape = items
    rows = [values]
    for length in shape or [1]:
        for row in rows:
            if type(length) is not int or not isinstance(row, list) or len(row) != length:
                raise ChunkError(
                    f"the nested lists in the data do not have the declared shape {quote(shape)}"
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
            f'{quote(codec.astype)}; for a {flow.chunk}, "dtype" must be the dtype of the input, '
            'and "astype" must be an integer dtype'
        )
    step = wrap(codec, flow, flow.retyped(codec.astype, flow.shape))
    return replace(step, tolerance=lambda _: 0)


def build_shuffle(request: StepRequest) -> Step | None:
    """Build the `Step` for HDF5's shuffle filter, or return None if it would not change the data.

    The filter stores the first bytes of all elements, then the second bytes, and so on. Trailing
    bytes that do not fill an element stay in place.
    """
    flow, size = request.flow, request.settings(elementsize=0)["elementsize"]
    if size < 1:
        raise request.invalid("elementsize", size, "a positive integer")
    if size < 2 or flow.bound < 2 * size:
        return None

    def decode(data: Buffer, target: NDArray[Any] | None = None) -> Buffer:
        stored = np.frombuffer(data, UINT8)
        if target is None:
            target = np.empty(len(stored), UINT8)
        whole = len(stored) // size * size
        _merge_planes(stored[:whole].reshape(size, -1), target[:whole])
        target[whole:] = stored[whole:]
        return target

    def encode(data: Buffer) -> Buffer:
        elements = np.frombuffer(data, UINT8)
        target = np.empty(len(elements), UINT8)
        whole = len(elements) // size * size
        target[:whole].reshape(size, -1)[...] = elements[:whole].reshape(-1, size).T
        target[whole:] = elements[whole:]
        return target

    return Step(decode, encode, flow.stream(flow.size, flow.bound), fills=True)


def _merge_planes(planes: NDArray[Any], target: NDArray[np.uint8]) -> None:
    """Merge byte planes into elements: plane *n* provides byte *n* of every element."""
    size, count = planes.shape
    elements = target.reshape(-1, size)
    if count < 128 * size:
        elements[...] = planes.T
    elif size == 2:  # shifting words is vectorized and twice as fast as strided copies
        words = target.view("<u2")
        words[...] = planes[1]
        words <<= 8
        words |= planes[0]
    else:
        for number, plane in enumerate(planes):
            elements[:, number] = plane


def build_typed(request: StepRequest) -> Step:
    """Build the `Step` for a numcodecs filter that can change the dtype, such as ``delta``."""
    spec, flow = request.spec, request.flow
    codec = request.construct()
    if spec.name == "astype":
        dtype, stored = codec.decode_dtype, codec.encode_dtype
    else:
        dtype, stored = codec.dtype, codec.astype
    if dtype.hasobject or stored.hasobject or not dtype.itemsize or not stored.itemsize:
        raise MetadataError(
            f"codec {spec.name} converts dtype {quote(dtype)} to {quote(stored)}; expected two "
            "fixed-size dtypes"
        )
    if flow.size is None or flow.size % dtype.itemsize:
        raise MetadataError(
            f"codec {spec.name} requires input of a fixed size that is a multiple of "
            f"{dtype.itemsize} bytes, the item size of dtype {quote(dtype)} ({flow.chunk})"
        )
    is_swapped = dtype != flow.dtype and dtype == flow.dtype.newbyteorder()
    if is_swapped and not spec.is_buffer_filter:
        raise UnsupportedError(
            f'codec parameter "dtype" is {quote(dtype)}, whose byte order differs from the byte '
            "order of the array"
        )
    if spec.name == "fixedscaleoffset":
        for name in ("scale", "offset"):
            value = getattr(codec, name)
            if type(value) not in (int, float) or not abs(value) < sys.float_info.max:
                raise request.invalid(name, value, "a finite number")
        if not codec.scale:
            raise request.invalid("scale", codec.scale, "a nonzero number")
    count = flow.size // dtype.itemsize
    shape = (count,) if flow.shape is None or flow.count != count else flow.shape
    step = wrap(codec, flow.retyped(dtype, shape), flow.retyped(stored, shape))
    return replace(step, tolerance=partial(_tolerance, spec.name, codec, dtype, stored))


def _tolerance(
    name: str, codec: Any, dtype: np.dtype[Any], stored: np.dtype[Any], values: NDArray[Any]
) -> Any:
    """Return the maximum error of each value after a round trip through the filter `name`."""
    floats = [item for item in (dtype, stored) if item.kind == "f"]
    rounding = 8 * max((np.finfo(item).eps for item in floats), default=0)
    if name == "fixedscaleoffset":
        step = 0.5 / abs(codec.scale) + (dtype.kind != "f")
        return step + rounding * (np.abs(values) + abs(codec.offset))
    if dtype.kind != "f":
        return 0
    if name == "quantize":
        return 10.0**-codec.digits + rounding * np.abs(values)
    if stored.kind == "f":
        return np.finfo("f8").max  # allow any finite error: sums and differences are rounded
    return int(name == "astype")  # fractions are truncated


def build_bitround(request: StepRequest) -> Step:
    """Build the `Step` for ``bitround``, which rounds floats when encoding.

    Decoding returns the rounded floats unchanged.
    """
    codec, flow = request.construct(), request.flow
    native = flow.dtype.newbyteorder("=")

    def encode(data: Buffer) -> Buffer:
        rounded = codec.encode(flow.elements(data).astype(native)).view(native)
        return bytes_of(rounded.astype(flow.dtype, copy=False))

    return Step(lambda data: data, encode, replace(flow, rounded=True))


def build_sized(request: StepRequest) -> Step:
    """Build the `Step` for ``packbits``, ``base64`` or a checksum codec.

    The encoded size of these codecs depends only on the size of their input.
    """
    name, flow = request.spec.name, request.flow
    if name == "packbits" and (flow.size is None or flow.dtype.itemsize != 1):
        raise MetadataError(
            f"the input of codec {name} has dtype {quote(flow.dtype)}; expected bool ({flow.chunk})"
        )
    codec = request.construct(numcodecs.registry.codec_registry.get(name, _Crc32c))
    size = None if flow.size is None else _encoded_size(name, flow.size)
    decoded = flow.stream(flow.size, flow.bound)
    encoded = flow.stream(size, _encoded_size(name, flow.bound))
    step = wrap(codec, decoded, encoded)
    if name == "packbits":  # packbits treats any nonzero byte as True
        return replace(step, tolerance=lambda _: 0)
    if name not in _SEPARATE_CHECKSUMS:
        return step

    def decode(data: Buffer) -> Buffer:
        """Verify the checksum, and return a view of the data. numcodecs would return a copy."""
        stored = np.frombuffer(data, UINT8)
        at_end = codec.location == "end"
        body, checksum = (stored[:-4], stored[-4:]) if at_end else (stored[4:], stored[:4])
        computed = codec.checksum(body) & 0xFFFFFFFF
        if len(checksum) < 4 or computed != int.from_bytes(checksum, "little"):
            return step.decode(data)  # raises an error that names the cause
        decoded.check_size(len(body))
        return body

    return replace(step, decode=decode)


def _encoded_size(name: str, size: int) -> int:
    if name == "packbits":
        return 1 + (size + 7) // 8
    return 4 * ((size + 2) // 3) if name == "base64" else size + 4


class _Crc32c(Checksum32):  # type: ignore[misc]
    """A CRC-32C codec in pure Python, which is used if numcodecs does not provide this codec."""

    codec_id = "crc32c"
    location = "end"

    @staticmethod
    def checksum(data: Buffer, value: int = 0) -> int:
        # This processes 10 MB/s, which is fast enough for shard indices.
        table = _crc32c_table()
        value ^= 0xFFFFFFFF
        for byte in bytes(data):
            value = table[(value ^ byte) & 0xFF] ^ value >> 8
        return value ^ 0xFFFFFFFF


@lru_cache(1)
def _crc32c_table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [entry >> 1 ^ (0x82F63B78 if entry & 1 else 0) for entry in table]
    return table
