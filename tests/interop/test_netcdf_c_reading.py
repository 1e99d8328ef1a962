"""xr_nczarr and netcdf-c read the same content from stores of netcdf-c and handwritten stores."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr

from tests.reading import RAW, assert_reads_as, read, read_groups
from tests.stores import (
    COMPRESSIONS,
    Group,
    Size,
    file_url,
    has_ncgen,
    read_with_netcdf4,
    sample,
    write_netcdf_c,
    write_vintage,
    write_with_ncgen,
)
from xr_nczarr import to_nczarr

MODES = ("nczarr", "nczarr,consolidated", "zarr", "zarr,consolidated", "nczarr,noxarray")
needs_ncgen = pytest.mark.skipif(not has_ncgen, reason="Debian's netcdf-bin is not installed")


@pytest.fixture(scope="module", params=MODES)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a store that netcdf-c wrote in one of its modes, the mode, and the content."""
    store = write_netcdf_c(tmp_path_factory.mktemp("netcdf-c") / "store.file", request.param)
    with netCDF4.Dataset(file_url(store, request.param)) as dataset:
        content = read_with_netcdf4(dataset)
    if not request.param.startswith("nczarr") or "noxarray" in request.param:
        correct_content(content, request.param)
    return store, request.param, content


def correct_content(content: Group, mode: str) -> None:
    """Correct the parts of the content that netcdf-c itself misreads.

    netcdf-c misreads plain Zarr stores and stores without dimension names, even if it wrote them.
    """
    # Attributes are JSON without recorded types. netcdf-c reads integers beyond int32 as unsigned
    # integers, and returns objects and lists of text as text.
    meant = {"i8": 2**63 - 1, "infinite": ["Infinity", "-Infinity"]}
    for _, group in content.walk():
        # netcdf-c defines a dimension of length zero as unlimited.
        group.dims = {name: int(size) for name, size in group.dims.items()}
        for item in (group, *group.variables.values()):
            item.attrs = {
                key: value.tolist()
                if isinstance(value, np.generic | np.ndarray) and key != "_FillValue"
                else value
                for key, value in item.attrs.items()
            }
            if "json" in item.attrs:
                item.attrs["json"] = json.loads(item.attrs["json"])
            item.attrs |= meant if "i8" in item.attrs else {}
        for name, variable in group.variables.items():
            # netcdf-c shortens the name in the specification.
            variable.dims = tuple(
                dim.replace("_Anonymous_Dim_", "_Anonymous_Dimension_") for dim in variable.dims
            )
            if name in ("scalar", "whole", "letter") and "noxarray" not in mode:
                variable.values, variable.dims = variable.values.reshape(()), ()
            if name in ("letter", "letters"):  # netcdf-c reads its own characters as strings
                variable.values = variable.values.astype("S1")


def test_netcdf_c_stores_are_read_correctly(written: Any, way: str) -> None:
    store, _, content = written
    assert_reads_as(read_groups(store, way, **RAW), content)


def test_xr_nczarr_opens_stores_from_urls_that_netcdf_c_accepts(written: Any) -> None:
    store, mode, content = written
    assert_reads_as(read_groups(file_url(store, mode), **RAW), content)


def test_dask_workers_read_netcdf_c_stores(tmp_path: Path, workers: Any) -> None:
    store = write_netcdf_c(tmp_path / "store.file")
    with netCDF4.Dataset(file_url(store)) as dataset:
        assert_reads_as(read_groups(store, workers, **RAW), read_with_netcdf4(dataset))


@pytest.mark.parametrize("group", [None, "g", "g/deep"])
def test_decoded_values_and_encoding_match_those_from_netcdf4_engine(
    tmp_path: Path, group: str | None, way: str
) -> None:
    store = write_netcdf_c(tmp_path / "store.file")
    opened = read(store, way, group=group)
    with xr.open_dataset(file_url(store), engine="netcdf4", group=group) as expected:
        # netcdf-c stores only six digits of its default fill value.
        drop = {"never_f8", "padded_f8"} & set(expected)
        for name in {"words", "short_words", "shuffled_words"} & set(expected):
            expected[name] = expected[name].astype(object)
            expected[name].attrs.pop("_nczarr_maxstrlen", None)
        xr.testing.assert_identical(opened.drop_vars(drop), expected.load().drop_vars(drop))
        assert opened.encoding["unlimited_dims"] >= set(expected.encoding["unlimited_dims"])
        same = ("zlib", "complevel", "shuffle", "fletcher32", "chunksizes", "dtype", "_FillValue")
        for name in set(expected.variables) - drop:
            encoding = expected[name].encoding
            for key in set(same) & set(encoding):
                if key in ("zlib", "shuffle", "fletcher32", "complevel") and not encoding[key]:
                    assert not opened[name].encoding[key], (name, key)
                elif key != "chunksizes" or encoding[key]:
                    np.testing.assert_equal(
                        opened[name].encoding[key], encoding[key], f"{name}.{key}"
                    )


