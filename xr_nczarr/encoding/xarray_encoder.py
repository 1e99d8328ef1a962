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

    xarray removes an attribute such as ``units`` from a bounds variable if the coordinate variable
    has the same attribute. The attributes of `variables` may be modified in place.

    Raises
    ------
    ConflictError
        If xarray rejects a variable.
    """
    prepared, other_bounds = dict[Hashable, Variable](), {}
    for key, variable in variables.items():
        with ErrorContext(variable=str(key)):
            _refuse_missing_dates(variable, str(key))
            prepared[key] = (
                cf_encoded(variable, str(key)) if _needs_proleptic_calendar(variable) else variable
            )
        # xarray looks up the value as the name of a variable. This can fail for a list or an array,
        # for example a bounding box.
        attributes = prepared[key].attrs
        if not isinstance(bounds := attributes.get("bounds", ""), str):
            other_bounds[key], attributes["bounds"] = bounds, ""
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
    for key, value in other_bounds.items():
        encoded[key].attrs["bounds"] = value
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
    if _needs_proleptic_calendar(variable):
        # The result is the same, because there are no valid times to convert.
        variable = variable.copy(deep=False)
        variable.encoding["calendar"] = "proleptic_gregorian"
    encoded = conventions.encode_cf_variable(variable, name=name)
    if "calendar" in encoded.attrs and calendar is not None:
        encoded.attrs["calendar"] = calendar
    return _with_item_type(encoded, variable)


def _with_item_type(encoded: Variable, variable: Variable) -> Variable:
    """Restore the item type that xarray may drop from an empty array of strings or bytes."""
    if encoded.dtype != object or variable.size:
        return encoded
    dtype = create_vlen_dtype(bytes) if variable.dtype.kind == "S" else variable.dtype
    return encoded.copy(data=np.empty(variable.shape, dtype))


def _refuse_missing_dates(variable: Variable, name: str) -> None:
    """Raise ConflictError if an array of cftime dates in memory contains missing values."""
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


def _needs_proleptic_calendar(variable: Variable) -> bool:
    """Return whether a variable has no valid times, so that xarray may reject its calendar."""
    if variable.dtype.kind != "M" or hasattr(variable.data, "dask"):
        return False
    if not variable.size:
        return True  # xarray fails if NumPy does not support the calendar
    # xarray compares the earliest time with the first Gregorian date, and fails if it is NaT.
    calendar = str(variable.encoding.get("calendar")).lower()
    return calendar in ("standard", "gregorian") and bool(np.isnat(variable.to_numpy()).all())


@contextmanager
def as_conflicts(remedy: str = _CHANGE_ENCODING) -> Iterator[None]:
    """Convert errors that xarray or NumPy raises in the ``with`` block to ConflictErrors.

    An `NczarrError` is raised unchanged.
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
