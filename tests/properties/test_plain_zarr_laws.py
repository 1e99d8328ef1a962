"""Plain Zarr is read as by xarray's engine zarr, and reference sets as the original files.

The exceptions are the rows of docs/reference/engine-zarr.md. Each has a comment in `assert_alike`.
"""

import os
import tempfile

import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kerchunk.hdf import SingleHdf5ToZarr
from packaging.version import Version

from xr_nczarr.errors import MetadataError

EXAMPLES = int(os.environ.get("NCZARR_EXAMPLES", "60"))
SCALES_TO_FLOATS = Version(xr.__version__) >= Version("2025.8")
LAW = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
SIZES = {"x": 5, "y": 3}
INTEGERS = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"]
FLOATS = ["f2", "f4", "f8"]
TEXTS = ["S1", "S3", "U1", "U4"]
OTHERS = ["c8", "c16", "b1", "M8[ns]", "M8[s]", "m8[ns]", "V3", "T", *TEXTS]
NETCDF_FILLS = {
    "i1": -127, "u1": 255, "i2": -32767, "u2": 65535, "i4": -2147483647, "u4": 4294967295,
    "i8": -9223372036854775806, "u8": 18446744073709551614,
    "f4": 9.969209968386869e36, "f8": 9.969209968386869e36,
}  # fmt: skip
DIMENSIONS = st.sampled_from([(), ("x",), ("y",), ("x", "y")])
TIMES = ["days since 2000-01-01", "hours since 1990-06-01 12:00", "seconds", "K", "1"]

# ---- Values and attributes


def integers(name):
    limits = np.iinfo(name)
    usual = st.sampled_from([0, 1, limits.min, limits.max, NETCDF_FILLS[name]])
    return usual | st.integers(limits.min, limits.max)


def floats(name):
    largest = float(np.finfo(name).max)
    usual = [0.0, -0.0, 1.0, np.nan, np.inf, largest, NETCDF_FILLS.get(name, 1.5)]
    return st.sampled_from(usual) | st.floats(width=np.dtype(name).itemsize * 8)


def texts(name):
    dtype = np.dtype(name)
    width = dtype.itemsize // (4 if dtype.kind == "U" else 1) or 4
    result = st.text("ab " if dtype.kind == "S" else "ab é", max_size=width)
    return result.map(str.encode) if dtype.kind == "S" else result


def scalars(name):
    """Return a strategy for values of a type, with its extremes and netCDF's default fill value."""
    half = {"c8": "f4", "c16": "f8"}.get(name)
    if half is not None:
        return st.builds(complex, floats(half), floats(half))
    strategies = {
        **dict.fromkeys("iu", integers),
        **dict.fromkeys("SUT", texts),
        "f": floats,
        "b": lambda _: st.booleans(),
        "V": lambda _: st.just(b"abc"),
    }
    times = st.integers(-(10**9), 10**9) | st.sampled_from([0, np.iinfo("i8").min])
    return strategies.get(name[0], lambda _: times)(name)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text("aé{1\n", max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text("ab", min_size=1, max_size=2), inner, max_size=3)
    ),
    max_leaves=5,
)
NAMES = ["long_name", "flag", "multiscales", "_CRS", "valid_range", "_private", "Conventions"]
USER_ATTRIBUTES = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4)


@st.composite
def cf_attributes(draw, name):
    """Draw attributes that affect decoding, as JSON values."""
    numbers = st.integers(-3, 3) | st.sampled_from([0.5, 0.1, 10.0, -2.5]) | st.none()
    strategies = {
        "scale_factor": numbers.filter(lambda number: number != 0),
        "add_offset": numbers,
        "missing_value": scalars(name) | st.lists(scalars(name), max_size=2),
        "_Unsigned": st.sampled_from(["true", "false"]),
        "units": st.sampled_from(TIMES) | st.none(),
        "calendar": st.sampled_from(["standard", "noleap"]) | st.none(),
        "coordinates": st.sampled_from(["x", "a b", ""]),
        "grid_mapping": st.just("a"),
        "_FillValue": scalars(name) | st.lists(scalars(name), min_size=1, max_size=1),
    }
    return {key: draw(some) for key, some in strategies.items() if draw(st.integers(0, 5)) == 0}


def numpy_dtype(name):
    return np.dtypes.StringDType() if name == "T" else np.dtype(name)


@st.composite
def arrays(draw, name, shape):
    """Draw an array of the type `name` that contains at most four distinct values."""
    dtype = numpy_dtype(name)
    few = draw(st.lists(scalars(name), min_size=1, max_size=4))
    picked = np.random.default_rng(draw(st.integers(0, 99))).integers(0, len(few), shape)
    if dtype.kind in "mM":
        return np.array(few, "i8")[picked].view(dtype)
    with np.errstate(over="ignore"):
        return np.array(few, dtype)[picked]


