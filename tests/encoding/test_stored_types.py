"""Values and attributes of every type are stored exactly, or rejected."""

import os

import dask.array
import netCDF4
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from numpy.lib.mixins import NDArrayOperatorsMixin
from zarr.core.dtype import VariableLengthBytes

import xr_nczarr
from tests.reading import read
from xr_nczarr import ConflictError, UnsupportedError, to_nczarr

NUMBERS = {
    "scale_factor": np.float64(0.012345678901234),
    "pi": np.float64(np.pi),
    "round": np.float64(123456789.0),
    "large": np.float64(1e300),
    "denormal": np.float64(5e-324),
    "nan": np.float64(np.nan),
    "infinities": np.array([np.inf, -np.inf]),
    "float32": np.float32(0.1),
    "int64": np.array([np.iinfo("i8").min, np.iinfo("i8").max]),
    "uint64": np.uint64(np.iinfo("u8").max),
    "int8": np.int8(-128),
}


# Regression D64
def test_netcdf_c_reads_same_numeric_attributes(path):
    to_nczarr(xr.Dataset(attrs=NUMBERS), path)
    ours = read(path).attrs
    with netCDF4.Dataset(f"file://{path}#mode=nczarr,file") as dataset:
        theirs = {name: dataset.getncattr(name) for name in dataset.ncattrs()}
    for name, value in NUMBERS.items():
        for result in (ours[name], theirs[name]):
            assert np.asarray(result).dtype == value.dtype, name
            np.testing.assert_array_equal(result, value, name)


# Regression D67
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.array(["a", None, "c"], object), ["a", "", "c"]),
        (np.array(["a", np.nan, "c"], object), ["a", "", "c"]),
        (np.array([True, False, True]), [True, False, True]),
    ],
)
def test_booleans_and_strings_with_missing_values_are_encoded(path, values, expected):
    to_nczarr(xr.Dataset({"v": ("x", values)}), path)
    result = ["" if item is np.nan else item for item in read(path).v.values.tolist()]
    assert result == expected


# Regression D67
@pytest.mark.parametrize(
    "values", [np.ones(3, dtype) for dtype in ("f2", ">f2", "c16", [("a", "i4")])], ids=str
)
def test_types_unsupported_by_netcdf_are_rejected_before_first_write(path, values):
    with pytest.raises(UnsupportedError, match="netCDF has no type for"):
        to_nczarr(xr.Dataset({"ok": ("x", [1, 2, 3]), "v": ("x", values)}), path)
    assert not os.path.exists(path)


@pytest.mark.parametrize("options", [{}, {"mode": "a"}], ids=["new", "overwritten"])
@pytest.mark.parametrize("item", [np.array([1, 2]), [1, 2]], ids=["array", "list"])
def test_object_array_containing_arrays_or_lists_is_rejected(path, item, options):
    values = np.empty(2, object)
    values[:] = item, item[:1]
    if options:
        to_nczarr(xr.Dataset({"v": ("x", [1, 2])}), path)
    problem = f"objects of type {type(item).__name__}.*variable v.*along a new dimension"
    with pytest.raises(UnsupportedError, match=problem):
        to_nczarr(xr.Dataset({"v": ("x", values)}), path, **options)


# The error was xarray's AttributeError.
@pytest.mark.parametrize("value", [1.5, ["lat", "lon"]], ids=["number", "list"])
@pytest.mark.parametrize("place", ["attrs", "encoding"])
def test_coordinates_attribute_that_is_not_text_is_rejected(place, value):
    dataset = xr.Dataset({"v": ("x", [1.0])})
    to_nczarr(dataset, store := {})
    getattr(dataset.v, place)["coordinates"] = value
    for options in ({"append_dim": "x"}, {"mode": "w"}):
        with pytest.raises(ConflictError, match=r"'coordinates' must be .*\(variable /v\)"):
            to_nczarr(dataset, store, **options)


@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
@pytest.mark.parametrize("box", [[0.5, 1.5], np.array([1, 2])], ids=["list", "array"])
def test_bounds_attribute_that_is_not_text_is_stored(dialect, box):
    source = xr.Dataset({"v": ("x", [1.0, 2.0], {"units": "m", "bounds": box, "n": "a"})})
    to_nczarr(source, store := {}, dialect=dialect)
    attributes = read(store).v.attrs
    assert list(attributes) == ["units", "bounds", "n"]
    np.testing.assert_array_equal(attributes["bounds"], box)
    np.testing.assert_array_equal(source.v.attrs["bounds"], box)


