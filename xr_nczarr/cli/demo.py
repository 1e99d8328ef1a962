"""Demonstrate the package: open a store with xarray, and compute a mean."""

from __future__ import annotations

from importlib import resources


def demo() -> None:
    """Open the store `climate.zip` of this package with xarray, and print it and a mean.

    netCDF-C wrote this store. Its temperatures are packed and compressed.
    """
    import xarray as xr

    shipped = resources.files(__package__) / "climate.zip"
    with (
        resources.as_file(shipped) as path,
        xr.open_dataset(path, engine="nczarr", chunks={}) as dataset,
    ):
        print(f"Opening a store that netCDF-C wrote: {path}\n")
        print(dataset)
        means = dataset["temperature"].mean(("lat", "lon")).compute()
        print("\nMean temperature of each day, computed by dask:")
        for time, value in zip(means["time"].values, means.values, strict=True):
            print(f"  {str(time)[:10]}  {value:.3f} {dataset['temperature'].attrs['units']}")
