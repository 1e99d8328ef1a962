"""Reference sets of existing stores are written, read back, and read by other programs."""

import dataclasses
import gzip
import json
import os
import sys
import zipfile
from pathlib import Path

import fsspec
import kerchunk.utils
import netCDF4
import numcodecs
import numpy as np
import pytest
import virtualizarr
import xarray as xr
import zarr
from obspec_utils.registry import ObjectStoreRegistry
from obstore.store import LocalStore
from packaging.version import Version
from virtualizarr.parsers import KerchunkJSONParser, KerchunkParquetParser

import xr_nczarr
from tests.reading import RAW, assert_reads_as, open_store, read_groups
from tests.stores import (
    VINTAGES,
    array_document,
    cf_dataset,
    read_objects,
    sample,
    write_netcdf_c,
    write_vintage,
    write_zip,
)
from xr_nczarr.cli.main import main
from xr_nczarr.errors import (
    AccessDeniedError,
    ConflictError,
    LimitError,
    NotFoundError,
    StorageError,
    UnsupportedError,
)
from xr_nczarr.model import Limits
from xr_nczarr.references import expand, parse, write
from xr_nczarr.references.parse import parse_references
from xr_nczarr.references.render import collect_references, portable
from xr_nczarr.storage import RemoteStore
from xr_nczarr.storage.store import Address


def pack(folder, compression=zipfile.ZIP_STORED):
    """Write a zip file that contains the content of a directory at its root."""
    return write_zip(f"{folder}.zip", read_objects(folder), compression=compression)


def regular(path, zarr_format=2):
    """Write a store with one array in 200 chunks of equal size, and a coordinate."""
    dataset = xr.Dataset(
        {"t": (("x", "y"), np.arange(800.0).reshape(20, 40))}, {"x": np.arange(20)}
    )
    encoding = {"t": {"chunks": (2, 2), "compressors": None}, "x": {"compressors": None}}
    dataset.to_zarr(path, zarr_format=zarr_format, encoding=encoding, consolidated=False)
    return dataset


@pytest.mark.parametrize("kind", ["json", "inline", "parq", "zip"])
@pytest.mark.parametrize("release", VINTAGES)
def test_stores_from_every_netcdf_c_release_are_readable_through_references(
    tmp_path, release, kind, way
):
    store = write_vintage(tmp_path / "store", sample(release), release)
    target = tmp_path / ("set.parq" if kind == "parq" else "set.json")
    source = pack(store) if kind == "zip" else store
    write(source, target, inline_below=100_000 if kind == "inline" else 0, record_size=5)
    assert_reads_as(read_groups(target, way, **RAW), sample(release))


def test_netcdf_c_stores_are_readable_through_references(tmp_path):
    store = write_netcdf_c(tmp_path / "store")
    write(store, tmp_path / "set.json")
    expected, result = (
        xr.open_groups(target, engine="nczarr") for target in (store, tmp_path / "set.json")
    )
    assert result.keys() == expected.keys()
    for path, group in expected.items():
        xr.testing.assert_identical(result[path].load(), group.load())


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_plain_zarr_is_readable_through_references(tmp_path, zarr_format):
    dataset = cf_dataset().drop_vars(["code", "label"])
    dataset.to_zarr(tmp_path / "store", zarr_format=zarr_format, consolidated=False)
    write(tmp_path / "store", tmp_path / "set.json")
    expected, result = (
        xr.open_dataset(tmp_path / name, engine="nczarr").load() for name in ("store", "set.json")
    )
    xr.testing.assert_identical(result, expected)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("packed", [False, True])
def test_references_to_regular_chunks_are_written_as_generators(tmp_path, packed, zarr_format):
    dataset = regular(tmp_path / "store", zarr_format)
    source = pack(tmp_path / "store") if packed else tmp_path / "store"
    written = write(source, tmp_path / "set.json", generators=True)
    assert (written.references, written.arrays) == (201, 2)
    text = (tmp_path / "set.json").read_text()
    if not packed:
        assert len(json.loads(text)["gen"]) == written.generators == 1
        assert len(text) < 4000
        assert "simple_templates=False" in repr(written)
    store = open_store(source)
    references = parse_references(text)
    assert references.key_count == len(read_objects(tmp_path / "store"))
    for key, entry in expand(text).items():
        if isinstance(entry, list):
            data = Path(entry[0]).read_bytes()
            first, length = entry[1:] or (0, len(data))
            assert data[first : first + length] == bytes(next(store.fetch([key])))
    xr.testing.assert_equal(xr.open_dataset(tmp_path / "set.json", engine="nczarr"), dataset)


