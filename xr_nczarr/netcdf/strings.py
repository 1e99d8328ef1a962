"""netCDF strings in fixed width: UTF-8, padded with NUL, never cut.

Bytes that are no UTF-8 (an older program's Latin-1) survive reading and writing unchanged, as
Python's own file names do: they become lone surrogates.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from xr_nczarr.errors import ConflictError, quote


def measured_width(values: NDArray[Any]) -> int:
    """Give the bytes that the longest of `values` takes in UTF-8, at least 1."""
    return max(map(len, _encoded(values)), default=1) or 1


def encode_strings(values: NDArray[Any], width: int) -> NDArray[np.bytes_]:
    """Give `values` (str, or bytes taken as they are) as an array of dtype ``S<width>``.

    One that is no text or does not fit is a ConflictError: nothing is ever cut.
    """
    encoded = _encoded(values)
    longest = max(map(len, encoded), default=0)
    if longest > width:
        raise ConflictError(
            f"found a string of {longest} bytes in UTF-8, expected at most {width}",
            remedy=f"Write the variable with _nczarr_maxstrlen={longest} or more",
        )
    return np.array(encoded, f"S{width}").reshape(values.shape)


def decode_strings(values: NDArray[np.bytes_]) -> NDArray[Any]:
    """Give an array of dtype ``S`` as an object array of str."""
    decoded = np.empty(values.size, object)
    decoded[:] = [value.decode("utf-8", "surrogateescape") for value in values.ravel().tolist()]
    return decoded.reshape(values.shape)


def _encoded(values: NDArray[Any]) -> list[bytes]:
    items = values.ravel().tolist()
    try:  # all at once, which takes a fifth of the time
        encoded = "\0".join(items).encode("utf-8", "surrogateescape").split(b"\0")
    except (TypeError, UnicodeEncodeError):
        encoded = []
    return encoded if len(encoded) == len(items) else [_encoded_item(item) for item in items]


def _encoded_item(value: object) -> bytes:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise ConflictError(f"found {quote(type(value).__name__)} among strings, expected text")
    if "\0" in value:
        raise ConflictError(
            "found a NUL in a string: netCDF's strings end there",
            remedy="Remove it, or write pure Zarr with dialect='zarr'",
        )
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise ConflictError(f"found text that is not Unicode ({error.reason})") from error
