"""What was filled, tried again and mended since a dataset was opened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from xr_nczarr.backend.origin import origin_of
from xr_nczarr.errors import quote


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """What happened since a dataset was opened, as far as this process has seen it.

    Attributes
    ----------
    filled
        Chunks that were not in the store and were read as fill values, by variable; one that is
        read again is counted again.
    retried
        Requests that failed for the moment and were made again, by what was wrong.
    repaired
        What was found amiss in the metadata and could be mended, one sentence each.
    """

    filled: dict[str, int]
    retried: dict[str, int]
    repaired: tuple[str, ...]

    def lines(self) -> list[str]:
        """Give each thing as a sentence."""
        return [
            *(
                f"filled: {count:,} missing chunks of {quote(n)}"
                for n, count in self.filled.items()
            ),
            *(f"retried: {count:,} times ({quote(why)})" for why, count in self.retried.items()),
            *(f"repaired: {note}" for note in self.repaired),
        ] or ["nothing was filled, retried or repaired"]

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        from xr_nczarr.tools.html import page, text

        return page("Since it was opened", *(f"<div>{text(line)}</div>" for line in self.lines()))

    def as_dict(self) -> dict[str, Any]:
        """Give it as values of JSON."""
        return {"filled": self.filled, "retried": self.retried, "repaired": list(self.repaired)}


def report(dataset: Any) -> Report:
    """Tell what was filled, tried again and mended since a dataset was opened.

    Parameters
    ----------
    dataset
        A Dataset or DataTree that was opened with ``engine="nczarr"``.

    Raises
    ------
    NotFoundError
        When the object does not know where it was opened from.
    """
    origin = origin_of(dataset)
    events = origin.events
    return Report(dict(events.filled), dict(events.failed), origin.notes)
