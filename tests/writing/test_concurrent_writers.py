"""Concurrent writers of one store lose no values."""

import os
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread

import dask
import dask.array as da
import numpy as np
import pytest
import xarray as xr

from tests.processes import run_in_processes
from tests.reading import read
from tests.writes import RemoteMemoryStore, series
from xr_nczarr import ConflictError, ExistsError, to_nczarr
from xr_nczarr.dataset import resolve
from xr_nczarr.storage.system import directory_lock


def steps(start, values=None):
    values = np.full(2, float(start)) if values is None else values
    return xr.Dataset({"v": ("t", values)}, coords={"t": [start, start + 1]})


def values_that_call(action, start):
    """Return dask values whose computation calls `action`."""

    def block(_):
        action()
        return np.full(2, float(start))

    return da.zeros(2, chunks=2).map_blocks(block, dtype=float, meta=np.empty(0))


@pytest.mark.parametrize("name", ["store", "store.zip"])
@pytest.mark.parametrize("mode", ["w-", "a"])
def test_store_created_by_concurrent_writer_is_not_replaced(tmp_path, name, mode):
    path = tmp_path / name
    values = values_that_call(lambda: to_nczarr(steps(5), path), 0)
    with dask.config.set(scheduler="sync"):
        with pytest.raises(ExistsError, match="another writer created the store at the same time"):
            to_nczarr(steps(0, values), path, mode=mode)
        assert os.listdir(tmp_path) == [name]
        xr.testing.assert_identical(read(path, consolidated=False), steps(5))


@pytest.mark.parametrize("first", ["append", "region", "replace", "group"])
def test_append_waits_for_replacement_of_whole_store(tmp_path, first):
    """Otherwise, the append would write to the removed directory, or mix old and new values."""
    path = tmp_path / "store"
    to_nczarr(steps(0), path)
    second = Thread(target=to_nczarr, args=(steps(4), path), kwargs={"append_dim": "t"})
    dataset = steps(2, values_that_call(second.start, 2))
    with dask.config.set(scheduler="sync"):
        if first == "append":
            to_nczarr(dataset, path, append_dim="t", atomic=True)
        elif first == "region":
            to_nczarr(dataset.v, path, region={"t": slice(0, 2)}, atomic=True)
        elif first == "replace":
            to_nczarr(dataset, path, mode="w")
        else:
            to_nczarr(dataset.rename(t="u"), path, mode="w", group="g")
    second.join(60)
    assert not second.is_alive()
    start = {"append": [0, 1, 2, 3], "replace": [2, 3]}.get(first, [0, 1])
    assert read(path, consolidated=False).t.values.tolist() == [*start, 4, 5]
    assert sorted(os.listdir(tmp_path)) == ["store"]


@pytest.mark.parametrize("layout", [{}, {"chunks": (4,), "shards": (8,)}], ids=["chunks", "shards"])
@pytest.mark.parametrize(
    ("late", "options", "expected"),
    [
        (steps(2), {"append_dim": "t"}, [0, 0, 2, 2, 4, 4]),
        (steps(0).v + 9, {"region": "auto"}, [9, 9, 4, 4]),
        (steps(0).v[1:] + 9, {"region": "auto"}, [0, 9, 4, 4]),
        (steps(0).v + 9, {"mode": "a"}, [9, 9, 4, 4]),
    ],
    ids=["append", "region", "part of a region", "overwrite"],
)
def test_delayed_write_can_be_computed_after_intervening_append(
    tmp_path, late, options, expected, layout
):
    """The delayed write knows only the length that the array had when the write started."""
    path, encoding = tmp_path / "store", {"v": {"chunks": (8,), **layout}}
    to_nczarr(steps(0), path, encoding=encoding, zarr_format=3 if layout else 2)
    delayed = to_nczarr(late.chunk(), path, compute=False, **options)
    to_nczarr(steps(4), path, append_dim="t")
    delayed.compute()
    assert read(path, consolidated=False).v.values.tolist() == expected


@pytest.mark.parametrize("option", ["sync", "atomic", "overwrite", "mode"])
def test_invalid_values_of_write_options_are_rejected(tmp_path, option):
    options = {option: "always"}
    options = {"storage_options": options} if option == "sync" else options
    with pytest.raises(ValueError, match=f"\"?{option}\"? must be one of .*, not 'always'"):
        to_nczarr(steps(0), tmp_path / "store", **options)


@pytest.mark.parametrize("empty", [True, False, None])
def test_chunks_of_fill_values_are_stored_only_on_request(tmp_path, empty):
    encoding = {"v": {"_FillValue": 0.0, "write_empty_chunks": empty}}
    to_nczarr(xr.zeros_like(steps(0)), tmp_path / "s", encoding=encoding)
    appended = steps(2, [np.nan, np.nan])
    appended.v.encoding["write_empty_chunks"] = empty
    to_nczarr(appended, tmp_path / "s", append_dim="t")
    assert [(tmp_path / f"s/v/{n}").exists() for n in (0, 1)] == [bool(empty)] * 2


