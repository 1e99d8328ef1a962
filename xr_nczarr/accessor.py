"""``ds.nczarr`` and ``tree.nczarr``: registered with xarray when this module is imported."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import xarray

from xr_nczarr.backend.encoding import OPENING_KEY, Opening
from xr_nczarr.errors import NotFoundError

if TYPE_CHECKING:
    from xr_nczarr.tools.overview import Overview


class NczarrAccessor:
    """The functions of `xr_nczarr` as methods of an xarray object."""

    def __init__(self, obj: Any) -> None:
        self._obj = obj

    def __repr__(self) -> str:
        kind = type(self._obj).__name__
        opening = self._obj.encoding.get(OPENING_KEY)
        is_opened = isinstance(opening, Opening)
        origin = f" opened from {self._obj.encoding.get('source')}" if is_opened else ""
        methods = {
            "to_nczarr(target)": "write it as NCZarr or Zarr",
            "explain(selection)": "show the requests, bytes and chunks that reading it takes",
        }
        if is_opened:
            methods |= {
                "info()": "show what is in its store, and which chunks are there",
                "verify()": "read every chunk of its store, and compare all metadata",
            }
        lines = [f"  .{call:20}{what}" for call, what in methods.items()]
        return "\n".join([f"<xr_nczarr methods of a {kind}{origin}>", *lines])

    def to_nczarr(self, target: Any, **options: Any) -> Any:
        """Write the object as NCZarr; see `xr_nczarr.to_nczarr`."""
        from xr_nczarr.writing.writer import to_nczarr

        return to_nczarr(self._obj, target, **options)

    def info(self) -> Overview:
        """Return what is in the store that it was opened from; see `xr_nczarr.info`."""
        from xr_nczarr.tools.overview import info

        target, options = self._opened_from()
        return info(target, **options)

    def verify(self, *, sample: int | None = None, readers: bool = False) -> Any:
        """Verify the store that it was opened from; see `xr_nczarr.verify`."""
        from xr_nczarr.tools.verifying import verify

        target, options = self._opened_from()
        return verify(target, sample=sample, readers=readers, **options)

    def explain(self, selection: Any = None, **options: Any) -> Any:
        """Return what reading it, or a selection of it, takes; see `xr_nczarr.explain`."""
        from xr_nczarr.tools.explain import explain

        return explain(self._obj, selection, **options)

    def _opened_from(self) -> tuple[Any, dict[str, Any]]:
        """Return what the object was opened from, and with which options.

        Raises
        ------
        NotFoundError
            If it was not opened with this engine, or lost its encoding on the way.
        """
        opening = self._obj.encoding.get(OPENING_KEY)
        if not isinstance(opening, Opening):
            raise NotFoundError(
                "this object does not know where it was opened from",
                remedy="Call the method on the Dataset that engine='nczarr' opened, or call the "
                "function of the same name in xr_nczarr with the URL",
            )
        if opening.target is None:
            raise NotFoundError(
                "what this object was opened from stayed in another process",
                remedy="Call the function of the same name in xr_nczarr with it there",
            )
        return opening.target, opening.options.as_dict()


for _register in (
    xarray.register_dataset_accessor,
    xarray.register_dataarray_accessor,
    xarray.register_datatree_accessor,
):
    _register("nczarr")(NczarrAccessor)
