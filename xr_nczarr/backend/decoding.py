"""Decode variables according to the CF conventions, and mask and scale values chunk by chunk.

xarray first decodes the metadata of a variable, which determines its dtype, attributes and
encoding. If the values only need to be masked, scaled or byte-swapped, xarray's operations on the
whole array are replaced with the same operations on each chunk. Each chunk is converted by the
thread that decompresses it, while the chunk is still in the processor's cache. The resulting values
are bitwise identical to xarray's own.

The decoding of numbers depends only on their dtype and a few attributes. For each combination of
dtype and attributes, xarray therefore decodes the metadata of only one variable. The result is then
applied to all other variables with the same combination. Most variables in a large dataset share a
few combinations.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Set
from dataclasses import dataclass, replace
from numbers import Real
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

PACKING_KEYS = ("scale_factor", "add_offset")
_VALUE_KEYS = ("_FillValue", "missing_value", *PACKING_KEYS, "_Unsigned", "_Encoding")
_DECODED_BY = {*_VALUE_KEYS, "dtype", "units", "calendar", "coordinates", *CF_RELATED_DATA}
"""Names of the attributes that affect how xarray decodes a variable."""

PASSING = (StorageTimeoutError, StorageConnectionError)
"""Transient errors, which are re-raised because they do not mean that a variable is damaged."""


@dataclass(frozen=True, slots=True)
class Unpacking:
    """A function that masks and scales stored numbers according to their CF attributes.

    Attributes
    ----------
    missing
        Stored values that mark missing data. They become NaN.
    scale_factor, add_offset
        The CF attributes of the same names. None means that the step is skipped. Values are
        multiplied by the factor before the offset is added.
    """

    missing: tuple[Any, ...] = ()
    scale_factor: Any = None
    add_offset: Any = None

    def __call__(self, stored: npt.NDArray[Any], target: npt.NDArray[Any]) -> None:
        """Unpack `stored`, and write the values into `target`, which may be the same array."""
        if target is not stored:
            target[...] = stored
        # As in xarray, values are compared after conversion to the target's dtype. This matters
        # because different large integers may become equal floats.
        masks = [target == value for value in self.missing]
        for mask in masks:
            target[mask] = np.nan
        if self.scale_factor is not None:
            target *= self.scale_factor
        if self.add_offset is not None:
            target += self.add_offset


@dataclass(frozen=True, slots=True)
class BooleanConversion:
    """A function that converts numbers to booleans, and raises an error for missing values.

    0 becomes False, and every other number becomes True. `missing` contains the stored values that
    mark missing data.
    """

    missing: tuple[Any, ...]

    def __call__(self, stored: npt.NDArray[Any], target: npt.NDArray[Any]) -> None:
        """Convert `stored` to booleans, and write them into `target`.

        Raises
        ------
        MetadataError
            If `stored` contains a missing value.
        """
        for value in self.missing:
            if (stored == value).any():
                raise MetadataError(
                    f"boolean data contains the missing value {value}, which dtype bool cannot "
                    "represent",
                    remedy="Open the dataset with mask_and_scale=False, which decodes every value "
                    "except 0 as True",
                )
        target[...] = stored


def decode_variables(
    variables: Mapping[Any, Variable],
    arrays: Mapping[Hashable, LazyArray],
    attributes: dict[Any, Any],
    decoding: Mapping[str, Any],
    dropped: Set[Hashable],
) -> tuple[dict[Any, Variable], dict[Any, Any], set[Hashable]]:
    """Decode variables as xarray's `decode_cf_variables` does, but convert numbers chunk by chunk.

    Parameters
    ----------
    variables
        Stored variables. They may be changed in place, and the result may contain the same
        objects.
    arrays
        Lazy arrays of the variables that can be read, keyed by name. This function may
        change the attributes `dtype` and `convert` of these arrays.
    attributes
        Attributes of the group.
    decoding
        xarray's decoding options, as a mapping from option names to values.
    dropped
        Names of variables to leave out of the result. They can still affect other variables, for
        example if a ``bounds`` attribute refers to them.

    Returns
    -------
    tuple
        The decoded variables, the attributes of the group, and the names of the coordinates. If
        xarray decodes the group's ``coordinates`` attribute, it removes this attribute.
    """
    scales = decoding["mask_and_scale"]
    for name, variable in variables.items():
        if scales.get(name, True) if isinstance(scales, Mapping) else scales:
            normalize_packing(variable.attrs)
    alike: dict[Any, list[Any]] = {}
    for name, kind in _decoding_keys(variables, arrays, decoding).items():
        if name not in dropped:
            alike.setdefault(kind, []).append(name)
    # Dropped variables are passed to xarray too, because attributes of other variables may refer to
    # them.
    later = {name for names in alike.values() for name in names[1:]}
    # xarray may remove attributes from a stored variable, so their names are recorded first.
    declared = {names[0]: set(variables[names[0]].attrs) for names in alike.values()}
    representatives, remaining, coordinates = decode_cf_variables(
        dict(variables), attributes, **{**decoding, "drop_variables": later | dropped}
    )
    decoded = dict(representatives)
    for names in alike.values():
        stored, first, array = variables[names[0]], decoded[names[0]], arrays.get(names[0])
        unpacking = None if array is None else find_unpacking(first, array)
        removed = declared[names[0]] - first.attrs.keys()
        if unpacking is None or not removed <= _DECODED_BY:
            continue
        later.difference_update(names)
        before, convert = stored.encoding, unpacking if unpacking != Unpacking() else None
        added = {key: item for key, item in first.encoding.items() if before.get(key) is not item}
        for name in names:
            arrays[name].dtype, arrays[name].convert = first.dtype, convert
            decoded[name] = variables[name]
            decoded[name].encoding.update(added)
            for attribute in removed:
                decoded[name].attrs.pop(attribute, None)
    if later:
        # Decode copies, because decoding a time variable changes the attributes of its bounds, and
        # the bounds may have been decoded above.
        copies = {name: variable.copy(deep=False) for name, variable in variables.items()}
        redecoded, _, more_coordinates = decode_cf_variables(
            copies, {}, **{**decoding, "drop_variables": variables.keys() - later}
        )
        decoded.update(redecoded)
        coordinates |= more_coordinates
    ordered = {name: decoded[name] for name in variables if name in decoded}
    return ordered, dict(remaining), coordinates


def find_undecodable(
    variables: Mapping[Any, Variable],
    arrays: Mapping[Hashable, LazyArray],
    decoding: Mapping[str, Any],
    dropped: Set[Hashable],
    failed: Mapping[Hashable, Exception],
) -> dict[Hashable, NczarrError]:
    """Return an error for each variable that `decode_variables` cannot decode, keyed by name.

    Parameters
    ----------
    variables, arrays, decoding, dropped
        As in `decode_variables`. The variables are not changed.
    failed
        Known errors, keyed by variable name. They are included in the result. These variables are
        not decoded again, so that their chunks are not read twice.

    Raises
    ------
    Exception
        If an option in `decoding` is invalid and therefore no variable can be decoded.
    """

    def failure(
        name: Any, *owners: Any, without_attribute: str | None = None, as_zeros: bool = False
    ) -> Exception | None:
        """Return the error that decoding a variable raises, or None if decoding succeeds.

        `owners` are the variables whose ``bounds`` attribute refers to the variable.
        """
        # Bounds inherit the units of their owner, so both are decoded together.
        alone = {member: variables[member].copy(deep=False) for member in (*owners, name)}
        alone[name].attrs.pop(without_attribute, None)
        if as_zeros:
            item = alone[name]
            alone[name] = Variable(item.dims, np.zeros((1,) * item.ndim, item.dtype), item.attrs)
        left_out = {*owners} | ({name} & dropped)
        try:
            decode_cf_variables(alone, {}, **{**decoding, "drop_variables": left_out})
        except PASSING:
            raise
        except Exception as error:
            return without_tracebacks(error)
        return None

    def reason(name: Any, error: Exception) -> NczarrError:
        if isinstance(error, NczarrError):
            return error
        # `units` is tried last, because without `units` even an invalid calendar raises no error.
        present = _DECODED_BY.intersection(variables[name].attrs)
        ordered = sorted(present, key=lambda attribute: (attribute == "units", attribute))
        guilty = (key for key in ordered if failure(name, without_attribute=key) is None)
        array = arrays.get(name) if failure(name, as_zeros=True) is None else None
        is_coordinate = variables[name].dims == (name,)
        return decoding_error(error, array, next(guilty, None), all_values=is_coordinate)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Options can differ between variables, so check them for each name.
        probes = {name: Variable((), np.int8(0)) for name in (None, *variables)}
        decode_cf_variables(probes, {}, **decoding)
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


def decoding_error(
    error: Exception, array: LazyArray | None, attribute: str | None = None, *, all_values: bool
) -> NczarrError:
    """Build the error that explains why xarray cannot decode a variable.

    An NczarrError is returned unchanged.

    Parameters
    ----------
    error
        The error raised by xarray or by reading the values.
    array
        The stored array if its values cause the error, else None. It is searched for a missing
        chunk, because xarray may be unable to decode the fill value that replaces the chunk.
    attribute
        Name of the attribute that causes the error, or None if unknown.
    all_values
        Whether xarray was decoding all values. If False, it was decoding only the first and the
        last value, from which it infers the dtype of times.
    """
    if isinstance(error, NczarrError):
        return error
    reason = reason_of(error)
    missing = None if array is None else _missing_chunk(array, all_values)
    problem = MetadataError(
        f"xarray cannot decode the variable ({reason})",
        remedy="Correct the attributes and apply xarray.decode_cf, or exclude the variable with "
        "drop_variables",
        place=None if attribute is None else f"attribute {attribute}",
    )
    if missing is not None:
        problem = MetadataError(
            "the chunk is missing, and xarray cannot decode the fill value that replaces it "
            f"({reason})",
            remedy="Write the missing chunk, or exclude the variable with drop_variables",
            key=missing.key,
        )
    problem.__cause__ = error
    return problem


def without_tracebacks(error: Exception) -> Exception:
    """Remove the tracebacks from an error and its causes, and return the error.

    Tracebacks refer to local variables, and would therefore keep large arrays in memory.
    """
    cause: BaseException | None = error
    while cause is not None:
        cause.__traceback__ = None
        cause = cause.__cause__ or cause.__context__
    return error


def _missing_chunk(array: LazyArray, all_values: bool) -> MissingChunkError | None:
    """Return the error for a missing chunk of an array, or None if no chunk is missing.

    If `all_values` is False, only the chunks that contain the first and the last value are checked.
    """
    shape = array.stored.node.shape
    selections: list[Any] = [(0,) * len(shape), tuple(size - 1 for size in shape)]
    if all_values:
        selections = [(slice(None),) * len(shape)]
    try:
        for selection in selections if 0 not in shape else ():
            require_chunks(array).stored.read(selection)
    except MissingChunkError as error:
        return error
    except NczarrError:
        return None
    return None


def require_chunks(array: LazyArray) -> LazyArray:
    """Return a copy of a lazy array that raises MissingChunkError for missing chunks."""
    stored = array.stored
    options = replace(stored.options, missing_chunks="raise")
    return replace(array, stored=ChunkedArray(stored.node, stored.store, options))


def normalize_packing(attributes: dict[Any, Any]) -> None:
    """Replace packing attributes that make xarray decode values to the wrong dtype.

    `attributes` is changed in place:

    - An array or list that contains a single number is replaced with that number. With a list,
      xarray may decode the values to dtype object.
    - An integer ``scale_factor`` is replaced with a Python number. It becomes a float if the
      attributes declare a missing value other than NaN, and an int otherwise. With a NumPy integer,
      xarray would decode values to the dtype of that integer. The values could then overflow, and
      missing values could not be represented as NaN.
    """
    attributes |= {key: as_scalar(attributes[key]) for key in PACKING_KEYS if key in attributes}
    scale = attributes.get("scale_factor")
    if isinstance(scale, int | np.integer) and not isinstance(scale, bool):
        declared = [attributes.get(key) for key in ("_FillValue", "missing_value")]
        numbers = [item for value in declared for item in np.asarray(value).ravel().tolist()]
        masks = any(item is not None and item == item for item in numbers)
        attributes["scale_factor"] = float(scale) if masks else int(scale)


def as_scalar(value: Any) -> Any:
    """Unwrap an array or list that contains a single number. Return any other value unchanged."""
    items = value.ravel() if isinstance(value, np.ndarray) else value
    is_single = isinstance(items, list | np.ndarray) and len(items) == 1
    return items[0] if is_single and isinstance(items[0], Real) else value


def _decoding_keys(
    variables: Mapping[Any, Variable],
    arrays: Mapping[Hashable, LazyArray],
    decoding: Mapping[str, Any],
) -> dict[Any, Any]:
    """Map each variable name to a key. Variables with equal keys are decoded in the same way."""
    if any(isinstance(option, Mapping) for option in decoding.values()):
        # An option differs between variables, so each variable has a key of its own.
        return {name: name for name in variables}
    # Bounds inherit attributes from their time coordinate.
    bounds = {str(item.attrs["bounds"]) for item in variables.values() if "bounds" in item.attrs}
    kinds = {}
    for name, variable in variables.items():
        kinds[name] = name
        if name in arrays and arrays[name].dtype.kind in "iuf" and name not in bounds:
            present = variable.attrs
            relevant = [
                (key, _attribute_key(present[key])) for key in _DECODED_BY.intersection(present)
            ]
            kinds[name] = (arrays[name].dtype, frozenset(relevant))
    return kinds


def _attribute_key(value: Any) -> Hashable:
    """Return a hashable key that identifies the dtype, shape and bits of an attribute's value."""
    if isinstance(value, str):
        return value
    array = np.asarray(value)
    return array.dtype, array.shape, array.tobytes()


