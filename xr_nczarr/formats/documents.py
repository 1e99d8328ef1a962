"""Parse the JSON documents of a store, and check the types and ranges of their members.

The functions raise MetadataError, which names the member. `Format.parse_node` adds the key.
"""

from __future__ import annotations

import json
import marshal
import math
import re
from collections.abc import Collection, Hashable, Mapping
from typing import Any

import numpy as np

from xr_nczarr.errors import LimitError, MetadataError, Place, quote, unexpected
from xr_nczarr.formats.json_text import StrictText, parse_json, strict_text
from xr_nczarr.locks import cached_property
from xr_nczarr.model import DEFAULT_LIMITS, Attributes, Json, Limits

MAX_DIMENSIONS = 64
MAX_ITEM_BYTES = 16 << 20

_VALUE_BYTES = 256  # upper bound for a parsed value: two bytes of text can become a Python object

_NO_NAMES = frozenset(("", ".", ".."))
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class Document:
    """A JSON document of a store, which is parsed when it is first used.

    Parameters
    ----------
    key
        Key in the store, for messages.
    data
        The stored bytes, or a str if another document contains this document as a JSON string.
    limits
        Limits on the depth and size of the document, which are checked on creation (size) and on
        first use (depth).
    consolidated
        Whether ``max_consolidated_bytes`` applies instead of ``max_metadata_bytes``.
    """

    def __init__(
        self,
        key: str,
        data: bytes | bytearray | memoryview | str,
        *,
        limits: Limits = DEFAULT_LIMITS,
        consolidated: bool = False,
    ) -> None:
        largest = limits.max_consolidated_bytes if consolidated else limits.max_metadata_bytes
        if not isinstance(data, bytes | str):
            data = bytes(data)
        commas = data.count(",") if isinstance(data, str) else data.count(b",")
        if len(data) + _VALUE_BYTES * commas > largest:
            option = "max_consolidated_bytes" if consolidated else "max_metadata_bytes"
            raise LimitError(
                f"parsing {len(data):,} bytes of JSON with {commas:,} commas may need more than "
                f"{largest:,} bytes of memory ({option})",
                remedy=f"If you trust the store, pass limits=Limits({option}=…)",
                key=key,
            )
        self.key = key
        self._data = data
        self._max_depth = limits.max_depth

    @cached_property
    def value(self) -> Json:
        """The JSON value.

        Raises
        ------
        MetadataError
            If the data are not JSON in UTF-8, an object has repeated names, or values are nested
            beyond ``max_depth``.
        """
        with Place(key=self.key):
            text = self._text()
            value = parse_json(text, max_depth=self._max_depth)
            if _SURROGATE.search(text):
                render_json(value)
            return value

    @property
    def content(self) -> Hashable:
        """A hashable key for the content of the document.

        Documents with equal keys have equal values.
        """
        return self._data

    def member(self, name: str, *, key: str | None = None) -> Document:
        """Return the value of a member as a separate document.

        Error messages show `key` as the key of that document. None means the key of this document.
        """
        return _Member(self, name, self.key if key is None else key)

    def attributes(self, member: str | None = None) -> Attributes:
        """Return the user attributes in this document, or in one of its members."""
        source = self if member is None else self.member(member)
        if not isinstance(source.value, dict):
            raise unexpected(source.value, "an object", member).located(key=self.key)
        return Attributes(source.value, source)

    def literal(self, name: str) -> str:
        """Return the JSON text of a member, exactly as it is in the document."""
        strict, spans = self._members
        begin, end = spans[name]
        return strict.source[strict.locate(begin) : strict.locate(end)]

    @cached_property
    def _members(self) -> tuple[StrictText, dict[str, tuple[int, int]]]:
        """The text of the document, and where the value of each member starts and ends in it."""
        strict = strict_text(self._text())
        return strict, strict.members(0)

    def _text(self) -> str:
        if isinstance(self._data, str):
            return self._data
        try:
            return str(self._data, "utf-8").removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            raise MetadataError(f"the document is not valid UTF-8 ({error.reason})") from error


class _Member(Document):
    def __init__(self, owner: Document, name: str, key: str) -> None:
        self.key = key
        self._owner = owner
        self._name = name
        self.value = owner.value[name]

    @property
    def content(self) -> Hashable:
        return content_of(self.value)

    @cached_property
    def _members(self) -> tuple[StrictText, dict[str, tuple[int, int]]]:
        strict, spans = self._owner._members
        return strict, strict.members(spans[self._name][0])


def render_json(value: Json) -> bytes:
    r"""Render `value` as JSON in UTF-8, with the shortest exact representation of floats.

    Only the characters that JSON requires are escaped, because netcdf-c does not understand ``\u``
    escapes.

    Raises
    ------
    MetadataError
        If a string is not valid Unicode, because it contains lone surrogates.
    """
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        text = error.object[: error.end][-40:]
        problem = f"the string {text!r} is not valid Unicode ({error.reason})"
        raise MetadataError(
            problem, remedy="Replace the name or value that contains the string"
        ) from error


