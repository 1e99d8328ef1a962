"""Numbers are written in the type of their encoding or rejected; they never overflow."""

import dask.array
import numcodecs
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import xr_nczarr
from xr_nczarr.errors import ChunkError, ConflictError

pytestmark = [
    pytest.mark.filterwarnings("ignore:saving variable v with floating point data"),
    pytest.mark.filterwarnings("ignore:variable 'v' will be stored as signed integers"),
]

PACKED = {"dtype": "i2", "scale_factor": 0.1, "add_offset": 5.0, "_FillValue": -32768}


def dataset(values, lazy=False):
    data = dask.array.from_array(values, chunks=1) if lazy else values
    return xr.Dataset({"v": ("x", data)})


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("values", "encoding", "problem"),
    [
        ([1, 300], {"dtype": "i1"}, r"300 does not fit the encoding \(dtype int8\)"),
        ([1, -1], {"dtype": "u2"}, "-1 does not fit"),
        (np.array([1, 2**63], "u8"), {"dtype": "i8"}, "9223372036854775808 does not fit"),
        ([1.0, 2.0**63], {"dtype": "i8"}, "does not fit"),
        ([1.0, 127.6], {"dtype": "i1", "_FillValue": -1}, "127.6 does not fit"),
        ([1.0, np.inf], {"dtype": "i4", "_FillValue": -1}, "inf does not fit"),
        ([np.nan, 1.0], {"dtype": "i4"}, "nan does not fit"),
        ([1.0, 1e300], {"dtype": "f4"}, r"1e[+]300 does not fit the encoding \(dtype float32\)"),
        ([1.0, -1e6], PACKED, "-1000000.0 does not fit .* int16, scale_factor 0.1, add_offset 5.0"),
        ([1, -(2**63)], {"dtype": "f4", "add_offset": 7}, "-9223372036854775808 does not fit"),
        ([1, 2**63 - 1], {"dtype": "i8", "add_offset": -7}, "9223372036854775807 does not fit"),
        ([1, 30_000], PACKED, r"30000 does not fit"),
        (np.array([1, 3300], "i2"), {"dtype": "i2", "scale_factor": 0.1}, r"3300 does not fit"),
        ([1, 2 + 1j], {"dtype": "f8"}, r"\(2\+1j\) does not fit the encoding \(dtype float64\)"),
        ([0, 2], {"dtype": "?"}, r"2 does not fit the encoding \(dtype bool\)"),
        ([1, 0.5], {"dtype": "?"}, "0.5 does not fit"),
        (np.array([1, -2], "i2"), {"dtype": "i2", "_Unsigned": "true"}, "-2 does not fit"),
        (np.array([1, 200], "u1"), {"dtype": "u1", "_Unsigned": "false"}, "200 does not fit"),
        ([1, 2], {"dtype": "u2", "_FillValue": -1}, r"-1 does not fit the encoding \(dtype uint16"),
        ([1.0, 2.0], {"dtype": "i2", "_FillValue": np.nan}, "nan does not fit"),
        ([1, 2], {"dtype": "i2", "_FillValue": "x"}, "x does not fit"),
        ([1.0], {"dtype": "i2", "_Unsigned": "true", "_FillValue": 70_000}, "70000 does not fit"),
    ],
)
def test_values_outside_encoding_range_are_rejected_before_writing(
    tmp_path, values, encoding, problem, lazy
):
    out = tmp_path / "out.nczarr"
    with pytest.raises(ConflictError, match=problem) as caught:
        xr_nczarr.to_nczarr(dataset(np.array(values), lazy), out, encoding={"v": encoding})
    assert caught.value.variable.strip("/") == "v"
    assert "drop_encoding" in str(caught.value)
    with pytest.raises(FileNotFoundError):
        xr.open_dataset(out, engine="nczarr")


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("values", "encoding", "expected"),
    [
        ([-128.4, 127.4], {"dtype": "i1"}, [-128, 127]),
        (np.array([0, 2**64 - 1], "u8"), {"dtype": "u8"}, [0, 2**64 - 1]),
        ([np.nan, 3.0], {"dtype": "i1", "_FillValue": -1}, [np.nan, 3]),
        ([np.nan, 3.0], {"dtype": "i1", "missing_value": -1}, [np.nan, 3]),
        ([np.nan, np.nan], {"dtype": "i1", "_FillValue": -1}, [np.nan, np.nan]),
        ([np.nan, 3.0], {"dtype": "i1", "_FillValue": None, "missing_value": 9}, [np.nan, 3]),
        ([-np.inf, np.nan], {"dtype": "f4"}, [-np.inf, np.nan]),
        ([-3271.7, 3281.7], PACKED, [-3271.7, 3281.7]),
        ([1, -3200], PACKED, [1.0, -3200.0]),
        ([1, -200], {"dtype": "f4", "scale_factor": 0.5, "_FillValue": 0}, [1.0, -200.0]),
        (np.array([100], "i1"), {"scale_factor": 0.5, "_FillValue": np.nan}, [100.0]),
        ([True, False], {"add_offset": 7.5, "_FillValue": np.nan}, [1.0, 0.0]),
        ([1, 3], {"dtype": "i1", "add_offset": 2, "_FillValue": 0}, [1, 3]),
        (np.array([1, 200], "u1"), {"dtype": "i1", "_Unsigned": "true", "_FillValue": 0}, [1, 200]),
        (np.array([-1, 2], "i1"), {"dtype": "u1", "_Unsigned": "false", "_FillValue": 0}, [-1, 2]),
        (np.array([1, 200], "u1"), {"dtype": "u4", "_Unsigned": "true", "_FillValue": 9}, [1, 200]),
        (
            np.array([1, 200], "u1"),
            {"dtype": "u4", "_Unsigned": "false", "_FillValue": 9},
            [1, 200],
        ),
        ([3, np.nan], {"dtype": "i1", "_Unsigned": "true", "_FillValue": 255}, [3, np.nan]),
        ([200, np.nan], {"dtype": "i8", "_Unsigned": "true", "_FillValue": -1}, [200, np.nan]),
        (np.array([3e9], "f4"), {"dtype": "i4", "_Unsigned": "true"}, np.array([3e9], "u4")),
        ([1e19], {"dtype": "i8", "_Unsigned": "true"}, np.array([1e19]).astype("u8")),
        ([2.0, np.nan], {"dtype": "i2", "scale_factor": 2, "_FillValue": -1}, [2.0, np.nan]),
        ([2, 4], {"dtype": "i2", "scale_factor": 2}, [2.0, 4.0]),
        ([1 + 0j, 2], {"dtype": "f4"}, [1, 2]),
        ([0, 1], {"dtype": "?"}, [False, True]),
        ([], {"dtype": "i1"}, []),
    ],
)
def test_values_within_encoding_range_are_written(tmp_path, values, encoding, expected, lazy):
    out = tmp_path / "out.nczarr"
    xr_nczarr.to_nczarr(dataset(np.array(values), lazy), out, encoding={"v": encoding})
    opened = xr.open_dataset(out, engine="nczarr")["v"].values
    if any(isinstance(value, float) for value in expected):
        np.testing.assert_allclose(opened, expected)
    else:
        np.testing.assert_array_equal(opened, expected)


