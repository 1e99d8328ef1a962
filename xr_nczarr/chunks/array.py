"""Define `ChunkedArray`, which reads and writes selections of an array in a store."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Lock
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from xr_nczarr.chunks.chunk_layout import ChunkLayout, ChunkObjects, Shards
from xr_nczarr.chunks.grid import Array, ChunkPart, Plan, plan_points, plan_selection
from xr_nczarr.chunks.reading import Convert, PartReader
from xr_nczarr.chunks.rectilinear import read_boxes
from xr_nczarr.chunks.writing import PartWriter, Submit
from xr_nczarr.codecs import ChunkCodec, compile_codec
from xr_nczarr.errors import ErrorContext, LimitError
from xr_nczarr.locks import ThreadLimiter, cached_property
from xr_nczarr.model import DEFAULT_LIMITS, ArrayNode, Limits
from xr_nczarr.storage import Store

# Minimum chunk sizes at which threads are used, as measured on two cores. Below these sizes,
# threads lose more time to the GIL than they save. With slow codecs, the minimum is lower.
_THREADED_FROM_BYTES = 64 << 10
_THREADED_SLOW_FROM_BYTES = 16 << 10
_SLOW_CODECS = frozenset(("zlib", "gzip", "zstd", "bz2", "lzma"))
# Smaller chunks of a local store are read by only a few of the caller's threads at a time, because
# threads contend for the GIL after each system call. Without this limit, a hundred threads that
# read small chunks take twice as long.
_LIMITED_BELOW_BYTES = 256 << 10
_BATCH_BYTES = 4 << 20
_BATCH_PARTS = 512
_BYTES_IN_FLIGHT = 64 << 20
# If a server responds this quickly, more threads would only contend for the GIL. With 64 threads
# instead of 8, reading 2,048 chunks of 64 kB takes 1.3 to 1.7 times as long.
_QUICK_SECONDS = 0.002
_FEW_THREADS = 8
# Between two requests, a thread needs the GIL. It needs the GIL for less time if it reads several
# small chunks in a row. Large chunks are read one by one, so that all threads finish at about the
# same time.
_REMOTE_BATCH_PARTS = 4
_REMOTE_BATCH_BYTES = 256 << 10
_BATCHES_PER_THREAD = 8
_CACHE_LINE = 64
_ALIGNED_FROM_BYTES = 128 << 10  # for larger arrays, malloc asks the system for memory
_SPARE_BYTES = 1 << 20  # netCDF-C overwrites a longer chunk without truncating it


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Options for reading chunks.

    Attributes
    ----------
    missing_chunks
        How to handle a chunk that is not in the store. ``"fill"`` reads fill values, ``"warn"``
        also issues a warning, and ``"raise"`` raises a `MissingChunkError`.
    threads
        Maximum number of threads for each read. If None, it depends on the store and the chunks.
    codecs
        Mapping from codec ids to additional codec classes.
    plugins
        Whether to use codecs that other packages register with zarr-python.
    limits
        Limits on the memory that reading can allocate.
    """

    missing_chunks: Literal["fill", "warn", "raise"] = "fill"
    threads: int | None = None
    codecs: Mapping[str, type] | None = None
    plugins: bool = True
    limits: Limits = DEFAULT_LIMITS


