"""Compile the templates of a reference set.

By default, templates may use only a safe subset of jinja2's syntax: names, constants, arithmetic,
comparisons, conditional expressions and some filters. A template may also refer to another template
by its name, or call it with arguments. The other template is then inlined. Each template is parsed
with jinja2, and compiled only once.

The templates of trusted sets may use more. If a template is outside the safe subset, it is rendered
in jinja2's immutable sandbox. Most of jinja2's global functions are not available there, and
neither are the filters that pad or format text. The sizes of results, powers and products are
limited, but time and memory are not. Nested loops can therefore run forever, and repeated
concatenation can exhaust memory.

jinja2 is imported only when a template needs it. Most sets have no templates, and importing jinja2
takes longer than opening such a set.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from xr_nczarr.errors import LimitError, ReferenceSetError, RefusedError, quote, reason_of
from xr_nczarr.locks import cached_property
from xr_nczarr.model import DEFAULT_LIMITS
from xr_nczarr.references import expressions
from xr_nczarr.references.entries import PickledByFields
from xr_nczarr.references.expressions import (
    MAX_TEXT,
    Call,
    DimensionValue,
    Expression,
    call,
    compiled,
    concatenation,
    join,
)

Language = Literal["safe", "jinja2"]

_MAX_DEPTH = 64
_MAX_NODES = 10_000
_PARSING_COST = 64
"""Cost of parsing a template. The unit is the cost of a reference without templates."""
_ORDINARY_TEXT = 128  # rendering this many characters costs as much as one reference
_MIN_BUDGET = 1 << 14  # replaces a smaller `max_cost`; enough for a few hundred templates
_NAME = re.compile(r"\{\{ ?([a-z_A-Z][a-z_A-Z0-9]*) ?\}\}")
_OPERATIONS: dict[str, Callable[..., Any]] = {
    "Neg": operator.neg,
    "Pos": operator.pos,
    "Not": operator.not_,
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": expressions.product,
    "Div": operator.truediv,
    "FloorDiv": operator.floordiv,
    "Mod": expressions.remainder,
    "Pow": expressions.power,
    "And": expressions.both,
    "Or": expressions.either,
    "CondExpr": expressions.choose,
}
"""Functions for the types of syntax nodes. Each function takes all fields of a node."""
_COMPARISONS = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
}
_FILTERS: dict[str, tuple[Callable[..., Any], int]] = {
    "abs": (abs, 0),
    "format": (expressions.formatted, 8),
    "int": (expressions.truncated, 0),
    "round": (expressions.rounded, 1),
    "string": (str, 0),
}
"""Functions for the filters, each with its maximum number of arguments.

