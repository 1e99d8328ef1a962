"""The dimensions of a variable, found by full name, by bare name, or by size alone.

If an array and its dimension have different sizes, the dimension's size is used. Along an unlimited
dimension, a shorter array reads as fill values beyond its end, because netcdf-c extends dimensions
that way. A longer array is truncated, because a writer commits the dimension last. Both are
reported. Along any other dimension, the variable has an error.
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
from xr_nczarr.netcdf.data_model import Dimension, Group, inherited_dimension

# The last form is written by netcdf-c's development branch.
_SCALARS: tuple[list[str], ...] = ([], [SCALAR_DIMENSION], [f"/{SCALAR_DIMENSION}"])
_ANONYMOUS = re.compile(r"(_Anonymous_Dim(?:ension)?_|_zdim_|\.zdim_)[0-9]+")


@dataclass
class DimensionScope:
    """All dimensions of a hierarchy by full name, including those that only arrays name.

    Attributes
    ----------
    is_part
        Whether the hierarchy is part of a larger store. Full names then start at the root of that
        store, and only their last segment can be resolved.
    undefined
        Full names that no group of such a part defines, as the keys of a dictionary.
    """

    groups: Mapping[str, Group]
    annotations: Mapping[str, GroupAnnotation]
    dimensions: dict[str, Dimension] = field(default_factory=dict)
    is_part: bool = False
    undefined: dict[str, None] = field(default_factory=dict)

    def define(self, group: Group, dimension: Dimension) -> Dimension:
        """Add a dimension to a group, and return it."""
        self.dimensions[dimension.path] = dimension
        group.dimensions[dimension.name] = dimension
        return dimension

    def dimensions_of(
        self, node: ArrayNode | BrokenNode, annotation: ArrayAnnotation | None, group: Group
    ) -> tuple[Dimension, ...]:
        """Return a variable's dimensions, from the first place that names them.

        Raises
        ------
        MetadataError
            If names are invalid, too few, too many or undefined, or a size differs from the shape.
        """
        shape = node.shape
        if shape is None:
            return ()
        attributes = node.attributes.values_by_name
        find: Callable[[Any, int, str, Group], Dimension] = self.named
        names: Any = None
        if annotation is not None and annotation.references is not None:
            names, place, find = annotation.references, annotation.place, self.referenced
        elif XARRAY_DIMENSIONS in attributes:
            names, place = attributes[XARRAY_DIMENSIONS], XARRAY_DIMENSIONS
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
        """Return the dimension with a fully qualified name."""
        if not reference.startswith("/"):
            return self.named(reference, size, place, group)
        dimension = self.dimensions.get(reference)
        if dimension is None and self.is_part:
            count = len(self.dimensions)
            dimension = self.named(node_name(reference), size, place, group)
            if len(self.dimensions) > count:
                self.undefined[reference] = None
            return dimension
        if dimension is None:
            dimension = self.recovered(reference, size, place)
        return self.match_size(dimension, size, place, group)

    def recovered(self, reference: str, size: int, place: str) -> Dimension:
        """Define a dimension that its group does not define, and return it.

        The group has lost its annotation, or the dimension is an anonymous one of netcdf-c.

        Raises
        ------
        MetadataError
            If neither is the case.
        """
        owner, name = parent_path(reference), node_name(reference)
        lost = owner in self.groups and owner not in self.annotations
        if not name or owner not in self.groups or not (lost or _ANONYMOUS.fullmatch(name)):
            raise MetadataError(
                f"dimension {quote(reference)} is not defined by any group",
                remedy="Name a dimension that a group annotation defines",
                place=place,
            )
        if lost:
            self.groups[owner].reports.append(
                f"{quote(reference)}: the annotation of its group is missing; its size {size} is "
                "taken from an array"
            )
        return self.define(self.groups[owner], Dimension(name, reference, size))

    def named(self, name: object, size: int, place: str, group: Group) -> Dimension:
        """Return the dimension with a bare name: the group's own, or the nearest inherited one.

        An inherited dimension must have this size; otherwise the group gets a new one.
        """
        if not isinstance(name, str):
            raise unexpected(name, "a name", place)
        own = group.dimensions.get(name)
        if own is not None:
            return self.match_size(own, size, place, group)
        inherited = inherited_dimension(name, size, group.path, self.groups.__getitem__)
        return inherited or self.define(group, Dimension(name, child_path(group.path, name), size))

    def anonymous(self, size: int, earlier: list[int]) -> Dimension:
        """Return the root's anonymous dimension of this size, distinct within one variable.

        `earlier` has the sizes of the variable's other anonymous dimensions; `size` is appended.
        """
        root = self.groups["/"]
        same = earlier.count(size)
        earlier.append(size)
        name = f"_Anonymous_Dimension_{size}" + (f"_{same + 1}" if same else "")
        dimension = self.dimensions.get(f"/{name}")
        if dimension is not None:
            return self.match_size(dimension, size, "shape", root)
        return self.define(root, Dimension(name, f"/{name}", size))

    def match_size(self, dimension: Dimension, size: int, place: str, group: Group) -> Dimension:
        """Return `dimension` if an array of `size` elements fits it; report a difference.

        Raises
        ------
        MetadataError
            If the size differs and the dimension is not unlimited.
        """
        if dimension.size == size:
            return dimension
        problem = f"an array has {size} elements along {quote(dimension.path)}"
        if not dimension.unlimited:
            raise MetadataError(f"{problem}, expected {dimension.size}", place=place)
        rest = "is filled" if size < dimension.size else "is cut"
        group.reports.append(f"{problem}, which is unlimited and has {dimension.size}: it {rest}")
        return dimension
