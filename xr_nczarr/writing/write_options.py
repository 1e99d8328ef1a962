"""Define the write options, and derive the mode and the layout from the caller's arguments."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from xr_nczarr.errors import ConflictError
from xr_nczarr.formats import find_format
from xr_nczarr.netcdf.layouts import DEFAULT_FORMAT, Layout
from xr_nczarr.options import check_choice
from xr_nczarr.storage import Location

WriteMode = Literal["w", "w-", "a", "a-", "r+"]
WriteRegion = Mapping[str, slice | Literal["auto"]] | Literal["auto"]
_KINDS = {"nczarr": "NCZarr", "zarr": "plain Zarr"}
UnlimitedDims = Iterable[Hashable] | Mapping[str, Iterable[Hashable]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The arguments of `to_nczarr` that control how data is written."""

    mode: WriteMode = "a"
    append_dim: str | None = None
    region: Any = None
    allow_duplicates: bool = False
    compute: bool = True
    safe_chunks: bool = True
    progress: bool = False
    atomic: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        # Any nonempty string would count as true, including "False".
        for name in ("atomic", "overwrite", "allow_duplicates", "safe_chunks", "compute"):
            check_choice(name, getattr(self, name), (True, False))
        if self.atomic and not self.compute:
            raise ConflictError(
                "atomic=True cannot be combined with compute=False, which writes some values later",
                remedy="Leave out one of them",
            )


def resolve_mode(mode: WriteMode | None, append_dim: Any, region: Any) -> WriteMode:
    """Return the requested mode, or the default for the given `append_dim` and `region`.

    Raises
    ------
    ValueError
        If `mode` is invalid, or cannot be combined with `append_dim` or `region`.
    """
    check_choice("mode", mode, (None, *get_args(WriteMode)))
    if append_dim is not None:
        if mode not in (None, "a", "a-"):
            raise ValueError(
                f"cannot set append_dim unless mode='a' or mode='a-'; mode is {mode!r}"
            )
        return mode or "a"
    if region is not None:
        if mode in ("w", "w-"):
            raise ValueError("cannot set region unless mode='a', mode='a-', mode='r+' or mode=None")
        return mode or "r+"
    return mode or "w-"


def layout_of(
    location: Location, zarr_format: int | str, dialect: str, consolidated: bool | None
) -> Layout:
    """Return the layout requested by a URL's fragment and the caller's arguments.

    Raises
    ------
    ConflictError
        If the fragment and the arguments contradict each other.
    ValueError
        If the Zarr version is unknown.
    """
    kind, version = location.format, location.zarr_format
    if kind and dialect != "nczarr" and (kind == "zarr") != (dialect == "zarr"):
        raise _contradiction(location, _KINDS[kind], f"dialect={dialect!r}")
    if version and str(zarr_format) not in (version, DEFAULT_FORMAT.version):
        raise _contradiction(location, f"Zarr v{version}", f"zarr_format={zarr_format!r}")
    zarr = find_format(version or zarr_format)
    if kind == "zarr" or (dialect == "nczarr" and not zarr.has_groups):
        dialect = "zarr"
    return Layout(
        zarr=zarr,
        dialect=dialect,
        array_dimensions=location.xarray is not False,
        consolidated=location.consolidated if consolidated is None else consolidated,
    )


def _contradiction(location: Location, required: str, argument: str) -> ConflictError:
    change = ", or change mode= in the URL fragment" if location.url else ""
    return ConflictError(
        f"the target requires {required}, which contradicts {argument}",
        remedy=f"Leave out {argument}{change}",
    )
