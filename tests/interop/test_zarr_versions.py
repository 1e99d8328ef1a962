"""The same values in every Zarr version, written by zarr-python, tensorstore and GDAL.

Draft stores from GDAL 3.6 and zarr-python 2.18 are recorded; all others are written by the
tests. Draft stores from this package are read back, because no installed program reads them.
"""

import json
import shutil
import subprocess

import numcodecs
import numpy as np
import pytest
import tensorstore
import xarray as xr
import zarr
from zarr.codecs import BloscCodec, BytesCodec, GzipCodec, TransposeCodec, ZstdCodec

from tests.recorded import recorded_form, recorded_store
from tests.stores import put, read_objects
from xr_nczarr import to_nczarr, upgrade
from xr_nczarr.errors import UnsupportedError

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]

RAW = {"mask_and_scale": False, "decode_times": False, "decode_timedelta": False}
WRITTEN = (slice(4), slice(6))  # the part of an array of (5, 7) elements with chunks of (2, 3)
FILL = 9
NUMBERS = ("i1", "u1", "<i2", ">i4", "<u8", "<f4", ">f8", "<f2", "<c8", ">c16")


def field(dtype):
    """Return an array of shape (5, 7) that is partly filled.

    The last row and the last column contain the fill value, which is 9 for numbers and True for
    booleans.
    """
    values = np.full((5, 7), FILL).astype(dtype)
    values[WRITTEN] = np.arange(24).reshape(4, 6) % 5
    if np.dtype(dtype).kind == "f":
        values[0, :3] = np.nan, np.inf, -np.inf
    return values


VALUES = {np.dtype(dtype).str[1:]: field(dtype) for dtype in NUMBERS} | {
    "boolean": field("?"),
    "text": np.array(["", "é", "abc"], "<U3"),
    "bytes": np.array([b"", b"a", b"abc"], "S3"),
    "strings": np.array(["", "longer than é", "x"], object),
    "scalar": np.array(2.5),
    "empty": np.zeros((0, 3), "<i4"),
}
ZARR_PYTHON_2 = {
    "raw": {"compressors": None},
    "default": {},
    "zlib and delta": {
        "filters": [numcodecs.Delta("<i4")],
        "compressors": numcodecs.Zlib(1),
    },
    "shuffle": {"filters": [numcodecs.Shuffle(4)], "compressors": numcodecs.BZ2(1)},
    "checksum": {"filters": [numcodecs.Fletcher32()], "compressors": numcodecs.LZ4()},
    "zstd": {"compressors": numcodecs.Zstd(3)},
    "blosc": {"compressors": numcodecs.Blosc("zlib", shuffle=numcodecs.Blosc.BITSHUFFLE)},
    "fortran": {"order": "F"},
    "nested": {"chunk_key_encoding": {"name": "v2", "separator": "/"}},
}
ZARR_PYTHON_3 = {
    "raw": {"compressors": None},
    "default": {},
    "gzip": {"compressors": GzipCodec(level=2)},
    "blosc": {"compressors": BloscCodec(typesize=4, cname="lz4hc", shuffle="shuffle")},
    "checksums": {"compressors": [ZstdCodec(level=1, checksum=True), {"name": "crc32c"}]},
    "big endian": {"serializer": BytesCodec(endian="big")},
    "transposed": {"filters": TransposeCodec(order=(1, 0))},
    "v2 keys": {"chunk_key_encoding": {"name": "v2", "separator": "."}},
    "shards": {"shards": (4, 6)},
    "index at start": {"shards": {"shape": (2, 9), "index_location": "start"}},
    "numcodecs": {"compressors": {"name": "numcodecs.lzma", "configuration": {"preset": 1}}},
}
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
SHARDING = {
    "name": "sharding_indexed",
    "configuration": {"chunk_shape": [1, 3], "codecs": [LITTLE, {"name": "zstd"}]},
}


def read(store, **options):
    """Return all groups by path, with undecoded values."""
    groups = xr.open_groups(store, engine="nczarr", **RAW, **options)
    return {path: dataset.load() for path, dataset in groups.items()}


def assert_same(result, expected):
    """Check that values and kinds of dtypes are equal. Byte orders may differ."""
    result, expected = np.asarray(result), np.asarray(expected)
    assert result.dtype.newbyteorder("<") == expected.dtype.newbyteorder("<")
    np.testing.assert_array_equal(result, expected)


def write_by_zarr_python(group, name, values, **options):
    dtype = "string" if values.dtype == object else values.dtype
    written = values.shape == (5, 7)
    chunks = options.pop("chunks", {0: (), 1: (2,), 2: (2, 3)}[values.ndim])
    array = group.create_array(
        name,
        shape=values.shape,
        chunks=chunks,
        dtype=dtype,
        fill_value=values[4, 6] if written else None,
        **options,
    )
    where = WRITTEN if written else ...
    if values.size:
        array[where] = values[where]


