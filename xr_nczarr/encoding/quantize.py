"""Round numbers to fewer significant digits, as netCDF does, so that they compress better."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from xr_nczarr.encoding.blockwise import blockwise
from xr_nczarr.encoding.number_encoding import misfit
from xr_nczarr.errors import ConflictError

Array = npt.NDArray[Any]

QUANTIZING_KEYS = ("least_significant_digit", "significant_digits")
_ATTRIBUTES = {
    "BitGroom": "_QuantizeBitGroomNumberOfSignificantDigits",
    "BitRound": "_QuantizeBitRoundNumberOfSignificantBits",
    "GranularBitRound": "_QuantizeGranularBitRoundNumberOfSignificantDigits",
}
_BITS_PER_DIGIT = math.log2(10)


def quantized(
    data: Any, encoding: Mapping[str, Any], missing: Sequence[Any], name: str
) -> tuple[Any, dict[str, Any]]:
    """Round float32 and float64 numbers as specified in an encoding.

    The encoding must contain one of these keys:

    - ``least_significant_digit`` is the number of decimal places to keep.
    - ``significant_digits`` is the number of significant digits to keep. The key ``quantize_mode``
      selects the algorithm: BitGroom (the default), BitRound or GranularBitRound. BitRound counts
      bits instead of decimal digits.

    Data of any other dtype is returned unchanged.

    Parameters
    ----------
    missing
        The values that mark missing data. They are not rounded.

    Returns
    -------
    The rounded data, and the attributes that record the rounding. If the data is not rounded, the
    attribute ``least_significant_digit`` is still returned, but no attribute records
    ``significant_digits``.

    Raises
    ------
    ConflictError
        If ``least_significant_digit`` is not a number, if ``significant_digits`` is out of range,
        if the mode is unknown, or if rounding would turn a number into infinity or a missing value.
    """
    recorded = digit_attribute(encoding)
    if data.dtype.kind != "f" or data.dtype.itemsize not in (4, 8):
        return data, recorded
    if recorded:
        digit: Any = recorded["least_significant_digit"]
        if not isinstance(digit, int | float | np.integer | np.floating):
            raise ConflictError(f"least_significant_digit must be a number, not {digit!r}")
        # The smallest power of two that keeps the digit, as in netCDF4.
        scale = 2.0 ** math.ceil(math.log2(10.0 ** abs(float(digit))))
        scale = scale if digit >= 0 else 1 / scale
        rounded = _quantized(data, data.dtype, _rounded, scale, missing, name)
        return rounded, recorded
    mode = encoding.get("quantize_mode") or "BitGroom"
    digits = encoding["significant_digits"]
    max_digits = {4: 7, 8: 15}[data.dtype.itemsize]
    max_digits = np.finfo(data.dtype).nmant if mode == "BitRound" else max_digits
    if mode not in _ATTRIBUTES:
        raise ConflictError(f"quantize_mode must be one of {', '.join(_ATTRIBUTES)}, not {mode!r}")
    if not isinstance(digits, int | np.integer) or not 1 <= digits <= max_digits:
        raise ConflictError(
            f"significant_digits must be from 1 to {max_digits} for dtype {data.dtype} and "
            f"quantize_mode={mode!r}, not {digits!r}",
            remedy="Correct the encoding or, for a stored variable, its attribute",
        )
    rounding = {"BitGroom": _groomed, "BitRound": _bit_rounded, "GranularBitRound": _granular}
    rounded = _quantized(data, data.dtype, rounding[mode], int(digits), missing, name)
    return rounded, {_ATTRIBUTES[mode]: np.int32(digits)}


def quantized_as_recorded(
    data: Any, attributes: Mapping[str, Any], missing: Sequence[Any], name: str
) -> Any:
    """Round numbers to the number of digits that the attributes of a stored variable record.

    netCDF-C rounds appended numbers in the same way. If no attribute records a number of
    significant digits, the numbers are returned unchanged. For `missing` and errors, see
    `quantized`.
    """
    for mode, attribute in _ATTRIBUTES.items():
        if attribute in attributes:
            encoding = {"quantize_mode": mode, "significant_digits": attributes[attribute]}
            data, _ = quantized(data, encoding, missing, name)
    return data


def digit_attribute(encoding: Mapping[str, Any]) -> dict[str, Any]:
    """Return a dict with the ``least_significant_digit`` of an encoding, or an empty dict.

    xarray's netcdf4 engine moves this attribute to the encoding of variables of any dtype.
    """
    digit = encoding.get("least_significant_digit")
    return {} if digit is None else {"least_significant_digit": digit}


@blockwise
def _quantized(
    values: Array,
    dtype: np.dtype[Any],
    rounding: Callable[[Array, Any], Array],
    digits: float,
    missing: Sequence[Any],
    name: str,
) -> Array:
    """Round all values except missing values, zeros, infinities and NaN.

    Raise ConflictError if rounding would turn a value into infinity or a missing value.
    """
    marks = np.array([mark for mark in missing if np.asarray(mark).dtype.kind in "iuf"], dtype)
    kept = ~np.isfinite(values) | (values == 0) | np.isin(values, marks)
    with np.errstate(over="ignore"):
        rounded = np.where(kept, values, rounding(values, digits)).astype(dtype)
    lost = ~kept & (~np.isfinite(rounded) | np.isin(rounded, marks))
    if lost.any():
        problem = f"the value {values[lost][0]}, which would be rounded to {rounded[lost][0]},"
        remedy = "Keep more digits, or choose a wider dtype or another _FillValue in the encoding"
        raise misfit(problem, {}, dtype, remedy, name)
    return rounded


def _rounded(values: Array, scale: float) -> Array:
    rounded: Array = np.around(scale * values) / scale
    # If the product overflows, the number is so large that it has no fractional digits.
    return np.where(np.isfinite(rounded), rounded, values)


def _as_bits(values: Array) -> Array:
    native = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
    return native.view(f"u{values.dtype.itemsize}")


def _from_bits(bits: Array, values: Array) -> Array:
    return bits.view(f"f{values.dtype.itemsize}").reshape(values.shape)


def _rounded_off(values: Array, drop: Any) -> Array:
    """Round each value to the nearest number whose last `drop` bits are zero.

    Ties are rounded away from zero. `drop` is either a single number or an array with one number
    per value.
    """
    bits = _as_bits(values)
    unit = bits.dtype.type(1)
    ones = np.left_shift(unit, np.asarray(drop, bits.dtype)) - unit
    return _from_bits((bits + ((ones + unit) >> unit)) & ~ones, values)


def _bit_rounded(values: Array, keep: int) -> Array:
    return _rounded_off(values, np.finfo(values.dtype).nmant - keep)


def _groomed(values: Array, digits: int) -> Array:
    """Clear or set the bits that are not needed for `digits` significant digits (BitGroom)."""
    bits = _as_bits(values)
    kept = math.ceil(digits * _BITS_PER_DIGIT) + 1
    drop = max(0, np.finfo(values.dtype).nmant - kept)
    ones = bits.dtype.type((1 << drop) - 1)
    # BitGroom clears the bits in the first value, sets them in the second value, and so on.
    odd = (np.arange(bits.size) % 2 == 1).reshape(bits.shape)
    return _from_bits(np.where(odd, bits | ones, bits & ~ones), values)


def _granular(values: Array, digits: int) -> Array:
    """Round off the bits that are not needed for `digits` significant digits (GranularBitRound)."""
    usable = np.where(np.isfinite(values) & (values != 0), np.abs(values), 1).astype("f8")
    mantissa, exponent = np.frexp(usable)
    decimal = np.floor(exponent * math.log10(2) + np.log10(mantissa)) + 1
    quantum = np.floor(_BITS_PER_DIGIT * (decimal - digits))
    power = np.floor(exponent - _BITS_PER_DIGIT * np.log10(mantissa))
    needed = np.abs(power - quantum).astype(int) - 1
    explicit = np.finfo(values.dtype).nmant
    return _rounded_off(values, np.clip(explicit - needed, 0, explicit + 1))
