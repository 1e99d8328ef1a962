"""The same data is written in every Zarr version and dialect, and all readers read it identically.

The readers are zarr-python, zarrs, tensorstore, xarray's zarr engine and netcdf-c 4.10. netcdf-c
4.9.0 reads the universal layout. GDAL reads another form of the draft, so the metadata is converted
before GDAL reads it. No installed program reads version 1.
"""

import json
import shutil
import subprocess

import netCDF4
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.codecs import (
    BloscCodec,
    BytesCodec,
    Crc32cCodec,
    GzipCodec,
    ShardingCodec,
    TransposeCodec,
    VLenBytesCodec,
    ZstdCodec,
)
from zarr.dtype import VariableLengthBytes

from tests.interop.readers import by_netcdf4, by_tensorstore, by_zarrs
from tests.reading import read
from tests.stores import put, read_objects
from xr_nczarr import to_nczarr
from xr_nczarr.errors import ChunkError, ConflictError, UnsupportedError

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]
LAYOUTS = [
    *((2, dialect) for dialect in ("nczarr", "zarr", "universal")),
    *((version, dialect) for version in (3, "3-draft") for dialect in ("nczarr", "zarr")),
]
NUMBERS = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8")
TEXTS = np.array(["", "a", "bé", "日本語", "x" * 50, "001", "q"], object)
CHARACTERS = np.array([b"abc", b"d", b"", b"ef", b"gh", b"i", b"jkl"])
PACKING = {"dtype": "i2", "scale_factor": 0.5, "add_offset": 2.0, "_FillValue": -99}
CHUNKS = (2, 3)  # not divisors of the shape (5, 7)


def numbers():
    """Return a variable of each numeric type, with the limits of the type and no fill value."""
    variables = {}
    for dtype in NUMBERS:
        values = np.arange(35).reshape(5, 7).astype(dtype)
        if dtype[0] == "f":
            values[0, :5] = np.nan, np.inf, -np.inf, -0.0, np.finfo(dtype).max
        else:
            values[0, :2] = np.iinfo(dtype).min, np.iinfo(dtype).max
        attributes = {
            "units": "1",
            "one": np.dtype(dtype).type(7),
            "many": np.arange(3, dtype=dtype),
        }
        variables[dtype] = (("time", "x"), values, attributes, {"_FillValue": None})
    return xr.Dataset(variables)


def sample():
    """Return a datatree with everything that a netCDF file can contain."""
    steps = np.arange(35.0).reshape(5, 7)
    root = numbers().assign(
        flag=("x", np.arange(7) % 2 == 0),
        text=("x", TEXTS),
        characters=("x", CHARACTERS),
        scalar=((), np.float32(2.5), {"long_name": "scalar"}),
        word=((), "text"),
        packed=(("time", "x"), np.where(steps % 5, steps / 2, np.nan)),
        filled=(("time", "x"), np.where(steps % 7, steps, np.nan)),
        time=np.datetime64("2000-01-01", "ns") + np.arange(5) * np.timedelta64(1, "D"),
    )
    root.attrs = {"title": "é", "f4": np.float32(1.5), "json": '{"a": 1}', "texts": ["a", "b"]}
    upper = xr.Dataset({"above": ("time", np.arange(5.0)), "own": ("z", np.array([1, 2], "u1"))})
    lower = xr.Dataset({"below": (("z", "w"), np.ones((2, 3)))}, attrs={"deep": "yes"})
    return xr.DataTree.from_dict({"/": root, "/g": upper, "/g/h": lower, "/empty": xr.Dataset()})


def write_sample(path, version, dialect):
    encoding = {name: {"chunks": CHUNKS, "_FillValue": None} for name in NUMBERS}
    encoding |= {"packed": {**PACKING, "chunks": CHUNKS}, "filled": {"_FillValue": -1.0}}
    unlimited = {"/": ["time"]}
    layout = {"zarr_format": version, "dialect": dialect}
    to_nczarr(sample(), path, encoding={"/": encoding}, unlimited_dims=unlimited, **layout)


def bits(values):
    """Return the bytes of an array in the machine's byte order, or a list of its strings."""
    values = np.asarray(values)
    if values.dtype.kind in "OTU":
        return [str(item) for item in values.ravel()]
    return values.astype(values.dtype.newbyteorder("=")).tobytes()


def documents(path):
    """Return the content of every ``zarr.json`` by the path of its node."""
    result = path.rglob("zarr.json")
    return {str(file.parent.relative_to(path)): json.loads(file.read_bytes()) for file in result}


def change(file, members):
    file.write_text(json.dumps({**json.loads(file.read_text()), **members}))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


# Other readers: the stored values of an array --------------------------------------------------


