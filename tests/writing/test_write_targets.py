"""Targets of `to_nczarr`: stores, URLs, options, and files that do not belong to a store."""

import json
import os
import zipfile
from pathlib import Path

import dask
import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.reading import read
from tests.stores import read_objects, sample, write_vintage
from tests.writes import example, series
from xr_nczarr import (
    ConflictError,
    ExistsError,
    NotFoundError,
    RefusedError,
    UnsupportedError,
    to_nczarr,
)
from xr_nczarr.storage import MemoryStore

TARGETS = {
    "path": lambda path: path,
    "file URL": lambda path: f"file://{path}",
    "NCZarr URL": lambda path: f"file://{path}#mode=nczarr,file",
    "zip": lambda path: f"{path}.zip",
    "zip URL": lambda path: f"file://{path}#mode=nczarr,zip",
    "memory URL": lambda path: f"memory://{path}",
    "mapping": lambda path: {},
    "store": lambda path: MemoryStore({}),
}


@pytest.mark.parametrize("target", TARGETS)
def test_every_kind_of_target_supports_creation_appending_and_replacement(path, target):
    target = TARGETS[target](path)
    encoding = {"a": {"chunks": (1, 3)}, "n": {"chunks": 1}, "t": {"chunks": 1}}
    to_nczarr(example(), target, unlimited_dims="t", encoding=encoding)
    xr.testing.assert_identical(read(target), example())
    with pytest.raises(ExistsError):
        to_nczarr(example(), target)
    to_nczarr(example(8, 10), target, append_dim="t")
    xr.testing.assert_identical(read(target), example(0, 10))
    to_nczarr(-example(3, 5).drop_vars("t"), target, region={"t": slice(3, 5)})
    assert read(target).n.values.tolist() == [0, 1, 2, -3, -4, 5, 6, 7, 8, 9]
    to_nczarr(example(0, 2), target, mode="w")
    xr.testing.assert_identical(read(target, consolidated="check"), example(0, 2))


def test_s3_store_supports_creation_appending_and_replacement(s3_server):
    target = f"s3://{s3_server.bucket}/store"
    options = {"storage_options": s3_server.storage_options}
    to_nczarr(example(), target, unlimited_dims="t", **options)
    to_nczarr(example(8, 10), target, append_dim="t", **options)
    xr.testing.assert_identical(read(target, **options), example(0, 10))
    to_nczarr(example(0, 2), target, mode="w", **options)
    xr.testing.assert_identical(read(target, **options), example(0, 2))


def test_appending_to_zip_file_keeps_unique_names_in_single_folder(path):
    to_nczarr(example(), f"{path}.zip")
    to_nczarr(example(8, 10), f"{path}.zip", append_dim="t")
    names = zipfile.ZipFile(f"{path}.zip").namelist()
    assert len(names) == len(set(names))
    assert {name.split("/")[0] for name in names} == {"store"}


@pytest.mark.parametrize("word", ["zarr", "xarray", "noxarray"])
def test_url_fragment_can_request_plain_zarr(path, word):
    to_nczarr(example(), f"file://{path}#mode={word},file")
    with open(f"{path}/a/.zattrs") as file:
        names = set(json.load(file))
    assert not any(name.startswith("_nczarr") for name in names)
    assert ("_ARRAY_DIMENSIONS" in names) == (word != "noxarray")


def test_accessor_writes_dataarrays_and_datatrees(path):
    dataset = example()
    dataset.n.drop_vars("t").rename(None).nczarr.to_nczarr(f"{path}/1")
    assert xr.open_dataarray(f"{path}/1", engine="nczarr").identical(
        dataset.n.drop_vars("t").rename(None)
    )
    dataset.t.nczarr.to_nczarr(f"{path}/2")
    assert xr.open_dataarray(f"{path}/2", engine="nczarr").name == "t"
    tree = xr.DataTree.from_dict({"/": dataset, "/b/c": dataset.isel(t=0)})
    tree.nczarr.to_nczarr(f"{path}/3", encoding={"/b/c": {"a": {"dtype": "f4"}}})
    assert xr.open_datatree(f"{path}/3", engine="nczarr").load().equals(tree)
    assert read(f"{path}/3", group="b/c").a.encoding["dtype"] == "f4"


def test_trailing_dot_distinguishes_group_names(path):
    tree = xr.DataTree.from_dict({"/a": xr.Dataset({"v": 1}), "/a.": xr.Dataset({"v": 2})})
    to_nczarr(tree, path, group="/b./")
    assert xr.open_datatree(path, engine="nczarr", group="/b.").load().identical(tree)


def test_writing_non_xarray_object_raises_type_error(path):
    with pytest.raises(TypeError, match="DataTree"):
        to_nczarr(np.ones(3), path)


