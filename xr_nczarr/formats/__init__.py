"""Zarr documents to the model and back, without I/O: one module for each version."""

from types import ModuleType

from xr_nczarr.formats import v1, v2, v3, v3_draft

# In the order of recognition: both v3 and its draft begin with ``zarr.json``, and v1's keys are
# names that an array of another version could have.
FORMATS: dict[str, ModuleType] = {module.ZARR_FORMAT: module for module in (v3, v2, v3_draft, v1)}