def test_floats_are_packed_into_same_integers_as_in_xarray():
    original = xr.Variable(
        "x", np.random.default_rng(0).normal(0, 500, 10_000).astype("f4"), {}, PACKED
    )
    store = {}
    xr_nczarr.to_nczarr(xr.Dataset({"v": original}), store)
    opened = xr.open_dataset(store, engine="nczarr", mask_and_scale=False)["v"].variable
    np.testing.assert_array_equal(opened, xr.conventions.encode_cf_variable(original))


@pytest.mark.parametrize("attributes", [{}, {"_FillValue": -1}])
def test_missing_times_not_representable_in_encoding_are_rejected(attributes):
    times = xr.Dataset({"v": ("x", np.array(["2000-01-02", "NaT"], "M8[ns]"), attributes)})
    encoding = {"units": "days since 2000-01-01", "dtype": "i4"}
    with pytest.raises(ConflictError, match="NaT"):
        xr_nczarr.to_nczarr(times, {}, encoding={"v": encoding})
    beyond = {"units": "days since 2000-01-01", "dtype": "u8", "_FillValue": 2**64 - 1}
    with pytest.raises(ConflictError, match="NaT"):
        xr_nczarr.to_nczarr(times, {}, encoding={"v": beyond})
    if not attributes:
        xr_nczarr.to_nczarr(times, store := {}, encoding={"v": encoding | {"_FillValue": -1}})
        xr.testing.assert_identical(xr.open_dataset(store, engine="nczarr").load(), times)