def content_of(value: Json) -> Hashable:
    """Return a hashable value that is equal only for equal JSON values of equal types.

    It is computed ten times as fast as `render_json`.
    """
    try:
        return marshal.dumps(value, 2)  # later versions of its format depend on the objects
    except ValueError as error:  # beyond 2,000 levels, if ``max_depth`` allows so many
        raise MetadataError(f"the document is nested too deeply: {error}") from error


def read_object(value: Json, place: str | None) -> dict[str, Json]:
    """Return `value` if it is a JSON object, or raise a MetadataError that names `place`."""
    if not isinstance(value, dict):
        raise unexpected(value, "an object", place)
    return value


def read_list(value: Json, place: str | None) -> list[Json]:
    """Return `value` if it is a list, or raise a MetadataError that names `place`."""
    if not isinstance(value, list):
        raise unexpected(value, "a list", place)
    return value


def read_text(value: Json, place: str | None, choices: Collection[str] = ()) -> str:
    """Return `value` if it is a string, or raise a MetadataError that names `place`.

    If `choices` are passed, the string must be one of them.
    """
    if not isinstance(value, str) or (choices and value not in choices):
        raise unexpected(value, " or ".join(f'"{text}"' for text in choices) or "a string", place)
    return value


def read_integer(value: Json, place: str | None, *, least: int = 0) -> int:
    """Return `value` if it is an integer, or raise a MetadataError that names `place`.

    The integer must be from `least` to 2**63 - 1. Floats and booleans are not integers.
    """
    if type(value) is not int or not least <= value < 2**63:
        raise unexpected(value, f"an integer from {least} to 2**63 - 1", place)
    return value


def read_lengths(value: Json, place: str | None, *, least: int = 0) -> tuple[int, ...]:
    """Return a list of lengths as a shape, or raise a MetadataError that names `place`.

    A shape has at most 64 integers, which are at least `least`. The product of its nonzero lengths
    is below 2**63.
    """
    if len(read_list(value, place)) > MAX_DIMENSIONS:
        raise MetadataError(
            f"the array has {len(value)} dimensions; expected at most {MAX_DIMENSIONS}", place=place
        )
    lengths = tuple([read_integer(length, place, least=least) for length in value])
    if math.prod(filter(None, lengths)) >= 2**63:
        raise unexpected(value, "a shape of fewer than 2**63 elements", place)
    return lengths


def read_chunk_shape(
    value: Json, place: str | None, *, dtype: np.dtype[Any], rank: int, limits: Limits
) -> tuple[int, ...]:
    """Return the chunk shape of an array with `rank` dimensions.

    Raises
    ------
    MetadataError
        If `value` is not a shape of `rank` dimensions.
    LimitError
        If a chunk of `dtype` has more than ``max_chunk_bytes``.
    """
    chunk_shape = read_lengths(value, place, least=1)
    if len(chunk_shape) != rank:
        raise unexpected(value, f"{rank} lengths, one for each dimension", place)
    size = math.prod(chunk_shape) * dtype.itemsize
    if size > limits.max_chunk_bytes:
        raise LimitError(
            f"a chunk has {size:,} bytes; expected at most {limits.max_chunk_bytes:,}",
            remedy="If you trust the store, pass limits=Limits(max_chunk_bytes=…)",
            place=place,
        )
    return chunk_shape


def read_members(document: Document, *, zarr_format: int) -> dict[str, Json]:
    """Return the members of the main document of a group or array.

    Raises
    ------
    MetadataError
        If the document is not an object, or declares another version than `zarr_format`.
    """
    members = read_object(document.value, None)
    version = required(members, "zarr_format")
    if type(version) is not int or version != zarr_format:
        raise unexpected(version, f"{zarr_format}", "zarr_format")
    return members


def without(members: Mapping[str, Json], known: Collection[str]) -> dict[str, Json]:
    """Return the members of an object that are not in `known`."""
    return {name: value for name, value in members.items() if name not in known}


def required(members: Mapping[str, Json], name: str, place: str | None = None) -> Json:
    """Return a member of the object at `place`. Raise MetadataError if the member is missing."""
    if name not in members:
        place = name if place is None else f"{place}.{name}"
        raise MetadataError("the required member is missing", place=place)
    return members[name]


def check_key(key: str, place: str, document: str) -> None:
    """Raise MetadataError if a key in consolidated metadata could refer to another store.

    No segment of the key may be empty, ``.`` or ``..``.
    """
    if not _NO_NAMES.isdisjoint(key.split("/")):
        problem = f"the key {quote(repr(key))} is not a plain relative path"
        raise MetadataError(problem, place=place, key=document)
