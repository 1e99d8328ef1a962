"""Limits on the requests and round trips needed to read, for each client."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.servers import PATIENT, Batches, HttpServer, S3Server, at_most
from tests.stores import read_objects
from xr_nczarr import StorageError
from xr_nczarr.references.parquet import render_parquet_references
from xr_nczarr.references.parse import parse_references


def sample() -> xr.Dataset:
    """Return 8 variables in 3 chunks each, and two indexed coordinates."""
    values = np.arange(3000, dtype="f4").reshape(30, 100)
    data = xr.Dataset({f"v{number}": (("time", "x"), values + number) for number in range(8)})
    days = {"units": "days since 2000-01-01"}
    return data.assign_coords(time=("time", np.arange(30), days), x=np.arange(100.0))


@dataclass
class Place:
    """A server whose URL `url` contains stores, and the storage options of one client."""

    server: S3Server | HttpServer
    options: dict[str, Any]

    @property
    def url(self) -> str:
        return self.server.url

    def serve(self, objects: Mapping[str, bytes]) -> None:
        """Replace all objects on the server with these objects."""
        if isinstance(self.server, S3Server):
            self.server.restore(objects)
            return
        for entry in Path(self.server.root).iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        for key, data in objects.items():
            path = Path(self.server.root, key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def open(self, name: str, **options: Any) -> xr.Dataset:
        options = {"chunks": None, "storage_options": self.options, **options}
        return xr.open_dataset(f"{self.url}/{name}", engine="nczarr", **options)

    def at_most(self, requests: int, rounds: int) -> AbstractContextManager[Batches]:
        return at_most(self.server, requests, rounds)


@pytest.fixture(params=["s3-fsspec", "s3-obstore", "http"])
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """Return a server and the options of one client. The test runs with each client."""
    if request.param == "http":
        yield Place(request.getfixturevalue("http_server"), PATIENT)
        return
    server = request.getfixturevalue("s3_server")
    client = {"client": request.param.removeprefix("s3-")}
    yield Place(server, {**server.storage_options, **PATIENT, **client})


def write_sample(folder: Path) -> dict[str, bytes]:
    """Write the sample in plain Zarr, and return its objects by key."""
    encoding = {f"v{number}": {"chunks": (10, 100)} for number in range(8)}
    xr_nczarr.to_nczarr(sample(), folder, encoding=encoding, dialect="zarr")
    return read_objects(folder)


# Reference sets -----------------------------------------------------------------------------------


def references(folder: Path, url: str) -> dict[str, bytes]:
    """Return a file that contains the chunks of the sample, and reference sets, by key.

    The reference sets are a JSON document and two equal parquet sets in folders.
    """
    entries: dict[str, Any] = {}
    file = b""
    for key, data in write_sample(folder).items():
        name = key.rpartition("/")[2]
        if name.startswith("."):
            entries |= {key: data.decode()} if name != ".zmetadata" else {}
        else:
            entries[key] = [f"{url}/data.nc", len(file), len(data)]
            file += data
    document = {"version": 1, "refs": entries}
    objects = {"data.nc": file, "set.json": json.dumps(document).encode()}
    for name, data in render_parquet_references(parse_references(document), record_size=2):
        objects[f"set.parq/{name}"] = objects[f"records/{name}"] = data
    return objects


@pytest.mark.parametrize(
    ("name", "requests", "rounds"),
    [("set.json", 2, 2), ("set.parq", 4, 3), ("reference::set.parq", 4, 3), ("records", 9, 3)],
)
def test_opening_reference_set_sends_few_requests(place, tmp_path, name, requests, rounds):
    place.serve(references(tmp_path / "store", place.url))
    chain, _, name = name.rpartition("::")
    with place.at_most(requests, rounds):
        opened = xr.open_dataset(
            f"{chain}{chain and '::'}{place.url}/{name}",
            engine="nczarr",
            chunks=None,
            storage_options=place.options,
        )
    with place.at_most(*((1, 1) if name == "set.json" else (3, 2))):
        opened["v3"].load()
    xr.testing.assert_identical(opened, sample().pipe(xr.decode_cf))


def test_unreadable_coordinate_does_not_affect_other_variables(place, tmp_path):
    objects = references(tmp_path / "store", place.url)
    document = json.loads(objects["set.json"])
    document["refs"]["x/0"] = [f"{place.url}/nothing.nc", 0, 800]
    place.serve(objects | {"set.json": json.dumps(document).encode()})
    with pytest.warns(xr.SerializationWarning, match="'x'|/x"):
        result = place.open("set.json")
    assert result["time"].size == 30


def test_concurrent_threads_fetch_each_record_file_once(place, tmp_path):
    place.serve(references(tmp_path / "store", place.url))
    result = place.open("set.parq")
    with place.server.batches() as batches, ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda index: result["v3"][index].load(), range(20)))
    paths = [item.path for item in batches.requests if item.path.endswith(".parq")]
    assert len(paths) == 1


def test_zarr_store_named_like_parquet_set_can_be_read(place, tmp_path):
    objects = write_sample(tmp_path / "store")
    place.serve({f"store.parquet/{key}": data for key, data in objects.items()})
    xr.testing.assert_identical(place.open("store.parquet"), sample().pipe(xr.decode_cf))


# Zip files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 200], ids=["small", "large"])
def test_opening_zip_file_sends_one_request(place, tmp_path, size):
    rng = np.random.default_rng(0)
    data = sample().isel(x=slice(10))
    noise = rng.normal(size=(30, 10, size)).astype("f4")
    xr_nczarr.to_nczarr(data.assign(noise=(("time", "x", "z"), noise)), tmp_path / "store.zip")
    file = (tmp_path / "store.zip").read_bytes()
    assert (len(file) > 100_000) == (size > 1)
    place.serve({"store.zip": file})
    with place.at_most(*((1, 1) if size == 1 else (3, 3))):
        result = place.open("store.zip")
    with place.at_most(0 if size == 1 else 1, 1):
        result["v3"].load()
    xr.testing.assert_identical(result.drop_vars("noise"), data.pipe(xr.decode_cf))
    np.testing.assert_array_equal(result["noise"], noise)


# Shards -------------------------------------------------------------------------------------------


def write_shards(folder: Path, values: np.ndarray, *, name: str = "shards") -> dict[str, bytes]:
    """Return the objects of an array in shards of 40 chunks, by key.

    A process caches shard indices by store name. A test that counts requests must therefore pass a
    `name` of its own.
    """
    encoding = {"v": {"chunks": (1, 100), "shards": (40, 100)}}
    xr_nczarr.to_nczarr(
        xr.Dataset({"v": (("t", "x"), values)}), folder, encoding=encoding, zarr_format=3, mode="w"
    )
    return {f"{name}/{key}": data for key, data in read_objects(folder).items()}


@pytest.fixture
def tagged_place(s3_server: S3Server) -> Place:
    """Return a server and a client that identifies the version of the object in each response."""
    return Place(s3_server, {**s3_server.storage_options, **PATIENT, "client": "obstore"})


splitting = pytest.mark.filterwarnings("ignore:The specified chunks separate the stored chunks")


@splitting
def test_tasks_in_one_process_fetch_shard_index_once(tagged_place, tmp_path):
    values = np.random.default_rng(1).normal(size=(200, 100))
    tagged_place.serve(write_shards(tmp_path / "store", values, name="read-by-threads"))
    result = tagged_place.open("read-by-threads", chunks={"t": 1})
    with tagged_place.server.batches() as batches:
        np.testing.assert_array_equal(result["v"].compute(scheduler="threads"), values)
    assert len(batches.requests) == 205


@splitting
def test_each_process_fetches_shard_index_once(tagged_place, tmp_path, workers):
    values = np.random.default_rng(2).normal(size=(200, 100))
    tagged_place.serve(write_shards(tmp_path / "store", values, name="read-by-processes"))
    result = tagged_place.open("read-by-processes", chunks={"t": 1})
    tagged_place.server.clear()
    np.testing.assert_array_equal(workers.compute(result["v"]).result(), values)
    assert 205 <= len(tagged_place.server.requests) <= 210


@splitting
@pytest.mark.parametrize(
    "change",
    [
        lambda values: values[::-1] * 3,
        lambda values: np.where(np.arange(80)[:, None] % 3, values, np.nan),
        lambda values: np.full_like(values, np.nan),
        lambda values: np.zeros_like(values),
    ],
    ids=["reversed", "fewer-chunks", "no-chunks", "smaller"],
)
def test_replaced_shard_is_read_with_new_values(place, tmp_path, change):
    first = np.where(np.arange(80)[:, None] % 2, np.arange(8000.0).reshape(80, 100), np.nan)
    for before, after in ((first, change(first)), (change(first), first)):
        place.serve(write_shards(tmp_path / "store", before))
        result = place.open("shards", chunks={"t": 1})["v"]
        np.testing.assert_array_equal(result.compute(scheduler="single-threaded"), before)
        place.serve(write_shards(tmp_path / "store", after))
        np.testing.assert_array_equal(result.compute(scheduler="single-threaded"), after)


def test_shard_replaced_after_index_fetch_is_reread(tagged_place, tmp_path):
    values = np.random.default_rng(3).normal(size=(40, 100))
    old = write_shards(tmp_path / "store", values)
    new = write_shards(tmp_path / "store", np.where(values > 2, np.nan, -values)[::-1])
    tagged_place.serve(old)
    result = tagged_place.open("shards")["v"]
    remaining = [tagged_place.server.objects, lambda: tagged_place.server.restore(new)]

    def replace(request: Any) -> None:
        if "/v/c/" in request.path and remaining:
            remaining.pop(0)()

    tagged_place.server.fail = replace
    expected = np.where(values > 2, np.nan, -values)[::-1]
    np.testing.assert_array_equal(result[3].values, expected[3])


def test_repeatedly_replaced_shard_raises_storage_error(tagged_place, tmp_path):
    values = np.random.default_rng(4).normal(size=(40, 100))
    stores = [write_shards(tmp_path / "store", values * number) for number in range(1, 3)]
    tagged_place.serve(stores[0])
    result = tagged_place.open("shards")["v"]

    def replace(request: Any) -> None:
        if "/v/c/" in request.path:
            tagged_place.server.restore(stores[0])
            stores.reverse()

    tagged_place.server.fail = replace
    with pytest.raises(StorageError, match="repeatedly replaced"):
        result[3].load()


# Caches -------------------------------------------------------------------------------------------


def test_cached_store_can_be_opened_if_server_returns_403_for_missing_objects(s3_server, tmp_path):
    s3_server.restore(
        {f"store/{key}": data for key, data in write_sample(tmp_path / "store").items()}
    )
    present = {f"/{s3_server.bucket}/{key}" for key in s3_server.objects()}
    s3_server.fail = lambda request: None if request.path.partition("?")[0] in present else 403
    opened = xr.open_dataset(
        f"simplecache::{s3_server.url}/store",
        engine="nczarr",
        storage_options={"s3": s3_server.storage_options},
    )
    xr.testing.assert_identical(opened.load(), sample().pipe(xr.decode_cf))
