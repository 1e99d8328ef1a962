"""Define the xarray engine, which opens netCDF groups as xarray objects with lazy arrays."""
