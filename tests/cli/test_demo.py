"""``nczarr demo``, with and without netcdf-c."""

import importlib.util

import pytest

from xr_nczarr.cli import demo
from xr_nczarr.cli.main import main


@pytest.mark.parametrize("netcdf_is_installed", [True, False])
def test_demo_prints_dataset_and_means(netcdf_is_installed, monkeypatch, capsys):
    if not netcdf_is_installed:
        monkeypatch.setattr(demo, "find_spec", lambda name: None)
    else:
        assert importlib.util.find_spec("netCDF4")
    assert main(["demo"]) == 0
    printed = capsys.readouterr().out
    assert ("netCDF-C wrote" in printed) == netcdf_is_installed
    assert "2026-01-01  277.500 K" in printed
    assert "2026-01-07  279.000 K" in printed
