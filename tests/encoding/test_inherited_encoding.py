"""Encodings inherited from opened variables, and attributes and strings that cannot be stored."""

import zlib

import dask.array as da
import netCDF4
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from packaging.version import Version

import xr_nczarr
from tests.stores import array_document, put
from xr_nczarr import ConflictError, UnsupportedError

NUMBERS = xr.Dataset({"v": (("y", "x"), np.arange(48).reshape(6, 8))})


def opened(store, **options):
    return xr.open_dataset(store, engine="nczarr", **options)


def copied(source, **changes):
    """Write an opened variable with a changed encoding, and return the new chunks."""
    target = {}
    source = source.copy()
    source.v.encoding |= changes
    xr_nczarr.to_nczarr(source, target)
    return opened(target).v.encoding["chunks"]


def test_chunk_shape_set_by_user_takes_precedence_over_inherited_chunk_shape():
    store = {}
    xr_nczarr.to_nczarr(NUMBERS, store, encoding={"v": {"chunksizes": (2, 4)}})
    source = opened(store)
    assert copied(source) == (2, 4)
    assert copied(source, chunksizes=(3, 2)) == (3, 2)
    assert copied(source, chunks=(3, 8)) == (3, 8)
    assert copied(source.isel(x=slice(3)).drop_encoding()) == (6, 3)


def test_chunks_can_be_edited_in_copied_encoding(tmp_path):
    xr_nczarr.to_nczarr(NUMBERS, tmp_path / "a", encoding={"v": {"chunksizes": (2, 4)}})
    with xr.open_dataset(tmp_path / "a", engine="nczarr") as source:
        for key in ("chunks", "chunksizes"):
            encoding = {"v": {**source.v.encoding, key: (3, 2)}}
            xr_nczarr.to_nczarr(source, tmp_path / key, encoding=encoding)
            copy = xr.open_dataset(tmp_path / key, engine="nczarr")
            assert copy.v.encoding["chunks"] == (3, 2)


OPERATIONS = {
    "opened": (lambda ds: ds, (24, 20, 30), (24, 20, 30)),
    "isel": (lambda ds: ds.isel(time=slice(5, 15)), (24, 20, 30), (24, 20, 30)),
    "isel of one": (lambda ds: ds.isel(time=[7]), (24, 20, 30), (24, 20, 30)),
    "sel": (lambda ds: ds.sel(time="2000-01-02"), (24, 20, 30), (24, 20, 30)),
    "concat": (
        lambda ds: xr.concat([ds, ds.assign_coords(time=ds.time + np.timedelta64(2, "D"))], "time"),
        (24, 20, 30),
        (24, 20, 30),
    ),
    "coarsen": (lambda ds: ds.coarsen(time=4, coord_func="min").mean(), (24, 20, 30), (24, 20, 30)),
    "rename": (lambda ds: ds.rename(time="hour", lat="y"), (24, 20, 30), (24, 20, 30)),
    # `to_zarr` keeps the axis order of the source, and pads chunks of fixed dimensions.
    "transpose": (lambda ds: ds.transpose("lon", "time", "lat"), (30, 24, 20), (24, 20, 30)),
    "rename and transpose": (
        lambda ds: ds.rename(lat="y").transpose("lon", "time", "y"),
        (30, 24, 20),
        (24, 20, 30),
    ),
    "region": (lambda ds: ds.isel(lat=slice(3, 10)), (24, 7, 30), (24, 20, 30)),
    "other rank": (lambda ds: ds.isel(lon=3), (48, 20), (48, 20)),
}
STEPS = xr.Dataset(
    {"t": (("time", "lat", "lon"), np.arange(48 * 600, dtype="f4").reshape(48, 20, 30))},
    {
        "time": xr.date_range("2000-01-01", periods=48, freq="h"),
        "lat": np.arange(20.0),
        "lon": np.arange(30.0),
    },
)


@pytest.fixture(
    scope="module", params=["nczarr", "nczarr of to_zarr", "zarr", "netcdf4", "nczarr in shards"]
)
def steps(request, tmp_path_factory):
    """Return a function that opens a source with chunks of (24, 20, 30) by some engine."""
    path = tmp_path_factory.mktemp("steps") / "source"
    encoding = {"t": {"chunks": (24, 20, 30)}}
    if request.param == "netcdf4":
        STEPS.to_netcdf(path, encoding={"t": {"chunksizes": (24, 20, 30)}})
    elif request.param == "nczarr":
        xr_nczarr.to_nczarr(STEPS, path, encoding=encoding)
    elif request.param == "nczarr in shards":
        encoding["t"]["shards"] = (48, 20, 60)
        xr_nczarr.to_nczarr(STEPS, path, encoding=encoding, zarr_format=3)
    else:
        STEPS.to_zarr(path, zarr_format=2, encoding=encoding)
    engine = request.param.partition(" ")[0]
    return lambda **options: xr.open_dataset(path, engine=engine, **options)


