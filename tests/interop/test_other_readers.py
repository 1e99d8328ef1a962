"""netcdf-c, zarr-python, xarray's zarr engine and tensorstore read written stores identically.

A netCDF type that a reader does not support is omitted only for that reader. For example,
zarr-python does not support characters, and does not read fixed-width strings as strings.
"""

import itertools
import json
import os
import subprocess
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import tensorstore
import xarray as xr
import zarr

from tests.processes import in_a_new_interpreter
from tests.reading import read
from xr_nczarr import UnsupportedError, copy, to_nczarr, upgrade

INTEGERS = ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8")
NUMBERS = (*INTEGERS, "f4", "f8")
FILTERS = {
    "raw": {},
    "zlib": {"zlib": True, "complevel": 1},
    "zlib without shuffle": {"zlib": True, "shuffle": False},
    "zstd": {"compression": "zstd"},
    "bzip2": {"compression": "bzip2"},
    "blosc": {"compression": "blosc_lz4"},
    "fletcher32": {"zlib": True, "fletcher32": True},
}
CHUNKS = {"whole": None, "cut": (3, 4), "elements": (1, 1)}


def extremes(dtype):
    """Return a field that contains the limits of a type, and for floats NaN and infinities."""
    kind = np.dtype(dtype)
    field = np.arange(35).reshape(5, 7).astype(kind)
    if kind.kind == "f":
        info = np.finfo(kind)
        field[0, :6] = np.nan, np.inf, -np.inf, -0.0, info.tiny, info.max
    else:
        info = np.iinfo(kind)
        field[0, :2] = info.min, info.max
    return field


def numbers():
    """Return variables of all numeric types without `_FillValue`."""
    dataset = xr.Dataset({f"v_{dtype}": (("y", "x"), extremes(dtype)) for dtype in NUMBERS})
    for variable in dataset.variables.values():
        variable.encoding["_FillValue"] = None
    return dataset


def nczarr_url(path):
    return f"file://{path}#mode=nczarr,file"


def bits(values):
    """Return the bytes of an array, so that comparisons include NaN and the sign of zero."""
    return np.ascontiguousarray(values).tobytes()


@pytest.mark.parametrize("dialect", ["nczarr", "universal", "zarr"])
@pytest.mark.parametrize("filters", FILTERS)
@pytest.mark.parametrize("chunks", CHUNKS)
def test_all_readers_agree_bit_for_bit_on_numeric_data(path, filters, chunks, dialect):
    dataset = numbers()
    encoding = {
        name: {
            **FILTERS[filters],
            "chunksizes": CHUNKS[chunks],
            "_FillValue": None,
            "write_empty_chunks": True,
        }
        for name in dataset.variables
    }
    to_nczarr(dataset, path, encoding=encoding, dialect=dialect)
    group = zarr.open_group(path, mode="r")
    ours = read(path, mask_and_scale=False)
    with (
        netCDF4.Dataset(nczarr_url(path)) as stored,
        xr.open_dataset(path, engine="zarr", mask_and_scale=False) as engine,
    ):
        stored.set_auto_maskandscale(False)
        for name, variable in dataset.variables.items():
            expected = bits(variable.values)
            assert bits(ours[name].values) == expected, name
            assert bits(group[name][:]) == expected, name
            assert bits(stored[name][:]) == expected, name
            assert bits(engine[name].values) == expected, name
            assert stored[name].dtype == variable.dtype
            assert stored[name].dimensions == ("y", "x")
            assert group[name].attrs["_ARRAY_DIMENSIONS"] == ["y", "x"]


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("filters", ["raw", "zlib without shuffle", "zstd", "blosc"])
def test_tensorstore_agrees_bit_for_bit_on_numeric_data(path, filters, zarr_format):
    dataset = numbers()
    encoding = {
        name: {**FILTERS[filters], "shuffle": False, "chunksizes": (3, 4)}
        for name in dataset.variables
    }
    if zarr_format == 3 and filters.startswith("zlib"):
        encoding = {
            name: {"compressor": {"id": "gzip", "level": 1}, "chunks": (3, 4)} for name in encoding
        }
    to_nczarr(dataset, path, encoding=encoding, zarr_format=zarr_format)
    driver = "zarr" if zarr_format == 2 else "zarr3"
    for name, variable in dataset.variables.items():
        spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{path}/{name}/"}}
        result = tensorstore.open(spec, read=True).result().read().result()
        assert bits(result) == bits(variable.values), name


