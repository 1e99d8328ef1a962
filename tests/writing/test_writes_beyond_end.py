"""Writes to arrays that are shorter than their dimensions."""

import json

import numpy as np
import pytest
import xarray as xr

from tests.reading import read
from xr_nczarr import ConflictError, to_nczarr


# Values beyond the end of the array were once written, but were then read as fill values.
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_only_mode_a_extends_short_arrays(
    zarr_format,
):
    old, new, store = np.arange(6.0), np.arange(10.0, 16.0), {}
    dataset = xr.Dataset({"v": ("t", old)})
    to_nczarr(dataset, store, zarr_format=zarr_format, unlimited_dims=["t"], consolidated=False)
    key = {2: "v/.zarray", 3: "v/zarr.json"}[zarr_format]
    store[key] = json.dumps({**json.loads(store[key]), "shape": [4]}).encode()
    region = {"t": slice(2, 4)}
    to_nczarr(xr.Dataset({"v": ("t", new[region["t"]])}), store, region=region)
    values = [0, 1, 12, 13, np.nan, np.nan]
    np.testing.assert_array_equal(read(store).v, values)
    before = dict(store)
    for piece in (slice(3, 5), slice(4, 6), slice(0, 6)):
        with pytest.raises(ConflictError, match="beyond the end of the array"):
            to_nczarr(xr.Dataset({"v": ("t", new[piece])}), store, region={"t": piece})
    with pytest.raises(ConflictError, match="beyond the end of the array"):
        to_nczarr(xr.Dataset({"v": ("t", new)}), store, mode="r+")
    assert store == before
    to_nczarr(xr.Dataset({"v": ("t", new)}), store, mode="a")
    np.testing.assert_array_equal(read(store).v, new)
    assert json.loads(store[key])["shape"] == [6]


# An append once made old values beyond the end of the array readable.
@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("is_clean", [True, False], ids=["fill values", "old values"])
def test_append_to_array_shorter_than_its_dimension_keeps_fill_values(zarr_format, is_clean):
    values = np.arange(12.0).reshape(6, 2)
    if is_clean:
        values[3:] = np.nan
    dataset, store = xr.Dataset({"v": (("t", "x"), values)}), {}
    options = {"zarr_format": zarr_format, "unlimited_dims": "t", "consolidated": False}
    to_nczarr(dataset, store, encoding={"v": {"chunks": (2, 2)}}, **options)
    key = {2: "v/.zarray", 3: "v/zarr.json"}[zarr_format]
    store[key] = json.dumps({**json.loads(store[key]), "shape": [3, 2]}).encode()
    before, new = store.copy(), dataset.isel(t=slice(2))
    if not is_clean:
        with pytest.raises(ConflictError, match=r"beyond the end of the array.*\(3, 2\)"):
            to_nczarr(new, store, append_dim="t")
        assert store == before
        return
    to_nczarr(new, store, append_dim="t")
    np.testing.assert_array_equal(read(store).v, np.concatenate([values, new.v]))
