"""Encode variables with xarray, restore what xarray loses, and convert xarray's errors.

Most errors are converted to ConflictErrors, which name the variable and tell the user what to do.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from xarray import Variable, conventions
from xarray.coding.strings import create_vlen_dtype

from xr_nczarr.errors import ConflictError, ErrorContext, NczarrError, reason_of

_CHANGE_ENCODING = (
    "Correct the encoding, for example its dtype or units, or convert the values with astype. To "
    "change the encoding of a stored variable, write it to a new store"
)


def group_encoded(variables: Mapping[Hashable, Variable]) -> dict[Hashable, Variable]:
    """Encode the variables of a group with xarray.

    If an attribute such as ``units`` is the same in a bounds variable and its coordinate variable,
    xarray removes the attribute from the bounds variable.

    xarray looks up the value of every ``bounds`` attribute as the name of a variable. This lookup
    can fail if the value is a list or an array, for example a bounding box. To prevent this, any
    value that is not a string is replaced with an empty string before encoding. This may modify
    `variables` in place. The returned variables have the original ``bounds`` attributes.

    Raises
    ------
    ConflictError
        If xarray rejects a variable.
    """
    prepared, boxes = dict[Hashable, Variable](), {}
    for key, variable in variables.items():
        with ErrorContext(variable=str(key)):
            _refuse_missing_dates(variable, str(key))
            prepared[key] = cf_encoded(variable, str(key)) if _is_all_nat(variable) else variable
        attributes = prepared[key].attrs
        if not isinstance(bounds := attributes.get("bounds", ""), str):
            boxes[key], attributes["bounds"] = bounds, ""
    try:
        encoded: dict[Hashable, Variable] = conventions.cf_encoder(prepared, {})[0]
    except Exception:
        for key, variable in prepared.items():
            with ErrorContext(variable=str(key)):
                cf_encoded(variable, str(key))
        raise
    for key, variable in prepared.items():
        if variable.attrs.get("bounds") == key:  # xarray has removed the variable's own units
            encoded[key] = encoded_alone(variable, str(key))
        encoded[key] = _with_item_type(encoded[key], variable)
    for key, box in boxes.items():
        encoded[key].attrs["bounds"] = box
    return encoded


def cf_encoded(variable: Variable, name: str) -> Variable:
    """Encode a variable with xarray, and raise ConflictError if xarray fails."""
    with as_conflicts():
        return encoded_alone(variable, name)


def encoded_alone(variable: Variable, name: str) -> Variable:
    """Encode a variable with xarray, independently of other variables.

    Errors that xarray raises are not converted to ConflictError; see `cf_encoded`.
    """
    _refuse_missing_dates(variable, name)
    calendar = variable.encoding.get("calendar")
    if _is_all_nat(variable):
        variable = variable.copy(deep=False)
        variable.encoding["calendar"] = "proleptic_gregorian"
    encoded = conventions.encode_cf_variable(variable, name=name)
    if "calendar" in encoded.attrs and calendar is not None:
        encoded.attrs["calendar"] = calendar
    return _with_item_type(encoded, variable)


def _with_item_type(encoded: Variable, variable: Variable) -> Variable:
    """Restore the item type of an empty array of strings or bytes.

    xarray drops this type if the variable has a fill value. Other arrays are returned unchanged.
    """
    if encoded.dtype != object or variable.size:
        return encoded
    dtype = create_vlen_dtype(bytes) if variable.dtype.kind == "S" else variable.dtype
    return encoded.copy(data=np.empty(variable.shape, dtype))


def _refuse_missing_dates(variable: Variable, name: str) -> None:
    """Raise ConflictError if some of the cftime dates in memory are missing.

    xarray cannot encode missing cftime dates.
    """
    if variable.dtype != object or hasattr(variable.data, "dask"):
        return
    is_missing = variable.isnull().to_numpy()
    present = variable.to_numpy()[~is_missing]
    if is_missing.any() and present.size and hasattr(present[0], "calendar"):
        raise ConflictError(
            "some cftime dates are missing, and xarray cannot encode missing cftime dates",
            remedy="Drop the missing dates, or open the source with "
            f"decode_times={{{name!r}: False}}",
            variable=name,
        )


def _is_all_nat(variable: Variable) -> bool:
    """Return whether xarray may fail to encode an in-memory variable that has no valid times.

    The result is True in two cases:

    - All times are NaT, and the encoding specifies the standard calendar. In this case, xarray
      fails because it compares the earliest time with the first Gregorian date.
    - The array is empty. In this case, xarray fails if NumPy does not support the calendar.

    `encoded_alone` therefore encodes the variable in the proleptic Gregorian calendar. The
    result is the same, because NaT is stored in the same way in both calendars, and an empty array
    contains no times.
    """
    if variable.dtype.kind != "M" or hasattr(variable.data, "dask"):
        return False
    if not variable.size:
        return True
    calendar = str(variable.encoding.get("calendar")).lower()
    return calendar in ("standard", "gregorian") and bool(np.isnat(variable.to_numpy()).all())


@contextmanager
def as_conflicts(remedy: str = _CHANGE_ENCODING) -> Iterator[None]:
    """Convert errors that xarray or NumPy raises in the ``with`` block to ConflictErrors.

    Unlike the original error, a ConflictError can name the variable and suggest a `remedy`. An
    `NczarrError` is raised unchanged.
    """
    try:
        yield
    except NczarrError:
        raise
    except (ValueError, TypeError, OverflowError, LookupError) as error:
        raise ConflictError(
            f"encoding or decoding the values failed ({reason_of(error)})",
            remedy=remedy,
        ) from error
