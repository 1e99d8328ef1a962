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
        Array values to write.
    additions
        Metadata documents to write before `documents`, by key. Only an upgrade uses them, to write
        the new NCZarr metadata before it removes the old metadata.
    documents
        Metadata documents to write, by key. The documents of the root are written last.
    chunks
        Encoded chunks to write before the documents, by key. The journal contains their previous
        content.
    removed
        Keys of objects, and prefixes such as ``"group/"``, to remove in this order after the
        documents are written. `removed_documents` are removed before the others.
    new
        Whether the plan creates a store. If so, all other objects in the target are removed.
    exclusive
        Whether to raise an error if another writer creates a store at the same time.
    first
        A plan to carry out before this plan. It widens fixed-width strings (see `plan_widening`),
        or removes the group that the write replaces.
    only_appends
        Whether the plan appends values to stored arrays and changes nothing else.
    checks
        Functions that check appended coordinate values against stored values. They are called just
        before anything is written.
    mark
        Content of the marker, an object that marks a new store as unfinished. A rerun of the same
        write recognizes the store by this content. None means that a rerun cannot resume the write.
    resumed
        Whether the plan resumes an interrupted run, which left the marker and some chunks.
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
        """The keys of the documents that are removed before the other objects in `removed`.

        The journal contains the content of these documents. In Zarr v2 and v3, no documents have to
        be removed first, so the list is empty.
        """
        # In the Zarr v3 draft, a group exists as long as it contains any document. While they are
        # removed one by one, readers could open the group with only some of its arrays.
        return [key for key in self.removed if self.zarr.implies_groups and key[-1] != "/"]
