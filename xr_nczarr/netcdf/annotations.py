"""Find and check annotations: the metadata that NCZarr adds to Zarr.

Different releases of netCDF-C store annotations in different layouts. A `Vintage` describes one
layout: the location of each annotation, and the names of its members. An annotation is looked up at
the locations of all layouts, from the newest to the oldest. At every location, the member names of
all layouts are accepted. Sizes, names and array types are checked here, but attribute types are
not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from xr_nczarr.errors import MetadataError, unexpected
from xr_nczarr.formats import Format
from xr_nczarr.formats.format import NodeKind
from xr_nczarr.model import GroupNode, Json, Node, key_prefix, node_name

Holder = Literal["attributes", "members", "sidecars"]


@dataclass(frozen=True, slots=True)
class Vintage:
    """A layout of NCZarr's annotations, as written by certain releases of netCDF-C.

    Attributes
    ----------
    dialect
        Name of the layout, such as ``"nczarr-4.9.3"``. The number is the first release of netCDF-C
        that wrote the layout.
    releases
        The releases of netCDF-C that write the layout.
    holder
        The part of a node that contains the annotations `superblock`, `group` and `array`:
        ``"attributes"``, ``"members"`` (other members of the main document), or ``"sidecars"``
        (additional hidden documents).
    superblock, group, array, types
        Names of the annotations. The superblock marks the root of a store. `types` is the
        annotation that contains the types of a node's attributes.
    dimensions, arrays, groups, references, type_list
        Names of members of the annotations. `references` is a member of `array`, and `type_list`
        is a member of `types`. The others are members of `group`.
    appendix_e
        Whether dimensions and types are stored as lists of objects with a ``name`` member, as in
        Appendix E of the NCZarr specification. Otherwise, they are JSON objects keyed by name.
    is_current
        Whether netCDF-C 4.9.3 or later writes the layout. Earlier layouts do not mark unlimited
        dimensions.
    marks_scalars
        Whether the layout marks scalar variables with a separate member, ``scalar``.
    text_type
        Notation for the type of text attributes.
    has_json_type
        Whether the releases that write the layout support the attribute type JSON.
    """

    dialect: str
    releases: str
    holder: Holder
    superblock: str
    group: str
    array: str
    types: str
    dimensions: str
    arrays: str
    groups: str
    references: str
    type_list: str
    appendix_e: bool = False
    is_current: bool = True
    marks_scalars: bool = False
    text_type: str = ">S1"
    has_json_type: bool = True

    @property
    def types_holder(self) -> Holder:
        """The part of a node's metadata that contains the types of its attributes."""
        return "sidecars" if self.holder == "sidecars" else "attributes"


_LOWER = ("_nczarr_superblock", "_nczarr_group", "_nczarr_array", "_nczarr_attr")
_UPPER = ("_NCZARR_SUPERBLOCK", "_NCZARR_GROUP", "_NCZARR_ARRAY", "_NCZARR_ATTR")
_PLURAL = (*_LOWER[:3], "_nczarr_attrs")
_OBJECTS = (".nczarr", ".nczgroup", ".nczvar", ".nczattr")
_SHORT = ("dims", "vars", "groups", "dimrefs", "types")
_LONG = ("dimensions", "arrays", "groups", "dimension_references", "types")
_APPENDIX_E = ("dimensions", "arrays", "subgroups", "dimension_references", "attribute_types")

VINTAGES = (
    Vintage(
        "nczarr-4.9.3",
        "netCDF-C 4.9.3 or later",
        *("attributes", *_LOWER, *_LONG),
        marks_scalars=True,
    ),
    Vintage(
        "nczarr-preview",
        "netCDF-C's development branch",
        *("attributes", *_PLURAL, *_APPENDIX_E),
        appendix_e=True,
    ),
    Vintage(
        "nczarr-4.9.1",
        "netCDF-C 4.9.1 or 4.9.2",
        *("members", *_LOWER, *_SHORT),
        is_current=False,
        marks_scalars=True,
    ),
    Vintage(
        "nczarr-4.8.1",
        "netCDF-C 4.8.1 or 4.9.0",
        *("members", *_UPPER, *_SHORT),
        is_current=False,
        text_type="<U1",
        has_json_type=False,
    ),
    Vintage(
        "nczarr-4.8.0",
        "netCDF-C 4.8.0",
        *("sidecars", *_OBJECTS, *_SHORT),
        is_current=False,
    ),
)
BY_DIALECT = {vintage.dialect: vintage for vintage in VINTAGES}
NEWEST, PREVIEW = VINTAGES[:2]

