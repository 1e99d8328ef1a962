"""The two kinds of references: addresses of bytes in other objects, and inline bytes."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterable
from typing import Any, ClassVar

import numpy as np

from xr_nczarr.errors import ReferenceSetError, quote
from xr_nczarr.storage.store import Address

MAX_NUMBER = 1 << 62
"""Exclusive upper bound for offsets and lengths."""

_BASE64 = "base64:"
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


Reference = bytes | Address
"""The bytes of an object, or the address from which they are read."""

Entry = str | Address
"""An address, or the string that encodes inline bytes in the document."""


class PickledByFields:
    """Base class for dataclasses that pickle only their fields, not their cached properties."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def is_metadata(key: str) -> bool:
    """Return whether `key` names a metadata document of any Zarr version."""
    name = key.rpartition("/")[2]
    return name.startswith(".") or name.endswith(".json") or name in {"meta", "attrs"}


def decode_inline(text: str, key: str) -> bytes:
    """Decode the string that represents inline bytes in a reference document.

    A string that starts with ``base64:`` is decoded as Base64. Any other string is encoded as
    UTF-8. `key` is used only in the error message.

    Raises
    ------
    ReferenceSetError
        If the string cannot be decoded.
    """
    try:
        if text.startswith(_BASE64):
            return base64.b64decode(text[len(_BASE64) :], validate=True)
        return text.encode()
    except (binascii.Error, ValueError) as error:
        raise ReferenceSetError(f"the inline data cannot be decoded ({error})", key=key) from error


def encode_inline(data: bytes) -> str:
    """Encode inline bytes as a string for a reference document; the inverse of `decode_inline`.

    UTF-8 text is stored as is, unless it contains control characters or starts with ``base64:``.
    All other bytes are encoded as Base64.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = _BASE64
    if text.startswith(_BASE64) or _CONTROL.search(text):
        return _BASE64 + base64.b64encode(data).decode()
    return text


def parse_members(data: bytes | str) -> dict[str, Any]:
    """Parse the text of a JSON object into a dict.

    Raises
    ------
    ReferenceSetError
        If the text is not a JSON object, or if any object in it contains the same name twice.
    """
    try:
        members = json.loads(data, object_pairs_hook=unique_members)
    except (ValueError, RecursionError) as error:
        if isinstance(error, ReferenceSetError):
            raise
        raise ReferenceSetError(
            f"the reference document is not valid JSON ({quote(error)})"
        ) from error
    if not isinstance(members, dict):
        raise ReferenceSetError("the reference document is not a JSON object")
    return members


def unique_members(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Build a dict from (key, value) pairs, checking that no key occurs twice.

    Raises
    ------
    ReferenceSetError
        If a key occurs twice.
    """
    members: dict[str, Any] = {}
    for key, value in pairs:
        if key in members:
            raise ReferenceSetError("the key is declared twice", key=key)
        members[key] = value
    return members


def invalid(subject: str, value: object, expected: str, **where: Any) -> ReferenceSetError:
    """Build the error for a value that a reference set must not contain.

    `subject` is a name for the value, such as ``"the URL"``, and `expected` describes the allowed
    values. `where` can contain the `key` of the reference and the `place` in the document.
    """
    return ReferenceSetError(f"{subject} is {quote(repr(value))}; expected {expected}", **where)


def check_number(value: object, field: str, key: str) -> int:
    """Check that an offset or a length is valid, and return it as an int.

    `field` (``"offset"`` or ``"length"``) and `key` are used only in the error message.

    Raises
    ------
    ReferenceSetError
        If `value` is not an integer from 0 to 2⁶² - 1.
    """
    if isinstance(value, np.number):
        value = value.item()
    if type(value) is not int or not 0 <= value < MAX_NUMBER:
        raise invalid(field, value, "an integer from 0 to 2⁶² - 1", key=key)
    return value
