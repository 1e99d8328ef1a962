"""Find the regions to which new values are written, and check that the values fit there."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from xarray import Dataset, Variable

from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.encoding.strings import as_bytes
from xr_nczarr.encoding.time_units import equal, is_time
from xr_nczarr.encoding.xarray_encoder import cf_encoded
from xr_nczarr.errors import ConflictError
from xr_nczarr.model import ArrayNode
from xr_nczarr.netcdf import Variable as NetcdfVariable
from xr_nczarr.storage import Store
from xr_nczarr.writing.chunk_writes import Region

_TIME_KEYS = ("units", "calendar")
_COMPARED_BYTES = 4 << 20
_MAX_COMPARED_OBJECTS = 8


def resolve_region(
    dataset: Dataset,
    region: Any,
    stored: Mapping[str, Variable],
    append_dim: str | None,
    *,
    coordinates: Mapping[str, Variable],
    stored_coordinates: Mapping[str, Variable],
) -> dict[str, slice]:
    """Return the slice to write along each dimension of `region`.

    For ``"auto"``, the slice is found by comparing the new coordinate with the stored one. If one
    of them is missing, the dataset must cover the whole dimension.

    Parameters
    ----------
    stored
        The decoded variables of the stored group, by name.
    coordinates, stored_coordinates
        The dimension coordinates of the dataset and of the stored group, by name, including those
        that are inherited from parent groups. They are used only for ``"auto"``.

    Raises
    ------
    TypeError
        If `region` is not a mapping or ``"auto"``, or if one of its values is not a slice or
        ``"auto"``.
    KeyError
        If a coordinate contains values that are not in the stored coordinate.
    ConflictError
        If `region` violates another rule of `xarray.Dataset.to_zarr`. For example, each variable
        must have at least one of the dimensions in `region`.
    """
    if region == "auto":
        region = dict.fromkeys(dataset.dims, "auto")
    if not isinstance(region, Mapping):
        raise TypeError(f"``region`` must be a dict, got {type(region)}")
    if not region.keys() <= set(dataset.dims):
        raise ConflictError(
            f"all keys in ``region`` are not in Dataset dimensions, got {list(region)} and "
            f"{list(dataset.dims)}"
        )
    slices = {}
    for dim, piece in region.items():
        if piece == "auto":
            size = dataset.sizes[dim]
            length = next((v.sizes[dim] for v in stored.values() if dim in v.dims), size)
            new, old = coordinates.get(dim), stored_coordinates.get(dim)
            piece = _position(str(dim), size, length, new, old)
        slices[str(dim)] = _checked_slice(piece)
    if append_dim in slices:
        raise ConflictError(
            f"cannot list the same dimension in both ``append_dim`` and ``region``: {append_dim}"
        )
    if slices and append_dim is not None:
        # Chunks can contain values beyond the end of an array, for example from a killed append.
        # If an append did not overwrite all of them, readers would see the rest.
        raise ConflictError(
            f"append_dim={append_dim!r} cannot be combined with region, because an append must "
            "write every new element",
            remedy="Extend the dataset to the full size of the other dimensions, for example with "
            "reindex, and leave out region",
        )
    dims = set(slices)
    unrelated = [name for name, v in dataset.variables.items() if dims.isdisjoint(v.dims)]
    if slices and unrelated:
        raise ConflictError(
            "when setting `region` explicitly, all variables in the dataset to write must have at "
            f"least one dimension in common with the region's dimensions {list(slices)}",
            remedy=f"Drop the other variables first: .drop_vars({unrelated!r})",
        )
    return slices


def _checked_slice(piece: Any) -> slice:
    """Return a value of `region` unchanged, or raise an error if it is not a valid slice."""
    if not isinstance(piece, slice):
        raise TypeError(f"all values in ``region`` must be slice objects, got {piece!r}")
    if piece.step not in (1, None):
        raise ConflictError(f"step on all slices in ``region`` must be 1 or None, got {piece}")
    return piece


def _position(
    dim: str, size: int, length: int, new: Variable | None, stored: Variable | None
) -> slice:
    """Return the position of the new coordinate values in the stored coordinate.

    `size` and `length` are the new and the stored length of the dimension.
    """
    if new is None or stored is None or stored.size != length:
        # A parent group can have another dimension of this name.
        if size not in (0, length):
            raise ConflictError(
                f"region='auto' cannot match {size} new elements along dimension {dim} with the "
                f"{length} stored elements, because the {'dataset' if new is None else 'store'} "
                f"has no coordinate {dim}",
                remedy=f"Pass integer positions instead, such as region={{{dim!r}: slice(0, 10)}}",
            )
        return slice(0, size)
    index = stored.to_index_variable().to_index()
    if not index.is_unique:
        repeated = index[index.duplicated()][0]
        raise ConflictError(
            f"the stored coordinate {dim} contains the value {repeated} more than once, so "
            "region='auto' is ambiguous",
            remedy=f"Pass integer positions instead, such as region={{{dim!r}: slice(0, 10)}}",
        )
    values = new.to_numpy()
    positions = index.get_indexer(values)
    if not positions.size:
        return slice(0, 0)
    if (positions == -1).any():
        missing = values[positions == -1][0]
        raise KeyError(
            f"coordinate {dim} has values that are not in the store, such as {missing!r}"
        )
    if (np.diff(positions) != 1).any():
        raise ConflictError(
            f"the values of coordinate {dim} do not match a contiguous slice of the stored "
            "coordinate",
            remedy="Arrange the data in the stored order, and write each contiguous part "
            "separately",
        )
    return slice(int(positions[0]), int(positions[-1]) + 1)


def slices_to_write(
    name: str,
    new: Variable,
    stored: Variable,
    region: Mapping[str, slice],
    append_dim: str | None,
) -> dict[str, slice]:
    """Return the slice of the stored array to write along each dimension, in elements.

    The order of the dimensions may differ between the new and the stored variable.

    Raises
    ------
    ConflictError
        If the dimension names of the new variable differ from the stored ones, or if its sizes
        differ from the lengths of the slices.
    """
    if set(new.dims) != set(stored.dims):
        raise ConflictError(
            f"variable {name!r} already exists with different dimension names "
            f"{stored.dims} != {new.dims}"
        )
    pieces = {}
    for dim, size in zip(map(str, stored.dims), stored.shape, strict=True):
        start, stop, _ = region.get(dim, slice(None)).indices(size)
        pieces[dim] = slice(start, stop)
        if dim == append_dim:
            pieces[dim] = slice(size, size + new.sizes[dim])
    sizes = {dim: piece.stop - piece.start for dim, piece in pieces.items()}
    new_sizes = dict(new.sizes)
    if sizes != new_sizes:
        # The message combines xarray's messages for Zarr and netCDF, which its tests match.
        changed = next(dim for dim, size in sizes.items() if size != new_sizes[dim])
        raise ConflictError(
            f"variable {name!r} already exists with different dimension sizes: "
            f"{sizes} != {new_sizes}. Unable to update size for existing dimension {changed!r}",
            remedy="Match the stored sizes, pass append_dim= to extend the dimension, or pass "
            "region= to overwrite part of the variable",
        )
    return pieces


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


def check_within_array(node: ArrayNode, region: Region) -> None:
    """Raise ConflictError if a region extends beyond the end of an array.

    This can happen if the array is shorter than its unlimited dimension.
    """
    if any(piece.stop > size for piece, size in zip(region, node.shape, strict=False)):
        raise ConflictError(
            f"the new values extend beyond the end of the array, which has shape {node.shape}",
            remedy="To enlarge the array, first write the whole variable with mode='a', and then "
            "repeat this write",
        )


def check_beyond_end(existing: NetcdfVariable, store: Store) -> None:
    """Raise ConflictError if chunks contain data beyond the end of an array.

    Here, data means values other than the fill value. An append would make them part of the array.
    """
    assert existing.node is not None
    # An array can be shorter than its unlimited dimension. The missing elements are read as fill
    # values, even if chunks contain other values.
    node = replace(existing.readable_node, stored_shape=())
    array, whole = ChunkedArray(node, store), [slice(0, size) for size in node.shape]
    for axis, first in enumerate(existing.node.shape):
        step, size = node.object_shape[axis], node.shape[axis]
        for start in range(first, size, step):
            slab = [*whole[:axis], slice(start, min(start + step, size)), *whole[axis + 1 :]]
            values = array.read(slab)
            fill = np.full_like(values, node.fill_value)
            if not np.array_equal(values, fill, equal_nan=values.dtype.kind in "fcmM"):
                raise ConflictError(
                    f"chunks contain values beyond the end of the array, which has shape "
                    f"{existing.node.shape}; an append would make these values part of the array",
                    remedy="Copy the store with xr_nczarr.copy (nczarr copy), and append to the "
                    "copy",
                    store=store.name,
                )


def check_equal(name: str, new: Variable, stored: Variable) -> None:
    """Raise ConflictError if a variable without the append dimension differs from the stored one.

    Floats are considered equal if they differ only by the rounding error introduced by storing
    them. Missing strings equal empty strings, because they are stored as empty strings.
    """
    rows = new.sizes[new.dims[0]] if new.dims else 1
    step = max(1, _COMPARED_BYTES * rows // max(1, new.nbytes))
    for start in range(0, rows, step):
        piece = (slice(start, start + step),) if new.dims else ()
        _check_piece(name, new[piece], stored[piece], start)


def _check_piece(name: str, new: Variable, stored: Variable, start: int) -> None:
    new_values, stored_values = np.asarray(new.values), np.asarray(stored.values)
    if new_values.dtype.kind == "f" and stored_values.dtype.kind == "f":
        dtype = np.dtype(stored.encoding.get("dtype", stored_values.dtype))
        eps = 2 * np.finfo(dtype).eps if dtype.kind == "f" else 0.0
        half_step = abs(float(stored.encoding.get("scale_factor", 0.0))) * (0.5 + 1e-6)
        same = np.isclose(new_values, stored_values, rtol=eps, atol=half_step, equal_nan=True)
    else:
        same = equal(new_values, stored_values)
        if stored_values.dtype.kind in "OU":  # missing strings are stored as empty ones
            same = same | ((stored_values == "") & new.copy(data=new_values).isnull().to_numpy())
    if not np.all(same):
        place, *rest = (int(index[0]) for index in np.nonzero(~np.atleast_1d(same)))
        raise ConflictError(
            f"variable {name!r} does not have the append dimension, and its values differ from the "
            f"store: {np.atleast_1d(new_values)[place, *rest]} instead of "
            f"{np.atleast_1d(stored_values)[place, *rest]} at {(start + place, *rest)}",
            remedy="Append data with the same coordinates, drop the variable, or pass mode='a-'",
        )


def check_coordinate(
    dim: str, stored: Variable, new_coordinate: Variable, size: int, object_size: int
) -> None:
    """Raise ConflictError if appended coordinate values repeat or precede stored values.

    Only the last few stored objects are compared. The cost of an append therefore does not depend
    on the length of the coordinate.

    The order is checked only if these objects contain at least two values, and the values are
    increasing numbers or times.

    Parameters
    ----------
    size
        Number of stored values.
    object_size
        Number of values in a stored object (chunk or shard).
    """
    values = np.asarray(new_coordinate.values)
    first = max(0, -(-size // object_size) - _MAX_COMPARED_OBJECTS) * object_size
    last = stored[first:size].load()
    old, new = _comparable(last, stored, dim), _comparable(new_coordinate, stored, dim)
    if not old.size or not new.size:
        return
    remedy = "If this is intended, pass allow_duplicates=True"
    repeated = np.isin(new, old)
    if repeated.any():
        value = values[repeated][0]
        raise ConflictError(
            f"coordinate {dim} already contains the value {value}",
            remedy=remedy,
        )
    increasing = old.dtype.kind in "iuf" and bool(np.all(old[1:] > old[:-1]))
    if not increasing or old.size == 1 or not new.min() < old[-1]:
        return
    begin = stored[:1].load()
    if new.max() < _comparable(begin, stored, dim)[0]:
        first, end = np.asarray(begin.values)[0], values[new.argmax()]
        raise ConflictError(
            f"the new data ends at {end}, before the first stored value {first} of coordinate "
            f"{dim}",
            remedy="To keep the order, concatenate the new and the stored data with xarray.concat, "
            "and write a new store. To append out of order, pass allow_duplicates=True",
        )
    final, start = np.asarray(last.values)[-1], values[new.argmin()]
    raise ConflictError(
        f"the new data starts at {start}, before the last stored value {final} of coordinate {dim}",
        remedy=remedy,
    )


def _comparable(variable: Variable, stored: Variable, name: str) -> Any:
    if is_time(variable) and "units" in stored.encoding:
        encoding = {key: stored.encoding[key] for key in _TIME_KEYS if key in stored.encoding}
        # xarray warns about times that are encoded as floats because they are not multiples of the
        # units.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return cf_encoded(Variable(variable.dims, variable.values, {}, encoding), name).values
    values = np.asarray(variable.values)
    if values.dtype.kind in "mM":  # the array stores NumPy times without CF encoding
        return values.astype(stored.dtype).astype("i8")
    return np.array(as_bytes(values)) if values.dtype.kind in "OSU" else values
