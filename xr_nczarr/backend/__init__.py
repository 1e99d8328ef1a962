"""The netCDF model ⇄ xarray: the only room of xarray and dask; it registers ``ds.nczarr``."""

# Importing it makes ``ds.nczarr`` known to xarray.
from xr_nczarr.backend import accessor as accessor
