"""Render references as a JSON document of version 1, with or without generators (``gen``)."""

from __future__ import annotations

import base64
import re
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_nczarr.errors import MetadataError, ReferenceSetError
from xr_nczarr.formats import FORMATS
from xr_nczarr.formats.documents import Document, edited
from xr_nczarr.model import DEFAULT_LIMITS, ArrayNode, Json, Limits
from xr_nczarr.references.entries import (
    Reference,
    encode_inline,
    parse_members,
    unique_members,
)
from xr_nczarr.references.parse import tabulate
from xr_nczarr.references.reference_set import ReferenceSet
from xr_nczarr.references.tables import ReferenceTable
from xr_nczarr.storage.store import Address

_MIN_REFERENCES = 16
"""Minimum average number of references per generator for generators to be worthwhile."""

_MAX_SLICES = 64
"""Maximum number of generators per array. The limit is low, because lookups try them one by one."""

_CONSOLIDATED = ".zmetadata"
_UNLIMITED = Limits(max_chunk_bytes=2**63)
_SYNTAX = re.compile(r"[{\r\n]")
_LOOKS_LIKE_A_TEMPLATE = re.compile(r"{[{%#]|[\r\n]")


def render_references(references: ReferenceSet, *, generators: bool = False) -> dict[str, Any]:
    """Render references as a JSON document of version 1.

    Parameters
    ----------
    references
        A reference set in memory. If it has generators, they are expanded.
    generators
        Whether to render references to regularly spaced chunks as new generators (``gen``).

    Examples
    --------
    >>> pairs = {"a/0": Address("s3://bucket/data.nc", 100, 20)}.items()
    >>> render_references(collect_references(pairs))
    {'version': 1, 'refs': {'a/0': ['s3://bucket/data.nc', 100, 20]}}
    """
    refs = {
        key: entry if isinstance(entry, str) else _listed(entry)
        for key, entry in references.entries.items()
    }
    members: list[Json] = []
    for source in references.sources:
        generated: list[Json] = []
        if generators and isinstance(source, ReferenceTable):
            generated = _generators(source)
        members += generated
        if not generated:
            refs |= {key: _listed(address) for key, address in source.items()}
    document: dict[str, Any] = {"version": 1, "refs": refs}
    if members:
        document["gen"] = members
    return document


def collect_references(pairs: Iterable[tuple[str, Reference]]) -> ReferenceSet:
    """Build a reference set from (key, reference) pairs. The set has no generators.

    Raises
    ------
    ReferenceSetError
        If a key is declared twice.
    """
    return tabulate(
        unique_members(
            (key, encode_inline(item) if isinstance(item, bytes) else item) for key, item in pairs
        )
    )


def portable(references: ReferenceSet, limits: Limits = DEFAULT_LIMITS) -> ReferenceSet:
    """Copy a reference set, converting its Zarr v2 metadata for kerchunk and VirtualiZarr.

    The references to chunks stay the same. The metadata changes as follows:

    - The compressor becomes the last filter, as in kerchunk's own sets. VirtualiZarr before 2.8
      supports only this form.
    - Codec parameters are converted to the form that numcodecs uses. In particular, numbers that
      netCDF-C writes as strings become integers. If the element size of the shuffle codec is 0, the
      actual element size is written instead.
    - A floating-point `_FillValue` is encoded as xarray encodes it in Zarr v3, because VirtualiZarr
      converts the set to v3. Programs that read v2 directly ignore this attribute.

    Consolidated metadata changes in the same way. Metadata that cannot be parsed stays unchanged,
    and so do attributes that are not valid JSON. `limits` contains the maximum size of each
    document.
    """
    changes: dict[str, dict[str, Json]] = {}
    for key, text in references.entries.items():
        if key.rpartition("/")[2] != ".zarray" or not isinstance(text, str):
            continue
        document = Document(key, text, limits=limits)
        node = FORMATS["2"].parse_node("/", {".zarray": document}, limits=_UNLIMITED)
        if not isinstance(node, ArrayNode):
            continue
        codecs = [spec for spec in node.codecs if spec.is_buffer_filter]
        filters: list[Json] = [{"id": spec.name, **spec.configuration} for spec in codecs]
        if filters and filters != document.value.get("filters"):
            changes[key] = {"filters": filters, "compressor": None}
        attributes_key = key.removesuffix(".zarray") + ".zattrs"
        attributes = references.entries.get(attributes_key)
        if node.dtype.kind == "f" and node.fill_value is not None and isinstance(attributes, str):
            encoded = _encoded_fill(attributes)
            if encoded is not None:
                changes[attributes_key] = {"_FillValue": encoded}
    return replace(references, entries=_with_changes(references.entries, changes, limits))


def _encoded_fill(attributes: str) -> str | None:
    """Return the numeric `_FillValue` in JSON attributes as a Base64-encoded double, or None."""
    try:
        value = parse_members(attributes).get("_FillValue")
    except ReferenceSetError:
        return None
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    if value not in ("NaN", "Infinity", "-Infinity") and type(value) not in (int, float):
        return None
    return base64.b64encode(struct.pack("<d", float(str(value)))).decode()


