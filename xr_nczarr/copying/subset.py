"""Select part of a netCDF tree by group, by variables and by positions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from xr_nczarr.errors import ConflictError, NotFoundError, quote, unknown
from xr_nczarr.model import child_path, is_within, parent_path
from xr_nczarr.netcdf import Dimension, Group, Variable
from xr_nczarr.tools.lookup import check_position, chosen_paths


@dataclass(slots=True, kw_only=True)
class Subset:
    """The part of a netCDF tree that a copy or comparison should include.

    Attributes
    ----------
    group
        Absolute path of the group that becomes the root.
    variables
        Names or paths of the variables to select; see `chosen_paths`. The coordinate variables of
        their dimensions are also included, and so are the variables named in their ``coordinates``
        attributes. If None, all variables are selected.
    positions
        Mapping from names or paths of dimensions to slices or integers. An integer selects one
        element, but keeps the dimension.
    """

    group: str
    variables: Collection[str] | None
    positions: Mapping[str, int | slice]

    def apply(self, root: Group) -> tuple[dict[str, Group], dict[str, Variable]]:
        """Return the groups and the source variables of the subset as two dicts keyed by path.

        The keys are paths in the subset. The variables in the returned groups have the dimensions
        of the subset, but keep the array nodes of the source.

        Raises
        ------
        NotFoundError
            If a group, variable or dimension is unknown, or a position is out of bounds.
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
                        remedy="Select variables that use only one of these dimensions, or leave "
                        "out the group argument",
                    )
                root.dimensions[dimension.name] = self._dimension(dimension)

    def _moved(self, path: str) -> str:
        """Return a group's path within the subset, or ``"/"`` if the group is not part of it."""
        return "/" + path[len(self.group) :].lstrip("/") if is_within(path, self.group) else "/"

    def _slice(self, dimension: Dimension) -> slice:
        position = self.positions.get(dimension.path, self.positions.get(dimension.name))
        if position is None:
            return slice(None)
        if isinstance(position, slice):
            every = range(dimension.size)
            return slice(None) if every[position] == every else position
        check_position(position, dimension.name, dimension.size, NotFoundError)
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
    """Yield each path in `paths` to which a variable's ``coordinates`` attribute refers.

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


def _group_at(root: Group, path: str) -> Group:
    groups = {group.path: group for group in root.walk()}
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
