"""Lower bounds of run time: the same work in plain Python."""

from __future__ import annotations

import ctypes
import json
import os
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import deflate
import numcodecs
import numpy as np

Decode = Callable[[bytes, np.ndarray], Any]
Encode = Callable[[np.ndarray], Any]

DECODERS: dict[str, Decode | None] = {
    "raw": None,
    "blosc": numcodecs.Blosc().decode,
    "zstd": numcodecs.Zstd().decode,
    "zlib": lambda raw, out: np.copyto(out, np.frombuffer(zlib.decompress(raw), "u1")),
}


def chunk_files(path: Path) -> list[Path]:
    """Return the files of the chunks of ``field``."""
    result = (path / "field").rglob("[0-9]*")
    return sorted(item for item in result if item.is_file())


def reading(
    files: Sequence[Path],
    decode: Decode | None,
    chunk_bytes: int,
    threads: int = 2,
    fill: np.floating | None = None,
) -> Callable[[], None]:
    """Return a function that reads and decodes all files into one array.

    If `fill` is passed, each number that equals it becomes NaN while the chunk that contains the
    number is still in the processor's cache.
    """

    def read() -> None:
        size = len(files) * chunk_bytes
        memory = np.empty(size + 64, "u1")
        # Some processors copy more slowly to NumPy's arrays, which are not aligned to 64 bytes.
        start = -memory.ctypes.data % 64
        out = memory[start : start + size].reshape(len(files), chunk_bytes)

        def some(numbers: Iterable[int]) -> None:
            for number in numbers:
                descriptor = os.open(files[number], os.O_RDONLY)
                if decode is None:
                    os.readv(descriptor, [out[number]])
                else:
                    raw = os.read(descriptor, os.fstat(descriptor).st_size)
                    decode(raw, out[number])
                os.close(descriptor)
                if fill is not None:
                    values = out[number].view(fill.dtype)
                    values[values == fill] = np.nan

        in_threads([range(first, len(files), threads) for first in range(threads)], some)

    return read


def in_threads(shares: Sequence[Any], work: Callable[[Any], None]) -> None:
    """Call `work` with each of the shares, each in a separate thread."""
    if len(shares) == 1:
        work(shares[0])
        return
    with ThreadPoolExecutor(len(shares)) as pool:
        list(pool.map(work, shares))


def rows_of_files(
    files: Sequence[Path], rows: Sequence[int], row_bytes: int, wanted: int
) -> Callable[[], None]:
    """Return a function that reads the first `wanted` bytes of some rows from each file."""

    def read() -> None:
        for file in files:
            descriptor = os.open(file, os.O_RDONLY)
            for row in rows:
                os.pread(descriptor, wanted, row * row_bytes)
            os.close(descriptor)

    return read


def inner_chunks(
    files: Sequence[Path], shape: tuple[int, int], chunk: tuple[int, int], one: int | None = None
) -> Callable[[], None]:
    """Return a function that reads shards and decodes their inner chunks.

    If `one` is a number, the function decodes only the inner chunk with this number in each shard.
    `shape` is the shape of a shard, and `chunk` is the shape of an inner chunk. Each element has
    four bytes. The index at the end of a shard has a checksum of four bytes.
    """
    decode, counts = numcodecs.Zstd().decode, (shape[0] // chunk[0], shape[1] // chunk[1])
    count = counts[0] * counts[1]
    index_bytes = 16 * count + 4

    def some(out: np.ndarray, numbers: Iterable[int]) -> None:
        buffer = np.empty(chunk, "f4")
        for number in numbers:
            descriptor = os.open(files[number], os.O_RDONLY)
            size = os.fstat(descriptor).st_size
            index = os.pread(descriptor, index_bytes, size - index_bytes)
            places = np.frombuffer(index, "<u8", 2 * count).reshape(-1, 2).tolist()
            if one is None:
                raw = memoryview(os.pread(descriptor, size, 0))
                target = out[number].reshape(counts[0], chunk[0], counts[1], chunk[1])
                for at, (start, length) in enumerate(places):
                    decode(raw[start : start + length], buffer)
                    target[at // counts[1], :, at % counts[1]] = buffer
            else:
                start, length = places[one]
                decode(os.pread(descriptor, length, start), buffer)
            os.close(descriptor)

    def read() -> None:
        out = np.empty((len(files), *shape), "f4")
        shares = [range(0, len(files), 2), range(1, len(files), 2)]
        in_threads(shares, partial(some, out))

    return read


def documents(path: Path) -> Callable[[], None]:
    """Return a function that parses the metadata of a store.

    The metadata is one consolidated document if there is one, otherwise two documents for each
    array.
    """
    first = path / ".zmetadata"
    files = [first] if first.exists() else [*path.rglob(".zarray"), *path.rglob(".zattrs")]

    def read() -> None:
        for file in map(str, files):
            descriptor = os.open(file, os.O_RDONLY)
            json.loads(os.read(descriptor, os.fstat(descriptor).st_size))
            os.close(descriptor)

    return read


def listed_pieces(document: Path, target: Path) -> None:
    """Parse a reference document, and read the ranges that it lists from one file."""
    out = np.empty(target.stat().st_size, "u1")
    descriptor = os.open(target, os.O_RDONLY)
    for key, entry in json.loads(document.read_bytes())["refs"].items():
        if key[-1].isdigit():
            _, start, length = entry
            raw = os.pread(descriptor, length, start)
            out[start : start + length] = np.frombuffer(raw, "u1")
    os.close(descriptor)


def encoded(values: np.ndarray, encode: Encode | None, path: Path | None = None) -> None:
    """Encode or copy each chunk on two threads, and write the result to `path` if it is passed.

    The system starts to write each file to disk immediately. At the end, the function waits until
    all files are on disk.
    """
    system = ctypes.CDLL(None)

    def some(numbers: Iterable[int]) -> None:
        for number in numbers:
            chunk = values[number]
            if path is None:
                (encode or bytes)(chunk)
                continue
            descriptor = os.open(path / str(number), os.O_WRONLY | os.O_CREAT)
            os.write(descriptor, encode(chunk) if encode else chunk)
            system.sync_file_range(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), 2)
            os.close(descriptor)

    numcodecs.blosc.use_threads = False
    if path is not None:
        path.mkdir()
    in_threads([range(first, len(values), 2) for first in (0, 1)], some)
    if path is not None:
        descriptor = os.open(path, os.O_RDONLY)
        system.syncfs(descriptor)
        os.close(descriptor)
    numcodecs.blosc.use_threads = None


def shuffled_deflated(chunk: np.ndarray) -> bytes:
    """Return a chunk that is shuffled and deflated in the same way as by netcdf-c.

    libdeflate's level 3 is used in place of zlib's level 4.
    """
    planes = np.empty((chunk.itemsize, chunk.size), "u1")
    planes[...] = chunk.reshape(-1).view("u1").reshape(chunk.size, chunk.itemsize).T
    return deflate.zlib_compress(planes.data.cast("B"), 3)
