"""Where a dataset was opened from: kept in its encoding, so that it can be asked later."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from xr_nczarr.errors import NotFoundError
from xr_nczarr.events import Events

if TYPE_CHECKING:
    from xr_nczarr.backend.options import OpenOptions

ENCODING_KEY = "nczarr"


@dataclass(frozen=True, slots=True, repr=False)
class Origin:
    """How a dataset was opened, and what happened since.

    Attributes
    ----------
    target
        What was opened; a mapping or store does not travel to other processes, and is None there.
    notes
        What was found amiss and could be mended, one sentence each.
    """

    target: Any
    options: OpenOptions
    notes: tuple[str, ...] = ()
    events: Events = field(default_factory=Events, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        target = self.target if isinstance(self.target, str | os.PathLike) else None
        return Origin, (target, self.options, self.notes, self.events)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __repr__(self) -> str:
        return "<how it was opened>"  # the options can hold secrets


def origin_of(obj: Any) -> Origin:
    """Give the origin of a Dataset or DataTree.

    Raises
    ------
    NotFoundError
        When it was not opened with this engine, or lost that on the way.
    """
    origin = obj.encoding.get(ENCODING_KEY)
    if not isinstance(origin, Origin):
        raise NotFoundError(
            "this object does not know where it was opened from",
            remedy="Ask the one that was opened with engine='nczarr'",
        )
    return origin