def read_by_zarr_python(path, name):
    return zarr.open_array(path / name, mode="r")[...]


def read_by_xarray(path, name):
    consolidated = not (path / name / "zarr.json").exists()
    options = {"consolidated": consolidated, "mask_and_scale": False}
    with xr.open_dataset(path, engine="zarr", **options) as stored:
        return stored[name].values


READERS = {
    (2, "nczarr"): (read_by_zarr_python, by_tensorstore, by_netcdf4),
    (2, "zarr"): (read_by_zarr_python, by_tensorstore, read_by_xarray),
    (2, "universal"): (*(read_by_zarr_python, by_tensorstore, read_by_xarray, by_netcdf4),),
    (3, "nczarr"): (read_by_zarr_python, by_zarrs, by_tensorstore, read_by_xarray),
    (3, "zarr"): (read_by_zarr_python, by_zarrs, by_tensorstore, read_by_xarray),
}


# One dataset ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "dialect"), LAYOUTS)
def test_datatree_round_trips_through_every_layout(path, version, dialect):
    write_sample(path, version, dialect)
    original, opened = sample(), xr.open_datatree(path, engine="nczarr").load()
    assert opened.identical(original)
    assert opened.encoding["unlimited_dims"] == (set() if dialect == "zarr" else {"time"})
    assert opened["g"].dataset["above"].dims == ("time",)
    for name in NUMBERS if dialect != "zarr" else ():
        for key, value in original[name].attrs.items():
            assert np.asarray(opened[name].attrs[key]).dtype == np.asarray(value).dtype, (name, key)
    chunks = {name: opened[name].encoding["chunksizes"] for name in (*NUMBERS, "packed")}
    assert set(chunks.values()) == {CHUNKS}


def test_variables_stored_separately_in_v1_are_read_as_one_dataset(path):
    original = sample()["/"].to_dataset()
    for name, variable in original.variables.items():
        encoding = {name: PACKING} if name == "packed" else {}
        alone = xr.Dataset({name: variable})
        to_nczarr(alone, path / name, zarr_format=1, encoding=encoding)
    opened = read(path)
    assert set(opened.variables) == set(original.variables)
    for name, variable in original.variables.items():
        xr.testing.assert_identical(opened[name].variable, variable)
        assert opened[name].dtype == variable.dtype or variable.dtype == object  # text is <U50


@pytest.mark.parametrize(("version", "dialect"), READERS)
def test_all_readers_agree_on_numeric_data(path, version, dialect):
    write_sample(path, version, dialect)
    for reader in READERS[version, dialect]:
        if reader is read_by_xarray and (version, dialect) == (2, "nczarr"):
            continue
        for name, variable in numbers().variables.items():
            assert bits(reader(path, name)) == bits(variable.values), (reader, name)
        packed = np.array(reader(path, "packed"))
        assert packed.dtype == "i2"
        np.testing.assert_array_equal(
            np.where(packed == -99, np.nan, packed / 2 + 2), sample().packed
        )


@pytest.mark.parametrize(("version", "dialect"), [(2, "zarr"), (3, "nczarr"), (3, "zarr")])
def test_zarr_readers_read_text_as_strings(path, version, dialect):
    write_sample(path, version, dialect)
    for reader in (read_by_zarr_python, *[by_zarrs] * (version == 3), read_by_xarray):
        assert bits(reader(path, "text")) == TEXTS.tolist()
        assert bits(reader(path, "word")) == ["text"]


@pytest.mark.parametrize(("version", "dialect"), [(2, "zarr"), (3, "nczarr"), (3, "zarr")])
def test_xarray_zarr_engine_reads_datatree_written_by_xr_nczarr(path, version, dialect):
    write_sample(path, version, dialect)
    original = sample()
    with xr.open_datatree(path, engine="zarr", consolidated=version == 2) as opened:
        result = opened.load()
    if dialect == "nczarr":  # readers without NCZarr see characters as numbers
        assert result.characters.values[1].tobytes() == b"d\0\0"
        result = result.drop_nodes([]).assign(characters=original.characters)
    for group in ("/", "/g", "/g/h", "/empty"):
        expected = original[group].to_dataset()
        actual = result[group].to_dataset()[list(expected.variables)]
        xr.testing.assert_identical(actual.drop_attrs(), expected.drop_attrs())
        for key, value in expected.attrs.items():
            np.testing.assert_array_equal(result[group].attrs[key], value)