@pytest.mark.parametrize("dtype", ["<i8", ">i8", "f8"])
def test_missing_times_stored_in_64_bit_types_need_no_fill_value(dtype):
    times = xr.Dataset({"v": ("x", np.array(["2000-01-02", "NaT"], "M8[ns]"))})
    encoding = {"units": "days since 2000-01-01", "dtype": dtype}
    xr_nczarr.to_nczarr(times, store := {}, dialect="zarr", encoding={"v": encoding})
    xr.testing.assert_equal(xr.open_dataset(store, engine="nczarr").load(), times)
    encoding = {"units": "days since 2000-01-01", "dtype": "i8", "scale_factor": 0.5}
    with pytest.raises(ConflictError, match="NaT"):
        xr_nczarr.to_nczarr(times, {}, encoding={"v": encoding})


FAR = np.array(["2000-01-01", "2050-01-01T00:00:01"], "M8[s]")


@pytest.mark.filterwarnings("ignore:Times can't be serialized faithfully")
@pytest.mark.filterwarnings("ignore:Timedeltas can't be serialized faithfully")
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("times", "encoding", "problem"),
    [
        (FAR, {"units": "seconds since 2000-01-01", "dtype": "i4"}, None),
        (
            FAR,
            {"units": "seconds since 1970-01-01", "dtype": "i4"},
            "time 2050-01-01T00:00:01 .* int32, units sec",
        ),
        (
            FAR,
            {"units": "seconds since 2000-02-01", "dtype": "u4"},
            "time 2000-01-01T00:00:00 does not fit",
        ),
        (
            FAR[:1],
            {"units": "days since 1990-01-01", "dtype": "i2", "scale_factor": 0.05},
            "2000-01-01",
        ),
        (FAR - FAR[0], {"units": "seconds", "dtype": "i4"}, None),
        (FAR - FAR[0], {"units": "seconds", "dtype": "i2"}, "1577923201 seconds does not fit"),
    ],
)
def test_times_outside_requested_integer_range_are_rejected(times, encoding, problem, lazy):
    store = {}
    original = dataset(times, lazy)
    if problem is None:
        xr_nczarr.to_nczarr(original, store, encoding={"v": encoding})
        decoded = xr.open_dataset(store, engine="nczarr", decode_timedelta=True)
        np.testing.assert_array_equal(decoded["v"], times)
        return
    with pytest.raises(ConflictError, match=problem):
        xr_nczarr.to_nczarr(original, store, encoding={"v": encoding})


def test_nonstandard_calendar_times_outside_requested_range_are_rejected():
    times = xr.date_range("2000-01-01", periods=2, freq="YS", calendar="noleap", use_cftime=True)
    encoding = {"units": "days since 2000-01-01", "dtype": "i1"}
    with pytest.raises(
        ConflictError,
        match=r"time 2001-01-01 00:00:00 does not fit the encoding \(dtype int8, units days",
    ):
        xr_nczarr.to_nczarr(xr.Dataset(coords={"t": times}), {}, encoding={"t": encoding})
    xr_nczarr.to_nczarr(
        xr.Dataset(coords={"t": times}), store := {}, encoding={"t": encoding | {"dtype": "i2"}}
    )
    assert xr.open_dataset(store, engine="nczarr").t.values.tolist() == times.tolist()


