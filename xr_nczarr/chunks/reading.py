"""Fetch and decode the chunks of a selection, and copy the selected elements to the result."""

from __future__ import annotations

import itertools
import logging
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt

from xr_nczarr.chunks.chunk_objects import ChunkLayout, ChunkObjects, Index
from xr_nczarr.chunks.grid import ChunkPart
from xr_nczarr.chunks.partial_reads import Window, byte_window
from xr_nczarr.codecs import HEADER_BYTES, ChunkCodec, bytes_of, parse_blosc
from xr_nczarr.errors import MissingChunkError, NczarrError, StorageError
from xr_nczarr.locks import cached_property
from xr_nczarr.model import ArrayNode
from xr_nczarr.storage import Bytes, Read, Store

_BLOCKS_FROM_BYTES = 512 << 10
_DECODED_TOGETHER_BYTES = 512 << 10
_MAX_CACHED_WINDOWS = 1000
_MAX_TURN_SECONDS = 0.002

_log = logging.getLogger(__name__)

Array = npt.NDArray[Any]
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
    axes, slices_only
        See `Plan`.
    out
        The result array. Its elements are written in place, at the targets of the parts.
    missing_chunks, convert
        See `ReadOptions` and `ChunkedArray.read`.
    read_ahead
        Whether to request several chunks of a batch at once. This is unnecessary if many threads
        read at the same time.
    """

    node: ArrayNode
    store: Store
    codec: ChunkCodec
    layout: ChunkLayout
    axes: tuple[int, ...] | None
    slices_only: bool
    out: Array
    missing_chunks: str
    convert: Convert | None
    read_ahead: bool

    def __post_init__(self) -> None:
        is_whole = not self.node.stored_shape
        self.in_place = self.slices_only and self.out.dtype == self.node.dtype and is_whole
        objects = isinstance(self.layout, ChunkObjects) and is_whole
        self.ranged = self.codec.raw and objects
        requests_singly = isinstance(self.layout, ChunkObjects) and not self.read_ahead
        self._chunk_store = self.store.without_read_ahead() if requests_singly else self.store
        # Decoding single blocks takes three small reads instead of one large read. This is slower
        # if each read costs a round trip.
        names = [spec.name for spec in self.node.codecs]
        large = (self.codec.flow.size or 0) >= _BLOCKS_FROM_BYTES
        self.blocks = objects and large and names == ["blosc"] and not self.store.remote
        self._cached_windows: dict[tuple[int, ...], tuple[tuple[Any, ...], Window | None]] = {}
        self._lock = Lock()
        self.direct = self.ranged and self.store.reads_in_place

    def read(self, batch: list[ChunkPart]) -> None:
        """Read a batch of parts, and write their converted values to the result."""
        windows = self._windows(batch) if self.ranged or self.blocks else None
        if windows is not None:
            self._read_windows(batch, windows)
            return
        if self.in_place and self.direct:
            batch = [part for part in batch if not self._read_in_place(part)]
        in_place = self.in_place
        scratch = None
        chunks = [part.chunk for part in batch]
        fetched = self.layout.fetch(self._chunk_store, chunks)
        fetched = self._with_context(fetched, batch)
        for part, (codec, data) in zip(batch, self._with_codec(fetched, chunks), strict=True):
            try:
                if data is None:
                    self._place_fill(part)
                    continue
                target = self._target_as_chunk(part) if in_place else None
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

    def _with_codec(
        self, fetched: Iterator[Bytes | None], chunks: Sequence[Index]
    ) -> Iterator[tuple[ChunkCodec, Any]]:
        """Yield the data of each chunk, together with the codec chain that decodes the data.

        `fetched` yields the encoded bytes of `chunks`.

        If decoding several chunks in one call is faster, `ChunkCodec.decode_many` first decodes
        them with the last codec. The yielded chain then contains only the remaining codecs.
        Each call decodes about `_DECODED_TOGETHER_BYTES` in total, but at least two chunks.
        """
        if not self.codec.decodes_many:
            yield from zip(itertools.repeat(self.codec), fetched)
            return
        count = max(2, _DECODED_TOGETHER_BYTES // max(1, self.codec.flow.bound))
        in_turn = self.store.reads_in_place and self.layout.fetches_separately(chunks)
        while True:
            with self._turn() if in_turn else nullcontext():
                encoded = list(itertools.islice(fetched, count))
            if not encoded:
                return
            codec, decoded = self.codec.decode_many(encoded)
            yield from zip(itertools.repeat(codec), decoded)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Let only one thread at a time read small pieces of local files.

        Threads that read such pieces contend for the GIL after each system call. They are faster if
        they take turns: one thread reads while the others decode. On a slow file system, reading
        needs the GIL for only a little of the time, so a thread soon stops waiting for its turn.
        """
        acquired = self._lock.acquire(timeout=_MAX_TURN_SECONDS)
        try:
            yield
        finally:
            if acquired:
                self._lock.release()

    def _read_in_place(self, part: ChunkPart) -> bool:
        """Read an uncompressed chunk directly into the result.

        Return False if this is impossible because the chunk is missing, or because its elements are
        not contiguous in the result.
        """
        target = self._target_as_chunk(part)
        if target is None:
            return False
        try:
            # Arrays of times, and of dtypes from other packages, do not support the buffer
            # protocol.
            buffer = target if target.dtype.kind in "iufb" else bytes_of(target)
            size = self.store.fetch_into(self.layout.key_of(part.chunk), buffer)
            if size is None:
                return False
            self.codec.check_stored_size(size)
            if self.convert is not None:
                self.convert(target, target)
        except NczarrError as error:
            self._locate(error, part)
            raise
        return True

    def _target_as_chunk(self, part: ChunkPart) -> Array | None:
        """Return a view of the result into which a chunk can be decoded directly.

        Return None unless all elements of the chunk are selected, and are contiguous in the result.
        """
        if not part.complete:
            return None
        target = self.out[part.target] if part.target else self.out
        fits = target.shape == self.node.chunk_shape and target.flags.c_contiguous
        return target if fits else None

    def _padded(self, chunk: Array, index: Index) -> Array:
        """Replace the elements of a chunk that lie beyond `node.stored_shape` with fill values."""
        node = self.node
        if not node.stored_shape:
            return chunk
        sizes = zip(node.stored_shape, index, node.chunk_shape, strict=True)
        stored = [max(0, size - number * length) for size, number, length in sizes]
        if all(map(operator.ge, stored, node.chunk_shape)):
            return chunk
        within = tuple(map(slice, stored))
        padded = self._fill.copy()
        padded[within] = chunk[within]
        return padded

    def _place(self, chunk: Array, source: tuple[Any, ...], target: tuple[Any, ...]) -> None:
        if self.axes is not None:
            chunk = chunk.transpose(self.axes)
        if self.convert is None:
            self.out[target] = chunk[source]
        elif not target:  # indexing would return a scalar, which cannot be written to
            self.convert(chunk, self.out)
        elif all(isinstance(item, slice) for item in target):
            self.convert(chunk[source], self.out[target])
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

    def _windows(self, batch: list[ChunkPart]) -> list[Window] | None:
        windows = []
        for part in batch:
            if part.complete:
                return None
            # Most chunks share their selectors. The cache keeps the selectors alive, so that their
            # ids stay unique.
            ids = tuple(map(id, part.source))
            cached = self._cached_windows.get(ids)
            if cached is None:
                window = byte_window(self.node, self.axes, part.source, remote=self.store.remote)
                if len(self._cached_windows) >= _MAX_CACHED_WINDOWS:
                    self._cached_windows.clear()
                cached = self._cached_windows[ids] = part.source, window
            _, window = cached
            if window is None:
                return None
            windows.append(window)
        return windows

    def _read_windows(self, batch: list[ChunkPart], windows: list[Window]) -> None:
        if self.direct:
            batch, windows = self._read_windows_into(batch, windows)
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
                    box = np.frombuffer(data, self.node.dtype).reshape(window.shape)
                    self._place(box, window.source, part.target)
            except NczarrError as error:
                self._locate(error, part)
                raise

    def _read_windows_into(
        self, batch: list[ChunkPart], windows: list[Window]
    ) -> tuple[list[ChunkPart], list[Window]]:
        """Read windows of chunks into a buffer, and copy the selected elements to the result.

        Return the parts whose chunks are missing, and the windows of these parts. Consecutive parts
        with the same window use the same buffer, which avoids allocating memory for each part.
        """
        fetch = self.store.fetch_ranges_into
        absent: tuple[list[ChunkPart], list[Window]] = [], []
        previous = None
        for part, window in zip(batch, windows, strict=True):
            try:
                if window is not previous:
                    box = np.empty(window.shape, self.node.dtype)
                    rows, previous = _rows(box, window.spans), window
                size = fetch(self.layout.key_of(part.chunk), window.spans, rows)
                if size is None:
                    absent[0].append(part)
                    absent[1].append(window)
                else:
                    self.codec.check_stored_size(size)
                    self._place(box, window.source, part.target)
            except NczarrError as error:
                self._locate(error, part)
                raise
        return absent

    def _decoded_spans(self, chunk: Index, spans: list[tuple[int, int]]) -> list[Bytes] | None:
        """Return byte ranges of a decoded Blosc chunk, or None if the chunk does not exist.

        Only the Blosc blocks that contain the ranges are decoded, if this is faster than decoding
        the whole chunk. `spans` contains the start and length of each range.
        """
        with self.store.reading(self.layout.key_of(chunk)) as read:
            pieces = self._from_blocks(read, spans)
        if pieces is not None:
            return pieces
        (data,) = self.layout.fetch(self.store, [chunk])
        if data is None:
            return None
        decoded = bytes_of(self.codec.decode(data))
        return [decoded[start : start + length].data for start, length in spans]

    def _from_blocks(self, read: Read, spans: list[tuple[int, int]]) -> list[Bytes] | None:
        """Return byte ranges of a decoded Blosc chunk, decoding only the blocks that contain them.

        Return None if the chunk does not exist, cannot be decoded block by block, or can be decoded
        faster as a whole.
        """
        header = read(0, HEADER_BYTES)
        frame = None if header is None else parse_blosc(header, self.codec.flow.bound)
        if frame is None:
            return None
        numbers = frame.blocks_of(spans)
        if 2 * len(numbers) * frame.block > frame.size:
            return None
        table = read(*frame.table)
        ranges = [] if table is None else frame.block_ranges(table, numbers)
        blocks = [data for data in itertools.starmap(read, ranges) if data is not None]
        if len(blocks) < len(numbers):  # the chunk was removed while it was being read
            return None
        decoded = frame.decode(numbers, blocks)
        pieces: list[Bytes] = []
        for start, length in spans:
            number, within = divmod(start, frame.block)
            first = numbers.index(number) * frame.block + within
            pieces.append(decoded[first : first + length].data)
        return pieces


def _rows(box: Array, spans: list[tuple[int, int]]) -> list[memoryview]:
    memory = box.reshape(-1).view(np.uint8).data
    stops = list(itertools.accumulate([length for _, length in spans]))
    return list(map(memory.__getitem__, map(slice, [0, *stops], stops)))


def _all_or_none(fetched: Iterable[Bytes | None]) -> list[Bytes] | None:
    """Return the byte ranges of an object as a list, or None if the object does not exist.

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
