"""Turn the arguments of `to_nczarr` into a request with a dataset for each group to write."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from dask.base import tokenize
from xarray import CFTimeIndex, DataArray, Dataset, DataTree, Variable

from xr_nczarr.codecs import crc32
from xr_nczarr.encoding.blockwise import opened_lazily
from xr_nczarr.encoding.encoding_keys import check_encoding
from xr_nczarr.errors import ConflictError, ErrorContext, UnsupportedError, reason_of
from xr_nczarr.model import child_path, group_path, is_within
from xr_nczarr.netcdf import Layout
from xr_nczarr.writing.source_blocks import in_blocks
from xr_nczarr.writing.write_options import WriteOptions

_NUMBERS = "biufcmM"  # kinds of dtypes
_ARRAY_NAME = "__xarray_dataarray_variable__"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRequest:
    """A dataset to write to the group at `path`.

    Attributes
    ----------
    encoding
        Encodings that the caller passed for this write, keyed by variable name.
    unlimited
        Names of unlimited dimensions.
    growing
        Names of dimensions along which the dataset may grow later; see `growing_dimensions`.
    coordinates
        The dimension coordinates, keyed by name, including those inherited in a DataTree.
    """

    path: str
    dataset: Dataset
    encoding: Mapping[str, Mapping[str, Any]]
    unlimited: set[str]
    growing: set[str]
    coordinates: Mapping[str, Variable] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRequest:
    """The validated and normalized arguments of one call to `to_nczarr`.

    Attributes
    ----------
    path
        Path of the group to write into, as passed to `to_nczarr`.
    groups
        All groups to write, parents first.
    layout
        The layout of a new store. An existing store keeps its layout.
    """

    path: str
    groups: list[GroupRequest]
    layout: Layout
    options: WriteOptions

    @property
    def replaces_store(self) -> bool:
        """Whether the write replaces the whole store."""
        return self.options.mode == "w" and self.path == "/"

    def identity(self) -> str:
        """Return a string that identifies this write in a lock, without reading lazy values."""
        written = [
            (group.path, name, variable.dims, variable.shape, _tokenizable(variable))
            for group in self.groups
            for name, variable in group.dataset.variables.items()
        ]
        return str(tokenize(self.options.mode, self.options.append_dim, written))


def _tokenizable(variable: Variable) -> Any:
    """Return an object that dask can tokenize without reading the values of a lazy variable."""
    data = variable._data
    if opened_lazily(data) if variable.chunks else not variable._in_memory:
        return variable.encoding.get("source")
    if isinstance(data, np.ndarray) and data.flags.c_contiguous and data.dtype.kind in _NUMBERS:
        # dask would compute a SHA-1 hash, which takes a quarter of the total write time.
        return data.dtype, crc32(data), variable.attrs
    return variable


def normalize(
    obj: Any,
    *,
    group: str | None,
    encoding: Any,
    unlimited: Any,
    layout: Layout,
    options: WriteOptions,
) -> WriteRequest:
    """Validate the arguments of `to_nczarr`, and build a `WriteRequest` from them.

    Large, lazily opened variables are converted to dask arrays; see `in_blocks`.

    Raises
    ------
    TypeError
        If `obj` is not a Dataset, DataArray or DataTree.
    KeyError
        If `encoding` names a variable that is not in `obj`.
    ConflictError
        If an encoding has unknown keys, or a ``coordinates`` attribute is not text.
    ValueError
        If `encoding` or `unlimited` names a group that is not in `obj`, or if `unlimited` names a
        dimension that does not exist. If `unlimited` is a mapping from groups to dimensions, each
        dimension must exist in its group. Otherwise, it can exist in any group of `obj`.
    UnsupportedError
        If a variable has a pandas extension type.
    """
    base, encoding = group_path(group), encoding or {}
    if isinstance(obj, DataTree):
        _check_groups(obj, "encoding", encoding)
        _check_unlimited(obj, unlimited)
        if isinstance(unlimited, Mapping):
            unlimited = _with_defining_groups(obj, unlimited)
        parts = [
            (
                base if node is obj else child_path(base, path),
                node.to_dataset(inherit=node is obj),
                encoding.get(node.path) or {},
                unlimited.get(node.path) if isinstance(unlimited, Mapping) else unlimited,
                _dimension_coordinates(node.to_dataset()),
            )
            for path, node in obj.subtree_with_keys
        ]
    else:
        dataset = _as_dataset(obj)
        parts = [(base, dataset, encoding, unlimited, _dimension_coordinates(dataset))]
    required = len(parts) == 1 and options.region is None
    groups = []
    for path, dataset, encodings, requested, coordinates in parts:
        _check_variables(path, dataset)
        dims = unlimited_dimensions(dataset, requested, required=required)
        growing = growing_dimensions(dataset, {*dims, *filter(None, [options.append_dim])})
        for name, keys in encodings.items():
            if name not in dataset.variables:
                raise KeyError(
                    f"encoding contains the variable {name!r}, which is not in the dataset"
                )
            check_encoding(name, keys)
        group_request = GroupRequest(
            path=path,
            dataset=in_blocks(dataset, encodings),
            encoding=encodings,
            unlimited=dims,
            growing=growing,
            coordinates=coordinates,
        )
        groups.append(group_request)
    return WriteRequest(path=base, groups=groups, layout=layout, options=options)


def _dimension_coordinates(dataset: Dataset) -> dict[str, Variable]:
    named = ((str(dim), dataset.variables.get(dim)) for dim in dataset.dims)
    return {dim: item for dim, item in named if item is not None and item.dims == (dim,)}


def _check_groups(tree: DataTree, argument: str, by_group: Mapping[str, Any]) -> None:
    """Raise ValueError if a key of `by_group` is not the path of a group in the tree."""
    unknown_paths = by_group.keys() - {node.path for node in tree.subtree}
    if unknown_paths:
        raise ValueError(
            f"{argument} contains groups that are not in the DataTree: {sorted(unknown_paths)}"
        )


def _check_unlimited(tree: DataTree, unlimited: Any) -> None:
    """Raise ValueError if `unlimited` names a group or dimension that is not in the tree."""
    dims = {node.path: set(map(str, node.dims)) for node in tree.subtree}
    requested = [("the DataTree", unlimited, set().union(*dims.values()))]
    if isinstance(unlimited, Mapping):
        _check_groups(tree, "unlimited_dims", unlimited)
        requested = [(f"group {path}", names, dims[path]) for path, names in unlimited.items()]
    for where, names, known in requested:
        missing = _names(names) - known
        if missing:
            raise ValueError(
                f"unlimited_dims contains {sorted(missing)}, but {where} has only the dimensions "
                f"{sorted(known)}"
            )


def _with_defining_groups(tree: DataTree, unlimited: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `unlimited` that also lists each dimension under its defining group."""
    requested = dict(unlimited)
    for node in tree.subtree:
        for name in _names(unlimited.get(node.path)):
            # The topmost group that has a dimension of this name defines it.
            owner = next(
                group
                for group in tree.subtree
                if name in group.dims and is_within(node.path, group.path)
            )
            own = requested.get(owner.path)
            # Without a key in `unlimited`, the encoding of a group would determine its dimensions.
            declared = owner.encoding.get("unlimited_dims") if own is None else own
            requested[owner.path] = {name, *_names(declared)}
    return requested


