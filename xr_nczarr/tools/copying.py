"""A store or file → a store of any dialect, version, chunks and codecs, in as many runs as needed.

The chunks of arrays that stay as they are travel as bytes, all others are decoded and encoded.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np
import xarray as xr

from xr_nczarr.backend.commit import (
    UNFINISHED,
    WriteOptions,
    WritePlan,
    prepare,
    put_documents,
    workspace,
    write_chunks,
)
from xr_nczarr.backend.datasets import Request
from xr_nczarr.backend.lazy import LazyArray
from xr_nczarr.backend.options import DECODE_OPTIONS, DecodeOptions, OpenOptions
from xr_nczarr.backend.placing import Job
from xr_nczarr.backend.reader import open_groups, open_netcdf
from xr_nczarr.backend.requested import CODEC_KEYS, ENCODING_KEYS
from xr_nczarr.backend.sources import in_blocks, lazy_array_in
from xr_nczarr.backend.writer import (
    WRITER_LOCK,
    check_empty,
    layout_of,
    open_existing,
    plan_creation,
)
from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.errors import ConflictError, ExistsError
from xr_nczarr.model import ArrayNode, child_path
from xr_nczarr.netcdf import Dimension
from xr_nczarr.storage import (
    Store,
    ZipStore,
    boot,
    file_fingerprint,
    fingerprint,
    open_store,
    parse_url,
    stored_sizes,
)

_FILES = (b"CDF\x01", b"CDF\x02", b"CDF\x05", b"\x89HDF")
_BATCH_BYTES = 16 << 20
_BATCH_OBJECTS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What `copy` did.

    Attributes
    ----------
    arrays
        Number of arrays that are in the target.
    unchanged
        Paths of those whose chunks were copied as bytes.
    objects
        Number of chunks (or shards) that were copied so in this run.
    resumed
        Whether an interrupted run was completed.
    """

    store: str
    arrays: int
    unchanged: list[str]
    objects: int
    resumed: bool

    def __str__(self) -> str:
        how = f"{len(self.unchanged)} of them as bytes ({self.objects} chunks)"
        again = ", completing an interrupted copy" if self.resumed else ""
        return f"{self.store}: {self.arrays} arrays copied, {how}{again}"

    def as_dict(self) -> dict[str, Any]:
        """Give the result as JSON values."""
        return asdict(self)


@dataclass(slots=True, kw_only=True)
class _Source:
    """What is to be copied, as it is stored: nothing is decoded.

    `state` gives a text that changes with it, None where nobody can tell.
    """

    datasets: dict[str, xr.Dataset]
    state: Callable[[], str | None]
    dimensions: dict[str, dict[str, Dimension]] = field(default_factory=dict)
    arrays: dict[str, ChunkedArray] = field(default_factory=dict)

    def close(self) -> None:
        """Let go of the files that other engines keep open."""
        for dataset in self.datasets.values():
            dataset.close()


