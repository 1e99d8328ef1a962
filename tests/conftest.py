"""Fixtures shared by the tests of all layers."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py  # noqa: F401 (first, so that netcdf-c does not use the HDF5 of its filter plugins)
import numpy as np
import pytest
from distributed import Client, LocalCluster
from hypothesis import HealthCheck, settings

from tests import clouds
from tests.reading import WAYS
from tests.servers import PATIENT, HttpServer, S3Server
from xr_nczarr.codecs import ChunkCodec
from xr_nczarr.hierarchy.fetching import similar_stores

# The load on the machine must not affect any test.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

_MAX_ID_CHARACTERS = 60


def pytest_make_parametrize_id(val: Any) -> str | None:
    """Return a test id for plain data, such as dicts and dtypes, which pytest would only number."""
    if isinstance(val, dict | list | tuple | slice | np.dtype | np.generic) and _is_plain(val):
        return " ".join(repr(val).split())[:_MAX_ID_CHARACTERS]
    return None


def _is_plain(value: Any) -> bool:
    """Return whether the repr of a value is the same in every process."""
    if isinstance(value, dict):
        return _is_plain([*value, *value.values()])
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, slice):
        return _is_plain([value.start, value.stop, value.step])
    return isinstance(value, str | bytes | int | float | complex | np.dtype | np.generic | None)


@pytest.fixture(autouse=True, scope="module")
def _frozen_objects() -> None:
    """Exclude objects of earlier test modules from garbage collection, to keep it fast."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_similar_stores() -> None:
    """Forget which stores earlier tests opened."""
    similar_stores.clear()


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Return a list that collects the shapes of decoded chunks, in order."""
    shapes: list[tuple[int, ...]] = []
    decode = ChunkCodec.decode

    def recorded(codec: ChunkCodec, data: Any, out: Any = None) -> Any:
        values = decode(codec, data, out)
        shapes.append(values.shape)
        return values

    monkeypatch.setattr(ChunkCodec, "decode", recorded)
    return shapes


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """Return a way of reading: eagerly, or with dask's threads."""
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Return the path of a store that does not exist yet."""
    return str(tmp_path / "store")


@pytest.fixture
def http_server(tmp_path: Path) -> Iterator[HttpServer]:
    """Run a threaded HTTP server that serves the new directory `server.root`."""
    root = tmp_path / "served"
    root.mkdir()
    with HttpServer(root) as server:
        yield server


@pytest.fixture(scope="session")
def running_s3_server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def s3_server(running_s3_server: S3Server) -> S3Server:
    """Return an S3 server with the empty bucket `server.bucket` and no recorded requests."""
    running_s3_server.reset()
    return running_s3_server


@pytest.fixture(params=["fsspec", "obstore"])
def each_s3_client(
    request: pytest.FixtureRequest, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run the test with each S3 client, with time limits that are not exceeded."""
    options = {**s3_server.storage_options, **PATIENT, "client": request.param}
    monkeypatch.setattr(S3Server, "storage_options", options)


@pytest.fixture(scope="session")
def azure_server() -> Iterator[str]:
    with clouds.azure() as url:
        yield url


@pytest.fixture(scope="session")
def google_server() -> Iterator[str]:
    with clouds.google() as url:
        yield url


@pytest.fixture(scope="session")
def workers() -> Iterator[Any]:
    """Return a client with two worker processes, which is not dask's default client."""
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True}
    with (
        LocalCluster(dashboard_address=":0", **options) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client