def test_rewritten_reference_set_points_to_same_bytes(tmp_path):
    regular(tmp_path / "store")
    write(tmp_path / "store", tmp_path / "first.json")
    write(tmp_path / "first.json", tmp_path / "second.json")
    write(tmp_path / "second.json", tmp_path / "third.parq")
    write(tmp_path / "third.parq", tmp_path / "fourth.json")
    first, second, fourth = (
        expand((tmp_path / f"{name}.json").read_bytes()) for name in ("first", "second", "fourth")
    )
    assert second == first
    assert fourth.keys() == first.keys()
    assert all(fourth[key] == entry for key, entry in first.items() if isinstance(entry, list))


def test_rewriting_reference_set_can_inline_small_chunks_or_create_generators(tmp_path):
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(range(256)) * 100)
    document = {f"t/{i}.{j}": ["data.bin", 64 * i + 2 * j, 2] for i in range(90) for j in range(30)}
    document |= {"u/0": ["data.bin", 0, 300], "u/1": ["data.bin", 1, 299]}
    (tmp_path / "set.json").write_text(json.dumps(document))
    write(tmp_path / "set.json", tmp_path / "less.json", inline_below=300)
    less = parse_references((tmp_path / "less.json").read_bytes())
    assert less.resolve("u/0") == Address(str(path), 0, 300)
    assert less.resolve("u/1") == path.read_bytes()[1:300]
    assert less.resolve("t/3.1") == path.read_bytes()[194:196]
    write(tmp_path / "set.json", tmp_path / "short.json", generators=True)
    short = json.loads((tmp_path / "short.json").read_bytes())
    assert [member["key"] for member in short["gen"]] == ["t/{{i0}}.{{i1}}"]
    assert expand(short) == {key: [str(path), *rest] for key, (_, *rest) in document.items()}


@pytest.mark.filterwarnings("ignore:The 'fastparquet' engine")
@pytest.mark.parametrize("consolidated", [False, True])
def test_nested_chunk_keys_can_be_written_to_parquet(tmp_path, consolidated):
    group = zarr.open_group(tmp_path / "store", mode="w", zarr_format=2)
    nested = {"name": "v2", "separator": "/"}
    array = group.create_array(
        "t",
        shape=(4, 6),
        chunks=(2, 3),
        dtype="i4",
        fill_value=None,
        chunk_key_encoding=nested,
        attributes={"_ARRAY_DIMENSIONS": ["y", "x"]},
    )
    array[:] = np.arange(24).reshape(4, 6)
    write(tmp_path / "store", tmp_path / "set.json")
    document = json.loads((tmp_path / "set.json").read_bytes())
    if consolidated:
        zarr.consolidate_metadata(group.store)
        document["refs"][".zmetadata"] = (tmp_path / "store/.zmetadata").read_text()
    (tmp_path / "set.json").write_text(json.dumps(document))
    assert write(tmp_path / "set.json", tmp_path / "set.parq").references == 4
    for engine in ("nczarr", "kerchunk"):
        opened = xr.open_dataset(str(tmp_path / "set.parq"), engine=engine)
        assert opened.t.values.ravel().tolist() == list(range(24))


def test_references_to_zero_bytes_remain_empty_in_parquet_sets(tmp_path):
    zarray = array_document([2], "|u1", chunks=[1])
    document = {".zgroup": {"zarr_format": 2}, "t/.zarray": zarray}
    document |= {"t/0": ["data.bin", 0, 0], "t/1": ["data.bin"]}
    (tmp_path / "set.json").write_text(json.dumps(document))
    write(tmp_path / "set.json", tmp_path / "set.parq")
    write(tmp_path / "set.parq", tmp_path / "back.json")
    back = parse_references((tmp_path / "back.json").read_bytes())
    assert back.resolve("t/0") == b""
    assert back.resolve("t/1") == Address(str(tmp_path / "data.bin"))


