"""Define the options of a write and the layout of the written store."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from xr_nczarr.dataset import OpenedStore
from xr_nczarr.errors import ConflictError
from xr_nczarr.formats import FORMATS, Format, find_format
from xr_nczarr.netcdf.annotations import is_universal
from xr_nczarr.options import check_choice
from xr_nczarr.storage import Location

WriteMode = Literal["w", "w-", "a", "a-", "r+"]
WriteRegion = Mapping[str, slice | Literal["auto"]] | Literal["auto"]
UnlimitedDims = Iterable[Hashable] | Mapping[str, Iterable[Hashable]]
_MODES = ("w", "w-", "a", "a-", "r+")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The arguments of `to_nczarr` that control how to write; see its docstring."""

    mode: WriteMode = "a"
    append_dim: str | None = None
    region: Any = None
    allow_duplicates: bool = False
    consolidated: bool | None = None
    compute: bool = True
    safe_chunks: bool = True
    progress: bool = False
    atomic: bool = False
    overwrite: bool = False

    def __post_init__(self) -> None:
        # Any nonempty string would count as true, including "False".
        for name in ("atomic", "overwrite", "allow_duplicates", "safe_chunks", "compute"):
            check_choice(name, getattr(self, name), (True, False))


def resolve_mode(mode: WriteMode | None, append_dim: Any, region: Any) -> WriteMode:
    """Return the mode of a write, with a default that depends on `append_dim` and `region`.

    Raises
    ------
    ValueError
        If `mode` is unknown, or cannot be combined with `append_dim` or `region`.
    """
    check_choice("mode", mode, (None, *_MODES))
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


DEFAULT_FORMAT = FORMATS["2"]
"""The Zarr version to write by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The Zarr version and NCZarr layout to write.

    Attributes
    ----------
    array_dimensions
        Whether to write ``_ARRAY_DIMENSIONS``, from which xarray's zarr engine reads dimension
        names.
    """

    zarr: Format = DEFAULT_FORMAT
    dialect: str = "nczarr"
    array_dimensions: bool = True

    @property
    def pure(self) -> bool:
        """Whether the store is plain Zarr, with Zarr's types instead of netCDF's."""
        return self.dialect == "zarr"

    @property
    def has_strings(self) -> bool:
        """Whether strings are stored with variable length.

        In version 2, netcdf-c requires a fixed width.
        """
        return self.pure or not self.zarr.separates_attributes

    @property
    def unlimited(self) -> bool:
        """Whether the layout supports unlimited dimensions. Plain Zarr has none."""
        return self.dialect not in ("nczarr-4.8.1", "nczarr-4.9.1")

    @property
    def chunks_within(self) -> bool:
        """Whether chunks must not be longer than their dimension, as netcdf-c 4.9.0 requires."""
        return self.dialect in ("universal", "nczarr-4.8.1", "nczarr-4.9.1")


def layout_of(location: Location, zarr_format: int | str, dialect: str) -> Layout:
    """Return the layout that the URL fragment and the arguments of the caller request.

    Raises
    ------
    ConflictError
        If the fragment and the arguments contradict each other.
    ValueError
        If the Zarr version is unknown.
    """
    kind, version = location.format, location.zarr_format
    if kind and dialect != "nczarr" and (kind == "zarr") != (dialect == "zarr"):
        raise _contradiction(kind, f"dialect={dialect!r}")
    if version and str(zarr_format) not in (version, DEFAULT_FORMAT.version):
        raise _contradiction(f"v{version}", f"zarr_format={zarr_format!r}")
    zarr = find_format(version or zarr_format)
    return Layout(
        zarr=zarr,
        dialect="zarr" if kind == "zarr" or not zarr.has_groups else dialect,
        array_dimensions=location.xarray is not False,
    )


def layout_within(opened: OpenedStore, requested: Layout) -> Layout:
    """Return the layout in which to add nodes to an existing store.

    This is the layout of the store itself. If the store has the preview version of the layout
    ``nczarr``, nodes are added in the final version.
    """
    hierarchy, dialect = opened.hierarchy, opened.root.dialect
    root = hierarchy.nodes["/"]
    if dialect == "nczarr-preview":
        dialect = "nczarr"
    elif is_universal(root):
        dialect = "universal"
    return replace(requested, zarr=FORMATS[hierarchy.zarr_format], dialect=dialect)


def _contradiction(requested: str, argument: str) -> ConflictError:
    problem = f"the URL fragment contains {requested}, but the argument is {argument}"
    return ConflictError(problem, remedy="Leave out one of them")
