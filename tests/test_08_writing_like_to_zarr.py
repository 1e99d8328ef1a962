"""Arguments that mean what they mean in `to_zarr`, and what is refused that is none."""

import numpy as np
import pytest
import xarray as xr

from xr_nczarr import ExistsError, to_nczarr


def read(target, **options):
    """Give all of what was written."""
    return xr.open_dataset(target, engine="nczarr", **options).load()


@pytest.mark.parametrize("mode", ["a", "w", "r+"])
@pytest.mark.parametrize("group", ["g//h", "/g/h/", "//g///h"])
def test_a_group_is_the_same_however_many_slashes_its_path_has(group, mode):
    old = xr.Dataset({"v": ("x", np.arange(8))})
    store = {}
    to_nczarr(old, store, group="g/h", encoding={"v": {"chunks": 8}})
    with pytest.raises(ExistsError):
        to_nczarr(old, store, group=group)
    to_nczarr(old.chunk(x=2) + 100, store, group=group, mode=mode)
    for spelled in ("g/h", group):
        assert read(store, group=spelled).identical(old + 100)


def test_a_group_that_is_no_text_is_refused():
    with pytest.raises(ValueError, match="group must be a string or None; found 3"):
        to_nczarr(xr.Dataset(), {}, group=3)
