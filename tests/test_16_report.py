"""``ds.nczarr.report()`` and ``.info()``: what a dataset still knows of its store."""

import copy
import pickle
from pathlib import Path

import dask.base
import numpy as np
import pytest
import xarray as xr
from distributed import Client
from fsspec.implementations.memory import MemoryFileSystem

import xr_nczarr
from xr_nczarr import events
from xr_nczarr.errors import NotFoundError
from xr_nczarr.writing.sources import lazy_arrays


@pytest.fixture
def store():
    dataset = xr.Dataset({"v": ("x", np.arange(40.0)), "w": ("x", np.arange(40.0))})
    encoding = {name: {"chunks": (10,)} for name in "vw"}
    found = {}
    xr_nczarr.to_nczarr(dataset, found, encoding=encoding)
    del found["v/1"], found["v/3"]
    return found


@pytest.mark.parametrize("chunks", [None, {}])
def test_filled_chunks_are_counted(store, chunks):
    dataset = xr.open_dataset(store, engine="nczarr", chunks=chunks)
    assert repr(dataset.nczarr.report()) == "nothing was filled, retried or repaired"
    dataset.load()
    report = dataset.nczarr.report()
    assert report.filled == {"/v": 2}
    assert repr(report) == "filled: 2 missing chunks of /v"
    assert "2 missing chunks of /v" in report._repr_html_()
    assert dataset.isel(x=slice(5)).copy(deep=True).nczarr.report().filled == {"/v": 2}
    assert xr.open_dataset(store, engine="nczarr").nczarr.report().filled == {}


def test_every_group_of_a_tree_tells_of_all(store):
    tree = xr.open_datatree(store, engine="nczarr")
    tree["v"].load()
    expected = {"filled": {"/v": 2}, "retried": {}, "repaired": [], "elsewhere": False}
    assert tree.nczarr.report().as_dict() == expected


def test_what_was_repaired_is_told(store):
    for key in (".zgroup", ".zattrs"):
        store[key] = store[key].replace(b'"w"', b'"w","<gone>"')
    report = xr.open_dataset(store, engine="nczarr", consolidated=False).nczarr.report()
    assert len(report.repaired) == 1
    assert "/&lt;gone&gt;: listed in" in report._repr_html_()


class Faltering(MemoryFileSystem):
    """A filesystem each of whose objects times out the first time."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def cat_file(self, path, start=None, end=None, **options):
        if path not in self.seen:
            self.seen.add(path)
            raise TimeoutError
        return super().cat_file(path, start, end, **options)


def test_requests_that_were_made_again_are_counted(store):
    filesystem = Faltering()
    filesystem.pipe({f"/report/{key}": value for key, value in store.items()})
    dataset = xr.open_dataset(filesystem.get_mapper("/report"), engine="nczarr")
    filesystem.rm("/report", recursive=True)
    assert dataset.nczarr.report().retried["TimeoutError"] >= 1


def test_a_dataset_without_origin_is_told_so(store):
    for other in (xr.Dataset(), xr.open_dataset(store, engine="nczarr")["v"]):
        with pytest.raises(NotFoundError, match="where it was opened from"):
            other.nczarr.report()


def test_info_of_a_dataset_is_that_of_its_store(store, tmp_path):
    dataset = xr.open_dataset(store, engine="nczarr")
    assert repr(dataset.nczarr.info()) == repr(xr_nczarr.info(store))
    assert "2 of 4 stored" in repr(dataset.nczarr.info())
    xr_nczarr.to_nczarr(dataset, tmp_path / "x")
    opened = pickle.loads(pickle.dumps(xr.open_dataset(tmp_path / "x", engine="nczarr")))
    assert "dialect" in repr(opened.nczarr.info())
    with pytest.raises(NotFoundError, match="another process"):
        pickle.loads(pickle.dumps(dataset)).nczarr.info()


def test_the_origin_hides_secrets_and_changes_no_token(store):
    options = {"storage_options": {"password": "secret"}}
    dataset = xr.open_dataset(store, engine="nczarr", **options)
    assert "secret" not in repr(dataset.encoding)
    other = xr.open_dataset(store, engine="nczarr", **options)
    other.load()
    again = xr.open_dataset(store, engine="nczarr", **options)
    assert dask.base.tokenize(again) == dask.base.tokenize(dataset)
    assert copy.deepcopy(dataset).encoding["nczarr"] is dataset.encoding["nczarr"]
    sent = pickle.loads(pickle.dumps(other))
    assert sent.nczarr.report().filled == {"/v": 2}  # in the same process it is the same


def test_a_dataset_with_an_origin_is_written_by_every_engine(store, tmp_path):
    dataset = xr.open_dataset(store, engine="nczarr")
    dataset.to_netcdf(tmp_path / "x.nc")
    dataset.to_zarr(tmp_path / "x.zarr", zarr_format=2, consolidated=False)
    with xr.open_dataset(tmp_path / "x.nc") as again:
        assert again.identical(dataset)


def test_what_workers_counted_is_gathered(store, tmp_path, workers):
    xr_nczarr.to_nczarr(xr.Dataset(), tmp_path / "x")
    for key, value in store.items():
        path = tmp_path / "x" / key
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(value)
    dataset = xr.open_dataset(tmp_path / "x", engine="nczarr", chunks={})
    other = xr.open_dataset(tmp_path / "x", engine="nczarr", chunks={})
    assert not dataset.nczarr.report().elsewhere
    dataset.compute(scheduler=workers)
    here = dataset.nczarr.report()
    assert here.filled == {}
    assert "not counted: what other processes read" in repr(here)
    gathered = dataset.nczarr.report(client=workers)
    assert gathered.filled == {"/v": 2}
    assert "not counted" not in repr(gathered)
    dataset.load(scheduler="threads")
    assert dataset.nczarr.report(workers).filled == {"/v": 4}
    assert other.nczarr.report(workers).filled == {}


def test_workers_in_this_process_are_counted_once(store):
    dataset = xr.open_dataset(store, engine="nczarr", chunks={})
    options = {"processes": False, "dashboard_address": None, "n_workers": 2}
    with Client(**options, set_as_default=False) as client:
        dataset.compute(scheduler=client)
        assert dataset.nczarr.report().filled == {"/v": 2}
        assert dataset.nczarr.report(client).filled == {"/v": 2}


def test_events_of_many_stores_do_not_pile_up():
    for number in range(2000):
        events.events_of(str(number))
    assert len(events._known) < 1500


def test_what_was_counted_changes_no_token_of_a_remote_store(store, http_server):
    for key, value in store.items():
        path = Path(http_server.root, "x", key)
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(value)
    url = f"{http_server.url}/x"
    one, other = (xr.open_dataset(url, engine="nczarr", chunks={}) for _ in range(2))
    assert one.v.data.name == other.v.data.name
    one, other = (next(lazy_arrays(each.w.data)) for each in (one, other))
    assert dask.base.tokenize(one) == dask.base.tokenize(other)
    assert not one.stored.options.events.sent
