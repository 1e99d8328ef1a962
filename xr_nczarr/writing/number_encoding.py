"""Numbers in an encoding: packed, rounded, checked, with a value for missing ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from xarray.coding.variables import CFMaskCoder, CFScaleOffsetCoder

from xr_nczarr.errors import ConflictError
from xr_nczarr.writing.blocks import block_variable

PACKING_KEYS = ("scale_factor", "add_offset")
SHOWN_KEYS = (*PACKING_KEYS, "units", "calendar", "_FillValue")
"""The keys of an encoding that errors show."""

_WIDER = (
    "Choose a wider dtype, another scale_factor or (for NaN) a _FillValue in encoding. Call "
    "drop_encoding() to discard the encoding that opening left"
)
_ELSEWHERE = "Convert the values first, or write the variable to a new store in another encoding"


def checked_numbers(
    data: Any, kept: np.dtype[Any], encoding: Mapping[str, Any], dtype: np.dtype[Any], name: str
) -> Any:
    """Return numbers in the type in which they are packed, if they fit the encoding.

    Packing and rounding keep their order, so that the extremes decide for all numbers.
    """
    numbers = data.astype(kept, copy=False)
    if not numbers.size:
        return numbers
    checked = np.array([np.fmin.reduce(numbers, None), np.fmax.reduce(numbers, None)], kept)
    if kept.kind == "f" and np.isnan(numbers).any():
        checked = np.append(checked, checked.dtype.type(np.nan))
    fill = fill_value_of(encoding)
    # xarray packs a fill value as a float: among integers, one that is none is no value for NaN.
    filled = dtype.kind == "f" or not is_packed(encoding) or is_float(fill)
    filled = filled and fill is not None
    with np.errstate(all="ignore"):
        packed = CFScaleOffsetCoder().encode(block_variable(checked, encoding))
    lost = _beyond(checked, packed.to_numpy(), encoding, dtype, filled=filled)
    if lost.any():
        raise misfit(f"the value {checked[lost][0]}", encoding, dtype, _WIDER, name)
    return numbers


def encoded_numbers(
    data: Any,
    encoding: dict[str, Any],
    dtype: np.dtype[Any],
    kept: np.dtype[Any],
    exactly: bool,
    path: str,
) -> Any:
    """Return numbers in the stored encoding, if they come back as they are.

    Parameters
    ----------
    dtype, kept
        The stored type as `_Unsigned` means it, and as it is.
    exactly
        Whether packing may not round to its steps, since the values come from finer ones.
    """
    marks = _marks(encoding)
    if data.dtype == dtype and not is_packed(encoding) and all(mark != mark for mark in marks):
        return data.view(kept)  # nothing is changed, and only NaN stands for missing values
    numbers = data.astype(packing_dtype(data.dtype, encoding), copy=False)
    # xarray writes both, of different values, but encodes nothing more with them.
    alone = {"missing_value": None} if encoding.get("_FillValue") is not None else {}
    with np.errstate(all="ignore"):
        variable = CFScaleOffsetCoder().encode(block_variable(numbers, encoding | alone))
        integral = dtype.kind in "iu"
        # Floats that are beyond their type do not come back as they are.
        lost = integral and _beyond(
            numbers, variable.to_numpy(), encoding, dtype, filled=bool(marks)
        )
        packed = CFMaskCoder().encode(variable).to_numpy()
        if integral and packed.dtype.kind == "f":
            packed = np.around(packed)
        stored = packed.astype(dtype)
        missing = _missing(data)
        if marks and integral and missing.any():  # floats do not hold every integer
            stored = np.where(missing, dtype.type(fill_value_of(encoding)), stored)
            stored = stored.astype(dtype, copy=False)
        filled = np.isnan(stored) if not marks and not integral else np.zeros(data.shape, bool)
        for mark in marks:
            same = stored == (mark if integral else dtype.type(mark))  # an integer may be beyond it
            filled = filled | (np.isnan(stored) if mark != mark else same)
    wrong = filled | ~_near(data, stored, encoding, exactly=exactly)
    lost = np.where(missing, ~filled, wrong) | lost
    if lost.any():
        raise misfit(f"the value {data[lost].ravel()[0]}", encoding, dtype, _ELSEWHERE, path)
    return stored.view(kept)


def _beyond(
    numbers: Any, packed: Any, encoding: Mapping[str, Any], dtype: np.dtype[Any], *, filled: bool
) -> Any:
    """Return which numbers have no value in the range of the stored type.

    `filled` says whether the encoding has a value for NaN among integers.
    """
    with np.errstate(all="ignore"):
        if dtype.kind == "f":
            beyond = np.isfinite(numbers) & ~np.isfinite(packed.astype(dtype))
        else:
            missing = _missing(numbers)
            beyond = np.where(missing, not filled, ~in_range(packed, dtype))
        if numbers.dtype.kind in "iu":  # the difference from the offset wraps, too
            offset, range_ = int(encoding.get("add_offset") or 0), np.iinfo(numbers.dtype)
            beyond = beyond | (numbers < range_.min + offset) | (numbers > range_.max + offset)
    return beyond


def in_range(packed: Any, dtype: np.dtype[Any]) -> Any:
    """Return which numbers are in the range of an integer type once they are rounded."""
    range_ = np.iinfo(dtype)
    if packed.dtype.kind != "f":
        return (packed >= range_.min) & (packed <= range_.max)
    rounded = np.around(packed)
    # Both bounds are powers of two or 0, which floats hold exactly, unlike the largest integer.
    within = (rounded >= float(range_.min)) & (rounded < float(range_.max + 1))
    return within & np.isfinite(rounded)


def _near(data: Any, stored: Any, encoding: Mapping[str, Any], *, exactly: bool) -> Any:
    """Return which stored numbers decode to the original ones, within the rounding of packing."""
    scale, offset = encoding.get("scale_factor"), encoding.get("add_offset", 0)
    inexact = [array.dtype for array in (data, stored) if array.dtype.kind == "f"]
    with np.errstate(all="ignore"):
        decoded = stored + offset if scale is None else stored.astype("f8") * scale + offset
        room = 2 * np.abs(data) * max((np.finfo(kind).eps for kind in inexact), default=0)
        if scale is not None and stored.dtype.kind in "iu":
            room = room + abs(float(scale)) * (1e-6 if exactly else 0.5 + 1e-6)
        # Integers are not subtracted as such: the difference from the least wraps.
        wide = np.result_type(decoded, data, np.float32)
        near = np.abs(np.subtract(decoded, data, dtype=wide)) <= room
        return (np.isfinite(data) & near) | (decoded == data)


def _missing(numbers: Any) -> Any:
    return np.isnan(numbers) if numbers.dtype.kind == "f" else np.zeros(numbers.shape, bool)


def _marks(encoding: Mapping[str, Any]) -> list[Any]:
    """Return all values that stand for missing ones."""
    values = [encoding.get(key) for key in ("_FillValue", "missing_value")]
    return [mark for value in values if value is not None for mark in np.ravel(value)]


def misfit(
    subject: str, encoding: Mapping[str, Any], dtype: np.dtype[Any], remedy: str, name: str = ""
) -> ConflictError:
    """Return the error for a value that an encoding does not hold."""
    shown = {"dtype": dtype.name}
    shown |= {key: encoding[key] for key in SHOWN_KEYS if encoding.get(key) is not None}
    return ConflictError(
        f"{subject} does not fit the encoding "
        + ", ".join(f"{key} {item}" for key, item in shown.items()),
        remedy=remedy,
        variable=name or None,
    )


def equal_in_type(data: Any, encoding: Mapping[str, Any], dtype: np.dtype[Any], name: str) -> Any:
    """Return numbers as booleans, and complex ones as real ones, if they are equal."""
    held = data.real.astype(dtype)
    if (data != held).any():
        raise misfit(f"the value {data[data != held][0]}", encoding, dtype, _WIDER, name)
    return held


def check_fill(
    encoding: Mapping[str, Any], stored: np.dtype[Any], meant: np.dtype[Any], name: str
) -> None:
    """Raise ConflictError for a fill value that neither of two integer types holds."""
    fill = np.ravel(fill_value_of(encoding))
    if stored.kind not in "iu" or fill.tolist() == [None]:
        return
    types = (stored, meant)
    numeric = fill.dtype.kind in "biuf"
    if not numeric or not any(in_range(fill, dtype).all() for dtype in types):
        raise misfit(f"the value {fill[0]}", encoding, stored, _WIDER, name)


def with_float_scale(encoding: Mapping[str, Any]) -> dict[str, Any]:
    """Return an encoding whose scale is a float: xarray stores values in the type of the scale."""
    scale = np.asarray(encoding.get("scale_factor"))
    whole = {"scale_factor": scale.astype("f8")[()]} if scale.dtype.kind in "iu" else {}
    return {**encoding, **whole}


def without_sign(
    dtype: np.dtype[Any], encoding: Mapping[str, Any]
) -> tuple[np.dtype[Any], dict[str, Any]]:
    """Return the type that ``_Unsigned`` makes of the stored one, and the encoding in that type."""
    encoding = dict(encoding)
    kind = {"true": "u", "false": "i"}.get(str(encoding.pop("_Unsigned", None)), dtype.kind)
    if dtype.kind not in "iu" or kind == dtype.kind:
        return dtype, encoding
    meant = np.dtype(dtype.str.replace(dtype.kind, kind))
    for key in ("_FillValue", "missing_value"):
        if encoding.get(key) is not None:
            with np.errstate(invalid="ignore"):  # one that fits neither type is an error
                encoding[key] = np.asarray(encoding[key]).astype(dtype).view(meant)[()]
    return meant, encoding


def is_packed(encoding: Mapping[str, Any]) -> bool:
    """Return whether an encoding has a scale or an offset."""
    return any(encoding.get(key) is not None for key in PACKING_KEYS)


def fill_value_of(encoding: Mapping[str, Any]) -> Any:
    """Return the value that is stored for missing ones, None if there is none."""
    fill = encoding.get("_FillValue")
    return encoding.get("missing_value") if fill is None else fill


def is_float(fill: Any) -> bool:
    """Return whether a fill value is the same as a float, in which xarray puts it for NaN."""
    number = np.asarray(fill).item()
    return number is None or int(float(number)) == number


def filled_numbers(numbers: Any, dtype: np.dtype[Any], stored: np.dtype[Any], fill: Any) -> Any:
    """Return numbers as integers, NaN as the fill value, in the bits of the stored type."""
    filled = np.full(numbers.shape, fill, dtype)
    np.copyto(filled, np.around(numbers), casting="unsafe", where=~np.isnan(numbers))
    return filled.view(stored)


def packing_dtype(dtype: np.dtype[Any], encoding: Mapping[str, Any]) -> np.dtype[Any]:
    """Return the type in which numbers are packed; xarray packs in place, and fails in integers."""
    if dtype.kind == "f":
        return dtype
    scale, offset = encoding.get("scale_factor"), encoding.get("add_offset")
    whole = dtype if offset is None else np.result_type(dtype, np.asarray(offset))
    return whole if scale is None else np.dtype("f8")
