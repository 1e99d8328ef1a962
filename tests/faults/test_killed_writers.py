"""A writer that is killed at any moment leaves the old or the new state, and can be rerun.

The default run kills create, append (including longer text), replace and region write 100 times
each, and all other actions a few times. ``NCZARR_KILLS=1000`` requests more.
Half of the kills come from an audit hook, right before a random change of the disk: opening a file
for writing, renaming or removing a file, or creating a directory. The other half come from another
process, at a random moment between the first and the last change, even in the middle of a file.
"""

import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys

import netCDF4
import numpy as np
import pytest
import xarray as xr

from tests.interruptions import is_identical, read_or_none, written_objects
from tests.reading import RAW, assert_reads_as, read_groups
from tests.stores import write_vintage
from tests.tools.test_upgrade import numbers
from xr_nczarr import ConflictError, to_nczarr, upgrade
from xr_nczarr.hierarchy import JOURNAL

KILLS = int(os.environ.get("NCZARR_KILLS", "100"))
pytestmark = pytest.mark.timeout(240 + 5 * KILLS)

# The process forks a writer for each line of its input. Forks are fast because the process has only
# one thread and has already imported everything. It prints the status of the writer, the number of
# its changes, and the seconds between the first and the last change.
CHILD = """
import mmap, os, signal, sys, tempfile, threading, time
from tests.faults import test_killed_writers
from tests.faults.test_killed_writers import ACTIONS, USUAL, create, is_change

with tempfile.TemporaryDirectory() as folder:  # load all modules that are loaded on first use
    for layout in USUAL.values():
        for action in ACTIONS:
            path = f"{folder}/{action}-{layout}"
            create(path, layout, names=action == "append_longer_names")
            if action != "create":
                ACTIONS[action](path, layout)
for line in sys.stdin:
    action, layout, path, before_change, delay = line.split()
    shared = memoryview(mmap.mmap(-1, 24)).cast("d")  # changes, time of the first, time of the last
    begun, tell = os.pipe()
    assert threading.active_count() == 1
    pid = os.fork()
    if pid == 0:
        os.close(begun)

        def count(event, arguments):
            if is_change(event, arguments):
                if shared[0] == int(before_change):
                    os.kill(os.getpid(), signal.SIGKILL)
                shared[0] += 1
                shared[2] = time.monotonic()
                if shared[0] == 1:
                    shared[1] = shared[2]
                    os.write(tell, b"1")

        sys.addaudithook(count)
        getattr(test_killed_writers, action)(path, layout)
        os._exit(0)
    os.close(tell)
    if os.read(begun, 1) and float(delay) >= 0:
        time.sleep(float(delay))
        os.kill(pid, signal.SIGKILL)
    os.close(begun)
    print(os.waitpid(pid, 0)[1], int(shared[0]), shared[2] - shared[1], flush=True)
"""
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.chmod"}


def is_change(event, arguments):
    """Return whether an audited event changes the disk."""
    writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT
    return event in CHANGES or (event == "open" and bool((arguments[2] or 0) & writes))


def values(start, stop, sign=1):
    """Return a dataset along time in which each value identifies its position."""
    n = np.arange(start, stop)
    field = sign * (n[:, None] * 100.0 + np.arange(50))
    return xr.Dataset({"a": (("time", "x"), field), "n": ("time", sign * n)}, {"time": n * 1.0})


def with_names(dataset, ending=""):
    """Return the dataset with strings, which NCZarr stores with a fixed width in version 2."""
    names = [f"{number:02}{ending}" for number in dataset.n.values]
    return dataset.assign(name=("time", np.array(names, object)))


ENCODING = {"a": {"chunks": (4, 10)}, "n": {"chunks": (4,)}, "time": {"chunks": (64,)}}


LAYOUTS = {
    "-".join(map(str, item)): item
    for item in itertools.product(
        ("nczarr", "zarr"), (2, 3), ("fixed", "unlimited"), ("single", "consolidated")
    )
}


