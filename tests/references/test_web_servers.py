"""Reference sets on web servers: credentials, permitted hosts, redirects and response sizes."""

import json
import os
import socket
import warnings

import aiohttp
import fsspec
import numpy as np
import pytest
import xarray as xr

from tests.reading import open_store, peak_memory
from tests.servers import HttpServer
from tests.stores import array_document
from xr_nczarr.errors import LimitError, RefusedError, StorageError
from xr_nczarr.model import Limits
from xr_nczarr.storage import ByteRange, Retry

ARRAY = array_document([4])


def document(url):
    attributes = json.dumps({"_ARRAY_DIMENSIONS": ["x"]})
    metadata = {".zgroup": '{"zarr_format": 2}', "t/.zarray": json.dumps(ARRAY)}
    return metadata | {"t/.zattrs": attributes, "t/0": [url, 0, 16]}


def read(target, **storage_options):
    dataset = xr.open_dataset(target, engine="nczarr", storage_options=storage_options)
    return dataset.t.values.tolist()


@pytest.fixture
def served(http_server):
    np.arange(4, dtype="<i4").tofile(f"{http_server.root}/data.bin")
    with open(f"{http_server.root}/refs.json", "w") as file:
        json.dump(document("data.bin"), file)
    return http_server


@pytest.fixture
def other(served):
    """Return another server, to which the first server redirects."""
    with HttpServer(served.root) as server:
        served.fault("redirect", path="/data.bin", location=f"{server.url}/data.bin", times=None)
        yield server


