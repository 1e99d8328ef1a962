"""The xarray engine ``nczarr``.

xarray imports the entry points of all engines to open any file: this module imports little.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from itertools import islice
from types import FrameType
from typing import Any, ClassVar

import xarray as xr
from xarray import Dataset, DataTree
from xarray.backends import BackendEntrypoint

from xr_nczarr.errors import quote
from xr_nczarr.options import OPEN_OPTIONS, OpenOptions

DECODE_DEFAULTS: Mapping[str, Any] = {
    "mask_and_scale": True,
    "decode_times": True,
    "concat_characters": True,
    "decode_coords": True,
    "drop_variables": None,
    "use_cftime": None,
    "decode_timedelta": None,
}
"""xarray's own decoding options; `xarray.open_dataset` documents them."""

AS_STORED: Mapping[str, Any] = {
    name: False if default is True else default for name, default in DECODE_DEFAULTS.items()
}
"""Decoding options that leave everything as it is stored."""

_log = logging.getLogger(__name__)
_MAX_NAMED_GROUPS = 10
# Options of engine zarr that change nothing here, and the values that say so; the first is implied.
_OF_ENGINE_ZARR: Mapping[str, tuple[Any, ...]] = {
    "mode": ("r", None),
    "cache_members": (True, False),
    "store": (None,),
    "engine": (None,),
    "chunk_store": (None,),
    "synchronizer": (None,),
}
_REMEDIES = {
    "mode": "Opening only reads; write with to_nczarr",
    "cache_members": "Leave it out",
    "store": "Give what is to be opened as the first argument",
    "engine": "Leave it out",
    "chunk_store": "Give a reference set where chunks lie elsewhere",
    "synchronizer": "Leave it out: writers lock what they change",
}


class NczarrBackendEntrypoint(BackendEntrypoint):
    """Opens NCZarr of every vintage, Zarr of every version, and reference sets.

    Options are those of `OpenOptions`, beside xarray's own decoding options.
    """

    description: ClassVar[str] = "Open NCZarr, Zarr and reference sets (xr_nczarr)"
    url: ClassVar[str] = "https://pypi.org/project/xr-nczarr"
    open_dataset_parameters: ClassVar[tuple[str, ...]] = (
        "filename_or_obj",
        *DECODE_DEFAULTS,
        *OPEN_OPTIONS,
    )
    supports_groups: ClassVar[bool] = True

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return True only on strong evidence, without touching the network.

        That is a URL whose fragment says ``mode=nczarr`` (or ``zarr``), a remote one that ends in
        ``.nczarr``, or a local store that has NCZarr metadata.
        """
        from xr_nczarr.storage import has_nczarr_metadata

        return has_nczarr_metadata(filename_or_obj)

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        open_dataset_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Dataset:
        """Open one group as a Dataset; see `OpenOptions`.

        `open_dataset_options`, which engine kerchunk takes, are further arguments of
        `xarray.open_dataset`.
        """
        from xr_nczarr.backend.building import build_dataset
        from xr_nczarr.dataset import open_netcdf

        if open_dataset_options:
            options = {"engine": type(self), **options, **open_dataset_options}
            return xr.open_dataset(filename_or_obj, **options)
        opening, decoding = _split(options)
        opened = open_netcdf(filename_or_obj, opening, subgroups=False)
        group = opened.group(opening.group)
        if not group.variables and group.groups:
            names = ", ".join(quote(name) for name in islice(group.groups, _MAX_NAMED_GROUPS))
            more = ", …" if len(group.groups) > _MAX_NAMED_GROUPS else ""
            _log.warning(
                "%s: group %s has no variables. Open one of its groups with group=, or all of them "
                "with xarray.open_datatree: %s%s",
                opened.store.name,
                quote(group.path),
                names,
                more,
            )
        return build_dataset(opened, group, decoding, indexed=_makes_indexes(sys._getframe(1)))

    def open_groups_as_dict(self, filename_or_obj: Any, **options: Any) -> dict[str, Dataset]:
        """Open a group and all below it as Datasets by path; see `OpenOptions`.

        Paths are absolute, or relative to `group` where that is given, as those of other engines.
        """
        datasets = _open_groups(filename_or_obj, options, _makes_indexes(sys._getframe(1)))
        if not options.get("group"):
            return datasets
        return {path.strip("/") or ".": dataset for path, dataset in datasets.items()}

    def open_datatree(self, filename_or_obj: Any, **options: Any) -> DataTree:
        """Open a group and all below it as a DataTree; see `OpenOptions`."""
        indexed = _makes_indexes(sys._getframe(1))
        return DataTree.from_dict(_open_groups(filename_or_obj, options, indexed))


def _open_groups(target: Any, options: dict[str, Any], indexed: bool) -> dict[str, Dataset]:
    from xr_nczarr.backend.building import build_groups
    from xr_nczarr.dataset import open_netcdf

    opening, decoding = _split(options)
    opened = open_netcdf(target, opening)
    return build_groups(opened, opened.group(opening.group), decoding, indexed=indexed)


def _makes_indexes(caller: FrameType) -> bool:
    """Return whether the function of xarray that calls the engine is going to make indexes.

    xarray passes ``create_default_indexes`` to no engine. Without this, the coordinates would be
    read for nothing where that is False; other callers are taken for those who do not say so.
    """
    return bool(caller.f_locals.get("create_default_indexes", True))


def _split(options: dict[str, Any]) -> tuple[OpenOptions, dict[str, Any]]:
    """Split options into those of this engine and of xarray's decoding; check engine zarr's."""
    options = dict(options)
    for name, values in _OF_ENGINE_ZARR.items():
        value = options.pop(name, values[0])
        if value not in values:
            raise TypeError(f"engine nczarr has no option {name}={value!r}. {_REMEDIES[name]}")
    version = options.pop("zarr_version", None)
    if version is not None:
        options.setdefault("zarr_format", version)
    unknown = sorted(options.keys() - {*OPEN_OPTIONS, *DECODE_DEFAULTS})
    if unknown:
        raise TypeError(f"engine nczarr has no option {', '.join(unknown)}")
    opening = {name: value for name, value in options.items() if name in OPEN_OPTIONS}
    decoding = {name: options.get(name, default) for name, default in DECODE_DEFAULTS.items()}
    return OpenOptions(**opening), decoding
