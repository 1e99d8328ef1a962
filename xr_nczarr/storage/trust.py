"""What a reference set may point at, told by where the set itself came from."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
import urllib.parse
from dataclasses import dataclass

from xr_nczarr.errors import RefusedError, quote
from xr_nczarr.storage import system
from xr_nczarr.storage.url import local_path, mask

# NUL, and halves of characters but those by which Python spells bytes that are no UTF-8.
_NO_NAME = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")
_PROTOCOL = re.compile(r"([^/]+)://|[a-z]+$")
# What only carries bytes. Others of fsspec run what they are sent (dask), or templates (reference).
_CARRIERS = frozenset(
    {
        *("file", "local", "memory", "data", "http", "https", "ftp", "sftp", "ssh", "smb"),
        *("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "tos", "hf"),
        *("hdfs", "webhdfs", "github", "zip", "tar", "cached", "simplecache", "filecache"),
        "blockcache",
    }
)


@dataclass(frozen=True, slots=True)
class Trust:
    """Who may be named by a set.

    Attributes
    ----------
    origin
        Scheme and host (or bucket) of a remote set, which may name what is there and no more; None
        for a set of this machine, which may name all but devices and unusual protocols.
    allow
        Prefixes of URLs, or absolute paths, that the caller lets the set name as well.
    narrow
        Whether `origin` is the folder of a stranger, who may name what is in there alone.
    """

    origin: str | None = None
    allow: tuple[str, ...] = ()
    narrow: bool = False

    def narrowed(self, document: str | None) -> Trust:
        """Give the rules for a stranger's set at an absolute path or URL; None for nowhere."""
        if document is None:
            return Trust("nowhere:", self.allow, narrow=True)
        path = local_path(document)
        if path is not None:
            return Trust("nowhere:", (os.path.dirname(path), *self.allow), narrow=True)
        folder = document.rpartition("::")[2].partition("?")[0].rpartition("/")[0]
        return Trust(folder, self.allow, narrow=True)

    @classmethod
    def below(cls, url: str) -> Trust:
        """Give the rules for a stranger's store: its server may send on to below the URL alone."""
        return cls().narrowed(f"{url.partition('?')[0].rstrip('/')}/")

    def check(self, url: str) -> None:
        """Refuse an absolute path or URL that the set may not name.

        Raises
        ------
        RefusedError
            With the option that would allow it.
        """
        if _NO_NAME.search(url):
            raise RefusedError(f"refers to {quote(url)}, which no file can be called")
        paths = [local_path(link) for link in url.split("::")]
        near = all(path is None or self._may_resolve(path) for path in paths)
        for path in filter(None, paths if near else ()):
            real = os.path.realpath(path)
            # What opens the file of a chain asks nothing: not even whether it ever ends.
            odd = len(paths) > 1 and _is_special(real)
            if odd or system.is_device(real):
                raise RefusedError(f"refers to {quote(path)}, which is no plain file")
        if self.origin is None and _CARRIERS.issuperset(_protocols(url)):
            return
        if near and self._is_allowed(url):
            return
        shown = quote(mask(url))
        raise RefusedError(
            f"refers to {shown}, "
            + ("no plain protocol" if self.origin is None else "which is not where the set is"),
            remedy="If you trust the set, name that place: "
            f'storage_options={{"allow": [{_folder(shown)!r}]}}',
        )

    def check_redirect(self, url: str, target: str) -> None:
        """Refuse to follow an answer of the server of `url` to `target`.

        The same host may send to itself, also from ``http`` to ``https``, but not a stranger's; a
        set of this machine may be sent to any public host.
        """
        web = target.startswith(("http://", "https://"))
        if web and not self.narrow and _server(url) == _server(target):
            return
        if self.origin is not None and not self.narrow:
            self.check(target)
            return
        if self.narrow:
            right, place = web and self._is_allowed(target), "outside of what is opened"
        else:
            right, place = web and not is_private(_host(target)), "no public host"
        if not right:
            raise RefusedError(
                f"{quote(mask(url))} sends on to {quote(mask(target))}, which is {place}",
                remedy="If that is right, name that URL itself.",
            )

    def may_be_private(self, host: str, *, redirected: bool) -> bool:
        """Tell whether the name of a host may stand for a private address.

        So may those that the caller named, where the set itself is among them; and those that a set
        of this machine names, but none that an answer sends on to.
        """
        if self.origin is None:
            return not redirected
        return host in map(_host, (self.origin, *self.allow))

    def _may_resolve(self, path: str) -> bool:
        """Return whether a path may be looked at: Windows logs in to the server of a share."""
        share = os.path.splitdrive(path)[0]
        if self.origin is None or not share.startswith("//"):
            return True
        allowed = (os.path.splitdrive(each)[0] for each in map(local_path, self.allow) if each)
        return os.path.normcase(share) in map(os.path.normcase, allowed)

    def _is_allowed(self, url: str) -> bool:
        if "::" in url:
            return url in self.allow
        path = local_path(url)
        if path is not None:
            return any(system.is_inside(path, each) for each in map(local_path, self.allow) if each)
        climbs = "/../" in f"{urllib.parse.unquote(url)}/"
        if self.origin and is_below(url, self.origin) and not (climbs and self.narrow):
            return True
        return not climbs and any(
            is_below(url, prefix) and (_host(prefix) != "" or not is_private(_host(url)))
            for prefix in self.allow
            if local_path(prefix) is None
        )


def _protocols(url: str) -> list[str]:
    """Give the protocols of a URL, chained or not, as fsspec understands it."""
    found = map(_PROTOCOL.match, url.split("::"))
    return [(one[1] or one[0]).lower() for one in found if one]


def origin_of(url: str) -> str:
    """Return the scheme and host (or bucket) of a URL, the last one of a chain: ``s3://bucket``.

    The memory of a process has no hosts: it is one place.
    """
    last = url.rpartition("::")[2]
    return "memory://" if last.startswith("memory://") else "/".join(last.split("/")[:3])


def is_below(url: str, prefix: str) -> bool:
    """Tell whether a URL begins with a prefix that ends where a name does; any does with none."""
    return (
        not prefix
        or url == prefix
        or url.startswith(prefix if prefix.endswith("/") else f"{prefix}/")
    )


def is_private(host: str) -> bool:
    """Tell loopback, private, link-local and metadata addresses, however they are spelled."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith((".localhost", ".local", ".internal")):
        return True
    try:
        address = ipaddress.ip_address(name.strip("[]").partition("%")[0])
    except ValueError:
        try:
            # Also 127.1, 0x7f000001 and 2130706433.
            address = ipaddress.IPv4Address(socket.inet_aton(name))
        except OSError:
            return False
    mapped = getattr(address, "ipv4_mapped", None)
    return not (mapped or address).is_global


def _host(url: str) -> str:
    """Give the host of a URL, as servers and their clients understand it; empty for none."""
    return urllib.parse.urlsplit(url).hostname or "" if "://" in url else ""


def _server(url: str) -> str:
    """Give host and port as a URL spells them."""
    return urllib.parse.urlsplit(url).netloc.rpartition("@")[2].lower()


def _folder(url: str) -> str:
    """Give what `allow` would have to say for a URL; a chain has to be named as it is."""
    return url if "::" in url else url[: url.rfind("/") + 1] or url


def _is_special(path: str) -> bool:
    return os.path.lexists(path) and not os.path.isfile(path) and not os.path.isdir(path)
