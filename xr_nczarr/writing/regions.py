"""Find the region of stored arrays to which a dataset is written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from xarray import Dataset, Variable

from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.errors import ConflictError
from xr_nczarr.model import ArrayNode
from xr_nczarr.netcdf import Variable as NetcdfVariable
from xr_nczarr.storage import Store
from xr_nczarr.writing.chunk_writes import Region


def check_shared_objects(node: ArrayNode, region: Region, store: Store) -> None:
    """Raise ConflictError if a region only partially covers a chunk or shard of a remote store."""
    if not store.remote:
        return
    for axis, (piece, cell, size) in enumerate(
        zip(region, node.object_shape, node.shape, strict=True)
    ):
        if piece.start % cell or (piece.stop % cell and piece.stop != size):
            raise ConflictError(
                f"the region from {piece.start} to {piece.stop} along dimension {axis} partially "
                f"covers stored chunks of length {cell}; this store has no locks, so concurrent "
                "writes to the same chunk could overwrite each other",
                remedy=f"Begin and end regions at multiples of {cell}. If no other process "
                "writes to the store, pass safe_chunks=False",
                store=store.name,
                variable=node.path,
            )


def extends_array(node: ArrayNode, region: Region, *, allowed: bool) -> bool:
    """Return whether a region extends beyond the end of an array.

    This happens if values are appended, or if the array is shorter than an unlimited dimension.

    Raises
    ------
    ConflictError
        If the region extends beyond the end, although this is not `allowed`.
    """
    beyond = any(piece.stop > size for piece, size in zip(region, node.shape, strict=False))
    if beyond and not allowed:
        raise ConflictError(
            f"the new values extend beyond the end of the array, which has shape {node.shape}",
            remedy="Write the whole variable first with mode='a'",
        )
    return beyond


def check_beyond_end(target: NetcdfVariable, store: Store) -> None:
    """Check that no values are stored beyond the end of an array that an append would extend.

    If an array is shorter than an unlimited dimension, the elements between its end and the end of
    the dimension are read as fill values. After an append, they are part of the array.

    Raises
    ------
    ConflictError
        If the stored chunks contain other values there.
    """
    assert target.node is not None
    node = replace(target.readable_node, stored_shape=())
    array, whole = ChunkedArray(node, store), [slice(0, size) for size in node.shape]
    for axis, first in enumerate(target.node.shape):
        step, size = node.object_shape[axis], node.shape[axis]
        for start in range(first, size, step):
            slab = [*whole[:axis], slice(start, min(start + step, size)), *whole[axis + 1 :]]
            values = array.read(slab)
            fill = np.full_like(values, node.fill_value)
            if not np.array_equal(values, fill, equal_nan=values.dtype.kind in "fcmM"):
                raise ConflictError(
                    f"chunks contain values beyond the end of the array, which has shape "
                    f"{target.node.shape}; an append would make these values part of the array",
                    remedy="Copy the store with xr_nczarr.copy (nczarr copy), and append to the "
                    "copy",
                    store=store.name,
                )


def resolve_region(
    dataset: Dataset, region: Any, stored: Mapping[str, Variable], append_dim: str | None
) -> dict[str, slice]:
    """Return the slice to write along each dimension of `region`.

    For ``"auto"``, the slice is found by comparing the coordinates of the dataset and the store.

    Parameters
    ----------
    stored
        The decoded variables of the store, by name.

    Raises
    ------
    TypeError, ConflictError, KeyError
        If `region` is not valid for this dataset and store. The rules are those of `to_zarr`.
    """
    if region == "auto":
        region = dict.fromkeys(dataset.dims, "auto")
    if not isinstance(region, Mapping):
        raise TypeError(f"``region`` must be a dict, got {type(region)}")
    slices = {
        str(dim): _position(dataset, str(dim), stored) if piece == "auto" else piece
        for dim, piece in region.items()
    }
    for dim, piece in slices.items():
        if dim not in dataset.dims:
            raise ConflictError(
                f"all keys in ``region`` are not in Dataset dimensions, got {list(region)} and "
                f"{list(dataset.dims)}"
            )
        if not isinstance(piece, slice):
            raise TypeError(f"all values in ``region`` must be slice objects, got {piece!r}")
        if piece.step not in (1, None):
            raise ConflictError(f"step on all slices in ``region`` must be 1 or None, got {piece}")
    dims = set(slices)
    unrelated = [name for name, v in dataset.variables.items() if dims.isdisjoint(v.dims)]
    if slices and unrelated:
        raise ConflictError(
            "when setting `region` explicitly, all variables in the dataset to write must have at "
            f"least one dimension in common with the region's dimensions {list(slices)}",
            remedy=f"Drop the other variables first: .drop_vars({unrelated!r})",
        )
    if append_dim in slices:
        raise ConflictError(
            f"cannot list the same dimension in both ``append_dim`` and ``region``: {append_dim}"
        )
    return slices


def _position(dataset: Dataset, dim: str, stored: Mapping[str, Variable]) -> slice:
    if dim not in dataset.variables or dim not in stored:
        return slice(0, dataset.sizes[dim])
    index = stored[dim].to_index_variable().to_index()
    if not index.is_unique:
        repeated = index[index.duplicated()][0]
        raise ConflictError(
            f"coordinate {dim} contains the value {repeated} more than once, so region='auto' "
            "cannot determine positions",
            remedy="Pass slices of positions in region",
        )
    positions = index.get_indexer(dataset[dim].values)
    if (positions == -1).any():
        missing = dataset[dim].values[positions == -1][0]
        raise KeyError(
            f"coordinate {dim} has values that are not in the store, such as {missing!r}"
        )
    if (np.diff(positions) != 1).any():
        raise ConflictError(
            f"the values of coordinate {dim} do not match consecutive values in the store, or are "
            "in a different order"
        )
    return slice(int(positions[0]), int(positions[-1]) + 1)


def slices_to_write(
    name: str,
    new: Variable,
    stored: Variable,
    region: Mapping[str, slice],
    append_dim: str | None,
) -> dict[str, slice]:
    """Return, for each dimension, the slice of the stored array to write.

    Slices count elements, not chunks.

    Raises
    ------
    ConflictError
        If the sizes of the new variable differ from those of the slices.
    """
    pieces = {}
    for dim, size in zip(map(str, stored.dims), stored.shape, strict=True):
        start, stop, _ = region.get(dim, slice(None)).indices(size)
        pieces[dim] = slice(start, stop)
        if dim == append_dim:
            pieces[dim] = slice(size, size + new.sizes[dim])
    sizes = {dim: piece.stop - piece.start for dim, piece in pieces.items()}
    new_sizes = dict(new.sizes)
    if sizes != new_sizes:
        # The message begins like xarray's message for Zarr, and ends like its message for netCDF.
        raise ConflictError(
            f"variable {name!r} already exists with different dimension sizes: "
            f"{sizes} != {new_sizes}. Unable to update size for existing dimension",
            remedy="Match the stored sizes, or pass append_dim for the dimension to extend, or "
            "region for the part to overwrite",
        )
    return pieces
