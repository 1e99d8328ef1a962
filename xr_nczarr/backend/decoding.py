"""CF masking and scaling, done to each chunk while it is in the processor's cache.

xarray decodes first and says what comes out: dtype, attributes and encoding. Where that is nothing
but masking, scaling and byte order, its chain of whole-array operations is replaced by the same
operations on each chunk, in the thread that decoded it; the values are bit for bit the same.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from xarray import Variable
from xarray.core.indexing import LazilyIndexedArray

from xr_nczarr.backend.lazy import LazyArray
from xr_nczarr.model import ArrayNode


@dataclass(frozen=True, slots=True)
class Unpacking:
    """What CF's attributes make of stored numbers.

    Attributes
    ----------
    missing
        Stored values that mean *missing* and become NaN.
    scale_factor, add_offset
        Multiplied and added in this order, in the dtype of the result; None for neither.
    """

    missing: tuple[Any, ...] = ()
    scale_factor: Any = None
    add_offset: Any = None

    def __call__(self, stored: npt.NDArray[Any], target: npt.NDArray[Any]) -> None:
        """Write the unpacked values into `target`, which may be `stored` itself."""
        if target is not stored:
            target[...] = stored
        # Compared after the conversion, as xarray does: large integers may meet there.
        masks = [target == value for value in self.missing]
        for mask in masks:
            target[mask] = np.nan
        if self.scale_factor is not None:
            target *= self.scale_factor
        if self.add_offset is not None:
            target += self.add_offset


def fuse_decoding(decoded: Variable, stored: LazyArray | None) -> Variable:
    """Give a decoded variable whose numbers are decoded chunk by chunk.

    Parameters
    ----------
    decoded
        As xarray decoded it, lazily.
    stored
        Its array before decoding; None if it has none.
    """
    unpacking = None if stored is None else find_unpacking(decoded, stored)
    if stored is None or unpacking is None:
        return decoded
    convert = unpacking if unpacking != Unpacking() else None
    array = LazyArray(stored.stored, decoded.dtype, stored.shape, convert)
    return Variable(
        decoded.dims, LazilyIndexedArray(array), decoded.attrs, decoded.encoding, fastpath=True
    )


def find_unpacking(decoded: Variable, array: LazyArray) -> Unpacking | None:
    """Give what was done to a variable, or None where it is more than masking and scaling."""
    stored = array.stored.node.dtype
    encoding = decoded.encoding
    plain = decoded.dtype.kind in "iuf" and stored.kind in "iuf" and decoded.shape == array.shape
    if not plain or "_Unsigned" in encoding or encoding.get("dtype", stored) != stored:
        return None
    missing: list[Any] = []
    for value in (encoding[name] for name in ("_FillValue", "missing_value") if name in encoding):
        values = np.ravel(value)
        if values.dtype.kind not in "iuf":
            return None
        missing += [one for one in values if one == one and one not in missing]  # without NaN
    scale, offset = (_scalar(encoding.get(name)) for name in ("scale_factor", "add_offset"))
    unpacking = Unpacking(tuple(missing), scale, offset)
    if decoded.dtype.kind != "f" and unpacking != Unpacking():
        return None
    return unpacking


def unpacked_fill(node: ArrayNode, fill_value: Any) -> Any:
    """Give the attribute `_FillValue` of an array as one of the values that it decodes to.

    That is what Zarr means, also with a filter ``fixedscaleoffset``; VirtualiZarr before 2.0 made
    such filters of CF's attributes and left `_FillValue` packed (its issue 670). Nothing tells the
    two apart: where it may be packed a warning says so, and it is taken for that only where no
    chunk can decode to it.
    """
    filters = [spec.configuration for spec in node.codecs if spec.name == "fixedscaleoffset"]
    is_number = isinstance(fill_value, np.generic) and fill_value.dtype.kind in "iuf"
    if len(filters) != 1 or not is_number or np.trunc(fill_value) != fill_value:
        return fill_value
    scale, offset, dtype = (filters[0][name] for name in ("scale", "offset", "dtype"))
    packed = np.dtype(str(filters[0].get("astype", dtype)))
    limits = np.iinfo(packed) if packed.kind in "iu" else None
    if limits is None or not limits.min <= fill_value <= limits.max:
        return fill_value

    def decoded(number: Any) -> Any:
        return (np.array(number, packed) / scale + offset).astype(node.dtype)[()]

    nearest = np.round((float(fill_value) - offset) * scale)
    possible = limits.min <= nearest <= limits.max and decoded(nearest) == fill_value
    other = decoded(fill_value)
    if other == fill_value:
        return fill_value
    meant, unmeant = (fill_value, other) if possible else (other, fill_value)
    warnings.warn(
        f"the _FillValue {fill_value} of {node.path} may be meant before or after its filter "
        f"fixedscaleoffset, and is taken for {meant} after it, not {unmeant}; "
        "mask_and_scale=False masks neither",
        stacklevel=2,
    )
    return meant


def _scalar(value: Any) -> Any:
    return value if value is None or np.ndim(value) == 0 else np.asarray(value).item()
