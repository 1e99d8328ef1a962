"""Reference sets from kerchunk, VirtualiZarr and tifffile yield the original values."""

import json

import h5py
import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.reading import read

hdf = pytest.importorskip("kerchunk.hdf")
combine = pytest.importorskip("kerchunk.combine")
netcdf3 = pytest.importorskip("kerchunk.netCDF3")
df = pytest.importorskip("kerchunk.df")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def write_hdf5(path, number=0):
    """Write a netCDF-4 file with packed values, edge chunks and chunks that are not stored."""
    field = np.arange(77.0).reshape(1, 7, 11) + number
    field[0, 2, 3] = np.nan
    packed = {"dtype": "i2", "scale_factor": 0.5, "add_offset": 10.0, "_FillValue": -99}
    dataset = xr.Dataset(
        {
            "field": (("time", "y", "x"), field, {"units": "°C"}),
            "packed": (("y", "x"), np.where(field[0] > 70, np.nan, field[0] / 2)),
            "shuffled": (("y", "x"), np.arange(77, dtype="i4").reshape(7, 11)),
            "big": ("x", np.arange(11, dtype=">i8")),
            "scalar": ((), np.float32(1.5)),
        },
        {"time": [number], "y": np.arange(7.0), "x": np.arange(11.0)},
        {"title": "a set", "levels": [1, 2, 3]},
    )
    dataset.to_netcdf(
        path,
        engine="netcdf4",
        unlimited_dims=["time"],
        encoding={
            "field": {"chunksizes": (1, 4, 5)},
            "packed": packed | {"chunksizes": (3, 11), "zlib": True},
            "shuffled": {"chunksizes": (7, 3), "zlib": True, "shuffle": True},
        },
    )
    with h5py.File(path, "a") as file:
        sparse = file.create_dataset("sparse", (7, 11), "i4", chunks=(2, 5), fillvalue=-5)
        sparse[3:5, 2:7] = 8
        for dimension, name in zip(sparse.dims, ("y", "x"), strict=True):
            dimension.attach_scale(file[name])
        sparse.attrs["_FillValue"] = np.int32(-5)
    return str(path)


def write_netcdf3(path, number=0):
    """Write a netCDF-3 file with padded records of bytes and shorts, and with text."""
    time = np.arange(3) + 10 * number
    dataset = xr.Dataset(
        {
            "bytes": (("time", "x"), np.arange(15, dtype="i1").reshape(3, 5)),
            "shorts": (("time", "x"), np.arange(15, dtype="i2").reshape(3, 5) - 7),
            "field": (("time", "x"), np.arange(15.0).reshape(3, 5), {"units": "K"}),
            "fixed": ("x", np.arange(5, dtype="i4")),
            "name": ("x", np.array([b"a", b"bc", b"", b"def", b"g"])),
        },
        {"time": time.astype("i4")},
    )
    dataset.to_netcdf(path, engine="scipy", unlimited_dims=["time"])
    return str(path)


def kerchunk_hdf5(folder):
    path = write_hdf5(folder / "a.nc")
    return hdf.SingleHdf5ToZarr(path, inline_threshold=20).translate(), [path]


def kerchunk_netcdf3(folder):
    path = write_netcdf3(folder / "a.nc")
    return netcdf3.NetCDF3ToZarr(path, inline_threshold=0).translate(), [path]


def kerchunk_combined(folder):
    paths = [write_hdf5(folder / f"{number}.nc", number) for number in range(3)]
    sets = [hdf.SingleHdf5ToZarr(path, inline_threshold=0).translate() for path in paths]
    fixed = ["packed", "shuffled", "big", "scalar", "sparse", "x", "y"]
    combined = combine.MultiZarrToZarr(sets, concat_dims=["time"], identical_dims=fixed)
    return combined.translate(), paths


def virtualizarr(folder):
    parsers = pytest.importorskip("virtualizarr.parsers")
    from obstore.store import LocalStore
    from virtualizarr import open_virtual_dataset
    from virtualizarr.registry import ObjectStoreRegistry

    path = write_hdf5(folder / "a.nc")
    dataset = open_virtual_dataset(
        url=f"file://{path}",
        registry=ObjectStoreRegistry({"file://": LocalStore()}),
        parser=parsers.HDFParser(),
        loadable_variables=["time", "x"],
    )
    return dataset.vz.to_kerchunk(format="dict"), [path]


PRODUCERS = [kerchunk_hdf5, kerchunk_netcdf3, kerchunk_combined, virtualizarr]


def original(paths):
    parts = [xr.open_dataset(path) for path in paths]
    options = {
        "data_vars": "minimal",
        "coords": "minimal",
        "compat": "override",
        "join": "override",
    }
    return xr.concat(parts, "time", **options) if len(parts) > 1 else parts[0]


