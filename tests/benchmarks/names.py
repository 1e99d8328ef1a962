"""Display names of the contestants."""

import re

_NAMES = {
    "limit": "bare work",
    "limit: bytes": "bare download",
    "limit: dask": "dask without reading",
    "undecoded": "decode_cf=False",
    "xarray alone": "xarray without a store",
    "ours, sync='none'": "xr_nczarr with sync='none'",
    "without": "without xr_nczarr",
    "with zarr": "with zarr instead",
}
"""Names on the page and in the figure, if they differ from those in the results."""


def shown(name: str) -> str:
    """Return the name of a contestant that the page and the figure show."""
    alone = re.sub("^limit: (.*)", r"\1 alone", _NAMES.get(name, name))
    return alone.replace(", ", " with ")