def test_values_outside_inherited_packing_range_are_rejected(tmp_path):
    old, new = tmp_path / "old.nczarr", tmp_path / "new.nczarr"
    xr_nczarr.to_nczarr(dataset(np.array([1.0, 2.0])), old, encoding={"v": PACKED})
    opened = xr.open_dataset(old, engine="nczarr", chunks={}).load()
    opened["v"].values[1] = 1e6
    with pytest.raises(ConflictError, match=r"1000000\.0 does not fit"):
        xr_nczarr.to_nczarr(opened, new)
    xr_nczarr.to_nczarr(opened.drop_encoding(), new)
    xr.testing.assert_equal(xr.open_dataset(new, engine="nczarr").load(), opened)


SCALED = numcodecs.FixedScaleOffset(offset=0, scale=10, dtype="f8", astype="i2")


@pytest.mark.parametrize(
    ("values", "codec", "problem"),
    [
        ([1.0, 4000.0], SCALED, "would change the value 4000.0 to -2553.6"),
        ([1.0, np.nan], SCALED, "would change the value nan"),
        ([1, 300], numcodecs.FixedScaleOffset(0, 1, "i8", "i1"), "would change the value 300"),
        (
            [1.0, np.nan, 5.0],
            numcodecs.Delta("f8"),
            "would change the value 5.0 to nan",
        ),
        (
            [1.0, 1e300],
            (numcodecs.Delta("f8"), numcodecs.AsType("f4", "f8")),
            "would change the value 1e[+]300",
        ),
        ([1, 2, 300], numcodecs.Delta("i8", "i1"), "would change the value 300"),
        ([1.5, 2.7], numcodecs.Delta("f8", "i4"), "would change the value 1.5"),
        ([1, 300], numcodecs.AsType("i1", "i8"), "would change the value 300"),
        ([1.0, np.nan], numcodecs.AsType("i8", "f8"), "would change the value nan"),
        ([1.0, 1e300], numcodecs.Quantize(1, "f8", "f4"), "would change the value 1e[+]300"),
        (np.array([1, 0, 200], "u1"), numcodecs.PackBits(), "would change the value 200"),
    ],
)
def test_values_not_preserved_by_filter_are_rejected(values, codec, problem):
    filters = codec if isinstance(codec, tuple) else (codec,)
    encoding = {"v": {"filters": filters, "_FillValue": None}}
    with pytest.raises(ChunkError, match=problem) as caught:
        xr_nczarr.to_nczarr(dataset(np.array(values)), {}, dialect="zarr", encoding=encoding)
    assert caught.value.chunk == (0,)


@pytest.mark.parametrize(
    ("values", "codec", "expected"),
    [
        ([1.0, 2.551, -3276.8], SCALED, [1.0, 2.6, -3276.8]),
        ([0.1, -1e30, 2.0], numcodecs.AsType("f4", "f8"), np.float32([0.1, -1e30, 2]).tolist()),
        ([1, -(2**63), 2**63 - 1], numcodecs.Delta("i8"), [1, -(2**63), 2**63 - 1]),
        ([1.5, -2.9, 3.2], numcodecs.AsType("i4", "f8"), [1, -2, 3]),
        ([1.2345, np.nan, -np.inf], numcodecs.Quantize(1, "f8"), [1.25, np.nan, -np.inf]),
        ([True, False, True], numcodecs.PackBits(), [True, False, True]),
    ],
)
def test_values_already_rounded_by_filter_can_be_written(values, codec, expected):
    # The edge chunk is padded with values that the filter cannot represent; they are never read.
    fill = np.nan if isinstance(values[0], float) else None
    encoding = {"v": {"filters": [codec], "_FillValue": fill, "chunks": 2}}
    store = {}
    xr_nczarr.to_nczarr(dataset(np.array(values)), store, dialect="zarr", encoding=encoding)
    opened = xr.open_dataset(store, engine="nczarr")["v"].values
    np.testing.assert_array_equal(opened, expected)
    xr_nczarr.to_nczarr(dataset(np.array(values)), store, append_dim="x")
    opened = xr.open_dataset(store, engine="nczarr")["v"].values
    np.testing.assert_array_equal(opened, expected * 2)


