"""Codecs of the source are converted or dropped; requested codecs are applied or rejected."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
import zarr
from numcodecs import Delta, JenkinsLookup3, Zlib

import xr_nczarr
from tests.reading import read
from tests.writes import series
from xr_nczarr import UnsupportedError, to_nczarr


# Regression D66
def test_incompressible_chunks_can_be_read_back(path):
    noise = np.frombuffer(np.random.default_rng(0).bytes(64), "u1")
    encoding = {"v": {"compression": "blosc_lz4", "chunksizes": (3,)}}
    to_nczarr(xr.Dataset({"v": ("x", noise)}), path, encoding=encoding)
    np.testing.assert_array_equal(read(path).v, noise)
    np.testing.assert_array_equal(zarr.open_group(path)["v"][:], noise)


# Regression D68
def test_dataset_from_netcdf_is_written_with_its_encoding(path, tmp_path):
    encoding = {"a": {"zlib": True, "complevel": 3, "chunksizes": (2, 4), "fletcher32": True}}
    series(0, 4).to_netcdf(tmp_path / "a.nc", encoding=encoding, engine="netcdf4")
    with xr.open_dataset(tmp_path / "a.nc", engine="netcdf4") as dataset:
        to_nczarr(dataset, path)
    xr.testing.assert_identical(read(path), series(0, 4))
    document = json.loads(Path(f"{path}/a/.zarray").read_bytes())
    assert document["chunks"] == [2, 4]
    assert [codec["id"] for codec in document["filters"]] == ["shuffle", "zlib"]
    assert document["compressor"] == {"id": "fletcher32"}


# Regression D68
@pytest.mark.parametrize("source", [2, 3])
@pytest.mark.parametrize("target", [2, 3])
def test_dataset_from_zarr_is_written_with_its_codecs(path, tmp_path, source, target):
    series(0, 4).to_zarr(tmp_path / "z", zarr_format=source, consolidated=False)
    with xr.open_dataset(tmp_path / "z", engine="zarr", consolidated=False) as dataset:
        to_nczarr(dataset, path, zarr_format=target)
    xr.testing.assert_identical(read(path), series(0, 4))
    names = [codec["id"] for codec in read(path).a.encoding["codecs"]]
    assert names == (["zstd"] if source == 3 else names)
    assert names


# Regression D68
def test_unknown_inherited_codecs_are_dropped_with_one_warning(path):
    dataset = series(0, 2)
    for name in ("a", "n"):
        dataset[name].encoding["compressors"] = ({"name": "unheard_of", "configuration": {}},)
    with pytest.warns(UserWarning, match="/a .*; /n ") as record:
        to_nczarr(dataset, path)
    assert len(record) == 1
    xr.testing.assert_identical(read(path), series(0, 2))


# Regression D68
def test_unknown_requested_codecs_are_rejected(path):
    with pytest.raises(UnsupportedError, match="unheard_of"):
        to_nczarr(series(0, 2), path, encoding={"a": {"compressor": {"id": "unheard_of"}}})
    assert not os.path.exists(path)


def test_invalid_parameters_of_requested_codecs_are_rejected_before_writing(path):
    encoding = {"a": {"compression": "blosc_lz4", "blosc_shuffle": 7}}
    with pytest.raises(ValueError, match=r'"shuffle" is 7; expected 0, 1 or 2 \(variable /a\)$'):
        to_nczarr(series(0, 2), path, encoding=encoding)
    assert not os.path.exists(path)


def test_codec_parameters_that_are_not_json_are_rejected_before_writing(path):
    encoding = {"a": {"filters": [JenkinsLookup3(prefix=b"ab")]}}
    with pytest.raises(UnsupportedError, match=r"as JSON .*\(variable /a\)\. Use only"):
        to_nczarr(series(0, 2), path, encoding=encoding, dialect="zarr")
    assert not os.path.exists(path)


# Regression D68
@pytest.mark.parametrize("engine", ["nczarr", "kerchunk"])
def test_dataset_from_kerchunk_references_is_written_with_its_codecs(path, tmp_path, engine):
    from kerchunk.hdf import SingleHdf5ToZarr

    source = str(tmp_path / "a.nc")
    encoding = {"a": {"zlib": True, "shuffle": True, "chunksizes": (2, 4)}}
    series(0, 4).to_netcdf(source, encoding=encoding, engine="h5netcdf")
    with open(tmp_path / "references.json", "w") as file:
        json.dump(SingleHdf5ToZarr(source, inline_threshold=0).translate(), file)
    with xr.open_dataset(str(tmp_path / "references.json"), engine=engine) as dataset:
        to_nczarr(dataset, path)
    xr.testing.assert_equal(read(path), series(0, 4))
    opened = read(path).a.encoding
    assert [codec["id"] for codec in opened["codecs"]] == ["shuffle", "zlib"]
    assert opened["chunksizes"] == (2, 4)


# Names were ignored, and objects under `codecs` raised a TypeError.
@pytest.mark.parametrize("key", ["compressors", "compressor", "codecs"])
@pytest.mark.parametrize(
    "codec",
    [Zlib(1), {"id": "zlib", "level": 1}, "zlib", [Zlib(1)]],
    ids=["object", "mapping", "name", "list"],
)
def test_codecs_can_be_names_mappings_or_objects(key, codec):
    store = {}
    to_nczarr(xr.Dataset({"v": ("x", [1.5, 2.5])}), store, encoding={"v": {key: codec}})
    assert json.loads(store["v/.zarray"])["compressor"]["id"] == "zlib"
    assert read(store).v.values.tolist() == [1.5, 2.5]


# The copy was complete, but could not be read.
@pytest.mark.parametrize("version", [3, "3-draft"])
def test_filters_on_big_endian_numbers_are_not_written_to_v3(version):
    source, target, values = {}, {}, np.array([1, 2, 4, 8], ">f8")
    options = {"dialect": "zarr", "encoding": {"v": {"dtype": ">f8", "filters": [Delta(">f8")]}}}
    to_nczarr(xr.Dataset({"v": ("x", values)}), source, zarr_format=2, **options)
    with pytest.raises(UnsupportedError, match="codec delta for big-endian numbers"):
        to_nczarr(xr.Dataset({"v": ("x", values)}), {}, zarr_format=version, **options)
    with pytest.warns(UserWarning, match="codecs inherited from the source were dropped"):
        xr_nczarr.copy(source, target, zarr_format=version, dialect="zarr")
    assert read(target).v.values.tolist() == values.tolist()
