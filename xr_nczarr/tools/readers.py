"""Report the features required to read a store, and the parts that some programs misread.

The report is based only on the metadata of the store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any
from unicodedata import is_normalized

import numpy as np

from xr_nczarr.dataset import OpenedStore
from xr_nczarr.errors import quote
from xr_nczarr.formats import Format
from xr_nczarr.model import ArrayNode, BrokenNode, node_name
from xr_nczarr.netcdf import Group, Variable
from xr_nczarr.netcdf.annotations import XARRAY_DIMENSIONS, releases_of
from xr_nczarr.storage import Bytes
from xr_nczarr.tools.verification import Finding

_NETCDF_FILTERS = {"shuffle", "zlib", "bz2", "zstd", "blosc", "fletcher32", "szip"}
_NETCDF_NAME = re.compile(r"[0-9A-Za-z_\x80-\U0010ffff][^\0-\x1f/\x7f]*(?<! )")
_MAX_NETCDF_NAME_BYTES = 256
_COPY = "Run nczarr copy --dialect universal to create a store that all programs can read"


def requirements(opened: OpenedStore, documents: Mapping[str, Bytes | None]) -> Iterator[Finding]:
    """Yield findings about the programs that can read a store.

    A finding of severity ``"note"`` names a feature that every program needs in order to read the
    store. A finding of severity ``"warning"`` names a part that some programs misread or cannot
    read.

    Parameters
    ----------
    documents
        The store's metadata documents, keyed by object key. None stands for a missing document.
    """
    zarr, root = opened.hierarchy.zarr, opened.root
    yield Finding("note", "/", f"readers must support Zarr version {zarr.version}")
    if releases := releases_of(root.dialect, root.node):
        yield Finding("note", "/", f"NCZarr metadata is in the layout of {releases}")
    plain = " --dialect zarr" if root.dialect == "zarr" else ""
    upgrade = f"Run nczarr upgrade{plain}, which writes metadata that all programs can read"
    for variable in root.all_variables():
        node = opened.hierarchy.nodes.get(variable.path)
        if isinstance(node, ArrayNode):
            for spec in node.codecs:
                if spec.name not in ("bytes", "order", "transpose"):
                    problem = f"readers must support the codec {spec.name}"
                    if spec.is_buffer_filter:
                        is_known = spec.name in _NETCDF_FILTERS
                        support = "loads as a plugin" if is_known else "does not support"
                        problem += f", which netCDF-C {support}"
                    yield Finding("note", node.path, problem)
            for problem, remedy in _exceptions(variable, node, zarr, upgrade):
                yield Finding("warning", node.path, problem, remedy)
    if not zarr.has_dimension_names:  # netCDF-C reads only Zarr v2
        yield from _names_unsupported_by_netcdf(root)
    yield from _in_documents(opened, documents, upgrade)


def is_netcdf_name(name: str) -> bool:
    """Return whether netCDF-C can open a store that contains a dimension or variable of this name.

    netCDF-C converts names to Unicode Normalization Form C before looking them up. It therefore
    does not find names that are stored in another form.
    """
    is_short = len(name.encode("utf-8", "surrogatepass")) <= _MAX_NETCDF_NAME_BYTES
    return is_short and is_normalized("NFC", name) and _NETCDF_NAME.fullmatch(name) is not None


def _names_unsupported_by_netcdf(root: Group) -> Iterator[Finding]:
    names: dict[str, str] = {}
    for group in root.walk():
        names[group.path] = node_name(group.path)
        names |= {item.path: item.name for item in group.variables.values()}
        # In plain Zarr, the name of a dimension can contain slashes.
        names |= {item.path: item.name for item in group.dimensions.values()}
    for path, name in names.items():
        if path != "/" and not is_netcdf_name(name):
            problem = f"netCDF-C cannot open a store that contains the name {quote(repr(name))}"
            yield Finding("warning", path, problem, "Write a new store with another name")


def _exceptions(
    variable: Variable, node: ArrayNode, zarr: Format, upgrade: str
) -> Iterator[tuple[str, str]]:
    if problem := _problem_with_names(node, zarr):
        yield problem, upgrade
    if zarr.has_dimension_names:
        return
    if variable.kind == "char" and node.type_name not in ("|S1", "S1"):
        yield f"only netCDF-C reads characters of type {node.type_name}", _COPY
    elif node.dtype.kind not in "iufS" or node.dtype.type is np.float16:
        yield f"netCDF-C cannot open a store that contains type {node.type_name}", ""
    for spec, read in zip(node.codecs, (variable.node or node).codecs, strict=False):
        document = spec.document if isinstance(spec.document, dict) else {}
        stored: Any = document.get("configuration", document)
        if spec.place == "order":
            problem = "netCDF-C ignores order F and reads wrong values"
            yield problem, "Copy the store with nczarr copy"
        elif any(isinstance(value, str) and value.isdecimal() for value in stored.values()):
            problem = f"numeric parameters of {spec.name} are strings, which only netCDF-C accepts"
            yield problem, upgrade
        elif spec.name == "shuffle" and stored.get("elementsize", 4) != read.configuration.get(
            "elementsize"
        ):
            yield f"only netCDF-C uses the correct element size for {spec.name}", upgrade


def _problem_with_names(node: ArrayNode, zarr: Format) -> str:
    """Return the problem that xarray's zarr engine has with the dimension names of an array.

    Return an empty string if there is no problem.
    """
    names: Any = node.attributes.get(XARRAY_DIMENSIONS)
    if zarr.has_dimension_names:  # the engine then ignores the attribute
        names = node.dimension_names if node.shape else []
    if names is None:
        return "xarray's zarr engine requires dimension names, which are missing"
    if isinstance(names, list) and len(names) != len(node.shape):
        return f"xarray's zarr engine finds {len(names)} names for {len(node.shape)} dimensions"
    return ""


def _in_documents(
    opened: OpenedStore, documents: Mapping[str, Bytes | None], upgrade: str
) -> Iterator[Finding]:
    """Yield findings for metadata documents that are not strict JSON, or that netCDF-C misreads."""
    zarr, nodes = opened.hierarchy.zarr, opened.hierarchy.nodes.items()
    # `verify` itself reports the documents of broken nodes.
    whole = [path for path, node in nodes if not isinstance(node, BrokenNode)]
    for key in (key for path in whole for key in zarr.node_keys(path)):
        data = bytes(documents.get(key) or b"null")
        try:
            json.loads(data)
        except ValueError:
            problem = "parts of the document are not valid JSON, and only netCDF-C can read them"
            yield Finding("warning", key, problem, upgrade)
        if rb"\u" in data:
            problem = r"the document contains \u escapes, which netCDF-C reads as plain letters"
            yield Finding("warning", key, problem, upgrade)