def test_mixed_values_are_stored_as_bytes_if_bytes_come_first():
    values = np.array([b"a", "b"], object)
    to_nczarr(xr.Dataset({"v": ("x", values)}), store := {})
    assert read(store).v.values.tolist() == [b"a", b"b"]


@pytest.mark.parametrize(
    "values", [np.array([1, "a"], object), np.array([{}, {}], object)], ids=["mixed", "dicts"]
)
def test_error_for_unsupported_objects_includes_variable_and_remedy(path, values):
    with pytest.raises(ConflictError, match=r"infer dtype.*variable v.*astype"):
        to_nczarr(xr.Dataset({"v": ("x", values)}), path)
    assert not os.path.exists(path)


class Sparse(NDArrayOperatorsMixin):
    """An array that refuses to be converted to NumPy, as sparse arrays do."""

    def __init__(self, values):
        self.values = values
        self.shape, self.ndim, self.dtype = values.shape, values.ndim, values.dtype

    def __array__(self, *_, **__):
        raise RuntimeError("cannot convert a sparse array to dense automatically")

    def __array_ufunc__(self, *_, **__):
        return NotImplemented

    def __array_function__(self, *_, **__):
        return NotImplemented

    def __getitem__(self, key):
        return Sparse(self.values[key])


def test_arrays_that_numpy_cannot_convert_are_rejected_before_writing(path):
    first = xr.Dataset({"a": ("x", [1.0]), "v": ("x", [1.0])})
    to_nczarr(first[["a"]], path)
    second = (first + 1).assign(v=("x", Sparse(np.ones(1))))
    for _ in range(2):  # first as a new variable, then as a stored one
        with pytest.raises(UnsupportedError, match=r"Sparse cannot be .*variable /v.*todense"):
            to_nczarr(second, path, mode="a")
        assert read(path).a.values.tolist() == [1.0]
        to_nczarr(first, path, mode="a")


@pytest.mark.parametrize(
    ("variable", "encoding"),
    [
        ("time", {"units": "dayz since 2000-01-01"}),
        ("time", {"calendar": "juliann"}),
        ("text", {"dtype": "i4"}),
        ("text", {"_Encoding": "utf-99", "dtype": "S1"}),
        ("text", {"_nczarr_maxstrlen": "wide"}),
        ("number", {"dtype": "S4"}),
        ("number", {"dtype": "nonsense"}),
        ("number", {"scale_factor": "a"}),
        ("number", {"_FillValue": "a"}),
        ("number", {"fill_value": "a"}),
        ("number", {"endian": "middle"}),
        ("number", {"significant_digits": "many"}),
    ],
    ids=str,
)
def test_error_for_invalid_encoding_includes_variable_and_remedy(path, variable, encoding):
    values = {"time": np.array(["2000-01-02"], "M8[ns]"), "text": ["a"], "number": [1.5]}
    dataset = xr.Dataset({name: ("x", item) for name, item in values.items()})
    problem = rf"{path}: .*\(variable {variable}\)\. (Correct|Choose) .*encoding"
    with pytest.raises(ConflictError, match=problem):
        to_nczarr(dataset, path, encoding={variable: encoding})
    assert not os.path.exists(path)


def test_error_for_conflicting_attribute_includes_advice_from_xarray(path):
    time = xr.Variable("x", np.array(["2000-01-02"], "M8[ns]"), {"units": "K"})
    with pytest.raises(ConflictError, match=r"remove this key from the variable's attributes"):
        to_nczarr(xr.Dataset({"time": time}), path)


@pytest.mark.parametrize(
    "values", [pd.array(["a"], dtype="string"), pd.array([1], dtype="Int64"), pd.Categorical(["u"])]
)
@pytest.mark.parametrize("options", [{}, {"append_dim": "x"}, {"region": {"x": slice(0, 1)}}])
def test_pandas_extension_types_are_rejected(path, values, options):
    dataset = xr.Dataset({"v": ("x", values)})
    if isinstance(dataset.v.dtype, np.dtype):
        pytest.skip("this release of xarray converts the values to Python objects")
    to_nczarr(xr.Dataset({"v": ("x", [1])}), path)
    with pytest.raises(UnsupportedError, match=r"pandas dtype.*variable /v.*astype"):
        to_nczarr(dataset, path, **options)


