"""Arguments of other engines, group names, and the log message for an empty group."""

from __future__ import annotations

import json
from inspect import signature

import pytest
import xarray as xr
from xarray.backends.zarr import ZarrBackendEntrypoint

from tests.small_stores import netcdf_c_store
from tests.stores import array_document

VALUES = [0.0, 1.0, 2.0, 3.0]


def read(target, **options):
    return xr.open_dataset(target, **{"engine": "nczarr", **options}).t.values.tolist()


@pytest.fixture
def stored(tmp_path):
    """Return the folder of a store written by netcdf-c."""
    return netcdf_c_store(tmp_path / "store", VALUES)


@pytest.fixture
def document():
    """Return a reference set with a group."""
    array, attributes = array_document((2,), "|u1"), {"_ARRAY_DIMENSIONS": ["x"]}
    nodes = {"sub/.zgroup": {"zarr_format": 2}, "sub/t/.zarray": array, "sub/t/.zattrs": attributes}
    texts = {key: json.dumps(value) for key, value in nodes.items()}
    return {".zgroup": '{"zarr_format": 2}', **texts, "sub/t/0": "ab"}


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "r"},
        {"mode": None},
        {"cache_members": False},
        {"chunk_store": None},
        {"synchronizer": None},
        {"store": None},
        {"zarr_version": 2},
        {"zarr_version": None},
        {"open_dataset_options": None},
        {"open_dataset_options": {"decode_times": False, "chunks": {}}},
    ],
    ids=str,
)
def test_arguments_used_only_by_other_engines_are_ignored(stored, options):
    assert read(stored, **options) == VALUES


def test_nczarr_engine_accepts_all_zarr_engine_arguments(stored):
    parameters = signature(ZarrBackendEntrypoint.open_dataset).parameters.values()
    defaults = {
        parameter.name: parameter.default
        for parameter in parameters
        if parameter.default is not parameter.empty
    }
    assert "mode" in defaults
    assert read(stored, **{**defaults, "engine": "nczarr"}) == VALUES


def test_options_can_be_passed_in_open_dataset_options(document):
    options = {"group": "sub"}
    assert read(document, open_dataset_options=options) == [97, 98]
    options["drop_variables"] = "t"
    opened = xr.open_dataset(document, engine="nczarr", open_dataset_options=options)
    assert not opened.variables
    with pytest.raises(TypeError, match="nonsense"):
        xr.open_dataset(document, engine="nczarr", open_dataset_options={"nonsense": 1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "a"}, "mode='a'.*to_nczarr"),
        ({"chunk_store": {}}, "chunk_store.*reference set"),
        ({"synchronizer": 1}, "synchronizer.*Leave out this option"),
        ({"zarr_version": 7}, "zarr_format"),
    ],
    ids=str,
)
def test_error_for_unsupported_argument_suggests_fix(stored, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        read(stored, **options)


@pytest.mark.parametrize("group", [None, "", "/", "a", "/a", "a/", "a/b"])
def test_open_groups_returns_same_names_with_every_engine(tmp_path, group):
    dataset = xr.Dataset({"v": ("x", [1, 2])})
    paths = dict.fromkeys(("/", "/a", "/a/b", "/c"), dataset)
    tree = xr.DataTree.from_dict(paths)
    tree.to_zarr(tmp_path / "tree", zarr_format=2)
    tree.to_netcdf(tmp_path / "tree.nc")
    names = {}
    for engine, name in (("nczarr", "tree"), ("zarr", "tree"), ("netcdf4", "tree.nc")):
        groups = xr.open_groups(tmp_path / name, engine=engine, group=group)
        names[engine] = list(groups)
        for opened in groups.values():
            opened.close()
    assert names["nczarr"] == names["zarr"] == names["netcdf4"]
    assert xr.open_datatree(tmp_path / "tree", engine="nczarr", group=group).equals(
        xr.open_datatree(tmp_path / "tree", engine="zarr", group=group)
    )


def test_opening_group_that_has_no_variables_logs_names_of_child_groups(tmp_path, caplog):
    dataset = xr.Dataset({"v": ("x", [1, 2])})
    tree = xr.DataTree.from_dict({"/a/b": dataset, "/c": dataset})
    tree.to_zarr(tmp_path / "tree", consolidated=False)
    for group, names in ((None, "a, c"), ("a", "b")):
        caplog.clear()
        xr.open_dataset(tmp_path / "tree", engine="nczarr", group=group)
        (record,) = caplog.records
        assert record.name == "xr_nczarr.backend.entrypoint"
        assert "group=" in record.getMessage()
        assert f"({names})" in record.getMessage()
    caplog.clear()
    xr.open_datatree(tmp_path / "tree", engine="nczarr")
    xr.open_dataset(tmp_path / "tree", engine="nczarr", group="c")
    assert not caplog.records
