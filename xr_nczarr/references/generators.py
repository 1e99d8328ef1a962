"""Generators (``gen``), each of which declares many keys with a few templates.

A generator that meets all of the following conditions is evaluated only when a key is looked up.
Any other generator is expanded to a list of keys with references.

- All of its keys are chunk keys with the same prefix.
- Each number in the chunk index is either a constant, or ``scale * value + shift`` for the value of
  a single integer dimension.
- Each chunk index belongs to exactly one combination of dimension values.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from xr_nczarr.errors import NczarrError, ReferenceSetError
from xr_nczarr.locks import cached_property
from xr_nczarr.model import combinations
from xr_nczarr.references.entries import (
    MAX_NUMBER,
    PickledByFields,
    check_number,
    is_metadata,
)
from xr_nczarr.references.expressions import (
    Call,
    Computed,
    DimensionValue,
    Expression,
    Values,
    compiled,
    dimensions_in,
    is_constant,
    node_count,
    operands,
    product,
)
from xr_nczarr.references.tables import KeyPattern, split_chunk_key
from xr_nczarr.storage.store import Address

Domain = range | tuple[int | str, ...]

_ORDINARY_SIZE = 64
_DIGITS = re.compile(r"\s*[0-9]{1,19}\s*")
_MAX_INDEX = 10**18
"""Exclusive upper bound for the numbers in a chunk index; see `split_chunk_key`."""


class _IndexNumber(NamedTuple):
    """The formula ``scale * x + shift`` for one number in a chunk index.

    ``x`` is the value of the dimension `name`, and must be one of `values`.
    """

    shift: int
    scale: int = 1
    name: str = ""  # empty for a constant, for which x is 0
    values: Collection[int] = (0,)


@dataclass(frozen=True)
class Generator(PickledByFields):
    """An element of the ``gen`` array: templates for keys and for their references.

    Attributes
    ----------
    key, url
        The templates for the key and the URL.
    offset, length
        The templates for the offset and the length in bytes. None if the references refer to whole
        objects.
    dimensions
        Mapping from the name of each dimension to its values, in document order. The last dimension
        varies fastest.
    """

    key: Expression
    url: Expression
    offset: Expression
    length: Expression
    dimensions: Mapping[str, Domain]

    @cached_property
    def weight(self) -> int:
        """Cost of evaluating all templates once: 1 for short templates, and more for long ones."""
        templates = (self.key, self.url, self.offset, self.length)
        return 1 + sum(map(node_count, templates)) // _ORDINARY_SIZE

    @property
    def key_count(self) -> int:
        """Number of keys that the generator declares."""
        return math.prod(map(len, self.dimensions.values()))

    @property
    def pattern(self) -> KeyPattern | None:
        """The pattern that all keys share, or None if the generator must be expanded."""
        return self._chunk_keys[0] if self._chunk_keys else None

    def find(self, key: str, index: Sequence[int]) -> Address | None:
        """Return the reference for `key`, or None if the generator does not declare the key.

        `key` must match the generator's `pattern`, and `index` must be the chunk index in `key`.
        """
        assert self._chunk_keys is not None
        values: dict[str, int] = {}
        _, numbers = self._chunk_keys
        for (shift, scale, name, domain), number in zip(numbers, index, strict=True):
            value, rest = divmod(number - shift, scale)
            if rest or value not in domain or values.setdefault(name, value) != value:
                return None
        return self._reference(key, values)

    @cached_property
    def _compute_key(self) -> Computed:
        return compiled(self.key)

    @cached_property
    def _compute_fields(self) -> Computed:
        """A function that computes a reference's URL, offset and length from dimension values."""
        return compiled(Call(lambda *fields: fields, (self.url, self.offset, self.length)))

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
            self._member(values)

    def items(self) -> Iterator[tuple[str, Address]]:
        """Yield every key with its reference. The last dimension varies fastest."""
        for combination in combinations(tuple(self.dimensions.values())):
            yield self._member(dict(zip(self.dimensions, combination, strict=True)))

    def _member(self, values: Values) -> tuple[str, Address]:
        """Compute the key and the reference for the given dimension values."""
        key = str(self._compute_key(values))
        if is_metadata(key) or not key:
            raise ReferenceSetError(
                "the generator declares an empty key, or the key of a metadata document; expected "
                "only chunk keys",
                key=key,
            )
        return key, self._reference(key, values)

    def _reference(self, key: str, values: Values) -> Address:
        """Compute the reference for `key` from the dimension values in this key."""
        try:
            url, offset, length = self._compute_fields(values)
            return Address(str(url), _number(offset, "offset", key), _number(length, "length", key))
        except NczarrError as error:
            error.add_context(key=key, place="gen")
            raise

    @cached_property
    def _chunk_keys(self) -> tuple[KeyPattern, list[_IndexNumber]] | None:
        """The pattern that all keys share, and a formula for each number in the chunk index.

        None if single keys cannot be looked up, so that the generator must be expanded to a list of
        all keys.
        """
        first = {name: domain[0] for name, domain in self.dimensions.items()}
        split = split_chunk_key(str(self._compute_key(first)))
        if split is None:
            return None
        pattern, _ = split
        varying = [part for part in operands(self.key) if not is_constant(part)]
        text = "".join(str(part) if is_constant(part) else "\0" for part in operands(self.key))
        items = text.removeprefix(pattern.prefix).split(pattern.separator)
        if not text.startswith(pattern.prefix) or items.count("\0") != len(varying):
            return None  # the prefix varies, or a number consists of several parts
        parts = iter(varying)
        numbers: list[_IndexNumber] = []
        for item in items:
            number = self._index_number(next(parts)) if item == "\0" else _IndexNumber(int(item))
            if number is None:
                return None
            numbers.append(number)
        names = {number.name for number in numbers} - {""}
        return (pattern, numbers) if names == self.dimensions.keys() else None

    def _index_number(self, part: Expression) -> _IndexNumber | None:
        """Return the formula for one number in the chunk index, or None if there is no formula.

        `part` is the expression in the key template that produces the number. It must be a linear
        function of exactly one dimension, and the values of this dimension must be distinct
        integers. The number must not be negative, or too large for an index.
        """
        names = dimensions_in(part)
        if len(names) != 1:
            return None
        (name,) = names
        domain = self.dimensions[name]
        values: Collection[int]
        if isinstance(domain, range):
            values, ends = domain, (domain[0], domain[-1])
        else:
            values = {value for value in domain if isinstance(value, int)}
            if len(values) != len(domain):
                return None
            ends = min(values), max(values)
        scale, shift = _linear_factors(part, ends) or (0, 0)
        in_range = all(0 <= scale * end + shift < _MAX_INDEX for end in ends)
        return _IndexNumber(shift, scale, name, values) if scale and in_range else None


def _number(value: Any, field: str, key: str) -> int | None:
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    return None if value is None else check_number(value, field, key)


def _linear_factors(part: Expression, ends: tuple[int, int]) -> tuple[int, int] | None:
    """Return the scale and shift of an expression that is linear in its only variable.

    `ends` contains the extreme values of the variable. Return None if the expression is not linear,
    or if it is too large at one of the `ends`.
    """
    scale, shift = 1, 0
    if type(part) is int:
        scale, shift = 0, part
    elif isinstance(part, Call) and len(part.parts) == 2:
        left, right = (_linear_factors(operand, ends) for operand in part.parts)
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
    # This is checked for each operand, so that intermediate results are small too.
    is_small = all(abs(scale * value + shift) < MAX_NUMBER for value in ends)
    return (scale, shift) if is_small else None
