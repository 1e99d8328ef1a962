"""Copy any source to a store or a netCDF file, and compare two sources."""
