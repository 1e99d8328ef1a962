"""Benchmarks of a sharded Zarr v3 array with inner chunks of 80 kB in shards of 6.5 MB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tensorstore
import zarr

from tests.benchmarks import baselines, data
from tests.benchmarks.harness import OURS, Row
from tests.benchmarks.reading import ours

SHAPE, SHARDS, CHUNKS = (40, 1280, 1280), (1, 1280, 1280), (1, 160, 128)


def sharded(directory: Path) -> Iterator[Row]:
    """Yield benchmarks of reading the whole array, and of reading one point of every shard."""
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
    counts = [whole // part for whole, part in zip(SHARDS, CHUNKS, strict=True)]
    files = baselines.chunk_files(path)
    inner = int(np.ravel_multi_index((0, 500 // CHUNKS[1], 500 // CHUNKS[2]), counts))
    point = (slice(None), slice(500, 501), slice(500, 501))
    selections = {
        "262 MB in shards": ((slice(None),) * 3, 2.5, None),
        "one point from all shards": (point, 3, inner),
    }
    for name, (selection, goal, item) in selections.items():
        yield Row(
            name,
            {
                OURS: lambda s=selection: array.read(s),
                "zarr-python": lambda s=selection: by_zarr[s],
                "zarrs": lambda s=selection: by_zarrs[s],
                "tensorstore": lambda s=selection: by_tensorstore[s].read().result(),
                "baseline": baselines.inner_chunks(files, SHARDS[1:], CHUNKS[1:], item),
            },
            {"zarr-python": goal, "zarrs": 1, "tensorstore": 1},
        )
