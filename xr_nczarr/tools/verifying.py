"""Whether a store is whole: each chunk decoded, every document compared, what others make of it."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from xr_nczarr.backend.reader import OpenedStore, open_whole, readable_node
from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.errors import MetadataError, NczarrError, NotFoundError
from xr_nczarr.hierarchy import FORMATS, JOURNAL, Document
from xr_nczarr.model import ArrayNode, parent_path
from xr_nczarr.netcdf import Group, Variable
from xr_nczarr.netcdf.annotations import SIDECARS
from xr_nczarr.storage import WRITER_LOCK
from xr_nczarr.tools.census import Stored, take_census
from xr_nczarr.tools.readers import concerns, in_documents
from xr_nczarr.tools.slabs import counts
from xr_nczarr.tools.text import Told
from xr_nczarr.writing.target import UNFINISHED

_AT_ONCE = 1024
_THREADED_FROM_BYTES = 64 << 10  # as for reading: smaller ones lose more than they win
_LISTED = "present, and not listed"
_ORPHAN = "Remove it, unless what is missing is the document of its array or group"
_CONSOLIDATE = "Run nczarr consolidate, unless it is the single document that is wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing amiss.

    Attributes
    ----------
    severity
        ``"error"`` where values or metadata are damaged, missing or contradict each other,
        ``"warning"`` where other programs fail or something is left over.
    place
        Key in the store, or path of the node.
    programs
        Those that fail; empty where it is the store itself.
    """

    severity: Literal["error", "warning"]
    place: str
    problem: str
    remedy: str = ""
    programs: str = ""

    def __str__(self) -> str:
        subject = f"{self.programs} " if self.programs else ""
        remedy = f". {self.remedy}" if self.remedy else ""
        return f"{self.severity}: {self.place}: {subject}{self.problem}{remedy}"


@dataclass(slots=True, kw_only=True)
class Verification(Told):
    """What `verify` found.

    Attributes
    ----------
    chunks
        By path of the array: stored objects that are there, and of how many; empty where the
        store cannot be listed.
    decoded
        Number of chunks that were read: of those that the store lists, where it can be listed.
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
        present, total = (sum(each[at] for each in self.chunks.values()) for at in (0, 1))
        errors = sum(finding.severity == "error" for finding in self.findings)
        counts = f"{errors} errors, {len(self.findings) - errors} warnings"
        there = f"{present} of {total} chunks there, " if self.chunks else ""
        title = f"{self.store}: {there}{self.decoded} read: {counts}"
        return "\n".join([title, *map(str, self.findings)])

    def as_dict(self) -> dict[str, Any]:
        """Give the result as JSON values."""
        return {**Told.as_dict(self), "whole": self.whole}


def verify(target: Any, *, sample: int | None = None, **options: Any) -> Verification:
    """Verify a store: its documents against each other and against the chunks, and every chunk.

    Chunks are fetched and decoded as for reading, which checks sizes and checksums.

    Parameters
    ----------
    sample
        Read at most so many chunks of each array, chosen at random among those that are there
        where the store can be listed; None for all.
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
    result = Verification(store=opened.store.name)
    found = result.findings
    found += _consolidated(opened)
    others: list[str] = []
    census, reason = take_census(opened, others)
    read = {group.path for group in top.walk()}
    for group in opened.root.walk():
        if group.error is not None:
            found.append(_error(group.path, group.error))
        for report in group.reports:
            severity: Literal["error", "warning"] = "warning" if _LISTED in report else "error"
            found.append(Finding(severity, group.path, report))
        for variable in group.variables.values():
            if variable.error is not None:
                found.append(_error(variable.path, variable.error))
            elif variable.node is not None and group.path in read:
                count, damaged = _decode(opened, variable, sample, census.get(variable.path))
                result.decoded += count
                found += damaged
    result.chunks = {path: (stored.present, stored.total) for path, stored in census.items()}
    if reason:
        found.append(Finding("warning", "/", f"cannot be listed: {reason}"))
    found += _left_over(opened, others)
    found += [
        Finding("warning", place, problem, remedy, programs)
        for programs, place, problem, remedy in (*concerns(opened), *in_documents(opened))
    ]
    return result


