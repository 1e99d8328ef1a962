"""Check the integrity of all chunks and all metadata in a store."""

from __future__ import annotations

import math
import operator
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import islice, product
from typing import Any, Literal

from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.dataset import OpenedStore, open_all_groups
from xr_nczarr.errors import MetadataError, NczarrError, NotFoundError, UnsupportedError, quote
from xr_nczarr.formats.documents import Document
from xr_nczarr.hierarchy import JOURNAL, MAX_LOOKUPS, UNFINISHED, document_keys
from xr_nczarr.model import ArrayNode, Consolidated, Limits, paths_above
from xr_nczarr.netcdf import Group, Variable
from xr_nczarr.netcdf.annotations import SIDECARS
from xr_nczarr.options import MissingChunks, OpenOptions, check_count
from xr_nczarr.progress import Progress
from xr_nczarr.storage import WRITER_LOCK, Bytes, MemoizingStore
from xr_nczarr.tools.readers import requirements
from xr_nczarr.tools.stored_chunks import MAX_REQUESTS, StoredChunks, count_stored_chunks
from xr_nczarr.tools.verification import Finding, Verification

_MIN_IN_FLIGHT, _MAX_IN_FLIGHT = 4, 64  # chunks to fetch concurrently from a remote store
_BYTES_IN_FLIGHT = 256 << 20  # total size of these chunks after decoding
_BATCH_CHUNKS = 1024
_THREADED_FROM_BYTES = 64 << 10  # as for reading; threads slow down smaller chunks
_MAX_KEYS = 5
_EXTRA_CHUNK = "If a write was interrupted, run it again. Otherwise, remove the object"
_ORPHAN = "Remove the object, unless the metadata document of its array or group is missing"
_CONSOLIDATE = "Run nczarr consolidate, unless the individual document is wrong"


def verify(
    target: Any,
    *,
    sample: int | None = None,
    readers: bool = False,
    progress: bool = False,
    group: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    consolidated: Consolidated = None,
    zarr_format: int | str | None = None,
    missing_chunks: MissingChunks = "fill",
    codecs: Mapping[str, type] | None = None,
    trust: Literal["none"] | None = None,
    limits: Limits | Mapping[str, int] | None = None,
) -> Verification:
    """Check the integrity of a store by decoding all chunks and validating all metadata.

    Chunks are fetched and decoded as in a normal read, which checks sizes and checksums. `verify`
    does not check whether xarray can decode the values, for example whether ``units`` are valid.

    Missing chunks of a coordinate variable are an error if they cover more than one element. They
    are also an error if the fill value marks missing data, because coordinates must not contain
    missing data. In all other cases, missing chunks are only a warning. For example, a single
    missing element of a coordinate may be equal to the fill value, because writers omit chunks that
    contain only the fill value.

    Parameters
    ----------
    sample
        Maximum number of chunks (or shards) to read for each array. The chunks are chosen at
        random. If None, all chunks are read.
    readers
        Whether to also report the features required to read the store, and the parts that some
        programs misread.
    progress
        Whether to show a progress bar.
    group, storage_options, consolidated, zarr_format, missing_chunks, codecs, trust, limits
        See `xr_nczarr.options.OpenOptions`. With `group`, only chunks of that group are read. If
        `consolidated` is None, the individual documents are read. Consolidated metadata is used
        only if there are no individual documents, or if the store cannot be listed to find them.

    Raises
    ------
    UnsupportedError
        If the store cannot be listed and more than 100 million chunks would have to be read.

    Examples
    --------
    >>> import xarray as xr, xr_nczarr
    >>> store = {}
    >>> xr_nczarr.to_nczarr(xr.Dataset({"t": ("x", [1.5, 2.5])}), store)
    >>> xr_nczarr.verify(store).whole
    True
    """
    options = OpenOptions.of(locals())
    check_count("sample", sample)
    documents: dict[str, Bytes | None] = {}
    try:
        opened, top = _open(target, options, documents)
    except MetadataError as error:
        if error.key != JOURNAL:
            raise
        # Only the journal states which documents are valid, and it is damaged.
        return Verification(store=str(error.store), findings=[_error(JOURNAL, error)])
    max_requests = MAX_LOOKUPS if sample is None else MAX_REQUESTS
    stored, others, reason = count_stored_chunks(opened, max_requests=max_requests)
    chunks = {path: (item.present, item.total) for path, item in stored.items()}
    result = Verification(store=opened.store.name, chunks=chunks)
    findings = result.findings
    findings += _consolidated(opened, documents)
    findings += _metadata(opened)
    arrays: list[_Array] = []
    for variable in top.all_variables():
        if variable.error is None:
            item = stored.get(variable.path)
            if item is not None and item.present < item.total:
                findings.append(_missing(variable, item))
            try:
                arrays.append(_Array(opened, variable, item, sample))
            except NczarrError as error:  # no chunk can be decoded
                findings.append(_error(variable.path, error))
    total = sum(len(array.numbers) for array in arrays)
    if reason and total > MAX_LOOKUPS:
        raise UnsupportedError(
            f"too many chunks to read: it is not known which of the {total:,} chunks exist "
            f"({reason})",
            remedy="Pass sample=100, for example, to read at most 100 chunks of each array",
            store=opened.store.name,
        )
    with Progress(progress, total, " chunks") as bar:
        _read_all(arrays, result, bar)
    if reason:
        findings.append(Finding("warning", "/", f"missing chunks cannot be detected: {reason}"))
    findings += _left_over(opened, others)
    if readers:
        findings += requirements(opened, documents)
    return result


