"""Zip files with both layouts, damaged and hostile zip files, and writing zip files."""

from __future__ import annotations

import io
import os
import struct
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from tests.reading import assert_values, open_store, read
from tests.servers import HttpServer
from tests.stores import Group, Var, read_objects, write_vintage
from xr_nczarr.errors import (
    LimitError,
    NczarrError,
    NotFoundError,
    RefusedError,
    StorageError,
    UnsupportedError,
)
from xr_nczarr.model import Limits
from xr_nczarr.storage import ByteRange, LocalStore, ZipStore
from xr_nczarr.storage.keys import children_of
from xr_nczarr.storage.memory import MemoryStore


def write(path: Path, entries: list[tuple[str, bytes]], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, data in entries:
            file.writestr(name, data)
    return path


def fetch(store: ZipStore, *keys: str) -> list[bytes | None]:
    return [None if data is None else bytes(data) for data in store.fetch(keys)]


# Regression D29
@pytest.mark.parametrize(
    ("names", "prefix"),
    [
        (["", "a/", ".zgroup", "a/.zarray"], ""),
        (["x/", "x/a/", "x/.zgroup", "x/a/.zarray"], "x/"),
        (["other name/.zgroup", "other name/a/.zarray"], "other name/"),
        (["__MACOSX/._x", "x/.zgroup", "x/a/.zarray"], "x/"),
        (["a/.zarray", "b/.zarray", ".zgroup"], ""),
        (["a/.zarray", "b/.zarray"], ""),
    ],
)
def test_store_can_be_at_root_or_in_single_folder(
    tmp_path: Path, names: list[str], prefix: str
) -> None:
    path = write(tmp_path / "x.zip", [(name, name.encode()) for name in names if name])
    store = open_store(path)
    assert fetch(store, "a/.zarray") == [f"{prefix}a/.zarray".encode()]
    there = f"{prefix}.zgroup"
    assert fetch(store, ".zgroup") == [there.encode() if there in names else None]


STRAY = ["power/", "power/.zgroup", "power/a/.zarray", ".zgroup"]


@pytest.mark.parametrize(
    ("archive", "names", "prefix"),
    [
        ("power.zip", STRAY, "power/"),
        ("power", STRAY, "power/"),
        ("other.zip", STRAY, ""),
        ("power.zip", [".zgroup", *STRAY[:3]], ""),
        ("power.zip", [*STRAY, ".zattrs"], ""),
        ("power.zip", [*STRAY, "b/.zarray"], ""),
        ("power.zip", ["power/.zarray", "power/a/.zarray", ".zgroup"], ""),
        ("power.zip", [*STRAY[:3], "zarr.json"], ""),
    ],
    ids=["stray", "no suffix", "name", "order", "attributes", "array", "no group", "version 3"],
)
def test_store_in_folder_takes_precedence_over_empty_root_group(
    tmp_path: Path, archive: str, names: list[str], prefix: str
) -> None:
    """netcdf-c uses the folder of the first entry. Its test suite contains such a zip file."""
    store = open_store(write(tmp_path / archive, [(name, name.encode()) for name in names]))
    result = [key for key, _ in store.sizes("")]
    expected = [name for name in names if not name.endswith("/") and name.startswith(prefix)]
    assert result == [name.removeprefix(prefix) for name in expected]


def test_nczarr_metadata_at_root_marks_root_as_store(
    tmp_path: Path,
) -> None:
    group = b'{"zarr_format": 2, "_nczarr_group": {"dims": {}, "vars": [], "groups": ["power"]}}'
    entries = [(name, group if name == ".zgroup" else b"{}") for name in STRAY]
    store = open_store(write(tmp_path / "power.zip", entries))
    assert ".zgroup" in store.list_names("").objects
    assert store.list_names("").prefixes == ["power"]


@pytest.mark.parametrize(
    "url",
    [
        "zip::simplecache::{}/data",
        "simplecache::zip::{}/data",
        "simplecache::{}/data#mode=zip",
        "zip::filecache::{}/data",
    ],
)
def test_cached_zip_file_is_recognized_by_protocol_or_mode(
    http_server: HttpServer, url: str
) -> None:
    write(Path(http_server.root, "data"), [(".zgroup", b"{}")])
    assert fetch(open_store(url.format(http_server.url)), ".zgroup") == [b"{}"]


@pytest.mark.parametrize("cache", ["simplecache", "filecache"])
def test_cached_zip_file_is_recognized_by_its_suffix(http_server: HttpServer, cache: str) -> None:
    write(Path(http_server.root, "data.zip"), [(".zgroup", b"{}")])
    assert fetch(open_store(f"{cache}::{http_server.url}/data.zip"), ".zgroup") == [b"{}"]


@pytest.mark.parametrize("url", ["simplecache::zip::file://{}", "simplecache::{}"])
def test_cached_local_zip_file_can_be_large_and_symlinked(tmp_path: Path, url: str) -> None:
    archive = write(tmp_path / "archive", [("a/0", bytes(1000)), (".zgroup", b"{}")])
    (tmp_path / "folder").mkdir()
    os.symlink(archive, tmp_path / "folder/x.zip")
    limits = Limits(max_chunk_bytes=9, max_consolidated_bytes=9)
    store = open_store(url.format(tmp_path / "folder/x.zip"), limits=limits, trusted=False)
    assert fetch(store, ".zgroup") == [b"{}"]


@pytest.mark.parametrize("inner", ["inner.zip", "folder/inner.zip"])
@pytest.mark.parametrize("first", ["zip", "zip://"])
def test_store_at_root_of_nested_zip_file_is_read(tmp_path: Path, inner: str, first: str) -> None:
    data = write(tmp_path / "inner.zip", [(".zgroup", b"{}")]).read_bytes()
    outer = write(tmp_path / "outer.zip", [(inner, data)])
    store = open_store(f"{first}::zip://{inner}::file://{outer}")
    assert fetch(store, ".zgroup") == [b"{}"]


# Regression D29
@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_last_of_duplicate_zip_entries_is_used(tmp_path: Path, method: int) -> None:
    entries = [(".zgroup", b"1"), ("a/0", b"old" * 9), (".zgroup", b"22"), ("a/0", b"new" * 9)]
    store = open_store(write(tmp_path / "x.zip", entries, method))
    assert fetch(store, "a/0", ".zgroup") == [b"new" * 9, b"22"]
    assert store.list_names("").objects == [".zgroup"]


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "a\\b", "a//b", "./a"])
def test_irregular_entry_names_are_rejected(tmp_path: Path, name: str) -> None:
    store = open_store(write(tmp_path / "x.zip", [(".zgroup", b"{}"), (name, b"1")]))
    with pytest.raises(RefusedError, match="not a plain relative path"):
        fetch(store, ".zgroup")