UNIVERSAL_EXTRA = replace(BY_DIALECT["nczarr-4.8.0"], dialect="universal", array=".nczarray")
"""The layout of netCDF-C 4.8.0, in a form that releases 4.8.1 to 4.9.2 prefer to their own layouts.

A store in the dialect ``universal`` contains this layout in addition to the newest one. Releases
after 4.9.2 ignore the sidecars of this layout.
"""


def lacks_json_type(vintages: Iterable[Vintage]) -> bool:
    """Return whether any of the layouts lacks the JSON attribute type.

    In a layout without this type, an attribute that is a list of mixed types makes netCDF-C abort.
    """
    return not all(vintage.has_json_type for vintage in vintages)


Places = Mapping[tuple[Holder, str], Vintage]


def _places(holder_field: str, name_field: str) -> Places:
    """Map each location of an annotation, a holder and a name, to the newest layout that uses it.

    `holder_field` and `name_field` are the `Vintage` fields that contain the holder and the name.
    """
    places: dict[tuple[Holder, str], Vintage] = {}
    for vintage in VINTAGES:
        location = (getattr(vintage, holder_field), getattr(vintage, name_field))
        places.setdefault(location, vintage)
    return places


GROUP_PLACES = _places("holder", "group")
TYPES_PLACES = _places("types_holder", "types")
_ARRAY_PLACES = _places("holder", "array")
_SUPERBLOCK_PLACES = _places("holder", "superblock")

_NAMES = [
    frozenset(
        name for place, name in (*GROUP_PLACES, *_ARRAY_PLACES, *TYPES_PLACES) if place == holder
    )
    for holder in ("attributes", "members", "sidecars")
]

_SPELLINGS: dict[str, tuple[str, ...]] = {
    member: tuple(dict.fromkeys(getattr(vintage, member) for vintage in VINTAGES))
    for member in ("dimensions", "arrays", "groups", "references", "type_list")
}

SIDECARS = (*_OBJECTS, UNIVERSAL_EXTRA.array)
"""Names of the objects that some NCZarr layouts store next to a node's Zarr documents."""

XARRAY_DIMENSIONS = "_ARRAY_DIMENSIONS"
SCALAR_DIMENSION = "_scalar_"
ARRAY_NAME = "_nczarr_name"
"""Attribute with the name of a variable whose array is the root of a store."""
PROVENANCE = "_NCProperties"
WIDTH = "_nczarr_maxstrlen"
"""Attribute in which users of netCDF-C specify the width of a string variable, in bytes."""
DEFAULT_WIDTH = "_nczarr_default_maxstrlen"
"""Root attribute that specifies the width of all string variables without a `WIDTH` attribute."""

_HIDDEN = frozenset({PROVENANCE, XARRAY_DIMENSIONS, "_Codecs"})
_HIDDEN_PREFIXES = ("_nczarr_", "_NCZARR_")


def is_bookkeeping(name: str) -> bool:
    """Return whether an attribute belongs to the storage format rather than to the user."""
    if name[:1] != "_":
        return False
    is_hidden = name in _HIDDEN or name.startswith(_HIDDEN_PREFIXES)
    return is_hidden and name not in (WIDTH, DEFAULT_WIDTH)


@dataclass(frozen=True, slots=True)
class GroupAnnotation:
    """The NCZarr metadata of a group.

    Attributes
    ----------
    dimensions
        Mapping from the names of the group's dimensions to ``(size, is_unlimited)`` pairs.
    arrays, groups
        Names of the group's children, or None if the annotation contains no valid list.
    problems
        One error for each invalid member of the annotation.
    """

    vintage: Vintage
    dimensions: dict[str, tuple[int, bool]]
    arrays: list[str] | None
    groups: list[str] | None
    problems: list[MetadataError]


@dataclass(frozen=True, slots=True)
class ArrayAnnotation:
    """The NCZarr metadata of an array.

    `references` contains the names of the dimensions, which are usually fully qualified.
    `type_alias` is the name of the netCDF type. Either is None if the annotation does not contain
    it.
    """

    vintage: Vintage
    references: list[str] | None
    type_alias: str | None

    @property
    def place(self) -> str:
        """The location of the dimension names in the metadata, for error messages."""
        return f"{self.vintage.array}.{self.vintage.references}"