@pytest.mark.parametrize("blocks", [None, {}, {"time": 5}], ids=["lazy", "stored", "others"])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_derived_variables_inherit_source_chunks(steps, operation, blocks, tmp_path):
    function, expected, _ = OPERATIONS[operation]
    with steps(chunks=None if blocks is None else {}) as source:
        made = function(source.chunk(blocks) if blocks else source)
        if operation == "other rank" and blocks is not None:
            expected = made.t.data.chunksize
        xr_nczarr.to_nczarr(made, tmp_path / "a")
        dataset = opened(tmp_path / "a")
        assert dataset.t.encoding["chunks"] == expected
        xr.testing.assert_equal(dataset.load(), made.load())


@pytest.mark.parametrize("operation", OPERATIONS)
def test_xarray_keeps_chunks_of_derived_variables_in_zarr_stores(operation, tmp_path):
    function, _, by_zarr = OPERATIONS[operation]
    STEPS.to_zarr(tmp_path / "a", zarr_format=2, encoding={"t": {"chunks": (24, 20, 30)}})
    with xr.open_dataset(tmp_path / "a", engine="zarr", chunks=None) as source:
        function(source).to_zarr(tmp_path / "b", zarr_format=2)
    assert zarr.open_array(tmp_path / "b" / "t", mode="r").chunks == by_zarr


@pytest.mark.parametrize(
    "grown",
    [True, False],
    ids=["append_dim in the first write", "no append_dim in the first write"],
)
@pytest.mark.parametrize("blocks", [None, {}], ids=["lazy", "stored"])
def test_repeated_appends_keep_source_chunk_sizes(steps, blocks, grown, tmp_path):
    with steps(chunks=blocks) as source:
        version = 3 if "shards" in source.t.encoding else 2
        for number in range(48):
            along = {"append_dim": "time"} if number or grown else {}
            step = source.isel(time=[number])
            xr_nczarr.to_nczarr(step, tmp_path / "a", zarr_format=version, **along)
        dataset = opened(tmp_path / "a")
        assert dataset.t.encoding["chunks"] == (24, 20, 30)
        assert dataset.t.encoding.get("shards") == source.t.encoding.get("shards")
        assert dataset.time.encoding["chunks"] >= (48,)
        xr.testing.assert_equal(dataset.load(), source.load())


@pytest.mark.parametrize(
    ("leftover", "expected"),
    [
        ({"chunks": (24, 20, 30)}, (24, 20, 30)),  # matched by position
        ({"chunks": (24, 20, 30), "original_shape": (48, 20, 30)}, None),
        ({"chunks": ((24, 24), (20,), (30,))}, None),
        ({"chunks": 10}, (10, 10, 10)),
        ({"contiguous": True, "original_shape": (1, 20, 30)}, None),
    ],
    ids=["no names", "no names, but another shape", "a rectilinear grid", "one number", "a slice"],
)
def test_inherited_chunks_that_do_not_match_dimensions_are_dropped(leftover, expected):
    made, store = STEPS.transpose("lon", "time", "lat").chunk(time=24), {}
    made.t.encoding = leftover
    xr_nczarr.to_nczarr(made, store, unlimited_dims=["time", "lat", "lon"])
    assert opened(store).t.encoding["chunks"] == (expected or (30, 24, 20))


def test_inherited_chunk_larger_than_dimension_is_kept():
    source, target = {}, {}
    xr_nczarr.to_nczarr(NUMBERS, source, encoding={"v": {"chunks": (10, 10)}})
    xr_nczarr.to_nczarr(opened(source), target)
    assert opened(target).v.encoding["chunks"] == (10, 10)
    assert source["v/0.0"] == target["v/0.0"]


