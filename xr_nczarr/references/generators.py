"""Generators (``gen``), in which one template declares many keys.

A key is looked up without expanding the generator. To make this possible, the key template is
inverted once: it is converted to a regular expression and one solver per dimension. The regular
expression extracts the parts of a key that vary. Each of these parts must depend on one dimension
only. A solver determines the value of one dimension from the parts that depend on it: either it
solves the equation ``part = scale * value + shift``, or it looks up the parts in a table of
rendered values. To confirm the match, the template is rendered with the values of all dimensions,
and the result is compared with the key. If the inverse might miss some keys, the generator is
expanded instead.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from xr_nczarr.errors import NczarrError, ReferenceSetError, quote
from xr_nczarr.locks import cached_property
from xr_nczarr.references.entries import (
    MAX_NUMBER,
    PickledByFields,
    Reference,
    check_number,
    combinations,
    is_metadata,
)
from xr_nczarr.references.expressions import (
    Call,
    DimensionValue,
    Expression,
    Values,
    compiled,
    compiled_text,
    dimensions_in,
    is_constant,
    node_count,
    product,
)
from xr_nczarr.storage.store import Address

Domain = range | tuple[int | str, ...]

_INTEGER = "(-?[0-9]{1,19})"
_ORDINARY_SIZE = 64
_DIGITS = re.compile(r"\s*[0-9]{1,19}\s*")


class _Solver(NamedTuple):
    """A rule that determines the value of one dimension from a key.

    `groups` are the numbers of the regex groups whose text depends on the dimension. `table`
    maps the texts of these groups to the value of the dimension. If `table` is None, the value is
    computed from the text of the first group, which is the number ``scale * value + shift``.
    """

    name: str
    groups: tuple[int, ...]
    table: Mapping[tuple[str, ...], int | str] | None
    scale: int = 1
    shift: int = 0

    def solve(self, texts: Sequence[str]) -> int | str | None:
        if self.table is not None:
            return self.table.get(tuple([texts[position] for position in self.groups]))
        return (int(texts[self.groups[0]]) - self.shift) // self.scale


class _Templates(NamedTuple):
    key: Callable[[Values], str]
    url: Callable[[Values], str]
    offset: Callable[[Values], Any] | None
    length: Callable[[Values], Any] | None


@dataclass(frozen=True)
class Generator(PickledByFields):
    """One item of ``gen`` in a reference document: templates for keys and for their references.

    Attributes
    ----------
    key, url
        The templates for the key and the URL, each as a tuple of parts to be concatenated.
    offset, length
        The templates for the offset and the length in bytes, or None if the references are to whole
        objects.
    dimensions
        Mapping from the name of each dimension to its values, in document order. The last dimension
        varies fastest.
    max_table_cost
        Maximum cost of each dimension's lookup table. The table has one entry per value of the
        dimension, and the cost of each entry is `weight`.
    """

    key: tuple[Expression, ...]
    url: tuple[Expression, ...]
    offset: tuple[Expression, ...] | None
    length: tuple[Expression, ...] | None
    dimensions: Mapping[str, Domain]
    max_table_cost: int = field(default=1 << 16, compare=False)

    @cached_property
    def weight(self) -> int:
        """Relative cost of evaluating all templates once: 1 for templates of ordinary size."""
        parts = (*self.key, *self.url, *(self.offset or ()), *(self.length or ()))
        return 1 + sum(map(node_count, parts)) // _ORDINARY_SIZE

    @property
    def table_entries(self) -> int:
        """Total number of entries in the lookup tables of the solvers."""
        return sum(len(solver.table or ()) for solver in self.inverse[1]) if self.inverse else 0

    @cached_property
    def constant_prefix(self) -> str:
        """The constant text with which every key begins. It may be empty."""
        return str(self.key[0]) if self.key and is_constant(self.key[0]) else ""

    @property
    def folder(self) -> str:
        """The part of `constant_prefix` up to and including its last slash."""
        return self.constant_prefix[: self.constant_prefix.rfind("/") + 1]

    @property
    def key_count(self) -> int:
        """Number of keys that the generator declares."""
        return math.prod(map(len, self.dimensions.values()))

    def find(self, key: str) -> Reference | None:
        """Return the reference for `key`, or None if the generator does not declare the key."""
        pattern, solvers = self.inverse or (None, ())
        match = pattern.fullmatch(key) if pattern else None
        if match is None:
            return None
        texts = match.groups()
        values: dict[str, int | str] = {}
        for solver in solvers:
            value = solver.solve(texts)
            if value is None or value not in self.dimensions[solver.name]:
                return None
            values[solver.name] = value
        return self._reference(key, values) if self._templates.key(values) == key else None

    @cached_property
    def _templates(self) -> _Templates:
        number = (_value(self.offset), _value(self.length))
        return _Templates(compiled_text(self.key), compiled_text(self.url), *number)

    def check(self) -> None:
        """Evaluate the templates for the first and last keys, to detect mistakes early.

        Raises
        ------
        ReferenceSetError
            If a template cannot be evaluated, or produces an invalid key, offset or length.
        LimitError
            If a computed value is too large.
        """
        for end in (0, -1) if self.key_count else ():
            values = {name: domain[end] for name, domain in self.dimensions.items()}
            self._reference(self._templates.key(values), values)

    def items(self) -> Iterator[tuple[str, Reference]]:
        """Yield every key with its reference. The last dimension varies fastest."""
        for combination in combinations(tuple(self.dimensions.values())):
            values = dict(zip(self.dimensions, combination, strict=True))
            key = self._templates.key(values)
            yield key, self._reference(key, values)

    def _reference(self, key: str, values: Values) -> Reference:
        """Return the reference that the templates render for the given dimension values.

        `key` is the key that the key template renders for the same values.
        """
        if is_metadata(key) or not key:
            raise ReferenceSetError(
                "the generator declares a metadata document; expected only chunks", key=key
            )
        templates = self._templates
        try:
            url = templates.url(values)
            if templates.offset is None or templates.length is None:
                return Address(url)
            offset = _number(templates.offset(values), "offset", key)
            return Address(url, offset, _number(templates.length(values), "length", key))
        except NczarrError as error:
            error.located(key=key, place="gen")
            raise

    @cached_property
    def inverse(self) -> tuple[re.Pattern[str], list[_Solver]] | None:
        """The inverse of the key template, or None if the inverse might miss some keys.

        The inverse consists of a regular expression for the keys, and one solver per dimension.
        """
        varying = [part for part in self.key if not is_constant(part)]
        dependencies = [dimensions_in(part) for part in varying]
        if any(len(names) != 1 for names in dependencies):
            return None
        solvers, max_entries = [], self.max_table_cost // self.weight
        for name, domain in self.dimensions.items():
            parts = [position for position, names in enumerate(dependencies) if name in names]
            solver = _solver(name, domain, {part: varying[part] for part in parts}, max_entries)
            if solver is None:
                return None
            solvers.append(solver)
        pattern = self._pattern(solvers)
        return None if pattern is None else (re.compile(pattern, re.DOTALL), solvers)

    def _pattern(self, solvers: Sequence[_Solver]) -> str | None:
        """Return a regular expression for the keys, with a group for each part that varies.

        Return None if the end of a group is ambiguous. This is the case if another group follows
        immediately. It is also the case if the text of the group may contain either a slash or the
        character that follows the group.
        """
        texts: dict[int, list[str]] = {}
        for solver in solvers:
            for index, position in enumerate(solver.groups):
                if solver.table is not None:
                    texts[position] = [rendered[index] for rendered in solver.table]
        pattern, position = "", 0
        for part, following in itertools.zip_longest(self.key, self.key[1:], fillvalue=""):
            if is_constant(part):
                pattern += re.escape(str(part))
                continue
            end = str(following)[:1] if is_constant(following) else None
            characters = "".join(texts.get(position, ["-0123456789"]))
            if end is None or (end and end in characters) or "/" in characters:
                return None
            pattern += _INTEGER if position not in texts else f"([^{re.escape(end) or '/'}]*)"
            position += 1
        return pattern


def _value(parts: Sequence[Expression] | None) -> Callable[[Values], Any] | None:
    if parts is None or len(parts) != 1:
        return None if parts is None else compiled_text(parts)
    (part,) = parts
    return compiled(int(part) if isinstance(part, str) and _DIGITS.fullmatch(part) else part)


def _number(value: Any, what: str, key: str) -> int:
    if type(value) is int and 0 <= value < MAX_NUMBER:
        return value
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    return check_number(value, what, key)


def _solver(
    name: str, domain: Domain, parts: Mapping[int, Expression], limit: int
) -> _Solver | None:
    """Return the solver for a dimension, or None if its lookup table would exceed `limit` entries.

    `parts` contains the parts of the key template that depend on the dimension. Each part is keyed
    by the number of the regex group that matches it.
    """
    if isinstance(domain, range):
        factors_of = {position: _linear_factors(part, domain) for position, part in parts.items()}
        for position, factors in factors_of.items():
            if factors is not None and factors[0] != 0 and None not in factors_of.values():
                return _Solver(name, (position,), None, *factors)
    if len(domain) > limit:
        return None
    table: dict[tuple[str, ...], int | str] = {}
    computed = [compiled(part) for part in parts.values()]
    for value in domain:
        rendered = tuple([str(compute({name: value})) for compute in computed])
        if rendered in table:
            raise ReferenceSetError(
                f"the generator produces the same key for two values of dimension {quote(name)}",
                place="gen",
            )
        table[rendered] = value
    return _Solver(name, tuple(parts), table)


def _linear_factors(part: Expression, domain: range) -> tuple[int, int] | None:
    """Return the scale and shift of an expression that is linear in its only variable.

    `domain` contains the values of the variable. Return None if the expression is not linear, or if
    its value can have more digits than the regular expression for the keys allows.
    """
    scale, shift = 1, 0
    if type(part) is int:
        scale, shift = 0, part
    elif isinstance(part, Call) and len(part.parts) == 2:
        left, right = (_linear_factors(operand, domain) for operand in part.parts)
        if left is None or right is None:
            return None
        if part.function in (operator.add, operator.sub):
            scale, shift = (part.function(*pair) for pair in zip(left, right, strict=True))
        elif part.function is product and 0 in (left[0], right[0]):
            scale, shift = left[0] * right[1] + left[1] * right[0], left[1] * right[1]
        else:
            return None
    elif not isinstance(part, DimensionValue):
        return None
    extremes = [scale * value + shift for value in domain[:: max(len(domain) - 1, 1)]]
    return (scale, shift) if all(-MAX_NUMBER < v < MAX_NUMBER for v in extremes) else None
