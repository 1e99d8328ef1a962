"""Define the xarray engine, which opens netCDF groups lazily as xarray objects."""
