"""Servers that fail or respond wrongly, and stores in other processes, threads and event loops."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import random
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import obstore.store
import pytest
from distributed.core import error_message

from tests.processes import in_a_child, in_a_new_interpreter
from tests.reading import open_store
from tests.servers import HttpServer, Request, S3Server
from xr_nczarr.errors import (
    AccessDeniedError,
    LimitError,
    StorageConnectionError,
    StorageError,
    StorageTimeoutError,
)
from xr_nczarr.model import Limits
from xr_nczarr.storage import ByteRange, RemoteStore, Retry, retries
from xr_nczarr.storage.fsspec_s3 import s3_options
from xr_nczarr.storage.obstore_client import ObstoreClient

CHUNKS = {f"a/{index}": bytes([index % 251]) * (100 + index) for index in range(200)}


Connect = Callable[..., Any]


class FakeTime:
    """A clock that advances only when its method `sleep` is called."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> FakeTime:
    fake = FakeTime()
    monkeypatch.setattr(retries, "time", fake)
    return fake


@pytest.fixture
def server(http_server: HttpServer) -> HttpServer:
    os.mkdir(f"{http_server.root}/a")
    for key, data in CHUNKS.items():
        Path(http_server.root, key).write_bytes(data)
    return http_server


@pytest.fixture(params=["fsspec", "obstore"])
def connect(request: pytest.FixtureRequest) -> Connect:
    """Return a function that opens a store with one client. The test runs with each client."""

    def connect(url: str, **options: Any) -> Any:
        chosen = {**options.pop("storage_options", {}), "client": request.param}
        return open_store(url, storage_options=chosen, **options)

    return connect


def fetch(store: RemoteStore, *keys: str) -> list[bytes | None]:
    return [None if answer is None else bytes(answer) for answer in store.fetch(keys)]


# Regression D39
@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_transient_failures_are_retried_with_increasing_delays(
    connect: Connect, server: HttpServer, time: FakeTime, status: int
) -> None:
    server.fault("status", path="/a/1", status=status, times=3)
    store = connect(server.url)
    assert fetch(store, "a/0", "a/1", "a/none") == [CHUNKS["a/0"], CHUNKS["a/1"], None]
    assert len(server.requests_for("/a/1")) == 4
    assert len(server.requests) == 6
    assert [wait <= 0.2 * 2**n for n, wait in enumerate(time.waits)] == [True] * 3
    assert all(wait >= 0.1 * 2**n for n, wait in enumerate(time.waits))


# Regression D39
@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, StorageError),
        (401, AccessDeniedError),
        (403, AccessDeniedError),
        (410, StorageError),
        (416, StorageError),
        (501, StorageError),
    ],
)
def test_permanent_failures_raise_error_immediately(
    connect: Connect, server: HttpServer, time: FakeTime, status: int, kind: type[StorageError]
) -> None:
    server.fault("status", path="/a/1", status=status, times=None)
    store = connect(server.url)
    with pytest.raises(kind, match=str(status)) as caught:
        fetch(store, "a/0", "a/1")
    assert type(caught.value) is kind
    assert (caught.value.store, caught.value.key) == (store.name, "a/1")
    with pytest.raises(kind, match=rf"4 bytes at offset 3.*{status}"):
        list(store.fetch_ranges([ByteRange("a/1", 3, 4)]))
    assert time.waits == []


def test_pickled_errors_keep_message_but_contain_no_request_headers(
    connect: Connect, server: HttpServer
) -> None:
    server.fault("status", path="/a/1", status=403, times=None)
    headers = {"Authorization": "secret"}
    with pytest.raises(AccessDeniedError) as caught:
        fetch(connect(server.url, storage_options={"headers": headers}), "a/1")
    sent = error_message(caught.value)["exception"].data
    assert b"secret" not in sent
    assert str(pickle.loads(sent)) == str(caught.value)


@pytest.mark.parametrize("status", [401, 403, 503])
def test_failed_size_request_is_not_treated_as_missing_object(
    connect: Connect, server: HttpServer, time: FakeTime, status: int
) -> None:
    server.fault("status", path="/a/1", status=status, times=None)
    with pytest.raises(StorageError, match=str(status)):
        connect(server.url).size("a/1")
    store = connect(server.url, retry=Retry(), missing_status=(status,))
    assert store.size("a/1") is None


