"""Change individual members of stored documents without altering the text of other members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from xr_nczarr.formats.documents import Document, render_json
from xr_nczarr.formats.format import Format
from xr_nczarr.model import GroupNode, Json, Node, key_prefix


class Change(NamedTuple):
    """A new value for one member of a node's metadata.

    `holder` names the node's field that contains the member: ``"attributes"``, ``"members"`` or
    ``"sidecars"``. `member` is the sequence of nested names that leads from the field to the value.
    """

    node: Node
    holder: str
    member: tuple[str, ...]
    value: Json


def locate(change: Change, zarr: Format) -> tuple[str, tuple[str, ...]]:
    """Locate the member to change in the stored documents.

    Return the key of the document that contains the member, and the sequence of nested names that
    leads to the member's value in this document.
    """
    node, member = change.node, change.member
    if change.holder == "sidecars":
        return key_prefix(node.path) + member[0], member[1:]
    document = zarr.document_key(node.path, "group" if isinstance(node, GroupNode) else "array")
    if change.holder == "members":
        return document, member
    key = zarr.attributes_key(node.path)
    return (document, ("attributes", *member)) if key is None else (key, member)


def edited(document: Document, changes: Mapping[tuple[str, ...], Json]) -> bytes:
    """Render a document with changes to some of its members.

    `changes` maps sequences of nested member names to new values. A new member is added at the end
    of the object that contains it. Unchanged members keep their exact text.
    """
    below: dict[str, dict[tuple[str, ...], Json]] = {}
    for (name, *names), value in changes.items():
        below.setdefault(name, {})[tuple(names)] = value
    members = document.value if isinstance(document.value, dict) else {}
    parts = []
    for name in dict.fromkeys((*members, *below)):
        if name not in below:
            rendered = document.literal(name).encode()
        elif () in below[name]:
            rendered = render_json(below[name][()])
        else:
            inner = document.member(name) if isinstance(members.get(name), dict) else _EMPTY
            rendered = edited(inner, below[name])
        parts.append(b"%b: %b" % (render_json(name), rendered))
    return b"{%b}" % b", ".join(parts)


_EMPTY = Document("", b"{}")