def _metadata(opened: OpenedStore) -> Iterator[Finding]:
    for group in opened.root.walk():
        if group.error is not None:
            yield _error(group.path, group.error)
        yield from (Finding("error", group.path, report) for report in group.reports)
        yield from (Finding("warning", group.path, warning) for warning in group.warnings)
        for variable in group.variables.values():
            if variable.error is not None:
                yield _error(variable.path, variable.error)


def _open(
    target: Any, options: OpenOptions, documents: dict[str, Bytes | None]
) -> tuple[OpenedStore, Group]:
    """Open a store with all its groups. The documents that are read are added to `documents`."""
    if options.consolidated is not None:
        return open_all_groups(target, options, documents=documents)
    try:
        return open_all_groups(target, replace(options, consolidated=False), documents=documents)
    except (NotFoundError, UnsupportedError):
        # There are no individual documents, or the store cannot be listed to find them.
        return open_all_groups(target, options, documents=documents)


def _error(place: str, error: NczarrError) -> Finding:
    where, inside = error.key or place, error.place or ""
    if error.chunk is None:
        problem = f"{inside}, {error.problem}" if inside else error.problem
        return Finding("error", where, problem, error.remedy)
    # In a reference set, `inside` differs from chunk to chunk. As part of the detail, it does not
    # prevent the findings from sharing a line.
    detail = ", ".join(filter(None, [f"chunk {error.chunk}", inside]))
    return Finding("error", where, error.problem, error.remedy, detail=detail)


def _consolidated(opened: OpenedStore, documents: dict[str, Bytes | None]) -> Iterator[Finding]:
    """Yield findings about differences between metadata documents and their consolidated copies."""
    zarr, limits = opened.hierarchy.zarr, opened.options.bounds
    key = zarr.consolidated_key
    store = MemoizingStore(opened.store, documents)
    if key is None or opened.options.consolidated is True:
        return
    root, (data,) = store.fetch_present(zarr.node_keys("/")), store.fetch([key])
    if not any(root) or data is None:  # there is only one kind of metadata
        return
    try:
        document = Document(key, data, limits=limits, consolidated=True)
        held = zarr.expand_consolidated({key: document})
    except MetadataError as error:
        yield replace(_error(key, error), remedy=_CONSOLIDATE)
        return
    if held is None:
        return
    nodes = {name for path in opened.hierarchy.nodes for name in zarr.node_keys(path)}
    single = [name for name in documents if name in nodes and documents[name] is not None]
    names = dict.fromkeys([*held, *single])
    for name, data in zip(names, store.fetch([*names]), strict=True):
        if data is None:
            yield Finding("error", name, f"the document exists only in {key}", _CONSOLIDATE)
        elif name not in held:
            yield Finding("error", name, f"the document is missing from {key}", _CONSOLIDATE)
        else:
            with suppress(MetadataError):  # a document that cannot be parsed equals no other
                if Document(name, data, limits=limits).value == held[name].value:
                    continue
            problem = f"the copy of the document in {key} is stale"
            yield Finding("error", name, problem, _CONSOLIDATE)


def _missing(variable: Variable, stored: StoredChunks) -> Finding:
    """Return a `Finding` that describes the missing chunks of a variable."""
    present = set(stored.numbers)
    absent = (number for number in range(stored.total) if number not in present)
    first = [*islice(absent, _MAX_KEYS)]
    count = stored.total - stored.present
    keys = ", ".join(quote(stored.key(number)) for number in first)
    detail = f"{count:,} of {stored.total:,}: {keys}{', …' if count > len(first) else ''}"
    if variable.is_coordinate:
        elements = [item for number in first for item in _elements(stored.node, (number,))]
        values = sum(item.stop - item.start for item in elements)
        is_masked = (
            "_FillValue" in variable.attributes or variable.fill_value != variable.fill_value
        )
        # A single element could be equal to the fill value, unless fill values mark missing data.
        if values > 1 or is_masked:
            problem, remedy = "chunks of a coordinate are missing", "Rewrite the coordinate"
            return Finding("error", variable.path, problem, remedy, detail=detail)
    problem = "chunks are missing and are read as the fill value"
    return Finding("warning", variable.path, problem, detail=detail)


