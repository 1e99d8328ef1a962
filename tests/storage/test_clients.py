"""The choice of client for a URL, and the conversion of storage options."""

from __future__ import annotations

import logging
import os
import pickle
import ssl
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
import xarray as xr
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from fsspec.implementations.memory import MemoryFileSystem
from obstore.store import LocalStore, MemoryStore

import xr_nczarr
from tests.reading import open_store
from tests.servers import HttpServer, S3Server
from xr_nczarr.errors import (
    AccessDeniedError,
    ConflictError,
    StorageConnectionError,
    StorageError,
    UnsupportedError,
)
from xr_nczarr.storage import ByteRange, RemoteStore, Retry, clients
from xr_nczarr.storage.aws import bucket_region, s3_arguments
from xr_nczarr.storage.clients import NoEquivalentError, connection
from xr_nczarr.storage.fsspec_client import FsspecClient
from xr_nczarr.storage.obstore_client import ObstoreClient, process
from xr_nczarr.storage.retries import storage_error

OBSTORE = {"client": "obstore"}
CLIENTS = ("fsspec", "obstore")
ENDPOINT = {"endpoint_url": "http://localhost:9", "region_name": "eu-west-1"}
KEYS = {"key": "K", "secret": "S"}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """Remove environment variables that affect the choice of client, and return the monkeypatch."""
    for name in os.environ:
        if name.startswith("AWS_") or name.lower().endswith(
            ("_proxy", "_ca_bundle", "ssl_cert_file")
        ):
            monkeypatch.delenv(name)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return monkeypatch


def client_of(url: str, options: dict[str, Any] | None = None) -> Any:
    """Return the client that this process uses for a URL."""
    store: Any = open_store(url, storage_options=options, must_exist=False)
    return store._client


def library_of(url: str, options: dict[str, Any] | None = None) -> str:
    return {"ObstoreClient": "obstore", "FsspecClient": "fsspec"}[
        type(client_of(url, options)).__name__
    ]


def test_s3fs_options_are_converted_to_obstore_options() -> None:
    options = {
        **KEYS,
        "token": "T",
        "anon": False,
        "requester_pays": True,
        "client_kwargs": ENDPOINT,
    }
    client = client_of("s3://bucket/a/b", options)
    assert {name: str(value) for name, value in client.store.config.items()} == {
        "bucket": "bucket",
        "request_payer": "true",
        "endpoint": "http://localhost:9",
        "region": "eu-west-1",
    }
    credentials = client.store.credential_provider()
    assert [credentials[name] for name in ("access_key_id", "secret_access_key", "token")] == [
        *("K", "S", "T")
    ]
    assert (client.folder, client.name) == ("a/b", "s3://bucket/a/b")


S3 = "s3://bucket/a"
EXACT = {
    "S3 with keys": (S3, {**KEYS, "client_kwargs": ENDPOINT}),
    "S3 with an endpoint of its own": (S3, {**KEYS, "endpoint_url": "http://localhost:9"}),
    "public S3": (S3, {"anon": True, "client_kwargs": ENDPOINT}),
    "public Google Cloud": ("gs://bucket/a", {"token": "anon"}),
    "Azure with a key": ("az://container/a", {"account_name": "a", "account_key": "eA=="}),
    "public Azure": ("abfs://container/a", {"account_name": "a", "anon": True}),
    "Azure with another protocol": ("abfss://container/a", {"account_name": "a", "anon": True}),
    "the web": ("https://example.org/a", {}),
    "the web with a token": ("https://example.org/a", {"headers": {"Authorization": "Bearer 1"}}),
}
UNLIKE = {
    "certificates": (S3, {"client_kwargs": {**ENDPOINT, "verify": False}, **KEYS}),
    "half a key": (S3, {"key": "K", "client_kwargs": ENDPOINT}),
    "an option of botocore": (S3, {**KEYS, "config_kwargs": {}, "client_kwargs": ENDPOINT}),
    "a profile that does not exist": (S3, {"profile": "nobody", "client_kwargs": ENDPOINT}),
    "a header that redirects would take along": (
        "http://127.0.0.1:9/a",
        {"headers": {"X-Token": "1"}},
    ),
    "an option of fsspec": ("http://127.0.0.1:9/a", {"block_size": 1}),
    "a query": ("http://127.0.0.1:9/a?token=1", {}),
    "a password": ("http://me:word@127.0.0.1:9/a", {}),
    "an access point": ("s3://arn:aws:s3:us-east-1:1:accesspoint/a/b", {"anon": True}),
    "an empty part of a path": ("s3://bucket/a//b", {"anon": True, "client_kwargs": ENDPOINT}),
    "a path that begins with a slash": (
        "s3://bucket//a",
        {"anon": True, "client_kwargs": ENDPOINT},
    ),
    "dots in a path": ("s3://bucket/a/../b", {"anon": True, "client_kwargs": ENDPOINT}),
}


