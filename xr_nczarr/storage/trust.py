"""Decide which servers may be contacted when a store is accessed."""

from __future__ import annotations

import ipaddress
import socket
import urllib.parse
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from xr_nczarr.errors import RefusedError, quote
from xr_nczarr.storage.location import is_local_filesystem, plain_filesystem
from xr_nczarr.storage.url import mask


class Trust(ABC):
    """Rules that decide which servers may be contacted when a store is accessed."""

    __slots__ = ()

    @abstractmethod
    def check_redirect(self, url: str, target: str) -> None:
        """Raise RefusedError if a redirect from `url` to `target` must not be followed."""

    @abstractmethod
    def may_be_private(self, host: str, *, redirected: bool) -> bool:
        """Return whether a host name is allowed to resolve to a private address.

        `redirected` is true if another host redirected to `host`.
        """

    def check_filesystem(self, filesystem: Any, url: str) -> None:  # noqa: B027 (for subclasses)
        """Raise RefusedError if a filesystem must not be used for the store at `url`."""

    def remedy(self, location: str) -> str:  # noqa: ARG002 (for subclasses)
        """Return advice on how to allow access to a location, or "" if there is no way to do so."""
        return ""


@dataclass(frozen=True, slots=True)
class ConfinedTrust(Trust):
    """The rules for an untrusted store: all requests must stay under the URL of its folder."""

    folder: str

    @classmethod
    def below(cls, url: str) -> ConfinedTrust:
        """Return the rules that confine a store to locations below `url`.

        For a chained URL, these are the locations below the last URL of the chain.
        """
        return cls(url.partition("?")[0].rstrip("/").rpartition("::")[2])

    def check_redirect(self, url: str, target: str) -> None:
        """Raise RefusedError if `target` is outside the folder of the store, or contains ``..``."""
        if has_dot_dot(target) or not is_below(target, self.folder):
            raise redirect_error(url, target, "outside the opened location")

    def may_be_private(self, host: str, *, redirected: bool) -> bool:  # noqa: ARG002
        """Return whether `host` is the host of the store.

        Only this host is allowed to resolve to a private address.
        """
        return host == host_of(self.folder)

    def check_filesystem(self, filesystem: Any, url: str) -> None:
        """Raise RefusedError if `filesystem` is a local filesystem, or wraps one."""
        while filesystem is not None:
            filesystem, _ = plain_filesystem(filesystem, "")
            if is_local_filesystem(filesystem):
                raise RefusedError(
                    "a local folder cannot be opened through fsspec, which follows symbolic links "
                    "that point outside the folder",
                    remedy="Pass the path of the folder, or open it without trust='none'",
                    store=mask(url),
                )
            filesystem = getattr(filesystem, "fs", None)  # a cache may wrap a local filesystem


def redirect_error(url: str, target: str, reason: str) -> RefusedError:
    """Return the error for a forbidden redirect from `url` to `target`."""
    return RefusedError(
        f"{quote(mask(url))} redirects to {quote(mask(target))}, which is {reason}",
        remedy="If you trust the redirect target, open it directly",
    )


def has_dot_dot(url: str) -> bool:
    """Return whether the path of a URL contains a ``..`` component, possibly percent-encoded."""
    return "/../" in f"{urllib.parse.unquote(url)}/"


def is_below(url: str, prefix: str) -> bool:
    """Return whether a URL equals `prefix` or is under it. Every URL is under an empty prefix."""
    return (
        not prefix
        or url == prefix
        or url.startswith(prefix if prefix.endswith("/") else f"{prefix}/")
    )


def is_private(host: str) -> bool:
    """Return whether a host is private, such as a loopback, link-local or cloud metadata host.

    `host` is a name or an IP address. An address is private if it is not globally reachable. A
    private name is recognized by its ending, such as ``.local``, without a DNS lookup.
    """
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith((".localhost", ".local", ".internal")):
        return True
    try:
        address = ipaddress.ip_address(name.strip("[]").partition("%")[0])
    except ValueError:
        try:
            # inet_aton also accepts 127.1, 0x7f000001 and 2130706433.
            address = ipaddress.IPv4Address(socket.inet_aton(name))
        except OSError:
            return False
    mapped = getattr(address, "ipv4_mapped", None)
    return not (mapped or address).is_global


def host_of(url: str) -> str:
    """Return the host in a URL, or an empty string if the URL has no host.

    The URL is parsed exactly as HTTP clients parse it, to find the host that they connect to.
    """
    return urllib.parse.urlsplit(url).hostname or "" if "://" in url else ""
