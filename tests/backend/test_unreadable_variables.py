"""Variables with unknown types or codecs, and broken coordinates, affect no other variables."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr

import xr_nczarr
from tests.reading import RAW, assert_values, read
from tests.small_stores import store_with_good_array
from tests.stores import array_document, put
from xr_nczarr import RefusedError

FOUR = np.arange(4, dtype="f4")


# Regression D23
def test_store_with_types_unsupported_by_netcdf_can_be_opened(tmp_path: Path, way: str) -> None:
    values = {
        "u": np.array(["é", "xy"], "<U2"),
        "c": np.array([1j, 2]),
        "m": np.array([1, 2], "M8[s]"),
    }
    broken = {name: array_document((2,), value.dtype.str) for name, value in values.items()}
    broken["o"] = array_document((2,), "|O", filters=[{"id": "vlen-utf8"}])
    broken["odd"] = array_document((2,), "<q9")
    store = store_with_good_array(tmp_path / "s", **broken)
    texts = numcodecs.VLenUTF8().encode(np.array(["a", "bc"], object))
    put(store, {"o/0": bytes(texts), **{f"{n}/0": v.tobytes() for n, v in values.items()}})
    result = read(store, way, drop_variables="odd", **RAW)
    assert result.good.values.tolist() == [5, 6]
    assert (result.u.values.tolist(), result.o.values.tolist()) == (["é", "xy"], ["a", "bc"])
    assert_values(result.c.values, values["c"], "c")
    assert result.m.values.astype("M8[s]").tolist() == values["m"].tolist()
    with pytest.raises(xr_nczarr.NczarrError, match="q9"):
        xr.open_dataset(store, engine="nczarr").odd.load()


# Regression D33
@pytest.mark.parametrize("codec", ["szip", "nobody-knows-this"])
def test_unknown_codec_breaks_only_its_variable(tmp_path: Path, way: str, codec: str) -> None:
    odd = array_document((2,), compressor={"id": codec, "mask": 32, "pixels-per-block": 8})
    store = store_with_good_array(
        tmp_path / "s", odd=odd, filtered=odd | {"filters": [{"id": codec}]}
    )
    assert read(store, way, drop_variables=["odd", "filtered"]).good.values.tolist() == [5, 6]
    dataset = xr.open_dataset(store, engine="nczarr")
    assert dataset.odd.shape == (2,)
    with pytest.raises(xr_nczarr.UnsupportedError, match=codec) as caught:
        dataset.odd.load()
    assert caught.value.variable == "/odd"
    assert set(xr.open_dataset(store, engine="nczarr", on_unsupported="skip")) == {"good"}
    with pytest.raises(xr_nczarr.UnsupportedError, match=codec):
        xr.open_dataset(store, engine="nczarr", on_unsupported="raise")


@pytest.mark.parametrize("chunks", [None, {}])
def test_store_with_broken_variables_can_be_opened(tmp_path: Path, chunks: Any) -> None:
    """With dask, xarray reads one item of every object array. A failure affects only one array."""
    vlen = {"filters": [{"id": "vlen-utf8"}, {"id": "nobody-knows-this"}]}
    odd = array_document((2,), "|O", fill_value="", **vlen)
    store = store_with_good_array(tmp_path / "s", odd=odd)
    listed = {"dims": {"x": 2}, "vars": ["good", "odd", "gone"], "groups": []}
    superblock = {"version": "2.0.0"}
    group = {"zarr_format": 2, "_NCZARR_SUPERBLOCK": superblock, "_NCZARR_GROUP": listed}
    put(store, {".zgroup": group})
    dataset = xr.open_dataset(store, engine="nczarr", chunks=chunks)
    assert dataset.good.values.tolist() == [5, 6]
    assert "odd" in repr(dataset)
    with pytest.raises(xr_nczarr.UnsupportedError, match="nobody-knows-this"):
        dataset.odd.load()
    with pytest.raises(xr_nczarr.NotFoundError, match="gone"):
        dataset.gone.load()


@pytest.mark.parametrize("damage", ["gone", "no JSON", "another shape"])
@pytest.mark.parametrize("chunks", [None, {}])
def test_broken_coordinate_does_not_affect_variables_along_its_dimension(
    tmp_path: Path, damage: str, chunks: Any
) -> None:
    values = xr.Dataset({"v": ("t", FOUR)}, {"t": np.arange(4)})
    inner = xr.Dataset({"w": ("t", FOUR)})
    xr_nczarr.to_nczarr(xr.DataTree.from_dict({"/": values, "/g": inner}), tmp_path / "s")
    for document in (tmp_path / "s/.zmetadata", tmp_path / "s/t/.zarray"):
        text = document.read_text()
        document.unlink()
        if document.name == ".zarray" and damage != "gone":
            document.write_text("{" if damage == "no JSON" else text.replace("[4]", "[5]"))
    with pytest.warns(xr.SerializationWarning, match="^/t has no index"):
        opened = xr.open_datatree(tmp_path / "s", engine="nczarr", chunks=chunks)
    with opened as tree:
        assert tree["v"].values.tolist() == tree["g/w"].values.tolist() == FOUR.tolist()
        assert (tree["t"].dims, tree["t"].shape) == (("t",), (4,))
        with pytest.raises(xr_nczarr.NczarrError) as caught:
            tree["t"].load()
    assert caught.value.variable == "/t"
    assert "v(t)" in repr(xr_nczarr.explain(tmp_path / "s"))


def test_invalid_compression_level_breaks_only_its_variable() -> None:
    store = {".zgroup": b'{"zarr_format": 2}'}
    for name, level in {"text": "4", "number": 4, "word": "x", "list": []}.items():
        document = array_document((2,), compressor={"id": "zlib", "level": level})
        store[f"{name}/.zarray"] = json.dumps(document).encode()
        store[f"{name}/0"] = zlib.compress(np.arange(2, dtype="i4").tobytes())
    dataset = xr.open_dataset(store, engine="nczarr")
    for name in ("text", "number"):
        assert dataset[name].encoding["complevel"] == 4
        assert dataset[name].values.tolist() == [0, 1]
    for name in ("word", "list"):
        with pytest.raises(xr_nczarr.MetadataError, match="level"):
            dataset[name].load()


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("dropped", ["single name", "iterator", "array"])
def test_dropping_variable_of_conflicting_size_makes_other_variables_readable(
    version: int, dropped: str
) -> None:
    def unused() -> Any:
        if dropped == "array":
            return np.array(names)
        return names[0] if dropped == "single name" else iter(names)

    names = ["0"] if dropped == "single name" else ["0", "bad"]
    store = zarr.storage.MemoryStore()
    root = zarr.create_group(store, zarr_format=version)
    for group in (root, root.create_group("g")):
        for name, size in {"0": 4, "1": 2}.items():
            dimensions: dict[str, Any] = {"dimension_names": ["x"]}
            if version == 2:
                dimensions = {"attributes": {"_ARRAY_DIMENSIONS": ["x"]}}
            group.create_array(name, data=np.full(size, size), fill_value=None, **dimensions)
    objects = {key: data.to_bytes() for key, data in store._store_dict.items()}
    expected = xr.Dataset({"1": ("x", [2, 2])})
    dataset = xr.open_dataset(objects, engine="nczarr", drop_variables=unused())
    xr.testing.assert_identical(dataset, expected)
    tree = xr.open_datatree(objects, engine="nczarr", drop_variables=unused())
    xr.testing.assert_identical(tree["g"].to_dataset(), expected)
    smaller = xr.open_dataset(objects, engine="nczarr")["1"]
    with pytest.raises(xr_nczarr.MetadataError, match="Pass drop_variables to exclude"):
        smaller.load()


def test_unreadable_v3_array_keeps_its_dimension_names() -> None:
    store = zarr.storage.MemoryStore()
    root = zarr.create_group(store)
    root.create_array("v", shape=(2, 3), dtype="i2", dimension_names=["y", None])
    objects = {key: data.to_bytes() for key, data in store._store_dict.items()}
    document = json.loads(objects["v/zarr.json"])
    objects["v/zarr.json"] = json.dumps(document | {"data_type": "unknown"}).encode()
    dataset = xr.open_dataset(objects, engine="nczarr")
    assert dataset.v.dims == ("y", "_Anonymous_Dimension_3")


@pytest.mark.skipif(os.sep == "\\", reason="names cannot contain backslashes")
def test_names_with_backslash_do_not_prevent_opening_store(tmp_path: Path, way: str) -> None:
    """Stores reject such keys, but netCDF-C and zarr-python write them on Unix."""
    store = store_with_good_array(tmp_path / "s", **{"a\\b": array_document((2,), "<i4")})
    put(store, {"g\\h/.zgroup": b'{"zarr_format": 2}'})
    result = read(store, way, drop_variables=["a\\b", "g\\h"])
    assert result.good.values.tolist() == [5, 6]
    with pytest.raises(RefusedError, match="contains a backslash"):
        _ = xr.open_dataset(store, engine="nczarr")["a\\b"].values
    assert xr_nczarr.info(store).totals()["objects_present"] == 1
    findings = xr_nczarr.verify(store).findings
    assert [(finding.severity, finding.place) for finding in findings] == [
        ("error", "/a\\b"),
        ("error", "/g\\h"),
    ]
    with pytest.raises(RefusedError, match="contains a backslash"):
        xr_nczarr.consolidate(store)
    assert not (tmp_path / "s" / ".zmetadata").exists()
