"""How many requests and round trips (waves) the work takes: exact upper bounds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import xarray as xr

import xr_nczarr
from tests.servers import S3Server, Waves
from xr_nczarr import NotFoundError


def lists(waves: Waves) -> list[str]:
    """The LIST requests among those of the block."""
    return [item.path for item in waves.requests if "list-type=2" in item.path]


@contextmanager
def at_most(server: Any, requests: int, rounds: int) -> Iterator[Waves]:
    """Check how many requests and waves the block takes."""
    with server.waves() as waves:
        yield waves
    shown = "\n".join(f"{item.method} {item.path}" for item in waves.requests)
    assert len(waves.requests) <= requests, f"{len(waves.requests)} requests:\n{shown}"
    assert waves.count <= rounds, f"{waves.count} waves:\n{shown}"


def opened(server: S3Server, name: str, **options: Any) -> xr.Dataset:
    options = {"storage_options": server.storage_options, "chunks": None, **options}
    return xr.open_dataset(f"{server.url}/{name}", engine="nczarr", **options)


# Names that are not there -------------------------------------------------------------------------


def test_a_wrong_name_is_looked_up_by_one_list(s3_server):
    s3_server.restore({f"folder/{number:04}/zarr.json": b"{}" for number in range(1200)})
    with at_most(s3_server, 15, 5) as waves, pytest.raises(NotFoundError):
        opened(s3_server, "folder/wrong")
    (request,) = lists(waves)
    assert "prefix=folder%2Fwrong%2F" in request


def test_writing_to_a_new_name_does_not_list_its_neighbors(s3_server):
    s3_server.restore({f"folder/{number:04}/zarr.json": b"{}" for number in range(1200)})
    with s3_server.waves() as waves:
        xr_nczarr.to_nczarr(
            xr.Dataset({"v": ("x", [1.0])}),
            f"{s3_server.url}/folder/new",
            mode="w",
            storage_options=s3_server.storage_options,
        )
    assert lists(waves)
    assert all("prefix=folder%2Fnew" in request for request in lists(waves))
