"""Change a store in one transaction, from taking the writer lock to releasing it.

A transaction consists of the following steps. `Transaction.locked` takes and releases the lock,
`Transaction.roll_back` performs step 2, and `Transaction.execute` performs steps 4 to 9.

1. **Lock.** Only one writer at a time may change the metadata or replace the store. A region write
   that does neither only prevents other writers from replacing a local directory.
2. **Roll back.** If there is a journal at the root, a writer was killed while changing metadata
   documents. These documents are restored, unless all of them had already been changed.
3. **Plan.** The caller opens the target and plans the write. Nothing is written until the plan is
   complete, so a request that does not fit the store leaves the store untouched.
4. **Stage.** New local stores and all zip files are written beside the target, and atomically
   replace it at the end. If the process is killed, either the old or the new store remains.
5. **Prepare.** A new store that cannot be staged contains a marker until it is complete. The
   objects of the old store are removed, beginning with the documents that identify the store.
6. **Write chunks**, in any order. Appended values lie outside the shape that readers see. With
   ``compute=False``, the caller's dask arrays are written later, when the caller computes them.
7. **Journal.** If several documents change in place, an object called the journal stores their
   previous content. Readers use this content while only some of the documents have changed.
8. **Write documents.** The root's documents come last, followed only by consolidated metadata. In
   the Zarr v3 draft, the documents of a replaced group are then removed. Everything is flushed to
   disk before and after this step.
9. **Finish.** The journal and the marker are removed, and the lock is released.

In a transactional store, such as an icechunk session, readers see no changes until the user commits
them. Documents are therefore written before chunks, and neither a marker nor a journal is written.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, TypeVar

import numpy as np

from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.errors import ConflictError, NczarrError, UnsupportedError
from xr_nczarr.formats import FORMATS
from xr_nczarr.hierarchy import (
    JOURNAL,
    UNFINISHED,
    Journal,
    Regions,
    open_journal,
    refresh_consolidated,
)
from xr_nczarr.progress import Progress
from xr_nczarr.storage import WRITER_LOCK, Store, is_file_manager_file
from xr_nczarr.writing.chunk_writes import ArrayWrite, write_chunks, write_later
from xr_nczarr.writing.write_options import WriteOptions
from xr_nczarr.writing.write_plan import WritePlan
from xr_nczarr.writing.write_target import WriteTarget, is_empty

_Result = TypeVar("_Result")

_MAX_TRIES = 10  # attempts to take the writer lock


class Transaction:
    """A multi-step change to a store, created by `Transaction.locked`.

    Attributes
    ----------
    target
        The store to change, and the content that was read from it.
    applied
        Regions that an interrupted append had already written completely, keyed by array path.
        Empty if there is no such append.
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
            is rerun, it recognizes its own lock by this string. The function is called only for
            object stores, where the lock of a killed writer remains.
        locking
            Whether to take the lock. An empty local directory is locked only if `locking` is
            ``"always"``, because it is replaced atomically at the end. If False, a local directory
            is only protected from being replaced.
        force
            Whether to take over the lock of another writer.

        Raises
        ------
        ConflictError
            If an object store contains the lock of another writer and `force` is false.
        """
        lock: AbstractContextManager[None] = nullcontext()
        if not locking:
            lock = store.replacement_lock(exclusive=False)
        elif store.locks_processes:
            if locking == "always" or not is_empty(store):
                lock = store.lock("")
        elif store.shared:
            lock = _lock_object(store, owner, force=force)  # `owner` may hash large arrays
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
        """Write the changes of a plan to the store.

        If `options.compute` is false, return a dask object that writes the remaining chunks when it
        is computed. Otherwise, return None.

        If writing fails, the error's remedy (or a note added to the error) describes the state of
        the store and how to continue.

        Raises
        ------
        ConflictError
            If dask blocks cannot be aligned with the stored chunks, if one of the plan's checks
            fails, or if an interrupted append stored only part of the plan's changes.
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
            plan = self._without_applied(plan)
        for check in plan.checks:
            check()
        late = [write for write in plan.writes if write.deferrable and not options.compute]
        now = [write for write in plan.writes if not write.deferrable or options.compute]
        staged = plan.new or bool(plan.first and plan.first.chunks)
        staged |= options.compute and (options.atomic or options.mode == "w")

        def write_values(work: Store) -> Any:
            concurrent = options.mode == "r+" or not options.compute  # usually without a lock
            total = sum(write.data.nbytes for write in now)
            with Progress(options.progress and bool(now), total) as bar:
                write_chunks(now, work, bar, concurrent=concurrent)
            return None if options.compute else write_later(late, self.store)

        try:
            return self.commit(plan, write_values, staged=staged)
        except Exception as error:
            left = _state_after_failure(
                plan, self.store, in_place=not is_staged(self.store, staged)
            )
            if isinstance(error, NczarrError):
                error.remedy = ". ".join(filter(None, (error.remedy.rstrip("."), left)))
            else:  # raised by dask, or by a function in its graph
                error.add_note(f"{self.store.name}: {left}")
            raise

    def _without_applied(self, plan: WritePlan) -> WritePlan:
        """Return `plan`, or an empty plan if an interrupted append has already carried it out.

        The append's journal is removed. Raise ConflictError if `plan` repeats the append, but also
        makes other changes.
        """
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
        return WritePlan(plan.zarr) if repeated else plan

    def commit(
        self, plan: WritePlan, write_values: Callable[[Store], _Result], *, staged: bool
    ) -> _Result:
        """Perform steps 4 to 9 of a transaction, and return the result of `write_values`.

        The module docstring lists the steps.

        Parameters
        ----------
        write_values
            Function that writes the plan's chunks to the store that is passed to it.
        staged
            Whether to replace a local store atomically. Zip files are always replaced atomically.
            Remote stores are never replaced atomically.
        """
        with self._workspace(plan, staged=staged) as work:
            if plan.new and not plan.resumed:
                self._prepare(plan, work)
            if plan.first is not None:
                self._write_parts(plan.first, work, lambda _: None)
            return self._write_parts(plan, work, write_values)

    @contextmanager
    def _workspace(self, plan: WritePlan, *, staged: bool) -> Iterator[Store]:
        """Yield the store to write to: the target, or a staging store that later replaces it."""
        if is_staged(self.store, staged):
            with self.store.atomic_replacement(empty=plan.new, exclusive=plan.exclusive) as staging:
                yield staging
        else:
            yield self.store
            self.store.flush()

    def _prepare(self, plan: WritePlan, work: Store) -> None:
        """Mark a new store as unfinished, and remove the objects of the store that it replaces."""
        if not work.transactional:
            work.put([(UNFINISHED, b"{}")])
        if work is self.store and not self.target.is_empty:
            self._clear()
        if plan.mark is not None and not work.transactional:
            work.put([(UNFINISHED, plan.mark)])

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

    def _write_parts(
        self, plan: WritePlan, work: Store, write_values: Callable[[Store], _Result]
    ) -> _Result:
        """Write the chunks, the journal and the documents, in an order that keeps a store readable.

        Return the result of `write_values`.
        """
        if work.transactional:
            self._write_documents(plan, work)
            work.put(plan.chunks.items())
            self._remove(plan.removed, work)
            return write_values(work)
        result = write_values(work)
        journal = self._journal(plan, work)
        if journal is not None:
            work.put([(JOURNAL, journal.render())])
        work.flush()
        work.put(plan.chunks.items())
        self._write_documents(plan, work)
        self._remove(plan.removed_documents, work)
        if journal is not None:
            work.flush()
            work.delete(JOURNAL)
        elif plan.new:
            work.delete(UNFINISHED)
        self._remove([key for key in plan.removed if key not in plan.removed_documents], work)
        return result

    def _journal(self, plan: WritePlan, work: Store) -> Journal | None:
        """Return the journal of a plan, or None if the plan needs no journal."""
        if work is not self.store or plan.new:
            return None
        appended = {write.node.path: write.bounds for write in plan.writes if write.appended}
        documents = {
            **plan.additions,
            **plan.documents,
            **dict.fromkeys(plan.removed_documents),
        }
        after = {**plan.chunks, **documents}
        # A change to a single document is atomic. The journal of an append records its regions.
        if len(after) < 2 and not appended:
            return None
        before = [*work.fetch(list(plan.chunks)), *self.target.read(list(documents))]
        return Journal.of(after, before, appended, chunks=bool(plan.chunks))

    def _write_documents(self, plan: WritePlan, work: Store) -> None:
        """Write the metadata documents of a plan.

        The documents of the root are written last, one at a time.
        """
        for documents in (plan.additions, plan.documents):
            root = [key for key in reversed(plan.zarr.root_keys()) if key in documents]
            work.put([(key, data) for key, data in documents.items() if key not in root])
            for key in root:
                work.put([(key, documents[key])])
            self.target.documents.update(documents)

    def _remove(self, targets: Sequence[str], work: Store) -> None:
        for target in targets:
            work.delete(target)
            removed = [key for key in self.target.documents if _is_below(key, target)]
            self.target.documents.update(dict.fromkeys(removed))


