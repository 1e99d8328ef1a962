"""Chunks whose keys have an undeclared separator are found, replaced and copied."""

import json

import numpy as np
import pytest
import xarray as xr

import xr_nczarr
from tests.reading import read
from xr_nczarr import to_nczarr


def _undeclared_nested(path, values, **encoding):
    """Write a v2 store with chunks of 2 x 4, as zarr-python before 2.8 wrote it.

    The chunk keys contain slashes, but the metadata does not declare this.
    """
    keys = {"name": "v2", "separator": "/"}
    encoding |= {"chunks": (2, 4), "chunk_key_encoding": keys}
    dataset = xr.Dataset({"v": (("t", "x"), values)})
    dataset.to_zarr(path, zarr_format=2, encoding={"v": encoding}, consolidated=False)
    document = json.loads((path / "v/.zarray").read_text())
    assert document.pop("dimension_separator") == "/"
    (path / "v/.zarray").write_text(json.dumps(document))


# A chunk written with the separator "." once hid all old chunks.
@pytest.mark.parametrize("first", [0, 8], ids=["complete", "without first and last chunk"])
@pytest.mark.parametrize("change", ["append", "region"])
def test_writing_with_undeclared_separator_preserves_values(tmp_path, first, change):
    values = np.where(np.arange(40) < first, np.nan, np.arange(40.0)).reshape(10, 4)
    values[8:] = np.nan if first else values[8:]
    _undeclared_nested(tmp_path / "s", values)
    new = xr.Dataset({"v": (("t", "x"), np.full((1, 4), 7.0))})
    if change == "append":
        to_nczarr(new, tmp_path / "s", append_dim="t")
        expected = np.concatenate([values, np.full((1, 4), 7.0)])
    else:
        to_nczarr(new, tmp_path / "s", region={"t": slice(4, 5)})
        expected = values.copy()
        expected[4] = 7
    np.testing.assert_array_equal(read(tmp_path / "s").v.values, expected)


# Once, a chunk was found or not, depending on which chunks were read with it. A copy lost chunks.
@pytest.mark.parametrize("encoding", [{}, {"compressors": None}], ids=["compressed", "raw"])
def test_array_with_mixed_separators_can_be_read_and_updated(tmp_path, encoding):
    path = tmp_path / "s"
    values = np.arange(40.0).reshape(10, 4)
    _undeclared_nested(path, values, **encoding)
    (path / "v/4/0").rename(path / "v/4.0")
    (path / "v/2/0").rename(path / "v/2.0")
    (path / "v/1/0").unlink()
    values[2:4] = np.nan

    def check(expected):
        for store in (path, tmp_path / "copy"):
            opened = read(store).v
            np.testing.assert_array_equal(opened.values, expected)
            for step in range(1, 10):
                np.testing.assert_array_equal(opened[::step, 1:3].values, expected[::step, 1:3])

    xr_nczarr.copy(path, tmp_path / "copy")
    check(values)
    # The key has a slash for the chunk with row 0, and a dot for the chunk with row 4.
    for row in (0, 4):
        for value in (7.0, np.nan):
            for count in (1, 2):  # a part of a chunk, then the whole chunk
                new = xr.Dataset({"v": (("t", "x"), np.full((count, 4), value))})
                to_nczarr(new, path, region={"t": slice(row, row + count)})
                to_nczarr(new, tmp_path / "copy", region={"t": slice(row, row + count)})
                values[row : row + count] = value
                check(values)