def copy(
    source: Any,
    target: Any,
    *,
    engine: str | None = None,
    zarr_format: int | str = 2,
    dialect: str = "nczarr",
    chunks: Mapping[str, int] | None = None,
    codecs: Sequence[Mapping[str, Any]] | None = None,
    consolidated: bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    progress: bool = False,
) -> Copied:
    """Copy all groups of whatever xarray opens into a new store.

    Until it is complete, the target is not taken for a store. An interrupted copy that is run
    again completes it, if the source can tell that it did not change since (local files, object
    stores); otherwise, for zip files, and after a restart of the machine (chunks may not have
    reached the disk), it begins anew.

    Parameters
    ----------
    source
        A path, URL, mapping or reference set as the engine ``"nczarr"`` opens it, or a file for
        another engine.
    engine
        Of xarray; None for ``"nczarr"``, and for netCDF files what xarray would take.
    zarr_format, dialect, consolidated, progress
        See `to_nczarr`.
    chunks
        Chunk lengths by dimension, in elements; None, or other dimensions, for the source's own.
    codecs
        Configurations of numcodecs in the order of encoding, for all arrays; None for the
        source's own. Empty for none.
    storage_options, target_options
        For `source` and for `target`.

    Raises
    ------
    ExistsError
        When there is something at the target that is no interrupted copy.
    ConflictError
        When the source changes meanwhile. The target is then no store, and the next run begins
        anew.
    NczarrError
        The error of a variable that cannot be read, or that the target's dialect does not have.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xr_nczarr
    >>> one, other = {}, {}
    >>> xr_nczarr.to_nczarr(xr.Dataset({"t": ("x", np.arange(4.0))}), one)
    >>> print(xr_nczarr.copy(one, other, zarr_format=3))
    mapping: 1 arrays copied, 1 of them as bytes (1 chunks)
    """
    with closing(_open(source, engine, storage_options)) as origin:
        sync: Literal["commit", "all"] = "commit" if boot() else "all"
        layout = layout_of(parse_url(target), zarr_format, dialect)
        store = open_store(target, storage_options=target_options, mode="a", sync=sync)
        request = Request(
            datasets={path: in_blocks(dataset) for path, dataset in origin.datasets.items()},
            encoding={path: _asked(each, chunks, codecs) for path, each in origin.datasets.items()},
            unlimited={
                path: set(map(str, each.encoding.get("unlimited_dims", ())))
                & set(map(str, each.dims))
                for path, each in origin.datasets.items()
            },
            group="/",
            dimensions=origin.dimensions,
        )
        plan = plan_creation(request, store, layout, consolidated)
        before = origin.state()
        mark = None if before is None else _identity(before, plan)
        zipped = isinstance(store, ZipStore)
        with nullcontext() if zipped else store.lock(WRITER_LOCK):
            resumed = _begun(store, mark)
            with workspace(store, empty=True, staged=False) as work:
                if not resumed:
                    prepare(plan, work)
                    work.put([(UNFINISHED, mark or b"{}")])
                unchanged, objects = _copy_chunks(plan.jobs, origin.arrays, work, resumed, progress)
                if origin.state() != before:
                    raise ConflictError(
                        "the source was changed while it was copied",
                        remedy="Run the copy again when nobody writes to it",
                        store=store.name,
                    )
                put_documents(plan, work, in_place=True)
        return Copied(
            store=store.name,
            arrays=len(plan.jobs),
            unchanged=unchanged,
            objects=objects,
            resumed=resumed,
        )


def _open(source: Any, engine: str | None, options: Mapping[str, Any] | None) -> _Source:
    """Open the source without decoding anything."""
    if engine in (None, "nczarr") and not (engine is None and _is_netcdf_file(source)):
        return _open_store(source, options)
    path = os.fspath(source)
    engine = engine or str(xr.backends.plugins.guess_engine(path))
    backend = xr.backends.list_engines()[engine]
    given: dict[str, Any] = {"storage_options": options} if options else {}
    if backend.supports_groups:  # decode_cf=False alone is not heard there
        datasets = xr.open_groups(path, engine=engine, **_decoding(), **given)
    else:
        datasets = {"/": xr.open_dataset(path, engine=engine, decode_cf=False, **given)}
    is_file = os.path.isfile(path)
    return _Source(
        datasets=dict(datasets), state=lambda: file_fingerprint(path) if is_file else None
    )


def _decoding() -> dict[str, Any]:
    """Give the options of xarray by which everything is as it is stored."""
    return dict.fromkeys(
        ("mask_and_scale", "decode_times", "concat_characters", "decode_coords"), False
    )


def _is_netcdf_file(source: Any) -> bool:
    if not isinstance(source, str | os.PathLike) or not os.path.isfile(source):
        return False
    with open(source, "rb") as file:
        return file.read(4) in _FILES