@pytest.mark.filterwarnings("ignore:The 'fastparquet' engine")
@pytest.mark.parametrize("name", ["out.json", "out.parq"])
@pytest.mark.parametrize("inline_below", [0, 100])
def test_virtualizarr_references_to_scalars_can_be_rewritten(tmp_path, name, inline_below):
    (tmp_path / "data.bin").write_bytes(np.float64(2.5).tobytes())
    xr_nczarr.to_nczarr(xr.Dataset({"s": 0.0}), tmp_path / "store", zarr_format=2)
    write(tmp_path / "store", tmp_path / "set.json")
    document = json.loads((tmp_path / "set.json").read_text())
    del document["refs"]["s/0"]
    document["refs"]["s/"] = ["data.bin", 0, 8]  # VirtualiZarr up to 2.5 omits the index
    (tmp_path / "set.json").write_text(json.dumps(document))
    assert write(tmp_path / "set.json", tmp_path / name, inline_below=inline_below).references == 1
    for engine in ("nczarr", "kerchunk"):
        assert xr.open_dataset(str(tmp_path / name), engine=engine).s == 2.5


def test_reference_counts_include_v3_arrays_with_dotted_chunk_keys(tmp_path):
    group = zarr.open_group(tmp_path / "store", mode="w")
    encoding = {"name": "default", "separator": "."}
    array = group.create_array("t", shape=(2, 2), chunks=(1, 1), dtype="i4")
    array[:] = 1
    array = group.create_array("u", shape=4, chunks=1, dtype="i4", chunk_key_encoding=encoding)
    array[:] = 1
    written = write(tmp_path / "store", tmp_path / "set.json")
    assert (written.references, written.arrays) == (8, 2)


def test_deflated_zip_entries_must_be_inlined(tmp_path):
    regular(tmp_path / "store")
    source = pack(tmp_path / "store", zipfile.ZIP_DEFLATED)
    with pytest.raises(UnsupportedError, match="deflated"):
        write(source, tmp_path / "set.json")
    assert not (tmp_path / "set.json").exists()
    write(source, tmp_path / "set.json", inline_below=1000)
    opened = xr.open_dataset(tmp_path / "set.json", engine="nczarr")
    np.testing.assert_array_equal(opened.t.values, np.arange(800.0).reshape(20, 40))


def test_writing_references_to_zip_file_over_http_sends_few_requests(http_server):
    dataset = regular(f"{http_server.root}/store")
    pack(f"{http_server.root}/store")
    write(f"{http_server.url}/store.zip", f"{http_server.root}/set.json")
    assert len(http_server.requests_for("*")) < 8
    xr.testing.assert_equal(
        xr.open_dataset(f"{http_server.root}/set.json", engine="nczarr"), dataset
    )


def test_node_limit_applies_to_unlistable_store(tmp_path, http_server):
    xr_nczarr.to_nczarr(xr.Dataset({"a": 1, "b": 2}), f"{http_server.root}/store")
    with pytest.raises(LimitError, match="max_nodes"):
        write(f"{http_server.url}/store", tmp_path / "set.json", limits={"max_nodes": 2})
    assert not (tmp_path / "set.json").exists()


@pytest.mark.filterwarnings("ignore:The 'fastparquet' engine")
@pytest.mark.parametrize("name", ["set.json", "set.parq"])
def test_fsspec_reads_written_reference_set(tmp_path, name):
    dataset = regular(tmp_path / "store")
    write(tmp_path / "store", tmp_path / name, inline_below=100, record_size=64)
    filesystem = fsspec.filesystem("reference", fo=str(tmp_path / name), remote_protocol="file")
    store = zarr.storage.FsspecStore.from_mapper(filesystem.get_mapper(""), read_only=True)
    opened = xr.open_zarr(store, consolidated=False, zarr_format=2)
    xr.testing.assert_equal(opened.load(), dataset)


