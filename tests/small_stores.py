"""Stores that contain one or two small arrays."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import netCDF4
import numpy as np
import xarray as xr

from tests.stores import array_document, file_url, put
from xr_nczarr import to_nczarr


def plain_objects(
    name: str = "a", dimension: str = "x", shape: Iterable[int] = (2,), **attributes: Any
) -> dict[str, bytes]:
    """Return the objects of a plain Zarr v2 group with an array of the doubles 1 and 2."""
    shape = [*shape]
    documents = {
        ".zgroup": {"zarr_format": 2},
        f"{name}/.zarray": array_document(shape, "<f8", fill_value=0),
        f"{name}/.zattrs": {"_ARRAY_DIMENSIONS": [dimension][: len(shape)], **attributes},
    }
    objects = {key: json.dumps(value).encode() for key, value in documents.items()}
    return objects | {f"{name}/0": np.array([1.0, 2.0][: 2 if shape else 1]).tobytes()}


def one_array(
    path: Path,
    zarray: dict[str, Any],
    chunks: dict[str, bytes],
    attrs: Any = None,
    *,
    nczarr: bool = True,
) -> Path:
    """Write a store with the variable ``v``.

    If `nczarr` is true, the store has the annotations of netcdf-c 4.10.
    """
    names = [f"d{axis}" for axis in range(len(zarray["shape"]))]
    sizes = dict(zip(names, zarray["shape"], strict=True))
    own: dict[str, Any] = {"_ARRAY_DIMENSIONS": names}
    root: dict[str, Any] = {}
    if nczarr:
        own["_nczarr_array"] = {"dimension_references": [f"/{n}" for n in names]}
        root["_nczarr_group"] = {"dimensions": sizes, "arrays": ["v"], "groups": []}
        root["_nczarr_superblock"] = {"version": "2.0.0"}
    attributes = attrs if isinstance(attrs, str) else (attrs or {}) | own
    documents = {".zgroup": {"zarr_format": 2}, ".zattrs": root}
    documents |= {"v/.zarray": zarray, "v/.zattrs": attributes}
    return put(path, documents | {f"v/{key}": chunk for key, chunk in chunks.items()})


def store_with_good_array(path: Path, **broken: dict[str, Any]) -> Path:
    """Write a plain Zarr group with the array ``good`` and the arrays `broken`."""
    documents: dict[str, Any] = {".zgroup": {"zarr_format": 2}}
    for name, document in {"good": array_document((2,)), **broken}.items():
        documents[f"{name}/.zarray"] = document
        documents[f"{name}/.zattrs"] = {"_ARRAY_DIMENSIONS": ["x"] * len(document["shape"])}
        documents[f"{name}/0"] = np.array([5, 6], "i4").tobytes()
    return put(path, documents)


def netcdf_c_store(path: Path, values: np.ndarray) -> Path:
    """Write a store with netcdf-c, in which the variable ``t`` has the dimension ``x``."""
    with netCDF4.Dataset(file_url(path), "w") as file:
        file.createDimension("x", len(values))
        file.createVariable("t", "f8", ("x",))[:] = values
    return path


def objects_without_some_chunks() -> dict[str, bytes]:
    """Return a store of ``v`` and ``w``. Two of the four chunks of ``v`` are missing."""
    dataset = xr.Dataset({"v": ("x", np.arange(40.0)), "w": ("x", np.arange(40.0))})
    objects: dict[str, bytes] = {}
    to_nczarr(dataset, objects, encoding={name: {"chunks": (10,)} for name in "vw"})
    del objects["v/1"], objects["v/3"]
    return objects
