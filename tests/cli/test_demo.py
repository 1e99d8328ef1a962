"""The command ``nczarr demo``, and the store that it opens."""

from importlib import resources

import netCDF4
import numpy as np
import xarray as xr

from xr_nczarr.cli.main import main


def write_climate(url):
    """Write the demonstration store with netCDF-C. Temperatures are packed and compressed."""
    with netCDF4.Dataset(url, "w") as file:
        file.title = "A week of temperatures"
        for name, size in (("time", None), ("lat", 18), ("lon", 36)):
            file.createDimension(name, size)
        time = file.createVariable("time", "i4", ("time",))
        time.units = "days since 2026-01-01"
        time[:] = np.arange(7)
        for name, size, units in (("lat", 18, "degrees_north"), ("lon", 36, "degrees_east")):
            coordinate = file.createVariable(name, "f4", (name,))
            coordinate.units = units
            coordinate[:] = np.linspace(-85, 85, size) if name == "lat" else np.arange(0, 360, 10)
        packing = {"fill_value": -32767, "zlib": True, "complevel": 4}
        temperature = file.createVariable(
            "temperature", "i2", ("time", "lat", "lon"), chunksizes=(1, 18, 36), **packing
        )
        temperature.setncatts({"scale_factor": 0.01, "add_offset": 273.15, "units": "K"})
        latitude = np.deg2rad(np.linspace(-85, 85, 18))[:, np.newaxis]
        longitude = np.deg2rad(np.arange(0, 360, 10))
        for day in range(7):
            zonal = 300 + 0.25 * day - 45 * np.sin(latitude) ** 2
            temperature[day] = zonal + 3 * np.cos(longitude + day)


def test_demo_prints_dataset_and_means(capsys):
    assert main(["demo"]) == 0
    printed = capsys.readouterr().out
    assert "A week of temperatures" in printed
    assert "2026-01-01  277.500 K" in printed
    assert "2026-01-07  279.000 K" in printed


def test_demo_store_is_identical_to_store_written_by_netcdf_c(tmp_path):
    write_climate(f"file://{tmp_path}/climate#mode=nczarr,file")
    shipped = xr.open_dataset(resources.files("xr_nczarr.cli") / "climate.zip", engine="nczarr")
    written = xr.open_dataset(tmp_path / "climate", engine="nczarr")
    xr.testing.assert_identical(shipped, written)