def test_values_outside_range_of_inherited_filter_are_rejected(tmp_path):
    dataset(np.array([1.0, 2.5])).to_zarr(
        tmp_path / "old.zarr", zarr_format=2, encoding={"v": {"filters": [SCALED]}}
    )
    old = xr.open_dataset(tmp_path / "old.zarr", engine="nczarr", chunks={})
    new = xr.concat([old, dataset(np.array([4000.0]))], "x")
    with pytest.raises(ChunkError, match=r"4000\.0.*drop_encoding"):
        xr_nczarr.to_nczarr(new, tmp_path / "new.nczarr", dialect="zarr")
    xr_nczarr.to_nczarr(new.drop_encoding(), tmp_path / "new.nczarr")
    xr.testing.assert_equal(xr.open_dataset(tmp_path / "new.nczarr", engine="nczarr"), new)


@pytest.mark.parametrize("dtype", ["i8", "u1", "?"])
@pytest.mark.parametrize("packing", [PACKED, {"dtype": "i2", "add_offset": 3, "_FillValue": 9}])
def test_integers_can_be_packed(dtype, packing):
    store, values = {}, dataset(np.array([1, 0], dtype))
    xr_nczarr.to_nczarr(values, store, encoding={"v": packing}, unlimited_dims="x")
    xr_nczarr.to_nczarr(values, store, append_dim="x")
    opened = xr.open_dataset(store, engine="nczarr")["v"].values
    np.testing.assert_allclose(opened, [1, 0, 1, 0], atol=1e-9)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("dtype", "fill"),
    [("i8", -(2**63) + 2), ("i8", 2**63 - 1), ("u8", 2**64 - 2), ("i4", -(2**31))],
)
@pytest.mark.parametrize("key", ["_FillValue", "missing_value"])
def test_missing_values_are_masked_despite_inexact_fill_value(dtype, fill, key, lazy):
    # The first value is netCDF's default for int64, which xarray converts to -2**63 instead of NaN.
    encoding = {"v": {"dtype": dtype, key: np.dtype(dtype).type(fill)}}
    xr_nczarr.to_nczarr(dataset(np.array([1.0, np.nan, 7]), lazy), store := {}, encoding=encoding)
    opened = xr.open_dataset(store, engine="nczarr")
    np.testing.assert_array_equal(opened.v, [1, np.nan, 7])
    xr_nczarr.to_nczarr(opened, again := {}, unlimited_dims="x")
    result = xr.open_dataset(again, engine="nczarr", mask_and_scale=False).v
    assert result.dtype == dtype
    assert result.values.tolist() == [1, fill, 7]
    xr_nczarr.to_nczarr(dataset(np.array([np.nan, 2.0]), lazy), again, append_dim="x")
    result = xr.open_dataset(again, engine="nczarr", mask_and_scale=False).v
    assert result.values.tolist() == [1, fill, 7, fill, 2]
    encoding["v"]["scale_factor"] = 0.5
    xr_nczarr.to_nczarr(dataset(np.array([1.0, np.nan]), lazy), packed := {}, encoding=encoding)
    result = xr.open_dataset(packed, engine="nczarr", mask_and_scale=False).v
    assert result.values.tolist() == [2, fill]


