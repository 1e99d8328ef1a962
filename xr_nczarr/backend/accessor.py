"""``ds.nczarr`` and ``tree.nczarr``: registered with xarray when this module is imported."""

from __future__ import annotations

from typing import Any

import xarray

import xr_nczarr
from xr_nczarr.backend.options import OPEN_OPTIONS
from xr_nczarr.backend.origin import origin_of
from xr_nczarr.errors import NotFoundError


class NczarrAccessor:
    """NCZarr's functions as methods of xarray's objects."""

    def __init__(self, obj: Any) -> None:
        self._obj = obj

    def to_nczarr(self, target: Any, **options: Any) -> Any:
        """Write the object as NCZarr; see `xr_nczarr.to_nczarr`."""
        return xr_nczarr.to_nczarr(self._obj, target, **options)

    def info(self) -> Any:
        """Tell what is in the store it was opened from; see `xr_nczarr.info`."""
        origin = origin_of(self._obj)
        if origin.target is None:
            raise NotFoundError(
                "what it was opened from stayed in another process",
                remedy="Ask xr_nczarr.info with the URL",
            )
        options = {name: getattr(origin.options, name) for name in OPEN_OPTIONS}
        return xr_nczarr.info(origin.target, **options)

    def report(self, client: Any = None) -> Any:
        """Tell what was filled, retried and repaired since; see `xr_nczarr.report`."""
        return xr_nczarr.report(self._obj, client)

    def explain(self, selection: Any = None, **options: Any) -> Any:
        """Tell what reading it, or a selection of it, takes; see `xr_nczarr.explain`."""
        # The package's public functions lie above this room.
        return xr_nczarr.explain(self._obj, selection, **options)


for _register in (
    xarray.register_dataset_accessor,
    xarray.register_dataarray_accessor,
    xarray.register_datatree_accessor,
):
    _register("nczarr")(NczarrAccessor)