@pytest.mark.parametrize(("url", "options"), EXACT.values(), ids=EXACT)
def test_obstore_is_chosen_if_it_is_equivalent_to_fsspec(url: str, options: dict[str, Any]) -> None:
    assert library_of(url, options) == "obstore"
    assert library_of(url, {**options, **OBSTORE}) == "obstore"


@pytest.mark.parametrize(("url", "options"), UNLIKE.values(), ids=UNLIKE)
def test_fsspec_is_chosen_for_targets_without_obstore_equivalent(
    url: str, options: dict[str, Any]
) -> None:
    assert library_of(url, options) == "fsspec"
    with pytest.raises(UnsupportedError, match=r'obstore does not support .*pass "fsspec"'):
        open_store(url, storage_options={**options, **OBSTORE}, must_exist=False)


@pytest.mark.parametrize("client", CLIENTS)
def test_fsspec_configuration_also_applies_to_obstore(
    s3_server: S3Server, environment: pytest.MonkeyPatch, client: str
) -> None:
    s3_server.put("a/x", b"1")
    environment.setitem(fsspec.config.conf, "s3", {"endpoint_url": s3_server.endpoint})
    environment.setitem(fsspec.config.conf, "s3a", KEYS)
    store = open_store("s3://bucket/a", storage_options={"client": client})
    assert [bytes(data or b"") for data in store.fetch(["x"])] == [b"1"]


def test_fsspec_configuration_for_azure_protocol_alias_applies_to_obstore(
    environment: pytest.MonkeyPatch,
) -> None:
    environment.setitem(fsspec.config.conf, "abfss", {"account_name": "a", "anon": True})
    assert library_of("az://container/a") == "obstore"


def test_fsspec_is_chosen_for_configuration_without_obstore_equivalent(
    environment: pytest.MonkeyPatch,
) -> None:
    environment.setitem(fsspec.config.conf, "s3", {"config_kwargs": {"user_agent": "me"}})
    client = client_of(S3, {**KEYS, "client_kwargs": ENDPOINT})
    assert client.filesystem.config_kwargs["user_agent"] == "me"


@pytest.mark.parametrize(
    ("name", "url"),
    [
        ("AWS_S3_DISABLE_MULTIREGION_ACCESS_POINTS", S3),
        ("AWS_ALLOW_HTTP", S3),
        ("HTTP_PROXY", "http://127.0.0.1:9/a"),
        ("SSL_CERT_FILE", "https://127.0.0.1:9/a"),
    ],
)
def test_fsspec_is_chosen_for_environment_variables_without_obstore_equivalent(
    environment: pytest.MonkeyPatch, name: str, url: str
) -> None:
    options = {**KEYS, "client_kwargs": ENDPOINT} if url == S3 else {}
    assert library_of(url, {**options, **OBSTORE}) == "obstore"
    environment.setenv(name, "1")
    assert library_of(url, options) == "fsspec"
    with pytest.raises(UnsupportedError, match=f"does not support the .*{name}"):
        open_store(url, storage_options={**options, **OBSTORE}, must_exist=False)