def _with_changes(
    entries: Mapping[str, Any], changes: Mapping[str, Mapping[str, Json]], limits: Limits
) -> dict[str, Any]:
    """Return `entries` after applying `changes` to documents and to their consolidated copies.

    `changes` maps the key of each document to the new values of its members.
    """
    changed = dict(entries)
    for key, members in changes.items():
        document = Document(key, entries[key], limits=limits)
        # Other members keep their exact text, by which readers recognize netCDF-C's character
        # attributes.
        changed[key] = edited(document, {(name,): members[name] for name in members}).decode()
    text = entries.get(_CONSOLIDATED)
    if changes and isinstance(text, str):
        document = Document(_CONSOLIDATED, text, limits=limits, consolidated=True)
        copies: Json = {}
        with suppress(MetadataError):
            copies = document.value.get("metadata") if isinstance(document.value, dict) else {}
        below: dict[tuple[str, ...], Json] = {
            ("metadata", key, name): value
            for key, members in changes.items()
            if isinstance(copies, dict) and isinstance(copies.get(key), dict)
            for name, value in members.items()
        }
        if below:
            changed[_CONSOLIDATED] = edited(document, below).decode()
    return changed


def _listed(target: Address) -> list[Json]:
    url = _escaped(target.url) if _LOOKS_LIKE_A_TEMPLATE.search(target.url) else target.url
    return [url] if target.offset is None else [url, target.offset, target.length]


def _escaped(text: str) -> str:
    """Return a template that renders as `text`."""
    return _SYNTAX.sub(lambda match: f"{{{{{match.group()!r}}}}}", text)


def _generators(table: ReferenceTable) -> list[Json]:
    """Return elements of ``gen`` that declare all references of a table.

    Return an empty list if the chunks are too irregular, or if some of them have no reference.
    """
    rows = table.shape[0]
    if table.flat_indices is not None:
        return []
    offsets, lengths = (
        part.astype(np.int64).reshape(rows, -1) for part in (table.offsets, table.lengths)
    )
    urls = table.url_numbers.reshape(rows, -1)
    url_prefix = _common_url_prefix(table)
    if url_prefix is not None:
        urls = np.zeros_like(offsets)
    if (lengths != lengths[:, :1]).any() or (urls != urls[:, :1]).any():
        return []
    # Each generator declares the chunks in a slice of the grid along the first dimension.
    distances = offsets - offsets[:, :1]
    alike = (lengths[1:, 0] == lengths[:-1, 0]) & (urls[1:, 0] == urls[:-1, 0])
    alike &= (distances[1:] == distances[:-1]).all(axis=1)
    steps = np.diff(offsets[:, 0])
    generators: list[Json] = []
    most = min(_MAX_SLICES, table.key_count // _MIN_REFERENCES)
    start = 0
    while start < rows:
        stop = start + 1
        while stop < rows and alike[stop - 1] and steps[stop - 1] == steps[start]:
            stop += 1
        strides = _strides(distances[start], table.shape[1:])
        if strides is None or len(generators) == most:
            return []
        step = steps.item(start) if stop - start > 1 else 0
        generators.append(_generator(table, start, stop, (step, *strides), url_prefix))
        start = stop
    return generators


def _generator(
    table: ReferenceTable, start: int, stop: int, strides: tuple[int, ...], url_prefix: str | None
) -> dict[str, Json]:
    """Return the element of ``gen`` for chunks `start` to `stop` along the first dimension.

    `strides` contains the distance in bytes between neighboring chunks along each dimension. If
    `url_prefix` is None, all chunks are in one file. Otherwise, each URL is `url_prefix` followed
    by the chunk key.
    """
    pattern = table.pattern
    first = table.reference(start * (table.key_count // table.shape[0]))
    names = [f"i{axis}" for axis in range(pattern.rank)]
    key = _escaped(pattern.prefix) + pattern.separator.join(f"{{{{{name}}}}}" for name in names)
    url = _escaped(first.url) if url_prefix is None else _escaped(url_prefix) + key
    member: dict[str, Json] = {"key": key, "url": url}
    if first.offset is not None:
        terms = [str(first.offset - strides[0] * start)]
        terms += [f"{step} * {name}" for step, name in zip(strides, names, strict=True) if step]
        # The space keeps a minus sign apart from the braces, because "{{-" has another meaning in
        # jinja2.
        member["offset"] = f"{{{{ {' + '.join(terms)} }}}}"
        member["length"] = str(first.length)
    ranges = [(start, stop), *((0, extent) for extent in table.shape[1:])]
    member["dimensions"] = {
        name: {"start": begin, "stop": end}
        for name, (begin, end) in zip(names, ranges, strict=True)
    }
    return member


def _strides(distances: NDArray[np.int64], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the distance between neighboring chunks along each dimension, or None if it varies.

    `distances` contains the distance of each chunk from the first chunk, in C order.
    """
    grid = distances.reshape(shape)
    strides = []
    for axis in range(grid.ndim):
        steps = np.unique(np.diff(grid, axis=axis))
        if len(steps) > 1:
            return None
        strides.append(steps.item() if len(steps) else 0)
    return tuple(strides)


def _common_url_prefix(table: ReferenceTable) -> str | None:
    """Return the URL prefix if every URL is this prefix plus the chunk key, and None otherwise."""
    url_prefix: str | None = None
    for key, (url, *_) in table.items() if len(table.urls) == table.key_count else ():
        if url_prefix is None and url.endswith(key):
            url_prefix = url.removesuffix(key)
        if url_prefix is None or url != url_prefix + key:
            return None
    return url_prefix