def find_unpacking(decoded: Variable, array: LazyArray) -> Unpacking | BooleanConversion | None:
    """Return a function that converts stored values exactly as xarray would decode them.

    `decoded` is the variable after xarray has decoded its metadata. Return None if decoding
    requires more than masking and scaling numbers.
    """
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
        # NaN is left out: integers and booleans are never NaN, and floats are masked with NaN.
        missing += [item for item in values if item == item and item not in missing]
    scale, offset = (_scalar(encoding.get(name)) for name in ("scale_factor", "add_offset"))
    if isinstance(scale, str) or isinstance(offset, str):
        return None
    if boolean:
        return BooleanConversion(tuple(missing)) if missing and scale is offset is None else None
    unpacking = Unpacking(tuple(missing), scale, offset)
    if decoded.dtype.kind != "f" and unpacking != Unpacking():
        return None
    return unpacking


def unpacked_fill(node: ArrayNode, fill_value: Any) -> Any:
    """Unpack a ``_FillValue`` attribute that VirtualiZarr left packed.

    VirtualiZarr before 2.0 converted the CF packing attributes to a ``fixedscaleoffset`` filter,
    but left ``_FillValue`` packed (VirtualiZarr issue 670). In an array with this filter, a fill
    value that fits the packed dtype may or may not be packed. If decoding can produce the fill
    value, it is assumed to be unpacked, and returned unchanged. Otherwise it must be packed, so it
    is unpacked. Fill values that do not fit the packed dtype, and the fill values of other arrays,
    are returned unchanged.

    A warning is issued if the fill value fits the packed dtype, and unpacking would change it.
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
        f"_FillValue {fill_value} of {node.path} is ambiguous: it may or may not be packed by the "
        f"filter fixedscaleoffset. {meant} is masked, and {unmeant} is not. To mask neither value, "
        "open the dataset with mask_and_scale=False",
        stacklevel=2,
    )
    return meant


def _scalar(value: Any) -> Any:
    return value if value is None or np.ndim(value) == 0 else np.asarray(value).item()
