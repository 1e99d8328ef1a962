"""Real servers for tests of every layer: S3, and an HTTP server that misbehaves on demand.

>>> with HttpServer(folder) as server:
...     server.fault("status", path="*/c/0", status=503, times=2)
...     read(server.url + "/store.zarr")
...     assert len(server.requests_for("*/c/0")) == 3
"""

from __future__ import annotations

import fnmatch
import functools
import gzip
import io
import os
import re
import socket
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tests.stores import files_below

FaultKind = Literal[
    "status",  # respond with `status` for any path
    "html",  # 200 and a login page
    "truncate",  # announce the whole body, send half of it, close
    "short",  # a consistent response with half of the bytes
    "long",  # a response with more bytes than requested
    "ignore-range",  # 200 and the whole object
    "wrong-range",  # 206, but bytes from elsewhere in the object
    "wide-range",  # 206, bytes from before to after the range, as the header says
    "more-range",  # 206, more bytes than the header says
    "no-range",  # 206 without a Content-Range header
    "far-range",  # 206 with a range outside the object in the header
    "reset",  # reset the connection before the response
    "stall",  # send the headers and never the body
    "silence",  # never respond
    "pause",  # send half of the body and never the rest
    "latency",  # respond correctly after `seconds`
    "together",  # respond correctly once `times` requests are waiting
    "redirect",  # 302 to `location`
    "gzip",  # the object compressed, with a Content-Encoding header, or a range of it
    "no-length",  # the correct response without its length, which ends with the connection
]
LOGIN_PAGE = b"<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>Login</body></html>"


class Request(NamedTuple):
    """A request, with its path as sent, its Range header and all its headers."""

    method: str
    path: str
    range: str | None
    headers: dict[str, str]


@dataclass
class Fault:
    """A fault that skips `after` matching requests, and then occurs `times` times.

    A request matches if its path matches the pattern `path`. If `times` is None, the fault never
    ends.
    """

    kind: FaultKind
    path: str = "*"
    status: int = 503
    after: int = 0
    times: int | None = 1
    seconds: float = 0.0
    location: str = ""
    seen: int = field(default=0)
    waiting: threading.Barrier = field(init=False)

    def __post_init__(self) -> None:
        self.waiting = threading.Barrier(self.times or 1, timeout=60)

    def applies(self, path: str) -> bool:
        if not fnmatch.fnmatchcase(path, self.path):
            return False
        self.seen += 1
        return self.after < self.seen and (
            self.times is None or self.seen <= self.after + self.times
        )


# Storage options whose time limits are not exceeded while a batch is held.
PATIENT = {"retry": {"timeout_seconds": 300, "total_seconds": 600}}
_TASKS = Path("/proc/self/task")


class Batches:
    """A context that holds requests until no more arrive, and then responds to all of them.

    Requests that are answered together are a batch. The number of batches, `count`, is the number
    of round trips for which a client with unlimited connections waits. The client must run in this
    process, and needs the options `PATIENT`. A batch is complete when all other threads sleep.
    """

    ticks, tick_seconds, idle_seconds = 4 if _TASKS.exists() else 40, 0.005, 0.0005

    def __init__(self) -> None:
        self.count = 0
        self.requests: list[Request] = []
        self._events = self._waiting = self._answering = 0
        self._changed = threading.Condition()

    def enter(self, request: Request) -> None:
        """Wait until the server responds to the batch to which the request belongs."""
        with self._changed:
            self.requests.append(request)
            self._events += 1
            self._waiting += 1
            batch = self.count
            if self._waiting > 1:
                self._changed.wait_for(lambda: self.count > batch)
                return
            idle, ignored = 0, _ignored_threads()
            while idle < self.ticks:
                events, used = self._events, _seconds_used(ignored)
                self._changed.wait(self.tick_seconds)
                busy = self._answering or self._events > events or _is_any_awake(ignored)
                busy = busy or _seconds_used(ignored) - used > self.idle_seconds
                idle = 0 if busy else idle + 1
            self.count += 1
            self._waiting, self._answering = 0, self._waiting
            self._changed.notify_all()

    def leave(self) -> None:
        """Record that a response was sent."""
        with self._changed:
            self._events += 1
            self._answering -= 1


def _ignored_threads() -> set[str]:
    """Return the identifiers of threads that belong to a distributed cluster."""
    names = ("IO loop", "Profile", "AsyncProcess")
    return {str(item.native_id) for item in threading.enumerate() if item.name.startswith(names)}


def _seconds_used(ignored: set[str]) -> float:
    """Return the processor time of this process, except for this thread and ignored threads."""
    nanoseconds = 0
    for thread in ignored:
        with suppress(OSError):  # the thread has ended, or there is no schedstat
            nanoseconds += int((_TASKS / thread / "schedstat").read_text().split()[0])
    return time.process_time() - time.thread_time() - nanoseconds / 1e9


