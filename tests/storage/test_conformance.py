"""The behavior that all kinds of stores have in common."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import MappingProxyType

import fsspec
import obstore.store
import pytest
import zarr.storage

from tests import clouds
from tests.reading import open_store
from tests.servers import HttpServer
from tests.stores import write_zip
from xr_nczarr.errors import RefusedError, StorageError, UnsupportedError
from xr_nczarr.storage import ByteRange, Listing, MemoryStore, Store

OBJECTS = {
    ".zgroup": b"{}",
    "empty": b"",
    "a/.zarray": b"[1]",
    "a/0.0": bytes(range(200)),
    "a/0.1": b"x" * 70_000,
    "b/c/ä ö#1%20+": b"named",
}
OBJECTS_OF_OTHERS = ["zarr memory", "obstore memory"]
WRITABLE = [
    *("local", "mapping", "memory://", "fsspec s3", "zip", "obstore s3"),
    *OBJECTS_OF_OTHERS,
    *clouds.KINDS,
]
READABLE = [
    *WRITABLE,
    "fsspec http",
    "obstore http",
    "simplecache::http",
    "zip at root",
    "zip deflated",
    "zip over http",
]


def write_files(root: Path) -> None:
    for key, data in OBJECTS.items():
        path = root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@pytest.fixture
def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], Store]]:
    """Return a function that creates a store of a given kind with the objects `OBJECTS`."""

    def make(kind: str) -> Store:
        path = tmp_path / "x.zip"
        client = {"client": kind.partition(" ")[0]} if kind.endswith((" s3", " http")) else {}
        if kind in ("fsspec http", "obstore http"):
            server = request.getfixturevalue("http_server")
            write_files(Path(server.root))
            return open_store(server.url, storage_options=client)
        if kind in ("simplecache::http", "zip over http"):
            server: HttpServer = request.getfixturevalue("http_server")
            write_files(Path(server.root))
            if kind == "zip over http":
                write_zip(Path(server.root, "x.zip"), OBJECTS, prefix="x/")
                return open_store(f"{server.url}/x.zip")
            chain = kind.removesuffix("http")
            options = {"simplecache": {"cache_storage": str(tmp_path / "cache")}} if chain else None
            return open_store(f"{chain}{server.url}", storage_options=options)
        if kind == "zip at root":
            write_zip(path, OBJECTS)
            return open_store(path)
        if kind == "zip deflated":
            write_zip(path, OBJECTS, prefix="folder/", compression=zipfile.ZIP_DEFLATED)
            return open_store(path)
        targets = {
            "local": tmp_path / "x",
            "zip": path,
            "mapping": {},
            "memory://": "memory://x",
            "zarr memory": zarr.storage.MemoryStore(),
            "obstore memory": obstore.store.MemoryStore(),
        }
        if kind in clouds.KINDS:
            target, options = clouds.new_store(kind, request)
            store = open_store(target, storage_options=options, must_exist=False)
        elif kind in ("fsspec s3", "obstore s3"):
            server = request.getfixturevalue("s3_server")
            options = {**server.storage_options, **client}
            store = open_store("s3://bucket/x.zarr", storage_options=options)
        else:
            store = open_store(targets[kind], must_exist=False)
        store.put(OBJECTS.items())
        return store

    yield make
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]


@pytest.fixture(params=READABLE)
def store(request: pytest.FixtureRequest, make_store: Callable[[str], Store]) -> Store:
    return make_store(request.param)


@pytest.fixture(params=WRITABLE)
def writable(request: pytest.FixtureRequest, make_store: Callable[[str], Store]) -> Store:
    return make_store(request.param)


def as_bytes(answers: Iterator[bytes | None]) -> list[bytes | None]:
    return [None if answer is None else bytes(answer) for answer in answers]


def test_objects_are_fetched_in_order_of_requested_keys(
    store: Store,
) -> None:
    keys = [*reversed(OBJECTS), "a/9.9", "none/0", *OBJECTS, "a/0.0"]
    assert as_bytes(store.fetch(keys)) == [OBJECTS.get(key) for key in keys]
    assert list(store.fetch([])) == []


def test_byte_ranges_can_be_relative_to_start_or_end(store: Store) -> None:
    wanted = {
        ByteRange("a/0.0", 3, 5): bytes(range(3, 8)),
        ByteRange("a/9.9", 0, 1): None,
        ByteRange("a/0.1", 69_999, 1): b"x",
        ByteRange("a/0.0", -4, 4): bytes(range(196, 200)),
        ByteRange("a/0.0", -4, 2): bytes(range(196, 198)),
        ByteRange("a/0.0", 0, 200): OBJECTS["a/0.0"],
        ByteRange("a/0.0", 8, 2): bytes([8, 9]),
        ByteRange("a/0.0", 5, 5): bytes(range(5, 10)),
    }
    assert as_bytes(store.fetch_ranges(list(wanted))) == list(wanted.values())


@pytest.mark.parametrize("start", [190, 200, 5000, -20, -300])
def test_error_for_out_of_bounds_range_includes_key(store: Store, start: int) -> None:
    with pytest.raises(
        StorageError, match=r"expected|bytes at offset|the last|out of bounds|is invalid"
    ) as caught:
        list(store.fetch_ranges([ByteRange("a/0.0", start, 50)]))
    assert caught.value.key == "a/0.0"
    assert caught.value.store == store.name


def test_hundreds_of_objects_are_fetched_in_order_of_requested_keys(store: Store) -> None:
    keys = list(OBJECTS) * 40
    assert as_bytes(store.fetch(keys)) == [OBJECTS[key] for key in keys]


@pytest.mark.parametrize(
    "key", ["../x", "a/../b", "/etc/hostname", "a//b", "", ".", "a\0b", "a\\b"]
)
def test_keys_other_than_plain_relative_paths_are_rejected(store: Store, key: str) -> None:
    for action in (
        lambda: list(store.fetch([key])),
        lambda: list(store.fetch_ranges([ByteRange(key, 0, 1)])),
        lambda: store.put([(key, b"")]),
        lambda: store.list_names(f"{key}/"),
    ):
        with pytest.raises((RefusedError, UnsupportedError)):
            action()


def test_listing_store_returns_sorted_names_of_one_level(store: Store) -> None:
    if "http" in store.name and "zip" not in store.name:
        with pytest.raises(UnsupportedError, match="Consolidate"):
            store.list_names("")
        return
    assert store.list_names("") == Listing([".zgroup", "empty"], ["a", "b"])
    assert store.list_names("a/") == Listing([".zarray", "0.0", "0.1"], [])
    assert store.list_names("b/c/") == Listing(["ä ö#1%20+"], [])
    assert store.list_names("nothing/") == Listing([], [])


def test_pickled_stores_are_small_and_read_same_objects(store: Store) -> None:
    data = pickle.dumps(store)
    assert len(data) < (1500 if store.shared else 100_000)
    assert as_bytes(pickle.loads(data).fetch(["a/0.0", "no"])) == [OBJECTS["a/0.0"], None]


def test_objects_can_be_replaced_with_contents_of_any_buffer(writable: Store) -> None:
    writable.put([("a/0.0", memoryview(b"new")), ("n/e/w", bytearray(b"1")), ("empty", b"")])
    assert as_bytes(writable.fetch(["a/0.0", "n/e/w", "empty"])) == [b"new", b"1", b""]
    assert as_bytes(writable.fetch([".zgroup"])) == [b"{}"]


def test_changing_buffer_after_put_does_not_change_object(writable: Store) -> None:
    buffer = bytearray(b"stored")
    writable.put([("a/0.0", buffer)])
    buffer[:] = b"other!"
    assert as_bytes(writable.fetch(["a/0.0"])) == [b"stored"]


def test_unpickled_store_finds_objects_written_after_pickling(writable: Store) -> None:
    reader = writable if isinstance(writable, MemoryStore) else pickle.loads(pickle.dumps(writable))
    assert reader.list_names("a/").objects == [".zarray", "0.0", "0.1"]
    writable.put([("a/7", b"new")])
    reader = reader if isinstance(writable, MemoryStore) else pickle.loads(pickle.dumps(reader))
    assert reader.list_names("a/").objects == [".zarray", "0.0", "0.1", "7"]
    assert as_bytes(reader.fetch(["a/7"])) == [b"new"]


def test_keys_and_prefixes_can_be_deleted(
    writable: Store,
) -> None:
    writable.put([("ab", b"1"), ("a*/x", b"2")])
    writable.delete("a/0.0")
    writable.delete("a/0.0")
    assert writable.list_names("a/").objects == [".zarray", "0.1"]
    writable.delete("a*/")
    assert writable.list_names("a/").objects == [".zarray", "0.1"]
    writable.delete("a/")
    assert as_bytes(writable.fetch(["a/.zarray", "ab", ".zgroup"])) == [None, b"1", b"{}"]
    writable.delete("")
    assert as_bytes(writable.fetch(list(OBJECTS))) == [None] * len(OBJECTS)
    assert writable.list_names("").objects == []


@pytest.mark.parametrize(
    "kind", ["fsspec s3", "obstore s3", "memory://", "zarr memory", "obstore memory"]
)
def test_remote_folder_is_not_treated_as_object(
    make_store: Callable[[str], Store], kind: str
) -> None:
    store = make_store(kind)
    store.put([("folder/0", b"data")])
    assert store.size("folder") is None
    assert list(store.fetch_ranges([ByteRange("folder", 0, 0)])) == [None]


def test_deleting_prefix_keeps_object_of_same_name(writable: Store) -> None:
    writable.delete("empty/")
    assert as_bytes(writable.fetch(["empty"])) == [b""]
    assert list(writable.sizes("empty/")) == []


def test_locks_can_be_acquired_repeatedly(writable: Store) -> None:
    with writable.lock("a/0.0"):
        assert writable.list_names("a/").objects == [".zarray", "0.0", "0.1"]
    with writable.lock("a/0.0"), writable.lock("new/0"), writable.lock(""):
        writable.put([("new/0", b"1")])
    assert writable.list_names("new/").objects == ["0"]


def test_stores_wrapping_same_mapping_share_locks() -> None:
    mapping: dict[str, bytes] = {}
    first, second, other = MemoryStore(mapping), MemoryStore(mapping), MemoryStore({})
    assert first.is_same(second)
    assert not first.is_same(other)
    taken: list[str] = []

    def take() -> None:
        with second.lock("a"):
            taken.append("second")

    with ThreadPoolExecutor(1) as helper, first.lock("a"):
        helper.submit(take)
        with other.lock("a"):
            taken.append("first")
    assert taken == ["first", "second"]


def test_lock_on_one_key_does_not_block_other_keys() -> None:
    store = MemoryStore({})

    def take(key: str) -> str:
        with store.lock(key):
            return key

    others = [f"v/{index}" for index in range(1000)]
    with ThreadPoolExecutor(1) as helper:
        with store.lock("nczarr-writer"):
            free = [helper.submit(take, key) for key in others]
            held = helper.submit(take, "nczarr-writer")
            result = wait(free, timeout=60).not_done
            assert not held.done()
        assert not result
        assert held.result(timeout=60) == "nczarr-writer"


def test_writing_to_http_stores_and_read_only_mappings_is_rejected(
    make_store: Callable[[str], Store],
) -> None:
    for store in (
        make_store("fsspec http"),
        make_store("obstore http"),
        MemoryStore(MappingProxyType({})),
    ):
        with pytest.raises(UnsupportedError):
            store.put([("a", b"1")])
        with pytest.raises(UnsupportedError):
            store.delete("a/")
