"""Arrays that xarray holds until somebody asks for values."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from dask.base import normalize_token
from xarray.backends import BackendArray
from xarray.core import indexing

from xr_nczarr.chunks import ChunkedArray, Convert
from xr_nczarr.errors import MetadataError, NczarrError, quote
from xr_nczarr.netcdf.strings import decode_strings

Array = npt.NDArray[Any]


@dataclass(eq=False, repr=False)
class LazyArray(BackendArray):
    """A variable's values in their store, read by selection.

    Attributes
    ----------
    stored
        Where they lie.
    dtype
        What they come out as: the stored dtype, or ``object`` for text.
    shape
        Of the variable; empty for a scalar, which is stored with one dimension of length one.
    convert
        What makes values of the stored elements; None for a plain copy.
    """

    stored: ChunkedArray
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    convert: Convert | None = None

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Array:
        # No help of xarray's is needed to take the key apart: the engine knows every kind of it.
        selection = key.tuple if self.shape else (0,) * len(self.stored.node.shape)
        pointwise = isinstance(key, indexing.VectorizedIndexer) and any(
            isinstance(item, np.ndarray) for item in selection
        )
        return self.stored.read(
            selection, pointwise=pointwise, dtype=self.dtype, convert=self.convert
        )

    async def async_getitem(self, key: indexing.ExplicitIndexer) -> Array:
        """Read without blocking the running event loop."""
        return await asyncio.to_thread(self.__getitem__, key)

    def __dask_tokenize__(self) -> Any:
        array = self.stored
        node = array.node.without_annotations()
        return normalize_token((array.store, node, str(self.dtype), self.convert))


class SelectedArray(indexing.LazilyIndexedArray):
    """A lazy array and what has been selected of it so far.

    xarray's own makes `[-1::-1]`, all of it, of `[-5::-1]` along four elements, which is nothing.
    """

    __slots__ = ()

    @classmethod
    def whole(cls, array: LazyArray | UnreadableArray) -> SelectedArray:
        """Give all of an array."""
        return cls(array, _everything(len(array.shape)))

    def _oindex_get(self, indexer: indexing.OuterIndexer) -> Any:
        return super()._oindex_get(self._without_empty_slices(indexer))

    def __getitem__(self, indexer: indexing.ExplicitIndexer) -> Any:
        return super().__getitem__(self._without_empty_slices(indexer))

    def _without_empty_slices(self, indexer: Any) -> Any:
        if not any(isinstance(item, slice) and (item.step or 1) < 0 for item in indexer.tuple):
            return indexer
        key = indexing.expanded_indexer(indexer.tuple, self.ndim)
        return type(indexer)(
            tuple(
                [
                    slice(0, 0) if isinstance(item, slice) and not range(size)[item] else item
                    for item, size in zip(key, self.shape, strict=True)
                ]
            )
        )


@cache
def _everything(rank: int) -> indexing.BasicIndexer:
    return indexing.BasicIndexer((slice(None),) * rank)


def decode_text(stored: Array, text: Array) -> None:
    """Decode strings of fixed width."""
    text[...] = decode_strings(stored)


@dataclass(eq=False, repr=False)
class UnreadableArray(BackendArray):
    """Stands for values that cannot be read, and raises the precise reason when asked."""

    error: NczarrError
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Array:
        raise self.error


class CodedArray(indexing.ExplicitlyIndexedNDArrayMixin):
    """Values that xarray's coders give when they are asked for; they fail with errors of ours.

    Attributes of a store can upset any of them: text in ``scale_factor``, times beyond all years.
    """

    def __init__(self, array: Any, store: str, name: str) -> None:
        self.array = indexing.as_indexable(array)
        self.store = store
        self.name = name

    @property
    def dtype(self) -> np.dtype[Any]:
        """What the values come out as."""
        return np.dtype(self.array.dtype)  # type: ignore[no-any-return]

    def _with(self, array: Any) -> CodedArray:
        return CodedArray(array, self.store, self.name)

    def transpose(self, order: Any) -> CodedArray:
        """Permute the dimensions."""
        return self._with(self.array.transpose(order))

    def __getitem__(self, key: Any) -> CodedArray:
        return self._with(self.array[key])

    def _oindex_get(self, key: Any) -> CodedArray:
        return self._with(self.array.oindex[key])

    def _vindex_get(self, key: Any) -> CodedArray:
        return self._with(self.array.vindex[key])

    def get_duck_array(self) -> Any:
        """Read and decode what has been selected."""
        if 0 in self.array.shape:  # xarray's coders look for the first date of a calendar
            return np.empty(self.array.shape, self.dtype)
        with failing_as_metadata(self.store, self.name):
            return self.array.get_duck_array()

    async def async_get_duck_array(self) -> Any:
        """Read and decode without blocking the running event loop."""
        if 0 in self.array.shape:
            return self.get_duck_array()
        with failing_as_metadata(self.store, self.name):
            return await self.array.async_get_duck_array()


@contextmanager
def failing_as_metadata(store: str, variable: str) -> Iterator[None]:
    """Raise whatever xarray's decoding raises as an error of ours."""
    try:
        yield
    except NczarrError:
        raise
    except Exception as error:
        # Of several variables xarray names the one in a note, with all that it is.
        notes = [note.partition(" with value ")[0] for note in getattr(error, "__notes__", ())]
        raise MetadataError(
            f"xarray cannot decode it ({quote(': '.join([*notes, str(error)]))})",
            remedy="Open it with decode_cf=False, or without the variable by drop_variables",
            store=store,
            variable=variable,
        ) from error