def test_error_for_unsupported_azure_option_includes_its_name() -> None:
    options = {"connection_string": "AccountName=a;AccountKey=eA==", **OBSTORE}
    with pytest.raises(UnsupportedError, match="support the storage option connection_string"):
        open_store("az://container/a", storage_options=options)


def test_aws_profiles_are_read_by_botocore(
    environment: pytest.MonkeyPatch, tmp_path: Path, s3_server: S3Server
) -> None:
    profile = "aws_access_key_id = K\naws_secret_access_key = S\nregion = eu-north-1\n"
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text("[default]\noutput = json\n[profile me]\n" + profile)
    options: dict[str, Any] = {"endpoint_url": s3_server.endpoint}
    store: Any = open_store(S3, storage_options={**options, "profile": "me"})
    assert store._client.store.config["region"] == "eu-north-1"
    store.put([("x", b"1")])
    assert [*store.fetch(["x"])] == [b"1"]
    (request,) = s3_server.requests_for("*/x")[:1]
    assert "Credential=K/" in request.headers["Authorization"]
    environment.setenv("AWS_PROFILE", "me")
    assert client_of(S3, options).store.config["region"] == "eu-north-1"
    with (tmp_path / ".aws/config").open("a") as file:
        file.write("s3 =\n  addressing_style = virtual\n")
    assert library_of(S3, options) == "fsspec"


def test_aws_profiles_require_botocore(
    environment: pytest.MonkeyPatch,
) -> None:
    environment.setenv("AWS_PROFILE", "me")
    for module in ("botocore", "botocore.exceptions", "botocore.session"):
        environment.setitem(sys.modules, module, None)
    with pytest.raises(NoEquivalentError, match="botocore, which is not installed"):
        s3_arguments({})


def test_aws_credentials_are_read_from_environment_variables(
    environment: pytest.MonkeyPatch, s3_server: S3Server
) -> None:
    variables = {
        "AWS_ACCESS_KEY_ID": "K",
        "AWS_SECRET_ACCESS_KEY": "S",
        "AWS_ENDPOINT_URL": s3_server.endpoint,
        "AWS_DEFAULT_REGION": "eu-north-1",
    }
    for name, value in variables.items():
        environment.setenv(name, value)
    client = client_of(S3)
    assert client.size("none") is None
    (request,) = s3_server.requests_for("*/none")
    assert "Credential=K/" in request.headers["Authorization"]
    assert "/eu-north-1/" in request.headers["Authorization"]


def test_bucket_region_is_requested_from_s3(s3_server: S3Server) -> None:
    assert bucket_region(s3_server.bucket, s3_server.endpoint) == s3_server.region


def test_client_option_can_be_nested_under_protocol_for_chained_url(s3_server: S3Server) -> None:
    s3_server.put("s/x", b"1")
    for cache in ("simplecache", "filecache"):
        options = {"s3": {**s3_server.storage_options, "client": "fsspec"}}
        store = open_store(f"{cache}::s3://bucket/s", storage_options=options)
        assert [bytes(data or b"") for data in store.fetch(["x"])] == [b"1"]
    options = {"s3": {**s3_server.storage_options, **OBSTORE}}
    with pytest.raises(UnsupportedError, match="obstore does not support this kind of URL"):
        open_store("filecache::s3://bucket/s", storage_options=options)


def test_unknown_client_option_is_rejected(http_server: HttpServer) -> None:
    with pytest.raises(ConflictError, match='must be "fsspec" or "obstore"'):
        open_store(http_server.url, storage_options={"client": "curl"})
    assert library_of(http_server.url, {"client": "fsspec"}) == "fsspec"


def test_fsspec_is_used_if_obstore_is_not_installed(environment: pytest.MonkeyPatch) -> None:
    environment.setattr(clients, "find_spec", lambda name: None)
    options = {**KEYS, "client_kwargs": ENDPOINT}
    assert library_of(S3, options) == "fsspec"
    with pytest.raises(UnsupportedError, match=r"not installed.*Install xr-nczarr\[obstore\]"):
        open_store(S3, storage_options={**options, **OBSTORE})


