"""Numbers are packed with the stored encoding, or rejected if it cannot represent them."""

import numpy as np
import pytest
import xarray as xr

from tests.reading import read
from tests.writes import assert_rejected
from xr_nczarr import ConflictError, to_nczarr

PACKED = {"p": {"dtype": "i2", "scale_factor": 0.1, "_FillValue": -1}}


def packed(*values):
    return xr.Dataset({"p": ("time", np.array(values, "f8"))})


# Regression D57
def test_appended_values_are_packed_with_stored_encoding(path):
    to_nczarr(packed(1.0, 2.5), path, encoding=PACKED)
    finer = packed(3.3, np.nan)
    finer.p.encoding = {"dtype": "i4", "scale_factor": 0.1}
    to_nczarr(finer, path, append_dim="time")
    np.testing.assert_allclose(read(path).p, [1.0, 2.5, 3.3, np.nan])


@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
@pytest.mark.parametrize("container", [list, np.array], ids=["list", "array"])
def test_scale_factor_and_add_offset_can_be_one_element_lists(path, dialect, container):
    encoding = {"dtype": "i2", "scale_factor": container([0.5]), "add_offset": container([1])}
    encoding["_FillValue"] = -1
    to_nczarr(packed(1.0, 2.5), path, dialect=dialect, encoding={"p": encoding})
    stored = read(path).p
    assert stored.values.tolist() == [1.0, 2.5]
    assert (stored.encoding["scale_factor"], stored.encoding["add_offset"]) == (0.5, 1)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_values_can_be_appended_if_scale_factor_is_list(path, zarr_format):
    encoding = {"dtype": "i2", "scale_factor": np.array([0.5]), "_FillValue": -1}
    source = packed(1.0, np.nan)
    source.to_zarr(path, encoding={"p": encoding}, zarr_format=zarr_format, consolidated=False)
    to_nczarr(packed(2.5), path, append_dim="time")
    stored = read(path).p
    assert stored.dtype == float
    np.testing.assert_array_equal(stored, [1.0, np.nan, 2.5])


# Regression D57
@pytest.mark.filterwarnings("ignore:saving variable p with floating point data")
@pytest.mark.parametrize("dask", [False, True])
@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        (PACKED, 1e6),
        ({"p": {"dtype": "i2", "scale_factor": 0.1, "_FillValue": None}}, np.nan),
        ({"p": {"dtype": "i2", "_FillValue": -1}}, 1.5),
        ({"p": {"dtype": "i2", "_FillValue": -1}}, -1.0),
        ({"p": {"dtype": "f4"}}, 1e300),
        (PACKED, np.inf),
        ({"p": {"dtype": "i2", "_FillValue": -1}}, -np.inf),
        ({"p": {"dtype": "i1", "_Unsigned": "true", "_FillValue": -1}}, 256.0),
        ({"p": {"dtype": "i1", "_Unsigned": "true", "_FillValue": -1}}, -2.0),
    ],
)
def test_values_not_representable_in_stored_encoding_are_rejected(path, encoding, value, dask):
    to_nczarr(packed(1.0, 2.0), path, encoding=encoding)
    before = read(path)
    wrong = packed(3.0, value)
    with pytest.raises(ConflictError, match=r"does not fit|do not fit"):
        to_nczarr(wrong.chunk() if dask else wrong, path, append_dim="time")
    xr.testing.assert_identical(read(path), before)


# Regression D57
def test_negative_integer_is_rejected_for_unsigned_variable(path):
    to_nczarr(xr.Dataset({"p": ("time", np.array([1], "u2"))}), path)
    assert_rejected(
        path, "does not fit", xr.Dataset({"p": ("time", [-(2**63)])}), append_dim="time"
    )


# Regression D57
def test_values_are_stored_as_signed_integers_if_encoding_contains_unsigned_key(path):
    encoding = {"p": {"dtype": "i1", "_Unsigned": "true", "_FillValue": -1, "scale_factor": 0.5}}
    to_nczarr(packed(1.0, 100.0), path, encoding=encoding)
    to_nczarr(packed(127.0, np.nan, 64.0, 0.0), path, append_dim="time")
    opened = read(path).p
    np.testing.assert_array_equal(opened, [1.0, 100.0, 127.0, np.nan, 64.0, 0.0])
    assert opened.encoding["dtype"] == "i1"


