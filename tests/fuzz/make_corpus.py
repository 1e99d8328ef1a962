"""Write the corpus again: ``python -m tests.fuzz.make_corpus``."""

from __future__ import annotations

import io
import json
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from tests.fuzz.targets import CHAINS, CORPUS, ELEMENTS, OBJECT_CHAINS, codec
from tests.stores import Group, Size, Var, write_vintage
from xr_nczarr import to_nczarr

V2: dict[str, Any] = {"zarr_format": 2, "shape": [4, 4], "chunks": [4, 4], "dtype": "<i4"}
V2 |= {"fill_value": 0, "order": "C", "compressor": None, "filters": None}
ZLIB = {"id": "zlib", "level": 4}
PACKED = {"id": "fixedscaleoffset", "offset": 1, "scale": 10, "dtype": "<f4", "astype": "<i4"}
ZARRAY = {
    "plain": {},
    "cut": {"shape": [9, 5], "chunks": [4, 4], "order": "F", "fill_value": None},
    "filters": {"filters": [{"id": "shuffle", "elementsize": 4}], "compressor": ZLIB},
    "text": {"dtype": "|S4", "fill_value": "", "dimension_separator": "/"},
    "objects": {"dtype": "|O", "filters": [{"id": "vlen-utf8"}], "fill_value": ""},
    "times": {"dtype": ">M8[s]", "fill_value": "NaT", "chunks": [2, 4]},
    "packed": {"dtype": "<f4", "fill_value": "NaN", "filters": [PACKED]},
    "blosc": {"compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}},
    "annotated": {"_nczarr_array": {"dimrefs": ["/y", "/x"], "storage": "chunked"}},
    "record": {"dtype": [["a", "<i2"], ["b", "<f2", [1]]], "fill_value": "AAAAAA=="},
}
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
V3: dict[str, Any] = {"zarr_format": 3, "node_type": "array", "shape": [4, 4], "data_type": "int32"}
V3 |= {
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4]}},
    "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
    "fill_value": 0,
    "codecs": [BYTES],
    "attributes": {"units": "m"},
    "dimension_names": ["y", "x"],
}
SHARDED = {
    "name": "sharding_indexed",
    "configuration": {
        "chunk_shape": [2, 2],
        "codecs": [BYTES, {"name": "zstd", "configuration": {"level": 1, "checksum": False}}],
        "index_codecs": [BYTES, {"name": "crc32c"}],
        "index_location": "end",
    },
}
TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}
ZARR_JSON = {
    "plain": V3,
    "codecs": V3 | {"codecs": [TRANSPOSE, BYTES, {"name": "gzip", "configuration": {"level": 1}}]},
    "sharded": V3 | {"codecs": [SHARDED]},
    "strings": V3 | {"data_type": "string", "fill_value": "", "codecs": [{"name": "vlen-utf8"}]},
    "float": V3 | {"data_type": "float16", "fill_value": "0x7e00", "storage_transformers": []},
    "times": V3
    | {
        "data_type": {
            "name": "numpy.datetime64",
            "configuration": {"unit": "s", "scale_factor": 1},
        },
        "fill_value": "NaT",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 4]}},
        "chunk_key_encoding": {"name": "v2", "configuration": {"separator": "."}},
    },
    "group": {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {"_nczarr_superblock": {"version": "2.0.0"}},
        "consolidated_metadata": {
            "kind": "inline",
            "must_understand": False,
            "metadata": {"a": V3, "g": {"zarr_format": 3, "node_type": "group"}},
        },
    },
}
DRAFT = {
    "shape": [4, 4],
    "data_type": "<i4",
    "chunk_grid": {"type": "regular", "chunk_shape": [4, 4], "separator": "/"},
    "chunk_memory_layout": "C",
    "compressor": None,
    "fill_value": 0,
    "extensions": [],
    "attributes": {"_ARRAY_DIMENSIONS": ["y", "x"]},
}
DRAFT_CODEC = {
    "codec": "https://purl.org/zarr/spec/codec/gzip/1.0",
    "configuration": {"level": 1},
}
DRAFT_TYPE = {
    "extension": "https://purl.org/zarr/spec/protocol/extensions/datetime-dtypes/1.0",
    "type": "<M8[ns]",
    "fallback": "<i8",
}
V1 = {"zarr_format": 1, "shape": [4, 4], "chunks": [4, 4], "dtype": "<i4", "fill_value": 0}
V1 |= {"order": "C", "compression": "none", "compression_opts": None}
BLOSC = {"cname": "lz4", "clevel": 5, "shuffle": 1}
INLINE = {
    ".zgroup": '{"zarr_format": 2}',
    "a/.zarray": json.dumps(V2 | {"shape": [8], "chunks": [2], "dtype": "<i4"}),
    "a/.zattrs": '{"_ARRAY_DIMENSIONS": ["x"]}',
}
GENERATOR = {
    "key": "a/{{i}}",
    "url": "{{u}}.bin",
    "offset": "{{i * 8 + 16}}",
    "length": "8",
    "dimensions": {"i": {"start": 0, "stop": 4, "step": 1}},
}
REFERENCES = {
    "version0": INLINE
    | {"a/0": ["data.bin", 0, 8], "a/1": "base64:AAAAAAAAAAA=", "a/2": "12345678"},
    "version1": {
        "version": 1,
        "templates": {"u": "data", "f": "{{c}}.bin"},
        "refs": INLINE | {"a/0": ["{{u}}.bin", 8, 8], "a/3": ["{{f(c='data')}}", 16, 8]},
    },
    "generator": {"version": 1, "templates": {"u": "data"}, "gen": [GENERATOR], "refs": INLINE},
    "generators": {
        "version": 1,
        "gen": [
            GENERATOR
            | {
                "key": "b/{{ '%02d' % i }}.{{j}}",
                "url": "data.bin",
                "dimensions": {"i": [1, 3, 5], "j": {"stop": 3}},
            }
        ],
    },
}
TEMPLATES = [
    "plain",
    "{{ u }}/{{ f(c='text') }}",
    "{{ f(c=f(c=1 + 2 * 3)) }}{# note #}",
    "{{ '%04d' % 7 }}{{ 3.7 | int }}{{ 2.5 | round(1) }}{{ -1 | abs }}",
    "{{ 'a' if 1 > 2 else 'b' }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 2 ** 8 }}{{ 1 and 0 or 3 }}",
    "{{ '%d|%x' | format(1, 255) }}{% raw %}{{ x }}{% endraw %}{{ 'a' ~ 1 }}",
    "{{ u.__class__.__mro__ }}",
    "{% for i in range(10) %}{{ i }}{% endfor %}",
    "{{ 'x' * 1000000 }}{{ 9 ** 9 ** 9 }}{{ '%999999999d' % 1 }}{{ 1 // 0 }}",
    "{{ t }}",
    "s3://b/{{ i * 10 + 5 }}.nc",
    "{{ i }}/{{ i // 2 }}/{{ i % 3 }}",
]


