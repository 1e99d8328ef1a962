"""Text in memory as what is stored of it: of variable length, in fixed width, from bytes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from xarray import SerializationWarning, Variable
from xarray.coding.strings import create_vlen_dtype

from xr_nczarr.errors import ConflictError
from xr_nczarr.netcdf.strings import encode_strings, measured_width
from xr_nczarr.writing.blocks import opened_lazily
from xr_nczarr.writing.sources import blockwise, largest

TEXT = create_vlen_dtype(str)
_MISSING, _TEXTS, _OTHERS = range(3)


def typed_text(variable: Variable, name: str) -> Variable:
    """Give a variable whose objects dask has yet to compute and that are text as such.

    So is NumPy's own text of variable length. Others are left to xarray, which loads them whole.
    Missing ones become empty, as with xarray.
    """
    if variable.dtype.kind == "T":
        return variable.copy(data=blockwise(_without_missing, variable.data, TEXT))
    if variable.dtype != object or variable.dtype.metadata or not hasattr(variable.data, "dask"):
        return variable
    if largest(_objects, variable.data) != _TEXTS:
        return variable
    if not opened_lazily(variable.data):
        warnings.warn(
            f"variable {name} has data in the form of a dask array with dtype=object: it is "
            "computed to see what it is and how long, and again to be written. Use astype()",
            SerializationWarning,
            stacklevel=2,
        )
    return variable.copy(data=blockwise(_without_missing, variable.data, TEXT))


def cast_text(data: Any, dtype: np.dtype[Any], name: str) -> Any:
    """Give an array in a type of text; what that is too narrow for is a ConflictError."""
    return blockwise(_cast, data, dtype, dtype, name)


def ends_in_nul(block: Any) -> int:
    """Tell whether any bytes of a block end in NUL, which pads those of fixed width."""
    return any(item.endswith(b"\0") for item in block.ravel().tolist())


def decoded(data: Any) -> Any:
    """Give bytes in UTF-8 as text of variable length."""
    texts = np.array([item.decode() for item in np.ravel(data).tolist()], TEXT)
    return texts.reshape(np.shape(data))


def string_data(
    data: Any, width: int | None, *, fixed: bool, fill: Any
) -> tuple[Any, np.dtype[Any]]:
    """Give texts as objects, or in fixed width: the one given, else that of the longest.

    The `fill` value is one of them, unless it is None.
    """
    if not fixed:
        return (data if data.dtype.kind == "O" else data.astype(object)), np.dtype(object)
    if width is None:
        filled = [] if fill is None else [fill]
        width = max(largest(measured_width, data), measured_width(np.array(filled, object)))
    dtype = np.dtype(f"S{int(width)}")
    return blockwise(encode_strings, data, dtype, dtype.itemsize), dtype


def _cast(block: Any, dtype: np.dtype[Any], name: str) -> Any:
    if block.dtype.hasobject:
        block = np.where(_missing(block), "", block)
    try:
        cast, whole = block.astype(dtype), block.astype(dtype.kind)
    except (UnicodeEncodeError, UnicodeDecodeError) as error:
        problem = f"found text that is no {dtype} ({error.reason})"
        raise ConflictError(problem, variable=name) from error
    if (cut := np.ravel(cast != whole)).any():
        raise ConflictError(
            f"found {np.ravel(whole)[cut].tolist()[0]!r}, which the type {dtype} of the encoding "
            "would cut",
            remedy="Give a wider type, or none",
            variable=name,
        )
    return cast


def _objects(block: Any) -> int:
    texts = [isinstance(item, str) for item in block.ravel().tolist()]
    if all(texts):
        return _TEXTS if texts else _MISSING
    others = ~(np.array(texts) | _missing(block).ravel())
    return _OTHERS if others.any() else _TEXTS if any(texts) else _MISSING


def _without_missing(block: Any) -> Any:
    texts = np.empty(block.shape, TEXT)
    texts[...] = np.where(_missing(block), "", block)
    return texts


def _missing(block: Any) -> Any:
    """Tell which items are missing, as xarray has it."""
    return Variable("x", block.ravel()).isnull().to_numpy().reshape(block.shape)
