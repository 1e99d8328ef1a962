"""Whether a store is whole: every chunk looked for and decoded, every document compared."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal

import numpy as np

from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.dataset import OpenedStore, open_whole, readable_node
from xr_nczarr.errors import (
    MetadataError,
    NczarrError,
    NotFoundError,
    UnsupportedError,
    quote,
)
from xr_nczarr.formats import FORMATS
from xr_nczarr.formats.documents import Document
from xr_nczarr.hierarchy import JOURNAL
from xr_nczarr.model import ArrayNode, parent_path
from xr_nczarr.netcdf import Group, Variable
from xr_nczarr.netcdf.annotations import SIDECARS
from xr_nczarr.storage import WRITER_LOCK
from xr_nczarr.tools.census import MAX_ASKED, Stored, take_census
from xr_nczarr.tools.readers import concerns, in_documents
from xr_nczarr.tools.slabs import counts
from xr_nczarr.tools.text import Told, count_text
from xr_nczarr.writing.transaction import UNFINISHED

_MIN_IN_FLIGHT, _MAX_IN_FLIGHT = 4, 64  # chunks of a remote store
_BYTES_IN_FLIGHT = 256 << 20  # once decoded
_BATCH_CHUNKS = 1024
_THREADED_FROM_BYTES = 64 << 10  # as for reading: smaller ones lose more than they win
_MAX_PLACES = 3
_MAX_KEYS = 5
_LISTED = "present, and not listed"
_ORPHAN = "Remove it, unless what is missing is the document of its array or group"
_CONSOLIDATE = "Run nczarr consolidate, unless it is the single document that is wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of one array, group or object.

    Attributes
    ----------
    severity
        ``"error"`` where values or metadata are damaged or contradict each other, or a coordinate
        is not complete; ``"warning"`` for other missing chunks, for what is left over, and where
        other programs fail.
    place
        Key in the store, or path of the node.
    programs
        Those that fail; empty where it is the store itself.
    detail
        What differs between places that have the same problem.
    """

    severity: Literal["error", "warning"]
    place: str
    problem: str
    remedy: str = ""
    programs: str = ""
    detail: str = ""

    @property
    def kind(self) -> tuple[str, ...]:
        """The fields by which findings share a line."""
        return self.severity, self.programs, self.problem, self.remedy

    def __str__(self) -> str:
        return finding_line([self])


def finding_line(findings: Sequence[Finding]) -> str:
    """Return the line of findings of one kind."""
    severity, programs, problem, remedy = findings[0].kind
    places = [
        f"{quote(finding.place)} ({finding.detail})" if finding.detail else quote(finding.place)
        for finding in findings[:_MAX_PLACES]
    ]
    more = len(findings) - len(places)
    where = ", ".join(places) + (f" and {more:,} more" if more else "")
    subject = f"{programs} " if programs else ""
    return f"{severity}: {where}: {subject}{problem}{f'. {remedy}' if remedy else ''}"


