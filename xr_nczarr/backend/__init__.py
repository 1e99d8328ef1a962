"""The netCDF model → xarray: the engine and its lazy arrays; it registers ``ds.nczarr``."""

# Importing it makes ``ds.nczarr`` known to xarray.
from xr_nczarr.backend import accessor as accessor
