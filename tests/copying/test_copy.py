"""`copy`: any input, any dialect, version, chunks and codecs, and interrupted copies."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import h5py
import netCDF4
import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec

import xr_nczarr
from tests.interruptions import InterruptedMapping
from tests.processes import in_a_new_interpreter
from tests.reading import RAW, assert_reads_as, peak_memory, read_groups
from tests.servers import S3Server
from tests.small_stores import plain_objects
from tests.stores import (
    VINTAGES,
    Size,
    array_document,
    file_url,
    read_objects,
    read_with_netcdf4,
    sample,
    write_netcdf_c,
    write_vintage,
)
from xr_nczarr.cli.main import main
from xr_nczarr.copying import source as sources
from xr_nczarr.copying import transfer
from xr_nczarr.errors import ConflictError, RefusedError
from xr_nczarr.storage import RemoteStore
from xr_nczarr.writing import source_blocks


@pytest.mark.parametrize(
    ("zarr_format", "dialect"), [(2, "nczarr"), (2, "universal"), (3, "nczarr")]
)
@pytest.mark.parametrize("release", VINTAGES)
def test_copy_preserves_content_of_stores_from_every_netcdf_c_release(
    tmp_path: Path, release: str, zarr_format: int, dialect: str
) -> None:
    content, target = sample(release), tmp_path / "copy"
    source = write_vintage(tmp_path / "store", content, release)
    done = xr_nczarr.copy(source, target, zarr_format=zarr_format, dialect=dialect)
    assert_reads_as(read_groups(target, **RAW), content)
    assert {"/time", "/v_i4", "/g/own", "/g/deep/below", "/letters"} <= set(done.unchanged)
    assert not [key for key in os.listdir(target) if "unfinished" in key]


def test_unwritten_values_in_no_fill_mode_become_zeros(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with netCDF4.Dataset(tmp_path / "file.nc", "w") as file:
        file.createDimension("x", 3)
        file.createVariable("v", "i4", ("x",), fill_value=False)
    monkeypatch.setattr(np, "empty", lambda shape, dtype=float: np.full(shape, 7, dtype))
    xr_nczarr.copy(tmp_path / "file.nc", tmp_path / "copy")
    monkeypatch.undo()
    opened = xr.open_dataset(tmp_path / "copy", engine="nczarr")
    assert opened.v.values.tolist() == [0, 0, 0]


def test_netcdf_file_can_be_copied_without_netcdf4(
    tmp_path: Path,
) -> None:
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("x", 3)
        file.createVariable("v", "i4", ("x",))[:] = [1, 2, 3]
    program = "import sys; sys.modules['netCDF4'] = None; import xr_nczarr; "
    program += "print(xr_nczarr.copy('a.nc', 'store'))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert "1 array copied" in done.stdout, done.stderr
    assert xr.open_dataset(tmp_path / "store", engine="nczarr")["v"].values.tolist() == [1, 2, 3]


def test_copying_with_unknown_engine_raises_not_found_error(tmp_path: Path) -> None:
    with pytest.raises(xr_nczarr.NotFoundError, match="unknown engine 'nothing'"):
        xr_nczarr.copy(tmp_path / "one.nc", tmp_path / "two", engine="nothing")


def write_netcdf_file(path: Path) -> Path:
    """Write a netCDF-4 file with groups, types, filters, an unlimited and an unused dimension."""
    with netCDF4.Dataset(path, "w") as root:
        for name, size in {"time": None, "x": 40, "len": 3}.items():
            root.createDimension(name, size)
        root.setncatts({"title": "é", "n": np.int16(3), "many": np.array([1.5, 2.5], "f4")})
        for kind in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"):
            field = root.createVariable(
                f"v_{kind}", kind, ("time", "x"), zlib=True, chunksizes=(2, 7)
            )
            field.set_auto_maskandscale(False)
            field[:] = np.arange(5 * 40).reshape(5, 40) % 120
        packed = root.createVariable("packed", "i2", ("x",), fill_value=-1)
        packed.setncatts({"scale_factor": 0.1, "units": "days since 2000-01-01"})
        packed[:] = np.ma.masked_equal(np.arange(40.0), 3)
        root.createVariable("letters", "S1", ("x", "len"))[:] = np.full((40, 3), b"a", "S1")
        root.createVariable("words", str, ("x",))[:] = np.array(["é"] * 39 + [""], object)
        root.createVariable("scalar", "f8", ())[...] = 3.5
        inner = root.createGroup("g")
        inner.createVariable("time", "f8", ("time",))[:] = np.arange(5)
    return path


def test_netcdf_c_reads_same_content_from_copy(tmp_path: Path) -> None:
    source, target = write_netcdf_file(tmp_path / "a.nc"), tmp_path / "store"
    assert xr_nczarr.copy(source, target).arrays == 15
    with netCDF4.Dataset(source) as first, netCDF4.Dataset(file_url(target)) as second:
        expected, result = read_with_netcdf4(first), read_with_netcdf4(second)
    for before, after in ((expected, result), (expected.groups["g"], result.groups["g"])):
        assert before.variables.keys() == after.variables.keys()
        assert {n: type(v) for n, v in before.attrs.items()} == {
            n: type(v) for n, v in after.attrs.items()
        }
        for name, variable in before.variables.items():
            second = after.variables[name]
            assert second.values.dtype == variable.values.dtype, name
            assert second.dims == variable.dims
            np.testing.assert_array_equal(second.values, variable.values, name)
            assert sorted(map(repr, variable.attrs.items())) == sorted(
                map(repr, second.attrs.items())
            )
    assert isinstance(result.dims["time"], Size)


def test_reference_set_can_be_copied_to_zip_file(tmp_path: Path) -> None:
    source = write_netcdf_c(tmp_path / "store")
    xr_nczarr.references.write(source, tmp_path / "set.json")
    target = f"file://{tmp_path}/copy.zip#mode=nczarr,zip"
    assert xr_nczarr.copy(tmp_path / "set.json", target).unchanged
    for group in ("/", "/g", "/g/deep"):
        first, second = (
            xr.open_dataset(item, engine="nczarr", group=group, **RAW) for item in (source, target)
        )
        xr.testing.assert_identical(first.load(), second.load())
    with pytest.raises(FileExistsError):
        xr_nczarr.copy(source, target)


def test_unsupported_unlimited_dimension_is_rejected_or_made_fixed() -> None:
    source: dict[str, bytes] = {}
    target: dict[str, bytes] = {}
    xr_nczarr.to_nczarr(FIELD, source, unlimited_dims=["t"])
    with pytest.raises(
        xr_nczarr.UnsupportedError, match=r"4\.8\.1 cannot express that /t is unlim"
    ):
        xr_nczarr.copy(source, target, dialect="nczarr-4.8.1")
    assert not target
    done = xr_nczarr.copy(source, target, dialect="nczarr-4.8.1", skip_unsupported=True)
    assert done.skipped == ["that /t is unlimited"]
    xr.testing.assert_identical(xr.open_dataset(target, engine="nczarr").load(), FIELD)


@pytest.mark.parametrize("engine", [None, "netcdf4", "h5netcdf"])
def test_unlimited_dimensions_are_detected_with_every_engine(
    tmp_path: Path, engine: str | None
) -> None:
    source, target = tmp_path / "source.nc", tmp_path / "target"
    FIELD.to_netcdf(source, engine="netcdf4", unlimited_dims=["t"])
    with pytest.raises(xr_nczarr.UnsupportedError, match="that /t is unlimited"):
        xr_nczarr.copy(source, target, engine=engine, dialect="nczarr-4.9.1")
    assert not target.exists()


@pytest.mark.parametrize("engine", [None, "netcdf4", "h5netcdf"])
@pytest.mark.parametrize("changes", [{}, {"codecs": []}, {"chunks": {"x": 64}}], ids=str)
def test_contiguous_variable_is_divided_into_chunks(
    tmp_path: Path, engine: str | None, changes: dict[str, Any]
) -> None:
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("y", 8192)
        file.createDimension("x", 128)
        file.createVariable("v", "f8", ("y", "x"), contiguous=True)[:] = 1.5
    target: dict[str, bytes] = {}
    xr_nczarr.copy(tmp_path / "a.nc", target, engine=engine, **changes)
    variable = xr.open_dataset(target, engine="nczarr").v
    assert variable.encoding["chunks"] == (4096, changes.get("chunks", {}).get("x", 128))
    assert (variable == 1.5).all()


# h5netcdf writes all text attributes with the type string.
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("through_nczarr", [False, True])
def test_netcdf_string_attributes_are_copied_to_plain_zarr_unchanged(
    tmp_path: Path, version: int, through_nczarr: bool
) -> None:
    expected = xr.Dataset(
        {"t": ("x", np.array(["2000-01-01", "2000-01-03"], "M8[ns]"), {"names": ["a", "b"]})},
        attrs={"title": "dates"},
    )
    expected.to_netcdf(tmp_path / "source.nc", engine="h5netcdf")
    source: Any = tmp_path / "source.nc"
    if through_nczarr:
        source = {}
        xr_nczarr.copy(tmp_path / "source.nc", source, zarr_format=version)
    xr_nczarr.copy(source, tmp_path / "plain", zarr_format=version, dialect="zarr")
    for engine in ("zarr", "nczarr"):
        options: dict[str, Any] = {"consolidated": False, "engine": engine}
        xr.testing.assert_identical(xr.open_dataset(tmp_path / "plain", **options), expected)


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf", "scipy"])
def test_xarray_engines_copy_same_arrays_as_netcdf_c(tmp_path: Path, engine: str) -> None:
    """The engine scipy does not set `source` in the encoding of variables."""
    source = tmp_path / "a.nc"
    if engine == "scipy":
        with netCDF4.Dataset(source, "w", format="NETCDF3_CLASSIC") as file:
            for name, size in {"t": None, "x": 2, "length": 3}.items():
                file.createDimension(name, size)
            file.createVariable("t", "f8", ("t",))[:] = np.arange(4)
            file.createVariable("v", "f4", ("t", "x"), fill_value=-1)[:] = np.ones((4, 2))
            file.createVariable("letters", "S1", ("x", "length"))[:] = np.full((2, 3), b"a", "S1")
    else:
        write_netcdf_file(source)
    first: dict[str, bytes] = {}
    second: dict[str, bytes] = {}
    xr_nczarr.copy(source, first)
    xr_nczarr.copy(source, second, engine=engine)
    documents = (".zattrs", ".zgroup", ".zmetadata")  # list the variables in another order
    for key in documents:
        del first[key], second[key]
    assert first == second


@pytest.mark.parametrize("engine", ["netcdf4", "h5netcdf"])
def test_empty_coordinate_variable_is_copied_with_xarray_engine(
    tmp_path: Path, engine: str
) -> None:
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("t", None)
        file.createVariable("t", "f8", ("t",))
    target: dict[str, bytes] = {}
    xr_nczarr.copy(tmp_path / "a.nc", target, engine=engine)
    assert xr.open_dataset(target, engine="nczarr").t.shape == (0,)


def test_copying_with_xarray_engine_ignores_invalid_variables_outside_selection(
    tmp_path: Path,
) -> None:
    with netCDF4.Dataset(tmp_path / "a.nc", "w") as file:
        file.createDimension("x", 3)
        file.createVariable("v", "i4", ("x",))[:] = [1, 2, 3]
        file.createVariable("w", "i4", ("x",))[:] = [1, 2, 3]
    with h5py.File(tmp_path / "a.nc", "a") as file:
        file["w"].attrs["_nczarr_array"] = "x"
    done = xr_nczarr.copy(tmp_path / "a.nc", {}, engine="h5netcdf", variables=["v"])
    assert done.arrays == 1
    with pytest.raises(xr_nczarr.ConflictError, match=r"'_nczarr_array' is reserved .*/w"):
        xr_nczarr.copy(tmp_path / "a.nc", {}, engine="h5netcdf")


def test_copying_unreadable_group_raises_metadata_error() -> None:
    source: dict[str, bytes] = {}
    tree = xr.DataTree.from_dict({"/": xr.Dataset({"a": 1}), "/g": xr.Dataset({"b": 2})})
    xr_nczarr.to_nczarr(tree, source, consolidated=False)
    source["g/.zattrs"] = b"{"
    target: dict[str, bytes] = {}
    with pytest.raises(xr_nczarr.MetadataError, match=r"g/.zattrs"):
        xr_nczarr.copy(source, target)
    assert not target


FIELD = xr.Dataset(
    {"a": (("t", "x"), np.arange(60.0).reshape(6, 10)), "b": ("x", np.arange(10))}, {"t": range(6)}
)
ENCODING = {"a": {"chunks": (1, 5), "zlib": True}}


@pytest.mark.parametrize(
    "codecs",
    [
        "zlib",
        ["zlib"],
        [{"id": "zlib", "level": 1}],
        [{"name": "numcodecs.zlib", "configuration": {"level": 1}}],
        [numcodecs.Zlib(1)],
    ],
    ids=["name", "names", "numcodecs", "zarr v3", "object"],
)
def test_copy_accepts_codecs_as_names_mappings_or_objects(codecs: Any) -> None:
    source: dict[str, bytes] = {}
    copied: dict[str, bytes] = {}
    xr_nczarr.to_nczarr(xr.Dataset({"a": ("x", [1.0, 2.0])}), source)
    xr_nczarr.copy(source, copied, codecs=codecs)
    (codec,) = xr.open_dataset(copied, engine="nczarr")["a"].encoding["codecs"]
    assert codec["id"] == "zlib"
    with pytest.raises(
        xr_nczarr.UnsupportedError, match="a codec must be a codec object, a name, or"
    ):
        xr_nczarr.copy(source, {}, codecs=[{"level": 1}])


def test_copy_can_change_chunks_and_codecs(tmp_path: Path) -> None:
    xr_nczarr.to_nczarr(FIELD, tmp_path / "one", encoding=ENCODING)
    zstd = [{"id": "shuffle"}, {"id": "zstd", "level": 3}]
    done = xr_nczarr.copy(tmp_path / "one", tmp_path / "two", chunks={"t": 4}, codecs=zstd)
    assert done.unchanged == []
    result = xr.open_dataset(tmp_path / "two", engine="nczarr")
    xr.testing.assert_identical(result, FIELD)
    assert result.a.encoding["chunksizes"] == (4, 5)
    assert [codec["id"] for codec in result.a.encoding["codecs"]] == ["shuffle", "zstd"]
    with pytest.raises(NotImplementedError):
        xr_nczarr.copy(tmp_path / "one", tmp_path / "three", codecs=[{"id": "nothing"}])
    assert not (tmp_path / "three").exists()


@pytest.mark.parametrize("codecs", [[], [{"id": "zlib", "level": 1}]])
def test_requested_codecs_do_not_apply_to_scalars(tmp_path: Path, codecs: Any) -> None:
    """xarray also compresses scalars, but netCDF scalars have no filters."""
    source = tmp_path / "source"
    other: dict[str, bytes] = {}
    scalars = xr.Dataset({"a": ("x", [1.5, 2.5]), "b": 3.5, "s": "text"})
    scalars.to_zarr(source, zarr_format=2, consolidated=False)
    assert json.loads((source / "b/.zarray").read_text())["compressor"]["id"] == "blosc"
    xr_nczarr.copy(source, other, codecs=codecs)
    xr.testing.assert_identical(xr.open_dataset(other, engine="nczarr").load(), scalars)
    documents = [json.loads(other[f"{name}/.zarray"]) for name in scalars]
    compressors = [document["compressor"] for document in documents]
    assert compressors == [*(codecs or [None]), None, None]


def _peaks_of_copying(source: Path, sizes: list[int]) -> list[int]:
    xr_nczarr.copy(source, {}, chunks={"t": 2})  # imports the modules that copying needs
    # One chunk, because each thread of older dask holds a block.
    source_blocks._BLOCK_BYTES = 160 * 200 * 4
    peaks = []
    for transfer._MAX_REARRANGED_BYTES in sizes:
        target = source.parent / str(len(peaks))
        chunks = {"t": 60, "y": 20, "x": 20}
        peaks.append(peak_memory(partial(xr_nczarr.copy, source, target, chunks=chunks)))
    return peaks


def test_rechunking_keeps_only_part_of_array_in_memory(tmp_path: Path) -> None:
    values = np.arange(60 * 160 * 200, dtype="f4").reshape(60, 160, 200)
    dataset = xr.Dataset({"a": (("t", "y", "x"), values)})
    source = tmp_path / "source"
    xr_nczarr.to_nczarr(dataset, source, encoding={"a": {"chunks": (1, 160, 200)}})
    # A new process excludes the memory of threads from other tests.
    sizes = [values.nbytes, values.nbytes // 10]
    whole, parts = in_a_new_interpreter(_peaks_of_copying, source, sizes)
    for target in "01":
        copied = xr.open_dataset(tmp_path / target, engine="nczarr", chunks={})["a"]
        assert copied.encoding["chunks"] == (60, 20, 20)
        np.testing.assert_array_equal(copied.values, values)
    assert parts < whole / 3


@pytest.mark.parametrize("chunk", [(16, 256, 256), (1, 256, 256), (3, 40, 50), (40, 256, 256)])
@pytest.mark.parametrize(
    "changed",
    [
        {"codecs": []},
        {"chunks": {"t": 40, "y": 32, "x": 32}},
        {"chunks": {"t": 2}},
        {"chunks": {"t": 7, "y": 100}, "codecs": [{"id": "zlib", "level": 1}]},
    ],
    ids=str,
)
def test_copy_decodes_each_stored_chunk_once(chunk: Any, changed: Any, decoded: list[Any]) -> None:
    values = np.random.default_rng(0).integers(0, 9, (40, 256, 256)).astype("f4")
    source, target = dict[str, bytes](), dict[str, bytes]()
    encoding = {"v": {"chunks": chunk, "zlib": True, "complevel": 1}}
    xr_nczarr.to_nczarr(xr.Dataset({"v": (("t", "y", "x"), values)}), source, encoding=encoding)
    xr_nczarr.copy(source, target, **changed)
    assert decoded == [chunk] * sum(re.fullmatch(r"v/[0-9.]+", key) is not None for key in source)
    np.testing.assert_array_equal(xr.open_dataset(target, engine="nczarr").v, values)


def test_rechunking_in_parts_decodes_each_chunk_once_per_part(
    monkeypatch: pytest.MonkeyPatch, decoded: list[Any]
) -> None:
    values = np.arange(64 * 128 * 128, dtype="f4").reshape(64, 128, 128)
    source, target = dict[str, bytes](), dict[str, bytes]()
    encoding = {"v": {"chunks": (8, 128, 128), "zlib": True, "complevel": 1}}
    xr_nczarr.to_nczarr(xr.Dataset({"v": (("t", "y", "x"), values)}), source, encoding=encoding)
    monkeypatch.setattr(transfer, "_MAX_REARRANGED_BYTES", values.nbytes // 4)
    monkeypatch.setattr(source_blocks, "_BLOCK_BYTES", values.nbytes // 4)
    xr_nczarr.copy(source, target, chunks={"t": 64, "y": 16, "x": 16})
    assert decoded == [(8, 128, 128)] * 8 * 4
    np.testing.assert_array_equal(xr.open_dataset(target, engine="nczarr").v, values)


def test_interrupted_rechunking_in_parts_can_be_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "_MAX_REARRANGED_BYTES", 100)
    monkeypatch.setattr(source_blocks, "_BLOCK_BYTES", 80)
    source: dict[str, bytes] = {}
    xr_nczarr.to_nczarr(FIELD, source, encoding={"a": {"chunks": (2, 5)}})
    changed = {"chunks": {"t": 4, "x": 3}}
    whole: dict[str, bytes] = {}
    xr_nczarr.copy(source, whole, **changed)
    np.testing.assert_array_equal(xr.open_dataset(whole, engine="nczarr")["a"], FIELD["a"])
    for limit in range(3, 13):
        target: dict[str, bytes] = {}
        with pytest.raises(InterruptedError):
            xr_nczarr.copy(source, InterruptedMapping(target, limit), **changed)
        again = InterruptedMapping(target)
        assert xr_nczarr.copy(source, again, **changed).resumed
        assert target == whole
    chunks = [key for key in again.changes if key.startswith("a/") and "/." not in key]
    assert 0 < len(chunks) < 8


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_chunks_are_not_decoded_if_target_stores_them_unchanged(zarr_format: int) -> None:
    source: dict[str, bytes] = {}
    other: dict[str, bytes] = {}
    xr_nczarr.to_nczarr(FIELD, source, encoding=ENCODING)
    for key in ("a/1.1", "b/0", "t/0"):
        source[key] = b"nothing that decodes"
    done = xr_nczarr.copy(source, other, zarr_format=zarr_format)
    assert sorted(done.unchanged) == ["/a", "/b", "/t"]
    assert list(other.values()).count(b"nothing that decodes") == 3


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_strings_are_copied_as_bytes_without_decoding(zarr_format: int) -> None:
    """Only the first item is decoded, because xarray checks whether it is a time."""
    source: dict[str, bytes] = {}
    other: dict[str, bytes] = {}
    text = xr.Dataset({"s": ("x", np.array([f"station {i}" for i in range(40)], object))})
    encoding = {"s": {"chunks": (10,), "zlib": True, "shuffle": False}}
    xr_nczarr.to_nczarr(text, source, encoding=encoding, zarr_format=zarr_format)
    damaged = "s/2" if zarr_format == 2 else "s/c/2"
    source[damaged] = b"nothing that decodes"
    assert xr_nczarr.copy(source, other, zarr_format=zarr_format).unchanged == ["/s"]
    assert other[damaged] == b"nothing that decodes"


def test_shards_are_copied_as_whole_objects() -> None:
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    encoding = {"a": {"chunks": (1, 5), "shards": (2, 10)}}
    xr_nczarr.to_nczarr(FIELD, first, encoding=encoding, zarr_format=3)
    done = xr_nczarr.copy(first, second, zarr_format=3, dialect="zarr")
    assert "/a" in done.unchanged
    assert {key: first[key] for key in first if "/c" in key} == {
        key: second[key] for key in second if "/c" in key
    }


def test_chunks_are_reencoded_if_target_needs_different_metadata(tmp_path: Path) -> None:
    fields = np.dtype([("a", ">i4"), ("b", "<f8")])
    root = zarr.open_group(tmp_path / "two", zarr_format=2)
    values = np.array([(1, 2.0), (3, 4.0)], fields)
    root.create_array("v", data=values).attrs["_ARRAY_DIMENSIONS"] = ["x"]
    index_codecs = [BytesCodec(endian="big"), Crc32cCodec()]
    shards = ShardingCodec(chunk_shape=(1,), index_codecs=index_codecs)
    zarr.open_group(tmp_path / "three", zarr_format=3).create_array(
        "v", data=np.arange(2), chunks=(2,), serializer=shards, compressors=None, filters=None
    )
    for name, expected in {"two": values, "three": np.arange(2)}.items():
        target: dict[str, Any] = {}
        xr_nczarr.copy(tmp_path / name, target, zarr_format=3, dialect="zarr")
        result = xr.open_dataset(target, engine="nczarr").v.to_numpy()
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("zarr_format", [2, "3-draft"])
def test_inner_chunks_become_chunks_in_version_without_shards(
    zarr_format: Any,
) -> None:
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    encoding = {"a": {"chunks": (1, 5), "shards": (2, 10), "zlib": True}}
    xr_nczarr.to_nczarr(FIELD, first, encoding=encoding, zarr_format=3)
    xr_nczarr.copy(first, second, zarr_format=zarr_format)
    result = xr.open_dataset(second, engine="nczarr")
    xr.testing.assert_identical(result, FIELD)
    assert result.a.encoding["chunksizes"] == (1, 5)
    assert sum("/a/" in f"/{key}" and key[-1].isdigit() for key in second) == 12


@pytest.mark.parametrize("changed", [{}, {"chunks": {"t": 2}}], ids=["as bytes", "re-encoded"])
def test_rerunning_interrupted_copy_completes_it(changed: dict) -> None:
    source: dict[str, bytes] = {}
    blocks = FIELD.chunk({"t": 2, "x": 5})
    xr_nczarr.to_nczarr(blocks, source, encoding=ENCODING)
    whole: dict[str, bytes] = {}
    xr_nczarr.copy(source, whole, **changed)
    count = InterruptedMapping({})
    xr_nczarr.copy(source, count, **changed)
    for limit in range(len(count.changes)):
        target: dict[str, bytes] = {}
        first, second = InterruptedMapping(target, limit), InterruptedMapping(target)
        with pytest.raises(InterruptedError):
            xr_nczarr.copy(source, first, **changed)
        if limit <= len(count.changes) - 3:  # the documents of the root are written last
            with pytest.raises(xr_nczarr.NotFoundError):
                xr_nczarr.info(target)
        assert xr_nczarr.copy(source, second, **changed).resumed == (limit > 1)
        assert target == whole
        if not changed:
            copied = [key for key in first.changes if key.startswith("a/") and "/." not in key]
            assert not set(copied) & set(second.changes) or limit < 2


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_rerunning_interrupted_copy_of_scalars_completes_it(zarr_format: int) -> None:
    source: dict[str, bytes] = {}
    xr_nczarr.to_nczarr(xr.Dataset({"a": 1.5, "b": 2}), source, encoding={"a": {"dtype": ">f8"}})
    options: dict[str, Any] = {"zarr_format": zarr_format, "dialect": "zarr", "codecs": []}
    whole = InterruptedMapping({})
    xr_nczarr.copy(source, whole, **options)
    for limit in range(len(whole.changes)):
        target: dict[str, bytes] = {}
        with pytest.raises(InterruptedError):
            xr_nczarr.copy(source, InterruptedMapping(target, limit), **options)
        xr_nczarr.copy(source, target, **options)
        assert target == whole.objects


def test_copy_never_mixes_chunks_from_two_versions_of_source() -> None:
    source: dict[str, bytes] = {}
    xr_nczarr.to_nczarr(FIELD, source, encoding=ENCODING)
    target: dict[str, bytes] = {}
    with pytest.raises(InterruptedError):
        xr_nczarr.copy(source, InterruptedMapping(target, 9))
    xr_nczarr.to_nczarr(-FIELD.drop_vars("t"), source, mode="r+")
    assert not xr_nczarr.copy(source, target).resumed
    result = xr.open_dataset(target, engine="nczarr")
    xr.testing.assert_equal(result, xr.open_dataset(source, engine="nczarr"))

    class Meddling(InterruptedMapping):
        def __setitem__(self, key: str, data: bytes) -> None:
            super().__setitem__(key, data)
            source["a/0.0"] = source["a/1.1"]

    other: dict[str, bytes] = {}
    with pytest.raises(xr_nczarr.ConflictError, match="changed"):
        xr_nczarr.copy(source, Meddling(other))
    with pytest.raises(xr_nczarr.NotFoundError):
        xr_nczarr.info(other)


# A command that is killed just before it renames the thousandth file.
KILLED = """
import itertools, os, signal, sys
from xr_nczarr.cli.main import main