def content() -> Group:
    """Return a dataset with dimensions, groups, text, times and scalars."""
    number, text = np.arange(6, dtype="<i4").reshape(2, 3), np.array(list("abc"), "S1")
    inner = Group(variables={"v": Var(("/x",), np.arange(3.0), {"units": "days since 2000-01-01"})})
    return Group(
        dims={"t": Size(2), "x": 3},
        variables={
            "a": Var(("/t", "/x"), number, {"scale_factor": 0.5, "n": [1, 2]}, fill=-1),
            "x": Var(("/x",), np.arange(3.0), {"units": "seconds since 1970-01-01"}),
            "c": Var(("/x",), text),
            "s": Var((), np.array(3.5)),
        },
        attrs={"title": "1.10", "list": np.array([1.0, 2.0])},
        groups={"g": inner},
    )


def vintages() -> dict[str, bytes]:
    """Return the consolidated metadata of a store from each netcdf-c release, by release."""
    result = {}
    for release in ("4.8.0", "4.8.1", "4.9.2", "4.9.3", "dev"):
        with tempfile.TemporaryDirectory() as folder:
            root = write_vintage(Path(folder, "s"), content(), release)
            documents = {}
            for path in sorted(root.rglob(".*")):
                try:
                    documents[str(path.relative_to(root))] = json.loads(path.read_text())
                except ValueError:  # only netcdf-c accepts this as JSON
                    continue
        document = {"zarr_consolidated_format": 1, "metadata": documents}
        result[release] = json.dumps(document).encode()
    return result


