"""Which client serves a URL, and the words of fsspec → those of obstore."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from xr_nczarr.errors import ConflictError, UnsupportedError, quote
from xr_nczarr.storage.retries import Retry
from xr_nczarr.storage.store import Store
from xr_nczarr.storage.url import mask

_log = logging.getLogger(__name__)

_S3 = {
    "key": "access_key_id",
    "secret": "secret_access_key",
    "token": "session_token",
    "endpoint_url": "endpoint",
    "anon": "skip_signature",
    "requester_pays": "request_payer",
}
_S3_CLIENT = {"endpoint_url": "endpoint", "region_name": "region"}
_AZURE = {
    "account_name": "account_name",
    "account_key": "account_key",
    "sas_token": "sas_key",
    "anon": "skip_signature",
}
# Those that reqwest removes where a server redirects to another one.
_GUARDED_HEADERS = ("authorization", "cookie", "user-agent")


def chosen_client(options: Mapping[str, Any]) -> str:
    """Return the client that the storage option `client` names; fsspec by default.

    Raises
    ------
    ConflictError
        For a name that is none of both.
    """
    client = options.get("client", "fsspec")
    if client not in ("fsspec", "obstore"):
        raise ConflictError(
            f"the storage option client is {quote(repr(client))}",
            remedy='Choose "fsspec" or "obstore".',
        )
    return str(client)


def connect_obstore(
    url: str,
    options: Mapping[str, Any],
    *,
    retry: Retry | None = None,
    missing_status: tuple[int, ...] = (404,),
    most_bytes: int | None = None,
) -> Store:
    """Return the store at a URL, reached by obstore.

    Parameters
    ----------
    options
        Storage options, as s3fs, gcsfs, adlfs and fsspec's HTTP name them.

    Raises
    ------
    UnsupportedError
        For a URL or an option that obstore has no exact counterpart of, or without obstore.
    """
    try:
        from obstore import store as stores

        from xr_nczarr.storage.obstore import ObstoreStore
    except ImportError as error:
        raise UnsupportedError(
            "obstore is not installed", remedy="Install xr-nczarr[obstore].", store=mask(url)
        ) from error
    scheme, _, rest = url.partition("://")
    bucket, _, path = rest.partition("/")
    retry = retry or Retry()
    common: dict[str, Any] = {
        "retry_config": {
            "max_retries": retry.attempts - 1,
            "retry_timeout": timedelta(seconds=retry.total_seconds),
            "backoff": {
                "init_backoff": timedelta(seconds=retry.first_wait),
                "max_backoff": timedelta(seconds=retry.max_wait),
                "base": 2,
            },
        }
    }
    network: Any = {
        "connect_timeout": timedelta(seconds=retry.timeout_seconds),
        "timeout": timedelta(seconds=max(retry.total_seconds, retry.timeout_seconds)),
    }
    own = {k: v for k, v in options.items() if k not in ("client", "asynchronous", "loop")}
    config: Any
    store: Any
    if "::" in url or "@" in bucket:
        raise _without_counterpart("this kind of URL", url)
    if scheme in ("s3", "s3a"):
        nested = own.pop("client_kwargs", {})
        config = _translated(own, _S3, url) | _translated(nested, _S3_CLIENT, url)
        network["allow_http"] = str(config.get("endpoint", "")).startswith("http://")
        store = stores.S3Store(bucket, config=config, client_options=network, **common)
    elif scheme in ("gs", "gcs"):
        if own.pop("token", "anon") != "anon":
            raise _without_counterpart("the storage option token", url)
        config = {"skip_signature": True} if options.get("token") == "anon" else {}
        _translated(own, {}, url)
        store = stores.GCSStore(bucket, config=config, client_options=network, **common)
    elif scheme in ("az", "abfs"):
        config = _translated(own, _AZURE, url)
        store = stores.AzureStore(bucket, config=config, client_options=network, **common)
    elif scheme in ("http", "https") and not urlsplit(url).query:
        headers = {**own.pop("headers", {}), **own.pop("client_kwargs", {}).pop("headers", {})}
        for name in headers:
            if name.lower() not in _GUARDED_HEADERS:
                raise _without_counterpart(f"the header {quote(name)}", url)
        _translated(own, {}, url)
        network |= {"allow_http": True, "default_headers": headers}
        store, path = stores.HTTPStore(url.rstrip("/"), client_options=network, **common), ""
    else:
        raise _without_counterpart("this kind of URL", url)
    _log.debug("%s: reached by obstore, as the storage option client says", mask(url))
    return ObstoreStore(
        store, path, name=mask(url), missing_status=missing_status, max_object_bytes=most_bytes
    )


def _translated(options: Mapping[str, Any], words: Mapping[str, str], url: str) -> dict[str, Any]:
    """Return options by their names in obstore."""
    for name in options:
        if name not in words:
            raise _without_counterpart(f"the storage option {quote(name)}", url)
    return {words[name]: value for name, value in options.items() if value is not None}


def _without_counterpart(subject: str, url: str) -> UnsupportedError:
    return UnsupportedError(
        f"obstore has no counterpart of {subject}",
        remedy='Leave out "client", or choose "fsspec".',
        store=mask(url),
    )
