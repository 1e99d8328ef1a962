"""Parse and render Zarr metadata documents, with one subclass of `Format` per Zarr version."""

from collections.abc import Mapping

from xr_nczarr.formats.format import Format
from xr_nczarr.formats.v1 import V1
from xr_nczarr.formats.v2 import V2
from xr_nczarr.formats.v3 import V3
from xr_nczarr.formats.v3_draft import V3Draft

__all__ = ["FORMATS", "Format", "find_format"]

# Versions are recognized in this order. v3 comes before its draft, because both have a
# ``zarr.json``. v1 comes last, because its keys could be array names in another version.
FORMATS: Mapping[str, Format] = {item.version: item for item in (V3(), V2(), V3Draft(), V1())}


def find_format(zarr_format: object) -> Format:
    """Return the `Format` for a value of the `zarr_format` option, such as 2 or ``"3-draft"``.

    Raises
    ------
    ValueError
        If `zarr_format` is not one of the versions in `FORMATS`.
    """
    if str(zarr_format) not in FORMATS:
        versions = ", ".join(sorted(FORMATS))
        raise ValueError(f"zarr_format must be one of {versions}, not {zarr_format!r}")
    return FORMATS[str(zarr_format)]
