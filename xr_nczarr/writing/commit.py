"""In which order a write puts its objects, and how it becomes visible: chunks, then documents."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.errors import ConflictError, NczarrError, Place, UnsupportedError
from xr_nczarr.formats import FORMATS
from xr_nczarr.locks import Underway
from xr_nczarr.storage import WRITER_LOCK, Store, is_desktop_file
from xr_nczarr.writing.journal import close_journal, put_journal
from xr_nczarr.writing.target import UNFINISHED

if TYPE_CHECKING:
    from xr_nczarr.writing.placing import Job

WriteMode = Literal["w", "w-", "a", "a-", "r+"]

_REAL, _NUMBERS = "biuf", "biufc"  # kinds of dtypes


@dataclass(slots=True)
class WritePlan:
    """All that a write does to a store.

    Attributes
    ----------
    jobs
        Chunks, which no reader sees before the documents.
    documents
        By key, in the order in which they are put.
    chunks
        Stored chunks by key that change together with the documents, and are put before them.
    leading
        Documents that are put first, before anything goes.
    removed
        Keys and prefixes of what goes before, in this order.
    new
        Whether the store is to hold nothing else.
    exclusive
        Whether it is an error if somebody else makes one meanwhile.
    widths
        Bytes that texts need, by path of the arrays that have to be made wider before.
    """

    zarr_format: str
    jobs: list[Job] = field(default_factory=list)
    documents: dict[str, bytes] = field(default_factory=dict)
    chunks: dict[str, bytes] = field(default_factory=dict)
    leading: dict[str, bytes] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    new: bool = False
    exclusive: bool = False
    widths: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """What is asked of a write; see `to_nczarr`."""

    mode: WriteMode = "a"
    append_dim: str | None = None
    region: Any = None
    allow_duplicates: bool = False
    consolidated: bool | None = None
    compute: bool = True
    safe_chunks: bool = True
    write_empty_chunks: bool = False
    progress: bool = False
    chunkmanager_store_kwargs: Mapping[str, Any] | None = None


def execute(plan: WritePlan, target: Store, options: WriteOptions, *, staged: bool) -> Any:
    """Carry out a plan; with ``compute=False`` give the dask object that finishes it, else None.

    A local store changes in one step if it is `staged`; a new one always does. Blocks of dask that
    cannot be aligned with the stored chunks are a ConflictError, ``compute=False`` on a zip file an
    UnsupportedError. An error of the writing itself says what is left, and how to go on; in a note
    if it is not ours.
    """
    if options.safe_chunks:
        plan.jobs = [job.aligned() for job in plan.jobs]
    now = options.compute
    if not now and target.single_file:
        raise UnsupportedError(
            "a zip file is written in one go, not with compute=False",
            remedy="Leave that out, or write a directory",
            store=target.name,
        )
    staged, in_place = plan.new or (staged and now), False
    try:
        with workspace(target, empty=plan.new, staged=staged, exclusive=plan.exclusive) as store:
            in_place = store is target
            prepare(plan, store)
            if now:
                write_chunks(plan.jobs, store, options)
            put_documents(plan, store, in_place=in_place)
    except Exception as error:
        left = _left(plan, in_place=in_place)
        if isinstance(error, NczarrError):
            error.remedy = ". ".join(filter(None, (error.remedy.rstrip("."), left)))
        else:  # of dask, or of what it computed
            error.add_note(f"{target.name}: {left}")
        raise
    return None if now else write_chunks(plan.jobs, target, options)


def _left(plan: WritePlan, *, in_place: bool) -> str:
    """Tell what is left of a write that failed, and how to go on."""
    if not in_place:
        return "What was there is as it was, or replaced as a whole: the write can be run again"
    if plan.new:
        return (
            "There is what was there, no dataset, or the whole new one: run the write again, "
            "or use mode='w'"
        )
    if plan.documents and all(job.appended for job in plan.jobs):
        return (
            "Readers find what was there, or all of it: run the write again, or another undoes it"
        )
    return (
        "Chunks that it writes over are old or new: run it again, with what was refused corrected;"
        " atomic='store' makes it all or nothing on local disks"
    )


@contextmanager
def workspace(
    target: Store, *, empty: bool, staged: bool, exclusive: bool = False
) -> Iterator[Store]:
    """Give the store to write to; when the block ends well, its content is that of `target`.

    It begins `empty`, or with what is in `target`. If `staged`, `target` changes in one step at the
    end: zip files always do, stores that cannot be replaced in one step never do. If `exclusive`,
    it is an ExistsError if somebody else has made it by then.
    """
    if not target.single_file and not (staged and target.replaceable):
        yield target
        flush(target)
        return
    with target.in_one_step(empty=empty, exclusive=exclusive) as staging:
        yield staging


def flush(store: Store, *_: Any) -> None:
    """Force what was written to the disk, where the store knows how; last, what is waited for."""
    store.flush()


def prepare(plan: WritePlan, store: Store) -> None:
    """Remove what a plan replaces; from nothing, mark what begins as not finished."""
    if plan.new:
        store.put([(UNFINISHED, b"{}")])
        objects, prefixes = store.list_names("")
        # What is left of an older store, of any version, must not be taken for one while it goes.
        roots = (key for zarr in FORMATS.values() for key in zarr.root_keys())
        first = [key for key in roots if key.partition("/")[0] in (*objects, *prefixes)]
        rest = [*objects, *(f"{name}/" for name in prefixes)]
        for name in dict.fromkeys([*first, *rest]):
            if name not in (UNFINISHED, WRITER_LOCK) and not is_desktop_file(name):
                store.delete(name)
    store.put(plan.leading.items())
    for prefix in plan.removed:
        store.delete(prefix)


def put_documents(plan: WritePlan, store: Store, *, in_place: bool) -> None:
    """Put the documents of a plan: those of the root, one after another, behind all others."""
    journal = in_place and not plan.new and bool(plan.documents)
    if journal:
        put_journal(store, plan.documents, plan.jobs, plan.chunks)
    flush(store)
    store.put(plan.chunks.items())
    last = FORMATS[plan.zarr_format].root_keys()[::-1]
    store.put((key, data) for key, data in plan.documents.items() if key not in last)
    for key in last:
        if key in plan.documents:
            store.put([(key, plan.documents[key])])
    if journal:
        flush(store)
        close_journal(store)
    elif plan.new:
        store.delete(UNFINISHED)


def write_chunks(jobs: Sequence[Job], store: Store, options: WriteOptions) -> Any:
    """Write what is in memory now, and what is dask's in one graph; see `execute`."""
    if not jobs and options.compute:
        return None
    import dask
    from dask.diagnostics import ProgressBar

    from xr_nczarr.writing.blocks import opened_lazily

    ready = [job for job in jobs if not hasattr(job.data, "dask")]
    lazy = [job for job in jobs if hasattr(job.data, "dask")]
    late = [] if options.compute else [job for job in lazy if not opened_lazily(job.data)]
    now = lazy if options.compute else [job for job in lazy if opened_lazily(job.data)]
    done, total = 0, sum(job.data.nbytes for job in ready)
    underway = Underway()
    try:
        for job in ready:
            if job.data.size:
                _Target(job, store, options, underway)[job.region] = job.data
                done += job.data.nbytes
                if options.progress:
                    show_progress(done, total)
        with ProgressBar() if options.progress else nullcontext():
            _store(now, store, options, underway, compute=True)
    except BaseException:
        # Threads of dask go on: what they put later would stay beside, or over, what comes next.
        underway.end()
        raise
    if options.compute:
        return None
    stored = _store(late, store, options, Underway(), compute=False)
    return dask.delayed(flush, pure=False)(store, stored)


