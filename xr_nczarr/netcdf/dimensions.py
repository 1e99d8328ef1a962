"""Find the dimensions of variables by fully qualified name, by short name, or only by size.

The length of an array along an unlimited dimension can differ from the dimension's size. In this
case, the dimension's size takes precedence, and the mismatch is reported. A shorter array is padded
with fill values, because netCDF-C extends dimensions without extending arrays. A longer array is
truncated, because it can belong to an unfinished write: writers extend the arrays before the
dimension. Along a dimension that is not unlimited, a mismatch is an error.
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

# The lists of dimension names that scalars can have. netCDF-C's development branch writes the last
# of these.
_SCALARS: tuple[list[str], ...] = ([], [SCALAR_DIMENSION], [f"/{SCALAR_DIMENSION}"])
_ANONYMOUS = re.compile(r"(_Anonymous_Dim(?:ension)?_|_zdim_|\.zdim_)[0-9]+")


@dataclass
class DimensionScope:
    """All dimensions of a hierarchy, including those that appear only in the metadata of arrays.

    Attributes
    ----------
    groups, annotations
        The groups and their annotations, by path.
    dimensions
        The dimensions, by fully qualified name.
    is_part
        Whether the hierarchy is only a part of a larger store. In this case, only the last segment
        of a fully qualified name can be resolved.
    undefined
        Fully qualified names that no group in the hierarchy defines, each with the path of the
        dimension that replaces it. The dict is empty unless `is_part` is True.
    is_closed
        Whether all arrays that can define dimensions have been processed. `define` then adds no
        more dimensions.
    """

    groups: Mapping[str, Group]
    annotations: Mapping[str, GroupAnnotation]
    dimensions: dict[str, Dimension] = field(default_factory=dict)
    is_part: bool = False
    undefined: dict[str, str] = field(default_factory=dict)
    is_closed: bool = False

    def define(self, group: Group, dimension: Dimension) -> Dimension:
        """Add a dimension to a group, and return the dimension.

        If the scope is closed, return the dimension without adding it.
        """
        if not self.is_closed:
            self.dimensions[dimension.path] = dimension
            group.dimensions[dimension.name] = dimension
        return dimension

    def dimensions_of(
        self, node: ArrayNode | BrokenNode, annotation: ArrayAnnotation | None, group: Group
    ) -> tuple[Dimension, ...]:
        """Return the dimensions of the variable whose array is `node` and whose group is `group`.

        The names of the dimensions come from the first of these sources that exists: the array's
        NCZarr annotation, xarray's `_ARRAY_DIMENSIONS` attribute, and Zarr v3's
        ``dimension_names``. Without names, the dimensions are anonymous. If the shape is unknown,
        the result is empty.

        Raises
        ------
        MetadataError
            If a name is invalid or undefined, if the numbers of names and dimensions differ, or if
            the size of a dimension contradicts the shape.
        """
        shape = node.shape
        if shape is None:
            return ()
        attributes = node.attributes
        find: Callable[[Any, int, str, Group], Dimension] = self.named
        names: Any = None
        if annotation is not None and annotation.references is not None:
            names, place, find = annotation.references, annotation.place, self.referenced
        elif XARRAY_DIMENSIONS in attributes:
            names, place = attributes[XARRAY_DIMENSIONS], XARRAY_DIMENSIONS
        elif node.dimension_names is not None:
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
        """Return the dimension to which a variable refers by a fully qualified or short name.

        `size` is the length of the variable's array along the dimension. `place` is the location of
        the name in the metadata. `group` is the variable's group.
        """
        if not reference.startswith("/"):
            return self.named(reference, size, place, group)
        dimension = self.dimensions.get(reference)
        if dimension is None and self.is_part:
            count = len(self.dimensions)
            dimension = self.named(node_name(reference), size, place, group)
            if len(self.dimensions) > count:
                self.undefined[reference] = dimension.path
            return dimension
        if dimension is None:
            dimension = self.recovered(reference, size, place)
        return self.match_size(dimension, size, place, group)

    def recovered(self, reference: str, size: int, place: str) -> Dimension:
        """Recover a dimension that no group defines, although an array refers to it.

        The dimension is added to the group that should have defined it. This group must exist.
        Recovery is possible only if the group has no annotation, or if the dimension is one of
        netCDF-C's anonymous dimensions.

        Raises
        ------
        MetadataError
            If the dimension cannot be recovered.
        """
        owner, name = parent_path(reference), node_name(reference)
        lost = owner in self.groups and owner not in self.annotations
        if not name or owner not in self.groups or not (lost or _ANONYMOUS.fullmatch(name)):
            raise MetadataError(
                f"no group defines the dimension {quote(reference)}",
                remedy="Correct the reference, or define the dimension in its group's metadata",
                place=place,
            )
        if lost:
            self.groups[owner].reports.append(
                f"dimension {quote(reference)} is not defined, because the NCZarr metadata of its "
                f"group is missing; its size {size} is inferred from an array"
            )
        return self.define(self.groups[owner], Dimension(name, reference, size))

    def named(self, name: object, size: int, place: str, group: Group) -> Dimension:
        """Return the dimension that a short name refers to in `group`.

        A dimension of the group itself takes precedence. Otherwise, return the nearest inherited
        dimension of this name, if it has the given size. If it does not exist or has a different
        size, define a new dimension in the group.

        Raises
        ------
        MetadataError
            If `name` is not a str, or if the group's own dimension has a different size and is not
            unlimited.
        """
        if not isinstance(name, str):
            raise unexpected(name, "a name", place)
        dimension = group.dimensions.get(name)
        if dimension is not None:
            return self.match_size(dimension, size, place, group)
        inherited = inherited_dimension(name, size, group.path, self.groups["/"])
        return inherited or self.define(group, Dimension(name, child_path(group.path, name), size))

    def anonymous(self, size: int, earlier: list[int]) -> Dimension:
        """Return an anonymous dimension of the given size, which is defined in the root group.

        The anonymous dimensions of one variable are distinct. `earlier` contains the sizes of the
        variable's preceding anonymous dimensions, and `size` is appended to this list in place.
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
        """Compare `size`, an array's length along a dimension, with the dimension's size.

        Return the dimension. If it is unlimited, a mismatch is added to the reports of `group`.

        Raises
        ------
        MetadataError
            If the sizes differ and the dimension is not unlimited.
        """
        if dimension.size == size:
            return dimension
        problem = f"the array has {size} elements along dimension {quote(dimension.path)}"
        if not dimension.unlimited:
            # If neither group has an annotation, another array has defined the dimension. Excluding
            # the arrays of one size then resolves the conflict.
            remedy = (
                f"Pass drop_variables to exclude all arrays with {size} elements along this "
                f"dimension, or all arrays with {dimension.size} elements"
            )
            raise MetadataError(
                f"{problem}; expected {dimension.size}",
                remedy="" if {group.path, dimension.group} & self.annotations.keys() else remedy,
                place=place,
            )
        effect = "padded with fill values" if size < dimension.size else "truncated"
        group.reports.append(
            f"{problem}, which is unlimited and has size {dimension.size}; the array is {effect}"
        )
        return dimension
