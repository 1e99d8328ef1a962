"""Consolidated metadata that is outdated or damaged, or that zarr-python reads."""

import json
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr

import xr_nczarr
from tests.reading import read
from tests.stores import write_netcdf_c
from xr_nczarr import MetadataError
from xr_nczarr.hierarchy.changes import group_siblings


def test_incomplete_consolidated_metadata_is_rejected():
    document = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    document["consolidated_metadata"] = {"kind": "inline", "must_understand": False}
    with pytest.raises(
        MetadataError, match=r"zarr.json, consolidated_metadata\.metadata: the required member"
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


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dialect", ["zarr", "nczarr"])
def test_zarr_python_reads_consolidated_metadata_after_changes_to_several_groups(
    tmp_path: Path, dialect: str, zarr_format: int
) -> None:
    store = tmp_path / "s"
    options = {"dialect": dialect, "zarr_format": zarr_format, "consolidated": True}
    added = ["a", "g/a", "h/a", "g/b", "g/sub/a", "h/b"]
    for count, path in enumerate(added, 1):
        group, _, name = path.rpartition("/")
        variable = xr.Dataset({name: ("x", [1, 2])})
        xr_nczarr.to_nczarr(variable, store, mode="a", group=group, **options)
        members = zarr.open_consolidated(store).members(max_depth=None)
        arrays = [path for path, member in members if isinstance(member, zarr.Array)]
        assert sorted(arrays) == sorted(added[:count])
        expected = xr.open_datatree(store, engine="nczarr", consolidated=False)
        opened = xr.open_datatree(store, engine="zarr", consolidated=True)
        xr.testing.assert_equal(opened, expected)


def test_children_of_each_group_are_adjacent_in_consolidated_metadata() -> None:
    keys = ["g/b/.zarray", "h/a/.zarray", ".zattrs", "g/a/.zarray", "g/s/.zgroup", "h/.zgroup"]
    assert list(group_siblings(dict.fromkeys(keys, b""))) == [
        *("g/b/.zarray", "g/a/.zarray", "g/s/.zgroup"),
        "h/a/.zarray",
        *(".zattrs", "h/.zgroup"),
    ]
