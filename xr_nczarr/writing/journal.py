"""Documents that change together, in a store: see `xr_nczarr.formats.journal`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.hierarchy import JOURNAL, Journal, Regions, open_journal
from xr_nczarr.storage import Store

if TYPE_CHECKING:
    from xr_nczarr.writing.placing import Job


def put_journal(
    store: Store,
    documents: Mapping[str, bytes],
    jobs: Sequence[Job],
    chunks: Mapping[str, bytes],
) -> None:
    """Note the objects as they are before they change, and where an append has put its values."""
    appended = {job.node.path: _bounds(job) for job in jobs if job.appended}
    objects = {**chunks, **documents}
    found = store.fetch(list(objects))
    journal = Journal.of(objects, found, appended, chunks=bool(chunks))
    store.put([(JOURNAL, journal.render())])


def close_journal(store: Store) -> None:
    """Remove the journal: the change is complete, or somebody else has gone on from there."""
    store.delete(JOURNAL)


def settle(store: Store) -> Regions:
    """Undo a change of documents that was interrupted.

    If an append was complete but for its journal, that is left for `close_journal`, and this gives
    the first and last element along each dimension of what it put, by path of the array. Else
    nothing, as of a zip file, which changes in one step.
    """
    journal = None if store.single_file else open_journal(store)
    if journal is None:
        return {}
    before = journal.before(store.fetch(journal.keys))
    if before is None and journal.appended:
        return journal.appended
    for key, data in reversed((before or {}).items()):
        if data is None:
            store.delete(key)
        else:
            store.put([(key, data)])
    close_journal(store)
    return {}


def holds(store: Store, appended: Regions, jobs: Sequence[Job]) -> bool:
    """Tell whether what an append put is what `jobs` would append."""
    given = {job.node.path: job for job in jobs if job.appended}
    return appended.keys() == given.keys() and all(
        _holds(store, bounds, given[path]) for path, bounds in appended.items()
    )


def _holds(store: Store, bounds: list[list[int]], job: Job) -> bool:
    """Compare a few chunks at a time, bit for bit."""
    if [stop - start for start, stop in bounds] != [stop - start for start, stop in _bounds(job)]:
        return False
    (first, last), *others = bounds
    array, length = ChunkedArray(job.node, store), job.node.object_shape[0]
    for start in range(first, last, length):
        stop = min(start + length, last)
        stored = array.read([slice(start, stop), *(slice(*each) for each in others)])
        given = np.asarray(job.data[start - first : stop - first])
        if given.dtype.hasobject or stored.dtype.hasobject:
            if not np.array_equal(stored, given):
                return False
        elif stored.tobytes() != given.tobytes():
            return False
    return True


def _bounds(job: Job) -> list[list[int]]:
    return [[piece.start, piece.stop] for piece in job.region]
