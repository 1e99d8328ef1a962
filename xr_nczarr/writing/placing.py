"""Where values go: regions of stored arrays, and dask blocks that share no stored object."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from xarray import Dataset, Variable

from xr_nczarr.errors import ConflictError
from xr_nczarr.model import ArrayNode
from xr_nczarr.storage import Store

Region = tuple[slice, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """Values, NumPy's or dask's, for a region of an array; `appended` if it was made longer.

    `write_empty_chunks` is None where the encoding says nothing of it.
    """

    node: ArrayNode
    region: Region
    data: Any
    appended: bool = False
    write_empty_chunks: bool | None = None

    @property
    def fill_is_spelled(self) -> bool:
        """Whether netcdf-c reads another fill value: it takes Zarr's Base64 for the text itself.

        So chunks of it are stored.
        """
        return self.node.dtype.kind == "S" and bool(self.node.fill_value)

    def aligned(self) -> Job:
        """Give the job with a dask array in blocks of which no two share a stored object.

        Blocks that do already are kept; the others grow by less than one object. Blocks whose sizes
        dask does not know are a ConflictError.
        """
        data, cells = self.data, self.node.object_shape
        if not hasattr(data, "dask") or len(cells) != data.ndim or not data.size:
            return self
        if any(math.isnan(size) for sizes in data.chunks for size in sizes):
            raise ConflictError(
                f"the sizes of the dask blocks are not known; stored chunks are {cells}",
                remedy=f"Call compute_chunk_sizes() first, or rechunk to multiples of {cells}",
                variable=self.node.path,
            )
        wanted = tuple(
            aligned_blocks(sizes, piece.start, cell)
            for sizes, piece, cell in zip(data.chunks, self.region, cells, strict=True)
        )
        return self if wanted == data.chunks else replace(self, data=data.rechunk(wanted))


def aligned_blocks(sizes: Sequence[int], offset: int, cell: int) -> tuple[int, ...]:
    """Give block sizes whose inner boundaries lie on multiples of `cell`, each moved upwards.

    Parameters
    ----------
    sizes
        Of the blocks along one dimension, in elements.
    offset
        Where the first block begins in the stored array.
    cell
        Length of a stored object (chunk or shard) along the dimension.

    Examples
    --------
    >>> aligned_blocks((4, 4), 5, 4)  # 5 … 9 | 9 … 13 becomes 5 … 12 | 12 … 13
    (7, 1)
    >>> aligned_blocks((2, 2, 2, 2), 0, 4)
    (4, 4)
    """
    end = offset + sum(sizes)
    ends = itertools.accumulate(sizes, initial=offset)
    raised = {min(-(-place // cell) * cell, end) for place in itertools.islice(ends, 1, None)}
    bounds = [offset, *sorted(raised)]
    return tuple(after - before for before, after in itertools.pairwise(bounds)) or (0,)


def check_shared_objects(node: ArrayNode, region: Region, store: Store) -> None:
    """Refuse a region that shares a stored object with others where no lock protects it."""
    if not store.remote:
        return
    for axis, (piece, cell, size) in enumerate(
        zip(region, node.object_shape, node.shape, strict=True)
    ):
        if piece.start % cell or (piece.stop % cell and piece.stop != size):
            raise ConflictError(
                f"the region from {piece.start} to {piece.stop} along dimension {axis} covers"
                f" stored chunks of {cell} in part, and this store has no locks: another process"
                " that writes the rest would be lost",
                remedy=f"Begin and end regions at multiples of {cell}, or pass safe_chunks=False"
                " when no other process writes",
                store=store.name,
                variable=node.path,
            )


def resolve_region(
    dataset: Dataset, region: Any, stored: Mapping[str, Variable], append_dim: str | None
) -> dict[str, slice]:
    """Give a slice for each dimension that `region` names, ``"auto"`` found by the coordinates.

    `stored` are the stored variables, decoded. What is no region of this dataset in this store is a
    TypeError, ConflictError or KeyError, as `to_zarr` has it.
    """
    if region == "auto":
        region = dict.fromkeys(dataset.dims, "auto")
    if not isinstance(region, Mapping):
        raise TypeError(f"``region`` must be a dict, got {type(region)}")
    found = {
        str(dim): _position(dataset, str(dim), stored) if piece == "auto" else piece
        for dim, piece in region.items()
    }
    for dim, piece in found.items():
        if dim not in dataset.dims:
            raise ConflictError(
                f"all keys in ``region`` are not in Dataset dimensions, got {list(region)} and "
                f"{list(dataset.dims)}"
            )
        if not isinstance(piece, slice):
            raise TypeError(f"all values in ``region`` must be slice objects, got {piece!r}")
        if piece.step not in (1, None):
            raise ConflictError(f"step on all slices in ``region`` must be 1 or None, got {piece}")
    apart = [name for name, each in dataset.variables.items() if not set(found) & set(each.dims)]
    if found and apart:
        raise ConflictError(
            "when setting `region` explicitly, all variables in the dataset to write must have at "
            f"least one dimension in common with the region's dimensions {list(found)}",
            remedy=f"Drop the others first: .drop_vars({apart!r})",
        )
    if append_dim in found:
        raise ConflictError(
            f"cannot list the same dimension in both ``append_dim`` and ``region``: {append_dim}"
        )
    return found


def _position(dataset: Dataset, dim: str, stored: Mapping[str, Variable]) -> slice:
    if dim not in dataset.variables or dim not in stored:
        return slice(0, dataset.sizes[dim])
    positions = stored[dim].to_index_variable().to_index().get_indexer(dataset[dim].values)
    if (positions == -1).any():
        missing = dataset[dim].values[positions == -1][0]
        raise KeyError(f"Not all values of coordinate '{dim}' are in the store: {missing!r} is not")
    if (np.diff(positions) != 1).any():
        raise ConflictError(
            f"The auto-detected region of coordinate '{dim}' had non-contiguous indices: new data "
            "must be a contiguous part of the store, in its order"
        )
    return slice(int(positions[0]), int(positions[-1]) + 1)
