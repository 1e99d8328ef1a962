"""Apply the same functions to NumPy arrays and to the blocks of dask arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec

import numpy as np

OPENED = "nczarr-opened-"
"""The name prefix of dask arrays that read opened variables block by block."""

_Options = ParamSpec("_Options")


def blockwise(
    function: Callable[Concatenate[Any, np.dtype[Any], _Options], Any],
) -> Callable[Concatenate[Any, np.dtype[Any], _Options], Any]:
    """Decorate a function for NumPy arrays so that it also accepts dask arrays.

    The first two parameters of the function must be the array and the dtype of the result. A dask
    array is converted to another dask array: the function is applied to each block when that block
    is computed.
    """

    @wraps(function)
    def wrapped(
        data: Any, dtype: np.dtype[Any], /, *rest: _Options.args, **options: _Options.kwargs
    ) -> Any:
        if not hasattr(data, "dask"):
            return function(np.asarray(data), dtype, *rest, **options)
        empty = np.empty((0,) * data.ndim, dtype)
        return data.map_blocks(wrapped, dtype, *rest, **options, dtype=dtype, meta=empty)

    return wrapped


def largest(function: Callable[[Any], int], data: Any) -> int:
    """Apply a function to each block of a dask array, and return the largest result.

    The dask array is computed immediately. A NumPy array is treated as a single block.
    """
    if not hasattr(data, "dask"):
        return function(np.asarray(data))
    chunks = tuple((1,) * count for count in data.numblocks)
    results = data.map_blocks(_result, function, dtype=int, chunks=chunks, meta=np.empty(0, int))
    return int(results.max().compute())


def _result(block: Any, function: Callable[[Any], int]) -> Any:
    return np.full((1,) * block.ndim, function(block))


def opened_lazily(data: Any) -> bool:
    """Return whether this package, rather than the caller, created the dask array `data`.

    Such an array reads an opened variable block by block.
    """
    return any(str(name).startswith(OPENED) for name in data.dask.layers)
