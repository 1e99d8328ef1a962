"""Fixtures of the tests of writing."""

import pytest


@pytest.fixture
def path(tmp_path):
    """Return the path of a store that does not exist yet."""
    return str(tmp_path / "store")