@pytest.mark.skipif(shutil.which("nccopy") is None, reason="needs netcdf-bin")
def test_nccopy_4_9_0_copies_universal_layout_to_file(path, tmp_path):
    dataset = numbers()
    for variable in dataset.variables.values():
        del variable.attrs["many"]
    encoding = {name: {"chunks": CHUNKS, "_FillValue": None} for name in NUMBERS}
    to_nczarr(dataset, path, dialect="universal", encoding=encoding)
    copy = tmp_path / "copy.nc"
    url = f"file://{path}#mode=nczarr,file"
    subprocess.run(["nccopy", url, copy], check=True, capture_output=True, timeout=60)
    with netCDF4.Dataset(copy) as stored:
        stored.set_auto_maskandscale(False)
        for name, variable in dataset.variables.items():
            assert bits(stored[name][...]) == bits(variable.values), name
            assert stored[name].dimensions == ("time", "x")
            assert stored[name].one == 7


# Codecs and shards of version 3 ------------------------------------------------------------------

PLAIN = {
    "raw": {},
    "gzip": {"compressors": GzipCodec(level=3)},
    "zstd": {"compression": "zstd", "shuffle": False},
    "zstd and checksums": {"compressors": [ZstdCodec(checksum=True), Crc32cCodec()]},
    "blosc": {"compressors": (BloscCodec(cname="zstd", shuffle="bitshuffle"),)},
    "blosc of numcodecs": {"compressor": numcodecs.Blosc("lz4", 5, numcodecs.Blosc.AUTOSHUFFLE)},
    "crc32c": {"compressors": [{"name": "crc32c"}]},
    "zlib": {"zlib": True, "shuffle": False},
    "big endian": {"endian": "big"},
    "big endian of zarr": {"serializer": BytesCodec(endian="big"), "filters": "auto"},
    "transposed": {"filters": [TransposeCodec(order=(1, 0))], "zlib": True, "shards": (4, 6)},
    "shards by zarr's rule": {"shards": "auto", "chunks": (1, 1)},
    "shards": {"shards": (4, 6)},
    "shards beyond the array": {"shards": [np.int64(40), 9], "compressors": [ZstdCodec()]},
    "index at start": {"shards": {"shape": (2, 6), "index_location": "start"}},
    "shards of checksums": {"shards": (4, 3), "compressors": ["crc32c"]},
}
NUMCODECS = {  # unknown to tensorstore
    "zlib and shuffle": {"zlib": True},
    "bzip2": {"compression": "bzip2"},
}
RARE = {  # unknown to zarrs
    "fletcher32": {"zlib": True, "fletcher32": True},
    "lzma": {"compressor": numcodecs.LZMA(preset=1)},
}


@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
@pytest.mark.parametrize("codecs", [*PLAIN, *NUMCODECS, *RARE])
def test_all_readers_read_v3_codecs_and_shards(path, codecs, dialect):
    options = {"chunks": CHUNKS, "_FillValue": None} | (PLAIN | NUMCODECS | RARE)[codecs]
    original = numbers()
    encoding = dict.fromkeys(original.variables, options)
    to_nczarr(original, path, zarr_format=3, dialect=dialect, encoding=encoding)
    readers = [read_by_zarr_python, *[by_zarrs] * (codecs not in RARE)]
    readers += [by_tensorstore] * (codecs in PLAIN)
    ours = read(path, mask_and_scale=False)
    for name, variable in original.variables.items():
        assert bits(ours[name].values) == bits(variable.values), name
        for reader in readers:
            assert bits(reader(path, name)) == bits(variable.values), (reader, name)
    sharded = json.loads((path / "i4/zarr.json").read_bytes())["codecs"][0]["name"]
    assert (sharded == "sharding_indexed") == ("shards" in options)


@pytest.mark.parametrize(
    "shards",
    ["any", (5, 6), (0, 6), (-4, 6), (4.0, 6), (4,), {"shape": (5, 6), "index_location": 1}],
)
def test_invalid_shard_shape_is_rejected(path, shards):
    encoding = {"i4": {"shards": shards, "chunks": CHUNKS}}
    with pytest.raises(ConflictError, match=r"not a multiple of chunk shape .* Pass a shard shape"):
        to_nczarr(numbers()[["i4"]], path, zarr_format=3, encoding=encoding)
    assert not path.exists()


def test_invalid_shard_index_location_is_rejected(path):
    encoding = {"i4": {"shards": {"shape": (4, 6), "index_location": 1}, "chunks": CHUNKS}}
    with pytest.raises(ConflictError, match="index_location must be 'start' or 'end', not 1"):
        to_nczarr(numbers()[["i4"]], path, zarr_format=3, encoding=encoding)
    assert not path.exists()


