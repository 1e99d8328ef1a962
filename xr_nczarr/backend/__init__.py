"""The xarray engine, with its lazy arrays: from the netCDF model to xarray objects."""
