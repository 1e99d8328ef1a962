"""Every notation of a target opens the same store, and no part of a target is ignored."""

from __future__ import annotations

import io
import json
import os
import warnings
from pathlib import Path
from types import SimpleNamespace

import fsspec
import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.reference import LazyReferenceMapper
from kerchunk.utils import refs_as_store

import xr_nczarr
import xr_nczarr.references
from tests.small_stores import netcdf_c_store
from tests.stores import array_document, read_objects, write_zip
from xr_nczarr import (
    ConflictError,
    MetadataError,
    NczarrError,
    NotFoundError,
    UnsupportedError,
)
from xr_nczarr.hierarchy import RecordSetError

VALUES = [0.0, 1.0, 2.0, 3.0]
ARRAY = array_document((4,), "<f8", chunks=[2], fill_value="NaN")
ATTRIBUTES = {"_ARRAY_DIMENSIONS": ["x"]}
DOCUMENTS = {".zgroup": {"zarr_format": 2}, "t/.zarray": ARRAY, "t/.zattrs": ATTRIBUTES}


def read(target, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # from the zarr engine
        return xr.open_dataset(target, **{"engine": "nczarr", **options}).t.values.tolist()


@pytest.fixture
def memory():
    """Return the memory filesystem, which is empty before and after the test."""
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    yield filesystem
    filesystem.store.clear()


# Reference sets in parquet -----------------------------------------------------------------------


def put_records(filesystem, folder, url):
    """Write a parquet reference set, as kerchunk does.

    The two chunks of the set refer to the file at `url`.
    """
    out = LazyReferenceMapper.create(folder, fs=filesystem, record_size=10, engine="pyarrow")
    for key, document in DOCUMENTS.items():
        out[key] = json.dumps(document)
    out["t/0"], out["t/1"] = [url, 8, 16], [url, 24, 16]
    out.flush()
    return out


def data():
    return b"\0" * 8 + np.array(VALUES).tobytes()


@pytest.fixture(params=["set.parq", "combined", "combined_parq"])
def folder(request):
    """Return a folder name that indicates a reference set, or one that does not."""
    return request.param


OPENINGS = {
    "as it is": {},
    "single documents": {"consolidated": False},
    "consolidated": {"consolidated": True},
    "version 2": {"zarr_format": 2},
}


@pytest.mark.parametrize("options", OPENINGS.values(), ids=OPENINGS)
def test_parquet_reference_set_is_recognized_regardless_of_folder_name(memory, folder, options):
    memory.pipe("/data.bin", data())
    put_records(memory, f"/refs/{folder}", "memory://data.bin")
    url = f"memory://refs/{folder}"
    for target in (
        url,
        fsspec.get_mapper(url),
        LazyReferenceMapper(url, fs=memory),
        fsspec.FSMap(folder, DirFileSystem("/refs", memory)),
    ):
        assert read(target, **options) == VALUES


def test_parquet_reference_sets_can_be_opened_through_reference_urls_and_filesystems(
    memory, folder
):
    memory.pipe("/data.bin", data())
    put_records(memory, f"/refs/{folder}", "memory://data.bin")
    url = f"memory://refs/{folder}"
    fo = {"fo": url, "remote_protocol": "memory"}
    for target in (url, fsspec.get_mapper(url), LazyReferenceMapper(url, fs=memory)):
        assert read("reference://", storage_options={**fo, "fo": target}) == VALUES
    assert read(fsspec.get_mapper("reference://", **fo)) == VALUES
    assert read(f"reference::{url}") == VALUES


def test_parquet_reference_set_is_read_from_disk_s3_and_http(
    tmp_path, folder, http_server, s3_server
):
    for root in (tmp_path / "local", Path(http_server.root)):
        root.mkdir(exist_ok=True)
        (root / "data.bin").write_bytes(data())
        put_records(fsspec.filesystem("file"), f"{root}/{folder}", "data.bin")
    local = f"{tmp_path}/local/{folder}"
    web = f"{http_server.url}/{folder}"
    s3 = s3_server.upload(tmp_path / "local", "sets") + f"/{folder}"
    options = s3_server.storage_options
    files = fsspec.filesystem("file")
    for target in (local, Path(local), f"file://{local}", fsspec.get_mapper(local)):
        assert read(target) == VALUES
    assert read(LazyReferenceMapper(local, fs=files)) == VALUES
    for target in (web, f"{web}?token=1", f"simplecache::{web}", fsspec.get_mapper(web)):
        assert read(target) == VALUES
    assert read(s3, storage_options=options) == VALUES
    assert read(fsspec.get_mapper(s3, **options)) == VALUES
    assert read("reference://", storage_options={"fo": s3, **options}) == VALUES


def test_parquet_reference_set_is_read_from_zip_file_or_mapping(tmp_path, monkeypatch):
    (tmp_path / "data.bin").write_bytes(data())
    put_records(fsspec.filesystem("file"), f"{tmp_path}/set", "data.bin")
    objects = read_objects(tmp_path / "set")
    assert read(write_zip(tmp_path / "set.zip", objects)) == VALUES
    monkeypatch.chdir(tmp_path)  # relative URLs in a dictionary are relative to this directory
    assert read(objects) == VALUES
    references = dict(LazyReferenceMapper(f"{tmp_path}/set", engine="pyarrow"))
    assert ".zmetadata" in references
    assert read(references) == VALUES


def test_parquet_reference_set_is_read_in_other_processes(tmp_path, workers):
    (tmp_path / "data.bin").write_bytes(data())
    put_records(fsspec.filesystem("file"), f"{tmp_path}/set", "data.bin")
    for target in (f"{tmp_path}/set", fsspec.get_mapper(f"{tmp_path}/set")):
        dataset = xr.open_dataset(target, engine="nczarr", chunks={})
        assert dataset.t.data.compute(scheduler=workers).tolist() == VALUES


def test_opening_parquet_reference_set_requests_each_object_once(http_server):
    Path(http_server.root, "data.bin").write_bytes(data())
    put_records(fsspec.filesystem("file"), f"{http_server.root}/set", "data.bin")
    xr.open_dataset(f"{http_server.url}/set", engine="nczarr")
    paths = [request.path for request in http_server.requests]
    assert len(paths) == len(set(paths))
    assert "/set/t/.zarray" not in paths


def test_reference_options_apply_to_parquet_reference_sets(memory, tmp_path):
    memory.pipe("/data.bin", data())
    put_records(fsspec.filesystem("file"), f"{tmp_path}/set", "data.bin")
    options = {"remote_protocol": "memory"}
    assert read(f"{tmp_path}/set", storage_options=options) == VALUES
    assert read(fsspec.get_mapper(f"{tmp_path}/set"), storage_options=options) == VALUES
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain/.zgroup").write_text('{"zarr_format": 2}')
    with pytest.raises(NotFoundError, match=r"the reference set does not exist.*remote_options"):
        xr.open_dataset(tmp_path / "plain", engine="nczarr", storage_options=options)


def test_zarr_store_named_like_reference_set_can_be_read(memory, tmp_path):
    dataset = xr.Dataset({"t": ("x", VALUES)})
    for target in (f"{tmp_path}/a.parq", "memory://plain/a.parquet", f"{tmp_path}/a.json"):
        xr_nczarr.to_nczarr(dataset, target)
        assert read(target) == VALUES


def test_reference_mapper_with_unflushed_changes_is_rejected(memory):
    memory.pipe("/data.bin", data())
    out = put_records(memory, "/refs/set", "memory://data.bin")
    out["t/1"] = ["memory://data.bin", 8, 16]
    with pytest.raises(UnsupportedError, match="flush"):
        read(out)
    out.flush()
    assert read(out) == [0.0, 1.0, 0.0, 1.0]


def test_writing_to_parquet_reference_set_is_rejected(memory):
    memory.pipe("/data.bin", data())
    put_records(memory, "/refs/set", "memory://data.bin")
    before = dict(memory.store)
    dataset = xr.Dataset({"t": ("x", VALUES)})
    for target in ("memory://refs/set", fsspec.get_mapper("memory://refs/set")):
        for options in ({"mode": "a"}, {"append_dim": "x"}, {"region": "auto"}):
            with pytest.raises(RecordSetError, match="read-only"):
                xr_nczarr.to_nczarr(dataset, target, **options)
        for change in (xr_nczarr.consolidate, xr_nczarr.upgrade):
            with pytest.raises(RecordSetError, match="read-only"):
                change(target)
    assert {path: file.getvalue() for path, file in memory.store.items()} == {
        path: file.getvalue() for path, file in before.items()
    }


def test_tools_accept_parquet_reference_sets(memory, tmp_path):
    memory.pipe("/data.bin", data())
    put_records(memory, "/refs/set", "memory://data.bin")
    url = "memory://refs/set"
    assert "2 of 2 chunks" in str(xr_nczarr.info(url))
    assert not xr_nczarr.verify(url).findings
    xr_nczarr.references.write(url, tmp_path / "set.json")
    assert read(tmp_path / "set.json") == VALUES
    xr_nczarr.copy(url, tmp_path / "copy")
    assert read(tmp_path / "copy") == VALUES


# Groups of reference sets ------------------------------------------------------------------------


@pytest.fixture
def groups(memory):
    """Return a reference document with the same variable in the root and in three groups."""
    memory.pipe("/data.bin", bytes(range(16)))
    document = {}
    for number, prefix in enumerate(("", "sub/", "sub/deep/", "other/")):
        array = array_document((2,), "|u1")
        document[f"{prefix}.zgroup"] = '{"zarr_format": 2}'
        document[f"{prefix}t/.zarray"] = json.dumps(array)
        document[f"{prefix}t/.zattrs"] = json.dumps(ATTRIBUTES)
        document[f"{prefix}t/0"] = ["memory://data.bin", 4 * number, 2]
    memory.pipe("/set.json", json.dumps(document).encode())
    return document


@pytest.mark.parametrize(
    ("path", "group", "first"),
    [
        ("", None, 0),
        ("/", None, 0),
        ("sub", None, 4),
        ("sub/", None, 4),
        ("sub/deep", None, 8),
        ("sub", "deep", 8),
        ("/sub", "/deep/", 8),
        ("", "other", 12),
        ("sub#mode=zarr", None, 4),
    ],
)
def test_path_in_reference_url_selects_group(groups, path, group, first):
    options = {"storage_options": {"fo": groups}, "group": group}
    assert read(f"reference://{path}", **options) == [first, first + 1]
    path, mark, fragment = path.partition("#")
    url = f"reference://{path}::memory://set.json{mark}{fragment}"
    assert read(url, group=group) == [first, first + 1]
    if not fragment:
        mapper = fsspec.get_mapper(f"reference://{path}", fo=groups, remote_protocol="memory")
        assert read(mapper, group=group) == [first, first + 1]


def test_group_in_url_becomes_root_of_datatree(groups):
    options = {"engine": "nczarr", "storage_options": {"fo": groups}}
    assert list(xr.open_groups("reference://sub", **options)) == ["/", "/deep"]
    tree = xr.open_datatree("reference://sub", **options)
    assert tree["t"].values.tolist() == [4, 5]
    assert tree["deep/t"].values.tolist() == [8, 9]


def test_error_for_missing_group_lists_existing_groups(groups, tmp_path):
    names = r"groups are 'other', 'sub', 'sub/deep'"
    options = {"storage_options": {"fo": groups}}
    for target, group, missing in (
        ("reference://nosuch", None, "nosuch"),
        ("reference://sub", "nosuch", "sub/nosuch"),
        ("reference://", "other/t", "other/t"),
    ):
        with pytest.raises(NotFoundError, match=f"unknown group '{missing}'.*{names}"):
            read(target, group=group, **options)
    for zarr_format in (2, 3):
        tree = xr.DataTree.from_dict({f"/{name}": xr.Dataset() for name in ("a/b", "c")})
        tree.to_zarr(tmp_path / f"{zarr_format}", zarr_format=zarr_format, consolidated=False)
        with pytest.raises(NotFoundError, match=r"unknown group 'd'.*groups are 'a', 'a/b', 'c'"):
            read(tmp_path / f"{zarr_format}", group="d")
    xr.Dataset().to_zarr(tmp_path / "flat", zarr_format=2)
    with pytest.raises(NotFoundError, match=r"unknown group 'd'\. There are no groups"):
        read(tmp_path / "flat", group="d")


def test_writing_references_rejects_source_url_that_names_group(groups, tmp_path):
    options = {"storage_options": {"fo": groups}}
    with pytest.raises(UnsupportedError, match="the source must be a store, not the group 'sub'"):
        xr_nczarr.references.write("reference://sub", tmp_path / "out", **options)
    assert not os.listdir(tmp_path)


def test_copying_url_that_names_group_copies_only_that_group(groups, tmp_path):
    xr_nczarr.copy("reference://sub", tmp_path / "out", storage_options={"fo": groups})
    assert read(tmp_path / "out") == [4, 5]


# Options in a target -----------------------------------------------------------------------------


def test_fsspec_reference_filesystems_are_read_as_reference_sets(groups, memory):
    plain = fsspec.filesystem("reference", fo=groups, remote_protocol="memory")
    waiting = fsspec.filesystem("reference", fo=groups, fs=memory, asynchronous=True)
    for filesystem in (plain, waiting):
        assert read(filesystem.get_mapper("")) == [0, 1]
        assert read(filesystem.get_mapper("sub")) == [4, 5]
        filesystem.references["t/0"] = ["memory://data.bin", 2, 2]
        assert read(filesystem.get_mapper("")) == [2, 3]
    assert read(refs_as_store(groups, remote_protocol="memory")) == [0, 1]


@pytest.mark.parametrize("way", ["filesystem", "by protocol", "options", "default"])
def test_filesystem_for_referenced_files_can_be_passed_in_storage_options(groups, memory, way):
    arguments = {
        "filesystem": memory,
        "by protocol": {"memory": memory},
        "options": {"memory": {}},
        "default": {None: memory},
    }[way]
    assert read("reference://", storage_options={"fo": groups, "fs": arguments}) == [0, 1]
    if way != "options":
        bare = {**groups, "t/0": ["data.bin", 0, 2]}
        options = {"fo": bare, "fs": arguments}
        if way == "by protocol":
            options["remote_protocol"] = "memory"
        assert read("reference://", storage_options=options) == [0, 1]


def test_referenced_files_are_read_with_credentials_of_passed_filesystem(s3_server, groups):
    s3_server.put("data.bin", bytes(range(16)))
    document = {**groups, "t/0": [f"{s3_server.url}/data.bin", 0, 2]}
    for asynchronous in (False, True):
        options = {**s3_server.storage_options, "asynchronous": asynchronous}
        filesystem = fsspec.filesystem("s3", **options)
        assert read("reference://", storage_options={"fo": document, "fs": filesystem}) == [0, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fs": 3}, '"fs" has the unsupported type int'),
        ({"fs": {"memory": "s3"}}, '"fs" has the unsupported type str'),
        (
            {"fs": DirFileSystem("/", fsspec.filesystem("file"))},
            '"fs" has the unsupported type DirFileSystem',
        ),
        ({"mode": "w"}, "read-only"),
        ({"fo": 3}, '"fo" has the unsupported type int'),
        ({"fo": io.BytesIO(b"{}")}, '"fo" has the unsupported type BytesIO'),
        ({"remote_protocol": "simplecache"}, "not of a cache such as 'simplecache'"),
    ],
    ids=["number", "text", "folder", "mode", "no document", "file", "cache"],
)
def test_option_unsupported_by_reference_sets_is_rejected(groups, options, message):
    with pytest.raises(UnsupportedError, match=message):
        read("reference://", storage_options={"fo": groups, **options})


