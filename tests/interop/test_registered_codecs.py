"""Codecs that a package registers with zarr-python through its entry points ``zarr.codecs``."""

import importlib
import json
import pickle
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import xarray as xr
import zarr
import zarr.registry

import xr_nczarr
from xr_nczarr.errors import ChunkError, LimitError, MetadataError, UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning")

MODULE = '''
import json
from dataclasses import dataclass, replace

import numpy as np
from zarr.abc.codec import ArrayArrayCodec, ArrayBytesCodec, BytesBytesCodec
from zarr.core.dtype import get_data_type_from_native_dtype


class Panic(BaseException):
    """As pyo3 has it."""

Panic.__name__ = "PanicException"


@dataclass(frozen=True)
class Strange:
    fault: str = ""
    is_fixed_size = False

    @classmethod
    def from_dict(cls, document):
        return cls(**document.get("configuration", {}))

    def to_dict(self):
        return {"name": self.name, "configuration": {"fault": self.fault} if self.fault else {}}

    def compute_encoded_size(self, size, spec):
        raise NotImplementedError

    def failing(self, data):
        if self.fault == "raises":
            raise KeyError
        if self.fault == "panics":
            raise Panic("index out of bounds")
        if self.fault == "runs out":
            raise MemoryError
        if self.fault == "gives none":
            return None
        if self.fault == "shape":
            return data[..., :-1]
        if self.fault == "type":
            return data.astype("f4")
        if self.fault == "bomb":
            return np.zeros(20_000_000, "u1")
        return data


class Halved(Strange, ArrayArrayCodec):
    """int16 as float64, and halved: what it makes is of another type."""

    name = "strange_halved"

    def resolve_metadata(self, spec):
        return replace(spec, dtype=get_data_type_from_native_dtype(np.dtype("f8")), fill_value=0.0)

    async def _decode_single(self, data, spec):
        assert data.as_ndarray_like().dtype == "f8", data.dtype
        values = (data.as_numpy_array() * 2).astype(spec.dtype.to_native_dtype())
        values = self.failing(values)
        return None if values is None else spec.prototype.nd_buffer.from_numpy_array(values)

    async def _encode_single(self, data, spec):
        values = data.as_numpy_array().astype("f8") / 2
        return spec.prototype.nd_buffer.from_numpy_array(values)


class Flipped(Strange, ArrayArrayCodec):
    """The first axis in reverse: what it makes is of the same type."""

    name = "strange_flipped"

    async def _decode_single(self, data, spec):
        return spec.prototype.nd_buffer.from_numpy_array(data.as_numpy_array()[::-1])

    _encode_single = _decode_single


class Spelled(Strange, ArrayBytesCodec):
    """Elements as JSON."""

    name = "strange_spelled"

    async def _decode_single(self, data, spec):
        values = np.array(json.loads(data.to_bytes()), spec.dtype.to_native_dtype())
        values = self.failing(values.reshape(spec.shape))
        return None if values is None else spec.prototype.nd_buffer.from_numpy_array(values)

    async def _encode_single(self, data, spec):
        text = json.dumps(data.as_numpy_array().tolist())
        return spec.prototype.buffer.from_bytes(text.encode())


class Inverted(Strange, BytesBytesCodec):
    """Bytes with their bits inverted, twice."""

    name = "strange_inverted"

    async def _decode_single(self, data, spec):
        values = self.failing(~data.as_numpy_array()[::2])
        return None if values is None else spec.prototype.buffer.from_array_like(values)

    async def _encode_single(self, data, spec):
        return spec.prototype.buffer.from_array_like(np.repeat(~data.as_numpy_array(), 2))
'''
ENTRY_POINTS = """\
[zarr.codecs]
strange_halved = strange_codecs:Halved
strange_flipped = strange_codecs:Flipped
strange_spelled = strange_codecs:Spelled
strange_inverted = strange_codecs:Inverted
strange_lacking = strange_codecs_of_another_version:Codec
strange_gone = strange_codecs:Gone
"""
VALUES = np.arange(-12, 12, dtype="i2").reshape(4, 6)
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return a folder with an installed package that registers codecs."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "strange_codecs.py").write_text(textwrap.dedent(MODULE))
    metadata = folder / "strange_codecs-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: strange-codecs\nVersion: 1.0\n"
    )
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