@pytest.mark.parametrize(
    ("leftover", "level", "message"),
    [
        ({"chunks": (24, 20, 30)}, "DEBUG", "/t: chunks (24, 20, 30)"),
        (
            {"chunks": (60, 60, 60)},
            "INFO",
            "/t: chunks (60, 60, 60) inherited from the source were adjusted: chunks (60, 20, 30)",
        ),
        (
            {"chunks": (24, 20)},
            "INFO",
            "/t: chunks (24, 20) inherited from the source do not have 3 dimensions: "
            "chunks (48, 20, 30)",
        ),
    ],
)
def test_chosen_chunk_sizes_are_logged_with_reason(caplog, leftover, level, message):
    made, store = STEPS.copy(), {}
    made.t.encoding = leftover
    with caplog.at_level("DEBUG", "xr_nczarr"):
        xr_nczarr.to_nczarr(made, store)
    assert ("xr_nczarr.writing.builder", level, message) in [
        (record.name, record.levelname, record.getMessage()) for record in caplog.records
    ]
    chunks = message.rpartition("chunks ")[2].strip("()").replace(", ", "×")
    assert chunks in str(xr_nczarr.explain(store))


def test_xarray_writers_accept_inherited_chunks(tmp_path):
    xr_nczarr.to_nczarr(NUMBERS, tmp_path / "a", encoding={"v": {"chunksizes": (2, 4)}})
    with opened(tmp_path / "a") as source:
        source.to_zarr(tmp_path / "b", zarr_format=2)
        source.to_netcdf(tmp_path / "c.nc", engine="netcdf4")
    assert zarr.open_array(tmp_path / "b" / "v", mode="r").chunks == (2, 4)


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf"])
@pytest.mark.parametrize(
    ("zarr_format", "codec"),
    [
        (2, numcodecs.Blosc()),
        (2, numcodecs.Zlib(-1)),
        (2, numcodecs.BZ2(1)),
        (3, zarr.codecs.BloscCodec()),
        (3, zarr.codecs.ZstdCodec()),
        (3, zarr.codecs.GzipCodec(level=3)),
    ],
)
def test_to_netcdf_accepts_encoding_with_any_codec(tmp_path, zarr_format, codec, engine):
    # The engines reject the flags of Blosc and of codecs that a build of HDF5 lacks.
    NUMBERS.to_zarr(
        tmp_path / "a",
        zarr_format=zarr_format,
        consolidated=False,
        encoding={"v": {"compressors": codec}},
    )
    with opened(tmp_path / "a") as source:
        source.to_netcdf(tmp_path / "b.nc", engine=engine)
    with xr.open_dataset(tmp_path / "b.nc", engine=engine) as dataset:
        xr.testing.assert_identical(dataset, NUMBERS)
        assert bool(dataset.v.encoding.get("zlib")) == source.v.encoding["zlib"]
    if codec == numcodecs.Zlib(-1):
        with pytest.warns(UserWarning, match="codecs inherited from the source were dropped"):
            xr_nczarr.to_nczarr(source, tmp_path / "c", zarr_format=zarr_format)
    else:
        xr_nczarr.to_nczarr(source, tmp_path / "c", zarr_format=zarr_format)
        assert opened(tmp_path / "c").v.encoding["codecs"] == source.v.encoding["codecs"]


def test_encoding_has_netcdf_key_for_zstd_but_not_blosc(tmp_path):
    for compression in ("zstd", "blosc_zstd"):
        encoding = {"v": {"compression": compression}}
        xr_nczarr.to_nczarr(NUMBERS, tmp_path / compression, encoding=encoding)
    assert opened(tmp_path / "zstd").v.encoding["zstd"]
    opened(tmp_path / "blosc_zstd").to_netcdf(tmp_path / "a.nc", engine="netcdf4")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("codecs", [None, [{"id": "zlib", "level": "4"}]], ids=["copy", "codecs"])
