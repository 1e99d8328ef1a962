"""The netCDF data model as NCZarr stores it: groups, dimensions, variables, typed attributes.

An attribute's value is a numpy scalar or one-dimensional array of its netCDF type, a str
(characters), or a list of str (strings, also a single one); of a node without annotations it is
JSON. `_FillValue` is a scalar of the variable's type; it is there when the store declares it, and
only then.
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
        Fully qualified name: the path of the group that defines it, and its `name`.
    size
        In elements; of an unlimited dimension its current size.
    """

    name: str
    path: str
    size: int
    unlimited: bool = False


@dataclass(slots=True, kw_only=True)
class Variable:
    """A variable: an array and what netCDF knows about it.

    Attributes
    ----------
    path
        Absolute path of its array.
    name
        The last segment of the path, but of an array that is the whole store.
    dimensions
        Slowest first; empty for a scalar, also where the array's shape is ``(1,)``.
    node
        The array, its dtype, fill value and codecs as the stored bytes are meant (which is not
        always what the document says); None when the array is missing or broken.
    attributes
        Without NCZarr's own bookkeeping.
    kind
        ``"number"`` (netCDF's integers and floats), ``"char"`` (dtype ``S1``), ``"string"`` (text:
        dtype ``S`` holds UTF-8 padded with NUL, ``U`` or ``object`` hold str), or ``"other"``:
        what netCDF does not have, as Zarr has it.
    error
        Why the variable cannot be read, else None. Dimensions and attributes are what is known.
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
        """Whether it is called as its only dimension, along which it gives the coordinates."""
        return len(self.dimensions) == 1 and self.dimensions[0].name == self.name

    @property
    def shape(self) -> tuple[int, ...]:
        """The dimensions' sizes. The array can be longer or shorter along unlimited ones."""
        return tuple([dimension.size for dimension in self.dimensions])

    @property
    def fill_value(self) -> Any:
        """What elements without a chunk read as.

        Zero where the array has no fill value: netcdf-c reads it so, and zarr-python does not
        store a chunk of nothing but zeros there.
        """
        if self.node is None or self.node.fill_value is not None:
            return None if self.node is None else self.node.fill_value
        binary = any(spec.name == "vlen-bytes" for spec in self.node.codecs)
        return b"" if binary else zero(self.node.dtype)


@dataclass(slots=True, kw_only=True)
class Group:
    """A group: its own dimensions, variables and groups by name, in the order of the store.

    Attributes
    ----------
    dialect
        The layout the annotations were found in (`annotations.VINTAGES`), or ``"zarr"``.
    reports
        What was found amiss in this group and could be mended, one sentence each.
    node
        The group's node, or None for a group of our own making.
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
        """Give this group and all below it, parents first."""
        yield self
        for group in self.groups.values():
            yield from group.walk()

    def all_variables(self) -> Iterator[Variable]:
        """Give the variables of this group and of all below it."""
        for group in self.walk():
            yield from group.variables.values()


def inherited_dimension(
    name: str, size: int, path: str, group_at: Callable[[str], Group]
) -> Dimension | None:
    """Give the dimension of a name that the group at `path` has from above, if it has the size.

    That is the nearest one: it hides those above it.
    """
    while path != "/":
        path = parent_path(path)
        dimension = group_at(path).dimensions.get(name)
        if dimension is not None:
            return dimension if dimension.size == size else None
    return None
