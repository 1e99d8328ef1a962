"""Convert strings to the types in which they are stored.

Strings can be stored as variable-length strings, fixed-width strings, bytes or characters.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from xarray import SerializationWarning, Variable
from xarray.backends.common import ensure_dtype_not_object
from xarray.coding.strings import (
    CharacterArrayCoder,
    EncodedStringCoder,
    create_vlen_dtype,
    ensure_fixed_length_bytes,
    is_bytes_dtype,
)

from xr_nczarr.encoding.blockwise import blockwise, largest, opened_lazily
from xr_nczarr.encoding.number_encoding import misfit
from xr_nczarr.errors import ConflictError, ErrorContext, UnsupportedError, quote
from xr_nczarr.netcdf import Layout
from xr_nczarr.netcdf.types import decode_strings, encode_strings, measured_width

TEXT = create_vlen_dtype(str)
_MISSING, _TEXTS, _OTHERS = range(3)


def typed_text(variable: Variable, name: str) -> Variable:
    """Convert the strings of a variable to the object dtype that xarray uses for strings.

    Missing strings become empty strings, as in xarray. Arrays of two kinds are converted:

    - Arrays of NumPy's StringDType.
    - Dask arrays of objects without a declared item type. All items must be strings or missing, and
      at least one must be a string.

    Any other variable is returned unchanged.
    """
    if variable.dtype.kind == "T":
        return variable.copy(data=without_missing(variable.data, TEXT))
    if variable.dtype != object or variable.dtype.metadata or not hasattr(variable.data, "dask"):
        return variable
    if largest(_objects, variable.data) != _TEXTS:
        return variable
    if not opened_lazily(variable.data):
        warnings.warn(
            f"variable {name} has data in the form of a dask array with dtype=object. Its values "
            "are computed up to three times: to find their type, to find their lengths, and to "
            "write them. To avoid some of these computations, convert the array with astype(str)",
            SerializationWarning,
            stacklevel=2,
        )
    return variable.copy(data=without_missing(variable.data, TEXT))


def check_items(variable: Variable, name: str) -> None:
    """Check that no item of an object array is itself an array. Dask arrays are not checked.

    Raises
    ------
    UnsupportedError
        If an item is an array or a list, as in a variable of a variable-length netCDF type.
    """
    if variable.dtype != object or variable.dtype.metadata or hasattr(variable.data, "dask"):
        return
    for kind in {type(item) for item in variable.to_numpy().flat}:
        if issubclass(kind, np.ndarray | list):
            raise UnsupportedError(
                f"the variable contains objects of type {kind.__name__}, which Zarr cannot store",
                remedy="Pad the items to equal length, and store them along a new dimension",
                variable=name,
            )


def encode_text(variable: Variable, name: str, *, characters: bool, joined: bool) -> Variable:
    """Convert strings, bytes and objects to a type that can be stored.

    Values of other types, such as numbers, are not converted.

    Parameters
    ----------
    characters
        Whether to convert byte strings to characters even if the encoding does not request it.
    joined
        Whether xarray created the strings by joining characters when it opened the variable.

    Raises
    ------
    ConflictError
        If an item of an object array ends in NUL, which would be lost in a fixed-width dtype. Also
        raised if bytes that would be stored as strings are not valid UTF-8.
    """
    variable = ensure_dtype_not_object(typed_text(variable, name), name=name)
    becomes_fixed = is_bytes_dtype(variable.dtype) or variable.encoding.get("dtype") == "S1"
    if becomes_fixed and variable.dtype.hasobject and largest(_ends_in_nul, variable.data):
        raise _padding_error()
    fill = variable.attrs.pop("_FillValue", None) if joined else None
    variable = EncodedStringCoder(allows_unicode=True).encode(variable, name=name)
    if fill is not None:
        variable.attrs["_FillValue"] = fill
    if variable.encoding.get("dtype") is str and is_bytes_dtype(variable.dtype):
        variable = variable.copy(data=_decoded(variable.data, TEXT))
    opened = "source" in variable.encoding and "char_dim_name" not in variable.encoding
    if opened and variable.dtype == np.dtype("S1"):
        return variable  # xarray did not join these characters when it opened the variable
    if not characters and variable.encoding.get("dtype") != "S1":
        variable = ensure_fixed_length_bytes(variable)
        if variable.dtype == np.dtype("S1") and variable.ndim:
            # When xarray opens an array of type S1, it joins the items along the last dimension.
            variable = variable.copy(data=variable.data.astype("S2"))
        return variable
    encoded: Variable = CharacterArrayCoder().encode(variable, name=name)
    return encoded


def _ends_in_nul(block: Any) -> int:
    return any(item.endswith(b"\0") for item in as_bytes(block))


def _padding_error() -> ConflictError:
    return ConflictError(
        "some values end in NUL bytes, which would be stripped as padding because the stored dtype "
        "has a fixed width",
        remedy="Write the values as unsigned integers, or remove the NUL bytes",
    )


@blockwise
def _decoded(data: Any, dtype: np.dtype[Any]) -> Any:
    return np.array(_as_texts(data), dtype).reshape(data.shape)


@blockwise
def unpadded(data: Any, dtype: np.dtype[Any]) -> Any:
    """Convert fixed-width netCDF strings, which are padded UTF-8, to variable-length strings."""
    return decode_strings(data).astype(dtype, copy=False)


@blockwise
def padded(texts: Any, dtype: np.dtype[Any]) -> Any:
    """Convert strings to fixed-width netCDF strings, which are UTF-8 padded with NUL.

    Raises
    ------
    ConflictError
        If a string is too long for `dtype`, contains a NUL, or is not valid Unicode.
    """
    return encode_strings(texts, dtype.itemsize)


def string_data(data: Any, width: int | None, layout: Layout, fill: Any) -> Any:
    """Convert strings to the dtype in which a layout stores them.

    - Zarr v1 stores strings in a fixed-width dtype of kind ``U``. Dask arrays are computed to find
      the width.
    - Other versions of plain Zarr store variable-length strings. The result has dtype object.
    - NCZarr also stores variable-length strings if `width` is None and the layout supports them.
      Otherwise, NCZarr stores fixed-width netCDF strings, which have dtype ``S<width>``.

    Parameters
    ----------
    width
        The width in bytes, which is ignored in plain Zarr. If `width` is None but NCZarr requires a
        width, the longest string (or the fill value, if it is longer) determines the width.

    Raises
    ------
    ConflictError
        If a string does not fit in the fixed-width dtype. For example, it is too long, or ends in
        NUL.
    """
    if not layout.zarr.has_filters:  # Zarr v1 has neither filters nor variable-length strings
        if data.dtype.hasobject and largest(_ends_in_nul, data):
            raise _padding_error()
        return np.asarray(data).astype(str)
    if layout.is_plain_zarr or (width is None and layout.has_vlen_strings):
        return data if data.dtype.kind == "O" else data.astype(object)
    if width is None:
        filled = [] if fill is None else [fill]
        width = max(largest(measured_width, data), measured_width(np.array(filled, object)))
    return padded(data, np.dtype(f"S{int(width)}"))


@blockwise
def valid_text(values: Any, dtype: np.dtype[Any], name: str) -> Any:
    """Decode items that are bytes, and check that all variable-length strings are valid Unicode.

    Raises
    ------
    ConflictError
        If bytes are not valid UTF-8, or a string contains a lone surrogate.
    """
    with ErrorContext(variable=name):
        texts = _as_texts(values)
        try:
            "\0".join(texts).encode()  # encoding all strings together takes a fifth of the time
        except UnicodeEncodeError as error:
            text = error.object[: error.end].rpartition("\0")[2]
            raise _unicode_error(text, error.reason) from error
    valid = np.empty(len(texts), dtype)
    valid[:] = texts
    return valid.reshape(values.shape)


def _unicode_error(text: str, reason: str) -> ConflictError:
    return ConflictError(
        f"the string {quote(repr(text))} is not valid Unicode ({reason})",
        remedy="Replace the invalid characters, for example with .str.encode('utf-8', 'replace')"
        ".str.decode('utf-8')",
    )


@blockwise
def in_width(values: Any, dtype: np.dtype[Any], name: str, fill: Any = "") -> Any:
    """Convert strings or bytes to a fixed-width dtype, and replace missing items with `fill`.

    Raises
    ------
    ConflictError
        If an item is too long for `dtype`, or ends in NUL.
    """
    if values.dtype.kind in "OT":
        values = without_missing(values, TEXT, fill)
    items = as_bytes(values) if dtype.kind == "S" else _as_texts(values)
    if any(item[-1:] in ("\0", b"\0") for item in items):
        raise _padding_error()
    longest = max(items, key=len, default="")
    if len(longest) > dtype.itemsize // np.dtype(f"{dtype.kind}1").itemsize:
        unit = "bytes" if dtype.kind == "S" else "characters"
        raise misfit(
            f"Mismatched dtypes for variable {name}: the string {longest!r}",  # xarray's wording
            {},
            dtype,
            f"Pass a dtype of at least {len(longest)} {unit}, or leave out the dtype. If the "
            "variable is already stored, write it to a new store",
            name,
        )
    return np.array(items, dtype).reshape(values.shape)


def as_bytes(values: Any) -> list[Any]:
    """Return the items of an array as a list of bytes objects, encoding strings as UTF-8.

    Raises
    ------
    ConflictError
        If a string is not valid Unicode.
    """
    try:
        return [
            item.encode("utf-8", "surrogateescape") if isinstance(item, str) else item
            for item in values.ravel().tolist()
        ]
    except UnicodeEncodeError as error:
        raise _unicode_error(error.object, error.reason) from error


def _as_texts(values: Any) -> list[Any]:
    try:
        items = values.ravel().tolist()
        return [item.decode() if isinstance(item, bytes) else item for item in items]
    except UnicodeDecodeError as error:
        raise ConflictError(
            f"the bytes are not valid UTF-8 ({error.reason})",
            remedy="Pass a bytes dtype in the encoding, such as 'S8'. If the variable is already "
            "stored, write it to a new store",
        ) from error


def _objects(block: Any) -> int:
    texts = [isinstance(item, str) for item in block.ravel().tolist()]
    if all(texts):
        return _TEXTS if texts else _MISSING
    is_other = ~(np.array(texts) | _missing(block).ravel())
    return _OTHERS if is_other.any() else _TEXTS if any(texts) else _MISSING


@blockwise
def without_missing(block: Any, dtype: np.dtype[Any], fill: Any = "") -> Any:
    """Replace missing items, such as None, with `fill`, and convert the array to a string dtype."""
    texts = np.empty(block.shape, dtype)
    texts[...] = np.where(_missing(block), np.array(fill, object), block)
    return texts


def _missing(block: Any) -> Any:
    return Variable("x", block.ravel()).isnull().to_numpy().reshape(block.shape)