@pytest.fixture(scope="module", params=["2", "3"])
def variables_of_every_encoding(request, tmp_path_factory):
    """Return a store that other programs often misread, its dataset, and its Zarr version."""
    field = np.where(np.arange(240) % 7, np.arange(240) / 4, np.nan).reshape(20, 12)
    names = ["double", "float", "nan", "packed", "integer", "deflated", "undeclared"]
    dataset = xr.Dataset(dict.fromkeys(names, (("y", "x"), field)), {"x": np.arange(12.0)})
    dataset["integer"] = ("y", "x"), np.arange(240).reshape(20, 12)
    dataset["time"] = "x", np.datetime64("2000-01-01", "ns") + np.arange(12).astype("m8[D]")
    encoding = {name: {"chunks": (2, 3)} for name in names}
    encoding["double"] |= {"_FillValue": -9999.0}
    encoding["float"] |= {"dtype": "f4", "_FillValue": np.float32(-999.5)}
    encoding["nan"] |= {"_FillValue": np.nan}
    encoding["packed"] |= {"dtype": "i2", "scale_factor": 0.25, "_FillValue": np.int16(-3)}
    encoding["deflated"] |= {"zlib": True, "_FillValue": 1e20}
    encoding["undeclared"] |= {"_FillValue": None}
    encoding["time"] = {"units": "days since 1999-01-01", "dtype": "f8"}
    path = tmp_path_factory.mktemp("encodings") / "store"
    xr_nczarr.to_nczarr(dataset, path, encoding=encoding, zarr_format=request.param)
    return path, dataset, request.param


def assert_same_values(read, dataset):
    read = read.load()
    assert read.variables.keys() == dataset.variables.keys()
    for name, variable in dataset.variables.items():
        np.testing.assert_array_equal(read[name].values, variable.values, err_msg=name)


@pytest.mark.filterwarnings("ignore:The 'fastparquet' engine")
@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
@pytest.mark.parametrize("name", ["set.json", "set.parq"])
@pytest.mark.parametrize("reader", ["nczarr", "kerchunk", "virtualizarr"])
def test_every_reader_reads_values_through_written_reference_set(
    tmp_path, variables_of_every_encoding, name, reader
):
    store, dataset, zarr_format = variables_of_every_encoding
    target = str(tmp_path / name)
    if zarr_format == "3" and name == "set.parq":
        with pytest.raises(
            UnsupportedError, match=r"only references to chunks of Zarr v2.*Write a JSON document"
        ):
            write(store, target)
        return
    assert repr(write(store, target)) == f"282 references for 9 arrays → {target}"
    if reader == "nczarr":
        read = xr.open_dataset(target, engine="nczarr")
    elif reader == "virtualizarr":
        if zarr_format == "3" and Version(virtualizarr.__version__) < Version("2.8"):
            pytest.skip("VirtualiZarr reads Zarr v3 reference sets since 2.8")
        parser, url = KerchunkParquetParser(), target
        if name == "set.json":
            parser, url = KerchunkJSONParser(), f"file://{target}"
        manifests = parser(url, ObjectStoreRegistry({"file://": LocalStore()}))
        read = xr.open_zarr(manifests, zarr_format=3, consolidated=False)
    elif zarr_format == "2":
        read = xr.open_dataset(target, engine="kerchunk")
    else:  # the kerchunk engine cannot open v3; the zarr engine can open its store
        read = xr.open_zarr(kerchunk.utils.refs_as_store(target), zarr_format=3, consolidated=False)
    assert_same_values(read, dataset)


