"""CF masking and scaling, done to each chunk while it is in the processor's cache.

xarray decodes first and says what comes out: dtype, attributes and encoding. Where that is nothing
but masking, scaling and byte order, its chain of whole-array operations is replaced by the same
operations on each chunk, in the thread that decoded it; the values are bit for bit the same.

What xarray does to a number depends on its dtype and a few attributes. Most variables of a large
dataset are alike in these: one is decoded for all.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Set
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from xarray import Variable
from xarray.conventions import CF_RELATED_DATA, decode_cf_variables

from xr_nczarr.backend.lazy import LazyArray
from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.errors import (
    MetadataError,
    MissingChunkError,
    NczarrError,
    StorageConnectionError,
    StorageTimeoutError,
    reason_of,
)
from xr_nczarr.model import ArrayNode

_PACKING = ("_FillValue", "missing_value", "scale_factor", "add_offset", "_Unsigned", "_Encoding")
_DECODED_BY = {*_PACKING, "dtype", "units", "calendar", "coordinates", *CF_RELATED_DATA}
"""The attributes that decoding looks at."""

PASSING = (StorageTimeoutError, StorageConnectionError)
"""Errors that are no property of a variable: the same request may succeed a moment later."""


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


@dataclass(frozen=True, slots=True)
class TruthValues:
    """Converts numbers to booleans; xarray would return the `missing` ones as true."""

    missing: tuple[Any, ...]

    def __call__(self, stored: npt.NDArray[Any], target: npt.NDArray[Any]) -> None:
        """Write the truth values into `target`; raise MetadataError for a missing one."""
        for value in self.missing:
            if (stored == value).any():
                raise MetadataError(
                    f"found a missing value ({value}) among booleans, which have none",
                    remedy="Opened with mask_and_scale=False it is true, unless it is 0",
                )
        target[...] = stored


def decode_variables(
    variables: Mapping[Any, Variable],
    arrays: Mapping[Hashable, LazyArray],
    attributes: dict[Any, Any],
    decoding: Mapping[str, Any],
    dropped: Set[Hashable] = frozenset(),
) -> tuple[dict[Any, Variable], dict[Any, Any], set[Hashable]]:
    """Return what `decode_cf_variables` returns, with numbers that are decoded chunk by chunk.

    Parameters
    ----------
    variables
        As they are stored; those of numbers are changed and given back.
    arrays
        Where the values of variables lie, if they can be read.
    dropped
        Variables that are not given back, but there for what they and the others say of each other.
    """
    scales = decoding["mask_and_scale"]
    for name, variable in variables.items():
        if scales.get(name, True) if isinstance(scales, Mapping) else scales:
            _widen_scale(variable.attrs)
    alike: dict[Any, list[Any]] = {}
    for name, kind in _kinds(variables, arrays, decoding).items():
        if name not in dropped:
            alike.setdefault(kind, []).append(name)
    # What is dropped is still there for what the others say of it.
    later = {name for names in alike.values() for name in names[1:]}
    once, remaining, coordinates = decode_cf_variables(
        dict(variables), attributes, **{**decoding, "drop_variables": later | dropped}
    )
    decoded = dict(once)
    for names in alike.values():
        stored, first, array = variables[names[0]], decoded[names[0]], arrays.get(names[0])
        unpacking = None if array is None else find_unpacking(first, array)
        taken = stored.attrs.keys() - first.attrs.keys()
        if unpacking is None or not taken <= _DECODED_BY:
            continue
        later.difference_update(names)
        before, convert = stored.encoding, unpacking if unpacking != Unpacking() else None
        added = {key: item for key, item in first.encoding.items() if before.get(key) is not item}
        for name in names:
            arrays[name].dtype, arrays[name].convert = first.dtype, convert
            decoded[name] = variables[name]
            decoded[name].encoding.update(added)
            for attribute in taken:
                del decoded[name].attrs[attribute]
    if later:
        # A time changes the attributes of its bounds, which may be decoded already.
        copies = {name: variable.copy(deep=False) for name, variable in variables.items()}
        others, _, more = decode_cf_variables(
            copies, {}, **{**decoding, "drop_variables": variables.keys() - later}
        )
        decoded.update(others)
        coordinates |= more
    ordered = {name: decoded[name] for name in variables if name in decoded}
    return ordered, dict(remaining), coordinates


def find_undecodable(
    variables: Mapping[Any, Variable],
    arrays: Mapping[Hashable, LazyArray],
    decoding: Mapping[str, Any],
    dropped: Set[Hashable] = frozenset(),
    failed: Mapping[Hashable, Exception] = MappingProxyType({}),
) -> dict[Hashable, NczarrError]:
    """Return the variables that `decode_variables` fails at, each with its reason.

    Parameters
    ----------
    variables, arrays, decoding, dropped
        As for `decode_variables`. The variables are not changed.
    failed
        The variable whose failure is already known, with its error: its chunks are not read again.

    Raises
    ------
    Exception
        What a wrong option of the caller raises, whichever the variable.
    """

    def failure(
        name: Any, *owners: Any, without: str | None = None, zeros: bool = False
    ) -> Exception | None:
        """Return what xarray raises for a variable, by itself or as bounds of its `owners`.

        It is decoded without one of its attributes, or with `zeros` in place of its values.
        """
        alone = {each: variables[each].copy(deep=False) for each in (*owners, name)}
        alone[name].attrs.pop(without, None)
        if zeros:
            one = alone[name]
            alone[name] = Variable(one.dims, np.zeros((1,) * one.ndim, one.dtype), one.attrs)
        left_out = {*owners} | ({name} & dropped)
        try:
            decode_cf_variables(alone, {}, **{**decoding, "drop_variables": left_out})
        except PASSING:
            raise
        except Exception as error:
            return without_frames(error)
        return None

    def reason(name: Any, error: Exception) -> NczarrError:
        if isinstance(error, NczarrError):
            return error
        # Without units nothing is taken for a time: a calendar is to blame before them.
        seen = _DECODED_BY.intersection(variables[name].attrs)
        ordered = sorted(seen, key=lambda attribute: (attribute == "units", attribute))
        guilty = (each for each in ordered if failure(name, without=each) is None)
        array = arrays.get(name) if failure(name, zeros=True) is None else None
        is_coordinate = variables[name].dims == (name,)
        return undecodable(error, array, next(guilty, None), whole=is_coordinate)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        decode_cf_variables({None: Variable((), np.int8(0))}, {}, **decoding)
        errors = {
            name: error
            for name in variables
            if (error := failed.get(name) or failure(name)) is not None
        }
        for owner, variable in variables.items():
            name = variable.attrs.get("bounds")  # which are given the units of their owner
            if isinstance(name, str) and name in variables and not errors.keys() & {owner, name}:
                error = failure(name, owner)
                errors |= {} if error is None else {name: error}
        return {name: reason(name, error) for name, error in errors.items()}


def undecodable(
    error: Exception, array: LazyArray | None, attribute: str | None = None, *, whole: bool
) -> NczarrError:
    """Return the error that says why xarray cannot decode a variable.

    Parameters
    ----------
    error
        What xarray raised, or what reading for it raised.
    array
        Where the values lie, if they are to blame: a chunk may be missing.
    attribute
        The one without which xarray can decode the variable.
    whole
        Whether all values were decoded, or the first and the last, from which xarray takes the
        type of times.
    """
    if isinstance(error, NczarrError):
        return error
    text = reason_of(error)
    missing = None if array is None else _missing_chunk(array, whole)
    problem = MetadataError(
        f"xarray cannot decode it ({text})",
        remedy="Correct the attributes and apply xarray.decode_cf, or leave the variable out with "
        "drop_variables",
        place=None if attribute is None else f"attribute {attribute}",
    )
    if missing is not None:
        problem = MetadataError(
            f"no such chunk, and xarray cannot decode the fill value in its place ({text})",
            remedy="Write the chunk again, or leave the variable out with drop_variables",
            key=missing.key,
        )
    problem.__cause__ = error
    return problem


def without_frames(error: Exception) -> Exception:
    """Return an error that no longer keeps alive what was being read, which can be large."""
    cause: BaseException | None = error
    while cause is not None:
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
    return error


def _missing_chunk(array: LazyArray, whole: bool) -> MissingChunkError | None:
    """Return the error of a missing chunk among all, or those of the first and the last value."""
    shape = array.stored.node.shape
    selections: list[Any] = [(0,) * len(shape), tuple(size - 1 for size in shape)]
    if whole:
        selections = [(slice(None),) * len(shape)]
    try:
        for selection in selections if 0 not in shape else ():
            strictly(array).stored.read(selection)
    except MissingChunkError as error:
        return error
    except NczarrError:
        return None
    return None


def strictly(array: LazyArray) -> LazyArray:
    """Return the array that raises MissingChunkError where a chunk is missing."""
    stored = array.stored
    options = replace(stored.options, missing_chunks="raise")
    return replace(array, stored=ChunkedArray(stored.node, stored.store, options))


def _widen_scale(attributes: dict[Any, Any]) -> None:
    """Replace an integer scale_factor, whose type xarray would give to the values.

    They would wrap in a small one, and none has NaN.
    """
    scale = attributes.get("scale_factor")
    if isinstance(scale, int | np.integer) and not isinstance(scale, bool):
        declared = [attributes.get(key) for key in ("_FillValue", "missing_value")]
        numbers = [item for value in declared for item in np.asarray(value).ravel().tolist()]
        masks = any(item is not None and item == item for item in numbers)
        attributes["scale_factor"] = float(scale) if masks else int(scale)


def _kinds(
    variables: Mapping[Any, Variable],
    arrays: Mapping[Hashable, LazyArray],
    decoding: Mapping[str, Any],
) -> dict[Any, Any]:
    """Return what decides how each variable is decoded: its own name for all but numbers."""
    if any(isinstance(option, Mapping) for option in decoding.values()):
        return {name: name for name in variables}
    # A time gives its bounds its own attributes.
    bounds = {str(item.attrs["bounds"]) for item in variables.values() if "bounds" in item.attrs}
    kinds = {}
    for name, variable in variables.items():
        kinds[name] = name
        if name in arrays and arrays[name].dtype.kind in "iuf" and name not in bounds:
            held = variable.attrs
            seen = [(key, _frozen(held[key])) for key in _DECODED_BY.intersection(held)]
            kinds[name] = (arrays[name].dtype, frozenset(seen))
    return kinds


def _frozen(value: Any) -> Hashable:
    """Return an attribute's value as one that is equal if type and bits are."""
    if isinstance(value, str):
        return value
    array = np.asarray(value)
    return array.dtype, array.shape, array.tobytes()


