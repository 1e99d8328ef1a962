"""Convert between Zarr hierarchies and netCDF groups, following the NCZarr conventions.

This package performs no I/O.
"""

from xr_nczarr.netcdf.annotate import annotate
from xr_nczarr.netcdf.data_model import Dimension, Group, Variable
from xr_nczarr.netcdf.interpret import interpret
from xr_nczarr.netcdf.layouts import Layout

__all__ = ["Dimension", "Group", "Layout", "Variable", "annotate", "interpret"]
