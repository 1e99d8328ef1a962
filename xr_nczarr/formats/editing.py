"""Change individual members of stored documents without altering the text of other members."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from xr_nczarr.formats.documents import Document, render_json
from xr_nczarr.formats.format import Format, NodeKind
from xr_nczarr.model import Json, key_prefix


class Change(NamedTuple):
    """A new value for one member of a node's metadata.

    `path` and `kind` identify the node. `holder` is the part of its metadata that contains the
    member: ``"attributes"``, ``"members"`` (the node's main document), or the name of a sidecar (an
    additional hidden document). `member` is the sequence of nested member names that leads from the
    holder to the value. If `member` is empty, `value` replaces the whole sidecar.
    """

    path: str
    kind: NodeKind
    holder: str
    member: tuple[str, ...]
    value: Json


def locate(change: Change, zarr: Format) -> tuple[str, tuple[str, ...]]:
    """Return the key of the document to change, and the nested member names to follow within it."""
    document = zarr.document_key(change.path, change.kind)
    if change.holder == "members":
        return document, change.member
    if change.holder == "attributes":
        key = zarr.attributes_key(change.path)
        return (document, ("attributes", *change.member)) if key is None else (key, change.member)
    return key_prefix(change.path) + change.holder, change.member


def edited(document: Document, changes: Mapping[tuple[str, ...], Json]) -> bytes:
    """Render a document with changes to some of its members.

    `changes` maps sequences of nested member names to new values. New members are added at the end
    of their object. Unchanged members keep their exact text.
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
