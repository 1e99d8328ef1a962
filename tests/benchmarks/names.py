"""Display names of the implementations."""

import re

_NAMES = {
    "baseline: dask": "dask without reading",
    "undecoded": "decode_cf=False",
    "xarray alone": "xarray without a store",
}
"""Names on the page and in the figure, if they differ from those in the results."""


def shown(name: str) -> str:
    """Return the name of an implementation that the page and the figure show."""
    name = re.sub("^baseline: (.*)", r"\1 alone", _NAMES.get(name, name))
    return re.sub("^limit: (.*)", r"limit (\1)", name).replace(", ", " with ")
