"""A reference document that every process reads once: it is pickled in place of a large set."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakValueDictionary

from xr_nczarr.codecs import decompressed
from xr_nczarr.errors import NotFoundError, ReferenceSetError
from xr_nczarr.locks import ProcessLock
from xr_nczarr.model import Limits
from xr_nczarr.references.parse import parse_references
from xr_nczarr.references.reference_set import ReferenceSet
from xr_nczarr.references.templates import Language

_MAX_SETS = 4

_sets: WeakValueDictionary[Any, ReferenceSet] = WeakValueDictionary()
_kept: deque[ReferenceSet] = deque(maxlen=_MAX_SETS)
_lock = ProcessLock()


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceDocument:
    """Where a JSON document is, and how it is parsed.

    Attributes
    ----------
    fetch
        Returns a file of its folder, None if it does not exist.
    name
        Its name there.
    digest
        Digest of its content when it was opened; empty before.
    template_overrides, templates, limits
        See `parse_references`.
    """

    fetch: Callable[[str], bytes | None]
    name: str
    template_overrides: Mapping[str, str] | None
    templates: Language
    limits: Limits
    digest: bytes = b""

    def open(self) -> tuple[ReferenceDocument, ReferenceSet]:
        """Read the present document; return it with its digest, and the set."""
        data = self.fetch(self.name)
        if data is None:
            raise NotFoundError("there is no reference set")
        references = self._parse(data)
        opened = replace(self, digest=references.digest)
        with _lock:
            return opened, _sets.setdefault(opened._token, references)

    def references(self) -> ReferenceSet:
        """Return the set as it was opened. Each process reads it once, and keeps it.

        Raises
        ------
        ReferenceSetError
            If the document has changed since, or this process cannot read it.
        """
        with _lock:
            references = _sets.get(self._token)
            if references is None:
                data = self.fetch(self.name)
                references = None if data is None else self._parse(data)
                if references is None or references.digest != self.digest:
                    raise ReferenceSetError(
                        "the reference document "
                        + ("is not there" if data is None else "changed")
                        + ", and a variable was opened that needs it as it was",
                        remedy="Open the dataset again, where every worker can read the document; "
                        "a set that is opened as a dictionary is sent to workers itself.",
                    )
                _sets[self._token] = references
                _kept.append(references)
            return references

    @property
    def _token(self) -> Any:
        overrides = frozenset((self.template_overrides or {}).items())
        return self.digest, overrides, self.templates, self.limits

    def _parse(self, data: bytes) -> ReferenceSet:
        return parse_references(
            decompressed(data, self.limits.max_consolidated_bytes),
            template_overrides=self.template_overrides,
            templates=self.templates,
            limits=self.limits,
        )
