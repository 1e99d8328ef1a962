"""Failures found by fuzzing: other exceptions, hangs and unlimited memory."""

import io
import json
import tracemalloc
import zipfile

import numcodecs
import numpy as np
import pytest
import xarray as xr
from fsspec.implementations.local import LocalFileSystem

from tests.reading import peak_memory
from xr_nczarr import (
    ChunkError,
    LimitError,
    MetadataError,
    NczarrError,
    RefusedError,
    StorageError,
    to_nczarr,
    verify,
)
from xr_nczarr.backend.lazy import decoder_errors_as_metadata
from xr_nczarr.model import Limits
from xr_nczarr.references import parse_references

ARRAY = {"zarr_format": 2, "shape": [2], "chunks": [2], "dtype": "<f8", "fill_value": 0}
ARRAY |= {"order": "C", "compressor": None, "filters": None}


def store(name="a", dimension="x", shape=(2,), **attributes):
    documents = {
        ".zgroup": {"zarr_format": 2},
        f"{name}/.zarray": ARRAY | {"shape": shape, "chunks": shape},
        f"{name}/.zattrs": {"_ARRAY_DIMENSIONS": [dimension][: len(shape)], **attributes},
    }
    result = {key: json.dumps(value).encode() for key, value in documents.items()}
    return result | {f"{name}/0": np.array([1.0, 2.0][: 2 if shape else 1]).tobytes()}


def test_empty_names_in_reference_set_are_not_listed_as_children():
    references = {".zgroup": '{"zarr_format": 2}', "/x": "{}", "//": "{}", "a/": "{}"}
    assert list(xr.open_dataset(references, engine="nczarr")) == []


