"""Arrays with rectilinear chunk grids from zarr-python 3.4: every selection equals NumPy's."""

import base64
import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

from xr_nczarr import to_nczarr
from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.errors import UnsupportedError
from xr_nczarr.formats import FORMATS
from xr_nczarr.formats.documents import Document
from xr_nczarr.model import ArrayNode, BrokenNode
from xr_nczarr.storage import MemoryStore

v2 = FORMATS["2"]
v3 = FORMATS["3"]
v3_draft = FORMATS["3-draft"]

RECORDED = json.loads((Path(__file__).parent.parent / "fixtures/v3/rectilinear.json").read_bytes())
STORE = {key: base64.b64decode(data) for key, data in RECORDED["keys"].items()}
VALUES = np.arange(60, dtype="i4").reshape(10, 6)
VALUES[7:] = -1
CHUNKS = {
    "plain": ((1, 3, 3, 3), (2, 4)),
    "compressed": ((2,) * 5, (4, 2)),
    "sharded": ((4, 6), (2, 4)),
}


@pytest.fixture(scope="module")
def dataset():
    return xr.open_dataset(STORE, engine="nczarr", mask_and_scale=False, cache=False)


@pytest.mark.parametrize("name", CHUNKS)
def test_dask_blocks_match_rectilinear_chunks(dataset, name):
    np.testing.assert_array_equal(dataset[name], VALUES)
    chunked = xr.open_dataset(STORE, engine="nczarr", mask_and_scale=False, chunks={})[name]
    assert chunked.chunks == CHUNKS[name]
    np.testing.assert_array_equal(chunked, VALUES)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(dataset[name])), VALUES)


@pytest.mark.parametrize("name", CHUNKS)
@pytest.mark.parametrize("length", [11, 13, 25])
def test_reading_past_end_of_rectilinear_grid_returns_fill_values(name, length):
    key = f"{name}/zarr.json"
    node = v3.parse_node(f"/{name}", {key: Document(key, STORE[key])})
    node = replace(node, shape=(length, 6), stored_shape=node.shape)
    values = np.full((length, 6), -1)
    values[:10] = VALUES
    read = ChunkedArray(node, MemoryStore(STORE)).read((slice(None), slice(None)))
    np.testing.assert_array_equal(read, values)


def test_references_to_many_rectilinear_chunks_are_read(tmp_path):
    values = np.arange(203, dtype="<i4")
    (tmp_path / "data").write_bytes(values.tobytes())
    members = json.loads(STORE["plain/zarr.json"]) | {"shape": [203], "dimension_names": ["x"]}
    members["chunk_grid"]["configuration"]["chunk_shapes"] = [[3, [2, 100]]]
    offsets = [0, *range(12, 812, 8)]
    references = {
        f"a/c/{number}": [str(tmp_path / "data"), offset, 8 if number else 12]
        for number, offset in enumerate(offsets)
    }
    references |= {"zarr.json": STORE["zarr.json"].decode(), "a/zarr.json": json.dumps(members)}
    np.testing.assert_array_equal(xr.open_dataset(references, engine="nczarr").a, values)


# The positions of all elements along the dimension were computed.
def test_few_elements_of_huge_rectilinear_array_can_be_read():
    members = json.loads(STORE["plain/zarr.json"]) | {"shape": [2**50], "dimension_names": ["x"]}
    members["chunk_grid"]["configuration"]["chunk_shapes"] = [[3, [2, 2**49]]]
    chunk = np.array([5, 6], "<i4").tobytes()
    store = {"zarr.json": json.dumps(members).encode(), f"c/{2**48}": chunk}
    array = xr.open_dataset(store, engine="nczarr", mask_and_scale=False)["data"]
    last = 2**49 + 2  # of the stored chunk
    assert array[last - 2 : last + 1].values.tolist() == [-1, 5, 6]
    assert array[last + 1 : last - 2 : -1].values.tolist() == [-1, 6, 5]


def positions(size):
    return st.lists(st.integers(-size, size - 1), max_size=5)


