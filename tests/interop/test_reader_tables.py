"""The tables in docs/reference/readers.md match the measured results."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interop.readers import PAGE, READERS, Stores, matrix, section, sections, write_all

pytestmark = pytest.mark.filterwarnings("ignore")  # warnings from the readers


@pytest.fixture(scope="module")
def stores() -> Iterator[Stores]:
    with tempfile.TemporaryDirectory() as folder:
        yield write_all(Path(folder))


@pytest.mark.parametrize("reader", READERS)
def test_reader_tables_match_measured_results(reader: str, stores: Stores) -> None:
    result = READERS[reader][1]()
    if result is None:
        pytest.skip(f"{reader} is not installed")
    page = PAGE.read_text()
    if f"## {reader} {result}\n" not in page:
        pytest.skip(f"{reader} {result} is not the version of the table")
    assert section(reader, stores) in page


def test_overview_on_reader_page_matches_detailed_tables() -> None:
    page = PAGE.read_text()
    assert matrix(sections(page)) in page
