"""Masking and scaling chunk by chunk returns the same bits as xarray's own decoding."""

import json
import warnings

import numpy as np
import xarray as xr
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.stores import array_document
from xr_nczarr.backend.decoding import Unpacking
from xr_nczarr.backend.lazy import LazyArray, SelectedArray
from xr_nczarr.errors import MetadataError

DTYPES = [
    f"{order}{kind}" for order in "<>" for kind in ("i1", "u1", "i2", "u2", "i4", "i8", "f4", "f8")
]
FLOATS = st.floats(-1e3, 1e3, allow_nan=False).map(lambda value: round(value, 3))


def numbers(dtype):
    if dtype.kind == "f":
        width = dtype.itemsize * 8
        return st.floats(width=width, allow_infinity=False) | st.just(np.nan)
    return st.integers(np.iinfo(dtype).min, np.iinfo(dtype).max)


@st.composite
def packed_variables(draw):
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    count = draw(st.integers(1, 7))
    values = draw(st.lists(numbers(dtype), min_size=count, max_size=count))
    stored = np.array(values, dtype)
    attributes = {}
    for name in ("_FillValue", "missing_value"):
        if draw(st.booleans()):
            fill = draw(st.sampled_from(values) | numbers(dtype))
            attributes[name] = np.array(fill, dtype.newbyteorder("="))[()]
    for name in ("scale_factor", "add_offset"):
        if draw(st.booleans()):
            attributes[name] = draw(st.sampled_from([np.float32, np.float64]))(draw(FLOATS))
    return stored, attributes


def as_store(stored, attributes):
    document = array_document(stored.shape, stored.dtype.str, chunks=[3])
    types = {name: value.dtype.str for name, value in attributes.items()}
    notes = {
        "_nczarr_array": {"dimension_references": ["/x"], "storage": "chunked"},
        "_nczarr_attr": {"types": types},
    }
    group = {"dimensions": {"x": stored.size}, "arrays": ["v"], "groups": []}
    store = {
        ".zgroup": json.dumps({"zarr_format": 2}),
        ".zattrs": json.dumps({"_nczarr_superblock": {"version": "2.0.0"}, "_nczarr_group": group}),
        "v/.zarray": json.dumps(document),
        "v/.zattrs": json.dumps({k: v.item() for k, v in attributes.items()} | notes),
    }
    for start in range(0, stored.size, 3):
        chunk = np.zeros(3, stored.dtype)
        chunk[: stored[start : start + 3].size] = stored[start : start + 3]
        store[f"v/{start // 3}"] = chunk.tobytes()
    return {key: data if isinstance(data, bytes) else data.encode() for key, data in store.items()}


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(packed_variables())
def test_packed_variables_are_decoded_to_same_bits_as_in_xarray(case):
    stored, attributes = case
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            raw = xr.Dataset({"v": ("x", stored, attributes)})
            expected = xr.decode_cf(raw)["v"]
        except (ValueError, OverflowError):
            return
        opened = xr.open_dataset(as_store(stored, attributes), engine="nczarr")["v"]
        assert opened.dtype == expected.dtype
        assert opened.values.tobytes() == expected.values.tobytes()
        assert opened.attrs.keys() == expected.attrs.keys()
        for name in ("_FillValue", "missing_value", "scale_factor", "add_offset"):
            np.testing.assert_equal(opened.encoding.get(name), expected.encoding.get(name))


def test_numbers_are_unpacked_during_chunk_decoding():
    attributes = {"scale_factor": np.float64(0.5), "_FillValue": np.int16(3)}
    store = as_store(np.arange(5, dtype="<i2"), attributes)
    data = xr.open_dataset(store, engine="nczarr").variables["v"]._data
    while not isinstance(data, LazyArray):
        data = data.source if isinstance(data, SelectedArray) else data.array
    assert data.convert == Unpacking((np.int16(3),), np.float64(0.5))


PIECES = [
    {"_FillValue": 3, "scale_factor": 0.5},
    {"scale_factor": 0.5},
    {"missing_value": 1},
    {"units": "days since 2000-01-01", "bounds": "v0"},
    {"units": "days since 2000-01-01"},
    {"units": "days"},
    {"units": "m", "long_name": "any"},
    {"coordinates": "v1 v2"},
    {"grid_mapping": "v1"},
    {"_Unsigned": "true"},
    {"dtype": "bool"},
    {"units": 3},
]


def lacks_values(variable):
    """Return whether loading fails because a boolean variable has missing values."""
    try:
        variable.load()
    except MetadataError:
        assert variable.dtype == bool
        return True
    return False


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(
        st.tuples(st.sampled_from("if"), st.sets(st.integers(0, len(PIECES) - 1), max_size=3))
    ),
    st.sampled_from(
        [{}, {"decode_coords": "all"}, {"mask_and_scale": False}, {"concat_characters": False}]
    ),
)
@example([("i", {2, 10}), ("i", {3}), ("i", {8, 9, 0}), ("i", {8, 9, 0})], {})
@example([("i", {8, 9, 0}), ("i", {8, 9, 0})], {"concat_characters": False})
def test_variables_decoded_together_equal_variables_decoded_separately(drawn, options):
    store = {".zgroup": b'{"zarr_format": 2}', ".zmetadata": b""}
    metadata = {".zgroup": {"zarr_format": 2}}
    for number, (kind, chosen) in enumerate(drawn):
        attributes = {"_ARRAY_DIMENSIONS": ["x"], "long_name": f"{number}"}
        for piece in sorted(chosen):
            attributes |= PIECES[piece]
        dtype = f"<{kind}4"
        document = array_document([3], dtype)
        metadata |= {f"v{number}/.zarray": document, f"v{number}/.zattrs": attributes}
        store[f"v{number}/0"] = np.arange(1, 4).astype(dtype).tobytes()
    store[".zmetadata"] = json.dumps({"zarr_consolidated_format": 1, "metadata": metadata}).encode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # An option for each variable prevents variables from being decoded together.
        separately = {**options, "concat_characters": {}}
        expected = xr.open_dataset(store, engine="nczarr", **separately)
        opened = xr.open_dataset(store, engine="nczarr", **options)
        assert [*opened.variables] == [*expected.variables]
        for name, variable in expected.variables.items():
            assert opened[name].dtype == variable.dtype
            assert repr(opened[name].encoding) == repr(variable.encoding)
            assert repr(opened[name].attrs) == repr(variable.attrs)
        missing = [name for name in expected.variables if lacks_values(expected.variables[name])]
        assert missing == [
            name for name in opened.variables if lacks_values(opened.variables[name])
        ]
        xr.testing.assert_identical(opened.drop_vars(missing), expected.drop_vars(missing))
