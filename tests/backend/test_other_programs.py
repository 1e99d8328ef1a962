"""Stores of other programs, compared with the values that these programs read."""

from __future__ import annotations

import json
import zlib
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.reading import RAW, assert_values, read
from tests.servers import HttpServer
from tests.stores import array_document, file_url


# Regression D20
def test_chunks_of_zeros_omitted_by_xarray_are_read_as_zeros(tmp_path: Path) -> None:
    written = xr.Dataset(
        {
            "i": ("x", np.array([0, 0, 3, 4], "i4")),
            "f": ("x", np.zeros(4, "f4")),
            "c": ("x", np.zeros(4, "c8")),
            "s": ((), np.int16(0)),
        }
    )
    encoding = {name: {"_FillValue": None} for name in written}
    encoding["i"]["chunks"] = (2,)
    written.to_zarr(tmp_path / "s", zarr_format=2, encoding=encoding)
    assert not (tmp_path / "s/i/0").exists()
    for name, variable in written.items():
        assert_values(read(tmp_path / "s")[name].values, variable.values, name)


# Regression D20
def test_missing_chunks_of_arrays_without_fill_value_are_read_as_by_netcdf_c(
    tmp_path: Path,
) -> None:
    with netCDF4.Dataset(file_url(tmp_path / "s"), "w") as dataset:
        dataset.createDimension("x", 4)
        for kind in ("i4", "f8"):
            dataset.createVariable(kind, kind, ("x",), chunksizes=[2], fill_value=False)[:2] = 5
    with netCDF4.Dataset(file_url(tmp_path / "s")) as dataset:
        dataset.set_auto_mask(False)
        for kind in ("i4", "f8"):
            assert_values(read(tmp_path / "s", **RAW)[kind].values, dataset[kind][:], kind)


@pytest.mark.parametrize("mode", ["nczarr,file", "zarr,file"])
def test_string_fill_values_that_look_like_base64_are_read_as_text(
    tmp_path: Path, mode: str
) -> None:
    url = f"file://{tmp_path}/s#mode={mode}"
    fills = {"a": "none", "b": "é", "c": "AAAA", "d": "Zg==", "cut": "fill"}
    with netCDF4.Dataset(url, "w") as dataset:
        dataset.createDimension("x", 4)
        for name, fill in fills.items():
            variable = dataset.createVariable(name, str, ("x",), fill_value=fill, chunksizes=[2])
            if name == "cut":
                variable.setncattr("_nczarr_maxstrlen", np.int32(3))
            variable[0] = "w"
    opened = xr.open_dataset(tmp_path / "s", engine="nczarr", **RAW)
    with pytest.raises(xr_nczarr.MetadataError, match="at most 3 bytes"):
        opened.cut.load()
    with netCDF4.Dataset(url) as dataset:
        for name in opened.drop_vars("cut"):
            assert opened[name].values.tolist() == dataset[name][:].tolist(), name
            assert opened[name].values.tolist() == ["w", *3 * [fills[name]]]


@pytest.mark.parametrize("compressed", [True, False])
def test_unreadable_chunk_error_includes_location_and_remedy(
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


def test_statuses_in_option_missing_status_are_treated_as_not_found(
    http_server: HttpServer,
) -> None:
    with netCDF4.Dataset(file_url(Path(http_server.root, "s")), "w") as dataset:
        dataset.createDimension("x", 4)
        dataset.createVariable("v", "i4", ("x",), chunksizes=[2], fill_value=7)[:2] = 5
    http_server.fault("status", path="*/v/1", status=403, times=None)
    opened = read(f"{http_server.url}/s", storage_options={"missing_status": [403, 404]}, **RAW)
    assert opened.v.values.tolist() == [5, 5, 7, 7]


@pytest.mark.parametrize(("group", "others"), [(None, "/a/"), ("a", "/b/"), ("a/b", "/c/")])
def test_opening_group_does_not_request_child_group_metadata(
    group: str | None, others: str, http_server: HttpServer
) -> None:
    with netCDF4.Dataset(file_url(Path(http_server.root, "s")), "w") as dataset:
        for holder in (dataset, dataset.createGroup("a"), dataset.createGroup("a/b/c").parent):
            holder.createDimension("x", 2)
            holder.createVariable("v", "i4", ("x",))[:] = 5
    opened = xr.open_dataset(f"{http_server.url}/s", engine="nczarr", group=group)
    assert list(opened) == ["v"]
    below = [request.path.partition(others)[2] for request in http_server.requests_for("/s/*")]
    assert not [path for path in below if "/" in path]


def test_invalid_compression_level_breaks_only_its_variable() -> None:
    store = {".zgroup": b'{"zarr_format": 2}'}
    for name, level in {"text": "4", "number": 4, "word": "x", "list": []}.items():
        document = array_document((2,), compressor={"id": "zlib", "level": level})
        store[f"{name}/.zarray"] = json.dumps(document).encode()
        store[f"{name}/0"] = zlib.compress(np.arange(2, dtype="i4").tobytes())
    dataset = xr.open_dataset(store, engine="nczarr")
    for name in ("text", "number"):
        assert dataset[name].encoding["complevel"] == 4
        assert dataset[name].values.tolist() == [0, 1]
    for name in ("word", "list"):
        with pytest.raises(xr_nczarr.MetadataError, match="level"):
            dataset[name].load()


def test_big_endian_values_are_masked_by_unsigned_fill_value(way: str) -> None:
    document = array_document([3], ">i2", fill_value=255)
    attributes = {"_ARRAY_DIMENSIONS": ["x"], "_Unsigned": "true", "_FillValue": 255}
    objects = {
        ".zgroup": b'{"zarr_format": 2}',
        "v/.zarray": json.dumps(document).encode(),
        "v/.zattrs": json.dumps(attributes).encode(),
        "v/0": np.array([255, -256, 3], ">i2").tobytes(),
    }
    opened = read(objects, way).v
    np.testing.assert_array_equal(opened, [np.nan, 65280, 3])
    assert opened.encoding["endian"] == "big"


def test_missing_boolean_is_not_read_as_true() -> None:
    store: dict[str, bytes] = {}
    attributes = {"dtype": "bool", "_FillValue": np.int8(9)}
    numbers = xr.Dataset({"v": ("x", np.array([1, 0, 9], "i1"), attributes)})
    xr_nczarr.to_nczarr(numbers, store, encoding={"v": {"chunks": (2,)}})
    opened = xr.open_dataset(store, engine="nczarr", cache=False)
    assert opened.v.dtype == bool
    assert opened.v[:2].values.tolist() == [True, False]
    with pytest.raises(
        xr_nczarr.MetadataError, match=r"boolean data contains the missing value 9"
    ) as reported:
        opened.v.load()
    assert (reported.value.key, reported.value.variable) == ("v/1", "/v")
    unmasked = xr.open_dataset(store, engine="nczarr", mask_and_scale=False)
    assert unmasked.v.values.tolist() == [True, False, True]