def test_reference_options_that_do_not_affect_reading_are_accepted(groups):
    options = {"mode": "r", "asynchronous": True, "batch_size": 3, "max_paths": 9}
    assert read("reference://", storage_options={"fo": groups, **options}) == [0, 1]
    older = {"fo": "memory://set.json", "ref_storage_args": {}}
    assert read("reference://", storage_options=older) == [0, 1]


def test_files_in_root_of_filesystem_can_be_opened(groups, memory):
    for target in ("memory://set.json", "memory:///set.json", "reference::memory://set.json"):
        assert read(target) == [0, 1]
    assert read("set.json", storage_options={"target_protocol": "memory"}) == [0, 1]
    xr_nczarr.references.write("memory://set.json", "memory://again.json")
    assert read("memory://again.json") == [0, 1]
    xr_nczarr.to_nczarr(xr.Dataset({"t": ("x", VALUES)}), memory_zip := {})
    content = write_zip(io.BytesIO(), memory_zip)
    memory.pipe("/set.zip", content.getvalue())
    assert read("memory://set.zip") == read("zip::memory://set.zip") == VALUES


@pytest.fixture
def stored(tmp_path):
    """Return the folder of a store written by netcdf-c."""
    return netcdf_c_store(tmp_path / "store", VALUES)


