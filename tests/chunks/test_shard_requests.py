"""A selection of a sharded array requests only the index and the chunks that it needs."""

import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.codecs import BytesCodec, ShardingCodec

from tests.servers import HttpServer

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]


FIELD = np.random.default_rng(0).normal(size=(64, 64))
CELL, INDEX = 8 * 8 * 8, 16 * 16 + 4  # bytes of an inner chunk, and of the index with its checksum


def sharded_store(root, **layout):
    """Write an array with shards of (32, 32) whose last rows are never written."""
    store = zarr.create_group(root / "store", zarr_format=3)
    options = {"dtype": "f8", "fill_value": np.nan, "dimension_names": ["y", "x"], **layout}
    array = store.create_array("v", shape=(64, 64), compressors=None, **options)
    array[:48] = FIELD[:48]
    return root / "store"


def nested(outer, inner):
    level = ShardingCodec(chunk_shape=(8, 8), index_location=inner, codecs=[BytesCodec()])
    level = ShardingCodec(chunk_shape=(16, 16), index_location=outer, codecs=[level])
    return {"chunks": (32, 32), "serializer": level}


def bytes_of(request):
    """Return the length of the requested range, or None for the whole object."""
    if request.range is None:
        return None
    first, last = request.range.removeprefix("bytes=").split("-")
    return int(last) if not first else int(last) - int(first) + 1


def fetched(server, *selection):
    """Check the values of a selection, and return the object and length of each request."""
    expected = FIELD.copy()
    expected[48:] = np.nan
    with xr.open_dataset(f"{server.url}/store", engine="nczarr", chunks=None) as dataset:
        server.clear()
        np.testing.assert_array_equal(dataset.v[selection].values, expected[selection])
    return sorted((request.path[-3:], bytes_of(request)) for request in server.requests)


@pytest.fixture
def served(http_server: HttpServer, tmp_path):
    def serve(**layout):
        sharded_store(tmp_path / "served", **layout)
        zarr.consolidate_metadata(tmp_path / "served/store")
        return http_server

    return serve


@pytest.mark.parametrize("location", ["start", "end"])
def test_only_shard_index_and_needed_inner_chunks_are_fetched(served, location):
    server = served(chunks=(8, 8), shards={"shape": (32, 32), "index_location": location})
    assert fetched(server, 3, 5) == [("0/0", INDEX), ("0/0", CELL)]
    assert fetched(server, slice(40, 56), 5) == [("1/0", INDEX), ("1/0", CELL)]
    assert fetched(server, 60, 3) == [("1/0", INDEX)]  # missing
    corners = [("0/0", INDEX), ("0/0", CELL), ("0/1", INDEX), ("0/1", CELL)]
    assert fetched(server, 31, slice(31, 33)) == corners
    assert fetched(server, slice(0, 32), slice(0, 16)) == [
        ("0/0", None)
    ]  # half of the shard is selected


@pytest.mark.parametrize("inner", ["start", "end"])
@pytest.mark.parametrize("outer", ["start", "end"])
def test_value_in_nested_shards_needs_two_indexes_and_one_chunk(served, outer, inner):
    server = served(**nested(outer, inner))
    index = 4 * 16 + 4
    assert fetched(server, 20, 5) == [("0/0", index), ("0/0", index), ("0/0", CELL)]
    assert fetched(server, 60, 3) == [("1/0", index)]