@pytest.mark.parametrize("options", [{}, {"mode": "w"}, {"append_dim": "t"}], ids=str)
def test_failed_write_does_not_write_remaining_dask_blocks(tmp_path, options):
    """dask's threads continue after a failure. They could overwrite the values of a later write."""
    path, begun, reported = tmp_path / "store", Event(), Event()
    if options:
        to_nczarr(xr.Dataset({"a": ("t", np.zeros(2))}), path, encoding={"a": {"chunks": (1,)}})
    before = sorted(tmp_path.rglob("*"))

    def block(values, block_info):
        if block_info[0]["chunk-location"] == (0,):
            begun.wait()
            raise RuntimeError("refused")
        begun.set()
        reported.wait()
        return values

    field = da.ones(2, chunks=1).map_blocks(block, dtype=float, meta=np.empty(0))
    encoding = {} if "append_dim" in options else {"encoding": {"a": {"chunks": (1,)}}}
    with ThreadPoolExecutor(2) as pool, dask.config.set(pool=pool):
        with pytest.raises(RuntimeError, match="refused"):
            to_nczarr(xr.Dataset({"a": ("t", field)}), path, **encoding, **options)
        reported.set()
    assert sorted(tmp_path.rglob("*")) == before


def write_element(path, index):
    to_nczarr(
        series(index, index + 1)[["n"]].drop_vars(["x"], errors="ignore"),
        path,
        region={"time": slice(index, index + 1)},
    )


# Regression D56
def test_concurrent_region_writes_to_one_chunk_lose_no_values(path):
    empty = series(0, 12)[["n"]]
    empty["n"] = xr.zeros_like(empty.n)
    to_nczarr(empty, path, encoding={"n": {"chunks": (12,)}})
    run_in_processes(3, write_element, [(path, index) for index in range(12)])
    assert read(path).n.values.tolist() == list(range(12))


def test_concurrent_region_writes_to_zip_file_lose_no_values(tmp_path):
    path = tmp_path / "store.zip"
    to_nczarr(series(0, 12)[["n"]] * 0, path)
    run_in_processes(3, write_element, [(path, index) for index in range(12)])
    assert read(path).n.values.tolist() == list(range(12))


def test_thread_cannot_wait_for_its_own_lock_of_directory_replaced_meanwhile(tmp_path):
    path = tmp_path / "store"
    path.mkdir()
    errors = []

    def nested():
        with directory_lock(path, exclusive=True):
            try:
                with directory_lock(path, exclusive=False):
                    pass
            except ConflictError as error:
                errors.append(error)

    thread = Thread(target=nested, daemon=True)
    with directory_lock(path, exclusive=True):
        thread.start()
        thread.join(0.5)
        path.rename(tmp_path / "old")
        path.mkdir()
    thread.join(10)
    assert len(errors) == 1


