"""Limits on the requests and round trips of `explain` and `verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.servers import S3Server, at_most, list_requests
from tests.stores import read_objects

pytestmark = pytest.mark.usefixtures("each_s3_client")


def put_store(server: S3Server, folder: Path, data: xr.Dataset, **encoding: Any) -> str:
    """Write a store to `folder` and return the URL of its copy on the server."""
    xr_nczarr.to_nczarr(data, folder, encoding=encoding)
    objects = {f"store/{key}": data for key, data in read_objects(folder).items()}
    server.restore(objects)
    return f"{server.url}/store"


def variables(count: int) -> xr.Dataset:
    values = {f"v{number}": ("n", np.arange(6.0)) for number in range(count)}
    return xr.Dataset(values, {"n": np.arange(6)})


def test_explain_sends_one_list_request(s3_server, tmp_path):
    url = put_store(s3_server, tmp_path / "store", variables(10))
    with at_most(s3_server, 8, 3) as batches:
        result = xr_nczarr.explain(url, storage_options=s3_server.storage_options)
    assert len(list_requests(batches)) == 1
    assert [reading.requests for reading in result.readings] == [1] * 11
    assert sum(reading.fetched_bytes or 0 for reading in result.readings) == 10 * 48 + 4096


def test_explain_lists_only_requested_variables(s3_server, tmp_path):
    url = put_store(s3_server, tmp_path / "store", variables(10))
    with at_most(s3_server, 8, 3) as batches:
        xr_nczarr.explain(url, variables=["v3"], storage_options=s3_server.storage_options)
    assert [request for request in list_requests(batches) if "prefix=store%2Fv3%2F" in request]


def test_verify_requests_many_chunks_in_few_round_trips(s3_server, tmp_path):
    data = xr.Dataset({"v": ("n", np.arange(250, dtype="i2"))})
    url = put_store(s3_server, tmp_path / "many", data, v={"chunks": 1})
    with at_most(s3_server, 260, 12):
        result = xr_nczarr.verify(url, storage_options=s3_server.storage_options)
    assert result.decoded == 250


def test_verify_reads_variables_in_batches_and_requests_each_object_once(s3_server, tmp_path):
    url = put_store(s3_server, tmp_path / "store", variables(20))
    with at_most(s3_server, 70, 4) as batches:
        result = xr_nczarr.verify(url, storage_options=s3_server.storage_options)
    assert result.decoded == 21
    assert len({item.path for item in batches.requests}) == len(batches.requests)
