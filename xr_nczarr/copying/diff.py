"""Compare the groups, dimensions, types, attributes and values of two datasets."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from xr_nczarr.copying.copied_tree import CopiedTree
from xr_nczarr.copying.netcdf_output import FileLayout, netcdf_value
from xr_nczarr.copying.source import open_source
from xr_nczarr.errors import ErrorContext, MetadataError, quote
from xr_nczarr.formats.documents import render_json
from xr_nczarr.formats.json_text import parse_json
from xr_nczarr.model import Limits, child_path
from xr_nczarr.netcdf import Dimension, Group, Variable
from xr_nczarr.netcdf.types import decode_strings
from xr_nczarr.options import Endian, OpenOptions
from xr_nczarr.tools.cdl_values import attribute_text, special_attributes, type_name, value_texts
from xr_nczarr.tools.results import Result, columns, count_text, render_html
from xr_nczarr.tools.slabs import slabs
from xr_nczarr.writing.builder import Tree

_Item = TypeVar("_Item")
_MAX_CELL = 60
_ABSENT = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A single difference between two datasets.

    Attributes
    ----------
    path
        Path of the group, dimension or variable that differs. For an attribute, the path of its
        owner is followed by a colon and the attribute's name, as in ``/t:units``.
    first, second
        The differing item in each dataset, formatted as CDL. None if the dataset does not contain
        the item. If values differ, this is the first differing value.
    note
        Number of differing values, position of the first one, and largest difference. Empty if the
        difference is not in the values.
    """

    path: str
    first: str | None
    second: str | None
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Result):
    """The result of `diff`: the differences between two datasets.

    Attributes
    ----------
    first, second
        Names of the datasets.
    differences
        All differences, group by group.
    unread
        Descriptions of everything that was not compared, because netCDF cannot express it.
    """

    first: str
    second: str
    differences: list[Difference] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether the comparison covered everything requested and found no differences."""
        return not (self.differences or self.unread)

    def __repr__(self) -> str:
        if self.whole:
            return ""
        rows = [[f"< {quote(self.first)}"], [f"> {quote(self.second)}"]]
        rows += [
            [quote(item.path), *map(_cell, (item.first, item.second)), item.note]
            for item in self.differences
        ]
        return "\n".join([*columns(rows), *(f"not compared: {phrase}" for phrase in self.unread)])

    def _members(self) -> dict[str, Any]:
        return {"whole": self.whole, **asdict(self)}

    def _repr_html_(self) -> str:
        many = count_text(len(self.differences), "difference")
        title = f"{self.first} and {self.second}: {many}"
        return render_html("page.html", title=title, lines=repr(self).splitlines())


def diff(
    first: Any,
    second: Any,
    *,
    group: str | None = None,
    variables: Collection[str] | None = None,
    select: Mapping[str, Any] | None = None,
    engine: str | None = None,
    metadata: bool = False,
    special: bool = False,
    rtol: float = 0.0,
    atol: float = 0.0,
    assume_endian: Endian = None,
    storage_options: Mapping[str, Any] | None = None,
    second_options: Mapping[str, Any] | None = None,
    limits: Limits | Mapping[str, int] | None = None,
) -> Comparison:
    """Compare two datasets, which can be stores, reference sets, netCDF files or other files.

    Values are compared as stored, without decoding. They are read in parts to limit memory use.
    NaN equals NaN. The order of the dimensions, variables and attributes in a group is ignored, and
    so is whitespace in attributes that contain JSON.

    Parameters
    ----------
    first, second
        Paths, URLs, mappings, reference sets or files, like the `source` of `copy`.
    group, variables, select, engine
        The part of both datasets to compare, and the xarray engine that opens them; see `copy`.
    metadata
        Whether to compare only metadata.
    special
        Whether to also compare how values are stored: chunks, filters and byte order.
    rtol, atol
        Numbers are considered equal if they differ by at most ``atol + rtol * abs(second)``.
        Tolerances must be finite and not negative.
    assume_endian
        Byte order of the chunks in Zarr stores, which overrides their metadata; see `copy`.
    storage_options, second_options
        Filesystem options for `first` and for `second`.
    limits
        Limits for reading both datasets: a `Limits`, or a mapping from limit names to values.

    Raises
    ------
    NotFoundError
        If one of the datasets lacks a requested group, variable or position.
    NczarrError
        If a variable cannot be read.
    ValueError
        If a tolerance is negative or not finite.

    Examples
    --------
    >>> import xarray as xr, xr_nczarr
    >>> first, second = {}, {}
    >>> xr_nczarr.to_nczarr(xr.Dataset({"t": ("x", [1.5, 2.5], {"units": "m"})}), first)
    >>> xr_nczarr.to_nczarr(xr.Dataset({"t": ("x", [1.5, 3.0], {"units": "km"})}), second)
    >>> print(xr_nczarr.diff(first, second))
    < mapping
    > mapping
    /t:units  "m"  "km"
    /t        2.5  3     1 of 2 values differ, first at (1), by at most 0.5
    """
    for name, tolerance in (("rtol", rtol), ("atol", atol)):
        if not 0 <= tolerance < math.inf:
            raise ValueError(f"{name} is {tolerance!r}; expected a finite, non-negative number")
    subset: dict[str, Any] = {"group": group, "variables": variables, "select": select}
    sources = ((first, storage_options), (second, second_options))
    options = OpenOptions(limits=limits, assume_endian=assume_endian)
    with ExitStack() as stack:
        trees, names, unread = [], [], []
        for source, filesystem_options in sources:
            opening = replace(options, storage_options=filesystem_options)
            opened = open_source(source, engine, opening, **subset, netcdf_types=True)
            origin = stack.enter_context(opened)
            tree = CopiedTree(FileLayout(), skip_unsupported=True)
            tree.add_source(origin)
            trees.append(tree)
            unread += [phrase for phrase in tree.skipped if phrase not in unread]
            is_path = isinstance(source, str | os.PathLike)
            names.append(os.fspath(source) if is_path else origin.store.name)
        work = _Comparator(trees=trees, metadata=metadata, special=special, rtol=rtol, atol=atol)
        work.compare()
    return Comparison(first=names[0], second=names[1], differences=work.differences, unread=unread)


@dataclass(slots=True, kw_only=True)
class _Comparator:
    """The trees and options of a call to `diff`, and the differences found so far."""

    trees: Sequence[Tree]
    metadata: bool
    special: bool
    rtol: float
    atol: float
    differences: list[Difference] = field(default_factory=list)

    def compare(self) -> None:
        groups = [{group.path: group for group in tree.root.walk()} for tree in self.trees]
        for path, first, second in _pairs(*groups):
            self._add(path, *("group" if group else None for group in (first, second)))
            if first is not None and second is not None:
                self._compare_groups(first, second)

    def _compare_groups(self, first: Group, second: Group) -> None:
        for name, *dimensions in _pairs(first.dimensions, second.dimensions):
            self._add(child_path(first.path, name), *map(_dimension_text, dimensions))
        self._compare_attributes(first.path, first.attributes, second.attributes)
        for name, left, right in _pairs(first.variables, second.variables):
            self._add(child_path(first.path, name), *map(_declaration, (left, right)))
            if left is not None and right is not None:
                self._compare_variables(left, right)

    def _compare_variables(self, first: Variable, second: Variable) -> None:
        path, variables = first.path, (first, second)
        attributes = [
            variable.attributes | (special_attributes(variable) if self.special else {})
            for variable in variables
        ]
        self._compare_attributes(path, *attributes)
        kinds = [(variable.shape, variable.kind) for variable in variables]
        if not self.metadata and kinds[0] == kinds[1]:
            with ErrorContext(variable=path):
                self._compare_values(first, *(tree.written[path].data for tree in self.trees))

    def _compare_values(self, variable: Variable, first: Any, second: Any) -> None:
        node, shape, count, largest = variable.array_node, first.shape, 0, 0.0
        place: tuple[int, ...] = ()
        texts: list[str] = []
        for part in slabs(shape, node.chunk_shape or (), node.dtype.itemsize):
            values = [np.asarray(data[part]) for data in (first, second)]
            if variable.kind == "string":
                values = [decode_strings(v) if v.dtype.kind == "S" else v for v in values]
            differ, distance = self._unequal(*values)
            if not differ.any():
                continue
            if not count:
                index = tuple(np.argwhere(differ)[0].tolist())
                place = tuple(at + piece.start for at, piece in zip(index, part, strict=True))
                items = [np.atleast_1d(np.asarray(item[index], item.dtype)) for item in values]
                texts = [value_texts(item, variable.kind, None)[0] for item in items]
            count += int(differ.sum())
            largest = max(largest, distance)
        if count:
            at = f", first at ({', '.join(map(str, place))})" if place else ""
            by = f", by at most {largest:g}" if largest else ""
            note = f"{count:,} of {math.prod(shape):,} values differ{at}{by}"
            self._add(variable.path, *texts, note=note)

    def _unequal(
        self, first: npt.NDArray[Any], second: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[np.bool_], float]:
        differ = np.asarray(first != second)
        if first.dtype.kind not in "iuf" or not differ.any():
            return differ, 0.0
        with np.errstate(all="ignore"):
            differ &= ~((first != first) & (second != second))
            distances = _distances(first, second)
            if self.rtol or self.atol:
                tolerances = self.atol + self.rtol * abs(second.astype("f8"))
                differ &= ~(np.isfinite(distances) & (distances <= tolerances))
        finite = distances[differ & np.isfinite(distances)]
        return differ, float(finite.max()) if finite.size else 0.0

    def _compare_attributes(
        self, path: str, first: Mapping[str, Any], second: Mapping[str, Any]
    ) -> None:
        for name, *values in _pairs(first, second):
            if not _is_same_json(*values):
                texts = [None if value is None else _attribute_text(value) for value in values]
                self._add(f"{path}:{name}", *texts)

    def _add(self, path: str, first: str | None, second: str | None, *, note: str = "") -> None:
        if first != second or note:
            self.differences.append(Difference(path=path, first=first, second=second, note=note))


def _pairs(
    first: Mapping[str, _Item], second: Mapping[str, _Item]
) -> Iterator[tuple[str, _Item | None, _Item | None]]:
    """Yield each key with its value in both mappings, or None where the key is missing."""
    for key in {**first, **second}:
        yield key, first.get(key), second.get(key)


def _distances(first: npt.NDArray[Any], second: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the absolute differences between two arrays of numbers."""
    if first.dtype.kind == second.dtype.kind != "f":  # differences of integers must be exact
        ordered = np.maximum(first, second), np.minimum(first, second)
        high, low = (values.astype("u8") for values in ordered)
    else:
        high, low = first.astype("f8"), second.astype("f8")
    # Differences in u8 are correct modulo 2**64, and never overflow because they are not negative.
    distances: npt.NDArray[Any] = np.abs(high - low)
    return distances


