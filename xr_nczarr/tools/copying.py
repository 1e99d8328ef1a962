"""A store or file → a store of any dialect, version, chunks and codecs, in as many runs as needed.

The chunks of arrays that stay as they are travel as bytes, all others are decoded and encoded.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any, Literal

import xarray as xr

from xr_nczarr.backend.building import open_groups
from xr_nczarr.backend.lazy import LazyArray
from xr_nczarr.backend.options import AS_STORED, OpenOptions
from xr_nczarr.backend.reader import open_netcdf
from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.dataset import resolve
from xr_nczarr.errors import ConflictError, ExistsError, RefusedError, UnsupportedError, quote
from xr_nczarr.model import ArrayNode, child_path
from xr_nczarr.netcdf import Dimension
from xr_nczarr.netcdf.attributes import infer_integers
from xr_nczarr.netcdf.types import default_fill
from xr_nczarr.storage import Access, Store, boot, file_fingerprint, parse_url
from xr_nczarr.storage.url import mask
from xr_nczarr.tools.text import Told
from xr_nczarr.tools.transfer import copy_chunks
from xr_nczarr.writing.blocks import in_blocks
from xr_nczarr.writing.commit import WritePlan, prepare, put_documents, workspace
from xr_nczarr.writing.datasets import Request, growing_dimensions, unlimited_dimensions
from xr_nczarr.writing.lock import sole_writer
from xr_nczarr.writing.requested import CODEC_KEYS, ENCODING_KEYS, FLAGS
from xr_nczarr.writing.sources import lazy_array_in
from xr_nczarr.writing.target import UNFINISHED, check_empty, open_existing
from xr_nczarr.writing.writer import layout_of, plan_creation

_NETCDF_ENDINGS = (".nc", ".nc4", ".cdf", ".netcdf")
_FILES = (b"CDF\x01", b"CDF\x02", b"CDF\x05", b"\x89HDF")


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied(Told):
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
    anew
        Why one that was interrupted could not be completed and began anew; empty if none was.
    """

    store: str
    arrays: int
    unchanged: list[str]
    objects: int
    resumed: bool
    anew: str = ""

    def __str__(self) -> str:
        how = f"{len(self.unchanged)} of them as bytes ({self.objects} chunks)"
        again = ", completing an interrupted copy" if self.resumed else ""
        again += f"; an interrupted copy was begun anew: {self.anew}" if self.anew else ""
        return f"{self.store}: {self.arrays} arrays copied, {how}{again}"


