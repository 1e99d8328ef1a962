"""Fetch and decode the chunks of a selection, and copy the selected elements to the result."""

from __future__ import annotations

import itertools
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np

from xr_nczarr.chunks.chunk_layout import ChunkLayout, ChunkObjects, Index
from xr_nczarr.chunks.grid import Array, ChunkPart, Plan
from xr_nczarr.chunks.partial_reads import Window, byte_window, part_within
from xr_nczarr.codecs import ChunkCodec, bytes_of, read_blosc_spans
from xr_nczarr.errors import MissingChunkError, NczarrError, StorageError
from xr_nczarr.locks import cached_property
from xr_nczarr.model import ArrayNode
from xr_nczarr.storage import Bytes, Store

_BLOCKS_FROM_BYTES = 512 << 10
_DECODED_TOGETHER_BYTES = 512 << 10
_MAX_CACHED_WINDOWS = 1000
_MAX_TURN_SECONDS = 0.002

_log = logging.getLogger(__name__)

Convert = Callable[[Array, Array], None]
"""Function that converts the stored elements in its first argument.

The results are written to the second argument, which may be the same array.
"""


@dataclass(eq=False, repr=False, kw_only=True)
class PartReader:
    """A reader that copies the parts of a plan to a result array.

    Several threads can use one reader at the same time.

    Attributes
    ----------
    plan
        The selection to read, split into parts.
    out
        The array to which the parts are copied.
    missing_chunks, convert
        See `ReadOptions` and `ChunkedArray.read`.
    read_ahead
        Whether to request several chunks at once. This is unnecessary if many threads read at the
        same time.
    """

    node: ArrayNode
    store: Store
    codec: ChunkCodec
    layout: ChunkLayout
    plan: Plan
    out: Array
    missing_chunks: str
    convert: Convert | None
    read_ahead: bool

    def __post_init__(self) -> None:
        is_whole = not self.node.stored_shape
        self.in_place = self.plan.slices_only and self.out.dtype == self.node.dtype and is_whole
        separate = not self.node.shards
        self.ranged = self.codec.raw and separate and is_whole
        self.direct = self.ranged and self.store.reads_in_place
        # Decoding single blocks takes three small reads instead of one large read. This is slower
        # if each read costs a round trip.
        names = [spec.name for spec in self.node.codecs]
        large = (self.codec.flow.size or 0) >= _BLOCKS_FROM_BYTES
        local = separate and not self.store.remote
        self.blocks = local and is_whole and large and names == ["blosc"]
        self._cached_windows: dict[tuple[int, ...], tuple[tuple[Any, ...], Window | None]] = {}
        self._lock = Lock()

    def read(self, batch: list[ChunkPart]) -> None:
        """Read a batch of parts, and write their values to the result.

        If `convert` is not None, the values are first converted with this function.
        """
        if self.direct:
            batch = self._read_directly(batch)
        if not batch:
            return
        windows = map(self._window, batch) if self.ranged or self.blocks else ()
        narrow = [window for window in windows if window is not None]
        if len(narrow) == len(batch):
            self._read_windows(batch, narrow)
        else:
            self._read_whole(batch)

    def _read_directly(self, batch: list[ChunkPart]) -> list[ChunkPart]:
        """Read uncompressed chunks from files, and return the parts whose chunks are missing."""
        absent: list[ChunkPart] = []
        scratch: Array | None = None
        previous: Window | None = None
        for part in batch:
            try:
                key = self.layout.key_of(part.chunk)
                target = self._target_as_chunk(part)
                window = self._window(part) if target is None else None
                # Parts with the same window share a buffer, to avoid allocating memory for each.
                if target is None and (scratch is None or window is not previous):
                    shape = self.node.chunk_shape if window is None else window.shape
                    scratch = np.empty(shape, self.node.dtype)
                    rows = [] if window is None else _rows(scratch, window.spans)
                    previous = window
                values: Any = scratch if target is None else target
                if window is None:
                    size = self.store.fetch_into(key, _buffer(values))
                else:
                    size = self.store.fetch_ranges_into(key, window.spans, rows)
                if size is None:
                    absent.append(part)
                    continue
                self.codec.check_stored_size(size)
                if target is None:
                    source = part.source if window is None else window.source
                    self._place(values, source, part.target)
                elif self.convert is not None:
                    self.convert(target, target)
            except NczarrError as error:
                self._locate(error, part)
                raise
        return absent

    def _read_whole(self, batch: list[ChunkPart]) -> None:
        """Fetch and decode whole chunks, and copy the selected elements to the result."""
        scratch = None
        fetched = self._with_context(self._fetch([part.chunk for part in batch]), batch)
        for part, (codec, data) in zip(batch, self._with_codec(fetched), strict=True):
            try:
                if data is None:
                    self._place_fill(part)
                    continue
                target = self._target_as_chunk(part)
                if target is None:
                    # Use one buffer for all chunks, because allocating a buffer can take longer
                    # than decoding. Create it only when it is needed, because freeing it can be
                    # slow too: its memory may be returned to the system.
                    if scratch is None and codec.fills:
                        scratch = np.empty(self.node.chunk_shape, self.node.dtype)
                    into = scratch if codec.fills else None
                    chunk = self._padded(codec.decode(data, into), part.chunk)
                    self._place(chunk, part.source, part.target)
                else:
                    codec.decode(data, target)
                    if self.convert is not None:
                        self.convert(target, target)
            except NczarrError as error:
                self._locate(error, part)
                raise

    def _fetch(self, chunks: Sequence[Index]) -> Iterator[Bytes | None]:
        """Yield the encoded bytes of each chunk, or None for a missing chunk."""
        if self.read_ahead or self.node.shards:
            return self.layout.fetch(self.store, chunks)
        singles = (self.layout.fetch(self.store, [chunk]) for chunk in chunks)
        return itertools.chain.from_iterable(singles)

    def _with_codec(self, fetched: Iterator[Bytes | None]) -> Iterator[tuple[ChunkCodec, Any]]:
        """Yield the codec chain and the data of each fetched chunk.

        If the data is already partially decoded, the chain contains only the remaining codecs.
        """
        if not self.codec.decodes_many:
            yield from zip(itertools.repeat(self.codec), fetched)
            return
        # `decode_many` requires at least two chunks.
        count = max(2, _DECODED_TOGETHER_BYTES // max(1, self.codec.flow.bound))
        while True:
            with self._turn() if self.store.reads_in_place else nullcontext():
                encoded = list(itertools.islice(fetched, count))
            if not encoded:
                return
            codec, decoded = self.codec.decode_many(encoded)
            yield from zip(itertools.repeat(codec), decoded)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait at most `_MAX_TURN_SECONDS` for other threads before running the ``with`` block."""
        # Threads that read small pieces of local files contend for the GIL after each system call.
        # They are faster if one thread reads while the others decode. A slow file system is not
        # worth a longer wait, because reading from it rarely needs the GIL.
        acquired = self._lock.acquire(timeout=_MAX_TURN_SECONDS)
        try:
            yield
        finally:
            if acquired:
                self._lock.release()

    def _target_as_chunk(self, part: ChunkPart) -> Array | None:
        """Return a view of the result into which the whole chunk can be decoded directly.

        Return None if there is no such view.
        """
        if not self.in_place or not part.complete:
            return None
        target = self.out[part.target] if part.target else self.out
        fits = target.shape == self.node.chunk_shape and target.flags.c_contiguous
        return target if fits else None

    def _padded(self, chunk: Array, index: Index) -> Array:
        """Return a chunk with fill values in place of all elements beyond `node.stored_shape`."""
        node = self.node
        if not node.stored_shape:
            return chunk
        within = part_within(node.stored_shape, node.chunk_shape, index)
        if chunk[within].shape == node.chunk_shape:
            return chunk
        padded = self._fill.copy()
        padded[within] = chunk[within]
        return padded

    def _place(self, chunk: Array, source: tuple[Any, ...], target: tuple[Any, ...]) -> None:
        if self.plan.axes is not None:
            chunk = chunk.transpose(self.plan.axes)
        if self.convert is None:
            self.out[target] = chunk[source]
        elif all(isinstance(item, slice) for item in target):
            # With the ellipsis, indexing never returns a scalar, which cannot be written to.
            self.convert(chunk[(*source, ...)], self.out[(*target, ...)])
        else:
            piece = chunk[source]
            values = np.empty(piece.shape, self.out.dtype)
            self.convert(piece, values)
            self.out[target] = values

    def _place_fill(self, part: ChunkPart) -> None:
        node = self.node
        if node.fill_value is None:
            raise MissingChunkError(
                "the chunk is missing, and the array has no fill value",
                remedy="Write the chunk, or add a fill_value to the array's metadata",
            )
        if self.missing_chunks == "raise":
            raise MissingChunkError(
                "the chunk is missing",
                remedy="Open the store with missing_chunks='fill' to read missing chunks as the "
                "fill value",
            )
        if self.missing_chunks == "warn":
            warnings.warn(
                f"{self.store.name}: {self.layout.key_of(part.chunk)}: the chunk is missing "
                f"and is read as the fill value {node.fill_value!r}",
                stacklevel=2,
            )
        elif _log.isEnabledFor(logging.DEBUG):
            key = self.layout.key_of(part.chunk)
            _log.debug(
                "%s: %s: the chunk is missing and is read as the fill value", self.store.name, key
            )
        self._place(self._fill, part.source, part.target)

    @cached_property
    def _fill(self) -> Array:
        """A chunk of fill values, broadcast from a scalar to save memory."""
        fill = np.empty((), self.node.dtype)
        fill[()] = self.node.fill_value
        return np.broadcast_to(fill, self.node.chunk_shape)

    def _with_context(
        self, fetched: Iterable[Bytes | None], batch: list[ChunkPart]
    ) -> Iterator[Bytes | None]:
        try:
            yield from fetched
        except NczarrError as error:
            error.add_context(variable=self.node.path)
            for part in batch:
                if self.layout.key_of(part.chunk) == error.key:
                    self._locate(error, part)
            raise

    def _locate(self, error: NczarrError, part: ChunkPart) -> None:
        error.add_context(
            store=self.store.name,
            key=self.layout.key_of(part.chunk),
            variable=self.node.path,
            chunk=part.chunk,
        )

    def _window(self, part: ChunkPart) -> Window | None:
        """Return the `Window` to read from a chunk, or None if the whole chunk must be read."""
        if part.complete:
            return None
        # Most chunks share their selectors. The cache keeps the selectors alive, so that their
        # ids stay unique.
        ids = tuple(map(id, part.source))
        cached = self._cached_windows.get(ids)
        if cached is None:
            window = byte_window(self.node, self.plan.axes, part.source, remote=self.store.remote)
            if len(self._cached_windows) >= _MAX_CACHED_WINDOWS:
                self._cached_windows.clear()
            cached = self._cached_windows[ids] = part.source, window
        return cached[1]

    def _read_windows(self, batch: list[ChunkPart], windows: Sequence[Window]) -> None:
        if self.ranged:
            wanted = [
                (part.chunk, window.spans) for part, window in zip(batch, windows, strict=True)
            ]
            assert isinstance(self.layout, ChunkObjects)
            fetched = self.layout.fetch_ranges(self.store, wanted, self.codec.check_stored_size)
            fetched = self._with_context(fetched, batch)
        for part, window in zip(batch, windows, strict=True):
            try:
                if self.ranged:
                    pieces = _all_or_none(itertools.islice(fetched, len(window.spans)))
                else:
                    pieces = self._decoded_spans(part.chunk, window.spans)
                if pieces is None:
                    self._place_fill(part)
                else:
                    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
                    values = np.frombuffer(data, self.node.dtype).reshape(window.shape)
                    self._place(values, window.source, part.target)
            except NczarrError as error:
                self._locate(error, part)
                raise

    def _decoded_spans(self, chunk: Index, spans: list[tuple[int, int]]) -> list[Bytes] | None:
        """Return the bytes in each span of a decoded Blosc chunk, or None if it does not exist."""
        with self.store.reading(self.layout.key_of(chunk)) as read:
            pieces = read_blosc_spans(read, self.codec.flow.bound, spans)
        if pieces is not None:
            return pieces
        # The chunk does not exist, or must be decoded as a whole.
        (data,) = self.layout.fetch(self.store, [chunk])
        if data is None:
            return None
        decoded = bytes_of(self.codec.decode(data))
        return [decoded[start : start + length].data for start, length in spans]


def _buffer(array: Array) -> Any:
    """Return an object that exposes the memory of an array through the buffer protocol."""
    # Arrays of times, and of dtypes from other packages, do not support the protocol themselves.
    return array if array.dtype.kind in "iufb" else bytes_of(array)


def _rows(array: Array, spans: list[tuple[int, int]]) -> list[memoryview]:
    memory = array.reshape(-1).view(np.uint8).data
    stops = list(itertools.accumulate([length for _, length in spans]))
    return list(map(memory.__getitem__, map(slice, [0, *stops], stops)))


def _all_or_none(fetched: Iterable[Bytes | None]) -> list[Bytes] | None:
    """Return the bytes of each range of an object, or None if the object does not exist.

    Raises
    ------
    StorageError
        If only some of the ranges exist, because the object was removed between requests.
    """
    ranges = list(fetched)
    present = [data for data in ranges if data is not None]
    if present and len(present) < len(ranges):
        raise StorageError(
            "the chunk was removed while it was being read", remedy="Read the chunk again"
        )
    return present or None
