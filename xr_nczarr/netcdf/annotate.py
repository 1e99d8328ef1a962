"""Convert a netCDF group to a Zarr hierarchy, with NCZarr metadata in up to two layouts.

Other functions in this module compute changes to the metadata documents of an existing hierarchy.
If a node has annotations in two layouts, both are changed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from xr_nczarr.errors import ErrorContext, NczarrError
from xr_nczarr.formats.format import Change, Hierarchy
from xr_nczarr.model import ArrayNode, Attributes, GroupNode, Json, Node
from xr_nczarr.netcdf.annotations import (
    ARRAY_NAME,
    GROUP_PLACES,
    NEWEST,
    PREVIEW,
    SCALAR_DIMENSION,
    TYPES_PLACES,
    UNIVERSAL_EXTRA,
    XARRAY_DIMENSIONS,
    Holder,
    Places,
    Vintage,
    is_bookkeeping,
    lacks_json_type,
    member_name,
    stored_annotations,
    without_annotations,
)
from xr_nczarr.netcdf.attributes import encode_attribute, encode_fill_value, is_fill_value
from xr_nczarr.netcdf.data_model import Dimension, Group, Variable
from xr_nczarr.netcdf.layouts import Layout
from xr_nczarr.netcdf.types import JSON, NUMBERS, TEXT, default_fill, render_type


def annotate(group: Group, layout: Layout) -> Hierarchy:
    """Convert a netCDF group to a Zarr hierarchy in the given layout.

    The `node` of each variable must already have the shape, dtype, chunks, codecs and chunk keys to
    be written. The dtype is ``S1`` for characters, and ``S<n>`` or ``object`` for strings.

    Raises
    ------
    UnsupportedError
        If the Zarr version does not support the dialect of the layout, or if the dialect cannot
        represent the value of an attribute.
    NczarrError
        If a variable has no array. The variable's `error` is raised, if there is one.
    """
    return Hierarchy(nodes=dict(_Writer(layout).nodes_of(group, {})), zarr=layout.zarr)


class _Writer:
    """A converter that represents netCDF groups as Zarr nodes in a given layout."""

    def __init__(self, layout: Layout) -> None:
        vintages = layout.vintages
        self.zarr = layout.zarr
        self.vintages = vintages
        self.universal = UNIVERSAL_EXTRA in vintages
        self.typed = bool(vintages)
        self.appendix_e = any(vintage.appendix_e for vintage in vintages)
        self.array_dimensions = layout.array_dimensions and not self.zarr.has_dimension_names
        self.scalar_shape = (1,) if vintages and not self.appendix_e else ()

    def nodes_of(
        self, group: Group, inherited: Mapping[str, Dimension]
    ) -> Iterator[tuple[str, Node]]:
        visible = {**inherited, **group.dimensions}
        yield group.path, self.group_node(group)
        for variable in group.variables.values():
            yield variable.path, self.array_node(variable, visible)
        for child in group.groups.values():
            yield from self.nodes_of(child, visible)

    def group_node(self, group: Group) -> GroupNode:
        fields = _initial_fields(group.node)
        for vintage in self.vintages:
            sizes = {
                name: _render_dimension(dimension, vintage)
                for name, dimension in group.dimensions.items()
            }
            if vintage is UNIVERSAL_EXTRA and group.path == "/":
                sizes[SCALAR_DIMENSION] = 1
            fields[vintage.holder][vintage.group] = {
                vintage.dimensions: [*sizes.values()] if vintage.appendix_e else sizes,
                vintage.arrays: list(group.variables),
                vintage.groups: list(group.groups),
            }
            if group.path == "/":
                fields[vintage.holder][vintage.superblock] = _superblock(vintage)
        if self.universal and group.path == "/":
            fields["members"][NEWEST.superblock] = _superblock(NEWEST)
        return GroupNode(path=group.path, **self.with_attributes(group, fields))

    def array_node(self, variable: Variable, visible: Mapping[str, Dimension]) -> ArrayNode:
        if variable.node is None:
            raise variable.error or NczarrError(
                "the array is missing from the store", variable=variable.path
            )
        node = self.stored_form(variable, variable.node)
        fields = _initial_fields(node)
        # A dimension needs its full path if a nearer dimension has the same name, because readers
        # would resolve the short name to the nearer one.
        names = variable.dimension_names(visible)
        if self.array_dimensions:
            is_scalar = not names and node.shape == (1,)
            fields["attributes"][XARRAY_DIMENSIONS] = [SCALAR_DIMENSION] if is_scalar else [*names]
        if variable.path == "/":
            fields["attributes"][ARRAY_NAME] = variable.name
        for vintage in self.vintages:
            annotation = _array_annotation(variable, vintage)
            if vintage is UNIVERSAL_EXTRA and not names:
                # No other representation of scalars works in all netCDF-C releases that must be
                # able to read the store. netCDF-C 4.9.0 crashes when it reads a scalar that it has
                # written itself, and netCDF-C 4.10 ignores scalars with an empty shape.
                annotation = {vintage.references: [f"/{SCALAR_DIMENSION}"], "storage": "chunked"}
            elif variable.kind == "char" and node.type_name == "|S1":
                annotation["type_alias"] = "char"
            fields[vintage.holder][vintage.array] = annotation
        return replace(
            node,
            dimension_names=names if self.zarr.has_dimension_names else None,
            **self.with_attributes(variable, fields, node.dtype),
        )

    def stored_form(self, variable: Variable, node: ArrayNode) -> ArrayNode:
        """Return a copy of `node` with the dtype, fill value and shape of the stored array."""
        fill, declared = node.fill_value, variable.attributes.get("_FillValue")
        if not is_fill_value(declared, node.dtype):  # invalid, as reported when the source was read
            declared = None
        required = self.zarr.requires_fill_value
        # As in xarray, the fill value of a plain Zarr array may differ from `_FillValue` if the
        # Zarr version requires a fill value.
        if declared is not None and (self.typed or not required or fill is None):
            fill = _as_scalar(declared, node.dtype)
        if fill is None and required:
            fill = default_fill(node.dtype)
        dtype, type_name = node.dtype, None
        if dtype.kind == "S" and variable.kind in ("char", "string"):
            width = dtype.itemsize
            if self.appendix_e:
                is_char = variable.kind == "char"
                dtype = np.dtype("uint8" if is_char else f"V{width}")
                type_name = "uint8" if is_char else f"r{8 * width}"
                fill = np.frombuffer(bytes(fill).ljust(width, b"\0"), dtype)[0]
            elif self.zarr.separates_attributes:
                # zarr-python cannot open a group that contains a ``>S1`` array.
                is_netcdf_char = variable.kind == "char" and self.typed and not self.universal
                type_name = ">S1" if is_netcdf_char else f"|S{width}"
        changes: dict[str, Any] = {}
        if not variable.dimensions and node.shape != self.scalar_shape:
            changes.update(shape=self.scalar_shape, chunk_shape=self.scalar_shape)
        return replace(
            node, path=variable.path, dtype=dtype, type_name=type_name, fill_value=fill, **changes
        )

    def with_attributes(
        self,
        item: Group | Variable,
        fields: dict[str, dict[str, Json]],
        dtype: np.dtype[Any] | None = None,
    ) -> dict[str, Any]:
        """Return `fields` after adding the attributes of `item` and their NCZarr types.

        The dicts in `fields` are changed in place. For a variable, `dtype` is the stored dtype.
        """
        attributes: dict[str, Json] = {}
        types: dict[str, str] = {}
        as_text = lacks_json_type(self.vintages)
        in_base64 = self.zarr.requires_fill_value
        for name, value in item.attributes.items():
            if is_bookkeeping(name):
                continue
            with ErrorContext(variable=item.path, place=f"attribute {name}"):
                if name == "_FillValue" and isinstance(item, Variable) and dtype is not None:
                    encoded = encode_fill_value(
                        value, dtype, item.kind, typed=self.typed, in_base64=in_base64
                    )
                else:
                    encoded = encode_attribute(value, typed=self.typed, json_as_text=as_text)
            if encoded is not None:
                attributes[name], types[name] = encoded
        own = [name for name in fields["attributes"] if name != XARRAY_DIMENSIONS]
        for vintage in self.vintages:
            recorded = _recorded_types(types, vintage)
            # NCZarr's own attributes have the type JSON, which netCDF-C before 4.9.1 cannot read.
            if vintage.types_holder == "attributes" and vintage.has_json_type:
                recorded |= {name: render_type(JSON, vintage) for name in (*own, vintage.types)}
            listed = {vintage.type_list: _listed_types(recorded, vintage)}
            fields[vintage.types_holder][vintage.types] = listed
        return {**fields, "attributes": Attributes(attributes | fields["attributes"])}


def _recorded_types(types: Mapping[str, str], vintage: Vintage) -> dict[str, str]:
    """Render the types of user attributes in the notation of an NCZarr layout.

    Types that the layout does not record are omitted.
    """
    if vintage.types_holder == "sidecars":
        # The releases that read sidecars have a common notation only for numeric types.
        types = {name: kind for name, kind in types.items() if kind in NUMBERS}
    # netCDF-C cannot open a store with a user attribute of type JSON.
    json_type = JSON if vintage.appendix_e else TEXT
    return {
        name: render_type(json_type if kind == JSON else kind, vintage)
        for name, kind in types.items()
    }


def _listed_types(recorded: dict[str, str], vintage: Vintage) -> Json:
    """Return the JSON list or object in which an NCZarr layout stores attribute types."""
    if not vintage.appendix_e:
        return recorded
    return [{"name": name, "configuration": {"type": kind}} for name, kind in recorded.items()]


def _initial_fields(node: Node | None) -> dict[str, dict[str, Json]]:
    """Return the members and sidecars of `node` that do not belong to NCZarr, and no attributes."""
    foreign = {
        name: without_annotations(getattr(node, name, {})) for name in ("members", "sidecars")
    }
    return {"attributes": {}, **foreign}


def _superblock(vintage: Vintage) -> Json:
    if vintage.holder == "sidecars":
        return {"zarr_format": 2, "nczarr_version": "1.0.0"}
    return {"version": "3.0.0", "format": 3} if vintage.appendix_e else {"version": "2.0.0"}


def _render_dimension(dimension: Dimension, vintage: Vintage) -> Json:
    """Render a dimension as JSON for a group annotation in an NCZarr layout."""
    if vintage.appendix_e:
        unlimited = int(dimension.unlimited)
        return {"name": dimension.name, "size": dimension.size, "unlimited": unlimited}
    if vintage.is_current and dimension.unlimited:
        return {"size": dimension.size, "unlimited": 1}
    return dimension.size


def _array_annotation(variable: Variable, vintage: Vintage) -> dict[str, Json]:
    annotation: dict[str, Json] = {
        vintage.references: [dimension.path for dimension in variable.dimensions]
    }
    if vintage.appendix_e:
        if variable.kind in ("char", "string"):
            annotation["type_alias"] = variable.kind
        return annotation
    if variable.dimensions:
        return annotation | {"storage": "chunked"}
    if vintage.marks_scalars:
        return annotation | {"scalar": 1, "storage": "chunked"}
    return annotation | {"storage": "scalar"}


def _as_scalar(fill: Any, dtype: np.dtype[Any]) -> Any:
    if dtype.kind == "S" and isinstance(fill, str):
        return np.bytes_(fill.encode("utf-8", "surrogateescape"))
    return fill if dtype.kind == "O" else np.asarray(fill).astype(dtype)[()]


def dimension_changes(node: GroupNode, dimensions: Collection[Dimension]) -> Iterator[Change]:
    """Yield the changes that resize existing dimensions of a group and add new dimensions."""
    for holder, annotation, name, stored, vintage in _members(node, GROUP_PLACES, "dimensions"):
        is_list = isinstance(stored, list)  # the layout is PREVIEW, even if `vintage` differs
        sizes = {item["name"]: item for item in stored} if is_list else dict(stored)
        for dimension in dimensions:
            rendered = _render_dimension(dimension, PREVIEW if is_list else vintage)
            old = sizes.get(dimension.name)
            if isinstance(old, dict):
                rendered = old | {"size": dimension.size}
            sizes[dimension.name] = rendered
        changed = list(sizes.values()) if is_list else sizes
        yield Change(node, holder, (annotation, name), changed)


def listing_changes(
    node: GroupNode, arrays: Collection[str], groups: Collection[str]
) -> Iterator[Change]:
    """Yield the changes that add `arrays` and `groups` to the lists in a group's metadata."""
    for member, added in (("arrays", arrays), ("groups", groups)):
        for holder, annotation, name, stored, _ in _members(node, GROUP_PLACES, member):
            if added:
                listed = list(dict.fromkeys([*stored, *added]))
                yield Change(node, holder, (annotation, name), listed)


