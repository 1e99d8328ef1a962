"""Stores for the benchmarks, which other programs write once per directory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import xarray as xr
import zarr
from numcodecs import Blosc, Zlib, Zstd

SHAPE = (64, 1024, 1012)
FILL = 1e20  # not a value of the field
CHUNKS = (1, 1024, 1012)
COMPRESSORS = {
    "raw": None,
    "blosc": Blosc("lz4", 5, Blosc.SHUFFLE),
    "zstd": Zstd(3),
    "zlib": Zlib(1),
}


def field(shape=SHAPE) -> np.ndarray:
    """Return a smooth float32 field with noise in its last digits."""
    random = np.random.default_rng(0)
    rows = np.linspace(0, 6, shape[-2], dtype="f4")[:, None]
    columns = np.linspace(0, 9, shape[-1], dtype="f4")
    base = 280 + 20 * np.sin(rows) * np.cos(columns)
    out = np.empty(shape, "f4")
    for index in np.ndindex(shape[:-2]):
        noise = random.standard_normal(base.shape, dtype="f4")
        out[index] = np.round(base + noise, 2)
    return out


def zarr_store(
    directory: Path,
    name: str,
    values: np.ndarray,
    chunks,
    compressor,
    *,
    fill: bool = True,
    attributes=None,
) -> Path:
    """Write one array ``field`` in a consolidated plain Zarr v2 store that xarray can open.

    Without `fill`, no chunk is written.
    """
    path = directory / f"{name}.zarr"
    attributes = dict(attributes or {})
    if not path.exists():
        group = zarr.open_group(path, mode="w", zarr_format=2)
        array = group.create_array(
            "field",
            shape=values.shape,
            dtype=values.dtype,
            chunks=chunks,
            compressors=compressor,
            fill_value=attributes.pop("_FillValue", np.nan),
        )
        array.attrs.update({"_ARRAY_DIMENSIONS": list("tyx")[-values.ndim :], **attributes})
        if fill:
            array[...] = values
        zarr.consolidate_metadata(path)
    return path


def large(directory: Path, name: str) -> Path:
    """Write the 265 MB field in chunks of 4 MB, with the compressor called `name`."""
    made = (directory / f"{name}.zarr").exists()
    values = None if made else field()
    return zarr_store(directory, name, values, CHUNKS, COMPRESSORS[name])


def masked(directory: Path) -> Path:
    """Write the uncompressed field with a finite fill value."""
    values = np.empty(0) if (directory / "filled.zarr").exists() else field()
    return zarr_store(directory, "filled", values, CHUNKS, None, attributes={"_FillValue": FILL})


def small(directory: Path, name: str, count: int, elements: int) -> Path:
    """Write many small chunks of one row each."""
    stem = f"small_{name}_{count}"
    values = field((1, count, elements))[0]
    return zarr_store(directory, stem, values, (1, elements), COMPRESSORS[name])


def netcdf_store(directory: Path, name: str, values: np.ndarray, chunks, **options) -> Path:
    """Write one variable ``field`` in an NCZarr store with netcdf-c."""
    import netCDF4

    path = directory / f"{name}.nczarr"
    if not path.exists():
        attributes = options.pop("attributes", {})
        with netCDF4.Dataset(f"file://{path}#mode=nczarr,file", "w") as file:
            dimensions = list("tyx")[-values.ndim :]
            for dimension, size in zip(dimensions, values.shape, strict=True):
                file.createDimension(dimension, size)
            variable = file.createVariable(
                "field", values.dtype, dimensions, chunksizes=chunks, **options
            )
            variable.set_auto_maskandscale(False)
            variable.setncatts(attributes)
            variable[...] = values
    return path


def many_variables(directory: Path, count: int = 500) -> dict[str, Path]:
    """Write stores of `count` small variables: NCZarr, plain Zarr, and consolidated plain Zarr."""
    import netCDF4

    paths = {kind: directory / f"many.{kind}" for kind in ("nczarr", "consolidated", "single")}
    if not paths["nczarr"].exists():
        with netCDF4.Dataset(f"file://{paths['nczarr']}#mode=nczarr,file", "w") as file:
            file.createDimension("x", 10)
            for number in range(count):
                variable = file.createVariable(f"v{number:03}", "f4", ("x",), fill_value=-999.0)
                variable.setncatts({"units": "m", "long_name": f"variable {number}", "level": 3.5})
                variable[:] = np.arange(10)
    if not paths["single"].exists():
        data = {
            f"v{number:03}": (
                "x",
                np.arange(10, dtype="f4"),
                {"units": "m", "long_name": f"variable {number}", "level": 3.5},
            )
            for number in range(count)
        }
        dataset = xr.Dataset(data)
        dataset.to_zarr(paths["consolidated"], zarr_format=2, consolidated=True)
        dataset.to_zarr(paths["single"], zarr_format=2, consolidated=False)
    return paths
