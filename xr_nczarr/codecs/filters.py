"""Define checksum codecs, and filters that transform data without compressing it."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numcodecs
import numpy as np
from numcodecs.checksum32 import Checksum32
from numpy.typing import NDArray

from xr_nczarr.codecs.pipeline import UINT8, Buffer, Step, StepRequest, bytes_of, wrap
from xr_nczarr.errors import MetadataError, UnsupportedError, quote

TYPED = ("delta", "fixedscaleoffset", "quantize", "astype")
_SEPARATE_CHECKSUMS = ("crc32", "crc32c", "adler32")
CHECKSUMS = (*_SEPARATE_CHECKSUMS, "fletcher32", "jenkins_lookup3")


def build_shuffle(request: StepRequest) -> Step | None:
    """Build the `Step` for HDF5's shuffle filter.

    The filter stores the first bytes of all elements, then the second bytes, and so on. Trailing
    bytes that do not fill an element stay in place. Return None if the filter would not change the
    data.
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
    """Merge byte planes into elements: plane *n* provides byte *n* of every element.

    If the planes are short, all of them are copied in a single operation. Two long planes are
    merged by shifting 16-bit words, which is vectorized and twice as fast as strided copies. Three
    or more long planes are copied one by one.
    """
    size, count = planes.shape
    elements = target.reshape(-1, size)
    if count < 128 * size:
        elements[...] = planes.T
    elif size == 2:
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
    """Return the largest error that a round trip through a filter may introduce in each value.

    The filter `name` converts `values` to the dtype `stored` and back to `dtype`.
    """
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

    The size of the data that these codecs produce depends only on the size of their input.
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
    """A CRC-32C codec in pure Python, which is used if numcodecs does not provide this codec.

    It processes 10 MB/s, which is fast enough for shard indices.
    """

    codec_id = "crc32c"
    location = "end"

    @staticmethod
    def checksum(data: Buffer, value: int = 0) -> int:
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