ATTRIBUTES = {
    **{f"one_{dtype}": np.dtype(dtype).type(7) for dtype in NUMBERS},
    **{f"many_{dtype}": extremes(dtype)[0] for dtype in NUMBERS},
    "empty": np.array([], "f4"),
    "text": "plain",
    "no_text": "",
    "unicode": "日本語 \N{GRINNING FACE} é",
    "lines": "a\nb\tc\\d\"e'f",
    **{f"like_{n}": text for n, text in enumerate(("001", "1.", "+5", "0x10", "nan", "TRUE"))},
    **{f"json_{n}": text for n, text in enumerate(('{"a": 1}', "[1, 2]", '"q"', "null", "{"))},
}


@pytest.mark.parametrize("dialect", ["nczarr", "universal"])
def test_netcdf_c_reads_same_attribute_types_and_values(path, dialect):
    to_nczarr(xr.Dataset({"v": ((), 1.0, ATTRIBUTES)}, attrs=ATTRIBUTES), path, dialect=dialect)
    ours = read(path)
    with netCDF4.Dataset(nczarr_url(path)) as stored:
        for result in (ours.attrs, ours.v.attrs, attributes(stored), attributes(stored["v"])):
            for name, value in ATTRIBUTES.items():
                if name == "empty" and not np.size(result.get(name, ())):
                    continue
                assert type(result[name]) is type(value) or not isinstance(value, str), name
                assert np.asarray(result[name]).dtype == np.asarray(value).dtype, name
                np.testing.assert_array_equal(result[name], value, name)
    # Zarr has no attribute types: numbers are JSON, and so is text that netCDF spells as JSON.
    with xr.open_dataset(path, engine="zarr") as engine:
        for result in (engine.attrs, engine.v.attrs, dict(zarr.open_group(path)["v"].attrs)):
            for name, value in ATTRIBUTES.items():
                if isinstance(value, str):
                    assert result[name] == value or name.startswith(("json", "like")), name
                elif name != "empty":
                    np.testing.assert_array_equal(
                        np.asarray(result[name], value.dtype), value, name
                    )


def attributes(holder):
    return {name: holder.getncattr(name) for name in holder.ncattrs()}


TEXTS = np.array(["", "a", "bé", "日本語", "x" * 200, "001"], object)


def test_netcdf_c_and_zarr_python_agree_on_strings(path):
    dataset = xr.Dataset(
        {
            "s": (("a", "b"), TEXTS.reshape(2, 3)),
            "c": ("a", np.array([b"abc", b"d"])),
            "scalar": ((), "text"),
        }
    )
    to_nczarr(dataset, path)
    xr.testing.assert_identical(read(path), dataset)
    with netCDF4.Dataset(nczarr_url(path)) as stored:
        assert stored["s"].dtype is str
        assert stored["s"][:].tolist() == TEXTS.reshape(2, 3).tolist()
        assert stored["scalar"][...] == "text"
        stored["c"].set_auto_mask(False)
        assert netCDF4.chartostring(stored["c"][:], "bytes").tolist() == [b"abc", b"d"]
    # Zarr programs read strings as bytes. If there are characters, zarr-python cannot open a
    # consolidated group, and xarray's engine cannot open any group.
    for options in ({}, {"consolidated": False}):
        with pytest.raises(ValueError, match="'>S1'"):
            xr.open_dataset(path, engine="zarr", **options)
    with pytest.raises(ValueError, match="'>S1'"):
        zarr.open_group(path, mode="r")
    group = zarr.open_group(path, mode="r", use_consolidated=False)
    assert group["s"][:].ravel().tolist() == [text.encode() for text in TEXTS]
    assert group["scalar"][:].tolist() == [b"text"]


@pytest.mark.parametrize("dialect", ["nczarr", "universal", "nczarr-4.9.1"])
def test_readers_agree_on_strings_with_fill_value(path, tmp_path, dialect):
    """Zarr's metadata contains the fill value as Base64, which netcdf-c reads as text."""
    texts = ["w", "none", "none", "none", "", ""]
    dataset = xr.Dataset({"text": ("x", np.array(texts, object))})
    encoding = {"text": {"_FillValue": "none", "chunks": (2,)}}
    to_nczarr(dataset, path, dialect=dialect, encoding=encoding)
    with netCDF4.Dataset(nczarr_url(tmp_path / "theirs"), "w") as file:
        file.createDimension("x", 6)
        theirs = file.createVariable("text", str, ("x",), fill_value="none", chunksizes=[2])
        theirs[0], theirs[4], theirs[5] = "w", "", ""
    copy(tmp_path / "theirs", tmp_path / "copy", dialect=dialect)
    for store in (path, tmp_path / "copy"):
        with netCDF4.Dataset(nczarr_url(store)) as file:
            assert file["text"][:].tolist() == texts
        assert zarr.open_group(store)["text"][:].tolist() == [text.encode() for text in texts]
        assert read(store, mask_and_scale=False).text.values.tolist() == texts