def _is_same_json(first: Any, second: Any) -> bool:
    """Return whether two attributes contain JSON objects or lists that are equal."""
    # netCDF-C reads JSON attributes as text, and programs format the same JSON differently.
    texts = [value for value in (first, second) if isinstance(value, str)]
    if len(texts) < 2 or not all(text.startswith(("{", "[")) for text in texts):
        return False
    try:
        one, other = (render_json(parse_json(text, max_depth=Limits().max_depth)) for text in texts)
    except MetadataError:  # text that is not JSON
        return False
    return one == other


def _attribute_text(value: Any) -> str:
    value = netcdf_value(value)
    return f"{'string ' if isinstance(value, list) else ''}{attribute_text(value)}"


def _dimension_text(dimension: Dimension | None) -> str | None:
    if dimension is None:
        return None
    return f"UNLIMITED, {dimension.size} currently" if dimension.unlimited else str(dimension.size)


def _declaration(variable: Variable | None) -> str | None:
    """Return the CDL type and the dimensions of a variable, such as ``float(x=3)``."""
    if variable is None:
        return None
    dimensions = [f"{item.name}={item.size}" for item in variable.dimensions]
    return f"{type_name(variable.array_node.dtype, variable.kind)}({', '.join(dimensions)})"


def _cell(value: str | None) -> str:
    return _ABSENT if value is None else quote(value, _MAX_CELL)
