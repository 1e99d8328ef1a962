"""Predict whether the next store in a folder has consolidated metadata, based on earlier ones."""

from __future__ import annotations

from xr_nczarr.locks import ProcessLock
from xr_nczarr.storage import Store

_MIN_STORES = 2
_MAX_FOLDERS = 1000


class SimilarStores:
    """For each remote folder, a count of consecutive stores that had consolidated metadata.

    A store without consolidated metadata resets the count of its folder to zero. Usually, either
    all stores in a folder have consolidated metadata, or none of them do. If consolidated metadata
    is expected but missing, opening the store takes one more batch of requests.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._lock = ProcessLock()

    def expect_consolidated(self, store: Store) -> bool:
        """Return whether `store` should be expected to have consolidated metadata.

        This is the case if the last two stores that were opened in the same remote folder had it.
        Return False for a local store.
        """
        return store.remote and self._counts.get(_folder(store), 0) >= _MIN_STORES

    def record(self, store: Store, *, consolidated: bool) -> None:
        """Record whether a store has consolidated metadata."""
        if not store.remote:
            return
        folder = _folder(store)
        with self._lock:
            count = self._counts.pop(folder, 0)
            if consolidated:
                self._counts[folder] = count + 1
            if len(self._counts) > _MAX_FOLDERS:
                del self._counts[next(iter(self._counts))]

    def clear(self) -> None:
        """Forget all stores."""
        self._counts.clear()


similar_stores = SimilarStores()


def _folder(store: Store) -> str:
    return store.identity.rpartition("/")[0]
