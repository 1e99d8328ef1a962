"""Marks that xarray's own suites bear."""


def pytest_configure(config):
    for mark in ("flaky", "network", "skip_if_param", "skip_with_dask_array", "skip_with_pint"):
        config.addinivalue_line("markers", f"{mark}: of xarray's suites")
