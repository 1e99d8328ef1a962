"""A variant of adlfs's filesystem that does not retry failed requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adlfs import AzureBlobFileSystem
from fsspec.config import apply_config

from xr_nczarr.storage.retries import Retry


class Azure(AzureBlobFileSystem):  # type: ignore[misc]
    """A variant of adlfs's filesystem that does not retry failed requests.

    This package retries them itself; see `Retry`.
    """

    def do_connect(self) -> None:
        """Create the Azure SDK's client, and disable its retries."""
        super().do_connect()
        # By default, the SDK retries each request three times, and waits between 12 and 45 seconds
        # before each retry. adlfs has no option for disabling these retries. Because the attributes
        # are private, other versions of the SDK may lack them.
        settings = getattr(self.service_client, "_config", None)
        policy = getattr(settings, "retry_policy", None)
        if policy is not None:
            policy.total_retries = 0


def azure_options(url: str, options: Mapping[str, Any], retry: Retry) -> dict[str, Any]:
    """Return all storage options for `Azure`.

    From highest to lowest precedence, the options come from `options`, from fsspec's configuration,
    from the account name in `url`, and from the timeout of `retry`.
    """
    timeouts = dict.fromkeys(("connection_timeout", "read_timeout"), retry.timeout_seconds)
    specified = Azure._get_kwargs_from_urls(url)
    return {**timeouts, **specified, **apply_config(Azure, dict(options))}
