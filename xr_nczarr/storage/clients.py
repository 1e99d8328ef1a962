"""Choose the client library for a URL and translate storage options for obstore."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from xr_nczarr.errors import ConflictError, UnsupportedError
from xr_nczarr.locks import cached_property
from xr_nczarr.storage.aws import NoEquivalentError, bucket_region, s3_arguments
from xr_nczarr.storage.fsspec_client import FsspecClient
from xr_nczarr.storage.obstore_client import ObstoreClient, process
from xr_nczarr.storage.remote_client import DEFAULT_RULES, Connection, RemoteClient, Rules
from xr_nczarr.storage.retries import Retry
from xr_nczarr.storage.url import canonical, is_web, mask, protocol_names

_log = logging.getLogger(__name__)

_AZURE = {
    "account_name": "account_name",
    "account_key": "account_key",
    "sas_token": "sas_key",
    "anon": "skip_signature",
}
_AZURE_CREDENTIALS = ("account_key", "sas_token", "anon")
# The headers that obstore removes when it follows a redirect to another server.
_GUARDED_HEADERS = ("authorization", "cookie", "user-agent")
# Environment variables for certificates (ignored by obstore) and for proxies (ignored by aiohttp).
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "AWS_CA_BUNDLE")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_NEVER = timedelta(days=365)
_BY_FSSPEC = "%s: accessed with fsspec, because %s"
_KINDS = {
    "s3": "S3Store",
    "gs": "GCSStore",
    "az": "AzureStore",
    "http": "HTTPStore",
    "https": "HTTPStore",
}


@dataclass(frozen=True)
class _Arguments:
    """The arguments for creating an obstore store, and the path of a folder in that store."""

    class_name: str  # in `obstore.store`
    bucket_or_url: str  # the name of a bucket or container, or the URL of a folder on a web server
    path: str = field(compare=False)  # in the bucket or container; empty for a web server
    keywords: dict[str, Any]

    def __hash__(self) -> int:
        return hash((self.class_name, self.bucket_or_url))


# Creating a store takes about 14 ms of CPU time. The cache ignores `path`, because a store gives
# access to all paths.
@lru_cache(16)
def _obstore_store(arguments: _Arguments) -> Any:
    """Return the obstore store for `arguments`, creating it only if necessary."""
    from obstore import store as stores

    kind = getattr(stores, arguments.class_name)
    return kind(arguments.bucket_or_url, **arguments.keywords)


def connection(url: str, options: Mapping[str, Any], rules: Rules = DEFAULT_RULES) -> Connection:
    """Return a connection to a URL, through obstore or fsspec.

    By default, obstore is used only if it treats the URL and all options exactly as fsspec does. If
    `rules.trust` is set, web servers are accessed through fsspec, because only `FsspecClient` can
    restrict redirects.

    Parameters
    ----------
    options
        Storage options for s3fs, gcsfs, adlfs or fsspec's HTTP filesystem. The ``client`` option
        selects the library: ``"fsspec"`` or ``"obstore"``. For a chained URL, it can also be passed
        in the nested options for the last URL, as in ``{"s3": {"client": "fsspec"}}``.

    Raises
    ------
    ConflictError
        If ``client`` is neither ``"fsspec"`` nor ``"obstore"``.
    UnsupportedError
        If ``client`` is ``"obstore"``, but obstore is not installed, or does not support the URL,
        an option or an environment variable.
    """
    chained, _, last = url.rpartition("::")
    scheme = last.partition("://")[0]
    nested = options.get(scheme) if chained else None
    if isinstance(nested, Mapping) and "client" in nested:
        others = {name: nested[name] for name in nested if name != "client"}
        options = {**options, scheme: others, "client": nested["client"]}
    candidate = _ObstoreConnection(url, options, rules)
    if (rules.trust is not None and is_web(url)) or candidate.arguments is None:
        return FsspecClient.connect(url, options, rules)
    return candidate


class _ObstoreConnection(Connection):
    """A connection that uses obstore if possible and fsspec otherwise."""

    def __init__(self, url: str, options: Mapping[str, Any], rules: Rules) -> None:
        self.url = url
        self.options = options
        self.rules = rules
        self.name = mask(url)
        self.web = is_web(url)

    def __reduce__(self) -> tuple[Any, ...]:
        # The library is chosen on the first call to `client`, because an exception while unpickling
        # would stop a dask worker and make the computation hang.
        return _ObstoreConnection, (self.url, self.options, self.rules)

    def client(self) -> RemoteClient:
        """Return the client for this process.

        The first call may send a request to find out the region of a bucket.
        """
        # obstore would hang in a process that was forked after obstore was imported.
        return self._by_fsspec if process.forked else self._preferred

    @cached_property
    def arguments(self) -> _Arguments | None:
        """The arguments for obstore, or None if fsspec must be used."""
        return _obstore_arguments(self.url, self.options, self.rules.retry)

    @cached_property
    def _preferred(self) -> RemoteClient:
        """The obstore client, or the fsspec client if obstore cannot be used."""
        arguments = self.arguments
        if arguments is None:
            return self._by_fsspec
        config = arguments.keywords.get("config", {})
        if arguments.class_name == "S3Store" and "region" not in config:
            try:
                config["region"] = bucket_region(arguments.bucket_or_url)
            except NoEquivalentError as reason:
                _log.debug(_BY_FSSPEC, self.name, reason)
                return self._by_fsspec
        _log.debug("%s: accessed with obstore", self.name)
        return ObstoreClient(
            _obstore_store(arguments),
            arguments.path,
            self.rules,
            name=self.name,
            substitute=(lambda: self._by_fsspec) if self.web else None,
        )

    @cached_property
    def _by_fsspec(self) -> RemoteClient:
        if process.forked:
            _log.debug(_BY_FSSPEC, self.name, "this process was forked")
        return FsspecClient.connect(self.url, self.options, self.rules)


def _obstore_arguments(url: str, options: Mapping[str, Any], retry: Retry) -> _Arguments | None:
    """Return the arguments for obstore, or None if fsspec must be used instead.

    Raises
    ------
    ConflictError
        If the ``client`` option is neither ``"fsspec"`` nor ``"obstore"``.
    UnsupportedError
        If the ``client`` option is ``"obstore"``, but fsspec must be used.
    """
    client = options.get("client")
    if client not in (None, "fsspec", "obstore"):
        raise ConflictError(
            f'the storage option "client" must be "fsspec" or "obstore", not {client!r}',
            remedy="Leave out the option, or pass one of these values",
        )
    if client == "fsspec":
        reason, remedy = 'of the storage option "client"', ""
    elif find_spec("obstore") is None:
        reason = "obstore is not installed"
        remedy = 'Install xr-nczarr[obstore], or leave out the storage option "client"'
    else:
        try:
            return _translated(url, options, retry)
        except NoEquivalentError as error:
            reason = str(error)
            remedy = 'Leave out the storage option "client", or pass "fsspec"'
    if client == "obstore":
        raise UnsupportedError(reason, remedy=remedy, store=mask(url))
    _log.debug(_BY_FSSPEC, mask(url), reason)
    return None


def _translated(url: str, options: Mapping[str, Any], retry: Retry) -> _Arguments:
    """Translate a URL and fsspec storage options to the equivalent arguments for obstore.

    Raises
    ------
    NoEquivalentError
        If obstore would behave differently from fsspec.
    """
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    kind = _KINDS.get(canonical(scheme))
    if "::" in url or "@" in bucket or kind is None:
        raise NoEquivalentError("obstore does not support this kind of URL")
    merged = {**_configured(scheme), **options}
    merged = {k: v for k, v in merged.items() if k not in ("client", "asynchronous", "loop")}
    network: dict[str, Any] = {
        "connect_timeout": timedelta(seconds=retry.timeout_seconds),
        "read_timeout": timedelta(seconds=retry.timeout_seconds),
        "timeout": _NEVER,  # no limit on the duration of a request, because objects can be large
    }
    arguments: dict[str, Any] = {
        "client_options": network,
        "retry_config": {"max_retries": 0},  # because requests are already retried, see `Retry`
    }
    if kind == "HTTPStore":
        if urlsplit(url).query:
            raise NoEquivalentError("obstore does not support queries in URLs")
        network["default_headers"] = _web_headers(merged)
        bucket, path, server = url.rstrip("/"), "", url
    else:
        if ":" in bucket:  # the ARN of an access point, or a server with a port
            raise NoEquivalentError("obstore does not support this kind of URL")
        if path and not all(map(_is_plain, path.rstrip("/").split("/"))):
            raise NoEquivalentError(
                "obstore does not support paths with empty, '.', '..' or unprintable components"
            )
        arguments |= _ARGUMENTS[kind](merged)
        server = arguments["config"].get("endpoint", "")
    network["allow_http"] = server.startswith("http://")
    if not network["allow_http"]:
        _check_environment(_CERTIFICATES)
    return _Arguments(kind, bucket, path, arguments)


def _configured(scheme: str) -> dict[str, Any]:
    """Return the storage options that fsspec's configuration sets for a URL scheme."""
    from fsspec.config import conf

    sections = [conf.get(name, {}) for name in protocol_names(scheme)]
    return {name: value for section in sections for name, value in section.items()}


