"""How tools open a store: all of it, whichever group is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from xr_nczarr.backend.options import OpenOptions
from xr_nczarr.backend.reader import OpenedStore, open_netcdf
from xr_nczarr.netcdf import Group


def open_whole(target: Any, options: Mapping[str, Any]) -> tuple[OpenedStore, Group]:
    """Open all of a store, and give it with the group that is asked for."""
    asked = OpenOptions(**options)
    opened = open_netcdf(target, replace(asked, group=None))
    return opened, opened.group(asked.group)
