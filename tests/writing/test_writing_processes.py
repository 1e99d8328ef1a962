"""Processes, threads and dask workers that write to the same store."""

import pickle
from contextlib import suppress

import pytest
import xarray as xr
from distributed import Client, LocalCluster
from obstore.store import MemoryStore as Objects

from tests.processes import in_a_child, in_a_new_interpreter, run_in_processes
from tests.reading import open_store, read
from tests.writes import example
from xr_nczarr import StorageError, to_nczarr


def test_dask_workers_can_write_and_append(path, workers):
    delayed = to_nczarr(example().chunk(t=3), path, compute=False)
    workers.compute(delayed).result()
    xr.testing.assert_identical(read(path), example())
    more = to_nczarr(example(8, 12).chunk(t=3), path, append_dim="t", compute=False)
    workers.compute(more).result()
    xr.testing.assert_identical(read(path), example(0, 12))


MEMORY = ["memory", "dictionary", "obstore"]


def write_region(path, start, stop):
    part = example(start, stop).drop_vars("t")
    to_nczarr(part, path, region={"t": slice(start, stop)})


@pytest.mark.parametrize("target", ["memory://elsewhere", {}, Objects()], ids=MEMORY)
def test_worker_processes_cannot_write_to_client_memory(target, workers):
    delayed = to_nczarr(example().chunk(t=2), target, compute=False)
    with pytest.raises(StorageError, match="scheduler"):
        workers.compute(delayed).result()
    delayed.compute(scheduler="threads")
    assert read(target).identical(example())
    # A single task, because distributed workers that request data from each other may deadlock.
    lazy = xr.open_dataset(target, engine="nczarr", cache=False)
    result = workers.submit(xr.Dataset.load, lazy, pure=False)
    if isinstance(target, dict):  # the dictionary is sent with the array that reads it
        assert result.result().identical(example())
    else:
        with pytest.raises(StorageError, match="scheduler"):
            result.result()


@pytest.fixture
def threaded_client():
    """Return a client whose workers are threads of this process."""
    options = {"n_workers": 2, "threads_per_worker": 2, "processes": False}
    with (
        LocalCluster(dashboard_address=":0", **options) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.mark.parametrize("target", ["memory://inside", {}, Objects()], ids=MEMORY)
def test_worker_threads_can_write_to_client_memory(target, threaded_client):
    dataset = example(0, 8).chunk(t=2)
    delayed = to_nczarr(dataset, target, compute=False)
    threaded_client.compute(delayed).result()
    assert read(target).identical(example(0, 8))
    with threaded_client.as_current():
        to_nczarr(example(8, 12).chunk(t=2), target, append_dim="t")
        result = read(target, chunks={}).compute()
    assert result.identical(example(0, 12))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_child_process_cannot_write_to_dictionary_of_parent(method):
    assert in_a_new_interpreter(send_here_and_to_a_child, method) == ["a"]


def send_here_and_to_a_child(method):
    store = open_store({})
    sent = pickle.dumps(store)
    put_into(sent, "a")
    in_a_child(method, put_into, sent, "b")
    return list(store.mapping)


def put_into(sent, key):
    with suppress(StorageError):
        pickle.loads(sent).put([(key, b"1")])


def test_processes_can_write_disjoint_regions_of_template(path):
    template = xr.zeros_like(example(0, 12).chunk(t=4))
    to_nczarr(template.assign_coords(t=example(0, 12).t), path, compute=False)
    run_in_processes(3, write_region, [(path, start, start + 3) for start in range(0, 12, 3)])
    xr.testing.assert_identical(read(path), example(0, 12))
