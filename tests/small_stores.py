"""Stores that contain one or two small arrays, written without the package."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import numpy as np

from tests.stores import array_document


def plain_objects(
    name: str = "a", dimension: str = "x", shape: Iterable[int] = (2,), **attributes: Any
) -> dict[str, bytes]:
    """Return the objects of a plain Zarr v2 group with an array of doubles, 1 and 2."""
    shape = [*shape]
    documents = {
        ".zgroup": {"zarr_format": 2},
        f"{name}/.zarray": array_document(shape, "<f8", fill_value=0),
        f"{name}/.zattrs": {"_ARRAY_DIMENSIONS": [dimension][: len(shape)], **attributes},
    }
    objects = {key: json.dumps(value).encode() for key, value in documents.items()}
    return objects | {f"{name}/0": np.array([1.0, 2.0][: 2 if shape else 1]).tobytes()}
