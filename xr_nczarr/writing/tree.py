"""Datasets by path → one netCDF tree: groups, shared dimensions, and arrays for the variables."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from xarray import Dataset

from xr_nczarr.errors import ConflictError, Place, UnsupportedError
from xr_nczarr.model import ArrayNode, Hierarchy, child_path
from xr_nczarr.netcdf import Dimension, Group, Variable, annotate
from xr_nczarr.netcdf.attributes import substitute_type
from xr_nczarr.netcdf.model import inherited_dimension
from xr_nczarr.writing.array_nodes import make_node
from xr_nczarr.writing.encoded import (
    EncodedVariable,
    Layout,
    encode_dataset,
    stored_name,
)
from xr_nczarr.writing.placing import Job

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Tree:
    """A netCDF tree that grows by whole datasets.

    Attributes
    ----------
    root
        Of all groups; of a store that is there already, only what new variables refer to.
    written
        The new variables, by the path of their arrays.
    groups
        Paths of the groups that are new.
    notes
        One for each variable whose leftover codecs were dropped.
    retyped
        One for each attribute that NCZarr stores as another type.
    """

    layout: Layout
    root: Group = field(default_factory=Group)
    written: dict[str, EncodedVariable] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    retyped: list[str] = field(default_factory=list)

    def group(self, path: str) -> Group:
        """Give the group at an absolute path, made with all above it if it is not there."""
        group = self.root
        for name in filter(None, path.split("/")):
            if name not in group.groups:
                made = Group(path=child_path(group.path, stored_name(name)), dialect=group.dialect)
                group.groups[name] = made
                self.groups.append(made.path)
            group = group.groups[name]
        return group

    def add_dataset(
        self,
        path: str,
        dataset: Dataset,
        encoding: Mapping[str, Mapping[str, Any]],
        unlimited: Collection[str],
        growing: Collection[str],
    ) -> None:
        """Add a group with all variables and attributes of a dataset."""
        encoded, attributes = encode_dataset(dataset, encoding, self.layout)
        self.check_single(path, len(encoded), attributes)
        self.group(path).attributes.update(attributes)
        self.note_types(path, attributes)
        self.add_variables(path, encoded, unlimited, growing)

    def check_single(self, path: str, count: int, attributes: Mapping[str, Any]) -> None:
        """Raise UnsupportedError for more than one array in a version without groups."""
        if not self.layout.zarr.has_groups and (count != 1 or path != "/" or attributes):
            raise UnsupportedError(
                f"found {count} variables and {len(attributes)} attributes in {path}; a "
                "store of Zarr version 1 is one array",
                remedy="Write each variable alone, xr.Dataset({name: ds[name].variable}), to a "
                "store of its name: their directory opens as one dataset",
            )

    def add_variables(
        self,
        path: str,
        encoded: Mapping[str, EncodedVariable],
        unlimited: Collection[str],
        growing: Collection[str],
    ) -> None:
        """Add encoded variables to the group at `path`; dimensions are found or made.

        `growing` names the dimensions that may become longer, beside those in `unlimited`.
        """
        for name, variable in encoded.items():
            self.add_variable(self.group(path), name, variable, (), unlimited, growing)

    def add_variable(
        self,
        group: Group,
        name: str,
        variable: EncodedVariable,
        dimensions: Sequence[Dimension],
        unlimited: Collection[str],
        growing: Collection[str],
    ) -> str:
        """Add a variable to a group, and return the path of its array.

        `dimensions` are the first of its dimensions, the others are found or made by their names.
        """
        sizes = [*zip(variable.dimensions, variable.data.shape, strict=True)][len(dimensions) :]
        others = [self._dimension(group, dim, size, dim in unlimited) for dim, size in sizes]
        dimensions = (*dimensions, *others)
        location = child_path(group.path, name) if self.layout.zarr.has_groups else "/"
        grows = [each.unlimited or each.name in growing for each in dimensions]
        node, note = make_node(
            variable,
            location,
            self.layout,
            grows,
            lengthened=len(grows) == 1
            and grows[0]
            and (dimensions[0].unlimited or variable.dimensions == (name,)),
        )
        if note is not None:
            self.notes.append(note)
        group.variables[name] = Variable(
            path=location,
            name=name,
            dimensions=dimensions,
            node=node,
            attributes=variable.attributes,
            kind=variable.kind,
        )
        self.written[location] = variable
        self.note_types(location, variable.attributes)
        return location

    def note_types(self, path: str, attributes: Mapping[str, Any]) -> None:
        """Take down the attributes of the node at `path` that are stored as another type."""
        for name, value in attributes.items() if not self.layout.pure else ():
            with Place(variable=path, place=f"attribute {name}"):
                kind = "" if name == "_FillValue" else substitute_type(value)
            if kind:
                self.retyped.append(f"{name} of {path} ({type(value).__name__} as {kind})")

    def hierarchy(self) -> Hierarchy:
        """Give the hierarchy as it is to be stored."""
        return annotate(
            self.root,
            zarr_format=self.layout.zarr.version,
            dialect=self.layout.dialect,
            array_dimensions=self.layout.array_dimensions,
        )

    def jobs(self, hierarchy: Hierarchy) -> list[Job]:
        """Give the values of the new variables, for all of their arrays in `hierarchy`."""
        jobs = []
        for path, variable in self.written.items():
            node = hierarchy.nodes[path]
            assert isinstance(node, ArrayNode)
            region = tuple([slice(0, size) for size in variable.data.shape])
            empty = variable.encoding.get("write_empty_chunks")
            jobs.append(Job(node, region, variable.data, write_empty_chunks=empty))
        return jobs

    def report_changes(self) -> None:
        """Warn once of all leftover codecs that were dropped, and log retyped attributes."""
        if self.retyped:
            _log.warning(
                "NCZarr has no type for these attributes, which are stored as others: %s",
                ", ".join(self.retyped),
            )
        if self.notes:
            warnings.warn(
                f"codecs left over from another file were dropped for {'; '.join(self.notes)}. "
                "Choose others with encoding= (of to_nczarr) or codecs= (of copy)",
                stacklevel=5,
            )

    def _dimension(self, group: Group, name: str, size: int, unlimited: bool) -> Dimension:
        """Give the dimension a variable of `group` means: its own, one above, or a new one."""
        own = group.dimensions.get(name)
        if own is not None:
            if own.size != size:
                raise ConflictError(
                    f"found {size} elements along {own.path}, which has {own.size}",
                    remedy="Use another name for the dimension, or append along it",
                )
            return own
        inherited = inherited_dimension(name, size, group.path, self.group)
        if inherited is not None:
            return inherited
        dimension = Dimension(name, child_path(group.path, name), size, unlimited)
        group.dimensions[name] = dimension
        return dimension


def skeleton(root: Group) -> Group:
    """Give a copy of a tree with its dimensions and without its variables, for new ones to join."""
    return replace(
        root,
        dimensions=dict(root.dimensions),
        variables={},
        attributes=dict(root.attributes),
        groups={name: skeleton(group) for name, group in root.groups.items()},
    )
