"""Define lazy arrays, which read values from the store when xarray needs them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from xarray.backends import BackendArray
from xarray.core import indexing
from xarray.core.utils import NDArrayMixin

from xr_nczarr.backend.times import as_declared, decode_dates
from xr_nczarr.chunks import ChunkedArray, Convert
from xr_nczarr.chunks.selection import ReadRequest, Selection, select_all
from xr_nczarr.errors import ErrorContext, MetadataError, NczarrError, reason_of
from xr_nczarr.locks import call_after_fork
from xr_nczarr.netcdf.types import decode_strings

Array = npt.NDArray[Any]
_MAX_ASYNC_READS = 64  # the maximum number of concurrent requests to one store


@dataclass(eq=False, repr=False)
class LazyArray:
    """The values of a stored variable, which are read only on request.

    Attributes
    ----------
    stored
        The chunked array in the store.
    dtype
        Data type of the values after conversion.
    shape
        Shape of the variable. A scalar has the shape ``()``, even if it is stored with the shape
        ``(1,)``.
    convert
        Function that converts stored elements to values, or None if no conversion is needed.
    """

    stored: ChunkedArray
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    convert: Convert | None = None

    def read(self, request: ReadRequest) -> Array:
        """Read the values that a request selects."""
        selection = request.selection if self.shape else (0,) * len(self.stored.node.shape)
        return self.stored.read(
            selection, pointwise=request.pointwise, dtype=self.dtype, convert=self.convert
        )

    def __dask_tokenize__(self) -> Any:
        from dask.base import normalize_token

        array = self.stored
        node = array.node.without_annotations()
        return normalize_token((array.store, node, str(self.dtype), self.convert))


def decode_text(stored: Array, text: Array) -> None:
    """Decode fixed-width strings from `stored`, and write them into `text`."""
    text[...] = decode_strings(stored)


@dataclass(eq=False, repr=False)
class UnreadableArray:
    """A placeholder for the values of a variable that cannot be read. Reading raises `error`."""

    error: NczarrError
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    def read(self, request: ReadRequest) -> Array:  # noqa: ARG002
        """Raise the error that explains why the variable cannot be read."""
        raise self.error


@lru_cache(None)
def _async_readers() -> ThreadPoolExecutor:
    # The default pool of an event loop has only four more threads than the machine has processors.
    # Reads spend most of their time waiting for responses.
    return ThreadPoolExecutor(_MAX_ASYNC_READS, "load-async")


call_after_fork(_async_readers.cache_clear)


class _Selectable(indexing.ExplicitlyIndexedNDArrayMixin):
    """An array that xarray can index and transpose without reading values."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape}, dtype={self.dtype})"

    async def async_get_duck_array(self) -> Any:
        """Read and decode the values in a worker thread, without blocking the event loop."""
        read = copy_context().run
        return await asyncio.get_running_loop().run_in_executor(
            _async_readers(), read, self.get_duck_array
        )


class SelectedArray(_Selectable):
    """A lazy array to which indexing operations have been applied."""

    __slots__ = ("selection", "source")

    def __init__(
        self, source: LazyArray | UnreadableArray, selection: Selection | None = None
    ) -> None:
        self.source = source
        self.selection = select_all(source.shape) if selection is None else selection

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the values."""
        return self.source.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the selection."""
        return self.selection.shape

    def __getitem__(self, indexer: indexing.ExplicitIndexer) -> SelectedArray:
        key = indexing.expanded_indexer(indexer.tuple, len(self.selection.shape))
        return SelectedArray(self.source, self.selection.orthogonal(key))

    def _oindex_get(self, indexer: indexing.OuterIndexer) -> SelectedArray:
        return self[indexer]

    def _vindex_get(self, indexer: indexing.VectorizedIndexer) -> SelectedArray:
        key = indexing.expanded_indexer(indexer.tuple, len(self.selection.shape))
        return SelectedArray(self.source, self.selection.pointwise(key))

    def transpose(self, order: Sequence[int]) -> SelectedArray:
        """Return the selection with its dimensions in the given order."""
        return SelectedArray(self.source, self.selection.transposed(order))

    def get_duck_array(self) -> Array:
        """Read the selected values."""
        request = self.selection.request()
        return self.selection.arranged(self.source.read(request), request)


