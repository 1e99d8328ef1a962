"""Check requests to web servers, and the responses of the servers."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from html.parser import HTMLParser
from http.cookies import SimpleCookie
from typing import Any, NamedTuple
from urllib.parse import unquote, urljoin, urlsplit

import aiohttp
from aiohttp.abc import ResolveResult
from aiohttp.resolver import ThreadedResolver
from fsspec.implementations.http import get_client
from yarl import URL

from xr_nczarr.errors import LimitError, RefusedError, quote
from xr_nczarr.storage.ranges import ByteRange, too_large
from xr_nczarr.storage.remote_client import Rules
from xr_nczarr.storage.retries import page_error, page_in
from xr_nczarr.storage.trust import Trust, is_private

MAX_REDIRECTS = 5
MAX_EXTRA_BYTES = 16 << 20
"""Maximum number of bytes that a response may contain in addition to the requested range."""
MAX_INDEX_BYTES = 64 << 20
"""Maximum length in bytes of a folder's index page."""

_MAX_ERROR_BYTES = 64 << 10  # maximum size of an error page
_PLAIN_HEADERS = ("accept", "accept-encoding", "range", "user-agent")


class _Request(NamedTuple):
    """The hosts and the size limit of a request in progress."""

    original_host: str | None = None
    current_host: str | None = None  # after redirects
    max_bytes: int = sys.maxsize  # applies only to requests for whole objects


_UNKNOWN = _Request()
_request: ContextVar[_Request] = ContextVar("_request", default=_UNKNOWN)


# Responses are checked here, because fsspec exposes only the body of a response, not the headers.
class CheckedResponse(aiohttp.ClientResponse):
    """A response that returns only the requested bytes, or raises an error."""

    async def read(self) -> bytes:
        """Return only the requested bytes, even if the server sent more.

        The result is shorter than the requested range if the object or the body ends too early. If
        the status indicates an error, the result is the error page. If the error page is longer
        than 64 KiB, the result is empty.

        Raises
        ------
        LimitError
            If the body exceeds the size limit, or is longer than the requested range by more than
            `MAX_EXTRA_BYTES`. A body whose ``Content-Length`` is too large is not read.
        StorageError
            If the server sends a web page in place of a range.
        aiohttp.ClientPayloadError
            If the body is truncated, or if the ``Content-Range`` header does not match the
            requested range or the length of the body.
        """
        max_bytes = self._max_bytes
        if self._body is None:
            size, pieces = self.content_length or 0, []
            received = 0
            while size <= max_bytes and (piece := await self.content.readany()):
                pieces.append(piece)
                received += len(piece)
                size = max(size, received)
            if size > max_bytes:
                self.close()
                if self.status >= 400:
                    return b""
                if self._requested.is_whole:
                    raise too_large(f"the response is at least {size:,} bytes long", max_bytes)
                raise LimitError(
                    f"the server ignored the request for {self._requested.description} and sent at "
                    f"least {size:,} bytes instead",
                    remedy="Copy the object to a server that supports range requests",
                )
            self._body = self._requested_part(b"".join(pieces))
        return await super().read()

    def raise_for_status(self) -> None:
        """Raise an error if the request failed, or if the response contains the wrong byte range.

        Raises
        ------
        aiohttp.ClientResponseError
            If the status code indicates an error, or if the response is a redirect without a
            ``Location`` header.
        aiohttp.ClientPayloadError
            If the ``Content-Range`` header does not match the requested range.
        """
        super().raise_for_status()
        if self.status >= 300:
            raise aiohttp.ClientResponseError(
                self.request_info,
                self.history,
                status=self.status,
                message="redirect without a Location header",
            )
        if self.status == 206:
            self._parse_content_range()

    def _requested_part(self, body: bytes) -> bytes:
        """Return the requested part of a response body, or the whole body of an error page."""
        if self._requested.is_whole or self.status not in (200, 206):
            return body
        begin = 0
        if self.status == 206:
            begin, last, size = self._parse_content_range()
            if len(body) != last - begin + 1:
                content_range = self.headers["Content-Range"]
                raise self._mismatch_error(
                    f"{len(body)} bytes with Content-Range {content_range!r}"
                )
        elif page := page_in(body):
            raise page_error(str(self._requested.description), page)
        else:
            size = len(body)
        first, last = self._bounds(size)
        return body[first - begin : last + 1 - begin]

    def _parse_content_range(self) -> tuple[int, int, int]:
        """Return the offsets of the first and the last byte sent, and the size of the object.

        If the ``Content-Range`` header does not state the size, the object is assumed to end with
        the last byte sent.

        Raises
        ------
        aiohttp.ClientPayloadError
            If the header is missing, is invalid, or does not match the requested range.
        """
        text = self.headers.get("Content-Range", "")
        sent = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+|\*)", text.strip())
        if sent is None or self._requested.is_whole:
            raise self._mismatch_error(f"status 206 with Content-Range {text!r}")
        begin, end = int(sent[1]), int(sent[2])
        size = end + 1 if sent[3] == "*" else int(sent[3])
        first, last = self._bounds(size)
        is_suffix = self._requested.start < 0
        # A suffix must extend to the end of the object. Any other range may end too early, because
        # the caller notices that bytes are missing.
        if is_suffix and (sent[3] == "*" or end < last):
            raise self._mismatch_error(text)
        if not begin <= first <= end < size:
            raise self._mismatch_error(text)
        return begin, end, size

    def _bounds(self, size: int) -> tuple[int, int]:
        """Return the offsets of the first and last requested bytes in an object of `size` bytes."""
        _, start, length = self._requested
        return (max(0, size + start), size - 1) if start < 0 else (start, start + length - 1)

    def _mismatch_error(self, sent: str) -> aiohttp.ClientPayloadError:
        return aiohttp.ClientPayloadError(
            f"the request was for {self._requested.description or 'the whole object'}, but the "
            f"server sent {sent}"
        )

    @property
    def _requested(self) -> ByteRange:
        """The requested range, or the whole object if the request has no ``Range`` header."""
        header = self.request_info.headers.get("Range", "")
        requested = re.fullmatch(r"bytes=(\d*)-(\d*)", header)
        if requested is None:
            return ByteRange("")
        first, last = requested.groups()
        if not first:
            return ByteRange("", -int(last), int(last))
        end = int(last) + 1 if last else sys.maxsize
        return ByteRange("", int(first), end - int(first))

    @property
    def _max_bytes(self) -> int:
        if self.status >= 400:
            return _MAX_ERROR_BYTES
        if self._requested.is_whole:
            return _request.get().max_bytes
        return self._requested.length + MAX_EXTRA_BYTES


