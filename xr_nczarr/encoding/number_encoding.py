"""Pack and round numbers, replace missing values, and check that decoding reproduces them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from xarray import Variable, conventions
from xarray.coding.variables import CFScaleOffsetCoder

from xr_nczarr.backend.decoding import PACKING_KEYS, as_scalar
from xr_nczarr.encoding.blockwise import blockwise
from xr_nczarr.errors import ConflictError

SHOWN_KEYS = (*PACKING_KEYS, "units", "calendar", "_FillValue")
"""The keys of an encoding that error messages show."""

VALUE_KEYS = (*SHOWN_KEYS, "missing_value", "dtype", "_Unsigned", "_Encoding", "char_dim_name")
"""The keys of an encoding that determine the stored values, as opposed to the chunks and codecs."""

_WIDER_DTYPE = (
    "Choose a wider dtype, another scale_factor or (for NaN) a _FillValue in the encoding, or call "
    "drop_encoding() to discard the encoding inherited from the source"
)
_MIN_REDUCED_SIZE = 4096
_NEW_STORE = "Convert the values first, or write the variable to a new store with another encoding"

Rounding = Literal["requested", "packing", "none"]
"""The rounding that is allowed.

``"requested"`` allows rounding to the nearest number that the dtype and packing of a new variable
can represent, because the caller has requested them. ``"packing"`` allows rounding to the nearest
number that the packing of a stored variable can represent, and ``"none"`` allows no rounding.
Floats may always be rounded to the precision of their type. Integers may be rounded to floats only
if the caller requests it or the variable is packed.
"""


def with_encoded_numbers(variable: Variable, encoding: Mapping[str, Any], name: str) -> Variable:
    """Encode the numbers of a new variable.

    Values that are not numbers, and numbers that are certain to fit the encoding, are returned
    unchanged. xarray encodes them later. NumPy arrays are checked immediately, and dask arrays
    block by block when they are computed.

    Parameters
    ----------
    encoding
        The keys of the variable's encoding that are in `VALUE_KEYS`.

    Raises
    ------
    ConflictError
        If a number does not fit the encoding. For example, it is out of range, or NaN would be
        stored as an integer without a `_FillValue`. Also raised if the dtype bool is combined with
        a missing value.
    """
    variable = _with_real_numbers(variable, encoding, name)
    dtype = np.dtype(encoding.get("dtype", packing_dtype(variable.dtype, encoding)))
    fill = fill_value_of(encoding)
    if dtype.kind == "b" and fill is not None:
        raise ConflictError(
            f"dtype bool cannot represent the missing value {fill!r}",
            remedy="Leave out _FillValue, choose a dtype such as int8, or call drop_encoding()",
            variable=name,
        )
    if variable.dtype.kind == dtype.kind == "c":
        return variable.copy(data=as_type(variable.data, dtype))
    if variable.dtype.kind not in "biuf" or dtype.kind not in "biuf":
        return variable
    check_fill(encoding, dtype, name)
    changes = is_packed(encoding) or ("_Unsigned" in encoding and dtype.kind in "iu")
    if not changes and np.can_cast(variable.dtype, dtype):
        return variable
    encoded = variable.to_base_variable()
    if dtype.kind != "b":  # get the attributes from xarray, which sets them for empty arrays too
        empty = np.empty((0,) * variable.ndim, packing_dtype(variable.dtype, encoding))
        encoded = conventions.encode_cf_variable(
            Variable(variable.dims, empty, variable.attrs, variable.encoding), name=name
        )
        dtype = encoded.dtype
    data = encode_numbers(variable.data, dtype, encoding, "requested", name)
    return Variable(variable.dims, data, encoded.attrs, encoded.encoding)


def _with_real_numbers(variable: Variable, encoding: Mapping[str, Any], name: str) -> Variable:
    """Convert complex numbers to real numbers if they will be packed or stored as real numbers.

    Raise ConflictError if an imaginary part is not 0.
    """
    stored = np.dtype(encoding.get("dtype", variable.dtype))
    if variable.dtype.kind != "c" or (stored.kind not in "biuf" and not is_packed(encoding)):
        return variable
    # xarray would silently drop the imaginary parts.
    real = np.empty(0, variable.dtype).real.dtype
    return variable.copy(data=real_numbers(variable.data, real, encoding, stored, name))


@blockwise
def encode_numbers(
    data: Any, dtype: np.dtype[Any], encoding: Mapping[str, Any], rounding: Rounding, name: str
) -> Any:
    """Convert numbers to the stored dtype, applying the packing and fill value of an encoding.

    Raises
    ------
    ConflictError
        If encoding and decoding would change a number by more than `rounding` allows (see
        `Rounding`). This happens, for example, if a number is out of range, or if NaN would be
        stored as an integer without a fill value.
    """
    target, encoding = _dtype_by_unsigned(dtype, encoding), _with_unsigned_applied(encoding, dtype)
    marks = missing_values(encoding)
    if data.dtype == target and not is_packed(encoding) and all(mark != mark for mark in marks):
        return data.view(dtype)  # nothing to encode, because only NaN marks missing values
    stored = _packed(data, encoding, target)
    checked, packed = data, stored
    if (
        rounding == "requested"
        and data.size > _MIN_REDUCED_SIZE
        and _extremes_suffice(data, encoding, target)
    ):
        checked = _extremes(data)
        packed = _packed(checked, encoding, target)
    lost = ~_is_reproduced(checked, packed, encoding, rounding)
    if lost.any():
        remedy = _WIDER_DTYPE if rounding == "requested" else _NEW_STORE
        raise misfit(f"the value {checked[lost][0]}", encoding, target, remedy, name)
    if rounding == "requested" and target.kind != "f":
        _check_unmasked(data, stored, encoding, name)
    return stored.view(dtype)


def _packed(data: Any, encoding: Mapping[str, Any], dtype: np.dtype[Any]) -> Any:
    """Pack numbers as xarray does, and convert them to a dtype.

    NaN becomes the fill value of the encoding, if any.
    """
    numbers = data.astype(packing_dtype(data.dtype, encoding), copy=False)
    variable = Variable(range(numbers.ndim), numbers, {}, dict(encoding))
    with np.errstate(all="ignore"):
        packed = CFScaleOffsetCoder().encode(variable).to_numpy()
        if packed.dtype.kind == "f" and dtype.kind != "f":
            packed = np.asarray(np.around(packed))
        stored = packed.astype(dtype)
    missing, marks = _missing(data), missing_values(encoding)
    if marks and missing.any():
        stored[missing] = marks[0]
    return stored


def _extremes_suffice(data: Any, encoding: Mapping[str, Any], dtype: np.dtype[Any]) -> bool:
    """Return whether it suffices to check that the minimum and maximum can be represented."""
    # Integers that are packed as floats may be rounded too much. For example, float64 can represent
    # 0 and 2**60, but not 2**60 - 1.
    exact = data.dtype.kind == "f" or packing_dtype(data.dtype, encoding).kind != "f"
    return exact and dtype.kind != "b"  # 0 and 1 fit bool, but numbers between them do not


def _check_unmasked(data: Any, stored: Any, encoding: Mapping[str, Any], name: str) -> None:
    """Raise ConflictError if a number other than NaN would be stored as a missing value.

    Numbers that already equal the missing value are accepted.
    """
    for mark in missing_values(encoding):
        masked = stored == mark
        if masked.any():
            masked &= ~(_missing(data) | _is_marked(data, encoding))
        if masked.any():
            raise misfit(
                f"the value {data[masked][0]}, which would be stored as the missing value {mark},",
                encoding,
                stored.dtype,
                "Choose another _FillValue, scale_factor or add_offset in the encoding, or call "
                "drop_encoding() to discard the encoding inherited from the source",
                name,
            )


def _is_marked(data: Any, encoding: Mapping[str, Any]) -> Any:
    """Return a mask that is True for numbers that already equal a missing value of an encoding.

    The mask is False everywhere if the encoding has a scale factor or an offset.
    """
    # These numbers are assumed to mark missing data, for example in a dataset that was opened with
    # mask_and_scale=False. Numbers that will be packed cannot be compared with a packed mark.
    marked = np.zeros(data.shape, bool)
    for mark in () if is_packed(encoding) else missing_values(encoding):
        marked = marked | (data == mark)
    return marked


def _extremes(data: Any) -> Any:
    extremes = [np.fmin.reduce(data, None), np.fmax.reduce(data, None), data.min()]
    return np.array(extremes, data.dtype)


def _is_reproduced(data: Any, stored: Any, encoding: Mapping[str, Any], rounding: Rounding) -> Any:
    missing, integral = _missing(data), stored.dtype.kind != "f"
    marks = missing_values(encoding)
    masked = np.isnan(stored) if not marks and not integral else np.zeros(data.shape, bool)
    for mark in marks:
        value = mark if integral else stored.dtype.type(mark)  # NaN has no integer form
        masked = masked | (np.isnan(stored) if mark != mark else stored == value)
    reproduced = _is_close(data, stored, encoding, rounding)
    if rounding != "requested":
        # In floats that are added to a stored variable, only NaN marks missing data.
        reproduced &= ~masked | (_is_marked(data, encoding) & (data.dtype.kind != "f"))
    numbers = data.astype(packing_dtype(data.dtype, encoding), copy=False)
    if numbers.dtype.kind in "iu" and (offset := int(encoding.get("add_offset") or 0)):
        range_ = np.iinfo(numbers.dtype)  # subtracting the offset must not wrap around
        reproduced &= (numbers >= range_.min + offset) & (numbers <= range_.max + offset)
    return np.where(missing, masked, reproduced)


def _is_close(data: Any, stored: Any, encoding: Mapping[str, Any], rounding: Rounding) -> Any:
    scale, offset = encoding.get("scale_factor"), encoding.get("add_offset")
    # Without an offset, add a 0 of the stored type. Adding an int64 to a uint64 returns a float64.
    offset = np.asarray(stored.dtype.type(0) if offset is None else offset)
    step = abs(float(scale)) if scale is not None else float(rounding == "requested")
    inexact = [np.finfo(array.dtype) for array in (data, stored) if array.dtype.kind == "f"]
    with np.errstate(all="ignore"):
        decoded = stored + offset if scale is None else stored.astype("f8") * scale + offset
        sizes = abs(data.astype(np.result_type(data, np.float32), copy=False)), abs(offset)
        exact = data.dtype.kind != "f" and rounding != "requested" and not is_packed(encoding)
        eps = 0 if exact else 2 * max((item.eps for item in inexact), default=0)
        tolerance = sizes[0] * eps + sizes[1] * eps  # adding sizes first could overflow
        if stored.dtype.kind in "iu":
            tolerance = tolerance + step * (1e-6 + (0 if rounding == "none" else 0.5))
        elif inexact and rounding == "requested":
            tolerance = tolerance + step * float(inexact[-1].smallest_subnormal)
        close = np.abs(_difference(decoded, data)) <= tolerance
        if data.dtype.kind != "f":
            return close
        return (np.isfinite(data) & np.isfinite(decoded) & close) | (decoded == data)


def _difference(decoded: Any, data: Any) -> Any:
    # Integers are converted before they are subtracted, because the difference could wrap around.
    wide = np.result_type(decoded, data, np.float32)
    if decoded.dtype.kind != "f" or data.dtype.kind == "f" or data.dtype.itemsize < 8:
        return np.subtract(decoded, data, dtype=wide)
    # A float64 cannot represent every 64-bit integer exactly, but it can represent the two halves.
    return decoded - (data >> 32) * 2.0**32 - (data & 0xFFFFFFFF)


def _missing(numbers: Any) -> Any:
    return np.isnan(numbers) if numbers.dtype.kind == "f" else np.zeros(numbers.shape, bool)


def missing_values(encoding: Mapping[str, Any]) -> list[Any]:
    """Return all values that mark missing data according to an encoding.

    When data is written, missing elements are replaced with the first of these values.
    """
    values = [encoding.get(key) for key in ("_FillValue", "missing_value")]
    return [mark for value in values if value is not None for mark in np.ravel(value)]


def misfit(
    subject: str, encoding: Mapping[str, Any], dtype: np.dtype[Any], remedy: str, name: str = ""
) -> ConflictError:
    """Build the error for a value that an encoding cannot represent.

    Parameters
    ----------
    subject
        The beginning of the message, such as ``"the value 300"``.
    dtype
        The stored dtype. The message shows it along with the `SHOWN_KEYS` of the encoding.
    remedy
        An instruction that tells the user how to proceed.
    name
        Name of the variable, or an empty string if the caller adds the name.
    """
    settings = {"dtype": dtype.str if dtype.kind in "SU" else dtype.name}
    settings |= {key: encoding[key] for key in SHOWN_KEYS if encoding.get(key) is not None}
    return ConflictError(
        f"{subject} does not fit the encoding "
        f"({', '.join(f'{key} {item}' for key, item in settings.items())})",
        remedy=remedy,
        variable=name or None,
    )


@blockwise
def real_numbers(
    data: Any, dtype: np.dtype[Any], encoding: Mapping[str, Any], stored: np.dtype[Any], name: str
) -> Any:
    """Convert complex numbers to a dtype of real numbers.

    `encoding` and `stored` (the stored dtype) are used only in the error message.

    Raises
    ------
    ConflictError
        If an imaginary part is not 0.
    """
    lost = data.imag != 0
    if lost.any():
        raise misfit(f"the value {data[lost][0]}", encoding, stored, _WIDER_DTYPE, name)
    return data.real.astype(dtype, copy=False)


@blockwise
def as_type(values: Any, dtype: np.dtype[Any]) -> Any:
    """Convert encoded values to the stored dtype.

    If the stored dtype is an object dtype, the values are returned unchanged.

    Raises
    ------
    ConflictError
        If a complex number is too large for the stored dtype, or if the stored dtype is of an
        incompatible kind. For example, floats cannot be stored as integers.
    """
    if values.dtype == dtype or dtype.hasobject:
        return values
    castable = dtype.kind in ("b", values.dtype.kind)
    if not castable and not np.can_cast(values.dtype, dtype, "same_kind"):
        raise ConflictError(
            f"cannot convert the new values from dtype {values.dtype} to the stored dtype {dtype}",
            remedy=_NEW_STORE,
        )
    with np.errstate(over="ignore"):
        converted = values.astype(dtype)
    lost = np.isfinite(values) & ~np.isfinite(converted) if dtype.kind == "c" else np.array(False)
    if lost.any():
        raise misfit(f"the value {values[lost][0]}", {}, dtype, _WIDER_DTYPE)
    return converted


def check_fill(encoding: Mapping[str, Any], dtype: np.dtype[Any], name: str) -> None:
    """Raise ConflictError if an integer dtype cannot represent the fill value of an encoding.

    If the encoding contains ``_Unsigned``, the fill value needs to fit either the signed or the
    unsigned dtype. For example, both -1 and 255 are accepted for int8 with ``_Unsigned="true"``.
    Other dtypes are not checked.
    """
    fill = fill_value_of(encoding)
    if fill is None or dtype.kind not in "iu":
        return
    for mark in np.ravel(fill):
        if not _is_storable(mark, dtype, encoding):
            raise misfit(f"the value {mark.item()}", encoding, dtype, _WIDER_DTYPE, name)


def marks_nothing(encoding: Mapping[str, Any]) -> bool:
    """Return whether ``missing_value`` contains only numbers that the encoding's dtype cannot hold.

    Such an encoding marks no stored value as missing. However, xarray would round the numbers to
    the dtype, and would thereby mark other values as missing.

    The result is False if the dtype of the encoding is not an integer dtype, or if
    ``missing_value`` is not numeric.
    """
    dtype = np.dtype(encoding.get("dtype", "f8"))
    marks = np.asarray(encoding.get("missing_value")).ravel()
    if dtype.kind not in "iu" or marks.dtype.kind not in "biuf":
        return False
    return not any(_is_storable(mark, dtype, encoding) for mark in marks)


def _is_storable(mark: Any, dtype: np.dtype[Any], encoding: Mapping[str, Any]) -> bool:
    """Return whether a number fits an integer dtype, with or without applying ``_Unsigned``."""
    ranges = [np.iinfo(dtype), np.iinfo(_dtype_by_unsigned(dtype, encoding))]
    is_whole = mark.dtype.kind in "biuf" and np.isfinite(mark) and mark == round(mark.item())
    return bool(is_whole and any(r.min <= mark.item() <= r.max for r in ranges))


def with_float_scale(encoding: Mapping[str, Any]) -> dict[str, Any]:
    """Return an encoding in which an integer scale factor is converted to a float.

    With an integer scale factor, xarray would pack numbers in the scale factor's integer type. A
    scale factor or offset that is a list or array of one number is replaced with that number.
    """
    scalars = {key: as_scalar(encoding[key]) for key in PACKING_KEYS if key in encoding}
    scale = np.asarray(scalars.get("scale_factor"))
    whole = {"scale_factor": scale.astype("f8")[()]} if scale.dtype.kind in "iu" else {}
    return {**encoding, **scalars, **whole}


def _dtype_by_unsigned(dtype: np.dtype[Any], encoding: Mapping[str, Any]) -> np.dtype[Any]:
    """Return the signed or unsigned integer dtype that the ``_Unsigned`` key specifies.

    Without the key, or if `dtype` is not an integer dtype, return `dtype`.
    """
    kind = {"true": "u", "false": "i"}.get(str(encoding.get("_Unsigned")), dtype.kind)
    return np.dtype(dtype.str.replace(dtype.kind, kind)) if dtype.kind in "iu" else dtype


def _with_unsigned_applied(encoding: Mapping[str, Any], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return an encoding in which the ``_Unsigned`` key has been applied and removed."""
    target = _dtype_by_unsigned(dtype, encoding)
    encoding = {key: value for key, value in encoding.items() if key != "_Unsigned"}
    for key in ("_FillValue", "missing_value") if target != dtype else ():
        if encoding.get(key) is not None:
            # For example, if int8 becomes uint8, a fill value of -1 becomes 255.
            encoding[key] = np.asarray(encoding[key]).astype(dtype).view(target)[()]
    return {**encoding, "dtype": target}


def is_packed(encoding: Mapping[str, Any]) -> bool:
    """Return whether an encoding has a scale factor or an offset."""
    return any(encoding.get(key) is not None for key in PACKING_KEYS)


def fill_value_of(encoding: Mapping[str, Any]) -> Any:
    """Return the value with which an encoding marks missing data, or None if it has no such value.

    The key ``_FillValue`` takes precedence over ``missing_value``.
    """
    fill = encoding.get("_FillValue")
    return encoding.get("missing_value") if fill is None else fill


def packing_dtype(dtype: np.dtype[Any], encoding: Mapping[str, Any]) -> np.dtype[Any]:
    """Return the dtype in which to compute packed numbers.

    xarray computes packed numbers in the dtype of the array. Integers must therefore first be
    converted to a dtype that depends on the scale factor and the offset. Floats are packed in their
    own dtype.
    """
    if dtype.kind == "f":
        return dtype
    scale, offset = encoding.get("scale_factor"), encoding.get("add_offset")
    whole = dtype if offset is None else np.result_type(dtype, np.asarray(offset))
    return whole if scale is None else np.dtype("f8")
