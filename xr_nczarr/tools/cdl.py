"""Print a store as CDL, the text format that ``ncdump`` writes and ``ncgen`` reads.

The output is the same as ncdump 4.9's, except where ncgen could not recreate the dataset from
ncdump's output:

- Numbers have as many digits as they need to round-trip, unless `precision` is set.
- Negative zeros have a decimal point, because ncgen reads ``-0`` as 0.
- Character data is not split into separate strings at line breaks.
- Trailing NULs in a row of characters are shown if ncgen would otherwise pad the row with a
  different fill value.
- Percent signs in names are escaped.
- Comments describe anything that CDL cannot express, such as a variable named ``float``.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from xr_nczarr.dataset import OpenedStore, open_all_groups
from xr_nczarr.errors import quote
from xr_nczarr.model import Consolidated, Limits, is_within
from xr_nczarr.netcdf import Dimension, Group, Variable
from xr_nczarr.netcdf.attributes import is_fill_value, with_inferred_types
from xr_nczarr.options import Endian, MissingChunks, OpenOptions
from xr_nczarr.tools.cdl_values import (
    EXACT,
    Array,
    Digits,
    TimeUnits,
    attribute_text,
    is_cdl_name,
    name_text,
    row_text,
    special_attributes,
    special_group_attributes,
    time_units,
    type_name,
    value_texts,
)
from xr_nczarr.tools.lookup import chosen_paths
from xr_nczarr.tools.slabs import slabs

_MAX_LINE_BYTES = 78
_SECTIONS = ("dimension", "dimensions", "variable", "variables", "data", "group", "types")


def dump(
    target: Any,
    *,
    header: bool = False,
    variables: Collection[str] | None = None,
    groups: Collection[str] | None = None,
    name: str | None = None,
    precision: tuple[int | None, int | None] | None = None,
    special: bool = False,
    coordinates: bool = False,
    times: bool = False,
    group: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    consolidated: Consolidated = None,
    zarr_format: int | str | None = None,
    missing_chunks: MissingChunks = "fill",
    assume_endian: Endian = None,
    codecs: Mapping[str, type] | None = None,
    trust: Literal["none"] | None = None,
    limits: Limits | Mapping[str, int] | None = None,
) -> Cdl:
    """Return the contents of a store as CDL.

    Parameters
    ----------
    target
        A path, URL or mapping, as for `xarray.open_dataset` with ``engine="nczarr"``.
    header
        Whether to show only the header, without any values.
    variables, groups
        Names of the variables and groups whose values are shown. If None, all values are shown. A
        name that starts with a slash is an absolute path. Any other name, such as ``t``, matches
        every variable or group whose path ends in ``/t``.
    name
        Name of the dataset in the CDL. By default, this is the last part of the path without its
        extension.
    precision
        The maximum numbers of significant digits of floats and of doubles, as in
        ``ncdump -p 7,15``. None instead of a number means as many digits as the values need to
        round-trip. By default, this applies to both types.
    special
        Whether to show the special attributes of ``ncdump -s``, which describe how values are
        stored.
    coordinates
        Whether to show the values of coordinate variables only, as ``ncdump -c`` does. The values
        of variables named in `variables` are shown too.
    times
        Whether to show times as dates, as ``ncdump -t`` does. ncgen cannot read these dates.
    group, storage_options, consolidated, zarr_format, missing_chunks, assume_endian, codecs, \
