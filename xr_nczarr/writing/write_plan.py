"""Define the plan of a write: everything that the write changes in a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from xr_nczarr.formats import Format
from xr_nczarr.writing.chunk_writes import ArrayWrite


@dataclass(slots=True)
class WritePlan:
    """All changes that one write makes to a store.

    Attributes
    ----------
    writes
        Array values to write. Appended values become visible to readers when the documents are
        written.
    additions
        Maps keys to metadata documents to write before `documents`. Only an upgrade uses
        them, to write the new NCZarr metadata before it removes the old metadata. netCDF-C, which
        ignores the journal, therefore always finds NCZarr metadata.
    documents
        Maps keys to metadata documents to write. The root's documents are written after all others.
    chunks
        Maps keys to encoded chunks that must change together with the documents. They are written
        before the documents, and the journal also contains their previous content.
    removed
        Keys of objects, and prefixes such as ``"group/"``, to remove after the documents are
        written. `removed_documents` are removed first, and the journal contains their previous
        content. All other objects are then removed in the order of this list.
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
    mark
        Content of the marker, an object that marks a new store as unfinished. A rerun of the same
        write recognizes the store by this content. The marker contains ``{}`` if `mark` is None,
        and until the old objects have been removed.
    resumed
        Whether the target already contains the marker and some of the chunks, because an earlier
        run was interrupted.
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
    mark: bytes | None = None
    resumed: bool = False

    @property
    def removed_documents(self) -> list[str]:
        """The keys of the removed documents whose content must be saved in the journal.

        The list is empty in Zarr v2 and v3.
        """
        # In the Zarr v3 draft, a group exists as long as it contains any document. While they are
        # removed one by one, readers could open the group with only some of its arrays.
        return [key for key in self.removed if self.zarr.implies_groups and key[-1] != "/"]