def test_zip_file_and_symbolic_link_to_it_share_lock(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.zip").symlink_to(tmp_path / "folder/file.zip")
    to_nczarr(steps(0), tmp_path / "folder/file.zip")
    order = []

    def append():
        to_nczarr(steps(2), tmp_path / "link.zip", append_dim="t")
        order.append("append")

    thread = Thread(target=append)
    with resolve(tmp_path / "folder/file.zip").store.lock(""):
        thread.start()
        thread.join(0.5)
        order.append("lock")
    thread.join()
    assert order == ["lock", "append"]


# Regression D56
def test_partial_chunk_writes_are_rejected_if_store_has_no_locks():
    store = RemoteMemoryStore({})
    to_nczarr(series(0, 8), store, encoding={"n": {"chunks": (4,)}, "a": {"chunks": (4, 4)}})
    part = -series(0, 8)[["n"]].isel(time=slice(1, 4)).drop_vars("time")
    with pytest.raises(ConflictError, match="multiples of 4"):
        to_nczarr(part, store, region={"time": slice(1, 4)})
    to_nczarr(part, store, region={"time": slice(1, 4)}, safe_chunks=False)
    assert read(store).n.values.tolist() == [0, -1, -2, -3, 4, 5, 6, 7]


def replace_directory(kind, path, call):
    """Replace the directory of the store, and call `call` once its objects have been copied."""
    if kind == "append":
        to_nczarr(steps(4, values_that_call(call, 4)), path, append_dim="t", atomic=True)
    else:
        data = steps(0, values_that_call(call, 0)).v
        to_nczarr(data, path, region={"t": slice(0, 2)}, atomic=True)


@pytest.mark.parametrize("kind", ["append", "region"])
@pytest.mark.parametrize("compute", [True, False], ids=["region", "delayed region"])
def test_region_write_during_replacement_of_directory_loses_no_values(tmp_path, kind, compute):
    path = tmp_path / "store"
    to_nczarr(xr.concat([steps(0), steps(2)], "t"), path, encoding={"v": {"chunks": (2,)}})
    values = da.from_array(np.full(2, 7.0), chunks=2)
    region = {"t": slice(2, 4)}
    delayed = to_nczarr(steps(2, values).v, path, region=region, compute=False)

    def write():
        if compute:
            to_nczarr(steps(2, values).v, path, region=region)
        else:
            delayed.compute(scheduler="sync")

    writer = Thread(target=write)

    def start():
        writer.start()
        writer.join(0.5)  # without a lock, the write would end now

    with dask.config.set(scheduler="sync"):
        replace_directory(kind, path, start)
    writer.join()
    assert read(path).v.values.tolist()[2:4] == [7.0, 7.0]
    assert read(path).sizes["t"] == (6 if kind == "append" else 4)


@pytest.mark.parametrize("kind", ["append", "region"])
@pytest.mark.parametrize("options", [{}, {"compute": False}], ids=["region", "delayed region"])
def test_dask_block_cannot_write_to_store_that_is_being_replaced(tmp_path, kind, options):
    path = tmp_path / "store"
    to_nczarr(xr.concat([steps(0), steps(2)], "t"), path, encoding={"v": {"chunks": (2,)}})
    values = da.from_array(np.full(2, 7.0), chunks=2)

    def write():
        delayed = to_nczarr(steps(2, values).v, path, region={"t": slice(2, 4)}, **options)
        if delayed is not None:
            delayed.compute()

    with dask.config.set(scheduler="sync"), pytest.raises(ConflictError, match="same store"):
        replace_directory(kind, path, write)
    assert read(path).v.values.tolist() == [0.0, 0.0, 2.0, 2.0]


def test_replacement_of_directory_waits_for_region_write(tmp_path):
    path = tmp_path / "store"
    to_nczarr(xr.concat([steps(0), steps(2)], "t"), path, encoding={"v": {"chunks": (2,)}})
    append = Thread(
        target=to_nczarr, args=(steps(4), path), kwargs={"append_dim": "t", "atomic": True}
    )
    waits = []

    def start():
        append.start()
        append.join(0.5)
        waits.append(append.is_alive())

    with dask.config.set(scheduler="sync"):
        to_nczarr(steps(2, values_that_call(start, 7)).v, path, region={"t": slice(2, 4)})
    append.join()
    assert waits == [True]
    assert read(path).v.values.tolist() == [0.0, 0.0, 7.0, 7.0, 4.0, 4.0]


def append_one(path, index):
    to_nczarr(series(index, index + 1), path, append_dim="time", allow_duplicates=True)


# Regression D59
@pytest.mark.parametrize("suffix", ["", ".zip"])
def test_concurrent_appends_by_two_processes_are_serialized(path, suffix):
    path = f"{path}{suffix}"
    encoding = {"time": {"units": "hours since 2000-01-01"}}
    to_nczarr(series(0, 1), path, unlimited_dims="time", encoding=encoding)
    run_in_processes(2, append_one, [(path, index) for index in range(1, 7)])
    stored = read(path, consolidated="check")
    assert sorted(stored.n.values.tolist()) == list(range(7))
    xr.testing.assert_identical(stored.sortby("time"), series(0, 7))


def append_texts(path, numbers):
    for number in numbers:
        text = xr.Dataset({"s": ("t", np.array(["x" * number], object)), "n": ("t", [number])})
        to_nczarr(text, path, append_dim="t")


# Regression D59
def test_concurrent_appends_of_longer_strings_are_serialized(path):
    append_texts(path, [1])
    run_in_processes(2, append_texts, [(path, range(2, 40, 2)), (path, range(3, 40, 2))])
    stored = read(path, consolidated="check")
    assert sorted(stored.n.values.tolist()) == [*range(1, 40)]
    assert [len(text) for text in stored.s.values] == stored.n.values.tolist()


def write_text(path, start):
    texts = da.from_array(np.array(["one", "two", "three", "four"], object), chunks=2)
    region = {"x": slice(start, start + 4)}
    to_nczarr(xr.Dataset({"s": ("x", texts)}), path, region=region)


@pytest.mark.filterwarnings("ignore:variable s has data in the form of a dask array")
def test_threads_can_write_text_concurrently(path):
    text = np.full(400, "later")
    stored = xr.Dataset({"s": ("x", text, {}, {"dtype": str, "chunks": (4,)})})
    to_nczarr(stored, path, dialect="zarr")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write_text, [path] * 100, range(0, 400, 4)))
    assert read(path).s.values.tolist() == ["one", "two", "three", "four"] * 100