trust, limits
        See `xr_nczarr.options.OpenOptions`.

    Raises
    ------
    NotFoundError
        If a requested variable or group does not exist.
    ValueError
        If a precision is not between 1 and 17.

    Examples
    --------
    >>> import xarray as xr, xr_nczarr
    >>> store, dataset = {}, xr.Dataset({"t": ("x", [1.5, 2.5], {"units": "m"})})
    >>> xr_nczarr.to_nczarr(dataset, store)
    >>> print(str(xr_nczarr.dump(store, name="small")).expandtabs(4))
    netcdf small {
    dimensions:
        x = 2 ;
    variables:
        double t(x) ;
            t:units = "m" ;
            t:_FillValue = NaN ;
    data:
    <BLANKLINE>
     t = 1.5, 2.5 ;
    }
    """
    options = OpenOptions.of(locals())
    opened, top = open_all_groups(target, options)
    paths = {variable.path for variable in top.all_variables()}
    selected = chosen_paths(variables, paths, "variable")
    if coordinates:
        selected = set() if variables is None else selected
        selected |= {variable.path for variable in top.all_variables() if variable.is_coordinate}
    return Cdl(
        opened,
        name if name is not None else _dataset_name(opened.store.name),
        header,
        frozenset(selected),
        frozenset(chosen_paths(groups, {group.path for group in top.walk()}, "group")),
        top,
        _digits(precision),
        special,
        times,
    )


@dataclass(frozen=True, repr=False)
class Cdl:
    """The CDL text of a store, which is generated lazily.

    Iterating over the object yields pieces of the text, and reads values only when they are needed.
    `str` returns the complete text.

    Attributes
    ----------
    variables, groups
        Paths of the variables and groups whose values are shown.
    top
        The group to show. The dimensions of its ancestors are shown too, but not their variables
        and attributes.
    """

    opened: OpenedStore
    name: str
    header: bool
    variables: frozenset[str]
    groups: frozenset[str]
    top: Group
    digits: Digits
    special: bool
    times: bool

    @property
    def left_out(self) -> list[str]:
        """One sentence for each item that CDL cannot express."""
        items: list[Group | Variable] = [*self.top.walk(), *self.top.all_variables()]
        return [*self._without_notation(), *filter(None, map(_reason_to_leave_out, items))]

    @property
    def whole(self) -> bool:
        """Whether CDL can express the complete dataset."""
        return not self.left_out

    def _without_notation(self) -> Iterator[str]:
        names = {self.name, *self.opened.visible_dimensions(self.top.path)}
        for group in self.top.walk():
            names |= {group.path.rpartition("/")[2] or self.name, *group.attributes}
            names |= group.dimensions.keys() | group.variables.keys()
            for variable in group.variables.values():
                names |= variable.attributes.keys() - {"_FillValue"}
        for name in sorted(names):
            if not is_cdl_name(name):
                yield f"ncgen does not accept the name {quote(name)!r}, even if escaped"

    def __str__(self) -> str:
        return "".join(self).rstrip("\n")

    __repr__ = __str__

    def __iter__(self) -> Iterator[str]:
        yield f"netcdf {name_text(self.name)} {{\n"
        yield from (f"// {sentence}\n" for sentence in self._without_notation())
        yield from self._group(self.opened.root, "")
        yield "}\n"

    def _group(self, group: Group, indent: str) -> Iterator[str]:
        if group.is_unreadable:
            yield f"{indent}// {_reason_to_leave_out(group)}\n"
        if group.dimensions:
            yield f"{indent}dimensions:\n"
        for item in group.dimensions.values():
            size = f"UNLIMITED ; // ({item.size} currently)" if item.unlimited else f"{item.size} ;"
            yield f"{indent}\t{name_text(item.name)} = {size}\n"
        if is_within(group.path, self.top.path):
            yield from self._contents(group, indent)
        for name, child in group.groups.items():
            if is_within(child.path, self.top.path) or is_within(self.top.path, child.path):
                yield f"\n{indent}group: {name_text(name)} {{\n"
                yield from self._group(child, indent + "  ")
                yield f"{indent}  }} // group {name_text(name)}\n"

    def _contents(self, group: Group, indent: str) -> Iterator[str]:
        """Yield the CDL text of a group's variables and attributes."""
        units = time_units(group) if self.times else {}
        if group.variables:
            yield f"{indent}variables:\n"
        visible = self.opened.visible_dimensions(group.path)
        for variable in group.variables.values():
            yield from self._declaration(variable, visible, indent, units.get(variable.name))
        attributes = with_inferred_types(group.attributes, group.node)
        if self.special and group.path == "/":
            attributes |= special_group_attributes(group)
        if attributes:
            yield f"\n{indent}// {'global' if group.path == '/' else 'group'} attributes:\n"
            yield from self._attributes("", attributes, indent)
        if not self.header and group.path in self.groups:
            if group.variables:
                yield f"{indent}data:\n"
            for variable in group.variables.values():
                if variable.path in self.variables and not _reason_to_leave_out(variable):
                    yield from self._data(variable, indent, units.get(variable.name))

    def _declaration(
        self,
        variable: Variable,
        visible: Mapping[str, Dimension],
        indent: str,
        units: TimeUnits | None,
    ) -> Iterator[str]:
        if reason := _reason_to_leave_out(variable):
            yield f"{indent}\t// {reason}\n"
            return
        name, node = name_text(variable.name), variable.array_node
        names = ", ".join(
            name_text(item.name if visible.get(item.name) == item else item.path)
            for item in variable.dimensions
        )
        kind = type_name(node.dtype, variable.kind)
        stored = f" // stored as {node.dtype}" if variable.kind == "other" else ""
        yield f"{indent}\t{kind} {name}{f'({names})' if names else ''} ;{stored}\n"
        attributes = with_inferred_types(variable.attributes, node)
        fill_value = attributes.get("_FillValue")
        if variable.kind == "string" and isinstance(fill_value, str | bytes):
            attributes["_FillValue"] = [fill_value]
        if self.special:
            attributes |= special_attributes(variable)
        yield from self._attributes(name, attributes, indent, node.dtype, units)

    def _attributes(
        self,
        owner: str,
        attributes: Mapping[str, Any],
        indent: str,
        dtype: np.dtype[Any] | None = None,
        units: TimeUnits | None = None,
    ) -> Iterator[str]:
        # Without the space, ncgen would read these names as the start of a section.
        owner += " " if owner in _SECTIONS else ""
        for name, value in attributes.items():
            prefix = "string " if isinstance(value, list) else ""
            text = attribute_text(value, self.digits)
            numbers, comment = np.atleast_1d(value), ""
            # Attributes with the dtype of a time variable, such as valid_min, are times.
            if units is not None and numbers.dtype == dtype:
                comment = f" // {', '.join(units.format_dates(numbers, list(map(str, numbers))))}"
            yield f"{indent}\t\t{prefix}{owner}:{name_text(name)} = {text} ;{comment}\n"

    def _data(self, variable: Variable, indent: str, units: TimeUnits | None) -> Iterator[str]:
        """Yield the CDL text of a variable's values."""
        if 0 in variable.shape:
            return
        flat = len(variable.shape) < 2
        name = name_text(variable.name)
        yield f"\n{indent} {name} = " if flat else f"\n{indent} {name} =\n  "
        start = len(variable.name.encode("utf-8", "surrogateescape")) + 4 if flat else 2
        line = _Line(indent, start)
        # As in ncdump, braces enclose the elements along unlimited dimensions other than the first.
        nested = [n for n, item in enumerate(variable.dimensions) if n and item.unlimited]
        last = tuple([size - 1 for size in variable.shape[:-1]])
        length = variable.shape[-1] if variable.shape else 1
        fill_value = variable.attributes.get("_FillValue")
        if not is_fill_value(fill_value, variable.array_node.dtype):
            fill_value = None  # ncdump also ignores a fill value of another type
        for index, columns, row in self._rows(variable):
            if columns.start == 0:
                opening = sum(not any(index[level:]) for level in nested)
                yield from map(line.fit, "{" * opening)
            if variable.kind == "char":
                yield row_text(row, fill_value)
                texts = [""]
            else:
                texts = value_texts(row, variable.kind, fill_value, self.digits)
                texts = texts if units is None else units.format_dates(row, texts)
            is_end = columns.stop == length
            ending = texts.pop() if is_end else ""
            yield "".join([line.fit(f"{text}, ") for text in texts])
            if is_end:
                closing = sum(index[level:] == last[level:] for level in nested)
                yield line.fit(ending + "}" * closing)
                yield " ;\n" if index == last else line.next_row()

    def _rows(self, variable: Variable) -> Iterator[tuple[tuple[int, ...], slice, Array]]:
        """Yield each row of a variable: its leading index, a slice of columns, and their values.

        A long row is yielded in parts, unless it consists of characters.
        """
        array = self.opened.array(variable)
        node, shape = array.node, variable.shape
        whole_rows = variable.kind == "char"
        for block in slabs(shape, node.chunk_shape, node.dtype.itemsize, whole_rows=whole_rows):
            # The stored array of a scalar variable can have a dimension of length 1.
            values = array.read(block if shape else (0,) * len(node.shape))
            *leading, columns = block or (slice(0, 1),)
            indices = itertools.product(*(range(item.start, item.stop) for item in leading))
            rows = values.reshape(-1, columns.stop - columns.start)
            yield from zip(indices, itertools.repeat(columns), rows)


