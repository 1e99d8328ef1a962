"""Which dimensions a variable has: by full name, by bare name, or by size alone.

Where an array and its dimension disagree, the dimension decides. Along an unlimited dimension a
shorter array reads as its fill value beyond its end (netcdf-c grows dimensions that way), and a
longer one is cut (the dimension is what a writer commits last); both are reported. Along any
other dimension the variable has an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from xr_nczarr.errors import MetadataError, quote, unexpected
from xr_nczarr.model import ArrayNode, BrokenNode, child_path, node_name, parent_path
from xr_nczarr.netcdf.annotations import (
    SCALAR_DIMENSION,
    XARRAY_DIMENSIONS,
    ArrayAnnotation,
    GroupAnnotation,
)
from xr_nczarr.netcdf.model import Dimension, Group, inherited_dimension

# The last one is a reference of netcdf-c's development branch.
_SCALARS: tuple[list[str], ...] = ([], [SCALAR_DIMENSION], [f"/{SCALAR_DIMENSION}"])
_ANONYMOUS = re.compile(r"(_Anonymous_Dim(?:ension)?_|_zdim_|\.zdim_)[0-9]+")


@dataclass
class DimensionScope:
    """All dimensions of a hierarchy, by full name; grows with the arrays that name new ones.

    Attributes
    ----------
    is_part
        Whether the hierarchy lies within a larger store: full names then begin at the root of
        that, and their last part is all that can be found.
    undefined
        Full names that no group of such a part defines, as the keys of a dictionary.
    """

    groups: Mapping[str, Group]
    annotations: Mapping[str, GroupAnnotation]
    dimensions: dict[str, Dimension] = field(default_factory=dict)
    is_part: bool = False
    undefined: dict[str, None] = field(default_factory=dict)

    def define(self, group: Group, dimension: Dimension) -> Dimension:
        """Add a dimension to a group, and give it back."""
        self.dimensions[dimension.path] = dimension
        group.dimensions[dimension.name] = dimension
        return dimension

    def dimensions_of(
        self, node: ArrayNode | BrokenNode, annotation: ArrayAnnotation | None, group: Group
    ) -> tuple[Dimension, ...]:
        """Give a variable's dimensions, from the first place that names them.

        Names that are none, too few or many, or lead to nowhere or to another size, are a
        MetadataError.
        """
        shape = node.shape
        if shape is None:
            return ()
        held = node.attributes.values_by_name
        find: Callable[[Any, int, str, Group], Dimension] = self.named
        names: Any = None
        if annotation is not None and annotation.references is not None:
            names, place, find = annotation.references, annotation.place, self.referenced
        elif XARRAY_DIMENSIONS in held:
            names, place = held[XARRAY_DIMENSIONS], XARRAY_DIMENSIONS
        elif isinstance(node, ArrayNode) and node.dimension_names is not None:
            names, place = node.dimension_names, "dimension_names"
        else:
            names, place = [None] * len(shape), "shape"
        if shape in ((), (1,)) and names in _SCALARS:
            return ()
        if not isinstance(names, list | tuple) or len(names) != len(shape):
            expected = f"{len(shape)} names, one for each dimension of the shape {shape}"
            raise unexpected(names, expected, place)
        unnamed: list[int] = []
        return tuple(
            [
                self.anonymous(size, unnamed) if name is None else find(name, size, place, group)
                for name, size in zip(names, shape, strict=True)
            ]
        )

    def referenced(self, reference: str, size: int, place: str, group: Group) -> Dimension:
        """Return the dimension that a fully qualified name means."""
        if not reference.startswith("/"):
            return self.named(reference, size, place, group)
        dimension = self.dimensions.get(reference)
        if dimension is None and self.is_part:
            known = len(self.dimensions)
            dimension = self.named(node_name(reference), size, place, group)
            if len(self.dimensions) > known:
                self.undefined[reference] = None
            return dimension
        if dimension is None:
            dimension = self.recovered(reference, size, place)
        return self.fitting(dimension, size, place, group)

    def recovered(self, reference: str, size: int, place: str) -> Dimension:
        """Define a dimension whose group has lost its annotation, or never wrote it down."""
        owner, name = parent_path(reference), node_name(reference)
        lost = owner in self.groups and owner not in self.annotations
        if not name or owner not in self.groups or not (lost or _ANONYMOUS.fullmatch(name)):
            raise MetadataError(
                f"found {quote(reference)}, which no group defines",
                remedy="Name a dimension of one of the groups' annotations",
                place=place,
            )
        if lost:
            report = f"{quote(reference)}: its group does not define it any more"
            self.groups[owner].reports.append(f"{report}; its size {size} is an array's")
        return self.define(self.groups[owner], Dimension(name, reference, size))

    def named(self, name: object, size: int, place: str, group: Group) -> Dimension:
        """Give the dimension that a bare name means: here, or nearest above if of this size."""
        if not isinstance(name, str):
            raise unexpected(name, "a name", place)
        own = group.dimensions.get(name)
        if own is not None:
            return self.fitting(own, size, place, group)
        inherited = inherited_dimension(name, size, group.path, self.groups.__getitem__)
        return inherited or self.define(group, Dimension(name, child_path(group.path, name), size))

    def anonymous(self, size: int, earlier: list[int]) -> Dimension:
        """Give the root's dimension for a size without name, distinct within one variable.

        `earlier` are the sizes of the variable's others, to which it adds this one.
        """
        root = self.groups["/"]
        same = earlier.count(size)
        earlier.append(size)
        name = f"_Anonymous_Dimension_{size}" + (f"_{same + 1}" if same else "")
        known = self.dimensions.get(f"/{name}")
        if known is not None:
            return self.fitting(known, size, "shape", root)
        return self.define(root, Dimension(name, f"/{name}", size))

    def fitting(self, dimension: Dimension, size: int, place: str, group: Group) -> Dimension:
        """Give `dimension` back if an array of `size` elements can lie along it."""
        if dimension.size == size:
            return dimension
        found = f"an array has {size} elements along {quote(dimension.path)}"
        if not dimension.unlimited:
            raise MetadataError(f"{found}, expected {dimension.size}", place=place)
        rest = "is filled" if size < dimension.size else "is cut"
        group.reports.append(f"{found}, which is unlimited and has {dimension.size}: it {rest}")
        return dimension
