"""Check that an append fits the coordinates and the other variables of a store."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from xarray import Variable

from xr_nczarr.encoding.cf_encoding import cf_encoded, check_kind, equal, is_time
from xr_nczarr.encoding.strings import as_bytes
from xr_nczarr.errors import ConflictError

_TIME_KEYS = ("units", "calendar")
_COMPARED_BYTES = 4 << 20
_MAX_COMPARED_OBJECTS = 8


def check_equal(name: str, new: Variable, stored: Variable) -> None:
    """Raise ConflictError if a variable without the append dimension differs from the stored one.

    Floats are considered equal if they differ only by the rounding error that storing them
    introduces.
    """
    rows = new.sizes[new.dims[0]] if new.dims else 1
    step = max(1, _COMPARED_BYTES * rows // max(1, new.nbytes))
    for start in range(0, rows, step):
        piece = (slice(start, start + step),) if new.dims else ()
        _check_piece(name, new[piece], stored[piece], start)


def _check_piece(name: str, new: Variable, stored: Variable, start: int) -> None:
    new_values, stored_values = np.asarray(new.values), np.asarray(stored.values)
    if new_values.dtype.kind == "f" and stored_values.dtype.kind == "f":
        dtype = np.dtype(stored.encoding.get("dtype", stored_values.dtype))
        eps = 2 * np.finfo(dtype).eps if dtype.kind == "f" else 0.0
        half_step = abs(float(stored.encoding.get("scale_factor", 0.0))) * (0.5 + 1e-6)
        same = np.isclose(new_values, stored_values, rtol=eps, atol=half_step, equal_nan=True)
    else:
        same = equal(new_values, stored_values)
        if stored_values.dtype.kind in "OU":  # missing text is stored as an empty string
            same = same | ((stored_values == "") & new.copy(data=new_values).isnull().to_numpy())
    if not np.all(same):
        place, *rest = (int(index[0]) for index in np.nonzero(~np.atleast_1d(same)))
        raise ConflictError(
            f"variable {name!r} does not have the append dimension, and differs from the store: "
            f"{np.atleast_1d(new_values)[place, *rest]} instead of "
            f"{np.atleast_1d(stored_values)[place, *rest]} "
            f"at {(start + place, *rest)}",
            remedy="Append data with the same coordinates, drop the variable, or pass mode='a-'",
        )


def check_coordinate(
    dim: str, stored: Variable, new_coordinate: Variable, size: int, object_size: int
) -> None:
    """Raise ConflictError if appended coordinate values repeat or precede stored values.

    The new values are compared only with the values in the last few stored objects, so the cost of
    an append does not depend on the length of the coordinate. If these objects contain at least two
    values, and the values are increasing numbers or times, each new value must be greater than the
    last stored value. Otherwise, the order is not checked.

    Parameters
    ----------
    size
        Number of stored values.
    object_size
        Number of values in a stored object (chunk or shard).
    """
    check_kind(new_coordinate, stored, dim)
    values = np.asarray(new_coordinate.values)
    first = max(0, -(-size // object_size) - _MAX_COMPARED_OBJECTS) * object_size
    last = stored[first:size].load()
    old, new = _comparable(last, stored, dim), _comparable(new_coordinate, stored, dim)
    if not old.size or not new.size:
        return
    remedy = "If this is intended, pass allow_duplicates=True"
    repeated = np.isin(new, old)
    if repeated.any():
        value = values[repeated][0]
        raise ConflictError(
            f"coordinate {dim} already contains the value {value}",
            remedy=remedy,
        )
    increasing = old.dtype.kind in "iuf" and bool(np.all(old[1:] > old[:-1]))
    if not increasing or old.size == 1 or not new.min() < old[-1]:
        return
    begin = stored[:1].load()
    if new.max() < _comparable(begin, stored, dim)[0]:
        first, end = np.asarray(begin.values)[0], values[new.argmax()]
        raise ConflictError(
            f"the new data ends at {end}, before the first stored value {first} of coordinate "
            f"{dim}",
            remedy="To keep the order, combine the stored and the new data with xarray.concat, and "
            "write a new store. To append out of order, pass allow_duplicates=True",
        )
    final, start = np.asarray(last.values)[-1], values[new.argmin()]
    raise ConflictError(
        f"the new data starts at {start}, before the last stored value {final} of coordinate {dim}",
        remedy=remedy,
    )


def _comparable(variable: Variable, stored: Variable, name: str) -> Any:
    if is_time(variable) and "units" in stored.encoding:
        encoding = {key: stored.encoding[key] for key in _TIME_KEYS if key in stored.encoding}
        # xarray warns about times that become floats because they are not multiples of the units.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return cf_encoded(Variable(variable.dims, variable.values, {}, encoding), name).values
    values = np.asarray(variable.values)
    if values.dtype.kind in "mM":  # the array stores NumPy times without CF encoding
        return values.astype(stored.dtype).astype("i8")
    return np.array(as_bytes(values)) if values.dtype.kind in "OSU" else values
