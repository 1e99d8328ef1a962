"""Writers of one store follow one another; regions, which change no document, need no lock."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from xr_nczarr.errors import ConflictError, NczarrError
from xr_nczarr.storage import WRITER_LOCK, Store
from xr_nczarr.writing.target import is_nothing


@contextmanager
def sole_writer(
    store: Store,
    mode: str,
    owner: Callable[[], str],
    *,
    force: bool = False,
) -> Iterator[None]:
    """Keep others from changing the metadata of a store meanwhile; regions need no such lock.

    On local disks another writer is waited for, and its lock ends with it. Elsewhere its lock is a
    ConflictError.

    Parameters
    ----------
    owner
        Gives what tells this write from others: where locks outlive a writer that is killed, it may
        be run again. It looks at all values in memory, and is asked only there.
    force
        Whether to go on where another writer has left its lock.
    """
    if mode == "r+" or not store.shared or (store.locks_processes and is_nothing(store)):
        yield
    elif store.locks_processes:
        with store.lock(""):
            yield
    else:
        mark = f"{owner()} ".encode()
        lock = mark + secrets.token_hex(8).encode()
        if not store.create(WRITER_LOCK, lock):
            (found,) = store.fetch([WRITER_LOCK])
            if found is not None and not force and not bytes(found).startswith(mark):
                raise ConflictError(
                    "another write is changing this store, or was killed",
                    remedy="Wait for it, or run the killed one again as it was. Where neither can "
                    "be, remove this object, or pass overwrite='force' to to_nczarr: documents of "
                    "it are put back first",
                    store=store.name,
                    key=WRITER_LOCK,
                )
            store.put([(WRITER_LOCK, lock)])
        try:
            yield
        except BaseException as error:
            try:
                store.delete(WRITER_LOCK)
            except NczarrError as second:  # the first one says more
                error.add_note(f"The lock is left as well: {second}")
            raise
        try:
            store.delete(WRITER_LOCK)
        except NczarrError as error:
            error.remedy = "All is written; only the lock is left: remove that object"
            raise
