"""Stores on Windows and on systems without some system calls: see `tests.windows`.

Functions with a leading underscore run in a process that simulates Windows.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr

from tests.processes import in_a_new_interpreter
from tests.stores import array_document
from tests.windows import POSIX_ONLY, on_windows, take_away


def values(start: int, stop: int) -> xr.Dataset:
    n = np.arange(start, stop)
    return xr.Dataset({"a": (("t", "x"), n[:, None] * 10.0 + np.arange(6))}, {"t": n})


def opened(path: str, **options: Any) -> xr.Dataset:
    with xr.open_dataset(path, engine="nczarr", **options) as dataset:
        return dataset.load()


ENCODING = {"a": {"chunks": (4, 3)}, "t": {"chunks": (64,)}}


def write_in_every_way(folder: str, zarr_format: int) -> None:
    """Create, append to, change and replace stores. Check that no other files remain."""
    from xr_nczarr import copy, to_nczarr

    options: dict[str, Any] = {"encoding": ENCODING, "zarr_format": zarr_format}
    for name, atomic in (("store", False), ("whole", True), ("store.zip", False)):
        path = os.path.join(folder, name)
        to_nczarr(values(0, 6), path, unlimited_dims="t", **options)
        to_nczarr(values(6, 9), path, append_dim="t", atomic=atomic)
        xr.testing.assert_identical(opened(path), values(0, 9))
        part = (-values(3, 5)).drop_vars("t").chunk(t=1)
        to_nczarr(part, path, region={"t": slice(3, 5)}, safe_chunks=False)
        expected = values(0, 9)
        expected.a[3:5] *= -1
        xr.testing.assert_identical(opened(path, chunks={}).compute(), expected)
        to_nczarr(xr.Dataset({"b": ("y", [1, 2])}), path, mode="a", atomic=atomic)
        assert set(opened(path).variables) == {"a", "t", "b"}
        to_nczarr(values(0, 2), path, mode="w", **options)
        xr.testing.assert_identical(opened(path), values(0, 2))
        copy(path, os.path.join(folder, f"copy of {name}"))
        xr.testing.assert_identical(opened(os.path.join(folder, f"copy of {name}")), values(0, 2))
    names = {"store", "whole", "store.zip"}
    assert {*os.listdir(folder)} == names | {f"copy of {name}" for name in names}
    assert not [
        name for _, _, result in os.walk(folder) for name in result if name.endswith(".lock")
    ]


# ---- Without one or all system calls of POSIX

C_FUNCTIONS = ("renameat2", "syncfs", "sync_file_range")


def _without(folder: str, *names: str) -> None:
    take_away(*names)
    write_in_every_way(folder, 2)


@pytest.mark.parametrize(
    "names",
    [
        *[(name,) for name in ("fcntl", "pread", "preadv", *C_FUNCTIONS)],
        ("fcntl", *POSIX_ONLY, *C_FUNCTIONS),
    ],
    ids=lambda names: names[0] if len(names) == 1 else "all",
)
def test_stores_can_be_written_without_optional_system_calls(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    in_a_new_interpreter(_without, str(tmp_path), *names)


# ---- On Windows


def _write_in_every_way(zarr_format: int) -> None:
    os.mkdir(r"C:\data")
    write_in_every_way(r"C:\data", zarr_format)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_all_write_modes_work(tmp_path: Path, zarr_format: int) -> None:
    on_windows(tmp_path / "c", _write_in_every_way, zarr_format)


def _paths() -> None:
    from xr_nczarr.storage import Location, parse_target

    for text, url in {
        r"C:\data\x.zarr": "C:/data/x.zarr",
        "C:/data/x.zarr": "C:/data/x.zarr",
        "file:///C:/data/x.zarr": "C:/data/x.zarr",
        "file:///C:/data/a%20b": "C:/data/a b",
        "file://localhost/C:/data/x.zarr": "C:/data/x.zarr",
        "file://C:/data/x.zarr": "C:/data/x.zarr",
        "file:C:/data/x.zarr": "C:/data/x.zarr",
        r"file:///C:\data\x.zarr": "C:/data/x.zarr",
        r"data\x.zarr": "C:/work/data/x.zarr",
        "/data/x.zarr": "C:/data/x.zarr",
    }.items():
        location = parse_target(text)
        assert (location, location.path) == (Location(url), url)
        assert parse_target(f"{text}#mode=nczarr,file") == Location(url, "file", "nczarr")
    assert parse_target("s3://bucket/x").path is None


def test_drive_paths_and_file_urls_are_local(tmp_path: Path) -> None:
    on_windows(tmp_path / "c", _paths)


def _shares() -> None:
    from xr_nczarr.references.targets import Targets
    from xr_nczarr.storage.url import is_rooted, local_path

    for text in (r"\\server\share\a.nc", "//server/share/a.nc", "file:////server/share/a.nc"):
        assert local_path(text) == "//server/share/a.nc"
    assert is_rooted(r"\\server\share\a.nc")
    place, key = Targets("C:/sets/refs.json").locate(r"\\server\share\a.nc")
    assert (place, key) == ("//server/share", "a.nc")


def test_network_shares_are_separate_locations(tmp_path: Path) -> None:
    on_windows(tmp_path / "c", _shares)


def _untrusted_references() -> None:
    from xr_nczarr.errors import RefusedError
    from xr_nczarr.references.targets import ReferenceTrust

    os.makedirs(r"C:\sets\deep")
    allowed = (r"D:\more", r"\\server\allowed")
    for document in (r"C:\sets\refs.json", "C:/sets/refs.json", "file:///C:/sets/refs.json"):
        trust = ReferenceTrust(allow=allowed).for_untrusted(document)
        for url in (
            "C:/sets/a.nc",
            r"C:\sets\deep\a.nc",
            r"c:\SETS\a.nc",
            "file:///C:/sets/a.nc",
            "D:/more/a.nc",
        ):
            trust.check(url)
        for url in (
            "s3://anything/at/all",
            "https://example.org/a.nc",
            r"C:\secret.nc",
            "C:/sets/../secret.nc",
            r"C:\sets\..\secret.nc",
            "file:///C:/secret.nc",
            r"C:\sets-of-others\a.nc",
            r"D:\sets\a.nc",
            r"\\server\share\a.nc",
            "//server/share/a.nc",
            "file:////server/share/a.nc",
            r"\\.\PhysicalDrive0",
            r"C:\sets\NUL",
            "C:/sets/con.nc",
            "C:/sets/a.nc:stream",
            "zip://a::file:////server/share/a.zip",
        ):
            try:
                trust.check(url)
            except RefusedError:
                continue
            raise AssertionError(f"{url} is allowed for {document}")
    ReferenceTrust().for_untrusted("C:/refs.json").check("C:/a.nc")


def test_untrusted_reference_sets_can_reference_only_their_folder(
    tmp_path: Path,
) -> None:
    on_windows(tmp_path / "c", _untrusted_references)


def _references() -> None:
    import xr_nczarr
    from xr_nczarr.errors import RefusedError
    from xr_nczarr.references.targets import Targets, absolute_url

    for url, expected in {
        r"C:\data\a.nc": "C:/data/a.nc",
        "D:/data/a.nc": "D:/data/a.nc",
        r"data\a.nc": "C:/sets/data/a.nc",
        r"..\a.nc": "C:/a.nc",
        r"\data\a.nc": "C:/data/a.nc",
        "/data/a.nc": "C:/data/a.nc",
        r"\\server\share\a.nc": "//server/share/a.nc",
        "s3://bucket/a.nc": "s3://bucket/a.nc",
    }.items():
        assert absolute_url(url, "C:/sets/refs.json") == expected
    assert absolute_url("a.nc", "s3://bucket/sets/refs.json") == "s3://bucket/sets/a.nc"
    remote = Targets("https://example.org/sets/refs.json")
    for url in (r"C:\data\a.nc", r"\data\a.nc", "file:///C:/data/a.nc"):
        assert remote.is_local(url)

    os.makedirs(r"C:\data")
    os.makedirs(r"C:\sets")
    with open(r"C:\data\a.bin", "wb") as file:
        file.write(np.arange(8, dtype="<i4").tobytes())
    array = array_document([8], chunks=[2], fill_value=0)
    names = ("C:\\data\\a.bin", "C:/data/a.bin", "..\\data\\a.bin", "file:///C:/data/a.bin")
    document: dict[str, Any] = {".zgroup": '{"zarr_format": 2}', "v/.zarray": json.dumps(array)}
    document["v/.zattrs"] = '{"_ARRAY_DIMENSIONS": ["x"]}'
    document |= {f"v/{i}": [name, 8 * i, 8] for i, name in enumerate(names)}
    with open(r"C:\sets\refs.json", "w") as file:
        json.dump(document, file)
    assert opened(r"C:\sets\refs.json").v.values.tolist() == list(range(8))
    with pytest.raises(RefusedError, match=r"C:/data/a\.bin"):
        opened(r"C:\sets\refs.json", trust="none")

    xr_nczarr.to_nczarr(values(0, 6), r"C:\data\store", encoding=ENCODING)
    for name in ("written.json", "written.parq"):
        xr_nczarr.references.write(r"C:\data\store", rf"C:\sets\{name}")
        xr.testing.assert_identical(opened(rf"C:\sets\{name}"), values(0, 6))


def test_references_can_be_absolute_or_relative_paths(tmp_path: Path) -> None:
    on_windows(tmp_path / "c", _references)


def _empty_directory() -> None:
    from xr_nczarr import ExistsError, to_nczarr
    from xr_nczarr.storage import LocalStore

    os.makedirs(r"C:\data\empty")
    to_nczarr(values(0, 2), r"C:\data\empty")
    xr.testing.assert_identical(opened(r"C:\data\empty"), values(0, 2))
    for name in ("store", "file"):
        store = LocalStore(f"C:/data/{name}")
        staging = store.staging(empty=True)
        staging.put([("a", b"1")])
        if name == "store":
            store.put([("b", b"2")])
        else:
            with open(store.root, "w"):
                pass
        with pytest.raises(ExistsError):
            store.commit(staging, exclusive=True)
        staging.discard()
    assert os.listdir("C:/data/store") == ["b"]


def test_store_cannot_be_created_in_nonempty_directory(tmp_path: Path) -> None:
    on_windows(tmp_path / "c", _empty_directory)


@contextmanager
def _waiting(action: Callable[[int], None]) -> Iterator[list[float]]:
    """Call `action` in place of each wait for a file that another program has open."""
    from xr_nczarr.storage import system

    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        action(len(waits))

    system.time = SimpleNamespace(sleep=sleep)  # type: ignore[assignment]
    yield waits


def _readers() -> None:
    from xr_nczarr import to_nczarr
    from xr_nczarr.errors import AccessDeniedError
    from xr_nczarr.storage import LocalStore

    store = LocalStore("C:/data/store")
    store.put([("a/0", b"old"), ("a/1", b"old")])
    changes: dict[str, Callable[[], None]] = {
        "a/0": lambda: store.put([("a/0", b"new")]),
        "a/1": lambda: store.delete("a/1"),
    }
    for key, change in changes.items():
        file = open(f"C:/data/store/{key}")  # noqa: SIM115 (closed during the change)
        with _waiting(lambda n, file=file: file.close() if n == 3 else None) as waits:
            change()
        assert len(waits) == 3
    assert list(store.fetch(["a/0", "a/1"])) == [b"new", None]

    with open("C:/data/store/a/0") as file, _waiting(lambda _: None) as waits:
        with pytest.raises(AccessDeniedError, match="another program may have a file open"):
            store.put([("a/0", b"newer")])
        assert 2 < sum(waits) < 5
        assert file.read() == "new"
    assert os.listdir(r"C:\data\store\a") == ["0"]

    to_nczarr(values(0, 6), r"C:\data\x", encoding=ENCODING)
    with open(r"C:\data\x\a\0.0"), _waiting(lambda _: None):
        with pytest.raises(AccessDeniedError, match="another program may have a file open"):
            to_nczarr(values(0, 2), r"C:\data\x", mode="w")
        xr.testing.assert_identical(opened(r"C:\data\x"), values(0, 6))
    assert sorted(os.listdir(r"C:\data")) == ["store", "x"]
    to_nczarr(values(0, 2), r"C:\data\x", mode="w")
    xr.testing.assert_identical(opened(r"C:\data\x"), values(0, 2))


def test_replacing_files_in_use_is_retried(tmp_path: Path) -> None:
    on_windows(tmp_path / "c", _readers)


def _names() -> None:
    from xr_nczarr import RefusedError, to_nczarr
    from xr_nczarr.storage import LocalStore

    to_nczarr(values(0, 2), r"C:\data\old")
    before = sorted(os.walk(r"C:\data"))
    names = ("a:b", "a?", "a*", "a<b", 'a"b', "a|b", "a\tb", "CON", "nul", "Com1.x", "LPT²", "a.")
    for name in names:
        new = xr.Dataset({name: ("u", [1])})
        for target in (r"C:\data\new", r"C:\data\new.zip"):
            for zarr_format in (2, 3, "3-draft"):
                with pytest.raises(RefusedError, match="Windows") as info:
                    to_nczarr(new, target, zarr_format=zarr_format)
                assert info.value.variable == f"/{name}"
        with pytest.raises(RefusedError, match="Windows") as info:
            to_nczarr(new, r"C:\data\old", mode="a")
        assert info.value.variable == f"/{name}"
        with pytest.raises(RefusedError, match="Windows"):
            to_nczarr(values(0, 2), r"C:\data\old", group=name, mode="a")
        for action in (
            lambda key=f"{name}/0": list(LocalStore("C:/data/old").fetch([key])),
            lambda key=f"{name}/0": LocalStore("C:/data/old").put([(key, b"1")]),
            lambda key=f"{name}/": LocalStore("C:/data/old").list_names(key),
            lambda key=f"{name}/": LocalStore("C:/data/old").delete(key),
        ):
            with pytest.raises(RefusedError, match="Windows"):
                action()
    assert sorted(os.walk(r"C:\data")) == before
    mapping: dict[str, bytes] = {}
    to_nczarr(xr.Dataset({name: ("x", [1]) for name in names}), mapping)
    assert opened(mapping).sizes == {"x": 1}  # type: ignore[arg-type]
    fine = {"console": 1, ".a": 2, "a b": 3, "COM": 4, "é": 5}
    to_nczarr(xr.Dataset(fine), r"C:\data\new")
    assert {name: value.item() for name, value in opened(r"C:\data\new").items()} == fine


def test_invalid_file_names_are_rejected_before_writing(
    tmp_path: Path,
) -> None:
    on_windows(tmp_path / "c", _names)


def _case_variants() -> None:
    import xr_nczarr
    from xr_nczarr import ConflictError, to_nczarr

    both = xr.Dataset({"a": ("x", [1]), "A": ("x", [2])})
    first, second = both[["a"]], both[["A"]]
    os.mkdir(r"C:\data")
    for zarr_format in (2, 3, "3-draft"):
        for target in (r"C:\data\new", r"C:\data\new.zip", r"C:\data\deep\new"):
            with pytest.raises(ConflictError, match=r"does not distinguish 'A.*' from 'a") as info:
                to_nczarr(both, target, zarr_format=zarr_format)
            assert info.value.variable == "/A"
        assert os.listdir(r"C:\data") == []
    for target in (r"C:\data\old", r"C:\data\old.zip"):
        to_nczarr(first, target, encoding={"a": {"chunks": (1,)}})
        for zarr_options in ({}, {"atomic": True}):
            with pytest.raises(ConflictError, match="does not distinguish 'A' from 'a'"):
                to_nczarr(second, target, mode="a", **zarr_options)
        with pytest.raises(ConflictError, match="does not distinguish 'A' from 'a'"):
            to_nczarr(values(0, 2), target, group="A/b", mode="a")
        with pytest.raises(ConflictError, match=r"not distinguish '\.ZATTRS' from '\.zattrs'"):
            to_nczarr(xr.Dataset({".ZATTRS": ("x", [1])}), target, mode="a")
        xr.testing.assert_identical(opened(target), first)
        to_nczarr(second, target, mode="w")
        xr.testing.assert_identical(opened(target), second)
    mapping: dict[str, bytes] = {}
    to_nczarr(both, mapping)
    for target in (r"C:\data\copy", r"C:\data\copy.zip"):
        with pytest.raises(ConflictError, match="does not distinguish"):
            xr_nczarr.copy(mapping, target)
    with pytest.raises(ConflictError, match="does not distinguish"):
        xr_nczarr.references.write(mapping, r"C:\data\refs.parq")
    xr_nczarr.references.write(mapping, r"C:\data\refs.json")
    xr.testing.assert_identical(opened(r"C:\data\refs.json"), both)
    assert sorted(os.listdir(r"C:\data")) == ["old", "old.zip", "refs.json"]


def test_names_that_differ_only_in_case_are_rejected(
    tmp_path: Path,
) -> None:
    on_windows(tmp_path / "c", _case_variants)


def _replaced(path: str) -> None:
    import shutil

    from xr_nczarr import MetadataError

    shutil.copytree(path, r"C:\data\store", dirs_exist_ok=True)
    for consolidated in (True, False):
        with xr.open_dataset(
            r"C:\data\store", engine="nczarr", chunks={}, consolidated=consolidated
        ) as dataset:
            assert dataset.b.values.tolist() == [3]
            if not {"a", "A"}.issubset(dataset):
                # The directory does not show that one variable was overwritten.
                assert not consolidated
                continue
            for name in ("a", "A"):
                with pytest.raises(MetadataError, match="one has overwritten the other"):
                    dataset[name].load()


@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
def test_variables_whose_names_differ_only_in_case_cannot_be_opened(
    tmp_path: Path, dialect: str
) -> None:
    from xr_nczarr import to_nczarr

    data = xr.Dataset({"a": ("x", [1]), "A": ("x", [2]), "b": ("x", [3])})
    to_nczarr(data, tmp_path / "store", dialect=dialect)
    xr.testing.assert_identical(opened(str(tmp_path / "store")), data)
    on_windows(tmp_path / "c", _replaced, str(tmp_path / "store"))


def _zip_with_case_variants(path: str) -> None:
    from xr_nczarr import ConflictError, to_nczarr

    os.rename(path, r"C:\work\x.zip")
    with pytest.raises(ConflictError, match="does not distinguish"):
        to_nczarr(xr.Dataset({"b": ("x", [3])}), r"C:\work\x.zip", mode="a")
    assert os.listdir(r"C:\work") == ["x.zip"]
    both = xr.Dataset({"a": ("x", [1]), "A": ("x", [2])})
    xr.testing.assert_identical(opened(r"C:\work\x.zip"), both)


def test_zip_file_with_names_that_differ_only_in_case_can_be_read(
    tmp_path: Path,
) -> None:
    from xr_nczarr import to_nczarr

    to_nczarr(xr.Dataset({"a": ("x", [1]), "A": ("x", [2])}), tmp_path / "x.zip")
    on_windows(tmp_path / "c", _zip_with_case_variants, str(tmp_path / "x.zip"))


def _add_to_chunk(times: int) -> None:
    from xr_nczarr.storage import LocalStore

    store = LocalStore("C:/data/x")
    for _ in range(times):
        with store.lock("a/0"):
            (data,) = store.fetch(["a/0"])
            store.put([("a/0", str(int(data or b"0") + 1).encode())])


def _lock_in_threads() -> None:
    from xr_nczarr.storage import LocalStore

    LocalStore("C:/data/x").put([("a/0", b"0")])
    threads = [threading.Thread(target=_add_to_chunk, args=(10,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert list(LocalStore("C:/data/x").fetch(["a/0"])) == [b"30"]
    assert os.listdir(r"C:\data\x\a") == ["0"]


def test_locks_exclude_other_threads(tmp_path: Path) -> None:
    on_windows(tmp_path / "c", _lock_in_threads)


def test_locks_exclude_other_processes(tmp_path: Path) -> None:
    drive = tmp_path / "c"
    (drive / "data" / "x").mkdir(parents=True)
    processes = [
        threading.Thread(target=on_windows, args=(drive, _add_to_chunk, 20)) for _ in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert (drive / "data" / "x" / "a" / "0").read_bytes() == b"40"
    assert [path for path in drive.rglob("*") if "lock" in path.name] == []
