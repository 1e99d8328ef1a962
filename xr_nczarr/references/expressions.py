"""Expression trees that represent compiled templates.

An expression is a constant, a `DimensionValue` or a `Call`. It is evaluated for given values of the
dimensions of a generator. The result is the value that jinja2 would return, but the size of every
result is limited. Expressions can be pickled.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from xr_nczarr.errors import LimitError, NczarrError, ReferenceSetError, quote, reason_of

MAX_TEXT = 1 << 16
"""Maximum number of characters in a template and in its rendered text."""

Value = Any
"""The value of an expression: an int, float, bool or str."""

Values = Mapping[str, Value]
Computed = Callable[[Values], Value]

_MAX_INTEGER = 1 << 127
_NUMBERS = (int, float)
_NO_NUMBER = "an operand in the template is not a number"
_FAILURES = (TypeError, ValueError, ArithmeticError)
# A format may contain %%, and %d, %s and %x with a width of at most 64.
_FORMAT = re.compile(r"(?:[^%]++|%(?:%|0*(?:[1-5]?[0-9]|6[0-4])?[dsx]))*+")


class DimensionValue(NamedTuple):
    """An expression that evaluates to the value given for the dimension `name`."""

    name: str


class Call(NamedTuple):
    """An expression that calls a function with the values of other expressions."""

    function: Callable[..., Value]
    parts: tuple[Any, ...]


Expression = DimensionValue | Call | Value


def compiled(expression: Expression) -> Computed:
    """Compile an expression into a function of the dimension values.

    The function takes a mapping of dimension names to values. It raises a ReferenceSetError if the
    expression cannot be evaluated, for example because it divides by zero or adds a string to a
    number. It raises a LimitError if a computed value is too large.
    """
    compute = _compiled(expression)

    def checked(values: Values) -> Value:
        try:
            return compute(values)
        except _FAILURES as error:
            if isinstance(error, NczarrError):
                raise
            raise ReferenceSetError(
                f"a template cannot be evaluated ({reason_of(error)})"
            ) from error

    return checked


def _compiled(expression: Expression) -> Computed:
    if type(expression) is DimensionValue:
        return operator.itemgetter(expression.name)
    if type(expression) is not Call:
        return lambda _: expression
    function = expression.function
    parts = [_compiled(part) for part in expression.parts]
    if function in (choose, both, either):
        lazy: Computed = function(*parts)
        return lazy
    if len(parts) != 2:
        return lambda values: _bounded(function(*[part(values) for part in parts]))
    left, right = parts

    def compute(values: Values) -> Value:  # faster than the general case above
        result = function(left(values), right(values))
        is_small = type(result) is int and -_MAX_INTEGER < result < _MAX_INTEGER
        return result if is_small else _bounded(result)

    return compute


def _bounded(result: Value) -> Value:
    if isinstance(result, int):
        if not -_MAX_INTEGER < result < _MAX_INTEGER:
            raise LimitError("evaluating a template produced an integer of more than 127 bits")
    elif isinstance(result, str) and len(result) > MAX_TEXT:
        raise LimitError(f"a template produces more than {MAX_TEXT:,} characters")
    return result


def is_constant(expression: Expression) -> bool:
    """Return whether the value of an expression does not depend on any dimension."""
    return type(expression) not in (DimensionValue, Call)


def dimensions_in(expression: Expression) -> frozenset[str]:
    """Return the names of the dimensions on which an expression depends."""
    if isinstance(expression, DimensionValue):
        return frozenset({expression.name})
    parts = expression.parts if isinstance(expression, Call) else ()
    return frozenset().union(*map(dimensions_in, parts))


def node_count(expression: Expression) -> int:
    """Return the number of nodes in an expression, as an estimate of its evaluation cost.

    A long string counts as several nodes.
    """
    if isinstance(expression, str):
        return 1 + len(expression) // 16
    return 1 + sum(map(node_count, expression.parts if isinstance(expression, Call) else ()))


def call(function: Callable[..., Value], *parts: Expression) -> Expression:
    """Return an expression that calls `function` with the values of `parts`.

    If all `parts` are constant, call the function immediately and return its result instead.
    """
    result = Call(function, parts)
    if all(map(is_constant, parts)):
        try:
            return _compiled(result)({})
        except (NczarrError, *_FAILURES):
            # The failing call may be in a branch that is never taken. Keep the call, so that an
            # error is raised only if that branch is evaluated.
            return result
    return result


def concatenation(parts: Iterable[Expression]) -> Expression:
    """Return an expression that concatenates `parts`.

    Nested concatenations are replaced with their operands, and adjacent constants are merged. If
    this leaves a single operand, the operand itself is returned.
    """
    pieces: list[Expression] = []
    for constant, run in itertools.groupby(operands(Call(join, tuple(parts))), is_constant):
        group = list(run)
        pieces += [call(join, *group)] if constant and len(group) > 1 else group
    return pieces[0] if len(pieces) == 1 else call(join, *pieces)


def operands(expression: Expression) -> Iterator[Expression]:
    """Yield the operands of a concatenation, except empty strings.

    Nested concatenations are flattened. Any other expression counts as a concatenation with a
    single operand.
    """
    if isinstance(expression, Call) and expression.function is join:
        for part in expression.parts:
            yield from operands(part)
    elif expression != "":
        yield expression


def choose(test: Computed, if_true: Computed, if_false: Computed) -> Computed:
    """Return a function that evaluates either `if_true` or `if_false`, depending on `test`."""
    return lambda values: if_true(values) if test(values) else if_false(values)


def both(left: Computed, right: Computed) -> Computed:
    """Return a function that computes ``left and right``, with short-circuit evaluation."""
    return lambda values: left(values) and right(values)


def either(left: Computed, right: Computed) -> Computed:
    """Return a function that computes ``left or right``, with short-circuit evaluation."""
    return lambda values: left(values) or right(values)


def join(*values: Value) -> str:
    """Convert the values to strings, and concatenate them."""
    return "".join(map(str, values))


def product(left: Value, right: Value) -> Value:
    """Return the product of two numbers.

    Raises
    ------
    TypeError
        If an operand is not a number.
    """
    if isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS):
        return left * right
    raise TypeError(_NO_NUMBER)


def power(base: Value, exponent: Value) -> Value:
    """Return ``base ** exponent``.

    Raises
    ------
    TypeError
        If the base is not an integer, or the exponent is not a non-negative integer.
    LimitError
        If the result would be too large.
    """
    if not (isinstance(base, int) and isinstance(exponent, int) and exponent >= 0):
        raise TypeError(
            "a power in a template requires an integer base and a non-negative integer exponent"
        )
    if base.bit_length() * exponent > 256:
        raise LimitError("evaluating a template produced an integer of more than 127 bits")
    return base**exponent


def remainder(left: Value, right: Value) -> Value:
    """Return ``left % right``: a remainder, or formatted text if `left` is a string."""
    if isinstance(left, str):
        return formatted(left, right)
    if isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS):
        return left % right
    raise TypeError(_NO_NUMBER)


def truncated(value: Value) -> int:
    """Truncate a number to an integer.

    Raises
    ------
    TypeError
        If `value` is not a number.
    """
    if isinstance(value, _NUMBERS):
        return int(value)
    raise TypeError(_NO_NUMBER)


def rounded(value: Value, precision: Value = 0) -> Value:
    """Round a number to `precision` decimal places (at most 15)."""
    if type(precision) is not int or not 0 <= precision <= 15:
        raise TypeError(
            f"the precision must be an integer from 0 to 15, not {quote(repr(precision))}"
        )
    return round(value, precision)


def formatted(pattern: Value, *values: Value) -> str:
    """Replace each ``%d``, ``%s`` and ``%x`` in a pattern with the next value, as Python does.

    A width, such as 4 in ``%04d``, may be at most 64.
    """
    pattern = str(pattern)
    if not _FORMAT.fullmatch(pattern):
        raise TypeError(
            f"the format {quote(pattern)} is not supported; use only %d, %s, %x (with a width of "
            "at most 64) and %%"
        )
    return str(pattern % values)
