"""Many readers, repeated opening, large data, full disks and missing permissions."""

import contextlib
import gc
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import xarray as xr

from tests.processes import in_a_new_interpreter
from tests.stores import array_document
from xr_nczarr import NczarrError, StorageError, copy, to_nczarr

VIRTUAL_GB = float(os.environ.get("NCZARR_VIRTUAL_GB", "0.2"))
OPENINGS = int(os.environ.get("NCZARR_OPENINGS", "100"))


def values(rows=40):
    field = np.arange(rows * 50.0).reshape(rows, 50)
    return xr.Dataset({"a": (("y", "x"), field)}, {"y": np.arange(rows)})


def resources():
    """Return the number of threads, and the files and sockets that are open."""
    listing, result = f"/proc/{os.getpid()}/fd", []
    for name in os.listdir(listing):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            result.append(os.readlink(f"{listing}/{name}"))
    # distributed's monitor, a thread of another test, also reads this directory.
    return threading.active_count(), sorted(
        item for item in result if not item.startswith("/proc/")
    )


def test_one_hundred_threads_read_correct_values_and_leak_no_resources(tmp_path):
    path = str(tmp_path / "s")
    to_nczarr(values(), path, encoding={"a": {"chunks": (4, 10)}})
    before = resources()
    with xr.open_dataset(path, engine="nczarr", cache=False) as dataset:

        def read(number):
            return dataset.a[number % 40].values.sum(), dataset.a[:, number % 50].values.sum()

        with ThreadPoolExecutor(100) as pool:
            result = list(pool.map(read, range(400)))
    field = values().a.values
    assert result == [(field[n % 40].sum(), field[:, n % 50].sum()) for n in range(400)]
    threads, files = resources()  # threads of other tests may have ended
    assert (threads <= before[0], len(files) <= len(before[1])) == (True, True), (files, before)


@pytest.mark.parametrize("place", ["local", "http"])
def test_repeatedly_opening_and_closing_dataset_leaks_no_resources(tmp_path, http_server, place):
    path = f"{http_server.root}/s"
    to_nczarr(values(), path)
    url = path if place == "local" else f"{http_server.url}/s"

    def run(count):
        for _ in range(count):
            with xr.open_dataset(url, engine="nczarr") as dataset:
                assert dataset.a[3, 3] == 153

    run(20)
    gc.collect()
    before = resources()
    tracemalloc.start()
    try:
        grown, _ = tracemalloc.get_traced_memory()
        run(OPENINGS if place == "local" else OPENINGS // 4)
        http_server.requests.clear()
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - grown
    finally:
        tracemalloc.stop()
    threads, files = resources()
    assert threads <= before[0] + (0 if place == "local" else 4)  # connection threads of the server
    assert len(files) <= len(before[1]) + (0 if place == "local" else 4)
    assert grown < 2 << 20


STREAM = r"""
import re, sys
import xarray as xr
with xr.open_dataset(sys.argv[1], engine="nczarr", chunks={}) as dataset:
    total = dataset.a.sum(dtype="int64").compute(scheduler="threads", num_workers=2)
# Not ru_maxrss: it begins at that of the process that started this one.
peak = re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1]
print(int(total), dataset.a.nbytes, int(peak) * 1024)
"""


def test_streaming_virtual_dataset_uses_less_than_one_gib_of_memory(tmp_path):
    """Every chunk refers to the same part of one file. `NCZARR_VIRTUAL_GB=20` sets the size."""
    chunk, count = 16 << 20, max(2, int(VIRTUAL_GB * 1e9) // (16 << 20))
    np.full(chunk // 4, 3, "<i4").tofile(tmp_path / "data.bin")
    array = array_document([count * chunk // 4], chunks=[chunk // 4], fill_value=0)
    generator = {
        "key": "a/{{i}}",
        "url": "data.bin",
        "offset": "0",
        "length": str(chunk),
        "dimensions": {"i": {"stop": count}},
    }
    inline = {".zgroup": {"zarr_format": 2}, "a/.zarray": array}
    inline["a/.zattrs"] = {"_ARRAY_DIMENSIONS": ["x"]}
    references = {key: json.dumps(value) for key, value in inline.items()}
    (tmp_path / "s.json").write_text(
        json.dumps({"version": 1, "gen": [generator], "refs": references})
    )
    done = subprocess.run(
        [sys.executable, "-c", STREAM, str(tmp_path / "s.json")],
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    total, size, peak = map(int, done.stdout.split())
    assert (total, size) == (3 * count * chunk // 4, count * chunk)
    assert peak < 1 << 30


@contextmanager
def limited_files(size):
    """Limit files to `size` bytes, so that a write fails midway, as on a full disk."""
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)


@pytest.mark.parametrize("size", [0, 100, 2000])
def test_full_disk_leaves_old_store_intact(tmp_path, size):
    path = str(tmp_path / "s")
    to_nczarr(values(), path)
    with limited_files(size), pytest.raises(StorageError, match="File too large"):
        to_nczarr(values(80), path, mode="w", encoding={"a": {"compressor": None}})
    with xr.open_dataset(path, engine="nczarr") as opened:
        xr.testing.assert_identical(opened.load(), values())
    to_nczarr(values(80), path, mode="w")
    assert sorted(os.listdir(tmp_path)) == ["s"]


def write_without_permission():
    """Replace, append and read without permission. First, root switches to the user nobody."""
    result = []
    for nobody in (False, True):  # the first pass imports modules as root
        if nobody and os.geteuid() == 0:
            os.setuid(65534)
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/s"
            to_nczarr(values(), path, unlimited_dims="y")
            for locked in (folder, path, f"{path}/a") if nobody else ():
                os.chmod(locked, 0o500)
            for action in ({"mode": "w"}, {"append_dim": "y", "allow_duplicates": True}):
                try:
                    to_nczarr(values(), path, **action)
                except PermissionError as error:
                    result.append((isinstance(error, NczarrError), folder in str(error)))
            with xr.open_dataset(path, engine="nczarr") as dataset:
                if nobody:
                    xr.testing.assert_identical(dataset.load(), values())
                    os.chmod(f"{path}/a/.zarray", 0)
            for locked in (folder, path, f"{path}/a"):
                os.chmod(locked, 0o700)
            try:
                xr.open_dataset(path, engine="nczarr", consolidated=False).close()
            except PermissionError as error:
                result.append((isinstance(error, NczarrError), "a/.zarray" in str(error)))
    return result


def copy_without_permission():
    """Copy an unreadable zip file and directory. First, root switches to the user nobody."""
    result = []
    for nobody in (False, True):
        if nobody and os.geteuid() == 0:
            os.setuid(65534)
        with tempfile.TemporaryDirectory() as folder:
            for name, locked in (("s", "s/a"), ("s.zip", "s.zip")):
                to_nczarr(values(), f"{folder}/{name}")
                os.chmod(f"{folder}/{locked}", 0 if nobody else 0o700)
                try:
                    copy(f"{folder}/{name}", {})
                except PermissionError as error:
                    result.append(
                        (isinstance(error, NczarrError), f"{folder}/{name}" in str(error))
                    )
                os.chmod(f"{folder}/{locked}", 0o700)
    return result


def test_unreadable_source_raises_access_denied_error():
    assert in_a_new_interpreter(copy_without_permission) == 2 * [(True, True)]


def test_write_without_permission_changes_nothing():
    assert in_a_new_interpreter(write_without_permission) == 3 * [(True, True)]