@dataclass(eq=False, repr=False)
class CodedArray(_Selectable):
    """Values that xarray's coders decode on access.

    If a coder raises an error, for example because a date is out of range, it is re-raised as a
    MetadataError.

    Attributes
    ----------
    array
        The stored values, or a selection of them.
    declared
        Data type of the decoded values.
    coders
        Copies of xarray's lazy decoding wrappers without the wrapped arrays, innermost first.
    joins
        Whether decoding joins the characters along the last dimension of `array` into strings.
    store, name
        Name of the store and path of the variable, for error messages.
    """

    array: SelectedArray
    declared: np.dtype[Any]
    coders: Sequence[Any]
    joins: bool
    store: str
    name: str

    @classmethod
    def around(cls, values: Any, store: str, name: str) -> Any:
        """Wrap `values` in a CodedArray if xarray decodes them lazily.

        Any other array is returned unchanged.
        """
        coders: list[Any] = []
        inner: Any = values
        while isinstance(inner, indexing.ExplicitlyIndexed):
            if isinstance(inner, SelectedArray):
                joins = inner.ndim > values.ndim
                return cls(inner, np.dtype(values.dtype), coders[::-1], joins, store, name)
            coder: Any = copy(inner)
            inner = getattr(inner, "array", None)
            coder.array = None
            coders.append(coder)
        return values

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of the decoded values."""
        return self.declared

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the selection."""
        shape = self.array.shape
        return shape[:-1] if self.joins else shape

    def __getitem__(self, indexer: indexing.ExplicitIndexer) -> CodedArray:
        return replace(self, array=self.array[self._completed(indexer)])

    def _oindex_get(self, indexer: indexing.OuterIndexer) -> CodedArray:
        return replace(self, array=self.array.oindex[self._completed(indexer)])

    def _vindex_get(self, indexer: indexing.VectorizedIndexer) -> CodedArray:
        return replace(self, array=self.array.vindex[self._completed(indexer)])

    def _completed(self, indexer: Any) -> Any:
        key = indexing.expanded_indexer(indexer.tuple, self.ndim)
        return type(indexer)((*key, slice(None)) if self.joins else key)

    def transpose(self, order: Sequence[int]) -> CodedArray:
        """Return the array with its dimensions in the given order."""
        last = (len(order),) if self.joins else ()
        return replace(self, array=self.array.transpose((*order, *last)))

    def get_duck_array(self) -> Any:
        """Read and decode the selected values.

        Raises
        ------
        MetadataError
            If the values cannot be decoded, or if the declared dtype cannot represent them.
        """
        # xarray's coders determine the calendar from the first date, which does not exist here.
        if 0 in self.shape:
            return np.empty(self.shape, self.dtype)
        stored = self.array.get_duck_array()
        with (
            ErrorContext(store=self.store, variable=self.name),
            decoder_errors_as_metadata(self.store, self.name),
        ):
            return as_declared(self.decode(stored), self.declared, stored, self.decode)

    def decode(self, stored: Any) -> Any:
        """Decode stored values.

        The dtype of the result can differ from the declared dtype, which xarray infers from
        only the first and the last value.
        """
        values = stored
        for coder in self.coders:
            values = _apply_coder(coder, values, self.declared)
        return values


def _apply_coder(coder: Any, encoded: Any, declared: np.dtype[Any]) -> Any:
    function: Any = getattr(coder, "func", None)
    if "use_cftime" in getattr(function, "keywords", ()):
        return decode_dates(function, np.asarray(encoded), declared)
    decoder = copy(coder)
    decoder.array = indexing.as_indexable(encoded)
    return decoder.get_duck_array()


@contextmanager
def decoder_errors_as_metadata(store: str, variable: str) -> Iterator[None]:
    """Convert errors that xarray's decoders raise in the ``with`` block to MetadataError.

    MemoryError and errors raised by this package are not converted.
    """
    try:
        yield
    except (NczarrError, MemoryError):
        raise
    except Exception as error:
        # xarray's note ends with the repr of the variable. Keep only the part with the name.
        notes = [note.partition(" with value ")[0] for note in getattr(error, "__notes__", ())]
        reason = ": ".join([*notes, reason_of(error)])
        raise MetadataError(
            f"xarray cannot decode the variable ({reason})",
            remedy="Open the dataset with decode_cf=False, or exclude the variable with "
            "drop_variables",
            store=store,
            variable=variable,
        ) from error


def unwrapped(data: Any) -> tuple[Any, Selection | None]:
    """Return the array inside xarray's wrappers, and the selection that the wrappers apply to it.

    The selection is None if the wrappers do not index the array, or if they index it pointwise.
    """
    selecting: Any = None
    wrappers = indexing.ExplicitlyIndexed | NDArrayMixin
    while isinstance(data, wrappers) and not isinstance(data, BackendArray):
        # The outermost selection is the complete one, because xarray merges successive selections.
        if selecting is None and (isinstance(data, SelectedArray) or hasattr(data, "key")):
            selecting = data
        data = getattr(data, "source" if isinstance(data, SelectedArray) else "array", None)
    if isinstance(selecting, SelectedArray):
        return data, selecting.selection
    if isinstance(getattr(selecting, "key", None), indexing.BasicIndexer | indexing.OuterIndexer):
        return data, select_all(selecting.array.shape).orthogonal(selecting.key.tuple)
    return data, None