def test_client_choice_is_logged_with_reason(
    http_server: HttpServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "xr_nczarr"):
        client_of(http_server.url)
        client_of(S3, {**KEYS, "client_kwargs": ENDPOINT, "default_block_size": 1})
        client_of(http_server.url, {"client": "fsspec"})
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "accessed with obstore",
        "accessed with fsspec, because obstore does not support the storage option "
        "default_block_size",
        'accessed with fsspec, because of the storage option "client"',
    ]


def test_store_switches_to_fsspec_if_obstore_rejects_response(http_server: HttpServer) -> None:
    Path(http_server.root, "x").write_bytes(bytes(range(100)))
    store = open_store(http_server.url, must_exist=False)
    http_server.fault("ignore-range", path="*/x", times=None)
    for start, requests in ((10, 2), (20, 3)):
        (data,) = store.fetch_ranges([ByteRange("x", start, 2)])
        assert bytes(data or b"") == bytes([start, start + 1])
        assert len(http_server.requests_for("*/x")) == requests


def test_object_sizes_on_web_server_are_found_without_aiohttp(
    http_server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(http_server.root, "x").write_bytes(b"12345")
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    assert open_store(http_server.url, must_exist=False).size("x") == 5


RANGE_FAULTS = ["ignore-range", "wide-range", "wrong-range", "more-range", "no-range", "far-range"]


@pytest.mark.parametrize("item", [(16, 16), (-16, 16), (-32, 16)], ids=str)
@pytest.mark.parametrize("kind", RANGE_FAULTS)
def test_obstore_and_fsspec_treat_responses_with_wrong_range_identically(
    http_server: HttpServer, kind: Any, item: tuple[int, int]
) -> None:
    data = bytes(range(64))
    Path(http_server.root, "x").write_bytes(data)
    outcomes = []
    for name in CLIENTS:
        store = open_store(
            http_server.url,
            storage_options={"client": name},
            retry=Retry(attempts=2, first_wait=0.001),
        )
        http_server.clear()
        http_server.fault(kind, path="*/x", times=None)
        try:
            (answer,) = store.fetch_ranges([ByteRange("x", *item)])
            outcomes.append(bytes(answer or b""))
        except StorageError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]
    if kind in RANGE_FAULTS[:2]:
        start = item[0] % 64
        assert outcomes[0] == data[start : start + item[1]]


@pytest.mark.parametrize("client", CLIENTS)
def test_compressed_responses_are_rejected_for_ranges(http_server: HttpServer, client: str) -> None:
    data = bytes(range(64))
    Path(http_server.root, "x").write_bytes(data)
    http_server.fault("gzip", path="*/x", times=None)
    options = {"client": client, "retry": Retry(attempts=1)}
    store = open_store(http_server.url, storage_options=options)
    assert [bytes(answer or b"") for answer in store.fetch(["x"])] == [data]
    for item in ((0, 16), (16, 16), (-16, 16)):  # these would be ranges of the compressed object
        with pytest.raises(StorageError):
            list(store.fetch_ranges([ByteRange("x", *item)]))


@pytest.mark.parametrize("client", CLIENTS)
def test_object_of_unknown_length_is_read(http_server: HttpServer, client: str) -> None:
    Path(http_server.root, "x").write_bytes(b"1")
    http_server.fault("no-length", path="*/x", times=None)
    store = open_store(http_server.url, storage_options={"client": client})
    assert [bytes(data or b"") for data in store.fetch(["x"])] == [b"1"]
    assert store.size("x") == 1


