# ruff: noqa: E501 (one row per use)
"""Usage errors on the command line. Each exits with code 2 and prints one line for shell users."""

import io
import os
import shutil
import sys
import zipfile
from pathlib import Path

import netCDF4
import numpy as np
import pytest
import xarray as xr

from tests.servers import HttpServer
from xr_nczarr.cli.commands import COMMANDS
from xr_nczarr.cli.main import main

USAGE = "Usage: nczarr {} [OPTIONS] {}"
NO_STORE = "no Zarr metadata found (tried zarr.json, .zmetadata"
WRONG = {
    # ---- targets that are not stores
    "nothing there": ("info nothing", "nothing: the path does not exist"),
    "empty folder": ("info empty", "empty: no Zarr metadata found (the store is empty)"),
    "folder of something else": ("info plain", f"plain: {NO_STORE}"),
    "store within a store": (
        "info outer",
        "To open a group, pass the path of the store, and the path of the group as --option 'group=…'",
    ),
    "404": ("info {http}/nothing", f"{{http}}/nothing: {NO_STORE}"),
    "interrupted copy": (
        "info unfinished",
        "the store is incomplete because a write was interrupted. Rerun the same write or copy "
        "to complete the store",
    ),
    "no JSON": ("info bad.json", "bad.json: the reference document is not valid JSON"),
    "other JSON": ("info other.json", "the entry in the reference set is 1; expected a string"),
    "document of a store": ("info s/.zgroup", "s/.zgroup: the path is a JSON document; expected a directory, a zip file or a reference set. If the file is part of a Zarr store, pass the folder of the store."),
    "document of a v3 store": ("info v3/zarr.json", "v3/zarr.json: the document is Zarr metadata, not a reference set. Pass the folder that contains the document"),
    "text file": ("info text.txt", "text.txt: the path is a file of unknown format; expected a directory"),
    "netCDF-4 file": ("info h.nc", "the path is a netCDF-4 or HDF5 file; expected a directory"),
    "netCDF-3 file": (
        "info h3.nc",
        "the path is a netCDF-3 file; expected a directory, a zip file or a reference set. Open "
        "the file with another xarray engine, or convert it with nczarr copy",
    ),
    "copy of a text file": (
        "copy text.txt out",
        "If another xarray engine can read the file, open it with that engine, or convert it using "
        'the "engine" option of nczarr copy',
    ),
    "copy onto a text file": (
        "copy s text.txt",
        "text.txt: the path is a file of unknown format; expected a directory, a zip file or a "
        "reference set. Choose another target, or remove the file",
    ),
    "cut zip file": ("info cut.zip", "cut.zip: the zip file cannot be read"),
    "empty zip file": ("info empty.zip", "empty.zip: the path is an empty file"),
    # ---- locations
    "unknown protocol": ("info foo://bar/x", "foo://bar/x: Protocol not known: foo"),
    "gs without gcsfs": ("info gs://bucket/x", "Install xr-nczarr[gcs]"),
    "az without adlfs": ("info az://bucket/x", "Install xr-nczarr[azure]"),
    "unknown host": ("info http://no.such.host.invalid/x", "Check the host name"),
    "URL of another medium": (
        "info file://{here}/s#mode=nczarr,s3",
        "the path is a directory, but mode=s3 in the URL requests an S3 bucket. Specify mode=file instead",
    ),
    "unknown mode": ("info file://{here}/s#mode=banana", "unknown mode 'banana' in the URL fragment. Use one of these modes"),
    "empty path": (["info", ""], "the path or URL is empty. Pass '.' for the current folder"),
    "unknown option of HTTP": ("info {http}/s --storage-option nonsense=1", "nonsense"),
    "retry option that does not exist": (
        ["info", "s", "--storage-option", 'retry={"tries": 1}'],
        ": --storage-option: unknown retry option 'tries'. The retry options are attempts",
    ),
    "missing_status that is no list": (
        "copy s out --target-option missing_status=404",
        ': --target-option: "missing_status" must be a sequence',
    ),
    # ---- arguments
    "unknown command": ("infoo s", "unknown command 'infoo'. Did you mean info?"),
    "unknown option before": ("--jsn info s", "unknown option '--jsn'. The options are --completion"),
    "limits as an option of the engine": ("info s --option limits={}", "Use --limit NAME=VALUE"),
    "no target": ("info", f"missing TARGET. {USAGE.format('info', 'TARGET')}"),
    "copy without target": ("copy s", f"missing TARGET. {USAGE.format('copy', 'SOURCE TARGET')}"),
    "too many targets": ("info s more", f"unexpected argument 'more'. {USAGE.format('info', '')}"),
    "variable without -v": (
        "explain s t",
        f"unexpected argument 't'; select variables with -v t. {USAGE.format('explain', '')}",
    ),
    "misspelled option": ("info s --jsn", "unknown option '--jsn'. Did you mean --json?"),
    "unknown option": ("dump s -q", "unknown option '-q'. The options are --help"),
    "option without value": ("info s --option", "--option: expected one argument"),
    "unknown option of the engine": ("info s --option nope=1", "unknown option 'nope'. The options are"),
    "misspelled option of the engine": ("info s --option groupp=/a", "Did you mean group?"),
    "option without sign": ("info s --option chunks", "--option: invalid value 'chunks'; expected NAME=VALUE"),
    "unknown group": ("info s --option group=/nope", "unknown group '/nope'. The groups are 'diag'"),
    "another value": (
        "info s --option consolidated=yes",
        "--option: consolidated must be one of null, true, false, 'check', not 'yes'",
    ),
    # ---- copy
    "onto itself": ("copy s s", "the source and the target are the same store. Choose another target"),
    "onto itself, overwriting": ("copy s s --overwrite", "the source and the target are the same"),
    "into itself": ("copy s s/inside", "the target is inside the source"),
    "onto a store": ("copy s v2", "the store already exists. Choose another target, or pass --overwrite"),
    "onto a file": ("copy s h.nc", "the file already exists. Choose another target, or pass --overwrite"),
    "over a folder of something else": (
        "copy --overwrite s plain",
        "the target contains objects that do not belong to a Zarr store. Choose another target",
    ),
    "where nothing can be": ("copy s /proc/x", "/proc/x: No such file or directory"),
    "file elsewhere": ("copy s s3://bucket/out.nc", "netCDF files can be written only to a local disk"),
    "file of a dialect": ("copy s out.nc --dialect zarr", "zarr_format, dialect and consolidated do not apply"),
    "unknown dialect": ("copy s out --dialect foo", "Zarr version 2 does not support the dialect 'foo'; expected zarr"),
    "unknown version": ("copy s out --zarr-format 4", "--zarr-format: invalid value '4'; expected one of 1, 2, 3, 3-draft"),
    "misspelled codec": ("copy s out --codecs zstdd", "unknown codec 'zstdd'. Did you mean zstd?"),
    "unknown codec": (["copy", "s", "out", "--codecs", '[{"id": "nope"}]'], "unknown codec 'nope'"),
    "codec with a word for a level": ("copy s out --codecs zstd:x", "with a level if the codec has one, such as zstd:3"),
    "shuffle with a level": ("copy s out --codecs shuffle:4", "with a level if the codec has one, such as zstd:3"),
    "codecs twice": ("copy s out --codecs zstd --zlib 4", "--codecs cannot be combined with --zlib or --shuffle"),
    "codecs that are not JSON": ("copy s out --codecs={", "or codec configurations in JSON"),
    "codecs as an object": ("copy s out --codecs={}", 'or a mapping with the key "id" or "name", not {}'),
    "codecs without id": (["copy", "s", "out", "--codecs", "[{}]"], 'or a mapping with the key "id" or "name", not {}'),
    "chunks of no dimension": (
        "copy s out --chunks tim=3",
        "unknown dimension 'tim'. Did you mean time? The dimensions are lat, lon, time",
    ),
    "chunks of nothing": ("copy s out --chunks time=0", "the chunk length of dimension time must be at least 1, not 0"),
    "chunks without length": ("copy s out --chunks time", "--chunks: invalid value 'time'; expected chunk lengths such as time=10,lat=180"),
    "chunks of letters": ("copy s out --chunks time=abc", "--chunks: invalid value 'time=abc'; expected chunk lengths such as time=10,lat=180"),
    "unknown engine": ("copy h.nc out --engine netcdf", "unknown engine 'netcdf'. Did you mean netcdf4"),
    "group to copy": ("copy s out --group dia", "unknown group '/dia'. Did you mean /diag?"),
    "variable to copy": ("copy s out -v t2", "unknown variable 't2'. Did you mean t2m?"),
    # ---- selections
    "positions of no dimension": ("explain s --select tme=0", "unknown dimension 'tme'. Did you mean time?"),
    "position outside": ("explain s --select time=1000", "position 1000 is out of bounds for dimension time of length 24. Pass positions from 0 to 23"),
    "label outside": (
        "explain s --select time=1900-01-01",
        "dimension time has no label 1900-01-01. Pass labels from 2000-01-01 00:00:00 to 2000-01-24",
    ),
    "labels without coordinate": ("explain s --select lon=12.5", "dimension lon has no labels, because it has no coordinate variable"),
    "selection of nothing": ("explain s --select time", "expected DIM=VALUE pairs that name each dimension only once"),
    "selection without positions": ("explain s --select time=", "expected DIM=VALUE pairs that name each dimension only once"),
    "selection without dimension": ("explain s --select =3", "expected DIM=VALUE pairs that name each dimension only once"),
    "dimension twice": ("explain s --select time=0,time=1", "expected DIM=VALUE pairs that name each dimension only once"),
    "four numbers": ("explain s --select time=1:2:3:4", "expected START:STOP:STEP with a nonzero STEP"),
    "step of nothing": ("explain s --select time=::0", "expected START:STOP:STEP with a nonzero STEP"),
    "unknown variable": ("explain s -v nope", "unknown variable 'nope'. The variables are"),
    "unknown variable of dump": ("dump s -v nope", "unknown variable 'nope'. The variables are cape, lat, t2m, time"),
    "unknown group of dump": ("dump s -g nope", "unknown group 'nope'. The groups are diag"),
    "precision": ("dump s -p 30", "-p: invalid value '30'; expected numbers from 1 to 17, such as 7,15"),
    # ---- verify, upgrade, consolidate, references
    "sample": ("verify s --sample -1", "--sample: invalid value '-1'; expected a non-negative integer"),
    "unknown group of verify": ("verify s --option group=/nope", "unknown group '/nope'"),
    "inline below": ("references s out --inline-below=-1", "--inline-below: invalid value '-1'; expected a"),
    "upgrade of plain Zarr": ("upgrade v2", "the store is plain Zarr; it has no NCZarr metadata to upgrade. Pass --annotate to add"),
    "consolidate over HTTP": ("consolidate {http}/s", "plain HTTP is read-only"),
    # ---- damage
    "cut chunk": ("dump cut", "t2m/0.0.0, codec zlib (compressor): the compressed stream is trunc"),
    "flipped bits": ("dump flipped", "t2m/0.0.0, codec zlib (compressor): "),
}  # fmt: skip


