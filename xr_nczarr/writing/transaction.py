"""Change a store in one transaction, from taking the writer lock to releasing it.

The methods of `Transaction` are the steps of this protocol, in order. `execute` runs steps 4 to 9:

1. **Lock.** Only one writer at a time may change the metadata or replace the store. A region write
   that does neither needs no lock.
2. **Roll back.** A journal at the root shows that a writer was killed while changing metadata
   documents. These documents are restored, unless all of them had already been changed.
3. **Plan.** The caller opens the target and plans the write. Nothing is written until the plan is
   complete, so a request that does not fit the store leaves the store untouched.
4. **Stage.** New local stores and all zip files are written beside the target, and atomically
   replace it at the end. If the process is killed, either the old or the new store remains.
5. **Prepare.** A new store that cannot be staged contains a marker until it is complete. The
   objects of the old store are removed, beginning with the documents that make it a store.
6. **Write chunks**, in any order. Appended values lie outside the shape that readers see. With
   ``compute=False``, the caller's dask arrays are written later, when the caller computes them.
7. **Journal.** If several documents change in place, an object called the journal stores their
   previous content. Readers use this content while only some of the documents have changed.
8. **Write documents.** The root's documents come last, followed only by consolidated metadata. In
   the Zarr v3 draft, the documents of a replaced group are then removed. Everything is flushed to
   disk before and after this step.
9. **Finish.** The journal and the marker are removed, and the lock is released.

If the caller commits the changes (as in an icechunk session), documents are written before chunks.
Neither a marker nor a journal is written, because readers see either all changes or none.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.errors import ConflictError, NczarrError, UnsupportedError
from xr_nczarr.formats import FORMATS, Format
from xr_nczarr.hierarchy import (
    JOURNAL,
    UNFINISHED,
    Journal,
    Regions,
    open_journal,
    refresh_consolidated,
)
from xr_nczarr.storage import WRITER_LOCK, Store, is_file_manager_file
from xr_nczarr.writing.chunk_writes import ArrayWrite, write_chunks, write_later
from xr_nczarr.writing.write_options import WriteOptions
from xr_nczarr.writing.write_target import WriteTarget, is_empty

_MAX_TRIES = 10  # attempts to take the writer lock


@dataclass(slots=True)
class WritePlan:
    """All changes that one write makes to a store.

    Attributes
    ----------
    writes
        Array values to write. Appended values become visible to readers when the documents are
        written.
    additions
        Documents to write before `documents`. An upgrade adds new annotations to some documents
        before removing old annotations from others, because netCDF-C ignores the journal.
    documents
        Maps keys to metadata documents, in write order. The root's documents are written last.
    chunks
        Maps keys to encoded chunks that must change together with the documents. They are written
        before the documents, and the journal also contains their previous content.
    removed
        Keys and prefixes to remove, in this order, after the documents are written. In versions of
        Zarr with implied groups, the journal contains the removed documents too.
    new
        Whether the plan creates a store. If so, everything else in the target is removed.
    exclusive
        Whether to raise an error if another writer creates a store at the same time.
    first
        A plan to complete before this plan writes its first chunk. It rewrites fixed-width strings
        with a larger width (see `plan_widening`), or removes the group that the write replaces.
    only_appends
        Whether the plan appends values to stored arrays and changes nothing else.
    checks
        Functions that check appended coordinate values against stored values, called just before
        anything is written.
    """

    zarr: Format
    writes: list[ArrayWrite] = field(default_factory=list)
    additions: dict[str, bytes] = field(default_factory=dict)
    documents: dict[str, bytes] = field(default_factory=dict)
    chunks: dict[str, bytes] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    new: bool = False
    exclusive: bool = False
    first: WritePlan | None = None
    only_appends: bool = False
    checks: list[Callable[[], None]] = field(default_factory=list)


class Transaction:
    """A change to a store in several steps, created by `Transaction.locked`.

    Attributes
    ----------
    target
        The store as it was before the change. Its document cache is updated when the transaction
        writes or removes documents.
    applied
        The regions of an interrupted append, if `roll_back` finds that all of them were written.
        Maps the path of each array to the start and the exclusive end of its region along each
        dimension. The append's journal is kept until `execute` removes it.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.target = WriteTarget(store)
        self.applied: Regions = {}

    @classmethod
    @contextmanager
    def locked(
        cls,
        store: Store,
        owner: Callable[[], str],
        *,
        locking: bool | Literal["always"] = True,
        force: bool = False,
    ) -> Iterator[Transaction]:
        """Take the writer lock of a store if necessary, and yield a transaction.

        On local disks, wait until other writers release the lock. A writer's lock is also released
        when its process ends.

        Parameters
        ----------
        owner
            Function that returns a string identifying the owner of the lock. When a killed writer
            is rerun, it recognizes its own lock by this string. Because the function may have to
            hash large arrays, it is called only for object stores, where the lock of a killed
            writer remains.
        locking
            Whether to take the lock. Region writes do not need the lock, unless they replace the
            store. An empty local directory is replaced atomically at the end, so it is locked only
            if `locking` is ``"always"``.
        force
            Whether to take over the lock of another writer.

        Raises
        ------
        ConflictError
            If an object store contains the lock of another writer and `force` is false.
        """
        lock: AbstractContextManager[None] = nullcontext()
        if store.locks_processes:
            if locking == "always" or (locking and not is_empty(store)):
                lock = store.lock("")
        elif store.shared and locking:
            lock = _lock_object(store, owner, force=force)
        with lock:
            yield cls(store)

    def roll_back(self, consolidated: bool | None = None) -> None:
        """Undo a killed writer's incomplete change, or finish it if only the final step is missing.

        - If only some documents were changed, restore their previous content.
        - If an append was completed, record its regions in `applied`.
        - If a new store lacks only its consolidated metadata, write this metadata.

        Parameters
        ----------
        consolidated
            Whether to write consolidated metadata to new stores. None means the default for the
            Zarr version.
        """
        if self.store.single_file:
            return
        (mark,) = self.store.fetch([UNFINISHED]) if self.target.may_hold(UNFINISHED) else (None,)
        if mark is not None:
            self._finish_creation(consolidated)
        if not self.target.may_hold(JOURNAL):
            return
        journal = open_journal(self.store)
        if journal is None:
            return
        before = journal.contents_to_restore(self.store.fetch(journal.keys))
        if before is None and journal.appended:
            self.applied = journal.appended
            return
        for key, data in reversed((before or {}).items()):
            if data is None:
                self.store.delete(key)
            else:
                self.store.put([(key, data)])
        self.store.delete(JOURNAL)

    def _finish_creation(self, consolidated: bool | None) -> None:
        opened = self.target.open("a")
        if opened is not None:
            default = opened.hierarchy.zarr.consolidated_by_default
            if default if consolidated is None else consolidated:
                documents = refresh_consolidated(opened.hierarchy, opened.hierarchy.nodes, {})
                self.store.put(documents.items())
            self.store.delete(UNFINISHED)
            self.target.documents.clear()  # so that the new consolidated metadata is read

    def execute(self, plan: WritePlan, options: WriteOptions) -> Any:
        """Execute a plan.

        If `options.compute` is false, return a dask object that writes the remaining chunks. If
        writing fails, the error's remedy (or a note added to the error) describes the state of
        the store and how to continue.

        Raises
        ------
        ConflictError
            If dask blocks cannot be aligned with the stored chunks.
        UnsupportedError
            If the target is a zip file and `options.compute` is false.
        """
        if options.safe_chunks:
            plan.writes = [write.aligned() for write in plan.writes]
        if not options.compute and self.store.single_file:
            raise UnsupportedError(
                "a zip file cannot be written with compute=False",
                remedy="Leave out compute=False, or write to a directory",
                store=self.store.name,
            )
        if self.applied:
            repeated = plan.first is None and _is_applied(self.store, self.applied, plan.writes)
            if repeated and not plan.only_appends:
                raise ConflictError(
                    "an interrupted append has already stored the new values, but not the new "
                    "variables and attributes",
                    remedy="Rerun the interrupted append unchanged. Then write the new variables "
                    "and attributes with mode='a' and without append_dim",
                    store=self.store.name,
                )
            self.store.delete(JOURNAL)
            if repeated:  # the killed writer had already written everything
                plan = WritePlan(plan.zarr)
        for check in plan.checks:
            check()
        atomic = plan.new or bool(plan.first and plan.first.chunks)
        atomic |= options.compute and (options.atomic or options.mode == "w")
        try:
            with self.changing(plan, staged=atomic) as work:
                write_chunks(
                    [write for write in plan.writes if options.compute or not write.deferrable],
                    work,
                    options,
                )
        except Exception as error:
            left = _state_after_failure(plan, self.store, in_place=not self._is_staged(atomic))
            if isinstance(error, NczarrError):
                error.remedy = ". ".join(filter(None, (error.remedy.rstrip("."), left)))
            else:  # raised by dask, or by a function in its graph
                error.add_note(f"{self.store.name}: {left}")
            raise
        if options.compute:
            return None
        late = [write for write in plan.writes if write.deferrable]
        return write_later(late, self.store, options)

    @contextmanager
    def _workspace(self, plan: WritePlan, *, staged: bool) -> Iterator[Store]:
        """Yield the store to write to: the target, or a staging store that later replaces it.

        A staging store contains the objects of the target, unless the plan creates a new store.
        """
        if self._is_staged(staged):
            with self.store.atomic_replacement(empty=plan.new, exclusive=plan.exclusive) as staging:
                yield staging
        else:
            yield self.store
            self.store.flush()

    def _is_staged(self, requested: bool) -> bool:
        return self.store.single_file or (requested and self.store.replaceable)

    @contextmanager
    def changing(
        self, plan: WritePlan, *, staged: bool, mark: bytes | None = None, resumed: bool = False
    ) -> Iterator[Store]:
        """Yield the store for the caller's chunk writes, and write the plan's metadata documents.

        Documents are written after the chunks, except in transactional stores.

        Parameters
        ----------
        staged
            Whether to replace a local store atomically. Zip files are always replaced atomically,
            and remote stores never are.
        mark
            Content of the marker, which lets a rerun of the same write recognize the unfinished
            store. Until the old objects have been removed, the marker contains ``{}`` instead.
        resumed
            Whether the target already contains the marker and some of the chunks, because an
            earlier run was interrupted.
        """
        with self._workspace(plan, staged=staged) as work:
            if plan.new and not resumed:
                if not work.transactional:
                    work.put([(UNFINISHED, b"{}")])
                if work is self.store and not self.target.is_empty:
                    self._clear()
                if mark is not None and not work.transactional:
                    work.put([(UNFINISHED, mark)])
            if plan.first is not None:
                self._put_documents(plan.first, work)
            if work.transactional:
                self._put_documents(plan, work)
                yield work
            else:
                yield work
                self._put_documents(plan, work)

    def _clear(self) -> None:
        """Remove all objects except the lock, the marker, and ``.DS_Store`` and similar files."""
        keys = {
            key: None
            for key in self.store.list_keys()
            if key not in (UNFINISHED, WRITER_LOCK)
            and not is_file_manager_file(key.partition("/")[0])
        }
        # Root documents of all Zarr versions are removed first. Otherwise, readers could open the
        # old store after some of its objects have been removed.
        for root in (key for zarr in FORMATS.values() for key in zarr.root_keys()):
            if root in keys:
                del keys[root]
                self.store.delete(root)
        self.store.remove(keys)

    def _put_documents(self, plan: WritePlan, work: Store) -> None:
        """Write the metadata documents of a plan, and then remove the objects in ``plan.removed``.

        The root's documents are written last, one by one.
        """
        appended = {write.node.path: write.bounds for write in plan.writes if write.appended}
        documents = {**plan.additions, **plan.documents}
        # A group of the Zarr v3 draft exists as long as it contains any document. While these
        # documents are removed, a reader could therefore open the group with only some of its
        # arrays. To prevent this, the journal contains the documents.
        jointly_removed = [
            key for key in plan.removed if plan.zarr.implies_groups and key[-1] != "/"
        ]
        objects = {**plan.chunks, **documents, **dict.fromkeys(jointly_removed)}
        # A change to a single object is atomic and needs no journal. An append always needs a
        # journal, which records its regions.
        journaled = work is self.store and not plan.new and not work.transactional
        journaled &= len(objects) > 1 or bool(appended)
        if journaled:
            before = [
                *work.fetch(list(plan.chunks)),
                *self.target.read([*documents, *jointly_removed]),
            ]
            journal = Journal.of(objects, before, appended, chunks=bool(plan.chunks))
            work.put([(JOURNAL, journal.render())])
        work.flush()
        if not work.transactional:
            work.put(plan.chunks.items())
        for batch in (*_batches(plan.additions, plan.zarr), *_batches(plan.documents, plan.zarr)):
            work.put(batch.items())
        if work.transactional:
            work.put(plan.chunks.items())
        self.target.documents.update(documents)
        self._remove(jointly_removed, work)
        if journaled:
            work.flush()
            work.delete(JOURNAL)
        elif plan.new:
            work.delete(UNFINISHED)
        self._remove([target for target in plan.removed if target not in jointly_removed], work)

    def _remove(self, targets: Sequence[str], work: Store) -> None:
        for target in targets:
            work.delete(target)
            removed = [key for key in self.target.documents if _is_below(key, target)]
            self.target.documents.update(dict.fromkeys(removed))