@pytest.mark.parametrize("client", CLIENTS)
def test_status_403_raises_error_unless_missing_status_includes_it(
    http_server: HttpServer, client: str
) -> None:
    http_server.fault("status", path="*/x", status=403, times=None)
    options = {"client": client}
    store = open_store(http_server.url, storage_options=options)
    with pytest.raises(AccessDeniedError, match="missing_status"):
        list(store.fetch(["x"]))
    (refusal,) = store.probe(["x"])
    assert isinstance(refusal, AccessDeniedError)
    lenient = open_store(http_server.url, storage_options=options, missing_status=(403, 404))
    assert list(lenient.fetch(["x"])) == [None]


@pytest.mark.parametrize("client", CLIENTS)
def test_missing_status_applies_to_size_requests_and_empty_ranges(
    s3_server: S3Server, client: str
) -> None:
    options = {**s3_server.storage_options, "client": client}
    s3_server.fail = lambda request: 403 if "absent" in request.path else None
    store = open_store("s3://bucket/p", storage_options=options, missing_status=(403, 404))
    assert store.size("absent") is None
    assert list(store.fetch_ranges([ByteRange("absent", 0, 0)])) == [None]
    with pytest.raises(AccessDeniedError):
        open_store("s3://bucket/p", storage_options=options).size("absent")


def test_synchronous_filesystem_is_used_by_one_thread_at_a_time() -> None:
    both = threading.Barrier(2)

    class Memory(MemoryFileSystem):
        store: ClassVar[dict[str, Any]] = {}
        pseudo_dirs: ClassVar[list[str]] = [""]

        def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
            with suppress(threading.BrokenBarrierError):
                both.wait(timeout=0.2)
                overlaps.append(path)
            super().pipe_file(path, value, **options)

    overlaps: list[str] = []
    client = FsspecClient(Memory(skip_instance_cache=True), "/w")
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(client.put, ["a", "b"], [b"1", b"2"]))
    assert overlaps == []


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("status", [403, 404])
def test_missing_status_applies_only_to_reads(
    s3_server: S3Server, client: str, status: int
) -> None:
    options = {**s3_server.storage_options, "client": client}
    store = open_store(f"{s3_server.url}/s", storage_options=options, missing_status=(403, 404))
    s3_server.fail = lambda request: status if request.method == "PUT" else None
    with pytest.raises(StorageError, match=f"x: the server responded with status {status}"):
        store.put([("x", b"1")])
    s3_server.fail = lambda _: 403
    with pytest.raises(AccessDeniedError):
        store.delete("x")
    with pytest.raises(AccessDeniedError):
        store.list_names("")
    with pytest.raises(AccessDeniedError):
        list(store.sizes())


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("status", [400, 405, 410, 501])
def test_http_error_statuses_other_than_not_found_raise_error(
    http_server: HttpServer, client: str, status: int
) -> None:
    http_server.fault("status", path="*/x", status=status, times=None)
    store = open_store(http_server.url, storage_options={"client": client})
    for read in (
        lambda: list(store.fetch(["x"])),
        lambda: list(store.fetch_ranges([ByteRange("x", 3, 4)])),
        lambda: store.size("x"),
    ):
        with pytest.raises(StorageError, match=str(status)):
            read()


@pytest.mark.parametrize("client", CLIENTS)
def test_object_size_is_found_even_if_server_rejects_head_requests(
    http_server: HttpServer, client: str
) -> None:
    Path(http_server.root, "x").write_bytes(b"12345")
    http_server.fault("status", path="*/x", status=405, times=1)
    store = open_store(http_server.url, storage_options={"client": client})
    assert store.size("x") == 5


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("status", [429, 500, 503])
def test_transient_server_errors_are_retried(
    http_server: HttpServer, client: str, status: int
) -> None:
    Path(http_server.root, "x").write_bytes(b"1")
    store = open_store(
        http_server.url,
        storage_options={"client": client},
        retry=Retry(attempts=3, first_wait=0.001),
    )
    http_server.fault("status", path="*/x", status=status, times=2)
    assert [bytes(data or b"") for data in store.fetch(["x"])] == [b"1"]
    http_server.clear()
    http_server.fault("status", path="*/x", status=status, times=None)
    with pytest.raises(StorageConnectionError, match=rf"{status}.*all retries failed") as caught:
        list(store.fetch(["x"]))
    assert " in " not in caught.value.problem  # obstore appends the duration
    assert len(http_server.requests) == 3


