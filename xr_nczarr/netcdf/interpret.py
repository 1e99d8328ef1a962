"""Convert a Zarr hierarchy to a netCDF group with dimensions, variables and typed attributes.

Defects in the metadata never make the whole conversion fail. If a variable cannot be used, its
`error` says why. Other defects are described in the `reports` and `warnings` of their group.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Hashable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from xr_nczarr.errors import MetadataError, NotFoundError, quote, unexpected
from xr_nczarr.formats.format import Hierarchy
from xr_nczarr.formats.numcodecs_notation import POINTER_BYTES
from xr_nczarr.model import (
    ArrayNode,
    BrokenNode,
    GroupNode,
    child_path,
    is_within,
    node_name,
    parent_path,
)
from xr_nczarr.netcdf.annotations import (
    PROVENANCE,
    ArrayAnnotation,
    GroupAnnotation,
    dialect_of,
    document_key,
    find_array,
    find_group,
    find_name,
    has_superblock,
)
from xr_nczarr.netcdf.attributes import attributes_of, decode_fill_value
from xr_nczarr.netcdf.data_model import Dimension, Group, Kind, Variable
from xr_nczarr.netcdf.dimensions import DimensionScope
from xr_nczarr.netcdf.types import DTYPE_NAMES, EXACT_FILL, ROUNDED_FILL, default_fill, zero

_CHARACTERS = frozenset({"S1", "u1", "U1"})


def interpret(
    hierarchy: Hierarchy,
    *,
    use_zarr_fill_value_as_mask: bool | None = None,
    zero_masks: bool = True,
    group: str = "/",
    subgroups: bool = True,
    dropped: Collection[Hashable] = (),
) -> Group:
    """Convert a Zarr hierarchy to the netCDF group that it represents.

    If the root of the store is an array, the resulting variable takes its name from the array's
    ``_nczarr_name`` attribute. If this attribute is missing or invalid, the name is ``data``.

    Parameters
    ----------
    use_zarr_fill_value_as_mask
        Whether an array without a `_FillValue` attribute uses its Zarr fill value as the
        `_FillValue`. The option does not affect NCZarr arrays, because NCZarr records whether a
        `_FillValue` was declared. For plain Zarr, None means the following:

        - In Zarr v3, None means False.
        - In Zarr v1 and v2, if netCDF-C wrote the store, None means True for most fill values. It
          means False for zero, empty strings, and netCDF's default fill values.
        - In all other Zarr v1 and v2 stores, None means True. Exceptions depend on `zero_masks`.
    zero_masks
        Whether zero, an empty string or a single space can become `_FillValue`. The option has an
        effect only if `use_zarr_fill_value_as_mask` is None, and only in plain Zarr v1 and v2
        stores that netCDF-C did not write. Pass False for reference sets, in which these fill
        values can be HDF5's defaults.
    group, subgroups
        The part of the store that the hierarchy covers: a group, with or without its descendants.
        Nodes outside this part are not reported as missing.
    dropped
        Names of variables that will not be used. These variables do not define dimensions. This
        allows arrays that share dimension names but have different sizes to be opened one at a
        time. The levels of a multiscale image in plain Zarr are an example.
    """
    return _Interpreter(
        hierarchy, use_zarr_fill_value_as_mask, zero_masks, group, subgroups, dropped
    ).run()


@dataclass
class _Interpreter:
    """The state of one `interpret` call."""

    hierarchy: Hierarchy
    fill_value_masks: bool | None
    zero_masks: bool
    group: str
    subgroups: bool
    dropped: Collection[Hashable]
    groups: dict[str, Group] = field(default_factory=dict)
    annotations: dict[str, GroupAnnotation] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.zarr = self.hierarchy.zarr
        self.scope = DimensionScope(self.groups, self.annotations)

    def run(self) -> Group:
        nodes = self.hierarchy.nodes
        parents = {parent_path(path) for path in nodes if path != "/"}
        arrays: list[ArrayNode | BrokenNode] = []
        root = nodes.get("/")
        if isinstance(root, ArrayNode | None):
            self.add_group("/", GroupNode(path="/", explicit=False))
        if root is not None and not has_superblock(root):
            # A group without an annotation is not treated as part of a larger store, because it may
            # be the root of a store that has lost its annotation.
            self.scope.is_part = isinstance(root, ArrayNode) or find_group(root) is not None
        for path, node in nodes.items():
            if isinstance(node, ArrayNode) or not (
                isinstance(node, GroupNode) or path in parents or self.is_listed_group(path)
            ):
                arrays.append(node)
            else:
                self.add_group(path, node)
        # Arrays of outer groups come first, because inner groups inherit their dimensions. Dropped
        # arrays come last, because they define no dimensions.
        for array in sorted(arrays, key=lambda node: (self.is_dropped(node), node.path.count("/"))):
            self.scope.is_closed = self.is_dropped(array)
            self.add_variable(array)
        for path, annotation in self.annotations.items():
            if path == self.group or (self.subgroups and is_within(path, self.group)):
                self.compare_lists(self.groups[path], annotation)
        if self.scope.undefined:
            names = ", ".join(map(quote, self.scope.undefined))
            note = (
                f"dimensions not defined in the opened groups: {names}; their sizes are inferred "
                "from arrays"
            )
            self.groups["/"].reports.append(note)
            self.groups["/"].outer_dimensions = {*self.scope.undefined.values()}
        return self.groups["/"]

    def is_dropped(self, array: ArrayNode | BrokenNode) -> bool:
        return bool(self.dropped) and find_name(array) in self.dropped

    def is_listed_group(self, path: str) -> bool:
        """Return whether `path` is the root, or a group listed in its parent's annotation."""
        annotation = self.annotations.get(parent_path(path))
        listed = annotation.groups if annotation is not None else None
        return path == "/" or (listed is not None and node_name(path) in listed)

    def parent_group(self, path: str) -> Group | None:
        """Return the parent group of the node at `path`, adding the group if it is missing.

        Return None for a node under an array, which netCDF does not allow.
        """
        parent = parent_path(path)
        if parent not in self.groups:
            if parent in self.hierarchy.nodes:
                self.groups["/"].reports.append(
                    f"{quote(path)} is left out, because its parent is an array"
                )
                return None
            if self.parent_group(parent) is None:
                return None
            self.add_group(parent, GroupNode(path=parent, explicit=False))
        return self.groups[parent]

    def add_group(self, path: str, node: GroupNode | BrokenNode) -> None:
        parent = self.parent_group(path) if path != "/" else None
        if parent is None and path != "/":
            return
        group = Group(
            path=path,
            attributes=attributes_of(node),
            node=node if isinstance(node, GroupNode) else None,
            error=node.error if isinstance(node, BrokenNode) else None,
        )
        self.groups[path] = group
        if parent is not None:
            parent.groups[node_name(path)] = group
        annotation = find_group(node)
        if annotation is None:
            return
        self.annotations[path] = annotation
        group.dialect = dialect_of(node, annotation.vintage)
        for name, (size, unlimited) in annotation.dimensions.items():
            self.scope.define(group, Dimension(name, child_path(path, name), size, unlimited))
        for problem in annotation.problems:
            problem.add_context(key=document_key(node, problem.place, self.zarr))
            if group.error is None:
                group.error = problem
            else:
                group.reports.append(str(problem))

    def add_variable(self, node: ArrayNode | BrokenNode) -> None:
        path = node.path
        group = self.parent_group(path)
        if group is None:
            return
        variable = Variable(path=path, name=find_name(node), kind="other")
        group.variables[variable.name] = variable
        variable.attributes = attributes = attributes_of(node)
        if isinstance(node, ArrayNode):
            variable.node = node
        try:
            annotation = find_array(node)
            if annotation is not None and group.dialect == "zarr":
                group.dialect = dialect_of(node, annotation.vintage)
            if isinstance(node, ArrayNode):
                variable.node, variable.kind = self.decoded_form(node, annotation)
                if "_FillValue" in attributes:
                    self.type_fill_value(attributes, variable.node, variable.kind, group)
                    if variable.kind == "string":
                        variable.node = _restore_text_fill(variable.node, attributes["_FillValue"])
                array, has_fill = variable.node, attributes.get("_FillValue") is not None
                if not has_fill and self.marks_missing_values(array, node.dtype, annotation):
                    attributes["_FillValue"] = array.fill_value
            variable.dimensions = self.scope.dimensions_of(node, annotation, group)
        except MetadataError as problem:
            key = document_key(node, problem.place, self.zarr)
            variable.error = problem.add_context(key=key, variable=path)
        if isinstance(node, BrokenNode):
            variable.error = node.error.add_context(variable=path)

    def decoded_form(
        self, node: ArrayNode, annotation: ArrayAnnotation | None
    ) -> tuple[ArrayNode, Kind]:
        """Return the array node as netCDF interprets it, and the kind of the variable."""
        netcdf = annotation is not None or self.is_written_by_netcdf()
        kind = _kind(node, annotation.type_alias if annotation is not None else None, netcdf)
        changes: dict[str, Any] = {}
        dtype = node.dtype
        if kind == "char" or (kind == "string" and dtype.kind == "V"):
            dtype = np.dtype("S1" if kind == "char" else f"S{dtype.itemsize}")
            if dtype != node.dtype:
                changes.update(dtype=dtype, fill_value=_as_bytes(node.fill_value))
        elif netcdf and dtype.char == "d" and node.fill_value == ROUNDED_FILL:
            changes.update(fill_value=EXACT_FILL)
        if netcdf and any(spec.name == "shuffle" for spec in node.codecs):
            # netCDF-C ignores the element size in the metadata.
            size = {"elementsize": POINTER_BYTES if kind == "string" else dtype.itemsize}
            changes["codecs"] = tuple(
                [
                    replace(spec, configuration={**spec.configuration, **size})
                    if spec.name == "shuffle"
                    else spec
                    for spec in node.codecs
                ]
            )
        return (replace(node, **changes) if changes else node), kind

    def is_written_by_netcdf(self) -> bool:
        """Return whether netCDF-C wrote the store as plain Zarr."""
        root = self.hierarchy.nodes.get("/")
        provenance = root.attributes.get(PROVENANCE) if root is not None else None
        return (
            "/" not in self.annotations and isinstance(provenance, str) and "nczarr=" in provenance
        )

    def type_fill_value(
        self, attributes: dict[str, Any], node: ArrayNode, kind: Kind, group: Group
    ) -> None:
        """Convert the ``_FillValue`` in `attributes` to the variable's dtype, in place.

        A value that does not fit the dtype is left unchanged, and reported in `group`.
        """
        is_text = kind in ("char", "string")
        in_base64 = self.zarr.requires_fill_value
        value = decode_fill_value(node.attributes, node.dtype, is_text=is_text, in_base64=in_base64)
        if value is None:
            group.reports.append(
                f"the _FillValue of {quote(node.path)} is not a valid value of dtype {node.dtype}"
            )
        else:
            exact = node.fill_value is EXACT_FILL and value == ROUNDED_FILL
            attributes["_FillValue"] = EXACT_FILL if exact else value

    def marks_missing_values(
        self, node: ArrayNode, stored: np.dtype[Any], annotation: ArrayAnnotation | None
    ) -> bool:
        """Return whether the Zarr fill value marks missing values if no `_FillValue` is declared.

        `stored` is the dtype in the Zarr metadata, which can differ from the dtype of `node`.
        """
        is_array = any(spec.name == "vlen-array" for spec in node.codecs)  # each item is an array
        if node.fill_value is None or is_array or node.dtype.kind == "V":
            return False  # xarray cannot mask arrays and raw bytes
        if annotation is not None:
            # In NCZarr, the Zarr fill value marks missing values only if attributes cannot
            # represent fill values of this type; see `attributes.encode_fill_value`.
            return stored.kind in "cV" and node.fill_value not in _usual_fills(node.dtype)
        if self.fill_value_masks is not None:
            return self.fill_value_masks
        if self.zarr.requires_fill_value:
            return False
        if self.is_written_by_netcdf():
            return node.fill_value not in _usual_fills(node.dtype)
        # For strings, kerchunk writes HDF5's default fill value as a blank.
        undeclared = (zero(node.dtype), *([b" "] if node.dtype.kind == "S" else []))
        return self.zero_masks or node.fill_value not in undeclared

    def compare_lists(self, group: Group, annotation: GroupAnnotation) -> None:
        """Report the differences between a group's children and the lists in its annotation.

        Listed children that do not exist are added with an `error`. All children are reordered to
        match the lists.
        """
        place = annotation.vintage.group
        for name in annotation.arrays or ():
            path = child_path(group.path, name)
            if path not in self.hierarchy.nodes:
                error = NotFoundError(
                    f"the array is listed in {place}, but is missing from the store", variable=path
                )
                group.variables.setdefault(name, Variable(path=path, error=error, kind="other"))
                group.reports.append(
                    f"{quote(path)} is listed in {place}, but is missing from the store"
                )
        for name in annotation.groups or ():
            if name not in group.groups:
                path = child_path(group.path, name)
                error = NotFoundError(
                    f"the group {quote(path)} is listed in {place}, but is missing from the store"
                )
                group.groups[name] = Group(path=path, error=error)
        children: Any = (annotation.arrays, group.variables), (annotation.groups, group.groups)
        for listed, present in children:
            if listed is None:
                continue
            for name in sorted(set(present).difference(listed)):
                path = child_path(group.path, name)
                group.warnings.append(f"{quote(path)} exists, but is not listed in {place}")
            for name in dict.fromkeys([*listed, *present]):
                if name in present:
                    present[name] = present.pop(name)


