"""Define the layouts in which a netCDF group can be written: a Zarr version and a dialect."""

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
        ``"nczarr"`` is the layout of netCDF-C 4.10 or, in Zarr version 3, of Appendix E in the
        specification. ``"zarr"`` is plain Zarr, the only dialect of version 1. ``"universal"``
        (version 2 only) adds objects for older releases, so that netCDF-C since 4.9.0 and
        zarr-python can open the store. In this dialect, characters have zarr-python's type, which
        netCDF-C reads as strings, and netCDF-C 4.9.0 cannot open a store that also contains strings
        and lists of strings. Other values are names of layouts for version 2, of which those before
        4.9.3 have no unlimited dimensions.
    array_dimensions
        Whether to write ``_ARRAY_DIMENSIONS``, from which xarray's zarr engine reads dimension
        names, if the Zarr version has no dimension names.
    """

    zarr: Format = DEFAULT_FORMAT
    dialect: str = "nczarr"
    array_dimensions: bool = True

    @property
    def vintages(self) -> tuple[Vintage, ...]:
        """The NCZarr layouts to write beside each other: none for plain Zarr, at most two.

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

        In version 2, netCDF-C requires a fixed width.
        """
        return self.pure or not self.zarr.separates_attributes

    @property
    def unlimited(self) -> bool:
        """Whether the layout supports unlimited dimensions. Plain Zarr has none."""
        return self.dialect not in ("nczarr-4.8.1", "nczarr-4.9.1")

    @property
    def chunks_within(self) -> bool:
        """Whether chunks must not be longer than their dimension, as netCDF-C 4.9.0 requires."""
        return self.dialect in ("universal", "nczarr-4.8.1", "nczarr-4.9.1")
