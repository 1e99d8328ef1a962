"""Docstrings begin with the verb that says what happens, as CONTRIBUTING.md asks."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "xr_nczarr"
UNREVISED = ("hierarchy",)
"""Packages whose docstrings still begin with the verbs below; revise them and shorten this list."""
AVOIDED = re.compile(r"(Give|Gives|Tell|Tells)\b")


def avoided_beginnings(package):
    """Return the place of each docstring in a package or module that begins with such a verb."""
    files = sorted(package.rglob("*.py")) if package.is_dir() else [package]
    nodes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        f"{file.relative_to(PACKAGE)}:{getattr(node, 'lineno', 1)}"
        for file in files
        for node in ast.walk(ast.parse(file.read_text("utf-8")))
        if isinstance(node, nodes) and AVOIDED.match(ast.get_docstring(node) or "")
    ]


PARTS = {
    path.stem: path
    for path in sorted(PACKAGE.iterdir())
    if path.suffix == ".py" or (path / "__init__.py").exists()
}


@pytest.mark.parametrize("name", sorted(PARTS.keys() - set(UNREVISED)))
def test_docstrings_say_what_a_function_returns_or_does(name):
    assert avoided_beginnings(PARTS[name]) == []