def test_chunks_of_empty_strings_are_not_written(path):
    texts = np.array(["w", "none", "", ""], object)
    to_nczarr(xr.Dataset({"text": ("x", texts)}), path, encoding={"text": {"chunks": (2,)}})
    assert sorted(os.listdir(f"{path}/text")) == [".zarray", ".zattrs", "0"]
    assert read(path).text.values.tolist() == texts.tolist()


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_xarray_zarr_engine_reads_plain_zarr_strings(path, zarr_format):
    dataset = xr.Dataset({"s": ("a", TEXTS), "n": ("a", np.arange(6))})
    options = {"consolidated": zarr_format == 2}
    to_nczarr(dataset, path, dialect="zarr", zarr_format=zarr_format, **options)
    with xr.open_dataset(path, engine="zarr", **options) as stored:
        assert stored.s.values.tolist() == TEXTS.tolist()
    assert read(path).s.values.tolist() == TEXTS.tolist()


def scalar_by_netcdf_c(url):
    with netCDF4.Dataset(url) as stored:
        return stored["s"].dimensions, stored["s"][...].item()


@pytest.mark.parametrize("dialect", ["nczarr", "universal", "nczarr-4.9.1"])
def test_netcdf_c_reads_scalars_in_newer_nczarr_layouts(path, dialect):
    to_nczarr(xr.Dataset({"s": 1.5}), path, dialect=dialect)
    # In another process, because netcdf-c crashes if the scalar is not marked in the expected way.
    assert in_a_new_interpreter(scalar_by_netcdf_c, nczarr_url(path)) == ((), 1.5)


def climate(length=5):
    time = np.datetime64("2000-01-01", "ns") + np.arange(length) * np.timedelta64(1, "D")
    field = np.random.default_rng(0).normal(size=(length, 3, 4))
    field[0, 0, 0] = np.nan
    return xr.Dataset(
        {
            "t": (("time", "y", "x"), field, {"units": "K"}),
            "packed": (("time", "y", "x"), np.round(field, 1)),
            "flag": ("time", np.arange(length) % 2 == 0),
            "scalar": 1.5,
        },
        coords={"time": time, "y": [1.0, 2.0, 3.0], "x": [10, 20, 30, 40]},
        attrs={"title": "climate"},
    )


CLIMATE_ENCODING = {
    "packed": {"dtype": "i2", "scale_factor": 0.1, "add_offset": 2.0, "_FillValue": -99},
    "t": {"zlib": True, "chunksizes": (2, 3, 4)},
}


def others(path, dialect):
    """Yield the dataset as read by netcdf-c and decoded by xarray, and as read by engine zarr."""
    backend = xr.backends.NetCDF4DataStore(netCDF4.Dataset(nczarr_url(path)))
    with xr.open_dataset(backend) as dataset:
        yield dataset.load()
    with xr.open_dataset(path, engine="zarr") as dataset:
        dataset = dataset.load()
        if dialect == "nczarr":  # netCDF scalars have an additional dimension in Zarr
            dataset = dataset.squeeze("_scalar_")
        yield dataset


@pytest.mark.parametrize("dask", [False, True])
@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
def test_all_readers_decode_dataset_identically(path, dialect, dask):
    dataset = climate()
    if dialect == "zarr":  # netcdf-c does not read its booleans and scalars
        dataset = dataset.drop_vars(["flag", "scalar"])
    original = dataset.chunk(time=2, x=3) if dask else dataset
    to_nczarr(original, path, encoding=CLIMATE_ENCODING, unlimited_dims="time", dialect=dialect)
    ours = read(path)
    np.testing.assert_allclose(ours.packed, dataset.packed, atol=0.05)
    xr.testing.assert_identical(ours.drop_vars("packed"), dataset.drop_vars("packed"))
    for result in others(path, dialect):
        xr.testing.assert_identical(result.drop_attrs(), ours.drop_attrs())
        for name in ("t", "x"):
            assert result[name].attrs == ours[name].attrs


