"""Chunks are decoded to the stored values, or raise errors that name the chunk."""

from __future__ import annotations

import os
import pickle
import shutil
import zlib
from pathlib import Path
from typing import Any

import netCDF4
import numcodecs
import numpy as np
import obstore.store
import pytest
import xarray as xr

import xr_nczarr
from tests.reading import assert_values, read
from tests.servers import HttpServer
from tests.small_stores import one_array
from tests.stores import array_document, file_url, read_objects, shuffled, write_netcdf_c
from xr_nczarr.codecs import ShardIndex

FOUR = np.arange(4, dtype="f4")


# Regression D1
@pytest.mark.parametrize("elementsize", [0, 4, 7])
def test_shuffle_uses_item_size_of_dtype(tmp_path: Path, way: str, elementsize: int) -> None:
    codecs = {"filters": [{"id": "shuffle", "elementsize": elementsize}]}
    codecs |= {"compressor": {"id": "zlib", "level": 4}}
    chunk = zlib.compress(shuffled(FOUR.tobytes(), 4))
    store = one_array(tmp_path / "s", array_document((4,), "<f4", **codecs), {"0": chunk})
    assert_values(read(store, way).v.values, FOUR, "v")


# Regression D2
def test_compression_levels_and_element_sizes_can_be_strings(tmp_path: Path, way: str) -> None:
    codecs = {"filters": [{"id": "shuffle", "elementsize": "0"}]}
    codecs |= {"compressor": {"id": "zlib", "level": "4"}}
    chunk = zlib.compress(shuffled(FOUR.tobytes(), 4))
    store = one_array(tmp_path / "s", array_document((4,), "<f4", **codecs), {"0": chunk})
    assert_values(read(store, way).v.values, FOUR, "v")


# Regression D3
@pytest.mark.parametrize("width", [5, 11, 128])
def test_strings_are_unshuffled_as_eight_byte_elements(
    tmp_path: Path, way: str, width: int
) -> None:
    words = np.array(["a", "", "bcde", "é"], object)
    data = np.array([word.encode() for word in words], f"S{width}").tobytes()
    codecs = {"filters": [{"id": "shuffle", "elementsize": 0}], "fill_value": ""}
    document = array_document((4,), f"|S{width}", **codecs)
    store = one_array(tmp_path / "s", document, {"0": shuffled(data, 8)})
    assert_values(read(store, way).v.values, words, "v")


# Regression D4
def test_shuffle_does_not_move_incomplete_elements(tmp_path: Path, way: str) -> None:
    # The length of zlib's output need not be a multiple of the element size, 4 bytes.
    inner = zlib.compress(FOUR.tobytes() * 4, 1)
    assert len(inner) % 4, "the test needs a tail"
    codecs = {"filters": [{"id": "zlib", "level": 1}, {"id": "shuffle", "elementsize": 4}]}
    document = array_document((16,), "<f4", **codecs)
    store = one_array(tmp_path / "s", document, {"0": shuffled(inner, 4)})
    assert_values(read(store, way).v.values, np.tile(FOUR, 4), "v")


# Regression D26
@pytest.mark.parametrize("nczarr", [True, False])
def test_chunks_in_fortran_order_are_read_correctly(tmp_path: Path, nczarr: bool, way: str) -> None:
    values = np.arange(12, dtype="i4").reshape(3, 4)
    document = array_document((3, 4), order="F", chunks=[3, 2])
    chunks = {f"0.{n}": values[:, 2 * n : 2 * n + 2].tobytes(order="F") for n in (0, 1)}
    store = one_array(tmp_path / "s", document, chunks, nczarr=nczarr)
    assert_values(read(store, way).v.values, values, "v")


# Regression D27
@pytest.mark.parametrize(
    ("members", "separator"),
    [
        ({"dimension_separator": "/"}, "/"),
        ({"dimension_separator": "."}, "."),
        ({}, "."),
        ({}, "/"),
    ],
)
def test_nested_chunk_keys_are_found_without_declared_separator(
    tmp_path: Path, members: dict[str, Any], separator: str, way: str
) -> None:
    values = np.arange(4, dtype="i4").reshape(2, 2)
    document = array_document((2, 2), chunks=[1, 2], **members)
    chunks = {f"{n}{separator}0": values[n].tobytes() for n in (0, 1)}
    store = one_array(tmp_path / "s", document, chunks, nczarr=False)
    assert_values(read(store, way).v.values, values, "v")


