"""The location of a reference document, and a cache of parsed reference sets.

If a reference set is large, only the location of its document is pickled. The process that
unpickles it then reads the document again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

from xr_nczarr.codecs import decompressed
from xr_nczarr.errors import NotFoundError, ReferenceSetError
from xr_nczarr.model import Limits
from xr_nczarr.references.parse import parse_references
from xr_nczarr.references.reference_set import ReferenceSet
from xr_nczarr.references.templates import Language
from xr_nczarr.storage import SharedCache, Store

_MAX_SETS = 4

# All parsed sets that are in use.
_used: WeakValueDictionary[Any, ReferenceSet] = WeakValueDictionary()
# The most recently reread sets, which stay in memory even if they are not in use.
_reread = SharedCache[Any, ReferenceSet](_MAX_SETS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceDocument:
    """The location of a JSON reference document and the options for parsing it.

    The parsed reference set is cached, so that each process reads the document only once.

    Attributes
    ----------
    folder
        The store that contains the document.
    name
        Key of the document in `folder`.
    digest
        Digest of the content that the document had when it was opened. Empty until then.
    template_overrides, templates, limits
        See `parse_references`.
    """

    folder: Store
    name: str
    template_overrides: Mapping[str, str] | None
    templates: Language
    limits: Limits
    digest: bytes = b""

    def open(self) -> tuple[ReferenceDocument, ReferenceSet]:
        """Read and parse the document.

        Return two values: a copy of this object with the current digest of the document, and the
        reference set.

        Raises
        ------
        NotFoundError
            If the document does not exist.
        """
        references = self._read()
        if references is None:
            raise NotFoundError("the reference set does not exist")
        opened = replace(self, digest=references.digest)
        return opened, _used.setdefault(opened._token, references)

    def references(self) -> ReferenceSet:
        """Return the reference set as it was when the document was opened.

        If this process has not cached the reference set, the document is read again.

        Raises
        ------
        ReferenceSetError
            If the document has changed since it was opened, or if this process cannot find it.
        """
        token = self._token
        references = _used.get(token)
        if references is None:
            references = _reread.load([token], lambda _: [self._read_again()])[token]
            _used[token] = references
        return references

    def _read_again(self) -> ReferenceSet:
        references = self._read()
        if references is None or references.digest != self.digest:
            raise ReferenceSetError(
                f"the reference document was {'removed' if references is None else 'changed'} "
                "after the dataset was opened",
                remedy="Reopen the dataset. If workers cannot read the document, pass "
                "the reference set as a dictionary, which is sent to the workers",
            )
        return references

    @property
    def _token(self) -> Any:
        overrides = frozenset((self.template_overrides or {}).items())
        return self.digest, overrides, self.templates, self.limits

    def _read(self) -> ReferenceSet | None:
        (data,) = self.folder.fetch([self.name])
        if data is None:
            return None
        return parse_references(
            decompressed(bytes(data), self.limits.max_consolidated_bytes),
            template_overrides=self.template_overrides,
            templates=self.templates,
            limits=self.limits,
        )