def damaged(path: Path, find: bytes, offset: int, value: bytes) -> ZipStore:
    """Overwrite bytes in a zip file with `value`, and open it.

    The bytes start `offset` bytes after the start of the first occurrence of `find`.
    """
    data = bytearray(path.read_bytes())
    place = data.index(find) + offset
    data[place : place + len(value)] = value
    path.write_bytes(data)
    return ZipStore(LocalStore(str(path.parent)), path.name)


CENTRAL = b"PK\x01\x02"


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    ("find", "offset", "value"),
    [
        (CENTRAL, 16, b"\1\2\3\4"),  # checksum
        (CENTRAL, 24, b"\x63\0\0\0"),  # size
        (CENTRAL, 20, b"\xff\xff\0\0"),  # stored size
        (CENTRAL, 42, b"\7\0\0\0"),  # offset of the local header
        (CENTRAL, 42, b"\xff\xff\xff\x7f"),
        (b"PK\x03\x04", 0, b"XX"),
        (b"PK\x03\x04", 26, b"\xff\xff"),  # length of the local name
        (b"PK\x05\x06", 12, b"\xff\xff\xff\x7f"),  # size of the directory
        (b"PK\x05\x06", 0, b"XX"),
        (b"a/0", 5, b"\x99\x99"),  # data
    ],
)
def test_error_for_damaged_zip_file_includes_file_name(
    tmp_path: Path, method: int, find: bytes, offset: int, value: bytes
) -> None:
    path = write(tmp_path / "x.zip", [("a/0", bytes(range(100)) * 3)], method)
    store = damaged(path, find, offset, value)
    with pytest.raises(StorageError) as caught:
        fetch(store, "0")
    assert str(path) in str(caught.value)


