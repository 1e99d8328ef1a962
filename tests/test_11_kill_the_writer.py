"""A writer that is killed at any moment leaves the old or the new state, and can be run again.

The default run kills each kind of writer a few times; ``NCZARR_KILLS=1000`` asks for more of each.
"""

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import xarray as xr

from xr_nczarr import ConflictError, NotFoundError, to_nczarr

KILLS = int(os.environ.get("NCZARR_KILLS", "2"))

# A child imports once and forks a writer for each kill: the kill comes while it writes. It reaps a
# writer only when it is told to, so that nobody else can have got its number when it is killed.
CHILD = """
import os, sys
from tests.test_11_kill_the_writer import ACTIONS
for line in sys.stdin:
    action, layout, path = line.split()
    pid = os.fork()
    if pid == 0:
        ACTIONS[action](path, layout)
        os._exit(0)
    print(pid, flush=True)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    print("ended", flush=True)
    sys.stdin.readline()
    os.waitpid(pid, 0)
"""


def values(start, stop, sign=1):
    """A dataset along time whose values tell where they belong."""
    n = np.arange(start, stop)
    field = sign * (n[:, None] * 100.0 + np.arange(50))
    return xr.Dataset({"a": (("time", "x"), field), "n": ("time", sign * n)}, {"time": n * 1.0})


ENCODING = {"a": {"chunks": (4, 10)}, "n": {"chunks": (4,)}, "time": {"chunks": (64,)}}


LAYOUTS = {
    "-".join(map(str, each)): each
    for each in itertools.product(
        ("nczarr", "zarr"), (2, 3), ("fixed", "unlimited"), ("single", "consolidated")
    )
}


def create(path, layout):
    dialect, version, kind, documents = LAYOUTS[layout]
    to_nczarr(
        values(0, 18),
        path,
        encoding=ENCODING,
        unlimited_dims="time" if kind == "unlimited" else None,
        dialect=dialect,
        zarr_format=version,
        consolidated=documents == "consolidated",
        sync="none",
    )


def append(path, _layout):
    to_nczarr(values(18, 37), path, append_dim="time", sync="none")


def append_at_once(path, _layout):
    to_nczarr(values(18, 37), path, append_dim="time", sync="none", atomic="store")


def replace(path, layout):
    version = LAYOUTS[layout][1]
    options = {"encoding": ENCODING, "zarr_format": version, "sync": "none"}
    to_nczarr(values(0, 9, -1), path, mode="w", **options)


def overwrite(path, _layout):
    to_nczarr(values(0, 18, -1).drop_vars("time"), path, mode="r+", sync="none")


def write_region(path, _layout):
    start, stop = WRITTEN["write_region"]
    more = values(start, stop, -1).drop_vars("time")
    to_nczarr(more, path, region={"time": slice(start, stop)}, sync="none")


ACTIONS = {
    "create": create,
    "append": append,
    "append_at_once": append_at_once,
    "replace": replace,
    "overwrite": overwrite,
    "write_region": write_region,
}
# The rows that are written in place: chunk by chunk, of which the region covers some in part.
WRITTEN = {"overwrite": (0, 18), "write_region": (3, 14)}


def read(path, **options):
    with xr.open_dataset(path, engine="nczarr", **options) as dataset:
        return dataset.load()


def state(path):
    """What is there: None, or a dataset."""
    if not os.path.exists(path):
        return None
    try:
        return read(path)
    except NotFoundError:
        return None


def names(path):
    found = [os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names]
    return sorted(os.path.relpath(name, path) for name in found if not name.endswith(".tmp"))


def contents(path):
    result = {}
    for name in names(path):
        with open(f"{path}/{name}", "rb") as file:
            result[name] = file.read()
    return result


@pytest.fixture(scope="module")
def writers():
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=os.path.dirname(os.path.dirname(__file__)),
    )
    with child:
        yield child
        child.stdin.close()


def start(writers, action, layout, path):
    """Begin an action in a process of its own, and give its number."""
    writers.stdin.write(f"{action} {layout} {path}\n")
    writers.stdin.flush()
    return int(writers.stdout.readline())


def end(writers):
    assert writers.stdout.readline() == "ended\n"
    writers.stdin.write("reap\n")
    writers.stdin.flush()


def killed(writers, action, layout, path, delay):
    """Run an action in a process of its own, and kill it after `delay` seconds."""
    pid = start(writers, action, layout, path)
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    end(writers)


def duration(writers, action, layout, path):
    """The seconds that an action takes when nobody kills it."""
    begin = time.perf_counter()
    start(writers, action, layout, path)
    end(writers)
    return time.perf_counter() - begin


def same(one, other):
    return one is not None and one.identical(other)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("action", ACTIONS)
def test_a_killed_writer_leaves_the_old_or_the_new_state(tmp_path, writers, action, version):
    random.seed(f"{action}-{version}")
    layout = f"nczarr-{version}-unlimited-consolidated"
    before = None if action == "create" else values(0, 18)
    after = {"create": values(0, 18), "replace": values(0, 9, -1)}.get(action, values(0, 37))
    reference = str(tmp_path / "reference")
    if before is not None:
        create(reference, layout)
    longest = duration(writers, action, layout, reference)
    states = {"old": 0, "new": 0}
    for turn in range(KILLS):
        path = str(tmp_path / f"store-{turn}")
        if before is not None:
            create(path, layout)
        killed(writers, action, layout, path, random.random() * longest * 1.1)
        found = state(path)
        if action in WRITTEN:
            assert_each_chunk_is_old_or_new(found, *WRITTEN[action])
            ACTIONS[action](path, layout)
            assert contents(path) == contents(reference)
        else:
            assert found is before is None or same(found, before) or same(found, after)
            states["new" if same(found, after) else "old"] += 1
            try:
                ACTIONS[action](path, layout)
            except (ConflictError, FileExistsError):
                assert same(found, after), "refused to run again although it had not finished"
            assert contents(path) == contents(reference)
            assert same(read(path, consolidated=False), after)
        shutil.rmtree(path)
    print(action, version, states)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_killed_append_is_old_or_new_and_can_be_run_again_in_every_layout(
    tmp_path, writers, layout
):
    random.seed(layout)
    before, after, reference = values(0, 18), values(0, 37), str(tmp_path / "reference")
    create(reference, layout)
    longest = duration(writers, "append", layout, reference)
    for turn in range(max(2, KILLS // len(LAYOUTS))):
        path = str(tmp_path / f"store-{turn}")
        create(path, layout)
        killed(writers, "append", layout, path, random.random() * longest * 1.1)
        for found in (read(path), read(path, consolidated=False)):
            assert same(found, before) or same(found, after)
        try:
            append(path, layout)
        except ConflictError:  # it had finished
            assert same(read(path), after)
        assert contents(path) == contents(reference)
        assert same(read(path, consolidated=False), after)
        shutil.rmtree(path)


def assert_each_chunk_is_old_or_new(found, start, stop):
    """Check the signs: all rows outside of the written ones are old, chunks inside are of one."""
    old = values(0, 18)
    np.testing.assert_array_equal(np.abs(found.a), old.a)
    xr.testing.assert_identical(found.time, old.time)
    for row in range(0, 18, 4):
        written = slice(max(row, start), min(row + 4, stop))
        for column in range(0, 50, 10):
            signs = np.sign(found.a.values[written, column : column + 10])
            assert set(signs.ravel()) <= {0, 1} or set(signs.ravel()) <= {0, -1}
    outside = np.r_[0:start, stop:18]
    np.testing.assert_array_equal(found.a.values[outside], old.a.values[outside])