def _open_store(source: Any, options: Mapping[str, Any] | None) -> _Source:
    """Open what the engine opens; what only a store says goes into the variables' encoding."""
    opened = open_netcdf(source, OpenOptions(storage_options=options, on_unsupported="raise"))
    decoding = {name: getattr(DecodeOptions(), name) for name in DECODE_OPTIONS} | _decoding()
    found = _Source(
        datasets=open_groups(opened, opened.root, decoding),
        state=lambda: fingerprint(opened.store),
        dimensions={group.path: dict(group.dimensions) for group in opened.root.walk()},
    )
    for path, dataset in found.datasets.items():
        for name, variable in dataset.variables.items():
            for lazy in lazy_array_in(variable._data):
                found.arrays[child_path(path, str(name))] = lazy.stored
                variable.encoding |= _kept_encoding(lazy)
    return found


def _kept_encoding(lazy: LazyArray) -> dict[str, Any]:
    node, kept = lazy.stored.node, {}
    if node.fill_value is not None:
        kept["fill_value"] = node.fill_value
    if lazy.convert is not None:
        kept["_nczarr_maxstrlen"] = node.dtype.itemsize
    if len(node.shards) == 1:
        location = "start" if node.shards[0].index_at_start else "end"
        kept["shards"] = {"shape": node.object_shape, "index_location": location}
    return kept


def _asked(
    dataset: xr.Dataset,
    chunks: Mapping[str, int] | None,
    codecs: Sequence[Mapping[str, Any]] | None,
) -> dict[str, dict[str, Any]]:
    """Give the encoding of the variables for which something else is asked than they have."""
    found = {}
    for name, variable in dataset.variables.items():
        asked = {key: value for key, value in variable.encoding.items() if key in ENCODING_KEYS}
        if codecs is not None and variable.ndim:
            flags = ("zlib", "zstd", "bzip2", "blosc", "szip", "shuffle", "fletcher32")
            drop = {*flags, *CODEC_KEYS, "complevel", "compression"}
            asked = {key: value for key, value in asked.items() if key not in drop}
            asked["codecs"] = [dict(codec) for codec in codecs]
        if chunks and set(chunks) & set(variable.dims):
            old = asked.get("chunksizes") or variable.shape
            lengths = zip(variable.dims, old, strict=True)
            asked["chunks"] = tuple(chunks.get(str(dim), size) for dim, size in lengths)
            asked.pop("shards", None)
        if codecs is not None or "chunks" in asked:
            asked.setdefault("_FillValue", None)
            if "_FillValue" in variable.attrs:
                del asked["_FillValue"]
            found[str(name)] = asked
    return found


def _identity(state: str, plan: WritePlan) -> bytes:
    """Give what an unfinished target bears: of which source, what it becomes, and since when."""
    digest = hashlib.sha256(f"{state}{boot()}".encode())
    for key, document in plan.documents.items():
        digest.update(key.encode() + b"\0" + document + b"\0")
    return digest.hexdigest().encode()


def _begun(store: Store, mark: bytes | None) -> bool:
    """Tell whether this very copy was begun at the target.

    Raises
    ------
    ExistsError
        When there is something else than an unfinished write.
    """
    check_empty(store)
    if isinstance(store, ZipStore):
        if open_existing(store, "a") is None:
            return False
    else:
        (found,) = store.fetch([UNFINISHED])
        if found is not None and mark is not None and bytes(found) == mark:
            return True
        if open_existing(store, "a") is None:
            return False
    raise ExistsError(
        "there is a store already", remedy="Remove it, or copy elsewhere", store=store.name
    )


def _copy_chunks(
    jobs: Sequence[Job],
    arrays: Mapping[str, ChunkedArray],
    store: Store,
    resumed: bool,
    progress: bool,
) -> tuple[list[str], int]:
    """Put all chunks that are not there; give the paths of arrays copied as bytes, and how many."""
    as_bytes: list[tuple[ChunkedArray, ArrayNode]] = []
    others: list[Job] = []
    there = {key for key, _ in stored_sizes(store)} if resumed else set()
    for job in jobs:
        node, array = job.node, arrays.get(job.node.path)
        if array is not None and _same_chunks(array.node, node):
            as_bytes.append((array, node))
        else:
            others += _unfinished(job.aligned(), there)
    total = sum(math.prod(_grid(node)) for _, node in as_bytes) or 1
    done = objects = 0
    for array, node in as_bytes:
        for seen, put in _copy_objects(array, node, store, there):
            done, objects = done + seen, objects + put
            if progress:
                sys.stderr.write(f"\r[{'#' * (40 * done // total):<40}] {100 * done // total}%")
    if progress and as_bytes:
        sys.stderr.write("\n")
    write_chunks(others, store, WriteOptions(progress=progress))
    return [node.path for _, node in as_bytes], objects