def test_truncated_zip_file_raises_storage_error(tmp_path: Path) -> None:
    data = write(tmp_path / "x.zip", [("a/0", b"12345"), (".zgroup", b"{}")]).read_bytes()
    for size in range(len(data)):
        (tmp_path / "cut.zip").write_bytes(data[:size])
        with pytest.raises(StorageError):
            fetch(ZipStore(LocalStore(str(tmp_path)), "cut.zip"), "a/0")


def test_overlapping_zip_entries_are_rejected(tmp_path: Path) -> None:
    path = write(tmp_path / "x.zip", [("a", b"1" * 50), ("b", b"1" * 50)])
    data = bytearray(path.read_bytes())
    second = data.index(CENTRAL, data.index(CENTRAL) + 1)
    data[second + 42 : second + 46] = struct.pack("<I", 0)
    path.write_bytes(data)
    with pytest.raises(StorageError, match="overlap"):
        fetch(ZipStore(LocalStore(str(path.parent)), path.name), "a")


def test_decompression_bomb_is_rejected_before_inflation(tmp_path: Path) -> None:
    entries = [(".zgroup", b"{}"), ("a/0", bytes(1 << 20))]
    path = write(tmp_path / "x.zip", entries, zipfile.ZIP_DEFLATED)
    small = Limits(max_chunk_bytes=2000, max_consolidated_bytes=2000)
    with pytest.raises(LimitError, match=r"1,048,576 bytes .*limit of 2,000"):
        fetch(open_store(path, limits=small), "a/0")
    place = path.read_bytes().rindex(CENTRAL)
    data = bytearray(path.read_bytes())
    data[place + 24 : place + 28] = struct.pack("<I", 100)
    path.write_bytes(data)
    with pytest.raises(StorageError, match="expected 100"):
        fetch(open_store(path, limits=small), "a/0")


