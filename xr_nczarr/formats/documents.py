"""Parse and edit the JSON documents of a store, and check the types and ranges of their members.

A failed check raises a MetadataError that names the `place` of the value in its document. If the
`place` is None, the value is the whole document. `Format.parse_node` adds the key of the document
to the error.
"""

from __future__ import annotations

import json
import marshal
import math
import re
from collections.abc import Collection, Hashable, Mapping

from xr_nczarr.errors import (
    ErrorContext,
    LimitError,
    MetadataError,
    UnsupportedError,
    quote,
    unexpected,
)
from xr_nczarr.formats.json_text import StrictText, parse_json, strict_text
from xr_nczarr.locks import cached_property
from xr_nczarr.model import DEFAULT_LIMITS, Attributes, Json, Limits

MAX_DIMENSIONS = 64
MAX_ITEM_BYTES = 16 << 20

# Upper bound on the memory that one parsed value takes, in bytes. As little as two bytes of text
# can become a Python object.
_VALUE_BYTES = 256

_NO_NAMES = frozenset(("", ".", ".."))
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


class Document:
    """A JSON document from a store, parsed lazily.

    Parameters
    ----------
    key
        Key of the document in the store, for error messages.
    data
        The stored bytes, or a str for a document that is stored as a JSON string in another
        document.
    limits
        Limits on the size and depth of the document.
    consolidated
        Whether the document is consolidated metadata, which has its own size limit.
    """

    def __init__(
        self,
        key: str,
        data: bytes | bytearray | memoryview | str,
        *,
        limits: Limits = DEFAULT_LIMITS,
        consolidated: bool = False,
    ) -> None:
        option = "max_consolidated_bytes" if consolidated else "max_metadata_bytes"
        largest = getattr(limits, option)
        if not isinstance(data, bytes | str):
            data = bytes(data)
        commas = data.count(",") if isinstance(data, str) else data.count(b",")
        if len(data) + _VALUE_BYTES * commas > largest:
            raise LimitError(
                f"the document is {len(data):,} bytes long and contains {commas:,} commas, so "
                f"parsing it may require more than {largest:,} bytes of memory ({option})",
                remedy=f"If you trust the store, pass limits=Limits({option}=…)",
                key=key,
            )
        self.key = key
        self._data = data
        self._max_depth = limits.max_depth

    @cached_property
    def value(self) -> Json:
        """The parsed JSON value.

        Raises
        ------
        MetadataError
            If the document is not valid UTF-8 or JSON, or is nested more than ``max_depth`` levels
            deep. Also raised if it contains lone surrogates, or an object with duplicate names.
        """
        with ErrorContext(key=self.key):
            text = self._text()
            value = parse_json(text, max_depth=self._max_depth)
            if _SURROGATE.search(text):
                render_json(value)
            return value

    @property
    def content(self) -> Hashable:
        """A hashable value that is equal only for documents with equal JSON values.

        It serves as a cache key.
        """
        return self._data

    def member(self, name: str, *, key: str | None = None) -> Document:
        """Return a `Document` for the value of the member `name`.

        `key` is the key of the new document, for error messages. By default, it is this document's
        own key.
        """
        return _Member(self, name, self.key if key is None else key)

    def attributes(self, member: str | None = None) -> Attributes:
        """Return the user attributes that this document contains.

        `member` is the name of the member that contains them, or None if they are the whole
        document.

        Raises
        ------
        MetadataError
            If the attributes are not a JSON object.
        """
        source = self if member is None else self.member(member)
        if not isinstance(source.value, dict):
            raise unexpected(source.value, "an object", member).add_context(key=self.key)
        return Attributes(source.value, source.literal)

    def literal(self, name: str) -> str:
        """Return the JSON text of a member's value, exactly as it appears in the document."""
        strict, spans = self._members
        begin, end = spans[name]
        return strict.source[strict.locate(begin) : strict.locate(end)]

    @cached_property
    def _members(self) -> tuple[StrictText, dict[str, tuple[int, int]]]:
        """The document as valid JSON, and the (start, end) span of each member's value in it."""
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
        return cache_key_of(self.value)

    @cached_property
    def _members(self) -> tuple[StrictText, dict[str, tuple[int, int]]]:
        strict, spans = self._owner._members
        return strict, strict.members(spans[self._name][0])


def render_json(value: Json) -> bytes:
    r"""Render `value` as UTF-8 JSON.

    Each float is written in the shortest form that round-trips. Characters are escaped only where
    JSON requires it, because netCDF-C does not understand ``\u`` escapes.

    Raises
    ------
    MetadataError
        If a string contains lone surrogates, which are not valid Unicode.
    UnsupportedError
        If a value, such as a parameter of a codec, cannot be represented as JSON.
    """
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        text = error.object[: error.end][-40:]
        problem = f"the string {text!r} is not valid Unicode ({error.reason})"
        raise MetadataError(
            problem, remedy="Replace the invalid characters in this string"
        ) from error
    except TypeError as error:
        raise UnsupportedError(
            f"the metadata cannot be represented as JSON ({error})",
            remedy="Use only JSON-serializable values, including in codec parameters",
        ) from error


