"""Summarize the contents, the layout and the stored chunks of a store."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from xr_nczarr.dataset import open_all_groups
from xr_nczarr.errors import quote
from xr_nczarr.model import Consolidated, Limits
from xr_nczarr.netcdf import Group, Variable
from xr_nczarr.netcdf.annotations import releases_of
from xr_nczarr.options import OpenOptions
from xr_nczarr.progress import Progress, byte_text
from xr_nczarr.tools.results import (
    Result,
    columns,
    count_text,
    dimension_text,
    render_html,
    shape_text,
    wrapped,
)
from xr_nczarr.tools.stored_chunks import StoredChunks, count_stored_chunks

_MAX_NAMED = 5
_TABLE_WIDTH = 78  # characters, in addition to an indent of two


@dataclass(frozen=True, slots=True, repr=False)
class StoreInfo(Result):
    """The result of `info`: an overview of a store.

    Attributes
    ----------
    name
        Name of the store. Secrets are masked.
    zarr_format
        Zarr version of the store: ``"1"``, ``"2"``, ``"3-draft"`` or ``"3"``.
    consolidated
        Whether consolidated metadata was read instead of the individual metadata documents.
    dialect
        The dialect of the NCZarr metadata, or ``"zarr"`` for plain Zarr.
    root
        The group that was requested, or the root group.
    layout
        The netCDF-C releases that write this dialect, such as ``"netCDF-C 4.9.3 or later"``. For a
        ``"universal"`` store, the releases that can read it. Empty for plain Zarr.
    stored_chunks
        The `StoredChunks` of each variable, keyed by path. None if counting was not requested, and
        empty if the chunks could not be counted.
    unlisted
        The reason why the stored chunks could not be counted, or an empty string.
    """

    name: str
    zarr_format: str
    consolidated: bool
    dialect: str
    root: Group
    layout: str
    stored_chunks: dict[str, StoredChunks] | None = field(default=None, compare=False)
    unlisted: str = field(default="", compare=False)

    @property
    def _summary(self) -> str:
        layout = f"NCZarr metadata of {self.layout}" if self.layout else ""
        consolidated = "consolidated" if self.consolidated else ""
        return ", ".join(filter(None, [f"Zarr {self.zarr_format}", consolidated, layout]))

    def totals(self) -> dict[str, int | None]:
        """Return the total numbers of groups, variables, chunks and bytes.

        Variables that cannot be read do not contribute to the totals of chunks and bytes. A total
        is None if it is unknown for any readable variable. If chunks were not counted, the totals
        of chunks and of stored bytes are left out.
        """
        items = [self.describe(item) for item in self.root.all_variables()]
        readable = [item for item in items if "error" not in item]
        totals: dict[str, int | None] = {
            "groups": sum(1 for _ in self.root.walk()),
            "variables": len(items),
        }
        counted = ("objects", "objects_present", "stored_bytes") if self.stored_chunks else ()
        for name in ("raw_bytes", *counted):
            sizes = [item[name] for item in readable]
            totals[name] = None if None in sizes else sum(sizes)
        return totals

    def _totals_text(self) -> str:
        totals = self.totals()
        groups = f" in {totals['groups']:,} groups" if totals["groups"] != 1 else ""
        variables = count_text(totals["variables"] or 0, "variable") + groups
        raw = f"{byte_text(totals['raw_bytes'])} uncompressed"
        if not self.stored_chunks:
            return f"{variables}, {raw}"
        chunks = f"{totals['objects_present']:,} of {count_text(totals['objects'] or 0, 'chunk')}"
        return f"{variables}, {chunks}, {byte_text(totals['stored_bytes'])} ({raw})"

    def __repr__(self) -> str:
        lines = [self._summary, self._totals_text(), *self._group_lines(self.root)]
        if self.unlisted:
            lines.append(f"chunks were not counted: {self.unlisted}")
        return "\n".join([self.name, *(line for text in lines for line in wrapped(text))])

    def _repr_html_(self) -> str:
        described = map(self.describe, self.root.all_variables())
        largest = max([1, *(item.get("raw_bytes") or 0 for item in described)])
        functions = {
            "cells": _cells,
            "dimension_text": dimension_text,
            "plain": lambda value: value.tolist() if hasattr(value, "tolist") else value,
            "shape_text": shape_text,
        }
        return render_html("info.html", title=self.name, info=self, largest=largest, **functions)

    def _members(self) -> dict[str, Any]:
        return {
            "store": self.name,
            "zarr_format": self.zarr_format,
            "dialect": self.dialect,
            "layout": self.layout or None,
            "consolidated": self.consolidated,
            "unlisted": self.unlisted or None,
            "totals": self.totals(),
            "groups": [
                {
                    "path": group.path,
                    "dimensions": {
                        item.name: {"size": item.size, "unlimited": item.unlimited}
                        for item in group.dimensions.values()
                    },
                    "variables": [self.describe(item) for item in group.variables.values()],
                    "notes": self._notes(group),
                }
                for group in self.root.walk()
            ],
        }

    def describe(self, variable: Variable) -> dict[str, Any]:
        """Return the properties of a variable as a JSON-serializable dictionary."""
        description: dict[str, Any] = {
            "path": variable.path,
            "name": variable.name,
            "dimensions": [item.name for item in variable.dimensions],
            "shape": list(variable.shape),
        }
        node = variable.node
        if node is None or variable.error is not None:
            return {**description, "error": " ".join(str(variable.error).split())}
        raw = None if node.dtype.hasobject else math.prod(variable.shape) * node.dtype.itemsize
        description |= {
            "type": node.dtype.name if variable.kind in ("number", "other") else variable.kind,
            "chunk_shape": list(node.chunk_shape) if variable.shape else [],
            "shard_shape": list(node.object_shape) if node.shards else None,
            "codecs": [codec.name for codec in node.codecs if codec.name != "bytes"],
            "raw_bytes": raw,
        }
        stored = (self.stored_chunks or {}).get(variable.path)
        if stored is not None:
            # Missing chunks take no space, so they do not count toward the compression ratio.
            decoded = (raw or 0) * stored.present / max(1, stored.total)
            description |= {
                "stored_bytes": stored.stored_bytes,
                "ratio": round(decoded / stored.stored_bytes, 3) if stored.stored_bytes else None,
                "objects_present": stored.present,
                "objects": stored.total,
            }
        return description

    def _notes(self, group: Group) -> list[str]:
        incomplete = [
            variable
            for variable in group.variables.values()
            if (stored := (self.stored_chunks or {}).get(variable.path))
            and stored.present < stored.total
        ]
        zeros = [item for item in incomplete if item.node and item.node.fill_value is None]
        coordinates = [item for item in incomplete if item.is_coordinate]
        return [
            *group.defects,
            *_note("chunks of coordinates are missing; nczarr verify lists them", coordinates),
            *_note("without a fill value, missing chunks are read as zero", zeros),
        ]

    def _group_lines(self, group: Group) -> Iterator[str]:
        if group.path != "/":
            yield f"group {quote(group.path)}"
        if group.dimensions:
            yield f"dimensions: {', '.join(map(dimension_text, group.dimensions.values()))}"
        head = ["variable", "chunks", "codecs", "stored" if self.stored_chunks else "", "size"]
        rows = [_cells(self.describe(item)) for item in group.variables.values()]
        if rows:
            yield from columns([head, *rows], _TABLE_WIDTH)
        for note in self._notes(group):
            yield f"note: {note}"
        for child in group.groups.values():
            yield from self._group_lines(child)


def info(
    target: Any,
    *,
    count_chunks: bool = True,
    progress: bool = False,
    group: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    consolidated: Consolidated = None,
    zarr_format: int | str | None = None,
    trust: Literal["none"] | None = None,
    limits: Limits | Mapping[str, int] | None = None,
) -> StoreInfo:
    """Summarize the contents, the layout and the stored chunks of a store.

    Parameters
    ----------
    target
        A path, URL or mapping, as for `xarray.open_dataset` with ``engine="nczarr"``.
    count_chunks
        Whether to count the stored chunks. This lists the store, but does not read any chunks. If
        the store cannot be listed, each chunk is looked up instead. If there are more than 10,000
        chunks to look up, they are not counted.
    progress
        Whether to show how many objects have been listed.
    group, storage_options, consolidated, zarr_format, trust, limits
        See `xr_nczarr.options.OpenOptions`.

    Examples
    --------
    >>> import xarray as xr, xr_nczarr
    >>> store = {}
    >>> xr_nczarr.to_nczarr(xr.Dataset({"t": ("x", [1.5, 2.5])}), store)
    >>> xr_nczarr.info(store)
    mapping
      Zarr 2, consolidated, NCZarr metadata of netCDF-C 4.9.3 or later
      1 variable, 1 of 1 chunk, 16 B (16 B uncompressed)
      dimensions: x 2
      variable      chunks  codecs  stored  size
      float64 t(x)  2               1 of 1  16 B (1×)
    >>> xr_nczarr.info(store, count_chunks=False)
    mapping
      Zarr 2, consolidated, NCZarr metadata of netCDF-C 4.9.3 or later
      1 variable, 16 B uncompressed
      dimensions: x 2
      variable      chunks  codecs  size
      float64 t(x)  2               16 B
    """
    options = OpenOptions.of(locals())
    opened, top = open_all_groups(target, options)
    with Progress(progress and count_chunks, None, " objects") as bar:
        stored = count_stored_chunks(opened, progress=bar) if count_chunks else None
    return StoreInfo(
        name=quote(opened.store.name),
        zarr_format=opened.hierarchy.zarr.version,
        consolidated=opened.hierarchy.consolidated,
        dialect=opened.root.dialect,
        root=top,
        layout=releases_of(opened.root.dialect, opened.root.node),
        stored_chunks=stored.chunks if stored else None,
        unlisted=stored.reason if stored else "",
    )


def _note(problem: str, variables: Sequence[Variable]) -> list[str]:
    names = ", ".join(quote(variable.name) for variable in variables[:_MAX_NAMED])
    more = f" and {len(variables) - _MAX_NAMED:,} more" if len(variables) > _MAX_NAMED else ""
    return [f"{problem} ({names}{more})"] if variables else []


def _cells(item: dict[str, Any]) -> list[str]:
    variable = f"{quote(item['name'])}({', '.join(map(quote, item['dimensions']))})"
    if "error" in item:
        return [f"{variable}  unreadable: {item['error']}"]
    shards = f" in shards {shape_text(item['shard_shape'])}" if item["shard_shape"] else ""
    chunks, codecs = shape_text(item["chunk_shape"]) + shards, " ".join(item["codecs"])
    stored, size = "", byte_text(item["raw_bytes"])
    if "objects" in item:
        stored = f"{item['objects_present']:,} of {item['objects']:,}"
        ratio = f" ({item['ratio']:.3g}×)" if item["ratio"] else ""
        size = byte_text(item["stored_bytes"]) + ratio
    return [f"{item['type']} {variable}", chunks, codecs, stored, size]
