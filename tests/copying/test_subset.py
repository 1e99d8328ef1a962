"""`copy` of a part of a dataset: a group, variables, positions or labels."""

from __future__ import annotations

import json
from collections import Counter, UserDict
from datetime import date
from pathlib import Path
from typing import Any, ClassVar

import netCDF4
import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.stores import array_document

TIMES = xr.date_range("2026-01-01", periods=10, freq="12h")
LATS = np.array([60.0, 45.0, 30.0])


def tree() -> xr.DataTree:
    variables = {
        "t": (("time", "lat"), np.arange(30.0).reshape(10, 3)),
        "station": ("lat", ["a", "b", "c"]),
        "count": ((), 3),
    }
    root = xr.Dataset(variables, {"time": TIMES, "lat": LATS}, {"title": "root"})
    inner = xr.Dataset({"w": (("time", "z"), np.arange(20.0).reshape(10, 2))}, {"z": [1, 2]})
    inner.attrs["title"] = "inner"
    return xr.DataTree.from_dict({"/": root, "/g": inner, "/g/deep": xr.Dataset({"s": 1.5})})


@pytest.fixture(params=["store", "netcdf-c", "h5netcdf"])
def source(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """Return a store, a netCDF file, or a file for an xarray engine, with its options."""
    encoding = {"/": {"t": {"chunksizes": (4, 2)}}}
    if request.param == "store":
        xr_nczarr.to_nczarr(tree(), tmp_path / "one", unlimited_dims=["time"], encoding=encoding)
        return tmp_path / "one", {}
    tree().to_netcdf(tmp_path / "one.nc", encoding=encoding, unlimited_dims={"/": ["time"]})
    return tmp_path / "one.nc", {"engine": "h5netcdf"} if request.param == "h5netcdf" else {}


SELECTIONS = {
    "positions": ({"time": slice(1, 7, 2)}, lambda ds: ds.isel(time=slice(1, 7, 2))),
    "one position": ({"time": 3}, lambda ds: ds.isel(time=[3])),
    "from the end": ({"time": -1}, lambda ds: ds.isel(time=[-1])),
    "backwards": ({"lat": slice(None, None, -1)}, lambda ds: ds.isel(lat=slice(None, None, -1))),
    "a day": ({"time": "2026-01-02"}, lambda ds: ds.sel(time="2026-01-02")),
    "dates": (
        {"time": slice("2026-01-02", "2026-01-03")},
        lambda ds: ds.sel(time=slice("2026-01-02", "2026-01-03")),
    ),
    "days without times": (
        {"time": slice(date(2026, 1, 2), date(2026, 1, 3))},
        lambda ds: ds.sel(time=slice("2026-01-02", "2026-01-03")),
    ),
    "a day without time": (
        {"time": date(2026, 1, 2)},
        lambda ds: ds.sel(time="2026-01-02"),
    ),
    "since": (
        {"time": slice("2026-01-04", None)},
        lambda ds: ds.sel(time=slice("2026-01-04", None)),
    ),
    "numbers": ({"lat": slice("30", "50")}, lambda ds: ds.sel(lat=slice(50, 30))),
    "a number": ({"lat": 45.0}, lambda ds: ds.sel(lat=[45.0])),
    "both": ({"time": slice(2), "lat": "60.0"}, lambda ds: ds.isel(time=slice(2), lat=[0])),
}


@pytest.mark.parametrize("selection", SELECTIONS)
def test_copied_selection_equals_selection_by_xarray(
    source: tuple[Path, dict[str, Any]], selection: str, tmp_path: Path
) -> None:
    path, options = source
    select, expected = SELECTIONS[selection]
    xr_nczarr.copy(path, tmp_path / "two", select=select, **options)
    copied = xr.open_dataset(tmp_path / "two", engine="nczarr")
    xr.testing.assert_identical(copied.load(), expected(tree().to_dataset()))
    assert copied["t"].encoding["chunks"][0] == 4
    assert copied.encoding["unlimited_dims"] == {"time"}


def test_copying_variable_also_copies_its_coordinates(
    source: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    path, options = source
    done = xr_nczarr.copy(path, tmp_path / "two", variables=["t"], **options)
    assert done.arrays == 3
    copied = xr.open_datatree(tmp_path / "two", engine="nczarr")
    expected = tree().to_dataset()[["t"]]
    xr.testing.assert_identical(copied.to_dataset().load(), expected)
    assert not copied.children


def test_variables_in_coordinates_attribute_are_also_copied(
    tmp_path: Path,
) -> None:
    data = xr.Dataset(
        {"sst": (("y", "x"), np.ones((2, 3)))},
        coords={name: (("y", "x"), np.ones((2, 3))) for name in ("lat", "lon")},
    )
    below = xr.Dataset({"t": ("z", np.ones(2), {"coordinates": "lat /g/depth missing"})})
    below["depth"] = ("z", np.ones(2))
    tree = xr.DataTree.from_dict({"/": data, "/g": below})
    xr_nczarr.to_nczarr(tree, tmp_path / "one")
    xr_nczarr.copy(tmp_path / "one", tmp_path / "two", variables=["sst"])
    copied = xr.open_dataset(tmp_path / "two", engine="nczarr")
    xr.testing.assert_identical(copied.load(), data)
    xr_nczarr.copy(tmp_path / "one", tmp_path / "three", variables=["t"])
    copied = xr.open_datatree(tmp_path / "three", engine="nczarr")
    assert {*copied.variables, *copied["g"].variables} == {"lat", "t", "depth"}


def test_dimensions_inherited_by_copied_group_become_root_dimensions(
    source: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    path, options = source
    xr_nczarr.copy(path, tmp_path / "two", group="g", select={"time": slice(3)}, **options)
    copied = xr.open_datatree(tmp_path / "two", engine="nczarr")
    expected = tree()["g"].to_dataset(inherit=False).isel(time=slice(3))
    xr.testing.assert_identical(
        copied.to_dataset().load(), expected.drop_vars("time", errors="ignore")
    )
    assert float(copied["deep/s"]) == 1.5


def test_copied_group_can_have_same_path_as_inherited_dimension() -> None:
    inner = xr.Dataset({"w": ("time", [1.0, 2.0])})
    store: dict[str, bytes] = {}
    copied: dict[str, bytes] = {}
    xr_nczarr.to_nczarr(xr.DataTree.from_dict({"/": inner.rename(w="v"), "/time": inner}), store)
    xr_nczarr.copy(store, copied, group="time")
    xr.testing.assert_identical(xr.open_dataset(copied, engine="nczarr").load(), inner)


def test_copying_group_with_two_dimensions_of_same_name_is_rejected(tmp_path: Path) -> None:
    with netCDF4.Dataset(tmp_path / "one.nc", "w") as file:
        outer = file.createDimension("x", 3)
        group = file.createGroup("g")
        group.createDimension("x", 5)
        group.createVariable("own", "f8", ("x",))
        group.createVariable("inherited", "f8", (outer,))
    with pytest.raises(xr_nczarr.ConflictError, match="two dimensions named x"):
        xr_nczarr.copy(tmp_path / "one.nc", tmp_path / "two.nc", group="g")
    xr_nczarr.copy(tmp_path / "one.nc", tmp_path / "two.nc", group="g", variables=["inherited"])
    with xr.open_dataset(tmp_path / "two.nc") as copied:
        assert dict(copied.sizes) == {"x": 3}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"group": "h"}, r"unknown group '/h'\. The groups are /g, /g/deep"),
        ({"variables": ["tt"]}, r"unknown variable 'tt'\. Did you mean t\?"),
        ({"select": {"tme": 1}}, r"unknown dimension 'tme'\. Did you mean time\?"),
        ({"select": {"tme": "2026"}}, r"unknown dimension 'tme'\. Did you mean time\?"),
        (
            {"select": {"time": 10}},
            r"position 10 is out of bounds for dimension time of length 10\. Pass positions from 0",
        ),
        ({"select": {"time": "2027-01-01"}}, r"time has no label 2027-01-01\. Pass labels from"),
        ({"select": {"lat": "46.0"}}, r"lat has no label 46\.0\. Pass labels from 60\.0 to 30"),
        ({"select": {"lat": slice("1", "2")}}, r"lat has no label 1/2\. Pass labels"),
        ({"select": {"lat": "north"}}, r"lat has no label north\. Pass labels"),
    ],
    ids=[
        "group",
        "variable",
        "dimension",
        "label_of_none",
        "position",
        "date",
        "number",
        "range",
        "text",
    ],
)
def test_unknown_variable_name_is_rejected_before_writing(
    source: tuple[Path, dict[str, Any]], tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    path, options = source
    with pytest.raises(xr_nczarr.NotFoundError, match=message):
        xr_nczarr.copy(path, tmp_path / "two", **arguments, **options)
    assert not (tmp_path / "two").exists()


@pytest.mark.parametrize(
    "arguments",
    [{"group": "h"}, {"variables": ["tt"]}, {"select": {"tme": 1}}, {"select": {"time": 10}}],
    ids=["group", "variable", "dimension", "position"],
)
@pytest.mark.parametrize("target", ["two.nczarr", "two.nc", "source"])
def test_error_for_unknown_selection_takes_precedence_over_error_for_existing_target(
    source: tuple[Path, dict[str, Any]], tmp_path: Path, arguments: dict[str, Any], target: str
) -> None:
    path, options = source
    existing = path if target == "source" else tmp_path / target
    if target != "source":
        existing.write_bytes(b"CDF\x01")
    with pytest.raises(xr_nczarr.NotFoundError, match=r"unknown|out of bounds"):
        xr_nczarr.copy(path, existing, **arguments, **options)


@pytest.mark.parametrize("slices", [False, True], ids=["label", "slice"])
def test_large_integer_labels_are_selected_exactly(slices: bool) -> None:
    first = 2**53
    store: dict[str, bytes] = {}
    target: dict[str, bytes] = {}
    label = str(first + 1)
    xr_nczarr.to_nczarr(xr.Dataset(coords={"t": [first, first + 1, first + 2]}), store)
    xr_nczarr.copy(store, target, select={"t": slice(label, label) if slices else label})
    assert xr.open_dataset(target, engine="nczarr").t.values.tolist() == [first + 1]


def test_selecting_labels_without_coordinate_variable_raises_not_found_error() -> None:
    store: dict[str, bytes] = {}
    xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", [1.0, 2.0])}), store)
    with pytest.raises(xr_nczarr.NotFoundError, match="dimension x has no labels"):
        xr_nczarr.explain(store, {"x": "1.5"})


class CountedKeys(UserDict[str, bytes]):
    """A mapping that records the keys that are read."""

    read: ClassVar[list[str]] = []

    def __getitem__(self, key: str) -> bytes:
        self.read.append(key)
        return super().__getitem__(key)


def test_label_is_rejected_if_subgroup_has_another_dimension_of_the_same_name() -> None:
    outer = xr.Dataset({"r": ("x", [7.0, 8.0])}, {"x": [6.0, 5.0]})
    inner = xr.Dataset({"t": ("x", [1.0, 2.0, 3.0])}, {"x": [4.0, 5.0, 6.0]})
    store: dict[str, bytes] = {}
    xr_nczarr.to_nczarr(outer, store)
    xr_nczarr.to_nczarr(inner, store, group="b", mode="a")
    problem = "the labels of dimension /x do not apply to /b/x"
    with pytest.raises(xr_nczarr.ConflictError, match=problem):
        xr_nczarr.copy(store, {}, select={"x": 6.0})
    with pytest.raises(xr_nczarr.ConflictError, match=problem):
        xr_nczarr.diff(store, store, select={"x": slice(5.0, 6.0)})
    copied: dict[str, bytes] = {}
    xr_nczarr.copy(store, copied, select={"x": 6.0, "/b/x": 2})
    assert xr.open_dataset(copied, engine="nczarr", group="b").t.values.tolist() == [3]
    copied = {}
    xr_nczarr.copy(store, copied, select={"x": 6.0}, group="b")
    assert xr.open_dataset(copied, engine="nczarr").t.values.tolist() == [3]


def test_selecting_labels_reads_metadata_once() -> None:
    source = CountedKeys()
    xr_nczarr.to_nczarr(xr.Dataset({"v": ("t", [1.0, 2.0])}, {"t": [0.5, 1.5]}), source)
    for select in ({"t": 0}, {"t": 0.5}):
        source.read = []
        xr_nczarr.explain(source, select)
        counts = Counter(key for key in source.read if ".z" in key)
        assert set(counts.values()) == {1}
    read = []
    for select in ({"t": 0}, {"t": 0.5}):
        source.read = []
        xr_nczarr.copy(source, {}, select=select)
        read.append(Counter(key for key in source.read if ".z" in key))
    assert read[0] == read[1]


def test_copying_zarr_python_group_copies_only_that_group(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    xr_nczarr.to_nczarr(tree(), tmp_path / "one")
    group = zarr.open_group(tmp_path / "one", path="g", mode="r")
    xr_nczarr.copy(group, tmp_path / "two")
    copied = xr.open_dataset(tmp_path / "two", engine="nczarr")
    assert copied["w"].shape == (10, 2)


def write_compound_file(path: Path) -> None:
    """Write the variables `range`, of a compound type, and `t`, of integers."""
    with netCDF4.Dataset(path, "w") as file:
        pair = file.createCompoundType(np.dtype([("low", "i4"), ("high", "f8")]), "pair")
        file.createDimension("x", 2)
        file.createVariable("range", pair, ("x",))
        file.createVariable("t", "i4", ("x",))[:] = [1, 2]


def test_variables_of_unsupported_types_are_rejected_only_if_selected(tmp_path: Path) -> None:
    write_compound_file(tmp_path / "a.nc")
    with netCDF4.Dataset(tmp_path / "a.nc", "a") as file:
        file.createGroup("g").createVariable("w", "i4", ("x",))[:] = [3, 4]
    for selection, name, values in (
        ({"variables": ["t"]}, "t", [1, 2]),
        ({"group": "g"}, "w", [3, 4]),
    ):
        target: dict[str, bytes] = {}
        assert not xr_nczarr.copy(tmp_path / "a.nc", target, **selection).skipped
        assert xr.open_dataset(target, engine="nczarr")[name].values.tolist() == values
    for selection in ({}, {"variables": ["range"]}):
        with pytest.raises(
            xr_nczarr.UnsupportedError, match=r"variable /range of type pair \(comp"
        ):
            xr_nczarr.copy(tmp_path / "a.nc", {}, **selection)
    done = xr_nczarr.copy(tmp_path / "a.nc", {}, skip_unsupported=True)
    assert [item for item in done.skipped if "variable /range" in item]


def test_skipped_variables_do_not_count_toward_zarr_v1_limit(
    tmp_path: Path,
) -> None:
    write_compound_file(tmp_path / "a.nc")
    target: dict[str, bytes] = {}
    options = {"zarr_format": 1, "dialect": "zarr", "skip_unsupported": True}
    xr_nczarr.copy(tmp_path / "a.nc", target, **options)
    assert xr.open_dataset(target, engine="nczarr").to_dataarray().values.tolist() == [[1, 2]]


def huge_array(size: int, chunk: int, values: bytes = b"") -> dict[str, bytes]:
    """Return a store with an array of `size` bytes. Only one chunk for each of `values` exists."""
    document = array_document([size], "|u1", chunks=[chunk], fill_value=0)
    return {
        ".zgroup": b'{"zarr_format": 2}',
        "t/.zarray": json.dumps(document).encode(),
        "t/.zattrs": b'{"_ARRAY_DIMENSIONS": ["x"]}',
        **{f"t/{number}": values[number : number + 1] for number in range(len(values))},
    }


@pytest.mark.parametrize(("size", "chunk"), [(10**18, 1), (10**15, 2 * 10**9)])
def test_copying_array_with_too_many_chunks_raises_unsupported_error(size: int, chunk: int) -> None:
    store = huge_array(size, chunk)
    with pytest.raises(xr_nczarr.UnsupportedError, match=r"chunks or blocks.*variable /?t\b"):
        xr_nczarr.copy(store, {})
    with pytest.raises(xr_nczarr.UnsupportedError, match="Select part of the dimension"):
        xr_nczarr.to_nczarr(xr.open_dataset(store, engine="nczarr"), {})
    (unread,) = xr_nczarr.diff(store, huge_array(size, chunk)).unread
    assert "too many to read one by one" in unread


def test_part_of_huge_array_can_be_copied_and_compared() -> None:
    target: dict[str, bytes] = {}
    store, other = (huge_array(10**18, 1, values) for values in (b"abc", b"abx"))
    xr_nczarr.copy(store, target, select={"x": slice(1, 5)})
    copied = xr.open_dataset(target, engine="nczarr", mask_and_scale=False)
    assert copied.t.values.tobytes() == b"bc\0\0"
    assert xr_nczarr.diff(store, other, select={"x": slice(0, 2)}).whole
    (difference,) = xr_nczarr.diff(store, other, select={"x": slice(0, 3)}).differences
    assert (difference.path, difference.first, difference.second) == ("/t", "99", "120")
