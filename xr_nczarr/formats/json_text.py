r"""Parse JSON, including the nonstandard notation that netCDF-C accepts.

Text is first parsed by the standard library's C parser. If this fails, notation that only netCDF-C
accepts is rewritten as valid JSON, and the text is parsed again. Examples of this notation are
``001``, ``+5``, ``0x10``, ``1.``, ``1e``, ``nan``, ``TRUE``, and ``\'`` within strings.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, compress
from operator import itemgetter

from xr_nczarr.errors import MetadataError, quote
from xr_nczarr.model import Json

_MAX_REWRITTEN = 500_000
_CONTAINERS = frozenset((dict, list))

_WORD = r"[0-9A-Za-z+.-]"
_NUMBER = r"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?"
# Matches as many valid tokens as possible, followed by an invalid one. Unlike the JSON standard,
# this pattern allows control characters in strings.
_LAX = re.compile(
    rf'(?:[^"0-9A-Za-z+.-]++|"(?:[^"\\]++|\\["\\/bfnrtu])*+"'
    rf"|(?:{_NUMBER}|true|false|null|NaN|-?Infinity)(?!{_WORD}))*+"
    rf'(?P<token>"(?:[^"\\]++|\\.)*+"|{_WORD}++)',
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\([^\"\\/bfnrtu])|\\.", re.DOTALL)
_INTEGER = re.compile(r"[+-]?[0-9]+")
_HEXADECIMAL = re.compile(r"[+-]?0x[0-9a-f]{1,16}")
_FLOAT = re.compile(r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]*)?|nan|inf(?:inity)?)")
_GAP = re.compile(r"[ \t\n\r]*[{:,]?[ \t\n\r]*")


@dataclass(frozen=True, slots=True)
class StrictText:
    """A document's text after conversion to valid JSON.

    Attributes
    ----------
    text
        The valid JSON.
    source
        The stored text. It can contain notation that only netCDF-C accepts.
    shifts
        (start, shift) pairs that convert positions in `text` to positions in `source`. Each shift
        applies to the positions from its start up to the next start, and is added to them.
    """

    text: str
    source: str
    shifts: Sequence[tuple[int, int]] = ()

    def locate(self, position: int) -> int:
        """Return the position in `source` that corresponds to a position in `text`."""
        before = bisect_right(self.shifts, position, key=itemgetter(0))
        return position + (self.shifts[before - 1][1] if before else 0)

    def members(self, start: int) -> dict[str, tuple[int, int]]:
        """Map the name of each member of a JSON object to the (start, end) span of its value.

        `start` is the position at which the object begins. All positions refer to `text`.
        """
        spans: dict[str, tuple[int, int]] = {}
        position = self._skip(start)
        while not self.text.startswith("}", position):
            name, end = _PLAIN.raw_decode(self.text, position)
            begin = self._skip(end)
            _, end = _PLAIN.raw_decode(self.text, begin)
            spans[name] = (begin, end)
            position = self._skip(end)
        return spans

    def _skip(self, position: int) -> int:
        """Skip whitespace and at most one ``{``, ``:`` or ``,``. Return the next position."""
        gap = _GAP.match(self.text, position)
        return gap.end() if gap else position


def parse_json(source: str, *, max_depth: int) -> Json:
    """Parse JSON, including the nonstandard syntax that netCDF-C accepts.

    Raises
    ------
    MetadataError
        If the text cannot be parsed, if an object has duplicate names, or if values are nested more
        than `max_depth` levels deep.
    """
    strict = StrictText(source, source)
    try:
        try:
            value = _UNIQUE.decode(source)
        except json.JSONDecodeError:
            strict = _rewrite(source)
            value = _UNIQUE.decode(strict.text)
    except json.JSONDecodeError as error:
        if not source.strip():
            raise MetadataError("the document is empty") from error
        located = json.JSONDecodeError(error.msg, source, strict.locate(error.pos))
        remedy = _REMAINS_REMEDY if error.msg == "Extra data" else ""
        raise MetadataError(f"the document is not valid JSON: {located}", remedy=remedy) from error
    except RecursionError as error:
        raise _too_deep(max_depth) from error
    except MetadataError:
        raise
    except ValueError as error:
        raise MetadataError(f"an integer in the document has too many digits: {error}") from error
    if source.count("[") + source.count("{") > max_depth:
        _check_depth(value, max_depth)
    return value


def strict_text(source: str) -> StrictText:
    """Convert `source` to valid JSON by rewriting syntax that only netCDF-C accepts."""
    try:
        _PLAIN.decode(source)
    except ValueError:
        return _rewrite(source)
    return StrictText(source, source)


def _unique(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) != len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise MetadataError(f"a JSON object has more than one member named {quote(name)!r}")
    return members


_UNIQUE = json.JSONDecoder(object_pairs_hook=_unique, strict=False)
_PLAIN = json.JSONDecoder(strict=False)
_REMAINS_REMEDY = (
    "If netCDF-C has changed the store, truncate the file at this position. When netCDF-C replaces "
    "a document with a shorter one, it does not remove the end of the longer document"
)


def _too_deep(max_depth: int) -> MetadataError:
    return MetadataError(
        f"the document is nested more than {max_depth} levels deep (max_depth)",
        remedy="If you trust the store, pass limits=Limits(max_depth=…)",
    )


def _check_depth(value: Json, max_depth: int) -> None:
    level = [value]
    for _ in range(max_depth):
        members = (parent.values() if type(parent) is dict else parent for parent in level)
        children = list(chain.from_iterable(members))
        level = list(compress(children, map(_CONTAINERS.__contains__, map(type, children))))
    if level:
        raise _too_deep(max_depth)


def _rewrite(source: str) -> StrictText:
    pieces: list[str] = []
    shifts: list[tuple[int, int]] = []
    done = shift = 0
    while match := _LAX.match(source, done):
        begin, end = match.span("token")
        token = _strict_token(source[begin:end])
        pieces += (source[done:begin], token)
        shift += end - begin - len(token)
        shifts.append((end - shift, shift))
        done = end
        if len(shifts) > _MAX_REWRITTEN:
            raise MetadataError(
                f"the document contains more than {_MAX_REWRITTEN:,} values in nonstandard "
                "notation that only netCDF-C accepts"
            )
    pieces.append(source[done:])
    return StrictText("".join(pieces), source, shifts)


def _strict_token(token: str) -> str:
    """Convert a number, word or string in netCDF-C's syntax to JSON, if possible."""
    if token[0] == '"':
        return _ESCAPE.sub(lambda escape: escape[1] or escape[0], token)
    word = token.lower()
    if word in ("true", "false", "null"):
        return word
    if _INTEGER.fullmatch(word):
        return ("-" if word[0] == "-" else "") + (word.lstrip("+-0") or "0")
    if _HEXADECIMAL.fullmatch(word):
        return str(int(word, 16))
    if _FLOAT.fullmatch(word):
        return json.dumps(float(f"{word}0" if word[-1] in "e+-" else word))
    return token
