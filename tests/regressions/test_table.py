"""The table in README.md has a row for each number in a test name, and each row has a test."""

import re
from pathlib import Path

TESTS = Path(__file__).parent.parent


def test_every_number_in_the_table_has_a_test_and_vice_versa():
    named = {
        number
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"def test_((?:d[0-9]+_)+)", path.read_text())
        for number in re.findall("d[0-9]+", name)
    }
    first_cells = re.findall(
        r"^\| (D[D0-9, ]+) \|", Path(__file__).with_name("README.md").read_text(), re.M
    )
    listed = {number.lower() for cell in first_cells for number in cell.split(", ")}
    assert named == listed
