"""How a web server is asked, and which of its answers are believed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import aiohttp
from yarl import URL

from xr_nczarr.errors import RefusedError
from xr_nczarr.storage.retries import Retry
from xr_nczarr.storage.trust import Trust

MOST_REDIRECTS = 5
_PLAIN_HEADERS = ("accept", "accept-encoding", "range", "user-agent")


class CheckedResponse(aiohttp.ClientResponse):
    """An answer that fails when it holds other bytes of the object than were asked for.

    fsspec shows the bytes of an answer and not its headers; this is where aiohttp shows both.
    """

    def raise_for_status(self) -> None:
        """Fail for an error status, and for a range that was not asked for.

        Raises
        ------
        aiohttp.ClientPayloadError
            As for a body that breaks off: the request is worth another try.
        """
        super().raise_for_status()
        asked = re.fullmatch(r"bytes=(\d*)-(\d*)", self.request_info.headers.get("Range", ""))
        sent = re.match(r"bytes (\d+)-\d+/(\d+|\*)", self.headers.get("Content-Range", ""))
        if self.status != 206 or asked is None or sent is None:
            return
        first = int(asked[1]) if asked[1] else None
        if first is None and sent[2] != "*":
            first = max(0, int(sent[2]) - int(asked[2]))
        if first is not None and first != int(sent[1]):
            raise aiohttp.ClientPayloadError(f"asked for {asked[0]}, the server sent {sent[0]}")


class RedirectCheck(aiohttp.TraceConfig):
    """Asks before an answer is followed elsewhere; one for each `Trust`, whichever session."""

    def __init__(self, trust: Trust) -> None:
        super().__init__()
        self._trust = trust
        self.on_request_redirect.append(self._check)

    def __repr__(self) -> str:
        # fsspec tells filesystems apart by how their options are shown.
        return f"RedirectCheck({self._trust!r})"

    async def _check(self, _session: Any, _context: Any, sent: Any) -> None:
        target = sent.url.join(URL(sent.response.headers.get("Location", "")))
        try:
            self._trust.check_redirect(str(sent.url), str(target))
        except RefusedError:
            sent.response.close()
            raise
        if target.authority != sent.url.authority:
            # What a caller gave for one server; aiohttp itself keeps back only Authorization.
            for name in {name for name in sent.headers if name.lower() not in _PLAIN_HEADERS}:
                sent.headers.popall(name)


def web_options(options: Mapping[str, Any], retry: Retry) -> dict[str, Any]:
    """Give options of fsspec's HTTP for exact byte ranges, and our own retries."""
    timeout = aiohttp.ClientTimeout(
        total=None, sock_connect=retry.timeout_seconds, sock_read=retry.timeout_seconds
    )
    client = {"timeout": timeout, "response_class": CheckedResponse}
    return {
        **options,
        # A byte range of a compressed answer is no range of the object.
        "headers": {"Accept-Encoding": "identity", **options.get("headers", {})},
        "client_kwargs": {**client, **options.get("client_kwargs", {})},
    }


def with_checked_redirects(options: Mapping[str, Any], trust: Trust) -> dict[str, Any]:
    """Give options of fsspec's HTTP with which `trust` is asked before each redirect, of five."""
    client = options.get("client_kwargs", {})
    traces = [*client.get("trace_configs", []), RedirectCheck(trust)]
    return {
        "max_redirects": MOST_REDIRECTS,
        **options,
        "client_kwargs": {**client, "trace_configs": traces},
    }