def test_zip_file_without_zarr_metadata_is_not_a_store(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("__MACOSX/a", b"")
    (tmp_path / "s.zip").write_bytes(buffer.getvalue())
    with pytest.raises(FileNotFoundError, match=r"s\.zip: no Zarr metadata found"):
        xr.open_dataset(tmp_path / "s.zip", engine="nczarr")


def test_opening_zip_file_with_undecodable_names_raises_storage_error(tmp_path):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("é", b"")
    (tmp_path / "s.zip").write_bytes(buffer.getvalue().replace("é".encode(), b"\xf4a"))
    with pytest.raises(StorageError, match=r"s\.zip: .*the zip file cannot be read"):
        xr.open_dataset(tmp_path / "s.zip", engine="nczarr")


def test_keys_of_huge_generator_are_listed_lazily():
    dimensions = {"i": [1, 3, 5], "j": {"stop": 10**18}}
    generator = {"key": "b/{{i}}.{{j}}", "url": "u", "offset": "{{j}}", "length": "1"}
    references = parse_references({"version": 1, "gen": [generator | {"dimensions": dimensions}]})
    assert [key for key, _ in zip(references.items(), "ab", strict=False)][1][0] == "b/1.1"


@pytest.mark.parametrize(
    "attributes",
    [
        {"units": "days since 2000-13-41"},
        {"units": "days since 2000-01-01", "calendar": "x"},
        {"add_offset": [1, 2, 3]},
    ],
    ids=str,
)
def test_undecodable_attribute_warning_includes_attribute_name(attributes):
    message = r"^/a is opened without decoding: mapping, attribute .*variable /a\)"
    with pytest.warns(xr.SerializationWarning, match=message):
        dataset = xr.open_dataset(store(**attributes), engine="nczarr")
    assert dataset["a"].values.tolist() == [1, 2]


@pytest.mark.parametrize("attributes", [{"scale_factor": "text"}, {"add_offset": "0.5"}], ids=str)
def test_attribute_decoding_error_raised_on_load_includes_variable_name(attributes):
    with (
        xr.open_dataset(store(**attributes), engine="nczarr") as dataset,
        pytest.raises(MetadataError, match=r"mapping.*cannot decode.*\ba\b.*decode_cf") as caught,
    ):
        dataset.load()
    assert caught.value.__cause__ is not None
    with xr.open_dataset(store(**attributes), engine="nczarr", decode_cf=False) as dataset:
        assert dataset["a"].values.tolist() == [1, 2]


def sharded_store(shape, inner):
    """Write an array of one shard, whose index lists every inner chunk."""
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


def test_shard_index_of_terabytes_is_rejected_before_allocation():
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


@pytest.mark.parametrize(
    "failure",
    [NotImplementedError(), KeyError("units"), AssertionError()],
    ids=lambda failure: type(failure).__name__,
)
def test_error_from_xarray_decoding_always_states_reason(failure):
    with (
        pytest.raises(MetadataError, match=type(failure).__name__) as caught,
        decoder_errors_as_metadata("store", "/a"),
    ):
        raise failure
    assert "()" not in str(caught.value)
    assert caught.value.__cause__ is failure
    assert "decode_cf=False" in caught.value.remedy


def test_memory_error_during_decoding_is_not_reported_as_metadata_error():
    with pytest.raises(MemoryError), decoder_errors_as_metadata("store", "/a"):
        raise MemoryError


def test_error_for_damaged_reference_dictionary_begins_with_word_references():
    with pytest.raises(ValueError, match=r"^references"):
        xr.open_dataset({"version": 1, "refs": [], "gen": 3}, engine="nczarr")


def test_storage_errors_during_xarray_decoding_keep_their_class():
    objects = store(units="days since 2000-01-01")
    objects["a/0"] = 3
    with pytest.warns(
        xr.SerializationWarning,
        match=r"^/a is opened .*a/0: the mapping contains a value of type int",
    ):
        dataset = xr.open_dataset(objects, engine="nczarr")
    with pytest.raises(StorageError, match="the mapping contains a value of type int"):
        dataset["a"].load()


@pytest.mark.parametrize("size", [1 << 33, 1 << 62])
def test_coordinate_too_large_for_index_is_not_read(size):
    objects = store("x", dimension="x")
    objects["x/.zarray"] = json.dumps(ARRAY | {"shape": [size]}).encode()
    with pytest.warns(xr.SerializationWarning, match=r"^/x is opened without an index: .*max_ind"):
        dataset = xr.open_dataset(objects, engine="nczarr")
    assert list(dataset.variables) == ["x"]
    assert list(dataset.coords) == []
    with pytest.raises(LimitError, match=r"mapping.*max_index_bytes"):
        dataset["x"].load()
    objects["x/.zarray"] = json.dumps(ARRAY | {"shape": [1 << 20], "chunks": [1]}).encode()
    with pytest.warns(xr.SerializationWarning, match="without an index"):
        # Reading so many missing chunks would take too long.
        dataset = xr.open_dataset(objects, engine="nczarr")
    assert list(dataset.coords) == []
    options = {"limits": {"max_index_bytes": 15}, "on_unsupported": "raise"}
    with pytest.raises(LimitError, match=r"2 values in 1 chunks.* more than 15 bytes"):
        xr.open_dataset(store("x", dimension="x"), engine="nczarr", **options)


@pytest.mark.parametrize("piece", [b"[],", b"1.5,"])
def test_metadata_with_many_small_values_is_rejected_before_parsing(piece):
    text = b'{"a": [' + piece * 300_000 + b"1]}"
    with pytest.raises(LimitError, match=r"mapping: a/\.zattrs: .* commas.*max_metadata_bytes"):
        xr.open_dataset(store() | {"a/.zattrs": text}, engine="nczarr").load()


def test_symlinks_pointing_outside_untrusted_store_are_rejected(tmp_path):
    for key, data in store().items():
        (tmp_path / "s" / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "s" / key).write_bytes(data)
    (tmp_path / "s/a/0").rename(tmp_path / "outside")
    (tmp_path / "s/a/0").symlink_to(tmp_path / "outside")
    with xr.open_dataset(tmp_path / "s", engine="nczarr") as dataset:
        assert dataset["a"].values.tolist() == [1, 2]
    strict = xr.open_dataset(tmp_path / "s", engine="nczarr", trust="none")
    with pytest.raises(RefusedError, match=r"s: a/0: .*without trust"):
        strict.load()


@pytest.mark.parametrize("name", ["gzip", "bz2", "lzma"])
def test_streams_with_too_many_compressed_members_are_rejected(name):
    codec = numcodecs.get_codec({"id": name})
    values = np.random.default_rng(0).random(60_000)  # more members than are decoded in one step
    array = ARRAY | {"shape": [60_000], "chunks": [60_000], "compressor": codec.get_config()}
    objects = store() | {"a/.zarray": json.dumps(array).encode()}
    pieces = [codec.encode(piece) for piece in np.split(values, 3)]
    objects["a/0"] = codec.encode(b"") + b"".join(pieces)
    with xr.open_dataset(objects, engine="nczarr") as dataset:
        assert (dataset["a"].values == values).all()
    objects["a/0"] = codec.encode(b"") * 101_000
    with (
        xr.open_dataset(objects, engine="nczarr") as dataset,
        pytest.raises(ChunkError, match="more than 100,000 compressed members"),
    ):
        dataset.load()


@pytest.mark.parametrize("compressor", [None, {"id": "zlib", "level": 1}])
@pytest.mark.parametrize(
    "where", ["local", "zip", "reference", "whole reference", "filesystem", "http"]
)
def test_object_much_larger_than_its_chunk_is_not_read(tmp_path, http_server, where, compressor):
    objects = store() | {"a/.zarray": json.dumps(ARRAY | {"compressor": compressor}).encode()}
    with open(tmp_path / "long", "wb") as file:
        file.truncate(3 << 20 if where == "http" else 3 << 30)
    documents = {key: data.decode() for key, data in objects.items() if not key.endswith("/0")}
    if where == "zip":
        target = tmp_path / "s.zip"
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
            for key, text in documents.items():
                file.writestr(key, text)
            file.writestr("a/0", bytes(2 << 20))
    elif where == "http":
        (tmp_path / "long").rename(f"{http_server.root}/long")
        target = documents | {"a/0": [f"{http_server.url}/long"]}
    elif where.endswith("reference"):
        entry = [str(tmp_path / "long"), 0, 3 << 30]
        target = documents | {"a/0": entry if where == "reference" else entry[:1]}
    else:
        (tmp_path / "s/a").mkdir(parents=True)
        for key, text in documents.items():
            (tmp_path / "s" / key).write_text(text)
        (tmp_path / "long").rename(tmp_path / "s/a/0")
        target = tmp_path / "s"
        if where == "filesystem":
            target = LocalFileSystem().get_mapper(str(target))
    with xr.open_dataset(target, engine="nczarr") as dataset:
        tracemalloc.start()
        try:
            with pytest.raises(
                NczarrError,
                match=r"a/0.*(expected at most 1,|stored data has 3,221,225,472 bytes)",
            ):
                dataset.load()
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()


MANY = {f"k{i}": [f"{{{{ {i} }}}}u", 0, 8] for i in range(600)}
LONG = {f"k{i}": [f"{{{{u}}}}{i}", 0, 8] for i in range(600)}
FORMULA = {"key": "{{i}}", "url": "u", "dimensions": {"i": {"stop": 10**18}}}
BLURRED = {
    "key": "b/{{i}}{{j}}x",
    "url": "{{u}}{{i}}",
    "dimensions": {"i": {"start": 10, "stop": 99}, "j": [33, 44]},
}


@pytest.mark.parametrize(
    "members",
    [
        {"refs": MANY},
        {"refs": LONG, "templates": {"u": "x" * 60_000}},
        {"gen": [FORMULA | {"key": f"b{i}/{{{{i}}}}"} for i in range(600)]},
        {"gen": [BLURRED], "templates": {"u": "x" * 60_000}},
    ],
    ids=["parsed", "rendered", "generators", "template expansion"],
)
def test_reference_document_expansion_is_limited(members):
    with pytest.raises(LimitError, match="max_references"):
        parse_references({"version": 1} | members, limits=Limits(max_references=10_000))


@pytest.mark.parametrize("url", ["{{", "{{t}}", "{{ 1 // 0 }}", "{{ x.y }}"])
def test_invalid_template_error_includes_key_that_uses_template(url):
    document = {"version": 1, "templates": {"t": "{{t}}"}, "refs": {"a/0": [url]}}
    with pytest.raises(NczarrError, match=r"references: a/0: "):
        xr.open_dataset(document, engine="nczarr")


def test_metadata_above_limit_is_neither_read_nor_decompressed(tmp_path):
    objects = store()
    del objects["a/.zattrs"]
    with zipfile.ZipFile(tmp_path / "s.zip", "w", zipfile.ZIP_DEFLATED) as file:
        for key, data in objects.items():
            file.writestr(key, data)
        file.writestr("a/.zattrs", b" " * (70 << 20))
    for key, data in objects.items():
        (tmp_path / "s" / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "s" / key).write_bytes(data)
    with open(tmp_path / "s/a/.zattrs", "wb") as file:
        file.truncate(3 << 30)
    for target in (tmp_path / "s.zip", tmp_path / "s"):
        tracemalloc.start()
        try:
            with pytest.raises(LimitError, match=r"s(\.zip)?: a/\.zattrs: .*max_metadata_bytes"):
                xr.open_dataset(target, engine="nczarr")
            assert tracemalloc.get_traced_memory()[1] < 8 << 20
        finally:
            tracemalloc.stop()


def test_consolidated_v3_metadata_without_contents_raises_metadata_error():
    document = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    document["consolidated_metadata"] = {"kind": "inline", "must_understand": False}
    with pytest.raises(
        MetadataError, match=r"zarr.json, consolidated_metadata\.metadata: invalid value None"
    ):
        xr.open_dataset({"zarr.json": json.dumps(document).encode()}, engine="nczarr")


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


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_references_to_invalid_file_names_are_rejected(tmp_path, name):
    references = {key: data.decode() for key, data in store().items() if not key.endswith("0")}
    (tmp_path / "s.json").write_text(json.dumps(references | {"a/0": [name, 0, 16]}))
    opened = xr.open_dataset(tmp_path / "s.json", engine="nczarr")
    with pytest.raises(RefusedError, match=r"s\.json: a/0: the reference set refers to"):
        opened.load()