def _names(dimensions: Iterable[str] | str | None) -> set[str]:
    return {dimensions} if isinstance(dimensions, str) else set(dimensions or ())


def _check_variables(path: str, dataset: Dataset) -> None:
    """Raise an error for unsupported arrays, and ``coordinates`` attributes that are not text."""
    for name, variable in dataset.variables.items():
        with ErrorContext(variable=child_path(path, str(name))):
            _check_array(variable)
        text = {**variable.attrs, **variable.encoding}.get("coordinates")
        if not isinstance(text, str | None):
            raise ConflictError(
                "the attribute 'coordinates' must be a string of space-separated variable names, "
                f"not {text!r}",
                remedy="Rename or remove the attribute",
                variable=child_path(path, str(name)),
            )


def _check_array(variable: Variable) -> None:
    """Raise UnsupportedError if the values cannot be converted to a NumPy array.

    Arrays with chunks, such as dask arrays, are not converted.
    """
    data = variable._data
    kind = f"{type(data).__module__}.{type(data).__qualname__}"
    if not isinstance(variable.dtype, np.dtype):
        raise UnsupportedError(
            f"the variable must have a NumPy dtype, not the pandas dtype {variable.dtype}",
            remedy="Convert the values, for example with .astype(str) or .astype(float)",
        )
    if kind.startswith("virtualizarr."):
        raise UnsupportedError(
            "the variable is virtual: it consists of references, not of values",
            remedy="Write the references with ds.vz.to_kerchunk, and copy the reference set to a "
            "store with xr_nczarr.copy",
        )
    if hasattr(data, "__array_function__") and not hasattr(data, "chunks"):
        try:
            with warnings.catch_warnings(action="ignore"):
                np.asarray(data[(slice(0),) * variable.ndim])  # an empty selection
        except Exception as error:
            raise UnsupportedError(
                f"an array of type {kind} cannot be converted to a NumPy array "
                f"({reason_of(error)})",
                remedy="Convert the variable first, for example with .as_numpy() or, if the array "
                "is sparse, with .copy(data=variable.data.todense())",
            ) from error


