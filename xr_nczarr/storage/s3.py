"""Options for S3: many small objects at once, and retries of this package alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from s3fs import S3FileSystem

from xr_nczarr.storage.retries import Retry


class S3(S3FileSystem):  # type: ignore[misc]
    """The filesystem of s3fs without its own five tries of each request."""

    retries = 1


def s3_options(options: Mapping[str, Any], retry: Retry, connections: int) -> dict[str, Any]:
    """Return options of `S3` for many small objects, and retries of this package."""
    config = {
        "max_pool_connections": connections,
        # One quick try more than ours: S3 answers 503 as part of its normal work.
        "retries": {"total_max_attempts": 2},
        "connect_timeout": retry.timeout_seconds / 2,
        "read_timeout": retry.timeout_seconds / 2,
    }
    return {
        # s3fs asks for the size of each object before it fetches it, unless told otherwise.
        "max_concurrency": 1,
        **options,
        "config_kwargs": {**config, **options.get("config_kwargs", {})},
    }