def _is_any_awake(ignored: set[str]) -> bool:
    """Return whether another thread of this process runs, or waits for a processor or disk.

    Return False on systems other than Linux, which do not report this.
    """
    own = str(threading.get_native_id())
    for task in _TASKS.iterdir() if _TASKS.exists() else ():
        with suppress(OSError):  # the thread has ended
            state = task.joinpath("stat").read_text().rpartition(")")[2][1]
            if task.name not in {own, *ignored} and state != "S":
                return True
    return False


class _Counted:
    """A log of requests, with the largest number of requests that were in flight together."""

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self._batches: Batches | None = None
        self.most_in_flight = 0
        self._in_flight = 0
        self._mutex = threading.Lock()

    def clear(self) -> None:
        """Forget the requests so far."""
        with self._mutex:
            self.requests.clear()
            self.most_in_flight = self._in_flight

    def requests_for(self, pattern: str) -> list[Request]:
        """Return the requests whose path matches a shell pattern, such as ``*/x/0``."""
        if not pattern.startswith(("/", "*")):
            raise ValueError(f"no path matches {pattern!r}: each begins with a slash")
        with self._mutex:
            return [item for item in self.requests if fnmatch.fnmatchcase(item.path, pattern)]

    @contextmanager
    def _counting(self, request: Request) -> Iterator[ExitStack]:
        """Log a request, and add it to its batch. The block responds to the request.

        The request is in flight until the block ends, or until the block closes the yielded stack.
        """
        batches = self._batches
        with self._mutex:
            self.requests.append(request)
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)

        def land() -> None:
            with self._mutex:
                self._in_flight -= 1

        in_flight = ExitStack()
        in_flight.callback(land)
        if batches:
            batches.enter(request)
        try:
            yield in_flight
        finally:
            in_flight.close()
            if batches:
                batches.leave()

    @contextmanager
    def batches(self) -> Iterator[Batches]:
        """Count the requests and round trips while the block runs."""
        self._batches = Batches()
        try:
            yield self._batches
        finally:
            self._batches = None


@contextmanager
def at_most(server: _Counted, requests: int, rounds: int) -> Iterator[Batches]:
    """Check that the block sends at most this many requests, in at most `rounds` batches."""
    with server.batches() as batches:
        yield batches
    shown = "\n".join(f"{item.method} {item.path}" for item in batches.requests)
    assert len(batches.requests) <= requests, f"{len(batches.requests)} requests:\n{shown}"
    assert batches.count <= rounds, f"{batches.count} batches:\n{shown}"


def list_requests(batches: Batches) -> list[str]:
    """Return the paths of the LIST requests."""
    return [item.path for item in batches.requests if "list-type=2" in item.path]


class HttpServer(_Counted):
    """A threaded HTTP/1.1 server for a directory, which supports GET, HEAD, ranges and keep-alive.

    The response for missing files and directories has status 404, or 200 and the page `fallback`.
    If `token` is set, the response to requests without this token has status 401.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__()
        self.root = os.fspath(root)
        self.fallback: bytes | None = None
        self.token: str | None = None
        self.faults: list[Fault] = []
        self.closing = threading.Event()
        handler = type("Handler", (_Handler,), {"owner": self})
        self._server = _QuietServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> HttpServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fault(self, kind: FaultKind, **options: Any) -> Fault:
        """Add a fault. If several faults apply to a request, the first one is used."""
        fault = Fault(kind, **options)
        self.faults.append(fault)
        return fault

    def clear(self) -> None:
        """Forget the requests and the faults."""
        super().clear()
        self.faults.clear()

    def _fault_for(self, path: str) -> Fault | None:
        with self._mutex:
            return next((fault for fault in self.faults if fault.applies(path)), None)


class _QuietServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that close the connection, as some tests do."""


