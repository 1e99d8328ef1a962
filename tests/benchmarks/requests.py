"""Benchmarks that count the requests and round trips to an S3 server.

The counts are the same on every machine.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

import xr_nczarr
from tests.benchmarks.harness import OURS, Row
from tests.servers import S3Server
from tests.stores import read_objects
from xr_nczarr.references.parquet import render_parquet_references
from xr_nczarr.references.parse import parse_references

UNITS = ("requests", "round trips")


class Counts(NamedTuple):
    """The number of requests and the number of round trips of a piece of work."""

    requests: int
    batches: int


class Work(NamedTuple):
    """A piece of work. `prepare` runs first and is not counted; its result is passed to `run`."""

    run: Callable[[Any], Any]
    prepare: Callable[[], Any] = lambda: None


def sample(variables: int = 8) -> xr.Dataset:
    """Return variables of 30 x 100 numbers in 3 chunks each, and two indexed coordinates."""
    values = np.arange(3000, dtype="f4").reshape(30, 100)
    data = xr.Dataset({f"v{number}": (("time", "x"), values) for number in range(variables)})
    days = {"units": "days since 2000-01-01"}
    return data.assign_coords(time=("time", np.arange(30), days), x=np.arange(100.0))


def make_objects(folder: Path) -> dict[str, bytes]:
    """Write the stores that will be read into `folder`, and return their objects by key."""
    shutil.rmtree(folder, ignore_errors=True)  # files of an earlier run with --data
    data = sample()
    chunks = {name: {"chunks": (10, 100)} for name in data.data_vars}
    for version in (2, 3):
        for consolidated in (True, False):
            name = f"v{version}-{'consolidated' if consolidated else 'single'}"
            data.to_zarr(
                folder / name, zarr_format=version, consolidated=consolidated, encoding=chunks
            )
    names = [f"/g{number}" for number in range(10)]
    tree = dict.fromkeys(names, data) | {f"{name}/h": data for name in names}
    xr.DataTree.from_dict(tree).to_zarr(folder / "tree", zarr_format=2, consolidated=True)
    xr_nczarr.to_nczarr(data, folder / "store.zip", encoding=chunks, dialect="zarr")
    shards = xr.Dataset({"v": (("t", "x"), np.ones((200, 100)))})
    encoding = {"v": {"chunks": (1, 100), "shards": (40, 100)}}
    for name in (
        "shards",
        "shards-split",
    ):  # so that no piece of work uses an index that another one cached
        shards.to_zarr(folder / name, zarr_format=3, consolidated=False, encoding=encoding)
    return read_objects(folder)


def make_references(objects: dict[str, bytes], bucket: str) -> dict[str, bytes]:
    """Return a file that contains the chunks of a store, and reference sets that refer to it."""
    entries: dict[str, Any] = {}
    file = b""
    for key, data in sorted(objects.items()):
        folder, _, name = key.partition("/")
        if folder == "v2-single" and name.rpartition("/")[2].startswith("."):
            entries[name] = data.decode()
        elif folder == "v2-single":
            entries[name] = [f"s3://{bucket}/data.nc", len(file), len(data)]
            file += data
    document = {"version": 1, "refs": entries}
    made = {"data.nc": file, "set.json": json.dumps(document).encode()}
    records = render_parquet_references(parse_references(document), record_size=10_000)
    return made | {f"set.parq/{name}": data for name, data in records}


def _zarr_store(server: S3Server, name: str) -> Any:
    """Return zarr-python's obstore-based store for a folder of the server."""
    from obstore.store import S3Store
    from zarr.storage import ObjectStore

    store = S3Store(
        server.bucket,
        prefix=name,
        endpoint=server.endpoint,
        region=server.region,
        access_key_id="testing",
        secret_access_key="testing",
        client_options={"allow_http": True},
    )
    return ObjectStore(store)


def _engine(server: S3Server, engine: str, client: str) -> Callable[..., xr.Dataset]:
    """Return a function that opens a store of the server by its name."""
    options = server.storage_options
    if engine == "nczarr":
        options = {**options, "client": client}
    if engine == "zarr" and client == "obstore":

        def opened(name: str, **more: Any) -> Any:
            more = {"chunks": None, **more}
            return xr.open_dataset(_zarr_store(server, name), engine="zarr", **more)

        return opened

    def opened(name: str, **more: Any) -> Any:
        more = {"chunks": None, **more}
        url = name if "::" in name else f"{server.url}/{name}"
        return xr.open_dataset(url, engine=engine, storage_options=options, **more)

    return opened