# Regression D57
def test_appended_number_equal_to_missing_value_is_rejected(path):
    to_nczarr(packed(1.0, 2.0), path, encoding={"p": {"missing_value": 99.0}})
    assert np.isnan(read(path).p.encoding["_FillValue"])
    to_nczarr(packed(3.0, np.nan), path, append_dim="time")
    np.testing.assert_array_equal(read(path).p, [1.0, 2.0, 3.0, np.nan])
    assert_rejected(path, "does not fit", packed(99.0), append_dim="time")


def test_integers_equal_to_fill_value_can_be_written(path):
    fill = {"_FillValue": np.int16(-1)}
    first, second = (xr.Dataset({"p": ("time", np.array(v, "i2"))}) for v in ([1, -1], [-1, 2]))
    to_nczarr(first, path, encoding={"p": fill})
    to_nczarr(second, path, append_dim="time")
    np.testing.assert_array_equal(read(path).p, [1, np.nan, np.nan, 2])
    assert_rejected(path, "does not fit", packed(-1.0), append_dim="time")


# Regression D57
@pytest.mark.filterwarnings("ignore:variable 'p' has multiple fill values")
def test_missing_value_outside_stored_dtype_range_is_ignored(path):
    attributes = {"_FillValue": np.int16(-1), "missing_value": 1e20}
    to_nczarr(xr.Dataset({"p": ("time", np.array([1], "i2"), attributes)}), path)
    to_nczarr(packed(3.0, np.nan), path, append_dim="time")
    np.testing.assert_array_equal(read(path).p, [1.0, 3.0, np.nan])


# Regression D57
def test_values_too_precise_for_stored_scale_factor_are_rejected(path):
    to_nczarr(packed(1.0, 2.0), path, encoding=PACKED)
    finer = packed(3.33)
    finer.p.encoding = {"dtype": "i4", "scale_factor": 0.01}
    assert_rejected(path, "does not fit", finer, append_dim="time")


# Regression D57
def test_packing_error_explains_how_to_finish_dask_write(path):
    to_nczarr(packed(1.0, 2.0, 3.0, 4.0), path, encoding={"p": {**PACKED["p"], "chunks": (1,)}})
    wrong = packed(5.0, 6.0, 1e6, 8.0).chunk(time=1)
    with pytest.raises(ConflictError, match="Fix the problem and run the write again") as caught:
        to_nczarr(wrong, path, mode="r+")
    assert caught.value.variable == "/p"
    with pytest.raises(ConflictError, match="does not fit") as caught:
        to_nczarr(-wrong, path, mode="r+", atomic=True)
    assert "The store is either unchanged" in str(caught.value)
    assert not (read(path).p < 0).any()
    to_nczarr(packed(5.0, 6.0, 7.0, 8.0).chunk(time=1), path, mode="r+")
    np.testing.assert_allclose(read(path).p, [5.0, 6.0, 7.0, 8.0])


@pytest.mark.parametrize("lazy", [False, True], ids=["NumPy", "dask"])
@pytest.mark.parametrize(
    "encoding",
    [{"add_offset": 2.0}, {"dtype": "c16", "scale_factor": 2.0}],
    ids=["offset", "complex dtype"],
)
def test_complex_numbers_with_imaginary_part_cannot_be_packed(encoding, lazy):
    variable = xr.Variable("x", np.array([3 + 0j, 1 + 1j]))
    numbers = xr.Dataset({"v": variable.chunk() if lazy else variable})
    layout = {"dialect": "zarr", "encoding": {"v": encoding}}
    with pytest.raises(ConflictError, match=r"the value \(1\+1j\) does not fit the encoding"):
        to_nczarr(numbers, {}, **layout)
    store = {}
    to_nczarr(numbers.isel(x=[0]), store, dialect="zarr", encoding={"v": {"add_offset": 2.0}})
    assert read(store).v.values.tolist() == [3]
