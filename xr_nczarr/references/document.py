"""The location of a reference document, and a cache of parsed reference sets.

If a reference set is large, only the location of its document is pickled. A process that unpickles
the location reads the document again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

from xr_nczarr.errors import NotFoundError, ReferenceSetError
from xr_nczarr.references.parse import parse_references
from xr_nczarr.references.reference_set import ReferenceSet
from xr_nczarr.storage import SharedCache, Store

_MAX_SETS = 4

# All parsed sets that are in use.
_used: WeakValueDictionary[Any, ReferenceSet] = WeakValueDictionary()
# The most recently reread sets, which stay in memory even if they are not in use.
_reread = SharedCache[Any, ReferenceSet](_MAX_SETS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceDocument:
    """The location of a JSON reference document and the options for parsing it.

    The parsed reference set is cached, so that each process parses the document only once.

    Attributes
    ----------
    folder
        The store that contains the document.
    name
        Key of the document in `folder`.
    parsing
        The keyword arguments for `parse_references`.
    digest
        SHA-256 digest of the document when it was opened. Empty if it has not been opened yet.
    """

    folder: Store
    name: str
    parsing: Mapping[str, Any]
    digest: bytes = b""

    def read(self) -> tuple[ReferenceDocument, ReferenceSet]:
        """Read and parse the document.

        Return two values: a copy of this object with the current digest, and the reference set.

        Raises
        ------
        NotFoundError
            If the document does not exist, and has not been opened before.
        ReferenceSetError
            If the document is invalid, or was changed or removed after it was opened.
        """
        (data,) = self.folder.fetch([self.name])
        digest = b"" if data is None else hashlib.sha256(data).digest()
        if self.digest not in (b"", digest):
            raise ReferenceSetError(
                f"the reference document was {'removed' if data is None else 'changed'} "
                "after the dataset was opened",
                remedy="Reopen the dataset. If workers cannot read the document, pass "
                "the reference set as a dictionary, which is sent to the workers",
            )
        if data is None:
            raise NotFoundError("the reference set does not exist")
        document = replace(self, digest=digest)
        references = _used.get(document._token)
        if references is None:
            references = parse_references(bytes(data), **self.parsing)
        return document, _used.setdefault(document._token, references)

    def references(self) -> ReferenceSet:
        """Return the reference set as it was when the document was opened.

        If the set is not cached in this process, the document is read again; see `read`.
        """
        references = _used.get(self._token)
        if references is None:
            cached = _reread.load([self._token], lambda _: [self.read()[1]])
            references = cached[self._token]
        return references

    @property
    def _token(self) -> tuple[bytes, str]:
        return self.digest, repr(self.parsing)
