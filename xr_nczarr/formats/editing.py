"""Documents that are there already, changed in a few members: all else stays as it is spelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from xr_nczarr.formats.documents import Document, render_json
from xr_nczarr.model import Json, key_prefix

_ATTRIBUTES = (".zattrs", "attrs")
_ARRAY = (".zarray", "meta", "array.json", "zarr.json")
_GROUP = (".zgroup", "group.json", "zarr.json")


class Change(NamedTuple):
    """One member of a node to be set to `value`.

    `holder` is where it is: among the node's ``"attributes"``, in its own document (``"members"``),
    or in the sidecar of that name. The names in `member` lead to it from there; none are needed for
    a whole sidecar.
    """

    path: str
    kind: Literal["array", "group"]
    holder: str
    member: tuple[str, ...]
    value: Json


def locate(change: Change, node_keys: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Give the one of a node's keys whose document holds a member, and the names leading to it."""
    endings = _ARRAY if change.kind == "array" else _GROUP
    document = next(key for ending in endings for key in node_keys if key.endswith(ending))
    if change.holder == "members":
        return document, change.member
    if change.holder == "attributes":
        apart = [key for key in node_keys if key.endswith(_ATTRIBUTES)]
        return (apart[0], change.member) if apart else (document, ("attributes", *change.member))
    return key_prefix(change.path) + change.holder, change.member


def edited(document: Document, changes: Mapping[tuple[str, ...], Json]) -> bytes:
    """Give a document's bytes with some members set, those that are not there added at the end.

    `changes` hold each one's new value by the names that lead to it through objects.
    """
    below: dict[str, dict[tuple[str, ...], Json]] = {}
    for (name, *names), value in changes.items():
        below.setdefault(name, {})[tuple(names)] = value
    members = document.value if isinstance(document.value, dict) else {}
    parts = []
    for name in dict.fromkeys((*members, *below)):
        if name not in below:
            spelled = document.literal(name).encode()
        elif () in below[name]:
            spelled = render_json(below[name][()])
        else:
            inner = document.member(name) if isinstance(members.get(name), dict) else _EMPTY
            spelled = edited(inner, below[name])
        parts.append(b"%b: %b" % (render_json(name), spelled))
    return b"{%b}" % b", ".join(parts)


_EMPTY = Document("", b"{}")