def test_encrypted_zip_entries_and_unknown_compression_methods_are_rejected(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as file:
        file.writestr("secret", b"1")
        file.writestr("lzma", b"1" * 99, zipfile.ZIP_LZMA)
        file.writestr("plain", b"1")
    store = damaged(tmp_path / "x.zip", CENTRAL, 8, b"\1")
    for key in ("secret", "lzma"):
        with pytest.raises(UnsupportedError, match="encrypted or uses an unsupported compression"):
            fetch(store, key)
    assert fetch(store, "plain") == [b"1"]


def test_uncompressed_zip_entries_are_addressable_by_byte_range(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x/.zgroup", "{}")
        file.writestr("x/a/0", b"12345")
        file.writestr("x/a/1", b"1" * 99, zipfile.ZIP_DEFLATED)
    store = open_store(path)
    url, offset, length = store.addresses(["a/0"])["a/0"]
    assert path.samefile(url)
    assert path.read_bytes()[offset : offset + length] == b"12345"
    with pytest.raises(UnsupportedError, match="is compressed"):
        store.addresses(["a/0", "a/1"])
    assert store.addresses(["a/0", "a/9"]).keys() == {"a/0"}


def test_entries_of_zip_file_in_memory_have_no_addresses() -> None:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr(".zgroup", b"{}")
        file.writestr("a/0", b"12345")
    store = ZipStore(MemoryStore({"x.zip": content.getvalue()}), "x.zip")
    assert fetch(store, "a/0") == [b"12345"]
    assert store.addresses(["a/0"]) == {}


def test_zip_file_with_leading_data_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "x.zip", [("a/0", b"12345"), (".zgroup", b"{}")])
    path.write_bytes(b"PK\x03\x04 something in front" + path.read_bytes())
    assert fetch(open_store(path), "a/0", ".zgroup") == [b"12345", b"{}"]


def test_reading_remote_zip_file_sends_few_requests(
    http_server: HttpServer,
) -> None:
    entries = [(f"a/{index}", bytes(200_000)) for index in range(4)]
    write(Path(http_server.root, "x.zip"), entries, zipfile.ZIP_STORED)
    store = open_store(f"{http_server.url}/x.zip")
    assert http_server.requests == []
    assert fetch(store, "0", "3") == [bytes(200_000)] * 2
    assert [request.method for request in http_server.requests] == ["GET", "GET", "GET"]
    http_server.clear()
    assert fetch(store, "1", "none") == [bytes(200_000), None]
    assert len(http_server.requests) == 1


def test_packed_zip_file_has_folder_entries_and_no_duplicates(tmp_path: Path) -> None:
    path = tmp_path / "data.zip"
    store = open_store(path, must_exist=False)
    staging = store.staging(empty=False)
    staging.put([("g/a/0", b"1"), (".zgroup", b"{}"), ("g/.zgroup", b"{}"), ("g/a/0", b"2")])
    assert not path.exists()
    store.commit(staging)
    with zipfile.ZipFile(path) as file:
        names = file.namelist()
        assert {info.compress_type for info in file.infolist()} == {zipfile.ZIP_STORED}
    assert names[:3] == ["data/", "data/g/", "data/g/a/"]
    assert sorted(names[3:]) == ["data/.zgroup", "data/g/.zgroup", "data/g/a/0"]
    assert os.listdir(tmp_path) == ["data.zip"]
    assert fetch(open_store(path), "g/a/0") == [b"2"]


def test_zarr_python_reads_packed_zip_file(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    store = open_store(tmp_path / "data.zip", must_exist=False)
    with zarr.storage.LocalStore(tmp_path / "plain") as plain:
        zarr.create_array(plain, name="a", shape=4, dtype="i4", fill_value=7, zarr_format=2)
    staging = store.staging(empty=False)
    staging.put(read_objects(tmp_path / "plain").items())
    store.commit(staging)
    with zarr.storage.ZipStore(tmp_path / "data.zip", mode="r") as packed:
        assert zarr.open_array(packed, path="data/a", mode="r")[:].tolist() == [7] * 4


def test_append_replaces_zip_file_only_after_writing_all_data(tmp_path: Path) -> None:
    path = write(tmp_path / "x.zip", [(".zgroup", b"{}"), ("a/0", b"1")], zipfile.ZIP_DEFLATED)
    old = path.read_bytes()
    store = open_store(path, must_exist=False)
    staging = store.staging(empty=False)
    assert isinstance(staging, LocalStore)
    staging.put([("a/1", b"2")])
    assert path.read_bytes() == old
    store.commit(staging)
    assert fetch(store, "a/0", "a/1", ".zgroup") == [b"1", b"2", b"{}"]
    fresh = store.staging(empty=True)
    assert list(fresh.fetch(["a/0"])) == [None]
    fresh.discard()
    assert os.listdir(tmp_path) == ["x.zip"]


def test_failed_write_leaves_old_zip_file_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "x.zip", [("a/0", b"1")])
    old = path.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    store = open_store(path, must_exist=False)
    with pytest.raises(NczarrError, match="No space left"):
        store.put([("0", b"2")])
    assert path.read_bytes() == old
    assert os.listdir(tmp_path) == ["x.zip"]


def test_writing_to_remote_zip_file_is_rejected(http_server: HttpServer) -> None:
    store = open_store(f"{http_server.url}/x.zip", must_exist=False)
    with pytest.raises(UnsupportedError, match="local"):
        store.put([("a", b"1")])


def test_only_requested_range_of_uncompressed_entry_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "x.zip", [("a/0", bytes(range(256)) * 400), ("b", b"")])
    store = open_store(path)
    reads: list[int] = []
    original = LocalStore.fetch_ranges

    def counted(self: LocalStore, ranges: list[ByteRange]) -> object:
        reads.extend(part.length for part in ranges)
        return original(self, ranges)

    store.list_names("")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalStore, "fetch_ranges", counted)
        assert list(store.fetch_ranges([ByteRange("a/0", 3, 3)])) == [b"\x03\x04\x05"]
    assert reads == [30, 3]


def test_zip_entries_fetched_with_central_directory_are_not_fetched_again(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "x.zip", [("a", bytes(range(256)) * 400), ("b", b"12"), ("c", b"3")])
    store = open_store(path)
    store.list_names("")
    path.unlink()
    assert fetch(store, "b", "c") == [b"12", b"3"]
    with pytest.raises(NotFoundError):
        fetch(store, "a")