def test_compression_level_given_as_string_is_written_as_integer(tmp_path, zarr_format, codecs):
    """netCDF-C up to 4.9.3 stored levels as text, which zarr-python rejects for Zarr v3 codecs."""
    values = np.arange(4, dtype="i4")
    document = array_document((4,), compressor={"id": "zlib", "level": "4"})
    documents = {".zgroup": {"zarr_format": 2}, "v/.zarray": document}
    documents |= {"v/.zattrs": {"_ARRAY_DIMENSIONS": ["x"]}, "v/0": zlib.compress(values)}
    encoding = {} if codecs is None else {"v": {"codecs": codecs}}
    source = opened(put(tmp_path / "a", documents))
    xr_nczarr.to_nczarr(source, tmp_path / "b", zarr_format=zarr_format, encoding=encoding)
    assert opened(tmp_path / "b").v.encoding["codecs"][0]["level"] == 4
    array = zarr.open_array(tmp_path / "b/v")
    np.testing.assert_array_equal(array[:], values)
    array[:] = values + 1
    np.testing.assert_array_equal(opened(tmp_path / "b").v, values + 1)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    ("codec", "configuration"),
    [
        ("blosc", {}),
        ({"name": "blosc", "configuration": {"cname": "zstd"}}, {"cname": "zstd"}),
        ({"name": "blosc", "configuration": {"shuffle": "bitshuffle"}}, {"shuffle": 2}),
        ({"id": "blosc", "shuffle": "bitshuffle", "clevel": "3"}, {"shuffle": 2, "clevel": 3}),
    ],
    ids=["name", "one parameter", "notation of v3", "notation of v3 with id"],
)
def test_blosc_can_be_requested_with_subset_of_parameters(
    tmp_path, zarr_format, codec, configuration
):
    options = {"zarr_format": zarr_format, "encoding": {"v": {"compressors": [codec]}}}
    xr_nczarr.to_nczarr(NUMBERS, tmp_path / "a", **options)
    result = opened(tmp_path / "a").v
    np.testing.assert_array_equal(result, NUMBERS.v)
    assert configuration.items() <= result.encoding["codecs"][0].items()
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "a/v")[:], NUMBERS.v)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_unknown_blosc_shuffle_is_rejected(tmp_path, zarr_format):
    codec = {"name": "blosc", "configuration": {"shuffle": "other"}}
    options = {"zarr_format": zarr_format, "encoding": {"v": {"compressors": [codec]}}}
    with pytest.raises(xr_nczarr.MetadataError, match=r"'other'; expected .noshuffle. or"):
        xr_nczarr.to_nczarr(NUMBERS, tmp_path / "a", **options)
    assert not (tmp_path / "a").exists()


def test_shards_from_source_encoding_become_chunks_in_v2():
    sharded, plain = {}, {}
    encoding = {"v": {"shards": (6, 4), "chunks": (3, 2)}}
    xr_nczarr.to_nczarr(NUMBERS, sharded, zarr_format=3, encoding=encoding)
    xr_nczarr.to_nczarr(opened(sharded), plain, zarr_format=2)
    assert opened(plain).v.encoding["chunks"] == (3, 2)
    assert opened(plain).v.encoding["shards"] is None
    xr.testing.assert_identical(opened(plain), NUMBERS)


def test_invalid_fill_value_is_rejected_only_if_explicit():
    source, target = {}, {}
    xr_nczarr.to_nczarr(
        NUMBERS, source, zarr_format=3, dialect="zarr", encoding={"v": {"fill_value": -70_000}}
    )
    narrower = opened(source)
    assert narrower.v.encoding["fill_value"] == -70_000
    narrower.v.encoding["dtype"] = np.dtype("int16")
    xr_nczarr.to_nczarr(narrower, target, zarr_format=3, dialect="zarr")
    assert opened(target).v.values.tolist() == NUMBERS.v.values.tolist()
    with pytest.raises(
        ConflictError, match=r"fill_value 300 does not fit in dtype int8 \(variable /?v\)"
    ):
        xr_nczarr.to_nczarr(NUMBERS, {}, encoding={"v": {"dtype": "i1", "fill_value": 300}})


@pytest.mark.parametrize(
    ("values", "fill"),
    [(["a"], 1), (["a"], np.nan), ([b"a"], 1), ([1], ""), ([1.5], "")],
    ids=["text", "NaN", "bytes", "integer", "float"],
)
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_fill_value_of_wrong_kind_is_rejected_only_if_explicit(values, fill, zarr_format):
    layout, target = {"dialect": "zarr", "zarr_format": zarr_format}, {}
    dataset = xr.Dataset({"v": ("x", np.array(values))})
    with pytest.raises(ConflictError, match=r"fill_value .* does not fit in dtype .*variable v"):
        xr_nczarr.to_nczarr(dataset, target, encoding={"v": {"fill_value": fill}}, **layout)
    assert not target
    dataset.v.encoding["fill_value"] = fill
    xr_nczarr.to_nczarr(dataset, target, **layout)
    assert opened(target).v.values.tolist() == values


@pytest.mark.parametrize("value", [np.ma.masked, [object()], {"a": {1}}, object()])
def test_error_for_unstorable_attribute_includes_attribute_name(value):
    dataset = NUMBERS.copy()
    dataset.v.attrs["odd"] = value
    with pytest.raises(UnsupportedError, match=r"/v.*attribute odd|attribute odd.*/v"):
        xr_nczarr.to_nczarr(dataset, {})