@pytest.mark.filterwarnings("ignore:The 'fastparquet' engine")
@pytest.mark.parametrize("numbers", [int, str], ids=["numbers", "text"])
@pytest.mark.parametrize("name", ["set.json", "set.parq"])
@pytest.mark.parametrize("dtype", ["i4", str], ids=["i4", "strings"])
def test_kerchunk_engine_reads_arrays_shuffled_by_netcdf_c(tmp_path, name, numbers, dtype):
    """netcdf-c writes the element size 0, as a number or as a string.

    numcodecs does not shuffle with the element size 0, and does not accept strings.
    """
    values = np.arange(1000).reshape(10, 100).astype(dtype)
    with netCDF4.Dataset(f"file://{tmp_path}/store#mode=nczarr,file", "w") as file:
        file.createDimension("y", 10)
        file.createDimension("x", 100)
        options = {"zlib": True, "shuffle": True, "chunksizes": (5, 50)}
        variable = file.createVariable("v", dtype, ("y", "x"), **options)
        variable[:] = values.astype(object) if dtype is str else values
    path = tmp_path / "store/v/.zarray"
    document = json.loads(path.read_text())
    assert document["filters"][0]["elementsize"] in (0, "0")
    document["filters"][0]["elementsize"] = numbers(0)
    document["compressor"]["level"] = numbers(document["compressor"]["level"])
    path.write_text(json.dumps(document))
    write(tmp_path / "store", tmp_path / name)
    for engine in ("nczarr", "kerchunk"):
        read = xr.open_dataset(str(tmp_path / name), engine=engine)
        np.testing.assert_array_equal(read["v"].astype(dtype), values, err_msg=engine)


def test_consolidated_metadata_of_reference_set_agrees_with_separate_documents(tmp_path):
    dataset = xr.Dataset({"v": ("x", [1.0, 2.0]), "w": ("x", [1, 2])})
    xr_nczarr.to_nczarr(dataset, tmp_path / "store", encoding={"v": {"zlib": True}})
    write(tmp_path / "store", tmp_path / "refs.json")
    refs = json.loads((tmp_path / "refs.json").read_text())["refs"]
    consolidated = json.loads(refs[".zmetadata"])["metadata"]
    assert consolidated == {key: json.loads(refs[key]) for key in consolidated}
    assert [item["id"] for item in consolidated["v/.zarray"]["filters"]] == ["shuffle", "zlib"]
    assert xr_nczarr.verify(tmp_path / "refs.json").whole


@pytest.mark.parametrize("text", ["{", "[]", '{"metadata": []}', '{"metadata": {"v/.zarray": 1}}'])
def test_invalid_consolidated_metadata_is_left_unchanged(text):
    array = array_document([2], compressor={"id": "zlib", "level": 1})
    references = collect_references({}.items())
    entries = {"v/.zarray": json.dumps(array), ".zmetadata": text}
    converted = portable(dataclasses.replace(references, entries=entries)).entries
    assert converted[".zmetadata"] == text
    assert json.loads(converted["v/.zarray"])["compressor"] is None


def test_rewriting_fill_value_preserves_json_text_of_other_attributes():
    """If an attribute is text, netcdf-c reads 1.50 as "1.50", so it must not become 1.5."""
    array = array_document([2], "<f8", fill_value=-1.0)
    attributes = '{"version": 1.50, "a": "\\"_FillValue\\": 7", "_FillValue" :[-1.0] , "z": 0.10}'
    references = collect_references({}.items())
    entries = {"v/.zarray": json.dumps(array), "v/.zattrs": attributes}
    changed = portable(dataclasses.replace(references, entries=entries)).entries["v/.zattrs"]
    assert changed == attributes.replace(" :[-1.0] ", ': "AAAAAAAA8L8="')
    for others in ({"fill_value": None}, {"dtype": "<i4"}, {"dtype": "|S1"}):
        entries["v/.zarray"] = json.dumps(array | others)
        assert portable(dataclasses.replace(references, entries=entries)).entries == entries


