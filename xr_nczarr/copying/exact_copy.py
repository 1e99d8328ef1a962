"""Copy a store or file, optionally changing its layout, Zarr version, chunks or codecs.

If the source and the target encode an array in the same way, its chunks are copied unchanged.
Otherwise, the chunks are decoded and re-encoded. An interrupted copy can be resumed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from xr_nczarr.codecs import check_known
from xr_nczarr.copying.copied_tree import CopiedTree
from xr_nczarr.copying.netcdf_output import (
    FileLayout,
    inexpressible_sizes,
    remove_rejected_attributes,
    write_file,
)
from xr_nczarr.copying.source import Source, is_netcdf_file, open_source
from xr_nczarr.copying.transfer import copy_chunks
from xr_nczarr.dataset import resolve
from xr_nczarr.encoding.encoding_keys import codec_configurations
from xr_nczarr.errors import (
    ConflictError,
    ExistsError,
    NotFoundError,
    RefusedError,
    StorageError,
    UnsupportedError,
)
from xr_nczarr.formats import find_format
from xr_nczarr.hierarchy import UNFINISHED
from xr_nczarr.model import Limits
from xr_nczarr.netcdf import Layout
from xr_nczarr.netcdf.layouts import DEFAULT_FORMAT
from xr_nczarr.options import Endian, OpenOptions
from xr_nczarr.storage import Access, LocalStore, Location, Store, boot_id, parse_target
from xr_nczarr.storage.url import mask
from xr_nczarr.tools.results import Result, count_text
from xr_nczarr.writing.builder import plan_tree
from xr_nczarr.writing.transaction import Transaction, is_staged
from xr_nczarr.writing.write_options import layout_of
from xr_nczarr.writing.write_plan import WritePlan

_NETCDF_ENDINGS = (".nc", ".nc4", ".cdf", ".netcdf")
_OVERWRITE = "Choose another target, or pass overwrite=True"
_PART = ".unfinished"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CopyResult(Result):
    """The result of `copy`. Printing it shows a summary.

    Attributes
    ----------
    arrays
        Number of arrays in the target.
    unchanged
        Paths of the arrays whose chunks were copied without re-encoding.
    objects
        Number of chunks (or shards) that this run copied without re-encoding.
    resumed
        Whether this run completed an interrupted copy.
    restart_reason
        The reason why an interrupted copy was restarted instead of resumed, or an empty string.
    skipped
        Descriptions of the items that `skip_unsupported` left out.
    """

    store: str
    arrays: int
    unchanged: list[str] = field(default_factory=list)
    objects: int = 0
    resumed: bool = False
    restart_reason: str = ""
    skipped: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        how = ""
        if self.unchanged:
            how = f", {len(self.unchanged)} without re-encoding "
            how += f"({count_text(self.objects, 'chunk')})"
        history = ", completing an interrupted copy" if self.resumed else ""
        if self.restart_reason:
            history += f"; an interrupted copy was restarted, because {self.restart_reason}"
        lines = [f"{self.store}: {count_text(self.arrays, 'array')} copied{how}{history}"]
        return "\n".join([*lines, *(f"  left out: {sentence}" for sentence in self.skipped)])


def copy(
    source: Any,
    target: Any,
    *,
    group: str | None = None,
    variables: Collection[str] | None = None,
    select: Mapping[str, Any] | None = None,
    engine: str | None = None,
    zarr_format: int | str = 2,
    dialect: str = "nczarr",
    chunks: Mapping[str, int] | None = None,
    codecs: Sequence[Any] | None = None,
    consolidated: bool | None = None,
    skip_unsupported: bool = False,
    assume_endian: Endian = None,
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    limits: Limits | Mapping[str, int] | None = None,
    progress: bool = False,
    overwrite: bool = False,
) -> CopyResult:
    """Copy a store, or a file that xarray can open, into a new store or netCDF-4 file.

    A copy of a store or a netCDF file has the same groups, dimensions, variables and attributes, in
    the same order and with the same types. It lacks only what the target cannot represent. For
    example, plain Zarr has dimension names for each array, but no shared dimensions.

    Until the copy is complete, readers do not recognize the target as a store. To resume an
    interrupted copy, run it again. The new run starts over in these cases:

    - The source or the arguments have changed.
    - Changes in the source cannot be detected. They can be detected in local files and object
      stores, but not over plain HTTP or in reference sets.
    - The target is a zip file or a netCDF file.
    - The copy replaces a store on a local disk.
    - The machine has been rebooted. A reboot can lose chunks that have not reached the disk.

    Parameters
    ----------
    source
        A path, URL, mapping or reference set that ``engine="nczarr"`` opens, or a file that another
        engine opens.
    target
        A path, URL or mapping. If a path ends in ``.nc``, ``.nc4``, ``.cdf`` or ``.netcdf``, the
        copy is a netCDF-4 file, which requires the netCDF4 package. To create a store with one of
        these endings instead, append the fragment ``#mode=nczarr,file``.
    group
        The group that becomes the root of the target. If None, the whole source is copied.
    variables
        Names or paths of the variables to copy; a path begins with a slash. The coordinate
        variables of their dimensions are copied too, and so are the variables listed in their
        ``coordinates`` attributes. If None, all variables are copied.
    select
        Mapping from dimension names to positions or labels. Positions are integers or slices of
        integers. Labels are floats, strings, dates, or slices of labels. A slice of labels includes
        both ends. An integer or a single label selects one element, but does not drop the
        dimension.
    engine
        The xarray engine that opens `source`. If None, netCDF files are read with netCDF-C, and
        anything else with ``"nczarr"``. If netCDF4 is not installed, xarray chooses the engine for
        netCDF files. Parts of a file that the engine does not return are not copied.
    zarr_format, dialect, consolidated, progress
        See `to_nczarr`. The first three do not apply to netCDF files.
    chunks
        Mapping from dimension names to chunk lengths in elements. Other dimensions keep the chunk
        lengths of the source.
    codecs
        Codecs in encoding order, for all arrays: codec objects, names or configurations, as in
        ``encoding={"codecs": …}``. If None, the codecs of the source are kept. An empty sequence
        means no codecs.
    skip_unsupported
        Whether to leave out variables and attributes whose types the target does not support, such
        as compound types, instead of raising an error.
    assume_endian
        Byte order of the chunks of a Zarr store, ``"little"`` or ``"big"``, which overrides the
        store's metadata. Other sources are not affected.
    storage_options, target_options
        Filesystem options for `source` and for `target`.
    limits
        Limits for reading `source`: a `Limits`, or a mapping from limit names to values.
    overwrite
        Whether to replace an existing store or netCDF file at the target. On local disks, the
        replacement is atomic and happens once the copy is complete. Elsewhere, the objects of the
        old store are removed first.

    Raises
    ------
    ExistsError
        If the target exists and is not an interrupted copy. With `overwrite`, a store can replace
        only a store, and a netCDF file can replace only a netCDF file.
    NotFoundError
        If the source, the engine, or a requested group, variable, dimension or label does not
        exist. The error is also raised if the parent folder of a new netCDF file does not exist.
    RefusedError
        If the target is the source or is inside the source.
    ConflictError
        If a chunk length is invalid, or if another write is changing the target in an object store.
        The error is also raised if the source changes during the copy. In this case, the copy is
        not completed, and the next run starts over.
    UnsupportedError
        If the target does not support a type. Nothing is written in this case.
    StorageError
        If netCDF-C cannot read the source file or the values of a variable, or cannot write the
        target file.
    NczarrError
        If a variable cannot be read.

    Examples
    --------
    >>> import numpy as np, xarray as xr, xr_nczarr
    >>> one, other = {}, {}
    >>> xr_nczarr.to_nczarr(xr.Dataset({"t": ("x", np.arange(4.0))}), one)
    >>> print(xr_nczarr.copy(one, other, zarr_format=3))
    mapping: 1 array copied, 1 without re-encoding (1 chunk)
    """
    location = parse_target(target)
    file = _file_path(location)
    if file is not None and (
        find_format(zarr_format) is not DEFAULT_FORMAT
        or dialect != "nczarr"
        or consolidated is not None
    ):
        raise UnsupportedError(
            "zarr_format, dialect and consolidated do not apply to a netCDF file",
            remedy="Leave out these options, or write to a store, such as out.nczarr",
            store=file,
        )
    subset: dict[str, Any] = {"group": group, "variables": variables, "select": select}
    if codecs is not None:
        codecs = codec_configurations(codecs)
        for codec in codecs:  # otherwise, `skip_unsupported` would leave out all variables
            check_known(codec["id"])
    options = OpenOptions(
        storage_options=storage_options, limits=limits, assume_endian=assume_endian
    )
    opened = open_source(source, engine, options, **subset, netcdf_types=file is not None)
    with opened as origin:
        store: Store
        layout: Layout
        if file is not None:
            _check_replaceable(file, overwrite=overwrite)
            store, layout = LocalStore(file), FileLayout()
        else:
            sync = "commit" if boot_id() else "all"
            access = Access(storage_options={"sync": sync, **(target_options or {})})
            resolved = resolve(location, access, must_exist=False)
            resolved.check_writable()
            store = resolved.store
            layout = layout_of(resolved.location, zarr_format, dialect, consolidated)
        if origin.store.is_same(store) or store.is_within(origin.store):
            problem = "the target is inside the source"
            if origin.store.is_same(store):
                problem = "the source and the target are the same store"
            raise RefusedError(problem, remedy="Choose another target", store=store.name)
        tree = CopiedTree(
            layout, chunks=chunks or {}, codecs=codecs, skip_unsupported=skip_unsupported
        )
        tree.add_source(origin)
        tree.check_names()
        if file is not None:
            return _copy_to_file(origin, tree, file, progress=progress)
        # `owner` identifies this copy in the writer lock. It does not depend on the source's state,
        # so that a killed copy recognizes its lock when rerun, even if the source has changed.
        name = os.fspath(source) if isinstance(source, str | os.PathLike) else type(source)
        arguments = (name, subset, zarr_format, dialect, chunks, codecs, consolidated)
        owner = hashlib.sha256(str((*arguments, assume_endian)).encode()).hexdigest
        return _copy_to_store(origin, tree, store, owner, overwrite=overwrite, progress=progress)


def _file_path(location: Location) -> str | None:
    """Return the path of the netCDF file to write, or None if the target is a store."""
    if not isinstance(location.target, str | os.PathLike) or location.is_reference_set:
        return None
    is_file = location.url.rstrip("/").lower().endswith(_NETCDF_ENDINGS)
    if location.format is not None or location.medium is not None or not is_file:
        return None
    if location.path is None:
        raise UnsupportedError(
            "netCDF files can be written only to a local disk",
            remedy="Pass a local path as the target, or write to a store, such as out.nczarr",
            store=mask(location.url),
        )
    return location.path


def _check_replaceable(path: str, *, overwrite: bool) -> None:
    """Raise an error if a netCDF file cannot be created at `path`."""
    if os.path.lexists(path) and not is_netcdf_file(path):
        remedy = "Choose another target, or remove the existing one first"
        raise ExistsError("the target exists, but is not a netCDF file", remedy=remedy, store=path)
    if os.path.lexists(path) and not overwrite:
        raise ExistsError("the file already exists", remedy=_OVERWRITE, store=path)
    if not os.path.isdir(os.path.dirname(path)):
        problem = "the parent folder of the target does not exist"
        raise NotFoundError(problem, remedy="Create the folder first", store=path)


def _copy_to_store(
    origin: Source,
    tree: CopiedTree,
    store: Store,
    owner: Callable[[], str],
    *,
    overwrite: bool,
    progress: bool,
) -> CopyResult:
    plan = plan_tree(tree, store)
    before = origin.state()
    mark = None if before is None else _resume_marker(before, plan)
    with Transaction.locked(store, owner, locking="always", force=overwrite) as transaction:
        exists, resumed, restart_reason = _inspect_target(transaction, mark, overwrite)
        plan.mark, plan.resumed = mark or b"{}", resumed
        resumable = before is not None and not is_staged(store, exists)

        def copy_values(work: Store) -> tuple[list[str], int]:
            copied = copy_chunks(plan.writes, tree.arrays, work, resumed, progress)
            _check_unchanged(origin, before, store.name)
            return copied

        with _noting_how_to_continue(resumable=resumable):
            unchanged, objects = transaction.commit(plan, copy_values, staged=exists)
    return CopyResult(
        store=store.name,
        arrays=len(plan.writes),
        unchanged=unchanged,
        objects=objects,
        resumed=resumed,
        restart_reason=restart_reason,
        skipped=tree.skipped,
    )


def _copy_to_file(origin: Source, tree: CopiedTree, path: str, *, progress: bool) -> CopyResult:
    attributes = remove_rejected_attributes(tree.root)
    tree.leave_out([*attributes, *inexpressible_sizes(tree.root)])
    before = origin.state()
    part = f"{path}{_PART}"
    try:
        with _noting_how_to_continue(resumable=False):
            write_file(tree, part, progress=progress)
        _check_unchanged(origin, before, path)
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):  # a read-only file system raises OSError even for a missing file
            os.remove(part)
        raise
    return CopyResult(store=path, arrays=len(tree.written), skipped=tree.skipped)


@contextmanager
def _noting_how_to_continue(*, resumable: bool) -> Iterator[None]:
    try:
        yield
    except (KeyboardInterrupt, StorageError) as error:
        how = "to complete it" if resumable else "to start over"
        error.add_note(f"The copy is incomplete: run it again {how}")
        raise


def _check_unchanged(origin: Source, before: str | None, target: str) -> None:
    if origin.state() != before:
        raise ConflictError(
            "the source was changed while it was being copied",
            remedy="Run the copy again while no other program is writing to the source",
            store=target,
        )


def _resume_marker(state: str, plan: WritePlan) -> bytes:
    """Return a digest of everything that must not change before an interrupted copy is resumed."""
    # The boot ID is included because a reboot can lose chunks that were not flushed to disk.
    digest = hashlib.sha256(f"{state}{boot_id()}".encode())
    for key, document in plan.documents.items():
        digest.update(key.encode() + b"\0" + document + b"\0")
    return digest.hexdigest().encode()


def _inspect_target(
    transaction: Transaction, mark: bytes | None, overwrite: bool
) -> tuple[bool, bool, str]:
    """Determine what the target contains, and whether to resume an interrupted copy.

    Returns
    -------
    is_store
        Whether the target is a store. An interrupted copy that can be resumed is not a store.
    resumes
        Whether to resume an interrupted copy.
    restart_reason
        Why an interrupted copy cannot be resumed. Otherwise empty.
    """
    store, unfinished = transaction.store, None
    if not store.single_file and transaction.target.may_hold(UNFINISHED):
        (unfinished,) = store.fetch([UNFINISHED])
        if unfinished is not None and mark is not None and bytes(unfinished) == mark:
            return False, True, ""
    exists = transaction.target.open("a") is not None
    if exists and not overwrite:
        raise ExistsError("the store already exists", remedy=_OVERWRITE, store=store.name)
    transaction.target.check_not_foreign()
    if unfinished is None:
        return exists, False, ""
    if mark is None:
        return exists, False, "it is unknown whether the source has changed"
    return exists, False, "the source or the arguments have changed, or the machine was rebooted"