def test_object_size_is_found_even_if_server_omits_content_length(
    connect: Connect, server: HttpServer
) -> None:
    server.fault("no-length", path="/a/1", times=None)
    assert connect(server.url).size("a/1") == len(CHUNKS["a/1"])


# The whole object was once read, whatever its size.
def test_size_limit_applies_if_server_omits_content_length(
    connect: Connect, server: HttpServer
) -> None:
    server.fault("no-length", path="/a/1", times=None)
    store = connect(server.url).bounded(len(CHUNKS["a/1"]) - 1)
    with pytest.raises(LimitError):
        store.size("a/1")


def test_missing_status_option_defines_missing_objects(
    connect: Connect, server: HttpServer
) -> None:
    server.fault("status", path="/a/1", status=403, times=None)
    store = connect(server.url, missing_status=(403, 404))
    assert fetch(store, "a/0", "a/1", "a/none") == [CHUNKS["a/0"], None, None]


def test_retries_end_after_five_attempts_or_sixty_seconds(
    connect: Connect, server: HttpServer, time: FakeTime
) -> None:
    server.fault("status", path="/a/1", status=503, times=None)
    with pytest.raises(StorageError, match=r"503.*all retries failed"):
        fetch(connect(server.url), "a/1")
    assert len(server.requests) == 5
    server.requests.clear()
    with pytest.raises(StorageError):
        fetch(connect(server.url, retry=Retry(attempts=99, total_seconds=60)), "a/1")
    assert 50 <= sum(time.waits[4:]) <= 60
    assert max(time.waits) <= 10


@pytest.mark.parametrize("fault", ["reset", "truncate", "wrong-range"])
def test_request_is_retried_after_dropped_connection_or_wrong_range(
    connect: Connect, server: HttpServer, time: FakeTime, fault: str
) -> None:
    server.fault(fault, path="/a/*", times=2)
    store = connect(server.url)
    assert list(store.fetch_ranges([ByteRange("a/9", 3, 7)])) == [CHUNKS["a/9"][3:10]]
    assert 1 <= len(time.waits) <= 2
    if fault != "wrong-range":
        server.fault(fault, path="/a/*", times=2)
        assert fetch(store, "a/7") == [CHUNKS["a/7"]]


@pytest.mark.parametrize("fault", ["reset", "truncate"])
def test_repeatedly_broken_connection_raises_connection_error(
    connect: Connect, server: HttpServer, time: FakeTime, fault: str
) -> None:
    server.fault(fault, times=None)
    with pytest.raises(StorageConnectionError, match=r"a/7.*all retries failed") as caught:
        fetch(connect(server.url), "a/7")
    assert len(time.waits) == 4
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("besides", [0.0, 1.0])  # overhead of an attempt besides its timeout
def test_five_attempts_on_unresponsive_server_end_within_one_minute(
    time: FakeTime, besides: float
) -> None:
    retry, ends = Retry(), []
    for _ in retry.tries():
        time.now += retry.timeout_seconds + besides
        ends.append(time.now)
    assert len(ends) == 5
    assert ends[-1] <= 60
    config = s3_options({}, retry, 64)["config_kwargs"]
    assert config["read_timeout"] == retry.timeout_seconds == 10
    assert config["retries"]["total_max_attempts"] == 1


def test_unresponsive_server_raises_timeout_error(
    connect: Connect, server: HttpServer, time: FakeTime
) -> None:
    server.fault("stall", times=None)
    store = connect(server.url, retry=Retry(timeout_seconds=0.1, attempts=2))
    with pytest.raises(StorageTimeoutError, match="a/7"):
        fetch(store, "a/7")
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("fault", "error"),
    [("status", StorageConnectionError), ("silence", StorageTimeoutError)],
)
def test_azure_client_library_does_not_retry_requests(
    http_server: HttpServer, time: FakeTime, fault: Any, error: type[StorageError]
) -> None:
    pytest.importorskip("adlfs")
    http_server.fault(fault, times=None)
    options = {
        "connection_string": f"AccountName=a;AccountKey=eA==;BlobEndpoint={http_server.url}/a",
        "retry": Retry(timeout_seconds=0.1, attempts=2),
    }
    store = open_store("az://container/store", storage_options=options)
    with pytest.raises(error, match="all retries failed"):
        fetch(store, "a/7")
    assert len(http_server.requests) == 2
    assert len(time.waits) == 1