@pytest.fixture
def public_names(monkeypatch):
    """Make host names below ``example.org`` resolve to this machine.

    Return a function that returns the URL of a server under such a name.
    """
    ask = socket.getaddrinfo

    def resolve(host, *arguments, **options):
        host = "127.0.0.1" if str(host).endswith(".example.org") else host
        return ask(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return lambda server, name: server.url.replace("127.0.0.1", f"{name}.example.org")


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    LOGIN = aiohttp.BasicAuth("me", "secret")
SECRETS = [
    {"headers": {"X-Token": "secret"}},
    {"client_kwargs": {"headers": {"X-Token": "secret"}}},
    {"client_kwargs": {"cookies": {"session": "secret"}}},
    {"client_kwargs": {"auth": LOGIN}},
    {"cookies": {"session": "secret"}},
    {"auth": LOGIN},
]
NAMES = ("X-Token", "Cookie", "Authorization")


@pytest.mark.parametrize("secret", SECRETS)
def test_reference_set_credentials_are_not_sent_to_another_server(served, other, secret):
    assert read(f"{served.url}/refs.json", allow=[other.url], **secret) == [0, 1, 2, 3]
    first = [set(NAMES) & set(request.headers) for request in served.requests_for("*")]
    assert len(first) >= 2
    assert all(first)
    (sent,) = other.requests_for("*")
    assert not set(NAMES) & set(sent.headers)
    assert sent.headers["Range"] == "bytes=0-15"


with_ranges = pytest.mark.skipif(
    tuple(map(int, fsspec.__version__.split(".")[:2])) < (2026, 9),
    reason="cat_ranges of an older simplecache finds only cached files",
)


@pytest.mark.parametrize("secret", SECRETS)
def test_store_credentials_are_not_sent_to_another_server(served, other, secret):
    served.fault("redirect", path="/refs.json", location=f"{other.url}/refs.json", times=None)
    store = open_store(served.url, storage_options=secret)
    assert len(next(iter(store.fetch(["data.bin"])))) == 16
    open_store(f"{served.url}/refs.json", storage_options=secret)
    assert len(other.requests_for("*")) == 2
    assert not any(set(NAMES) & set(sent.headers) for sent in other.requests_for("*"))


def test_names_in_http_urls_are_percent_encoded_once(served):
    written = xr.Dataset({"t": ("x", np.arange(4))})
    written.nczarr.to_nczarr(f"{served.root}/a b%41.zip")
    os.rename(f"{served.root}/refs.json", f"{served.root}/a b%41.json")
    for name in ("a%20b%2541.zip", "a b%2541.json", "a%20b%2541.json?key=x%2By"):
        assert read(f"{served.url}/{name}") == [0, 1, 2, 3]
    assert served.requests_for("*.json[?]key=x%2By")


@with_ranges
def test_signed_url_keeps_signature_in_chained_url(served):
    store = open_store({"t/0": [f"simplecache::{served.url}/data.bin?signed=1", 4, 8]})
    (result,) = store.fetch(["t/0"])
    assert np.frombuffer(result, "<i4").tolist() == [1, 2]
    assert {request.path for request in served.requests} == {"/data.bin?signed=1"}


@with_ranges
def test_interrupted_download_is_not_cached(served, tmp_path):
    options = {"simplecache": {"cache_storage": str(tmp_path)}}
    urls = [f"simplecache::{served.url}/data.bin?{number}" for number in range(2)]
    served.fault("truncate", path="/data.bin", times=3)
    store = open_store(
        {f"t/{number}": [url] for number, url in enumerate(urls)},
        storage_options={"remote_options": options},
        retry=Retry(first_wait=0),
    )
    for result in store.fetch(["t/0", "t/1"]):
        assert np.frombuffer(result, "<i4").tolist() == [0, 1, 2, 3]


def test_cookies_without_domain_are_not_sent_to_another_server(served, other):
    async def with_jar(**options):
        jar = aiohttp.CookieJar(unsafe=True)
        jar.update_cookies({"session": "secret"})
        return aiohttp.ClientSession(cookie_jar=jar, **options)

    with pytest.raises(RefusedError, match="cookies that have no domain"):
        read(f"{served.url}/refs.json", allow=[other.url], get_client=with_jar)
    assert not other.requests_for("*")


def test_allowing_any_host_does_not_allow_private_addresses(served, public_names):
    with HttpServer(served.root) as other:
        with open(f"{served.root}/refs.json", "w") as file:
            json.dump(document(f"{public_names(other, 'inside')}/data.bin"), file)
        with pytest.raises(RefusedError, match=r"inside\.example\.org resolves to 127\.0\.0\.1"):
            read(f"{served.url}/refs.json", allow=["http://"])
        assert not other.requests_for("*")
        assert read(f"{served.url}/refs.json", allow=[public_names(other, "inside")]) == [
            0,
            1,
            2,
            3,
        ]
        # The set's own host, and hosts in a local set. obstore would use its own
        # resolver.
        own = f"{public_names(other, 'own')}/refs.json"
        assert read(own, allow=[public_names(other, "inside")], client="fsspec")
        assert read(document(f"{public_names(other, 'inside')}/data.bin")) == [0, 1, 2, 3]


def test_redirects_to_private_addresses_are_rejected(served, public_names):
    with HttpServer(served.root) as other:
        location = f"{public_names(other, 'inside')}/data.bin"
        served.fault("redirect", path="/data.bin", location=location, times=None)
        with pytest.raises(RefusedError, match="127"):
            read(document(f"{public_names(served, 'outside')}/data.bin"))
        assert not other.requests_for("*")


@pytest.mark.parametrize("status", [300, 301, 302, 304, 307])
def test_redirects_without_location_header_raise_error(served, status):
    served.fault("status", path="/data.bin", status=status, times=None)
    for target in (
        document(f"{served.url}/data.bin"),
        {**document("x"), "t/0": [f"{served.url}/data.bin"]},
    ):
        with pytest.raises(StorageError, match=str(status)):
            read(target)
    with pytest.raises(StorageError, match=str(status)):
        list(open_store(served.url).fetch(["data.bin"]))


class TestLongResponses:
    """Responses of a server that does not support ranges."""

    SIZE = 40 << 20

    @pytest.fixture(params=["announced", "endless"])
    def endless(self, request, served, monkeypatch):
        def send(handler, *_):
            handler.send_response(self.status)
            if request.param == "announced":
                handler.send_header("Content-Length", str(self.SIZE))
            handler.end_headers()
            handler.close_connection = True
            for _ in range(self.SIZE >> 16):
                try:
                    handler.wfile.write(b"\0" * (1 << 16))
                except OSError:
                    return
                self.sent += 1 << 16

        self.sent, self.status = 0, 200
        monkeypatch.setattr(served._server.RequestHandlerClass, "_answer", send)
        return served

    def test_responses_exceeding_range_by_more_than_16_mib_are_rejected(self, endless):
        store = open_store(endless.url, retry=Retry(first_wait=0))

        def fetch():
            with pytest.raises(
                LimitError, match="ignored the request for 100 bytes at offset 0"
            ) as caught:
                list(store.fetch_ranges([ByteRange("data.bin", 0, 100)]))
            assert caught.value.key == "data.bin"

        assert peak_memory(fetch) < 36 << 20
        assert len(endless.requests_for("*")) == 2  # through obstore, and then through fsspec
        assert self.sent < 2 * self.SIZE

    def test_long_error_response_body_is_not_read(self, endless):
        self.status = 404
        store = open_store(endless.url, storage_options={"client": "fsspec"})
        assert list(store.fetch_ranges([ByteRange("data.bin", 0, 100)])) == [None]
        assert self.sent < self.SIZE

    def test_size_of_whole_objects_and_documents_is_limited(self, endless):
        limits = Limits(max_chunk_bytes=1 << 20, max_consolidated_bytes=2 << 20)
        store = open_store({"t/0": [f"{endless.url}/data.bin"]}, limits=limits)
        with pytest.raises(LimitError, match="max_chunk_bytes") as caught:
            list(store.fetch(["t/0"]))
        assert caught.value.key == "t/0"
        with pytest.raises(LimitError, match="max_consolidated_bytes"):
            open_store(f"{endless.url}/refs.json", limits=limits)
        assert self.sent < self.SIZE


@pytest.mark.parametrize("client", ["fsspec", "obstore"])
def test_error_for_out_of_bounds_range_includes_reference(s3_server, client):
    s3_server.put("data", bytes(32))
    target = f"{s3_server.url}/data"
    references = document(target) | {"t/1": [target, 16, 17]}
    store = open_store(
        {"version": 1, "refs": references},
        storage_options={
            "remote_protocol": "s3",
            "remote_options": s3_server.storage_options | {"client": client},
        },
    )
    with pytest.raises(StorageError, match=r"t/1.*returned 16 bytes; expected 17 at offset 16"):
        list(store.fetch(["t/0", "t/1"]))