def _kind(node: ArrayNode, alias: str | None, netcdf: bool) -> Kind:
    dtype = node.dtype
    misfit = alias == "char" and dtype.str[1:] not in _CHARACTERS
    if misfit or (alias in ("string", "json") and dtype.kind not in "SUVO"):
        raise MetadataError(
            f"type alias {alias!r} is incompatible with dtype {dtype}",
            place="_nczarr_array.type_alias",
        )
    if alias == "char" or node.type_name == ">S1":
        return "char"
    if netcdf and node.type_name in ("<S1", "<U1", ">U1"):
        return "char"
    if dtype in DTYPE_NAMES:
        return "number"
    if alias in ("string", "json") or dtype.kind == "U" or (netcdf and dtype.kind == "S"):
        return "string"
    if dtype.kind == "O" and any(spec.name == "vlen-utf8" for spec in node.codecs):
        return "string"
    return "other"


@lru_cache(64)
def _usual_fills(dtype: np.dtype[Any]) -> tuple[Any, ...]:
    """Return the fill values that Zarr implementations or netCDF write for a dtype by default."""
    if dtype.hasobject:  # leave out numbers, because NumPy is slow to compare them with text
        return (zero(dtype), b"")
    # In half precision, the default fill value would overflow to infinity.
    rounded = (ROUNDED_FILL,) if dtype.kind in "iufc" and dtype.itemsize > 2 else ()
    return (zero(dtype), default_fill(dtype), *rounded)


def _as_bytes(value: Any) -> np.bytes_ | None:
    if value is None:
        return None
    if isinstance(value, str):
        return np.bytes_(value.encode("utf-8", "surrogatepass"))
    return np.bytes_((value.tobytes() if isinstance(value, np.generic) else value).rstrip(b"\0"))


def _restore_text_fill(array: ArrayNode, declared: Any) -> ArrayNode:
    """Restore a fill value that netCDF-C wrote as plain text, but that was decoded as Base64.

    `declared` is the value of the ``_FillValue`` attribute, which contains the same text.

    Raises
    ------
    MetadataError
        If the restored fill value is longer than the array's items.
    """
    # Zarr stores the fill values of byte strings in Base64. netCDF-C writes plain text instead,
    # which can look like Base64.
    try:
        is_encoded = base64.b64decode(declared, validate=True).rstrip(b"\0") == array.fill_value
    except (TypeError, ValueError):
        return array
    if is_encoded and len(declared) > array.dtype.itemsize:
        expected = f"at most {array.dtype.itemsize} bytes"
        raise unexpected(bytes(declared), expected, "_FillValue")
    return replace(array, fill_value=declared) if is_encoded else array