def test_missing_azure_credentials_raise_error_with_remedy() -> None:
    exceptions = pytest.importorskip("azure.core.exceptions")
    cause = exceptions.ClientAuthenticationError("failed to retrieve a token")
    error = retries.storage_error(cause, store="az://container", key="k")
    assert "failed to retrieve a token. Pass credentials in storage_options" in str(error)


def test_unreachable_server_raises_connection_error(connect: Connect, time: FakeTime) -> None:
    store = connect("http://127.0.0.1:9/x")
    with pytest.raises(StorageConnectionError, match=r"127\.0\.0\.1"):
        fetch(store, ".zgroup")


# Regressions D37, D38
@pytest.mark.parametrize("key", ["a/100", "a/101"])
def test_requested_ranges_are_extracted_if_response_contains_whole_object(
    connect: Connect, server: HttpServer, key: str
) -> None:
    server.fault("ignore-range", times=None)
    store = connect(server.url)
    data = CHUNKS[key]
    ranges = [ByteRange(key, 3, 5), ByteRange(key, -4, 4), ByteRange(key, 0, len(data))]
    assert list(store.fetch_ranges(ranges)) == [data[3:8], data[-4:], data]


# Regression D40
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("short", "returned 2 bytes; expected 5 at offset 3"),
        (
            "html",
            r"a web page instead of 5 bytes at offset 3; the page begins with <!DOCTYPE",
        ),
    ],
)
def test_response_of_wrong_length_raises_storage_error(
    connect: Connect, server: HttpServer, time: FakeTime, fault: str, message: str
) -> None:
    server.fault(fault, path="/a/100", times=None)
    with pytest.raises(StorageError, match=message) as caught:
        list(connect(server.url).fetch_ranges([ByteRange("a/100", 3, 5)]))
    assert caught.value.key == "a/100"
    assert time.waits == []


RANGES = [ByteRange("a/100", 3, 5), ByteRange("a/100", -4, 4), ByteRange("a/100", -20, 4)]


@pytest.mark.parametrize("fault", ["long", "wide-range"])
@pytest.mark.parametrize("byte_range", RANGES, ids=str)
def test_requested_range_is_extracted_if_response_contains_larger_range(
    connect: Connect, server: HttpServer, fault: str, byte_range: ByteRange
) -> None:
    (expected,) = connect(server.url).fetch_ranges([byte_range])
    server.fault(fault, path="/a/100", times=None)
    assert list(connect(server.url).fetch_ranges([byte_range])) == [expected]


@pytest.mark.parametrize("fault", ["more-range", "no-range", "far-range", "wrong-range"])
@pytest.mark.parametrize("byte_range", RANGES, ids=str)
def test_partial_response_with_wrong_range_raises_storage_error(
    connect: Connect, server: HttpServer, time: FakeTime, fault: str, byte_range: ByteRange
) -> None:
    server.fault(fault, path="/a/100", times=None)
    store = connect(server.url, retry=Retry(attempts=2))
    with pytest.raises(
        StorageError, match=r"the request was for .* bytes.*, but the server sent"
    ) as caught:
        list(store.fetch_ranges([byte_range]))
    assert caught.value.key == "a/100"
    server.faults[0].times = server.faults[0].seen + 1  # the fault ends
    (result,) = store.fetch_ranges([byte_range])
    assert len(result) == byte_range.length


def test_adjacent_ranges_share_one_request(connect: Connect, server: HttpServer) -> None:
    store = connect(server.url)
    ranges = [ByteRange("a/150", start, 10) for start in (100, 0, 50, 10)]
    ranges.insert(2, ByteRange("a/7", 5, 5))
    expected = [CHUNKS[part.key][part.start : part.start + part.length] for part in ranges]
    assert list(store.fetch_ranges(ranges)) == expected
    assert sorted(request.range for request in server.requests) == ["bytes=0-109", "bytes=5-9"]


def test_concurrent_fetches_send_one_request_per_object(
    connect: Connect,
    server: HttpServer,
) -> None:
    server.fault("latency", times=None, seconds=0.1)
    store = connect(server.url)
    assert fetch(store, *CHUNKS) == list(CHUNKS.values())
    assert len(server.requests) == len(CHUNKS)
    assert {request.headers.get("Accept-Encoding", "identity") for request in server.requests} == {
        "identity"
    }
    assert 10 < server.most_in_flight <= 64


