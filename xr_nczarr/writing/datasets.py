"""What is to be written: any of xarray's objects as datasets by the path of their group."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from xarray import DataArray, Dataset, DataTree, Variable

from xr_nczarr.errors import UnsupportedError
from xr_nczarr.model import child_path, group_path

_ARRAY_NAME = "__xarray_dataarray_variable__"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be written: datasets by absolute path, each with its encoding.

    `growing` are the names of dimensions that may become longer.
    """

    datasets: dict[str, Dataset]
    encoding: dict[str, Mapping[str, Mapping[str, Any]]]
    unlimited: dict[str, set[str]]
    growing: dict[str, set[str]]
    group: str


def normalise(
    obj: Any,
    group: str | None,
    encoding: Any,
    unlimited: Any,
    append_dim: str | None,
    regional: bool,
) -> Request:
    """Give any object as datasets by absolute path, parents first."""
    base = group_path(group)
    if isinstance(obj, DataTree):
        nodes = {
            base if node is obj else child_path(base, path): node
            for path, node in obj.subtree_with_keys
        }
        strange = set(encoding or {}) - {node.path for node in nodes.values()}
        if strange:
            raise ValueError(f"encoding is given for groups that are not there: {sorted(strange)}")
        datasets = {path: node.to_dataset(inherit=node is obj) for path, node in nodes.items()}
        encodings = {path: (encoding or {}).get(node.path) or {} for path, node in nodes.items()}
        asked = dict.fromkeys(nodes, unlimited)
        if isinstance(unlimited, Mapping):
            asked = {path: unlimited.get(node.path) for path, node in nodes.items()}
    else:
        dataset = _as_dataset(obj)
        datasets, encodings, asked = {base: dataset}, {base: encoding or {}}, {base: unlimited}
    for path, dataset in datasets.items():
        _check_types(path, dataset)
        for name in encodings[path]:
            if name not in dataset.variables:
                raise KeyError(f"encoding is given for {name!r}, and there is no such variable")
    required = len(datasets) == 1 and not regional
    dims = {
        path: unlimited_dimensions(dataset, asked[path], required=required)
        for path, dataset in datasets.items()
    }
    growing = {
        path: growing_dimensions(dataset, {*dims[path], *filter(None, [append_dim])})
        for path, dataset in datasets.items()
    }
    return Request(
        datasets=datasets, encoding=encodings, unlimited=dims, growing=growing, group=base
    )


def _check_types(path: str, dataset: Dataset) -> None:
    for name, variable in dataset.variables.items():
        if not isinstance(variable.dtype, np.dtype):
            raise UnsupportedError(
                f"found the type {variable.dtype} of pandas, expected one of NumPy",
                remedy="Convert the values, as with .astype(str) or .astype(float)",
                variable=child_path(path, str(name)),
            )


def _as_dataset(obj: Any) -> Dataset:
    if isinstance(obj, Dataset):
        return obj
    if not isinstance(obj, DataArray):
        raise TypeError(f"expected a Dataset, DataArray or DataTree; found {type(obj).__name__}")
    if obj.name is not None and obj.name not in {*obj.coords, *obj.dims}:
        return obj.to_dataset()
    dataset = obj.to_dataset(name=_ARRAY_NAME)
    if obj.name is not None:  # what to_netcdf does: reading with open_dataarray restores the name
        dataset.attrs["__xarray_dataarray_name__"] = obj.name
    return dataset


def unlimited_dimensions(
    dataset: Dataset, asked: Iterable[str] | str | None, *, required: bool
) -> set[str]:
    """Give the names of a dataset's unlimited dimensions: those `asked` for, else left by opening.

    If they are `required`, one that the dataset does not have is an error when it was asked for,
    else a warning.
    """
    names = dataset.encoding.get("unlimited_dims", ()) if asked is None else asked
    found = {names} if isinstance(names, str) else set(names)
    missing = found - set(map(str, dataset.dims))
    if missing and required:
        where = "dataset.encoding" if asked is None else "unlimited_dims-kwarg"
        problem = (
            f"Unlimited dimension(s) {missing!r} declared in {where!r}, but the dataset has "
            f"the dimensions {sorted(map(str, dataset.dims))}"
        )
        if asked is not None:
            raise ValueError(problem)
        warnings.warn(problem, stacklevel=4)
    return found - missing


def growing_dimensions(dataset: Dataset, known: Collection[str]) -> set[str]:
    """Return the names of the dimensions that may become longer: those that are `known` to.

    If the dataset has none of these, they are those of times, and the first one of the variables
    with the most dimensions.
    """
    growing = set(known) & set(map(str, dataset.dims))
    if growing:
        return growing
    rank = max((variable.ndim for variable in dataset.variables.values()), default=0)
    first = {str(v.dims[0]) for v in dataset.variables.values() if v.ndim == rank > 0}
    times = {
        str(dim) for dim, size in dataset.sizes.items() if size and _lies_in_time(dataset, dim)
    }
    return first | times


def _lies_in_time(dataset: Dataset, dim: Hashable) -> bool:
    """Return whether the coordinate of a dimension holds times, decoded or not."""
    if dim not in dataset.variables or dataset[dim].dims != (dim,):
        return False
    coordinate = dataset[dim].variable
    return is_time(coordinate) or " since " in str(coordinate.attrs.get("units"))


def is_time(variable: Variable) -> bool:
    """Return whether a variable holds times, NumPy's or cftime's; empty objects are none."""
    if variable.dtype != object or not variable.size:
        return variable.dtype.kind in "mM"
    return hasattr(variable[(0,) * variable.ndim].to_numpy().item(), "calendar")
