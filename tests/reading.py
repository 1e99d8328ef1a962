"""Open stores eagerly, with threaded dask or with dask workers, and compare their content."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from tests.stores import Group, Size, Var
from xr_nczarr.dataset import resolve
from xr_nczarr.storage import Access, Store

WAYS = ("eager", "threads")
RAW: dict[str, Any] = {
    "mask_and_scale": False,
    "decode_times": False,
    "decode_timedelta": False,
    "concat_characters": False,
}
"""Options that make xarray leave stored values and attributes unchanged."""


def read(target: Any, way: Any = "eager", **options: Any) -> xr.Dataset:
    """Return the dataset with all values loaded.

    `way` is "eager", the name of a dask scheduler, or a client whose workers load the values.
    """
    return load(xr.open_dataset(target, engine="nczarr", **chunked(way), **options), way)


def read_groups(target: Any, way: Any = "eager", **options: Any) -> dict[str, xr.Dataset]:
    """Return all groups by path, with values loaded in the same ways as by `read`."""
    opened = xr.open_groups(target, engine="nczarr", **chunked(way), **options)
    return {path: load(dataset, way) for path, dataset in opened.items()}


def peak_memory(work: Callable[[], object]) -> int:
    """Return the peak number of bytes that Python allocates while `work` runs."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def chunked(way: Any) -> dict[str, Any]:
    """Return the argument that makes xarray use dask, or no argument for eager reading."""
    return {} if way == "eager" else {"chunks": {}}


def load(dataset: xr.Dataset, way: Any) -> xr.Dataset:
    """Return the dataset with its values loaded. For `way`, see `read`."""
    if way == "eager":
        return dataset.load()
    assert all(
        variable.chunks is not None for variable in dataset.data_vars.values() if variable.ndim
    )
    return dataset.compute(scheduler=way)


def assert_reads_as(result: Mapping[str, xr.Dataset], expected: Group) -> None:
    """Check that groups opened with the options `RAW` equal the content of the store."""
    groups = dict(expected.walk())
    assert set(result) == set(groups)
    unlimited = {
        name
        for group in groups.values()
        for name, size in group.dims.items()
        if isinstance(size, Size)
    }
    for path, group in groups.items():
        dataset = result[path]
        assert set(dataset.variables) == set(group.variables), path
        assert_attributes(dataset.attrs, group.attrs, path)
        used = unlimited & set(dataset.sizes)
        assert used <= set(dataset.encoding["unlimited_dims"]) <= unlimited, path
        for name, variable in group.variables.items():
            assert_variable(dataset[name], variable, f"{path}:{name}")


def assert_variable(result: xr.DataArray, expected: Var, place: str) -> None:
    """Check that dimensions, dtype, values and attributes are equal, including attribute types."""
    assert result.dims == tuple(name.rpartition("/")[2] for name in expected.dims), place
    assert_values(result.values, np.asarray(expected.values), place)
    assert_attributes(result.attrs, expected.attrs, place)


def assert_values(result: np.ndarray, expected: np.ndarray, place: str) -> None:
    """Check that values are equal, including NaN, and that dtypes differ at most in byte order."""
    assert result.shape == expected.shape, place
    if expected.dtype.kind in "OU":
        assert result.dtype.kind in "OUT", place
        assert (result.dtype.kind == "U") == (expected.dtype.kind == "U"), place
        items = zip(result.ravel().tolist(), expected.ravel().tolist(), strict=True)
        assert all(type(a) is type(b) and a == b for a, b in items), (place, result, expected)
    else:
        assert result.dtype.newbyteorder("=") == expected.dtype.newbyteorder("="), place
        np.testing.assert_array_equal(result, expected, place)


def assert_attributes(result: Mapping[Any, Any], expected: Mapping[str, Any], place: str) -> None:
    """Check that attributes have equal names, types and exact values."""
    assert set(result) == set(expected), place
    for name, value in expected.items():
        original, where = result[name], f"{place}@{name}"
        if isinstance(value, str):
            assert type(original) is str, where
            assert original == value, where
        elif isinstance(value, int | float | dict) or (
            isinstance(value, list) and not all(isinstance(item, str) for item in value)
        ):
            assert repr(original) == repr(value), where
        elif isinstance(value, list):
            assert [type(item) for item in original] == [str] * len(value), where
            assert list(original) == value, where
        else:
            assert isinstance(original, np.generic | np.ndarray), (where, original)
            assert_values(np.asarray(original), np.asarray(value), where)


def open_store(target: Any, *, must_exist: bool = True, **access: Any) -> Store:
    """Open the store of a target. The storage options can be only options of this package."""
    own = {name: access.pop(name) for name in ("retry", "missing_status") if name in access}
    options = {**(access.pop("storage_options", None) or {}), **own}
    access = Access(storage_options=options, **access)
    return resolve(target, access, must_exist=must_exist).store