SELECTORS = [st.integers(0, 9) | st.slices(10) | positions(10), st.slices(6) | positions(6)]


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from([*CHUNKS]), selectors=st.tuples(*SELECTORS))
def test_orthogonal_selections_return_same_values_as_numpy(dataset, name, selectors):
    expected = VALUES
    for axis, selector in enumerate(selectors):
        expected = expected[(slice(None),) * (axis + expected.ndim - 2) + (selector,)]
    np.testing.assert_array_equal(dataset[name][selectors], expected)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from([*CHUNKS]),
    points=st.lists(st.tuples(st.integers(-10, 9), st.integers(0, 5)), max_size=8),
    columns=st.slices(6),
)
def test_pointwise_selections_return_same_values_as_numpy(dataset, name, points, columns):
    rows, others = (
        xr.DataArray(np.array(item, int).reshape(1, -1), dims=("p", "q"))
        for item in (list(zip(*points, strict=True)) or ([], []))
    )
    both = dataset[name].isel(y=rows, x=others)
    np.testing.assert_array_equal(both, VALUES[rows.values, others.values])
    np.testing.assert_array_equal(
        dataset[name].isel(y=rows, x=columns), VALUES[rows.values][..., columns]
    )


@pytest.mark.parametrize("name", CHUNKS)
@pytest.mark.parametrize("start", [None, 3, 4])  # with 3, there are as many columns as points
@pytest.mark.parametrize("step", [-1, -2])
def test_reversed_slices_can_be_combined_with_pointwise_selections(dataset, name, start, step):
    rows = np.array([[0, 9], [5, 3]])
    columns = slice(start, None, step)
    selected = dataset[name].isel(y=xr.DataArray(rows, dims=("p", "q")), x=columns)
    np.testing.assert_array_equal(selected, VALUES[rows][..., columns])


def test_rectilinear_arrays_can_be_copied_but_not_modified(dataset):
    copy = {}
    to_nczarr(dataset.chunk(), copy, zarr_format=3)
    assert xr.open_dataset(copy, engine="nczarr", mask_and_scale=False).identical(dataset.load())
    with pytest.raises(UnsupportedError, match="grid is not supported"):
        to_nczarr(dataset.isel(y=slice(2)), dict(STORE), region={"y": slice(2)})


def parse(name="plain", **configuration):
    members = json.loads(STORE[f"{name}/zarr.json"])
    members["chunk_grid"]["configuration"] |= configuration
    return v3.parse_node("/a", {"a/zarr.json": Document("a/zarr.json", json.dumps(members))})


@pytest.mark.parametrize("name", CHUNKS)
def test_rectilinear_grids_round_trip_only_in_v3(name):
    node = parse(name)
    assert isinstance(node, ArrayNode), node.error
    ((key, data),) = v3.render_node(node).items()
    assert v3.parse_node("/a", {key: Document(key, data)}) == node
    for other in (v2, v3_draft):
        with pytest.raises(UnsupportedError):
            other.render_node(node)


def test_explicit_and_run_length_encoded_chunk_lengths_are_read():
    runs = (((1, 1), (3, 3)), ((2, 1), (4, 1)))
    for spelled in ([[1, [3, 3]], [2, 4]], [[[1, 1], [3, 3]], [2, [4, 1]]]):
        assert parse(chunk_shapes=spelled).chunk_runs == runs
    assert parse(chunk_shapes=[3, [6]]).chunk_runs == (((3, 4),), ((6, 1),))
    huge = parse(chunk_shapes=[[[1, 2**62]], [6]])
    assert huge.chunk_runs[0] == ((1, 2**62),)


@pytest.mark.parametrize(
    ("name", "configuration"),
    [
        ("plain", {"kind": "external"}),
        ("plain", {"chunk_shapes": [[10]]}),
        ("plain", {"chunk_shapes": [[1, 3], [6]]}),
        ("plain", {"chunk_shapes": [[0, 10], [6]]}),
        ("plain", {"chunk_shapes": [[], [6]]}),
        ("plain", {"chunk_shapes": [[[10]], [6]]}),
        ("plain", {"chunk_shapes": [None, [6]]}),
        ("sharded", {"chunk_shapes": [[3, 7], [6]]}),
    ],
    ids=str,
)
def test_array_with_invalid_chunk_grid_is_parsed_as_broken(name, configuration):
    node = parse(name, **configuration)
    assert isinstance(node, BrokenNode)
    assert "chunk_grid" in str(node.error) or "codecs" in str(node.error)