def masking(produce):
    """Return the option that disables masking by `fill_value` for sets from VirtualiZarr.

    VirtualiZarr stores HDF5's fill values in `fill_value`, even if they do not mark missing values.
    """
    return {"use_zarr_fill_value_as_mask": False} if produce is virtualizarr else {}


# Regression D45
@pytest.mark.parametrize("produce", PRODUCERS, ids=lambda produce: produce.__name__)
@pytest.mark.parametrize("way", ["eager", "threads", "workers"])
def test_values_read_through_references_equal_those_in_original_files(
    tmp_path, request, produce, way
):
    document, paths = produce(tmp_path)
    way = request.getfixturevalue("workers") if way == "workers" else way
    path = tmp_path / "refs.json"
    path.write_text(json.dumps(document))
    opened = read(path, way, **masking(produce))
    with original(paths) as expected:
        assert set(opened.variables) == set(expected.variables)
        for name in expected.variables:
            assert opened[name].dims == expected[name].dims
            assert opened[name].dtype.kind == expected[name].dtype.kind, name
            np.testing.assert_array_equal(opened[name].values, expected[name].values, name)
        assert opened.attrs.get("title") == expected.attrs.get("title")


@pytest.mark.parametrize("produce", PRODUCERS, ids=lambda produce: produce.__name__)
def test_copy_of_reference_set_contains_original_values(tmp_path, produce):
    document, paths = produce(tmp_path)
    store = {}
    xr_nczarr.copy(document, store)
    opened = xr.open_dataset(store, engine="nczarr")
    with original(paths) as expected:
        for name in expected.variables:
            np.testing.assert_array_equal(opened[name].values, expected[name].values, name)


# Regression D45
def test_references_to_netcdf3_records_skip_padding(tmp_path):
    document, _ = kerchunk_netcdf3(tmp_path)
    entries = document["refs"]
    (_, first, length), (_, second, _) = entries["bytes/0.0"], entries["bytes/1.0"]
    assert length == 5
    assert (second - first) % 4 == 0
    assert read(document).bytes.values[:, 0].tolist() == [0, 5, 10]


def test_relative_urls_are_resolved_against_reference_set_folder(tmp_path, monkeypatch):
    write_hdf5(tmp_path / "a.nc")
    monkeypatch.chdir(tmp_path)
    document = hdf.SingleHdf5ToZarr("a.nc", inline_threshold=0).translate()
    (tmp_path / "set.json").write_text(json.dumps(document))
    df.refs_to_dataframe(document, "set.parq")
    monkeypatch.chdir("/")
    with xr.open_dataset(tmp_path / "a.nc") as expected:
        for name in ("set.json", "set.parq"):
            for options in ({}, {"trust": "none"}):
                opened = xr.open_dataset(tmp_path / name, engine="nczarr", **options)
                np.testing.assert_array_equal(opened.packed, expected.packed)


def tiff(folder, number=0):
    tifffile = pytest.importorskip("tifffile")
    values = np.arange(3 * 64 * 40, dtype="u2").reshape(3, 64, 40) + number
    path = folder / f"a{number}.tif"
    options = {"tile": (16, 16), "compression": "zlib", "photometric": "minisblack"}
    tifffile.imwrite(path, values, **options)
    return path, values


def test_templates_from_tifffile_are_expanded(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    path, values = tiff(tmp_path)
    target = tmp_path / "a.json"
    with tifffile.TiffFile(path) as file, file.aszarr() as store:
        store.write_fsspec(target, url=tmp_path.as_uri(), version=1)
    assert "{{u}}" in target.read_text()
    dataset = xr.open_dataset(target, engine="nczarr")
    (name,) = dataset.data_vars
    np.testing.assert_array_equal(dataset[name].values, values)


class TiffCodec:
    """A codec for chunks that are complete TIFF files."""

    codec_id = "tifffile"

    @classmethod
    def from_config(cls, config):
        return cls()

    def decode(self, buf, out=None):
        import io

        import tifffile

        return tifffile.imread(io.BytesIO(buf))


def test_image_sequences_from_tifffile_are_read(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    values = [tiff(tmp_path, number)[1] for number in range(2)]
    target = tmp_path / "sequence.json"
    with tifffile.TiffSequence(f"{tmp_path}/a*.tif") as sequence, sequence.aszarr() as store:
        store.write_fsspec(target, url=tmp_path.as_uri(), templatename="f", version=1)
    codecs = {"tifffile": TiffCodec}
    dataset = xr.open_dataset(target, engine="nczarr", codecs=codecs, mask_and_scale=False)
    (name,) = dataset.data_vars
    np.testing.assert_array_equal(dataset[name].values, np.stack(values))
