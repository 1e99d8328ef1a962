"""Which client serves a URL, and what the storage options become."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import xarray as xr

import xr_nczarr
from tests.reading import open_store
from tests.servers import HttpServer
from xr_nczarr.errors import AccessDeniedError, ConflictError, StorageError, UnsupportedError
from xr_nczarr.storage import ByteRange
from xr_nczarr.storage.clients import connect_obstore

OBSTORE = {"client": "obstore"}

S3_OPTIONS = {
    "key": "K",
    "secret": "S",
    "token": "T",
    "anon": False,
    "requester_pays": True,
    "client_kwargs": {"endpoint_url": "http://localhost:9", "region_name": "eu-west-1"},
}


def test_the_options_of_s3fs_become_those_of_obstore() -> None:
    store: Any = connect_obstore("s3://bucket/a/b", S3_OPTIONS)
    assert {name: str(value) for name, value in store.store.config.items()} == {
        "bucket": "bucket",
        "access_key_id": "K",
        "secret_access_key": "S",
        "session_token": "T",
        "skip_signature": "false",
        "request_payer": "true",
        "endpoint": "http://localhost:9",
        "region": "eu-west-1",
    }
    assert (store.path, store.name) == ("a/b", "s3://bucket/a/b")


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("s3://bucket/a", {"profile": "x"}),
        ("s3://bucket/a", {"client_kwargs": {"verify": False}}),
        ("gs://bucket/a", {"token": "key.json"}),
        ("az://container/a", {"account_name": "a", "connection_string": "x"}),
        ("https://example.org/a", {"headers": {"X-Token": "1"}}),
        ("https://example.org/a", {"auth": 1}),
        ("https://example.org/a?token=1", {}),
        ("ftp://example.org/a", {}),
    ],
    ids=str,
)
def test_what_obstore_has_no_counterpart_of_is_an_error(url: str, options: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match=r"no counterpart of .*choose \"fsspec\""):
        open_store(url, storage_options={**options, **OBSTORE})


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("gs://bucket/a", {"token": "anon"}),
        ("az://container/a", {"account_name": "a", "account_key": "eA==", "sas_token": None}),
        ("abfs://container/a", {"account_name": "a", "anon": True}),
        ("https://example.org/a", {"headers": {"Authorization": "Bearer 1"}}),
    ],
    ids=str,
)
def test_google_azure_and_the_web_are_reached_by_obstore(url: str, options: dict[str, Any]) -> None:
    assert type(open_store(url, storage_options={**options, **OBSTORE})).__name__ == "ObstoreStore"


def test_a_client_has_one_of_two_names(http_server: HttpServer) -> None:
    with pytest.raises(ConflictError, match='Choose "fsspec" or "obstore"'):
        open_store(http_server.url, storage_options={"client": "curl"})
    store = open_store(http_server.url, storage_options={"client": "fsspec"})
    assert type(store).__name__ == "FilesystemStore"


def test_the_chosen_client_is_logged(
    http_server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "xr_nczarr"):
        open_store(http_server.url, storage_options=OBSTORE)
    assert "reached by obstore" in caplog.text


@pytest.mark.parametrize(
    "kind", ["ignore-range", "wrong-range", "wide-range", "more-range", "no-range", "far-range"]
)
def test_a_range_that_the_server_answers_wrongly_is_never_a_value(
    http_server: HttpServer, kind: Any
) -> None:
    Path(http_server.root, "x").write_bytes(bytes(range(64)))
    store = open_store(http_server.url, storage_options=OBSTORE)
    http_server.fault(kind, path="*/x", times=None)
    answers = []
    with suppress(StorageError):
        answers = [bytes(data or b"") for data in store.fetch_ranges([ByteRange("x", 16, 16)])]
    assert answers in ([], [bytes(range(16, 32))])


def test_a_refusal_is_an_error_and_may_mean_missing(http_server: HttpServer) -> None:
    http_server.fault("status", path="*/x", status=403, times=None)
    with pytest.raises(AccessDeniedError, match="missing_status"):
        list(open_store(http_server.url, storage_options=OBSTORE).fetch(["x"]))
    lenient = connect_obstore(http_server.url, OBSTORE, missing_status=(403, 404))
    assert list(lenient.fetch(["x"])) == [None]


def test_a_failure_that_passes_is_retried(http_server: HttpServer) -> None:
    Path(http_server.root, "x").write_bytes(b"1")
    http_server.fault("status", path="*/x", status=503, times=2)
    (data,) = open_store(http_server.url, storage_options=OBSTORE).fetch(["x"])
    assert bytes(data or b"") == b"1"


def test_an_untrusted_target_is_reached_by_the_guarded_client(http_server: HttpServer) -> None:
    xr_nczarr.to_nczarr(xr.Dataset({"t": ("x", [1.0])}), Path(http_server.root, "a"))
    opened = xr.open_dataset(
        f"{http_server.url}/a", engine="nczarr", trust="none", storage_options=OBSTORE
    )
    assert opened.t.values.tolist() == [1]
    agents = {request.headers.get("User-Agent", "") for request in http_server.requests}
    assert all("aiohttp" in agent for agent in agents)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_gets_an_error_and_does_not_hang(http_server: HttpServer) -> None:
    Path(http_server.root, "x").write_bytes(b"1")
    code = f"""
import os
from xr_nczarr.errors import StorageError
from xr_nczarr.storage.clients import connect_obstore
store = connect_obstore({http_server.url!r}, {{}})
assert bytes(next(store.fetch(["x"]))) == b"1"
pid = os.fork()
if not pid:
    try:
        next(store.fetch(["x"]))
    except StorageError as error:
        os._exit(7 if "spawn" in str(error) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    subprocess.run(command, check=True, timeout=60)