def test_attribute_with_dataarray_value_is_rejected():
    with pytest.raises(TypeError, match="Invalid attribute"):
        xr_nczarr.to_nczarr(NUMBERS.assign_attrs(odd=xr.DataArray(1.0)), {})


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", ["S2", "U2"])
@pytest.mark.parametrize("new", [np.array([b"xyz"]), np.array(["xyz"]), np.array(["xyz"], object)])
@pytest.mark.filterwarnings("ignore:.*dtype=object")
@pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification")
def test_appended_strings_longer_than_fixed_width_are_rejected(tmp_path, zarr_format, dtype, new):
    group = zarr.create_group(tmp_path / "s", zarr_format=zarr_format)
    names = ["x"] if zarr_format == 3 else None
    array = group.create_array("v", shape=(2,), dtype=dtype, chunks=(2,), dimension_names=names)
    array[:] = np.array(["ab", "c"], dtype)
    if zarr_format == 2:
        array.attrs["_ARRAY_DIMENSIONS"] = ["x"]
    for values in (new, da.from_array(new, chunks=1)):
        with pytest.raises(
            ConflictError, match=r"Mismatched dtypes .* b?'xyz' does not fit .*[SU]2"
        ):
            xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", values)}), tmp_path / "s", append_dim="x")
    shorter = xr.Dataset({"v": ("x", np.array(["z"], object))})
    xr_nczarr.to_nczarr(shorter, tmp_path / "s", append_dim="x")
    assert opened(tmp_path / "s").v.astype(str).values.tolist() == ["ab", "c", "z"]


TEXTS = [
    np.array([b"ab", b"abcdef"]),
    np.array(["ab", "abcdef"]),
    np.array(["ab", None, "abcdef"], object),
    np.array([b"ab", np.nan, b"abcdef"], object),
]


@pytest.mark.parametrize("chunks", [None, {"x": 1}])
@pytest.mark.parametrize("dtype", ["i2", "i4", "u4", np.dtype("i4")])
@pytest.mark.parametrize(
    ("times", "units"),
    [(["2000-01-02", "NaT"], "days since 2000-01-01"), ([86_400, "NaT"], "hours")],
)
def test_missing_times_encoded_as_small_integers_require_fill_value(chunks, dtype, times, units):
    # Small integers cannot represent xarray's NaT, which was once read back as 2000-01-01.
    if units == "hours" and dtype == "u4" and Version(xr.__version__) < Version("2025.12"):
        pytest.skip("this release of xarray does not decode unsigned time differences")
    kind = "m8[s]" if units == "hours" else "M8[s]"
    dataset = xr.Dataset({"t": ("x", np.array(times, kind))})
    dataset = dataset if chunks is None else dataset.chunk(chunks)
    encoding = {"dtype": dtype, "units": units}
    with pytest.raises(ConflictError, match=r"time NaT .*_FillValue"):
        xr_nczarr.to_nczarr(dataset, {}, encoding={"t": encoding})
    dataset.t.encoding = {**encoding, "source": "elsewhere"}
    with pytest.raises(ConflictError, match=r"time NaT .*\(variable t\)"):
        xr_nczarr.to_nczarr(dataset, {})
    for wider in ({"_FillValue": 99}, {"dtype": "i8"}, {"dtype": "f4"}):
        target = {}
        xr_nczarr.to_nczarr(dataset, target, encoding={"t": encoding | wider})
        xr.testing.assert_equal(opened(target, decode_timedelta=True).load(), dataset.compute())
    whole = {}
    xr_nczarr.to_nczarr(dataset.isel(x=[0]), whole)
    assert opened(whole, decode_cf=False).t.dtype == dtype


@pytest.mark.parametrize("options", [{}, {"zarr_format": 3}, {"dialect": "zarr"}])
def test_missing_boolean_is_not_written_as_true(options):
    source, target = {}, {}
    flags = xr.Dataset({"t": ("x", [True, False])}, {"x": [0, 1]})
    xr_nczarr.to_nczarr(flags, source, **options)
    xr_nczarr.to_nczarr(opened(source).reindex(x=[0, 1, 2]), target, **options)
    np.testing.assert_array_equal(opened(target).t, [1.0, 0.0, np.nan])


