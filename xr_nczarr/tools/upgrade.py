"""Convert the NCZarr metadata of a store to another layout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from xr_nczarr.dataset import OpenedStore
from xr_nczarr.errors import ConflictError, ErrorContext, quote
from xr_nczarr.formats.documents import Document
from xr_nczarr.formats.format import Hierarchy
from xr_nczarr.hierarchy import HierarchyOptions, open_hierarchy, render_documents
from xr_nczarr.model import ArrayNode, Attributes, CodecSpec, Json, Node, key_prefix
from xr_nczarr.netcdf import Group, Layout, Variable, annotate, interpret
from xr_nczarr.netcdf.annotations import (
    SIDECARS,
    VINTAGES,
    XARRAY_DIMENSIONS,
    is_annotated,
    is_bookkeeping,
    listed_children,
)
from xr_nczarr.netcdf.attributes import NO_STRINGS, encode_attribute, undecoded
from xr_nczarr.netcdf.types import JSON, TEXT
from xr_nczarr.storage import MemoryStore
from xr_nczarr.tools.consolidate import change_store
from xr_nczarr.tools.results import Result, count_text, dimension_text
from xr_nczarr.writing.write_options import WriteOptions
from xr_nczarr.writing.write_plan import WritePlan

_MAX_KEYS = 10

_ANNOTATIONS = {
    XARRAY_DIMENSIONS,
    *(name for v in VINTAGES for name in (v.superblock, v.group, v.array, v.types)),
}


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class UpgradeResult(Result):
    """The result of `upgrade`. After a dry run, it describes changes that were not made.

    Attributes
    ----------
    before, after
        Names of the layouts before and after the upgrade.
    written, removed
        Keys of the documents that the upgrade writes and removes.
    """

    store: str
    before: str
    after: str
    written: list[str]
    removed: list[str]
    dry_run: bool = False

    def __repr__(self) -> str:
        done = f"{count_text(len(self.written), 'document')} written, {len(self.removed):,} removed"
        done += "; this was a dry run, and nothing was changed" if self.dry_run else ""
        lines = [f"{self.store}: {self.before} → {self.after} ({done})"]
        for verb, keys in (("written", self.written), ("removed", self.removed)):
            summary = [f"… and {len(keys) - _MAX_KEYS:,} more"] if len(keys) > _MAX_KEYS else []
            names = ", ".join([*map(quote, keys[:_MAX_KEYS]), *summary])
            lines += [f"  {verb}: {names}"] if keys else []
        return "\n".join(lines)


def upgrade(
    target: Any,
    dialect: str = "nczarr",
    *,
    annotate: bool = False,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> UpgradeResult:
    """Convert a store's NCZarr metadata to another layout in place, without touching the chunks.

    If the upgrade is interrupted, readers see the store in either its old or its new layout. To
    complete an interrupted upgrade, run it again.

    Parameters
    ----------
    dialect
        Name of the new layout; see `to_nczarr`.
    annotate
        Whether to add NCZarr metadata to a plain Zarr store.
    dry_run
        Whether to only report the changes, without making them.

    Raises
    ------
    ConflictError
        If the dialect cannot express all of the store's metadata. The error is also raised if the
        store is plain Zarr, unless `annotate` is True or `dialect` is ``"zarr"``. In both cases,
        nothing is written.
    UnsupportedError
        If the store is not writable, or if its Zarr version does not support the dialect.
    NotFoundError
        If the store does not exist.
    NczarrError
        If a group or variable cannot be read.
    """
    owner = f"upgrade to {dialect}"
    change = change_store(target, storage_options, owner, dry_run=dry_run)
    with change as (transaction, opened):
        store = transaction.store
        is_plain = all(group.dialect == "zarr" for group in opened.root.walk())
        if is_plain and dialect != "zarr" and not annotate:
            raise ConflictError(
                "the store is plain Zarr; it has no NCZarr metadata to upgrade",
                remedy="Pass annotate=True to add NCZarr metadata in place",
                store=store.name,
            )
        source = opened.hierarchy
        documents, after = _in_dialect(opened, dialect)
        stored = zip(documents.items(), transaction.target.read([*documents]), strict=True)
        changed = {
            key: data
            for (key, data), current in stored
            if current is None or Document(key, current).value != Document(key, data).value
        }
        sidecars = [key_prefix(path) + name for path in source.nodes for name in SIDECARS]
        stale = [key for key in sidecars if key not in documents]
        removed = [key for key, _ in store.fetch_present(stale)]
        if not dry_run:
            # New annotations are added before old ones are removed. While a node has both,
            # netCDF-C uses those in .zattrs.
            in_attributes = after in ("nczarr-4.9.3", "nczarr-preview")
            additions = {
                key: data
                for key, data in changed.items()
                if key.endswith(".zattrs") == in_attributes and key != source.zarr.consolidated_key
            }
            documents = {key: data for key, data in changed.items() if key not in additions}
            plan = WritePlan(source.zarr, additions=additions, documents=documents, removed=removed)
            transaction.execute(plan, WriteOptions())
    return UpgradeResult(
        store=store.name,
        before=opened.root.dialect,
        after=dialect if dialect == "universal" else after,
        written=list(changed),
        removed=removed,
        dry_run=dry_run,
    )


def _in_dialect(opened: OpenedStore, dialect: str) -> tuple[dict[str, bytes], str]:
    """Convert the metadata documents of a store to another dialect.

    Return the converted documents, and the dialect that readers detect in them.
    """
    source = opened.hierarchy
    with ErrorContext(store=opened.store.name):
        source.zarr.check_writable()
    layout = Layout(zarr=source.zarr, dialect=dialect)
    root = _with_source_encoding(opened.root, source, layout)
    hierarchy = annotate(root, layout)
    hierarchy = replace(hierarchy, nodes=_with_source_metadata(hierarchy, source))
    documents = render_documents(hierarchy, consolidated=source.consolidated)
    again = open_hierarchy(
        MemoryStore(documents),
        HierarchyOptions(
            zarr_format=source.zarr.version, consolidated=False, listed_children=listed_children
        ),
    )
    written = interpret(again)
    lost = list(_differences(root, written))
    if lost:
        raise ConflictError(
            f"the dialect {dialect} cannot express {'; '.join(lost[:5])}",
            remedy="Choose another dialect. The store was not changed",
            store=opened.store.name,
        )
    return documents, written.dialect


def _with_source_encoding(group: Group, source: Hierarchy, layout: Layout) -> Group:
    if group.error is not None:
        raise group.error
    variables, groups = group.variables.items(), group.groups.items()
    return replace(
        group,
        attributes=_attributes(group.attributes, source.nodes[group.path], layout),
        variables={name: _variable(item, source, layout) for name, item in variables},
        groups={name: _with_source_encoding(child, source, layout) for name, child in groups},
    )


def _variable(variable: Variable, source: Hierarchy, layout: Layout) -> Variable:
    if variable.error is not None:
        raise variable.error
    node = variable.array_node
    node = replace(node, codecs=tuple(map(_normalized_codec, node.codecs)))
    attributes = _attributes(variable.attributes, source.nodes[node.path], layout)
    return replace(variable, node=node, attributes=attributes)


def _attributes(decoded: Mapping[str, Any], node: Node, layout: Layout) -> dict[str, Any]:
    if layout.is_plain_zarr and not is_annotated(node):  # neither layout records types
        return dict(decoded)
    return undecoded(decoded, node)


def _normalized_codec(spec: CodecSpec) -> CodecSpec:
    """Normalize codec parameters that only netCDF-C understands."""
    # Some netCDF-C releases wrote numbers as strings, or a shuffle codec with an element size of 0.
    if not spec.is_buffer_filter:
        return spec
    same = spec.document == {"id": spec.name, **spec.configuration}
    return spec if same else replace(spec, document=None)


def _with_source_metadata(hierarchy: Hierarchy, source: Hierarchy) -> dict[str, Node]:
    """Return the nodes of `hierarchy` with metadata from `source` that `annotate` does not keep.

    This metadata consists of null fill values, and of reserved attributes that the new layout does
    not write itself.
    """
    nodes = dict(hierarchy.nodes)
    for path, node in source.nodes.items():
        new = nodes.get(path)
        if isinstance(node, ArrayNode) and isinstance(new, ArrayNode) and node.fill_value is None:
            # For example, nccopy 4.9.0 writes no Zarr fill value for a variable with a
            # `_FillValue`.
            nodes[path] = replace(new, fill_value=None)
        kept = {
            name: value
            for name, value in node.attributes.items()
            if is_bookkeeping(name) and name not in _ANNOTATIONS
        }
        if kept and path in nodes:
            attributes = Attributes({**kept, **nodes[path].attributes})
            nodes[path] = replace(nodes[path], attributes=attributes)
    return nodes


def _differences(old: Group, new: Group) -> Iterator[str]:
    """Yield a description of each property in which two groups differ."""
    before, after = dict(_properties(old)), dict(_properties(new))
    for subject in before | after:
        if subject not in after:
            yield subject
        elif subject not in before:
            yield f"the absence of {subject}"
        elif before[subject] != after[subject]:
            yield quote(f"{subject} ({before[subject]}, not {after[subject]})")


def _properties(group: Group) -> Iterator[tuple[str, Any]]:
    """Yield a description and a value for each property of a group and its descendants."""
    yield f"the group {group.path}", None
    for dimension in group.dimensions.values():
        yield f"the dimension {dimension.path}", dimension_text(dimension)
    holders = [(group.path, group.attributes)]
    for variable in group.variables.values():
        if variable.node is not None:
            for part, value in _meaning(variable, variable.node).items():
                yield f"the {part} of {variable.path}", value
            holders.append((variable.path, variable.attributes))
    for path, attributes in holders:
        for name, value in attributes.items():
            yield f"the attribute {name} of {path}", _as_read(value)
    for child in group.groups.values():
        yield from _properties(child)


def _meaning(variable: Variable, node: ArrayNode) -> dict[str, Any]:
    fill = None if node.fill_value is None else np.asarray(node.fill_value, node.dtype).tobytes()
    return {
        "dimensions": [dimension.path for dimension in variable.dimensions],
        "kind": variable.kind,
        "type": node.dtype,
        "fill value": str(node.fill_value) if node.dtype.hasobject else fill,
        "chunks": node.chunk_shape if variable.dimensions else (),
        "chunk runs": node.chunk_runs,
        "codecs": [(spec.name, dict(spec.configuration)) for spec in node.codecs],
        "chunk keys": node.chunk_keys,
    }


def _as_read(value: Any) -> tuple[Json, str]:
    is_empty = isinstance(value, list) and not value
    encoded, kind = encode_attribute(NO_STRINGS if is_empty else value)
    return (json.dumps(encoded, ensure_ascii=False), TEXT) if kind == JSON else (encoded, kind)