@pytest.mark.parametrize("dialect", ["nczarr", "universal"])
def test_all_readers_read_same_hierarchy_of_groups_and_dimensions(path, dialect):
    tree = xr.DataTree.from_dict(
        {
            "/": climate(),
            "/g": xr.Dataset({"above": ("time", np.arange(5.0)), "own": ("z", [1, 2])}),
            "/g/h": xr.Dataset({"below": (("z", "w"), np.ones((2, 3)))}, attrs={"deep": "yes"}),
            "/empty": xr.Dataset(),
        }
    )
    to_nczarr(tree, path, unlimited_dims={"/": ["time"]}, dialect=dialect)
    with netCDF4.Dataset(nczarr_url(path)) as stored:
        assert {name: len(dimension) for name, dimension in stored.dimensions.items()} == {
            "time": 5,
            "y": 3,
            "x": 4,
        }
        assert stored.dimensions["time"].isunlimited()
        assert set(stored["g"].dimensions) == {"z"}
        assert set(stored["g/h"].dimensions) == {"w"}
        assert set(stored.groups) == {"g", "empty"}
        assert stored["g/h"].deep == "yes"
        np.testing.assert_array_equal(stored["g/above"][:], np.arange(5.0))
        np.testing.assert_array_equal(stored["g/h/below"][:], np.ones((2, 3)))
    opened = xr.open_datatree(path, engine="nczarr").load()
    assert opened.identical(tree)
    zarr_group = zarr.open_group(path, mode="r")
    np.testing.assert_array_equal(zarr_group["g/h/below"][:], np.ones((2, 3)))


def test_all_readers_decode_appended_store_identically(path):
    to_nczarr(climate(3), path, unlimited_dims="time", encoding=CLIMATE_ENCODING)
    whole = climate(9)
    later = whole.isel(time=slice(3, None)).assign(scalar=1.5)
    to_nczarr(later.chunk(time=1), path, append_dim="time")
    ours = read(path)
    xr.testing.assert_identical(ours.time, whole.time)
    np.testing.assert_array_equal(ours.t[3:], whole.t[3:])
    for result in others(path, "nczarr"):
        xr.testing.assert_identical(result.drop_attrs(), ours.drop_attrs())


def cdl(url):
    result = subprocess.run(
        ["ncdump", url], capture_output=True, text=True, check=False, timeout=60
    )
    return result.stdout if result.returncode == 0 else result.stderr


@pytest.mark.skipif(not os.path.exists("/usr/bin/ncdump"), reason="needs ncdump")
def test_netcdf_c_4_9_0_opens_universal_layout(path):
    dataset = climate().drop_vars(["scalar"])
    for variable in dataset.variables.values():
        variable.attrs.clear()
    to_nczarr(dataset, path, dialect="universal")
    text = cdl(nczarr_url(path))
    assert "time = 5" in text
    assert "float64 t(time, y, x)" in text or "double t(time, y, x)" in text


@pytest.mark.skipif(not os.path.exists("/usr/bin/ncdump"), reason="needs ncdump")
@pytest.mark.parametrize("consolidated", [True, False])
def test_old_and_new_netcdf_c_read_modified_universal_layout(path, consolidated):
    first = xr.Dataset(
        {"v": ("time", [1.0, 2.0], {"n": np.int16(3)})}, attrs={"one": np.int16(1), "text": "a"}
    )
    to_nczarr(first, path, dialect="universal", unlimited_dims="time", consolidated=consolidated)
    to_nczarr(first, path, append_dim="time")
    more = xr.Dataset(
        {"w": ("y", np.arange(3, dtype="i2"), {"m": np.uint8(1)})},
        attrs={"one": np.float32(2.5), "text": np.int8(7), "two": np.int16(2)},
    )
    to_nczarr(more, path, mode="a")
    to_nczarr(more, path, mode="a", group="g/h")
    old = cdl(nczarr_url(path))
    for line in (
        "time = 4 ;",
        "double v(time) ;",
        "v:n = 3s ;",
        "short w(y) ;",
        "w:m = 1UB ;",
        ":one = 2.5f ;",
        ":text = 7b ;",
        ":two = 2s ;",
        "group: h {",
    ):
        assert line in old, old
    with netCDF4.Dataset(nczarr_url(path)) as new:
        assert len(new.dimensions["time"]) == 4
        assert new.dimensions["time"].isunlimited()
        assert {name: new.getncattr(name).dtype.str for name in new.ncattrs()} == {
            "one": "<f4",
            "text": "|i1",
            "two": "<i2",
        }
        assert new["v"].ncattrs() == ["n", "_FillValue"]
        assert new["g/h/w"].ncattrs() == ["m"]
        assert new["v"][:].tolist() == [1, 2, 1, 2]
    if consolidated:
        held = json.loads((Path(path) / ".zmetadata").read_bytes())["metadata"]
        assert not [key for key in held if ".ncz" in key]


