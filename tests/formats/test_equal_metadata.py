"""Arrays with equal metadata are parsed once, and each keeps its own path."""

import dataclasses
import json

import numpy as np
import pytest

from xr_nczarr.errors import MetadataError
from xr_nczarr.formats.documents import cache_key_of
from xr_nczarr.hierarchy import HierarchyOptions, open_hierarchy
from xr_nczarr.model import ArrayNode, BrokenNode, ChunkKeys, CodecSpec, ShardSpec
from xr_nczarr.storage.memory import MemoryStore

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
ARRAYS = {
    "2": {
        "zarr_format": 2,
        "shape": [4, 6],
        "dtype": "<f4",
        "chunks": [2, 3],
        "fill_value": 1,
        "order": "C",
        "compressor": {"id": "zlib", "level": 1},
        "filters": None,
        "extra": {"of": "a convention"},
    },
    "3": {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4, 6],
        "data_type": "float32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "codecs": [LITTLE, {"name": "gzip", "configuration": {"level": 1}}],
        "fill_value": 1,
    },
}
PATHS = ("v", "w", "g/v")


def stored(version, arrays, consolidated):
    """Return the documents of arrays, whose members and attributes are given by path."""
    groups = {"", *(path.rpartition("/")[0] for path in arrays)}
    if version == "2":
        held = {f"{path}/.zarray": members for path, (members, _) in arrays.items()}
        held |= {f"{path}/.zattrs": attributes for path, (_, attributes) in arrays.items()}
        held |= {f"{path}/.zgroup".lstrip("/"): {"zarr_format": 2} for path in groups}
        if consolidated:
            held = {".zmetadata": {"metadata": held, "zarr_consolidated_format": 1}}
    else:
        group = {"zarr_format": 3, "node_type": "group"}
        held = {path: group for path in groups if path} | {
            path: members | {"attributes": attributes}
            for path, (members, attributes) in arrays.items()
        }
        inline = {"kind": "inline", "must_understand": False, "metadata": held}
        root = group | ({"consolidated_metadata": inline} if consolidated else {})
        single = {} if consolidated else {f"{path}/zarr.json": held[path] for path in held}
        held = {"zarr.json": root} | single
    return {key: json.dumps(value).encode() for key, value in held.items()}


def opened(version, arrays, consolidated):
    hierarchy = open_hierarchy(
        MemoryStore(stored(version, arrays, consolidated)), HierarchyOptions()
    )
    assert hierarchy.consolidated == consolidated
    return {path: hierarchy.nodes[f"/{path}"] for path in arrays}


@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.parametrize("version", ["2", "3"])
def test_parsing_similar_arrays_together_or_separately_yields_same_nodes(version, consolidated):
    arrays = {path: (ARRAYS[version], {"of": path}) for path in PATHS}
    dataset = opened(version, arrays, consolidated)
    for path, node in dataset.items():
        alone = opened(version, {path: arrays[path]}, consolidated)[path]
        assert isinstance(node, ArrayNode)
        assert node == alone
        assert node.path == f"/{path}"
        assert dict(node.attributes) == {"of": path}
        assert node.chunk_keys.key((1, 0)) == f"{path}/{'1.0' if version == '2' else 'c.1.0'}"
        assert node.chunk_keys.alternative == ("/" if version == "2" else "")
    assert dataset["v"].codecs is dataset["w"].codecs


@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.parametrize(
    ("version", "place", "wrong"),
    [
        ("2", "shape", [True, 6]),
        ("2", "shape", [4.0, 6]),
        ("2", "zarr_format", 2.0),
        ("3", "shape", [4, 6.0]),
        ("3", "zarr_format", 3.0),
        ("3", "dimension_names", [1, 2]),
    ],
)
def test_metadata_with_different_number_types_is_not_treated_as_equal(
    version, place, wrong, consolidated
):
    good, bad = ARRAYS[version], ARRAYS[version] | {place: wrong}
    dataset = opened(version, {"v": (good, {}), "w": (bad, {}), "x": (bad, {})}, consolidated)
    assert isinstance(dataset["v"], ArrayNode)
    for name in ("w", "x"):
        node = dataset[name]
        assert isinstance(node, BrokenNode)
        assert node.error.place == place
        assert node.error.key == f"{name}/{'.zarray' if version == '2' else 'zarr.json'}"


@pytest.mark.parametrize("consolidated", [True, False])
@pytest.mark.parametrize("version", ["2", "3"])
def test_broken_attributes_break_only_their_array(version, consolidated):
    arrays = {"v": (ARRAYS[version], {}), "w": (ARRAYS[version], [])}
    dataset = opened(version, arrays, consolidated)
    node = dataset["w"]
    assert isinstance(dataset["v"], ArrayNode)
    assert isinstance(node, BrokenNode)
    assert node.error.key == f"w/{'.zattrs' if version == '2' else 'zarr.json'}"
    assert node.shape == ((4, 6) if version == "2" else None)


def test_identical_documents_can_describe_array_and_group():
    document = json.dumps(ARRAYS["2"]).encode()
    store = {".zgroup": b'{"zarr_format": 2}', "a/.zarray": document, "g/.zgroup": document}
    nodes = open_hierarchy(MemoryStore(store), HierarchyOptions()).nodes
    assert isinstance(nodes["/a"], ArrayNode)
    assert nodes["/g"].members["extra"] == {"of": "a convention"}


def test_moving_array_changes_only_fields_derived_from_path():
    array = ArrayNode(
        path="/",
        shape=(4,),
        dtype=np.dtype("<i2"),
        chunk_shape=(1,),
        type_name="int16",
        fill_value=np.int16(3),
        codecs=(CodecSpec("bytes"),),
        chunk_keys=ChunkKeys("c/", "/", "c"),
        shards=(ShardSpec((2,), ()),),
        chunk_runs=(((2, 2),),),
        stored_shape=(3,),
        dimension_names=("x",),
        members={"a": {}},
    )
    placed = array.at_path("/g/v")
    assert placed.chunk_keys == ChunkKeys("g/v/c/", "/", "g/v/c")
    own = {"path", "chunk_keys", "attributes", "sidecars"}
    for field in dataclasses.fields(ArrayNode):
        if field.name not in own:
            assert getattr(array, field.name) != field.default
            assert getattr(placed, field.name) is getattr(array, field.name), field.name


def test_deeply_nested_value_raises_metadata_error():
    value = []
    for _ in range(3000):
        value = [value]
    with pytest.raises(MetadataError, match="too deep"):
        cache_key_of(value)