The filtered value does not count as an argument.
"""


class _Scope(NamedTuple):
    """The names that an expression may use, and limits on its size."""

    # An argument of a template call is its syntax node, and the scope in which to evaluate it.
    names: Mapping[str, DimensionValue | tuple[Any, _Scope]]
    budget: Iterator[int]  # one item for each syntax node that the template may still contain
    within: tuple[str, ...] = ()  # the templates that are being inlined, outermost first
    depth: int = 0  # nesting depth of the expression


class Templates:
    """The named templates of one reference set.

    A name in a template is looked up among the arguments of the template call, then among the
    dimensions, and then among the other templates.

    Parameters
    ----------
    texts
        Mapping from the name of each template to its source.
    language
        ``"safe"`` allows only the subset of jinja2 that the module docstring describes.
        ``"jinja2"`` allows almost everything that jinja2's immutable sandbox allows.
    max_cost
        Maximum total cost of parsing and rendering templates. The unit is the cost of a reference
        without templates.
    """

    def __init__(
        self,
        texts: Mapping[str, str],
        *,
        language: Language = "safe",
        max_cost: int = DEFAULT_LIMITS.max_references,
    ) -> None:
        self._texts = texts
        self._language = language
        self._remaining = max(max_cost, _MIN_BUDGET)
        self._bodies: dict[str, list[Any]] = {}

    def compile(self, text: str, dimensions: Iterable[str] = ()) -> Expression:
        """Compile a template into an expression whose value, as a string, is the rendered text.

        `dimensions` contains the names of the dimensions that the template may use.

        Raises
        ------
        RefusedError
            If the template uses syntax outside the safe subset, and the language is ``"safe"``.
        ReferenceSetError
            If the template is not valid jinja2, a name is neither a dimension nor a template, or a
            template refers to itself.
        LimitError
            If the templates are too long or complex, or if the total cost exceeds `max_cost`.
        """
        variables = {name: DimensionValue(name) for name in dimensions}
        self._spend(0 if _is_plain(text) else _PARSING_COST)
        try:
            return concatenation(self._parts(text, _Scope(variables, iter(range(_MAX_NODES)))))
        except RefusedError:
            if self._language != "jinja2":
                raise
        sandboxed = Sandboxed(text, dict(self._texts), tuple(variables))
        return Call(sandboxed, tuple(variables.values()))

    def render(self, text: str) -> str:
        """Render a template that does not depend on any dimension."""
        # Handle simple templates without parsing them. A set may have as many URLs as references,
        # and most of them contain at most one plain name.
        if _is_plain(text):
            return text
        plain = _NAME.sub(lambda match: self._texts.get(match[1], match[0]), text)
        if not _is_plain(plain):
            plain = str(compiled(self.compile(text))({}))
        self._spend(len(plain) // _ORDINARY_TEXT)
        return plain

    def _spend(self, references: int) -> None:
        self._remaining -= references
        if self._remaining < 0:
            raise LimitError(
                "the templates take too long to parse, or produce too much text",
                remedy="If you trust the set, pass limits=Limits(max_references=…)",
            )

    def _parts(self, text: str, scope: _Scope) -> list[Expression]:
        if _is_plain(text):
            return [text]
        body = self._bodies.get(text) or _parse(text)
        if scope.within:  # keep the nodes, because a named template may be used again
            self._bodies[text] = body
        return [self._expression(node, scope) for node in body]

    def _expression(self, node: Any, scope: _Scope) -> Expression:
        """Compile a node of jinja2's syntax tree, including its operands, into one expression."""
        if scope.depth > _MAX_DEPTH or next(scope.budget, None) is None:
            raise LimitError(
                f"a template is nested more than {_MAX_DEPTH} levels deep, or has more than "
                f"{_MAX_NODES:,} terms"
            )
        scope = scope._replace(depth=scope.depth + 1)
        kind = type(node).__name__
        if kind == "TemplateData":
            return node.data
        if kind == "Const" and node.value is not None:
            return node.value
        if kind == "Name":
            return self._named(node.name, scope)
        if kind == "Call" and _is_template_call(node):
            arguments = {argument.key: (argument.value, scope) for argument in node.kwargs}
            return self._template(node.node.name, scope, arguments)
        function, operands = _operation(node)
        return call(function, *[self._expression(operand, scope) for operand in operands])

    def _named(self, name: str, scope: _Scope) -> Expression:
        bound = scope.names.get(name)
        if bound is None:
            return self._template(name, scope, {})
        if isinstance(bound, DimensionValue):
            return bound
        argument, outer = bound
        return self._expression(argument, outer._replace(depth=scope.depth))

    def _template(
        self, name: str, scope: _Scope, arguments: dict[str, tuple[Any, _Scope]]
    ) -> Expression:
        """Compile the template `name` for use in `scope`, with `arguments` as its parameters."""
        if name not in self._texts:
            raise ReferenceSetError(
                f"a template uses {quote(name)}, which is neither a dimension nor a template"
            )
        if name in scope.within:
            raise ReferenceSetError(f"the template {quote(name)} refers to itself")
        names = {**scope.names, **arguments}
        inside = scope._replace(names=names, within=(*scope.within, name))
        return call(join, *self._parts(self._texts[name], inside))


def _is_plain(text: str) -> bool:
    # Text with line breaks is not plain, because jinja2 normalizes them, and removes a final one.
    return "{" not in text and "\n" not in text and "\r" not in text


def _parse(text: str) -> list[Any]:
    """Parse a template, and return the jinja2 syntax nodes that produce its output, in order."""
    if len(text) > MAX_TEXT:
        raise LimitError(f"a template is longer than {MAX_TEXT:,} characters")
    import jinja2

    try:
        body = jinja2.Environment().parse(text).body  # noqa: S701  (makes no HTML)
    except (jinja2.TemplateError, RecursionError, ValueError) as error:
        raise ReferenceSetError(
            f"the template {quote(text)} is not valid jinja2 ({quote(error)})"
        ) from error
    nodes: list[Any] = []
    for statement in body:
        if type(statement).__name__ != "Output":
            raise _refused(statement)
        nodes += statement.nodes  # type: ignore[attr-defined]
    return nodes


