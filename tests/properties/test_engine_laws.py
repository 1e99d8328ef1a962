"""Selections from an array that zarr-python wrote equal selections from NumPy arrays."""

import itertools
import os

import numpy as np
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, BytesCodec, TransposeCodec, ZstdCodec

import xr_nczarr
from tests.properties.test_plan_laws import positions, slices

EXAMPLES = int(os.environ.get("NCZARR_EXAMPLES", "60"))
COMPRESSORS = [
    None,
    ZstdCodec(),
    BloscCodec(typesize=4, shuffle="shuffle"),
    BloscCodec(typesize=4, shuffle="bitshuffle"),
]
CF = [{}, {"scale_factor": 0.1, "add_offset": 10.0, "_FillValue": 3}]


@st.composite
def arrays(draw):
    """Draw a store of zarr-python with one array, and its values.

    The array may be sharded or transposed.
    """
    shape = tuple(draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)))
    chunks = tuple([draw(st.integers(1, size)) for size in shape])
    several = st.integers(1, 3)
    shards = draw(st.none() | st.just(tuple([size * draw(several) for size in chunks])))
    order = draw(st.permutations(range(len(shape))))
    dtype = np.dtype(draw(st.sampled_from(["u1", "i2", "i4", "f4", "f8"])))
    store = zarr.storage.MemoryStore()
    array = zarr.create_group(store).create_array(
        "v",
        shape=shape,
        chunks=chunks,
        shards=shards,
        dtype=dtype,
        filters=draw(st.sampled_from([None, [TransposeCodec(order=order)]])),
        serializer=BytesCodec(endian=draw(st.sampled_from(["big", "little"]))),
        compressors=draw(st.sampled_from(COMPRESSORS)),
        dimension_names=[f"d{axis}" for axis in range(len(shape))],
        attributes=draw(st.sampled_from(CF)),
        fill_value=1,
    )
    values = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    written = tuple([draw(slices(size).filter(lambda s: (s.step or 1) > 0)) for size in shape])
    array[written] = values[written]
    stored = np.ones(shape, dtype)
    stored[written] = values[written]
    objects = {key: data.to_bytes() for key, data in store._store_dict.items()}
    return objects, xr.Variable(array.metadata.dimension_names, stored, dict(array.attrs))


@st.composite
def selections(draw, sizes):
    """Draw arguments of `isel`.

    The arguments are a slice or a list of positions for each dimension, or one list of points for
    all dimensions.
    """
    if all(sizes.values()) and draw(st.booleans()):
        few = st.just(draw(st.integers(0, 5)))
        return {dim: ("p", draw(positions(size, few))) for dim, size in sizes.items()}
    kinds = {dim: [slices(size), positions(size)] for dim, size in sizes.items()}
    return {dim: draw(st.one_of(choices)) for dim, choices in kinds.items()}


@settings(max_examples=EXAMPLES, deadline=None)
@given(arrays(), st.data())
def test_successive_lazy_selections_return_same_values_as_eager_ones(stored, data):
    objects, variable = stored
    expected = xr.decode_cf(xr.Dataset({"v": variable})).v.variable
    opened = xr.open_dataset(objects, engine="nczarr").v.variable
    for _ in range(2):
        selection = data.draw(selections(opened.sizes))
        selection = {
            dim: xr.Variable(*item) if isinstance(item, tuple) else item
            for dim, item in selection.items()
        }
        opened, expected = opened.isel(selection), expected.isel(selection)
    xr.testing.assert_identical(opened.drop_encoding(), expected.drop_encoding())
    assert opened.dtype == expected.dtype


def test_slices_select_same_elements_as_slices_of_python_lists():
    """Slices that start before the first element and run backwards are empty."""
    objects = {}
    xr_nczarr.to_nczarr(xr.Dataset({"v": ("x", np.arange(4))}), objects)
    opened = xr.open_dataset(objects, engine="nczarr", cache=False).v.variable
    bounds = [None, *range(-6, 7)]
    for start, stop, step in itertools.product(bounds, bounds, [None, -3, -2, -1, 1, 2, 3]):
        chosen = slice(start, stop, step)
        assert opened[chosen].values.tolist() == list(range(4))[chosen], chosen
        assert opened[::-1][chosen].values.tolist() == list(range(4))[::-1][chosen], chosen
