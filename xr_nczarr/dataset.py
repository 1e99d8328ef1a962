"""What a user names → store and hierarchy. The one place that resolves a target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from xr_nczarr.hierarchy import Consolidated, RecordSetError, open_hierarchy
from xr_nczarr.model import Hierarchy
from xr_nczarr.netcdf.annotations import SIDECARS, listed_children
from xr_nczarr.references import open_record_set, open_target
from xr_nczarr.storage import Access, Location, Store, parse_url


@dataclass(frozen=True, slots=True)
class Resolved:
    """A target, the place that it names, and the store there."""

    location: Location
    access: Access
    store: Store

    def open_hierarchy(
        self, *, consolidated: Consolidated = None, **search: Any
    ) -> tuple[Resolved, Hierarchy]:
        """Return the nodes of the store, or of the reference set in parquet that it holds.

        See `hierarchy.open_hierarchy` for the arguments.

        Raises
        ------
        RecordSetError
            If the target is a store object that holds a reference set: it stays what it is.
        """
        search |= {
            "listed_children": listed_children,
            "sidecars": SIDECARS,
            "limits": self.access.limits,
        }
        try:
            return self, open_hierarchy(self.store, consolidated=consolidated, **search)
        except RecordSetError as error:
            if self.store is self.location.target:
                raise
            store = open_record_set(self.location, self.store, error.document, self.access)
            return replace(self, store=store), open_hierarchy(store, **search)


def resolve(target: object, access: Access | None = None, *, must_exist: bool = True) -> Resolved:
    """Return the store that `target` names. Nothing remote is requested yet.

    Parameters
    ----------
    target
        A path, a URL of fsspec, an NCZarr URL, a mapping of keys to bytes, a mapper or an opened
        file of fsspec, a reference set, or a store.
    must_exist
        Whether a store or reference set has to exist; otherwise a store may be created.
    """
    location, access = parse_url(target), access or Access()
    return Resolved(location, access, open_target(location, access, must_exist=must_exist))