def _batches(documents: Mapping[str, bytes], zarr: Format) -> Iterator[Mapping[str, bytes]]:
    """Yield metadata documents in batches. Those at the root come last, each in its own batch."""
    root = [key for key in reversed(zarr.root_keys()) if key in documents]
    yield {key: data for key, data in documents.items() if key not in root}
    yield from ({key: documents[key]} for key in root)


@contextmanager
def _lock_object(store: Store, owner: Callable[[], str], *, force: bool) -> Iterator[None]:
    """Hold a lock, implemented as an object in the store.

    The lock object is left behind if the writer is killed.
    """
    mark = f"{owner()} ".encode()
    lock = mark + secrets.token_hex(8).encode()
    for _ in range(_MAX_TRIES):
        if store.create(WRITER_LOCK, lock):
            break
        (held,) = store.fetch([WRITER_LOCK])
        if held is None:  # released since the last try, so another writer may take it now
            continue
        if not force and not bytes(held).startswith(mark):
            raise _lock_error(store)
        store.put([(WRITER_LOCK, lock)])
        break
    else:
        raise _lock_error(store)
    try:
        yield
    except BaseException as error:
        try:
            store.delete(WRITER_LOCK)
        except NczarrError as second:  # the first error is more important
            error.add_note(f"In addition, the writer lock could not be removed: {second}")
        raise
    try:
        store.delete(WRITER_LOCK)
    except NczarrError as error:
        error.remedy = f"All data has been written. Remove the writer lock, {WRITER_LOCK}"
        raise


