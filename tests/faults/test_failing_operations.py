"""Writes in which one disk operation fails, or is lost because it was not synced to disk.

Each operation fails in turn. The old state stays readable, and the write can be repeated.
"""

import errno
import os
import random
import shutil
from contextlib import contextmanager

import numcodecs
import numpy as np
import pytest
import xarray as xr

from tests.interruptions import Write, is_identical, read_or_none, written_objects
from xr_nczarr import ChunkError, NczarrError, to_nczarr
from xr_nczarr.storage import MemoryStore


def values(start, stop, sign=1):
    n = np.arange(start, stop)
    return xr.Dataset({"a": (("t", "x"), sign * (n[:, None] * 10.0 + np.arange(1, 5)))}, {"t": n})


ENCODING = {"a": {"chunks": (4, 4)}, "t": {"chunks": (64,)}}
OLD = values(0, 6)
CREATE = Write(OLD, OLD, options={"unlimited_dims": "t", "encoding": ENCODING})
APPEND = Write(values(6, 9), values(0, 9), OLD, {"append_dim": "t"})
REPLACE = Write(values(0, 3, -1), values(0, 3, -1), OLD, {"mode": "w"})
REGION = Write(
    values(1, 3, -1).drop_vars("t"),
    OLD.assign(a=OLD.a.where((OLD.t < 1) | (OLD.t >= 3), -OLD.a)),
    OLD,
    {"region": {"t": slice(1, 3)}},
)
WRITES = pytest.mark.parametrize(
    "write", [CREATE, APPEND, REPLACE, REGION], ids=["create", "append", "replace", "region"]
)
CHANGES = pytest.mark.parametrize(
    "write", [APPEND, REPLACE, REGION], ids=["append", "replace", "region"]
)

# A full disk rejects the operations that need space, and a broken disk rejects all operations.
NEEDING_SPACE = ("open", "write", "mkdir", "link")
OPERATIONS = (*NEEDING_SPACE, "replace", "rename", "unlink", "rmdir", "fsync")


@contextmanager
def failing(number, after, monkeypatch):
    """Make the disk operation with index `after` fail, and yield the list of operations so far.

    If `number` means that the disk is full, later operations that need space fail as well.
    """
    done = []

    def wrapped(name, operation):
        def run(*arguments, **options):
            if name == "open" and not arguments[1] & (os.O_WRONLY | os.O_RDWR):
                return operation(*arguments, **options)
            done.append(name)
            full = number == errno.ENOSPC and len(done) > after and name in NEEDING_SPACE
            if full or (number != errno.ENOSPC and len(done) == after + 1):
                raise OSError(number, os.strerror(number))
            return operation(*arguments, **options)

        return run

    with monkeypatch.context() as patch:
        for name in OPERATIONS:
            patch.setattr(os, name, wrapped(name, getattr(os, name)))
        yield done


def objects(path):
    """Return the objects of a store except locks, which may remain if they cannot be removed."""
    return {key: data for key, data in written_objects(path).items() if not key.endswith(".lock")}


def has_changed(path, original):
    """Return whether the store differs from the original.

    If it does not, the error need not explain how to continue.
    """
    return objects(path) != objects(original)


@pytest.mark.parametrize(
    ("number", "version"), [(errno.ENOSPC, 2), (errno.ENOSPC, 3), (errno.EIO, 3), (errno.EACCES, 2)]
)
@WRITES
def test_failed_disk_operation_leaves_store_in_old_or_new_state(
    tmp_path, monkeypatch, write, version, number
):
    original, path, whole = (str(tmp_path / name) for name in ("original", "store", "whole"))
    errors = []
    if write.before is not None:
        CREATE.run(original, zarr_format=version)
        shutil.copytree(original, whole)
    write.run(whole, zarr_format=version)
    for n in range(1000):
        if write.before is not None:
            shutil.copytree(original, path)
        sync = {"sync": "all" if n % 2 else "none"}
        try:
            with failing(number, n, monkeypatch) as done:
                write.run(path, zarr_format=version, storage_options=sync)
        except NczarrError as error:
            named = isinstance(error, OSError), os.strerror(number) in str(error)
            reported = "again" in str(error) or not has_changed(path, original)
            errors.append((*named, str(tmp_path) in str(error), reported))
        left = read_or_none(path)
        write.check(left)
        write.rerun(path, left, zarr_format=version)
        assert objects(path) == objects(whole)
        shutil.rmtree(path)
        if len(done) <= n:
            break
    assert len(errors) > 3
    assert set(errors) == {(True, True, True, True)}


def refuse(*_):
    raise ArithmeticError("not this block")


@CHANGES
def test_errors_from_other_packages_include_note_about_store_state(tmp_path, write):
    path = str(tmp_path / "s")
    CREATE.run(path)
    lazy = write.dataset.chunk().map_blocks(refuse, template=write.dataset.chunk())
    with pytest.raises(ArithmeticError) as info:
        to_nczarr(lazy, path, **write.options)
    assert [path in note and "again" in note for note in info.value.__notes__] == [True]
    assert is_identical(read_or_none(path), OLD)


@CHANGES
def test_failing_codec_leaves_old_store_intact(tmp_path, monkeypatch, write):
    path, encoding = str(tmp_path / "s"), {"a": {"compressor": numcodecs.BZ2(), "chunks": (4, 4)}}
    CREATE.run(path, encoding=encoding)
    with monkeypatch.context() as patch:
        patch.setattr(numcodecs.BZ2, "encode", refuse)
        with pytest.raises(ChunkError, match=r"bz2.*cannot be encoded.*/a, chunk.*again") as info:
            write.run(path, **({"encoding": encoding} if write is REPLACE else {}))
    assert info.value.store == path
    assert is_identical(read_or_none(path), OLD)
    write.run(path)
    assert is_identical(read_or_none(path), write.after)


class Snapshots(dict):
    """A dict that records its content after each change, and None after each sync."""

    def __init__(self, objects):
        super().__init__(objects)
        self.changes = []

    def __setitem__(self, key, data):
        super().__setitem__(key, data)
        self.changes.append(dict(self))

    def pop(self, key, default=None):
        result = super().pop(key, default)
        self.changes.append(dict(self))
        return result

    def __delitem__(self, key):
        self.pop(key)


class FlushedStore(MemoryStore):
    """A memory store that records each sync in its mapping."""

    def flush(self):
        self.mapping.changes.append(None)


def after_power_loss(before, changes, chance):
    """Yield states in which a power failure can leave the disk.

    All changes before the last sync are on the disk, and any of the changes after it may be.
    """
    kept, since = before, []
    for state in changes:
        if state is None:
            kept, since = since[-1] if since else kept, []
            continue
        since.append(state)
        yield kept
        for _ in range(4):
            objects, last = dict(kept), kept
            for item in since:
                if chance.random() < 0.5:
                    for key in item.keys() | last.keys():
                        if item.get(key) is None:
                            objects.pop(key, None)
                        elif item.get(key) != last.get(key):
                            objects[key] = item[key]
                last = item
            yield objects


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("write", [APPEND, REGION], ids=["append", "region"])
def test_power_failure_leaves_store_in_old_or_new_state(write, version):
    before = {}
    CREATE.run(before, zarr_format=version)
    whole = Snapshots(before)
    write.run(FlushedStore(whole), zarr_format=version)
    assert whole.changes.count(None) > 0
    states = list(after_power_loss(before, whole.changes, random.Random(0)))
    assert len(states) > 3
    for objects in states:
        left = read_or_none(objects)
        write.check(left)
        write.rerun(objects, left, zarr_format=version)
        assert objects == whole
