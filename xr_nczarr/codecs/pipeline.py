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
"""What numcodecs, the standard library and NumPy raise for what they cannot take."""


@dataclass(frozen=True, slots=True)
class Flow:
    """What a step encodes, and decodes to: elements, or a stream of bytes (uint8, no shape).

    Its `size` in bytes is None where it depends on the values; `bound` is the most it can be, by
    what the chunk's size makes possible or, when `limited`, by the caller's limit. `shuffled` is
    the element size of a shuffle that has none, and `chunk` the chunk in words, for messages.
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
        """Give the flow of elements of a fixed size that a step makes of this one."""
        size = math.prod(shape) * dtype.itemsize
        return replace(self, dtype=dtype, shape=shape, size=size, bound=size)

    def stream(self, size: int | None, bound: int) -> Flow:
        """Give the flow of bytes that a step makes of this one."""
        return replace(self, dtype=UINT8, shape=None, size=size, bound=bound)

    def compressed(self) -> Flow:
        """Give the flow behind a compressor; none makes more of what it cannot compress."""
        grown = self.bound if self.size is None else self.size + self.size // 32 + (1 << 16)
        return self.stream(None, grown)

    def unbounded(self, limits: Limits, growth: int = 1) -> Flow:
        """Give a flow of any size, up to the limit of what can grow `growth` times as large."""
        bound = max(limits.max_chunk_bytes // growth, 1 << 16)
        return replace(self.stream(None, bound), limited=True)

    def elements(self, data: Buffer) -> NDArray[Any]:
        """View the bytes of this flow as its elements; objects are what they are."""
        elements = data if self.dtype.hasobject else np.frombuffer(data, self.dtype)
        return elements if self.shape is None else elements.reshape(self.shape)

    def check_size(self, found: int, *, cut: bool = False) -> None:
        """Raise unless this flow can have `found` bytes; `cut` when the data go on behind them."""
        fits = found <= self.bound if self.size is None else found == self.size
        if fits:
            return
        many = f"more than {self.bound:,}" if cut or self.size is None else f"{found:,}"
        if self.limited and self.size is None:
            raise LimitError(f"decodes to {many} bytes ({self.chunk})", remedy=RAISE_LIMIT)
        wanted = "" if self.size is None else f", expected {self.size:,}"
        raise ChunkError(f"decodes to {many} bytes{wanted} ({self.chunk})", remedy=DAMAGED)

    def check_count(self, found: int) -> None:
        """Raise unless `found` is the number of elements."""
        if found != self.count:
            problem = f"decodes to {found:,} items, expected {self.count:,} ({self.chunk})"
            raise ChunkError(problem, remedy=DAMAGED)


@dataclass(frozen=True, slots=True)
class Step:
    """One codec, compiled for what it encodes.

    `decode` takes the encoded bytes and gives a flat buffer of exactly the decoded ones, or the
    array of objects; one that `fills` also takes the array of those bytes to fill and give.
    `encode` is the reverse. `place` is the step in words, for messages. `room` is of filters that
    do not hold every value: how far from given ones those may lie that come back, or `any_room` of
    one that itself refuses what it was not told to change.
    """

    decode: Callable[..., Any]
    encode: Callable[[Any], Any]
    encoded: Flow
    fills: bool = False
    place: str = ""
    room: Callable[[NDArray[Any]], Any] | None = None


def any_room(_: NDArray[Any]) -> float:
    """Let any value come back for another."""
    return math.inf


@dataclass(frozen=True, slots=True)
class Request:
    """A step to be built: its spec, and what it encodes."""

    spec: CodecSpec
    flow: Flow
    limits: Limits

    def settings(self, **defaults: Any) -> dict[str, Any]:
        """Give the parameters, each of its default's type: None stands for any."""
        found = self.spec.configuration
        unknown = sorted(map(str, found.keys() - defaults.keys()))
        if unknown:
            raise MetadataError(f"found unknown parameters: {quote(', '.join(unknown))}")
        return {
            name: _like(value, found.get(name, value), name) for name, value in defaults.items()
        }

    def construct(self, codec_class: Any = None, settings: dict[str, Any] | None = None) -> Any:
        """Give the codec, of numcodecs' class unless another of its interface is given."""
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
    """Give the step for a codec of numcodecs' interface; what it decodes to is checked."""

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
    """The way between the stored bytes of a chunk and its elements: from `flow` to `encoded`.

    The size of `encoded` is known when nothing in the chain compresses; a `raw` chunk is stored
    as its elements are, in C order and the node's dtype. One that `fills` decodes right into the
    array that it is given, others copy there. One that is `narrow` does not hold every value.
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
        """Give the elements of one chunk from its stored bytes.

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
        """Give the stored bytes of one chunk: of an uncompressed one a view of its memory."""
        flow = self.flow
        chunk = np.asarray(chunk, flow.dtype, order="C")
        if chunk.shape != flow.shape:
            raise ChunkError(f"found a chunk of shape {chunk.shape}, expected {flow.shape}")
        if flow.size == 0:
            return self.encode_buffer(b"")  # type: ignore[no-any-return]
        encoded = self.encode_buffer(chunk if flow.size is None else bytes_of(chunk))
        return encoded.data if isinstance(encoded, np.ndarray) else encoded

    def check_held(self, data: Bytes, where: Any, values: NDArray[Any]) -> None:
        """Refuse a chunk's stored bytes if other values than these come back of them.

        Rounding is what filters are for; ChunkError tells of what they wrap, or lose.
        """
        back = self.decode(data)[where]
        with np.errstate(all="ignore"):
            same = (back == values) | ((back != back) & (values != values))
            room: Any = sum(room(values) for room in self._rooms)
            if np.any(room):
                same |= np.isfinite(back) & (np.abs(np.subtract(back, values, dtype="f8")) <= room)
        if not np.all(same):
            value, other = (each[~same].ravel()[0] for each in (values, back))
            raise ChunkError(
                f"the filters do not hold {value}: it would come back as {other}",
                remedy="Write it with others; those that opening left go with drop_encoding()",
            )

    def decode_buffer(self, data: Buffer, out: NDArray[Any] | None = None) -> Any:
        """Give `out`, filled, or else a flat buffer of exactly the decoded bytes (or objects)."""
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
        """Give the stored bytes of a flat buffer of bytes (or of an array of objects)."""
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
