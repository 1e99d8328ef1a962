"""Catalogs of intake-esm, which passes an opened file to every engine except zarr."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import xarray as xr

import xr_nczarr

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # from the dependencies of intake-esm
    intake_esm = pytest.importorskip("intake_esm")

pytestmark = pytest.mark.filterwarnings("ignore")


def catalog(paths, data_format):
    """Return a catalog of one dataset that is split along time."""
    frame = pd.DataFrame({"path": paths, "source": "model", "kind": "daily", "variable": "tas"})
    joined = {"type": "join_existing", "attribute_name": "path", "options": {"dim": "time"}}
    description = {
        "esmcat_version": "0.1.0",
        "id": "test",
        "attributes": [{"column_name": "source"}, {"column_name": "kind"}],
        "assets": {"column_name": "path", "format": data_format},
        "aggregation_control": {
            "variable_column_name": "variable",
            "groupby_attrs": ["source", "kind"],
            "aggregations": [joined],
        },
    }
    return intake_esm.esm_datastore({"esmcat": description, "df": frame})


@pytest.fixture
def parts(tmp_path):
    """Return a folder with the two halves of a dataset, as stores and as zip files."""
    for number in range(2):
        time = np.arange(3) + 3 * number
        dataset = xr.Dataset({"tas": ("time", time * 1.0)}, {"time": time})
        for suffix in ("nczarr", "zip"):
            xr_nczarr.to_nczarr(dataset, tmp_path / f"{number}.{suffix}", unlimited_dims=["time"])
    return tmp_path


@pytest.mark.parametrize("suffix", ["nczarr", "zip"])
@pytest.mark.parametrize("data_format", ["netcdf", "zarr"])
@pytest.mark.parametrize("repeated", [False, True], ids=["catalog options", "engine options"])
def test_intake_esm_opens_catalog_of_s3_stores(parts, s3_server, suffix, data_format, repeated):
    url, options = s3_server.upload(parts, "catalog"), s3_server.storage_options
    opening = {"engine": "nczarr"}
    if repeated:
        opening["backend_kwargs"] = {"storage_options": options}
    paths = [f"{url}/{number}.{suffix}" for number in range(2)]
    opened = catalog(paths, data_format).to_dask(
        xarray_open_kwargs=opening, storage_options=options, progressbar=False
    )
    assert opened.tas.values.tolist() == [0, 1, 2, 3, 4, 5]
    assert opened.tas.chunks is not None


def test_intake_esm_opens_catalog_of_local_zip_files(parts):
    """intake-esm itself rejects local folders, because it opens them as files."""
    paths = [f"file://{parts}/{number}.zip" for number in range(2)]
    opened = catalog(paths, "zarr").to_dask(
        xarray_open_kwargs={"engine": "nczarr"}, progressbar=False
    )
    assert opened.tas.values.tolist() == [0, 1, 2, 3, 4, 5]


def test_intake_esm_opens_catalog_of_zip_files_over_http(parts, http_server):
    for number in range(2):
        (parts / f"{number}.zip").rename(f"{http_server.root}/{number}.zip")
    paths = [f"{http_server.url}/{number}.zip" for number in range(2)]
    opened = catalog(paths, "zarr").to_dask(
        xarray_open_kwargs={"engine": "nczarr"}, progressbar=False
    )
    assert opened.tas.values.tolist() == [0, 1, 2, 3, 4, 5]