@pytest.mark.parametrize("zarr_format", [2, 3, "3-draft"])
def test_zarr_versions_support_creation_and_appending(path, zarr_format):
    to_nczarr(example(), path, zarr_format=zarr_format, unlimited_dims="t")
    to_nczarr(example(8, 9), path, append_dim="t")
    result = read(path)
    assert result.encoding["zarr_format"] == str(zarr_format)
    xr.testing.assert_identical(result, example(0, 9))


def test_v1_store_can_contain_only_one_array(path):
    dataset = example()[["n"]].drop_vars("t")
    to_nczarr(dataset, path, zarr_format=1)
    result = read(path)
    assert result.encoding["zarr_format"] == "1"
    (variable,) = result.data_vars.values()
    np.testing.assert_array_equal(variable, dataset.n)
    with pytest.raises(xr_nczarr.UnsupportedError, match="one array"):
        to_nczarr(example(), path, zarr_format=1, mode="w")


@pytest.mark.parametrize("sync", ["commit", "all", "none"])
@pytest.mark.parametrize("atomic", [False, True])
def test_sync_and_atomic_options_do_not_change_contents(path, sync, atomic):
    options = {"storage_options": {"sync": sync}}
    to_nczarr(example(), path, **options)
    to_nczarr(example(8, 9), path, append_dim="t", atomic=atomic, **options)
    xr.testing.assert_identical(read(path), example(0, 9))
    assert os.listdir(os.path.dirname(path)) == ["store"]


def test_failed_creation_leaves_no_files(path):
    def fail(block):
        raise RuntimeError("no values")

    values = dask.array.ones(4, chunks=2).map_blocks(fail, dtype="f8", meta=np.ones(0))
    with pytest.raises(RuntimeError, match="no values"):
        to_nczarr(xr.Dataset({"a": ("t", values)}), path)
    assert os.listdir(os.path.dirname(path)) == []


def test_failed_creation_in_mapping_can_be_retried():
    class Failing(dict):
        def __setitem__(self, key, value):
            if key.endswith("n/.zarray"):
                raise OSError("full")
            super().__setitem__(key, value)

    store = Failing()
    with pytest.raises(OSError, match="full"):
        to_nczarr(example(), store)
    with pytest.raises(NotFoundError):
        read(store)
    whole = dict(store)
    to_nczarr(example(), whole)
    xr.testing.assert_identical(read(whole), example())


def test_every_function_expands_tilde_to_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    to_nczarr(example(), "~/a.nczarr")
    example().to_netcdf("~/a.nc")
    xr_nczarr.copy("~/a.nc", "~/b.nczarr")
    xr_nczarr.references.write("~/a.nczarr", "~/a.json")
    for name in ("a.nczarr", "b.nczarr", "a.json"):
        with xr.open_dataset(f"~/{name}", engine="nczarr") as result:
            xr.testing.assert_equal(result, example())
    assert not (tmp_path / "~").exists()


def test_local_path_with_s3_mode_is_rejected(tmp_path):
    with pytest.raises(ConflictError, match="mode=s3 in the URL requests an S3 bucket"):
        to_nczarr(xr.Dataset(), f"{tmp_path}/a#mode=nczarr,s3")


@pytest.mark.parametrize("chain", ["zip://::", "simplecache://::zip://::", "zip://::simplecache::"])
def test_chained_url_can_end_with_file_url(tmp_path, chain):
    to_nczarr(xr.Dataset({"t": ("x", [1, 2])}), tmp_path / "a.zip")
    cache = {"simplecache": {"cache_storage": str(tmp_path / "cache")}}
    options = cache if "simplecache" in chain else None
    result = xr.open_dataset(
        f"{chain}file://{tmp_path}/a.zip", engine="nczarr", storage_options=options
    )
    xr.testing.assert_identical(result.load(), xr.Dataset({"t": ("x", [1, 2])}))


@pytest.mark.parametrize("chain", ["zip::file://", "zip://::file://", "zip::"])
@pytest.mark.parametrize("name", ["a.zip", "a"])
def test_local_zip_file_can_be_written_through_chained_url(tmp_path, chain, name):
    url = f"{chain}{tmp_path}/{name}"
    to_nczarr(example(0, 2), url)
    assert zipfile.is_zipfile(tmp_path / name)
    to_nczarr(example(2, 4), url, append_dim="t")
    assert read(url).identical(example(0, 4))
    with pytest.raises(ConflictError, match="the path is a zip file, but mode=file"):
        to_nczarr(example(0, 2), f"{url}#mode=file", mode="w")


