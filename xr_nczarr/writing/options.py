"""The arguments of a write, checked: one record that all of its stages share."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from xr_nczarr.options import check_choice

WriteMode = Literal["w", "w-", "a", "a-", "r+"]
WriteRegion = Mapping[str, slice | Literal["auto"]] | Literal["auto"]
UnlimitedDims = Iterable[Hashable] | Mapping[str, Iterable[Hashable]]
_MODES = ("w", "w-", "a", "a-", "r+")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The arguments of `to_nczarr` that say how to write; see there."""

    mode: WriteMode = "a"
    append_dim: str | None = None
    region: Any = None
    allow_duplicates: bool = False
    consolidated: bool | None = None
    compute: bool = True
    safe_chunks: bool = True
    progress: bool = False
    atomic: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        # Any text would count as true: "False" as well.
        for name in ("atomic", "overwrite", "allow_duplicates", "safe_chunks", "compute"):
            check_choice(name, getattr(self, name), (True, False))


def resolve_mode(mode: WriteMode | None, append_dim: Any, region: Any) -> WriteMode:
    """Return the mode of a write, whose default depends on the other two arguments.

    Raises
    ------
    ValueError
        For an unknown mode, and for one that excludes the other arguments.
    """
    check_choice("mode", mode, (None, *_MODES))
    if append_dim is not None:
        if mode not in (None, "a", "a-"):
            raise ValueError(f"cannot set append_dim unless mode='a' or mode='a-'; found {mode!r}")
        return mode or "a"
    if region is not None:
        if mode in ("w", "w-"):
            raise ValueError("cannot set region unless mode='a', mode='a-', mode='r+' or mode=None")
        return mode or "r+"
    return mode or "w-"
