"""A variant of adlfs's filesystem that does not retry failed requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adlfs import AzureBlobFileSystem
from fsspec.config import apply_config

from xr_nczarr.storage.retries import Retry


class Azure(AzureBlobFileSystem):  # type: ignore[misc]
    """A variant of adlfs's filesystem that does not retry failed requests.

    This package retries them itself; see `Retry`. By default, the Azure SDK would also retry each
    request three times, waiting between 12 and 45 seconds before each retry.
    """

    def do_connect(self) -> None:
        """Create the Azure SDK's client, and disable its retries."""
        super().do_connect()
        # adlfs has no option for disabling the retries of the SDK. Because these attributes are
        # private, other versions of the SDK may lack them.
        settings = getattr(self.service_client, "_config", None)
        policy = getattr(settings, "retry_policy", None)
        if policy is not None:
            policy.total_retries = 0


def azure_options(url: str, options: Mapping[str, Any], retry: Retry) -> dict[str, Any]:
    """Return all storage options for `Azure`.

    The options come from four sources, listed here from highest to lowest precedence: `options`,
    fsspec's configuration, the URL (which may contain the account name), and the timeout that
    `retry` specifies.
    """
    timeouts = dict.fromkeys(("connection_timeout", "read_timeout"), retry.timeout_seconds)
    specified = Azure._get_kwargs_from_urls(url)
    return {**timeouts, **specified, **apply_config(Azure, dict(options))}
