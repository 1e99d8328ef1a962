"""Render templates of trusted sets in jinja2's immutable sandbox.

Most of jinja2's global functions are not available, and neither are the filters that pad or format
text. The sizes of results, powers and products are limited, but time and memory are not. Nested
loops can therefore run forever, and repeated concatenation can exhaust memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from xr_nczarr.errors import LimitError, ReferenceSetError, quote, reason_of
from xr_nczarr.locks import cached_property
from xr_nczarr.references.entries import PickledByFields
from xr_nczarr.references.expressions import MAX_TEXT, power, product, remainder


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"**", "*", "%"})

    def __init__(self) -> None:
        super().__init__(undefined=jinja2.StrictUndefined)
        self.binop_table |= {"**": power, "*": product, "%": remainder}
        self.globals = {"range": self.globals["range"], "dict": dict}
        for padding in ("center", "format", "indent", "wordwrap"):
            del self.filters[padding]


class _NamedTemplate:
    """A template that other templates can print (``{{name}}``) or call (``{{name(x=1)}}``)."""

    def __init__(self, template: jinja2.Template, context: dict[str, Any]) -> None:
        self._template = template
        self._context = context

    def __call__(self, **arguments: Any) -> str:
        return _bounded(self._template, {**self._context, **arguments})

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
        return _bounded(template, context)

    @cached_property
    def _compiled(self) -> tuple[jinja2.Template, dict[str, jinja2.Template]]:
        environment = _Environment()
        try:
            named = {name: environment.from_string(text) for name, text in self.templates.items()}
            return environment.from_string(self.text), named
        except (jinja2.TemplateError, RecursionError, ValueError) as error:
            raise ReferenceSetError(
                f"the template {quote(self.text)} is not valid jinja2 ({reason_of(error)})"
            ) from error


def _bounded(template: jinja2.Template, context: dict[str, Any]) -> str:
    pieces: list[str] = []
    characters = 0
    try:
        for piece in template.generate(context):
            characters += len(piece)
            if characters > MAX_TEXT:
                raise LimitError(f"a template produces more than {MAX_TEXT:,} characters")
            pieces.append(piece)
    except (jinja2.TemplateError, RecursionError, TypeError, ArithmeticError) as error:
        raise ReferenceSetError(f"a template cannot be rendered ({reason_of(error)})") from error
    return "".join(pieces)
