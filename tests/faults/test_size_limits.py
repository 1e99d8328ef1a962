"""Metadata, indexes and chunks above a limit are rejected before memory is allocated."""

import json
import zipfile

import numcodecs
import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.local import LocalFileSystem

from tests.reading import peak_memory
from tests.small_stores import plain_objects
from tests.stores import array_document, put, write_zip
from xr_nczarr import (
    ChunkError,
    LimitError,
    NczarrError,
    UnsupportedError,
    explain,
    to_nczarr,
    verify,
)

DOCUMENT = array_document((2,), "<f8", fill_value=0)


def sharded_store(shape, inner):
    """Return a store with an array of one shard, whose inner chunks have the shape `inner`.

    The stored shard is invalid.
    """
    parts = {"chunk_shape": inner, "codecs": [{"name": "bytes"}]}
    array = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": "uint8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shape}},
        "chunk_key_encoding": {"name": "default"},
        "fill_value": 0,
        "codecs": [{"name": "sharding_indexed", "configuration": parts}],
        "dimension_names": ["y", "x"],
        "attributes": {},
    }
    return {
        "zarr.json": b'{"zarr_format": 3, "node_type": "group", "attributes": {}}',
        "v/zarr.json": json.dumps(array).encode(),
        "v/c/0/0": b"not a shard",
    }


def test_terabyte_shard_index_is_rejected_before_allocation():
    objects = sharded_store([1 << 20, 1 << 20], [1, 1])
    variable = xr.open_dataset(objects, engine="nczarr").v

    def read(selected):
        with pytest.raises(LimitError, match=r"index of a shard .* 17,592,186,044,416 bytes"):
            selected.load()

    for selected in (variable, variable[3, 4], variable[:, :2], variable.T[0]):
        assert peak_memory(lambda selection=selected: read(selection)) < 1 << 20
    ones = xr.Dataset({"v": (("y", "x"), np.ones((1, 1), "u1"))})
    region = {"y": slice(0, 1), "x": slice(0, 1)}
    with pytest.raises(LimitError, match="index of a shard"):
        to_nczarr(ones, objects, region=region)
    (finding,) = [finding for finding in verify(objects).findings if finding.severity == "error"]
    assert "index of a shard" in finding.problem


@pytest.mark.parametrize("size", [1 << 33, 1 << 62])
def test_coordinate_too_large_for_index_is_not_read(size):
    objects = plain_objects("x", dimension="x")
    objects["x/.zarray"] = json.dumps(DOCUMENT | {"shape": [size]}).encode()
    with pytest.warns(xr.SerializationWarning, match=r"^/x has no index: .*max_ind"):
        dataset = xr.open_dataset(objects, engine="nczarr")
    assert list(dataset.variables) == ["x"]
    assert list(dataset.coords) == []
    with pytest.raises(LimitError, match=r"mapping.*max_index_bytes"):
        dataset["x"].load()
    objects["x/.zarray"] = json.dumps(DOCUMENT | {"shape": [1 << 20], "chunks": [1]}).encode()
    with pytest.warns(xr.SerializationWarning, match="has no index"):
        # Reading so many missing chunks would take too long.
        dataset = xr.open_dataset(objects, engine="nczarr")
    assert list(dataset.coords) == []
    options = {"limits": {"max_index_bytes": 15}, "on_unsupported": "raise"}
    with pytest.raises(LimitError, match=r"2 values in 1 chunks.* more than 15 bytes"):
        xr.open_dataset(plain_objects("x", dimension="x"), engine="nczarr", **options)


@pytest.mark.parametrize("piece", [b"[],", b"1.5,"])
def test_metadata_with_many_small_values_is_rejected_before_parsing(piece):
    text = b'{"a": [' + piece * 300_000 + b"1]}"
    with pytest.raises(LimitError, match=r"mapping: a/\.zattrs: .* commas.*max_metadata_bytes"):
        xr.open_dataset(plain_objects() | {"a/.zattrs": text}, engine="nczarr").load()


@pytest.mark.parametrize("name", ["gzip", "bz2", "lzma"])
def test_streams_with_too_many_compressed_members_are_rejected(name):
    codec = numcodecs.get_codec({"id": name})
    values = np.random.default_rng(0).random(60_000)  # more members than are decoded in one step
    array = DOCUMENT | {"shape": [60_000], "chunks": [60_000], "compressor": codec.get_config()}
    objects = plain_objects() | {"a/.zarray": json.dumps(array).encode()}
    pieces = [codec.encode(piece) for piece in np.split(values, 3)]
    objects["a/0"] = codec.encode(b"") + b"".join(pieces)
    with xr.open_dataset(objects, engine="nczarr") as dataset:
        assert (dataset["a"].values == values).all()
    objects["a/0"] = codec.encode(b"") * 101_000
    with (
        xr.open_dataset(objects, engine="nczarr") as dataset,
        pytest.raises(ChunkError, match="too many compressed streams; expected at most 100,000"),
    ):
        dataset.load()