def test_coordinates_outside_encoding_range_are_rejected(tmp_path):
    original = xr.Dataset(coords={"x": [1, 70_000]})
    with pytest.raises(ConflictError, match="70000 does not fit"):
        xr_nczarr.to_nczarr(original, tmp_path / "a", encoding={"x": {"dtype": "i2"}})
    xr_nczarr.to_nczarr(original, tmp_path / "a", encoding={"x": {"dtype": "i4"}})
    assert xr.open_dataset(tmp_path / "a", engine="nczarr").x.dtype == "i4"


LARGE = 2**53 + 1


@pytest.mark.parametrize("around", [0, 5000], ids=["few", "many"])
@pytest.mark.parametrize(
    ("value", "extremes", "encoding"),
    [
        pytest.param(LARGE, (0, 2**60), {"dtype": "i8", "scale_factor": 1.0}, id="scale"),
        pytest.param(-LARGE, (-(2**60), 0), {"dtype": "i8", "add_offset": 2.0}, id="offset"),
        pytest.param(LARGE, (0, 2**60), {"dtype": "u8", "scale_factor": 0.5}, id="to-unsigned"),
        pytest.param(2**63 + 1, (2**63, 2**63), {"dtype": "u8", "add_offset": 0.0}, id="unsigned"),
        pytest.param(
            2**53 - 1, (2**53 - 2, 2**53), {"dtype": "i8", "add_offset": 0.5}, id="fraction"
        ),
        pytest.param(0.5, (0.0, 1.0), {"dtype": "?"}, id="boolean"),
    ],
)
def test_large_integers_not_representable_as_floats_are_rejected(value, extremes, encoding, around):
    values, store = np.array([extremes[0], value, *[extremes[1]] * (1 + around)]), {}
    with pytest.raises(ConflictError, match=f"the value {value} does not fit"):
        xr_nczarr.to_nczarr(dataset(values), store, encoding={"v": encoding})
    assert not store
    kept = np.delete(values, 1)
    xr_nczarr.to_nczarr(dataset(kept), store, encoding={"v": encoding})
    assert xr.open_dataset(store, engine="nczarr").v.values.tolist() == kept.tolist()
    with pytest.raises(ConflictError):
        xr_nczarr.to_nczarr(dataset(values), store, append_dim="x")


@pytest.mark.parametrize("count", [1, 5000], ids=["few", "many"])
@pytest.mark.parametrize(
    ("value", "encoding"),
    [
        pytest.param(-9.9, {"dtype": "i2", "scale_factor": 0.1, "_FillValue": -99}, id="packed"),
        pytest.param(0.3, {"dtype": "i2", "_FillValue": 0}, id="rounded"),
        pytest.param(0.0, {"dtype": "i2", "scale_factor": 2.0, "_FillValue": 0}, id="zero"),
        pytest.param(5, {"dtype": "u1", "add_offset": 5, "missing_value": 0}, id="offset"),
    ],
)
def test_numbers_encoded_as_missing_value_are_rejected(value, encoding, count):
    values, store = np.array([value, *[40] * count, -20, 200]), {}
    values = values[values > -1] if encoding["dtype"] == "u1" else values
    with pytest.raises(ConflictError, match=f"the value {value}, which .* the missing value"):
        xr_nczarr.to_nczarr(dataset(values), store, encoding={"v": encoding})
    assert not store


def test_fractional_fill_value_for_integers_is_rejected():
    with pytest.raises(ConflictError, match=r"the value 1\.5 does not fit the encoding"):
        xr_nczarr.to_nczarr(
            xr.Dataset({"v": ("x", [1, 2])}), {}, encoding={"v": {"_FillValue": 1.5}}
        )


def test_number_equal_to_fill_value_is_read_as_missing():
    encoding, store = {"v": {"dtype": "i2", "_FillValue": -99}}, {}
    xr_nczarr.to_nczarr(dataset(np.array([1.0, -99, 2])), store, encoding=encoding)
    stored = xr.open_dataset(store, engine="nczarr").v.values
    np.testing.assert_array_equal(stored, [1, np.nan, 2])