@pytest.mark.filterwarnings("ignore:.*dtype=object")
@pytest.mark.parametrize("options", [{}, {"zarr_format": 3}, {"dialect": "zarr"}])
@pytest.mark.parametrize("leftover", ["S2", "U2"])
@pytest.mark.parametrize("texts", TEXTS, ids=str)
@pytest.mark.parametrize("chunks", [None, {"x": 1}])
def test_strings_are_not_truncated_to_inherited_width(options, leftover, texts, chunks):
    dataset = xr.Dataset({"t": ("x", texts)})
    dataset = dataset if chunks is None else dataset.chunk(chunks)
    dataset.t.encoding = {"dtype": np.dtype(leftover), "source": "elsewhere"}
    target = {}
    xr_nczarr.to_nczarr(dataset, target, **options)
    empty = b"" if isinstance(texts[0], bytes) else ""
    expected = [text if isinstance(text, str | bytes) else empty for text in texts.tolist()]
    assert opened(target).t.values.tolist() == expected


@pytest.mark.filterwarnings("ignore:.*dtype=object")
@pytest.mark.parametrize("texts", TEXTS, ids=str)
@pytest.mark.parametrize("chunks", [None, {"x": 1}])
def test_requested_dtype_that_would_truncate_strings_is_rejected(texts, chunks):
    dataset = xr.Dataset({"t": ("x", texts)})
    dataset = dataset if chunks is None else dataset.chunk(chunks)
    for dtype in ("S5", "<U5"):
        with pytest.raises(ConflictError, match=r"abcdef.*does not fit.* \(variable t\)"):
            xr_nczarr.to_nczarr(dataset, {}, encoding={"t": {"dtype": dtype}})
    for dtype in ("S6", "U9", *(["S"] if texts.dtype != object else [])):
        target = {}
        xr_nczarr.to_nczarr(dataset, target, encoding={"t": {"dtype": dtype}})
        kind = bytes if dtype[0] == "S" else str
        assert [*map(type, opened(target).t.values.tolist())] == [kind] * texts.size
        assert opened(target).t.astype(str).values.tolist()[-1] == "abcdef"


def test_strings_with_bytes_dtype_in_encoding_are_stored_as_utf8():
    dataset, target = xr.Dataset({"t": ("x", ["\xe9"])}), {}
    xr_nczarr.to_nczarr(dataset, target, encoding={"t": {"dtype": "S2"}})
    assert opened(target).t.values.tolist() == [b"\xc3\xa9"]
    longer = xr.Dataset({"t": ("x", ["\xe9\xe9"])})
    with pytest.raises(ConflictError, match=r"does not fit the encoding \(dtype \|S3"):
        xr_nczarr.to_nczarr(longer, {}, encoding={"t": {"dtype": "S3"}})


def test_non_utf8_bytes_with_string_dtype_in_encoding_are_rejected():
    dataset = xr.Dataset({"t": ("x", [b"\xe9"])})
    with pytest.raises(ConflictError, match="not valid UTF-8"):
        xr_nczarr.to_nczarr(dataset, {}, encoding={"t": {"dtype": "U2"}})


@pytest.mark.parametrize("options", [{}, {"zarr_format": 3}, {"dialect": "zarr"}])
@pytest.mark.parametrize("texts", TEXTS, ids=str)
def test_zero_dimensional_dask_string_can_be_written(options, texts):
    # A dask block without dimensions is a str, or bytes shorter than their dtype.
    source = {}
    xr_nczarr.to_nczarr(xr.Dataset({"t": ("x", texts)}), source, **options)
    dataset = opened(source, chunks={}).isel(x=[0]).squeeze()
    target = {}
    xr_nczarr.to_nczarr(dataset, target, **options)
    assert opened(target).t.item() == texts[0]


@pytest.mark.filterwarnings("ignore:saving variable t with floating point data:RuntimeWarning")
@pytest.mark.parametrize(("dtype", "unsigned"), [("i1", "true"), ("u1", "false")])
@pytest.mark.parametrize("scale", [{}, {"scale_factor": 0.5}])
def test_attribute_named_unsigned_is_kept_even_without_fill_value(tmp_path, dtype, unsigned, scale):
    # xarray then drops the attribute from the encoding, and 200 was once read back as -56.
    raw = np.array([1, 200, 255], "u1").view(dtype)
    xr_nczarr.to_nczarr(
        xr.Dataset({"t": ("x", raw, {"_Unsigned": unsigned} | scale)}), tmp_path / "a"
    )
    first = xr.open_dataset(tmp_path / "a", engine="nczarr").load()
    encoding = dict(first.t.encoding)
    xr_nczarr.to_nczarr(first, tmp_path / "b")
    assert first.t.encoding == encoding
    assert first.t.attrs == {}
    xr.testing.assert_identical(xr.open_dataset(tmp_path / "b", engine="nczarr").load(), first)
    stored = xr.open_dataset(tmp_path / "b", engine="nczarr", decode_cf=False)
    np.testing.assert_array_equal(stored.t, raw)


