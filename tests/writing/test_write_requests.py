"""Limits on the requests and round trips of writes to an object store."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.servers import S3Server, at_most, list_requests
from xr_nczarr import ExistsError, StorageError

pytestmark = pytest.mark.usefixtures("each_s3_client")

CHUNKED = {f"v{number}": {"chunks": (10, 100)} for number in range(8)}


def steps(first: int, last: int) -> xr.Dataset:
    """Return 8 variables and 2 coordinates.

    With 30 steps, they have 26 chunks, and 22 documents in version 2.
    """
    time = xr.Variable("time", np.arange(first, last), {"units": "days since 2000-01-01"})
    values = np.arange(first, last, dtype="f4")[:, np.newaxis] * np.ones(100, "f4")
    variables = dict.fromkeys(CHUNKED, (("time", "x"), values + 1))
    return xr.Dataset(variables, {"time": time, "x": np.arange(100)})


@pytest.fixture
def written(s3_server: S3Server) -> dict[str, Any]:
    """Return the arguments that select a store on the S3 server."""
    return {"target": f"{s3_server.url}/store", "storage_options": s3_server.storage_options}


def reread(written: dict[str, Any], **options: Any) -> xr.Dataset:
    return xr.open_dataset(
        written["target"],
        engine="nczarr",
        storage_options=written["storage_options"],
        decode_times=False,
        **options,
    )


VERSIONS = pytest.mark.parametrize("version", [2, 3], ids=["v2", "v3"])
BLOCKS = pytest.mark.parametrize("blocks", [None, {}], ids=["numpy", "dask"])


@BLOCKS
@VERSIONS
def test_creating_store_writes_all_chunks_concurrently(s3_server, written, version, blocks):
    dataset = steps(0, 30) if blocks is None else steps(0, 30).chunk(time=10)
    with at_most(s3_server, {2: 54, 3: 42}[version], 14):
        xr_nczarr.to_nczarr(dataset, encoding=CHUNKED, zarr_format=version, **written)
    assert reread(written).identical(steps(0, 30))


@BLOCKS
@VERSIONS
def test_creating_many_variables_takes_few_round_trips(s3_server, written, version, blocks):
    dataset = xr.Dataset({f"v{number}": ("x", np.arange(5) + number) for number in range(60)})
    made = dataset if blocks is None else dataset.chunk()
    with at_most(s3_server, {2: 188, 3: 126}[version], 14):
        xr_nczarr.to_nczarr(made, zarr_format=version, **written)
    assert reread(written).identical(dataset)


@VERSIONS
@pytest.mark.parametrize(
    ("chunk", "requests"), [(10, 54), (24, 63)], ids=["new chunks", "partial chunks"]
)
def test_appending_sends_few_requests(s3_server, written, version, chunk, requests):
    encoding = {name: {"chunks": (chunk, 100)} for name in CHUNKED}
    xr_nczarr.to_nczarr(steps(0, 30), encoding=encoding, zarr_format=version, **written)
    with at_most(s3_server, requests, 14):
        xr_nczarr.to_nczarr(steps(30, 31), append_dim="time", **written)
    assert reread(written).identical(steps(0, 31))


@pytest.mark.parametrize(
    ("version", "consolidated", "requests", "rounds"),
    [(2, True, 60, 16), (2, False, 58, 14), (3, True, 46, 12), (3, False, 46, 12)],
    ids=["v2-consolidated", "v2-single", "v3-consolidated", "v3-single"],
)
def test_replacing_store_deletes_old_chunks_in_one_request(
    s3_server, written, version, consolidated, requests, rounds
):
    options = {"encoding": CHUNKED, "zarr_format": version, "consolidated": consolidated}
    xr_nczarr.to_nczarr(steps(0, 30), **options, **written)
    s3_server.put("store/old/deep/0.0", b"left")
    with at_most(s3_server, requests, rounds) as batches:
        xr_nczarr.to_nczarr(steps(1, 31), mode="w", **options, **written)
    assert reread(written).identical(steps(1, 31))
    assert "store/old/deep/0.0" not in s3_server.objects()
    removals = [item for item in batches.requests if item.method in ("DELETE", "POST")]
    roots = {2: 2 + consolidated, 3: 1}[version]
    assert len(removals) == roots + 3  # all other objects, the marker and the lock


@pytest.mark.parametrize("each_s3_client", ["fsspec"], indirect=True)  # obstore raises other errors
def test_failed_object_deletion_raises_storage_error(s3_server, written):
    xr_nczarr.to_nczarr(steps(0, 30), **written)
    refusal = (
        b'<DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Error>'
        b"<Key>store/v0/0.0</Key><Code>AccessDenied</Code><Message>Access Denied</Message>"
        b"</Error></DeleteResult>"
    )
    s3_server.fail = lambda request: refusal if request.method == "POST" else None
    with pytest.raises(StorageError, match="Access Denied"):
        xr_nczarr.to_nczarr(steps(0, 30), mode="w", **written)


def test_rejecting_write_to_existing_store_takes_three_requests(s3_server, written):
    xr_nczarr.to_nczarr(steps(0, 30), **written)
    with at_most(s3_server, 3, 3), pytest.raises(ExistsError):
        xr_nczarr.to_nczarr(steps(0, 30), **written)
    assert reread(written).identical(steps(0, 30))


@pytest.mark.parametrize(
    ("version", "consolidated", "requests", "rounds"),
    [(2, True, 38, 12), (2, False, 37, 11), (3, True, 26, 11), (3, False, 26, 11)],
    ids=["v2-consolidated", "v2-single", "v3-consolidated", "v3-single"],
)
def test_adding_variable_reads_each_metadata_document_once(
    s3_server, written, version, consolidated, requests, rounds
):
    xr_nczarr.to_nczarr(
        steps(0, 30), encoding=CHUNKED, zarr_format=version, consolidated=consolidated, **written
    )
    new = xr.Dataset({"new": (("time", "x"), np.ones((30, 100)))})
    with at_most(s3_server, requests, rounds) as batches:
        xr_nczarr.to_nczarr(new, mode="a", **written)
    reads = Counter(item.path for item in batches.requests if item.method == "GET")
    assert set(reads.values()) == {1}
    assert reread(written).identical(steps(0, 30).merge(new))


@pytest.mark.parametrize(("version", "requests"), [(2, 30), (3, 20)], ids=["v2", "v3"])
def test_consolidating_metadata_sends_few_requests(s3_server, written, version, requests):
    xr_nczarr.to_nczarr(steps(0, 30), zarr_format=version, consolidated=False, **written)
    with at_most(s3_server, requests, 6):
        xr_nczarr.consolidate(**written)
    assert reread(written, consolidated=True).identical(steps(0, 30))


def test_creating_store_does_not_list_other_stores(s3_server):
    s3_server.restore({f"folder/{number:04}/zarr.json": b"{}" for number in range(1200)})
    with s3_server.batches() as batches:
        xr_nczarr.to_nczarr(
            xr.Dataset({"v": ("x", [1.0])}),
            f"{s3_server.url}/folder/new",
            mode="w",
            storage_options=s3_server.storage_options,
        )
    assert list_requests(batches)
    assert all("prefix=folder%2Fnew" in request for request in list_requests(batches))
