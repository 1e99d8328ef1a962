"""Writes during which a dask worker dies or a block fails."""

import os
import signal
import sys
import time
from contextlib import suppress

import numpy as np
import pytest
import xarray as xr
from distributed import Client, LocalCluster
from distributed.scheduler import KilledWorker

from tests.interruptions import written_objects
from xr_nczarr import to_nczarr


def rows(start, stop):
    n = np.arange(start, stop)
    return xr.Dataset({"a": (("t", "x"), n[:, None] + np.zeros(5)), "n": ("t", n)}, {"t": n})


ENCODING = {"a": {"chunks": (4, 5)}, "n": {"chunks": (4,)}, "t": {"chunks": (16,)}}


def die_once(block, marker):
    """End the worker of one block before the temporary file of its first chunk is renamed.

    dask does not restart a worker that dies before its nanny has learned that it started. If the
    next workers died as well, no worker might remain, and the write would wait forever.
    """

    def die(event, _arguments):
        if event == "os.rename":
            os.kill(os.getpid(), signal.SIGKILL)

    with suppress(FileExistsError):
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        sys.addaudithook(die)
    return block


@pytest.fixture
def dask_client():
    """Return a client with one spare worker, because dask may not restart all workers that die."""
    with (
        LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=":0") as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.parametrize("append", [False, True])
def test_write_survives_or_reports_dask_worker_death(tmp_path, dask_client, append, monkeypatch):
    path, whole = str(tmp_path / "s"), str(tmp_path / "whole")
    options = {"append_dim": "t"} if append else {"encoding": ENCODING}
    for item in (path, whole) if append else ():
        to_nczarr(rows(0, 4), item, unlimited_dims="t", encoding=ENCODING)
    new = rows(4, 16) if append else rows(0, 12)
    to_nczarr(new, whole, **options)

    def write():
        lazy = new.chunk(t=4)
        # `meta` keeps dask from calling `die_once` in this process.
        marker, meta = str(tmp_path / "marker"), np.empty((0, 0))
        lazy["a"] = lazy.a.copy(data=lazy.a.data.map_blocks(die_once, marker, meta=meta))
        with dask_client.as_current():
            to_nczarr(lazy, path, **options)

    monkeypatch.setattr(dask_client.cluster.scheduler, "allowed_failures", 0)
    with pytest.raises(KilledWorker) as failure:
        write()
    if append:
        with xr.open_dataset(path, engine="nczarr") as opened:
            xr.testing.assert_identical(opened.load(), rows(0, 4))
    else:
        assert {*os.listdir(tmp_path)} == {"marker", "whole"}
    monkeypatch.undo()
    os.unlink(tmp_path / "marker")
    write()  # works although `failure` still refers to the failed tasks
    assert os.path.exists(tmp_path / "marker")
    assert written_objects(path) == written_objects(whole)
    assert failure.traceback


def wait_for(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def fail_or_wait(block, folder, block_info):
    """Fail in the first block while the second block waits for the file `go`."""
    if block_info[0]["chunk-location"][0]:
        open(f"{folder}/started", "w").close()
        wait_for(lambda: os.path.exists(f"{folder}/go"))
        return block
    wait_for(lambda: os.path.exists(f"{folder}/started"))
    raise ValueError("bad block")


def is_busy(dask_worker):
    return bool(dask_worker.active_threads)


def test_workers_do_not_continue_failed_write(tmp_path, dask_client):
    path = str(tmp_path / "s")
    to_nczarr(rows(0, 4), path, unlimited_dims="t", encoding=ENCODING)
    failing = (rows(4, 12) * 100).chunk(t=4)
    blocks = failing.a.data.map_blocks(fail_or_wait, str(tmp_path), meta=np.empty((0, 0)))
    failing["a"] = failing.a.copy(data=blocks)
    with dask_client.as_current():
        with pytest.raises(ValueError, match="bad block"):
            to_nczarr(failing, path, append_dim="t")
        to_nczarr(rows(4, 12), path, append_dim="t")
    (tmp_path / "go").touch()
    wait_for(lambda: not any(dask_client.run(is_busy).values()))
    with xr.open_dataset(path, engine="nczarr") as opened:
        xr.testing.assert_identical(opened.load(), rows(0, 12))
