"""Define the accessors ``ds.nczarr``, ``da.nczarr`` and ``tree.nczarr``.

xarray has no entry points for accessors, so importing this module registers them. To keep the
import fast, this module does not import xarray. If xarray has not been imported yet, the accessors
are registered as soon as it is.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeVar

from xr_nczarr.errors import NotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

    from dask.delayed import Delayed

    from xr_nczarr.backend.opened_encoding import Opening
    from xr_nczarr.tools.explain import Explanation
    from xr_nczarr.tools.info import StoreInfo
    from xr_nczarr.tools.verification import Verification
    from xr_nczarr.writing.write_options import UnlimitedDims, WriteMode, WriteRegion

_Result = TypeVar("_Result")


class NczarrAccessor:
    """Accessor methods that call the functions of the same name in `xr_nczarr`."""

    def __init__(self, obj: Any) -> None:
        self._obj = obj

    def __repr__(self) -> str:
        is_opened = self._opening() is not None
        origin = f" opened from {self._obj.encoding.get('source')}" if is_opened else ""
        names = ["to_nczarr", "explain", *(["info", "verify"] if is_opened else [])]
        summaries = [(getattr(self, name).__doc__ or "").partition(";")[0] for name in names]
        lines = [f"  .{f'{name}()':14}{text}" for name, text in zip(names, summaries, strict=True)]
        kind = type(self._obj).__name__
        return "\n".join([f"<xr_nczarr methods of a {kind}{origin}>", *lines])

    def to_nczarr(
        self,
        target: Any,
        *,
        mode: WriteMode | None = None,
        group: str | None = None,
        encoding: Mapping[str, Any] | None = None,
        unlimited_dims: UnlimitedDims | None = None,
        compute: bool = True,
        consolidated: bool | None = None,
        append_dim: Hashable | None = None,
        region: WriteRegion | None = None,
        safe_chunks: bool = True,
        zarr_format: int | str = 2,
        dialect: str = "nczarr",
        storage_options: Mapping[str, Any] | None = None,
        progress: bool = False,
        atomic: bool = False,
        allow_duplicates: bool = False,
        overwrite: bool = False,
    ) -> Delayed | None:
        """Write the object to an NCZarr or Zarr store; see `xr_nczarr.to_nczarr`."""
        arguments = dict(locals())
        del arguments["self"]
        from xr_nczarr.writing.to_nczarr import to_nczarr

        return to_nczarr(self._obj, **arguments)

    def info(self, *, count_chunks: bool = True, progress: bool = False) -> StoreInfo:
        """Summarize the store from which the object was opened; see `xr_nczarr.info`."""
        from xr_nczarr.tools.info import info

        return self._call(info, count_chunks=count_chunks, progress=progress)

    def verify(
        self, *, sample: int | None = None, readers: bool = False, progress: bool = False
    ) -> Verification:
        """Verify the store from which the object was opened; see `xr_nczarr.verify`."""
        from xr_nczarr.tools.verify import verify

        return self._call(verify, sample=sample, readers=readers, progress=progress)

    def explain(
        self,
        selection: Mapping[Any, Any] | None = None,
        *,
        variables: Collection[str] | None = None,
    ) -> Explanation:
        """Predict the number of requests and bytes needed for a read; see `xr_nczarr.explain`."""
        from xr_nczarr.tools.explain import explain

        return explain(self._obj, selection, variables=variables)

    def _opening(self) -> Opening | None:
        from xr_nczarr.backend.opened_encoding import OPENING_KEY, Opening

        opening = self._obj.encoding.get(OPENING_KEY)
        return opening if isinstance(opening, Opening) else None

    def _call(self, function: Callable[..., _Result], **arguments: Any) -> _Result:
        """Call a function with the target from which the object was opened, and with `arguments`.

        Raises
        ------
        NotFoundError
            If the target is unknown or cannot be opened in this process.
        """
        opening = self._opening()
        if opening is None:  # opened with another engine, or the encoding was dropped
            raise NotFoundError(
                "the store from which this object was opened is unknown",
                remedy="Call the method on the Dataset opened with engine='nczarr', or pass the "
                "URL to the xr_nczarr function of the same name",
            )
        if opening.target is None:
            raise NotFoundError(
                "this object cannot be reopened in this process, because it was not opened from a "
                "path or URL",
                remedy="Call the method in the process that opened the object",
            )
        # Pass the options with which the object was opened, if the function accepts them.
        names, options = function.__kwdefaults__ or (), opening.options.as_dict()
        arguments |= {name: value for name, value in options.items() if name in names}
        return function(opening.target, **arguments)


def _register() -> None:
    import xarray

    xarray.register_dataset_accessor("nczarr")(NczarrAccessor)
    xarray.register_dataarray_accessor("nczarr")(NczarrAccessor)
    xarray.register_datatree_accessor("nczarr")(NczarrAccessor)


class _XarrayFinder:
    """An import hook that registers the accessors as soon as xarray is imported."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of the module xarray, or None for any other module."""
        if name != "xarray":
            return None
        finders = [finder for finder in sys.meta_path if finder is not self]
        specs = (finder.find_spec(name, path, target) for finder in finders)
        spec = next(filter(None, specs), None)
        if spec is not None and spec.loader is not None:
            self._extend(spec.loader)
        return spec

    def _extend(self, loader: Any) -> None:
        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            loader.exec_module(module)
            sys.meta_path.remove(self)
            _register()

        # Register only when xarray is executed, because find_spec("xarray") may be called without
        # importing xarray.
        loader.exec_module = exec_module


if "xarray" in sys.modules:
    _register()
else:
    sys.meta_path.insert(0, _XarrayFinder())
