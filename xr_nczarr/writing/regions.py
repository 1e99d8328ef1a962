"""Find the region of a stored array to write, and compare new values with stored coordinates."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from xarray import Dataset, Variable

from xr_nczarr.encoding.cf_encoding import cf_encoded, check_kind, equal, is_time
from xr_nczarr.encoding.strings import as_bytes
from xr_nczarr.errors import ConflictError
from xr_nczarr.model import ArrayNode
from xr_nczarr.storage import Store
from xr_nczarr.writing.chunk_writes import Region

_TIME_KEYS = ("units", "calendar")
_COMPARED_BYTES = 4 << 20
_MAX_COMPARED_OBJECTS = 8


def check_shared_objects(node: ArrayNode, region: Region, store: Store) -> None:
    """Raise ConflictError if a region covers a chunk or shard of a remote store only in part."""
    if not store.remote:
        return
    for axis, (piece, cell, size) in enumerate(
        zip(region, node.object_shape, node.shape, strict=True)
    ):
        if piece.start % cell or (piece.stop % cell and piece.stop != size):
            raise ConflictError(
                f"the region from {piece.start} to {piece.stop} along dimension {axis} covers "
                f"stored chunks of length {cell} only in part; this store has no locks, so "
                "concurrent writes to the same chunks would be lost",
                remedy=f"Begin and end regions at multiples of {cell}. If no other process writes, "
                "pass safe_chunks=False",
                store=store.name,
                variable=node.path,
            )


def resolve_region(
    dataset: Dataset, region: Any, stored: Mapping[str, Variable], append_dim: str | None
) -> dict[str, slice]:
    """Return the slice to write along each dimension of `region`.

    If a slice is ``"auto"``, compare the coordinates of the dataset with those of the store to find
    it.

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
    apart = [name for name, v in dataset.variables.items() if dims.isdisjoint(v.dims)]
    if slices and apart:
        raise ConflictError(
            "when setting `region` explicitly, all variables in the dataset to write must have at "
            f"least one dimension in common with the region's dimensions {list(slices)}",
            remedy=f"Drop the other variables first: .drop_vars({apart!r})",
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
            f"coordinate {dim} contains the value {repeated} more than once, so that region='auto' "
            "cannot compare coordinates",
            remedy="Pass slices of positions as region",
        )
    positions = index.get_indexer(dataset[dim].values)
    if (positions == -1).any():
        missing = dataset[dim].values[positions == -1][0]
        raise KeyError(f"Not all values of coordinate '{dim}' are in the store: {missing!r} is not")
    if (np.diff(positions) != 1).any():
        raise ConflictError(
            f"The auto-detected region of coordinate '{dim}' had non-contiguous indices: the new "
            "data must match a contiguous part of the store, in the same order"
        )
    return slice(int(positions[0]), int(positions[-1]) + 1)


def write_region(
    name: str,
    new: Variable,
    stored: Variable,
    region: Mapping[str, slice],
    append_dim: str | None,
) -> dict[str, slice]:
    """Return the slice of a stored array to write along each dimension, in elements."""
    pieces = {}
    for dim, size in zip(map(str, stored.dims), stored.shape, strict=True):
        start, stop, _ = region.get(dim, slice(None)).indices(size)
        pieces[dim] = slice(start, stop)
        if dim == append_dim:
            pieces[dim] = slice(size, size + new.sizes[dim])
    sizes = {dim: piece.stop - piece.start for dim, piece in pieces.items()}
    new_sizes = dict(new.sizes)
    if sizes != new_sizes:
        # xarray has the first words for Zarr, and those behind the sizes for netCDF.
        raise ConflictError(
            f"variable {name!r} already exists with different dimension sizes: "
            f"{sizes} != {new_sizes}. Unable to update size for existing dimension",
            remedy="Match the stored sizes, or pass append_dim for the dimension to extend, or "
            "region for the part to overwrite",
        )
    return pieces


def check_equal(name: str, new: Variable, stored: Variable) -> None:
    """Raise ConflictError if a variable that is not appended differs from the stored variable."""
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
        step = abs(float(stored.encoding.get("scale_factor", 0.0))) * (0.5 + 1e-6)
        same = np.isclose(new_values, stored_values, rtol=eps, atol=step, equal_nan=True)
    else:
        same = equal(new_values, stored_values)
        if stored_values.dtype.kind in "OU":  # missing text is stored as empty
            same = same | ((stored_values == "") & new.copy(data=new_values).isnull().to_numpy())
    if not np.all(same):
        place, *rest = (int(index[0]) for index in np.nonzero(~np.atleast_1d(same)))
        raise ConflictError(
            f"variable {name!r} does not have the append dimension, and differs from the store: "
            f"{np.atleast_1d(new_values)[place, *rest]} instead of "
            f"{np.atleast_1d(stored_values)[place, *rest]} "
            f"at {(start + place, *rest)}",
            remedy="Append data with the same coordinates, drop the variable, or pass mode='a-'",
        )


def check_coordinate(
    dim: str, stored: Variable, new_coordinate: Variable, size: int, object_size: int
) -> None:
    """Raise ConflictError if appended coordinate values repeat or overlap stored values.

    If the stored values increase, each new value must be greater than the last stored value. Only
    the last few stored objects are read, so the cost of an append does not depend on the length of
    the store.

    Parameters
    ----------
    size
        Number of stored values.
    object_size
        Number of values in a stored object (chunk or shard).
    """
    check_kind(new_coordinate, stored, dim)
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
            f"the new data end at {end}, before the first stored value {first} of coordinate {dim}",
            remedy="To keep the order, combine both with xarray.concat and write a new store. To "
            "append out of order, pass allow_duplicates=True",
        )
    final, start = np.asarray(last.values)[-1], values[new.argmin()]
    raise ConflictError(
        f"the new data start at {start}, before the last stored value {final} of coordinate {dim}",
        remedy=remedy,
    )


def _comparable(variable: Variable, stored: Variable, name: str) -> Any:
    if is_time(variable):
        encoding = {key: stored.encoding[key] for key in _TIME_KEYS if key in stored.encoding}
        # Times that are not multiples of the units become floats.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return cf_encoded(Variable(variable.dims, variable.values, {}, encoding), name).values
    values = np.asarray(variable.values)
    return np.array(as_bytes(values)) if values.dtype.kind in "OSU" else values
