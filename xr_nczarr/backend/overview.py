"""A picture of any store: what is in it and how it was found to be written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from xr_nczarr.backend.options import OpenOptions
from xr_nczarr.backend.reader import open_netcdf
from xr_nczarr.netcdf import Dimension, Group, Variable


@dataclass(frozen=True, slots=True, repr=False)
class Overview:
    """The groups, dimensions and variables of a store; printing it shows them as a tree.

    Attributes
    ----------
    name
        Of the store, without secrets.
    zarr_format
        ``"1"``, ``"2"``, ``"3-draft"`` or ``"3"``.
    consolidated
        Whether it was read from consolidated metadata.
    dialect
        The layout of NCZarr's annotations that was found, or ``"zarr"``.
    root
        The root group.
    """

    name: str
    zarr_format: str
    consolidated: bool
    dialect: str
    root: Group

    def __repr__(self) -> str:
        consolidated = ", consolidated" if self.consolidated else ""
        title = f"{self.name} (Zarr {self.zarr_format}, dialect {self.dialect}{consolidated})"
        return "\n".join([title, *_group_lines(self.root, "")])


def open_hierarchy(target: Any, **options: Any) -> Overview:
    """Open any store and tell what is in it; only metadata are read.

    Parameters
    ----------
    target
        A path, URL or mapping, as `xarray.open_dataset` takes it with ``engine="nczarr"``.
    **options
        See `OpenOptions`.

    Examples
    --------
    >>> import xr_nczarr
    >>> store = {
    ...     ".zgroup": b'{"zarr_format": 2}',
    ...     "x/.zarray": b'{"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "<i4",'
    ...     b' "fill_value": 0, "order": "C", "compressor": null, "filters": null}',
    ...     "x/.zattrs": b'{"_ARRAY_DIMENSIONS": ["x"]}',
    ... }
    >>> xr_nczarr.open_hierarchy(store)
    mapping (Zarr 2, dialect zarr)
      dimensions: x 2
      int32 x(x)  chunks 2
    """
    opened = open_netcdf(target, OpenOptions(**options))
    hierarchy = opened.hierarchy
    return Overview(
        opened.store.name,
        hierarchy.zarr_format,
        hierarchy.consolidated,
        opened.root.dialect,
        opened.root,
    )


def _group_lines(group: Group, indent: str) -> Iterator[str]:
    if group.path != "/":
        yield f"{indent}group {group.path}"
    inner = indent + "  "
    if group.dimensions:
        yield f"{inner}dimensions: {', '.join(map(_dimension_text, group.dimensions.values()))}"
    for variable in group.variables.values():
        yield inner + _variable_text(variable)
    for report in [*group.reports, *_undefined_fill(group)]:
        yield f"{inner}note: {report}"
    for child in group.groups.values():
        yield from _group_lines(child, inner)


def _undefined_fill(group: Group) -> Iterator[str]:
    names = [
        variable.name
        for variable in group.variables.values()
        if variable.node is not None and variable.node.fill_value is None
    ]
    if names:
        yield f"no fill value in {', '.join(names)}: missing chunks read as zero"


def _dimension_text(dimension: Dimension) -> str:
    return f"{dimension.name} {'unlimited, now ' if dimension.unlimited else ''}{dimension.size}"


def _variable_text(variable: Variable) -> str:
    names = ", ".join(dimension.name for dimension in variable.dimensions)
    if variable.node is None or variable.error is not None:
        return f"{variable.name}({names})  unreadable: {variable.error}"
    node = variable.node
    kind = node.dtype.name if variable.kind in ("number", "other") else variable.kind
    codecs = " ".join(codec.name for codec in node.codecs if codec.name != "bytes")
    chunks = "×".join(map(str, node.chunk_shape)) if names else ""
    details = [f"chunks {chunks}" if chunks else "", codecs]
    return f"{kind} {variable.name}({names})  {'  '.join(filter(None, details))}".rstrip()
