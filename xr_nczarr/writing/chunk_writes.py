"""Write NumPy and dask arrays to regions of stored arrays, chunk by chunk.

NumPy arrays are written immediately, one after another. All dask arrays are written in one dask
graph. For slow stores, background threads store the chunks. The total size of the chunks that are
waiting to be stored is limited.
"""

from __future__ import annotations

import itertools
import math
import sys
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.encoding.blockwise import opened_lazily
from xr_nczarr.errors import ConflictError, ErrorContext
from xr_nczarr.locks import InFlight, ProcessLock
from xr_nczarr.model import ArrayNode
from xr_nczarr.progress import Progress
from xr_nczarr.storage import Store

if TYPE_CHECKING:
    from dask.delayed import Delayed

_Argument = TypeVar("_Argument")

_REAL, _NUMBERS = "biuf", "biufc"  # kinds of dtypes
_MAX_BYTES = 64 << 20  # a larger limit did not speed up storing 4 MB chunks
_MIN_JOB_BYTES = 256 << 10  # so that at most 256 small objects are pending
_MAX_COPIES = 1024  # number of writes that a worker process remembers

Region = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class ArrayWrite:
    """A NumPy or dask array to write to a region of a stored array.

    Attributes
    ----------
    appended
        Whether the region extends the array.
    write_empty_chunks
        Value of ``write_empty_chunks`` in the variable's encoding, or None if it is not set.
    """

    node: ArrayNode
    region: Region
    data: Any
    appended: bool = False
    write_empty_chunks: bool | None = None

    @property
    def stores_fill_chunks(self) -> bool:
        """Whether to store chunks that contain only the fill value.

        True for fixed-width bytes and big-endian numbers, unless the fill value is empty or zero.
        """
        # If such a chunk is missing, netCDF-C returns wrong values: it does not decode Base64 fill
        # values, and it returns big-endian fill values in the wrong byte order.
        dtype = self.node.dtype
        return dtype.str[:2] in ("|S", ">i", ">u", ">f") and bool(self.node.fill_value)

    @property
    def deferrable(self) -> bool:
        """Whether the data can be computed later, because the caller passed a dask array."""
        # The caller did not pass the dask arrays that this package creates for opened variables.
        return hasattr(self.data, "dask") and not opened_lazily(self.data)

    @property
    def bounds(self) -> list[list[int]]:
        """The start and the exclusive end of the region along each dimension, in elements."""
        return [[piece.start, piece.stop] for piece in self.region]

    def aligned(self) -> ArrayWrite:
        """Return this write, rechunked so that no two dask blocks write to the same chunk or shard.

        If no rechunking is needed, return this write itself.

        Raises
        ------
        ConflictError
            If the sizes of the blocks are unknown.
        """
        chunks = self.aligned_chunks()
        return self if chunks is None else replace(self, data=self.data.rechunk(chunks))

    def aligned_chunks(self) -> tuple[tuple[int, ...], ...] | None:
        """Return dask chunks aligned so that no two blocks write to the same stored chunk or shard.

        Return None if the data already has such chunks, is empty, is a scalar, or is not a dask
        array. Along each dimension, a block grows by less than the length of one chunk or shard.

        Raises
        ------
        ConflictError
            If the sizes of the blocks are unknown.
        """
        data, cells = self.data, self.node.object_shape
        if not hasattr(data, "dask") or len(cells) != data.ndim or not data.size:
            return None
        if any(math.isnan(size) for sizes in data.chunks for size in sizes):
            raise ConflictError(
                "the dask blocks have unknown sizes, so they cannot be aligned with the stored "
                f"chunks, which have shape {cells}",
                remedy="Call compute_chunk_sizes() first",
                variable=self.node.path,
            )
        chunks = tuple(
            aligned_blocks(sizes, piece.start, cell)
            for sizes, piece, cell in zip(data.chunks, self.region, cells, strict=True)
        )
        return None if chunks == data.chunks else chunks