def is_staged(store: Store, requested: bool) -> bool:
    """Return whether a change is written to a staging store, which then replaces `store`.

    `requested` is whether the caller requests atomic replacement.
    """
    return store.single_file or (requested and store.replaceable)


@contextmanager
def _lock_object(store: Store, owner: Callable[[], str], *, force: bool) -> Iterator[None]:
    """Keep a lock object in the store during the ``with`` block.

    Raise ConflictError if another writer holds the lock and `force` is false, or if each of
    several attempts fails because another writer takes the lock first.
    """
    # If the writer is killed, the lock object remains. A rerun recognizes it by the mark.
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
        "you can do neither, call to_nczarr with overwrite=True (which first rolls back an "
        f"incomplete metadata update), or remove the writer lock, {WRITER_LOCK}",
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
    """Return whether the region `bounds` already contains exactly the values of `write`."""
    if [stop - start for start, stop in bounds] != [stop - start for start, stop in write.bounds]:
        return False
    (first, last), *other_bounds = bounds
    array, length = ChunkedArray(write.node, store), write.node.object_shape[0]
    for start in range(first, last, length):  # one row of chunks at a time, to limit memory use
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
            "The uncommitted changes contain only part of the write. Discard the changes (for "
            "example with session.discard_changes()), and run the write again"
        )
    if not in_place:
        return "The store is either unchanged or completely replaced. Run the write again"
    if plan.new:
        return (
            "The target contains the old dataset, no dataset, or the complete new one. Run the "
            "write again, or use mode='w'"
        )
    if plan.first is not None and plan.first.removed:
        return (
            "The group contains the old dataset, no dataset, or part of the new one. Run the write "
            "again"
        )
    if (plan.additions or plan.documents) and all(write.appended for write in plan.writes):
        return (
            "Readers see either the whole change or none of it. Run the write again, or let the "
            "next write roll the change back"
        )
    return (
        "Each chunk to be overwritten contains either its old or its new values. Fix the problem "
        "and run the write again. On local disks, pass atomic=True to make the write atomic"
    )


def _is_below(key: str, target: str) -> bool:
    return key.startswith(target) if target.endswith("/") else key == target
