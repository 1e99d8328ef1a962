"""The accessor ``ds.nczarr`` finds the store of a dataset."""

import copy
import pickle
from pathlib import Path

import dask.base
import pytest
import xarray as xr
from fsspec.implementations.memory import MemoryFileSystem

import xr_nczarr
from tests.small_stores import objects_without_some_chunks
from xr_nczarr.errors import NotFoundError
from xr_nczarr.writing.lazy_sources import lazy_arrays


@pytest.fixture
def store():
    return objects_without_some_chunks()


@pytest.fixture
def directory(store, tmp_path):
    for key, value in store.items():
        path = tmp_path / "x" / key
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(value)
    return tmp_path / "x"


OPERATIONS = {
    "nothing": lambda dataset: dataset,
    "load": lambda dataset: dataset.load(),
    "selection": lambda dataset: dataset.isel(x=slice(5)),
    "one variable": lambda dataset: dataset[["w"]],
    "chunk": lambda dataset: dataset.chunk(),
    "deep copy": lambda dataset: copy.deepcopy(dataset),
    "new variable": lambda dataset: dataset.assign(z=dataset.v + 1),
    "new attribute": lambda dataset: dataset.assign_attrs(a=1),
    "other name": lambda dataset: dataset.rename(v="other"),
    "pickle": lambda dataset: pickle.loads(pickle.dumps(dataset)),
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_accessor_finds_store_after_common_operations(operation, directory):
    dataset = xr.open_dataset(directory, engine="nczarr")
    overview = OPERATIONS[operation](dataset).nczarr.info()
    assert repr(overview) == repr(xr_nczarr.info(directory))
    assert "2 of 4 " in repr(overview)


def test_info_method_of_accessor_reuses_options_passed_to_open_dataset(directory):
    (directory / ".zmetadata").write_text("{")
    dataset = xr.open_dataset(directory, engine="nczarr", consolidated=False)
    assert "NCZarr metadata" in repr(dataset.nczarr.info())


def test_accessor_finds_mapping_only_in_process_that_opened_it(store):
    dataset = xr.open_dataset(store, engine="nczarr")
    assert repr(dataset.load().nczarr.info()) == repr(xr_nczarr.info(store))
    with pytest.raises(NotFoundError, match="cannot be reopened in this process"):
        pickle.loads(pickle.dumps(dataset)).nczarr.info()


def test_verify_method_of_accessor_checks_store_of_dataset(directory):
    dataset = xr.open_dataset(directory, engine="nczarr")
    result = dataset.nczarr.verify()
    assert str(result) == str(xr_nczarr.verify(directory))
    assert "chunks are missing" in str(result)
    assert dataset.nczarr.verify(sample=1).decoded == 2
    assert len(dataset.nczarr.verify(readers=True).findings) > len(result.findings)


def test_accessor_repr_lists_methods(directory):
    dataset = xr.open_dataset(directory, engine="nczarr")
    assert repr(dataset.nczarr).startswith(
        f"<xr_nczarr methods of a Dataset opened from {directory}>"
    )
    for name in ("info", "verify", "explain", "to_nczarr"):
        assert f".{name}(" in repr(dataset.nczarr)
    assert repr(xr.Dataset().nczarr).startswith("<xr_nczarr methods of a Dataset>")
    assert ".info(" not in repr(dataset.v.nczarr)
    assert ".explain(" in repr(dataset.v.nczarr)
    assert "DataTree" in repr(xr.DataTree().nczarr)


def test_accessor_on_datatree_finds_store(store):
    tree = xr.open_datatree(store, engine="nczarr")
    assert repr(tree.nczarr.info()) == repr(xr_nczarr.info(store))


def test_error_for_dataset_without_known_store_suggests_fix(store):
    for other in (xr.Dataset(), xr.open_dataset(store, engine="nczarr")["v"]):
        with pytest.raises(NotFoundError, match=r"opened is unknown.*Call the method on"):
            other.nczarr.info()


def test_opened_dataset_hides_secrets_and_has_stable_dask_token(store):
    MemoryFileSystem().pipe({f"/opened/{key}": data for key, data in store.items()})
    url = "memory://opened"
    options = {"storage_options": {"password": "secret"}}
    dataset = xr.open_dataset(url, engine="nczarr", **options)
    assert "secret" not in repr(dataset.encoding)
    other = xr.open_dataset(url, engine="nczarr", **options)
    other.load()
    again = xr.open_dataset(url, engine="nczarr", **options)
    assert dask.base.tokenize(again) == dask.base.tokenize(dataset)
    assert copy.deepcopy(dataset).encoding["nczarr"] is dataset.encoding["nczarr"]


def test_opened_datasets_can_be_written_by_other_engines(store, tmp_path):
    dataset = xr.open_dataset(store, engine="nczarr")
    dataset.to_netcdf(tmp_path / "x.nc")
    dataset.to_zarr(tmp_path / "x.zarr", zarr_format=2, consolidated=False)
    with xr.open_dataset(tmp_path / "x.nc") as again:
        assert again.identical(dataset)


def test_reading_from_remote_store_keeps_dask_tokens_stable(directory, http_server):
    Path(http_server.root, "x").symlink_to(directory)
    url = f"{http_server.url}/x"
    first, second = (xr.open_dataset(url, engine="nczarr", chunks={}) for _ in range(2))
    assert first.v.data.name == second.v.data.name
    first, second = (next(lazy_arrays(item.w.data)) for item in (first, second))
    first.stored.read([slice(None)])
    assert dask.base.tokenize(first) == dask.base.tokenize(second)
