"""Define the xarray engine ``nczarr``.

When xarray opens a file with any engine, it imports the entry points of all engines. This module
therefore imports as little as possible.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from inspect import signature
from itertools import islice
from types import FrameType
from typing import Any, ClassVar, Literal

import xarray as xr
from xarray import Dataset, DataTree
from xarray.backends import BackendEntrypoint

from xr_nczarr.errors import quote
from xr_nczarr.model import Consolidated, Limits
from xr_nczarr.options import Endian, MissingChunks, OpenOptions, Unsupported

DECODE_DEFAULTS: Mapping[str, Any] = {
    "mask_and_scale": True,
    "decode_times": True,
    "concat_characters": True,
    "decode_coords": True,
    "drop_variables": None,
    "use_cftime": None,
    "decode_timedelta": None,
}
"""xarray's own decoding options and their defaults; see `xarray.open_dataset`."""

AS_STORED: Mapping[str, Any] = {
    name: False if default is True else default for name, default in DECODE_DEFAULTS.items()
}
"""Decoding options with which xarray returns stored values unchanged."""

LABELS: Mapping[str, Any] = {**DECODE_DEFAULTS, "decode_timedelta": False}
"""Decoding options for coordinates in which labels are looked up."""

_log = logging.getLogger(__name__)
_MAX_NAMED_GROUPS = 10
# Options of the zarr engine that have no effect in this engine. Each is mapped to the values that
# this engine accepts, and to the remedy for any other value.
_ZARR_ENGINE_OPTIONS: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "mode": (("r", None), "Write with to_nczarr; open_dataset only reads"),
    "cache_members": ((True, False), "Leave out this option"),
    "store": ((None,), "Pass the target as the first argument"),
    "engine": ((None,), "Leave out this option"),
    "chunk_store": ((None,), "Open a reference set if the chunks are stored elsewhere"),
    "synchronizer": ((None,), "Leave out this option; writers use their own locks"),
}


