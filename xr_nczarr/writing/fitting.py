"""Numbers and times in the type that an encoding asks for: refused where NumPy would wrap them."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
from xarray import Variable
from xarray.coding.times import CFDatetimeCoder, CFTimedeltaCoder
from xarray.coding.variables import CFScaleOffsetCoder

from xr_nczarr.errors import ConflictError
from xr_nczarr.writing.sources import block_variable, blockwise

PACKING = ("scale_factor", "add_offset")
_TOLD = (*PACKING, "units", "_FillValue")
_KEYS = (*_TOLD, "missing_value", "calendar", "dtype", "_Unsigned")


def fitting(variable: Variable, name: str) -> Variable:
    """Give a variable whose values are known to fit the dtype in its encoding.

    NumPy's are checked at once, dask's block by block when they are computed. Rounding is what the
    encoding asks for; numbers beyond the type's range, and NaN and NaT as integers that have no
    value for it (without a `_FillValue`), are a ConflictError.
    """
    encoding = {key: variable.encoding[key] for key in _KEYS if key in variable.encoding}
    if variable.dtype.kind in "mMO":
        return _fitting_times(variable, encoding, name)
    packed = _is_packed(encoding)
    dtype = np.dtype(encoding.get("dtype", packing_dtype(variable.dtype, encoding)))
    if dtype.kind == "b" and fill_value_of(encoding) is not None:
        raise ConflictError(
            f"truth values have none to spare for the missing value {fill_value_of(encoding)!r}: "
            "it would be true or false, which then is missing",
            remedy="Leave out _FillValue, give a dtype such as int8, or drop_encoding()",
            variable=name,
        )
    kinds = variable.dtype.kind + dtype.kind
    if kinds in ("ci", "cu", "cf", "cb", "ib", "ub", "fb"):
        data = blockwise(_checked_exact, variable.data, dtype, encoding, dtype, name)
        return variable.to_base_variable().copy(data=data)
    if kinds[0] not in "biuf" or kinds[1] not in "iuf":
        return variable
    # Of such xarray takes the bits in the size that is given, whatever that is.
    by_bits = "_Unsigned" in encoding and dtype.kind in "iu"
    asked, stored = encoding, dtype
    dtype, encoding = without_sign(dtype, encoding)
    _check_fill(asked, stored, dtype, name)
    fill = fill_value_of(encoding)
    if np.can_cast(variable.dtype, dtype) and not packed and not by_bits:
        return variable
    variable = variable.to_base_variable().copy(deep=False)  # an index keeps its values
    given = np.dtype("f8") if by_bits and packed else packing_dtype(variable.dtype, encoding)
    data = blockwise(_checked, variable.data, given, given, encoding, dtype, name)
    if not packed and (by_bits or (given.kind == "f" and dtype.kind in "iu" and not _passes(fill))):
        data = blockwise(_filled, data, stored, dtype, stored, 0 if fill is None else fill)
    variable.data = data
    return variable


def _check_fill(
    encoding: Mapping[str, Any], stored: np.dtype[Any], meant: np.dtype[Any], name: str
) -> None:
    """Refuse a fill value that is no integer as they are stored, nor as they are meant."""
    fill = np.ravel(fill_value_of(encoding))
    if stored.kind not in "iu" or fill.tolist() == [None]:
        return
    types = (stored, meant)
    if fill.dtype.kind not in "biuf" or all(_outside(fill.tolist(), each).any() for each in types):
        raise _refused(fill[0], encoding, stored, name)


def with_float_scale(encoding: Mapping[str, Any]) -> dict[str, Any]:
    """Give an encoding whose scale is no integer: xarray would take its type for the values'."""
    scale = np.asarray(encoding.get("scale_factor"))
    whole = {"scale_factor": scale.astype("f8")[()]} if scale.dtype.kind in "iu" else {}
    return {**encoding, **whole}


def without_sign(
    dtype: np.dtype[Any], encoding: Mapping[str, Any]
) -> tuple[np.dtype[Any], dict[str, Any]]:
    """Give the type that ``_Unsigned`` says the stored one is meant as, and the encoding in it."""
    encoding = dict(encoding)
    kind = {"true": "u", "false": "i"}.get(str(encoding.pop("_Unsigned", None)), dtype.kind)
    if dtype.kind not in "iu" or kind == dtype.kind:
        return dtype, encoding
    meant = np.dtype(dtype.str.replace(dtype.kind, kind))
    for key in ("_FillValue", "missing_value"):
        if encoding.get(key) is not None:
            with np.errstate(invalid="ignore"):  # one that fits neither is refused
                encoding[key] = np.asarray(encoding[key]).astype(dtype).view(meant)[()]
    return meant, encoding


def _is_packed(encoding: Mapping[str, Any]) -> bool:
    return any(encoding.get(key) is not None for key in PACKING)


def _outside(numbers: list[Any], dtype: np.dtype[Any]) -> Any:
    """Tell which numbers are beyond an integer type; those of Python compare exactly."""
    range_ = np.iinfo(dtype)
    return np.array([not range_.min <= each <= range_.max for each in numbers])


