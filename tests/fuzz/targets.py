"""The fuzzed functions. Each accepts any bytes and has a corpus folder of the same name."""

from __future__ import annotations

import atexit
import itertools
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tests.fuzz.oracle import MAX_CHUNK_BYTES
from xr_nczarr import info
from xr_nczarr.codecs import ChunkCodec, compile_codec
from xr_nczarr.errors import NczarrError
from xr_nczarr.model import ArrayNode, ChunkKeys, CodecSpec, Limits
from xr_nczarr.references.opening import open_references
from xr_nczarr.references.parse import parse_references
from xr_nczarr.storage import Access, parse_target

CORPUS = Path(__file__).parent / "corpus"
LIMITS = {
    "max_chunk_bytes": MAX_CHUNK_BYTES,
    "max_item_bytes": MAX_CHUNK_BYTES,
    "max_references": 9999,
}

Target = Callable[[bytes], None]


def corpus(name: str) -> list[bytes]:
    """Return the files of a target's corpus, in the order of their names."""
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


class Objects(dict[str, bytes]):
    """The documents of a store, which also has bytes for every possible chunk.

    `sizes` maps the first letter of a key to the size of the chunk. The empty string maps to the
    size of all other chunks.
    """

    sizes: Mapping[str, int] = {"": 64}

    def __missing__(self, key: str) -> bytes:
        if not key.rstrip("/").rpartition("/")[2][-1:].isdigit():
            raise KeyError(key)
        return bytes(self.sizes.get(key[0], self.sizes[""]))


def read_ends(target: Any, **options: Any) -> None:
    """Open a store, and read the first and the last value of each of its variables.

    An error in one variable must not prevent reading the others.
    """
    error = None
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", xr.SerializationWarning
        )  # loading a broken variable raises its error
        dataset = xr.open_dataset(target, engine="nczarr", limits=LIMITS, **options)
    with dataset:
        for variable in dataset.variables.values():
            if 0 in variable.shape:
                continue
            for end in (0, -1):
                try:
                    np.asarray(variable[(end,) * variable.ndim].values)
                except NczarrError as reason:
                    error = reason
    if error is not None:
        raise error


def zarray(data: bytes) -> None:
    """Parse a ``.zarray`` of Zarr v2."""
    read_ends(Objects({".zarray": data, ".zattrs": b'{"_ARRAY_DIMENSIONS": ["y", "x"]}'}))


def zarr_json(data: bytes) -> None:
    """Parse a ``zarr.json`` of Zarr v3: an array, or a group with consolidated metadata."""
    read_ends(Objects({"zarr.json": data}))


def zarr_draft(data: bytes) -> None:
    """Parse the document of an array in the v3 draft."""
    root = {
        "zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0",
        "metadata_encoding": "https://purl.org/zarr/spec/protocol/core/3.0",
        "metadata_key_suffix": ".json",
        "extensions": [],
    }
    documents = {"zarr.json": json.dumps(root).encode(), "meta/root.group.json": b"{}"}
    read_ends(Objects(documents | {"meta/root/a.array.json": data}))


def zarr_v1(data: bytes) -> None:
    """Parse a ``meta`` of Zarr v1."""
    read_ends(Objects({"meta": data, "attrs": b'{"units": "m"}'}))


def nczarr(data: bytes) -> None:
    """Open an NCZarr store from its consolidated metadata, and from the separate documents."""
    consolidated = Objects({".zmetadata": data})
    consolidated.sizes = {"": 24, "c": 3, "s": 8}
    # The code after parsing is the same, so xarray opens only one of the stores.
    attempts = [
        (read_ends, consolidated),
        (partial(info, limits=LIMITS, count_chunks=False), _single(data)),
    ]
    errors = []
    for attempt, store in attempts:
        try:
            attempt(store)
        except NczarrError as error:
            errors.append(error)
    if errors:
        raise errors[0]


def _single(consolidated: bytes) -> Objects:
    """Return the separate documents within a consolidated document."""
    with suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
        held = json.loads(consolidated)["metadata"]
        return Objects({key: json.dumps(value).encode() for key, value in held.items()})
    return Objects()


@cache
def _folder() -> str:
    folder = tempfile.mkdtemp(prefix="nczarr-fuzz-")
    atexit.register(shutil.rmtree, folder)
    Path(folder, "data.bin").write_bytes(bytes(range(256)) * 4)
    return folder


def references(data: bytes) -> None:
    """Read a local reference document, which may refer to a file next to it."""
    try:
        result = parse_references(data, limits=Limits(**LIMITS))
    except NczarrError:
        places, count = [], 0
    else:
        pairs = itertools.islice(result.items(), 300)
        places = [item.url for _, item in pairs if not isinstance(item, bytes)]
        count = result.key_count
        result.subset("a/").names("a/")
    # Only references to this machine are read.
    if all("://" not in url and "::" not in url for url in places) and count <= 300:
        path = os.path.join(_folder(), "set.json")
        Path(path).write_bytes(data)
        read_ends(path)


