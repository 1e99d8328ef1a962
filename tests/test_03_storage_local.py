"""Plain files: what may go wrong with them, and how they are replaced."""

from __future__ import annotations

import errno
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from xr_nczarr.errors import (
    AccessDeniedError,
    LimitError,
    NotFoundError,
    RefusedError,
    StorageError,
    UnsupportedError,
)
from xr_nczarr.model import Limits
from xr_nczarr.storage import ByteRange, LocalStore, in_one_step, local, open_store, replacing


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    root = tmp_path / "x.zarr"
    root.mkdir()
    return LocalStore(str(root))


def fetch(store: LocalStore, key: str) -> bytes | None:
    (data,) = store.fetch([key])
    return data


def hidden_files(path: str) -> list[str]:
    return [name for _, _, names in os.walk(path) for name in names if name.startswith(".")]


def test_a_pipe_a_device_a_socket_and_a_directory_are_errors_and_no_hang(store: LocalStore) -> None:
    os.mkfifo(f"{store.root}/pipe")
    os.symlink("/dev/zero", f"{store.root}/device")
    os.mkdir(f"{store.root}/directory")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{store.root}/socket"[-100:])
        for key in ("pipe", "device", "directory", "socket"):
            for action in (
                lambda key=key: fetch(store, key),
                lambda key=key: list(store.fetch_ranges([ByteRange(key, 0, 1)])),
                lambda key=key: store.fetch_into(key, memoryview(bytearray(1))),
                lambda key=key: store.fetch_ranges_into(key, [(0, 1)], [memoryview(bytearray(1))]),
            ):
                with pytest.raises(StorageError) as caught:
                    action()
                assert caught.value.key == key


