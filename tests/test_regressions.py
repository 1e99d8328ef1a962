"""Each row of regressions.md has a test, and each number above a test has a row."""

import re
from pathlib import Path

TESTS = Path(__file__).parent


def test_regression_table_matches_numbered_tests():
    tested = {
        number
        for path in TESTS.rglob("test_*.py")
        for numbers in re.findall(r"^ *# Regressions? (D[D0-9, ]+)$", path.read_text(), re.M)
        for number in numbers.split(", ")
    }
    table = (TESTS / "regressions.md").read_text()
    first_cells = re.findall(r"^\| (D[D0-9, ]+) \|", table, re.M)
    listed = {number for cell in first_cells for number in cell.split(", ")}
    assert tested == listed
