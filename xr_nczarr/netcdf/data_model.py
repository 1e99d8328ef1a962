"""The netCDF data model as NCZarr stores it: groups, dimensions, variables, typed attributes.

An attribute's value is a numpy scalar or one-dimensional array of its netCDF type, a str
(characters), or a list of str (strings, even a single one). In a node without annotations it is
JSON. `_FillValue` is a scalar of the variable's type and exists only if the store declares it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from xr_nczarr.errors import NczarrError
from xr_nczarr.model import ArrayNode, GroupNode, node_name, parent_path
from xr_nczarr.netcdf.types import zero

Kind = Literal["number", "char", "string", "other"]


@dataclass(frozen=True, slots=True)
class Dimension:
    """A shared dimension.

    Attributes
    ----------
    path
        Fully qualified name: the path of the group that defines it, followed by its `name`.
    size
        In elements; the current size of an unlimited dimension.
    """

    name: str
    path: str
    size: int
    unlimited: bool = False


@dataclass(slots=True, kw_only=True)
class Variable:
    """A variable: an array with its netCDF dimensions, attributes and type.

    Attributes
    ----------
    path
        Absolute path of its array.
    name
        The last segment of the path, except for an array that is the whole store.
    dimensions
        Slowest first; empty for a scalar, even if the array's shape is ``(1,)``.
    node
        The array. Its dtype, fill value and codecs describe the stored bytes as netCDF interprets
        them, which can differ from the document. None if the array is missing or broken.
    attributes
        The user's attributes, without NCZarr's own bookkeeping.
    kind
        ``"number"`` (netCDF's integers and floats), ``"char"`` (dtype ``S1``), ``"string"`` (text:
        dtype ``S`` holds UTF-8 padded with NUL, ``U`` or ``object`` hold str), or ``"other"``: a
        Zarr type that netCDF does not have.
    error
        Why the variable cannot be read, else None. Dimensions and attributes may be incomplete.
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
        """Whether this is a coordinate variable: one-dimensional, with its dimension's name."""
        return len(self.dimensions) == 1 and self.dimensions[0].name == self.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions. The array may be longer or shorter along unlimited ones."""
        return tuple([dimension.size for dimension in self.dimensions])

    @property
    def fill_value(self) -> Any:
        """The value of elements whose chunk is missing.

        It is zero if the array has no fill value: netcdf-c reads zeros then, and zarr-python does
        not store a chunk that contains only zeros.
        """
        if self.node is None or self.node.fill_value is not None:
            return None if self.node is None else self.node.fill_value
        binary = any(spec.name == "vlen-bytes" for spec in self.node.codecs)
        return b"" if binary else zero(self.node.dtype)


@dataclass(slots=True, kw_only=True)
class Group:
    """A group: its own dimensions, variables and groups by name, in stored order.

    Attributes
    ----------
    dialect
        The layout of the annotations (`annotations.VINTAGES`), or ``"zarr"``.
    reports
        Defects of this group that could be repaired, one sentence each.
    node
        The group's node, or None for a group that this package created.
    error
        Why the group's own annotations cannot be used, else None.
    """

    path: str = "/"
    dimensions: dict[str, Dimension] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    groups: dict[str, Group] = field(default_factory=dict)
    dialect: str = "zarr"
    reports: list[str] = field(default_factory=list, compare=False)
    node: GroupNode | None = field(default=None, compare=False, repr=False)
    error: NczarrError | None = field(default=None, compare=False)

    def walk(self) -> Iterator[Group]:
        """Yield this group and all groups below it, parents first."""
        yield self
        for group in self.groups.values():
            yield from group.walk()

    def all_variables(self) -> Iterator[Variable]:
        """Yield the variables of this group and of all groups below it."""
        for group in self.walk():
            yield from group.variables.values()


def inherited_dimension(
    name: str, size: int, path: str, group_at: Callable[[str], Group]
) -> Dimension | None:
    """Return the dimension `name` that the group at `path` inherits, or None if the size differs.

    The nearest dimension of that name hides those further up.
    """
    while path != "/":
        path = parent_path(path)
        dimension = group_at(path).dimensions.get(name)
        if dimension is not None:
            return dimension if dimension.size == size else None
    return None
