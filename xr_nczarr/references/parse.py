"""Parse reference documents of versions 0 and 1, and convert version 1 to version 0.

A document must not declare a key twice, whether in ``refs``, in ``gen`` or in both. Parsing such a
document usually raises an error. If a generator that is not expanded declares the key, the error is
raised when the key is looked up.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any

import numpy as np

from xr_nczarr.codecs import decompressed
from xr_nczarr.errors import (
    ChunkError,
    ErrorContext,
    LimitError,
    NczarrError,
    ReferenceSetError,
    quote,
)
from xr_nczarr.hierarchy import is_record_document
from xr_nczarr.model import DEFAULT_LIMITS, Limits
from xr_nczarr.references.entries import (
    MAX_NUMBER,
    Entry,
    check_number,
    encode_inline,
    invalid,
    parse_members,
    unique_members,
)
from xr_nczarr.references.expressions import Expression
from xr_nczarr.references.generators import Domain, Generator
from xr_nczarr.references.json_scanner import remove_markers, scan_document
from xr_nczarr.references.reference_set import ReferenceSet
from xr_nczarr.references.tables import (
    MIN_ROWS,
    KeyPattern,
    TableBuilder,
    split_chunk_key,
)
from xr_nczarr.references.templates import Language, Templates
from xr_nczarr.storage.store import Address

# Largest absolute dimension value. This limit keeps the number of values per dimension below 2⁶³.
MAX_DIMENSION = MAX_NUMBER // 2

ReferenceInput = bytes | bytearray | memoryview | str | Mapping[str, Any]

_ENTRY = "a string, an object, [url] or [url, offset, length]"
_VERSION_1_MEMBERS = {"version", "templates", "gen", "refs"}
_METADATA_NAMES = {".zgroup", ".zarray", ".zattrs", ".zmetadata", "zarr.json"}


def is_reference_document(document: bytes) -> bool:
    """Return whether a document is a reference set in JSON, without checking its entries.

    Documents of version 0 map keys to strings or lists, but so do many other JSON documents. A
    document of version 0 is therefore recognized only if it contains the metadata of a group or
    array. A document of version 1 is recognized if it has a ``version`` member, and no members
    outside the specification. An empty JSON object counts as a reference set.
    """
    try:
        members, refs, _ = _load(document, DEFAULT_LIMITS)
    except (ReferenceSetError, ChunkError, LimitError):
        return False
    if refs is members and any(key.rpartition("/")[2] in _METADATA_NAMES for key in refs):
        return True
    return not members or ("version" in members and members.keys() <= _VERSION_1_MEMBERS)


def _is_record_set(value: Any) -> bool:
    """Return whether the value of ``.zmetadata`` describes a folder of parquet files."""
    # In the JSON reference set of a Zarr v2 store, the value is consolidated metadata instead.
    if isinstance(value, Mapping):
        return "record_size" in value
    return isinstance(value, str) and is_record_document(value.encode(errors="backslashreplace"))


def parse_references(
    document: ReferenceInput,
    *,
    template_overrides: Mapping[str, str] | None = None,
    templates: Language = "safe",
    limits: Limits = DEFAULT_LIMITS,
) -> ReferenceSet:
    """Parse a reference document of version 0 or 1.

    Parameters
    ----------
    document
        The document, as JSON or as a dictionary. The JSON may be compressed with gzip or Zstandard.
    template_overrides
        Mapping from names to templates. These templates are added to the templates in the document,
        and replace any that have the same name.
    templates
        The language of the templates. ``"safe"`` allows little more than names and arithmetic.
        ``"jinja2"`` allows almost everything that jinja2's immutable sandbox allows. Use
        ``"jinja2"`` only for trusted sets, because its templates can run forever.
    limits
        `max_references` limits the cost of templates and generators. For example, a generator that
        cannot be evaluated on demand is expanded, and the resulting references count toward the
        limit. A reference whose templates have hundreds of terms counts as several references.
        `max_consolidated_bytes` limits the size of the document.

    Raises
    ------
    ReferenceSetError
        If the document or an entry violates the specification.
    RefusedError
        If a template uses syntax that requires ``templates="jinja2"``.
    ChunkError
        If a compressed document is damaged or truncated.
    LimitError
        If a limit is exceeded.

    Examples
    --------
    >>> references = parse_references('{"a/0": ["s3://bucket/data.nc", 100, 20]}')
    >>> references.resolve("a/0")
    Address(url='s3://bucket/data.nc', offset=100, length=20)
    """
    members, refs, builder = _load(document, limits)
    if _is_record_set(refs.get(".zmetadata")):
        refs.pop(".zmetadata")  # describes the parquet files from which the references originate
    # In the chunk key of a scalar, VirtualiZarr up to 2.5 omits the index.
    for key in [key for key in refs if key.endswith("/")]:
        if f"{key}0" not in refs and KeyPattern(key, ".", 1) not in builder.patterns:
            refs[f"{key}0"] = refs.pop(key)
    generators: list[Generator] = []
    render_url: Callable[[str], str] = str
    if refs is not members:
        texts = _texts(members.get("templates", {}), "templates")
        texts |= _texts(template_overrides or {}, "template_overrides")
        language = Templates(texts, language=templates, max_cost=limits.max_references)
        generators = _generators(members.get("gen", []), language)
        render_url = cache(language.render)
    expanded = [generator for generator in generators if generator.pattern is None]
    if expanded:
        cost = sum(generator.key_count * generator.weight for generator in expanded)
        _check_count("generators that must be expanded", cost, limits)
        generated = chain.from_iterable(generator.items() for generator in expanded)
        with ErrorContext(place="gen"):
            refs = unique_members(chain(refs.items(), generated))
    references = tabulate(refs, builder, render_url)
    chunks = {pattern: [*sources] for pattern, sources in references.chunks.items()}
    for generator in generators:
        if generator.pattern is not None:
            chunks.setdefault(generator.pattern, []).append(generator)
    return replace(references, chunks=chunks)


def expand(
    document: ReferenceInput,
    template_overrides: Mapping[str, str] | None = None,
    *,
    templates: Language = "safe",
    limits: Limits | Mapping[str, int] | None = None,
) -> dict[str, str | list[str | int]]:
    """Convert a reference document to version 0, which lists every reference explicitly.

    In the result, inline data is a string, a reference to a whole object is ``[url]``, and a
    reference to a byte range is ``[url, offset, length]``. The parameters and errors are the same
    as for `parse_references`. A `LimitError` is also raised if the generators declare more than
    `max_references` references.

    Examples
    --------
    >>> expand({"version": 1, "templates": {"u": "host/path"}, "refs": {"a": ["http://{{u}}"]}})
    {'a': ['http://host/path']}
    """
    bounds = Limits.of(limits)
    references = parse_references(
        document, template_overrides=template_overrides, templates=templates, limits=bounds
    )
    generators = (item for item in references.sources if isinstance(item, Generator))
    _check_count("the generators", sum(item.key_count for item in generators), bounds)
    return {
        key: encode_inline(reference)
        if isinstance(reference, bytes)
        else [part for part in reference if part is not None]
        for key, reference in unique_members(references.items()).items()
    }


def _load(
    document: ReferenceInput, limits: Limits
) -> tuple[dict[str, Any], dict[str, Any], TableBuilder]:
    """Parse a document, and return the tuple ``(members, references, builder)``.

    `members` contains the top-level members of the document, and `references` its references.
    References to chunks may be in `builder` instead, which contains no other references. In a
    document of version 0, all members are references, so `members` and `references` are the same
    dictionary.
    """
    if isinstance(document, Mapping):
        # Scan the document as text, which is several times as fast as iterating over a million
        # lists. Surrogates represent the undecodable bytes of file names.
        try:
            text = json.dumps(dict(document), default=_as_json, ensure_ascii=False)
        except (TypeError, ValueError) as error:
            raise _not_json(document, error) from error
        data = text.encode(errors="surrogatepass")
    else:
        data = document.encode() if isinstance(document, str) else bytes(document)
        data = decompressed(data, limits.max_consolidated_bytes)
        if len(data) > limits.max_consolidated_bytes:
            raise LimitError(
                f"the reference document is {len(data):,} bytes long, which exceeds the limit of "
                f"{limits.max_consolidated_bytes:,} bytes",
                remedy="If you trust the set, pass limits=Limits(max_consolidated_bytes=…)",
            )
    # Move only long sequences of regular references. The JSON parser reads everything else.
    rest, markers, builder = scan_document(data)
    # If the rest of the document is invalid, the original document is parsed below, so that the
    # error contains the right position.
    with suppress(ReferenceSetError):
        members = parse_members(rest)
        refs = _refs(members)
        # If all markers are among the references, so are all members that the markers replace.
        if remove_markers(refs) == markers:
            return members, refs, builder
    members = parse_members(data)
    return members, _refs(members), TableBuilder()


def _as_json(value: Any) -> Any:
    """Convert an object that `json.dumps` does not support."""
    if isinstance(value, bytes):
        # fsspec also accepts Base64 as bytes, which kerchunk returns.
        is_base64 = value.startswith(b"base64:")
        return value.decode("latin-1") if is_base64 else encode_inline(value)
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"objects of type {type(value).__name__} are not supported")


def _not_json(document: Mapping[Any, Any], error: Exception) -> ReferenceSetError:
    """Build the error for a dictionary with a value that JSON does not support."""
    refs = document.get("refs") if {"version", "refs"} & document.keys() else document
    for key, value in refs.items() if isinstance(refs, Mapping) else ():
        try:
            json.dumps(value, default=_as_json)
        except (TypeError, ValueError) as reason:
            subject, expected = "the entry in the reference set", f"{_ENTRY} ({reason})"
            return invalid(subject, value, expected, key=str(key))
    return ReferenceSetError(f"the dictionary is not a valid reference set ({error})")


def _refs(members: dict[str, Any]) -> dict[str, Any]:
    """Return the references of a document. Documents of version 0 contain only references."""
    version = members.get("version")
    if version is None:
        if isinstance(members.get("refs"), Mapping):
            raise ReferenceSetError(
                'the document has "refs", but no "version"',
                place="version",
                remedy='Add "version": 1 to the document',
            )
        if type(members.get("zarr_format")) is int:
            raise ReferenceSetError(
                "the document is Zarr metadata, not a reference set",
                remedy="Pass the folder that contains the document",
            )
        return members
    if type(version) is not int or version != 1:
        expected = '1. Documents of version 0 do not contain "version"'
        raise invalid('"version"', version, expected, place="version")
    return dict(_typed(members.get("refs", {}), Mapping, "refs"))


def _typed(value: Any, kind: type, place: str) -> Any:
    if not isinstance(value, kind):
        expected = "an object" if kind is Mapping else "a list"
        raise invalid("the type of the value", type(value).__name__, expected, place=place)
    return value


def _texts(value: Any, place: str) -> dict[str, str]:
    texts = dict(_typed(value, Mapping, place))
    for name, text in texts.items():
        if not isinstance(text, str):
            raise invalid(f'"{quote(name)}"', text, "a string", place=place)
    return texts


def _entry(key: str, value: Any, render_url: Callable[[str], str]) -> Entry:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return json.dumps(value)
    return _target(key, value, render_url)


def _target(key: str, value: Any, render_url: Callable[[str], str]) -> Address:
    if isinstance(value, Address):
        return value
    if not isinstance(value, (list, tuple)) or len(value) not in (1, 3):
        raise invalid("the entry in the reference set", value, _ENTRY, key=key)
    url = value[0]
    if not isinstance(url, str) or not url:
        raise invalid("the URL", url, "a non-empty string", key=key)
    try:
        url = render_url(url)
    except NczarrError as error:  # an ErrorContext takes a tenth of the parsing time
        error.add_context(key=key)
        raise
    if len(value) == 1:
        return Address(url)
    offset, length = check_number(value[1], "offset", key), check_number(value[2], "length", key)
    return Address(url, offset, length)


def tabulate(
    refs: dict[str, Any],
    builder: TableBuilder | None = None,
    render_url: Callable[[str], str] = str,
) -> ReferenceSet:
    """Build a reference set from the references in `refs` and `builder`.

    References to the chunks of large arrays are moved from `refs` to tables. The function
    `render_url` renders the templates in a URL.
    """
    builder = builder or TableBuilder()
    groups: dict[KeyPattern, list[tuple[str, str]]] = defaultdict(list)
    for key, value in refs.items():
        if isinstance(value, (list, tuple)) and (split := split_chunk_key(key)):
            groups[split[0]].append((key, split[1]))
    for pattern, keys in groups.items():
        if len(keys) < MIN_ROWS and pattern not in builder.patterns:
            continue
        urls, *numbers = zip(
            *[_target(key, refs.pop(key), render_url) for key, _ in keys], strict=True
        )
        texts = pattern.separator.join(index for _, index in keys).split(pattern.separator)
        builder.add(
            pattern,
            np.array(texts, dtype=np.int64).reshape(len(keys), pattern.rank),
            builder.url_numbers(urls),
            *(np.array([-1 if n is None else n for n in column]) for column in numbers),
        )
    entries = {key: _entry(key, value, render_url) for key, value in refs.items()}
    tables = builder.tables(render_url)
    references = ReferenceSet(entries, {pattern: [table] for pattern, table in tables.items()})
    for key in entries:
        if references.find_chunk(key):
            raise ReferenceSetError("the key is declared twice", key=key)
    return references


def _generators(value: Any, templates: Templates) -> list[Generator]:
    generators = []
    for number, item in enumerate(_typed(value, list, "gen")):
        try:
            generator = _generator(_typed(item, Mapping, "gen"), templates)
            generator.check()
        except NczarrError as error:
            inner = "" if error.place in {None, "gen"} else f".{error.place}"
            error.place = f"gen[{number}]{inner}"
            raise
        if generator.key_count:
            generators.append(generator)
    return generators


def _generator(item: Mapping[str, Any], templates: Templates) -> Generator:
    dimensions = {
        str(name): _domain(domain, f"dimensions.{name}")
        for name, domain in _typed(item.get("dimensions"), Mapping, "dimensions").items()
    }
    if not dimensions:
        raise invalid("the number of dimensions", 0, "at least one", place="dimensions")
    if ("offset" in item) != ("length" in item):
        raise ReferenceSetError(
            'the generator has only one of "offset" and "length"; expected both or neither'
        )

    def template(member: str) -> Expression:
        text = item.get(member)
        if type(text) is int and member in {"offset", "length"}:
            text = str(text)
        if not isinstance(text, str):
            raise invalid(f'"{member}"', text, "a string", place=member)
        with ErrorContext(place=member):
            return templates.compile(text, dimensions)

    return Generator(
        key=template("key"),
        url=template("url"),
        offset=template("offset") if "offset" in item else None,
        length=template("length") if "length" in item else None,
        dimensions=dimensions,
    )


def _domain(value: Any, place: str) -> Domain:
    def integer(number: Any) -> int:
        if type(number) is not int or abs(number) > MAX_DIMENSION:
            raise invalid("a dimension value", number, "an integer from -2⁶¹ to 2⁶¹", place=place)
        return number

    if isinstance(value, Mapping):
        start, stop = integer(value.get("start", 0)), integer(value.get("stop"))
        step = integer(value.get("step", 1))
        if step == 0:
            raise invalid('"step"', step, "a nonzero integer", place=place)
        return range(start, stop, step)
    items = tuple(_typed(value, list, place))
    return tuple(item if isinstance(item, str) else integer(item) for item in items)


def _check_count(subject: str, count: int, limits: Limits) -> None:
    """Raise LimitError if `count`, a number of references, exceeds ``limits.max_references``."""
    if count > limits.max_references:
        raise LimitError(
            f"{subject} declare {count:,} references, which exceeds the limit of "
            f"{limits.max_references:,}",
            place="gen",
            remedy="If you trust the set, pass limits=Limits(max_references=…)",
        )
