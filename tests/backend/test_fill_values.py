"""Fill values are read from every notation, and are masked only if the store declares them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import netCDF4
import numcodecs
import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.reading import RAW, assert_values, read
from tests.small_stores import one_array
from tests.stores import array_document, file_url, write_netcdf_c

F8_FILL = netCDF4.default_fillvals["f8"]
SPELLINGS = [
    ("|i4", 7, np.array([1, 2], "i4"), 7),
    ("|b1", True, np.array([True, False]), True),
    (">f8", "NaN", np.array([1, 2], ">f8"), np.nan),
    ("<f4", "Infinity", np.array([1, 2], "f4"), np.inf),
    ("<f4", "-Infinity", np.array([1, 2], "f4"), -np.inf),
    ("<f4", 9.96921e36, np.array([1, 2], "f4"), np.float32(9.96921e36)),
    ("<u8", 18446744073709551614, np.array([1, 2], "u8"), 18446744073709551614),
]


# Regression D18
@pytest.mark.parametrize(("kind", "fill", "values", "meant"), SPELLINGS)
@pytest.mark.parametrize("nczarr", [True, False])
def test_every_data_type_and_fill_value_notation_is_accepted(
    tmp_path: Path, kind: str, fill: Any, values: np.ndarray, meant: Any, nczarr: bool, way: str
) -> None:
    document = array_document((4,), kind, fill_value=fill, chunks=[2])
    store = one_array(tmp_path / "s", document, {"0": values.tobytes()}, nczarr=nczarr)
    expected = np.concatenate([values, np.full(2, meant, values.dtype)])
    assert_values(read(store, way, **RAW).v.values, expected, "v")


# Regression D18
@pytest.mark.parametrize(
    ("kind", "fill", "meant"),
    [
        *(("|S1", "X", "X"), ("|S1", 5, "5"), ("|S1", "WA==", "X"), ("<S5", "X", "X")),
        *(("<S5", 5, "5"), ("<S5", "WFk=", "XY"), ("<S5", "", "")),
        *((">S1", "X", b"X"), (">S1", 5, b"5")),
    ],
)
def test_every_string_fill_value_notation_is_accepted(
    tmp_path: Path, kind: str, fill: Any, meant: Any, way: str
) -> None:
    document = array_document((4,), kind, fill_value=fill, chunks=[2])
    chunk = np.array([b"a", b""], f"S{kind[2:]}").tobytes()
    result = read(one_array(tmp_path / "s", document, {"0": chunk}), way, **RAW).v.values
    first = "a" if isinstance(meant, str) else b"a"
    assert result.tolist() == [first, first[:0], meant, meant]


# Regression D19
def test_exact_default_fill_value_is_recovered_from_rounded_value(tmp_path: Path, way: str) -> None:
    store = tmp_path / "s"
    with netCDF4.Dataset(file_url(store), "w") as dataset:
        dataset.createDimension("x", 5)
        variable = dataset.createVariable("v", "f8", ("x",), chunksizes=(2,))
        variable[0:1] = 1.0
    assert b"9.96921e+36" in (store / "v/.zarray").read_bytes()
    result = read(store, way).v.values
    assert_values(result, np.array([1.0, *[F8_FILL] * 4]), "padding and missing chunks")
    attributes = json.loads((store / "v/.zattrs").read_text())
    attributes["_FillValue"] = 9.96921e36
    (store / "v/.zattrs").write_text(json.dumps(attributes))
    masked = read(store, way).v.values
    assert_values(masked, np.array([1.0, *[np.nan] * 4]), "masked")


# Regression D20
@pytest.mark.parametrize("nczarr", [True, False])
def test_missing_chunks_are_read_as_zeros_if_array_has_no_fill_value(
    tmp_path: Path, nczarr: bool, way: str
) -> None:
    chunks = {"0": np.array([1, 2], "i4").tobytes()}
    store = one_array(tmp_path / "s", array_document((4,), chunks=[2]), chunks, nczarr=nczarr)
    assert read(store, way, **RAW).v.values.tolist() == [1, 2, 0, 0]
    with pytest.warns(UserWarning, match="v"):
        read(store, way, missing_chunks="warn")
    with pytest.raises(xr_nczarr.MissingChunkError) as caught:
        read(store, way, missing_chunks="raise")
    assert (caught.value.variable, caught.value.chunk, caught.value.key) == ("/v", (1,), "v/1")


INTEGERS = np.array([0, 1, -2147483647], "i4")


# Regression D24
@pytest.mark.parametrize("fill", [0, -2147483647, None])
def test_integers_without_declared_fill_value_stay_integers(
    tmp_path: Path, fill: int | None, way: str
) -> None:
    document = array_document((3,), fill_value=fill)
    store = one_array(tmp_path / "s", document, {"0": INTEGERS.tobytes()})
    assert_values(read(store, way).v.values, INTEGERS, "v")


# Regression D24
def test_netcdf_c_default_fill_values_are_not_masked(tmp_path: Path, way: str) -> None:
    store = file_url(tmp_path / "s", "zarr")
    with netCDF4.Dataset(store, "w") as dataset:
        dataset.createDimension("x", 3)
        dataset.createVariable("v", "i4", ("x",))[:] = INTEGERS
        dataset.createVariable("declared", "i4", ("x",), fill_value=1)[:] = INTEGERS
    assert json.loads((tmp_path / "s/v/.zarray").read_text())["fill_value"] == -2147483647
    result = read(tmp_path / "s", way)
    assert_values(result.v.values, INTEGERS, "v")
    np.testing.assert_array_equal(result.declared.values, [0, np.nan, -2147483647])


# Regression D24
@pytest.mark.parametrize("fill", [0, -2147483647, None])
def test_plain_zarr_v2_fill_values_are_masked_as_in_zarr_engine(
    tmp_path: Path, fill: int | None, way: str
) -> None:
    document = array_document((3,), fill_value=fill)
    store = one_array(tmp_path / "s", document, {"0": INTEGERS.tobytes()}, nczarr=False)
    expected = xr.open_dataset(store, engine="zarr", consolidated=False).v.values
    assert_values(read(store, way).v.values, expected, "v")
    result = read(store, way, use_zarr_fill_value_as_mask=False).v.values
    assert_values(result, INTEGERS, "v")


# Regression D25
def test_empty_strings_are_not_masked(tmp_path: Path, way: str) -> None:
    store = write_netcdf_c(tmp_path / "s")
    assert read(store, way).words.values.tolist() == ["a", "", "émile", "zz"]
    texts = bytes(numcodecs.VLenUTF8().encode(np.array(["", "x"], object)))
    document = array_document((2,), "|O", filters=[{"id": "vlen-utf8"}])
    plain = one_array(tmp_path / "p", document, {"0": texts}, nczarr=False)
    assert read(plain, way).v.values.tolist() == ["", "x"]


# Regression D20
def test_chunks_omitted_by_xarray_are_read_as_zeros(
    tmp_path: Path,
) -> None:
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
def test_missing_chunks_in_no_fill_mode_match_netcdf_c(
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
def test_string_fill_values_resembling_base64_are_read_as_text(tmp_path: Path, mode: str) -> None:
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
    assert opened.encoding["dtype"] == np.dtype(">i2")


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


# zarr-python 2 writes 0 as the default fill value.
@pytest.mark.parametrize("chunks", [None, {}], ids=["eager", "dask"])
def test_variable_length_arrays_are_not_compared_with_fill_value(tmp_path, chunks):
    codec = numcodecs.VLenArray("<i4")
    items = np.empty(2, object)
    items[:] = [np.arange(3, dtype="i4"), np.arange(1, dtype="i4")]
    document = array_document((2,), "|O", fill_value=0, filters=[codec.get_config()])
    store = one_array(
        tmp_path / "s.zarr", document, {"0": bytes(codec.encode(items))}, nczarr=False
    )
    dataset = xr.open_dataset(store, engine="nczarr", chunks=chunks)
    assert [item.tolist() for item in dataset.v.values] == [[0, 1, 2], [0]]