def _as_dataset(obj: Any) -> Dataset:
    if isinstance(obj, Dataset):
        return obj
    if not isinstance(obj, DataArray):
        raise TypeError(f"obj must be a Dataset, DataArray or DataTree, not {type(obj).__name__}")
    if obj.name is not None and obj.name not in {*obj.coords, *obj.dims}:
        return obj.to_dataset()
    dataset = obj.to_dataset(name=_ARRAY_NAME)
    if obj.name is not None:  # as in to_netcdf: open_dataarray restores the name
        dataset.attrs["__xarray_dataarray_name__"] = obj.name
    return dataset


def unlimited_dimensions(
    dataset: Dataset, requested: Iterable[str] | str | None, *, required: bool
) -> set[str]:
    """Return the names of a dataset's unlimited dimensions.

    If `requested` is None, the names are taken from the dataset's encoding. Names that are not
    dimensions of the dataset are omitted. If `required` is true, a warning is issued for omitted
    names in the encoding.

    Raises
    ------
    ValueError
        If `required` is true, and a requested name is not a dimension of the dataset.
    """
    declared = dataset.encoding.get("unlimited_dims", ()) if requested is None else requested
    names = _names(declared)
    missing = names - set(map(str, dataset.dims))
    if missing and required:
        where = "dataset.encoding" if requested is None else "unlimited_dims-kwarg"
        problem = (
            f"Unlimited dimension(s) {missing!r} declared in {where!r}, but the dataset has "
            f"only the dimensions {sorted(map(str, dataset.dims))}"
        )
        if requested is not None:
            raise ValueError(problem)
        warnings.warn(problem, stacklevel=4)
    return names - missing


def growing_dimensions(dataset: Dataset, declared: Collection[str]) -> set[str]:
    """Return the names of the dimensions along which a dataset may grow later.

    These are the dimensions in `declared` that the dataset has. If the dataset has none of them,
    two kinds of dimensions are returned:

    - every dimension that has a time coordinate and is not empty;
    - the first dimension of each variable of the highest rank. For example, if the dataset contains
      2-d and 3-d variables, only the 3-d variables are considered.
    """
    growing = set(declared) & set(map(str, dataset.dims))
    if growing:
        return growing
    rank = max((variable.ndim for variable in dataset.variables.values()), default=0)
    first = {str(v.dims[0]) for v in dataset.variables.values() if v.ndim == rank > 0}
    times = {str(dim) for dim, size in dataset.sizes.items() if size and _has_times(dataset, dim)}
    return first | times


def _has_times(dataset: Dataset, dim: Hashable) -> bool:
    if dim not in dataset.variables or dataset[dim].dims != (dim,):
        return False
    coordinate, index = dataset.variables[dim], dataset.indexes.get(dim)
    if coordinate.dtype.kind in "mM" or isinstance(index, CFTimeIndex):
        return True
    return " since " in str(coordinate.attrs.get("units"))
