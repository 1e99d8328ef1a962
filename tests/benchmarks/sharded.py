"""Rows: a sharded array of Zarr v3, inner chunks of 80 kB in shards of 6.5 MB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import tensorstore
import zarr

from tests.benchmarks import data
from tests.benchmarks.harness import OURS, Row
from tests.benchmarks.reading import ours

SHAPE, SHARDS, CHUNKS = (40, 1280, 1280), (1, 1280, 1280), (1, 160, 128)


def sharded(directory: Path) -> Iterator[Row]:
    """The whole array, and one point through all shards."""
    path = directory / "sharded.zarr"
    if not path.exists():
        values = data.field(SHAPE)
        group = zarr.create_group(path, zarr_format=3)
        array = group.create_array(
            "field", shape=SHAPE, dtype="f4", chunks=CHUNKS, shards=SHARDS, dimension_names="tyx"
        )
        array[...] = values
    array = ours(path)
    by_zarr = zarr.open_array(path / "field", mode="r")
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        by_zarrs = zarr.open_array(path / "field", mode="r")
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{path}/field/"}}
    by_tensorstore = tensorstore.open(spec, read=True).result()
    selections = {
        "262 MB in shards": ((slice(None),) * 3, 2.5),
        "one point through all shards": ((slice(None), slice(500, 501), slice(500, 501)), 3),
    }
    for name, (selection, goal) in selections.items():
        yield Row(
            name,
            {
                OURS: lambda s=selection: array.read(s),
                "zarr-python": lambda s=selection: by_zarr[s],
                "zarrs": lambda s=selection: by_zarrs[s],
                "tensorstore": lambda s=selection: by_tensorstore[s].read().result(),
            },
            {"zarr-python": goal, "zarrs": 1, "tensorstore": 1},
        )
