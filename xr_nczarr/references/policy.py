"""Decide which locations a reference set may refer to, depending on where the set itself is."""

from __future__ import annotations

import os
import re
import urllib.parse
from dataclasses import dataclass

from xr_nczarr.errors import RefusedError, quote
from xr_nczarr.storage import system
from xr_nczarr.storage.trust import (
    Trust,
    has_dot_dot,
    host_of,
    is_below,
    is_private,
    redirect_error,
)
from xr_nczarr.storage.url import CACHES, local_path, mask

# NUL and surrogates, except the surrogates that represent undecodable bytes in Python.
_INVALID_CHARACTERS = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")
_PROTOCOL = re.compile(r"([^/]+)://|[a-z]+$")
# Protocols that only transfer bytes. Other fsspec protocols run code (dask) or expand templates
# (reference).
_TRANSFER_PROTOCOLS = frozenset(
    {
        *("file", "local", "memory", "data", "http", "https", "ftp", "sftp", "ssh", "smb"),
        *("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "tos", "hf"),
        *("hdfs", "webhdfs", "github", "zip", "tar", *CACHES),
    }
)


@dataclass(frozen=True, slots=True)
class ReferenceTrust(Trust):
    """The locations to which a reference set may refer.

    Attributes
    ----------
    origin
        URL prefix of the locations to which the set may refer:

        - If the set is remote and trusted, `origin` is the scheme and host (or bucket) of the set,
          such as ``s3://bucket``.
        - If the set is remote and untrusted, `origin` is the folder of the set.
        - If the set is not remote (it is local or in memory) and is untrusted, `origin` is a
          placeholder that matches no URL.
        - If the set is not remote and is trusted, `origin` is None. The set may then refer to
          anything except devices, and except protocols that do more than transfer bytes.
    allow
        URL prefixes and absolute paths to which the set may also refer. If the set is local and
        untrusted, they include its folder.
    untrusted
        Whether the set is untrusted. If so, it may refer only to files in its own folder and to the
        locations in `allow`.
    """

    origin: str | None = None
    allow: tuple[str, ...] = ()
    untrusted: bool = False

    def for_untrusted(self, document: str | None) -> ReferenceTrust:
        """Return the rules for an untrusted set.

        The set may refer only to locations in its own folder, and to the locations in `allow`.
        `document` is the absolute path or the URL of the set. None means that the set is in memory,
        and therefore has no folder.
        """
        if document is None:
            return ReferenceTrust("nowhere:", self.allow, untrusted=True)
        path = local_path(document)
        if path is not None:
            return ReferenceTrust("nowhere:", (os.path.dirname(path), *self.allow), untrusted=True)
        folder = document.rpartition("::")[2].partition("?")[0].rpartition("/")[0]
        return ReferenceTrust(folder, self.allow, untrusted=True)

    def check(self, url: str) -> None:
        """Check that the set may refer to `url`, which is a URL or an absolute path.

        Raises
        ------
        RefusedError
            If the set may not refer to `url`. If an option can allow `url`, the message names this
            option.
        """
        if _INVALID_CHARACTERS.search(url):
            raise RefusedError(
                f"the reference set refers to {quote(url)}, which is not a valid path or URL"
            )
        paths = [local_path(link) for link in url.split("::")]
        may_resolve = all(path is None or self._may_resolve(path) for path in paths)
        for path in filter(None, paths if may_resolve else ()):
            real = os.path.realpath(path)
            # fsspec opens the files of a chained URL without checking them. Reading from a pipe or
            # a device might never end.
            is_unsafe = len(paths) > 1 and _is_special(real)
            if is_unsafe or system.is_device(real):
                raise RefusedError(
                    f"the reference set refers to {quote(path)}, which is not a regular file"
                )
        if self.origin is None and _TRANSFER_PROTOCOLS.issuperset(_protocols(url)):
            return
        if may_resolve and self._is_allowed(url):
            return
        location = quote(mask(url))
        raise RefusedError(
            f"the reference set refers to {location}, "
            + (
                "whose protocol is not allowed"
                if self.origin is None
                else "which is outside the allowed locations"
            ),
            remedy=self.remedy(location),
        )

    def remedy(self, location: str) -> str:
        """Return the part of an error message that tells the caller how to allow a location."""
        allowed = f'storage_options={{"allow": [{_folder(location)!r}]}}'
        return f"If you trust the reference set, allow that location: {allowed}"

    def check_redirect(self, url: str, target: str) -> None:
        """Raise RefusedError if a redirect from `url` to `target` must not be followed.

        If the set is trusted, a server may redirect to itself, even from ``http`` to ``https``. Any
        other redirect is followed only in these cases:

        - The set is trusted, it is local or in memory, and `target` is on a public host.
        - The set is remote or untrusted, and may refer directly to `target`.
        """
        web = target.startswith(("http://", "https://"))
        if web and not self.untrusted and _server(url) == _server(target):
            return
        if self.origin is not None and not self.untrusted:
            self.check(target)
            return
        if self.untrusted:
            is_allowed, reason = web and self._is_allowed(target), "outside the opened location"
        else:
            is_allowed, reason = web and not is_private(host_of(target)), "not a public host"
        if not is_allowed:
            raise redirect_error(url, target, reason)

    def may_be_private(self, host: str, *, redirected: bool) -> bool:
        """Return whether a host name is allowed to resolve to a private address.

        `redirected` is whether another host redirected to `host`. For a trusted set that is local
        or in memory, return True if `redirected` is False. For any other set, return True only for
        the host of the set and for the hosts in `allow`.
        """
        if self.origin is None:
            return not redirected
        return host in map(host_of, (self.origin, *self.allow))

    def _may_resolve(self, path: str) -> bool:
        """Return whether symbolic links in a path may be resolved before the path is checked.

        On Windows, resolving a path on a network share logs in to the server of the share. A set
        that is remote or untrusted may therefore use only shares that the caller allows.
        """
        share = os.path.splitdrive(path)[0]
        if self.origin is None or not share.startswith("//"):
            return True
        allowed = (os.path.splitdrive(path)[0] for path in map(local_path, self.allow) if path)
        return os.path.normcase(share) in map(os.path.normcase, allowed)

    def _is_allowed(self, url: str) -> bool:
        if "::" in url:
            return url in self.allow
        path = local_path(url)
        if path is not None:
            return any(
                system.is_inside(path, folder) for folder in map(local_path, self.allow) if folder
            )
        leads_up = has_dot_dot(url)
        if self.origin and is_below(url, self.origin) and not (leads_up and self.untrusted):
            return True
        return not leads_up and any(
            is_below(url, prefix) and (host_of(prefix) != "" or not is_private(host_of(url)))
            for prefix in self.allow
            if local_path(prefix) is None
        )


def _protocols(url: str) -> list[str]:
    matches = map(_PROTOCOL.match, url.split("::"))
    return [(match[1] or match[0]).lower() for match in matches if match]


def origin_of(url: str) -> str:
    """Return the scheme and host (or bucket) of a URL, such as ``s3://bucket``.

    For a chained URL, return the origin of the last URL in the chain. All ``memory://`` URLs have
    the same origin.
    """
    last = url.rpartition("::")[2]
    return "memory://" if last.startswith("memory://") else "/".join(last.split("/")[:3])


def _server(url: str) -> str:
    """Return the lowercased host and port of a URL, without any user name or password."""
    return urllib.parse.urlsplit(url).netloc.rpartition("@")[2].lower()


def _folder(url: str) -> str:
    """Return the value of the ``allow`` option that would permit a URL: the folder of the URL.

    For a chained URL, the value is the whole URL, because ``allow`` permits a chained URL only if
    it lists that exact URL.
    """
    return url if "::" in url else url[: url.rfind("/") + 1] or url


def _is_special(path: str) -> bool:
    return os.path.lexists(path) and not os.path.isfile(path) and not os.path.isdir(path)
