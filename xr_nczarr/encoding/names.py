"""Check the names of variables, dimensions and attributes that will be written."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from xarray import DataArray, Dataset, Variable

from xr_nczarr.backend.stored_group import NONE_NAME
from xr_nczarr.errors import ConflictError
from xr_nczarr.formats import FORMATS
from xr_nczarr.hierarchy import JOURNAL, UNFINISHED
from xr_nczarr.netcdf import Layout
from xr_nczarr.netcdf.annotations import BY_DIALECT, XARRAY_DIMENSIONS, is_bookkeeping, is_name

_USUAL = [zarr for zarr in FORMATS.values() if not zarr.is_rare]
_RESERVED = {".", "..", JOURNAL, UNFINISHED, *(zarr.consolidated_key for zarr in _USUAL)}
_RESERVED.update(key for zarr in _USUAL for key in zarr.node_keys("/"))


def stored_name(name: Hashable) -> str:
    """Return the name under which to store a variable or group.

    A string is returned unchanged. xarray also allows the name None, which is stored as
    ``"__values__"``.

    Raises
    ------
    TypeError
        If the name is neither a string nor None.
    ConflictError
        If the name is empty, if it contains a NUL, a slash or a backslash, or if it is reserved.
        For example, ``"."`` and ``"zarr.json"`` are reserved.
    """
    if name is None:
        return NONE_NAME
    if not isinstance(name, str):
        raise TypeError(f"a name must be a string or None, not {name!r}")
    if not name or "\0" in name or name in _RESERVED:
        # This is xarray's wording, which its tests match.
        problem = (
            f"invalid name {name!r}: a string must be length 1 or more, must not contain a NUL, "
            "and must not be a reserved name such as 'zarr.json'"
        )
        raise ConflictError(problem, remedy="Choose another name")
    if "/" in name:
        problem = f"Forward slashes '/' are not allowed in names: {name!r}"
        raise ConflictError(problem, remedy="Choose another name, or write groups as a DataTree")
    if "\\" in name:
        raise ConflictError(
            f"Backslashes are not allowed in names: {name!r}", remedy="Choose another name"
        )
    return name


def check_dimension(name: Hashable, layout: Layout) -> None:
    """Check that a dimension name is allowed in a layout.

    Raises
    ------
    TypeError
        If the name is not a string.
    ConflictError
        If the layout is NCZarr, and the name is empty, ``"."`` or ``".."``, or contains a slash or
        a NUL. Plain Zarr allows all strings.
    """
    if not isinstance(name, str):
        raise TypeError(f"a dimension name must be a string, not {name!r}")
    if not layout.is_plain_zarr and not is_name(name):  # NCZarr refers to dimensions by path
        problem = f"NCZarr does not support a dimension named {name!r}"
        if "/" in name:
            problem = f"Forward slashes '/' are not allowed in NCZarr names: {name!r}"
        raise ConflictError(
            problem, remedy="Choose another name, or write plain Zarr with dialect='zarr'"
        )


def user_attributes(
    attributes: Mapping[Any, Any], dimensions: Sequence[Hashable] | None = None
) -> dict[str, Any]:
    """Return the user-defined attributes, and reject attributes with reserved names.

    xarray's zarr engine exposes dimension names and NCZarr metadata as attributes of a variable.
    These attributes are dropped rather than rejected, because the new store gets its own metadata.

    Parameters
    ----------
    dimensions
        The dimensions of the variable, or None for the attributes of a dataset.

    Raises
    ------
    TypeError
        If a name is not a string, or a value is an xarray object.
    ConflictError
        If a name is reserved for Zarr or NCZarr metadata.
    """
    kept = {}
    for name, value in attributes.items():
        arrays = isinstance(value, Dataset | DataArray | Variable)  # would be stored as numbers
        if arrays or not isinstance(name, str):
            raise TypeError(
                f"Invalid attribute in Dataset.attrs. Found {name!r}: {value!r}. "
                "The name must be a string, and the value must not be an xarray object"
            )
        if not is_bookkeeping(name):
            kept[name] = value
        elif dimensions is None or not _is_set_by_zarr_engine(name, value, dimensions):
            raise ConflictError(
                f"the attribute name {name!r} is reserved for NCZarr and Zarr metadata",
                remedy="Rename or remove the attribute",
            )
    return kept


def _is_set_by_zarr_engine(name: str, value: Any, dimensions: Sequence[Hashable]) -> bool:
    if name == XARRAY_DIMENSIONS:
        return isinstance(value, list) and all(dimension in value for dimension in dimensions)
    annotations = BY_DIALECT["nczarr-preview"]
    return name in (annotations.array, annotations.types) and isinstance(value, dict)
