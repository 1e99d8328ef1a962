"""Define the layouts in which a netCDF group can be written.

A layout combines a Zarr version with a dialect, which is the name of an NCZarr layout.
"""

from __future__ import annotations

from dataclasses import dataclass

from xr_nczarr.errors import UnsupportedError, quote
from xr_nczarr.formats import FORMATS, Format
from xr_nczarr.netcdf.annotations import BESIDE, BY_DIALECT, Vintage

DEFAULT_FORMAT = FORMATS["2"]
"""The Zarr version to write by default."""

NEWEST, PREVIEW = BY_DIALECT["nczarr-4.9.3"], BY_DIALECT["nczarr-preview"]
_WITH_SIDECARS = {
    "zarr": (),
    "nczarr": (NEWEST,),
    "universal": (NEWEST, BESIDE),
    **{name: (BY_DIALECT[name],) for name in ("nczarr-4.8.1", "nczarr-4.9.1", "nczarr-4.9.3")},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The Zarr version and NCZarr layout to write.

    Attributes
    ----------
    dialect
        ``"nczarr"`` is the layout that netCDF-C 4.10 writes. In Zarr version 3, it is the layout of
        Appendix E of the NCZarr specification. ``"zarr"`` is plain Zarr, the only dialect of
        version 1. ``"universal"`` (version 2 only) adds objects for older releases, so that
        zarr-python and netCDF-C since 4.9.0 can open the store. In this dialect, characters have
        zarr-python's type, which netCDF-C reads as strings. netCDF-C 4.9.0 cannot open such a store
        if it also contains strings and lists of strings. All other values name a layout for
        version 2. The layouts before 4.9.3 have no unlimited dimensions.
    array_dimensions
        Whether to write the attribute ``_ARRAY_DIMENSIONS`` if the Zarr version itself has no
        dimension names. xarray's zarr engine reads dimension names from this attribute.
    """

    zarr: Format = DEFAULT_FORMAT
    dialect: str = "nczarr"
    array_dimensions: bool = True

    @property
    def vintages(self) -> tuple[Vintage, ...]:
        """The NCZarr layouts to write into the same store: at most two, and none for plain Zarr.

        Raises
        ------
        UnsupportedError
            If the Zarr version does not support the dialect.
        """
        dialects: dict[str, tuple[Vintage, ...]] = {"zarr": ()}
        if self.zarr.has_groups:
            separate = self.zarr.separates_attributes
            dialects = _WITH_SIDECARS if separate else {**dialects, "nczarr": (PREVIEW,)}
        if self.dialect not in dialects:
            raise UnsupportedError(
                f"Zarr version {quote(self.zarr.version)} does not support the dialect "
                f"{quote(self.dialect)!r}; expected {' or '.join(dialects)}"
            )
        return dialects[self.dialect]

    @property
    def pure(self) -> bool:
        """Whether the store is plain Zarr, with Zarr's types instead of netCDF's."""
        return self.dialect == "zarr"

    @property
    def has_strings(self) -> bool:
        """Whether strings are stored with variable length.

        False for NCZarr in version 2, because netCDF-C requires a fixed width there.
        """
        return self.pure or not self.zarr.separates_attributes

    @property
    def unlimited(self) -> bool:
        """Whether the layout accepts unlimited dimensions.

        Plain Zarr accepts them, although it does not record that they are unlimited.
        """
        return self.dialect not in ("nczarr-4.8.1", "nczarr-4.9.1")

    @property
    def chunks_within(self) -> bool:
        """Whether no chunk may be longer than its dimension, which netCDF-C 4.9.0 requires."""
        return self.dialect in ("universal", "nczarr-4.8.1", "nczarr-4.9.1")
