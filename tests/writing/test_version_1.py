"""Zarr version 1: stores that consist of one array, and directories of such stores."""

import json

import numpy as np
import pytest
import xarray as xr
import zarr

from tests.reading import read
from tests.stores import read_objects
from xr_nczarr import to_nczarr
from xr_nczarr.errors import ConflictError, NotFoundError, UnsupportedError

DATASET = xr.Dataset({"t": (("x", "y"), np.arange(6.0).reshape(3, 2), {"units": "K"})})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.mark.parametrize(
    "values",
    [
        np.arange(3.0),
        np.array(["", "é", "日本語"], object),
        np.array(["2000-01-01", "NaT", "2001-01-01"], "M8[ns]"),
        np.array([True, False, True]),
    ],
    ids=lambda values: str(values.dtype),
)
def test_named_and_unnamed_variables_round_trip_in_v1(path, values):
    original = xr.Dataset({"v": ("x", values, {"long_name": "v"})})
    to_nczarr(original, path, zarr_format=1)
    assert read(path).identical(original)
    array = xr.DataArray(values, dims="x")
    to_nczarr(array, path, mode="w", zarr_format=1)
    assert xr.open_dataarray(path, engine="nczarr").load().identical(array)


def test_unnamed_array_becomes_variable_named_data():
    meta = {"zarr_format": 1, "shape": [2], "chunks": [2], "dtype": "<i2", "fill_value": 0}
    meta |= {"order": "C", "compression": None, "compression_opts": None}
    store = {"meta": json.dumps(meta).encode(), "0": b"\1\0\2\0"}
    assert read(store).data.values.tolist() == [1, 2]
    for name in ("a/b", "", 5):
        store["attrs"] = json.dumps({"_nczarr_name": name}).encode()
        assert list(read(store)) == ["data"]


def write_tree(path):
    for place in ("t", "g/u", "g/h/w"):
        to_nczarr(DATASET.rename(t=place[-1]), path / place, zarr_format=1)


def test_directories_of_v1_arrays_are_recognized_as_groups(path):
    write_tree(path)
    tree = xr.open_datatree(path, engine="nczarr").load()
    options = {"/": DATASET, "/g": DATASET.rename(t="u"), "/g/h": DATASET.rename(t="w")}
    assert tree.identical(xr.DataTree.from_dict(options))
    assert read(path, group="g/h").identical(options["/g/h"])
    assert tree.encoding["zarr_format"] == "1"
    files = {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*.*")}
    files |= {f"t/{name}": (path / "t" / name).read_bytes() for name in ("meta", "attrs")}
    assert read(files).identical(DATASET)


def test_directory_without_v1_arrays_is_not_recognized_as_store(path):
    zarr.create_array(path / "a", shape=(2,), dtype="i4", zarr_format=2)
    (path / "b").mkdir()
    (path / "b/meta").write_text('{"zarr_format": 2}')
    with pytest.raises(NotFoundError, match="no Zarr metadata found"):
        read(path)


def test_v1_arrays_can_be_appended_to_and_updated(path):
    later = -DATASET.isel(x=slice(0, 2))
    expected = xr.concat([DATASET, later], "x")
    to_nczarr(DATASET, path / "t", zarr_format=1)
    for target in (path / "t", path):
        to_nczarr(DATASET, path / "t", mode="w", zarr_format=1)
        to_nczarr(later, target, append_dim="x")
        assert read(target).identical(expected)
        to_nczarr(-later, target, region={"x": slice(3, 5)})
        assert read(target).t.values[3:].tolist() == (-later).t.values.tolist()


@pytest.mark.parametrize("version", [2, 3])
def test_zarr_python_root_array_can_be_appended_to(path, version):
    names = {"dimension_names": ["x"]} if version == 3 else {}
    array = zarr.create_array(
        path, shape=(2,), chunks=(2,), dtype="i4", zarr_format=version, **names
    )
    array[:] = [1, 2]
    (dim,) = read(path).dims
    to_nczarr(xr.Dataset({"data": (dim, np.array([3, 4, 5], "i4"))}), path, append_dim=dim)
    assert zarr.open_array(path, mode="r")[:].tolist() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("tree", [True, False])
@pytest.mark.parametrize(
    ("obj", "options"),
    [
        (xr.Dataset({"new": ("x", np.arange(3.0))}), {}),
        (xr.Dataset({"new": ("x", np.arange(3.0))}), {"append_dim": "x"}),
        (xr.Dataset(attrs={"title": "x"}), {}),
        (DATASET, {"group": "new"}),
    ],
)
def test_additions_that_require_groups_are_rejected_in_v1(path, obj, options, tree):
    to_nczarr(DATASET, path / "t", zarr_format=1)
    target = path if tree else path / "t"
    before = read_objects(path)
    with pytest.raises(ConflictError, match="without groups"):
        to_nczarr(obj, target, mode="a", **options)
    assert read_objects(path) == before


def test_dataset_attributes_are_rejected_in_v1(path):
    with pytest.raises(UnsupportedError, match="1 attributes"):
        to_nczarr(DATASET.assign_attrs(title="x"), path, zarr_format=1)


def test_shuffle_is_rejected_if_requested_and_dropped_if_inherited(path, tmp_path):
    to_nczarr(DATASET, path, zarr_format=1, encoding={"t": {"zlib": True, "complevel": 2}})
    meta = json.loads((path / "meta").read_bytes())
    assert (meta["compression"], meta["compression_opts"]) == ("zlib", 2)
    assert read(path).identical(DATASET)
    encoding = {"t": {"zlib": True, "shuffle": True}}
    with pytest.raises(UnsupportedError, match=r"filters shuffle.*single compressor"):
        to_nczarr(DATASET, tmp_path / "b", zarr_format=1, encoding=encoding)
    DATASET.to_netcdf(tmp_path / "c.nc", encoding={"t": {"zlib": True}})
    with (
        xr.open_dataset(tmp_path / "c.nc") as opened,
        pytest.warns(UserWarning, match="codecs inherited"),
    ):
        to_nczarr(opened, tmp_path / "b", zarr_format=1)
    assert read(tmp_path / "b").identical(DATASET)


def test_loading_root_array_with_unknown_codec_raises_unsupported_error(path):
    zarr.create_array(path, shape=(2,), dtype="f4", zarr_format=2)
    members = json.loads((path / ".zarray").read_bytes()) | {"compressor": {"id": "nowhere"}}
    (path / ".zarray").write_text(json.dumps(members))
    dataset = xr.open_dataset(path, engine="nczarr")
    with pytest.raises(UnsupportedError, match="nowhere"):
        dataset.data.load()


def test_variables_written_separately_are_read_as_one_dataset(path):
    original = DATASET.assign_coords(x=[1, 2, 3], label=("x", np.array(["a", "b", "c"], object)))
    with pytest.raises(UnsupportedError, match="has 3 variables"):
        to_nczarr(original, path, zarr_format=1)
    for name in original.variables:
        to_nczarr(xr.Dataset({name: original[name].variable}), path / name, zarr_format=1)
    assert read(path).set_coords("label").identical(original)


def test_nczarr_dialects_are_rejected(path):
    with pytest.raises(UnsupportedError, match="does not support the dialect 'universal'"):
        to_nczarr(DATASET, path, zarr_format=1, dialect="universal")
