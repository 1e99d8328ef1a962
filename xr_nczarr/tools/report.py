"""What was filled, tried again and mended since a dataset was opened."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from xr_nczarr.backend.origin import origin_of
from xr_nczarr.errors import quote
from xr_nczarr.events import counted_here
from xr_nczarr.tools.html import page, text
from xr_nczarr.tools.text import Told


@dataclass(frozen=True, slots=True, repr=False)
class Report(Told):
    """What happened since a dataset was opened, in this process and in those that were asked.

    Attributes
    ----------
    filled
        Chunks that were not in the store and were read as fill values, by variable; one that is
        read again is counted again.
    retried
        Requests that failed for the moment and were made again, by what was wrong.
    repaired
        What was found amiss in the metadata and could be mended, one sentence each.
    elsewhere
        Whether other processes may have read that were not asked.
    """

    filled: dict[str, int]
    retried: dict[str, int]
    repaired: list[str]
    elsewhere: bool = False

    def lines(self) -> list[str]:
        """Give each thing as a sentence."""
        counted = [
            *(f"filled: {n:,} missing chunks of {quote(name)}" for name, n in self.filled.items()),
            *(f"retried: {n:,} times ({quote(why)})" for why, n in self.retried.items()),
            *(f"repaired: {note}" for note in self.repaired),
        ]
        other = ["not counted: what other processes read, if any; pass report() their dask client"]
        return [
            *(counted or ["nothing was filled, retried or repaired"]),
            *(other if self.elsewhere else []),
        ]

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def _repr_html_(self) -> str:
        return page("Since it was opened", *(f"<div>{text(line)}</div>" for line in self.lines()))


def report(dataset: Any, client: Any = None) -> Report:
    """Tell what was filled, tried again and mended since a dataset was opened.

    Parameters
    ----------
    dataset
        A Dataset or DataTree that was opened with ``engine="nczarr"``.
    client
        The `distributed.Client` whose workers read it: they are asked for what they counted. A
        worker that ended, and processes of another kind, are not heard.

    Raises
    ------
    NotFoundError
        When the object does not know where it was opened from.
    """
    origin = origin_of(dataset)
    events = origin.events
    counted = [] if client is None else list(client.run(counted_here, events.mark).values())
    filled, retried = Counter[str](), Counter[str]()
    for of_process in {process: each for process, *each in (*counted, events.counted())}.values():
        filled += of_process[0]
        retried += of_process[1]
    return Report(dict(filled), dict(retried), list(origin.notes), events.sent and client is None)
