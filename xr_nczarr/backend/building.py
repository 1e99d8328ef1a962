"""Build Datasets from netCDF groups, even if some variables cannot be read or decoded."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import xarray
from xarray import Coordinates, Dataset, SerializationWarning, Variable
from xarray.core import indexing

from xr_nczarr.backend.decoding import (
    PASSING,
    decode_variables,
    decoding_error,
    find_undecodable,
    require_chunks,
    without_tracebacks,
)
from xr_nczarr.backend.lazy import CodedArray, SelectedArray, decoder_errors_as_metadata
from xr_nczarr.backend.opened_encoding import xarray_attributes
from xr_nczarr.backend.stored_group import StoredGroup, prefetch_coordinates
from xr_nczarr.backend.times import for_empty_times
from xr_nczarr.dataset import OpenedStore
from xr_nczarr.errors import MetadataError, NczarrError, quote
from xr_nczarr.netcdf import Group
from xr_nczarr.storage import Store

_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_LIBRARIES = tuple(os.path.join(path, "") for path in (*xarray.__path__, _PACKAGE))


def build_groups(
    opened: OpenedStore, group: Group, decoding: Mapping[str, Any], *, indexed: bool = False
) -> dict[str, Dataset]:
    """Build a Dataset for a group and for each of its descendants.

    The keys of the returned dict are paths relative to the group. The group itself has the key
    ``"/"``. See `build_dataset` for `decoding` and `indexed`.
    """
    coordinate_store = prefetch_coordinates(opened, group.walk())
    top = "" if group.path == "/" else group.path
    return {
        item.path.removeprefix(top) or "/": build_dataset(
            opened, item, decoding, indexed=indexed, coordinate_store=coordinate_store
        )
        for item in group.walk()
    }


def build_dataset(
    opened: OpenedStore,
    group: Group,
    decoding: Mapping[str, Any],
    *,
    indexed: bool = False,
    coordinate_store: Store | None = None,
) -> Dataset:
    """Build the Dataset of one group, decoding it as xarray decodes netCDF files.

    By default (``on_unsupported="lazy"``), a variable that cannot be read is kept, and
    accessing its values raises an error. A variable that can be read but not decoded
    keeps its stored values and attributes, and a warning is issued.

    Parameters
    ----------
    decoding
        xarray's decoding options, as a mapping from option names to values.
    indexed
        Whether xarray will create indexes for dimension coordinates. If so, this function reads
        the coordinates itself, because an error raised while xarray reads them would make opening
        fail.
    coordinate_store
        The result of `prefetch_coordinates` for all groups that are opened together. If None,
        `prefetch_coordinates` is called for this group alone.
    """
    dropped = decoding["drop_variables"]
    source = StoredGroup(opened, group, dropped, coordinate_store=coordinate_store)
    while True:
        values: dict[Hashable, Any] = {}
        decoded, problems = _decode(source, decoding)
        with decoder_errors_as_metadata(opened.store.name, group.path):
            if indexed and not problems:
                values, problems = _read_coordinates(source, decoded)
            if not problems:
                dataset, messages = _assemble(source, decoded, values, indexed)
                break
        source = source.reopened(source.problems | problems)
    for message in messages:
        _warn(message)
    return dataset


@dataclass(frozen=True, slots=True)
class _Decoded:
    """The decoded variables, attributes and coordinate names of a group, as xarray returns them."""

    variables: dict[Any, Variable]
    attributes: dict[Any, Any]
    coordinates: set[Hashable]


def _decode(
    source: StoredGroup, decoding: Mapping[str, Any]
) -> tuple[_Decoded, dict[Hashable, NczarrError]]:
    """Decode the variables of a group, and return an error for each that xarray cannot decode.

    If there are errors, no decoded variables are returned. Raise xarray's own exception if an
    option in `decoding` is invalid. Raise MetadataError if each variable can be decoded by itself,
    but the group as a whole cannot.
    """
    attributes = xarray_attributes(source.group)
    decoding = for_empty_times(source.variables, decoding)
    try:
        decoded = decode_variables(
            source.variables, source.arrays, attributes, decoding, source.placeholders
        )
        return _Decoded(*decoded), {}
    except PASSING:
        raise
    except Exception as error:
        failure = without_tracebacks(error)
    unchanged = source.reopened(source.problems)  # decoding has changed the variables in `source`
    path = failure.variable if isinstance(failure, NczarrError) else None
    failed = {name: failure for name in unchanged.variables if source.path_of(name) == path}
    problems = find_undecodable(
        unchanged.variables, unchanged.arrays, decoding, unchanged.placeholders, failed
    )
    if not problems:
        with decoder_errors_as_metadata(source.opened.store.name, source.group.path):
            raise failure
    return _Decoded({}, {}, set()), problems


def _read_coordinates(
    source: StoredGroup, decoded: _Decoded
) -> tuple[dict[Hashable, Any], dict[Hashable, NczarrError]]:
    """Return the values of a group's dimension coordinates, and the errors of unusable coordinates.

    Both dicts are keyed by name. They omit coordinates without elements. They also omit coordinates
    in `source.as_stored` that cannot be read.
    """
    values: dict[Hashable, Any] = {}
    problems: dict[Hashable, NczarrError] = {}
    store = source.opened.store.name
    for name, variable in (decoded.variables | source.as_stored).items():
        if variable.dims != (name,) or name in source.unreadable or not variable.size:
            continue
        array = source.arrays[name]
        try:
            if name in source.as_stored:
                values[name] = SelectedArray(require_chunks(array)).get_duck_array()
            else:
                coded = CodedArray.around(variable._data, store, source.path_of(name))
                values[name] = coded.decode(coded.array.get_duck_array())
        except PASSING:
            raise
        except Exception as error:
            if name not in source.as_stored:
                problems[name] = decoding_error(without_tracebacks(error), array, all_values=True)
            elif not isinstance(error, NczarrError):
                raise
    return values, problems


def _assemble(
    source: StoredGroup, decoded: _Decoded, values: Mapping[Hashable, Any], indexed: bool
) -> tuple[Dataset, list[str]]:
    available = decoded.variables | source.as_stored
    variables = {name: available[name] for name in source.variables if name in available}
    messages = _remove_conflicting_scalars(source, variables)
    coordinates: dict[Hashable, tuple[Any, Any]] = {}
    data_variables: dict[Hashable, tuple[Any, Any]] = {}
    demoted = set(source.unreadable)  # coordinates that become data variables
    for name, variable in variables.items():
        data: Any = variable._data
        if name in values:
            data = indexing.as_indexable(values[name])
        elif name in decoded.variables and variable is not source.variables[name]:
            data = CodedArray.around(data, source.opened.store.name, source.path_of(name))
        is_dimension_coordinate = variable.dims == (name,)
        is_coordinate = is_dimension_coordinate or name in decoded.coordinates
        (coordinates if is_coordinate else data_variables)[name] = (variable.dims, data)
        if name in source.as_stored:
            needs_index = indexed and is_dimension_coordinate and variable.size
            has_index = name in values or not needs_index
            demoted |= set() if has_index else {name}
            qualifiers = [] if name in source.unreadable else ["was not decoded"]
            qualifiers += [] if has_index else ["has no index"]
            if qualifiers:
                subject = quote(source.path_of(name))
                reason = source.problems[name]
                messages.append(f"{subject} {' and '.join(qualifiers)}: {reason}")
    # xarray creates the indexes later, unless the caller declines them. Creating an index reads the
    # values, so a coordinate that cannot be read becomes a data variable.
    dataset = Dataset(
        data_variables, coords=Coordinates(coordinates, indexes={}), attrs=decoded.attributes
    )
    for name, item in dataset.variables.items():
        # Attributes are set last, because xarray makes an extra copy of variables with attributes.
        item.attrs, item.encoding = variables[name].attrs, variables[name].encoding
    demoted &= coordinates.keys()
    if demoted:
        dataset = dataset.reset_coords(demoted)
    dataset.encoding = source.encoding
    dataset.set_close(_nothing_to_close)
    return dataset, messages


def _nothing_to_close() -> None:
    """Do nothing, because stores keep no files open between reads."""


def _remove_conflicting_scalars(source: StoredGroup, variables: dict[Any, Variable]) -> list[str]:
    """Remove scalar variables that have the name of a dimension, and return warning messages.

    `variables` is changed in place. Raise MetadataError instead if ``on_unsupported="raise"``.
    """
    messages = []
    dimensions = {dim for variable in variables.values() for dim in variable.dims}
    scalars = [name for name, variable in variables.items() if not variable.dims]
    for name in filter(dimensions.__contains__, scalars):
        error = MetadataError(
            "the scalar variable has the same name as a dimension of other variables; xarray does "
            "not allow this in one Dataset",
            remedy="Pass drop_variables to exclude either the scalar or the variables that "
            "have this dimension",
            store=source.opened.store.name,
            variable=source.path_of(name),
        )
        if source.opened.options.on_unsupported == "raise":
            raise error
        del variables[name]
        if source.opened.options.on_unsupported != "skip":
            messages.append(f"{quote(source.path_of(name))} is left out: {error}")
    return messages


def _warn(message: str) -> None:
    """Issue a warning that points to the line of user code that called xarray."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_LIBRARIES):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, SerializationWarning, stacklevel=level)