@dataclass(slots=True, kw_only=True)
class _Source:
    """What is to be copied, as it is stored: nothing is decoded.

    `state` gives a text that changes with it, None where nobody can tell. `undefined` are the paths
    of arrays without a fill value.
    """

    datasets: dict[str, xr.Dataset]
    state: Callable[[], str | None]
    dimensions: dict[str, dict[str, Dimension]] = field(default_factory=dict)
    arrays: dict[str, ChunkedArray] = field(default_factory=dict)
    undefined: set[str] = field(default_factory=set)

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
    overwrite: bool = False,
) -> Copied:
    """Copy all groups of whatever xarray opens into a new store.

    Until it is complete, the target is not taken for a store. An interrupted copy that is run
    again completes it, if the source can tell that it did not change since (local files, object
    stores). It begins anew where nobody can (plain HTTP, reference sets), for zip files, which are
    written in one go, and after a restart of the machine (chunks may not have reached the disk).

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
    overwrite
        Whether a store at the target is replaced: on local disks in one step when the new one is
        complete, elsewhere its objects go first.

    Raises
    ------
    ExistsError
        When there is something at the target that is no interrupted copy, with `overwrite` when it
        is no store.
    RefusedError
        If the target is the source, or lies within it.
    ConflictError
        For a dimension or a chunk length that there is not; while another write changes the target
        on an object store; and when the source changes meanwhile: the target is then no store, and
        the next run begins anew.
    UnsupportedError
        For an engine that there is not, and if the target has the name of a netCDF file.
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
    _check_name(target)
    with closing(_open(source, engine, storage_options)) as origin:
        dimensions = {dim for dataset in origin.datasets.values() for dim in dataset.dims}
        for dim, length in (chunks or {}).items():
            if dim not in dimensions or length < 1:
                raise ConflictError(f"there are no chunks of {length} along {quote(dim)}")
        sync: Literal["commit", "all"] = "commit" if boot() else "all"
        access = Access(storage_options=target_options, sync=sync)
        resolved = resolve(target, access, must_exist=False)
        layout, store = layout_of(resolved.location, zarr_format, dialect), resolved.store
        _check_beside(store, origin)
        if layout.zarr_format != "3":  # each chunk becomes an object of its own
            for dataset in origin.datasets.values():
                for variable in dataset.variables.values():
                    variable.encoding.pop("shards", None)
        if not layout.version_3:
            _keep_unmasked(origin, pure=layout.pure)
        unlimited = {
            path: unlimited_dimensions(each, None, required=False)
            for path, each in origin.datasets.items()
        }
        request = Request(
            datasets={  # also what is small: what is copied as bytes is never decoded
                path: in_blocks(dataset, whole_below=0) for path, dataset in origin.datasets.items()
            },
            encoding={path: _asked(each, chunks, codecs) for path, each in origin.datasets.items()},
            unlimited=unlimited,
            growing={
                path: growing_dimensions(each, unlimited[path])
                for path, each in origin.datasets.items()
            },
            group="/",
            dimensions=origin.dimensions,
        )
        plan = plan_creation(request, store, layout, consolidated)
        before = origin.state()
        mark = None if before is None else _identity(before, plan)
        with ExitStack() as held:
            # One that was killed may be run again as it was, also from a source that has changed.
            name = os.fspath(source) if isinstance(source, str | os.PathLike) else type(source)
            asked = str((name, zarr_format, dialect, chunks, codecs, consolidated))
            owner = hashlib.sha256(asked.encode()).hexdigest
            marked = sole_writer(store, "w", owner, force=overwrite)
            held.enter_context(store.lock("") if store.locks_processes else marked)
            exists, resumed, anew = _found(store, mark, overwrite)
            staged = exists and store.replaceable
            if staged:
                held.close()  # the old directory takes its lock along
            work = held.enter_context(workspace(store, empty=True, staged=staged))
            if not resumed:
                prepare(plan, work)
                work.put([(UNFINISHED, mark or b"{}")])
            unchanged, objects = copy_chunks(plan.jobs, origin.arrays, work, resumed, progress)
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
            anew=anew,
        )


def _open(source: Any, engine: str | None, options: Mapping[str, Any] | None) -> _Source:
    """Open the source without decoding anything."""
    if isinstance(source, str | os.PathLike):
        source = os.path.expanduser(source)
    if engine in (None, "nczarr") and not (engine is None and _is_netcdf_file(source)):
        return _open_store(source, options)
    path = os.fspath(source)
    engine = engine or str(xr.backends.plugins.guess_engine(path))
    engines = xr.backends.list_engines()
    if engine not in engines:
        raise UnsupportedError(
            f"there is no engine {quote(engine)}; there are {', '.join(engines)}"
        )
    given: dict[str, Any] = {"storage_options": options} if options else {}
    if engines[engine].supports_groups:  # decode_cf=False alone is not heard there
        datasets = xr.open_groups(path, engine=engine, **AS_STORED, **given)
    else:
        datasets = {"/": xr.open_dataset(path, engine=engine, decode_cf=False, **given)}
    is_file = os.path.isfile(path)
    return _Source(
        datasets=dict(datasets), state=lambda: file_fingerprint(path) if is_file else None
    )


def _is_netcdf_file(source: Any) -> bool:
    if not isinstance(source, str | os.PathLike) or not os.path.isfile(source):
        return False
    if not os.access(source, os.R_OK):  # opening it as a store says so
        return False
    with open(source, "rb") as file:
        return file.read(4) in _FILES


def _open_store(source: Any, options: Mapping[str, Any] | None) -> _Source:
    """Open what the engine opens; what only a store says goes into the variables' encoding."""
    opened = open_netcdf(source, OpenOptions(storage_options=options, on_unsupported="raise"))
    if opened.target_group:
        raise UnsupportedError(
            f"the source names its group {quote(opened.target_group)!r}; a copy takes all groups",
            remedy="Open that group with xarray, and write it with to_nczarr",
            store=opened.store.name,
        )
    found = _Source(
        datasets=open_groups(opened, opened.root, AS_STORED),
        state=lambda: opened.store.fingerprint(),
        dimensions={group.path: dict(group.dimensions) for group in opened.root.walk()},
    )
    for path, dataset in found.datasets.items():
        dataset.attrs = _typed(dataset.attrs)
        for name, variable in dataset.variables.items():
            variable.attrs = _typed(variable.attrs)
            for lazy in lazy_array_in(variable._data):
                array = child_path(path, str(name))
                found.arrays[array] = lazy.stored
                node = opened.hierarchy.nodes[lazy.stored.node.path]
                if isinstance(node, ArrayNode) and node.fill_value is None:
                    found.undefined.add(array)
                variable.encoding |= _kept_encoding(lazy)
    return found