@pytest.mark.parametrize("version", [1, 2, 3, "3-draft"])
def test_shards_from_source_encoding_are_kept_in_v3(path, tmp_path, version):
    dataset = numbers()[["i4"]]
    encoding = {"i4": {"shards": (4, 6), "chunks": CHUNKS}}
    source = tmp_path / "source"
    dataset.to_zarr(source, zarr_format=3, consolidated=False, encoding=encoding)
    with xr.open_dataset(source, engine="zarr", consolidated=False) as opened:
        to_nczarr(opened, path, zarr_format=version)
    assert bits(read(path).i4) == bits(dataset.i4)
    if version == 3:
        grid = json.loads((path / "i4/zarr.json").read_bytes())["chunk_grid"]
        assert grid["configuration"]["chunk_shape"] == [4, 6]


def test_automatic_shard_shapes_equal_those_chosen_by_zarr_python(path, tmp_path):
    values = np.arange(18 * 5).reshape(18, 5)
    encoding = {"v": {"shards": "auto", "chunks": (2, 1)}}
    to_nczarr(xr.Dataset({"v": (("x", "y"), values)}), path, zarr_format=3, encoding=encoding)
    other = zarr.create_array(
        tmp_path / "other", data=values, shards="auto", chunks=(2, 1), compressors=None
    )
    assert zarr.open_array(path / "v").shards == other.shards == (4, 1)


def test_rewriting_opened_dataset_preserves_shards(path, tmp_path):
    encoding = {"i4": {"shards": (4, 6), "chunks": CHUNKS}}
    to_nczarr(numbers()[["i4"]], path, zarr_format=3, encoding=encoding)
    with xr.open_dataset(path, engine="nczarr") as opened:
        assert [opened.i4.encoding[key] for key in ("chunks", "shards")] == [CHUNKS, (4, 6)]
        for number, part in enumerate((opened, opened.isel(x=slice(3)), opened.isel(x=0))):
            copy = tmp_path / str(number)
            to_nczarr(part, copy, zarr_format=3)
            assert zarr.open_array(copy / "i4").shards == ((4, 6) if number < 2 else None)
            np.testing.assert_array_equal(read(copy).i4, part.i4)
        opened.to_zarr(tmp_path / "other", zarr_format=3, consolidated=False)
        to_nczarr(opened, tmp_path / "v2")
    assert zarr.open_array(tmp_path / "other/i4").shards == (4, 6)


@pytest.mark.parametrize(
    ("codecs", "named"),
    [
        ({"serializer": ShardingCodec(chunk_shape=(1, 3))}, 'In the encoding, set "shards"'),
        (
            {"filters": [TransposeCodec(order=(0, 2, 1))]},
            "transpose codec is not a permutation of the axes",
        ),
    ],
)
def test_codecs_that_cannot_be_stored_are_rejected(path, codecs, named):
    with pytest.raises(UnsupportedError, match=named):
        to_nczarr(numbers()[["i4"]], path, zarr_format=3, encoding={"i4": codecs})


@pytest.mark.parametrize(
    ("version", "place"),
    [(1, ("order", "F")), (2, ("order", "F")), ("3-draft", ("chunk_memory_layout", "F"))],
)
def test_transpose_filter_is_stored_as_fortran_order_except_in_v3(path, version, place):
    original = numbers()[["i4"]]
    encoding = {"i4": {"filters": [TransposeCodec(order=(1, 0))]}}
    to_nczarr(original, path, zarr_format=version, encoding=encoding)
    (document,) = [
        data
        for key, data in read_objects(path).items()
        if key.rpartition("/")[2] in ("meta", ".zarray", "i4.array.json")
    ]
    assert json.loads(document)[place[0]] == place[1]
    assert bits(read(path, mask_and_scale=False).i4) == bits(original.i4)


def test_deflate_becomes_gzip_in_v3_and_zlib_in_v2(path, tmp_path):
    original = numbers()[["i4"]]
    to_nczarr(original, path, zarr_format=3, encoding={"i4": {"zlib": True, "shuffle": False}})
    assert documents(path)["i4"]["codecs"][1] == {"name": "gzip", "configuration": {"level": 4}}
    with xr.open_dataset(path, engine="nczarr") as opened:
        to_nczarr(opened, tmp_path / "2")
        opened.to_netcdf(tmp_path / "copy.nc")
    assert json.loads((tmp_path / "2/i4/.zarray").read_bytes())["compressor"]["id"] == "zlib"
    assert bits(by_netcdf4(tmp_path / "2", "i4")) == bits(original.i4)


@pytest.mark.parametrize("version", [1, 2, "3-draft"])
def test_requested_shards_are_rejected_except_in_v3(path, version):
    encoding = {"i4": {"shards": (4, 6), "chunks": CHUNKS}}
    with pytest.raises(UnsupportedError, match="shards"):
        to_nczarr(numbers()[["i4"]], path, zarr_format=version, encoding=encoding)


