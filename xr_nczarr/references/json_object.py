"""JSON objects in which no member stands twice."""

from __future__ import annotations

import json
from typing import Any

from xr_nczarr.errors import ReferenceSetError, quote
from xr_nczarr.model import Json


def parse_members(data: bytes) -> dict[str, Any]:
    """Give the members of a JSON object; one that stands there twice is an error."""
    try:
        members = json.loads(data, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        if isinstance(error, ReferenceSetError):
            raise
        raise ReferenceSetError(f"the reference document is not JSON ({quote(error)})") from error
    if not isinstance(members, dict):
        raise ReferenceSetError("the reference document is not a JSON object")
    return members


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ReferenceSetError("the key stands twice in the document", key=name)
            seen.add(name)
    return members
