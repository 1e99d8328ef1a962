"""Interrupt writes at any point, and compare the store with its states before and after them."""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import xarray as xr

from tests.stores import read_objects
from xr_nczarr import ConflictError, NotFoundError, to_nczarr


class InterruptedMapping(MutableMapping[str, bytes]):
    """A view of `objects` that allows at most `max_changes` changes, by default any number.

    `changes` contains the key of each change so far.
    """

    def __init__(self, objects: dict[str, bytes], max_changes: int | None = None) -> None:
        self.objects = objects
        self.max_changes = max_changes
        self.changes: list[str] = []

    def _change(self, key: str) -> None:
        if len(self.changes) == self.max_changes:
            raise InterruptedError("no further change is allowed")
        self.changes.append(key)

    def __getitem__(self, key: str) -> bytes:
        return self.objects[key]

    def __setitem__(self, key: str, data: bytes) -> None:
        self._change(key)
        self.objects[key] = data

    def __delitem__(self, key: str) -> None:
        self._change(key)
        del self.objects[key]

    def __contains__(self, key: object) -> bool:
        return key in self.objects

    def __iter__(self) -> Iterator[str]:
        return iter(self.objects)

    def __len__(self) -> int:
        return len(self.objects)


@dataclass(frozen=True, eq=False)
class Write:
    """A call of `to_nczarr`, and the datasets in the store before and after this call."""

    dataset: xr.Dataset
    after: xr.Dataset
    before: xr.Dataset | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def run(self, target: Any, **options: Any) -> None:
        """Write the dataset to a target."""
        to_nczarr(self.dataset, target, **{**self.options, **options})

    def rerun(self, target: Any, left: xr.Dataset | None, **options: Any) -> None:
        """Repeat the write after it was interrupted.

        `left` is the dataset in the store after the interruption. The repeated write may be
        rejected only if `left` already equals the new dataset.
        """
        finished = is_identical(left, self.after)
        with suppress(*((ConflictError, FileExistsError) if finished else ())):
            self.run(target, **options)

    def check(self, left: xr.Dataset | None) -> None:
        """Check that the dataset `left`, or None for no store, is the old or the new state."""
        if left is None:
            assert self.before is None
        else:
            assert is_identical(left, self.before) or is_identical(left, self.after)


def read_or_none(target: Any, **options: Any) -> xr.Dataset | None:
    """Return the loaded dataset, or None if there is no store."""
    try:
        with xr.open_dataset(target, engine="nczarr", **options) as dataset:
            return dataset.load()
    except NotFoundError:
        return None


def is_identical(one: xr.Dataset | None, other: xr.Dataset | None) -> bool:
    """Return whether two datasets are identical. Return False if one of them is None."""
    return one is not None and other is not None and one.identical(other)


def written_objects(path: str | os.PathLike[str]) -> dict[str, bytes]:
    """Return the objects in a folder without the temporary files of killed writers."""
    return {key: data for key, data in read_objects(path).items() if not key.endswith(".tmp")}
