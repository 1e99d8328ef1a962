"""From a netCDF group to a hierarchy: the annotations of one layout, or of two side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from xr_nczarr.errors import NczarrError, Place, UnsupportedError, quote
from xr_nczarr.formats import FORMATS, Format
from xr_nczarr.model import ArrayNode, Attributes, GroupNode, Hierarchy, Json, Node
from xr_nczarr.netcdf.annotations import (
    ARRAY_NAME,
    BESIDE,
    BY_DIALECT,
    SCALAR_DIMENSION,
    XARRAY_DIMENSIONS,
    Vintage,
    is_bookkeeping,
    without_annotations,
)
from xr_nczarr.netcdf.attributes import encode_attribute, encode_fill_value
from xr_nczarr.netcdf.model import Dimension, Group, Kind, Variable
from xr_nczarr.netcdf.types import JSON, NUMBERS, TEXT, default_fill, spell_type

_NEWEST, _PREVIEW = BY_DIALECT["nczarr-4.9.3"], BY_DIALECT["nczarr-preview"]
_IN_NETCDF_C = {
    "nczarr": (_NEWEST,),
    "universal": (_NEWEST, BESIDE),
    **{name: (BY_DIALECT[name],) for name in ("nczarr-4.8.1", "nczarr-4.9.1", "nczarr-4.9.3")},
}


def _dialects(zarr: Format) -> dict[str, tuple[Vintage, ...]]:
    """Return the dialects that a version of Zarr can hold, and the layouts of each."""
    if not zarr.has_groups:
        return {"zarr": ()}
    if zarr.separates_attributes:
        return {"zarr": (), **_IN_NETCDF_C}
    return {"zarr": (), "nczarr": (_PREVIEW,)}


def annotate(
    group: Group,
    *,
    zarr_format: str = "2",
    dialect: str = "nczarr",
    array_dimensions: bool = True,
) -> Hierarchy:
    """Give the hierarchy that a netCDF group is stored as.

    The nodes of its variables have shape, dtype (``S1`` for characters, ``S<n>`` or ``object`` for
    strings), chunks, codecs and keys as they are to be written.

    The `dialect` ``"nczarr"`` is what netcdf-c 4.10 writes, in version 3 the specification's
    Appendix E. ``"zarr"`` is pure Zarr, and all that version 1 has. ``"universal"`` (version 2) has
    objects beside the documents for older releases, so that netcdf-c since 4.9.0 and zarr-python
    all open it; characters have zarr-python's type there, which netcdf-c takes for strings, and
    together with strings and lists of text are more than netcdf-c 4.9.0 can open. Others are the
    names of version 2's layouts; those before 4.9.3 know no unlimited dimensions.

    With `array_dimensions`, xarray's `_ARRAY_DIMENSIONS` is written where the documents cannot name
    dimensions. A version that does not have the dialect, or a dialect that does not have an
    attribute's type, is an UnsupportedError; a variable that could not be read raises its own
    error.
    """
    zarr = FORMATS[zarr_format]
    dialects = _dialects(zarr)
    if dialect not in dialects:
        raise UnsupportedError(
            f"found dialect {quote(dialect)} for Zarr version {quote(zarr_format)}, expected"
            f" {' or '.join(dialects)}"
        )
    writer = _Writer(zarr, dialects[dialect], array_dimensions and not zarr.has_dimension_names)
    return Hierarchy(nodes=dict(writer.nodes_of(group, {})), zarr_format=zarr_format)


class _Writer:
    """How to write: the version, the layouts side by side, and whether for xarray too."""

    def __init__(self, zarr: Format, vintages: tuple[Vintage, ...], array_dimensions: bool) -> None:
        self.zarr = zarr
        self.vintages = vintages
        self.universal = BESIDE in vintages
        self.typed = bool(vintages)
        self.appendix_e = _PREVIEW in vintages
        self.array_dimensions = array_dimensions
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
        held = _held(group.node)
        for vintage in self.vintages:
            annotation = _group_annotation(group, vintage)
            if self.names_scalars(vintage) and group.path == "/":
                annotation[vintage.dimensions][SCALAR_DIMENSION] = 1
            held[vintage.holder][vintage.group] = annotation
            if group.path == "/":
                held[vintage.holder][vintage.superblock] = _superblock(vintage)
        if self.universal and group.path == "/":
            held["members"][_NEWEST.superblock] = _superblock(_NEWEST)
        return GroupNode(path=group.path, **self.with_types(group.attributes, held, group.path))

    def array_node(self, variable: Variable, visible: Mapping[str, Dimension]) -> ArrayNode:
        if variable.node is None:
            raise variable.error or NczarrError("there is no array", variable=variable.path)
        node = self.stored_form(variable, variable.node)
        held = _held(node)
        # Who knows names alone must not take a dimension for a nearer one that hides it.
        names = [
            dimension.name
            if visible.get(dimension.name, dimension).path == dimension.path
            else dimension.path
            for dimension in variable.dimensions
        ]
        if self.array_dimensions:
            is_scalar = not names and node.shape == (1,)
            held["attributes"][XARRAY_DIMENSIONS] = [SCALAR_DIMENSION] if is_scalar else names
        if variable.path == "/":
            held["attributes"][ARRAY_NAME] = variable.name
        for vintage in self.vintages:
            annotation = _array_annotation(variable, vintage)
            if self.names_scalars(vintage) and not names:
                annotation = {vintage.references: [f"/{SCALAR_DIMENSION}"], "storage": "chunked"}
            elif variable.kind == "char" and node.type_name == "|S1":
                annotation["type_alias"] = "char"
            held[vintage.holder][vintage.array] = annotation
        return replace(
            node,
            dimension_names=tuple(names) if self.zarr.has_dimension_names else None,
            **self.with_types(
                variable.attributes, held, variable.path, (node.dtype, variable.kind)
            ),
        )

    def names_scalars(self, vintage: Vintage) -> bool:
        """Return whether scalars have a dimension in this layout: 4.9.0 crashes on its own form.

        4.10 leaves out a scalar without shape, the other form that 4.9.0 reads.
        """
        return vintage is BESIDE

    def stored_form(self, variable: Variable, node: ArrayNode) -> ArrayNode:
        """Give the array with the type, the fill value and the shape that its document shows."""
        fill, declared = node.fill_value, variable.attributes.get("_FillValue")
        required = self.zarr.requires_fill_value
        # In pure Zarr, xarray keeps the two apart where every array has a fill value.
        if declared is not None and (self.typed or not required or fill is None):
            fill = _as_scalar(declared, node.dtype)
        if fill is None and required:
            fill = default_fill(node.dtype)
        dtype, type_name = node.dtype, ""
        if dtype.kind == "S" and variable.kind in ("char", "string"):
            width = dtype.itemsize
            if self.appendix_e:
                is_char = variable.kind == "char"
                dtype = np.dtype("uint8" if is_char else f"V{width}")
                type_name = "uint8" if is_char else f"r{8 * width}"
                fill = np.frombuffer(bytes(fill).ljust(width, b"\0"), dtype)[0]
            elif self.zarr.separates_attributes:
                # zarr-python opens no group that has a ``>S1`` in it.
                is_netcdf_char = variable.kind == "char" and self.typed and not self.universal
                type_name = ">S1" if is_netcdf_char else f"|S{width}"
        changes: dict[str, Any] = {}
        if not variable.dimensions and node.shape != self.scalar_shape:
            changes.update(shape=self.scalar_shape, chunk_shape=self.scalar_shape)
        return replace(
            node, path=variable.path, dtype=dtype, type_name=type_name, fill_value=fill, **changes
        )

    def with_types(
        self,
        values: Mapping[str, Any],
        held: dict[str, dict[str, Json]],
        path: str,
        meant: tuple[np.dtype[Any], Kind] | None = None,
    ) -> dict[str, Any]:
        """Return all that a node holds: the user's attributes, annotations, and the types of both.

        `meant` are the stored dtype and the kind of a variable, which its `_FillValue` shares.
        """
        attributes: dict[str, Json] = {}
        types: dict[str, str] = {}
        for name, value in values.items():
            if is_bookkeeping(name):
                continue
            with Place(variable=path, place=f"attribute {name}"):
                if name == "_FillValue" and meant is not None:
                    packed = self.zarr.requires_fill_value
                    encoded = encode_fill_value(value, *meant, typed=self.typed, packed=packed)
                else:
                    encoded = encode_attribute(value, typed=self.typed)
            if encoded is not None:
                # netcdf-c opens nothing where a user's attribute is of the type JSON.
                text = encoded[1] == JSON and not self.appendix_e
                attributes[name], types[name] = encoded[0], TEXT if text else encoded[1]
        attributes |= held["attributes"]
        own = {name: JSON for name in held["attributes"] if name != XARRAY_DIMENSIONS}
        for vintage in self.vintages:
            # Those before 4.9.1 read no attribute but their own as JSON, and fail at the type.
            # Of texts the releases that read the objects beside have no spelling in common.
            if vintage.types_holder == "sidecars":
                listed = {name: kind for name, kind in types.items() if kind in NUMBERS}
            elif vintage.dialect == "nczarr-4.8.1":
                listed = types
            else:
                listed = {**types, **own, vintage.types: JSON}
            recorded = {name: spell_type(kind, vintage.dialect) for name, kind in listed.items()}
            holder = attributes if vintage.types_holder == "attributes" else held["sidecars"]
            holder[vintage.types] = {vintage.type_list: _listed(recorded, vintage)}
        return {**held, "attributes": Attributes(attributes)}


def _held(node: Node | None) -> dict[str, dict[str, Json]]:
    """Give what a node holds beside attributes and annotations, where annotations will lie."""
    kept = {name: without_annotations(getattr(node, name, {})) for name in ("members", "sidecars")}
    return {"attributes": {}, **kept}


def _superblock(vintage: Vintage) -> Json:
    if vintage.holder == "sidecars":
        return {"zarr_format": 2, "nczarr_version": "1.0.0"}
    return {"version": "3.0.0", "format": 3} if vintage == _PREVIEW else {"version": "2.0.0"}


def _listed(recorded: dict[str, str], vintage: Vintage) -> Json:
    """Give the recorded types in the layout's own form: a mapping, or Appendix E's list."""
    if vintage != _PREVIEW:
        return recorded
    return [{"name": name, "configuration": {"type": kind}} for name, kind in recorded.items()]


def _group_annotation(group: Group, vintage: Vintage) -> dict[str, Json]:
    sizes = {name: spell_size(each, vintage.dialect) for name, each in group.dimensions.items()}
    return {
        vintage.dimensions: [*sizes.values()] if vintage == _PREVIEW else sizes,
        vintage.arrays: list(group.variables),
        vintage.groups: list(group.groups),
    }


def spell_size(dimension: Dimension, dialect: str) -> Json:
    """Give what a dialect says of a dimension: under its name, or in Appendix E's list."""
    if dialect == _PREVIEW.dialect:
        unlimited = int(dimension.unlimited)
        return {"name": dimension.name, "size": dimension.size, "unlimited": unlimited}
    if dialect == "nczarr-4.9.3" and dimension.unlimited:
        return {"size": dimension.size, "unlimited": 1}
    return dimension.size


def _array_annotation(variable: Variable, vintage: Vintage) -> dict[str, Json]:
    annotation: dict[str, Json] = {
        vintage.references: [dimension.path for dimension in variable.dimensions]
    }
    if vintage == _PREVIEW:
        if variable.kind in ("char", "string"):
            annotation["type_alias"] = variable.kind
        return annotation
    if not variable.dimensions and vintage.dialect == "nczarr-4.9.3":
        annotation["scalar"] = 1
    is_old_scalar = not variable.dimensions and vintage.holder != "attributes"
    return annotation | {"storage": "scalar" if is_old_scalar else "chunked"}


def _as_scalar(fill: Any, dtype: np.dtype[Any]) -> Any:
    """Give a `_FillValue` as a scalar of the array's type."""
    if dtype.kind == "S" and isinstance(fill, str):
        return np.bytes_(fill.encode("utf-8", "surrogateescape"))
    return fill if dtype.kind == "O" else np.asarray(fill).astype(dtype)[()]
