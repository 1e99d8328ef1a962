"""Create fsspec filesystems and recognize those for web servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from xr_nczarr.errors import NotFoundError, UnsupportedError
from xr_nczarr.storage.location import plain_filesystem
from xr_nczarr.storage.remote_client import IN_FLIGHT, Rules
from xr_nczarr.storage.retries import storage_error
from xr_nczarr.storage.url import canonical, is_web, mask

CONNECTIONS = 2 * IN_FLIGHT
"""Maximum number of open connections of a filesystem."""
_EXTRAS = {"s3": "s3", "gs": "gcs", "az": "azure", "adl": "azure", "http": "http", "https": "http"}
"""Mapping from each protocol to the extra of this package that installs its filesystem."""


def is_http(filesystem: Any) -> bool:
    """Return whether an fsspec filesystem is for HTTP URLs and does not wrap another filesystem."""
    protocols = filesystem.protocol
    return "http" in ((protocols,) if isinstance(protocols, str) else protocols)


def is_web_filesystem(filesystem: Any) -> bool:
    """Return whether an fsspec filesystem, or a filesystem that it wraps, is for HTTP URLs."""
    below = getattr(filesystem, "fs", None)
    return is_http(filesystem) or (below is not None and is_web_filesystem(below))


def filesystem_at(url: str, storage_options: Mapping[str, Any], rules: Rules) -> tuple[Any, str]:
    """Return the filesystem that an fsspec URL refers to, and the path in this filesystem.

    The URL may be chained. Requests are made only to open an archive in the chain, or if the
    filesystem connects to its server when it is created, as fsspec's FTP filesystem does.

    Raises
    ------
    NotFoundError
        If an archive in the chain does not exist.
    RefusedError
        If `rules.trust` does not allow the filesystem.
    StorageError
        If creating the filesystem fails for any other reason, for example because an archive is
        damaged.
    UnsupportedError
        If fsspec does not support the URL, or a package that the URL requires is not installed.
    """
    # Synchronous calls cannot use the caller's event loop.
    options = {
        k: v for k, v in storage_options.items() if k not in ("asynchronous", "loop", "client")
    }
    protocol = canonical(url.partition("://")[0])
    try:
        if is_web(url):
            from xr_nczarr.storage.checked_http import web_options

            chained, _, last = url.rpartition("::")
            scheme = last.partition("://")[0]
            link_options = options.get(scheme, {}) if chained else options
            checked = web_options(link_options, rules)
            options = {**options, scheme: checked} if chained else checked
        if protocol == "s3":
            from xr_nczarr.storage.fsspec_s3 import S3, s3_options

            filesystem = S3(**s3_options(options, rules.retry, CONNECTIONS))
            root = filesystem._strip_protocol(url)
        elif protocol == "az":
            from xr_nczarr.storage.fsspec_azure import Azure, azure_options

            filesystem = Azure(**azure_options(url, options, rules.retry))
            root = filesystem._strip_protocol(url)
        else:
            from fsspec.core import url_to_fs

            filesystem, root = url_to_fs(url, **options)
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        raise UnsupportedError(
            f"a package that this URL requires is not installed ({error})",
            remedy=f"Install xr-nczarr[{extra}]" if extra else "Install the package",
            store=mask(url),
        ) from error
    except ValueError as error:
        raise UnsupportedError(str(error), store=mask(url)) from error
    # An archive in the chain is opened immediately. If it is damaged, the error may be of any type.
    except FileNotFoundError as error:
        raise NotFoundError("the archive does not exist", store=mask(url)) from error
    except Exception as error:
        raise storage_error(error, store=mask(url), key=None) from error
    filesystem, root = plain_filesystem(filesystem, root)
    filesystem = synchronous(filesystem)
    if rules.trust is not None:
        rules.trust.check_filesystem(filesystem, url)
    return filesystem, root


def synchronous(filesystem: Any) -> Any:
    """Return `filesystem`, or a synchronous copy of it if it runs in the caller's event loop.

    The copy has the same options, except those for asynchronous use.
    """
    if not (filesystem.async_impl and filesystem.asynchronous):
        return filesystem
    options = {k: v for k, v in filesystem.storage_options.items() if k != "loop"}
    options["asynchronous"] = False
    return type(filesystem)(*filesystem.storage_args, **options)
