"""Change individual members of stored documents, and leave all other text as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from xr_nczarr.formats.documents import Document, render_json
from xr_nczarr.formats.format import Format, NodeKind
from xr_nczarr.model import Json, key_prefix


class Change(NamedTuple):
    """A new value for one member of a node's metadata.

    `holder` is the part of the metadata that contains the member: ``"attributes"``, ``"members"``
    (the node's main document) or the name of a sidecar document. `member` contains the names that
    lead to the value from there. If it is empty, the value replaces a whole sidecar.
    """

    path: str
    kind: NodeKind
    holder: str
    member: tuple[str, ...]
    value: Json


def locate(change: Change, zarr: Format) -> tuple[str, tuple[str, ...]]:
    """Return the key of the document to change, and the names that lead to the member."""
    document = zarr.document_key(change.path, change.kind)
    if change.holder == "members":
        return document, change.member
    if change.holder == "attributes":
        key = zarr.attributes_key(change.path)
        return (document, ("attributes", *change.member)) if key is None else (key, change.member)
    return key_prefix(change.path) + change.holder, change.member


def edited(document: Document, changes: Mapping[tuple[str, ...], Json]) -> bytes:
    """Return a document after changing some of its members. New members are added at the end.

    `changes` maps sequences of names, which lead to members, to the new values.
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
