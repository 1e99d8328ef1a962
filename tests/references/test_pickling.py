"""The parts of a reference set that are pickled for a worker, and those that it reads again."""

import gc
import json
import pickle
from weakref import WeakValueDictionary

import dask
import numpy as np
import pytest
import xarray as xr

from tests.reading import open_store
from tests.stores import array_document
from xr_nczarr.backend.lazy import SelectedArray
from xr_nczarr.errors import ReferenceSetError
from xr_nczarr.references import document as reference_document
from xr_nczarr.references import write
from xr_nczarr.storage import SharedCache

CHUNKS = 12_000
VALUES = np.random.default_rng(3).permutation(CHUNKS).astype("<i4")


def document(target):
    array = array_document([CHUNKS], chunks=[1])
    chunks = {f"t/{i}": [str(target), 4 * int(place), 4] for i, place in enumerate(VALUES)}
    metadata = {".zgroup": '{"zarr_format": 2}', "t/.zarray": json.dumps(array)}
    metadata["t/.zattrs"] = json.dumps({"_ARRAY_DIMENSIONS": ["x"]})
    return {"version": 1, "templates": {"u": "nowhere"}, "refs": metadata | chunks}


@pytest.fixture
def served(http_server):
    """Return a server with the referenced file, and with a document of many references to it."""
    np.arange(CHUNKS, dtype="<i4").tofile(f"{http_server.root}/data.bin")
    with open(f"{http_server.root}/refs.json", "w") as file:
        json.dump(document("{{u}}"), file)
    http_server.options = {"template_overrides": {"u": "data.bin"}}
    return http_server


@pytest.fixture
def clear_cached_sets(monkeypatch):
    """Return a function that clears the cached reference sets of this process."""

    def clear_cached_sets():
        monkeypatch.setattr(reference_document, "_used", WeakValueDictionary())
        monkeypatch.setattr(reference_document, "_reread", SharedCache(4))

    return clear_cached_sets


def lazy_array(dataset):
    array = dataset.t.variable._data
    while not hasattr(array, "stored"):
        array = array.source if isinstance(array, SelectedArray) else array.array
    return array.stored


def opened(server, **options):
    return xr.open_dataset(
        f"{server.url}/refs.json", engine="nczarr", storage_options=server.options, **options
    )


def test_pickled_large_reference_set_contains_only_its_url(served):
    assert len(pickle.dumps(opened(served))) < 4000
    assert len(pickle.dumps(lazy_array(opened(served)))) < 2000
    graph = dict(opened(served, chunks={"x": 1000}).t.data.__dask_graph__())
    assert max(len(pickle.dumps(task)) for task in graph.values()) < 2500


def test_each_process_reads_reference_document_once(served, workers):
    dataset = opened(served, chunks={"x": 1000})
    assert dataset.t.data.compute(scheduler=workers).tolist() == VALUES.tolist()
    assert len(served.requests_for("/refs.json")) <= 3
    with dask.config.set(scheduler=workers):
        assert opened(served, chunks={"x": 500}).t.values[:9].tolist() == VALUES[:9].tolist()
    assert len(served.requests_for("/refs.json")) <= 4


def test_unpickled_reference_set_is_read_on_first_use(served, clear_cached_sets):
    travelled = pickle.dumps(lazy_array(opened(served)))
    served.clear()
    clear_cached_sets()
    arrived = pickle.loads(travelled)
    assert len(pickle.dumps(arrived)) < 2000
    assert not served.requests_for("*")
    assert arrived.read((slice(0, 5),)).tolist() == VALUES[:5].tolist()
    assert pickle.loads(travelled).read((slice(5, 9),)).tolist() == VALUES[5:9].tolist()
    assert len(served.requests_for("/refs.json")) == 1


@pytest.mark.parametrize("change", ["changed", "removed"])
def test_changed_reference_document_raises_reference_set_error(tmp_path, clear_cached_sets, change):
    path = tmp_path / "refs.json"
    path.write_text(json.dumps(document("data.bin")))
    travelled = pickle.dumps(open_store(path))
    if change == "changed":
        path.write_text(json.dumps(document("other.bin")))
    else:
        path.unlink()
    clear_cached_sets()
    with pytest.raises(ReferenceSetError, match=change) as caught:
        list(pickle.loads(travelled).fetch(["t/0"]))
    assert str(path) in str(caught.value)
    assert "as a dictionary" in str(caught.value)


def test_in_memory_reference_set_is_pickled_completely(tmp_path, clear_cached_sets):
    VALUES.tofile(tmp_path / "data.bin")
    travelled = pickle.dumps(open_store(document(tmp_path / "data.bin")))
    clear_cached_sets()
    assert len(travelled) > 64 << 10
    (data,) = pickle.loads(travelled).fetch(["t/0"])
    assert len(data) == 4


def test_pickled_parquet_variable_contains_only_its_metadata(tmp_path):
    np.arange(CHUNKS, dtype="<i4").tofile(tmp_path / "data.bin")
    refs = document(tmp_path / "data.bin")["refs"]
    refs[".zattrs"] = json.dumps({"long": "text" * 10_000})
    write(refs, tmp_path / "set.parq", record_size=2000)
    dataset = xr.open_dataset(tmp_path / "set.parq", engine="nczarr", chunks={"x": 6000})
    graph = dict(dataset.t.data.__dask_graph__())
    assert max(len(pickle.dumps(task)) for task in graph.values()) < 2500
    pickled = pickle.dumps(lazy_array(xr.open_dataset(tmp_path / "set.parq", engine="nczarr")))
    assert len(pickled) < 2000
    part = pickle.loads(pickled).read((slice(1998, 2002),))
    assert part.tolist() == VALUES[1998:2002].tolist()


def test_small_subset_of_large_set_is_pickled_with_its_references(tmp_path, clear_cached_sets):
    refs = document("data.bin")
    refs["refs"]["u/0"] = "few"
    (tmp_path / "refs.json").write_text(json.dumps(refs))
    store = open_store(tmp_path / "refs.json")
    small = store.narrowed(type("Keys", (), {"scalar": "u/0"}))
    travelled = pickle.dumps(small)
    (tmp_path / "refs.json").unlink()
    clear_cached_sets()
    assert len(travelled) < 1000
    assert list(pickle.loads(travelled).fetch(["u/0"])) == [b"few"]


def test_closed_reference_set_is_not_kept_in_memory(served, clear_cached_sets):
    clear_cached_sets()
    opened(served).close()
    gc.collect()
    assert not reference_document._used
    assert not reference_document._reread._values