def test_references_command_reports_reference_count(tmp_path, capsys):
    regular(tmp_path / "store")
    source, target = str(tmp_path / "store"), str(tmp_path / "set.json")
    assert main(["references", source, target]) == 0
    assert capsys.readouterr().out == f"201 references for 2 arrays → {target}\n"
    assert "gen" not in json.loads((tmp_path / "set.json").read_text())
    assert main(["references", source, target, "--compact"]) == 0
    assert "simple_templates=False" in capsys.readouterr().out
    assert len(json.loads((tmp_path / "set.json").read_text())["gen"]) == 1
    assert main(["references", source, target, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.pop("schema_version") == 1
    assert printed == {"target": target, "references": 201, "arrays": 2, "generators": 0}
    with pytest.raises(UnsupportedError, match="cannot contain generators"):
        write(source, tmp_path / "set.parq", generators=True)


def test_references_to_s3_stores_can_be_written_to_s3(tmp_path, s3_server):
    dataset = regular(tmp_path / "store")
    url = s3_server.upload(tmp_path / "store", "data/store")
    options = s3_server.storage_options
    for name in ("set.json", "set.parq"):
        target = f"s3://{s3_server.bucket}/sets/{name}"
        write(url, target, storage_options=options, target_options=options)
        opened = xr.open_dataset(target, engine="nczarr", storage_options=options)
        xr.testing.assert_equal(opened.load(), dataset)


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("{}", {"anon": True}, 'option "anon" has no effect'),
        ("reference://g::{}", None, "must be a whole reference set, not the group 'g'"),
    ],
    ids=["option", "group"],
)
def test_target_with_unused_option_or_group_is_rejected(tmp_path, target, options, message):
    regular(tmp_path / "store")
    with pytest.raises(UnsupportedError, match=message):
        write(tmp_path / "store", target.format(tmp_path / "set.json"), target_options=options)
    assert not (tmp_path / "set.json").exists()


def test_parquet_reference_set_is_replaced_atomically(tmp_path, s3_server):
    """Parquet cannot contain chunks of Zarr v3. This is detected only after other writes."""
    dataset = regular(tmp_path / "store")
    mixed = {"t/.zarray": (tmp_path / "store/t/.zarray").read_text(), "t/0.0": "x", "u/c/0": "y"}
    options = s3_server.storage_options
    local, remote = str(tmp_path / "set.parq"), f"s3://{s3_server.bucket}/set.parq"
    for target in (local, remote):
        with pytest.raises(UnsupportedError, match="JSON"):
            write(mixed, target, target_options=options if target == remote else None)
    assert sorted(os.listdir(tmp_path)) == ["store"]
    bucket = open_store(s3_server.url, storage_options=options)
    assert bucket.list_names("set.parq/") == ([], [])
    for _ in range(2):
        write(tmp_path / "store", local, record_size=10)
    assert sorted(os.listdir(tmp_path)) == ["set.parq", "store"]
    with pytest.raises(UnsupportedError, match="JSON"):
        write(mixed, local)
    xr.testing.assert_equal(xr.open_dataset(local, engine="nczarr").load(), dataset)


def test_rejected_write_leaves_remote_parquet_set_unchanged(tmp_path):
    place = f"memory://{tmp_path.name}"
    dataset = regular(f"{place}/store")
    document = json.dumps(array_document((2, 2)))
    mixed = {"t/.zarray": document, "t/0.0": "x", "u/c/0": "y"}
    write(f"{place}/store", f"{place}/set.parq", record_size=10)
    with pytest.raises(UnsupportedError, match="JSON"):
        write(mixed, f"{place}/set.parq")
    opened = xr.open_dataset(f"{place}/set.parq", engine="nczarr")
    xr.testing.assert_equal(opened.load(), dataset)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("allowed", [0, 1, 2])
def test_interrupted_remote_write_leaves_no_reference_set(tmp_path, monkeypatch, allowed, killed):
    place = f"memory://{tmp_path.name}"
    second = regular(f"{place}/first").isel(x=slice(15)) + 1
    second.to_zarr(f"{place}/second", zarr_format=2, consolidated=False)
    write(f"{place}/first", f"{place}/set.parq", record_size=50)
    with monkeypatch.context() as patch:
        interrupt(patch, allowed, killed)
        with pytest.raises(StorageError, match="interrupted"):
            write(f"{place}/second", f"{place}/set.parq")  # three objects
    with pytest.raises(NotFoundError):
        xr.open_dataset(f"{place}/set.parq", engine="nczarr")
    write(f"{place}/second", f"{place}/set.parq")
    opened = xr.open_dataset(f"{place}/set.parq", engine="nczarr")
    xr.testing.assert_equal(opened.load(), second)


