"""Store objects from zarr-python, icechunk, obstore and VirtualiZarr as targets."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from functools import partial
from pathlib import Path
from typing import Any, Literal

import dask
import numpy as np
import obstore.store
import pytest
import xarray as xr
import zarr
from dask.base import tokenize
from zarr.storage import (
    FsspecStore,
    LocalStore,
    LoggingStore,
    MemoryStore,
    ObjectStore,
    StorePath,
    WrapperStore,
    ZipStore,
)

import xr_nczarr
from tests.processes import in_a_new_interpreter
from tests.reading import peak_memory
from tests.servers import HttpServer, S3Server
from xr_nczarr.dataset import resolve
from xr_nczarr.errors import (
    AccessDeniedError,
    ConflictError,
    ExistsError,
    LimitError,
    RefusedError,
    StorageError,
    UnsupportedError,
)
from xr_nczarr.storage import Access, ByteRange, parse_target
from xr_nczarr.storage.open_store import open_store

KINDS = [
    "zarr local",
    "zarr memory",
    "zarr fsspec",
    "zarr obstore",
    "zarr path",
    "zarr root group",
    "obstore memory",
    "obstore local",
]


def dataset() -> xr.Dataset:
    values = np.arange(24.0).reshape(4, 6)
    return xr.Dataset(
        {"t": (("y", "x"), values, {"units": "K"})}, {"y": [0, 1, 2, 3]}, {"title": "objects"}
    ).chunk({"y": 2})


def make(kind: str, folder: Path) -> Any:
    """Return an empty store of some kind."""
    if kind == "zarr local":
        return LocalStore(folder / "local")
    if kind == "zarr memory":
        return MemoryStore()
    if kind == "zarr fsspec":
        return FsspecStore.from_url(f"memory:/{folder}")
    if kind == "zarr obstore":
        return ObjectStore(obstore.store.MemoryStore())
    if kind == "zarr path":
        return StorePath(MemoryStore(), "below/here")
    if kind == "zarr root group":
        return zarr.open_group(MemoryStore(), mode="w", zarr_format=3)
    if kind == "obstore memory":
        return obstore.store.MemoryStore()
    return obstore.store.LocalStore(folder / "obstore", mkdir=True)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_datasets_round_trip_through_store_objects(
    kind: str, zarr_format: int, tmp_path: Path
) -> None:
    target = make(kind, tmp_path)
    xr_nczarr.to_nczarr(dataset(), target, mode="w", zarr_format=zarr_format)
    with xr.open_dataset(target, engine="nczarr", chunks={}) as opened:
        xr.testing.assert_identical(opened.load(), dataset().load())
    assert list(xr.open_datatree(target, engine="nczarr").children) == []
    assert "float64 t" in str(xr_nczarr.info(target))
    assert xr_nczarr.verify(target).whole
    with pytest.raises(ExistsError):
        xr_nczarr.to_nczarr(dataset(), target, mode="w-")
    more = dataset().assign_coords(y=[4, 5, 6, 7])
    xr_nczarr.to_nczarr(more, target, append_dim="y")
    assert xr.open_dataset(target, engine="nczarr").y.values.tolist() == [*range(8)]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_zarr_python_dict_can_be_read_and_appended_to(
    zarr_format: Literal[2, 3],
) -> None:
    objects: dict[str, Any] = {}
    dataset().to_zarr(objects, zarr_format=zarr_format, consolidated=False)
    with xr.open_dataset(objects, engine="nczarr", chunks={}) as opened:
        xr.testing.assert_identical(opened.load(), dataset().load())
    more = dataset().assign_coords(y=[4, 5, 6, 7])
    xr_nczarr.to_nczarr(more, objects, append_dim="y")
    for engine in ("zarr", "nczarr"):
        with xr.open_dataset(objects, engine=engine, consolidated=False) as opened:
            assert opened.y.values.tolist() == [*range(8)], engine
            assert opened.t.sum() == 2 * dataset().t.sum(), engine


def test_local_stores_of_other_packages_are_recognized(tmp_path: Path) -> None:
    for target in (make("zarr local", tmp_path), make("obstore local", tmp_path)):
        store = resolve(target, must_exist=False).store
        assert type(store).__name__ == "LocalStore"
        assert store.replaceable
    path = StorePath(LocalStore(tmp_path / "a"), "b")
    assert resolve(path, must_exist=False).store.name == f"{tmp_path}/a/b"


@pytest.mark.skipif(os.sep != "/", reason="needs a single root directory")
@pytest.mark.parametrize("prefix", [None, "/"])
def test_path_in_obstore_local_store_is_opened_as_local_store(
    prefix: str | None, tmp_path: Path
) -> None:
    root = ObjectStore(obstore.store.LocalStore(prefix))
    store = resolve(StorePath(root, str(tmp_path).strip("/")), must_exist=False).store
    assert (type(store).__name__, store.name) == ("LocalStore", str(tmp_path))


def test_store_objects_can_be_copy_sources_and_targets(tmp_path: Path) -> None:
    source, target = MemoryStore(), obstore.store.MemoryStore()
    xr_nczarr.to_nczarr(dataset(), source)
    xr_nczarr.copy(source, target, zarr_format=3)
    xr.testing.assert_identical(xr.open_dataset(target, engine="nczarr"), dataset().load())


@pytest.mark.parametrize("kind", ["zarr local", "zarr memory", "zarr fsspec", "zarr obstore"])
def test_read_only_store_objects_can_be_read_but_not_written(kind: str, tmp_path: Path) -> None:
    target = make(kind, tmp_path)
    xr_nczarr.to_nczarr(dataset(), target)
    frozen = target.with_read_only(True)
    xr.testing.assert_identical(xr.open_dataset(frozen, engine="nczarr"), dataset().load())
    for write in (
        lambda: xr_nczarr.to_nczarr(dataset(), frozen, mode="w"),
        lambda: xr_nczarr.copy({}, frozen),
        lambda: xr_nczarr.copy(target, frozen),
    ):
        with pytest.raises((UnsupportedError, xr_nczarr.NotFoundError), match=r"read-only|no "):
            write()
    xr.testing.assert_identical(xr.open_dataset(target, engine="nczarr"), dataset().load())


def test_zarr_python_zip_store_can_be_read_but_not_written(tmp_path: Path) -> None:
    path = tmp_path / "x.zip"
    xr_nczarr.to_nczarr(dataset(), path)
    target = ZipStore(path, mode="r")
    xr.testing.assert_identical(xr.open_dataset(target, engine="nczarr"), dataset().load())
    writable = ZipStore(tmp_path / "y.zip", mode="w")
    with pytest.raises(UnsupportedError, match=r"cannot replace or remove objects\. Pass the path"):
        xr_nczarr.to_nczarr(dataset(), writable)


def test_zarr_python_group_inherits_parent_dimensions() -> None:
    store = MemoryStore()
    tree = xr.DataTree.from_dict({"/": dataset().load(), "/low": xr.Dataset({"u": ("y", [1] * 4)})})
    xr_nczarr.to_nczarr(tree, store)
    group = zarr.open_group(store, mode="r")["low"]
    opened = xr.open_dataset(group, engine="nczarr")
    assert opened.u.dims == ("y",)
    with pytest.raises(
        UnsupportedError, match="Pass the store as the target, and the path of the group as group"
    ):
        xr_nczarr.to_nczarr(dataset(), zarr.open_group(store, mode="r+")["low"])


def test_accessing_many_in_memory_objects_takes_few_event_loop_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, calls, sync = resolve(MemoryStore()).store, [], zarr.core.sync.sync
    monkeypatch.setattr(
        zarr.core.sync, "sync", lambda *args: [calls.append(args), sync(*args)].pop()
    )
    keys = [f"a/{number}" for number in range(100)]
    store.put([(key, key.encode()) for key in keys])
    assert list(store.sizes_of(keys)) == [len(key) for key in keys]
    store.delete("a/")
    assert list(store.list_keys()) == []
    assert len(calls) < 10


def test_reading_ranges_from_zarr_python_stores_uses_limited_memory(tmp_path: Path) -> None:
    class Wrapped(WrapperStore):
        """A store that xr_nczarr cannot replace with a store of its own."""

    with open(tmp_path / "object", "wb") as file:
        file.truncate(32 * 13 << 20)
    store = resolve(Wrapped(LocalStore(tmp_path))).store
    ranges = [ByteRange("object", number * (13 << 20), 12 << 20) for number in range(32)]
    lengths: list[int] = []
    fetch = partial(lengths.extend, (len(data) for data in store.fetch_ranges(ranges)))
    assert peak_memory(fetch) < 128 << 20
    assert sum(lengths) == 32 * 12 << 20


@pytest.mark.parametrize("kind", ["zarr", "obstore"])
def test_size_limit_applies_to_zarr_python_and_obstore_stores(kind: str) -> None:
    limits = xr_nczarr.Limits(max_chunk_bytes=7, max_consolidated_bytes=7)
    target = MemoryStore() if kind == "zarr" else obstore.store.MemoryStore()
    open_store(parse_target(target)).put([("a", b"12345678")])
    store = open_store(parse_target(target), Access(limits=limits))
    with pytest.raises(LimitError, match="8 bytes long, which exceeds the limit of 7 bytes"):
        list(store.fetch(["a"]))


def test_missing_status_and_retry_apply_to_obstore_stores(http_server: HttpServer) -> None:
    store = obstore.store.from_url(
        http_server.url, client_options={"allow_http": True}, retry_config={"max_retries": 0}
    )
    http_server.fault("status", path="*/a", status=403, times=None)
    http_server.fault("status", path="*/b", status=503, times=1)
    target = parse_target(store)
    with pytest.raises(AccessDeniedError):
        list(open_store(target).fetch(["a"]))
    options = {"missing_status": (403, 404), "retry": {"attempts": 2, "first_wait": 0.01}}
    opened = open_store(target, Access(storage_options=options))
    assert list(opened.fetch(["a", "b"])) == [None, None]
    assert len(http_server.requests_for("/b")) == 2


def test_zarr_python_array_is_rejected_as_target() -> None:
    array = zarr.create_array(MemoryStore(), shape=(1,), dtype="i4")
    with pytest.raises(UnsupportedError, match="cannot be opened as a store"):
        xr.open_dataset(array, engine="nczarr")


def test_error_for_icechunk_session_suggests_passing_its_store() -> None:
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    with pytest.raises(UnsupportedError, match=r"type Session cannot be opened.*session\.store"):
        xr_nczarr.to_nczarr(dataset(), repository.writable_session("main"))


def test_store_objects_can_be_pickled_and_tokenized(tmp_path: Path) -> None:
    target = make("zarr memory", tmp_path)
    xr_nczarr.to_nczarr(dataset(), target)
    store = resolve(target).store
    assert pickle.loads(pickle.dumps(store)).is_same(store)
    first, second = (xr.open_dataset(target, engine="nczarr", chunks={}) for _ in range(2))
    assert tokenize(store) == tokenize(store)
    with dask.config.set(scheduler="processes"):
        assert first.t.sum().compute() == second.t.sum().compute() == 276


def error_of_writing(store: Any) -> str:
    try:
        store.check_writable()
    except StorageError as error:
        return str(error)
    return ""


class OwnMemoryStore(MemoryStore):
    """A subclass of a store in memory, as a user might define it."""


@pytest.mark.parametrize(
    "wrap", [WrapperStore, LoggingStore, lambda inner: LoggingStore(WrapperStore(inner))]
)
@pytest.mark.parametrize("kind", [MemoryStore, OwnMemoryStore])
def test_writing_wrapped_memory_store_in_another_process_is_rejected(wrap: Any, kind: Any) -> None:
    inner = kind()
    xr_nczarr.to_nczarr(dataset(), inner)
    store = resolve(wrap(inner)).store
    assert not store.shared
    assert store.is_same(resolve(inner).store)
    assert pickle.loads(pickle.dumps(store)).is_same(store)
    error = in_a_new_interpreter(error_of_writing, store)
    assert "the worker process has only a copy of the store" in error
    check_that_the_source_is_not_overwritten(inner, wrap(inner))


def commit(repository: Any, data: xr.Dataset, **options: Any) -> str:
    session = repository.writable_session("main")
    xr_nczarr.to_nczarr(data, session.store, **options)
    return str(session.commit("write"))


def test_nczarr_store_in_icechunk_is_readable_at_every_snapshot(tmp_path: Path) -> None:
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path)))
    first = commit(repository, dataset())
    second = commit(repository, dataset().assign_coords(y=[4, 5, 6, 7]), append_dim="y")
    third = commit(repository, dataset().drop_vars("t"), mode="w")

    def read(snapshot: str) -> xr.Dataset:
        store = repository.readonly_session(snapshot_id=snapshot).store
        return xr.open_dataset(store, engine="nczarr", chunks={}).load(scheduler="threads")

    xr.testing.assert_identical(read(first), dataset().load())
    assert read(second).y.values.tolist() == [*range(8)]
    assert read(second).t.dims == ("y", "x")
    assert list(read(third).variables) == ["y"]
    store = repository.readonly_session(snapshot_id=first).store
    assert "float64 t" in str(xr_nczarr.info(store))
    assert xr_nczarr.verify(store).whole
    opened = xr.open_dataset(store, engine="nczarr", chunks={})
    assert opened.t.sum().compute(scheduler="processes") == 276
    with pytest.raises(UnsupportedError, match="read-only"):
        xr_nczarr.to_nczarr(dataset(), store, mode="w")
    with pytest.raises(ConflictError, match=r"requires Zarr v3.* Leave out zarr_format=1$"):
        commit(repository, dataset(), mode="w", zarr_format=1)


def error_of_reading(pickled: bytes) -> str:
    try:
        pickle.loads(pickled).load()
    except StorageError as error:
        return str(error)
    return ""


def test_consolidated_option_is_ignored_if_store_does_not_support_it() -> None:
    class UnconsolidatedStore(WrapperStore[MemoryStore]):
        @property
        def supports_consolidated_metadata(self) -> bool:
            return False

    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    for store in (repository.writable_session("main").store, UnconsolidatedStore(MemoryStore())):
        dataset().to_zarr(store, zarr_format=3)
        for engine in ("zarr", "nczarr"):
            opened = xr.open_dataset(store, engine=engine, consolidated=True)
            xr.testing.assert_identical(opened, dataset().load())
            assert xr.open_datatree(store, engine=engine, consolidated=True).t.shape == (4, 6)


@pytest.mark.parametrize("consolidated", [True, False, None])
def test_outdated_consolidated_metadata_in_icechunk_is_ignored(consolidated: bool | None) -> None:
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    store = repository.writable_session("main").store
    xr_nczarr.to_nczarr(dataset(), store, zarr_format=3, dialect="zarr", consolidated=True)
    zarr.open_group(store, mode="a", use_consolidated=False)["t"].attrs["changed"] = "yes"
    for engine in ("zarr", "nczarr"):
        opened = xr.open_dataset(store, engine=engine, consolidated=consolidated)
        assert opened.t.attrs["changed"] == "yes"


@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
def test_icechunk_names_can_resemble_chunk_keys(dialect: str) -> None:
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    store = repository.writable_session("main").store
    tree = xr.DataTree.from_dict(
        {
            "/": xr.Dataset({"c": ("x", [1, 2])}),
            "/g/c/0": xr.Dataset({"c": ((), 5), "0": ("y", [1, 2, 3])}),
            "/g/c.0": xr.Dataset({"1": ((), 5)}),
        }
    )
    for _ in range(2):
        xr_nczarr.to_nczarr(tree, store, mode="w", dialect=dialect)
        xr.testing.assert_equal(xr.open_datatree(store, engine="nczarr").load(), tree)
        assert len(xr_nczarr.info(store).as_dict()["groups"]) == len(tree.groups)
        assert xr_nczarr.verify(store).whole


def test_writable_icechunk_session_cannot_be_read_in_other_processes() -> None:
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    xr_nczarr.to_nczarr(dataset(), session.store)
    opened = xr.open_dataset(session.store, engine="nczarr")
    pickled = pickle.dumps(opened)
    xr.testing.assert_identical(pickle.loads(pickled).load(), dataset().load())
    error = in_a_new_interpreter(error_of_reading, pickled)
    assert "a writable Icechunk session cannot be accessed from other processes" in error
    assert "pass the store of a read-only session" in error


def error_of_reading_in_a_fork() -> str:
    import icechunk

    store = icechunk.Repository.create(icechunk.in_memory_storage()).writable_session("main").store
    xr_nczarr.to_nczarr(dataset(), store)
    opened = xr.open_dataset(store, engine="nczarr")

    def read(answers: Any) -> None:
        for action in (opened.load, lambda: xr.open_dataset(store, engine="nczarr")):
            with pytest.raises(StorageError) as caught:
                action()
            answers.put(str(caught.value))

    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=read, args=(answers,), daemon=True)
    child.start()
    return str(answers.get(timeout=60)) + str(answers.get(timeout=60))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_reading_icechunk_store_in_forked_process_raises_error() -> None:
    pytest.importorskip("icechunk")
    error = in_a_new_interpreter(error_of_reading_in_a_fork)
    assert error.count("cannot be used in this process, which was forked after") == 2
    assert error.count("start processes with") == 2


def test_regions_written_by_icechunk_forks_can_be_merged_in_session(tmp_path: Path) -> None:
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path)))
    session = repository.writable_session("main")
    xr_nczarr.to_nczarr(dataset(), session.store, compute=False)
    session.commit("template")
    session = repository.writable_session("main")
    whole, forks = dataset().load(), []
    for start in range(0, 4, 2):
        fork = pickle.loads(pickle.dumps(session.fork()))
        part = whole[["t"]].drop_vars("y").isel(y=slice(start, start + 2))
        xr_nczarr.to_nczarr(part, fork.store, region={"y": slice(start, start + 2)})
        forks.append(pickle.loads(pickle.dumps(fork)))
    session.merge(*forks)
    with xr.open_dataset(session.store, engine="nczarr") as opened:
        xr.testing.assert_identical(opened.load(), whole)


def test_error_for_failed_icechunk_append_suggests_discarding_changes() -> None:
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    commit(repository, dataset())

    def fail(block: np.ndarray) -> np.ndarray:
        raise ValueError("no values")

    later = dataset().assign_coords(y=[4, 5, 6, 7])
    failing = later.assign(t=later.t.copy(data=later.t.data.map_blocks(fail, dtype=float)))
    session = repository.writable_session("main")
    with pytest.raises(ValueError, match="no values") as caught:
        xr_nczarr.to_nczarr(failing, session.store, append_dim="y")
    assert "session.discard_changes()" in caught.value.__notes__[0]
    session.discard_changes()
    xr_nczarr.to_nczarr(later, session.store, append_dim="y")
    with xr.open_dataset(session.store, engine="nczarr") as opened:
        assert opened.y.values.tolist() == [*range(8)]


def test_virtualizarr_manifest_store_is_read(tmp_path: Path) -> None:
    parsers = pytest.importorskip("virtualizarr.parsers")
    registry = pytest.importorskip("virtualizarr.registry")
    path = tmp_path / "a.nc"
    dataset().load().to_netcdf(path, engine="h5netcdf")
    local = obstore.store.LocalStore()
    stores = registry.ObjectStoreRegistry({"file://": local})
    manifests = parsers.HDFParser()(url=f"file://{path}", registry=stores)
    with xr.open_dataset(manifests, engine="nczarr") as opened:
        np.testing.assert_array_equal(opened.t, dataset().t)
        assert opened.attrs["title"] == "objects"
    assert "float64 t" in str(xr_nczarr.info(manifests))
    assert xr_nczarr.verify(manifests).whole
    copied: dict[str, bytes] = {}
    xr_nczarr.copy(manifests, copied)
    np.testing.assert_array_equal(xr.open_dataset(copied, engine="nczarr").t, dataset().t)
    with pytest.raises(UnsupportedError, match="read-only"):
        xr_nczarr.to_nczarr(dataset(), manifests)


def test_writing_values_of_virtual_variables_is_rejected(tmp_path: Path) -> None:
    virtualizarr = pytest.importorskip("virtualizarr")
    parsers = pytest.importorskip("virtualizarr.parsers")
    registry = pytest.importorskip("virtualizarr.registry")
    path = tmp_path / "a.nc"
    dataset().load().to_netcdf(path, engine="h5netcdf")
    virtual = virtualizarr.open_virtual_dataset(
        f"file://{path}",
        registry=registry.ObjectStoreRegistry({"file://": obstore.store.LocalStore()}),
        parser=parsers.HDFParser(),
        loadable_variables=["y"],
    )
    with pytest.raises(UnsupportedError, match=r"is virtual.*\(variable /t\)\. .*to_kerchunk"):
        xr_nczarr.to_nczarr(virtual, {})
    xr_nczarr.to_nczarr(virtual[["y"]], {})


@pytest.mark.parametrize("target", [dataset(), dataset().t, xr.DataTree(dataset())])
def test_error_for_opening_xarray_object_includes_object_type(target: Any) -> None:
    name = type(target).__name__
    with pytest.raises(UnsupportedError, match=f"^an object of type {name} cannot be opened"):
        xr.open_dataset(target, engine="nczarr")


def test_mapping_with_keys_that_are_not_strings_is_rejected() -> None:
    with pytest.raises(StorageError, match="mapping: the mapping contains the key 1; expected"):
        xr.open_dataset({1: b""}, engine="nczarr")
    with pytest.raises(StorageError, match="mapping: the mapping contains the key 1; expected"):
        xr_nczarr.to_nczarr(dataset(), {1: b""})


def check_that_the_source_is_not_overwritten(source: Any, target: Any, **options: Any) -> None:
    xr_nczarr.to_nczarr(dataset(), source, mode="w", zarr_format=3, **options)
    lazy = xr.open_dataset(source, engine="nczarr", chunks={}, **options)
    with pytest.raises(RefusedError, match="reads its values from"):
        xr_nczarr.to_nczarr(lazy, target, mode="w", zarr_format=3, **options)
    xr.testing.assert_equal(lazy.load(), dataset())


def test_lazy_dataset_cannot_overwrite_its_source_via_another_store_object() -> None:
    objects: dict[str, Any] = {}
    check_that_the_source_is_not_overwritten(MemoryStore(objects), MemoryStore(objects))


def test_lazy_dataset_cannot_overwrite_its_icechunk_session() -> None:
    icechunk = pytest.importorskip("icechunk")
    repository = icechunk.Repository.create(icechunk.in_memory_storage())
    session = repository.writable_session("main")
    assert session.store is not session.store
    check_that_the_source_is_not_overwritten(session.store, session.store)


class OwnLocalStore(LocalStore):
    """A subclass of a local store, as a user might define it."""


def wrapped_local(folder: Path) -> Any:
    return LoggingStore(LocalStore(folder))


@pytest.mark.parametrize(
    "target_in",
    [
        pytest.param(lambda folder: wrapped_local(folder / "s"), id="wrapped"),
        pytest.param(lambda folder: StorePath(wrapped_local(folder), "s"), id="wrapped-folder"),
        pytest.param(lambda folder: OwnLocalStore(folder / "s"), id="subclass"),
        pytest.param(lambda folder: f"dir::file://{folder}/s", id="fsspec"),
    ],
)
def test_lazy_dataset_cannot_overwrite_its_local_source_via_another_store(
    tmp_path: Path, target_in: Any
) -> None:
    path, target = tmp_path / "s", target_in(tmp_path)
    check_that_the_source_is_not_overwritten(path, target)
    check_that_the_source_is_not_overwritten(target, path)
    assert pickle.loads(pickle.dumps(resolve(target).store)).is_same(resolve(path).store)


def test_lazy_dataset_cannot_overwrite_its_source_via_wrapped_store() -> None:
    memory = pytest.importorskip("obstore").store.MemoryStore()
    check_that_the_source_is_not_overwritten(memory, LoggingStore(ObjectStore(memory)))
    remote = FsspecStore.from_url("memory://wrapped/s")
    check_that_the_source_is_not_overwritten("memory://wrapped/s", LoggingStore(remote))
    check_that_the_source_is_not_overwritten(remote, LoggingStore(remote))


@pytest.mark.parametrize("cache", ["simplecache", "filecache"])
@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_lazy_dataset_read_through_cache_cannot_overwrite_its_source(
    tmp_path: Path, cache: str, protocol: str
) -> None:
    url = f"{protocol}://{tmp_path}/s"
    xr_nczarr.to_nczarr(dataset(), url)
    lazy = xr.open_dataset(f"{cache}::{url}", engine="nczarr", chunks={})
    with pytest.raises(RefusedError, match="reads its values from"):
        xr_nczarr.to_nczarr(lazy, url, mode="w")


@pytest.mark.parametrize("target", ["memory://same/s/", "memory:///same/s"])
def test_lazy_dataset_cannot_overwrite_its_source_via_another_url(target: str) -> None:
    check_that_the_source_is_not_overwritten("memory://same/s", target)


@pytest.mark.parametrize("client", ["fsspec", "obstore"])
@pytest.mark.parametrize("target", ["s3://bucket/s/", "s3a://bucket/s"])
def test_lazy_dataset_cannot_overwrite_its_source_via_another_s3_url(
    s3_server: S3Server, client: str, target: str
) -> None:
    options = {**s3_server.storage_options, "client": client}
    check_that_the_source_is_not_overwritten("s3://bucket/s", target, storage_options=options)
