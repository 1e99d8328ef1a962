"""Translate between Zarr hierarchies and netCDF groups by the NCZarr conventions, without I/O."""

from xr_nczarr.netcdf.annotate import annotate
from xr_nczarr.netcdf.data_model import Dimension, Group, Variable
from xr_nczarr.netcdf.interpret import interpret

__all__ = ["Dimension", "Group", "Variable", "annotate", "interpret"]
