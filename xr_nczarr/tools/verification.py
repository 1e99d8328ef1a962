"""Define the result of `verify`, which is printed with one line for each kind of finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from xr_nczarr.errors import quote
from xr_nczarr.tools.results import Result, count_text, render_html

_MAX_PLACES = 3
Severity = Literal["error", "warning", "note"]
_SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem in a store, or a requirement that programs must meet to read it.

    Attributes
    ----------
    severity
        ``"error"`` stands for damaged or contradictory values or metadata, an incomplete
        coordinate, or an interrupted write. ``"warning"`` stands for a less serious problem, such
        as other missing chunks or leftover objects. ``"note"`` names a feature that other programs
        need in order to read the store.
    place
        Key of the object, or path of the group or array, in which the problem was found.
    detail
        Details that apply only to this place.
    """

    severity: Severity
    place: str
    problem: str
    remedy: str = ""
    detail: str = ""

    @property
    def kind(self) -> tuple[str, ...]:
        """The fields by which findings are grouped. Findings of the same kind share a line."""
        return self.severity, self.problem, self.remedy

    def __str__(self) -> str:
        return finding_line([self])


def finding_line(findings: Sequence[Finding]) -> str:
    """Return a single line that summarizes `findings`, which must all be of the same kind."""
    severity, problem, remedy = findings[0].kind
    places = [
        f"{quote(finding.place)} ({finding.detail})" if finding.detail else quote(finding.place)
        for finding in findings[:_MAX_PLACES]
    ]
    unnamed = len(findings) - len(places)
    where = ", ".join(places) + (f" and {unnamed:,} more" if unnamed else "")
    return f"{severity}: {where}: {problem}{f'. {remedy}' if remedy else ''}"


@dataclass(slots=True, kw_only=True, repr=False)
class Verification(Result):
    """The result of `verify`. All findings of the same kind are printed on one line.

    Attributes
    ----------
    chunks
        For each array, by path, the number of existing chunks (or shards) and the total number.
        Empty if these numbers are unknown.
    decoded
        Number of chunks (or shards) that were read and decoded.
    """

    store: str
    chunks: dict[str, tuple[int, int]] = field(default_factory=dict)
    decoded: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether there are no findings with the severity ``"error"``."""
        return not any(finding.severity == "error" for finding in self.findings)

    def __repr__(self) -> str:
        return "\n".join([self.title, *map(finding_line, self._kinds())])

    def _repr_html_(self) -> str:
        return render_html(
            "verify.html", title=self.title, kinds=self._kinds(), finding_line=finding_line
        )

    @property
    def title(self) -> str:
        """The name of the store, and the number of chunks, errors and warnings."""
        present, total = (sum(counts[at] for counts in self.chunks.values()) for at in (0, 1))
        counts = Counter(finding.severity for finding in self.findings)
        problems = [count_text(counts[name], name) for name in _SEVERITIES[:2]]
        existing = f"{present:,} of {count_text(total, 'chunk')} stored, " if self.chunks else ""
        return f"{self.store}: {existing}{self.decoded:,} read: {', '.join(problems)}"

    def _kinds(self) -> list[list[Finding]]:
        kinds: dict[tuple[str, ...], list[Finding]] = {}
        for finding in sorted(self.findings, key=lambda item: _SEVERITIES.index(item.severity)):
            kinds.setdefault(finding.kind, []).append(finding)
        return [*kinds.values()]

    def _members(self) -> dict[str, Any]:
        return {
            "store": self.store,
            "whole": self.whole,
            "decoded": self.decoded,
            "chunks": [
                {"path": path, "present": present, "total": total}
                for path, (present, total) in self.chunks.items()
            ],
            "findings": [asdict(finding) for finding in self.findings],
        }
