"""Datasets and stores that the tests of several kinds of writes share."""

import numpy as np
import pytest
import xarray as xr

from tests.stores import read_objects
from xr_nczarr import ConflictError, to_nczarr
from xr_nczarr.storage import MemoryStore


class RemoteMemoryStore(MemoryStore):
    """A store without locks between processes and without atomic replacement."""

    remote = True


def series(start, stop, step="6h", **variables):
    """Return a dataset along time in which `a` and `n` count from `start`."""
    hours = np.arange(start, stop) * np.timedelta64(int(step[:-1]), step[-1])
    return xr.Dataset(
        {
            "a": (("time", "x"), np.arange(start * 4, stop * 4.0).reshape(-1, 4)),
            "n": ("time", np.arange(start, stop, dtype="i4")),
            **variables,
        },
        coords={"time": np.datetime64("2000-01-01", "ns") + hours, "x": [10, 20, 30, 40]},
        attrs={"title": "series"},
    )


def example(start=0, stop=8):
    """Return a dataset along `t`, with integers that count from `start`."""
    n = np.arange(start, stop)
    return xr.Dataset(
        {"a": (("t", "x"), n[:, None] * 10.0 + np.arange(3)), "n": ("t", n)}, {"t": n}
    )


def assert_rejected(path, match, dataset, **options):
    """Check that a write is rejected and does not change the store."""
    before = read_objects(path)
    with pytest.raises(ConflictError, match=match):
        to_nczarr(dataset, path, **options)
    assert read_objects(path) == before
