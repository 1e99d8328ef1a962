"""Benchmarks of stores behind nginx, with and without 20 ms of latency, and on S3.

In some benchmarks, nginx also acts as an S3 server. It then does not check credentials, and lists
every bucket as empty.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import aiohttp
import fsspec
import numpy as np
import obstore
import tensorstore
import xarray as xr
import zarr

import xr_nczarr
from tests.benchmarks import data
from tests.benchmarks.harness import OURS, Row
from tests.benchmarks.reading import everything, ours
from tests.servers import S3Server

LATENCY = 0.02
WRITERS = (OURS, "to_zarr", "to_zarr, obstore", "baseline: obstore")
NGINX_MODULES = Path("/usr/lib/nginx/modules")
NGINX = """
load_module {modules}/ndk_http_module.so; load_module {modules}/ngx_http_lua_module.so;
worker_processes 1; daemon off; user root; pid {folder}/pid; error_log {folder}/errors;
events {{ worker_connections 1024; }}
http {{
    access_log off; sendfile on; keepalive_requests 100000; client_body_temp_path {folder}/body;
    server {{
        listen 127.0.0.1:{port}; root {root}; default_type application/xml;
        error_page 301 403 =404 /missing; client_max_body_size 0;
        dav_methods PUT DELETE; create_full_put_path on;
        location / {{
            access_by_lua_block {{
                ngx.sleep({latency})
                if (ngx.var.args or ""):find("list-type=2", 1, true) then
                    ngx.say("<ListBucketResult></ListBucketResult>")
                    ngx.exit(200)
                elseif ngx.req.get_method() == "POST" then
                    ngx.req.read_body()
                    local folder = ngx.var.document_root .. ngx.var.uri .. "/"
                    ngx.say("<DeleteResult>")
                    for key in ngx.req.get_body_data():gmatch("<Key>(.-)</Key>") do
                        os.remove(folder .. key)
                        ngx.say("<Deleted><Key>", key, "</Key></Deleted>")
                    end
                    ngx.say("</DeleteResult>")
                    ngx.exit(200)
                end
            }}
            header_filter_by_lua_block {{ ngx.header.ETag = ngx.header.ETag or '"written"' }}
        }}
    }}
}}
"""


def _s3_server(directory: Path, ready: Connection) -> None:
    with S3Server() as server:
        server.upload(directory, directory.name)
        server.fail = lambda _: time.sleep(LATENCY)
        ready.send(server.storage_options)
        time.sleep(100_000)


@contextmanager
def _s3(directory: Path) -> Iterator[dict[str, Any]]:
    """Run an S3 server while the context is open, and yield its storage options."""
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_s3_server, args=(directory, sending), daemon=True)
    process.start()
    try:
        assert receiving.poll(60), "the server does not start"
        yield receiving.recv()
    finally:
        process.terminate()
        process.join(10)


@contextmanager
def _nginx(root: Path, latency: float = 0, port: int = 18_731) -> Iterator[str]:
    """Yield a URL at which nginx serves the files in `root`, each after `latency` seconds."""
    with tempfile.TemporaryDirectory() as folder:
        configuration = Path(folder, "nginx.conf")
        places = {"folder": folder, "root": root, "modules": NGINX_MODULES}
        configuration.write_text(NGINX.format(**places, port=port, latency=latency))
        process = subprocess.Popen(["nginx", "-c", configuration])
        try:
            time.sleep(1)
            assert process.poll() is None, "nginx does not start; is libnginx-mod-http-lua missing?"
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(10)


def _opened(url: str, engine: str, **options: Any) -> list[str]:
    with xr.open_dataset(url, engine=engine, **options) as dataset:
        return [
            f"{name} {item.dims} {item.dtype}" for name, item in sorted(dataset.variables.items())
        ]


async def _get_all(urls: list[str]) -> None:
    """Fetch all URLs with up to 64 concurrent requests, and discard the bytes."""
    connector = aiohttp.TCPConnector(limit=64)
    async with aiohttp.ClientSession(connector=connector) as session:

        async def get(url: str) -> bytes:
            async with session.get(url) as answer:
                return await answer.read()

        await asyncio.gather(*map(get, urls))


def remote(directory: Path) -> Iterator[Row]:
    """Yield benchmarks of reading and opening over HTTP, with and without latency, and on S3."""
    yield from _over_nginx(directory / "nginx")
    large = data.field((64, 512, 512))
    data.zarr_store(directory, "remote_large", large, (1, 512, 512), data.COMPRESSORS["blosc"])
    small = data.field((1, 1000, 4096))[0]
    data.zarr_store(directory, "remote_small", small, (1, 4096), data.COMPRESSORS["blosc"])
    many = data.many_variables(directory)["consolidated"]
    with _nginx(directory, LATENCY) as base:
        for name, label in (("large", "64 chunks of 1 MB"), ("small", "1,000 chunks of 16 kB")):
            path = directory / f"remote_{name}.zarr"
            yield _whole(label, path, f"{base}/{path.name}", many=name == "small")
        yield _points(f"{base}/remote_large.zarr")
        yield Row(
            "open 500 variables over HTTP, consolidated",
            {
                OURS: lambda: _opened(f"{base}/{many.name}", "nczarr"),
                "engine zarr": lambda: _opened(f"{base}/{many.name}", "zarr"),
                "baseline: download": lambda: asyncio.run(
                    _get_all([f"{base}/{many.name}/.zmetadata"])
                ),
            },
        )
    folder = directory / "on_s3"
    if not folder.exists():
        shutil.copytree(directory / "remote_large.zarr", folder / "remote_large.zarr")
        coordinates = {name: np.arange(64.0) for name in "tyx"}
        dataset = xr.Dataset({"field": (tuple("tyx"), np.zeros((64, 64, 64)))}, coordinates)
        dataset.to_zarr(folder / "consolidated", zarr_format=2, consolidated=True)
        dataset.to_zarr(folder / "single", zarr_format=2, consolidated=False)
    with _s3(folder) as options:
        base = f"bucket/{folder.name}"

        def read(engine: str) -> np.ndarray:
            url = f"s3://{base}/remote_large.zarr"
            with xr.open_dataset(url, engine=engine, storage_options=options) as dataset:
                return dataset.field.values

        yield Row(
            "open and read 64 chunks of 1 MB from S3, 20 ms",
            {OURS: lambda: read("nczarr"), "engine zarr": lambda: read("zarr")},
        )
        filesystem = fsspec.filesystem("s3", **options)
        for name, batches, label in (
            ("consolidated", 2, "consolidated"),
            ("single", 3, "not consolidated"),
        ):
            requested = {"storage_options": options, "consolidated": name == "consolidated"}
            url = f"s3://{base}/{name}"
            yield Row(
                f"open 3 index coordinates from S3, 20 ms, {label}",
                {
                    OURS: lambda url=url, requested=requested: _opened(url, "nczarr", **requested),
                    "engine zarr": lambda url=url, requested=requested: _opened(
                        url, "zarr", **requested
                    ),
                    f"baseline: {batches} requests": lambda name=name, batches=batches: [
                        filesystem.cat_file(f"{base}/{name}/.zgroup") for _ in range(batches)
                    ],
                },
                {f"baseline: {batches} requests": 1 / 1.5},
            )


def _over_nginx(folder: Path) -> Iterator[Row]:
    """Yield benchmarks of reading all chunks with fsspec and obstore, with and without latency."""
    sizes = {
        "64 chunks of 4 MB": ((64, 1024, 1024), (1, 1024, 1024)),
        "2,048 chunks of 64 kB": ((2048, 16384), (1, 16384)),
    }
    for number, (shape, chunks) in enumerate(sizes.values()):
        values = np.random.default_rng(0).random(shape, "f4")
        data.zarr_store(folder, f"{number}", values, chunks, None)
    for latency in (0, LATENCY):
        suffix = ", 20 ms" if latency else ""
        with _nginx(folder, latency) as url:
            for number, (label, (shape, _)) in enumerate(sizes.items()):
                for client in ("fsspec", "obstore"):
                    row = f"{label} over nginx{suffix}, client={client}"
                    implementations = _readers(f"{url}/{number}.zarr", client)
                    get = _get_by_obstore if client == "obstore" else _get_by_fsspec
                    count = 64 if latency else 8
                    implementations[f"baseline: {client}"] = partial(
                        get, f"{url}/{number}.zarr", shape, count
                    )
                    yield _by_client(row, implementations, shape[0])
            yield _writing(url, folder, f"nginx{suffix}")
            if latency:
                yield _many_stores(url, folder)


def _by_client(
    label: str,
    implementations: dict[str, Callable[[], np.ndarray]],
    chunks: int,
) -> Row:
    peers = [name for name in implementations if not name.startswith((OURS, "baseline"))]
    goals: dict[str, float] = dict.fromkeys(peers, 1.0)
    if label.endswith("client=obstore") and chunks == 64:
        goals |= {"zarr-python, fsspec": 4, "zarr-python, obstore": 1.3}
        goals["baseline: obstore"] = 1 / 1.3
    return Row(label, implementations, goals)


def _get_by_fsspec(url: str, shape: tuple[int, ...], count: int) -> np.ndarray:
    """Fetch all chunks, `count` at a time, and copy each into the result."""
    filesystem = fsspec.filesystem("http")
    out = np.empty(shape, "f4")
    zeros = ".0" * (len(shape) - 1)

    async def fetch_all() -> None:
        limit = asyncio.Semaphore(count)

        async def fetch(number: int) -> None:
            async with limit:
                chunk = await filesystem._cat_file(f"{url}/field/{number}{zeros}")
            out[number].reshape(-1).view("u1")[:] = memoryview(chunk)

        await asyncio.gather(*map(fetch, range(shape[0])))

    fsspec.asyn.sync(filesystem.loop, fetch_all)
    return out


def _get_by_obstore(url: str, shape: tuple[int, ...], threads: int) -> np.ndarray:
    """Fetch all chunks on `threads` threads, and copy each into the result."""
    client = obstore.store.HTTPStore.from_url(f"{url}/field", client_options={"allow_http": True})
    out = np.empty(shape, "f4")
    numbers, lock = iter(range(shape[0])), threading.Lock()

    def run() -> None:
        while True:
            with lock:
                number = next(numbers, None)
            if number is None:
                return
            key = ".".join([str(number)] + ["0"] * (len(shape) - 1))
            out[number].reshape(-1).view("u1")[:] = memoryview(client.get(key).bytes())

    # A pool would add a future for each chunk, which takes a third of the time of small chunks.
    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(run) for _ in range(threads)]:
            done.result()
    return out


def _points(url: str) -> Row:
    arrays = {
        OURS: xr.open_dataset(url, engine="nczarr"),
        "engine zarr": xr.open_dataset(url, engine="zarr"),
    }
    places = [(number, 7 * number, 5 * number) for number in range(0, 64, 4)]

    def read(name: str) -> list[float]:
        return [float(arrays[name].field[place]) for place in places]

    return Row(
        "16 points, one at a time, over HTTP, 20 ms",
        {name: partial(read, name) for name in arrays},
        {"engine zarr": 1},
    )


def _many_stores(server: str, folder: Path) -> Row:
    """Return a benchmark of opening 100 stores, which an S3 server serves from `folder`."""
    for day in range(100):
        if not (folder / f"days/{day}").exists():
            time_of_day = np.datetime64("2026-01-01", "ns") + np.timedelta64(day, "D")
            coordinates = {"time": [time_of_day], "y": np.arange(64.0), "x": np.arange(64.0)}
            values = np.full((1, 64, 64), day, "f4")
            dataset = xr.Dataset({"field": (("time", "y", "x"), values)}, coordinates)
            dataset.to_zarr(folder / f"days/{day}", zarr_format=2, consolidated=True)
    urls = [f"s3://days/{day}" for day in range(100)]

    def opened(engine: str, **options: Any) -> dict[str, int]:
        storage_options = _s3_options(server) | options
        with xr.open_mfdataset(
            urls,
            engine=engine,
            parallel=True,
            chunks={},
            backend_kwargs={"storage_options": storage_options},
        ) as dataset:
            return dict(dataset.sizes)

    return Row(
        "open_mfdataset of 100 stores on S3, 20 ms",
        {
            OURS: lambda: opened("nczarr"),
            "xr_nczarr, fsspec": lambda: opened("nczarr", client="fsspec"),
            "engine zarr": lambda: opened("zarr"),
        },
        {"engine zarr": 3},
    )


def _s3_options(server: str) -> dict[str, Any]:
    client = {"region_name": "us-east-1"}
    return {"anon": True, "endpoint_url": server, "client_kwargs": client}


def _writing(server: str, folder: Path, label: str) -> Row:
    """Return a benchmark of writing 256 MB to an S3 server that stores its objects in `folder`."""
    values = np.random.default_rng(0).random((64, 1 << 20), "f4")
    dataset = xr.Dataset({"v": (("t", "y"), values)})
    encoding = {"v": {"chunks": (1, 1 << 20), "compressors": None}}
    options = _s3_options(server)
    client = partial(
        obstore.store.S3Store,
        "bucket",
        endpoint=server,
        skip_signature=True,
        region="us-east-1",
        client_options={"allow_http": True},
    )
    shutil.rmtree(folder / "bucket", True)
    numbers = itertools.count()

    def write(name: str) -> Path:
        number = next(numbers)
        target = f"s3://bucket/{number}"
        encoded = {"encoding": encoding, "consolidated": False}
        if name == OURS:
            xr_nczarr.to_nczarr(dataset, target, storage_options=options, **encoded)
        elif name == "to_zarr":
            dataset.to_zarr(target, storage_options=options, zarr_format=2, **encoded)
        elif name == "to_zarr, obstore":
            store = zarr.storage.ObjectStore(client(prefix=f"{number}"))
            dataset.to_zarr(store, zarr_format=2, **encoded)
        else:
            with ThreadPoolExecutor(64) as pool:
                put = partial(client(prefix=f"{number}").put, use_multipart=False)
                list(pool.map(put, [f"v/{row}.0" for row in range(64)], map(bytes, values)))
        return folder / f"bucket/{number}"

    return Row(
        f"write 64 chunks of 4 MB to {label}",
        {name: partial(write, name) for name in WRITERS},
        {"to_zarr": 1.5, "to_zarr, obstore": 1},
        lambda store: zarr.open_array(store / "v")[...],
        shutil.rmtree,
    )


def _readers(url: str, client: str | None = None) -> dict[str, Callable[[], np.ndarray]]:
    """Return a function for each library that reads the field at a URL.

    `client` is the client that xr_nczarr uses. By default, this is obstore.
    """
    array = ours(url, {"client": client} if client else None)
    by_fsspec = zarr.open_array(f"{url}/field", mode="r", zarr_format=2)
    transport = obstore.store.HTTPStore.from_url(
        f"{url}/field", client_options={"allow_http": True}
    )
    by_obstore = zarr.open_array(
        zarr.storage.ObjectStore(transport, read_only=True), mode="r", zarr_format=2
    )
    server, _, below = url.partition("//")[2].partition("/")
    kvstore = {"driver": "http", "base_url": f"http://{server}/", "path": f"{below}/field/"}
    by_tensorstore = tensorstore.open({"driver": "zarr", "kvstore": kvstore}, read=True).result()
    return {
        OURS: lambda: everything(array),
        "zarr-python, fsspec": lambda: by_fsspec[...],
        "zarr-python, obstore": lambda: by_obstore[...],
        "tensorstore": lambda: by_tensorstore.read().result(),
    }


def _whole(label: str, path: Path, url: str, *, many: bool) -> Row:
    chunks = [f"{url}/field/{item.name}" for item in path.glob("field/[0-9]*")]
    return Row(
        f"{label} over HTTP, 20 ms",
        {
            **_readers(url),
            "baseline: download": lambda: asyncio.run(_get_all(chunks)),
            "limit: download + 2 round trips": lambda: (
                asyncio.run(_get_all(chunks)),
                time.sleep(2 * LATENCY),
            ),
        },
        {"tensorstore": 1}
        | dict.fromkeys(("zarr-python, fsspec", "zarr-python, obstore"), 4 if many else 1)
        | ({} if many else {"limit: download + 2 round trips": 1}),
    )
