"""The S3 filesystem of s3fs, tuned for many small objects, without the retries of s3fs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fsspec.config import apply_config
from s3fs import S3FileSystem

from xr_nczarr.storage.retries import Retry

_MAX_REMOVED = 1000  # the maximum of S3


class S3(S3FileSystem):  # type: ignore[misc]
    """The filesystem of s3fs, but without its retries, and with one LIST request per listing."""

    retries = 1

    async def _ls(
        self, path: str, detail: bool = False, refresh: bool = False, versions: bool = False
    ) -> list[Any]:
        """Return the entries below a prefix, or an empty list if there are no entries.

        If there are no entries, s3fs would look for an object with the name of the prefix, and list
        its whole parent folder.
        """
        path = self._strip_protocol(path).rstrip("/")
        if not path:
            return list(await super()._ls(path, detail, refresh, versions))
        entries = await self._lsdir(path, refresh=True, versions=versions)
        return entries if detail else sorted(entry["name"] for entry in entries)

    def remove_files(self, paths: Sequence[str]) -> None:
        """Remove objects from one bucket, with one request for every 1,000 objects.

        Unlike s3fs, this method does not ignore errors of single objects.

        Raises
        ------
        PermissionError, ConnectionError
            If the server does not remove an object.
        """
        for first in range(0, len(paths), _MAX_REMOVED):
            split = [self.split_path(path) for path in paths[first : first + _MAX_REMOVED]]
            objects = {"Objects": [{"Key": key} for _, key, _ in split], "Quiet": True}
            response = self.call_s3("delete_objects", Bucket=split[0][0], Delete=objects)
            for error in response.get("Errors", ()):
                refused = error.get("Code") == "AccessDenied"
                kind = PermissionError if refused else ConnectionError  # transient
                raise kind(f"{error.get('Key')} was not removed: {error.get('Message')}")


def s3_options(options: Mapping[str, Any], retry: Retry, connections: int) -> dict[str, Any]:
    """Return options for `S3`, tuned for many small objects, with the timeouts of `retry`."""
    options = apply_config(S3, dict(options))
    config = {
        "max_pool_connections": connections,
        "retries": {"total_max_attempts": 1},  # more would multiply the attempts of `Retry`
        "connect_timeout": retry.timeout_seconds,
        "read_timeout": retry.timeout_seconds,
    }
    return {
        # By default, s3fs requests the size of each object before fetching it.
        "max_concurrency": 1,
        **options,
        "config_kwargs": {**config, **options.get("config_kwargs", {})},
    }