def shards() -> dict[str, bytes]:
    """Return a shard of each kind by name. The first byte identifies the kind."""
    result = {}
    entries = np.full((2, 2, 2), 2**64 - 1, "<u8")
    for kind in range(4):
        floor = (68 if kind > 1 else 64) * (kind % 2)
        entries[0, 0], entries[1, 1] = (floor, 16), (floor + 16, 16)
        index = entries.tobytes()
        if kind > 1:
            from numcodecs import checksum32

            index = bytes(checksum32.CRC32C(location="end").encode(index))
        body = np.arange(8, dtype="<i4").tobytes()
        result[f"kind-{kind}"] = bytes([kind]) + (index + body if kind % 2 else body + index)
    return result


def zip_files() -> dict[str, bytes]:
    """Return stored and deflated zip files, with the store in a folder or at the root, by name."""
    result = {}
    dataset = xr.Dataset({"a": ("x", np.arange(4, dtype="i4"))}, {"x": np.arange(4.0)})
    objects: dict[str, bytes] = {}
    to_nczarr(dataset, objects)
    for method, prefix in ((zipfile.ZIP_STORED, "s/"), (zipfile.ZIP_DEFLATED, "")):
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", method) as file:
            for key, data in objects.items():
                file.writestr(zipfile.ZipInfo(prefix + key), bytes(data), method)
        result[f"method-{method}"] = buffer.getvalue()
    return result


def frames() -> dict[str, bytes]:
    """Return an encoded chunk for each codec by name. The first byte identifies the codec."""
    result = {}
    numbers = np.random.default_rng(0).integers(0, 9, ELEMENTS).astype("<i4")
    items = {"vlen-bytes": [b"", b"a", b"\xff", b"x" * 40]}
    items |= {"vlen-array": [np.arange(n, dtype="<i2") for n in (0, 3, 1, 9)]}
    for number, chain in enumerate(CHAINS + OBJECT_CHAINS):
        array: Any = numbers
        if number >= len(CHAINS):
            array = np.empty(4, object)
            array[:] = items.get(chain[0][0], ["", "a", "né", "x" * 40])
        frame = bytes([number]) + bytes(codec(number).encode(array))
        result[f"{number:02}-{'-'.join(name for name, _ in chain)}"] = frame
    return result


def main() -> None:
    texts = {f"{number:02}": text.encode() for number, text in enumerate(TEMPLATES)}
    documents = {
        "zarray": {name: V2 | changes for name, changes in ZARRAY.items()},
        "zarr_json": ZARR_JSON,
        "zarr_draft": {
            "plain": DRAFT,
            "codec": DRAFT | {"compressor": DRAFT_CODEC, "chunk_memory_layout": "F"},
            "type": DRAFT | {"data_type": DRAFT_TYPE, "fill_value": None},
        },
        "zarr_v1": {
            "plain": V1,
            "zlib": V1 | {"compression": "zlib", "compression_opts": 1, "order": "F"},
            "blosc": V1 | {"compression": "blosc", "compression_opts": BLOSC, "fill_value": None},
        },
        "references": REFERENCES,
    }
    files: dict[str, dict[str, bytes]] = {
        target: {name: json.dumps(value).encode() for name, value in values.items()}
        for target, values in documents.items()
    }
    files |= {"nczarr": vintages(), "templates": texts, "shard_index": shards()}
    files |= {"zip_file": zip_files(), "codecs": frames()}
    for target, contents in files.items():
        shutil.rmtree(CORPUS / target, ignore_errors=True)
        (CORPUS / target).mkdir(parents=True)
        for name, data in contents.items():
            (CORPUS / target / name).write_bytes(data)


if __name__ == "__main__":
    main()
