"""Demonstrate the package: create a store, open it with xarray, and compute a mean."""

from __future__ import annotations

import shutil
import tempfile
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def demo() -> None:
    """Create a small NCZarr store, open it with xarray, and print the dataset and a mean.

    If the netCDF4 package is installed, netCDF-C writes the store. Otherwise, this function opens a
    ready-made store from this package, also written by netCDF-C.
    """
    import xarray as xr

    with tempfile.TemporaryDirectory() as directory:
        if find_spec("netCDF4") is not None:
            url = f"file://{directory}/climate.nczarr#mode=nczarr,file"
            write_climate(url)
            print(f"netCDF-C wrote {url}\n")
        else:
            path = Path(directory) / "climate.zip"
            with resources.as_file(resources.files(__package__) / "climate.zip") as shipped:
                shutil.copy(shipped, path)
            url = f"file://{path}#mode=nczarr,zip"
            print(f"netCDF4 is not installed; opening a store from the package instead: {url}\n")
        dataset = xr.open_dataset(url, engine="nczarr", chunks={})
        print(dataset)
        means = dataset["temperature"].mean(("lat", "lon")).compute()
        print("\nMean temperature of each day, computed by dask:")
        for time, value in zip(means["time"].values, means.values, strict=True):
            print(f"  {str(time)[:10]}  {value:.3f} {dataset['temperature'].attrs['units']}")


def write_climate(url: str) -> None:
    """Write the demonstration store with netCDF-C. Temperatures are packed and compressed."""
    import netCDF4
    import numpy as np

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
        packing: dict[str, Any] = {"fill_value": -32767, "zlib": True, "complevel": 4}
        temperature = file.createVariable(
            "temperature", "i2", ("time", "lat", "lon"), chunksizes=(1, 18, 36), **packing
        )
        temperature.setncatts({"scale_factor": 0.01, "add_offset": 273.15, "units": "K"})
        latitude = np.deg2rad(np.linspace(-85, 85, 18))[:, np.newaxis]
        longitude = np.deg2rad(np.arange(0, 360, 10))
        for day in range(7):
            zonal = 300 + 0.25 * day - 45 * np.sin(latitude) ** 2
            temperature[day] = zonal + 3 * np.cos(longitude + day)
