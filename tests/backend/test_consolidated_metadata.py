"""Consolidated metadata that is out of date or damaged."""

import json

import pytest
import xarray as xr

from xr_nczarr import MetadataError


def test_consolidated_v3_metadata_without_contents_raises_metadata_error():
    document = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    document["consolidated_metadata"] = {"kind": "inline", "must_understand": False}
    with pytest.raises(
        MetadataError, match=r"zarr.json, consolidated_metadata\.metadata: invalid value None"
    ):
        xr.open_dataset({"zarr.json": json.dumps(document).encode()}, engine="nczarr")