# ---- Stores


@st.composite
def stores_of_zarr_python(draw):
    """Draw a store with any types, fill values and attributes."""
    version = draw(st.sampled_from([2, 3]))
    store = zarr.storage.MemoryStore()
    group = zarr.create_group(store, zarr_format=version, attributes=draw(USER_ATTRIBUTES))
    for variable in draw(st.lists(st.sampled_from("zabx"), min_size=1, max_size=3, unique=True)):
        name = draw(st.sampled_from([*INTEGERS, *INTEGERS, *FLOATS, *FLOATS, *OTHERS]))
        dims = ("x",) if variable == "x" else draw(DIMENSIONS)
        draw(zarr_arrays(group, variable, name, dims))
    if draw(st.booleans()):
        zarr.consolidate_metadata(store)
    return store


@st.composite
def zarr_arrays(draw, group, variable, name, dims):
    """Add an array to a group, and return it."""
    dtype = numpy_dtype(name)
    attributes = draw(USER_ATTRIBUTES)
    if dtype.kind in "iuf":
        attributes |= draw(cf_attributes(name))
    fill = draw(st.none() | scalars(name)) if name != "V3" else None
    if dtype.kind in "mM" and fill is not None:
        fill = np.array(fill, "i8").view(dtype)[()]
    chunks = tuple([draw(st.integers(1, 2)) for _ in dims])
    options = {"dimension_names": dims}
    if group.metadata.zarr_format == 2:
        attributes["_ARRAY_DIMENSIONS"] = dims
        options = {"order": draw(st.sampled_from("CF"))}
        if dtype.kind in "iuf":
            dtype = dtype.newbyteorder(draw(st.sampled_from("<>")))
    elif dims and name != "V3" and draw(st.booleans()):  # zarr-python cannot shard V3
        options["shards"] = tuple([2 * size for size in chunks])
    array = group.create_array(
        variable,
        shape=tuple([SIZES[dim] for dim in dims]),
        dtype=dtype,
        chunks=chunks,
        fill_value=fill,
        attributes={key: attributes[key] for key in draw(st.permutations(list(attributes)))},
        **options,
    )
    array[...] = draw(arrays(name, array.shape))
    return array


@st.composite
def packed_numbers(draw, shape):
    """Draw floats with missing values, and an encoding that packs them as integers."""
    name = draw(st.sampled_from(INTEGERS[:6]))
    limits = np.iinfo(name)
    fill = draw(st.sampled_from([0, limits.min, limits.max, NETCDF_FILLS[name]]))
    encoding = {"dtype": name, "_FillValue": np.array(fill, name)[()]}
    optional = {
        "scale_factor": st.sampled_from([0.5, 10.0]),
        "add_offset": st.sampled_from([-1.0, 100.0]),
    }
    if name[0] == "i":
        optional["_Unsigned"] = st.just("true")
    encoding |= draw(st.fixed_dictionaries({}, optional=optional))
    stored = np.array(draw(st.lists(st.integers(1, 100), min_size=15, max_size=15)))
    values = stored * encoding.get("scale_factor", 1) + encoding.get("add_offset", 0)
    missing = np.resize([False, True, False], shape)
    return np.where(missing, np.nan, np.resize(values, shape)), encoding


@st.composite
def plain_numbers(draw, shape):
    name = draw(st.sampled_from([*INTEGERS, "f4", "f8"]))
    fills = scalars(name).map(lambda fill: {"_FillValue": np.array(fill, name)[()]})
    return draw(arrays(name, shape)), draw(st.just({}) | fills)


@st.composite
def times(draw, shape):
    """Draw dates or time differences with missing values, and an encoding."""
    days = np.resize(draw(st.lists(st.integers(0, 9999), min_size=1, max_size=4)), shape)
    missing = np.resize(np.arange(15) == draw(st.integers(0, 99)), shape)
    days = np.where(missing, np.iinfo("i8").min, days)
    if draw(st.booleans()):
        return days.view("m8[D]").astype("m8[ns]"), {}
    name = draw(st.sampled_from(["i4", "i8", "f8"]))
    epoch = draw(st.sampled_from(["2000-01-01", "1970-01-01"]))
    encoding = {"units": f"{draw(st.sampled_from(['days', 'hours']))} since {epoch}", "dtype": name}
    if name != "f8":
        encoding["_FillValue"] = np.array(-(2**31), name)[()]
    return days.view("M8[D]").astype("M8[ns]"), encoding