def names_in_index(page: bytes, url: str) -> list[str] | None:
    """Return the sorted names on a folder's index page, or None if `page` is not an index page.

    `url` is the URL of the folder. Names of subfolders end in a slash. Only links to direct
    children of the folder are included.
    """
    parser = _IndexParser()
    parser.feed(page.decode("utf-8", "replace"))
    path = unquote(urlsplit(url).path)
    name = path.strip("/").rpartition("/")[2]
    titles = [title.partition("?")[0].strip().rstrip("]").rstrip() for title in parser.titles]
    # On all common servers, the title or the main heading ends with the path of the folder, as in
    # "Index of /data/". A proxy can change the beginning of the path.
    if not any(f"{title}/".endswith((f"/{name}/", f"/{name}//")) for title in titles):
        return None
    names = {name for name in (_name_below(link, url) for link in parser.links) if name}
    # If a proxy changes the path of the folder, all links may lead outside the folder, so that it
    # appears to be empty. The folder is considered empty only if a title contains its whole path.
    whole = any(f"{title}/".endswith((path, f"{path}/")) for title in titles)
    return sorted(names) if names or whole else None


def _name_below(link: str, url: str) -> str | None:
    """Return the name of the child of `url` that a link points to, or None for any other link."""
    try:
        folder, target = urlsplit(url), urlsplit(urljoin(url, link))
    except ValueError:
        return None
    if (target.netloc, target.query, target.fragment) != (folder.netloc, "", ""):
        return None
    if not target.path.startswith(folder.path):
        return None
    name = unquote(target.path.removeprefix(folder.path))
    plain = name.removesuffix("/")
    return None if "/" in plain or plain in ("", ".", "..") else name


