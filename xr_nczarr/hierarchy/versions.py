"""The versions of Zarr, by the module that knows each."""

from __future__ import annotations

from types import ModuleType

from xr_nczarr.formats import v1, v2, v3, v3_draft

# In the order of recognition: both v3 and its draft begin with ``zarr.json``, and v1's keys are
# names that an array of another version could have.
Format = ModuleType | v3_draft.Layout
FORMATS: dict[str, ModuleType] = {module.ZARR_FORMAT: module for module in (v3, v2, v3_draft, v1)}
RARE = (v3_draft, v1)