@pytest.mark.parametrize("client", CLIENTS)
def test_creating_object_does_not_replace_existing_object(s3_server: S3Server, client: str) -> None:
    options = {**s3_server.storage_options, "client": client}
    stores = [open_store(f"{s3_server.url}/s", storage_options=options) for _ in range(2)]
    assert stores[0].create("x", b"first")
    assert not stores[1].create("x", b"second")
    assert stores[1].create("x", b"first")  # a retry after a lost response sends the same bytes
    assert [bytes(data or b"") for data in stores[1].fetch(["x"])] == [b"first"]
    puts = [request for request in s3_server.requests if request.method == "PUT"]
    assert {request.headers.get("If-None-Match") for request in puts} == {"*"}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("status", [400, 403, 500, 503])
def test_failed_conditional_write_is_not_retried_unconditionally(
    s3_server: S3Server, client: str, status: int
) -> None:
    options = {**s3_server.storage_options, "client": client}
    retry = Retry(attempts=1, first_wait=0.001)
    store = open_store(f"{s3_server.url}/s", storage_options=options, retry=retry)
    s3_server.fail = lambda request: status if "If-None-Match" in request.headers else None
    with pytest.raises(StorageError, match=str(status)):
        store.create("x", b"1")
    assert not s3_server.objects()


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("status", [405, 501])
def test_object_is_created_even_if_server_lacks_conditional_writes(
    s3_server: S3Server, client: str, status: int
) -> None:
    options = {**s3_server.storage_options, "client": client}
    store = open_store(f"{s3_server.url}/s", storage_options=options)
    s3_server.fail = lambda request: status if "If-None-Match" in request.headers else None
    assert store.create("x", b"1")
    assert not store.create("x", b"2")
    assert s3_server.objects() == {"s/x": b"1"}


def test_limiting_object_size_does_not_recreate_client(
    s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**s3_server.storage_options, "client": "obstore"}
    store: Any = open_store(f"{s3_server.url}/s", storage_options=options)
    store.put([("x", b"123")])
    monkeypatch.setenv("AWS_UNKNOWN_SETTING", "1")
    bounded = store.bounded(3)
    assert bounded._client is store._client
    assert [bytes(data or b"") for data in bounded.fetch(["x"])] == [b"123"]


def test_environment_variables_are_checked_when_unpickled_store_is_first_used(
    s3_server: S3Server, environment: pytest.MonkeyPatch
) -> None:
    store = open_store(s3_server.url, storage_options={**s3_server.storage_options, **OBSTORE})
    pickled = pickle.dumps(store)
    environment.setenv("AWS_UNKNOWN_SETTING", "1")
    unpickled = pickle.loads(pickled)  # a dask worker would stop if this raised an error
    with pytest.raises(UnsupportedError, match="AWS_UNKNOWN_SETTING"):
        list(unpickled.fetch(["x"]))


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    ("has_certificate", "remedy"),
    [(True, "certificate is not trusted"), (False, "does not support https")],
    ids=["self-signed certificate", "no TLS"],
)
def test_error_for_failed_tls_handshake_suggests_fix(
    http_server: HttpServer, tmp_path: Path, client: str, has_certificate: bool, remedy: str
) -> None:
    if has_certificate:
        http_server._server.socket = _tls(http_server._server.socket, tmp_path)
    options = {"client": client, "retry": Retry(attempts=1)}
    store = open_store(http_server.url.replace("http:", "https:"), storage_options=options)
    with pytest.raises(StorageConnectionError, match=remedy):
        list(store.fetch(["a"]))