def test_abandoned_read_sends_few_requests_and_leaves_no_threads(
    server: HttpServer,
) -> None:
    store = open_store(server.url)
    iterator = store.fetch(list(CHUNKS))
    assert next(iterator) == CHUNKS["a/0"]
    iterator.close()
    assert len(server.requests) <= 8 + 2 * 32
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("fetch")]


def test_secrets_in_urls_are_hidden_in_messages(server: HttpServer) -> None:
    url = f"http://me:word@{server.url[7:]}/?token=word"
    store = open_store(url)
    assert fetch(store, "a/1") == [CHUNKS["a/1"]]
    assert server.requests[0].path == "/a/1?token=word"
    assert "Authorization" in server.requests[0].headers
    server.fault("status", status=403, times=None)
    with pytest.raises(AccessDeniedError) as caught:
        fetch(store, "a/1")
    assert "word" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_only_complete_objects_are_cached(
    server: HttpServer, time: FakeTime, tmp_path: Path
) -> None:
    options = {"simplecache": {"cache_storage": str(tmp_path / "cache")}}
    server.fault("truncate", path="/a/1", times=5)
    url = f"simplecache::{server.url}"
    store = open_store(url, storage_options=options)
    with pytest.raises(StorageConnectionError):
        fetch(store, "a/1")
    assert fetch(store, "a/1", "a/none") == [CHUNKS["a/1"], None]
    server.clear()
    again = open_store(url, storage_options=options)
    assert fetch(again, "a/1") == [CHUNKS["a/1"]]
    assert list(again.fetch_ranges([ByteRange("a/1", 1, 2)])) == [CHUNKS["a/1"][1:3]]
    assert server.requests == []


def read_all(store: RemoteStore) -> bool:
    return fetch(store, *CHUNKS) == list(CHUNKS.values())


def read_here_in_a_child_and_here(url: str, method: str) -> bool:
    store = open_store(url)
    return read_all(store) and in_a_child(method, read_all, store) and read_all(store)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_opened_store_can_be_read_in_other_processes(server: HttpServer, method: str) -> None:
    assert in_a_new_interpreter(read_here_in_a_child_and_here, server.url, method)


def read_here_and_in_a_fork(url: str) -> int | None:
    store = open_store(url)
    assert read_all(store)
    context = multiprocessing.get_context("fork")
    child = context.Process(target=lambda: os._exit(0 if read_all(store) else 1))
    child.start()
    child.join(30)
    return child.exitcode


def test_forked_process_can_use_inherited_store(server: HttpServer) -> None:
    assert in_a_new_interpreter(read_here_and_in_a_fork, server.url) == 0


def read_mapper_in_a_fork(options: dict[str, Any]) -> int | None:
    filesystem = fsspec.filesystem("s3", **options)
    mapper = filesystem.get_mapper("bucket/x")
    fetch(open_store(mapper), "a")
    child = multiprocessing.get_context("fork").Process(
        target=lambda: fetch(open_store(mapper), "a")
    )
    child.start()
    child.join(60)
    child.kill()
    return child.exitcode


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_process_can_open_inherited_s3_mapper(s3_server: S3Server) -> None:
    s3_server.put("x/a", b"1")
    assert in_a_new_interpreter(read_mapper_in_a_fork, s3_server.storage_options) == 0


def test_one_hundred_threads_can_read_one_store_concurrently(
    connect: Connect, server: HttpServer
) -> None:
    store = connect(server.url)
    keys = list(CHUNKS)[:20]
    with ThreadPoolExecutor(100) as threads:
        results = list(threads.map(lambda _: fetch(store, *keys), range(100)))
    assert all(result == [CHUNKS[key] for key in keys] for result in results)


async def test_store_works_inside_running_event_loop(connect: Connect, server: HttpServer) -> None:
    assert read_all(connect(server.url))


@pytest.fixture
def s3_store(connect: Connect, s3_server: S3Server, time: FakeTime) -> RemoteStore:
    options = {**s3_server.storage_options, "client": "fsspec"}
    return connect("s3://bucket/x", storage_options=options)


