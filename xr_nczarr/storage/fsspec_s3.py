"""A variant of s3fs's filesystem that does not retry and is tuned for many small objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fsspec.config import apply_config
from s3fs import S3FileSystem

from xr_nczarr.storage.retries import Retry

_MAX_REMOVED = 1000  # maximum number of objects that S3 removes in one request


class S3(S3FileSystem):  # type: ignore[misc]
    """A variant of s3fs's filesystem that makes no retries and no extra LIST requests."""

    retries = 1

    async def _ls(
        self, path: str, detail: bool = False, refresh: bool = False, versions: bool = False
    ) -> list[Any]:
        """Return the entries under a prefix, or an empty list if there are no entries."""
        # If there are no entries, s3fs's own method also lists the whole parent folder, to find an
        # object with the same name as the prefix.
        path = self._strip_protocol(path).rstrip("/")
        if not path:
            return list(await super()._ls(path, detail, refresh, versions))
        entries = await self._lsdir(path, refresh=True, versions=versions)
        return entries if detail else sorted(entry["name"] for entry in entries)

    def remove_files(self, paths: Sequence[str]) -> None:
        """Remove objects from one bucket, with up to 1,000 objects per request.

        Raises
        ------
        PermissionError
            If access to an object is denied.
        ConnectionError
            If an object was not removed for any other reason.
        """
        for first in range(0, len(paths), _MAX_REMOVED):
            split = [self.split_path(path) for path in paths[first : first + _MAX_REMOVED]]
            objects = {"Objects": [{"Key": key} for _, key, _ in split], "Quiet": True}
            response = self.call_s3("delete_objects", Bucket=split[0][0], Delete=objects)
            for error in response.get("Errors", ()):  # s3fs's own method ignores them
                refused = error.get("Code") == "AccessDenied"
                kind = PermissionError if refused else ConnectionError  # only the latter is retried
                raise kind(f"{error.get('Key')} was not removed: {error.get('Message')}")


def s3_options(options: Mapping[str, Any], retry: Retry, connections: int) -> dict[str, Any]:
    """Return the storage options for `S3`, with defaults suited to stores of many small objects.

    `retry` determines the timeouts. `connections` is the maximum number of open connections.
    Settings in `options` take precedence.
    """
    options = apply_config(S3, dict(options))
    config = {
        "max_pool_connections": connections,
        "retries": {"total_max_attempts": 1},  # because requests are already retried, see `Retry`
        "connect_timeout": retry.timeout_seconds,
        "read_timeout": retry.timeout_seconds,
    }
    return {
        # By default, s3fs requests the size of each object before fetching it.
        "max_concurrency": 1,
        **options,
        "config_kwargs": {**config, **options.get("config_kwargs", {})},
    }