@pytest.mark.parametrize("consolidated", [False, True])
@pytest.mark.parametrize("version", [2, 3])
def test_zarr_python_groups_with_all_data_types_are_read(version, consolidated, tmp_path):
    root = zarr.create_group(tmp_path, zarr_format=version, attributes={"title": "all"})
    for group in (root, root.create_group("g").create_group("h")):
        for name, values in VALUES.items():
            write_by_zarr_python(group, name, values)
    if consolidated:
        zarr.consolidate_metadata(tmp_path, zarr_format=version)
    groups = read(tmp_path)
    assert set(groups) == {"/", "/g", "/g/h"}
    assert groups["/"].attrs == {"title": "all"}
    for path in ("/", "/g/h"):
        assert set(groups[path].variables) == set(VALUES)
        for name, values in VALUES.items():
            assert_same(groups[path][name], values)


@pytest.mark.parametrize(
    ("version", "options"),
    [
        pytest.param(version, options, id=f"v{version} {name}")
        for version, by_name in ((2, ZARR_PYTHON_2), (3, ZARR_PYTHON_3))
        for name, options in by_name.items()
    ],
)
def test_zarr_python_arrays_in_every_layout_are_read(version, options, tmp_path):
    root = zarr.create_group(tmp_path, zarr_format=version)
    write_by_zarr_python(root, "x", field("<i4"), **options)
    assert_same(read(tmp_path)["/"]["x"], field("<i4"))