@pytest.mark.parametrize(("zarr_format", "dialect"), [(2, "zarr"), (3, "zarr"), (2, "nczarr")])
@pytest.mark.parametrize("chunks", [None, {}])
def test_big_endian_scalars_can_be_rewritten_and_copied(zarr_format, dialect, chunks):
    first, second, third = {}, {}, {}
    dataset = xr.Dataset({"v": np.int16(5), "w": 0.5})
    encoding = {name: {"endian": "big"} for name in dataset}
    to_nczarr(dataset, first, zarr_format=zarr_format, dialect=dialect, encoding=encoding)
    opened = read(first, chunks=chunks)
    to_nczarr(opened, second, zarr_format=zarr_format, dialect=dialect)
    xr_nczarr.copy(first, third, dialect="zarr")
    xr.testing.assert_identical(read(second), dataset)
    xr.testing.assert_identical(read(third), dataset)


@pytest.mark.filterwarnings("ignore:Duplicate dimension names:UserWarning")
@pytest.mark.parametrize("size", [3, 400])
def test_arrays_with_repeated_dimension_can_be_written_and_copied(size):
    first, second, third = {}, {}, {}
    values = np.arange(size * size, dtype="f8").reshape(size, size)
    encoding = {"v": {"chunks": (size // 3, size // 2)}}
    to_nczarr(xr.Dataset({"v": (("x", "x"), values)}), first, encoding=encoding)
    to_nczarr(read(first), second)
    xr_nczarr.copy(first, third, chunks={"x": 100})
    for store in (second, third):
        assert read(store).v.dims == ("x", "x")
        np.testing.assert_array_equal(read(store).v.values, values)


@pytest.mark.parametrize("dialect", ["nczarr", "universal"])
def test_netcdf_c_reads_big_endian_chunks_of_fill_values(path, dialect):
    values = np.array([np.nan, np.nan, 1, 2], ">f4")
    encoding = {"t": {"dtype": ">f4", "chunksizes": (2,), "_FillValue": np.float32(5)}}
    to_nczarr(xr.Dataset({"t": ("x", values)}), path, encoding=encoding, dialect=dialect)
    with netCDF4.Dataset(f"file://{path}#mode=nczarr,file") as stored:
        stored.set_auto_mask(False)
        assert stored["t"].endian() == "big"
        assert stored["t"][:].tolist() == [5, 5, 1, 2]


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_variable_length_bytes_can_be_rewritten_and_copied(zarr_format):
    values = np.array([b"a\0", b"", b"xyz", b"xyz"], object)
    source = zarr.storage.MemoryStore()
    array = zarr.create_group(source, zarr_format=2).create_array(
        "v",
        shape=(4,),
        chunks=(3,),
        dtype=VariableLengthBytes(),
        fill_value=None,
        attributes={"_ARRAY_DIMENSIONS": ["x"]},
    )
    array[:] = values
    objects = {key: data.to_bytes() for key, data in source._store_dict.items()}
    written, copied = dict[str, bytes](), dict[str, bytes]()
    options = {"dialect": "zarr", "zarr_format": zarr_format}
    to_nczarr(xr.open_dataset(objects, engine="nczarr"), written, **options)
    xr_nczarr.copy(objects, copied, **options)
    for store in (written, copied):
        assert xr.open_dataset(store, engine="nczarr").v.values.tolist() == values.tolist()


@pytest.mark.parametrize("dtype", ["i2", "u1", "?", "c8"])
def test_both_engines_read_unwritten_v3_chunks_as_zeros(dtype, tmp_path):
    values = dask.array.zeros(4, chunks=2, dtype=dtype)
    dataset = xr.Dataset({"v": ("x", values)})
    options = {"zarr_format": 3, "compute": False}
    to_nczarr(dataset, tmp_path / "ours", dialect="zarr", **options)
    dataset.to_zarr(tmp_path / "theirs", consolidated=False, **options)
    for engine in ("nczarr", "zarr"):
        for name in ("ours", "theirs"):
            opened = xr.open_dataset(tmp_path / name, engine=engine, consolidated=False)
            assert (opened.v.dtype, opened.v.values.tolist()) == (dtype, [0] * 4)
