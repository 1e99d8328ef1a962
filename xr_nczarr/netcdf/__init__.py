"""NCZarr itself: a pure translation between a Zarr hierarchy and a netCDF group."""

from xr_nczarr.netcdf.annotate import annotate
from xr_nczarr.netcdf.interpret import interpret
from xr_nczarr.netcdf.model import Dimension, Group, Variable

__all__ = ["Dimension", "Group", "Variable", "annotate", "interpret"]