@pytest.mark.parametrize("largest", [2.0**1023, np.finfo("f8").max])
def test_finite_number_that_would_become_infinite_is_rejected(largest):
    store, data = {}, xr.Dataset({"v": ("x", [largest])})
    encoding = {"v": {"dtype": "f4"}}
    with pytest.raises(ConflictError, match="does not fit"):
        xr_nczarr.to_nczarr(data, store, encoding=encoding)
    xr_nczarr.to_nczarr(data.isel(x=[]), store, encoding=encoding, unlimited_dims="x")
    with pytest.raises(ConflictError, match="does not fit"):
        xr_nczarr.to_nczarr(data, store, append_dim="x")


def test_large_integers_representable_as_floats_are_packed():
    values = np.array([2**53 + 2, -(2**62), 2**60] * 2000)
    encoding, store = {"v": {"dtype": "i8", "scale_factor": 2.0, "_FillValue": -1}}, {}
    xr_nczarr.to_nczarr(dataset(values), store, encoding=encoding)
    stored = xr.open_dataset(store, engine="nczarr", mask_and_scale=False).v.values
    np.testing.assert_array_equal(stored, values // 2)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=4),
    st.sampled_from(["f4", "f8"]),
    st.sampled_from(["i1", "i2", "i4", "u1", "u2"]),
    st.sampled_from([0.001, 0.1, 1.0, 7.5]),
    st.sampled_from([0.0, -300.0, 12.25]),
)
def test_packed_values_are_accurate_or_rejected(values, kind, dtype, scale, offset):
    original = np.array(values, kind)
    packing = {"dtype": dtype, "scale_factor": scale, "add_offset": offset}
    store = {}
    info = np.iinfo(dtype)
    exact = (original.astype("f8") - offset) / scale
    try:
        xr_nczarr.to_nczarr(
            dataset(original), store, encoding={"v": packing | {"_FillValue": None}}
        )
    except ConflictError:
        assert exact.min() < info.min - 0.4 or exact.max() > info.max + 0.4
        return
    opened = xr.open_dataset(store, engine="nczarr")["v"].values
    room = 0.5 * scale + 4 * np.finfo("f4").eps * (np.abs(original) + abs(offset))
    assert (np.abs(opened - original.astype("f8")) <= room * 1.001).all()


@pytest.mark.parametrize("missing", ["b", None])
def test_stored_string_width_is_at_least_width_of_fill_value(missing):
    store = {}
    original = dataset(np.array(["a", missing], object))
    xr_nczarr.to_nczarr(original, store, encoding={"v": {"_FillValue": "none"}})
    del store["v/0"]
    stored = xr.open_dataset(store, engine="nczarr", mask_and_scale=False)["v"]
    assert stored.values.tolist() == ["none", "none"]
    assert xr.open_dataset(store, engine="nczarr")["v"].isnull().all()


def test_string_fill_value_longer_than_width_is_rejected():
    encoding = {"v": {"_FillValue": "none", "_nczarr_maxstrlen": 3}}
    with pytest.raises(ConflictError, match=r"fill value b'none' does not fit in dtype \|S3"):
        xr_nczarr.to_nczarr(dataset(np.array(["a"], object)), {}, encoding=encoding)


def test_inherited_boolean_fill_value_is_ignored():
    store, again = {}, {}
    original = dataset(np.array([1, 0], "i1"))
    original["v"].attrs |= {"dtype": "bool", "_FillValue": np.int8(9)}
    xr_nczarr.to_nczarr(original, store)
    opened = xr.open_dataset(store, engine="nczarr")
    assert opened["v"].values.tolist() == [True, False]
    xr_nczarr.to_nczarr(opened, again)
    assert xr.open_dataset(again, engine="nczarr").identical(opened)