def _writer(server: S3Server, engine: str, client: str) -> Callable[..., Any]:
    """Return a function that writes a dataset to a store of the server, in version 2."""
    options: dict[str, Any] = server.storage_options
    if engine == "nczarr":
        options = {**options, "client": client}

    def write(data: xr.Dataset, name: str, **more: Any) -> Any:
        if "append_dim" not in more:
            encoding = {variable: {"chunks": (10, 100)} for variable in data.data_vars}
            more = {"encoding": encoding, "zarr_format": 2, **more}
        if engine == "nczarr":
            url = f"{server.url}/{name}"
            return xr_nczarr.to_nczarr(data, url, storage_options=options, **more)
        if client == "obstore":
            return data.to_zarr(_zarr_store(server, name), **more)
        return data.to_zarr(f"{server.url}/{name}", storage_options=options, **more)

    return write


def _writes(write: Callable[..., Any]) -> dict[str, Work]:
    """Return pieces of work in which a writer creates, extends, replaces and rejects stores."""
    data, step = sample(), sample().isel(time=[-1])
    step["time"] = step["time"] + 1

    def refused(_: None) -> None:
        with suppress(OSError, ValueError):
            write(data, "refused", mode="w-")

    return {
        "create 10 variables": Work(lambda _: write(data, "created")),
        "append one time step": Work(
            lambda _: write(step, "appended", append_dim="time"), lambda: write(data, "appended")
        ),
        "replace a store, mode='w'": Work(
            lambda _: write(data, "replaced", mode="w"), lambda: write(data, "replaced")
        ),
        "reject an existing store, mode='w-'": Work(refused, lambda: write(data, "refused")),
    }


def _values(dataset: xr.Dataset) -> Any:
    return dataset["v3"].values


def _engines(server: S3Server, engine: str, client: str) -> dict[str, Work]:
    """Return pieces of work in which an xarray engine reads stores of the server."""
    opened = _engine(server, engine, client)

    def open_tree(_: None) -> Any:
        options = {"storage_options": server.storage_options, "chunks": None}
        return xr.open_datatree(f"{server.url}/tree", engine=engine, **options)

    def open_wrong(_: None) -> None:
        with suppress(FileNotFoundError):
            opened("wrong")

    works = {
        "open Zarr v2, consolidated": Work(lambda _: opened("v2-consolidated")),
        "open Zarr v2, not consolidated": Work(lambda _: opened("v2-single", consolidated=False)),
        "open Zarr v3, not consolidated": Work(lambda _: opened("v3-single", consolidated=False)),
        "open a nonexistent store": Work(open_wrong),
        "read a point": Work(
            lambda data: data["v3"][3, 4].values, lambda: opened("v2-consolidated")
        ),
        "read 3 chunks": Work(_values, lambda: opened("v2-consolidated")),
        "read a point in a shard": Work(
            lambda data: data["v"][3, 4].values, lambda: opened("shards", consolidated=False)
        ),
        "read 5 shards in 200 dask tasks": Work(
            lambda array: array.compute(scheduler="threads"),
            lambda: opened("shards-split", consolidated=False, chunks={"t": 1})["v"],
        ),
    }
    if (engine, client) != ("zarr", "obstore"):
        works["open a tree of 21 groups, consolidated"] = Work(open_tree)
    if engine == "nczarr":
        works |= {
            "open a zip file": Work(lambda _: opened("store.zip")),
            "open JSON references": Work(lambda _: opened("set.json")),
            "open parquet references": Work(lambda _: opened("set.parq")),
        }
    elif client == "fsspec":
        both = {
            "remote_protocol": "s3",
            "remote_options": {**server.storage_options, "asynchronous": True},
            "target_protocol": "s3",
            "target_options": server.storage_options,
        }

        def open_references(name: str) -> Any:
            options = {"fo": f"{server.url}/{name}", **both}
            return xr.open_dataset(
                "reference://", engine="zarr", chunks=None, consolidated=False,
                storage_options=options,
            )  # fmt: skip

        def open_zip(_: None) -> Any:
            s3_options = {"s3": server.storage_options}
            url = f"zip://store::{server.url}/store.zip"
            return xr.open_dataset(url, engine="zarr", chunks=None, storage_options=s3_options)

        works |= {
            "open a zip file": Work(open_zip),
            "open JSON references": Work(lambda _: open_references("set.json")),
            "open parquet references": Work(lambda _: open_references("set.parq")),
        }
    return works | _writes(_writer(server, engine, client))


def _ours(server: S3Server) -> dict[str, Work]:
    return _engines(server, "nczarr", "obstore")


def _ours_by_fsspec(server: S3Server) -> dict[str, Work]:
    return _engines(server, "nczarr", "fsspec")


def _zarr_by_fsspec(server: S3Server) -> dict[str, Work]:
    return _engines(server, "zarr", "fsspec")


def _zarr_by_obstore(server: S3Server) -> dict[str, Work]:
    return _engines(server, "zarr", "obstore")


