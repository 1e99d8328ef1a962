"""Quantization yields the same bits as netcdf-c, and attributes record it."""

import netCDF4
import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from xr_nczarr import ConflictError, to_nczarr


def values(dtype):
    random = np.random.default_rng(1)
    scale = 10.0 ** random.integers(-20, 20, 1000)
    result = (random.normal(size=1000) * scale).astype(dtype)
    result[:3] = 0, 1, -1
    return result


def by_netcdf_c(tmp_path, data, options):
    with netCDF4.Dataset(tmp_path / "reference.nc", "w") as file:
        file.createDimension("x", len(data))
        variable = file.createVariable("v", data.dtype, ("x",), zlib=True, **options)
        variable[:] = data
    with netCDF4.Dataset(tmp_path / "reference.nc") as file:
        variable = file["v"]
        variable.set_auto_mask(False)
        return variable[:], {name: variable.getncattr(name) for name in variable.ncattrs()}


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("chunks", [None, {"x": 500}])
@pytest.mark.parametrize(
    "options",
    [
        *(
            {"significant_digits": digits, "quantize_mode": mode}
            for mode in ("BitGroom", "BitRound", "GranularBitRound")
            for digits in (1, 3, 6)
        ),
        {"least_significant_digit": 2},
        {"significant_digits": 4},
    ],
    ids=str,
)
def test_quantization_rounds_values_exactly_as_netcdf_c_does(tmp_path, dtype, options, chunks):
    data = values(dtype)
    expected, attributes = by_netcdf_c(tmp_path, data, options)
    dataset = xr.Dataset({"v": ("x", data)})
    store = {}
    encoding = {"v": {**options, "zlib": True, "_FillValue": None}}
    to_nczarr(dataset.chunk(chunks) if chunks else dataset, store, encoding=encoding)
    opened = xr.open_dataset(store, engine="nczarr").v
    np.testing.assert_array_equal(opened.values, expected)
    assert {name: int(value) for name, value in opened.attrs.items()} == {
        name: int(value) for name, value in attributes.items()
    }


@pytest.mark.parametrize("mode", ["BitGroom", "BitRound", "GranularBitRound"])
def test_values_appended_to_quantized_variable_are_quantized_as_netcdf_c_does(tmp_path, mode):
    options = {"significant_digits": 3, "quantize_mode": mode}
    data = values("f4")
    expected, _ = by_netcdf_c(tmp_path, data, options)
    dataset, store = xr.Dataset({"v": ("x", data)}), {}
    to_nczarr(dataset[{"x": slice(500)}], store, encoding={"v": options}, unlimited_dims=["x"])
    to_nczarr(dataset[{"x": slice(500, None)}], store, append_dim="x")
    np.testing.assert_array_equal(xr.open_dataset(store, engine="nczarr").v, expected)


@pytest.mark.parametrize("digits", [99, "three"])
def test_appending_to_variable_with_invalid_quantization_attribute_is_rejected(digits):
    dataset, store = xr.Dataset({"v": ("x", values("f4"))}), {}
    dataset.v.attrs["_QuantizeBitGroomNumberOfSignificantDigits"] = digits
    to_nczarr(dataset, store, unlimited_dims=["x"])
    with pytest.raises(ConflictError, match=r"must be from 1 to 7 .*v"):
        to_nczarr(dataset, store, append_dim="x")


def test_quantization_leaves_infinities_and_nan_unchanged():
    data = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0])
    store = {}
    encoding = {"v": {"significant_digits": 3, "_FillValue": None}}
    to_nczarr(xr.Dataset({"v": ("x", data)}), store, encoding=encoding)
    np.testing.assert_array_equal(xr.open_dataset(store, engine="nczarr").v, data)


MODES = [
    *({"significant_digits": 3, "quantize_mode": mode} for mode in ("BitGroom", "BitRound")),
    {"significant_digits": 3, "quantize_mode": "GranularBitRound"},
    {"least_significant_digit": 2},
]