@pytest.mark.parametrize("compressor", [None, {"id": "zlib", "level": 1}])
@pytest.mark.parametrize(
    "where", ["local", "zip", "reference", "whole reference", "filesystem", "http"]
)
def test_object_much_larger_than_decoded_chunk_is_not_read(
    tmp_path, http_server, where, compressor
):
    objects = plain_objects() | {
        "a/.zarray": json.dumps(DOCUMENT | {"compressor": compressor}).encode()
    }
    with open(tmp_path / "long", "wb") as file:
        file.truncate(3 << 20 if where == "http" else 3 << 30)
    documents = {key: data.decode() for key, data in objects.items() if not key.endswith("/0")}
    if where == "zip":
        target = tmp_path / "s.zip"
        write_zip(target, documents | {"a/0": bytes(2 << 20)}, compression=zipfile.ZIP_DEFLATED)
    elif where == "http":
        (tmp_path / "long").rename(f"{http_server.root}/long")
        target = documents | {"a/0": [f"{http_server.url}/long"]}
    elif where.endswith("reference"):
        entry = [str(tmp_path / "long"), 0, 3 << 30]
        target = documents | {"a/0": entry if where == "reference" else entry[:1]}
    else:
        target = put(tmp_path / "s", documents)
        (tmp_path / "long").rename(target / "a/0")
        if where == "filesystem":
            target = LocalFileSystem().get_mapper(str(target))
    with xr.open_dataset(target, engine="nczarr") as dataset:
        problem = r"a/0.*(limit of 1,|stored data is 3,221,225,472 bytes)"

        def load():
            with pytest.raises(NczarrError, match=problem):
                dataset.load()

        assert peak_memory(load) < 8 << 20


def test_metadata_above_limit_is_neither_read_nor_decompressed(tmp_path):
    objects = plain_objects()
    del objects["a/.zattrs"]
    packed = objects | {"a/.zattrs": b" " * (70 << 20)}
    write_zip(tmp_path / "s.zip", packed, compression=zipfile.ZIP_DEFLATED)
    put(tmp_path / "s", objects)
    with open(tmp_path / "s/a/.zattrs", "wb") as file:
        file.truncate(3 << 30)

    def open_rejected(target):
        with pytest.raises(LimitError, match=r"s(\.zip)?: a/\.zattrs: .*max_metadata_bytes"):
            xr.open_dataset(target, engine="nczarr")

    for target in (tmp_path / "s.zip", tmp_path / "s"):
        assert peak_memory(lambda target=target: open_rejected(target)) < 8 << 20


def test_error_for_shard_with_too_many_chunks_includes_store_name():
    array = {"zarr_format": 3, "node_type": "array", "shape": [4, 4], "data_type": "int32"}
    array |= {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 2**31]}}}
    array |= {"chunk_key_encoding": {"name": "default"}, "fill_value": 0}
    little = [{"name": "bytes", "configuration": {"endian": "little"}}]
    sharding = {"chunk_shape": [2, 2], "codecs": little, "index_codecs": little}
    array["codecs"] = [{"name": "sharding_indexed", "configuration": sharding}]
    array["dimension_names"] = ["y", "x"]
    opened = xr.open_dataset({"zarr.json": json.dumps(array).encode()}, engine="nczarr")
    with pytest.raises(LimitError) as caught:
        opened.load()
    assert (caught.value.store, caught.value.variable) == ("mapping", "/")


def array_store(**members):
    """Return a store without chunks, in which the array ``v`` has the dimensions (x) or (x, y)."""
    return {
        ".zgroup": b'{"zarr_format": 2}',
        "v/.zarray": json.dumps(DOCUMENT | members).encode(),
        "v/.zattrs": json.dumps(
            {"_ARRAY_DIMENSIONS": ["x", "y"][: len(members["shape"])]}
        ).encode(),
    }


def test_selection_with_too_many_chunks_is_rejected_before_planning():
    variable = xr.open_dataset(array_store(shape=[1 << 53], chunks=[3]), engine="nczarr").v

    def read(selection):
        with pytest.raises(
            UnsupportedError, match=r"3,002,399,751,580,331 chunks .* \(variable /v"
        ):
            selection.load()

    for selection in (variable, variable[::-1]):
        assert peak_memory(lambda selected=selection: read(selected)) < 1 << 20
    assert np.isnan(variable[1 << 52].values)


def test_array_with_huge_and_empty_dimensions_can_be_loaded():
    store = array_store(shape=[1 << 40, 0], chunks=[1, 1])
    variable = xr.open_dataset(store, engine="nczarr").v
    assert peak_memory(lambda: variable.load()) < 1 << 20
    assert variable.shape == (1 << 40, 0)
    assert "0 of 0" in str(explain(store))
    with pytest.raises(IndexError):
        _ = variable[1 << 40].values