def create(path, layout, *, names=False):
    dialect, version, kind, documents = LAYOUTS[layout]
    to_nczarr(
        with_names(values(0, 18)) if names else values(0, 18),
        path,
        encoding=ENCODING,
        unlimited_dims="time" if kind == "unlimited" else None,
        dialect=dialect,
        zarr_format=version,
        consolidated=documents == "consolidated",
        storage_options={"sync": "none"},
    )


def append(path, _layout):
    to_nczarr(values(18, 37), path, append_dim="time", storage_options={"sync": "none"})


def append_longer_names(path, _layout):
    longer = with_names(values(18, 37), "é" * 10)
    to_nczarr(longer, path, append_dim="time", storage_options={"sync": "none"})


def append_atomically(path, _layout):
    to_nczarr(
        values(18, 37), path, append_dim="time", storage_options={"sync": "none"}, atomic=True
    )


def replace(path, layout):
    version = LAYOUTS[layout][1]
    options = {"encoding": ENCODING, "zarr_format": version, "storage_options": {"sync": "none"}}
    to_nczarr(values(0, 9, -1), path, mode="w", **options)


def overwrite(path, _layout):
    to_nczarr(
        values(0, 18, -1).drop_vars("time"), path, mode="r+", storage_options={"sync": "none"}
    )


def write_region(path, _layout):
    start, stop = WRITTEN["write_region"]
    more = values(start, stop, -1).drop_vars("time")
    to_nczarr(more, path, region={"time": slice(start, stop)}, storage_options={"sync": "none"})


def upgrade_layout(path, dialect):
    upgrade(path, dialect, storage_options={"sync": "none"})


ACTIONS = {
    "create": create,
    "append": append,
    "append_atomically": append_atomically,
    "append_longer_names": append_longer_names,
    "replace": replace,
    "overwrite": overwrite,
    "write_region": write_region,
}
# The rows that are written in place, chunk by chunk; the region covers some chunks partially.
WRITTEN = {"overwrite": (0, 18), "write_region": (3, 14)}
USUAL = {version: f"nczarr-{version}-unlimited-consolidated" for version in (2, 3)}
COUNTED = ("create", "append", "append_longer_names", "replace", "write_region")
CASES = [(action, layout) for action in ACTIONS for layout in USUAL.values()]
CASES += [("append", layout) for layout in LAYOUTS if layout not in USUAL.values()]


def states(path, layout):
    """Return the dataset in the store, or None, for each way of reading.

    If the store has version 2, compare the dataset with what netcdf-c reads.
    """
    result = [read_or_none(path, **options) for options in ({}, {"consolidated": False})]
    if result[0] is not None and LAYOUTS[layout][1] == 2:
        # netcdf-c ignores the journal; while one exists, it rejects arrays of different lengths.
        unfinished = os.path.exists(f"{path}/{JOURNAL}")
        refusal = contextlib.suppress(OSError) if unfinished else contextlib.nullcontext()
        with refusal, netCDF4.Dataset(f"file://{path}#mode=nczarr,file") as file:
            for name, ours in result[1].variables.items():
                theirs = np.ma.filled(file[name][:], np.nan)[: len(ours)]
                assert len(theirs) in (9, 18, 37)
                np.testing.assert_array_equal(theirs, ours[: len(theirs)])
    return result


@pytest.fixture(scope="module")
def writers():
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=os.path.dirname(os.path.dirname(os.path.dirname(__file__))),
    )
    with child:
        yield child
        child.stdin.close()


def write(writers, action, layout, path, *, before_change=-1, delay=-1.0):
    """Write in a separate process.

    Return its exit code, the number of its changes, and the seconds between the first and the last
    change.
    """
    writers.stdin.write(f"{action} {layout} {path} {before_change} {delay}\n")
    writers.stdin.flush()
    status, changes, seconds = writers.stdout.readline().split()
    return os.waitstatus_to_exitcode(int(status)), int(changes), float(seconds)