def _kerchunk(server: S3Server) -> dict[str, Work]:
    def opened(name: str) -> Any:
        options = {
            "remote_protocol": "s3",
            "remote_options": {**server.storage_options, "asynchronous": True},
            "target_protocol": "s3",
            "target_options": server.storage_options,
        }
        url = f"{server.url}/{name}"
        return xr.open_dataset(url, engine="kerchunk", chunks=None, storage_options=options)

    return {
        "open JSON references": Work(lambda _: opened("set.json")),
        "open parquet references": Work(lambda _: opened("set.parq")),
    }


def _tensorstore(server: S3Server) -> dict[str, Work]:
    import tensorstore

    os.environ |= {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}

    def opened(name: str, driver: str = "zarr") -> Any:
        kvstore = {
            "driver": "s3",
            "bucket": server.bucket,
            "path": name,
            "endpoint": server.endpoint,
            "aws_region": server.region,
            "aws_credentials": {"type": "environment"},
        }
        return tensorstore.open({"driver": driver, "kvstore": kvstore}, read=True).result()

    return {
        "read a point": Work(
            lambda array: array[3, 4].read().result(), lambda: opened("v2-single/v3/")
        ),
        "read 3 chunks": Work(lambda array: array.read().result(), lambda: opened("v2-single/v3/")),
        "read a point in a shard": Work(
            lambda array: array[3, 4].read().result(), lambda: opened("shards/v/", "zarr3")
        ),
    }


def _icechunk(server: S3Server) -> dict[str, Work]:
    import icechunk

    def storage() -> Any:
        return icechunk.s3_storage(
            bucket=server.bucket,
            prefix="icechunk",
            endpoint_url=server.endpoint,
            region=server.region,
            access_key_id="testing",
            secret_access_key="testing",
            allow_http=True,
            force_path_style=True,
        )

    session = icechunk.Repository.create(storage()).writable_session("main")
    data = sample()
    encoding = {name: {"chunks": (10, 100)} for name in data.data_vars}
    data.to_zarr(session.store, zarr_format=3, consolidated=False, encoding=encoding)
    session.commit("sample")

    def opened(_: None = None) -> Any:
        store = icechunk.Repository.open(storage()).readonly_session("main").store
        options = {"zarr_format": 3, "consolidated": False, "chunks": None}
        return xr.open_dataset(store, engine="zarr", **options)

    return {
        "open Zarr v3, not consolidated": Work(opened),
        "read a point": Work(lambda datasets: datasets["v3"][3, 4].values, opened),
        "read 3 chunks": Work(_values, opened),
    }


IMPLEMENTATIONS: dict[str, Callable[[S3Server], dict[str, Work]]] = {
    OURS: _ours,
    "xr_nczarr, fsspec": _ours_by_fsspec,
    "engine zarr, obstore": _zarr_by_obstore,
    "engine zarr, fsspec": _zarr_by_fsspec,
    "icechunk": _icechunk,
    "tensorstore": _tensorstore,
    "kerchunk": _kerchunk,
}


def count(implementation: str, objects: dict[str, bytes]) -> dict[str, Counts | str]:
    """Return the counts of each piece of work of an implementation.

    A piece of work that fails has an error message instead of counts. The pieces of work do not
    share caches.
    """
    import fsspec

    warnings.simplefilter("ignore")
    counts: dict[str, Counts | str] = {}
    with S3Server() as server:
        server.restore(objects | make_references(objects, server.bucket))
        for name, work in IMPLEMENTATIONS[implementation](server).items():
            try:
                prepared = work.prepare()
                with server.batches() as batches:
                    work.run(prepared)
                counts[name] = Counts(len(batches.requests), batches.count)
            except Exception as error:
                counts[name] = f"{type(error).__name__}: {error}"[:200]
            for kind in fsspec.registry.values():
                kind.clear_instance_cache()
    return counts


def requests(directory: Path) -> Iterator[Row]:
    """Yield two benchmarks for each piece of work.

    One compares the numbers of requests, and the other compares the numbers of round trips.
    """
    folder = directory / "requests"
    objects = make_objects(folder)
    counts: dict[str, dict[str, Counts | str]] = {}
    for implementation in IMPLEMENTATIONS:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            counts[implementation] = process.submit(count, implementation, objects).result()
    for name in counts[OURS]:
        for position, unit in enumerate(UNITS):
            implementations = {
                implementation: _counted(counts[implementation][name], position)
                for implementation in IMPLEMENTATIONS
                if name in counts[implementation]
            }
            yield Row(name, implementations, unit=unit)


def _counted(counts: Counts | str, position: int) -> Callable[[], int]:
    def counted() -> int:
        if isinstance(counts, str):
            raise RuntimeError(counts)
        return counts[position]

    return counted
