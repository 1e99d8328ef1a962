"""Define the layouts in which a netCDF group can be written.

A `Layout` consists of a Zarr version and a dialect: a form of NCZarr metadata, or plain Zarr.
"""

from __future__ import annotations

from dataclasses import dataclass

from xr_nczarr.errors import UnsupportedError, quote
from xr_nczarr.formats import FORMATS, Format
from xr_nczarr.netcdf.annotations import BY_DIALECT, NEWEST, PREVIEW, UNIVERSAL_EXTRA, Vintage

DEFAULT_FORMAT = FORMATS["2"]
"""The Zarr version to write by default."""

_VERSION_2_DIALECTS = {
    "zarr": (),
    "nczarr": (NEWEST,),
    "universal": (NEWEST, UNIVERSAL_EXTRA),
    **{name: (BY_DIALECT[name],) for name in ("nczarr-4.8.1", "nczarr-4.9.1", "nczarr-4.9.3")},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The Zarr version and the NCZarr layout to write.

    Attributes
    ----------
    dialect
        The name of the NCZarr layout:

        - ``"nczarr"`` is the layout of netCDF-C 4.10 or, in Zarr v3, the layout in Appendix E of
          the NCZarr specification.
        - ``"zarr"`` is plain Zarr, without NCZarr metadata. Zarr v1 has no other dialect.
        - ``"universal"`` combines the newest layout with additional metadata for netCDF-C 4.9.2 and
          older. zarr-python and netCDF-C 4.9.1 or later can open the store. netCDF-C 4.9.0 can open
          it unless it contains characters, strings, or an attribute that is a list of strings.
          netCDF-C reads the characters as strings. Only Zarr v2 supports this dialect.
        - Other names, such as ``"nczarr-4.8.1"``, are the layouts of earlier releases in Zarr v2.
          Layouts older than 4.9.3 do not support unlimited dimensions.
    array_dimensions
        Whether to write the ``_ARRAY_DIMENSIONS`` attribute, from which xarray's zarr engine reads
        dimension names. It is never written if the Zarr version itself has dimension names.
    consolidated
        Whether to write consolidated metadata. None means the Zarr version's default.
    """

    zarr: Format = DEFAULT_FORMAT
    dialect: str = "nczarr"
    array_dimensions: bool = True
    consolidated: bool | None = None

    @property
    def vintages(self) -> tuple[Vintage, ...]:
        """The NCZarr layouts to write.

        Plain Zarr has none, the dialect ``"universal"`` has two, and every other dialect has one.

        Raises
        ------
        UnsupportedError
            If the Zarr version does not support the dialect.
        """
        dialects: dict[str, tuple[Vintage, ...]] = {"zarr": ()}
        if self.zarr.has_groups:
            separate = self.zarr.separates_attributes
            dialects = _VERSION_2_DIALECTS if separate else {**dialects, "nczarr": (PREVIEW,)}
        if self.dialect not in dialects:
            raise UnsupportedError(
                f"Zarr version {quote(self.zarr.version)} does not support the dialect "
                f"{quote(self.dialect)!r}; expected {' or '.join(dialects)}"
            )
        return dialects[self.dialect]

    @property
    def is_plain_zarr(self) -> bool:
        """Whether the store is plain Zarr, with Zarr's types instead of netCDF's."""
        return self.dialect == "zarr"

    @property
    def has_vlen_strings(self) -> bool:
        """Whether strings have variable length in the store if the caller requests no width.

        This is False for NCZarr layouts in Zarr v2, in which netCDF-C requires a fixed width. The
        value has no meaning for Zarr v1, which supports only fixed-width strings.
        """
        return self.is_plain_zarr or not self.zarr.separates_attributes

    @property
    def supports_unlimited(self) -> bool:
        """Whether the layout supports unlimited dimensions.

        This is True for plain Zarr. Plain Zarr does not record which dimensions are unlimited, but
        programs can extend its arrays along any dimension.
        """
        vintage = BY_DIALECT.get(self.dialect)
        return vintage is None or vintage.is_current

    @property
    def limits_chunks(self) -> bool:
        """Whether chunk lengths are limited to dimension sizes, as netCDF-C 4.9.0 requires."""
        return not self.supports_unlimited or self.dialect == UNIVERSAL_EXTRA.dialect