@st.composite
def words(draw, shape):
    values = draw(arrays(draw(st.sampled_from(TEXTS)), shape))
    as_objects = values.dtype.kind == "U" and draw(st.booleans())
    return (values.astype(object) if as_objects else values), {}


@st.composite
def variables(draw, *kinds):
    """Draw an in-memory variable with its encoding."""
    dims = draw(DIMENSIONS)
    kind = draw(st.sampled_from([packed_numbers, plain_numbers, times, "b1", *kinds]))
    shape = tuple([SIZES[dim] for dim in dims])
    values, encoding = (draw(arrays(kind, shape)), {}) if kind == "b1" else draw(kind(shape))
    return xr.Variable(dims, values, draw(USER_ATTRIBUTES), encoding)


UNIQUE_NAMES = st.lists(st.sampled_from("zabq"), min_size=1, max_size=3, unique=True)


@st.composite
def stores_of_to_zarr(draw):
    """Draw a store written by xarray, or None if xarray rejects the dataset."""
    names = draw(UNIQUE_NAMES)
    dataset = xr.Dataset({name: draw(variables(words)) for name in names})
    dataset.attrs = draw(USER_ATTRIBUTES)
    if draw(st.booleans()):
        dataset = dataset.assign_coords(x=np.arange(SIZES["x"]), lon=("y", np.arange(3.0)))
    version = draw(st.sampled_from([2, 3]))
    for name in names:
        if version == 3 and dataset[name].ndim and draw(st.booleans()):
            dataset[name].encoding["chunks"] = (2,) * dataset[name].ndim
            dataset[name].encoding["shards"] = (4,) * dataset[name].ndim
    store = zarr.storage.MemoryStore()
    try:
        dataset.to_zarr(store, zarr_format=version, consolidated=draw(st.booleans()))
    except (ValueError, TypeError, OverflowError):
        return None
    return store


@st.composite
def netcdf_datasets(draw):
    """Draw a dataset of netCDF types, and the name of the engine that writes it."""
    dataset = xr.Dataset({name: draw(variables()) for name in draw(UNIQUE_NAMES)})
    optional = {
        "long_name": st.sampled_from(["wind", "é"]),
        "valid_range": st.just(np.array([0, 5], "i2")),
        "count": st.integers(0, 9).map(np.int32),
        "ratio": st.just(np.float32(0.1)),
    }
    for variable in dataset.variables.values():
        variable.attrs = draw(st.fixed_dictionaries({}, optional=optional))
    if draw(st.booleans()):
        letters = np.array([b"ab", b" ", b"", b"c", b"def"])
        dataset["text"] = xr.Variable("x", letters, encoding={"dtype": "S1"})
    return dataset, draw(st.sampled_from(["netcdf4", "h5netcdf"]))


# ---- The results of both engines


def opened(store, **options):
    """Return the datasets opened by engine zarr and by this engine, or None for failures."""
    objects = {key: data.to_bytes() for key, data in store._store_dict.items()}
    try:
        theirs = xr.open_dataset(store, engine="zarr", **options)
    except Exception:  # xarray's coders may raise any error
        theirs = None
    try:
        ours = xr.open_dataset(objects, engine="nczarr", **options)
    except MetadataError:
        ours = None
    return theirs, ours


