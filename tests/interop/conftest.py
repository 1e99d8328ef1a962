"""Support for the marks in xarray's test suites."""

import pytest


def pytest_configure(config):
    for mark in ("flaky", "network", "skip_if_param", "skip_with_dask_array", "skip_with_pint"):
        config.addinivalue_line("markers", f"{mark}: of xarray's suites")


def pytest_runtest_setup(item):
    """Skip the same tests as xarray's conftest, which is not installed with xarray."""
    for mark in item.iter_markers("skip_if_param"):
        words = dict(mark.kwargs)
        reason, condition = words.pop("reason"), words.pop("condition", True)
        original = getattr(item, "callspec", None)
        if condition and original and words.items() <= original.params.items():
            pytest.skip(reason)
