"""`diff` lists the differences between two datasets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.reading import peak_memory
from tests.stores import VINTAGES, sample, write_netcdf_c, write_vintage
from xr_nczarr.cli.main import main


def dataset() -> xr.Dataset:
    variables = {
        "t": (("time", "x"), np.arange(12.0).reshape(4, 3), {"units": "K"}),
        "word": ("x", ["a", "é", ""]),
        "n": ((), np.int16(3)),
    }
    return xr.Dataset(variables, attrs={"title": "one", "digits": 2.0**-44})


def store(path: Path, change: Callable[[xr.Dataset], xr.Dataset] | None = None, **options: Any):
    changed = dataset() if change is None else change(dataset())
    xr_nczarr.to_nczarr(changed, path, unlimited_dims=["time"], **options)
    return path


CHANGES: dict[str, tuple[Callable[[xr.Dataset], Any], list[tuple[Any, ...]]]] = {
    "a value": (
        lambda ds: ds.assign(t=ds.t.where(ds.t != 7, 7.5)),
        [("/t", "7", "7.5", "1 of 12 values differ, first at (2, 1), by at most 0.5")],
    ),
    "a missing value": (
        lambda ds: ds.assign(t=ds.t.where(ds.t != 0)),
        [("/t", "0", "NaN", "1 of 12 values differ, first at (0, 0)")],
    ),
    "text": (
        lambda ds: ds.assign(word=("x", ["a", "e", ""])),
        [("/word", '"é"', '"e"', "1 of 3 values differ, first at (1)")],
    ),
    "a scalar": (
        lambda ds: ds.assign(n=((), np.int16(4))),
        [("/n", "3", "4", "1 of 1 values differ, by at most 1")],
    ),
    "a type": (
        lambda ds: ds.assign(n=((), np.int32(3))),
        [("/n", "short()", "int()", "")],
    ),
    "an attribute": (
        lambda ds: ds.assign_attrs(title="two", more=np.float32(1)),
        [("/:title", '"one"', '"two"', ""), ("/:more", None, "1.f", "")],
    ),
    "the last digit of an attribute": (
        lambda ds: ds.assign_attrs(digits=5.684341886080801e-14),  # 2**-44 needs another digit
        [("/:digits", "5.6843418860808015e-14", "5.684341886080801e-14", "")],
    ),
    "an attribute's type": (
        lambda ds: ds.assign(t=ds.t.assign_attrs(units=["K"])),
        [("/t:units", '"K"', 'string "K"', "")],
    ),
    "a variable": (lambda ds: ds.drop_vars("n"), [("/n", "short()", None, "")]),
    "a length": (
        lambda ds: ds.isel(time=slice(3)),
        [
            ("/time", "UNLIMITED, 4 currently", "UNLIMITED, 3 currently", ""),
            ("/t", "double(time=4, x=3)", "double(time=3, x=3)", ""),
        ],
    ),
    "a group": (
        lambda ds: xr.DataTree.from_dict({"/": ds, "/g": xr.Dataset(attrs={"a": 1})}),
        [("/g", None, "group", "")],
    ),
    "nothing": (lambda ds: ds, []),
}


@pytest.mark.parametrize("change", CHANGES)
def test_diff_lists_each_difference_with_both_values(change: str, tmp_path: Path, capsys) -> None:
    make, expected = CHANGES[change]
    first, second = store(tmp_path / "one"), store(tmp_path / "two", make)
    result = xr_nczarr.diff(first, second)
    assert [(d.path, d.first, d.second, d.note) for d in result.differences] == expected
    assert result.whole is not bool(expected)
    assert main(["diff", str(first), str(second)]) == int(bool(expected))
    printed = capsys.readouterr().out
    assert len(printed.splitlines()) == (len(expected) + 2 if expected else 0)
    assert main(["diff", str(first), str(second), "--quiet"]) == int(bool(expected))
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("release", [*VINTAGES, "netcdf-c"])
@pytest.mark.parametrize("target", ["two", "two.nc"])
@pytest.mark.filterwarnings("ignore:codecs inherited")
def test_diff_finds_no_differences_in_copy(release: str, target: str, tmp_path: Path) -> None:
    if release == "netcdf-c":
        source = write_netcdf_c(tmp_path / "one")
    else:
        source = write_vintage(tmp_path / "one", sample(release), release)
    xr_nczarr.copy(source, tmp_path / target)
    result = xr_nczarr.diff(source, tmp_path / target)
    assert not result.differences, str(result)


def test_nans_and_chunk_sizes_cause_no_differences_by_default(tmp_path: Path, capsys) -> None:
    def missing(ds: xr.Dataset) -> xr.Dataset:
        return ds.assign(t=ds.t.where(ds.t > 3))

    first = store(tmp_path / "one", missing)
    second = store(tmp_path / "two", missing, encoding={"t": {"chunksizes": (1, 2), "zlib": True}})
    assert main(["diff", str(first), str(second)]) == 0
    assert main(["diff", str(first), str(second), "-s"]) == 1
    printed = capsys.readouterr().out
    assert "/t:_ChunkSizes" in printed
    assert "/t:_DeflateLevel" in printed


@pytest.mark.parametrize(
    ("options", "code"),
    [([], 1), (["--rtol", "1e-3"], 0), (["--atol", "0.01"], 0), (["--atol", "1e-6"], 1)],
    ids=str,
)
def test_diff_treats_numbers_within_tolerance_as_equal(
    options: list[str], code: int, tmp_path: Path
) -> None:
    first = store(tmp_path / "one")
    second = store(tmp_path / "two", lambda ds: ds.assign(t=ds.t.copy(data=ds.t * (1 + 1e-4))))
    assert main(["diff", str(first), str(second), *options]) == code
    assert main(["diff", str(first), str(second), "--metadata"]) == 0


@pytest.mark.parametrize("name", ["rtol", "atol"])
@pytest.mark.parametrize("value", ["-1e-9", "nan", "inf"])
def test_negative_or_non_finite_tolerances_are_rejected(
    name: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    problem = f"{name} is {float(value)!r}; expected a finite, non-negative number"
    with pytest.raises(ValueError, match=problem):
        xr_nczarr.diff({}, {}, **{name: float(value)})
    assert main(["diff", "one", "two", f"--{name}={value}"]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize(
    ("first", "second"), [(1.0, np.inf), (np.inf, 1.0), (np.inf, -np.inf), (1e308, -np.inf)]
)
def test_infinity_differs_from_other_numbers_at_any_tolerance(first: float, second: float) -> None:
    stores: list[dict[str, bytes]] = [{}, {}]
    for value, item in zip((first, second), stores, strict=True):
        xr_nczarr.to_nczarr(xr.Dataset({"t": ("x", [value])}), item)
    assert len(xr_nczarr.diff(*stores, rtol=1e-6, atol=1.0).differences) == 1


@pytest.mark.parametrize("dtype", ["i8", "u8"])
def test_diff_computes_differences_between_large_integers_exactly(dtype: str) -> None:
    stores: list[dict[str, bytes]] = [{}, {}]
    for value, item in zip((2**60 + 3, 2**60), stores, strict=True):
        xr_nczarr.to_nczarr(xr.Dataset({"t": ("x", np.array([value], dtype))}), item)
    for pair in (stores, stores[::-1]):
        (result,) = xr_nczarr.diff(*pair, atol=2).differences
        assert result.note == "1 of 1 values differ, first at (0), by at most 3"
        assert xr_nczarr.diff(*pair, atol=3).whole


def test_diff_compares_only_selected_subset(tmp_path: Path) -> None:
    first = store(tmp_path / "one")
    second = store(tmp_path / "two", lambda ds: ds.assign(t=ds.t.where(ds.time != 3, -1)))
    assert not xr_nczarr.diff(first, second, select={"time": slice(3)}, variables=["t"]).differences
    assert xr_nczarr.diff(first, second, select={"time": 3}).differences[0].path == "/t"


def test_diff_compares_stores_and_netcdf_files(tmp_path: Path) -> None:
    item, file = store(tmp_path / "one"), tmp_path / "two.nc"
    xr_nczarr.copy(item, file)
    assert xr_nczarr.diff(item, file).whole
    with netCDF4.Dataset(file, "a") as opened:
        opened["t"][1, 1] = -5
    (result,) = xr_nczarr.diff(item, file).differences
    assert (result.first, result.second) == ("4", "-5")
    assert xr_nczarr.diff(file, file, engine="h5netcdf").whole


def test_diff_json_output_has_named_fields(tmp_path: Path, capsys) -> None:
    first, second = store(tmp_path / "one"), store(tmp_path / "two", CHANGES["a value"][0])
    assert main(["diff", str(first), str(second), "--json"]) == 1
    output = json.loads(capsys.readouterr().out)
    assert output["first"] == str(first)
    assert output["differences"][0]["path"] == "/t"


def test_diff_with_missing_store_exits_with_code_2(tmp_path: Path, capsys) -> None:
    assert main(["diff", str(store(tmp_path / "one")), str(tmp_path / "nothing")]) == 2
    assert "nothing" in capsys.readouterr().err


def test_diff_of_store_with_damaged_chunk_exits_with_code_2(tmp_path: Path, capsys) -> None:
    first, second = store(tmp_path / "one"), store(tmp_path / "two")
    (second / "t" / "0.0").write_bytes(b"cut")
    assert main(["diff", str(first), str(second)]) == 2
    assert "t/0.0" in capsys.readouterr().err


def test_diff_compares_large_variables_part_by_part(tmp_path: Path) -> None:
    values = np.zeros((512, 64 << 10), "f4")  # 128 MiB
    large = xr.Dataset({"v": (("y", "x"), values)})
    encoding = {"v": {"chunksizes": (16, 64 << 10)}}
    for name in ("one", "two"):
        xr_nczarr.to_nczarr(large, tmp_path / name, encoding=encoding)
    del values, large

    def compare() -> None:
        assert xr_nczarr.diff(tmp_path / "one", tmp_path / "two").whole

    assert peak_memory(compare) < 180 << 20


@pytest.mark.parametrize("value", [{"a": [1, {"b": "ü"}]}, [{"a": 1}, {}]], ids=["object", "list"])
def test_diff_ignores_whitespace_in_json_attributes(tmp_path, value):
    dataset, paths = xr.Dataset(attrs={"info": value}), [tmp_path / "2.zarr", tmp_path / "3.zarr"]
    for path, version in zip(paths, (2, 3), strict=True):
        dataset.to_zarr(path, zarr_format=version, consolidated=False)
    assert xr_nczarr.diff(*paths).whole
    changed = {"info": str(value)}
    xr.Dataset(attrs=changed).to_zarr(paths[0], mode="w", zarr_format=2, consolidated=False)
    assert not xr_nczarr.diff(*paths).whole


def test_diff_compares_dimensions_whose_names_contain_slashes(tmp_path: Path) -> None:
    # For variables in groups, kerchunk names the dimensions after their paths in the HDF5 file.
    data = xr.Dataset({"v": ("group/x", [1.0, 2.0])})
    stores = [tmp_path / name for name in ("a.zarr", "b.zarr")]
    for path, values in zip(stores, (data, data + 1), strict=True):
        xr_nczarr.to_nczarr(values, path, dialect="zarr")
    (difference,) = xr_nczarr.diff(*stores).differences
    assert (difference.path, difference.note[:20]) == ("/v", "2 of 2 values differ")
