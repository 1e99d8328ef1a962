"""Plain Zarr is read as by xarray's engine zarr. Exceptions: docs/reference/engine-zarr.md."""

import json
import logging
import shutil
import subprocess
import warnings

import fsspec
import netCDF4
import numpy as np
import pytest
import xarray as xr
import zarr
from kerchunk.hdf import SingleHdf5ToZarr
from zarr.core.dtype import VariableLengthUTF8

import xr_nczarr
from tests.stores import array_document, put
from xr_nczarr import MetadataError, UnsupportedError
from xr_nczarr.backend.decoding import Unpacking
from xr_nczarr.backend.lazy import LazyArray, SelectedArray

PACKED = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 280.0, "_FillValue": np.int16(-32767)}
TEMPERATURE = xr.Dataset({"t": ("x", [280.01, np.nan, 280.03])})
HAS_GDAL = shutil.which("gdalmdimtranslate") is not None


def written(version, /, **members):
    """Write a store with zarr-python, in which the array ``v`` has the dimension ``x``.

    The member `data` contains the values. The default is [0, 1, 2].
    """
    store = zarr.storage.MemoryStore()
    data = members.pop("data", np.arange(3))
    members.setdefault("dtype", data.dtype)
    attributes = members.pop("attributes", {})
    if version == 2:
        attributes = {**attributes, "_ARRAY_DIMENSIONS": ["x"]}
    else:
        members["dimension_names"] = ["x"]
    group = zarr.create_group(store, zarr_format=version)
    array = group.create_array("v", shape=data.shape, attributes=attributes, **members)
    array[...] = data
    return store


def opened(store, engine="nczarr", **options):
    """Return the variable ``v`` as opened by an engine."""
    if engine == "zarr":
        return xr.open_dataset(store, engine="zarr", consolidated=False, **options).v.variable
    objects = {key: data.to_bytes() for key, data in store._store_dict.items()}
    return xr.open_dataset(objects, engine="nczarr", **options).v.variable


# ---- Missing values


def by_xarray(folder):
    path = folder / "a.zarr"
    TEMPERATURE.to_zarr(path, zarr_format=2, encoding={"t": PACKED}, consolidated=False)
    return path


def by_kerchunk(folder):
    TEMPERATURE.to_netcdf(folder / "a.nc", encoding={"t": PACKED})
    return SingleHdf5ToZarr(str(folder / "a.nc")).translate()