@pytest.fixture
def strange_module(site, monkeypatch):
    """Import the module of the package, register its codecs, and return the module."""
    monkeypatch.syspath_prepend(site)
    module = importlib.import_module("strange_codecs")
    for codec in (module.Halved, module.Flipped, module.Spelled, module.Inverted):
        zarr.registry.register_codec(codec.name, codec)  # zarr has already read the entry points
    return module


def named(name, fault=""):
    return {"name": f"strange_{name}", "configuration": {"fault": fault} if fault else {}}


def store_of(folder, *codecs, stored=None, **members):
    """Write a store with one array, which has the passed codecs.

    If `stored` is passed, it is the stored form of the only chunk.
    """
    array = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4, 6],
        "data_type": "int16",
        "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 6]}},
        "chunk_key_encoding": {"name": "default"},
        "codecs": list(codecs),
        "attributes": {},
        "dimension_names": ["y", "x"],
    } | members
    (folder / "v" / "c" / "0").mkdir(parents=True)
    (folder / "zarr.json").write_text('{"zarr_format": 3, "node_type": "group", "attributes": {}}')
    (folder / "v" / "zarr.json").write_text(json.dumps(array))
    if stored is not None:
        (folder / "v" / "c" / "0" / "0").write_bytes(stored)
    return folder


def opened(folder, **options):
    return xr.open_dataset(folder, engine="nczarr", **options)


SPELLED = json.dumps(VALUES.tolist()).encode()
HALVED = (VALUES / 2).astype("<f8").tobytes()
INVERTED = np.repeat(~np.frombuffer(VALUES.tobytes(), "u1"), 2).tobytes()
WHOLE = {
    "array → array": ((named("halved"), LITTLE), HALVED),
    "array → bytes": ((named("spelled"),), SPELLED),
    "bytes → bytes": ((LITTLE, named("inverted")), INVERTED),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_registered_codecs_of_each_kind_decode_values(kind, tmp_path, strange_module):
    codecs, stored = WHOLE[kind]
    dataset = opened(store_of(tmp_path, *codecs, stored=stored))
    np.testing.assert_array_equal(dataset.v, VALUES)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(dataset)).v[1:3, ::2], VALUES[1:3, ::2])


CHAINS = {
    "array → array": {"filters": ["Halved"], "compressors": None},
    "two array → array": {"filters": ["Flipped", "Halved"], "compressors": None},
    "array → array, zstd": {"filters": ["Flipped"], "compressors": [zarr.codecs.ZstdCodec()]},
    "transpose, array → array": {
        "filters": [zarr.codecs.TransposeCodec(order=(1, 0)), "Flipped"],
        "compressors": None,
    },
    "array → bytes": {"serializer": "Spelled", "compressors": None},
    "array → bytes, gzip": {"serializer": "Spelled", "compressors": [zarr.codecs.GzipCodec()]},
    "bytes → bytes": {"compressors": ["Inverted"]},
    "bytes → bytes, crc32c": {"compressors": ["Inverted", zarr.codecs.Crc32cCodec()]},
    "all": {"filters": ["Halved"], "serializer": "Spelled", "compressors": ["Inverted"]},
}


def chain_of(strange_module, kind):
    def codec(value):
        return getattr(strange_module, value)() if isinstance(value, str) else value

    return {
        key: [*map(codec, value)] if isinstance(value, list) else value and codec(value)
        for key, value in CHAINS[kind].items()
    }