def dialect_of(node: Node, vintage: Vintage) -> str:
    """Return the name of the NCZarr layout that a node's annotations use.

    `vintage` is the newest released layout that stores annotations where this node stores them. The
    development branch of netCDF-C stores annotations where the newest release stores them, except
    that it stores attribute types under another name.
    """
    is_preview = vintage.holder == "attributes" and PREVIEW.types in node.attributes
    return PREVIEW.dialect if is_preview else vintage.dialect


def stored_annotations(node: Node, places: Places) -> Iterator[tuple[Holder, str, Vintage, Json]]:
    """Yield the holder, name, layout and value of each annotation of a node.

    The holder is the part of the node that contains the annotation, such as ``"attributes"``.
    Annotations are looked up at the locations in `places`, starting with the newest layout.
    """
    for (holder, name), vintage in places.items():
        members = getattr(node, holder)
        if name in members:
            yield holder, name, vintage, members[name]


def find_group(node: Node) -> GroupAnnotation | None:
    """Return the annotation of a group, or None if the group has no annotation.

    Invalid parts of the annotation are omitted, and reported in its `problems`.
    """
    annotated = next(stored_annotations(node, GROUP_PLACES), None)
    if annotated is None:
        return None
    *_, vintage, value = annotated
    problems: list[MetadataError] = []
    if not isinstance(value, dict):
        problems.append(unexpected(value, "an object", vintage.group))
        value = {}
    return GroupAnnotation(
        vintage,
        _dimensions(value, vintage, problems),
        _names(value, "arrays", vintage, problems),
        _names(value, "groups", vintage, problems),
        problems,
    )


def has_superblock(node: Node) -> bool:
    """Return whether a node has a superblock, the annotation that marks the root of a store."""
    return any(stored_annotations(node, _SUPERBLOCK_PLACES))


def _dimensions(
    value: dict[str, Json], vintage: Vintage, problems: list[MetadataError]
) -> dict[str, tuple[int, bool]]:
    """Map the names of the dimensions in a group annotation to ``(size, is_unlimited)`` pairs.

    Invalid dimensions are omitted, and their errors are appended to `problems`.
    """
    place = f"{vintage.group}.{vintage.dimensions}"
    listed = _member(value, "dimensions", {})
    items: list[tuple[Json, Json]] = []
    if isinstance(listed, list):
        items = [(item.get("name") if isinstance(item, dict) else None, item) for item in listed]
    elif isinstance(listed, dict):
        items = list(listed.items())
    else:
        problems.append(unexpected(listed, "an object or a list", place))
    dimensions: dict[str, tuple[int, bool]] = {}
    for name, item in items:
        size, unlimited = item, False
        if isinstance(item, dict):
            size, unlimited = item.get("size"), item.get("unlimited", False)
        if not is_name(name):
            problems.append(unexpected(name, "the name of a dimension", place))
        elif type(size) is not int or not 0 <= size < 1 << 63:
            problems.append(unexpected(size, "a size of 0 or more", f"{place}.{name}"))
        elif unlimited not in (0, 1):
            problems.append(unexpected(unlimited, "0 or 1 for unlimited", f"{place}.{name}"))
        elif name in dimensions:
            problems.append(unexpected(name, "a name that is not already listed", place))
        else:
            dimensions[name] = (size, bool(unlimited))
    return dimensions


def listed_children(node: GroupNode) -> dict[str, NodeKind | None] | None:
    """Map each child named in a group's annotation to its kind.

    A child that is listed both as an array and as a group is mapped to None. If the list of arrays
    or the list of groups is missing or damaged, return None. The caller must then list the store.
    """
    annotation = find_group(node)
    if annotation is None or annotation.arrays is None or annotation.groups is None:
        return None
    arrays: dict[str, NodeKind | None] = dict.fromkeys(annotation.arrays, "array")
    return arrays | {name: None if name in arrays else "group" for name in annotation.groups}


def find_array(node: Node) -> ArrayAnnotation | None:
    """Return the annotation of an array, or None if the array has no annotation.

    Raises
    ------
    MetadataError
        If the annotation is damaged.
    """
    annotated = next(stored_annotations(node, _ARRAY_PLACES), None)
    if annotated is None:
        return None
    *_, vintage, value = annotated
    if not isinstance(value, dict):
        raise unexpected(value, "an object", vintage.array)
    references = _member(value, "references")
    alias = value.get("type_alias", value.get("nczarr_type"))
    annotation = ArrayAnnotation(vintage, references, alias)
    if references is not None and (
        not isinstance(references, list) or not all(isinstance(name, str) for name in references)
    ):
        raise unexpected(references, "a list of dimension paths", annotation.place)
    if alias is not None and not isinstance(alias, str):
        raise unexpected(alias, "the name of a type", f"{vintage.array}.type_alias")
    return annotation