def aligned_blocks(sizes: Sequence[int], offset: int, cell: int) -> tuple[int, ...]:
    """Return the sizes of blocks after rounding their ends up to multiples of `cell`.

    The end of the last block is not rounded.

    Parameters
    ----------
    sizes
        Sizes of the blocks along one dimension, in elements.
    offset
        Start of the first block in the stored array.
    cell
        Length of a stored object (chunk or shard) along the dimension.

    Examples
    --------
    >>> aligned_blocks((4, 4), 5, 4)  # blocks 5:9 and 9:13 become 5:12 and 12:13
    (7, 1)
    >>> aligned_blocks((2, 2, 2, 2), 0, 4)
    (4, 4)
    """
    end = offset + sum(sizes)
    ends = itertools.accumulate(sizes, initial=offset)
    rounded = {min(-(-stop // cell) * cell, end) for stop in itertools.islice(ends, 1, None)}
    bounds = [offset, *sorted(rounded)]
    return tuple(after - before for before, after in itertools.pairwise(bounds)) or (0,)


def write_chunks(
    writes: Sequence[ArrayWrite], store: Store, progress: Progress, *, concurrent: bool = False
) -> None:
    """Write NumPy arrays one after another, and all dask arrays in one dask graph.

    If `Store.max_puts` is greater than 1, one thread pool stores the chunks of all arrays.

    Parameters
    ----------
    progress
        The progress bar to advance by the number of bytes written.
    concurrent
        Whether another writer may extend the arrays at the same time. If so, values that are stored
        beyond the end of an array are kept.
    """
    uploads = Uploads(store.max_puts)
    try:
        targets = (_BlockTarget(item, store, uploads, progress, concurrent) for item in writes)
        store_values(writes, targets)
        uploads.finish()
    except BaseException:
        # After an error, dask's threads, including those of workers, keep running. They could
        # overwrite the values of a later write.
        uploads.end_everywhere()
        raise


def write_later(writes: Sequence[ArrayWrite], store: Store) -> Delayed:
    """Return a dask object that writes dask arrays when it is computed.

    If another writer appends values before the object is computed, these values are kept.
    """
    import dask

    uploads, progress = Uploads(), Progress(False)
    targets = (_BlockTarget(item, store, uploads, progress, True) for item in writes)
    stored = store_values(writes, targets, compute=False)
    delayed: Delayed = dask.delayed(flush, pure=False)(store, stored)
    return delayed


def store_values(writes: Sequence[ArrayWrite], targets: Iterable[Any], **keywords: Any) -> Any:
    """Assign the values of each write to its region of the corresponding target.

    NumPy arrays are assigned one by one. Then `dask.array.store` stores all dask arrays in one dask
    graph. Return the result of this call, or None if there are no dask arrays. `keywords` are
    passed to `dask.array.store`.
    """
    lazy = []
    for write, target in zip(writes, targets, strict=True):
        if hasattr(write.data, "dask"):
            lazy.append((write.data, target, write.region))
        elif write.data.size:
            target[write.region] = write.data
    if not lazy:
        return None
    from dask.array import store  # imported only for dask arrays

    arrays, lazy_targets, regions = zip(*lazy, strict=True)
    return store(arrays, lazy_targets, regions=list(regions), lock=False, **keywords)


def flush(store: Store, *_: Any) -> None:
    """Flush all written objects to disk.

    The remaining arguments are ignored. Pass the results of dask tasks, so that dask finishes these
    tasks before it calls this function.
    """
    store.flush()


class _BlockTarget:
    """The target to which the blocks of one write are assigned."""

    def __init__(
        self,
        write: ArrayWrite,
        store: Store,
        uploads: Uploads,
        progress: Progress,
        concurrent: bool,
    ) -> None:
        node = write.node
        if concurrent:
            # An append may have extended the last, partial chunk. Rounding the shape up to whole
            # chunks preserves the appended values in that chunk.
            cells = zip(node.shape, node.object_shape, strict=True)
            node = replace(node, shape=tuple([-(-size // cell) * cell for size, cell in cells]))
        self.array = ChunkedArray(node, store)
        self.concurrent = concurrent
        self.uploads = uploads
        self.progress = progress
        self.write_empty_chunks = bool(write.write_empty_chunks) or write.stores_fill_chunks
        self.scalar = not write.data.ndim
        self.token = uuid.uuid4().hex

    def __dask_tokenize__(self) -> str:
        """Return a token that is unique to each write, even if writes have the same data."""
        # A cluster remembers a failed task as long as something refers to its exception. If a
        # repeated write had the same token, dask would raise that exception again, instead of
        # rerunning the task.
        return self.token

    def __setitem__(self, selection: Region, values: Any) -> None:
        node, values = self.array.node, np.asarray(values)
        if self.scalar:  # NCZarr stores a scalar as a one-element array
            selection, values = tuple([slice(0, 1)] * len(node.shape)), values.reshape(node.shape)
        sizes = zip(selection, node.shape, strict=True)
        shape = tuple([len(range(*piece.indices(size))) for piece, size in sizes])
        with ErrorContext(variable=node.path):
            values = _in_declared_type(values, shape, node.dtype)
        lock: AbstractContextManager[None] = nullcontext()
        if self.concurrent:  # the writer lock may be held by a writer that replaces the store
            lock = self.array.store.replacement_lock(exclusive=False)
        with self.uploads, lock:
            self.array.write(
                selection,
                values,
                write_empty_chunks=self.write_empty_chunks,
                submit=self.uploads.submit if self.uploads.pooled else None,
            )
        self.progress.advance(values.nbytes)


def _in_declared_type(block: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Convert a computed block to the dtype that its dask array declares.

    Raise ConflictError if the block does not have the declared shape, or if the dtype cannot
    represent its values. Floats may be rounded.
    """
    if block.shape != shape:
        raise ConflictError(
            f"dask block has shape {block.shape}, but its metadata says {shape}",
            remedy="Correct the chunks and dimensions passed to map_blocks or apply_ufunc",
        )
    if block.dtype == dtype:
        return block
    if dtype.hasobject:
        return block.astype(dtype)
    if block.dtype.kind == "S" and dtype.kind != "S":
        return block.view(dtype)  # Zarr version 3 stores fixed-width strings as raw bytes
    computed, declared = block.dtype.kind, dtype.kind
    fits = computed == declared or (computed in _REAL and declared in _NUMBERS)
    if fits:
        with np.errstate(all="ignore"):
            converted = block.astype(dtype)
        if declared in "fc":  # values may be rounded, but must not overflow
            fits = np.array_equal(np.isfinite(converted), np.isfinite(block))
        else:
            fits = np.array_equal(converted, block, equal_nan=declared in "mM")
    if not fits:
        raise ConflictError(
            f"dask block has dtype {block.dtype}, but the declared dtype {dtype} cannot represent "
            "its values",
            remedy="Convert the array with astype, or correct the dtype passed to map_blocks",
        )
    return converted


class Uploads(InFlight):
    """The background jobs of one write, which encode and store its chunks in a thread pool.

    Unpickled copies have no thread pool: each chunk is stored by the thread that computes it.

    Parameters
    ----------
    threads
        Number of objects to encode and store concurrently. If 1, there is no thread pool.
    token
        Identifier that is shared by all copies. If empty, a new identifier is created.
    """

    _copying: ClassVar[ProcessLock] = ProcessLock()

    def __init__(self, threads: int = 1, token: str = "") -> None:
        super().__init__()
        self._token = token or uuid.uuid4().hex
        self._pool = ThreadPoolExecutor(threads, "upload") if threads > 1 else None
        self._bytes = 0
        self._error: BaseException | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Uploads._copy, (self._token,)

    @classmethod
    def _copy(cls, token: str) -> Uploads:
        with cls._copying:  # so that no two threads create a copy for the same write
            return _shared_copy(token)

    @classmethod
    def _end_copy(cls, token: str) -> None:
        cls._copy(token).end()

    @property
    def pooled(self) -> bool:
        """Whether there is a thread pool. If not, `submit` must not be called."""
        return self._pool is not None

    def submit(self, work: Callable[[_Argument], None], argument: _Argument, size: int) -> None:
        """Run ``work(argument)`` in the background.

        `size` is the number of bytes of memory that the job needs. Wait until this memory is
        available, or until no job is pending. If an earlier job has failed, raise its error
        instead.
        """
        assert self._pool is not None
        size = max(size, _MIN_JOB_BYTES)
        with self._changed:
            self._changed.wait_for(
                lambda: self._error or not self._bytes or self._bytes + size <= _MAX_BYTES
            )
            self._raise_error()
            self._count += 1
            self._bytes += size
        self._pool.submit(self._run, work, argument, size)

    def _run(self, work: Callable[[_Argument], None], argument: _Argument, size: int) -> None:
        try:
            if not (self._error or self._ended):
                work(argument)
        except BaseException as error:
            self._error = self._error or error
        finally:
            with self._changed:
                self._count -= 1
                self._bytes -= size
                self._changed.notify_all()

    def finish(self) -> None:
        """Wait until all jobs are done, and raise the first error, if any."""
        with self._changed:
            self._changed.wait_for(lambda: not self._count)
        self._raise_error()
        self.end()

    def end(self) -> None:
        """Reject new jobs, cancel jobs that have not started, and wait for running jobs."""
        super().end()
        if self._pool is not None:
            self._pool.shutdown()

    def end_everywhere(self) -> None:
        """Call `end` in this process and in the workers of the active dask cluster, if any."""
        self.end()
        if "distributed" in sys.modules:
            from distributed import get_client

            with suppress(Exception):  # the write's own error is more important
                client = get_client()
                if client.status == "running":
                    client.run(Uploads._end_copy, self._token, on_error="ignore")

    def _raise_error(self) -> None:
        if self._error is not None:
            raise self._error


@lru_cache(_MAX_COPIES)
def _shared_copy(token: str) -> Uploads:
    """Return the `Uploads` instance that all tasks of a write share in this process."""
    # The instance stays in the cache after the write, because tasks may be unpickled later.
    return Uploads(token=token)
