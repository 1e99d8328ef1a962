"""What other programs choke on in a store, and why: each was seen by running them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from operator import gt

from xr_nczarr.dataset import OpenedStore
from xr_nczarr.formats import FORMATS
from xr_nczarr.model import ArrayNode, BrokenNode
from xr_nczarr.netcdf import Variable
from xr_nczarr.netcdf.annotations import XARRAY_DIMENSIONS, is_universal

Concern = tuple[str, str, str, str]
"""Programs, path of the node, what they do with it, and the remedy."""

ZARR, XARRAY, NETCDF_C = "zarr-python", "xarray's zarr engine", "netcdf-c"
OLD_NETCDF_C = "netcdf-c ≤ 4.9.2"
_VERSIONS = {NETCDF_C: ("2",), f"{ZARR}, {XARRAY}": ("2", "3")}  # that they read
_UPGRADE = "nczarr upgrade writes what they read"
_NAME = "nczarr upgrade --dialect zarr writes them"
_UNIVERSAL = "nczarr upgrade --dialect universal, or nczarr copy --dialect universal"
_NETCDF_CODECS = {"shuffle", "zlib", "bz2", "zstd", "blosc", "fletcher32", "szip"}
_NETCDF_KINDS = "iufS"


def concerns(opened: OpenedStore) -> Iterator[Concern]:
    """Yield what netcdf-c, zarr-python and xarray's zarr engine cannot open or read wrongly."""
    version, root = opened.hierarchy.zarr_format, opened.root
    universal = is_universal(root.node)
    in_netcdf = version in _VERSIONS[NETCDF_C]
    for programs, versions in _VERSIONS.items():
        if version not in versions:
            problem = f"do not know Zarr version {version}"
            yield programs, "/", problem, "nczarr copy to version 2"
    if in_netcdf and root.dialect in ("nczarr-4.9.3", "nczarr-preview") and not universal:
        problem = "take annotations for attributes, or open nothing (4.9.1, and what may grow)"
        yield OLD_NETCDF_C, "/", problem, _UNIVERSAL
    read_by_old = universal or root.dialect in ("zarr", "nczarr-4.8.1", "nczarr-4.9.1")
    old = in_netcdf and read_by_old
    for variable in root.all_variables():
        node = opened.hierarchy.nodes.get(variable.path)
        if old and isinstance(node, ArrayNode) and any(map(gt, node.chunk_shape, node.shape)):
            problem = "open no store with chunks longer than a dimension (4.9.0 does not)"
            yield OLD_NETCDF_C, node.path, problem, "nczarr copy --dialect universal"
        if isinstance(node, ArrayNode) and in_netcdf:
            yield from _in_zarr(variable, node, plain=root.dialect == "zarr")
            yield from _in_netcdf(variable, node)
        if isinstance(node, ArrayNode) and not in_netcdf and node.dimension_names is None:
            yield XARRAY, node.path, "opens no group with an array without names", "nczarr copy"


def _in_zarr(variable: Variable, node: ArrayNode, *, plain: bool) -> Iterator[Concern]:
    """Yield what readers of plain Zarr meet in the documents of one array."""
    both, path, attributes = f"{ZARR}, {XARRAY}", node.path, node.attributes.values_by_name
    if node.type_name in (">S1", "<S1"):
        yield both, path, f"open no group with the type {node.type_name}", _UNIVERSAL
    elif variable.kind == "char" and node.type_name in ("<U1", ">U1"):
        yield both, path, "take its characters for four bytes each, and fail", _UNIVERSAL
    for spec in node.codecs:
        if any(map(_is_number, spec.configuration.values())):
            yield both, path, f"fail at the numbers of {spec.name} that are text", _UPGRADE
        elif spec.name == "shuffle" and _shuffled(node) != _shuffled(variable.node):
            yield both, path, f"read wrong values: shuffled by {_shuffled(node)} bytes", _UPGRADE
        elif spec.name == "szip":
            yield both, path, "have no codec szip", "nczarr copy --codecs"
    names, remedy = attributes.get(XARRAY_DIMENSIONS), _NAME if plain else _UPGRADE
    if names is None:
        yield XARRAY, path, f"opens no group with an array without {XARRAY_DIMENSIONS}", remedy
    elif isinstance(names, list) and len(names) != len(node.shape):
        yield XARRAY, path, f"finds {len(names)} names of {len(node.shape)} dimensions", remedy
    if variable.kind == "string" and node.dtype.kind == "S":
        yield both, path, "read its text as bytes of fixed length", "decode them as UTF-8"


def _in_netcdf(variable: Variable, node: ArrayNode) -> Iterator[Concern]:
    """Yield what netcdf-c meets in one array of version 2."""
    if variable.node is not None and variable.node.dtype.kind not in _NETCDF_KINDS:
        yield NETCDF_C, node.path, f"open no store with the type {node.type_name}", "leave it out"
    elif node.dtype.kind == "f" and node.dtype.itemsize == 2:
        yield NETCDF_C, node.path, "open no store with half precision", "convert it to float32"
    for spec in node.codecs:
        if spec.place == "order":
            yield NETCDF_C, node.path, "ignore the order F and read wrong values", "nczarr copy"
        elif spec.name not in _NETCDF_CODECS:
            yield NETCDF_C, node.path, f"have no codec {spec.name}", "nczarr copy --codecs"
    if any(spec.name in _NETCDF_CODECS for spec in node.codecs):
        yield (
            f"{OLD_NETCDF_C} without plugins",
            node.path,
            "ignore filters and read compressed bytes as values (Debian's 4.9.0 is built so)",
            "nczarr copy --codecs '[]'",
        )


def _shuffled(node: ArrayNode | None) -> object:
    """Return the item size of a shuffle, as stored or as the interpretation corrected it."""
    specs = [spec for spec in (node.codecs if node else ()) if spec.name == "shuffle"]
    return specs[0].configuration.get("elementsize") if specs else None


def _is_number(value: object) -> bool:
    return isinstance(value, str) and value.lstrip("-").isdecimal()


def in_documents(opened: OpenedStore) -> Iterator[Concern]:
    """Yield what strict parsers refuse in the documents, and what netcdf-c reads otherwise."""
    zarr = FORMATS[opened.hierarchy.zarr_format]
    nodes = opened.hierarchy.nodes.items()
    # Of what we cannot read either, the error is told.
    whole = [path for path, node in nodes if not isinstance(node, BrokenNode)]
    keys = [key for path in whole for key in zarr.node_keys(path)]
    for key, data in opened.store.fetch_present(keys):
        try:
            json.loads(bytes(data))
        except ValueError as error:
            problem = f"open nothing beside a document that is no JSON ({error})"
            yield f"{ZARR}, {XARRAY}", key, problem, _UPGRADE
        if rb"\u" in bytes(data):
            yield NETCDF_C, key, r"take \u and what follows for letters", _UPGRADE