# Regression D31
def test_chunk_larger_than_array_is_valid(tmp_path: Path, way: str) -> None:
    store = tmp_path / "s"
    with netCDF4.Dataset(file_url(store), "w") as dataset:
        dataset.createDimension("t", None)
        dataset.createVariable("v", "f8", ("t",))[:] = [1.0, 2.0, 3.0]
    assert (store / "v/0").stat().st_size > 24
    assert_values(read(store, way).v.values, np.array([1.0, 2.0, 3.0]), "v")


# Regression D32
@pytest.mark.parametrize("name", ["checked", "checked_zlib"])
def test_error_for_wrong_checksum_includes_variable_and_chunk(
    tmp_path: Path, way: str, name: str
) -> None:
    store = write_netcdf_c(tmp_path / "s")
    chunk = store / name / "1"
    data = bytearray(chunk.read_bytes())
    data[20] ^= 1
    chunk.write_bytes(data)
    result = xr.open_dataset(store, engine="nczarr", chunks=None if way == "eager" else {})[name]
    assert result[:200].values[199] == 199 // 7
    with pytest.raises(xr_nczarr.ChunkError, match="fletcher32") as caught:
        result.load()
    error = caught.value
    assert (error.variable, error.chunk, error.key) == (f"/{name}", (1,), f"{name}/1")
    assert str(store) in str(error)


