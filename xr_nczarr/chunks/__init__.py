"""Read and write selections of chunked arrays, for every Zarr version and store."""

from xr_nczarr.chunks.array import ChunkedArray, ReadOptions
from xr_nczarr.chunks.reading import Convert

__all__ = ["ChunkedArray", "Convert", "ReadOptions"]