class NczarrBackendEntrypoint(BackendEntrypoint):
    """The xarray engine for all versions of NCZarr and Zarr, and for reference sets."""

    description: ClassVar[str] = "Open NCZarr stores, Zarr stores and reference sets (xr_nczarr)"
    url: ClassVar[str] = "https://pypi.org/project/xr-nczarr"
    supports_groups: ClassVar[bool] = True

    def guess_can_open(self, filename_or_obj: Any) -> bool:
        """Return whether the target is clearly meant for this engine.

        This is the case for URLs with ``mode=nczarr`` or ``mode=zarr`` in the fragment, for remote
        URLs that end in ``.nczarr``, and for local stores with NCZarr metadata. The network is not
        accessed.
        """
        from xr_nczarr.backend.guessing import looks_like_nczarr

        return looks_like_nczarr(filename_or_obj)

    def open_dataset(
        self,
        filename_or_obj: Any,
        *,
        mask_and_scale: bool | Mapping[str, bool] = True,
        decode_times: Any = True,
        concat_characters: bool | Mapping[str, bool] = True,
        decode_coords: bool | Literal["coordinates", "all"] = True,
        drop_variables: str | Iterable[str] | None = None,
        use_cftime: bool | Mapping[str, bool] | None = None,
        decode_timedelta: Any = None,
        group: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        consolidated: Consolidated = None,
        zarr_format: int | str | None = None,
        on_unsupported: Unsupported = "lazy",
        missing_chunks: MissingChunks = "fill",
        use_zarr_fill_value_as_mask: bool | None = None,
        assume_endian: Endian = None,
        codecs: Mapping[str, type] | None = None,
        trust: Literal["none"] | None = None,
        limits: Limits | Mapping[str, int] | None = None,
        threads: int | None = None,
        mode: Literal["r"] | None = "r",
        zarr_version: int | str | None = None,
        chunk_store: None = None,
        synchronizer: None = None,
        cache_members: bool = True,
        store: None = None,
        engine: None = None,
        open_dataset_options: Mapping[str, Any] | None = None,
    ) -> Dataset:
        """Open one group as a Dataset.

        Parameters
        ----------
        mask_and_scale, decode_times, concat_characters, decode_coords, drop_variables, \
use_cftime, decode_timedelta
            See `xarray.open_dataset`.
        group, storage_options, consolidated, zarr_format, on_unsupported, missing_chunks, \
use_zarr_fill_value_as_mask, assume_endian, codecs, trust, limits, threads
            See `xr_nczarr.options.OpenOptions`.
        mode, zarr_version, chunk_store, synchronizer, cache_members, store, engine
            Options of the zarr engine, accepted for compatibility. `zarr_version` is an alias for
            `zarr_format`. The other options have no effect, but a value that this engine does not
            support raises a TypeError.
        open_dataset_options
            Further arguments for `xarray.open_dataset`, as in the kerchunk engine.
        """
        from xr_nczarr.backend.building import build_dataset
        from xr_nczarr.dataset import open_netcdf

        opening, decoding = _split(locals())
        if open_dataset_options:
            options = {**opening.as_dict(), **decoding, **open_dataset_options}
            return xr.open_dataset(filename_or_obj, engine=type(self), **options)
        dropped = decoding["drop_variables"]
        opened = open_netcdf(filename_or_obj, opening, subgroups=False, dropped=dropped)
        netcdf_group = opened.group(group)
        if not netcdf_group.variables and netcdf_group.groups:
            groups = netcdf_group.groups
            names = ", ".join(quote(name) for name in islice(groups, _MAX_NAMED_GROUPS))
            more = ", …" if len(groups) > _MAX_NAMED_GROUPS else ""
            _log.warning(
                "%s: group %s has no variables. Open one of its subgroups (%s%s) with group=, or "
                "all of them with xarray.open_datatree",
                opened.store.name,
                quote(netcdf_group.path),
                names,
                more,
            )
        indexed = _makes_indexes(sys._getframe(1))
        return build_dataset(opened, netcdf_group, decoding, indexed=indexed)

    def open_groups_as_dict(self, filename_or_obj: Any, **options: Any) -> dict[str, Dataset]:
        """Open a group and all its descendants as a dict of Datasets, keyed by path.

        As in other engines, the paths are absolute, or relative to `group` if it is passed. The
        options are those of `open_dataset`, except `open_dataset_options`.
        """
        indexed = _makes_indexes(sys._getframe(1))
        datasets = self._open_groups(filename_or_obj, options, indexed)
        if not options.get("group"):
            return datasets
        return {path.strip("/") or ".": dataset for path, dataset in datasets.items()}

    def open_datatree(self, filename_or_obj: Any, **options: Any) -> DataTree:
        """Open a group and all its descendants as a DataTree.

        The options are those of `open_dataset`, except `open_dataset_options`.
        """
        indexed = _makes_indexes(sys._getframe(1))
        return DataTree.from_dict(self._open_groups(filename_or_obj, options, indexed))

    def _open_groups(
        self, target: Any, options: Mapping[str, Any], indexed: bool
    ) -> dict[str, Dataset]:
        from xr_nczarr.backend.building import build_groups
        from xr_nczarr.dataset import open_netcdf

        if "open_dataset_options" in options:
            raise TypeError("open_dataset_options applies only to xarray.open_dataset")
        arguments = signature(self.open_dataset).bind(target, **options)
        arguments.apply_defaults()
        opening, decoding = _split(arguments.arguments)
        opened = open_netcdf(target, opening, dropped=decoding["drop_variables"])
        return build_groups(opened, opened.group(opening.group), decoding, indexed=indexed)


def _makes_indexes(caller: FrameType) -> bool:
    """Return whether the calling xarray function will create default indexes."""
    # xarray does not pass this argument to engines, so it is taken from the frame of the caller. If
    # no indexes are created, the coordinates need not be read.
    return bool(caller.f_locals.get("create_default_indexes", True))


def _split(arguments: Mapping[str, Any]) -> tuple[OpenOptions, dict[str, Any]]:
    """Split the arguments into the options of this engine and xarray's decoding options.

    Raise TypeError if an option of xarray's zarr engine has a value that this engine does not
    support.
    """
    for name, (accepted, remedy) in _ZARR_ENGINE_OPTIONS.items():
        value = arguments[name]
        if value not in accepted:
            raise TypeError(f"the nczarr engine does not support {name}={value!r}. {remedy}")
    options = OpenOptions.of(arguments)
    if options.zarr_format is None:
        options = replace(options, zarr_format=arguments["zarr_version"])
    decoding = {name: arguments[name] for name in DECODE_DEFAULTS}
    dropped = decoding["drop_variables"]
    # Several functions use the names, but an iterator can be used only once.
    decoding["drop_variables"] = (
        () if dropped is None else (dropped,) if isinstance(dropped, str) else tuple(dropped)
    )
    return options, decoding