def test_file_opened_with_fsspec_is_accepted_as_target(stored, tmp_path, s3_server, groups):
    path = write_zip(tmp_path / "store.zip", read_objects(stored))
    s3_server.upload(tmp_path, "deep")
    s3_server.put("deep/set.json", json.dumps(groups).encode())
    options = s3_server.storage_options
    url = f"{s3_server.url}/deep"
    for target in (f"{url}/store", f"{url}/store.zip"):
        with fsspec.open(target, **options) as file:
            assert type(file).__name__ == "S3File"
            assert read(file) == VALUES
            # The file already has these options.
            assert read(file, storage_options=options) == VALUES
        assert read(fsspec.open(target, **options)) == VALUES
    with fsspec.open(f"{url}/set.json", **options) as file:
        assert read(file, storage_options={"allow": ["memory://"]}) == [0, 1]
    for opened in (fsspec.open(str(path)), fsspec.open(str(path)).open()):
        assert read(opened) == VALUES
    folder = SimpleNamespace(fs=fsspec.filesystem("file"), path=str(stored))
    assert read(folder) == VALUES


def test_async_mappers_are_accepted_as_targets(stored, tmp_path, s3_server, http_server):
    s3_server.upload(stored, "store")
    url, options = f"{s3_server.url}/store", s3_server.storage_options
    assert read(fsspec.get_mapper(url, asynchronous=True, **options)) == VALUES
    os.rename(stored, f"{http_server.root}/store")
    web = f"{http_server.url}/store"
    assert read(fsspec.get_mapper(web, asynchronous=True)) == VALUES
    headers = {"headers": {"X-Token": "1"}}
    assert read(fsspec.get_mapper(web, **headers)) == VALUES
    assert {request.headers.get("X-Token") for request in http_server.requests} == {None, "1"}
    wrapped = AsyncFileSystemWrapper(fsspec.filesystem("file"), asynchronous=True)
    assert read(fsspec.FSMap(f"{http_server.root}/store", wrapped)) == VALUES


