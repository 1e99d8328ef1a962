"""The table of all error messages, which the documentation generates from the code."""

import ast
import importlib.util
from pathlib import Path

import pytest

FILE = Path(__file__).parent.parent / "docs/messages.py"


@pytest.fixture(scope="module")
def table():
    spec = importlib.util.spec_from_file_location("messages", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def rows(table):
    return [*table.messages()]


def test_message_table_lists_every_error_message(table, rows):
    code = [path.read_text() for path in table.PACKAGE.rglob("*.py")]
    made = [node for text in code for node in ast.walk(ast.parse(text)) if table.is_error(node)]
    assert len(made) == len(rows) > 300


def test_message_table_uses_named_placeholders(rows):
    problems = {(layer, name): set() for layer, name, *_ in rows}
    for layer, name, problem, _ in rows:
        problems[layer, name].add(problem)
    moved = (
        "this object cannot be reopened in this process, because it was not opened from a path or "
        "URL"
    )
    assert moved in problems["accessor", "NotFoundError"]
    sizes = "the stored data is {size} bytes long; expected {expected} ({chunk})"
    assert sizes in problems["codecs", "ChunkError"]
    assert "unknown option {name}" in problems["cli", "UsageError"]
    shapes = "dask block has shape {block.shape}, but its metadata says {shape}"
    assert shapes in problems["writing", "ConflictError"]


def test_messages_page_has_table_for_each_layer(table, rows):
    page = table.page()
    assert {f"## {layer}" for layer, *_ in rows} <= {*page.splitlines()}
    assert all(line.count(" | ") >= 2 for line in page.splitlines() if line.startswith("| ``"))