def fill_value_of(encoding: Mapping[str, Any]) -> Any:
    """Give what stands for missing values, None if nothing does."""
    fill = encoding.get("_FillValue")
    return encoding.get("missing_value") if fill is None else fill


def _passes(fill: Any) -> bool:
    """Tell whether a fill value is the same after xarray puts it among floats, for NaN."""
    number = np.asarray(fill).item()
    return number is None or int(float(number)) == number


def _filled(numbers: Any, dtype: np.dtype[Any], stored: np.dtype[Any], fill: Any) -> Any:
    """Give numbers as integers, NaN as the fill value, in the bits of the stored ones."""
    filled = np.full(numbers.shape, fill, dtype)
    np.copyto(filled, np.around(numbers), casting="unsafe", where=~np.isnan(numbers))
    return filled.view(stored)


def _fitting_times(variable: Variable, encoding: Mapping[str, Any], name: str) -> Variable:
    dtype = np.dtype(encoding.get("dtype", variable.dtype))
    widest = dtype.kind == "i" and dtype.itemsize == 8  # whose least integer is NaT
    if dtype.kind not in "iu" or (widest and not _is_packed(encoding)):
        return variable
    if variable.dtype == object and hasattr(variable.data, "dask"):
        return variable
    # xarray tells it again, when it encodes them. Where dask computes, threads share the filters.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = blockwise(_checked_times, variable.data, variable.dtype, encoding, dtype, name)
    return variable.copy(data=data) if hasattr(data, "dask") else variable


def _checked_times(times: Any, encoding: Mapping[str, Any], dtype: np.dtype[Any], name: str) -> Any:
    given = block_variable(times, encoding)
    encoded = CFTimedeltaCoder().encode(CFDatetimeCoder().encode(given, name), name)
    if "units" not in encoded.attrs:  # objects that are no times
        return times
    numbers = encoded.to_numpy()
    missing, fill = given.isnull().to_numpy(), fill_value_of(encoding)
    held = _passes(fill) if numbers.dtype.kind == "f" else not _outside([fill or 0], numbers.dtype)
    if missing.any() and (fill is None or not held):
        raise ConflictError(
            f"found a missing time (NaT), which {dtype} of the encoding has no value for",
            remedy="Give a _FillValue in encoding, or a dtype of int64 or float64",
            variable=name,
        )
    told = {**encoded.encoding, "units": encoded.attrs["units"]}
    _checked(numbers[~missing], numbers.dtype, told, dtype, name)
    return times


def packing_dtype(dtype: np.dtype[Any], encoding: Mapping[str, Any]) -> np.dtype[Any]:
    """Give the dtype to pack numbers in, since xarray does it in place, and fails for integers."""
    if dtype.kind == "f":
        return dtype
    scale, offset = encoding.get("scale_factor"), encoding.get("add_offset")
    whole = dtype if offset is None else np.result_type(dtype, np.asarray(offset))
    return whole if scale is None else np.dtype("f8")


def _checked(
    data: Any, kept: np.dtype[Any], encoding: Mapping[str, Any], dtype: np.dtype[Any], name: str
) -> Any:
    given = data.astype(kept, copy=False)
    if not given.size:
        return given
    lowest, highest = np.fmin.reduce(given, None), np.fmax.reduce(given, None)
    extremes = np.array([lowest, highest], given.dtype)
    with np.errstate(all="ignore"):
        packed = CFScaleOffsetCoder().encode(block_variable(extremes, encoding)).to_numpy()
        if dtype.kind == "f":
            wrong = np.isfinite(extremes) & ~np.isfinite(packed.astype(dtype))
        else:
            wrong = ~np.isnan(extremes) & _outside(np.around(packed).tolist(), dtype)
            lost = fill_value_of(encoding) is None or (
                _is_packed(encoding) and not _passes(fill_value_of(encoding))
            )
            if lost and given.dtype.kind == "f" and np.isnan(given).any():
                extremes, wrong = np.append(extremes, np.nan), np.append(wrong, True)
    if given.dtype.kind in "iu":  # what is between them and the offset wraps as well
        exact = [each - int(encoding.get("add_offset") or 0) for each in extremes.tolist()]
        wrong |= _outside(exact, given.dtype)
    if wrong.any():
        raise _refused(extremes[wrong][0], encoding, dtype, name)
    return given


def _checked_exact(data: Any, encoding: Mapping[str, Any], dtype: np.dtype[Any], name: str) -> Any:
    """Give numbers as booleans, and complex ones as real ones, where these are the same."""
    held = data.real.astype(dtype)
    if (data != held).any():
        raise _refused(data[data != held][0], encoding, dtype, name)
    return held


def _refused(
    value: Any, encoding: Mapping[str, Any], dtype: np.dtype[Any], name: str
) -> ConflictError:
    asked = {"dtype": dtype.name} | {key: encoding[key] for key in _TOLD if key in encoding}
    return ConflictError(
        f"the value {value} does not fit the encoding "
        + ", ".join(f"{key} {value}" for key, value in asked.items()),
        remedy="Ask for a wider dtype, another scale_factor or (for NaN) a _FillValue in "
        "encoding; what opening left goes with drop_encoding()",
        variable=name,
    )