@pytest.mark.parametrize("shards", [None, (4, 6)])
@pytest.mark.parametrize("dtype", ["<i2", "<f4", "|u1"])
@pytest.mark.parametrize("kind", CHAINS)
def test_zarr_python_reads_same_values_through_registered_codecs(
    kind, dtype, shards, tmp_path, strange_module
):
    halved = "Halved" in CHAINS[kind].get("filters", ())
    if dtype == "|u1" and halved and "serializer" not in CHAINS[kind]:
        pytest.skip("zarr-python stores the floats without a byte order")
    values = VALUES.astype(dtype)
    group = zarr.create_group(tmp_path / "theirs", zarr_format=3)
    theirs = group.create_array(
        "v",
        shape=values.shape,
        dtype=dtype,
        chunks=(2, 6),
        shards=shards,
        dimension_names=("y", "x"),
        **chain_of(strange_module, kind),
    )
    theirs[...] = values
    dataset = opened(tmp_path / "theirs", mask_and_scale=False).load()
    np.testing.assert_array_equal(dataset.v, values)

    left, requested = tmp_path / "left", tmp_path / "requested"
    xr_nczarr.to_nczarr(dataset, left, dialect="zarr", zarr_format=3)
    encoding = {"chunks": (2, 6), "shards": shards, **chain_of(strange_module, kind)}
    plain = xr.Dataset({"v": (("y", "x"), values)})
    xr_nczarr.to_nczarr(plain, requested, dialect="zarr", zarr_format=3, encoding={"v": encoding})
    assert zarr.open_group(requested)["v"].metadata.codecs == theirs.metadata.codecs
    for target in (left, requested):
        ours = zarr.open_group(target)["v"]
        np.testing.assert_array_equal(ours[...], values)
        np.testing.assert_array_equal(opened(target, mask_and_scale=False).v, values)


def test_registered_codecs_support_big_endian_values(tmp_path, strange_module):
    codecs = [named("flipped"), {"name": "bytes", "configuration": {"endian": "big"}}]
    stored = VALUES[::-1].astype(">i2").tobytes()
    dataset = opened(store_of(tmp_path / "big", *codecs, stored=stored))
    np.testing.assert_array_equal(dataset.v, VALUES)
    xr_nczarr.copy(tmp_path / "big", tmp_path / "copy", zarr_format=3)
    np.testing.assert_array_equal(opened(tmp_path / "copy").v, VALUES)
    np.testing.assert_array_equal(zarr.open_group(tmp_path / "copy")["v"][...], VALUES)


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("fault", ["raises", "panics", "gives none", "shape", "type"])
def test_invalid_codec_result_raises_chunk_error(kind, fault, tmp_path, strange_module):
    if (kind, fault) == ("bytes → bytes", "type"):
        pytest.skip("byte codecs have no array type")
    codecs, stored = WHOLE[kind]
    options = {"configuration": {"fault": fault}}
    faulty = [codec if codec is LITTLE else codec | options for codec in codecs]
    dataset = opened(store_of(tmp_path, *faulty, stored=stored))
    with pytest.raises(ChunkError, match=r"v/c/0/0, codec strange_\w+ \(codecs\)") as caught:
        dataset.load()
    if fault == "raises":
        assert "KeyError" in str(caught.value)


def test_memory_error_in_codec_propagates_unchanged(tmp_path, strange_module):
    dataset = opened(store_of(tmp_path, named("spelled", "runs out"), stored=SPELLED))
    with pytest.raises(MemoryError):
        dataset.load()


def test_codec_result_larger_than_chunk_is_rejected(tmp_path, strange_module):
    chunk = [LITTLE, named("inverted", "bomb")]
    with pytest.raises(ChunkError, match="decoded data is 20,000,000 bytes long; expected 48"):
        opened(store_of(tmp_path / "chunk", *chunk, stored=b"0123")).load()
    between = [named("spelled"), named("inverted", "bomb")]
    dataset = opened(
        store_of(tmp_path / "between", *between, stored=b"0123"),
        limits={"max_chunk_bytes": 1_000_000},
    )
    with pytest.raises(LimitError, match="longer than 1,000,000 bytes"):
        dataset.load()