def _store(
    jobs: Sequence[Job], store: Store, options: WriteOptions, underway: Underway, *, compute: bool
) -> Any:
    if not jobs:
        return None
    from xarray.namedarray.parallelcompat import get_chunked_array_type

    manager: Any = get_chunked_array_type(*(job.data for job in jobs))
    return manager.store(
        [job.data for job in jobs],
        [_Target(job, store, options, underway) for job in jobs],
        regions=[job.region for job in jobs],
        lock=False,
        flush=True,
        compute=compute,
        **(options.chunkmanager_store_kwargs or {}),
    )


class _Target:
    """The array of a job, which dask stores blocks into: picklable, and cheap to make."""

    def __init__(self, job: Job, store: Store, options: WriteOptions, underway: Underway) -> None:
        node = job.node
        if options.mode == "r+" or not options.compute:
            # No lock keeps appends away meanwhile: what they put beyond the edge is kept.
            cells = zip(node.shape, node.object_shape, strict=True)
            node = replace(node, shape=tuple([-(-size // cell) * cell for size, cell in cells]))
        self.array = ChunkedArray(node, store)
        self.underway = underway
        asked = job.write_empty_chunks
        empty = options.write_empty_chunks if asked is None else asked
        self.write_empty_chunks = empty or job.fill_is_spelled
        self.scalar = not job.data.ndim

    def __setitem__(self, selection: Any, values: Any) -> None:
        node, values = self.array.node, np.asarray(values)
        selection = selection if isinstance(selection, tuple) else (selection,)
        if self.scalar:  # netCDF stores it along one dimension
            selection, values = tuple([slice(0, 1)] * len(node.shape)), values.reshape(node.shape)
        sizes = zip(selection, node.shape, strict=True)
        shape = tuple([len(range(*piece.indices(size))) for piece, size in sizes])
        with Place(variable=node.path):
            values = _as_said(values, shape, node.dtype)
        with self.underway:
            self.array.write(selection, values, write_empty_chunks=self.write_empty_chunks)


def _as_said(block: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """Give a block of dask in the type that dask says it is of; one that it is not is refused."""
    if block.shape != shape:
        raise ConflictError(
            f"found a block of shape {block.shape}, which dask says is of {shape}",
            remedy="Give the chunks and the dimensions that its function makes",
        )
    if block.dtype == dtype:
        return block
    if dtype.hasobject:
        return block.astype(dtype)
    if block.dtype.kind == "S" and dtype.kind != "S":
        return block.view(dtype)  # bytes that are stored as those of version 3
    given, said = block.dtype.kind, dtype.kind
    fits = given == said or (given in _REAL and said in _NUMBERS)
    if fits:
        with np.errstate(all="ignore"):
            converted = block.astype(dtype)
        if said in "fc":  # which round
            fits = np.array_equal(np.isfinite(converted), np.isfinite(block))
        else:
            fits = np.array_equal(converted, block, equal_nan=said in "mM")
    if not fits:
        raise ConflictError(
            f"found a block of {block.dtype}, which dask says is of {dtype}, and does not fit",
            remedy="Give the type that it computes, as with astype",
        )
    return converted


def show_progress(done: int, total: int) -> None:
    """Draw how much is done, and end the line when all is."""
    share = done / total if total else 1
    end = "\n" if done == total else ""
    sys.stderr.write(f"\r[{'#' * int(40 * share):<40}] {int(100 * share)}%{end}")