class _Handler(BaseHTTPRequestHandler):
    owner: HttpServer
    in_flight: ExitStack
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def do_GET(self) -> None:
        self._serve(body=True)

    def do_HEAD(self) -> None:
        self._serve(body=False)

    def log_message(self, *_: object) -> None:
        """Keep the test output clean."""

    def _serve(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        headers = {name.title(): value for name, value in self.headers.items()}
        request = Request(self.command, self.path, headers.get("Range"), headers)
        with self.owner._counting(request) as self.in_flight:
            fault = self.owner._fault_for(path)
            self._answer(urllib.parse.unquote(path), fault, body)

    def _answer(self, path: str, fault: Fault | None, body: bool) -> None:
        kind = fault.kind if fault else None
        token = self.owner.token
        if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
            self._send(401, b"no token", body)
        elif kind == "reset":
            # Zero seconds of lingering turn the close into a reset.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()
        elif kind == "silence":
            self._wait()
        elif fault and kind == "status":
            self._send(fault.status, f"status {fault.status}".encode(), body)
        elif fault and kind == "redirect":
            self._send(302, b"", body, {"Location": fault.location})
        elif kind == "html":
            self._send(200, LOGIN_PAGE, body, {"Content-Type": "text/html"})
        else:
            if fault and kind == "latency":
                self.owner.closing.wait(fault.seconds)
            if fault and kind == "together":
                fault.waiting.wait()
            self._send_file(path, kind, body)

    def _send_file(self, path: str, kind: str | None, body: bool) -> None:
        target = os.path.normpath(self.owner.root + path)
        try:
            with open(target, "rb") as file:
                data = file.read()
        except OSError:
            if self.owner.fallback is None:
                self._send(404, b"not found", body)
            else:
                self._send(200, self.owner.fallback, body, {"Content-Type": "text/html"})
            return
        data = gzip.compress(data) if kind == "gzip" else data
        bounds = _bounds(self.headers.get("Range"), len(data))
        if bounds is None or kind == "ignore-range":
            answer = data[: len(data) // 2] if kind == "short" else data
            self._send(200, answer, body, kind=kind)
            return
        first, last = bounds
        if first >= len(data):
            self._send(416, b"", body, {"Content-Range": f"bytes */{len(data)}"})
            return
        if kind == "long":
            last += 7
        elif kind == "short":
            last = first + (last - first) // 2
        elif kind == "wrong-range":
            first, last = first + 1, last + 1
        elif kind == "wide-range":
            first, last = max(0, first - 3), last + 11
        answer = data[first:last]
        size = last - 1 if kind == "far-range" else len(data)
        span = {"Content-Range": f"bytes {first}-{first + len(answer) - 1}/{size}"}
        answer += b"more" * (kind == "more-range")
        self._send(206, answer, body, {} if kind == "no-range" else span, kind=kind)

    def _send(
        self,
        status: int,
        data: bytes,
        body: bool,
        headers: dict[str, str] | None = None,
        kind: str | None = None,
    ) -> None:
        self.in_flight.close()  # a client that has its response may send the next request
        self.send_response(status)
        if kind == "no-length":
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(data)))
        if kind == "gzip":
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Accept-Ranges", "bytes")
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if kind == "truncate":
            self.close_connection = True
        if kind in ("truncate", "pause", "stall"):
            data = data[: len(data) // 2] if kind != "stall" else b""
        with suppress(ConnectionError):
            self.end_headers()
            if body:
                self.wfile.write(data)
            self.wfile.flush()
            if body and kind in ("pause", "stall"):
                self._wait()

    def _wait(self) -> None:
        self.owner.closing.wait()
        self.close_connection = True


class IndexServer(_Counted):
    """Python's own web server, which lists directories as ``python -m http.server`` does.

    With `hidden`, its index pages have the form of nginx's pages, which omit names that begin with
    a dot.
    """

    def __init__(self, root: str | os.PathLike[str], *, hidden: bool = False) -> None:
        super().__init__()
        owner = self

        class Handler(SimpleHTTPRequestHandler):
            def send_head(self) -> Any:
                headers = dict(self.headers)
                request = Request(self.command, self.path, headers.get("Range"), headers)
                with owner._counting(request):
                    return super().send_head()

            def list_directory(self, path: Any) -> Any:
                if not hidden:
                    return super().list_directory(path)
                page = _nginx_index(urllib.parse.unquote(self.path), os.fspath(path))
                self.send_response(200)
                self.send_header("Content-Type", "text/html")
                self.send_header("Content-Length", str(len(page)))
                self.end_headers()
                return io.BytesIO(page)

            def log_message(self, *_: object) -> None:
                """Keep the test output clean."""

        handler = functools.partial(Handler, directory=os.fspath(root))
        self.closing = threading.Event()
        self._server = _QuietServer(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )

    url = HttpServer.url
    __enter__ = HttpServer.__enter__
    __exit__ = HttpServer.__exit__


def _nginx_index(path: str, folder: str) -> bytes:
    """Return the page of nginx's autoindex for a folder."""
    names = sorted(name for name in os.listdir(folder) if not name.startswith("."))
    rows = []
    for name in names:
        shown = name + "/" * os.path.isdir(os.path.join(folder, name))
        rows.append(f'<a href="{urllib.parse.quote(shown)}">{shown}</a> 23-Nov-2026 07:00 -\r\n')
    return (
        f"<html>\r\n<head><title>Index of {path}</title></head>\r\n<body>\r\n"
        f'<h1>Index of {path}</h1><hr><pre><a href="../">../</a>\r\n{"".join(rows)}</pre><hr>'
        "</body>\r\n</html>\r\n"
    ).encode()


def _bounds(header: str | None, size: int) -> tuple[int, int] | None:
    """Return the half-open interval of a Range header, or None if there is no header."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header or "")
    if match is None:
        return None
    first, last = match.groups()
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1) if last else size


class S3Server(_Counted):
    """moto's S3 server in this process, with a bucket, and with storage options for fsspec."""

    bucket = "bucket"
    region = "us-east-1"

    def __init__(self) -> None:
        super().__init__()
        from moto.moto_server.werkzeug_app import (
            DomainDispatcherApplication,
            create_backend_app,
        )
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Silent(WSGIRequestHandler):
            def log(self, *_: Any) -> None:
                pass

        application = DomainDispatcherApplication(create_backend_app)
        Answer = int | bytes | tuple[int, bytes] | FaultKind | None
        self.fail: Callable[[Request], Answer] | None = None
        self.closing = threading.Event()
        self._server = make_server(
            "127.0.0.1", 0, self._wrap(application), threaded=True, request_handler=Silent
        )
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )

    def _wrap(self, application: Any) -> Any:
        def counted(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            headers = {
                name[5:].replace("_", "-").title(): value
                for name, value in environ.items()
                if name.startswith("HTTP_")
            }
            path = environ["PATH_INFO"]
            if environ.get("QUERY_STRING"):
                path += "?" + environ["QUERY_STRING"]
            request = Request(environ["REQUEST_METHOD"], path, headers.get("Range"), headers)
            with self._counting(request):
                fault = self.fail(request) if self.fail else None
                if fault is None:
                    yield from application(environ, start_response)
                elif isinstance(fault, str):
                    yield self._damaged(application, environ, start_response, fault)
                else:
                    fault = (200, fault) if isinstance(fault, bytes) else fault
                    status, body = (fault, b"") if isinstance(fault, int) else fault
                    start_response(f"{status} Injected", [("Content-Length", str(len(body)))])
                    yield body

        return counted

    def _damaged(self, application: Any, environ: Any, start_response: Any, kind: str) -> bytes:
        """Respond with the fault `kind`, as described by `FaultKind`, or close the connection."""
        if kind == "reset":
            # Werkzeug itself would keep the connection and wait for the next request.
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        if kind == "silence":
            self.closing.wait(20)
        if kind in ("reset", "silence"):
            raise ConnectionAbortedError(kind)
        if kind == "ignore-range":
            environ.pop("HTTP_RANGE", None)
        answer: list[Any] = []
        data = b"".join(application(environ, lambda *arguments: answer.extend(arguments)))
        data, length = {
            "html": (LOGIN_PAGE, len(LOGIN_PAGE)),
            "short": (data[: len(data) // 2], len(data) // 2),
            "truncate": (data[: len(data) // 2], len(data)),
            "long": (data + b"longer", len(data) + 6),
        }.get(kind, (data, len(data)))
        others = [item for item in answer[1] if item[0].lower() != "content-length"]
        start_response(answer[0], [*others, ("Content-Length", str(length))])
        return data

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}"

    @property
    def storage_options(self) -> dict[str, Any]:
        return {
            "key": "testing",
            "secret": "testing",
            "client_kwargs": {"endpoint_url": self.endpoint, "region_name": self.region},
        }

    def __enter__(self) -> S3Server:
        self._thread.start()
        self.reset()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def reset(self) -> None:
        """Remove all objects, create the bucket again, and forget requests and faults."""
        self.fail = None
        self.restore({})
        self.clear()

    def objects(self) -> dict[str, bytes]:
        """Return the objects in the bucket without sending a request."""
        return {
            key: value.value for key, value in self._backend().buckets[self.bucket].keys.items()
        }

    def restore(self, objects: Mapping[str, bytes]) -> None:
        """Replace the content of the bucket with these objects without sending a request."""
        backend = self._backend()
        backend.reset()
        backend.create_bucket(self.bucket, self.region)
        for key, data in objects.items():
            backend.put_object(self.bucket, key, data)

    def _backend(self) -> Any:
        from moto.backends import get_backend

        return get_backend("s3")["123456789012"]["aws"]

    def _client(self) -> Any:
        import boto3

        return boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=self.region,
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )

    def put(self, key: str, data: bytes) -> None:
        """Store an object without using the code under test."""
        self._client().put_object(Bucket=self.bucket, Key=key, Body=data)

    def upload(self, folder: str | os.PathLike[str], prefix: str) -> str:
        """Upload all files in a folder under a prefix, and return the URL of the prefix."""
        client = self._client()
        for key, path in files_below(folder):
            client.upload_file(path, self.bucket, f"{prefix}/{key}")
        return f"{self.url}/{prefix}"
