"""Arrays whose shape differs from the sizes of their dimensions."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.reading import read
from tests.stores import Group, Size, Var, write_vintage

FOUR = np.arange(4, dtype="f4")


# Regression D21
def test_arrays_shorter_or_longer_than_unlimited_dimension_can_be_opened(
    tmp_path: Path, way: str
) -> None:
    times = {"short": FOUR[:3], "long": np.arange(6, dtype="f4"), "right": FOUR}
    content = Group({"t": Size(4), "x": 2})
    content.variables = {name: Var(("/t",), v, fill=-1) for name, v in times.items()}
    content.variables |= {"odd": Var(("/x",), FOUR), "gone": Var(("/x",), FOUR[:2])}
    store = write_vintage(tmp_path / "s", content, "4.10")
    shutil.rmtree(store / "gone")
    result = read(store, way, drop_variables=["odd", "gone"])
    assert result.short.values.tolist() == [0, 1, 2, -1]
    assert result.long.values.tolist() == result.right.values.tolist() == [0, 1, 2, 3]
    picture = repr(xr_nczarr.info(store))
    assert all(f"/{name}" in picture for name in ("t", "x", "gone")), picture
    dataset = xr.open_dataset(store, engine="nczarr")
    with pytest.raises(xr_nczarr.MetadataError, match=r"4.*2"):
        dataset.odd.load()
    with pytest.raises(xr_nczarr.NotFoundError, match="gone"):
        dataset.gone.load()
    with pytest.raises(xr_nczarr.NczarrError):
        xr.open_dataset(store, engine="nczarr", on_unsupported="raise")


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("codecs", [{}, {"zlib": True}, {"shards": (4, 6)}], ids=str)
@pytest.mark.parametrize("length", [0, 1, 2, 3, 5])
def test_reading_past_end_of_short_array_returns_fill_values(zarr_format, codecs, length):
    if zarr_format == 2 and "shards" in codecs:
        pytest.skip("Zarr v2 has no shards")
    values = np.arange(1, 37, dtype="i4").reshape(6, 6)
    encoding = {"v": {"chunksizes": (2, 3), "_FillValue": np.int32(-1), **codecs}}
    options = {"zarr_format": zarr_format, "unlimited_dims": ["t"], "consolidated": False}
    store, copied = {}, {}
    dataset = xr.Dataset({"v": (("t", "x"), values.copy())})
    xr_nczarr.to_nczarr(dataset, store, encoding=encoding, **options)
    # Programs that shorten an array can leave its old values in the stored chunks.
    key = {2: "v/.zarray", 3: "v/zarr.json"}[zarr_format]
    store[key] = json.dumps({**json.loads(store[key]), "shape": [length, 6]}).encode()
    values[length:] = -1
    opened = xr.open_dataset(store, engine="nczarr", mask_and_scale=False).v
    rows, columns = [5, 0, 1, 4], [0, 5, 2, 2]
    np.testing.assert_array_equal(opened, values)
    np.testing.assert_array_equal(opened[::-2, 1], values[::-2, 1])
    np.testing.assert_array_equal(opened[rows, columns], values[rows][:, columns])
    points = {"t": xr.DataArray(rows, dims="p"), "x": xr.DataArray(columns, dims="p")}
    np.testing.assert_array_equal(opened.isel(points), values[rows, columns])
    xr_nczarr.copy(store, copied, zarr_format=zarr_format)
    np.testing.assert_array_equal(
        xr.open_dataset(copied, engine="nczarr", mask_and_scale=False).v, values
    )


@pytest.mark.parametrize("length", range(7))
def test_reading_past_end_of_short_rectilinear_array_returns_fill_values(length):
    values = np.arange(1, 37, dtype="i4").reshape(6, 6)
    encoding = {"v": {"chunksizes": (2, 3), "_FillValue": np.int32(-1), "zlib": False}}
    dataset, store = xr.Dataset({"v": (("t", "x"), values.copy())}), {}
    to_nczarr = functools.partial(xr_nczarr.to_nczarr, zarr_format=3, unlimited_dims=["t"])
    to_nczarr(dataset, store, encoding=encoding, consolidated=False)
    configuration = {"kind": "inline", "chunk_shapes": [[1, 3, 2], [4, 2]]}
    grid = {"chunk_grid": {"name": "rectilinear", "configuration": configuration}}
    document = {**json.loads(store["v/zarr.json"]), **grid, "shape": [length, 6]}
    store["v/zarr.json"] = json.dumps(document).encode()
    for row, rows in enumerate([slice(0, 1), slice(1, 4), slice(4, 6)]):
        for column, columns in enumerate([slice(0, 4), slice(4, 6)]):
            store[f"v/c/{row}/{column}"] = values[rows, columns].tobytes()
    values[length:] = -1
    opened = xr.open_dataset(store, engine="nczarr", mask_and_scale=False).v
    np.testing.assert_array_equal(opened, values)
    np.testing.assert_array_equal(opened[::-2, [5, 0]], values[::-2, [5, 0]])


# Every missing chunk beyond the grid was once requested separately.
def test_part_of_array_beyond_rectilinear_grid_is_treated_as_one_chunk():
    store, values = {}, np.zeros(20_000, "i4")
    encoding = {"v": {"chunksizes": (20_000,), "_FillValue": np.int32(-1), "zlib": False}}
    dataset = xr.Dataset({"v": ("t", values)})
    xr_nczarr.to_nczarr(
        dataset, store, encoding=encoding, zarr_format=3, unlimited_dims=["t"], consolidated=False
    )
    configuration = {"kind": "inline", "chunk_shapes": [[1, 2]]}
    grid = {"chunk_grid": {"name": "rectilinear", "configuration": configuration}}
    document = {**json.loads(store["v/zarr.json"]), **grid, "shape": [3]}
    store["v/zarr.json"] = json.dumps(document).encode()
    store["v/c/0"], store["v/c/1"] = bytes(4), bytes(8)
    (reading,) = xr_nczarr.explain(store).readings
    assert (reading.requests, reading.chunks) == (3, 3)
    values[3:] = -1
    opened = xr.open_dataset(store, engine="nczarr", mask_and_scale=False).v
    np.testing.assert_array_equal(opened, values)