def interrupt(patch, allowed, killed):
    """Make every write after the first `allowed` writes fail.

    If `killed` is True, objects are not deleted after the first failure either.
    """
    put, delete = RemoteStore.put, RemoteStore.delete
    requests = []

    def failing_put(store, items):
        requests.append(items)
        if len(requests) > allowed:
            raise StorageError("interrupted")
        put(store, items)

    def ignored_delete(store, prefix):
        if len(requests) <= allowed:
            delete(store, prefix)

    patch.setattr(RemoteStore, "put", failing_put)
    if killed:
        patch.setattr(RemoteStore, "delete", ignored_delete)


def test_remote_directory_without_reference_set_is_not_replaced(tmp_path):
    place = f"memory://{tmp_path.name}"
    dataset = regular(f"{place}/store")
    dataset.to_zarr(f"{place}/mine.parq", zarr_format=2, consolidated=True)
    with pytest.raises(
        ConflictError, match=r"mine\.parq: the target exists, but is not a reference set"
    ):
        write(f"{place}/store", f"{place}/mine.parq")
    opened = xr.open_dataset(f"{place}/mine.parq", engine="nczarr", consolidated=True)
    xr.testing.assert_equal(opened.load(), dataset)


def test_remote_store_that_cannot_be_listed_is_not_replaced(tmp_path, monkeypatch):
    def deny(*_):
        raise AccessDeniedError("denied")

    place = f"memory://{tmp_path.name}"
    dataset = regular(tmp_path / "store")
    dataset.to_zarr(f"{place}/mine.parq", zarr_format=2, consolidated=True)
    monkeypatch.setattr(RemoteStore, "list_keys", deny)
    with pytest.raises(ConflictError, match="is not a reference set"):
        write(tmp_path / "store", f"{place}/mine.parq")
    opened = xr.open_dataset(f"{place}/mine.parq", engine="nczarr", consolidated=True)
    xr.testing.assert_equal(opened.load(), dataset)
    write(tmp_path / "store", f"{place}/new.parq")


def test_directory_without_reference_set_is_not_replaced(tmp_path):
    regular(tmp_path / "store")
    (tmp_path / "mine.parquet").mkdir()
    (tmp_path / "mine.parquet/part.0.parquet").write_bytes(b"mine")
    with pytest.raises(
        ConflictError,
        match=r"mine\.parquet: the target exists, but is not a reference set",
    ):
        write(tmp_path / "store", tmp_path / "mine.parquet")
    assert os.listdir(tmp_path / "mine.parquet") == ["part.0.parquet"]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems reject such names")
@pytest.mark.parametrize("generators", [False, True])
def test_references_to_files_with_undecodable_names_are_written_as_json(tmp_path, generators):
    dataset = regular(tmp_path / "store")
    source = (tmp_path / "store").rename(tmp_path / os.fsdecode(b"\xff"))
    write(source, tmp_path / "set.json", generators=generators)
    opened = xr.open_dataset(tmp_path / "set.json", engine="nczarr")
    xr.testing.assert_equal(opened.load(), dataset)
    with pytest.raises(UnsupportedError, match=r"URL .*udcff.* not valid Unicode.*JSON"):
        write(source, tmp_path / "set.parq")


def test_references_to_huge_sparse_array_cannot_be_written_to_parquet(tmp_path):
    array = array_document((10**12, 10**6), chunks=[1, 2])
    source = {".zgroup": '{"zarr_format": 2}', "a/.zarray": json.dumps(array)}
    source |= {"a/.zattrs": '{"_ARRAY_DIMENSIONS": ["y", "x"]}', "a/7.3": "x" * 8}
    with pytest.raises(UnsupportedError, match=r"a/\.zarray: .* a row for each .* JSON"):
        write(source, tmp_path / "set.parq")
    write(source, tmp_path / "set.json")
    opened = xr.open_dataset(tmp_path / "set.json", engine="nczarr")
    assert opened.a[7, 5:8].values.tolist() == [0, *[int.from_bytes(b"xxxx", "little")] * 2]


