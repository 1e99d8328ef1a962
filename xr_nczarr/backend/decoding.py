"""Mask and scale each chunk by CF conventions while it is in the processor's cache.

xarray decodes the metadata first and decides dtype, attributes and encoding. If decoding means only
masking, scaling and byte order, xarray's operations on the whole array are replaced by the same
operations on each chunk, in the thread that decoded it. The values are the same, bit for bit.

How xarray decodes numbers depends on their dtype and a few attributes. Most variables of a large
dataset agree in these, so that xarray decodes the metadata of one variable for all of them.
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
"""Attributes that affect decoding."""

PASSING = (StorageTimeoutError, StorageConnectionError)
"""Transient errors, which do not mean that a variable is broken."""


@dataclass(frozen=True, slots=True)
class Unpacking:
    """A conversion of stored numbers by CF attributes.

    Attributes
    ----------
    missing
        Stored values that mean *missing* and become NaN.
    scale_factor, add_offset
        Multiplied and added in this order, in the dtype of the result. None skips the step.
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
    """A conversion of numbers to booleans, which rejects `missing` values."""

    missing: tuple[Any, ...]

    def __call__(self, stored: npt.NDArray[Any], target: npt.NDArray[Any]) -> None:
        """Write the booleans into `target`, or raise MetadataError for a missing value."""
        for value in self.missing:
            if (stored == value).any():
                raise MetadataError(
                    f"booleans contain the missing value {value}, which no boolean can represent",
                    remedy="Open the dataset with mask_and_scale=False, which turns any value "
                    "but 0 into True",
                )
        target[...] = stored


def decode_variables(
    variables: Mapping[Any, Variable],
    arrays: Mapping[Hashable, LazyArray],
    attributes: dict[Any, Any],
    decoding: Mapping[str, Any],
    dropped: Set[Hashable] = frozenset(),
) -> tuple[dict[Any, Variable], dict[Any, Any], set[Hashable]]:
    """Return the result of `decode_cf_variables`, with numbers that are decoded chunk by chunk.

    Parameters
    ----------
    variables
        Stored variables. Numeric ones are changed in place and returned.
    arrays
        The lazy arrays of variables that can be read.
    dropped
        Variables to leave out of the result. Their attributes still affect others, as bounds do.
    """
    scales = decoding["mask_and_scale"]
    for name, variable in variables.items():
        if scales.get(name, True) if isinstance(scales, Mapping) else scales:
            _widen_scale(variable.attrs)
    alike: dict[Any, list[Any]] = {}
    for name, kind in _kinds(variables, arrays, decoding).items():
        if name not in dropped:
            alike.setdefault(kind, []).append(name)
    # Dropped variables are passed on too: attributes of the others refer to them.
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
        # Decoding a time changes the attributes of its bounds, which may be decoded already.
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
    """Return the variables that `decode_variables` cannot decode, with the error of each.

    Parameters
    ----------
    variables, arrays, decoding, dropped
        As for `decode_variables`. The variables are not changed.
    failed
        The variable whose failure is already known, with its error: its chunks are not read again.

    Raises
    ------
    Exception
        If one of the caller's options is wrong, so that no variable can be decoded.
    """

    def failure(
        name: Any, *owners: Any, without: str | None = None, zeros: bool = False
    ) -> Exception | None:
        """Return the error of decoding one variable, alone or as bounds of its `owners`.

        It is decoded without the attribute `without`, or with `zeros` in place of its values.
        """
        alone = {member: variables[member].copy(deep=False) for member in (*owners, name)}
        alone[name].attrs.pop(without, None)
        if zeros:
            item = alone[name]
            alone[name] = Variable(item.dims, np.zeros((1,) * item.ndim, item.dtype), item.attrs)
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
        # `units` comes last: a wrong calendar is harmless without units as well.
        present = _DECODED_BY.intersection(variables[name].attrs)
        ordered = sorted(present, key=lambda attribute: (attribute == "units", attribute))
        guilty = (key for key in ordered if failure(name, without=key) is None)
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
            name = variable.attrs.get("bounds")  # bounds inherit the units of their owner
            if isinstance(name, str) and name in variables and not errors.keys() & {owner, name}:
                error = failure(name, owner)
                errors |= {} if error is None else {name: error}
        return {name: reason(name, error) for name, error in errors.items()}


def undecodable(
    error: Exception, array: LazyArray | None, attribute: str | None = None, *, whole: bool
) -> NczarrError:
    """Return the error that explains why xarray cannot decode a variable.

    Parameters
    ----------
    error
        The error that xarray raised, or that reading raised.
    array
        The stored array if its values are to blame, because a chunk may be missing.
    attribute
        Name of the attribute without which xarray can decode the variable.
    whole
        Whether all values were decoded, or only the first and the last, from which xarray infers
        the type of times.
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
    """Return the error without its frames, which keep arrays alive that can be large."""
    cause: BaseException | None = error
    while cause is not None:
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
    return error


def _missing_chunk(array: LazyArray, whole: bool) -> MissingChunkError | None:
    """Return the error of a missing chunk: of any, or of the first and last value's chunks."""
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
    """Return the array with ``missing_chunks="raise"``."""
    stored = array.stored
    options = replace(stored.options, missing_chunks="raise")
    return replace(array, stored=ChunkedArray(stored.node, stored.store, options))


def _widen_scale(attributes: dict[Any, Any]) -> None:
    """Replace an integer scale_factor, whose type xarray would use for the decoded values.

    Values would overflow a small integer type, and no integer type has NaN for missing values.
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
    """Return a key per variable; variables with equal keys are decoded alike.

    The key of a numeric variable consists of dtype and attributes. Other keys are unique.
    """
    if any(isinstance(option, Mapping) for option in decoding.values()):
        return {name: name for name in variables}
    # Bounds inherit attributes of their time.
    bounds = {str(item.attrs["bounds"]) for item in variables.values() if "bounds" in item.attrs}
    kinds = {}
    for name, variable in variables.items():
        kinds[name] = name
        if name in arrays and arrays[name].dtype.kind in "iuf" and name not in bounds:
            present = variable.attrs
            relevant = [(key, _frozen(present[key])) for key in _DECODED_BY.intersection(present)]
            kinds[name] = (arrays[name].dtype, frozenset(relevant))
    return kinds


def _frozen(value: Any) -> Hashable:
    """Return a hashable stand-in for an attribute's value, equal if type and bits are equal."""
    if isinstance(value, str):
        return value
    array = np.asarray(value)
    return array.dtype, array.shape, array.tobytes()


def find_unpacking(decoded: Variable, array: LazyArray) -> Unpacking | TruthValues | None:
    """Return the conversion of a variable, or None if decoding is more than masking and scaling."""
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
        missing += [
            item for item in values if item == item and item not in missing
        ]  # cannot represent NaN
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
    """Return the attribute `_FillValue` of an array as a decoded value.

    Zarr's fill values are decoded values, also with a filter ``fixedscaleoffset``. VirtualiZarr
    before 2.0 turned CF's attributes into such filters and left `_FillValue` packed (its issue
    670). The two cases look the same. A value that may be packed causes a warning, and is unpacked
    only if no chunk can decode to it.
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
        f"_FillValue {fill_value} of {node.path} may be a packed or an unpacked value of its "
        f"filter fixedscaleoffset: {meant} is masked, and {unmeant} is not. Open with "
        "mask_and_scale=False to mask neither",
        stacklevel=2,
    )
    return meant


def _scalar(value: Any) -> Any:
    return value if value is None or np.ndim(value) == 0 else np.asarray(value).item()
