"""Define the source of a copy or comparison, and select part of it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from xarray.core.indexing import BasicIndexer, ExplicitlyIndexed

from xr_nczarr.errors import ConflictError, NotFoundError, quote, unknown
from xr_nczarr.model import child_path, group_path, is_within, parent_path
from xr_nczarr.netcdf import Dimension, Group, Variable
from xr_nczarr.storage import Store
from xr_nczarr.tools.lookup import check_position, chosen_paths


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The source of a copy. Its values are copied as stored, without decoding.

    Attributes
    ----------
    root
        The source as a netCDF tree.
    values_of
        Function that returns the stored values of a variable in `root`.
    store
        The store that contains the source. If the source is a file, this is a `LocalStore` at the
        path of the file.
    state
        Function that returns a string describing the state of the source. Whenever the source
        changes, the string changes, too. The function returns None if changes cannot be detected.
    unsupported
        Everything in the source that no target can express; see `NetcdfFile`.
    """

    root: Group
    values_of: Callable[[Variable], ExplicitlyIndexed]
    store: Store
    state: Callable[[], str | None]
    unsupported: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Subset:
    """The part of a source that a copy or comparison should include.

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

    def of(self, source: Source) -> Source:
        """Return the selected part of a source.

        Variables in the result have the dimensions of the subset, but keep the array nodes of the
        source.

        Raises
        ------
        NotFoundError
            If a group, variable or dimension is unknown, or a position is out of bounds.
        ConflictError
            If the root group of the subset would have two dimensions of the same name.
        """
        groups = {group.path: group for group in source.root.walk()}
        if self.group not in groups:
            raise unknown("group", self.group, groups.keys() - {"/"})
        dimensions = [item for group in groups.values() for item in group.dimensions.values()]
        names = {item.name for item in dimensions}
        for name in self.positions:
            if name not in names | {item.path for item in dimensions}:
                raise unknown("dimension", name, names)
        everything = {variable.path: variable for variable in source.root.all_variables()}
        wanted = self._wanted(groups[self.group], everything)
        needed = {
            dimension.path: dimension
            for path, variable in everything.items()
            if path in wanted
            for dimension in variable.dimensions
        }
        originals: dict[str, Variable] = {}
        root = self._part(groups[self.group], wanted, needed.keys(), originals)
        for dimension in needed.values():
            self._add_inherited(root, dimension)

        def values_of(variable: Variable) -> ExplicitlyIndexed:
            original = originals[variable.path]
            values = source.values_of(original)
            slices = tuple([self._slice(dimension) for dimension in original.dimensions])
            if all(item == slice(None) for item in slices):
                return values
            selected: ExplicitlyIndexed = values[BasicIndexer(slices)]  # type: ignore[index]
            return selected

        chosen = {variable.path for variable in originals.values()}
        chosen |= {group_path(f"{self.group}/{group.path}") for group in root.walk()}
        unsupported = [
            (self._moved(path), description)
            for path, description in source.unsupported
            if path in chosen or (self.variables is None and is_within(path, self.group))
        ]
        return replace(source, root=root, values_of=values_of, unsupported=unsupported)

    def _wanted(self, top: Group, everything: Mapping[str, Variable]) -> set[str]:
        """Return the paths of the variables to include.

        `top` is the group to which the subset is limited. `everything` maps the paths of all
        variables of the source to the variables.
        """
        below = {variable.path for variable in top.all_variables()}
        wanted = chosen_paths(self.variables, below, "variable")
        if self.variables is not None:
            wanted |= {name for path in wanted for name in _coordinates(everything[path], below)}
            used = {dim.path for path in wanted for dim in everything[path].dimensions}
            wanted |= used & below  # a coordinate variable has the same path as its dimension
        return wanted

    def _part(
        self,
        group: Group,
        wanted: Collection[str],
        needed: Collection[str],
        originals: dict[str, Variable],
    ) -> Group:
        """Return the part of a group that belongs to the subset.

        If `self.variables` is not None, only dimensions in `needed` are included, and descendants
        that contain neither dimensions nor variables are left out. Each included variable of the
        source is added to `originals`, keyed by its path in the subset.
        """
        part = replace(group, path=self._moved(group.path), dimensions={}, variables={}, groups={})
        for name, dimension in group.dimensions.items():
            if self.variables is None or dimension.path in needed:
                part.dimensions[name] = self._dimension(dimension)
        for name, variable in group.variables.items():
            if variable.path in wanted:
                path = child_path(part.path, name)
                dimensions = tuple([self._dimension(item) for item in variable.dimensions])
                part.variables[name] = replace(variable, path=path, dimensions=dimensions)
                originals[path] = variable
        for name, child in group.groups.items():
            below = self._part(child, wanted, needed, originals)
            if self.variables is None or below.dimensions or below.variables or below.groups:
                part.groups[name] = below
        return part

    def _add_inherited(self, root: Group, dimension: Dimension) -> None:
        """Add a dimension to the root of the subset if it is defined outside of the subset."""
        if is_within(dimension.group, self.group):
            return
        if dimension.name in root.dimensions:
            raise ConflictError(
                f"the group {quote(self.group)} cannot become the root group, because it would "
                f"have two dimensions named {quote(dimension.name)}",
                remedy="Select variables that use only one of these dimensions, or leave out the "
                "group argument",
            )
        root.dimensions[dimension.name] = self._dimension(dimension)

    def _moved(self, path: str) -> str:
        """Convert a path in the source to a path in the subset.

        If the path is outside the subset's group, return ``"/"``.
        """
        return "/" + path[len(self.group) :].lstrip("/") if is_within(path, self.group) else "/"

    def _slice(self, dimension: Dimension) -> slice:
        position = self.positions.get(dimension.name, slice(None))
        position = self.positions.get(dimension.path, position)
        if not isinstance(position, slice):
            check_position(position, dimension.name, dimension.size, NotFoundError)
            start = position % dimension.size
            position = slice(start, start + 1)
        every = range(dimension.size)
        return slice(None) if every[position] == every else position

    def _dimension(self, dimension: Dimension) -> Dimension:
        size = len(range(dimension.size)[self._slice(dimension)])
        path = child_path(self._moved(dimension.group), dimension.name)
        return replace(dimension, path=path, size=size)


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