@pytest.mark.parametrize("name", ["set.json.gz", "set.json.zst", "set.json.zstd"])
def test_file_extension_of_reference_document_determines_its_compression(tmp_path, name):
    dataset = regular(tmp_path / "store")
    for _ in range(2):  # an existing compressed document is replaced
        write(tmp_path / "store", tmp_path / name)
    codec = {"gz": numcodecs.GZip, "zst": numcodecs.Zstd, "zstd": numcodecs.Zstd}
    document = codec[name.rpartition(".")[2]]().decode((tmp_path / name).read_bytes())
    write(tmp_path / "store", tmp_path / "set.json")
    assert bytes(document) == (tmp_path / "set.json").read_bytes()
    xr.testing.assert_equal(xr.open_dataset(tmp_path / name, engine="nczarr").load(), dataset)
    compression = {"compression": "gzip" if name.endswith("gz") else "zstd"}
    options = {"fo": str(tmp_path / name), "target_options": compression}
    if compression["compression"] in fsspec.available_compressions():
        filesystem = fsspec.filesystem("reference", **options)
        assert "t/.zarray" in filesystem.references


@pytest.mark.parametrize(
    "document",
    [
        {"type": "FeatureCollection", "features": []},
        {"name": "package", "version": "1.0.0"},
        {"version": 1, "formatters": {}},
        {"templates": {"name": "value"}},
        {"zarr_format": 3, "node_type": "group"},
        {"metadata": {".zgroup": {"zarr_format": 2}}, "zarr_consolidated_format": 1},
    ],
    ids=["geojson", "package", "logging", "templates", "group", "consolidated"],
)
def test_json_document_that_is_not_reference_set_is_not_replaced(tmp_path, document):
    regular(tmp_path / "store")
    text = json.dumps(document).encode()
    for name, content in {
        "mine.json": text,
        "mine.json.gz": gzip.compress(text),
        "damaged.json.gz": gzip.compress(text)[:-9],
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConflictError, match="the target exists, but is not a reference set"):
            write(tmp_path / "store", tmp_path / name)
        assert (tmp_path / name).read_bytes() == content


def test_compressed_file_that_exceeds_size_limit_is_not_replaced(tmp_path, monkeypatch):
    regular(tmp_path / "store")
    content = gzip.compress(bytes(1000))
    (tmp_path / "mine.json.gz").write_bytes(content)
    monkeypatch.setattr(parse, "DEFAULT_LIMITS", Limits(max_consolidated_bytes=999))
    with pytest.raises(ConflictError, match="the target exists, but is not a reference set"):
        write(tmp_path / "store", tmp_path / "mine.json.gz")
    assert (tmp_path / "mine.json.gz").read_bytes() == content


@pytest.mark.parametrize(
    "document",
    [
        {},
        {".zgroup": '{"zarr_format": 2}'},
        {"a/zarr.json": {"zarr_format": 3}},
        {"version": 1, "templates": {"u": "x"}, "gen": [], "refs": {}},
    ],
    ids=["empty", "version 0", "zarr 3", "version 1"],
)
def test_reference_document_written_by_another_program_can_be_replaced(tmp_path, document):
    dataset = regular(tmp_path / "store")
    (tmp_path / "set.json").write_text(json.dumps(document))
    write(tmp_path / "store", tmp_path / "set.json")
    opened = xr.open_dataset(tmp_path / "set.json", engine="nczarr")
    xr.testing.assert_equal(opened.load(), dataset)


@pytest.mark.parametrize("place", ["local", "s3"])
def test_file_is_replaced_only_if_it_is_empty_or_reference_document(tmp_path, s3_server, place):
    regular(tmp_path / "store")
    target, options = str(tmp_path / "mine"), None
    if place == "s3":
        target, options = f"s3://{s3_server.bucket}/mine", s3_server.storage_options
    with fsspec.open(target, "wb", **(options or {})) as file:
        file.write(b"\x89HDF\r\n\x1a\n")
    with pytest.raises(ConflictError, match="mine: the target exists, but is not a reference set"):
        write(tmp_path / "store", target, target_options=options)
    with fsspec.open(target, "rb", **(options or {})) as file:
        assert file.read() == b"\x89HDF\r\n\x1a\n"
    for content in (b"", b' {"version": 1}'):
        with fsspec.open(target, "wb", **(options or {})) as file:
            file.write(content)
        write(tmp_path / "store", target, target_options=options)
        with fsspec.open(target, "rb", **(options or {})) as file:
            assert b"t/.zarray" in file.read()