@pytest.mark.parametrize(
    ("driver", "members"),
    [
        ("zarr", {"compressor": None}),
        ("zarr", {"compressor": {"id": "zlib", "level": 1}, "order": "F"}),
        ("zarr", {"compressor": {"id": "zstd", "level": 1}, "dimension_separator": "/"}),
        ("zarr", {"compressor": {"id": "blosc", "cname": "lz4", "clevel": 1, "shuffle": -1}}),
        ("zarr3", {"codecs": [LITTLE]}),
        ("zarr3", {"codecs": [{"name": "transpose", "configuration": {"order": [1, 0]}}, LITTLE]}),
        ("zarr3", {"codecs": [SHARDING]}),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["?", "u1", "<i2", "<i8", "<f4", "<f8", "<c8"])
def test_tensorstore_arrays_from_every_driver_are_read(driver, members, dtype, tmp_path):
    zarr.create_group(tmp_path, zarr_format=2 if driver == "zarr" else 3)
    values = field(dtype)
    values[4], values[:, 6] = 0, 0
    grid = {"name": "regular", "configuration": {"chunk_shape": [2, 3]}}
    if driver == "zarr":
        dtype = {"?": "|b1", "u1": "|u1"}.get(dtype, dtype)
        members = {"chunks": [2, 3], "dtype": dtype, "zarr_format": 2, **members}
    else:
        members = {"chunk_grid": grid, "data_type": values.dtype.name, **members}
    spec = {"driver": driver, "kvstore": f"file://{tmp_path}/x/", "metadata": members}
    spec["metadata"]["shape"] = [5, 7]
    tensorstore.open(spec, create=True).result()[:4, :6].write(values[WRITTEN]).result()
    assert_same(read(tmp_path)["/"]["x"], values)


@pytest.mark.skipif(shutil.which("gdalmdimtranslate") is None, reason="needs GDAL")
@pytest.mark.parametrize("compressor", ["NONE", "GZIP", "ZLIB", "BLOSC", "LZ4", "ZSTD", "LZMA"])
@pytest.mark.parametrize("version", ["ZARR_V2", "ZARR_V3"])
def test_gdal_arrays_are_read(version, compressor, tmp_path):
    source = zarr.create_group(tmp_path / "source.zarr", zarr_format=2)
    names = [name for name in VALUES if name[0] in "uif" and name not in ("i1", "u8", "f2")]
    for group in (source, source.create_group("g")):
        for name in names:
            write_by_zarr_python(group, name, VALUES[name].astype(name), compressors=None)
    options = [f"FORMAT={version}", f"ARRAY:COMPRESS={compressor}", "ARRAY:BLOCKSIZE=3,4"]
    copy = ["gdalmdimtranslate", "-of", "ZARR"]
    for option in options:
        copy += ["-co", option]
    files = [str(tmp_path / name) for name in ("source.zarr", "copy.zarr")]
    subprocess.run([*copy, *files], check=True, capture_output=True, timeout=60)
    groups = read(tmp_path / "copy.zarr")
    for path in ("/", "/g"):
        for name in names:
            assert_same(groups[path][name], VALUES[name])


# The draft ---------------------------------------------------------------------------------


@pytest.mark.parametrize("as_files", [False, True])
def test_v3_draft_stores_from_zarr_python_2_18_are_read(as_files, tmp_path):
    store, expected = recorded_store("zarr_python_2_18.json")
    groups = read(put(tmp_path, store) if as_files else store)
    assert set(groups) == {"/", "/codecs", "/fill", "/sub", "/sub/deep", "/types"}
    result = {
        f"{path}/{name}".lstrip("/"): recorded_form(variable.values)
        for path, dataset in groups.items()
        for name, variable in dataset.variables.items()
    }
    assert set(result) == set(expected)
    for name, values in expected.items():
        np.testing.assert_equal(result[name], values, err_msg=name)
    assert groups["/"].attrs == {"title": "recorded"}
    assert groups["/sub/deep"]["x"].attrs["units"] == "m"


@pytest.mark.parametrize("as_files", [False, True])
def test_v3_draft_stores_from_gdal_3_6_are_read(as_files, tmp_path):
    store, expected = recorded_store("gdal_3_6.json")
    groups = read(put(tmp_path, store) if as_files else store)
    assert {path: len(dataset.variables) for path, dataset in groups.items()} == {
        "/": 17,
        "/sub": 1,
    }
    for dataset in groups.values():
        for name, variable in dataset.variables.items():
            np.testing.assert_equal(variable.values.ravel(), expected, err_msg=name)


def series(start, stop):
    return xr.Dataset(
        {"x": (("t", "y"), np.arange(start * 3.0, stop * 3.0).reshape(-1, 3))},
        coords={"t": ("t", np.arange(start, stop), {"long_name": "time"})},
    )


@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
def test_v3_draft_store_supports_creation_appending_and_updates(dialect, tmp_path):
    path = tmp_path / "x"
    written = {"zarr_format": "3-draft", "dialect": dialect}
    to_nczarr(series(0, 2), path, unlimited_dims=["t"], **written)
    to_nczarr(series(2, 5), path, append_dim="t")
    to_nczarr(xr.Dataset({"extra": ("z", [1, 2])}), path, mode="a")
    to_nczarr(series(0, 3), path, group="g/h", mode="a")
    to_nczarr(-series(1, 2).drop_vars("t"), path, region={"t": slice(1, 2)})
    expected = series(0, 5).assign(extra=("z", [1, 2]))
    expected["x"][1] *= -1
    groups = xr.open_groups(path, engine="nczarr")
    xr.testing.assert_identical(groups["/"].load(), expected)
    xr.testing.assert_identical(groups["/g/h"].load(), series(0, 3))
    assert not list(path.glob("*/root*"))


def test_v3_draft_store_with_custom_suffix_can_be_updated(tmp_path):
    path = tmp_path / "x"
    to_nczarr(series(0, 2), path, zarr_format="3-draft", dialect="zarr", unlimited_dims=["t"])
    for file in [*path.glob("meta/**/*.json")]:
        file.rename(file.with_suffix(".metadata"))
    entry = json.loads((path / "zarr.json").read_text())
    entry["metadata_encoding"]["metadata_key_suffix"] = ".metadata"
    (path / "zarr.json").write_text(json.dumps(entry))
    to_nczarr(series(2, 5), path, append_dim="t")
    to_nczarr(xr.Dataset({"extra": ("z", [1, 2])}), path, mode="a")
    to_nczarr(series(0, 3), path, group="g/h", mode="a")
    groups = xr.open_groups(path, engine="nczarr")
    xr.testing.assert_identical(groups["/"].load(), series(0, 5).assign(extra=("z", [1, 2])))
    xr.testing.assert_identical(groups["/g/h"].load(), series(0, 3))
    assert not list(path.glob("meta/**/*.json"))


def test_replacing_group_of_v3_draft_store_removes_old_contents(tmp_path):
    path = tmp_path / "x"
    to_nczarr(series(0, 2), path, zarr_format="3-draft", dialect="zarr")
    to_nczarr(series(0, 2), path, group="g/h", mode="a")
    to_nczarr(xr.Dataset({"new": ("z", [1, 2])}), path, group="g", mode="w")
    groups = read(path)
    assert set(groups) == {"/", "/g"}
    assert set(groups["/g"].variables) == {"new"}
    assert not list(path.glob("*/g/h*"))


@pytest.mark.parametrize("name", ["zarr_python_2_18.json", "gdal_3_6.json"])
def test_v3_draft_stores_of_other_libraries_cannot_be_modified(name, tmp_path):
    store, _ = recorded_store(name)
    path = put(tmp_path, store)
    with pytest.raises(UnsupportedError, match="are read-only") as caught:
        to_nczarr(xr.Dataset({"new": ("z", [1, 2])}), path, mode="a")
    assert (caught.value.store, caught.value.variable) == (str(path), None)
    with pytest.raises(UnsupportedError, match="are read-only") as caught:
        upgrade(path, "zarr")
    assert (caught.value.store, caught.value.key) == (str(path), None)
    assert read_objects(path).keys() == store.keys()
