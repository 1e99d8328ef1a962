"""The rules on English in CONTRIBUTING.md that a program can check."""

import ast
import functools
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
VAGUE_BEGINNING = re.compile(r"(Give|Tell|Say)s?\b")
NEEDS_ITS_NEIGHBORS = re.compile(r"test_(nor|neither|what|who|so|and|but|it)_")
VAGUE_LIMIT = re.compile(
    r"_?(MOST|LEAST|LONGEST|SHORTEST|LARGEST|FEWEST|SMALLEST|DEEPEST|WIDEST)_|_?AT_ONCE\b"
)


@functools.cache
def nodes_of(folder):
    """Return the path and the node of every node in the Python files of a folder."""
    files = sorted((ROOT / folder).rglob("*.py"))
    trees = [(str(file.relative_to(ROOT)), ast.parse(file.read_text("utf-8"))) for file in files]
    return [(path, node) for path, tree in trees for node in ast.walk(tree)]


def places(kinds, is_avoided, *folders):
    """Return the path and line of each node of these kinds that should be avoided."""
    return [
        f"{path}:{getattr(node, 'lineno', 1)}"
        for folder in folders
        for path, node in nodes_of(folder)
        if isinstance(node, kinds) and is_avoided(node)
    ]


def test_docstrings_do_not_begin_with_vague_verb():
    documented = (ast.Module, ast.ClassDef, *FUNCTIONS)
    assert not places(
        documented,
        lambda node: VAGUE_BEGINNING.match(ast.get_docstring(node) or ""),
        *("xr_nczarr", "tests", "docs"),
    )


def test_test_names_do_not_refer_to_neighboring_tests():
    assert not places(FUNCTIONS, lambda node: NEEDS_ITS_NEIGHBORS.match(node.name), "tests")


def test_limit_names_begin_with_max_or_min():
    assert not places(
        ast.Name,
        lambda node: isinstance(node.ctx, ast.Store) and VAGUE_LIMIT.match(node.id),
        *("xr_nczarr", "tests"),
    )
