"""The netCDF model → xarray: the engine and its lazy arrays."""