def edited(document: Document, changes: Mapping[tuple[str, ...], Json]) -> bytes:
    """Render a document with changes to some of its members.

    `changes` maps members to their new values. Each member is identified by the sequence of nested
    names that leads to it, such as ``("attributes", "units")``. A new member is appended to the
    object that contains it. The text of unchanged members is kept verbatim.
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
            is_object = isinstance(members.get(name), dict)
            inner = document.member(name) if is_object else Document(document.key, b"{}")
            rendered = edited(inner, below[name])
        parts.append(b"%b: %b" % (render_json(name), rendered))
    return b"{%b}" % b", ".join(parts)


def render_float(number: float) -> float | str:
    """Return a finite number unchanged, and NaN or an infinity as the string used by Zarr v3."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def cache_key_of(value: Json) -> Hashable:
    """Return a hashable cache key for a JSON value.

    Values with equal keys are equal, and have the same types at every level of nesting. Equal
    values can have different keys, for example if two equal objects list their members in a
    different order.

    Raises
    ------
    MetadataError
        If the value is nested too deeply.
    """
    # `render_json` takes ten times as long.
    try:
        return marshal.dumps(value, 2)  # in later marshal versions, bytes depend on object identity
    except ValueError as error:  # more than 2,000 levels, which a large ``max_depth`` allows
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

    If `choices` is not empty, the string must be one of them.
    """
    if not isinstance(value, str) or (choices and value not in choices):
        raise unexpected(value, " or ".join(f'"{text}"' for text in choices) or "a string", place)
    return value


def read_integer(value: Json, place: str | None, *, least: int = 0) -> int:
    """Return `value` if it is an integer, or raise a MetadataError that names `place`.

    The integer must be in the range from `least` to 2**63 - 1. Floats and booleans are rejected.
    """
    if type(value) is not int or not least <= value < 2**63:
        raise unexpected(value, f"an integer from {least} to 2**63 - 1", place)
    return value


def read_lengths(value: Json, place: str | None, *, least: int = 0) -> tuple[int, ...]:
    """Convert a JSON list of lengths to a shape, or raise a MetadataError that names `place`.

    The list may contain at most 64 integers, each of which must be at least `least`. The product of
    the nonzero lengths must be below 2**63.
    """
    if len(read_list(value, place)) > MAX_DIMENSIONS:
        raise MetadataError(
            f"the array has {len(value)} dimensions; expected at most {MAX_DIMENSIONS}", place=place
        )
    lengths = tuple([read_integer(length, place, least=least) for length in value])
    if math.prod(filter(None, lengths)) >= 2**63:
        raise unexpected(value, "a shape of fewer than 2**63 elements", place)
    return lengths


def read_chunk_shape(value: Json, place: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Parse the chunk shape of an array with the given `shape`.

    A chunk length of zero is allowed only along a dimension of length zero, and is replaced with 1.

    Raises
    ------
    MetadataError
        If `value` is not a list of valid lengths, one for each dimension.
    """
    lengths = read_lengths(value, place)
    if len(lengths) != len(shape):
        raise unexpected(value, f"{len(shape)} lengths, one for each dimension", place)
    if any(size and not length for size, length in zip(shape, lengths, strict=True)):
        raise unexpected(value, "lengths of at least 1", place)
    return tuple([length or 1 for length in lengths])


def read_members(document: Document, *, zarr_format: int) -> dict[str, Json]:
    """Return the members of the document that defines a group or array.

    Raises
    ------
    MetadataError
        If the document is not an object, or its ``zarr_format`` member differs from `zarr_format`.
    """
    members = read_object(document.value, None)
    version = required(members, "zarr_format")
    if type(version) is not int or version != zarr_format:
        raise unexpected(version, f"{zarr_format}", "zarr_format")
    return members


def without(members: Mapping[str, Json], known: Collection[str]) -> dict[str, Json]:
    """Return a copy of a JSON object without the members in `known`."""
    return {name: value for name, value in members.items() if name not in known}


def required(members: Mapping[str, Json], name: str, place: str | None = None) -> Json:
    """Return a member of a JSON object, or raise MetadataError if the member is missing.

    `place` is the location of the object, not of the member.
    """
    if name not in members:
        place = name if place is None else f"{place}.{name}"
        problem = f'the required member "{name}" is missing'
        raise MetadataError(problem, place=place)
    return members[name]


def split_consolidated(
    holder: Document,
    place: str | None = None,
    *,
    groups: str,
    suffix: str = "",
    with_texts: bool = False,
) -> dict[str, Document]:
    """Split consolidated metadata into its documents, keyed by their keys in the store.

    Parameters
    ----------
    holder
        The object whose ``metadata`` member contains the documents.
    place
        The location of `holder` in the consolidated metadata. None if it is the whole document.
    groups
        Suffix of the keys of groups.
    suffix
        Text that must be appended to the name of each document to obtain its key.
    with_texts
        Whether documents may be stored as JSON strings.

    Raises
    ------
    MetadataError
        If the ``metadata`` member is missing or not an object, or if a segment of a key is empty,
        ``.`` or ``..``. Such a key could lead outside the store.
    """
    inner = "metadata" if place is None else f"{place}.metadata"
    listed = read_object(required(holder.value, "metadata", place), inner)
    documents = holder.member("metadata")
    keyed: dict[str, Document] = {}
    for name, value in listed.items():
        if not _NO_NAMES.isdisjoint(name.split("/")):
            problem = f"the key {quote(repr(name))} is not a plain relative path"
            raise MetadataError(problem, place=inner)
        key = name + suffix
        text = value if with_texts and isinstance(value, str) else None
        document = documents.member(name, key=key) if text is None else Document(key, text)
        if key.endswith(groups) and isinstance(value, dict) and "consolidated_metadata" in value:
            # zarr-python 3 adds this member to each group in consolidated metadata, but not in the
            # group's own document.
            document.value = without(value, ("consolidated_metadata",))
        keyed[key] = document
    return keyed