class _Array:
    """An array to verify, and the chunks (or shards) to read from it."""

    def __init__(
        self,
        opened: OpenedStore,
        variable: Variable,
        stored: StoredChunks | None,
        sample: int | None,
    ) -> None:
        node = variable.readable_node
        self.path = variable.path
        self.array = ChunkedArray(node, opened.store, replace(opened.options.reading, threads=1))
        _ = self.array.codec, self.array.layout  # raises an error if no chunk can be decoded
        self.objects = stored or StoredChunks(node)
        self.numbers: Sequence[int] = range(self.objects.total)  # indices in the flattened grid
        # Objects that are known to be missing are fetched only with missing_chunks="raise".
        if stored is not None and opened.options.missing_chunks != "raise":
            self.numbers = stored.numbers
        if sample is not None and sample < len(self.numbers):
            self.numbers = sorted(random.sample(self.numbers, sample))

    @property
    def threads(self) -> int:
        """The number of threads that read the array, or 0 to read it in the calling thread."""
        size = math.prod(self.array.node.object_shape) * self.array.node.dtype.itemsize
        if self.array.store.remote:
            return max(_MIN_IN_FLIGHT, min(_MAX_IN_FLIGHT, _BYTES_IN_FLIGHT // max(1, size)))
        return os.cpu_count() or 1 if size >= _THREADED_FROM_BYTES else 0

    def read(self, number: int) -> list[Finding]:
        """Read a chunk, or all chunks of a shard, and return a finding for each damaged chunk."""
        node = self.array.node
        elements = _elements(node, self.objects.index(number))
        problems = self._decode(elements)
        if not problems or not node.shards:
            return problems
        edges = [
            [slice(start, start + length) for start in range(item.start, item.stop, length)]
            for item, length in zip(elements, node.chunk_shape, strict=True)
        ]
        return [item for chunk in product(*edges) for item in self._decode(chunk)] or problems

    def _decode(self, elements: Sequence[slice]) -> list[Finding]:
        try:
            self.array.read(elements, dtype="V0", convert=lambda *_: None)  # discards the values
        except NczarrError as error:
            return [_error(self.path, error)]
        return []


def _elements(node: ArrayNode, index: Sequence[int]) -> list[slice]:
    """Return the region of an array that the chunk (or shard) at a grid index contains."""
    slices = []
    for axis, number in enumerate(index):
        start, length = 0, node.object_shape[axis]
        for run_length, count in node.chunk_runs[axis] if node.chunk_runs else ():
            if number < count:
                length = run_length
                break
            start += run_length * count
            number -= count
        start += length * number
        slices.append(slice(start, min(start + length, node.shape[axis])))
    return slices


def _read_all(arrays: Sequence[_Array], result: Verification, progress: Progress) -> None:
    by_threads: dict[int, list[_Array]] = {}
    for array in arrays:
        by_threads.setdefault(array.threads, []).append(array)
    findings: list[Finding] = []
    for threads, members in by_threads.items():
        reads = (partial(array.read, number) for array in members for number in array.numbers)
        with ThreadPoolExecutor(threads or 1, thread_name_prefix="nczarr-verify") as pool:
            while batch := [*islice(reads, _BATCH_CHUNKS)]:
                problems_of_chunks = (pool.map if threads else map)(operator.call, batch)
                for problems in progress.count(problems_of_chunks):
                    result.decoded += not problems
                    findings += problems
    # A problem with the codec itself occurs in every chunk, but is reported only once.
    result.findings += dict.fromkeys(findings)


def _left_over(opened: OpenedStore, keys: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding for each object that should not be in the store, such as a leftover lock.

    `keys` contains the keys of all objects except chunks.
    """
    zarr, nodes = opened.hierarchy.zarr, opened.hierarchy.nodes
    documents = set(document_keys(opened.hierarchy, SIDECARS))
    broken = {group.path for group in opened.root.walk() if group.error is not None}
    broken |= {item.path for item in opened.root.all_variables() if item.error is not None}
    for key in keys:
        node_path = zarr.node_path(key.rpartition("/")[0])
        above = [] if node_path is None else paths_above(node_path)
        holder = next((path for path in above if path in nodes or path in broken), "/")
        if key in (JOURNAL, UNFINISHED):
            yield Finding("error", key, "a write was interrupted", "Run the write again")
        elif key == WRITER_LOCK:
            problem = "a write is in progress, or was killed"
            yield Finding("warning", key, problem, "Wait for that write to finish, or run it again")
        elif key in documents or not above or not broken.isdisjoint(above):
            continue  # a document, or an object in a group or array that cannot be read
        elif isinstance(nodes[holder], ArrayNode) or holder == above[0]:
            yield Finding("warning", key, "the object is not a chunk of any array", _EXTRA_CHUNK)
        else:
            yield Finding("warning", key, "the object is not part of the store", _ORPHAN)
