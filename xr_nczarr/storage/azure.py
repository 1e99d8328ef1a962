"""A variant of adlfs's filesystem that does not retry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adlfs import AzureBlobFileSystem
from fsspec.config import apply_config

from xr_nczarr.storage.retries import Retry


class Azure(AzureBlobFileSystem):  # type: ignore[misc]
    """A variant of adlfs's filesystem that makes no retries.

    By default, the Azure SDK waits between 12 and 45 seconds before each of its three retries.
    """

    def do_connect(self) -> None:
        """Create the client for all requests."""
        super().do_connect()
        # Requests are already retried, see `Retry`. adlfs has no option for disabling the retries
        # of the SDK. Because these attributes are private, other versions of the SDK may lack them.
        settings = getattr(self.service_client, "_config", None)
        policy = getattr(settings, "retry_policy", None)
        if policy is not None:
            policy.total_retries = 0


def azure_options(url: str, options: Mapping[str, Any], retry: Retry) -> dict[str, Any]:
    """Return the storage options for `Azure`, including those that the URL specifies.

    `retry` determines the timeouts. Settings in `options` take precedence.
    """
    timeouts = dict.fromkeys(("connection_timeout", "read_timeout"), retry.timeout_seconds)
    specified = Azure._get_kwargs_from_urls(url)
    return {**timeouts, **specified, **apply_config(Azure, dict(options))}
