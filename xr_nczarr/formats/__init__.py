"""Parse and render the documents of each Zarr version, by one subclass of `Format` each."""

from collections.abc import Mapping

from xr_nczarr.formats.format import Format
from xr_nczarr.formats.v1 import V1
from xr_nczarr.formats.v2 import V2
from xr_nczarr.formats.v3 import V3
from xr_nczarr.formats.v3_draft import V3Draft

__all__ = ["FORMATS", "Format", "find_format"]

# In the order of recognition: both v3 and its draft begin with ``zarr.json``, and v1's keys are
# names that an array of another version could have.
FORMATS: Mapping[str, Format] = {item.version: item for item in (V3(), V2(), V3Draft(), V1())}


def find_format(zarr_format: object) -> Format:
    """Return the format that a caller names, such as ``2`` or ``"3-draft"``.

    Raises
    ------
    ValueError
        For a version that is not in `FORMATS`.
    """
    if str(zarr_format) not in FORMATS:
        versions = ", ".join(sorted(FORMATS))
        raise ValueError(f"zarr_format must be one of {versions}; found {zarr_format!r}")
    return FORMATS[str(zarr_format)]