def test_large_zip_files_with_comment_or_many_entries_are_read(tmp_path: Path) -> None:
    data = os.urandom(100_000)
    path = write(tmp_path / "x.zip", [("a", data), ("b", b"12")])
    with zipfile.ZipFile(path, "a") as file:
        file.comment = b"comment"
    assert fetch(open_store(path), "b", "a") == [b"12", data]
    many = [
        (f"c{number}", b"1") for number in range(70_000)
    ]  # more than the original end record can count
    store = open_store(write(tmp_path / "many.zip", [("a", data), *many]))
    assert fetch(store, "a", "c69999") == [data, b"1"]


@pytest.mark.parametrize("place", [0, -6, -10], ids=["record", "start", "length"])
def test_large_zip_file_with_corrupt_end_record_raises_storage_error(
    tmp_path: Path, place: int
) -> None:
    path = write(tmp_path / "x.zip", [("a", os.urandom(100_000)), ("b", b"12")])
    data = bytearray(path.read_bytes())
    data[data.rindex(b"PK\5\6") if place == 0 else len(data) + place] ^= 0x55
    path.write_bytes(data)
    with pytest.raises(StorageError):
        fetch(ZipStore(LocalStore(str(path.parent)), path.name), "a")


def test_zip_file_replaced_while_open_raises_storage_error(tmp_path: Path) -> None:
    end = ("end", bytes(1 << 16))  # these bytes are cached together with the central directory
    path = write(tmp_path / "x.zip", [("a", b"1" * 50), ("b", b"2" * 50), end])
    store = open_store(path)
    assert fetch(store, "b") == [b"2" * 50]
    write(path, [("a", b"3" * 60), ("b", b"4" * 60), end])
    for action in (
        lambda: fetch(store, "a"),
        lambda: list(store.fetch_ranges([ByteRange("b", 0, 9)])),
    ):
        with pytest.raises(StorageError, match="damaged"):
            action()


def test_listing_one_level_does_not_scan_deeper_levels() -> None:
    class Counted(list[str]):
        looked_at = 0

        def __getitem__(self, at):  # type: ignore[no-untyped-def]
            self.looked_at += 1
            return super().__getitem__(at)

    below = [f"a{mark}/{number}" for mark in ("", "-", "/b", "0") for number in range(1000)]
    keys = Counted(sorted([*below, "a", "a.b", "a/.zarray", "b/.zgroup"]))
    assert children_of(keys, "") == (["a", "a.b"], ["a", "a-", "a0", "b"])
    assert children_of(keys, "a/b/") == (sorted(map(str, range(1000))), [])
    keys.looked_at = 0
    assert children_of(keys, "b/") == ([".zgroup"], [])
    children_of(keys, "")
    assert keys.looked_at < 200


def test_zip_file_without_zarr_metadata_is_not_recognized_as_store(tmp_path: Path) -> None:
    target = write(tmp_path / "s.zip", [("__MACOSX/a", b"")])
    with pytest.raises(FileNotFoundError, match=r"s\.zip: no Zarr metadata found"):
        xr.open_dataset(target, engine="nczarr")


def test_opening_zip_file_with_undecodable_names_raises_storage_error(tmp_path: Path) -> None:
    target = write(tmp_path / "s.zip", [("é", b"")])
    target.write_bytes(target.read_bytes().replace("é".encode(), b"\xf4a"))
    with pytest.raises(StorageError, match=r"s\.zip: .*the zip file cannot be read"):
        xr.open_dataset(target, engine="nczarr")


# Regression D29
@pytest.mark.parametrize("prefix", ["", "inner/"])
@pytest.mark.parametrize("directories", [True, False])
@pytest.mark.parametrize("twice", [True, False])
def test_zip_files_from_every_writer_can_be_opened(
    tmp_path: Path, prefix: str, directories: bool, twice: bool, way: str
) -> None:
    values = np.arange(4, dtype="f4")
    store = write_vintage(tmp_path / "s", Group({"x": 4}, {"v": Var(("/x",), values)}), "4.10")
    entries = [(prefix, b""), (f"{prefix}v/", b"")] if directories else []
    entries = [entry for entry in entries if entry[0]]
    if twice:
        entries.append((f"{prefix}v/0", (values + 1).tobytes()))
    entries += [(f"{prefix}{key}", data) for key, data in sorted(read_objects(store).items())]
    assert_values(read(write(tmp_path / "s.zip", entries), way).v.values, values, "v")
    url = f"file://{tmp_path / 's.zip'}#mode=nczarr,zip"
    assert_values(read(url, way).v.values, values, "v")
