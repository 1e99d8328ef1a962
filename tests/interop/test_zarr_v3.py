"""Zarr v3 arrays are read and written identically by xr_nczarr and other programs.

The other programs are zarr-python, zarrs and tensorstore.
"""

import itertools
import json
import sys
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
import tensorstore
import xarray as xr
import zarr

import xr_nczarr
from tests.formats.test_v3 import EXAMPLE, LITTLE, ZARR_OPTIONS, ZARR_TYPES, sharded
from tests.interop.readers import by_tensorstore, by_zarrs
from xr_nczarr.chunks import ChunkedArray
from xr_nczarr.errors import UnsupportedError
from xr_nczarr.formats import FORMATS
from xr_nczarr.formats.documents import Document
from xr_nczarr.model import ArrayNode, CodecSpec, ShardSpec
from xr_nczarr.storage import LocalStore

v3 = FORMATS["3"]

pytestmark = [
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
    pytest.mark.filterwarnings("ignore::zarr.errors.UnstableSpecificationWarning"),
]

RANDOM = np.random.default_rng(4)
TRANSPOSED = {"name": "transpose", "configuration": {"order": [1, 0]}}
TRANSPOSED_INDEX = {"name": "transpose", "configuration": {"order": [2, 0, 1]}}
CRC = {"name": "crc32c"}