def _operation(node: Any) -> tuple[Callable[..., Any], list[Any]]:
    """Return the function that a syntax node represents, together with its operand nodes.

    Raise RefusedError if the node is outside the safe subset of jinja2.
    """
    kind = type(node).__name__
    if kind in _OPERATIONS:
        operands = [getattr(node, field) for field in node.fields]
        if None not in operands:
            return _OPERATIONS[kind], operands
    elif kind == "Concat":
        return join, node.nodes
    elif kind == "Compare" and len(node.ops) == 1 and node.ops[0].op in _COMPARISONS:
        return _COMPARISONS[node.ops[0].op], [node.expr, node.ops[0].expr]
    elif kind == "Filter" and node.name in _FILTERS and not (node.kwargs or _unpacks(node)):
        function, max_arguments = _FILTERS[node.name]
        if len(node.args) <= max_arguments:
            return function, [node.node, *node.args]
    raise _refused(node)


def _is_template_call(node: Any) -> bool:
    return type(node.node).__name__ == "Name" and not (node.args or _unpacks(node))


def _unpacks(node: Any) -> bool:
    return node.dyn_args is not None or node.dyn_kwargs is not None


def _refused(node: Any) -> RefusedError:
    return RefusedError(
        f"a template contains a jinja2 node of type {quote(type(node).__name__)}, which is outside "
        "the safe subset of jinja2",
        remedy='If you trust the set, pass storage_options={"templates": "jinja2"} to open it, or '
        'templates="jinja2" to expand it',
    )


class _NamedTemplate:
    """A template that other templates can print (``{{name}}``) or call (``{{name(x=1)}}``)."""

    def __init__(self, template: Any, context: dict[str, Any]) -> None:
        self._template = template
        self._context = context

    def __call__(self, **arguments: Any) -> str:
        return _rendered(self._template, {**self._context, **arguments})

    def __str__(self) -> str:
        return self()


@dataclass(frozen=True)
class Sandboxed(PickledByFields):
    """A picklable function that renders a jinja2 template for given dimension values.

    `text` is the source of the template, which may refer to other templates. `templates` maps the
    names of these other templates to their sources.
    """

    text: str
    templates: Mapping[str, str]
    dimensions: tuple[str, ...]

    def __call__(self, *values: Any) -> str:
        """Render the template with `values`, which contains one value per dimension."""
        template, named = self._compiled
        context: dict[str, Any] = {}
        context |= {name: _NamedTemplate(source, context) for name, source in named.items()}
        context |= zip(self.dimensions, values, strict=True)
        return _rendered(template, context)

    @cached_property
    def _compiled(self) -> tuple[Any, dict[str, Any]]:
        """The compiled jinja2 template, and a dict of the other compiled templates by name."""
        import jinja2
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined)
        environment.intercepted_binops = frozenset({"**", "*", "%"})
        environment.binop_table |= {
            "**": expressions.power,
            "*": expressions.product,
            "%": expressions.remainder,
        }
        environment.globals = {"range": environment.globals["range"], "dict": dict}
        for padding in ("center", "format", "indent", "wordwrap"):
            del environment.filters[padding]
        try:
            named = {name: environment.from_string(text) for name, text in self.templates.items()}
            return environment.from_string(self.text), named
        except (jinja2.TemplateError, RecursionError, ValueError) as error:
            raise ReferenceSetError(
                f"the template {quote(self.text)} is not valid jinja2 ({reason_of(error)})"
            ) from error


def _rendered(template: Any, context: dict[str, Any]) -> str:
    from jinja2 import TemplateError

    pieces: list[str] = []
    characters = 0
    try:
        for piece in template.generate(context):
            characters += len(piece)
            if characters > MAX_TEXT:
                raise LimitError(f"a template produces more than {MAX_TEXT:,} characters")
            pieces.append(piece)
    except (TemplateError, RecursionError, TypeError, ArithmeticError) as error:
        raise ReferenceSetError(f"a template cannot be rendered ({reason_of(error)})") from error
    return "".join(pieces)
