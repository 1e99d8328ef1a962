"""An append accepts any dtype of the stored kind, but no repeated coordinate values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from tests.stores import Group, Size, Var, write_vintage
from xr_nczarr import ConflictError, to_nczarr

DAYS = xr.date_range("2000-01-01", periods=5, use_cftime=False).values
LATER = xr.date_range("2000-01-02", periods=1, use_cftime=True).values
NOLEAP = xr.date_range("2000-01-01", periods=5, calendar="noleap", use_cftime=True).values
HOURS = np.array([1, 3, 5], "m8[h]").astype("m8[ns]")


def along(values: Any) -> xr.Dataset:
    return xr.Dataset({"v": ("t", np.arange(float(len(values))))}, coords={"t": ("t", values)})


@pytest.mark.parametrize(
    ("stored", "appended"),
    [
        (DAYS, LATER),
        ([1, 2, 3], [3.0, 4.0]),
        ([1.0, 2.0], [2, 3]),
        (["a", "é"], ["é", "c"]),
        (np.array([b"a", b"bc"]), ["bc", "d"]),
    ],
    ids=["dates", "floats", "integers", "text", "characters"],
)
def test_repeated_coordinate_values_of_any_type_are_rejected(
    tmp_path: Path, stored: Any, appended: Any
) -> None:
    to_nczarr(along(stored), tmp_path / "a")
    with pytest.raises(ConflictError, match="already contains the value"):
        to_nczarr(along(appended), tmp_path / "a", append_dim="t")


@pytest.mark.parametrize(
    ("stored", "appended"),
    [(NOLEAP[::2], NOLEAP[1:2]), (HOURS, HOURS[:1] + HOURS[:1])],
    ids=["other calendar", "durations"],
)
def test_overlapping_times_are_rejected(tmp_path: Path, stored: Any, appended: Any) -> None:
    to_nczarr(along(stored), tmp_path / "a")
    with pytest.raises(ConflictError, match="new data starts at"):
        to_nczarr(along(appended), tmp_path / "a", append_dim="t")


@pytest.mark.parametrize("coordinate", [False, True])
@pytest.mark.parametrize(
    ("stored", "appended"),
    [
        ([1, 2], [3 + 4j]),
        ([1.5, 2.5], [3 + 4j]),
        ([True, False], [2]),
        ([1, 2], ["a"]),
        (["a"], [1]),
        (DAYS, ["a"]),
        (DAYS, HOURS),
        (HOURS, DAYS),
        (NOLEAP, DAYS[-1:] + np.timedelta64(360, "h")),
        (DAYS, NOLEAP[-1:] + np.timedelta64(3, "D").item()),
    ],
    ids=str,
)
def test_appended_values_of_incompatible_type_are_rejected(
    tmp_path: Path, stored: Any, appended: Any, coordinate: bool
) -> None:
    # Complex numbers once lost their imaginary part silently, and nonzero values became True.
    first, second = along(stored), along(appended)
    if not coordinate:
        first, second = first.reset_coords(), second.reset_coords()
        first, second = (item.rename_vars(t="w").drop_vars("v") for item in (first, second))
    to_nczarr(first, tmp_path / "a")
    with pytest.raises(ConflictError, match=r"dtypes|compare|does not fit"):
        to_nczarr(second, tmp_path / "a", append_dim="t")
    xr.testing.assert_equal(xr.open_dataset(tmp_path / "a", engine="nczarr").load(), first)


@pytest.mark.parametrize("lazy", [False, True], ids=["numpy", "dask"])
@pytest.mark.parametrize(
    ("stored", "number"),
    [("f4", 2**24 + 1), ("f8", 2**53 + 1), ("f8", -(2**63) + 1)],
    ids=["float32", "float64", "negative"],
)
def test_appended_integers_not_representable_as_floats_are_rejected(
    stored: str, number: int, lazy: bool
) -> None:
    def numbers(values: Any) -> xr.Dataset:
        dataset = xr.Dataset({"v": ("t", np.array(values))})
        return dataset.chunk() if lazy else dataset

    store: dict[str, bytes] = {}
    to_nczarr(xr.Dataset({"v": ("t", np.array([0.5], stored))}), store)
    with pytest.raises(ConflictError, match=f"the value {number} does not fit the encoding"):
        to_nczarr(numbers([1, number]), store, append_dim="t")
    to_nczarr(numbers([1, number - 1]), store, append_dim="t")
    opened = xr.open_dataset(store, engine="nczarr").v.values
    assert opened.tolist() == [0.5, 1.0, number - 1]


def test_undecoded_times_can_be_appended_only_in_stored_units(tmp_path: Path) -> None:
    to_nczarr(along(DAYS[:2]), tmp_path / "a")
    raw = along([2, 3])
    raw.t.attrs["units"] = "hours since 2000-01-01"
    with pytest.raises(ConflictError, match="Mismatched dtypes for variable t"):
        to_nczarr(raw, tmp_path / "a", append_dim="t")
    stored = xr.open_dataset(tmp_path / "a", engine="nczarr", decode_times=False)
    raw.t.attrs["units"] = stored.t.attrs["units"]
    to_nczarr(raw, tmp_path / "a", append_dim="t")
    opened = xr.open_dataset(tmp_path / "a", engine="nczarr")
    np.testing.assert_array_equal(opened.t, DAYS[:4])


@pytest.mark.parametrize("options", [{}, {"dialect": "zarr"}, {"zarr_format": 3}], ids=str)
def test_bytes_can_be_appended_to_dimension_coordinate(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    to_nczarr(along(np.array([b"abc", b"d"])), tmp_path / "a", **options)
    to_nczarr(along(np.array([b"ef"])), tmp_path / "a", append_dim="t")
    opened = xr.open_dataset(tmp_path / "a", engine="nczarr").t.values
    assert opened.tolist() == [b"abc", b"d", b"ef"]


def test_strings_can_be_appended_to_stored_strings_with_invalid_utf8(tmp_path: Path) -> None:
    to_nczarr(along(["x", "y"]), tmp_path / "a", encoding={"t": {"compressor": None}})
    chunk = tmp_path / "a" / "t" / "0"
    chunk.write_bytes(chunk.read_bytes().replace(b"x", b"\xe9"))
    with pytest.raises(ConflictError, match="already contains the value"):
        to_nczarr(along(["\udce9"]), tmp_path / "a", append_dim="t")
    to_nczarr(along(["z"]), tmp_path / "a", append_dim="t")
    opened = xr.open_dataset(tmp_path / "a", engine="nczarr").t.values
    assert opened.tolist() == ["\udce9", "y", "z"]


@pytest.mark.parametrize("options", [{}, {"dialect": "zarr"}, {"zarr_format": 3}], ids=str)
@pytest.mark.parametrize("lazy", [False, True], ids=["numpy", "dask"])
@pytest.mark.filterwarnings("ignore:variable s has data in the form of a dask array")
def test_missing_strings_are_appended_as_empty_strings(
    tmp_path: Path, options: dict[str, Any], lazy: bool
) -> None:
    def texts(items: list[Any]) -> xr.Dataset:
        return xr.Dataset({"s": ("t", np.array(items, object))})

    to_nczarr(texts(["a", "b"]), tmp_path / "a", **options)
    for items in ([None, np.nan], ["c", None]):
        new = texts(items)
        to_nczarr(new.chunk() if lazy else new, tmp_path / "a", append_dim="t")
    numbers = texts([1.5, np.nan])
    with pytest.raises(ConflictError, match=r"Mismatched dtypes for variable s: .* float64"):
        to_nczarr(numbers.chunk() if lazy else numbers, tmp_path / "a", append_dim="t")
    with xr.open_dataset(tmp_path / "a", engine="nczarr") as dataset:
        assert dataset.s.values.tolist() == ["a", "b", "", "", "c", ""]


@pytest.mark.parametrize("encoding", [{"endian": "big"}, {"_FillValue": 7}], ids=str)
@pytest.mark.parametrize("number", [2**64 - 1, 2**63 + 1, 2**53 + 1])
def test_large_unsigned_integers_are_appended_exactly(
    tmp_path: Path, number: int, encoding: dict[str, Any]
) -> None:
    values = xr.Dataset({"v": ("t", np.array([1, number], "u8"))})
    to_nczarr(values, tmp_path / "a", encoding={"v": encoding})
    to_nczarr(values, tmp_path / "a", append_dim="t")
    result = xr.open_dataset(tmp_path / "a", engine="nczarr", mask_and_scale=False)
    assert result.v.values.tolist() == [1, number] * 2


@pytest.mark.parametrize("names", [["c"], ["c", "n"]], ids=["alone", "with the number"])
@pytest.mark.parametrize("options", [{}, {"concat_characters": False}], ids=["decoded", "raw"])
def test_character_arrays_round_trip_if_numeric_array_has_same_dimensions(
    tmp_path: Path, names: list[str], options: dict[str, Any]
) -> None:
    # Because of the number, xarray does not join the characters when it opens the store.
    characters = np.array([[b"a", b"", b"c"], [b"d", b"e", b""]])
    variables = {"c": Var(("/t", "/x"), characters), "n": Var(("/t", "/x"), np.ones((2, 3)))}
    store = write_vintage(tmp_path / "a", Group({"t": Size(2), "x": 3}, variables), "4.10")
    opened = xr.open_dataset(store, engine="nczarr", **options).load()
    assert opened.c.dims == ("t", "x")
    to_nczarr(opened[names].isel(t=[1]), store, region={"t": slice(0, 1)})
    to_nczarr(opened[["c", "n"]].isel(t=[0]), store, append_dim="t")
    result = xr.open_dataset(store, engine="nczarr").load()
    np.testing.assert_array_equal(result.c, characters[[1, 1, 0]])


def test_characters_not_joined_into_strings_can_be_appended(tmp_path: Path) -> None:
    texts = xr.Dataset({"c": ("t", [b"ab", b"c"])})
    to_nczarr(texts, tmp_path / "a", encoding={"c": {"char_dim_name": "x"}})
    opened = xr.open_dataset(tmp_path / "a", engine="nczarr", concat_characters=False).load()
    assert opened.c.dims == ("t", "x")
    to_nczarr(opened, tmp_path / "a", append_dim="t")
    result = xr.open_dataset(tmp_path / "a", engine="nczarr").load()
    assert result.c.values.tolist() == [b"ab", b"c"] * 2


VALUES = {
    "text": ["a", "bc"],
    "bytes": np.array([b"a", b"bc"]),
    "integers": np.array([1, 2], "i2"),
    "floats": [1.5, 2.5],
    "booleans": [True, False],
    "dates": DAYS[:2],
    "durations": HOURS[:2],
    "noleap dates": NOLEAP[:2],
}


@pytest.mark.parametrize("in_blocks", [False, True])
@pytest.mark.parametrize("dialect", ["nczarr", "zarr"])
@pytest.mark.parametrize("kind", VALUES)
def test_empty_array_of_any_type_can_be_appended(kind: str, dialect: Any, in_blocks: bool) -> None:
    to_nczarr(xr.Dataset({"v": ("t", VALUES[kind])}), store := {}, dialect=dialect)
    before = xr.open_dataset(store, engine="nczarr").load()
    for values in VALUES.values():
        empty = xr.Dataset({"v": ("t", values[:0])})
        to_nczarr(empty.chunk() if in_blocks else empty, store, append_dim="t")
        xr.testing.assert_identical(xr.open_dataset(store, engine="nczarr"), before)


@pytest.mark.parametrize("attribute", ["bounds", "coordinates"])
def test_non_text_bounds_and_coordinates_do_not_prevent_append(
    tmp_path: Path, attribute: str
) -> None:
    attributes = {"units": "days since 2000-01-01", attribute: np.array([1.5, 2.5])}
    variables = {"t": Var(("/x",), np.array([0, 1]), attributes)}
    store = write_vintage(tmp_path / "a", Group({"x": Size(2)}, variables), "4.10")
    to_nczarr(xr.Dataset({"t": ("x", DAYS[2:4])}), store, append_dim="x")
    opened = xr.open_dataset(store, engine="nczarr", decode_cf=False)
    assert opened.t.values.tolist() == [0, 1, 2, 3]
    assert list(opened.t.attrs[attribute]) == [1.5, 2.5]


@pytest.mark.filterwarnings("ignore:variable b has data in the form of a dask array")
@pytest.mark.parametrize("chunked", [False, True], ids=["numpy", "dask"])
def test_appended_bytes_that_end_in_nul_are_rejected(chunked: bool) -> None:
    store: dict[str, bytes] = {}
    to_nczarr(xr.Dataset({"b": ("x", np.array([b"ab", b"c"], "S3"))}), store, dialect="zarr")
    new = xr.Dataset({"b": ("x", np.array([b"a\0"], object))})
    with pytest.raises(ConflictError, match="end in NUL bytes"):
        to_nczarr(new.chunk() if chunked else new, store, append_dim="x")


@pytest.mark.parametrize(
    ("encoding", "layout"),
    [({"dtype": "S1"}, {}), ({"dtype": "S4"}, {"dialect": "zarr"}), ({}, {"zarr_format": 1})],
    ids=["characters", "bytes", "v1"],
)
def test_fixed_width_text_cannot_end_in_nul(
    encoding: dict[str, Any], layout: dict[str, Any]
) -> None:
    dataset = xr.Dataset({"b": ("x", np.array(["a\0"], object))})
    with pytest.raises(ConflictError, match="end in NUL bytes"):
        to_nczarr(dataset, {}, encoding={"b": encoding}, **layout)


@pytest.mark.parametrize("chunked", [False, True], ids=["numpy", "dask"])
def test_missing_strings_are_appended_as_stored_fill_value(chunked: bool) -> None:
    store: dict[str, bytes] = {}
    dataset = xr.Dataset({"b": ("x", np.array(["a", None], object))})
    to_nczarr(dataset, store, encoding={"b": {"_FillValue": "NA"}})
    to_nczarr(dataset.chunk() if chunked else dataset, store, append_dim="x")
    values = xr.open_dataset(store, engine="nczarr")["b"]
    assert values.isnull().values.tolist() == [False, True, False, True]


def test_complex_numbers_that_overflow_stored_dtype_are_rejected() -> None:
    large, store = xr.Dataset({"c": ("x", [1e300 + 0j])}), dict[str, bytes]()
    with pytest.raises(ConflictError, match="does not fit the encoding"):
        to_nczarr(large, store, dialect="zarr", encoding={"c": {"dtype": "complex64"}})
    to_nczarr(xr.Dataset({"c": ("x", np.array([1j], "c8"))}), store, dialect="zarr")
    with pytest.raises(ConflictError, match="does not fit the encoding"):
        to_nczarr(large, store, append_dim="x")
