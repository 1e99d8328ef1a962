"""Nodes, hierarchies and arrays built from plain values, without parsing metadata."""

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.reading import open_store
from xr_nczarr.chunks import ChunkedArray, ReadOptions
from xr_nczarr.formats import FORMATS
from xr_nczarr.formats.format import Hierarchy
from xr_nczarr.model import ArrayNode, Attributes, ChunkKeys, CodecSpec, GroupNode


def group(path="/", attributes=(), literals=None, **fields):
    source = None if literals is None else literals.__getitem__
    return GroupNode(path=path, attributes=Attributes(dict(attributes), source), **fields)


def array(path, shape=(), type_name="<i4", attributes=(), literals=None, **fields):
    fields["dtype"] = np.dtype(fields.get("dtype", type_name))
    fields.setdefault("chunk_shape", tuple(max(size, 1) for size in shape))
    source = None if literals is None else literals.__getitem__
    return ArrayNode(
        path=path,
        shape=tuple(shape),
        type_name=type_name,
        chunk_keys=ChunkKeys(f"{path.lstrip('/')}/", ".", f"{path.lstrip('/')}/0"),
        attributes=Attributes(dict(attributes), source),
        **fields,
    )


def hierarchy(*nodes, zarr_format="2"):
    return Hierarchy(nodes={node.path: node for node in nodes}, zarr=FORMATS[zarr_format])


def chunked_array(
    values: np.ndarray,
    chunks: tuple[int, ...],
    specs: tuple[CodecSpec, ...] = (),
    *,
    encode: Callable[[np.ndarray], Any] = np.ndarray.tobytes,
    target: Any = None,
    **options: Any,
) -> ChunkedArray:
    """Write an array with the path ``/v``, and return it.

    Partial chunks are padded with zeros. `encode` encodes each chunk. The default `target` is a new
    mapping. `options` are the arguments of `ReadOptions`.
    """
    node = ArrayNode(
        path="/v",
        shape=values.shape,
        dtype=values.dtype,
        chunk_shape=chunks,
        fill_value=0,
        codecs=specs,
        chunk_keys=ChunkKeys("v/", ".", "v/0"),
    )
    store = open_store({} if target is None else target)
    for index in np.ndindex(*(-(-n // c) for n, c in zip(values.shape, chunks, strict=True))):
        chunk = np.zeros(chunks, values.dtype)
        part = values[tuple(slice(i * c, (i + 1) * c) for i, c in zip(index, chunks, strict=True))]
        chunk[tuple(slice(n) for n in part.shape)] = part
        store.put([(node.chunk_keys.key(index), encode(chunk))])
    return ChunkedArray(node, store, ReadOptions(**options))