renamed = itertools.count()
sys.addaudithook(
    lambda event, _: event == "os.rename"
    and next(renamed) == 1000
    and os.kill(os.getpid(), signal.SIGKILL)
)
main(sys.argv[1:])
"""

# A command that is interrupted at a rename, or just before it reads a chunk.
INTERRUPTED = """
import itertools, os, signal, sys, threading
from xr_nczarr.cli.main import main

counted = itertools.count()
chunks = sys.argv[2] + "/a/"
def interrupt(event, arguments):
    counts = event == "os.rename" or (event == "open" and str(arguments[0]).startswith(chunks))
    if counts and next(counted) == 1000:
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(interrupt)
sys.exit(main(sys.argv[1:]))
"""


def test_rerunning_killed_copy_completes_it_without_rewriting_chunks(tmp_path: Path) -> None:
    source, target = str(tmp_path / "one"), str(tmp_path / "two")
    dataset = xr.Dataset({"a": ("x", np.arange(3000.0)), "s": ("n", ["x", "yé"])})
    xr_nczarr.to_nczarr(dataset, source, encoding={"a": {"chunks": (1,)}})
    killed = subprocess.run([sys.executable, "-c", KILLED, "copy", source, target])
    assert killed.returncode == -signal.SIGKILL
    before = {key: os.stat(f"{target}/a/{key}").st_mtime_ns for key in os.listdir(f"{target}/a")}
    assert main(["copy", source, target]) == 0
    assert len(before) > 900
    for key, moment in before.items():
        if key.isdigit():
            assert os.stat(f"{target}/a/{key}").st_mtime_ns == moment
    result = xr.open_dataset(target, engine="nczarr")
    xr.testing.assert_identical(result, dataset)


@pytest.mark.parametrize(
    ("target", "note"), [("two", "to complete it"), ("two.nc", "to start over")]
)
def test_interrupted_copy_command_explains_how_to_continue(
    tmp_path: Path, target: str, note: str, capsys
) -> None:
    source, target = str(tmp_path / "one"), str(tmp_path / target)
    dataset = xr.Dataset({"a": ("x", np.arange(3000.0))})
    xr_nczarr.to_nczarr(dataset, source, encoding={"a": {"chunks": (1,)}})
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, "copy", source, target], capture_output=True, text=True
    )
    assert done.returncode == 130
    expected = f"nczarr copy: interrupted. The copy is incomplete: run it again {note}\n"
    assert done.stderr == expected
    assert done.stdout == ""
    assert main(["info", target]) == 2
    message = capsys.readouterr().err
    assert ("the store is incomplete" if note == "to complete it" else "does not exist") in message
    assert main(["copy", source, target]) == 0
    assert ("completing an interrupted copy" in capsys.readouterr().out) == (
        note == "to complete it"
    )
    assert xr_nczarr.diff(source, target).whole
    assert sorted(os.listdir(tmp_path)) == ["one", os.path.basename(target)]


def test_interrupted_replacement_of_remote_store_can_be_completed(
    tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = xr.Dataset({"a": ("x", np.arange(4.0)), "b": ("x", np.arange(4.0))})
    xr_nczarr.to_nczarr(dataset, tmp_path / "one")
    options = {"target_options": s3_server.storage_options, "overwrite": True}
    xr_nczarr.copy(tmp_path / "one", "s3://bucket/two", **options)
    copy_from, calls = RemoteStore.copy_from, itertools.count()

    def interrupted(store: RemoteStore, *arguments: Any) -> Any:
        if next(calls) == 1:
            raise KeyboardInterrupt
        return copy_from(store, *arguments)

    monkeypatch.setattr(RemoteStore, "copy_from", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        xr_nczarr.copy(tmp_path / "one", "s3://bucket/two", **options)
    assert caught.value.__notes__ == ["The copy is incomplete: run it again to complete it"]
    assert xr_nczarr.copy(tmp_path / "one", "s3://bucket/two", **options).resumed


def test_copy_does_not_overwrite_existing_target(tmp_path: Path, capsys) -> None:
    xr_nczarr.to_nczarr(FIELD, tmp_path / "one")
    assert main(["copy", str(tmp_path / "one"), str(tmp_path / "two"), "--zarr-format", "3"]) == 0
    assert "3 arrays copied" in capsys.readouterr().out
    assert main(["copy", str(tmp_path / "one"), str(tmp_path / "two")]) == 2
    assert "the store already exists" in capsys.readouterr().err
    (tmp_path / "three").mkdir()
    (tmp_path / "three" / "letter.txt").write_text("dear")
    with pytest.raises(FileExistsError):
        xr_nczarr.copy(tmp_path / "one", tmp_path / "three")


@pytest.mark.parametrize("name", ["out.nc", "OUT.NC", "out.nc4", "out.cdf", "out.nc/"])
def test_copying_to_path_with_netcdf_extension_writes_netcdf_file(
    tmp_path: Path, name: str
) -> None:
    xr_nczarr.to_nczarr(FIELD, tmp_path / "one", encoding=ENCODING)
    assert main(["copy", str(tmp_path / "one"), f"{tmp_path}/{name}"]) == 0
    with xr.open_dataset(tmp_path / name.rstrip("/"), engine="netcdf4") as copied:
        xr.testing.assert_identical(copied.load(), FIELD)


@pytest.mark.parametrize("target", ["two", "file://{}/two.zip#mode=nczarr,zip"])
def test_copy_never_overwrites_directory_that_is_not_a_store(tmp_path: Path, target: str) -> None:
    item, target = str(tmp_path / "one"), target.format(tmp_path)
    target = target if "://" in target else str(tmp_path / target)
    xr_nczarr.to_nczarr(FIELD, item, encoding=ENCODING)
    xr_nczarr.to_nczarr(xr.Dataset({"old": ("x", [1, 2])}), target)
    assert main(["copy", item, target]) == 2
    assert main(["copy", item, target, "--overwrite"]) == 0
    xr.testing.assert_identical(xr.open_dataset(target, engine="nczarr"), FIELD)
    for overwrite in (False, True):
        with pytest.raises(RefusedError, match="the source and the target are the same"):
            xr_nczarr.copy(target, target, overwrite=overwrite)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(RefusedError, match="inside"):
        xr_nczarr.copy(item, f"{item}/inside")
    assert sorted(tmp_path.rglob("*")) == before
    xr.testing.assert_identical(xr.open_dataset(target, engine="nczarr"), FIELD)
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "letter.txt").write_text("dear")
    with pytest.raises(FileExistsError):
        xr_nczarr.copy(item, tmp_path / "papers", overwrite=True)
    assert os.listdir(tmp_path / "papers") == ["letter.txt"]


def test_failed_copy_with_overwrite_leaves_old_store_unchanged(tmp_path: Path) -> None:
    """The source is a reference set that refers to chunks in the target itself."""
    store = tmp_path / "store"
    xr_nczarr.to_nczarr(FIELD, store, encoding=ENCODING)
    xr_nczarr.references.write(store, tmp_path / "set.json")
    damaged = store / "a" / "1.1"
    damaged.write_bytes(b"no zlib" + damaged.read_bytes()[7:])
    before = read_objects(store)
    with pytest.raises(xr_nczarr.ChunkError):
        xr_nczarr.copy(tmp_path / "set.json", store, overwrite=True, chunks={"t": 3})
    assert read_objects(store) == before


# ---- to and from servers

LARGE = xr.Dataset({"a": ("x", np.arange(150e3)), "b": ("x", np.arange(150_000))})
ENCODED = {"a": {"chunks": (2500,), "zlib": True}, "b": {"chunks": (50_000,)}}


def objects(s3: Any, name: str) -> dict[str, bytes]:
    filesystem = fsspec.filesystem("s3", **s3.storage_options, skip_instance_cache=True)
    folder = f"{s3.bucket}/{name}/"
    return {key.removeprefix(folder): filesystem.cat(key) for key in filesystem.find(folder)}


@pytest.mark.parametrize("changed", [{}, {"chunks": {"x": 5000}}], ids=["as bytes", "re-encoded"])
def test_failed_copy_to_object_store_can_be_completed(s3_server, changed) -> None:
    source: dict[str, bytes] = {}
    xr_nczarr.to_nczarr(LARGE, source, encoding=ENCODED)
    options: Any = {"target_options": s3_server.storage_options} | changed
    whole: dict[str, bytes] = {}
    xr_nczarr.copy(source, whole, **changed)
    written = itertools.count()
    s3_server.fail = lambda request: 403 if request.method == "PUT" and next(written) >= 9 else None
    with pytest.raises(xr_nczarr.StorageError):
        xr_nczarr.copy(source, "s3://bucket/store", **options)
    s3_server.fail = None
    with pytest.raises(xr_nczarr.NotFoundError):
        xr_nczarr.info("s3://bucket/store", storage_options=s3_server.storage_options)
    before = objects(s3_server, "store").keys()
    s3_server.clear()
    assert xr_nczarr.copy(source, "s3://bucket/store", **options).resumed
    put = {item.path.partition("?")[0] for item in s3_server.requests if item.method == "PUT"}
    # Re-encoded chunks are written in blocks of several MB; interrupted blocks are repeated.
    assert changed or not put & {f"/bucket/store/{key}" for key in before if key[-1].isdigit()}
    assert objects(s3_server, "store") == whole
    with pytest.raises(FileExistsError):
        xr_nczarr.copy(source, "s3://bucket/store", **options)
    xr_nczarr.copy(source, "s3://bucket/store", **options, overwrite=True)
    assert objects(s3_server, "store") == whole


def test_failed_copy_from_object_store_can_be_completed(s3_server, tmp_path: Path) -> None:
    options = {"storage_options": s3_server.storage_options}
    xr_nczarr.to_nczarr(LARGE, "s3://bucket/source", encoding=ENCODED, **options)
    s3_server.fail = lambda request: 403 if request.path.endswith("/b/1") else None
    with pytest.raises(xr_nczarr.StorageError):
        xr_nczarr.copy("s3://bucket/source", tmp_path / "store", **options)
    s3_server.fail = None
    s3_server.clear()
    done = xr_nczarr.copy("s3://bucket/source", tmp_path / "store", **options)
    assert done.resumed
    assert done.objects == 3
    assert not s3_server.requests_for("/bucket/source/a/1*")
    result = xr.open_dataset(tmp_path / "store", engine="nczarr")
    xr.testing.assert_identical(result, LARGE)


def test_killed_copy_to_object_store_can_be_completed(s3_server, tmp_path: Path) -> None:
    source, target = str(tmp_path / "one"), "s3://bucket/killed"
    xr_nczarr.to_nczarr(LARGE, source, encoding=ENCODED)
    arguments = ["copy", source, target]
    for name, value in s3_server.storage_options.items():
        arguments += ["--target-option", f"{name}={json.dumps(value)}"]
    reached, ended = threading.Event(), threading.Event()

    def hold(request: Any) -> None:
        if request.method == "PUT" and "/a/4" in request.path:
            reached.set()
            ended.wait(60)

    s3_server.fail = hold
    with subprocess.Popen([sys.executable, "-m", "xr_nczarr", *arguments]) as child:
        try:
            assert reached.wait(60)
        finally:
            child.kill()
            ended.set()
            s3_server.fail = None
    assert "killed/.zgroup" not in objects(s3_server, "killed")
    assert main(arguments) == 0
    whole: dict[str, bytes] = {}
    xr_nczarr.copy(source, whole)
    assert objects(s3_server, "killed") == whole


def test_concurrent_copies_to_same_object_store_target_are_rejected() -> None:
    """Both copies would write their chunks under the same keys."""
    target, refused, seen = "memory://two-copies", [], []
    first: dict[str, bytes] = {}
    xr_nczarr.to_nczarr(FIELD, first)

    class Read(dict[str, bytes]):
        def __getitem__(self, key: str) -> bytes:
            seen.append(key)
            if seen.count("a/1.0") == 2 and not refused:  # on the first check for changes
                with pytest.raises(xr_nczarr.ConflictError, match="another write") as info:
                    xr_nczarr.copy(first, target, zarr_format=3)
                refused.append(info.value)
            return super().__getitem__(key)

    two: dict[str, bytes] = {}
    xr_nczarr.to_nczarr(-FIELD, two, encoding=ENCODING)
    xr_nczarr.copy(Read(two), target)
    assert refused
    xr.testing.assert_identical(xr.open_dataset(target, engine="nczarr").load(), -FIELD)
    with pytest.raises(xr_nczarr.ExistsError):
        xr_nczarr.copy(first, target)


def test_rerunning_interrupted_copy_from_http_explains_why_it_restarts(
    http_server, tmp_path: Path, capsys
) -> None:
    xr_nczarr.to_nczarr(LARGE, f"{http_server.root}/source", encoding=ENCODED)
    source, target = f"{http_server.url}/source", str(tmp_path / "copy")
    http_server.fault("status", path="*/b/1", status=403)
    assert main(["copy", source, target]) == 2
    assert "403" in capsys.readouterr().err
    assert main(["copy", source, target]) == 0
    assert (
        "restarted, because it is unknown whether the source has changed" in capsys.readouterr().out
    )
    whole = tmp_path / "whole"
    xr_nczarr.copy(f"{http_server.root}/source", whole)
    assert read_objects(target) == read_objects(whole)


def test_interrupted_copy_to_zip_file_leaves_no_files(http_server, tmp_path: Path) -> None:
    xr_nczarr.to_nczarr(LARGE, f"{http_server.root}/source", encoding=ENCODED)
    target = f"file://{tmp_path}/copy.zip#mode=nczarr,zip"
    http_server.fault("status", path="*/b/1", status=403)
    before = set(os.listdir(tmp_path))
    with pytest.raises(xr_nczarr.StorageError):
        xr_nczarr.copy(f"{http_server.url}/source", target)
    assert set(os.listdir(tmp_path)) == before
    assert not xr_nczarr.copy(f"{http_server.url}/source", target).resumed
    xr.testing.assert_identical(xr.open_dataset(target, engine="nczarr"), LARGE)


@pytest.mark.parametrize("codecs", [None, [{"id": "zlib", "level": 1}]])
def test_booleans_can_be_copied_to_plain_zarr(codecs: Any) -> None:
    first: Any = {}
    second: Any = {}
    third: Any = {}
    dataset = xr.Dataset({"v": ("x", [True, False])})
    xr_nczarr.to_nczarr(dataset, first)
    xr_nczarr.copy(first, second, dialect="zarr", codecs=codecs)
    xr_nczarr.to_nczarr(xr.open_dataset(first, engine="nczarr"), third, dialect="zarr")
    xr.testing.assert_identical(xr.open_dataset(second, engine="nczarr"), dataset)
    xr.testing.assert_identical(xr.open_dataset(third, engine="nczarr"), dataset)


def test_copy_to_plain_zarr_does_not_mask_default_fill_values(tmp_path: Path) -> None:
    values = np.array([1, -2147483647, 3, -2147483647], "i4")
    source, target = tmp_path / "source", tmp_path / "target"
    xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", values)}), source, encoding={"v": {"chunks": 2}})
    os.remove(source / "v/1")  # read as the default fill value
    expected = xr.open_dataset(source, engine="nczarr").load()
    assert expected.v.values.tolist() == [1, *[-2147483647] * 3]
    xr_nczarr.copy(source, target, dialect="zarr")
    for engine in ("nczarr", "zarr"):
        result = xr.open_dataset(target, engine=engine).v
        assert (result.values.tolist(), result.dtype) == (expected.v.values.tolist(), "int32")


# Without consolidated metadata, zarr-python warns about other objects.
@pytest.mark.filterwarnings("ignore:Object at .ncz")
@pytest.mark.parametrize("dialect", ["zarr", "nczarr", "universal"])
@pytest.mark.parametrize(
    ("version", "fill", "copied"), [(2, None, None), (2, 0, 0), (3, 0, None), (3, 7, "written out")]
)
def test_copy_and_source_have_same_masked_values(
    tmp_path: Path, version: Any, fill: int | None, copied: Any, dialect: str
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    group = zarr.create_group(source, zarr_format=version)
    named: Any = {"dimension_names": ["x"]}
    if version == 2:
        named = {"attributes": {"_ARRAY_DIMENSIONS": ["x"]}}
    options: Any = {"shape": 4, "chunks": 2, "dtype": "i4", "fill_value": fill, **named}
    group.create_array("v", **options)[:2] = [7, 0]
    as_bytes = copied != "written out"
    assert bool(xr_nczarr.copy(source, target, dialect=dialect).unchanged) is as_bytes
    assert os.path.exists(target / "v/1") is not as_bytes
    if as_bytes:
        assert json.loads((target / "v/.zarray").read_bytes())["fill_value"] == copied
    for engine in ("nczarr", "zarr"):
        expected, result = (
            xr.open_dataset(path, engine=engine, consolidated=False).v for path in (source, target)
        )
        np.testing.assert_array_equal(result, expected)
        assert np.isnan(result).any() == (copied == 0)
    if dialect != "zarr":
        zero = None if copied == 0 else 0  # masked in the source
        with netCDF4.Dataset(f"file://{target}#mode=nczarr,file") as dataset:
            assert dataset["v"][:].tolist() == [7, zero, *[fill or zero] * 2]


@pytest.mark.parametrize(
    ("dtype", "fill_value"),
    [("<f8", "many"), ("<i4", "1"), ("<i4", 1.5), ("|i1", 300), ("<i4", [1, 2])],
)
@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_copy_keeps_fill_value_attribute_not_representable_in_dtype(
    zarr_format: int, dialect: str, dtype: str, fill_value: Any
) -> None:
    source = plain_objects(_FillValue=fill_value, shape=(4,))
    document = array_document((4,), dtype, chunks=[2], fill_value=3)
    source |= {
        "a/.zarray": json.dumps(document).encode(),
        "a/0": np.arange(2, dtype=dtype).tobytes(),
    }
    target: dict[str, bytes] = {}
    xr_nczarr.copy(source, target, zarr_format=zarr_format, dialect=dialect)
    for objects in (source, target):
        copied = xr.open_dataset(objects, engine="nczarr", decode_cf=False).a
        assert copied.values.tolist() == [0, 1, 3, 3]
        assert np.array_equal(copied.attrs["_FillValue"], fill_value)


# Copying characters with a numeric fill value raised an AttributeError.
@pytest.mark.parametrize(("dtype", "fill_value"), [("i4", np.float64(1.5)), ("S1", np.int32(3))])
def test_copy_keeps_fill_value_attribute_whose_type_differs_from_variable(
    tmp_path: Path, dtype: str, fill_value: Any
) -> None:
    source, target = tmp_path / "source.nc", dict[str, bytes]()
    with netCDF4.Dataset(source, "w") as file:
        file.createDimension("x", 2)
        file.createVariable("v", dtype, ("x",))
    with h5py.File(source, "a") as file:
        file["v"].attrs["_FillValue"] = fill_value
    xr_nczarr.copy(source, target)
    assert json.loads(target["v/.zattrs"])["_FillValue"] == fill_value


@pytest.mark.parametrize(
    ("dtype", "attributes"),
    [
        ("<m8[D]", {"units": 2}),
        ("<m8[D]", {"_FillValue": "many"}),
        ("|b1", {"_FillValue": [1.5, "a"]}),
        ("<m8[D]", {"dtype": "int64"}),
    ],
)
def test_copying_variable_with_unencodable_attributes_to_nczarr_is_rejected(
    dtype: str, attributes: dict[str, Any]
) -> None:
    source = plain_objects(**attributes)
    source["a/.zarray"] = json.dumps(array_document((2,), dtype)).encode()
    source["a/0"] = np.arange(2).astype(dtype).tobytes()
    with pytest.raises(ConflictError, match=r"\(variable /a\)\. Correct or remove the attributes"):
        xr_nczarr.copy(source, {})


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
@pytest.mark.parametrize("fill_value", [5, {"a": 1}, [1, 2]], ids=str)
def test_copy_of_strings_keeps_non_text_fill_value_attribute(
    fill_value: Any, dialect: str, zarr_format: int
) -> None:
    source = plain_objects(_FillValue=fill_value)
    codec = {"id": "vlen-utf8"}
    source["a/.zarray"] = json.dumps(array_document((2,), "|O", filters=[codec])).encode()
    source["a/0"] = bytes(numcodecs.VLenUTF8().encode(np.array(["a", "bc"], object)))
    target: dict[str, bytes] = {}
    xr_nczarr.copy(source, target, zarr_format=zarr_format, dialect=dialect)
    copied = xr.open_dataset(target, engine="nczarr", decode_cf=False).a
    assert [str(item) for item in copied.astype(str).values] == ["a", "bc"]
    assert "_FillValue" in copied.attrs


# The copy had netCDF's default fill value.
@pytest.mark.filterwarnings("ignore:Failed to open Zarr store with consolidated metadata")
def test_copy_with_zarr_engine_keeps_zarr_v3_fill_value(tmp_path):
    source, target = tmp_path / "source", tmp_path / "target"
    group = zarr.create_group(source, zarr_format=3)
    group.create_array(
        "v", shape=(4,), dtype="u1", chunks=(2,), fill_value=7, dimension_names=["x"]
    )[:2] = [255, 0]
    xr_nczarr.copy(source, target, engine="zarr", dialect="zarr", zarr_format=3)
    copied = zarr.open_group(target)["v"]
    assert (copied.fill_value, copied[:].tolist()) == (7, [255, 0, 7, 7])


@pytest.mark.parametrize(
    "changes",
    [{"chunksizes": (2, 2)}, {"chunks": ((1, 3),)}, {"filters": [object()]}],
    ids=["rank", "lengths", "codec"],
)
def test_copy_ignores_unsuitable_encoding_set_by_source_engine(tmp_path, monkeypatch, changes):
    xr.Dataset({"v": ("x", np.arange(4.0))}).to_netcdf(tmp_path / "s.nc", engine="netcdf4")
    opened = sources.open_datasets

    def open_datasets(*arguments, **options):
        datasets = opened(*arguments, **options)
        datasets["/"].v.encoding.update(changes)
        return datasets

    monkeypatch.setattr(sources, "open_datasets", open_datasets)
    xr_nczarr.copy(tmp_path / "s.nc", tmp_path / "t", engine="netcdf4")
    assert xr.open_dataset(tmp_path / "t", engine="nczarr").v.values.tolist() == [0, 1, 2, 3]