@pytest.mark.parametrize("name", COMPRESSIONS)
def test_slices_of_compressed_arrays_contain_correct_values(tmp_path: Path, name: str) -> None:
    store = write_netcdf_c(tmp_path / "store.file")
    opened = xr.open_dataset(store, engine="nczarr")[name]
    expected = np.arange(500, dtype="f4") // 7
    picked = np.array([499, 0, 200, 199])
    np.testing.assert_array_equal(opened[150:450:7].values, expected[150:450:7])
    np.testing.assert_array_equal(opened[picked].values, expected[picked])
    assert opened[-1].values == expected[-1]


@pytest.mark.parametrize("release", ["4.9.2", "4.9.3", "4.10"])
def test_netcdf_c_reads_handwritten_stores(tmp_path: Path, release: str) -> None:
    store = write_vintage(tmp_path / "store", sample(release), release)
    with netCDF4.Dataset(file_url(store)) as dataset:
        assert_same_content(read_with_netcdf4(dataset), sample(release))


@needs_ncgen
@pytest.mark.parametrize("release", ["4.8.1", "4.9.0"])
def test_netcdf_c_4_9_0_reads_handwritten_stores(tmp_path: Path, release: str) -> None:
    content = sample(release)
    # 4.9.0 cannot correctly read some of its own variables (Debian's build has no codecs).
    for name in ("scalar", "letters", "big", *(() if release == "4.8.1" else ("field", "packed"))):
        del content.variables[name]
    store = write_vintage(tmp_path / "store", content, release)
    copy = tmp_path / "copy.nc"
    subprocess.run(["nccopy", file_url(store), str(copy)], check=True, timeout=60)
    with netCDF4.Dataset(copy) as dataset:
        assert_same_content(read_with_netcdf4(dataset), content)


def assert_same_content(result: Group, expected: Group) -> None:
    """Compare content that netcdf-c read, using the function that checks opened datasets."""
    datasets = {}
    for path, group in result.walk():
        variables = {
            name: xr.Variable(item.dims, item.values, item.attrs)
            for name, item in group.variables.items()
        }
        datasets[path] = xr.Dataset(variables, attrs=group.attrs)
        datasets[path].encoding["unlimited_dims"] = {
            name for name, size in result.dims.items() if isinstance(size, Size)
        }
    for text in ("t001", "tnan"):
        # netcdf-c parses these bare texts as JSON and returns something else (D14).
        datasets["/"].attrs.pop(text), expected.attrs.pop(text)
    assert_reads_as(datasets, expected)


@needs_ncgen
def test_reading_ncgen_stores_yields_same_values_as_netcdf_c(tmp_path: Path, way: str) -> None:
    store, copy = write_with_ncgen(tmp_path / "store.file", "plain.cdl"), tmp_path / "copy.nc"
    subprocess.run(["nccopy", file_url(store), str(copy)], check=True, timeout=60)
    with netCDF4.Dataset(copy) as dataset:
        assert_reads_as(read_groups(store, way, **RAW), read_with_netcdf4(dataset))


@needs_ncgen
def test_variables_that_netcdf_c_cannot_read_back_are_read(tmp_path: Path, way: str) -> None:
    opened = read(write_with_ncgen(tmp_path / "store.file", "hard.cdl"), way)
    assert opened.s.dims == opened.whole.dims == ()
    assert (opened.s.item(), opened.whole.item(), opened.s.attrs) == (3.5, 7, {"units": "m"})
    assert (opened.c.item(), opened.cc.values.tolist()) == (b"abc", [b"def", b"gh"])


@needs_ncgen
def test_stores_that_nccopy_wrote_without_fill_values_are_read(tmp_path: Path) -> None:
    source, store = tmp_path / "source.nc", tmp_path / "store.file"
    values = np.arange(300, dtype="f4").reshape(3, 100) // 7
    with netCDF4.Dataset(source, "w") as dataset:
        dataset.createDimension("y", 3)
        dataset.createDimension("x", 100)
        dataset.createVariable("v", "f4", ("y", "x"))[:] = values
    command = ["nccopy", str(source), file_url(store)]
    subprocess.run(command, check=True, timeout=60)
    np.testing.assert_array_equal(read(store).v.values, values)


@pytest.mark.parametrize("dialect", ["nczarr", "nczarr-4.9.1", "nczarr-4.8.1"])
def test_netcdf_c_reads_attributes_without_netcdf_type_as_json_text(path, dialect):
    values = {"list": [1, "a", 2.5], "dict": {"a": 1}, "none": None}
    dataset = xr.Dataset({"v": ("x", [1, 2], values)})
    to_nczarr(dataset, path, dialect=dialect)
    to_nczarr(xr.Dataset(attrs=values), path, mode="a")
    code = "import netCDF4, json, sys; nc = netCDF4.Dataset(sys.argv[1]); " + (
        "print(json.dumps([item.__dict__ for item in (nc, nc['v'])]))"
    )
    # netCDF-C might abort, so it runs in a separate process.
    command = [sys.executable, "-c", code, f"file://{path}#mode=nczarr,file"]
    run = subprocess.run(command, capture_output=True, check=True)
    for attributes in json.loads(run.stdout):
        assert {name: json.loads(attributes[name]) for name in values} == values
    assert {name: json.loads(read(path).attrs[name]) for name in values} == values