def test_unused_storage_options_are_rejected(stored, memory, s3_server):
    with pytest.raises(UnsupportedError, match='option "anon" has no effect'):
        read({".zgroup": b'{"zarr_format": 2}'}, storage_options={"anon": True})
    mapper = fsspec.get_mapper("memory://x")
    with pytest.raises(UnsupportedError, match='option "anon" has no effect'):
        read(mapper, storage_options={"anon": True})
    with pytest.raises(UnsupportedError, match='option "s3" has no effect'):
        read("memory://x", storage_options={"s3": {}})
    nested = r'option "anon" has no effect.*storage_options=\{"s3": \{…\}\}'
    for chain in ("simplecache::", "simplecache::zip://::"):
        with pytest.raises(UnsupportedError, match=nested):
            read(f"{chain}s3://bucket/x", storage_options={"anon": True})
    s3_server.upload(stored, "store")
    url, options = f"{s3_server.url}/store", s3_server.storage_options
    for target in (url, f"simplecache::{url}"):
        assert read(target, storage_options={"s3": options}) == VALUES


# Superfluous parts -------------------------------------------------------------------------------


@pytest.fixture
def places(stored, tmp_path, memory, http_server, s3_server, groups):
    """Return the same store in every kind of location, and a reference document."""
    write_zip(tmp_path / "store.zip", read_objects(stored))
    (tmp_path / "set.json").write_text(json.dumps(groups))
    put_records(fsspec.filesystem("file"), f"{tmp_path}/records", "data.bin")
    (tmp_path / "data.bin").write_bytes(data())
    s3_server.upload(tmp_path, "top")
    for path in tmp_path.rglob("*"):
        if path.is_file() and http_server.root not in str(path):
            key = path.relative_to(tmp_path)
            memory.pipe(f"/top/{key}", path.read_bytes())
            copied = Path(http_server.root, key)
            copied.parent.mkdir(parents=True, exist_ok=True)
            copied.write_bytes(path.read_bytes())
    memory.pipe("/top/zipped", (tmp_path / "store.zip").read_bytes())
    return {"local": tmp_path, "http": http_server.url, "s3": f"{s3_server.url}/top"}


