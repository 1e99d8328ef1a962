"""Chunks of text and big-endian numbers are copied."""

import json

import netCDF4
import numpy as np
import pytest
import xarray as xr
from numcodecs import JSON, MsgPack

import xr_nczarr
from tests.reading import read
from tests.stores import array_document
from xr_nczarr import to_nczarr


# Copying raised a ChunkError.
@pytest.mark.parametrize("target", [{"dialect": "zarr"}, {"zarr_format": 3}, {}], ids=str)
@pytest.mark.parametrize("codec", [JSON(), MsgPack()], ids=["json", "msgpack"])
def test_strings_in_json_and_msgpack_chunks_are_copied(target, codec):
    filters = [codec.get_config()]
    array = array_document([3], "|O", chunks=[2], fill_value="", filters=filters)
    texts = np.array(["a", "bb", "ccc", ""], object)
    store = {
        ".zgroup": b'{"zarr_format": 2}',
        "v/.zarray": json.dumps(array).encode(),
        "v/.zattrs": b'{"_ARRAY_DIMENSIONS": ["x"]}',
        "v/0": bytes(codec.encode(texts[:2])),
        "v/1": bytes(codec.encode(texts[2:])),
    }
    copied = {}
    xr_nczarr.copy(store, copied, **target)
    assert read(copied).v.values.tolist() == ["a", "bb", "ccc"]


# A copy of big-endian numbers decoded and encoded every chunk.
@pytest.mark.parametrize("dtype", [">f4", ">i2"])
def test_incomplete_big_endian_variable_is_copied_unchanged(tmp_path, dtype):
    source, target = tmp_path / "source", tmp_path / "target"
    values = np.arange(35).reshape(5, 7).astype(dtype)
    encoding = {"t": {"dtype": dtype, "chunksizes": (2, 3), "zlib": True, "_FillValue": 9}}
    to_nczarr(xr.Dataset({"t": (("y", "x"), values)}), source, encoding=encoding)
    for chunk in ("0.1", "2.2"):
        (source / "t" / chunk).unlink()
    values[:2, 3:6] = values[4:, 6:] = 9
    copied = xr_nczarr.copy(source, target)
    assert (copied.unchanged, copied.objects) == (["/t"], 7)
    with netCDF4.Dataset(f"file://{target}#mode=nczarr,file") as stored:
        stored.set_auto_mask(False)
        np.testing.assert_array_equal(stored["t"][:], values)
