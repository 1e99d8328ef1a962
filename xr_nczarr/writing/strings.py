"""Text in the types in which it is stored: of variable length, in fixed width, from bytes."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from xarray import SerializationWarning, Variable
from xarray.coding.strings import create_vlen_dtype

from xr_nczarr.errors import ConflictError
from xr_nczarr.netcdf.fixed_width import encode_strings, measured_width
from xr_nczarr.writing.blocks import blockwise, largest, opened_lazily

TEXT = create_vlen_dtype(str)
_MISSING, _TEXTS, _OTHERS = range(3)


def typed_text(variable: Variable, name: str) -> Variable:
    """Return a variable with lazy objects typed as text, if all of them are text.

    NumPy's own text of variable length becomes the same type. Other objects are left to xarray,
    which loads them whole. Missing texts become empty, as with xarray.
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
    """Return an array in a type of text; raise ConflictError for text that it would cut."""
    return blockwise(_cast, data, dtype, dtype, name)


def ends_in_nul(block: Any) -> int:
    """Return whether any bytes of a block end in NUL, which pads bytes of fixed width."""
    return any(item.endswith(b"\0") for item in block.ravel().tolist())


def decoded(data: Any) -> Any:
    """Return bytes in UTF-8 as text of variable length."""
    texts = np.array([item.decode() for item in np.ravel(data).tolist()], TEXT)
    return texts.reshape(np.shape(data))


def string_data(
    data: Any, width: int | None, *, fixed: bool, fill: Any
) -> tuple[Any, np.dtype[Any]]:
    """Return texts and their type: objects, or a fixed width, by default that of the longest.

    The `fill` value counts as a text, unless it is None.
    """
    if not fixed:
        return (data if data.dtype.kind == "O" else data.astype(object)), np.dtype(object)
    if width is None:
        filled = [] if fill is None else [fill]
        width = max(largest(measured_width, data), measured_width(np.array(filled, object)))
    dtype = np.dtype(f"S{int(width)}")
    return blockwise(encode_strings, data, dtype, dtype.itemsize), dtype


def in_width(values: Any, dtype: np.dtype[Any], name: str) -> Any:
    """Return texts or bytes in a type of fixed width; raise ConflictError if it would cut one."""
    if dtype.kind == "S":
        items = as_bytes(values)
    else:
        items = [item.decode() if isinstance(item, bytes) else item for item in values.ravel()]
    longest = max(map(len, items), default=0)
    width = dtype.itemsize // np.dtype(f"{dtype.kind}1").itemsize
    if longest > width:
        unit = "bytes" if dtype.kind == "S" else "characters"
        raise ConflictError(
            f"Mismatched dtypes for variable {name}: strings of {longest} {unit}, the store holds "
            f"{width}",
            remedy=f"Write the variable to a new store with a width of {longest}",
        )
    return np.array(items, dtype).reshape(values.shape)


def as_bytes(values: Any) -> list[Any]:
    """Return the items of texts or bytes as bytes."""
    try:
        return [
            item.encode("utf-8", "surrogateescape") if isinstance(item, str) else item
            for item in values.ravel()
        ]
    except UnicodeEncodeError as error:
        raise ConflictError(f"the text is not Unicode ({error.reason})") from error


def _cast(block: Any, dtype: np.dtype[Any], name: str) -> Any:
    if block.dtype.hasobject:
        block = np.where(_missing(block), "", block)
    try:
        cast, whole = block.astype(dtype), block.astype(dtype.kind)
    except (UnicodeEncodeError, UnicodeDecodeError) as error:
        problem = f"the text cannot be stored as {dtype} ({error.reason})"
        raise ConflictError(problem, variable=name) from error
    if (cut := np.ravel(cast != whole)).any():
        raise ConflictError(
            f"the text {np.ravel(whole)[cut].tolist()[0]!r} does not fit the encoding dtype "
            f"{dtype}, which would cut it",
            remedy="Pass a wider type, or none",
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
    """Return which items are missing for xarray."""
    return Variable("x", block.ravel()).isnull().to_numpy().reshape(block.shape)