def test_a_key_below_an_object_is_absent(store: LocalStore) -> None:
    store.put([("a", b"1")])
    assert fetch(store, "a/b") is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_an_error_in_truth(store: LocalStore) -> None:
    store.put([("a", b"1")])
    os.chmod(f"{store.root}/a", 0)
    with pytest.raises(AccessDeniedError):
        fetch(store, "a")


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EACCES, AccessDeniedError), (errno.EIO, StorageError), (errno.ESTALE, StorageError)],
)
def test_a_failure_of_the_disk_is_an_error_and_not_absence(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(kind, match=os.strerror(number)) as caught:
        fetch(store, "a/0")
    assert (caught.value.key, caught.value.store) == ("a/0", store.root)


def test_a_store_that_vanishes_is_not_all_missing(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    store = open_store(tmp_path / "x")
    assert list(store.fetch(["a"])) == [None]
    (tmp_path / "x").rmdir()
    for action in (lambda: list(store.fetch(["a"])), lambda: store.list_names("")):
        with pytest.raises(NotFoundError, match="no longer there"):
            action()


def test_a_file_above_the_limit_is_refused_before_it_is_read(store: LocalStore) -> None:
    with open(f"{store.root}/huge", "wb") as file:
        file.truncate(1 << 40)
    limited = open_store(store.root, limits=Limits(max_chunk_bytes=9, max_consolidated_bytes=9))
    for one in (store, limited):
        with pytest.raises(LimitError, match="1,099,511,627,776 bytes"):
            fetch(one, "huge")


def test_links_out_of_the_store_are_followed_unless_told_otherwise(
    store: LocalStore, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").write_bytes(b"1")
    os.symlink(tmp_path / "elsewhere", f"{store.root}/link")
    store.put([("inside", b"2")])
    os.symlink("inside", f"{store.root}/inner")
    assert fetch(store, "link") == b"1"
    strict = open_store(store.root, follow_symlinks=False)
    assert fetch(strict, "inner") == b"2"
    with pytest.raises(RefusedError, match="follow_symlinks=True"):
        fetch(strict, "link")


def test_a_link_to_nothing_is_an_error_and_not_absent(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    for link, target in (("0", "gone"), ("t", "not_mounted"), ("u", "disk")):
        os.symlink(tmp_path / target, f"{store.root}/{link}")
    for key in ("0", "t/0.0", "t/sub/0"):
        for action in (
            lambda key=key: fetch(store, key),
            lambda key=key: list(store.fetch_ranges([ByteRange(key, 0, 1)])),
            lambda key=key: store.fetch_into(key, memoryview(bytearray(1))),
            lambda key=key: store.size(key),
        ):
            with pytest.raises(StorageError, match="leads to nothing") as caught:
                action()
            assert caught.value.key == key
    assert fetch(store, "u/0") is None
    store.put([("0", b"1")])
    assert fetch(store, "0") == b"1"


def test_a_file_cut_while_it_is_read_is_an_error(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put([("a", b"12345678")])
    parts = iter([b"123", b""] * 2)
    monkeypatch.setattr(local, "_pread", lambda *_: next(parts))
    for action in (
        lambda: fetch(store, "a"),
        lambda: list(store.fetch_ranges([ByteRange("a", 0, 8)])),
    ):
        with pytest.raises(StorageError, match="expected 8 bytes, got"):
            action()


def test_ranges_are_read_where_the_system_has_no_pread(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put([("a", b"12345678")])
    monkeypatch.setattr(local, "_pread", local._read_from)
    ranges = [ByteRange("a", 5, 3), ByteRange("a", -8, 2), ByteRange("a", 2, 0)]
    assert list(store.fetch_ranges(ranges)) == [b"678", b"12", b""]
    assert fetch(store, "a") == b"12345678"


def test_a_whole_chunk_is_read_into_a_buffer_of_its_size_only(store: LocalStore) -> None:
    store.put([("a", b"12345678"), ("empty", b"")])
    buffer = bytearray(8)
    assert store.fetch_into("a", memoryview(buffer)) == 8
    assert bytes(buffer) == b"12345678"
    for size in (7, 9):
        other = bytearray(size)
        assert store.fetch_into("a", memoryview(other)) == 8
    assert store.fetch_into("none", memoryview(buffer)) is None
    assert store.fetch_into("empty", memoryview(bytearray(0))) == 0
    matrix = memoryview(bytearray(8)).cast("h", (2, 2))
    assert store.fetch_into("a", matrix) == 8
    assert matrix.tobytes() == b"12345678"


@pytest.mark.parametrize("pread", [local._pread_into, local._read_into_from])
def test_ranges_are_read_into_buffers(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, pread: Callable[..., int]
) -> None:
    monkeypatch.setattr(local, "_pread_into", pread)
    store.put([("a", b"12345678")])
    buffers = [memoryview(bytearray(length)) for length in (3, 2, 0)]
    assert store.fetch_ranges_into("a", [(5, 3), (-8, 2), (2, 0)], buffers)
    assert list(map(bytes, buffers)) == [b"678", b"12", b""]
    assert not store.fetch_ranges_into("none", [(5, 3)], buffers[:1])
    with pytest.raises(StorageError, match="the object has 8 bytes, 3 bytes from 6 were expected"):
        store.fetch_ranges_into("a", [(6, 3)], buffers[:1])


def test_a_range_that_the_system_gives_in_pieces_is_read_to_its_end(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put([("a", b"12345678")])
    monkeypatch.setattr(local, "_pread_into", lambda *_: 2)
    buffer = memoryview(bytearray(5))
    assert store.fetch_ranges_into("a", [(1, 5)], [buffer])
    assert bytes(buffer) == b"23456"


def test_a_failed_write_leaves_the_old_object_and_nothing_else(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put([("a/0", b"old")])

    def fail(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("write", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fail)
            with pytest.raises(StorageError, match="No space left") as caught:
                store.put([("a/0", b"new")])
        assert caught.value.key == "a/0"
        assert fetch(store, "a/0") == b"old"
        assert hidden_files(store.root) == []


def test_written_files_honour_the_umask_and_long_names_fit(store: LocalStore) -> None:
    key = f"a/{'ü' * 120}"
    old = os.umask(0o027)
    try:
        store.put([(key, b"1")])
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(f"{store.root}/{key}").st_mode) == 0o640
    with store.lock(key):
        assert store.list_names("a/").objects == [key[2:]]


@pytest.mark.parametrize("sync", ["commit", "all", "none"])
def test_what_is_forced_to_the_disk_follows_sync(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    calls: list[str] = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("fsync"), fsync(fd))[1])
    monkeypatch.setattr("xr_nczarr.storage.local.sync_filesystem", lambda _: calls.append("syncfs"))
    store = LocalStore(store.root, sync)
    store.put([("a", b"1")])
    store.flush()
    assert (
        calls
        == {
            "commit": ["syncfs"],
            "all": ["fsync", "fsync", "syncfs"],
            "none": [],
        }[sync]
    )


def test_the_file_system_is_really_flushed(store: LocalStore) -> None:
    store.flush()
    with pytest.raises(FileNotFoundError):
        replacing.sync_filesystem(f"{store.root}/none")


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("there", ["nothing", "store", "link", "file"])
def test_a_staged_store_takes_the_place_of_whatever_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool, there: str
) -> None:
    if not exchange:
        monkeypatch.setattr(replacing, "_exchange", lambda *_: False)
    target = LocalStore(str(tmp_path / "x"))
    if there == "file":
        (tmp_path / "x").write_bytes(b"")
    elif there != "nothing":
        real = LocalStore(str(tmp_path / ("real" if there == "link" else "x")))
        real.put([("old", b"1")])
        os.chmod(real.root, 0o750)
        if there == "link":
            os.symlink("real", target.root)
    staging = target.staging()
    staging.put([("a/new", b"2")])
    if there in ("store", "link"):
        assert fetch(target, "old") == b"1"
    target.commit(staging)
    assert [fetch(target, key) for key in ("old", "a/new")] == [None, b"2"]
    assert sorted(os.listdir(tmp_path)) == (["real", "x"] if there == "link" else ["x"])
    if there in ("store", "link"):
        assert stat.S_IMODE(os.stat(target.root).st_mode) == 0o750


def test_a_replacement_that_fails_half_way_brings_the_old_store_back(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put([("old", b"1")])
    staging = store.staging()
    rename = os.rename

    def fail_once(source: str, target: str) -> None:
        if source == staging.root:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    monkeypatch.setattr(replacing, "_exchange", lambda *_: False)
    monkeypatch.setattr(os, "rename", fail_once)
    with pytest.raises(StorageError):
        store.commit(staging)
    assert fetch(store, "old") == b"1"
    staging.discard()
    assert os.listdir(os.path.dirname(store.root)) == [os.path.basename(store.root)]


def test_a_lock_excludes_threads(store: LocalStore) -> None:
    store.put([("a/0", b"0")])

    def add() -> None:
        for _ in range(25):
            with store.lock("a/0"):
                store.put([("a/0", str(int(fetch(store, "a/0")) + 1).encode())])

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fetch(store, "a/0") == b"100"
    assert hidden_files(store.root) == []


ADD = """
import sys
from xr_nczarr.storage import LocalStore
store = LocalStore(sys.argv[1])
for _ in range(100):
    with store.lock("a/0"):
        (data,) = store.fetch(["a/0"])
        store.put([("a/0", str(int(data) + 1).encode())])
"""


def test_a_lock_excludes_processes(store: LocalStore) -> None:
    store.put([("a/0", b"0")])
    workers = [subprocess.Popen([sys.executable, "-c", ADD, store.root]) for _ in range(2)]
    assert [worker.wait(60) for worker in workers] == [0, 0]
    assert fetch(store, "a/0") == b"200"
    assert hidden_files(store.root) == []


def test_without_locks_of_the_system_a_partial_write_is_refused(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with pytest.raises(UnsupportedError, match="safe_chunks=False"), store.lock("a"):
        pass


def test_an_error_inside_a_lock_stays_what_it_is(store: LocalStore) -> None:
    with pytest.raises(FileNotFoundError, match="mine") as caught, store.lock("a"):
        raise FileNotFoundError("mine")
    assert type(caught.value) is FileNotFoundError


@pytest.mark.parametrize("name", ["store", "store.zip"])
def test_an_error_names_the_store_and_not_what_is_to_take_its_place(
    tmp_path: Path, name: str
) -> None:
    store = open_store(tmp_path / name, must_exist=False)
    with pytest.raises(RefusedError) as info, in_one_step(store, empty=True) as staging:
        staging.put([("a/../b", b"")])
    assert info.value.store == store.name