def test_invalid_use_of_registered_codec_raises_error_on_load(tmp_path, strange_module):
    refused = store_of(tmp_path / "refused", {"name": "strange_spelled", "configuration": {"a": 1}})
    with pytest.raises(MetadataError, match=r"codec strange_spelled .* rejects its configuration"):
        opened(refused).load()
    behind = store_of(tmp_path / "behind", named("spelled"), named("spelled"), stored=b"")
    with pytest.raises(MetadataError, match="an earlier codec produces bytes"):
        opened(behind).load()
    text = {"data_type": "string", "fill_value": ""}
    objects = store_of(tmp_path / "text", named("spelled"), stored=b"[]", **text)
    with pytest.warns(xr.SerializationWarning, match="/v was not decoded"):
        dataset = opened(objects)
    with pytest.raises(UnsupportedError, match="variable-length items"):
        dataset.load()


@pytest.mark.parametrize("name", ["strange_lacking", "strange_gone"])
def test_error_for_failed_codec_import_includes_codec_name(name, tmp_path, strange_module):
    folder = store_of(tmp_path / "store", {"name": name})
    with pytest.raises(UnsupportedError, match=f"codec {name} cannot be imported: .+ zarr"):
        opened(folder).load()
    dataset = xr.Dataset({"v": ("x", [1])})
    encoding = {"v": {"compressors": [{"name": name}]}}
    with pytest.raises(UnsupportedError, match="cannot be imported"):
        xr_nczarr.to_nczarr(dataset, tmp_path / "new", zarr_format=3, encoding=encoding)


def test_codecs_in_invalid_order_are_rejected(tmp_path, strange_module):
    dataset = xr.Dataset({"v": (("y", "x"), VALUES)})
    encoding = {"v": {"codecs": [{"id": "strange_inverted"}, {"id": "strange_halved"}]}}
    with pytest.raises(UnsupportedError, match="does not allow this order"):
        xr_nczarr.to_nczarr(dataset, tmp_path / "new", zarr_format=3, encoding=encoding)


def test_registered_codecs_are_not_used_for_untrusted_stores(tmp_path, strange_module):
    folder = store_of(tmp_path, named("spelled"), stored=SPELLED)
    with pytest.raises(UnsupportedError, match="unknown codec 'strange_spelled'"):
        opened(folder, trust="none").load()


def test_registered_codecs_are_used_only_in_v3(tmp_path, strange_module):
    dataset = xr.Dataset({"v": (("y", "x"), VALUES)})
    for zarr_format in (2, "3-draft"):
        encoding = {"v": {"codecs": [{"id": "strange_inverted"}]}}
        target = tmp_path / str(zarr_format)
        with pytest.raises(UnsupportedError, match="unknown codec 'strange_inverted'"):
            xr_nczarr.to_nczarr(dataset, target, zarr_format=zarr_format, encoding=encoding)


def test_passed_codecs_take_precedence_over_registered_ones(tmp_path, strange_module):
    import numcodecs.abc

    class Mine(numcodecs.abc.Codec):
        codec_id = "strange_spelled"

        def decode(self, data, out=None):
            return VALUES[::-1].tobytes()

        def encode(self, data):
            raise NotImplementedError

    folder = store_of(tmp_path, named("spelled"), stored=SPELLED)
    dataset = opened(folder, codecs={"strange_spelled": Mine})
    np.testing.assert_array_equal(dataset.v, VALUES[::-1])


PROGRAM = """
import sys
import xarray
import xr_nczarr
from xr_nczarr.backend.entrypoint import NczarrBackendEntrypoint as engine  # xarray loads no others

sys.path.insert(0, sys.argv[1])
try:
    print(int(xarray.open_dataset(sys.argv[2], engine=engine).v.sum()))
except xr_nczarr.UnsupportedError:
    print("not known")
print("zarr" in sys.modules)
"""


def test_zarr_is_imported_only_if_store_uses_registered_codec(tmp_path, site):
    def output(name, *codecs, stored):
        folder = store_of(tmp_path / name, *codecs, stored=stored)
        command = [sys.executable, "-c", PROGRAM, str(site), str(folder)]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        return answer.stdout.splitlines()

    total = str(VALUES.sum())
    assert output("met", named("spelled"), stored=SPELLED) == [total, "True"]
    assert output("unknown", {"name": "nobodys"}, stored=SPELLED) == ["not known", "False"]
    assert output("known", LITTLE, stored=VALUES.tobytes()) == [total, "False"]