def values_of(dtype, shape):
    """Return random values of `dtype`. Strings and bytes objects have varying lengths."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape))
    if dtype.kind == "O":
        return np.array(["x" * (i % 5) + "é" for i in range(count)], object).reshape(shape)
    if dtype.kind in "US":
        letters = RANDOM.integers(65, 90, count)
        return np.array([chr(letter) * (letter % 3) for letter in letters], dtype).reshape(shape)
    if dtype.names is not None:
        filled = np.zeros(shape, dtype)
        for name in dtype.names:
            filled[name] = values_of(dtype[name], shape)
        return filled
    if dtype.kind == "b":
        return RANDOM.integers(0, 2, shape).astype(bool)
    if dtype.kind in "fc":
        return RANDOM.normal(size=shape).astype(dtype)
    return np.frombuffer(RANDOM.bytes(count * dtype.itemsize), dtype).reshape(shape).copy()


def opened(directory):
    key = "zarr.json"
    node = v3.parse_node("/", {key: Document(key, (directory / key).read_bytes())})
    assert isinstance(node, ArrayNode), node.error
    return ChunkedArray(node, LocalStore(str(directory)))


def written(directory, node, values):
    (document,) = v3.render_node(node).values()
    directory.mkdir(exist_ok=True)
    (directory / "zarr.json").write_bytes(document)
    everything = (slice(None),) * len(node.shape)
    ChunkedArray(node, LocalStore(str(directory))).write(everything, values)


def read_all(array):
    return array.read((slice(None),) * len(array.node.shape))


def assert_same(result, expected):
    result, expected = np.asarray(result), np.asarray(expected)
    if result.dtype.kind in "OT" or expected.dtype.kind in "OT":
        assert result.tolist() == expected.tolist()
    else:
        assert result.astype(expected.dtype).tobytes() == expected.tobytes()


# zarr-python cannot fill shards of raw bytes and structured dtypes.
@pytest.mark.parametrize(
    ("dtype", "shards"),
    [(dtype, None) for dtype in ZARR_TYPES]
    + [(dtype, (4, 4)) for dtype in ZARR_TYPES if dtype != "V4" and isinstance(dtype, str)],
    ids=str,
)
def test_values_of_every_type_from_zarr_python_are_read(dtype, shards, tmp_path):
    dtype = dtype if isinstance(dtype, str) else np.dtype(dtype)
    array = zarr.create_array(tmp_path, shape=(5, 4), chunks=(2, 2), shards=shards, dtype=dtype)
    options = {"string": "O", "bytes": "O"}.get(str(dtype), dtype)
    values = values_of(options, (3, 4))
    if dtype == "bytes":
        values = np.array([text.encode() for text in values.ravel()], object).reshape(3, 4)
    array[:3] = values
    dataset = read_all(opened(tmp_path))
    assert_same(dataset[:3], values)
    assert_same(dataset, array[:])


@pytest.mark.parametrize("options", ZARR_OPTIONS.values(), ids=ZARR_OPTIONS)
def test_zarr_python_arrays_in_every_layout_are_read(options, tmp_path):
    options = {"shape": (10, 9), "chunks": (2, 2), "dtype": "int32", "fill_value": 7, **options}
    array = zarr.create_array(tmp_path, **options)
    array[:5, 3:] = values_of("int32", (5, 6))
    dataset = opened(tmp_path)
    assert_same(read_all(dataset), array[:])
    assert_same(dataset.read((slice(1, 9, 3), 4)), array[1:9:3, 4])


@pytest.mark.parametrize(
    "codecs",
    [
        [LITTLE, {"name": "crc32c"}],
        [{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "zstd"}],
        [{"name": "transpose", "configuration": {"order": [1, 0]}}, LITTLE, {"name": "gzip"}],
        [sharded([2, 3], [LITTLE, {"name": "blosc"}])],
        [sharded([2, 3], [sharded([1, 3], [LITTLE], index_location="start")])],
        [TRANSPOSED, sharded([3, 2], [LITTLE, {"name": "gzip"}])],
        [TRANSPOSED, sharded([6, 2], [TRANSPOSED, LITTLE], index_location="start")],
        [TRANSPOSED, sharded([6, 2], [TRANSPOSED, sharded([1, 3], [LITTLE])])],
        [sharded([2, 3], [LITTLE], index_codecs=[TRANSPOSED_INDEX, LITTLE])],
        [TRANSPOSED, sharded([3, 2], [LITTLE], index_codecs=[TRANSPOSED_INDEX, LITTLE, CRC])],
    ],
    ids=str,
)
def test_tensorstore_arrays_are_read(codecs, tmp_path):
    grid = {"name": "regular", "configuration": {"chunk_shape": [4, 6]}}
    members = {"shape": [7, 11], "data_type": "float64", "chunk_grid": grid, "codecs": codecs}
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/", "metadata": members}
    values = values_of("f8", (7, 11))
    values[4:, 6:] = 0
    tensorstore.open(spec, create=True).result().write(values).result()
    assert_same(read_all(opened(tmp_path)), values)


def test_error_for_codec_applied_to_nested_shards_includes_store_and_variable(tmp_path):
    inner = sharded([1], [LITTLE])
    codecs = [sharded([2], [inner, {"name": "gzip", "configuration": {"level": 1}}])]
    grid = {"name": "regular", "configuration": {"chunk_shape": [4]}}
    members = {**EXAMPLE, "shape": [4], "dimension_names": ["x"], "chunk_grid": grid}
    store = {"zarr.json": json.dumps(members | {"codecs": codecs}).encode()}
    dataset = xr.open_dataset(store, engine="nczarr")
    with pytest.raises(UnsupportedError, match="within another shard") as caught:
        dataset["data"].load()
    assert (caught.value.store, caught.value.variable) == ("mapping", "/")


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))), ids=str)
def test_transposed_shards_round_trip(order, tmp_path):
    """tensorstore puts the transpose codec before the sharding codec."""
    shape, cells, parts = (7, 9, 5), (4, 6, 4), (2, 3, 1)
    inner = [parts[axis] for axis in order]
    transposed = {"name": "transpose", "configuration": {"order": list(order)}}
    members = {
        "shape": list(shape),
        "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(cells)}},
        "codecs": [transposed, sharded(inner, [LITTLE, {"name": "zstd"}])],
    }
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/", "metadata": members}
    values = values_of("i4", shape)
    tensorstore.open(spec, create=True).result().write(values).result()
    array = opened(tmp_path)
    assert array.node.chunk_shape == parts
    assert not array.layout.levels[0].wrapped
    assert_same(read_all(array), values)
    assert_same(array.read((slice(1, 6, 2), 4, slice(None, None, -1))), values[1:6:2, 4, ::-1])
    values[2:5, 1:8] = -7
    array.write((slice(2, 5), slice(1, 8), slice(None)), np.int32(-7))
    assert_same(read_all(opened(tmp_path)), values)
    assert_same(by_tensorstore(tmp_path), values)


INDEX = (CodecSpec("bytes", {"endian": "little"}), CodecSpec("crc32c"))
LAYOUTS = {
    "plain": {},
    "v2 keys": {"chunk_keys": v3.chunk_keys("/", encoding="v2", separator=".")},
    "compressed": {"codecs": (CodecSpec("zstd", {"level": 3}), CodecSpec("crc32c"))},
    "blosc": {"codecs": (CodecSpec("blosc", {"cname": "lz4", "clevel": 5, "shuffle": 2}),)},
    "transposed": {"codecs": (CodecSpec("transpose", {"order": [1, 0]}), CodecSpec("gzip"))},
    "sharded": {"shards": (ShardSpec((4, 6), INDEX),), "codecs": (CodecSpec("gzip"),)},
    "index at start": {"shards": (ShardSpec((4, 6), INDEX, index_at_start=True),)},
}
TYPES = ["?", "i1", "<i2", ">i4", "<u8", ">f4", "<f8", "<c16"]


def node_of(dtype, layout):
    dtype = np.dtype(dtype)
    return ArrayNode(
        path="/",
        shape=(7, 11),
        dtype=dtype,
        chunk_shape=(2, 3),
        fill_value=np.ones((), dtype)[()],
        **{"chunk_keys": v3.chunk_keys("/"), **LAYOUTS[layout]},
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "read", [lambda directory: zarr.open_array(directory)[:], by_zarrs, by_tensorstore]
)
def test_zarr_libraries_read_arrays_written_by_xr_nczarr(dtype, layout, read, tmp_path):
    node = node_of(dtype, layout)
    values = values_of(dtype, node.shape)
    values[4:, 6:] = node.fill_value
    written(tmp_path, node, values)
    assert_same(read(tmp_path), values)
    assert_same(read_all(opened(tmp_path)), values)


@pytest.mark.parametrize(
    ("dtype", "codec"),
    [
        *[(dtype, None) for dtype in ("<U3", ">U3", "S4", "V5", "<M8[ns]", ">m8[10s]")],
        ([("a", "<i4"), ("b", "S3")], None),
        (object, "vlen-utf8"),
        (object, "vlen-bytes"),
    ],
    ids=str,
)
def test_zarr_python_reads_extension_types_written_by_xr_nczarr(dtype, codec, tmp_path):
    node = replace(node_of("i1", "compressed"), dtype=np.dtype(dtype), fill_value=None)
    values = values_of(dtype, node.shape)
    if codec is not None:
        node = replace(node, codecs=(CodecSpec(codec), *node.codecs), fill_value="")
    if codec == "vlen-bytes":
        node = replace(node, fill_value=b"")
        values = np.array([text.encode() for text in values.ravel()], object).reshape(node.shape)
    written(tmp_path, node, values)
    assert_same(zarr.open_array(tmp_path)[:], values)
    assert_same(read_all(opened(tmp_path)), values)


def test_zarr_libraries_read_scalars_written_by_xr_nczarr(tmp_path):
    node = replace(node_of("<f8", "plain"), shape=(), chunk_shape=())
    written(tmp_path, node, np.float64(2.5))
    assert (tmp_path / "c").is_file()
    assert zarr.open_array(tmp_path)[()] == 2.5
    assert by_tensorstore(tmp_path) == 2.5
    assert read_all(opened(tmp_path)) == 2.5


@pytest.mark.parametrize(
    ("location", "read"),
    [
        ("start", lambda directory: zarr.open_array(directory)[:]),
        ("end", lambda directory: zarr.open_array(directory)[:]),
        ("end", by_tensorstore),
    ],
)
def test_zarr_libraries_read_checksum_at_start_or_end_of_chunk(location, read, tmp_path):
    dataset = xr.Dataset({"v": ("x", np.arange(4.0))})
    encoding = {"v": {"codecs": [{"id": "crc32c", "location": location}]}}
    xr_nczarr.to_nczarr(dataset, tmp_path / "s", encoding=encoding, zarr_format=3)
    assert_same(read(tmp_path / "s/v"), dataset.v)


def test_sharding_codec_is_listed_first_in_array_metadata(tmp_path):
    written(tmp_path, node_of("<f8", "sharded"), np.zeros((7, 11)))
    members = json.loads((tmp_path / "zarr.json").read_bytes())
    assert members["codecs"][0]["name"] == "sharding_indexed"


# bfloat16, which zarr-python does not support -----------------------------------------------------

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FILLS = {"nan": "NaN", "number": 1.5, "infinity": "-Infinity", "bits": "0x7fc1"}


def bfloat16_values(count):
    return np.frombuffer(RANDOM.bytes(2 * count), "<u2").copy().view(BFLOAT16)


@pytest.mark.parametrize("endian", ["little", "big"])
@pytest.mark.parametrize("fill", FILLS)
def test_bfloat16_arrays_from_tensorstore_are_read(tmp_path, fill, endian):
    members = {
        "shape": [7],
        "data_type": "bfloat16",
        "fill_value": FILLS[fill],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [3]}},
        "codecs": [{"name": "bytes", "configuration": {"endian": endian}}],
    }
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/s/v/", "metadata": members}
    written = tensorstore.open(spec, create=True).result()
    values = bfloat16_values(3)
    written[:3].write(values).result()
    read = read_all(opened(tmp_path / "s" / "v")).astype(BFLOAT16)
    assert read[:3].tobytes() == values.tobytes()
    assert read[3:].tobytes() == written[3:].read().result().tobytes()

    (tmp_path / "s" / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group"}')
    xr_nczarr.copy(tmp_path / "s", tmp_path / "copy", dialect="zarr", zarr_format=3)
    again = xr.open_dataset(tmp_path / "copy", engine="nczarr", mask_and_scale=False)
    assert again.v.values.tobytes() == read.tobytes()


def test_tensorstore_reads_bfloat16_arrays_written_by_xr_nczarr(tmp_path):
    values = bfloat16_values(12).reshape(3, 4)
    encoding = {"v": {"chunks": (2, 3), "zstd": True, "shuffle": False}}
    dataset = xr.Dataset({"v": (("y", "x"), values)})
    options = {"dialect": "zarr", "zarr_format": 3, "encoding": encoding}
    xr_nczarr.to_nczarr(dataset, tmp_path / "s", **options)
    members = json.loads((tmp_path / "s/v/zarr.json").read_bytes())
    assert (members["data_type"], members["fill_value"]) == ("bfloat16", 0)
    assert by_tensorstore(tmp_path / "s/v").tobytes() == values.tobytes()
    read = xr.open_dataset(tmp_path / "s", engine="nczarr").v
    assert read.dtype == BFLOAT16
    assert read.values.tobytes() == values.tobytes()
    assert read[1, ::2].values.tobytes() == values[1, ::2].tobytes()
    options["encoding"] = {"v": {"endian": "big"}}
    with pytest.raises(UnsupportedError, match="bfloat16 can only be written as little-endian"):
        xr_nczarr.to_nczarr(dataset, tmp_path / "big", **options)
    xr_nczarr.copy(tmp_path / "s", tmp_path / "copy", dialect="zarr", zarr_format=3)
    again = xr.open_dataset(tmp_path / "copy", engine="nczarr").v
    assert again.values.tobytes() == values.tobytes()


def test_reading_bfloat16_requires_ml_dtypes_package(tmp_path, monkeypatch):
    dataset = xr.Dataset({"v": ("x", bfloat16_values(2)), "n": ("x", [1, 2])})
    xr_nczarr.to_nczarr(dataset, tmp_path / "s", dialect="zarr", zarr_format=3)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    read = xr.open_dataset(tmp_path / "s", engine="nczarr")
    assert read.n.values.tolist() == [1, 2]
    with pytest.raises(
        UnsupportedError, match=r"bfloat16.* requires .*ml_dtypes.*Install ml_dtypes"
    ):
        read.v.load()


@pytest.mark.parametrize("zarr_format", [1, 2, 3, "3-draft"])
@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2", "float8_e4m3fn", "int4"])
def test_unsupported_types_from_ml_dtypes_package_are_rejected(tmp_path, name, zarr_format):
    if name == "bfloat16" and zarr_format == 3:
        pytest.skip("Zarr v3 supports bfloat16")
    dataset = xr.Dataset({"v": ("x", np.ones(2, name))})
    with pytest.raises(UnsupportedError, match=rf"data type .*{name}.*astype"):
        xr_nczarr.to_nczarr(dataset, tmp_path / "s", dialect="zarr", zarr_format=zarr_format)
    assert not (tmp_path / "s").exists()