@dataclass(slots=True, kw_only=True)
class Verification(Told):
    """What `verify` found; printing it shows findings of one kind as one line.

    Attributes
    ----------
    chunks
        By path of the array: stored objects that are there, and of how many; empty where that is
        unknown.
    decoded
        Number of chunks that were read and decoded.
    """

    store: str
    chunks: dict[str, tuple[int, int]] = field(default_factory=dict)
    decoded: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether there is no error."""
        return not any(finding.severity == "error" for finding in self.findings)

    def __str__(self) -> str:
        present, total = (sum(counts[at] for counts in self.chunks.values()) for at in (0, 1))
        kinds: dict[tuple[str, ...], list[Finding]] = {}
        for finding in sorted(self.findings, key=lambda finding: finding.severity):
            kinds.setdefault(finding.kind, []).append(finding)
        errors = sum(finding.severity == "error" for finding in self.findings)
        warnings = count_text(len(self.findings) - errors, "warning")
        problems = f"{count_text(errors, 'error')}, {warnings}"
        there = f"{present:,} of {count_text(total, 'chunk')} there, " if self.chunks else ""
        title = f"{self.store}: {there}{self.decoded:,} read: {problems}"
        return "\n".join([title, *map(finding_line, kinds.values())])

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {**Told.as_dict(self), "whole": self.whole}


def verify(
    target: Any, *, sample: int | None = None, readers: bool = False, **options: Any
) -> Verification:
    """Verify a store: its documents against each other and against the chunks, and every chunk.

    Chunks are fetched and decoded as for reading, which checks sizes and checksums. Missing ones
    are warned of. Those of a coordinate of a dimension are an error, but for a single value, which
    writers leave out if it is the fill value.

    Parameters
    ----------
    sample
        Read at most so many chunks of each array, chosen at random among those that are there;
        None for all.
    readers
        Whether to report known problems of other programs with the store.
    **options
        See `OpenOptions`. With `group`, only the chunks of that group are read.

    Examples
    --------
    >>> import xarray as xr, xr_nczarr
    >>> store = {}
    >>> xr_nczarr.to_nczarr(xr.Dataset({"t": ("x", [1.5, 2.5])}), store)
    >>> xr_nczarr.verify(store).whole
    True
    """
    try:
        opened, top = _open(target, options)
    except MetadataError as error:
        if error.key != JOURNAL:
            raise
        # Which documents count is not known before somebody has decided.
        return Verification(store=str(error.store), findings=[_error(JOURNAL, error)])
    others: list[str] = []
    most_asked = None if sample is None else MAX_ASKED
    census, reason = take_census(opened, others, most_asked=most_asked)
    chunks = {path: (stored.present, stored.total) for path, stored in census.items()}
    result = Verification(store=opened.store.name, chunks=chunks)
    findings = result.findings
    findings += _consolidated(opened)
    findings += _in_groups(opened, {group.path for group in top.walk()}, sample, census, result)
    if reason:
        findings.append(Finding("warning", "/", f"missing chunks are not looked for: {reason}"))
    findings += _left_over(opened, others)
    if readers:
        findings += [
            Finding("warning", place, problem, remedy, programs)
            for programs, place, problem, remedy in (*concerns(opened), *in_documents(opened))
        ]
    return result


def _in_groups(
    opened: OpenedStore,
    read: Set[str],
    sample: int | None,
    census: Mapping[str, Stored],
    result: Verification,
) -> Iterator[Finding]:
    """Yield what is wrong with groups, variables, and the chunks in the groups to `read`."""
    for group in opened.root.walk():
        if group.error is not None:
            yield _error(group.path, group.error)
        for report in group.reports:
            yield Finding("warning" if _LISTED in report else "error", group.path, report)
        for variable in group.variables.values():
            if variable.error is not None:
                yield _error(variable.path, variable.error)
            elif variable.node is not None and group.path in read:
                stored = census.get(variable.path)
                yield from _decode(opened, variable, sample, stored, result)
                yield from _missing(variable, stored)


def _open(target: Any, options: dict[str, Any]) -> tuple[OpenedStore, Group]:
    """Open the single documents; the consolidated one where they are not there, or not found."""
    try:
        return open_whole(target, {"consolidated": False, **options})
    except (NotFoundError, UnsupportedError):
        if "consolidated" in options:
            raise
        return open_whole(target, options)


def _error(place: str, error: NczarrError) -> Finding:
    where = error.key or place
    problem = ", ".join(filter(None, [error.place, error.problem]))
    detail = f"chunk {error.chunk}" if error.chunk is not None else ""
    return Finding("error", where, problem, error.remedy, detail=detail)


def _consolidated(opened: OpenedStore) -> Iterator[Finding]:
    """Compare each document that the consolidated one holds, or should, with the single one."""
    zarr = FORMATS[opened.hierarchy.zarr_format]
    key = zarr.consolidated_key
    if opened.options.consolidated is True or key is None:
        return
    if not any(opened.store.fetch_present(zarr.node_keys("/"))):  # it is all that there is
        return
    (data,) = opened.store.fetch([key])
    try:
        document = data and Document(key, data, limits=opened.options.bounds, consolidated=True)
        held = document and zarr.expand_consolidated(document)
    except MetadataError as error:
        yield replace(_error(key, error), remedy=_CONSOLIDATE)
        return
    if not held:
        return
    nodes = [name for path in opened.hierarchy.nodes for name in zarr.node_keys(path)]
    names = list(dict.fromkeys([*held, *nodes]))
    for name, single in zip(names, opened.store.fetch(names), strict=True):
        inner = held.get(name)
        if inner is None and single is None:
            continue
        if inner is None:
            problem = f"does not hold {name}"
        elif single is None:
            problem = f"holds {name}, which is missing in the store"
        elif _same(Document(name, single, limits=opened.options.bounds), inner):
            continue
        else:
            problem = f"is stale: holds another {name}"
        yield Finding("error", key, problem, _CONSOLIDATE)


def _same(single: Document, inner: Document) -> bool:
    """Return whether documents are equal; an unreadable one is reported with its node."""
    try:
        return bool(single.value == inner.value)
    except MetadataError:
        return False


def _missing(variable: Variable, stored: Stored | None) -> Iterator[Finding]:
    """Yield what is to say of the chunks of a variable that are not there."""
    present = set() if stored is None else set(stored.numbers)
    if stored is None or len(present) == stored.total:
        return
    absent = (number for number in range(stored.total) if number not in present)
    first = [*islice(absent, _MAX_KEYS)]
    count = stored.total - len(present)
    keys = ", ".join(quote(stored.key(number)) for number in first)
    detail = f"{count:,} of {stored.total:,}: {keys}{', …' if count > len(first) else ''}"
    if _is_incomplete(variable, stored, first):
        problem, remedy = "a coordinate lacks chunks", "Write the coordinate again"
        yield Finding("error", variable.path, problem, remedy, detail=detail)
    else:
        problem = "chunks are missing and read as the fill value"
        yield Finding("warning", variable.path, problem, detail=detail)


def _is_incomplete(variable: Variable, stored: Stored, absent: Sequence[int]) -> bool:
    """Return whether without its `absent` chunks a coordinate is none.

    The values of a coordinate differ, and none is missing: a single one can be the fill value.
    """
    if not variable.is_coordinate:
        return False
    length, size = stored.node.object_shape[0], variable.shape[0]
    values = sum(min(length, size - number * length) for number in absent)
    masked = "_FillValue" in variable.attributes or variable.fill_value != variable.fill_value
    return values > 1 or masked


def _decode(
    opened: OpenedStore,
    variable: Variable,
    sample: int | None,
    stored: Stored | None,
    result: Verification,
) -> list[Finding]:
    """Read the chunks of one array, count them, and return what is wrong with them.

    Those that are known to be missing are not asked for, unless to be without one is an error.
    """
    node = readable_node(variable, opened.options.assume_endian)
    options = replace(opened.options.reading, threads=1)
    array = ChunkedArray(node, opened.store, options)
    try:
        _ = array.codec, array.layout
    except NczarrError as error:  # of all chunks alike
        return [_error(variable.path, error)]
    grid = counts(node.shape, node.chunk_shape)
    total = math.prod(grid)
    chosen: Sequence[int] = range(total)
    same = stored is not None and stored.total == total and not node.shards and not node.chunk_runs
    if stored is not None and same and options.missing_chunks != "raise":
        chosen = sorted(set(stored.numbers))
    if sample is not None and sample < len(chosen):
        chosen = sorted(random.sample(chosen, sample))

    def read(number: int) -> Finding | None:
        index = np.unravel_index(number, grid) if grid else ()
        pieces = zip(index, node.chunk_shape, strict=True)
        try:
            array.read([slice(int(at) * size, (int(at) + 1) * size) for at, size in pieces])
        except NczarrError as error:
            return _error(variable.path, error)
        return None

    findings: list[Finding] = []
    numbers = iter(chosen)
    spread = opened.store.remote or array.chunk_bytes >= _THREADED_FROM_BYTES
    workers = None
    if opened.store.remote:
        workers = max(
            _MIN_IN_FLIGHT, min(_MAX_IN_FLIGHT, _BYTES_IN_FLIGHT // max(1, array.chunk_bytes))
        )
    with ThreadPoolExecutor(workers, thread_name_prefix="nczarr-verify") as pool:
        while batch := list(islice(numbers, _BATCH_CHUNKS)):
            findings += filter(None, (pool.map if spread else map)(read, batch))
    result.decoded += len(chosen) - len(findings)
    # What concerns the codec as a whole is said once.
    return list(dict.fromkeys(findings))


def _left_over(opened: OpenedStore, keys: Sequence[str]) -> Iterator[Finding]:
    """Yield the keys that belong to no document or array, and lie below nothing broken."""
    zarr, nodes = FORMATS[opened.hierarchy.zarr_format], opened.hierarchy.nodes
    documents = {key for path in nodes for key in zarr.node_keys(path)} | {*zarr.root_keys()}
    broken = {group.path for group in opened.root.walk() if group.error is not None}
    broken |= {item.path for item in opened.root.all_variables() if item.error is not None}
    for key in keys:
        folder, _, name = key.rpartition("/")
        document = key in documents or (name in SIDECARS and f"/{folder}" in nodes)
        above = _paths_above(zarr.node_path(folder))
        holder = next((path for path in above if path in nodes or path in broken), "/")
        if key in (JOURNAL, UNFINISHED):
            yield Finding("error", key, "a write was interrupted", "Run it again")
        elif key == WRITER_LOCK:
            problem = "a write changes the store now, or was killed"
            yield Finding("warning", key, problem, "Wait for it, or run it again")
        elif document or not above or not broken.isdisjoint(above):
            continue
        elif isinstance(nodes[holder], ArrayNode) or holder == above[0]:
            yield Finding("warning", key, "belongs to no array's chunks", "Remove it")
        else:
            yield Finding("warning", key, "is no part of the store", _ORPHAN)


def _paths_above(path: str | None) -> list[str]:
    """Return a path and all above it; nothing for None."""
    paths = [] if path is None else [path]
    while paths and paths[-1] != "/":
        paths.append(parent_path(paths[-1]))
    return paths