def find_unpacking(decoded: Variable, array: LazyArray) -> Unpacking | TruthValues | None:
    """Return how a variable is unpacked; None if that is more than masking and scaling."""
    stored = array.stored.node.dtype
    encoding = decoded.encoding
    boolean = decoded.dtype == bool
    plain = decoded.dtype.kind in "biuf" and stored.kind in "iuf" and decoded.shape == array.shape
    same = boolean or encoding.get("dtype", stored) == stored
    if not plain or "_Unsigned" in encoding or not same:
        return None
    missing: list[Any] = []
    for value in (encoding[name] for name in ("_FillValue", "missing_value") if name in encoding):
        values = np.ravel(value)
        if values.dtype.kind not in "iuf":
            return None
        missing += [one for one in values if one == one and one not in missing]  # without NaN
    scale, offset = (_scalar(encoding.get(name)) for name in ("scale_factor", "add_offset"))
    if isinstance(scale, str) or isinstance(offset, str):
        return None
    if boolean:
        return TruthValues(tuple(missing)) if missing and scale is offset is None else None
    unpacking = Unpacking(tuple(missing), scale, offset)
    if decoded.dtype.kind != "f" and unpacking != Unpacking():
        return None
    return unpacking


def unpacked_fill(node: ArrayNode, fill_value: Any) -> Any:
    """Return the attribute `_FillValue` of an array as one of the values that it decodes to.

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
