"""Hierarchies built from plain values, for tests without a store or a format."""

import numpy as np

from xr_nczarr.formats import FORMATS
from xr_nczarr.formats.format import Hierarchy
from xr_nczarr.model import ArrayNode, Attributes, ChunkKeys, GroupNode


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