class _IndexParser(HTMLParser):
    """A parser that collects the links, the title and the main headings of a web page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.titles: list[str] = []
        self._heading = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links += [value for name, value in attrs if name == "href" and value]
        elif tag in ("title", "h1"):
            self._heading = True
            self.titles.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("title", "h1"):
            self._heading = False

    def handle_data(self, data: str) -> None:
        if self._heading:
            self.titles[-1] += data


@dataclass(frozen=True, slots=True)
class SessionFactory:
    """A factory for aiohttp sessions that never forward credentials to another server.

    Attributes
    ----------
    trust
        Rules that decide which servers may be contacted, directly or through a redirect. None means
        no restrictions.
    max_bytes
        Maximum size of a whole object in bytes, unless the request has its own limit.
    make
        Function that takes the options of `aiohttp.ClientSession` and creates a session.
    """

    trust: Trust | None
    max_bytes: int
    make: Callable[..., Awaitable[aiohttp.ClientSession]]

    async def __call__(self, **options: Any) -> aiohttp.ClientSession:
        """Return a new session that checks all requests and redirects.

        `options` are keyword arguments of `aiohttp.ClientSession`.
        """
        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(self._begin)
        trace.on_request_redirect.append(self._follow)
        traces = [*(options.pop("trace_configs", None) or ()), trace]
        if self.trust is not None and "connector" not in options:
            options["connector"] = aiohttp.TCPConnector(resolver=_Resolver(self.trust))
        return await self.make(**options, trace_configs=traces)

    async def _begin(self, _session: Any, context: Any, sent: Any) -> None:
        max_bytes = context.trace_request_ctx or self.max_bytes
        _request.set(_Request(sent.url.raw_host, sent.url.raw_host, max_bytes))

    async def _follow(self, session: Any, _context: Any, sent: Any) -> None:
        """Check a redirect, and remove secret headers if it leads to a different server.

        Raises
        ------
        RefusedError
            If `trust` forbids the redirect, or if a different server would receive cookies that
            have no domain.
        """
        target = sent.url.join(URL(sent.response.headers.get("Location", "")))
        _request.set(_request.get()._replace(current_host=target.raw_host))
        elsewhere = target.authority != sent.url.authority
        try:
            if self.trust is not None:
                self.trust.check_redirect(str(sent.url), str(target))
            if elsewhere and any(not cookie["domain"] for cookie in session.cookie_jar):
                raise RefusedError(
                    "the server redirects to another server, but the client session contains "
                    "cookies that have no domain, and would send them to both servers",
                    remedy='Pass these cookies in the storage option "cookies", or set their '
                    "domain",
                )
        except RefusedError:
            sent.response.close()
            raise
        private = {name for name in sent.headers if name.lower() not in _PLAIN_HEADERS}
        for name in private if elsewhere else ():
            sent.headers.popall(name)


# Without it, URLs that the user did not choose could reach servers on a private network.
class _Resolver(ThreadedResolver):
    """A DNS resolver that returns private addresses only if `trust` allows them."""

    def __init__(self, trust: Trust) -> None:
        super().__init__()
        self._trust = trust

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        addresses = await super().resolve(host, port, family)
        original, current, _ = _request.get()
        # A host other than `current` is the caller's proxy, which may have a private address.
        if host != current or self._trust.may_be_private(host, redirected=original != current):
            return addresses
        public = [item for item in addresses if not is_private(item["host"])]
        if not public:
            address = addresses[0]["host"]
            raise RefusedError(
                f"the host {quote(host)} resolves to {quote(address)}, which is not a public "
                "address",
                remedy=self._trust.remedy(f"https://{quote(host)}/"),
            )
        return public


def web_options(options: Mapping[str, Any], rules: Rules) -> dict[str, Any]:
    """Add checks of responses and redirects to the options of fsspec's HTTP filesystem.

    The result contains headers instead of ``auth`` and ``cookies``. `rules` determines the
    timeouts, the size limit and the permitted servers. Timeouts in `options` take precedence.
    """
    read_timeout = rules.retry.timeout_seconds
    # Waiting for a free connection can take this long, because earlier requests must end first.
    pool_timeout = rules.retry.attempts * rules.retry.total_seconds
    timeout = aiohttp.ClientTimeout(
        total=None, connect=pool_timeout, sock_connect=read_timeout, sock_read=read_timeout
    )
    client: dict[str, Any] = {"timeout": timeout, "response_class": CheckedResponse}
    client |= options.get("client_kwargs") or {}
    # A byte range of a compressed response would not be a range of the object.
    headers = {"Accept-Encoding": "identity"}
    # Credentials are passed as headers, because `SessionFactory` can remove headers before a
    # redirect is followed, whereas aiohttp would forward `auth` and `cookies` to any target.
    remaining = dict(options)
    if auth := client.pop("auth", None) or remaining.pop("auth", None):
        headers["Authorization"] = auth.encode()
    if cookies := client.pop("cookies", None) or remaining.pop("cookies", None):
        morsels = SimpleCookie(dict(cookies)).values()
        headers["Cookie"] = "; ".join(f"{item.key}={item.coded_value}" for item in morsels)
    make = options.get("get_client", get_client)
    return {
        "max_redirects": MAX_REDIRECTS,
        **remaining,
        "headers": {**headers, **(options.get("headers") or {})},
        "client_kwargs": client,
        "get_client": SessionFactory(rules.trust, rules.max_object_bytes, make),
    }
