"""Convert stored variables to another layout, changing only what the layout requires."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr

from xr_nczarr.encoding.blockwise import largest
from xr_nczarr.encoding.strings import string_data, unpadded
from xr_nczarr.encoding.time_units import in_encoded_unit
from xr_nczarr.encoding.variables import EncodedVariable, encode_alone, fill_scalar
from xr_nczarr.errors import ConflictError
from xr_nczarr.netcdf import Layout, Variable
from xr_nczarr.netcdf.annotations import DEFAULT_WIDTH, WIDTH
from xr_nczarr.netcdf.attributes import is_fill_value
from xr_nczarr.netcdf.fixed_width import measured_width
from xr_nczarr.netcdf.types import default_fill

_OBJECT = np.dtype(object)
_MASKED = {True: "biufcSUO", False: "biufc"}
"""The kinds of dtypes whose fill value can mask values.

The key is True for plain Zarr, and False for NCZarr.
"""


def relayout(
    variable: Variable,
    data: Any,
    layout: Layout,
    encoding: Mapping[str, Any],
    *,
    complete: bool,
    explicit: bool,
    default_width: Any = None,
) -> EncodedVariable:
    """Convert a stored variable to the data types of a target layout.

    Parameters
    ----------
    data
        The stored values (a NumPy or dask array), in the dtype of the variable's node.
    encoding
        Encoding keys for chunks and codecs. If `explicit` is True, the caller requested them.
        Otherwise, they come from the variable.
    complete
        Whether all values are stored. If so, the array needs no fill value.
    default_width
        The width of strings in bytes, from an attribute of the root group. It applies to variables
        without a width attribute of their own.

    Raises
    ------
    ConflictError
        If a string is longer than the width that an attribute of the source declares.
    UnsupportedError
        If the layout does not support the type.
    """
    assert variable.node is not None
    dtype, attributes = data.dtype, dict(variable.attributes)
    kind = "char" if dtype == "S1" and variable.kind == "other" else variable.kind
    # Values encoded as JSON or msgpack are usually text.
    unknown = dtype.hasobject and all(spec.name != "vlen-bytes" for spec in variable.node.codecs)
    if kind == "other" and (unknown or not layout.is_plain_zarr):
        return _encode_with_xarray(variable, data, layout, encoding, explicit)
    fill = _fill_value(variable, layout, complete)
    if variable.kind == "string":
        data = _strings(variable, data, layout, default_width)
        fill = None if fill is None else fill_scalar(fill, data.dtype)
        if is_fill_value(attributes.get("_FillValue"), data.dtype):
            attributes["_FillValue"] = fill_scalar(attributes["_FillValue"], data.dtype)
    elif dtype.names is not None and not layout.zarr.mixes_byte_orders:
        data = data.astype(dtype.newbyteorder("="))
    if layout.is_plain_zarr and not data.dtype.hasobject:
        kind = "other"
    return EncodedVariable(
        dimensions=tuple([dimension.name for dimension in variable.dimensions]),
        data=data,
        kind=kind,
        attributes=attributes,
        fill_value=fill,
        encoding=encoding,
        explicit=explicit,
    )


def _strings(variable: Variable, data: Any, layout: Layout, default_width: Any) -> Any:
    is_fixed = data.dtype.kind == "S"
    if layout.zarr.has_filters and is_fixed is not layout.is_plain_zarr:
        return data
    if layout.is_plain_zarr:
        return string_data(unpadded(data, _OBJECT) if is_fixed else data, None, layout, None)
    name = WIDTH if WIDTH in variable.attributes else DEFAULT_WIDTH
    width = variable.attributes.get(WIDTH, default_width)
    if getattr(width, "dtype", _OBJECT).kind not in "iu" or np.ndim(width) or width < 1:
        width = None  # an invalid width, which netCDF-C does not accept either
    if width is not None and (longest := largest(measured_width, data)) > width:
        raise ConflictError(
            f'the longest string takes {longest} bytes in UTF-8, but the attribute "{name}" '
            f"allows at most {width}",
            remedy="Correct or remove the attribute in the source",
        )
    fill = variable.attributes.get("_FillValue")
    return string_data(data, width, layout, fill if is_fill_value(fill, data.dtype) else None)


def _fill_value(variable: Variable, layout: Layout, complete: bool) -> Any:
    """Return a fill value for the copied array that does not mask any value of the source.

    The source's fill value is kept if the Zarr version requires one, if the source has a
    ``_FillValue`` attribute, or if its dtype is not in `_MASKED`. Otherwise:

    - Zero is left out, because missing chunks of an array without a fill value are read as zeros.
    - In plain Zarr, readers treat the ``fill_value`` as ``_FillValue``. NaN is kept, because it
      masks only NaN, but is left out if all values are stored (`complete`). All other fill values
      are left out.
    - In NCZarr, NaN is kept. Any other number is replaced with netCDF's default fill value, which
      never masks data.
    """
    assert variable.node is not None
    fill, dtype = variable.node.fill_value, variable.node.dtype
    if layout.zarr.requires_fill_value:
        return variable.fill_value
    if "_FillValue" in variable.attributes or dtype.kind not in _MASKED[layout.is_plain_zarr]:
        return fill
    if fill is None or not fill or (layout.is_plain_zarr and complete):
        return None
    if fill == fill and (layout.is_plain_zarr or fill != default_fill(dtype)):
        return None if layout.is_plain_zarr else default_fill(dtype)
    return fill


def _encode_with_xarray(
    variable: Variable,
    data: Any,
    layout: Layout,
    encoding: Mapping[str, Any],
    explicit: bool,
) -> EncodedVariable:
    """Encode booleans, times and byte strings as `to_netcdf` does.

    netCDF has no types for them.
    """
    if data.dtype.kind in "mM":
        data = in_encoded_unit(data, variable.path)
    # xarray does not support repeated dimension names.
    names = [f"dimension {axis}" for axis in range(data.ndim)]
    stored = xr.Variable(names, data, dict(variable.attributes), dict(encoding))
    return encode_alone(stored, variable.name, layout, explicit)
