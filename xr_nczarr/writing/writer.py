"""Writing: `to_nczarr`, from a Dataset, DataArray or DataTree."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from dask.base import tokenize
from xarray import DataArray, Dataset, DataTree

from xr_nczarr.dataset import OpenedStore, resolve
from xr_nczarr.errors import ConflictError, ExistsError, NotFoundError
from xr_nczarr.formats import FORMATS, find_format
from xr_nczarr.hierarchy import Regions, refresh_consolidated, rendered
from xr_nczarr.options import check_choice
from xr_nczarr.storage import (
    Access,
    Location,
    Retry,
    Store,
)
from xr_nczarr.writing.append import plan_modification
from xr_nczarr.writing.blocks import in_blocks
from xr_nczarr.writing.commit import WriteMode, WriteOptions, WritePlan, execute
from xr_nczarr.writing.datasets import Request, normalise
from xr_nczarr.writing.encoded import DEFAULT_FORMAT, Layout
from xr_nczarr.writing.journal import close_journal, holds, settle
from xr_nczarr.writing.lock import sole_writer
from xr_nczarr.writing.sources import refuse_reading
from xr_nczarr.writing.target import (
    UNFINISHED,
    check_empty,
    check_names,
    check_removable,
    exists,
    is_nothing,
    open_existing,
)
from xr_nczarr.writing.tree import Tree
from xr_nczarr.writing.widening import plan_widening


def to_nczarr(
    obj: Dataset | DataArray | DataTree,
    target: Any,
    *,
    mode: WriteMode | None = None,
    group: str | None = None,
    encoding: Mapping[str, Any] | None = None,
    unlimited_dims: Iterable[Hashable] | Mapping[str, Iterable[Hashable]] | None = None,
    compute: bool = True,
    consolidated: bool | None = None,
    append_dim: Hashable | None = None,
    region: Mapping[str, slice | Literal["auto"]] | Literal["auto"] | None = None,
    safe_chunks: bool = True,
    align_chunks: bool = False,  # noqa: ARG001 (to_zarr has it, and here it always happens)
    write_empty_chunks: bool | None = None,
    zarr_format: int | str = 2,
    dialect: str = "nczarr",
    storage_options: Mapping[str, Any] | None = None,
    progress: bool = False,
    chunkmanager_store_kwargs: Mapping[str, Any] | None = None,
    sync: Literal["commit", "all", "none"] = "commit",
    atomic: Literal["store"] | None = None,
    allow_duplicates: bool = False,
    overwrite: Literal["force"] | None = None,
    retry: Mapping[str, Any] | None = None,
) -> Any:
    """Write a Dataset, DataArray or DataTree as NCZarr.

    Parameters
    ----------
    obj
        What to write. A DataArray becomes a Dataset, as `DataArray.to_netcdf` has it.
    target
        A path, a URL of fsspec, an NCZarr URL with its fragment, or a mapping.
    mode
        ``"w-"`` makes a new store or group and ``"w"`` replaces an old one, on local disks in one
        step when the new one is complete. ``"a"`` changes an existing store or makes one: new
        variables are added, existing ones overwritten, attributes updated. ``"a-"`` does so, and
        leaves variables without `append_dim` alone. ``"r+"`` writes values into existing
        variables and touches no metadata. None is ``"a"`` with `append_dim`, ``"r+"`` with
        `region`, else ``"w-"``.
    group
        Path of the group to write into.
    encoding
        By variable (for a DataTree by path, then variable): the keys of `to_netcdf` and of
        `to_zarr`. Without a codec among them chunks are stored as they are.
    unlimited_dims
        Names of unlimited dimensions (for a DataTree also a mapping by path); None for those that
        opening left in the encoding.
    compute
        Whether to write now. Otherwise the metadata are written, and a `dask.delayed.Delayed` that
        writes the rest is given.
    consolidated
        Whether to write consolidated metadata; None for version 2 alone, and for an existing
        store to refresh what is there.
    append_dim
        Dimension to append along. All variables along it must be in both; others must be equal.
    region
        Slices by dimension of where to write within existing variables, or ``"auto"`` for where
        the coordinates say.
    safe_chunks
        Whether dask blocks that share a stored chunk are merged first, and regions that share one
        with others are refused where the store has no locks.
    align_chunks
        As in `to_zarr`; blocks are aligned without it as well.
    write_empty_chunks
        Whether chunks of nothing but fill values are stored; None for no.
    zarr_format
        ``1`` (with one array), ``2``, ``3`` or ``"3-draft"``. An existing store keeps its own.
    dialect
        ``"nczarr"``, ``"zarr"`` (pure Zarr), ``"universal"`` (with objects for netcdf-c up to
        4.9.2), or one of netcdf-c's layouts by name. An existing store keeps its own.
    storage_options
        For the filesystem, as fsspec knows them.
    progress
        Whether to show a progress bar; dask's own where dask computes.
    chunkmanager_store_kwargs
        For the ``store`` method of the chunk manager.
    sync
        What is forced to the disk: everything once before and once after the metadata
        (``"commit"``), each object (``"all"``), or nothing (``"none"``).
    atomic
        ``"store"`` makes a whole append or overwrite one step on local disks, by way of a copy of
        hard links.
    allow_duplicates
        Whether an append may repeat, overlap or precede values of the coordinate it appends along.
    overwrite
        ``"force"`` lets ``mode="w"`` remove what is no store, and any write go on where an object
        store bears the lock of another one that was killed.
    retry
        How failed requests are tried again, as for opening.

    Returns
    -------
    None, or with ``compute=False`` a `dask.delayed.Delayed`.

    Raises
    ------
    ExistsError
        With ``"w-"``, when there is something already.
    ConflictError
        When what is to be written does not fit what is in the store, or names are one name on its
        file system. Nothing was written.
    RefusedError
        For overwriting what is lazily read for it, for ``"w"`` onto something that is no store, and
        for names that no file can have (on Windows).
    UnsupportedError
        For types, codecs or versions that the format does not have.

    Examples
    --------
    >>> import xarray as xr, xr_nczarr
    >>> store = {}
    >>> xr_nczarr.to_nczarr(xr.Dataset({"t": ("x", [1.5, 2.5])}), store)
    >>> xr.open_dataset(store, engine="nczarr").t.values.tolist()
    [1.5, 2.5]
    """
    check_choice("sync", sync, ("commit", "all", "none"))
    check_choice("atomic", atomic, (None, "store"))
    check_choice("overwrite", overwrite, (None, "force"))
    mode = _resolved_mode(mode, append_dim, region)
    dim = None if append_dim is None else str(append_dim)
    request = normalise(obj, group, encoding, unlimited_dims, dim, region is not None)
    owner = partial(_identity, mode, append_dim, dict(request.datasets))
    access = Access(storage_options=storage_options, retry=Retry(**(retry or {})), sync=sync)
    resolved = resolve(target, access, must_exist=mode == "r+")
    location, store = resolved.location, resolved.store
    layout = layout_of(location, zarr_format, dialect)
    options = WriteOptions(
        mode=mode,
        append_dim=dim,
        region=region,
        allow_duplicates=allow_duplicates,
        consolidated=location.consolidated if consolidated is None else consolidated,
        compute=compute,
        safe_chunks=safe_chunks,
        write_empty_chunks=bool(write_empty_chunks),
        progress=progress,
        chunkmanager_store_kwargs=chunkmanager_store_kwargs,
    )
    for path, dataset in request.datasets.items():
        request.datasets[path] = in_blocks(dataset, request.encoding[path])
    whole = mode == "w" and request.group == "/"
    if whole:
        check_removable(store, overwrite)
    force = overwrite == "force" or whole  # which replaces the lock as well
    staged = store.replaceable and (atomic == "store" or mode == "w")
    while True:
        with sole_writer(store, mode, owner, force=force):
            if whole:
                plan = plan_creation(request, store, layout, options.consolidated)
            else:
                appended = {} if mode == "r+" else settle(store)
                plan = _plan(request, store, layout, options, appended)
            if not plan.widths:
                return execute(plan, store, options, staged=staged)
            _widen(store, plan.widths, options)  # where a directory is replaced, its lock is too


def _widen(store: Store, widths: Mapping[str, int], options: WriteOptions) -> None:
    """Store the text of some arrays in more bytes: in one step, or under a journal."""
    opened = open_existing(store, "a")
    assert opened is not None
    staged = store.replaceable
    plan = plan_widening(opened, widths, options.consolidated, staged=staged)
    execute(plan, store, replace(options, compute=True), staged=staged)


def _identity(mode: str, append_dim: Hashable | None, datasets: Mapping[str, Dataset]) -> str:
    """Give what tells a write from others, without reading values that are lazily opened."""
    written = [
        (path, name, v.dims, v.shape, v if v._in_memory or v.chunks else v.encoding.get("source"))
        for path, dataset in datasets.items()
        for name, v in dataset.variables.items()
    ]
    return str(tokenize(mode, append_dim, written))


def _plan(
    request: Request, store: Store, layout: Layout, options: WriteOptions, appended: Regions
) -> WritePlan:
    """Give what changes in a store, or makes one where there is none."""
    opened = open_existing(store, options.mode)
    if opened is None:
        if options.mode == "r+":
            raise NotFoundError("there is no store to change", store=store.name)
        check_empty(store)
        dim, datasets = options.append_dim, request.datasets.values()
        if dim is not None and not any(dim in dataset.dims for dataset in datasets):
            raise ConflictError(f"append_dim={dim!r} does not match any dimension of what is new")
        plan = plan_creation(request, store, layout, options.consolidated)
        return replace(plan, exclusive=is_nothing(store))
    if options.mode == "r+" and opened.hierarchy.before:
        raise ConflictError(
            "another write replaces chunks of it, or was interrupted while it did",
            remedy="Wait for it, or run it again; any append undoes it, too",
            store=store.name,
        )
    groups = [request.group] if options.mode == "w" else [*request.datasets]
    there = [group for group in groups if exists(opened, group)]
    if options.mode == "w-" and request.group in there:
        _finish_creation(opened, store, options.consolidated)
        raise ExistsError(
            "there is something already",
            remedy="Pass mode='w' to replace it, 'a' to change it, or append_dim",
            store=store.name,
            key=request.group,
        )
    if appended:
        if options.append_dim is not None:
            repeated = replace(options, allow_duplicates=True)
            again = plan_modification(opened, request, layout, repeated)
            if holds(store, appended, again.jobs):  # killed when it had done everything
                close_journal(store)
                return WritePlan(layout.zarr.version)
        close_journal(store)
    return plan_modification(opened, request, layout, options)


def _finish_creation(opened: OpenedStore, store: Store, consolidated: bool | None) -> None:
    """Put what one lacks that was cut off when all but the consolidated document was there."""
    (unfinished,) = store.fetch([UNFINISHED])
    if unfinished is not None:
        version, nodes = opened.hierarchy.zarr_format, opened.hierarchy.nodes
        if consolidated or (consolidated is None and FORMATS[version].consolidated_by_default):
            store.put(refresh_consolidated(store, version, nodes, {}).items())
        store.delete(UNFINISHED)


def plan_creation(
    request: Request, store: Store, layout: Layout, consolidated: bool | None
) -> WritePlan:
    """Give a new store, in place of whatever is there."""
    tree = Tree(layout)
    for path, dataset in request.datasets.items():
        refuse_reading(dataset.variables, store)
        tree.add_dataset(
            path,
            dataset,
            request.encoding[path],
            request.unlimited[path],
            request.growing[path],
        )
    return creation_of(tree, store, consolidated)


def creation_of(tree: Tree, store: Store, consolidated: bool | None) -> WritePlan:
    """Return the plan of a new store that holds a tree, in place of whatever is there."""
    hierarchy, zarr = tree.hierarchy(), tree.layout.zarr
    if consolidated is None:
        consolidated = zarr.consolidated_by_default
    check_names(store, zarr.version, hierarchy.nodes)
    documents = rendered(hierarchy, consolidated=consolidated)
    tree.report_changes()
    return WritePlan(zarr.version, tree.jobs(hierarchy), documents, new=True)


def _resolved_mode(mode: WriteMode | None, append_dim: Any, region: Any) -> WriteMode:
    check_choice("mode", mode, (None, "w", "w-", "a", "a-", "r+"))
    if append_dim is not None:
        if mode not in (None, "a", "a-"):
            raise ValueError(f"cannot set append_dim unless mode='a' or mode='a-'; found {mode!r}")
        return mode or "a"
    if region is not None:
        if mode in ("w", "w-"):
            raise ValueError("cannot set region unless mode='a', mode='a-', mode='r+' or mode=None")
        return mode or "r+"
    return mode or "w-"


def layout_of(location: Location, zarr_format: int | str, dialect: str) -> Layout:
    """Give what to write, by what the URL and the caller say; defaults say nothing."""
    kind, said = location.format, location.zarr_format
    if kind and dialect != "nczarr" and (kind == "zarr") != (dialect == "zarr"):
        raise _contradiction(kind, f"dialect={dialect!r}")
    if said and str(zarr_format) not in (said, DEFAULT_FORMAT.version):
        raise _contradiction(f"v{said}", f"zarr_format={zarr_format!r}")
    zarr = find_format(said or zarr_format)
    return Layout(
        zarr=zarr,
        dialect="zarr" if kind == "zarr" or not zarr.has_groups else dialect,
        array_dimensions=location.xarray is not False,
    )


def _contradiction(said: str, argument: str) -> ConflictError:
    problem = f"the fragment of the URL says {said}, the argument {argument}"
    return ConflictError(problem, remedy="Leave out one of them")