# Regression D39
def test_values_are_correct_even_if_30_percent_of_requests_fail(
    s3_server: S3Server, s3_store: RemoteStore
) -> None:
    chance, failures = random.Random(1), Counter()

    def fail(request: Request) -> int | None:
        # Each request is tried five times, in an order that depends on the threads.
        if chance.random() > 0.3 or failures[request[:2]] == 4:
            return None
        failures[request[:2]] += 1
        return 503

    s3_server.fail = fail
    chunks = dict(itertools.islice(CHUNKS.items(), 35))
    s3_store.put(chunks.items())
    assert fetch(s3_store, *chunks) == list(chunks.values())
    assert len(s3_store.list_names("a/").objects) == len(chunks)
    s3_store.delete("a/1")
    assert fetch(s3_store, "a/1", "a/2") == [None, CHUNKS["a/2"]]


def test_fetching_from_s3_sends_one_request_per_object(
    s3_server: S3Server, s3_store: RemoteStore
) -> None:
    s3_server.put("x/a/1", b"1")
    s3_server.clear()
    assert fetch(s3_store, "a/1", "a/2") == [b"1", None]
    assert sorted(request[:2] for request in s3_server.requests) == [
        ("GET", "/bucket/x/a/1"),
        ("GET", "/bucket/x/a/2"),
    ]


def test_s3_folder_markers_are_not_listed_as_objects(
    s3_server: S3Server, s3_store: RemoteStore
) -> None:
    before = dict(s3_store.sizes(""))
    s3_server.put("x/a/", b"")
    assert dict(s3_store.sizes("")) == before


def test_object_sizes_are_not_taken_from_earlier_listing(
    s3_server: S3Server, s3_store: RemoteStore
) -> None:
    # A zip file created after the listing of its folder was once reported missing.
    s3_server.put("x/a", b"1")
    assert s3_store.list_names("").objects == ["a"]
    s3_server.put("x/b.zip", b"123")
    assert s3_store.size("b.zip") == 3


def test_forbidden_s3_requests_raise_access_denied_error(
    s3_server: S3Server, s3_store: RemoteStore
) -> None:
    def refuse(request: Request) -> int | None:
        return 403

    s3_server.fail = refuse
    for action in (
        lambda: fetch(s3_store, "a/1"),
        lambda: s3_store.list_names("a/"),
        lambda: s3_store.put([("a/1", b"1")]),
        lambda: s3_store.delete("a/1"),
        lambda: s3_store.delete("a/"),
    ):
        with pytest.raises(AccessDeniedError, match="403"):
            action()


EXPIRED = b"<Error><Code>ExpiredToken</Code><Message>The token has expired.</Message></Error>"
REGION = (
    b"<Error><Code>AuthorizationHeaderMalformed</Code>"
    b"<Message>wrong &apos;x&apos;</Message></Error>"
)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (401, AccessDeniedError),
        ((400, EXPIRED), AccessDeniedError),
        ((400, REGION), StorageError),
        (400, StorageError),
        (405, StorageError),
        (425, StorageConnectionError),
        (429, StorageConnectionError),
        (503, StorageConnectionError),
        ("reset", StorageConnectionError),
        ("truncate", StorageConnectionError),
        (504, StorageTimeoutError),
        ("silence", StorageTimeoutError),
    ],
    ids=lambda value: (
        str(value[1][13:20]) if isinstance(value, tuple) else getattr(value, "__name__", value)
    ),
)
def test_obstore_and_fsspec_raise_same_error_for_same_s3_response(
    connect: Connect,
    s3_server: S3Server,
    time: FakeTime,
    answer: Any,
    kind: type[StorageError],
) -> None:
    s3_server.put("x/a", b"12345")
    store = connect(
        "s3://bucket/x",
        storage_options=s3_server.storage_options,
        retry=Retry(attempts=2, timeout_seconds=0.2 if answer == "silence" else 20),
    )
    s3_server.fail = lambda _: answer
    for action in (
        lambda: fetch(store, "a"),
        lambda: list(store.fetch_ranges([ByteRange("a", 1, 2)])),
        lambda: list(store.fetch_ranges([ByteRange("a", -2, 2)])),
        lambda: store.list_names(""),
        lambda: list(store.sizes()),
    ):
        with pytest.raises(StorageError) as caught:
            action()
        assert type(caught.value) is kind
        retried = kind in (StorageConnectionError, StorageTimeoutError)
        assert ("all retries failed" in str(caught.value)) == retried
        assert "max retries" not in str(caught.value)  # of botocore, in addition to `retry`
        assert ".." not in str(caught.value)
        stated = {EXPIRED: "400 (The token has expired)", REGION: "400 (wrong 'x')"}
        assert not isinstance(answer, tuple) or stated[answer[1]] in str(caught.value)