def _tls(socket: Any, folder: Path) -> ssl.SSLSocket:
    """Return a server socket that uses TLS with a new certificate that no client trusts."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    file = folder / "server.pem"
    pem = serialization.Encoding.PEM
    options = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file.write_bytes(key.private_bytes(pem, *options) + certificate.public_bytes(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context.wrap_socket(socket, server_side=True)


@pytest.mark.parametrize("scheme", ["s3", "http"])
def test_error_for_unknown_storage_option_suggests_checking_options(
    s3_server: S3Server, http_server: HttpServer, scheme: str
) -> None:
    server = {"s3": s3_server, "http": http_server}[scheme]
    options = {"s3": s3_server.storage_options, "http": {"headers": None}}[scheme]
    assert list(open_store(server.url, storage_options=options).fetch(["x"])) == [None]
    store = open_store(server.url, storage_options={**options, "ano": True})
    for read in (lambda: list(store.fetch(["x"])), lambda: store.size("x")):
        with pytest.raises(StorageError, match=r"argument 'ano'.*Check the storage options"):
            read()


def test_any_filesystem_exception_becomes_storage_error_with_key() -> None:
    class Broken(MemoryFileSystem):
        def cat_file(self, path: str, *_: Any, **options: Any) -> bytes:
            raise AttributeError("no such attribute")

        info = pipe_file = ls = cat_file

    client = FsspecClient(Broken(skip_instance_cache=True), "/w")
    store = RemoteStore(client)
    for action in (
        lambda: list(store.fetch(["a"])),
        lambda: list(store.fetch_ranges([ByteRange("a", 0, 1)])),
        lambda: store.size("a"),
        lambda: store.put([("a", b"1")]),
        lambda: store.create("a", b"1"),
    ):
        with pytest.raises(StorageError, match="no such attribute") as caught:
            action()
        assert (caught.value.store, caught.value.key) == (store.name, "a")
        assert isinstance(caught.value.__cause__, AttributeError)


def test_filesystem_memory_error_propagates_unchanged() -> None:
    class Full(MemoryFileSystem):
        def cat_file(self, path: str, *_: Any, **options: Any) -> bytes:
            raise MemoryError

        info = pipe_file = cat_file

    store = RemoteStore(FsspecClient(Full(skip_instance_cache=True), "/w"))
    for action in (
        lambda: list(store.fetch(["a"])),
        lambda: store.size("a"),
        lambda: store.put([("a", b"1")]),
    ):
        with pytest.raises(MemoryError):
            action()


def test_unrelated_type_error_is_not_attributed_to_storage_options() -> None:
    bug = TypeError("'int' object is not subscriptable")
    assert "storage options" not in str(storage_error(bug, store="s", key="x"))


def test_error_for_key_unsupported_by_obstore_suggests_another_client() -> None:
    dataset = xr.Dataset({"a\tb": ("x", [1.0])})
    with pytest.raises(StorageError, match=r"a\\tb.*: obstore does not.*\"client\": \"fsspec\""):
        xr_nczarr.to_nczarr(dataset, MemoryStore())
    store = RemoteStore(ObstoreClient(MemoryStore(), "a//b"))
    with pytest.raises(StorageError, match="obstore does not support keys with empty segments"):
        store.list_names("")


def test_number_in_path_is_not_mistaken_for_http_status(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "t (404 x)"
    folder.mkdir()
    (folder / "0").symlink_to("0")
    store = RemoteStore(ObstoreClient(LocalStore()))
    with pytest.raises(StorageError, match="symbolic links"):
        list(store.fetch([f"{folder}/0".lstrip("/")]))


def test_untrusted_targets_are_always_read_with_fsspec(http_server: HttpServer) -> None:
    xr_nczarr.to_nczarr(xr.Dataset({"t": ("x", [1.0])}), Path(http_server.root, "a"))
    opened = xr.open_dataset(
        f"{http_server.url}/a", engine="nczarr", trust="none", storage_options=OBSTORE
    )
    assert opened.t.values.tolist() == [1]
    agents = {request.headers.get("User-Agent", "") for request in http_server.requests}
    assert all("aiohttp" in agent for agent in agents)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("target", ["a URL", "an obstore store"])
def test_forked_process_does_not_wait_for_parent_threads(
    http_server: HttpServer, target: str
) -> None:
    Path(http_server.root, "x").write_bytes(b"1")
    code = f"""
