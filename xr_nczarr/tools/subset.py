"""Select part of a dataset by group, by variables, and by positions or labels."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import numpy as np

from xr_nczarr.errors import ConflictError, NotFoundError, quote, unknown
from xr_nczarr.model import child_path, group_path, is_within, parent_path
from xr_nczarr.netcdf import Dimension, Group, Variable


@dataclass(slots=True, kw_only=True)
class Subset:
    """The part of a netCDF tree that a copy or comparison should include.

    Attributes
    ----------
    group
        Absolute path of the group that becomes the root.
    variables
        Names or paths of the variables to select; see `chosen_paths`. Coordinate variables of their
        dimensions are also included, and so are the variables named in their ``coordinates``
        attributes. None selects all variables.
    positions
        Mapping from names or paths of dimensions to slices or integers. An integer selects one
        element, but keeps the dimension.
    """

    group: str
    variables: Collection[str] | None
    positions: Mapping[str, int | slice]

    def apply(self, root: Group) -> tuple[dict[str, Group], dict[str, Variable]]:
        """Return the groups of the subset, and the source variables that are part of the subset.

        Both are dictionaries, keyed by path in the subset. The variables in the returned groups
        have the dimensions of the subset, but keep the array nodes of the source.

        Raises
        ------
        NotFoundError
            If a group, variable or dimension is unknown, or a position is outside its dimension.
        ConflictError
            If the root group of the subset would have two dimensions of the same name.
        """
        top = _group_at(root, self.group)
        self._check_dimensions(root)
        everything = {variable.path: variable for variable in root.all_variables()}
        below = {variable.path for variable in top.all_variables()}
        wanted = chosen_paths(self.variables, below, "variable")
        if self.variables is not None:
            wanted |= {name for path in wanted for name in _coordinates(everything[path], below)}
            used = {dim.path for path in wanted for dim in everything[path].dimensions}
            wanted |= used & below  # a coordinate variable has the same path as its dimension
        chosen = [variable for path, variable in everything.items() if path in wanted]
        needed = {dim.path: dim for variable in chosen for dim in variable.dimensions}
        groups: dict[str, Group] = {}
        sources: dict[str, Variable] = {}
        for group in top.walk():
            new_group = replace(
                group, path=self._moved(group.path), variables={}, groups={}, dimensions={}
            )
            for name, dimension in group.dimensions.items():
                if self.variables is None or dimension.path in needed:
                    new_group.dimensions[name] = self._dimension(dimension)
            for name, variable in group.variables.items():
                if variable.path in wanted:
                    path = child_path(new_group.path, name)
                    dimensions = tuple([self._dimension(item) for item in variable.dimensions])
                    new_group.variables[name] = replace(variable, path=path, dimensions=dimensions)
                    sources[path] = variable
            groups[new_group.path] = new_group
        self._add_inherited(groups["/"], needed.values())
        if self.variables is not None:
            _prune(groups)
        return groups, sources

    def indexer(self, variable: Variable) -> tuple[slice, ...] | None:
        """Return the slices to read from a source variable, or None to read all of it."""
        slices = [self._slice(dimension) for dimension in variable.dimensions]
        return None if all(item == slice(None) for item in slices) else tuple(slices)

    def _add_inherited(self, root: Group, dimensions: Iterable[Dimension]) -> None:
        for dimension in dimensions:
            if not is_within(dimension.group, self.group):
                if dimension.name in root.dimensions:
                    raise ConflictError(
                        f"the group {quote(self.group)} cannot become the root group, because it "
                        f"would have two dimensions named {quote(dimension.name)}",
                        remedy="Select the variables of one of them, or leave out the group",
                    )
                root.dimensions[dimension.name] = self._dimension(dimension)

    def _moved(self, path: str) -> str:
        """Return the path in the subset of a group, or the root for a group outside the subset."""
        return "/" + path[len(self.group) :].lstrip("/") if is_within(path, self.group) else "/"

    def _slice(self, dimension: Dimension) -> slice:
        position = self.positions.get(dimension.path, self.positions.get(dimension.name))
        if position is None:
            return slice(None)
        if isinstance(position, slice):
            every = range(dimension.size)
            return slice(None) if every[position] == every else position
        if not -dimension.size <= position < dimension.size:
            raise NotFoundError(
                f"dimension {quote(dimension.name)} has no element at position {position}",
                remedy=f"Pass positions from 0 to {dimension.size - 1}"
                if dimension.size
                else "Leave out the dimension; its length is 0",
            )
        start = position % dimension.size
        return slice(start, start + 1)

    def _dimension(self, dimension: Dimension) -> Dimension:
        size = len(range(dimension.size)[self._slice(dimension)])
        path = child_path(self._moved(dimension.group), dimension.name)
        return replace(dimension, path=path, size=size)

    def _check_dimensions(self, root: Group) -> None:
        dimensions = [item for group in root.walk() for item in group.dimensions.values()]
        names = {item.name for item in dimensions}
        for name in self.positions:
            if name not in names and name not in {item.path for item in dimensions}:
                raise unknown("dimension", name, names)


def _coordinates(variable: Variable, paths: set[str]) -> Iterator[str]:
    """Yield the members of `paths` to which a variable's ``coordinates`` attribute refers.

    As the CF conventions specify, each name is looked up in the variable's group, then in the
    ancestors of that group.
    """
    names = variable.attributes.get("coordinates")
    for name in names.split() if isinstance(names, str) else ():
        group = variable.path
        while group != "/":
            group = parent_path(group)
            path = name if name.startswith("/") else child_path(group, name)
            if path in paths:
                yield path
                break


def chosen_paths(requested: Collection[str] | None, paths: set[str], what: str) -> set[str]:
    """Return the members of `paths` that match any of the requested names.

    A name that starts with a slash is an absolute path. Any other name matches every path that ends
    with that name. If `requested` is None, all paths match. `what` names the kind of item in error
    messages, such as ``variable``.

    Raises
    ------
    NotFoundError
        If a name does not match any path.
    """
    if requested is None:
        return set(paths)
    chosen: set[str] = set()
    for name in requested:
        matching = {
            path
            for path in paths
            if path == (name or "/") or (name[:1] != "/" and path.endswith(f"/{name}"))
        }
        if not matching:
            raise unknown(what, name, {path.rpartition("/")[2] for path in paths} - {""})
        chosen |= matching
    return chosen


def positions_of(select: Mapping[str, Any], source: Any, **options: Any) -> dict[str, Any]:
    """Convert the labels in a selection to positions.

    Labels are strings, floats, dates, and slices of these. A slice of labels includes both ends.
    All other items are positions, and are returned unchanged.

    Parameters
    ----------
    select
        Mapping from dimension names to labels or positions.
    source, options
        Arguments for `xarray.open_dataset`. The dataset is opened only if there are labels, which
        are looked up in its indexes.

    Raises
    ------
    NotFoundError
        If a label is unknown, or its dimension has no coordinate variable.
    """
    positions = {name: item for name, item in select.items() if not _is_label(item)}
    if len(positions) < len(select):
        import xarray as xr

        with xr.open_dataset(source, decode_timedelta=False, **options) as dataset:
            for name, label in select.items():
                if name not in positions:
                    positions[name] = _position(dataset, name, label)
    return {name: positions[name] for name in select}


def _is_label(item: Any) -> bool:
    parts = (item.start, item.stop) if isinstance(item, slice) else (item,)
    return any(isinstance(part, str | float | date | np.datetime64) for part in parts)


def _position(dataset: Any, name: str, label: Any) -> int | slice:
    if name not in dataset.dims:
        raise unknown("dimension", name, [*map(str, dataset.dims)])
    if name not in dataset.variables:
        raise NotFoundError(
            f"dimension {quote(name)} has no labels, because it has no coordinate variable",
            remedy=f"Pass positions instead, such as {quote(name)}=0:10",
        )
    index = dataset[name].to_index()
    numeric = index.dtype.kind in "iuf"
    try:
        if not isinstance(label, slice):
            position = index.get_loc(_number(label) if numeric else label)
        else:
            ends = [label.start, label.stop]
            if numeric:
                ends = [None if end is None else _number(end) for end in ends]
            if index.is_monotonic_decreasing and None not in ends and ends[0] < ends[1]:
                ends.reverse()
            position = index.slice_indexer(*ends)
            if not len(range(len(index))[position]):
                raise KeyError(label)
        if isinstance(position, np.ndarray):
            raise KeyError(label)
    except (KeyError, ValueError, TypeError) as error:
        first, last = (index[0], index[-1]) if len(index) else (None, None)
        raise NotFoundError(
            f"dimension {quote(name)} has no label {quote(_label_text(label))}",
            remedy=f"Pass labels from {quote(first)} to {quote(last)}"
            if len(index)
            else "Leave out the dimension; its length is 0",
        ) from error
    return position if isinstance(position, slice) else int(position)


def _number(label: Any) -> int | float:
    """Convert a label to a number.

    Text becomes an integer if possible, because a float cannot represent every large integer. Any
    other label becomes a float.
    """
    with suppress(ValueError):
        if isinstance(label, str):
            return int(label)
    return float(label)


def _label_text(label: Any) -> str:
    ends = (label.start, label.stop) if isinstance(label, slice) else (label,)
    return "/".join(["" if end is None else str(end) for end in ends])


def _group_at(root: Group, path: str) -> Group:
    groups = {group.path: group for group in root.walk()}
    path = group_path(path)
    if path not in groups:
        raise unknown("group", path, groups.keys() - {"/"})
    return groups[path]


def _prune(groups: dict[str, Group]) -> None:
    """Remove groups without variables and dimensions, unless they contain other groups."""
    for path in sorted(groups, key=len, reverse=True):
        group = groups[path]
        below = any(other.startswith(f"{path}/") for other in groups)
        if path != "/" and not (group.variables or group.dimensions or below):
            del groups[path]