def is_annotated(node: Node) -> bool:
    """Return whether a node has an annotation, valid or damaged, in any NCZarr layout."""
    holders = (node.attributes, node.members, node.sidecars)
    return not all(map(frozenset.isdisjoint, _NAMES, holders))


def find_name(node: Node) -> str:
    """Return the name of the variable whose array is `node`.

    If the array is the root of the store, the name comes from its ``_nczarr_name`` attribute. If
    this attribute is missing or invalid, the name is ``data``.
    """
    if node.path != "/":
        return node_name(node.path)
    name = node.attributes.get(ARRAY_NAME)
    return name if isinstance(name, str) and name and "/" not in name else "data"


def find_types(node: Node) -> Mapping[str, Json]:
    """Map the names of a node's attributes to their recorded types, as written in the metadata.

    The types are not checked.
    """
    for *_, value in stored_annotations(node, TYPES_PLACES):
        if isinstance(value, dict):
            recorded = _member(value, "type_list", {})
            if isinstance(recorded, dict):
                return recorded
            if isinstance(recorded, list):
                return dict(map(_recorded_type, recorded))
    return {}


def _recorded_type(item: Json) -> tuple[str, Json]:
    match item:
        case {"name": str(name), "configuration": {"type": rendered}}:
            return name, rendered
        case {"name": str(name)}:
            return name, None
    return "", None


def document_key(node: Node, place: str | None, zarr: Format) -> str | None:
    """Return the key of the document that contains `place`, a location within a node's metadata.

    Return None if the document cannot be determined.
    """
    document = zarr.document_key(node.path, "group" if isinstance(node, GroupNode) else "array")
    attributes = zarr.attributes_key(node.path)
    if attributes is None:
        return document
    if place is not None and place[:1] == ".":
        return key_prefix(node.path) + "." + place.split(".")[1]
    if place is not None and place.split(".")[0] in node.members:
        return document
    return None if place is None else attributes


def is_universal(root: Node | None) -> bool:
    """Return whether the store with this root was written in the dialect ``universal``.

    Only this dialect stores the superblock twice: in the attributes of the root, and in the members
    of the root's main document.
    """
    name = NEWEST.superblock
    return root is not None and name in root.members and name in root.attributes


def releases_of(dialect: str, root: Node | None) -> str:
    """Return a description of the netCDF-C releases that write a dialect.

    If the store was written as ``universal``, the description names the releases that can read it.
    For plain Zarr, the description is empty.
    """
    if is_universal(root):
        return "netCDF-C 4.9.0 or later"
    return BY_DIALECT[dialect].releases if dialect in BY_DIALECT else ""


def without_annotations(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of a node's members or sidecars, without those that belong to NCZarr."""
    return {
        name: value
        for name, value in members.items()
        if name not in SIDECARS and not name.startswith(_HIDDEN_PREFIXES)
    }


def member_name(value: Mapping[str, Json], member: str) -> str | None:
    """Return the name that an annotation uses for a member, or None if the member is missing.

    `member` is the name of a `Vintage` field, such as ``"dimensions"``. The names of this member in
    all NCZarr layouts are tried.
    """
    for name in _SPELLINGS[member]:
        if name in value:
            return name
    return None


def _member(value: dict[str, Json], member: str, default: Json = None) -> Json:
    name = member_name(value, member)
    return default if name is None else value[name]


def _names(
    value: dict[str, Json], member: str, vintage: Vintage, problems: list[MetadataError]
) -> list[str] | None:
    names = _member(value, member)
    if names is None:
        return None
    if not isinstance(names, list) or not all(map(is_name, names)):
        place = f"{vintage.group}.{getattr(vintage, member)}"
        problems.append(unexpected(names, "a list of names", place))
        return None
    return list(dict.fromkeys(names))


def is_name(name: object) -> bool:
    """Return whether a value is a valid name for a dimension, array or group."""
    return (
        isinstance(name, str)
        and name not in ("", ".", "..")
        and "/" not in name
        and "\0" not in name
    )
