"""Forks and new processes during reads, and concurrent writers."""

import json
import os
import signal
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from tests.processes import in_a_child, in_a_new_interpreter
from xr_nczarr import locks, to_nczarr
from xr_nczarr.locks import ProcessLock, ThreadLimiter, cached_property

FORKS = int(os.environ.get("NCZARR_FORKS", "4"))
ROUNDS = int(os.environ.get("NCZARR_ROUNDS", "20"))


ELEMENTS = np.arange(200.0).reshape(20, 10)


def values():
    return xr.Dataset({"a": (("y", "x"), ELEMENTS)})


def read(*datasets):
    """Read without xarray variables, which import dask. A fork could interrupt this import."""
    return all(np.array_equal(dataset.a.values, ELEMENTS) for dataset in datasets)


def begin(action, *arguments):
    """Call a function in a forked process, for at most 20 seconds plus a second per round."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(20 + ROUNDS)
        os._exit(0 if action(*arguments) else 1)
    return pid


def end(pid):
    """Wait for a process and return its exit status."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def fork(action, *arguments):
    return end(begin(action, *arguments))


@contextmanager
def repeating_in_threads(action):
    """Call a function repeatedly in two threads during the block."""
    stop, results = threading.Event(), []

    def repeat():
        while not stop.is_set():
            results.append(action())

    threads = [threading.Thread(target=repeat) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield results
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def fork_and_spawn_during_reads(urls):
    """Fork and spawn processes that read while threads read.

    Return whether all reads succeeded: for each URL with forks, and for all URLs with spawning.
    """
    result = {}
    with ExitStack() as opened:
        datasets = [
            opened.enter_context(xr.open_dataset(url, engine="nczarr", cache=False)) for url in urls
        ]
        for url, dataset in zip(urls, datasets, strict=True):
            with repeating_in_threads(lambda: read(dataset)) as results:  # noqa: B023 (not called later)
                codes = [fork(read, dataset) for _ in range(FORKS)]
            result[url] = {*codes} == {0} and all(results)
        with repeating_in_threads(lambda: read(*datasets)) as results:
            spawned = in_a_child("spawn", read, *datasets)
        return result, spawned and all(results)


def test_child_processes_can_read_while_parent_reads(http_server):
    root, url = Path(http_server.root), http_server.url
    to_nczarr(values(), f"{root}/s", encoding={"a": {"chunks": (10, 10)}}, zarr_format=2)
    (root / "set.json").write_text(json.dumps(references_of(root / "s", url)))
    urls = [f"{root}/s", f"{url}/s", f"{url}/set.json"]
    urls += [f"simplecache::{url}/s", f"blockcache::{url}/s"]
    assert in_a_new_interpreter(fork_and_spawn_during_reads, urls) == (
        dict.fromkeys(urls, True),
        True,
    )


class Slow:
    """An object with a cached property that waits until `stop` is set."""

    def __init__(self, begun, stop):
        self.begun = begun
        self.stop = stop

    @cached_property
    def value(self):
        self.begun.set()
        return self.stop.wait(60)


def fork_while_locked():
    """Fork while another thread holds a lock and a limiter, and computes a cached property."""
    begun, stop = threading.Event(), threading.Event()
    lock, limiter = ProcessLock(), ThreadLimiter(1)
    locks._MAX_WAIT_SECONDS = 60.0

    def hold():
        with lock:
            limiter.limit(lambda slow: slow.value)(Slow(begun, stop))

    def take():
        with lock:
            stop.set()
            limiter.limit(lambda slow: slow.value)(Slow(begun, stop))
            return True

    holder = threading.Thread(target=hold)
    holder.start()
    begun.wait(60)
    try:
        return fork(take)
    finally:
        stop.set()
        holder.join()


def test_forked_child_inherits_no_locks_from_other_threads():
    assert in_a_new_interpreter(fork_while_locked) == 0


def test_limiter_does_not_deadlock_if_thread_waits_for_another_thread(monkeypatch):
    monkeypatch.setattr(locks, "_MAX_WAIT_SECONDS", 0.05)
    limiter, done = ThreadLimiter(1), []

    def wait_for_another(_):
        other = threading.Thread(target=limiter.limit(done.append), args=(1,))
        other.start()
        other.join(60)

    limiter.limit(wait_for_another)(None)
    limiter.limit(done.append)(2)
    assert done == [1, 2]


def references_of(store, url):
    """Return a reference set of a store, with inline documents."""
    result = {}
    for path in store.rglob("*"):
        if path.is_file():
            key, size = str(path.relative_to(store)), path.stat().st_size
            text = path.name.startswith(".")
            result[key] = path.read_text() if text else [f"{url}/s/{key}", 0, size]
    return result


def write_a_row(path, row):
    """Write a row of one chunk in each round. Return whether every round stored its values."""
    right = True
    for turn in range(1, ROUNDS + 1):
        part = xr.Dataset({"a": (("y", "x"), np.full((1, 10), turn + 1000.0 * row))})
        to_nczarr(part, path, region={"y": slice(row, row + 1)}, storage_options={"sync": "none"})
        with xr.open_dataset(path, engine="nczarr") as dataset:
            right &= bool((dataset.a[row] == part.a[0]).all())
    return right


def write_two_rows(path):
    return [end(pid) for pid in [begin(write_a_row, path, row) for row in (3, 4)]]


def test_two_processes_writing_one_chunk_lose_no_rows(tmp_path):
    path = str(tmp_path / "s")
    to_nczarr(values(), path, encoding={"a": {"chunks": (20, 10)}})
    assert in_a_new_interpreter(write_two_rows, path) == [0, 0]
    expected = values()
    expected.a[3:5] = np.array([[3000.0], [4000.0]]) + ROUNDS
    with xr.open_dataset(path, engine="nczarr") as opened:
        xr.testing.assert_identical(opened.load(), expected)
    assert not [name for name in os.listdir(f"{path}/a") if name.endswith((".lock", ".tmp"))]


def rows(start, stop):
    n = np.arange(start, stop)
    return xr.Dataset({"a": (("t", "x"), n[:, None] + np.zeros(5)), "n": ("t", n)}, {"t": n})


def append_rows(path, told):
    for turn in range(1, ROUNDS + 1):
        os.read(told, 1)
        to_nczarr(
            rows(3 * turn, 3 * turn + 3), path, append_dim="t", storage_options={"sync": "none"}
        )
    return True


def read_while_appending(path):
    """Read until the appending process has ended, and return the lengths that were read."""
    reported, tell = os.pipe()
    pid, lengths, ended = begin(append_rows, path, reported), [3], False
    while not ended:
        os.write(tell, b"1")  # starts one append, which runs during the read
        ended = os.waitpid(pid, os.WNOHANG)[0] != 0
        with xr.open_dataset(path, engine="nczarr") as dataset:
            length = dataset.sizes["t"]
            xr.testing.assert_identical(dataset.load(), rows(0, length))
            assert length >= lengths[-1]
            lengths.append(length)
    return lengths


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_readers_of_growing_store_see_only_complete_appends(tmp_path, zarr_format):
    path, encoding = str(tmp_path / "s"), {"a": {"chunks": (4, 5)}, "t": {"chunks": (100,)}}
    to_nczarr(rows(0, 3), path, unlimited_dims="t", encoding=encoding, zarr_format=zarr_format)
    lengths = in_a_new_interpreter(read_while_appending, path)
    assert lengths[-1] == 3 + 3 * ROUNDS
    assert len(set(lengths)) > 3
    assert not any(length % 3 for length in lengths)