# Version 1 and the draft -------------------------------------------------------------------------

COMPRESSIONS = {
    "none": ({}, None),
    "zlib": ({"zlib": True, "shuffle": False, "complevel": 3}, 3),
    "bz2": ({"compressor": numcodecs.BZ2(2)}, 2),
    "blosc": (
        {"compressor": numcodecs.Blosc("lz4", 5, 1)},
        {"cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    ),
    "lzma": (
        {"compressor": numcodecs.LZMA(preset=1)},
        {"format": 1, "check": -1, "preset": 1, "filters": None},
    ),
}


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_arrays_of_every_type_can_be_written_in_v1(path, compression):
    encoding, options = COMPRESSIONS[compression]
    original = numbers().assign(flag=("x", np.arange(7) % 2 == 0), bytes=("x", CHARACTERS), one=1.5)
    for name, variable in original.variables.items():
        chunks = CHUNKS[: variable.ndim]
        to_nczarr(
            original[[name]],
            path,
            mode="w",
            zarr_format=1,
            encoding={name: {**encoding, "chunks": chunks, "_FillValue": None}},
        )
        opened = read(path, mask_and_scale=False)[name]
        assert opened.dims == variable.dims
        assert opened.dtype == variable.dtype
        assert bits(opened) == bits(variable.values)
        meta = json.loads((path / "meta").read_bytes())
        assert meta["zarr_format"] == 1
        assert (meta["compression"] or "none", meta["compression_opts"]) == (compression, options)


def test_nan_fill_values_are_unquoted_in_v1(path):
    to_nczarr(xr.Dataset({"v": ("x", [1.5, np.nan])}), path, zarr_format=1)
    assert b'"fill_value": NaN' in (path / "meta").read_bytes()
    assert np.isnan(read(path, mask_and_scale=False).v[1])


GDAL_TYPES = {np.dtype(name).name: np.dtype(name).str for name in NUMBERS}


def converted_for_gdal(path, target):
    """Copy a store of the draft with the keys, types and compressors of GDAL 3.4 to 3.7."""
    converted = {}
    for key, data in read_objects(path).items():
        key = key.replace("meta/group.", "meta/root.group.")
        for kind in ("meta", "data"):
            if key.startswith(f"{kind}/") and not key.startswith("meta/root."):
                key = f"{kind}/root/{key.removeprefix(f'{kind}/')}"
        if key.endswith(".array.json"):
            members = json.loads(data)
            members["data_type"] = GDAL_TYPES[members["data_type"]]
            for codec in members.pop("codecs"):
                if "endian" in codec["configuration"]:
                    members["data_type"] = members["data_type"].replace("<", ">")
                else:
                    members["compressor"] = {"codec": codec.pop("type"), **codec}
            data = json.dumps(members).encode()
        converted[key] = data
    put(target, converted)


@pytest.mark.skipif(shutil.which("gdalmdiminfo") is None, reason="needs GDAL")
@pytest.mark.parametrize(
    "codecs", [{}, {"endian": "big"}, {"compressor": {"id": "gzip", "level": 1}}], ids=str
)
def test_gdal_reads_v3_draft_store_with_metadata_converted_for_gdal(path, tmp_path, codecs):
    counts = np.arange(35).reshape(5, 7)
    names = [name for name in NUMBERS if name not in ("i1", "i8", "u8")]  # unknown to GDAL 3.6
    root = xr.Dataset({name: (("y", "x"), counts.astype(name)) for name in names})
    tree = xr.DataTree.from_dict({"/": root, "/g": xr.Dataset({"w": ("z", np.arange(3.0))})})
    encoding = {"/": {key: {"chunks": CHUNKS, "_FillValue": None, **codecs} for key in names}}
    encoding["/g"] = {"w": {"_FillValue": None}}
    to_nczarr(tree, path, zarr_format="3-draft", encoding=encoding)
    copy = tmp_path / "copy.zarr"
    converted_for_gdal(path, copy)
    command = ["gdalmdiminfo", "-detailed", str(copy)]
    output = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
    document = json.loads(output)
    for name in names:
        np.testing.assert_array_equal(document["arrays"][name]["values"], counts)
    assert document["groups"]["g"]["arrays"]["w"]["values"] == [0, 1, 2]


# NCZarr on version 3 -----------------------------------------------------------------------------


def test_nczarr_v3_metadata_follows_appendix_e_of_nczarr_spec(path):
    write_sample(path, 3, "nczarr")
    stored = documents(path)
    root = stored["."]["attributes"]
    assert root["_nczarr_superblock"] == {"version": "3.0.0", "format": 3}
    assert root["_nczarr_group"]["dimensions"][:2] == [
        {"name": "time", "size": 5, "unlimited": 1},
        {"name": "x", "size": 7, "unlimited": 0},
    ]
    assert set(root["_nczarr_group"]["arrays"]) == set(sample().variables)
    assert root["_nczarr_group"]["subgroups"] == ["g", "empty"]
    kinds = {"title": "char", "f4": "float32", "json": "char", "texts": "string"}
    kinds |= dict.fromkeys(("_nczarr_group", "_nczarr_superblock", "_nczarr_attrs"), "json")
    assert root["_nczarr_attrs"] == {
        "attribute_types": [
            {"name": name, "configuration": {"type": kind}} for name, kind in kinds.items()
        ]
    }
    below = stored["g/h/below"]
    assert below["dimension_names"] == ["z", "w"]
    assert below["attributes"]["_nczarr_array"] == {"dimension_references": ["/g/z", "/g/h/w"]}
    characters = stored["characters"]
    assert characters["data_type"] == "uint8"
    assert characters["attributes"]["_nczarr_array"]["type_alias"] == "char"
    assert stored["text"]["attributes"]["_nczarr_array"]["type_alias"] == "string"
    assert "_nczarr_superblock" not in stored["g"]["attributes"]


def test_fixed_width_strings_are_stored_as_raw_bytes_in_v3(path):
    dataset = xr.Dataset({"text": ("x", TEXTS)})
    to_nczarr(dataset, path, zarr_format=3, encoding={"text": {"_nczarr_maxstrlen": 50}})
    assert documents(path)["text"]["data_type"] == "r400"
    xr.testing.assert_identical(read(path), dataset)


def grid_of(name, shape):
    return {"name": name, "configuration": shape}


def array(data_type, sizes, annotation, types, **members):
    """Return the document of an array in the form that netcdf-c's development branch writes."""
    names = [*sizes]
    attributes = {"_ARRAY_DIMENSIONS": names, "_nczarr_array": annotation}
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [*sizes.values()],
        "data_type": data_type,
        "chunk_grid": grid_of("regular", {"chunk_shape": [2] * len(names)}),
        "chunk_key_encoding": grid_of("default", {"separator": "."}),
        "fill_value": 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "dimension_names": names,
        "attributes": attributes | {"_nczarr_attrs": {"attribute_types": types}},
        **members,
    }


def group(dimensions, arrays, types, attributes, **children):
    annotation = {"dimensions": dimensions, "arrays": arrays, **children}
    attributes = attributes | {"_nczarr_group": annotation}
    attributes["_nczarr_attrs"] = {"attribute_types": types}
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


def listed(kinds):
    return [{"name": name, "configuration": {"type": kind}} for name, kind in kinds.items()]


def preview_store(appendix_e):
    """Return a store of NCZarr on Zarr v3.

    The store follows Appendix E of the specification, or else netcdf-c's development branch.
    """
    types = listed if appendix_e else dict
    alias, children = ("type_alias", "subgroups") if appendix_e else ("nczarr_type", "groups")
    superblock = {"version": "3.0.0", **({"format": 3} if appendix_e else {})}
    inner = {"storage": "chunked"} if not appendix_e else {}

    def dimensions(*items):
        if appendix_e:
            return [dict(zip(("name", "size", "unlimited"), item, strict=True)) for item in items]
        return {name: {"size": size, "unlimited": unlimited} for name, size, unlimited in items}

    root = {"title": "x", "n": 5, "_nczarr_superblock": superblock}
    kinds = types({"title": "char", "n": "int16", "_nczarr_group": "json"})
    sizes = dimensions(("time", 3, 1), ("x", 2, 0))
    members = {
        "zarr.json": group(sizes, ["v", "c", "s"], kinds, root, **{children: ["g"]}),
        "v/zarr.json": array(
            "int32",
            {"time": 3, "x": 2},
            {"dimension_references": ["/time", "/x"], **inner},
            types({"_FillValue": "int32"}),
            fill_value=-1,
        ),
        "c/zarr.json": array(
            "uint8",
            {"x": 2},
            {"dimension_references": ["/x"], **inner, alias: "char"},
            types({}),
            fill_value="",
        ),
        "s/zarr.json": array(
            "r64",
            {"x": 2},
            {"dimension_references": ["/x"], **inner, alias: "string"},
            types({}),
            fill_value=[0] * 8,
            codecs=[{"name": "bytes"}],
        ),
        "g/zarr.json": group(dimensions(("z", 2, 0)), ["w"], types({}), {}, **{children: []}),
        "g/w/zarr.json": array(
            "float32",
            {"time": 3, "z": 2},
            {"dimension_references": ["/time", "/g/z"], **inner},
            types({}),
            fill_value="NaN",
        ),
    }
    members["v/zarr.json"]["attributes"]["_FillValue"] = -1
    return {key: json.dumps(value).encode() for key, value in members.items()} | {
        "v/c.0.0": np.arange(4, dtype="<i4").tobytes(),
        "v/c.1.0": np.array([4, -1, 0, 0], "<i4").tobytes(),
        "c/c.0": b"ab",
        "s/c.0": "é".encode().ljust(8, b"\0") + b"abcdefgh",
        "g/w/c.0.0": np.arange(4, dtype="<f4").tobytes(),
    }


def preview_tree():
    root = {
        "v": (("time", "x"), [[0.0, 1.0], [2.0, 3.0], [4.0, np.nan]]),
        "c": ("x", np.array([b"a", b"b"])),
        "s": ("x", np.array(["é", "abcdefgh"], object)),
    }
    values = np.array([[0, 1], [2, 3], [np.nan, np.nan]], "f4")
    attributes = {"title": "x", "n": np.int16(5)}
    return xr.DataTree.from_dict(
        {"/": xr.Dataset(root, attrs=attributes), "/g": xr.Dataset({"w": (("time", "z"), values)})}
    )


@pytest.mark.parametrize("appendix_e", [True, False], ids=["spec", "netcdf-c-main"])
def test_nczarr_v3_preview_store_can_be_appended_to(
    appendix_e,
):
    store = preview_store(appendix_e)
    opened = xr.open_datatree(store, engine="nczarr").load()
    assert opened.identical(preview_tree())
    assert opened.attrs["n"].dtype == "i2"
    assert opened.encoding["unlimited_dims"] == {"time"}
    later = preview_tree().isel(time=slice(0, 1))
    to_nczarr(later, store, append_dim="time")
    to_nczarr(xr.Dataset({"new": ("x", [1, 2])}, attrs={"q": np.int8(3)}), store, mode="a")
    opened = xr.open_datatree(store, engine="nczarr").load()
    assert opened.v.values[3].tolist() == [0, 1]
    assert opened["g/w"].values[3].tolist() == [0, 1]
    assert (opened.new.values.tolist(), opened.attrs["q"].dtype) == ([1, 2], "i1")
    annotation = json.loads(store["zarr.json"])["attributes"]["_nczarr_group"]
    assert type(annotation["dimensions"]) is (list if appendix_e else dict)
    assert annotation["arrays"] == ["v", "c", "s", "new"]


@pytest.mark.parametrize(("version", "dialect"), LAYOUTS)
@pytest.mark.parametrize("appendix_e", [True, False], ids=["spec", "netcdf-c-main"])
def test_nczarr_v3_preview_store_can_be_converted_to_every_layout(appendix_e, version, dialect):
    target = {}
    opened = xr.open_datatree(preview_store(appendix_e), engine="nczarr")
    to_nczarr(opened.load(), target, zarr_format=version, dialect=dialect)
    assert xr.open_datatree(target, engine="nczarr").load().identical(preview_tree())


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("place", [3, -9, "cut"])
def test_error_for_damaged_shard_includes_key(path, place, location):
    shards = {"shape": (4, 6), "index_location": location}
    encoding = {"f8": {"chunks": CHUNKS, "shards": shards, "compressors": ["crc32c"]}}
    to_nczarr(numbers()[["f8"]], path, zarr_format=3, encoding=encoding)
    file = path / "f8/c/0/0"
    data = bytearray(file.read_bytes())
    if place == "cut":
        del data[100:]
    else:
        data[place] ^= 1
    file.write_bytes(data)
    dataset = xr.open_dataset(path, engine="nczarr")
    with pytest.raises(ChunkError) as caught:
        dataset.f8[:4, :6].load()
    assert caught.value.key == "f8/c/0/0"
    assert "crc32c" in str(caught.value) or place == "cut"
    assert dataset.f8[4, 6].load() == 34  # in an undamaged shard


# Changes ------------------------------------------------------------------------------------------


def series(start, stop):
    days = np.arange(start, stop)
    return xr.Dataset(
        {
            "v": (("t", "x"), days[:, None] * 10.0 + np.arange(7)),
            "text": ("t", np.array([f"é{day}" for day in days], object)),
            "fixed": ("x", np.arange(7)),
        },
        coords={"t": days},
    )


EXTENSION = {"must_understand": False, "kept": [1, 2.5, {"deep": None}]}


@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
def test_appends_and_region_writes_to_shards_keep_metadata_extensions(path, dialect, consolidated):
    encoding = {
        "v": {"chunks": CHUNKS, "shards": (4, 6), "compressor": {"id": "zstd", "level": 1}},
        "text": {"chunks": (2,), "shards": {"shape": (4,), "index_location": "start"}},
        "t": {"chunks": (2,), "shards": (8,)},
    }
    layout = {"zarr_format": 3, "dialect": dialect, "consolidated": consolidated}
    to_nczarr(series(0, 3), path, encoding=encoding, unlimited_dims=["t"], **layout)
    for name in (".", "v"):
        change(path / name / "zarr.json", {"extension": EXTENSION})
    for start, stop in ((3, 5), (5, 6), (6, 11)):
        to_nczarr(series(start, stop), path, append_dim="t")
    part = -series(2, 7)[["v"]].drop_vars("t").isel(x=slice(1, 6))
    to_nczarr(part, path, region={"t": slice(2, 7), "x": slice(1, 6)})
    to_nczarr(xr.Dataset({"new": ("x", np.arange(7))}, attrs={"title": "n"}), path, mode="a")
    expected = series(0, 11).assign(new=("x", np.arange(7))).assign_attrs(title="n")
    expected.v[2:7, 1:6] *= -1
    xr.testing.assert_identical(read(path), expected)
    stored = documents(path)
    assert stored["."]["extension"] == stored["v"]["extension"] == EXTENSION
    if consolidated:
        inline = stored["."]["consolidated_metadata"]["metadata"]
        assert inline == {name: data for name, data in stored.items() if name != "."}
    for reader in (read_by_zarr_python, by_zarrs):
        for name in ("v", "text", "t", "new"):
            assert bits(reader(path, name)) == bits(expected[name].values), (reader, name)
    assert bits(by_tensorstore(path, "t")) == bits(expected.t.values)


@pytest.mark.parametrize("extension", [{"must_understand": True}, {}, 1, {"must_understand": "no"}])
def test_error_for_unknown_required_extension_includes_its_name(path, extension):
    to_nczarr(series(0, 3), path, zarr_format=3)
    change(path / "v/zarr.json", {"strange": extension})
    dataset = xr.open_dataset(path, engine="nczarr")
    with pytest.raises(UnsupportedError, match="strange"):
        dataset.v.load()
    with pytest.raises(UnsupportedError, match="strange"):
        to_nczarr(series(3, 4), path, append_dim="t")
    np.testing.assert_array_equal(dataset.fixed, np.arange(7))


@pytest.mark.parametrize("version", [2, 3])
def test_json_attributes_survive_changes_to_other_attributes(path, version):
    attributes = {"json": {"a": [1]}, "nothing": None, "true": True, "n": 5}
    group = zarr.create_group(path, zarr_format=version, attributes=attributes)
    group.create_array("v", shape=(4,), chunks=(2,), dtype="i4", dimension_names=None)
    opened = read(path).attrs | {"n": np.int16(6)}
    to_nczarr(xr.Dataset({"new": ("x", [1, 2])}, attrs=opened), path, mode="a")
    assert dict(zarr.open_group(path, mode="r").attrs) == attributes | {"n": 6}


def test_attribute_can_change_to_equal_value_of_another_type(path):
    to_nczarr(xr.Dataset(attrs={"n": np.int64(5)}), path, zarr_format=3)
    to_nczarr(xr.Dataset(attrs={"n": np.int8(5)}), path, mode="a")
    assert read(path).attrs["n"].dtype == "i1"


@pytest.mark.parametrize("version", [2, 3])
def test_variable_length_bytes_are_read_as_bytes(path, tmp_path, version):
    items = np.array([b"a", b"bc\0", b"", b"\xff"], object)
    group = zarr.create_group(tmp_path / "source", zarr_format=version)
    # Values equal to a fill value would be masked.
    options = {"fill_value": None} if version == 2 else {}
    array = group.create_array("v", shape=(4,), chunks=(2,), dtype=VariableLengthBytes(), **options)
    array[:] = items
    with xr.open_dataset(tmp_path / "source", engine="nczarr") as opened:
        assert opened.v.values.tolist() == items.tolist()
        to_nczarr(opened, path, zarr_format=version, dialect="zarr")
        if version == 3:
            encoding = {"v": {"serializer": VLenBytesCodec(), "compressors": [ZstdCodec()]}}
            to_nczarr(opened, path, mode="w", zarr_format=3, dialect="zarr", encoding=encoding)
    assert read(path).v.values.tolist() == items.tolist()
    assert zarr.open_array(path / "v")[:].tolist() == items.tolist()
    (dim,) = read(path).dims
    to_nczarr(xr.Dataset({"v": (dim, items)}), path, append_dim=dim)
    assert read(path).v.values.tolist() == items.tolist() * 2