import os
import obstore.store
from tests.reading import open_store
from xr_nczarr.errors import StorageError
target = {http_server.url!r}
if {target!r} == "an obstore store":
    target = obstore.store.HTTPStore(target, client_options={{"allow_http": True}})
options = {{"client": "obstore"}} if isinstance(target, str) else {{}}
store = open_store(target, storage_options=options)
assert type(store._client).__name__ == "ObstoreClient"
assert bytes(next(store.fetch(["x"]))) == b"1"
pid = os.fork()
if not pid:
    try:
        os._exit(6 if bytes(next(store.fetch(["x"]))) == b"1" else 1)
    except StorageError as error:
        os._exit(7 if "spawn" in str(error) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == {6 if target == "a URL" else 7}
assert bytes(next(store.fetch(["x"]))) == b"1"
"""
    command = [sys.executable, "-W", "ignore", "-c", code]
    subprocess.run(command, check=True, timeout=60)


def test_forked_process_does_not_reuse_parent_client(environment: pytest.MonkeyPatch) -> None:
    store: Any = open_store(
        "s3://bucket/store", storage_options={**OBSTORE, **KEYS, "client_kwargs": ENDPOINT}
    )
    inherited = store.connection.client()
    environment.setattr(process, "forked", True)
    assert store.connection.client() is not inherited
    assert type(store.connection.client()).__name__ == "FsspecClient"


@pytest.mark.parametrize("client", CLIENTS)
def test_chunks_are_requested_concurrently(http_server: HttpServer, client: str) -> None:
    values = np.arange(32 * 1000.0).reshape(32, 1000)
    encoding = {"v": {"chunks": (1, 1000)}}
    path = Path(http_server.root, "s")
    xr_nczarr.to_nczarr(xr.Dataset({"v": (("x", "y"), values)}), path, encoding=encoding)
    opened = xr.open_dataset(
        f"{http_server.url}/s", engine="nczarr", storage_options={"client": client}
    )
    http_server.fault("together", path="*/v/*", times=32)
    np.testing.assert_array_equal(opened.v.values, values)
    assert http_server.most_in_flight == 32


@pytest.mark.parametrize("client", CLIENTS)
def test_many_small_objects_are_requested_concurrently(
    http_server: HttpServer, client: str
) -> None:
    keys = [str(index) for index in range(100)]
    for key in keys:
        Path(http_server.root, key).write_bytes(b"1")
    store = open_store(http_server.url, storage_options={"client": client})
    store = store.bounded(1000)
    http_server.fault("together", path="*", times=100)
    assert [bytes(data or b"") for data in store.fetch(keys)] == [b"1"] * 100
    assert http_server.most_in_flight == 100


def test_number_of_concurrent_requests_for_large_chunks_is_limited(http_server: HttpServer) -> None:
    values = np.ones((12, 1 << 20))  # 8 MiB each
    encoding = {"v": {"chunks": (1, 1 << 20), "compressor": None}}
    path = Path(http_server.root, "s")
    dataset = xr.Dataset({"v": (("x", "y"), values)})
    xr_nczarr.to_nczarr(dataset, path, encoding=encoding)
    opened = xr.open_dataset(
        f"{http_server.url}/s", engine="nczarr", storage_options={"client": "obstore"}
    )
    http_server.fault("together", path="*/v/*", times=8)
    np.testing.assert_array_equal(opened.v.values, values)
    assert http_server.most_in_flight == 8


def test_equal_connections_to_one_bucket_share_client():
    options = {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:9"}
    clients = [
        connection(f"s3://{path}", {**options, **more}).client()
        for path, more in (("b/1", {}), ("b/2", {}), ("other/1", {}), ("b/1", {"secret": "t"}))
    ]
    stores = [client.store for client in clients]
    assert [store is stores[0] for store in stores] == [True, True, False, False]
