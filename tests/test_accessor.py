"""The accessor ``ds.nczarr`` finds the store of a dataset; reading logs repairs and gaps."""

import copy
import logging
import pickle
from pathlib import Path

import dask.base
import netCDF4
import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.memory import MemoryFileSystem

import xr_nczarr
from xr_nczarr.errors import NotFoundError
from xr_nczarr.writing.lazy_sources import lazy_arrays


@pytest.fixture
def store():
    dataset = xr.Dataset({"v": ("x", np.arange(40.0)), "w": ("x", np.arange(40.0))})
    encoding = {name: {"chunks": (10,)} for name in "vw"}
    objects = {}
    xr_nczarr.to_nczarr(dataset, objects, encoding=encoding)
    del objects["v/1"], objects["v/3"]
    return objects


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


def test_accessor_info_uses_open_dataset_options(directory):
    (directory / ".zmetadata").write_text("{")
    dataset = xr.open_dataset(directory, engine="nczarr", consolidated=False)
    assert "NCZarr metadata" in repr(dataset.nczarr.info())


def test_accessor_finds_mapping_only_in_process_that_opened_it(store):
    dataset = xr.open_dataset(store, engine="nczarr")
    assert repr(dataset.load().nczarr.info()) == repr(xr_nczarr.info(store))
    with pytest.raises(NotFoundError, match="cannot be reopened in this process"):
        pickle.loads(pickle.dumps(dataset)).nczarr.info()


def test_accessor_verify_checks_store_of_dataset(directory):
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


def test_accessor_error_for_dataset_without_store_suggests_fix(store):
    for other in (xr.Dataset(), xr.open_dataset(store, engine="nczarr")["v"]):
        with pytest.raises(NotFoundError, match=r"does not record the store.*Call the method on"):
            other.nczarr.info()


def test_accessor_hides_secrets_and_keeps_dask_tokens_stable(store):
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


def test_reading_missing_chunks_as_fill_values_is_logged(store, caplog):
    dataset = xr.open_dataset(store, engine="nczarr")
    with caplog.at_level(logging.DEBUG, "xr_nczarr"):
        dataset.load()
    assert sorted(caplog.messages) == [
        "mapping: v/1: the chunk is missing and is read as the fill value",
        "mapping: v/3: the chunk is missing and is read as the fill value",
    ]


@pytest.fixture
def nested(tmp_path):
    """Return a netcdf-c store with a group whose variable uses dimensions of the root."""
    with netCDF4.Dataset(f"file://{tmp_path}/nested#mode=nczarr,file", "w") as file:
        file.createDimension("time", None)
        file.createDimension("lat", 3)
        file.createVariable("time", "f8", ("time",))[:] = [0, 1]
        file.createVariable("t2m", "f4", ("time", "lat"))[:] = np.ones((2, 3))
        diag = file.createGroup("diag")
        diag.createDimension("level", 2)
        diag.createVariable("cape", "f4", ("lat", "level"))[:] = 1
        diag.createGroup("inner").createVariable("cin", "f4", ("lat",))[:] = 1
    return tmp_path / "nested"


@pytest.mark.parametrize("group", [None, "diag", "diag/inner"])
@pytest.mark.parametrize("consolidated", [True, False])
def test_opening_any_group_of_intact_store_logs_no_repairs(group, consolidated, nested, caplog):
    if consolidated:
        xr_nczarr.consolidate(nested)
    xr.open_dataset(nested, engine="nczarr", group=group)
    xr.open_datatree(nested, engine="nczarr", group=group)
    assert caplog.messages == []


def test_subgroup_can_be_opened_by_its_path(nested):
    for name, count in (("t2m", 1), ("diag", 1), ("diag/inner", 1)):
        overview = repr(xr_nczarr.info(nested / name))
        assert "unreadable" not in overview
        assert "any more" not in overview
        assert overview.count("not defined in the opened groups") == count
    opened = xr.open_dataset(nested / "diag", engine="nczarr")
    assert dict(opened.cape.sizes) == {"lat": 3, "level": 2}


def test_metadata_repairs_are_logged(store, caplog):
    for key in (".zgroup", ".zattrs"):
        store[key] = store[key].replace(b'"w"', b'"w","<gone>"')
    xr.open_dataset(store, engine="nczarr", consolidated=False)
    assert caplog.messages == [
        "mapping: /<gone> is listed in _nczarr_group, but is missing from the store"
    ]
    assert caplog.records[0].levelname == "WARNING"


class Faltering(MemoryFileSystem):
    """A filesystem on which the first request for each object times out."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def cat_file(self, path, start=None, end=None, **options):
        if path not in self.seen:
            self.seen.add(path)
            raise TimeoutError
        return super().cat_file(path, start, end, **options)


def test_retries_are_logged(store, caplog):
    filesystem = Faltering()
    filesystem.pipe({f"/faltering/{key}": value for key, value in store.items()})
    with caplog.at_level(logging.INFO, "xr_nczarr"):
        xr.open_dataset(filesystem.get_mapper("/faltering"), engine="nczarr")
    filesystem.rm("/faltering", recursive=True)
    assert "memory:///faltering: .zmetadata: request failed (TimeoutError), retrying" in (
        caplog.messages
    )