def _lock_error(store: Store) -> ConflictError:
    return ConflictError(
        "another write to this store is in progress, or was interrupted",
        remedy="Wait until that write is complete. If it was interrupted, rerun it unchanged. If "
        f"you can do neither, remove the writer lock, {WRITER_LOCK}, or call to_nczarr with "
        "overwrite=True, which first rolls back an incomplete metadata update",
        store=store.name,
        key=WRITER_LOCK,
    )


def _is_applied(store: Store, appended: Regions, writes: Sequence[ArrayWrite]) -> bool:
    """Return whether an interrupted append has already stored all values of `writes`."""
    planned = {write.node.path: write for write in writes if write.appended}
    return appended.keys() == planned.keys() and all(
        _is_written(store, bounds, planned[path]) for path, bounds in appended.items()
    )


def _is_written(store: Store, bounds: list[list[int]], write: ArrayWrite) -> bool:
    """Return whether the values stored in the region `bounds` are those of a write, bit for bit.

    Only a few chunks are compared at a time, to limit memory use.
    """
    if [stop - start for start, stop in bounds] != [stop - start for start, stop in write.bounds]:
        return False
    (first, last), *other_bounds = bounds
    array, length = ChunkedArray(write.node, store), write.node.object_shape[0]
    for start in range(first, last, length):
        stop = min(start + length, last)
        stored = array.read([slice(start, stop), *(slice(*pair) for pair in other_bounds)])
        new = np.asarray(write.data[start - first : stop - first])
        if new.dtype.hasobject or stored.dtype.hasobject:
            if not np.array_equal(stored, new):
                return False
        elif stored.tobytes() != new.tobytes():
            return False
    return True


def _state_after_failure(plan: WritePlan, store: Store, *, in_place: bool) -> str:
    if store.transactional:
        return (
            "The uncommitted changes contain only part of the write: discard the changes (for "
            "example with session.discard_changes()), and run the write again"
        )
    if not in_place:
        return "The store is either unchanged or completely replaced: run the write again"
    if plan.new:
        return (
            "The target contains the old dataset, no dataset, or the complete new one: run the "
            "write again, or use mode='w'"
        )
    if plan.first is not None and plan.first.removed:
        return (
            "The group contains the old dataset, no dataset, or part of the new one: run the write "
            "again"
        )
    if (plan.additions or plan.documents) and all(write.appended for write in plan.writes):
        return (
            "Readers see either the whole change or none of it. Run the write again, or let the "
            "next write roll the change back"
        )
    return (
        "Each chunk to be overwritten contains either its old or its new values: fix the problem "
        "and run the write again. On local disks, pass atomic=True to make the write atomic"
    )


def _is_below(key: str, target: str) -> bool:
    return key.startswith(target) if target.endswith("/") else key == target
