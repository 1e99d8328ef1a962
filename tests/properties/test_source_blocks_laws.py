"""Lazily opened variables are read in blocks that consist of whole stored chunks."""

import itertools

import numpy as np
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import xr_nczarr
from xr_nczarr.writing import source_blocks

SIZES = st.integers(1, 12)


@st.composite
def selectors(draw, size):
    kind = draw(st.sampled_from(["slice", "sorted", "any"]))
    if kind == "slice":
        bounds = st.none() | st.integers(-size - 1, size + 1)
        step = st.none() | st.integers(-4, 4).filter(bool)
        return slice(draw(bounds), draw(bounds), draw(step))
    positions = draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=8))
    return sorted(positions) if kind == "sorted" else positions


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_blocks_of_lazy_selection_end_at_chunk_boundaries(data):
    shape = (data.draw(SIZES), data.draw(SIZES))
    chunk = (data.draw(SIZES), data.draw(SIZES))
    selection = [data.draw(selectors(size)) for size in shape]
    limit = data.draw(st.integers(1, 64))
    values, store = np.arange(shape[0] * shape[1], dtype="i4").reshape(shape), {}
    encoding = {"v": {"chunks": chunk, "zlib": True}}
    xr_nczarr.to_nczarr(xr.Dataset({"v": (("y", "x"), values)}), store, encoding=encoding)
    whole = xr.open_dataset(store, engine="nczarr").v.variable
    chosen = whole.isel(y=selection[0], x=selection[1])
    before, source_blocks._BLOCK_BYTES = source_blocks._BLOCK_BYTES, limit
    try:
        lengths = source_blocks.source_blocks(chosen)
    finally:
        source_blocks._BLOCK_BYTES = before
    assert tuple(map(sum, lengths)) == chosen.shape
    boxes = []
    for item, selector, cell, size in zip(lengths, selection, chunk, shape, strict=True):
        numbers = np.arange(size)[selector] // cell  # the index of the chunk of each element
        runs = [len([*group]) for _, group in itertools.groupby(numbers.tolist())] or [0]
        assert set(np.cumsum(item)) <= set(np.cumsum(runs))
        boxes.append((max(item), max(runs)))
    if any(block > run for block, run in boxes):  # joined
        assert 4 * boxes[0][0] * boxes[1][0] <= max(limit, 4 * boxes[0][1] * boxes[1][1])
