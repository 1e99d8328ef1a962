"""Define compiled codec chains.

A `Flow` describes the data between two codecs, a `Step` is one compiled codec, and a `ChunkCodec`
is an array's whole codec chain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numcodecs import registry as numcodecs_registry
from numcodecs.compat import ensure_contiguous_ndarray
from numpy.typing import NDArray

from xr_nczarr.errors import ChunkError, LimitError, MetadataError, NczarrError, quote, reason_of
from xr_nczarr.model import CodecSpec, Limits

Bytes = bytes | bytearray | memoryview
Buffer = Any
"""An object that supports the buffer protocol, and whose `len` is its size in bytes."""

UINT8 = np.dtype(np.uint8)
DAMAGED = "The chunk is damaged or truncated; rewrite it"
RAISE_LIMIT = "If you trust the store, pass limits=Limits(max_chunk_bytes=…)"


@dataclass(frozen=True, slots=True)
class Flow:
    """The type and size of the data that flows between two codecs of a chain.

    The data consists either of elements with a `dtype` and `shape`, or of a stream of bytes. A
    stream of bytes has the dtype uint8 and the shape None.

    Attributes
    ----------
    chunk
        Description of the chunk, for error messages.
    size
        Size in bytes, or None if the size depends on the values.
    bound
        Maximum size in bytes.
    limited
        Whether `bound` is a limit that the user can increase. Otherwise, it follows from the
        chunk's shape.
    rounded
        Whether the ``bitround`` codec has rounded the elements. As in numcodecs, the next codec
        then receives the bits of the floats as integers.
    """

    chunk: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...] | None
    size: int | None
    bound: int
    limited: bool = False
    rounded: bool = False

    @property
    def count(self) -> int:
        """Number of elements. A stream of bytes counts as one element."""
        return math.prod(self.shape or ())

    def retyped(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Flow:
        """Return a `Flow` for a codec whose output is an array with this `dtype` and `shape`."""
        size = math.prod(shape) * dtype.itemsize
        return replace(self, dtype=dtype, shape=shape, size=size, bound=size, rounded=False)

    def stream(self, size: int | None, bound: int) -> Flow:
        """Return a `Flow` for a codec whose output is a stream of bytes."""
        return replace(self, dtype=UINT8, shape=None, size=size, bound=bound)

    def compressed(self) -> Flow:
        """Return a `Flow` for the output of a compressor.

        The maximum size allows for incompressible data, which compression enlarges slightly.
        """
        grown = self.bound if self.size is None else self.size + self.size // 32 + (1 << 16)
        return self.stream(None, grown)

    def of_unknown_size(self, limits: Limits, growth: int = 1) -> Flow:
        """Return a `Flow` for a codec whose encoded size is not known in advance.

        The maximum size is ``limits.max_chunk_bytes`` divided by `growth`, but at least 64 KiB.
        `growth` is the largest factor by which decoding can enlarge the data.
        """
        bound = max(limits.max_chunk_bytes // growth, 1 << 16)
        return replace(self.stream(None, bound), limited=True)

    def elements(self, data: Buffer) -> NDArray[Any]:
        """View bytes as an array of elements with this flow's dtype and shape.

        If the elements are Python objects, `data` is already an array, and is only reshaped.
        """
        elements = data if self.dtype.hasobject else np.frombuffer(data, self.dtype)
        return elements if self.shape is None else elements.reshape(self.shape)

    def check_size(self, size: int, *, truncated: bool = False) -> None:
        """Check that decoded data has the expected size and does not exceed the maximum size.

        Set `truncated` if decoding was stopped after `size` bytes although more data followed.

        Raises
        ------
        ChunkError
            If the size contradicts the metadata.
        LimitError
            If the size exceeds a limit that the user can increase.
        """
        fits = size <= self.bound if self.size is None else size == self.size
        if fits:
            return
        if self.size is None:
            problem = f"the decoded data is longer than {self.bound:,} bytes ({self.chunk})"
            if self.limited:
                raise LimitError(problem, remedy=RAISE_LIMIT)
            raise ChunkError(problem)
        raise ChunkError(
            f"the decoded data is longer than the expected {self.size:,} bytes ({self.chunk})"
            if truncated
            else f"the decoded data is {size:,} bytes long; expected {self.size:,} ({self.chunk})"
        )

    def check_count(self, count: int) -> None:
        """Check the number of decoded elements against the metadata.

        Raises
        ------
        ChunkError
            If `count` differs from the number of elements in a chunk.
        """
        if count != self.count:
            raise ChunkError(
                f"the decoded data contains {count:,} items; expected {self.count:,} ({self.chunk})"
            )


@dataclass(frozen=True, slots=True)
class Step:
    """A codec compiled for data of one type and size.

    Attributes
    ----------
    decode
        Function that decodes bytes to a flat buffer, or to an array of Python objects. The buffer
        has exactly the decoded size.
    encode
        The inverse of `decode`.
    encoded
        A description of the encoded data.
    fills
        Whether `decode` can write its result into an array of bytes, passed as its second argument.
    place
        Name of the step, for error messages.
    tolerance
        Function that takes the original values, and returns the maximum error of the decoded
        values. None means that no check is required. Codecs that check the values themselves have
        the tolerance `unlimited_tolerance`.
    decode_many
        Function that decodes several buffers in one call, or None if the codec has no such
        function. The function returns None if the buffers must be decoded one by one.
    """

    decode: Callable[..., Any]
    encode: Callable[[Any], Any]
    encoded: Flow
    fills: bool = False
    place: str = ""
    tolerance: Callable[[NDArray[Any]], Any] | None = None
    decode_many: Callable[[Sequence[Buffer]], Iterable[Buffer] | None] | None = None


def unlimited_tolerance(_: NDArray[Any]) -> float:
    """Return infinity, which allows a codec to change values by any amount.

    If any `Step` of a codec chain has this `tolerance`, round trips through the chain are not
    checked.
    """
    return math.inf


@dataclass(frozen=True, slots=True)
class StepRequest:
    """A request to build a `Step` for a codec.

    `spec` describes the codec, and `flow` describes the data before encoding. `limits` contains the
    maximum sizes of chunks and items.
    """

    spec: CodecSpec
    flow: Flow
    limits: Limits

    def settings(self, **defaults: Any) -> dict[str, Any]:
        """Return the codec's parameters, with `defaults` for omitted parameters.

        Raises
        ------
        MetadataError
            If a parameter is not in `defaults`, or if its type differs from its default's type. A
            default of None allows any type.
        """
        configuration = self.spec.configuration
        unknown = sorted(map(str, configuration.keys() - defaults.keys()))
        if unknown:
            raise MetadataError(
                f"codec {self.spec.name} has unknown parameters: {quote(', '.join(unknown))}"
            )
        settings = {**defaults, **configuration}
        for name, default in defaults.items():
            if default is not None and type(settings[name]) is not type(default):
                expected = f"a value of type {type(default).__name__}"
                raise self.invalid(name, settings[name], expected)
        return settings

    def invalid(self, name: str, value: object, expected: str) -> MetadataError:
        """Build the error for a codec parameter with an invalid value.

        `expected` describes the valid values.
        """
        shown = quote(repr(value) if isinstance(value, str) else value)
        return MetadataError(f'codec parameter "{name}" is {shown}; expected {expected}')

    def construct(self, codec_class: Any = None, settings: dict[str, Any] | None = None) -> Any:
        """Create a codec object from a codec class and parameters.

        Parameters
        ----------
        codec_class
            Class of the codec. By default, the class that is registered with numcodecs under the
            codec's name.
        settings
            Parameters of the codec. By default, the configuration in the metadata.

        Raises
        ------
        MetadataError
            If the class rejects the parameters.
        """
        codec_class = codec_class or numcodecs_registry.codec_registry[self.spec.name]
        settings = dict(settings or self.spec.configuration)
        settings.pop("id", None)
        try:
            return codec_class.from_config(settings)
        except Exception as error:
            if not _is_codec_failure(error):
                raise
            problem = f"codec {self.spec.name} rejects its configuration: {reason_of(error)}"
            raise MetadataError(problem) from error


def wrap(codec: Any, flow: Flow, encoded: Flow) -> Step:
    """Build a `Step` that calls a numcodecs codec, and checks the size of the decoded data.

    `flow` describes the data before encoding, and `encoded` describes the encoded data.
    """

    def decode(data: Buffer) -> Buffer:
        with np.errstate(all="ignore"):
            decoded = codec.decode(data)
        if flow.dtype.hasobject:
            items = np.asarray(decoded, dtype=object)
            flow.check_count(items.size)
            return items
        if isinstance(decoded, np.ndarray) and decoded.dtype.hasobject:
            # With vlen_encode="null" or "encode", kerchunk (fill_hdf_strings) writes codecs that
            # decode to Python objects.
            raise ChunkError(
                "the decoded data consists of Python objects, but the metadata declares the "
                f"fixed-size dtype {quote(flow.dtype)}",
                remedy="If kerchunk created the metadata, recreate it with "
                'vlen_encode="leave" or vlen_encode="embed"',
            )
        flat = bytes_of(ensure_contiguous_ndarray(decoded))
        flow.check_size(len(flat))
        return flat

    def encode(data: Buffer) -> Buffer:
        with np.errstate(all="ignore"):
            return bytes_of(ensure_contiguous_ndarray(codec.encode(flow.elements(data))))

    return Step(decode, encode, encoded)


def bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a view of a C-contiguous array as a one-dimensional array of bytes."""
    return array.reshape(-1).view(UINT8)


