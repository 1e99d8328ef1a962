"""New values in the encoding of a stored variable: held exactly, or refused."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from xarray import SerializationWarning, Variable, conventions
from xarray.backends.common import ensure_dtype_not_object
from xarray.coding.strings import CharacterArrayCoder, EncodedStringCoder, is_unicode_dtype
from xarray.coding.times import CFDatetimeCoder, CFTimedeltaCoder
from xarray.coding.variables import CFMaskCoder, CFScaleOffsetCoder

from xr_nczarr.errors import ConflictError, reason_of
from xr_nczarr.netcdf import Variable as NetcdfVariable
from xr_nczarr.netcdf.strings import encode_strings, measured_width
from xr_nczarr.writing.datasets import is_time
from xr_nczarr.writing.fitting import (
    PACKING,
    fill_value_of,
    packing_dtype,
    with_float_scale,
    without_sign,
)
from xr_nczarr.writing.sources import block_variable, blockwise, largest
from xr_nczarr.writing.text import typed_text

_TIMES = "mM"
_TIME_KEYS = ("units", "calendar")
_UNITS = ("hours", "minutes", "seconds", "milliseconds", "microseconds")
# The kinds of stored types, by the kind of values that they can hold.
_HOLDING = {"b": "biufc", "i": "iufc", "u": "iufc", "f": "iufc", "c": "c", "M": "M", "m": "m"}
_COMPARED_BYTES = 4 << 20
_MAX_COMPARED_OBJECTS = 8
# What of an encoding says how values are stored, not in which chunks and by which codecs.
_VALUE_KEYS = frozenset((*PACKING, *_TIME_KEYS, "dtype", "_FillValue", "missing_value")) | {
    "_Unsigned",
    "_Encoding",
    "char_dim_name",
}


def encode_as_stored(
    variable: Variable,
    stored: Variable,
    name: str,
    target: NetcdfVariable,
    *,
    widening: bool = False,
) -> Any:
    """Return a variable's values as the stored variable of that name holds them.

    NumPy's values are checked at once, dask's block by block while they are written.

    Parameters
    ----------
    stored
        Decoded by xarray; its encoding says how.
    target
        What netCDF knows of the stored variable.
    widening
        Whether text that is longer than the stored width is returned in its own. It is measured at
        once.

    Raises
    ------
    ConflictError
        For what cannot be held: times between the units, numbers out of range or, unless they are
        packed, between the steps, missing values without a `_FillValue`, text that is too long.
    """
    assert target.node is not None
    _check_kind(variable, stored, name)
    dtype, chars = target.node.dtype, target.kind == "char"
    # The data of an index could not be replaced, and the copy caches for itself what it loads.
    given = variable.to_base_variable().copy(deep=False)
    if dtype.hasobject and target.kind == "other" and given.dtype == object:
        return given.data  # bytes of any length
    own_scale = {key: given.encoding[key] for key in PACKING if key in given.encoding}
    given.attrs = {}
    given.encoding = {key: value for key, value in stored.encoding.items() if key in _VALUE_KEYS}
    if given.dtype.kind in "iufb" and dtype.kind in "iuf":
        finer = any(given.encoding.get(key) != value for key, value in own_scale.items())
        meant, encoding = without_sign(dtype, with_float_scale(given.encoding))
        return blockwise(
            _encoded_block, given.data, dtype, encoding, meant, dtype, finer, target.path
        )
    time = is_time(given)
    if not time:
        given = ensure_dtype_not_object(typed_text(given, name), name=name)
    if is_unicode_dtype(given.dtype) and target.kind == "string" and dtype.kind == "S":
        width = max(dtype.itemsize, largest(measured_width, given.data) if widening else 0)
        return blockwise(encode_strings, given.data, np.dtype(f"S{width}"), width)
    if chars or (dtype.kind in "SU" and not time):
        fixed = np.dtype(f"S{(1, *target.node.shape)[-1]}") if chars else dtype
        given.data = blockwise(_in_width, given.data, fixed, fixed, name)
    with warnings.catch_warnings():  # not where dask computes: its threads share the filters
        if time:
            warnings.simplefilter("ignore")  # what is not held is refused
            return blockwise(_encoded_times, given.data, dtype, given.encoding, dtype, name)
        warnings.simplefilter("error", SerializationWarning)
        encoded = _cf_encoded(given, name)
    encoded = EncodedStringCoder(allows_unicode=True).encode(encoded, name=name)
    if chars:
        encoded = CharacterArrayCoder().encode(encoded, name=name)
    return blockwise(_as_type, encoded.data, dtype, dtype)


def _check_kind(given: Variable, stored: Variable, name: str) -> None:
    """Refuse what is another kind of value than is stored; numbers may be undecoded times."""
    units = stored.encoding.get("units")
    ours, theirs = (
        "M" if each.dtype == object and dated else each.dtype.kind
        for each, dated in ((given, is_time(given)), (stored, units is not None))
    )
    raw = ours in "iufb" and theirs in _TIMES and given.attrs.get("units", units) == units
    if given.size and not raw and theirs not in _HOLDING.get(ours, "OSUV"):
        raise ConflictError(
            f"Mismatched dtypes for variable {name}: found {given.dtype}, the store holds "
            f"{stored.dtype}",
            remedy="Convert the values first, or write the variable anew",
        )


def _in_width(values: Any, dtype: np.dtype[Any], name: str) -> Any:
    """Give texts or bytes in a type of fixed width, to which NumPy would cut them."""
    if dtype.kind == "S":
        found = _as_bytes(values)
    else:
        found = [item.decode() if isinstance(item, bytes) else item for item in values.ravel()]
    longest = max(map(len, found), default=0)
    width = dtype.itemsize // np.dtype(f"{dtype.kind}1").itemsize
    if longest > width:
        unit = "bytes" if dtype.kind == "S" else "characters"
        raise ConflictError(
            f"Mismatched dtypes for variable {name}: strings of {longest} {unit}, the store holds "
            f"{width}",
            remedy=f"Write the variable anew with a width of {longest}",
        )
    return np.array(found, dtype).reshape(values.shape)


def _cf_encoded(given: Variable, name: str) -> Variable:
    try:
        return conventions.encode_cf_variable(given, name=name)
    except (SerializationWarning, ValueError, OverflowError) as error:
        raise ConflictError(
            f"the values do not fit the stored encoding ({reason_of(error)})",
            remedy="Convert them first, or write the variable anew",
        ) from error


def _encoded_times(given: Any, encoding: dict[str, Any], dtype: np.dtype[Any], name: str) -> Any:
    """Return times in the stored units.

    Raises
    ------
    ConflictError
        For times that come back as others. The remedy names an encoding that holds them.
    """
    encoded, same = _encoded_and_same(given, encoding, name)
    if not same.all():
        finer = _finer_encoding(given, encoding, name)
        raise ConflictError(
            f"the time {given[~same].ravel()[0]} has no exact value in the stored units "
            f"{encoding.get('units')!r} as {encoding.get('dtype')}",
            remedy="Write a new store in finer units"
            + (f": encoding={{{name!r}: {finer}}}" if finer else ""),
        )
    return _as_type(np.asarray(encoded.data), dtype)


def _encoded_and_same(given: Any, encoding: Mapping[str, Any], name: str) -> tuple[Variable, Any]:
    """Return times as they are encoded, and which of them come back as they are."""
    encoded = _cf_encoded(block_variable(given, encoding), name)
    decode_times = CFDatetimeCoder(use_cftime=(given.dtype == object) or None)
    back = conventions.decode_cf_variable(
        name,
        # xarray takes other units where those that are stored hold no integers.
        Variable(encoded.dims, encoded.data, {**encoded.attrs, "units": encoding.get("units")}),
        decode_times=decode_times,
        decode_timedelta=CFTimedeltaCoder(),
    )
    return encoded, _equal(np.asarray(back.values), given)


def _finer_encoding(given: Any, encoding: Mapping[str, Any], name: str) -> dict[str, str] | None:
    """Return the longest units in which times are whole numbers, as float64 if that holds them.

    None if no units do.
    """
    _, since, reference = str(encoding.get("units")).partition(" since ")

    def holding(units: str, dtype: str) -> bool:
        finer = {**encoding, "units": units, "dtype": dtype}
        with suppress(ConflictError):
            return bool(_encoded_and_same(given, finer, name)[1].all())
        return False

    for unit in _UNITS:
        units = f"{unit}{since}{reference}"
        if holding(units, "int64"):
            return {"units": units, "dtype": "float64" if holding(units, "float64") else "int64"}
    return None


def _equal(one: Any, other: Any) -> Any:
    if one.dtype.kind in _TIMES and other.dtype.kind in _TIMES:
        return (one == other) | (np.isnat(one) & np.isnat(other))
    try:
        return np.asarray(one == other, dtype=bool)
    except TypeError as error:  # cftime's, for dates of two calendars
        raise ConflictError(str(error), remedy="Convert the dates with convert_calendar") from error


def _as_type(values: Any, dtype: np.dtype[Any]) -> Any:
    if values.dtype == dtype or dtype.hasobject:
        return values
    castable = dtype.kind in ("b", values.dtype.kind)
    if not castable and not np.can_cast(values.dtype, dtype, "same_kind"):
        raise ConflictError(f"found {values.dtype}, the store holds {dtype}")
    return values.astype(dtype)


def _encoded_block(
    given: Any,
    encoding: dict[str, Any],
    dtype: np.dtype[Any],
    kept: np.dtype[Any],
    exactly: bool,
    path: str,
) -> Any:
    """Give numbers in the stored encoding; refuse those that come back as others.

    Packing rounds to its steps (unless `exactly`), floats to their type; all else is exact. The
    integers of `dtype` are `kept` as those of the same size with or without a sign.
    """
    scale, offset = encoding.get("scale_factor"), encoding.get("add_offset", 0)
    fill = fill_value_of(encoding)
    numbers = given.astype(packing_dtype(given.dtype, encoding), copy=False)
    marks = [
        mark
        for key in ("_FillValue", "missing_value")
        if encoding.get(key) is not None
        for mark in np.ravel(encoding[key])
    ]
    # xarray writes both, of different values, but encodes nothing more with them.
    alone = {"missing_value": None} if encoding.get("_FillValue") is not None else {}
    variable = block_variable(numbers, encoding | alone)
    inexact = [kind.dtype for kind in (given, np.empty(0, dtype)) if kind.dtype.kind == "f"]
    with np.errstate(all="ignore"):
        packed = CFMaskCoder().encode(CFScaleOffsetCoder().encode(variable)).to_numpy()
        integral = dtype.kind in "iu"
        stored = (np.around(packed) if integral and packed.dtype.kind == "f" else packed).astype(
            dtype
        )
        missing = np.isnan(given) if given.dtype.kind == "f" else np.zeros(given.shape, bool)
        if fill is not None and integral and missing.any():  # floats do not hold each
            stored = np.where(missing, dtype.type(fill), stored).astype(dtype, copy=False)
        held = stored + offset if scale is None else stored.astype("f8") * scale + offset
        room = 2 * np.abs(given) * max((np.finfo(each).eps for each in inexact), default=0)
        if scale is not None and integral:
            room = room + abs(float(scale)) * (1e-6 if exactly else 0.5 + 1e-6)
        # Integers are not subtracted as such: the difference from the least wraps.
        wide = np.result_type(held, given, np.float32)
        near = np.isfinite(given) & (np.abs(np.subtract(held, given, dtype=wide)) <= room)
        wrong = ~(near | (held == given))
        filled = np.isnan(stored) if not marks and not integral else np.zeros(given.shape, bool)
        for mark in marks:
            same = stored == (mark if integral else dtype.type(mark))  # an integer may be beyond it
            filled = filled | (np.isnan(stored) if mark != mark else same)
        wrong = np.where(missing, ~filled, wrong | filled)
    if np.any(wrong):
        raise ConflictError(
            f"the value {np.asarray(given)[wrong].ravel()[0]} is not held by the stored encoding: "
            f"{dtype}, scale_factor {scale}, add_offset {offset}, _FillValue {fill}",
            remedy="Convert the values first, or write the variable anew with another encoding",
            variable=path,
        )
    return stored.view(kept)


def check_equal(name: str, given: Variable, stored: Variable) -> None:
    """Refuse values without the append dimension that differ from the stored ones."""
    rows = given.sizes[given.dims[0]] if given.dims else 1
    step = max(1, _COMPARED_BYTES * rows // max(1, given.nbytes))
    for start in range(0, rows, step):
        piece = (slice(start, start + step),) if given.dims else ()
        _check_equal(name, given[piece], stored[piece], start)


def _check_equal(name: str, given: Variable, stored: Variable, start: int) -> None:
    ours, theirs = np.asarray(given.values), np.asarray(stored.values)
    if ours.dtype.kind == "f" and theirs.dtype.kind == "f":
        dtype = np.dtype(stored.encoding.get("dtype", theirs.dtype))
        eps = 2 * np.finfo(dtype).eps if dtype.kind == "f" else 0.0
        step = abs(float(stored.encoding.get("scale_factor", 0.0))) * (0.5 + 1e-6)
        same = np.isclose(ours, theirs, rtol=eps, atol=step, equal_nan=True)
    else:
        same = _equal(ours, theirs)
        if theirs.dtype.kind in "OU":  # missing text is stored as empty
            same = same | ((theirs == "") & given.isnull().to_numpy())
    if not np.all(same):
        place, *rest = (int(index[0]) for index in np.nonzero(~np.atleast_1d(same)))
        raise ConflictError(
            f"{name!r} does not lie along the append dimension and differs from what is stored: "
            f"{np.atleast_1d(ours)[place, *rest]} instead of {np.atleast_1d(theirs)[place, *rest]} "
            f"at {(start + place, *rest)}",
            remedy="Append on the same coordinates, leave the variable out, or pass mode='a-'",
        )


def check_coordinate(
    dim: str, stored: Variable, given: Variable, size: int, object_size: int
) -> None:
    """Raise ConflictError if an append repeats or overlaps stored values of its own coordinate.

    Of the `size` stored values, those in the last few objects of `object_size` values each are
    read, so that an append to a long store costs what one to a short store does. Where these
    increase, values that are not behind the last are refused, and with them all repetitions.
    """
    _check_kind(given, stored, dim)
    shown = np.asarray(given.values)
    first = max(0, -(-size // object_size) - _MAX_COMPARED_OBJECTS) * object_size
    seen = stored[first:size].load()
    old, new = _comparable(seen, stored, dim), _comparable(given, stored, dim)
    if not old.size or not new.size:
        return
    remedy = "If that is meant, pass allow_duplicates=True"
    repeated = np.isin(new, old)
    if repeated.any():
        raise ConflictError(
            f"{dim} has the value {shown[repeated][0]} already: this append would repeat it",
            remedy=remedy,
        )
    increasing = old.dtype.kind in "iuf" and bool(np.all(old[1:] > old[:-1]))
    if not increasing or old.size == 1 or not new.min() < old[-1]:
        return
    begin = stored[:1].load()
    if new.max() < _comparable(begin, stored, dim)[0]:
        raise ConflictError(
            f"{dim} begins at {np.asarray(begin.values)[0]}, and this append ends before it, at "
            f"{shown[new.argmax()]}: an append goes behind what is stored",
            remedy="To keep the order, write both to a new store, joined by xarray.concat; to "
            "append out of order, pass allow_duplicates=True",
        )
    raise ConflictError(
        f"{dim} ends at {np.asarray(seen.values)[-1]}, and this append begins at "
        f"{shown[new.argmin()]}: it overlaps what is stored",
        remedy=remedy,
    )


def _comparable(variable: Variable, stored: Variable, name: str) -> Any:
    """Give times as numbers in the stored units, text as bytes, and numbers as they are."""
    if is_time(variable):
        encoding = {key: stored.encoding[key] for key in _TIME_KEYS if key in stored.encoding}
        with warnings.catch_warnings():  # of times between the units, which become floats
            warnings.simplefilter("ignore")
            return _cf_encoded(Variable(variable.dims, variable.values, {}, encoding), name).values
    values = np.asarray(variable.values)
    return np.array(_as_bytes(values)) if values.dtype.kind in "OSU" else values


def _as_bytes(values: Any) -> list[Any]:
    try:
        return [
            item.encode("utf-8", "surrogateescape") if isinstance(item, str) else item
            for item in values.ravel()
        ]
    except UnicodeEncodeError as error:
        raise ConflictError(f"found text that is not Unicode ({error.reason})") from error
