"""`copy` to a netCDF file: the values that netcdf-c reads, errors, and files that remain."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.reading import RAW, read_groups
from tests.stores import (
    COMPRESSIONS,
    VINTAGES,
    file_url,
    has_ncgen,
    read_with_netcdf4,
    sample,
    write_netcdf_c,
    write_vintage,
)
from xr_nczarr import StorageError


def test_netcdf_c_reads_same_content_from_store_and_copied_file(tmp_path: Path) -> None:
    store = write_netcdf_c(tmp_path / "store")
    with pytest.warns(UserWarning, match="netCDF does not support the filter blosc"):
        done = xr_nczarr.copy(store, tmp_path / "out.nc")
    with netCDF4.Dataset(file_url(store)) as first, netCDF4.Dataset(tmp_path / "out.nc") as second:
        assert second.data_model == "NETCDF4"
        assert done.arrays == len(first.variables) + len(first["g"].variables) + 1
        for name, variable in first.variables.items():
            copied = second[name]
            if variable.dimensions:
                assert copied.chunking() == variable.chunking(), name
            assert copied.endian() == variable.endian(), name
            if name in COMPRESSIONS and COMPRESSIONS[name].get("compression") == "zlib":
                assert copied.filters() == variable.filters(), name
        expected, result = read_with_netcdf4(first), read_with_netcdf4(second)
    for (path, before), (_, after) in zip(expected.walk(), result.walk(), strict=True):
        assert repr((after.dims, after.attrs)) == repr((before.dims, before.attrs)), path
        assert repr(after.variables) == repr(before.variables), path


def test_copy_to_read_only_file_system_raises_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(path: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", [1.0])}), tmp_path / "store")
    (tmp_path / "out.nc.unfinished").mkdir()  # netCDF-C cannot create a file of this name
    monkeypatch.setattr(os, "remove", remove)
    with pytest.raises(StorageError, match="netCDF-C cannot write the file"):
        xr_nczarr.copy(tmp_path / "store", tmp_path / "out.nc")


@pytest.mark.parametrize("release", VINTAGES)
def test_stores_from_every_netcdf_c_release_can_be_copied(release: str, tmp_path: Path) -> None:
    store = write_vintage(tmp_path / "store", sample(release), release)
    xr_nczarr.copy(store, tmp_path / "out.nc")
    expected = read_groups(store, **RAW)
    with ExitStack() as files:
        for path, dataset in xr.open_groups(tmp_path / "out.nc", engine="netcdf4", **RAW).items():
            files.enter_context(dataset)
            xr.testing.assert_identical(dataset, expected[path])


def test_error_for_missing_target_folder_includes_target_path(tmp_path: Path) -> None:
    xr_nczarr.to_nczarr(xr.Dataset({"a": ("t", [1])}), tmp_path / "a")
    with pytest.raises(
        xr_nczarr.NotFoundError, match=r"none/a\.nc: the parent folder of the target does not exist"
    ):
        xr_nczarr.copy(tmp_path / "a", tmp_path / "none" / "a.nc")


@pytest.mark.parametrize("place", ["values", "attribute"])
def test_copying_strings_containing_nul_is_rejected(tmp_path: Path, place: str) -> None:
    texts = ["a\0b", "c"]
    dataset = xr.Dataset({"s": ("t", np.array(texts if place == "values" else ["a"], object))})
    if place == "attribute":
        dataset.s.attrs["names"] = texts
    xr_nczarr.to_nczarr(dataset, tmp_path / "a", zarr_format=3, dialect="zarr")
    with pytest.raises(xr_nczarr.ConflictError, match=r"contains a NUL.*/s"):
        xr_nczarr.copy(tmp_path / "a", tmp_path / "a.nc")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_plain_zarr_is_copied_with_netcdf_types(
    tmp_path: Path,
) -> None:
    times = np.array(["2026-01-01", "2026-01-03"], "M8[ns]")
    variables = {
        "flag": ("x", [True, False]),
        "word": ("x", ["a", "é"]),
        "time": ("x", times),
        "half": ("x", np.array([1.5, np.nan])),
    }
    dataset = xr.Dataset(variables, attrs={"n": 3, "list": [1, 2], "many": {"a": 1}})
    dataset.to_zarr(tmp_path / "store", zarr_format=2)
    with pytest.warns(UserWarning, match=r"netCDF does not support the filter"):
        xr_nczarr.copy(tmp_path / "store", tmp_path / "out.nc", codecs=None)
    with xr.open_dataset(tmp_path / "out.nc", engine="netcdf4") as opened:
        xr.testing.assert_equal(opened.load(), dataset)
        assert opened.attrs["n"].dtype == "int32"
        assert opened.attrs["many"] == '{"a": 1}'


def test_variables_without_netcdf_type_are_rejected_or_skipped(
    tmp_path: Path,
) -> None:
    store, file = tmp_path / "store", tmp_path / "out.nc"
    dataset = xr.Dataset({"z": ("x", np.array([1 + 2j])), "v": ("x", [1.0])})
    xr_nczarr.to_nczarr(dataset, store, dialect="zarr")
    with pytest.raises(xr_nczarr.UnsupportedError, match=r"netCDF has no type for .*Pass skip"):
        xr_nczarr.copy(store, file, codecs=[])
    assert not list(tmp_path.glob("out*"))
    done = xr_nczarr.copy(store, file, codecs=[], skip_unsupported=True)
    assert any("complex" in sentence for sentence in done.skipped)
    with netCDF4.Dataset(file) as opened:
        assert opened["v"][...].dtype == "f8"


def test_attributes_with_invalid_names_are_rejected_or_skipped(
    tmp_path: Path,
) -> None:
    store, file = tmp_path / "store", tmp_path / "out.nc"
    names = ["$schema", "a/b", "CLASS", "_Netcdf4Dimid", "", "a" * 257]
    values = xr.Variable("x", [1], dict.fromkeys([*names, "units"], "m"))
    dataset = xr.Dataset({"v": values}, attrs={"@context": 1, "e\N{COMBINING ACUTE ACCENT}": 2})
    xr_nczarr.to_nczarr(dataset, store, dialect="zarr")
    with pytest.raises(xr_nczarr.UnsupportedError, match=r"attribute @context of / \(.*Pass skip"):
        xr_nczarr.copy(store, file)
    assert not list(tmp_path.glob("out*"))
    done = xr_nczarr.copy(store, file, skip_unsupported=True)
    assert len(done.skipped) == len(names) + 1
    assert "the attribute $schema of /v (netCDF-C rejects this attribute name)" in done.skipped
    with netCDF4.Dataset(file) as opened:
        assert opened.ncattrs() == ["\N{LATIN SMALL LETTER E WITH ACUTE}"]
        assert opened["v"].ncattrs() == ["units"]


def test_empty_fixed_dimension_is_rejected_or_made_unlimited(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", np.zeros(0))}), store)
    with pytest.raises(xr_nczarr.UnsupportedError, match="/x is fixed with 0 elements"):
        xr_nczarr.copy(store, tmp_path / "out.nc")
    xr_nczarr.copy(store, tmp_path / "out.nc", skip_unsupported=True)
    with netCDF4.Dataset(tmp_path / "out.nc") as opened:
        assert opened.dimensions["x"].isunlimited()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    dataset = xr.Dataset({"v": (("t", "x"), np.arange(12.0).reshape(3, 4))})
    xr_nczarr.to_nczarr(dataset, tmp_path / "store", unlimited_dims=["t"])
    return tmp_path / "store"


def test_requested_chunks_and_codecs_are_applied_to_netcdf_file(
    store: Path, tmp_path: Path
) -> None:
    codecs = [{"id": "shuffle"}, {"id": "zlib", "level": 7}, {"id": "fletcher32"}]
    xr_nczarr.copy(store, tmp_path / "out.nc", chunks={"x": 3}, codecs=codecs)
    with netCDF4.Dataset(tmp_path / "out.nc") as opened:
        filters = opened["v"].filters()
        assert [filters[name] for name in ("zlib", "shuffle", "fletcher32")] == [True] * 3
        assert filters["complevel"] == 7
        assert opened["v"].chunking()[1] == 3
        np.testing.assert_array_equal(opened["v"][:], np.arange(12.0).reshape(3, 4))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"codecs": [{"id": "lzma"}]}, xr_nczarr.UnsupportedError, "filter lzma"),
        ({"dialect": "zarr"}, xr_nczarr.UnsupportedError, "do not apply to a netCDF file"),
        ({"zarr_format": 3}, xr_nczarr.UnsupportedError, "do not apply to a netCDF file"),
    ],
    ids=["codec", "dialect", "version"],
)
def test_arguments_not_applicable_to_netcdf_files_are_rejected(
    store: Path, tmp_path: Path, arguments: dict, error: type, message: str
) -> None:
    with pytest.raises(error, match=message):
        xr_nczarr.copy(store, tmp_path / "out.nc", **arguments)
    assert not list(tmp_path.glob("out*"))


def test_overwriting_file_that_is_not_netcdf_is_rejected(store: Path, tmp_path: Path) -> None:
    text, file = tmp_path / "text.nc", tmp_path / "out.nc"
    text.write_text("something")
    xr_nczarr.copy(store, file)
    with pytest.raises(xr_nczarr.ExistsError, match="overwrite=True"):
        xr_nczarr.copy(store, file)
    with pytest.raises(xr_nczarr.ExistsError, match="not a netCDF file"):
        xr_nczarr.copy(store, text, overwrite=True)
    xr_nczarr.copy(store, file, overwrite=True)
    with pytest.raises(xr_nczarr.RefusedError, match="the same"):
        xr_nczarr.copy(file, file, overwrite=True)
    assert text.read_text() == "something"
    with xr.open_dataset(file, engine="netcdf4") as opened:
        assert opened["v"].shape == (3, 4)


def test_failed_copy_leaves_old_file_unchanged(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.nc"
    xr_nczarr.copy(store, file)
    before = file.read_bytes()
    (store / "v" / "0.0").write_bytes(b"cut")
    with pytest.raises(xr_nczarr.ChunkError):
        xr_nczarr.copy(store, file, overwrite=True)
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.nc", "store"]


def test_copying_to_nczarr_url_with_netcdf_extension_writes_store(
    store: Path, tmp_path: Path
) -> None:
    xr_nczarr.copy(store, file_url(tmp_path / "out.nc"))
    assert (tmp_path / "out.nc").is_dir()


@pytest.mark.parametrize("url", ["s3://bucket/out.nc", "memory://out.nc"])
def test_copying_to_remote_netcdf_file_is_rejected(store: Path, url: str) -> None:
    with pytest.raises(xr_nczarr.UnsupportedError, match="local"):
        xr_nczarr.copy(store, url)


@pytest.mark.skipif(not has_ncgen, reason="Debian's netcdf-bin is not installed")
def test_ncdump_of_copied_file_matches_dump_of_store(store: Path, tmp_path: Path) -> None:
    xr_nczarr.copy(store, tmp_path / "out.nc")
    command = ["ncdump", "-n", "x", str(tmp_path / "out.nc")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "".join(xr_nczarr.dump(store, name="x"))


def test_copying_to_netcdf_file_shows_progress(store: Path, tmp_path: Path, capsys) -> None:
    xr_nczarr.copy(store, tmp_path / "out.nc", progress=True)
    assert "100%" in capsys.readouterr().err


def test_error_for_missing_netcdf4_suggests_installation(store: Path, tmp_path: Path) -> None:
    program = "import sys; sys.modules['netCDF4'] = None; from xr_nczarr.cli.main import main; "
    command = [sys.executable, "-c", program + "sys.exit(main(sys.argv[1:]))", "copy", str(store)]
    done = subprocess.run(
        [*command, str(tmp_path / "out.nc")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert (
        "the netCDF4 package is not installed. Install netCDF4 or xr-nczarr[netcdf]" in done.stderr
    )
    assert not (tmp_path / "out.nc").exists()
