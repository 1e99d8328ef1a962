"""Compute the changes to metadata documents for new dimension sizes, attributes and children.

If a node has annotations in two NCZarr layouts, both are changed.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from xr_nczarr.formats.format import Change
from xr_nczarr.model import GroupNode, Json, Node
from xr_nczarr.netcdf.annotate import render_dimension
from xr_nczarr.netcdf.annotations import (
    GROUP_PLACES,
    TYPES_PLACES,
    Holder,
    Vintage,
    lacks_json_type,
    member_name,
)
from xr_nczarr.netcdf.attributes import encode_attribute
from xr_nczarr.netcdf.data_model import Dimension
from xr_nczarr.netcdf.layouts import PREVIEW
from xr_nczarr.netcdf.types import JSON, NUMBERS, TEXT, render_type


def _annotations(
    node: Node, places: Mapping[tuple[Holder, str], Vintage]
) -> Iterator[tuple[Holder, str, Json, Vintage]]:
    """Yield the holder, name, value and layout of each annotation at one of `places`."""
    for (holder, name), vintage in places.items():
        value = getattr(node, holder).get(name)
        if isinstance(value, dict):
            yield holder, name, value, vintage


def dimension_changes(node: GroupNode, dimensions: Collection[Dimension]) -> Iterator[Change]:
    """Yield the changes that resize existing dimensions of a group and add new dimensions."""
    for holder, annotation, value, vintage in _annotations(node, GROUP_PLACES):
        name = member_name(value, "dimensions")
        if name is None:
            continue
        stored = value[name]
        if isinstance(stored, list):  # the layout is PREVIEW, even if `vintage` differs
            by_name = {item["name"]: item for item in stored}
            for dimension in dimensions:
                old = by_name.get(dimension.name, {})
                by_name[dimension.name] = old | render_dimension(dimension, PREVIEW)
            yield Change(node, holder, (annotation, name), list(by_name.values()))
            continue
        for dimension in dimensions:
            size = render_dimension(dimension, vintage)
            if isinstance(stored.get(dimension.name), dict):
                size = stored[dimension.name] | {"size": dimension.size}
            yield Change(node, holder, (annotation, name, dimension.name), size)


def listing_changes(
    node: GroupNode, arrays: Collection[str], groups: Collection[str]
) -> Iterator[Change]:
    """Yield the changes that add `arrays` and `groups` to the lists in a group's metadata."""
    for holder, annotation, value, _ in _annotations(node, GROUP_PLACES):
        for member, added in (("arrays", arrays), ("groups", groups)):
            name = member_name(value, member)
            if name is not None and added:
                listed = list(dict.fromkeys([*value[name], *added]))
                yield Change(node, holder, (annotation, name), listed)


def attribute_changes(
    node: Node, stored: Mapping[str, Any], attributes: Mapping[str, Any]
) -> Iterator[Change]:
    """Yield the changes that set attributes of a node and update their recorded types.

    `stored` contains the current values, and `attributes` the new values. Unchanged attributes are
    skipped, to preserve their exact JSON text.
    """
    annotated = list(_annotations(node, TYPES_PLACES))
    typed, as_text = bool(annotated), lacks_json_type(vintage for *_, vintage in annotated)
    for attribute, new in attributes.items():
        value, kind = encoded = encode_attribute(new, typed=typed, json_as_text=as_text)
        if attribute in stored:
            before = node.attributes[attribute], JSON
            if kind != JSON:
                before = encode_attribute(stored[attribute], typed=typed, json_as_text=as_text)
            if json.dumps(before) == json.dumps(encoded):  # True == 1 in Python
                continue
        yield Change(node, "attributes", (attribute,), value)
        for holder, annotation, recorded, vintage in annotated:
            name = member_name(recorded, "type_list")
            if name is None:
                continue
            # netCDF-C cannot open a store with a user attribute of type JSON.
            text = kind == JSON and not vintage.appendix_e
            rendered = render_type(TEXT if text else kind, vintage)
            if holder == "sidecars":  # layouts with sidecars do not record the type char
                recorded[name] = {
                    key: type_ for key, type_ in recorded[name].items() if key != attribute
                }
                recorded[name] |= {attribute: rendered} if kind in NUMBERS else {}
                yield Change(node, holder, (annotation, name), recorded[name])
            elif isinstance(recorded[name], dict):
                yield Change(node, holder, (annotation, name, attribute), rendered)
            else:
                recorded[name][:] = [
                    item for item in recorded[name] if item.get("name") != attribute
                ]
                recorded[name].append({"name": attribute, "configuration": {"type": rendered}})
                yield Change(node, holder, (annotation, name), list(recorded[name]))
