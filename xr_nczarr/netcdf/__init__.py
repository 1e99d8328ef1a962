"""Convert between Zarr hierarchies and netCDF groups by the NCZarr conventions, without I/O."""

from xr_nczarr.netcdf.annotate import annotate
from xr_nczarr.netcdf.data_model import Dimension, Group, Variable
from xr_nczarr.netcdf.interpret import interpret
from xr_nczarr.netcdf.layouts import Layout

__all__ = ["Dimension", "Group", "Layout", "Variable", "annotate", "interpret"]