TOO_MANY = {
    # paths
    "path with a query": "{local}/store?a=b",
    "path with a fragment": "{local}/store#part",
    "path below a file": "{local}/store.zip/store",
    "path below a document": "{local}/set.json/sub",
    "path on S3": "{local}/store#mode=nczarr,s3",
    "path with a profile": "{local}/store#mode=nczarr&awsprofile=me",
    "file URL with a query": "file://{local}/store?a=b",
    "file URL of a host": "file://host{local}/store",
    "file URL with a fragment": "file://{local}/store#part=1",
    # URLs
    "http with a fragment": "{http}/store#part",
    "http that is a file": "{http}/store#mode=nczarr,file",
    "http with a profile": "{http}/store#mode=zarr&awsprofile=me",
    "http below a zip file": "{http}/store.zip/store",
    "http below a document": "{http}/set.json/sub",
    "http document in a zip file": "{http}/set.json#mode=zarr,zip",
    "memory with a query": "memory://top/store?a=b",
    "memory with a fragment": "memory://top/store#part",
    "memory on S3": "memory://top/store#mode=nczarr,s3",
    "memory that is a file": "memory://top/store#mode=nczarr,file",
    "memory with a profile": "memory://top/store#awsprofile=me",
    "s3 with a query": "{s3}/store?versionId=1",
    "s3 that is a file": "{s3}/store#mode=nczarr,file",
    # chained URLs
    "two places": "memory://top/store::file://{local}/store",
    "two places on the web": "{http}/store::{http}/store",
    "a place behind S3": "{s3}/store::memory://top/store",
    "a cache with a path": "simplecache://path::{http}/store",
    "another cache with a path": "filecache://path::{http}/store",
    "two zip files": "zip::zip::file://{local}/store.zip",
    "zip of zip": "zip::zip::memory://top/zipped",
    "no such folder in a zip file": "zip://nothing::file://{local}/store.zip",
    "a fragment of a chain": "simplecache::{http}/store#part",
    "a profile of a chain": "simplecache::{s3}/store#mode=s3&awsprofile=me",
    "references behind a cache": "simplecache::reference::file://{local}/set.json",
    "references within a zip file": "zip://x::reference://::file://{local}/set.json",
    # reference sets
    "document that is a zip file": "{local}/set.json#mode=zarr,zip",
    "document that is a directory": "{local}/set.json#mode=zarr,file",
    "document with a fragment": "reference::{local}/set.json#part=1",
    "document with a query": "{local}/set.json?a=b",
    "document without the group": "reference://nothing::{local}/set.json",
    "records without the group": "reference://nothing::{local}/records",
    "no document": "reference://sub",
    "two chains of references": "reference::reference::{local}/set.json",
}
OBJECTS = {
    "document and URL": ("reference::{local}/set.json", {"fo": "{local}/set.json"}),
    "document and path": ("{local}/set.json", {"fo": "{local}/set.json"}),
    "document of another medium": ("reference://#mode=zarr,zip", {"fo": "{local}/set.json"}),
    "a group of a dictionary": ("reference://nothing", {"fo": {".zgroup": '{"zarr_format": 2}'}}),
}


