"""Stores on Google Cloud and Azure can be written, appended to and read."""

import fsspec
import numpy as np
import pytest
import xarray as xr

import xr_nczarr
import xr_nczarr.references
from tests.clouds import KINDS, new_store
from tests.reading import open_store
from xr_nczarr.errors import StorageError


@pytest.fixture(params=KINDS)
def cloud(request):
    """Return the target and the storage options of an empty store in a cloud."""
    return new_store(request.param, request)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_cloud_store_supports_creation_appending_and_replacement(cloud, zarr_format):
    values = np.arange(40.0).reshape(10, 4)
    dataset = xr.Dataset({"t": (("time", "x"), values)}, {"time": np.arange(10)})
    target, options = cloud
    to_nczarr = xr_nczarr.to_nczarr
    first, rest = dataset.isel(time=slice(0, 6)), dataset.isel(time=slice(6, 10))
    chunks = {"t": {"chunks": (1, 4), **({"shards": (4, 4)} if zarr_format == 3 else {})}}
    to_nczarr(first, target, encoding=chunks, zarr_format=zarr_format, storage_options=options)
    to_nczarr(rest, target, append_dim="time", storage_options=options)
    with xr.open_dataset(target, engine="nczarr", storage_options=options) as opened:
        assert opened.t[9, 3] == 39
        xr.testing.assert_equal(opened.load(), dataset)
    assert xr_nczarr.verify(target, storage_options=options).whole
    with pytest.raises(xr_nczarr.ExistsError):
        to_nczarr(first, target, storage_options=options)
    to_nczarr(first, target, mode="w", zarr_format=zarr_format, storage_options=options)
    with xr.open_dataset(target, engine="nczarr", storage_options=options) as opened:
        xr.testing.assert_equal(opened.load(), first)


@pytest.mark.parametrize("kind", ["fsspec gs", "fsspec az"])
def test_references_written_for_cloud_store_point_to_same_cloud(kind, request):
    dataset = xr.Dataset({"t": ("x", np.arange(4.0))})
    url, options = new_store(kind, request)
    xr_nczarr.to_nczarr(dataset, f"{url}/store", storage_options=options)
    target = {"storage_options": options, "target_options": options}
    xr_nczarr.references.write(f"{url}/store", f"{url}/set.json", inline_below=0, **target)
    with xr.open_dataset(f"{url}/set.json", engine="nczarr", storage_options=options) as opened:
        xr.testing.assert_equal(opened.load(), dataset)


@pytest.mark.parametrize("kind", ["fsspec gs", "fsspec az"])
def test_zip_file_in_cloud_storage_can_be_read(kind, request, tmp_path):
    dataset = xr.Dataset({"t": ("x", np.arange(4.0))})
    url, options = new_store(kind, request)
    xr_nczarr.to_nczarr(dataset, tmp_path / "store.zip")
    filesystem, path = fsspec.url_to_fs(f"{url}/store.zip", **options)
    filesystem.put_file(tmp_path / "store.zip", path)
    with xr.open_dataset(f"{url}/store.zip", engine="nczarr", storage_options=options) as opened:
        xr.testing.assert_equal(opened.load(), dataset)


@pytest.mark.parametrize("kind", ["fsspec az", "obstore az"])
def test_reading_chunk_from_missing_container_raises_storage_error(kind, request):
    target, options = new_store(kind, request, container="none")
    store = open_store(target, storage_options=options)
    with pytest.raises(StorageError, match="the bucket does not exist"):
        next(iter(store.fetch(["t/0"])))


def test_opening_missing_cloud_store_raises_not_found_error(cloud):
    target, options = cloud
    with pytest.raises(xr_nczarr.NotFoundError, match="no Zarr metadata found"):
        xr.open_dataset(target, engine="nczarr", storage_options=options)