COMPRESSORS = [
    {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    {"id": "zlib", "level": 1},
    {"id": "zstd", "level": 1},
    None,
]


# Regression D34
@pytest.mark.parametrize("compressor", COMPRESSORS, ids=str)
@pytest.mark.parametrize("kept", [0, 10, -1])
def test_error_for_truncated_chunk_includes_variable_and_chunk(
    tmp_path: Path, way: str, compressor: Any, kept: int
) -> None:
    values = np.arange(200, dtype="f8") // 9
    chunk = values.tobytes()
    chunk = bytes(numcodecs.get_codec(dict(compressor)).encode(chunk)) if compressor else chunk
    document = array_document((200,), "<f8", compressor=compressor, fill_value=0)
    store = one_array(tmp_path / "s", document, {"0": chunk[:kept]})
    with pytest.raises(xr_nczarr.ChunkError) as caught:
        read(store, way)
    assert (caught.value.variable, caught.value.chunk, caught.value.key) == ("/v", (0,), "v/0")


# Regression D34
def test_request_is_retried_after_truncated_response(http_server: HttpServer, way: str) -> None:
    values = np.arange(200, dtype="f8") // 9
    chunk = bytes(numcodecs.Blosc().encode(values.tobytes()))
    document = array_document((200,), "<f8", compressor=COMPRESSORS[0], fill_value=0)
    one_array(Path(http_server.root) / "s", document, {"0": chunk})
    http_server.fault("truncate", path="*/v/0", times=1)
    assert_values(read(f"{http_server.url}/s", way).v.values, values, "v")
    http_server.fault("status", path="*/v/0", status=503, times=2)
    assert_values(read(f"{http_server.url}/s", way).v.values, values, "v")
    http_server.fault("truncate", path="*/v/0", times=None)
    with pytest.raises((xr_nczarr.StorageError, xr_nczarr.ChunkError), match="v/0"):
        read(f"{http_server.url}/s", way)


@pytest.mark.parametrize("kind", ["mapping", "local", "zip", "obstore", "references"])
@pytest.mark.parametrize("separator", [".", "/"])  # the second one is not declared
def test_reading_part_of_chunk_of_wrong_size_raises_error(tmp_path, kind, separator):
    values = np.arange(24, dtype="i4").reshape(2, 12)
    folder = one_array(tmp_path / "s", array_document((2, 12), chunks=[1, 12]), {})
    chunk = folder / f"v/1{separator}0"
    chunk.parent.mkdir(exist_ok=True)
    chunk.write_bytes(values[0, 3:].tobytes())  # the beginning of the chunk was lost
    store: Any = folder
    if kind == "zip":
        store = shutil.make_archive(str(folder), "zip", folder)
    elif kind == "obstore":
        store = obstore.store.LocalStore(folder)
    elif kind != "local":
        store = read_objects(folder)
    if kind == "references":
        texts = {key: data.decode() for key, data in store.items() if key.startswith(".z")}
        texts |= {key: store[key].decode() for key in ("v/.zarray", "v/.zattrs") if key in store}
        store = {**texts, chunk.relative_to(folder).as_posix(): [str(chunk), 0, 36]}
    opened = xr.open_dataset(store, engine="nczarr", consolidated=False).v
    for selection in [(1, slice(2, 5)), (1, [0, 8]), (slice(None), slice(1, 2))]:
        with pytest.raises(xr_nczarr.ChunkError, match=r"v/1.0.*36 bytes long; expected 48"):
            opened[selection].load()


@pytest.mark.parametrize("size", [3 << 20, 8 << 30])
def test_error_for_oversized_chunk_suggests_rewriting_it(tmp_path, size):
    xr_nczarr.to_nczarr(xr.Dataset({"t": ("x", [1.0, 2.0])}), tmp_path / "s")
    os.truncate(tmp_path / "s/t/0", size)
    variable = xr.open_dataset(tmp_path / "s", engine="nczarr").t
    message = rf"t/0: the file is {size:,} bytes long.* for chunks of this shape.*Rewrite the chunk"
    with pytest.raises(xr_nczarr.LimitError, match=message) as caught:
        variable.load()
    assert "max_chunk_bytes" not in str(caught.value)
    with pytest.raises(xr_nczarr.LimitError, match=message):
        raise pickle.loads(pickle.dumps(caught.value))


@pytest.mark.parametrize("kind", ["mapping", "obstore"])
def test_replaced_shard_is_not_read_with_old_index(monkeypatch, kind):
    full = np.arange(1, 257, dtype="i4")
    half = np.where(full > 128, full, 0)  # chunks of zeros are not stored
    old, new = {}, {}
    encoding = {"v": {"chunksizes": (8,), "shards": (256,), "_FillValue": np.int32(0)}}
    for store, values in [(old, half), (new, full)]:
        dataset = xr.Dataset({"v": ("x", values)})
        xr_nczarr.to_nczarr(dataset, store, encoding=encoding, zarr_format=3, consolidated=False)
    store = obstore.store.MemoryStore()
    for key, data in old.items():
        store.put(key, data)
    opened = xr.open_dataset(
        old if kind == "mapping" else store, engine="nczarr", consolidated=False
    )
    parse = ShardIndex.parse

    def parse_and_replace(*arguments: Any) -> Any:
        old["v/c/0"] = new["v/c/0"]
        store.put("v/c/0", new["v/c/0"])
        return parse(*arguments)

    monkeypatch.setattr(ShardIndex, "parse", parse_and_replace)
    if kind == "mapping":
        assert opened.v[200:203].values.tolist() == [201, 202, 203]
    else:
        with pytest.raises(xr_nczarr.StorageError, match=r"v/c/0: .*replaced"):
            opened.v[200:203].load()


@pytest.mark.parametrize("compressed", [True, False])
def test_error_for_unreadable_chunk_includes_location_and_remedy(
    compressed: bool, http_server: HttpServer
) -> None:
    with netCDF4.Dataset(file_url(Path(http_server.root, "s")), "w") as dataset:
        dataset.createDimension("x", 4)
        dataset.createVariable("v", "i4", ("x",), chunksizes=[2], zlib=compressed)[:] = 5
    variable = xr.open_dataset(f"{http_server.url}/s", engine="nczarr").v
    http_server.fault("status", path="*/v/1", status=403, times=None)
    for selection in (slice(None), slice(1, 3)):
        with pytest.raises(xr_nczarr.AccessDeniedError) as caught:
            variable[selection].copy().load()
        error = caught.value
        assert (error.variable, error.chunk, error.key) == ("/v", (1,), "v/1")
        assert error.store == f"{http_server.url}/s"
        assert error.remedy