def _open(target: Any, options: dict[str, Any]) -> tuple[OpenedStore, Group]:
    """Open the single documents; the consolidated one where there are no others."""
    try:
        return open_whole(target, {"consolidated": False, **options})
    except NotFoundError:
        if "consolidated" in options:
            raise
        return open_whole(target, options)


def _error(place: str, error: NczarrError) -> Finding:
    where = error.key or place
    problem = ", ".join(filter(None, [error.place, error.problem]))
    chunk = f" (chunk {error.chunk})" if error.chunk is not None else ""
    return Finding("error", where, problem + chunk, error.remedy)


def _consolidated(opened: OpenedStore) -> Iterator[Finding]:
    """Compare each document that the consolidated one holds, or should, with the single one."""
    module = FORMATS[opened.hierarchy.zarr_format]
    key = module.CONSOLIDATED_KEY
    if opened.hierarchy.consolidated or key is None:
        return
    (data,) = opened.store.fetch([key])
    try:
        document = data and Document(key, data, limits=opened.options.limits, consolidated=True)
        held = document and module.expand_consolidated(document)
    except MetadataError as error:
        yield replace(_error(key, error), remedy=_CONSOLIDATE)
        return
    if not held:
        return
    nodes = [name for path in opened.hierarchy.nodes for name in module.node_keys(path)]
    names = list(dict.fromkeys([*held, *nodes]))
    for name, single in zip(names, opened.store.fetch(names), strict=True):
        inner = held.get(name)
        if inner is None and single is None:
            continue
        if inner is None:
            problem = f"does not hold {name}"
        elif single is None:
            problem = f"holds {name}, which is missing in the store"
        elif _same(Document(name, single, limits=opened.options.limits), inner):
            continue
        else:
            problem = f"is stale: holds another {name}"
        yield Finding("error", key, problem, _CONSOLIDATE)


def _same(single: Document, inner: Document) -> bool:
    """Tell whether documents say the same; one that says nothing is told of with its node."""
    try:
        return bool(single.value == inner.value)
    except MetadataError:
        return False


def _decode(
    opened: OpenedStore, variable: Variable, sample: int | None, stored: Stored | None
) -> tuple[int, list[Finding]]:
    """Read the chunks of one array; give their number, and what is wrong with them.

    Those that the store does not list are not asked for, unless to be without one is an error.
    """
    node = readable_node(variable, opened.options.assume_endian)
    options = replace(opened.options.reading, threads=1)
    array = ChunkedArray(node, opened.store, options)
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

    found: list[Finding] = []
    numbers = iter(chosen)
    spread = opened.store.remote or array.chunk_bytes >= _THREADED_FROM_BYTES
    with ThreadPoolExecutor(thread_name_prefix="nczarr-verify") as pool:
        while batch := list(itertools.islice(numbers, _AT_ONCE)):
            found += filter(None, (pool.map if spread else map)(read, batch))
    # What concerns the codec as a whole is said once.
    return len(chosen), list(dict.fromkeys(found))


def _left_over(opened: OpenedStore, keys: Sequence[str]) -> Iterator[Finding]:
    """Tell the keys that are neither a chunk's nor a document's, nor below what is broken."""
    module, nodes = FORMATS[opened.hierarchy.zarr_format], opened.hierarchy.nodes
    known = {key for path in nodes for key in module.node_keys(path)}
    known |= {module.CONSOLIDATED_KEY, *module.root_keys()}
    broken = {group.path for group in opened.root.walk() if group.error is not None}
    broken |= {each.path for each in opened.root.all_variables() if each.error is not None}
    for key in keys:
        folder, _, name = key.rpartition("/")
        document = key in known or (name in SIDECARS and f"/{folder}" in nodes)
        above = _folders(folder, draft=opened.hierarchy.zarr_format == "3-draft")
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


def _folders(folder: str, *, draft: bool) -> list[str]:
    """Give the paths of a key's folder and all above; none for the documents of v3's draft."""
    if draft and folder.partition("/")[0] == "meta":
        return []
    path = "/" + (re.sub("^data(/root)?(/|$)", "", folder) if draft else folder)
    found = [path]
    while path != "/":
        path = parent_path(path)
        found.append(path)
    return found