def test_adding_variables_to_outdated_universal_layout_requires_upgrade(path):
    """The outdated layout had the annotations of both dialects in the same documents."""
    to_nczarr(xr.Dataset({"v": ("x", [1.0])}), path, dialect="universal", consolidated=False)
    for beside in Path(path).rglob(".ncz*"):
        beside.unlink()
    root = Path(path) / ".zgroup"
    document = json.loads(root.read_bytes())
    annotation = {"dims": {"x": 1}, "vars": ["v"], "groups": []}
    root.write_text(json.dumps(document | {"_NCZARR_GROUP": annotation}))
    with pytest.raises(
        UnsupportedError, match=r"outdated version of the universal layout.*[Uu]pgrade"
    ):
        to_nczarr(xr.Dataset({"w": 1}), path, mode="a")
    upgrade(path, "universal")
    assert "_NCZARR_GROUP" not in json.loads(root.read_bytes())
    to_nczarr(xr.Dataset({"w": ("x", [2.0])}), path, mode="a")
    with netCDF4.Dataset(nczarr_url(path)) as file:
        assert [*file.variables] == ["v", "w"]


@pytest.mark.skipif(not os.path.exists("/usr/bin/ncdump"), reason="needs ncdump")
@pytest.mark.parametrize("dialect", ["universal", "nczarr-4.8.1"])
@pytest.mark.parametrize("chunks", [None, (9,)])
def test_netcdf_c_4_9_0_opens_one_dimensional_variable_extended_by_append(path, dialect, chunks):
    dataset = xr.Dataset({"v": ("time", [1.0, 2.0, 3.0])})
    options = {"encoding": {"v": {"chunks": chunks}}} if chunks else {}
    to_nczarr(dataset, path, dialect=dialect, unlimited_dims="time", **options)
    to_nczarr(dataset, path, append_dim="time")
    assert "v = 1, 2, 3, 1, 2, 3" in cdl(nczarr_url(path))


def describe(group):
    """Return everything that netcdf-c reads from a file: dimensions, types, attributes, values."""
    own = {
        "dimensions": {
            name: (len(dimension), dimension.isunlimited())
            for name, dimension in group.dimensions.items()
        },
        "attributes": {name: repr(value) for name, value in attributes(group).items()},
        "groups": {name: describe(dimension) for name, dimension in group.groups.items()},
        "variables": {},
    }
    for name, variable in group.variables.items():
        variable.set_auto_maskandscale(False)
        variable.set_auto_chartostring(False)
        values = np.asarray(variable[...])
        own["variables"][name] = (
            str(variable.dtype),
            variable.dimensions,
            {key: repr(value) for key, value in attributes(variable).items()},
            values.tolist() if values.dtype.hasobject else bits(values),
        )
    return own


def test_netcdf_c_reads_same_content_from_rewritten_store(path, tmp_path):
    source = nczarr_url(tmp_path / "source")
    with netCDF4.Dataset(source, "w") as file:
        file.title, file.number = "x", np.int16(5)
        file.createDimension("time", None)
        file.createDimension("x", 4)
        group = file.createGroup("g")
        group.createDimension("z", 2)
        for dtype, holder in itertools.product(NUMBERS, (file, group)):
            filters = {"zlib": True, "shuffle": True} if dtype in ("i4", "f8") else {}
            variable = holder.createVariable(f"v_{dtype}", dtype, ("time", "x"), **filters)
            variable.units = "1"
            variable.valid = np.array([1, 2], dtype)
            variable[:] = np.arange(12).reshape(3, 4)
        filled = file.createVariable("filled", "f4", ("x",), fill_value=-1.0)
        filled[:2] = [1, 2]
        text = group.createVariable("text", "S1", ("z",))
        text[:] = np.array([b"a", b"b"])
        file.createVariable("scalar", "i4")[...] = 7
        group.createVariable("strings", str, ("z",))[:] = np.array(["a", "bc"], object)
    options = {"mask_and_scale": False, "decode_times": False, "decode_coords": False}
    with xr.open_datatree(str(tmp_path / "source"), engine="nczarr", **options) as tree:
        to_nczarr(tree.load(), path)
    with netCDF4.Dataset(source) as before, netCDF4.Dataset(nczarr_url(path)) as after:
        assert describe(after) == describe(before)