def same(one, other):
    """Return whether two attributes are equal, including their types."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and one.tobytes() == other.tobytes()
    return one == other or (one != one and other != other)


def values_of(variable):
    """Return the values, or the error raised by reading them."""
    try:
        return variable.values
    except Exception as error:
        return error


def assert_same_values(result, expected, name):
    dtype = np.dtype(object) if expected.dtype.kind == "T" else expected.dtype
    types = result.dtype, dtype
    first, second = values_of(result), values_of(expected)
    if isinstance(second, Exception):  # e.g. for an integer scale_factor with missing values
        return
    assert types[0] == types[1], name
    if isinstance(first, MetadataError) and "the type that xarray chose" in str(first):
        return  # the zarr engine returns another type
    assert not isinstance(first, Exception), (name, first)
    if (
        first.dtype.hasobject or first.dtype.kind in "SU"
    ):  # the zarr engine narrows strings without dimensions
        for item, other in zip(first.ravel(), second.ravel(), strict=True):
            # cftime returns the reference date for NaN.
            is_missing_date = item != item and hasattr(other, "calendar")
            assert is_missing_date or repr(item) == repr(other), name
    elif first.dtype.kind in "mM":  # the zarr engine may return another unit than it declares
        np.testing.assert_array_equal(first, second)
    else:
        assert first.tobytes() == second.tobytes(), (name, first, second, expected.encoding)


def assert_same_encoding(result, expected, name):
    # These keys contain objects of zarr-python.
    encoding = {
        k: v for k, v in expected.items() if k not in ("compressors", "filters", "serializer")
    }
    # A dask block is a shard, although xarray 2025.7 has no encoding for shards.
    if encoding.get("shards") is not None:
        names = encoding["preferred_chunks"]
        encoding["preferred_chunks"] = dict(zip(names, encoding["shards"], strict=True))
    dtype = encoding.pop("dtype", None)
    if isinstance(dtype, np.dtype):  # strings have dtype object (str in 2025.7); byte order is kept
        kept = np.dtype(object) if dtype.kind == "T" else dtype.newbyteorder("=")
        assert result["dtype"].newbyteorder("=") == kept, name
    for key, value in encoding.items():
        assert same(result.get(key), value), (name, key, result.get(key), value)


def assert_alike(theirs, ours, store):
    group = zarr.open_group(store, mode="r")
    assert set(ours.variables) == set(theirs.variables)
    if group.metadata.consolidated_metadata is not None:  # otherwise the zarr engine's order varies
        assert list(ours.variables) == list(theirs.variables)
    assert set(ours.coords) == set(theirs.coords)
    assert same(ours.attrs, theirs.attrs), (ours.attrs, theirs.attrs)
    for name, expected in theirs.variables.items():
        result = ours.variables[name]
        assert result.dims == expected.dims
        attributes, encoding = dict(expected.attrs), dict(expected.encoding)
        # In version 2, the attribute `_FillValue` is masked, and compared in the type of the array.
        declared = group.metadata.zarr_format == 2 and "_FillValue" in group[name].attrs
        for held, own in ((attributes, result.attrs), (encoding, result.encoding)):
            if declared and "_FillValue" in held:
                held["_FillValue"] = own["_FillValue"]
        # With an integer scale_factor, the zarr engine cannot read missing values.
        if isinstance(result.encoding.get("scale_factor"), float):
            encoding["scale_factor"] = float(encoding["scale_factor"])
        assert same(result.attrs, attributes), (name, result.attrs, attributes)
        assert_same_encoding(result.encoding, encoding, name)
        # xarray misreads a fill value of big-endian integers with `_Unsigned`.
        misread = group[name].dtype.byteorder == ">" and "_Unsigned" in expected.encoding
        # xarray 2025.7 scales to integers, as if no value were missing.
        whole = isinstance(expected.encoding.get("scale_factor"), int) and not SCALES_TO_FLOATS
        if not declared and not misread and not whole:
            assert_same_values(result, expected, name)


OPTIONS = st.sampled_from([{}, {"decode_cf": False}])


@pytest.mark.filterwarnings("ignore")
@LAW
@given(stores_of_zarr_python(), OPTIONS)
def test_nczarr_and_zarr_engines_read_zarr_python_stores_identically(store, options):
    theirs, ours = opened(store, **options)
    if theirs is not None:
        assert ours is not None
        assert_alike(theirs, ours, store)


@pytest.mark.filterwarnings("ignore")
@LAW
@given(stores_of_to_zarr(), OPTIONS)
def test_nczarr_and_zarr_engines_read_xarray_stores_identically(store, options):
    if store is None:
        return
    theirs, ours = opened(store, **options)
    if theirs is not None:
        assert ours is not None
        assert_alike(theirs, ours, store)


def as_json(attributes):
    return {
        name: value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        for name, value in attributes.items()
    }


@pytest.mark.filterwarnings("ignore")
@LAW
@given(netcdf_datasets())
def test_datasets_from_kerchunk_reference_sets_equal_those_from_netcdf4_engine(made):
    dataset, library = made
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/file.nc"
        try:
            dataset.to_netcdf(path, engine=library)
        except (ValueError, TypeError, OverflowError):
            return
        references = SingleHdf5ToZarr(path).translate()
        with xr.open_dataset(path, engine="netcdf4") as source:
            assert set(xr.open_dataset(references, engine="nczarr")) == set(source)
            for name, expected in source.variables.items():
                if references["refs"].get(f"{name}/0") == "0":
                    continue  # kerchunk also writes this for the byte "-"
                masks = None
                if expected.encoding.get("_FillValue") == 0:
                    masks = True  # zero may be HDF5's default, and is not masked
                elif not expected.dims and "_FillValue" not in expected.encoding:
                    masks = False  # for scalars, kerchunk copies netCDF's default fill value
                others = [other for other in source.variables if other != name]
                options = {"use_zarr_fill_value_as_mask": masks, "drop_variables": others}
                result = xr.open_dataset(references, engine="nczarr", **options).variables[name]
                assert same(dict(result.attrs), as_json(expected.attrs)), name
                assert_same_values(result, expected, name)