def write_netcdf(name: str, **options) -> None:
    with netCDF4.Dataset(name, "w", **options) as file:
        for dim, size in {"time": None, "lat": 3, "lon": 4}.items():
            file.createDimension(dim, size)
        time = file.createVariable("time", "f8", ("time",))
        time.units = "days since 2000-01-01"
        time[:] = np.arange(24)
        file.createVariable("lat", "f4", ("lat",))[:] = [-85, 0, 85]
        if options:
            return
        packed = file.createVariable(
            "t2m", "i2", ("time", "lat", "lon"), zlib=True, chunksizes=(8, 3, 4), fill_value=-1
        )
        packed[:] = np.arange(288).reshape(24, 3, 4)
        file.createGroup("diag").createVariable("cape", "f4", ("lat",))[:] = 1


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with stores, damaged stores, and other files."""
    here = tmp_path_factory.mktemp("wrong")
    before = Path.cwd()
    os.chdir(here)
    try:
        write_netcdf(f"file://{here}/s#mode=nczarr,file")
        write_netcdf("h.nc")
        write_netcdf("h3.nc", format="NETCDF3_CLASSIC")
        xr.Dataset({"v": ("x", [1.0, 2.0])}).to_zarr("v2", zarr_format=2, consolidated=False)
        xr.Dataset({"v": ("x", [1.0, 2.0])}).to_zarr("v3", zarr_format=3, consolidated=False)
        for name in ("empty", "plain", "outer", "unfinished"):
            Path(name).mkdir()
        shutil.copytree("s", "outer/s")
        Path("plain/x.txt").write_text("x")
        Path("unfinished/.nczarr_unfinished").write_text("{}")
        Path("text.txt").write_text("hello")
        Path("bad.json").write_text("{oops")
        Path("other.json").write_text('{"a": 1}')
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w") as file:
            file.writestr("x", "y" * 1000)
        Path("cut.zip").write_bytes(packed.getvalue()[:200])
        Path("empty.zip").touch()
        for name in ("cut", "flipped"):
            shutil.copytree("s", name)
        chunk = Path("s/t2m/0.0.0").read_bytes()
        Path("cut/t2m/0.0.0").write_bytes(chunk[: len(chunk) // 2])
        Path("flipped/t2m/0.0.0").write_bytes(chunk[:20] + bytes(255 - byte for byte in chunk[20:]))
    finally:
        os.chdir(before)
    return here


@pytest.fixture(scope="module")
def http(folder):
    with HttpServer(folder) as server:
        yield server.url


@pytest.mark.parametrize("wrong", WRONG)
def test_each_usage_error_is_printed_on_one_line(wrong, folder, http, monkeypatch, capsys):
    words, message = WRONG[wrong]
    if wrong in ("gs without gcsfs", "az without adlfs"):
        monkeypatch.setitem(sys.modules, "gcsfs", None)
        monkeypatch.setitem(sys.modules, "adlfs", None)
    monkeypatch.chdir(folder)
    before = sorted(map(str, folder.rglob("*")))
    words = words.split() if isinstance(words, str) else words
    words = [word.replace("{here}", str(folder)).replace("{http}", http) for word in words]
    assert main(words) == 2
    message = message.replace("{http}", http)
    (line,) = capsys.readouterr().err.splitlines()
    program = f"nczarr {words[0]}" if words[0] in COMMANDS else "nczarr"
    assert line.startswith(f"{program}: ")
    assert message in line
    assert "invalid value" not in line or f"Usage: {program} [OPTIONS]" in line
    assert "=True" not in line
    assert "xr_nczarr." not in line
    assert sorted(map(str, folder.rglob("*"))) == before