def by_gdal(folder):
    TEMPERATURE.to_netcdf(folder / "a.nc", encoding={"t": PACKED})
    command = ["gdalmdimtranslate", "-of", "Zarr", folder / "a.nc", folder / "g.zarr"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return folder / "g.zarr"


PRODUCERS = [
    by_xarray,
    by_kerchunk,
    pytest.param(by_gdal, marks=pytest.mark.skipif(not HAS_GDAL, reason="gdal-bin is missing")),
]


@pytest.mark.parametrize("produce", PRODUCERS)
def test_missing_packed_values_are_masked_regardless_of_writer(tmp_path, produce):
    dataset = xr.open_dataset(produce(tmp_path), engine="nczarr").t
    np.testing.assert_allclose(dataset, TEMPERATURE.t, atol=1e-4)
    assert dataset.encoding["_FillValue"] == -32767
    again = {}
    xr_nczarr.to_nczarr(dataset.to_dataset(), again)
    np.testing.assert_array_equal(xr.open_dataset(again, engine="nczarr").t, dataset)


def test_masked_zeros_in_uint8_array_stay_masked_after_rewriting(tmp_path):
    image = xr.Dataset({"b": ("x", [1.0, np.nan, 3.0])})
    encoding = {"b": {"dtype": "u1", "_FillValue": np.uint8(0)}}
    image.to_zarr(tmp_path / "a", zarr_format=2, encoding=encoding)
    for dialect in ("zarr", "nczarr"):
        source = xr.open_dataset(tmp_path / "a", engine="nczarr")
        xr_nczarr.to_nczarr(source, tmp_path / dialect, dialect=dialect)
        xr.testing.assert_identical(xr.open_dataset(tmp_path / dialect, engine="nczarr"), image)


def lazy_array(variable):
    data = variable._data
    while not isinstance(data, LazyArray):
        data = data.source if isinstance(data, SelectedArray) else data.array
    return data


FUSED = [
    ({}, Unpacking((np.int16(7),)), "f4"),
    ({"scale_factor": 0.5}, Unpacking((np.int16(7),), 0.5), "f8"),
    ({"scale_factor": 2, "add_offset": 1}, Unpacking((np.int16(7),), 2.0, 1), "f8"),
    ({"scale_factor": None}, Unpacking((np.int16(7),)), "f4"),
    ({"missing_value": [1]}, Unpacking((np.int16(7), np.int64(1))), "f4"),
]


@pytest.mark.filterwarnings("ignore:.*multiple fill values")
@pytest.mark.parametrize(("attributes", "unpacking", "dtype"), FUSED)
def test_fill_values_are_masked_during_chunk_decoding(attributes, unpacking, dtype):
    array = lazy_array(
        opened(written(2, data=np.arange(3, dtype="i2"), fill_value=7, attributes=attributes))
    )
    assert (array.convert, array.dtype) == (unpacking, np.dtype(dtype))


def zeros(path):
    """Write zeros as numbers, as text, and in an array with a declared fill value."""
    numbers = array_document((2,), "<i2", fill_value=0)
    documents = {
        ".zgroup": {"zarr_format": 2},
        "a/.zarray": numbers,
        "b/.zarray": numbers,
        "declared/.zarray": array_document((2,), "<i2", fill_value=1),
        "text/.zarray": array_document((2,), "|S1", fill_value="IA=="),
    }
    references = {key: json.dumps(value) for key, value in documents.items()}
    names = [key.partition("/")[0] for key in documents if "/" in key]
    references |= {f"{name}/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}' for name in names}
    references |= {f"{name}/0": "\0\0\1\0" for name in names} | {"text/0": " a"}
    path.write_text(json.dumps(references))
    return path


def test_unmasked_zero_fill_value_is_logged_once(tmp_path, caplog):
    path = zeros(tmp_path / "refs.json")
    with caplog.at_level(logging.INFO, logger="xr_nczarr"):
        dataset = xr.open_dataset(path, engine="nczarr")
    assert dataset.a.dtype == "int16"
    assert dataset.a.values.tolist() == [0, 1]
    assert dataset.text.values.tolist() == [b" ", b"a"]
    np.testing.assert_array_equal(dataset.declared, [0, np.nan])
    (record,) = caplog.records
    assert record.name == "xr_nczarr.dataset"
    assert "the fill_value 0 of /a, /b is not treated as missing data" in record.getMessage()
    assert "use_zarr_fill_value_as_mask" in record.getMessage()


def test_zero_fill_value_is_not_masked_in_any_reference_set(tmp_path):
    path = zeros(tmp_path / "refs.json")
    references = json.loads(path.read_text())
    options = {"storage_options": {"fo": references}}
    mapper = fsspec.get_mapper("reference://", fo=references)
    for target, more in ((references, {}), ("reference://", options), (mapper, {})):
        assert xr.open_dataset(target, engine="nczarr", **more).a.dtype == "int16"


@pytest.mark.parametrize(("masks", "expected"), [(True, [np.nan, 1]), (False, [0, 1])])
def test_zeros_in_reference_set_are_masked_only_on_request(tmp_path, caplog, masks, expected):
    path = zeros(tmp_path / "refs.json")
    options = {"use_zarr_fill_value_as_mask": masks}
    dataset = xr.open_dataset(path, engine="nczarr", **options)
    np.testing.assert_array_equal(dataset.a, expected)
    assert not caplog.records


@pytest.mark.parametrize("version", [2, 3])
def test_fill_value_attribute_is_converted_to_array_dtype_before_comparison(version):
    data = np.array([1, 2, 1e20], "f4")
    store = written(version, data=data, fill_value=1, attributes={"_FillValue": 1e20})
    dataset = opened(store)
    np.testing.assert_array_equal(dataset, [1, 2, np.nan])
    assert dataset.encoding["_FillValue"] == np.float32(1e20)
    store = written(version, data=data, fill_value=None, attributes={"_FillValue": [1e20]})
    np.testing.assert_array_equal(opened(store), [1, 2, np.nan])


def test_base64_fill_value_attribute_is_decoded_in_v2():
    text = "AAAAAAAA+H8="  # NaN, as xarray and VirtualiZarr write it
    store = written(
        2, data=np.array([1.0, np.nan]), fill_value=None, attributes={"_FillValue": text}
    )
    assert np.isnan(opened(store).encoding["_FillValue"])


@pytest.mark.parametrize("version", [2, 3])
def test_unsigned_fill_value_outside_signed_range_is_masked(version):
    attributes = {"_FillValue": 255, "_Unsigned": "false"}
    fill = None if version == 2 else 0
    store = written(version, data=np.array([1, 255], "u1"), fill_value=fill, attributes=attributes)
    np.testing.assert_array_equal(opened(store), [1, np.nan])


def test_big_endian_unsigned_fill_value_is_masked():
    data = np.array([1, -32767], ">i2")
    store = written(2, data=data, fill_value=-32767, attributes={"_Unsigned": "true"})
    np.testing.assert_array_equal(opened(store), [1, np.nan])


@pytest.mark.parametrize("fill", [np.datetime64(0, "ns"), np.datetime64("NaT", "ns")])
def test_datetime_fill_value_is_kept_as_attribute_and_not_masked(fill):
    store = written(2, data=np.array([0, 1], "M8[ns]"), fill_value=fill)
    dataset, expected = opened(store), opened(store, "zarr")
    assert dataset.attrs.keys() == expected.attrs.keys() == {"_FillValue"}
    np.testing.assert_equal(dataset.attrs["_FillValue"], fill)
    np.testing.assert_array_equal(dataset, expected)
    objects = {key: data.to_bytes() for key, data in store._store_dict.items()}
    for dialect in ("zarr", "nczarr"):
        again, copied = {}, {}
        xr_nczarr.to_nczarr(xr.Dataset({"v": dataset}), again, dialect=dialect)
        xr_nczarr.copy(objects, copied, dialect=dialect)
        for target in (again, copied):
            np.testing.assert_array_equal(xr.open_dataset(target, engine="nczarr").v, expected)


@pytest.mark.parametrize("dtype", ["V3", "i2,f4"])
def test_arrays_that_xarray_cannot_mask_are_opened_unmasked(dtype):
    data = np.zeros(2, dtype)
    dataset = opened(written(2, data=data, fill_value=data[0]))
    assert "_FillValue" not in dataset.attrs | dataset.encoding
    assert dataset.values.tobytes() == data.tobytes()


@pytest.mark.parametrize("version", [2, 3])
def test_loading_booleans_with_missing_values_raises_metadata_error(version):
    attributes = {"dtype": "bool", "_FillValue": 0}
    dataset = opened(written(version, data=np.array([0, 1], "i1"), attributes=attributes))
    assert dataset.dtype == bool
    with pytest.raises(MetadataError, match="missing value"):
        dataset.load()


def test_v3_fill_values_are_masked_only_on_request():
    store = written(3, data=np.arange(3), fill_value=1)
    assert opened(store).dtype == "int64"
    masked = opened(store, use_zarr_fill_value_as_mask=True)
    np.testing.assert_array_equal(masked, [0, np.nan, 2])


# ---- Numbers


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    ("data", "scale"),
    [
        (np.array([2**40, 7]), 1),
        (np.array([4_000_000_000, 7], "u4"), 1),
        (np.array([300_000_000, 7], "i4"), 10),
    ],
    ids=["int64", "uint32", "int32"],
)
def test_scaling_by_integer_does_not_overflow_stored_dtype(version, data, scale):
    fill = None if version == 2 else 0
    store = written(version, data=data, fill_value=fill, attributes={"scale_factor": scale})
    dataset = opened(store)
    assert dataset.values.tolist() == [number * scale for number in data.tolist()]
    assert dataset.dtype == opened(store, "zarr").dtype == "int64"


def test_scaling_does_not_overflow_dtype_of_scale_factor():
    store = {}
    raw = xr.Dataset({"v": ("x", np.array([2**40, 7]), {"scale_factor": np.int32(1)})})
    xr_nczarr.to_nczarr(raw, store)
    assert xr.open_dataset(store, engine="nczarr").v.values.tolist() == [2**40, 7]
    dataset = xr.open_dataset(store, engine="nczarr", decode_cf=False).v.attrs["scale_factor"]
    assert (dataset, dataset.dtype) == (1, "int32")


@pytest.mark.parametrize("version", [2, 3])
def test_missing_values_with_integer_scale_factor_become_nan(version):
    attributes = {"scale_factor": 10} | ({"_FillValue": 1} if version == 3 else {})
    store = written(version, data=np.arange(3, dtype="i2"), fill_value=1, attributes=attributes)
    # xarray 2025 only warns, and continues with the integer to which NaN was cast.
    reasons = "cannot convert float NaN to integer|invalid value encountered in cast"
    with pytest.raises((ValueError, RuntimeWarning), match=reasons):
        opened(store, "zarr").load()
    np.testing.assert_array_equal(opened(store), [0, np.nan, 20])


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(
    "attributes",
    [
        {"scale_factor": None},
        {"add_offset": None, "scale_factor": 0.5},
        {"calendar": None, "units": "days since 2000-01-01"},
        {"units": None},
        {"missing_value": None},
    ],
    ids=lambda attributes: "-".join(attributes),
)
def test_null_cf_attributes_have_same_effect_as_with_engine_zarr(version, attributes):
    fill = None if version == 2 else 0
    store = written(version, data=np.arange(2.0), fill_value=fill, attributes=attributes)
    xr.testing.assert_identical(
        opened(store).drop_encoding(), opened(store, "zarr").drop_encoding()
    )


@pytest.mark.parametrize("decoding", [{}, {"mask_and_scale": False}], ids=["masked", "unmasked"])
@pytest.mark.parametrize("fill", [None, 0])
@pytest.mark.parametrize("dtype", ["f8", "i2", "U1", "S1"])
def test_null_fill_value_attribute_does_not_replace_zarr_fill_value(dtype, fill, decoding):
    attributes = {"_FillValue": None}
    fill = {"U1": "", "S1": b""}.get(dtype, fill) if fill == 0 else fill
    data = np.arange(2).astype(dtype)
    store = written(2, data=data, fill_value=fill, attributes=attributes)
    expected = opened(store, "zarr", **decoding)
    xr.testing.assert_identical(opened(store, **decoding), expected)


# ---- Attributes

JSON = {
    "multiscales": [{"axes": [{"name": "y"}]}],
    "_CRS": {"wkt": "PROJCRS[...]", "projjson": {"id": None}},
    "none": None,
    "flag": True,
    "flags": [True, False],
    "one": [5],
    "names": ["a"],
    "empty": [],
    "mixed": [1, "a", None],
    "large": 2**70,
    "number": 5,
    "ratio": 0.1,
    "text": "é",
}


@pytest.mark.parametrize("version", [2, 3])
def test_plain_zarr_json_attributes_survive_every_kind_of_rewrite(tmp_path, version):
    variable = xr.Variable("x", [1, 2], JSON)
    first = tmp_path / "first"
    xr.Dataset({"v": variable}, attrs=JSON).to_zarr(first, zarr_format=version, consolidated=False)
    dataset = xr.open_dataset(first, engine="nczarr")
    assert json.dumps(dataset.attrs) == json.dumps(dataset.v.attrs) == json.dumps(JSON)
    assert list(map(type, dataset.attrs.values())) == list(map(type, JSON.values()))
    targets = [tmp_path / name for name in ("nczarr", "copy", "zarr")]
    xr_nczarr.to_nczarr(dataset, targets[0], dialect="zarr", zarr_format=version)
    xr_nczarr.copy(first, targets[1], dialect="zarr", zarr_format=version)
    dataset.to_zarr(targets[2], zarr_format=version, consolidated=False)
    for target in targets:
        group = zarr.open_group(target, mode="r", use_consolidated=False)
        assert json.dumps(dict(group.attrs)) == json.dumps(JSON)
        stored = {key: value for key, value in group["v"].attrs.items() if key in JSON}
        assert json.dumps(stored) == json.dumps(JSON)


def test_copied_json_attributes_get_types_inferred_by_netcdf_c(tmp_path):
    attributes = {"small": 5, "large": 2**40, "several": [1, 2], "deep": {"a": [1]}, "none": None}
    plain = put(tmp_path / "plain", {".zgroup": {"zarr_format": 2}, ".zattrs": attributes})
    xr_nczarr.copy(plain, tmp_path / "copy")
    with netCDF4.Dataset(f"file://{tmp_path}/copy#mode=nczarr,file") as dataset:
        types = {name: np.asarray(dataset.getncattr(name)).dtype.name for name in attributes}
        assert types["small"] == types["several"] == "int32"
        assert types["large"] == "int64"
        assert (json.loads(dataset.deep), dataset.none) == ({"a": [1]}, "null")
    xr_nczarr.upgrade(plain, annotate=True)
    assert xr.open_dataset(plain, engine="nczarr").attrs["small"].dtype == "int32"


def test_dump_shows_json_attributes_as_netcdf_c_reads_them(tmp_path):
    attributes = {"n": 5, "deep": {"a": 1}, "several": [1, 2], "none": None}
    plain = put(tmp_path / "plain", {".zgroup": {"zarr_format": 2}, ".zattrs": attributes})
    text = str(xr_nczarr.dump(plain))
    for line in (":n = 5 ;", r':deep = "{\"a\": 1}" ;', ":several = 1, 2 ;", ':none = "null" ;'):
        assert line in text


def test_array_added_by_zarr_python_keeps_json_attributes(tmp_path):
    xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", [1, 2])}, attrs={"n": np.int16(1)}), tmp_path / "s")
    group = zarr.open_group(tmp_path / "s", mode="r+", use_consolidated=False)
    attributes = {"_ARRAY_DIMENSIONS": ["x"], "deep": {"a": 1}}
    group.create_array("new", shape=(2,), dtype="i4", fill_value=None, attributes=attributes)
    listed = dict(group.attrs["_nczarr_group"])
    group.attrs["_nczarr_group"] = listed | {"arrays": ["v", "new"]}
    dataset = xr.open_dataset(tmp_path / "s", engine="nczarr", consolidated=False)
    assert dataset.new.attrs == {"deep": {"a": 1}}
    assert type(dataset.attrs["n"]) is np.int16


@pytest.mark.parametrize("version", [2, 3])
def test_only_reserved_attributes_are_hidden(version):
    attributes = {"_nc_mine": 1, "_ARRAY_DIMENSIONS": ["x"], "_NCProperties": "x", "a": 1}
    assert opened(written(version, attributes=attributes), decode_cf=False).attrs.keys() - {
        "_FillValue"
    } == {"_nc_mine", "a"}


# ---- Types, encoding, order


def test_variable_length_strings_have_object_dtype():
    data = np.array(["a", "", "bc"], object)
    for version in (2, 3):
        fill = None if version == 2 else ""
        store = written(version, data=data, dtype=VariableLengthUTF8(), fill_value=fill)
        result = opened(store)
        assert result.dtype == object
        assert result.values.tolist() == ["a", "", "bc"]
        dataset = xr.Dataset({"v": result}).where(np.array([True, False, True]))
        assert dataset.v.isnull().values.tolist() == [False, True, False]


@pytest.mark.filterwarnings("ignore:The data type")
def test_datetimes_with_unit_multiplier_are_converted_to_base_unit():
    data = np.array([0, 1], "M8[10s]")
    dataset = opened(written(3, data=data, fill_value=np.datetime64("NaT", "s")))
    assert dataset.dtype == "M8[s]"
    np.testing.assert_array_equal(dataset, data)


# The last time was once read as a time in the year 1816.
@pytest.mark.filterwarnings("ignore:The data type")
@pytest.mark.parametrize("selection", [slice(None), 2], ids=["all", "scalar"])
def test_datetimes_that_overflow_in_base_unit_raise_error(selection):
    data = np.array([0, 1, 253402300799 * 10**7]).view("M8[100ns]")  # the end of the year 9999
    variable = opened(written(3, data=data, fill_value=np.datetime64("NaT", "s")))
    np.testing.assert_array_equal(variable[:2], data[:2])
    with pytest.raises(UnsupportedError, match=r"2534\d+ of dtype datetime64\[100ns\]"):
        variable[selection].load()


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("dtype", [">M8[ns]", ">m8[s]"])
def test_big_endian_times_are_returned_in_native_byte_order(version, dtype):
    data = np.array([0, 1, 256]).astype(dtype)
    serializer = {"serializer": zarr.codecs.BytesCodec(endian="big")} if version == 3 else {}
    result = opened(written(version, data=data, **serializer))
    assert result.dtype == result.values.dtype == np.dtype(dtype).newbyteorder("=")
    np.testing.assert_array_equal(result, data)
    objects = {}
    xr_nczarr.to_nczarr(xr.Dataset({"v": result}), objects, zarr_format=2, dialect="zarr")
    assert json.loads(objects["v/.zarray"])["dtype"][0] == ">"


def test_encoding_of_scalar_has_empty_chunks_and_shape():
    for version in (2, 3):
        store = zarr.storage.MemoryStore()
        xr.Dataset({"v": ((), 1.5)}).to_zarr(store, zarr_format=version, consolidated=False)
        for engine in ("nczarr", "zarr"):
            encoding = opened(store, engine).encoding
            result = {key: encoding[key] for key in ("chunks", "preferred_chunks", "shards")}
            assert result == {"chunks": (), "preferred_chunks": {}, "shards": None}
    objects = {}
    xr_nczarr.to_nczarr(xr.Dataset({"v": ((), 1.5)}), objects)
    encoding = xr.open_dataset(objects, engine="nczarr").v.encoding
    assert (encoding["chunks"], encoding["original_shape"]) == ((), ())


def test_dask_blocks_of_sharded_array_match_shards():
    store = written(3, data=np.arange(8), chunks=(2,), shards=(4,))
    objects = {key: data.to_bytes() for key, data in store._store_dict.items()}
    dataset = xr.open_dataset(objects, engine="nczarr", chunks={}).v
    assert dataset.chunks == ((4, 4),)
    assert (dataset.encoding["chunks"], dataset.encoding["shards"]) == ((2,), (4,))
    with pytest.warns(UserWarning, match="separate the stored chunks"):
        assert xr.open_dataset(objects, engine="nczarr", chunks={"x": 2}).v.chunks == ((2,) * 4,)


def test_dtype_in_encoding_has_byte_order_of_stored_values():
    dataset = opened(written(2, data=np.arange(3, dtype=">i4"), fill_value=None))
    assert dataset.dtype == np.dtype("=i4")
    assert dataset.encoding["dtype"] == np.dtype(">i4")


# xarray's netcdf4 engine rejects the key `endian` if the encoded values have native byte order, and
# xarray encodes integers without dimensions in native byte order.
BIG_ENDIAN = {
    "integer": (">i4", {}),
    "packed": (">i2", {"scale_factor": 0.5, "_FillValue": 7}),
    "date": (">i4", {"units": "days since 2000-01-01"}),
    "text": (">U3", {}),
    "time": (">m8[s]", {}),
}


@pytest.mark.parametrize("selection", [slice(None), 0], ids=["array", "scalar"])
@pytest.mark.parametrize(("dtype", "attributes"), BIG_ENDIAN.values(), ids=BIG_ENDIAN)
def test_big_endian_variables_can_be_written_by_netcdf4_engine(
    tmp_path, dtype, attributes, selection
):
    data = np.array([1, 2, 3]).astype(dtype)
    store = written(2, data=data, fill_value=None, attributes=attributes)
    variable = opened(store, decode_timedelta=True)[selection]
    xr.Dataset({"v": variable}).to_netcdf(tmp_path / "copy.nc", engine="netcdf4")
    with xr.open_dataset(tmp_path / "copy.nc", decode_timedelta=True) as copy:
        np.testing.assert_array_equal(copy.v, variable)


ORDER = ["z", "c", "lat", "a"]


@pytest.mark.parametrize("version", [2, 3])
def test_variables_have_same_order_as_in_consolidated_metadata(version):
    store = zarr.storage.MemoryStore()
    dataset = xr.Dataset({name: ("x", [1, 2]) for name in ORDER}).set_coords("lat")
    xr_nczarr.to_nczarr(
        dataset, objects := {}, dialect="zarr", zarr_format=version, consolidated=True
    )
    result = xr.open_dataset(objects, engine="nczarr")
    assert list(result.variables) == ["z", "c", "a", "lat"]  # xarray writes coordinates last
    store._store_dict = {
        key: zarr.core.buffer.cpu.Buffer.from_bytes(data) for key, data in objects.items()
    }
    assert list(xr.open_dataset(store, engine="zarr").variables) == list(result.variables)


def test_variables_are_sorted_by_name_if_store_has_no_consolidated_metadata(tmp_path):
    dataset = xr.Dataset({name: ("x", [1, 2]) for name in ORDER})
    dataset.to_zarr(tmp_path / "a", zarr_format=2, consolidated=False)
    assert list(xr.open_dataset(tmp_path / "a", engine="nczarr").variables) == sorted(ORDER)


@pytest.mark.parametrize("name", ["", "..", "lat/lon", "/"])
def test_dimensions_with_arbitrary_names_are_read(tmp_path, name):
    dataset = xr.Dataset({"v": ((name, "x"), [[1, 2]])})
    for version in (2, 3):
        dataset.to_zarr(tmp_path / f"{version}", zarr_format=version, consolidated=False)
        result = xr.open_dataset(tmp_path / f"{version}", engine="nczarr")
        xr.testing.assert_identical(result, dataset)


def test_plain_zarr_strings_and_scalars_from_netcdf_c_are_read(tmp_path):
    url = f"file://{tmp_path}/a#mode=zarr,file"
    with netCDF4.Dataset(url, "w") as dataset:
        dataset.createDimension("x", 2)
        dataset.createVariable("s", str, ("x",))[:] = np.array(["a", "é"], object)
        dataset.createVariable("n", "f4", ())[...] = 3.5
    result = xr.open_dataset(tmp_path / "a", engine="nczarr")
    assert result.s.values.tolist() == ["a", "é"]
    assert (result.n.dims, result.n.item()) == ((), 3.5)


# ---- NCZarr


def store_of_swapped_numbers(path):
    """Write a store whose big-endian arrays contain little-endian numbers, as netcdf-c did."""
    data = np.arange(3, dtype="<i4")
    note = {"_NCZARR_ARRAY": {"dimrefs": ["/x"], "storage": "chunked"}}
    group = {"dims": {"x": 3}, "vars": ["v", "w"], "groups": []}
    names = {".zgroup": {"zarr_format": 2, "_NCZARR_SUPERBLOCK": {}, "_NCZARR_GROUP": group}}
    for name in "vw":
        names |= {f"{name}/.zarray": array_document((3,), ">i4") | note, f"{name}/.zattrs": {}}
        names[f"{name}/0"] = data.tobytes()
    return put(path, names)


def test_big_endian_numbers_in_old_layout_cause_one_warning(tmp_path):
    store = store_of_swapped_numbers(tmp_path / "s")
    with pytest.warns(UserWarning, match="declared as big-endian .*/v, /w.*assume_endian") as seen:
        wrong = xr.open_dataset(store, engine="nczarr").v
    assert len(seen) == 1
    assert wrong[1] == 1 << 24
    with warnings.catch_warnings(action="error"):
        dataset = xr.open_dataset(store, engine="nczarr", assume_endian="little").v
    assert dataset.values.tolist() == [0, 1, 2]


@pytest.mark.parametrize("target", ["t.nczarr", "t.nc"])
def test_copy_corrects_byte_order_if_assume_endian_is_passed(tmp_path, target):
    source, target = store_of_swapped_numbers(tmp_path / "s"), str(tmp_path / target)
    with warnings.catch_warnings(action="error"):
        xr_nczarr.copy(source, target, assume_endian="little")
        assert xr_nczarr.diff(source, target, assume_endian="little").whole
    engine = "netcdf4" if target.endswith(".nc") else "nczarr"
    with xr.open_dataset(target, engine=engine) as dataset:
        assert dataset.v.values.tolist() == dataset.w.values.tolist() == [0, 1, 2]


def test_big_endian_numbers_in_newest_layout_cause_no_warning():
    store = {}
    encoding = {"v": {"endian": "big"}}
    xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", [1, 2])}), store, encoding=encoding)
    with warnings.catch_warnings(action="error"):
        assert xr.open_dataset(store, engine="nczarr").v.values.tolist() == [1, 2]