def templates(data: bytes) -> None:
    """Render a template that a reference, a generator and other templates use."""
    text = data.decode("utf-8", "replace")
    generated = {
        "key": "g/{{i}}",
        "url": text,
        "offset": "{{ i * 8 }}",
        "length": "8",
        "dimensions": {"i": {"stop": 4}},
    }
    document = {"version": 1, "templates": {"u": "host", "f": "<{{ c }}>", "t": text}}
    error = None
    for members in ({"refs": {"k": ["x{{t}}", 0, 8]}}, {"gen": [generated]}):
        try:
            store = open_references(
                parse_target(document | members), Access(limits=Limits(**LIMITS))
            )
            for key in ("k", "g/0", "g/3", "g/4"):
                store.references.resolve(key)
        except NczarrError as reason:
            error = reason
    if error is not None:
        raise error


def shard_index(data: bytes) -> None:
    """Read a shard. The first byte selects the location of the index and the outer codecs."""
    kind = data[0] % 4 if data else 0
    index_codecs: list[Any] = [{"name": "bytes", "configuration": {"endian": "little"}}]
    configuration = {
        "chunk_shape": [2, 2],
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
        "index_codecs": index_codecs + [{"name": "crc32c"}] * (kind // 2),
        "index_location": ("end", "start")[kind % 2],
    }
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [4, 4],
        "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "sharding_indexed", "configuration": configuration}],
        "dimension_names": ["y", "x"],
    }
    store = {"zarr.json": json.dumps(document).encode(), "c/0/0": data[1:]}
    with xr.open_dataset(store, engine="nczarr", limits=LIMITS) as dataset:
        dataset.load()
    read_ends(store)


def zip_file(data: bytes) -> None:
    """Read a zip file that contains a store."""
    path = os.path.join(_folder(), "store.zip")
    Path(path).write_bytes(data)
    read_ends(path)


_SHUFFLE: tuple[str, Mapping[str, Any]] = ("shuffle", {"elementsize": 4})
CHAINS: list[list[tuple[str, Mapping[str, Any]]]] = [
    [("zlib", {"level": 4})],
    [("gzip", {"level": 5})],
    [("bz2", {"level": 1})],
    [("lzma", {"preset": 0})],
    [("lzma", {"format": 3, "filters": [{"id": 33, "preset": 0}]})],
    [("zstd", {"level": 3})],
    [("lz4", {})],
    [("blosc", {"cname": "lz4", "clevel": 5, "shuffle": 1})],
    [("blosc", {"cname": "zstd", "clevel": 1, "shuffle": 2})],
    [("blosc", {"cname": "blosclz", "clevel": 9, "shuffle": 1, "blocksize": 512})],
    [("blosc", {"cname": "zlib", "clevel": 1, "shuffle": 0})],
    [("blosc", {"cname": "lz4hc", "clevel": 1, "shuffle": 1})],
    [_SHUFFLE, ("zlib", {"level": 1}), ("fletcher32", {})],
    [("zlib", {}), ("zstd", {}), ("lz4", {})],
    [("crc32c", {}), ("adler32", {}), ("crc32", {})],
    [("base64", {}), ("jenkins_lookup3", {})],
    [("delta", {"dtype": "<i4"}), _SHUFFLE, ("zstd", {})],
]
OBJECT_CHAINS: list[list[tuple[str, Mapping[str, Any]]]] = [
    [("vlen-utf8", {})],
    [("vlen-bytes", {}), ("zstd", {})],
    [("vlen-array", {"dtype": "<i2"})],
    [("json2", {})],
    [("msgpack2", {}), ("zlib", {})],
]
ELEMENTS = 300


@cache
def codec(number: int) -> ChunkCodec:
    """Return the codec for the first byte of an input of `codecs`."""
    chains = CHAINS + OBJECT_CHAINS
    number %= len(chains)
    objects = number >= len(CHAINS)
    shape = (4,) if objects else (ELEMENTS,)
    specs = [CodecSpec(name, dict(options), "filters") for name, options in chains[number]]
    node = ArrayNode(
        path="/a",
        shape=shape,
        chunk_shape=shape,
        dtype=np.dtype(object if objects else "<i4"),
        codecs=tuple(specs),
        chunk_keys=ChunkKeys("a/", ".", "0"),
    )
    return compile_codec(node, limits=Limits(**LIMITS))


def codecs(data: bytes) -> None:
    """Decode a chunk. The first byte selects the codecs that decode the other bytes."""
    chosen = codec(data[0] if data else 0)
    chosen.decode(data[1:])


TARGETS: dict[str, Target] = {
    item.__name__: item
    for item in (
        zarray,
        zarr_json,
        zarr_draft,
        zarr_v1,
        nczarr,
        references,
        templates,
        shard_index,
        zip_file,
        codecs,
    )
}