@pytest.mark.parametrize("name", TOO_MANY)
@pytest.mark.filterwarnings("ignore:.*unclosed:ResourceWarning")
def test_target_with_superfluous_path_or_fragment_is_rejected(places, name, s3_server):
    target = TOO_MANY[name].format(**places)
    options = {"s3": s3_server.storage_options} if "s3:" in target else None
    with pytest.raises(NczarrError) as caught:
        read(target, storage_options=options)
    assert isinstance(
        caught.value, NotFoundError | UnsupportedError | ConflictError | MetadataError
    )


@pytest.mark.parametrize("name", OBJECTS)
def test_target_that_contradicts_options_is_rejected(places, name):
    target, options = OBJECTS[name]
    fill = lambda value: value.format(**places) if isinstance(value, str) else value  # noqa: E731
    options = {key: fill(value) for key, value in options.items()}
    with pytest.raises(NczarrError):
        read(target.format(**places), storage_options=options)


def test_targets_can_combine_paths_fragments_and_chained_urls(places, s3_server):
    """Each of these targets is valid. `TOO_MANY` adds a part that does not apply to the target."""
    s3 = {"storage_options": {"s3": s3_server.storage_options}}
    for target, options in (
        ("{local}/store", {}),
        ("{local}/store#mode=nczarr,file", {}),
        ("file://{local}/store.zip#mode=nczarr,zip", {}),
        ("{http}/store#mode=nczarr", {}),
        ("{http}/store.zip#mode=nczarr,zip", {}),
        ("memory://top/store", {}),
        ("memory://top/zipped#mode=zip", {}),
        ("{s3}/store#mode=nczarr,s3", s3),
        ("simplecache::{http}/store", {}),
        ("simplecache::{s3}/store", s3),
        ("zip::file://{local}/store.zip", {}),
        ("zip::simplecache::{http}/store.zip", {}),
        ("{local}/records", {}),
        ("reference::{local}/records", {}),
    ):
        assert read(target.format(**places), **options) == VALUES, target
    assert read("reference://sub::{local}/set.json".format(**places)) == [4, 5]
