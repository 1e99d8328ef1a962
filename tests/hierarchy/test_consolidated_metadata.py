"""Consolidated metadata that is out of date or damaged."""

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.reading import read
from tests.stores import write_netcdf_c
from xr_nczarr import MetadataError


def test_consolidated_v3_metadata_without_contents_raises_metadata_error():
    document = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    document["consolidated_metadata"] = {"kind": "inline", "must_understand": False}
    with pytest.raises(
        MetadataError, match=r"zarr.json, consolidated_metadata\.metadata: invalid value None"
    ):
        xr.open_dataset({"zarr.json": json.dumps(document).encode()}, engine="nczarr")


# Regression D22
def test_stale_consolidated_metadata_is_detected_on_request(tmp_path: Path, way: str) -> None:
    store = tmp_path / "s.zarr"
    first = xr.Dataset({"v": ("t", np.arange(2))})
    first.to_zarr(store, zarr_format=2, consolidated=True)
    assert read(store, way, consolidated="check").v.size == 2
    xr.Dataset({"v": ("t", np.arange(3))}).to_zarr(store, append_dim="t", consolidated=False)
    assert read(store, way, consolidated=None).v.size == 2
    assert read(store, way, consolidated=False).v.values.tolist() == [0, 1, 0, 1, 2]
    with pytest.raises(xr_nczarr.NczarrError, match=r"v/\.zarray"):
        xr.open_dataset(store, engine="nczarr", consolidated="check")


# Regression D22
def test_outdated_attributes_in_consolidated_metadata_are_detected_on_request(
    tmp_path: Path,
) -> None:
    store = write_netcdf_c(tmp_path / "s", "nczarr,consolidated")
    xr.open_dataset(store, engine="nczarr", consolidated="check")
    attributes = json.loads((store / "g/.zattrs").read_text()) | {"new": 1}
    (store / "g/.zattrs").write_text(json.dumps(attributes))
    with pytest.raises(xr_nczarr.NczarrError, match=r"g/\.zattrs"):
        xr.open_dataset(store, engine="nczarr", consolidated="check")
