"""Reference sets from kerchunk and VirtualiZarr yield the same bytes as through fsspec."""

import json

import fsspec
import h5py
import numpy as np
import pytest

from xr_nczarr.references import expand
from xr_nczarr.references.parse import parse_references
from xr_nczarr.references.render import collect_references, render_references
from xr_nczarr.storage.store import Address

h5_producer = pytest.importorskip("kerchunk.hdf")
combiner = pytest.importorskip("kerchunk.combine")
netcdf3_producer = pytest.importorskip("kerchunk.netCDF3")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

FIELD = np.arange(48.0).reshape(6, 8)


def write_hdf5(path, offset=0.0):
    with h5py.File(path, "w") as file:
        scales = {"time": [offset], "y": np.arange(6.0), "x": np.arange(8.0)}
        for name, values in scales.items():
            file.create_dataset(name, data=np.array(values)).make_scale(name)
        field = file.create_dataset("t", data=FIELD[None] + offset, chunks=(1, 3, 4))
        packed = file.create_dataset("packed", data=FIELD, chunks=(6, 2), compression="gzip")
        for variable, names in ((field, scales), (packed, ("y", "x"))):
            for dimension, name in zip(variable.dims, names, strict=True):
                dimension.attach_scale(file[name])
        file["group/deep"] = np.int16(7)
        file.attrs["units"] = "°C"
    return str(path)


def hdf5(tmp_path):
    path = write_hdf5(tmp_path / "a.h5")
    return h5_producer.SingleHdf5ToZarr(path, inline_threshold=20).translate()


def combined(tmp_path):
    sets = []
    for number in range(3):
        path = write_hdf5(tmp_path / f"{number}.h5", number)
        sets.append(h5_producer.SingleHdf5ToZarr(path, inline_threshold=0).translate())
    return combiner.MultiZarrToZarr(
        sets, concat_dims=["time"], identical_dims=["packed"]
    ).translate()


def netcdf3(tmp_path):
    from scipy.io import netcdf_file

    path = str(tmp_path / "a.nc")
    with netcdf_file(path, "w") as file:
        file.createDimension("time", None)
        file.createDimension("x", 8)
        for name, kind in (("t", "f4"), ("odd", "i1")):
            variable = file.createVariable(name, kind, ("time", "x"))
            variable[:] = FIELD.astype(kind)
        file.createVariable("x", "f8", ("x",))[:] = FIELD[0]
    return netcdf3_producer.NetCDF3ToZarr(path).translate()


def virtualizarr(tmp_path):
    parsers = pytest.importorskip("virtualizarr.parsers")
    from obstore.store import LocalStore
    from virtualizarr import open_virtual_dataset
    from virtualizarr.registry import ObjectStoreRegistry

    path = write_hdf5(tmp_path / "a.h5")
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    dataset = open_virtual_dataset(
        url=f"file://{path}",
        registry=registry,
        parser=parsers.HDFParser(),
        loadable_variables=["time"],
    )
    return dataset.vz.to_kerchunk(format="dict")


PRODUCERS = [hdf5, combined, netcdf3, virtualizarr]


@pytest.mark.parametrize("produce", PRODUCERS)
@pytest.mark.parametrize("spelling", ["dict", "json", "rendered", "compacted"])
def test_reference_sets_resolve_to_same_targets_as_in_fsspec(tmp_path, produce, spelling):
    document = produce(tmp_path)
    reader = fsspec.filesystem("reference", fo=document)
    seen = reader.references
    if spelling == "json":
        document = json.dumps(document)
    if spelling in ("rendered", "compacted"):
        compacted = spelling == "compacted"
        listed = collect_references(parse_references(document).items())
        document = render_references(listed, generators=compacted)
    references = parse_references(document)
    assert {key for key, _ in references.items()} == set(seen)
    for key, entry in seen.items():
        result = references.resolve(key)
        if isinstance(entry, list):
            assert result == Address(*entry)
        else:
            assert isinstance(result, bytes)
            assert result == reader.cat_file(key)
    assert set(expand(document)) == set(seen)


def read(reference):
    if isinstance(reference, bytes):
        return reference
    with open(reference.url.removeprefix("file://"), "rb") as file:
        file.seek(reference.offset)
        return file.read(reference.length)


def test_references_to_hdf5_chunks_contain_correct_bytes(tmp_path):
    references = parse_references(hdf5(tmp_path))
    for i in range(2):
        for j in range(2):
            chunk = np.frombuffer(read(references.resolve(f"t/0.{i}.{j}")), "<f8").reshape(3, 4)
            np.testing.assert_array_equal(chunk, FIELD[3 * i : 3 * i + 3, 4 * j : 4 * j + 4])


def test_combined_reference_set_refers_to_chunks_of_every_file(tmp_path):
    references = parse_references(combined(tmp_path))
    for number in range(3):
        chunk = np.frombuffer(read(references.resolve(f"t/{number}.1.1")), "<f8").reshape(3, 4)
        np.testing.assert_array_equal(chunk, FIELD[3:, 4:] + number)


def test_references_to_netcdf3_records_contain_correct_bytes(tmp_path):
    references = parse_references(netcdf3(tmp_path))
    for record in range(6):
        result = np.frombuffer(read(references.resolve(f"t/{record}.0")), ">f4")
        np.testing.assert_array_equal(result, FIELD[record])


# Regression D44
def test_inline_values_from_virtualizarr_are_decoded(tmp_path):
    references = parse_references(virtualizarr(tmp_path))
    assert np.frombuffer(read(references.resolve("time/0")), "<f8").tolist() == [0.0]