def _grid(node: ArrayNode) -> tuple[int, ...]:
    return tuple(-(-n // c) for n, c in zip(node.shape, node.object_shape, strict=True))


def _same_chunks(source: ArrayNode, target: ArrayNode) -> bool:
    """Tell whether the stored objects of one array mean in the other what they mean here."""
    return (
        source.shape == target.shape
        and source.chunk_shape == target.chunk_shape
        and source.chunk_runs == target.chunk_runs
        and _type(source) == _type(target)
        and _fill(source) == _fill(target)
        and _chain(source) == _chain(target)
        and [(level.shape, level.index_at_start) for level in source.shards]
        == [(level.shape, level.index_at_start) for level in target.shards]
        and [[spec.name for spec in level.index_codecs] for level in source.shards]
        == [[spec.name for spec in level.index_codecs] for level in target.shards]
        and not any(level.codecs for level in (*source.shards, *target.shards))
    )


def _type(node: ArrayNode) -> tuple[str, int]:
    """Give what matters of a type to its bytes: version 3 has characters and strings as raw."""
    raw = node.dtype.kind in "SV" or node.dtype.str == "|u1"
    return ("raw" if raw else node.dtype.str), node.dtype.itemsize


def _fill(node: ArrayNode) -> bytes:
    if node.fill_value is None:
        return b"undefined"
    if node.dtype.hasobject:
        return str(node.fill_value).encode()
    return np.asarray(node.fill_value, node.dtype).tobytes()


def _chain(node: ArrayNode) -> list[tuple[str, dict[str, str]]]:
    return [
        (spec.name, {name: str(value) for name, value in spec.configuration.items()})
        for spec in node.codecs
        if spec.name != "bytes"
    ]


def _copy_objects(
    array: ChunkedArray, node: ArrayNode, store: Store, there: Collection[str]
) -> Iterator[tuple[int, int]]:
    """Copy stored objects in batches; yield how many were looked at, and how many put."""
    size = math.prod(node.object_shape) * node.dtype.itemsize
    count = max(1, min(_BATCH_OBJECTS, _BATCH_BYTES // max(1, size)))
    indices = np.ndindex(*_grid(node))
    while batch := list(itertools.islice(indices, count)):
        wanted = [index for index in batch if node.chunk_keys.key(index) not in there]
        if array.node.shards:
            fetched = array.store.fetch([array.node.chunk_keys.key(index) for index in wanted])
        else:
            fetched = array.layout.fetch(array.store, wanted)
        found = [
            (node.chunk_keys.key(index), data)
            for index, data in zip(wanted, fetched, strict=True)
            if data is not None
        ]
        store.put(found)
        yield len(batch), len(found)


def _unfinished(job: Job, there: Collection[str]) -> Iterator[Job]:
    """Cut a job into its blocks, without those whose stored objects are all there."""
    data, node = job.data, job.node
    if not there or not hasattr(data, "dask") or data.ndim != len(node.shape):
        yield job
        return
    ends = [[0, *itertools.accumulate(sizes)] for sizes in data.chunks]
    for block in np.ndindex(*data.numblocks):
        region = tuple(slice(ends[axis][at], ends[axis][at + 1]) for axis, at in enumerate(block))
        cells = [
            range(piece.start // cell, -(-piece.stop // cell))
            for piece, cell in zip(region, node.object_shape, strict=True)
        ]
        if not all(node.chunk_keys.key(index) in there for index in itertools.product(*cells)):
            yield Job(node, region, data.blocks[block])