@pytest.mark.parametrize(
    ("encoding", "problem"),
    [
        ({"chunksizes": (2,)}, "do not fit an array"),
        ({"chunks": (-2, 3)}, "do not fit an array"),
        ({"chunks": (0, 3)}, "Pass a positive length for each dimension"),
        ({"zlib": True, "complevel": 11}, "level of codec zlib must be from 0 to 9, not 11"),
        ({"zlib": True, "complevel": -1}, "not -1"),
        ({"compression": "zstd", "complevel": -3}, "must be from 0 to 22, not -3"),
        ({"compression": "bzip2", "complevel": 0}, "codec bz2 must be from 1 to 9, not 0"),
        ({"codecs": [{"id": "zlib", "level": 12}]}, "not 12"),
        ({"compressor": numcodecs.Zlib(-1)}, "not -1"),
        ({"compressor": numcodecs.Blosc(clevel=10)}, "codec blosc must be from 0 to 9, not 10"),
    ],
)
def test_invalid_chunks_and_compression_levels_are_rejected(tmp_path, encoding, problem):
    # These values were once ignored, or resulted in stores that netcdf-c does not open.
    ds = xr.Dataset({"t": (("y", "x"), np.zeros((4, 3)))})
    with pytest.raises(ConflictError, match=problem) as caught:
        xr_nczarr.to_nczarr(ds, tmp_path / "a", encoding={"t": encoding})
    assert caught.value.variable == "/t"
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dtype", ["M8[s]", "m8[ms]", "M8[25s]", "m8[10ms]"])
def test_zarr_datetime_types_can_be_read_and_copied(tmp_path, zarr_format, dtype):
    # In version 3, fill values were once compared with integers. pandas does not support multiples
    # of units, so one such coordinate once prevented opening the whole store.
    group = zarr.open_group(tmp_path / "a", mode="w", zarr_format=zarr_format)
    names = {"dimension_names": ["t"]} if zarr_format == 3 else {}
    values = np.array([3, 7, 12]).astype(dtype)
    for name in ("t", "v"):
        array = group.create_array(name, data=values, chunks=(2,), **names)
        array.attrs["_ARRAY_DIMENSIONS"] = ["t"]
    first = opened(tmp_path / "a").load()
    for name in ("t", "v"):
        np.testing.assert_array_equal(first[name], values)
    for dialect in ("nczarr", "zarr"):
        xr_nczarr.to_nczarr(
            opened(tmp_path / "a"), tmp_path / dialect, dialect=dialect, zarr_format=zarr_format
        )
        made = tmp_path / f"{dialect} by copy"
        xr_nczarr.copy(tmp_path / "a", made, dialect=dialect, zarr_format=zarr_format)
        for copy in (tmp_path / dialect, made):
            dataset = opened(copy, decode_timedelta=True).load()
            for name in ("t", "v"):
                np.testing.assert_array_equal(dataset[name], values)


@pytest.mark.parametrize("broken", [{"v": ("x", [1], {"k": "\ud800"})}, {"v": ("\ud800", [1])}])
def test_error_for_invalid_unicode_includes_variable_or_group_path(tmp_path, broken):
    with pytest.raises(xr_nczarr.MetadataError, match=r"\\ud800.*not valid Unicode") as caught:
        xr_nczarr.to_nczarr(xr.Dataset(broken), tmp_path / "a")
    assert caught.value.key in ("/v", "/")
    assert caught.value.remedy


@pytest.mark.parametrize("key", ["chunks", "chunksizes"])
def test_character_dimension_is_added_to_chunks_requested_for_strings(tmp_path, key):
    ds = xr.Dataset({"t": (("y", "x"), np.array([[b"abc", b"d"]] * 4))})
    xr_nczarr.to_nczarr(ds, tmp_path / "a", encoding={"t": {key: (2, 1)}})
    dataset = xr.open_dataset(tmp_path / "a", engine="nczarr")
    assert dataset.t.encoding["chunksizes"] == (2, 1, 3)
    assert dataset.t.values.tolist() == ds.t.values.tolist()