def test_status_404_for_list_request_raises_storage_error(
    s3_server: S3Server, s3_store: RemoteStore
) -> None:
    s3_server.fail = lambda _: 404
    for listed in (lambda: s3_store.list_names(""), lambda: list(s3_store.sizes())):
        with pytest.raises(StorageError, match="404"):
            listed()


@pytest.mark.parametrize("length", [0, 2])
def test_suffix_range_request_distinguishes_missing_object_from_failure(
    connect: Connect, server: HttpServer, length: int
) -> None:
    store = connect(server.url)
    assert list(store.fetch_ranges([ByteRange("a/none", -4, length)])) == [None]
    (part,) = store.fetch_ranges([ByteRange("a/100", -4, length)])
    assert part == CHUNKS["a/100"][-4:][:length]
    server.fault("status", path="/a/100", status=400, times=None)
    with pytest.raises(StorageError, match="400"):
        list(store.fetch_ranges([ByteRange("a/100", -4, length)]))


def test_removing_several_objects_skips_missing_ones(tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("absent", "a", "b")]
    for path in paths[1:]:
        path.write_bytes(b"1")
    store = RemoteStore(ObstoreClient(obstore.store.LocalStore(), str(tmp_path)))
    store.remove([path.name for path in paths])
    assert os.listdir(tmp_path) == []


def test_accessing_missing_bucket_raises_storage_error(
    connect: Connect, s3_server: S3Server
) -> None:
    store = connect("s3://nowhere/x", storage_options=s3_server.storage_options)
    for action in (
        lambda: fetch(store, ".zgroup"),
        lambda: store.list_names(""),
        lambda: store.put([("a", b"1")]),
    ):
        with pytest.raises(StorageError, match="bucket"):
            action()


def test_deleting_all_objects_keeps_bucket(connect: Connect, s3_server: S3Server) -> None:
    store = connect("s3://bucket", storage_options=s3_server.storage_options)
    store.put([("a/1", b"1"), ("2", b"2")])
    store.delete("")
    assert store.list_names("") == ([], [])
    store.put([("a/1", b"1")])
    assert fetch(store, "a/1") == [b"1"]


def test_error_for_missing_credentials_suggests_storage_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    options = {"client_kwargs": {"endpoint_url": "http://127.0.0.1:9"}}
    with pytest.raises(StorageError, match=r"redential.*storage_options.*anon"):
        fetch(open_store("s3://bucket/x", storage_options=options), "a")


def test_fsspec_mapper_is_opened_with_its_filesystem_options(
    s3_server: S3Server,
) -> None:
    filesystem = fsspec.filesystem("s3", **s3_server.storage_options)
    store = open_store(filesystem.get_mapper("bucket/x"))
    store.put([("a/0", b"1")])
    assert s3_server.requests_for("/bucket/x/a/0")
    assert fetch(store, "a/0") == [b"1"]
    assert store.name == "s3://bucket/x"


def test_objects_above_size_limit_are_not_read(s3_server: S3Server) -> None:
    limits = Limits(max_chunk_bytes=10, max_consolidated_bytes=10)
    for name, size in (("few", 10), ("many", 11), ("none", 0)):
        s3_server.put(f"x/{name}", bytes(size))
    options = {**s3_server.storage_options, "client": "fsspec"}
    plain = open_store("s3://bucket/x", storage_options=options, limits=limits)
    refs = {name: [f"s3://bucket/x/{name}"] for name in ("few", "many", "none")}
    listed = open_store(refs, storage_options={"s3://bucket/": options}, limits=limits)
    for store in (plain, pickle.loads(pickle.dumps(plain)), listed):
        assert list(store.fetch(["few", "none"])) == [bytes(10), b""]
        with pytest.raises(LimitError, match="max_chunk_bytes"):
            list(store.fetch(["few", "many"]))
    sent = s3_server.requests_for("/bucket/x/many")
    assert {item.range for item in sent if item.method == "GET"} == {"bytes=0-10"}
    fsspec.filesystem("memory").pipe_file("/limit/many", bytes(11))
    with pytest.raises(LimitError, match="max_chunk_bytes"):
        list(open_store({"a": ["memory://limit/many"]}, limits=limits).fetch(["a"]))
