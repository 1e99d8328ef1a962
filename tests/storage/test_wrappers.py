"""Stores that wrap another store, for example to cache it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.servers import HttpServer
from xr_nczarr.errors import LimitError, StorageError
from xr_nczarr.storage import ByteRange, Store, parse_target
from xr_nczarr.storage.local import LocalStore
from xr_nczarr.storage.open_store import open_store
from xr_nczarr.storage.wrappers import CachingStore, MemoizingStore, RolledBackStore

WRAPPERS: dict[str, Callable[[Store], Store]] = {
    "caching": lambda source: CachingStore(source, "url"),
    "rolled-back": lambda source: RolledBackStore(source, {"b": None}),
    "memoizing": lambda source: MemoizingStore(source, {}),
}


@pytest.mark.parametrize("kind", WRAPPERS)
def test_object_size_limit_applies_to_wrapped_stores(kind: str, tmp_path: Path) -> None:
    source = LocalStore(str(tmp_path))
    source.put([("a", b"12345678")])
    wrapper = WRAPPERS[kind](source)
    with pytest.raises(LimitError, match="8 bytes"):
        list(wrapper.bounded(7).fetch(["a"]))
    assert [bytes(data) for data in wrapper.bounded(8).fetch(["a"]) if data] == [b"12345678"]


def test_objects_removed_from_cache_while_in_use_are_read_from_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = LocalStore(str(tmp_path))
    source.put([("a", b"12345678")])
    wrapper = CachingStore(source, "url")
    absent = [wrapper.fetch(["b"]), wrapper.fetch_ranges([ByteRange("b", 0, 1)])]
    assert [list(fetched) for fetched in absent] == [[None], [None]]
    monkeypatch.setattr(LocalStore, "put", lambda *_: None)
    assert list(wrapper.fetch_ranges([ByteRange("a", 0, 1)])) == [b"1"]
    monkeypatch.setattr(CachingStore, "_is_cached", lambda *_: True)
    assert list(wrapper.fetch(["a"])) == [b"12345678"]


def test_cache_folder_is_kept_until_last_store_is_deleted(
    tmp_path: Path,
) -> None:
    source = LocalStore(str(tmp_path))
    source.put([("a", b"12345678")])
    original = CachingStore(source, "url")
    folder = Path(original._cache.root)
    variant = original.bounded(100).probing()
    del original
    assert list(variant.fetch(["a"])) == [b"12345678"]
    assert list(folder.iterdir())
    assert pickle.loads(pickle.dumps(variant))._cache.root != str(folder)
    del variant
    assert not folder.exists()


@pytest.mark.filterwarnings("ignore:.*FileIO:pytest.PytestUnraisableExceptionWarning")  # fsspec
@pytest.mark.parametrize("cache", ["filecache", "blockcache"])
def test_suffix_ranges_are_read_through_fsspec_caches(http_server: HttpServer, cache: str) -> None:
    Path(http_server.root, "a").write_bytes(b"12345678")
    store = open_store(parse_target(f"{cache}::{http_server.url}"))
    ends = [ByteRange("a", -3, 3), ByteRange("a", 1, 2), ByteRange("b", -3, 3)]
    for _ in range(2):  # the second time, the whole file is cached
        assert store.fetch_end("a", 3) == b"678"
        assert store.fetch_end("a", 9) == b"12345678"
        assert list(store.fetch_ranges(ends)) == [b"678", b"23", None]
        assert list(store.fetch(["a"])) == [b"12345678"]


@pytest.mark.filterwarnings("ignore:.*FileIO:pytest.PytestUnraisableExceptionWarning")  # fsspec
@pytest.mark.parametrize("cache", ["filecache", "blockcache"])
def test_object_sizes_are_found_through_fsspec_caches(http_server: HttpServer, cache: str) -> None:
    Path(http_server.root, "a").write_bytes(b"12345678")
    store = open_store(parse_target(f"{cache}::{http_server.url}"))
    for _ in range(2):
        assert list(store.sizes_of(["a", "b"])) == [8, None]
        assert list(store.fetch(["a"])) == [b"12345678"]
    http_server.fault("status", status=403, times=None)
    with pytest.raises(StorageError, match="403"):
        store.size("a")