@pytest.mark.parametrize("cache", ["simplecache", "filecache"])
def test_writing_through_cache_is_rejected(path, tmp_path, cache):
    options = {cache: {"cache_storage": str(tmp_path / "cache")}}
    to_nczarr(example(0, 2), path, consolidated=False)
    through = f"{cache}::file://{path}"
    assert len(read(through, storage_options=options).t) == 2
    to_nczarr(example(2, 4), path, append_dim="t")
    with pytest.raises(UnsupportedError, match="through a cache"):
        to_nczarr(example(4, 6), through, append_dim="t", storage_options=options)
    assert read(path).identical(example(0, 4))


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        ("v2", {"zarr_format": 3}),
        ("nczarr", {"dialect": "zarr"}),
        ("zarr", {"dialect": "nczarr-4.8.1"}),
    ],
)
def test_url_fragment_that_contradicts_argument_is_rejected(path, mode, options):
    with pytest.raises(ConflictError, match=r"the target requires .* Leave out .* or change mode="):
        to_nczarr(example(), f"file://{path}#mode={mode},file", **options)


LITTER = (".DS_Store", "._v", "Thumbs.db", "desktop.ini", "DESKTOP.INI", ".directory", "Icon\r")


def littered(where, path):
    """Return a folder that contains only files of file managers, and a function that lists them."""
    if where == "mapping":
        store = dict.fromkeys(LITTER, b"litter")
        return store, lambda: [name for name in LITTER if store.get(name) == b"litter"]
    os.makedirs(path)
    for name in LITTER:
        with open(f"{path}/{name}", "wb") as file:
            file.write(b"litter")
    listed = lambda: [name for name in LITTER if Path(path, name).read_bytes() == b"litter"]  # noqa: E731
    return path, listed


@pytest.mark.parametrize("where", ["directory", "mapping"])
@pytest.mark.parametrize("mode", ["w-", "w", "a", "append", "copy"])
def test_files_created_by_file_managers_are_ignored_and_kept(path, where, mode):
    target, left = littered(where, path)
    if mode == "copy":
        source = {}
        to_nczarr(example(), source)
        xr_nczarr.copy(source, target)
    elif mode == "append":
        to_nczarr(example(), target, append_dim="t")
    else:
        to_nczarr(example(), target, mode=mode)
    assert left() == [*LITTER]
    xr.testing.assert_equal(read(target), example())
    with pytest.raises(ExistsError):
        to_nczarr(example(), target)
    to_nczarr(example(8, 9), target, mode="w")
    to_nczarr(example(9, 12), target, append_dim="t", atomic=True)
    assert left() == [*LITTER]
    xr.testing.assert_equal(read(target), example(8, 12))


def test_directory_with_user_files_is_not_treated_as_empty(path):
    target, left = littered("directory", path)
    with open(f"{path}/notes.txt", "wb") as file:
        file.write(b"mine")
    with pytest.raises(ExistsError, match="not belong to a Zarr store"):
        to_nczarr(example(), target)
    with pytest.raises(RefusedError, match="not a Zarr store"):
        to_nczarr(example(), target, mode="w")
    assert left() == [*LITTER]
    assert Path(path, "notes.txt").read_bytes() == b"mine"


def test_folder_named_ds_store_is_not_ignored(path):
    os.makedirs(f"{path}/.DS_Store")
    with pytest.raises(ExistsError, match="not belong to a Zarr store"):
        to_nczarr(example(), path)


def test_url_fragment_can_request_consolidated_metadata(path):
    to_nczarr(series(0, 2), f"file://{path}#mode=nczarr,file&consolidated", zarr_format=3)
    xr.testing.assert_identical(read(path, consolidated=True), series(0, 2))


def test_error_for_write_unsupported_by_target_suggests_fix(tmp_path):
    with pytest.raises(UnsupportedError, match=r"s\.zip: .*compute=False.* write to a directory"):
        to_nczarr(example(0), tmp_path / "s.zip", compute=False)
    write_vintage(tmp_path / "old", sample("4.8.0"), "4.8.0")
    new = xr.Dataset({"joining": ("dim_of_its_own", [1.0])})
    with pytest.raises(UnsupportedError, match=r"old: cannot add /joining: .*nczarr upgrade"):
        to_nczarr(new, tmp_path / "old", mode="a")
    xr_nczarr.upgrade(tmp_path / "old")
    to_nczarr(new, tmp_path / "old", mode="a")
    assert read(tmp_path / "old", consolidated=False).joining.values == [1.0]


def test_delayed_atomic_write_is_rejected(tmp_path):
    to_nczarr(example(0), tmp_path / "s")
    before = read_objects(tmp_path / "s")
    with pytest.raises(ConflictError, match=r"atomic=True cannot be combined with compute=False"):
        to_nczarr(example(0), tmp_path / "s", mode="w", compute=False, atomic=True)
    assert read_objects(tmp_path / "s") == before
