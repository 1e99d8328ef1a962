"""Repairs of metadata, missing chunks and retries are logged or shown."""

import logging

import netCDF4
import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.memory import MemoryFileSystem

import xr_nczarr
from tests.small_stores import objects_without_some_chunks


@pytest.fixture
def store():
    return objects_without_some_chunks()


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
    assert "memory:///faltering: .zmetadata: transient failure (TimeoutError)" in caplog.messages


def test_opened_subgroup_infers_dimensions_of_unopened_parent(nested):
    for name, count in (("t2m", 1), ("diag", 1), ("diag/inner", 1)):
        overview = repr(xr_nczarr.info(nested / name))
        assert "unreadable" not in overview
        assert "any more" not in overview
        assert overview.count("not defined in the opened groups") == count
    opened = xr.open_dataset(nested / "diag", engine="nczarr")
    assert dict(opened.cape.sizes) == {"lat": 3, "level": 2}
