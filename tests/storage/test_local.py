"""Local files: failed reads and writes, and atomic replacement."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import xarray as xr

from tests.reading import open_store
from xr_nczarr import ConflictError, to_nczarr
from xr_nczarr.errors import (
    AccessDeniedError,
    LimitError,
    NotFoundError,
    RefusedError,
    StorageError,
)
from xr_nczarr.model import Limits
from xr_nczarr.storage import ByteRange, LocalStore, ZipStore, system
from xr_nczarr.storage.keys import name_collisions
from xr_nczarr.storage.system import Sync


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


def test_reading_non_regular_file_raises_storage_error(store: LocalStore) -> None:
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
                assert key == "socket" or "Restore the file" in str(caught.value)


def test_key_under_existing_object_is_treated_as_missing(store: LocalStore) -> None:
    store.put([("a", b"1")])
    assert fetch(store, "a/b") is None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_raises_access_denied_error(store: LocalStore) -> None:
    store.put([("a", b"1")])
    os.chmod(f"{store.root}/a", 0)
    with pytest.raises(AccessDeniedError):
        fetch(store, "a")


@pytest.mark.parametrize(
    ("number", "kind", "remedy"),
    [
        (errno.EACCES, AccessDeniedError, "Check the permissions"),
        (errno.EPERM, AccessDeniedError, "Check the permissions"),
        (errno.EROFS, AccessDeniedError, "Write to another"),
        (errno.EIO, StorageError, ""),
        (errno.ESTALE, StorageError, ""),
    ],
)
def test_disk_failures_are_not_treated_as_missing_objects(
    store: LocalStore,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    kind: type[Exception],
    remedy: str,
) -> None:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(kind, match=f"{os.strerror(number)}.*{remedy}") as caught:
        fetch(store, "a/0")
    assert (caught.value.key, caught.value.store) == ("a/0", store.root)


def test_reading_deleted_store_raises_not_found_error(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    store = open_store(tmp_path / "x")
    assert list(store.fetch(["a"])) == [None]
    (tmp_path / "x").rmdir()
    for action in (lambda: list(store.fetch(["a"])), lambda: store.list_names("")):
        with pytest.raises(NotFoundError, match="no longer exists"):
            action()


def test_file_above_size_limit_is_rejected_before_reading(store: LocalStore) -> None:
    with open(f"{store.root}/huge", "wb") as file:
        file.truncate(1 << 40)
    limited = open_store(store.root, limits=Limits(max_chunk_bytes=9, max_consolidated_bytes=9))
    for item in (store, limited):
        with pytest.raises(LimitError, match="1,099,511,627,776 bytes"):
            fetch(item, "huge")


def test_symlinks_pointing_outside_store_require_trust(store: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"1")
    os.symlink(tmp_path / "elsewhere", f"{store.root}/link")
    store.put([("inside", b"2")])
    os.symlink("inside", f"{store.root}/inner")
    assert fetch(store, "link") == b"1"
    strict = open_store(store.root, trusted=False)
    assert fetch(strict, "inner") == b"2"
    with pytest.raises(RefusedError, match="without trust"):
        fetch(strict, "link")


def test_broken_symlink_raises_storage_error(store: LocalStore, tmp_path: Path) -> None:
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
            with pytest.raises(StorageError, match="does not exist") as caught:
                action()
            assert caught.value.key == key
    assert fetch(store, "u/0") is None
    store.put([("0", b"1")])
    assert fetch(store, "0") == b"1"


def test_file_truncated_while_reading_raises_storage_error(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put([("a", b"12345678")])
    parts = iter([b"123", b""] * 2)
    monkeypatch.setattr(system, "pread", lambda *_: next(parts))
    for action in (
        lambda: fetch(store, "a"),
        lambda: list(store.fetch_ranges([ByteRange("a", 0, 8)])),
    ):
        with pytest.raises(StorageError, match="expected 8"):
            action()


@pytest.mark.parametrize("copying", ["by the kernel", "refused", "missing"])
@pytest.mark.parametrize("piece", [1 << 30, 1000], ids=["in one piece", "in several pieces"])
def test_files_can_be_copied_between_local_stores(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copying: str, piece: int
) -> None:
    copy_file_range = os.copy_file_range

    def copy(source: int, target: int, count: int) -> int:
        if copying == "refused":
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        return copy_file_range(source, target, min(count, piece))

    monkeypatch.setattr(os, "copy_file_range", copy)
    if copying == "missing":
        monkeypatch.delattr(os, "copy_file_range")
    monkeypatch.setattr(system, "_MAX_READ_BYTES", piece)
    objects = {"v/0": os.urandom(300_001), "v/1": b"", "w": b"w"}
    store.put(objects.items())
    target = LocalStore(str(tmp_path / "target"))
    keys = [("v/0", "v/c/0"), ("v/1", "v/c/1"), ("v/2", "v/c/2"), ("w", "w")]
    assert target.copy_from(store, keys) == [True, True, False, True]
    result = {key: fetch(target, key) for _, key in keys}
    assert result == {"v/c/0": objects["v/0"], "v/c/1": b"", "v/c/2": None, "w": b"w"}


def test_file_truncated_while_copying_is_not_stored(
    store: LocalStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put([("a", b"12345678")])
    target = LocalStore(str(tmp_path / "target"))
    measure = LocalStore._measure

    def cut_when_measured(store: LocalStore, descriptor: int, key: str) -> int:
        size = measure(store, descriptor, key)
        os.truncate(f"{store.root}/{key}", 3)
        return size

    monkeypatch.setattr(LocalStore, "_measure", cut_when_measured)
    with pytest.raises(StorageError, match="returned 3 bytes; expected 8"):
        target.copy_from(store, [("a", "b/a")])
    assert os.listdir(f"{target.root}/b") == []


def test_copying_rejects_directories_invalid_keys_and_large_files(
    store: LocalStore, tmp_path: Path
) -> None:
    store.put([("a", b"12345678"), ("folder/a", b"")])
    target = LocalStore(str(tmp_path / "target"))
    with pytest.raises(LimitError, match="8 bytes"):
        target.copy_from(store.bounded(7), [("a", "a")])
    with pytest.raises(StorageError, match="regular file"):
        target.copy_from(store, [("folder", "a")])
    for key in ("../a", "/a"):
        with pytest.raises(RefusedError, match="not a plain relative path"):
            target.copy_from(store, [("a", key)])
    assert not (tmp_path / "target").exists()


def test_byte_ranges_can_be_read_without_pread(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put([("a", b"12345678")])
    monkeypatch.setattr(system, "pread", system._read_from)
    ranges = [ByteRange("a", 5, 3), ByteRange("a", -8, 2), ByteRange("a", 2, 0)]
    assert list(store.fetch_ranges(ranges)) == [b"678", b"12", b""]
    assert fetch(store, "a") == b"12345678"


PREADV = [system.preadv, system._read_into_from]


@pytest.mark.parametrize("preadv", PREADV)
def test_object_can_be_fetched_into_buffer_of_same_size(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, preadv: Callable[..., int]
) -> None:
    monkeypatch.setattr(system, "preadv", preadv)
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


@pytest.mark.parametrize("preadv", PREADV)
def test_byte_ranges_can_be_fetched_into_buffers(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, preadv: Callable[..., int]
) -> None:
    monkeypatch.setattr(system, "preadv", preadv)
    store.put([("a", b"12345678")])
    buffers = [memoryview(bytearray(length)) for length in (3, 2, 0)]
    assert store.fetch_ranges_into("a", [(5, 3), (-8, 2), (2, 0)], buffers)
    assert list(map(bytes, buffers)) == [b"678", b"12", b""]
    assert not store.fetch_ranges_into("none", [(5, 3)], buffers[:1])
    with pytest.raises(
        StorageError, match="offset 6 with length 3 is out of bounds for an object of 8 bytes"
    ):
        store.fetch_ranges_into("a", [(6, 3)], buffers[:1])


def test_range_returned_in_pieces_is_read_completely(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put([("a", b"12345678")])
    monkeypatch.setattr(system, "preadv", lambda *_: 2)
    buffer = memoryview(bytearray(5))
    assert store.fetch_ranges_into("a", [(1, 5)], [buffer])
    assert bytes(buffer) == b"23456"


def test_failed_write_leaves_old_object_and_no_temporary_files(
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


def test_written_files_respect_umask_and_can_have_long_names(store: LocalStore) -> None:
    key = f"a/{'ü' * 120}"
    old = os.umask(0o027)
    try:
        store.put([(key, b"1")])
    finally:
        os.umask(old)
    assert stat.S_IMODE(os.stat(f"{store.root}/{key}").st_mode) == 0o640
    with store.lock(key):
        assert store.list_names("a/").objects == [key[2:]]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that collects synced files and directories, and ``*`` for a file system."""
    names: list[str] = []
    fsync, sync_filesystem = os.fsync, system.sync_filesystem

    def note_file(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        names.append("temporary" if path.endswith(".tmp") else os.path.basename(path))
        fsync(descriptor)

    def note_file_system(path: str) -> None:
        names.append("*")
        sync_filesystem(path)

    monkeypatch.setattr(os, "fsync", note_file)
    monkeypatch.setattr(system, "sync_filesystem", note_file_system)
    return names


EACH = ["temporary", "x.zarr", "b", "x.zarr", "temporary", "c", "*", "x.zarr"]


@pytest.mark.parametrize(
    ("sync", "syncfs", "expected"),
    [
        ("commit", True, ["*"]),
        ("commit", False, EACH),
        ("all", True, EACH),
        ("all", False, EACH),
        ("none", True, []),
        ("none", False, []),
    ],
)
def test_sync_option_determines_which_files_are_synced(
    store: LocalStore,
    monkeypatch: pytest.MonkeyPatch,
    synced: list[str],
    sync: Sync,
    syncfs: bool,
    expected: list[str],
) -> None:
    if not syncfs:
        monkeypatch.setattr(system, "_syncfs", None)
    store = LocalStore(store.root, sync)
    store.put([("a", b"1"), ("b/c/0", b"1")])
    store.flush()
    store.delete("a")
    assert synced == expected


@pytest.mark.parametrize("links", [True, False])
def test_staged_files_are_synced_individually_if_syncfs_is_unavailable(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, synced: list[str], links: bool
) -> None:
    store.put([("a/0", b"1")])
    monkeypatch.setattr(system, "_syncfs", None)
    if not links:
        monkeypatch.setattr(os, "link", refuse_links)
    staging = store.staging(empty=False)
    store.commit(staging)
    folder = os.path.basename(staging.root)
    copies = [] if links else ["0"]
    assert synced == [*copies, folder, "a", "*", os.path.basename(os.path.dirname(store.root))]


def test_failure_to_create_staged_copy_leaves_no_files(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store.put([("a", b"1"), ("b", b"2")])
    beside = sorted(os.listdir(os.path.dirname(store.root)))
    monkeypatch.setattr(os, "link", fail)
    monkeypatch.setattr(shutil, "copy2", fail)
    with pytest.raises(StorageError, match=r"cannot create .*/[ab]: .*No space left"):
        store.staging(empty=False)
    assert sorted(os.listdir(os.path.dirname(store.root))) == beside


def refuse_links(*_: object) -> None:
    raise OSError(errno.EPERM, os.strerror(errno.EPERM))


def test_zip_file_is_synced_before_rename(tmp_path: Path, synced: list[str]) -> None:
    for sync in ("commit", "none"):
        store = ZipStore(LocalStore(str(tmp_path), sync), "x.zip")
        with store.atomic_replacement(empty=True) as new:
            new.put([("a", b"1")])
            new.flush()
    assert synced == ["temporary", tmp_path.name]


def test_flushing_store_syncs_whole_file_system(store: LocalStore) -> None:
    store.flush()
    with pytest.raises(FileNotFoundError):
        system.sync_filesystem(f"{store.root}/none")


def test_flushing_store_empties_drive_cache_on_macos(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    results = [0, errno.ENOTSUP, errno.EIO]

    def fcntl(descriptor: int, command: int) -> None:
        assert os.path.samestat(os.fstat(descriptor), os.stat(store.root))
        calls.append(command)
        if results[len(calls) - 1]:
            raise OSError(results[len(calls) - 1], "")

    monkeypatch.setattr(system, "_syncfs", None)
    monkeypatch.setattr(system, "_FULL_SYNC", 51)
    monkeypatch.setattr(system, "_fcntl", SimpleNamespace(fcntl=fcntl))
    store.flush()
    store.flush()  # the second result imitates a file system that does not support the call
    with pytest.raises(StorageError):
        store.flush()
    assert calls == [51, 51, 51]


def test_directories_are_exchanged_atomically_on_macos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renameat2 = system._renameat2

    def renamex_np(one: bytes, other: bytes, flags: int) -> int:
        assert flags == 2  # RENAME_SWAP
        return int(renameat2(-100, one, -100, other, 2))

    monkeypatch.setattr(system, "_renameat2", None)
    assert not system.exchange(str(tmp_path / "one"), str(tmp_path / "other"))
    monkeypatch.setattr(system, "_renamex_np", renamex_np)
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"of {name}").touch()
    assert system.exchange(str(tmp_path / "one"), str(tmp_path / "other"))
    assert os.listdir(tmp_path / "one") == ["of other"]
    assert not system.exchange(str(tmp_path / "one"), str(tmp_path / "none"))


@pytest.mark.parametrize("exchange", [True, False])
@pytest.mark.parametrize("there", ["nothing", "store", "link", "file"])
def test_staged_store_replaces_any_existing_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool, there: str
) -> None:
    if not exchange:
        monkeypatch.setattr(system, "exchange", lambda *_: False)
    target = LocalStore(str(tmp_path / "x"))
    if there == "file":
        (tmp_path / "x").write_bytes(b"")
    elif there != "nothing":
        real = LocalStore(str(tmp_path / ("real" if there == "link" else "x")))
        real.put([("old", b"1")])
        os.chmod(real.root, 0o750)
        if there == "link":
            os.symlink("real", target.root)
    staging = target.staging(empty=True)
    staging.put([("a/new", b"2")])
    if there in ("store", "link"):
        assert fetch(target, "old") == b"1"
    target.commit(staging)
    assert [fetch(target, key) for key in ("old", "a/new")] == [None, b"2"]
    assert sorted(os.listdir(tmp_path)) == (["real", "x"] if there == "link" else ["x"])
    if there in ("store", "link"):
        assert stat.S_IMODE(os.stat(target.root).st_mode) == 0o750


def test_failed_replacement_restores_old_store(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put([("old", b"1")])
    staging = store.staging(empty=True)
    rename = os.rename

    def fail_once(source: str, target: str) -> None:
        if source == staging.root:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        rename(source, target)

    monkeypatch.setattr(system, "exchange", lambda *_: False)
    monkeypatch.setattr(os, "rename", fail_once)
    with pytest.raises(StorageError):
        store.commit(staging)
    assert fetch(store, "old") == b"1"
    staging.discard()
    assert os.listdir(os.path.dirname(store.root)) == [os.path.basename(store.root)]


def test_lock_excludes_other_threads(store: LocalStore) -> None:
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


def test_lock_excludes_other_processes(store: LocalStore) -> None:
    store.put([("a/0", b"0")])
    workers = [subprocess.Popen([sys.executable, "-c", ADD, store.root]) for _ in range(2)]
    assert [worker.wait(60) for worker in workers] == [0, 0]
    assert fetch(store, "a/0") == b"200"
    assert hidden_files(store.root) == []


def test_locks_exclude_other_threads_if_file_locks_are_unavailable(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system, "_fcntl", None)
    test_lock_excludes_other_threads(store)


def test_error_raised_while_holding_lock_propagates_unchanged(store: LocalStore) -> None:
    with pytest.raises(FileNotFoundError, match="mine") as caught, store.lock("a"):
        raise FileNotFoundError("mine")
    assert type(caught.value) is FileNotFoundError


@pytest.mark.parametrize("name", ["store", "store.zip"])
def test_errors_refer_to_target_store_instead_of_staged_copy(tmp_path: Path, name: str) -> None:
    store = open_store(tmp_path / name, must_exist=False)
    with pytest.raises(RefusedError) as info, store.atomic_replacement(empty=True) as staging:
        staging.put([("a/../b", b"")])
    assert info.value.store == store.name


@pytest.mark.parametrize(
    ("new", "there", "alike"),
    [
        (["a/.zarray", "A/.zarray"], [], [("A/.zarray", "", "A", "a")]),
        (["a/.zarray", "a/.zattrs"], ["a/.zgroup", ".zgroup"], []),
        (["A/b/c", "A/b/d"], ["a/.zgroup"], [("A/b/c", "", "A", "a")]),
        (["g/a", "h/A"], ["A"], []),
        (["g/a"], ["x/1", "X/1"], []),
        (["zarr.JSON/0"], ["zarr.json"], [("zarr.JSON/0", "", "zarr.JSON", "zarr.json")]),
        (["\u00e9"], ["e\u0301"], [("\u00e9", "", "\u00e9", "e\u0301")]),
        (["g/straße"], ["g/STRASSE"], [("g/straße", "g", "straße", "STRASSE")]),
        ([], ["a", "A"], []),
    ],
    ids=["new", "same", "folder", "elsewhere", "others", "document", "accent", "sharp s", "none"],
)
def test_indistinguishable_names_are_detected(
    new: list[str], there: list[str], alike: list[tuple[str, ...]]
) -> None:
    assert list(name_collisions(new, there)) == alike


def test_name_comparison_agrees_with_file_system(tmp_path: Path) -> None:
    for first, second in (("a", "A"), ("x" * 300 + "a", "x" * 300 + "A"), ("é", "e\u0301")):
        # on the file system of this machine
        (tmp_path / first[-9:]).touch()
        same = (tmp_path / second[-9:]).exists()
        assert system.are_same_name(str(tmp_path), first, second) == same
        (tmp_path / first[-9:]).unlink()
    assert system.are_same_name(str(tmp_path), "a", "a")
    assert os.listdir(tmp_path) == []


def test_indistinguishable_names_are_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = xr.Dataset({"a": ("x", [1]), "A": ("x", [2])})
    if not system.are_same_name(str(tmp_path), "a", "A"):
        to_nczarr(both, tmp_path / "sensitive")
        xr.testing.assert_identical(xr.load_dataset(tmp_path / "sensitive", engine="nczarr"), both)
    to_nczarr(both[["a"]], tmp_path / "store")
    before = sorted(os.walk(tmp_path))
    # as on the usual file systems of macOS
    monkeypatch.setattr(system, "are_same_name", lambda *_: True)
    for data, target, mode in (
        (both, tmp_path / "new" / "store", "w-"),
        (both, tmp_path / "new.zip", "w-"),
        (both, tmp_path / "store", "w"),
        (both[["A"]], tmp_path / "store", "a"),
    ):
        with pytest.raises(ConflictError, match="does not distinguish 'A' from 'a'") as caught:
            to_nczarr(data, target, mode=mode)
        assert (caught.value.variable, caught.value.key) == ("/A", "A/.zarray")
    assert sorted(os.walk(tmp_path)) == before
    to_nczarr(both[["A"]], tmp_path / "store", mode="w")


def test_paths_are_compared_by_whole_components(tmp_path: Path) -> None:
    folder = str(tmp_path / "a")
    os.makedirs(f"{folder}/b")
    os.symlink(folder, tmp_path / "link")
    for path in (folder, f"{folder}/b", f"{folder}/none", f"{tmp_path}/link/b"):
        assert system.is_inside(path, folder)
        assert system.is_inside(path, "/")
        assert system.is_inside(path, str(tmp_path / "link"))
    for path in (f"{folder}b", f"{folder}/../c", str(tmp_path)):
        assert not system.is_inside(path, folder)


def test_file_identity_is_same_for_directory_and_symlink_to_it(tmp_path: Path) -> None:
    folder, link = str(tmp_path / "a"), str(tmp_path / "link")
    os.makedirs(f"{folder}/b")
    os.symlink(folder, link)
    assert system.file_identity(folder) == system.file_identity(link)
    assert system.file_identity(f"{folder}/none") == system.file_identity(f"{link}/none")
    assert system.file_identity(folder) != system.file_identity(f"{folder}/b")
    assert system.file_identity(folder) != system.file_identity(f"{folder}/none")


def test_discarded_staging_store_is_removed_despite_late_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = open_store(tmp_path / "s", must_exist=False).staging(empty=True)
    staging.put([("a/0", b"1")])
    remove, late = shutil.rmtree, [f"{staging.root}/late"]

    def remove_while_a_worker_writes(root: str, **options: Any) -> None:
        remove(root, **options)
        while late:
            os.makedirs(root)
            Path(late.pop()).touch()

    monkeypatch.setattr(shutil, "rmtree", remove_while_a_worker_writes)
    staging.discard()
    assert not os.listdir(tmp_path)