class _Line:
    """The current output line, which is wrapped in the same way as in ncdump."""

    def __init__(self, indent: str, start: int) -> None:
        self.indent = indent
        self.position = start + len(indent)

    def fit(self, text: str) -> str:
        """Return `text`, preceded by a line break if the text does not fit on the current line."""
        size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))
        self.position += size
        if self.position > _MAX_LINE_BYTES and size > 2:
            self.position = 4 + len(self.indent) + size
            return f"\n{self.indent}    {text}"
        return text

    def next_row(self) -> str:
        self.position = 2 + len(self.indent)
        return ",\n  "


def _reason_to_leave_out(item: Group | Variable) -> str:
    """Return a sentence that says why a group or variable is left out, or an empty string."""
    if isinstance(item, Group):
        name, error = quote(item.path), item.error if item.is_unreadable else None
    else:
        name, error = quote(item.name), item.error
    if error is not None:
        return f"{name} is left out: {' '.join(str(error).split())}"
    if isinstance(item, Variable) and item.node and not type_name(item.node.dtype, item.kind):
        return f"{name} is left out: netCDF has no type for {item.node.dtype}"
    return ""


def _digits(precision: tuple[int | None, int | None] | None) -> Digits:
    counts = precision or (None, None)
    if len(counts) != 2 or not all(count is None or 1 <= count <= 17 for count in counts):
        raise ValueError(f"precision must be two numbers from 1 to 17, not {precision!r}")
    pairs = zip(EXACT.items(), counts, strict=True)
    return {name: default if count is None else (count,) for (name, default), count in pairs}


def _dataset_name(store: str) -> str:
    last = store.removesuffix("?***").partition("#")[0].rstrip("/").rpartition("/")[2]
    return last.rpartition(".")[0] or last