@pytest.mark.parametrize("chunks", [None, {"x": 3}], ids=["numpy", "dask"])
@pytest.mark.parametrize("fill", [1e20, -9999.9, 9.96921e36, 3.4e38])
@pytest.mark.parametrize("key", ["_FillValue", "missing_value"])
@pytest.mark.parametrize("options", MODES, ids=str)
def test_quantization_leaves_missing_values_unchanged(options, key, fill, chunks):
    data = np.array([1.2345678, np.nan, 3.3, np.nan, np.nan], "f4")
    dataset, store = xr.Dataset({"v": ("x", data)}), {}
    dataset = dataset.chunk(chunks) if chunks else dataset
    to_nczarr(dataset, store, encoding={"v": {**options, key: np.float32(fill)}})
    stored = xr.open_dataset(store, engine="nczarr").v
    np.testing.assert_array_equal(np.isnan(stored), np.isnan(data))
    np.testing.assert_allclose(stored, data, rtol=0.1)


@pytest.mark.parametrize("options", MODES, ids=str)
def test_quantization_leaves_netcdf_default_fill_value_unchanged(tmp_path, options):
    data = np.array([1.2345678, netCDF4.default_fillvals["f4"], 3.3], "f4")
    expected, _ = by_netcdf_c(tmp_path, data, options)
    store = {}
    to_nczarr(
        xr.Dataset({"v": ("x", data)}), store, encoding={"v": {**options, "_FillValue": None}}
    )
    stored = xr.open_dataset(store, engine="nczarr").v
    np.testing.assert_array_equal(stored, expected)
    assert stored[1] == data[1]


@pytest.mark.parametrize("chunks", [None, {"x": 1}], ids=["numpy", "dask"])
@pytest.mark.parametrize(
    ("value", "rounded", "options"),
    [
        (3.4e38, "inf", {"significant_digits": 3, "quantize_mode": "BitRound"}),
        (3.4e38, "inf", {"significant_digits": 1, "quantize_mode": "GranularBitRound"}),
        (1.01, "1.0", {"least_significant_digit": 0, "_FillValue": 1}),
    ],
    ids=["bits", "granular", "missing"],
)
def test_numbers_quantized_to_infinity_or_fill_value_are_rejected(value, rounded, options, chunks):
    dataset = xr.Dataset({"v": ("x", np.array([2, value], "f4"))})
    dataset = dataset.chunk(chunks) if chunks else dataset
    with pytest.raises(ConflictError, match=f"rounded to {rounded}, does not fit"):
        to_nczarr(dataset, {}, encoding={"v": options})


def test_numbers_too_large_to_have_decimal_places_are_not_quantized():
    data = np.array([3.4e38, -3.4e38], "f4")
    store = {}
    encoding = {"v": {"least_significant_digit": 2}}
    to_nczarr(xr.Dataset({"v": ("x", data)}), store, encoding=encoding)
    np.testing.assert_array_equal(xr.open_dataset(store, engine="nczarr").v, data)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"significant_digits": 99},
            "must be from 1 to 15 for dtype float64 and quantize_mode='BitGroom', not 99",
        ),
        (
            {"significant_digits": 3, "quantize_mode": "Other"},
            "quantize_mode must be .* not 'Other'",
        ),
        (
            {"least_significant_digit": "two"},
            "least_significant_digit must be a number, not 'two'",
        ),
    ],
    ids=["digits", "mode", "text"],
)
def test_invalid_significant_digits_and_quantize_modes_are_rejected(options, problem):
    with pytest.raises(ConflictError, match=problem):
        to_nczarr(xr.Dataset({"v": ("x", np.ones(3))}), {}, encoding={"v": options})


@pytest.mark.parametrize("dtype", ["i2", "S1"], ids=["integers", "characters"])
@pytest.mark.parametrize("copying", [False, True], ids=["to_nczarr", "copy"])
def test_least_significant_digit_attribute_of_non_float_variable_is_kept(tmp_path, copying, dtype):
    source = tmp_path / "source.nc"
    with netCDF4.Dataset(source, "w") as file:
        file.createDimension("x", 2)
        variable = file.createVariable("v", dtype, ("x",))
        variable.least_significant_digit = np.int16(1)
        variable[:] = np.array(["1", "2"], dtype)
    store = {}
    if copying:
        xr_nczarr.copy(source, store, engine="netcdf4")
    else:
        with xr.open_dataset(source, engine="netcdf4") as opened:
            to_nczarr(opened, store)
    digit = xr.open_dataset(store, engine="nczarr").v.attrs["least_significant_digit"]
    assert digit == 1
    assert digit.dtype == np.int16
