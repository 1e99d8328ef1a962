"""Documents that change together: a journal tells how they were until all of them are there.

It is one object at the root of the store, put before the first document changes and removed behind
the last. Readers do not look at it; the next write that changes documents does, and begins from a
store in which the interrupted change was made whole or never began.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xr_nczarr.backend.placing import Job
from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.errors import MetadataError
from xr_nczarr.storage import Store
from xr_nczarr.storage.protocol import Bytes

JOURNAL = ".nczarr_journal"
Regions = dict[str, list[list[int]]]


def open_journal(store: Store, documents: Mapping[str, bytes], jobs: Sequence[Job]) -> None:
    """Note how the documents are that are to change, and where an append has put its values."""
    found = zip(documents.items(), store.fetch(list(documents)), strict=True)
    entries = [[key, _text(before), _digest(after)] for (key, after), before in found]
    appended = {job.node.path: _bounds(job) for job in jobs if job.appended}
    journal = {"documents": entries, "appended": appended}
    store.put([(JOURNAL, json.dumps(journal).encode())])


def close_journal(store: Store) -> None:
    """Remove the journal: the change is complete, or somebody else has gone on from there."""
    store.delete(JOURNAL)


def settle(store: Store) -> Regions:
    """Undo a change of documents that was interrupted.

    Returns
    -------
    By path of the array, the first and last element along each dimension of what an append put
    that was complete but for its journal, which is then left for `close_journal`. Else empty.

    Raises
    ------
    MetadataError
        For a damaged journal.
    """
    (data,) = store.fetch([JOURNAL])
    if data is None:
        return {}
    entries, appended = _parsed(bytes(data))
    found = list(store.fetch([key for key, _, _ in entries]))
    done = [_digest(now) == after for now, (_, _, after) in zip(found, entries, strict=True)]
    if all(done) and appended:
        return appended
    undone = [_text(now) == before for now, (_, before, _) in zip(found, entries, strict=True)]
    # A document that is neither was changed by another program since: its state is what counts.
    known = all(one or other for one, other in zip(done, undone, strict=True))
    if known and not all(done):
        for key, before, _ in reversed(entries):
            if before is None:
                store.delete(key)
            else:
                store.put([(key, before.encode("latin-1"))])
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


def _text(data: Bytes | None) -> str | None:
    return None if data is None else bytes(data).decode("latin-1")


def _digest(data: Bytes | None) -> str:
    return "" if data is None else hashlib.sha256(data).hexdigest()


def _parsed(data: bytes) -> tuple[list[tuple[str, str | None, str]], Regions]:
    try:
        value: Any = json.loads(data)
        entries = [(str(key), before, str(after)) for key, before, after in value["documents"]]
        appended = {
            str(path): [[int(start), int(stop)] for start, stop in bounds]
            for path, bounds in value["appended"].items()
        }
        if not all(before is None or isinstance(before, str) for _, before, _ in entries):
            raise TypeError("found a document that is no text")
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise MetadataError(
            "the journal of an interrupted write is damaged",
            remedy="Remove it if the store opens as it should",
            key=JOURNAL,
        ) from error
    return entries, appended