@pytest.mark.parametrize("name", ["zstd", "blosc"])
def test_compressor_listed_twice_is_applied_twice(tmp_path, name):
    made = {"zstd": zarr.codecs.ZstdCodec, "blosc": zarr.codecs.BloscCodec}[name]
    original = xr.Dataset({"v": ("x", [1.0, 2.0])})
    encoding = {"v": {"compressors": (made(), made())}}
    original.to_zarr(tmp_path / "a.zarr", zarr_format=3, encoding=encoding, consolidated=False)
    opened = xr.open_dataset(tmp_path / "a.zarr", engine="nczarr")
    assert [codec["id"] for codec in opened.v.encoding["codecs"]] == [name] * 2
    xr.testing.assert_equal(opened.load(), original)


@pytest.mark.filterwarnings("ignore:variable names has data in the form of a dask array")
@pytest.mark.parametrize("chunks", [None, {}])
@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
def test_character_fill_value_does_not_appear_in_strings(tmp_path, chunks, dialect):
    source = tmp_path / "source.nc"
    with netCDF4.Dataset(source, "w") as file:
        file.createDimension("x", 2)
        file.createDimension("length", 3)
        names = file.createVariable("names", "S1", ("x", "length"), fill_value=b" ")
        names._Encoding = "utf-8"
        names[:] = np.array(["ab ", "é "])
    with xr.open_dataset(source, engine="netcdf4", chunks=chunks) as dataset:
        xr_nczarr.to_nczarr(dataset, tmp_path / "copy", dialect=dialect)
        again = opened(tmp_path / "copy")
        xr.testing.assert_identical(again.load(), dataset.load())
        assert again.names.encoding["_FillValue"] == b" "
        holed = dataset.where(xr.DataArray([True, False], dims="x"))
        holed.names.encoding = dataset.names.encoding
    xr_nczarr.to_nczarr(holed, tmp_path / "holed", dialect=dialect)
    assert opened(tmp_path / "holed").names.values.tolist() == ["ab ", ""]


@pytest.mark.parametrize(
    ("dims", "grown", "expected"),
    [
        (("time", "lat", "lon"), {}, "time"),
        (("lat", "lon", "time"), {}, "time lat"),
        (("lat", "lon", "time"), {"append_dim": "lon"}, "lon"),
        (("lat", "lon", "time"), {"unlimited_dims": ["time"]}, "time"),
        (("lat", "lon"), {}, "lat"),
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", [{}, {"dialect": "zarr"}, {"zarr_format": 3}], ids=str)
def test_coordinate_along_unlimited_dimension_gets_large_chunks(dims, grown, expected, layout):
    store, first = {}, STEPS.isel(time=[0]).transpose(*dims[:3], ...)
    first = first if "time" in dims else first.isel(time=0, drop=True)
    xr_nczarr.to_nczarr(first, store, **grown, **layout)
    chunks = {name: opened(store)[name].encoding["chunks"][0] for name in dims}
    assert {name for name in dims if chunks[name] == 512} == {*expected.split()}
    assert {*chunks.values()} <= {512, 1, 20, 30}


# `to_zarr` rounds -9.9 to -9, which is then read as missing.
@pytest.mark.parametrize("options", [{}, {"dialect": "zarr"}], ids=["nczarr", "zarr"])
@pytest.mark.parametrize("mark", [-9.9, 1e6])
def test_unrepresentable_inherited_missing_value_masks_nothing(mark, options):
    source = xr.Dataset({"v": ("x", np.array([-9, -10, 64], "i2"), {"missing_value": mark})})
    decoded = xr.decode_cf(source)
    assert not decoded.v.isnull().any()
    xr_nczarr.to_nczarr(decoded, store := {}, **options)
    xr.testing.assert_identical(xr.open_dataset(store, engine="nczarr"), decoded)
    stored = xr.open_dataset(store, engine="nczarr", decode_cf=False)
    assert stored.v.dtype == "i2"
    assert stored.v.attrs["missing_value"] == mark
    masked = decoded.where(decoded.v > 0)
    masked.v.encoding = dict(decoded.v.encoding)
    with pytest.raises(ConflictError, match="does not fit the encoding"):
        xr_nczarr.to_nczarr(masked, {}, **options)
    encoding = {"v": {"dtype": "i2", "missing_value": mark}}
    with pytest.raises(ConflictError, match="does not fit the encoding"):
        xr_nczarr.to_nczarr(source.drop_attrs(), {}, encoding=encoding, **options)
