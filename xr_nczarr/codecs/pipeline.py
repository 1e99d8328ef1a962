"""What codec chains are made of and how they run, whatever the codecs are."""

from __future__ import annotations

import math
import pickle
import re
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from lzma import LZMAError
from typing import Any

import numpy as np
from numcodecs import registry as numcodecs_registry
from numcodecs.compat import ensure_contiguous_ndarray
from numpy.typing import NDArray

from xr_nczarr.errors import (
    ChunkError,
    LimitError,
    MetadataError,
    NczarrError,
    quote,
    reason_of,
)
from xr_nczarr.model import CodecSpec, Json, Limits

Bytes = bytes | bytearray | memoryview
Buffer = Any
"""Anything with the buffer protocol whose `len` is its size in bytes."""

UINT8 = np.dtype(np.uint8)
DAMAGED = "The chunk is damaged or was cut: write it again."
RAISE_LIMIT = "If that is right, raise max_chunk_bytes."
FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    EOFError,
    LookupError,
    LZMAError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.PickleError,
    struct.error,
    zlib.error,
)
"""Exceptions of numcodecs, the standard library and NumPy for damaged or unfit data."""


@dataclass(frozen=True, slots=True)
class Flow:
    """The decoded side of a step: elements, or a stream of bytes (uint8, no shape).

    `size` in bytes is None where it depends on the values. `bound` is the largest size that the
    chunk's size permits or, if `limited`, the caller's limit. `shuffled` is the element size for a
    shuffle without one, and `chunk` names the chunk in messages.
    """

    chunk: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None
    size: int | None
    bound: int
    limited: bool = False
    shuffled: int = 1

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape or ())

    def retyped(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Flow:
        """Return the flow of elements of a fixed size that a step encodes this one to."""
        size = math.prod(shape) * dtype.itemsize
        return replace(self, dtype=dtype, shape=shape, size=size, bound=size)

    def stream(self, size: int | None, bound: int) -> Flow:
        """Return the flow of bytes that a step encodes this one to."""
        return replace(self, dtype=UINT8, shape=None, size=size, bound=bound)

    def compressed(self) -> Flow:
        """Return the flow after a compressor, with room for data that cannot be compressed."""
        grown = self.bound if self.size is None else self.size + self.size // 32 + (1 << 16)
        return self.stream(None, grown)

    def unbounded(self, limits: Limits, growth: int = 1) -> Flow:
        """Return a flow of any size that stays within the limit when it grows `growth` times."""
        bound = max(limits.max_chunk_bytes // growth, 1 << 16)
        return replace(self.stream(None, bound), limited=True)

    def elements(self, data: Buffer) -> NDArray[Any]:
        """View the bytes of this flow as its elements; return objects unchanged."""
        elements = data if self.dtype.hasobject else np.frombuffer(data, self.dtype)
        return elements if self.shape is None else elements.reshape(self.shape)

    def check_size(self, size: int, *, cut: bool = False) -> None:
        """Raise ChunkError or LimitError unless this flow can have `size` bytes.

        `cut` says that more data follow.
        """
        fits = size <= self.bound if self.size is None else size == self.size
        if fits:
            return
        many = f"more than {self.bound:,}" if cut or self.size is None else f"{size:,}"
        if self.limited and self.size is None:
            raise LimitError(f"decodes to {many} bytes ({self.chunk})", remedy=RAISE_LIMIT)
        wanted = "" if self.size is None else f", expected {self.size:,}"
        raise ChunkError(f"decodes to {many} bytes{wanted} ({self.chunk})", remedy=DAMAGED)

    def check_count(self, count: int) -> None:
        """Raise ChunkError unless `count` is the number of elements."""
        if count != self.count:
            problem = f"decodes to {count:,} items, expected {self.count:,} ({self.chunk})"
            raise ChunkError(problem, remedy=DAMAGED)


@dataclass(frozen=True, slots=True)
class Step:
    """One codec, compiled for the elements or bytes that it encodes.

    `decode` takes the encoded bytes and returns a flat buffer of exactly the decoded bytes, or the
    array of objects. If the step `fills`, it also takes an array of bytes to fill and return.
    `encode` is the reverse. `place` names the step in messages. `room` belongs to filters that do
    not hold every value: it returns how far decoded values may lie from the encoded ones. It is
    `any_room` for a filter that itself raises for values that it must not change.
    """

    decode: Callable[..., Any]
    encode: Callable[[Any], Any]
    encoded: Flow
    fills: bool = False
    place: str = ""
    room: Callable[[NDArray[Any]], Any] | None = None


def any_room(_: NDArray[Any]) -> float:
    """Return infinity: any value may decode to another."""
    return math.inf


@dataclass(frozen=True, slots=True)
class Request:
    """A step to be built: its spec, and the flow that it encodes."""

    spec: CodecSpec
    flow: Flow
    limits: Limits

    def settings(self, **defaults: Any) -> dict[str, Any]:
        """Return the parameters, each of its default's type; a default of None permits any type."""
        configuration = self.spec.configuration
        unknown = sorted(map(str, configuration.keys() - defaults.keys()))
        if unknown:
            raise MetadataError(f"found unknown parameters: {quote(', '.join(unknown))}")
        return {
            name: _like(value, configuration.get(name, value), name)
            for name, value in defaults.items()
        }

    def construct(self, codec_class: Any = None, settings: dict[str, Any] | None = None) -> Any:
        """Return the codec object, of numcodecs' class unless another class is passed."""
        codec_class = codec_class or numcodecs_registry.codec_registry[self.spec.name]
        settings = dict(settings or self.spec.configuration)
        settings.pop("id", None)
        try:
            return codec_class.from_config(settings)
        except (*FAILURES, SyntaxError) as failure:
            problem = f"found a configuration that the codec refuses: {reason_of(failure)}"
            raise MetadataError(problem) from failure


def _like(default: Any, value: Json, name: str) -> Json:
    if default is None or type(value) is type(default):
        return value
    # netcdf-c up to 4.9.3 wrote integers as strings.
    if type(default) is int and isinstance(value, str) and re.fullmatch("-?[0-9]{1,19}", value):
        return int(value)
    expected = type(default).__name__
    raise MetadataError(f"found {name} = {quote(repr(value))}, expected {expected}")


def wrap(codec: Any, flow: Flow, encoded: Flow) -> Step:
    """Return the step for a codec of numcodecs' interface, whose decoded size is checked."""

    def decode(data: Buffer) -> Buffer:
        with np.errstate(all="ignore"):
            decoded = codec.decode(data)
        if flow.dtype.hasobject:
            items = np.asarray(decoded, dtype=object)
            flow.check_count(items.size)
            return items
        if isinstance(decoded, np.ndarray) and decoded.dtype.hasobject:
            # kerchunk's fill_hdf_strings, of vlen_encode="null" and "encode".
            raise ChunkError(
                f"decodes to Python objects, and the metadata declare {quote(flow.dtype)}, whose "
                "items have a fixed size",
                remedy='If kerchunk made the metadata, make them again with vlen_encode="leave" '
                'or "embed".',
            )
        flat = bytes_of(ensure_contiguous_ndarray(decoded))
        flow.check_size(len(flat))
        return flat

    def encode(data: Buffer) -> Buffer:
        with np.errstate(all="ignore"):
            return bytes_of(ensure_contiguous_ndarray(codec.encode(flow.elements(data))))

    return Step(decode, encode, encoded)


def bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    """View a C-contiguous array as its bytes."""
    return array.reshape(-1).view(UINT8)


class ChunkCodec:
    """The codecs of a chunk as one: from the elements in `flow` to the stored bytes in `encoded`.

    The size of `encoded` is known if no codec compresses. A `raw` chunk is stored as its elements
    are, in C order and the node's dtype. A codec that `fills` decodes right into the caller's
    array; others copy there. A `narrow` codec does not hold every value.
    """

    __slots__ = ("_rooms", "_steps", "encoded", "fills", "flow", "narrow", "raw")

    def __init__(self, flow: Flow, steps: Sequence[Step]) -> None:
        self.flow = flow
        self.encoded = steps[-1].encoded if steps else flow
        self.raw = not steps
        self.fills = bool(steps) and steps[0].fills
        self._steps = steps
        self._rooms = [step.room for step in steps if step.room is not None]
        self.narrow = bool(self._rooms) and any_room not in self._rooms

    def decode(self, data: Bytes, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Decode the stored bytes of one chunk into its elements.

        A C-contiguous `out` of the chunk's shape and dtype is filled and returned; without it the
        result may be a read-only view of `data`.

        Raises
        ------
        ChunkError, LimitError
            When the data do not decode to the chunk that the metadata declare.
        """
        flow = self.flow
        decoded = self.decode_buffer(data, out)
        if out is not None and decoded is out:
            return out
        chunk: NDArray[Any] = (
            decoded.reshape(flow.shape)
            if flow.size is None
            else np.ndarray(flow.shape or (), flow.dtype, decoded)
        )
        if out is None:
            return chunk
        out[...] = chunk
        return out

    def encode(self, chunk: NDArray[Any]) -> Bytes:
        """Encode one chunk; an uncompressed one becomes a view of its memory."""
        flow = self.flow
        chunk = np.asarray(chunk, flow.dtype, order="C")
        if chunk.shape != flow.shape:
            raise ChunkError(f"found a chunk of shape {chunk.shape}, expected {flow.shape}")
        if flow.size == 0:
            return self.encode_buffer(b"")  # type: ignore[no-any-return]
        encoded = self.encode_buffer(chunk if flow.size is None else bytes_of(chunk))
        return encoded.data if isinstance(encoded, np.ndarray) else encoded

    def check_held(self, data: Bytes, where: Any, values: NDArray[Any]) -> None:
        """Raise ChunkError if decoding `data` does not reproduce `values` at `where`.

        The rounding of the filters is permitted.
        """
        back = self.decode(data)[where]
        with np.errstate(all="ignore"):
            same = (back == values) | ((back != back) & (values != values))
            room: Any = sum(room(values) for room in self._rooms)
            if np.any(room):
                same |= np.isfinite(back) & (np.abs(np.subtract(back, values, dtype="f8")) <= room)
        if not np.all(same):
            value, other = (array[~same].ravel()[0] for array in (values, back))
            raise ChunkError(
                f"the filters do not hold {value}: it would come back as {other}",
                remedy="Write it with others; those that opening left go with drop_encoding()",
            )

    def decode_buffer(self, data: Buffer, out: NDArray[Any] | None = None) -> Any:
        """Fill and return `out`, or return a flat buffer of the decoded bytes (or objects)."""
        steps = self._steps
        size = self.encoded.size
        if size is not None and len(data) != size:
            problem = f"found {len(data):,} bytes, expected {size:,} ({self.flow.chunk})"
            place = steps[-1].place if steps else None
            raise ChunkError(problem, remedy=DAMAGED, place=place)
        for step in reversed(steps):
            try:
                if out is not None and step.fills and step is steps[0]:
                    step.decode(data, bytes_of(out))
                    return out
                data = step.decode(data)
            except NczarrError as error:
                error.located(place=step.place)
                raise
            except FAILURES as failure:
                raise self._failed("decoded", step, failure, DAMAGED) from failure
        return data

    def encode_buffer(self, data: Buffer) -> Any:
        """Encode a flat buffer of bytes (or an array of objects) into the stored bytes."""
        for step in self._steps:
            try:
                data = step.encode(data)
            except NczarrError as error:
                error.located(place=step.place)
                raise
            except FAILURES as failure:
                raise self._failed("encoded", step, failure) from failure
        return data

    def _failed(self, what: str, step: Step, failure: Exception, remedy: str = "") -> ChunkError:
        problem = f"cannot be {what} ({self.flow.chunk}): {reason_of(failure)}"
        return ChunkError(problem, remedy=remedy, place=step.place)