class ChunkCodec:
    """The compiled codec chain of an array, which encodes and decodes whole chunks.

    Attributes
    ----------
    flow
        Description of the decoded elements of a chunk.
    encoded
        Description of the stored bytes of a chunk.
    raw
        Whether the stored bytes of a chunk are its elements in C order, so that decoding is
        unnecessary.
    fills
        Whether the chain can decode directly into an array that the caller passes.
    lossy
        Whether encoding can lose precision, so that `check_round_trip` must be called afterwards.
    decodes_many
        Whether `decode_many` is faster than decoding chunks one by one.
    """

    def __init__(self, flow: Flow, steps: Sequence[Step]) -> None:
        self.flow = flow
        self.encoded = steps[-1].encoded if steps else flow
        self.raw = not steps
        self.fills = bool(steps) and steps[0].fills
        self._steps = steps
        self._tolerances = [step.tolerance for step in steps if step.tolerance is not None]
        self.lossy = bool(self._tolerances) and unlimited_tolerance not in self._tolerances
        self.decodes_many = bool(steps) and steps[-1].decode_many is not None

    def decode_many(self, chunks: Sequence[Bytes | None]) -> tuple[ChunkCodec, list[Any]]:
        """Undo the last codec of the chain for several chunks in one call.

        Return a chain of the remaining codecs, and the partially decoded chunks. Missing chunks
        remain None.

        If the chunks cannot be decoded in one call, return `self` and the unchanged chunks. For
        example, this is the case if a chunk is damaged, or if fewer than two chunks are present.
        """
        present = [data for data in chunks if data is not None]
        decode_many = self._steps[-1].decode_many if self._steps else None
        decoded = decode_many(present) if decode_many and len(present) > 1 else None
        if decoded is None:
            return self, list(chunks)
        remaining = iter(decoded)
        rest = ChunkCodec(self.flow, self._steps[:-1])
        return rest, [None if data is None else next(remaining) for data in chunks]

    def decode(self, data: Bytes, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Decode the stored bytes of a chunk into its elements.

        If `out` is passed, it is filled and returned. It must be C-contiguous, and have the shape
        and dtype of the chunk. Without `out`, the result can be a read-only view of `data`.

        Raises
        ------
        ChunkError, LimitError
            If the data cannot be decoded to the shape and dtype that the metadata declares.
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
        """Encode the elements of a chunk into the bytes to be stored.

        If no codec changes the data, the result can be a view of the chunk's memory.

        Raises
        ------
        ChunkError
            If the chunk has the wrong shape or cannot be encoded.
        """
        flow = self.flow
        chunk = np.asarray(chunk, flow.dtype, order="C")
        if chunk.shape != flow.shape:
            raise ChunkError(f"the chunk has shape {chunk.shape}; expected {flow.shape}")
        if flow.size == 0:
            return self.encode_buffer(b"")  # type: ignore[no-any-return]
        encoded = self.encode_buffer(chunk if flow.size is None else bytes_of(chunk))
        return encoded.data if isinstance(encoded, np.ndarray) else encoded

    def check_round_trip(self, data: Bytes, index: Any, values: NDArray[Any]) -> None:
        """Raise ChunkError if decoding `data` does not reproduce `values`.

        `data` is the encoded chunk, and `index` is the NumPy index of `values` in the decoded
        chunk. Differences within the tolerance of the filters are allowed.
        """
        decoded = self.decode(data)[index]
        with np.errstate(all="ignore"):
            same = (decoded == values) | ((decoded != decoded) & (values != values))
            tolerance: Any = sum(tolerance(values) for tolerance in self._tolerances)
            if np.any(tolerance):
                difference = np.abs(np.subtract(decoded, values, dtype="f8"))
                same |= np.isfinite(decoded) & (difference <= tolerance)
        if not np.all(same):
            value, result = (array[~same].ravel()[0] for array in (values, decoded))
            raise ChunkError(
                f"the filters would change the value {value} to {result}",
                remedy="Write the variable with different filters, or call drop_encoding() to "
                "discard the filters of the source",
            )

    def check_stored_size(self, size: int) -> None:
        """Raise ChunkError if a stored chunk of `size` bytes is too short or too long.

        Any size is accepted if the size of stored chunks depends on their values.
        """
        expected = self.encoded.size
        if expected is not None and size != expected:
            problem = (
                f"the stored data is {size:,} bytes long; expected {expected:,} ({self.flow.chunk})"
            )
            place = self._steps[-1].place if self._steps else None
            raise ChunkError(problem, remedy=DAMAGED, place=place)

    def decode_buffer(self, data: Buffer, out: NDArray[Any] | None = None) -> Any:
        """Decode stored bytes into a flat buffer of bytes, or into an array of Python objects.

        If ``self.fills`` is True and `out` is passed, decode into `out` and return it. Otherwise,
        ignore `out`.
        """
        self.check_stored_size(len(data))
        steps = self._steps
        for step in reversed(steps):
            if out is not None and step.fills and step is steps[0]:
                self._run(step, "decoded", step.decode, data, bytes_of(out))
                return out
            data = self._run(step, "decoded", step.decode, data)
        return data

    def encode_buffer(self, data: Buffer) -> Any:
        """Encode a flat buffer of bytes, or an array of objects, into the bytes to be stored."""
        for step in self._steps:
            data = self._run(step, "encoded", step.encode, data)
        return data

    def _run(self, step: Step, action: str, function: Callable[..., Any], *data: Any) -> Any:
        """Call a function of a step, and add context to its errors.

        `action` is ``"decoded"`` or ``"encoded"``.
        """
        remedy = DAMAGED if action == "decoded" else ""
        try:
            return function(*data)
        except NczarrError as error:
            error.add_context(place=step.place)
            if isinstance(error, ChunkError):
                error.remedy = error.remedy or remedy
            raise
        except BaseException as failure:
            if not _is_codec_failure(failure):
                raise
            problem = f"the data cannot be {action} ({self.flow.chunk}): {reason_of(failure)}"
            raise ChunkError(problem, remedy=remedy, place=step.place) from failure


def _is_codec_failure(error: BaseException) -> bool:
    """Return whether an exception means that a codec rejected its data or configuration."""
    if isinstance(error, Exception):
        return not isinstance(error, MemoryError | ImportError)
    # Codecs written in Rust raise PanicException, which does not derive from Exception.
    return type(error).__name__ == "PanicException"
