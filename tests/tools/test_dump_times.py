"""`dump` prints the same as Debian's ncdump, with dates as text or with only coordinates."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.stores import has_ncgen
from xr_nczarr.cli.main import main

CDL = """
netcdf t {
dimensions: time = UNLIMITED ; x = 2 ; nv = 2 ;
variables:
  double time(time) ; time:units = "hours since 2000-01-01 00:00" ; time:bounds = "tb" ;
  double tb(time, nv) ;
  int noleap(x) ; noleap:units = "days since 1999-12-31 06:30:15" ; noleap:calendar = "noleap" ;
  float filled(x) ; filled:units = "days since 2000-01-01" ; filled:_FillValue = -1.f ;
  double whole(x) ; whole:units = "days since 2000-02-28" ; whole:calendar = "360_day" ;
  double early(x) ; early:units = "days since 1500-01-01" ;
     early:calendar = "proleptic_gregorian" ; early:valid_range = 0., 20. ;
  double reform(x) ; reform:units = "days since 1582-10-01" ;
  short v(time, x) ; v:units = "K" ;
  double x(x) ;
data:
 time = 0, 6, 12.5, _ ; tb = 0, 6, 6, 12, 12, 13, 13, 14 ;
 noleap = 60, 61 ; filled = 0.25, _ ; whole = 2, 3 ; early = 0, 1 ; reform = 0, 20 ;
 v = 1, 2, 3, 4, 5, 6, 7, 8 ; x = 1, 2 ;
group: g {
  variables: double time(time) ; time:units = "days since 2000-01-01" ; float w(x) ;
  data: time = 1, 2, 3, 4 ; w = 1, 2 ;
} }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("times")
    (folder / "t.cdl").write_text(CDL)
    subprocess.run(["ncgen", "-4", "-o", folder / "t.nc", folder / "t.cdl"], check=True, timeout=60)
    xr_nczarr.copy(folder / "t.nc", folder / "t")
    return folder


@pytest.mark.skipif(not has_ncgen, reason="Debian's netcdf-bin is not installed")
@pytest.mark.parametrize("flags", ["-t", "-c", "-t -c", "-t -h", "-t -v tb", "-t -v noleap,v"])
def test_time_and_coordinate_options_work_as_in_ncdump(
    flags: str, folder: Path, capfdbinary
) -> None:
    words = flags.split()
    command = ["ncdump", *words, folder / "t.nc"]
    expected = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    capfdbinary.readouterr()
    assert main(["dump", *words, str(folder / "t")]) == 0
    assert capfdbinary.readouterr().out == expected


def test_dump_shows_numbers_if_time_units_are_undecodable(tmp_path: Path) -> None:
    units = ["months since 2000-01-01", "days since the flood", "days"]
    variables = {f"v{n}": ("x", [1.0, 2.0], {"units": text}) for n, text in enumerate(units)}
    xr_nczarr.to_nczarr(xr.Dataset(variables), tmp_path / "one")
    lines = str(xr_nczarr.dump(tmp_path / "one", times=True)).splitlines()
    assert [line for line in lines if line.startswith(" v")] == [
        f" v{number} = 1, 2 ;" for number in range(3)
    ]


def test_dump_shows_fractional_seconds_without_rounding_noise(tmp_path: Path) -> None:
    units = {"units": "days since 2000-01-01"}
    xr_nczarr.to_nczarr(
        xr.Dataset({"v": ("x", np.array([1 / 3, 0.5 / 86400, np.nan]), units)}), tmp_path / "one"
    )
    text = str(xr_nczarr.dump(tmp_path / "one", times=True))
    assert ' v = "2000-01-01 08", "2000-01-01 00:00:00.500000", _ ;' in text


def test_dump_includes_coordinates_of_selected_variables(tmp_path: Path) -> None:
    dataset = xr.Dataset({"a": ("x", [1, 2]), "b": ("x", [3, 4])}, {"x": [5, 6]})
    xr_nczarr.to_nczarr(dataset, tmp_path / "one")
    text = str(xr_nczarr.dump(tmp_path / "one", coordinates=True, variables=["a"]))
    assert " a = 1, 2 ;" in text
    assert " x = 5, 6 ;" in text
    assert " b = 3" not in text
