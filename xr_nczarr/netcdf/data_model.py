"""Define the netCDF data model: groups, dimensions, variables and typed attributes.

The netCDF type of an attribute determines the Python type of its value. An attribute of a numeric
type is a NumPy scalar or a one-dimensional array. An attribute of type char is a str. An attribute
of type string is a list of str, even if there is only one string. In a node without NCZarr
metadata, attribute values are JSON values. `_FillValue` is a scalar of the variable's dtype, unless
the stored value does not fit this dtype. A variable has a `_FillValue` only if the stored
attributes declare one, or if the Zarr fill value marks missing values.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from xr_nczarr.errors import NczarrError
from xr_nczarr.model import ArrayNode, GroupNode, node_name
from xr_nczarr.netcdf.types import zero

Kind = Literal["number", "char", "string", "other"]


@dataclass(frozen=True, slots=True)
class Dimension:
    """A dimension that the variables of a group and its descendants can share.

    Attributes
    ----------
    path
        Fully qualified name, such as ``/group/time``.
    size
        Number of elements. For an unlimited dimension, this is the current size.
    """

    name: str
    path: str
    size: int
    unlimited: bool = False

    @property
    def group(self) -> str:
        """The path of the group that defines the dimension."""
        return self.path.removesuffix(self.name).rstrip("/") or "/"


@dataclass(slots=True, kw_only=True)
class Variable:
    """A netCDF variable: an array with dimensions, attributes and a netCDF type.

    Attributes
    ----------
    path
        Absolute path of the variable's array.
    name
        Name of the variable. It is the last segment of the path, unless the array is the root of
        the store.
    dimensions
        The dimensions, slowest varying first. A scalar has no dimensions, even if the shape of its
        array is ``(1,)``.
    node
        The array, or None if it is missing or unreadable. Its dtype, fill value and codecs describe
        how netCDF interprets the stored bytes. They can differ from the Zarr metadata.
    attributes
        The user's attributes, without those that belong to the storage format.
    kind
        ``"number"`` for netCDF's integers and floats, ``"char"`` for characters (dtype ``S1``),
        ``"string"`` for strings, or ``"other"`` for a Zarr type that netCDF does not support.
        Strings of dtype ``S`` are encoded in UTF-8 and padded with NUL bytes. Strings of dtype
        ``U`` or ``object`` are str.
    error
        The reason why the variable cannot be read, or None. If there is an error, `dimensions` and
        `attributes` can be incomplete.
    """

    path: str
    name: str = ""
    dimensions: tuple[Dimension, ...] = ()
    node: ArrayNode | None = None
    attributes: dict[str, Any] = field(default_factory=dict)
    kind: Kind = "number"
    error: NczarrError | None = None

    def __post_init__(self) -> None:
        self.name = self.name or node_name(self.path)

    @property
    def is_coordinate(self) -> bool:
        """Whether the variable is one-dimensional and has the same name as its dimension."""
        return len(self.dimensions) == 1 and self.dimensions[0].name == self.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions.

        Along an unlimited dimension, the stored array can have a different length.
        """
        return tuple([dimension.size for dimension in self.dimensions])

    @property
    def fill_value(self) -> Any:
        """The value of elements in missing chunks, or None if the variable has no readable array.

        If the array declares no fill value, this is zero for numbers. For all other types, it is an
        empty value, such as an empty string.
        """
        if self.node is None or self.node.fill_value is not None:
            return None if self.node is None else self.node.fill_value
        # Other programs also treat missing chunks as zeros if there is no fill value: netCDF-C
        # reads zeros, and zarr-python does not write chunks that contain only zeros.
        return b"" if self.node.is_binary else zero(self.node.dtype)

    @property
    def array_node(self) -> ArrayNode:
        """The same as `node`, which must not be None."""
        assert self.node is not None
        return self.node

    @property
    def readable_node(self) -> ArrayNode:
        """The array, adapted for reading the variable. `node` must not be None.

        The adapted array has the shape given by the variable's dimensions. Elements beyond the
        stored shape are read as the fill value, or as zero if the array declares no fill value.
        """
        node = self.array_node
        shape, fill_value = self.shape or node.shape, self.fill_value
        if shape == node.shape and fill_value is node.fill_value:
            return node
        longer = any(map(operator.gt, shape, node.shape))
        stored_shape = node.shape if longer else ()
        return replace(node, shape=shape, fill_value=fill_value, stored_shape=stored_shape)

    def dimension_names(self, visible: Mapping[str, Dimension]) -> tuple[str, ...]:
        """Return the name of each dimension, or its path if the name alone would be ambiguous.

        `visible` maps short names to the dimensions that the variables of a group can use. A name
        is ambiguous if `visible` maps it to a different dimension.
        """
        named = [(item, visible.get(item.name, item)) for item in self.dimensions]
        return tuple([item.name if item.path == use.path else item.path for item, use in named])


@dataclass(slots=True, kw_only=True)
class Group:
    """A netCDF group, whose dimensions, variables and child groups are in dicts keyed by name.

    Attributes
    ----------
    dialect
        Name of the layout of the NCZarr metadata in the group and its arrays, such as
        ``"nczarr-4.9.3"`` (see `annotations.VINTAGES`). ``"zarr"`` if there is no NCZarr metadata.
    reports
        Descriptions of the defects found in the metadata of this group, one sentence each. The
        defect that `error` describes is not included.
    warnings
        Descriptions of harmless defects in the metadata of this group, one sentence each.
    outer_dimensions
        Paths of the dimensions that are defined outside the opened part of a store. Only the root
        lists them.
    node
        The node of the group in the hierarchy, or None if there is no usable node.
    error
        The reason why the group or its annotations cannot be used. None if both can be used.
    """

    path: str = "/"
    dimensions: dict[str, Dimension] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    dialect: str = "zarr"
    reports: list[str] = field(default_factory=list, compare=False)
    warnings: list[str] = field(default_factory=list, compare=False)
    outer_dimensions: set[str] = field(default_factory=set, compare=False)
    node: GroupNode | None = field(default=None, compare=False, repr=False)
    error: NczarrError | None = field(default=None, compare=False)

    @property
    def defects(self) -> list[str]:
        """All problems found in this group: its error (if any), its reports and its warnings."""
        error = [] if self.error is None else [str(self.error)]
        return [*error, *self.reports, *self.warnings]

    @property
    def is_unreadable(self) -> bool:
        """Whether the contents of the group are unknown. If they are, `error` says why."""
        is_empty = self.node is None and not self.variables and not self.groups
        return self.error is not None and is_empty

    def walk(self) -> Iterator[Group]:
        """Yield this group and all its descendants. Parents come before their children."""
        yield self
        for group in self.groups.values():
            yield from group.walk()

    def all_variables(self) -> Iterator[Variable]:
        """Yield the variables of this group and of all its descendants."""
        for group in self.walk():
            yield from group.variables.values()


def inherited_dimension(name: str, size: int, path: str, root: Group) -> Dimension | None:
    """Return the dimension of the given name and size that the group at `path` inherits.

    Only the nearest ancestor that has a dimension of this name is considered. Return None if there
    is no such ancestor, or if the size differs. `root` is the root of the group's tree.
    """
    nearest: Dimension | None = None
    group = root
    for child in filter(None, path.split("/")):
        nearest = group.dimensions.get(name, nearest)
        group = group.groups[child]
    return nearest if nearest is not None and nearest.size == size else None
