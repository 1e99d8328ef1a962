"""Marks that xarray's own suites bear."""

import pytest


def pytest_configure(config):
    for mark in ("flaky", "network", "skip_if_param", "skip_with_dask_array", "skip_with_pint"):
        config.addinivalue_line("markers", f"{mark}: of xarray's suites")


def pytest_runtest_setup(item):
    """Leave out what xarray's own conftest, which is not installed, leaves out."""
    for mark in item.iter_markers("skip_if_param"):
        words = dict(mark.kwargs)
        reason, condition = words.pop("reason"), words.pop("condition", True)
        given = getattr(item, "callspec", None)
        if condition and given and words.items() <= given.params.items():
            pytest.skip(reason)