class ChunkedArray:
    """An array in a store, with methods to read and write selections of it.

    Pickling keeps only the metadata, the store and the options.

    Parameters
    ----------
    node
        Metadata of the array. If the array has no fill value, reading a missing chunk raises an
        error.
    store
        The store that contains the chunks.
    options
        Options for reading chunks. None means the default options.
    """

    def __init__(self, node: ArrayNode, store: Store, options: ReadOptions | None = None) -> None:
        self.node = node
        self.store = store
        self.options = options or ReadOptions()

    def __reduce__(self) -> tuple[Any, ...]:
        return ChunkedArray, (self.node.without_annotations(), self.store, self.options)

    @cached_property
    def codec(self) -> ChunkCodec:
        """The compiled codec chain of the array.

        Accessing this property can raise the same errors as `compile_codec`.
        """
        options = self.options
        with ErrorContext(store=self.store.name, variable=self.node.path):
            return compile_codec(
                self.node,
                limits=options.limits,
                custom=options.codecs,
                plugins=options.plugins,
            )

    @cached_property
    def layout(self) -> ChunkLayout:
        """The storage layout of the chunks: one object per chunk, or several chunks per shard."""
        node, options = self.node, self.options
        if not node.shards:
            return ChunkObjects(node)
        with ErrorContext(store=self.store.name, variable=node.path):
            return Shards(node, limits=options.limits, custom=options.codecs)

    @cached_property
    def _max_object_bytes(self) -> int | None:
        """The maximum size of a stored chunk in bytes, or None if there is no limit."""
        if self.codec.flow.size is None or self.node.shards:
            return None
        return 2 * self.codec.encoded.bound + _SPARE_BYTES

    @cached_property
    def _bounded_store(self) -> Store:
        """The store, wrapped so that it rejects objects larger than `_max_object_bytes`."""
        limit = self._max_object_bytes
        return self.store if limit is None else self.store.bounded(limit)

    @contextmanager
    def _explained_limit(self) -> Iterator[None]:
        """Add an explanation to the LimitError for a chunk that exceeds `_max_object_bytes`."""
        try:
            yield
        except LimitError as error:
            if error.max_bytes is not None and error.max_bytes == self._max_object_bytes:
                error.problem += " for chunks of this shape, dtype and codec"
                # No option can change this limit.
                error.remedy = "Rewrite the chunk, or correct the metadata of the array"
            raise

    @property
    def chunk_bytes(self) -> int:
        """Size of one decoded chunk in bytes. For Python objects, only the pointers are counted."""
        return math.prod(self.node.chunk_shape) * self.node.dtype.itemsize

    def plan(self, selection: Sequence[Any], *, pointwise: bool = False) -> Plan:
        """Split a selection into parts, one for each chunk that it touches.

        By default, `selection` is applied orthogonally, as described in `plan_selection`. If
        `pointwise` is True, it is applied pointwise (vectorized), as described in `plan_points`.
        The array must have a regular chunk grid.
        """
        make_plan = plan_points if pointwise else plan_selection
        with ErrorContext(store=self.store.name, variable=self.node.path):
            return make_plan(self.node.shape, self.node.chunk_shape, selection)

    def read(
        self,
        selection: Sequence[Any],
        *,
        pointwise: bool = False,
        dtype: npt.DTypeLike | None = None,
        convert: Convert | None = None,
    ) -> Array:
        """Read the selected values. Each chunk is fetched and decoded only once.

        Parameters
        ----------
        selection
            One selector for each dimension, as described in `plan_selection`.
        pointwise
            Whether to use pointwise (vectorized) indexing, as described in `plan_points`.
        dtype
            Dtype of the result. By default, the dtype of the array.
        convert
            Function that converts the selected part of each chunk and writes it to the result. It
            runs in the thread that decoded the chunk. If None, the values are copied.

        Raises
        ------
        ChunkError
            If a chunk cannot be decoded to the shape and dtype that the metadata declares.
        MissingChunkError
            If a chunk is missing, and either ``missing_chunks="raise"`` is set or the array has no
            fill value.
        IndexError
            If an index is outside the array.
        StorageError
            If the store fails to read a chunk. A missing chunk does not count as a failure.
        """
        if self.node.chunk_runs:
            return read_boxes(
                self.node,
                selection,
                lambda box, where: type(self)(box, self.store, self.options).read(
                    where, pointwise=pointwise, dtype=dtype, convert=convert
                ),
                pointwise=pointwise,
                dtype=self.node.dtype if dtype is None else dtype,
            )
        # Access these properties before making the plan. They raise an error for some arrays
        # whose plan would be huge.
        codec, layout = self.codec, self.layout
        plan = self.plan(selection, pointwise=pointwise)
        out = _empty(plan.shape, self.node.dtype if dtype is None else np.dtype(dtype))
        if out.size:
            reader = PartReader(
                node=self.node,
                store=self._bounded_store,
                codec=codec,
                layout=layout,
                plan=plan,
                out=out,
                missing_chunks=self.options.missing_chunks,
                convert=convert,
                # A store that sets the number of threads expects one request at a time per thread.
                read_ahead=not self._store_sets_threads,
            )
            is_limited = self.chunk_bytes < _LIMITED_BELOW_BYTES and not self.store.remote
            work = _limiter.limit(reader.read) if is_limited else reader.read
            with self._explained_limit():
                self._run_batches(plan, work, out.size if reader.ranged else 0)
        return out.reshape(plan.result_shape)

    def write(
        self,
        selection: Sequence[Any],
        values: npt.ArrayLike,
        *,
        write_empty_chunks: bool = False,
        submit: Submit | None = None,
    ) -> None:
        """Write values to an orthogonal selection, which indexes each dimension independently.

        Each affected stored object (a chunk or a shard) is written once, as a whole. If the
        selection contains only part of an object, the object is first read and merged with the
        values. The store's lock is held while the object is read, merged and written.

        Parameters
        ----------
        selection
            One selector for each dimension, as described in `plan_selection`.
        values
            Values of the array's dtype, in any shape that can be broadcast to the shape of the
            selection.
        write_empty_chunks
            Whether to store chunks that contain only fill values. If False, such chunks are
            deleted.
        submit
            Function that schedules the write of one stored object. It is called with three
            arguments: a function that writes the object, the argument to pass to this function, and
            the decoded size of the affected chunks in bytes. If `submit` is None, all objects are
            written immediately. Otherwise, `values` must not change until all objects are written.

        Raises
        ------
        ChunkError
            If a chunk cannot be encoded, if a filter would change a value beyond its tolerance, or
            if a stored chunk cannot be decoded.
        IndexError
            If an index is outside the array.
        StorageError
            If the store fails to read or write an object.
        """
        codec, layout = self.codec, self.layout
        plan = self.plan(selection)
        source = np.broadcast_to(values, plan.result_shape).reshape(plan.shape)
        if source.size:
            writer = PartWriter(
                node=self.node,
                store=self.store,
                codec=codec,
                layout=layout,
                source=source,
                write_empty_chunks=write_empty_chunks,
            )
            if submit is None:
                self._run_batches(plan, writer.write)
                return
            for batch in layout.batches(plan, 1):
                submit(writer.write, batch, len(batch) * self.chunk_bytes)

    @property
    def _store_sets_threads(self) -> bool:
        """Whether the store, rather than the `ReadOptions`, determines the number of threads."""
        return self.options.threads is None and self.store.max_threads is not None

    def _threads(self, count: int, part_bytes: int) -> int:
        if self._store_sets_threads:
            affordable = max(_processors(), _BYTES_IN_FLIGHT // max(1, part_bytes))
            return min(self.store.max_threads or 1, affordable, count)
        slow = not _SLOW_CODECS.isdisjoint(spec.name for spec in self.node.codecs)
        threshold = _THREADED_SLOW_FROM_BYTES if slow else _THREADED_FROM_BYTES
        if part_bytes < threshold and not self.store.remote:
            return 1
        return min(self.options.threads or _processors(), count)

    def _batch_size(self, parts_per_thread: int, part_bytes: int) -> int:
        """Return the number of parts that a thread reads or writes in one batch."""
        if not self.store.remote:
            parts, limit = min(_BATCH_PARTS, parts_per_thread), _BATCH_BYTES
        elif not self._store_sets_threads:
            return _BATCH_PARTS  # the requests of a batch are sent concurrently
        elif self.node.shards or part_bytes < self.chunk_bytes:  # requests are for byte ranges
            return 1
        else:
            parts = min(_REMOTE_BATCH_PARTS, parts_per_thread // _BATCHES_PER_THREAD)
            limit = _REMOTE_BATCH_BYTES
        return max(1, min(parts, limit // max(1, part_bytes)))

    def _run_batches(
        self, plan: Plan, work: Callable[[list[ChunkPart]], None], elements: int = 0
    ) -> None:
        """Call `work` with each batch of the plan's parts, in several threads if that is faster.

        If only byte ranges of chunks are read, `elements` is the number of selected elements.
        """
        if plan.count == 1:  # the usual case in a dask task
            work(list(plan))
            return
        part_bytes = elements * self.node.dtype.itemsize // plan.count or self.chunk_bytes
        threads = self._threads(plan.count, part_bytes)
        size = self._batch_size(-(-plan.count // threads), part_bytes)
        batches = self.layout.batches(plan, size)
        turn, responded = Lock(), Event()

        def run() -> None:
            nonlocal batches
            try:
                while True:
                    with turn:
                        batch = next(batches, None)
                    if batch is None:
                        return
                    work(batch)
                    responded.set()
            except BaseException:
                batches = iter(())  # stops the other threads
                raise

        if threads == 1:
            run()
            return
        # The calling thread works too, so that the pool has to start one fewer thread.
        with ThreadPoolExecutor(threads - 1, thread_name_prefix="nczarr") as pool:
            few = min(threads - 1, _FEW_THREADS) if self._store_sets_threads else threads - 1
            helpers = [pool.submit(run) for _ in range(few)]
            if few < threads - 1 and not responded.wait(size * _QUICK_SECONDS):
                helpers += [pool.submit(run) for _ in range(few, threads - 1)]
            run()
            for helper in helpers:
                helper.result()


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an uninitialized array, which is aligned to a cache line if it is large."""
    size = math.prod(shape) * dtype.itemsize
    if size < _ALIGNED_FROM_BYTES or dtype.hasobject:
        return np.empty(shape, dtype)
    # NumPy places the data of a large array 16 bytes after a page boundary. On AMD Zen 3, copying
    # from the system's page cache to such an address takes three times as long.
    memory = np.empty(size + _CACHE_LINE, np.uint8)
    start = -memory.__array_interface__["data"][0] % _CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape)


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_limiter = ThreadLimiter(_processors())