@pytest.mark.parametrize(("action", "layout"), CASES)
def test_killed_writer_leaves_store_in_old_or_new_state(tmp_path, writers, action, layout):
    chance = random.Random(f"{action}-{layout}")
    before = None if action == "create" else values(0, 18)
    after = {"create": values(0, 18), "replace": values(0, 9, -1)}.get(action, values(0, 37))
    names = action == "append_longer_names"
    if names:
        before = with_names(before)
        after = xr.concat([before, with_names(values(18, 37), "é" * 10)], "time")
    original, path, reference = (str(tmp_path / name) for name in ("original", "store", "whole"))
    if before is not None:
        create(original, layout, names=names)
        shutil.copytree(original, reference)
    code, changes, seconds = write(writers, action, layout, reference)
    assert (code, changes > 20) == (0, True)
    whole, outcomes = written_objects(reference), {"during": 0, "new": 0}
    assert action in WRITTEN or all(
        is_identical(state, after) for state in states(reference, layout)
    )
    counted = action in COUNTED and layout in USUAL.values()
    for turn in range(KILLS if counted else max(1, KILLS // 50)):
        if before is not None:
            shutil.copytree(original, path)
        if turn % 2:
            point = {"delay": chance.random() * seconds}
        else:
            point = {"before_change": chance.randrange(changes)}
        code, begun, _ = write(writers, action, layout, path, **point)
        assert code == -signal.SIGKILL or (code, begun) == (0, changes)
        outcomes["during"] += code != 0 and 0 < begun < changes
        result = states(path, layout)
        for state in result:
            if action in WRITTEN:
                assert_each_chunk_is_old_or_new(state, *WRITTEN[action])
            else:
                assert (
                    state is before is None
                    or is_identical(state, before)
                    or is_identical(state, after)
                )
        outcomes["new"] += is_identical(result[0], after)
        try:
            ACTIONS[action](path, layout)
        except (ConflictError, FileExistsError):
            assert is_identical(result[0], after), "rejected before it had finished"
        assert written_objects(path) == whole
        for left in {*map(str, tmp_path.iterdir())} - {original, reference}:
            shutil.rmtree(left)  # including leftovers of a killed replacement
    print(action, layout, f"{changes} changes in {seconds * 1e3:.0f} ms:", outcomes)
    # Nearly all kills by the audit hook occur during changes; load affects the timing of others.
    assert outcomes["during"] >= 0.4 * (turn + 1) or turn < 20


@pytest.mark.parametrize("dialect", ["nczarr", "nczarr-4.8.1", "universal"])
def test_killed_upgrade_preserves_content_and_can_be_retried(tmp_path, writers, dialect):
    original, path, reference = (str(tmp_path / name) for name in ("original", "store", "whole"))
    content = numbers("4.8.0")  # netcdf-c 4.8.0 stored the types of attributes in other objects
    write_vintage(tmp_path / "original", content, "4.8.0")
    shutil.copytree(original, reference)
    code, changes, _ = write(writers, "upgrade_layout", dialect, reference)
    assert (code, changes > 20) == (0, True)
    for before_change in range(changes):
        shutil.copytree(original, path)
        code, *_ = write(writers, "upgrade_layout", dialect, path, before_change=before_change)
        assert code == -signal.SIGKILL
        assert_reads_as(read_groups(path, **RAW), content)
        upgrade(path, dialect)
        assert written_objects(path) == written_objects(reference)
        assert_reads_as(read_groups(path, **RAW), content)
        shutil.rmtree(path)


def assert_each_chunk_is_old_or_new(result, start, stop):
    """Check that each chunk in the region is old or new, and that other rows are old.

    New values have the opposite sign.
    """
    old = values(0, 18)
    np.testing.assert_array_equal(np.abs(result.a), old.a)
    xr.testing.assert_identical(result.time, old.time)
    for row in range(0, 18, 4):
        written = slice(max(row, start), min(row + 4, stop))
        for column in range(0, 50, 10):
            signs = np.sign(result.a.values[written, column : column + 10])
            assert set(signs.ravel()) <= {0, 1} or set(signs.ravel()) <= {0, -1}
    outside = np.r_[0:start, stop:18]
    np.testing.assert_array_equal(result.a.values[outside], old.a.values[outside])