def attribute_changes(
    node: Node, stored: Mapping[str, Any], attributes: Mapping[str, Any]
) -> Iterator[Change]:
    """Yield the changes that set attributes of a node and update their recorded types.

    `stored` contains the current values, and `attributes` contains the new values. Unchanged
    attributes are skipped, to preserve their exact JSON text.
    """
    vintages = [vintage for *_, vintage, _ in stored_annotations(node, TYPES_PLACES)]
    typed, as_text = bool(vintages), lacks_json_type(vintages)
    kinds: dict[str, str] = {}
    for name, new in attributes.items():
        value, kind = encoded = encode_attribute(new, typed=typed, json_as_text=as_text)
        if name in stored:
            before = node.attributes[name], JSON
            if kind != JSON:
                before = encode_attribute(stored[name], typed=typed, json_as_text=as_text)
            if json.dumps(before) == json.dumps(encoded):  # True == 1 in Python
                continue
        kinds[name] = kind
        yield Change(node, "attributes", (name,), value)
    for holder, annotation, member, recorded, vintage in _members(node, TYPES_PLACES, "type_list"):
        types = _recorded_types(kinds, vintage)
        if isinstance(recorded, list):
            kept = [item for item in recorded if item.get("name") not in kinds]
            changed: Json = kept + _listed_types(types, vintage)
        else:
            changed = {name: kind for name, kind in recorded.items() if name not in kinds} | types
        if kinds:
            yield Change(node, holder, (annotation, member), changed)


def _members(
    node: Node, places: Places, member: str
) -> Iterator[tuple[Holder, str, str, Json, Vintage]]:
    """Yield each occurrence of a member in the annotations of a node.

    `member` is the name of a `Vintage` field, such as ``"arrays"``. Each occurrence is a tuple: the
    holder of the annotation (see `stored_annotations`), the name of the annotation, the name of the
    member, the value of the member, and the layout of the annotation.
    """
    for holder, annotation, vintage, value in stored_annotations(node, places):
        name = member_name(value, member) if isinstance(value, dict) else None
        if name is not None:
            yield holder, annotation, name, value[name], vintage