def _check_name(target: Any) -> None:
    """Raise UnsupportedError for the name of a netCDF file, unless its URL says ``mode=nczarr``."""
    if not isinstance(target, str | os.PathLike):
        return
    location = parse_url(target)
    if location.format is None and location.url.rstrip("/").lower().endswith(_NETCDF_ENDINGS):
        raise UnsupportedError(
            "this is the name of a netCDF file, and a copy is a store",
            remedy="Choose a name such as out.nczarr; a store of this very name is meant by a URL "
            "that ends in #mode=nczarr,file",
            store=mask(location.url),
        )


def _check_beside(store: Store, origin: _Source) -> None:
    """Raise RefusedError if the target is the source, or within it and would be a part of it."""
    stores = [array.store for array in origin.arrays.values()]
    if any(each.is_same(store) for each in stores):
        problem, remedy = "source and target are the same store", "Copy it to another place"
        raise RefusedError(problem, remedy=remedy, store=store.name)
    if any(store.is_within(each) for each in stores):
        problem = "it lies within the store that is to be copied"
        raise RefusedError(problem, remedy="Copy to another place", store=store.name)


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


def _keep_unmasked(origin: _Source, *, pure: bool) -> None:
    """Remove fill values that would hide values which the source shows.

    Before version 3 readers of Zarr take them for a `_FillValue`. NaN hides no others, and in
    NCZarr those of netCDF do not. Without one, missing chunks are zeros.
    """
    for path, dataset in origin.datasets.items():
        for name, variable in dataset.variables.items():
            encoding, dtype = variable.encoding, variable.dtype
            fill = encoding.get("fill_value")
            kinds = "biufcSUO" if pure else "biufc"
            if fill is None or "_FillValue" in variable.attrs or dtype.kind not in kinds:
                continue
            if child_path(path, str(name)) in origin.undefined or not fill:
                encoding["fill_value"] = None
            elif fill == fill and (pure or fill != default_fill(dtype)):
                del encoding["fill_value"]


def _typed(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes with JSON integers of the types that netCDF-C reads them with."""
    return {name: infer_integers(value) for name, value in attributes.items()}


def _asked(
    dataset: xr.Dataset,
    chunks: Mapping[str, int] | None,
    codecs: Sequence[Mapping[str, Any]] | None,
) -> dict[str, dict[str, Any]]:
    """Give the encoding of the variables for which something else is asked than they have."""
    found = {}
    for name, variable in dataset.variables.items():
        asked = {key: value for key, value in variable.encoding.items() if key in ENCODING_KEYS}
        if codecs is not None:
            drop = {*FLAGS, *CODEC_KEYS, "complevel", "compression"}
            asked = {key: value for key, value in asked.items() if key not in drop}
            # netCDF's scalars have none.
            asked["codecs"] = [dict(codec) for codec in codecs] if variable.ndim else []
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


def _found(store: Store, mark: bytes | None, overwrite: bool) -> tuple[bool, bool, str]:
    """Tell whether a store is at the target, or this very copy was begun; else why it begins anew.

    Something that may not go is an ExistsError.
    """
    unfinished = None
    if not store.single_file:
        (unfinished,) = store.fetch([UNFINISHED])
        if unfinished is not None and mark is not None and bytes(unfinished) == mark:
            return False, True, ""
    exists = open_existing(store, "a") is not None
    if exists and not overwrite:
        remedy = "Remove it, copy elsewhere, or pass overwrite=True (--overwrite)"
        raise ExistsError("there is a store already", remedy=remedy, store=store.name)
    check_empty(store)
    if unfinished is None:
        return exists, False, ""
    if mark is None:
        return exists, False, "the source cannot tell whether it changed since"
    return exists, False, "the source, what is asked or the run of the machine is another one"
