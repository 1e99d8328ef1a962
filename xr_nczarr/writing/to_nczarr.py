"""Define `to_nczarr`, which writes a Dataset, DataArray or DataTree to a store."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from xarray import DataArray, Dataset, DataTree

from xr_nczarr.dataset import resolve
from xr_nczarr.errors import ErrorContext
from xr_nczarr.storage import Access
from xr_nczarr.writing.builder import plan_creation
from xr_nczarr.writing.lazy_sources import check_sources_outside
from xr_nczarr.writing.modification import plan_modification
from xr_nczarr.writing.transaction import Transaction, is_staged
from xr_nczarr.writing.write_options import (
    UnlimitedDims,
    WriteMode,
    WriteOptions,
    WriteRegion,
    layout_of,
    resolve_mode,
)
from xr_nczarr.writing.write_request import normalize
from xr_nczarr.writing.write_target import check_removable

if TYPE_CHECKING:
    from dask.delayed import Delayed


@overload
def to_nczarr(
    obj: Dataset | DataArray | DataTree,
    target: Any,
    *,
    mode: WriteMode | None = None,
    group: str | None = None,
    encoding: Mapping[str, Any] | None = None,
    unlimited_dims: UnlimitedDims | None = None,
    compute: Literal[False],
    consolidated: bool | None = None,
    append_dim: Hashable | None = None,
    region: WriteRegion | None = None,
    safe_chunks: bool = True,
    zarr_format: int | str = 2,
    dialect: str = "nczarr",
    storage_options: Mapping[str, Any] | None = None,
    progress: bool = False,
    atomic: bool = False,
    allow_duplicates: bool = False,
    overwrite: bool = False,
) -> Delayed: ...


@overload
def to_nczarr(
    obj: Dataset | DataArray | DataTree,
    target: Any,
    *,
    mode: WriteMode | None = None,
    group: str | None = None,
    encoding: Mapping[str, Any] | None = None,
    unlimited_dims: UnlimitedDims | None = None,
    compute: bool = True,
    consolidated: bool | None = None,
    append_dim: Hashable | None = None,
    region: WriteRegion | None = None,
    safe_chunks: bool = True,
    zarr_format: int | str = 2,
    dialect: str = "nczarr",
    storage_options: Mapping[str, Any] | None = None,
    progress: bool = False,
    atomic: bool = False,
    allow_duplicates: bool = False,
    overwrite: bool = False,
) -> Delayed | None: ...


def to_nczarr(
    obj: Dataset | DataArray | DataTree,
    target: Any,
    *,
    mode: WriteMode | None = None,
    group: str | None = None,
    encoding: Mapping[str, Any] | None = None,
    unlimited_dims: UnlimitedDims | None = None,
    compute: bool = True,
    consolidated: bool | None = None,
    append_dim: Hashable | None = None,
    region: WriteRegion | None = None,
    safe_chunks: bool = True,
    zarr_format: int | str = 2,
    dialect: str = "nczarr",
    storage_options: Mapping[str, Any] | None = None,
    progress: bool = False,
    atomic: bool = False,
    allow_duplicates: bool = False,
    overwrite: bool = False,
) -> Delayed | None:
    """Write a Dataset, DataArray or DataTree as NCZarr.

    Parameters
    ----------
    obj
        The object to write. A DataArray becomes a Dataset, as in `DataArray.to_netcdf`.
    target
        A path, an fsspec URL, an NCZarr URL with its fragment, or a mapping.
    mode
        ``"w-"`` creates a new store or group. ``"w"`` replaces an existing store or group. On local
        disks, the replacement is atomic and happens once all data is written. ``"a"`` changes an
        existing store or creates one: it adds new variables, overwrites existing variables, and
        updates attributes. ``"a-"`` is like ``"a"``, but ignores existing variables that lack the
        dimension `append_dim`, instead of checking that they are equal. ``"r+"`` writes values into
        existing variables, without changing metadata. The default is ``"a"`` with `append_dim`,
        ``"r+"`` with `region`, and ``"w-"`` otherwise.
    group
        Path of the group to write into.
    encoding
        Mapping from variable names to encodings. For a DataTree, the keys are the paths of groups,
        and each value is a mapping from variable names to encodings. An encoding can contain the
        keys that `to_netcdf` and `to_zarr` accept. Chunks are stored uncompressed unless the
        encoding requests a codec.
    unlimited_dims
        Names of the unlimited dimensions. For a DataTree, this can also be a mapping from the paths
        of groups to names. If None, the names in ``dataset.encoding["unlimited_dims"]`` are used.
        xarray sets this key when it opens a file.
    compute
        Whether to write the values of the caller's dask arrays immediately. If False, a
        `dask.delayed.Delayed` that writes these values is returned. Metadata and all other values
        are always written immediately.
    consolidated
        Whether to write consolidated metadata. If None, new stores get consolidated metadata only
        in Zarr v2, and any consolidated metadata of an existing store is updated.
    append_dim
        Dimension to append along. All variables with this dimension must be in both the dataset and
        the store. Other variables that are in both must have the same values, unless `mode` is
        ``"a-"``.
    region
        Mapping from dimensions to the slices of existing variables to overwrite. If a slice or the
        whole mapping is ``"auto"``, slices are determined by comparing coordinates. With
        ``"auto"``, a dimension without a coordinate must have the same size in the dataset as in
        the store. A region cannot be combined with `append_dim`.
    safe_chunks
        Whether to merge dask blocks that share a stored chunk, and to reject regions that partially
        cover stored chunks of a remote store. In remote stores, chunks cannot be locked.
    zarr_format
        ``1`` (for a single array), ``2``, ``3`` or ``"3-draft"``. An existing store keeps its
        version.
    dialect
        ``"nczarr"``, ``"zarr"`` (plain Zarr), ``"universal"`` (NCZarr with additional objects for
        netCDF-C up to 4.9.2), or the name of a netCDF-C layout. An existing store keeps its
        dialect.
    storage_options
        The same filesystem options as for opening a store. The ``sync`` option determines when to
        flush to the local disk: once before and once after writing the metadata (``"commit"``, the
        default), after each object (``"all"``), or never (``"none"``).
    progress
        Whether to show a progress bar.
    atomic
        Whether to make a write to an existing store atomic as a whole. This is possible only on
        local disks, and requires ``compute=True``. The write then changes a hard-linked copy of the
        store, which replaces the store at the end.
    allow_duplicates
        Whether the new coordinate values along `append_dim` may repeat, overlap or precede the
        stored ones.
    overwrite
        Whether ``mode="w"`` may replace a target that is not a store. If True, any write also
        ignores the lock that a killed writer left behind in an object store. A write that replaces
        the whole store always ignores such a lock.

    Returns
    -------
    None, or a `dask.delayed.Delayed` if `compute` is False.

    Raises
    ------
    ExistsError
        If the store or group exists and `mode` is ``"w-"``.
    ConflictError
        If the new data or metadata conflicts with the existing store, or if the file system cannot
        distinguish two names. All conflicts are detected before anything is written, except for
        conflicts in the values of dask arrays, which are checked during the write.
    RefusedError
        If lazy values are read from an array that would be overwritten, or if a name is not a valid
        file name (on Windows). Also raised if `mode` is ``"w"``, `overwrite` is False, and the
        target is not a store.
    UnsupportedError
        If the Zarr version or dialect does not support a type, codec or feature.

    Examples
    --------
    >>> import xarray as xr, xr_nczarr
    >>> store = {}
    >>> xr_nczarr.to_nczarr(xr.Dataset({"t": ("x", [1.5, 2.5])}), store)
    >>> xr.open_dataset(store, engine="nczarr").t.values.tolist()
    [1.5, 2.5]
    """
    mode = resolve_mode(mode, append_dim, region)
    resolved = resolve(target, Access(storage_options=storage_options), must_exist=mode == "r+")
    resolved.check_writable()
    store = resolved.store
    options = WriteOptions(
        mode=mode,
        append_dim=None if append_dim is None else str(append_dim),
        region=region,
        allow_duplicates=allow_duplicates,
        compute=compute,
        safe_chunks=safe_chunks,
        progress=progress,
        atomic=atomic,
        overwrite=overwrite,
    )
    with ErrorContext(store=store.name):
        request = normalize(
            obj,
            group=group,
            encoding=encoding,
            unlimited=unlimited_dims,
            layout=layout_of(resolved.location, zarr_format, dialect, consolidated),
            options=options,
        )
        if request.replaces_store:
            check_sources_outside(store, [group.dataset for group in request.groups])
            if not overwrite:
                check_removable(store)
        with Transaction.locked(
            store,
            request.identity,
            locking=mode != "r+" or is_staged(store, atomic),
            force=overwrite or request.replaces_store,
        ) as transaction:
            if mode != "r+" and not request.replaces_store:
                transaction.roll_back(request.layout.consolidated)
            opened = transaction.target.open_for(request)
            if opened is None:
                plan = plan_creation(request, transaction.target)
            else:
                plan = plan_modification(request, opened)
            return transaction.execute(plan, options)