def _is_plain(part: str) -> bool:
    """Return whether obstore, like fsspec, leaves a path component unchanged."""
    return part not in ("", ".", "..") and part.isprintable()


def _gcs_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    _check_environment(name for name in os.environ if name.startswith(("GOOGLE_", "STORAGE_")))
    if options.get("token") != "anon":
        raise NoEquivalentError("obstore does not support Google Cloud credentials")
    return {"config": _renamed({**options, "token": True}, {"token": "skip_signature"})}


def _azure_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    _check_environment(name for name in os.environ if name.startswith("AZURE_"))
    config = _renamed(options, _AZURE)
    if "account_name" not in options or options.keys().isdisjoint(_AZURE_CREDENTIALS):
        raise NoEquivalentError("obstore does not support Azure default credentials")
    return {"config": config}


def _web_headers(options: Mapping[str, Any]) -> dict[str, str]:
    _check_environment({*_PROXIES, *map(str.lower, _PROXIES)})
    nested = options.get("client_kwargs") or {}
    _renamed({**nested, **options}, {"headers": "", "client_kwargs": ""})
    headers = {**(options.get("headers") or {}), **(nested.get("headers") or {})}
    for name in headers:
        if name.lower() not in _GUARDED_HEADERS:
            raise NoEquivalentError(f"obstore does not support the header {name}")
    return headers


_ARGUMENTS = {
    "S3Store": s3_arguments,
    "GCSStore": _gcs_arguments,
    "AzureStore": _azure_arguments,
}


def _renamed(options: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Rename storage options, and drop options whose value is None.

    `names` maps old names to new names.

    Raises
    ------
    NoEquivalentError
        If the name of an option is not in `names`.
    """
    for name in options:
        if name not in names:
            raise NoEquivalentError(f"obstore does not support the storage option {name}")
    return {names[name]: value for name, value in options.items() if value is not None}


def _check_environment(names: Iterable[str]) -> None:
    for name in names:
        if os.environ.get(name):
            raise NoEquivalentError(f"obstore does not support the environment variable {name}")
