"""Opening with the engine in three ways, and comparing what comes out with what is in a store."""

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
"""Options under which xarray leaves stored values and attributes as they are."""


def read(target: Any, way: Any = "eager", **options: Any) -> xr.Dataset:
    """The dataset, loaded eagerly, by threaded dask, or by the workers of the client `way`."""
    return load(xr.open_dataset(target, engine="nczarr", **chunked(way), **options), way)


def read_groups(target: Any, way: Any = "eager", **options: Any) -> dict[str, xr.Dataset]:
    """All groups by path, loaded in one of the three ways."""
    found = xr.open_groups(target, engine="nczarr", **chunked(way), **options)
    return {path: load(dataset, way) for path, dataset in found.items()}


def peak_memory(work: Callable[[], object]) -> int:
    """The bytes that `work` and what it returned held at most."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def chunked(way: Any) -> dict[str, Any]:
    """The option that makes xarray use dask, but for the eager way."""
    return {} if way == "eager" else {"chunks": {}}


def load(dataset: xr.Dataset, way: Any) -> xr.Dataset:
    """The dataset with its values, which come from the store in the given way."""
    if way == "eager":
        return dataset.load()
    assert all(
        variable.chunks is not None for variable in dataset.data_vars.values() if variable.ndim
    )
    return dataset.compute(scheduler=way)


def assert_reads_as(found: Mapping[str, xr.Dataset], expected: Group) -> None:
    """Compare groups that were opened `RAW`, variable by variable, with what is in the store."""
    groups = dict(expected.walk())
    assert set(found) == set(groups)
    unlimited = {
        name
        for group in groups.values()
        for name, size in group.dims.items()
        if isinstance(size, Size)
    }
    for path, group in groups.items():
        dataset = found[path]
        assert set(dataset.variables) == set(group.variables), path
        assert_attributes(dataset.attrs, group.attrs, path)
        used = unlimited & set(dataset.sizes)
        assert used <= set(dataset.encoding["unlimited_dims"]) <= unlimited, path
        for name, variable in group.variables.items():
            assert_variable(dataset[name], variable, f"{path}:{name}")


def assert_variable(found: xr.DataArray, expected: Var, place: str) -> None:
    """Compare dimensions, dtype, values, and attributes with their types."""
    assert found.dims == tuple(name.rpartition("/")[2] for name in expected.dims), place
    assert_values(found.values, np.asarray(expected.values), place)
    assert_attributes(found.attrs, expected.attrs, place)


def assert_values(found: np.ndarray, expected: np.ndarray, place: str) -> None:
    """Compare values exactly (NaN is itself), and dtypes but for the byte order."""
    assert found.shape == expected.shape, place
    if expected.dtype.kind in "OU":
        assert found.dtype.kind in "OUT", place
        assert (found.dtype.kind == "U") == (expected.dtype.kind == "U"), place
        items = zip(found.ravel().tolist(), expected.ravel().tolist(), strict=True)
        assert all(type(a) is type(b) and a == b for a, b in items), (place, found, expected)
    else:
        assert found.dtype.newbyteorder("=") == expected.dtype.newbyteorder("="), place
        np.testing.assert_array_equal(found, expected, place)


def assert_attributes(found: Mapping[Any, Any], expected: Mapping[str, Any], place: str) -> None:
    """Compare attributes: names, the types of texts and numbers or JSON, exact values."""
    assert set(found) == set(expected), place
    for name, value in expected.items():
        given, where = found[name], f"{place}@{name}"
        if isinstance(value, str):
            assert type(given) is str, where
            assert given == value, where
        elif isinstance(value, int | float | dict) or (
            isinstance(value, list) and not all(isinstance(item, str) for item in value)
        ):
            assert repr(given) == repr(value), where
        elif isinstance(value, list):
            assert [type(item) for item in given] == [str] * len(value), where
            assert list(given) == value, where
        else:
            assert isinstance(given, np.generic | np.ndarray), (where, given)
            assert_values(np.asarray(given), np.asarray(value), where)


def open_store(target: Any, *, must_exist: bool = True, **access: Any) -> Store:
    """Open the store that a target names; storage options of this package may stand alone."""
    own = {name: access.pop(name) for name in ("retry", "missing_status") if name in access}
    options = {**(access.pop("storage_options", None) or {}), **own}
    access = Access(storage_options=options, **access)
    return resolve(target, access, must_exist=must_exist).store
