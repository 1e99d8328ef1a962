"""Print the table of all error messages, read from the code: ``python docs/messages.py``."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "xr_nczarr"
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
INTERNAL = {"NoEquivalentError"}  # its message becomes part of another error or of a log message
HEAD = """# Error messages

This page, generated from the code of the package, lists all error messages, except those taken
entirely from another error. Braces mark values inserted into a message. For the exception classes,
see [](errors.md).

If a codec cannot decode a chunk, and the table contains no remedy for this error, the remedy is:
*The chunk is damaged or truncated; rewrite it*.
"""


def messages() -> Iterator[tuple[str, str, str, str]]:
    """Yield the layer, class, problem and remedy of each error that the package raises."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
    constants = {
        name: text
        for tree in trees.values()
        for node in tree.body
        for name, text in assigned(node)
        if name.isupper()
    }
    for path, tree in trees.items():
        layer = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        own = {name: text for node in tree.body for name, text in assigned(node) if name.isupper()}
        calls: dict[ast.Call, dict[str, str]] = {}  # inner functions override outer ones
        for holder in ast.walk(tree):
            if isinstance(holder, ast.Module | FUNCTIONS):
                outer = {**constants, **own}
                made = [node for node in ast.walk(holder) if is_error(node)]
                calls |= {node: {**outer, **dict(assigned(holder, node.lineno))} for node in made}
        for call, names in calls.items():
            remedies = [item.value for item in call.keywords if item.arg == "remedy"]
            remedy = text_of(remedies[0], names) if remedies else ""
            yield layer, ast.unparse(call.func), text_of(call.args[0], names), remedy


def is_error(node: ast.AST) -> bool:
    """Return whether a node creates an error with a message."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id.endswith("Error")
        and not node.func.id.startswith("_")
        and node.func.id not in INTERNAL
        and bool(node.args)
    )


def assigned(holder: ast.AST, end: int = sys.maxsize) -> Iterator[tuple[str, str]]:
    """Yield each name to which text is assigned before line `end`, together with the text.

    Assignments in functions inside `holder` are left out.
    """
    for node in ast.iter_child_nodes(holder):
        if not isinstance(node, FUNCTIONS) and getattr(node, "lineno", 0) < end:
            yield from assigned(node, end)
    if isinstance(holder, ast.Assign) and isinstance(holder.value, ast.Constant | ast.JoinedStr):
        for target in holder.targets:
            if isinstance(target, ast.Name):
                yield target.id, text_of(holder.value, {})


def text_of(node: ast.expr, names: dict[str, str]) -> str:
    """Return the text of an expression, with the names of inserted values in braces."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        shown = [inserted(part) for part in node.values]
        twice = {name for name in shown if shown.count(name) > 1}
        texts = [text_of(part, names) for part in node.values]
        return "".join(
            f"{{{ast.unparse(part.value)}}}"
            if name in twice and isinstance(getattr(part, "value", None), ast.Attribute)
            else text
            for part, name, text in zip(node.values, shown, texts, strict=True)
        )
    if isinstance(node, ast.FormattedValue):
        return f"{{{inserted(node.value)}}}"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return text_of(node.left, names) + text_of(node.right, names)
    if isinstance(node, ast.IfExp):
        return f"{text_of(node.body, names)} / {text_of(node.orelse, names)}".strip(" /")
    if isinstance(node, ast.Name):
        return names.get(node.id, f"{{{node.id}}}")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args:
        if node.func.id == "str":
            return text_of(node.args[0], names)
        if node.func.id == "unknown":
            return f"unknown {text_of(node.args[0], names)} {{{inserted(node.args[1])}}}"
    return f"{{{inserted(node)}}}"


def inserted(node: ast.expr) -> str:
    """Return the name of an inserted value, without the functions that format it."""
    if isinstance(node, ast.FormattedValue):
        return inserted(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "len":
        return ast.unparse(node)
    if isinstance(node, ast.Call):
        is_subject = node.args and not isinstance(node.args[0], ast.Constant)
        return inserted(node.args[0] if is_subject else node.func)
    if isinstance(node, ast.Attribute):
        return "type" if node.attr == "__name__" else node.attr
    if isinstance(node, ast.Subscript):
        is_key = isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
        return inserted(node.slice if is_key else node.value)
    if isinstance(node, ast.GeneratorExp):
        return inserted(node.elt)
    if isinstance(node, ast.IfExp | ast.Constant):
        return text_of(node, {})
    return node.id.strip("_") if isinstance(node, ast.Name) else "…"


def page() -> str:
    """Return the page, with a table for each layer."""
    rows: dict[str, set[tuple[str, str, str]]] = {}
    for layer, name, problem, remedy in messages():
        if remedy or not re.fullmatch(r"\{\w+\}", problem):
            rows.setdefault(layer, set()).add((name, problem, remedy))
    parts = [HEAD]
    for layer, items in rows.items():
        parts.append(f"\n## {layer}\n\n| Class | Message | What to do |\n| --- | --- | --- |\n")
        for item in sorted(items):
            cells = (cell.replace("|", "\\|").replace("\n", " ") for cell in item)
            parts.append(f"| {' | '.join(f'`` {cell} ``' if cell else '' for cell in cells)} |\n")
    return "".join(parts)


if __name__ == "__main__":
    print(page(), end="")
