"""Choose the blocks in which lazily opened variables are read while they are written.

Only the blocks that are about to be stored are in memory. Each source chunk is decoded once.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from xarray import Dataset, Variable
from xarray.coding.strings import is_unicode_dtype

from xr_nczarr.backend.lazy import LazyArray, unwrapped
from xr_nczarr.chunks.selection import Selection
from xr_nczarr.encoding.blockwise import OPENED
from xr_nczarr.errors import ErrorContext, UnsupportedError

_MAX_WHOLE_BYTES = 1 << 20
_BLOCK_BYTES = 4 << 20
_MAX_CHUNKS = 100_000_000  # along one dimension
_NOMINAL_BYTES = 64  # assumed size of a Python object
_TEXT_KINDS = "OSUT"  # kinds of dtypes

_Lengths = npt.NDArray[np.int64]


def in_blocks(dataset: Dataset, encoding: Mapping[str, Mapping[str, Any]]) -> Dataset:
    """Return a dataset with dask arrays in place of large, lazily opened variables.

    A write then reads these variables block by block. Some variables are left unchanged:

    - variables of at most 1 MiB,
    - times whose encoded units might differ from block to block,
    - variables of Python objects other than strings and times.

    0-d dask arrays of strings or Python objects are loaded.
    """
    blocks = {
        name: _in_blocks(variable, str(name)).data
        for name, variable in dataset.variables.items()
        if not variable._in_memory
        and not hasattr(variable._data, "dask")
        and variable.size * _itemsize(variable) > _MAX_WHOLE_BYTES
        and (
            variable.dtype.kind in "biufcS"
            or is_unicode_dtype(variable.dtype)
            or _has_uniform_units(variable, encoding.get(str(name), variable.encoding))
        )
    }
    # dask would convert the only block to a scalar, and bytes would lose their trailing NULs.
    blocks |= {
        name: np.array(variable.to_numpy(), variable.dtype)
        for name, variable in dataset.variables.items()
        if not variable.dims
        and variable.dtype.kind in _TEXT_KINDS
        and hasattr(variable._data, "dask")
    }
    if blocks:
        dataset = dataset.copy()
        for name, data in blocks.items():  # assign() would create indexes for these variables
            dataset.variables[name].data = data
    return dataset


def in_chunks(values: Any, chunks: Sequence[Any], name: str) -> Any:
    """Convert a lazily indexed array to a dask array.

    A 0-d array of strings or Python objects is converted to a NumPy array instead.

    Parameters
    ----------
    chunks
        For each dimension, one length for all stored chunks, or a sequence of chunk lengths.
    name
        Name of the variable, which becomes part of the dask array's name.
    """
    dims = [f"dimension {axis}" for axis in range(len(values.shape))]
    sizes = dict(zip(dims, chunks, strict=True))
    stored = Variable(dims, values, encoding={"preferred_chunks": sizes})
    if not dims and stored.dtype.kind in _TEXT_KINDS:
        return np.array(stored.to_numpy(), stored.dtype)
    return _in_blocks(stored, name).data


def _has_uniform_units(variable: Variable, encoding: Mapping[str, Any]) -> bool:
    """Return whether the times in all blocks are certain to be encoded with the same units."""
    # If neither key is set, xarray derives both from the resolution of NumPy times, which is the
    # same in all blocks.
    requested = {"units", "dtype"} & encoding.keys()
    return len(requested) == 2 or (not requested and variable.dtype.kind in "mM")


def _in_blocks(variable: Variable, name: str) -> Variable:
    with ErrorContext(variable=name):
        blocks: Any = source_blocks(variable)
    return variable.chunk(blocks, name=f"{OPENED}{name}-{secrets.token_hex(8)}")


def _itemsize(variable: Variable) -> int:
    return _NOMINAL_BYTES if variable.dtype.hasobject else variable.dtype.itemsize


def source_blocks(variable: Variable) -> tuple[tuple[int, ...], ...]:
    """Return the dask chunks in which to read a variable.

    They are aligned with the stored chunks, even if the variable is a slice of the stored array.
    Small chunks are merged into blocks of up to 4 MiB, unless their values are Python objects.
    Large chunks are split into blocks of up to 4 MiB if parts of a chunk can be read separately. If
    the stored chunks are unknown, the whole variable is divided into blocks of up to 4 MiB.

    Raises
    ------
    UnsupportedError
        If the variable has too many chunks or blocks along one dimension.
    """
    array, selection = unwrapped(variable._data)
    lengths = _stored_lengths(variable, array, selection)
    has_chunks = lengths is not None or "preferred_chunks" in variable.encoding
    if lengths is None:
        preferred = variable.encoding.get("preferred_chunks") or {}
        sizes = zip(variable.dims, variable.shape, strict=True)  # a dimension can be repeated
        lengths = [
            np.diff(_chunk_ends(preferred.get(dim), size, range(size or 1)), prepend=0)
            for dim, size in sizes
        ]
    itemsize = _itemsize(variable)
    raw = isinstance(array, LazyArray) and not array.stored.node.shards and array.stored.codec.raw
    if raw or not has_chunks:
        lengths = _split_large(lengths, itemsize)
    if variable.dtype.hasobject and has_chunks:
        return tuple(tuple(axis.tolist()) for axis in lengths)
    return _merge_small(lengths, itemsize)


def _stored_lengths(
    variable: Variable, array: Any, selection: Selection | None
) -> list[_Lengths] | None:
    """Return dask chunks that match the stored chunks of a variable, or None if unknown."""
    preferred = variable.encoding.get("preferred_chunks") or {}
    if selection is None or len(preferred) != len(selection.selectors):
        return None
    lengths: dict[int, _Lengths] = {}
    dimensions = zip(
        selection.selectors, selection.axes, preferred.values(), array.shape, strict=True
    )
    for selector, axes, chunks, size in dimensions:
        if len(axes) > 1 or (axes and axes[0] in lengths):
            return None
        if axes:
            lengths[axes[0]] = _run_lengths(selector, _chunk_ends(chunks, size, _span(selector)))
    # Decoding joins characters into strings, so the variable lacks the character dimension.
    by_axis = [lengths.get(axis) for axis in range(variable.ndim)]
    selected = [item for item in by_axis if item is not None]
    return selected if tuple(int(item.sum()) for item in selected) == variable.shape else None


def _span(selected: Any) -> range:
    """Return the smallest range that contains all selected positions."""
    if not len(selected):
        return range(0)
    if isinstance(selected, range):
        selected = selected[0], selected[-1]
    return range(int(np.min(selected)), int(np.max(selected)) + 1)


def _chunk_ends(chunks: Any, size: int, span: range) -> _Lengths:
    """Return the end positions of the chunks along a dimension of `size` elements.

    `chunks` is one length for all chunks, one length per chunk, or None for a single chunk. Chunks
    outside of `span` may be omitted.
    """
    if isinstance(chunks, Sequence):
        ends = np.cumsum(chunks)
    else:
        step = int(size if chunks is None else chunks) or 1
        first, stop = span.start // step, -(-span.stop // step)
        _check_count(stop - first)
        ends = np.arange(first + 1, stop + 1) * step
    within: _Lengths = np.minimum(ends, size)
    return within


def _check_count(count: int) -> None:
    """Raise UnsupportedError if a dimension has more than 100 million chunks or blocks."""
    if count > _MAX_CHUNKS:
        raise UnsupportedError(
            f"the variable has {count:,} chunks or blocks along one dimension, too many to read "
            f"one by one; the maximum is {_MAX_CHUNKS:,}",
            remedy="Select part of the dimension",
        )


def _run_lengths(selected: Any, chunk_ends: _Lengths) -> _Lengths:
    """Split selected positions at chunk boundaries, and return the lengths of the parts."""
    if not isinstance(selected, range):
        numbers = np.searchsorted(chunk_ends, selected, side="right")
        changes = np.flatnonzero(np.diff(numbers)) + 1
        return np.diff([0, *changes, len(selected)])
    ascending = selected if selected.step > 0 else selected[::-1]
    reached = -((ascending.start - chunk_ends) // ascending.step)
    reached = reached.clip(0, len(ascending))
    lengths = np.diff(np.unique(np.concatenate(([0], reached, [len(ascending)]))))
    lengths = lengths if len(ascending) else np.zeros(1, np.int64)
    return lengths if selected.step > 0 else lengths[::-1]


def _split_large(lengths: Sequence[_Lengths], itemsize: int) -> list[_Lengths]:
    """Split chunks that exceed the maximum block size, preferably along the leading axes."""
    shape = [int(axis.max()) for axis in lengths]
    for axis, length in enumerate(shape):
        shape[axis] = max(1, length * _BLOCK_BYTES // max(1, math.prod(shape) * itemsize))
        shape[axis] = min(length, shape[axis])
        _check_count(-(-int(lengths[axis].sum()) // max(1, shape[axis])))
    return [
        np.array([min(step, size - at) for size in axis.tolist() for at in range(0, size, step)])
        if step < axis.max()
        else axis
        for axis, step in zip(lengths, shape, strict=True)
    ]


def _merge_small(lengths: Sequence[_Lengths], itemsize: int) -> tuple[tuple[int, ...], ...]:
    """Merge adjacent chunks into blocks that fit the size limit, starting with the last axis."""
    size = math.prod(int(axis.max()) for axis in lengths) * itemsize
    blocks = []
    for axis in reversed(lengths):
        count = max(1, min(len(axis), _BLOCK_BYTES // max(1, size)))
        size *= count
        blocks.append(tuple(np.add.reduceat(axis, range(0, len(axis), count)).tolist()))
    return tuple(reversed(blocks))
